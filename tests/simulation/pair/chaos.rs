//! Objects that come and go at any moment, with traffic in flight: QPs of all services are destroyed, reset, failed, drained
//! and made again, address handles, windows, regions and shared receive queues vanish under them.
//!
//! Nothing is expected of messages. The oracle asks that everything be accounted for: each work request completes at most once,
//! to the QP that it was posted to and never after that was destroyed or reset; when a QP has been through the error state, all
//! of them have. And at the end, when everything is taken away, the tables are empty.

use std::collections::{BTreeMap, BTreeSet};

use roxie::limits::Limits;
use roxie::nic::{Answer, Command, ControlError, NicConfig, ObjectCounts, QpHandle, ReceiveSource};
use roxie::port::Port;
use roxie::port::fault::{FaultConfig, FaultPort};
use roxie::shared::work_queue::Payload;
use roxie::sim::{Host, HostQp, HostRegion, HostSrq, Pair, joined_ports};
use roxie::time::Nanos;
use roxie::verbs::{
    Access, AhId, AsyncEvent, EventKind, LKey, Mtu, MwIndex, MwType, Psn, QpAttr, QpCaps, QpIndex, QpInit,
    QpState, QpType, Qpn, RKey, SendFlags, SendWr, SrqInit, UdAddress, Wc, WindowBind, WrOpcode,
};

use super::faults;
use crate::generate::Rng;
use crate::world::Outcome;

const QKEY: u32 = 0x0bad_cafe;
const REGION: u64 = 1 << 14;
const RECEIVE: u64 = 1 << 63;
/// Completions that a QP may have outstanding: as many as its queues hold.
const DEPTH: u32 = 16;

/// Everything about a run.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub seed: u64,
    pub faults: [FaultConfig; 2],
    pub links: Vec<QpType>,
    pub steps: u64,
    /// Something is taken away once in so many steps.
    pub rate: u64,
}

impl Scenario {
    pub fn from_seed(seed: u64) -> Scenario {
        let mut rng = Rng::new(seed ^ 0xc4a05);
        let count = 1 + rng.below(5);
        Scenario {
            seed,
            faults: [faults(&mut rng), faults(&mut rng)],
            links: (0..count).map(|_| rng.pick(&[QpType::Rc, QpType::Rc, QpType::Uc, QpType::Ud])).collect(),
            steps: 100 + rng.below(300),
            rate: rng.pick(&[3, 10, 40]),
        }
    }
}

/// One life of a QP, from creation or reset to the next reset or destruction.
#[derive(Debug)]
struct End {
    qp: HostQp,
    qp_type: QpType,
    shares: bool,
    /// Posted and not completed.
    sends: BTreeSet<u64>,
    receives: BTreeSet<u64>,
}

/// What a host has, besides its QPs.
struct Side {
    region: HostRegion,
    srq: HostSrq,
    /// Posted to the shared queue and not completed.
    shared: BTreeSet<u64>,
    /// Receives of the shared queue that a QP may have taken along.
    leaks: u64,
    ah: Option<AhId>,
    window: Option<(MwIndex, u32)>,
}

struct Run {
    pair: Pair,
    rng: Rng,
    sides: [Side; 2],
    /// Both ends of each link; an end may be missing for a while.
    links: Vec<(QpType, [Option<End>; 2])>,
    next_id: u64,
    counts: BTreeMap<&'static str, u64>,
}

/// Runs a scenario. An oracle that objects panics.
pub fn run(scenario: &Scenario) -> Outcome {
    let mut run = Run::new(scenario);
    for _ in 0..scenario.steps {
        run.work();
        if run.rng.one_in(scenario.rate) {
            run.trouble();
        }
        run.pair.step();
    }
    run.finish();
    let counters = [&run.pair.a, &run.pair.b].map(|host| host.worker.counters());
    for (name, value) in counters.into_iter().flatten() {
        *run.counts.entry(name).or_default() += value;
    }
    Outcome { counts: run.counts, ..Outcome::default() }
}

impl Side {
    fn new(host: &mut Host, other: u8) -> Side {
        let access = Access::READ_WRITE | Access::MW_BIND | Access::FLUSH_GLOBAL;
        let srq = host.create_srq(SrqInit::default(), DEPTH, 1);
        let region = host.register(REGION as usize, access);
        let path = host.path(other, false);
        let ah = Some(host.create_ah(&path));
        Side { region, srq, shared: BTreeSet::new(), leaks: 0, ah, window: None }
    }
}

