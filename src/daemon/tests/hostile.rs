//! A hostile program that speaks to the NIC without the library. It knows other clients' numbers and keys, names their
//! objects, writes anything into its queues, and takes all resources it can get.

use std::os::fd::AsFd;
use std::sync::atomic::Ordering::Relaxed;

use super::campaign::{Tally, kind_of};
use super::honest::GROUP;
use super::mine::OwnObjects;
use super::{CAPS, Nic, RawClient, alloc_fast, create_cq, create_qp, receives_at, resize_cq};
use roxie::remote::message::{ArenaPlace, Memory, Receives, Request, Response};
use roxie_base::random::splitmix;
use roxie_base::roster::{BoundPort, PortName, PortRequest};
use roxie_base::time::Nanos;
use roxie_nic::nic::{Command, MemoryCommand, ReceiveSource};
use roxie_nic::shared::work_queue::Payload;
use roxie_nic::shared::{RecvRing, Region, SendRing};
use roxie_nic::verbs::{
    Access, AddressVector, AhId, CqIndex, FlowId, Gid, LKey, MrIndex, Mtu, MwIndex, MwType, OpenXrcd, PdId,
    Psn, QpAttr, QpCaps, QpIndex, QpInit, QpState, QpType, Qpn, RKey, SendFlags, SendWr, Sge, SrqIndex,
    SrqInit, SrqKind, UdAddress, WrOpcode, XrcdId,
};
use roxie_wire::mad::{CLASS_CM, MAD_LEN, MadHeader};

/// Words of its arena, and of a place in it.
const ARENA: usize = 1 << 16;
const PLACE: usize = 1 << 10;
/// Words of its memory.
const OWN: usize = 512;

/// Facts about other clients that the program knows.
#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    pub(super) qpns: Vec<Qpn>,
    pub(super) keys: Vec<u32>,
    pub(super) addresses: Vec<u64>,
    pub(super) slots: Vec<u8>,
    pub(super) services: Vec<u64>,
}

/// The hostile program.
pub(super) struct Hostile {
    pub(super) client: RawClient,
    memory: Box<[u64; OWN]>,
    /// Further memory, which may be missing: addresses and lengths.
    pub(super) further: Vec<(u64, u64)>,
    known: Known,
    pub(super) mine: OwnObjects,
    state: u64,
    pub(super) tally: Tally,
    /// Set once the NIC has answered a corrupted request: the program may then own objects that it does not know of.
    pub(super) is_surprised: bool,
}

/// Returns an address: of an interface if `last` is 1 or 2, otherwise of none.
pub(super) fn gid(last: u8) -> Gid {
    Gid::from(std::net::IpAddr::from([192, 0, 2, last]))
}

impl Hostile {
    pub(super) fn new(nic: &Nic, known: Known, seed: u64) -> Hostile {
        Hostile::of(nic.admitted(), known, seed)
    }

    pub(super) fn of(mut client: RawClient, known: Known, seed: u64) -> Hostile {
        client.arena(ARENA);
        let (memory, mine, tally) = (Box::new([seed; OWN]), OwnObjects::default(), Tally::default());
        Hostile { client, memory, further: Vec::new(), known, mine, state: seed, tally, is_surprised: false }
    }

    fn below(&mut self, bound: usize) -> usize {
        (splitmix(&mut self.state) % bound.max(1) as u64) as usize
    }

    fn flag(&mut self) -> bool {
        self.below(2) == 0
    }

    fn one<T: Copy>(&mut self, of: &[T]) -> Option<T> {
        let at = self.below(of.len());
        of.get(at).copied()
    }

    /// Returns the name of an object of its own, or any.
    fn name(&mut self, own: impl Fn(&OwnObjects) -> Vec<u32>) -> u32 {
        let own = own(&self.mine);
        let any = self.below(24) as u32;
        match self.below(6) {
            0 => any,
            // A former or later name of the same place.
            1 => self.one(&own).map_or(any, |name| name ^ 1 << 16),
            _ => self.one(&own).unwrap_or(any),
        }
    }

    fn pd(&mut self) -> PdId {
        PdId(self.name(|mine| mine.pds.iter().map(|pd| pd.0).collect()))
    }

