//! SMB Direct on a queue pair of the connection manager: both ends, one thread each.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use roxie::host::{
    CompletionQueue, Connection, ConnectionManager, ConnectionRequest, Device, DialOptions, MemoryRegion,
    ProtectionDomain, QueuePair,
};
use roxie::verbs::{Access, QpCaps, RKey, SendWr, Wc, WcOpcode, WrOpcode};

use super::Result;
use super::link::Link;
use super::messages::{NOT_SUPPORTED, NegotiateRequest, NegotiateResponse, Sizes, VERSION};

/// Messages that either end of this program receives before it must post again.
const RECEIVES: u16 = 64;
/// Messages under way.
const SENDS: u32 = 32;
/// Bytes of a message.
const MESSAGE: u32 = 8192;
/// Sizes of this end: 1 MiB in fragments.
const OWN: Sizes = Sizes { preferred_send: MESSAGE, receive: MESSAGE, fragmented: 1 << 20 };
/// Bytes of an RDMA transfer that this end does for its peer.
pub(crate) const MAX_READ_WRITE: u32 = 1 << 20;
/// Silence after which the peer is asked whether it is there, and after which it is not.
const SILENCE: Duration = Duration::from_secs(5);
/// Time for a whole answer: an emulated kernel takes its time.
const PATIENCE: Duration = Duration::from_secs(60);

/// A connection.
pub(crate) struct Transport {
    // Dropped first: the queue pair uses the memory below.
    connection: Connection,
    parts: Parts,
    link: Link,
    /// Messages of the upper layer, each with the completion of its last fragment.
    received: VecDeque<(Vec<u8>, Wc)>,
    /// Completions of the caller's own work requests.
    others: VecDeque<Wc>,
    /// Messages of the peer's, empty ones as well.
    received_count: u64,
    /// Key that the next message invalidates at the peer.
    invalidates: Option<RKey>,
    max_read_write: u32,
}

/// Objects of a queue pair.
struct Parts {
    pd: ProtectionDomain,
    cq: CompletionQueue,
    sends: MemoryRegion,
    receives: MemoryRegion,
    /// Send buffers that are not under way.
    free: Vec<u64>,
}

impl Parts {
    fn new(device: &Device) -> Result<(QueuePair, Parts)> {
        let caps = QpCaps {
            // Beside messages: a registration, its invalidation, RDMA of a server.
            max_send_wr: SENDS + 8,
            max_recv_wr: RECEIVES.into(),
            max_send_sge: 1,
            max_recv_sge: 1,
            ..QpCaps::default()
        };
        let pd = device.alloc_pd()?;
        let cq = device.create_cq(caps.max_send_wr + caps.max_recv_wr, None)?;
        let memory = |count: usize| pd.register(count * MESSAGE as usize, Access::LOCAL_WRITE);
        let (sends, receives) = (memory(SENDS as usize)?, memory(RECEIVES.into())?);
        let qp = pd.queue_pair(&cq).caps(caps).create()?;
        qp.initialize(Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE)?;
        let parts = Parts { pd, cq, sends, receives, free: (0..SENDS.into()).collect() };
        (0..RECEIVES.into()).try_for_each(|slot| parts.post_receive(&qp, slot))?;
        Ok((qp, parts))
    }

    fn post_receive(&self, qp: &QueuePair, slot: u64) -> Result<()> {
        Ok(qp.post_recv(slot, &[self.receives.sge(slot as usize * MESSAGE as usize, MESSAGE)])?)
    }

    fn send(&mut self, qp: &QueuePair, bytes: &[u8], invalidates: Option<RKey>) -> Result<()> {
        let slot = self.free.pop().ok_or("no free send buffer")?;
        let begin = slot as usize * MESSAGE as usize;
        self.sends.write_at(begin, bytes)?;
        let send = SendWr::send().id(slot).signaled();
        let send = match invalidates {
            Some(rkey) => SendWr { opcode: WrOpcode::SendInvalidate, rkey, ..send },
            None => send,
        };
        Ok(qp.post_send(&send, &[self.sends.sge(begin, bytes.len() as u32)])?)
    }

    /// Takes a received message out of its buffer, and posts the buffer again.
    fn take(&self, qp: &QueuePair, wc: &Wc) -> Result<Vec<u8>> {
        let begin = wc.wr_id as usize * MESSAGE as usize;
        let bytes = self.receives.to_vec(begin, wc.byte_len.min(MESSAGE) as usize)?;
        self.post_receive(qp, wc.wr_id)?;
        Ok(bytes)
    }

    /// Waits for a completion; `None`: there was none in time.
    fn wait(&mut self, connection: &Connection, timeout: Duration) -> Result<Option<Wc>> {
        let wc =
            connection.wait_for_completion(&self.cq, timeout).map_err(|_| "the peer has disconnected")?;
        let Some(wc) = wc else { return Ok(None) };
        wc.ok()?;
        if wc.opcode == WcOpcode::Send {
            self.free.push(wc.wr_id);
        }
        Ok(Some(wc))
    }

    /// Waits for the first message of a connection.
    fn first(&mut self, connection: &Connection) -> Result<Vec<u8>> {
        let until = Instant::now() + PATIENCE;
        loop {
            let remaining = until.saturating_duration_since(Instant::now());
            let wc = self.wait(connection, remaining)?.ok_or("no negotiation in time")?;
            if wc.opcode == WcOpcode::Recv {
                return self.take(connection.qp(), &wc);
            }
        }
    }
}

