//! Properties of building and parsing: built packets parse, no input panics, no flip of a covered bit goes
//! undetected.

use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

use super::*;
use crate::frame::{Frame, FrameMut};

const OPCODES_SENT: fn(&&OpcodeInfo) -> bool = |row| row.service != Service::Rd;

fn opcodes() -> impl Strategy<Value = &'static OpcodeInfo> {
    prop::sample::select(Opcode::all().filter(OPCODES_SENT).collect::<Vec<_>>())
}

prop_compose! {
    fn flows()(
        macs in any::<([u8; 6], [u8; 6])>(),
        vlan in any::<Option<u16>>(),
        v4 in any::<bool>(),
        hosts in any::<(u128, u128)>(),
        (traffic_class, hop_limit) in any::<(u8, u8)>(),
        flow_label in 0u32..1 << 20,
        source_port in any::<u16>(),
        v1 in any::<bool>(),
    ) -> FlowSpec {
        let gid = |host: u128| match v4 {
            true => Gid::from(core::net::Ipv4Addr::from(host as u32)),
            false => Gid((host | 1 << 127).to_be_bytes()),
        };
        let version = if v1 { RoceVersion::V1 } else { RoceVersion::V2 };
        FlowSpec {
            src_mac: macs.0, dst_mac: macs.1, vlan, src: gid(hosts.0), dst: gid(hosts.1),
            traffic_class, flow_label, hop_limit, source_port, version,
        }
    }
}

prop_compose! {
    fn bths()(
        (solicited, mig_req, fecn, becn, ack_req) in any::<(bool, bool, bool, bool, bool)>(),
        pkey in any::<u16>(),
        (reserved6, reserved7) in (0u8..64, 0u8..128),
        (qpn, psn) in any::<(u32, u32)>(),
    ) -> Bth {
        Bth {
            opcode: Opcode::RC_SEND_ONLY, solicited, mig_req, pad: 0, tver: 0, pkey, fecn, becn, reserved6,
            dest_qp: Qpn::new(qpn), ack_req, reserved7, psn: Psn::new(psn),
        }
    }
}

/// Returns the headers that `row` requires, filled from the numbers `n`.
fn ext_for(row: &OpcodeInfo, n: (u64, u64, u64, u32, u32)) -> Ext {
    let (x, y, z, k, w) = n;
    let reth = Reth { va: x, rkey: k, dma_len: w };
    let atomic = AtomicEth { va: x, rkey: k, swap_or_add: y, compare: z };
    let aeth = Aeth { syndrome: w as u8, msn: k & 0xff_ffff };
    let deth = Deth { qkey: k, src_qp: Qpn::new(w) };
    let (xrc, feth) = (XrcEth { srqn: w & 0xff_ffff }, Feth(k));
    let all = [
        Ext::None,
        Ext::Reth(reth),
        Ext::RethImm(reth, w),
        Ext::Imm(w),
        Ext::Ieth(w),
        Ext::Aeth(aeth),
        Ext::AtomicAck(aeth, y),
        Ext::Sack(
            aeth,
            Sack { count: k as u8, latest: Psn::new(w), bitmap: u128::from(x) << 64 | u128::from(z) },
        ),
        Ext::Atomic(atomic),
        Ext::FlushReth(feth, reth),
        Ext::Deth(deth),
        Ext::DethImm(deth, k),
        Ext::Xrc(xrc),
        Ext::XrcReth(xrc, reth),
        Ext::XrcRethImm(xrc, reth, k),
        Ext::XrcImm(xrc, k),
        Ext::XrcIeth(xrc, k),
        Ext::XrcAtomic(xrc, atomic),
        Ext::XrcFlushReth(xrc, feth, reth),
    ];
    let wanted = if row.opcode == Opcode::CNP { Headers::NONE } else { row.headers };
    all.into_iter().find(|e| e.headers() == wanted).expect("every sent opcode has its Ext")
}

