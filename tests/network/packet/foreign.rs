//! Frames that an adapter would not take, and the kernel beside the port.

use std::net::UdpSocket;

use roxie::port::RxOptions;

use super::*;

#[test]
fn foreign_frames_are_not_taken() {
    if skip("foreign_frames_are_not_taken") {
        return;
    }
    let wire = Wire::new("pk-other", 1500, 1);
    let (mut left, mut right) = wire.packet_ports();
    let good = || frame(true, false, false, 200, 1);
    let edited = |edit: &dyn Fn(&mut Vec<u8>)| {
        let mut f = good();
        edit(&mut f);
        set_checksum(&mut f[14..34]);
        f
    };
    let unseen = [
        edited(&|f| f[36..38].copy_from_slice(&[0, 53])), // another UDP port
        edited(&|f| f[23] = 6),                           // TCP
        edited(&|f| f[20] = 0x20),                        // first fragment
        edited(&|f| f[21] = 1),                           // later fragment
        edited(&|f| f[5] = 0x77),                         // another station
        edited(&|f| f[12..14].copy_from_slice(&[8, 6])),  // ARP
        frame(true, true, false, 200, 1).tap(|f| f[20] = 58), // ICMPv6
    ];
    let counted = [
        ("rx_other_address", edited(&|f| f[33] = 77)),
        ("rx_tagged", frame(true, false, true, 200, 1)),
        ("rx_bad_ip_checksum", good().tap(|f| f[24] ^= 1)),
    ];
    for f in &unseen {
        assert!(put(&mut left, f));
        flush(&mut left);
    }
    for (_, f) in &counted {
        assert!(put(&mut left, f));
        flush(&mut left);
    }
    assert!(put(&mut left, &good()));
    flush(&mut left);
    assert!(take(&mut right, 2, A_WHILE) == [good()]);
    for (name, _) in counted {
        assert_eq!(counter(&right, name), 1, "{name}");
    }
    assert_eq!(counter(&right, "rx_packets"), 1);
}

trait Tap {
    fn tap(self, edit: impl FnOnce(&mut Self)) -> Self;
}

impl Tap for Vec<u8> {
    fn tap(mut self, edit: impl FnOnce(&mut Self)) -> Self {
        edit(&mut self);
        self
    }
}

#[test]
fn priority_tag_is_kept() {
    if skip("priority_tag_is_kept") {
        return;
    }
    let wire = Wire::new("pk-tag", 1500, 1);
    let (mut left, mut right) = wire.packet_ports();
    for v6 in [false, true] {
        let mut tagged = frame(true, v6, true, 200, 1);
        tagged[14..16].copy_from_slice(&[0x60, 0]); // priority 3, no VLAN
        assert!(put(&mut left, &tagged));
        flush(&mut left);
        assert!(take(&mut right, 1, SOON) == [tagged], "IPv6: {v6}");
    }
}

#[test]
fn mac_control_needs_a_request() {
    if skip("mac_control_needs_a_request") {
        return;
    }
    let wire = Wire::new("pk-pause", 1500, 1);
    let (mut left, mut right) = wire.packet_ports();
    // PAUSE (IEEE 802.3 annex 31B).
    let mut pause = vec![0x01, 0x80, 0xc2, 0, 0, 1];
    pause.extend([MAC_A.as_slice(), &[0x88, 0x08, 0, 1, 0xff, 0xff], &[0; 42]].concat());
    for mac_control in [false, true, false] {
        right.set_rx_wishes(RxOptions { mac_control, ..RxOptions::default() }).unwrap();
        assert!(put(&mut left, &pause));
        flush(&mut left);
        let expected = if mac_control { vec![pause.clone()] } else { Vec::new() };
        assert!(take(&mut right, 1, A_WHILE) == expected, "requested: {mac_control}");
    }
}

#[test]
fn ip_options_do_not_hide_the_port() {
    if skip("ip_options_do_not_hide_the_port") {
        return;
    }
    let wire = Wire::new("pk-opt", 1500, 1);
    let (mut left, mut right) = wire.packet_ports();
    let mut f = frame(true, false, false, 200, 1);
    f.splice(34..34, [1, 1, 1, 0]); // NOP, NOP, NOP, end of options
    f[14] = 0x46;
    f[16..18].copy_from_slice(&190u16.to_be_bytes());
    set_checksum(&mut f[14..38]);
    assert!(put(&mut left, &f));
    flush(&mut left);
    assert!(take(&mut right, 1, SOON) == [f]);
}

/// Without the port, the kernel answers frames to UDP port 4791 with ICMP errors.
#[test]
fn kernel_sends_no_icmp_errors() {
    if skip("kernel_sends_no_icmp_errors") {
        return;
    }
    let wire = Wire::new("pk-icmp", 1500, 1);
    let mut left = open(&wire.a, "left").unwrap();
    let unreachable = || -> u64 {
        let read = || {
            ["snmp", "snmp6"]
                .map(|name| std::fs::read_to_string(format!("/proc/thread-self/net/{name}")).unwrap())
        };
        let [v4, v6] = wire.b.run(read).unwrap();
        let mut lines = v4.lines().filter(|line| line.starts_with("Icmp:"));
        let names = lines.next().unwrap().split(' ');
        let values = lines.next().unwrap().split(' ');
        let v4 = names.zip(values).find(|(name, _)| *name == "OutDestUnreachs").unwrap().1;
        let v6 = v6.lines().find_map(|line| line.strip_prefix("Icmp6OutDestUnreachs")).unwrap();
        v4.parse::<u64>().unwrap() + v6.trim().parse::<u64>().unwrap()
    };
    let mut send = || {
        for v6 in [false, true] {
            for i in 0..3 {
                let mut f = frame(true, v6, false, 300, i);
                if v6 {
                    // The kernel drops IPv6 datagrams without a checksum before it looks for their port.
                    let sum = udp6_checksum(&f);
                    f[60..62].copy_from_slice(&sum.to_be_bytes());
                }
                assert!(put(&mut left, &f));
            }
        }
        flush(&mut left);
    };
    let mut right = open(&wire.b, "right").unwrap();
    send();
    assert_eq!(take(&mut right, 6, SOON).len(), 6);
    assert_eq!(unreachable(), 0);
    drop(right);
    send();
    let answered = (0..100).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        unreachable() > 0
    });
    assert!(answered, "the kernel answers once the port is closed");
}

fn udp6_checksum(frame: &[u8]) -> u16 {
    let mut bytes = frame[22..54].to_vec();
    bytes.extend([0, 17]);
    bytes.extend(&frame[58..60]);
    bytes.extend(&frame[54..60]);
    bytes.extend(&frame[62..]);
    let words =
        bytes.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)])));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded & 0xffff) + (folded >> 16)) as u16
}

/// The port takes only RoCE: other traffic of the same addresses stays with the kernel.
#[test]
fn kernel_keeps_other_traffic() {
    if skip("kernel_keeps_other_traffic") {
        return;
    }
    let wire = Wire::new("pk-kernel", 1500, 1);
    let (_left, _right) = wire.packet_ports();
    let receiver = wire.b.run(|| UdpSocket::bind((B4, 7000))).unwrap().unwrap();
    receiver.set_read_timeout(Some(SOON)).unwrap();
    let sender = wire.a.run(|| UdpSocket::bind((A4, 0))).unwrap().unwrap();
    sender.send_to(b"as before", (B4, 7000)).unwrap();
    let mut bytes = [0; 32];
    let got = receiver.recv(&mut bytes).unwrap();
    assert_eq!(&bytes[..got], b"as before");
}
