//! What a simulation has reached: which packet found a QP in which state and where in its sequence, where it found its receive,
//! what the timers did, and what became of the events of completion queues.
//!
//! Recorded with the feature `planted-bugs`, for the thread that turns the NIC. Without it all of this is empty.

use crate::verbs::QpState;
use crate::wire::{Opcode, Service};

/// Where a packet falls in the sequence of its QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// A request in its turn, or an answer to the oldest request that is not done.
    Expected,
    /// A request or an answer that came before.
    Duplicate,
    /// A request ahead of its turn.
    Ahead,
    /// An answer to a request behind the oldest that is not done.
    Later,
    /// An answer to what was never sent.
    Ghost,
    /// The state takes no packets, or the service knows no sequence.
    Unordered,
}

impl Place {
    /// All of them.
    pub const ALL: [Place; 6] =
        [Place::Expected, Place::Duplicate, Place::Ahead, Place::Later, Place::Ghost, Place::Unordered];
}

/// What a QP waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Timer {
    /// Nothing.
    Idle,
    /// An acknowledgement, until the packets are sent again.
    Ack,
    /// The end of a pause that the receiver asked for.
    Rnr,
}

impl Timer {
    /// All of them.
    pub const ALL: [Timer; 3] = [Timer::Idle, Timer::Ack, Timer::Rnr];
}

/// What moves a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mover {
    /// A packet that left.
    Sent,
    /// The same of a QP whose rate somebody decides: its packets may be further apart than its timer is long.
    SentPaced,
    /// A packet that came.
    Packet,
    /// Time that passed.
    Time,
    /// A command of the application's.
    Command,
}

impl Mover {
    /// All of them.
    pub const ALL: [Mover; 5] = [Mover::Sent, Mover::SentPaced, Mover::Packet, Mover::Time, Mover::Command];
}

/// A move of a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Move {
    /// What the QP waited for before.
    pub from: Timer,
    /// What happened that moved it.
    pub by: Mover,
    /// What it waits for after.
    pub to: Timer,
    /// It waits for the same, but for another time.
    pub renewed: bool,
}

/// A packet that came, as it was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The state of the QP.
    pub state: QpState,
    /// The opcode of the packet that came.
    pub opcode: Opcode,
    /// Where its PSN fell, as seen from what was expected.
    pub place: Place,
}

/// Where receives are taken from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// The QP's own queue.
    Own,
    /// The shared queue that the QP was made for.
    Shared,
    /// The shared queue that the request names.
    Named,
}

impl Source {
    /// All of them.
    pub const ALL: [Source; 3] = [Source::Own, Source::Shared, Source::Named];
}

/// What a message that takes a receive found there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Found {
    /// A receive.
    Receive,
    /// No receive.
    Nothing,
    /// No such queue.
    NoQueue,
    /// A receive that cannot hold it.
    Unfit,
}

impl Found {
    /// All of them.
    pub const ALL: [Found; 4] = [Found::Receive, Found::Nothing, Found::NoQueue, Found::Unfit];
}

/// A message that takes a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// The service of its QP.
    pub service: Service,
    /// Where its receive is to come from.
    pub source: Source,
    /// What it found at that source.
    pub found: Found,
}

/// What a completion, or the time, did to the event of a completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Notice {
    /// Nobody asked for one.
    Unasked,
    /// It left at once.
    AtOnce,
    /// It is held back from now on.
    HeldBack,
    /// It stands for one completion more.
    Joined,
    /// It left: it stood for enough completions.
    ByCount,
    /// It left: a completion was a failure.
    ByFailure,
    /// It left: it had been held back long enough.
    ByTime,
    /// It left: the rule was changed.
    ByCommand,
}

impl Notice {
    /// All of them.
    pub const ALL: [Notice; 8] = [
        Notice::Unasked,
        Notice::AtOnce,
        Notice::HeldBack,
        Notice::Joined,
        Notice::ByCount,
        Notice::ByFailure,
        Notice::ByTime,
        Notice::ByCommand,
    ];
}

const SERVICES: usize = 8;
const RECEIPTS: usize = SERVICES * 3 * 4;
const NOTICES: usize = 8;
const STATES: usize = 7;
const PLACES: usize = 6;
const OPCODES: usize = 256;
const MOVES: usize = 3 * 5 * 3 * 2;

