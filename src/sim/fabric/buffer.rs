//! The shared buffer: admission of frames, and the decision to pause a peer.
//!
//! ```text
//! |<- reserved, each port and priority ->|<- shared ->|<- headroom, each port and lossless priority ->|
//! ```
//!
//! A frame is charged to its ingress port and priority. A lossy frame is admitted if its egress queue is below the
//! queue's threshold. A lossless frame is admitted up to the threshold of its ingress, then into its headroom, and the
//! peer is told to pause. Beyond the headroom the frame is dropped.

use super::config::{SwitchConfig, Threshold};
use super::error::PRIORITIES;
use super::stats::DropReason;

/// Accounting of the frames that came in at one port with one priority and have not left.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ingress {
    /// Bytes of the reserved and the shared part.
    pub(super) bytes: u64,
    pub(super) headroom: u64,
    /// Maximum of `headroom`.
    pub(super) headroom_peak: u64,
    /// True if the peer was told to pause.
    pub(super) paused: bool,
}

#[derive(Debug)]
pub(super) struct Buffer {
    cell: u64,
    reserved: u64,
    lossy: Threshold,
    lossless: Threshold,
    xon_offset: u64,
    shared: u64,
    shared_used: u64,
    used: u64,
    used_peak: u64,
    headroom: Vec<u64>,
    ingress: Vec<[Ingress; PRIORITIES]>,
}

impl Buffer {
    pub(super) fn new(config: &SwitchConfig) -> Buffer {
        Buffer {
            cell: config.cell.into(),
            reserved: config.reserved,
            lossy: config.lossy,
            lossless: config.lossless,
            xon_offset: config.pfc.as_ref().map_or(0, |pfc| pfc.xon_offset),
            shared: config.buffer - config.promised(),
            shared_used: 0,
            used: 0,
            used_peak: 0,
            headroom: (0..config.ports.len()).map(|port| config.headroom(port)).collect(),
            ingress: vec![Default::default(); config.ports.len()],
        }
    }

    pub(super) fn ingress(&self, port: usize, priority: usize) -> &Ingress {
        &self.ingress[port][priority]
    }

    /// Returns the bytes in use, and their maximum.
    pub(super) fn used(&self) -> (u64, u64) {
        (self.used, self.used_peak)
    }

    /// Returns the bytes that a frame occupies.
    pub(super) fn charge(&self, length: usize) -> u64 {
        (length as u64).next_multiple_of(self.cell)
    }

    fn free(&self) -> u64 {
        self.shared - self.shared_used
    }

    /// Returns the additional bytes of the shared part when an ingress grows from `before` to `after` bytes.
    fn shared_between(&self, before: u64, after: u64) -> u64 {
        after.saturating_sub(self.reserved) - before.saturating_sub(self.reserved)
    }

    fn threshold(&self) -> u64 {
        self.reserved + self.lossless.bytes(self.free())
    }

    /// Admits a frame to an egress queue that holds `queued` bytes.
    pub(super) fn admit(
        &mut self,
        port: usize,
        priority: usize,
        length: usize,
        lossless: bool,
        queued: u64,
    ) -> Result<(), DropReason> {
        let bytes = self.charge(length);
        let own = self.ingress[port][priority];
        let shared = self.shared_between(own.bytes, own.bytes + bytes);
        let fits = shared <= self.free();
        let in_headroom = if lossless {
            let below = fits && own.bytes + bytes <= self.threshold();
            if !below && own.headroom + bytes > self.headroom[port] {
                return Err(DropReason::Headroom);
            }
            !below
        } else {
            if shared > 0 && queued + bytes > self.lossy.bytes(self.free()) {
                return Err(DropReason::Threshold);
            }
            if !fits {
                return Err(DropReason::Full);
            }
            false
        };
        let own = &mut self.ingress[port][priority];
        if in_headroom {
            own.headroom += bytes;
            own.headroom_peak = own.headroom_peak.max(own.headroom);
        } else {
            own.bytes += bytes;
            self.shared_used += shared;
        }
        self.used += bytes;
        self.used_peak = self.used_peak.max(self.used);
        Ok(())
    }

    /// Releases a frame that has left. Headroom is released first.
    pub(super) fn release(&mut self, port: usize, priority: usize, length: usize) {
        let bytes = self.charge(length);
        let own = &mut self.ingress[port][priority];
        let from_headroom = own.headroom.min(bytes);
        own.headroom -= from_headroom;
        let before = own.bytes;
        own.bytes -= bytes - from_headroom;
        let after = own.bytes;
        self.shared_used -= self.shared_between(after, before);
        self.used -= bytes;
    }

    /// Returns true if the peer has to pause, because its headroom is in use.
    pub(super) fn must_pause(&self, port: usize, priority: usize) -> bool {
        let own = &self.ingress[port][priority];
        !own.paused && own.headroom > 0
    }

    /// Returns true if the paused peer may resume.
    pub(super) fn may_resume(&self, port: usize, priority: usize) -> bool {
        let own = &self.ingress[port][priority];
        let low = own.bytes == 0 || own.bytes + self.xon_offset <= self.threshold();
        own.paused && own.headroom == 0 && low
    }

    pub(super) fn set_paused(&mut self, port: usize, priority: usize, paused: bool) {
        self.ingress[port][priority].paused = paused;
    }
}
