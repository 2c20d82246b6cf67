//! Selective repeat: where the bytes of early packets go, and which early packets are taken back.

use roxie::verbs::{QpState, WcStatus};
use roxie::wire::{AtomicEth, Ext, Opcode, Reth};

use crate::transport::Stage;
use crate::transport::gone::{PAGE, borrowed_by};
use crate::transport::selective::{FULL, Seen, stage};

const LONG: u32 = 3 * FULL as u32;

/// Returns what memory has where the bytes change: (first offset, value), up to `length`.
fn runs(stage: &Stage, length: usize) -> Vec<(usize, u8)> {
    let bytes = stage.memory.bytes(0, length);
    let changes = (0..length).filter(|at| *at == 0 || bytes[*at] != bytes[*at - 1]);
    changes.map(|at| (at, bytes[at])).collect()
}

#[test]
fn early_packets_of_the_current_write_are_placed() {
    let mut stage = stage();
    let whole = Ext::Reth(stage.reth(0, 6 * FULL as u32));
    stage.write(Opcode::RC_WRITE_FIRST, 0, whole, 1);
    stage.write(Opcode::RC_WRITE_MIDDLE, 1, Ext::None, 2);
    stage.write(Opcode::RC_WRITE_MIDDLE, 2, Ext::None, 3);
    // PSN 3 is missing.
    assert_eq!(stage.write(Opcode::RC_WRITE_MIDDLE, 4, Ext::None, 5), [Seen::Sack(3, 2, vec![4])]);
    assert_eq!(stage.write(Opcode::RC_WRITE_LAST, 5, Ext::None, 6), [Seen::Sack(3, 3, vec![4, 5])]);
    let placed =
        [(0, 1), (FULL, 2), (2 * FULL, 3), (3 * FULL, 0), (4 * FULL, 5), (5 * FULL, 6), (6 * FULL, 0)];
    assert_eq!(runs(&stage, 7 * FULL), placed);
    assert_eq!(stage.counter("rx_write_requests"), 0);
    assert_eq!(stage.write(Opcode::RC_WRITE_MIDDLE, 3, Ext::None, 4), [Seen::Ack(5)]);
    assert_eq!(stage.counter("rx_write_requests"), 1);
    // The message has ended: the next one begins.
    let next = Ext::Reth(stage.reth(0, FULL as u32));
    assert_eq!(stage.write(Opcode::RC_WRITE_ONLY, 6, next, 7), []);
    assert_eq!(runs(&stage, 2 * FULL), [(0, 7), (FULL, 2)]);
}

#[test]
fn early_packets_of_wrong_length_are_not_kept() {
    let mut stage = stage();
    stage.receive(1, 0, 0x1000);
    stage.hand(Opcode::RC_SEND_FIRST, 0, Ext::None, &[1; FULL]);
    let nothing = |seen| [Seen::Sack(1, seen, vec![])];
    assert_eq!(stage.hand(Opcode::RC_SEND_MIDDLE, 2, Ext::None, &[3; 8]), nothing(2));
    assert_eq!(stage.hand(Opcode::RC_SEND_LAST, 2, Ext::None, &[]), nothing(2));
    assert_eq!(stage.hand(Opcode::RC_SEND_MIDDLE, 2, Ext::None, &[]), nothing(2));
    let short = Ext::Reth(stage.reth(0, LONG));
    assert_eq!(stage.hand(Opcode::RC_WRITE_FIRST, 3, short, &[3; 8]), nothing(3));
    // FIRST of a WRITE that fits one packet, and ONLY of one that does not.
    let one = Ext::Reth(stage.reth(0, FULL as u32));
    assert_eq!(stage.write(Opcode::RC_WRITE_FIRST, 4, one, 3), nothing(4));
    assert_eq!(stage.write(Opcode::RC_WRITE_ONLY, 5, short, 3), nothing(5));
    assert_eq!(runs(&stage, 0x1000), [(0, 1), (FULL, 0)]);
}