impl Run {
    fn new(scenario: &Scenario) -> Run {
        let (a, b) = joined_ports(4200, None);
        let faulty =
            |port, i: usize| -> Box<dyn Port> { Box::new(FaultPort::new(port, &scenario.faults[i])) };
        let host = |number: u8, port| {
            let seed = scenario.seed ^ u64::from(number);
            Host::new(number, NicConfig { limits: Limits::small(), seed, ..NicConfig::default() }, port)
        };
        let mut pair = Pair::new(host(1, faulty(a, 0)), host(2, faulty(b, 1)));
        let sides = [Side::new(&mut pair.a, 2), Side::new(&mut pair.b, 1)];
        let links = scenario.links.iter().map(|qp_type| (*qp_type, [None, None])).collect();
        let rng = Rng::new(scenario.seed ^ 0x600d);
        let mut run = Run { pair, rng, sides, links, next_id: 0, counts: BTreeMap::new() };
        for link in 0..run.links.len() {
            run.revive(link);
        }
        run
    }

    fn count(&mut self, name: &'static str) {
        *self.counts.entry(name).or_default() += 1;
    }

    fn host(&mut self, side: usize) -> &mut Host {
        if side == 0 { &mut self.pair.a } else { &mut self.pair.b }
    }

    fn call(&mut self, side: usize, command: Command) -> Result<Answer, ControlError> {
        let now = self.pair.now;
        self.host(side).call(now, command)
    }

    /// Makes the ends of a link that are missing, and connects both anew.
    fn revive(&mut self, link: usize) {
        let qp_type = self.links[link].0;
        for side in 0..2 {
            if self.links[link].1[side].is_none() {
                let shares = self.rng.one_in(2);
                let caps =
                    QpCaps { max_send_wr: DEPTH, max_recv_wr: DEPTH, max_inline: 32, ..QpCaps::default() };
                let init = QpInit { qp_type, caps, sq_sig_all: true };
                let srq = self.sides[side].srq.index;
                let host = self.host(side);
                let qp = match shares {
                    true => host.create_qp_from(init, ReceiveSource::Shared(srq), 4 * DEPTH),
                    false => host.create_qp_as(init, 4 * DEPTH),
                };
                let (sends, receives) = (BTreeSet::new(), BTreeSet::new());
                self.links[link].1[side] = Some(End { qp, qp_type, shares, sends, receives });
            } else {
                self.reset(link, side);
            }
        }
        let psns = [0; 2].map(|_: u32| self.rng.next() as u32 & 0xff_ffff);
        for side in 0..2 {
            let (here, there) = (self.handle(link, side), self.handle(link, 1 - side));
            let (now, to) = (self.pair.now, 2 - side as u8);
            bring_up(self.host(side), now, here, qp_type, to, there.qpn, [psns[side], psns[1 - side]]);
        }
        self.count("connected");
    }

    fn end(&mut self, link: usize, side: usize) -> &mut End {
        self.links[link].1[side].as_mut().expect("it is there")
    }

    fn handle(&mut self, link: usize, side: usize) -> QpHandle {
        self.end(link, side).qp.handle
    }

    /// Posts, and takes completions.
    fn work(&mut self) {
        for link in 0..self.links.len() {
            for side in 0..2 {
                if self.links[link].1[side].is_none() {
                    continue;
                }
                for _ in 0..self.rng.below(3) {
                    self.post_send(link, side);
                    self.post_receive(link, side);
                }
            }
        }
        self.poll();
    }

