//! Two hosts on one machine, and the programs that run on them.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use nix::net::if_::InterfaceFlags;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use roxie::host::inspect::{Snapshot, snapshots};
use roxie::netdev::{Links, NetNs};
use tempfile::TempDir;

use in_time::{CommandInTime, Stream};

// Here, because a benchmark includes this file as well.
#[path = "../support/in_time.rs"]
pub(crate) mod in_time;

/// A program that runs longer is killed, and its test fails. The limit allows for busy machines.
const LIMIT: Duration = Duration::from_secs(120);
/// The ports of a device.
pub(crate) const PORTS: [&str; 3] = ["xdp", "packet", "udp"];
/// The port that `roxie run` chooses on a veth pair.
const CHOSEN: &str = "packet";
/// The near end's IPv4 address.
pub(crate) const NEAR: &str = "192.0.2.1";
/// The far end's IPv4 address.
pub(crate) const FAR: &str = "192.0.2.2";
/// The near end's IPv6 address.
pub(crate) const NEAR_V6: &str = "fd00::1";

/// TCP port by which `ucx_perftest` exchanges addresses.
pub(crate) const UCX_PORT: u16 = 13337;
/// TCP port of `fi_pingpong`.
pub(crate) const FI_PORT: u16 = 47592;
/// TCP port of `qperf`.
pub(crate) const QPERF_PORT: u16 = 19765;

/// Returns the folder of `roxie`, of `roxie-conform` and of the library. Builds them if they are missing or older than
/// their sources. `ROXIE_FOLDER` names a finished folder instead, as `.ci/sanitize` does.
pub(crate) fn folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        if let Some(made) = std::env::var_os("ROXIE_FOLDER") {
            return made.into();
        }
        let folder = Path::new(env!("CARGO_BIN_EXE_roxie")).parent().unwrap().to_owned();
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
        let mut build = Command::new(env!("CARGO"));
        // Build with the features of these tests' own build: without `--test` they would differ, and everything would
        // compile again.
        let what =
            "build --quiet -p uverbs-shim -p roxie -p roxie-cli -p roxie-conform --lib --bins --test verbs";
        build.args(what.split(' '));
        build.current_dir(root);
        if cfg!(feature = "planted-bugs") {
            build.args(["--features", "planted-bugs"]);
        }
        if !cfg!(debug_assertions) {
            build.arg("--release");
        }
        assert!(build.build_in_time().unwrap().success(), "{build:?}");
        let mut link = Command::new(Path::new(root).join("uverbs-shim/link"));
        assert!(link.arg(&folder).status_in_time().unwrap().success(), "{link:?}");
        folder
    })
}

/// Returns true, and prints the reason, if a test cannot run here.
pub(crate) fn skip(test: &str, programs: &[&str]) -> bool {
    let why = if !nix::unistd::geteuid().is_root() {
        Some("network namespaces need root".to_owned())
    } else {
        let missing: Vec<_> = programs.iter().copied().filter(|program| !installed(program)).collect();
        (!missing.is_empty()).then(|| format!("{} not installed (.ci/setup test)", missing.join(", ")))
    };
    if let Some(why) = &why {
        println!("SKIP {test}: {why}");
    }
    why.is_some()
}

/// True for `make test-all`.
pub(crate) fn runs_all() -> bool {
    std::env::var_os("ALL").is_some()
}

/// Returns the ports over which a test runs its programs: the one that `roxie run` chooses, or all of them for `make
/// test-all`. Prints which are left out.
pub(crate) fn ports() -> Vec<&'static str> {
    if !runs_all() {
        let this = std::thread::current();
        println!("LEFT OUT {}: the ports other than {CHOSEN}", this.name().unwrap_or("a test"));
    }
    PORTS.into_iter().filter(|port| runs_all() || *port == CHOSEN).collect()
}

pub(crate) fn installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// Copies `roxie` and the library to a folder that all may read: another user may not be able to access the build
/// folder.
pub(crate) fn copied() -> TempDir {
    let place = tempfile::tempdir().expect("a folder");
    for name in ["roxie", "libibverbs.so.1"] {
        in_time::copy_program(folder().join(name), place.path().join(name));
    }
    std::fs::set_permissions(place.path(), PermissionsExt::from_mode(0o755)).expect("its own");
    place
}

