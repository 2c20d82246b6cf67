//! What programs see of identifiers, without a network: two processes' states, each with its manager, and messages carried by hand.

use std::net::SocketAddr;

use nix::sys::eventfd::EfdFlags;
use roxie::cm::{Arrival, Config, Manager, Route};
use roxie::time::Nanos;
use roxie::verbs::{Mtu, Psn, QpState};
use roxie::wire::cm::RejReason;
use roxie::wire::{Gid, Qpn};

use super::event::{ConnectionFacts, Event, Facts, What};
use super::id::{Made, Stage};
use super::incoming::Surroundings;
use super::ports::Space;
use super::state::{Cm, Rules, State, Whose};
use crate::abi::{ibv_qp_attr_mask as mask, ibv_qp_type};
use crate::object::Errno;

const RULES: Rules =
    Rules { any_port: 40000..=40009, unprivileged: 1024, privileged: false, ipv6_only: false, random: 3 };

/// A process, with one open file.
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
        self.state.bind(self.file, id, address.parse().unwrap(), Whose::Device, &RULES)
    }

    fn with<R>(&mut self, call: impl FnOnce(&mut State, &mut Cm<'_>, u64) -> R) -> R {
        call(&mut self.state, &mut Cm { manager: &mut self.manager, now: self.now }, self.file)
    }

    fn listener(&mut self, space: Space, address: &str, backlog: u32) -> u32 {
        let id = self.create(7, space);
        self.bind(id, address).unwrap();
        self.with(|state, cm, file| state.listen(cm, file, id, backlog)).unwrap();
        id
    }

    /// An identifier with a route to `destination`.
    fn resolved(&mut self, uid: u64, space: Space, destination: &str) -> u32 {
        let id = self.create(uid, space);
        let destination: SocketAddr = destination.parse().unwrap();
        self.bind(id, &State::wildcard(destination.is_ipv4()).to_string()).unwrap();
        let query = self.state.begin_resolution(self.file, id, destination).unwrap();
        let local = SocketAddr::new(self.address.parse().unwrap(), 0);
        self.state.end_resolution(&query, Ok(local));
        self.state.resolve_route(self.file, id, Mtu::Mtu1024).unwrap();
        assert_eq!([self.next().what, self.next().what], [What::AddressResolved, What::RouteResolved]);
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
        self.with(|state, cm, file| state.destroy(Some(Cm { manager: cm.manager, now: cm.now }), file, id))
    }

    fn attributes(&mut self, id: u32, state: QpState) -> Result<crate::abi::ib_uverbs_qp_attr, Errno> {
        let around = Surroundings { sgid_index: &|_| Some(3), random: 0 };
        self.with(|all, cm, file| all.attributes(Some(cm), &around, file, id, state))
    }

    fn hear(&mut self) {
        let around = Surroundings { sgid_index: &|_| Some(3), random: 5 << 40 };
        while let Some(event) = self.manager.poll_event() {
            let mut cm = Cm { manager: &mut self.manager, now: self.now };
            self.state.hear(&mut cm, &around, event);
        }
    }

    fn later(&mut self, time: Nanos) {
        self.now = self.now + time;
        self.manager.handle_timeouts(self.now);
        self.hear();
    }

    fn maybe_next(&mut self) -> Option<Event> {
        self.state.fetch(self.file)
    }

    fn next(&mut self) -> Event {
        self.maybe_next().expect("an event")
    }
}

