//! When threads poll, sleep and hand over: all constants, each with its unit and its reason.
//!
//! Figures are from two processors in a virtual machine (Linux 6.1 to 6.18), where a wake-up takes 10 to 20 us, unless
//! stated otherwise. `cargo bench -p roxie-cli --bench waiting` repeats the ones for programs that wait, alone and next
//! to programs that compute.

/// Constants of waiting. Each name ends in its unit.
pub struct WaitPolicy;

/// A caller and the engine thread ([`super::handoff`]).
impl WaitPolicy {
    /// A caller that polls runs its next pass within this time. After a longer gap the application was doing something
    /// else.
    pub(crate) const POLL_GAP_NS: u64 = 50_000;
    /// A caller that polled within this time is still polling: a poll takes 0.1 to 5 us.
    pub(crate) const JUST_NOW_NS: u64 = 10_000;
    /// Time within which an event is recent. An unnecessary handoff per 2 ms does not show in any measurement.
    pub(crate) const RECENT_NS: u64 = 2_000_000;
    /// The engine thread begins backoff sleeps after callers have polled without a gap for this time. perftest polls
    /// for less than this between two messages, so the thread stays awake for programs that check their memory in
    /// between.
    pub(crate) const TRUST_AFTER_NS: u64 = 200_000;
    /// Maximum of that time for a caller that left work behind repeatedly: each miss multiplies it by four, up to this.
    pub(crate) const LONGEST_TRUST_AFTER_NS: u64 = 50_000_000;
    /// The shortest backoff sleep. Linux turns 50 us into some 110 us, with a timer slack of 1 ns.
    pub(crate) const SHORTEST_BACKOFF_NS: u64 = 50_000;
    /// The longest backoff sleep, and so the maximum delay of work that a caller left behind when it stopped polling.
    /// With 0.2 ms, programs that wait got replies in 16 to 58 us instead of 16 to 17.
    pub(crate) const LONGEST_BACKOFF_NS: u64 = 1_000_000;
    /// The backoff sleep while a caller blocks on the link. A caller that does not fetch its frame within this time is
    /// stopped or was cancelled.
    pub(crate) const BLOCKED_CALLER_BACKOFF_NS: u64 = 250_000;
    /// The engine thread keeps polling for this time after a pass that received frames but published no completion. The
    /// next burst of a peer that writes comes within it; sleeping between bursts cost a third of the bandwidth over
    /// AF_XDP.
    pub(crate) const LINGER_NS: u64 = 50_000;
    /// The longest sleep of any thread, and so the maximum delay if the kernel misses a wake-up.
    pub(crate) const LONGEST_SLEEP_NS: u64 = 100_000_000;
    /// After two threads wait within [`Self::RECENT_NS`] of one another, only the engine thread sleeps on the link for
    /// this time.
    pub(crate) const SEVERAL_WAITERS_NS: u64 = 10_000_000;
}

/// Threads that wait inside a call ([`super::wait_set`]).
impl WaitPolicy {
    /// Armings after which a thread that has blocked inside a call is expected to block there again. Two completions
    /// may come for one block: the completion of a request, and the reply to it. With one, the engine thread was woken
    /// for each message, 3 us and a thread that wants to run next to the two ends.
    pub(crate) const ARMINGS_PER_BLOCK: u32 = 2;
}

/// Which frames leave together.
impl WaitPolicy {
    /// Maximum delay of an acknowledgement that waits for the application's reply. If it leaves alone it ends the
    /// peer's polling: a round trip then takes 50 us instead of 10.
    pub(crate) const OWED_FOR_NS: u64 = 5_000;
    /// A program that has armed a completion queue within this time waits for events: its acknowledgements leave first.
    /// Longer than a busy machine keeps a thread off its processor.
    pub(crate) const WAITING_PROGRAM_NS: u64 = 1_000_000_000;
    /// A caller that polls without a gap may leave up to this many posts for its next pass.
    pub(crate) const HELD_POSTS: u32 = 16;
    /// With no more outstanding work requests than this, a post is sent immediately: the application may be waiting for
    /// it.
    pub(crate) const FEW_OUTSTANDING: u32 = 2;
}

/// The worker's lock ([`super::combining_lock`]).
impl WaitPolicy {
    /// Spins on a taken lock before the thread yields to its holder: about 1 us.
    pub(crate) const LOCK_SPINS: u32 = 64;
    /// Checks of the doorbells after unlocking. Beyond that another thread is woken.
    pub(crate) const LOOKS_AFTER_UNLOCK: u32 = 4;
}

