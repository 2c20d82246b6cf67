//! A layer that injects faults, repeatably.
//!
//! The seed and the sequence of frames alone decide what happens; time enters only as the `now` of the calls. Faults
//! come from a [`FaultConfig`] (rates and counts over all frames) and from rules with a predicate ("the third ACK"), so
//! that this layer needs no knowledge of the protocol above. Several fault layers may stack.
//!
//! Every fault is evaluated for every frame of its direction, so that a second fault does not shift the draws of the
//! first. A drop takes precedence over all other faults. Of a duplicated frame the copy is the unharmed one; if the
//! frame is delayed, the copy passes immediately.
//!
//! Over a `udp` port with segmentation on, a frame that this layer removes from a segmentation group or sends later
//! gets another IPv4 identification than its ICRC was computed for. Peers on `udp` ports do not mind; for others open
//! the port below without segmentation. A `packet` port sends such a frame alone, as it is.

mod config;
mod mark;
mod rule;
#[cfg(test)]
mod tests;

use std::fmt::Arguments;
use std::io;

pub use config::{Action, Direction, Fault, FaultConfig, FaultParseError, When};
use mark::mark;
use rule::{Held, Hold, Pool, Side};

use super::{BURST, LinkChange, Port, PortInfo, Received, TxId};
use roxie_base::frame::{Frame, FrameMut};
use roxie_base::time::Nanos;

/// Injects faults into the frames of the port below. See the module's page.
pub struct FaultPort<P> {
    inner: P,
    info: PortInfo,
    seed: u64,
    rx: Side,
    tx: Side,
    pool: Pool,
    /// Frames of the burst, in the order of `rx_frame`.
    view: Vec<Seen>,
    /// Slots of the port below for held frames that are sent now.
    leaving: Vec<TxId>,
    now: Nanos,
    /// Error of a flush outside `tx_flush`; the next `tx_flush` returns it.
    failure: Option<io::Error>,
    /// Number of held frames that no longer fitted the link when they were due.
    too_long: u64,
}

enum Seen {
    /// A frame of the port below, by its number there.
    Inner(usize),
    /// Duplicate of a frame of the port below.
    Again(usize),
    /// A copy in the pool of this layer.
    Own(Held),
}

impl<P: Port> FaultPort<P> {
    /// Wraps `inner` in a layer with the faults of `config`.
    pub fn new(inner: P, config: &FaultConfig) -> FaultPort<P> {
        let mut info = inner.info().clone();
        info.name = format!("fault({})", info.name);
        let mut port = FaultPort {
            pool: Pool::new(config.held, info.max_frame),
            inner,
            info,
            seed: config.seed,
            rx: Side::new(Direction::Rx, config.held),
            tx: Side::new(Direction::Tx, config.held),
            view: Vec::with_capacity(BURST),
            leaving: Vec::with_capacity(config.held),
            now: Nanos::ZERO,
            failure: None,
            too_long: 0,
        };
        for fault in &config.rx {
            port.rx.add(port.seed, *fault, None);
        }
        for fault in &config.tx {
            port.tx.add(port.seed, *fault, None);
        }
        port
    }

