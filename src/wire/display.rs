//! Packets as text: one line in the manner of tcpdump, or all fields.
//!
//! The line omits fields with their default value (P_Key 0xffff, version 0, reserved bits 0).

use core::fmt::{self, Display, Formatter};

use super::{Envelope, Icrc, NetHeader, Packet, Service};

impl Display for Packet {
    /// `10.0.0.1 > 10.0.0.2 RC_WRITE_ONLY qp 0x000011 psn 256 ackreq va 0x7f00 rkey 0x00001234
    /// dma_len 3 len 3 pad 1`
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        Display::fmt(&**self, f)?;
        write_ext(self, f)?;
        write!(f, " len {}", self.payload.len())?;
        if self.bth.pad != 0 {
            write!(f, " pad {}", self.bth.pad)?;
        }
        Ok(())
    }
}

impl Display for Envelope {
    /// Prints the line up to the BTH. An unknown opcode prints as `OPCODE_0x1f`.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let bth = &self.bth;
        let (src, dst) = (self.source_gid().to_ip(), self.dest_gid().to_ip());
        write!(f, "{src} > {dst}")?;
        if let NetHeader::Grh(_) = self.net {
            f.write_str(" v1")?;
        }
        if let Some(tci) = self.vlan {
            write!(f, " vlan {} prio {}", tci & 0x0fff, tci >> 13)?;
        }
        if self.is_ce() {
            f.write_str(" ce")?;
        }
        write!(f, " {} qp {} psn {}", bth.opcode, bth.dest_qp, bth.psn)?;
        let flags = [
            (bth.ack_req, " ackreq"),
            (bth.solicited, " se"),
            (bth.mig_req, " mig"),
            (bth.fecn, " fecn"),
            (bth.becn, " becn"),
        ];
        for (_, name) in flags.iter().filter(|(set, _)| *set) {
            f.write_str(name)?;
        }
        if bth.tver != 0 {
            write!(f, " tver {}", bth.tver)?;
        }
        if bth.pkey != 0xffff {
            write!(f, " pkey {:#06x}", bth.pkey)?;
        }
        if bth.reserved6 != 0 {
            write!(f, " rsv6 {:#04x}", bth.reserved6)?;
        }
        if bth.reserved7 != 0 {
            write!(f, " rsv7 {:#04x}", bth.reserved7)?;
        }
        Ok(())
    }
}

fn write_ext(p: &Packet, f: &mut Formatter<'_>) -> fmt::Result {
    if let Some(eec) = p.rdeth() {
        write!(f, " eec {eec:#08x}")?;
    }
    if let Some(deth) = p.deth() {
        write!(f, " qkey {:#010x} src_qp {}", deth.qkey, deth.src_qp)?;
    }
    if let Some(xrc) = p.xrceth() {
        write!(f, " srq {:#08x}", xrc.srqn)?;
    }
    if let Some(feth) = p.feth() {
        write!(f, " plt {:#x} sel {}", feth.placement(), feth.selectivity())?;
    }
    if let Some(reth) = p.reth() {
        write!(f, " va {:#x} rkey {:#010x} dma_len {}", reth.va, reth.rkey, reth.dma_len)?;
    }
    if let Some(a) = p.atomic_eth() {
        write!(f, " va {:#x} rkey {:#010x}", a.va, a.rkey)?;
        write!(f, " swap_or_add {:#x} compare {:#x}", a.swap_or_add, a.compare)?;
    }
    if let Some(aeth) = p.aeth() {
        write!(f, " {} msn {}", aeth.kind(), aeth.msn)?;
    }
    if let Some(sack) = p.sack() {
        write!(f, " {sack}")?;
    }
    if let Some(original) = p.atomic_ack() {
        write!(f, " original {original:#x}")?;
    }
    if let Some(imm) = p.imm() {
        write!(f, " imm {imm:#010x}")?;
    }
    if let Some(rkey) = p.ieth() {
        write!(f, " inv_rkey {rkey:#010x}")?;
    }
    Ok(())
}

/// Displays all fields, one header per line.
#[derive(Clone, Copy, Debug)]
pub struct Full<'a> {
    envelope: &'a Envelope,
    packet: Option<&'a Packet>,
}

