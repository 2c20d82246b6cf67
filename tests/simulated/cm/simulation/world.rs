//! Hosts, time, and the link between them.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use roxie::cm::{Arrival, Config, Event, ListenOn, Manager, Route, Transmit};
use roxie::limits::CmLimits;
use roxie::random::splitmix;
use roxie::time::Nanos;
use roxie::verbs::Qpn;
use roxie::wire::cm::{CmMessage, CommId, Kind, RejReason};
use roxie::wire::{PortSpace, ServiceId};

use super::consumer::{Consumer, Task};
use super::truth::Truth;

pub const CONNECTIONS: ServiceId = ServiceId::of_port(PortSpace::Tcp, 1);
pub const DATAGRAMS: ServiceId = ServiceId::of_port(PortSpace::Udp, 1);
/// A service without a listener.
pub const NOWHERE: ServiceId = ServiceId::of_port(PortSpace::Tcp, 2);

/// Until then, consumers start new attempts.
const CLOSING: Nanos = Nanos::from_millis(120_000);
/// By then everything is over: 16 tries of a timeout code of 21 and two waits of 69 s take 6 minutes.
const END: Nanos = Nanos::from_millis(3_600_000);

/// Random numbers of one seed.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed ^ 0x636d)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        splitmix(&mut self.0) % bound.max(1)
    }

    /// True with a probability of `percent` %.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub fn time(&mut self, longest: Nanos) -> Nanos {
        Nanos(self.below(longest.0))
    }
}

/// Properties of a run's link and consumers: some seeds are calm, some have one disturbance, some all.
#[derive(Clone, Copy, Debug)]
pub struct Climate {
    pub loss: u64,
    pub doubles: u64,
    pub delay: Nanos,
    /// If true, two groups of hosts cannot reach each other for a while.
    pub partitions: bool,
    pub crashes: u64,
    /// Behaviour of consumers.
    pub refuses: u64,
    pub slow: u64,
    pub destroys: u64,
    pub small_tables: bool,
    /// Response timeout and number of retries of senders.
    pub response_timeout: u8,
    pub retries: u8,
}

impl Climate {
    fn of(random: &mut Random) -> Climate {
        let loss = [0, 0, 5, 20, 45][random.below(5) as usize];
        let delay_ms = [1, 20, 200, 5_000][random.below(4) as usize];
        let some = |random: &mut Random, percent, value| if random.chance(percent) { value } else { 0 };
        Climate {
            loss,
            doubles: some(random, 40, 25),
            delay: Nanos::from_millis(delay_ms),
            partitions: random.chance(20),
            crashes: some(random, 40, 40),
            refuses: some(random, 60, 25),
            slow: some(random, 50, 40),
            destroys: some(random, 50, 20),
            small_tables: random.chance(15),
            response_timeout: 16 + random.below(6) as u8,
            retries: if random.chance(70) { 15 } else { random.below(4) as u8 },
        }
    }

    /// True if messages get through eventually, consumers answer and hosts live: then connections are established.
    pub fn is_fair(&self) -> bool {
        let patient = self.delay <= Nanos::from_millis(200) && self.response_timeout >= 19;
        let lively = self.crashes == 0 && !self.small_tables;
        patient && lively && self.loss <= 20 && !self.partitions && self.retries == 15
    }
}

/// A scheduled event.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Deliver { to: usize, number: usize },
    Do { host: usize, life: u32, task: Task },
}

#[derive(Debug)]
struct Host {
    manager: Manager,
    consumer: Consumer,
    /// Number of crashes: plans of an earlier life are void.
    life: u32,
}

/// Totals of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    pub connected: u64,
    pub rejected: u64,
    pub unreachable: u64,
    pub resolved: u64,
    pub crashes: u64,
    pub stale: u64,
    pub invalid_comm_id: u64,
    pub waited: u64,
    pub by_data: u64,
    pub refused_later: u64,
    /// Transitions of all managers, as bits.
    pub transitions: u64,
    /// Digest of all bytes sent, in order.
    pub digest: u64,
}

impl Summary {
    pub fn add(&mut self, other: &Summary) {
        self.connected += other.connected;
        self.rejected += other.rejected;
        self.unreachable += other.unreachable;
        self.resolved += other.resolved;
        self.crashes += other.crashes;
        self.stale += other.stale;
        self.invalid_comm_id += other.invalid_comm_id;
        self.waited += other.waited;
        self.by_data += other.by_data;
        self.refused_later += other.refused_later;
        self.transitions |= other.transitions;
    }
}

/// State of a run.
pub struct World {
    seed: u64,
    now: Nanos,
    random: Random,
    climate: Climate,
    hosts: Vec<Host>,
    truth: Truth,
    summary: Summary,
    /// Scheduled events by time, then by order of entry.
    plans: BTreeMap<(Nanos, u64), What>,
    entries: u64,
    under_way: Vec<Option<Transmit>>,
}

pub fn address(host: usize) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, 1 + host as u8).into()
}

