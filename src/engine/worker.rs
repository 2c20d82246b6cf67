//! The worker: one NIC, one port, one pass.
//!
//! [`Worker::poll`] is the function to read first: a pass over the stages of a NIC. Everything that the project does
//! with RDMA happens inside it, whoever calls it: a pinned thread, an application's `poll_cq`, a test in virtual time.

use std::collections::VecDeque;
use std::io;

use crossbeam_channel::{Receiver, Sender};

use super::control::{Answered, Request};
use super::pass_times::PassTimes;
use super::progress::Progress;
use super::stall::Stall;
use crate::nic::{self, Answer, Batch, Command, ControlError, GroupChange, Nic, Sent};
use crate::port::{self, BURST, LinkChange, Port, PortInfo, RxWishes, TxId};
use crate::shared::{Doorbells, GuestBells};
use crate::time::Nanos;
use crate::verbs::{AsyncEvent, CqIndex, EventKind, Gid, Mtu, QpIndex};

/// A frame on its way out: its slot in the port and whose it is.
type TxSlot = (TxId, QpIndex);

/// Commands of a pass at most. One takes some microseconds, as a burst of frames does.
const COMMANDS: usize = 4;

/// Where events go as they are raised.
pub type EventSink = Box<dyn Fn(AsyncEvent) + Send>;

/// A NIC and its port.
pub struct Worker {
    nic: Nic,
    port: Box<dyn Port>,
    requests: Receiver<Request>,
    /// Completion queues that move to another ring, and where the end of it is told.
    moves: VecDeque<(CqIndex, Sender<Answered>)>,
    events: Sender<AsyncEvent>,
    sink: Option<EventSink>,
    doorbells: Doorbells,
    guests: GuestBells,
    slots: Vec<TxSlot>,
    /// Local work requests that the half of a pass that sends has carried out.
    local_work: u32,
    /// What the port was asked to do with what arrives.
    rx_wishes: RxWishes,
    /// The port said that it cannot.
    wishes_refused: bool,
    link_error: Option<String>,
    events_lost: u64,
    stall: Stall,
    pass_times: PassTimes,
    /// When the latest pass began.
    last_pass: Nanos,
    /// The half of a pass that waits for copies from or to remote memory.
    half: Option<Half>,
}

/// What a half of a pass has done before its copies are made.
#[derive(Clone, Copy, Debug)]
enum Half {
    In { now: Nanos, commands: usize, received: usize },
    Out { now: Nanos, more_posted: bool, sent: usize },
}

