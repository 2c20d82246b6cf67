//! One end of a pingpong over many QPs with a shared receive queue, as `ibv_srq_pingpong`.
//!
//! Exchanges of all QPs count together: the run ends when the requested number of messages were sent and received, on whichever
//! QPs.

use std::time::{Duration, Instant};

use roxie::host::{
    CompletionChannel, CompletionQueue, Device, Endpoint, MemoryRegion, QueuePair, SharedReceiveQueue,
};
use roxie::shared::Armed;
use roxie::verbs::{Access, QpCaps, QpInit, QpType, Qpn, SendWr, Wc, WcStatus};

use super::end::{self, Outcome, RECEIVE, SEND};
use super::{Options, PingpongEnd, STOCK_MTU, exchange};
use crate::device::health::Health;
use crate::device::{IdleYield, linger};
use crate::failure::Failure;
use crate::stream::Stream;

/// Default message size in bytes.
const SIZE: u32 = 4096;
/// Completions polled at once.
const BATCH: usize = 32;

/// Connected QPs and the state of the exchange.
pub(super) struct SharedEnd<'a> {
    options: &'a Options,
    device: &'a Device,
    size: u32,
    own: Vec<Endpoint>,
    // Fields are dropped in this order: the QPs before the objects they use.
    qps: Vec<QueuePair>,
    srq: SharedReceiveQueue,
    outgoing: MemoryRegion,
    incoming: MemoryRegion,
    cq: CompletionQueue,
    channel: Option<CompletionChannel>,
    expected: Vec<u8>,
    posted_receives: u32,
    sent: u64,
    received: u64,
    /// For each QP, the completions that must come before its next send.
    pending: Vec<u64>,
}

impl<'a> SharedEnd<'a> {
    /// Creates QPs in INIT with their shared receives posted.
    pub(super) fn new(
        count: u32,
        options: &'a Options,
        device: &'a Device,
        gid_index: usize,
    ) -> Result<SharedEnd<'a>, Failure> {
        if count > options.rx_depth {
            return Err(Failure::Usage(format!(
                "-r {} is too small for {count} QPs: there must be a receive for each, choose -r or -q accordingly",
                options.rx_depth
            )));
        }
        options.device.path_mtu(device, STOCK_MTU)?;
        let size = options.size.unwrap_or(SIZE);
        let channel = options.events.then(CompletionChannel::new).transpose()?;
        let pd = device.alloc_pd()?;
        let cq = device.create_cq(options.rx_depth + count, channel.as_ref())?;
        let srq = pd.create_srq(options.rx_depth, 1)?;
        let caps = QpCaps { max_send_wr: 1, max_recv_wr: 0, max_send_sge: 1, max_recv_sge: 0, max_inline: 0 };
        let init = QpInit { qp_type: QpType::Rc, caps, sq_sig_all: true };
        let qps = (0..count)
            .map(|_| pd.queue_pair(&cq).init(&init).srq(&srq).create())
            .collect::<Result<Vec<_>, _>>()?;
        let outgoing = pd.register((size as usize).max(1), Access::empty())?;
        let incoming = pd.register((size as usize).max(1), Access::LOCAL_WRITE)?;
        let expected = end::message(size, options.chk);
        outgoing.write_at(0, &expected)?;
        let own = qps.iter().map(|qp| qp.endpoint(gid_index)).collect::<Result<Vec<_>, _>>()?;
        for qp in &qps {
            qp.initialize(Access::empty())?;
        }
        let pending = vec![RECEIVE; qps.len()];
        let mut end = SharedEnd {
            options,
            device,
            size,
            own,
            qps,
            srq,
            outgoing,
            incoming,
            cq,
            channel,
            expected,
            posted_receives: 0,
            sent: 0,
            received: 0,
            pending,
        };
        end.post_receives()?;
        if end.channel.is_some() {
            end.cq.arm(Armed::Next);
        }
        for own in &end.own {
            end::show(options, "  local address: ", own)?;
        }
        Ok(end)
    }

    fn connect(&self, there: &[Endpoint]) -> Result<(), Failure> {
        let path_mtu = self.options.device.path_mtu(self.device, STOCK_MTU)?;
        let options = self.options.device.connect_options(path_mtu);
        for ((qp, own), there) in self.qps.iter().zip(&self.own).zip(there) {
            end::show(self.options, "  remote address:", there)?;
            qp.connect(own, there, &options)?;
        }
        Ok(())
    }

    fn post_receives(&mut self) -> Result<(), Failure> {
        let sge = [self.incoming.sge(0, self.size)];
        while self.posted_receives < self.options.rx_depth {
            self.srq.post_recv(RECEIVE, &sge)?;
            self.posted_receives += 1;
        }
        Ok(())
    }

    fn send(&mut self, at: usize) -> Result<(), Failure> {
        let wr = SendWr { wr_id: SEND, ..SendWr::default() };
        self.qps[at].post_send(&wr, &[self.outgoing.sge(0, self.size)])?;
        self.pending[at] = RECEIVE | SEND;
        Ok(())
    }

    fn complete(&mut self, wc: &Wc) -> Result<(), Failure> {
        let at = self.place(wc.qpn)?;
        if wc.status != WcStatus::Success {
            let what = if wc.wr_id == SEND { "sending" } else { "receiving" };
            return Err(Failure::Run(format!(
                "{what} on QP {at} of {} failed after {} sent and {} received of {}: {}",
                self.qps.len(),
                self.sent,
                self.received,
                self.options.iters,
                self.options.device.explain(wc)
            )));
        }
        if wc.wr_id == SEND {
            self.sent += 1;
        } else {
            self.take_message(wc)?;
        }
        self.pending[at] &= !wc.wr_id;
        if self.sent < self.options.iters && self.pending[at] == 0 {
            self.send(at)?;
        }
        Ok(())
    }

    fn place(&self, qpn: Qpn) -> Result<usize, Failure> {
        let at = self.own.iter().position(|own| own.qpn == qpn);
        at.ok_or_else(|| {
            Failure::Run(format!("a completion of QP {qpn}, which is none of ours: a bug of roxie's"))
        })
    }

    fn take_message(&mut self, wc: &Wc) -> Result<(), Failure> {
        self.received += 1;
        end::check_length(self.options, wc.byte_len, self.size, self.received)?;
        if self.options.chk {
            let arrived = self.incoming.to_vec(0, self.expected.len())?;
            end::check_bytes(&arrived, &self.expected, self.received)?;
        }
        self.posted_receives -= 1;
        if self.posted_receives as usize <= self.qps.len() {
            self.post_receives()?;
        }
        Ok(())
    }
}

