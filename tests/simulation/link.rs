//! A running channel: its ends, and one turn of their applications.
//!
//! [`crate::life`] connects and destroys channels.

use std::collections::VecDeque;
use std::sync::Arc;

use nix::sys::eventfd::EventFd;
use roxie::shared::Armed;
use roxie::time::Nanos;
use roxie::verbs::{AsyncEvent, EventKind, Gid, Psn, QpAttr, QpIndex, QpState, Wc, WcStatus};
use roxie::wire::Qpn;
use roxie_sim::HostQp;
use roxie_sim::fabric::Hosts;

use crate::flow::{Flow, LOCAL, Standing};
use crate::law::Law;
use crate::receiver::{Checks, RECEIVE};
use crate::script::{Channel, Script, Service, SrqPlace, Way};
use crate::srq::Shared;
use crate::witness::Witnesses;

/// One end of a channel.
#[derive(Debug)]
pub struct End {
    pub host: usize,
    pub qp: Option<HostQp>,
    /// The end is connected, and its application uses it.
    pub usable: bool,
    pub state: Standing,
    /// Number of fatal events since it was connected.
    pub fatal_events: u32,
    /// Number of LAST_WQE_REACHED events since it was connected.
    pub last_receives: u32,
    /// How often SQ_DRAINED was requested, and how often it was raised, since it was connected.
    pub drains: [u32; 2],
    /// The completion queue has overflowed.
    pub overflowed: bool,
    /// Number of overflow events.
    pub overflow_events: u32,
    pub asleep_until: Nanos,
    /// Event channel of the completion queue, if its application waits for events.
    pub notify: Option<Arc<EventFd>>,
    /// An event was raised, and the application has not polled since.
    notified: bool,
    /// Delayed transitions, with their times.
    pub late: VecDeque<(Nanos, QpAttr)>,
}

impl End {
    fn new(host: usize) -> End {
        End {
            host,
            qp: None,
            usable: false,
            state: Standing::default(),
            fatal_events: 0,
            last_receives: 0,
            drains: [0; 2],
            overflowed: false,
            overflow_events: 0,
            asleep_until: Nanos::ZERO,
            notify: None,
            notified: false,
            late: VecDeque::new(),
        }
    }

    pub fn is(&self, host: usize, index: QpIndex) -> bool {
        self.host == host && self.qp.as_ref().is_some_and(|qp| qp.handle.index == index)
    }

    /// True if an event was raised that the application has not handled.
    fn has_event(&mut self) -> bool {
        self.notified |= self.notify.as_ref().is_some_and(|notify| notify.read().is_ok());
        self.notified
    }

    /// Arms the completion queue.
    pub fn arm(&self) {
        if let (Some(qp), Some(notify)) = (&self.qp, &self.notify)
            && qp.cq.arm(Armed::Next)
        {
            notify.write(1).expect("room");
        }
    }

    /// True if the end can send.
    pub fn is_ready(&self) -> bool {
        self.usable && self.late.is_empty()
    }

    pub fn can_be_reset(&self) -> bool {
        self.qp.is_some() && !self.overflowed
    }
}

/// A channel and its objects.
#[derive(Debug)]
pub struct Link {
    pub number: usize,
    pub seed: u64,
    pub spec: Channel,
    pub ipv6: bool,
    pub law: Law,
    pub ends: Vec<End>,
    /// The direction from end a, and the direction back if the service has one.
    pub flows: Vec<Flow>,
    pub life: u32,
    /// First PSNs of the ends in this life.
    pub first_psns: [Psn; 2],
    pub group: Option<Gid>,
    /// QPNs that end a has had.
    pub senders: Vec<Qpn>,
    pub witnesses: Witnesses,
}

impl Link {
    /// `srqs`: the shared receive queues of the script.
    pub fn new(
        script: &Script,
        number: usize,
        hosts: &mut Hosts,
        srqs: &[Shared],
        witnesses: &Witnesses,
    ) -> Link {
        let spec = &script.channels[number];
        let there = Way { channel: number, back: false };
        let mut flows = vec![Flow::new(script, there, hosts, spec.ends[0], &spec.ends[1..], srqs)];
        if !spec.service.is_one_way() {
            let back = Way { channel: number, back: true };
            flows.push(Flow::new(script, back, hosts, spec.ends[1], &spec.ends[..1], srqs));
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
            first_psns: spec.psns.map(Psn::new),
            senders: Vec::new(),
            witnesses: witnesses.clone(),
            group: (spec.service == Service::Group).then(|| Gid::from(group)),
        }
    }

    /// Index of the flow that `end` sends, if any.
    pub fn way_from(&self, end: usize) -> Option<usize> {
        (end < self.flows.len()).then_some(end)
    }

    /// Index of the flow that arrives at `end`, and of the receiver.
    pub fn way_to(&self, end: usize) -> Option<(usize, usize)> {
        match (self.spec.service.is_one_way(), end) {
            (true, 0) => None,
            (true, end) => Some((0, end - 1)),
            (false, end) => Some((1 - end, 0)),
        }
    }

