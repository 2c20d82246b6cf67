//! The rules of congestion control, checked on the frames of a host as a capture would show them: which packets trigger
//! CNPs and how often, how fast data leaves, and which packets are not paced.
//!
//! ```text
//! CNPs            answer a marked packet of the peer, go to the peer, and keep the interval
//!                 leave at once for an accepted marked packet, if the interval is over
//!                 count only if they come from the peer
//! data            leaves no faster than the rate, except for one burst and one packet
//!                 is ECN-capable as configured; responses without data never are
//! responses       are not paced with the data
//! counters        equal the observed frames
//! ```
//!
//! Part of [`crate::witness`], which passes each frame of a host.

use std::collections::HashMap;

use roxie::congestion::{Knob, Knobs, Pacer, Rate, Scope, Settings};
use roxie::frame::Frame;
use roxie::nic::{CongestionConfig, EcnPolicy};
use roxie::time::Nanos;
use roxie::verbs::{Gid, RateLimit};
use roxie::wire::{Icrc, Operation, Packet, Qpn, Service};

/// Upper bound of the time until an unpaced packet leaves.
pub const AT_ONCE: Nanos = Nanos(100_000);

/// A connected QP in its current life.
#[derive(Clone, Debug)]
pub struct Ends {
    pub own: Gid,
    pub peer: Gid,
    pub peer_qpn: Qpn,
    pub name: String,
}

#[derive(Debug)]
struct Line {
    ends: Ends,
    /// Marked packets of the peer since the last CNP was sent.
    marked: u64,
    /// Time of the last CNP sent.
    last: Option<Nanos>,
    /// Latest time at which a CNP may have been sent: `last`, or the start of this life or of the current settings.
    since: Nanos,
    /// Time since which a CNP is due.
    due_since: Option<Nanos>,
    limit: Option<RateLimit>,
    /// Bytes sent in excess of the rate, at time `at`.
    debt: f64,
    at: Nanos,
}

/// The congestion settings of a host, and the observed frames.
#[derive(Debug)]
struct Book {
    interval: Nanos,
    scope: Scope,
    ecn: EcnPolicy,
    line_rate: Rate,
    fixed: Option<Rate>,
    /// Time of the last CNP of the port, and to each address.
    last: Option<Nanos>,
    last_to: HashMap<Gid, Nanos>,
    /// No packet waits for room or for the end of a pause.
    prompt: bool,
    seen: Seen,
}

/// Observed frames of a host, independent of its counters.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    /// CNPs sent.
    pub notified: u64,
    /// Valid CNPs received for a QP in a state that accepts them.
    pub notices: u64,
    /// Marked packets with a good ICRC.
    pub marked: u64,
    /// MAC control frames that had an effect.
    pub pauses: u64,
}

/// The state of all hosts.
#[derive(Debug, Default)]
pub struct Congested {
    lines: HashMap<(usize, Qpn), Line>,
    /// Own QPN, by host, peer's address and peer's QPN.
    by_peer: HashMap<(usize, Gid, Qpn), Qpn>,
    books: HashMap<usize, Book>,
    /// Ports never run out of slots.
    pub roomy: bool,
}

impl Book {
    fn new() -> Book {
        let mut book = Book {
            interval: Nanos::ZERO,
            scope: Scope::Qp,
            ecn: EcnPolicy::Off,
            line_rate: Rate(0.0),
            fixed: None,
            last: None,
            last_to: HashMap::new(),
            prompt: true,
            seen: Seen::default(),
        };
        book.set(&CongestionConfig::default());
        book
    }

    fn set(&mut self, config: &CongestionConfig) {
        let defaults = Knobs::default();
        let knobs = config.control.knobs().unwrap_or(&defaults);
        self.interval = Nanos::from_micros(knobs.value(Knob::MinTimeBetweenCnps) as u64);
        self.scope = knobs.scope();
        self.ecn = config.ecn_policy();
        self.line_rate = config.line_rate();
        self.fixed = match &config.control {
            Settings::Fixed(rate) => Some(*rate),
            _ => None,
        };
        // A priority may still be paused after flow control is disabled.
        self.prompt &= !config.classes.uses_mac_control();
        (self.last, self.last_to) = (None, HashMap::new());
    }

