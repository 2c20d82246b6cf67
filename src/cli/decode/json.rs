//! Writes one JSON object a packet. Keys are the specification's names of the header fields.

use std::io::{self, Write};

use roxie::capture::{Direction, Record};
use roxie::wire::display::Mac;
use roxie::wire::{Aeth, AtomicEth, Drop, Icrc, NetHeader, Packet, Reth, Syndrome, credits, rnr_timer_ns};
use roxie_report::decoded::layers::Layer;
use roxie_report::decoded::mad::Mad;
use roxie_report::decoded::{Decoded, Verdict, udp_checksum_name};
use roxie_report::decoded::{nfs, nvme};
use roxie_report::formats;
use serde::Serialize;
use serde_json::{Value, json};

/// A packet's JSON object. Fields without a value are left out.
#[derive(Serialize)]
struct Row<'a> {
    version: u32,
    number: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    timestamp_ns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    direction: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    comment: Option<&'a str>,
    opcode: u8,
    opcode_name: String,
    psn: u32,
    dest_qp: u32,
    icrc: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    icrc_stored: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    icrc_computed: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
    se: bool,
    mig: bool,
    pad: u8,
    tver: u8,
    pkey: u16,
    fecn: bool,
    becn: bool,
    reserved6: u8,
    ackreq: bool,
    reserved7: u8,
    #[serde(flatten)]
    ext: Ext,
    #[serde(flatten)]
    network: Network,
    frame_len: usize,
    captured_len: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    segments: Option<SegmentsRow>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mad: Option<Mad>,
    #[serde(skip_serializing_if = "Option::is_none")]
    nvme: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    nfs: Option<Value>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    inside: Vec<Value>,
}

/// Extended headers, as the opcode table lists them for the packet's opcode.
#[derive(Default, Serialize)]
struct Ext {
    #[serde(skip_serializing_if = "Option::is_none")]
    rdeth: Option<RdethRow>,
    #[serde(skip_serializing_if = "Option::is_none")]
    deth: Option<DethRow>,
    #[serde(skip_serializing_if = "Option::is_none")]
    xrceth: Option<XrcethRow>,
    #[serde(skip_serializing_if = "Option::is_none")]
    feth: Option<FethRow>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reth: Option<RethRow>,
    #[serde(skip_serializing_if = "Option::is_none")]
    atomic_eth: Option<AtomicRow>,
    #[serde(skip_serializing_if = "Option::is_none")]
    aeth: Option<AethRow>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sack: Option<SackRow>,
    #[serde(skip_serializing_if = "Option::is_none")]
    atomic_ack: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    imm: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ieth: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_len: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_offset: Option<usize>,
}

#[derive(Serialize)]
struct RdethRow {
    eec: u32,
}

#[derive(Serialize)]
struct DethRow {
    qkey: u32,
    src_qp: u32,
}

#[derive(Serialize)]
struct XrcethRow {
    srqn: u32,
}

#[derive(Serialize)]
struct FethRow {
    plt: u8,
    sel: u8,
}

#[derive(Serialize)]
struct RethRow {
    va: u64,
    rkey: u32,
    dma_len: u32,
}

#[derive(Serialize)]
struct AtomicRow {
    va: u64,
    rkey: u32,
    swap_or_add: u64,
    compare: u64,
}

#[derive(Serialize)]
struct AethRow {
    syndrome: u8,
    kind: &'static str,
    msn: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    credits: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rnr_timer_ns: Option<u64>,
}

/// A selective acknowledgement.
#[derive(Serialize)]
struct SackRow {
    /// Number of PSNs that the bitmap describes.
    count: u8,
    /// PSN of the packet that came last.
    latest: u32,
    /// Number of PSNs that are asked for.
    missing: u32,
    /// In hexadecimal; bit 0 is the packet's PSN.
    bitmap: String,
}

#[derive(Serialize)]
struct SegmentsRow {
    count: usize,
    len: usize,
    last_psn: u32,
}

/// Ethernet, IP and UDP headers.
#[derive(Serialize)]
struct Network {
    roce_version: u8,
    src: String,
    dst: String,
    src_mac: String,
    dst_mac: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    outer_vlan: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    vlan: Option<u16>,
    traffic_class: u8,
    hop_limit: u8,
    #[serde(skip_serializing_if = "Option::is_none")]
    ip_id: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ip_df: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ip_checksum: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    flow_label: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    udp_sport: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    udp_len: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    udp_checksum: Option<&'static str>,
}

