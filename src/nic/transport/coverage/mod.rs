//! Coverage of simulations: packets by QP state and PSN, sources of receives, timer transitions, and completion events.
//!
//! Recorded per thread, with the feature `planted-bugs` only. Without it, recording compiles to nothing.

mod timers;

pub use timers::{Timer, TimerCause, TimerTransition};

use crate::verbs::QpState;
use roxie_wire::{Opcode, Service};

/// Place of a packet in the sequence of its QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// A request with the expected PSN, or a response to the oldest incomplete request.
    Expected,
    /// A duplicate request or response.
    Duplicate,
    /// A request ahead of the expected PSN.
    Ahead,
    /// A response to a later request than the oldest incomplete one.
    Later,
    /// A response to PSNs that were never sent.
    Ghost,
    /// A packet for a QP without a PSN sequence, because of its state or its service.
    Unordered,
}

impl Place {
    /// All values.
    pub const ALL: [Place; 6] =
        [Place::Expected, Place::Duplicate, Place::Ahead, Place::Later, Place::Ghost, Place::Unordered];
}

/// A received packet, as found on arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// State of the QP.
    pub state: QpState,
    /// Opcode of the packet.
    pub opcode: Opcode,
    /// Place of its PSN, relative to the expected one.
    pub place: Place,
}

/// Source of a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// The QP's own receive queue.
    Own,
    /// The shared receive queue of the QP.
    Shared,
    /// The shared receive queue that the request names (XRC).
    Named,
}

impl Source {
    /// All values.
    pub const ALL: [Source; 3] = [Source::Own, Source::Shared, Source::Named];
}

/// Result of taking a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReceiveResult {
    /// A receive was taken.
    Receive,
    /// No receive was posted.
    Nothing,
    /// The named queue does not exist.
    NoQueue,
    /// The receive cannot hold the message.
    Unfit,
}

impl ReceiveResult {
    /// All values.
    pub const ALL: [ReceiveResult; 4] =
        [ReceiveResult::Receive, ReceiveResult::Nothing, ReceiveResult::NoQueue, ReceiveResult::Unfit];
}

/// A received message that takes a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// Service of its QP.
    pub service: Service,
    /// Source of the receive.
    pub source: Source,
    /// Result.
    pub result: ReceiveResult,
}

/// Effect of a completion, or of time, on the event of a completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EventEffect {
    /// No event was requested.
    Unasked,
    /// The event was raised immediately.
    AtOnce,
    /// The event is held back from now on (moderation).
    HeldBack,
    /// The held event covers one more completion.
    Joined,
    /// The held event was raised: the count was reached.
    ByCount,
    /// The held event was raised: a completion had an error status.
    ByFailure,
    /// The held event was raised: the period has expired.
    ByTime,
    /// The held event was raised: the moderation was changed.
    ByCommand,
}

impl EventEffect {
    /// All values.
    pub const ALL: [EventEffect; 8] = [
        EventEffect::Unasked,
        EventEffect::AtOnce,
        EventEffect::HeldBack,
        EventEffect::Joined,
        EventEffect::ByCount,
        EventEffect::ByFailure,
        EventEffect::ByTime,
        EventEffect::ByCommand,
    ];

    /// True if the event is raised.
    pub(crate) fn raises(self) -> bool {
        match self {
            EventEffect::Unasked | EventEffect::HeldBack | EventEffect::Joined => false,
            EventEffect::AtOnce
            | EventEffect::ByCount
            | EventEffect::ByFailure
            | EventEffect::ByTime
            | EventEffect::ByCommand => true,
        }
    }
}

const SERVICES: usize = 8;
const RECEIPTS: usize = SERVICES * 3 * 4;
const NOTICES: usize = 8;
const STATES: usize = 7;
const PLACES: usize = 6;
const OPCODES: usize = 256;
const TIMERS: usize = Timer::ALL.len();
const CAUSES: usize = TimerCause::ALL.len();

/// Number of occurrences of each case.
#[derive(Clone, Debug)]
pub struct Coverage {
    arrivals: Vec<u64>,
    moves: Vec<u64>,
    receipts: Vec<u64>,
    notices: Vec<u64>,
}

impl Default for Coverage {
    fn default() -> Coverage {
        Coverage {
            arrivals: vec![0; STATES * PLACES * OPCODES],
            moves: vec![0; TIMERS * CAUSES * TIMERS * 2],
            receipts: vec![0; RECEIPTS],
            notices: vec![0; NOTICES],
        }
    }
}

impl Coverage {
    fn arrival_index(arrival: Arrival) -> usize {
        let place = arrival.place as usize;
        (arrival.state as usize * PLACES + place) * OPCODES + usize::from(arrival.opcode.0)
    }

    fn move_index(step: TimerTransition) -> usize {
        let cause = step.from as usize * CAUSES + step.by as usize;
        (cause * TIMERS + step.to as usize) * 2 + usize::from(step.renewed)
    }

    fn receipt_index(receipt: Receipt) -> usize {
        (receipt.service as usize % SERVICES * 3 + receipt.source as usize) * 4 + receipt.result as usize
    }

