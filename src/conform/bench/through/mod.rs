//! Two foreign peers on a wire: what a wire does to their packets, and what the packets that pass say about both.
//!
//! ```text
//! scripts -> an operation, rules of `roxie wire`, and what must follow
//! stream  -> requests and responses of one queue pair          (Stream)
//! rules   -> what must hold                                    (Rule, Tally)
//! ```
//!
//! The wire shows each frame twice: as it comes from its sender, and as it leaves to its receiver, if it does. What the receiver has
//! is known from the second, what it does from the first.

use std::net::IpAddr;

use roxie_base::time::Nanos;
use roxie_wire::frame::Frame;
use roxie_wire::{Icrc, Packet, Position, Qpn, Service, parse};

mod rules;
mod scripts;
mod stream;
#[cfg(test)]
mod tests;

use rules::{RULES, Rule, Tally};
pub use scripts::{Follows, SCRIPTS, WireScript, script};
use stream::Stream;

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

/// Judges the packets of reliable connections that pass a wire.
#[derive(Debug, Default)]
pub struct WireJudge {
    streams: Vec<(Key, Stream)>,
    /// The stream of requests that responses to a QPN are for.
    answers: Vec<(Key, usize)>,
    tally: Tally,
    packets: u64,
}

/// A packet of RC, with its key.
fn packet_of(frame: &Frame<'_>) -> Option<(Packet, Key)> {
    let packet = parse(frame).ok().filter(|packet| packet.info().service == Service::Rc)?;
    // A damaged packet is none: its receiver drops it.
    if packet.check_icrc(frame) != Icrc::Ok {
        return None;
    }
    let key = (packet.source_gid().to_ip(), packet.dest_gid().to_ip(), packet.bth.dest_qp);
    Some((packet, key))
}

impl WireJudge {
    /// Takes a frame as it comes from its sender.
    pub fn sent(&mut self, frame: &Frame<'_>, now: Nanos) {
        let Some((packet, key)) = packet_of(frame) else { return };
        self.packets += 1;
        if packet.info().is_response() {
            if let Some(at) = self.asked(key, &packet) {
                self.streams[at].1.response_sent(&packet, &mut self.tally);
            }
            return;
        }
        let at = match self.streams.iter().position(|(known, _)| *known == key) {
            Some(at) => at,
            None if self.streams.len() == MOST_STREAMS => return,
            None => {
                self.streams.push((key, Stream::new(packet.bth.psn)));
                self.streams.len() - 1
            }
        };
        let stream = &mut self.streams[at].1;
        if matches!(packet.info().position, Position::First | Position::Middle) {
            stream.learn(packet.payload.len() as u32);
        }
        stream.request_sent(&packet, now, &mut self.tally);
    }

    /// Takes a frame as it leaves to its receiver.
    pub fn delivered(&mut self, frame: &Frame<'_>, now: Nanos) {
        let Some((packet, key)) = packet_of(frame) else { return };
        if packet.info().is_response() {
            if let Some(at) = self.asked(key, &packet) {
                self.streams[at].1.response_delivered(&packet, now);
            }
            return;
        }
        if let Some((_, stream)) = self.streams.iter_mut().find(|(known, _)| *known == key) {
            stream.request_delivered(&packet);
        }
    }

    /// Returns the stream of requests that a response is for: a BTH names its receiver only, so the PSN decides.
    fn asked(&mut self, key: Key, packet: &Packet) -> Option<usize> {
        let (from, to, _) = key;
        let psn = packet.bth.psn;
        let known = self.answers.iter().find(|(answered, _)| *answered == key).map(|(_, at)| *at);
        let found = known.or_else(|| {
            let fits = |((asker, answerer, _), stream): &(Key, Stream)| {
                (*asker, *answerer) == (to, from) && stream.has(psn)
            };
            let mut fitting =
                self.streams.iter().enumerate().filter(|(_, entry)| fits(entry)).map(|(at, _)| at);
            let at = fitting.next()?;
            // Two that fit cannot be told apart yet.
            fitting.next().is_none().then_some(at)
        })?;
        if known.is_none() && self.answers.len() < MOST_STREAMS {
            self.answers.push((key, found));
        }
        if packet.info().position == Position::First {
            self.streams[found].1.learn(packet.payload.len() as u32);
        }
        Some(found)
    }

    /// Returns the outcome of each rule, and of the script's own if there is one, for a wire that did `what` to the packets.
    pub fn outcomes(&mut self, now: Nanos, what: &str, script: Option<&WireScript>) -> Vec<Outcome> {
        for (_, stream) in &self.streams {
            let is_late = !stream.is_done() && stream.changed + GIVEN_UP < now;
            if stream.is_done() || is_late {
                self.tally.judge(Rule::Recovers, !is_late, || {
                    format!(
                        "a request is not acknowledged {} s after the last step",
                        GIVEN_UP.0 / 1_000_000_000
                    )
                });
            }
        }
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
            script: String::new(),
            capture: Vec::new(),
        };
        let is_shared = self.streams.iter().filter(|(_, stream)| stream.has_atomics).count() > 1;
        let mut outcomes: Vec<Outcome> = RULES
            .into_iter()
            .map(|(rule, name, clause, asks, stimulus)| {
                let (kept, broken, first) = self.tally.of(rule);
                let (verdict, came) = match (kept, broken) {
                    _ if rule == Rule::AddsOnce && is_shared => {
                        (Verdict::NotTested, "several queue pairs sent atomics".to_owned())
                    }
                    (0, 0) => (Verdict::NotTested, format!("nothing passed that tests it: {stimulus}")),
                    (_, 0) => (Verdict::Keeps, String::new()),
                    _ => (Verdict::Breaks, format!("{first}; {broken} times, kept {kept} times")),
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