/// The second WRITE overlaps the first by all but half a packet, and two of its three packets come first.
#[test]
fn late_packets_fill_only_holes_of_later_writes() {
    let mut stage = stage();
    let half = FULL / 2;
    let (first, second) = (Ext::Reth(stage.reth(0, LONG)), Ext::Reth(stage.reth(half as u64, LONG)));
    stage.write(Opcode::RC_WRITE_FIRST, 0, first, 1);
    assert_eq!(stage.write(Opcode::RC_WRITE_FIRST, 3, second, 4), [Seen::Sack(1, 3, vec![3])]);
    assert_eq!(stage.write(Opcode::RC_WRITE_LAST, 5, Ext::None, 6), [Seen::Sack(1, 5, vec![3, 5])]);
    let early = [(0, 1), (half, 4), (half + FULL, 0), (half + 2 * FULL, 6), (half + 3 * FULL, 0)];
    assert_eq!(runs(&stage, 4 * FULL), early);
    assert_eq!(stage.write(Opcode::RC_WRITE_MIDDLE, 1, Ext::None, 2), [Seen::Sack(2, 4, vec![3, 5])]);
    let middle =
        [(0, 1), (half, 4), (half + FULL, 2), (2 * FULL, 0), (half + 2 * FULL, 6), (half + 3 * FULL, 0)];
    assert_eq!(runs(&stage, 4 * FULL), middle);
    assert_eq!(stage.write(Opcode::RC_WRITE_LAST, 2, Ext::None, 3), [Seen::Sack(4, 2, vec![5])]);
    let late =
        [(0, 1), (half, 4), (half + FULL, 2), (2 * FULL, 3), (half + 2 * FULL, 6), (half + 3 * FULL, 0)];
    assert_eq!(runs(&stage, 4 * FULL), late);
    assert_eq!(stage.write(Opcode::RC_WRITE_MIDDLE, 4, Ext::None, 5), [Seen::Ack(5)]);
    let all = [(0, 1), (half, 4), (half + FULL, 5), (half + 2 * FULL, 6), (half + 3 * FULL, 0)];
    assert_eq!(runs(&stage, 4 * FULL), all);
    assert_eq!(stage.counter("rx_write_requests"), 2);
}

/// One WRITE lies within the other: the rest of the late packet is in two pieces.
#[test]
fn late_packet_is_cut_in_two_pieces() {
    let mut stage = stage();
    for (psn, offset, length) in [(1, 0x40, 0x10), (2, 0xf0, 0x40), (3, 0x60, 1)] {
        let reth = Ext::Reth(stage.reth(offset, length));
        let stored = (1..=psn).collect();
        let seen = stage.hand(Opcode::RC_WRITE_ONLY, psn, reth, &vec![9; length as usize]);
        assert_eq!(seen, [Seen::Sack(0, psn as u8 + 1, stored)]);
    }
    let bytes: Vec<u8> = (0..FULL).map(|at| if at < 0x80 { 1 } else { 2 }).collect();
    let whole = Ext::Reth(stage.reth(0, FULL as u32));
    assert_eq!(stage.hand(Opcode::RC_WRITE_ONLY, 0, whole, &bytes), [Seen::Ack(3)]);
    let pieces = [(0, 1), (0x40, 9), (0x50, 1), (0x60, 9), (0x61, 1), (0x80, 2), (0xf0, 9), (0x130, 0)];
    assert_eq!(runs(&stage, 2 * FULL), pieces);
}