    fn post_send(&mut self, link: usize, side: usize) {
        self.next_id += 1;
        let id = self.next_id;
        let (qp_type, there) = (self.links[link].0, self.links[link].1[1 - side].as_ref());
        let remote_qpn = there.map_or(Qpn::new(0x1234), |end| end.qp.handle.qpn);
        let (near, far) = (&self.sides[side], &self.sides[1 - side]);
        let ud = UdAddress { ah: near.ah.unwrap_or_default(), remote_qpn, remote_qkey: QKEY };
        let offset = self.rng.below(REGION / 2) & !7;
        let mut wr = SendWr {
            wr_id: id,
            remote_addr: far.region.address + offset,
            rkey: RKey(far.region.key),
            ud,
            ..SendWr::default()
        };
        use WrOpcode as W;
        wr.opcode = match qp_type {
            QpType::Ud => W::Send,
            QpType::Uc => self.rng.pick(&[W::Send, W::Write, W::WriteImm, W::BindWindow]),
            _ => self.rng.pick(&[
                W::Send,
                W::SendImm,
                W::Write,
                W::WriteImm,
                W::Read,
                W::FetchAdd,
                W::AtomicWrite,
                W::BindWindow,
            ]),
        };
        let near = &self.sides[side];
        if wr.opcode == W::BindWindow {
            let Some((_, key)) = near.window else { return };
            wr = bind(id, &near.region, key);
        }
        let length = match wr.opcode {
            W::FetchAdd | W::AtomicWrite => 8,
            W::BindWindow => 0,
            _ => self.rng.below(if qp_type == QpType::Ud { 256 } else { 2000 }) as u32,
        };
        let sges = [self.sides[side].region.sge(offset, length)];
        let list = if wr.opcode == W::BindWindow { &[][..] } else { &sges[..] };
        let host = [&self.pair.a, &self.pair.b][side];
        let Some(end) = self.links[link].1[side].as_mut() else { return };
        if host.post_send(&end.qp, &wr, Payload::Sges(list)).is_ok() {
            end.sends.insert(id);
        }
    }

    fn post_receive(&mut self, link: usize, side: usize) {
        self.next_id += 1;
        let id = RECEIVE | self.next_id;
        let sges = [self.sides[side].region.sge(REGION / 2, 2048)];
        let host = [&self.pair.a, &self.pair.b][side];
        let Some(end) = self.links[link].1[side].as_mut() else { return };
        if end.shares {
            if host.post_srq_recv(&self.sides[side].srq, id, &sges).is_ok() {
                self.sides[side].shared.insert(id);
            }
        } else if host.post_recv(&end.qp, id, &sges).is_ok() {
            end.receives.insert(id);
        }
    }

    fn poll(&mut self) {
        let mut taken = 0;
        for (_, ends) in &mut self.links {
            for (side, end) in ends.iter_mut().enumerate() {
                let Some(end) = end else { continue };
                while let Some(wc) = end.qp.cq.poll() {
                    end.complete(&wc, &mut self.sides[side]);
                    taken += 1;
                }
            }
        }
        *self.counts.entry("completions").or_default() += taken;
        for side in 0..2 {
            while let Some(event) = self.host(side).event() {
                match event {
                    AsyncEvent::Qp(index, kind) => self.event(side, index, kind),
                    other => panic!("{other:?}"),
                }
            }
        }
    }

    fn event(&mut self, side: usize, index: QpIndex, kind: EventKind) {
        // Events of QPs that are gone meanwhile may still be under way.
        let mut ends = self.links.iter().filter_map(|(_, ends)| ends[side].as_ref());
        if let Some(end) = ends.find(|end| end.qp.handle.index == index) {
            assert!(kind != EventKind::LastWqeReached || end.shares, "{index:?} shares nothing");
        }
        match kind {
            EventKind::LastWqeReached => self.count("last_wqe"),
            EventKind::SqDrained => self.count("drained"),
            _ => self.count("other_events"),
        }
    }

    fn trouble(&mut self) {
        let (link, side) = (self.rng.below(self.links.len() as u64) as usize, self.rng.below(2) as usize);
        let there = self.links[link].1[side].is_some();
        match self.rng.below(9) {
            0 if there => self.destroy(link, side),
            1 if there => self.reset(link, side),
            2 if there => self.set(link, side, QpState::Err),
            3 if there => self.drain(link, side),
            4 => self.replace_way(side),
            5 => self.replace_window(side),
            6 => self.replace_region(side),
            7 => self.resize(side),
            _ => self.revive(link),
        }
    }

    /// Whatever has come before is taken: nothing may come after.
    fn destroy(&mut self, link: usize, side: usize) {
        self.poll();
        let index = self.handle(link, side).index;
        self.call(side, Command::DestroyQp(index)).expect("it was there");
        let end = self.links[link].1[side].take().expect("it was there");
        assert!(end.qp.cq.poll().is_none(), "a completion after the destruction of {:?}", end.qp.handle);
        self.sides[side].leaks += u64::from(end.shares);
        self.call(side, Command::DestroyCq(end.qp.cq_index)).expect("nobody uses it");
        self.count("destroyed");
    }

