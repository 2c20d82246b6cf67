//! Catches signals during a demo, which must remove its namespaces before it ends.

use std::os::fd::AsFd;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use nix::sys::signalfd::SignalFd;

use super::Failure;
use crate::signals;

/// Ctrl-C and other fatal signals, checked between rounds, so that everything is removed in order.
pub(super) struct Interrupt {
    signals: SignalFd,
}

impl Interrupt {
    pub(super) fn catch() -> Result<Interrupt, Failure> {
        Ok(Interrupt { signals: signals::catch()? })
    }

    pub(super) fn check(&self) -> Result<(), Failure> {
        let mut fds = [PollFd::new(self.signals.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, PollTimeout::ZERO) {
            Ok(1..) => Err(Failure::Interrupted(self.which())),
            _ => Ok(()),
        }
    }

    fn which(&self) -> Signal {
        let told = self.signals.read_signal().ok().flatten();
        told.and_then(|info| Signal::try_from(info.ssi_signo as i32).ok()).unwrap_or(Signal::SIGINT)
    }
}
