//! Rules that every frame of a host must keep, in any script. A layer on each host's port sees received frames with the
//! NIC's comment, and sent frames, in their order.
//!
//! The other oracles check bytes and completions. Recovery can hide a fault from them: a peer with a wrong response
//! asks again. The witness checks each frame before that. Its rules are those of the specification, and it knows of the
//! NIC only what a capture shows.
//!
//! ```text
//! requests   are retransmitted bit by bit, except for AckReq
//!            do not leave after SQ_DRAINED
//! probes     take the place of no request: their PSN is the last acknowledged one, and that of a SEND or WRITE
//! questions  likewise, but of any request or of none
//! responses  go back only to a repeated request
//!            are ACKs only for requests without a response of their own
//!            that overtake others make their requester go back once
//! silence    only after a NAK, and only until the peer's wait is over
//! retries    as many as configured
//! turns      every QP with data once before any QP twice, at equal priority
//! ```

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::{Hash, Hasher};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use roxie::flow::FlowMatch;
use roxie::frame::{Frame, FrameMut};
use roxie::limits::Limits;
use roxie::port::{LinkChange, Port, PortInfo, Received, TxId};
use roxie::time::Nanos;
use roxie::wire::{Opcode, Operation, Packet, Position, Psn, Qpn, Reth, Syndrome, parse, rnr_timer_ns};

use crate::congested::{AT_ONCE, Congested, is_notification, speaks};
use crate::repeats::Repeats;

/// A QP of a reliable service, as its host sees it.
#[derive(Debug)]
pub struct Known {
    pub qpn: Qpn,
    pub peer: Qpn,
    /// Payload of a full packet in bytes.
    pub mtu: usize,
    /// RNR timer code of its NAKs.
    pub rnr_timer: u8,
    /// The ends have agreed to selective repeat.
    pub selective: bool,
    pub name: String,
}

/// The last NAK of the responder, which allows it to drop packets ahead silently.
#[derive(Clone, Copy, Debug, PartialEq)]
enum LastNak {
    None,
    /// A sequence NAK for the missing packet.
    Missing,
    /// An RNR NAK. The peer waits until this time.
    NotReady(Nanos),
}

/// An executed request with a response of its own, such as a READ or atomic.
#[derive(Clone, Copy, Debug)]
struct Asked {
    packets: u32,
    /// Index of the next response packet, or `None` if all were sent.
    due: Option<u32>,
}

#[derive(Debug)]
struct Line {
    known: Known,
    /// Its rate may be limited: what is asked for again may be held back.
    paced: bool,
    /// Digest of the sent request, by PSN.
    sent: HashMap<Psn, u64>,
    /// PSNs of the SENDs and WRITEs among them.
    plain: HashSet<Psn>,
    /// The PSN after the last one that a response acknowledged. `None`: none yet.
    acknowledged: Option<Psn>,
    /// PSN of the last RNR NAK, and the number of consecutive ones.
    not_ready: Option<(Psn, u32)>,
    /// A response that overtook another made the requester go back, and nothing new was acknowledged since.
    was_rewound: bool,
    /// Selective repeat: what was sent again.
    repeats: Repeats,
    /// Selective repeat: places of READ responses that were asked for again, alone.
    parts: BTreeSet<i32>,
    /// `draining`: the QP is in SQD. `drained`: SQ_DRAINED was raised.
    draining: bool,
    drained: bool,
    /// Requests with a response of their own, by the distance of their PSN from `origin`.
    requests: BTreeMap<i32, Asked>,
    origin: Option<Psn>,
    last_answer: Option<Psn>,
    /// Lowest PSN of a repeated request since a response last went back.
    lowest: Option<Psn>,
    /// PSNs of READs and atomics that questions have named, one for each question.
    questions: Vec<Psn>,
    last_nak: LastNak,
    /// PSN and arrival time of a request with AckReq, if its ACK need not wait.
    ack_due: Option<(Psn, Nanos)>,
}

impl Line {
    fn new(known: Known) -> Line {
        Line {
            known,
            paced: false,
            sent: HashMap::new(),
            plain: HashSet::new(),
            acknowledged: None,
            not_ready: None,
            was_rewound: false,
            repeats: Repeats::default(),
            parts: BTreeSet::new(),
            draining: false,
            drained: false,
            requests: BTreeMap::new(),
            origin: None,
            last_answer: None,
            lowest: None,
            questions: Vec::new(),
            last_nak: LastNak::None,
            ack_due: None,
        }
    }

    /// Distance of a request's PSN from the first one seen.
    fn at(&mut self, psn: Psn) -> i32 {
        psn.distance_from(*self.origin.get_or_insert(psn))
    }

