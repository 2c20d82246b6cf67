//! NVMe over fabrics: the messages between host and controller for one READ or WRITE (NVMe base specification 2.0; RDMA
//! and TCP transport specifications 1.0).

use roxie_messages::nvme::command::{self, io as opcode};
use roxie_messages::nvme::{Response, Sgl, Status, response};

/// Bytes of a submission queue entry, which over RDMA is a command capsule without data.
pub const COMMAND: usize = command::LENGTH;
/// Bytes of a completion queue entry, which is a response capsule.
pub const RESPONSE: usize = response::LENGTH;

/// Operation on blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Io {
    /// From the namespace to the host.
    Read,
    /// From the host to the namespace.
    Write,
}

/// A command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// Operation.
    pub io: Io,
    /// Command identifier, repeated in the response.
    pub id: u16,
    /// Namespace identifier.
    pub namespace: u32,
    /// First block.
    pub block: u64,
    /// Number of blocks, at least 1.
    pub blocks: u16,
    /// Address in the host's memory. Not used over TCP.
    pub address: u64,
    /// Bytes to transfer.
    pub length: u32,
    /// rkey of the host's memory. `None`: over TCP.
    pub key: Option<u32>,
}

/// A field of an entry: offset, bytes, name, purpose.
pub type Entry = (usize, usize, &'static str, &'static str);

/// Non-zero fields of a command.
pub const COMMAND_FIELDS: [Entry; 10] = [
    (0, 1, "opcode", "1: write, 2: read"),
    (1, 1, "flags", "PSDT: SGLs describe the data"),
    (2, 2, "command identifier", "the response names it"),
    (4, 4, "namespace", ""),
    (8, 16, "reserved, metadata", ""),
    (24, 8, "SGL address", "where in the host's memory"),
    (32, 3, "SGL length", "bytes"),
    (35, 4, "SGL key", "the rkey that opens it; none over TCP"),
    (39, 1, "SGL type", "4: keyed data block; 5: transport data block"),
    (40, 24, "command: first block, blocks - 1", "8 bytes, then 2"),
];

/// Fields of a response.
pub const RESPONSE_FIELDS: [Entry; 5] = [
    (0, 8, "command specific", ""),
    (8, 2, "submission queue head", "slots that are free again"),
    (10, 2, "submission queue", ""),
    (12, 2, "command identifier", "the command that it answers"),
    (14, 2, "status", "0: success"),
];

impl Command {
    /// Encodes the submission queue entry.
    pub fn to_bytes(&self) -> [u8; COMMAND] {
        let opcode = if self.io == Io::Read { opcode::READ } else { opcode::WRITE };
        let (address, length) = (self.address, self.length);
        let sgl = match self.key {
            Some(key) => Sgl::Keyed { address, length, key, invalidate: false },
            None => Sgl::Transport { length },
        };
        let entry = command::Command::blocks(opcode, self.namespace, self.block, self.blocks.into());
        command::Command { id: self.id, sgl, ..entry }.to_bytes()
    }

    /// Encodes the completion queue entry of a successful command.
    pub fn response(&self, head: u16) -> [u8; RESPONSE] {
        Response { result: 0, head, queue: 1, id: self.id, status: Status::SUCCESS }.to_bytes()
    }
}

/// A PDU of NVMe/TCP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pdu {
    /// Name in the specification.
    pub name: &'static str,
    /// True if the host sends the PDU.
    pub from_host: bool,
    /// All bytes of the PDU.
    pub bytes: Vec<u8>,
    /// Bytes of block data in the PDU.
    pub data: usize,
}

/// Types, names and header lengths (NVMe/TCP 3.6).
const COMMAND_PDU: (u8, &str, usize) = (0x04, "CapsuleCmd", 72);
const RESPONSE_PDU: (u8, &str, usize) = (0x05, "CapsuleResp", 24);
const DATA_TO_CONTROLLER: (u8, &str, usize) = (0x06, "H2CData", 24);
const DATA_TO_HOST: (u8, &str, usize) = (0x07, "C2HData", 24);
const READY: (u8, &str, usize) = (0x09, "R2T", 24);