    /// The upper bound of a QP's rate in bits per second, or `None` if no bound below the line rate is known.
    fn bound(&self, limit: Option<RateLimit>) -> Option<f64> {
        let limit = limit.filter(|limit| limit.kbps > 0).map(|limit| f64::from(limit.kbps) * 1e3);
        let bound = limit.into_iter().chain(self.fixed.map(|rate| rate.0)).reduce(f64::min);
        bound.filter(|bound| *bound < self.line_rate.0)
    }
}

/// True unless the packet is an ACK, an atomic acknowledgement or a CNP.
pub fn speaks(packet: &Packet) -> bool {
    use Operation::{Acknowledge, AtomicAcknowledge, Cnp, SelectiveAcknowledge};
    !matches!(packet.info().operation, Acknowledge | AtomicAcknowledge | SelectiveAcknowledge | Cnp)
}

pub fn is_notification(packet: &Packet) -> bool {
    packet.info().service == Service::Cnp
}

impl Congested {
    fn book(&mut self, host: usize) -> &mut Book {
        self.books.entry(host).or_insert_with(Book::new)
    }

    /// Applies congestion settings to a host. `anew`: its NIC was restarted.
    pub fn set(&mut self, now: Nanos, host: usize, config: &CongestionConfig, anew: bool) {
        let book = self.book(host);
        book.prompt |= anew;
        book.set(config);
        for (_, line) in self.lines.iter_mut().filter(|((of, _), _)| *of == host) {
            // The new interval and rate start now.
            (line.last, line.since, line.debt) = (None, now, 0.0);
        }
    }

    /// Registers a QP at the start of a life.
    pub fn learn(&mut self, now: Nanos, host: usize, qpn: Qpn, ends: Ends) {
        self.by_peer.retain(|(of, ..), own| *of != host || *own != qpn);
        self.by_peer.insert((host, ends.peer, ends.peer_qpn), qpn);
        let line = Line {
            ends,
            marked: 0,
            last: None,
            since: now,
            due_since: None,
            limit: None,
            debt: 0.0,
            at: Nanos::ZERO,
        };
        self.lines.insert((host, qpn), line);
    }

    /// Sets the rate limit of a QP and returns the previous one.
    pub fn limit(&mut self, host: usize, qpn: Qpn, limit: Option<RateLimit>) -> Option<RateLimit> {
        let line = self.lines.get_mut(&(host, qpn))?;
        line.debt = 0.0;
        std::mem::replace(&mut line.limit, limit)
    }

    /// Returns the observed frames of a host.
    pub fn seen(&mut self, host: usize) -> Seen {
        self.book(host).seen
    }

    /// True if packets of a host leave at once: slots are free and no pause is in force.
    pub fn is_prompt(&mut self, host: usize) -> bool {
        self.roomy && self.book(host).prompt
    }

    /// Notes a MAC control frame that had an effect.
    pub fn paused(&mut self, host: usize) {
        let book = self.book(host);
        book.seen.pauses += 1;
        book.prompt = false;
    }

    /// Checks a received packet. `verdict` is the NIC's comment on it.
    pub fn check_received(
        &mut self,
        now: Nanos,
        host: usize,
        packet: &Packet,
        frame: &Frame<'_>,
        verdict: &str,
    ) {
        let roomy = self.roomy;
        let believed = packet.check_icrc(frame) == Icrc::Ok && !verdict.starts_with("dropped: no QP");
        let Congested { lines, books, .. } = self;
        let book = books.entry(host).or_insert_with(Book::new);
        book.seen.marked += u64::from(believed && packet.is_ce());
        let heeded = verdict.starts_with("congestion notification");
        book.seen.notices += u64::from(heeded);
        let Some(line) = lines.get_mut(&(host, packet.bth.dest_qp)) else {
            assert!(!heeded, "h{}: {packet}: heeded, and no QP has that number", host + 1);
            return;
        };
        let (name, bth) = (&line.ends.name, &packet.bth);
        let from_peer = packet.source_gid() == line.ends.peer && packet.dest_gid() == line.ends.own;
        if matches!(verdict, "dropped: QP is in Err" | "dropped: QP is in Reset") {
            // An accepted packet may have ended the QP: the work request behind a completed one could not be sent. No
            // notification follows, also if the QP was reset since.
            line.due_since = None;
        }
        if is_notification(packet) {
            let is_good =
                bth.becn && packet.payload.is_empty() && bth.pad == 0 && bth.pkey & 0x7fff == 0x7fff;
            let is_good = is_good && from_peer && believed;
            let in_vain = verdict.starts_with("dropped: QP is in");
            assert!(heeded == (is_good && !in_vain), "{name}: {packet}: {verdict}; it is good: {is_good}");
            return;
        }
        if !packet.is_ce() || !believed || !from_peer || !speaks(packet) {
            return;
        }
        line.marked += 1;
        let is_taken = matches!(verdict, "executed" | "acknowledges");
        let is_over = now - line.since >= book.interval;
        if is_taken && is_over && book.scope == Scope::Qp && book.prompt && roomy {
            line.due_since.get_or_insert(now);
        }
        if let Some(since) = line.due_since {
            assert!(now - since < AT_ONCE, "{name}: {packet}: a notification has been due since {since}");
        }
    }

