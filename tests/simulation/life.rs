//! The life of a channel: creating, connecting, resetting and destroying its objects.

use std::sync::Arc;

use nix::sys::eventfd::{EfdFlags, EventFd};
use roxie::nic::{Answer, Command, ControlError, ReceiveSource};
use roxie::shared::SendRing;
use roxie::time::Nanos;
use roxie::verbs::{Access, AddressVector, AsyncEvent, CqIndex, Mtu, Psn, QpAttr, QpInit, QpState, QpType};
use roxie::wire::Qpn;
use roxie::wire::net::multicast_mac;
use roxie_sim::fabric::Hosts;
use roxie_sim::{Host, HostQp};

use crate::congested::Ends;
use crate::flow::{Flow, Patch, QKEY, Standing, caps};
use crate::link::Link;
use crate::script::{Held, Service, Way};
use crate::stations::Stations;
use crate::weather::{Records, hash};
use crate::witness::Known;

impl Link {
    /// First PSNs of this life: those of the script, and in later lives far from all earlier ones.
    fn psns(&self) -> [Psn; 2] {
        if self.life == 0 {
            return self.spec.psns.map(Psn::new);
        }
        let remote = u32::try_from(hash(&[self.seed, self.number as u64, 7]) % 0x4_0000).expect("below 2^18");
        let jump = self.life * 0x14_0000 + remote;
        // Ahead of the PSNs of old packets, or behind them.
        let back = hash(&[self.seed, self.number as u64, 8]).is_multiple_of(2);
        self.spec.psns.map(|psn| if back { Psn::new(psn) - jump } else { Psn::new(psn) + jump })
    }

