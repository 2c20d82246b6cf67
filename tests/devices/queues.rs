//! Shared receive queues, XRC and completion queues as an application uses them, between two devices.

use std::time::Duration;

use roxie::host::{
    CompletionChannel, CompletionQueue, ConnectOptions, Device, DeviceConfig, MemoryRegion, QueuePair,
};
use roxie::nic::{ControlError, ObjectKind};
use roxie::shared::{Armed, PostError};
use roxie::verbs::{
    Access, AsyncEvent, EventKind, QpAttr, QpCaps, QpInit, QpState, QpType, SendWr, Wc, WcStatus, WrOpcode,
};

const SOON: Duration = Duration::from_secs(10);

fn devices() -> (Device, Device) {
    Device::memory_pair(&DeviceConfig::caller_only()).expect("two devices in this process")
}

fn join(one: &QueuePair, two: &QueuePair) {
    let (here, there) = (one.endpoint(0).expect("an address"), two.endpoint(0).expect("an address"));
    let options = ConnectOptions { timeout: 10, ..ConnectOptions::default() };
    one.connect(&here, &there, &options).expect("a way");
    two.connect(&there, &here, &options).expect("a way");
}

/// Polls the sender until the receiver has a completion.
fn arrival(sender: &CompletionQueue, receiver: &CompletionQueue) -> Wc {
    let until = std::time::Instant::now() + SOON;
    loop {
        sender.poll_one();
        if let Some(wc) = receiver.poll_one() {
            return wc;
        }
        assert!(std::time::Instant::now() < until, "nothing arrives");
    }
}

fn init() -> QpInit {
    QpInit { qp_type: QpType::Rc, caps: QpCaps::default(), sq_sig_all: true }
}

fn bytes(region: &MemoryRegion, length: usize) -> Vec<u8> {
    region.to_vec(0, length).expect("within the region")
}

#[test]
fn shared_receives_raise_the_limit_event() {
    let (local, remote) = devices();
    let (pd, peer_pd) = (local.alloc_pd().unwrap(), remote.alloc_pd().unwrap());
    let (cq, peer_cq) = (local.create_cq(16, None).unwrap(), remote.create_cq(16, None).unwrap());
    let srq = peer_pd.create_srq(4, 1).unwrap();
    let target = peer_pd.register(64, Access::LOCAL_WRITE).unwrap();
    let source = pd.register(64, Access::empty()).unwrap();
    let pairs: Vec<_> = (0..2)
        .map(|_| {
            let one = pd.queue_pair(&cq).init(&init()).create().unwrap();
            let two = peer_pd.queue_pair(&peer_cq).init(&init()).srq(&srq).create().unwrap();
            join(&one, &two);
            (one, two)
        })
        .collect();
    assert_eq!(pairs[0].1.post_recv(1, &[]), Err(PostError::NoReceiveQueue));
    for id in 0..4 {
        srq.post_recv(id, &[target.sge(0, 64)]).unwrap();
    }
    assert!(matches!(srq.post_recv(4, &[]), Err(PostError::QueueFull { outstanding: 4, capacity: 4 })));
    srq.arm(3).unwrap();
    for (id, turn) in [0, 1, 1].into_iter().enumerate() {
        pairs[turn].0.post_send(&SendWr::default(), &[source.sge(0, 8)]).unwrap();
        let wc = arrival(&cq, &peer_cq);
        assert_eq!((wc.status, wc.wr_id, wc.qpn), (WcStatus::Success, id as u64, pairs[turn].1.qpn()));
    }
    assert_eq!(remote.event(), Some(AsyncEvent::Srq(srq.index(), EventKind::SrqLimitReached)));
    assert_eq!(remote.event(), None);
    srq.resize(9).unwrap();
    let status = srq.query().unwrap();
    assert_eq!((status.max_wr, status.waiting, status.limit), (9, 1, 0));
    for id in 5..13 {
        srq.post_recv(id, &[target.sge(0, 64)]).unwrap();
    }
    pairs[0].0.post_send(&SendWr::default(), &[source.sge(0, 8)]).unwrap();
    assert_eq!(arrival(&cq, &peer_cq).wr_id, 3, "what was posted before comes first");
    let fail = QpAttr { state: Some(QpState::Err), ..QpAttr::default() };
    pairs[0].1.modify(&fail).unwrap();
    assert_eq!(remote.event(), Some(AsyncEvent::Qp(pairs[0].1.index(), EventKind::LastWqeReached)));
    assert_eq!(srq.query().unwrap().waiting, 8, "the others' receives are still there");
}

