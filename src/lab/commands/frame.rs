//! `roxie lab frame`: builds a frame from arguments, or decodes a given one.

use std::fs::File;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use clap::Args;
use roxie::capture::{Reader, link_type};
use roxie::frame::{Frame, FrameMut};
use roxie::wire::{
    Aeth, AtomicEth, Bth, Deth, Ext, Feth, FlowSpec, Gid, Headers, Icrc, MAX_HEADERS, Opcode, Psn, Qpn, Reth,
    RoceVersion, Template, XrcEth, entropy_port, parse,
};
use roxie_lab_theory::layout::{Field, Layout, fields};
use roxie_report::failure::Failure;
use serde_json::Value;

use super::document::{About, Bar, Bars, Block, ByteField, Bytes, Choice, Facts, Part, Run, Table, hex};

pub(super) const ABOUT: About = About {
    name: "frame",
    line: "a RoCE frame, field by field, with its ICRC",
    see: &[
        "Every field of a RoCE v2 or v1 frame: offset, length, value, and purpose.",
        "The bits that the ICRC covers. Each bit of the frame is flipped in turn, and the engine's parser checks the \
         result.",
        "The bytes on the wire for one payload in each encapsulation.",
    ],
    change: &[
        "`--payload 4096`: headers hardly count. `--payload 1`: nearly all bytes are headers.",
        "`--opcode RC_ACKNOWLEDGE`, `RC_FETCH_ADD`, `UD_SEND_ONLY`, `CNP`: other headers follow the BTH.",
        "`--roce 1`: no IP, no UDP, a GRH instead. Routers cannot forward it.",
        "Copy the hex of a frame, change one digit, and pass it to `--hex`: does the ICRC detect it?",
    ],
};

/// Lay out a RoCE frame field by field: from arguments, from hex, or from a capture
#[derive(Debug, Args)]
#[command(
    long_about = "Builds a RoCE v2 or v1 frame as the engine does and lays it out field by field: offset, length, \
        value, purpose, and whether the ICRC covers it. --hex and --capture decode an existing frame instead.\n\nThen \
        flips each bit of the frame in turn, and counts the results of the engine's parser: refused by a header check, \
        refused by the ICRC, or not noticed.",
    after_help = "Examples:\n  roxie lab frame                                        a WRITE of 32 bytes\n  \
    roxie lab frame --opcode RC_ACKNOWLEDGE --psn 7\n  roxie lab frame --roce 1 --opcode UD_SEND_ONLY --payload 100\n  \
    roxie lab frame --capture run.pcapng --number 3        the third frame of a capture\n  \
    roxie lab frame --html frame.html                      a page to play with"
)]
pub(super) struct Arguments {
    /// RoCE version: 1 (EtherType 0x8915 and GRH) or 2 (UDP port 4791)
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=2))]
    roce: u8,
    /// Opcode, by the name that `roxie decode` prints
    #[arg(long, default_value = "RC_WRITE_ONLY", value_parser = opcode)]
    opcode: Opcode,
    /// Source address, IPv4 or IPv6 like the destination's
    #[arg(long, value_name = "IP", default_value = "192.0.2.1")]
    from: IpAddr,
    /// Destination address
    #[arg(long, value_name = "IP", default_value = "192.0.2.2")]
    to: IpAddr,
    /// Destination queue pair, 0 to 16777215
    #[arg(long, default_value_t = 0x12, value_parser = clap::value_parser!(u32).range(0..1 << 24))]
    qp: u32,
    /// Packet sequence number, 0 to 16777215
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(0..1 << 24))]
    psn: u32,
    /// Payload in bytes, 0 to 4096; atomics and acknowledgements carry none
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(0..=4096))]
    payload: u16,
    /// DSCP, 0 to 63
    #[arg(long, default_value_t = 26, value_parser = clap::value_parser!(u8).range(0..64))]
    dscp: u8,
    /// ECN bits: 0 not capable, 1 or 2 capable, 3 marked
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(0..4))]
    ecn: u8,
    /// VLAN ID, 0 to 4094; 0 for a tag with a priority only [default: no tag]
    #[arg(long, value_parser = clap::value_parser!(u16).range(0..4095))]
    vlan: Option<u16>,
    /// 802.1p priority in the tag, 0 to 7
    #[arg(long, default_value_t = 3, requires = "vlan", value_parser = clap::value_parser!(u16).range(0..8))]
    priority: u16,
    /// A frame as hex digits, from its Ethernet header to its ICRC; spaces and colons are ignored
    #[arg(long, value_name = "HEX", conflicts_with = "capture")]
    hex: Option<String>,
    /// Take the frame from this capture
    #[arg(long, value_name = "FILE")]
    capture: Option<PathBuf>,
    /// Number of the frame in the capture, as Wireshark counts
    #[arg(long, default_value_t = 1, requires = "capture", value_parser = clap::value_parser!(u64).range(1..))]
    number: u64,
}

