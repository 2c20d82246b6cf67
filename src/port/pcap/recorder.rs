//! The writer of a capture: time stamps, limits, and the count of frames that were left out.

use std::fmt::Arguments;
use std::fs::File;
use std::io::{self, Write};
use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::background::{Background, Progress, Writes};
use roxie_base::capture::{Direction, PcapngWriter, statistics_block};
use roxie_base::frame::Frame;
use roxie_base::time::Nanos;

/// Bytes of a block beyond frame and comment, roughly, for the size limit.
const BLOCK_OVERHEAD: u64 = 48;
/// Queue of a live capture in bytes: 10 ms of traffic at 25 Gb/s, while its reader waits for a processor. The thread
/// holds as much again.
const LIVE_QUEUE: usize = 32 << 20;

/// Source of timestamps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timestamps {
    /// Wall-clock time: the first `now` is taken as the time of day then.
    WallClock,
    /// `now` itself, for virtual time: one seed gives the same capture to the byte.
    Virtual,
}

/// Writes frames to a pcapng stream. Kept apart from the port that lends the frames.
pub struct Recorder<W: Write> {
    writer: PcapngWriter<W>,
    timestamps: Timestamps,
    /// Nanoseconds from the Unix epoch to the zero of `now`, which all recorders of a stream share. Empty until the
    /// first call.
    epoch: Arc<OnceLock<u64>>,
    now: Nanos,
    /// Bytes that may still be written.
    budget: u64,
    written: u64,
    skipped: u64,
    /// Frames skipped since the last one that was written.
    missing: u64,
    failed: u64,
    /// Progress of the thread that writes the file, if there is one.
    progress: Option<Progress>,
    /// True if a reader in another process is told of gaps and failures, and the log of this process is not.
    is_live: bool,
}

impl<W: Write> Recorder<W> {
    /// Returns a recorder of an interface's frames. Writes about `max_bytes` at most, if given.
    ///
    /// # Errors
    /// If the header cannot be written.
    pub fn new(
        interface: &str,
        out: W,
        timestamps: Timestamps,
        max_bytes: Option<u64>,
    ) -> io::Result<Recorder<W>> {
        let writer = PcapngWriter::new(out, &[interface])?;
        Ok(Recorder::on(writer, timestamps, max_bytes.unwrap_or(u64::MAX), None))
    }

    fn on(
        writer: PcapngWriter<W>,
        timestamps: Timestamps,
        budget: u64,
        progress: Option<Progress>,
    ) -> Recorder<W> {
        Recorder {
            writer,
            timestamps,
            epoch: Arc::default(),
            now: Nanos::ZERO,
            budget,
            written: 0,
            skipped: 0,
            missing: 0,
            failed: 0,
            progress,
            is_live: false,
        }
    }

    /// Sets the time of the next frames.
    pub fn set_now(&mut self, now: Nanos) {
        self.now = now;
        self.epoch.get_or_init(|| match self.timestamps {
            Timestamps::Virtual => 0,
            Timestamps::WallClock => wall_clock().saturating_sub(now.0),
        });
    }

