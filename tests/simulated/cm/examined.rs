//! Places for examinations, when requests name the QPs of more connections than are examined at a time.

use std::net::{IpAddr, Ipv4Addr};

use roxie::cm::{Arrival, Config, ConnectionState, ListenOn, Route};
use roxie::limits::CmLimits;
use roxie::time::Nanos;
use roxie::verbs::Qpn;
use roxie::wire::cm::{CmMessage, CommId, PrivateData, Req, Rtu};

use super::pair::{A, B, Pair, SERVICE, acceptance, address, config};

/// Connections that are examined at a time.
const MOST: usize = 256;
/// More than an examination takes.
const LONG: Nanos = Nanos::from_millis(1100);

/// Returns a pair with a listener at B, which has room for many connections.
fn pair() -> Pair {
    let mut pair = Pair::with(config(A), Config { limits: CmLimits::default(), ..config(B) });
    pair.ends[B].listen(SERVICE, ListenOn::Any, 8).unwrap();
    pair
}

/// Gives B a message of a host with this number.
fn give_from(pair: &mut Pair, host: u32, message: &CmMessage) {
    let from: IpAddr = Ipv4Addr::from(0x0a01_0000 + host).into();
    let arrival = Arrival { route: Route::new(address(B), from), src_qp: Qpn::GSI };
    let now = pair.now;
    pair.ends[B].handle_mad(now, &message.to_mad(1), &arrival);
    pair.agrees();
}

/// Gives B a REQ of a host's QP, with an ID of this life of the host.
fn request_from(pair: &mut Pair, host: u32, qp: u32, life: u32) {
    let from: IpAddr = Ipv4Addr::from(0x0a01_0000 + host).into();
    let mut req = Req {
        local_comm_id: CommId(life << 16 | qp),
        service_id: SERVICE,
        local_ca_guid: host.into(),
        local_qpn: Qpn::new(qp),
        path_mtu: 3,
        remote_cm_response_timeout: 20,
        ..Req::default()
    };
    req.primary_path.local_gid = from.into();
    req.primary_path.remote_gid = address(B).into();
    give_from(pair, host, &CmMessage::Req(req));
}

/// Connects a host's QP to B.
fn connect_from(pair: &mut Pair, host: u32, qp: u32) -> CommId {
    request_from(pair, host, qp, 1);
    let id = pair.event(B).id();
    pair.ends[B].accept(pair.now, id, &acceptance()).unwrap();
    let (local_comm_id, private_data) = (CommId(1 << 16 | qp), PrivateData::EMPTY);
    give_from(pair, host, &CmMessage::Rtu(Rtu { local_comm_id, remote_comm_id: id, private_data }));
    pair.lose(B);
    assert_eq!(pair.event(B).id(), id);
    assert_eq!(pair.state(B, id), Some(ConnectionState::Established));
    id
}

/// Advances B by a time. Its messages are lost.
fn advance(pair: &mut Pair, time: Nanos) {
    let until = pair.now + time;
    while pair.ends[B].next_deadline() <= until {
        pair.step(B);
        pair.lose(B);
    }
    pair.now = until;
    pair.agrees();
}

fn established(pair: &Pair, ids: &[CommId]) -> usize {
    ids.iter().filter(|id| pair.state(B, **id) == Some(ConnectionState::Established)).count()
}

#[test]
fn requests_in_one_name_leave_examinations_to_others() {
    let mut pair = pair();
    let (_, restarted) = pair.established();
    let named: Vec<CommId> = (1..=300).map(|qp| connect_from(&mut pair, 1, qp)).collect();
    for qp in 1..=300 {
        request_from(&mut pair, 1, qp, 2);
    }
    pair.ends[A] = roxie::cm::Manager::new(Config { seed: 999, ..config(A) });
    pair.sent[A].clear();
    pair.connect();
    pair.deliver(A);
    advance(&mut pair, LONG);
    assert_eq!(
        pair.state(B, restarted),
        Some(ConnectionState::DreqSent),
        "the peer that has restarted has a place"
    );
    // It is that of the first one.
    assert_eq!(established(&pair, &named), named.len() - (MOST - 1));
    assert_eq!(established(&pair, &named[..1]), 1);
    // Requests without a place: 44, and the one that has lost it.
    assert_eq!(pair.ends[B].counters().names_connected_qp, 45);
    // It is examined when it is repeated.
    request_from(&mut pair, 1, 1, 3);
    advance(&mut pair, LONG);
    assert_eq!(established(&pair, &named[..1]), 0);
}

#[test]
fn examinations_of_two_addresses_share_the_places() {
    let mut pair = pair();
    let of =
        |pair: &mut Pair, host| -> Vec<CommId> { (1..=300).map(|qp| connect_from(pair, host, qp)).collect() };
    let ids = [of(&mut pair, 1), of(&mut pair, 2)];
    for host in [1, 2] {
        for qp in 1..=300 {
            request_from(&mut pair, host, qp, 2);
        }
    }
    advance(&mut pair, LONG);
    let ended = ids.map(|ids| ids.len() - established(&pair, &ids));
    assert_eq!(ended, [MOST / 2; 2]);
}

/// Otherwise requests in the names of many addresses would end each other's examinations, and none would come to its
/// end.
#[test]
fn examinations_of_many_addresses_come_to_their_end() {
    let mut pair = pair();
    let ids: Vec<CommId> = (1..=300).map(|host| connect_from(&mut pair, host, 1)).collect();
    for host in 1..=300 {
        request_from(&mut pair, host, 1, 2);
    }
    advance(&mut pair, LONG);
    assert_eq!(established(&pair, &ids), 300 - MOST);
    assert_eq!(established(&pair, &ids[..MOST]), 0);
}
