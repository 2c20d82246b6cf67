//! `roxie lab compare`: one SEND and one WRITE in RoCE v1, RoCE v2, InfiniBand and iWARP.

use clap::Args;
use roxie::frame::FrameMut;
use roxie::time::Nanos;
use roxie::verbs::{Mtu, RKey, SendWr, WcStatus, WrOpcode};
use roxie::wire::net::{ETHERNET_OVERHEAD, SHORTEST_FRAME};
use roxie::wire::{Ext, FlowSpec, MAX_HEADERS, RoceVersion, Template};
use roxie_lab_theory::infiniband::{self, LRH_LEN, Route, VCRC_LEN};
use roxie_lab_theory::iwarp::{self, Message};
use roxie_lab_theory::layout::fields;
use roxie_report::failure::Failure;
use roxie_sim::Payload;
use serde_json::Value;

use super::document::{About, Bar, Bars, Block, ByteField, Bytes, Choice, Facts, Part, Run, Table, hex};
use super::film::{CapturedFrame, add, shots};
use super::frame::byte_field;
use super::stage::{Scene, Stage};

pub(super) const ABOUT: About = About {
    name: "compare",
    line: "RoCE v1, RoCE v2, InfiniBand and iWARP: the same message, byte by byte",
    see: &[
        "One SEND and one WRITE. The RoCE v2 packets are the engine's; RoCE v1 and InfiniBand carry the same transport \
         headers behind other network headers; iWARP carries the message over TCP, in MPA, DDP and RDMAP.",
        "The first packet of each, field by field, and the use of the bytes on the wire, in both directions.",
        "The requirements of each on the network. Shorter headers have their price there.",
    ],
    change: &[
        "`--bytes 64`: most of the bytes are headers.",
        "`--bytes 65536 --mtu 9000`: headers hardly count. RoCE fills 4096 bytes of 9000, TCP all.",
        "`--mtu 1500`: the largest path MTU that fits is 1024, so a third of each frame is not used.",
    ],
};

/// Compare one SEND and one WRITE in four protocols
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  roxie lab compare\n  roxie lab compare --bytes 64\n  roxie lab compare --bytes 65536 --mtu 9000 --html compare.html"
)]
pub(super) struct Arguments {
    /// Bytes of the message, 1 to 65536
    #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    bytes: u32,
    /// Link MTU, 576 to 9600 bytes
    #[arg(long, default_value_t = 1500, value_parser = clap::value_parser!(u16).range(576..=9600))]
    mtu: u16,
}

/// Bytes of a TCP header with timestamps.
const TCP: usize = 32;
const IPV4: usize = 20;
const ETHERNET: usize = 14;

/// A message in one protocol.
struct MessageCost {
    name: &'static str,
    /// Number of packets there and back.
    packets: [usize; 2],
    payload_of_packet: usize,
    parts: Vec<Part>,
    first: Bytes,
}

/// Runs the lab.
pub(super) fn run(arguments: &Arguments) -> Result<(Vec<Run>, Vec<Block>), Failure> {
    let mut runs = Vec::new();
    let mut bars = Vec::new();
    for (operation, opcode) in [("WRITE", WrOpcode::Write), ("SEND", WrOpcode::Send)] {
        let shots = sent(arguments, opcode)?;
        let link_mtu = usize::from(arguments.mtu);
        let all = [
            roce_v2(&shots),
            other(&shots, "RoCE v1")?,
            other(&shots, "InfiniBand")?,
            iwarp(opcode, arguments.bytes as usize, link_mtu),
        ];
        for told in all {
            bars.push(Bar { name: format!("{} {operation}", told.name), parts: told.parts.clone() });
            runs.push(shown(arguments, operation, told));
        }
    }
    let bars = Bars { title: "Bytes on the wire, both directions".into(), unit: "bytes", bars };
    Ok((runs, vec![Block::Bars(bars), needs()]))
}

/// Returns the frames of one message as the engine sends them.
fn sent(arguments: &Arguments, opcode: WrOpcode) -> Result<Vec<CapturedFrame>, Failure> {
    let link_mtu = usize::from(arguments.mtu);
    let path_mtu = Mtu::largest_for_link(link_mtu).ok_or_else(|| {
        Failure::Usage(format!("--mtu {link_mtu}: no path MTU of InfiniBand fits, which takes 344"))
    })?;
    let mut stage = Stage::new(&Scene { path_mtu, timeout: 18, ..Scene::default() })?;
    let source = stage.regions[0].sge(0, arguments.bytes);
    let target = stage.regions[1].sge(0, arguments.bytes);
    if opcode == WrOpcode::Send {
        let Stage { fabric, qps, .. } = &mut stage;
        fabric.host(1).post_recv(&qps[1], 1, &[target])?;
    }
    stage.run(Nanos::from_micros(10));
    let wr = SendWr {
        opcode,
        remote_addr: stage.regions[1].address,
        rkey: RKey(stage.regions[1].key),
        ..SendWr::default()
    };
    stage.post(&wr, Payload::Sges(&[source]))?;
    match stage.completion(Nanos::from_millis(1_000)) {
        Some((at, wc)) if wc.status == WcStatus::Success => stage.run(at + Nanos::from_micros(20)),
        other => return Err(Failure::Run(format!("the message ended with {other:?}"))),
    };
    let (_, films) = stage.end()?;
    shots(&films[0])
}

