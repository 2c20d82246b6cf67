//! The worker: one NIC, one port, one pass.
//!
//! [`Worker::poll`] is the function to read first: a pass through the stages of a NIC. All RDMA processing happens
//! inside it, in whichever thread runs it: a pinned thread, an application's `poll_cq`, a test in virtual time.

use std::collections::VecDeque;
use std::io;

use crossbeam_channel::{Receiver, Sender};

use super::control::{Answered, Request};
use super::copying::Copying;
use super::pass_times::PassTimes;
use super::port_requests::PortRequests;
use super::progress::Progress;
use super::siblings::Siblings;
use super::stall::Stall;
use roxie_base::time::Nanos;
use roxie_nic::nic::{self, Answer, Command, Gathered, Nic, Object, Sent};
use roxie_nic::shared::{ClientDoorbells, Doorbells};
use roxie_nic::verbs::{AsyncEvent, EventKind, QpIndex};
use roxie_port::pcap::{Background, Recorder};
use roxie_port::{BURST, Carries, Port, PortInfo, Received, TxId};

/// An outgoing frame: its slot in the port, and its QP.
type TxSlot = (TxId, QpIndex);

/// The writer of a capture that is attached while the worker runs.
pub(super) type Live = Recorder<Background>;

/// Maximum number of commands in a pass. A command takes some microseconds, as long as a burst of frames.
pub(super) const COMMANDS: usize = 4;

/// Callback for asynchronous events.
pub type EventSink = Box<dyn Fn(AsyncEvent) + Send>;

/// A NIC and its port.
pub struct Worker {
    pub(super) nic: Nic,
    pub(super) port: Box<dyn Port>,
    requests: Receiver<Request>,
    /// Queues that move to another ring, and where each answer goes.
    moves: VecDeque<(Object, Sender<Answered>)>,
    /// Copies that other threads make, and what waits for them.
    pub(super) copying: Copying,
    events: Sender<AsyncEvent>,
    sink: Option<EventSink>,
    doorbells: Doorbells,
    clients: ClientDoorbells,
    pub(super) slots: Vec<TxSlot>,
    /// The memory of the list while slots leave it.
    pub(super) spare_slots: Vec<TxSlot>,
    /// Number of local work requests that the sending half has executed.
    local_work: u32,
    pub(super) port_requests: PortRequests,
    pub(super) link_error: Option<String>,
    events_lost: u64,
    stall: Stall,
    pass_times: PassTimes,
    /// Start time of the latest pass.
    last_pass: Nanos,
    /// True if the outermost layer of the port is a capture that was attached while the worker runs.
    pub(super) is_captured: bool,
    /// The other workers of the device, if any.
    siblings: Option<Box<Siblings>>,
}

impl Worker {
    /// Makes a worker that takes commands from `requests` and reports to `events`.
    pub fn new(
        mut nic: Nic,
        port: Box<dyn Port>,
        doorbells: Doorbells,
        requests: Receiver<Request>,
        events: Sender<AsyncEvent>,
    ) -> Worker {
        let slots = Vec::with_capacity(nic.limits().tx_burst as usize);
        nic.set_longest_frame(longest_frame(port.info()));
        Worker {
            nic,
            port,
            requests,
            moves: VecDeque::new(),
            copying: Copying::default(),
            events,
            sink: None,
            doorbells,
            clients: ClientDoorbells::default(),
            slots,
            spare_slots: Vec::new(),
            local_work: 0,
            port_requests: PortRequests::default(),
            link_error: None,
            events_lost: 0,
            stall: Stall::default(),
            pass_times: PassTimes::default(),
            last_pass: Nanos::ZERO,
            is_captured: false,
            siblings: None,
        }
    }

    /// Makes the worker one of several of a device.
    pub(super) fn join(&mut self, siblings: Siblings) {
        self.siblings = Some(Box::new(siblings));
    }

    /// Runs one pass at time `now`. Never blocks.
    pub fn poll(&mut self, now: Nanos) -> Progress {
        let intake = self.receive_half(now, COMMANDS);
        intake.and(&self.send_out(now))
    }

    /// Records the duration of a pass that did something.
    pub fn note_pass(&mut self, took: Nanos) {
        self.pass_times.record(took);
    }

    /// Durations of the passes that did something.
    pub fn pass_times(&self) -> &PassTimes {
        &self.pass_times
    }

    /// Returns the time of a pass: `now`, or the time of the previous pass if a thread read its clock before another
    /// thread's pass. Completion timestamps of a queue therefore never decrease.
    pub(super) fn advance(&mut self, now: Nanos) -> Nanos {
        self.last_pass = self.last_pass.max(now);
        self.last_pass
    }

