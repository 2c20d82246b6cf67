//! Waiting: for the next completion, for late retransmissions of the peer, for the capture to be written.

use std::time::{Duration, Instant};

use roxie::host::Device;
use roxie_report::failure::Failure;

use super::options::DeviceOptions;

/// Yields the processor after many empty polls. On few cores, the peer may need this processor.
#[derive(Debug, Default)]
pub struct IdleYield {
    idle: u32,
}

impl IdleYield {
    /// Empty polls before a yield: some tens of microseconds.
    const SPINS: u32 = 128;

    /// Records whether a poll found something.
    pub fn found(&mut self, something: bool) {
        self.idle = if something { 0 } else { self.idle + 1 };
        if self.idle >= Self::SPINS {
            self.idle = 0;
            std::thread::yield_now();
        }
    }
}

/// Polls the device until nothing has arrived for a while, to answer a peer that lost the last acknowledgement and
/// retransmits.
pub fn linger(device: &Device, timeout_code: u8) {
    // The peer retransmits after one to four times its timeout; assume that both ends use the same.
    let quiet = Duration::from_nanos(4 * (4_096u64 << timeout_code.min(17))).max(Duration::from_millis(50));
    let (mut seen, mut since) = (device.counter("rcvd_pkts"), Instant::now());
    while since.elapsed() < quiet {
        if !device.poll() {
            std::thread::sleep(Duration::from_micros(200));
        }
        let now = device.counter("rcvd_pkts");
        if now != seen {
            (seen, since) = (now, Instant::now());
        }
    }
}

impl DeviceOptions {
    /// Waits until the capture is written. Returns at once without a capture.
    ///
    /// # Errors
    ///
    /// If the capture is incomplete.
    pub fn finish_capture(&self, device: &Device) -> Result<(), Failure> {
        /// Longest time without progress of the file.
        const STANDSTILL: Duration = Duration::from_secs(2);
        let Some(path) = &self.capture else { return Ok(()) };
        let broken =
            |why: String| Err(Failure::Run(format!("the capture {} is not whole: {why}", path.display())));
        let (mut left, mut moved) = (u64::MAX, Instant::now());
        loop {
            let now = device.counter("pcap_unwritten_bytes");
            match device.counter("pcap_write_errors") {
                0 => {}
                n => return broken(format!("{n} frames or more could not be written; is the disk full?")),
            }
            if now == 0 {
                break;
            }
            if now < left {
                (left, moved) = (now, Instant::now());
            } else if moved.elapsed() > STANDSTILL {
                return broken(format!(
                    "{now} bytes are not written yet, and writing has stopped: is the pipe being read?"
                ));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        match device.counter("pcap_skipped") {
            0 => Ok(()),
            n => broken(format!(
                "{n} frames were left out, since its disk or reader was slower than the traffic"
            )),
        }
    }
}
