//! When threads poll, sleep and hand over: all constants of it, each with its unit and its reason.
//!
//! Figures are of two processors in a virtual machine (Linux 6.1 to 6.18), where a wake-up takes 10 to 20 us, unless they say otherwise.
//! `cargo bench --bench waiting` repeats those of programs that wait, idle and beside programs that compute.

/// The constants of waiting. Names end in their unit.
pub(crate) struct WaitPolicy;

/// A caller and the engine's thread ([`super::watch`]).
impl WaitPolicy {
    /// A caller that polls is back within this time. After a longer gap the application was doing something else.
    pub(crate) const POLL_GAP_NS: u64 = 50_000;
    /// A caller that polled within this time is still polling: a poll takes 0.1 to 5 us.
    pub(crate) const JUST_NOW_NS: u64 = 10_000;
    /// What happened within this time is recent. One hand-off more than needed in this time does not show in any measurement.
    pub(crate) const RECENT_NS: u64 = 2_000_000;
    /// The engine's thread naps once callers have polled without a gap for this time. perftest's polls between two messages are shorter, so
    /// the thread stays awake for programs that look at their memory in between.
    pub(crate) const TRUST_AFTER_NS: u64 = 200_000;
    /// The same time for a caller that left work behind again and again: it grows by four each time, up to this.
    pub(crate) const LONGEST_TRUST_AFTER_NS: u64 = 50_000_000;
    /// The shortest nap. Linux makes 50 us some 110 us, with a timer slack of 1 ns.
    pub(crate) const SHORTEST_NAP_NS: u64 = 50_000;
    /// The longest nap, and so the longest time that work waits which an application left behind while it polled. With 0.2 ms, programs that
    /// wait were answered in 16 to 58 us instead of 16 to 17.
    pub(crate) const LONGEST_NAP_NS: u64 = 1_000_000;
    /// A nap while a caller blocks on the link. A caller that does not come back for its frame within it is stopped or was cancelled.
    pub(crate) const BLOCKED_CALLER_NAP_NS: u64 = 250_000;
    /// The engine's thread polls on for this time after a pass that brought frames but no completion. The next burst of a peer that writes
    /// comes within it; to sleep between bursts cost a third of the bandwidth over AF_XDP.
    pub(crate) const LINGER_NS: u64 = 50_000;
    /// The longest sleep of any thread: a bound on how late a wake-up that the kernel missed is noticed.
    pub(crate) const LONGEST_SLEEP_NS: u64 = 100_000_000;
    /// Two threads that wait within [`Self::RECENT_NS`] of one another leave the link to the engine's thread for this time.
    pub(crate) const SEVERAL_WAITERS_NS: u64 = 10_000_000;
}

/// What leaves together.
impl WaitPolicy {
    /// An acknowledgement waits this long for the application's reply. Leaving alone, it ends the peer's polling: 50 us a round trip instead
    /// of 10.
    pub(crate) const OWED_FOR_NS: u64 = 5_000;
    /// Posts that a caller which polls without a gap may leave for its next pass.
    pub(crate) const HELD_POSTS: u32 = 16;
    /// With no more work requests outstanding than this, a post is sent at once: it may be all there is.
    pub(crate) const FEW_OUTSTANDING: u32 = 2;
}

/// The lock of the worker ([`super::turns`]).
impl WaitPolicy {
    /// Looks at a lock that is taken before the thread gives way to its holder: about 1 us.
    pub(crate) const LOCK_SPINS: u32 = 64;
    /// Looks at the doorbells after unlocking. Beyond that another thread is told.
    pub(crate) const LOOKS_AFTER_UNLOCK: u32 = 4;
}

/// Callers that poll ([`super::polling`]).
impl WaitPolicy {
    /// Callers that find nothing for this time ...
    pub(crate) const EMPTY_FOR_NS: u64 = 3_000;
    /// ... and in this many passes let other threads have the processor. A caller with fewer passes is not polling.
    pub(crate) const EMPTY_PASSES: u32 = 6;
    /// How long a poller sleeps on the link where processors are crowded. It may have other things to look at.
    pub(crate) const DOZE_NS: u64 = 50_000;
    /// `remote`: a yield that took longer was used by another thread: perhaps by the NIC.
    pub(crate) const YIELD_USED_NS: u64 = 3_000;
    /// `remote`: pollers sleep instead of yielding for this time after such a yield.
    pub(crate) const YIELD_MEMORY_NS: u64 = 10_000_000;
    /// `remote`: polls of one queue in a row before the thread sleeps on it. A thread that polls several does not sleep on one.
    pub(crate) const POLLS_IN_A_ROW: u32 = 8;
}

/// Spin, then sleep, of programs that wait ([`super::look_on`]).
impl WaitPolicy {
    /// How long a program that waits polls before it sleeps: twice what an answer takes from a peer that must be woken.
    pub(crate) const SPIN_BEFORE_SLEEP_NS: u64 = 50_000;
    /// Credit for spinning, at most and at first. A spin that brought something adds one, one in vain halves the credit; in vain with the
    /// last one, the next chances are skipped.
    pub(crate) const SPIN_CREDIT: u32 = 8;
    pub(crate) const FIRST_SPIN_CREDIT: u32 = 4;
    /// Chances that are skipped then.
    pub(crate) const SKIPPED_SPINS: u32 = 64;
}

/// How many threads want a processor ([`super::load`]).
impl WaitPolicy {
    /// How often the kernel is asked at most: it takes 1 us. Not a multiple of the scheduler's ticks, 1, 4 or 10 ms.
    pub(crate) const LOAD_INTERVAL_NS: u64 = 3_300_000;
    /// An older answer says nothing.
    pub(crate) const LOAD_AGE_NS: u64 = 100_000_000;
    /// How much more an answer of "too many" weighs than the opposite. Threads that share with a program that computes sleep at times, and
    /// some answers find them asleep.
    pub(crate) const LOAD_WEIGHT: u32 = 3;
    /// The weight that counts as crowded: three answers, 10 ms.
    pub(crate) const LOAD_ENOUGH: u32 = 9;
    /// The most that is kept: what is over is forgotten after 70 ms.
    pub(crate) const LOAD_MOST: u32 = 30;
}

/// A link that takes nothing ([`super::stall`]).
impl WaitPolicy {
    /// The first time to wait before the next try; each is twice the one before ...
    pub(crate) const FIRST_STALL_NS: u64 = 20_000;
    /// ... up to this.
    pub(crate) const LONGEST_STALL_NS: u64 = 10_000_000;
}

/// Copies from and to memory of other processes ([`super::remote_pass`]).
impl WaitPolicy {
    /// How long one batch of copies may take while its thread sleeps. A page from a disk takes 10 ms; a peer of a QP repeats for seconds.
    pub(crate) const COPY_DEADLINE_NS: u64 = 500_000_000;
    /// How often the stand-by thread looks: a tenth of the deadline.
    pub(crate) const COPY_LOOK_NS: u64 = 50_000_000;
    /// How long a thread that wants the worker between two passes waits in the middle of one: some ten copies.
    pub(crate) const MID_PASS_NS: u64 = 50_000;
}