    /// The receiving half of a pass. Its completions are published when it returns. What an earlier half left to send
    /// leaves before a command is executed: the command may destroy the QP that owes an acknowledgement.
    pub fn take_in(&mut self, now: Nanos) -> Progress {
        // No more than these: one that arrives later has not been sent before.
        let commands = self.requests.len().min(COMMANDS);
        if commands > 0 {
            self.send_out(now);
        }
        self.receive_half(now, commands)
    }

    /// The sending half of a pass: new work requests, acknowledgements, retransmissions.
    pub fn send_out(&mut self, now: Nanos) -> Progress {
        let now = self.advance(now);
        let more_posted = self.nic.fetch_posted(now, &self.doorbells, &self.clients);
        self.nic.update_changed(now);
        let sent = self.transmit(now); //                arbiter, headers
        self.nic.list_reads();
        self.copy(now); //                               payload of clients: handed to their threads
        self.gather_and_seal(now); //                    payload, ICRC, hand over
        debug_assert!(self.slots.is_empty(), "{} frames were not handed over", self.slots.len());
        self.nic.update_changed(now);
        let completions = self.nic.publish(now); //      of requests that fail before they are sent
        self.raise_events();
        self.flush(now);
        let waits = self.nic.has_ready() || self.port.tx_pending() || self.nic.has_released();
        let moves = sent > 0 || self.local_work > 0;
        self.stall.note(now, waits && !moves);
        let more = more_posted || self.nic.has_unfetched() || (self.nic.has_ready() && moves);
        Progress { sent, completions, more, ..Progress::default() }
    }

    /// The receiving half of a pass with up to `commands` commands.
    fn receive_half(&mut self, now: Nanos, commands: usize) -> Progress {
        let now = self.advance(now);
        let commands = self.control(now, commands);
        let resumed = self.resume_parked(now); //        QPs whose copies have been made
        let received = self.receive(now); //             parse, ICRC, transport, dma
        self.nic.fire_timers(now);
        self.copy(now); //                               bytes for clients: handed to their threads
        self.nic.end_writes(now);
        if self.nic.has_released() {
            // Batches came back within the half. Packets that their QPs have set aside may list others.
            self.resume_released(now);
            self.copy(now);
            self.nic.end_writes(now);
        }
        self.nic.update_changed(now); //                 timers set, QPs made ready
        let completions = self.nic.publish(now); //      completions, after their bytes
        self.raise_events();
        let answered = self.answer_withheld();
        Progress {
            received: received + resumed,
            commands: commands + answered,
            completions,
            sent: 0,
            more: received == BURST || !self.moves.is_empty(),
        }
    }

    /// Decides whether acknowledgements precede requests: if the program waits, and the port delivers frames one by
    /// one. In a train both arrive together, and two trains take twice the time of one. A program that checks its
    /// memory has the reply sooner if the acknowledgement does not end its polling.
    pub fn order_acknowledgements(&mut self, program_waits: bool) {
        self.nic.acknowledge_first(program_waits && !self.port.info().has_trains);
    }

    /// Executes up to `most` pending commands. Frames move between passes, so commands do not stop them.
    fn control(&mut self, now: Nanos, most: usize) -> usize {
        let mut done = 0;
        while done < most
            && let Ok(request) = self.requests.try_recv()
        {
            done += 1;
            let (command, answer) = match request {
                Request::Command { command, answer } => (command, answer),
                Request::Visit(visit) => {
                    visit.run(self);
                    continue;
                }
            };
            let sets_congestion = matches!(command, Command::SetCongestion(_));
            let result = self.nic.execute(now, command);
            if let Ok(Answer::Moving(queue)) = result {
                self.moves.push_front((queue, answer)); // A queue that moves in one step waits for no other.
                self.move_entries(now);
                continue;
            }
            let result = self.port_requests.follow(&mut self.nic, &mut *self.port, sets_congestion, result);
            self.nic.update_changed(now);
            self.nic.publish(now);
            let answered = Answered { result, remains: self.nic.take_spare() };
            self.copying.answer(self.nic.take_awaited(), answer, answered);
        }
        done + self.move_entries(now)
    }

    /// Moves some entries of a queue that moves to another ring. Such queues take turns.
    fn move_entries(&mut self, now: Nanos) -> usize {
        let Some((queue, answer)) = self.moves.pop_front() else { return 0 };
        match self.nic.go_on_moving(now, queue) {
            None => self.moves.push_back((queue, answer)),
            Some(result) => drop(answer.send(Answered { result, remains: None })),
        }
        1
    }