    /// Adds a fault for the frames for which `matches` is true. Its counts count only these frames.
    #[must_use]
    pub fn with_rule<F>(mut self, direction: Direction, fault: Fault, matches: F) -> FaultPort<P>
    where
        F: FnMut(&Frame<'_>) -> bool + Send + 'static,
    {
        let side = match direction {
            Direction::Rx => &mut self.rx,
            Direction::Tx => &mut self.tx,
        };
        side.add(self.seed, fault, Some(Box::new(matches)));
        self
    }

    /// Returns the port below.
    pub fn inner(&self) -> &P {
        &self.inner
    }

    /// Shows, holds or drops the `i`-th frame of the inner burst, which `remaining` frames follow.
    fn receive(&mut self, i: usize, remaining: usize) {
        let received = self.inner.rx_frame(i);
        let verdict = self.rx.judge(&received.frame, self.now);
        if verdict.is_nothing() {
            self.view.push(Seen::Inner(i));
            self.rx.frame_passed();
            return;
        }
        if verdict.drop {
            self.note_below(i, format_args!("fault: dropped on receive"));
            return;
        }
        let hidden = received.ip_id_hidden;
        let room = self.view.len() + 1 + remaining < BURST;
        let late_copy =
            if verdict.duplicate && !room { self.pool.copy(&received.frame, hidden) } else { None };
        let own = if verdict.alters() { self.pool.copy(&received.frame, hidden) } else { None };
        self.rx.tally(&verdict, own.is_some(), room || late_copy.is_some());
        if let (Some(own), Some(draw)) = (&own, verdict.corrupt) {
            flip_bit(&mut FrameMut { a: self.pool.bytes_mut(own), b: &mut [] }, draw);
        }
        if let (Some(own), true) = (&own, verdict.mark) {
            mark(&mut FrameMut { a: self.pool.bytes_mut(own), b: &mut [] });
        }
        let copy = match (own, verdict.hold) {
            (Some(own), Some(hold)) => {
                self.rx.hold(own, hold);
                self.note_below(i, format_args!("fault: held back on receive"));
                Seen::Inner(i)
            }
            (Some(own), None) => {
                let what = if verdict.corrupt.is_some() { "corrupted" } else { "marked" };
                self.note_below(i, format_args!("fault: {what} on receive"));
                self.view.push(Seen::Own(own));
                self.rx.frame_passed();
                Seen::Inner(i)
            }
            (None, _) => {
                self.view.push(Seen::Inner(i));
                self.rx.frame_passed();
                Seen::Again(i)
            }
        };
        if let Some(late) = late_copy {
            self.rx.hold(late, Hold { due: Nanos::ZERO, passes: 0 });
        } else if verdict.duplicate && room {
            self.view.push(copy);
        }
    }

    fn note_below(&mut self, i: usize, note: Arguments<'_>) {
        if self.inner.wants_notes() {
            self.inner.rx_note(i, note);
        }
    }

    /// Shows held frames that are due, while `reserved` frames still fit behind them.
    fn release_due_rx(&mut self, reserved: usize) {
        while self.view.len() + reserved < BURST {
            let Some(held) = self.rx.take_due(self.now) else { return };
            self.view.push(Seen::Own(held));
        }
    }

    /// Sends held frames that are due through the port below. False if it had no room for all.
    fn emit_due_tx(&mut self) -> bool {
        let mut all = true;
        while let Some(held) = self.tx.take_due(self.now) {
            if held.len() > self.inner.info().max_frame {
                self.too_long += 1;
                self.pool.free(held);
                continue;
            }
            let Some(id) = self.inner.tx_alloc(held.len()) else {
                self.tx.hold(held, Hold { due: Nanos::ZERO, passes: 0 });
                all = false;
                break;
            };
            self.inner.tx_frame(&id).write(0, self.pool.bytes(&held));
            self.pool.free(held);
            self.leaving.push(id);
        }
        if !self.leaving.is_empty() {
            for id in self.leaving.drain(..) {
                self.inner.tx_note(&id, format_args!("fault: leaves late or again"));
                self.inner.tx_commit(id);
            }
            // These frames have their ICRC already.
            self.inner.tx_arrange();
        }
        all
    }

    fn flush_below(&mut self) -> io::Result<()> {
        if !self.emit_due_tx() {
            self.inner.tx_flush(self.now)?;
            self.emit_due_tx();
        }
        self.inner.tx_flush(self.now)
    }
}

/// Flips bit `draw` modulo the number of bits.
fn flip_bit(frame: &mut FrameMut<'_>, draw: u64) {
    let bits = frame.len() as u64 * 8;
    if bits == 0 {
        return;
    }
    let bit = (draw % bits) as usize;
    let (x, y) = frame.slices_mut(bit / 8..bit / 8 + 1);
    for byte in x.iter_mut().chain(y) {
        *byte ^= 1 << (bit % 8);
    }
}

impl<P: Port> Port for FaultPort<P> {
    fn info(&self) -> &PortInfo {
        &self.info
    }

    fn rx_burst(&mut self, now: Nanos) -> usize {
        self.now = now;
        if self.tx.next_due() <= now
            && let Err(error) = self.flush_below()
        {
            self.failure = Some(error);
        }
        let n = self.inner.rx_burst(now);
        self.release_due_rx(n);
        for i in 0..n {
            self.receive(i, n - i - 1);
            self.release_due_rx(n - i - 1);
        }
        self.view.len()
    }