fn host_of(route: &Route) -> usize {
    usize::from(route.remote.0[15] - 1)
}

impl World {
    pub fn new(seed: u64) -> World {
        let mut random = Random::new(seed);
        let climate = Climate::of(&mut random);
        let count = 2 + random.below(4) as usize;
        let mut world = World {
            seed,
            now: Nanos::ZERO,
            random,
            climate,
            hosts: Vec::new(),
            truth: Truth::new(climate),
            summary: Summary::default(),
            plans: BTreeMap::new(),
            entries: 0,
            under_way: Vec::new(),
        };
        for host in 0..count {
            let manager = world.manager(host, 0);
            world.hosts.push(Host { manager, consumer: Consumer::new(host), life: 0 });
            world.plan_work(host, count);
        }
        world
    }

    fn manager(&self, host: usize, life: u32) -> Manager {
        let limits = CmLimits {
            connections: if self.climate.small_tables { 6 } else { 200 },
            listeners: 4,
            events: 64,
            transmits: 64,
            ..CmLimits::default()
        };
        let config = Config {
            limits,
            seed: self.seed << 16 | (host as u64) << 8 | u64::from(life),
            ca_guid: 0xabc0 + host as u64,
            // The link may be arbitrarily bad.
            silent_retries: 15,
            unproven_messages: u8::MAX,
            ..Config::default()
        };
        let mut manager = Manager::new(config);
        manager.listen(CONNECTIONS, ListenOn::Any, 8).expect("room for a listener");
        manager.listen(DATAGRAMS, ListenOn::Any, 8).expect("room for a listener");
        manager
    }

    /// Plans a host's attempts, and its crash.
    fn plan_work(&mut self, host: usize, hosts: usize) {
        for _ in 0..3 + self.random.below(6) {
            let mut to = self.random.below(hosts as u64) as usize;
            if to == host && self.random.chance(80) {
                to = (to + 1) % hosts;
            }
            let at = self.random.time(CLOSING);
            let task = match self.random.below(10) {
                0 => Task::Connect { to, service: NOWHERE },
                1 | 2 => Task::Resolve { to },
                _ => Task::Connect { to, service: CONNECTIONS },
            };
            self.plan(at, What::Do { host, life: 0, task });
        }
        if self.random.chance(self.climate.crashes) {
            let at = self.random.time(CLOSING);
            self.plan(at, What::Do { host, life: 0, task: Task::Crash });
        }
        self.plan(CLOSING, What::Do { host, life: 0, task: Task::CloseAll });
    }

    fn plan(&mut self, at: Nanos, what: What) {
        self.entries += 1;
        self.plans.insert((at, self.entries), what);
    }

    /// Runs until nothing is left to do.
    pub fn run(mut self) -> Summary {
        loop {
            let planned = self.plans.keys().next().map_or(Nanos::MAX, |(at, _)| *at);
            let timers = self.hosts.iter().map(|h| h.manager.next_deadline()).min().unwrap_or(Nanos::MAX);
            let next = planned.min(timers);
            if next == Nanos::MAX {
                break;
            }
            assert!(next < END, "not over at {next}: {}", self.leftovers());
            self.now = self.now.max(next);
            if planned <= timers {
                let (_, what) = self.plans.pop_first().expect("what was just seen");
                self.happens(what);
            }
            for host in 0..self.hosts.len() {
                if self.hosts[host].manager.next_deadline() <= self.now {
                    self.hosts[host].manager.handle_timeouts(self.now);
                }
                self.attend(host);
                self.summary.transitions |= self.hosts[host].manager.seen_transitions();
                let inconsistency = self.hosts[host].manager.inconsistency();
                assert!(
                    inconsistency.is_none(),
                    "host {host} at {}: {}",
                    self.now,
                    inconsistency.unwrap_or_default()
                );
            }
        }
        assert!(self.hosts.iter().all(|h| h.manager.connections() == 0), "left: {}", self.leftovers());
        self.hosts.iter().for_each(|h| h.consumer.has_nothing());
        let backlog_full = self.hosts.iter().any(|h| h.manager.counters().backlog_full > 0);
        self.check_backlogs();
        self.truth.final_verdict(backlog_full);
        self.summary
    }

    fn leftovers(&self) -> String {
        let of = |h: &Host| {
            h.manager.ids().map(|id| format!("{id} {:?} ", h.manager.state(id))).collect::<String>()
        };
        let all: Vec<String> = self.hosts.iter().map(of).collect();
        format!("seed {}: {}", self.seed, all.join("| "))
    }

