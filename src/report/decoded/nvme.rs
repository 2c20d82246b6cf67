//! NVMe over Fabrics in a capture: names commands, the data that a controller moves for them, and responses.
//!
//! Nothing in a packet says that it carries NVMe, on any port. A connection does once its host has sent a Connect, the
//! first command on every queue; packets of connections that were made before the capture began are not named.

use std::collections::HashMap;
use std::io::{self, Write};
use std::net::IpAddr;

use roxie::frame::Frame;
use roxie::wire::{Opcode, Operation, Packet, Position, Qpn, Service};
use roxie_messages::nvme::command::{self, Command, fabrics};
use roxie_messages::nvme::connect::{self, Connect};
use roxie_messages::nvme::response::{self, Response};
use roxie_messages::nvme::sgl::Sgl;
use serde_json::{Value, json};

/// Most queues that are followed.
const MOST_QUEUES: usize = 1024;
/// Most commands of a queue that are followed, and of all queues: the longest queue of Linux's initiator is 1024.
const MOST_COMMANDS: usize = 4096;
const MOST_COMMANDS_IN_ALL: usize = 1 << 16;

/// Queues between hosts and controllers, as far as a capture has shown them.
#[derive(Debug, Default)]
pub struct Storage {
    queues: Vec<Queue>,
}

/// A queue: a reliable connection of its own.
#[derive(Debug)]
struct Queue {
    host: IpAddr,
    controller: IpAddr,
    /// QP of the controller, to which commands go.
    to_controller: Qpn,
    /// QP of the host; `None` until a response went there.
    to_host: Option<Qpn>,
    is_admin: bool,
    /// Commands without a response yet, by identifier.
    commands: HashMap<u16, Command>,
}

/// What a packet does for a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Role {
    /// The queue is an admin queue.
    is_admin: bool,
    part: Part,
}

/// Part of a command's exchange that a packet begins or is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    /// The packet begins the command capsule.
    Command(Command),
    /// The packet begins a READ or WRITE of the command's memory.
    Data(Operation, Command),
    /// The packet is the response capsule.
    Response {
        response: Response,
        /// The command; `None` if the capture did not show it.
        command: Option<Command>,
        /// The packet invalidates an R_Key.
        invalidates: bool,
    },
}

impl Storage {
    /// Returns what the next packet of the capture does for a command. `None`: it is of no known queue, or no first
    /// packet of a message.
    pub fn follow(&mut self, packet: &Packet, frame: &Frame<'_>) -> Option<Role> {
        let info = packet.info();
        let begins = matches!(info.position, Position::First | Position::Only);
        if info.service != Service::Rc || !begins {
            return None;
        }
        let (src, dst) = (packet.source_gid().to_ip(), packet.dest_gid().to_ip());
        let qp = packet.bth.dest_qp;
        match info.operation {
            Operation::Send => {
                let mut bytes = [0; command::LENGTH];
                let length = frame.copy_to(packet.payload.start, &mut bytes).min(packet.payload.len());
                self.follow_capsule(packet, (src, dst, qp), bytes.get(..length)?)
            }
            operation @ (Operation::Write | Operation::ReadRequest) => {
                let key = packet.reth()?.rkey;
                let of_host = |queue: &&Queue| {
                    (queue.controller, queue.host) == (src, dst) && queue.to_host.is_none_or(|own| own == qp)
                };
                let data = |queue: &Queue| Some(queue.role(Part::Data(operation, queue.command_with(key)?)));
                self.queues.iter().filter(of_host).find_map(data)
            }
            _ => None,
        }
    }

    fn follow_capsule(
        &mut self,
        packet: &Packet,
        (src, dst, qp): (IpAddr, IpAddr, Qpn),
        bytes: &[u8],
    ) -> Option<Role> {
        let sent = Command::parse(bytes);
        if let Some(connect) = sent.and_then(connects) {
            self.queues.retain(|queue| (queue.controller, queue.to_controller) != (dst, qp));
            if self.queues.len() < MOST_QUEUES {
                self.queues.push(Queue {
                    host: src,
                    controller: dst,
                    to_controller: qp,
                    to_host: None,
                    is_admin: connect.queue == 0,
                    commands: HashMap::new(),
                });
            }
        }
        let outstanding: usize = self.queues.iter().map(|queue| queue.commands.len()).sum();
        let commands_to =
            |queue: &&mut Queue| (queue.host, queue.controller, queue.to_controller) == (src, dst, qp);
        if let Some(queue) = self.queues.iter_mut().find(commands_to) {
            let command = sent?;
            if queue.commands.len() < MOST_COMMANDS && outstanding < MOST_COMMANDS_IN_ALL {
                queue.commands.insert(command.id, command);
            }
            return Some(queue.role(Part::Command(command)));
        }
        let response = Response::parse(bytes).filter(|_| packet.payload.len() == response::LENGTH)?;
        // A queue's first response tells the QP of the host: it completes the Connect.
        let responds_to = |queue: &&mut Queue| {
            (queue.controller, queue.host) == (src, dst)
                && queue.to_host.map_or(queue.commands.contains_key(&response.id), |own| own == qp)
        };
        let queue = self.queues.iter_mut().find(responds_to)?;
        queue.to_host = Some(qp);
        let command = queue.commands.remove(&response.id);
        let invalidates = packet.bth.opcode == Opcode::RC_SEND_ONLY_INVALIDATE;
        Some(queue.role(Part::Response { response, command, invalidates }))
    }
}