fn counts(shots: &[CapturedFrame]) -> [usize; 2] {
    let there = shots.iter().filter(|shot| shot.out).count();
    [there, shots.len() - there]
}

/// Returns the bytes that Ethernet adds to a frame: padding, preamble, FCS and gap.
fn around(frame: usize) -> f64 {
    (SHORTEST_FRAME.saturating_sub(frame) + ETHERNET_OVERHEAD as usize) as f64
}

fn roce_v2(shots: &[CapturedFrame]) -> MessageCost {
    let mut parts = Vec::new();
    for shot in shots {
        shot.layout.fields.iter().for_each(|field| add(&mut parts, field.header, field.bits as f64 / 8.0));
        add(&mut parts, "preamble, FCS, gap", around(shot.frame.len()));
    }
    let first = &shots[0];
    MessageCost {
        name: "RoCE v2",
        packets: counts(shots),
        payload_of_packet: first.payload().len(),
        parts,
        first: Bytes {
            title: format!("{}, as the engine sent it", first.layout.packet.bth.opcode),
            hex: hex(&first.frame),
            fields: first.layout.fields.iter().map(byte_field).collect(),
        },
    }
}

/// Returns the same packets in RoCE v1 or InfiniBand.
fn other(shots: &[CapturedFrame], name: &'static str) -> Result<MessageCost, Failure> {
    let mut parts = Vec::new();
    let mut first = None;
    for shot in shots {
        let v1 = as_v1(shot)?;
        let layout = fields(&v1).map_err(|drop| Failure::Run(drop.to_string()))?;
        let mut all: Vec<ByteField> = layout.fields.iter().map(byte_field).collect();
        let mut bytes = v1;
        if name == "InfiniBand" {
            let packet = &shot.layout.packet;
            let ext = Ext::of(packet).unwrap_or(Ext::None);
            let route = if shot.out { ROUTE } else { Route { dlid: ROUTE.slid, slid: ROUTE.dlid, ..ROUTE } };
            bytes = infiniband::packet(&route, &packet.bth, &ext, shot.payload());
            all = as_infiniband(&all, &bytes);
        }
        all.iter().for_each(|field| add(&mut parts, &field.header, field.bits as f64 / 8.0));
        if name == "RoCE v1" {
            add(&mut parts, "preamble, FCS, gap", around(bytes.len()));
        }
        let title = format!("{} in {name}", shot.layout.packet.bth.opcode);
        first.get_or_insert(Bytes { title, hex: hex(&bytes), fields: all });
    }
    let first = first.ok_or_else(|| Failure::Run("no packet was sent".into()))?;
    Ok(MessageCost {
        name,
        packets: counts(shots),
        payload_of_packet: shots[0].payload().len(),
        parts,
        first,
    })
}

/// A route between two ports of one subnet.
const ROUTE: Route = Route { vl: 0, sl: 0, dlid: 2, slid: 1 };

fn as_v1(shot: &CapturedFrame) -> Result<Vec<u8>, Failure> {
    let packet = &shot.layout.packet;
    let template = Template::new(&FlowSpec {
        src_mac: packet.src_mac,
        dst_mac: packet.dst_mac,
        vlan: None,
        src: packet.source_gid(),
        dst: packet.dest_gid(),
        traffic_class: 0,
        flow_label: 0,
        hop_limit: 1,
        source_port: 0,
        version: RoceVersion::V1,
    });
    let ext = Ext::of(packet)
        .ok_or_else(|| Failure::Run("the engine sent a header that it does not build".into()))?;
    let payload = shot.payload();
    let mut headers = [0; MAX_HEADERS];
    let at = template.write_headers(&mut headers, &packet.bth, &ext, payload.len());
    let mut frame = vec![0; template.frame_len(packet.bth.opcode, payload.len())];
    frame[..at].copy_from_slice(&headers[..at]);
    frame[at..at + payload.len()].copy_from_slice(payload);
    template.seal(&mut FrameMut { a: &mut frame, b: &mut [] });
    Ok(frame)
}

