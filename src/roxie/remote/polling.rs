//! Polling of the queues of a NIC in another process. A polling thread may occupy the processor that the NIC needs.

use std::cell::Cell;
use std::thread;
use std::time::Duration;

use roxie_base::time::monotonic;
use roxie_engine::WaitPolicy;
use roxie_nic::shared::CompletionRing;
use roxie_nic::verbs::CqIndex;

/// The last poll of a thread.
#[derive(Clone, Copy)]
struct Polling {
    queue: Option<CqIndex>,
    in_a_row: u32,
    crowded_until: u64,
}

thread_local!(static POLLING: Cell<Polling> = const {
    Cell::new(Polling { queue: None, in_a_row: 0, crowded_until: 0 })
});

/// Reports that a poll of this queue found nothing, and yields the processor, which the NIC may need. If a yield has
/// recently let another thread run, the processor is contended: a poller of the same queue then sleeps until a
/// completion, or for a moment, so as not to take as much time as the NIC gets.
pub(super) fn after_empty_poll(queue: CqIndex, ring: &dyn Fn() -> CompletionRing) {
    let before = POLLING.get();
    let in_a_row = if before.queue == Some(queue) { before.in_a_row.saturating_add(1) } else { 0 };
    let now = monotonic();
    let crowded = now < before.crowded_until;
    POLLING.set(Polling { queue: Some(queue), in_a_row, ..before });
    if crowded && in_a_row >= WaitPolicy::POLLS_IN_A_ROW {
        return ring().sleep_until_completion(Duration::from_nanos(WaitPolicy::POLLER_SLEEP_NS));
    }
    thread::yield_now();
    let back = monotonic();
    if back.saturating_sub(now) > WaitPolicy::YIELD_USED_NS {
        POLLING.set(Polling {
            queue: Some(queue),
            in_a_row,
            crowded_until: back + WaitPolicy::YIELD_MEMORY_NS,
        });
    }
}