    /// The request with a response of its own that covers a PSN, and the index of that response packet.
    fn request_at(&mut self, psn: Psn) -> Option<(&mut Asked, u32)> {
        let at = self.at(psn);
        let (first, request) = self.requests.range_mut(..=at).next_back()?;
        let packet = (at - first) as u32;
        (packet < request.packets).then_some((request, packet))
    }

    /// Number of response packets that a READ request asks for.
    fn packets(&self, packet: &Packet) -> u32 {
        let length = packet.reth().map_or(0, |reth| reth.dma_len as usize);
        length.div_ceil(self.known.mtu).max(1) as u32
    }

    /// Checks a received request. `verdict` is the NIC's comment on it.
    fn check_request(&mut self, now: Nanos, packet: &Packet, verdict: &str) {
        let psn = packet.bth.psn;
        match verdict {
            "executed" => {
                self.last_nak = LastNak::None;
                if has_own_answer(packet) {
                    let is_read = packet.info().operation == Operation::ReadRequest;
                    let packets = if is_read { self.packets(packet) } else { 1 };
                    let at = self.at(psn);
                    self.requests.insert(at, Asked { packets, due: Some(0) });
                } else {
                    self.at(psn);
                    // Responses leave in order, and READ responses are paced.
                    let waits =
                        !self.parts.is_empty() || self.requests.values().any(|request| request.due.is_some());
                    if packet.bth.ack_req && !waits {
                        self.ack_due.get_or_insert((psn, now));
                    }
                }
            }
            "duplicate: answered again, not executed again" => {
                // A question has the PSN of any request. Its ACK is that of the request before, whatever that was, or
                // if the responder has forgotten, that of the question.
                let is_question = !has_own_answer(packet) && self.request_at(psn).is_some();
                let before = self.request_at(psn).map_or(psn, |(_, packet)| psn - (packet + 1));
                let from = if is_question { before } else { psn };
                self.questions.extend(is_question.then_some(psn));
                self.lowest = Some(self.lowest.filter(|lowest| lowest.is_before(from)).unwrap_or(from));
                let (selective, mtu) = (self.known.selective, self.known.mtu);
                let is_read = packet.info().operation == Operation::ReadRequest;
                if selective && is_read && packet.reth().is_some_and(|reth| reth.dma_len as usize <= mtu) {
                    let at = self.at(psn);
                    self.parts.insert(at);
                } else if has_own_answer(packet)
                    && let Some((request, packet)) = self.request_at(psn)
                {
                    let continues = request.due.filter(|due| selective && *due < packet);
                    request.due = continues.or(Some(packet));
                }
                // Responses leave in order: the one to a duplicate goes before a pending ACK, and is paced.
                if has_own_answer(packet) {
                    self.ack_due = None;
                }
            }
            "no receive posted: RNR NAK" => {
                self.last_nak = LastNak::NotReady(now + Nanos(rnr_timer_ns(self.known.rnr_timer)));
            }
            _ if verdict.ends_with("; sequence NAK") => self.last_nak = LastNak::Missing,
            _ if verdict.ends_with("; silent, already asked for") => {
                let knows = match self.last_nak {
                    LastNak::None => false,
                    LastNak::Missing => true,
                    LastNak::NotReady(until) => now < until,
                };
                assert!(knows, "{}: {packet}: silence, last NAK {:?}", self.known.name, self.last_nak);
            }
            _ => {}
        }
    }

    /// Checks a received response.
    fn check_response(&mut self, packet: &Packet, verdict: &str) {
        let psn = packet.bth.psn;
        let syndrome = packet.aeth().map(|aeth| Syndrome::from(aeth.syndrome));
        let is_sack = packet.info().operation == Operation::SelectiveAcknowledge;
        let positive = !is_sack && syndrome.is_none_or(|syndrome| matches!(syndrome, Syndrome::Ack { .. }));
        let acknowledged = match verdict {
            "acknowledges" => Some(psn.next()),
            _ if verdict.ends_with("send again") || verdict.contains("wait") => Some(psn),
            _ => None,
        };
        self.acknowledged = acknowledged.or(self.acknowledged);
        match verdict {
            "acknowledges" if self.known.selective => self.repeats.acknowledged(psn),
            "acknowledges" => self.was_rewound = false,
            "implied NAK: go back and send again" => self.was_rewound = true,
            _ if verdict.starts_with("came early") => self.repeats.overtaken(psn),
            _ if verdict.starts_with("asked for") => self.repeats.overtaken(psn),
            "stale: already going back" if positive && !(self.paced && self.known.selective) => {
                let (name, is_requested) =
                    (&self.known.name, self.was_rewound || self.repeats.are_before(psn));
                assert!(
                    is_requested,
                    "{name}: {packet} overtakes what was asked, and nothing is asked again"
                );
            }
            _ if verdict.starts_with("receiver not ready: wait") => {
                self.repeats.rewound();
                let before = self.not_ready.filter(|(same, _)| *same == psn).map_or(0, |(_, times)| times);
                self.not_ready = Some((psn, before + 1));
            }
            _ => {}
        }
    }

