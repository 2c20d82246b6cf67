//! A layer that captures all frames in pcapng, with the NIC's reasons as packet comments.
//!
//! Received frames are written when they are released, after the NIC has noted what it did with them. Sent frames are
//! written when they are committed. The notes become packet comments.
//!
//! A capture never stops traffic. A thread ([`Background`]) writes the file. If the disk or the reader
//! of a pipe is too slow and the queue is full, frames are left out and counted; the comment of the next frame says how
//! many are missing. The first failure ends the file and is reported.

use std::fmt::{Arguments, Write as _};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::BorrowedFd;
use std::time::{SystemTime, UNIX_EPOCH};

use super::undelivered::Undelivered;
use super::{BURST, LinkChange, Port, PortInfo, Received, RxOptions, TxId};
pub use crate::background::{Background, Progress, write_out};
use roxie_base::capture::{Direction, PcapngWriter};
use roxie_base::frame::{Frame, FrameMut};
use roxie_base::time::Nanos;

/// Number of slots that may have notes before their commit.
const TX_NOTES: usize = 4 * BURST;
/// Bytes of a block beyond frame and comment, roughly, for the size limit.
const BLOCK_OVERHEAD: u64 = 48;

/// Source of timestamps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timestamps {
    /// Wall-clock time: the first `now` is taken as the time of day then.
    WallClock,
    /// `now` itself, for virtual time: one seed gives the same capture to the byte.
    Virtual,
}

/// Writes both directions of the port below to a pcapng stream. See the module's page.
pub struct PcapPort<P, W: Write> {
    inner: P,
    info: PortInfo,
    tee: Tee<W>,
    /// Number of frames in the current receive burst; their notes follow.
    received: usize,
    rx_notes: Vec<String>,
    tx_notes: Vec<(u32, String)>,
    spare_notes: Vec<String>,
    /// Progress of the thread that writes the file, if there is one.
    progress: Option<Progress>,
}

impl<P: Port> PcapPort<P, Background> {
    /// Wraps `inner` in a capture that a thread writes to `file`: a pipe without a reader stops no traffic.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn to_file(inner: P, file: File, timestamps: Timestamps) -> io::Result<PcapPort<P, Background>> {
        let out = Background::new(file)?;
        let progress = out.progress();
        let port = PcapPort::new(inner, out, timestamps, None)?;
        Ok(PcapPort { progress: Some(progress), ..port })
    }
}

impl<P: Port, W: Write + Send> PcapPort<P, W> {
    /// Wraps `inner` in a capture. Writes about `max_bytes` at most, if given; later frames are counted as skipped.
    ///
    /// # Errors
    /// If the header cannot be written.
    pub fn new(
        inner: P,
        out: W,
        timestamps: Timestamps,
        max_bytes: Option<u64>,
    ) -> io::Result<PcapPort<P, W>> {
        let mut info = inner.info().clone();
        info.name = format!("pcap({})", info.name);
        let interface = info.interface.clone().unwrap_or_else(|| info.name.clone());
        Ok(PcapPort {
            tee: Tee {
                writer: PcapngWriter::new(out, &[&interface])?,
                timestamps,
                epoch: None,
                now: Nanos::ZERO,
                budget: max_bytes.unwrap_or(u64::MAX),
                written: 0,
                skipped: 0,
                missing: 0,
                failed: 0,
            },
            inner,
            info,
            received: 0,
            rx_notes: vec![String::new(); BURST],
            tx_notes: Vec::with_capacity(TX_NOTES),
            spare_notes: vec![String::new(); TX_NOTES],
            progress: None,
        })
    }

    /// Returns the port below.
    pub fn inner(&self) -> &P {
        &self.inner
    }
}

/// The writer, kept apart from the port that lends the frame.
struct Tee<W: Write> {
    writer: PcapngWriter<W>,
    timestamps: Timestamps,
    /// Nanoseconds from the Unix epoch to the zero of `now`. `None` until the first call.
    epoch: Option<u64>,
    now: Nanos,
    /// Bytes that may still be written.
    budget: u64,
    written: u64,
    skipped: u64,
    /// Frames skipped since the last one that was written.
    missing: u64,
    failed: u64,
}

impl<W: Write> Tee<W> {
    fn set_now(&mut self, now: Nanos) {
        self.now = now;
        let timestamps = self.timestamps;
        self.epoch.get_or_insert_with(|| match timestamps {
            Timestamps::Virtual => 0,
            Timestamps::WallClock => {
                let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                Nanos::from(since).since(now).0
            }
        });
    }

