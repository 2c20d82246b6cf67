//! The requests of one queue pair and their responses, as a wire or a capture sees them: as they come from the sender,
//! and as they leave to the receiver. A capture of one end sees either; what it has is taken for both.

use std::collections::{BTreeMap, VecDeque};

use roxie_base::time::Nanos;
use roxie_wire::{NakCode, Opcode, Operation, Packet, Position, Psn, Syndrome, rnr_timer_ns};

use super::rules::{Rule, Tally};

mod form;

pub(super) use form::{length_fits, may_follow};
mod request;

use request::{Request, span_of};

/// Most requests outstanding at a time. A sender with more is not judged further.
const MOST_OUTSTANDING: usize = 1 << 14;
/// Most atomics with original values that are remembered.
const MOST_ATOMICS: usize = 4096;
/// Most requests of which the operation and the position are remembered.
const MOST_SHAPES: usize = 4096;
/// A jump beyond this many PSNs, more than any window, is a new connection of the same queue pair.
const NEW_CONNECTION: i64 = 1 << 16;
/// Path MTUs in bytes.
const MTUS: [u32; 5] = [4096, 2048, 1024, 512, 256];

/// PSNs that a capture lacks, between two of its frames.
#[derive(Clone, Copy, Debug)]
struct Hole {
    packets: i64,
    after: u64,
    before: u64,
}

impl Hole {
    fn words(&self) -> String {
        let Hole { packets, after, before } = self;
        format!("{packets} packets are missing between frames {after} and {before}")
    }
}

/// An earlier packet, and the number of its frame.
#[derive(Clone, Copy, Debug)]
struct Cause {
    psn: Psn,
    frame: u64,
    /// The IPv4 identification, which differs between two packets that are equal otherwise, if the sender counts it.
    id: Option<u16>,
}

/// Requests from one end to a queue pair of the other, and the responses to them.
#[derive(Debug)]
pub(super) struct Stream {
    mtu: Option<u32>,
    /// False for a path MTU that follows from PSNs alone, between which a capture may lack requests.
    is_mtu_sure: bool,
    outstanding: VecDeque<Request>,
    /// PSN of the first packet seen.
    first: Psn,
    /// PSN after the last request that was sent for the first time.
    next: Psn,
    /// PSN after the request that was sent last.
    after_last: Psn,
    /// PSN of the oldest request without the acknowledgement that its sender has received.
    oldest: Psn,
    /// The last PSN that the receiver may expect, by what has left to it. A NAK does not move it back: the request that
    /// it asks for may have left meanwhile.
    expected: Psn,
    /// The READ delivered last, if its length in packets is not known.
    unmeasured: Option<(Psn, u32)>,
    /// Most messages that the receiver may have executed.
    messages: u32,
    /// Sequence NAK that was delivered, until its sender goes back.
    nak: Option<Cause>,
    /// Sequence NAK that was sent, until the request that it asks for is delivered.
    nak_sent: Option<Cause>,
    /// RNR NAK that was delivered, and the end of its wait.
    rnr: Option<(Cause, Nanos)>,
    /// Operations and positions of requests by PSN, and the PSNs in the order in which they were sent first.
    shapes: BTreeMap<u32, (Operation, Position)>,
    shaped: VecDeque<u32>,
    /// True for a capture, which may lack packets.
    is_captured: bool,
    /// True if the host that captured the requests has sent them.
    pub(super) is_own: bool,
    /// The last PSNs that the capture lacks, and the frame of the last request.
    hole: Option<Hole>,
    pub(super) last_frame: u64,
    /// True if the queue pair has connected anew: its next request is the first of another stream.
    pub(super) is_over: bool,
    /// Original values by PSN.
    originals: BTreeMap<u32, u64>,
    /// Address and key of the last FETCH_ADD answered, and what the next one there must find.
    found_next: Option<(u64, u32, u64)>,
    /// False if the wire has not seen the connection from its first message on.
    counts_messages: bool,
    has_aeth: bool,
    is_given_up: bool,
    /// True after a selective acknowledgement: the sender repeats what is missing, in place of all from there on.
    pub(super) is_selective: bool,
    /// True if a response could not be told from one to another stream: what is not acknowledged is not known.
    pub(super) misses_answers: bool,
    pub(super) has_atomics: bool,
    pub(super) last_asks: bool,
    pub(super) changed: Nanos,
}

