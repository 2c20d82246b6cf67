//! Two connected NICs in virtual time; one is the requester.

use std::sync::{Arc, Mutex, PoisonError};

use roxie::frame::Frame;
use roxie::limits::Limits;
use roxie::nic::NicConfig;
use roxie::port::Port;
use roxie::port::fault::{Action, Direction, Fault, FaultConfig, FaultPort, When};
use roxie::shared::work_queue::Payload;
use roxie::time::Nanos;
use roxie::verbs::{
    Access, AsyncEvent, EventKind, LKey, Mtu, Psn, QpAttr, QpCaps, QpInit, QpState, QpType, RKey, SendFlags,
    SendWr, Sge, Wc, WrOpcode,
};
use roxie::wire::{NakCode, Packet, Syndrome, parse};
use roxie_sim::{Host, HostQp, HostRegion, Pair, joined_ports};

pub(crate) const REQUESTER: usize = 0;
pub(crate) const RESPONDER: usize = 1;
/// Initial bytes of the responder's memory.
pub(crate) const PATTERN: u8 = 0xa5;
/// Initial bytes of the requester's memory.
const PAYLOAD: u8 = 0x11;
const REGION: usize = 8192;
/// ID of the first receive.
const FIRST_RECEIVE: u64 = 100;

/// Parameters of the connection.
#[derive(Clone, Copy)]
pub(crate) struct Setup {
    /// Rights that the responder's QP grants, and its region.
    pub(crate) qp_access: Access,
    pub(crate) region_access: Access,
    /// Path MTUs of the requester and of the responder.
    pub(crate) path_mtu: [Mtu; 2],
    pub(crate) max_rd_atomic: u8,
    pub(crate) max_dest_rd_atomic: u8,
    /// Lengths of the responder's receives.
    pub(crate) receives: &'static [u32],
}

impl Default for Setup {
    fn default() -> Setup {
        Setup {
            qp_access: Access::READ_WRITE,
            region_access: Access::READ_WRITE,
            path_mtu: [Mtu::Mtu256; 2],
            max_rd_atomic: 2,
            max_dest_rd_atomic: 2,
            receives: &[],
        }
    }
}

/// Selects packets of one side that the link drops.
type Losses = Box<dyn FnMut(&Packet) -> bool + Send>;

/// Record of one side's packets, and the selection of dropped ones.
#[derive(Default)]
struct Tap {
    syndromes: Vec<Syndrome>,
    loses: Option<Losses>,
}

pub(crate) struct Link {
    pair: Pair,
    /// Places of the requester and of the responder: 0 is host a.
    place: [usize; 2],
    qps: [HostQp; 2],
    regions: [HostRegion; 2],
    /// A region that grants no remote access.
    outside: HostRegion,
    taps: [Arc<Mutex<Tap>>; 2],
}

/// Wraps a port: records its sent packets in `tap`, and drops those that `tap` selects.
fn tapped(port: Box<dyn Port>, tap: &Arc<Mutex<Tap>>) -> Box<dyn Port> {
    let tap = Arc::clone(tap);
    let lost = move |frame: &Frame<'_>| {
        let Ok(packet) = parse(frame) else { return false };
        let mut tap = tap.lock().unwrap_or_else(PoisonError::into_inner);
        let aeth = packet.aeth();
        tap.syndromes.extend(aeth.map(|aeth| Syndrome::from(aeth.syndrome)));
        tap.loses.as_mut().is_some_and(|loses| loses(&packet))
    };
    let fault = Fault { action: Action::Drop, when: When::Every(1) };
    Box::new(FaultPort::new(port, &FaultConfig::default()).with_rule(Direction::Tx, fault, lost))
}

