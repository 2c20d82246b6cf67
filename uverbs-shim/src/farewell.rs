//! The end of a process that leaves its device open, as many do: `exit`, a return from `main`, or `_exit`.
//!
//! An adapter outlives the program: what was posted is sent, and what came is acknowledged, before anything is taken down. Here the
//! NIC ends with the process, so this is done first, within a moment. With signals nothing is. A kernel also tells the peers of
//! `rdma_cm` that their connections are over: `roxie run` does, for programs that end in any way; without it this does, but for `_exit`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{
    AtomicBool,
    Ordering::{Acquire, Release},
};
use std::thread;
use std::time::{Duration, Instant};

use roxie::threads::spawn_unsignalled;

use crate::nic::Nic;
use crate::ucma;

/// How long peers that are connected may take to agree that they are no more.
const PARTING: Duration = Duration::from_millis(300);
/// How long sending may take. It takes no time, unless somebody else has the worker.
const SENDING: Duration = Duration::from_millis(50);
/// How long a capture may take to be written. Its thread writes every two milliseconds.
const WRITING: Duration = Duration::from_millis(200);
/// How often the thread that ends looks whether it may.
const LOOK: Duration = Duration::from_micros(200);

/// `compat.c` has it called when the process ends, in whichever thread that is.
///
/// That thread has lost its thread-local values, and may be in the handler of a signal that interrupted a call of ours, with its locks:
/// whatever it does for itself needs neither. Nor does it lose time with it. Other threads of the program may be on their way into
/// what it has closed; one of rping's then ends the process too, with an error, if it is the first.
#[unsafe(no_mangle)]
pub extern "C" fn roxie_farewell() {
    // In the child of a fork there is none, unless it has opened one: its parent's is its parent's.
    let Some(nic) = Nic::if_open() else { return };
    if ucma::has_to_part() {
        part();
    }
    send(&nic);
    roxie::capture::write_out(WRITING);
    // Others may use it while the process ends: it is not taken down any more.
    std::mem::forget(nic);
}

/// The same for `_exit`, which may be called in the handler of a signal, whatever that interrupted: nothing but the sending, which takes
/// no thread and no memory.
pub(crate) fn at_once() {
    let Some(nic) = Nic::if_open() else { return };
    send(&nic);
    std::mem::forget(nic);
}

fn send(nic: &Nic) {
    // After a pass that panics there is nothing more to do than without.
    let _ = catch_unwind(AssertUnwindSafe(|| nic.device.send_last(SENDING)));
}

/// In a thread of its own, which is not waited for if it gets stuck. To start it takes memory, which a process that `exit`s from the
/// handler of a signal in the midst of `malloc` has not: so only where there are peers to whom nobody else would say it.
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
