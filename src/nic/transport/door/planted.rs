//! The planted bugs, by which the test harness shows that it finds such bugs.
//!
//! Without the feature `planted-bugs` (the default), `PlantedBug::is` is a constant `false`.

/// A bug that tests can plant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlantedBug {
    /// A duplicate SEND or WRITE is executed again.
    NoDuplicateCheck,
    /// Acknowledgements overtake READ responses.
    AckBeforeReadResponse,
    /// PSNs are compared without wrap-around.
    PsnCompareWithoutWrap,
    /// A duplicate atomic is executed again.
    AtomicExecutedAgain,
    /// An acknowledgement for a later request completes a pending READ.
    AckCompletesRead,
    /// The last packet of a message does not ask for an acknowledgement after a retransmission.
    NoAckRequestOnRetransmission,
    /// UC continues a message after a lost packet.
    UcIgnoresGaps,
    /// Datagrams with a wrong Q_Key are accepted.
    UdIgnoresQkey,
    /// A QP in error flushes the receives of its shared receive queue.
    FlushesSharedReceives,
    /// A duplicate is acknowledged with the PSN of a later READ.
    AcknowledgesRead,
    /// A duplicate READ does not restart the response in progress.
    AnswerGoesOn,
    /// Replies to duplicates are queued in order of arrival, not of PSNs.
    AnswersInOrderOfRequests,
    /// After an RNR NAK, packets ahead never cause a sequence NAK, even after the wait.
    SilentAfterRnr,
    /// The RNR retry counter is reset when everything is acknowledged, not with each progress.
    RnrTriesAreUsedUp,
    /// SQ_DRAINED is raised although a request is in an RNR wait.
    DrainedWhileItWaits,
    /// Retransmitted packets lack the solicited event bit.
    SolicitedOnlyOnce,
    /// A QP with work left at the end of its turn gets the next turn as well.
    UnfinishedGoesFirst,
    /// A datagram longer than the receive moves the QP to the error state.
    LongDatagramEnds,
    /// Packets from any source address are accepted.
    AnySource,
    /// Only the first overtaking response of a connection is taken for an implied NAK.
    GoesBackOnce,
    /// Held-back data is not released when the rate control is removed.
    HeldForEver,
    /// Every marked packet causes a CNP; the minimum interval is ignored.
    IntervalIgnored,
    /// A CNP carries the QPN of its sender as destination.
    NotifiesItself,
    /// A marked packet that is executed causes no CNP.
    NotifiesNobody,
    /// A marked packet from any source causes a CNP to the peer.
    NotifiesOfStrangers,
    /// ACKs are paced like data.
    AcknowledgementsArePaced,
    /// READ responses are not paced.
    ResponsesAreNotPaced,
    /// Credit for unused time is not bounded.
    BurstsWithoutBound,
    /// ACKs are sent as ECN-capable.
    AcknowledgementsAreCapable,
    /// A pause does not end by time.
    PausedForEver,
    /// A client of a NIC may name QPs of other clients.
    NamesOthersQps,
    /// A NIC still reads the doorbells of a disconnected client.
    HearsTheGone,
    /// Selective repeat: packets that come early are passed without a completion.
    EarlyPacketsAreSilent,
    /// Selective repeat: a packet behind a wide gap is taken for one of the SEND in progress.
    WideGapsAreIgnored,
    /// A duplicate atomic is answered with the result of the newest READ or atomic.
    NewestResultAnswers,
    /// The rest of a READ that is requested again has the bytes of the READ's beginning.
    RestOfReadStartsOver,
    /// RNR timer code 0, the longest wait, is no wait at all.
    RnrCodeZeroIsNoWait,
    /// The PSN of an acknowledgement stays 0 where it is to wrap to 0xffffff.
    AckPsnStopsAtZero,
    /// The IPv4 header of a datagram begins the 40 bytes before its payload, and does not end them.
    Ipv4HeaderComesFirst,
    /// The pad of an RC WRITE is part of its payload: written behind it, if the key opens memory there.
    PadIsWritten,
    /// A retransmission after a sequence NAK starts no timer.
    NoTimerAfterNak,
    /// A type 2 window is open to all QPs of its protection domain.
    WindowOpensToAllQps,
    /// The passive side of a connection takes the peer's two READ depths for each other.
    DepthsAreSwapped,
    /// A marked READ response causes no CNP.
    MarkedResponsesAreSilent,
    /// A probe has the PSN of the oldest packet that is not acknowledged, and is executed in its place if it was lost.
    ProbeIsExecuted,
    /// A probe may have the PSN of a READ or an atomic, and the packet behind one does not ask for an acknowledgement.
    ProbesReads,
    /// No timer is started for a retransmission that became needless before it was sent.
    NoTimerAfterRepeat,
    /// No bug: disables the fast path (`fast_path`).
    LongWay,
}