    fn cq(&mut self) -> CqIndex {
        CqIndex(self.name(|mine| mine.cqs.iter().map(|(cq, _)| cq.0).collect()))
    }

    fn mr(&mut self) -> MrIndex {
        MrIndex(self.name(|mine| mine.mrs.iter().map(|(mr, _)| mr.0).collect()))
    }

    fn window(&mut self) -> MwIndex {
        MwIndex(self.name(|mine| mine.windows.iter().map(|window| window.0).collect()))
    }

    fn srq(&mut self) -> SrqIndex {
        SrqIndex(self.name(|mine| mine.srqs.iter().map(|srq| srq.0).collect()))
    }

    fn xrcd(&mut self) -> XrcdId {
        XrcdId(self.name(|mine| mine.xrcds.iter().map(|xrcd| xrcd.0).collect()))
    }

    fn qp(&mut self) -> QpIndex {
        QpIndex(self.name(|mine| mine.qps.iter().map(|(qp, ..)| qp.0).collect()))
    }

    fn handle(&mut self) -> AhId {
        AhId(self.name(|mine| mine.handles.iter().map(|ah| ah.0 & 0xffff).collect()) | 1 << 16)
    }

    fn place(&mut self) -> ArenaPlace {
        ArenaPlace { arena: 0, at: (self.below(ARENA / PLACE - 1) * PLACE) as u64 }
    }

    fn entries(&mut self) -> u32 {
        1 << self.below(12)
    }

    fn receives(&mut self) -> Receives {
        receives_at(self.place())
    }

    fn path(&mut self) -> AddressVector {
        let (last, from) = (self.below(3) as u8, self.below(8));
        AddressVector::new(
            // Now and then another host's address.
            gid(if from == 0 { 2 } else { 1 }),
            gid(last),
            [2, 0, 0, 0, 0, 1],
            [2, 0, 0, 0, 0, last],
        )
    }

    fn key(&mut self) -> u32 {
        let keys = if self.flag() { self.known.keys.clone() } else { self.mine.keys.clone() };
        let any = splitmix(&mut self.state) as u32;
        self.one(&keys).unwrap_or(any)
    }

    fn address(&mut self) -> u64 {
        let own = std::ptr::from_ref(&*self.memory) as u64;
        let known = self.known.addresses.clone();
        let further: Vec<u64> = self.further.iter().map(|(address, _)| *address).collect();
        let base = match self.below(4) {
            0 | 1 => own,
            2 => self.one(&known).unwrap_or(own),
            _ => self.one(&further).unwrap_or(own),
        };
        base + self.below(8) as u64 * 8
    }

    /// Only the program's own memory: a process can name no other.
    fn region(&mut self) -> Memory {
        let (at, words) = (self.below(OWN), self.below(OWN));
        let address = std::ptr::from_ref(&self.memory[at]) as u64;
        let length = (words.min(OWN - at) * 8) as u64;
        let further = self.further.clone();
        match (self.below(8), self.one(&further)) {
            (3 | 4, Some((address, length))) => Memory::At { address, length, on_demand: self.flag() },
            (5, _) => {
                let (offset, is_lent) = (self.below(OWN) as u64 * 8, self.flag());
                Memory::InFile { address, length, offset, is_lent }
            }
            (other, _) => Hostile::own_region(other, address, length),
        }
    }

    fn own_region(which: usize, address: u64, length: u64) -> Memory {
        match which {
            0 => Memory::Null,
            // Nothing is mapped there.
            1 | 2 => Memory::At { address: 8, length: length << 9, on_demand: false },
            _ => Memory::At { address, length, on_demand: false },
        }
    }

    /// A step of a QP's life, as the library would take it.
    fn attributes(&mut self) -> QpAttr {
        let state = [QpState::Init, QpState::Rtr, QpState::Rts, QpState::Err, QpState::Reset][self.below(5)];
        let datagram = self.flag();
        self.attributes_to(state, datagram)
    }

