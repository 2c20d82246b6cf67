//! The network namespace of a run: a bridge, a veth for Roxie, a tap for each guest.
//!
//! ```text
//! roxie0 --veth-- roxie0-br --+-- br0 --+-- tap1 -- guest 1
//! 10.71.0.1, fd71::1          |         +-- tap2 -- guest 2 ...
//! ```
//!
//! The namespace's name contains the runner's pid, so that the next run removes what a killed one left.

use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use nix::sched::{CloneFlags, setns};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use roxie::netdev::{Interface, ethtool};

use crate::error::Error;
use crate::rows::Family;

/// Link MTU of every interface: path MTU 4096 and its headers fit (rxe needs 4176).
pub const LINK_MTU: usize = 4200;
/// Roxie's interface.
pub const INTERFACE: &str = "roxie0";
const PREFIX: &str = "roxie-interop-";
/// Timeout of a command on the host, including a release build.
pub const LIMIT: Duration = Duration::from_secs(1800);
/// Exit code of `timeout` for a command that it has killed.
pub const LATE: i32 = 124;

/// Returns the address of a host of the site; Roxie is 1, guests are 2 and up.
pub fn address(host: u8, family: Family) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::new(10, 71, 0, host).into(),
        Family::V6 => Ipv6Addr::new(0xfd71, 0, 0, 0, 0, 0, 0, host.into()).into(),
    }
}

/// ID of the site's VLAN.
pub const VLAN: u16 = 5;

/// Returns the address of a host on the site's VLAN.
pub fn vlan_address(host: u8, family: Family) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::new(10, 71, 5, host).into(),
        Family::V6 => Ipv6Addr::new(0xfd71, 5, 0, 0, 0, 0, 0, host.into()).into(),
    }
}

/// A namespace with the site's links. Dropping it removes it.
#[derive(Debug)]
pub struct Namespace {
    name: String,
}

impl Namespace {
    /// Makes the namespace, after removing those of dead runners. Needs root.
    pub fn create() -> Result<Namespace, Error> {
        let namespace = Namespace::empty()?;
        namespace.build()?;
        Ok(namespace)
    }

    fn empty() -> Result<Namespace, Error> {
        // A process may make several (tests do).
        static COUNT: AtomicU32 = AtomicU32::new(0);
        remove_stale()?;
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let namespace = Namespace { name: format!("{PREFIX}{}-{count}", std::process::id()) };
        run(Command::new("ip").args(["netns", "add", &namespace.name]))?;
        Ok(namespace)
    }

    /// Makes two namespaces joined by a veth pair: hosts 1 and 2, for Roxie at both ends.
    ///
    /// # Errors
    /// As [`create`](Namespace::create).
    pub fn create_pair() -> Result<[Namespace; 2], Error> {
        let pair = [Namespace::empty()?, Namespace::empty()?];
        let mtu = LINK_MTU.to_string();
        let [local, remote] = &pair;
        let veth = ["link", "add", INTERFACE, "mtu", &mtu, "type", "veth", "peer", "name", INTERFACE];
        local.ip(&[&veth[..], &["mtu", &mtu, "netns", &remote.name]].concat())?;
        for (host, end) in (1..).zip(&pair) {
            end.ip(&["link", "set", "lo", "up"])?;
            end.ip(&["addr", "add", &format!("{}/24", address(host, Family::V4)), "dev", INTERFACE])?;
            let v6 = format!("{}/64", address(host, Family::V6));
            end.ip(&["-6", "addr", "add", &v6, "dev", INTERFACE, "nodad"])?;
            end.ip(&["link", "set", INTERFACE, "up"])?;
        }
        Ok(pair)
    }

    fn build(&self) -> Result<(), Error> {
        let mtu = LINK_MTU.to_string();
        let v4 = format!("{}/24", address(1, Family::V4));
        let v6 = format!("{}/64", address(1, Family::V6));
        let bridge_port = format!("{INTERFACE}-br");
        self.ip(&["link", "set", "lo", "up"])?;
        // Snooping would drop IPv6 neighbour solicitations until a querier is found.
        self.ip(&["link", "add", "br0", "mtu", &mtu, "type", "bridge", "mcast_snooping", "0"])?;
        self.ip(&[
            "link",
            "add",
            INTERFACE,
            "mtu",
            &mtu,
            "type",
            "veth",
            "peer",
            "name",
            &bridge_port,
            "mtu",
            &mtu,
        ])?;
        self.ip(&["link", "set", &bridge_port, "master", "br0", "up"])?;
        self.ip(&["link", "set", "br0", "up"])?;
        self.ip(&["link", "set", INTERFACE, "up"])?;
        self.ip(&["addr", "add", &v4, "dev", INTERFACE])?;
        self.ip(&["-6", "addr", "add", &v6, "dev", INTERFACE, "nodad"])
    }

    /// Adds a tap to the bridge.
    pub fn add_tap(&self, tap: &str) -> Result<(), Error> {
        self.ip(&["tuntap", "add", tap, "mode", "tap"])?;
        // READ responses are thousands of packets without flow control.
        self.ip(&[
            "link",
            "set",
            tap,
            "mtu",
            &LINK_MTU.to_string(),
            "txqueuelen",
            "10000",
            "master",
            "br0",
            "up",
        ])
    }

