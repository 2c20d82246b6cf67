//! RoCE packets inside tags, labels, tunnels and extension headers.

use std::process::{Command, Stdio};

use super::*;
use crate::in_time::CommandInTime;

/// Base of the PSNs; each packet adds its index.
const PSN: u32 = 0x00ab_c000;
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const BRIDGED: u16 = 0x6558;

fn inner(i: usize) -> Vec<u8> {
    frame(Opcode::RC_SEND_ONLY, PSN + i as u32, b"abcd", 7)
}

fn ethernet(ether_type: u16, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 8];
    bytes.extend(ether_type.to_be_bytes());
    bytes.extend(content);
    bytes
}

fn ipv4(protocol: u8, fragment: u16, content: &[u8]) -> Vec<u8> {
    let mut header = vec![0x45, 0, 0, 0, 0, 1, 0, 0, 64, protocol, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2];
    header[2..4].copy_from_slice(&(20 + content.len() as u16).to_be_bytes());
    header[6..8].copy_from_slice(&fragment.to_be_bytes());
    let words = header.chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])));
    let sum: u32 = words.sum();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    [header, content.to_vec()].concat()
}

fn ipv6(next: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x60, 0, 0, 0];
    bytes.extend((content.len() as u16).to_be_bytes());
    bytes.extend([next, 64]);
    for last in [1, 2] {
        bytes.extend([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
    }
    bytes.extend(content);
    bytes
}

fn udp(port: u16, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0xc0, 0];
    bytes.extend(port.to_be_bytes());
    bytes.extend((8 + content.len() as u16).to_be_bytes());
    bytes.extend([0, 0]);
    bytes.extend(content);
    bytes
}

/// Returns an Ethernet frame with a UDP datagram.
fn datagram(port: u16, header: &[u8], content: &[u8]) -> Vec<u8> {
    ethernet(IPV4, &ipv4(17, 0, &udp(port, &[header, content].concat())))
}

fn gre(flags: u16, protocol: u16, options: &[u8], content: &[u8]) -> Vec<u8> {
    let header = [&flags.to_be_bytes()[..], &protocol.to_be_bytes(), options, content].concat();
    ethernet(IPV4, &ipv4(47, 0, &header))
}

fn tagged(types: &[u16], whole: &[u8]) -> Vec<u8> {
    let mut bytes = whole[..12].to_vec();
    for (i, tpid) in types.iter().enumerate() {
        bytes.extend(tpid.to_be_bytes());
        bytes.extend((10 + i as u16).to_be_bytes());
    }
    bytes.extend(&whole[12..]);
    bytes
}

/// Returns a RoCE packet over IPv6.
fn over_ipv6(i: usize) -> Vec<u8> {
    let template = Template::new(&FlowSpec {
        src_mac: [2, 0, 0, 0, 0, 1],
        dst_mac: [2, 0, 0, 0, 0, 2],
        vlan: None,
        src: Gid("2001:db8::1".parse::<std::net::Ipv6Addr>().unwrap().octets()),
        dst: Gid("2001:db8::2".parse::<std::net::Ipv6Addr>().unwrap().octets()),
        traffic_class: 0,
        flow_label: 0,
        hop_limit: 64,
        source_port: 0xc000,
        version: RoceVersion::V2,
    });
    let (opcode, payload) = (Opcode::RC_SEND_ONLY, b"abcd");
    let bth = Bth { opcode, dest_qp: Qpn::new(18), psn: Psn::new(PSN + i as u32), ..Bth::default() };
    let mut bytes = vec![0; template.frame_len(opcode, payload.len())];
    let mut headers = [0; MAX_HEADERS];
    let n = template.write_headers(&mut headers, &bth, &Ext::None, payload.len());
    bytes[..n].copy_from_slice(&headers[..n]);
    bytes[n..n + payload.len()].copy_from_slice(payload);
    template.seal(&mut FrameMut { a: &mut bytes, b: &mut [] });
    bytes
}

