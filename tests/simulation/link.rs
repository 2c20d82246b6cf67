//! A channel at work: its ends, how they are connected, and what their applications do in a turn.

use std::collections::VecDeque;

use roxie::nic::Command;
use roxie::sim::{Host, HostQp};
use roxie::time::Nanos;
use roxie::verbs::{
    Access, AddressVector, AsyncEvent, EventKind, Gid, Mtu, Psn, QpAttr, QpIndex, QpInit, QpState, QpType,
    WcStatus,
};
use roxie::wire::Qpn;
use roxie::wire::net::multicast_mac;

use crate::flow::{Flow, LOCAL, Patch, QKEY, Standing, caps};
use crate::law::Law;
use crate::receiver::{Checks, RECEIVE};
use crate::script::{Channel, Script, Service, Way};
use crate::stations::Stations;
use crate::weather::{Records, hash};

/// One end of a channel.
#[derive(Debug)]
pub struct End {
    pub host: usize,
    pub qp: Option<HostQp>,
    /// It is connected, and its application uses it.
    pub usable: bool,
    pub standing: Standing,
    /// Fatal events since it was connected.
    fatal_events: u32,
    /// Times that the drained event was asked for and came, since it was connected.
    pub drains: [u32; 2],
    /// Its completion queue has overflowed.
    pub overflowed: bool,
    /// Events of that.
    overflow_events: u32,
    pub asleep_until: Nanos,
    /// What is still to be set, and when.
    late: VecDeque<(Nanos, QpAttr)>,
}

impl End {
    fn new(host: usize) -> End {
        End {
            host,
            qp: None,
            usable: false,
            standing: Standing::default(),
            fatal_events: 0,
            drains: [0; 2],
            overflowed: false,
            overflow_events: 0,
            asleep_until: Nanos::ZERO,
            late: VecDeque::new(),
        }
    }

    pub fn is(&self, host: usize, index: QpIndex) -> bool {
        self.host == host && self.qp.as_ref().is_some_and(|qp| qp.handle.index == index)
    }

    /// It can send.
    pub fn is_ready(&self) -> bool {
        self.usable && self.late.is_empty()
    }

    fn can_be_reset(&self) -> bool {
        self.qp.is_some() && !self.overflowed
    }
}

/// A channel and everything that belongs to it.
#[derive(Debug)]
pub struct Link {
    number: usize,
    seed: u64,
    spec: Channel,
    ipv6: bool,
    pub law: Law,
    pub ends: Vec<End>,
    /// From end a, and back if the service has that.
    pub flows: Vec<Flow>,
    pub life: u32,
    group: Option<Gid>,
    /// Who ever sent from end a.
    senders: Vec<Qpn>,
}

impl Link {
    pub fn new(script: &Script, number: usize, hosts: &mut [Host]) -> Link {
        let spec = &script.channels[number];
        let there = Way { channel: number, back: false };
        let mut flows = vec![Flow::new(script, there, hosts, spec.ends[0], &spec.ends[1..])];
        if spec.service != Service::Group {
            let back = Way { channel: number, back: true };
            flows.push(Flow::new(script, back, hosts, spec.ends[1], &spec.ends[..1]));
        }
        let low = 1 + number as u16;
        let group: std::net::IpAddr = match script.hosts.ipv6 {
            true => std::net::Ipv6Addr::new(0xff0e, 0, 0, 0, 0, 0, 0, low).into(),
            false => std::net::Ipv4Addr::new(239, 0, 0, low as u8).into(),
        };
        Link {
            number,
            seed: script.seed,
            spec: spec.clone(),
            ipv6: script.hosts.ipv6,
            law: Law::of(script, number),
            ends: spec.ends.iter().map(|host| End::new(*host)).collect(),
            flows,
            life: 0,
            senders: Vec::new(),
            group: (spec.service == Service::Group).then(|| Gid::from(group)),
        }
    }

    /// The way that end `end` sends on, if it does.
    pub fn way_from(&self, end: usize) -> Option<usize> {
        (end < self.flows.len()).then_some(end)
    }