/// Compiles a C program of `programs` to a temporary folder.
pub(crate) fn compiled(name: &str, libraries: &[&str]) -> (TempDir, PathBuf) {
    let programs = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("tests/verbs/programs");
    let sources = ["c", "cc"].map(|language| programs.join(format!("{name}.{language}")));
    let source = sources.into_iter().find(|source| source.exists()).expect("a program of that name");
    let place = tempfile::tempdir().unwrap();
    let program = place.path().join(name);
    let mut compile = Command::new("cc");
    compile.args(["-Wall", "-o"]).arg(&program).arg(&source).args(libraries);
    let done = compile.output_in_time().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    (place, program)
}

/// Two namespaces joined by a veth pair `left` (192.0.2.1, fd00::1) - `right` (192.0.2.2, fd00::2), MTU 4200. Each test
/// has its own.
pub(crate) struct Site {
    pub(crate) local: NetNs,
    pub(crate) remote: NetNs,
}

/// Waits until an interface of the calling thread's namespace has `IFF_RUNNING`. The kernel sets it up to a second
/// after the carrier, and UCX uses no interface without it.
fn wait_until_running(name: &str) {
    let until = Instant::now() + LIMIT;
    let is_running = |interface: InterfaceAddress| {
        interface.interface_name == name && interface.flags.contains(InterfaceFlags::IFF_RUNNING)
    };
    while !getifaddrs().unwrap().any(is_running) {
        assert!(Instant::now() < until, "{name} is not running");
        std::thread::sleep(Duration::from_millis(10));
    }
}

impl Site {
    pub(crate) fn new(tag: &str) -> Site {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        folder();
        let number = COUNT.fetch_add(1, Relaxed);
        let [local, remote] = ["a", "b"].map(|end| NetNs::create(&format!("{tag}-{number}-{end}")).unwrap());
        let mut left = Links::open_in(&local).unwrap();
        left.create_veth("left", &remote, "right", 1).unwrap();
        let mut right = Links::open_in(&remote).unwrap();
        for (links, name, addresses) in [
            (&mut left, "left", ["192.0.2.1/24", "fd00::1/64"]),
            (&mut right, "right", ["192.0.2.2/24", "fd00::2/64"]),
        ] {
            for address in addresses {
                links.add_address(name, address.parse().unwrap()).unwrap();
            }
            links.set_mtu(name, 4200).unwrap();
            links.set_up(name, true).unwrap();
        }
        for (host, name) in [(&local, "left"), (&remote, "right")] {
            host.run(|| wait_until_running(name)).unwrap();
        }
        Site { local, remote }
    }

    /// Returns a site with a NIC process in each namespace (`roxie nic`).
    pub(crate) fn with_nics(tag: &str, options: &[&str]) -> (Site, [Running; 2]) {
        let site = Site::new(tag);
        let nics =
            [(&site.local, "left"), (&site.remote, "right")].map(|(host, dev)| nic(host, dev, options));
        (site, nics)
    }

    /// Starts a program on the near device.
    pub(crate) fn local(&self, port: &str, program: &str) -> Running {
        Running::start(&self.local, launcher(&["--dev", "left", "--port", port], program))
    }

    /// Starts a program on the far device.
    pub(crate) fn remote(&self, port: &str, program: &str) -> Running {
        Running::start(&self.remote, launcher(&["--dev", "right", "--port", port], program))
    }

    /// Runs `program` as a server, and again as its client. Asserts that they succeed, and returns their outputs.
    pub(crate) fn play(&self, port: &str, program: &str, tcp_port: u16) -> (String, String) {
        let mut server = self.local(port, program);
        server.wait_until_it_listens(tcp_port);
        let client = self.remote(port, &format!("{program} {NEAR}"));
        let (client, server) = (client.finish(), server.finish());
        let context = format!("{port}: {program}\nclient: {client:?}\nserver: {server:?}");
        assert!(client.status.success() && server.status.success(), "{context}");
        (client.output, server.output)
    }
}

