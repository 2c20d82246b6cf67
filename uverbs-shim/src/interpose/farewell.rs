//! End of a process that leaves its device open: `exit`, return from `main`, `_exit`, or `exec`.
//!
//! An adapter outlives the program: it sends the posted requests and acknowledges received packets before its objects
//! are destroyed. Here, the NIC ends with the process, so the same is done at exit, with a time limit. Nothing is done
//! for a process killed by a signal. A kernel also disconnects the peers of `rdma_cm`. `roxie run` does so for programs
//! that end in any way; without it, this module does, except for `_exit`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{
    AtomicBool,
    Ordering::{Acquire, Release},
};
use std::thread;
use std::time::{Duration, Instant};

use roxie::threads::spawn_unsignalled;

use crate::base::cancellation::Uncancelled;
use crate::device::nic::Nic;
use crate::ucma;

/// Maximum time for connected peers to confirm their disconnection.
const PARTING: Duration = Duration::from_millis(300);
/// Maximum time for sending. Sending takes no time unless another thread holds the worker.
const SENDING: Duration = Duration::from_millis(50);
/// Maximum time for the capture to be written. The capture thread writes every 2 ms.
const WRITING: Duration = Duration::from_millis(200);
/// Polling interval of the exiting thread.
const LOOK: Duration = Duration::from_micros(200);

/// Called by `compat.c` at process exit, in any thread.
///
/// The exiting thread has already lost its thread-local values. If it is in the handler of a signal that interrupted a
/// call of this library, that call may hold locks. Code that runs in this thread must therefore use neither, and must
/// not take long: other threads of the program may already use descriptors that it has closed. One of rping's threads
/// then ends the process with an error, if it is the first.
#[unsafe(no_mangle)]
pub extern "C" fn roxie_farewell() {
    // The child of a fork has no NIC unless it opened one itself.
    let Some(nic) = Nic::if_open() else { return };
    if ucma::has_to_part() {
        part();
    }
    send(&nic);
    roxie::port::pcap::write_out(WRITING);
    // Other threads may use the NIC until the process ends, so it is never dropped.
    std::mem::forget(nic);
}

/// Called by `exec.c` before a program replaces itself, from any thread or signal handler. If that fails, the program
/// goes on with its device.
#[unsafe(no_mangle)]
pub extern "C" fn roxie_before_exec() {
    if let Some(nic) = Nic::if_open() {
        let _uncancelled = Uncancelled::new();
        send(&nic);
    }
}

/// Handles `_exit`, which a signal handler may call at any point: only sends, which needs neither a thread nor memory.
pub(crate) fn at_once() {
    let Some(nic) = Nic::if_open() else { return };
    send(&nic);
    std::mem::forget(nic);
}

fn send(nic: &Nic) {
    // A pass that panics has nothing more to send.
    let _ = catch_unwind(AssertUnwindSafe(|| nic.device.send_last(SENDING)));
}

/// Disconnects in a separate thread, which is abandoned after a time limit. Done only if there are peers, and no
/// launcher to inform them: starting a thread takes memory, which is unavailable if a signal handler that interrupted
/// `malloc` calls `exit`.
fn part() {
    static DONE: AtomicBool = AtomicBool::new(false);
    let until = Instant::now() + PARTING;
    let started = spawn_unsignalled("roxie-farewell", || {
        let _ = catch_unwind(|| ucma::part(PARTING));
        DONE.store(true, Release);
    });
    while started.is_ok() && !DONE.load(Acquire) && Instant::now() < until {
        thread::sleep(LOOK);
    }
}
