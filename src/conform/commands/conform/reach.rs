//! The way to an agent: a TCP port where one listens, or a program, `ssh`, that compiles and starts one at the target.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use roxie_conform_bench::agent::{Agent, SOURCE};

/// Time in which an agent takes a connection.
const PATIENCE: Duration = Duration::from_secs(5);

/// Time in which `ssh` ends by itself, once its input has ended.
const ENDS_WITHIN: Duration = Duration::from_secs(2);

/// The way to an agent.
pub(super) enum Reach {
    Port(SocketAddr),
    Ssh {
        /// `USER@HOST`, as `ssh` takes it.
        host: String,
        /// Name of the device, if the agent is to open a certain one.
        device: Option<String>,
        /// The `ssh` that runs.
        running: Option<Child>,
    },
}

/// Checks the name of a host: `ssh` would take a leading dash for an option.
pub(super) fn host(text: &str) -> Result<String, String> {
    let is_wrong = text.is_empty() || text.starts_with('-') || text.contains(char::is_whitespace);
    if is_wrong { Err("a host is HOST or USER@HOST".into()) } else { Ok(text.to_owned()) }
}

/// Checks the name of a device, which a shell at the target reads.
pub(super) fn device(text: &str) -> Result<String, String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-.:".contains(c);
    let fits = !text.is_empty() && !text.starts_with('-') && text.chars().all(is_plain);
    if fits { Ok(text.to_owned()) } else { Err("a device has a name such as mlx5_0".into()) }
}

/// Returns the commands for the target's shell: takes the source from standard input, compiles it, and serves what
/// follows. The agent ends at the end of its input, also if `ssh` or the bench is killed.
fn commands(device: Option<&str>) -> String {
    let device = device.map(|name| format!(" -d {name}")).unwrap_or_default();
    let length = SOURCE.len();
    format!(
        "d=$(mktemp -d) || exit 1; trap 'rm -rf \"$d\"' EXIT; trap 'exit 1' HUP INT TERM; \
         dd bs=1 count={length} of=\"$d/agent.c\" 2>/dev/null; \
         cc \"$d/agent.c\" -libverbs -lrdmacm -o \"$d/agent\" 2>/dev/null || \
         cc -DWITHOUT_CM \"$d/agent.c\" -libverbs -o \"$d/agent\" >&2 || exit 1; \
         \"$d/agent\" -i{device}"
    )
}

impl Reach {
    /// Connects to the agent. A program that leads to an earlier one is ended.
    ///
    /// # Errors
    /// If no agent listens, or `ssh` cannot be started.
    pub(super) fn connect(&mut self) -> io::Result<Agent> {
        match self {
            Reach::Port(at) => Agent::connect(*at, PATIENCE),
            Reach::Ssh { host, device, running } => {
                end(running);
                let (mut own, theirs) = UnixStream::pair()?;
                let output: OwnedFd = theirs.try_clone()?.into();
                let mut ssh = Command::new("ssh");
                ssh.args(["-T", host.as_str(), &commands(device.as_deref())]);
                ssh.stdin(Stdio::from(OwnedFd::from(theirs))).stdout(Stdio::from(output));
                let named = |error: io::Error| io::Error::new(error.kind(), format!("ssh: {error}"));
                *running = Some(ssh.spawn().map_err(named)?);
                own.set_write_timeout(Some(PATIENCE))?;
                own.write_all(SOURCE.as_bytes())?;
                Agent::of_program(own)
            }
        }
    }

    /// Connects to an agent that is started anew, as soon as it listens.
    ///
    /// # Errors
    /// As [`connect`](Self::connect), if that fails until `limit` is over.
    pub(super) fn connect_within(&mut self, limit: Duration) -> io::Result<Agent> {
        let until = Instant::now() + limit;
        loop {
            match self.connect() {
                Err(_) if Instant::now() < until => std::thread::sleep(Duration::from_millis(50)),
                done => return done,
            }
        }
    }

    /// Returns the words for an agent that cannot be reached.
    pub(super) fn words(&self) -> String {
        match self {
            Reach::Port(at) => format!("no agent at {at}"),
            Reach::Ssh { host, .. } => format!("no agent by ssh {host}"),
        }
    }
}

/// Waits for the end of `ssh`, after that of its input, and ends it if it goes on.
fn end(running: &mut Option<Child>) {
    let Some(mut ssh) = running.take() else { return };
    let until = Instant::now() + ENDS_WITHIN;
    while Instant::now() < until {
        if !matches!(ssh.try_wait(), Ok(None)) {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    // The calls fail if the program has ended by itself.
    let _ = ssh.kill();
    let _ = ssh.wait();
}

impl Drop for Reach {
    fn drop(&mut self) {
        if let Reach::Ssh { running, .. } = self {
            end(running);
        }
    }
}