#[test]
fn xrc_reaches_each_queue_of_its_domain() {
    let (local, remote) = devices();
    let (pd, peer_pd) = (local.alloc_pd().unwrap(), remote.alloc_pd().unwrap());
    let (cq, peer_cq) = (local.create_cq(16, None).unwrap(), remote.create_cq(16, None).unwrap());
    let xrcd = remote.open_xrcd().unwrap();
    let queues = [(); 2].map(|()| peer_pd.create_xrc_srq(4, 1, &xrcd, &peer_cq).unwrap());
    let target = xrcd.create_target().unwrap();
    let initiator = pd.queue_pair(&cq).init(&init()).qp_type(QpType::XrcSend).create().unwrap();
    assert_eq!((initiator.qp_type(), target.qp_type()), (QpType::XrcSend, QpType::XrcRecv));
    join(&initiator, &target);
    let inboxes = [(); 2].map(|()| peer_pd.register(64, Access::READ_WRITE).unwrap());
    for (id, (queue, inbox)) in queues.iter().zip(&inboxes).enumerate() {
        queue.post_recv(id as u64, &[inbox.sge(0, 64)]).unwrap();
    }
    let source = pd.register(64, Access::LOCAL_WRITE).unwrap();
    source.write_at(0, b"by number").unwrap();
    let to = |queue: usize| SendWr { remote_srqn: queues[queue].number(), ..SendWr::default() };
    for queue in [1, 0] {
        initiator.post_send(&to(queue), &[source.sge(0, 9)]).unwrap();
        let wc = arrival(&cq, &peer_cq);
        assert_eq!((wc.status, wc.wr_id, wc.qpn), (WcStatus::Success, queue as u64, target.qpn()));
        assert_eq!(bytes(&inboxes[queue], 9), b"by number");
    }
    let read = SendWr {
        opcode: WrOpcode::Read,
        remote_addr: inboxes[0].sge(0, 9).addr,
        rkey: inboxes[0].rkey(),
        ..to(0)
    };
    initiator.post_send(&read, &[source.sge(32, 9)]).unwrap();
    let until = std::time::Instant::now() + SOON;
    while bytes(&source, 41)[32..] != *b"by number" {
        remote.poll();
        local.poll();
        assert!(std::time::Instant::now() < until, "the READ does not come back");
    }
    let refused = target.post_send(&SendWr::default(), &[]);
    assert!(matches!(refused, Err(PostError::NotServed { .. })), "{refused:?}");
    assert_eq!(initiator.post_recv(1, &[]), Err(PostError::NoReceiveQueue));
}

#[test]
fn file_identifies_an_xrc_domain() {
    let (_, remote) = devices();
    let file = tempfile::tempfile().unwrap();
    assert!(remote.open_xrcd_of(&file, false, false).is_err(), "the XRCD does not exist");
    let one = remote.open_xrcd_of(&file, true, true).unwrap();
    let taken = remote.open_xrcd_of(&file, true, true).unwrap_err().to_string();
    assert!(taken.contains("XRC domain of this file"), "{taken}");
    // The two descriptors refer to one domain: a target created through one reaches a queue created through the other.
    let two = remote.open_xrcd_of(&file, false, false).unwrap();
    let (pd, cq) = (remote.alloc_pd().unwrap(), remote.create_cq(4, None).unwrap());
    let _srq = pd.create_xrc_srq(4, 1, &one, &cq).unwrap();
    drop(one);
    let _target = two.create_target().unwrap();
    assert!(remote.open_xrcd_of(&file, false, false).is_ok(), "the XRCD exists while it is open");
}