    /// Receives a burst, has the QPs process it, and copies its payload to memory.
    fn receive(&mut self, now: Nanos) -> usize {
        if self.nic.sends_pauses() {
            self.pause_neighbour(now);
        }
        let count = self.port.rx_burst(now);
        let notes = self.port.wants_notes();
        for index in 0..count {
            let Received { frame, ip_id_hidden, arrived } = self.port.rx_frame(index);
            let received = nic::RxFrame { frame, index: index as u16, ip_id_hidden, arrived };
            let outcome = self.nic.receive(now, &received);
            // Copy frame by frame: the payload is in the cache now.
            self.nic.run_dma(|_| frame);
            let siblings = self.siblings.as_mut();
            let other_worker = siblings.and_then(|all| all.redirect(&mut self.nic, &outcome, &received));
            if notes {
                match other_worker {
                    Some(worker) => self.port.rx_note(index, format_args!("given to worker {worker}")),
                    None => self.port.rx_note(index, format_args!("{outcome}")),
                }
            }
        }
        // Also after an empty burst: a layer may have taken frames and kept them.
        self.port.rx_release();
        self.siblings.as_ref().map_or(count, |siblings| count.max(siblings.deliver(now, &mut self.nic)))
    }

    /// Lets the QPs that have something to send take turns.
    fn transmit(&mut self, now: Nanos) -> usize {
        let (quantum, burst) = (self.nic.limits().tx_quantum, self.nic.limits().tx_burst);
        self.local_work = 0;
        while let done = self.slots.len() as u32 + self.local_work
            && done < burst
            && let Some(qp) = self.nic.next_turn()
        {
            let room = self.turn(now, qp, quantum.min(burst - done));
            self.local_work += self.nic.take_local_work();
            if !room {
                break;
            }
        }
        self.slots.len()
    }

    /// Sends up to `quantum` packets of one QP. False: the port has no room.
    fn turn(&mut self, now: Nanos, qp: QpIndex, quantum: u32) -> bool {
        let notes = self.port.wants_notes();
        for _ in 0..quantum {
            let slot = self.slots.len() as u16;
            let (port, mut id) = (&mut self.port, None);
            let room = |frame_len| {
                let (port, place) = (port, &mut id);
                let id = port.tx_alloc(frame_len)?;
                Some(port.tx_frame(place.insert(id)))
            };
            match self.nic.send_fast(now, qp, slot, room) {
                Sent::Done(reason) => {
                    let Some(id) = id else { continue };
                    if notes {
                        self.port.tx_note(&id, format_args!("{reason}"));
                    }
                    self.slots.push((id, qp));
                    continue;
                }
                Sent::NoRoom(frame_len) => return self.no_slot(now, qp, frame_len),
                Sent::Other => {}
            }
            let plan = self.nic.plan(now, qp);
            let with_length = plan.as_ref().and_then(|plan| Some((plan, self.nic.frame_len(qp, plan)?)));
            let Some((plan, frame_len)) = with_length else {
                let local = self.nic.take_local_work();
                self.local_work += local;
                self.nic.end_turn(qp, local >= self.nic.limits().tx_quantum);
                return true;
            };
            let Some(id) = self.port.tx_alloc(frame_len) else {
                return self.no_slot(now, qp, frame_len);
            };
            self.nic.emit(now, qp, plan, slot, &mut self.port.tx_frame(&id));
            if notes {
                self.port.tx_note(&id, format_args!("{}", plan.reason));
            }
            self.slots.push((id, qp));
        }
        self.nic.end_turn(qp, true);
        true
    }

    /// The port gave no slot for a QP's next packet. False: it has no room now. True: the packet is too long, and the
    /// QP fails.
    fn no_slot(&mut self, now: Nanos, qp: QpIndex, frame_len: usize) -> bool {
        let never = frame_len > self.port.info().max_frame;
        self.nic.end_turn(qp, !never);
        if never {
            self.nic.fail_qp(now, qp);
        }
        never
    }

    fn gather_and_seal(&mut self, now: Nanos) {
        if self.slots.is_empty() {
            return;
        }
        if self.nic.awaits_copies() {
            return self.gather_what_is_here(now);
        }
        self.port.set_now(now);
        self.port.tx_arrange();
        for (slot, (id, qp)) in self.slots.drain(..).enumerate() {
            let mut frame = self.port.tx_frame(&id);
            let is_whole = self.nic.gather(slot as u16, qp, &mut frame) == Gathered::Whole;
            if !is_whole {
                self.nic.payload_missing(now, qp, &frame.as_frame());
            }
            match is_whole && self.nic.seal(qp, &mut frame) {
                true => self.port.tx_commit(id),
                false => self.port.tx_cancel(id),
            }
        }
    }

