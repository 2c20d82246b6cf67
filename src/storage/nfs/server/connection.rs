//! The connection of a client: calls arrive, data leaves by RDMA WRITE, replies follow it.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use roxie::host::{
    Armed, CompletionChannel, CompletionQueue, Connection, ConnectionRequest, DeviceError, DialError,
    DialOptions, FirstMessage, MemoryRegion, Offer, PostError, QpBuilder, QueuePair,
};
use roxie::verbs::{Access, QpCaps, RKey, SendWr, Sge, Wc, WcOpcode, WcStatus, WrOpcode};

use super::answer::{LONGEST_TRANSFER, answer, refused_change};
use super::{FULL, MOST_CONNECTIONS, ServerEvent, Shared};
use crate::placement::{Lengths, Moved, Placement, place};
use crate::private::Sizes;
use crate::rpcrdma::{Body, Chunks, Header};
use crate::xdr::padding;

/// Interval at which an idle connection looks for its end, or the server's.
const TICK: Duration = Duration::from_millis(50);
/// Calls that a client may have outstanding.
const CREDITS: u32 = 32;
/// Replies under way, each with a buffer for its data. A call without a free one waits.
const BUFFERS: u32 = 16;
/// Bytes of an inline message, in both directions.
pub(super) const INLINE: u32 = 4096;
/// Bytes of a buffer: a longest transfer and all that a reply has around it.
const BUFFER: usize = LONGEST_TRANSFER + 4096;
/// Places in the send queue. A half-open connection has them, too, so they are few; longer replies wait for places.
const SENDS: u32 = BUFFERS;
/// Completions taken at once.
const BATCH: usize = 16;

/// A half-open connection of a client, apart from its queue pair.
pub(super) struct Offered {
    cq: CompletionQueue,
    channel: CompletionChannel,
    /// Room for the first call, which may come before the client's confirmation. `None`: all such places are taken, and the call comes again.
    first: Option<Arc<FirstMessage>>,
    client: Sizes,
}

/// Returns a queue pair with one receive for a request, or the private data of its rejection.
pub(super) fn offer(shared: &Shared, request: &ConnectionRequest) -> Result<Offer<Offered>, Vec<u8>> {
    let refused = |why| (shared.report)(ServerEvent::Ended { peer: request.peer(), why });
    if *shared.connections() >= MOST_CONNECTIONS {
        refused(FULL.into());
        return Err(Vec::new());
    }
    let client = Sizes::parse(request.private_data());
    let (qp, state) = queues(shared, client).map_err(|error| {
        refused(format!("no resources for another connection: {error}"));
        Vec::new()
    })?;
    let own = Sizes { takes_invalidation: false, sends: INLINE, receives: INLINE };
    let options = DialOptions {
        // Clients never access memory of a server, and the server reads none of theirs.
        access: Access::LOCAL_WRITE,
        responder_resources: 0,
        initiator_depth: 0,
        private_data: own.to_bytes().to_vec(),
        ..DialOptions::default()
    };
    Ok(Offer { qp, options, state })
}

fn queues(shared: &Shared, client: Sizes) -> Result<(QueuePair, Offered), DialError> {
    let caps =
        QpCaps { max_send_wr: SENDS, max_recv_wr: CREDITS, max_send_sge: 1, max_recv_sge: 1, max_inline: 0 };
    let channel = CompletionChannel::new()?;
    // A connection that is not confirmed has one completion, of the first call.
    let cq = shared.device.create_cq(1, Some(&channel))?;
    let first = shared.first_calls.take();
    let builder = shared.pd.queue_pair(&cq).caps(caps);
    let qp = first.iter().cloned().fold(builder, QpBuilder::keeps).create()?;
    qp.initialize(Access::LOCAL_WRITE)?;
    if let Some(first) = &first {
        qp.post_recv(0, &[first.sge(INLINE as usize)])?;
    }
    Ok((qp, Offered { cq, channel, first, client }))
}

