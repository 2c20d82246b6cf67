//! Packets as scripts send them, right or wrong in any byte, and as they receive them.

use std::net::IpAddr;
use std::time::Instant;

use roxie_wire::frame::FrameMut;
use roxie_wire::net::{ipv4_checksum, sum};
use roxie_wire::parse::ICRC_LEN;
use roxie_wire::{
    Aeth, AtomicEth, Bth, Ext, FlowSpec, Gid, MAX_HEADERS, Opcode, Operation, Packet, Psn, Qpn, ROCE_V2_PORT,
    Reth, RoceVersion, Syndrome, Template, seal,
};

/// A packet to send. The default of each field is the right one.
#[derive(Clone, Debug)]
pub struct Craft {
    /// The base header. Its pad count follows the payload, unless [`pad`](Self::pad) or [`unpadded`](Self::unpadded) is
    /// called.
    pub bth: Bth,
    /// Extended headers.
    pub headers: Vec<u8>,
    /// Payload.
    pub payload: Vec<u8>,
    /// Pad count of the header, and bytes of pad, if not those of the payload.
    pub(crate) pad: Option<(u8, usize)>,
    /// Bytes to cut from the end of headers and payload.
    pub(crate) cut: usize,
    /// The bit of the ICRC that is wrong.
    pub spoiled: bool,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// Time to live.
    pub hop_limit: u8,
    /// UDP destination port.
    pub port: u16,
    /// Source address, if not the bench's.
    pub from: Option<IpAddr>,
}

impl Craft {
    /// Returns a packet without extended headers or payload.
    pub fn new(opcode: Opcode, dest_qp: Qpn, psn: Psn) -> Craft {
        Craft {
            bth: Bth { opcode, dest_qp, psn, ..Bth::default() },
            headers: Vec::new(),
            payload: Vec::new(),
            pad: None,
            cut: 0,
            spoiled: false,
            traffic_class: 0,
            hop_limit: 64,
            port: ROCE_V2_PORT,
            from: None,
        }
    }

    /// Asks for an acknowledgement.
    #[must_use]
    pub fn ack(mut self) -> Craft {
        self.bth.ack_req = true;
        self
    }

    /// Sets the payload.
    #[must_use]
    pub fn data(mut self, payload: &[u8]) -> Craft {
        self.payload = payload.to_vec();
        self
    }

    /// Appends a RETH.
    #[must_use]
    pub fn reth(mut self, va: u64, rkey: u32, dma_len: u32) -> Craft {
        self.headers.extend(Reth { va, rkey, dma_len }.to_bytes());
        self
    }

    /// Appends an AtomicETH.
    #[must_use]
    pub fn atomic(mut self, va: u64, rkey: u32, swap_or_add: u64, compare: u64) -> Craft {
        self.headers.extend(AtomicEth { va, rkey, swap_or_add, compare }.to_bytes());
        self
    }

    /// Appends an AETH.
    #[must_use]
    pub fn aeth(mut self, syndrome: u8, msn: u32) -> Craft {
        self.headers.extend(Aeth { syndrome, msn }.to_bytes());
        self
    }

    /// Appends a word: immediate data, or the key to invalidate.
    #[must_use]
    pub fn word(mut self, word: u32) -> Craft {
        self.headers.extend(word.to_be_bytes());
        self
    }