/// Builds a sealed frame in two pieces of memory that hold 0xee.
fn build(flow: &FlowSpec, bth: &Bth, ext: &Ext, payload: &[u8], split: usize) -> Vec<u8> {
    let template = Template::new(flow);
    let len = template.frame_len(bth.opcode, payload.len());
    let mut bytes = vec![0xee; len];
    let mut headers = [0xdd; MAX_HEADERS];
    let n = template.write_headers(&mut headers, bth, ext, payload.len());
    let (a, b) = bytes.split_at_mut(split % (len + 1));
    let mut frame = FrameMut { a, b };
    frame.write(0, &headers[..n]);
    frame.write(n, payload);
    template.seal(&mut frame);
    bytes
}

/// Failed cases are kept next to this file, and run first.
fn regressions_in_this_folder() -> ProptestConfig {
    let persistence = FileFailurePersistence::WithSource("regressions");
    ProptestConfig { failure_persistence: Some(Box::new(persistence)), ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(regressions_in_this_folder())]

    //= test: IBTA A17.4.5.1: roce-v2-is-never-fragmented
    //= test: IBTA A17.4.5: addresses-and-class-come-from-the-path
    //= test: IBTA 9.2: pad-makes-whole-words
    //= test: IBTA 9.3: headers-follow-the-opcode
    #[test]
    fn built_packet_parses_to_itself(
        flow in flows(), bth in bths(), row in opcodes(), numbers in any::<(u64, u64, u64, u32, u32)>(),
        payload in prop::collection::vec(any::<u8>(), 0..300), split in any::<usize>(),
    ) {
        let cnp = row.opcode == Opcode::CNP;
        let payload = if cnp { &[][..] } else { &payload[..] };
        let bth = Bth { opcode: row.opcode, ..bth };
        let ext = ext_for(row, numbers);
        let bytes = build(&flow, &bth, &ext, payload, split);
        let (a, b) = bytes.split_at(split / 3 % (bytes.len() + 1));
        let frame = Frame { a, b };
        let p = parse(&frame).unwrap();
        let pad = payload.len().wrapping_neg() as u8 & 3;
        prop_assert_eq!(p.check_icrc(&frame), Icrc::Ok);
        prop_assert_eq!(p.bth, Bth { pad, ..bth });
        prop_assert_eq!(Ext::of(&p), Some(ext));
        prop_assert_eq!(&bytes[p.payload.clone()], payload);
        prop_assert!(bytes[p.payload.end..p.icrc_offset].iter().all(|&b| b == 0), "pad is zero");
        prop_assert_eq!(p.icrc_offset + 4, bytes.len());
        prop_assert_eq!((p.source_gid(), p.dest_gid()), (flow.src, flow.dst));
        prop_assert_eq!((p.src_mac, p.dst_mac, p.vlan), (flow.src_mac, flow.dst_mac, flow.vlan));
        prop_assert_eq!(p.traffic_class(), flow.traffic_class);
        match p.net {
            NetHeader::Ipv4(h) => prop_assert!(h.checksum_ok && h.dont_fragment && h.id == 0),
            NetHeader::Ipv6(h) | NetHeader::Grh(h) => prop_assert_eq!(h.flow_label, flow.flow_label),
        }
        prop_assert_eq!(p.udp.map(|u| u.source_port), match flow.version {
            RoceVersion::V1 => None,
            RoceVersion::V2 => Some(flow.source_port),
        });
    }

    #[test]
    fn damaged_frame_parses_or_drops_at_any_split(
        flow in flows(), bth in bths(), row in opcodes(),
        payload in prop::collection::vec(any::<u8>(), 0..64),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
        cut in any::<prop::sample::Index>(), split in any::<prop::sample::Index>(),
    ) {
        let payload = if row.opcode == Opcode::CNP { &[][..] } else { &payload[..] };
        let bth = Bth { opcode: row.opcode, ..bth };
        let mut bytes = build(&flow, &bth, &ext_for(row, (1, 2, 3, 4, 5)), payload, 0);
        for (at, value) in damage {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        bytes.truncate(cut.index(bytes.len() * 4).max(1));
        examine(&bytes, split.index(bytes.len() + 1));
    }

    #[test]
    fn arbitrary_bytes_parse_or_drop(
        bytes in prop::collection::vec(any::<u8>(), 0..200), split in any::<prop::sample::Index>(),
    ) {
        examine(&bytes, split.index(bytes.len() + 1));
    }
}

/// Calls every operation on a frame, and compares the split frame with the whole one.
fn examine(bytes: &[u8], split: usize) {
    let whole = Frame::whole(bytes);
    let (a, b) = bytes.split_at(split);
    let frame = Frame { a, b };
    let parsed = parse(&frame);
    assert_eq!(parsed, parse(&whole));
    assert_eq!(parsed, super::parse::parse_any(&frame));
    match parsed {
        Ok(p) => {
            assert_eq!(p.check_icrc(&frame), p.check_icrc(&whole));
            assert_eq!(p.udp_checksum(&frame), p.udp_checksum(&whole));
            assert!(p.payload.start <= p.payload.end && p.payload.end <= bytes.len());
            assert!(p.to_string().contains(p.info().name));
            assert!(!p.full().to_string().is_empty());
        }
        Err(reason) => assert!(reason.counter().starts_with("rx_") && !reason.to_string().is_empty()),
    }
    let _ =
        Envelope::from_ethernet(&frame, bytes.len() + 1000).map(|e| (e.to_string(), e.check_icrc(&frame)));
    for ether_type in [0x0800, 0x86dd, 0x8915, 0x8100] {
        let _ = Envelope::from_network(&frame, ether_type, split, bytes.len());
    }
    let _ = mac_control::MacControl::parse(&frame);
}

fn flow(version: RoceVersion, src: &str, dst: &str) -> FlowSpec {
    let gid = |s: &str| Gid::from(s.parse::<core::net::IpAddr>().unwrap());
    FlowSpec {
        src_mac: [2, 0, 0, 0, 0, 1],
        dst_mac: [2, 0, 0, 0, 0, 2],
        vlan: Some(0x6005),
        src: gid(src),
        dst: gid(dst),
        traffic_class: 0x6a,
        flow_label: 0x12345,
        hop_limit: 64,
        source_port: 0xc123,
        version,
    }
}

/// Bits that the ICRC does not cover, as offset from L3 and mask. A second copy of the rule, from the
/// specification.
const IPV4_UNCOVERED: &[(usize, u8)] =
    &[(1, 0xff), (8, 0xff), (10, 0xff), (11, 0xff), (26, 0xff), (27, 0xff), (32, 0xff)];
const IPV6_UNCOVERED: &[(usize, u8)] =
    &[(0, 0x0f), (1, 0xff), (2, 0xff), (3, 0xff), (7, 0xff), (46, 0xff), (47, 0xff), (52, 0xff)];
const GRH_UNCOVERED: &[(usize, u8)] = &[(0, 0x0f), (1, 0xff), (2, 0xff), (3, 0xff), (7, 0xff), (44, 0xff)];

//= test: IBTA 7.8.1: icrc-covers-what-stays-the-same
#[test]
fn icrc_detects_exactly_flips_of_covered_bits() {
    for (version, src, dst, uncovered) in [
        (RoceVersion::V2, "10.0.0.1", "10.0.0.2", IPV4_UNCOVERED),
        (RoceVersion::V2, "fd00::1", "fd00::2", IPV6_UNCOVERED),
        (RoceVersion::V1, "fe80::1", "fe80::2", GRH_UNCOVERED),
    ] {
        let bth = Bth { opcode: Opcode::RC_WRITE_ONLY, dest_qp: Qpn::new(17), ..Bth::default() };
        let reth = Reth { va: 0x1000, rkey: 7, dma_len: 333 };
        let payload: Vec<u8> = (0..333u32).map(|i| (i * 7) as u8).collect();
        let mut bytes = build(&flow(version, src, dst), &bth, &Ext::Reth(reth), &payload, 60);
        let p = parse(&Frame::whole(&bytes)).unwrap();
        for bit in 0..bytes.len() * 8 {
            let (at, mask) = (bit / 8, 1u8 << (bit % 8));
            bytes[at] ^= mask;
            let below = at < p.l3_offset;
            let hole = !below && uncovered.iter().any(|&(o, m)| o == at - p.l3_offset && m & mask != 0);
            let ok = p.check_icrc(&Frame::whole(&bytes)) == Icrc::Ok;
            assert_eq!(ok, below || hole, "bit {} of byte {at}, L3 at {}", bit % 8, p.l3_offset);
            bytes[at] ^= mask;
        }
    }
}

/// Computes CRC-32 bit by bit, by its definition.
fn slow_crc(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |c: u32, _| c >> 1 ^ (c & 1).wrapping_neg() & 0xedb8_8320)
    })
}

