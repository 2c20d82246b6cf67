//! Output to a closed pipe, a full disk, or a capture file that cannot be written or is not read.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};

use crate::in_time::{ChildInTime, CommandInTime};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use crate::{roxie, run};

/// Commands that print, one for each place in the code that does.
const PRINTING: [&str; 12] = [
    "pingpong rc --port memory -n 2",
    "pingpong rc --port memory -n 2 --json",
    "perf send bw --port memory -n 20",
    "perf send lat --port memory -n 5 --json",
    "show device --port memory",
    "show gids --port memory",
    "show counters --open --port memory",
    "show qps",
    "nfs ls / --port memory --export /etc",
    "nvme list --port memory",
    "nvme id --port memory",
    "nvme bench --port memory -D 0.01",
];

/// Returns the exit code and standard error.
fn with_stdout(mut command: Command, stdout: impl Into<Stdio>) -> (Option<i32>, String) {
    let output =
        command.stdin(Stdio::null()).stdout(stdout).stderr(Stdio::piped()).spawn().unwrap().output_in_time();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Returns the writing end of a pipe without a reader.
fn broken_pipe() -> OwnedFd {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer.into()
}

#[test]
fn closed_pipe_is_no_error() {
    for command in PRINTING {
        let (code, output_text) = with_stdout(roxie(command), broken_pipe());
        assert_eq!(code, Some(0), "{command}: {output_text}");
        assert!(
            !output_text.contains("panicked") && !output_text.contains("Broken pipe"),
            "{command}: {output_text}"
        );
    }
}

#[test]
fn full_disk_prints_one_line_and_exits_1() {
    for command in PRINTING {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let (code, output_text) = with_stdout(roxie(command), full);
        assert_eq!(code, Some(1), "{command}: {output_text}");
        assert!(output_text.contains("cannot write the output: No space left"), "{command}: {output_text}");
        assert!(!output_text.contains("panicked"), "{command}: {output_text}");
    }
}

#[test]
fn standard_error_may_be_closed() {
    for command in [
        "show counters --open --port memory",
        "pingpong rc --port memory -m 1500",
        "perf send bw -s 0 --port memory",
    ] {
        let status = roxie(command).stdout(Stdio::null()).stderr(broken_pipe()).status_in_time().unwrap();
        assert!(matches!(status.code(), Some(0 | 2)), "{command}: {status}");
    }
}

#[test]
fn capture_on_full_disk_exits_1() {
    for command in ["pingpong rc --port memory -n 2", "perf send bw --port memory -n 20"] {
        let done = run(&format!("{command} --capture /dev/full"));
        assert!(!done.stdout.is_empty(), "traffic goes on and is told of: {done:#?}");
        done.failed(1, &["the capture /dev/full is not whole", "No space left"]);
    }
}

#[test]
fn unread_capture_pipe_does_not_block_traffic() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pipe");
    mkfifo(&path, Mode::S_IRWXU).unwrap();
    // Open for reading too, so that opening for writing does not block; nothing reads.
    let reader = File::options().read(true).write(true).open(&path).unwrap();
    let done = run(&format!("pingpong rc --port memory -n 200 -s 4096 --capture {}", path.display()));
    assert!(done.stdout.contains("200 iters in "), "{done:#?}");
    done.failed(1, &["is not whole", "is the pipe being read?"]);
    drop(reader);
}

#[test]
fn capture_is_complete_when_command_ends() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.pcapng");
    run(&format!("perf write bw --port memory -n 50 -s 65536 --capture {}", path.display())).succeeded();
    let decoded = run(&format!("decode {}", path.display())).succeeded();
    let count = |what: &str| decoded.stdout.lines().filter(|line| line.contains(what)).count();
    assert_eq!((count("RC_WRITE_FIRST"), count("RC_WRITE_LAST")), (50, 50));
    assert!(fs::metadata(&path).unwrap().len() > 50 * 65536);
}
