//! The chunks of both directions, with the kernel's end of the rings played by the test.

use nix::errno::Errno;
use roxie_base::random::splitmix;

use super::memory::{Kernel, Kick, MemoryReceiveRings, MemorySendRings};
use super::{CHUNK_DATA, ChunkAccount, Receiver, Sender};

mod campaign;

/// Chunks of each direction.
const CHUNKS: usize = 16;
/// Longest frame on the link: two chunks.
const LONGEST: usize = CHUNK_DATA + 400;

fn receiver(kernel: &Kernel, copy_mode: bool) -> Receiver<MemoryReceiveRings> {
    let (rings, chunks) = kernel.receiving(CHUNKS);
    Receiver::new(rings, chunks, LONGEST, copy_mode)
}

fn sender(kernel: &Kernel, copy_mode: bool) -> Sender<MemorySendRings> {
    let (rings, chunks) = kernel.sending(CHUNKS);
    Sender::new(rings, chunks, copy_mode)
}

/// Bytes of a frame that differs from others.
fn pattern(number: u64, length: usize) -> Vec<u8> {
    let mut state = number;
    (0..length).map(|_| splitmix(&mut state) as u8).collect()
}

/// Commits a frame. False: there is no slot for it.
fn commit(sender: &mut Sender<MemorySendRings>, frame: &[u8]) -> bool {
    let Some(slot) = sender.alloc(frame.len()) else { return false };
    sender.slot(slot).write(0, frame);
    sender.commit(slot);
    true
}

fn sum(account: ChunkAccount) -> usize {
    account.held + account.free + account.kernel
}

/// Checks an account against what the kernel has, each chunk once.
#[track_caller]
fn check(account: ChunkAccount, mut at_the_kernel: Vec<usize>) {
    assert_eq!((account.total, sum(account)), (CHUNKS, CHUNKS), "{account:?}");
    assert_eq!(account.kernel, at_the_kernel.len(), "{account:?}");
    at_the_kernel.sort_unstable();
    assert!(at_the_kernel.windows(2).all(|pair| pair[0] < pair[1]), "twice in the rings: {at_the_kernel:?}");
}

#[test]
fn frames_arrive_whole_and_in_order() {
    let kernel = Kernel::new(CHUNKS);
    let mut receiver = receiver(&kernel, false);
    let frames = [pattern(1, 60), pattern(2, LONGEST), pattern(3, CHUNK_DATA)];
    for frame in &frames {
        let pieces: Vec<&[u8]> = frame.chunks(CHUNK_DATA).collect();
        assert!(kernel.deliver(&pieces));
    }
    assert_eq!(receiver.waiting(), 4, "one frame has two descriptors");
    assert_eq!(receiver.receive(64), 3);
    let received: Vec<_> = (0..receiver.received()).map(|i| receiver.frame(i).to_vec()).collect();
    assert_eq!(received, frames);
    receiver.release();
    let counters = *receiver.counters();
    assert_eq!((counters.packets, counters.multi_buffer), (3, 1));
    assert_eq!(counters.bytes, (60 + LONGEST + CHUNK_DATA) as u64);
    check(receiver.account(), kernel.chunks()[0].clone());
}

#[test]
fn frame_waits_for_its_second_piece() {
    let kernel = Kernel::new(CHUNKS);
    let mut receiver = receiver(&kernel, false);
    let frame = pattern(1, LONGEST);
    let pieces: Vec<&[u8]> = frame.chunks(CHUNK_DATA).collect();
    assert!(kernel.deliver(&pieces));
    // The burst has room for one descriptor more.
    assert_eq!(receiver.receive(1), 0);
    assert_eq!(receiver.account().held, 1);
    receiver.release();
    assert_eq!(receiver.receive(1), 1);
    assert_eq!(receiver.frame(0).to_vec(), frame);
    receiver.release();
    check(receiver.account(), kernel.chunks()[0].clone());
}