/// Callers that poll (`polling.rs`).
impl WaitPolicy {
    /// Callers that find nothing for this time ...
    pub(crate) const EMPTY_FOR_NS: u64 = 3_000;
    /// ... and in this many passes let other threads run. A caller with fewer passes is not polling.
    pub(crate) const EMPTY_PASSES: u32 = 6;
    /// How long a poller sleeps on the link when processors are overloaded. The application may poll other things too.
    pub const POLLER_SLEEP_NS: u64 = 50_000;
    /// `remote`: a yield that took longer let another thread run: perhaps the NIC's.
    pub const YIELD_USED_NS: u64 = 3_000;
    /// `remote`: pollers sleep instead of yielding for this time after such a yield.
    pub const YIELD_MEMORY_NS: u64 = 10_000_000;
    /// `remote`: consecutive polls of one queue before the thread sleeps on it. A thread that polls several queues does
    /// not sleep on one.
    pub const POLLS_IN_A_ROW: u32 = 8;
}

/// A thread that owns its worker and shares its processor (`engine_thread.rs`). Runnable threads are no measure here:
/// the NICs of one machine and their polling clients are more than its processors at times, and give way to one another
/// within microseconds. With a sleep at every idle pass because of them, a message between two such NICs took 30 us
/// instead of 25, and 50 instead of 21 with completion events.
impl WaitPolicy {
    /// A yield that took longer let a program compute for its time slice, which is 1.4 to 4 ms.
    pub(crate) const YIELD_LOST_NS: u64 = 1_000_000;
    /// After two such yields within this time, the thread sleeps instead of yielding for as long ...
    pub(crate) const YIELD_LOST_MEMORY_NS: u64 = 10_000_000;
    /// ... and for up to this, if the program still computes: yields then lose 0.4 % of the time.
    pub(crate) const YIELD_LOST_LONGEST_MEMORY_NS: u64 = 1_000_000_000;
}

/// Spin, then sleep, for programs that wait ([`super::spin_then_sleep`]).
impl WaitPolicy {
    /// How long a program that waits polls before it sleeps: twice the reply time of a peer that must be woken.
    pub(crate) const SPIN_BEFORE_SLEEP_NS: u64 = 50_000;
    /// Maximum and initial credit for spinning. A successful spin adds one, an unsuccessful one halves the credit. An
    /// unsuccessful spin with the last credit skips the next chances.
    pub(crate) const SPIN_CREDIT: u32 = 8;
    pub(crate) const FIRST_SPIN_CREDIT: u32 = 4;
    /// Number of chances skipped then.
    pub(crate) const SKIPPED_SPINS: u32 = 64;
}

/// Number of threads that want to run ([`super::load`]).
impl WaitPolicy {
    /// Minimum interval between two reads of `/proc/loadavg`: one takes 1 us. Not a multiple of the scheduler's ticks,
    /// 1, 4 or 10 ms.
    pub(crate) const LOAD_INTERVAL_NS: u64 = 3_300_000;
    /// An older answer is ignored.
    pub(crate) const LOAD_AGE_NS: u64 = 100_000_000;
    /// Weight of an answer of "too many" against the opposite. Threads that compete with a program that computes sleep
    /// at times, so some answers miss them.
    pub(crate) const LOAD_WEIGHT: u32 = 3;
    /// Weight from which the load is high: three answers, 10 ms.
    pub(crate) const LOAD_ENOUGH: u32 = 9;
    /// Maximum weight: a past overload is forgotten after 70 ms.
    pub(crate) const LOAD_MOST: u32 = 30;
}

/// A link that accepts no frames ([`super::stall`]).
impl WaitPolicy {
    /// The first delay before the next try; each is twice the one before ...
    pub(crate) const FIRST_STALL_NS: u64 = 20_000;
    /// ... up to this.
    pub(crate) const LONGEST_STALL_NS: u64 = 10_000_000;
}

/// Copies from and to memory of other processes ([`super::copying`]).
impl WaitPolicy {
    /// Maximum time of one batch of copies. A page from a disk takes 10 ms; the peer of a QP retransmits for seconds.
    pub(crate) const COPY_DEADLINE_NS: u64 = 500_000_000;
    /// Time that a half of a pass waits for copies that another thread makes, while it yields its processor. With it,
    /// `ib_write_bw -s 65536` through two NICs has twice the bandwidth, because the threads of both are more than the
    /// two processors. A client whose copies take longer is not waited for in its next 16 batches, so that slow copies
    /// take some 1 us of a pass.
    pub(crate) const COPY_WAIT_NS: u64 = 20_000;
    /// Number of halves that do not wait after a yield in which another program computed for its time slice.
    pub(crate) const SKIPPED_COPY_WAITS: u32 = 256;
}
