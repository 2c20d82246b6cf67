//! SIDR: finding the datagram QP that serves a service ID.

use roxie::cm::{
    CmError, ConnectionState, Event, ListenOn, ResolveAnswer, ResolveRequest, Route, WhyUnreachable,
};
use roxie::verbs::Qpn;
use roxie::wire::cm::{Kind, PrivateData, SidrStatus};
use roxie::wire::service_id::RDMA_UDP_QKEY;
use roxie::wire::{PortSpace, ServiceId};

use super::pair::{A, B, Pair, address};

const DATAGRAMS: ServiceId = ServiceId::of_port(PortSpace::Udp, 7174);

fn question() -> ResolveRequest {
    let private_data = PrivateData::new(Kind::SidrReq, b"who?").unwrap();
    ResolveRequest { private_data, ..ResolveRequest::new(DATAGRAMS, Route::new(address(A), address(B))) }
}

fn answer() -> ResolveAnswer {
    ResolveAnswer {
        qpn: Qpn::new(0x4321),
        qkey: RDMA_UDP_QKEY,
        private_data: PrivateData::new(Kind::SidrRep, b"me").unwrap(),
        ..ResolveAnswer::default()
    }
}

#[test]
fn service_id_resolves_to_qp_and_qkey() {
    let mut pair = Pair::new();
    let listener = pair.ends[B].listen(DATAGRAMS, ListenOn::Any, 4).unwrap();
    let a = pair.ends[A].resolve(pair.now, &question()).unwrap();
    assert_eq!(pair.deliver(A), [Kind::SidrReq]);
    let event = pair.event(B);
    let Event::ResolutionRequest { id: b, listener: requested, request, .. } = event else {
        panic!("{event:?}")
    };
    assert!(requested == listener && request.private_data.starts_with(b"who?\0"));
    pair.ends[B].answer_resolution(pair.now, b, &answer()).unwrap();
    assert_eq!(pair.deliver(B), [Kind::SidrRep]);
    let event = pair.event(A);
    let Event::Resolved { id, reply, .. } = event else { panic!("{event:?}") };
    assert_eq!(
        (id, reply.status, reply.qpn, reply.qkey),
        (a, SidrStatus::VALID, Qpn::new(0x4321), RDMA_UDP_QKEY)
    );
    assert!(reply.service_id == DATAGRAMS && reply.private_data.starts_with(b"me\0"));
    assert_eq!(pair.state(A, a), None);
    pair.assert_empty();
    pair.no_events();
}

#[test]
fn unserved_service_id_is_refused() {
    let mut pair = Pair::new();
    pair.ends[A].resolve(pair.now, &question()).unwrap();
    pair.settle();
    let event = pair.event(A);
    assert!(
        matches!(&event, Event::Resolved { reply, .. } if reply.status == SidrStatus::UNSUPPORTED),
        "{event:?}"
    );
    pair.assert_empty();
}

#[test]
fn lost_answer_is_repeated() {
    let mut pair = Pair::new();
    pair.ends[B].listen(DATAGRAMS, ListenOn::Any, 4).unwrap();
    pair.ends[A].resolve(pair.now, &question()).unwrap();
    let sent = pair.outbox(A)[0].clone();
    pair.deliver(A);
    // A copy before the answer is ignored; a copy after it gets the answer.
    pair.give(B, &sent);
    assert!(pair.lose(B).is_empty());
    let b = pair.event(B).id();
    pair.ends[B].answer_resolution(pair.now, b, &answer()).unwrap();
    assert_eq!(pair.lose(B), [Kind::SidrRep]);
    pair.give(B, &sent);
    assert_eq!(pair.deliver(B), [Kind::SidrRep]);
    assert!(matches!(pair.event(A), Event::Resolved { .. }));
    pair.no_events();
}

#[test]
fn silence_is_reported_after_all_retries() {
    let mut pair = Pair::new();
    let request = ResolveRequest { max_cm_retries: 2, ..question() };
    let a = pair.ends[A].resolve(pair.now, &request).unwrap();
    let mut sent = pair.lose(A).len();
    while pair.state(A, a).is_some() {
        pair.wait_for(A);
        sent += pair.lose(A).len();
    }
    assert_eq!(sent, 3);
    assert_eq!(
        pair.event(A),
        Event::Unreachable { id: a, unanswered: Kind::SidrReq, why: WhyUnreachable::Silent { sent: 3 } }
    );
    pair.assert_empty();
}

#[test]
fn destroyed_request_is_refused() {
    let mut pair = Pair::new();
    pair.ends[B].listen(DATAGRAMS, ListenOn::Any, 4).unwrap();
    pair.ends[A].resolve(pair.now, &question()).unwrap();
    pair.settle();
    let b = pair.event(B).id();
    assert_eq!(pair.state(B, b), Some(ConnectionState::SidrReqRcvd));
    assert!(matches!(pair.ends[B].parameters(b), Err(CmError::State { .. })));
    pair.ends[B].destroy(pair.now, b);
    pair.settle();
    let event = pair.event(A);
    assert!(
        matches!(&event, Event::Resolved { reply, .. } if reply.status == SidrStatus::REJECTED),
        "{event:?}"
    );
    assert!(matches!(pair.ends[B].answer_resolution(pair.now, b, &answer()), Err(CmError::Unknown { .. })));
    pair.assert_empty();
}
