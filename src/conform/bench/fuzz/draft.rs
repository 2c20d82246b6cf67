//! A packet of a sequence, as data: every field that a script can set, with the right value as its default.

use std::net::IpAddr;

use roxie_wire::{Deth, Headers, Opcode, OpcodeInfo, Operation, Psn, Qpn};

use crate::bench::{QKEY, Region};
use crate::packet::Craft;
use crate::service::Service;

/// Path MTU of the queue pairs in bytes.
pub(crate) const MTU: usize = 1024;
/// Bits by which the QPN of a packet for a stranger differs. The QP does not exist.
const STRANGER: u32 = 0x0055_5555;
/// QPN from which datagrams come.
const SOURCE: u32 = 0x0077_7777;

/// Memory at the target that packets may name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// A region with all remote rights.
    Granted,
    /// A region with the right to read alone.
    ReadOnly,
    /// A region without remote rights.
    Withheld,
    /// A region of another protection domain.
    Foreign,
}

impl Place {
    /// All places with their names in scripts.
    pub(crate) const ALL: [(&'static str, Place); 4] = [
        ("granted", Place::Granted),
        ("readonly", Place::ReadOnly),
        ("withheld", Place::Withheld),
        ("foreign", Place::Foreign),
    ];

    pub(crate) fn name(self) -> &'static str {
        Self::ALL[self as usize].0
    }
}

/// The regions of a target, by place.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Regions(pub(crate) [Region; 4]);

impl Regions {
    pub(crate) fn of(&self, place: Place) -> Region {
        self.0[place as usize]
    }
}

/// A fault beside the fields of a draft.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Wrong ICRC.
    BadIcrc,
    /// Another P_Key than 0xffff.
    PKey(u16),
    /// Transport version other than 0.
    Version(u8),
    /// A QPN that no QP has.
    Stranger,
    /// A source address that is not the peer's. Takes packet sockets.
    OtherSource,
    /// UDP port 4792.
    OtherPort,
    /// So many bytes less at the end of headers and payload.
    Cut(u8),
    /// A pad count that is not that of the payload.
    Pad(u8),
    /// Reserved bits, MigReq, FECN and BECN set, which a responder ignores.
    Reserved,
}

/// A packet to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draft {
    /// The opcode, of any service, known or not.
    pub opcode: Opcode,
    /// Distance of the PSN from the next one in order.
    pub psn: i32,
    /// True if the packet asks for an acknowledgement.
    pub ack: bool,
    /// True if the solicited event bit is set.
    pub solicited: bool,
    /// Bytes of payload.
    pub length: usize,
    /// Region of the address in the RETH or AtomicETH, and the distance from its first byte.
    pub at: (Place, i64),
    /// Region of the rkey, and the bits in which the rkey is wrong.
    pub key: (Place, u32),
    /// Length of the RETH.
    pub dma: u32,
    /// Swap or add operand, and compare operand.
    pub operands: (u64, u64),
    /// Immediate data.
    pub imm: u32,
    /// Q_Key of a datagram.
    pub qkey: u32,
    /// Syndrome and message sequence number of an AETH.
    pub aeth: (u8, u32),
    /// Further faults.
    pub faults: Vec<Fault>,
}

/// How far a reference model can follow a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Nature {
    /// The packet has no effect, whatever the state of the queue pair.
    Void,
    /// The reaction follows from the state.
    Plain,
    /// The specification leaves the reaction open, or the model does not know the operation.
    Open,
}

impl Draft {
    /// Returns a packet in order without payload.
    pub fn new(opcode: Opcode) -> Draft {
        Draft {
            opcode,
            psn: 0,
            ack: false,
            solicited: false,
            length: 0,
            at: (Place::Granted, 0),
            key: (Place::Granted, 0),
            dma: 0,
            operands: (0, 0),
            imm: 0,
            qkey: QKEY,
            aeth: (0x1f, 0),
            faults: Vec::new(),
        }
    }

