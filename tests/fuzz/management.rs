//! Messages and calls into a connection manager in any state.

use std::net::{IpAddr, Ipv4Addr};

use roxie::cm::{
    AcceptOptions, Arrival, Config, ConnectRequest, Event, ListenOn, LocalQp, Manager, ResolveAnswer,
    ResolveRequest, Route,
};
use roxie::limits::CmLimits;
use roxie::time::Nanos;
use roxie::verbs::{Mtu, Psn, Qpn};
use roxie::wire::cm::{
    Ari, CmMessage, CommId, Drep, Dreq, Kind, Lap, Mra, PrivateData, Rej, RejReason, Rep, Req, Rtu, SidrRep,
    SidrReq, Stage, Transport,
};
use roxie::wire::mad::MAD_LEN;
use roxie::wire::{PortSpace, ServiceId};

use crate::input::Input;

const LIMITS: CmLimits = CmLimits {
    connections: 12,
    listeners: 3,
    events: 16,
    transmits: 32,
    early: 4,
    timeout_code: 20,
    granted_code: 18,
    granted_retries: 5,
    half_open: 6,
};
/// Most events: one for each step of a connection's life, besides those of requests.
const MOST_EVENTS: usize = LIMITS.events + 8 * LIMITS.connections as usize;
/// Steps after everything is destroyed: each connection sends at most 16 times, and lingers.
const STEPS: u32 = 40 * LIMITS.connections;

fn address(number: u8) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, number % 4).into()
}

fn req(input: &mut Input<'_>, local_comm_id: CommId, service_id: ServiceId, local_qpn: Qpn) -> Req {
    let mut req = Req {
        local_comm_id,
        service_id,
        local_ca_guid: u64::from(input.u8() % 3),
        local_qpn,
        path_mtu: input.u8() % 8,
        local_cm_response_timeout: input.u8(),
        max_cm_retries: input.u8(),
        transport: input.pick(&[Transport::Rc, Transport::Rc, Transport::Uc, Transport::Xrc, Transport::Rd]),
        ..Req::default()
    };
    req.primary_path.local_ack_timeout = input.u8();
    req.primary_path.local_gid = address(input.u8()).into();
    req.primary_path.remote_gid = address(0).into();
    req
}

/// A manager, and what its peers may know of it.
struct World {
    manager: Manager,
    now: Nanos,
    /// IDs of its connections, in the order of their appearance.
    names: Vec<CommId>,
    events: Vec<Event>,
}

impl World {
    fn new() -> World {
        let mut manager = Manager::new(Config { limits: LIMITS, seed: 5, ca_guid: 7, ..Config::default() });
        let on = [ListenOn::Any, ListenOn::AnyIpv4, ListenOn::Address(address(0).into())];
        for (space, on) in PortSpace::ALL.into_iter().zip(on) {
            manager.listen(ServiceId::of_port(space, 1), on, 5).expect("room for a listener");
        }
        World { manager, now: Nanos::from_millis(1), names: Vec::new(), events: Vec::new() }
    }

    /// Returns a known ID, or any.
    fn name(&self, input: &mut Input<'_>) -> CommId {
        let choice = input.u8();
        match self.names.get(usize::from(choice)) {
            Some(name) => *name,
            None if choice & 1 == 0 => self.names.last().copied().unwrap_or_default(),
            None => CommId(input.u32()),
        }
    }

    fn learn(&mut self, id: CommId) {
        if !self.names.contains(&id) && self.names.len() < 128 {
            self.names.push(id);
        }
    }

    fn message(&self, input: &mut Input<'_>) -> CmMessage {
        let (local_comm_id, remote_comm_id) = (CommId(u32::from(input.u8()) % 5), self.name(input));
        let qpn = Qpn::new(u32::from(input.u8()) % 6);
        let space = input.pick(&PortSpace::ALL);
        let service_id = ServiceId::of_port(space, u16::from(!input.u8().is_multiple_of(8)));
        let message = input.pick(&[Stage::Req, Stage::Rep, Stage::Other, Stage::Reserved]);
        match input.pick(&Kind::ALL) {
            Kind::Req => CmMessage::Req(req(input, local_comm_id, service_id, qpn)),
            Kind::Mra => CmMessage::Mra(Mra {
                local_comm_id,
                remote_comm_id,
                message,
                service_timeout: input.u8(),
                private_data: PrivateData::EMPTY,
            }),
            Kind::Rej => CmMessage::Rej(Rej {
                local_comm_id,
                remote_comm_id,
                message,
                reason: RejReason(u16::from(input.u8() % 34)),
                ari: Ari::new(&u64::from(input.u8() % 3).to_be_bytes()),
                private_data: PrivateData::EMPTY,
            }),
            Kind::Rep => CmMessage::Rep(Rep {
                local_comm_id,
                remote_comm_id,
                local_qpn: qpn,
                target_ack_delay: input.u8(),
                local_ca_guid: u64::from(input.u8() % 3),
                ..Rep::default()
            }),
            Kind::Rtu => {
                CmMessage::Rtu(Rtu { local_comm_id, remote_comm_id, private_data: PrivateData::EMPTY })
            }
            Kind::Dreq => {
                let private_data = PrivateData::EMPTY;
                CmMessage::Dreq(Dreq { local_comm_id, remote_comm_id, remote_qpn: qpn, private_data })
            }
            Kind::Drep => {
                CmMessage::Drep(Drep { local_comm_id, remote_comm_id, private_data: PrivateData::EMPTY })
            }
            Kind::SidrReq => {
                CmMessage::SidrReq(SidrReq { request_id: local_comm_id, service_id, ..SidrReq::default() })
            }
            Kind::SidrRep => {
                CmMessage::SidrRep(SidrRep { request_id: remote_comm_id, qpn, ..SidrRep::default() })
            }
            Kind::Lap | Kind::Apr => CmMessage::Lap(Lap { local_comm_id, remote_comm_id, ..Lap::default() }),
        }
    }

