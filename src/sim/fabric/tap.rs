//! Taps: what is seen at the ends of links, with what was done about it.

use std::collections::HashSet;
use std::fmt;

use super::fate::{Fate, Story};
use super::topology::End;
use crate::time::Nanos;

/// A frame at the end of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TapSight {
    /// When it had come entirely, or began to leave.
    pub at: Nanos,
    /// Where.
    pub end: End,
    /// It came; else it left.
    pub came: bool,
    /// All of it, from the Ethernet header on.
    pub frame: Vec<u8>,
    /// What a switch did with it that it came to.
    pub fate: Option<Fate>,
    /// What a switch had done with it that it left.
    pub story: Option<Story>,
}

/// Which ends are watched, and what was seen there.
#[derive(Debug, Default)]
pub(super) struct Taps {
    ends: HashSet<End>,
    seen: Vec<TapSight>,
}

impl Taps {
    pub(super) fn watch(&mut self, end: End) {
        self.ends.insert(end);
    }

    pub(super) fn watches(&self, end: End) -> bool {
        !self.ends.is_empty() && self.ends.contains(&end)
    }

    pub(super) fn came(&mut self, at: Nanos, end: End, frame: Vec<u8>, fate: Option<Fate>) {
        self.seen.push(TapSight { at, end, came: true, frame, fate, story: None });
    }

    pub(super) fn left(&mut self, at: Nanos, end: End, frame: Vec<u8>, story: Option<Story>) {
        self.seen.push(TapSight { at, end, came: false, frame, fate: None, story });
    }

    pub(super) fn take(&mut self) -> Vec<TapSight> {
        std::mem::take(&mut self.seen)
    }
}

impl fmt::Display for TapSight {
    /// What was done about it, for the comment of a packet; nothing at a station.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.fate, self.story) {
            (Some(Fate::Queued { port, priority, depth, paused }), _) => {
                write!(f, "to port {port}, priority {priority}, behind {depth} B")?;
                if paused {
                    f.write_str("; above its threshold: the peer is told to pause")?;
                }
                Ok(())
            }
            (Some(Fate::Flooded), _) => f.write_str("to all other ports"),
            (Some(Fate::Heeded(control)), _) => write!(f, "heeded: {control:?}"),
            (Some(Fate::Dropped(reason)), _) => write!(f, "dropped: {reason}"),
            (None, Some(Story::Control)) => f.write_str("of the switch itself"),
            (None, Some(Story::Data { priority, waited, marked, behind })) => {
                write!(f, "priority {priority}, waited {} ns, {behind} B behind it", waited.0)?;
                if marked { f.write_str("; marked (CE)") } else { Ok(()) }
            }
            (None, None) => Ok(()),
        }
    }
}
