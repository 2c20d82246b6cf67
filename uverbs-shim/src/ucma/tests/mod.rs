//! Identifiers as programs see them, without a network: the states of two processes, each with its manager, and
//! messages carried by hand.

use std::net::SocketAddr;

use nix::sys::eventfd::EfdFlags;
use roxie::cm::{Arrival, Config, Manager, Route};
use roxie::time::Nanos;
use roxie::verbs::{LocalGid, Mtu, Psn, QpState};
use roxie::wire::cm::RejReason;
use roxie::wire::{Gid, Qpn};

use super::event::{ConnectionFacts, Event, EventType, Facts};
use super::id::{IdState, Made};
use super::incoming::GidLookup;
use super::ports::Space;
use super::state::{AddressOwner, Cm, Rules, State};
use crate::abi::{ibv_qp_attr_mask as mask, ibv_qp_type};
use crate::base::object::Errno;

mod addresses;
mod answers;
mod datagrams;
mod paths;

const RULES: Rules =
    Rules { any_port: 40000..=40009, unprivileged: 1024, privileged: false, ipv6_only: false, random: 3 };

/// A process with one open file.
struct Side {
    address: &'static str,
    state: State,
    manager: Manager,
    file: u64,
    now: Nanos,
}

impl Side {
    fn new(address: &'static str, seed: u64) -> Side {
        let mut state = State::new();
        let file = state.open(EfdFlags::EFD_NONBLOCK).unwrap();
        let manager = Manager::new(Config {
            seed,
            ca_guid: seed,
            grace: Nanos::ZERO,
            insistence: Nanos::ZERO,
            ..Config::default()
        });
        Side { address, state, manager, file, now: Nanos(0) }
    }

    fn create(&mut self, uid: u64, space: Space) -> u32 {
        let made = Made {
            uid,
            channel: self.file,
            space,
            qp_type: space.qp_type(ibv_qp_type::IBV_QPT_RC as u8),
            psn: Psn::new(uid as u32),
        };
        self.state.create(made).unwrap()
    }

    fn bind(&mut self, id: u32, address: &str) -> Result<(), Errno> {
        self.state.bind(self.file, id, address.parse().unwrap(), AddressOwner::Device, &RULES)
    }