/// Returns the fields of a RoCE v1 frame from its BTH on, behind a local route header.
fn as_infiniband(v1: &[ByteField], bytes: &[u8]) -> Vec<ByteField> {
    let word = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    let lrh = |name: &str, bit, bits, value: u16, about: &str| ByteField {
        header: "LRH".into(),
        name: name.into(),
        bit,
        bits,
        value: value.to_string(),
        about: about.into(),
        uncovered: name == "VL",
    };
    let mut all = vec![
        lrh("VL", 0, 4, word(0) >> 12, "virtual lane, which has its own credits"),
        lrh("LVer", 4, 4, word(0) >> 8 & 15, "0: the only version"),
        lrh("SL", 8, 4, word(0) >> 4 & 15, "service level, which switches map to a lane"),
        lrh("reserved", 12, 2, 0, ""),
        lrh("LNH", 14, 2, word(0) & 3, "2: a BTH follows, 3: a GRH"),
        lrh("DLID", 16, 16, word(2), "16 bits are the whole address"),
        lrh("reserved", 32, 5, 0, ""),
        lrh("PktLen", 37, 11, word(4) & 0x7ff, "words of 4 bytes, to the ICRC"),
        lrh("SLID", 48, 16, word(6), ""),
    ];
    let Some(bth) = v1.iter().position(|field| field.header == "BTH") else { return all };
    let shift = v1[bth].bit - 8 * LRH_LEN;
    let end = 8 * (bytes.len() - VCRC_LEN);
    for field in v1[bth..].iter().filter(|field| field.header != "Ethernet") {
        all.push(ByteField { bit: field.bit - shift, ..field.clone() });
    }
    if let Some(icrc) = all.last_mut() {
        let at = bytes.len() - VCRC_LEN - 4;
        let stored = u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        (icrc.value, icrc.about) = (format!("{stored:#010x}"), "over other headers than RoCE's".into());
    }
    let vcrc = u16::from_le_bytes([bytes[bytes.len() - 2], bytes[bytes.len() - 1]]);
    all.push(ByteField {
        header: "VCRC".into(),
        name: "VCRC".into(),
        bit: end,
        bits: 16,
        value: format!("{vcrc:#06x}"),
        about: "checked and computed again on each link".into(),
        uncovered: true,
    });
    all
}

fn iwarp(opcode: WrOpcode, length: usize, link_mtu: usize) -> MessageCost {
    let message = match opcode {
        WrOpcode::Write => Message::Write { stag: 0x1122_3344, offset: 0x7f00_0000_1000 },
        _ => Message::Send { number: 1 },
    };
    let mss = link_mtu - IPV4 - TCP;
    let all = iwarp::fpdus(&message, &vec![0; length], mss);
    let header = iwarp::header_len(&message);
    let mut parts = Vec::new();
    // TCP acknowledges every second segment (RFC 5681 4.2), and the last.
    let back = all.len().div_ceil(2);
    for bytes in &all {
        let ulpdu = usize::from(u16::from_be_bytes([bytes[0], bytes[1]]));
        let pad = bytes.len() - iwarp::MPA_LENGTH - ulpdu - iwarp::MPA_CRC;
        add(&mut parts, "Ethernet", ETHERNET as f64);
        add(&mut parts, "IPv4", IPV4 as f64);
        add(&mut parts, "TCP", TCP as f64);
        add(&mut parts, "MPA", (iwarp::MPA_LENGTH + iwarp::MPA_CRC + pad) as f64);
        add(&mut parts, "DDP, RDMAP", header as f64);
        add(&mut parts, "payload", (ulpdu - header) as f64);
        add(&mut parts, "preamble, FCS, gap", around(ETHERNET + IPV4 + TCP + bytes.len()));
    }
    for _ in 0..back {
        add(&mut parts, "Ethernet", ETHERNET as f64);
        add(&mut parts, "IPv4", IPV4 as f64);
        add(&mut parts, "TCP", TCP as f64);
        add(&mut parts, "preamble, FCS, gap", around(ETHERNET + IPV4 + TCP));
    }
    MessageCost {
        name: "iWARP",
        packets: [all.len(), back],
        payload_of_packet: iwarp::payload_of(&message, mss).min(length),
        parts,
        first: fpdu_fields(&message, &all[0]),
    }
}

