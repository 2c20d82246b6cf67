//! RPC over RDMA in a capture: names the calls of NFS, the data that moves for them, and replies.
//!
//! A connection carries RPC if its CM REQ asks for port 20049, or for any port, once a message has a valid header whose
//! XID is that of the RPC call behind it. Packets of connections that were made before the capture began are not named.

use std::collections::HashMap;
use std::fmt;
use std::io::{self, Write};
use std::net::IpAddr;

use roxie::frame::Frame;
use roxie::wire::cm::{CmMessage, CommId};
use roxie::wire::{Opcode, Operation, Packet, Position, Qpn, Service};
use roxie_messages::nfs::nfs3::{self, Arguments, Status, procedure};
use roxie_messages::nfs::rpc::{Call, Outcome, Reply};
use roxie_messages::nfs::rpcrdma::{Body, Chunks, Header, Segment, length};
use roxie_messages::nfs::xdr::Reader;
use roxie_messages::nfs::{PORT, mount};
use serde_json::{Value, json};

use super::mad::Mad;

/// Most connections that are followed.
const MOST_CONNECTIONS: usize = 1024;
/// Most calls of a connection without a reply that are followed, and of all connections.
const MOST_CALLS: usize = 4096;
const MOST_CALLS_IN_ALL: usize = 1 << 14;
/// Bytes of a name that are kept.
const LONGEST_NAME: usize = 128;
/// Bytes of a message that are looked at: the largest that Linux sends.
const LOOKED_AT: usize = 4096;

/// Connections between clients and servers, as far as a capture has shown them.
#[derive(Debug, Default)]
pub struct Files {
    connections: Vec<Connected>,
}

/// A reliable connection.
#[derive(Debug)]
struct Connected {
    client: IpAddr,
    server: IpAddr,
    /// Communication ID of the client, which the REP repeats.
    comm_id: CommId,
    to_client: Qpn,
    /// QP of the server; `None` before the REP.
    to_server: Option<Qpn>,
    /// The connection carries RPC.
    is_certain: bool,
    /// Calls without a reply yet, by XID.
    calls: HashMap<u32, Sent>,
}

/// Fields of a call that a capture shows.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Sent {
    name: String,
    /// Of NFS version 3.
    procedure: Option<u32>,
    /// Arguments that a line shows.
    about: String,
    /// Keys of the chunks.
    keys: Vec<u32>,
}

/// Role of a packet in a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Role {
    xid: u32,
    part: Part,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    /// First packet of the call.
    Call { header: Header, call: Sent },
    /// First packet of a READ or WRITE of the call's memory.
    Data(Operation, Sent),
    /// First packet of the reply.
    Reply {
        header: Header,
        outcome: Option<Outcome>,
        /// Status of NFS, if the call was executed.
        status: Option<Status>,
        /// The call; `None` if the capture did not show it.
        call: Option<Sent>,
        /// The packet invalidates an R_Key.
        invalidates: bool,
    },
}

impl Files {
    /// Returns what the next packet of the capture does for a call. `None`: it is of no known connection, or no first
    /// packet of a message.
    pub(super) fn follow(&mut self, packet: &Packet, frame: &Frame<'_>) -> Option<Role> {
        let (src, dst) = (packet.source_gid().to_ip(), packet.dest_gid().to_ip());
        if let Some(mad) = Mad::read(packet, frame) {
            self.manage(mad.message()?, src, dst);
            return None;
        }
        let info = packet.info();
        let begins = matches!(info.position, Position::First | Position::Only);
        if info.service != Service::Rc || !begins {
            return None;
        }
        let qp = packet.bth.dest_qp;
        match info.operation {
            Operation::Send => {
                let mut bytes = [0; LOOKED_AT];
                let length = frame.copy_to(packet.payload.start, &mut bytes).min(packet.payload.len());
                let bytes = bytes.get(..length)?;
                let outstanding: usize = self.connections.iter().map(|connected| connected.calls.len()).sum();
                let towards = |connected: &&mut Connected| {
                    (connected.client, connected.server, connected.to_server) == (src, dst, Some(qp))
                };
                if let Some(connected) = self.connections.iter_mut().find(towards) {
                    return connected.call(bytes, outstanding < MOST_CALLS_IN_ALL);
                }
                let back = |connected: &&mut Connected| {
                    (connected.server, connected.client, connected.to_client) == (src, dst, qp)
                };
                let connected = self.connections.iter_mut().find(back)?;
                connected.reply(bytes, packet.bth.opcode == Opcode::RC_SEND_ONLY_INVALIDATE)
            }
            operation @ (Operation::Write | Operation::ReadRequest) => {
                let key = packet.reth()?.rkey;
                let of_client = |connected: &&Connected| {
                    (connected.server, connected.client, connected.to_client) == (src, dst, qp)
                };
                let connected = self.connections.iter().find(of_client)?;
                let (xid, call) = connected.calls.iter().find(|(_, call)| call.keys.contains(&key))?;
                Some(Role { xid: *xid, part: Part::Data(operation, call.clone()) })
            }
            _ => None,
        }
    }

