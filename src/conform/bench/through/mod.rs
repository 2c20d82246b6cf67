//! Two foreign peers: what a wire does to their packets, and what the packets that pass, or a capture has, say about
//! both.
//!
//! ```text
//! scripts -> an operation, rules of `roxie wire`, and what must follow
//! stream  -> requests and responses of one queue pair          (Stream)
//! unreliable -> packets of UC, UD and CNPs                     (Unreliable)
//! rules   -> what must hold                                    (Rule, Tally)
//! ```
//!
//! The wire shows each frame twice: as it comes from its sender, and as it leaves to its receiver, if it does. What the
//! receiver has is known from the second, what it does from the first. A capture shows it once: what was lost behind a
//! capture of the sender, or before one of the receiver, makes no rule stricter than it is, and what a capture lacks is
//! said ([`Ruling::undecided`]).

use std::collections::HashMap;
use std::net::IpAddr;

use roxie_base::time::Nanos;
use roxie_wire::cm::{CmMessage, CommId};
use roxie_wire::frame::Frame;
use roxie_wire::{Icrc, Packet, Psn, Qpn, Service, parse};

mod rules;
mod scripts;
mod stream;
#[cfg(test)]
mod tests;
mod unreliable;

pub use rules::{Finding, Ruling};
use rules::{RULES, Rule, Scene, Tally};
pub use scripts::{Follows, SCRIPTS, WireScript, script};
use stream::Stream;
use unreliable::Unreliable;

use crate::run::Outcome;
use crate::verdict::Verdict;

/// Most streams that are followed. Later queue pairs are not judged.
const MOST_STREAMS: usize = 1024;
/// Time without a step after which a request counts as never acknowledged.
const GIVEN_UP: Nanos = Nanos::from_millis(3000);
/// Chapter in reports.
const CHAPTER: &str = "Packets on the wire";

/// Addresses of sender and receiver, and the receiver's QPN.
type Key = (IpAddr, IpAddr, Qpn);

/// Judges the packets of connections that pass a wire, or that a capture has. Of a wire those of RC.
#[derive(Debug, Default)]
pub struct WireJudge {
    streams: Vec<(Key, Stream)>,
    /// Places in `streams`.
    places: HashMap<Key, usize>,
    /// The stream of requests that responses to a QPN are for.
    answers: HashMap<Key, usize>,
    /// Queue pairs of requests for communication and their path MTU code, by the sender and its communication ID.
    requests: HashMap<(IpAddr, CommId), (Qpn, u8)>,
    /// Agreements of the connection manager for the next stream with a key.
    agreed: HashMap<Key, Agreed>,
    /// The key of the requests that responses with a key are for, as the connection manager said it.
    pairs: HashMap<Key, Key>,
    /// Packets of other services.
    unreliable: Unreliable,
    tally: Tally,
    packets: u64,
    /// Packets that are not judged, as there are too many queue pairs.
    unjudged: u64,
    /// True if the packets are a capture's, which may lack some.
    is_captured: bool,
    /// True if all peers have agreed to selective repeat.
    is_selective: bool,
}

/// First PSN and path MTU code of a stream.
#[derive(Clone, Copy, Debug)]
struct Agreed {
    first: Psn,
    mtu: u8,
    is_selective: bool,
}

/// A packet of RC, with its key.
fn packet_of(frame: &Frame<'_>) -> Option<(Packet, Key)> {
    let packet = parse(frame).ok().filter(|packet| packet.info().service == Service::Rc)?;
    // A damaged packet is none: its receiver drops it.
    if packet.check_icrc(frame) != Icrc::Ok {
        return None;
    }
    let key = key_of(&packet);
    Some((packet, key))
}

fn key_of(packet: &Packet) -> Key {
    (packet.source_gid().to_ip(), packet.dest_gid().to_ip(), packet.bth.dest_qp)
}

impl WireJudge {
    /// A judge of packets that were captured. `is_selective`: all peers have agreed to selective repeat, as two Roxies
    /// may. Peers that say so to the connection manager, or acknowledge so, are known without it.
    pub fn of_capture(is_selective: bool) -> WireJudge {
        WireJudge { is_captured: true, is_selective, ..WireJudge::default() }
    }

    /// Takes an undamaged packet of a capture, from the frame with this number. `is_own`: the host that captured it has
    /// sent it.
    pub fn captured(&mut self, packet: &Packet, frame: u64, now: Nanos, is_own: bool) {
        let key = key_of(packet);
        if !matches!(packet.info().service, Service::Rc | Service::Xrc) {
            self.tally.scene = Scene { frame, sender: key.0, is_own };
            return self.unreliable.take(packet, key, &mut self.tally);
        }
        self.send(packet, key, frame, now, is_own);
        self.deliver(packet, key, now);
    }

