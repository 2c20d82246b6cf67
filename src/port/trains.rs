//! Trains of datagrams: frames to be sent that one call hands to the kernel, which cuts them (`UDP_SEGMENT`, GSO).
//!
//! Slots lie in one block of memory: a table of headers, a table of prefixes, and the datagrams one behind the other,
//! so that a train is usually one contiguous piece. A train has datagrams of one flow, in order, of equal length except
//! a shorter last one.

use std::ops::Range;

use super::udp::headers::{MAX_HEADERS, Outgoing, V4_HEADERS};
use crate::{BURST, TxId};
use roxie_base::frame::FrameMut;
use roxie_base::time::Nanos;

/// Longest wait of frames for a link that takes none of them: its queue is full, or a rule of the kernel refuses each
/// frame. Then they are lost, so that the timers of their QPs run.
const LONGEST_WAIT: Nanos = Nanos(100_000_000);
/// Number of slots: one burst, and what a busy link left over.
const SLOTS: usize = 4 * BURST;
/// Bytes of the header table's rows.
const ROW: usize = 64;
/// Bytes of a prefix.
pub(crate) const PREFIX: usize = 80;
/// Offset of the prefixes.
const PREFIXES: usize = SLOTS * ROW;
/// Offset of the datagrams.
const ARENA: usize = PREFIXES + SLOTS * PREFIX;
/// Room for datagrams, in bytes.
const ARENA_BYTES: usize = 1 << 20;
/// Maximum number of bytes in one train: 65,535 less IPv4 and UDP headers.
pub(crate) const TRAIN_LIMIT: usize = 65_507;
/// Number of newest trains that are searched for a datagram's flow.
const LOOK_BACK: usize = 16;
/// Offset in the BTH of the destination QPN.
const DESTINATION_QP: usize = 5;

#[derive(Clone, Copy, PartialEq, Debug)]
enum State {
    Open,
    Committed,
    Cancelled,
    /// The link does not carry the frame: never sent.
    Refused,
}

struct Slot {
    state: State,
    offset: usize,
    a_len: usize,
    b_len: usize,
    /// Offset of the UDP payload in the frame; 0 if the frame is sent as it is.
    datagram: usize,
    /// The next slot of the same train.
    follower: Option<usize>,
}

impl Slot {
    fn datagram_len(&self) -> usize {
        self.a_len + self.b_len - self.datagram
    }
}

/// A train of flow `F`.
#[derive(Clone, Copy)]
pub(crate) struct Train<F> {
    pub(crate) flow: F,
    /// Upper 8 bits of the destination QPNs. A train reaches one process of the peer's, and each may own one value.
    unit: u8,
    pub(crate) first: usize,
    last: usize,
    pub(crate) count: usize,
    pub(crate) segment: usize,
    pub(crate) bytes: usize,
    /// True if nothing may be appended, for example after a shorter datagram.
    closed: bool,
    pub(crate) done: bool,
}

/// Slots, and the trains that they form.
pub(crate) struct Trains<F> {
    memory: Box<[u8]>,
    used: usize,
    slots: Vec<Slot>,
    arranged: usize,
    trains: Vec<Train<F>>,
    /// Number of trains that were done at the last flush, `usize::MAX` if it left none, and when the first flush found
    /// this number.
    progress: (usize, Nanos),
    /// Where the next slot is split: header length of the last frame.
    header_len: usize,
    /// True if a slot was cancelled after it was arranged.
    holes: bool,
    /// Maximum number of datagrams in one train; 1 without segmentation offload.
    pub(crate) segments: usize,
}

impl<F: Copy + PartialEq> Trains<F> {
    /// Makes empty slots. `header_len`: length of the headers in front of a datagram, for the first frame.
    pub(crate) fn new(header_len: usize, segments: usize) -> Trains<F> {
        Trains {
            memory: vec![0; ARENA + ARENA_BYTES].into_boxed_slice(),
            used: 0,
            slots: Vec::with_capacity(SLOTS),
            arranged: 0,
            trains: Vec::with_capacity(SLOTS),
            progress: (usize::MAX, Nanos::ZERO),
            header_len,
            holes: false,
            segments,
        }
    }

