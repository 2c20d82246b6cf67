//! The example `smb_direct` on ksmbd, the SMB server of Linux 6.1, over rdma_rxe.
//!
//! Needs root, QEMU, a compiler and (the first time) a Debian mirror; prints SKIP and the reason if the host lacks one.
//! Not among the tests that always run, since a kernel module is built: `cargo test -p interop --test guests smb:: --
//! --ignored`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use interop::end::Ended;
use interop::guest::{Guest, Image, host_lacks, output_folder};
use interop::local::program::{Program, built};
use interop::network::{INTERFACE, Namespace, address};
use interop::peer::Peer;
use interop::rows::Family;

/// An emulated guest on a busy host takes its time.
const PATIENCE: Duration = Duration::from_secs(180);
/// Lengths of files: nothing, one message, fragments, around a request in messages, several requests by RDMA.
const LENGTHS: [usize; 7] = [0, 1, 1000, 5000, 65_535, 65_537, (5 << 20) + 7];

/// Builds the example, and returns its program.
fn program() -> PathBuf {
    let release: &[&str] = if cfg!(debug_assertions) { &[] } else { &["--release"] };
    built(&[&["build", "-p", "roxie", "--example", "smb_direct"], release].concat(), "smb_direct")
}

fn run(peer: &mut Peer, line: &str) -> Ended {
    let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
    let job = peer.spawn("roxie-smb", &words).expect("the script");
    peer.wait(job, PATIENCE).expect("the script ends")
}

/// The client's end, and the server's.
struct Ends<'a> {
    namespace: &'a Namespace,
    program: PathBuf,
    peer: Peer,
}

impl Ends<'_> {
    /// Runs the client with a file of this host. Returns what it prints.
    fn client(&mut self, command: &str, name: &str, file: &Path, way: &str) -> Ended {
        let file = file.display().to_string();
        let server = address(2, Family::V4).to_string();
        let mut arguments = vec![INTERFACE, &server, "files", command, name, &file];
        arguments.extend(Some(way).filter(|way| !way.is_empty()));
        let arguments: Vec<String> = arguments.into_iter().map(str::to_owned).collect();
        let program = Program::start(Some(self.namespace), &self.program, &arguments).expect("the client");
        program.wait(PATIENCE).expect("the client ends")
    }

    fn copy(&mut self, command: &str, name: &str, file: &Path, way: &str) {
        let ended = self.client(command, name, file, way);
        if ended.code != Some(0) {
            let log = run(&mut self.peer, "log").output;
            panic!("{command} {name} {way}: {ended:?}\n{log}");
        }
        println!("{}", ended.output.trim_end());
    }

    /// Compares a file with the kernel's, by length and MD5 sum.
    fn compare(&mut self, name: &str, file: &Path, what: &str) {
        let there = run(&mut self.peer, &format!("sum {name}")).output;
        let sum = Command::new("md5sum").arg(file).output().expect("md5sum").stdout;
        let sum = String::from_utf8(sum).expect("text");
        let length = fs::metadata(file).expect("the file").len();
        let here = format!("{length} {}", sum.split_whitespace().next().expect("a sum"));
        assert_eq!(here, there.trim(), "{name} {what}");
    }
}

#[test]
#[ignore = "a kernel module is built for it"]
fn files_cross_to_ksmbd_and_back() {
    const NAME: &str = "files_cross_to_ksmbd_and_back";
    let _alone = crate::alone();
    if let Some(lack) = host_lacks() {
        return println!("SKIP {NAME}: {lack}");
    }
    let image = match Image::build_with_smb_server() {
        Ok(image) => image,
        Err(why) => return println!("SKIP {NAME}: {why}"),
    };
    let program = program();
    let namespace = Namespace::create().expect("the namespace");
    let log = output_folder().join("test-smb.log");
    let guest = Guest::start(&image, &namespace, 2, &log).expect("the guest");
    let peer = guest.peer(&namespace).expect("a session");
    let mut ends = Ends { namespace: &namespace, program, peer };
    let served = run(&mut ends.peer, "serve");
    assert_eq!(served.code, Some(0), "{}", served.output);
    println!("{}", served.output);
    let (sent, received) = (output_folder().join("smb-sent"), output_folder().join("smb-received"));
    for way in ["", "messages"] {
        for length in LENGTHS {
            let name = format!("file-{length}");
            let data: Vec<u8> = (0..length).map(|n| (n / 512 * 31 + n * 7 + length) as u8).collect();
            fs::write(&sent, data).expect("a file");
            ends.copy("put", &name, &sent, way);
            ends.compare(&name, &sent, "written");
            // Other bytes than were written, so that nothing of them stands in for what is read.
            let filled = run(&mut ends.peer, &format!("fill {name} {length}"));
            assert_eq!(filled.code, Some(0), "{}", filled.output);
            ends.copy("get", &name, &received, way);
            ends.compare(&name, &received, "read");
        }
    }
    let absent = ends.client("get", "absent", &received, "");
    assert!(absent.code != Some(0) && absent.output.contains("no such file"), "{absent:?}");
    for file in [sent, received] {
        fs::remove_file(file).expect("the file");
    }
}