    fn has(&self, header: Headers) -> bool {
        self.opcode.info().is_some_and(|info| info.headers.contains(header))
    }

    /// True if the packet names memory.
    pub(crate) fn names_memory(&self) -> bool {
        self.has(Headers::RETH) || self.has(Headers::ATOMIC_ETH)
    }

    /// True if the packet has an RETH, whose length counts.
    pub(crate) fn has_reth(&self) -> bool {
        self.has(Headers::RETH)
    }

    /// True if the packet has the operands of an atomic.
    pub(crate) fn has_operands(&self) -> bool {
        self.has(Headers::ATOMIC_ETH)
    }

    /// True if the packet has immediate data.
    pub(crate) fn has_imm(&self) -> bool {
        self.has(Headers::IMM)
    }

    /// True if the packet has a Q_Key.
    pub(crate) fn has_qkey(&self) -> bool {
        self.has(Headers::DETH)
    }

    /// True if the packet has an AETH.
    pub(crate) fn has_aeth(&self) -> bool {
        self.has(Headers::AETH)
    }

    /// True if the packet has a key to invalidate.
    pub(crate) fn has_ieth(&self) -> bool {
        self.has(Headers::IETH)
    }

    /// Sets the fields that the opcode has not to their defaults.
    pub(crate) fn forget_unused(&mut self) {
        let plain = Draft::new(self.opcode);
        if !self.names_memory() {
            self.at = plain.at;
        }
        if !self.names_memory() && !self.has_ieth() {
            self.key = plain.key;
        }
        if !self.has_reth() {
            self.dma = plain.dma;
        }
        if !self.has_operands() {
            self.operands = plain.operands;
        }
        if !self.has_imm() {
            self.imm = plain.imm;
        }
        if !self.has_qkey() {
            self.qkey = plain.qkey;
        }
        if !self.has_aeth() {
            self.aeth = plain.aeth;
        }
    }

