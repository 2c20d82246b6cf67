//! The planted bugs, by which the campaign shows that it finds such bugs.
//!
//! Outside of tests, `PlantedBug::is` is a constant `false`.

/// A bug that tests can plant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::chunks) enum PlantedBug {
    // Of a sender.
    /// A frame one byte longer than a chunk gets one chunk, which cuts it.
    LengthLimitIsOffByOne,
    /// A slot's number is not free again after its commit or cancel.
    SlotStaysReserved,
    /// The chunks of a cancelled frame are not free again.
    CancelledChunksLeak,
    /// A frame in one chunk continues in the next descriptor, if the frame before in that chunk did.
    StaleContinuation,
    /// Of a frame lost on a link that is down, only the last chunk is free again.
    LostFirstChunksLeak,
    /// The last descriptor of a flush is put on the tx ring by the next flush, without the rest of its frame.
    FrameIsSplit,
    /// Frames that the full tx ring has refused count as the kernel's.
    RefusedBatchIsCounted,
    /// A chunk on the tx ring is free again before its completion.
    FreeBeforeCompletion,
    /// A kick that sent a part of the tx ring counts as one that sent the whole.
    PartialKickIsWhole,
    /// A driver that waits to be woken to send is not.
    SendWakeupIsIgnored,
    /// A completed chunk is free twice.
    CompletedTwice,
    /// A completion is taken for the one before it.
    StaleCompletion,
    // Of a receiver.
    /// A driver that waits to be woken for chunks is not.
    ReceiveWakeupIsIgnored,
    /// A frame longer than the link carries is delivered.
    LongFrameIsDelivered,
    /// Of a frame in too many pieces, the first two chunks do not return.
    OverlongFrameLeaks,
    /// The chunk of a released frame in one piece does not return.
    ReceivedChunkLeaks,
    /// Of a released frame in two pieces, only the first chunk returns.
    SecondChunkLeaks,
    /// Of a released frame in two pieces, the first chunk returns twice, the second one does not.
    FirstChunkTwice,
    /// The fill ring gets all chunks, beyond the kernel's share.
    RefillBeyondShare,
    /// The fill ring gets chunks only when the kernel has none.
    RefillWhenEmpty,
    /// Chunks that the full fill ring has refused count as the kernel's.
    RefusedFillIsCounted,
}

#[cfg(test)]
mod switch {
    use super::PlantedBug;
    use std::cell::Cell;

    thread_local! {
        static PLANTED: Cell<Option<PlantedBug>> = const { Cell::new(None) };
    }

    impl PlantedBug {
        pub(in crate::chunks) const ALL: [PlantedBug; 21] = [
            PlantedBug::LengthLimitIsOffByOne,
            PlantedBug::SlotStaysReserved,
            PlantedBug::CancelledChunksLeak,
            PlantedBug::StaleContinuation,
            PlantedBug::LostFirstChunksLeak,
            PlantedBug::FrameIsSplit,
            PlantedBug::RefusedBatchIsCounted,
            PlantedBug::FreeBeforeCompletion,
            PlantedBug::PartialKickIsWhole,
            PlantedBug::SendWakeupIsIgnored,
            PlantedBug::CompletedTwice,
            PlantedBug::StaleCompletion,
            PlantedBug::ReceiveWakeupIsIgnored,
            PlantedBug::LongFrameIsDelivered,
            PlantedBug::OverlongFrameLeaks,
            PlantedBug::ReceivedChunkLeaks,
            PlantedBug::SecondChunkLeaks,
            PlantedBug::FirstChunkTwice,
            PlantedBug::RefillBeyondShare,
            PlantedBug::RefillWhenEmpty,
            PlantedBug::RefusedFillIsCounted,
        ];

        /// Plants a bug in all senders and receivers of this thread; `None` removes it.
        pub(in crate::chunks) fn plant(bug: Option<PlantedBug>) {
            PLANTED.set(bug);
        }

        /// True if this bug is planted.
        pub(in crate::chunks::door) fn is(self) -> bool {
            PLANTED.get() == Some(self)
        }
    }
}

#[cfg(not(test))]
impl PlantedBug {
    /// False: no bug is built in.
    #[inline(always)]
    pub(super) const fn is(self) -> bool {
        false
    }
}