impl Queue {
    fn command_with(&self, rkey: u32) -> Option<Command> {
        let has =
            |command: &&Command| matches!(command.sgl, Sgl::Keyed { key, length: 1.., .. } if key == rkey);
        self.commands.values().find(has).copied()
    }

    fn role(&self, part: Part) -> Role {
        Role { is_admin: self.is_admin, part }
    }
}

/// Returns the fields of a Connect, whose data has one length only.
fn connects(command: Command) -> Option<Connect> {
    let is_connect = command.is_fabrics() && command.fabrics_type() == fabrics::CONNECT;
    let (Sgl::InCapsule { length, .. } | Sgl::Keyed { length, .. }) = command.sgl else { return None };
    let is_whole = command.has_supported_flags() && length as usize == connect::LENGTH;
    (is_connect && is_whole).then(|| Connect::of(&command)).flatten()
}

impl Role {
    fn command(&self) -> Option<&Command> {
        match &self.part {
            Part::Command(command) | Part::Data(_, command) => Some(command),
            Part::Response { command, .. } => command.as_ref(),
        }
    }

    /// Returns the command's name; `None` if the command or its opcode is not known.
    fn name(&self) -> Option<&'static str> {
        self.command()?.name(self.is_admin)
    }

    /// Writes all fields of the capsule.
    pub(super) fn write_full(&self, out: &mut dyn Write) -> io::Result<()> {
        match &self.part {
            Part::Command(command) => {
                let Command { opcode, flags, id, namespace, sgl, dwords, .. } = command;
                let name = self.name().unwrap_or("unknown");
                write!(
                    out,
                    "  NVMe command opcode {opcode:#04x} ({name}) flags {flags:#04x} id {id} nsid {namespace:#x}, {sgl}, dwords"
                )?;
                dwords.iter().try_for_each(|dword| write!(out, " {dword:#x}"))?;
                writeln!(out)
            }
            Part::Data(..) => Ok(()),
            Part::Response { response, .. } => {
                let Response { result, head, queue, id, status } = response;
                writeln!(
                    out,
                    "  NVMe response id {id} status {:#05x} ({status}) result {result:#x} sqhd {head} sqid {queue}",
                    status.0
                )
            }
        }
    }

    /// Returns the object of a JSON row.
    pub fn to_json(&self) -> Value {
        let kind = match self.part {
            Part::Command(_) => "command",
            Part::Data(..) => "data",
            Part::Response { .. } => "response",
        };
        let mut object = json!({ "kind": kind });
        if let Some(command) = self.command() {
            object["command"] = self.name().into();
            object["id"] = command.id.into();
            object["opcode"] = command.opcode.into();
            object["nsid"] = command.namespace.into();
        }
        if let Part::Response { response, invalidates, .. } = self.part {
            object["id"] = response.id.into();
            object["status"] = response.status.0.into();
            object["status_text"] = response.status.to_string().into();
            object["invalidates"] = invalidates.into();
        }
        object
    }
}

/// One line: `NVMe Read ns 1 lba 0 blocks 8 id 7, 4096 B`, `WRITE of NVMe data, Read id 7`, `NVMe Read id 7: success`.
impl std::fmt::Display for Role {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.part {
            Part::Response { response, invalidates, .. } => {
                let name = self.name().unwrap_or("a command");
                let key = if *invalidates { ", R_Key invalidated" } else { "" };
                write!(f, "NVMe {name} id {}: {}{key}", response.id, response.status)
            }
            Part::Data(operation, command) => {
                let verb = if *operation == Operation::Write { "WRITE" } else { "READ" };
                let name = self.name().unwrap_or("command");
                write!(f, "{verb} of NVMe data, {name} id {}", command.id)
            }
            Part::Command(command) => {
                write!(f, "NVMe {} id {}", command.title(self.is_admin), command.id)?;
                match command.sgl {
                    Sgl::Keyed { length: length @ 1.., .. } => write!(f, ", {length} B"),
                    Sgl::InCapsule { length, .. } => write!(f, ", {length} B in capsule"),
                    _ => Ok(()),
                }
            }
        }
    }
}