/// Returns the fields of a framed PDU, as it stands in the TCP stream.
fn fpdu_fields(message: &Message, bytes: &[u8]) -> Bytes {
    let number = |at: usize, count: usize| {
        bytes[at..at + count].iter().fold(0u64, |n, byte| n << 8 | u64::from(*byte))
    };
    let field = |header: &str, name: &str, at: usize, count: usize, value: String, about: &str| ByteField {
        header: header.into(),
        name: name.into(),
        bit: 8 * at,
        bits: 8 * count,
        value,
        about: about.into(),
        uncovered: false,
    };
    let hex_of = |at, count| format!("{:#x}", number(at, count));
    let ulpdu = number(0, 2) as usize;
    let header = iwarp::header_len(message);
    let mut all = vec![
        field("MPA", "ULPDU length", 0, 2, ulpdu.to_string(), "where the next one begins: TCP does not say"),
        field("DDP", "control", 2, 1, hex_of(2, 1), "bit 7: tagged, bit 6: last, version 1"),
        field("RDMAP", "control", 3, 1, hex_of(3, 1), "version 1; 0: WRITE, 3: SEND"),
    ];
    match message {
        Message::Write { .. } => all.extend([
            field("DDP", "STag", 4, 4, hex_of(4, 4), "the counterpart of an rkey"),
            field(
                "DDP",
                "tagged offset",
                8,
                8,
                hex_of(8, 8),
                "where: of every segment, so any may come first",
            ),
        ]),
        Message::Send { .. } => all.extend([
            field("RDMAP", "invalidate STag", 4, 4, hex_of(4, 4), "none here"),
            field("DDP", "queue", 8, 4, number(8, 4).to_string(), "0: SENDs, 1: READ requests, 2: Terminate"),
            field("DDP", "message", 12, 4, number(12, 4).to_string(), "which buffer of the queue"),
            field("DDP", "offset", 16, 4, number(16, 4).to_string(), "where in it"),
        ]),
    }
    let payload = ulpdu - header;
    all.push(field("payload", "payload", 2 + header, payload, format!("{payload} bytes"), ""));
    let pad = bytes.len() - 2 - ulpdu - 4;
    if pad > 0 {
        all.push(field("MPA", "pad", 2 + ulpdu, pad, format!("{pad} bytes of zero"), ""));
    }
    let at = bytes.len() - 4;
    let crc = u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    all.push(field("MPA", "CRC", at, 4, format!("{crc:#010x}"), "CRC-32C of all before it"));
    Bytes {
        title: "The first framed PDU, behind Ethernet, IPv4 and TCP".into(),
        hex: hex(bytes),
        fields: all,
    }
}

fn shown(arguments: &Arguments, operation: &'static str, told: MessageCost) -> Run {
    let wire: f64 = told.parts.iter().map(|part| part.value).sum();
    let mut facts = Facts::default();
    facts.tell("message_bytes", arguments.bytes, "bytes", "of the message");
    facts.tell("packets_there", told.packets[0], "packets", "carry it");
    facts.tell("packets_back", told.packets[1], "packets", "acknowledge it");
    facts.tell("payload_of_packet", told.payload_of_packet, "bytes", "of it in the first packet");
    facts.tell("wire_bytes", wire as u64, "bytes", "on the wire in both directions, gaps included");
    facts.tell(
        "overhead_bytes",
        wire as u64 - u64::from(arguments.bytes),
        "bytes",
        "of them are not the message",
    );
    facts.tell("efficiency", 100.0 * f64::from(arguments.bytes) / wire, "%", "of them are");
    let bar = Bar { name: told.name.into(), parts: told.parts };
    let bars = Bars { title: "Use of the bytes on the wire".into(), unit: "bytes", bars: vec![bar] };
    Run {
        choice: vec![Choice::new("protocol", told.name), Choice::new("operation", operation)],
        facts,
        blocks: vec![Block::Bars(bars), Block::Bytes(told.first)],
    }
}

/// Lists properties that the bytes do not show.
fn needs() -> Block {
    let row = |cells: [&str; 5]| cells.into_iter().map(Value::from).collect();
    Block::Table(Table {
        title: "Requirements on the network, and recovery of losses".into(),
        columns: vec!["", "network", "losses", "congestion", "crosses routers"],
        rows: vec![
            row([
                "InfiniBand",
                "its own: credits per lane, a subnet manager",
                "hardly any; go-back-N in the adapter",
                "credits; FECN and BECN",
                "by a GRH, rarely used",
            ]),
            row([
                "RoCE v1",
                "Ethernet with PFC, or luck",
                "go-back-N in the adapter",
                "pauses",
                "no: an EtherType of its own",
            ]),
            row([
                "RoCE v2",
                "Ethernet with PFC, or ECN and good rates",
                "go-back-N in the adapter, selective in newer ones",
                "ECN, CNP, DCQCN",
                "yes: UDP",
            ]),
            row(["iWARP", "any that carries TCP", "TCP, in the adapter", "TCP", "yes: TCP"]),
        ],
        sum: false,
    })
}
