//! What stacks on a port: faults, frames to own addresses, captures.

use std::fs::File;
use std::path::PathBuf;

use super::error::OpenError;
use crate::port::Port;
use crate::port::fault::{FaultConfig, FaultPort};
use crate::port::loopback::LoopbackPort;
use crate::port::pcap::{PcapPort, Timestamps};

/// Frames to own addresses that may be under way.
const LOOPBACK_DEPTH: usize = 512;

/// What stacks on a port.
#[derive(Clone, Debug, Default)]
pub struct Stack {
    /// Faults that are injected, by a layer over the port.
    pub fault: Option<FaultConfig>,
    /// Where to write a capture of both directions, with the NIC's reasons as comments.
    pub capture: Option<PathBuf>,
}

impl Stack {
    /// The port with everything on it: faults next to the link, frames to own addresses turned round above them, and
    /// the capture above all, so that it sees what the NIC sees.
    ///
    /// # Errors
    /// If the capture cannot be written.
    pub fn on(&self, port: Box<dyn Port>) -> Result<Box<dyn Port>, OpenError> {
        let port: Box<dyn Port> = match &self.fault {
            Some(faults) => Box::new(FaultPort::new(port, faults)),
            None => port,
        };
        let port = Box::new(LoopbackPort::new(port, LOOPBACK_DEPTH));
        let Some(path) = &self.capture else { return Ok(port) };
        let failed = |source| OpenError::Capture { path: path.clone(), source };
        let file = File::create(path).map_err(failed)?;
        Ok(Box::new(PcapPort::to_file(port, file, Timestamps::WallClock).map_err(failed)?))
    }
}
