//! `roxie extcap`, and captures into pipes.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use roxie::capture::Reader;

use super::{wait_until_captured, wait_until_free};
use crate::in_time::{ChildInTime, CommandInTime};
use crate::network::Net;
use crate::{Running, roxie};

/// Starts `roxie extcap` by the link that Wireshark starts.
fn extcap(net: &Net, folder: &Path, arguments: &str) -> Running {
    let link = folder.join("roxie-extcap");
    if !link.exists() {
        symlink(env!("CARGO_BIN_EXE_roxie"), &link).unwrap();
    }
    let mut command = Command::new(link);
    command.args(arguments.split(' '));
    net.a.run(|| Running::start(command)).unwrap()
}

#[test]
fn extcap_lists_and_captures_running_devices() {
    let Some(net) = Net::new("extcap") else { return };
    let place = tempfile::tempdir().unwrap();
    let run = |arguments: &str| extcap(&net, place.path(), arguments).finish().succeeded().stdout;
    assert_eq!(run("--extcap-interfaces --extcap-version=4.4").lines().count(), 1, "no device");
    let server = net.serve("pingpong rc --port udp -n 1000000");
    let name = format!("roxie0-{}", server.child.id());
    let listed = run("--extcap-interfaces --extcap-version=4.4");
    assert!(listed.starts_with("extcap {version="), "{listed}");
    assert!(
        listed.contains(&format!("interface {{value={name}}}{{display=RoCE of roxie (process ")),
        "{listed}"
    );
    assert_eq!(
        run(&format!("--extcap-interface {name} --extcap-dlts")),
        "dlt {number=1}{name=EN10MB}{display=Ethernet}\n"
    );
    assert!(run(&format!("--extcap-interface {name} --extcap-config")).contains("{call=--snaplen}"));
    assert!(
        run(&format!("--extcap-interface {name} --extcap-capture-filter udp")).contains("display filter")
    );
    let fifo = place.path().join("fifo");
    mkfifo(&fifo, Mode::S_IRWXU).unwrap();
    let arguments = format!("--capture --extcap-interface {name} --fifo {} --snaplen 80", fifo.display());
    let capture = extcap(&net, place.path(), &arguments);
    let mut client = net.start_right("pingpong rc --port udp -n 1000000 192.0.2.1");
    let mut reader = Reader::new(fs::File::open(&fifo).unwrap()).unwrap();
    for _ in 0..100 {
        let record = reader.next().unwrap().expect("traffic");
        assert!(record.comment.is_some() && record.data.len() <= 80, "{record:?}");
    }
    // Wireshark closes the pipe.
    drop(reader);
    capture.finish().succeeded();
    wait_until_free(&net, server.child.id());
    client.kill();
    extcap(&net, place.path(), "--extcap-interface roxie0-1 --capture --fifo /dev/null")
        .finish()
        .failed(3, &["roxie0-1"]);
    let no_pipe =
        extcap(&net, place.path(), &format!("--extcap-interface {name} --capture --fifo /nowhere/fifo"));
    no_pipe.finish().failed(1, &["cannot open /nowhere/fifo"]);
    roxie("extcap").output_in_time().map(|told| assert_eq!(told.status.code(), Some(2))).unwrap();
}

#[test]
fn idle_capture_ends_with_its_reader() {
    let Some(net) = Net::new("capture-reader") else { return };
    let place = tempfile::tempdir().unwrap();
    let server = net.serve("pingpong rc --port udp");
    let pid = server.child.id();
    for arguments in ["-w -", "", "--json"] {
        let mut command = roxie(&format!("capture --pid {pid} {arguments}"));
        let (reader, output) = std::io::pipe().unwrap();
        command.stdout(output).stderr(Stdio::null());
        let mut capture = net.a.run(|| command.spawn()).unwrap().unwrap();
        // The parent's copy of the output.
        drop(command);
        wait_until_captured(&net, pid);
        drop(reader);
        assert!(capture.wait_in_time().success(), "{arguments}");
        wait_until_free(&net, pid);
    }
    let fifo = place.path().join("fifo");
    mkfifo(&fifo, Mode::S_IRWXU).unwrap();
    let arguments = format!("--capture --extcap-interface roxie0-{pid} --fifo {}", fifo.display());
    let capture = extcap(&net, place.path(), &arguments);
    let reader = fs::File::open(&fifo).unwrap();
    wait_until_captured(&net, pid);
    drop(reader);
    capture.finish().succeeded();
    wait_until_free(&net, pid);
}

#[test]
fn tshark_captures_by_device_name() {
    const TEST: &str = "tshark_captures_by_device_name";
    if !Path::new("/usr/bin/tshark").exists() {
        return println!("SKIP {TEST}: there is no tshark");
    }
    let Some(net) = Net::new("extcap-tshark") else { return };
    let home = tempfile::tempdir().unwrap();
    // Before Wireshark 4.2, and since.
    for folder in [".config/wireshark/extcap", ".local/lib/wireshark/extcap"] {
        let folder = home.path().join(folder);
        fs::create_dir_all(&folder).unwrap();
        symlink(env!("CARGO_BIN_EXE_roxie"), folder.join("roxie-extcap")).unwrap();
    }
    let tshark = |arguments: &str| {
        let mut command = Command::new("tshark");
        command.env("HOME", home.path()).args(arguments.split(' '));
        net.a.run(|| Running::start(command)).unwrap()
    };
    let server = net.serve("pingpong rc --port udp -n 1000000");
    let name = format!("roxie0-{}", server.child.id());
    let listed = tshark("-D").finish();
    assert!(listed.stdout.contains(&name), "{listed:#?}");
    let mut client = net.start_right("pingpong rc --port udp -n 1000000 192.0.2.1");
    net.wait_until_left_has_received(10);
    let shown =
        tshark(&format!("-i {name} -c 10 -T fields -e infiniband.bth.opcode -e frame.comment")).finish();
    let lines: Vec<&str> = shown.stdout.lines().collect();
    assert_eq!(lines.len(), 10, "{shown:#?}");
    assert!(lines.iter().all(|line| line.split('\t').all(|field| !field.is_empty())), "{shown:#?}");
    wait_until_free(&net, server.child.id());
    client.kill();
}
