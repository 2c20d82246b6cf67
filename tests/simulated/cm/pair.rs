//! Two managers and the messages between them, which a test delivers, loses, doubles or delays.

use std::net::{IpAddr, Ipv4Addr};

use roxie::cm::{
    AcceptOptions, Arrival, Config, ConnectRequest, ConnectionState, Event, ListenOn, Listener, LocalQp,
    Manager, Route, Transmit,
};
use roxie::limits::CmLimits;
use roxie::time::Nanos;
use roxie::verbs::{Mtu, Psn, Qpn};
use roxie::wire::cm::{CmMessage, CommId, Kind, PrivateData};
use roxie::wire::{PortSpace, ServiceId};

/// The active end.
pub const A: usize = 0;
/// The passive end.
pub const B: usize = 1;

pub const SERVICE: ServiceId = ServiceId::of_port(PortSpace::Tcp, 7174);

pub fn address(end: usize) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, 1 + end as u8).into()
}

pub fn config(end: usize) -> Config {
    Config {
        limits: CmLimits {
            connections: 64,
            listeners: 4,
            events: 32,
            transmits: 64,
            granted_retries: 15,
            ..CmLimits::default()
        },
        seed: 100 + end as u64,
        ca_guid: 0xa0_0000 + end as u64,
        // Refuse at once.
        grace: Nanos::ZERO,
        insistence: Nanos::ZERO,
        // Use the request's number of retries.
        silent_retries: 15,
        unproven_messages: u8::MAX,
        // No early repetitions.
        first_repeat: Nanos::ZERO,
        ..Config::default()
    }
}

/// Packets of a connection's peer that an end's NIC hears.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hears {
    Nothing,
    /// The peer answers questions.
    Answers,
    /// The peer sends all the time.
    Data,
}

/// Two managers and the messages between them.
pub struct Pair {
    pub now: Nanos,
    pub ends: [Manager; 2],
    /// Messages of each end that have not been delivered.
    pub sent: [Vec<Transmit>; 2],
    pub receives: [Hears; 2],
    /// Number of questions to the peer, by end.
    pub questions: [u32; 2],
    is_answered: [bool; 2],
}

impl Pair {
    pub fn new() -> Pair {
        Pair::with(config(A), config(B))
    }

    pub fn with(a: Config, b: Config) -> Pair {
        let ends = [Manager::new(a), Manager::new(b)];
        let (sent, receives) = ([Vec::new(), Vec::new()], [Hears::Nothing; 2]);
        Pair { now: Nanos::from_millis(1), ends, sent, receives, questions: [0; 2], is_answered: [false; 2] }
    }

    /// Returns a pair with a listener at B.
    pub fn listening() -> (Pair, Listener) {
        let mut pair = Pair::new();
        let listener = pair.ends[B].listen(SERVICE, ListenOn::Any, 8).unwrap();
        (pair, listener)
    }

    /// Returns the messages that `end` has sent so far.
    pub fn outbox(&mut self, end: usize) -> &mut Vec<Transmit> {
        self.examine(end);
        while let Some(transmit) = self.ends[end].poll_transmit() {
            self.sent[end].push(transmit);
        }
        &mut self.sent[end]
    }

    /// Answers an end's questions about connections, as its NIC does.
    fn examine(&mut self, end: usize) {
        while let Some(examination) = self.ends[end].poll_examination() {
            let is_answered = std::mem::take(&mut self.is_answered[end]);
            let has_received = match self.receives[end] {
                Hears::Nothing => false,
                Hears::Answers => is_answered,
                Hears::Data => true,
            };
            if examination.probes_peer && !has_received {
                (self.questions[end], self.is_answered[end]) = (self.questions[end] + 1, true);
            }
            self.ends[end].examined(self.now, &examination, has_received);
        }
    }

    /// Loses the messages that `end` has sent. Returns their kinds.
    pub fn lose(&mut self, end: usize) -> Vec<Kind> {
        self.take(end).iter().map(|(_, message)| message.kind()).collect()
    }

    /// Loses the messages that `end` has sent. Returns them, with their transaction IDs.
    pub fn take(&mut self, end: usize) -> Vec<(u64, CmMessage)> {
        let sent = std::mem::take(self.outbox(end));
        sent.iter().map(|transmit| CmMessage::read(&transmit.mad).unwrap()).collect()
    }

    /// Delivers one message.
    pub fn give(&mut self, to: usize, transmit: &Transmit) {
        let Route { local, remote, .. } = transmit.route;
        let from =
            Arrival { route: Route { local: remote, remote: local, ..transmit.route }, src_qp: Qpn::GSI };
        self.ends[to].handle_mad(self.now, &transmit.mad, &from);
    }

    /// Delivers a forged message, as if from the other end.
    pub fn forge(&mut self, to: usize, tid: u64, message: &CmMessage) {
        let route = Route::new(address(1 - to), address(to));
        self.give(to, &Transmit { route, mad: message.to_mad(tid) });
    }

