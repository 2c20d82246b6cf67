//! `roxie nvme`: a target and hosts as processes, with files and wrong input.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::in_time::CommandInTime;
use crate::network::Net;
use crate::{A, Running, run};

const HOST: &str = "nqn.2026-11.example:host";

/// A folder with a file of 1 MiB that is served, and one of other bytes.
struct Files {
    folder: tempfile::TempDir,
}

impl Files {
    fn new() -> Files {
        let files = Files { folder: tempfile::tempdir().unwrap() };
        fs::write(files.path("disk"), vec![0; 1 << 20]).unwrap();
        fs::write(files.path("bytes"), files.bytes()).unwrap();
        files
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn shown(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// Bytes that differ from block to block.
    fn bytes(&self) -> Vec<u8> {
        (0..1usize << 20).map(|n| (n / 512 * 31 + n * 7) as u8).collect()
    }
}

/// Starts a target at the left, and waits until it listens.
fn target(net: &Net, options: &str) -> Running {
    let mut target = net.start_left(&format!("nvme target --port udp {options}"));
    target.wait_for("is served at");
    target
}

/// Ends a target by SIGTERM.
fn end(target: Running) {
    kill(Pid::from_raw(target.child.id().cast_signed()), Signal::SIGTERM).unwrap();
    target.finish().succeeded();
}

fn contents(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap()
}

/// Writes all blocks of a disk, whose file must have them then, and reads them.
fn write_and_read_back(net: &Net, files: &Files) {
    net.right(&format!("nvme write --port udp {A} -i {}", files.shown("bytes"))).succeeded();
    // The target has flushed.
    assert!(contents(&files.path("disk")) == files.bytes());
    net.right(&format!("nvme read --port udp {A} -o {}", files.shown("back"))).succeeded();
    assert!(contents(&files.path("back")) == files.bytes());
}

#[test]
fn file_is_written_and_read_over_sockets() {
    let Some(net) = Net::new("nvme-file") else { return };
    let files = Files::new();
    let target = target(&net, &files.shown("disk"));
    let listed = net.right(&format!("nvme list --port udp {A} --json")).succeeded().json();
    assert_eq!(listed[0]["nqn"], "nqn.2026-11.roxie:disk");
    assert_eq!((listed[0]["address"].as_str(), listed[0]["service"].as_str()), (Some(A), Some("4420")));
    let id = net.right(&format!("nvme id --port udp {A} --json")).succeeded().json();
    assert_eq!(id[0]["namespaces"][0]["blocks"], 2048);
    write_and_read_back(&net, &files);
    let part = format!("nvme read --port udp {A} --lba 3 --blocks 2 -o {}", files.shown("part"));
    net.right(&part).succeeded();
    assert!(contents(&files.path("part")) == files.bytes()[3 * 512..5 * 512]);
    end(target);
}

/// A loop device of a file. Detached when it goes out of scope.
struct Loop(String);

impl Loop {
    /// Returns `None` where there are no loop devices, and says so.
    fn of(file: &Path) -> Option<Loop> {
        let out = Command::new("losetup").args(["--find", "--show"]).arg(file).output_in_time();
        match out {
            Ok(out) if out.status.success() => {
                Some(Loop(String::from_utf8_lossy(&out.stdout).trim().to_owned()))
            }
            refused => {
                println!("SKIP nvme::block_device_is_written_and_read: no loop device: {refused:?}");
                None
            }
        }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status_in_time();
    }
}

#[test]
fn block_device_is_written_and_read() {
    let Some(net) = Net::new("nvme-block") else { return };
    let files = Files::new();
    let Some(device) = Loop::of(&files.path("disk")) else { return };
    let target = target(&net, &device.0);
    let id = net.right(&format!("nvme id --port udp {A} --json")).succeeded().json();
    assert_eq!(id[0]["namespaces"][0]["blocks"], 2048);
    write_and_read_back(&net, &files);
    let beyond = ["1 blocks from 2048 on are not in namespace 1"];
    net.right(&format!("nvme read --port udp {A} --lba 2048 --blocks 1")).failed(2, &beyond);
    end(target);
}

#[test]
fn killed_target_continues_when_started_again() {
    let Some(net) = Net::new("nvme-again") else { return };
    let files = Files::new();
    let mut first = target(&net, &files.shown("disk"));
    net.right(&format!("nvme write --port udp {A} -i {}", files.shown("bytes"))).succeeded();
    let before = net.right(&format!("nvme id --port udp {A} --json")).succeeded().json();
    first.kill();
    first.finish().was_killed();
    let second = target(&net, &files.shown("disk"));
    let after = net.right(&format!("nvme id --port udp {A} --json")).succeeded().json();
    // A host that reconnects finds the same disk.
    assert_eq!(before[0]["namespaces"], after[0]["namespaces"]);
    net.right(&format!("nvme read --port udp {A} -o {}", files.shown("back"))).succeeded();
    assert!(contents(&files.path("back")) == files.bytes());
    end(second);
}

#[test]
fn refused_hosts_and_writes_exit_with_4() {
    let Some(net) = Net::new("nvme-refuse") else { return };
    let files = Files::new();
    let target = target(&net, &format!("--host-nqn {HOST} --read-only {}", files.shown("disk")));
    net.right(&format!("nvme id --port udp {A}")).failed(4, &["connect invalid host"]);
    net.right(&format!("nvme id --port udp {A} --host-nqn {HOST}")).succeeded();
    let as_host = format!("--port udp {A} --host-nqn {HOST}");
    let write = format!("nvme write {as_host} -i {}", files.shown("bytes"));
    net.right(&write).failed(4, &["write protected"]);
    net.right(&format!("nvme read {as_host} -n 7")).failed(4, &["invalid namespace"]);
    let beyond = ["1 blocks from 2048 on are not in namespace 1", "it has 2048 blocks"];
    net.right(&format!("nvme read {as_host} --lba 2048 --blocks 1")).failed(2, &beyond);
    assert!(contents(&files.path("disk")).iter().all(|byte| *byte == 0));
    end(target);
}

#[test]
fn second_target_at_a_port_exits_with_2() {
    let Some(net) = Net::new("nvme-port") else { return };
    let first = target(&net, "memory:1M");
    net.left("nvme target --port udp memory:1M").failed(2, &["cannot listen at", "4420", "--listen"]);
    let other = target(&net, "--listen 4421 memory:1M");
    net.right(&format!("nvme bench --port udp {A}:4421 -D 0.2 --write --verify")).succeeded();
    end(other);
    end(first);
}

#[test]
fn changed_length_is_told_on_sighup() {
    let Some(net) = Net::new("nvme-length") else { return };
    let files = Files::new();
    let mut target = target(&net, &files.shown("disk"));
    fs::File::options().write(true).open(files.path("disk")).unwrap().set_len(2 << 20).unwrap();
    kill(Pid::from_raw(target.child.id().cast_signed()), Signal::SIGHUP).unwrap();
    target.wait_for("namespaces [1] have another length");
    let id = net.right(&format!("nvme id --port udp {A} --json")).succeeded().json();
    assert_eq!(id[0]["namespaces"][0]["blocks"], 4096);
    end(target);
}

#[test]
fn wrong_namespaces_are_refused_before_opening() {
    let files = Files::new();
    fs::File::create(files.path("odd")).unwrap().write_all(&[0; 1000]).unwrap();
    let target = |options: &str| run(&format!("nvme target {options}"));
    target(&files.shown("absent")).failed(2, &["absent", "No such file"]);
    target(&files.shown("odd")).failed(2, &["odd", "1000 bytes are not one or more blocks of 512"]);
    target(&files.folder.path().display().to_string()).failed(2, &["neither a regular file"]);
    target("memory:0").failed(2, &["memory:0", "0 bytes"]);
    target("memory:x").failed(2, &["512M"]);
    target("--block-size 1024 memory:1M").failed(2, &["512 or 4096"]);
    target("--nqn disk memory:1M").failed(2, &["is no NQN", "nqn.YYYY-MM"]);
    target("--port memory memory:1M").failed(2, &["nvme bench --port memory"]);
    run("nvme read").failed(2, &["ADDRESS of the target is missing"]);
    run("nvme list example").failed(2, &["ADDRESS:PORT"]);
}

#[test]
fn all_commands_run_in_one_process() {
    let listed = run("nvme list --port memory").succeeded().stdout;
    assert!(listed.contains("nqn.2026-11.roxie:disk  rdma 192.0.2.2 port 4420"), "{listed}");
    let shown = run("nvme id --port memory").succeeded().stdout;
    assert!(shown.contains("131072 blocks of 512 B"), "{shown}");
    let bench = run("nvme bench --port memory -D 0.2 --write --verify --json").succeeded().json();
    assert_eq!(bench[0]["operation"], "write");
    assert!(bench[0]["verified"].as_u64() > Some(0), "{bench:?}");
    run("nvme bench --port memory -D 0.2 --size 1000").failed(2, &["--size 1000", "131072"]);
    run("nvme read --port memory --lba 131072 --blocks 1").failed(2, &["it has 131072 blocks"]);
    run("nvme id --port memory --nqn nqn.2026-11.example:x").failed(4, &["subsystem NQN"]);
    run("nvme bench --port memory --verify").failed(2, &["--write"]);
}
