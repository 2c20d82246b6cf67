//! Both ends of the rings act at random, as a seed decides: frames arrive whole, once and in order, frames are sent so,
//! and every chunk is in one place. The planted bugs show that the campaign finds such bugs.

use std::collections::VecDeque;
use std::panic::catch_unwind;

use nix::errno::Errno;
use roxie_base::random::splitmix;

use super::super::door::PlantedBug;
use super::super::memory::{Kernel, MemoryChunk, MemoryReceiveRings, MemorySendRings};
use super::super::receiver::LEAST_LENT;
use super::super::{CHUNK_DATA, ChunkAccount, Receiver, Sender};
use super::{CHUNKS, LONGEST, sum};

const SEEDS: u64 = 300;
const TURNS: usize = 500;
/// One seed in this many has more chunks than the kernel gets at first in copy mode.
const FEW: u64 = 7;
/// Turns after the random ones in which all frames must be sent and received.
const LAST_TURNS: usize = 200;

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        (splitmix(&mut self.0) % bound as u64) as usize
    }

    /// Returns the length of a frame of the link, often one at a limit.
    fn length(&mut self) -> usize {
        const LIMITS: [usize; 6] = [1, 60, CHUNK_DATA - 1, CHUNK_DATA, CHUNK_DATA + 1, LONGEST];
        if self.below(2) == 0 { LIMITS[self.below(LIMITS.len())] } else { 1 + self.below(LONGEST) }
    }

    fn frame(&mut self, length: usize) -> Vec<u8> {
        let words = std::iter::repeat_with(|| splitmix(&mut self.0).to_ne_bytes());
        words.flatten().take(length).collect()
    }
}

/// Checks that each chunk of a direction is in one place, as its account says.
fn check<'a>(
    account: ChunkAccount,
    total: usize,
    here: impl Iterator<Item = &'a MemoryChunk>,
    at_the_kernel: Vec<usize>,
) {
    assert_eq!((account.total, sum(account)), (total, total), "{account:?}");
    assert_eq!(account.kernel, at_the_kernel.len(), "{account:?}");
    let mut all: Vec<_> = here.map(|chunk| chunk.number).chain(at_the_kernel).collect();
    all.sort_unstable();
    let twice = all.windows(2).find(|pair| pair[0] == pair[1]);
    assert_eq!((all.len(), twice), (total, None), "chunks, and one in two places");
}

struct ReceiveSide {
    kernel: Kernel,
    total: usize,
    copy_mode: bool,
    receiver: Receiver<MemoryReceiveRings>,
    /// Frames that the port has not received yet.
    expected: VecDeque<Vec<u8>>,
    /// Frames of the burst that were compared.
    compared: usize,
    received: u64,
    /// Frames longer than the link carries, and frames in too many pieces.
    superframes: u64,
    too_long: u64,
    /// Number of chunks that the kernel is to have.
    share: usize,
}

impl ReceiveSide {
    fn new(kernel: &Kernel, total: usize, copy_mode: bool) -> ReceiveSide {
        let (rings, chunks) = kernel.receiving(total);
        ReceiveSide {
            kernel: kernel.clone(),
            total,
            copy_mode,
            receiver: Receiver::new(rings, chunks, LONGEST, copy_mode),
            expected: VecDeque::new(),
            compared: 0,
            received: 0,
            superframes: 0,
            too_long: 0,
            share: if copy_mode { LEAST_LENT.min(total) } else { total },
        }
    }

    /// Has the kernel receive a frame. False: it is lost.
    fn deliver(&mut self, random: &mut Random) -> bool {
        let (length, piece) = match random.below(8) {
            0 => (LONGEST + 1 + random.below(CHUNK_DATA), 1100 + random.below(CHUNK_DATA - 1099)),
            1 if random.below(4) == 0 => (LONGEST, LONGEST / 3 + 1),
            1 => (3 + random.below(98), 1 + random.below(20)),
            _ => (random.length(), CHUNK_DATA),
        };
        let frame = random.frame(length);
        let pieces: Vec<_> = frame.chunks(piece).take(8).collect();
        let length: usize = pieces.iter().map(|piece| piece.len()).sum();
        if !self.kernel.deliver(&pieces) {
            // A zero-copy driver without chunks sleeps.
            if !self.copy_mode {
                self.kernel.need_wakeup_to_receive();
            }
            return false;
        }
        match pieces.len() {
            _ if length > LONGEST => self.superframes += 1,
            3.. => self.too_long += 1,
            _ => self.expected.push_back(pieces.concat()),
        }
        true
    }

    fn receive(&mut self, most: usize) {
        let size = self.receiver.receive(most);
        assert!(size <= most.max(self.compared), "{size} frames, at most {most}");
        for i in self.compared..self.receiver.received() {
            let frame = self.receiver.frame(i).to_vec();
            assert!(self.expected.pop_front().is_some_and(|expected| expected == frame), "another frame");
            self.received += 1;
        }
        self.compared = self.receiver.received();
    }

