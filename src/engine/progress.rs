//! The result of a pass.

/// The result of a pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Frames received.
    pub received: usize,
    /// Frames sent.
    pub sent: usize,
    /// Commands executed.
    pub commands: usize,
    /// Completions published.
    pub completions: usize,
    /// True if another pass is needed immediately.
    pub more: bool,
}

impl Progress {
    /// Combines the receiving half, `self`, with the sending half, `left`.
    pub(super) fn and(self, left: &Progress) -> Progress {
        debug_assert_eq!(self.sent, 0, "the receiving half sends nothing");
        debug_assert_eq!((left.received, left.commands), (0, 0), "the sending half receives nothing");
        let completions = self.completions + left.completions;
        Progress { sent: left.sent, completions, more: self.more || left.more, ..self }
    }

    /// Adds up passes of two workers.
    pub(super) fn plus(self, other: &Progress) -> Progress {
        Progress {
            received: self.received + other.received,
            sent: self.sent + other.sent,
            commands: self.commands + other.commands,
            completions: self.completions + other.completions,
            more: self.more || other.more,
        }
    }

    /// True if the pass did nothing and no other is needed immediately.
    pub fn is_idle(&self) -> bool {
        let done = self.received + self.sent + self.commands + self.completions;
        done == 0 && !self.more
    }
}
