//! Responses to queries of an identifier, byte by byte.

use roxie::verbs::Mtu;

use super::{Side, sides};
use crate::device::settings;
use crate::ucma::answer;
use crate::ucma::event::{AhPath, ConnectionFacts, DatagramFacts, Event, EventType, Facts, gid_of};
use crate::ucma::id::{Id, Path};
use crate::ucma::plain::{Plain, bytes_of};
use crate::ucma::ports::Space;

const PATH: Path = Path { mtu: Mtu::Mtu1024, hop_limit: 9, traffic_class: 0x60, packet_lifetime: 18 };

/// Returns an identifier with a route, and with source port 7000.
fn known(side: &mut Side) -> &mut Id {
    let id = side.resolved(2, Space::Tcp, "192.0.2.1:7174");
    let id = side.state.id(side.file, id).unwrap();
    id.source = Some("192.0.2.2:7000".parse().unwrap());
    id.path = Some(PATH);
    id
}

fn gid(last: u8) -> [u8; 16] {
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, last]
}

/// Returns the first bytes of a field that holds an address.
fn start<T: Copy, const N: usize>(field: &T) -> [u8; N] {
    assert!(N <= size_of::<T>());
    // SAFETY: N bytes of plain numbers.
    unsafe { (&raw const *field).cast::<[u8; N]>().read() }
}

fn all_zero<T: Plain>(answer: &T) -> bool {
    bytes_of(answer).iter().all(|byte| *byte == 0)
}

#[test]
fn route_query_returns_addresses_and_path() {
    let (_, mut side) = sides();
    let id = known(&mut side);
    let route = answer::route(id);
    assert_eq!((route.node_guid, route.port_num, route.num_paths), (settings::node_guid(), 1, 1));
    assert_eq!(start(&route.src_addr), [2, 0, 0x1b, 0x58, 192, 0, 2, 2]);
    assert_eq!(start(&route.dst_addr), [2, 0, 0x1c, 0x06, 192, 0, 2, 1]);
    let path = &route.ib_route[0];
    assert_eq!((path.sgid, path.dgid, path.pkey), (gid(2), gid(1), 0xffff));
    assert_eq!((path.mtu, path.hop_limit, path.traffic_class), (3, 9, 0x60));
    assert_eq!((path.reversible, path.numb_path, path.rate, path.packet_life_time), (1, 1, 3, 18));
    let exactly = (path.mtu_selector, path.rate_selector, path.packet_life_time_selector);
    assert_eq!(exactly, (2, 2, 2));
    id.path = None;
    let unresolved = answer::route(id);
    assert_eq!(
        (unresolved.num_paths, unresolved.ib_route[0].mtu, unresolved.ib_route[0].sgid),
        (0, 0, gid(2))
    );
    (id.on_device, id.path) = (false, Some(PATH));
    let off_device = answer::route(id);
    assert_eq!((off_device.node_guid, off_device.port_num, off_device.num_paths), (0, 0, 0));
    assert_eq!(start(&off_device.dst_addr), [2, 0, 0x1c, 0x06, 192, 0, 2, 1]);
}

#[test]
fn address_queries_return_socket_and_infiniband_forms() {
    let (_, mut side) = sides();
    let id = known(&mut side);
    for reply in [answer::address(id), answer::gid(id)] {
        assert_eq!((reply.node_guid, reply.port_num, reply.pkey), (settings::node_guid(), 1, 0xffff));
    }
    let reply = answer::address(id);
    assert_eq!((reply.src_size, reply.dst_size), (16, 16));
    assert_eq!(start(&reply.src_addr), [2, 0, 0x1b, 0x58, 192, 0, 2, 2]);
    assert_eq!(start(&reply.dst_addr), [2, 0, 0x1c, 0x06, 192, 0, 2, 1]);
    // Family, partition, flow label, GID, service ID.
    let infiniband = |gid: [u8; 16], pkey: u8, service: [u8; 8]| {
        [&[27, 0, pkey, pkey, 0, 0, 0, 0][..], &gid, &service].concat()
    };
    let (local, remote) = ([0, 0, 0, 0, 1, 6, 0x1b, 0x58], [0, 0, 0, 0, 1, 6, 0x1c, 0x06]);
    let reply = answer::gid(id);
    assert_eq!((reply.src_size, reply.dst_size), (48, 48));
    assert_eq!(start::<_, 32>(&reply.src_addr)[..], infiniband(gid(2), 0xff, local));
    assert_eq!(start::<_, 32>(&reply.dst_addr)[..], infiniband(gid(1), 0xff, remote));
    id.on_device = false;
    for reply in [answer::address(id), answer::gid(id)] {
        assert_eq!((reply.node_guid, reply.port_num, reply.pkey), (0, 0, 0), "it is on no device");
    }
    assert_eq!(start::<_, 32>(&answer::gid(id).dst_addr)[..], infiniband([0; 16], 0, remote));
    assert_eq!(gid_of(None).0, [0; 16]);
    (id.source, id.destination) = (None, None);
    assert!(all_zero(&answer::address(id)), "there is nothing to tell");
}

