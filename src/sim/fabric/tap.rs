//! Taps: frames recorded at the ends of links, with their outcome.

use std::collections::HashSet;
use std::fmt;

use super::outcome::{EgressOutcome, IngressOutcome};
use super::topology::End;
use roxie_base::time::Nanos;

/// A frame at one end of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TappedFrame {
    /// Time at which the frame had arrived entirely, or started to leave.
    pub at: Nanos,
    /// The end.
    pub end: End,
    /// True if the frame arrived; false if it left.
    pub is_arrival: bool,
    /// The whole frame, starting at its Ethernet header.
    pub frame: Vec<u8>,
    /// Outcome in the switch that received it.
    pub ingress: Option<IngressOutcome>,
    /// Outcome in the switch that sent it.
    pub egress: Option<EgressOutcome>,
}

/// The tapped ends, and the frames recorded there.
#[derive(Debug, Default)]
pub(super) struct Taps {
    ends: HashSet<End>,
    seen: Vec<TappedFrame>,
}

impl Taps {
    pub(super) fn watch(&mut self, end: End) {
        self.ends.insert(end);
    }

    pub(super) fn watches(&self, end: End) -> bool {
        !self.ends.is_empty() && self.ends.contains(&end)
    }

    pub(super) fn record_arrival(
        &mut self,
        at: Nanos,
        end: End,
        frame: Vec<u8>,
        ingress: Option<IngressOutcome>,
    ) {
        self.seen.push(TappedFrame { at, end, is_arrival: true, frame, ingress, egress: None });
    }

    pub(super) fn record_departure(
        &mut self,
        at: Nanos,
        end: End,
        frame: Vec<u8>,
        egress: Option<EgressOutcome>,
    ) {
        self.seen.push(TappedFrame { at, end, is_arrival: false, frame, ingress: None, egress });
    }

    pub(super) fn take(&mut self) -> Vec<TappedFrame> {
        std::mem::take(&mut self.seen)
    }
}

impl fmt::Display for TappedFrame {
    /// Writes the outcome in the switch, for the packet's comment; writes nothing for a station.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.ingress, self.egress) {
            (Some(IngressOutcome::Queued { port, priority, depth, paused }), _) => {
                write!(f, "to port {port}, priority {priority}, behind {depth} B")?;
                if paused {
                    f.write_str("; above its threshold: the peer is told to pause")?;
                }
                Ok(())
            }
            (Some(IngressOutcome::Flooded), _) => f.write_str("to all other ports"),
            (Some(IngressOutcome::Applied(control)), _) => write!(f, "heeded: {control:?}"),
            (Some(IngressOutcome::Dropped(reason)), _) => write!(f, "dropped: {reason}"),
            (None, Some(EgressOutcome::Control)) => f.write_str("of the switch itself"),
            (None, Some(EgressOutcome::Data { priority, waited, marked, behind })) => {
                write!(f, "priority {priority}, waited {} ns, {behind} B behind it", waited.0)?;
                if marked { f.write_str("; marked (CE)") } else { Ok(()) }
            }
            (None, None) => Ok(()),
        }
    }
}
