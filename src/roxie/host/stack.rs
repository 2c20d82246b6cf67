//! Layers on a port: fault injection, loopback, captures.

use std::fs::File;
use std::path::PathBuf;

use super::error::OpenError;
use super::packet_rule::PacketRule;
use roxie_port::Port;
use roxie_port::fault::{FaultConfig, FaultPort};
use roxie_port::loopback::LoopbackPort;
use roxie_port::pcap::{PcapPort, Recorder, Timestamps};

/// Maximum number of looped-back frames in flight.
const LOOPBACK_DEPTH: usize = 512;

/// Optional layers on a port.
#[derive(Clone, Debug, Default)]
pub struct Stack {
    /// Faults to inject.
    pub fault: Option<FaultConfig>,
    /// Faults of chosen packets: sent ones (`from=self`), received ones (`from=peer`), or both.
    pub rules: Vec<PacketRule>,
    /// File for a capture of both directions, with the NIC's reasons as comments.
    pub capture: Option<PathBuf>,
}

impl Stack {
    /// Returns the port with its layers: fault injection next to the link, loopback of frames to own addresses above
    /// it, and the capture on top, so that it shows what the NIC sees.
    ///
    /// # Errors
    /// If the capture cannot be written, or a rule names another end than `self` and `peer`.
    pub fn on(&self, port: Box<dyn Port>) -> Result<Box<dyn Port>, OpenError> {
        self.on_at(port, Timestamps::WallClock)
    }

    /// Like [`on`](Self::on), with these times in the capture.
    pub(super) fn on_at(&self, port: Box<dyn Port>, times: Timestamps) -> Result<Box<dyn Port>, OpenError> {
        Ok(self.on_all_at(vec![port], times)?.remove(0))
    }

    /// Like [`on`](Self::on), for the ports of several workers. There is one capture for all.
    ///
    /// # Errors
    /// The errors of [`on`](Self::on).
    pub(super) fn on_all(&self, ports: Vec<Box<dyn Port>>) -> Result<Vec<Box<dyn Port>>, OpenError> {
        self.on_all_at(ports, Timestamps::WallClock)
    }

    fn on_all_at(
        &self,
        ports: Vec<Box<dyn Port>>,
        times: Timestamps,
    ) -> Result<Vec<Box<dyn Port>>, OpenError> {
        let ports = ports.into_iter().map(|port| self.below_capture(port));
        let ports = ports.collect::<Result<Vec<_>, _>>()?;
        let (Some(path), Some(first)) = (&self.capture, ports.first()) else { return Ok(ports) };
        let file = File::create(path);
        let name = first.info().interface_or_name();
        let recorder = file.and_then(|file| Recorder::to_file(name, file, times));
        let recorder = recorder.map_err(|source| OpenError::Capture { path: path.clone(), source })?;
        let recorders = recorder.for_ports(ports.len());
        let captured = |(port, recorder)| Box::new(PcapPort::with_recorder(port, recorder)) as Box<dyn Port>;
        Ok(ports.into_iter().zip(recorders).map(captured).collect())
    }

    /// Returns the port with its layers but the capture.
    fn below_capture(&self, port: Box<dyn Port>) -> Result<Box<dyn Port>, OpenError> {
        let port: Box<dyn Port> = if self.fault.is_none() && self.rules.is_empty() {
            port
        } else {
            let mut port = FaultPort::new(port, &self.fault.clone().unwrap_or_default());
            for rule in &self.rules {
                for direction in rule.directions()? {
                    let (test, _) = rule.matcher();
                    port = port.with_rule(direction, rule.fault, test);
                }
            }
            Box::new(port)
        };
        Ok(Box::new(LoopbackPort::new(port, LOOPBACK_DEPTH)))
    }
}
