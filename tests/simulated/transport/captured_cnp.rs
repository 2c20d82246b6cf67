//! A congestion notification that a ConnectX-4 Lx has sent (scapy, `test/contrib/roce.uts`), byte by byte.

use std::net::IpAddr;

use roxie::port::Port;
use roxie::profile::{CnpProfile, Profile};
use roxie::time::Nanos;
use roxie::verbs::{AddressVector, Mtu};
use roxie::wire::{Bth, Ext, FlowSpec, Gid, Opcode, Psn, Qpn, RoceVersion, Template};
use roxie_sim::{Connected, Host, NicConfig, joined_ports};

const CAPTURED: &str = "e41d2dab2bc2 7cfe90643b32 0800 45c2003c718c400040119161 0a001101 0a001201 0000 12b7 0028 0000 \
                        8100ffff 40000118 00000000 00000000000000000000000000000000 82fd002a";

fn bytes(hexadecimal: &str) -> Vec<u8> {
    let digits: Vec<u8> =
        hexadecimal.chars().filter_map(|c| c.to_digit(16).map(|digit| digit as u8)).collect();
    digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

#[test]
fn profiled_cnp_is_that_of_the_adapter() {
    let [own, other] =
        ["10.0.17.1", "10.0.18.1"].map(|ip| Gid::from(ip.parse::<IpAddr>().expect("an address")));
    let [own_mac, peer_mac] =
        ["7cfe90643b32", "e41d2dab2bc2"].map(|mac| bytes(mac).try_into().expect("six bytes"));
    let cnp = CnpProfile {
        source_port: Some(0),
        mig_req: Some(false),
        first_ip_id: Some(0x718c),
        answers_gaps: false,
    };
    let profile = Box::leak(Box::new(Profile { cnp, ..Profile::default() }));
    let (port, mut link) = joined_ports(1500, None);
    let config = NicConfig { mig_req: true, profile: Some(profile), ..NicConfig::default() };
    let mut host = Host::new(1, config, port);
    let qp = host.queue_pair().create();
    let path = AddressVector::new(own, other, own_mac, peer_mac);
    let peer = Qpn::new(0x118);
    host.connect(&qp, &Connected { peer, path, path_mtu: Mtu::Mtu1024, timeout: 14, rd_atomic: 1 })
        .expect("a path");
    let marked = Template::new(&FlowSpec {
        src_mac: peer_mac,
        dst_mac: own_mac,
        vlan: None,
        src: other,
        dst: own,
        traffic_class: 3,
        flow_label: 0,
        hop_limit: 64,
        source_port: 0xc000,
        version: RoceVersion::V2,
    });
    let bth = Bth {
        opcode: Opcode::RC_SEND_ONLY,
        dest_qp: qp.handle.qpn,
        psn: Psn::new(0),
        ack_req: true,
        ..Bth::default()
    };
    let mut headers = [0; roxie::wire::MAX_HEADERS];
    let length = marked.write_headers(&mut headers, &bth, &Ext::None, 0);
    let id = link.tx_alloc(marked.frame_len(bth.opcode, 0)).expect("room");
    let mut frame = link.tx_frame(&id);
    frame.write(0, &headers[..length]);
    marked.seal(&mut frame);
    link.tx_commit(id);
    link.tx_flush(Nanos(1)).expect("memory does not fail");
    host.poll(Nanos(2));
    assert!(link.rx_burst(Nanos(3)) > 0, "{:?}", host.worker.counters());
    assert_eq!(link.rx_frame(0).frame.to_vec(), bytes(CAPTURED));
}
