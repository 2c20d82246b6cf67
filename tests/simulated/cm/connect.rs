//! Establishing a connection.

use roxie::cm::{CmError, ConnectRequest, ConnectionState, Event, ListenOn, Route};
use roxie::verbs::{Access, AddressVector, AttrMask, Mtu, Psn, QpState, Qpn};
use roxie::wire::Gid;
use roxie::wire::cm::{CmMessage, CommId, Kind, PrivateData, Transport};

use super::pair::{A, B, Pair, SERVICE, acceptance, address, request};

#[test]
fn request_reply_and_rtu_make_a_connection() {
    let (mut pair, listener) = Pair::listening();
    let a = pair.connect();
    assert_eq!(pair.state(A, a), Some(ConnectionState::ReqSent));
    assert_eq!(pair.deliver(A), [Kind::Req]);
    let event = pair.event(B);
    let Event::Request { id: b, listener: requested, route, request } = event else { panic!("{event:?}") };
    assert_eq!((requested, pair.state(B, b)), (listener, Some(ConnectionState::ReqRcvd)));
    assert_eq!((route.local, route.remote), (Gid::from(address(B)), Gid::from(address(A))));
    assert!(request.private_data.starts_with(b"please\0"));

    pair.ends[B].accept(pair.now, b, &acceptance()).unwrap();
    assert_eq!(pair.state(B, b), Some(ConnectionState::RepSent));
    assert_eq!(pair.deliver(B), [Kind::Rep]);
    let event = pair.event(A);
    let Event::Reply { id, reply } = event else { panic!("{event:?}") };
    assert_eq!((id, pair.state(A, a)), (a, Some(ConnectionState::RepRcvd)));
    assert!(reply.private_data.starts_with(b"gladly\0"));

    pair.ends[A].ready(a, PrivateData::new(Kind::Rtu, b"go").unwrap()).unwrap();
    assert_eq!(pair.deliver(A), [Kind::Rtu]);
    let event = pair.event(B);
    let Event::Established { id, private_data } = event else { panic!("{event:?}") };
    assert!(id == b && private_data.starts_with(b"go\0"));
    assert_eq!(
        (pair.state(A, a), pair.state(B, b)),
        (Some(ConnectionState::Established), Some(ConnectionState::Established))
    );
    pair.no_events();
    pair.exhaust();
    // Without events, nothing is sent or forgotten.
    assert_eq!(
        (pair.state(A, a), pair.state(B, b)),
        (Some(ConnectionState::Established), Some(ConnectionState::Established))
    );
}

#[test]
fn request_reply_and_rtu_share_a_transaction() {
    let (mut pair, _) = Pair::listening();
    let a = pair.connect();
    let transmit = pair.outbox(A)[0].clone();
    let (tid, _) = CmMessage::read(&transmit.mad).unwrap();
    pair.deliver(A);
    pair.accept();
    let rep = pair.outbox(B)[0].clone();
    assert_eq!(CmMessage::read(&rep.mad).unwrap().0, tid);
    pair.deliver(B);
    pair.ends[A].ready(a, PrivateData::EMPTY).unwrap();
    assert_eq!(pair.take(A)[0].0, tid);
}

#[test]
fn both_ends_learn_the_others_parameters() {
    let (mut pair, _) = Pair::listening();
    let (a, b) = pair.established();
    let (a, b) = (pair.ends[A].parameters(a).unwrap(), pair.ends[B].parameters(b).unwrap());
    assert_eq!((a.dest_qpn, b.dest_qpn), (Some(Qpn::new(0x22)), Some(Qpn::new(0x11))));
    assert_eq!((a.sq_psn, a.rq_psn), (b.rq_psn, b.sq_psn));
    // Each end tells the other its starting PSN.
    assert_eq!((a.rq_psn, b.rq_psn), (Psn::new(0x00ab_cdef), Psn::new(0x0012_3456)));
    assert_eq!((a.path_mtu, b.path_mtu), (Mtu::Mtu1024, Mtu::Mtu1024));
    // A answers 4 and wants 16; B answers 8 and wants 9.
    assert_eq!((a.max_rd_atomic, b.max_dest_rd_atomic), (8, 8));
    assert_eq!((b.max_rd_atomic, a.max_dest_rd_atomic), (4, 4));
    // Each end sets the RNR retries that the other requests; A chooses the transport retries.
    assert_eq!((a.rnr_retry, b.rnr_retry), (3, 6));
    assert_eq!((a.retry_cnt, b.retry_cnt), (5, 5));
    // A lifetime code of 16 in each direction and a delay code of 15 give 17, as Linux sends.
    assert_eq!((a.timeout, b.timeout), (17, 17));
    assert_eq!((a.peer_srq, b.peer_srq), (true, false));
    assert_eq!((a.route.flow_label, b.route.flow_label), (0x23f3e, 0x23f3e));
    assert_eq!((a.route.hop_limit, b.route.hop_limit), (64, 64));
}

