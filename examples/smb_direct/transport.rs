//! SMB Direct on a queue pair of the connection manager: both ends, one thread each.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use roxie::host::{
    Connection, ConnectionManager, ConnectionRequest, Device, DialError, DialOptions, ProtectionDomain,
    QueuePair,
};
use roxie::verbs::{RKey, Wc, WcOpcode};
use roxie_ulp::{Ended, Endpoint, Slots, UpperLayer, send, step, wait};

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
    messages: Messages,
    link: Link,
    /// Messages of the upper layer, each with the completion of its last fragment.
    received: VecDeque<(Vec<u8>, Wc)>,
    /// Messages of the peer's, empty ones as well.
    received_count: u64,
    /// Key that the next message invalidates at the peer.
    invalidates: Option<RKey>,
    max_read_write: u32,
}

/// Messages of any content, before and after the negotiation.
struct Messages {
    // Dropped first: the queue pair uses the memory below.
    endpoint: Endpoint,
    sends: Slots,
    received: VecDeque<(Vec<u8>, Wc)>,
    /// Completions of the caller's own work requests.
    others: VecDeque<Wc>,
}

impl Messages {
    fn new(
        device: &Device,
        establish: impl FnOnce(QueuePair) -> Result<Connection, DialError>,
    ) -> Result<Messages> {
        let sizes = roxie_ulp::Sizes {
            receives: RECEIVES.into(),
            receive_length: MESSAGE as usize,
            // Beside messages: a registration, its invalidation, RDMA of a server.
            sends: SENDS + 8,
            inline: 0,
        };
        let endpoint = Endpoint::new(device, &sizes, establish)?;
        let sends = Slots::new(&endpoint.pd, SENDS, MESSAGE as usize)?;
        Ok(Messages { endpoint, sends, received: VecDeque::new(), others: VecDeque::new() })
    }

    fn send(&mut self, bytes: &[u8], invalidates: Option<RKey>) -> Result<()> {
        let slot = self.sends.take().ok_or("no free send buffer")?;
        let message = self.sends.fill(slot, &[bytes])?;
        let send = send(invalidates).id(slot.into()).signaled();
        Ok(self.endpoint.qp().post_send(&send, &[message])?)
    }

    /// Waits for the first message of a connection.
    fn first(&mut self) -> Result<Vec<u8>> {
        let first = wait(self, PATIENCE, |messages| messages.received.pop_front())?;
        Ok(first.ok_or("no negotiation in time")?.0)
    }
}

impl UpperLayer for Messages {
    fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    fn received(&mut self, wc: &Wc) -> Result<(), Ended> {
        self.received.push_back((self.endpoint.receive(wc)?, *wc));
        Ok(())
    }

    fn sent(&mut self, wc: &Wc) -> Result<(), Ended> {
        self.sends.release(wc.wr_id as u32);
        Ok(())
    }

    fn read(&mut self, wc: &Wc) -> Result<(), Ended> {
        self.others.push_back(*wc);
        Ok(())
    }

    fn written(&mut self, wc: &Wc) -> Result<(), Ended> {
        self.read(wc)
    }

    fn invalidated(&mut self, wc: &Wc) -> Result<(), Ended> {
        self.read(wc)
    }
}

impl Transport {
    /// Connects to a server, and negotiates.
    pub(crate) fn connect(device: &Device, to: SocketAddr) -> Result<Transport> {
        let manager = ConnectionManager::start(device)?;
        let mut messages = Messages::new(device, |qp| manager.connect(qp, to, &DialOptions::default()))?;
        let request =
            NegotiateRequest { versions: (VERSION, VERSION), credits_requested: RECEIVES, sizes: OWN };
        messages.send(&request.to_bytes(), None)?;
        let response = NegotiateResponse::parse(&messages.first()?, &OWN)?;
        let link = Link::connected(&OWN, &response, RECEIVES, RECEIVES);
        Ok(Transport::new(messages, link, response.max_read_write))
    }

