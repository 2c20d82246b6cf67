//! `roxie decode` as users run it: files, pipes, damaged captures, several link types.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::Ipv4Addr;
use std::process::{Command, Output, Stdio};

use crate::in_time::{ChildInTime, CommandInTime};
use roxie::capture::{Direction, PcapngWriter};
use roxie::frame::{Frame, FrameMut};
use roxie::wire::{Bth, Ext, FlowSpec, Gid, MAX_HEADERS, Opcode, Psn, Qpn, RoceVersion, Template};
use serde_json::Value;

mod inside;
mod nfs;
mod nvme;

fn roxie() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_roxie"));
    command.arg("decode").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs `roxie decode` with `capture` on standard input.
fn decode(arguments: &[&str], capture: &[u8]) -> Output {
    let mut child = roxie().args(arguments).arg("-").spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let bytes = capture.to_vec();
    let feeder = std::thread::spawn(move || drop(stdin.write_all(&bytes)));
    let output = child.output_in_time();
    feeder.join().unwrap();
    output
}

fn rows(output: &Output) -> Vec<Value> {
    String::from_utf8_lossy(&output.stdout).lines().map(|l| serde_json::from_str(l).unwrap()).collect()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn data(name: &str) -> Vec<u8> {
    std::fs::read(format!("{}/tests/data/{name}", concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))).unwrap()
}

fn template() -> Template {
    Template::new(&FlowSpec {
        src_mac: [2, 0, 0, 0, 0, 1],
        dst_mac: [2, 0, 0, 0, 0, 2],
        vlan: None,
        src: Gid::from(Ipv4Addr::new(10, 0, 0, 1)),
        dst: Gid::from(Ipv4Addr::new(10, 0, 0, 2)),
        traffic_class: 0,
        flow_label: 0,
        hop_limit: 64,
        source_port: 0xc000,
        version: RoceVersion::V2,
    })
}

/// Returns a sealed frame with the IPv4 identification `id`.
fn frame(opcode: Opcode, psn: u32, payload: &[u8], id: u16) -> Vec<u8> {
    let template = template();
    let bth = Bth { opcode, dest_qp: Qpn::new(18), psn: Psn::new(psn), ..Bth::default() };
    let mut bytes = vec![0; template.frame_len(opcode, payload.len())];
    let mut headers = [0; MAX_HEADERS];
    let n = template.write_headers(&mut headers, &bth, &Ext::None, payload.len());
    bytes[..n].copy_from_slice(&headers[..n]);
    bytes[n..n + payload.len()].copy_from_slice(payload);
    bytes[18..20].copy_from_slice(&id.to_be_bytes());
    template.seal(&mut FrameMut { a: &mut bytes, b: &mut [] });
    bytes
}

/// Returns a pcap of one link type. `big` selects the byte order, `ns` the clock's unit.
fn pcap(link_type: u32, big: bool, ns: bool, frames: &[(&[u8], usize)]) -> Vec<u8> {
    let word = |v: u32| if big { v.to_be_bytes() } else { v.to_le_bytes() };
    let mut out = word(if ns { 0xa1b2_3c4d } else { 0xa1b2_c3d4 }).to_vec();
    out.extend(if big { [0, 2, 0, 4] } else { [2, 0, 4, 0] });
    for v in [0, 0, 65535, link_type] {
        out.extend(word(v));
    }
    for (i, (bytes, wire_len)) in (1u32..).zip(frames) {
        for v in [i, 7, bytes.len() as u32, *wire_len as u32] {
            out.extend(word(v));
        }
        out.extend(*bytes);
    }
    out
}

#[test]
fn frame_numbers_agree_with_tshark() {
    for name in ["rxe-6.12-verbs-ipv4", "rxe-6.12-cm", "rxe-6.1-tools"] {
        let output = decode(&["--json"], &data(&format!("{name}.pcap")));
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let ours: Vec<String> = rows(&output)
            .iter()
            .map(|r| {
                let qp = r["dest_qp"].as_u64().unwrap();
                assert_eq!(r["icrc"], "ok");
                format!("{}\t{}\t{}\t{qp:#08x}\t{}", r["number"], r["opcode"], r["psn"], r["pkey"])
            })
            .collect();
        let theirs = String::from_utf8(data(&format!("{name}.tsv"))).unwrap();
        assert_eq!(ours, theirs.lines().collect::<Vec<_>>(), "{name}");
    }
}

