//! The end of a process that leaves its device open, as many do: `exit`, a return from `main`, or `_exit`.
//!
//! An adapter outlives the program: what was posted is sent, and what came is acknowledged, before anything is taken down. Here the
//! NIC ends with the process, so this is done first, within a moment. With signals nothing is. A kernel also tells the peers of
//! `rdma_cm` that their connections are over: `roxie run` does, for programs that end in any way; without it this does, but for `_exit`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool,
    Ordering::{Acquire, Release},
};
use std::thread;
use std::time::{Duration, Instant};

use roxie::threads::spawn_unsignalled;

use crate::nic::Nic;
use crate::{device, ucma};

/// How long peers that are connected may take to agree that they are no more.
const PARTING: Duration = Duration::from_millis(300);
/// How long sending may take. It takes no time, unless somebody else has the worker.
const SENDING: Duration = Duration::from_millis(50);
/// How long a capture may take to be written. Its thread writes every two milliseconds.
const WRITING: Duration = Duration::from_millis(200);
/// How often the thread that ends looks whether it may.
const LOOK: Duration = Duration::from_micros(200);

/// `compat.c` has it called when the process ends, in whichever thread that is.
#[unsafe(no_mangle)]
pub extern "C" fn roxie_farewell() {
    // In the child of a fork there is none, unless it has opened one: its parent's is its parent's.
    let Some(nic) = Nic::if_open() else { return };
    let settings = device::settings();
    if settings.capture.is_none() && settings.estate.is_some() {
        // At once: until the process is gone another of its threads may find what the program has closed, and end it with a status
        // of its own (rping).
        nic.device.send_last(SENDING);
        std::mem::forget(nic);
        return;
    }
    static SAID: AtomicBool = AtomicBool::new(false);
    // In a thread of its own: the one that ends has lost its thread-local values, and may be in the handler of a signal that
    // interrupted a call of ours, with its locks. So that one does nothing but wait, and not for ever.
    let until = Instant::now() + PARTING + SENDING + WRITING;
    let last = Arc::clone(&nic);
    let started = spawn_unsignalled("roxie-farewell", move || {
        let _ = catch_unwind(AssertUnwindSafe(|| say_it(&last)));
        SAID.store(true, Release);
        // Others may use it while the process ends: it is not taken down any more.
        std::mem::forget(last);
    });
    while started.is_ok() && !SAID.load(Acquire) && Instant::now() < until {
        thread::sleep(LOOK);
    }
    std::mem::forget(nic);
}

/// The same for `_exit`, which may be called in the handler of a signal, whatever that interrupted: nothing but the sending, which takes
/// no thread and no memory.
pub(crate) fn at_once() {
    let Some(nic) = Nic::if_open() else { return };
    nic.device.send_last(SENDING);
    std::mem::forget(nic);
}

fn say_it(nic: &Nic) {
    ucma::part(PARTING);
    nic.device.send_last(SENDING);
    roxie::capture::write_out(WRITING);
}