    /// The way that arrives at `end`, and which of its receivers that is.
    fn way_to(&self, end: usize) -> Option<(usize, usize)> {
        match (self.spec.service == Service::Group, end) {
            (true, 0) => None,
            (true, end) => Some((0, end - 1)),
            (false, end) => Some((1 - end, 0)),
        }
    }

    /// The way that `end` judges events by.
    fn way_of_events(&self, end: usize) -> Way {
        let index = self.way_to(end).map_or(0, |(flow, _)| flow);
        self.flows[index].way
    }

    pub fn uses(&self, host: usize) -> bool {
        self.ends.iter().any(|end| end.host == host)
    }

    /// First PSNs: the script's, and later ones far from all before.
    fn psns(&self) -> [Psn; 2] {
        if self.life == 0 {
            return self.spec.psns.map(Psn::new);
        }
        let far = u32::try_from(hash(&[self.seed, self.number as u64, 7]) % 0x4_0000).expect("below 2^18");
        let jump = self.life * 0x14_0000 + far;
        // Ahead of what old packets carry, or behind it.
        let back = hash(&[self.seed, self.number as u64, 8]).is_multiple_of(2);
        self.spec.psns.map(|psn| if back { Psn::new(psn) - jump } else { Psn::new(psn) + jump })
    }

    /// Ends the life of all ends, and begins another. `anew`: with new QPs.
    pub fn connect(
        &mut self,
        now: Nanos,
        hosts: &mut [Host],
        stations: &Stations,
        records: &Records,
        anew: bool,
    ) {
        self.look(now, hosts, true);
        self.flows.iter().for_each(Flow::check_promises);
        for end in 0..self.ends.len() {
            if anew || !self.ends[end].can_be_reset() {
                self.destroy(now, hosts, end);
                self.create(hosts, end);
            } else {
                self.set(now, hosts, end, &state(QpState::Reset));
                self.look_at(hosts, end);
            }
            let end = &mut self.ends[end];
            (end.standing, end.usable) = (Standing::default(), false);
            (end.fatal_events, end.drains) = (0, [0; 2]);
        }
        self.release_grants(now, hosts);
        self.reopen(now, hosts);
        self.flows.iter_mut().for_each(Flow::begin_life);
        let smallest = self.ends.iter().map(|end| stations.largest_mtu(end.host)).min().flatten();
        let Some(mtu) = smallest.map(|mtu| mtu.min(self.spec.mtu)) else { return };
        let psns = self.psns();
        for end in 0..self.ends.len() {
            self.bring_up(now, hosts, stations, end, mtu, psns);
            let way = Way { channel: self.number, back: end > 0 };
            let first = if end == 0 { psns } else { [psns[1], psns[0]] };
            let qp = self.ends[end].qp.as_ref().expect("created above");
            records.learn(self.ends[end].host, qp.handle.qpn, way, first, self.life);
        }
        self.life += 1;
        self.senders.extend(self.ends.iter().filter_map(|end| end.qp.as_ref()).map(|qp| qp.handle.qpn));
        if self.spec.service.is_datagram() {
            self.address(now, hosts, stations);
        }
    }

    fn release_grants(&mut self, now: Nanos, hosts: &mut [Host]) {
        for flow in &mut self.flows {
            let receiver = &self.ends[usize::from(!flow.way.back)];
            flow.release_grants(now, &mut hosts[receiver.host], false);
        }
    }

    /// Everything that the channel has is removed.
    pub fn take_down(&mut self, now: Nanos, hosts: &mut [Host]) {
        for end in 0..self.ends.len() {
            self.destroy(now, hosts, end);
        }
        self.release_grants(now, hosts);
        self.for_each_patch(|patch, host| {
            if std::mem::take(&mut patch.open) {
                let command = Command::DeregisterMemory(patch.region.index);
                hosts[host].call(now, command).expect("a region that is there");
            }
        });
        self.destroy_handles(now, hosts);
    }