/// An atomic reads what it changes, so a later WRITE to the same bytes must come again.
#[test]
fn atomic_takes_back_a_later_write() {
    let mut stage = stage();
    let apart = Ext::Reth(stage.reth(0x1000, FULL as u32));
    let two = Ext::Reth(stage.reth(0, 2 * FULL as u32));
    assert_eq!(stage.write(Opcode::RC_WRITE_ONLY, 1, apart, 9), [Seen::Sack(0, 2, vec![1])]);
    assert_eq!(stage.write(Opcode::RC_WRITE_FIRST, 2, two, 3), [Seen::Sack(0, 3, vec![1, 2])]);
    assert_eq!(stage.write(Opcode::RC_WRITE_LAST, 3, Ext::None, 4), [Seen::Sack(0, 4, vec![1, 2, 3])]);
    assert_eq!(stage.write(Opcode::RC_WRITE_ONLY, 4, apart, 8), [Seen::Sack(0, 5, vec![1, 2, 3, 4])]);
    let va = stage.memory.address + 8;
    let eth = AtomicEth { va, rkey: stage.memory.key, swap_or_add: 1, compare: 0 };
    let seen = stage.hand(Opcode::RC_FETCH_ADD, 0, Ext::Atomic(eth), &[]);
    assert_eq!(seen.last(), Some(&Seen::Sack(2, 3, vec![4])), "{seen:?}");
    assert_eq!(stage.write(Opcode::RC_WRITE_FIRST, 2, two, 5), [Seen::Sack(3, 2, vec![4])]);
    assert_eq!(stage.write(Opcode::RC_WRITE_LAST, 3, Ext::None, 6), [Seen::Ack(4)]);
    assert_eq!(runs(&stage, 3 * FULL), [(0, 5), (FULL, 6), (2 * FULL, 0)]);
    assert_eq!(stage.memory.bytes(0x1000, FULL), [8; FULL]);
}

/// A peer may end its message sooner than its early packets let expect.
#[test]
fn early_packet_without_a_message_comes_again() {
    let mut stage = stage();
    stage.receive(1, 0, 0x1000);
    stage.receive(2, 0x1000, 0x1000);
    stage.hand(Opcode::RC_SEND_FIRST, 0, Ext::None, &[1; FULL]);
    assert_eq!(stage.hand(Opcode::RC_SEND_LAST, 2, Ext::None, &[3; FULL]), [Seen::Sack(1, 2, vec![2])]);
    assert_eq!(stage.hand(Opcode::RC_SEND_LAST, 1, Ext::None, &[2; 8]), [Seen::Sack(2, 1, vec![])]);
    assert_eq!(stage.completions()[0].byte_len, FULL as u32 + 8);
    assert_eq!(stage.hand(Opcode::RC_SEND_ONLY, 2, Ext::None, &[4; 8]), []);
    let wc = stage.completions()[0];
    assert_eq!((wc.wr_id, wc.status, wc.byte_len), (2, WcStatus::Success, 8));
    assert_eq!(stage.counter("rdma_recvs"), 2);
}

#[test]
fn completed_early_sends_are_counted() {
    let mut stage = stage();
    stage.receive(1, 0, 0x1000);
    stage.hand(Opcode::RC_SEND_FIRST, 0, Ext::None, &[1; FULL]);
    stage.hand(Opcode::RC_SEND_LAST, 2, Ext::None, &[3; 8]);
    assert_eq!(stage.hand(Opcode::RC_SEND_MIDDLE, 1, Ext::None, &[2; FULL]), [Seen::Ack(2)]);
    assert_eq!(stage.counter("rdma_recvs"), 1);
}

/// Bytes of an early packet that cannot be stored: the packet is asked for again, and judged when it is due.
#[test]
fn early_packet_to_a_missing_page_comes_again() {
    let (mut stage, pages, region) = borrowed_by(stage());
    let reth = |page: u64, at: u64| {
        let va = pages.address() + page * PAGE + at;
        Ext::Reth(Reth { va, rkey: region.key, dma_len: FULL as u32 })
    };
    pages.take_away(1);
    assert_eq!(stage.write(Opcode::RC_WRITE_ONLY, 1, reth(0, 0), 2), [Seen::Sack(0, 2, vec![1])]);
    assert_eq!(stage.write(Opcode::RC_WRITE_ONLY, 2, reth(1, 0), 3), [Seen::Sack(0, 3, vec![1])]);
    assert_eq!(stage.write(Opcode::RC_WRITE_ONLY, 3, reth(0, 0x800), 4), [Seen::Sack(0, 4, vec![1, 3])]);
    assert_eq!(stage.state(), QpState::Rts);
    assert_eq!(stage.write(Opcode::RC_WRITE_ONLY, 0, reth(0, 0x400), 1), [Seen::Sack(2, 2, vec![3])]);
    stage.write(Opcode::RC_WRITE_ONLY, 2, reth(1, 0), 3);
    assert_eq!(stage.state(), QpState::Err);
}