/// Compares both parsers on each single-bit flip, truncation and split of a frame that takes the fast path.
#[test]
fn fast_and_full_parser_agree() {
    let flow = FlowSpec { vlan: None, ..flow(RoceVersion::V2, "10.0.0.1", "10.0.0.2") };
    for row in Opcode::all().filter(OPCODES_SENT) {
        let bth = Bth { opcode: row.opcode, dest_qp: Qpn::new(17), ..Bth::default() };
        let payload = if row.opcode == Opcode::CNP { &[][..] } else { &[1, 2, 3, 4, 5, 6] };
        let mut bytes = build(&flow, &bth, &ext_for(row, (1, 2, 3, 4, 5)), payload, 60);
        let same = |frame: Frame<'_>| {
            let parsed = parse(&frame);
            assert_eq!(parsed, super::parse::parse_any(&frame), "{}", row.name);
            parsed.is_ok()
        };
        assert!(same(Frame::whole(&bytes)));
        for at in 0..=bytes.len() {
            same(Frame::whole(&bytes[..at]));
            let (a, b) = bytes.split_at(at);
            assert!(same(Frame { a, b }));
        }
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            same(Frame::whole(&bytes));
            // Split as the UDP port splits it.
            let (a, b) = bytes.split_at(42);
            same(Frame { a, b });
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        // Inconsistent lengths.
        for (at, bit) in [(16, 0), (16, 1), (17, 7), (38, 0), (39, 2)] {
            for other in 0..16 {
                let saved = bytes.clone();
                bytes[at] ^= 1 << bit;
                bytes[39] = bytes[39].wrapping_add(other).wrapping_sub(8);
                same(Frame::whole(&bytes));
                bytes = saved;
            }
        }
    }
}

