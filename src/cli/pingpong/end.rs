//! One end of a pingpong on a single QP.

use std::time::{Duration, Instant};

use roxie::host::{
    AddressHandle, AhOptions, CompletionChannel, CompletionQueue, Device, Endpoint, MemoryRegion,
    ProtectionDomain, QueuePair,
};
use roxie::shared::Armed;
use roxie::verbs::{Access, QpCaps, QpInit, QpType, SendWr, Wc, WcStatus};

use super::{Options, PingpongEnd, STOCK_MTU, exchange};
use crate::device::health::Health;
use crate::device::{IdleYield, linger};
use crate::failure::Failure;
use crate::output;
use crate::stream::Stream;

pub(super) const RECEIVE: u64 = 1;
pub(super) const SEND: u64 = 2;
/// Fill byte of the stock program's buffer.
const FILL: u8 = 0x7b;
/// Page size and mark: with -c, the stock program writes the mark to the first byte of each page.
const PAGE: usize = 4096;
const PAGE_MARK: u8 = 0;
/// Overwrites checked buffers, so that no message is checked twice.
const CHECKED: u8 = 0xee;

/// Q_Key of the stock program's datagrams.
const QKEY: u32 = 0x1111_1111;
/// Bytes of the network header (GRH) in front of a datagram.
const HEADER: u32 = 40;
/// Default message size in bytes, as the stock programs have it.
const SIZE: u32 = 4096;
const DATAGRAM_SIZE: u32 = 1024;

/// A connected QP and the state of the exchange.
pub(super) struct End<'a> {
    options: &'a Options,
    device: &'a Device,
    service: QpType,
    /// Message size in bytes.
    size: u32,
    own: Endpoint,
    gid_index: usize,
    // Fields are dropped in this order: the QP before the objects it uses.
    qp: QueuePair,
    outgoing: MemoryRegion,
    incoming: MemoryRegion,
    cq: CompletionQueue,
    /// Address handle and QP of the peer, for datagrams.
    datagram_path: Option<(AddressHandle, Endpoint)>,
    pd: ProtectionDomain,
    channel: Option<CompletionChannel>,
    expected: Vec<u8>,
    posted_receives: u32,
    sent: u64,
    received: u64,
    /// Completions that must come before the next send: bits `RECEIVE` and `SEND`.
    pending: u64,
}

/// Result of a run.
pub(super) struct Outcome {
    port: String,
    mode: String,
    size: u32,
    iters: u64,
    elapsed: Duration,
    retransmitted: u64,
}