    /// True for a SEND without payload that asks for an acknowledgement, and has the last PSN that a response
    /// acknowledged.
    fn is_probe(&self, packet: &Packet) -> bool {
        let is_empty = packet.bth.opcode == Opcode::RC_SEND_ONLY && packet.payload.is_empty();
        is_empty && packet.bth.ack_req && self.acknowledged == Some(packet.bth.psn.next())
    }

    /// Checks a question to the peer that is sent.
    fn question_leaves(&self, packet: &Packet) {
        let name = &self.known.name;
        let is_empty = packet.bth.opcode == Opcode::RC_SEND_ONLY && packet.payload.is_empty();
        assert!(is_empty && packet.bth.ack_req, "{name}: {packet} is a question");
        assert!(!self.drained, "{name}: {packet} leaves, and it was said to be drained");
    }

    /// Checks a request that is sent.
    fn request_leaves(&mut self, packet: &Packet, frame: &Frame<'_>) {
        assert!(!self.drained, "{}: {packet} leaves, and it was said to be drained", self.known.name);
        if self.is_probe(packet) {
            let (name, psn) = (&self.known.name, packet.bth.psn);
            assert!(self.plain.contains(&psn), "{name}: {packet}: no SEND or WRITE was sent with that PSN");
            return;
        }
        // With selective repeat, a READ is asked for in parts of any length.
        let in_parts = self.known.selective && packet.info().operation == Operation::ReadRequest;
        let place = |reth: Reth| reth.va ^ u64::from(reth.rkey);
        let digest = packet.reth().filter(|_| in_parts).map_or_else(|| digest(packet, frame), place);
        if self.known.selective {
            let packets = if in_parts { self.packets(packet) } else { 1 };
            self.repeats.sent(packet.bth.psn, packets);
        }
        if !has_own_answer(packet) {
            self.plain.insert(packet.bth.psn);
        }
        let name = &self.known.name;
        let first = *self.sent.entry(packet.bth.psn).or_insert(digest);
        assert!(first == digest, "{name}: {packet} is not what was sent before with this PSN");
    }

    /// Checks a response that is sent.
    fn answer_leaves(&mut self, now: Nanos, packet: &Packet, prompt: bool) {
        let (psn, name) = (packet.bth.psn, self.known.name.clone());
        let syndrome = packet.aeth().map(|aeth| Syndrome::from(aeth.syndrome));
        let acknowledges = packet.info().operation == Operation::Acknowledge;
        if let Some((_, since)) = self.ack_due.take_if(|(request, _)| !psn.is_before(*request)) {
            let late = now - since;
            assert!(!prompt || late < AT_ONCE, "{name}: {packet} leaves {late} after it was asked for");
        }
        let is_sack = packet.info().operation == Operation::SelectiveAcknowledge;
        if is_sack || (acknowledges && !matches!(syndrome, Some(Syndrome::Ack { .. }))) {
            return;
        }
        let request = self.questions.iter().position(|request| !request.is_before(psn));
        if let Some(request) = request.filter(|_| acknowledges && self.request_at(psn).is_some()) {
            self.questions.remove(request);
            return;
        }
        match self.request_at(psn) {
            Some(_) => assert!(!acknowledges, "{name}: {packet}: that PSN has an answer of its own"),
            None => assert!(acknowledges, "{name}: {packet}: no request has that PSN"),
        }
        let at = self.at(psn);
        if packet.info().position == Position::Only && self.parts.remove(&at) {
            return;
        }
        if let Some((request, k)) = self.request_at(psn) {
            assert!(request.due == Some(k), "{name}: {packet}: packet {k} of {request:?} is not due");
            request.due = (k + 1 < request.packets).then_some(k + 1);
        }
        if self.last_answer.is_some_and(|last| psn.is_before(last)) {
            let lowest = self.lowest.take();
            let was_requested = lowest.is_some_and(|lowest| !psn.is_before(lowest));
            assert!(
                was_requested,
                "{name}: {packet} behind {:?}, and asked again is {lowest:?}",
                self.last_answer
            );
        }
        self.last_answer = Some(psn);
    }
}