    /// Takes a message of connection management.
    fn manage(&mut self, message: &CmMessage, src: IpAddr, dst: IpAddr) {
        match message {
            CmMessage::Req(req) => {
                let Some((_, port)) = req.service_id.port() else { return };
                let (comm_id, to_client) = (req.local_comm_id, req.local_qpn);
                // A number that is used again is of a new connection.
                self.connections.retain(|old| (old.client, old.server, old.comm_id) != (src, dst, comm_id));
                if self.connections.len() < MOST_CONNECTIONS {
                    self.connections.push(Connected {
                        client: src,
                        server: dst,
                        comm_id,
                        to_client,
                        to_server: None,
                        is_certain: port == PORT,
                        calls: HashMap::new(),
                    });
                }
            }
            CmMessage::Rep(rep) => {
                let asked = |connected: &&mut Connected| {
                    (connected.client, connected.server, connected.comm_id) == (dst, src, rep.remote_comm_id)
                };
                if let Some(connected) = self.connections.iter_mut().find(asked) {
                    connected.to_server = Some(rep.local_qpn);
                }
            }
            _ => {}
        }
    }
}

impl Connected {
    fn call(&mut self, bytes: &[u8], has_room: bool) -> Option<Role> {
        let (header, message) = Header::parse(bytes).ok()?;
        let xid = header.xid;
        let call = match &header.body {
            Body::Message(_) => match Call::parse(message) {
                Ok((call, mut arguments)) if call.xid == xid => {
                    self.is_certain |= call.rpc_version == roxie_messages::nfs::rpc::VERSION;
                    Sent::new(&call, &mut arguments, &header)
                }
                _ => return None,
            },
            // The call is in memory that the server reads.
            Body::NoMessage(_) => {
                Sent { name: "call".into(), procedure: None, about: String::new(), keys: keys(&header) }
            }
            _ => return None,
        };
        if !self.is_certain {
            return None;
        }
        if has_room && self.calls.len() < MOST_CALLS {
            self.calls.insert(xid, call.clone());
        }
        Some(Role { xid, part: Part::Call { header, call } })
    }

    fn reply(&mut self, bytes: &[u8], invalidates: bool) -> Option<Role> {
        if !self.is_certain {
            return None;
        }
        let (header, message) = Header::parse(bytes).ok()?;
        let xid = header.xid;
        let (mut outcome, mut status) = (None, None);
        let call = self.calls.remove(&xid);
        if let (Body::Message(_), Ok((reply, mut results))) = (&header.body, Reply::parse(message)) {
            outcome = Some(reply.outcome).filter(|_| reply.xid == xid);
            let has_status = call.as_ref().and_then(|call| call.procedure) != Some(procedure::NULL);
            if outcome == Some(Outcome::Success)
                && has_status
                && call.as_ref().is_some_and(|call| call.procedure.is_some())
            {
                status = results.u32().ok().map(Status);
            }
        }
        Some(Role { xid, part: Part::Reply { header, outcome, status, call, invalidates } })
    }
}