/// Serves a connection until it ends. Returns why.
pub(super) fn serve(shared: &Shared, connection: Connection, offered: Offered) -> Result<Infallible, String> {
    let (client, peer) = (offered.client, connection.peer());
    let rest = Rest::new(shared, connection.qp(), offered)
        .map_err(|error| format!("no resources for another connection: {error}"))?;
    (shared.report)(ServerEvent::Connected { peer });
    let mut served = Served {
        connection,
        rest,
        peer,
        inline: client.receives.min(INLINE) as usize,
        invalidates: client.takes_invalidation,
        places: SENDS,
        outbox: VecDeque::new(),
        free: (0..BUFFERS).rev().collect(),
        waiting: VecDeque::new(),
        has_told: false,
    };
    served.run(shared)
}

/// Verbs objects of a connection, apart from itself.
struct Rest {
    cq: CompletionQueue,
    channel: CompletionChannel,
    /// Room for the calls of slot 0. `None`: as for the other slots.
    first: Option<Arc<FirstMessage>>,
    calls: MemoryRegion,
    replies: MemoryRegion,
    data: MemoryRegion,
}

impl Rest {
    /// Makes the buffers, and posts all receives that are not posted yet.
    fn new(shared: &Shared, qp: &QueuePair, offered: Offered) -> Result<Rest, DialError> {
        offered.cq.resize(SENDS + CREDITS)?;
        let memory =
            |count: u32, length: usize| shared.pd.register(count as usize * length, Access::LOCAL_WRITE);
        let calls = memory(CREDITS, INLINE as usize)?;
        let replies = memory(BUFFERS, INLINE as usize)?;
        let data = memory(BUFFERS, BUFFER)?;
        let Offered { cq, channel, first, .. } = offered;
        let posted = u64::from(first.is_some());
        let rest = Rest { cq, channel, first, calls, replies, data };
        (posted..u64::from(CREDITS)).try_for_each(|slot| rest.post_receive(qp, slot))?;
        Ok(rest)
    }

    fn post_receive(&self, qp: &QueuePair, slot: u64) -> Result<(), PostError> {
        let place = match &self.first {
            Some(first) if slot == 0 => first.sge(INLINE as usize),
            _ => self.calls.sge(slot as usize * INLINE as usize, INLINE),
        };
        qp.post_recv(slot, &[place])
    }

    /// Returns the call in a slot.
    fn call(&self, slot: u64, length: usize) -> Result<Vec<u8>, DeviceError> {
        let length = length.min(INLINE as usize);
        match &self.first {
            Some(first) if slot == 0 => first.to_vec(length),
            _ => self.calls.to_vec(slot as usize * INLINE as usize, length),
        }
    }
}

/// A work request of a connection that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    Receive,
    Write,
    /// Its number is that of its buffer.
    Send,
}

impl Ended {
    /// Returns the work request of a completion, or why the connection ends: it failed, or a connection asks for no completion of its kind.
    /// An identifier has a meaning only with its kind.
    fn of(wc: &Wc) -> Result<Ended, String> {
        match (wc.status, wc.opcode) {
            (WcStatus::Success, WcOpcode::Recv) => Ok(Ended::Receive),
            (WcStatus::Success, WcOpcode::Write) => Ok(Ended::Write),
            (WcStatus::Success, WcOpcode::Send) => Ok(Ended::Send),
            (WcStatus::Success, other) => {
                Err(format!("a completion of {other:?}, which no connection posts"))
            }
            (failed, opcode) => Err(format!("{opcode:?} failed: {failed}")),
        }
    }
}

struct Served {
    // Dropped first: the queue pair uses the memory below.
    connection: Connection,
    rest: Rest,
    peer: SocketAddr,
    /// Bytes of a message that the client receives.
    inline: usize,
    /// Replies may invalidate the client's keys.
    invalidates: bool,
    /// Free places of the send queue.
    places: u32,
    /// Work requests that wait for places.
    outbox: VecDeque<(SendWr, Sge)>,
    /// Free buffers.
    free: Vec<u32>,
    /// Calls that wait for a buffer: their receive, and their length.
    waiting: VecDeque<(u64, usize)>,
    /// A refused change was reported.
    has_told: bool,
}

