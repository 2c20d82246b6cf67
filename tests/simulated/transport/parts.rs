//! Parts of the transport that need no NIC.

use roxie::limits::Limits;
use roxie::random::splitmix;
use roxie::shared::work_queue::FetchedSend;
use roxie::time::Nanos;
use roxie::transport::send_queue::SendQueue;
use roxie::transport::{
    AckRequestPolicy, AddressHandles, Counters, Ctx, MemoryTable, Output, Qp, QpConfig, ReceiveQueue,
    SharedQueue,
};
use roxie::verbs::{
    CqIndex, Mtu, PdId, Psn, QpAttr, QpCaps, QpIndex, QpInit, QpState, QpType, Qpn, RecvWr, SendFlags,
    SendWr, Sge, Srqn, WcStatus, WrOpcode,
};

#[test]
fn splitmix_is_the_published_generator() {
    // The sequence of Vigna's splitmix64.c from seed 0.
    let mut state = 0;
    let first: Vec<u64> = (0..3).map(|_| splitmix(&mut state)).collect();
    assert_eq!(first, [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4, 0x06c4_5d18_8009_454f]);
}

#[test]
fn send_queue_capacity_is_not_rounded_up() {
    let mut queue = SendQueue::new(3, 1, 0).expect("memory");
    for id in 0..3 {
        assert!(queue.has_room(), "{id} are in");
        queue.push_with(|wr, _, _| {
            wr.wr_id = id;
            FetchedSend { valid: true, num_sge: 0, inline_len: 0 }
        });
    }
    assert!(!queue.has_room(), "four slots, and room for three");
    queue.retire();
    assert!(queue.has_room());
}

#[test]
fn invalid_work_request_keeps_its_wr_id() {
    let mut queue = SendQueue::new(2, 1, 0).expect("memory");
    queue.push_with(|wr, _, _| {
        wr.wr_id = 7;
        FetchedSend { valid: false, num_sge: 0, inline_len: 0 }
    });
    let wqe = queue.at(0);
    assert_eq!((wqe.valid, wqe.wr.wr_id), (false, 7));
}

#[test]
fn each_slot_has_own_sges_and_inline_bytes() {
    const INLINE: u32 = 16;
    let mut queue = SendQueue::new(4, 2, INLINE).expect("memory");
    for n in 0..4u8 {
        queue.push_with(|wr, sges, inline| {
            *wr = SendWr { wr_id: n.into(), flags: SendFlags::INLINE, ..SendWr::default() };
            sges.fill(Sge { length: n.into(), ..Sge::default() });
            inline.iter_mut().zip(n * 16..).for_each(|(to, byte)| *to = byte);
            FetchedSend { valid: true, num_sge: 2, inline_len: INLINE as usize }
        });
    }
    for n in 0..4u8 {
        let at = u32::from(n);
        assert_eq!(queue.at(at).length(), u64::from(INLINE));
        assert_eq!(queue.sges(at).iter().map(|sge| sge.length).collect::<Vec<_>>(), [at, at]);
        assert_eq!(queue.inline(at, 5, 3), [n * 16 + 5, n * 16 + 6, n * 16 + 7]);
    }
}

#[test]
fn operands_are_kept_where_an_operation_has_some() {
    let wr = SendWr { compare_add: 7, swap: 8, remote_srqn: Srqn(9), ..SendWr::default() };
    for (opcode, addressed, kept) in
        [(WrOpcode::CompareSwap, false, true), (WrOpcode::Send, true, true), (WrOpcode::Send, false, false)]
    {
        let mut queue = SendQueue::new(2, 1, 0).expect("memory").with_addresses(addressed);
        let posted = SendWr { opcode, ..wr };
        queue.push_with(|wr, sges, _| {
            *wr = posted;
            sges[0] = Sge { length: u32::MAX, ..Sge::default() };
            FetchedSend { valid: true, num_sge: 1, inline_len: 0 }
        });
        let plain = SendWr { compare_add: 0, swap: 0, remote_srqn: Srqn(0), ..posted };
        assert_eq!(queue.work_request(0), if kept { posted } else { plain });
        assert_eq!((queue.at(0).length(), queue.sges(0).len()), (u32::MAX.into(), 1));
        assert!(!queue.at(0).plain, "it is too long, or no SEND or WRITE");
    }
}

struct NoReceives;

impl ReceiveQueue for NoReceives {
    fn take(&mut self, _: &mut [Sge]) -> Option<RecvWr> {
        None
    }
    fn available(&self) -> u32 {
        0
    }
    fn choose(&mut self, _: Srqn) -> Option<SharedQueue> {
        None
    }
}

/// The library rejects these work requests. An application that writes into the shared queue itself can post them.
//= test: IBTA 9.7.7: message-is-2-to-the-31-bytes-at-most
#[test]
fn malformed_work_request_fails_without_a_packet() {
    let read = SendWr { wr_id: 7, opcode: WrOpcode::Read, flags: SendFlags::INLINE, ..SendWr::default() };
    let write = SendWr { wr_id: 7, ..SendWr::default() };
    let cases = [
        (None, 0, WcStatus::LocQpOp, "an unknown opcode"),
        (Some(read), 0, WcStatus::LocQpOp, "a READ with inline data"),
        (Some(write), 2, WcStatus::LocLen, "a message longer than 2^31"),
    ];
    for (wr, num_sge, status, what) in cases {
        let config = QpConfig {
            index: QpIndex(0),
            qpn: Qpn::new(1),
            pd: PdId(0),
            send_cq: CqIndex(0),
            recv_cq: CqIndex(0),
            init: QpInit { qp_type: QpType::Rc, caps: QpCaps::default(), sq_sig_all: true },
            srq_pd: None,
            profile: None,
            ack_requests: AckRequestPolicy::Late,
        };
        let mut qp = Qp::new(&config, SendQueue::new(1, 2, 8).expect("memory"));
        let (mut memory, limits) = (MemoryTable::new(1, 1), Limits::small());
        let handles = AddressHandles::new(1, Mtu::Mtu1024);
        let (mut out, mut counters) = (Output::default(), Counters::default());
        let mut ctx = Ctx {
            now: Nanos::ZERO,
            memory: &mut memory,
            receives: &mut NoReceives,
            handles: &handles,
            gathers_pending: false,
            out: &mut out,
            counters: &mut counters,
            limits: &limits,
            longest_frame: 1518,
            acknowledges_first: false,
        };
        let attr = QpAttr { sq_psn: Some(Psn::new(0)), max_rd_atomic: Some(1), ..QpAttr::default() };
        qp.modify(&mut ctx, &attr, QpState::Rts);
        assert!(qp.has_send_place(), "room for one");
        qp.post_send(|place, sges, _| {
            *place = wr.unwrap_or(SendWr { wr_id: 7, ..SendWr::default() });
            sges.fill(Sge { length: u32::MAX, ..Sge::default() });
            FetchedSend { valid: wr.is_some(), num_sge, inline_len: 8 }
        });
        assert!(qp.wants_transmit(&limits), "{what}: the QP asks for a turn");
        assert!(qp.next_packet(&mut ctx).is_none(), "{what}");
        let done: Vec<_> = out.completions.iter().map(|(_, wc)| (wc.wr_id, wc.status)).collect();
        assert_eq!(done, [(7, status)], "{what}");
    }
}
