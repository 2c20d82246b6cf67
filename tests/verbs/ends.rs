//! Programs that end without closing their device: sent packets and complete captures.

use std::fs::File;
use std::path::Path;

use roxie::capture::{Direction, Reader};

use super::{Running, Site, compiled, launcher, ports, skip};

/// Messages of `leaves_at_once`.
const MESSAGES: u32 = 500;
/// PSN of the first message.
const PSN: u32 = 1000;
/// RC SEND Only and Acknowledge, in the first byte of a BTH (IBTA table 38).
const SEND_ONLY: u8 = 0x04;
const ACKNOWLEDGE: u8 = 0x11;

/// Returns the PSNs of frames with an opcode, in one direction of a capture.
fn psns(capture: &Path, way: Direction, opcode: u8) -> Vec<u32> {
    // Offset behind Ethernet, IPv4 and UDP headers.
    const BTH: usize = 14 + 20 + 8;
    let mut reader = Reader::new(File::open(capture).unwrap()).unwrap();
    let mut ended = Vec::new();
    while let Some(record) = reader.next().expect("whole blocks") {
        if record.direction == Some(way) && record.data[BTH] == opcode {
            let [high, middle, low] = record.data[BTH + 9..BTH + 12] else { unreachable!() };
            ended.push(u32::from_be_bytes([0, high, middle, low]));
        }
    }
    ended
}

/// `exit` guarantees both, `_exit` only the acknowledgement (`rdmacm.rs`), signals neither.
#[test]
fn exiting_program_has_acknowledged_and_saved_capture() {
    let name = "exiting_program_has_acknowledged_and_saved_capture";
    if skip(name, &["cc"]) {
        return;
    }
    let (place, program) = compiled("leaves_at_once", &["-libverbs", "-lpthread"]);
    let site = Site::new("ends");
    let capture = place.path().join("it.pcapng");
    let all: Vec<u32> = (PSN..PSN + MESSAGES).collect();
    for port in ports() {
        for how in ["exit", "thread", "child"] {
            let options = ["--dev", "left", "--port", port, "--capture", capture.to_str().unwrap()];
            let command = launcher(&options, &format!("{} {how}", program.display()));
            let ended = Running::start(&site.local, command).finish();
            assert!(ended.status.success(), "{port} {how}: {ended:?}");
            for way in [Direction::Out, Direction::In] {
                assert_eq!(psns(&capture, way, SEND_ONLY), all, "{port} {how}: messages {way:?}");
            }
            let answered = psns(&capture, Direction::Out, ACKNOWLEDGE);
            assert_eq!(answered.last(), all.last(), "{port} {how}: the last acknowledgement");
        }
    }
}