    fn release(&mut self) {
        self.receiver.release();
        self.compared = 0;
        let account = self.receiver.account();
        let has_room = !self.kernel.is_limited();
        assert!(!has_room || account.free == 0 || account.kernel >= self.share, "too few lent: {account:?}");
    }

    fn expect(&mut self, frames: usize) {
        self.receiver.expect(frames);
        self.share = (2 * frames).clamp(self.share, self.total);
    }

    fn check(&self) {
        let account = self.receiver.account();
        assert!(account.kernel <= self.share, "more than {} lent: {account:?}", self.share);
        let [at_the_kernel, _] = self.kernel.chunks();
        check(account, self.total, self.receiver.chunks(), at_the_kernel);
    }

    /// Receives what is on the rings. Then the kernel has its share of chunks, and the driver takes frames.
    fn finish(&mut self, random: &mut Random) {
        for _ in 0..LAST_TURNS {
            self.receive(64);
            self.release();
            self.check();
        }
        let counters = *self.receiver.counters();
        let counted = (counters.packets, counters.gso_superframe, counters.too_long);
        assert_eq!(counted, (self.received, self.superframes, self.too_long));
        assert!(self.expected.is_empty(), "{} frames did not arrive", self.expected.len());
        assert!(self.deliver(random), "the driver sleeps, or has too few chunks");
    }
}

struct SendSide {
    kernel: Kernel,
    total: usize,
    copy_mode: bool,
    sender: Sender<MemorySendRings>,
    /// Slots, with the frames written there.
    reserved: Vec<(u32, Vec<u8>)>,
    /// Frames that were not sent yet. The last `pending` are not on the tx ring.
    committed: VecDeque<Vec<u8>>,
    pending: usize,
    lost: u64,
    /// Bytes of all committed frames, and how many take two chunks.
    bytes: u64,
    long: u64,
}

impl SendSide {
    fn new(kernel: &Kernel, total: usize, copy_mode: bool) -> SendSide {
        let (rings, chunks) = kernel.sending(total);
        SendSide {
            kernel: kernel.clone(),
            total,
            copy_mode,
            sender: Sender::new(rings, chunks, copy_mode),
            reserved: Vec::new(),
            committed: VecDeque::new(),
            pending: 0,
            lost: 0,
            bytes: 0,
            long: 0,
        }
    }

    fn reserve(&mut self, random: &mut Random) {
        let length = random.length();
        let frame = random.frame(length);
        let Some(slot) = self.sender.alloc(length) else {
            let free = self.sender.account().free;
            assert!(free < length.div_ceil(CHUNK_DATA), "no slot, and {free} free chunks");
            return;
        };
        assert!(self.reserved.iter().all(|(other, _)| *other != slot), "slot {slot} twice");
        let mut memory = self.sender.slot(slot);
        assert_eq!(memory.len(), length, "bytes of a slot");
        memory.write(0, &frame);
        self.reserved.push((slot, frame));
    }

    fn take_reserved(&mut self, random: &mut Random) -> Option<(u32, Vec<u8>)> {
        let count = self.reserved.len();
        (count > 0).then(|| self.reserved.swap_remove(random.below(count)))
    }

    fn commit(&mut self, random: &mut Random) {
        if let Some((slot, frame)) = self.take_reserved(random) {
            self.sender.commit(slot);
            self.bytes += frame.len() as u64;
            self.long += u64::from(frame.len() > CHUNK_DATA);
            self.committed.push_back(frame);
            self.pending += 1;
        }
    }

    fn cancel(&mut self, random: &mut Random) {
        if let Some((slot, _)) = self.take_reserved(random) {
            self.sender.cancel(slot);
        }
    }

    /// Flushes if frames wait, as callers do.
    fn flush(&mut self) {
        if !self.sender.unsent() {
            return assert_eq!(self.pending, 0, "frames that no flush would send");
        }
        let may_lose = self.kernel.is_down();
        self.sender.flush().expect("the interface is there");
        let lost = self.sender.counters().failed - self.lost;
        self.lost += lost;
        assert!(lost == 0 || may_lose, "{lost} frames are lost while the interface is up");
        assert!(lost == 0 || lost == self.pending as u64, "{lost} of {} frames are lost", self.pending);
        self.committed.truncate(self.committed.len() - lost as usize);
        let in_slots: usize = self.reserved.iter().map(|(_, frame)| frame.len().div_ceil(CHUNK_DATA)).sum();
        let waits = self.sender.account().held > in_slots;
        assert!(!waits || self.kernel.is_limited(), "a ring with room has refused frames");
        if !waits {
            self.pending = 0;
        }
        let awaits_kick = self.copy_mode && self.kernel.unsent() > 0;
        assert!(self.sender.unsent() || !awaits_kick, "frames on the tx ring that no flush would send");
    }