#[test]
fn overlong_frame_is_counted_once_and_dropped() {
    let kernel = Kernel::new(CHUNKS);
    let mut receiver = receiver(&kernel, false);
    let whole = [0; CHUNK_DATA];
    assert!(kernel.deliver(&[&whole, &whole, &whole, &[0; 9]]), "longer than the link carries");
    assert!(kernel.deliver(&[&[0; 8], &[0; 8], &[0; 8], &[0; 8]]), "short, but in four pieces");
    assert!(kernel.deliver(&[&whole, &[0; LONGEST - CHUNK_DATA + 1]]), "one byte too long");
    let last = pattern(4, 100);
    assert!(kernel.deliver(&[&last]));
    assert_eq!(receiver.receive(64), 1);
    assert_eq!(receiver.frame(0).to_vec(), last);
    receiver.release();
    let counters = receiver.counters();
    assert_eq!((counters.packets, counters.gso_superframe, counters.too_long), (1, 2, 1));
    check(receiver.account(), kernel.chunks()[0].clone());
}

#[test]
fn kernel_gets_more_chunks_after_a_shortage() {
    let kernel = Kernel::new(1024);
    let (rings, chunks) = kernel.receiving(1024);
    let mut receiver = Receiver::new(rings, chunks, LONGEST, true);
    assert_eq!(receiver.account().kernel, 256, "copy mode lends a part");
    (0..256).for_each(|_| assert!(kernel.deliver(&[&[1]])));
    assert!(!kernel.deliver(&[&[1]]), "the fill ring is empty");
    (0..256 / 64).for_each(|_| {
        assert_eq!(receiver.receive(64), 64);
        receiver.release();
    });
    assert_eq!(receiver.account().kernel, 512);
    receiver.expect(400);
    assert_eq!(receiver.account().kernel, 800, "two chunks for each frame");
    receiver.expect(usize::MAX / 2 + 1);
    assert_eq!(receiver.account(), ChunkAccount { total: 1024, held: 0, free: 0, kernel: 1024 });
}

#[test]
fn fill_ring_without_room_for_frame_is_short() {
    for (frames, lent) in [(254, 256), (255, 512)] {
        let kernel = Kernel::new(1024);
        let (rings, chunks) = kernel.receiving(1024);
        let mut receiver = Receiver::new(rings, chunks, LONGEST, true);
        (0..frames).for_each(|_| assert!(kernel.deliver(&[&[1]])));
        assert_eq!(receiver.receive(64), 64);
        receiver.release();
        assert_eq!(receiver.account().kernel, lent, "{} chunks were on the fill ring", 256 - frames);
    }
}

#[test]
fn longest_frame_follows_the_link() {
    let kernel = Kernel::new(CHUNKS);
    let mut receiver = receiver(&kernel, false);
    let frame = pattern(1, 1500);
    for (longest, received) in [(1499, 0), (1500, 1)] {
        receiver.set_longest(longest);
        assert!(kernel.deliver(&[&frame]));
        assert_eq!(receiver.receive(1), received);
        receiver.release();
    }
    assert_eq!(receiver.counters().gso_superframe, 1);
}

#[test]
fn chunk_used_last_is_lent_first() {
    let kernel = Kernel::new(CHUNKS);
    let mut receiver = receiver(&kernel, false);
    (0..CHUNKS).for_each(|_| assert!(kernel.deliver(&[&[1]])));
    receiver.receive(CHUNKS);
    let account = receiver.account();
    assert_eq!((account.held, account.kernel), (CHUNKS, 0));
    receiver.release();
    // Released from the burst's end, and lent from the end of what was released: the order of arrival.
    let first = kernel.chunks()[0].clone();
    (0..CHUNKS).for_each(|_| assert!(kernel.deliver(&[&[1]])));
    receiver.receive(CHUNKS);
    receiver.release();
    assert_eq!(kernel.chunks()[0], first);
}

#[test]
fn driver_without_chunks_is_woken() {
    let kernel = Kernel::new(CHUNKS);
    let mut receiver = receiver(&kernel, false);
    receiver.receive(64);
    assert_eq!(kernel.wakes(), 0);
    kernel.need_wakeup_to_receive();
    receiver.receive(64);
    assert_eq!((kernel.wakes(), receiver.counters().kicks), (1, 1));
}

