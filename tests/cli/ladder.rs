//! `roxie decode --ladder` and `--svg` as users run them: captures of one end and of both.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::in_time::CommandInTime;
use roxie::capture::{Direction, PcapngWriter};
use roxie::frame::{Frame, FrameMut};
use roxie::wire::{
    Aeth, Bth, Ext, FlowSpec, Gid, MAX_HEADERS, NakCode, Opcode, Psn, Qpn, Reth, RoceVersion, Syndrome,
    Template,
};
use tempfile::TempDir;

const LEFT_QP: Qpn = Qpn::new(0x11);
const RIGHT_QP: Qpn = Qpn::new(0x12);
const ACK: Syndrome = Syndrome::Ack { credits: 31 };
const NAK: Syndrome = Syndrome::Nak(NakCode::PsnSequence);

fn decode(arguments: &[&str], files: &[&Path]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_roxie"))
        .arg("decode")
        .args(arguments)
        .args(files)
        .output_in_time()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

/// Returns the drawing; asserts that there are no warnings.
fn ladder(arguments: &[&str], files: &[&Path]) -> String {
    let output = decode(&[&["--ladder"], arguments].concat(), files);
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), String::new()));
    text(&output.stdout)
}

/// Returns the content of each rung, from the first lifeline on, with single spaces.
fn rungs(drawing: &str) -> Vec<String> {
    let rung = |line: &str| {
        let at = line.find(['|', ':']).filter(|_| line.starts_with("  "))?;
        let head = if line[at + 1..].starts_with('<') { "<" } else { "" };
        // Remove line characters from words that consist of them.
        let plain = |word: &str| {
            let word = word.trim_matches('|');
            let line = word.chars().all(|c| ":-=~<>Xo".contains(c));
            if line { word.replace([':', '-', '=', '~', '<', '>'], "") } else { word.to_owned() }
        };
        let words = line[at..].split_whitespace().map(plain).filter(|word| !word.is_empty());
        Some(format!("{head}{}", words.collect::<Vec<_>>().join(" ")))
    };
    drawing.lines().filter_map(rung).collect()
}

fn data(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("tests/data").join(name)
}

/// A packet from the left end to the right one, or back.
#[derive(Clone)]
struct Packet {
    right: bool,
    opcode: Opcode,
    psn: u32,
    ext: Ext,
    payload: usize,
}

fn request(opcode: Opcode, psn: u32) -> Packet {
    Packet { right: true, opcode, psn, ext: Ext::None, payload: 256 }
}

fn send(psn: u32) -> Packet {
    request(Opcode::RC_SEND_ONLY, psn)
}

fn answer(psn: u32, syndrome: Syndrome) -> Packet {
    let ext = Ext::Aeth(Aeth { syndrome: syndrome.into(), msn: 0 });
    Packet { right: false, opcode: Opcode::RC_ACKNOWLEDGE, psn, ext, payload: 0 }
}

fn read(psn: u32, dma_len: u32) -> Packet {
    let ext = Ext::Reth(Reth { va: 0, rkey: 1, dma_len });
    Packet { ext, payload: 0, ..request(Opcode::RC_READ_REQUEST, psn) }
}

fn response(opcode: Opcode, psn: u32) -> Packet {
    let ext = match opcode {
        Opcode::RC_READ_RESPONSE_MIDDLE => Ext::None,
        _ => Ext::Aeth(Aeth { syndrome: ACK.into(), msn: 0 }),
    };
    Packet { right: false, opcode, psn, ext, payload: 256 }
}

impl Packet {
    fn frame(&self) -> Vec<u8> {
        let ip = |n| Gid::from(Ipv4Addr::new(10, 0, 0, n));
        let (from, to) = if self.right { (1, 2) } else { (2, 1) };
        let template = Template::new(&FlowSpec {
            src_mac: [2, 0, 0, 0, 0, from],
            dst_mac: [2, 0, 0, 0, 0, to],
            vlan: None,
            src: ip(from),
            dst: ip(to),
            traffic_class: 0,
            flow_label: 0,
            hop_limit: 64,
            source_port: 0xc000,
            version: RoceVersion::V2,
        });
        let dest_qp = if self.right { RIGHT_QP } else { LEFT_QP };
        let bth = Bth { opcode: self.opcode, dest_qp, psn: Psn::new(self.psn), ..Bth::default() };
        let mut headers = [0; MAX_HEADERS];
        let at = template.write_headers(&mut headers, &bth, &self.ext, self.payload);
        let mut bytes = vec![7; template.frame_len(self.opcode, self.payload)];
        bytes[..at].copy_from_slice(&headers[..at]);
        template.seal(&mut FrameMut { a: &mut bytes, b: &mut [] });
        bytes
    }
}