impl Stream {
    pub(super) fn new(first: Psn, is_captured: bool, is_selective: bool) -> Stream {
        Stream {
            mtu: None,
            is_mtu_sure: false,
            outstanding: VecDeque::new(),
            first,
            next: first,
            after_last: first,
            oldest: first,
            expected: first,
            unmeasured: None,
            messages: 0,
            nak: None,
            nak_sent: None,
            rnr: None,
            shapes: BTreeMap::new(),
            shaped: VecDeque::new(),
            is_captured,
            is_own: false,
            hole: None,
            last_frame: 0,
            is_over: false,
            originals: BTreeMap::new(),
            found_next: None,
            counts_messages: true,
            has_aeth: false,
            is_given_up: false,
            is_selective,
            misses_answers: false,
            has_atomics: false,
            last_asks: false,
            changed: Nanos::ZERO,
        }
    }

    /// True if a response with this PSN may be for a request of this stream.
    pub(super) fn has(&self, psn: Psn) -> bool {
        !psn.is_before(self.first) && (psn.is_before(self.next) || psn == self.next)
    }

    /// True if each request that asks for it is acknowledged.
    pub(super) fn is_done(&self) -> bool {
        self.is_given_up || self.misses_answers || self.oldest == self.next || !self.last_asks
    }

    /// Learns the path MTU, and measures the READs that wait for it.
    pub(super) fn learn(&mut self, mtu: u32) {
        if self.is_mtu_sure || !MTUS.contains(&mtu) {
            return;
        }
        (self.mtu, self.is_mtu_sure) = (Some(mtu), true);
        if let Some(last) = self.last_read() {
            let end = last.psn + last.span(self.mtu);
            if self.after_last == self.next {
                self.after_last = end;
            }
            self.next = end;
        }
        if let Some((psn, dma)) = self.unmeasured.take() {
            self.expected = psn + span_of(dma, self.mtu);
        }
    }

    /// Returns the last request, if it is an outstanding READ.
    fn last_read(&self) -> Option<&Request> {
        self.outstanding.back().filter(|last| last.operation == Operation::ReadRequest)
    }

    /// Learns the path MTU from the PSN that follows a READ.
    fn infer(&mut self, psn: Psn) {
        let Some(last) = self.last_read() else { return };
        let packets = psn.distance_from(last.psn);
        let fitting =
            MTUS.into_iter().find(|mtu| i64::from(span_of(last.dma, Some(*mtu))) == i64::from(packets));
        if let Some(mtu) = fitting {
            self.learn(mtu);
            self.is_mtu_sure = !self.is_captured;
        }
    }

    /// True if a request begins another connection of the queue pair.
    pub(super) fn ends_before(&self, packet: &Packet) -> bool {
        let ahead = i64::from(packet.bth.psn.distance_from(self.next));
        let is_unmeasured = self.mtu.is_none() && self.last_read().is_some();
        self.is_over || ahead < -NEW_CONNECTION || ahead > NEW_CONNECTION && !is_unmeasured
    }

    /// Takes what the connection manager agreed on, before the first request, with `psn`.
    pub(super) fn begin(&mut self, psn: Psn, agreed: Psn, mtu: u32, rules: &mut Tally) {
        self.learn(mtu);
        let ahead = i64::from(psn.distance_from(agreed));
        // The first requests may be lost before a capture of the receiver.
        let holds = ahead == 0 || self.is_captured && (1..NEW_CONNECTION).contains(&ahead);
        rules.judge(Rule::BeginsAsAgreed, holds, || {
            format!("the first request has PSN {psn}; the peer asked for {agreed}")
        });
    }