fn opcode(text: &str) -> Result<Opcode, String> {
    let wanted = text.to_ascii_uppercase();
    let known = || (0..=u8::MAX).map(Opcode).filter(|code| code.info().is_some());
    known().find(|code| code.to_string() == wanted).ok_or_else(|| {
        let like = |code: &Opcode| wanted.split('_').any(|part| part.len() > 3 && code.to_string().contains(part));
        let near: Vec<String> = known().filter(like).take(8).map(|code| code.to_string()).collect();
        match near.is_empty() {
            true => "no opcode of that name: RC_SEND_ONLY, RC_WRITE_ONLY, RC_READ_REQUEST, RC_ACKNOWLEDGE, UD_SEND_ONLY, CNP …".into(),
            false => format!("no opcode of that name; there are {}", near.join(", ")),
        }
    })
}

/// Runs the lab.
pub(super) fn run(arguments: &Arguments) -> Result<(Vec<Run>, Vec<Block>), Failure> {
    if let Some(text) = &arguments.hex {
        let frame = from_hex(text).map_err(Failure::Usage)?;
        return Ok((vec![show(&frame, vec![], Failure::Usage)?], vec![]));
    }
    if let Some(file) = &arguments.capture {
        let frame = from_capture(file, arguments.number)?;
        return Ok((vec![show(&frame, vec![], Failure::Run)?], vec![]));
    }
    if arguments.from.is_ipv4() != arguments.to.is_ipv4() {
        let why = format!("--from {} and --to {}: give two of one family", arguments.from, arguments.to);
        return Err(Failure::Usage(why));
    }
    let v6 = |address: IpAddr| match address {
        IpAddr::V4(v4) => {
            IpAddr::V6(std::net::Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, v4.octets()[3].into()))
        }
        v6 => v6,
    };
    let (from, to) = (arguments.from, arguments.to);
    let mut ways = vec![
        ("RoCE v2 over IPv6", RoceVersion::V2, v6(from), v6(to)),
        ("RoCE v1", RoceVersion::V1, from, to),
    ];
    if from.is_ipv4() {
        ways.insert(0, ("RoCE v2 over IPv4", RoceVersion::V2, from, to));
    }
    if arguments.roce == 1 {
        let last = ways.pop();
        ways.splice(0..0, last);
    }
    let mut runs = Vec::new();
    let mut bars = Vec::new();
    for (name, version, from, to) in ways {
        let frame = build(arguments, version, from, to)?;
        let run = show(&frame, vec![Choice::new("encapsulation", name)], Failure::Run)?;
        bars.push(Bar { name: name.into(), parts: costs(&frame)? });
        runs.push(run);
    }
    let bars = Bars { title: "Cost of the payload on the wire".into(), unit: "bytes", bars };
    Ok((runs, vec![Block::Bars(bars)]))
}

fn build(arguments: &Arguments, version: RoceVersion, from: IpAddr, to: IpAddr) -> Result<Vec<u8>, Failure> {
    let dest_qp = Qpn::new(arguments.qp);
    let template = Template::new(&FlowSpec {
        src_mac: [2, 0, 0, 0, 0, 1],
        dst_mac: [2, 0, 0, 0, 0, 2],
        vlan: arguments.vlan.map(|id| arguments.priority << 13 | id),
        src: Gid::from(from),
        dst: Gid::from(to),
        traffic_class: arguments.dscp << 2 | arguments.ecn,
        flow_label: 0,
        hop_limit: 64,
        source_port: entropy_port(Qpn::new(0x11), dest_qp),
        version,
    });
    let (opcode, info) = (arguments.opcode, arguments.opcode.info().expect("it was found in the table"));
    let carries = info.headers.offset_of(Headers::ATOMIC_ETH).is_none()
        && !matches!(
            opcode,
            Opcode::RC_ACKNOWLEDGE | Opcode::RC_ATOMIC_ACKNOWLEDGE | Opcode::CNP | Opcode::RC_READ_REQUEST
        );
    let length = if carries { usize::from(arguments.payload) } else { 0 };
    let ext = headers(info.headers, u32::from(arguments.payload)).ok_or_else(|| {
        Failure::Usage(format!(
            "--opcode {opcode}: the engine reads it and never sends it, so it builds none"
        ))
    })?;
    let bth = Bth {
        opcode,
        dest_qp,
        psn: Psn::new(arguments.psn),
        ack_req: !info.is_response(),
        pkey: 0xffff,
        ..Bth::default()
    };
    let mut room = [0; MAX_HEADERS];
    let at = template.write_headers(&mut room, &bth, &ext, length);
    let mut frame = vec![0; template.frame_len(opcode, length)];
    frame[..at].copy_from_slice(&room[..at]);
    (0..length).for_each(|i| frame[at + i] = i as u8);
    template.seal(&mut FrameMut { a: &mut frame, b: &mut [] });
    Ok(frame)
}