#[test]
fn icrc_covers_ipv4_options_not_trailing_bytes() {
    let f = FlowSpec { vlan: None, ..flow(RoceVersion::V2, "10.0.0.1", "10.0.0.2") };
    let plain = build(&f, &Bth::default(), &Ext::None, b"abc", 0);
    // Four bytes of options (three no-ops and an end) between the IP header and UDP.
    let mut bytes = [&plain[..34], &[1, 1, 1, 0][..], &plain[34..], &[0xaa; 9][..]].concat();
    bytes[14] = 0x46;
    let total = (plain.len() - 14 + 4) as u16;
    bytes[16..18].copy_from_slice(&total.to_be_bytes());
    let end = bytes.len() - 9 - 4;
    let mut covered = [&[0xff; 8][..], &bytes[14..end]].concat();
    for at in [1, 8, 10, 11, 30, 31, 36] {
        covered[8 + at] = 0xff;
    }
    bytes[end..end + 4].copy_from_slice(&slow_crc(&covered).to_le_bytes());
    let frame = Frame::whole(&bytes);
    let p = parse(&frame).unwrap();
    assert_eq!((&bytes[p.payload.clone()], p.icrc_offset), (&b"abc"[..], end));
    assert_eq!(p.check_icrc(&frame), Icrc::Ok);
    assert!(matches!(p.net, NetHeader::Ipv4(h) if h.header_len == 24 && !h.checksum_ok));
    bytes[36] ^= 1;
    assert_ne!(p.check_icrc(&Frame::whole(&bytes)), Icrc::Ok);
}