impl Served {
    /// Serves until the connection ends, and returns why. Dropping it afterwards tells the client.
    fn run(&mut self, shared: &Shared) -> Result<Infallible, String> {
        loop {
            while !shared.stops() && self.take_completions(shared)? {}
            if shared.stops() {
                return Err("the server stops".into());
            }
            self.rest.cq.arm(Armed::Next);
            if self.rest.channel.wait(TICK) {
                continue;
            }
            if self.connection.wait_for_end(Duration::ZERO) {
                return Err("the client has disconnected".into());
            }
            if self.rest.cq.has_failed() {
                return Err("the device has failed".into());
            }
        }
    }

    /// Takes completions. False: there was none.
    fn take_completions(&mut self, shared: &Shared) -> Result<bool, String> {
        let mut completions = [Wc::default(); BATCH];
        let taken = self.rest.cq.poll_ready(&mut completions);
        for wc in &completions[..taken] {
            match Ended::of(wc)? {
                Ended::Receive => self.waiting.push_back((wc.wr_id, wc.byte_len as usize)),
                Ended::Write => self.places += 1,
                Ended::Send => {
                    self.places += 1;
                    self.free.push(wc.wr_id as u32);
                }
            }
        }
        self.post_waiting()?;
        self.answer_waiting(shared)?;
        Ok(taken > 0)
    }

    /// Answers calls while there are buffers for replies, in their order.
    fn answer_waiting(&mut self, shared: &Shared) -> Result<(), String> {
        while let Some(buffer) = self.free.last().copied()
            && let Some((slot, length)) = self.waiting.pop_front()
        {
            self.free.pop();
            let call = self.rest.call(slot, length).map_err(told)?;
            // A receive is there for the next call before the reply leaves.
            self.rest.post_receive(self.connection.qp(), slot).map_err(told)?;
            self.answer(shared, &call, buffer)?;
        }
        Ok(())
    }

    /// Answers a call, with the data in a buffer.
    fn answer(&mut self, shared: &Shared, message: &[u8], buffer: u32) -> Result<(), String> {
        let (header, call) = match Header::parse(message) {
            Ok(parsed) => parsed,
            Err(refusal) => {
                let header = refusal.answer(CREDITS).ok_or_else(|| refusal.to_string())?;
                return self.post(buffer, &header, &[], &[], None);
            }
        };
        let wrong = Header { xid: header.xid, credits: CREDITS, body: Body::WrongChunk };
        let chunks = match &header.body {
            Body::Message(chunks) => chunks,
            // Calls that are longer than a message: no call that this server executes is.
            Body::NoMessage(_) => return self.post(buffer, &wrong, &[], &[], None),
            Body::WrongVersion { .. } | Body::WrongChunk => {
                return Err("the client cannot use a reply".into());
            }
        };
        let has_same_xid = call.first_chunk() == Some(&header.xid.to_be_bytes());
        if !has_same_xid || chunks.reads.iter().any(|read| read.position == 0) {
            return self.post(buffer, &wrong, &[], &[], None);
        }
        let answer = answer(&shared.export, call).map_err(|malformed| format!("no call: {malformed}"))?;
        if let Some(procedure) = refused_change(&answer).filter(|_| !self.has_told) {
            self.has_told = true;
            (shared.report)(ServerEvent::Refused { peer: self.peer, procedure });
        }
        let data = answer.data.as_deref();
        let lengths = Lengths { head: answer.head.len(), data: data.map(<[u8]>::len), inline: self.inline };
        let Ok(placement) = place(header.xid, CREDITS, chunks, &lengths) else {
            return self.post(buffer, &wrong, &[], &[], None);
        };
        self.deliver(buffer, &placement, &answer.head, data.unwrap_or_default(), key(chunks))
    }