    /// Returns the number of received messages of this kind.
    pub fn receipts(&self, receipt: Receipt) -> u64 {
        self.receipts[Coverage::receipt_index(receipt)]
    }

    /// Returns the number of effects of this kind on completion events.
    pub fn notices(&self, notice: EventEffect) -> u64 {
        self.notices[notice as usize]
    }

    /// Returns the number of received packets of this kind.
    pub fn arrivals(&self, arrival: Arrival) -> u64 {
        self.arrivals[Coverage::arrival_index(arrival)]
    }

    /// Returns the number of timer transitions of this kind.
    pub fn moves(&self, step: TimerTransition) -> u64 {
        self.moves[Coverage::move_index(step)]
    }

    /// Adds the numbers of `other`.
    pub fn merge(&mut self, other: &Coverage) {
        let all = [
            (&mut self.arrivals, &other.arrivals),
            (&mut self.moves, &other.moves),
            (&mut self.receipts, &other.receipts),
            (&mut self.notices, &other.notices),
        ];
        for (to, from) in all {
            to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
        }
    }
}

#[cfg(feature = "planted-bugs")]
mod record {
    use super::{
        Arrival, Coverage, EventEffect, Place, Receipt, ReceiveResult, Source, Timer, TimerCause,
        TimerTransition,
    };
    use crate::transport::{Check, Qp, Verdict};
    use crate::verbs::{QpState, QpType};
    use roxie_base::time::Nanos;
    use roxie_wire::{FastPacket, Operation, Packet, Position};
    use std::cell::RefCell;

    thread_local! {
        static RECORD: RefCell<Coverage> = RefCell::default();
    }

    /// Records one case. A thread may drive a NIC once more while it exits, when its record is gone already.
    fn note(what: impl FnOnce(&mut Coverage)) {
        let _ = RECORD.try_with(|record| what(&mut record.borrow_mut()));
    }

    impl Coverage {
        /// Returns the record of this thread and clears it.
        pub fn take() -> Coverage {
            RECORD.take()
        }
    }

    /// Timer state and deadline of a QP before an input.
    #[derive(Clone, Copy, Debug)]
    pub(crate) struct Watch(Timer, Nanos);

    impl Watch {
        pub(crate) fn timer(qp: &Qp) -> Watch {
            let r = qp.requester();
            let timer = match qp.deadline() {
                _ if r.is_in_rnr_wait() => Timer::Rnr,
                Nanos::MAX => Timer::Idle,
                _ if r.tests_peer() => Timer::Test,
                _ if r.is_quiet() => Timer::Quiet,
                _ => Timer::Ack,
            };
            Watch(timer, qp.deadline())
        }

        /// Records a received packet.
        pub(crate) fn arrival(qp: &Qp, packet: &Packet) -> Watch {
            if let Some(arrival) = arrival_of(qp, packet) {
                note(|record| record.arrivals[Coverage::arrival_index(arrival)] += 1);
            }
            Watch::timer(qp)
        }

        /// Records the verdict of a received packet.
        pub(crate) fn judged(qp: &Qp, packet: &Packet, verdict: &Verdict) {
            let (Some(result), Some(service)) = (result_of(packet, verdict), qp.service) else { return };
            let source = match (qp.qp_type, qp.shares_receives) {
                (QpType::XrcRecv, _) => Source::Named,
                (_, true) => Source::Shared,
                (_, false) => Source::Own,
            };
            let receipt = Receipt { service, source, result };
            note(|record| record.receipts[Coverage::receipt_index(receipt)] += 1);
        }

        /// Records effects on completion events.
        pub(crate) fn notices(notice: EventEffect, times: usize) {
            note(|record| record.notices[notice as usize] += times as u64);
        }

        pub(crate) fn moved(self, qp: &Qp, by: TimerCause) {
            let Watch(to, deadline) = Watch::timer(qp);
            let by = if by == TimerCause::Sent && qp.pacing().is_on() { TimerCause::SentPaced } else { by };
            let step = TimerTransition { from: self.0, by, to, renewed: self.0 == to && self.1 != deadline };
            note(|record| record.moves[Coverage::move_index(step)] += 1);
        }
    }

    /// A QP before a packet that the fast path may take. Nothing is recorded if it does not.
    #[derive(Debug)]
    pub(crate) struct FastWatch {
        arrival: Option<Arrival>,
        timer: Option<Watch>,
    }

    impl FastWatch {
        /// Observes the QP before it may receive a packet.
        pub(crate) fn receives<'q>(
            find: impl FnOnce() -> Option<&'q Qp>,
            packet: &FastPacket<'_>,
        ) -> FastWatch {
            let qp = find();
            let arrival = qp.and_then(|qp| arrival_of(qp, &packet.read()));
            FastWatch { arrival, timer: qp.map(Watch::timer) }
        }