fn keys(header: &Header) -> Vec<u32> {
    let of = |chunks: &Chunks| {
        let reads = chunks.reads.iter().map(|read| read.segment.handle);
        let others = chunks.writes.iter().chain(&chunks.reply).flatten().map(|segment| segment.handle);
        reads.chain(others).collect()
    };
    header.chunks().map(of).unwrap_or_default()
}

impl Sent {
    fn new(call: &Call<'_>, reader: &mut Reader<'_>, header: &Header) -> Sent {
        let (mut number, mut about) = (None, String::new());
        let name = match ((call.program, call.version), call.procedure) {
            (nfs3::PROGRAM, number_of) => {
                number = Some(number_of);
                if let Ok(Some(arguments)) = Arguments::parse(number_of, reader) {
                    about = shown(&arguments, header.chunks().is_none_or(Chunks::is_empty));
                }
                let name = procedure::name(number_of).map_or_else(|| number_of.to_string(), str::to_owned);
                format!("NFS3 {name}")
            }
            (mount::PROGRAM, number_of) => format!("MOUNT3 procedure {number_of}"),
            ((program, version), number_of) => {
                format!("program {program} version {version} procedure {number_of}")
            }
        };
        Sent { name, procedure: number, about, keys: keys(header) }
    }
}

/// Returns arguments that a line shows. `is_inline`: no chunk tells the number of bytes.
fn shown(arguments: &Arguments<'_>, is_inline: bool) -> String {
    let name = |name: &[u8]| {
        let (kept, more) =
            (&name[..name.len().min(LONGEST_NAME)], if name.len() > LONGEST_NAME { "..." } else { "" });
        format!(" \"{}{more}\"", kept.escape_ascii())
    };
    match arguments {
        Arguments::Lookup { name: of, .. } | Arguments::Create { name: of, .. } => name(of),
        Arguments::Read { offset, count, .. } | Arguments::Write { offset, count, .. } => {
            let bytes = if is_inline { format!(", {}", bytes(u64::from(*count))) } else { String::new() };
            format!("{bytes}, offset {offset}")
        }
        Arguments::ReadDir { cookie, .. } | Arguments::ReadDirPlus { cookie, .. } => {
            format!(", cookie {cookie}")
        }
        _ => String::new(),
    }
}

/// Returns a number of bytes, in KiB if it is a multiple: `64 KiB`, `1000 B`.
fn bytes(count: u64) -> String {
    if count > 0 && count.is_multiple_of(1024) {
        format!("{} KiB", count >> 10)
    } else {
        format!("{count} B")
    }
}

/// Writes the chunks of a header: `, write chunk 64 KiB`.
fn write_chunks(chunks: &Chunks, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let read: u64 = chunks.reads.iter().map(|read| u64::from(read.segment.length)).sum();
    if !chunks.reads.is_empty() {
        write!(f, ", read chunk {}", bytes(read))?;
    }
    for chunk in &chunks.writes {
        write!(f, ", write chunk {}", bytes(length(chunk)))?;
    }
    match &chunks.reply {
        Some(chunk) => write!(f, ", reply chunk {}", bytes(length(chunk))),
        None => Ok(()),
    }
}

/// One line: `RPC NFS3 READ xid 0x7, write chunk 64 KiB, offset 0`, `WRITE of NFS3 READ data, xid 0x7`, `RPC NFS3 READ
/// xid 0x7: success`.
impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let xid = self.xid;
        match &self.part {
            Part::Call { header, call } => {
                write!(f, "RPC {} xid {xid:#x}", call.name)?;
                header.chunks().map_or(Ok(()), |chunks| write_chunks(chunks, f))?;
                f.write_str(&call.about)
            }
            Part::Data(operation, call) => {
                let verb = if *operation == Operation::Write { "WRITE" } else { "READ" };
                write!(f, "{verb} of {} data, xid {xid:#x}", call.name)
            }
            Part::Reply { header, call, invalidates, .. } => {
                let name = call.as_ref().map_or("reply", |call| &call.name);
                write!(f, "RPC {name} xid {xid:#x}: {}", self.result())?;
                header.chunks().map_or(Ok(()), |chunks| write_chunks(chunks, f))?;
                f.write_str(if *invalidates { ", R_Key invalidated" } else { "" })
            }
        }
    }
}

