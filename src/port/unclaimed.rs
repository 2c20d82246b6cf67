//! Placeholder for a port that is not open yet: it has the properties, and moves no frames.
//!
//! A device that is only queried claims no interface. The first queue pair opens the real port, which replaces this
//! one.

use std::fmt::Arguments;
use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;

use super::{LinkChange, Port, PortInfo, Received, TxId};
use roxie_base::flow::FlowMatch;
use roxie_base::frame::FrameMut;
use roxie_base::time::Nanos;

/// Placeholder for a port that will be opened. See the module's page.
#[derive(Debug)]
pub struct UnclaimedPort {
    info: PortInfo,
}

impl UnclaimedPort {
    /// Returns a placeholder for a port with these properties.
    pub fn new(info: PortInfo) -> UnclaimedPort {
        UnclaimedPort { info }
    }
}

impl Port for UnclaimedPort {
    fn info(&self) -> &PortInfo {
        &self.info
    }

    fn rx_burst(&mut self, _now: Nanos) -> usize {
        0
    }

    fn rx_frame(&self, i: usize) -> Received<'_> {
        panic!("frame {i} of a port that is not open");
    }

    fn rx_note(&mut self, _i: usize, _note: Arguments<'_>) {}

    fn rx_release(&mut self) {}

    fn tx_alloc(&mut self, _len: usize) -> Option<TxId> {
        None
    }

    fn tx_frame(&mut self, id: &TxId) -> FrameMut<'_> {
        panic!("slot {} of a port that is not open", id.0);
    }

    fn tx_commit(&mut self, id: TxId) {
        panic!("slot {} of a port that is not open", id.0);
    }

    fn tx_cancel(&mut self, id: TxId) {
        panic!("slot {} of a port that is not open", id.0);
    }

    fn tx_flush(&mut self, _now: Nanos) -> io::Result<()> {
        Ok(())
    }

    fn tx_pending(&self) -> bool {
        false
    }

    fn event_fds(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    fn prepare_sleep(&mut self) -> bool {
        true
    }

    fn follow(&mut self, change: &LinkChange) -> io::Result<()> {
        self.info.follow(change);
        Ok(())
    }

    fn join(&mut self, group: IpAddr) -> io::Result<()> {
        Err(io::Error::other(format!("the port is not open yet: {group} is joined once it is")))
    }

    fn steer(&mut self, _flows: &[FlowMatch]) -> io::Result<()> {
        Err(io::Error::other("the port is not open yet: flows are steered once it is"))
    }

    fn counters(&self, _out: &mut Vec<(&'static str, u64)>) {}
}
