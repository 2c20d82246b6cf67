//! Transitions of a QP's timer.

/// State of a QP's timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Timer {
    /// Not running.
    Idle,
    /// Waits for an acknowledgement; expiry causes a retransmission.
    Ack,
    /// RNR wait, for which the receiver has asked.
    Rnr,
    /// No acknowledgement is asked for; expiry causes a probe that asks.
    Quiet,
    /// That of the test of the peer, while nothing is outstanding.
    Test,
}

impl Timer {
    /// All values.
    pub const ALL: [Timer; 5] = [Timer::Idle, Timer::Ack, Timer::Rnr, Timer::Quiet, Timer::Test];
}

/// Cause of a timer transition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TimerCause {
    /// A packet was sent.
    Sent,
    /// A packet of a QP with a controlled rate was sent. Such packets may be further apart than the timeout.
    SentPaced,
    /// A packet was received.
    Packet,
    /// Time has passed.
    Time,
    /// The application gave a command.
    Command,
}

impl TimerCause {
    /// All values.
    pub const ALL: [TimerCause; 5] =
        [TimerCause::Sent, TimerCause::SentPaced, TimerCause::Packet, TimerCause::Time, TimerCause::Command];
}

/// A timer transition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TimerTransition {
    /// State before.
    pub from: Timer,
    /// Cause.
    pub by: TimerCause,
    /// State after.
    pub to: Timer,
    /// True if the state is the same, but the deadline has changed.
    pub renewed: bool,
}