/// Returns extended headers of this set, with recognizable values.
fn headers(set: Headers, length: u32) -> Option<Ext> {
    let reth = Reth { va: 0x7f00_0000_1000, rkey: 0x1122_3344, dma_len: length };
    let (imm, aeth) = (0x0a0b_0c0d, Aeth { syndrome: 0x1f, msn: 1 });
    let atomic = AtomicEth { va: reth.va, rkey: reth.rkey, swap_or_add: 1, compare: 0 };
    let (deth, xrc) = (Deth { qkey: 0x1111_1111, src_qp: Qpn::new(0x11) }, XrcEth { srqn: 5 });
    let feth = Feth(1);
    let all = [
        Ext::None,
        Ext::Reth(reth),
        Ext::RethImm(reth, imm),
        Ext::Imm(imm),
        Ext::Ieth(reth.rkey),
        Ext::Aeth(aeth),
        Ext::AtomicAck(aeth, 41),
        Ext::Atomic(atomic),
        Ext::FlushReth(feth, reth),
        Ext::Deth(deth),
        Ext::DethImm(deth, imm),
        Ext::Xrc(xrc),
        Ext::XrcReth(xrc, reth),
        Ext::XrcRethImm(xrc, reth, imm),
        Ext::XrcImm(xrc, imm),
        Ext::XrcIeth(xrc, reth.rkey),
        Ext::XrcAtomic(xrc, atomic),
        Ext::XrcFlushReth(xrc, feth, reth),
    ];
    // A CNP has 16 reserved bytes.
    let set = if set == Headers::CNP_RESERVED { Headers::NONE } else { set };
    all.into_iter().find(|ext| ext.headers() == set)
}

fn from_hex(text: &str) -> Result<Vec<u8>, String> {
    let digits: String = text.chars().filter(|c| !c.is_whitespace() && *c != ':').collect();
    if let Some((at, wrong)) = digits.chars().enumerate().find(|(_, c)| !c.is_ascii_hexdigit()) {
        return Err(format!("--hex: `{wrong}` at digit {} is no hex digit", at + 1));
    }
    if !digits.len().is_multiple_of(2) {
        return Err(format!("--hex: {} digits are {} bytes and a half", digits.len(), digits.len() / 2));
    }
    let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).map_err(|e| e.to_string());
    (0..digits.len()).step_by(2).map(byte).collect()
}

fn from_capture(file: &Path, number: u64) -> Result<Vec<u8>, Failure> {
    let wrong = |why: String| Failure::Run(format!("{}: {why}", file.display()));
    let source = File::open(file).map_err(|e| wrong(format!("cannot open it: {e}")))?;
    let mut reader = Reader::new(source).map_err(|e| wrong(e.to_string()))?;
    let mut frames = 0;
    while let Some(record) = reader.next().map_err(|e| wrong(e.to_string()))? {
        frames = record.number;
        if record.number != number {
            continue;
        }
        if record.link_type != link_type::ETHERNET {
            return Err(wrong(format!(
                "frame {number} is of link type {}, not Ethernet (1)",
                record.link_type
            )));
        }
        if record.data.len() < record.wire_len {
            let (kept, all) = (record.data.len(), record.wire_len);
            return Err(wrong(format!("the capture kept {kept} of the {all} bytes of frame {number}")));
        }
        return Ok(record.data.to_vec());
    }
    Err(wrong(format!("it has {frames} frames, no frame {number}")))
}

