//! Decodes a RoCE frame field by field: position, value, and ICRC coverage.
//!
//! [`fields`] parses the frame as the NIC does, then walks it once in wire order. Every bit of the frame is in exactly
//! one field, which `src/lab/tests/labs` checks.

use roxie_wire::display::Mac;
use roxie_wire::frame::Frame;
use roxie_wire::net::ether_type;
use roxie_wire::parse::ICRC_LEN;
use roxie_wire::{
    Aeth, Drop, Headers, Icrc, NetHeader, Opcode, Packet, Syndrome, credits, parse, rnr_timer_ns,
};

/// A header field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Header of the field: `BTH`.
    pub header: &'static str,
    /// Name in the specification.
    pub name: &'static str,
    /// Position of the first bit in the frame, from 0.
    pub bit: usize,
    /// Number of bits.
    pub bits: usize,
    /// Formatted value.
    pub value: String,
    /// Purpose, or empty if the name says it.
    pub about: &'static str,
    /// True if the ICRC counts the field as ones, because switches may change it, or does not include it.
    pub uncovered: bool,
}

impl Field {
    /// Returns the byte of the field's first bit.
    pub fn offset(&self) -> usize {
        self.bit / 8
    }

    /// Returns the bytes of the field; the first and last may be partial.
    pub fn bytes(&self) -> std::ops::Range<usize> {
        self.offset()..(self.bit + self.bits).div_ceil(8)
    }
}

/// A decoded frame.
#[derive(Clone, Debug)]
pub struct Layout {
    /// Fields in wire order.
    pub fields: Vec<Field>,
    /// The packet as the NIC parses it.
    pub packet: Packet,
    /// Result of the ICRC check.
    pub icrc: Icrc,
}

/// Decodes a frame, starting at its Ethernet header.
///
/// # Errors
/// The reason for which the NIC would drop the frame unparsed.
pub fn fields(frame: &[u8]) -> Result<Layout, Drop> {
    let whole = Frame::whole(frame);
    let packet = parse(&whole)?;
    let mut walk = Walk { frame, bit: 0, header: "Ethernet", covered: false, fields: Vec::new() };
    walk.ethernet();
    walk.network(&packet);
    walk.bth(&packet);
    walk.extended(&packet);
    walk.rest(&packet);
    let icrc = packet.check_icrc(&whole);
    Ok(Layout { fields: walk.fields, packet, icrc })
}

/// Walks a frame bit by bit.
struct Walk<'a> {
    frame: &'a [u8],
    bit: usize,
    header: &'static str,
    /// Default for the next fields: true if the ICRC covers them.
    covered: bool,
    fields: Vec<Field>,
}

