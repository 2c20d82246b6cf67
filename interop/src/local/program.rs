//! A program on Roxie's side: starts it in the site's namespace, waits for it, and kills it if it is late.

use std::env;
use std::fs;
use std::io::Read;
use std::net::IpAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

use crate::end::Ended;
use crate::error::Error;
use crate::network::{Namespace, command_line, run};

/// Packages with a program that `roxie` starts for commands of rows.
const PRODUCTS: [&str; 2] = ["roxie-conform", "roxie-storage"];

/// A running program. Dropping it kills it.
pub struct Program {
    child: Child,
    /// Threads that collect a stream each until its end.
    streams: Vec<JoinHandle<String>>,
}

impl Program {
    /// Starts a program; in the caller's own namespace if `None`.
    ///
    /// # Errors
    /// If the program cannot be started.
    pub fn start(
        namespace: Option<&Namespace>,
        program: &Path,
        arguments: &[String],
    ) -> Result<Program, Error> {
        let mut command = match namespace {
            Some(namespace) => namespace.command(&program.to_string_lossy()),
            None => Command::new(program),
        };
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // A process group of its own, so that a launcher's children are killed with it.
        command.process_group(0).env("ROXIE_LOG", "info");
        let line = command_line(&command);
        let mut child =
            command.spawn().map_err(|e| Error::Command { command: line, output: e.to_string() })?;
        let mut streams = Vec::new();
        streams.extend(child.stdout.take().map(collect));
        streams.extend(child.stderr.take().map(collect));
        Ok(Program { child, streams })
    }

    /// Waits for the program's end, and kills it after `timeout`.
    ///
    /// # Errors
    /// If it cannot be waited for.
    pub fn wait(mut self, timeout: Duration) -> Result<Ended, Error> {
        let failed = |e: std::io::Error| Error::Local(format!("waiting for a program: {e}"));
        let until = Instant::now() + timeout;
        let code = loop {
            if let Some(status) = self.child.try_wait().map_err(failed)? {
                break status.code();
            }
            if Instant::now() >= until {
                self.kill();
                self.child.wait().map_err(failed)?;
                break None;
            }
            thread::sleep(Duration::from_millis(10));
        };
        let streams = std::mem::take(&mut self.streams).into_iter();
        let output = streams.map(|s| s.join().unwrap_or_default()).collect::<String>();
        Ok(Ended { code, output })
    }
}

impl Program {
    /// Asks the program to end (SIGTERM).
    ///
    /// # Errors
    /// If it has ended already.
    pub fn terminate(&self) -> Result<(), Error> {
        let pid = Pid::from_raw(self.child.id().cast_signed());
        kill(pid, Signal::SIGTERM).map_err(|e| Error::Local(format!("SIGTERM for a program: {e}")))
    }

    /// Kills the program and its children.
    fn kill(&mut self) {
        // The process is not reaped yet, so its number is still its own. Fails only if all have ended.
        let _ = killpg(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGKILL);
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            self.kill();
            let _ = self.child.wait();
        }
    }
}