#[test]
fn pcap_byte_orders_and_clocks_are_read() {
    let f = frame(Opcode::RC_SEND_ONLY, 5, b"abc", 0);
    for (big, ns, time) in [
        (false, false, 1_000_007_000u64),
        (true, false, 1_000_007_000),
        (false, true, 1_000_000_007),
        (true, true, 1_000_000_007),
    ] {
        let rows = rows(&decode(&["--json"], &pcap(1, big, ns, &[(&f, f.len())])));
        assert_eq!(rows.len(), 1);
        assert_eq!((&rows[0]["timestamp_ns"], &rows[0]["psn"]), (&time.into(), &5.into()));
    }
}

#[test]
fn pcapng_comments_and_directions_are_read() {
    let (arp, f) = (vec![0u8; 60], frame(Opcode::UC_SEND_ONLY, 9, &[1; 33], 0));
    let mut w = PcapngWriter::new(Vec::new(), &["veth0", "veth1"]).unwrap();
    w.write(0, 1, Direction::In, &Frame::whole(&arp), None).unwrap();
    let time = 1_700_000_000_123_456_789;
    let (a, b) = f.split_at(41);
    w.write(1, time, Direction::Out, &Frame { a, b }, Some("retransmit: try 2")).unwrap();
    let one = w.into_inner();
    // Two sections: frame numbers continue, interface numbers restart.
    let output = decode(&["--json"], &[&one[..], &one[..]].concat());
    let rows = rows(&output);
    assert_eq!(rows.iter().map(|r| r["number"].as_u64().unwrap()).collect::<Vec<_>>(), [2, 4]);
    assert_eq!(rows[1]["comment"], "retransmit: try 2");
    assert_eq!((&rows[1]["direction"], &rows[1]["timestamp_ns"]), (&"out".into(), &time.into()));
}

#[test]
fn truncated_file_prints_rows_then_exits_1() {
    let whole = data("rxe-6.12-verbs-ipv4.pcap");
    let all = rows(&decode(&["--json"], &whole));
    for (keep, last) in [(whole.len() - 1, 836), (whole.len() / 2, 405), (9000, 85)] {
        let output = decode(&["--json"], &whole[..keep]);
        assert_eq!(output.status.code(), Some(1));
        let counted = all.iter().filter(|r| r["number"].as_u64() <= Some(last)).count();
        assert!(counted > 0);
        assert_eq!(rows(&output), all[..counted]);
        assert!(stderr(&output).contains(&format!("after frame {last}\n")), "{}", stderr(&output));
        assert_eq!(stderr(&output).lines().count(), 1);
        assert!(stderr(&output).contains(&format!("cut short at byte {keep}")), "{}", stderr(&output));
    }
}

#[test]
fn invalid_capture_exits_1_and_wrong_usage_2() {
    for (input, says) in
        [(&b""[..], "empty"), (b"hello, world", "neither pcap nor pcapng"), (b"\x28\xb5\x2f\xfd", "zstdcat")]
    {
        let output = decode(&[], input);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0));
        assert!(stderr(&output).contains(says), "{}", stderr(&output));
    }
    let missing = roxie().arg("/nonexistent/file.pcap").output_in_time().unwrap();
    assert_eq!(missing.status.code(), Some(1));
    assert_eq!(roxie().output_in_time().unwrap().status.code(), Some(2));
    assert_eq!(roxie().args(["--frobnicate", "-"]).output_in_time().unwrap().status.code(), Some(2));
}

#[test]
fn pipe_is_followed_line_by_line() {
    let f = frame(Opcode::RC_SEND_ONLY, 77, b"x", 0);
    let capture = pcap(1, false, false, &[(&f, f.len()), (&f, f.len())]);
    let first = capture.len() - f.len() - 16;
    let mut child = roxie().args(["--json", "-"]).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    stdin.write_all(&capture[..first]).unwrap();
    // The input stays open: reading blocks for ever if the line is held back.
    assert!(lines.next().unwrap().unwrap().contains("\"psn\":77"));
    stdin.write_all(&capture[first..]).unwrap();
    assert!(lines.next().unwrap().unwrap().contains("\"number\":2"));
    drop(stdin);
    assert!(lines.next().is_none());
    assert_eq!(child.wait_in_time().code(), Some(0));
}

