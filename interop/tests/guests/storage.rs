//! `roxie nvme target` and hosts that are guests: one that is killed, and two at a time; nvmet, and a host that it
//! refuses.
//!
//! Needs root, QEMU and (the first time) a Debian mirror; prints SKIP and the reason if the host lacks one.

#[path = "../../../src/storage/tests/nvme/raw.rs"]
mod raw;
#[path = "../../../src/storage/tests/nvme/requests.rs"]
mod requests;

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use interop::disk::{self, has_file_system};
use interop::end::Ended;
use interop::guest::{Guest, Image, output_folder};
use interop::local::program::{roxie, roxie_for_tests, wait_until};
use interop::network::{INTERFACE, Namespace, address};
use interop::peer::Peer;
use interop::rows::Family;
use roxie::host::{ConnectionManager, Device, DeviceConfig, Stack};
use roxie::port::udp::UdpConfig;
use roxie_nvmeof::initiator::HostOptions;

const NQN: &str = "nqn.2026-11.example:storage";
const SERVICE: &str = "4420";
/// An emulated guest on a busy host takes its time.
const PATIENCE: Duration = Duration::from_secs(180);

/// A running target, and the lines that it prints. Dropping it kills it.
struct Target {
    child: Child,
    lines: Receiver<String>,
}

impl Target {
    /// Starts a target that serves these files over UDP sockets.
    fn start(namespace: &Namespace, disks: &[PathBuf]) -> Target {
        let mut command = namespace.command(&roxie().expect("roxie").to_string_lossy());
        command.args(["nvme", "target", "--dev", INTERFACE, "--port=udp", "--json", "--nqn", NQN]);
        let mut child = command.args(disks).stdout(Stdio::piped()).spawn().expect("the target starts");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        let (sender, lines) = channel();
        thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        Target { child, lines }
    }

    /// Waits for a line that contains all of these.
    fn wait_for(&self, what: &[&str]) -> String {
        let until = Instant::now() + PATIENCE;
        let mut seen = Vec::new();
        while let Ok(line) = self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
            if what.iter().all(|part| line.contains(part)) {
                return line;
            }
            seen.push(line);
        }
        panic!("the target does not print {what:?}, but {seen:#?}");
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // Either call fails only if the target has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn disk(name: &str) -> PathBuf {
    let path = output_folder().join(name);
    fs::create_dir_all(output_folder()).expect("the folder");
    disk::create(&path).expect("the disk");
    path
}

fn guest(image: &Image, namespace: &Namespace, name: &str, number: u8) -> Guest {
    let log = output_folder().join(format!("test-storage-{name}-{number}.log"));
    Guest::start(image, namespace, number, &log).expect("the guest")
}

fn start(peer: &mut Peer, line: &str) -> usize {
    let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
    peer.spawn("roxie-nvme", &words).expect("the script")
}

fn run(peer: &mut Peer, line: &str) -> Ended {
    let job = start(peer, line);
    let ended = peer.wait(job, PATIENCE).expect("the script ends");
    assert_eq!(ended.code, Some(0), "{line}: {}", ended.output);
    ended
}

/// Returns the command that connects a guest, and waits for this namespace.
fn connect(nsid: u32) -> String {
    format!("connect {} {SERVICE} {NQN} {nsid}", address(1, Family::V4))
}

/// Returns the number of queue pairs of the process, besides that of connection management.
fn queue_pairs(pid: u32) -> usize {
    let output =
        Command::new(roxie().expect("roxie")).args(["show", "qps", "--json"]).output().expect("roxie show");
    let text = String::from_utf8(output.stdout).expect("JSON");
    let of_process = format!("\"pid\":{pid},");
    text.split('{')
        .filter(|object| object.replace(' ', "").contains(&of_process) && object.contains("\"RC\""))
        .count()
}