/// A temporary folder with captures.
struct Captures(TempDir);

impl Captures {
    fn new() -> Captures {
        Captures(TempDir::new().unwrap())
    }

    /// Writes a capture as Roxie does: time in us, true if made at the left end, packet, comment.
    fn pcapng(&self, name: &str, packets: &[(u64, bool, Packet, &str)]) -> PathBuf {
        let mut writer = PcapngWriter::new(Vec::new(), &["x"]).unwrap();
        for (us, at_left, packet, comment) in packets {
            let way = if packet.right == *at_left { Direction::Out } else { Direction::In };
            let bytes = packet.frame();
            let comment = (!comment.is_empty()).then_some(*comment);
            writer.write(0, us * 1000, way, &Frame::whole(&bytes), comment).unwrap();
        }
        self.write(name, &writer.into_inner())
    }

    /// Writes a capture as tcpdump does: without directions and comments.
    fn pcap(&self, name: &str, packets: &[(u64, Packet)]) -> PathBuf {
        let mut out = Vec::new();
        let mut words = |all: &[u32]| all.iter().for_each(|word| out.extend(word.to_le_bytes()));
        words(&[0xa1b2_c3d4, 0x0004_0002, 0, 0, 65535, 1]);
        for (us, packet) in packets {
            let bytes = packet.frame();
            let (seconds, rest) = ((us / 1_000_000) as u32, (us % 1_000_000) as u32);
            [seconds, rest, bytes.len() as u32, bytes.len() as u32]
                .iter()
                .for_each(|word| out.extend(word.to_le_bytes()));
            out.extend(bytes);
        }
        self.write(name, &out)
    }

    fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    }
}

/// One packet of four is lost, as `tcpdump` at one end sees it.
fn go_back_n(at_left: bool) -> Vec<(u64, Packet)> {
    let (clock, transit) = if at_left { (1_000_000, 0) } else { (5_000_000, 20) };
    let mut all = Vec::new();
    for (us, psn) in [(0, 10), (1, 11), (2, 12), (3, 13), (60, 11), (61, 12), (62, 13)] {
        let lost = us == 1;
        if at_left || !lost {
            all.push((clock + us + transit, send(psn)));
        }
    }
    for (us, psn, syndrome) in [(23, 11, NAK), (83, 13, ACK)] {
        all.push((clock + us + 20 - transit, answer(psn, syndrome)));
    }
    all.sort_by_key(|(us, _)| *us);
    all
}

#[test]
fn real_captures_match_reviewed_drawings() {
    let capture = data("rxe-6.12-verbs-ipv4.pcap");
    for (qp, what) in [("0x29", "rnr"), ("0x2b", "timeout"), ("0x1a", "read"), ("0x1e", "wrap")] {
        let reviewed = fs::read_to_string(data(&format!("ladder-{what}.txt"))).unwrap();
        assert_eq!(ladder(&["--qp", qp], &[&capture]), reviewed, "{what}");
    }
}

/// tshark lists the same number, opcode, PSN and queue pair.
#[test]
fn real_captures_are_drawn_completely() {
    for name in ["rxe-6.12-verbs-ipv4", "rxe-6.12-cm", "rxe-6.1-tools"] {
        let listed = fs::read_to_string(data(&format!("{name}.tsv"))).unwrap();
        let drawing = ladder(&["-v"], &[&data(&format!("{name}.pcap"))]);
        let arrow = |line: &&str| line.starts_with(' ') && line.contains(" |");
        assert_eq!(drawing.lines().filter(arrow).count(), listed.lines().count(), "{name}");
        let titles: Vec<&str> = drawing.lines().filter(|line| line.contains("<->")).collect();
        for line in listed.lines() {
            let qp = line.split('\t').nth(3).unwrap();
            assert!(titles.iter().any(|title| title.contains(qp)), "{name}: no ladder of {qp}");
        }
    }
}