    /// Each region of the channel, with its host.
    fn for_each_patch(&mut self, mut f: impl FnMut(&mut Patch, usize)) {
        for flow in &mut self.flows {
            let (from, to) = if flow.way.back { (1, 0) } else { (0, 1) };
            f(&mut flow.source, self.ends[from].host);
            f(&mut flow.landing, self.ends[from].host);
            f(&mut flow.target, self.ends[to].host);
            for (i, receiver) in flow.receivers.iter_mut().enumerate() {
                f(&mut receiver.inbox, self.ends[if flow.way.back { 0 } else { i + 1 }].host);
            }
        }
    }

    /// Regions and handles that went away are made again.
    fn reopen(&mut self, now: Nanos, hosts: &mut [Host]) {
        self.for_each_patch(|patch, host| patch.reopen(&mut hosts[host]));
        self.destroy_handles(now, hosts);
    }

    fn destroy_handles(&mut self, now: Nanos, hosts: &mut [Host]) {
        for flow in &mut self.flows {
            if let Some(handle) = flow.handle.take() {
                let sender = usize::from(flow.way.back);
                // It may be gone already: the script or a restart took it.
                let _ = hosts[self.ends[sender].host].call(now, Command::DestroyAh(handle));
            }
        }
    }

    fn create(&mut self, hosts: &mut [Host], end: usize) {
        let qp_type = match self.spec.service {
            Service::Rc => QpType::Rc,
            Service::Uc => QpType::Uc,
            Service::Ud | Service::Group => QpType::Ud,
        };
        let init = QpInit { qp_type, caps: caps(&self.spec), sq_sig_all: self.spec.sig_all };
        let end = &mut self.ends[end];
        end.qp = Some(hosts[end.host].create_qp_as(init, self.spec.cq));
        (end.overflowed, end.overflow_events) = (false, 0);
    }

    /// Destroys the QP and the completion queue of an end.
    pub fn destroy(&mut self, now: Nanos, hosts: &mut [Host], end: usize) {
        let host = self.ends[end].host;
        if let Some(qp) = &self.ends[end].qp {
            let command = Command::DestroyQp(qp.handle.index);
            hosts[host].call(now, command).expect("a QP that is there");
            // What completed before is there to be seen.
            self.look_at(hosts, end);
        }
        if let Some(qp) = self.ends[end].qp.take() {
            let command = Command::DestroyCq(qp.cq_index);
            hosts[host].call(now, command).expect("a completion queue without users");
        }
        self.abandon(end);
    }

    /// What the QP of an end had under way is nobody's any more, and its peer is alone.
    pub fn abandon(&mut self, end: usize) {
        self.ends[end].usable = false;
        self.ends[end].late.clear();
        if let Some(flow) = self.way_from(end) {
            self.flows[flow].abandon();
        }
        if let Some((flow, receiver)) = self.way_to(end) {
            self.flows[flow].receivers[receiver].abandon();
        }
        self.desert(end);
    }

    /// The others learn that this end is gone or has failed, which explains their failures.
    fn desert(&mut self, end: usize) {
        for (i, other) in self.ends.iter_mut().enumerate() {
            other.standing.peer_gone |= i != end;
        }
    }

    /// A NIC has forgotten everything: so must its applications.
    pub fn forget(&mut self, now: Nanos, hosts: &mut [Host], host: usize) {
        self.look(now, hosts, true);
        for end in (0..self.ends.len()).filter(|end| self.ends[*end].host == host).collect::<Vec<_>>() {
            self.ends[end].qp = None;
            self.abandon(end);
            for flow in &mut self.flows {
                flow.handle.take_if(|_| end == usize::from(flow.way.back));
                if usize::from(!flow.way.back) == end {
                    flow.release_grants(now, &mut hosts[host], true);
                }
            }
        }
        self.for_each_patch(|patch, of| patch.open &= of != host);
    }

    fn set(&mut self, now: Nanos, hosts: &mut [Host], end: usize, attr: &QpAttr) {
        let end = &self.ends[end];
        let qp = end.qp.as_ref().expect("an end with a QP");
        hosts[end.host].modify(now, qp, attr).expect("a legal transition");
    }