    /// Accepts a client, and negotiates.
    pub(crate) fn accept(device: &Device, request: ConnectionRequest) -> Result<Transport> {
        let mut messages = Messages::new(device, |qp| request.accept(qp, &DialOptions::default()))?;
        let request = NegotiateRequest::parse(&messages.first()?)?;
        let status = if request.has_version() { 0 } else { NOT_SUPPORTED };
        let response = NegotiateResponse {
            status,
            credits_requested: RECEIVES,
            credits_granted: RECEIVES,
            max_read_write: MAX_READ_WRITE,
            // What this end sends fits what the peer receives.
            sizes: Sizes { preferred_send: MESSAGE.min(request.sizes.receive), ..OWN },
        };
        messages.send(&response.to_bytes(), None)?;
        if status != 0 {
            // The answer has arrived before the connection ends.
            step(&mut messages, PATIENCE)?;
            let (low, high) = request.versions;
            return Err(format!("the client has versions {low:#06x} to {high:#06x}").into());
        }
        let link = Link::accepted(&OWN, &request, RECEIVES, RECEIVES);
        Ok(Transport::new(messages, link, MAX_READ_WRITE))
    }

    fn new(messages: Messages, link: Link, max_read_write: u32) -> Transport {
        let received = VecDeque::new();
        Transport { messages, link, received, received_count: 0, invalidates: None, max_read_write }
    }

    /// Returns the most bytes of an RDMA transfer.
    pub(crate) fn max_read_write(&self) -> u32 {
        self.max_read_write
    }

    pub(crate) fn pd(&self) -> &ProtectionDomain {
        &self.messages.endpoint.pd
    }

    pub(crate) fn qp(&self) -> &QueuePair {
        self.messages.endpoint.qp()
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
        self.until(|transport| {
            transport.link.is_sent() && transport.messages.sends.available() == SENDS as usize
        })
    }

    /// Waits for a message of the upper layer. Returns it with the completion of its last fragment.
    pub(crate) fn receive(&mut self) -> Result<(Vec<u8>, Wc)> {
        self.until(|transport| !transport.received.is_empty())?;
        Ok(self.received.pop_front().expect("a message"))
    }

    /// Waits for the completion of a work request that the caller has posted.
    pub(crate) fn completion(&mut self) -> Result<Wc> {
        self.until(|transport| !transport.messages.others.is_empty())?;
        Ok(self.messages.others.pop_front().expect("a completion"))
    }

    /// Asks the peer for a message, and waits for it.
    pub(crate) fn keep_alive(&mut self) -> Result<()> {
        let received = self.received_count;
        self.link.request_message();
        self.pump()?;
        self.until(|transport| transport.received_count > received)
    }

    pub(crate) fn disconnect(self) -> Result<()> {
        Ok(self.messages.endpoint.connection.disconnect()?)
    }

    /// Takes completions until a condition holds. A silent peer is asked for a message once.
    fn until(&mut self, is_done: impl Fn(&Transport) -> bool) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        let mut has_requested = false;
        while !is_done(self) {
            if Instant::now() >= until {
                return Err(format!("no answer within {} s", PATIENCE.as_secs()).into());
            }
            match step(&mut self.messages, SILENCE)? {
                Some(opcode) => has_requested &= opcode != WcOpcode::Recv,
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

    /// Takes received messages, and sends what the link has for the peer.
    fn pump(&mut self) -> Result<()> {
        while let Some((bytes, wc)) = self.messages.received.pop_front() {
            // The error ends the connection: dropping it tells the peer.
            let message = self.link.received(&bytes).map_err(|why| format!("closed: {why}"))?;
            self.link.receives_are_posted(1);
            self.received_count += 1;
            self.received.extend(message.map(|message| (message, wc)));
        }
        while self.messages.sends.available() > 0
            && let Some(message) = self.link.next_message()
        {
            self.messages.send(&message, self.invalidates.take())?;
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "transport_tests.rs"]
mod tests;