/// Returns the PDUs of a command over TCP, without digests. A WRITE of up to `in_capsule` bytes is sent with its
/// command; a longer one waits for R2T. Data is sent in PDUs of at most `most` bytes.
pub fn over_tcp(command: &Command, data: &[u8], in_capsule: usize, most: usize) -> Vec<Pdu> {
    let sqe = Command { key: None, ..*command }.to_bytes();
    let response = pdu(RESPONSE_PDU, false, &command.response(1), &[]);
    let parts = |kind: (u8, &'static str, usize), from_host: bool| {
        let part = move |(n, part): (usize, &[u8])| {
            let mut about = [0; 16];
            about[..2].copy_from_slice(&command.id.to_le_bytes());
            about[4..8].copy_from_slice(&((n * most) as u32).to_le_bytes());
            about[8..12].copy_from_slice(&(part.len() as u32).to_le_bytes());
            pdu(kind, from_host, &about, part)
        };
        data.chunks(most).enumerate().map(part).collect::<Vec<_>>()
    };
    match command.io {
        Io::Read => {
            let mut all = vec![pdu(COMMAND_PDU, true, &sqe, &[])];
            all.extend(parts(DATA_TO_HOST, false));
            all.push(response);
            all
        }
        Io::Write if data.len() <= in_capsule => vec![pdu(COMMAND_PDU, true, &sqe, data), response],
        Io::Write => {
            let mut ready = [0; 16];
            ready[..2].copy_from_slice(&command.id.to_le_bytes());
            ready[8..12].copy_from_slice(&(data.len() as u32).to_le_bytes());
            let mut all = vec![pdu(COMMAND_PDU, true, &sqe, &[]), pdu(READY, false, &ready, &[])];
            all.extend(parts(DATA_TO_CONTROLLER, true));
            all.push(response);
            all
        }
    }
}

/// Encodes a PDU: type, flags, header length, data offset, length; then the type-specific header, then data.
fn pdu(
    (kind, name, header): (u8, &'static str, usize),
    from_host: bool,
    specific: &[u8],
    data: &[u8],
) -> Pdu {
    let offset = if data.is_empty() { 0 } else { header as u8 };
    let mut bytes = vec![kind, 0, header as u8, offset];
    bytes.extend(((header + data.len()) as u32).to_le_bytes());
    bytes.extend(specific);
    debug_assert_eq!(bytes.len(), header);
    bytes.extend(data);
    Pdu { name, from_host, bytes, data: data.len() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(io: Io) -> Command {
        Command {
            io,
            id: 7,
            namespace: 1,
            block: 0x1234,
            blocks: 16,
            address: 0x7000,
            length: 8192,
            key: Some(0x1122_3344),
        }
    }

    #[test]
    fn command_has_the_layout_of_nvme() {
        let bytes = command(Io::Read).to_bytes();
        assert_eq!((bytes[0], bytes[1], bytes[2], bytes[4]), (2, 0x40, 7, 1));
        assert_eq!(bytes[24..40], [0, 0x70, 0, 0, 0, 0, 0, 0, 0, 0x20, 0, 0x44, 0x33, 0x22, 0x11, 0x40]);
        assert_eq!(bytes[40..50], [0x34, 0x12, 0, 0, 0, 0, 0, 0, 15, 0]);
        for (fields, length) in [(&COMMAND_FIELDS[..], COMMAND), (&RESPONSE_FIELDS[..], RESPONSE)] {
            let end = fields.iter().fold(0, |at, (begin, bytes, ..)| {
                assert_eq!(at, *begin);
                at + bytes
            });
            assert_eq!(end, length);
        }
    }

    #[test]
    fn only_a_long_write_waits_for_r2t() {
        let names = |io, length, in_capsule| {
            let data = vec![0; length];
            over_tcp(&command(io), &data, in_capsule, 4096).iter().map(|pdu| pdu.name).collect::<Vec<_>>()
        };
        assert_eq!(names(Io::Read, 8192, 0), ["CapsuleCmd", "C2HData", "C2HData", "CapsuleResp"]);
        assert_eq!(names(Io::Write, 8192, 8192), ["CapsuleCmd", "CapsuleResp"]);
        assert_eq!(names(Io::Write, 8192, 4096), ["CapsuleCmd", "R2T", "H2CData", "H2CData", "CapsuleResp"]);
        let all = over_tcp(&command(Io::Read), &[1; 8192], 0, 4096);
        assert_eq!(all.iter().map(|pdu| pdu.bytes.len()).collect::<Vec<_>>(), [72, 24 + 4096, 24 + 4096, 24]);
        assert!(all.iter().all(|pdu| u32::from_le_bytes([
            pdu.bytes[4],
            pdu.bytes[5],
            pdu.bytes[6],
            pdu.bytes[7]
        ]) as usize
            == pdu.bytes.len()));
    }
}