#[test]
fn target_forgets_a_host_that_was_killed() {
    let _alone = crate::alone();
    let Some(image) = Image::for_test("target_forgets_a_host_that_was_killed") else { return };
    roxie_for_tests().expect("roxie");
    let namespace = Namespace::create().expect("the namespace");
    let disk = disk("storage-killed.img");
    let target = Target::start(&namespace, std::slice::from_ref(&disk));
    let pid = target.child.id();
    let first = guest(&image, &namespace, "killed", 2);
    let mut peer = first.peer(&namespace).expect("a session");
    run(&mut peer, &connect(1));
    start(&mut peer, "use 8192");
    let writes = || Ok(fs::metadata(&disk).expect("the disk").blocks() > 0);
    assert!(wait_until(PATIENCE, writes).unwrap(), "the host writes");
    let of_host = namespace.within(|| queue_pairs(pid)).unwrap();
    assert!(of_host >= 2, "an admin queue and I/O queues, not {of_host}");
    drop(first);
    let none_remaining = || namespace.within(|| queue_pairs(pid) == 0);
    assert!(wait_until(PATIENCE, none_remaining).unwrap(), "its queue pairs are gone");
    let second = guest(&image, &namespace, "killed", 3);
    let mut peer = second.peer(&namespace).expect("a session");
    run(&mut peer, &connect(1));
    run(&mut peer, "use 1024");
    has_file_system(&disk).unwrap();
    fs::remove_file(disk).unwrap();
}

#[test]
fn two_hosts_use_two_namespaces() {
    let _alone = crate::alone();
    let Some(image) = Image::for_test("two_hosts_use_two_namespaces") else { return };
    roxie_for_tests().expect("roxie");
    let namespace = Namespace::create().expect("the namespace");
    let disks = [disk("storage-1.img"), disk("storage-2.img")];
    let target = Target::start(&namespace, &disks);
    let guests = [2, 3].map(|number| guest(&image, &namespace, "two", number));
    let mut peers = guests.each_ref().map(|guest| guest.peer(&namespace).expect("a session"));
    for (nsid, peer) in (1..).zip(&mut peers) {
        run(peer, &connect(nsid));
        target.wait_for(&["connect"]);
    }
    let jobs: Vec<usize> =
        (1..).zip(&mut peers).map(|(nsid, peer)| start(peer, &format!("use 2048 {nsid}"))).collect();
    for (job, peer) in jobs.into_iter().zip(&mut peers) {
        let ended = peer.wait(job, PATIENCE).expect("the script ends");
        assert_eq!(ended.code, Some(0), "{}", ended.output);
    }
    for disk in disks {
        has_file_system(&disk).unwrap();
        fs::remove_file(disk).unwrap();
    }
}

#[test]
fn nvmet_ends_refused_requests_as_tabled() {
    let _alone = crate::alone();
    let Some(image) = Image::for_test("nvmet_ends_refused_requests_as_tabled") else { return };
    let namespace = Namespace::create().expect("the namespace");
    let guest = guest(&image, &namespace, "nvmet", 2);
    let mut peer = guest.peer(&namespace).expect("a session");
    let there = address(2, Family::V4);
    run(&mut peer, &format!("serve {there} {SERVICE} {NQN} 4096"));
    let opened = namespace.within(|| {
        let (interface, addresses) = (Some(INTERFACE.to_owned()), vec![address(1, Family::V4)]);
        let config = UdpConfig { interface, addresses, ..UdpConfig::default() };
        Device::open_udp(&config, &Stack::default(), &DeviceConfig::default())
    });
    let device = opened.expect("the namespace").expect("a device");
    let manager = ConnectionManager::start(&device).expect("QP1");
    let to = SocketAddr::new(there, SERVICE.parse().expect("a port"));
    let options = HostOptions::new(NQN, [3; 16]);
    // nvmet holds back a host with too many commands, and does not end its connection.
    let ends_within = Duration::from_secs(2);
    requests::check(&requests::Place { device: &device, manager: &manager, to, options, ends_within }, 0);
    run(&mut peer, "stop");
}
