//! A program on Roxie's side: started in the site's namespace, waited for, killed when it is late.

use std::env;
use std::fs;
use std::io::Read;
use std::net::IpAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::end::Ended;
use crate::error::Error;
use crate::network::{Namespace, command_line, run};

/// A running program. Dropping it ends it.
pub struct Program {
    child: Child,
    /// Each collects a stream until its end.
    streams: Vec<JoinHandle<String>>,
}

impl Program {
    /// Starts it; `None`: in the caller's own namespace.
    ///
    /// # Errors
    /// If it cannot be started.
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
        // A group of its own, so that what a launcher has started is ended with it.
        command.process_group(0).env("ROXIE_LOG", "info");
        let line = command_line(&command);
        let mut child =
            command.spawn().map_err(|e| Error::Command { command: line, output: e.to_string() })?;
        let mut streams = Vec::new();
        streams.extend(child.stdout.take().map(collect));
        streams.extend(child.stderr.take().map(collect));
        Ok(Program { child, streams })
    }

    /// Waits for its end; kills it when the time is over.
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
    /// Ends it, and what it has started.
    fn kill(&mut self) {
        // Not waited for yet, so that the number is still its own. Fails only if all have ended.
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
        // A stream that breaks has said what it had to say.
        let _ = stream.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// The `roxie` program beside this one.
///
/// # Errors
/// If it is not there.
pub fn roxie() -> Result<PathBuf, Error> {
    let own = env::current_exe().map_err(|e| Error::Local(format!("where this program is: {e}")))?;
    let path = own.with_file_name("roxie");
    match path.exists() {
        true => Ok(path),
        false => {
            Err(Error::Local(format!("{} is missing: `cargo build --bin roxie` makes it", path.display())))
        }
    }
}

/// Builds the `roxie` program where cargo runs this one, which it has built alone.
///
/// # Errors
/// If it cannot be built.
pub fn build_roxie() -> Result<(), Error> {
    build("roxie")
}

/// Builds the library that unmodified programs load, and links it beside the `roxie` program, likewise; unless `ROXIE_LIB` names
/// one and there is none beside, which `roxie run` would prefer.
///
/// # Errors
/// If it cannot be built or linked.
pub fn build_library() -> Result<(), Error> {
    let roxie = roxie()?;
    let named = env::var_os("ROXIE_LIB").is_some() && !roxie.with_file_name("libibverbs.so.1").exists();
    if named || env::var_os("CARGO").is_none() {
        return Ok(());
    }
    build("uverbs-shim")?;
    let link = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("uverbs-shim").join("link");
    run(Command::new(link).arg(roxie.parent().unwrap_or(Path::new("."))))?;
    Ok(())
}

fn build(package: &str) -> Result<(), Error> {
    let Some(cargo) = env::var_os("CARGO") else { return Ok(()) };
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("Cargo.toml");
    let mut build = Command::new(cargo);
    build.args(["build", "--quiet", "--package", package, "--manifest-path"]).arg(workspace);
    if !cfg!(debug_assertions) {
        build.arg("--release");
    }
    run(&mut build).map(drop)
}

/// Looks until something is so; false: it is not in time.
///
/// # Errors
/// If it cannot be looked at.
pub fn becomes_so(timeout: Duration, is_so: impl Fn() -> Result<bool, Error>) -> Result<bool, Error> {
    let until = Instant::now() + timeout;
    loop {
        let so = is_so()?;
        if so || Instant::now() > until {
            return Ok(so);
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// True if a TCP socket listens on the port in the calling thread's network namespace.
pub fn somebody_listens(port: u16) -> Result<bool, Error> {
    // The thread's own view: /proc/net is that of the process's first thread.
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
pub fn somebody_has_the_udp_port() -> Result<bool, Error> {
    let wanted = format!(":{:04X}", roxie::wire::ROCE_V2_PORT);
    let path = Path::new("/proc/thread-self/net/udp");
    let text = fs::read_to_string(path).map_err(Error::file(path))?;
    Ok(text.lines().any(|line| line.split_whitespace().nth(1).is_some_and(|local| local.ends_with(&wanted))))
}

/// A line of /proc/net/tcp: number, local address:port, remote address:port, state; 0A is LISTEN.
fn listens(line: &str, port: u16) -> bool {
    let mut words = line.split_whitespace().skip(1);
    let local = words.next().and_then(|l| l.rsplit_once(':')).map(|(_, port)| port);
    local.and_then(|p| u16::from_str_radix(p, 16).ok()) == Some(port) && words.nth(1) == Some("0A")
}

/// True if the calling thread's network namespace is in the multicast group on some interface.
pub fn somebody_is_in(group: IpAddr) -> Result<bool, Error> {
    let (table, name) = match group {
        // /proc/net/igmp has addresses as the numbers that this host makes of their bytes.
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
    fn a_listener_is_found_and_a_connection_is_none() {
        let listener = "   0: 00000000:4853 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 1";
        let connection = "   1: 0100007F:4853 0100007F:C001 01 00000000:00000000 00:00000000 00000000 0 0 1";
        assert!(listens(listener, 18515) && !listens(listener, 18516));
        assert!(!listens(connection, 18515));
    }

    #[test]
    fn a_program_is_killed_when_its_time_is_over_and_its_words_are_kept() {
        let script = ["-c".into(), "echo first; exec sleep 60".into()];
        let program = Program::start(None, Path::new("sh"), &script).unwrap();
        let ended = program.wait(Duration::from_millis(300)).unwrap();
        assert_eq!(ended, Ended { code: None, output: "first\n".into() });
    }

    #[test]
    fn what_a_killed_program_has_started_ends_with_it() {
        // It holds the pipe open, so that waiting for the last words would take a minute.
        let script = ["-c".into(), "sleep 60 & echo first; wait".into()];
        let start = Instant::now();
        let program = Program::start(None, Path::new("sh"), &script).unwrap();
        let ended = program.wait(Duration::from_millis(300)).unwrap();
        assert_eq!(ended, Ended { code: None, output: "first\n".into() });
        assert!(start.elapsed() < Duration::from_secs(30));
    }
}
