//! A QP of the target, how it is connected, and the packets that a script sends to it.

use roxie_wire::{Opcode, Psn, Qpn, XrcEth};

use crate::packet::Craft;
use crate::service::Service;

/// A registered region of the target.
#[derive(Clone, Copy, Debug, Default)]
pub struct Region {
    pub(crate) id: u64,
    /// Virtual address of its first byte.
    pub addr: u64,
    /// The rkey.
    pub rkey: u32,
}

/// How to connect a QP of the target.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Its service.
    pub service: Service,
    /// Path MTU in bytes.
    pub mtu: usize,
    /// PSN of the bench's first request.
    pub first: u32,
    /// PSN of the target's first request.
    pub peer_first: u32,
    /// Remote rights of the QP, as letters.
    pub access: &'static str,
    /// RNR timer code that the target sends.
    pub rnr_timer: u8,
    /// ACK timeout code; 0 for none.
    pub timeout: u8,
    /// Retries after a timeout or a NAK.
    pub retry: u8,
    /// Retries after an RNR NAK; 7 without end.
    pub rnr_retry: u8,
    /// READs and atomics at a time, in each direction.
    pub reads: u8,
    /// Traffic class.
    pub traffic_class: u8,
}

impl Setup {
    /// Returns the default setup of a service.
    pub fn new(service: Service) -> Setup {
        Setup {
            service,
            mtu: 1024,
            first: 0x00a1_b2c3,
            peer_first: 0x0012_3456,
            access: "rwa",
            rnr_timer: 12,
            timeout: 0,
            retry: 7,
            rnr_retry: 7,
            reads: 4,
            traffic_class: 0,
        }
    }
}

/// Q_Key of datagram QPs.
pub const QKEY: u32 = 0x1122_3344;

/// A QP of the target, and the bench's QPN to which it is connected.
#[derive(Clone, Debug)]
pub struct Pair {
    pub(crate) id: u64,
    /// The target's QPN.
    pub qpn: Qpn,
    /// The bench's QPN.
    pub own: Qpn,
    /// The service.
    pub service: Service,
    /// Number of the shared receive queue that requests name; with XRC alone.
    pub srqn: u32,
    /// PSN of the bench's first request.
    pub first: Psn,
    /// PSN of the bench's next request.
    pub next: Psn,
    /// PSN of the target's first request.
    pub peer_first: Psn,
    /// Path MTU in bytes.
    pub mtu: usize,
    /// The region to which requests lead.
    pub region: Region,
}

impl Pair {
    /// Returns a request with the next PSN. `opcode` is RC's: its service is replaced by the pair's.
    pub fn request(&self, opcode: Opcode) -> Craft {
        let service = match self.service {
            Service::Rc => 0x00,
            Service::Uc => 0x20,
            Service::Ud => 0x60,
            Service::Xrc => 0xa0,
        };
        let mut request = Craft::new(Opcode(opcode.0 & 0x1f | service), self.qpn, self.next);
        if self.service == Service::Xrc {
            request.headers.extend(XrcEth { srqn: self.srqn }.to_bytes());
        }
        request
    }

    /// Returns a request with a PSN `ahead` of the next.
    pub fn request_at(&self, opcode: Opcode, ahead: i32) -> Craft {
        let psn = Psn::new(self.next.value().wrapping_add(ahead.cast_unsigned()));
        self.request(opcode).with(|bth| bth.psn = psn)
    }

    /// Returns a SEND of one packet that asks for an acknowledgement.
    pub fn send_only(&self, payload: &[u8]) -> Craft {
        self.request(Opcode::RC_SEND_ONLY).data(payload).ack()
    }

    /// Returns a WRITE of one packet to `offset` of the region that asks for an acknowledgement.
    pub fn write_only(&self, offset: u64, payload: &[u8]) -> Craft {
        let reth = self.request(Opcode::RC_WRITE_ONLY);
        reth.reth(self.region.addr + offset, self.region.rkey, payload.len() as u32).data(payload).ack()
    }

    /// Returns a request to read from `offset` of the region.
    pub fn read(&self, offset: u64, length: u32) -> Craft {
        self.request(Opcode::RC_READ_REQUEST).reth(self.region.addr + offset, self.region.rkey, length).ack()
    }

    /// Returns a response to the target's request `ahead` PSNs behind its first.
    pub fn response(&self, opcode: Opcode, ahead: i32) -> Craft {
        let psn = Psn::new(self.peer_first.value().wrapping_add(ahead.cast_unsigned()));
        Craft::new(opcode, self.qpn, psn)
    }

    /// Returns an acknowledgement of the target's request.
    pub fn ack(&self, ahead: i32, msn: u32) -> Craft {
        self.response(Opcode::RC_ACKNOWLEDGE, ahead).aeth(0x1f, msn)
    }

    /// Passes `packets` PSNs.
    pub fn advance(&mut self, packets: u32) {
        self.next = self.next + packets;
    }
}