    /// Sets attributes of an end, if it has a QP in one of these states. True: it had.
    pub fn modify(
        &mut self,
        now: Nanos,
        hosts: &mut [Host],
        end: usize,
        from: &[QpState],
        attr: &QpAttr,
    ) -> bool {
        let place = &self.ends[end];
        let Some(qp) = &place.qp else { return false };
        let host = &mut hosts[place.host];
        // The pass that carries the command out may also be the one in which the QP fails.
        from.contains(&host.query(now, qp).state) && host.modify(now, qp, attr).is_ok()
    }

    fn bring_up(
        &mut self,
        now: Nanos,
        hosts: &mut [Host],
        stations: &Stations,
        end: usize,
        mtu: Mtu,
        psns: [Psn; 2],
    ) {
        let other = if end == 0 { 1 } else { 0 };
        let peer = self.ends[other].qp.as_ref().map_or(Qpn::new(0), |qp| qp.handle.qpn);
        let path = stations.path(self.ends[end].host, self.ends[other].host, self.ipv6);
        let own = psns[usize::from(end > 0)];
        let theirs = psns[usize::from(end == 0)];
        let [init, rtr, rts] = self.attributes(path, mtu, peer, own, theirs);
        self.set(now, hosts, end, &init);
        let slow = if end > 0 { self.spec.slow } else { Nanos::ZERO };
        self.ends[end].late = [(now + Nanos(slow.0 / 2), rtr), (now + slow, rts)].into();
        self.ends[end].usable = true;
        self.set_late(now, hosts);
    }

    /// Sets what is due by now.
    pub fn set_late(&mut self, now: Nanos, hosts: &mut [Host]) {
        for end in 0..self.ends.len() {
            while let Some((at, attr)) = self.ends[end].late.front().copied()
                && at <= now
            {
                self.ends[end].late.pop_front();
                // An end that has failed meanwhile stays as it is.
                let before = if attr.state == Some(QpState::Rtr) { QpState::Init } else { QpState::Rtr };
                if self.modify(now, hosts, end, &[before], &attr) {
                    continue;
                }
                // Its path MTU does not fit the link any more: it stays where it is.
                if self.modify(now, hosts, end, &[before], &QpAttr::default()) {
                    self.abandon(end);
                }
            }
        }
    }

    /// When something is to be set next.
    pub fn next_late(&self) -> Nanos {
        let late = self.ends.iter().filter_map(|end| end.late.front());
        late.map(|(at, _)| *at).min().unwrap_or(Nanos::MAX)
    }

    /// INIT, RTR, RTS.
    fn attributes(&self, path: AddressVector, mtu: Mtu, peer: Qpn, own: Psn, theirs: Psn) -> [QpAttr; 3] {
        let spec = &self.spec;
        let init = QpAttr { pkey_index: Some(0), port: Some(1), ..state(QpState::Init) };
        let rts = QpAttr { sq_psn: Some(own), ..state(QpState::Rts) };
        if spec.service.is_datagram() {
            return [QpAttr { qkey: Some(QKEY), ..init }, state(QpState::Rtr), rts];
        }
        let init = QpAttr { access: Some(Access::READ_WRITE | Access::FLUSH_GLOBAL), ..init };
        let rtr = QpAttr {
            av: Some(path),
            path_mtu: Some(mtu),
            dest_qpn: Some(peer),
            rq_psn: Some(theirs),
            ..state(QpState::Rtr)
        };
        if spec.service == Service::Uc {
            return [init, rtr, rts];
        }
        let rtr =
            QpAttr { max_dest_rd_atomic: Some(spec.rd_atomic), min_rnr_timer: Some(spec.rnr_timer), ..rtr };
        let rts = QpAttr {
            timeout: Some(spec.timeout),
            retry_cnt: Some(spec.retries),
            rnr_retry: Some(spec.rnr_retries),
            max_rd_atomic: Some(spec.rd_atomic),
            ..rts
        };
        [init, rtr, rts]
    }

