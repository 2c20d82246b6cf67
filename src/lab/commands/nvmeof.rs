//! `roxie lab nvmeof`: one READ and one WRITE of blocks, over RDMA by the engine, and over TCP for comparison.

use clap::Args;
use roxie::time::Nanos;
use roxie::verbs::{Mtu, RKey, SendWr, WcStatus, WrOpcode};
use roxie::wire::net::{ETHERNET_OVERHEAD, SHORTEST_FRAME};
use roxie_lab_theory::nvme::{
    COMMAND, COMMAND_FIELDS, Command, Entry, Io, Pdu, RESPONSE, RESPONSE_FIELDS, over_tcp,
};
use roxie_report::failure::Failure;
use roxie_sim::Payload;
use serde_json::Value;

use super::document::{About, Bar, Bars, Block, ByteField, Bytes, Choice, Facts, Part, Run, Table, hex};
use super::film::{add, shots};
use super::stage::{Scene, Stage, block, micros};

pub(super) const ABOUT: About = About {
    name: "nvmeof",
    line: "blocks over a fabric: capsules, RDMA and copies, beside NVMe/TCP",
    see: &[
        "A host reads blocks: a SEND with the command capsule, a WRITE with the data from the controller straight into the host's memory, \
         a SEND with the response. Real packets of the engine, drawn from their captures.",
        "A host writes blocks: the controller fetches the data with a READ, when it has buffers for it.",
        "The same over TCP: PDUs in a stream, an R2T (ready to transfer) instead of the READ, and a copy by a \
         processor, because a stream does not carry the destination of its bytes.",
    ],
    change: &[
        "`--kb 1`: most packets are for the command and its response.",
        "`--kb 4 --in-capsule 4096`: a short WRITE over TCP needs no R2T.",
        "`--kb 256 --mtu 9000`: RDMA saves copies, but hardly any bytes.",
    ],
};

/// Read and write blocks over RDMA, packet by packet, beside NVMe/TCP
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  roxie lab nvmeof\n  roxie lab nvmeof --kb 64 --mtu 9000\n  roxie lab nvmeof --html nvmeof.html"
)]
pub(super) struct Arguments {
    /// Size of the transfer in kilobytes (1024), 1 to 512
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=512))]
    kb: u32,
    /// Link MTU, 576 to 9600 bytes
    #[arg(long, default_value_t = 1500, value_parser = clap::value_parser!(u16).range(576..=9600))]
    mtu: u16,
    /// Bytes that a WRITE over TCP may carry in its command
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=1_048_576))]
    in_capsule: u32,
}

/// Bytes of a block.
const BLOCK: u32 = 512;
/// Most data bytes of an NVMe/TCP PDU.
const PDU_DATA: usize = 131_072;
/// Bytes of Ethernet, IPv4 and TCP headers, with timestamps.
const AROUND_TCP: usize = 14 + 20 + 32;

/// Runs the lab.
pub(super) fn run(arguments: &Arguments) -> Result<(Vec<Run>, Vec<Block>), Failure> {
    let mut runs = Vec::new();
    for (name, io) in [("read", Io::Read), ("write", Io::Write)] {
        runs.push(over_rdma(arguments, name, io)?);
        runs.push(tcp(arguments, name, io));
    }
    let number = |run: &Run, name: &str| run.facts.number(name).unwrap_or(0.0);
    let bar = |run: &Run| Bar {
        name: format!("{} over {}", run.choice[1].value, run.choice[0].value),
        parts: vec![
            Part::new("blocks", number(run, "block_bytes")),
            Part::new("all else", number(run, "wire_bytes") - number(run, "block_bytes")),
        ],
    };
    let bars =
        Bars { title: "Bytes of the wire".into(), unit: "bytes", bars: runs.iter().map(bar).collect() };
    let facts = [
        ("packets", "packets"),
        ("bytes", "wire_bytes"),
        ("round trips", "round_trips"),
        ("bytes copied by processors", "copied_bytes"),
    ];
    let table = Table::of_runs("Side by side", &["transport", "operation"], &facts, &runs);
    Ok((runs, vec![Block::Table(table), Block::Bars(bars)]))
}