impl Walk<'_> {
    fn begin(&mut self, header: &'static str) {
        self.header = header;
    }

    /// Returns the next `bits` as a number; at most 64.
    fn number(&self, bits: usize) -> u64 {
        (self.bit..self.bit + bits).fold(0, |value, bit| {
            let byte = self.frame.get(bit / 8).copied().unwrap_or(0);
            value << 1 | u64::from(byte >> (7 - bit % 8) & 1)
        })
    }

    fn bytes(&self, count: usize) -> &[u8] {
        let at = self.bit / 8;
        self.frame.get(at..(at + count).min(self.frame.len())).unwrap_or(&[])
    }

    fn push(&mut self, name: &'static str, bits: usize, value: String, about: &'static str, covered: bool) {
        let Walk { bit, header, .. } = *self;
        self.fields.push(Field { header, name, bit, bits, value, about, uncovered: !covered });
        self.bit += bits;
    }

    /// Adds a field that the ICRC covers if it covers the header.
    fn put(&mut self, name: &'static str, bits: usize, value: String, about: &'static str) {
        self.push(name, bits, value, about, self.covered);
    }

    /// Adds a field that switches may change.
    fn put_variant(&mut self, name: &'static str, bits: usize, value: String, about: &'static str) {
        self.push(name, bits, value, about, false);
    }

    fn decimal(&mut self, name: &'static str, bits: usize, about: &'static str) {
        let value = self.number(bits).to_string();
        self.put(name, bits, value, about);
    }

    fn hex(&mut self, name: &'static str, bits: usize, about: &'static str) {
        let value = format!("{:#0width$x}", self.number(bits), width = bits.div_ceil(4) + 2);
        self.put(name, bits, value, about);
    }

    fn reserved(&mut self, bits: usize) {
        let value = format!("{:#x}", self.number(bits));
        self.put("reserved", bits, value, "sent as 0, ignored");
    }

    fn ethernet(&mut self) {
        for name in ["destination", "source"] {
            let mac = self.bytes(6).try_into().unwrap_or([0; 6]);
            self.put(name, 48, Mac(mac).to_string(), "");
        }
        while matches!(self.number(16) as u16, ether_type::VLAN | ether_type::SERVICE_VLAN) {
            self.begin("802.1Q");
            self.hex("TPID", 16, "a tag follows");
            self.decimal("PCP", 3, "priority: which queue, which pause");
            self.decimal("DEI", 1, "may be dropped first");
            self.decimal("VID", 12, "which VLAN");
            self.begin("Ethernet");
        }
        let kind = self.number(16) as u16;
        let name = match kind {
            ether_type::IPV4 => "IPv4",
            ether_type::IPV6 => "IPv6",
            ether_type::ROCE_V1 => "RoCE v1",
            _ => "other",
        };
        self.put("EtherType", 16, format!("{kind:#06x} {name}"), "");
    }

    fn network(&mut self, packet: &Packet) {
        self.covered = true;
        match packet.net {
            NetHeader::Ipv4(header) => self.ipv4(usize::from(header.header_len)),
            NetHeader::Ipv6(_) => self.ipv6("IPv6"),
            NetHeader::Grh(_) => self.ipv6("GRH"),
        }
        if packet.udp.is_some() {
            self.begin("UDP");
            self.decimal("source port", 16, "spreads flows for ECMP; not used for replies");
            self.decimal("destination port", 16, "4791: RoCE v2");
            self.decimal("length", 16, "UDP header to ICRC");
            let value = format!("{:#06x}", self.number(16));
            self.put_variant("checksum", 16, value, "0: none. The ICRC covers more");
        }
    }

    fn ipv4(&mut self, header_len: usize) {
        self.begin("IPv4");
        self.decimal("version", 4, "");
        self.decimal("IHL", 4, "header length in words of 32 bits");
        self.class();
        self.decimal("total length", 16, "this header to ICRC");
        self.hex("identification", 16, "0: never a fragment");
        self.hex("flags", 3, "2: do not fragment");
        self.decimal("fragment offset", 13, "");
        let ttl = self.number(8).to_string();
        self.put_variant("TTL", 8, ttl, "a router counts it down");
        self.decimal("protocol", 8, "17: UDP");
        let sum = format!("{:#06x}", self.number(16));
        self.put_variant("header checksum", 16, sum, "changes with TTL and ECN");
        for name in ["source", "destination"] {
            let [a, b, c, d] = self.bytes(4).try_into().unwrap_or([0; 4]);
            self.put(name, 32, format!("{a}.{b}.{c}.{d}"), "");
        }
        if header_len > 20 {
            self.put_variant("options", (header_len - 20) * 8, "(options)".into(), "");
        }
    }

    /// DSCP and ECN: one byte. Switches may rewrite the DSCP and set CE.
    fn class(&mut self) {
        let dscp = self.number(6).to_string();
        self.put_variant("DSCP", 6, dscp, "selects the priority in a switch");
        let ecn = self.number(2) as usize;
        let name = ["0 not ECT", "1 ECT(1)", "2 ECT(0)", "3 CE: marked"][ecn];
        self.put_variant("ECN", 2, name.into(), "a congested switch marks it");
    }

    fn ipv6(&mut self, header: &'static str) {
        self.begin(header);
        self.decimal("version", 4, "");
        self.class();
        let flow = format!("{:#07x}", self.number(20));
        self.put_variant("flow label", 20, flow, "");
        self.decimal("payload length", 16, "what follows, ICRC included");
        let next = if header == "GRH" { "27 (0x1b): InfiniBand transport" } else { "17: UDP" };
        self.decimal("next header", 8, next);
        let hops = self.number(8).to_string();
        self.put_variant("hop limit", 8, hops, "a router counts it down");
        for name in ["source", "destination"] {
            let bytes: [u8; 16] = self.bytes(16).try_into().unwrap_or([0; 16]);
            self.put(name, 128, std::net::Ipv6Addr::from(bytes).to_string(), "a GID");
        }
    }

    fn bth(&mut self, packet: &Packet) {
        self.begin("BTH");
        let opcode = Opcode(self.number(8) as u8);
        self.put(
            "opcode",
            8,
            format!("{:#04x} {opcode}", opcode.0),
            "service in bits 7 to 5, operation below",
        );
        self.decimal("SE", 1, "solicited event: wakes a receiver that waits for one");
        self.decimal("M", 1, "migration state");
        self.decimal("pad count", 2, "bytes of zeros before the ICRC");
        self.decimal("TVer", 4, "0: the only version");
        self.hex("P_Key", 16, "partition; bit 15: full member");
        for (name, bits, about) in [
            ("FECN", 1, "RoCE v2 has ECN instead"),
            ("BECN", 1, "set in a congestion notification"),
            ("reserved", 6, "a switch may change them"),
        ] {
            let value = self.number(bits).to_string();
            self.put_variant(name, bits, value, about);
        }
        self.put("destination QP", 24, packet.bth.dest_qp.to_string(), "identifies the receiver");
        self.bit_is_at_byte();
        self.decimal("A", 1, "asks for an acknowledgement");
        self.reserved(7);
        self.decimal("PSN", 24, "counts packets of this direction");
    }

    fn bit_is_at_byte(&self) {
        debug_assert_eq!(self.bit % 8, 0, "headers are whole bytes");
    }

    fn extended(&mut self, packet: &Packet) {
        let headers = packet.info().headers;
        let has = |header| headers.contains(header);
        if has(Headers::RDETH) {
            self.begin("RDETH");
            self.reserved(8);
            self.hex("EE context", 24, "");
        }
        if has(Headers::DETH) {
            self.begin("DETH");
            self.hex("Q_Key", 32, "must match the receiver's");
            self.reserved(8);
            self.hex("source QP", 24, "where to reply");
        }
        if has(Headers::XRCETH) {
            self.begin("XRCETH");
            self.reserved(8);
            self.hex("XRC SRQ", 24, "the SRQ that provides the receive");
        }
        if has(Headers::FETH) {
            self.begin("FETH");
            self.hex("placement and selectivity", 32, "");
        }
        if has(Headers::RETH) {
            self.begin("RETH");
            self.hex("virtual address", 64, "address in the peer's memory");
            self.hex("R_Key", 32, "grants access to the memory");
            self.decimal("DMA length", 32, "of the whole message, in bytes");
        }
        if has(Headers::ATOMIC_ETH) {
            self.begin("AtomicETH");
            self.hex("virtual address", 64, "8 bytes, aligned");
            self.hex("R_Key", 32, "grants access to the memory");
            self.hex("swap or add", 64, "value to store or to add");
            self.hex("compare", 64, "expected value");
        }
        if has(Headers::AETH) {
            self.begin("AETH");
            let aeth = packet.aeth().unwrap_or(Aeth { syndrome: 0, msn: 0 });
            self.put(
                "syndrome",
                8,
                syndrome(aeth),
                "ACK with credits, RNR NAK with a time, or NAK with a reason",
            );
            self.decimal("MSN", 24, "messages that the responder has completed");
        }
        if has(Headers::ATOMIC_ACK_ETH) {
            self.begin("AtomicAckETH");
            self.hex("original value", 64, "value before the operation");
        }
        if has(Headers::IMM) {
            self.begin("ImmDt");
            self.hex("immediate data", 32, "goes into the completion");
        }
        if has(Headers::IETH) {
            self.begin("IETH");
            self.hex("R_Key", 32, "the key to invalidate");
        }
        if has(Headers::CNP_RESERVED) {
            self.begin("CNP");
            self.put("reserved", 128, "16 bytes".into(), "a notification has no payload");
        }
    }

    fn rest(&mut self, packet: &Packet) {
        self.begin("payload");
        if !packet.payload.is_empty() {
            self.put("payload", packet.payload.len() * 8, format!("{} bytes", packet.payload.len()), "");
        }
        let pad = packet.icrc_offset.saturating_sub(packet.payload.end.max(self.bit / 8));
        if pad > 0 {
            self.put("pad", pad * 8, format!("{pad} bytes of zero"), "to a multiple of 4 bytes");
        }
        self.begin("ICRC");
        let stored = u32::from_le_bytes(self.bytes(ICRC_LEN).try_into().unwrap_or([0; 4]));
        self.put_variant("ICRC", 32, format!("{stored:#010x}"), "stored little-endian");
        let behind = self.frame.len().saturating_sub(self.bit / 8);
        if behind > 0 {
            self.begin("Ethernet");
            self.put_variant(
                "trailer",
                behind * 8,
                format!("{behind} bytes"),
                "padding to 60 bytes, or an FCS",
            );
        }
    }
}

fn syndrome(aeth: Aeth) -> String {
    let says = match aeth.kind() {
        Syndrome::Ack { credits: code } => match credits(code) {
            Some(credits) => format!("ACK, credit for {credits}"),
            None => "ACK, credits are not used".into(),
        },
        Syndrome::RnrNak { timer } => {
            format!("RNR NAK, come again after {} us", rnr_timer_ns(timer) as f64 / 1e3)
        }
        kind => kind.name().to_owned(),
    };
    format!("{:#04x} {says}", aeth.syndrome)
}
