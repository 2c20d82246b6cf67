//! Callers that poll the queues of a NIC in another process, and that may hold the very processor which it waits for.

use std::cell::Cell;
use std::thread;
use std::time::Duration;

use crate::engine::WaitPolicy;
use crate::shared::CompletionRing;
use crate::time::monotonic;
use crate::verbs::CqIndex;

/// What a thread polled last.
#[derive(Clone, Copy)]
struct Polling {
    queue: Option<CqIndex>,
    in_a_row: u32,
    crowded_until: u64,
}

thread_local!(static POLLING: Cell<Polling> = const {
    Cell::new(Polling { queue: None, in_a_row: 0, crowded_until: 0 })
});

/// A poll of this queue has found nothing: whoever else wants the processor may have it, for the NIC may be who does. Where somebody has
/// just wanted it, a poller that went on would take as much of it as the NIC gets: it sleeps until something comes, for a moment.
pub(crate) fn found_nothing(queue: CqIndex, ring: impl FnOnce() -> CompletionRing) {
    let before = POLLING.get();
    let in_a_row = if before.queue == Some(queue) { before.in_a_row.saturating_add(1) } else { 0 };
    let now = monotonic();
    let crowded = now < before.crowded_until;
    POLLING.set(Polling { queue: Some(queue), in_a_row, ..before });
    if crowded && in_a_row >= WaitPolicy::POLLS_IN_A_ROW {
        return ring().doze(Duration::from_nanos(WaitPolicy::DOZE_NS));
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