    fn rx_frame(&self, i: usize) -> Received<'_> {
        match &self.view[i] {
            Seen::Inner(i) | Seen::Again(i) => self.inner.rx_frame(*i),
            Seen::Own(held) => Received {
                frame: Frame::whole(self.pool.bytes(held)),
                ip_id_hidden: held.ip_id_hidden(),
                arrived: None,
            },
        }
    }

    /// Forwards the note if the frame is one of the port below; of a duplicate only the first.
    fn rx_note(&mut self, i: usize, note: Arguments<'_>) {
        if let Seen::Inner(i) = self.view[i] {
            self.inner.rx_note(i, note);
        }
    }

    fn rx_release(&mut self) {
        for seen in self.view.drain(..) {
            if let Seen::Own(held) = seen {
                self.pool.free(held);
            }
        }
        self.inner.rx_release();
    }

    pass_on!(
        tx_alloc,
        tx_frame,
        tx_arrange,
        tx_note,
        tx_cancel,
        rx_waiting,
        set_rx_wishes,
        set_vlans,
        expect_frames,
        wants_notes,
        is_sent,
        undelivered,
        event_fds,
        join,
        leave,
        steer
    );

    fn set_now(&mut self, now: Nanos) {
        self.now = now;
        self.inner.set_now(now);
    }

    fn tx_commit(&mut self, id: TxId) {
        let slot = self.inner.tx_frame(&id);
        let verdict = self.tx.judge(&slot.as_frame(), self.now);
        if verdict.is_nothing() {
            self.inner.tx_commit(id);
            self.tx.frame_passed();
            return;
        }
        if verdict.drop {
            self.inner.tx_cancel(id);
            return;
        }
        let copy = if verdict.duplicate { self.pool.copy(&slot.as_frame(), false) } else { None };
        let waits = if verdict.hold.is_some() { self.pool.copy(&slot.as_frame(), false) } else { None };
        self.tx.tally(&verdict, verdict.hold.is_none() || waits.is_some(), copy.is_some());
        if let Some(copy) = copy {
            self.tx.hold(copy, Hold { due: Nanos::ZERO, passes: 0 });
        }
        if let (Some(waits), Some(hold)) = (waits, verdict.hold) {
            if let Some(draw) = verdict.corrupt {
                flip_bit(&mut FrameMut { a: self.pool.bytes_mut(&waits), b: &mut [] }, draw);
            }
            if verdict.mark {
                mark(&mut FrameMut { a: self.pool.bytes_mut(&waits), b: &mut [] });
            }
            self.tx.hold(waits, hold);
            self.inner.tx_cancel(id);
            return;
        }
        if let Some(draw) = verdict.corrupt {
            flip_bit(&mut self.inner.tx_frame(&id), draw);
            self.inner.tx_note(&id, format_args!("fault: corrupted on transmit"));
        }
        if verdict.mark {
            mark(&mut self.inner.tx_frame(&id));
            self.inner.tx_note(&id, format_args!("fault: marked on transmit"));
        }
        self.inner.tx_commit(id);
        self.tx.frame_passed();
    }

    fn tx_flush(&mut self, now: Nanos) -> io::Result<()> {
        self.now = now;
        let flushed = self.flush_below();
        match self.failure.take() {
            Some(earlier) => Err(earlier),
            None => flushed,
        }
    }

    fn tx_pending(&self) -> bool {
        self.inner.tx_pending() || self.tx.next_due() <= self.now
    }

    /// Returns the earliest time at which a held frame is due.
    fn next_event(&self) -> Nanos {
        self.inner.next_event().min(self.rx.next_due()).min(self.tx.next_due())
    }

    fn prepare_sleep(&mut self) -> bool {
        self.rx.next_due() > self.now && self.inner.prepare_sleep()
    }

    fn follow(&mut self, change: &LinkChange) -> io::Result<()> {
        self.inner.follow(change)?;
        self.info.renew(self.inner.info());
        self.pool.fit(self.info.max_frame);
        Ok(())
    }

    fn counters(&self, out: &mut Vec<(&'static str, u64)>) {
        self.inner.counters(out);
        self.rx.counters(out);
        self.tx.counters(out);
        out.push(("fault_tx_too_long", self.too_long));
    }
}
