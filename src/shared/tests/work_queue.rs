use std::sync::atomic::Ordering::Relaxed;

use crate::shared::work_queue::Payload;
use crate::shared::{PostError, RecvRing, SendRing};
use crate::verbs::{AhId, LKey, Qpn, RKey, SendFlags, SendWr, Sge, Srqn, UdAddress, WrOpcode};

#[test]
fn a_work_request_is_read_as_it_was_posted() {
    let ring = SendRing::new(4, 2, 16).unwrap();
    let wr = SendWr {
        wr_id: u64::MAX,
        opcode: WrOpcode::CompareSwap,
        flags: SendFlags::FENCE | SendFlags::SIGNALED,
        imm: 0xdead_beef,
        remote_addr: 0x1234_5678_9abc_def0,
        rkey: RKey(0xffff_fffe),
        compare_add: 1,
        swap: u64::MAX - 1,
        ud: UdAddress { ah: AhId(u32::MAX), remote_qpn: Qpn::new(0xff_fffe), remote_qkey: 0x8001_0000 },
        remote_srqn: Srqn(0xff_fffe),
    };
    let posted = [Sge { addr: u64::MAX, length: 8, lkey: LKey(0x8000_0001) }];
    ring.post(&wr, Payload::Sges(&posted)).unwrap();
    let mut sges = [Sge::default(); 2];
    let got = ring.fetch(0, &mut sges, &mut []).unwrap();
    assert_eq!((got.wr, got.num_sge, sges[0]), (Some(wr), 1, posted[0]));
    assert!(ring.fetch(1, &mut sges, &mut []).is_none());
}

#[test]
fn inline_payload_travels_in_the_slot() {
    let ring = SendRing::new(2, 1, 13).unwrap();
    ring.post(&SendWr::default(), Payload::Inline(b"hello, world!")).unwrap();
    let mut bytes = [0; 32];
    let got = ring.fetch(0, &mut [], &mut bytes).unwrap();
    assert_eq!(&bytes[..got.inline_len], b"hello, world!");
    let error = ring.post(&SendWr::default(), Payload::Inline(&[0; 17])).unwrap_err();
    assert_eq!(error, PostError::TooMuchInline { given: 17, max: 13 });
}

#[test]
fn what_is_staged_is_seen_when_it_is_published_and_not_before() {
    let ring = SendRing::new(2, 1, 0).unwrap();
    for id in 0..2u32 {
        ring.stage(id, &SendWr { wr_id: id.into(), ..SendWr::default() }, Payload::Sges(&[])).unwrap();
    }
    let full = PostError::QueueFull { outstanding: 2, capacity: 2 };
    assert_eq!(ring.stage(2, &SendWr::default(), Payload::Sges(&[])), Err(full));
    assert!(!ring.has(0));
    ring.publish(2);
    assert_eq!(ring.fetch(1, &mut [], &mut []).unwrap().wr_id, 1);
    assert!(!ring.has(2));
}

#[test]
fn a_full_queue_refuses_and_takes_again_after_retirement() {
    let ring = RecvRing::new(3, 1).unwrap();
    for id in 0..3 {
        assert!(!ring.post(id, &[]).unwrap());
    }
    assert_eq!(ring.post(3, &[]), Err(PostError::QueueFull { outstanding: 3, capacity: 3 }));
    ring.retire(1);
    ring.want_doorbell(true);
    assert!(ring.post(3, &[]).unwrap());
}

#[test]
fn a_scribbled_producer_reads_as_empty() {
    let ring = SendRing::new(4, 1, 0).unwrap();
    ring.words()[0].store(1 << 31, Relaxed);
    assert!(ring.fetch(0, &mut [Sge::default()], &mut []).is_none());
}