    pub(super) fn raise_events(&mut self) {
        while let Some(event) = self.nic.take_event() {
            if let Some(siblings) = &self.siblings {
                match event {
                    AsyncEvent::Cq(cq, EventKind::CqError) => siblings.notify_failed(Object::Cq(cq)),
                    AsyncEvent::Srq(srq, EventKind::SrqError) => siblings.notify_failed(Object::Srq(srq)),
                    _ => {}
                }
            }
            self.raise(event);
        }
    }

    pub(super) fn flush(&mut self, now: Nanos) {
        if let Err(error) = self.port.tx_flush(now) {
            self.link_error.get_or_insert_with(|| error.to_string());
        }
    }

    /// Notifies all waiting threads that the engine is dead.
    pub(super) fn die(&mut self) {
        self.raise(AsyncEvent::Device(EventKind::DeviceFatal));
        self.nic.wake_all();
        // Dropping a request drops the sender of its answer, so its caller stops waiting.
        while self.requests.try_recv().is_ok() {}
        self.moves.clear();
        self.copying.die();
    }

    /// Reports an event to the application.
    pub fn raise(&mut self, event: AsyncEvent) {
        if let Some(sink) = &self.sink {
            sink(event);
        } else if self.events.try_send(event).is_err() {
            self.events_lost += 1;
        }
    }

    /// Passes future events to `sink`. False: a sink is already set.
    pub(super) fn set_event_sink(&mut self, sink: EventSink) -> bool {
        let first = self.sink.is_none();
        self.sink.get_or_insert(sink);
        first
    }

    /// Returns the time by which the next pass is needed.
    pub fn next_deadline(&self) -> Nanos {
        let to_send = self.nic.has_ready() || self.port.tx_pending() || self.nic.has_released();
        let send_at = if to_send { self.stall.until() } else { Nanos::MAX };
        self.nic.next_deadline().min(self.port.next_event()).min(send_at).min(self.copies_due())
    }

    /// The doorbells of this process.
    pub fn doorbells(&self) -> &Doorbells {
        &self.doorbells
    }

    /// The doorbells of client processes.
    pub fn clients(&self) -> &ClientDoorbells {
        &self.clients
    }

    /// The port.
    pub fn port(&self) -> &dyn Port {
        &*self.port
    }

    /// The NIC.
    pub fn nic(&self) -> &Nic {
        &self.nic
    }

    /// Prepares the wake-ups of a worker that is about to sleep. False: there is work after all, and nothing was
    /// prepared.
    pub fn prepare_sleep(&mut self) -> bool {
        self.doorbells.sleep_begins();
        let quiet = self.is_quiet();
        if !quiet {
            self.doorbells.sleep_ends(false);
        }
        quiet
    }

    /// A caller is about to sleep on the port's descriptors, whether or not frames are waiting.
    pub(super) fn prepare_wait(&mut self) {
        self.port.prepare_sleep();
    }

    /// True if there is no work before the next deadline, and the port will wake a thread that sleeps on it.
    pub(super) fn is_quiet(&mut self) -> bool {
        self.needed_by() > Nanos::ZERO && self.port.prepare_sleep()
    }

    /// Returns when the next pass is needed for work known here: zero if some is pending. Frames that wait on the link
    /// are not known; its descriptors report them.
    pub fn needed_by(&self) -> Nanos {
        let posted = self.doorbells.any() || self.clients.any() || self.nic.has_unfetched();
        let given = self.siblings.as_ref().is_some_and(|siblings| siblings.has_work());
        if posted
            || given
            || self.copying.has_returned()
            || !self.requests.is_empty()
            || !self.moves.is_empty()
        {
            return Nanos::ZERO;
        }
        self.next_deadline()
    }

    /// Ends the sleep.
    pub fn sleep_ends(&self) {
        self.doorbells.sleep_ends(false);
    }

    /// Returns the link's first error, once.
    pub fn take_link_error(&mut self) -> Option<io::Error> {
        self.link_error.take().map(io::Error::other)
    }

    /// Counters of the NIC, then of the port.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut all: Vec<_> = self.nic.counters().iter().collect();
        self.nic.pause_counters(&mut all);
        self.port.counters(&mut all);
        all.push(("async_events_lost", self.events_lost));
        if let Some(siblings) = &self.siblings {
            all.extend(siblings.counters());
        }
        all
    }
}

/// The longest frame of any protocol that a port carries.
pub(super) fn longest_frame(port: &PortInfo) -> Option<usize> {
    (port.carries == Carries::AnyFrames).then_some(port.max_frame)
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker").field("port", self.port.info()).finish_non_exhaustive()
    }
}