    fn attributes_to(&mut self, state: QpState, datagram: bool) -> QpAttr {
        let qpns = self.known.qpns.clone();
        let any = Qpn::new(splitmix(&mut self.state) as u32 & 0xff_ffff);
        let psn = |hostile: &mut Hostile| Some(Psn::new(splitmix(&mut hostile.state) as u32 & 0xff_ffff));
        let attr = QpAttr { state: Some(state), ..QpAttr::default() };
        match state {
            QpState::Init => QpAttr {
                pkey_index: Some(0),
                port: Some(1),
                qkey: datagram.then_some(1),
                access: (!datagram).then_some(Access::READ_WRITE),
                ..attr
            },
            QpState::Rtr if !datagram => QpAttr {
                av: Some(self.path()),
                path_mtu: Some(Mtu::Mtu1024),
                dest_qpn: Some(self.one(&qpns).unwrap_or(any)),
                rq_psn: psn(self),
                max_dest_rd_atomic: Some(2),
                min_rnr_timer: Some(1),
                ..attr
            },
            QpState::Rts => QpAttr {
                sq_psn: psn(self),
                timeout: (!datagram).then_some(8),
                retry_cnt: (!datagram).then_some(1),
                rnr_retry: (!datagram).then_some(1),
                max_rd_atomic: (!datagram).then_some(2),
                ..attr
            },
            _ => attr,
        }
    }

    fn command(&mut self) -> Command {
        match self.below(27) {
            0 => Command::AllocPd,
            1 => Command::DeallocPd(self.pd()),
            2 => Command::DeregisterMemory(self.mr()),
            3 => Command::ReleaseMemory(self.mr()),
            4 => Command::AllocWindow { pd: self.pd(), kind: [MwType::One, MwType::Two][self.below(2)] },
            5 => Command::NextWindowKey(self.window()),
            6 => Command::FreeWindow(self.window()),
            7 => Command::ModerateCq { cq: self.cq(), count: 2, period: Nanos(1000) },
            8 => Command::DestroyCq(self.cq()),
            9 => Command::QuerySrq(self.srq()),
            10 => Command::DestroySrq(self.srq()),
            11 => Command::OpenXrcd(OpenXrcd::default()),
            12 => Command::CloseXrcd(self.xrcd()),
            13 => Command::CreateXrcTarget(self.xrcd()),
            14 => Command::SetQpControl(self.qp(), None),
            15 => Command::QueryQp(self.qp()),
            16 => Command::DestroyQp(self.qp()),
            17 => Command::CreateAh(self.pd(), Box::new(self.path())),
            18 => Command::DestroyAh(self.handle()),
            19 => Command::AttachMulticast(self.qp(), GROUP),
            20 => Command::DetachMulticast(self.qp(), GROUP),
            21 => Command::DestroyFlow(FlowId(self.below(4) as u32)),
            22 if self.flag() => Command::AddQpnUnit(self.below(256) as u8),
            22 => Command::CreateFlow(self.qp(), Box::default()),
            23 => Command::ExamineQp(self.qp(), self.flag()),
            _ => Command::ModifyQp(self.qp(), Box::new(self.attributes())),
        }
    }

    fn memory_request(&mut self) -> Request {
        let (access, start) = (Access::READ_WRITE, self.below(1 << 20) as u64);
        match self.below(8) {
            0 => Request::Memory(MemoryCommand::RegisterMemory {
                pd: self.pd(),
                access,
                start,
                memory: self.region(),
            }),
            1 => {
                let (pd, moves) = (self.flag().then(|| self.pd()), self.flag());
                let translation = moves.then(|| (start, self.region()));
                Request::Memory(MemoryCommand::ReregisterMemory {
                    mr: self.mr(),
                    pd,
                    access: None,
                    translation,
                })
            }
            2 => alloc_fast(self.pd(), self.region(), self.place(), 8),
            3 => create_cq(self.place(), self.entries()),
            4 => resize_cq(self.cq(), self.place(), self.entries()),
            5 => {
                let xrc = SrqKind::Xrc { xrcd: self.xrcd(), cq: self.cq() };
                let kind = if self.flag() { SrqKind::Basic } else { xrc };
                Request::Memory(MemoryCommand::CreateSrq {
                    pd: self.pd(),
                    init: SrqInit { kind, limit: 0 },
                    ring: self.receives(),
                })
            }
            6 => Request::Memory(MemoryCommand::ModifySrq {
                srq: self.srq(),
                ring: Some(self.receives()),
                limit: None,
            }),
            _ => {
                let qp_type = [QpType::Rc, QpType::Ud, QpType::Gsi, QpType::Uc][self.below(4)];
                let caps = QpCaps {
                    max_send_wr: [CAPS.max_send_wr, 1 << 12, u32::MAX][self.below(24).saturating_sub(21)],
                    max_inline: [CAPS.max_inline, 64, u32::MAX][self.below(24).saturating_sub(21)],
                    ..CAPS
                };
                let init = QpInit { qp_type, caps, sq_sig_all: true };
                let srq = self.srq();
                let receives = if self.flag() {
                    ReceiveSource::Own(receives_at(self.place()))
                } else {
                    ReceiveSource::Shared(srq)
                };
                let (pd, send_cq, recv_cq) = (self.pd(), self.cq(), self.cq());
                create_qp(pd, (send_cq, recv_cq), init, self.place(), receives)
            }
        }
    }