    pub(crate) fn alloc(&mut self, len: usize) -> Option<TxId> {
        let a_len = len.min(self.header_len);
        let b_len = len - a_len;
        let i = self.slots.len();
        if i == SLOTS || self.used + b_len > ARENA_BYTES {
            return None;
        }
        let offset = ARENA + self.used;
        self.slots.push(Slot { state: State::Open, offset, a_len, b_len, datagram: a_len, follower: None });
        self.used += b_len;
        Some(TxId(i as u32))
    }

    pub(crate) fn frame(&mut self, id: &TxId) -> FrameMut<'_> {
        let i = id.0 as usize;
        let slot = &self.slots[i];
        let (rows, arena) = self.memory.split_at_mut(ARENA);
        let offset = slot.offset - ARENA;
        FrameMut { a: &mut rows[i * ROW..i * ROW + slot.a_len], b: &mut arena[offset..offset + slot.b_len] }
    }

    /// Marks a slot to be sent. Returns false if the link does not carry its frame.
    pub(crate) fn commit(&mut self, id: &TxId) -> bool {
        let slot = &mut self.slots[id.0 as usize];
        match slot.state {
            State::Open => slot.state = State::Committed,
            State::Refused => return false,
            State::Committed | State::Cancelled => {
                debug_assert!(false, "slot {} is closed already: {:?}", id.0, slot.state);
            }
        }
        true
    }

    /// True if slot `i` is to be sent, and its frame must not change any more.
    pub(crate) fn is_committed(&self, i: usize) -> bool {
        matches!(self.slots[i].state, State::Committed)
    }

    pub(crate) fn cancel(&mut self, id: &TxId) {
        let i = id.0 as usize;
        self.slots[i].state = State::Cancelled;
        self.holes |= i < self.arranged;
    }

    /// Returns the next slot to arrange, in the order of allocation, skipping cancelled ones.
    pub(crate) fn next_unarranged(&mut self) -> Option<usize> {
        while self.arranged < self.slots.len() {
            self.arranged += 1;
            if self.slots[self.arranged - 1].state != State::Cancelled {
                return Some(self.arranged - 1);
            }
        }
        None
    }

    /// Parses the headers of slot `i`, and the destination QPN behind them. `None` if it is no single UDP datagram.
    pub(crate) fn parse(&mut self, i: usize) -> Option<(Outgoing, [u8; 3])> {
        let slot = &self.slots[i];
        let frame_len = slot.a_len + slot.b_len;
        let out = match self.row(i) {
            Some(row) => Outgoing::parse(row, frame_len)?,
            None => Outgoing::parse(&self.start(i), frame_len)?,
        };
        let slot = &self.slots[i];
        let qpn = if slot.a_len == out.udp + 8 {
            *self.memory[slot.offset + DESTINATION_QP..].first_chunk()?
        } else {
            self.frame(&TxId(i as u32)).as_frame().array(out.udp + 8 + DESTINATION_QP)?
        };
        Some((out, qpn))
    }

    /// Returns the row of slot `i` if it holds exactly the headers, as it almost always does.
    fn row(&self, i: usize) -> Option<&[u8; MAX_HEADERS]> {
        let (a_len, row) = (self.slots[i].a_len, i * ROW);
        let whole =
            a_len == MAX_HEADERS || (a_len == V4_HEADERS && self.memory[row + 12..row + 14] == [8, 0]);
        whole.then(|| self.memory[row..].first_chunk().expect("rows lie before the arena"))
    }

    /// Copies the first bytes of slot `i`, up to the longest headers.
    pub(crate) fn start(&mut self, i: usize) -> [u8; MAX_HEADERS] {
        let mut start = [0; MAX_HEADERS];
        self.frame(&TxId(i as u32)).as_frame().copy_to(0, &mut start);
        start
    }

    /// Writes the source port and the IPv4 identification into the headers of slot `i`.
    pub(crate) fn rewrite(&mut self, i: usize, out: &Outgoing, source_port: u16, identification: u16) {
        if self.row(i).is_some() {
            let row = self.memory[i * ROW..].first_chunk_mut().expect("rows lie before the arena");
            out.rewrite(row, source_port, identification);
        } else {
            let mut start = self.start(i);
            out.rewrite(&mut start, source_port, identification);
            self.frame(&TxId(i as u32)).write(0, &start[..out.udp + 2]);
        }
    }

    /// Marks slot `i` as never to be sent. Returns true if it was committed.
    pub(crate) fn refuse(&mut self, i: usize) -> bool {
        std::mem::replace(&mut self.slots[i].state, State::Refused) == State::Committed
    }

    /// Appends slot `i`, whose headers have `headers` bytes, to the train of its flow, or begins one. Returns its
    /// position in the train.
    pub(crate) fn join(&mut self, i: usize, headers: usize, flow: F, unit: u8) -> usize {
        self.header_len = headers;
        self.slots[i].datagram = headers;
        let len = self.slots[i].datagram_len();
        let limit = self.segments;
        let mine = self.trains.iter_mut().rev().take(LOOK_BACK);
        // Only the newest train of the flow: in an older one this datagram would overtake others.
        if let Some(train) = mine.into_iter().find(|t| t.flow == flow)
            && train.unit == unit
            && !train.closed
            && !train.done
            && train.count < limit
            && len <= train.segment
            && train.bytes + len <= TRAIN_LIMIT
        {
            self.slots[train.last].follower = Some(i);
            train.last = i;
            train.count += 1;
            train.bytes += len;
            train.closed = len < train.segment;
            return train.count - 1;
        }
        self.begin(i, flow, unit, false);
        0
    }

    /// Makes a train of slot `i` alone, to be sent as it is.
    pub(crate) fn add_alone(&mut self, i: usize, flow: F) {
        self.slots[i].datagram = 0;
        self.begin(i, flow, 0, true);
    }

    fn begin(&mut self, i: usize, flow: F, unit: u8, closed: bool) {
        let len = self.slots[i].datagram_len();
        self.trains.push(Train {
            flow,
            unit,
            first: i,
            last: i,
            count: 1,
            segment: len,
            bytes: len,
            closed,
            done: false,
        });
    }

    pub(crate) fn all(&self) -> &[Train<F>] {
        &self.trains
    }

    pub(crate) fn all_mut(&mut self) -> &mut [Train<F>] {
        &mut self.trains
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.trains.is_empty()
    }

    /// Closes all trains: one that the kernel refuses for now is sent unchanged later.
    pub(crate) fn close(&mut self) {
        for train in &mut self.trains {
            train.closed = true;
        }
    }

    /// Drops the trains of these flows that are not sent yet. Returns the number of their datagrams.
    pub(crate) fn drop_waiting(&mut self, is_dropped: impl Fn(&F) -> bool) -> u64 {
        let mut dropped = 0;
        for train in self.trains.iter_mut().filter(|train| !train.done && is_dropped(&train.flow)) {
            train.done = true;
            dropped += train.count as u64;
        }
        dropped
    }

    /// Ends a flush at time `now`: frees all slots once every train is done. Drops the trains of a link that has taken
    /// none for [`LONGEST_WAIT`], and returns the number of their datagrams.
    pub(crate) fn end_flush(&mut self, now: Nanos) -> u64 {
        let mut done = self.trains.iter().filter(|train| train.done).count();
        let mut dropped = 0;
        if self.progress.0 != done {
            self.progress = (done, now);
        }
        if now.since(self.progress.1) >= LONGEST_WAIT {
            dropped = self.drop_waiting(|_| true);
            done = self.trains.len();
        }
        if done == self.trains.len() {
            self.slots.clear();
            self.trains.clear();
            self.progress.0 = usize::MAX;
            self.arranged = 0;
            self.used = 0;
            self.holes = false;
        }
        dropped
    }

    /// Cuts trains where slots were cancelled after they were arranged. Calls `moved` with the flow and number of
    /// datagrams whose position in their train is another than arranged.
    pub(crate) fn close_holes(&mut self, mut moved: impl FnMut(&F, usize)) {
        if !std::mem::take(&mut self.holes) {
            return;
        }
        let mut t = 0;
        while t < self.trains.len() {
            if let Some(rest) = self.cut_at_hole(t, &mut moved) {
                self.trains.insert(t + 1, rest);
            }
            t += 1;
        }
    }

    /// Removes cancelled slots from the front of train `t`, and cuts it before the next one. Returns the rest.
    fn cut_at_hole(&mut self, t: usize, moved: &mut impl FnMut(&F, usize)) -> Option<Train<F>> {
        let slots = &mut self.slots;
        let train = &mut self.trains[t];
        let mut shifted = false;
        while slots[train.first].state == State::Cancelled {
            shifted = true;
            let Some(next) = slots[train.first].follower else {
                train.done = true;
                return None;
            };
            train.first = next;
        }
        train.segment = slots[train.first].datagram_len();
        (train.count, train.bytes) = (1, train.segment);
        let (mut at, end) = (train.first, train.last);
        let mut rest = None;
        while let Some(next) = slots[at].follower {
            if slots[next].state == State::Cancelled {
                slots[at].follower = None;
                train.last = at;
                // Its counts and segment are set when its own front is cleared.
                rest = Some(Train { first: next, last: end, ..*train });
                break;
            }
            at = next;
            train.count += 1;
            train.bytes += slots[at].datagram_len();
        }
        if shifted {
            moved(&train.flow, train.count);
        }
        rest
    }

    /// Returns the slots of a train in order.
    pub(crate) fn order(&self, train: &Train<F>) -> impl Iterator<Item = usize> + '_ {
        std::iter::successors(Some(train.first), |i| self.slots[*i].follower)
    }

    /// Returns the ranges in [`memory`](Trains::memory) of the datagram in slot `i`, without its headers.
    pub(crate) fn datagram(&self, i: usize) -> [Range<usize>; 2] {
        self.ranges(i, self.slots[i].datagram)
    }

    /// Returns the ranges in [`memory`](Trains::memory) of the whole frame in slot `i`.
    pub(crate) fn whole(&self, i: usize) -> [Range<usize>; 2] {
        self.ranges(i, 0)
    }

    fn ranges(&self, i: usize, from: usize) -> [Range<usize>; 2] {
        let slot = &self.slots[i];
        let in_b = from.saturating_sub(slot.a_len);
        let row = i * ROW;
        [row + from.min(slot.a_len)..row + slot.a_len, slot.offset + in_b..slot.offset + slot.b_len]
    }

    /// Returns the prefix of the train that begins with slot `i`, for a port that puts bytes of its own in front.
    pub(crate) fn prefix(&mut self, i: usize) -> &mut [u8; PREFIX] {
        let start = PREFIXES + i * PREFIX;
        self.memory[start..].first_chunk_mut().expect("prefixes lie before the arena")
    }

    /// Returns the range in [`memory`](Trains::memory) of that prefix's first `len` bytes.
    pub(crate) fn prefix_range(i: usize, len: usize) -> Range<usize> {
        let start = PREFIXES + i * PREFIX;
        start..start + len
    }

    pub(crate) fn memory(&self) -> &[u8] {
        &self.memory
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes a train of one datagram for each flow.
    fn trains(flows: [u8; 3]) -> Trains<u8> {
        let mut trains = Trains::new(V4_HEADERS, 1);
        for flow in flows {
            let id = trains.alloc(100).unwrap();
            trains.commit(&id);
            trains.add_alone(id.0 as usize, flow);
        }
        trains
    }

    #[test]
    fn trains_of_a_stuck_link_are_dropped() {
        let mut trains = trains([1, 2, 2]);
        let begun = Nanos(5_000_000_000);
        assert_eq!(trains.end_flush(begun), 0);
        assert_eq!(trains.end_flush(begun + Nanos(LONGEST_WAIT.0 - 1)), 0);
        trains.all_mut()[0].done = true;
        assert_eq!(trains.end_flush(begun + LONGEST_WAIT), 0, "the link has taken one meanwhile");
        assert_eq!(trains.end_flush(begun + LONGEST_WAIT + LONGEST_WAIT), 2);
        assert!(trains.is_empty());
        assert_eq!(trains.end_flush(begun + LONGEST_WAIT + LONGEST_WAIT), 0);
    }

    #[test]
    fn waiting_trains_of_one_flow_are_dropped() {
        let mut trains = trains([1, 2, 2]);
        trains.all_mut()[2].done = true;
        assert_eq!(trains.drop_waiting(|flow| *flow == 2), 1);
        assert!(!trains.all()[0].done && trains.all()[1].done);
    }
}
