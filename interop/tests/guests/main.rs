//! Roxie beside Linux guests in QEMU, and the tables of what it makes of invalid packets.

#![deny(unsafe_code)]

mod cable;
mod cm;
mod guest;
mod links;
mod smb;
mod storage;
mod users;
mod wrong;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Waits for the turn of a test with guests: an emulated one takes a core, and has deadlines.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