impl<'a> End<'a> {
    /// Creates a QP in INIT with its receives posted.
    pub(super) fn new(
        service: QpType,
        options: &'a Options,
        device: &'a Device,
        gid_index: usize,
    ) -> Result<End<'a>, Failure> {
        options.device.path_mtu(device, STOCK_MTU)?;
        let datagrams = service.is_datagram();
        let size = options.size.unwrap_or(if datagrams { DATAGRAM_SIZE } else { SIZE });
        let most = device.largest_mtu().bytes();
        if datagrams && size as usize > most {
            return Err(Failure::Usage(format!(
                "a datagram of {size} bytes: the link carries {most} at most, choose -s accordingly"
            )));
        }
        let header = if datagrams { HEADER } else { 0 };
        let channel = options.events.then(CompletionChannel::new).transpose()?;
        let pd = device.alloc_pd()?;
        let cq = device.create_cq(options.rx_depth + 1, channel.as_ref())?;
        let caps = QpCaps {
            max_send_wr: 1,
            max_recv_wr: options.rx_depth,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 0,
        };
        let init = QpInit { qp_type: service, caps, sq_sig_all: true };
        let qp = pd.queue_pair(&cq).init(&init).create()?;
        let length = size as usize;
        let outgoing = pd.register(length.max(1), Access::empty())?;
        let incoming = pd.register((header as usize + length).max(1), Access::LOCAL_WRITE)?;
        let expected = message(size, options.chk);
        outgoing.write_at(0, &expected)?;
        let own = qp.endpoint(gid_index)?;
        if datagrams {
            qp.start_datagrams(QKEY, own.psn)?;
        } else {
            qp.initialize(Access::empty())?;
        }
        let mut end = End {
            options,
            device,
            service,
            size,
            own,
            gid_index,
            qp,
            outgoing,
            incoming,
            cq,
            datagram_path: None,
            pd,
            channel,
            expected,
            posted_receives: 0,
            sent: 0,
            received: 0,
            pending: 0,
        };
        end.post_receives()?;
        if end.channel.is_some() {
            end.cq.arm(Armed::Next);
        }
        show(options, "  local address: ", &own)?;
        Ok(end)
    }

    /// Connects the QP to the peer's.
    fn connect(&mut self, there: &Endpoint) -> Result<(), Failure> {
        show(self.options, "  remote address:", there)?;
        if self.service.is_datagram() {
            let datagram_path = self.pd.create_ah(self.gid_index, there.gid, &AhOptions::default())?;
            self.datagram_path = Some((datagram_path, *there));
            return Ok(());
        }
        let path_mtu = self.options.device.path_mtu(self.device, STOCK_MTU)?;
        Ok(self.qp.connect(&self.own, there, &self.options.device.connect_options(path_mtu))?)
    }

    /// Returns the number of bytes in front of a message in its receive.
    fn header(&self) -> u32 {
        if self.service.is_datagram() { HEADER } else { 0 }
    }

    fn complete(&mut self, wc: &Wc) -> Result<(), Failure> {
        if wc.status != WcStatus::Success {
            return Err(self.failed(wc));
        }
        if wc.wr_id == SEND {
            self.sent += 1;
        } else {
            self.take_message(wc)?;
        }
        self.pending &= !wc.wr_id;
        if self.sent < self.options.iters && self.pending == 0 {
            self.send()?;
        }
        Ok(())
    }

    fn take_message(&mut self, wc: &Wc) -> Result<(), Failure> {
        self.received += 1;
        let bytes = wc.byte_len.saturating_sub(self.header());
        check_length(self.options, bytes, self.size, self.received)?;
        if self.options.chk {
            self.check()?;
        }
        self.posted_receives -= 1;
        if self.posted_receives <= 1 {
            self.post_receives()?;
        }
        Ok(())
    }

    /// Checks the received bytes against the expected ones, then overwrites them.
    fn check(&self) -> Result<(), Failure> {
        let arrived = self.incoming.to_vec(self.header() as usize, self.expected.len())?;
        check_bytes(&arrived, &self.expected, self.received)?;
        Ok(self.incoming.write_at(self.header() as usize, &vec![CHECKED; self.expected.len()])?)
    }

    fn post_receives(&mut self) -> Result<(), Failure> {
        let sge = [self.incoming.sge(0, self.header() + self.size)];
        while self.posted_receives < self.options.rx_depth {
            self.qp.post_recv(RECEIVE, &sge)?;
            self.posted_receives += 1;
        }
        Ok(())
    }

    fn send(&mut self) -> Result<(), Failure> {
        let wr = match &self.datagram_path {
            Some((datagram_path, there)) => datagram_path.send_to(there.qpn, QKEY),
            None => SendWr::default(),
        };
        self.qp.post_send(&SendWr { wr_id: SEND, ..wr }, &[self.outgoing.sge(0, self.size)])?;
        self.pending = RECEIVE | SEND;
        Ok(())
    }

    fn failed(&self, wc: &Wc) -> Failure {
        let what = if wc.wr_id == SEND { "sending" } else { "receiving" };
        let done = if wc.wr_id == SEND { self.sent } else { self.received };
        Failure::Run(format!(
            "{what} message {} of {} failed: {}",
            done + 1,
            self.options.iters,
            self.options.device.explain(wc)
        ))
    }

    fn silence(&self) -> Failure {
        let lost = match self.service {
            QpType::Rc => "",
            _ => ", or a message was lost: this service does not retransmit",
        };
        Failure::Run(format!(
            "no message for {} s, after {} received and {} sent of {}: the peer has stopped, or was started with \
             fewer iterations (-n){}",
            self.options.patience, self.received, self.sent, self.options.iters, lost
        ))
    }
}