    /// Posts a work request with arbitrary contents, to an arbitrary QP.
    fn post(&mut self) {
        let qps: Vec<_> = self.mine.qps.iter().map(|(qp, _, at)| (*qp, *at)).collect();
        let Some((qp, at)) = self.one(&qps) else { return };
        let own = std::ptr::from_ref(&*self.memory) as u64;
        let sge = Sge { addr: self.address(), length: self.below(300) as u32, lkey: LKey(self.key()) };
        if self.below(4) == 0 {
            let queue = self.client.arenas[0].part(at, RecvRing::size(4, 1)).expect("inside");
            let _ = RecvRing::on(&queue, 4, 1).map(|ring| ring.post(0, &[sge]));
        }
        let mad = Sge { addr: own, length: MAD_LEN as u32, lkey: sge.lkey };
        let is_mad = self.below(4) == 0;
        if is_mad {
            self.write_mad();
        }
        let qpns = self.known.qpns.clone();
        let wr = SendWr {
            opcode: WrOpcode::ALL[self.below(WrOpcode::ALL.len())],
            flags: SendFlags::SIGNALED,
            remote_addr: self.address(),
            rkey: RKey(self.key()),
            ud: UdAddress {
                ah: self.handle(),
                remote_qpn: if is_mad { Qpn::new(1) } else { self.one(&qpns).unwrap_or(Qpn::new(1)) },
                remote_qkey: if is_mad { 0x8001_0000 } else { 0x1111_1111 },
            },
            ..SendWr::default()
        };
        let queue = self.client.arenas[0].part(at, SendRing::size(4, 1, 0)).expect("inside");
        let list = [if is_mad { mad } else { sge }];
        let posted =
            SendRing::on(&queue, 4, 1, 0).is_ok_and(|ring| ring.post(&wr, Payload::Sges(&list)).is_ok());
        self.tally.note("a work request", posted);
        self.client.bells.ring(qp);
    }

    /// Writes a message of connection management, for a connection of another client.
    fn write_mad(&mut self) {
        let mut mad = [0u8; MAD_LEN];
        mad.iter_mut().for_each(|byte| *byte = splitmix(&mut self.state) as u8);
        (mad[0], mad[1], mad[2], mad[3]) = (MadHeader::BASE_VERSION, CLASS_CM, 2, 3);
        mad[16..18].copy_from_slice(&(0x10 + self.below(10) as u16).to_be_bytes());
        let slots = self.known.slots.clone();
        for at in [24, 28] {
            mad[at] = self.one(&slots).unwrap_or(0);
        }
        for (word, chunk) in self.memory.iter_mut().zip(mad.chunks_exact(8)) {
            *word = u64::from_ne_bytes(chunk.try_into().expect("8 bytes"));
        }
    }

    fn scribble(&mut self) {
        let words = self.client.arenas[0].words();
        for _ in 0..1 + splitmix(&mut self.state) % 64 {
            let at = splitmix(&mut self.state);
            let value = splitmix(&mut self.state);
            words[at as usize % words.len()].store(value >> (at >> 32 & 63), Relaxed);
        }
        for _ in 0..4 {
            let qp = QpIndex(self.below(64) as u32);
            self.client.bells.ring(qp);
        }
    }

