//! The engine as callers drive it.

use std::time::Duration;

use roxie::engine::Drive;
use roxie::host::{ConnectOptions, Device, DeviceConfig};
use roxie::time::Nanos;
use roxie::verbs::{Access, QpCaps, SendWr, WcStatus};

/// A receiver that destroys its QP as soon as it has its message has still acknowledged it.
#[test]
fn the_last_message_is_acknowledged_by_a_receiver_that_leaves_at_once() {
    let (near, far) = Device::memory_pair(&DeviceConfig::caller_only()).expect("a pair");
    let (pd, far_pd) = (near.alloc_pd().expect("a domain"), far.alloc_pd().expect("a domain"));
    let (cq, far_cq) = (near.create_cq(8, None).expect("a queue"), far.create_cq(8, None).expect("a queue"));
    let qp = near.create_qp(&pd, &cq, &cq, QpCaps::default(), true).expect("a QP");
    let far_qp = far.create_qp(&far_pd, &far_cq, &far_cq, QpCaps::default(), true).expect("a QP");
    let (here, there) = (qp.endpoint(0).expect("a GID"), far_qp.endpoint(0).expect("a GID"));
    qp.connect(&here, &there, &ConnectOptions::default()).expect("connected");
    far_qp.connect(&there, &here, &ConnectOptions::default()).expect("connected");
    let (source, target) = (
        pd.register(8, Access::empty()).expect("memory"),
        far_pd.register(8, Access::LOCAL_WRITE).expect("memory"),
    );
    far_qp.post_recv(1, &[target.sge(0, 8)]).expect("room");
    qp.post_send(&SendWr::default(), &[source.sge(0, 8)]).expect("room");

    while far_cq.poll_one().is_none() {
        near.poll();
    }
    drop(far_qp);
    let sent = cq.wait(Duration::from_secs(5)).expect("the send completes");
    assert_eq!(sent.status, WcStatus::Success);
    assert_eq!(near.counter("retransmitted_packets"), 0);
}

/// A thread that spins on its worker lets others look at it.
#[test]
fn counters_can_be_read_while_a_thread_spins() {
    let config =
        DeviceConfig { drive: Drive::Thread { core: None, spin: Nanos::MAX }, ..DeviceConfig::default() };
    let (near, _far) = Device::memory_pair(&config).expect("a pair");
    for _ in 0..100 {
        assert_eq!(near.counter("rcvd_pkts"), 0);
    }
}