#[test]
fn frames_leave_whole_in_any_order_of_completions() {
    for seed in 0..200 {
        let mut state = seed;
        let kernel = Kernel::new(CHUNKS);
        let mut sender = sender(&kernel, true);
        for number in 0..50 {
            let frame = pattern(number, 1 + (splitmix(&mut state) % LONGEST as u64) as usize);
            while !commit(&mut sender, &frame) {
                assert!(kernel.in_flight() > 0, "the chunks are gone: {:?}", sender.account());
                kernel.complete((splitmix(&mut state) % kernel.in_flight() as u64) as usize);
            }
            sender.flush().expect("the link is up");
            assert_eq!(kernel.sent(), [frame]);
            check(sender.account(), kernel.chunks()[1].clone());
        }
        assert_eq!(sender.counters().packets, 50);
    }
}

#[test]
fn flush_takes_completed_chunks_back() {
    let kernel = Kernel::new(CHUNKS);
    let mut sender = sender(&kernel, true);
    assert!(commit(&mut sender, &[1; 60]));
    sender.flush().expect("the link is up");
    assert_eq!(sender.chunks().count(), CHUNKS - 1);
    kernel.complete(0);
    sender.flush().expect("nothing to send");
    assert_eq!(sender.chunks().count(), CHUNKS);
}

#[test]
fn full_ring_keeps_frames_for_the_next_flush() {
    let kernel = Kernel::new(4);
    let mut sender = sender(&kernel, false);
    (0..5).for_each(|number| assert!(commit(&mut sender, &pattern(number, 100))));
    sender.flush().expect("the link is up");
    assert!(sender.unsent(), "five do not fit in four entries");
    assert_eq!(sender.account().held, 5);
    let kernel = Kernel::new(CHUNKS);
    let (rings, chunks) = kernel.sending(CHUNKS);
    let mut sender = Sender::new(rings, chunks, false);
    (0..CHUNKS as u64).for_each(|number| assert!(commit(&mut sender, &pattern(number, 100))));
    assert_eq!(sender.alloc(1), None, "all chunks are in frames");
    sender.flush().expect("the link is up");
    assert!(!sender.unsent(), "a zero-copy driver takes what is on its ring");
    assert_eq!(sender.alloc(1), None, "all chunks are the kernel's");
    kernel.take_to_send(CHUNKS);
    kernel.complete(3);
    assert!(sender.alloc(1).is_some());
}

#[test]
fn cancelled_slot_is_free_again() {
    let kernel = Kernel::new(CHUNKS);
    let mut sender = sender(&kernel, true);
    let slots: Vec<_> = std::iter::from_fn(|| sender.alloc(LONGEST)).collect();
    assert_eq!(slots.len(), CHUNKS / 2);
    slots.into_iter().for_each(|slot| sender.cancel(slot));
    assert_eq!(sender.account(), ChunkAccount { total: CHUNKS, held: 0, free: CHUNKS, kernel: 0 });
    sender.flush().expect("nothing to send");
    assert_eq!((sender.counters().kicks, kernel.sent().len()), (0, 0));
}

/// Runs a flush of `frames` frames in copy mode, with these kicks. Returns kicks, kicks without progress, and whether
/// frames wait.
fn flush(frames: u64, kicks: &[Kick]) -> (u64, u64, bool) {
    let kernel = Kernel::new(CHUNKS);
    let mut sender = sender(&kernel, true);
    (0..frames).for_each(|number| assert!(commit(&mut sender, &pattern(number, 100))));
    kernel.plan_kicks(kicks.iter().copied());
    sender.flush().expect("the link is up");
    check(sender.account(), kernel.chunks()[1].clone());
    (sender.counters().kicks, sender.counters().busy, sender.unsent())
}

#[test]
fn copy_mode_kicks_until_all_is_sent() {
    assert_eq!(flush(5, &[]), (1, 0, false));
    assert_eq!(flush(5, &[Ok(2), Ok(2)]), (3, 0, false));
    // A part was sent before the kernel refused.
    assert_eq!(flush(5, &[Ok(2), Err(Errno::EAGAIN)]), (2, 1, true));
    for busy in [Errno::EBUSY, Errno::ENOBUFS, Errno::EINTR] {
        assert_eq!(flush(5, &[Err(busy)]), (1, 2, true));
    }
}

