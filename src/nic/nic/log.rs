//! The log of a QP's exceptional events: state changes, dropped and rejected packets, retransmissions with their
//! reasons.
//!
//! A QP's log is bounded. A new QP has room for its changes of state, and gets the rest at the first event beyond
//! these. Repetitions are one record with a count, so that a flood of equal events does not evict what led to it.
//! Packets that are executed or acknowledge something are not logged.

use std::collections::VecDeque;
use std::fmt;

use crate::transport::Verdict;
use crate::verbs::QpState;
use roxie_base::time::Nanos;
use roxie_wire::{Opcode, Psn};

/// Maximum number of records in a QP's log: the newest.
pub const LOG_LENGTH: usize = 32;
/// Records of a QP that was connected and has had no exceptional event.
const CHANGES_OF_STATE: usize = 3;

/// An event in a QP's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum QpEvent {
    /// The state changed.
    State {
        /// The previous state.
        from: QpState,
        /// The new state.
        to: QpState,
    },
    /// A packet was received, with an exceptional outcome.
    Packet {
        /// The packet's opcode.
        opcode: Opcode,
        /// The packet's PSN.
        psn: Psn,
        /// The outcome.
        verdict: Verdict,
    },
    /// A frame of another protocol was received, with an exceptional outcome.
    Frame {
        /// Length of the frame in bytes, from the Ethernet header on.
        length: usize,
        /// The outcome.
        verdict: Verdict,
    },
    /// A `modify_qp` was refused. The caller has the reason.
    Refused {
        /// The state.
        from: QpState,
        /// The requested state, which may be the same.
        to: QpState,
    },
    /// The acknowledgement timeout expired.
    Timeout {
        /// The outcome.
        verdict: Verdict,
    },
}

/// A record of a QP's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpRecord {
    /// Time of the event, or of the first repetition.
    pub at: Nanos,
    /// The event.
    pub event: QpEvent,
    /// Number of repetitions that followed directly.
    pub repeated: u32,
}

impl fmt::Display for QpRecord {
    /// Example: `1.234 ms RC_SEND_ONLY psn 7: dropped: QP is in Err, and 3 more`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.at)?;
        match self.event {
            QpEvent::State { from, to } => write!(f, "{from:?} -> {to:?}")?,
            QpEvent::Packet { opcode, psn, verdict } => write!(f, "{opcode} psn {psn}: {verdict}")?,
            QpEvent::Frame { length, verdict } => write!(f, "a frame of {length} bytes: {verdict}")?,
            QpEvent::Refused { from, to } => write!(f, "modify_qp {from:?} -> {to:?} refused")?,
            QpEvent::Timeout { verdict } => write!(f, "no acknowledgement in time: {verdict}")?,
        }
        if self.repeated > 0 { write!(f, ", and {} more", self.repeated) } else { Ok(()) }
    }
}

/// The log of one QP.
#[derive(Debug)]
pub(super) struct QpLog {
    records: VecDeque<QpRecord>,
    state: QpState,
}

impl QpLog {
    pub(super) fn new() -> QpLog {
        QpLog { records: VecDeque::with_capacity(CHANGES_OF_STATE), state: QpState::Reset }
    }

    /// Returns the records, oldest first.
    pub(super) fn records(&self) -> Vec<QpRecord> {
        self.records.iter().copied().collect()
    }

    /// Records the QP's state, if it has changed.
    #[inline]
    pub(super) fn note_state(&mut self, now: Nanos, state: QpState) {
        if state != self.state {
            let from = std::mem::replace(&mut self.state, state);
            self.push(now, QpEvent::State { from, to: state });
        }
    }

    /// Records an exceptional packet.
    #[cold]
    pub(super) fn note_packet(&mut self, now: Nanos, opcode: Opcode, psn: Psn, verdict: Verdict) {
        self.push(now, QpEvent::Packet { opcode, psn, verdict });
    }

    /// Records an exceptional frame.
    #[cold]
    pub(super) fn note_frame(&mut self, now: Nanos, length: usize, verdict: Verdict) {
        self.push(now, QpEvent::Frame { length, verdict });
    }

    /// Records a refused transition.
    pub(super) fn note_refusal(&mut self, now: Nanos, from: QpState, to: QpState) {
        self.push(now, QpEvent::Refused { from, to });
    }

    /// Records an expired timeout.
    #[cold]
    pub(super) fn note_timeout(&mut self, now: Nanos, verdict: Verdict) {
        self.push(now, QpEvent::Timeout { verdict });
    }

    fn push(&mut self, now: Nanos, event: QpEvent) {
        if let Some(last) = self.records.back_mut()
            && alike(&last.event, &event)
        {
            last.repeated = last.repeated.saturating_add(1);
            return;
        }
        if self.records.len() == LOG_LENGTH {
            self.records.pop_front();
        } else if self.records.len() == self.records.capacity() {
            self.records.reserve_exact(LOG_LENGTH - self.records.len());
        }
        self.records.push_back(QpRecord { at: now, event, repeated: 0 });
    }
}

/// True if two events are equal, except for their PSNs.
fn alike(a: &QpEvent, b: &QpEvent) -> bool {
    match (a, b) {
        (QpEvent::Packet { opcode: a, verdict: x, .. }, QpEvent::Packet { opcode: b, verdict: y, .. }) => {
            a == b && std::mem::discriminant(x) == std::mem::discriminant(y)
        }
        _ => a == b,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_events_are_one_record() {
        let mut log = QpLog::new();
        log.note_state(Nanos(1), QpState::Init);
        for psn in 0..1000 {
            log.note_packet(Nanos(2), Opcode::RC_SEND_ONLY, Psn::new(psn), Verdict::Duplicate);
        }
        let records = log.records();
        assert_eq!(records.len(), 2);
        assert_eq!(
            records[1].to_string(),
            format!("{} RC_SEND_ONLY psn 0: {}, and 999 more", Nanos(2), Verdict::Duplicate)
        );
        for psn in 0..40 {
            let opcode = if psn % 2 == 0 { Opcode::RC_SEND_ONLY } else { Opcode::RC_WRITE_ONLY };
            log.note_packet(Nanos(3), opcode, Psn::new(psn), Verdict::OldAck);
        }
        let records = log.records();
        assert_eq!(records.len(), LOG_LENGTH);
        let newest =
            QpEvent::Packet { opcode: Opcode::RC_WRITE_ONLY, psn: Psn::new(39), verdict: Verdict::OldAck };
        assert_eq!(records.last().map(|record| record.event), Some(newest));
    }
}