/// True if the request is answered by a response of its own instead of an ACK.
fn has_own_answer(packet: &Packet) -> bool {
    !matches!(packet.info().operation, Operation::Send | Operation::Write)
}

/// Digest of the parts of a packet that a retransmission must repeat.
fn digest(packet: &Packet, frame: &Frame<'_>) -> u64 {
    let mut hasher = DefaultHasher::new();
    let bth = &packet.bth;
    (bth.opcode.0, bth.solicited, bth.pad, bth.pkey, bth.dest_qp.value()).hash(&mut hasher);
    let headers = packet.bth_offset + roxie::wire::Bth::LEN..packet.payload.start;
    for range in [headers, packet.payload.clone()] {
        let (a, b) = frame.slices(range);
        a.iter().chain(b).for_each(|byte| byte.hash(&mut hasher));
    }
    hasher.finish()
}

#[derive(Debug, Default)]
struct Book {
    congested: Congested,
    /// Packets have different priorities in this run.
    priorities: bool,
    /// Rates are limited in this run.
    paced: bool,
    /// QPs by host and own QPN.
    lines: HashMap<(usize, Qpn), Line>,
    /// Own QPN, by host and peer's QPN.
    by_peer: HashMap<(usize, Qpn), Qpn>,
}

impl Book {
    fn to(&mut self, host: usize, packet: &Packet) -> Option<&mut Line> {
        self.lines.get_mut(&(host, packet.bth.dest_qp))
    }

    fn from(&mut self, host: usize, packet: &Packet) -> Option<&mut Line> {
        let own = *self.by_peer.get(&(host, packet.bth.dest_qp))?;
        self.lines.get_mut(&(host, own))
    }
}

/// Shared state of the witnesses of a run.
#[derive(Clone, Debug, Default)]
pub struct Witnesses(Arc<Mutex<Book>>);

impl Witnesses {
    fn book(&self) -> MutexGuard<'_, Book> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a QP at the start of a life.
    pub fn learn(&self, host: usize, known: Known) {
        let mut book = self.book();
        book.by_peer.retain(|(of, _), own| *of != host || *own != known.qpn);
        book.by_peer.insert((host, known.peer), known.qpn);
        let paced = book.paced;
        book.lines.insert((host, known.qpn), Line { paced, ..Line::new(known) });
    }

    /// Calls `f` with the congestion rules.
    pub fn congested<T>(&self, f: impl FnOnce(&mut Congested) -> T) -> T {
        f(&mut self.book().congested)
    }

    /// Sets whether packets have different priorities, whether rates are limited, and the number of slots of a port.
    pub fn expect(&self, priorities: bool, paced: bool, slots: usize) {
        let mut book = self.book();
        (book.priorities, book.paced, book.congested.roomy) = (priorities, paced, slots >= 1_024);
    }

    /// Notes that the application is about to move the QP to SQD, or out of it.
    pub fn drains(&self, host: usize, qpn: Qpn, draining: bool) {
        if let Some(line) = self.book().lines.get_mut(&(host, qpn)) {
            (line.draining, line.drained) = (draining, false);
        }
    }

    /// Notes the SQ_DRAINED event.
    pub fn is_drained(&self, host: usize, qpn: Qpn) {
        if let Some(line) = self.book().lines.get_mut(&(host, qpn)) {
            line.drained = line.draining;
        }
    }

    /// Number of consecutive RNR waits for the same packet.
    pub fn waits(&self, host: usize, qpn: Qpn) -> u32 {
        let book = self.book();
        book.lines.get(&(host, qpn)).and_then(|line| line.not_ready).map_or(0, |(_, times)| times)
    }
}

/// The layer on a port.
pub struct Witness {
    inner: Box<dyn Port>,
    host: usize,
    witnesses: Witnesses,
    now: Nanos,
    /// QPs that have sent in this pass, with their number of frames. Acknowledgements do not count: with a
    /// notification, they may be sent before the QP's turn.
    turns: Vec<([u8; 6], Qpn, u32)>,
    /// Frames that ask whether the peer has the connection.
    questions: HashSet<String>,
}

impl Witness {
    pub fn new(inner: Box<dyn Port>, host: usize, witnesses: Witnesses) -> Witness {
        let (turns, questions) = (Vec::new(), HashSet::new());
        Witness { inner, host, witnesses, now: Nanos::ZERO, turns, questions }
    }