fn command(arguments: &Arguments, io: Io, address: u64, key: Option<u32>) -> Command {
    let length = arguments.kb * 1024;
    Command { io, id: 1, namespace: 1, block: 2048, blocks: (length / BLOCK) as u16, address, length, key }
}

/// Offset of the data in either end's memory, behind the capsules.
const DATA_AT: u64 = 4096;

fn over_rdma(arguments: &Arguments, name: &'static str, io: Io) -> Result<Run, Failure> {
    let link_mtu = usize::from(arguments.mtu);
    let path_mtu = Mtu::largest_for_link(link_mtu).ok_or_else(|| {
        Failure::Usage(format!("--mtu {link_mtu}: no path MTU of InfiniBand fits, which takes 344"))
    })?;
    let mut stage = Stage::new(&Scene { path_mtu, timeout: 18, ..Scene::default() })?;
    let length = arguments.kb * 1024;
    let command = command(arguments, io, stage.regions[0].address + DATA_AT, Some(stage.regions[0].key));
    let blocks: Vec<u8> = (0..length).map(|i| (i % 253) as u8).collect();
    let owner = if io == Io::Read { 1 } else { 0 };
    prepare(&mut stage, &command, owner, &blocks)?;
    let begin = Nanos::from_micros(10);
    stage.run(begin);
    let capsule = stage.regions[0].sge(0, COMMAND as u32);
    stage
        .post(&SendWr { opcode: WrOpcode::Send, wr_id: 1, ..SendWr::default() }, Payload::Sges(&[capsule]))?;
    let finished = converse(&mut stage, &command, io)?;
    stage.run(finished + Nanos::from_micros(20));
    let whole = stage.regions[1 - owner].bytes(DATA_AT, length as usize) == blocks;
    let (ladder, films) = stage.end()?;
    let shots = shots(&films[0])?;
    let mut parts = Vec::new();
    for shot in &shots {
        shot.layout.fields.iter().for_each(|field| add(&mut parts, field.header, field.bits as f64 / 8.0));
        let around = SHORTEST_FRAME.saturating_sub(shot.frame.len()) + ETHERNET_OVERHEAD as usize;
        add(&mut parts, "preamble, FCS, gap", around as f64);
    }
    let wire: f64 = parts.iter().map(|part| part.value).sum();
    let mut facts = Facts::default();
    facts.tell("block_bytes", length, "bytes", "of blocks");
    facts.tell("packets", shots.len(), "packets", "both ways");
    facts.tell(
        "packets_of_host",
        shots.iter().filter(|shot| shot.out).count(),
        "packets",
        "of them from the host",
    );
    facts.tell("wire_bytes", wire as u64, "bytes", "of the wire, gaps included");
    facts.tell("round_trips", if io == Io::Read { 1 } else { 2 }, "", "that one waits for the other");
    facts.tell(
        "copied_bytes",
        0,
        "bytes",
        "copied by the host's processor: the NIC puts each where it belongs",
    );
    facts.tell(
        "completed_us",
        micros(Nanos(finished.since(begin).0)),
        "us",
        "from the command until the host has the response",
    );
    facts.tell("data_is_whole", whole, "", "all blocks have arrived unchanged");
    let bars = Bars {
        title: "Use of the bytes on the wire".into(),
        unit: "bytes",
        bars: vec![Bar { name: name.into(), parts }],
    };
    let blocks = vec![
        block(&format!("{} KB {name}; requester: host, responder: controller", arguments.kb), ladder),
        entry("The command capsule", &command.to_bytes(), &COMMAND_FIELDS),
        entry("The response capsule", &command.response(1), &RESPONSE_FIELDS),
        Block::Bars(bars),
    ];
    Ok(Run { choice: vec![Choice::new("transport", "RDMA"), Choice::new("operation", name)], facts, blocks })
}