/// Carries messages both ways until there are none.
fn carry(a: &mut Side, b: &mut Side) {
    loop {
        let (mut carried, now) = (false, a.now.max(b.now));
        (a.now, b.now) = (now, now);
        for turn in [true, false] {
            let (from, to) = if turn { (&mut *a, &mut *b) } else { (&mut *b, &mut *a) };
            from.hear();
            while let Some(transmit) = from.manager.poll_transmit() {
                let back =
                    Route { local: transmit.route.remote, remote: transmit.route.local, ..transmit.route };
                to.manager.handle_mad(now, &transmit.mad, &Arrival { route: back, src_qp: Qpn::GSI });
                to.hear();
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

/// A listener at port 7174 of `near`, and a connection from `far`: both ends' identifiers.
fn connected(near: &mut Side, far: &mut Side) -> (u32, u32) {
    near.listener(Space::Tcp, "0.0.0.0:7174", 0);
    let active = far.resolved(9, Space::Tcp, "192.0.2.1:7174");
    far.connect(active, &wish(17, b"ask")).unwrap();
    carry(near, far);
    let passive = near.next().handle;
    near.accept(passive, Some((8, wish(18, b"yes")))).unwrap();
    carry(near, far);
    assert_eq!(far.next().what, What::ConnectResponse);
    far.accept(active, None).unwrap();
    carry(near, far);
    assert_eq!((near.next().what, near.maybe_next(), far.maybe_next()), (What::Established, None, None));
    (passive, active)
}

#[test]
fn a_request_tells_addresses_private_data_and_resources_as_the_receiver_sees_them() {
    let (mut near, mut far) = sides();
    let listener = near.listener(Space::Tcp, "0.0.0.0:7174", 0);
    let active = far.resolved(9, Space::Tcp, "192.0.2.1:7174");
    far.connect(active, &wish(17, b"ask")).unwrap();
    carry(&mut near, &mut far);
    let event = near.next();
    assert_eq!((event.what, event.status, event.uid), (What::ConnectRequest, 0, 7), "the listener's word");
    assert_ne!(event.handle, listener);
    let Facts::Connection(facts) = event.facts else { panic!("{event:?}") };
    assert_eq!((facts.qpn, facts.private_data.len(), &facts.private_data[..4]), (17, 56, &b"ask\0"[..]));
    assert_eq!((facts.responder_resources, facts.initiator_depth), (2, 4), "the other way round");
    assert_eq!((facts.retry_count, facts.rnr_retry_count), (5, 6));
    let child = near.state.id(near.file, event.handle).unwrap();
    let port = far.state.id(far.file, active).unwrap().source.unwrap().port();
    assert_eq!(child.source, Some("192.0.2.1:7174".parse().unwrap()));
    assert_eq!(child.destination, Some(SocketAddr::new("192.0.2.2".parse().unwrap(), port)));
}

#[test]
fn a_reply_tells_private_data_and_resources_and_both_ends_get_matching_attributes() {
    let (mut near, mut far) = sides();
    near.listener(Space::Tcp, "192.0.2.1:7174", 0);
    let active = far.resolved(9, Space::Tcp, "192.0.2.1:7174");
    far.connect(active, &wish(17, b"ask")).unwrap();
    carry(&mut near, &mut far);
    let passive = near.next().handle;
    // librdmacm brings the QP to RTS before it accepts.
    let (there_rtr, there_rts) =
        (near.attributes(passive, QpState::Rtr).unwrap(), near.attributes(passive, QpState::Rts).unwrap());
    near.accept(passive, Some((8, wish(18, b"yes")))).unwrap();
    carry(&mut near, &mut far);
    let event = far.next();
    assert_eq!((event.what, event.uid, event.handle), (What::ConnectResponse, 9, active));
    let Facts::Connection(facts) = event.facts else { panic!("{event:?}") };
    assert_eq!((facts.qpn, facts.private_data.len(), &facts.private_data[..4]), (18, 196, &b"yes\0"[..]));
    let (rtr, rts) =
        (far.attributes(active, QpState::Rtr).unwrap(), far.attributes(active, QpState::Rts).unwrap());
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
    let init = far.attributes(active, QpState::Init).unwrap();
    assert_eq!(
        (init.port_num, init.qp_access_flags & 0b1110),
        (1, 0b1110),
        "its peer may write, read and swap"
    );
    assert_eq!(far.attributes(active, QpState::Sqd).err(), Some(libc::EINVAL));
    // An ACK timeout of the program's own (RDMA_OPTION_ID_ACK_TIMEOUT) goes before the path's, 0 included.
    for timeout in [21, 0] {
        for (side, id) in [(&mut near, passive), (&mut far, active)] {
            let told = side.state.id(side.file, id).unwrap();
            super::options::set(told, crate::abi::RDMA_OPTION_ID_ACK_TIMEOUT, Some((1, timeout))).unwrap();
            assert_eq!(side.attributes(id, QpState::Rts).unwrap().timeout, timeout as u8);
        }
    }
}

#[test]
fn an_end_is_told_once_to_both_whoever_asks_and_time_passes_before_the_qp_is_free() {
    let (mut near, mut far) = sides();
    let (passive, active) = connected(&mut near, &mut far);
    far.disconnect(active).unwrap();
    carry(&mut near, &mut far);
    let told = near.next();
    assert_eq!((told.what, told.status, told.handle, told.uid), (What::Disconnected, 0, passive, 8));
    assert_eq!(far.maybe_next(), None, "the other has not agreed yet");
    near.disconnect(passive).unwrap();
    carry(&mut near, &mut far);
    assert_eq!((far.next().what, near.maybe_next()), (What::Disconnected, None));
    // Again is no error, and nothing.
    assert_eq!((near.disconnect(passive), far.disconnect(active)), (Ok(()), Ok(())));
    for side in [&mut near, &mut far] {
        side.later(Nanos::from_millis(10_000));
        assert_eq!((side.next().what, side.maybe_next()), (What::TimeWaitExit, None));
    }
}

#[test]
fn a_peer_that_does_not_answer_is_told_as_a_timeout() {
    let (_, mut far) = sides();
    let active = far.resolved(9, Space::Tcp, "192.0.2.1:7174");
    far.connect(active, &wish(17, b"")).unwrap();
    for _ in 0..100 {
        far.later(Nanos::from_millis(5000));
    }
    let event = far.next();
    assert_eq!((event.what, event.status), (What::Unreachable, -libc::ETIMEDOUT));
    assert_eq!(far.state.id(far.file, active).unwrap().comm, None);
}

#[test]
fn a_refusal_brings_its_reason_and_private_data() {
    let (mut near, mut far) = sides();
    near.listener(Space::Tcp, "0.0.0.0:7174", 0);
    let active = far.resolved(9, Space::Tcp, "192.0.2.1:7174");
    far.connect(active, &wish(17, b"")).unwrap();
    carry(&mut near, &mut far);
    let passive = near.next().handle;
    near.with(|state, cm, file| state.reject(cm, file, passive, RejReason::CONSUMER, b"no")).unwrap();
    carry(&mut near, &mut far);
    let event = far.next();
    assert_eq!((event.what, event.status, event.handle), (What::Rejected, 28, active));
    let Facts::Connection(facts) = event.facts else { panic!("{event:?}") };
    assert_eq!((facts.private_data.len(), &facts.private_data[..3]), (148, &b"no\0"[..]));
    // Nobody listens there: the manager says so by itself.
    let other = far.resolved(10, Space::Tcp, "192.0.2.1:7175");
    far.connect(other, &wish(17, b"")).unwrap();
    carry(&mut near, &mut far);
    assert_eq!((far.next().status, near.maybe_next()), (RejReason::INVALID_SERVICE_ID.0.into(), None));
}

#[test]
fn a_listener_without_room_refuses_until_the_program_has_fetched_a_request() {
    let (mut near, mut far) = sides();
    let listener = near.listener(Space::Tcp, "0.0.0.0:7174", 1);
    let ask = |far: &mut Side, uid| {
        let id = far.resolved(uid, Space::Tcp, "192.0.2.1:7174");
        far.connect(id, &wish(uid as u32, b"")).unwrap();
    };
    ask(&mut far, 11);
    ask(&mut far, 12);
    carry(&mut near, &mut far);
    assert_eq!(far.next().what, What::Rejected);
    assert_eq!((near.next().what, near.maybe_next()), (What::ConnectRequest, None));
    ask(&mut far, 13);
    carry(&mut near, &mut far);
    assert_eq!(near.state.channel(near.file).unwrap().len(), 1);
    // What was not fetched goes with its listener, and the peer hears of it; one was fetched.
    assert_eq!(near.destroy(listener), Ok(1));
    assert_eq!(near.state.channel(near.file).unwrap().len(), 0);
    carry(&mut near, &mut far);
    assert_eq!(far.next().what, What::Rejected);
}

#[test]
fn destroying_counts_what_was_fetched_takes_back_what_was_not_and_tells_the_peer() {
    let (mut near, mut far) = sides();
    let (passive, active) = connected(&mut near, &mut far);
    // Address, route and response.
    assert_eq!(far.destroy(active), Ok(3));
    carry(&mut near, &mut far);
    assert_eq!(near.next().what, What::Disconnected);
    assert_eq!(near.destroy(passive), Ok(2), "established and disconnected; the request was the listener's");
    assert_eq!(near.destroy(passive), Err(libc::ENOENT));
    // Nothing is heard of what is gone.
    far.later(Nanos::from_millis(60_000));
    assert_eq!(far.maybe_next(), None);
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
    assert_eq!((event.what, event.status), (What::AddressError, -libc::ENODEV));
    assert_eq!(side.state.id(side.file, id).unwrap().stage, Stage::Bound, "it may try again");
    side.state.end_resolution(&query, Ok(to));
    assert_eq!(side.maybe_next(), None, "an answer that nobody waits for");
}

#[test]
fn addresses_and_ports_that_cannot_be_had_say_why() {
    let (_, mut side) = sides();
    let (file, id) = (side.file, side.create(1, Space::Tcp));
    let mut bind = |address: &str, whose, rules: &Rules| {
        side.state.bind(file, id, address.parse().unwrap(), whose, rules)
    };
    assert_eq!(bind("192.0.2.9:7174", Whose::Nobodys, &RULES), Err(libc::EADDRNOTAVAIL));
    assert_eq!(bind("198.51.100.9:7174", Whose::Host, &RULES), Err(libc::ENODEV));
    assert_eq!(bind("192.0.2.2:80", Whose::Device, &RULES), Err(libc::EACCES));
    assert_eq!(bind("192.0.2.2:80", Whose::Device, &Rules { privileged: true, ..RULES }), Ok(()));
    let other = side.create(2, Space::Tcp);
    assert_eq!(side.bind(other, "192.0.2.2:0"), Ok(()));
    let port = side.state.id(file, other).unwrap().source.unwrap().port();
    assert!(RULES.any_port.contains(&port));
    let third = side.create(3, Space::Tcp);
    assert_eq!(side.bind(third, &format!("192.0.2.2:{port}")), Err(libc::EADDRINUSE));
    side.destroy(other).unwrap();
    assert_eq!(side.bind(third, &format!("192.0.2.2:{port}")), Ok(()), "free again");
}

#[test]
fn an_identifier_belongs_to_a_file_and_moves_with_its_events() {
    let (mut near, mut far) = sides();
    let (passive, active) = connected(&mut near, &mut far);
    far.disconnect(active).unwrap();
    carry(&mut near, &mut far);
    let other = near.state.open(EfdFlags::EFD_NONBLOCK).unwrap();
    assert_eq!(near.state.id(other, passive).err(), Some(libc::EINVAL));
    assert_eq!(near.state.migrate(near.file, other, passive), Ok(1), "one was fetched, one waits");
    assert_eq!((near.maybe_next(), near.state.fetch(other).unwrap().what), (None, What::Disconnected));
    near.with(|state, cm, _| state.close(Some(Cm { manager: cm.manager, now: cm.now }), other));
    assert_eq!(near.state.id(other, passive).err(), Some(libc::ENOENT), "closed with the file");
}

#[test]
fn a_wildcard_of_ipv6_listens_for_ipv4_too_unless_it_is_told_not_to() {
    let (mut near, mut far) = sides();
    near.listener(Space::Tcp, "[::]:7174", 0);
    let active = far.resolved(9, Space::Tcp, "192.0.2.1:7174");
    far.connect(active, &wish(17, b"")).unwrap();
    carry(&mut near, &mut far);
    assert_eq!(near.next().what, What::ConnectRequest);

    let alone = near.create(5, Space::Tcp);
    near.state.id(near.file, alone).unwrap().options.one_family = Some(true);
    near.bind(alone, "[::]:7175").unwrap();
    near.with(|state, cm, file| state.listen(cm, file, alone, 0)).unwrap();
    let active = far.resolved(10, Space::Tcp, "192.0.2.1:7175");
    far.connect(active, &wish(17, b"")).unwrap();
    carry(&mut near, &mut far);
    assert_eq!(far.next().what, What::Rejected);
}

/// `cma_any_addr` of the kernel: libfabric's servers without an address bind so.
#[test]
fn a_loopback_address_is_as_good_as_none_and_its_listener_hears_all_of_the_family() {
    for (loopback, other) in [("127.0.0.1", "0.0.0.0"), ("127.9.9.9", "192.0.2.1"), ("[::1]", "[::]")] {
        let (mut near, mut far) = sides();
        let id = near.create(1, Space::Tcp);
        let (file, address) = (near.file, format!("{loopback}:7174"));
        near.state.bind(file, id, address.parse().unwrap(), Whose::Host, &RULES).unwrap();
        let bound = near.state.id(file, id).unwrap();
        assert_eq!((bound.source, bound.on_device), (Some(address.parse().unwrap()), false));
        // The port is taken on all addresses.
        let second = near.create(2, Space::Tcp);
        assert_eq!(near.bind(second, &format!("{other}:7174")), Err(libc::EADDRNOTAVAIL), "{other}");
        near.with(|state, cm, file| state.listen(cm, file, id, 0)).unwrap();
        let active = far.resolved(9, Space::Tcp, "192.0.2.1:7174");
        far.connect(active, &wish(17, b"")).unwrap();
        carry(&mut near, &mut far);
        let asked = near.next();
        assert_eq!(asked.what, What::ConnectRequest, "{loopback}");
        // Who is asked is on the device.
        let asked = near.state.id(file, asked.handle).unwrap();
        assert_eq!((asked.on_device, asked.source.unwrap().ip().to_string()), (true, "192.0.2.1".into()));
    }
    let (_, mut side) = sides();
    let (file, id) = (side.file, side.create(1, Space::Tcp));
    // On a device that stands on the loopback interface it is an address as any other.
    side.bind(id, "127.0.0.1:7174").unwrap();
    assert!(side.state.id(file, id).unwrap().on_device);
}

#[test]
fn a_datagram_port_is_found_by_asking_and_its_qp_told_with_the_way() {
    let (mut near, mut far) = sides();
    near.listener(Space::Udp, "0.0.0.0:7174", 0);
    let active = far.resolved(9, Space::Udp, "192.0.2.1:7174");
    far.connect(active, &wish(17, b"who")).unwrap();
    carry(&mut near, &mut far);
    let event = near.next();
    let Facts::Datagram(facts) = event.facts else { panic!("{event:?}") };
    assert_eq!((facts.private_data.len(), &facts.private_data[..4]), (180, &b"who\0"[..]));
    near.accept(event.handle, Some((8, wish(18, b"me")))).unwrap();
    carry(&mut near, &mut far);
    let event = far.next();
    assert_eq!((event.what, event.status), (What::Established, 0));
    let Facts::Datagram(facts) = event.facts else { panic!("{event:?}") };
    assert_eq!((facts.qpn, facts.qkey, facts.private_data.len()), (18, 0x0123_4567, 136));
    let way = facts.way.unwrap();
    assert_eq!((way.sgid_index, way.dgid.to_ip().to_string()), (3, "192.0.2.1".into()));
    assert_eq!(near.maybe_next(), None);

    let refused = far.resolved(10, Space::Udp, "192.0.2.1:7174");
    far.connect(refused, &wish(17, b"")).unwrap();
    carry(&mut near, &mut far);
    let asked = near.next().handle;
    near.with(|state, cm, file| state.reject(cm, file, asked, RejReason::CONSUMER, b"")).unwrap();
    carry(&mut near, &mut far);
    let event = far.next();
    assert_eq!((event.what, event.status), (What::Unreachable, 2));
}

#[test]
fn a_host_where_nothing_listens_and_one_that_is_silent_are_told_apart_by_the_status() {
    let (_, mut side) = sides();
    let id = side.resolved(9, Space::Tcp, "192.0.2.1:7174");
    side.connect(id, &wish(17, b"")).unwrap();
    let asked = side.manager.poll_transmit().unwrap();
    side.manager.handle_undelivered(side.now, asked.route.remote, &asked.mad);
    side.hear();
    let event = side.next();
    assert_eq!((event.what, event.status, side.maybe_next()), (What::Unreachable, -libc::ECONNREFUSED, None));
    assert_eq!(side.destroy(id), Ok(3));

    let id = side.resolved(10, Space::Tcp, "192.0.2.1:7174");
    side.connect(id, &wish(17, b"")).unwrap();
    // Three requests, each of which waits for 4.3 s, and is said again meanwhile.
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
    assert_eq!((event.what, event.status), (What::Unreachable, -libc::ETIMEDOUT));
}

#[test]
fn too_much_private_data_is_refused_at_each_message() {
    let (mut near, mut far) = sides();
    near.listener(Space::Tcp, "0.0.0.0:7174", 0);
    let active = far.resolved(9, Space::Tcp, "192.0.2.1:7174");
    assert_eq!(far.connect(active, &wish(17, &[0; 57])), Err(libc::EINVAL));
    far.connect(active, &wish(17, &[1; 56])).unwrap();
    carry(&mut near, &mut far);
    let passive = near.next().handle;
    // As the kernel has it, an accept that fails refuses.
    assert_eq!(near.accept(passive, Some((8, wish(18, &[0; 197])))), Err(libc::EINVAL));
    carry(&mut near, &mut far);
    assert_eq!(far.next().what, What::Rejected);
}

#[test]
fn a_membership_is_told_and_left_with_the_count_of_its_events() {
    let (_, mut side) = sides();
    let around = Surroundings { sgid_index: &|_| Some(3), random: 0 };
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
    assert_eq!((event.what, event.uid, event.handle), (What::MulticastJoin, 5, one));
    let Facts::Datagram(facts) = event.facts else { panic!("{event:?}") };
    assert_eq!((facts.qpn, facts.way.unwrap().dgid.to_ip().to_string()), (0x00ff_ffff, "239.1.2.3".into()));
    assert_eq!((side.state.leave(file, one), side.state.leave(file, two)), (Ok(1), Ok(0)));
    assert_eq!(side.maybe_next(), None, "what waited of the second is taken back");
    assert_eq!(side.state.leave(file, one), Err(libc::ENOENT));
    // An identifier that goes leaves its groups; the number is another's then.
    let three = side.state.join(&around, file, id, 7, group).unwrap();
    side.destroy(id).unwrap();
    assert_eq!(side.state.leave(file, three), Err(libc::ENOENT));
}

#[test]
fn a_membership_of_an_address_that_is_gone_is_an_error_that_is_told() {
    let (_, mut side) = sides();
    let around = Surroundings { sgid_index: &|_| None, random: 0 };
    let id = side.create(1, Space::Udp);
    side.bind(id, "192.0.2.2:0").unwrap();
    let file = side.file;
    let number = side.state.join(&around, file, id, 5, "239.1.2.3:0".parse().unwrap()).unwrap();
    let event = side.next();
    assert_eq!((event.what, event.status, event.uid, event.handle), (What::MulticastError, 0, 5, number));
    assert_eq!(event.what as u32, 13);
    let Facts::Datagram(facts) = event.facts else { panic!("{event:?}") };
    assert_eq!((facts.qpn, facts.way), (0, None));
    assert_eq!(side.state.leave(file, number), Ok(1), "the program leaves it all the same");
}

/// An identifier that has found 192.0.2.1, and no route yet.
fn found(side: &mut Side) -> u32 {
    let id = side.create(1, Space::Tcp);
    side.bind(id, "0.0.0.0:0").unwrap();
    let query = side.state.begin_resolution(side.file, id, "192.0.2.1:7174".parse().unwrap()).unwrap();
    side.state.end_resolution(&query, Ok("192.0.2.2:0".parse().unwrap()));
    assert_eq!(side.next().what, What::AddressResolved);
    id
}

/// What a query of the path of another identifier's route answers.
fn path_of_another(side: &mut Side) -> Vec<u8> {
    let other = side.resolved(2, Space::Tcp, "192.0.2.1:7174");
    super::answer::path(side.state.id(side.file, other).unwrap(), 1024).split_off(8)
}

#[test]
fn a_path_that_the_program_has_takes_the_place_of_resolving_the_route() {
    let (mut near, mut side) = sides();
    near.listener(Space::Tcp, "0.0.0.0:7174", 0);
    let mut record = path_of_another(&mut side);
    assert_eq!(record.len(), 72);
    // Path MTU 512, a traffic class, hops, a packet lifetime that outlasts the acknowledgement delay of the adapter.
    let at = |field: usize| 8 + field;
    (record[at(54)], record[at(48)], record[at(47)], record[at(56)]) = (0x82, 0x60, 9, 0x92);
    let id = found(&mut side);
    // One for one direction only comes first.
    let mut records = record.clone();
    records[0] = 2;
    records.extend_from_slice(&record);
    side.state.take_path(side.file, id, &records, Mtu::Mtu4096).unwrap();
    let event = side.next();
    assert_eq!((event.what, event.status, side.maybe_next()), (What::RouteResolved, 0, None));
    let again = side.state.take_path(side.file, id, &records, Mtu::Mtu4096);
    assert_eq!(again, Err(libc::EINVAL), "it has one");
    side.connect(id, &wish(17, b"")).unwrap();
    carry(&mut near, &mut side);
    let asked = near.next();
    assert_eq!(asked.what, What::ConnectRequest);
    let path = near.state.id(near.file, asked.handle).unwrap().path.unwrap();
    assert_eq!((path.mtu, path.traffic_class, path.hop_limit), (Mtu::Mtu512, 0x60, 9));
    assert_eq!(path.packet_lifetime, 18);
}

/// A route that cannot be is an error of the call: nothing is told of it afterwards.
#[test]
fn a_path_that_is_none_or_another_is_refused_and_the_route_can_still_be_resolved() {
    let (_, mut side) = sides();
    let good = path_of_another(&mut side);
    let id = found(&mut side);
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
    assert_eq!(side.next().what, What::RouteResolved);
}

/// What the library tells as CONNECT_ERROR: the attributes to move its QP by cannot be had, so it takes no response.
#[test]
fn a_response_that_is_not_taken_ends_the_connection_at_both_ends() {
    for refuses in [false, true] {
        let (mut near, mut far) = sides();
        near.listener(Space::Tcp, "0.0.0.0:7174", 0);
        let active = far.resolved(9, Space::Tcp, "192.0.2.1:7174");
        far.connect(active, &wish(17, b"")).unwrap();
        carry(&mut near, &mut far);
        let passive = near.next().handle;
        near.accept(passive, Some((8, wish(18, b"")))).unwrap();
        carry(&mut near, &mut far);
        assert_eq!(far.next().what, What::ConnectResponse);
        // The device has lost the address in between.
        let around = Surroundings { sgid_index: &|_| None, random: 0 };
        let moved = far.with(|all, cm, file| all.attributes(Some(cm), &around, file, active, QpState::Rtr));
        assert!(moved.is_err());
        if refuses {
            far.with(|state, cm, file| state.reject(cm, file, active, RejReason::CONSUMER, b"")).unwrap();
        } else {
            far.destroy(active).unwrap();
        }
        carry(&mut near, &mut far);
        let told = near.next();
        assert_eq!((told.what, told.handle, near.maybe_next()), (What::Rejected, passive, None));
        assert_eq!(far.maybe_next(), None);
    }
}

#[test]
fn a_device_that_is_gone_is_told_once_and_nothing_can_be_done_but_go() {
    let (mut near, mut far) = sides();
    let (passive, _) = connected(&mut near, &mut far);
    near.state.lose_device();
    near.state.lose_device();
    assert_eq!((near.next().what, near.maybe_next()), (What::DeviceRemoval, None));
    assert_eq!(near.disconnect(passive), Err(libc::EINVAL));
    assert_eq!(near.destroy(passive), Ok(2));
}

/// As with the kernel, where a call holds the file that it has begun with.
#[test]
fn a_call_that_waits_does_not_come_back_because_its_descriptor_was_closed() {
    // SAFETY: no descriptor has this number, so nothing is read or written.
    let waiting = std::thread::spawn(|| unsafe { super::wait(i32::MAX, std::ptr::null(), 0) });
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert!(!waiting.is_finished());
}
