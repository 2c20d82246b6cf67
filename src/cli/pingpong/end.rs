//! One end of a pingpong: on one QP, or on several whose receives come from one shared queue.
//!
//! Exchanges of all QPs count together: the run ends when the requested number of messages were sent and received, on
//! whichever QPs.

use std::time::{Duration, Instant};

use roxie::host::{CompletionChannel, CompletionQueue, Device, Endpoint};
use roxie::shared::Armed;
use roxie::verbs::{Access, QpType, SendWr, Wc, WcStatus};
use roxie_options::{IdleYield, linger};
use roxie_report::failure::Failure;
use roxie_report::formats;
use roxie_report::output;

use super::{Kind, Options, STOCK_MTU, exchange};
use crate::device::health::Health;
use crate::device::{QueuePairs, Shape};
use crate::stream::Stream;

/// Bit of a send's `wr_id`, and of what must complete before the next send.
const SEND: u64 = 1;
/// As `SEND`, of a receive.
const RECEIVE: u64 = 2;
/// Completions polled at once.
const BATCH: usize = 32;
/// Fill byte of the stock program's buffer.
const FILL: u8 = 0x7b;
/// Page size and mark: with -c, the stock program writes the mark to the first byte of each page.
const PAGE: usize = 4096;
const PAGE_MARK: u8 = 0;
/// Overwrites checked buffers, so that no message is checked twice.
const CHECKED: u8 = 0xee;
/// Default message size in bytes, as the stock programs have it.
const SIZE: u32 = 4096;
const DATAGRAM_SIZE: u32 = 1024;