    /// Takes a request from its sender.
    pub(super) fn request_sent(&mut self, packet: &Packet, now: Nanos, rules: &mut Tally) {
        let (psn, info) = (packet.bth.psn, packet.info());
        if self.is_probe(packet) {
            self.last_asks |= packet.bth.ack_req;
            self.changed = now;
            return;
        }
        self.check_length(packet, rules);
        if psn != self.next && !psn.is_before(self.next) {
            self.infer(psn);
        }
        if self.is_captured && psn != self.next && !psn.is_before(self.next) {
            let packets = psn.distance_from(self.next).into();
            self.hole = Some(Hole { packets, after: self.last_frame, before: rules.scene.frame });
        }
        self.last_frame = rules.scene.frame;
        let request = Request {
            psn,
            operation: info.operation,
            dma: packet.reth().map_or(0, |reth| reth.dma_len),
            add: packet
                .atomic_eth()
                .filter(|_| info.operation == Operation::FetchAdd)
                .map(|atomic| (atomic.va, atomic.rkey, atomic.swap_or_add)),
            has_restarted: false,
        };
        let end = psn + request.span(self.mtu);
        self.check_shape(packet, end, rules);
        if psn.is_before(self.next) {
            self.sent_again(request, now, rules);
        } else {
            self.last_asks = packet.bth.ack_req || request.has_response();
            self.has_atomics |= matches!(info.operation, Operation::FetchAdd | Operation::CompareSwap);
            self.originals.remove(&psn.value());
            if self.outstanding.len() == MOST_OUTSTANDING {
                self.is_given_up = true;
                self.outstanding = VecDeque::new();
            }
            if !self.is_given_up {
                self.outstanding.push_back(request);
            }
            self.next = end;
        }
        self.after_last = end;
        self.changed = now;
    }

    /// True for a SEND of no bytes with a PSN before the oldest unacknowledged one. A probe asks for an acknowledgement
    /// of requests that did not.
    fn is_probe(&self, packet: &Packet) -> bool {
        let is_empty_send = packet.bth.opcode == Opcode::RC_SEND_ONLY && packet.payload.is_empty();
        is_empty_send && packet.bth.ack_req && !self.oldest.is_before(packet.bth.psn.next())
    }

    fn sent_again(&mut self, Request { psn, dma, .. }: Request, now: Nanos, rules: &mut Tally) {
        if self.is_given_up {
            return;
        }
        // Requests are in the order of their PSNs.
        let behind = self.outstanding.partition_point(|request| !psn.is_before(request.psn));
        let of_psn = behind.checked_sub(1).and_then(|at| self.outstanding.get_mut(at));
        if let Some(read) = of_psn.filter(|request| request.operation == Operation::ReadRequest) {
            read.has_restarted |= read.psn != psn || read.dma != dma;
        }
        if self.nak.is_some_and(|nak| nak.psn == psn) {
            rules.kept(Rule::AgainFromTheGap);
            self.nak = None;
        }
        let is_ahead = self.after_last.is_before(psn) && !self.is_upstream();
        if psn == self.after_last || is_ahead {
            return;
        }
        rules.again += 1;
        if self.is_selective || self.misses_answers {
            return;
        }
        let oldest = self.oldest;
        let holds = !oldest.is_before(psn);
        if self.is_captured && !holds {
            // The capture may lack the acknowledgement.
            let frame = rules.scene.frame;
            rules.undecided(Rule::AgainFromTheOldest, || {
                format!(
                    "no acknowledgement of PSN {oldest} in front of frame {frame}, which goes back to {psn}"
                )
            });
        } else {
            rules.judge(Rule::AgainFromTheOldest, holds, || {
                format!("the sender goes back to PSN {psn}, though {oldest} is not acknowledged")
            });
        }
        if let Some(nak) = self.nak.take() {
            // The request may have come late, and be acknowledged since.
            let gap = if nak.psn.is_before(oldest) { oldest } else { nak.psn };
            let holds = !gap.is_before(psn);
            self.judge_requester(Rule::AgainFromTheGap, holds, Some(nak.frame), rules, || {
                format!("behind a sequence NAK of PSN {} the sender goes back to {psn}", nak.psn)
            });
        }
        if let Some((refused, until)) = self.rnr.filter(|(refused, _)| refused.psn == psn) {
            self.judge_requester(Rule::WaitsAfterRnr, now >= until, Some(refused.frame), rules, || {
                let early = until.since(now).0 / 1000;
                format!("PSN {psn} is sent again {early} us before its RNR wait ends")
            });
            self.rnr = None;
        }
    }