    /// The way by which events of `end` are judged.
    fn way_of_events(&self, end: usize) -> Way {
        let index = self.way_to(end).map_or(0, |(flow, _)| flow);
        self.flows[index].way
    }

    /// The shared receive queues of `end`.
    pub fn srqs_of(&self, end: usize) -> &[Shared] {
        self.way_to(end).map_or(&[], |(flow, receiver)| &self.flows[flow].receivers[receiver].srqs)
    }

    /// Ends with a QP that uses this shared receive queue.
    pub fn sharing(&self, place: SrqPlace) -> impl Iterator<Item = &End> {
        let takes = move |end: usize| self.srqs_of(end).iter().any(|srq| srq.borrow().place == place);
        self.ends.iter().enumerate().filter(move |(i, end)| end.qp.is_some() && takes(*i)).map(|(_, end)| end)
    }

    pub fn uses(&self, host: usize) -> bool {
        self.ends.iter().any(|end| end.host == host)
    }

    /// Runs the applications' posting. Returns true if one deferred its receives.
    pub fn post(&mut self, now: Nanos, hosts: &Hosts) -> bool {
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

    /// Runs the applications' polling; with `last`, also of applications that sleep.
    pub fn poll(&mut self, now: Nanos, hosts: &Hosts, last: bool) {
        for end in 0..self.ends.len() {
            let place = &mut self.ends[end];
            if place.qp.is_none() || (place.asleep_until > now && !last) {
                continue;
            }
            if place.notify.is_none() || last {
                self.poll_end(hosts, end);
            } else if place.has_event() {
                place.notified = false;
                self.poll_end(hosts, end);
                self.ends[end].arm();
                self.poll_end(hosts, end);
            }
        }
    }

    /// True if an event was raised that its application has not handled.
    pub fn has_event(&mut self) -> bool {
        self.ends.iter_mut().fold(false, |told, end| told | (end.qp.is_some() && end.has_event()))
    }

    /// Checks after the run that no application waits for a lost event.
    pub fn check_notified(&self) {
        for (i, end) in self.ends.iter().enumerate().filter(|(_, end)| end.notify.is_some() && end.usable) {
            let waits = end.qp.as_ref().is_some_and(|qp| qp.cq.has_completions());
            assert!(!waits, "q{} end {i}: completions wait, and no event came", self.number + 1);
        }
    }

    /// Polls the completions of an end.
    pub fn poll_end(&mut self, hosts: &Hosts, end: usize) {
        let host = &hosts[self.ends[end].host];
        let qpn = |ends: &[End]| ends[end].qp.as_ref().map(|qp| qp.handle.qpn);
        while let Some(wc) = self.ends[end].qp.as_ref().and_then(|qp| host.poll_cq(qp)) {
            assert!(Some(wc.qpn) == qpn(&self.ends), "q{}: {wc:?} is of another QP", self.number + 1);
            if wc.wr_id & RECEIVE == 0 {
                self.take_sent(end, &wc);
            } else {
                self.take_received(end, &wc, 0);
            }
        }
        if self.spec.service != Service::Xrc {
            return;
        }
        let Some(qpn) = qpn(&self.ends) else { return };
        for (at, srq) in self.srqs_of(end).to_vec().iter().enumerate() {
            loop {
                // Release the borrow before the receive is taken.
                let next = srq.borrow_mut().poll_for(qpn);
                let Some(wc) = next else { break };
                self.take_received(end, &wc, at);
            }
        }
    }

    fn take_sent(&mut self, end: usize, wc: &Wc) {
        let Link { ends, flows, law, .. } = self;
        let place = &mut ends[end];
        let after = flows[end].sent(wc, place.state, law);
        if wc.wr_id & LOCAL != 0 {
            // A work request for the grant of the other direction.
            flows[1 - end].granted_or_taken(wc);
        }
        let failed = after.failed && !place.state.failed;
        if failed && wc.status == WcStatus::RnrRetryExc {
            let waits = self.witnesses.waits(place.host, wc.qpn);
            let due = self.spec.rnr_retries.into();
            assert!(waits >= due, "q{} end {end}: {wc:?} after {waits} waits of {due}", self.number + 1);
        }
        place.state = after;
        // On other services, only the send queue fails.
        if failed && self.spec.service.is_reliable() {
            place.state.fatal = true;
            self.desert(end);
        }
    }

    /// Handles a completed receive. `queue`: index of the shared receive queue, if it has several.
    fn take_received(&mut self, end: usize, wc: &Wc, queue: usize) {
        let (flow, receiver) = self.way_to(end).expect("receives are posted where something arrives");
        if wc.status != WcStatus::Success {
            let failed = self.ends[end].state.fatal;
            self.flows[flow].receivers[receiver].failed(wc, queue, failed, &self.law);
            self.ends[end].state.fatal = true;
            self.desert(end);
            return;
        }
        self.take_message(flow, receiver, wc, queue);
    }

    fn take_message(&mut self, flow: usize, receiver: usize, wc: &Wc, queue: usize) {
        let ipv6 = self.ipv6;
        let header = |header: &[u8], what: &str| {
            // An IPv4 header follows 20 bytes of zeros.
            let version = if ipv6 { header[0] >> 4 == 6 } else { header[20] >> 4 == 4 };
            assert!(version && (ipv6 || header[..20] == [0; 20]), "{what}: {header:x?}");
        };
        let checks = Checks { senders: &self.senders, header: &header };
        self.flows[flow].received(receiver, wc, queue, &self.law, &checks);
    }

    /// Handles an event of a QP or completion queue. Returns false if it is not about this channel.
    pub fn take_event(&mut self, host: usize, event: AsyncEvent) -> bool {
        let number = self.ends.iter().position(|end| match event {
            AsyncEvent::Qp(index, _) => end.is(host, index),
            AsyncEvent::Cq(cq, _) => end.host == host && end.qp.as_ref().is_some_and(|qp| qp.cq_index == cq),
            _ => false,
        });
        let Some(at) = number else { return false };
        let (AsyncEvent::Qp(_, kind) | AsyncEvent::Cq(_, kind)) = event else { return false };
        let what = format!("q{} end {at}: {event:?}", self.number + 1);
        assert!(self.law.may_report(self.way_of_events(at), kind), "{what}: nothing explains it");
        let shares = !self.srqs_of(at).is_empty();
        let end = &mut self.ends[at];
        match kind {
            EventKind::SqDrained => {
                end.drains[1] += 1;
                assert!(end.drains[1] <= end.drains[0], "{what}: not requested");
                if let Some(qp) = &end.qp {
                    self.witnesses.is_drained(host, qp.handle.qpn);
                }
            }
            EventKind::CommunicationEstablished => {}
            EventKind::LastWqeReached => {
                end.last_receives += 1;
                assert!(shares && end.last_receives == 1, "{what}: shares: {shares}, or twice");
            }
            EventKind::CqError => {
                end.overflowed = true;
                end.overflow_events += 1;
                assert!(end.overflow_events == 1, "{what}: twice");
                end.state.fatal = true;
                self.desert(at);
            }
            _ => {
                end.fatal_events += 1;
                end.state.fatal = true;
                assert!(end.fatal_events == 1, "{what}: twice");
                self.desert(at);
            }
        }
        true
    }

    /// Notes that the application is about to move an end to SQD, or out of it.
    pub fn note_draining(&self, end: usize, draining: bool) {
        if let Some(qp) = &self.ends[end].qp {
            self.witnesses.drains(self.ends[end].host, qp.handle.qpn, draining);
        }
    }

    /// Notes that the application moved an end to the error state.
    pub fn note_error(&mut self, end: usize) {
        self.ends[end].state.fatal = true;
        self.desert(end);
    }

    /// Time at which the next sleeping application wakes.
    pub fn next_wake(&self, now: Nanos) -> Nanos {
        let asleep = self.ends.iter().map(|end| end.asleep_until).filter(|until| *until > now);
        asleep.min().unwrap_or(Nanos::MAX)
    }

    /// Notes that the application moved an end to RTS. What a failed send queue still has is flushed first (IBTA
    /// 10.3.1.6).
    pub fn note_resumed(&mut self, at: usize) {
        let outstanding = self.way_from(at).map_or(0, |flow| self.flows[flow].outstanding());
        let end = &mut self.ends[at];
        if std::mem::take(&mut end.state.failed) {
            end.state.flushing = outstanding;
        }
        // A QP that leaves SQD before it is drained raises no event for that request.
        end.drains[0] = end.drains[1];
    }

    /// Checks that every message with a reported success has arrived. A completion queue that overflows loses
    /// completions of messages that were executed, and so may be acknowledged: by an ACK, or by the NAK for the next
    /// request.
    pub fn check_promises(&self) {
        let counts = |flow: &&Flow| !self.ends[usize::from(!flow.way.back)].overflowed;
        self.flows.iter().filter(counts).for_each(Flow::check_promises);
    }

    /// Checks the channel after the run. See [`crate::audit`].
    pub fn check_end(&self, hosts: &mut Hosts, now: Nanos) {
        self.check_promises();
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
                    assert!(end.state.fatal, "{what}: no event or completion reported it");
                    let receiver = self.way_to(i).map(|(flow, r)| &self.flows[flow].receivers[r]);
                    assert!(receiver.is_none_or(|r| r.is_idle()), "{what}: receives were not flushed");
                    let due = u32::from(!self.srqs_of(i).is_empty());
                    assert!(end.last_receives == due, "{what}: LAST_WQE_REACHED was not raised");
                }
                QpState::Sqe => assert!(end.state.failed, "{what}: no event or completion reported it"),
                QpState::Sqd => {
                    assert!(end.drains[0] == end.drains[1], "{what}: no SQ_DRAINED event")
                }
                _ => assert!(!end.state.fatal, "{what}: it should have failed"),
            }
        }
        if self.law.is_strict() && self.spec.service.is_reliable() {
            for flow in &self.flows {
                let due = flow.ops.iter().filter(|op| op.opcode.consumes_receive()).count();
                let received = flow.receivers[0].messages_of_life();
                assert!(received == due, "{}: {received} of {due} messages came", flow.way);
            }
        }
    }
}