    fn write(&mut self, direction: Direction, frame: &Frame<'_>, note: &str) {
        let size = frame.len() as u64 + note.len() as u64 + BLOCK_OVERHEAD;
        if size > self.budget {
            // No later frame is written: a capture with holes would mislead.
            self.budget = 0;
            self.skipped += 1;
            return;
        }
        self.budget -= size;
        let timestamp_ns = self.epoch.unwrap_or(0).saturating_add(self.now.0);
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
            warn(format_args!(
                "its disk or reader is slower than the traffic, frames are left out (pcap_skipped counts them, \
                 comments show where)"
            ));
        }
    }

    fn fail(&mut self, error: &io::Error) {
        self.failed += 1;
        if self.failed == 1 {
            warn(format_args!(
                "writing failed: {error}; traffic goes on, the capture does not (pcap_write_errors counts frames)"
            ));
        }
    }
}

impl<P: Port, W: Write + Send> Port for PcapPort<P, W> {
    fn info(&self) -> &PortInfo {
        &self.info
    }

    fn rx_burst(&mut self, now: Nanos) -> usize {
        self.tee.set_now(now);
        self.received = self.inner.rx_burst(now);
        self.received
    }

    fn rx_frame(&self, i: usize) -> Received<'_> {
        self.inner.rx_frame(i)
    }

    /// Joins several notes on one frame by semicolons.
    fn rx_note(&mut self, i: usize, note: Arguments<'_>) {
        append(&mut self.rx_notes[i], note);
        self.inner.rx_note(i, note);
    }

    fn rx_release(&mut self) {
        for i in 0..std::mem::take(&mut self.received) {
            let frame = self.inner.rx_frame(i).frame;
            self.tee.write(Direction::In, &frame, &self.rx_notes[i]);
            self.rx_notes[i].clear();
        }
        self.inner.rx_release();
    }

    fn tx_alloc(&mut self, len: usize) -> Option<TxId> {
        self.inner.tx_alloc(len)
    }

    fn tx_frame(&mut self, id: &TxId) -> FrameMut<'_> {
        self.inner.tx_frame(id)
    }

    fn tx_arrange(&mut self) {
        self.inner.tx_arrange();
    }

    fn tx_commit(&mut self, id: TxId) {
        let note = take_note(&mut self.tx_notes, &id);
        let text = note.as_deref().unwrap_or_default();
        self.tee.write(Direction::Out, &self.inner.tx_frame(&id).as_frame(), text);
        self.spare_notes.extend(note);
        self.inner.tx_commit(id);
    }

    fn tx_note(&mut self, id: &TxId, note: Arguments<'_>) {
        self.inner.tx_note(id, note);
        if let Some((_, text)) = self.tx_notes.iter_mut().rev().find(|(slot, _)| *slot == id.0) {
            append(text, note);
        } else if let Some(mut text) = self.spare_notes.pop() {
            text.clear();
            append(&mut text, note);
            self.tx_notes.push((id.0, text));
        }
    }

    fn tx_cancel(&mut self, id: TxId) {
        self.spare_notes.extend(take_note(&mut self.tx_notes, &id));
        self.inner.tx_cancel(id);
    }

    fn tx_flush(&mut self, now: Nanos) -> io::Result<()> {
        self.tee.set_now(now);
        self.inner.tx_flush(now)
    }

    fn rx_waiting(&mut self) -> Option<(usize, usize)> {
        self.inner.rx_waiting()
    }

    fn set_rx_wishes(&mut self, wishes: RxOptions) -> io::Result<()> {
        self.inner.set_rx_wishes(wishes)
    }

    fn set_vlans(&mut self, addresses: &[(std::net::IpAddr, u16)]) -> io::Result<()> {
        self.inner.set_vlans(addresses)
    }

    fn expect_frames(&mut self, frames: usize) {
        self.inner.expect_frames(frames);
    }

    fn wants_notes(&self) -> bool {
        true
    }

    fn is_sent(&mut self, id: &TxId) -> bool {
        self.inner.is_sent(id)
    }

    fn tx_pending(&self) -> bool {
        self.inner.tx_pending()
    }

    fn next_event(&self) -> Nanos {
        self.inner.next_event()
    }

    fn undelivered(&self) -> io::Result<Option<Undelivered>> {
        self.inner.undelivered()
    }

    fn event_fds(&self) -> Vec<BorrowedFd<'_>> {
        self.inner.event_fds()
    }

    /// Flushes the file as well, so that it is up to date while the engine sleeps.
    fn prepare_sleep(&mut self) -> bool {
        if self.tee.failed == 0
            && let Err(error) = self.tee.writer.flush()
        {
            self.tee.fail(&error);
        }
        self.inner.prepare_sleep()
    }

    fn follow(&mut self, change: &LinkChange) -> io::Result<()> {
        self.inner.follow(change)?;
        self.info.renew(self.inner.info());
        Ok(())
    }

    fn counters(&self, out: &mut Vec<(&'static str, u64)>) {
        self.inner.counters(out);
        // The thread may have failed after it took the last frame.
        let failed = self.progress.as_ref().is_some_and(Progress::has_failed);
        out.extend([
            ("pcap_packets", self.tee.written),
            ("pcap_skipped", self.tee.skipped),
            ("pcap_write_errors", self.tee.failed.max(failed.into())),
            ("pcap_unwritten_bytes", self.progress.as_ref().map_or(0, |p| p.unwritten() as u64)),
        ]);
    }
}

