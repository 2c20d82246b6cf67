//! Two hosts on one machine, and the programs that run on them.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use roxie::netdev::{Links, NetNs};
use tempfile::TempDir;

use in_time::{CommandInTime, Stream};

// Here, because a benchmark includes this file as well.
#[path = "../support/in_time.rs"]
pub(crate) mod in_time;

/// How long a program may take before it is killed and the test fails. Machines that do other things too are slow.
const LIMIT: Duration = Duration::from_secs(120);
/// The ports that a device can stand on.
pub(crate) const PORTS: [&str; 2] = ["xdp", "udp"];
/// The near end's address.
pub(crate) const NEAR: &str = "192.0.2.1";
/// The far end's.
pub(crate) const FAR: &str = "192.0.2.2";
/// The near end's of IPv6.
pub(crate) const NEAR_V6: &str = "fd00::1";

/// The TCP port by which `ucx_perftest` exchanges addresses.
pub(crate) const UCX_PORT: u16 = 13337;
/// Likewise `fi_pingpong`.
pub(crate) const FI_PORT: u16 = 47592;
/// Likewise `qperf`.
pub(crate) const QPERF_PORT: u16 = 19765;

/// The folder of `roxie` and of the library, which is made if it is not there or older than its sources. `ROXIE_FOLDER` names another,
/// which somebody has made: `.ci/sanitize` does.
pub(crate) fn folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        if let Some(made) = std::env::var_os("ROXIE_FOLDER") {
            return made.into();
        }
        let folder = Path::new(env!("CARGO_BIN_EXE_roxie")).parent().unwrap().to_owned();
        let root = env!("CARGO_MANIFEST_DIR");
        let mut build = Command::new(env!("CARGO"));
        // With the features that these tests' own build has: without `--test` they are fewer, and all is compiled once more.
        build.args(["build", "--quiet", "-p", "uverbs-shim", "-p", "roxie", "--lib", "--test", "verbs"]);
        build.current_dir(root);
        if cfg!(feature = "planted-bugs") {
            build.args(["--features", "roxie/planted-bugs"]);
        }
        if !cfg!(debug_assertions) {
            build.arg("--release");
        }
        assert!(build.status_in_time().unwrap().success(), "{build:?}");
        let mut link = Command::new(Path::new(root).join("uverbs-shim/link"));
        assert!(link.arg(&folder).status_in_time().unwrap().success(), "{link:?}");
        folder
    })
}

/// Says why a test cannot run here, if it cannot.
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

