//! Frames of a real peer: parsed fields agree with other decoders, all ICRCs match, and building each frame again gives
//! the same bytes.

use std::fs::File;

use roxie::capture::Reader;
use roxie::frame::{Frame, FrameMut};
use roxie::wire::icrc::solve_ipv4_id;
use roxie::wire::{
    Drop, Ext, FlowSpec, Icrc, MAX_HEADERS, NetHeader, Opcode, Packet, RoceVersion, Template, icrc, parse,
};
use serde::Deserialize;

const CAPTURES: [&str; 3] = ["rxe-6.12-verbs-ipv4", "rxe-6.12-cm", "rxe-6.1-tools"];

#[derive(Deserialize)]
struct Vector {
    name: String,
    hex: String,
    icrc_ok: bool,
    fields: Fields,
}

#[derive(Deserialize)]
struct Fields {
    kind: String,
    opcode: u8,
    se: u8,
    mig: u8,
    pad: u8,
    pkey: u16,
    dqpn: u32,
    ackreq: u8,
    psn: u32,
    udp_sport: u16,
    udp_csum: u16,
    payload_len: usize,
    payload_off: usize,
}

fn data(name: &str) -> String {
    format!("{}/tests/data/{name}", env!("CARGO_MANIFEST_DIR"))
}

fn vectors() -> Vec<Vector> {
    let file = File::open(data("rxe-6.12-core.json")).unwrap();
    serde_json::from_reader(std::io::BufReader::new(file)).unwrap()
}

fn bytes_of(hex: &str) -> Vec<u8> {
    hex.as_bytes()
        .chunks(2)
        .map(|d| u8::from_str_radix(std::str::from_utf8(d).unwrap(), 16).unwrap())
        .collect()
}

/// Returns the frames of a capture with their numbers.
fn frames(capture: &str) -> Vec<(u64, Vec<u8>)> {
    let mut reader = Reader::new(File::open(data(&format!("{capture}.pcap"))).unwrap()).unwrap();
    let mut out = Vec::new();
    while let Some(record) = reader.next().unwrap() {
        out.push((record.number, record.data.to_vec()));
    }
    out
}

/// Builds the frame again from its parsed packet. Identification, TTL and DF are copied from the original.
fn rebuild(bytes: &[u8], p: &Packet) -> Vec<u8> {
    let (version, hop_limit, flow_label) = match p.net {
        NetHeader::Ipv4(h) => (RoceVersion::V2, h.ttl, 0),
        NetHeader::Ipv6(h) => (RoceVersion::V2, h.hop_limit, h.flow_label),
        NetHeader::Grh(h) => (RoceVersion::V1, h.hop_limit, h.flow_label),
    };
    let template = Template::new(&FlowSpec {
        src_mac: p.src_mac,
        dst_mac: p.dst_mac,
        vlan: p.vlan,
        src: p.source_gid(),
        dst: p.dest_gid(),
        traffic_class: p.traffic_class(),
        flow_label,
        hop_limit,
        source_port: p.udp.map_or(0, |u| u.source_port),
        version,
    });
    let mut out = vec![0xee; template.frame_len(p.bth.opcode, p.payload.len())];
    let mut headers = [0; MAX_HEADERS];
    let n = template.write_headers(&mut headers, &p.bth, &Ext::of(p).unwrap(), p.payload.len());
    out[..n].copy_from_slice(&headers[..n]);
    out[n..n + p.payload.len()].copy_from_slice(&bytes[p.payload.clone()]);
    if let NetHeader::Ipv4(_) = p.net {
        // Identification, flags, and the checksum over them.
        out[p.l3_offset + 4..p.l3_offset + 8].copy_from_slice(&bytes[p.l3_offset + 4..p.l3_offset + 8]);
        out[p.l3_offset + 10..p.l3_offset + 12].copy_from_slice(&bytes[p.l3_offset + 10..p.l3_offset + 12]);
    }
    if p.udp.is_some() {
        out[p.bth_offset - 2..p.bth_offset].copy_from_slice(&bytes[p.bth_offset - 2..p.bth_offset]);
    }
    let mut frame = FrameMut { a: &mut out, b: &mut [] };
    template.seal(&mut frame);
    // The peer's FLUSH has a wrong ICRC, which `seal_as_rxe` computes as well.
    template.seal_as_rxe(&mut frame);
    out
}

