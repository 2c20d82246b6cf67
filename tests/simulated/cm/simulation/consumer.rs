//! Applications: connect, answer at once or late or otherwise, disconnect, and destroy at any moment.

use std::collections::BTreeMap;

use roxie::cm::{
    AcceptOptions, CmError, ConnectRequest, ConnectionState, Event, LocalQp, Manager, ResolveAnswer,
    ResolveRequest, Route,
};
use roxie::time::Nanos;
use roxie::verbs::{Mtu, Psn, Qpn};
use roxie::wire::ServiceId;
use roxie::wire::cm::{Ari, CommId, Kind, PrivateData, Rej, RejReason, SidrStatus};
use roxie::wire::service_id::RDMA_UDP_QKEY;

use super::truth::{Acceptance, Truth};
use super::world::{Climate, DATAGRAMS, Random, address};

const SOON: Nanos = Nanos::from_millis(50);
const LATE: Nanos = Nanos::from_millis(20_000);

/// A planned action of a consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Task {
    Connect {
        to: usize,
        service: ServiceId,
    },
    Resolve {
        to: usize,
    },
    Answer(CommId),
    Ready(CommId),
    /// Data has arrived, if the peer is ready.
    Data(CommId),
    Disconnect(CommId),
    Destroy(CommId),
    Crash,
    CloseAll,
}

/// A consumer's view of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Asked,
    Offered,
    Accepted,
    Replied,
    Connected,
    EndRequested,
    Ending,
    Ended,
    Resolving,
    ToResolve,
}

#[derive(Clone, Copy, Debug)]
struct Connection {
    number: u64,
    phase: Phase,
}

/// An application.
#[derive(Debug)]
pub struct Consumer {
    host: usize,
    connections: BTreeMap<CommId, Connection>,
    plans: Vec<(Nanos, Task)>,
    /// In each life, QPs are numbered from the same number on, which makes connections stale.
    next_qpn: u32,
    closed: bool,
    by_data: u64,
}

fn number_of(private_data: &PrivateData) -> u64 {
    u64::from_be_bytes(*private_data.first_chunk().expect("room for a number"))
}

fn private(kind: Kind, number: u64) -> PrivateData {
    PrivateData::new(kind, &number.to_be_bytes()).expect("room for a number")
}

impl Consumer {
    pub fn new(host: usize) -> Consumer {
        Consumer {
            host,
            connections: BTreeMap::new(),
            plans: Vec::new(),
            next_qpn: 0x100,
            closed: false,
            by_data: 0,
        }
    }

    pub fn reborn(&self) -> Consumer {
        Consumer { closed: self.closed, ..Consumer::new(self.host) }
    }

    pub fn take_plans(&mut self) -> Vec<(Nanos, Task)> {
        std::mem::take(&mut self.plans)
    }

    pub fn take_by_data(&mut self) -> u64 {
        std::mem::take(&mut self.by_data)
    }

    pub fn has_nothing(&self) {
        assert!(
            self.connections.is_empty(),
            "host {} was never told of the end of {:?}",
            self.host,
            self.connections
        );
    }

    fn qp(&mut self, random: &mut Random) -> LocalQp {
        self.next_qpn += 1;
        LocalQp {
            qpn: Qpn::new(self.next_qpn),
            psn: Psn::new(random.below(1 << 24) as u32),
            srq: random.chance(50),
        }
    }

    fn plan(&mut self, random: &mut Random, climate: &Climate, task: Task) {
        let longest = if random.chance(climate.slow) { LATE } else { SOON };
        let delay = random.time(longest);
        self.plans.push((delay, task));
    }