pub(crate) fn installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// A C program of `programs`, compiled into a folder that goes with the first of the two.
pub(crate) fn compiled(name: &str, libraries: &[&str]) -> (TempDir, PathBuf) {
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/verbs/programs");
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

/// Two namespaces that a veth pair `left` (192.0.2.1, fd00::1) - `right` (192.0.2.2, fd00::2) joins, MTU 4200. One test has them at a time.
pub(crate) struct Site {
    pub(crate) near: NetNs,
    pub(crate) far: NetNs,
    _turn: MutexGuard<'static, ()>,
}

/// Of tests with hosts: one at a time.
pub(crate) fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Site {
    pub(crate) fn new(tag: &str) -> Site {
        let turn = turn();
        folder();
        let near = NetNs::create(&format!("{tag}-a")).unwrap();
        let far = NetNs::create(&format!("{tag}-b")).unwrap();
        let mut left = Links::open_in(&near).unwrap();
        left.create_veth("left", &far, "right", 1).unwrap();
        let mut right = Links::open_in(&far).unwrap();
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
        Site { near, far, _turn: turn }
    }

    /// The same with a NIC in each that serves the others (`roxie nic`).
    pub(crate) fn with_nics(tag: &str, options: &[&str]) -> (Site, [Running; 2]) {
        let site = Site::new(tag);
        let nics = [(&site.near, "left"), (&site.far, "right")].map(|(host, dev)| nic(host, dev, options));
        (site, nics)
    }

    /// Starts a program on the near device.
    pub(crate) fn near(&self, port: &str, program: &str) -> Running {
        Running::start(&self.near, launcher(&["--dev", "left", "--port", port], program))
    }

    /// Starts a program on the far device.
    pub(crate) fn far(&self, port: &str, program: &str) -> Running {
        Running::start(&self.far, launcher(&["--dev", "right", "--port", port], program))
    }

    /// Runs `program` as a server, then again as its client, and returns what both said. Both must end well.
    pub(crate) fn play(&self, port: &str, program: &str, tcp_port: u16) -> (String, String) {
        let mut server = self.near(port, program);
        server.wait_until_it_listens(tcp_port);
        let client = self.far(port, &format!("{program} {NEAR}"));
        let (client, server) = (client.finish(), server.finish());
        let told = format!("{port}: {program}\nclient: {client:?}\nserver: {server:?}");
        assert!(client.status.success() && server.status.success(), "{told}");
        (client.said, server.said)
    }
}

/// Returns the bytes of payload that a host's device has sent, the largest number if it has several devices. Clients of `roxie nic` are
/// told those of the NIC.
pub(crate) fn sent_bytes(host: &NetNs) -> u64 {
    let look = host.run(roxie::host::inspect::snapshots).expect("the namespace").expect("/proc");
    look.snapshots.iter().filter_map(|seen| seen.counters.get("sent_bytes").copied()).max().unwrap_or(0)
}

/// The NIC of an interface, as soon as it serves.
pub(crate) fn nic(host: &NetNs, dev: &str, options: &[&str]) -> Running {
    let mut command = Command::new(folder().join("roxie"));
    command.args(["nic", "--dev", dev]).args(options);
    let mut nic = Running::start(host, command);
    nic.wait_until_it_is_there(&format!("@roxie/nic/{dev}\n"));
    nic
}

/// `roxie run OPTIONS -- PROGRAM`, quiet.
pub(crate) fn launcher(options: &[&str], program: &str) -> Command {
    let mut command = Command::new(folder().join("roxie"));
    // What the programs are to have in front of the library, and the tests themselves not.
    if let Some(first) = std::env::var_os("ROXIE_PRELOAD") {
        command.env("LD_PRELOAD", first);
    }
    command.args(["run", "--quiet"]).args(options).arg("--").args(program.split_whitespace());
    command.env("ROXIE_LOG", "info");
    command
}

/// A program that runs. Killed when it is dropped.
pub(crate) struct Running {
    pub(crate) what: String,
    pub(crate) child: Child,
    output: Arc<[Stream]>,
    pub(crate) until: Instant,
}

/// What a program left.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) status: ExitStatus,
    /// Standard output, then standard error.
    pub(crate) said: String,
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

    /// Until it takes TCP connections, by which these programs exchange their addresses.
    pub(crate) fn wait_until_it_listens(&mut self, port: u16) {
        // `sl local_address rem_address st`, the state LISTEN being 0A.
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

    /// Until there is a Unix socket of this name in its network namespace.
    pub(crate) fn wait_until_it_is_there(&mut self, name: &str) {
        self.wait_until(&format!("listening at {name}"), |pid| {
            std::fs::read_to_string(format!("/proc/{pid}/net/unix")).is_ok_and(|table| table.contains(name))
        });
    }

    /// Until something is so, as the launcher's number shows; it must not end before.
    pub(crate) fn wait_until(&mut self, what: &str, mut is_so: impl FnMut(u32) -> bool) {
        while !is_so(self.child.id()) {
            let ended = self.child.try_wait().unwrap();
            if ended.is_some() || Instant::now() > self.until {
                let said = self.said();
                panic!("{}: not {what} ({ended:?}): {said}", self.what);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits until the program has written `word` to either of its outputs.
    pub(crate) fn wait_until_it_says(&mut self, word: &str) {
        let output = Arc::clone(&self.output);
        self.wait_until(&format!("saying {word:?}"), |_| {
            output.iter().any(|stream| stream.text().contains(word))
        });
    }

    pub(crate) fn said(&mut self) -> String {
        // All that came from it: what lives on would keep the pipes open.
        for pid in descendants(self.child.id()) {
            let pid = nix::unistd::Pid::from_raw(pid.cast_signed());
            let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
        }
        self.whole_output()
    }

    /// Returns both outputs, once every process has closed them.
    fn whole_output(&self) -> String {
        // A process that is killed when the time is over has some left to end.
        let until = self.until.max(Instant::now() + Duration::from_secs(10));
        let ended = self.output.iter().all(|stream| stream.ends_by(until));
        let said: String = self.output.iter().map(Stream::text).collect();
        assert!(ended, "{} has left a process behind that holds its output: {said}", self.what);
        said
    }

    /// Its end, and what it said until then.
    pub(crate) fn finish(mut self) -> Finished {
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                let said = self.whole_output();
                return Finished { status, said };
            }
            if Instant::now() > self.until {
                let said = self.said();
                panic!("{} has not ended after {LIMIT:?}: {said}", self.what);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The launcher hands it on, so the program ends as well.
        if let Ok(None) = self.child.try_wait() {
            let pid = nix::unistd::Pid::from_raw(self.child.id().cast_signed());
            let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM);
            let _ = self.child.wait();
        }
    }
}

/// A process and all that came from it.
pub(crate) fn descendants(pid: u32) -> Vec<u32> {
    let mut all = vec![pid];
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    for task in tasks {
        let children = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
        all.extend(children.split_whitespace().filter_map(|pid| pid.parse().ok()).flat_map(descendants));
    }
    all
}