    /// Returns a request in the name of another client, or one for an arena.
    fn pretend(&mut self) -> Request {
        let (slots, services) = (self.known.slots.clone(), self.known.services.clone());
        match self.below(4) {
            0 => Request::TakeUnit(self.one(&slots).unwrap_or(self.below(256) as u8)),
            1 => Request::Services(services.iter().map(|id| (*id, Some([192, 0, 2, 1].into()))).collect()),
            2 => {
                // Its own port numbers, and those that others have bound.
                let port = if self.flag() { 7471 } else { self.below(1 << 16) as u16 };
                let name = PortName { space: 0x0106, port, owner: self.below(4) as u32 };
                let address = [[0; 4], [192, 0, 2, 1]][self.below(2)].into();
                let (reuse, one_family) = (self.flag(), self.flag());
                Request::PortNumber(match self.below(4) {
                    0 => PortRequest::Listen(name),
                    1 => PortRequest::Settle(name, address),
                    2 => PortRequest::Release(name),
                    _ => PortRequest::Bind(BoundPort { name, address, reuse, one_family, slot: 0, uid: 0 }),
                })
            }
            _ => Request::Arena { words: 1 << self.below(20) },
        }
    }

    /// Makes the objects of a program that is about to send, as far as the NIC permits.
    pub(super) fn settle(&mut self) -> Result<(), String> {
        self.request(Request::Command(Command::AllocPd))?;
        let (ring, access) = (self.place(), Access::READ_WRITE);
        self.request(create_cq(ring, 64))?;
        let (Some(pd), Some((cq, _))) = (self.mine.pds.last().copied(), self.mine.cqs.last().copied()) else {
            return Ok(());
        };
        let (memory, start) = (self.region(), self.address());
        self.request(Request::Memory(MemoryCommand::RegisterMemory { pd, access, start, memory }))?;
        let path = self.path();
        self.request(Request::Command(Command::CreateAh(pd, Box::new(path))))?;
        for qp_type in [QpType::Rc, [QpType::Ud, QpType::Gsi][self.below(2)]] {
            let init = QpInit { qp_type, caps: CAPS, sq_sig_all: true };
            let (sends, receives) = (self.place(), ReceiveSource::Own(receives_at(self.place())));
            let before = self.mine.qps.len();
            self.request(create_qp(pd, (cq, cq), init, sends, receives))?;
            let Some((qp, ..)) = self.mine.qps.get(before).copied() else { continue };
            for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
                let attr = self.attributes_to(state, qp_type != QpType::Rc);
                self.request(Request::Command(Command::ModifyQp(qp, Box::new(attr))))?;
            }
        }
        Ok(())
    }

    /// Returns an arbitrary request.
    pub(super) fn arbitrary_request(&mut self) -> Request {
        match self.below(11) {
            0 => self.pretend(),
            1..=4 => self.memory_request(),
            _ => Request::Command(self.command()),
        }
    }

    /// Takes one action. Returns an error if the NIC granted something that belongs to another.
    pub(super) fn step(&mut self) -> Result<(), String> {
        match self.below(16) {
            0..=3 => self.post(),
            4 => self.scribble(),
            _ => {
                let request = self.arbitrary_request();
                return self.request(request);
            }
        }
        Ok(())
    }

    fn request(&mut self, request: Request) -> Result<(), String> {
        let mut fds = Vec::new();
        if let Request::Arena { words } = &request {
            fds.extend(Region::to_lend(*words as usize).ok().map(|(_, fd)| fd));
        } else if let Request::Memory(_) = &request {
            fds.extend(Region::to_lend(OWN).ok().map(|(_, fd)| fd));
        }
        let borrowed: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        self.client.link.send(&request, &borrowed).map_err(|error| format!("{request:?}: {error}"))?;
        let response = match self.client.reply() {
            Ok(Some(reply)) => reply,
            other => return Err(format!("{request:?} was not answered: {other:?}")),
        };
        self.tally.note(&kind_of(&request), !matches!(response, Err(_) | Ok(Response::Done(false))));
        match response {
            Ok(Response::Answer(answer)) => {
                let stolen = if self.is_surprised { None } else { self.mine.lacks(&request) };
                self.mine.note(&request, &answer);
                stolen
                    .map_or(Ok(()), |what| Err(format!("{request:?}: {what} is not its own, but {answer:?}")))
            }
            Ok(_) | Err(_) => Ok(()),
        }
    }
}