    /// Takes a message of the connection manager from an address to another: the sender's queue pair begins a new
    /// connection.
    pub fn connected(&mut self, from: IpAddr, to: IpAddr, message: &CmMessage) {
        if self.requests.len() >= MOST_STREAMS || self.agreed.len() >= 2 * MOST_STREAMS {
            self.requests.clear();
            self.agreed.clear();
        }
        if self.pairs.len() >= 4 * MOST_STREAMS {
            self.pairs.clear();
        }
        let mut is_selective = false;
        let (qpn, first, mtu) = match message {
            CmMessage::Req(req) => {
                self.requests.insert((from, req.local_comm_id), (req.local_qpn, req.path_mtu));
                (req.local_qpn, req.starting_psn, Some(req.path_mtu))
            }
            CmMessage::Rep(rep) => {
                is_selective = rep.private_data.clone().take_selective_repeat();
                let asker = self.requests.remove(&(to, rep.remote_comm_id));
                if let Some((asker, _)) = asker {
                    if let Some(agreed) = self.agreed.get_mut(&(from, to, asker)) {
                        agreed.is_selective = is_selective;
                    }
                    self.pairs.insert((from, to, asker), (to, from, rep.local_qpn));
                    self.pairs.insert((to, from, rep.local_qpn), (from, to, asker));
                }
                (rep.local_qpn, rep.starting_psn, asker.map(|(_, mtu)| mtu))
            }
            _ => return,
        };
        if let Some(mtu) = mtu {
            self.agreed.insert((to, from, qpn), Agreed { first, mtu, is_selective });
        }
        if let Some(at) = self.places.get(&(to, from, qpn)) {
            self.streams[*at].1.is_over = true;
        }
    }

    /// Takes a frame as it comes from its sender.
    pub fn sent(&mut self, frame: &Frame<'_>, now: Nanos) {
        let Some((packet, key)) = packet_of(frame) else { return };
        self.send(&packet, key, self.packets + 1, now, true);
    }

    fn send(&mut self, packet: &Packet, key: Key, frame: u64, now: Nanos, is_own: bool) {
        self.packets += 1;
        self.tally.scene = Scene { frame, sender: key.0, is_own };
        if packet.info().is_response() {
            if let Some(at) = self.asked(key, packet) {
                self.streams[at].1.response_sent(packet, &mut self.tally);
            }
            return;
        }
        let at = match self.places.get(&key) {
            Some(at) => *at,
            None if self.streams.len() == MOST_STREAMS => {
                self.unjudged += 1;
                return;
            }
            None => {
                self.streams.push((key, Stream::new(packet.bth.psn, self.is_captured, self.is_selective)));
                self.places.insert(key, self.streams.len() - 1);
                self.streams.len() - 1
            }
        };
        let stream = &mut self.streams[at].1;
        if stream.ends_before(packet) {
            *stream = Stream::new(packet.bth.psn, self.is_captured, self.is_selective);
            self.answers.retain(|_, answered| *answered != at);
        }
        stream.is_own |= is_own;
        if let Some(Agreed { first, mtu, is_selective }) = self.agreed.remove(&key) {
            stream.is_selective |= is_selective;
            stream.begin(packet.bth.psn, first, 128 << u32::from(mtu & 0xf), &mut self.tally);
        }
        stream.request_sent(packet, now, &mut self.tally);
    }

    /// Takes a frame as it leaves to its receiver.
    pub fn delivered(&mut self, frame: &Frame<'_>, now: Nanos) {
        if let Some((packet, key)) = packet_of(frame) {
            self.deliver(&packet, key, now);
        }
    }

    fn deliver(&mut self, packet: &Packet, key: Key, now: Nanos) {
        if packet.info().is_response() {
            if let Some(at) = self.asked(key, packet) {
                self.streams[at].1.response_delivered(packet, now, self.tally.scene.frame);
            }
            return;
        }
        if let Some(at) = self.places.get(&key) {
            self.streams[*at].1.request_delivered(packet);
        }
    }

    /// Returns the stream of requests that a response is for. A BTH names its receiver only: the connection manager's
    /// messages decide, or the PSN.
    fn asked(&mut self, key: Key, packet: &Packet) -> Option<usize> {
        let (from, to, _) = key;
        let psn = packet.bth.psn;
        if let Some(requests) = self.pairs.get(&key) {
            return self.places.get(requests).copied();
        }
        let known = self.answers.get(&key).copied();
        if known.is_some_and(|at| self.streams[at].1.has(psn) || !self.is_captured) {
            return known;
        }
        // Responses to a stream that is not followed fit others.
        if self.unjudged > 0 {
            return None;
        }
        let fits = |((asker, answerer, _), stream): &(Key, Stream)| {
            (*asker, *answerer) == (to, from) && stream.has(psn)
        };
        let mut fitting = self.streams.iter().enumerate().filter(|(_, entry)| fits(entry)).map(|(at, _)| at);
        let (found, other) = (fitting.next()?, fitting.next());
        if let Some(other) = other {
            // The streams cannot be told apart yet.
            let all: Vec<usize> = [found, other].into_iter().chain(fitting).collect();
            all.into_iter().for_each(|at| self.streams[at].1.misses_answers = true);
            return None;
        }
        if self.answers.len() < MOST_STREAMS || known.is_some() {
            self.answers.insert(key, found);
        }
        Some(found)
    }