    /// Returns the row of the opcode if it is of this service.
    pub(crate) fn info(&self, service: Service) -> Option<&'static OpcodeInfo> {
        let own = match service {
            Service::Rc => roxie_wire::Service::Rc,
            Service::Uc => roxie_wire::Service::Uc,
            Service::Ud => roxie_wire::Service::Ud,
            Service::Xrc => roxie_wire::Service::Xrc,
        };
        self.opcode.info().filter(|info| info.service == own)
    }

    /// Returns how far the model can follow the packet at a QP of this service.
    pub(crate) fn nature(&self, service: Service) -> Nature {
        let is_void = |fault: &Fault| match fault {
            Fault::BadIcrc | Fault::Stranger | Fault::OtherSource | Fault::OtherPort => true,
            Fault::PKey(key) => key & 0x7fff != 0x7fff,
            Fault::Version(version) => *version != 0,
            Fault::Cut(_) | Fault::Pad(_) | Fault::Reserved => false,
        };
        // A datagram of UD comes from any address, and may overtake those of another.
        let is_void = |fault: &Fault| {
            is_void(fault) && !(service == Service::Ud && matches!(fault, Fault::OtherSource))
        };
        let Some(info) = self.info(service) else { return Nature::Void };
        // The agent posts nothing, so that no response is expected.
        if self.faults.iter().any(is_void) || info.is_response() {
            return Nature::Void;
        }
        let is_open = |fault: &Fault| matches!(fault, Fault::Cut(_) | Fault::Pad(_));
        let is_unknown = matches!(info.operation, Operation::Flush | Operation::AtomicWrite);
        let is_long_datagram = service == Service::Ud && self.length > MTU;
        let is_foreign = service == Service::Ud && self.faults.contains(&Fault::OtherSource);
        if self.faults.iter().any(is_open) || is_unknown || self.has_ieth() || is_long_datagram || is_foreign
        {
            return Nature::Open;
        }
        Nature::Plain
    }

    /// Returns the number of PSNs that the packet takes: those of a READ's response, or one.
    pub(crate) fn span(&self) -> u32 {
        match self.opcode.info().map(|info| info.operation) {
            Some(Operation::ReadRequest) => self.dma.div_ceil(MTU as u32).max(1),
            _ => 1,
        }
    }

    /// Returns the payload, which the line's number decides. Bytes are below 251.
    pub(crate) fn payload(&self, line: u32) -> Vec<u8> {
        (0..self.length as u64).map(|i| ((u64::from(line) * 37 + 11 + i) % 251) as u8).collect()
    }

    /// Returns the virtual address that the packet names.
    pub(crate) fn address(&self, regions: &Regions) -> u64 {
        regions.of(self.at.0).addr.wrapping_add_signed(self.at.1)
    }

    /// Returns the rkey that the packet names.
    pub(crate) fn rkey(&self, regions: &Regions) -> u32 {
        regions.of(self.key.0).rkey ^ self.key.1
    }

    /// Builds the packet of a line. `stranger` is a source address that is not the bench's.
    pub(crate) fn craft(&self, dest: Qpn, psn: Psn, line: u32, regions: &Regions, stranger: IpAddr) -> Craft {
        let mut craft = Craft::new(self.opcode, dest, psn).data(&self.payload(line));
        craft.bth.ack_req = self.ack;
        craft.bth.solicited = self.solicited;
        let (va, rkey) = (self.address(regions), self.rkey(regions));
        // The order of headers on the wire.
        if self.has(Headers::RDETH) {
            craft = craft.word(0);
        }
        if self.has(Headers::DETH) {
            craft.headers.extend(Deth { qkey: self.qkey, src_qp: Qpn::new(SOURCE) }.to_bytes());
        }
        if self.has(Headers::XRCETH) {
            craft = craft.word(0);
        }
        if self.has(Headers::FETH) {
            craft = craft.word(0);
        }
        if self.has(Headers::RETH) {
            craft = craft.reth(va, rkey, self.dma);
        }
        if self.has(Headers::ATOMIC_ETH) {
            craft = craft.atomic(va, rkey, self.operands.0, self.operands.1);
        }
        if self.has(Headers::AETH) {
            craft = craft.aeth(self.aeth.0, self.aeth.1);
        }
        if self.has(Headers::ATOMIC_ACK_ETH) {
            craft.headers.extend(self.operands.0.to_be_bytes());
        }
        if self.has(Headers::IMM) {
            craft = craft.word(self.imm);
        }
        if self.has(Headers::IETH) {
            craft = craft.word(rkey);
        }
        if self.has(Headers::CNP_RESERVED) {
            craft.headers.extend([0; 16]);
        }
        if self.has(Headers::SACK) {
            craft.headers.extend([0; 20]);
        }
        self.faults.iter().fold(craft, |craft, fault| with_fault(craft, *fault, stranger))
    }
}

fn with_fault(craft: Craft, fault: Fault, stranger: IpAddr) -> Craft {
    match fault {
        Fault::BadIcrc => craft.spoiled(),
        Fault::PKey(key) => craft.with(|bth| bth.pkey = key),
        Fault::Version(version) => craft.with(|bth| bth.tver = version & 0xf),
        Fault::Stranger => craft.with(|bth| bth.dest_qp = Qpn::new(bth.dest_qp.value() ^ STRANGER)),
        Fault::OtherSource => Craft { from: Some(stranger), ..craft },
        Fault::OtherPort => Craft { port: 4792, ..craft },
        Fault::Cut(bytes) => craft.cut(bytes.into()),
        Fault::Pad(count) => craft.pad(count & 3),
        Fault::Reserved => craft.with(|bth| {
            (bth.reserved6, bth.reserved7, bth.mig_req, bth.fecn) = (0x3f, 0x7f, true, true);
        }),
    }
}
