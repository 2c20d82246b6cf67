//! A layer that captures all frames in pcapng, with the NIC's reasons as packet comments.
//!
//! Received frames are written when they are released, after the NIC has noted what it did with them. Sent frames are
//! written when they are committed. The notes become packet comments.
//!
//! A capture never stops traffic. A thread ([`Background`]) writes the file. If the disk or the reader
//! of a pipe is too slow and the queue is full, frames are left out and counted; the comment of the next frame says how
//! many are missing. The first failure ends the file and is reported.
//!
//! A [`Recorder`] may capture a port for a time: an engine puts a [`PcapPort`] on its port, and takes it off again
//! ([`PcapPort::into_parts`]).

use std::fmt::{Arguments, Write as _};
use std::fs::File;
use std::io::{self, Write};

use super::{BURST, LinkChange, Port, PortInfo, Received, TxId};
pub use crate::background::{Background, Progress, Statistics, Writes, write_out};
use roxie_base::capture::Direction;
use roxie_base::frame::FrameMut;
use roxie_base::time::Nanos;

mod recorder;

pub use recorder::{Recorder, Timestamps};

/// Number of slots that may have notes before their commit.
const TX_NOTES: usize = 4 * BURST;

/// Writes both directions of the port below to a pcapng stream. See the module's page.
pub struct PcapPort<P, W: Write> {
    inner: P,
    info: PortInfo,
    recorder: Recorder<W>,
    /// Number of frames in the current receive burst; their notes follow.
    received: usize,
    rx_notes: Vec<String>,
    tx_notes: Vec<(u32, String)>,
    spare_notes: Vec<String>,
}

impl<P: Port> PcapPort<P, Background> {
    /// Wraps `inner` in a capture that a thread writes to `file`: a pipe without a reader stops no traffic.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn to_file(inner: P, file: File, timestamps: Timestamps) -> io::Result<PcapPort<P, Background>> {
        let recorder = Recorder::to_file(inner.info().interface_or_name(), file, timestamps)?;
        Ok(PcapPort::with_recorder(inner, recorder))
    }
}

impl<P: Port, W: Write + Send + 'static> PcapPort<P, W> {
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
        let recorder = Recorder::new(inner.info().interface_or_name(), out, timestamps, max_bytes)?;
        Ok(PcapPort::with_recorder(inner, recorder))
    }

    /// Wraps `inner` in a capture that `recorder` writes.
    pub fn with_recorder(inner: P, recorder: Recorder<W>) -> PcapPort<P, W> {
        let mut info = inner.info().clone();
        info.name = format!("pcap({})", info.name);
        PcapPort {
            recorder,
            inner,
            info,
            received: 0,
            rx_notes: vec![String::new(); BURST],
            tx_notes: Vec::with_capacity(TX_NOTES),
            spare_notes: vec![String::new(); TX_NOTES],
        }
    }

    /// Returns the port below, and the recorder. Between two turns of the engine the port loses nothing by that.
    pub fn into_parts(self) -> (P, Recorder<W>) {
        (self.inner, self.recorder)
    }

    /// Returns the port below.
    pub fn inner(&self) -> &P {
        &self.inner
    }
}

impl<P: Port, W: Write + Send + 'static> Port for PcapPort<P, W> {
    fn info(&self) -> &PortInfo {
        &self.info
    }

    fn rx_burst(&mut self, now: Nanos) -> usize {
        self.recorder.set_now(now);
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
            self.recorder.write(Direction::In, &frame, &self.rx_notes[i]);
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

    fn set_now(&mut self, now: Nanos) {
        self.recorder.set_now(now);
        self.inner.set_now(now);
    }

    fn tx_arrange(&mut self) {
        self.inner.tx_arrange();
    }

    fn tx_commit(&mut self, id: TxId) {
        let note = take_note(&mut self.tx_notes, &id);
        let text = note.as_deref().unwrap_or_default();
        self.recorder.write(Direction::Out, &self.inner.tx_frame(&id).as_frame(), text);
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
        self.recorder.set_now(now);
        self.inner.tx_flush(now)
    }

    pass_on!(
        rx_waiting,
        set_rx_wishes,
        set_vlans,
        expect_frames,
        is_sent,
        tx_pending,
        join,
        leave,
        steer,
        undelivered,
        event_fds
    );

    fn wants_notes(&self) -> bool {
        true
    }

    fn next_event(&self) -> Nanos {
        self.inner.next_event()
    }

    /// Flushes the file as well, so that it is up to date while the engine sleeps.
    fn prepare_sleep(&mut self) -> bool {
        self.recorder.flush();
        self.inner.prepare_sleep()
    }

    fn follow(&mut self, change: &LinkChange) -> io::Result<()> {
        self.inner.follow(change)?;
        self.info.renew(self.inner.info());
        Ok(())
    }

    fn counters(&self, out: &mut Vec<(&'static str, u64)>) {
        self.inner.counters(out);
        self.recorder.counters(out);
    }
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
mod tests;