#[test]
fn cq_is_resized_under_a_sleeper() {
    let (local, remote) = devices();
    let (pd, peer_pd) = (local.alloc_pd().unwrap(), remote.alloc_pd().unwrap());
    let channel = CompletionChannel::new().unwrap();
    let (cq, peer_cq) = (local.create_cq(64, None).unwrap(), remote.create_cq(4, Some(&channel)).unwrap());
    let one = pd.queue_pair(&cq).init(&init()).create().unwrap();
    let two = peer_pd.queue_pair(&peer_cq).init(&init()).create().unwrap();
    join(&one, &two);
    let deliver = |count: usize| {
        for _ in 0..count {
            two.post_recv(7, &[]).unwrap();
            one.post_send(&SendWr::default(), &[]).unwrap();
        }
        for _ in 0..50 {
            local.poll();
            remote.poll();
        }
    };
    deliver(3);
    let small = peer_cq.resize(2).unwrap_err();
    let expected = ControlError::TooSmall { object: ObjectKind::CompletionQueue, size: 2, holds: 3 };
    assert_eq!(small.to_string(), expected.to_string());
    peer_cq.resize(32).unwrap();
    assert!(!channel.wait(Duration::ZERO), "no event was requested");
    peer_cq.arm(Armed::Next);
    assert!(channel.wait(Duration::ZERO), "three wait");
    assert_eq!(peer_cq.poll_one().map(|wc| wc.wr_id), Some(7));
    deliver(20);
    peer_cq.arm(Armed::Next);
    assert!(channel.wait(SOON));
    let mut all = [Wc::default(); 32];
    assert_eq!(peer_cq.poll(&mut all), 22);

    // Events for ten completions at a time, or after a timeout.
    peer_cq.moderate(10, Duration::from_millis(20)).unwrap();
    peer_cq.arm(Armed::Next);
    let before = remote.now();
    deliver(10);
    assert!(channel.wait(SOON));
    deliver(1);
    let times: Vec<_> = std::iter::from_fn(|| peer_cq.poll_timed()).map(|(_, time)| time).collect();
    assert_eq!(times.len(), 11);
    assert!(times.is_sorted() && times[0] >= before && times[10] <= remote.now(), "{before:?} {times:?}");
    peer_cq.arm(Armed::Next);
    deliver(1);
    let until = std::time::Instant::now() + SOON;
    while !channel.wait(Duration::ZERO) {
        remote.poll();
        assert!(std::time::Instant::now() < until, "no event after its period");
    }
    assert!(peer_cq.moderate(2, Duration::ZERO).is_err());
}

/// Completions of a reset QP stay hidden in a ring of another size, too; later ones are visible.
#[test]
fn resize_keeps_reset_completions_hidden() {
    let (local, remote) = devices();
    let (pd, peer_pd) = (local.alloc_pd().unwrap(), remote.alloc_pd().unwrap());
    let (cq, peer_cq) = (local.create_cq(64, None).unwrap(), remote.create_cq(16, None).unwrap());
    let one = pd.queue_pair(&cq).init(&init()).create().unwrap();
    let two = peer_pd.queue_pair(&peer_cq).init(&init()).create().unwrap();
    join(&one, &two);
    let deliver = |id: u64| {
        two.post_recv(id, &[]).unwrap();
        one.post_send(&SendWr::default(), &[]).unwrap();
        for _ in 0..20 {
            local.poll();
            remote.poll();
        }
    };
    for id in 0..5 {
        deliver(id);
    }
    for id in 0..3 {
        assert_eq!(peer_cq.poll_one().map(|wc| wc.wr_id), Some(id));
    }
    peer_cq.forget(two.qpn());
    peer_cq.resize(32).unwrap();
    for id in 5..8 {
        deliver(id);
    }
    let rest: Vec<_> = std::iter::from_fn(|| peer_cq.poll_one()).map(|wc| wc.wr_id).collect();
    assert_eq!(rest, [5, 6, 7], "3 and 4 were forgotten");
}