    /// Changes the base header.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Bth)) -> Craft {
        change(&mut self.bth);
        self
    }

    /// Sets the pad count of the header, and leaves the bytes of pad as they are.
    #[must_use]
    pub fn pad(mut self, count: u8) -> Craft {
        self.pad = Some((count, self.payload.len().wrapping_neg() & 3));
        self
    }

    /// Sends no pad, whatever the payload's length.
    #[must_use]
    pub fn unpadded(mut self) -> Craft {
        self.pad = Some((0, 0));
        self
    }

    /// Leaves out the last `bytes` of headers and payload.
    #[must_use]
    pub fn cut(mut self, bytes: usize) -> Craft {
        self.cut = bytes;
        self
    }

    /// Spoils the ICRC.
    #[must_use]
    pub fn spoiled(mut self) -> Craft {
        self.spoiled = true;
        self
    }

    /// Returns the pad count of the header.
    fn pad_count(&self) -> (u8, usize) {
        let right = self.payload.len().wrapping_neg() & 3;
        self.pad.unwrap_or((right as u8, right))
    }

    /// Returns everything behind the BTH, without the ICRC.
    fn body(&self) -> Vec<u8> {
        let mut body = [&self.headers[..], &self.payload].concat();
        body.resize(body.len() + self.pad_count().1, 0);
        body.truncate(body.len().saturating_sub(self.cut));
        body
    }

    /// Returns the headers up to and including the BTH, and what follows without the ICRC.
    pub(crate) fn parts(
        &self,
        own_mac: [u8; 6],
        peer_mac: [u8; 6],
        from: IpAddr,
        to: IpAddr,
    ) -> (Vec<u8>, Vec<u8>) {
        let template = Template::new(&FlowSpec {
            src_mac: own_mac,
            dst_mac: peer_mac,
            vlan: None,
            src: Gid::from(self.from.unwrap_or(from)),
            dst: Gid::from(to),
            traffic_class: self.traffic_class,
            flow_label: 0,
            hop_limit: self.hop_limit,
            source_port: 0xc000 | self.bth.dest_qp.value() as u16 & 0x3fff,
            version: RoceVersion::V2,
        });
        let body = self.body();
        let mut headers = [0; MAX_HEADERS];
        // The template writes a SEND, which has no extended headers: all bytes behind the BTH count as payload.
        let stand_in = Bth { opcode: Opcode::RC_SEND_ONLY, ..self.bth };
        let behind = template.write_headers(&mut headers, &stand_in, &Ext::None, body.len());
        let mut head = headers[..behind - Bth::LEN].to_vec();
        set_lengths(&mut head, behind + body.len() + ICRC_LEN);
        let udp = head.len() - 8;
        head[udp + 2..udp + 4].copy_from_slice(&self.port.to_be_bytes());
        head.extend(Bth { pad: self.pad_count().0, ..self.bth }.to_bytes());
        (head, body)
    }

    /// Writes the ICRC of a frame with headers and body in place, and spoils it if the script wants so.
    pub(crate) fn seal(&self, frame: &mut FrameMut<'_>) {
        seal(frame);
        let last = frame.len() - 1;
        if self.spoiled {
            let [byte] = frame.as_frame().array(last).unwrap_or_default();
            frame.write(last, &[byte ^ 1]);
        }
    }
}

/// Sets the lengths of the IP and UDP headers, and the checksum of an IPv4 header: the builder pads, but a script may
/// not.
fn set_lengths(head: &mut [u8], frame: usize) {
    const ETHERNET: usize = 14;
    let udp = head.len() - 8;
    let udp_length = (frame - udp) as u16;
    head[udp + 4..udp + 6].copy_from_slice(&udp_length.to_be_bytes());
    if head[ETHERNET] >> 4 == 4 {
        let total = (frame - ETHERNET) as u16;
        let header = &mut head[ETHERNET..udp];
        header[2..4].copy_from_slice(&total.to_be_bytes());
        header[10..12].fill(0);
        let checksum = ipv4_checksum(sum(header));
        header[10..12].copy_from_slice(&checksum.to_be_bytes());
    } else {
        head[ETHERNET + 4..ETHERNET + 6].copy_from_slice(&udp_length.to_be_bytes());
    }
}

/// A received packet.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Time at which the bench took the packet.
    pub at: Instant,
    /// The packet.
    pub packet: Packet,
    /// Its frame.
    pub frame: Vec<u8>,
    /// True if the ICRC is right; `None` if the port does not show the IPv4 identification, which the ICRC covers.
    pub icrc_ok: Option<bool>,
}

impl Seen {
    /// Returns the payload.
    pub fn payload(&self) -> &[u8] {
        self.frame.get(self.packet.payload.clone()).unwrap_or_default()
    }

    /// Returns the opcode.
    pub fn opcode(&self) -> Opcode {
        self.packet.bth.opcode
    }

    /// Returns the PSN as a distance from `base`.
    pub fn psn_from(&self, base: Psn) -> i32 {
        self.packet.bth.psn.distance_from(base)
    }

    /// True for a response.
    pub fn is_response(&self) -> bool {
        self.packet.info().is_response()
    }

    /// Describes the packet in the words of expectations: `ACK+0 msn 1`, `NAK_REMOTE_ACCESS+2 msn 1`, `RNR_NAK+0 msn
    /// 0`, `READ_RESPONSE_ONLY+0 len 8`, `ATOMIC_ACKNOWLEDGE+1`, `SEND_ONLY+0 len 64`. PSNs are distances from `base`.
    pub fn words(&self, base: Psn) -> String {
        let info = self.packet.info();
        let ahead = self.psn_from(base);
        match (info.operation, self.packet.aeth()) {
            (Operation::Acknowledge, Some(aeth)) => match aeth.kind() {
                Syndrome::Reserved(byte) => format!("RESERVED_{byte:#04x}{ahead:+} msn {}", aeth.msn),
                kind => format!("{}{ahead:+} msn {}", kind.name(), aeth.msn),
            },
            (Operation::AtomicAcknowledge, Some(aeth)) => {
                format!("ATOMIC_ACKNOWLEDGE{ahead:+} msn {}", aeth.msn)
            }
            _ => {
                let name = info.name.split_once('_').map_or(info.name, |(_, rest)| rest);
                format!("{name}{ahead:+} len {}", self.payload().len())
            }
        }
    }
}
