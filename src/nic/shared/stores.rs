//! For tests: the states of memory that another thread could observe during a store.
//!
//! The trap flag of x86 raises `SIGTRAP` after every instruction of the thread. The handler records the 8 watched bytes
//! whenever they differ from the last record: each record is a state that a reader on another processor might see.

use std::arch::asm;
use std::cell::Cell;
use std::ffi::c_int;
use std::sync::Once;

/// States recorded at most.
const MOST: usize = 64;

#[derive(Clone, Copy)]
struct Watched {
    at: *const u8,
    states: [u64; MOST],
    count: usize,
}

thread_local! {
    static WATCHED: Cell<Option<Watched>> = const { Cell::new(None) };
}

extern "C" fn trapped(_signal: c_int) {
    let Some(mut watched) = WATCHED.get() else { return };
    // SAFETY: `states` names 8 bytes that live until it returns; the thread that stores is this one.
    let now = unsafe { watched.at.cast::<u64>().read_volatile() };
    if watched.states[watched.count - 1] != now && watched.count < MOST {
        watched.states[watched.count] = now;
        watched.count += 1;
        WATCHED.set(Some(watched));
    }
}

/// Returns the states of the 8 bytes at `at` while `store` runs, including the first and the last.
pub(super) fn states(at: *const u8, store: impl FnOnce()) -> Vec<u64> {
    const TRAP: u64 = 1 << 8;
    static HANDLED: Once = Once::new();
    HANDLED.call_once(|| {
        // SAFETY: the handler touches a value of its thread without a destructor, and memory that is there.
        unsafe { libc::signal(libc::SIGTRAP, trapped as extern "C" fn(c_int) as usize) };
    });
    let mut states = [0; MOST];
    // SAFETY: the caller's 8 bytes.
    states[0] = unsafe { at.cast::<u64>().read_volatile() };
    WATCHED.set(Some(Watched { at, states, count: 1 }));
    // SAFETY: a flag of this thread, which has a handler for what it does.
    unsafe { asm!("pushfq", "or qword ptr [rsp], {trap}", "popfq", trap = const TRAP) };
    store();
    // SAFETY: a flag of this thread, set by the same instructions above; it is cleared, and nothing else changes.
    unsafe { asm!("pushfq", "and qword ptr [rsp], {others}", "popfq", others = const !TRAP as i32) };
    let watched = WATCHED.take().expect("set above");
    watched.states[..watched.count].to_vec()
}
