//! Whether the peer answers probes. A requester finds out before it relies on them.
//!
//! The test is a probe while nothing is outstanding. A responder that takes it for a duplicate acknowledges the PSN
//! that it has executed last. Whatever else a test meets costs no more than this: the QP asks each time, as before.

use crate::transport::AckRequestPolicy;
use roxie_base::time::Nanos;

/// Answers in a row that show that the peer answers.
const ANSWERS: u8 = 2;

/// Tests without an answer, or made void by a request, after which the QP asks each time.
const FAILURES: u8 = 3;

/// Time without anything outstanding before a test.
pub(super) const REST: Nanos = Nanos(1_000_000);

/// How far the test is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    /// The peer does not answer, or is not to be asked.
    #[default]
    Failed,
    /// The peer answers.
    Passed,
    /// The requester has something outstanding, or no use for the answer.
    Busy,
    /// Nothing is outstanding. The timer runs until the test.
    Rest,
    /// A test is to be sent.
    Due,
    /// A test was sent. The timer runs until its answer is late.
    Sent,
}

/// The test of the peer.
#[derive(Debug, Default)]
pub(super) struct ProbeTest {
    stage: Stage,
    /// Answers in a row.
    answers: u8,
    /// Failures so far.
    failures: u8,
}

impl ProbeTest {
    /// Begins with a peer of which nothing is known.
    pub(super) fn begin(policy: AckRequestPolicy) -> ProbeTest {
        let stage = match policy {
            AckRequestPolicy::Always => Stage::Failed,
            AckRequestPolicy::Shown => Stage::Busy,
            AckRequestPolicy::Late => Stage::Passed,
        };
        ProbeTest { stage, answers: 0, failures: 0 }
    }

    /// True if the peer answers probes.
    pub(super) fn has_passed(&self) -> bool {
        self.stage == Stage::Passed
    }

    /// True if the requester has yet to learn whether the peer answers, and does nothing for it now.
    #[inline(always)]
    pub(super) fn is_open(&self) -> bool {
        self.stage == Stage::Busy
    }

    /// True if the requester's timer is that of the test, or the test is due.
    #[inline(always)]
    pub(super) fn is_under_way(&self) -> bool {
        matches!(self.stage, Stage::Rest | Stage::Due | Stage::Sent)
    }

    /// True if a test is to be sent.
    pub(super) fn is_due(&self) -> bool {
        self.stage == Stage::Due
    }

    /// True if a test was sent, and its answer may come.
    pub(super) fn awaits_answer(&self) -> bool {
        self.stage == Stage::Sent
    }

    /// Nothing is outstanding: the caller starts the timer.
    pub(super) fn rest(&mut self) {
        self.stage = Stage::Rest;
    }

    /// Advances over a test, which is sent.
    pub(super) fn sent(&mut self) {
        self.stage = Stage::Sent;
    }

    /// Handles a request that leaves, or a change of the QP. A test that was sent is void.
    #[cold]
    pub(super) fn interrupt(&mut self) {
        match self.stage {
            Stage::Rest | Stage::Due => self.stage = Stage::Busy,
            Stage::Sent => self.fail(),
            Stage::Failed | Stage::Passed | Stage::Busy => {}
        }
    }

    /// Handles the expired timer. True: the caller starts it again.
    pub(super) fn expire(&mut self) -> bool {
        match self.stage {
            Stage::Rest => {
                self.stage = Stage::Due;
                false
            }
            Stage::Sent => self.refuse(),
            Stage::Failed | Stage::Passed | Stage::Busy | Stage::Due => false,
        }
    }

    /// Handles an acknowledgement that answers the test. True: the caller starts the timer of the next one.
    pub(super) fn answer(&mut self) -> bool {
        self.answers += 1;
        self.stage = if self.answers == ANSWERS { Stage::Passed } else { Stage::Rest };
        self.stage == Stage::Rest
    }

    /// Handles the lack of an answer, or one that is no acknowledgement. True: the caller starts the timer of the next
    /// test.
    pub(super) fn refuse(&mut self) -> bool {
        self.fail();
        if self.stage == Stage::Busy {
            self.stage = Stage::Rest;
        }
        self.stage == Stage::Rest
    }

    /// The peer has not answered a probe: it is not relied upon again.
    pub(super) fn give_up(&mut self) {
        self.stage = Stage::Failed;
    }

    fn fail(&mut self) {
        self.answers = 0;
        self.failures += 1;
        self.stage = if self.failures == FAILURES { Stage::Failed } else { Stage::Busy };
    }
}