        /// Records the packet, which the QP has received.
        pub(crate) fn received<'q>(
            self,
            find: impl FnOnce() -> Option<&'q Qp>,
            packet: &FastPacket<'_>,
            verdict: impl FnOnce() -> Verdict,
        ) {
            let Some((qp, watch)) = find().zip(self.timer) else { return };
            if let Some(arrival) = self.arrival {
                note(|record| record.arrivals[Coverage::arrival_index(arrival)] += 1);
            }
            watch.moved(qp, TimerCause::Packet);
            Watch::judged(qp, &packet.read(), &verdict());
        }

        /// Observes the QP before it may send a packet.
        pub(crate) fn sends<'q>(find: impl FnOnce() -> Option<&'q Qp>) -> FastWatch {
            FastWatch { arrival: None, timer: find().map(Watch::timer) }
        }

        /// Records the packet, if the QP has sent one.
        pub(crate) fn sent<'q>(self, find: impl FnOnce() -> Option<&'q Qp>, is_sent: impl FnOnce() -> bool) {
            if let Some((qp, watch)) = find().zip(self.timer).filter(|_| is_sent()) {
                watch.moved(qp, TimerCause::Sent);
            }
        }
    }

    /// Returns what a packet meets. `None`: its service is not the QP's.
    fn arrival_of(qp: &Qp, packet: &Packet) -> Option<Arrival> {
        let place = place_of(qp, packet)?;
        Some(Arrival { state: qp.state(), opcode: packet.bth.opcode, place })
    }

    /// Returns the result for a packet that takes a receive. `None`: it takes none, or failed an earlier check.
    fn result_of(packet: &Packet, verdict: &Verdict) -> Option<ReceiveResult> {
        let takes = match (packet.info().operation, packet.info().position) {
            (Operation::Send, Position::First | Position::Only) => true,
            (Operation::Write, _) => packet.imm().is_some(),
            _ => false,
        };
        match verdict {
            _ if !takes => None,
            Verdict::Executed => Some(ReceiveResult::Receive),
            Verdict::NotReady | Verdict::NoReceive => Some(ReceiveResult::Nothing),
            Verdict::Refused(Check::NoSuchQueue) => Some(ReceiveResult::NoQueue),
            Verdict::Refused(Check::ReceiveLength | Check::ReceiveProtection | Check::ReceiveNoPage)
            | Verdict::ReceiveFailed(_) => Some(ReceiveResult::Unfit),
            _ => None,
        }
    }

    /// Returns the packet's place in the sequence. `None`: its service is not the QP's.
    fn place_of(qp: &Qp, packet: &Packet) -> Option<Place> {
        if Some(packet.info().service) != qp.service {
            return None;
        }
        let sequenced = !matches!(qp.state(), QpState::Reset | QpState::Init | QpState::Err);
        if !sequenced || matches!(qp.qp_type, QpType::Ud | QpType::Gsi) {
            return Some(Place::Unordered);
        }
        let psn = packet.bth.psn;
        if !packet.info().is_response() {
            let ahead = psn.distance_from(qp.psns().1);
            return Some(match ahead {
                0 => Place::Expected,
                1.. => Place::Ahead,
                _ => Place::Duplicate,
            });
        }
        let window = qp.requester().window();
        let (una, sent_end, queue) = (window.una(), window.sent_end(), window.queue());
        if !psn.is_before(sent_end) {
            return Some(Place::Ghost);
        }
        if psn.is_before(una) {
            return Some(Place::Duplicate);
        }
        let answers_oldest = !queue.is_empty() && psn.is_before(queue.at(queue.tail()).end_psn());
        Some(if answers_oldest { Place::Expected } else { Place::Later })
    }
}

#[cfg(not(feature = "planted-bugs"))]
mod record {
    use super::{EventEffect, TimerCause};
    use crate::transport::{Qp, Verdict};
    use roxie_wire::{FastPacket, Packet};

    #[derive(Clone, Copy, Debug)]
    pub(crate) struct Watch;

    impl Watch {
        #[inline(always)]
        pub(crate) fn timer(_: &Qp) -> Watch {
            Watch
        }

        #[inline(always)]
        pub(crate) fn arrival(_: &Qp, _: &Packet) -> Watch {
            Watch
        }

        #[inline(always)]
        pub(crate) fn judged(_: &Qp, _: &Packet, _: &Verdict) {}

        #[inline(always)]
        pub(crate) fn notices(_: EventEffect, _: usize) {}

        #[inline(always)]
        pub(crate) fn moved(self, _: &Qp, _: TimerCause) {}
    }

    #[derive(Debug)]
    pub(crate) struct FastWatch;

    impl FastWatch {
        #[inline(always)]
        pub(crate) fn receives<'q>(_: impl FnOnce() -> Option<&'q Qp>, _: &FastPacket<'_>) -> FastWatch {
            FastWatch
        }

        #[inline(always)]
        pub(crate) fn received<'q>(
            self,
            _: impl FnOnce() -> Option<&'q Qp>,
            _: &FastPacket<'_>,
            _: impl FnOnce() -> Verdict,
        ) {
        }

        #[inline(always)]
        pub(crate) fn sends<'q>(_: impl FnOnce() -> Option<&'q Qp>) -> FastWatch {
            FastWatch
        }

        #[inline(always)]
        pub(crate) fn sent<'q>(self, _: impl FnOnce() -> Option<&'q Qp>, _: impl FnOnce() -> bool) {}
    }
}

pub(crate) use record::{FastWatch, Watch};