#[test]
fn sender_capture_shows_nak_and_retransmission() {
    let captures = Captures::new();
    let drawing = ladder(&["-v"], &[&captures.pcap("left.pcap", &go_back_n(true))]);
    assert!(drawing.starts_with(
        "RC  10.0.0.1 qp 0x000011  <->  10.0.0.2 qp 0x000012\n9 packets in 103.0 us, 3 sent again, 1 NAK\n"
    ));
    let again = |psn| format!("SEND_ONLY psn {psn} again sent again after the sequence NAK");
    let seen = rungs(&drawing);
    let expected = [
        "SEND_ONLY psn 10".to_owned(),
        "SEND_ONLY psn 11".into(),
        "SEND_ONLY psn 12".into(),
        "SEND_ONLY psn 13".into(),
        "<NAK_PSN_SEQUENCE psn 11 sequence NAK: psn 11 is missing, send again from there".into(),
        again(11),
        again(12),
        again(13),
        "<ACK psn 13".into(),
    ];
    assert_eq!(seen, expected, "{drawing}");
}

#[test]
fn receiver_capture_shows_the_gap() {
    let captures = Captures::new();
    let drawing = ladder(&[], &[&captures.pcap("right.pcap", &go_back_n(false))]);
    let expected = [
        "SEND_ONLY psn 10",
        "psn 11 1 packet not in this capture: lost before it, or late",
        "SEND_ONLY psn 12",
        "SEND_ONLY psn 13",
        "<NAK_PSN_SEQUENCE psn 11 sequence NAK: psn 11 is missing, send again from there",
        "SEND_ONLY psn 11..13 again sent again after the sequence NAK",
        "<ACK psn 13",
    ];
    assert_eq!(rungs(&drawing), expected, "{drawing}");
}

/// The clocks are four seconds apart, and nothing in the captures says at which end they were made.
#[test]
fn two_captures_show_losses_in_either_order() {
    let captures = Captures::new();
    let left = captures.pcap("left.pcap", &go_back_n(true));
    let right = captures.pcap("right.pcap", &go_back_n(false));
    for files in [[&left, &right], [&right, &left]] {
        let drawing = ladder(&["-v"], &files.map(|file| file.as_path()));
        assert!(drawing.contains("1 lost on the way, 1 NAK; both ends captured"), "{drawing}");
        let seen = rungs(&drawing);
        assert_eq!(seen[..3], ["SEND_ONLY psn 10", "SEND_ONLY psn 11 X lost on the way", "SEND_ONLY psn 12"]);
        assert_eq!(seen.len(), 9, "each packet once:\n{drawing}");
        assert_eq!(drawing.matches('X').count(), 1, "what was sent again arrived:\n{drawing}");
    }
}

#[test]
fn lost_and_doubled_packets_are_distinguished() {
    let captures = Captures::new();
    let left = captures.pcapng(
        "left.pcapng",
        &[
            (0, true, send(1), "request"),
            (900, true, send(1), "retransmit after timeout, try 1 of 7"),
            (960, true, answer(1, ACK), "acknowledges"),
            (1000, true, send(2), "request"),
            (1060, true, answer(2, ACK), "acknowledges"),
        ],
    );
    let right = captures.pcapng(
        "right.pcapng",
        &[
            (20, false, send(1), "executed"),
            (30, false, answer(1, ACK), "answer"),
            (920, false, send(1), "duplicate: answered again, not executed again"),
            (930, false, answer(1, ACK), "answer"),
            (1020, false, send(2), "executed"),
            (1021, false, send(2), "duplicate: answered again, not executed again"),
            (1030, false, answer(2, ACK), "answer"),
        ],
    );
    let drawing = ladder(&[], &[&left, &right]);
    let duplicate = "duplicate: answered again, not executed again";
    let expected = [
        "SEND_ONLY psn 1 executed".to_owned(),
        "X ACK psn 1 lost on the way".into(),
        format!("SEND_ONLY psn 1 again retransmit after timeout, try 1 of 7; {duplicate}"),
        "<ACK psn 1".into(),
        "SEND_ONLY psn 2 executed".into(),
        format!("o SEND_ONLY psn 2 again received once more than sent: duplicated on the way; {duplicate}"),
        "<ACK psn 2".into(),
    ];
    assert_eq!(rungs(&drawing), expected, "{drawing}");
}

