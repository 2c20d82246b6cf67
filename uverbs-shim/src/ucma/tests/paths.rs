//! Path records given by a program, in place of resolving the route.

use roxie::verbs::Mtu;

use super::{Side, carry, sides, wish};
use crate::ucma::event::EventType;
use crate::ucma::ports::Space;

/// Returns an identifier with destination 192.0.2.1 resolved, without a route.
fn resolved_identifier(side: &mut Side) -> u32 {
    let id = side.create(1, Space::Tcp);
    side.bind(id, "0.0.0.0:0").unwrap();
    let query = side.state.begin_resolution(side.file, id, "192.0.2.1:7174".parse().unwrap()).unwrap();
    side.state.end_resolution(&query, Ok("192.0.2.2:0".parse().unwrap()));
    assert_eq!(side.next().what, EventType::AddressResolved);
    id
}

/// Returns the response to a path query of another identifier with a route.
fn path_of_another(side: &mut Side) -> Vec<u8> {
    let other = side.resolved(2, Space::Tcp, "192.0.2.1:7174");
    crate::ucma::answer::path(side.state.id(side.file, other).unwrap(), 1024).split_off(8)
}

#[test]
fn given_path_replaces_route_resolution() {
    let (mut server, mut side) = sides();
    server.listener(Space::Tcp, "0.0.0.0:7174", 0);
    let mut record = path_of_another(&mut side);
    assert_eq!(record.len(), 72);
    // Path MTU 512, a traffic class, a hop limit, and a packet lifetime longer than the adapter's acknowledgement
    // delay.
    let at = |field: usize| 8 + field;
    (record[at(54)], record[at(48)], record[at(47)], record[at(56)]) = (0x82, 0x60, 9, 0x92);
    let id = resolved_identifier(&mut side);
    // A record for one direction only comes first.
    let mut records = record.clone();
    records[0] = 2;
    records.extend_from_slice(&record);
    side.state.take_path(side.file, id, &records, Mtu::Mtu4096).unwrap();
    let event = side.next();
    assert_eq!((event.what, event.status, side.maybe_next()), (EventType::RouteResolved, 0, None));
    let again = side.state.take_path(side.file, id, &records, Mtu::Mtu4096);
    assert_eq!(again, Err(libc::EINVAL), "it has one");
    side.connect(id, &wish(17, b"")).unwrap();
    carry(&mut server, &mut side);
    let request = server.next();
    assert_eq!(request.what, EventType::ConnectRequest);
    let path = server.state.id(server.file, request.handle).unwrap().path.unwrap();
    assert_eq!((path.mtu, path.traffic_class, path.hop_limit), (Mtu::Mtu512, 0x60, 9));
    assert_eq!(path.packet_lifetime, 18);
}

/// An invalid path is an error of the call, and raises no event.
#[test]
fn invalid_path_is_refused_without_a_state_change() {
    let (_, mut side) = sides();
    let good = path_of_another(&mut side);
    let id = resolved_identifier(&mut side);
    let with = |at: usize, value: u8| {
        let mut record = good.clone();
        record[at] = value;
        record
    };
    let refused = [
        ("nothing", Vec::new()),
        ("half a record", good[..40].to_vec()),
        ("a record and a byte", [&good[..], &[0]].concat()),
        ("one direction", with(0, 1 | 2 | 8)),
        ("to another GID", with(8 + 23, 77)),
        ("from another GID", with(8 + 39, 77)),
        ("no MTU", with(8 + 54, 0x80)),
        ("more than the link has", with(8 + 54, 0x85)),
    ];
    for (what, records) in refused {
        let result = side.state.take_path(side.file, id, &records, Mtu::Mtu1024);
        assert_eq!(result, Err(libc::EINVAL), "{what}");
    }
    let early = side.create(3, Space::Tcp);
    assert_eq!(side.state.take_path(side.file, early, &good, Mtu::Mtu1024), Err(libc::EINVAL));
    assert_eq!(side.maybe_next(), None);
    side.state.resolve_route(side.file, id, Mtu::Mtu1024).unwrap();
    assert_eq!(side.next().what, EventType::RouteResolved);
}