impl Link {
    /// Connects the two. If `swapped`, the requester is the second host.
    pub(crate) fn new(setup: &Setup, swapped: bool) -> Link {
        let place = if swapped { [1, 0] } else { [0, 1] };
        let taps: [Arc<Mutex<Tap>>; 2] = Default::default();
        let (a, b) = joined_ports(1500, None);
        let of = |side: usize| &taps[place.iter().position(|at| *at == side).expect("one of two")];
        let (a, b) = (tapped(a, of(0)), tapped(b, of(1)));
        let config = |seed| NicConfig { limits: Limits::small(), seed, ..NicConfig::default() };
        let mut hosts = [Host::new(1, config(1), a), Host::new(2, config(2), b)];

        let regions = [(REQUESTER, Access::LOCAL_WRITE | Access::MW_BIND), (RESPONDER, setup.region_access)]
            .map(|(side, access)| hosts[place[side]].register(REGION, access));
        let outside = hosts[place[RESPONDER]].register(REGION, Access::LOCAL_WRITE);
        for (region, byte) in [(&regions[0], PAYLOAD), (&regions[1], PATTERN), (&outside, PATTERN)] {
            region.memory.write(0, &[byte; REGION]).expect("inside");
        }
        let init = QpInit {
            qp_type: QpType::Rc,
            caps: QpCaps { max_send_sge: 2, ..QpCaps::default() },
            sq_sig_all: true,
        };
        let qps = [REQUESTER, RESPONDER]
            .map(|side| hosts[place[side]].queue_pair().init(init).cq_entries(64).create());
        for side in [REQUESTER, RESPONDER] {
            let there = place[1 - side] as u8 + 1;
            let steps = steps(setup, side, &hosts[place[side]], &qps[1 - side], there);
            for attr in steps {
                hosts[place[side]].modify(Nanos::ZERO, &qps[side], &attr).expect("a legal transition");
            }
        }
        for (id, length) in (FIRST_RECEIVE..).zip(setup.receives) {
            let sge = regions[RESPONDER].sge((id - FIRST_RECEIVE) * 1024, *length);
            hosts[place[RESPONDER]].post_recv(&qps[RESPONDER], id, &[sge]).expect("room");
        }
        let [a, b] = hosts;
        Link { pair: Pair::new(a, b), place, qps, regions, outside, taps }
    }

    fn host(&mut self, side: usize) -> &mut Host {
        if self.place[side] == 0 { &mut self.pair.a } else { &mut self.pair.b }
    }

    /// Posts a WRITE of 4 bytes to `offset` of the responder's region.
    pub(crate) fn post_good(&mut self, wr_id: u64, offset: u64) {
        let (wr, sge) = (SendWr { wr_id, ..self.request(WrOpcode::Write, offset) }, self.source(4));
        self.post(&wr, &[sge]);
    }

    /// Returns the middle request: `opcode` to `offset` of the responder's region.
    pub(crate) fn request(&self, opcode: WrOpcode, offset: u64) -> SendWr {
        let target = &self.regions[RESPONDER];
        SendWr {
            wr_id: 2,
            opcode,
            flags: SendFlags::SIGNALED,
            remote_addr: target.address + offset,
            rkey: RKey(target.key),
            ..SendWr::default()
        }
    }

    /// Posts the middle request with `length` local bytes.
    pub(crate) fn post_request(&mut self, opcode: WrOpcode, offset: u64, length: u32) {
        let (wr, sge) = (self.request(opcode, offset), self.source(length));
        self.post(&wr, &[sge]);
    }

    /// Posts the middle request to memory without remote access.
    pub(crate) fn trespass(&mut self, opcode: WrOpcode) {
        let (remote_addr, rkey) = (self.outside.address, RKey(self.outside.key));
        self.post_8(&SendWr { remote_addr, rkey, ..self.request(opcode, 0) });
    }

    /// Posts the middle request with an invalid key.
    pub(crate) fn post_under_no_key(&mut self, opcode: WrOpcode) {
        let good = self.request(opcode, 0);
        self.post_8(&SendWr { rkey: RKey(good.rkey.0 ^ 0x5500), ..good });
    }

    /// Returns bytes of the requester's region: the source of sends, the sink of READs.
    pub(crate) fn source(&self, length: u32) -> Sge {
        self.regions[REQUESTER].sge(0, length)
    }

    /// Posts a request with 8 local bytes.
    pub(crate) fn post_8(&mut self, wr: &SendWr) {
        let sge = self.source(8);
        self.post(wr, &[sge]);
    }

    pub(crate) fn post(&mut self, wr: &SendWr, sges: &[Sge]) {
        let qp = &self.qps[REQUESTER];
        let host = if self.place[REQUESTER] == 0 { &self.pair.a } else { &self.pair.b };
        host.post_send(qp, wr, Payload::Sges(sges)).expect("room for a request");
    }

    /// Posts a receive with an invalid key at the responder.
    pub(crate) fn post_bad_receive(&mut self) {
        let region = &self.regions[RESPONDER];
        let sge = Sge { lkey: LKey(region.key ^ 0xff), ..region.sge(0, 64) };
        let host = if self.place[RESPONDER] == 0 { &self.pair.a } else { &self.pair.b };
        host.post_recv(&self.qps[RESPONDER], FIRST_RECEIVE, &[sge]).expect("room");
    }