fn collect(mut stream: impl Read + Send + 'static) -> JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // Output before a read error is kept.
        let _ = stream.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// Returns the path of the `roxie` program beside this one. Tests are in the folder `deps` below it.
///
/// # Errors
/// If it does not exist.
pub fn roxie() -> Result<PathBuf, Error> {
    let own = env::current_exe().map_err(|e| Error::Local(format!("where this program is: {e}")))?;
    let folder = own.parent().unwrap_or(Path::new("."));
    let folder = if folder.ends_with("deps") { folder.parent().unwrap_or(folder) } else { folder };
    let path = folder.join("roxie");
    match path.exists() {
        true => Ok(path),
        false => {
            Err(Error::Local(format!("{} is missing: `cargo build -p roxie-cli` makes it", path.display())))
        }
    }
}

/// Builds a target of cargo's by a command that begins with these words, for tests, and returns its program.
///
/// # Panics
/// If it cannot be built.
pub fn built(words: &[&str], name: &str) -> PathBuf {
    let built =
        Command::new(env!("CARGO")).args(words).args(["--message-format", "json"]).output().expect("cargo");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let text = String::from_utf8(built.stdout).expect("JSON");
    let (key, named) = ("\"executable\":\"", format!("\"name\":\"{name}\""));
    let value = text.lines().filter(|line| line.contains(&named)).find_map(|line| {
        let at = line.find(key)? + key.len();
        line[at..].split('"').next().map(PathBuf::from)
    });
    value.expect("a program of that name")
}

/// Builds the `roxie` program if there is none, for tests: a build by other features than those of the tests' own would
/// replace the program of other tests that run beside.
///
/// # Errors
/// If it cannot be built.
pub fn roxie_for_tests() -> Result<PathBuf, Error> {
    let is_whole = |roxie: PathBuf| PRODUCTS.iter().all(|product| roxie.with_file_name(product).exists());
    if !roxie().is_ok_and(is_whole) {
        build_roxie()?;
    }
    roxie()
}

/// Builds the `roxie` program, and those that it starts for commands of rows, if cargo runs this one, since cargo has
/// built this one only.
///
/// # Errors
/// If it cannot be built.
pub fn build_roxie() -> Result<(), Error> {
    build(&["roxie-cli", PRODUCTS[0], PRODUCTS[1]])
}

/// Builds the library for unmodified programs if cargo runs this one, and links it beside the `roxie` program. Does
/// nothing if `ROXIE_LIB` names a library and none is beside `roxie`, which `roxie run` would prefer.
///
/// # Errors
/// If it cannot be built or linked.
pub fn build_library() -> Result<(), Error> {
    let roxie = roxie()?;
    let named = env::var_os("ROXIE_LIB").is_some() && !roxie.with_file_name("libibverbs.so.1").exists();
    if named || env::var_os("CARGO").is_none() {
        return Ok(());
    }
    build(&["uverbs-shim"])?;
    let link = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("uverbs-shim").join("link");
    run(Command::new(link).arg(roxie.parent().unwrap_or(Path::new("."))))?;
    Ok(())
}

fn build(packages: &[&str]) -> Result<(), Error> {
    let Some(cargo) = env::var_os("CARGO") else { return Ok(()) };
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("Cargo.toml");
    let mut build = Command::new(cargo);
    build.args(["build", "--quiet", "--manifest-path"]).arg(workspace);
    build.args(packages.iter().flat_map(|package| ["--package", package]));
    if !cfg!(debug_assertions) {
        build.arg("--release");
    }
    run(&mut build).map(drop)
}

/// Polls until a condition holds. False after `timeout`.
///
/// # Errors
/// If the condition cannot be evaluated.
pub fn wait_until(timeout: Duration, holds: impl Fn() -> Result<bool, Error>) -> Result<bool, Error> {
    let until = Instant::now() + timeout;
    loop {
        let so = holds()?;
        if so || Instant::now() > until {
            return Ok(so);
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// True if a TCP socket listens on the port in the calling thread's network namespace.
pub fn is_listening(port: u16) -> Result<bool, Error> {
    // Not /proc/net, which is the view of the process's first thread.
    for table in ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"] {
        let path = Path::new(table);
        let text = fs::read_to_string(path).map_err(Error::file(path))?;
        if text.lines().any(|line| listens(line, port)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// True if a socket has RoCE's UDP port in the calling thread's network namespace.
pub fn roce_port_is_bound() -> Result<bool, Error> {
    let wanted = format!(":{:04X}", roxie::wire::ROCE_V2_PORT);
    let path = Path::new("/proc/thread-self/net/udp");
    let text = fs::read_to_string(path).map_err(Error::file(path))?;
    Ok(text.lines().any(|line| line.split_whitespace().nth(1).is_some_and(|local| local.ends_with(&wanted))))
}

/// Parses a line of /proc/net/tcp: number, local address:port, remote address:port, state; 0A is LISTEN.
fn listens(line: &str, port: u16) -> bool {
    let mut words = line.split_whitespace().skip(1);
    let local = words.next().and_then(|l| l.rsplit_once(':')).map(|(_, port)| port);
    local.and_then(|p| u16::from_str_radix(p, 16).ok()) == Some(port) && words.nth(1) == Some("0A")
}

/// True if the calling thread's network namespace is in the multicast group on some interface.
pub fn is_in_group(group: IpAddr) -> Result<bool, Error> {
    let (table, name) = match group {
        // /proc/net/igmp shows an address as a number in native byte order.
        IpAddr::V4(v4) => ("igmp", format!("{:08X}", u32::from_ne_bytes(v4.octets()))),
        IpAddr::V6(v6) => ("igmp6", format!("{:032x}", u128::from(v6))),
    };
    let path = Path::new("/proc/thread-self/net").join(table);
    let text = fs::read_to_string(&path).map_err(Error::file(&path))?;
    Ok(text.split_whitespace().any(|word| word == name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listener_is_told_from_a_connection() {
        let listener = "   0: 00000000:4853 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 1";
        let connection = "   1: 0100007F:4853 0100007F:C001 01 00000000:00000000 00:00000000 00000000 0 0 1";
        assert!(listens(listener, 18515) && !listens(listener, 18516));
        assert!(!listens(connection, 18515));
    }

    #[test]
    fn late_program_is_killed_and_its_output_kept() {
        let script = ["-c".into(), "echo first; exec sleep 60".into()];
        let program = Program::start(None, Path::new("sh"), &script).unwrap();
        let ended = program.wait(Duration::from_millis(300)).unwrap();
        assert_eq!(ended, Ended { code: None, output: "first\n".into() });
    }

    #[test]
    fn children_of_a_killed_program_are_killed() {
        // The child holds the pipe open, so waiting for the output would take a minute.
        let script = ["-c".into(), "sleep 60 & echo first; wait".into()];
        let start = Instant::now();
        let program = Program::start(None, Path::new("sh"), &script).unwrap();
        let ended = program.wait(Duration::from_millis(300)).unwrap();
        assert_eq!(ended, Ended { code: None, output: "first\n".into() });
        assert!(start.elapsed() < Duration::from_secs(30));
    }
}
