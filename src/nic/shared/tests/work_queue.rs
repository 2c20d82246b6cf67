use std::sync::atomic::Ordering::Relaxed;

use crate::shared::work_queue::Payload;
use crate::shared::{PostError, RecvRing, SendRing};
use crate::verbs::{AhId, LKey, Qpn, RKey, SendFlags, SendWr, Sge, Srqn, UdAddress, WrOpcode};

#[test]
fn work_request_is_read_as_posted() {
    let swap = SendWr {
        wr_id: u64::MAX,
        opcode: WrOpcode::CompareSwap,
        flags: SendFlags::FENCE | SendFlags::SIGNALED,
        imm: 0xdead_beef,
        remote_addr: 0x1234_5678_9abc_def0,
        rkey: RKey(0xffff_fffe),
        compare_add: 1,
        swap: u64::MAX - 1,
        ud: UdAddress::default(),
        remote_srqn: Srqn(0xff_fffe),
    };
    let ud = UdAddress { ah: AhId(u32::MAX), remote_qpn: Qpn::new(0xff_fffe), remote_qkey: 0x8001_0000 };
    let datagram = SendWr { opcode: WrOpcode::SendImm, compare_add: 0, swap: 0, ud, ..swap };
    let posted = [Sge { addr: u64::MAX, length: 8, lkey: LKey(0x8000_0001) }];
    let mut copied = SendWr::default();
    for wr in [swap, datagram] {
        let ring = SendRing::new(4, 2, 16).unwrap();
        ring.post(&wr, Payload::Sges(&posted)).unwrap();
        let mut sges = [Sge::default(); 2];
        let got = ring.fetch(0, &mut copied, &mut sges, &mut []).unwrap();
        assert_eq!((got.valid, copied, got.num_sge, sges[0]), (true, wr, 1, posted[0]));
        assert!(ring.fetch(1, &mut copied, &mut sges, &mut []).is_none());
        ring.words()[16 + 1].store(0xff, Relaxed);
        let got = ring.fetch(0, &mut copied, &mut sges, &mut []).unwrap();
        let nothing = SendWr { wr_id: u64::MAX, ..SendWr::default() };
        assert_eq!((got.valid, copied), (false, nothing), "an opcode that is none");
    }
}

/// A work request with one SGE fills a cache line, and the next begins on another.
#[test]
fn slot_for_one_sge_is_a_cache_line() {
    assert_eq!(SendRing::size(64, 1, 0) - SendRing::size(32, 1, 0), 32 * 8);
    assert_eq!(SendRing::size(64, 1, 16) - SendRing::size(32, 1, 16), 32 * 8);
    assert_eq!(SendRing::size(64, 2, 0) - SendRing::size(32, 2, 0), 32 * 16);
}

/// Receives with one SGE lie two in a cache line, and none lies in two.
#[test]
fn receive_for_one_sge_is_half_a_line() {
    for (max_sge, words) in [(0, 2), (1, 4), (2, 8), (3, 8), (4, 16)] {
        assert_eq!(RecvRing::size(64, max_sge) - RecvRing::size(32, max_sge), 32 * words, "{max_sge}");
    }
    assert_eq!(RecvRing::size(1, 1) % 8, 0, "another queue begins on a line");
}

#[test]
fn inline_payload_travels_in_the_slot() {
    let ring = SendRing::new(2, 1, 13).unwrap();
    ring.post(&SendWr::default(), Payload::Inline(b"hello, world!")).unwrap();
    let mut bytes = [0; 32];
    let got = ring.fetch(0, &mut SendWr::default(), &mut [], &mut bytes).unwrap();
    assert_eq!(&bytes[..got.inline_len], b"hello, world!");
    let error = ring.post(&SendWr::default(), Payload::Inline(&[0; 17])).unwrap_err();
    assert_eq!(error, PostError::TooMuchInline { given: 17, max: 13 });
}

#[test]
fn staged_requests_are_seen_once_published() {
    let ring = SendRing::new(2, 1, 0).unwrap();
    for id in 0..2u32 {
        ring.stage(id, &SendWr { wr_id: id.into(), ..SendWr::default() }, Payload::Sges(&[])).unwrap();
    }
    let full = PostError::QueueFull { outstanding: 2, capacity: 2 };
    assert_eq!(ring.stage(2, &SendWr::default(), Payload::Sges(&[])), Err(full));
    assert!(!ring.has(0));
    ring.publish(2);
    let mut copied = SendWr::default();
    assert!(ring.fetch(1, &mut copied, &mut [], &mut []).is_some());
    assert_eq!((copied.wr_id, ring.waiting(0), ring.waiting(2)), (1, 2, 0));
    assert!(!ring.has(2));
}

#[test]
fn full_queue_accepts_again_after_retirement() {
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
fn overwritten_producer_reads_as_empty() {
    let ring = SendRing::new(4, 1, 0).unwrap();
    ring.words()[0].store(1 << 31, Relaxed);
    assert!(ring.fetch(0, &mut SendWr::default(), &mut [Sge::default()], &mut []).is_none());
    assert_eq!(ring.waiting(0), 0);
}

#[test]
fn full_queue_holds_all_requests() {
    let ring = SendRing::new(4, 2, 0).unwrap();
    let sge = Sge { addr: 1, length: 8, lkey: LKey(1) };
    let error = ring.post(&SendWr::default(), Payload::Sges(&[sge; 3])).unwrap_err();
    assert_eq!(error, PostError::TooManySges { given: 3, max: 2 });
    assert!(!ring.has(0), "it was not posted");
    let mut posted = 0;
    while ring.post(&SendWr::default(), Payload::Sges(&[sge; 2])).is_ok() {
        posted += 1;
    }
    assert!(posted >= 4);
    assert!((0..posted).all(|position| ring.has(position)) && !ring.has(posted));
    assert!(!ring.has(0u32.wrapping_sub(1)), "more than there is room for: somebody has scribbled");
}