/// Returns the payload bytes that a host's device has sent; of several devices, the largest number. Clients of `roxie
/// nic` report the NIC's.
pub(crate) fn sent_bytes(host: &NetNs) -> u64 {
    let snapshots = host.run(roxie::host::inspect::snapshots).expect("the namespace").expect("/proc");
    snapshots.snapshots.iter().filter_map(|seen| seen.counters.get("sent_bytes").copied()).max().unwrap_or(0)
}

/// Starts the NIC of an interface, and waits until it serves.
pub(crate) fn nic(host: &NetNs, dev: &str, options: &[&str]) -> Running {
    let mut command = Command::new(folder().join("roxie"));
    command.args(["nic", "--dev", dev]).args(options);
    let mut nic = Running::start(host, command);
    nic.wait_until_it_is_there(&format!("@roxie/nic/{dev}\n"));
    nic
}

/// Returns the command `roxie run OPTIONS -- PROGRAM`, quiet.
pub(crate) fn launcher(options: &[&str], program: &str) -> Command {
    let mut command = Command::new(folder().join("roxie"));
    // Preloads for the programs, in front of the library, but not for the tests themselves.
    if let Some(first) = std::env::var_os("ROXIE_PRELOAD") {
        command.env("LD_PRELOAD", first);
    }
    command.args(["run", "--quiet"]).args(options).arg("--").args(program.split_whitespace());
    command.env("ROXIE_LOG", "info");
    command
}

/// A running program. Killed when the value is dropped.
pub(crate) struct Running {
    pub(crate) what: String,
    pub(crate) child: Child,
    output: Arc<[Stream]>,
    pub(crate) until: Instant,
}

/// Exit status and output of a program.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) status: ExitStatus,
    /// Standard output, then standard error.
    pub(crate) output: String,
}

impl Running {
    pub(crate) fn start(namespace: &NetNs, mut command: Command) -> Running {
        let what = format!("{command:?}");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = namespace.run(move || command.spawn()).unwrap();
        let mut child = child.unwrap_or_else(|e| panic!("{what}: {e}"));
        let output = [Stream::of(child.stdout.take().unwrap()), Stream::of(child.stderr.take().unwrap())];
        Running { what, child, output: output.into(), until: Instant::now() + LIMIT }
    }

    /// Waits until the program listens for TCP connections, by which these programs exchange their addresses.
    pub(crate) fn wait_until_it_listens(&mut self, port: u16) {
        // Columns: sl local_address rem_address st. 0A is the state LISTEN.
        let wanted = format!(":{port:04X}");
        self.wait_until(&format!("listening on port {port}"), |pid| {
            ["tcp", "tcp6"].iter().any(|table| {
                let text = std::fs::read_to_string(format!("/proc/{pid}/net/{table}")).unwrap_or_default();
                text.lines().any(|line| {
                    let fields: Vec<_> = line.split_whitespace().collect();
                    fields.len() > 3 && fields[1].ends_with(&wanted) && fields[3] == "0A"
                })
            })
        });
    }

    /// Waits until a Unix socket of this name is in the program's network namespace.
    pub(crate) fn wait_until_it_is_there(&mut self, name: &str) {
        self.wait_until(&format!("listening at {name}"), |pid| {
            std::fs::read_to_string(format!("/proc/{pid}/net/unix")).is_ok_and(|table| table.contains(name))
        });
    }