    /// Checks that each backlog has all its 8 places: no past request holds one.
    fn check_backlogs(&mut self) {
        for host in 0..self.hosts.len() {
            let room = if self.climate.small_tables { 6 } else { 8 };
            let peer = (host + 1) % self.hosts.len();
            for k in 0..room {
                let mut req = roxie::wire::cm::Req {
                    local_comm_id: CommId(0xffff_0000 + k),
                    service_id: CONNECTIONS,
                    local_ca_guid: 1,
                    local_qpn: Qpn::new(0xff_0000 + k),
                    path_mtu: 3,
                    ..Default::default()
                };
                req.primary_path.local_gid = address(peer).into();
                req.primary_path.remote_gid = address(host).into();
                let route = Route::new(address(host), address(peer));
                let mad = CmMessage::Req(req).to_mad(1);
                let from = Arrival { route, src_qp: Qpn::GSI };
                self.hosts[host].manager.handle_mad(self.now, &mad, &from);
                let event = self.hosts[host].manager.poll_event();
                assert!(
                    matches!(event, Some(Event::Request { .. })),
                    "place {k} of host {host}'s backlog is lost"
                );
            }
        }
    }

    fn happens(&mut self, what: What) {
        match what {
            What::Deliver { to, number } => {
                let transmit = self.under_way[number].take().expect("delivered once");
                let back =
                    Route { local: transmit.route.remote, remote: transmit.route.local, ..transmit.route };
                let from = Arrival { route: back, src_qp: Qpn::GSI };
                self.hosts[to].manager.handle_mad(self.now, &transmit.mad, &from);
            }
            What::Do { host, task: Task::Crash, .. } => self.crash(host),
            What::Do { host, life, task } => {
                if self.hosts[host].life == life || task == Task::CloseAll {
                    let Host { manager, consumer, .. } = &mut self.hosts[host];
                    consumer.perform(
                        self.now,
                        task,
                        manager,
                        &mut self.random,
                        &self.climate,
                        &mut self.truth,
                    );
                }
            }
        }
    }

    /// A host forgets everything, and starts again at its old address.
    fn crash(&mut self, host: usize) {
        self.summary.crashes += 1;
        self.truth.crashed(host);
        let life = self.hosts[host].life + 1;
        let manager = self.manager(host, life);
        let consumer = self.hosts[host].consumer.reborn();
        self.hosts[host] = Host { manager, consumer, life };
        let hosts = self.hosts.len() as u64;
        // The host continues with new attempts.
        for _ in 0..3 {
            let to = self.random.below(hosts) as usize;
            let at = self.now + self.random.time(Nanos::from_millis(20_000));
            let task = Task::Connect { to, service: CONNECTIONS };
            self.plan(at.min(CLOSING), What::Do { host, life, task });
        }
    }

    /// Delivers a host's messages and events.
    fn attend(&mut self, host: usize) {
        loop {
            // Only a peer that has crashed asks for a connection of the same QP. Packets of the old one may still
            // arrive.
            while let Some(examination) = self.hosts[host].manager.poll_examination() {
                let has_received = self.random.chance(10);
                self.hosts[host].manager.examined(self.now, &examination, has_received);
            }
            while let Some(transmit) = self.hosts[host].manager.poll_transmit() {
                self.send(host, transmit);
            }
            let Some(event) = self.hosts[host].manager.poll_event() else { break };
            self.count(&event);
            let Host { manager, consumer, .. } = &mut self.hosts[host];
            consumer.handle(event, manager, &mut self.random, &self.climate, &mut self.truth);
        }
        let life = self.hosts[host].life;
        for (delay, task) in self.hosts[host].consumer.take_plans() {
            self.plan(self.now + delay, What::Do { host, life, task });
        }
        self.summary.by_data += self.hosts[host].consumer.take_by_data();
    }

    fn count(&mut self, event: &Event) {
        let s = &mut self.summary;
        match event {
            Event::Established { .. } => s.connected += 1,
            Event::Unreachable { .. } => s.unreachable += 1,
            Event::Resolved { .. } => s.resolved += 1,
            Event::Rejected { reject, .. } => {
                s.rejected += 1;
                s.stale += u64::from(reject.reason == RejReason::STALE);
                s.invalid_comm_id += u64::from(reject.reason == RejReason::INVALID_COMM_ID);
                s.refused_later += u64::from(reject.message == roxie::wire::cm::Stage::Rep);
            }
            _ => {}
        }
    }

    fn send(&mut self, from: usize, transmit: Transmit) {
        let to = host_of(&transmit.route);
        for byte in transmit.mad {
            self.summary.digest = (self.summary.digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        let (_, message) = CmMessage::read(&transmit.mad).expect("a manager sends messages");
        self.summary.waited += u64::from(message.kind() == Kind::Mra);
        // From 30 s to 60 s and from 120 s to 180 s, no message passes between even and odd hosts.
        let seconds = self.now.0 / 1_000_000_000;
        let apart = (from + to) % 2 == 1 && (seconds / 30 == 1 || seconds / 60 == 2);
        if self.climate.partitions && apart || self.random.chance(self.climate.loss) {
            return;
        }
        let copies = 1 + u64::from(self.random.chance(self.climate.doubles));
        for _ in 0..copies {
            let at = self.now + Nanos::from_micros(5) + self.random.time(self.climate.delay);
            self.under_way.push(Some(transmit.clone()));
            let number = self.under_way.len() - 1;
            self.plan(at, What::Deliver { to, number });
        }
    }
}