#[test]
fn path_query_returns_as_many_as_fit() {
    let (_, mut side) = sides();
    let id = known(&mut side);
    // The count and four bytes of padding, then flags, then a PathRecord.
    let mut wanted = vec![0; 80];
    wanted[0] = 1;
    // For management, primary, both directions.
    wanted[8] = 1 | 2 | 8 | 32;
    let record = &mut wanted[16..];
    record[8..24].copy_from_slice(&gid(1));
    record[24..40].copy_from_slice(&gid(2));
    record[47..52].copy_from_slice(&[9, 0x60, 0x81, 0xff, 0xff]);
    record[54..57].copy_from_slice(&[0x83, 0x83, 0x92]);
    assert_eq!(answer::path(id, 80), wanted);
    assert_eq!(answer::path(id, 79), wanted[..8], "as many as there is room for");
    id.path = None;
    assert_eq!(answer::path(id, 80), [0; 8]);
}

#[test]
fn event_response_has_its_parameters() {
    let event =
        |facts| Event { uid: 0x1_0000_0007, handle: 5, what: EventType::ConnectRequest, status: -9, facts };
    let reply = answer::event(&event(Facts::Connection(ConnectionFacts {
        qpn: 17,
        private_data: b"ask".to_vec(),
        srq: true,
        responder_resources: 4,
        initiator_depth: 3,
        flow_control: true,
        retry_count: 5,
        rnr_retry_count: 6,
    })));
    assert_eq!(
        (reply.uid, reply.id, reply.event, reply.status),
        (0x1_0000_0007, 5, EventType::ConnectRequest as u32, -9i32 as u32)
    );
    // SAFETY: plain numbers; the event says that they are a connection's.
    let conn = unsafe { reply.param.conn };
    assert_eq!((conn.qp_num, conn.private_data_len, &conn.private_data[..4]), (17, 3, &b"ask\0"[..]));
    assert_eq!((conn.srq, conn.responder_resources, conn.initiator_depth, conn.flow_control), (1, 4, 3, 1));
    assert_eq!((conn.retry_count, conn.rnr_retry_count), (5, 6));
    let ah_path = AhPath {
        sgid_index: 3,
        dgid: gid_of("192.0.2.1:1".parse().ok()),
        flow_label: 0x1_2345,
        hop_limit: 9,
        traffic_class: 0x60,
    };
    let reply = answer::event(&event(Facts::Datagram(DatagramFacts {
        qpn: 18,
        qkey: 0x0123_4567,
        ah_path: Some(ah_path),
        private_data: b"me".to_vec(),
    })));
    // SAFETY: plain numbers; the event says that they are a datagram QP's.
    let ud = unsafe { reply.param.ud };
    assert_eq!(
        (ud.qp_num, ud.qkey, ud.private_data_len, &ud.private_data[..3]),
        (18, 0x0123_4567, 2, &b"me\0"[..])
    );
    let (to, grh) = (ud.ah_attr, ud.ah_attr.grh);
    assert_eq!((to.is_global, to.port_num, grh.sgid_index, grh.dgid), (1, 1, 3, gid(1)));
    assert_eq!((grh.flow_label, grh.hop_limit, grh.traffic_class), (0x1_2345, 9, 0x60));
}