    /// Checks that every QP gets a turn in a pass before any gets a second one.
    fn note_turn(&mut self, packet: &Packet, frame: &Frame<'_>) {
        // Datagrams are identified by their sender, other packets by their destination.
        let station = frame.array::<6>(0).unwrap_or_default();
        let (station, qpn) = match packet.deth() {
            Some(deth) => ([0; 6], deth.src_qp),
            None => (station, packet.bth.dest_qp),
        };
        let count = u32::from(speaks(packet));
        let seen = self.turns.iter_mut().find(|(s, q, _)| (*s, *q) == (station, qpn));
        if let Some((_, _, frames)) = seen {
            *frames += count;
            return;
        }
        let quantum = Limits::small().tx_quantum;
        let greedy = self.turns.iter().find(|(_, _, frames)| *frames > quantum);
        let host = self.host + 1;
        assert!(greedy.is_none(), "h{host}: {packet} waited for a second turn of another: {greedy:?}");
        self.turns.push((station, qpn, count));
    }
}

impl Port for Witness {
    fn info(&self) -> &PortInfo {
        self.inner.info()
    }

    fn rx_burst(&mut self, now: Nanos) -> usize {
        self.now = now;
        self.inner.rx_burst(now)
    }

    fn rx_frame(&self, i: usize) -> Received<'_> {
        self.inner.rx_frame(i)
    }

    fn rx_note(&mut self, i: usize, note: std::fmt::Arguments<'_>) {
        self.inner.rx_note(i, note);
        let received = self.inner.rx_frame(i);
        let mut book = self.witnesses.book();
        let verdict = note.to_string();
        let Ok(packet) = parse(&received.frame) else {
            if verdict.starts_with("heeded: ") {
                book.congested.paused(self.host);
            }
            return;
        };
        book.congested.check_received(self.now, self.host, &packet, &received.frame, &verdict);
        if is_notification(&packet) {
            return;
        }
        let Some(line) = book.to(self.host, &packet) else { return };
        if packet.info().is_response() {
            line.check_response(&packet, &verdict);
        } else {
            line.check_request(self.now, &packet, &verdict);
        }
    }

    fn rx_release(&mut self) {
        self.inner.rx_release();
    }

    fn tx_alloc(&mut self, len: usize) -> Option<TxId> {
        self.inner.tx_alloc(len)
    }

    fn tx_frame(&mut self, id: &TxId) -> FrameMut<'_> {
        self.inner.tx_frame(id)
    }

    fn set_now(&mut self, now: Nanos) {
        self.now = now;
        self.inner.set_now(now);
    }

    fn tx_arrange(&mut self) {
        self.inner.tx_arrange();
    }

    fn tx_commit(&mut self, id: TxId) {
        let bytes = self.inner.tx_frame(&id).as_frame().to_vec();
        let frame = Frame::whole(&bytes);
        let packet = parse(&frame).expect("a valid packet");
        let is_question = self.questions.remove(&format!("{id:?}"));
        let mut book = self.witnesses.book();
        book.congested.leaves(self.now, self.host, &packet, bytes.len());
        let (prompt, priorities) = (book.congested.is_prompt(self.host), book.priorities);
        if is_notification(&packet) {
            drop(book);
            self.inner.tx_commit(id);
            return;
        }
        if let Some(line) = book.from(self.host, &packet) {
            if packet.info().is_response() {
                line.answer_leaves(self.now, &packet, prompt);
            } else if is_question {
                line.question_leaves(&packet);
            } else if packet.deth().is_none() {
                line.request_leaves(&packet, &frame);
            }
        }
        drop(book);
        if !priorities {
            self.note_turn(&packet, &frame);
        }
        self.inner.tx_commit(id);
    }

    fn tx_note(&mut self, id: &TxId, note: std::fmt::Arguments<'_>) {
        if note.to_string().starts_with("question") {
            self.questions.insert(format!("{id:?}"));
        }
        self.inner.tx_note(id, note);
    }

    fn tx_cancel(&mut self, id: TxId) {
        self.inner.tx_cancel(id);
    }

    fn tx_flush(&mut self, now: Nanos) -> io::Result<()> {
        self.turns.clear();
        self.inner.tx_flush(now)
    }

    fn wants_notes(&self) -> bool {
        true
    }

    fn next_event(&self) -> Nanos {
        self.inner.next_event()
    }

    fn follow(&mut self, change: &LinkChange) -> io::Result<()> {
        self.inner.follow(change)
    }

    fn steer(&mut self, flows: &[FlowMatch]) -> io::Result<()> {
        self.inner.steer(flows)
    }

    fn counters(&self, out: &mut Vec<(&'static str, u64)>) {
        self.inner.counters(out);
    }
}