#[test]
#[cfg(feature = "planted-bugs")]
fn swapped_depths_break_this_script() {
    use roxie::transport::PlantedBug;
    PlantedBug::plant(Some(PlantedBug::DepthsAreSwapped));
    let result = std::panic::catch_unwind(both_ends_learn_the_others_parameters);
    PlantedBug::plant(None);
    assert!(result.is_err(), "it breaks nothing");
}

fn way(route: Route) -> AddressVector {
    let Route { traffic_class, flow_label, hop_limit, .. } = route;
    let path = AddressVector::new(route.local, route.remote, [2; 6], [4; 6]);
    AddressVector { traffic_class, flow_label, hop_limit, ..path }
}

/// Exactly the attributes that each transition requires (`ib_verbs.c`, `qp_state_table`).
#[test]
fn parameters_give_each_transitions_attributes() {
    use roxie::verbs::{QpType, check_transition};
    let cases = [
        (Transport::Rc, [QpType::Rc, QpType::Rc]),
        (Transport::Uc, [QpType::Uc, QpType::Uc]),
        (Transport::Xrc, [QpType::XrcSend, QpType::XrcRecv]),
    ];
    for (transport, types) in cases {
        let (mut pair, _) = Pair::listening();
        let a = pair.ends[A].connect(pair.now, &ConnectRequest { transport, ..request() }).unwrap();
        pair.settle();
        let b = pair.accept();
        pair.settle();
        for (end, id) in [(A, a), (B, b)] {
            let p = pair.ends[end].parameters(id).unwrap();
            let steps = [
                (QpState::Reset, p.init(Access::empty())),
                (QpState::Init, p.rtr(way(p.route), 12).unwrap()),
                (QpState::Rtr, p.rts()),
            ];
            for (from, attr) in steps {
                let checked = check_transition(types[end], from, &attr, Mtu::Mtu4096, 16);
                assert!(checked.is_ok(), "{transport:?} end {end} {from:?}: {checked:?}");
            }
        }
    }
}

#[test]
fn parameters_need_a_peer() {
    let mut pair = Pair::new();
    let a = pair.connect();
    let p = pair.ends[A].parameters(a).unwrap();
    assert_eq!(p.rtr(way(p.route), 12), None);
    assert!(p.init(Access::empty()).mask().contains(AttrMask::STATE | AttrMask::PORT));
}

#[test]
fn data_before_the_rtu_establishes() {
    let (mut pair, _) = Pair::listening();
    let a = pair.connect();
    pair.settle();
    let b = pair.accept();
    pair.settle();
    pair.ends[A].ready(a, PrivateData::EMPTY).unwrap();
    pair.ends[B].established(b).unwrap();
    assert!(matches!(pair.event(B), Event::Established { id, .. } if id == b));
    pair.ends[B].established(b).unwrap();
    pair.deliver(A);
    assert_eq!(pair.ends[B].counters().received_again(Kind::Rtu), 1);
    assert!(pair.events(B).is_empty());
    assert_eq!(pair.state(B, b), Some(ConnectionState::Established));
}

#[test]
fn manager_connects_to_itself() {
    let mut pair = Pair::new();
    pair.ends[A].listen(SERVICE, ListenOn::Any, 1).unwrap();
    let own = Route::new(address(A), address(A));
    let id = pair.ends[A].connect(pair.now, &ConnectRequest { route: own, ..request() }).unwrap();
    let turn = |pair: &mut Pair| {
        for transmit in std::mem::take(pair.outbox(A)) {
            pair.give(A, &transmit);
        }
    };
    turn(&mut pair);
    let event = pair.event(A);
    let Event::Request { id: passive, .. } = event else { panic!("{event:?}") };
    pair.ends[A].accept(pair.now, passive, &acceptance()).unwrap();
    turn(&mut pair);
    assert!(matches!(pair.event(A), Event::Reply { id: replied, .. } if replied == id));
    pair.ends[A].ready(id, PrivateData::EMPTY).unwrap();
    turn(&mut pair);
    assert!(matches!(pair.event(A), Event::Established { id, .. } if id == passive));
}