/// Writes the blocks into their owner's memory, and both capsules. Posts a receive for the other's capsule at each end.
fn prepare(stage: &mut Stage, command: &Command, owner: usize, blocks: &[u8]) -> Result<(), Failure> {
    let failed = |e: &dyn std::fmt::Debug| Failure::Run(format!("the memory of the run: {e:?}"));
    stage.regions[owner].memory.write(DATA_AT, blocks).map_err(|e| failed(&e))?;
    stage.regions[0].memory.write(0, &command.to_bytes()).map_err(|e| failed(&e))?;
    stage.regions[1].memory.write(512, &command.response(1)).map_err(|e| failed(&e))?;
    let receives = [stage.regions[0].sge(1024, RESPONSE as u32), stage.regions[1].sge(1024, COMMAND as u32)];
    for (n, sge) in receives.iter().enumerate() {
        let Stage { fabric, qps, .. } = &mut *stage;
        fabric.host(n).post_recv(&qps[n], 100, &[*sge])?;
    }
    Ok(())
}

/// Runs the controller until the host has its response. Returns that time.
fn converse(stage: &mut Stage, command: &Command, io: Io) -> Result<Nanos, Failure> {
    let limit = Nanos::from_millis(1_000);
    let data = stage.regions[1].sge(DATA_AT, command.length);
    let response = stage.regions[1].sge(512, RESPONSE as u32);
    let answer = SendWr { opcode: WrOpcode::Send, wr_id: 3, ..SendWr::default() };
    let (opcode, moves) = match io {
        Io::Read => (WrOpcode::Write, "the WRITE of the data"),
        Io::Write => (WrOpcode::Read, "the READ of the data"),
    };
    let moving = SendWr {
        opcode,
        wr_id: 2,
        remote_addr: command.address,
        rkey: RKey(command.key.unwrap_or(0)),
        ..SendWr::default()
    };
    loop {
        let Stage { fabric, qps, .. } = &mut *stage;
        while let Some(wc) = fabric.hosts()[1].poll_cq(&qps[1]) {
            if wc.status != WcStatus::Success {
                return Err(Failure::Run(format!("{moves} or a capsule ended with {}", wc.status)));
            }
            // The command has arrived, or the data of a WRITE has been fetched.
            if wc.wr_id == 100 {
                fabric.host(1).post_send(&qps[1], &moving, Payload::Sges(&[data]))?;
                if io == Io::Read {
                    // RC is in order: no need to wait for the data first.
                    fabric.host(1).post_send(&qps[1], &answer, Payload::Sges(&[response]))?;
                }
            } else if wc.wr_id == 2 && io == Io::Write {
                fabric.host(1).post_send(&qps[1], &answer, Payload::Sges(&[response]))?;
            }
        }
        while let Some(wc) = fabric.hosts()[0].poll_cq(&qps[0]) {
            if wc.status != WcStatus::Success {
                return Err(Failure::Run(format!("a capsule ended with {}", wc.status)));
            }
            if wc.wr_id == 100 {
                return Ok(fabric.now());
            }
        }
        if fabric.step(limit).is_none() {
            return Err(Failure::Run("no response in a second of virtual time".into()));
        }
    }
}