    fn check(&mut self) {
        // Takes the completion ring's chunks.
        let account = self.sender.account();
        for frame in self.kernel.sent() {
            assert!(self.committed.pop_front().is_some_and(|committed| committed == frame), "another frame");
        }
        let [_, at_the_kernel] = self.kernel.chunks();
        check(account, self.total, self.sender.chunks(), at_the_kernel);
    }

    /// Sends what is committed. Then all chunks are free, and slots for all of them.
    fn finish(&mut self, random: &mut Random) {
        while !self.reserved.is_empty() {
            self.cancel(random);
        }
        for _ in 0..LAST_TURNS {
            self.flush();
            self.kernel.take_to_send(self.total);
            self.complete(random);
            self.check();
        }
        let counters = *self.sender.counters();
        assert_eq!((counters.bytes, counters.multi_buffer), (self.bytes, self.long));
        assert!(self.committed.is_empty(), "{} frames were not sent", self.committed.len());
        let all_free = ChunkAccount { total: self.total, held: 0, free: self.total, kernel: 0 };
        assert_eq!(self.sender.account(), all_free);
        let slots = std::iter::from_fn(|| self.sender.alloc(1)).count();
        assert_eq!(slots, self.total, "a slot for each chunk");
    }

    /// Has the kernel complete some of what is in flight, in any order.
    fn complete(&self, random: &mut Random) {
        for _ in 0..random.below(1 + self.kernel.in_flight()) {
            self.kernel.complete(random.below(self.kernel.in_flight()));
        }
    }
}

fn run(seed: u64) {
    let mut random = Random(seed);
    let copy_mode = seed.is_multiple_of(2);
    let total = if seed.is_multiple_of(FEW) { LEAST_LENT + 4 * CHUNKS } else { CHUNKS };
    let kernel = Kernel::new(total);
    let (mut rx, mut tx) =
        (ReceiveSide::new(&kernel, total, copy_mode), SendSide::new(&kernel, total, copy_mode));
    for _ in 0..TURNS {
        match random.below(20) {
            0..4 => _ = rx.deliver(&mut random),
            4 | 5 => rx.receive(1 + random.below(8)),
            6 | 7 => rx.release(),
            8..11 => tx.reserve(&mut random),
            11 | 12 => tx.commit(&mut random),
            13 => tx.cancel(&mut random),
            14 | 15 => {
                const REFUSALS: [Errno; 4] = [Errno::EAGAIN, Errno::EBUSY, Errno::ENETDOWN, Errno::ENOBUFS];
                let refusal = REFUSALS[random.below(4)];
                kernel.plan_kicks([if random.below(2) == 0 { Ok(random.below(4)) } else { Err(refusal) }]);
                tx.flush();
            }
            16 => kernel.take_to_send(random.below(4)),
            17 => tx.complete(&mut random),
            18 => kernel.need_wakeup_to_send(),
            _ if random.below(4) == 0 => rx.expect(random.below(total)),
            _ if kernel.is_limited() => kernel.limit(usize::MAX),
            _ => kernel.limit(random.below(CHUNKS)),
        }
        rx.check();
        tx.check();
    }
    kernel.limit(usize::MAX);
    rx.finish(&mut random);
    tx.finish(&mut random);
    let packets = (rx.receiver.counters().packets, tx.sender.counters().packets);
    assert!(packets.0 > 10 && packets.1 > 10, "the seed does too little: {packets:?}");
}

/// Runs a seed. Returns why it fails.
fn fault(seed: u64) -> Option<String> {
    let payload = catch_unwind(|| run(seed)).err()?;
    let text = payload.downcast::<String>().map(|text| *text);
    Some(text.unwrap_or_else(|payload| payload.downcast_ref::<&str>().copied().unwrap_or("?").to_owned()))
}

/// Returns the number in a variable of the environment.
fn variable(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}=number")))
}

#[test]
fn random_turns_keep_every_chunk() {
    let first = variable("FIRST", 0);
    for seed in first..first + variable("SEEDS", SEEDS) {
        if let Some(fault) = fault(seed) {
            panic!("{fault}\nRepeat: FIRST={seed} SEEDS=1 cargo test -p roxie-port random_turns_keep");
        }
    }
}

#[test]
fn planted_bugs_are_caught() {
    for bug in PlantedBug::ALL {
        PlantedBug::plant(Some(bug));
        let caught = (0..SEEDS).find_map(|seed| Some((seed, fault(seed)?)));
        PlantedBug::plant(None);
        let (seed, why) = caught.unwrap_or_else(|| panic!("{bug:?} is not caught by {SEEDS} seeds"));
        println!("{bug:?}: seed {seed}: {why}");
        assert_eq!(fault(seed), None, "seed {seed} without {bug:?}");
    }
}
