//! The requests of one queue pair and their responses, as a wire sees them: as they come from the sender, and as they leave to the receiver.

use std::collections::{BTreeMap, VecDeque};

use roxie_base::time::Nanos;
use roxie_wire::{NakCode, Opcode, Operation, Packet, Psn, Syndrome, rnr_timer_ns};

use super::rules::{Rule, Tally};

/// Most requests outstanding at a time. A sender with more is not judged further.
const MOST_OUTSTANDING: usize = 1 << 16;
/// Most atomics with original values that are remembered.
const MOST_ATOMICS: usize = 4096;
/// Path MTUs in bytes.
const MTUS: [u32; 5] = [4096, 2048, 1024, 512, 256];

/// A request, as it was sent first.
#[derive(Clone, Copy, Debug)]
struct Request {
    psn: Psn,
    operation: Operation,
    /// Bytes that a READ asks for.
    dma: u32,
    /// Address, key and operand of a FETCH_ADD.
    add: Option<(u64, u32, u64)>,
}

/// Requests from one end to a queue pair of the other, and the responses to them.
#[derive(Debug)]
pub(super) struct Stream {
    mtu: Option<u32>,
    outstanding: VecDeque<Request>,
    /// PSN of the first packet seen.
    first: Psn,
    /// PSN after the last request that was sent for the first time.
    next: Psn,
    /// PSN after the request that was sent last.
    after_last: Psn,
    /// PSN of the oldest request without the acknowledgement that its sender has received.
    oldest: Psn,
    /// The last PSN that the receiver may expect, by what has left to it. A NAK does not move it back: the request that it asks for may
    /// have left meanwhile.
    expected: Psn,
    /// The READ delivered last, if its length in packets is not known.
    unmeasured: Option<(Psn, u32)>,
    /// Most messages that the receiver may have executed.
    messages: u32,
    /// Sequence NAK that was delivered, until its sender goes back.
    nak: Option<Psn>,
    /// RNR NAK that was delivered, and the end of its wait.
    rnr: Option<(Psn, Nanos)>,
    /// Original values by PSN.
    originals: BTreeMap<u32, u64>,
    /// Address and key of the last FETCH_ADD answered, and what the next one there must find.
    found_next: Option<(u64, u32, u64)>,
    /// False if the wire has not seen the connection from its first message on.
    counts_messages: bool,
    has_aeth: bool,
    is_given_up: bool,
    pub(super) has_atomics: bool,
    pub(super) last_asks: bool,
    pub(super) changed: Nanos,
}

fn span_of(dma: u32, mtu: Option<u32>) -> u32 {
    mtu.map_or(1, |mtu| dma.div_ceil(mtu).max(1))
}

impl Request {
    fn span(&self, mtu: Option<u32>) -> u32 {
        if self.operation == Operation::ReadRequest { span_of(self.dma, mtu) } else { 1 }
    }

    /// True if only the response itself completes the request.
    fn has_response(&self) -> bool {
        matches!(
            self.operation,
            Operation::ReadRequest
                | Operation::CompareSwap
                | Operation::FetchAdd
                | Operation::Flush
                | Operation::AtomicWrite
        )
    }
}