fn tcp(arguments: &Arguments, name: &'static str, io: Io) -> Run {
    let length = arguments.kb * 1024;
    let command = command(arguments, io, 0, None);
    let pdus = over_tcp(&command, &vec![0; length as usize], arguments.in_capsule as usize, PDU_DATA);
    let mss = usize::from(arguments.mtu) - 52;
    // Consecutive PDUs of one side share segments, up to the other side's answer.
    let (mut packets, mut wire, mut at) = (0, 0, 0);
    while at < pdus.len() {
        let side = pdus[at].from_host;
        let run = pdus[at..].iter().take_while(|pdu| pdu.from_host == side).count();
        let bytes: usize = pdus[at..at + run].iter().map(|pdu| pdu.bytes.len()).sum();
        let segments = bytes.div_ceil(mss);
        // Every second segment is acknowledged. The other side's answer carries the last acknowledgement.
        let acknowledgements = (segments - 1) / 2 + usize::from(at + run == pdus.len());
        packets += segments + acknowledgements;
        wire += bytes + segments * (AROUND_TCP + ETHERNET_OVERHEAD as usize);
        wire += acknowledgements * (AROUND_TCP + ETHERNET_OVERHEAD as usize);
        at += run;
    }
    let asked = pdus.iter().any(|pdu| pdu.name == "R2T");
    let mut facts = Facts::default();
    facts.tell("block_bytes", length, "bytes", "of blocks");
    facts.tell("pdus", pdus.len(), "", "PDUs");
    facts.tell("packets", packets, "packets", "in both directions, with a pure ACK for every second segment");
    facts.tell("wire_bytes", wire, "bytes", "of the wire, gaps included");
    facts.tell("round_trips", if asked { 2 } else { 1 }, "", "that one waits for the other");
    facts.tell(
        "copied_bytes",
        length,
        "bytes",
        "copied by a processor at the end that receives them: from the stream to where they belong",
    );
    let rows = pdus.iter().map(|pdu: &Pdu| {
        let from = if pdu.from_host { "host" } else { "controller" };
        vec![Value::from(pdu.name), from.into(), (pdu.bytes.len() - pdu.data).into(), pdu.data.into()]
    });
    let table = Table {
        title: "PDUs".into(),
        columns: vec!["PDU", "from", "headers", "blocks"],
        rows: rows.collect(),
        sum: false,
    };
    let mut fields = vec![
        field("common header", "type", 0, 1, &pdus[0].bytes, "4: command capsule"),
        field("common header", "flags", 1, 1, &pdus[0].bytes, "digests, last PDU"),
        field("common header", "header length", 2, 1, &pdus[0].bytes, ""),
        field("common header", "data offset", 3, 1, &pdus[0].bytes, "0: no data in it"),
        field("common header", "length", 4, 4, &pdus[0].bytes, "of all of it"),
    ];
    fields.extend(
        COMMAND_FIELDS
            .map(|(at, count, name, about)| field("command", name, 8 + at, count, &pdus[0].bytes, about)),
    );
    let bytes = Bytes { title: "The first PDU".into(), hex: hex(&pdus[0].bytes[..8 + COMMAND]), fields };
    let blocks = vec![Block::Table(table), Block::Bytes(bytes)];
    Run { choice: vec![Choice::new("transport", "TCP"), Choice::new("operation", name)], facts, blocks }
}

fn entry(title: &str, bytes: &[u8], entries: &[Entry]) -> Block {
    let fields =
        entries.iter().map(|(at, count, name, about)| field("entry", name, *at, *count, bytes, about));
    Block::Bytes(Bytes { title: title.into(), hex: hex(bytes), fields: fields.collect() })
}

/// Returns a little-endian field.
fn field(header: &str, name: &str, at: usize, count: usize, bytes: &[u8], about: &str) -> ByteField {
    let digits = hex(&bytes[at..at + count]);
    let value = match count {
        1..=8 => {
            let number = bytes[at..at + count].iter().rev().fold(0u64, |n, byte| n << 8 | u64::from(*byte));
            if count >= 4 && number > 0xffff { format!("{number:#x}") } else { number.to_string() }
        }
        _ if digits.chars().all(|c| c == '0') => "0".into(),
        _ => digits,
    };
    ByteField {
        header: header.into(),
        name: name.into(),
        bit: 8 * at,
        bits: 8 * count,
        value,
        about: about.into(),
        uncovered: false,
    }
}
