//! The door to the account of chunks: the one place where its tests plant bugs.
//!
//! [`Sender`](super::Sender) and [`Receiver`](super::Receiver) pass the decisions that move chunks through a function
//! of this module, which does or returns what the code says, unless a test of this crate has [planted](PlantedBug) a
//! bug. In any other build nothing is left of the module: its functions are inlined, and no bug is planted.

mod planted;

pub(super) use planted::PlantedBug;

use super::{CHUNK_DATA, Chunk, Pieces, SendRings};

/// Returns a second owner of a chunk, which only a bug makes.
#[cfg(test)]
fn alias<C: Chunk>(chunk: &C) -> Option<C> {
    chunk.alias()
}

#[cfg(not(test))]
#[inline(always)]
fn alias<C: Chunk>(_: &C) -> Option<C> {
    None
}

// Decisions of a sender.

/// Returns the number of chunks that a frame of `length` bytes takes.
#[inline(always)]
pub(super) fn chunks_for(length: usize) -> usize {
    let most = CHUNK_DATA + usize::from(PlantedBug::LengthLimitIsOffByOne.is());
    if length > most { 2 } else { 1 }
}

/// True if the slot of a frame that is committed or cancelled is free again.
#[inline(always)]
pub(super) fn frees_slot() -> bool {
    !PlantedBug::SlotStaysReserved.is()
}

/// Frees the chunks of a cancelled frame.
#[inline(always)]
pub(super) fn cancel<C: Chunk>(frame: Pieces<C>, free: &mut Vec<C>) {
    if !PlantedBug::CancelledChunksLeak.is() {
        frame.into_list(free);
    }
}

/// True if the first chunk of a committed frame continues in the next descriptor.
#[inline(always)]
pub(super) fn continues<C: Chunk>(frame: &Pieces<C>) -> bool {
    frame.b.is_some() || (PlantedBug::StaleContinuation.is() && frame.a.continues())
}

/// Frees the chunks of committed frames that are lost.
#[inline(always)]
pub(super) fn lose<C: Chunk>(pending: &mut Vec<C>, free: &mut Vec<C>) {
    if PlantedBug::LostFirstChunksLeak.is() {
        pending.retain(|chunk| !chunk.continues());
    }
    free.append(pending);
}

/// Puts pending chunks on the tx ring. Returns the number of those that it took.
#[inline(always)]
pub(super) fn send<R: SendRings>(
    rings: &mut R,
    pending: &mut Vec<R::Chunk>,
    free: &mut Vec<R::Chunk>,
) -> usize {
    let before = pending.len();
    let last = if PlantedBug::FrameIsSplit.is() { pending.pop() } else { None };
    if PlantedBug::FreeBeforeCompletion.is() {
        free.extend(pending.first().and_then(alias));
    }
    rings.send(pending);
    pending.extend(last);
    if PlantedBug::RefusedBatchIsCounted.is() { before } else { before - pending.len() }
}

/// Returns the number of descriptors on the tx ring after a kick. `before`: those before it.
#[inline(always)]
pub(super) fn after_kick(unsent: usize, before: usize) -> usize {
    if unsent < before && PlantedBug::PartialKickIsWhole.is() { 0 } else { unsent }
}

/// True if a driver that waits to be woken is kicked.
#[inline(always)]
pub(super) fn wakes_to_send(needs_wakeup: bool) -> bool {
    needs_wakeup && !PlantedBug::SendWakeupIsIgnored.is()
}

/// Notes that the chunks of `free` from `before` on were completed.
#[inline(always)]
pub(super) fn completed<C: Chunk>(free: &mut Vec<C>, before: usize) {
    if PlantedBug::CompletedTwice.is() && free.len() > before {
        free.extend(free.last().and_then(alias));
    }
    if PlantedBug::StaleCompletion.is() && free.len() > before + 1 {
        free.pop();
        free.extend(free.last().and_then(alias));
    }
}

// Decisions of a receiver.

/// True if a driver that waits for chunks is woken.
#[inline(always)]
pub(super) fn wakes_to_receive(needs_wakeup: bool) -> bool {
    needs_wakeup && !PlantedBug::ReceiveWakeupIsIgnored.is()
}

/// True if a frame is longer than any packet of the link.
#[inline(always)]
pub(super) fn is_too_long(length: usize, longest: usize) -> bool {
    length > longest && !PlantedBug::LongFrameIsDelivered.is()
}

/// Returns the first chunks of a frame in too many pieces.
#[inline(always)]
pub(super) fn drop_overlong<C: Chunk>(frame: Pieces<C>, returning: &mut Vec<C>) {
    if !PlantedBug::OverlongFrameLeaks.is() {
        frame.into_list(returning);
    }
}

/// Returns the chunks of a frame of the burst.
#[inline(always)]
pub(super) fn release<C: Chunk>(mut frame: Pieces<C>, returning: &mut Vec<C>) {
    if PlantedBug::ReceivedChunkLeaks.is() && frame.b.is_none() {
        return;
    }
    if PlantedBug::SecondChunkLeaks.is() {
        frame.b = None;
    }
    if PlantedBug::FirstChunkTwice.is() && frame.b.is_some() {
        frame.b = alias(&frame.a);
    }
    frame.into_list(returning);
}

/// Returns the number of chunks to put on the fill ring. `share`: those that the kernel lacks; `all`: those that are
/// here; `kernel`: those that it has.
#[inline(always)]
pub(super) fn refill(share: usize, all: usize, kernel: usize) -> usize {
    match () {
        () if PlantedBug::RefillBeyondShare.is() => all,
        () if PlantedBug::RefillWhenEmpty.is() && kernel > 0 => 0,
        () => share.min(all),
    }
}

/// Returns the number of chunks that the kernel has got. `count`: those meant for the fill ring; `taken`: those that it
/// took.
#[inline(always)]
pub(super) fn filled(count: usize, taken: usize) -> usize {
    if PlantedBug::RefusedFillIsCounted.is() { count } else { taken }
}