#[test]
fn two_vlan_tags_are_kept() {
    let plain = build(&flow(RoceVersion::V2, "10.0.0.1", "10.0.0.2"), &Bth::default(), &Ext::None, &[], 0);
    let bytes = [&plain[..12], &[0x88, 0xa8, 0x20, 0x07][..], &plain[12..]].concat();
    let frame = Frame::whole(&bytes);
    let p = parse(&frame).unwrap();
    assert_eq!((p.outer_vlan, p.vlan), (Some(0x2007), Some(0x6005)));
    assert_eq!(p.check_icrc(&frame), Icrc::Ok);
}

//= test: IBTA A17.4.3: roce-v2-has-its-udp-port
//= test: IBTA A17.4.5.1: roce-v2-is-never-fragmented
//= test: IBTA A16: roce-v1-has-a-grh
//= test: IBTA 9.2.1: opcode-has-service-and-operation
//= test: IBTA 9.6.1: transport-version-is-zero, packet-is-whole-words
#[test]
fn each_malformed_frame_has_its_drop_reason() {
    let f = FlowSpec { vlan: None, ..flow(RoceVersion::V2, "10.0.0.1", "10.0.0.2") };
    let good = build(&f, &Bth::default(), &Ext::None, b"abc", 0);
    let with = |changes: &[(usize, u8)]| {
        let mut bytes = good.clone();
        for &(at, value) in changes {
            bytes[at] = value;
        }
        parse(&Frame::whole(&bytes)).unwrap_err()
    };
    assert_eq!(with(&[(12, 0x08), (13, 0x06)]), Drop::NotRoce);
    assert_eq!(with(&[(37, 0x35)]), Drop::NotRoce);
    assert_eq!(with(&[(12, 0x88), (13, 0x08)]), Drop::MacControl);
    assert_eq!(with(&[(14, 0x44)]), Drop::BadIpHeader { version: 4, header_len: 16, total_len: 48 });
    assert_eq!(with(&[(20, 0x20)]), Drop::Fragment { offset: 0, more: true });
    assert_eq!(with(&[(20, 0x00), (21, 0x05)]), Drop::Fragment { offset: 40, more: false });
    assert_eq!(with(&[(39, 60)]), Drop::BadUdpLength { udp_len: 60, ip_payload: 28 });
    assert_eq!(with(&[(17, 49)]), Drop::Truncated { what: "IP packet", need: 63, have: 62 });
    assert_eq!(with(&[(42, 0x1f)]), Drop::UnknownOpcode(0x1f));
    assert_eq!(with(&[(43, 0x12)]), Drop::BadTransportVersion(2));
    assert_eq!(with(&[(42, 0x11), (43, 0x30)]), Drop::BadPad { pad: 3, available: 0 });
    assert_eq!(with(&[(42, 0x0a)]), Drop::Truncated { what: "headers behind the BTH", need: 74, have: 62 });
    let v6 = FlowSpec { vlan: None, ..flow(RoceVersion::V2, "fd00::1", "fd00::2") };
    let mut bytes = build(&v6, &Bth::default(), &Ext::None, b"abc", 0);
    bytes[20] = 44;
    assert_eq!(parse(&Frame::whole(&bytes)), Err(Drop::Ipv6Extension(44)));
    let grh = FlowSpec { version: RoceVersion::V1, ..v6 };
    let mut bytes = build(&grh, &Bth::default(), &Ext::None, b"abc", 0);
    assert_eq!(bytes[20], 0x1b, "the next header of a GRH");
    bytes[20] = 17;
    assert_eq!(parse(&Frame::whole(&bytes)), Err(Drop::BadGrhNextHeader(17)));
}