    /// Changes the state of the responder's QP.
    pub(crate) fn modify_responder(&mut self, state: QpState) {
        let (now, place) = (self.pair.now, self.place[RESPONDER]);
        let host = if place == 0 { &mut self.pair.a } else { &mut self.pair.b };
        let attr = QpAttr { state: Some(state), ..QpAttr::default() };
        host.modify(now, &self.qps[RESPONDER], &attr).expect("a legal transition");
    }

    /// Makes the link drop packets of this side for which `loses` returns true.
    pub(crate) fn lose(&mut self, side: usize, loses: impl FnMut(&Packet) -> bool + Send + 'static) {
        self.taps[side].lock().unwrap_or_else(PoisonError::into_inner).loses = Some(Box::new(loses));
    }

    /// Runs until nothing is left to happen. Returns false if the limit comes first.
    pub(crate) fn settle(&mut self) -> bool {
        let limit = self.pair.now + Nanos::from_millis(60_000);
        self.pair.run(limit)
    }

    pub(crate) fn completions(&mut self, side: usize) -> Vec<Wc> {
        let host = if self.place[side] == 0 { &self.pair.a } else { &self.pair.b };
        std::iter::from_fn(|| host.poll_cq(&self.qps[side])).collect()
    }

    pub(crate) fn state(&mut self, side: usize) -> QpState {
        let now = self.pair.now;
        let index = self.qps[side].handle.index;
        self.host(side).query(now, index).state
    }

    /// Returns the NAKs and the number of RNR NAKs that the responder sent, dropped ones included.
    pub(crate) fn naks(&self) -> (Vec<NakCode>, u64) {
        let tap = self.taps[RESPONDER].lock().unwrap_or_else(PoisonError::into_inner);
        let nak = |syndrome: &Syndrome| match syndrome {
            Syndrome::Nak(code) => Some(*code),
            _ => None,
        };
        let rnr = tap.syndromes.iter().filter(|s| matches!(s, Syndrome::RnrNak { .. })).count();
        (tap.syndromes.iter().filter_map(nak).collect(), rnr as u64)
    }

    /// Returns the events of this side's QP, without the communication-established event.
    pub(crate) fn events(&mut self, side: usize) -> Vec<EventKind> {
        let host = self.host(side);
        std::iter::from_fn(|| host.event())
            .filter_map(|event| match event {
                AsyncEvent::Qp(_, EventKind::CommunicationEstablished) => None,
                AsyncEvent::Qp(_, kind) => Some(kind),
                other => panic!("an event of something else: {other:?}"),
            })
            .collect()
    }

    pub(crate) fn counter(&mut self, side: usize, name: &str) -> u64 {
        let all = self.host(side).worker.counters();
        let values: Vec<u64> = all.into_iter().filter(|(n, _)| *n == name).map(|(_, value)| value).collect();
        assert!(!values.is_empty(), "there is no counter {name}");
        values.iter().sum()
    }

    /// Returns the region of this side, and the memory outside of it.
    pub(crate) fn memory(&self, side: usize) -> (Vec<u8>, Vec<u8>) {
        (self.regions[side].bytes(0, REGION), self.outside.bytes(0, REGION))
    }
}

fn steps(setup: &Setup, side: usize, host: &Host, peer: &HostQp, there: u8) -> [QpAttr; 3] {
    let access = if side == RESPONDER { setup.qp_access } else { Access::READ_WRITE };
    let (requests, answers) =
        if side == REQUESTER { (setup.max_rd_atomic, 2) } else { (2, setup.max_dest_rd_atomic) };
    // First PSNs of each side: one is about to wrap.
    let first = [Psn::new(0xff_fffe), Psn::new(5)];
    [
        QpAttr {
            state: Some(QpState::Init),
            pkey_index: Some(0),
            port: Some(1),
            access: Some(access),
            ..QpAttr::default()
        },
        QpAttr {
            state: Some(QpState::Rtr),
            av: Some(host.path(there.into(), false)),
            path_mtu: Some(setup.path_mtu[side]),
            dest_qpn: Some(peer.handle.qpn),
            rq_psn: Some(first[1 - side]),
            max_dest_rd_atomic: Some(answers),
            min_rnr_timer: Some(1),
            ..QpAttr::default()
        },
        QpAttr {
            state: Some(QpState::Rts),
            sq_psn: Some(first[side]),
            timeout: Some(8),
            retry_cnt: Some(2),
            rnr_retry: Some(2),
            max_rd_atomic: Some(requests),
            ..QpAttr::default()
        },
    ]
}