impl Stream {
    pub(super) fn new(first: Psn) -> Stream {
        Stream {
            mtu: None,
            outstanding: VecDeque::new(),
            first,
            next: first,
            after_last: first,
            oldest: first,
            expected: first,
            unmeasured: None,
            messages: 0,
            nak: None,
            rnr: None,
            originals: BTreeMap::new(),
            found_next: None,
            counts_messages: true,
            has_aeth: false,
            is_given_up: false,
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
        self.is_given_up || self.oldest == self.next || !self.last_asks
    }

    /// Learns the path MTU, and measures the READs that wait for it.
    pub(super) fn learn(&mut self, mtu: u32) {
        if self.mtu.is_some() || !MTUS.contains(&mtu) {
            return;
        }
        self.mtu = Some(mtu);
        if let Some(last) = self.outstanding.back().filter(|last| last.operation == Operation::ReadRequest) {
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

    /// Learns the path MTU from the PSN that follows a READ.
    fn infer(&mut self, psn: Psn) {
        let Some(last) = self.outstanding.back().filter(|last| last.operation == Operation::ReadRequest)
        else {
            return;
        };
        let packets = psn.distance_from(last.psn);
        let fitting =
            MTUS.into_iter().find(|mtu| i64::from(span_of(last.dma, Some(*mtu))) == i64::from(packets));
        if let Some(mtu) = fitting {
            self.learn(mtu);
        }
    }

    /// Takes a request from its sender.
    pub(super) fn request_sent(&mut self, packet: &Packet, now: Nanos, rules: &mut Tally) {
        let (psn, info) = (packet.bth.psn, packet.info());
        if self.is_probe(packet) {
            self.last_asks |= packet.bth.ack_req;
            self.changed = now;
            return;
        }
        if psn != self.next && !psn.is_before(self.next) {
            self.infer(psn);
        }
        let request = Request {
            psn,
            operation: info.operation,
            dma: packet.reth().map_or(0, |reth| reth.dma_len),
            add: packet
                .atomic_eth()
                .filter(|_| info.operation == Operation::FetchAdd)
                .map(|atomic| (atomic.va, atomic.rkey, atomic.swap_or_add)),
        };
        let end = psn + request.span(self.mtu);
        if psn.is_before(self.next) {
            self.sent_again(psn, now, rules);
        } else {
            self.last_asks = packet.bth.ack_req || request.has_response();
            self.has_atomics |= matches!(info.operation, Operation::FetchAdd | Operation::CompareSwap);
            self.is_given_up |= self.outstanding.len() == MOST_OUTSTANDING;
            if !self.is_given_up {
                self.outstanding.push_back(request);
            }
            self.next = end;
        }
        self.after_last = end;
        self.changed = now;
    }

    /// True for a SEND of no bytes with the PSN before the oldest unacknowledged one. A probe asks for an acknowledgement of requests that did
    /// not.
    fn is_probe(&self, packet: &Packet) -> bool {
        let is_empty_send = packet.bth.opcode == Opcode::RC_SEND_ONLY && packet.payload.is_empty();
        is_empty_send && packet.bth.ack_req && packet.bth.psn + 1 == self.oldest
    }

    fn sent_again(&mut self, psn: Psn, now: Nanos, rules: &mut Tally) {
        if self.nak == Some(psn) {
            rules.kept(Rule::AgainFromTheGap);
            self.nak = None;
        }
        if psn == self.after_last || self.is_given_up {
            return;
        }
        rules.again += 1;
        let oldest = self.oldest;
        rules.judge(Rule::AgainFromTheOldest, !oldest.is_before(psn), || {
            format!("the sender goes back to PSN {psn}, though {oldest} is not acknowledged")
        });
        if let Some(nak) = self.nak.take() {
            rules.judge(Rule::AgainFromTheGap, !nak.is_before(psn), || {
                format!("behind a sequence NAK of PSN {nak} the sender goes back to {psn}")
            });
        }
        if let Some((refused, until)) = self.rnr.filter(|(refused, _)| *refused == psn) {
            rules.judge(Rule::WaitsAfterRnr, now >= until, || {
                format!(
                    "PSN {refused} is sent again {} us before its RNR wait ends",
                    until.since(now).0 / 1000
                )
            });
            self.rnr = None;
        }
    }

    /// Takes a request that leaves to its receiver, undamaged.
    pub(super) fn request_delivered(&mut self, packet: &Packet) {
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
        let expected = self.expected;
        match kind {
            Some(Syndrome::Nak(NakCode::PsnSequence)) => {
                rules.naks += 1;
                rules.judge(Rule::NakNamesTheGap, !expected.is_before(psn), || {
                    format!("a sequence NAK names PSN {psn}, though {expected} has not arrived")
                });
            }
            Some(Syndrome::RnrNak { .. } | Syndrome::Nak(_) | Syndrome::Reserved(_)) => {}
            Some(Syndrome::Ack { .. }) | None => {
                rules.judge(Rule::AnswersWhatArrived, psn.is_before(expected), || {
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
    pub(super) fn response_delivered(&mut self, packet: &Packet, now: Nanos) {
        let psn = packet.bth.psn;
        let before = self.oldest;
        let is_own =
            matches!(packet.info().operation, Operation::ReadResponse | Operation::AtomicAcknowledge);
        match packet.aeth().map(|aeth| aeth.kind()) {
            Some(Syndrome::Nak(NakCode::PsnSequence)) => {
                self.acknowledge(psn);
                self.nak = Some(psn).filter(|psn| psn.is_before(self.next));
            }
            Some(Syndrome::RnrNak { timer }) => {
                self.acknowledge(psn);
                self.rnr = Some((psn, now + Nanos(rnr_timer_ns(timer))));
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