    /// Names the receivers of datagrams.
    fn address(&mut self, now: Nanos, hosts: &mut [Host], stations: &Stations) {
        for end in 0..self.flows.len() {
            let (from, to) = (&self.ends[end], &self.ends[1 - end.min(1)]);
            let mut path = stations.path(from.host, to.host, self.ipv6);
            let mut remote = to.qp.as_ref().expect("created above").handle.qpn;
            if let Some(group) = self.group {
                path.dgid = group;
                path.dmac = multicast_mac(group.to_ip()).expect("a group");
                remote = Qpn::MULTICAST;
                for end in &self.ends[1..] {
                    let index = end.qp.as_ref().expect("created above").handle.index;
                    let attach = Command::AttachMulticast(index, group);
                    hosts[end.host].call(now, attach).expect("a datagram QP and a group");
                }
            }
            self.flows[end].handle = Some(hosts[from.host].create_ah(&path));
            self.flows[end].remote_qpn = remote;
        }
    }

    /// The applications post what they have. True: one of them dawdles.
    pub fn post(&mut self, now: Nanos, hosts: &[Host]) -> bool {
        let mut dawdles = false;
        for end in 0..self.ends.len() {
            let place = &self.ends[end];
            let Some(qp) = place.qp.as_ref().filter(|_| place.usable && place.asleep_until <= now) else {
                continue;
            };
            let host = &hosts[place.host];
            if let Some((flow, receiver)) = self.way_to(end) {
                let flow = &mut self.flows[flow];
                dawdles |= flow.receivers[receiver].post(host, qp, &flow.ops);
            }
            if let Some(flow) = self.way_from(end).filter(|_| place.late.is_empty()) {
                self.flows[flow].post(now, host, qp);
            }
        }
        dawdles
    }

    /// The applications look at their completions, and at `last` even those that sleep.
    pub fn look(&mut self, now: Nanos, hosts: &[Host], last: bool) {
        for end in 0..self.ends.len() {
            let place = &self.ends[end];
            if place.qp.is_none() || (place.asleep_until > now && !last) {
                continue;
            }
            self.look_at(hosts, end);
        }
    }

    fn look_at(&mut self, hosts: &[Host], end: usize) {
        let host = &hosts[self.ends[end].host];
        let qpn = |ends: &[End]| ends[end].qp.as_ref().map(|qp| qp.handle.qpn);
        while let Some(wc) = self.ends[end].qp.as_ref().and_then(|qp| host.poll_cq(qp)) {
            assert!(Some(wc.qpn) == qpn(&self.ends), "q{}: {wc:?} is of another QP", self.number + 1);
            let Link { ends, flows, law, .. } = self;
            let place = &mut ends[end];
            if wc.wr_id & RECEIVE == 0 {
                let datagram_or_uc = self.spec.service != Service::Rc;
                let after = flows[end].sent(&wc, place.standing, law);
                if wc.wr_id & LOCAL != 0 {
                    // What the receiver of the other way does about its grant.
                    flows[1 - end].granted_or_taken(&wc);
                }
                let failed = after.failed && !place.standing.failed;
                place.standing = after;
                // The send queue of the others fails alone.
                if failed && !datagram_or_uc {
                    place.standing.fatal = true;
                    self.desert(end);
                }
                continue;
            }
            let (flow, receiver) = self.way_to(end).expect("receives are posted where something arrives");
            if wc.status != WcStatus::Success {
                let failed = self.ends[end].standing.fatal;
                self.flows[flow].receivers[receiver].failed(&wc, failed, &self.law);
                self.ends[end].standing.fatal = true;
                self.desert(end);
                continue;
            }
            self.take_message(flow, receiver, &wc);
        }
    }

    fn take_message(&mut self, flow: usize, receiver: usize, wc: &roxie::verbs::Wc) {
        let ipv6 = self.ipv6;
        let header = |header: &[u8], what: &str| {
            // An IPv4 header stands behind 20 bytes of zeros.
            let version = if ipv6 { header[0] >> 4 == 6 } else { header[20] >> 4 == 4 };
            assert!(version && (ipv6 || header[..20] == [0; 20]), "{what}: {header:x?}");
        };
        let checks = Checks { senders: &self.senders, header: &header };
        self.flows[flow].received(receiver, wc, &self.law, &checks);
    }