#[cfg(feature = "planted-bugs")]
mod switch {
    use super::PlantedBug;
    use std::cell::Cell;
    use std::sync::OnceLock;

    /// Environment variable that plants a bug in a whole process, by its name.
    const VARIABLE: &str = "ROXIE_PLANTED_BUG";

    thread_local! {
        static PLANTED: Cell<Option<PlantedBug>> = const { Cell::new(None) };
    }

    /// Returns the bug that this thread drives QPs with: its own, or the process's.
    fn planted() -> Option<PlantedBug> {
        static OF_THE_PROCESS: OnceLock<Option<PlantedBug>> = OnceLock::new();
        PLANTED.get().or_else(|| {
            *OF_THE_PROCESS.get_or_init(|| {
                let name = std::env::var(VARIABLE).ok()?;
                PlantedBug::ALL.into_iter().find(|bug| format!("{bug:?}") == name)
            })
        })
    }

    impl PlantedBug {
        /// Bugs of the transport, which a peer or an application of the NIC can see.
        pub const ALL: [PlantedBug; 45] = [
            PlantedBug::NoDuplicateCheck,
            PlantedBug::AckBeforeReadResponse,
            PlantedBug::PsnCompareWithoutWrap,
            PlantedBug::AtomicExecutedAgain,
            PlantedBug::AckCompletesRead,
            PlantedBug::NoAckRequestOnRetransmission,
            PlantedBug::UcIgnoresGaps,
            PlantedBug::UdIgnoresQkey,
            PlantedBug::FlushesSharedReceives,
            PlantedBug::AcknowledgesRead,
            PlantedBug::AnswerGoesOn,
            PlantedBug::AnswersInOrderOfRequests,
            PlantedBug::SilentAfterRnr,
            PlantedBug::RnrTriesAreUsedUp,
            PlantedBug::DrainedWhileItWaits,
            PlantedBug::SolicitedOnlyOnce,
            PlantedBug::UnfinishedGoesFirst,
            PlantedBug::LongDatagramEnds,
            PlantedBug::AnySource,
            PlantedBug::GoesBackOnce,
            PlantedBug::HeldForEver,
            PlantedBug::IntervalIgnored,
            PlantedBug::NotifiesItself,
            PlantedBug::NotifiesNobody,
            PlantedBug::NotifiesOfStrangers,
            PlantedBug::AcknowledgementsArePaced,
            PlantedBug::ResponsesAreNotPaced,
            PlantedBug::BurstsWithoutBound,
            PlantedBug::AcknowledgementsAreCapable,
            PlantedBug::PausedForEver,
            PlantedBug::EarlyPacketsAreSilent,
            PlantedBug::WideGapsAreIgnored,
            PlantedBug::NewestResultAnswers,
            PlantedBug::RestOfReadStartsOver,
            PlantedBug::RnrCodeZeroIsNoWait,
            PlantedBug::AckPsnStopsAtZero,
            PlantedBug::Ipv4HeaderComesFirst,
            PlantedBug::PadIsWritten,
            PlantedBug::NoTimerAfterNak,
            PlantedBug::WindowOpensToAllQps,
            PlantedBug::DepthsAreSwapped,
            PlantedBug::MarkedResponsesAreSilent,
            PlantedBug::ProbeIsExecuted,
            PlantedBug::ProbesReads,
            PlantedBug::NoTimerAfterRepeat,
        ];

        /// Plants a bug in all QPs that this thread drives; `None` removes it.
        pub fn plant(bug: Option<PlantedBug>) {
            PLANTED.set(bug);
        }

        /// True if this bug is planted.
        pub(in crate::transport::door) fn is(self) -> bool {
            planted() == Some(self)
        }

        /// True if a bug is planted. Bugs are implemented in the slow path.
        pub(in crate::transport::door) fn is_any() -> bool {
            planted().is_some()
        }
    }
}

#[cfg(not(feature = "planted-bugs"))]
impl PlantedBug {
    /// False: no bug is built in.
    #[inline(always)]
    pub(in crate::transport::door) const fn is(self) -> bool {
        false
    }

    #[inline(always)]
    pub(in crate::transport::door) const fn is_any() -> bool {
        false
    }
}