/// How often what was reached.
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
            moves: vec![0; MOVES],
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

    fn move_index(step: Move) -> usize {
        ((step.from as usize * 5 + step.by as usize) * 3 + step.to as usize) * 2 + usize::from(step.renewed)
    }

    fn receipt_index(receipt: Receipt) -> usize {
        (receipt.service as usize % SERVICES * 3 + receipt.source as usize) * 4 + receipt.found as usize
    }

    /// How often a message found this where its receive was to come from.
    pub fn receipts(&self, receipt: Receipt) -> u64 {
        self.receipts[Coverage::receipt_index(receipt)]
    }

    /// How often this became of the event of a completion queue.
    pub fn notices(&self, notice: Notice) -> u64 {
        self.notices[notice as usize]
    }

    /// How often a packet was found so.
    pub fn arrivals(&self, arrival: Arrival) -> u64 {
        self.arrivals[Coverage::arrival_index(arrival)]
    }

    /// How often a timer moved so.
    pub fn moves(&self, step: Move) -> u64 {
        self.moves[Coverage::move_index(step)]
    }

    /// Adds what was recorded elsewhere.
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
    use super::{Arrival, Coverage, Found, Move, Mover, Notice, Place, Receipt, Source, Timer};
    use crate::time::Nanos;
    use crate::transport::{Check, Qp, Verdict};
    use crate::verbs::{QpState, QpType};
    use crate::wire::{Operation, Packet, Position, Usual};
    use std::cell::RefCell;

    thread_local! {
        static RECORD: RefCell<Coverage> = RefCell::default();
    }

    /// A thread that ends its process may turn a NIC once more, when what it recorded is gone.
    fn note(what: impl FnOnce(&mut Coverage)) {
        let _ = RECORD.try_with(|record| what(&mut record.borrow_mut()));
    }

    impl Coverage {
        /// Takes what this thread has recorded since it was taken last.
        pub fn take() -> Coverage {
            RECORD.take()
        }
    }

    /// How the timer of a QP stands before something happens to it.
    #[derive(Clone, Copy, Debug)]
    pub(crate) struct Watch(Timer, Nanos);

    impl Watch {
        pub(crate) fn timer(qp: &Qp) -> Watch {
            let r = &qp.requester;
            let timer = match (r.rnr_until, r.retransmit_at) {
                (Some(_), _) => Timer::Rnr,
                (None, Nanos::MAX) => Timer::Idle,
                _ => Timer::Ack,
            };
            Watch(timer, qp.deadline())
        }

        /// A packet came.
        pub(crate) fn arrival(qp: &Qp, packet: &Packet) -> Watch {
            if let Some(place) = place_of(qp, packet) {
                let arrival = Arrival { state: qp.state(), opcode: packet.bth.opcode, place };
                note(|record| record.arrivals[Coverage::arrival_index(arrival)] += 1);
            }
            Watch::timer(qp)
        }

        /// The same, on the shortest way.
        pub(crate) fn usual_arrival(qp: &Qp, packet: &Usual<'_>) -> Watch {
            Watch::arrival(qp, &packet.read())
        }

        /// What it came to there.
        pub(crate) fn usual_judged(qp: &Qp, packet: &Usual<'_>, verdict: &Verdict) {
            Watch::judged(qp, &packet.read(), verdict);
        }

        /// The packet came to this.
        pub(crate) fn judged(qp: &Qp, packet: &Packet, verdict: &Verdict) {
            let (Some(found), Some(service)) = (found(packet, verdict), qp.service) else { return };
            let source = match (qp.qp_type, qp.shares_receives) {
                (QpType::XrcRecv, _) => Source::Named,
                (_, true) => Source::Shared,
                (_, false) => Source::Own,
            };
            let receipt = Receipt { service, source, found };
            note(|record| record.receipts[Coverage::receipt_index(receipt)] += 1);
        }

        pub(crate) fn notice(notice: Notice) {
            note(|record| record.notices[notice as usize] += 1);
        }

        pub(crate) fn notices(notice: Notice, times: usize) {
            (0..times).for_each(|_| Watch::notice(notice));
        }

        pub(crate) fn moved(self, qp: &Qp, by: Mover) {
            let Watch(to, deadline) = Watch::timer(qp);
            let by = if by == Mover::Sent && qp.is_paced() { Mover::SentPaced } else { by };
            let step = Move { from: self.0, by, to, renewed: self.0 == to && self.1 != deadline };
            note(|record| record.moves[Coverage::move_index(step)] += 1);
        }
    }

    /// What a packet that takes a receive found; `None`: it takes none, or did not come so far.
    fn found(packet: &Packet, verdict: &Verdict) -> Option<Found> {
        let takes = match (packet.info().operation, packet.info().position) {
            (Operation::Send, Position::First | Position::Only) => true,
            (Operation::Write, _) => packet.imm().is_some(),
            _ => false,
        };
        match verdict {
            _ if !takes => None,
            Verdict::Executed => Some(Found::Receive),
            Verdict::NotReady | Verdict::NoReceive => Some(Found::Nothing),
            Verdict::Refused(Check::NoSuchQueue) => Some(Found::NoQueue),
            Verdict::Refused(Check::ReceiveLength | Check::ReceiveProtection | Check::ReceiveNoPage)
            | Verdict::ReceiveFailed(_) => Some(Found::Unfit),
            _ => None,
        }
    }

    /// Where a packet of the QP's service falls; `None`: it is not for this QP.
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
            let ahead = psn.distance_from(qp.responder.expected);
            return Some(match ahead {
                0 => Place::Expected,
                1.. => Place::Ahead,
                _ => Place::Duplicate,
            });
        }
        let r = &qp.requester;
        if !psn.is_before(r.sent_end) {
            return Some(Place::Ghost);
        }
        if psn.is_before(r.una) {
            return Some(Place::Duplicate);
        }
        let oldest = r.queue.at(r.queue.tail());
        let answers_oldest = !r.queue.is_empty() && psn.is_before(oldest.end_psn());
        Some(if answers_oldest { Place::Expected } else { Place::Later })
    }
}

#[cfg(not(feature = "planted-bugs"))]
mod record {
    use super::{Mover, Notice};
    use crate::transport::{Qp, Verdict};
    use crate::wire::{Packet, Usual};

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
        pub(crate) fn usual_arrival(_: &Qp, _: &Usual<'_>) -> Watch {
            Watch
        }

        #[inline(always)]
        pub(crate) fn usual_judged(_: &Qp, _: &Usual<'_>, _: &Verdict) {}

        #[inline(always)]
        pub(crate) fn judged(_: &Qp, _: &Packet, _: &Verdict) {}

        #[inline(always)]
        pub(crate) fn notice(_: Notice) {}

        #[inline(always)]
        pub(crate) fn notices(_: Notice, _: usize) {}

        #[inline(always)]
        pub(crate) fn moved(self, _: &Qp, _: Mover) {}
    }
}

pub(crate) use record::Watch;