impl Packet {
    /// Displays all fields of the packet, one header per line.
    pub fn full(&self) -> Full<'_> {
        Full { envelope: self, packet: Some(self) }
    }
}

impl Envelope {
    /// Displays all fields up to the BTH, one header per line.
    pub fn full(&self) -> Full<'_> {
        Full { envelope: self, packet: None }
    }
}

impl Display for Full<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let e = self.envelope;
        write!(f, "  Ethernet {} > {}", Mac(e.src_mac), Mac(e.dst_mac))?;
        for tci in [e.outer_vlan, e.vlan].into_iter().flatten() {
            write!(f, "\n  802.1Q vlan {} prio {} dei {}", tci & 0x0fff, tci >> 13, tci >> 12 & 1)?;
        }
        write_net(e, f)?;
        if let Some(udp) = e.udp {
            write!(f, "\n  UDP sport {} len {} checksum {:#06x}", udp.source_port, udp.len, udp.checksum)?;
        }
        let b = &e.bth;
        write!(f, "\n  BTH opcode {:#04x} {}", b.opcode.0, b.opcode)?;
        write!(f, " se {} mig {} pad {}", u8::from(b.solicited), u8::from(b.mig_req), b.pad)?;
        write!(f, " tver {} pkey {:#06x}", b.tver, b.pkey)?;
        write!(f, " fecn {} becn {} rsv6 {:#04x}", u8::from(b.fecn), u8::from(b.becn), b.reserved6)?;
        write!(f, " dest_qp {} ackreq {}", b.dest_qp, u8::from(b.ack_req))?;
        write!(f, " rsv7 {:#04x} psn {}", b.reserved7, b.psn)?;
        let Some(p) = self.packet else { return Ok(()) };
        if !p.info().headers.is_empty() && p.info().service != Service::Cnp {
            f.write_str("\n  ext")?;
            write_ext(p, f)?;
        }
        write!(f, "\n  payload {} bytes at {}, pad {}", p.payload.len(), p.payload.start, b.pad)
    }
}

fn write_net(e: &Envelope, f: &mut Formatter<'_>) -> fmt::Result {
    match e.net {
        NetHeader::Ipv4(h) => {
            write!(f, "\n  IPv4 {} > {} tos {:#04x}{} ttl {}", h.src, h.dst, h.tos, Class(h.tos), h.ttl)?;
            write!(f, " id {} df {}", h.id, u8::from(h.dont_fragment))?;
            write!(f, " ihl {} len {}", h.header_len, h.total_len)?;
            let verdict = if h.checksum_ok { "ok" } else { "bad" };
            write!(f, " checksum {:#06x} {verdict}", h.checksum)
        }
        NetHeader::Ipv6(h) | NetHeader::Grh(h) => {
            let name = if matches!(e.net, NetHeader::Grh(_)) { "GRH" } else { "IPv6" };
            let class = h.traffic_class;
            write!(f, "\n  {name} {} > {} tclass {class:#04x}{}", h.src, h.dst, Class(class))?;
            write!(f, " flow {:#07x} hop {} len {}", h.flow_label, h.hop_limit, h.payload_len)
        }
    }
}

/// Displays DSCP (RFC 2474) and ECN bits (RFC 3168 5) of a TOS or traffic class. Zero prints nothing.
struct Class(u8);

impl Display for Class {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return Ok(());
        }
        let ecn = ["not-ect", "ect1", "ect0", "ce"][usize::from(self.0 & 3)];
        write!(f, " (dscp {} {ecn})", self.0 >> 2)
    }
}

/// Displays a MAC address with colons.
#[derive(Clone, Copy, Debug)]
pub struct Mac(pub [u8; 6]);

impl Display for Mac {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl Display for Icrc {
    /// `ok`, or `bad (computed 0x… stored 0x…)`.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Icrc::Ok => f.write_str("ok"),
            Icrc::Bad { computed, stored } => {
                write!(f, "bad (computed {computed:#010x} stored {stored:#010x})")
            }
        }
    }
}