/// Writes the packet's object and a newline.
pub(super) fn write(out: &mut dyn Write, d: &Decoded<'_>) -> io::Result<()> {
    let bth = &d.envelope.bth;
    let (icrc, icrc_computed, icrc_stored) = match d.icrc {
        Verdict::Checked(Icrc::Ok) => ("ok", None, None),
        Verdict::Checked(Icrc::Bad { computed, stored }) => ("bad", Some(computed), Some(stored)),
        Verdict::None => ("none", None, None),
    };
    let row = Row {
        version: formats::DECODE,
        number: d.record.number,
        timestamp_ns: d.record.timestamp_ns,
        direction: d.record.direction.map(|way| match way {
            Direction::In => "in",
            Direction::Out => "out",
        }),
        comment: d.record.comment,
        opcode: bth.opcode.0,
        opcode_name: bth.opcode.to_string(),
        psn: bth.psn.value(),
        dest_qp: bth.dest_qp.value(),
        icrc,
        icrc_stored,
        icrc_computed,
        problem: d.problem.map(|reason| reason.to_string()),
        se: bth.solicited,
        mig: bth.mig_req,
        pad: bth.pad,
        tver: bth.tver,
        pkey: bth.pkey,
        fecn: bth.fecn,
        becn: bth.becn,
        reserved6: bth.reserved6,
        ackreq: bth.ack_req,
        reserved7: bth.reserved7,
        ext: d.packet.as_ref().map(|packet| Ext::new(packet, d.removed)).unwrap_or_default(),
        network: Network::new(d),
        frame_len: d.record.wire_len,
        captured_len: d.record.data.len(),
        segments: d.segments.as_ref().map(|s| SegmentsRow {
            count: s.count,
            len: s.len,
            last_psn: s.last_psn.value(),
        }),
        mad: d.mad(),
        nvme: d.nvme.as_ref().map(nvme::Role::to_json),
        nfs: d.nfs.as_ref().map(nfs::Role::to_json),
        inside: d.layers.iter().map(Layer::as_json).collect(),
    };
    writeln!(out, "{}", formats::text(&row)?)
}

/// Writes the object of a frame that claims to be RoCE but is malformed.
pub(super) fn write_malformed(out: &mut dyn Write, record: &Record<'_>, reason: &Drop) -> io::Result<()> {
    write_without_packet(out, record, "malformed", &reason.to_string())
}

/// Writes the object of a frame that may carry RoCE behind a header that is not decoded.
pub(super) fn write_unread(out: &mut dyn Write, record: &Record<'_>, kind: &str) -> io::Result<()> {
    write_without_packet(out, record, "not_decoded", kind)
}

fn write_without_packet(out: &mut dyn Write, record: &Record<'_>, key: &str, why: &str) -> io::Result<()> {
    let mut row = json!({ "version": formats::DECODE, "number": record.number, key: why,
                          "frame_len": record.wire_len, "captured_len": record.data.len() });
    if let Some(ns) = record.timestamp_ns {
        row["timestamp_ns"] = ns.into();
    }
    writeln!(out, "{}", formats::text(&row)?)
}

impl Ext {
    fn new(p: &Packet, removed: usize) -> Ext {
        Ext {
            rdeth: p.rdeth().map(|eec| RdethRow { eec }),
            deth: p.deth().map(|d| DethRow { qkey: d.qkey, src_qp: d.src_qp.value() }),
            xrceth: p.xrceth().map(|x| XrcethRow { srqn: x.srqn }),
            feth: p.feth().map(|f| FethRow { plt: f.placement(), sel: f.selectivity() }),
            reth: p.reth().map(|Reth { va, rkey, dma_len }| RethRow { va, rkey, dma_len }),
            atomic_eth: p.atomic_eth().map(|AtomicEth { va, rkey, swap_or_add, compare }| AtomicRow {
                va,
                rkey,
                swap_or_add,
                compare,
            }),
            aeth: p.aeth().map(AethRow::new),
            sack: p.sack().map(|sack| SackRow {
                count: sack.count,
                latest: sack.latest.value(),
                missing: sack.missing(),
                bitmap: format!("{:032x}", sack.bitmap),
            }),
            atomic_ack: p.atomic_ack(),
            imm: p.imm(),
            ieth: p.ieth(),
            payload_len: Some(p.payload.len()),
            payload_offset: Some(p.payload.start + removed),
        }
    }
}

impl AethRow {
    fn new(aeth: Aeth) -> AethRow {
        let (kind, credit_code, timer) = match aeth.kind() {
            kind @ Syndrome::Ack { credits } => (kind, Some(credits), None),
            kind @ Syndrome::RnrNak { timer } => (kind, None, Some(timer)),
            kind => (kind, None, None),
        };
        AethRow {
            syndrome: aeth.syndrome,
            kind: kind.name(),
            msn: aeth.msn,
            credits: credit_code.and_then(credits),
            rnr_timer_ns: timer.map(rnr_timer_ns),
        }
    }
}

impl Network {
    fn new(d: &Decoded<'_>) -> Network {
        let e = &d.envelope;
        let (roce_version, v4, v6) = match e.net {
            NetHeader::Ipv4(h) => (2, Some(h), None),
            NetHeader::Ipv6(h) => (2, None, Some(h)),
            NetHeader::Grh(h) => (1, None, Some(h)),
        };
        Network {
            roce_version,
            src: e.source_gid().to_ip().to_string(),
            dst: e.dest_gid().to_ip().to_string(),
            src_mac: Mac(e.src_mac).to_string(),
            dst_mac: Mac(e.dst_mac).to_string(),
            outer_vlan: e.outer_vlan,
            vlan: e.vlan,
            traffic_class: e.traffic_class(),
            hop_limit: v4.map(|h| h.ttl).or(v6.map(|h| h.hop_limit)).unwrap_or(0),
            ip_id: v4.map(|h| h.id),
            ip_df: v4.map(|h| h.dont_fragment),
            ip_checksum: v4.map(|h| if h.checksum_ok { "valid" } else { "bad" }),
            flow_label: v6.map(|h| h.flow_label),
            udp_sport: e.udp.map(|u| u.source_port),
            udp_len: e.udp.map(|u| u.len),
            udp_checksum: e.udp_checksum(&d.frame).map(udp_checksum_name),
        }
    }
}