/// Inserts extension headers into an IPv6 packet, in front of UDP: (number, bytes after the next-header field).
fn extended(whole: &[u8], extensions: &[(u8, &[u8])]) -> Vec<u8> {
    let mut chain = Vec::new();
    for (i, (_, rest)) in extensions.iter().enumerate() {
        chain.push(extensions.get(i + 1).map_or(17, |(number, _)| *number));
        chain.extend(*rest);
    }
    let mut bytes = whole[..54].to_vec();
    let len = u16::from_be_bytes([whole[18], whole[19]]) + chain.len() as u16;
    bytes[18..20].copy_from_slice(&len.to_be_bytes());
    bytes[20] = extensions[0].0;
    bytes.extend(chain);
    bytes.extend(&whole[54..]);
    bytes
}

const OPTIONS: (u8, &[u8]) = (0, &[0, 1, 4, 0, 0, 0, 0]);
const DESTINATION: (u8, &[u8]) = (60, &[1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
const ROUTING: (u8, &[u8]) =
    (43, &[2, 4, 0, 0, 0, 0, 0, 0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
const WHOLE_FRAGMENT: (u8, &[u8]) = (44, &[0, 0, 0, 0, 0, 0, 5]);

/// Builds the frame with an index.
type Make = fn(usize) -> Vec<u8>;

/// The layers around a packet, and a frame with them.
const LAYERS: &[(&str, Make)] = &[
    ("", inner),
    ("VXLAN vni 42", |i| datagram(4789, &[8, 0, 0, 0, 0, 0, 42, 0], &inner(i))),
    ("VXLAN vni 42", |i| datagram(8472, &[8, 0, 0, 0, 0, 0, 42, 0], &inner(i))),
    ("VXLAN vni 42", |i| {
        ethernet(IPV6, &ipv6(17, &udp(4789, &[&[8, 0, 0, 0, 0, 0, 42, 0][..], &inner(i)].concat())))
    }),
    ("VXLAN-GPE vni 7", |i| datagram(4790, &[0xc, 0, 0, 1, 0, 0, 7, 0], &inner(i)[14..])),
    ("VXLAN-GPE vni 7", |i| datagram(4790, &[0xc, 0, 0, 3, 0, 0, 7, 0], &inner(i))),
    ("GENEVE vni 43", |i| datagram(6081, &[0, 0, 0x65, 0x58, 0, 0, 43, 0], &inner(i))),
    ("GENEVE vni 43", |i| {
        datagram(6081, &[2, 0, 8, 0, 0, 0, 43, 0, 1, 2, 3, 1, 0, 0, 0, 0], &inner(i)[14..])
    }),
    ("GRE", |i| gre(0, IPV4, &[], &inner(i)[14..])),
    ("GRE", |i| gre(0, IPV6, &[], &over_ipv6(i)[14..])),
    ("GRE", |i| gre(0, BRIDGED, &[], &inner(i))),
    ("GRE key 513", |i| gre(0x2000, BRIDGED, &[0, 0, 2, 1], &inner(i))),
    ("GRE key 9", |i| gre(0xb000, IPV4, &[0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 1], &inner(i)[14..])),
    ("GRE", |i| datagram(4754, &[0, 0, 8, 0], &inner(i)[14..])),
    ("GRE, ERSPAN", |i| gre(0, 0x88be, &[], &inner(i))),
    ("GRE, ERSPAN session 5", |i| gre(0x1000, 0x88be, &[0, 0, 0, 1, 0x10, 1, 0, 5, 0, 0, 0, 0], &inner(i))),
    ("GRE, ERSPAN session 6", |i| {
        gre(0x1000, 0x22eb, &[0, 0, 0, 1, 0x20, 1, 0, 6, 0, 0, 0, 0, 0, 0, 0, 0], &inner(i))
    }),
    ("GRE, ERSPAN session 6", |i| {
        let header = [0, 0, 0, 1, 0x20, 1, 0, 6, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0];
        gre(0x1000, 0x22eb, &header, &inner(i))
    }),
    ("MPLS label 16, MPLS label 17", |i| {
        ethernet(0x8847, &[&[0, 1, 0, 64, 0, 1, 0x11, 64][..], &inner(i)[14..]].concat())
    }),
    ("MPLS label 17", |i| ethernet(0x8847, &[&[0, 1, 0x11, 64][..], &over_ipv6(i)[14..]].concat())),
    ("MPLS label 17", |i| ethernet(0x8847, &[&[0, 1, 0x11, 64, 0, 0, 0, 0][..], &inner(i)].concat())),
    ("MPLS label 17", |i| ethernet(0x8848, &[&[0, 1, 0x11, 64][..], &inner(i)].concat())),
    ("GRE, MPLS label 17", |i| gre(0, 0x8847, &[0, 1, 0x11, 64], &inner(i)[14..])),
    ("MPLS label 17", |i| datagram(6635, &[0, 1, 0x11, 64], &inner(i)[14..])),
    ("MPLS label 17", |i| ethernet(IPV4, &ipv4(137, 0, &[&[0, 1, 0x11, 64][..], &inner(i)[14..]].concat()))),
    ("VLAN vlan 10", |i| tagged(&[0x88a8, 0x8100, 0x8100], &inner(i))),
    ("VLAN vlan 10, VLAN vlan 11", |i| tagged(&[0x8100, 0x8100, 0x8100, 0x8100], &inner(i))),
    ("", |i| tagged(&[0x9100, 0x8100], &inner(i))),
    ("VLAN vlan 10", |i| tagged(&[0x9100, 0x9100, 0x8100], &inner(i))),
    ("IP-in-IP", |i| ethernet(IPV4, &ipv4(4, 0, &inner(i)[14..]))),
    ("IPv6-in-IP", |i| ethernet(IPV4, &ipv4(41, 0, &over_ipv6(i)[14..]))),
    ("IP-in-IP", |i| ethernet(IPV6, &ipv6(4, &inner(i)[14..]))),
    ("IPv6-in-IP", |i| ethernet(IPV6, &ipv6(41, &over_ipv6(i)[14..]))),
    ("EtherIP", |i| ethernet(IPV4, &ipv4(97, 0, &[&[0x30, 0][..], &inner(i)].concat()))),
    ("PPPoE session 3", |i| {
        let content = inner(i)[14..].to_vec();
        let len = (content.len() as u16 + 2).to_be_bytes();
        ethernet(0x8864, &[&[0x11, 0, 0, 3, len[0], len[1], 0, 0x21][..], &content].concat())
    }),
    ("PBB isid 300", |i| ethernet(0x88e7, &[&[0, 0, 1, 44][..], &inner(i)].concat())),
    ("E-TAG", |i| ethernet(0x893f, &[&[0; 6][..], &inner(i)[12..]].concat())),
    ("IPv6 hop-by-hop options", |i| extended(&over_ipv6(i), &[OPTIONS])),
    ("IPv6 destination options", |i| extended(&over_ipv6(i), &[DESTINATION])),
    ("IPv6 routing header", |i| extended(&over_ipv6(i), &[ROUTING])),
    ("IPv6 fragment header", |i| extended(&over_ipv6(i), &[WHOLE_FRAGMENT])),
    ("IPv6 hop-by-hop options, IPv6 destination options, IPv6 routing header, IPv6 fragment header", |i| {
        extended(&over_ipv6(i), &[OPTIONS, DESTINATION, ROUTING, WHOLE_FRAGMENT])
    }),
    ("VXLAN vni 1, GENEVE vni 2, GRE", |i| {
        let gre = gre(0, BRIDGED, &[], &inner(i));
        let geneve = datagram(6081, &[0, 0, 0x65, 0x58, 0, 0, 2, 0], &gre);
        datagram(4789, &[8, 0, 0, 0, 0, 0, 1, 0], &tagged(&[0x8100], &geneve))
    }),
];

/// Returns frames that carry the packet with their index as PSN, and the layers around it.
fn cases() -> Vec<(Vec<u8>, &'static str)> {
    LAYERS.iter().enumerate().map(|(i, (inside, make))| (make(i), *inside)).collect()
}

fn capture(frames: &[Vec<u8>]) -> Vec<u8> {
    pcap(1, false, false, &frames.iter().map(|f| (&f[..], f.len())).collect::<Vec<_>>())
}

/// Returns a row's `inside` in the text form.
fn inside(row: &Value) -> String {
    let layers = row["inside"].as_array().cloned().unwrap_or_default();
    let one = |layer: &Value| {
        let number = ["vni", "key", "session", "label", "vlan", "isid"]
            .into_iter()
            .find_map(|name| Some(format!(" {name} {}", layer.get(name)?)))
            .unwrap_or_default();
        format!("{}{number}", layer["kind"].as_str().unwrap())
    };
    layers.iter().map(one).collect::<Vec<_>>().join(", ")
}

#[test]
fn encapsulated_packets_are_decoded_with_their_layers() {
    let cases = cases();
    let frames: Vec<_> = cases.iter().map(|(bytes, _)| bytes.clone()).collect();
    let output = decode(&["--json"], &capture(&frames));
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""));
    let rows = rows(&output);
    let seen: Vec<_> = rows
        .iter()
        .map(|row| (row["psn"].as_u64().unwrap(), row["icrc"].as_str().unwrap().to_owned(), inside(row)))
        .collect();
    let expected: Vec<_> = (u64::from(PSN)..)
        .zip(&cases)
        .map(|(psn, (_, inside))| (psn, "ok".to_owned(), (*inside).to_owned()))
        .collect();
    assert_eq!(seen, expected);
    for (row, (bytes, _)) in rows.iter().zip(&cases) {
        let (at, len) = (row["payload_offset"].as_u64().unwrap() as usize, row["frame_len"].as_u64());
        assert_eq!((&bytes[at..at + 4], len), (&b"abcd"[..], Some(bytes.len() as u64)), "{row}");
    }
    let vxlan = &rows[1]["inside"][0];
    assert_eq!((&vxlan["src"], &vxlan["dst"]), (&"192.0.2.1".into(), &"192.0.2.2".into()));
    let text = String::from_utf8(decode(&[], &capture(&frames)).stdout).unwrap();
    for (line, (_, inside)) in text.lines().zip(&cases).filter(|(_, (_, inside))| !inside.is_empty()) {
        assert!(line.ends_with(&format!(" icrc ok inside {inside}")), "{line}");
    }
}

/// tshark recognizes RoCE in some of these. `decode` shows each of those packets with the same PSN.
#[test]
fn encapsulated_packets_agree_with_tshark() {
    let frames: Vec<_> = cases().into_iter().map(|(bytes, _)| bytes).collect();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("inside.pcap");
    std::fs::write(&file, capture(&frames)).unwrap();
    let fields = ["-T", "fields", "-e", "frame.number", "-e", "infiniband.bth.psn"];
    let tshark = Command::new("timeout")
        .args(["60", "tshark", "-n", "-r"])
        .arg(&file)
        .args(["-Y", "infiniband.bth"])
        .args(fields)
        .stderr(Stdio::null())
        .output_in_time();
    let theirs = match tshark {
        Ok(output) if output.status.success() => String::from_utf8(output.stdout).unwrap(),
        _ => {
            println!("SKIP encapsulated_packets_agree_with_tshark: no tshark");
            return;
        }
    };
    let ours: Vec<String> = rows(&decode(&["--json"], &capture(&frames)))
        .iter()
        .map(|row| format!("{}\t{}", row["number"], row["psn"]))
        .collect();
    let missing: Vec<_> = theirs.lines().filter(|line| !ours.iter().any(|our| our == line)).collect();
    assert!(missing.is_empty(), "tshark shows {missing:?}");
    assert!(theirs.lines().count() > frames.len() / 2, "tshark shows {} packets", theirs.lines().count());
}

/// Returns frames that may carry RoCE behind headers that are not decoded, with their kinds.
fn unread() -> Vec<(Vec<u8>, &'static str)> {
    let roce = inner(0);
    let deep = (0..40).fold(roce[14..].to_vec(), |content, _| ipv4(4, 0, &content));
    vec![
        (ethernet(IPV4, &ipv4(50, 0, &roce)), "ESP (encrypted)"),
        (ethernet(IPV6, &ipv6(50, &roce)), "ESP (encrypted)"),
        (datagram(4500, &[0, 0, 1, 0, 0, 0, 0, 1], &roce), "ESP (encrypted)"),
        (ethernet(0x88e5, &roce), "MACsec (encrypted)"),
        (ethernet(IPV4, &ipv4(51, 0, &roce)), "IPsec AH"),
        (ethernet(IPV4, &ipv4(17, 0x2000, &roce[34..])), "IPv4 fragments"),
        (ethernet(IPV4, &ipv4(17, 0x2000, &udp(4789, &roce))), "IPv4 fragments"),
        (ethernet(IPV4, &ipv4(47, 7, &roce)), "IPv4 fragments"),
        (extended(&over_ipv6(0), &[(44, &[0, 0, 1, 0, 0, 0, 5])]), "IPv6 fragments"),
        (datagram(2152, &[0x30, 255, 0, 60, 0, 0, 0, 1], &roce[14..]), "GTP-U"),
        (datagram(1701, &[0; 8], &roce), "L2TP"),
        (datagram(6081, &[0x40, 0, 8, 0, 0, 0, 1, 0], &roce[14..]), "GENEVE of another version"),
        (gre(0x2001, 0x880b, &[0; 4], &roce), "GRE of another version (PPTP)"),
        (ethernet(IPV4, &deep), "more than 32 headers"),
        (tagged(&[0x8100; 40], &roce), "more than 32 headers"),
    ]
}

#[test]
fn frames_not_looked_into_are_counted_by_kind() {
    let unread = unread();
    let mut frames: Vec<_> = unread.iter().map(|(bytes, _)| bytes.clone()).collect();
    frames.push(inner(3));
    let output = decode(&["--json"], &capture(&frames));
    let rows = rows(&output);
    let kinds: Vec<_> = rows.iter().filter_map(|row| row["not_decoded"].as_str()).collect();
    assert_eq!(kinds, unread.iter().map(|(_, kind)| *kind).collect::<Vec<_>>());
    assert_eq!((rows.len(), output.status.code()), (frames.len(), Some(1)));
    for arguments in [&["--json"][..], &[], &["-v"], &["--ladder"]] {
        let output = decode(arguments, &capture(&frames));
        let output_text = stderr(&output);
        assert!(
            output_text.contains("frames that may hold RoCE and are not decoded: ESP (encrypted) 3, "),
            "{output_text}"
        );
        assert!(
            output_text.contains("IPv4 fragments 3, ") && output_text.contains("more than 32 headers 2"),
            "{output_text}"
        );
        assert_eq!((output.status.code(), output_text.lines().count()), (Some(1), 1), "{output_text}");
        assert!(!output.stdout.is_empty(), "{arguments:?}");
    }
}

#[test]
fn frames_cut_before_their_packet_are_counted() {
    let whole = datagram(4789, &[8, 0, 0, 0, 0, 0, 42, 0], &inner(0));
    let cut = |bytes: &[u8], keep: usize| {
        decode(&["--json"], &pcap(1, false, false, &[(&bytes[..keep], bytes.len())]))
    };
    for keep in [36, 45, 60, 70, 84] {
        let output = cut(&whole, keep);
        assert_eq!(rows(&output)[0]["not_decoded"], "cut short", "{keep}");
        assert_eq!(output.status.code(), Some(1));
    }
    // A packet with its BTH is decoded without its ICRC.
    assert_eq!(rows(&cut(&whole, whole.len() - 8))[0]["icrc"], "none");
    // ERSPAN notes that the mirror truncated a frame; lengths inside then reach beyond the tunnel.
    let mirrored = gre(0x1000, 0x88be, &[0, 0, 0, 1, 0x10, 1, 4, 5, 0, 0, 0, 0], &inner(9)[..56]);
    let seen = rows(&cut(&mirrored, mirrored.len()));
    assert_eq!((&seen[0]["icrc"], &seen[0]["psn"]), (&"none".into(), &(PSN + 9).into()));
}

#[test]
fn tunnels_without_roce_are_skipped() {
    let arp = ethernet(0x0806, &[0; 28]);
    let tcp = ipv4(6, 0, &[0; 20]);
    let frames = [
        datagram(4789, &[8, 0, 0, 0, 0, 0, 42, 0], &arp),
        datagram(4789, &[8, 0, 0, 0, 0, 0, 42, 0], &[]),
        gre(0, IPV4, &[], &tcp),
        ethernet(IPV4, &ipv4(4, 0, &tcp)),
        ethernet(0x8847, &[&[0, 1, 0x11, 64][..], &tcp].concat()),
        ethernet(IPV4, &ipv4(6, 0x2000, &[0; 40])),
        ethernet(IPV4, &ipv4(17, 0x2000, &udp(53, &[0; 40]))),
        datagram(4500, &[0; 8], &[1; 40]),
        datagram(53, &[], &[0; 40]),
        ethernet(IPV6, &ipv6(58, &[0; 40])),
    ];
    let output = decode(&["--json"], &capture(&frames));
    assert_eq!((output.status.code(), stderr(&output).as_str(), output.stdout.len()), (Some(0), "", 0));
}

#[test]
fn encapsulated_malformed_packet_is_reported() {
    let mut long = inner(0);
    long[38..40].copy_from_slice(&200u16.to_be_bytes());
    let output = decode(&["--json"], &capture(&[datagram(4789, &[8, 0, 0, 0, 0, 0, 1, 0], &long)]));
    assert!(rows(&output)[0]["malformed"].as_str().is_some_and(|why| why.contains("UDP")));
}

#[test]
fn cut_and_damaged_layers_never_crash() {
    let whole: Vec<_> = cases().into_iter().chain(unread()).map(|(bytes, _)| bytes).collect();
    let mut frames = Vec::new();
    for bytes in &whole {
        frames.extend((0..bytes.len()).map(|keep| (bytes[..keep].to_vec(), bytes.len())));
        frames.extend((0..bytes.len()).map(|keep| (bytes[..keep].to_vec(), keep)));
        for at in 0..bytes.len() {
            for mask in [0x01, 0x10, 0x80, 0xff] {
                let mut damaged = bytes.clone();
                damaged[at] ^= mask;
                frames.push((damaged, bytes.len()));
            }
        }
    }
    let frames: Vec<_> = frames.iter().map(|(bytes, len)| (&bytes[..], *len)).collect();
    for arguments in [&["--json"][..], &["-v"]] {
        let output = decode(arguments, &pcap(1, false, false, &frames));
        assert_eq!(output.status.code(), Some(1));
        assert!(!stderr(&output).contains("panicked"), "{}", stderr(&output));
    }
}

#[test]
fn cooked_captures_of_tunnels_are_read() {
    let vxlan = datagram(4789, &[8, 0, 0, 0, 0, 0, 42, 0], &inner(0));
    let l3 = &vxlan[14..];
    let sll = [&[0, 0, 0, 1, 0, 6, 2, 0, 0, 0, 0, 1, 0, 0, 8, 0][..], l3].concat();
    let sll2 = [&[8, 0, 0, 0, 0, 0, 0, 2, 0, 1, 0, 6, 2, 0, 0, 0, 0, 1, 0, 0][..], l3].concat();
    for (link_type, bytes) in [(113, &sll[..]), (276, &sll2), (101, l3), (228, l3)] {
        let output = decode(&["--json"], &pcap(link_type, false, false, &[(bytes, bytes.len())]));
        let rows = rows(&output);
        assert_eq!((rows.len(), inside(&rows[0]).as_str()), (1, "VXLAN vni 42"), "link type {link_type}");
    }
}