    /// Delivers the messages that `from` has sent, once. Returns their kinds.
    pub fn deliver(&mut self, from: usize) -> Vec<Kind> {
        let sent = std::mem::take(self.outbox(from));
        for transmit in &sent {
            self.give(1 - from, transmit);
        }
        sent.iter().map(|transmit| CmMessage::read(&transmit.mad).unwrap().1.kind()).collect()
    }

    /// Delivers messages until none is under way.
    pub fn settle(&mut self) {
        for _ in 0..100 {
            if self.deliver(A).is_empty() && self.deliver(B).is_empty() {
                return self.agrees();
            }
        }
        panic!("the two ends do not come to rest");
    }

    /// Asserts that each end's redundant state agrees.
    pub fn agrees(&self) {
        for end in &self.ends {
            assert_eq!(end.inconsistency(), None);
        }
    }

    /// Advances to the next deadline of `end`, which may have nothing to do yet. Returns false if it has none.
    pub fn step(&mut self, end: usize) -> bool {
        let deadline = self.ends[end].next_deadline();
        if deadline == Nanos::MAX {
            return false;
        }
        self.now = self.now.max(deadline);
        self.ends[end].handle_timeouts(self.now);
        self.examine(end);
        true
    }

    /// Advances until `end` sends a message or raises an event.
    pub fn wait_for(&mut self, end: usize) {
        for _ in 0..10_000 {
            if !self.outbox(end).is_empty() || !self.step(end) {
                return;
            }
        }
        panic!("the deadlines of end {end} do not come to anything");
    }

    /// Advances until no end has a deadline. Messages sent meanwhile are lost.
    pub fn exhaust(&mut self) {
        for end in [A, B] {
            for _ in 0..100_000 {
                self.outbox(end).clear();
                if !self.step(end) {
                    break;
                }
            }
            assert_eq!(self.ends[end].next_deadline(), Nanos::MAX, "end {end} waits for ever");
        }
    }

    pub fn events(&mut self, end: usize) -> Vec<Event> {
        std::iter::from_fn(|| self.ends[end].poll_event()).collect()
    }

    /// Returns the single event of an end.
    pub fn event(&mut self, end: usize) -> Event {
        let mut events = self.events(end);
        assert_eq!(events.len(), 1, "{events:?}");
        events.remove(0)
    }

    pub fn no_events(&mut self) {
        for end in [A, B] {
            let events = self.events(end);
            assert!(events.is_empty(), "end {end}: {events:?}");
        }
    }

    pub fn state(&self, end: usize, id: CommId) -> Option<ConnectionState> {
        self.ends[end].state(id)
    }

    pub fn connect(&mut self) -> CommId {
        self.ends[A].connect(self.now, &request()).unwrap()
    }

    /// Accepts the pending request at B.
    pub fn accept(&mut self) -> CommId {
        let event = self.event(B);
        let Event::Request { id, .. } = event else { panic!("{event:?}") };
        self.ends[B].accept(self.now, id, &acceptance()).unwrap();
        id
    }

    /// Establishes a connection. Returns its IDs at A and at B.
    pub fn established(&mut self) -> (CommId, CommId) {
        let a = self.connect();
        self.settle();
        let b = self.accept();
        self.settle();
        assert!(matches!(self.event(A), Event::Reply { .. }));
        self.ends[A].ready(a, PrivateData::EMPTY).unwrap();
        self.settle();
        assert!(matches!(self.event(B), Event::Established { .. }));
        (a, b)
    }

    /// Asserts that neither end has any state left, after all timers.
    pub fn assert_empty(&mut self) {
        self.exhaust();
        for end in [A, B] {
            assert_eq!(self.ends[end].connections(), 0, "end {end}");
        }
        self.agrees();
    }
}

pub fn request() -> ConnectRequest {
    let qp = LocalQp { qpn: Qpn::new(0x11), psn: Psn::new(0x00ab_cdef), srq: false };
    let route = Route { flow_label: 0x23f3e, ..Route::new(address(A), address(B)) };
    ConnectRequest {
        responder_resources: 4,
        initiator_depth: 16,
        retry_count: 5,
        rnr_retry_count: 6,
        private_data: PrivateData::new(Kind::Req, b"please").unwrap(),
        ..ConnectRequest::new(SERVICE, route, qp, Mtu::Mtu1024)
    }
}

pub fn acceptance() -> AcceptOptions {
    AcceptOptions {
        qp: LocalQp { qpn: Qpn::new(0x22), psn: Psn::new(0x0012_3456), srq: true },
        responder_resources: 8,
        initiator_depth: 9,
        rnr_retry_count: 3,
        private_data: PrivateData::new(Kind::Rep, b"gladly").unwrap(),
        ..AcceptOptions::default()
    }
}