    /// Moves data or message where the placement says, and sends the rest.
    fn deliver(
        &mut self,
        buffer: u32,
        placement: &Placement,
        head: &[u8],
        data: &[u8],
        key: Option<u32>,
    ) -> Result<(), String> {
        let begin = buffer as usize * BUFFER;
        match placement.moved {
            Moved::Nothing if placement.header.chunks().is_some_and(|chunks| !chunks.writes.is_empty()) => {
                return self.post(buffer, &placement.header, head, &[], key);
            }
            Moved::Nothing => {
                let zeros = [0; 3];
                let message = [head, data, &zeros[..padding(data.len())]].concat();
                return self.post(buffer, &placement.header, &message, &[], key);
            }
            Moved::Data => self.rest.data.write_at(begin, data).map_err(told)?,
            Moved::Message => {
                let zeros = [0; 3];
                let message = [head, data, &zeros[..padding(data.len())]].concat();
                self.rest.data.write_at(begin, &message).map_err(told)?;
            }
        }
        let inline = if placement.moved == Moved::Data { head } else { &[] };
        self.post(buffer, &placement.header, inline, &placement.parts, key)
    }

    /// Sends the parts of a buffer by WRITE, then a header with the message behind it. On a reliable connection the data is in place
    /// before the message arrives.
    fn post(
        &mut self,
        buffer: u32,
        header: &Header,
        message: &[u8],
        parts: &[crate::placement::Part],
        key: Option<u32>,
    ) -> Result<(), String> {
        for part in parts {
            let write = SendWr::write(part.to.offset, RKey(part.to.handle)).signaled();
            let sge = self.rest.data.sge(buffer as usize * BUFFER + part.from, part.to.length);
            self.outbox.push_back((write, sge));
        }
        let bytes = [&header.to_bytes()[..], message].concat();
        let begin = buffer as usize * INLINE as usize;
        self.rest.replies.write_at(begin, &bytes).map_err(told)?;
        let send = SendWr::send().id(buffer.into()).signaled();
        let send = match key.filter(|_| self.invalidates) {
            Some(key) => SendWr { opcode: WrOpcode::SendInvalidate, rkey: RKey(key), ..send },
            None => send,
        };
        self.outbox.push_back((send, self.rest.replies.sge(begin, bytes.len() as u32)));
        self.post_waiting()
    }

    /// Posts work requests while there are places, in their order.
    fn post_waiting(&mut self) -> Result<(), String> {
        while self.places > 0
            && let Some((request, sge)) = self.outbox.pop_front()
        {
            self.connection.qp().post_send(&request, &[sge]).map_err(told)?;
            self.places -= 1;
        }
        Ok(())
    }
}

/// Returns the key that the reply invalidates: that of the first segment.
fn key(chunks: &Chunks) -> Option<u32> {
    let reads = chunks.reads.iter().map(|read| &read.segment);
    let rest = chunks.writes.iter().chain(&chunks.reply).flatten();
    reads.chain(rest).next().map(|segment| segment.handle)
}

fn told(error: impl std::fmt::Display) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unexpected_completions_end_the_connection() {
        let of = |opcode, status| Ended::of(&Wc { opcode, status, ..Wc::default() });
        let done = |opcode| of(opcode, WcStatus::Success);
        assert_eq!(done(WcOpcode::Recv), Ok(Ended::Receive));
        assert_eq!(done(WcOpcode::Send), Ok(Ended::Send));
        assert_eq!(done(WcOpcode::Write), Ok(Ended::Write));
        for other in (0..=u8::MAX).filter_map(WcOpcode::from_code) {
            if !matches!(other, WcOpcode::Recv | WcOpcode::Send | WcOpcode::Write) {
                assert!(done(other).unwrap_err().contains("no connection posts"), "{other:?}");
            }
        }
        assert!(of(WcOpcode::Send, WcStatus::RetryExc).unwrap_err().contains("failed"));
    }
}
