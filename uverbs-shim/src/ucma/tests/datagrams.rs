//! Look-up of datagram ports, and multicast memberships.

use std::net::SocketAddr;

use roxie::time::Nanos;
use roxie::wire::cm::RejReason;

use super::{carry, sides, wish};
use crate::ucma::event::{EventType, Facts};
use crate::ucma::incoming::GidLookup;
use crate::ucma::ports::Space;

#[test]
fn sidr_request_returns_qp_and_path() {
    let (mut server, mut client) = sides();
    server.listener(Space::Udp, "0.0.0.0:7174", 0);
    let active = client.resolved(9, Space::Udp, "192.0.2.1:7174");
    client.connect(active, &wish(17, b"who")).unwrap();
    carry(&mut server, &mut client);
    let event = server.next();
    let Facts::Datagram(facts) = event.facts else { panic!("{event:?}") };
    assert_eq!((facts.private_data.len(), &facts.private_data[..4]), (180, &b"who\0"[..]));
    server.accept(event.handle, Some((8, wish(18, b"me")))).unwrap();
    carry(&mut server, &mut client);
    let event = client.next();
    assert_eq!((event.what, event.status), (EventType::Established, 0));
    let Facts::Datagram(facts) = event.facts else { panic!("{event:?}") };
    assert_eq!((facts.qpn, facts.qkey, facts.private_data.len()), (18, 0x0123_4567, 136));
    let ah_path = facts.ah_path.unwrap();
    assert_eq!((ah_path.sgid_index, ah_path.dgid.to_ip().to_string()), (3, "192.0.2.1".into()));
    assert_eq!(server.maybe_next(), None);

    let refused = client.resolved(10, Space::Udp, "192.0.2.1:7174");
    client.connect(refused, &wish(17, b"")).unwrap();
    carry(&mut server, &mut client);
    let request = server.next().handle;
    server.with(|state, cm, file| state.reject(cm, file, request, RejReason::CONSUMER, b"")).unwrap();
    carry(&mut server, &mut client);
    let event = client.next();
    assert_eq!((event.what, event.status), (EventType::Unreachable, 2));
}

#[test]
fn status_distinguishes_closed_port_from_silent_host() {
    let (_, mut side) = sides();
    let id = side.resolved(9, Space::Tcp, "192.0.2.1:7174");
    side.connect(id, &wish(17, b"")).unwrap();
    let request = side.manager.poll_transmit().unwrap();
    side.manager.handle_undelivered(side.now, request.route.remote, &request.mad);
    side.handle_event();
    let event = side.next();
    assert_eq!(
        (event.what, event.status, side.maybe_next()),
        (EventType::Unreachable, -libc::ECONNREFUSED, None)
    );
    assert_eq!(side.destroy(id), Ok(3));

    let id = side.resolved(10, Space::Tcp, "192.0.2.1:7174");
    side.connect(id, &wish(17, b"")).unwrap();
    // Three requests, each with a timeout of 4.3 s and retransmissions within it.
    let step = Nanos::from_millis(250);
    for _ in 0..48 {
        side.later(step);
        assert_eq!(side.maybe_next(), None);
    }
    let event = (0..12).find_map(|_| {
        side.later(step);
        side.maybe_next()
    });
    let event = event.expect("it is given up in 15 s");
    assert_eq!((event.what, event.status), (EventType::Unreachable, -libc::ETIMEDOUT));
}

#[test]
fn leave_returns_the_membership_event_count() {
    let (_, mut side) = sides();
    let around = GidLookup { sgid_index: &|_| Some(3), random: 0 };
    let id = side.create(1, Space::Udp);
    let group: SocketAddr = "239.1.2.3:0".parse().unwrap();
    let file = side.file;
    assert_eq!(side.state.join(&around, file, id, 5, group), Err(libc::EINVAL), "not bound");
    side.bind(id, "192.0.2.2:0").unwrap();
    let not_a_group = "192.0.2.1:0".parse().unwrap();
    assert_eq!(side.state.join(&around, file, id, 5, not_a_group), Err(libc::EINVAL));
    let (one, two) = (
        side.state.join(&around, file, id, 5, group).unwrap(),
        side.state.join(&around, file, id, 6, group).unwrap(),
    );
    let event = side.next();
    assert_eq!((event.what, event.uid, event.handle), (EventType::MulticastJoin, 5, one));
    let Facts::Datagram(facts) = event.facts else { panic!("{event:?}") };
    assert_eq!(
        (facts.qpn, facts.ah_path.unwrap().dgid.to_ip().to_string()),
        (0x00ff_ffff, "239.1.2.3".into())
    );
    assert_eq!((side.state.leave(file, one), side.state.leave(file, two)), (Ok(1), Ok(0)));
    assert_eq!(side.maybe_next(), None, "what waited of the second is taken back");
    assert_eq!(side.state.leave(file, one), Err(libc::ENOENT));
    // Memberships move with their identifier.
    let other = side.state.open(nix::sys::eventfd::EfdFlags::EFD_NONBLOCK).unwrap();
    let moved = side.state.join(&around, file, id, 7, group).unwrap();
    side.state.migrate(file, other, id).unwrap();
    assert_eq!(side.state.leave(file, moved), Err(libc::EINVAL), "another file's");
    assert_eq!(side.state.migrate(other, file, id), Ok(1));
    assert_eq!(side.state.leave(file, moved), Ok(0));
    // Destroying an identifier leaves its groups; the numbers are free again.
    let three = side.state.join(&around, file, id, 7, group).unwrap();
    side.destroy(id).unwrap();
    assert_eq!(side.state.leave(file, three), Err(libc::ENOENT));
}

#[test]
fn join_from_a_lost_address_raises_an_error() {
    let (_, mut side) = sides();
    let around = GidLookup { sgid_index: &|_| None, random: 0 };
    let id = side.create(1, Space::Udp);
    side.bind(id, "192.0.2.2:0").unwrap();
    let file = side.file;
    let number = side.state.join(&around, file, id, 5, "239.1.2.3:0".parse().unwrap()).unwrap();
    let event = side.next();
    assert_eq!(
        (event.what, event.status, event.uid, event.handle),
        (EventType::MulticastError, 0, 5, number)
    );
    assert_eq!(event.what as u32, 13);
    let Facts::Datagram(facts) = event.facts else { panic!("{event:?}") };
    assert_eq!((facts.qpn, facts.ah_path), (0, None));
    assert_eq!(side.state.leave(file, number), Ok(1), "the program leaves it all the same");
}