    /// True if requests are seen before they may be lost: on a wire, and in a capture of their sender's host. Else a
    /// request that was left out cannot be told from one that was lost.
    fn is_upstream(&self) -> bool {
        !self.is_captured || self.is_own
    }

    /// Judges what a requester does, as far as the place of the capture decides it.
    fn judge_requester(
        &self,
        rule: Rule,
        holds: bool,
        cause: Option<u64>,
        rules: &mut Tally,
        otherwise: impl FnOnce() -> String,
    ) {
        if holds || self.is_upstream() {
            return rules.judge_by(rule, holds, cause, otherwise);
        }
        let frame = rules.scene.frame;
        rules.undecided(rule, || format!("requests may be lost before the capture: frame {frame}"));
    }

    /// Takes a request that leaves to its receiver, undamaged.
    pub(super) fn request_delivered(&mut self, packet: &Packet) {
        self.nak_sent = self.nak_sent.filter(|nak| nak.psn != packet.bth.psn);
        if packet.bth.psn != self.expected {
            return;
        }
        let info = packet.info();
        let is_read = info.operation == Operation::ReadRequest;
        let dma = packet.reth().map_or(0, |reth| reth.dma_len);
        let span = if is_read { span_of(dma, self.mtu) } else { 1 };
        self.unmeasured = (is_read && self.mtu.is_none()).then_some((packet.bth.psn, dma));
        self.expected = self.expected + span;
        self.messages += u32::from(info.position.ends());
    }

    /// Takes a response from its sender.
    pub(super) fn response_sent(&mut self, packet: &Packet, rules: &mut Tally) {
        let psn = packet.bth.psn;
        let kind = packet.aeth().map(|aeth| aeth.kind());
        let is_nak = kind == Some(Syndrome::Nak(NakCode::PsnSequence));
        if packet.info().operation == Operation::SelectiveAcknowledge {
            self.is_selective = true;
            return;
        }
        self.check_length(packet, rules);
        self.check_response(packet, rules);
        // The PSN after those that must have arrived.
        let end = if is_nak { psn } else { psn.next() };
        let rule = if is_nak { Rule::NakNamesTheGap } else { Rule::AnswersWhatArrived };
        if self.is_captured && self.expected.is_before(end) {
            // The capture lacks requests, or the responder answers what has not arrived.
            let frame = rules.scene.frame;
            let hole = self.hole.unwrap_or(Hole {
                packets: end.distance_from(self.expected).into(),
                after: self.last_frame,
                before: frame,
            });
            rules.undecided(rule, || hole.words());
            (self.expected, self.counts_messages) = (end, false);
        }
        let expected = self.expected;
        match kind {
            Some(Syndrome::Nak(NakCode::PsnSequence)) => {
                rules.naks += 1;
                rules.judge(rule, !expected.is_before(psn), || {
                    format!("a sequence NAK names PSN {psn}, though {expected} has not arrived")
                });
                self.check_nak(packet, rules);
            }
            Some(Syndrome::RnrNak { .. } | Syndrome::Nak(_) | Syndrome::Reserved(_)) => {}
            Some(Syndrome::Ack { .. }) | None => {
                rules.judge(rule, psn.is_before(expected), || {
                    format!("{} of PSN {psn} is sent, though {expected} has not arrived", packet.info().name)
                });
            }
        }
        if let Some(aeth) = packet.aeth() {
            self.count(aeth.msn, rules);
        }
        if let Some(original) = packet.atomic_ack() {
            self.atomic(psn, original, rules);
        }
    }