    /// Checks a packet that is sent.
    pub fn leaves(&mut self, now: Nanos, host: usize, packet: &Packet, bytes: usize) {
        let roomy = self.roomy;
        let key = (host, packet.dest_gid(), packet.bth.dest_qp);
        let own = self.by_peer.get(&key).copied();
        let Congested { lines, books, .. } = self;
        let book = books.entry(host).or_insert_with(Book::new);
        let line = own.and_then(|own| lines.get_mut(&(host, own)));
        let Some(line) = line else {
            assert!(!is_notification(packet), "h{}: {packet} is a notification to no known peer", host + 1);
            return;
        };
        let ecn = packet.traffic_class() & 3;
        if is_notification(packet) {
            assert!(
                ecn == 2 && packet.bth.becn,
                "{}: {packet}: class {:#x}",
                line.ends.name,
                packet.traffic_class()
            );
            book.notification_leaves(now, line, packet, roomy);
            return;
        }
        let is_data = !packet.info().is_response() || !packet.payload.is_empty();
        let capable = is_data
            && match book.ecn {
                EcnPolicy::Off => false,
                EcnPolicy::On => true,
                EcnPolicy::Dscp(set) => set & 1 << (packet.traffic_class() >> 2) != 0,
            };
        assert!(ecn == if capable { 2 } else { 0 }, "{}: {packet}: ECN {ecn}", line.ends.name);
        if is_data {
            book.data_leaves(now, line, packet, bytes);
        }
    }
}

impl Book {
    fn notification_leaves(&mut self, now: Nanos, line: &mut Line, packet: &Packet, roomy: bool) {
        self.seen.notified += 1;
        let name = &line.ends.name;
        assert!(line.marked > 0, "{name}: {packet}: no marked packet came since the last");
        let last = match self.scope {
            Scope::Qp => line.last,
            Scope::Destination => self.last_to.get(&line.ends.peer).copied(),
            Scope::Port => self.last,
        };
        // Without a free slot, a CNP may leave late, and the next one on time.
        let too_soon = last.is_some_and(|last| now - last < self.interval);
        assert!(!too_soon || !roomy, "{name}: {packet} at {now}, the last at {last:?}");
        (line.marked, line.due_since, line.last, line.since) = (0, None, Some(now), now);
        self.last_to.insert(line.ends.peer, now);
        self.last = Some(now);
    }

    fn data_leaves(&mut self, now: Nanos, line: &mut Line, packet: &Packet, bytes: usize) {
        let Some(bound) = self.bound(line.limit) else { return };
        let limit = line.limit.unwrap_or_default();
        let burst = if limit.max_burst == 0 { Pacer::MAX_BURST } else { limit.max_burst };
        let burst = f64::from(burst.max(limit.typical_packet.into()));
        let given = (now - line.at).0 as f64 * bound / 8e9;
        line.debt = (line.debt - given).max(0.0) + bytes as f64;
        line.at = now;
        // One nanosecond of rounding.
        let most = burst + bytes as f64 + bound / 8e9 + 1.0;
        let (name, debt) = (&line.ends.name, line.debt);
        assert!(debt <= most, "{name}: {packet}: {debt} bytes ahead of {bound} b/s, {most} may be");
    }
}