    pub fn perform(
        &mut self,
        now: Nanos,
        task: Task,
        manager: &mut Manager,
        random: &mut Random,
        climate: &Climate,
        truth: &mut Truth,
    ) {
        match task {
            Task::Connect { to, service } => self.connect(now, to, service, manager, random, climate, truth),
            Task::Resolve { to } => self.resolve(now, to, manager, climate, truth),
            Task::Answer(id) => self.answer(now, id, manager, random, climate, truth),
            Task::Ready(id) => self.ready(id, manager, random, climate, truth),
            Task::Data(id) => self.data(id, manager, truth),
            Task::Disconnect(id) => self.disconnect(now, id, manager),
            Task::Destroy(id) => self.destroy(now, id, manager, truth),
            Task::CloseAll => {
                self.closed = true;
                for id in self.connections.keys().copied().collect::<Vec<_>>() {
                    self.destroy(now, id, manager, truth);
                }
            }
            Task::Crash => unreachable!("the world does that"),
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn connect(
        &mut self,
        now: Nanos,
        to: usize,
        service: ServiceId,
        manager: &mut Manager,
        random: &mut Random,
        climate: &Climate,
        truth: &mut Truth,
    ) {
        let qp = self.qp(random);
        let number = truth.attempt(self.host, to, service, qp);
        let route = Route::new(address(self.host), address(to));
        let request = ConnectRequest {
            responder_resources: random.below(17) as u8,
            initiator_depth: random.below(17) as u8,
            rnr_retry_count: random.below(8) as u8,
            response_timeout: climate.response_timeout,
            max_cm_retries: climate.retries,
            private_data: private(Kind::Req, number),
            ..ConnectRequest::new(service, route, qp, Mtu::ALL[random.below(5) as usize])
        };
        match manager.connect(now, &request) {
            Ok(id) => {
                self.connections.insert(id, Connection { number, phase: Phase::Asked });
                self.perhaps_destroy(id, random, climate);
            }
            Err(CmError::Full { .. }) if climate.small_tables => truth.active_is_over(number),
            Err(error) => panic!("connect: {error}"),
        }
    }

    fn perhaps_destroy(&mut self, id: CommId, random: &mut Random, climate: &Climate) {
        if random.chance(climate.destroys) {
            let delay = random.time(Nanos::from_millis(10_000));
            self.plans.push((delay, Task::Destroy(id)));
        }
    }

    fn resolve(
        &mut self,
        now: Nanos,
        to: usize,
        manager: &mut Manager,
        climate: &Climate,
        truth: &mut Truth,
    ) {
        let number = truth.attempt(self.host, to, DATAGRAMS, LocalQp::default());
        let request = ResolveRequest {
            response_timeout: climate.response_timeout,
            max_cm_retries: climate.retries,
            private_data: private(Kind::SidrReq, number),
            ..ResolveRequest::new(DATAGRAMS, Route::new(address(self.host), address(to)))
        };
        match manager.resolve(now, &request) {
            Ok(id) => drop(self.connections.insert(id, Connection { number, phase: Phase::Resolving })),
            Err(CmError::Full { .. }) if climate.small_tables => {}
            Err(error) => panic!("resolve: {error}"),
        }
    }

    fn phase_is(&self, id: CommId, phase: Phase) -> Option<u64> {
        self.connections.get(&id).filter(|c| c.phase == phase).map(|c| c.number)
    }

    fn set(&mut self, id: CommId, phase: Phase) {
        self.connections.get_mut(&id).expect("known").phase = phase;
    }

    fn answer(
        &mut self,
        now: Nanos,
        id: CommId,
        manager: &mut Manager,
        random: &mut Random,
        climate: &Climate,
        truth: &mut Truth,
    ) {
        if let Some(number) = self.phase_is(id, Phase::ToResolve) {
            let answer = truth.resolution(number);
            let private_data = private(Kind::SidrRep, number);
            let answer =
                ResolveAnswer { qpn: answer, qkey: RDMA_UDP_QKEY, private_data, ..Default::default() };
            manager.answer_resolution(now, id, &answer).expect("a question that waits");
            self.connections.remove(&id);
            return;
        }
        let Some(number) = self.phase_is(id, Phase::Offered) else { return };
        if random.chance(climate.refuses) {
            let reason = [RejReason::CONSUMER, RejReason::NO_RESOURCES][random.below(2) as usize];
            manager
                .reject(now, id, reason, Ari::NONE, private(Kind::Rej, number))
                .expect("a request that waits");
            truth.passive_refused(number, reason);
            self.connections.remove(&id);
            return;
        }
        let qp = self.qp(random);
        let options = AcceptOptions {
            qp,
            responder_resources: random.below(17) as u8,
            initiator_depth: random.below(17) as u8,
            rnr_retry_count: random.below(8) as u8,
            flow_control: false,
            private_data: private(Kind::Rep, number),
        };
        manager.accept(now, id, &options).expect("a request that waits");
        let parameters = manager.parameters(id).expect("a connection");
        truth.accepted(number, Acceptance { qp, rnr_retry: options.rnr_retry_count, parameters });
        self.set(id, Phase::Accepted);
        if random.chance(20) {
            self.plans.push((random.time(LATE), Task::Data(id)));
        }
    }

    fn ready(
        &mut self,
        id: CommId,
        manager: &mut Manager,
        random: &mut Random,
        climate: &Climate,
        truth: &mut Truth,
    ) {
        let Some(number) = self.phase_is(id, Phase::Replied) else { return };
        truth.is_ready(number);
        manager.ready(id, private(Kind::Rtu, number)).expect("a reply that waits");
        self.connected(id, random, climate);
    }

    fn connected(&mut self, id: CommId, random: &mut Random, climate: &Climate) {
        self.set(id, Phase::Connected);
        if random.chance(60) {
            self.plans.push((random.time(LATE), Task::Disconnect(id)));
        }
        self.perhaps_destroy(id, random, climate);
    }

    fn data(&mut self, id: CommId, manager: &mut Manager, truth: &mut Truth) {
        let Some(number) = self.phase_is(id, Phase::Accepted) else { return };
        if truth.may_have_sent_data(number) {
            manager.established(id).expect("a reply that waits");
            self.by_data += 1;
        }
    }

    fn disconnect(&mut self, now: Nanos, id: CommId, manager: &mut Manager) {
        let agrees = self.phase_is(id, Phase::EndRequested).is_some();
        if !agrees && self.phase_is(id, Phase::Connected).is_none() {
            return;
        }
        match manager.disconnect(now, id, PrivateData::EMPTY) {
            Ok(()) => {}
            // The peer started a new connection, and the manager ends the old one by itself.
            Err(CmError::State { state: ConnectionState::DreqSent, .. }) if !agrees => {}
            Err(error) => panic!("disconnect: {error}"),
        }
        self.set(id, Phase::Ending);
    }

    fn destroy(&mut self, now: Nanos, id: CommId, manager: &mut Manager, truth: &mut Truth) {
        let Some(connection) = self.connections.remove(&id) else { return };
        match connection.phase {
            Phase::Asked | Phase::Replied => truth.active_withdrew(connection.number),
            Phase::Offered | Phase::Accepted => truth.passive_refused(connection.number, RejReason::CONSUMER),
            _ => {}
        }
        manager.destroy(now, id);
    }

    pub fn handle(
        &mut self,
        event: Event,
        manager: &mut Manager,
        random: &mut Random,
        climate: &Climate,
        truth: &mut Truth,
    ) {
        let id = event.id();
        match event {
            Event::Request { request, .. } => {
                let number = number_of(&request.private_data);
                truth.was_offered(number, self.host, request.local_qpn);
                perhaps_take(id, manager, random);
                perhaps_delay(id, manager, random, climate);
                self.begin(id, number, Phase::Offered, random, climate);
            }
            Event::ResolutionRequest { request, .. } => {
                perhaps_take(id, manager, random);
                self.begin(id, number_of(&request.private_data), Phase::ToResolve, random, climate);
            }
            // If the peer still asks, it repeats its request.
            Event::Withdrawn { .. } => drop(self.end(id, &[Phase::Offered, Phase::ToResolve])),
            Event::Reply { reply, .. } => {
                let number = self.expect(id, &[Phase::Asked]);
                assert_eq!(number_of(&reply.private_data), number);
                truth.replied(number, &manager.parameters(id).expect("a connection"));
                self.set(id, Phase::Replied);
                perhaps_delay(id, manager, random, climate);
                let task =
                    if random.chance(climate.refuses / 3) { Task::Destroy(id) } else { Task::Ready(id) };
                self.plan(random, climate, task);
            }
            Event::Established { .. } => {
                let number = self.expect(id, &[Phase::Accepted]);
                truth.passive_established(number);
                self.connected(id, random, climate);
            }
            Event::Rejected { reject, .. } => self.rejected(id, &reject, truth),
            Event::Unreachable { unanswered, .. } => self.unreachable(id, unanswered, truth),
            Event::DisconnectRequested { .. } => {
                let number = self.expect(id, &[Phase::Accepted, Phase::Connected, Phase::Replied]);
                truth.end_requested(number, self.connections[&id].phase == Phase::Accepted);
                self.set(id, Phase::EndRequested);
                self.plan(random, climate, Task::Disconnect(id));
            }
            Event::Disconnected { .. } => {
                // The consumer's own call may end the connection at once, and a refusal from a peer that lost it at any
                // time.
                self.expect(id, &[Phase::Connected, Phase::EndRequested, Phase::Ending]);
                self.set(id, Phase::Ended);
            }
            Event::TimeWaitExit { .. } => drop(self.end(id, &[Phase::Ended])),
            Event::Resolved { reply, .. } => {
                let c = self.end(id, &[Phase::Resolving]);
                if reply.status == SidrStatus::VALID {
                    truth.resolved(c.number, reply.qpn, reply.qkey);
                }
            }
        }
    }

    fn rejected(&mut self, id: CommId, reject: &Rej, truth: &mut Truth) {
        let c = self.end(id, &[Phase::Asked, Phase::Replied, Phase::Offered, Phase::Accepted]);
        match c.phase {
            Phase::Asked | Phase::Replied => truth.active_rejected(c.number, reject),
            _ => truth.passive_rejected(c.number, reject),
        }
    }

    fn unreachable(&mut self, id: CommId, unanswered: Kind, truth: &mut Truth) {
        let (phase, active) = match unanswered {
            Kind::Req => (Phase::Asked, true),
            Kind::Rep => (Phase::Accepted, false),
            _ => (Phase::Resolving, true),
        };
        let c = self.end(id, &[phase]);
        truth.unreachable(c.number, active, unanswered != Kind::SidrReq);
    }

    /// Records an attempt that a peer has begun.
    fn begin(&mut self, id: CommId, number: u64, phase: Phase, random: &mut Random, climate: &Climate) {
        let before = self.connections.insert(id, Connection { number, phase });
        assert!(before.is_none(), "{id} names two connections");
        if self.closed {
            self.plans.push((SOON, Task::Destroy(id)));
        } else {
            self.plan(random, climate, Task::Answer(id));
            self.perhaps_destroy(id, random, climate);
        }
    }

    fn expect(&self, id: CommId, phases: &[Phase]) -> u64 {
        let c = self.connections.get(&id).unwrap_or_else(|| panic!("an event of {id}, which is over"));
        assert!(phases.contains(&c.phase), "{id} is {:?}, an event expects {phases:?}", c.phase);
        c.number
    }

    fn end(&mut self, id: CommId, phases: &[Phase]) -> Connection {
        self.expect(id, phases);
        self.connections.remove(&id).expect("just seen")
    }
}

/// Takes a request out of the backlog, as most applications do soon.
fn perhaps_take(id: CommId, manager: &mut Manager, random: &mut Random) {
    if random.chance(70) {
        manager.take(id);
    }
}

/// Announces by MRA that the answer takes longer. The peer may have withdrawn meanwhile.
fn perhaps_delay(id: CommId, manager: &mut Manager, random: &mut Random, climate: &Climate) {
    if random.chance(climate.slow / 4) {
        let _ = manager.delay(id, 20, PrivateData::EMPTY);
    }
}