    fn with<R>(&mut self, call: impl FnOnce(&mut State, &mut Cm<'_>, u64) -> R) -> R {
        call(
            &mut self.state,
            &mut Cm { manager: &mut self.manager, now: self.now, local_gid: &LocalGid::from },
            self.file,
        )
    }

    fn listener(&mut self, space: Space, address: &str, backlog: u32) -> u32 {
        let id = self.create(7, space);
        self.bind(id, address).unwrap();
        self.with(|state, cm, file| state.listen(cm, file, id, backlog)).unwrap();
        id
    }

    /// Returns an identifier with a route to `destination`.
    fn resolved(&mut self, uid: u64, space: Space, destination: &str) -> u32 {
        let id = self.create(uid, space);
        let destination: SocketAddr = destination.parse().unwrap();
        self.bind(id, &State::wildcard(destination.is_ipv4()).to_string()).unwrap();
        let query = self.state.begin_resolution(self.file, id, destination).unwrap();
        let local = SocketAddr::new(self.address.parse().unwrap(), 0);
        self.state.end_resolution(&query, Ok(local));
        self.state.resolve_route(self.file, id, Mtu::Mtu1024).unwrap();
        assert_eq!(
            [self.next().what, self.next().what],
            [EventType::AddressResolved, EventType::RouteResolved]
        );
        id
    }

    fn connect(&mut self, id: u32, wish: &ConnectionFacts) -> Result<(), Errno> {
        self.with(|state, cm, file| state.connect(cm, file, id, wish))
    }

    fn accept(&mut self, id: u32, accepted: Option<(u64, ConnectionFacts)>) -> Result<(), Errno> {
        self.with(|state, cm, file| state.accept(cm, file, id, accepted))
    }

    fn disconnect(&mut self, id: u32) -> Result<(), Errno> {
        self.with(|state, cm, file| state.disconnect(cm, file, id))
    }

    fn destroy(&mut self, id: u32) -> Result<u32, Errno> {
        self.with(|state, cm, file| {
            state.destroy(Some(Cm { manager: cm.manager, now: cm.now, local_gid: cm.local_gid }), file, id)
        })
    }

    fn attributes(&mut self, id: u32, state: QpState) -> Result<crate::abi::ib_uverbs_qp_attr, Errno> {
        let around = GidLookup { sgid_index: &|_| Some(3), random: 0 };
        self.with(|all, cm, file| all.attributes(Some(cm), &around, file, id, state))
    }

    fn handle_event(&mut self) {
        let around = GidLookup { sgid_index: &|_| Some(3), random: 5 << 40 };
        while let Some(event) = self.manager.poll_event() {
            let mut cm = Cm { manager: &mut self.manager, now: self.now, local_gid: &LocalGid::from };
            self.state.handle_event(&mut cm, &around, event);
        }
    }

    fn later(&mut self, time: Nanos) {
        self.now = self.now + time;
        self.manager.handle_timeouts(self.now);
        self.handle_event();
    }

    fn maybe_next(&mut self) -> Option<Event> {
        let event = self.state.fetch(self.file)?;
        self.with(|state, cm, _| {
            let cm = Cm { manager: cm.manager, now: cm.now, local_gid: cm.local_gid };
            state.take_request(Some(cm), &event);
        });
        Some(event)
    }

    fn next(&mut self) -> Event {
        self.maybe_next().expect("an event")
    }
}

/// Carries messages in both directions until there are none.
fn carry(a: &mut Side, b: &mut Side) {
    loop {
        let (mut carried, now) = (false, a.now.max(b.now));
        (a.now, b.now) = (now, now);
        for turn in [true, false] {
            let (from, to) = if turn { (&mut *a, &mut *b) } else { (&mut *b, &mut *a) };
            from.handle_event();
            while let Some(transmit) = from.manager.poll_transmit() {
                let back =
                    Route { local: transmit.route.remote, remote: transmit.route.local, ..transmit.route };
                to.manager.handle_mad(now, &transmit.mad, &Arrival { route: back, src_qp: Qpn::GSI });
                to.handle_event();
                carried = true;
            }
        }
        if !carried {
            return;
        }
    }
}

fn sides() -> (Side, Side) {
    (Side::new("192.0.2.1", 1), Side::new("192.0.2.2", 2))
}

fn wish(qpn: u32, private_data: &[u8]) -> ConnectionFacts {
    ConnectionFacts {
        qpn,
        responder_resources: 4,
        initiator_depth: 2,
        retry_count: 5,
        rnr_retry_count: 6,
        private_data: private_data.to_vec(),
        ..ConnectionFacts::default()
    }
}

/// Sets up a listener at port 7174 of `server` and a connection from `client`. Returns the identifiers of the two ends.
fn connected(server: &mut Side, client: &mut Side) -> (u32, u32) {
    server.listener(Space::Tcp, "0.0.0.0:7174", 0);
    let active = client.resolved(9, Space::Tcp, "192.0.2.1:7174");
    client.connect(active, &wish(17, b"ask")).unwrap();
    carry(server, client);
    let passive = server.next().handle;
    server.accept(passive, Some((8, wish(18, b"yes")))).unwrap();
    carry(server, client);
    assert_eq!(client.next().what, EventType::ConnectResponse);
    client.accept(active, None).unwrap();
    carry(server, client);
    assert_eq!(
        (server.next().what, server.maybe_next(), client.maybe_next()),
        (EventType::Established, None, None)
    );
    (passive, active)
}

#[test]
fn request_event_has_addresses_private_data_and_resources() {
    let (mut server, mut client) = sides();
    let listener = server.listener(Space::Tcp, "0.0.0.0:7174", 0);
    let active = client.resolved(9, Space::Tcp, "192.0.2.1:7174");
    client.connect(active, &wish(17, b"ask")).unwrap();
    carry(&mut server, &mut client);
    let event = server.next();
    assert_eq!(
        (event.what, event.status, event.uid),
        (EventType::ConnectRequest, 0, 7),
        "the listener's word"
    );
    assert_ne!(event.handle, listener);
    let Facts::Connection(facts) = event.facts else { panic!("{event:?}") };
    assert_eq!((facts.qpn, facts.private_data.len(), &facts.private_data[..4]), (17, 56, &b"ask\0"[..]));
    assert_eq!((facts.responder_resources, facts.initiator_depth), (2, 4), "the other way round");
    assert_eq!((facts.retry_count, facts.rnr_retry_count), (5, 6));
    let child = server.state.id(server.file, event.handle).unwrap();
    assert_eq!(child.psn, Psn::new(5), "of the number that nobody can guess");
    let port = client.state.id(client.file, active).unwrap().source.unwrap().port();
    assert_eq!(child.source, Some("192.0.2.1:7174".parse().unwrap()));
    assert_eq!(child.destination, Some(SocketAddr::new("192.0.2.2".parse().unwrap(), port)));
}

#[test]
fn reply_gives_both_ends_matching_attributes() {
    let (mut server, mut client) = sides();
    server.listener(Space::Tcp, "192.0.2.1:7174", 0);
    let active = client.resolved(9, Space::Tcp, "192.0.2.1:7174");
    client.connect(active, &wish(17, b"ask")).unwrap();
    carry(&mut server, &mut client);
    let passive = server.next().handle;
    // librdmacm modifies the QP to RTS before it accepts.
    let (there_rtr, there_rts) = (
        server.attributes(passive, QpState::Rtr).unwrap(),
        server.attributes(passive, QpState::Rts).unwrap(),
    );
    server.accept(passive, Some((8, wish(18, b"yes")))).unwrap();
    carry(&mut server, &mut client);
    let event = client.next();
    assert_eq!((event.what, event.uid, event.handle), (EventType::ConnectResponse, 9, active));
    let Facts::Connection(facts) = event.facts else { panic!("{event:?}") };
    assert_eq!((facts.qpn, facts.private_data.len(), &facts.private_data[..4]), (18, 196, &b"yes\0"[..]));
    let (rtr, rts) =
        (client.attributes(active, QpState::Rtr).unwrap(), client.attributes(active, QpState::Rts).unwrap());
    assert_eq!((rtr.dest_qp_num, there_rtr.dest_qp_num), (18, 17));
    assert_eq!(
        (rtr.rq_psn, there_rtr.rq_psn),
        (there_rts.sq_psn, rts.sq_psn),
        "each starts where the other waits"
    );
    assert_eq!(
        (rtr.ah_attr.grh.sgid_index, rtr.ah_attr.is_global, rtr.path_mtu),
        (3, 1, Mtu::Mtu1024 as u32)
    );
    assert_eq!(rtr.ah_attr.grh.dgid, Gid::from("192.0.2.1".parse::<std::net::IpAddr>().unwrap()).0);
    let of_rc = mask::IBV_QP_MAX_DEST_RD_ATOMIC | mask::IBV_QP_MIN_RNR_TIMER;
    assert_eq!(rtr.qp_attr_mask & of_rc, of_rc);
    assert_ne!(rts.qp_attr_mask & mask::IBV_QP_MAX_QP_RD_ATOMIC, 0);
    let init = client.attributes(active, QpState::Init).unwrap();
    assert_eq!(
        (init.port_num, init.qp_access_flags & 0b1110),
        (1, 0b1110),
        "its peer may write, read and swap"
    );
    assert_eq!(client.attributes(active, QpState::Sqd).err(), Some(libc::EINVAL));
    // The program's ACK timeout (RDMA_OPTION_ID_ACK_TIMEOUT) overrides the path's, even if it is 0.
    for timeout in [21, 0] {
        for (side, id) in [(&mut server, passive), (&mut client, active)] {
            let identifier = side.state.id(side.file, id).unwrap();
            super::options::set(identifier, crate::abi::RDMA_OPTION_ID_ACK_TIMEOUT, Some((1, timeout)))
                .unwrap();
            assert_eq!(side.attributes(id, QpState::Rts).unwrap().timeout, timeout as u8);
        }
    }
}

#[test]
fn disconnect_is_reported_once_then_timewait_exit() {
    let (mut server, mut client) = sides();
    let (passive, active) = connected(&mut server, &mut client);
    client.disconnect(active).unwrap();
    carry(&mut server, &mut client);
    let event = server.next();
    assert_eq!((event.what, event.status, event.handle, event.uid), (EventType::Disconnected, 0, passive, 8));
    assert_eq!(client.maybe_next(), None, "the other has not agreed yet");
    server.disconnect(passive).unwrap();
    carry(&mut server, &mut client);
    assert_eq!((client.next().what, server.maybe_next()), (EventType::Disconnected, None));
    // Disconnecting again has no effect and is not an error.
    assert_eq!((server.disconnect(passive), client.disconnect(active)), (Ok(()), Ok(())));
    for side in [&mut server, &mut client] {
        side.later(Nanos::from_millis(10_000));
        assert_eq!((side.next().what, side.maybe_next()), (EventType::TimeWaitExit, None));
    }
}

#[test]
fn silent_peer_is_reported_as_timeout() {
    let (_, mut client) = sides();
    let active = client.resolved(9, Space::Tcp, "192.0.2.1:7174");
    client.connect(active, &wish(17, b"")).unwrap();
    for _ in 0..100 {
        client.later(Nanos::from_millis(5000));
    }
    let event = client.next();
    assert_eq!((event.what, event.status), (EventType::Unreachable, -libc::ETIMEDOUT));
    assert_eq!(client.state.id(client.file, active).unwrap().comm, None);
}

#[test]
fn reject_event_has_reason_and_private_data() {
    let (mut server, mut client) = sides();
    server.listener(Space::Tcp, "0.0.0.0:7174", 0);
    let active = client.resolved(9, Space::Tcp, "192.0.2.1:7174");
    client.connect(active, &wish(17, b"")).unwrap();
    carry(&mut server, &mut client);
    let passive = server.next().handle;
    server.with(|state, cm, file| state.reject(cm, file, passive, RejReason::CONSUMER, b"no")).unwrap();
    carry(&mut server, &mut client);
    let event = client.next();
    assert_eq!((event.what, event.status, event.handle), (EventType::Rejected, 28, active));
    let Facts::Connection(facts) = event.facts else { panic!("{event:?}") };
    assert_eq!((facts.private_data.len(), &facts.private_data[..3]), (148, &b"no\0"[..]));
    assert!(server.state.by_comm.is_empty(), "nothing more is heard of it");
    // The manager rejects a request for a port without a listener by itself.
    let other = client.resolved(10, Space::Tcp, "192.0.2.1:7175");
    client.connect(other, &wish(17, b"")).unwrap();
    carry(&mut server, &mut client);
    assert_eq!((client.next().status, server.maybe_next()), (RejReason::INVALID_SERVICE_ID.0.into(), None));
}

#[test]
fn full_backlog_drops_until_a_request_is_fetched() {
    let (mut server, mut client) = sides();
    let listener = server.listener(Space::Tcp, "0.0.0.0:7174", 1);
    let connect = |client: &mut Side, uid| {
        let id = client.resolved(uid, Space::Tcp, "192.0.2.1:7174");
        client.connect(id, &wish(uid as u32, b"")).unwrap();
    };
    connect(&mut client, 11);
    connect(&mut client, 12);
    carry(&mut server, &mut client);
    assert_eq!(
        (server.next().what, server.maybe_next(), client.maybe_next()),
        (EventType::ConnectRequest, None, None)
    );
    // The dropped request is repeated.
    client.later(Nanos::from_millis(300));
    carry(&mut server, &mut client);
    assert_eq!(server.state.channel(server.file).unwrap().len(), 1);
    // A request not fetched is destroyed with its listener, and the peer is informed; one was fetched.
    assert_eq!(server.destroy(listener), Ok(1));
    assert_eq!(server.state.channel(server.file).unwrap().len(), 0);
    carry(&mut server, &mut client);
    assert_eq!(client.next().what, EventType::Rejected);
}

/// A program that reads no events keeps nothing of requests that are no longer repeated. One that it has read is its
/// own.
#[test]
fn unread_request_ends_with_its_repetitions() {
    let (mut server, mut client) = sides();
    server.listener(Space::Tcp, "0.0.0.0:7174", 2);
    for uid in [11, 12] {
        let id = client.resolved(uid, Space::Tcp, "192.0.2.1:7174");
        client.connect(id, &wish(uid as u32, b"")).unwrap();
    }
    carry(&mut server, &mut client);
    let read = server.next().handle;
    assert_eq!(server.state.seen().len(), 3);
    server.later(Nanos::from_millis(60_000));
    assert_eq!((server.maybe_next(), server.state.seen().len()), (None, 2));
    server.accept(read, Some((8, wish(18, b"")))).unwrap();
}

#[test]
fn destroy_counts_fetched_events_and_informs_the_peer() {
    let (mut server, mut client) = sides();
    let (passive, active) = connected(&mut server, &mut client);
    // Address, route and response.
    assert_eq!(client.destroy(active), Ok(3));
    carry(&mut server, &mut client);
    assert_eq!(server.next().what, EventType::Disconnected);
    assert_eq!(
        server.destroy(passive),
        Ok(2),
        "established and disconnected; the request was the listener's"
    );
    assert_eq!(server.destroy(passive), Err(libc::ENOENT));
    // A destroyed identifier gets no events.
    client.later(Nanos::from_millis(60_000));
    assert_eq!(client.maybe_next(), None);
}

#[test]
fn calls_in_the_wrong_order_are_invalid() {
    let (_, mut side) = sides();
    let id = side.create(1, Space::Tcp);
    let to = "192.0.2.1:7174".parse().unwrap();
    let early = side.state.begin_resolution(side.file, id, to).err();
    assert_eq!(early, Some(libc::EINVAL), "before an address");
    assert_eq!(side.connect(id, &wish(1, b"")), Err(libc::EINVAL));
    assert_eq!(side.accept(id, None), Err(libc::EINVAL));
    assert_eq!(side.disconnect(id), Err(libc::EINVAL));
    assert_eq!(side.with(|state, cm, file| state.listen(cm, file, id, 0)), Err(libc::EINVAL));
    assert_eq!(side.attributes(id, QpState::Init).err(), Some(libc::EINVAL));
    side.bind(id, "0.0.0.0:0").unwrap();
    assert_eq!(side.bind(id, "0.0.0.0:0"), Err(libc::EINVAL), "twice");
    assert_eq!(side.state.resolve_route(side.file, id, Mtu::Mtu1024), Err(libc::EINVAL));
    assert_eq!(
        side.state.begin_resolution(side.file, id, "[fd00::1]:7174".parse().unwrap()).err(),
        Some(libc::EINVAL),
        "another family"
    );
    let query = side.state.begin_resolution(side.file, id, to).unwrap();
    assert_eq!(side.with(|state, cm, file| state.listen(cm, file, id, 0)), Err(libc::EINVAL));
    side.state.end_resolution(&query, Err(libc::ENODEV));
    let event = side.next();
    assert_eq!((event.what, event.status), (EventType::AddressError, -libc::ENODEV));
    assert_eq!(side.state.id(side.file, id).unwrap().stage, IdState::Bound, "it may try again");
    side.state.end_resolution(&query, Ok(to));
    assert_eq!(side.maybe_next(), None, "an answer that nobody waits for");
}

#[test]
fn excess_private_data_is_refused_in_every_message() {
    let (mut server, mut client) = sides();
    server.listener(Space::Tcp, "0.0.0.0:7174", 0);
    let active = client.resolved(9, Space::Tcp, "192.0.2.1:7174");
    assert_eq!(client.connect(active, &wish(17, &[0; 57])), Err(libc::EINVAL));
    client.connect(active, &wish(17, &[1; 56])).unwrap();
    carry(&mut server, &mut client);
    let passive = server.next().handle;
    // As in the kernel, a failed accept rejects the request.
    assert_eq!(server.accept(passive, Some((8, wish(18, &[0; 197])))), Err(libc::EINVAL));
    carry(&mut server, &mut client);
    assert_eq!(client.next().what, EventType::Rejected);
}

/// The case reported by librdmacm as CONNECT_ERROR: the QP's attributes cannot be obtained, so it rejects the response.
#[test]
fn refused_response_ends_the_connection_at_both_ends() {
    for refuses in [false, true] {
        let (mut server, mut client) = sides();
        server.listener(Space::Tcp, "0.0.0.0:7174", 0);
        let active = client.resolved(9, Space::Tcp, "192.0.2.1:7174");
        client.connect(active, &wish(17, b"")).unwrap();
        carry(&mut server, &mut client);
        let passive = server.next().handle;
        server.accept(passive, Some((8, wish(18, b"")))).unwrap();
        carry(&mut server, &mut client);
        assert_eq!(client.next().what, EventType::ConnectResponse);
        // The device has lost the address meanwhile.
        let around = GidLookup { sgid_index: &|_| None, random: 0 };
        let moved =
            client.with(|all, cm, file| all.attributes(Some(cm), &around, file, active, QpState::Rtr));
        assert!(moved.is_err());
        if refuses {
            client.with(|state, cm, file| state.reject(cm, file, active, RejReason::CONSUMER, b"")).unwrap();
        } else {
            client.destroy(active).unwrap();
        }
        carry(&mut server, &mut client);
        let event = server.next();
        assert_eq!((event.what, event.handle, server.maybe_next()), (EventType::Rejected, passive, None));
        assert_eq!(client.maybe_next(), None);
    }
}
