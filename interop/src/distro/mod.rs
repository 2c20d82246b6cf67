//! Other releases of Debian, each in a folder with its programs, its compilers and this workspace's sources.
//!
//! `distro/root.sh` makes such a folder, and `distro/enter.sh` runs a command in it. Only the kernel is the host's:
//! programs are built with the release's headers and compiler.

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

/// Releases used by default: Debian 12, Debian 13, and unstable.
pub const SUITES: [&str; 3] = ["bookworm", "trixie", "sid"];
/// Exit codes of `root.sh` if the host lacks something, and if the mirror cannot supply it. The script has printed the
/// reason.
const LACKS: i32 = 3;
const NOT_HAD: i32 = 4;
/// Packages to name in the table, with their versions.
const NAMED: [&str; 7] = ["libibverbs1", "perftest", "qperf", "fio", "libucx0", "libfabric1", "rustc"];

/// A release of Debian in a folder.
#[derive(Debug)]
pub struct Root {
    suite: String,
    cache: PathBuf,
    /// The `target` folder of the programs built for it: its own, or another release's.
    target: PathBuf,
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("distro").join(name)
}

/// Removes a release and everything built in it.
///
/// # Errors
/// If the script fails.
pub fn remove(suite: &str) -> Result<(), Error> {
    run(Command::new(script("root.sh")).args(["--remove", suite])).map(drop)
}

impl Root {
    /// Makes the release, or finds it in the cache.
    ///
    /// # Errors
    /// [`Error::Host`] if the host lacks a program for it, [`Error::Distribution`] if the mirror cannot supply it.
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
                return Err(Error::Host("programs to make a Debian in a folder: see above".into()));
            }
            Some(NOT_HAD) => return Err(Error::Distribution(suite.to_owned())),
            _ => return Err(failed(output.status.to_string())),
        }
        let cache = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
        Ok(Root { suite: suite.to_owned(), target: cache.join("target"), cache })
    }

    /// Returns the release's name, such as `trixie`.
    pub fn suite(&self) -> &str {
        &self.suite
    }

    /// Returns the same release with the programs that another release built.
    pub fn with_build_of(self, other: &Root) -> Root {
        Root { target: other.cache.join("target"), ..self }
    }

    /// True if the tests of its python3-pyverbs are available.
    pub fn has_python_tests(&self) -> bool {
        self.cache.join(uses::PYTHON_TESTS).exists()
    }

    /// True if its UCX was built with verbs (unstable's was not).
    pub fn has_ucx_for_verbs(&self) -> bool {
        let folder = format!("root/usr/lib/{}-linux-gnu/ucx/libuct_ib.so.0", std::env::consts::ARCH);
        self.cache.join(folder).symlink_metadata().is_ok()
    }

    /// Returns a command that enters the release, in the caller's network namespace; the program to run must be
    /// appended.
    fn enter(&self) -> Command {
        let mut command = Command::new(script("enter.sh"));
        command.arg(&self.cache).env("TARGET", &self.target);
        command
    }

    /// Runs `make build`, as a user does. Its output goes to a log in `target/interop`.
    ///
    /// # Errors
    /// If it fails. The error has the log's last lines.
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
                let text = fs::read_to_string(&path).unwrap_or_default();
                let last: Vec<&str> = text.lines().rev().take(5).collect();
                Err(failed(format!("{status}: {}", last.into_iter().rev().collect::<Vec<_>>().join(" / "))))
            }
        }
    }

    /// Returns the versions of its programs, by its package system: `perftest 25.01.0+0.80-1`.
    pub fn releases(&self) -> Vec<String> {
        let mut command = self.enter();
        command.args(["dpkg-query", "-W", "-f", "${Package} ${Version} ${db:Status-Abbrev}\n"]);
        // dpkg-query fails if it does not know some of the names, after printing the others.
        let Ok(output) = within(LIMIT, &command).stdin(Stdio::null()).output() else { return Vec::new() };
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let installed = text.lines().filter_map(|line| line.strip_suffix(" ii "));
        let is_named = |line: &&str| {
            NAMED
                .iter()
                .any(|name| line.split(' ').next().is_some_and(|n| n.trim_end_matches("-web") == *name))
        };
        installed.filter(is_named).map(str::to_owned).collect()
    }

    /// Starts one of its programs under the `roxie run` that was built, at one end of a pair of namespaces.
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