#[test]
fn closed_pipe_is_no_error() {
    let mut child = roxie().arg("-").spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let capture = data("rxe-6.12-verbs-ipv4.pcap");
    let mut one = [0; 1];
    stdin.write_all(&capture[..20_000]).unwrap();
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut one).unwrap();
    drop(stdout);
    let _ = stdin.write_all(&capture[20_000..]);
    drop(stdin);
    let output = child.output_in_time();
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""));
}

#[test]
fn truncated_frames_have_no_icrc_verdict() {
    let f = frame(Opcode::RC_SEND_ONLY, 3, &[7; 500], 0);
    let rows = rows(&decode(&["--json"], &pcap(1, false, false, &[(&f[..96], f.len()), (&f, f.len())])));
    let seen: Vec<_> =
        rows.iter().map(|r| (r["icrc"].as_str().unwrap(), r["payload_len"].as_u64())).collect();
    assert_eq!(seen, [("none", Some(500)), ("ok", Some(500))]);
}

#[test]
fn damaged_packets_are_still_printed() {
    let good = frame(Opcode::RC_SEND_ONLY, 3, b"abcd", 0);
    let with = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        bytes
    };
    let (flipped, unknown, pad) = (with(54, b'x'), with(42, 0x1f), with(43, 0x30));
    let short = frame(Opcode::RC_SEND_ONLY, 3, b"", 0);
    let mut too_much = short.clone();
    too_much[43] = 0x10;
    let all = [&flipped, &unknown, &pad, &too_much].map(|f| (&f[..], f.len()));
    let output = decode(&["--json"], &pcap(1, false, false, &all));
    assert_eq!(output.status.code(), Some(0));
    let rows = rows(&output);
    assert!(rows.iter().all(|r| r["icrc"] == "bad"));
    assert_eq!((&rows[1]["opcode"], &rows[1]["problem"]), (&0x1f.into(), &"unknown opcode 0x1f".into()));
    assert_eq!(rows[2]["payload_len"], 1);
    assert_eq!(rows[3]["problem"], "pad of 1 bytes where 0 are left");
}

#[test]
fn malformed_frame_has_a_json_object() {
    let good = frame(Opcode::RC_SEND_ONLY, 3, b"abcd", 0);
    // The UDP length exceeds the IP packet.
    let mut long = good.clone();
    long[38..40].copy_from_slice(&200u16.to_be_bytes());
    let output = decode(&["--json"], &pcap(1, false, false, &[(&long, long.len()), (&good, good.len())]));
    let rows = rows(&output);
    assert_eq!(rows.len(), 2, "{rows:?}");
    assert_eq!((&rows[0]["number"], &rows[1]["number"]), (&1.into(), &2.into()));
    assert!(rows[0]["malformed"].as_str().is_some_and(|why| why.contains("UDP")), "{}", rows[0]);
    assert_eq!(rows[0]["timestamp_ns"], 1_000_007_000u64);
    assert!(rows[1].get("malformed").is_none());
}

#[test]
fn cooked_and_raw_captures_are_read() {
    let f = frame(Opcode::RC_SEND_ONLY, 3, b"abcd", 0);
    let l3 = &f[14..];
    let sll = [&[0, 0, 0, 1, 0, 6, 2, 0, 0, 0, 0, 1, 0, 0, 8, 0][..], l3].concat();
    let sll2 = [&[8, 0, 0, 0, 0, 0, 0, 2, 0, 1, 0, 6, 2, 0, 0, 0, 0, 1, 0, 0][..], l3].concat();
    let null = [&[2, 0, 0, 0][..], l3].concat();
    // An ERF record of type 2 (Ethernet), with two extension headers, the first of which says that another follows.
    let erf = [&[0; 8][..], &[0x82, 4, 0, 0, 0, 0, 0, 0], &[0x80; 8], &[0; 8], &[0, 0], &f].concat();
    for (link_type, bytes) in [(113, &sll[..]), (276, &sll2), (101, l3), (228, l3), (0, &null), (197, &erf)] {
        let output = decode(&["--json"], &pcap(link_type, false, false, &[(bytes, bytes.len())]));
        let rows = rows(&output);
        assert_eq!(rows.len(), 1, "link type {link_type}");
        assert_eq!((&rows[0]["icrc"], &rows[0]["src"]), (&"ok".into(), &"10.0.0.1".into()));
    }
}

#[test]
fn unsupported_link_type_is_named() {
    let output = decode(&["--json"], &pcap(195, false, false, &[(&[0; 64], 64)]));
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0));
    assert!(stderr(&output).contains("link type 195"), "{}", stderr(&output));
}