    fn count(&mut self, msn: u32, rules: &mut Tally) {
        let messages = self.messages & 0x00ff_ffff;
        if !std::mem::replace(&mut self.has_aeth, true) && msn > messages {
            self.counts_messages = false;
        }
        // A count that has wrapped is not compared.
        if self.counts_messages && self.messages < 1 << 23 {
            rules.judge(Rule::MessagesOnce, msn <= messages, || {
                format!("the message sequence number is {msn}, though {messages} messages have arrived")
            });
        }
    }

    fn atomic(&mut self, psn: Psn, original: u64, rules: &mut Tally) {
        if let Some(before) = self.originals.get(&psn.value()) {
            let before = *before;
            rules.judge(Rule::AtomicsOnce, before == original, || {
                format!(
                    "the atomic of PSN {psn} is answered by {original}, and was answered by {before} before"
                )
            });
            return;
        }
        if self.originals.len() == MOST_ATOMICS {
            self.originals.clear();
        }
        self.originals.insert(psn.value(), original);
        let Some((va, rkey, operand)) =
            self.outstanding.iter().find(|request| request.psn == psn).and_then(|request| request.add)
        else {
            self.found_next = None;
            return;
        };
        if let Some((_, _, next)) = self.found_next.filter(|(a, k, _)| (*a, *k) == (va, rkey)) {
            rules.judge(Rule::AddsOnce, next == original, || {
                format!("the FETCH_ADD of PSN {psn} finds {original}, expected {next}")
            });
        }
        self.found_next = Some((va, rkey, original.wrapping_add(operand)));
    }

    /// Takes a response that leaves to its receiver, undamaged.
    pub(super) fn response_delivered(&mut self, packet: &Packet, now: Nanos, frame: u64) {
        let psn = packet.bth.psn;
        let before = self.oldest;
        let is_selective = packet.info().operation == Operation::SelectiveAcknowledge;
        let is_own =
            matches!(packet.info().operation, Operation::ReadResponse | Operation::AtomicAcknowledge);
        match packet.aeth().map(|aeth| aeth.kind()) {
            // The acknowledgement names the first PSN that is missing.
            _ if is_selective => self.acknowledge(psn),
            Some(Syndrome::Nak(NakCode::PsnSequence)) => {
                self.acknowledge(psn);
                self.nak = Some(Cause { psn, frame, id: None }).filter(|nak| nak.psn.is_before(self.next));
            }
            Some(Syndrome::RnrNak { timer }) => {
                self.acknowledge(psn);
                self.rnr = Some((Cause { psn, frame, id: None }, now + Nanos(rnr_timer_ns(timer))));
            }
            Some(Syndrome::Nak(_) | Syndrome::Reserved(_)) => self.is_given_up = true,
            Some(Syndrome::Ack { .. }) | None if is_own => {
                self.acknowledge(psn);
                if psn == self.oldest {
                    self.oldest = psn.next();
                    self.forget();
                }
            }
            Some(Syndrome::Ack { .. }) | None => self.acknowledge(psn.next()),
        }
        if self.oldest != before {
            self.changed = now;
        }
    }

    /// Moves the oldest request up to `end`, but not past one with a response of its own that is due.
    fn acknowledge(&mut self, end: Psn) {
        self.forget();
        while let Some(request) = self.outstanding.front() {
            let behind = request.psn + request.span(self.mtu);
            if request.has_response() || end.is_before(behind) {
                return;
            }
            self.oldest = behind;
            self.outstanding.pop_front();
        }
    }

    fn forget(&mut self) {
        while let Some(request) = self.outstanding.front() {
            if self.oldest.is_before(request.psn + request.span(self.mtu)) {
                return;
            }
            self.outstanding.pop_front();
        }
    }
}
