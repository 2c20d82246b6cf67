//! Other releases of Debian, each in a folder of its own, with their programs, their compilers and this workspace's sources.
//!
//! `distro/root.sh` makes such a folder and `distro/enter.sh` runs a command in it. Nothing of it is the host's but the kernel: what is
//! built there is built with that release's headers and compiler, and what runs there are its programs.

pub mod table;
pub mod uses;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::error::Error;
use crate::guest::output_folder;
use crate::local::program::Program;
use crate::network::{INTERFACE, LIMIT, Namespace, command_line, run, within};
use crate::rows::PortKind;

/// Those that are run if none is named: Debian 12, Debian 13, and what comes.
pub const SUITES: [&str; 3] = ["bookworm", "trixie", "sid"];
/// How `root.sh` ends when the host lacks something, and when the mirror does not give it. It has said why.
const LACKS: i32 = 3;
const NOT_HAD: i32 = 4;
/// Packages whose releases the table names.
const TOLD: [&str; 7] = ["libibverbs1", "perftest", "qperf", "fio", "libucx0", "libfabric1", "rustc"];

/// A release of Debian in a folder.
#[derive(Debug)]
pub struct Root {
    suite: String,
    cache: PathBuf,
    /// Where what runs in it was built: in its own `target`, or in another's.
    target: PathBuf,
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("distro").join(name)
}

/// Removes a release and all that was built in it.
///
/// # Errors
/// If the script fails.
pub fn remove(suite: &str) -> Result<(), Error> {
    run(Command::new(script("root.sh")).args(["--remove", suite])).map(drop)
}

impl Root {
    /// Makes it, or finds it in the cache.
    ///
    /// # Errors
    /// [`Error::Host`] if the host lacks what that takes, [`Error::Distribution`] if the mirror does not give it.
    pub fn make(suite: &str) -> Result<Root, Error> {
        let mut command = Command::new(script("root.sh"));
        command.arg(suite);
        let failed = |output: String| Error::Command { command: format!("root.sh {suite}"), output };
        let mut command = within(2 * LIMIT, &command);
        let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output();
        let output = output.map_err(|e| failed(e.to_string()))?;
        match output.status.code() {
            Some(0) => {}
            Some(LACKS) => {
                return Err(Error::Host("what it takes to make a Debian in a folder: see above".into()));
            }
            Some(NOT_HAD) => return Err(Error::Distribution(suite.to_owned())),
            _ => return Err(failed(output.status.to_string())),
        }
        let cache = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
        Ok(Root { suite: suite.to_owned(), target: cache.join("target"), cache })
    }

    /// `trixie`.
    pub fn suite(&self) -> &str {
        &self.suite
    }

    /// The same, with what another release built.
    pub fn with_what_was_built_in(self, other: &Root) -> Root {
        Root { target: other.cache.join("target"), ..self }
    }

    /// The tests of its python3-pyverbs could be had.
    pub fn has_python_tests(&self) -> bool {
        self.cache.join(uses::PYTHON_TESTS).exists()
    }

    /// Its UCX has the part that speaks verbs: unstable's has been without.
    pub fn has_ucx_for_verbs(&self) -> bool {
        let folder = format!("root/usr/lib/{}-linux-gnu/ucx/libuct_ib.so.0", std::env::consts::ARCH);
        self.cache.join(folder).symlink_metadata().is_ok()
    }

    /// A command in it, in the caller's network namespace, for what runs in it later.
    fn enter(&self) -> Command {
        let mut command = Command::new(script("enter.sh"));
        command.arg(&self.cache).env("TARGET", &self.target);
        command
    }

    /// `make build`, as a user types it. What it says goes to a log in `target/interop`.
    ///
    /// # Errors
    /// If it fails; the error has the last lines.
    pub fn build(&self) -> Result<(), Error> {
        let folder = output_folder();
        fs::create_dir_all(&folder).map_err(Error::file(&folder))?;
        let path = folder.join(format!("build-{}.log", self.suite));
        let log = File::create(&path).map_err(Error::file(&path))?;
        let again = log.try_clone().map_err(Error::file(&path))?;
        println!("{}: make build; see {}", self.suite, path.display());
        let mut command = self.enter();
        command.args(["make", "build"]).env("INSIDE", "/roxie");
        let line = command_line(&command);
        let failed = |output: String| Error::Command { command: line.clone(), output };
        let mut command = within(4 * LIMIT, &command);
        let status = command.stdin(Stdio::null()).stdout(log).stderr(again).status();
        match status.map_err(|e| failed(e.to_string()))? {
            status if status.success() => Ok(()),
            status => {
                let said = fs::read_to_string(&path).unwrap_or_default();
                let last: Vec<&str> = said.lines().rev().take(5).collect();
                Err(failed(format!("{status}: {}", last.into_iter().rev().collect::<Vec<_>>().join(" / "))))
            }
        }
    }

    /// Releases of what runs in it, as its package system has them: `perftest 25.01.0+0.80-1`.
    pub fn releases(&self) -> Vec<String> {
        let mut ask = self.enter();
        ask.args(["dpkg-query", "-W", "-f", "${Package} ${Version} ${db:Status-Abbrev}\n"]);
        // Of some names it knows nothing, and then fails, having told the others.
        let Ok(output) = within(LIMIT, &ask).stdin(Stdio::null()).output() else { return Vec::new() };
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let installed = text.lines().filter_map(|line| line.strip_suffix(" ii "));
        let told = |line: &&str| {
            TOLD.iter()
                .any(|name| line.split(' ').next().is_some_and(|n| n.trim_end_matches("-web") == *name))
        };
        installed.filter(told).map(str::to_owned).collect()
    }

    /// Starts a program of it under the `roxie run` that was built, at an end of a pair of namespaces.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(&self, end: &Namespace, port: PortKind, words: &[String]) -> Result<Program, Error> {
        let cache = self.cache.display().to_string();
        let set = [format!("TARGET={}", self.target.display()), "INSIDE=/tmp".to_owned()];
        let enter = script("enter.sh").display().to_string();
        let launcher = "/roxie/target/release/roxie run --quiet --dev".split(' ').map(str::to_owned);
        let options = [INTERFACE.to_owned(), "--port".to_owned(), port.to_string(), "--".to_owned()];
        let all: Vec<String> = set
            .into_iter()
            .chain([enter, cache])
            .chain(launcher)
            .chain(options)
            .chain(words.iter().cloned())
            .collect();
        Program::start(Some(end), Path::new("env"), &all)
    }
}
