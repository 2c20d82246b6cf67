//! Bugs on purpose, so that the test harness can show that it would find them.
//!
//! Without the feature `planted-bugs` (the default) [`PlantedBug::is`] is a constant `false`.

/// A bug that can be planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlantedBug {
    /// A duplicate SEND or WRITE is executed again.
    NoDuplicateCheck,
    /// Acknowledgements overtake READ responses.
    AckBeforeReadResponse,
    /// PSNs are compared as plain numbers.
    PsnCompareWithoutWrap,
    /// A lost ATOMIC acknowledgement makes the atomic run again.
    AtomicExecutedAgain,
    /// An acknowledgement for a later request completes a pending READ.
    AckCompletesRead,
    /// The last packet of a message does not ask for an acknowledgement after a retransmission.
    NoAckRequestOnRetransmission,
    /// An unreliable connection goes on with a message that lost a packet.
    UcIgnoresGaps,
    /// Datagrams are taken whatever Q_Key they present.
    UdIgnoresQkey,
    /// A QP that fails flushes what waits in the shared receive queue.
    FlushesSharedReceives,
    /// A duplicate is acknowledged with the PSN of a READ behind it.
    AcknowledgesRead,
    /// A READ that is asked again while its answer leaves goes on where it is.
    AnswerGoesOn,
    /// Answers to duplicates stand in the order in which they were asked.
    AnswersInOrderOfRequests,
    /// After an RNR NAK nothing that is ahead is asked for, however late it comes.
    SilentAfterRnr,
    /// Tries after RNR NAKs are given back when all is acknowledged, and not with each progress.
    RnrTriesAreUsedUp,
    /// A queue is drained while a request waits for its receiver.
    DrainedWhileItWaits,
    /// What is sent again is not solicited.
    SolicitedOnlyOnce,
    /// A queue pair whose turn is over gets the next one as well.
    UnfinishedGoesFirst,
    /// A datagram that is too long ends its QP.
    LongDatagramEnds,
    /// Packets are taken whatever address they come from.
    AnySource,
    /// Of the answers that overtake others only the first of a connection makes the requester go back.
    GoesBackOnce,
    /// Data that is held back stays so when nobody decides its rate any more.
    HeldForEver,
    /// Each marked packet is answered with a notification, however short ago the last one left.
    IntervalIgnored,
    /// A notification goes to the number that its sender has.
    NotifiesItself,
    /// A marked packet that is executed is answered with nothing but what it asked for.
    NotifiesNobody,
    /// Whoever sends a marked packet is taken for the peer.
    NotifiesOfStrangers,
    /// Acknowledgements wait for their time as data does.
    AcknowledgementsArePaced,
    /// The answers of READs leave as fast as they can.
    ResponsesAreNotPaced,
    /// Time in which a QP was not served is credit without a bound.
    BurstsWithoutBound,
    /// Acknowledgements are ECN-capable.
    AcknowledgementsAreCapable,
    /// A priority that was paused is not resumed by time.
    PausedForEver,
    /// A client of a NIC may name queue pairs of others.
    NamesOthersQps,
    /// A NIC hears the doorbells of a client that has gone.
    HearsTheGone,
    /// No bug: nothing goes the way of `usual`, and all of it the longer one.
    LongWay,
}

#[cfg(feature = "planted-bugs")]
mod switch {
    use super::PlantedBug;
    use std::cell::Cell;

    thread_local! {
        static PLANTED: Cell<Option<PlantedBug>> = const { Cell::new(None) };
    }

    impl PlantedBug {
        /// Plants this bug in all QPs that this thread drives, or with `None` pulls it out.
        pub fn plant(bug: Option<PlantedBug>) {
            PLANTED.set(bug);
        }

        pub(crate) fn is(self) -> bool {
            PLANTED.get() == Some(self)
        }

        /// True if there is any: they are in the longer ways.
        pub(crate) fn is_any() -> bool {
            PLANTED.get().is_some()
        }
    }
}

#[cfg(not(feature = "planted-bugs"))]
impl PlantedBug {
    #[inline(always)]
    pub(crate) const fn is(self) -> bool {
        false
    }

    #[inline(always)]
    pub(crate) const fn is_any() -> bool {
        false
    }
}