    /// Ends the life of all ends and begins another. `anew`: with new QPs.
    pub fn connect(
        &mut self,
        now: Nanos,
        hosts: &mut Hosts,
        stations: &Stations,
        records: &Records,
        anew: bool,
    ) {
        self.poll(now, hosts, true);
        self.check_promises();
        for end in 0..self.ends.len() {
            for srq in self.srqs_of(end) {
                srq.borrow_mut().ensure(&mut hosts[self.ends[end].host]);
            }
            if anew || !self.ends[end].can_be_reset() {
                self.destroy(now, hosts, end);
                self.create(hosts, end);
            } else {
                self.poll_end(hosts, end);
                self.set(now, hosts, end, &state(QpState::Reset));
                self.check_silent(hosts, end);
                self.note_leak(end);
            }
        }
        // Only after all ends: ending one sets `peer_gone` of the others.
        for end in &mut self.ends {
            (end.state, end.usable) = (Standing::default(), false);
            (end.fatal_events, end.last_receives, end.drains) = (0, 0, [0; 2]);
        }
        self.release_grants(now, hosts);
        self.reopen(now, hosts);
        self.flows.iter_mut().for_each(Flow::begin_life);
        let smallest = self.ends.iter().map(|end| stations.largest_mtu(end.host)).min().flatten();
        let Some(mtu) = smallest.map(|mtu| mtu.min(self.spec.mtu)) else { return };
        let psns = self.psns();
        self.first_psns = psns;
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

    fn release_grants(&mut self, now: Nanos, hosts: &mut Hosts) {
        for flow in &mut self.flows {
            let receiver = &self.ends[usize::from(!flow.way.back)];
            flow.release_grants(now, &mut hosts[receiver.host], false);
        }
    }

    /// Destroys all objects of the channel.
    pub fn take_down(&mut self, now: Nanos, hosts: &mut Hosts) {
        for end in 0..self.ends.len() {
            self.destroy(now, hosts, end);
        }
        self.release_grants(now, hosts);
        self.for_each_patch(|patch, host| {
            if std::mem::take(&mut patch.open) {
                let command = Command::DeregisterMemory(patch.region.index);
                hosts[host].call(now, command).expect("the region exists");
            }
        });
        self.destroy_handles(now, hosts);
    }

    /// Calls `f` for each region of the channel, with its host.
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

    /// Registers deregistered regions again, and destroys address handles.
    fn reopen(&mut self, now: Nanos, hosts: &mut Hosts) {
        self.for_each_patch(|patch, host| patch.reopen(&mut hosts[host]));
        self.destroy_handles(now, hosts);
    }

    fn destroy_handles(&mut self, now: Nanos, hosts: &mut Hosts) {
        for flow in &mut self.flows {
            if let Some(handle) = flow.handle.take() {
                let sender = usize::from(flow.way.back);
                // The script or a restart may have destroyed the handle already.
                let _ = hosts[self.ends[sender].host].call(now, Command::DestroyAh(handle));
            }
        }
    }

    fn create(&mut self, hosts: &mut Hosts, end: usize) {
        let qp_type = match self.spec.service {
            Service::Rc => QpType::Rc,
            Service::Uc => QpType::Uc,
            Service::Ud | Service::Group => QpType::Ud,
            Service::Xrc => QpType::XrcSend,
        };
        let init = QpInit { qp_type, caps: caps(&self.spec), sq_sig_all: self.spec.sig_all };
        // Receives of an XRC target complete to the named SRQ's queue, so its own queue needs no events.
        let target = self.spec.service == Service::Xrc && !self.srqs_of(end).is_empty();
        let events = self.spec.events.filter(|_| !target);
        let notify = events.map(|_| {
            let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
            Arc::new(EventFd::from_flags(flags).expect("a counter of events"))
        });
        let host = &mut hosts[self.ends[end].host];
        let cq = host.create_cq(self.spec.cq, notify.clone());
        if let Some(held) = events {
            moderate(host, cq.0, held).expect("the queue exists");
        }
        let srq = self.srqs_of(end).first().map(|srq| srq.borrow());
        let qp = match (self.spec.service, srq) {
            (Service::Xrc, None) => {
                host.queue_pair().init(init).receives(ReceiveSource::None).cq(cq).create()
            }
            (Service::Xrc, Some(srq)) => {
                let domain = srq.domain().expect("open while a queue is there");
                let (handle, (cq_index, cq)) = (host.create_xrc_target(domain), cq);
                // A target sends by no work request.
                let sends = SendRing::new(1, 0, 0).expect("memory");
                HostQp { handle, cq, cq_index, sends, receives: None }
            }
            (_, None) => host.queue_pair().init(init).cq(cq).create(),
            (_, Some(srq)) => {
                let shared = ReceiveSource::Shared(srq.index().expect("made before the QP"));
                host.queue_pair().init(init).receives(shared).cq(cq).create()
            }
        };
        let end = &mut self.ends[end];
        end.qp = Some(qp);
        end.notify = notify;
        end.arm();
        (end.overflowed, end.overflow_events) = (false, 0);
    }

    /// Destroys the QP and the completion queue of an end.
    pub fn destroy(&mut self, now: Nanos, hosts: &mut Hosts, end: usize) {
        let host = self.ends[end].host;
        // Poll completions from before the destruction.
        self.poll_end(hosts, end);
        if let Some(qp) = &self.ends[end].qp {
            let index = qp.handle.index;
            hosts[host].call(now, Command::DestroyQp(index)).expect("the QP exists");
            hosts[host].take_back_events(|event| matches!(event, AsyncEvent::Qp(of, _) if of == index));
        }
        self.check_silent(hosts, end);
        if let Some(qp) = self.ends[end].qp.take() {
            let index = qp.cq_index;
            hosts[host].call(now, Command::DestroyCq(index)).expect("a completion queue without users");
            hosts[host].take_back_events(|event| matches!(event, AsyncEvent::Cq(of, _) if of == index));
        }
        self.abandon(end);
    }

    /// Checks that a destroyed or reset QP has no more completions.
    fn check_silent(&self, hosts: &Hosts, end: usize) {
        let Some(qp) = &self.ends[end].qp else { return };
        let shared = self.srqs_of(end).iter().find_map(|srq| srq.borrow_mut().poll_for(qp.handle.qpn));
        let late = hosts[self.ends[end].host].poll_cq(qp).or(shared);
        assert!(late.is_none(), "q{} end {end}: {late:?} comes after its end", self.number + 1);
    }

    /// Notes that an ending QP may have kept a shared receive.
    fn note_leak(&self, end: usize) {
        self.srqs_of(end).iter().for_each(|srq| srq.borrow_mut().note_leak());
    }

    /// Abandons the outstanding requests and receives of an end, and marks its peers as alone.
    pub fn abandon(&mut self, end: usize) {
        self.note_leak(end);
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

    /// Marks the other ends' peer as gone, which explains their failures.
    pub fn desert(&mut self, end: usize) {
        for (i, other) in self.ends.iter_mut().enumerate() {
            other.state.peer_failed |= i != end;
        }
    }

    /// Drops the objects of an end after its NIC was restarted.
    pub fn forget(&mut self, now: Nanos, hosts: &mut Hosts, host: usize) {
        self.poll(now, hosts, true);
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

    fn set(&mut self, now: Nanos, hosts: &mut Hosts, end: usize, attr: &QpAttr) {
        let end = &self.ends[end];
        let qp = end.qp.as_ref().expect("an end with a QP");
        hosts[end.host].modify(now, qp, attr).expect("a legal transition");
    }

    /// Modifies the QP of an end, if it is in one of these states. Returns true if it was modified.
    pub fn modify(
        &mut self,
        now: Nanos,
        hosts: &mut Hosts,
        end: usize,
        from: &[QpState],
        attr: &QpAttr,
    ) -> bool {
        let place = &self.ends[end];
        let Some(qp) = &place.qp else { return false };
        let host = &mut hosts[place.host];
        // The QP may fail in the pass that executes the command.
        from.contains(&host.query(now, qp).state) && host.modify(now, qp, attr).is_ok()
    }

    fn bring_up(
        &mut self,
        now: Nanos,
        hosts: &mut Hosts,
        stations: &Stations,
        end: usize,
        mtu: Mtu,
        psns: [Psn; 2],
    ) {
        let other = if end == 0 { 1 } else { 0 };
        let peer = self.ends[other].qp.as_ref().map_or(Qpn::new(0), |qp| qp.handle.qpn);
        if self.spec.service.is_reliable() {
            let qpn = self.ends[end].qp.as_ref().expect("an end with a QP").handle.qpn;
            let name = format!("q{} end {end}", self.number + 1);
            let (mtu, rnr_timer, selective) = (mtu.bytes(), self.spec.rnr_timer, self.spec.selective);
            self.witnesses.learn(self.ends[end].host, Known { qpn, peer, mtu, rnr_timer, selective, name });
        }
        let mut path = stations.path(self.ends[end].host, self.ends[other].host, self.ipv6);
        path.sl = self.spec.sl;
        if !self.spec.service.is_datagram() {
            let qpn = self.ends[end].qp.as_ref().expect("an end with a QP").handle.qpn;
            let name = format!("q{} end {end}", self.number + 1);
            let ends = Ends { own: path.sgid, peer: path.dgid, peer_qpn: peer, name };
            self.witnesses.congested(|congested| congested.learn(now, self.ends[end].host, qpn, ends));
        }
        let own = psns[usize::from(end > 0)];
        let theirs = psns[usize::from(end == 0)];
        let [init, rtr, rts] = self.attributes(end, path, mtu, peer, [own, theirs]);
        self.set(now, hosts, end, &init);
        // Initiator and target alternate in being slow, so that responses or requests meet an unready QP.
        let a_is_slow = self.spec.service == Service::Xrc && !self.life.is_multiple_of(2);
        let slow = if (end == 0) == a_is_slow { self.spec.slow } else { Nanos::ZERO };
        self.ends[end].late = [(now + Nanos(slow.0 / 2), rtr), (now + slow, rts)].into();
        self.ends[end].usable = true;
        self.set_late(now, hosts);
    }

    /// Applies the delayed transitions that are due.
    pub fn set_late(&mut self, now: Nanos, hosts: &mut Hosts) {
        for end in 0..self.ends.len() {
            while let Some((at, attr)) = self.ends[end].late.front().copied()
                && at <= now
            {
                self.ends[end].late.pop_front();
                // A failed end keeps its state.
                let before = if attr.state == Some(QpState::Rtr) { QpState::Init } else { QpState::Rtr };
                if self.modify(now, hosts, end, &[before], &attr) {
                    continue;
                }
                // The path MTU no longer fits the link: the transition is refused.
                if self.modify(now, hosts, end, &[before], &QpAttr::default()) {
                    self.abandon(end);
                }
            }
        }
    }

    /// Time of the next delayed transition.
    pub fn next_late(&self) -> Nanos {
        let late = self.ends.iter().filter_map(|end| end.late.front());
        late.map(|(at, _)| *at).min().unwrap_or(Nanos::MAX)
    }

    /// Attributes for INIT, RTR and RTS.
    fn attributes(
        &self,
        end: usize,
        path: AddressVector,
        mtu: Mtu,
        peer: Qpn,
        [own, theirs]: [Psn; 2],
    ) -> [QpAttr; 3] {
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
        let (requests, answers) = (self.way_from(end).is_some(), self.way_to(end).is_some());
        let rtr = QpAttr {
            max_dest_rd_atomic: answers.then_some(spec.rd_atomic),
            selective_repeat: spec.selective.then_some(true),
            min_rnr_timer: answers.then_some(spec.rnr_timer),
            ..rtr
        };
        let rts = QpAttr {
            timeout: Some(spec.timeout),
            retry_cnt: requests.then_some(spec.retries),
            rnr_retry: requests.then_some(spec.rnr_retries),
            max_rd_atomic: requests.then_some(spec.rd_atomic),
            ..rts
        };
        [init, rtr, rts]
    }

    /// Creates the address handles of datagram senders, and attaches receivers to the group.
    fn address(&mut self, now: Nanos, hosts: &mut Hosts, stations: &Stations) {
        for end in 0..self.flows.len() {
            let (from, to) = (&self.ends[end], &self.ends[1 - end.min(1)]);
            let mut path = stations.path(from.host, to.host, self.ipv6);
            path.sl = self.spec.sl;
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
}

/// Sets the moderation of a completion queue.
pub fn moderate(host: &mut Host, cq: CqIndex, held: Held) -> Result<Answer, ControlError> {
    let Held { count, period } = held;
    host.call_now(Command::ModerateCq { cq, count, period })
}

/// Attributes with the state alone.
pub fn state(state: QpState) -> QpAttr {
    QpAttr { state: Some(state), ..QpAttr::default() }
}
