//! What a pass did.

/// What a pass did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Frames taken in.
    pub received: usize,
    /// Frames sent.
    pub sent: usize,
    /// Commands carried out.
    pub commands: usize,
    /// Completions published.
    pub completions: usize,
    /// There is more to do at once.
    pub more: bool,
}

impl Progress {
    /// Of both halves of a pass: what was taken in, and what was sent.
    pub(super) fn and(self, left: &Progress) -> Progress {
        let completions = self.completions + left.completions;
        Progress { sent: left.sent, completions, more: self.more || left.more, ..self }
    }

    /// True if the pass found nothing to do and nothing is left.
    pub fn is_idle(&self) -> bool {
        let done = self.received + self.sent + self.commands + self.completions;
        done == 0 && !self.more
    }
}