    /// Judges what has not ended by `now`.
    fn conclude(&mut self, now: Nanos) {
        for ((sender, ..), stream) in &self.streams {
            let is_late = !stream.is_done() && stream.changed + GIVEN_UP < now;
            if is_late && self.is_captured {
                self.tally.undecided(Rule::Recovers, || {
                    format!("no acknowledgement in the capture of what frame {} waits for", stream.last_frame)
                });
            } else if stream.is_done() || is_late {
                self.tally.scene = Scene { frame: stream.last_frame, sender: *sender, is_own: false };
                self.tally.judge(Rule::Recovers, !is_late, || {
                    format!(
                        "a request is not acknowledged {} s after the last step",
                        GIVEN_UP.0 / 1_000_000_000
                    )
                });
            }
        }
    }

    /// Returns what was seen of each rule, at the end of the packets.
    pub fn rulings(&mut self, now: Nanos) -> Vec<Ruling> {
        self.conclude(now);
        let mut rulings = self.tally.rulings().to_vec();
        if self.has_shared_atomics() {
            // Others may have added between two of a queue pair.
            rulings.retain(|ruling| ruling.rule != RULES[Rule::AddsOnce as usize].1);
        }
        rulings
    }

    fn has_shared_atomics(&self) -> bool {
        self.streams.iter().filter(|(_, stream)| stream.has_atomics).count() > 1
    }

    /// Returns the number of packets of reliable connections, and of those that are not judged, as there are too many
    /// queue pairs.
    pub fn packets(&self) -> (u64, u64) {
        (self.packets, self.unjudged)
    }

    /// Returns the outcome of each rule, and of the script's own if there is one, for a wire that did `what` to the
    /// packets.
    pub fn outcomes(&mut self, now: Nanos, what: &str, script: Option<&WireScript>) -> Vec<Outcome> {
        self.conclude(now);
        let outcome = |name: String, clause: &str, asks: &str, verdict, came: String| Outcome {
            name,
            chapter: CHAPTER.into(),
            clause: clause.into(),
            stimulus: format!("{} packets of RC on the wire; {what}", self.packets),
            asks: asks.into(),
            verdict,
            came,
            seconds: now.0 as f64 / 1e9,
            ladder: String::new(),
            adapters: Vec::new(),
            script: String::new(),
            capture: Vec::new(),
        };
        let is_shared = self.has_shared_atomics();
        let mut outcomes: Vec<Outcome> = RULES
            .into_iter()
            // A wire is shown RC alone.
            .filter(|(rule, ..)| *rule != Rule::NotificationForm)
            .map(|(rule, name, clause, asks, stimulus)| {
                let Ruling { kept, broken, findings, .. } = self.tally.of(rule);
                let (verdict, came) = match (kept, &findings[..]) {
                    _ if rule == Rule::AddsOnce && is_shared => {
                        (Verdict::NotTested, "several queue pairs sent atomics".to_owned())
                    }
                    (0, []) => (Verdict::NotTested, format!("nothing passed that tests it: {stimulus}")),
                    (_, []) => (Verdict::Keeps, String::new()),
                    (_, [first, ..]) => {
                        (Verdict::Breaks, format!("{}; {broken} times, kept {kept} times", first.why))
                    }
                };
                outcome(format!("wire/{name}"), clause, asks, verdict, came)
            })
            .collect();
        if let Some(script) = script {
            let (asks, holds) = match script.follows {
                Follows::Again => ("a request is sent again", self.tally.again > 0),
                Follows::Nak => (
                    "a sequence NAK, and a request is sent again",
                    self.tally.naks > 0 && self.tally.again > 0,
                ),
                Follows::Nothing => ("the connection goes on", self.packets > 0),
            };
            let verdict = if holds { Verdict::Keeps } else { Verdict::Breaks };
            let (naks, again) = (self.tally.naks, self.tally.again);
            let came =
                if holds { String::new() } else { format!("{naks} sequence NAKs, {again} times again") };
            outcomes.push(outcome(format!("wire/script/{}", script.name), "9.7.5", asks, verdict, came));
        }
        outcomes
    }
}
