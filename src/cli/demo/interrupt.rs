//! Catches signals during a demo, which must remove its namespaces before it ends.

use std::time::Duration;

use nix::sys::signalfd::SignalFd;
use roxie_report::signals;

use super::Failure;

/// Ctrl-C and other fatal signals, checked between rounds, so that everything is removed in order.
pub(super) struct Interrupt {
    signals: SignalFd,
}

impl Interrupt {
    pub(super) fn catch() -> Result<Interrupt, Failure> {
        Ok(Interrupt { signals: signals::catch()? })
    }

    pub(super) fn check(&self) -> Result<(), Failure> {
        signals::next(&self.signals, Duration::ZERO)
            .map_or(Ok(()), |signal| Err(Failure::Interrupted(signal)))
    }
}