    /// An event of one of its QPs or completion queues. False: it is not about this channel.
    pub fn take_event(&mut self, host: usize, event: AsyncEvent) -> bool {
        let found = self.ends.iter().position(|end| match event {
            AsyncEvent::Qp(index, _) => end.is(host, index),
            AsyncEvent::Cq(cq, _) => end.host == host && end.qp.as_ref().is_some_and(|qp| qp.cq_index == cq),
            _ => false,
        });
        let Some(at) = found else { return false };
        let (AsyncEvent::Qp(_, kind) | AsyncEvent::Cq(_, kind)) = event else { return false };
        let what = format!("q{} end {at}: {event:?}", self.number + 1);
        assert!(self.law.may_report(self.way_of_events(at), kind), "{what}: nothing explains it");
        let end = &mut self.ends[at];
        match kind {
            EventKind::SqDrained => {
                end.drains[1] += 1;
                assert!(end.drains[1] <= end.drains[0], "{what}: nobody asked");
            }
            EventKind::CommunicationEstablished => {}
            EventKind::CqError => {
                end.overflowed = true;
                end.overflow_events += 1;
                assert!(end.overflow_events == 1, "{what}: twice");
                end.standing.fatal = true;
                self.desert(at);
            }
            _ => {
                end.fatal_events += 1;
                end.standing.fatal = true;
                assert!(end.fatal_events == 1, "{what}: twice");
                self.desert(at);
            }
        }
        true
    }

    /// Its application took an end to the error state.
    pub fn note_error(&mut self, end: usize) {
        self.ends[end].standing.fatal = true;
        self.desert(end);
    }

    /// When an application that sleeps wakes up.
    pub fn next_wake(&self, now: Nanos) -> Nanos {
        let asleep = self.ends.iter().map(|end| end.asleep_until).filter(|until| *until > now);
        asleep.min().unwrap_or(Nanos::MAX)
    }

    /// After everything. See [`crate::audit`].
    pub fn check_end(&self, hosts: &mut [Host], now: Nanos) {
        self.flows.iter().for_each(Flow::check_promises);
        for (i, end) in self.ends.iter().enumerate() {
            let Some(qp) = &end.qp else { continue };
            let state = hosts[end.host].query(now, qp).state;
            let what = format!("q{} end {i} in {state:?}", self.number + 1);
            if !end.usable || end.overflowed {
                continue;
            }
            let flow = self.way_from(i).map(|flow| &self.flows[flow]);
            if let Some(flow) = flow.filter(|_| state != QpState::Sqd) {
                assert!(flow.is_idle(), "{what}: everything is quiet, and sends are outstanding");
                assert!(flow.all_posted(), "{what}: not everything was posted");
            }
            match state {
                QpState::Err => {
                    assert!(end.standing.fatal, "{what}: nobody was told");
                    let receiver = self.way_to(i).map(|(flow, r)| &self.flows[flow].receivers[r]);
                    assert!(receiver.is_none_or(|r| r.is_idle()), "{what}: receives were not flushed");
                }
                QpState::Sqe => assert!(end.standing.failed, "{what}: nobody was told"),
                QpState::Sqd => {
                    assert!(end.drains[0] == end.drains[1], "{what}: it drains, and says nothing")
                }
                _ => assert!(!end.standing.fatal, "{what}: it should have failed"),
            }
        }
        if self.law.is_strict() && self.spec.service == Service::Rc {
            for flow in &self.flows {
                let due = flow.ops.iter().filter(|op| op.opcode.consumes_receive()).count();
                let came = flow.receivers[0].messages_of_life();
                assert!(came == due, "{}: {came} of {due} messages came", flow.way);
            }
        }
    }
}

/// Only the state.
pub fn state(state: QpState) -> QpAttr {
    QpAttr { state: Some(state), ..QpAttr::default() }
}
