//! When to send again: the timer of the oldest unacknowledged packet, and the retry counters (IBTA 9.9.2.1, 9.7.5.2.8).

use crate::profile::{AckTimer, AckTimerRun, Expiry};
use crate::transport::{Cause, door};
use crate::verbs::QpAttributes;
use roxie_base::time::Nanos;

/// Value of `rnr_retry` for infinite retries.
const RNR_INFINITE: u8 = 7;

/// Timer and retry counters.
///
/// A packet that is sent starts the timer, and progress restarts it. The timer is stopped before a retransmission and
/// before a probe.
#[derive(Debug)]
pub(super) struct Retry {
    /// Time to wait for an acknowledgement: the local ACK timeout, or less with selective repeat.
    timeout: Option<Nanos>,
    /// Time of the next retransmission by timeout.
    at: Nanos,
    remaining: u8,
    rnr_remaining: u8,
    /// Cause of the retransmission of packets before `sent_end`.
    cause: Option<Cause>,
    /// An implied NAK was handled. Further overtaking responses are ignored until something new is acknowledged.
    implied_nak: bool,
    /// The ACK timer of an adapter.
    adapter: Option<Box<AckTimerRun>>,
}

impl Retry {
    pub(super) fn new() -> Retry {
        Retry {
            timeout: None,
            at: Nanos::MAX,
            remaining: 0,
            rnr_remaining: 0,
            cause: None,
            implied_nak: false,
            adapter: None,
        }
    }

    /// Has the timer run as an adapter's. `None`: as Roxie's own. `draw`: a number of the QP's own.
    pub(super) fn run_as(&mut self, timer: Option<&'static AckTimer>, attributes: &QpAttributes, draw: u64) {
        self.adapter = timer.filter(|_| attributes.timeout != 0).map(|timer| {
            let (run, wait) = AckTimerRun::start(timer, attributes.timeout, attributes.retry_cnt, draw);
            self.timeout = Some(wait);
            Box::new(run)
        });
    }

    /// Starts the timer of an adapter anew, after progress.
    pub(super) fn run_again(&mut self) {
        if let Some(adapter) = &mut self.adapter {
            self.timeout = Some(adapter.restart());
        }
    }

    /// Handles an expiry of an adapter's timer. `None`: the timer is Roxie's own.
    pub(super) fn expire(&mut self) -> Option<Expiry> {
        let (expiry, wait) = self.adapter.as_mut()?.expire();
        self.timeout = Some(wait);
        Some(expiry)
    }

    /// Returns the time to wait for an acknowledgement.
    pub(super) fn timeout(&self) -> Option<Nanos> {
        self.timeout
    }

    /// Sets the time to wait for an acknowledgement.
    pub(super) fn set_timeout(&mut self, timeout: Option<Nanos>) {
        self.timeout = timeout;
    }

    /// Returns when the timer expires; `Nanos::MAX`: never.
    pub(super) fn at(&self) -> Nanos {
        self.at
    }

    pub(super) fn is_running(&self) -> bool {
        self.at != Nanos::MAX
    }

    /// Starts the timer, if there is a timeout. `longest`: a limit of the timeout.
    #[inline(always)]
    pub(super) fn start(&mut self, now: Nanos, longest: Nanos) {
        if let Some(timeout) = self.timeout {
            self.at = now + timeout.min(longest);
        }
    }

    /// Starts a running timer again.
    pub(super) fn restart(&mut self, now: Nanos) {
        if self.is_running() {
            self.start(now, Nanos::MAX);
        }
    }

    /// Has a running timer expire no earlier than it would if it were started now.
    pub(super) fn postpone(&mut self, now: Nanos) {
        if let Some(timeout) = self.timeout.filter(|_| self.is_running()) {
            self.at = self.at.max(now + timeout);
        }
    }

    /// Delays a running timer.
    pub(super) fn delay(&mut self, by: Nanos) {
        if self.is_running() {
            self.at = self.at + by;
        }
    }

    pub(super) fn stop(&mut self) {
        self.at = Nanos::MAX;
    }

    /// Stops the timer for a retransmission: the first packet that is sent starts it.
    pub(super) fn begin(&mut self, cause: Cause) {
        self.cause = Some(cause);
        self.stop();
    }

    /// Returns the cause of the retransmission in progress.
    pub(super) fn cause(&self) -> Option<Cause> {
        self.cause
    }

    /// Ends a retransmission: nothing is outstanding.
    pub(super) fn end(&mut self) {
        self.cause = None;
    }

    /// Takes a retry. Returns false if none is left.
    //= IBTA 9.9.2: retries-are-counted
    pub(super) fn take(&mut self) -> bool {
        let may_retry = self.remaining > 0;
        self.remaining = self.remaining.saturating_sub(1);
        may_retry
    }

    /// Takes an RNR retry. Returns false if none is left.
    pub(super) fn take_rnr(&mut self, attributes: &QpAttributes) -> bool {
        // The packet reached the peer: reset the retry counter. Losses during a long RNR wait must not add up to a
        // failure.
        self.remaining = attributes.retry_cnt;
        //= IBTA 9.9.2: seven-rnr-retries-are-for-ever
        if attributes.rnr_retry == RNR_INFINITE {
            return true;
        }
        //= IBTA 9.9.2: rnr-retries-are-counted
        let may_retry = self.rnr_remaining > 0;
        self.rnr_remaining = self.rnr_remaining.saturating_sub(1);
        may_retry
    }

    /// True if an implied NAK was handled since the last progress.
    pub(super) fn is_implied(&self) -> bool {
        self.implied_nak
    }

    /// Notes an implied NAK, which is handled.
    pub(super) fn set_implied(&mut self) {
        self.implied_nak = true;
    }

    /// Sets both counters as agreed.
    pub(super) fn restore(&mut self, attributes: &QpAttributes) {
        (self.remaining, self.rnr_remaining) = (attributes.retry_cnt, attributes.rnr_retry);
    }

    /// Handles progress: the retries are given back. `is_all`: nothing is outstanding any more.
    #[inline(always)]
    pub(super) fn progress(&mut self, attributes: &QpAttributes, is_all: bool) {
        //= IBTA 9.9.2: progress-gives-the-retries-back
        self.remaining = attributes.retry_cnt;
        let (rnr_retries, implied_nak) = door::given_back(is_all);
        if rnr_retries {
            self.rnr_remaining = attributes.rnr_retry;
        }
        self.implied_nak &= !implied_nak;
    }

    /// Returns the number of this retransmission, and of how many: of the RNR retries or of the others.
    pub(super) fn attempt(&self, attributes: &QpAttributes) -> (u8, u8) {
        match self.cause {
            // Neither costs a retry.
            Some(Cause::Selective | Cause::Probe) => (0, 0),
            Some(Cause::Rnr) => {
                (attributes.rnr_retry.saturating_sub(self.rnr_remaining), attributes.rnr_retry)
            }
            _ => (attributes.retry_cnt.saturating_sub(self.remaining), attributes.retry_cnt),
        }
    }
}
