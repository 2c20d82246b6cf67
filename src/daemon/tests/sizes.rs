//! Clients that request large queues, and that open domains without end.

use std::os::fd::AsFd;

use nix::sys::memfd::{MFdFlags, memfd_create};

use super::{CAPS, Quota, create_cq, create_qp, nic, place, settled};
use roxie::remote::message::{ArenaPlace, Receives, Request, Response};
use roxie_base::limits::{MAX_CQE, MAX_WR};
use roxie_nic::nic::{Answer, Command, MemoryCommand, ReceiveSource};
use roxie_nic::shared::{CompletionRing, RecvRing};
use roxie_nic::verbs::{OpenXrcd, QpInit, QpType, SrqInit, SrqKind};

#[test]
fn receive_queue_beyond_the_limit_is_refused() {
    let nic = nic(Quota::default());
    let (mut client, pd, cq, _) = settled(&nic);
    client.arena(RecvRing::size(MAX_WR + 1, 0));
    let init = QpInit { qp_type: QpType::Rc, caps: CAPS, sq_sig_all: true };
    let make = |capacity| {
        let ring = Receives { place: ArenaPlace { arena: 1, at: 0 }, capacity, max_sge: 0 };
        let (sends, receives) = (place(1024), ReceiveSource::Own(ring));
        create_qp(pd, (cq, cq), init, sends, receives)
    };
    let refused = client.request(make(MAX_WR + 1)).expect_err("beyond the limit");
    assert!(refused.errno == libc::EINVAL && refused.why.contains("max_wr"), "{refused:?}");
    client.request(make(MAX_WR)).expect("the limit");
}

#[test]
fn completion_queue_beyond_the_limit_is_refused() {
    let nic = nic(Quota::default());
    let (mut client, _, cq, _) = settled(&nic);
    client.arena(CompletionRing::size(MAX_CQE + 1));
    let ring = ArenaPlace { arena: 1, at: 0 };
    let refused = [
        client.request(create_cq(ring, MAX_CQE + 1)).expect_err("beyond the limit"),
        client.request(super::resize_cq(cq, ring, MAX_CQE + 1)).expect_err("beyond the limit"),
    ];
    for refused in refused {
        assert!(refused.errno == libc::EINVAL && refused.why.contains("entries"), "{refused:?}");
    }
    client.request(create_cq(ring, MAX_CQE)).expect("the limit");
}

#[test]
fn each_opening_of_an_xrc_domain_is_charged() {
    let nic = nic(Quota { xrcds: 3, ..Quota::default() });
    let (client, ..) = settled(&nic);
    let file = memfd_create("domain", MFdFlags::empty()).expect("a file");
    let open = || {
        let create = OpenXrcd { create: true, ..OpenXrcd::default() };
        client.request_with(&Request::Command(Command::OpenXrcd(create)), &[file.as_fd()])
    };
    let Ok(Response::Answer(Answer::Xrcd(xrcd))) = open() else { panic!("a domain") };
    open().and_then(|_| open()).expect("three times");
    assert_eq!(open().expect_err("a fourth time").errno, libc::ENOMEM);
    client.call(Command::CloseXrcd(xrcd)).expect("its own");
    open().expect("the third time again");
}

/// Otherwise the domain would stay, without an owner.
#[test]
fn xrc_domain_in_use_is_not_left() {
    let nic = nic(Quota::default());
    let (opener, ..) = settled(&nic);
    let (user, pd, cq, _) = settled(&nic);
    let file = memfd_create("domain", MFdFlags::empty()).expect("a file");
    let create = OpenXrcd { create: true, ..OpenXrcd::default() };
    let open = |client: &super::RawClient| match client
        .request_with(&Request::Command(Command::OpenXrcd(create)), &[file.as_fd()])
    {
        Ok(Response::Answer(Answer::Xrcd(xrcd))) => xrcd,
        other => panic!("{other:?}"),
    };
    let xrcd = open(&opener);
    assert_eq!(open(&user), xrcd);
    let init = SrqInit { kind: SrqKind::Xrc { xrcd, cq }, limit: 0 };
    let ring = Receives { place: place(3000), capacity: 1, max_sge: 1 };
    user.request(Request::Memory(MemoryCommand::CreateSrq { pd, init, ring })).expect("room");
    assert_eq!(user.call(Command::CloseXrcd(xrcd)).expect_err("in use").errno, libc::EBUSY);
    drop(opener);
    drop(user);
    nic.wait("gone", |nic| nic.daemon.served().is_empty());
    let objects =
        nic.daemon.inner.registry.device.engine().expect("its own").inspect(|worker| worker.nic().objects());
    assert_eq!(objects.xrcds, 0, "{objects:?}");
}