#[test]
fn super_frame_is_one_row_with_segments() {
    let packets: Vec<Vec<u8>> =
        [(Opcode::RC_SEND_MIDDLE, 256), (Opcode::RC_SEND_MIDDLE, 256), (Opcode::RC_SEND_LAST, 100)]
            .iter()
            .zip(0..)
            .map(|(&(opcode, len), i)| frame(opcode, 0xff_ffff + i, &vec![i as u8; len], 40 + i as u16))
            .collect();
    let mut whole = packets[0].clone();
    for p in &packets[1..] {
        whole.extend(&p[42..]);
    }
    let len = whole.len() as u16;
    whole[16..18].copy_from_slice(&(len - 14).to_be_bytes());
    whole[38..40].copy_from_slice(&(len - 34).to_be_bytes());
    let mut bad = whole.clone();
    *bad.last_mut().unwrap() ^= 1;
    let output = decode(&["--json"], &pcap(1, false, false, &[(&whole, whole.len()), (&bad, bad.len())]));
    let rows = rows(&output);
    assert_eq!((rows[0]["icrc"].as_str(), rows[1]["icrc"].as_str()), (Some("ok"), Some("bad")));
    let s = &rows[0]["segments"];
    assert_eq!((&s["count"], &s["len"], &s["last_psn"]), (&3.into(), &272.into(), &1.into()));
}

#[test]
fn text_is_one_line_verbose_is_complete() {
    let capture = data("rxe-6.12-cm.pcap");
    let plain = String::from_utf8(decode(&[], &capture).stdout).unwrap();
    assert_eq!(plain.lines().count(), 85);
    assert!(plain.lines().next().unwrap().ends_with("len 256 icrc ok CM REQ tid 0x2a7ab84b7"));
    let full = String::from_utf8(decode(&["-v"], &capture).stdout).unwrap();
    for header in
        ["  Ethernet ", "  IPv4 ", "  UDP sport ", "  BTH opcode 0x64 UD_SEND_ONLY ", "  UDP checksum zero"]
    {
        assert!(full.contains(header), "{header}");
    }
}

#[test]
fn verbose_connection_management_agrees_with_tshark() {
    let full = String::from_utf8(decode(&["-v"], &data("rxe-6.12-cm.pcap")).stdout).unwrap();
    let table = String::from_utf8(data("rxe-6.12-cm.messages.tsv")).unwrap();
    // Each message with its indented lines.
    let messages: Vec<&str> =
        full.split("\n  CM ").skip(1).map(|m| m.split("\n  frame ").next().unwrap()).collect();
    assert_eq!(messages.len(), table.lines().count());
    let number = |hex: &str| u32::from_str_radix(hex.trim_start_matches("0x"), 16).unwrap();
    for (message, row) in messages.iter().zip(table.lines()) {
        let c: Vec<&str> = row.split('\t').collect();
        let expected = match c[1] {
            "0x0010" => vec![
                format!("REQ {} service 0x000000000106{} (TCP port {})", c[3], &c[5][2..], number(c[5])),
                format!("qp {} psn {}", c[7], number(c[13])),
                format!("CA GUID {}", c[6]),
                format!("responder resources {} initiator depth {}", number(c[8]), number(c[9])),
                format!("retry count {} RNR retry count {}", number(c[15]), number(c[18])),
                format!("response timeout remote {} local {}", number(c[10]), number(c[14])),
                format!("hop {} ", number(c[21])),
                format!("ack timeout {}", number(c[22])),
                format!(" port {} > ", number(c[23])),
            ],
            "0x0013" => vec![
                format!("REP {} to {} qp {} psn {}", c[24], c[25], c[26], number(c[27])),
                format!("RNR retry count {}", number(c[33])),
                format!("target ack delay {}", number(c[30])),
            ],
            "0x0014" => vec![format!("RTU {} to {}", c[36], c[37])],
            "0x0012" => {
                vec![format!("REJ {} to {} of Req: {} (invalid service ID", c[38], c[39], number(c[42]))]
            }
            "0x0015" => vec![format!("DREQ {} to {} remote qp {}", c[43], c[44], c[45])],
            "0x0016" => vec![format!("DREP {} to {}", c[46], c[47])],
            other => panic!("{other} in the table"),
        };
        for part in expected {
            assert!(message.contains(&part), "frame {}: no `{part}` in\n{message}", c[0]);
        }
    }
}