#[test]
fn calls_in_wrong_states_change_nothing() {
    let (mut pair, _) = Pair::listening();
    let (a, b) = pair.established();
    let now = pair.now;
    let wrong = [
        pair.ends[B].accept(now, b, &acceptance()).unwrap_err(),
        pair.ends[A].ready(a, PrivateData::EMPTY).unwrap_err(),
        pair.ends[A].delay(a, 20, PrivateData::EMPTY).unwrap_err(),
    ];
    for error in wrong {
        assert!(matches!(error, CmError::State { state: ConnectionState::Established, .. }), "{error}");
    }
    let unknown = CommId(a.0 ^ 1);
    assert!(matches!(
        pair.ends[A].disconnect(now, unknown, PrivateData::EMPTY),
        Err(CmError::Unknown { .. })
    ));
    assert_eq!(pair.lose(A).len() + pair.lose(B).len(), 0);
    assert_eq!(
        (pair.state(A, a), pair.state(B, b)),
        (Some(ConnectionState::Established), Some(ConnectionState::Established))
    );
}

#[test]
fn oversized_values_are_refused() {
    let mut pair = Pair::new();
    let bad = [
        ConnectRequest { retry_count: 8, ..request() },
        ConnectRequest { rnr_retry_count: 8, ..request() },
        ConnectRequest { max_cm_retries: 16, ..request() },
        ConnectRequest { response_timeout: 32, ..request() },
        ConnectRequest { route: Route { flow_label: 1 << 20, ..request().route }, ..request() },
    ];
    for request in bad {
        let error = pair.ends[A].connect(pair.now, &request).unwrap_err();
        assert!(matches!(error, CmError::Value { .. }), "{error}");
    }
    assert_eq!(PrivateData::new(Kind::Req, &[1; 93]).unwrap_err().room, 92);
    let long = PrivateData::new(Kind::Rep, &[1; 196]).unwrap();
    let error =
        pair.ends[A].connect(pair.now, &ConnectRequest { private_data: long, ..request() }).unwrap_err();
    assert!(matches!(error, CmError::PrivateData(_)), "{error}");
    assert!(pair.lose(A).is_empty());
}

/// The order of the listeners does not matter.
#[test]
fn most_specific_listener_is_asked() {
    closest_is_requested([ListenOn::Any, ListenOn::AnyIpv4]);
    closest_is_requested([ListenOn::AnyIpv4, ListenOn::Any]);
}

fn closest_is_requested(order: [ListenOn; 2]) {
    let mut pair = Pair::new();
    let listeners = order.map(|on| (on, pair.ends[B].listen(SERVICE, on, 1).unwrap()));
    let of = |wanted: ListenOn| listeners.iter().find(|(on, _)| *on == wanted).unwrap().1;
    let (any, family) = (of(ListenOn::Any), of(ListenOn::AnyIpv4));
    let own = pair.ends[B].listen(SERVICE, ListenOn::Address(address(B).into()), 1).unwrap();
    let v6 = pair.ends[B].listen(SERVICE, ListenOn::AnyIpv6, 1).unwrap();
    let requested = |pair: &mut Pair| {
        let a = pair.connect();
        pair.settle();
        let event = pair.event(B);
        let Event::Request { id, listener, .. } = event else { panic!("{event:?}") };
        let now = pair.now;
        pair.ends[A].destroy(now, a);
        pair.ends[B].destroy(now, id);
        listener
    };
    assert_eq!(requested(&mut pair), own);
    assert!(pair.ends[B].stop_listening(own));
    assert_eq!(requested(&mut pair), family);
    assert!(pair.ends[B].stop_listening(family));
    assert_eq!(requested(&mut pair), any);
    let again = pair.ends[B].listen(SERVICE, ListenOn::AnyIpv6, 1);
    assert_eq!(again, Err(CmError::InUse { service: SERVICE, on: ListenOn::AnyIpv6 }));
    assert!(pair.ends[B].stop_listening(v6) && !pair.ends[B].stop_listening(v6));
}