#[test]
fn psns_explain_a_single_capture() {
    let captures = Captures::new();
    let (first, last) = (Opcode::RC_READ_RESPONSE_FIRST, Opcode::RC_READ_RESPONSE_LAST);
    let packets = [
        (0, read(5, 768)),
        (1, send(8)),
        (20, response(first, 5)),
        // The middle response is lost; the ACK shows that it was sent.
        (21, answer(8, ACK)),
        (30, read(6, 512)),
        (31, send(8)),
        (50, response(first, 6)),
        (51, response(last, 7)),
        (52, answer(8, ACK)),
        (53, answer(8, ACK)),
        (54, answer(9, ACK)),
        (90_000, send(9)),
        (170_000, send(9)),
    ];
    let drawing = ladder(&["-v"], &[&captures.pcap("left.pcap", &packets)]);
    let again = "sent again after the implied NAK";
    let expected = [
        "READ_REQUEST psn 5 asks for psn 5..7".to_owned(),
        "SEND_ONLY psn 8".into(),
        "<READ_RESPONSE_FIRST psn 5".into(),
        "<ACK psn 8 implies a NAK: the answer psn 6..7 never came".into(),
        format!("READ_REQUEST psn 6 again {again}"),
        format!("SEND_ONLY psn 8 again {again}"),
        "<READ_RESPONSE_FIRST psn 6".into(),
        "<READ_RESPONSE_LAST psn 7".into(),
        "<ACK psn 8".into(),
        "<ACK psn 8 again answered before".into(),
        "<ACK psn 9 answers nothing that was sent, the last was psn 8: a ghost, unless the capture lacks requests"
            .into(),
        "89.95 ms of silence".into(),
        "SEND_ONLY psn 9".into(),
        "80.00 ms of silence".into(),
        "SEND_ONLY psn 9 again sent again: no answer, nothing for 80.00 ms".into(),
    ];
    assert_eq!(rungs(&drawing), expected, "{drawing}");
}

#[test]
fn naks_are_explained() {
    let captures = Captures::new();
    let cases = [
        (Syndrome::RnrNak { timer: 12 }, "no receive is posted, come again after 640.0 us"),
        (Syndrome::Nak(NakCode::RemoteAccess), "key, bounds or rights forbid it"),
        (Syndrome::Nak(NakCode::InvalidRequest), "its opcode, order, or length is not allowed"),
        (Syndrome::Nak(NakCode::RemoteOperational), "a fault of the responder"),
    ];
    for (syndrome, meaning) in cases {
        let file = captures.pcap("x.pcap", &[(0, send(1)), (9, answer(1, syndrome))]);
        let drawing = ladder(&[], &[&file]);
        let rung = &rungs(&drawing)[1];
        assert!(rung.contains(syndrome.name()) && rung.contains(meaning), "{rung}");
        assert!(drawing.contains("|<~ "), "{drawing}");
    }
}

#[test]
fn damaged_capture_is_drawn_as_far_as_readable() {
    let captures = Captures::new();
    let file = captures.pcap("x.pcap", &[(0, send(1)), (1, send(2))]);
    let mut bytes = fs::read(&file).unwrap();
    let end = bytes.len();
    bytes[24 + 16 + 60] ^= 1;
    let bent = captures.write("bent.pcap", &bytes);
    assert_eq!(rungs(&ladder(&[], &[&bent]))[0], "SEND_ONLY psn 1 bad ICRC: receivers drop it");

    let cut = captures.write("cut.pcap", &bytes[..end - 1]);
    let output = decode(&["--ladder"], &[&cut]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(rungs(&text(&output.stdout)).len(), 1);
    assert!(text(&output.stderr).contains("cut short"), "{}", text(&output.stderr));
}

#[test]
fn wrong_queue_pair_error_lists_existing_ones() {
    let captures = Captures::new();
    let file = captures.pcap("x.pcap", &[(0, send(1)), (9, answer(1, ACK))]);
    let nothing = captures.pcap("nothing.pcap", &[]);
    let others = data("rxe-6.12-cm.pcap");
    let cases: [(&[&str], &[&Path], i32, &str); 6] = [
        (
            &["--ladder", "--qp", "0x99"],
            &[&file],
            1,
            "no packet of queue pair 0x000099; there are 0x000011 (RC at 10.0.0.1), 0x000012 (RC at 10.0.0.2)",
        ),
        (&["--ladder"], &[&nothing], 1, "no RoCE packet among the 0 frames"),
        (
            &["--ladder"],
            &[&file, &others],
            1,
            "not of the two ends of one traffic: the first has packets between 10.0.0.1",
        ),
        (&[], &[&file, &file], 2, "add --ladder"),
        (&["--ladder", "--qp", "17000000"], &[&file], 2, "no queue pair number"),
        (&["--qp", "17"], &[&file], 2, "--ladder"),
    ];
    for (arguments, files, code, says) in cases {
        let output = decode(arguments, files);
        let complaint = text(&output.stderr);
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(code), String::new()), "{complaint}");
        assert!(complaint.contains(says), "{complaint}");
    }
    let drawing = ladder(&["--qp", "17"], &[&file]);
    assert_eq!(rungs(&drawing).len(), 2, "17 is 0x11: {drawing}");
}

