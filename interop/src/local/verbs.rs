//! The verbs of Roxie's end.

use std::net::IpAddr;
use std::ops::Range;
use std::time::{Duration, Instant};

use roxie::host::{AhOptions, CompletionChannel, ConnectOptions, Endpoint, SharedReceiveQueue, WindowRange};
use roxie::shared::Armed;
use roxie::verbs::{
    self, AsyncEvent, EventKind, FlushRange, Mtu, MwType, Psn, QpCaps, QpInit, QpState, QpType, Qpn, RKey,
    SendFlags, SendWr, UdAddress, Wc, WcFlags, WcOpcode, WrOpcode,
};
use roxie::wire::Gid;

use super::{Named, Open, PairObjects, Roxie, program};
use crate::end::{
    Access, Completion, Connection, Destination, Done, End, Flush, Handle, Pair, PairKind, Queue, Receive,
    Registration, Request, State, Status, Window,
};
use crate::error::Error;
use crate::pattern::{self, Mismatch};
use crate::rows::{Family, Op};

/// Size of a queue pair's queues, and of a shared one.
const QUEUE: u32 = 64;

impl End for Roxie<'_> {
    fn address(&mut self, family: Family) -> Result<IpAddr, Error> {
        let gid = self.own_address(family);
        gid.ok_or_else(|| Error::Local(format!("{} has no {family} address", self.site.interface)))
    }

    fn register(&mut self, size: usize, access: Access) -> Result<Registration, Error> {
        let mut rights = verbs::Access::LOCAL_WRITE;
        rights.set(verbs::Access::REMOTE_READ, access.read);
        rights.set(verbs::Access::REMOTE_WRITE, access.write);
        rights.set(verbs::Access::REMOTE_ATOMIC, access.atomic);
        rights.set(verbs::Access::MW_BIND, access.bind);
        rights.set(verbs::Access::ZERO_BASED, access.zero_based);
        rights.set(verbs::Access::FLUSH_GLOBAL, access.flush_global);
        rights.set(verbs::Access::FLUSH_PERSISTENT, access.flush_persistent);
        let open = self.open_mut()?;
        let region = open.pd.register(size, rights).named("register")?;
        let made = Registration { key: open.regions.len(), addr: region.address(), rkey: region.rkey().0 };
        open.regions.push(region);
        Ok(made)
    }

    fn fill(&mut self, region: Registration, range: Range<usize>, seed: u64) -> Result<(), Error> {
        let mut bytes = vec![0; range.len()];
        pattern::fill(&mut bytes, seed);
        self.open()?.region(region)?.write_at(range.start, &bytes).named("fill")
    }

    fn mismatch(
        &mut self,
        region: Registration,
        range: Range<usize>,
        seed: u64,
    ) -> Result<Option<Mismatch>, Error> {
        let bytes = self.open()?.region(region)?.to_vec(range.start, range.len()).named("check")?;
        Ok(pattern::mismatch(&bytes, seed))
    }

    fn store(&mut self, region: Registration, offset: usize, value: u64) -> Result<(), Error> {
        self.open()?.region(region)?.write_at(offset, &value.to_ne_bytes()).named("store")
    }

    fn load(&mut self, region: Registration, offset: usize) -> Result<u64, Error> {
        let mut bytes = [0; 8];
        self.open()?.region(region)?.read_at(offset, &mut bytes).named("load")?;
        Ok(u64::from_ne_bytes(bytes))
    }

    fn read(&mut self, region: Registration, range: Range<usize>) -> Result<Vec<u8>, Error> {
        self.open()?.region(region)?.to_vec(range.start, range.len()).named("read")
    }

    fn create_pair(&mut self, kind: PairKind) -> Result<Pair, Error> {
        let open = self.open_mut()?;
        let objects = open.create_pair(kind)?;
        let made = Pair { key: open.pairs.len(), qpn: objects.qp.qpn().value() };
        open.pairs.push(objects);
        Ok(made)
    }

    fn connect(&mut self, pair: Pair, c: &Connection) -> Result<(), Error> {
        let open = self.open()?;
        let (_, local) = open.gid(c.family)?;
        let here = Endpoint::new(Qpn::new(pair.qpn), Psn::new(c.sq_psn), local.gid);
        let here = Endpoint { encapsulation: local.encapsulation, ..here };
        let there = Endpoint::new(Qpn::new(c.remote_qpn), Psn::new(c.rq_psn), Gid::from(c.remote));
        let options = ConnectOptions {
            path_mtu: Some(Mtu::from_bytes(c.mtu).ok_or(c.mtu).named("no path MTU")?),
            timeout: c.timeout,
            retry_cnt: c.retry,
            rnr_retry: c.rnr_retry,
            ..ConnectOptions::default()
        };
        let qp = &open.pair(pair)?.qp;
        // Neighbours are resolved in the calling thread's network namespace.
        self.site.within(|| qp.connect(&here, &there, &options))?.named("connect")
    }

    fn post_receive(&mut self, pair: Pair, receive: &Receive) -> Result<(), Error> {
        let open = self.open()?;
        let entries = open.entries(receive.to)?;
        open.pair(pair)?.qp.post_recv(receive.wr_id, &entries).named("post a receive")
    }

    fn post_send(&mut self, pair: Pair, request: &Request) -> Result<(), Error> {
        let open = self.open()?;
        let entries = open.entries(request.local)?;
        let wr = match request.flush {
            Some(flush) => SendWr::flush(request.wr_id, SendFlags::SIGNALED, &flush_range(request, flush)?),
            None => SendWr {
                wr_id: request.wr_id,
                opcode: opcode(request.op),
                imm: request.imm,
                remote_addr: request.remote_addr,
                rkey: RKey(request.rkey),
                compare_add: request.compare_add,
                swap: request.swap,
                ud: open.destination(request.datagram)?,
                ..SendWr::default()
            },
        };
        open.pair(pair)?.qp.post_send(&wr, &entries).named("post a request")
    }

    fn poll(&mut self, pair: Pair, least: usize, timeout: Duration) -> Result<Vec<Completion>, Error> {
        let objects = self.open()?.pair(pair)?;
        let until = Instant::now() + timeout;
        let mut seen = Vec::new();
        loop {
            // Arm first, so that a completion after this poll raises an event.
            objects.cq.arm(Armed::Next);
            seen.extend(std::iter::from_fn(|| objects.cq.poll_one()).map(|wc| completion(&wc)));
            let remaining = until.saturating_duration_since(Instant::now());
            if seen.len() >= least || remaining.is_zero() {
                return Ok(seen);
            }
            objects.channel.wait(remaining);
        }
    }

    fn create_handle(&mut self, family: Family, to: IpAddr) -> Result<Handle, Error> {
        let open = self.open()?;
        let (index, _) = open.gid(family)?;
        // Neighbours are resolved in the calling thread's network namespace.
        let made = self.site.within(|| open.pd.create_ah(index, Gid::from(to), &AhOptions::default()))?;
        let handles = &mut self.open_mut()?.handles;
        handles.push(made.named("an address handle")?);
        Ok(Handle { key: handles.len() - 1 })
    }

    fn create_queue(&mut self) -> Result<Queue, Error> {
        let open = self.open_mut()?;
        open.queues.push(open.pd.create_srq(QUEUE, 1).named("a shared receive queue")?);
        Ok(Queue { key: open.queues.len() - 1 })
    }

    fn post_shared(&mut self, queue: Queue, receive: &Receive) -> Result<(), Error> {
        let open = self.open()?;
        let entries = open.entries(receive.to)?;
        open.queue(queue)?.post_recv(receive.wr_id, &entries).named("post a shared receive")
    }

    fn arm_limit(&mut self, queue: Queue, limit: u32) -> Result<(), Error> {
        self.open()?.queue(queue)?.arm(limit).named("arm a limit")
    }

    fn limit_reached(&mut self, timeout: Duration) -> Result<bool, Error> {
        let device = &self.open()?.device;
        let until = Instant::now() + timeout;
        loop {
            match device.event() {
                Some(AsyncEvent::Srq(_, EventKind::SrqLimitReached)) => return Ok(true),
                Some(_) => {}
                None if Instant::now() >= until => return Ok(false),
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    fn create_window(&mut self) -> Result<Window, Error> {
        let open = self.open_mut()?;
        open.windows.push(open.pd.alloc_window(MwType::Two).named("a window")?);
        Ok(Window { key: open.windows.len() - 1 })
    }

    fn post_bind(
        &mut self,
        pair: Pair,
        wr_id: u64,
        window: Window,
        (region, offset, length): (Registration, usize, usize),
    ) -> Result<u32, Error> {
        let open = self.open_mut()?;
        let no_such = |what: &str| Error::Local(format!("there is no {what} of this key"));
        let window = open.windows.get_mut(window.key).ok_or_else(|| no_such("window"))?;
        let range = WindowRange {
            region: open.regions.get(region.key).ok_or_else(|| no_such("region"))?,
            offset,
            length,
            access: verbs::Access::REMOTE_READ | verbs::Access::REMOTE_WRITE,
        };
        let qp = &open.pairs.get(pair.key).ok_or_else(|| no_such("queue pair"))?.qp;
        Ok(qp.bind_window(wr_id, SendFlags::SIGNALED, window, &range).named("post a bind")?.0)
    }

    fn post_invalidate(&mut self, pair: Pair, wr_id: u64, rkey: u32) -> Result<(), Error> {
        let qp = &self.open()?.pair(pair)?.qp;
        qp.invalidate(wr_id, SendFlags::SIGNALED, RKey(rkey)).named("post an invalidation")
    }

    fn attach(&mut self, pair: Pair, group: IpAddr) -> Result<(), Error> {
        let qp = &self.open()?.pair(pair)?.qp;
        self.site.within(|| qp.attach_multicast(Gid::from(group)))?.named("attach")
    }

    fn detach(&mut self, pair: Pair, group: IpAddr) -> Result<(), Error> {
        let qp = &self.open()?.pair(pair)?.qp;
        self.site.within(|| qp.detach_multicast(Gid::from(group)))?.named("detach")
    }

    fn is_member(&mut self, group: IpAddr) -> Result<bool, Error> {
        self.site.within(|| program::is_in_group(group))?
    }

    fn notifications(&mut self) -> Result<Option<u64>, Error> {
        let counters = self.open()?.device.counters();
        Ok(Some(counters.iter().filter(|(name, _)| *name == "rp_cnp_handled").map(|(_, n)| n).sum()))
    }

    fn state(&mut self, pair: Pair) -> Result<State, Error> {
        Ok(match self.open()?.pair(pair)?.qp.query().named("query")?.state {
            QpState::Reset => State::Reset,
            QpState::Init => State::Init,
            QpState::Rtr => State::Rtr,
            QpState::Rts => State::Rts,
            QpState::Sqd => State::Sqd,
            QpState::Sqe => State::Sqe,
            QpState::Err => State::Err,
        })
    }

    fn reset(&mut self) -> Result<(), Error> {
        let open = self.open_mut()?;
        open.pairs.clear();
        open.handles.clear();
        open.queues.clear();
        open.windows.clear();
        open.regions.clear();
        Ok(())
    }
}

impl Open {
    fn create_pair(&self, kind: PairKind) -> Result<PairObjects, Error> {
        let channel = CompletionChannel::new().named("a channel")?;
        let cq = self.device.create_cq(2 * QUEUE, Some(&channel)).named("a completion queue")?;
        let caps = QpCaps { max_send_wr: QUEUE, max_recv_wr: QUEUE, ..QpCaps::default() };
        let qp_type = match kind {
            PairKind::Rc | PairKind::RcSharing(_) => QpType::Rc,
            PairKind::Uc => QpType::Uc,
            PairKind::Ud { .. } => QpType::Ud,
        };
        let init = QpInit { qp_type, caps, sq_sig_all: true };
        let builder = self.pd.queue_pair(&cq).init(&init);
        let builder = match kind {
            PairKind::RcSharing(queue) => builder.srq(self.queue(queue)?),
            _ => builder,
        };
        let qp = builder.create().named("create a queue pair")?;
        match kind {
            PairKind::Ud { qkey, psn } => qp.start_datagrams(qkey, Psn::new(psn)),
            _ => qp.initialize(
                ConnectOptions::default().access
                    | verbs::Access::FLUSH_GLOBAL
                    | verbs::Access::FLUSH_PERSISTENT,
            ),
        }
        .named("the first states of a queue pair")?;
        Ok(PairObjects { qp, cq, channel })
    }

    fn queue(&self, queue: Queue) -> Result<&SharedReceiveQueue, Error> {
        let queue_entry = self.queues.get(queue.key);
        queue_entry.ok_or_else(|| Error::Local(format!("there is no shared receive queue {}", queue.key)))
    }

    fn destination(&self, to: Option<Destination>) -> Result<UdAddress, Error> {
        let Some(to) = to else { return Ok(UdAddress::default()) };
        let key = to.handle.key;
        let handle = self.handles.get(key);
        let handle = handle.ok_or_else(|| Error::Local(format!("there is no address handle {key}")))?;
        Ok(UdAddress { ah: handle.id(), remote_qpn: Qpn::new(to.qpn), remote_qkey: to.qkey })
    }
}

fn flush_range(request: &Request, flush: Flush) -> Result<FlushRange, Error> {
    Ok(FlushRange {
        rkey: RKey(request.rkey),
        address: request.remote_addr,
        length: u32::try_from(flush.length).named("the length of a FLUSH")?,
        global: flush.global,
        persistent: flush.persistent,
        whole_region: flush.whole_region,
    })
}

fn opcode(op: Op) -> WrOpcode {
    match op {
        Op::Send => WrOpcode::Send,
        Op::SendImm => WrOpcode::SendImm,
        Op::Write => WrOpcode::Write,
        Op::WriteImm => WrOpcode::WriteImm,
        Op::Read => WrOpcode::Read,
        Op::CmpSwap => WrOpcode::CompareSwap,
        Op::FetchAdd => WrOpcode::FetchAdd,
        Op::SendInv => WrOpcode::SendInvalidate,
        Op::AtomicWrite => WrOpcode::AtomicWrite,
        Op::Flush => WrOpcode::Flush,
    }
}

fn completion(wc: &Wc) -> Completion {
    let status = Status(wc.status as u32);
    let good = status == Status::SUCCESS;
    let done = match wc.opcode {
        WcOpcode::Send => Done::Request(Op::Send),
        WcOpcode::Write => Done::Request(Op::Write),
        WcOpcode::Read => Done::Request(Op::Read),
        WcOpcode::CompareSwap => Done::Request(Op::CmpSwap),
        WcOpcode::FetchAdd => Done::Request(Op::FetchAdd),
        WcOpcode::AtomicWrite => Done::Request(Op::AtomicWrite),
        WcOpcode::Flush => Done::Request(Op::Flush),
        WcOpcode::BindWindow => Done::Bind,
        WcOpcode::LocalInvalidate => Done::LocalInvalidate,
        WcOpcode::Recv => Done::Receive,
        WcOpcode::RecvWriteImm => Done::ReceiveWriteImm,
        other => panic!("the matrix posts nothing that completes as {other:?}"),
    };
    let has = |flag| good && wc.flags.contains(flag);
    Completion {
        wr_id: wc.wr_id,
        status,
        done: good.then_some(done),
        byte_len: if good { wc.byte_len } else { 0 },
        imm: has(WcFlags::WITH_IMM).then_some(wc.imm),
        invalidated: has(WcFlags::WITH_INV).then_some(wc.imm),
        datagram_from: has(WcFlags::GRH).then_some(wc.src_qp.value()),
    }
}