#[test]
fn fields_agree_with_two_decoders() {
    let all = vectors();
    assert_eq!(all.len(), 111);
    for v in &all {
        let bytes = bytes_of(&v.hex);
        let p = parse(&Frame::whole(&bytes)).unwrap_or_else(|e| panic!("{}: {e}", v.name));
        let f = &v.fields;
        let ours = (p.bth.opcode.0, p.bth.psn.value(), p.bth.dest_qp.value(), p.bth.pkey, p.bth.pad);
        assert_eq!(ours, (f.opcode, f.psn, f.dqpn, f.pkey, f.pad), "{}", v.name);
        let flags = [p.bth.solicited, p.bth.mig_req, p.bth.ack_req].map(u8::from);
        assert_eq!(flags, [f.se, f.mig, f.ackreq], "{}", v.name);
        let udp = p.udp.unwrap();
        assert_eq!((udp.source_port, udp.checksum), (f.udp_sport, f.udp_csum), "{}", v.name);
        // The other decoders count ATOMIC WRITE's and FLUSH's headers as payload.
        if ![Opcode::RC_ATOMIC_WRITE, Opcode::RC_FLUSH].contains(&p.bth.opcode) {
            assert_eq!((p.payload.len(), p.payload.start), (f.payload_len, f.payload_off), "{}", v.name);
        }
        assert_eq!(matches!(p.net, NetHeader::Ipv6(_)), f.kind == "v2-ipv6", "{}", v.name);
    }
}

//= test: IBTA 7.8.1: icrc-covers-what-stays-the-same
#[test]
fn icrcs_match_at_every_split() {
    for v in vectors() {
        let bytes = bytes_of(&v.hex);
        let p = parse(&Frame::whole(&bytes)).unwrap();
        for split in (0..bytes.len().min(160)).chain([bytes.len() - 2, bytes.len()]) {
            let (a, b) = bytes.split_at(split);
            let ok = p.check_icrc(&Frame { a, b }) == Icrc::Ok;
            assert_eq!(ok, v.icrc_ok, "{} split at {split}", v.name);
        }
        assert_eq!(v.icrc_ok, p.bth.opcode != Opcode::RC_FLUSH);
    }
}

//= test: IBTA 9.3: headers-follow-the-opcode
//= test: IBTA 9.4.5: atomic-request-has-its-operands
#[test]
fn rebuilt_frames_have_the_same_bytes() {
    let json = vectors().into_iter().map(|v| bytes_of(&v.hex));
    let captured = CAPTURES.iter().flat_map(|c| frames(c)).map(|(_, bytes)| bytes);
    let mut count = 0;
    for bytes in json.chain(captured) {
        let p = match parse(&Frame::whole(&bytes)) {
            Ok(p) => p,
            Err(Drop::NotRoce | Drop::Ipv6Extension(_)) => continue,
            Err(e) => panic!("{e}"),
        };
        assert_eq!(rebuild(&bytes, &p), bytes, "{p}");
        count += 1;
    }
    assert_eq!(count, 111 + 282 + 85 + 190);
}

#[test]
fn captured_frames_agree_with_tshark() {
    for capture in CAPTURES {
        let text = std::fs::read_to_string(data(&format!("{capture}.tsv"))).unwrap();
        let number = |s: &str| match s.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16).unwrap(),
            None => s.parse().unwrap(),
        };
        let theirs: Vec<Vec<u64>> = text.lines().map(|l| l.split('\t').map(number).collect()).collect();
        let mut ours = Vec::new();
        for (n, bytes) in frames(capture) {
            let frame = Frame::whole(&bytes);
            let Ok(p) = parse(&frame) else { continue };
            assert_eq!(p.check_icrc(&frame), Icrc::Ok, "{capture} frame {n}");
            let b = &p.bth;
            let words = [b.opcode.0.into(), b.psn.value().into(), b.dest_qp.value().into(), b.pkey.into()];
            ours.push([&[n][..], &words].concat());
        }
        assert_eq!(ours, theirs, "{capture}");
    }
}

#[test]
fn captured_identifications_can_be_solved_for() {
    let mut solved = 0;
    for (n, mut bytes) in CAPTURES.iter().flat_map(|c| frames(c)) {
        let Ok(p) = parse(&Frame::whole(&bytes)) else { continue };
        let NetHeader::Ipv4(ip) = p.net else { continue };
        let stored = u32::from_le_bytes(bytes[p.icrc_offset..p.icrc_offset + 4].try_into().unwrap());
        bytes[p.l3_offset + 4..p.l3_offset + 6].fill(0);
        let computed = icrc::compute(&Frame::whole(&bytes), p.l3_offset, p.icrc_offset);
        let id = solve_ipv4_id(computed, stored, p.icrc_offset - p.l3_offset - 6);
        assert_eq!(id, Some(ip.id), "frame {n}");
        solved += 1;
    }
    assert!(solved > 400, "{solved} frames");
}