#[test]
fn help_explains_the_drawing() {
    let help = text(&decode(&["--help"], &[]).stdout);
    for lesson in ["go-back-N", "~~~>", "retransmission", "RNR NAK", "Clocks need not agree"] {
        assert!(help.contains(lesson), "{lesson}:\n{help}");
    }
}

/// Checks that all elements are closed in order, and returns each element's name with its class.
fn elements(svg: &str) -> Vec<String> {
    let (mut open, mut all) = (Vec::new(), Vec::new());
    for part in svg.split('<').skip(1) {
        let (tag, rest) = part.split_once('>').expect("a tag has an end");
        let mut unescaped = rest.split('&').skip(1);
        assert!(
            unescaped.all(|entity| ["lt;", "gt;", "amp;", "quot;"].iter().any(|e| entity.starts_with(e))),
            "{rest}"
        );
        let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap().to_owned();
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name), "closed in order");
        } else {
            let class = tag.split("class=\"").nth(1).and_then(|c| c.split('"').next()).unwrap_or("");
            all.push(format!("{name}.{class}"));
            if !tag.ends_with('/') {
                open.push(name);
            }
        }
        assert!(!rest.contains('>'), "{rest}");
    }
    assert_eq!(open, Vec::<String>::new());
    all
}

#[test]
fn svg_is_complete_and_self_contained() {
    let captures = Captures::new();
    let left = captures.pcap("left.pcap", &go_back_n(true));
    let right = captures.pcap("right.pcap", &go_back_n(false));
    let picture = captures.0.path().join("out.svg");
    let output = decode(&["-v", "--svg", picture.to_str().unwrap()], &[&left, &right]);
    assert_eq!(
        (output.status.code(), output.stdout.len(), text(&output.stderr)),
        (Some(0), 0, String::new())
    );
    let svg = fs::read_to_string(&picture).unwrap();
    let all = elements(&svg);
    let count = |what: &str| all.iter().filter(|element| *element == what).count();
    // The legend has one line of each kind, and two plain ones.
    let seen = (
        count("g.rung"),
        count("path.lost"),
        count("line.again"),
        count("line.trouble"),
        count("line.plain"),
    );
    assert_eq!(seen, (9, 1 + 1, 3 + 1, 1 + 1, 5 + 2));
    for part in [
        "@media (prefers-color-scheme:dark)",
        "SEND_ONLY psn 11 again",
        "lost on the way",
        "10.0.0.2 qp 0x000012",
    ] {
        assert!(svg.contains(part), "{part}");
    }
    for foreign in ["<script", "href", "url(", "@import", "@font-face"] {
        assert!(!svg.contains(foreign), "{foreign}");
    }
    assert_eq!(text(&decode(&["-v", "--svg", "-"], &[&left, &right]).stdout), svg);
    assert_eq!(text(&decode(&["-v", "--ladder", "--svg", "-"], &[&left, &right]).stdout), svg);
}

#[test]
fn svg_output_replaces_text() {
    let captures = Captures::new();
    let left = captures.pcap("left.pcap", &go_back_n(true));
    let picture = captures.0.path().join("both.svg");
    let output = decode(&["--ladder", "--svg", picture.to_str().unwrap()], &[&left]);
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), String::new()));
    assert!(output.stdout.is_empty(), "the file has it: {}", text(&output.stdout));
    assert_eq!(fs::read_to_string(&picture).unwrap(), text(&decode(&["--svg", "-"], &[&left]).stdout));
}

#[test]
fn comments_are_escaped() {
    let captures = Captures::new();
    let file = captures.pcapng("x.pcapng", &[(0, true, send(1), "</text><script>\"&\u{7}\n\u{1b}[31m")]);
    let svg = text(&decode(&["--svg", "-"], &[&file]).stdout);
    elements(&svg);
    assert!(svg.contains("&lt;/text&gt;&lt;script&gt;&quot;&amp;"), "{svg}");
    let drawing = ladder(&[], &[&file]);
    assert!(!drawing.contains(['\u{7}', '\u{1b}']), "{drawing:?}");
    assert_eq!(rungs(&drawing).len(), 1);
}