impl<W: Write> Drop for Tee<W> {
    fn drop(&mut self) {
        if self.failed == 0
            && let Err(error) = self.writer.flush()
        {
            warn(format_args!("the end of it was not written: {error}"));
        }
    }
}

fn warn(text: Arguments<'_>) {
    tracing::warn!("capture: {text}");
}

fn append(text: &mut String, note: Arguments<'_>) {
    if !text.is_empty() {
        text.push_str("; ");
    }
    // Writing to a String cannot fail; a Display that does leaves a shorter note.
    let _ = text.write_fmt(note);
}

fn take_note(notes: &mut Vec<(u32, String)>, id: &TxId) -> Option<String> {
    // Slots are mostly committed in the order of their notes, so the search is short.
    let place = notes.iter().position(|(slot, _)| *slot == id.0)?;
    Some(notes.remove(place).1)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::memory::{self, MemoryConfig, MemoryPort};

    /// A file that tests read while it is written, and that fails on request.
    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<(Vec<u8>, bool)>>);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut file = self.0.lock().unwrap();
            if file.1 {
                return Err(io::Error::other("disk full"));
            }
            file.0.extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Returns (timestamp, frame, options) of each enhanced packet block, found by the block lengths alone.
    fn packets(file: &Shared) -> Vec<(u64, Vec<u8>, Vec<u8>)> {
        let bytes = file.0.lock().unwrap().0.clone();
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        let (mut at, mut all) = (0, Vec::new());
        while at < bytes.len() {
            let len = word(at + 4) as usize;
            if word(at) == 6 {
                let time = u64::from(word(at + 12)) << 32 | u64::from(word(at + 16));
                let frame_len = word(at + 20) as usize;
                let options = at + 28 + frame_len.next_multiple_of(4);
                let frame = bytes[at + 28..at + 28 + frame_len].to_vec();
                all.push((time, frame, bytes[options..at + len - 4].to_vec()));
            }
            at += len;
        }
        all
    }

    fn says(options: &[u8], text: &str) -> bool {
        options.windows(text.len()).any(|w| w == text.as_bytes())
    }

    fn capture(max_bytes: Option<u64>) -> (PcapPort<MemoryPort, Shared>, MemoryPort, Shared) {
        let file = Shared::default();
        let (a, b) =
            memory::pair(MemoryConfig { split: Some(3), ..MemoryConfig::default() }, MemoryConfig::default());
        let port = PcapPort::new(a, file.clone(), Timestamps::Virtual, max_bytes).expect("a capture");
        (port, b, file)
    }

    fn send(port: &mut impl Port, bytes: &[u8], note: Option<&str>) {
        let id = port.tx_alloc(bytes.len()).expect("room");
        port.tx_frame(&id).write(0, bytes);
        if let Some(note) = note {
            port.tx_note(&id, format_args!("{note}"));
        }
        port.tx_commit(id);
    }

    #[test]
    fn both_directions_are_captured_with_notes_and_times() {
        let (mut a, mut b, file) = capture(None);
        assert!(a.wants_notes());
        a.rx_burst(Nanos(1_000));
        a.rx_release();
        send(&mut a, b"leaves", Some("retransmit: PSN 1042, try 2 of 7"));
        send(&mut a, b"without", None);
        a.tx_flush(Nanos(1_500)).unwrap();
        send(&mut b, b"arrives", None);
        b.tx_flush(Nanos::ZERO).unwrap();
        assert_eq!(a.rx_burst(Nanos(2_000)), 1);
        a.rx_note(0, format_args!("duplicate"));
        a.rx_note(0, format_args!("acknowledged again"));
        assert_eq!(packets(&file).len(), 2, "received frames wait for their notes");
        a.rx_release();
        let all = packets(&file);
        let frames: Vec<_> = all.iter().map(|p| (p.0, &p.1[..])).collect();
        assert_eq!(frames, [(1_000, &b"leaves"[..]), (1_000, b"without"), (2_000, b"arrives")]);
        assert!(says(&all[0].2, "retransmit: PSN 1042, try 2 of 7"));
        assert!(!says(&all[1].2, "retransmit"), "a note stays with its frame");
        assert!(says(&all[2].2, "duplicate; acknowledged again"));
        assert_eq!(b.rx_burst(Nanos::ZERO), 2, "traffic passes");
    }

    #[test]
    fn cancelled_frames_notes_are_discarded() {
        let (mut a, _b, file) = capture(None);
        let id = a.tx_alloc(4).unwrap();
        a.tx_note(&id, format_args!("never sent"));
        a.tx_cancel(id);
        a.tx_flush(Nanos::ZERO).unwrap();
        send(&mut a, b"next", None);
        let all = packets(&file);
        assert!(all.len() == 1 && !says(&all[0].2, "never sent"));
    }

    #[test]
    fn a_full_disk_is_counted_and_stops_nothing() {
        let (mut a, mut b, file) = capture(None);
        file.0.lock().unwrap().1 = true;
        for _ in 0..3 {
            send(&mut a, b"x", None);
        }
        a.tx_flush(Nanos::ZERO).unwrap();
        assert_eq!(b.rx_burst(Nanos::ZERO), 3);
        let mut counters = Vec::new();
        a.counters(&mut counters);
        assert!(counters.contains(&("pcap_write_errors", 3)) && counters.contains(&("pcap_packets", 0)));
    }

    #[test]
    fn slow_readers_lost_frames_are_counted_and_noted() {
        /// A writer that has no room on request.
        #[derive(Clone, Default)]
        struct Slow(Shared);
        impl Write for Slow {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0.write(bytes).map_err(|_| io::ErrorKind::WouldBlock.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let (a, _b) = memory::pair(MemoryConfig::default(), MemoryConfig::default());
        let file = Slow::default();
        let mut a = PcapPort::new(a, file.clone(), Timestamps::Virtual, None).expect("a capture");
        let full = |is| file.0.0.lock().unwrap().1 = is;
        full(true);
        send(&mut a, b"one", Some("lost"));
        send(&mut a, b"two", None);
        full(false);
        send(&mut a, b"three", Some("kept"));
        send(&mut a, b"four", None);
        let all = packets(&file.0);
        assert_eq!(all.iter().map(|p| &p.1[..]).collect::<Vec<_>>(), [&b"three"[..], b"four"]);
        assert!(says(&all[0].2, "capture: 2 frames before this one were not written; kept"));
        assert!(!says(&all[1].2, "capture:"), "once is enough");
        let mut counters = Vec::new();
        a.counters(&mut counters);
        assert!(counters.contains(&("pcap_skipped", 2)) && counters.contains(&("pcap_write_errors", 0)));
    }

    #[test]
    fn capture_limit_does_not_stop_traffic() {
        let (mut a, mut b, file) = capture(Some(1_000));
        for _ in 0..10 {
            send(&mut a, &[7; 200], None);
        }
        send(&mut a, &[7; 1], None);
        a.tx_flush(Nanos::ZERO).unwrap();
        assert_eq!(packets(&file).len(), 4);
        assert_eq!(b.rx_burst(Nanos::ZERO), 11);
        let mut counters = Vec::new();
        a.counters(&mut counters);
        assert!(counters.contains(&("pcap_skipped", 7)));
    }

    #[test]
    fn wall_clock_stamps_follow_the_port_clock() {
        let file = Shared::default();
        let (a, _b) = memory::pair(MemoryConfig::default(), MemoryConfig::default());
        let mut a = PcapPort::new(a, file.clone(), Timestamps::WallClock, None).expect("a capture");
        for now in [Nanos::from_millis(10), Nanos::from_millis(35)] {
            a.rx_burst(now);
            a.rx_release();
            send(&mut a, b"x", None);
        }
        let all = packets(&file);
        let today = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
        assert!(today.abs_diff(all[0].0) < 60_000_000_000, "within a minute of the time of day");
        assert_eq!(all[1].0 - all[0].0, 25_000_000);
    }
}
