//! Packets of native InfiniBand: RoCE's transport headers behind a local route header, and two CRCs.

use super::crc::vcrc;
use roxie_wire::{Bth, Ext, FlowSpec, Gid, MAX_HEADERS, RoceVersion, Template};

/// Bytes of the local route header, LRH (IBTA 7.7).
pub const LRH_LEN: usize = 8;
/// Bytes of the variant CRC, VCRC.
pub const VCRC_LEN: usize = 2;

/// Fields of the local route header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Virtual lane. Switches may change it.
    pub vl: u8,
    /// Service level, by which each switch chooses the virtual lane.
    pub sl: u8,
    /// Local identifier of the destination.
    pub dlid: u16,
    /// Local identifier of the source.
    pub slid: u16,
}

/// Returns a packet within one subnet, from LRH to VCRC.
///
/// # Panics
/// If the packet exceeds 8 KB, or `ext` does not match the opcode.
pub fn packet(route: &Route, bth: &Bth, ext: &Ext, payload: &[u8]) -> Vec<u8> {
    // Transport headers are those of RoCE. The headers before them are cut off.
    let template = Template::new(&FlowSpec {
        src_mac: [0; 6],
        dst_mac: [0; 6],
        vlan: None,
        src: Gid([0; 16]),
        dst: Gid([0; 16]),
        traffic_class: 0,
        flow_label: 0,
        hop_limit: 0,
        source_port: 0,
        version: RoceVersion::V1,
    });
    let mut headers = [0; MAX_HEADERS];
    let end = template.write_headers(&mut headers, bth, ext, payload.len());
    /// Bytes of the Ethernet header and the GRH.
    const BEFORE: usize = 14 + 40;
    let mut bytes = vec![0; LRH_LEN];
    bytes.extend(&headers[BEFORE..end]);
    bytes.extend(payload);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    // Length in 32-bit words, from the LRH to the ICRC.
    let words = u16::try_from((bytes.len() + 4) / 4)
        .ok()
        .filter(|words| *words < 1 << 11)
        .expect("a packet has 8 KB at most");
    bytes[0] = route.vl << 4;
    // A BTH follows the LRH (LNH 2).
    bytes[1] = route.sl << 4 | 2;
    bytes[2..4].copy_from_slice(&route.dlid.to_be_bytes());
    bytes[4..6].copy_from_slice(&words.to_be_bytes());
    bytes[6..8].copy_from_slice(&route.slid.to_be_bytes());
    let icrc = icrc(&bytes);
    bytes.extend(icrc.to_le_bytes());
    let vcrc = vcrc(&bytes);
    bytes.extend(vcrc.to_le_bytes());
    bytes
}

/// Returns the invariant CRC of a local packet. The virtual lane and byte 4 of the BTH count as ones (IBTA 7.8.1).
fn icrc(bytes: &[u8]) -> u32 {
    let mut masked = bytes.to_vec();
    masked[0] |= 0xf0;
    masked[LRH_LEN + 4] = 0xff;
    crc32fast::hash(&masked)
}

#[cfg(test)]
mod tests {
    use super::*;
    use roxie_wire::{Opcode, Psn, Qpn, Reth};

    #[test]
    fn specification_example_has_its_crcs() {
        let route = Route { vl: 7, sl: 1, dlid: 0x375c, slid: 0x17d2 };
        let bth = Bth {
            opcode: Opcode::RC_WRITE_ONLY,
            pkey: 0x2487,
            dest_qp: Qpn::new(0x87_b1b3),
            psn: Psn::new(0x0d_ec2a),
            ..Bth::default()
        };
        let reth = Reth { va: 0x0171_0a1c_015d_4002, rkey: 0x38f2_7a05, dma_len: 14 };
        let payload = [0xbb, 0x88, 0x4d, 0x85, 0xfd, 0x5c, 0xfb, 0xa4, 0x72, 0x8b, 0xc0, 0x69, 0x0e, 0xd4];
        let bytes = packet(&route, &bth, &Ext::Reth(reth), &payload);
        assert_eq!(bytes[..8], [0x70, 0x12, 0x37, 0x5c, 0x00, 0x0e, 0x17, 0xd2]);
        assert_eq!(bytes[8..12], [0x0a, 0x20, 0x24, 0x87]);
        let end = bytes.len();
        assert_eq!(bytes[end - 6..end - 2], [0x96, 0x25, 0xb7, 0x5a]);
    }
}