    fn reset(&mut self, link: usize, side: usize) {
        self.poll();
        self.set(link, side, QpState::Reset);
        let end = self.end(link, side);
        assert!(end.qp.cq.poll().is_none(), "a completion after the reset of {:?}", end.qp.handle);
        end.sends.clear();
        end.receives.clear();
        let shares = u64::from(end.shares);
        self.sides[side].leaks += shares;
        self.count("reset");
    }

    fn set(&mut self, link: usize, side: usize, state: QpState) {
        let (now, index) = (self.pair.now, self.handle(link, side).index);
        let attr = QpAttr { state: Some(state), ..QpAttr::default() };
        self.host(side).modify_at(now, index, &attr).expect("from every state");
        if state == QpState::Err {
            self.count("failed");
        }
    }

    /// Lets a send queue drain, or go on, if it can.
    fn drain(&mut self, link: usize, side: usize) {
        let (now, index) = (self.pair.now, self.handle(link, side).index);
        let status = self.host(side).query_at(now, index);
        let (to, notify) = match status.state {
            QpState::Rts => (QpState::Sqd, Some(true)),
            QpState::Sqd => (QpState::Rts, None),
            _ => return,
        };
        let attr = QpAttr { state: Some(to), en_sqd_async_notify: notify, ..QpAttr::default() };
        // Asking is a pass, in which it may have failed.
        if self.host(side).modify_at(now, index, &attr).is_err() {
            return;
        }
        self.count(if to == QpState::Sqd { "drains" } else { "resumes" });
    }

    fn replace_way(&mut self, side: usize) {
        match self.sides[side].ah.take() {
            Some(ah) => {
                self.call(side, Command::DestroyAh(ah)).expect("it was there");
                self.count("handles_destroyed");
            }
            None => {
                let to = 2 - side as u8;
                let path = self.host(side).path(to, false);
                self.sides[side].ah = Some(self.host(side).create_ah(&path));
            }
        }
    }

    fn replace_window(&mut self, side: usize) {
        match self.sides[side].window.take() {
            Some((window, _)) => {
                self.call(side, Command::FreeWindow(window)).expect("it was there");
                self.count("windows_freed");
            }
            None => {
                let pd = self.host(side).pd();
                match self.call(side, Command::AllocWindow { pd, kind: MwType::Two }) {
                    Ok(Answer::Window(window, key)) => self.sides[side].window = Some((window, key)),
                    other => panic!("{other:?}"),
                }
            }
        }
    }

    /// A region with a window on it stays.
    fn replace_region(&mut self, side: usize) {
        let index = self.sides[side].region.index;
        match self.call(side, Command::DeregisterMemory(index)) {
            Ok(_) => {
                let access = Access::READ_WRITE | Access::MW_BIND | Access::FLUSH_GLOBAL;
                self.sides[side].region = self.host(side).register(REGION as usize, access);
                self.count("regions_deregistered");
            }
            Err(ControlError::Busy { .. }) => self.count("regions_busy"),
            Err(other) => panic!("{other}"),
        }
    }

    fn resize(&mut self, side: usize) {
        let size = 1 + self.rng.below(2 * u64::from(DEPTH)) as u32;
        let now = self.pair.now;
        let (host, sides) = if side == 0 { (&mut self.pair.a, 0) } else { (&mut self.pair.b, 1) };
        let resized = host.resize_srq(now, &mut self.sides[sides].srq, size);
        assert!(matches!(resized, Ok(()) | Err(ControlError::TooSmall { .. })), "{resized:?}");
        let busy = self.call(side, Command::DestroySrq(self.sides[side].srq.index));
        match busy {
            Err(ControlError::Busy { .. }) => self.count("shared_queue_busy"),
            Err(other) => panic!("{other}"),
            Ok(_) => {
                // Nobody was made for it: what waited in it is gone with it.
                let host = if side == 0 { &mut self.pair.a } else { &mut self.pair.b };
                self.sides[side].srq = host.create_srq(SrqInit::default(), DEPTH, 1);
                self.sides[side].shared.clear();
                self.sides[side].leaks = 0;
                self.count("shared_queues_destroyed");
            }
        }
    }

