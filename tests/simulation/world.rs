//! Runs a script: hosts on a switch, their applications, and the script's actions.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};

use roxie::limits::Limits;
use roxie::nic::{Answer, Command, ControlError, NicConfig};
use roxie::port::pcap::{PcapPort, Timestamps};
use roxie::port::{LinkChange, Port};
use roxie::time::Nanos;
use roxie::verbs::{AsyncEvent, EventKind, Mtu, QpAttr, QpState, RateLimit};
use roxie_sim::Host;
use roxie_sim::fabric::{DropReason, Fabric};

use crate::flow::Patch;
use crate::intruder;
use crate::law::Law;
use crate::life::{moderate, state};
use crate::link::Link;
use crate::network;
use crate::script::{Action, Brakes, FrameName, Held, Intrusion, Part, Place, Script, Trouble, Way};
use crate::srq::{self, Shared};
use crate::stations::Stations;
use crate::vandal::Vandal;
use crate::weather::{Records, hash};
use crate::witness::{Witness, Witnesses};

/// Upper bound of the time of any recovery.
const PATIENCE: Nanos = Nanos::from_millis(60_000);
/// Upper bound of the steps of a run. Detects an endless loop before [`PATIENCE`] is over.
const MOST_STEPS: u32 = 400_000;
/// One seed of this many has questions of connection managers.
const QUESTIONED: u64 = 16;

/// The counts of a run.
#[derive(Debug, Default)]
pub struct Outcome {
    pub counts: BTreeMap<&'static str, u64>,
    /// Applied faults, by frame.
    pub strikes: Vec<(FrameName, Trouble)>,
}

impl Outcome {
    pub fn add(&mut self, name: &'static str, n: u64) {
        *self.counts.entry(name).or_default() += n;
    }
}

/// A run.
pub struct World<'a> {
    pub script: &'a Script,
    pub net: Fabric,
    pub stations: Stations,
    pub records: Records,
    pub witnesses: Witnesses,
    pub links: Vec<Link>,
    pub srqs: Vec<Shared>,
    pub vandals: Vec<Vandal>,
    pub outcome: Outcome,
    /// Counters of NICs before their restart, by host.
    pub past: Vec<BTreeMap<&'static str, u64>>,
    /// Congestion settings of each NIC.
    brakes: Vec<Option<Brakes>>,
    /// Number of frames from strangers that are no packets.
    pub strange: u64,
    next_action: usize,
    /// Times at which hosts learn the new MAC address of another.
    pending_moves: Vec<(Nanos, usize)>,
    /// Number of frames to a MAC address that no host has.
    unroutable: u64,
    capture: Option<PathBuf>,
}

/// Runs a script. Panics if an oracle objects. `capture`: folder for the capture of each host.
pub fn run(script: &Script, capture: Option<&Path>) -> Outcome {
    let mut world = World::new(script, capture, Records::default());
    world.live();
    world.audit()
}

/// Runs a script to its end or failure, and returns the faults of its weather.
pub fn strikes_of(script: &Script) -> Vec<(FrameName, Trouble)> {
    let records = Records::default();
    let run = || {
        let mut world = World::new(script, None, records.clone());
        world.live();
    };
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
    std::mem::take(&mut records.get().strikes)
}