//= test: IBTA 9.3: headers-follow-the-opcode
//= test: IBTA 9.6.1: packet-is-whole-words
#[test]
fn short_packet_is_dropped_for_every_opcode() {
    let f = flow(RoceVersion::V2, "10.0.0.1", "10.0.0.2");
    for row in Opcode::all() {
        for len in (0..=44).step_by(4) {
            for pad in 0..4u8 {
                let mut bytes = build(&f, &Bth::default(), &Ext::None, &vec![7; len], 0);
                bytes[46] = row.opcode.0;
                bytes[47] = pad << 4;
                let remaining = len.checked_sub(row.headers.len());
                let parsed = parse(&Frame::whole(&bytes)).map(|p| p.payload.len());
                match remaining {
                    None => assert!(matches!(parsed, Err(Drop::Truncated { .. })), "{} in {len}", row.name),
                    Some(available) if available < pad.into() => {
                        assert_eq!(parsed, Err(Drop::BadPad { pad, available }), "{}", row.name);
                    }
                    Some(available) => assert_eq!(parsed, Ok(available - usize::from(pad)), "{}", row.name),
                }
            }
        }
    }
}

#[test]
fn packet_displays_as_one_line() {
    let bth = Bth {
        opcode: Opcode::RC_WRITE_ONLY_IMM,
        dest_qp: Qpn::new(0x11),
        psn: Psn::new(256),
        ack_req: true,
        ..Bth::default()
    };
    let ext = Ext::RethImm(Reth { va: 0x7f00, rkey: 0x1234, dma_len: 3 }, 0xfeed);
    let bytes = build(&flow(RoceVersion::V2, "10.0.0.1", "10.0.0.2"), &bth, &ext, b"abc", 0);
    assert_eq!(
        parse(&Frame::whole(&bytes)).unwrap().to_string(),
        "10.0.0.1 > 10.0.0.2 vlan 5 prio 3 RC_WRITE_ONLY_IMM qp 0x000011 psn 256 ackreq \
         va 0x7f00 rkey 0x00001234 dma_len 3 imm 0x0000feed len 3 pad 1"
    );
}

//= test: IBTA A17.4.3: roce-v2-udp-checksum-may-be-zero
#[test]
fn udp_checksum_is_classified() {
    let mut bytes = build(
        &FlowSpec { vlan: None, ..flow(RoceVersion::V2, "10.0.0.1", "10.0.0.2") },
        &Bth::default(),
        &Ext::None,
        b"abc",
        0,
    );
    let verdict = |bytes: &[u8]| {
        let frame = Frame::whole(bytes);
        parse(&frame).unwrap().udp_checksum(&frame).unwrap()
    };
    assert_eq!(verdict(&bytes), net::UdpChecksum::Zero);
    // Pseudo header: 0a00 + 0001 + 0a00 + 0002 + protocol 17 + length 28.
    bytes[40..42].copy_from_slice(&0x1430u16.to_be_bytes());
    assert_eq!(verdict(&bytes), net::UdpChecksum::Partial);
    bytes[40..42].copy_from_slice(&1u16.to_be_bytes());
    let net::UdpChecksum::Bad { computed } = verdict(&bytes) else { panic!("1 is wrong") };
    bytes[40..42].copy_from_slice(&computed.to_be_bytes());
    assert_eq!(verdict(&bytes), net::UdpChecksum::Valid);
    assert_eq!(parse(&Frame::whole(&bytes)).unwrap().check_icrc(&Frame::whole(&bytes)), Icrc::Ok);
}

//= test: IBTA A17.4.3: roce-v2-source-port-tells-flows-apart
#[test]
fn entropy_port_equals_rxe() {
    for (l, r, port) in [(17, 17, 49441), (18, 18, 49476), (22, 22, 49636)] {
        assert_eq!(entropy_port(Qpn::new(l), Qpn::new(r)), port);
    }
    assert_eq!(
        entropy_port(Qpn::new(0xabcdef), Qpn::new(0x123456)),
        entropy_port(Qpn::new(0x123456), Qpn::new(0xabcdef))
    );
    // All 44 bits of the product matter. The expected port is computed by hand from the kernel's formula.
    assert_eq!(entropy_port(Qpn::new(0xabcdef), Qpn::new(0x123456)), 50_120);
}
