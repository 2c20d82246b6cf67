//! Checks after the run: bytes, messages, counters that add up, no object left over.

use std::collections::BTreeMap;

use roxie::nic::{Answer, Command, ObjectCounts};
use roxie::time::Nanos;
use roxie::verbs::WrOpcode;
use roxie_sim::fabric::{DropReason, End, LinkStats, PRIORITIES};

use crate::flow::Fate;
use crate::script::{Action, Service, Trouble};
use crate::world::{Outcome, World};

impl World<'_> {
    /// Runs all checks and returns the counts.
    pub fn audit(mut self) -> Outcome {
        let now = self.net.now();
        self.check_shared();
        for link in &self.links {
            link.check_end(self.net.hosts_mut(), now);
            for flow in &link.flows {
                flow.check_memory();
                flow.check_inboxes();
            }
        }
        let totals: Vec<_> = (0..self.script.hosts.count).map(|host| self.totals(host)).collect();
        for (host, counts) in totals.iter().enumerate() {
            self.check_counters(host, counts);
        }
        self.check_switch();
        self.check_sums(&totals);
        for host in 0..totals.len() {
            let pauses = self.witnesses.congested(|congested| congested.seen(host)).pauses;
            self.outcome.add("pauses heeded", pauses);
        }
        self.check_missing(&totals);
        self.count_operations();
        for (name, value) in totals.iter().flatten() {
            self.outcome.add(name, *value);
        }
        self.check_logs();
        self.take_down();
        for (name, due) in &self.script.expected {
            let count = self.outcome.counts.get(name.as_str()).copied().unwrap_or(0);
            assert!(count == *due, "{name}: {count} times, and {due} are due");
        }
        self.outcome.strikes = std::mem::take(&mut self.records.get().strikes);
        self.outcome
    }

    /// Checks that the QPs' event logs contain the expected texts, in order.
    fn check_logs(&mut self) {
        let mut seen: BTreeMap<(usize, usize), usize> = BTreeMap::new();
        for (place, text) in &self.script.logs {
            let end = &self.links[place.channel].ends[place.end];
            let qp = end.qp.as_ref().unwrap_or_else(|| panic!("{place} has no QP"));
            let now = self.net.now();
            let answer = self.net.hosts_mut()[end.host].call(now, Command::QueryLog(qp.handle.index));
            let Ok(Answer::QpLog(records)) = answer else { panic!("the log of {place}: {answer:?}") };
            let lines: Vec<String> = records.iter().map(ToString::to_string).collect();
            let from = seen.entry((place.channel, place.end)).or_default();
            let position = lines[*from..].iter().position(|line| line.contains(text.as_str()));
            let position =
                position.unwrap_or_else(|| panic!("{place}: no `{text}` from {from} on in {lines:#?}"));
            *from += position + 1;
        }
    }

    /// Returns the counters of a host, summed over its NICs before and after restarts.
    fn totals(&self, host: usize) -> BTreeMap<&'static str, u64> {
        let mut totals = self.past[host].clone();
        for (name, value) in self.net.hosts()[host].worker.counters() {
            *totals.entry(name).or_default() += value;
        }
        totals
    }

    /// Checks that NIC, port, cables and switch count the same frames.
    fn check_counters(&self, host: usize, counts: &BTreeMap<&'static str, u64>) {
        let of = |name: &str| counts.get(name).copied().unwrap_or_else(|| panic!("no counter {name}"));
        let (station, [up, down]) = (self.net.station(host), self.cables(host));
        let equal = |what: &str, a: u64, b: u64| assert!(a == b, "host {}: {what}: {a}, {b}", host + 1);
        equal("sent by NIC and port", of("sent_pkts"), of("tx_packets"));
        equal("sent by port and station", of("tx_packets"), station.sent);
        equal("sent bytes by port and station", of("tx_bytes"), station.sent_bytes);
        equal("sent by station and cable", station.sent, up.entered);
        equal("brought by cable and switch", up.arrived, self.net.switch(0).ingress(host).frames);
        equal("brought by cable and station", down.arrived, station.delivered + station.too_long);
        equal("received by station and port", station.delivered, of("rx_packets"));
        equal("received bytes by station and port", station.delivered_bytes, of("rx_bytes"));
        equal("still under way", up.under_way() + down.under_way(), 0);
        let dropped = ["rx_not_roce", "rx_malformed", "rx_unknown_qp", "rx_icrc_encapsulated"];
        let notices = ["rp_cnp_handled", "rp_cnp_ignored"];
        let refused = ["rx_wrong_service", "rx_bad_pkey", "rx_wrong_source"];
        let sum = |names: &[&str]| names.iter().map(|name| of(name)).sum::<u64>();
        let seen = self.witnesses.congested(|congested| congested.seen(host));
        equal("notifications counted and seen to leave", of("np_cnp_sent"), seen.notified);
        equal("notifications counted and seen to come", sum(&notices), seen.notices);
        equal("marks counted and seen", of("np_ecn_marked_roce_packets"), seen.marked);
        let judged = of("rcvd_pkts") + sum(&refused) + sum(&notices);
        let groups = of("rx_multicast");
        let single = of("rx_packets") - sum(&dropped) - groups - seen.pauses;
        if groups == 0 {
            equal("received by port and QPs", single, judged);
        } else {
            let members = self.links.iter().map(|link| link.ends.len() as u64).max().unwrap_or(0);
            let range = single + groups..=single + groups * members;
            assert!(range.contains(&judged), "host {}: {judged} judged, {range:?} came", host + 1);
        }
        equal("events lost", of("events_lost") + of("async_events_lost"), 0);
    }

    /// Statistics of the link from a host to the switch, and of the link back.
    fn cables(&self, host: usize) -> [LinkStats; 2] {
        let at = End::Switch { switch: 0, port: host as u16 };
        [self.net.link(at), self.net.link(End::Station(host))]
    }

    /// Checks that the switch holds no frame, and dropped only frames to unknown addresses.
    fn check_switch(&self) {
        let (switch, hosts) = (self.net.switch(0), self.script.hosts.count);
        let ingress = |host: usize| switch.ingress(host);
        let mut sent = 0;
        for (host, priority) in (0..hosts).flat_map(|host| (0..PRIORITIES).map(move |p| (host, p))) {
            let queue = switch.queue(host, priority);
            assert!(queue.sent == queue.offered, "queue {priority} to host {}: {queue:?}", host + 1);
            sent += queue.sent;
        }
        let copies: u64 = (0..hosts).map(|host| ingress(host).copies).sum();
        assert!(copies == sent, "{copies} copies, and {sent} left the switch");
        let entered: u64 = (0..hosts).map(|host| self.cables(host)[1].entered).sum();
        let intrusions = self.outcome.counts.get("intrusions").copied().unwrap_or(0);
        assert!(
            entered == sent + intrusions,
            "{entered} to hosts, {sent} left the switch, {intrusions} strange"
        );
        for host in 0..hosts {
            let (drops, control) = (ingress(host).drops, ingress(host).control);
            let unroutable = drops.by(DropReason::NoRoute);
            assert!(drops.all() == unroutable && control == 0, "host {}: {:?}", host + 1, ingress(host));
        }
    }

    /// Checks that faults on the links explain the frames that the NICs dropped.
    fn check_sums(&mut self, totals: &[BTreeMap<&'static str, u64>]) {
        let of = |name: &str| totals.iter().map(|counts| counts[name]).sum::<u64>();
        let on_links = |field: fn(LinkStats) -> u64| -> u64 {
            (0..totals.len()).flat_map(|host| self.cables(host)).map(field).sum()
        };
        let corrupted = on_links(|link| link.flipped);
        let broken = of("rx_icrc_encapsulated") + of("rx_malformed") + of("rx_not_roce");
        let strange = self.strange;
        assert!(
            broken <= corrupted + strange,
            "{broken} broken frames, {corrupted} corrupted, {strange} strange"
        );
        let disturbed = corrupted + on_links(|link| link.delayed + link.lost + link.doubled + link.unplugged);
        let jumps = self.script.has(|action| matches!(action, Action::Jump(_)));
        let slow = self.script.channels.iter().any(|channel| channel.slow > Nanos::ZERO);
        let paced = self.script.is_paced();
        let vandals = self.outcome.counts.contains_key("acts of vandals");
        let calm = !vandals
            && disturbed == 0
            && !paced
            && !jumps
            && !slow
            && self.links.iter().all(|link| link.law.is_strict());
        if calm {
            for name in ["local_ack_timeout_err", "packet_seq_err", "implied_nak_seq_err", "ghost_acks"] {
                assert!(of(name) == 0, "{name} = {} without a fault", of(name));
            }
        }
        self.outcome.add("calm", u64::from(calm));
    }

    /// Checks that link faults and missing receives explain the lost messages of services without acknowledgements.
    fn check_missing(&self, totals: &[BTreeMap<&'static str, u64>]) {
        let out_of_buffer: u64 = totals.iter().map(|counts| counts["out_of_buffer"]).sum();
        let late = self.script.weather.iter().any(|rule| {
            let (crate::script::Rule::Rate { trouble, .. } | crate::script::Rule::Strike { trouble, .. }) =
                rule;
            matches!(trouble, Trouble::Delay(_))
        });
        for link in self.links.iter().filter(|link| link.law.is_strict()) {
            for flow in link.flows.iter().filter(|flow| !flow.service.is_reliable()) {
                // A lost or late frame costs its own message, and one more if it arrives within another.
                let struck = self.records.struck(flow.way);
                // Each group member on a host may miss the same frame.
                let members = flow.receivers.len() as u64;
                let explained = struck * members * if late { 3 } else { 2 } + out_of_buffer;
                let missing = flow.missing();
                assert!(missing <= explained, "{}: {missing} are missing, {explained} explained", flow.way);
            }
        }
    }

    fn count_operations(&mut self) {
        let mut counted = Vec::new();
        for flow in self.links.iter().flat_map(|link| &link.flows) {
            for (op, fate) in flow.ops.iter().zip(&flow.fates) {
                if *fate != Fate::Done {
                    counted.push(match fate {
                        Fate::Waiting => "never posted",
                        Fate::Failed => "failed",
                        _ => "unknown",
                    });
                    continue;
                }
                counted.push(operation_name(flow.service, op.opcode));
                let flags = [(op.inline, "inline"), (op.fence, "fence"), (op.granted, "granted")];
                counted.extend(flags.iter().filter(|(set, _)| *set).map(|(_, name)| *name));
            }
        }
        counted.into_iter().for_each(|name| self.outcome.add(name, 1));
        for flow in self.links.iter().flat_map(|link| &link.flows) {
            let named = flow.service == Service::Xrc;
            let taken = if named { "taken from a named queue" } else { "taken from a shared queue" };
            for receiver in &flow.receivers {
                self.outcome.add(taken, receiver.from_shared[0]);
                self.outcome.add("flushed under way", receiver.from_shared[1]);
            }
        }
        for link in &self.links {
            self.outcome.add("lives", link.life.into());
        }
        let struck = self.records.get().strikes.clone();
        for (_, trouble) in struck {
            self.outcome.add(
                match trouble {
                    Trouble::Lose => "frames lost",
                    Trouble::Double => "frames doubled",
                    Trouble::Delay(_) => "frames delayed",
                    Trouble::Harm => "frames harmed",
                    Trouble::Mark => "frames marked",
                },
                1,
            );
        }
    }

    /// Destroys all objects. Fails if a reference is left.
    fn take_down(&mut self) {
        let now = self.net.now();
        for link in &mut self.links {
            link.take_down(now, self.net.hosts_mut());
        }
        self.take_shared_down();
        let hosts = self.net.hosts_mut();
        for (i, host) in hosts.iter_mut() {
            let objects = host.call(now, Command::ListQps);
            assert!(
                matches!(&objects, Ok(Answer::Qps(qps)) if qps.is_empty()),
                "host {}: {objects:?}",
                i + 1
            );
            let pd = host.pd();
            let freed = host.call(now, Command::DeallocPd(pd));
            assert!(freed.is_ok(), "host {}: something is left over: {freed:?}", i + 1);
            let objects = host.worker.nic().objects();
            assert!(objects == ObjectCounts::default(), "host {}: left over: {objects:?}", i + 1);
            assert!(!host.worker.nic().has_ready(), "host {}: something is still to be sent", i + 1);
        }
    }
}

fn operation_name(service: Service, opcode: WrOpcode) -> &'static str {
    match (service, opcode) {
        (Service::Rc, WrOpcode::Send) => "rc Send",
        (Service::Rc, WrOpcode::SendImm) => "rc SendImm",
        (Service::Rc, WrOpcode::SendInvalidate) => "rc SendInvalidate",
        (Service::Rc, WrOpcode::Write) => "rc Write",
        (Service::Rc, WrOpcode::WriteImm) => "rc WriteImm",
        (Service::Rc, WrOpcode::Read) => "rc Read",
        (Service::Rc, WrOpcode::CompareSwap) => "rc CompareSwap",
        (Service::Rc, WrOpcode::FetchAdd) => "rc FetchAdd",
        (Service::Rc, WrOpcode::AtomicWrite) => "rc AtomicWrite",
        (Service::Rc, WrOpcode::Flush) => "rc Flush",
        (Service::Xrc, WrOpcode::Send | WrOpcode::SendImm | WrOpcode::SendInvalidate) => "xrc Send",
        (Service::Xrc, WrOpcode::Write | WrOpcode::WriteImm) => "xrc Write",
        (Service::Xrc, WrOpcode::Read) => "xrc Read",
        (Service::Xrc, WrOpcode::CompareSwap | WrOpcode::FetchAdd) => "xrc atomic",
        (Service::Xrc, WrOpcode::AtomicWrite | WrOpcode::Flush) => "xrc AtomicWrite or Flush",
        (Service::Uc, WrOpcode::Send) => "uc Send",
        (Service::Uc, WrOpcode::SendImm) => "uc SendImm",
        (Service::Uc, WrOpcode::Write) => "uc Write",
        (Service::Uc, WrOpcode::WriteImm) => "uc WriteImm",
        (Service::Ud, _) => "ud",
        (Service::Group, _) => "group",
        _ => "other operation",
    }
}
