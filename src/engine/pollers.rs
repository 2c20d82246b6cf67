//! Who polls: what callers that poll tell one another.

use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize};

use nix::sys::eventfd::{EfdFlags, EventFd};

use super::watch::NOTHING;

/// Who polls, and how it goes.
#[derive(Debug)]
pub(super) struct Pollers {
    /// Since when callers have found nothing, and not given way; and in how many passes.
    pub(super) empty_since: AtomicU64,
    pub(super) empty: AtomicU32,
    /// The thread that polled last, and when another one did before it.
    pub(super) poller: AtomicUsize,
    pub(super) others_at: AtomicU64,
    /// How often a poller was kept off its processor, and since when that is counted.
    pub(super) gaps: AtomicU32,
    pub(super) gaps_since: AtomicU64,
    /// Until when the processors are taken to be busy with other programs.
    pub(super) crowded_until: AtomicU64,
    /// Pollers that sleep on the link for a moment, and what wakes them when a pass of somebody else brings completions.
    pub(super) dozing: AtomicU32,
    pub(super) stir: EventFd,
}

impl Pollers {
    pub(super) fn new() -> io::Result<Pollers> {
        Ok(Pollers {
            empty_since: AtomicU64::new(NOTHING),
            empty: AtomicU32::new(0),
            poller: AtomicUsize::new(0),
            others_at: AtomicU64::new(0),
            gaps: AtomicU32::new(0),
            gaps_since: AtomicU64::new(0),
            crowded_until: AtomicU64::new(0),
            dozing: AtomicU32::new(0),
            stir: EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?,
        })
    }
}