impl<'a> World<'a> {
    pub fn new(script: &'a Script, capture: Option<&Path>, records: Records) -> World<'a> {
        let mut world = World {
            script,
            net: network::of(script, &records),
            stations: Stations::new(&script.hosts),
            records,
            witnesses: Witnesses::default(),
            links: Vec::new(),
            srqs: Vec::new(),
            vandals: Vec::new(),
            outcome: Outcome::default(),
            past: vec![BTreeMap::new(); script.hosts.count],
            brakes: vec![None; script.hosts.count],
            strange: 0,
            next_action: 0,
            pending_moves: Vec::new(),
            unroutable: 0,
            capture: capture.map(Path::to_owned),
        };
        let priorities = script.channels.iter().any(|channel| channel.sl > 0);
        world.witnesses.expect(priorities, script.is_paced(), script.hosts.slots);
        for number in 0..script.hosts.count {
            world.net.attach(number, world.host(number));
        }
        world.srqs = srq::all(script, world.net.hosts_mut());
        let World { net, srqs, witnesses, .. } = &mut world;
        let link = |channel| Link::new(script, channel, net.hosts_mut(), srqs, witnesses);
        world.links = (0..script.channels.len()).map(link).collect();
        world
    }

    /// Creates a host with a new NIC.
    fn host(&self, number: usize) -> Host {
        let (hosts, station) = (&self.script.hosts, self.stations.all()[number]);
        let mut port: Box<dyn Port> = Box::new(self.net.port(number));
        if let Some(folder) = &self.capture {
            let name = format!("h{}-{}.pcapng", number + 1, station.incarnation);
            let file = BufWriter::new(File::create(folder.join(name)).expect("a capture file"));
            port = Box::new(PcapPort::new(port, file, Timestamps::Virtual, None).expect("a capture"));
        }
        let port = Box::new(Witness::new(port, number, self.witnesses.clone()));
        let small = Limits { qps: 64, cqs: 64, mrs: 256, ahs: 64, ..Limits::small() };
        let limits = Limits { ack_coalesce: hosts.ack_coalesce, window: hosts.window, ..small };
        let config = NicConfig {
            limits,
            seed: hash(&[self.script.seed, number as u64, station.incarnation]),
            largest_mtu: Mtu::largest_for_link(station.link_mtu).unwrap_or(Mtu::Mtu256),
            ack_requests: hosts.ack_requests,
            ..NicConfig::default()
        };
        Host::new(number as u16 + 1, config, port)
    }

    /// Runs from the first connection until nothing happens any more.
    pub fn live(&mut self) {
        for channel in 0..self.links.len() {
            self.connect(channel, true);
        }
        let (patience, steps) = (PATIENCE + Law::longest(self.script), Law::steps(self.script));
        for step in 0.. {
            assert!(step < MOST_STEPS + steps, "not quiet after {step} steps, at {}", self.net.now());
            self.announce_moves();
            while let Some(timed) = self.script.actions.get(self.next_action)
                && timed.at <= self.net.now()
            {
                self.next_action += 1;
                self.take_events();
                self.question();
                self.act(&timed.action);
            }
            for link in &mut self.links {
                link.set_late(self.net.now(), self.net.hosts_mut());
            }
            self.vandalize();
            let dawdles = self.applications();
            let limit = self.next_time();
            let alive = self.pass(limit);
            self.check_stations();
            // A moderated event may have been raised by its timer.
            let notified = self.links.iter_mut().fold(false, |notified, link| notified | link.has_event());
            if !alive && limit == Nanos::MAX && !dawdles && !notified {
                break;
            }
            let now = self.net.now();
            assert!(now < self.end() + patience, "not quiet {patience} after the last action");
        }
        self.take_events();
        self.check_accounts();
        for link in &mut self.links {
            link.check_notified();
            link.poll(self.net.now(), self.net.hosts(), true);
        }
    }

    /// Has a QP ask its peer whether it has the connection, as a connection manager does, in one of 16 seeds. Not in a
    /// script that counts packets.
    fn question(&mut self) {
        if self.script.seed % QUESTIONED != 12 {
            return;
        }
        let number = hash(&[self.script.seed, 11, self.next_action as u64]) as usize;
        if self.links.is_empty() || !self.script.expected.is_empty() || !self.script.logs.is_empty() {
            return;
        }
        let link = &self.links[number % self.links.len()];
        let end = &link.ends[(number >> 16) % link.ends.len()];
        let Some(qp) = end.qp.as_ref().filter(|_| end.usable) else { return };
        let command = Command::ExamineQp(qp.handle.index, true);
        let now = self.net.now();
        let has_received = match self.net.hosts_mut()[end.host].call(now, command) {
            Ok(Answer::Heard(has_received)) => has_received,
            other => panic!("a QP in use: {other:?}"),
        };
        self.outcome.add(if has_received { "heard" } else { "questions" }, 1);
    }

    /// Time of the last action, jumps included.
    fn end(&self) -> Nanos {
        let jump = |timed: &crate::script::Timed| match timed.action {
            Action::Jump(time) => time.0,
            _ => 0,
        };
        let last = self.script.actions.last().map_or(Nanos::ZERO, |timed| timed.at);
        last + Nanos(self.script.actions.iter().map(jump).sum())
    }

    fn next_time(&self) -> Nanos {
        let action = self.script.actions.get(self.next_action).map_or(Nanos::MAX, |timed| timed.at);
        let pending_moves = self.pending_moves.iter().map(|(at, _)| *at).min().unwrap_or(Nanos::MAX);
        let late = self.links.iter().map(Link::next_late).min().unwrap_or(Nanos::MAX);
        let wake = self.links.iter().map(|link| link.next_wake(self.net.now())).min().unwrap_or(Nanos::MAX);
        action.min(pending_moves).min(late).min(wake)
    }

    /// Runs a turn of all applications. Returns true if one deferred its receives.
    fn applications(&mut self) -> bool {
        self.take_events();
        let mut dawdles = self.post_shared();
        for link in &mut self.links {
            link.poll(self.net.now(), self.net.hosts(), false);
            dawdles |= link.post(self.net.now(), self.net.hosts());
        }
        dawdles
    }

    pub fn take_events(&mut self) {
        for number in 0..self.script.hosts.count {
            while let Some(event) = self.net.hosts()[number].event() {
                self.outcome.add(event_name(event), 1);
                let ports = matches!(event, AsyncEvent::Port(_));
                let known = ports
                    || self.take_shared_event(number, event)
                    || self.vandals.iter().any(|vandal| vandal.owns(number, event))
                    || self.links.iter_mut().any(|link| link.take_event(number, event));
                assert!(known, "host {}: {event:?} is about nothing that is there", number + 1);
            }
        }
    }

    fn connect(&mut self, channel: usize, anew: bool) {
        let World { net, links, stations, records, .. } = self;
        links[channel].connect(net.now(), net.hosts_mut(), stations, records, anew);
    }

    /// Tells the hosts the new MAC addresses that are due.
    fn announce_moves(&mut self) {
        let now = self.net.now();
        let due: Vec<_> = self.pending_moves.extract_if(.., |(at, _)| *at <= now).collect();
        for (_, moved) in due {
            let mac = self.stations.mac(moved);
            for gid in self.stations.gids(moved, self.script.hosts.ipv6) {
                for (_, host) in self.net.hosts_mut().iter_mut().filter(|(i, _)| *i != moved) {
                    host.worker.set_next_hop(|av| av.dgid == gid, mac);
                }
            }
        }
    }

    /// Checks that no frame goes to an unused MAC address once all hosts have learned the new ones. Ends that connect
    /// late still use their original path.
    fn check_stations(&mut self) {
        let switch = self.net.switch(0);
        let lost = |host: usize| switch.ingress(host).drops.by(DropReason::NoRoute);
        let unroutable = (0..self.script.hosts.count).map(lost).sum();
        let more = unroutable - std::mem::replace(&mut self.unroutable, unroutable);
        let late = self.script.channels.iter().any(|channel| channel.slow > Nanos::ZERO);
        let explained = more == 0 || late || !self.pending_moves.is_empty();
        assert!(explained, "{more} frames to an unused MAC address, at {}", self.net.now());
    }

    /// Returns a channel, if the script has it.
    fn link(&mut self, channel: usize) -> Option<&mut Link> {
        self.links.get_mut(channel)
    }

    fn act(&mut self, action: &Action) {
        self.outcome.add(action_name(action), 1);
        let known = |host: usize| host < self.script.hosts.count;
        match *action {
            // Applications post in their own turn.
            Action::Post(..) => {}
            Action::Restart(host) if known(host) => self.restart(host),
            Action::LinkMtu(host, mtu) if known(host) => {
                self.stations.get_mut(host).link_mtu = mtu;
                self.follow(host, &LinkChange::Mtu(mtu), None);
            }
            Action::Move(host, late) if known(host) => {
                self.stations.move_away(host);
                self.follow(host, &LinkChange::Mac(self.stations.mac(host)), None);
                self.pending_moves.push((self.net.now() + late, host));
            }
            Action::Readdress(host) if known(host) => {
                self.stations.readdress(host);
                let address = self.stations.address(host, self.script.hosts.ipv6);
                self.follow(host, &LinkChange::Addresses(vec![address]), Some(EventKind::GidChange));
            }
            Action::PortDown(host) | Action::PortUp(host) if known(host) => {
                let up = matches!(action, Action::PortUp(_));
                self.net.plug(host, up);
                let kind = if up { EventKind::PortActive } else { EventKind::PortError };
                self.net.hosts_mut()[host].worker.raise(AsyncEvent::Port(kind));
            }
            Action::Jump(time) => self.net.jump(time),
            Action::Reset(place) => self.reset(place),
            Action::Destroy(place) => self.destroy(place),
            Action::Error(place) => self.modify(place, ALIVE, state(QpState::Err)),
            Action::Drain(place) => {
                let attr = QpAttr { en_sqd_async_notify: Some(true), ..state(QpState::Sqd) };
                self.modify(place, &[QpState::Rts], attr);
            }
            Action::Resume(place) => {
                self.modify(place, &[QpState::Sqd, QpState::Sqe], state(QpState::Rts));
            }
            Action::Sleep(place, time) => {
                let until = self.net.now() + time;
                if let Some(end) = self.link(place.channel).and_then(|link| link.ends.get_mut(place.end)) {
                    end.asleep_until = until;
                }
            }
            Action::Deregister(way, part) => self.deregister(way, part),
            Action::DestroyHandle(channel) => self.destroy_handle(channel),
            Action::Grant(way, grant) => self.grant(way, grant),
            Action::Revoke(way) => self.revoke(way),
            Action::FreeWindow(way) => self.free_window(way),
            Action::Moderate(place, held) => self.moderate(place, held),
            Action::Arm(place, limit) => self.arm(place, limit),
            Action::ResizeSrq(place, size) => self.resize_srq(place, size),
            Action::DestroySrq(place) => self.destroy_srq(place),
            Action::Brake(host, ref brakes) if known(host) => {
                self.brakes[host] = Some(brakes.clone());
                self.brake(host, false);
            }
            Action::Limit(place, limit) => self.limit(place, limit),
            Action::Intrude(place, intrusion, variant) => self.intrude(place, intrusion, variant),
            Action::Connect { channel, again: anew } if channel < self.links.len() => {
                self.connect(channel, anew)
            }
            _ => {}
        }
    }

    fn follow(&mut self, host: usize, change: &LinkChange, event: Option<EventKind>) {
        self.net.follow(host, change).expect("a port in memory follows");
        if let Some(kind) = event {
            self.net.hosts_mut()[host].worker.raise(AsyncEvent::Port(kind));
        }
    }

    fn restart(&mut self, number: usize) {
        for link in self.links.iter_mut().filter(|link| link.uses(number)) {
            link.forget(self.net.now(), self.net.hosts_mut(), number);
        }
        self.srqs.iter().map(|srq| srq.borrow_mut()).filter(|srq| srq.place.host == number).for_each(
            |mut srq| {
                srq.forget();
            },
        );
        for (name, value) in self.net.hosts()[number].worker.counters() {
            *self.past[number].entry(name).or_default() += value;
        }
        self.stations.get_mut(number).incarnation += 1;
        self.net.attach(number, self.host(number));
        self.brake(number, true);
    }

    /// Applies the last congestion settings to a NIC. `anew`: the NIC was restarted.
    fn brake(&mut self, host: usize, anew: bool) {
        let brakes = self.brakes[host].clone().unwrap_or_default();
        let config = brakes.config().expect("read before");
        self.witnesses.congested(|congested| congested.set(self.net.now(), host, &config, anew));
        let command = Command::SetCongestion(Box::new(config));
        let now = self.net.now();
        self.net.hosts_mut()[host].call(now, command).expect("carried out");
    }

    fn limit(&mut self, place: Place, limit: RateLimit) {
        let World { net, links, .. } = self;
        let Some(link) = links.get_mut(place.channel).filter(|link| place.end < link.ends.len()) else {
            return;
        };
        let host = link.ends[place.end].host;
        let Some(qpn) = link.ends[place.end].qp.as_ref().map(|qp| qp.handle.qpn) else { return };
        // During the command, packets may leave under either limit.
        let before = self.witnesses.congested(|congested| congested.limit(host, qpn, None));
        let attr = QpAttr { rate_limit: Some(limit), ..state(QpState::Rts) };
        let done = link.modify(net.now(), net.hosts_mut(), place.end, &[QpState::Rts], &attr);
        self.outcome.add("rates limited", done.into());
        let now = if done { Some(limit) } else { before };
        self.witnesses.congested(|congested| congested.limit(host, qpn, now));
    }

    fn reset(&mut self, place: Place) {
        let World { net, links, .. } = self;
        let Some(link) = links.get_mut(place.channel).filter(|link| place.end < link.ends.len()) else {
            return;
        };
        let any = [ALIVE, &[QpState::Err, QpState::Reset]].concat();
        if link.modify(net.now(), net.hosts_mut(), place.end, &any, &state(QpState::Reset)) {
            // Take earlier events and completions.
            self.take_events();
            let World { net, links, .. } = self;
            let link = &mut links[place.channel];
            link.poll(net.now(), net.hosts(), true);
            link.abandon(place.end);
        }
    }

    fn destroy(&mut self, place: Place) {
        let World { net, links, .. } = self;
        let Some(link) = links.get_mut(place.channel).filter(|link| place.end < link.ends.len()) else {
            return;
        };
        link.destroy(net.now(), net.hosts_mut(), place.end);
    }

    /// Modifies the QP of a connected end, if it is in one of these states.
    fn modify(&mut self, place: Place, from: &[QpState], attr: QpAttr) {
        let World { net, links, .. } = self;
        let Some(link) = links.get_mut(place.channel) else { return };
        if !link.ends.get(place.end).is_some_and(|end| end.usable) {
            return;
        }
        // Let the NIC fetch earlier requests, and take their events and completions, before the change.
        let now = net.now();
        net.hosts_mut()[link.ends[place.end].host].poll(now);
        self.take_events();
        let World { net, links, .. } = self;
        let link = &mut links[place.channel];
        link.poll(net.now(), net.hosts(), true);
        link.note_draining(place.end, attr.state == Some(QpState::Sqd));
        if !link.modify(net.now(), net.hosts_mut(), place.end, from, &attr) {
            return;
        }
        link.ends[place.end].drains[0] += u32::from(attr.en_sqd_async_notify == Some(true));
        // The query before the change ran a pass, which may have drained the QP that now leaves SQD.
        self.take_events();
        let link = &mut self.links[place.channel];
        match attr.state {
            Some(QpState::Err) => link.note_error(place.end),
            Some(QpState::Rts) => link.note_resumed(place.end),
            _ => {}
        }
    }

    fn deregister(&mut self, way: Way, part: Part) {
        let World { net, links, .. } = self;
        let Some(link) = links.get_mut(way.channel) else { return };
        let Some(flow) = link.flows.get_mut(usize::from(way.back)) else { return };
        let sender = usize::from(way.back);
        let local = matches!(part, Part::Source | Part::Landing);
        let host = link.ends[if local { sender } else { 1 - sender }].host;
        if part == Part::Inbox && !flow.receivers[0].srqs.is_empty() {
            for srq in &flow.receivers[0].srqs {
                srq.borrow_mut().deregister_inbox(net.now(), &mut net.hosts_mut()[host]);
            }
            return;
        }
        let patch: &mut Patch = flow.patch_mut(part);
        if std::mem::take(&mut patch.open) {
            let (region, now, host) = (patch.region.index, net.now(), &mut net.hosts_mut()[host]);
            match host.call(now, Command::DeregisterMemory(region)) {
                Ok(_) => {}
                // Windows are bound to the region and lose it.
                Err(ControlError::Busy { .. }) => {
                    self.outcome.add("region busy", 1);
                    host.call(now, Command::ReleaseMemory(region)).expect("the region exists");
                }
                Err(other) => panic!("{way}: {other}"),
            }
        }
    }

    fn intrude(&mut self, place: Place, intrusion: Intrusion, variant: u64) {
        let Some(link) = self.links.get(place.channel) else { return };
        let frame = intruder::frame(link, &self.stations, place, intrusion, variant);
        if let Some(frame) = frame {
            self.outcome.add("intrusions", 1);
            self.strange += u64::from(intruder::is_no_packet(link, intrusion, variant));
            self.net.inject(link.ends[place.end].host, &frame);
        }
    }

    fn moderate(&mut self, place: Place, held: Held) {
        let World { net, links, .. } = self;
        let end = links.get(place.channel).and_then(|link| link.ends.get(place.end));
        let Some((host, cq)) = end.and_then(|end| Some((end.host, end.qp.as_ref()?.cq_index))) else {
            return;
        };
        moderate(&mut net.hosts_mut()[host], cq, held).expect("the queue exists");
    }

    fn destroy_handle(&mut self, channel: usize) {
        let World { net, links, .. } = self;
        let Some(link) = links.get_mut(channel) else { return };
        // The applications continue to use the handles.
        for flow in &link.flows {
            let host = link.ends[usize::from(flow.way.back)].host;
            if let Some(handle) = flow.handle {
                let now = net.now();
                let _ = net.hosts_mut()[host].call(now, Command::DestroyAh(handle));
            }
        }
    }
}

/// States from which a QP may enter the error state.
const ALIVE: &[QpState] = &[QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd, QpState::Sqe];

fn event_name(event: AsyncEvent) -> &'static str {
    let (AsyncEvent::Qp(_, kind)
    | AsyncEvent::Cq(_, kind)
    | AsyncEvent::Srq(_, kind)
    | AsyncEvent::Port(kind)
    | AsyncEvent::Device(kind)) = event;
    match kind {
        EventKind::CqError => "event CqError",
        EventKind::QpFatal => "event QpFatal",
        EventKind::QpRequestError => "event QpRequestError",
        EventKind::QpAccessError => "event QpAccessError",
        EventKind::SqDrained => "event SqDrained",
        EventKind::LastWqeReached => "event LastWqeReached",
        EventKind::SrqLimitReached => "event SrqLimitReached",
        EventKind::PortActive | EventKind::PortError | EventKind::GidChange => "event of the port",
        _ => "event other",
    }
}

