//! NVMe over Fabrics in a capture: commands, their data and their responses have names.

use super::*;

/// Returns the capture of a write of 16 blocks and a flush.
fn written() -> Vec<u8> {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("nvme.pcapng");
    let mut command = Command::new(env!("CARGO_BIN_EXE_roxie"));
    command.args(["nvme", "write", "--port", "memory", "--capture"]).arg(&file);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(&[7; 8192]).unwrap();
    let output = child.output_in_time();
    assert!(output.status.success(), "{}", stderr(&output));
    std::fs::read(file).unwrap()
}

/// Returns what each line names behind its ICRC.
fn names(lines: &str) -> Vec<String> {
    let name = |line: &str| Some(line.split_once("icrc ok ")?.1.split(" #").next()?.to_owned());
    lines.lines().filter_map(name).filter(|name| name.contains("NVMe")).collect()
}

#[test]
fn nvme_commands_data_and_responses_are_named() {
    let capture = written();
    let text = String::from_utf8(decode(&[], &capture).stdout).unwrap();
    let names = names(&text);
    let admin = [
        "NVMe Connect id 0, 1024 B",
        "READ of NVMe data, Connect id 0",
        "NVMe Connect id 0: success, R_Key invalidated",
        "NVMe Property Get id 0",
        "NVMe Property Get id 0: success",
    ];
    assert_eq!(names[..admin.len()], admin);
    let io = [
        "NVMe Connect id 0, 1024 B in capsule",
        "NVMe Connect id 0: success",
        "NVMe Write ns 1 lba 0 blocks 16 id 0, 8192 B",
        "READ of NVMe data, Write id 0",
        "NVMe Write id 0: success, R_Key invalidated",
        "NVMe Flush ns 1 id 0",
        "NVMe Flush id 0: success",
    ];
    let begin = names.iter().position(|name| name == io[0]).expect("the queue's Connect");
    assert_eq!(names[begin..begin + io.len()], io);
    // The admin queue shuts the controller down.
    assert_eq!(names[begin + io.len()..], ["NVMe Property Set id 0", "NVMe Property Set id 0: success"]);
}

#[test]
fn nvme_fields_are_in_json_and_full_text() {
    let capture = written();
    let rows = rows(&decode(&["--json"], &capture));
    let lines: Vec<_> =
        rows.iter().filter(|row| row["nvme"]["command"] == "Write").map(|row| &row["nvme"]).collect();
    let kinds: Vec<_> = lines.iter().map(|nvme| nvme["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["command", "data", "response"]);
    assert_eq!((&lines[0]["opcode"], &lines[0]["nsid"], &lines[0]["id"]), (&1.into(), &1.into(), &0.into()));
    assert_eq!((&lines[2]["status"], &lines[2]["invalidates"]), (&0.into(), &true.into()));
    let text = String::from_utf8(decode(&["-v"], &capture).stdout).unwrap();
    assert!(text.contains("  NVMe command opcode 0x01 (Write) flags 0x40 id 0 nsid 0x1, "), "{text}");
    assert!(text.contains("  NVMe response id 0 status 0x000 (success) result 0x0 "), "{text}");
}

/// The same bytes on a connection without a Connect are a program's own.
#[test]
fn messages_without_a_connect_are_not_named() {
    let mut read = [0; 64];
    read[..5].copy_from_slice(&[2, 0x40, 7, 0, 1]);
    let frames = [frame(Opcode::RC_SEND_ONLY, 1, &read, 7), frame(Opcode::RC_SEND_ONLY, 2, &[0; 16], 7)];
    let frames = frames.each_ref().map(|frame| (&frame[..], frame.len()));
    let rows = rows(&decode(&["--json"], &pcap(1, false, false, &frames)));
    assert_eq!(rows.len(), 2);
    assert!(rows.iter().all(|row| row.get("nvme").is_none()), "{rows:?}");
}