impl PingpongEnd for SharedEnd<'_> {
    fn meet_server(&mut self, stream: &mut dyn Stream) -> Result<(), Failure> {
        let there = exchange::as_client(stream, &self.own, exchange::SHARED_SLOTS)?;
        self.connect(&there)
    }

    fn meet_client(&mut self, stream: &mut dyn Stream) -> Result<(), Failure> {
        let own = self.own.clone();
        exchange::as_server(stream, &own, exchange::SHARED_SLOTS, |there| self.connect(there))
    }

    fn play(&mut self, client: bool) -> Result<Outcome, Failure> {
        let iters = self.options.iters;
        let start = Instant::now();
        if client {
            (0..self.qps.len()).try_for_each(|at| self.send(at))?;
        }
        let mut last = start;
        let (mut completions, mut idle) = ([Wc::default(); BATCH], IdleYield::default());
        let mut health = Health::default();
        while self.sent < iters || self.received < iters {
            let count = end::wait(&self.cq, self.channel.as_ref(), &mut completions);
            idle.found(count > 0);
            let now = Instant::now();
            if count > 0 {
                last = now;
            } else {
                health.ask(self.device);
                if now - last > Duration::from_secs(self.options.patience) {
                    return Err(Failure::Run(format!(
                        "no message for {} s, after {} received and {} sent of {}: the peer has stopped, or was \
                         started with fewer iterations (-n) or QPs (-q)",
                        self.options.patience, self.received, self.sent, iters
                    )));
                }
            }
            for wc in &completions[..count] {
                self.complete(wc)?;
            }
        }
        Ok(Outcome::new(self.device, self.size, iters, start.elapsed()))
    }

    fn leave(self: Box<Self>, timeout_code: u8) {
        linger(self.device, timeout_code);
    }
}