fn show(frame: &[u8], choice: Vec<Choice>, wrong: fn(String) -> Failure) -> Result<Run, Failure> {
    let Layout { fields, packet, icrc } = fields(frame)
        .map_err(|drop| wrong(format!("{} bytes that a NIC drops unread: {drop}", frame.len())))?;
    let mut facts = Facts::default();
    let payload = packet.payload.len();
    facts.tell("frame_bytes", frame.len(), "bytes", "the frame, without preamble, FCS and gap");
    facts.tell("payload_bytes", payload, "bytes", "payload in it");
    facts.tell("overhead_bytes", frame.len() - payload, "bytes", "all that is not payload");
    facts.tell("bth_offset", packet.bth_offset, "bytes", "where the BTH begins");
    facts.tell("icrc_offset", packet.icrc_offset, "bytes", "where the ICRC begins");
    let covered = packet.icrc_offset - packet.l3_offset;
    let computed = roxie::wire::icrc::compute(&Frame::whole(frame), packet.l3_offset, packet.icrc_offset);
    facts.tell("icrc", format!("{computed:#010x}"), "", "the ICRC of its bytes");
    facts.tell("icrc_is", icrc.to_string(), "", "the parser's verdict on the ICRC in the frame");
    facts.tell("icrc_covers", covered, "bytes", "from the L3 header to the pad");
    let flips = flips(frame);
    facts.tell(
        "flips_refused_unread",
        flips.unread,
        "bits",
        "one of these flipped: the frame is no longer a RoCE packet",
    );
    facts.tell("flips_refused_by_icrc", flips.icrc, "bits", "one of these flipped: only the ICRC detects it");
    facts.tell("flips_unnoticed", flips.unnoticed, "bits", "one of these flipped: the packet is accepted");
    let title = format!("{} frame of {} bytes", packet.bth.opcode, frame.len());
    let rows = flips
        .unnoticed_fields(&fields)
        .into_iter()
        .map(|(name, bits)| vec![Value::from(name), Value::from(bits)]);
    let table = Table {
        title: "Fields in which a flipped bit goes unnoticed".into(),
        columns: vec!["field", "bits"],
        rows: rows.collect(),
        sum: false,
    };
    let bytes = Bytes { title, hex: hex(frame), fields: fields.iter().map(byte_field).collect() };
    let line = Block::Prose { text: format!("As `roxie decode` prints it: {packet}") };
    Ok(Run { choice, facts, blocks: vec![line, Block::Bytes(bytes), Block::Table(table)] })
}

pub(super) fn byte_field(field: &Field) -> ByteField {
    ByteField {
        header: field.header.into(),
        name: field.name.into(),
        bit: field.bit,
        bits: field.bits,
        value: field.value.clone(),
        about: field.about.into(),
        uncovered: field.uncovered,
    }
}

/// Effects of flipping each bit of the frame.
struct Flips {
    unread: usize,
    icrc: usize,
    unnoticed: usize,
    /// Bits that can change without any receiver noticing.
    bits: Vec<usize>,
}

fn flips(frame: &[u8]) -> Flips {
    let mut flips = Flips { unread: 0, icrc: 0, unnoticed: 0, bits: Vec::new() };
    let mut bytes = frame.to_vec();
    for bit in 0..frame.len() * 8 {
        bytes[bit / 8] ^= 0x80 >> (bit % 8);
        let whole = Frame::whole(&bytes);
        match parse(&whole).map(|packet| packet.check_icrc(&whole)) {
            Err(_) => flips.unread += 1,
            Ok(Icrc::Bad { .. }) => flips.icrc += 1,
            Ok(Icrc::Ok) => {
                flips.unnoticed += 1;
                flips.bits.push(bit);
            }
        }
        bytes[bit / 8] ^= 0x80 >> (bit % 8);
    }
    flips
}

impl Flips {
    fn unnoticed_fields(&self, fields: &[Field]) -> Vec<(String, usize)> {
        let count = |field: &Field| {
            let inside = |bit: &&usize| (field.bit..field.bit + field.bits).contains(*bit);
            self.bits.iter().filter(inside).count()
        };
        let named = fields.iter().map(|field| (format!("{} {}", field.header, field.name), count(field)));
        named.filter(|(_, bits)| *bits > 0).collect()
    }
}

/// Returns the bytes of each header, and those that Ethernet adds.
fn costs(frame: &[u8]) -> Result<Vec<Part>, Failure> {
    let layout = fields(frame).map_err(|drop| Failure::Run(drop.to_string()))?;
    let mut parts: Vec<Part> = Vec::new();
    for field in &layout.fields {
        let bytes = field.bits as f64 / 8.0;
        match parts.iter_mut().find(|part| part.name == field.header) {
            Some(part) => part.value += bytes,
            None => parts.push(Part::new(field.header, bytes)),
        }
    }
    let padding = roxie::wire::net::SHORTEST_FRAME.saturating_sub(frame.len());
    let around = f64::from(roxie::wire::net::ETHERNET_OVERHEAD) + padding as f64;
    parts.push(Part::new("preamble, FCS, gap", around));
    Ok(parts)
}