    pub(super) fn write(&mut self, direction: Direction, frame: &Frame<'_>, note: &str) {
        let size = frame.len() as u64 + note.len() as u64 + BLOCK_OVERHEAD;
        if size > self.budget {
            // No later frame is written: a capture with holes would mislead.
            self.budget = 0;
            self.skipped += 1;
            return;
        }
        self.budget -= size;
        let timestamp_ns = self.epoch.get().unwrap_or(&0).saturating_add(self.now.0);
        let holed;
        let comment = match self.missing {
            0 => (!note.is_empty()).then_some(note),
            n => {
                let joint = if note.is_empty() { "" } else { "; " };
                holed = format!("capture: {n} frames before this one were not written{joint}{note}");
                Some(&holed[..])
            }
        };
        match self.writer.write(0, timestamp_ns, direction, frame, comment) {
            Ok(()) => {
                self.written += 1;
                self.missing = 0;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.leave_out(),
            Err(error) => self.fail(&error),
        }
    }

    fn leave_out(&mut self) {
        self.skipped += 1;
        self.missing += 1;
        if self.skipped == 1 {
            self.warn(format_args!(
                "its disk or reader is slower than the traffic, frames are left out (pcap_skipped counts them, \
                 comments show where)"
            ));
        }
    }

    fn fail(&mut self, error: &io::Error) {
        self.failed += 1;
        if self.failed == 1 {
            self.warn(format_args!(
                "writing failed: {error}; traffic goes on, the capture does not (pcap_write_errors counts frames)"
            ));
        }
    }

    /// Brings the file up to date.
    pub(super) fn flush(&mut self) {
        if self.failed == 0
            && let Err(error) = self.writer.flush()
        {
            self.fail(&error);
        }
    }

    /// Appends the capture's counters to `out`.
    pub(super) fn counters(&self, out: &mut Vec<(&'static str, u64)>) {
        if self.is_live {
            out.extend([("live_capture_packets", self.written), ("live_capture_skipped", self.skipped)]);
            return;
        }
        // The thread may have failed after it took the last frame.
        let failed = self.progress.as_ref().is_some_and(Progress::has_failed);
        out.extend([
            ("pcap_packets", self.written),
            ("pcap_skipped", self.skipped),
            ("pcap_write_errors", self.failed.max(failed.into())),
            ("pcap_unwritten_bytes", self.progress.as_ref().map_or(0, |p| p.unwritten() as u64)),
        ]);
    }

    fn warn(&self, text: Arguments<'_>) {
        if !self.is_live {
            tracing::warn!("capture: {text}");
        }
    }
}

impl Recorder<Background> {
    /// Returns a recorder whose file a thread writes: a pipe without a reader stops no traffic.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn to_file(interface: &str, file: File, timestamps: Timestamps) -> io::Result<Recorder<Background>> {
        let out = Background::new(file)?;
        let progress = out.progress();
        let writer = PcapngWriter::new(out, &[interface])?;
        Ok(Recorder::on(writer, timestamps, u64::MAX, Some(progress)))
    }

    /// Returns a recorder for a reader in another process, which gets frames of `snap_length` bytes at most (0: whole
    /// ones). If the reader is too slow, frames are left out: blocks of interface statistics count them, and the stream
    /// ends with one.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn live(
        interface: &str,
        out: impl Write + Send + 'static,
        snap_length: u32,
    ) -> io::Result<Recorder<Background>> {
        let statistics = |writes: Writes| {
            // The first write is the header.
            let frames = writes.queued.saturating_sub(1) + writes.refused;
            statistics_block(0, wall_clock(), frames, writes.refused)
        };
        let out = Background::with_statistics(out, LIVE_QUEUE, Box::new(statistics))?;
        let progress = out.progress();
        let writer = PcapngWriter::with_snap_length(out, &[interface], snap_length)?;
        let mut recorder = Recorder::on(writer, Timestamps::WallClock, u64::MAX, Some(progress));
        recorder.is_live = true;
        Ok(recorder)
    }

    /// Returns recorders for `count` ports of the interface, at least one: this one, and others to its stream.
    pub fn for_ports(mut self, count: usize) -> Vec<Recorder<Background>> {
        let mut others: Vec<_> = (1..count).map(|_| self.continued()).collect();
        others.insert(0, self);
        others
    }

    fn continued(&mut self) -> Recorder<Background> {
        let out = self.writer.get_mut().clone();
        let mut recorder = Recorder::on(self.writer.continued_on(out), self.timestamps, self.budget, None);
        (recorder.epoch, recorder.is_live) = (Arc::clone(&self.epoch), self.is_live);
        recorder
    }

    /// Returns a handle to observe the thread's progress.
    pub fn progress(&mut self) -> Progress {
        self.writer.get_mut().progress()
    }

    /// Ends the stream once all frames are written, without waiting for that. No other recorder writes to it any more.
    pub fn close(mut self) {
        self.writer.get_mut().close();
    }
}

impl<W: Write> Drop for Recorder<W> {
    fn drop(&mut self) {
        if self.failed == 0
            && let Err(error) = self.writer.flush()
        {
            self.warn(format_args!("the end of it was not written: {error}"));
        }
    }
}

/// Returns the time of day in ns since the Unix epoch.
fn wall_clock() -> u64 {
    Nanos::from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()).0
}