impl Role {
    /// Returns the result of a call, in words.
    fn result(&self) -> String {
        let Part::Reply { header, outcome, status, .. } = &self.part else { return String::new() };
        match (&header.body, outcome, status) {
            (Body::WrongVersion { .. } | Body::WrongChunk, ..) => error(&header.body).to_owned(),
            (_, Some(Outcome::Success), Some(status)) => status.to_string(),
            (_, Some(outcome), _) => outcome.to_string(),
            // The message is in the reply chunk.
            (Body::NoMessage(_), None, _) => "long reply".to_owned(),
            _ => "a reply".to_owned(),
        }
    }

    /// Writes all fields of the header and the message.
    pub(super) fn write_full(&self, out: &mut dyn Write) -> io::Result<()> {
        let (header, about) = match &self.part {
            Part::Data(..) => return Ok(()),
            Part::Call { header, call } => (header, format!("call {}{}", call.name, call.about)),
            Part::Reply { header, call, .. } => {
                let name = call.as_ref().map_or("of an unknown call", |call| &call.name);
                (header, format!("reply {name}: {}", self.result()))
            }
        };
        let kind = kind(&header.body);
        write!(out, "  RPC-over-RDMA xid {:#x} version 1 credits {} {kind}", header.xid, header.credits)?;
        let segment = |of: &Segment| format!("{:#x}+{} key {:#x}", of.offset, of.length, of.handle);
        let list = |chunk: &[Segment]| chunk.iter().map(segment).collect::<Vec<_>>().join(", ");
        if let Some(chunks) = header.chunks() {
            for read in &chunks.reads {
                write!(out, ", read at {} [{}]", read.position, segment(&read.segment))?;
            }
            for chunk in &chunks.writes {
                write!(out, ", write [{}]", list(chunk))?;
            }
            if let Some(chunk) = &chunks.reply {
                write!(out, ", reply [{}]", list(chunk))?;
            }
        }
        writeln!(out, "\n  RPC {about}")
    }

    /// Returns the object of a JSON row.
    pub fn to_json(&self) -> Value {
        let (kind_of, header, call) = match &self.part {
            Part::Call { header, call } => ("call", Some(header), Some(call)),
            Part::Data(_, call) => ("data", None, Some(call)),
            Part::Reply { header, call, .. } => ("reply", Some(header), call.as_ref()),
        };
        let mut object = json!({ "kind": kind_of, "xid": self.xid });
        if let Some(call) = call {
            object["call"] = call.name.as_str().into();
        }
        if let Some(header) = header {
            object["type"] = kind(&header.body).into();
            object["credits"] = header.credits.into();
            if let Some(chunks) = header.chunks() {
                let lengths: Vec<u64> = chunks.writes.iter().map(|chunk| length(chunk)).collect();
                let reads: u64 = chunks.reads.iter().map(|read| u64::from(read.segment.length)).sum();
                object["read_bytes"] = reads.into();
                object["write_chunk_bytes"] = lengths.into();
                object["reply_chunk_bytes"] = chunks.reply.as_ref().map(|chunk| length(chunk)).into();
            }
        }
        if let Part::Reply { status, invalidates, .. } = &self.part {
            object["status"] = status.map(|status| status.0).into();
            object["status_text"] = self.result().into();
            object["invalidates"] = (*invalidates).into();
        }
        object
    }
}

fn kind(body: &Body) -> &'static str {
    match body {
        Body::Message(_) => "RDMA_MSG",
        Body::NoMessage(_) => "RDMA_NOMSG",
        Body::WrongVersion { .. } | Body::WrongChunk => "RDMA_ERROR",
    }
}

fn error(body: &Body) -> &'static str {
    match body {
        Body::WrongVersion { .. } => "ERR_VERS (another version of RPC-over-RDMA)",
        _ => "ERR_CHUNK (the chunks cannot be used)",
    }
}