/// Connected QPs and the state of the exchange.
pub(super) struct End<'a> {
    kind: Kind,
    options: &'a Options,
    device: &'a Device,
    /// Message size in bytes.
    size: u32,
    pairs: QueuePairs,
    channel: Option<CompletionChannel>,
    expected: Vec<u8>,
    posted_receives: u32,
    sent: u64,
    received: u64,
    /// For each QP, the completions that must come before its next send: bits `RECEIVE` and `SEND`.
    pending: Vec<u64>,
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
    /// Creates QPs in INIT with their receives posted.
    pub(super) fn new(
        kind: Kind,
        options: &'a Options,
        device: &'a Device,
        gid_index: usize,
    ) -> Result<End<'a>, Failure> {
        if kind.qps() > options.rx_depth {
            return Err(Failure::Usage(format!(
                "-r {} is too small for {} QPs: there must be a receive for each, choose -r or -q accordingly",
                options.rx_depth,
                kind.qps()
            )));
        }
        options.device.path_mtu(device, STOCK_MTU)?;
        let default = if kind.service().is_datagram() { DATAGRAM_SIZE } else { SIZE };
        let size = options.size.unwrap_or(default);
        let channel = options.events.then(CompletionChannel::new).transpose()?;
        let shape = Shape {
            service: kind.service(),
            count: kind.qps(),
            max_send_wr: 1,
            max_recv_wr: options.rx_depth,
            is_shared: kind.is_shared(),
            sq_sig_all: true,
            channel: channel.as_ref(),
            size,
            access: Access::empty(),
        };
        let pairs = QueuePairs::new(device, gid_index, &shape)?;
        let expected = message(size, options.chk);
        pairs.outgoing.write_at(0, &expected)?;
        let mut end = End {
            kind,
            options,
            device,
            size,
            pending: vec![RECEIVE; pairs.qps.len()],
            pairs,
            channel,
            expected,
            posted_receives: 0,
            sent: 0,
            received: 0,
        };
        end.post_receives()?;
        if end.channel.is_some() {
            end.pairs.cq.arm(Armed::Next);
        }
        for own in &end.pairs.own {
            show(options, "  local address: ", own)?;
        }
        Ok(end)
    }

    /// Exchanges addresses with the server, and connects.
    pub(super) fn meet_server(&mut self, stream: &mut dyn Stream) -> Result<(), Failure> {
        let there = exchange::as_client(stream, &self.pairs.own, self.kind.slots())?;
        self.connect(&there)
    }

    /// Exchanges addresses with the client, and connects.
    pub(super) fn meet_client(&mut self, stream: &mut dyn Stream) -> Result<(), Failure> {
        let own = self.pairs.own.clone();
        exchange::as_server(stream, &own, self.kind.slots(), |there| self.connect(there))
    }

    fn connect(&mut self, there: &[Endpoint]) -> Result<(), Failure> {
        for there in there {
            show(self.options, "  remote address:", there)?;
        }
        let path_mtu = self.options.device.path_mtu(self.device, STOCK_MTU)?;
        self.pairs.connect(there, &self.options.device.connect_options(path_mtu))
    }

    /// Runs all exchanges; the client begins.
    pub(super) fn play(&mut self, client: bool) -> Result<Outcome, Failure> {
        let iters = self.options.iters;
        let start = Instant::now();
        if client {
            (0..self.pairs.qps.len()).try_for_each(|at| self.send(at))?;
        }
        let mut last = start;
        let (mut completions, mut idle) = ([Wc::default(); BATCH], IdleYield::default());
        let mut health = Health::default();
        while self.sent < iters || self.received < iters {
            let count = wait(&self.pairs.cq, self.channel.as_ref(), &mut completions);
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

    /// Ends. Keeps reliable QPs alive while the peer may still retransmit.
    pub(super) fn leave(self, timeout_code: u8) {
        if self.kind.service() == QpType::Rc {
            linger(self.device, timeout_code);
        }
    }

    fn complete(&mut self, wc: &Wc) -> Result<(), Failure> {
        let at = self.pairs.own.iter().position(|own| own.qpn == wc.qpn).ok_or_else(|| {
            Failure::Run(format!("a completion of QP {}, which is none of ours: a bug of roxie's", wc.qpn))
        })?;
        if wc.status != WcStatus::Success {
            return Err(self.failed(wc));
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

    fn take_message(&mut self, wc: &Wc) -> Result<(), Failure> {
        self.received += 1;
        let bytes = wc.byte_len.saturating_sub(self.pairs.header());
        check_length(self.options, bytes, self.size, self.received)?;
        if self.options.chk {
            self.check()?;
        }
        self.posted_receives -= 1;
        if self.posted_receives <= self.kind.qps() {
            self.post_receives()?;
        }
        Ok(())
    }

    /// Checks the received bytes against the expected ones. Then overwrites them, unless another QP's message may be
    /// arriving there.
    fn check(&self) -> Result<(), Failure> {
        let (at, incoming) = (self.pairs.header() as usize, &self.pairs.incoming);
        check_bytes(&incoming.to_vec(at, self.expected.len())?, &self.expected, self.received)?;
        if self.kind.qps() == 1 {
            incoming.write_at(at, &vec![CHECKED; self.expected.len()])?;
        }
        Ok(())
    }

    fn post_receives(&mut self) -> Result<(), Failure> {
        while self.posted_receives < self.options.rx_depth {
            self.pairs.post_receive(0, RECEIVE)?;
            self.posted_receives += 1;
        }
        Ok(())
    }

    fn send(&mut self, at: usize) -> Result<(), Failure> {
        self.pairs.post_send(at, SendWr { wr_id: SEND, ..SendWr::default() }, self.size)?;
        self.pending[at] = RECEIVE | SEND;
        Ok(())
    }

    fn failed(&self, wc: &Wc) -> Failure {
        let (what, done) = match wc.wr_id {
            SEND => ("sending", self.sent),
            _ => ("receiving", self.received),
        };
        let iters = self.options.iters;
        let why = self.options.device.explain(wc);
        let on = if self.kind.is_shared() { format!(" on QP {}", wc.qpn) } else { String::new() };
        Failure::Run(format!("{what} message {} of {iters} failed{on}: {why}", done + 1))
    }

    fn silence(&self) -> Failure {
        let qps = if self.kind.is_shared() { " or QPs (-q)" } else { "" };
        let lost = match self.kind.service() {
            QpType::Rc => "",
            _ => ", or a message was lost: this service does not retransmit",
        };
        Failure::Run(format!(
            "no message for {} s, after {} received and {} sent of {}: the peer has stopped, or was started with \
             fewer iterations (-n){qps}{lost}",
            self.options.patience, self.received, self.sent, self.options.iters
        ))
    }
}

/// Returns the bytes of a message.
fn message(size: u32, marked: bool) -> Vec<u8> {
    let mut bytes = vec![FILL; size as usize];
    if marked {
        bytes.iter_mut().step_by(PAGE).for_each(|byte| *byte = PAGE_MARK);
    }
    bytes
}

fn show(options: &Options, whose: &str, endpoint: &Endpoint) -> Result<(), Failure> {
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
fn wait(cq: &CompletionQueue, channel: Option<&CompletionChannel>, completions: &mut [Wc]) -> usize {
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
fn check_length(options: &Options, bytes: u32, size: u32, number: u64) -> Result<(), Failure> {
    if bytes == size {
        return Ok(());
    }
    Err(Failure::Peer(format!(
        "message {number} of {} has {bytes} bytes, this end uses {size}: start both with the same -s",
        options.iters
    )))
}

/// Checks that the message has the bytes that both ends send.
fn check_bytes(arrived: &[u8], expected: &[u8], number: u64) -> Result<(), Failure> {
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
    fn new(device: &Device, size: u32, iters: u64, elapsed: Duration) -> Outcome {
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
            formats::print(formats::PINGPONG, object)
        } else {
            output::line(format_args!("{bytes} bytes in {seconds:.2} seconds = {mbit:.2} Mbit/sec"))?;
            output::line(format_args!("{} iters in {seconds:.2} seconds = {usec:.2} usec/iter", self.iters))
        }
    }
}