impl Worker {
    /// A worker that takes its commands from `requests` and reports to `events`.
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
            events,
            sink: None,
            doorbells,
            guests: GuestBells::default(),
            slots,
            local_work: 0,
            rx_wishes: RxWishes::default(),
            wishes_refused: false,
            link_error: None,
            events_lost: 0,
            stall: Stall::default(),
            pass_times: PassTimes::default(),
            last_pass: Nanos::ZERO,
            half: None,
        }
    }

    /// One pass at time `now`. Never blocks; the stages are those of a NIC in hardware.
    pub fn poll(&mut self, now: Nanos) -> Progress {
        let came = self.take_in(now);
        came.and(&self.send_out(now))
    }

    /// A whole pass that brought or sent something has taken so long.
    pub fn note_pass(&mut self, took: Nanos) {
        self.pass_times.record(took);
    }

    /// How long such passes took.
    pub fn pass_times(&self) -> &PassTimes {
        &self.pass_times
    }

    /// The time of a pass: `now`, or the time of the pass before where a thread read its clock before another one's pass. Completion
    /// timestamps of a queue so never go back.
    fn advance(&mut self, now: Nanos) -> Nanos {
        self.last_pass = self.last_pass.max(now);
        self.last_pass
    }

    /// The half of a pass that looks at what came: when it returns, its completions are there.
    pub fn take_in(&mut self, now: Nanos) -> Progress {
        self.begin_take_in(now);
        self.copy();
        self.end_half()
    }

    /// The half of a pass that sends: new work requests, acknowledgements, what is to be sent again.
    pub fn send_out(&mut self, now: Nanos) -> Progress {
        self.begin_send_out(now);
        self.copy();
        self.end_half()
    }

    /// Makes the copies of a half from and to remote memory: there are none where nobody is served.
    fn copy(&mut self) {
        while let Some(mut copies) = self.next_copies() {
            copies.run();
            self.copied(copies);
        }
    }

    /// [`take_in`](Self::take_in) as far as it goes before copies from and to remote memory are made.
    pub(super) fn begin_take_in(&mut self, now: Nanos) {
        let now = self.advance(now);
        let commands = self.control(now);
        let received = self.receive(now); //             parse, ICRC, transport, dma
        self.half = Some(Half::In { now, commands, received });
    }

    /// [`send_out`](Self::send_out) as far as it goes before copies from remote memory are made.
    pub(super) fn begin_send_out(&mut self, now: Nanos) {
        let now = self.advance(now);
        let more_posted = self.nic.fetch_posted(now, &self.doorbells, &self.guests);
        self.nic.look_after(now);
        let sent = self.transmit(now); //                arbiter, headers
        self.nic.list_reads();
        self.half = Some(Half::Out { now, more_posted, sent });
    }

    /// Copies that the half under way waits for. Whoever takes them may let go of the worker meanwhile.
    #[inline]
    pub(super) fn next_copies(&mut self) -> Option<Batch> {
        self.nic.next_copies()
    }

    /// The copies were made.
    pub(super) fn copied(&mut self, copies: Batch) {
        self.nic.copied(copies);
    }

    /// The copies that were taken last will not be made.
    pub(super) fn abandon_copies(&mut self) {
        self.nic.abandon_copies();
    }

    /// True while copies of a half are being made: nothing else may be done with the worker but look at it.
    pub(super) fn is_mid_pass(&self) -> bool {
        self.half.is_some()
    }

    /// The rest of the half that was begun, after its copies.
    pub(super) fn end_half(&mut self) -> Progress {
        match self.half.take() {
            Some(Half::In { now, commands, received }) => self.end_take_in(now, commands, received),
            Some(Half::Out { now, more_posted, sent }) => self.end_send_out(now, more_posted, sent),
            None => Progress::default(),
        }
    }

    fn end_take_in(&mut self, now: Nanos, commands: usize, received: usize) -> Progress {
        self.nic.end_writes(now);
        self.nic.fire_timers(now);
        self.nic.look_after(now); //                     timers set, QPs made ready
        let completions = self.nic.publish(now); //         completions, after their bytes
        self.raise_events();
        Progress {
            received,
            commands,
            completions,
            sent: 0,
            more: received == BURST || !self.moves.is_empty(),
        }
    }

    fn end_send_out(&mut self, now: Nanos, more_posted: bool, sent: usize) -> Progress {
        self.gather_and_seal(now); //                       payload, ICRC, hand over
        self.nic.look_after(now);
        let completions = self.nic.publish(now); //         those of requests that cannot be sent at all
        self.raise_events();
        self.flush(now);
        let waits = self.nic.has_ready() || self.port.tx_pending();
        let moves = sent > 0 || self.local_work > 0;
        self.stall.note(now, waits && !moves);
        let more = more_posted || self.nic.has_unfetched() || (self.nic.has_ready() && moves);
        Progress { sent, completions, more, ..Progress::default() }
    }

    /// Carries out commands that wait, a few in each pass: data moves in between.
    fn control(&mut self, now: Nanos) -> usize {
        let mut done = 0;
        while done < COMMANDS
            && let Ok(Request { command, answer }) = self.requests.try_recv()
        {
            let sets_congestion = matches!(command, Command::SetCongestion(_));
            done += 1;
            let result = self.nic.execute(now, command);
            if let Ok(Answer::Moving(cq)) = result {
                self.moves.push_back((cq, answer));
                continue;
            }
            let result = self.follow_groups(result);
            let result = self.follow_flows(result);
            let result = self.follow_wishes(sets_congestion, result);
            self.nic.look_after(now);
            self.nic.publish(now);
            // Nobody waits any more: the answer is not missed.
            let _ = answer.send(Answered { result, remains: self.nic.take_remains() });
        }
        done + self.move_completions(now)
    }

    /// Moves some completions of a queue that moves to another ring. Such queues take turns.
    fn move_completions(&mut self, now: Nanos) -> usize {
        let Some((cq, answer)) = self.moves.pop_front() else { return 0 };
        match self.nic.go_on_moving(now, cq) {
            None => self.moves.push_back((cq, answer)),
            Some(result) => drop(answer.send(Answered { result, remains: None })),
        }
        1
    }

    /// Tells the port which multicast groups the NIC is in. One that the port cannot join is forgotten, and the
    /// command that asked for it fails.
    fn follow_groups(&mut self, result: Result<Answer, ControlError>) -> Result<Answer, ControlError> {
        let mut result = result;
        while let Some(change) = self.nic.take_group_change() {
            match change {
                GroupChange::Left(group) => self.port.leave(group.to_ip()),
                GroupChange::Joined(group) => {
                    if let Err(error) = self.port.join(group.to_ip()) {
                        self.nic.forget_group(group);
                        result = Err(ControlError::Join { group, reason: error.to_string() });
                    }
                }
            }
        }
        result
    }

    /// Tells the port what raw packet QPs are to get. A flow that it cannot steer is forgotten, and the command fails.
    fn follow_flows(&mut self, result: Result<Answer, ControlError>) -> Result<Answer, ControlError> {
        let Some(flows) = self.nic.take_flow_change() else { return result };
        self.port.steer(&flows).map_err(|error| {
            self.nic.forget_flow_change();
            ControlError::Steer(error.to_string())
        })?;
        result
    }

    /// Tells the port what the NIC wants of what arrives. What cannot be had fails the command that `asks` for it, and no other.
    fn follow_wishes(
        &mut self,
        asks: bool,
        result: Result<Answer, ControlError>,
    ) -> Result<Answer, ControlError> {
        if self.wishes() == self.rx_wishes && !(asks && self.wishes_refused) {
            return result;
        }
        match self.wish() {
            Err(error) if asks => Err(ControlError::MacControl(error.to_string())),
            _ => result,
        }
    }

    fn wishes(&self) -> RxWishes {
        let mac_control = self.nic.congestion().classes.heeds_mac_control();
        RxWishes { arrivals: self.nic.wants_arrivals(), mac_control }
    }

    fn wish(&mut self) -> io::Result<()> {
        self.rx_wishes = self.wishes();
        let answer = self.port.set_rx_wishes(self.rx_wishes);
        self.wishes_refused = answer.is_err();
        answer
    }

    /// Takes a burst in, lets the QPs judge it, and copies its payload where it belongs.
    fn receive(&mut self, now: Nanos) -> usize {
        if self.nic.sends_pauses() {
            self.tell_neighbour(now);
        }
        let count = self.port.rx_burst(now);
        let notes = self.port.wants_notes();
        for index in 0..count {
            let port::Received { frame, ip_id_hidden, arrived } = self.port.rx_frame(index);
            let received = nic::RxFrame { frame, index: index as u16, ip_id_hidden, arrived };
            let outcome = self.nic.receive(now, &received);
            // Frame by frame: its bytes are in the cache now.
            self.nic.run_dma(|_| frame);
            if notes {
                self.port.rx_note(index, format_args!("{outcome}"));
            }
        }
        // Also after an empty burst: a layer may have taken frames and kept them.
        self.port.rx_release();
        count
    }

    /// Has the neighbour pause, or go on, by what waits in the receive ring.
    #[cold]
    fn tell_neighbour(&mut self, now: Nanos) {
        let Some(ring) = self.port.rx_waiting() else { return };
        let (longest, mac) = (self.port.info().max_frame, self.port.info().mac);
        let Some(control) = self.nic.neighbour_should(now, ring, longest) else { return };
        let frame = control.build(mac);
        // Without room now the next pass says it.
        let Some(id) = self.port.tx_alloc(frame.len()) else { return };
        self.port.tx_frame(&id).write(0, &frame);
        self.port.tx_commit(id);
        self.flush(now);
        self.nic.has_told(now, control);
    }

    /// Lets the QPs that have something to send do so, in turn.
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

    /// Up to `quantum` packets of one QP. False: the port has no room.
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
            match self.nic.send_usual(now, qp, slot, room) {
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

    /// The port gave no slot for the next packet of a QP. False: for want of room.
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
        self.port.tx_arrange();
        for (slot, (id, qp)) in self.slots.drain(..).enumerate() {
            let mut frame = self.port.tx_frame(&id);
            if self.nic.gather(slot as u16, &mut frame) {
                self.nic.seal(qp, &mut frame);
                self.port.tx_commit(id);
            } else {
                self.nic.payload_missing(now, qp, &frame.as_frame());
                self.port.tx_cancel(id);
            }
        }
    }

    fn raise_events(&mut self) {
        while let Some(event) = self.nic.take_event() {
            self.raise(event);
        }
    }

    fn flush(&mut self, now: Nanos) {
        if let Err(error) = self.port.tx_flush(now) {
            self.link_error.get_or_insert_with(|| error.to_string());
        }
    }

    /// Follows a change of the link. QPs whose packets no longer fit go to the error state; returns how many.
    ///
    /// # Errors
    /// If the port could not; it goes on as before.
    pub fn follow(&mut self, now: Nanos, change: &LinkChange) -> io::Result<u32> {
        let now = self.advance(now);
        self.port.follow(change)?;
        match change {
            LinkChange::Addresses(_) => Ok(0),
            LinkChange::Mac(_) => {
                self.nic.set_station(self.port.info().mac);
                Ok(0)
            }
            LinkChange::Mtu(_) => {
                self.nic.set_longest_frame(longest_frame(self.port.info()));
                let largest = Mtu::largest_for_link(self.port.info().largest_packet());
                let failed = self.nic.set_largest_mtu(now, largest);
                self.nic.look_after(now);
                self.nic.publish(now);
                self.raise_events();
                Ok(failed)
            }
        }
    }

    /// The way to a peer leads to another station. Returns how many QPs go there.
    pub fn set_next_hop(&mut self, peer: Gid, mac: [u8; 6]) -> u32 {
        self.nic.set_next_hop(peer, mac)
    }

    /// Nobody will turn it again: tells all who wait for something.
    pub(super) fn die(&mut self) {
        self.raise(AsyncEvent::Device(EventKind::DeviceFatal));
        self.nic.wake_all();
        // With a request goes the sender of its answer, and who waits for it is told.
        while self.requests.try_recv().is_ok() {}
        self.moves.clear();
    }

    /// Reports something to the application.
    pub fn raise(&mut self, event: AsyncEvent) {
        if let Some(sink) = &self.sink {
            sink(event);
        } else if self.events.try_send(event).is_err() {
            self.events_lost += 1;
        }
    }

    /// Hands events to `sink` from now on. False: there is one already.
    pub(super) fn set_event_sink(&mut self, sink: EventSink) -> bool {
        let first = self.sink.is_none();
        self.sink.get_or_insert(sink);
        first
    }

    /// Goes on with another port. Between two passes no slot of the old one is held.
    pub(super) fn set_port(&mut self, now: Nanos, port: Box<dyn Port>) {
        self.port = port;
        let info = self.port.info();
        let (mac, largest) = (info.mac, Mtu::largest_for_link(info.largest_packet()));
        self.nic.set_longest_frame(longest_frame(self.port.info()));
        self.nic.set_station(mac);
        self.nic.set_largest_mtu(now, largest);
        if let Err(error) = self.wish() {
            self.link_error.get_or_insert_with(|| error.to_string());
        }
    }

    /// When the next pass is needed at the latest.
    pub fn next_deadline(&self) -> Nanos {
        let to_send = self.nic.has_ready() || self.port.tx_pending();
        let send_at = if to_send { self.stall.until() } else { Nanos::MAX };
        self.nic.next_deadline().min(self.port.next_event()).min(send_at)
    }

    /// The bells that applications ring.
    pub fn doorbells(&self) -> &Doorbells {
        &self.doorbells
    }

    /// The bells of other processes.
    pub fn guests(&self) -> &GuestBells {
        &self.guests
    }

    /// The port.
    pub fn port(&self) -> &dyn Port {
        &*self.port
    }

    /// The NIC.
    pub fn nic(&self) -> &Nic {
        &self.nic
    }

    /// Arms the wake-ups of a worker that is about to sleep; false: there is something to do after all.
    pub fn prepare_sleep(&mut self) -> bool {
        self.doorbells.sleep_begins();
        let quiet = self.is_quiet();
        if !quiet {
            self.doorbells.sleep_ends(false);
        }
        quiet
    }

    /// A caller is about to sleep on the port's descriptors, whatever has come.
    pub(super) fn prepare_wait(&mut self) {
        self.port.prepare_sleep();
    }

    /// True if nothing is to be done before the next deadline, and the port will wake whoever sleeps on it.
    pub(super) fn is_quiet(&mut self) -> bool {
        self.needed_by() > Nanos::ZERO && self.port.prepare_sleep()
    }

    /// When the next pass is needed for what is known here: at once, if something waits. Of frames that wait on the link its
    /// descriptors tell.
    pub fn needed_by(&self) -> Nanos {
        let posted = self.doorbells.any() || self.guests.any() || self.nic.has_unfetched();
        if posted || !self.requests.is_empty() || !self.moves.is_empty() {
            return Nanos::ZERO;
        }
        self.next_deadline()
    }

    /// Awake again.
    pub fn sleep_ends(&self) {
        self.doorbells.sleep_ends(false);
    }

    /// Why the link failed, if it did; said once.
    pub fn take_link_error(&mut self) -> Option<io::Error> {
        self.link_error.take().map(io::Error::other)
    }

    /// Counters of the NIC, then those of the port.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut all: Vec<_> = self.nic.counters().iter().collect();
        self.nic.pause_counters(&mut all);
        self.port.counters(&mut all);
        all.push(("async_events_lost", self.events_lost));
        all
    }
}

/// The longest frame of any protocol that a port carries.
fn longest_frame(port: &PortInfo) -> Option<usize> {
    port.raw_frames.then_some(port.max_frame)
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker").field("port", self.port.info()).finish_non_exhaustive()
    }
}