impl PingpongEnd for End<'_> {
    fn meet_server(&mut self, stream: &mut dyn Stream) -> Result<(), Failure> {
        let there = exchange::as_client(stream, &[self.own], exchange::ONE)?;
        self.connect(&there[0])
    }

    fn meet_client(&mut self, stream: &mut dyn Stream) -> Result<(), Failure> {
        let own = [self.own];
        exchange::as_server(stream, &own, exchange::ONE, |there| self.connect(&there[0]))
    }

    fn play(&mut self, client: bool) -> Result<Outcome, Failure> {
        let iters = self.options.iters;
        self.pending = RECEIVE;
        let start = Instant::now();
        if client {
            self.send()?;
        }
        let mut last = start;
        let (mut completions, mut idle) = ([Wc::default(); 2], IdleYield::default());
        let mut health = Health::default();
        while self.sent < iters || self.received < iters {
            let count = wait(&self.cq, self.channel.as_ref(), &mut completions);
            idle.found(count > 0);
            let now = Instant::now();
            if count > 0 {
                last = now;
            } else {
                health.ask(self.device);
                if now - last > Duration::from_secs(self.options.patience) {
                    return Err(self.silence());
                }
            }
            for wc in &completions[..count] {
                self.complete(wc)?;
            }
        }
        Ok(Outcome::new(self.device, self.size, iters, start.elapsed()))
    }

    /// Keeps a reliable QP alive while the peer may still retransmit.
    fn leave(self: Box<Self>, timeout_code: u8) {
        if self.service == QpType::Rc {
            linger(self.device, timeout_code);
        }
    }
}

/// Returns the bytes of a message.
pub(super) fn message(size: u32, marked: bool) -> Vec<u8> {
    let mut bytes = vec![FILL; size as usize];
    if marked {
        bytes.iter_mut().step_by(PAGE).for_each(|byte| *byte = PAGE_MARK);
    }
    bytes
}

pub(super) fn show(options: &Options, whose: &str, endpoint: &Endpoint) -> Result<(), Failure> {
    if options.json {
        return Ok(());
    }
    output::line(format_args!(
        "{whose} LID 0x0000, QPN 0x{:06x}, PSN 0x{:06x}, GID {}",
        endpoint.qpn.value(),
        endpoint.psn.value(),
        endpoint.gid
    ))
}

/// Takes completions by polling, or after sleeping for an event.
pub(super) fn wait(
    cq: &CompletionQueue,
    channel: Option<&CompletionChannel>,
    completions: &mut [Wc],
) -> usize {
    let count = cq.poll(completions);
    let Some(channel) = channel else { return count };
    if count > 0 {
        return count;
    }
    cq.arm(Armed::Next);
    // Completions from before the queue was armed raise no event.
    let count = cq.poll(completions);
    if count == 0 {
        channel.wait(Duration::from_millis(100));
    }
    count
}

/// Checks that the message has this end's size.
pub(super) fn check_length(options: &Options, bytes: u32, size: u32, number: u64) -> Result<(), Failure> {
    if bytes == size {
        return Ok(());
    }
    Err(Failure::Peer(format!(
        "message {number} of {} has {bytes} bytes, this end uses {size}: start both with the same -s",
        options.iters
    )))
}

/// Checks that the message has the bytes that both ends send.
pub(super) fn check_bytes(arrived: &[u8], expected: &[u8], number: u64) -> Result<(), Failure> {
    match arrived.iter().zip(expected).position(|(a, b)| a != b) {
        None => Ok(()),
        Some(at) => Err(Failure::Run(format!(
            "message {number}: byte {at} (page {}) is 0x{:02x}, it should be 0x{:02x}; does the client have -c too?",
            at / PAGE,
            arrived[at],
            expected[at]
        ))),
    }
}

impl Outcome {
    pub(super) fn new(device: &Device, size: u32, iters: u64, elapsed: Duration) -> Outcome {
        Outcome {
            port: device.port().name.clone(),
            mode: device.port().mode.clone(),
            size,
            iters,
            elapsed,
            retransmitted: device.counter("retransmitted_packets"),
        }
    }

    /// Prints the result as the stock program does, or as JSON.
    pub(super) fn print(&self, json: bool) -> Result<(), Failure> {
        let bytes = u128::from(self.size) * u128::from(self.iters) * 2;
        let seconds = self.elapsed.as_secs_f64();
        let mbit = bytes as f64 * 8.0 / 1e6 / seconds;
        let usec = seconds * 1e6 / self.iters as f64;
        if json {
            let object = serde_json::json!({
                "port": self.port, "mode": self.mode, "size": self.size, "iters": self.iters,
                "bytes": bytes as u64, "seconds": seconds, "mbit_per_second": mbit, "usec_per_iter": usec,
                "retransmitted_packets": self.retransmitted,
            });
            output::line(object)
        } else {
            output::line(format_args!("{bytes} bytes in {seconds:.2} seconds = {mbit:.2} Mbit/sec"))?;
            output::line(format_args!("{} iters in {seconds:.2} seconds = {usec:.2} usec/iter", self.iters))
        }
    }
}