    /// Reaches a guest on the VLAN without a VLAN interface, which not every kernel has: its addresses are those of a
    /// station behind [`INTERFACE`], and the bridge's end puts tags into frames, where AF_XDP sees them. Returns the
    /// station of `INTERFACE`.
    pub fn reach_vlan(&self, guest: u8, station: &str) -> Result<[u8; 6], Error> {
        for family in [Family::V4, Family::V6] {
            let there = vlan_address(guest, family).to_string();
            self.ip(&["route", "replace", &there, "dev", INTERFACE])?;
            let neighbour = ["neigh", "replace", &there, "lladdr", station, "dev", INTERFACE];
            self.ip(&[&neighbour[..], &["nud", "permanent"]].concat())?;
        }
        let refused = |why: String| Error::Local(format!("the interfaces of the site: {why}"));
        self.within(|| {
            let by_name = |name: &str| Interface::by_name(name).map_err(|e| refused(e.to_string()));
            let port = by_name(&format!("{INTERFACE}-br"))?;
            let set = ethtool::set_offload(port.index, "tx-vlan-hw-insert", false);
            set.map_err(|e| refused(e.to_string()))?;
            Ok(by_name(INTERFACE)?.mac)
        })?
    }

    /// Runs `ip` in the namespace.
    fn ip(&self, arguments: &[&str]) -> Result<(), Error> {
        run(Command::new("ip").args(["-n", &self.name]).args(arguments)).map(drop)
    }

    /// Returns a command that runs in the namespace.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name, program]);
        command
    }

    /// Returns the namespace's name, for `ip netns exec`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the file of the namespace.
    pub fn path(&self) -> PathBuf {
        Path::new("/run/netns").join(&self.name)
    }

    /// Runs `f` on a thread that has entered the namespace. Its sockets stay in the namespace.
    pub fn within<T: Send>(&self, f: impl FnOnce() -> T + Send) -> Result<T, Error> {
        let path = self.path();
        let file = File::open(&path).map_err(Error::file(&path))?;
        std::thread::scope(|scope| {
            let inside = scope.spawn(|| {
                setns(&file, CloneFlags::CLONE_NEWNET)
                    .map_err(|e| Error::File { path: path.display().to_string(), source: e.into() })?;
                Ok(f())
            });
            inside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if let Err(error) = run(Command::new("ip").args(["netns", "del", &self.name])) {
            eprintln!("the namespace {} stays behind: {error}", self.name);
        }
    }
}

/// Removes the namespaces of dead runners, and kills the processes in them.
fn remove_stale() -> Result<(), Error> {
    let list = run(Command::new("ip").args(["netns", "list"]))?;
    for name in list.lines().filter_map(|line| line.split_whitespace().next()) {
        let Some(owner) = owner(name) else { continue };
        if kill(owner, None).is_ok() {
            continue;
        }
        for pid in run(Command::new("ip").args(["netns", "pids", name]))?.split_whitespace() {
            if let Ok(pid) = pid.parse() {
                // The process may have ended by itself meanwhile.
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
        }
        run(Command::new("ip").args(["netns", "del", name]))?;
    }
    Ok(())
}

/// Returns the pid in the name of a runner's namespace.
fn owner(namespace: &str) -> Option<Pid> {
    let pid = namespace.strip_prefix(PREFIX)?.split('-').next()?;
    pid.parse().ok().filter(|pid| *pid > 0).map(Pid::from_raw)
}

/// Runs a command to its end. Returns its output; the error has its standard error.
pub fn run(command: &mut Command) -> Result<String, Error> {
    let line = command_line(command);
    let failed = |output: String| Error::Command { command: line.clone(), output };
    let output = within(LIMIT, command).stdin(Stdio::null()).output().map_err(|e| failed(e.to_string()))?;
    if output.status.code() == Some(LATE) {
        return Err(failed(format!("not ended after {LIMIT:?}")));
    }
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(failed(format!("{message} ({})", output.status)))
}

/// Returns the same command (program, arguments, environment, folder) under coreutils' `timeout`: killed after `limit`,
/// with exit code [`LATE`]. The command has a process group of its own, to which a terminal sends no signals, and is
/// killed with the thread that starts it. The caller must set standard streams.
pub fn within(limit: Duration, command: &Command) -> Command {
    let mut timed = Command::new("setpriv");
    timed.args(["--pdeathsig", "TERM", "timeout", "--kill-after=10", &limit.as_secs().to_string()]);
    timed.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => timed.env(name, value),
            None => timed.env_remove(name),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        timed.current_dir(folder);
    }
    timed
}

/// Returns the command as a line of text.
pub fn command_line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|w| w.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    #[test]
    fn program_that_hangs_is_ended() {
        let mut hangs = Command::new("sh");
        hangs.args(["-c", "test $WORD = there && exec sleep 1000"]).env("WORD", "there");
        let ended = within(Duration::from_secs(1), &hangs).status().unwrap();
        assert_eq!(ended.code(), Some(LATE));
        let quick = within(Duration::from_secs(60), Command::new("pwd").current_dir("/")).output().unwrap();
        assert_eq!((quick.status.code(), &quick.stdout[..]), (Some(0), &b"/\n"[..]));
    }

    #[test]
    fn program_ends_with_its_starter() {
        let mut program = Command::new("sh");
        program.args(["-c", "echo; exec sleep 1000"]);
        let starter = std::thread::spawn(move || {
            let mut child = within(Duration::from_secs(20), &program).stdout(Stdio::piped()).spawn().unwrap();
            child.stdout.take().unwrap().read_exact(&mut [0]).unwrap();
            child
        });
        let status = starter.join().unwrap().wait().unwrap();
        // `timeout` dies of its program's signal, or reports it in its exit code.
        let signal = status.signal().or(status.code().map(|code| code - 128));
        assert_eq!(signal, Some(Signal::SIGTERM as i32), "{status}");
    }

    #[test]
    fn only_namespaces_of_runners_have_an_owner() {
        assert_eq!(owner("roxie-interop-4711-0"), Some(Pid::from_raw(4711)));
        assert_eq!(owner("roxie-interop-0-0"), None);
        assert_eq!(owner("roxie-interop-x"), None);
        assert_eq!(owner("roxie-4711"), None);
    }
}
