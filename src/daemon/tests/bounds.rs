//! Bounds of a client, and the source MAC of its paths.

use std::os::fd::AsFd;

use super::{Quota, nic, settled};
use roxie::remote::message::{Request, Response};
use roxie_nic::nic::{Answer, Command};
use roxie_nic::shared::Region;
use roxie_nic::verbs::{Access, AddressVector, Mtu, Psn, QpAttr, QpState, Qpn};

#[test]
fn small_arenas_are_counted_for_each_client() {
    const ARENAS: u32 = 100;
    let nic = nic(Quota { arenas: ARENAS, ..Quota::default() });
    let (mut greedy, mut other) = (nic.admitted(), nic.admitted());
    (0..ARENAS).for_each(|_| greedy.arena(1));
    let (_region, fd) = Region::to_lend(1).expect("memory");
    let refused = greedy.request_with(&Request::Arena { words: 1 }, &[fd.as_fd()]);
    assert!(refused.is_err(), "{refused:?}");
    other.arena(1);
    assert!(matches!(greedy.request(Request::Port), Ok(Response::Port(_))), "it is served as before");
}

#[test]
fn path_gets_the_source_mac_of_the_port() {
    let nic = nic(Quota::default());
    let (client, _, _, qp) = settled(&nic);
    let step = |attr: QpAttr| client.call(Command::ModifyQp(qp, Box::new(attr))).expect("a step");
    let (state, access) = (Some(QpState::Init), Some(Access::empty()));
    step(QpAttr { state, pkey_index: Some(0), port: Some(1), access, ..QpAttr::default() });
    let gid = nic.daemon.inner.registry.device.gids()[0].gid;
    let forged = [2, 0xde, 0xad, 0xbe, 0xef, 1];
    let (sgid, dgid, smac, dmac) = (gid, gid, forged, [2, 0, 0, 0, 0, 2]);
    let av = AddressVector::new(sgid, dgid, smac, dmac);
    step(QpAttr {
        state: Some(QpState::Rtr),
        av: Some(av),
        path_mtu: Some(Mtu::Mtu1024),
        dest_qpn: Some(Qpn::new(7)),
        rq_psn: Some(Psn::new(0)),
        max_dest_rd_atomic: Some(1),
        min_rnr_timer: Some(1),
        ..QpAttr::default()
    });
    let Ok(Answer::QpStatus(status)) = client.call(Command::QueryQp(qp)) else { panic!("its own") };
    assert_eq!(status.attributes.av.expect("set").smac, nic.daemon.inner.registry.device.port().mac);
}