impl Transport {
    /// Connects to a server, and negotiates.
    pub(crate) fn connect(device: &Device, to: SocketAddr) -> Result<Transport> {
        let manager = ConnectionManager::start(device)?;
        let (qp, mut parts) = Parts::new(device)?;
        let connection = manager.connect(qp, to, &DialOptions::default())?;
        let request =
            NegotiateRequest { versions: (VERSION, VERSION), credits_requested: RECEIVES, sizes: OWN };
        parts.send(connection.qp(), &request.to_bytes(), None)?;
        let response = NegotiateResponse::parse(&parts.first(&connection)?, &OWN)?;
        let link = Link::connected(&OWN, &response, RECEIVES, RECEIVES);
        Ok(Transport::new(connection, parts, link, response.max_read_write))
    }

    /// Accepts a client, and negotiates.
    pub(crate) fn accept(device: &Device, request: ConnectionRequest) -> Result<Transport> {
        let (qp, mut parts) = Parts::new(device)?;
        let connection = request.accept(qp, &DialOptions::default())?;
        let request = NegotiateRequest::parse(&parts.first(&connection)?)?;
        let status = if request.has_version() { 0 } else { NOT_SUPPORTED };
        let response = NegotiateResponse {
            status,
            credits_requested: RECEIVES,
            credits_granted: RECEIVES,
            max_read_write: MAX_READ_WRITE,
            // What this end sends fits what the peer receives.
            sizes: Sizes { preferred_send: MESSAGE.min(request.sizes.receive), ..OWN },
        };
        parts.send(connection.qp(), &response.to_bytes(), None)?;
        if status != 0 {
            // The answer has arrived before the connection ends.
            parts.wait(&connection, PATIENCE)?;
            let (low, high) = request.versions;
            return Err(format!("the client has versions {low:#06x} to {high:#06x}").into());
        }
        let link = Link::accepted(&OWN, &request, RECEIVES, RECEIVES);
        Ok(Transport::new(connection, parts, link, MAX_READ_WRITE))
    }

    fn new(connection: Connection, parts: Parts, link: Link, max_read_write: u32) -> Transport {
        let (received, others) = Default::default();
        Transport {
            connection,
            parts,
            link,
            received,
            others,
            received_count: 0,
            invalidates: None,
            max_read_write,
        }
    }

    /// Returns the most bytes of an RDMA transfer.
    pub(crate) fn max_read_write(&self) -> u32 {
        self.max_read_write
    }

    pub(crate) fn pd(&self) -> &ProtectionDomain {
        &self.parts.pd
    }

    pub(crate) fn qp(&self) -> &QueuePair {
        self.connection.qp()
    }

    /// Sends a message of the upper layer, as far as credits reach; the rest with the peer's next messages.
    pub(crate) fn send(&mut self, message: Vec<u8>) -> Result<()> {
        let length = message.len();
        if !self.link.queue(message) {
            return Err(format!("a message of {length} bytes, which the peer does not assemble").into());
        }
        self.pump()
    }

    /// Sends a message that invalidates a key of the peer's.
    pub(crate) fn send_invalidating(&mut self, message: Vec<u8>, key: RKey) -> Result<()> {
        self.invalidates = Some(key);
        self.send(message)
    }

    /// Waits until all that was sent has reached the peer.
    pub(crate) fn flush(&mut self) -> Result<()> {
        self.until(|transport| transport.link.is_sent() && transport.parts.free.len() == SENDS as usize)
    }

    /// Waits for a message of the upper layer. Returns it with the completion of its last fragment.
    pub(crate) fn receive(&mut self) -> Result<(Vec<u8>, Wc)> {
        self.until(|transport| !transport.received.is_empty())?;
        Ok(self.received.pop_front().expect("a message"))
    }

    /// Waits for the completion of a work request that the caller has posted.
    pub(crate) fn completion(&mut self) -> Result<Wc> {
        self.until(|transport| !transport.others.is_empty())?;
        Ok(self.others.pop_front().expect("a completion"))
    }

    /// Asks the peer for a message, and waits for it.
    pub(crate) fn keep_alive(&mut self) -> Result<()> {
        let received = self.received_count;
        self.link.request_message();
        self.pump()?;
        self.until(|transport| transport.received_count > received)
    }

    pub(crate) fn disconnect(self) -> Result<()> {
        Ok(self.connection.disconnect()?)
    }

    /// Takes completions until a condition holds. A silent peer is asked for a message once.
    fn until(&mut self, is_done: impl Fn(&Transport) -> bool) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        let mut has_requested = false;
        while !is_done(self) {
            if Instant::now() >= until {
                return Err(format!("no answer within {} s", PATIENCE.as_secs()).into());
            }
            match self.parts.wait(&self.connection, SILENCE)? {
                Some(wc) => {
                    has_requested &= wc.opcode != WcOpcode::Recv;
                    self.completed(&wc)?;
                }
                None if has_requested => return Err("the peer does not answer a keep-alive".into()),
                None => {
                    has_requested = true;
                    self.link.request_message();
                }
            }
            self.pump()?;
        }
        Ok(())
    }

    fn completed(&mut self, wc: &Wc) -> Result<()> {
        match wc.opcode {
            WcOpcode::Send => {}
            WcOpcode::Recv => {
                let bytes = self.parts.take(self.connection.qp(), wc)?;
                // The error ends the connection: dropping it tells the peer.
                let message = self.link.received(&bytes).map_err(|why| format!("closed: {why}"))?;
                self.link.receives_are_posted(1);
                self.received_count += 1;
                self.received.extend(message.map(|message| (message, *wc)));
            }
            _ => self.others.push_back(*wc),
        }
        Ok(())
    }

    fn pump(&mut self) -> Result<()> {
        while !self.parts.free.is_empty()
            && let Some(message) = self.link.next_message()
        {
            self.parts.send(self.connection.qp(), &message, self.invalidates.take())?;
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "transport_tests.rs"]
mod tests;