#[test]
fn zero_copy_driver_is_kicked_once_if_asked() {
    let kernel = Kernel::new(CHUNKS);
    let mut sender = sender(&kernel, false);
    assert!(commit(&mut sender, &[1; 60]));
    sender.flush().expect("the link is up");
    assert_eq!(sender.counters().kicks, 0);
    kernel.take_to_send(1);
    kernel.need_wakeup_to_send();
    kernel.plan_kicks([Ok(0)]);
    assert!(commit(&mut sender, &[1; 60]));
    sender.flush().expect("the link is up");
    assert_eq!((sender.counters().kicks, sender.counters().busy), (1, 0));
}

#[test]
fn refused_kick_of_sleeping_driver_is_repeated() {
    for refusal in [Errno::EAGAIN, Errno::EBUSY, Errno::ENETDOWN] {
        let kernel = Kernel::new(CHUNKS);
        let mut sender = sender(&kernel, false);
        kernel.need_wakeup_to_send();
        kernel.plan_kicks([Err(refusal)]);
        assert!(commit(&mut sender, &[1; 60]));
        sender.flush().expect("the interface is there");
        assert!(sender.unsent(), "the driver still sleeps after {refusal}");
        sender.flush().expect("the link is up");
        assert!(!sender.unsent());
        assert_eq!((sender.counters().kicks, kernel.sent().len()), (2, 1));
    }
}

#[test]
fn accounts_of_queues_add_up() {
    let mut account = ChunkAccount { total: 6, held: 1, free: 2, kernel: 3 };
    account += ChunkAccount { total: 60, held: 10, free: 20, kernel: 30 };
    assert_eq!(account, ChunkAccount { total: 66, held: 11, free: 22, kernel: 33 });
}

#[test]
fn frames_for_a_lost_link_are_lost() {
    let kernel = Kernel::new(CHUNKS);
    let mut sender = sender(&kernel, true);
    let frames: Vec<_> = (0..4).map(|number| pattern(number, LONGEST)).collect();
    kernel.plan_kicks([Err(Errno::ENETDOWN); 3]);
    assert!(commit(&mut sender, &frames[0]));
    sender.flush().expect("down, not gone");
    for frame in &frames[1..3] {
        assert!(commit(&mut sender, frame));
        sender.flush().expect("down, not gone");
    }
    let counters = *sender.counters();
    assert_eq!((counters.failed, counters.link_down, counters.busy), (2, 3, 0));
    check(sender.account(), kernel.chunks()[1].clone());
    // The link is up again. The frame on the ring is the kernel's; the next one is lost, as the flush has not seen that
    // yet.
    assert!(commit(&mut sender, &frames[3]));
    sender.flush().expect("up");
    assert_eq!(kernel.sent(), [frames[0].clone()]);
    assert_eq!(sender.counters().failed, 3);
    assert!(commit(&mut sender, &frames[3]));
    sender.flush().expect("up");
    assert_eq!(kernel.sent(), [frames[3].clone()]);
}

#[test]
fn deleted_interface_is_an_error() {
    let kernel = Kernel::new(CHUNKS);
    let mut sender = sender(&kernel, true);
    for (code, kind) in [
        (Errno::ENXIO, std::io::ErrorKind::NotConnected),
        (Errno::ENODEV, std::io::ErrorKind::NotConnected),
        (Errno::EBADF, std::io::ErrorKind::NotConnected),
        (Errno::EPERM, std::io::ErrorKind::PermissionDenied),
    ] {
        kernel.plan_kicks([Err(code)]);
        assert!(commit(&mut sender, &[1; 60]));
        assert_eq!(sender.flush().expect_err("it is gone").kind(), kind);
        assert!(!sender.unsent(), "nothing can be done about what is on the ring");
        // The kernel takes the ring's frame when it is asked the next time. Frames committed until then are lost.
        let lost = sender.counters().failed;
        assert!(commit(&mut sender, &[2; 60]));
        sender.flush().expect("a kick that works");
        assert_eq!((kernel.sent(), sender.counters().failed), (vec![vec![1; 60]], lost + 1));
    }
    check(sender.account(), kernel.chunks()[1].clone());
}