    /// Everything goes through the error state, then away.
    fn finish(&mut self) {
        let both =
            |run: &Run| (0..run.links.len()).flat_map(|link| [(link, 0), (link, 1)]).collect::<Vec<_>>();
        for (link, side) in both(self) {
            if self.links[link].1[side].is_some() {
                self.set(link, side, QpState::Err);
            }
        }
        for _ in 0..50 {
            self.pair.step();
            self.poll();
        }
        for (link, side) in both(self) {
            let Some(end) = &self.links[link].1[side] else { continue };
            assert!(end.sends.is_empty(), "{:?}: sends {:?} are not accounted for", end.qp.handle, end.sends);
            assert!(
                end.receives.is_empty(),
                "{:?}: receives {:?} are not accounted for",
                end.qp.handle,
                end.receives
            );
        }
        for side in 0..2 {
            let now = self.pair.now;
            let host = if side == 0 { &mut self.pair.a } else { &mut self.pair.b };
            let waiting = u64::from(host.query_srq(now, &self.sides[side].srq).waiting);
            let open = self.sides[side].shared.len() as u64;
            let leaks = self.sides[side].leaks;
            assert!(
                waiting <= open && open <= waiting + leaks,
                "side {side}: {open} shared receives are open, {waiting} wait, {leaks} may be gone"
            );
        }
        for (link, side) in both(self) {
            if self.links[link].1[side].is_some() {
                self.destroy(link, side);
            }
        }
        for side in 0..2 {
            self.take_away(side);
        }
    }

    fn take_away(&mut self, side: usize) {
        if self.sides[side].ah.is_some() {
            self.replace_way(side);
        }
        if self.sides[side].window.is_some() {
            self.replace_window(side);
        }
        let (region, srq) = (self.sides[side].region.index, self.sides[side].srq.index);
        let pd = self.host(side).pd();
        for command in [Command::DeregisterMemory(region), Command::DestroySrq(srq), Command::DeallocPd(pd)] {
            let what = format!("{command:?}");
            self.call(side, command).unwrap_or_else(|error| panic!("{what}: {error}"));
        }
        let left = self.host(side).worker.nic().objects();
        assert!(left == ObjectCounts::default(), "left on side {side}: {left:?}");
        assert!(!self.host(side).worker.nic().has_ready(), "something is still to be sent");
    }
}

impl End {
    fn complete(&mut self, wc: &Wc, side: &mut Side) {
        let what = format!("{:?} {:?}: {wc:?}", self.qp_type, self.qp.handle);
        assert!(wc.qpn == self.qp.handle.qpn, "{what}: not its own");
        let open = match (wc.wr_id & RECEIVE != 0, self.shares) {
            (false, _) => &mut self.sends,
            (true, true) => &mut side.shared,
            (true, false) => &mut self.receives,
        };
        assert!(open.remove(&wc.wr_id), "{what}: not open");
    }
}

fn bind(wr_id: u64, region: &HostRegion, window: u32) -> SendWr {
    let bind = WindowBind {
        window: RKey(window),
        new_key: RKey(window & !0xff | (wr_id as u32 & 0xff)),
        region: LKey(region.key),
        address: region.address,
        length: 64,
        access: Access::REMOTE_WRITE,
    };
    SendWr::bind_window(wr_id, SendFlags::SIGNALED, &bind)
}

fn bring_up(
    host: &mut Host,
    now: Nanos,
    qp: QpHandle,
    qp_type: QpType,
    to: u8,
    peer: Qpn,
    [own, theirs]: [u32; 2],
) {
    let (connected, reliable) = (!qp_type.is_datagram(), qp_type == QpType::Rc);
    let attrs = [
        QpAttr {
            state: Some(QpState::Init),
            pkey_index: Some(0),
            port: Some(1),
            access: connected.then_some(Access::READ_WRITE),
            qkey: (!connected).then_some(QKEY),
            ..QpAttr::default()
        },
        QpAttr {
            state: Some(QpState::Rtr),
            av: connected.then(|| host.path(to, false)),
            path_mtu: connected.then_some(Mtu::Mtu256),
            dest_qpn: connected.then_some(peer),
            rq_psn: connected.then_some(Psn::new(theirs)),
            max_dest_rd_atomic: reliable.then_some(4),
            min_rnr_timer: reliable.then_some(1),
            ..QpAttr::default()
        },
        QpAttr {
            state: Some(QpState::Rts),
            sq_psn: Some(Psn::new(own)),
            timeout: reliable.then_some(8),
            retry_cnt: reliable.then_some(3),
            rnr_retry: reliable.then_some(7),
            max_rd_atomic: reliable.then_some(4),
            ..QpAttr::default()
        },
    ];
    for attr in &attrs {
        host.modify_at(now, qp.index, attr).expect("a legal transition");
    }
}