    /// Waits until a condition holds for the launcher's process ID. The program must not end before.
    pub(crate) fn wait_until(&mut self, what: &str, mut is_so: impl FnMut(u32) -> bool) {
        loop {
            let ended = self.child.try_wait().unwrap();
            if ended.is_some() {
                // A condition on the output holds once all of it is read. Survivors may keep the pipes open.
                let until = Instant::now() + Duration::from_secs(1);
                let _ = self.output.iter().all(|stream| stream.ends_by(until));
            }
            if is_so(self.child.id()) {
                return;
            }
            if ended.is_some() || Instant::now() > self.until {
                let output = self.read_to_end();
                panic!("{}: not {what} ({ended:?}): {output}", self.what);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits for the program's end. Its descendants may live on.
    pub(crate) fn wait_for_end(&mut self) -> ExitStatus {
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            if Instant::now() > self.until {
                let output = self.read_to_end();
                panic!("{} has not ended after {LIMIT:?}: {output}", self.what);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits until the program listens (`rdma_listen`).
    pub(crate) fn wait_until_it_serves(&mut self) {
        self.wait_until_it_has("LISTEN");
    }

    /// Waits until the program has an identifier in this state, and the interface.
    pub(crate) fn wait_until_it_has(&mut self, state: &str) {
        self.wait_until(state, |pid| has(pid, state));
    }

    /// Waits until the program has written `word` to either of its outputs.
    pub(crate) fn wait_for_output(&mut self, word: &str) {
        let output = Arc::clone(&self.output);
        self.wait_until(&format!("saying {word:?}"), |_| {
            output.iter().any(|stream| stream.text().contains(word))
        });
    }

    pub(crate) fn read_to_end(&mut self) -> String {
        // Survivors would keep the pipes open.
        self.signal_all(Signal::SIGKILL);
        self.whole_output()
    }

    /// Sends a signal to the program and its descendants. Those that have ended get none.
    fn signal_all(&self, signal: Signal) {
        for pid in descendants(self.child.id()) {
            let _ = kill(Pid::from_raw(pid.cast_signed()), signal);
        }
    }

    /// Returns both outputs, once every process has closed them.
    fn whole_output(&self) -> String {
        // Allow time for the descendants of a process that is killed at the deadline.
        let until = self.until.max(Instant::now() + Duration::from_secs(10));
        let ended = self.output.iter().all(|stream| stream.ends_by(until));
        let output: String = self.output.iter().map(Stream::text).collect();
        assert!(ended, "{} has left a process behind that holds its output: {output}", self.what);
        output
    }

    /// Waits for the program's end, and returns status and output.
    pub(crate) fn finish(mut self) -> Finished {
        let status = self.wait_for_end();
        let output = self.whole_output();
        // rping's client closes the channel on which its other thread waits for events, and exits with 255 instead of 0
        // if that thread notices before the process ends (`rping.c` of rdma-core).
        let is_race = self.what.contains("rping -c")
            && status.code() == Some(255)
            && output.contains("rdma_get_cm_event: Bad file descriptor")
            && !output.contains("failed")
            && !output.contains("mismatch");
        let status = if is_race { ExitStatus::default() } else { status };
        Finished { status, output }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let Ok(None) = self.child.try_wait() else { return };
        // A failed test may have left the program stopped. The launcher forwards the second signal to it.
        self.signal_all(Signal::SIGCONT);
        let _ = kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGTERM);
        let until = Instant::now() + Duration::from_secs(10);
        while matches!(self.child.try_wait(), Ok(None)) {
            if Instant::now() > until {
                self.signal_all(Signal::SIGKILL);
                let _ = self.child.wait();
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        if std::thread::panicking() {
            let output: String = self.output.iter().map(Stream::text).collect();
            eprintln!("{} was still running: {output}", self.what);
        }
    }
}

/// Returns a process and all its descendants.
pub(crate) fn descendants(pid: u32) -> Vec<u32> {
    let mut all = vec![pid];
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    for task in tasks {
        let children = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
        all.extend(children.split_whitespace().filter_map(|pid| pid.parse().ok()).flat_map(descendants));
    }
    all
}

/// True if a process, or a descendant, has an identifier in this state, and the interface.
pub(crate) fn has(pid: u32, state: &str) -> bool {
    let seen = NetNs::of_process(pid).map(|namespace| namespace.run(snapshots));
    let Ok(Ok(Ok(view))) = seen else { return false };
    let family = descendants(pid);
    let own = |device: &&Snapshot| family.contains(&device.pid) && device.port != "unclaimed";
    view.snapshots.iter().filter(own).flat_map(|device| &device.cm_ids).any(|id| id.state == state)
}