    /// Delivers a message (valid, altered, or random bytes) from one of a few addresses.
    fn receive(&mut self, input: &mut Input<'_>) {
        let mut mad = [0; MAD_LEN];
        let len = if input.u8().is_multiple_of(8) {
            let bytes = input.bytes(MAD_LEN);
            mad[..bytes.len()].copy_from_slice(bytes);
            usize::from(input.u8()) + 1
        } else {
            mad = self.message(input).to_mad(input.u8().into());
            if input.u8().is_multiple_of(8) {
                mad[usize::from(input.u8())] = input.u8();
            }
            MAD_LEN
        };
        let mut route = Route::new(address(0), address(input.u8()));
        route.traffic_class = input.u8();
        let src_qp = Qpn::new(u32::from(!input.u8().is_multiple_of(16)));
        let before = self.drain();
        self.manager.handle_mad(self.now, &mad[..len.min(MAD_LEN)], &Arrival { route, src_qp });
        let sent = self.drain();
        // An answer, and a DREQ for a stale connection.
        assert!(sent <= 2, "one message led to {sent}; {before} had waited");
    }

    /// Removes the pending messages; returns their number.
    fn drain(&mut self) -> usize {
        let mut count = 0;
        while let Some(transmit) = self.manager.poll_transmit() {
            let (_, message) = CmMessage::read(&transmit.mad).expect("a manager sends messages");
            if let CmMessage::Req(req) = &message {
                self.learn(req.local_comm_id);
            }
            count += 1;
        }
        assert!(count <= LIMITS.transmits, "{count} messages waited");
        count
    }

    fn call(&mut self, input: &mut Input<'_>) {
        let (id, now) = (self.name(input), self.now);
        let m = &mut self.manager;
        let route = Route::new(address(0), address(input.u8()));
        let qp = LocalQp { qpn: Qpn::new(u32::from(input.u8()) % 6), psn: Psn::new(input.u32()), srq: false };
        // Calls in a wrong state are errors without effect.
        match input.u8() % 11 {
            0 => {
                let service = ServiceId::of_port(PortSpace::Tcp, input.u16());
                let request = ConnectRequest {
                    response_timeout: input.u8() % 40,
                    max_cm_retries: input.u8() % 20,
                    ..ConnectRequest::new(service, route, qp, Mtu::Mtu256)
                };
                let _ = m.connect(now, &request);
            }
            1 | 2 => drop(m.accept(now, id, &AcceptOptions { qp, ..AcceptOptions::default() })),
            3 => drop(m.ready(id, PrivateData::EMPTY)),
            4 => drop(m.established(id)),
            5 => drop(m.delay(id, input.u8() % 40, PrivateData::EMPTY)),
            6 => drop(m.reject(now, id, RejReason(input.u16()), Ari::NONE, PrivateData::EMPTY)),
            7 => drop(m.disconnect(now, id, PrivateData::EMPTY)),
            8 => m.destroy(now, id),
            9 => drop(m.resolve(now, &ResolveRequest::new(ServiceId(input.u64()), route))),
            _ => drop(m.answer_resolution(now, id, &ResolveAnswer::default())),
        }
        let _ = m.parameters(id);
    }

    fn handle_event(&mut self) {
        while let Some(event) = self.manager.poll_event() {
            self.learn(event.id());
            self.events.push(event);
            assert!(self.events.len() <= MOST_EVENTS, "more events than connections can have");
        }
        self.events.clear();
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.u8() % 8 {
            0..=3 => self.receive(input),
            4 | 5 => self.call(input),
            6 => self.handle_event(),
            _ => {
                self.now = self.now + Nanos(1 << (input.u8() % 36));
                self.manager.handle_timeouts(self.now);
            }
        }
        assert!(self.manager.connections() <= LIMITS.connections as usize);
    }

    /// Destroys everything, and checks that all state goes.
    fn close(mut self) {
        self.handle_event();
        for id in self.manager.ids().collect::<Vec<_>>() {
            self.manager.destroy(self.now, id);
        }
        for _ in 0..STEPS {
            let deadline = self.manager.next_deadline();
            if deadline == Nanos::MAX {
                break;
            }
            self.now = self.now.max(deadline);
            self.manager.handle_timeouts(self.now);
            self.drain();
        }
        assert_eq!(self.manager.next_deadline(), Nanos::MAX, "a timer is left");
        assert_eq!(self.manager.connections(), 0, "a connection is left");
        // No events are left of what was destroyed.
        assert!(self.manager.poll_event().is_none());
    }
}

/// A manager stays within its bounds whatever peers and consumers do, and has no state left after everything is
/// destroyed.
pub fn management(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut stage = World::new();
    while !input.is_empty() {
        stage.step(&mut input);
    }
    stage.close();
}