fn action_name(action: &Action) -> &'static str {
    match action {
        Action::Post(..) => "post",
        Action::Restart(_) => "restart",
        Action::LinkMtu(..) => "link_mtu",
        Action::Move(..) => "move",
        Action::Readdress(_) => "readdress",
        Action::PortDown(_) => "down",
        Action::PortUp(_) => "up",
        Action::Jump(_) => "jump",
        Action::Reset(_) => "reset",
        Action::Destroy(_) => "destroy",
        Action::Error(_) => "error",
        Action::Drain(_) => "drain",
        Action::Resume(_) => "resume",
        Action::Sleep(..) => "sleep",
        Action::Deregister(_, Part::Source) => "deregister source",
        Action::Deregister(_, Part::Landing) => "deregister landing",
        Action::Deregister(_, Part::Target) => "deregister target",
        Action::Deregister(_, Part::Inbox) => "deregister inbox",
        Action::DestroyHandle(_) => "destroy_handle",
        Action::Grant(..) => "grant",
        Action::Revoke(_) => "revoke",
        Action::FreeWindow(_) => "free_window",
        Action::Moderate(..) => "moderate",
        Action::Arm(..) => "arm",
        Action::ResizeSrq(..) => "resize_srq",
        Action::DestroySrq(_) => "destroy_srq",
        Action::Brake(..) => "brake",
        Action::Limit(..) => "limit",
        Action::Intrude(_, Intrusion::Forged, _) => "intrude forged",
        Action::Intrude(_, Intrusion::Marked, _) => "intrude marked",
        Action::Intrude(_, Intrusion::Pause, _) => "intrude pause",
        Action::Intrude(_, Intrusion::Pfc, _) => "intrude pfc",
        Action::Intrude(_, Intrusion::Long, _) => "intrude long",
        Action::Intrude(_, Intrusion::Spoof, _) => "intrude spoof",
        Action::Intrude(_, Intrusion::Notice, _) => "intrude notice",
        Action::Intrude(_, Intrusion::Unknown, _) => "intrude unknown",
        Action::Connect { again: true, .. } => "connect anew",
        Action::Connect { again: false, .. } => "connect again",
    }
}
