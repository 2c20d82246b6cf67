//! The connection of a client: calls arrive, data leaves by RDMA WRITE, replies follow it.

use std::collections::VecDeque;

use roxie::host::DeviceError;
use roxie::verbs::{RKey, SendWr, Wc};
use roxie_ulp::{Ended, Endpoint, Payload, SendQueue, Sizes, Slots, UpperLayer, send};

use super::answer::{LONGEST_TRANSFER, answer, refused_change};
use super::{ServerEvent, Shared};
use crate::placement::{Lengths, Moved, Placement, place};
use crate::private;
use crate::rpcrdma::{Body, Chunks, Header};
use crate::xdr::padding;

/// Calls that a client may have outstanding.
const CREDITS: u32 = 32;
/// Replies under way, each with a buffer for its data. A call without a free one waits.
const BUFFERS: u32 = 16;
/// Bytes of an inline message, in both directions.
pub(super) const INLINE: u32 = 4096;
/// Bytes of a buffer: a longest transfer and all that a reply has around it.
const BUFFER: usize = LONGEST_TRANSFER + 4096;
/// Sizes of the queues. A half-open connection has places in the send queue, too, so they are few; longer replies wait
/// for places.
pub(super) const SIZES: Sizes =
    Sizes { receives: CREDITS, receive_length: INLINE as usize, sends: BUFFERS, inline: 0 };

/// A served connection.
pub(super) struct Served<'a> {
    // Dropped first: the queue pair uses the memory below.
    endpoint: Endpoint,
    shared: &'a Shared,
    /// Bytes of a message that the client receives.
    inline: usize,
    /// Replies may invalidate the client's keys.
    invalidates: bool,
    sends: SendQueue,
    /// Messages of replies, and their data, by buffer.
    replies: Slots,
    data: Slots,
    /// Receives with calls that wait for a buffer.
    waiting: VecDeque<Wc>,
    /// A refused change was reported.
    has_told: bool,
}

impl<'a> Served<'a> {
    pub(super) fn new(
        shared: &'a Shared,
        endpoint: Endpoint,
        client: private::Sizes,
    ) -> Result<Served<'a>, DeviceError> {
        Ok(Served {
            shared,
            inline: client.receives.min(INLINE) as usize,
            invalidates: client.takes_invalidation,
            sends: SendQueue::new(SIZES.sends),
            replies: Slots::new(&endpoint.pd, BUFFERS, INLINE as usize)?,
            data: Slots::new(&endpoint.pd, BUFFERS, BUFFER)?,
            waiting: VecDeque::new(),
            has_told: false,
            endpoint,
        })
    }

    /// Answers calls while there are buffers for replies, in their order.
    fn answer_waiting(&mut self) -> Result<(), Ended> {
        while !self.waiting.is_empty()
            && let Some(buffer) = self.replies.take()
            && let Some(wc) = self.waiting.pop_front()
        {
            // A receive is there for the next call before the reply leaves.
            let call = self.endpoint.receive(&wc)?;
            self.answer(&call, buffer)?;
        }
        Ok(())
    }

    /// Answers a call, with the data in a buffer.
    fn answer(&mut self, message: &[u8], buffer: u32) -> Result<(), Ended> {
        let (header, call) = match Header::parse(message) {
            Ok(parsed) => parsed,
            Err(refusal) => {
                let header = refusal.answer(CREDITS).ok_or_else(|| Ended::protocol(refusal))?;
                return self.send(buffer, &header, &[], None);
            }
        };
        let wrong = Header { xid: header.xid, credits: CREDITS, body: Body::WrongChunk };
        let chunks = match &header.body {
            Body::Message(chunks) => chunks,
            // Calls that are longer than a message: no call that this server executes is.
            Body::NoMessage(_) => return self.send(buffer, &wrong, &[], None),
            Body::WrongVersion { .. } | Body::WrongChunk => {
                return Err(Ended::protocol("the client cannot use a reply"));
            }
        };
        let has_same_xid = call.first_chunk() == Some(&header.xid.to_be_bytes());
        if !has_same_xid || chunks.reads.iter().any(|read| read.position == 0) {
            return self.send(buffer, &wrong, &[], None);
        }
        let answer = answer(&self.shared.export, call)
            .map_err(|malformed| Ended::Protocol(format!("no call: {malformed}")))?;
        if let Some(procedure) = refused_change(&answer).filter(|_| !self.has_told) {
            self.has_told = true;
            (self.shared.report)(ServerEvent::Refused { peer: self.endpoint.connection.peer(), procedure });
        }
        let data = answer.data.as_deref();
        let lengths = Lengths { head: answer.head.len(), data: data.map(<[u8]>::len), inline: self.inline };
        let Ok(placement) = place(header.xid, CREDITS, chunks, &lengths) else {
            return self.send(buffer, &wrong, &[], None);
        };
        self.deliver(buffer, &placement, &answer.head, data.unwrap_or_default(), key(chunks))
    }

    /// Moves data or message where the placement says, and sends the rest. On a reliable connection the data is in
    /// place before the message arrives.
    fn deliver(
        &mut self,
        buffer: u32,
        placement: &Placement,
        head: &[u8],
        data: &[u8],
        key: Option<u32>,
    ) -> Result<(), Ended> {
        let whole = [head, data, &[0; 3][..padding(data.len())]];
        let has_write_chunk = placement.header.chunks().is_some_and(|chunks| !chunks.writes.is_empty());
        let (moved, inline): (&[&[u8]], &[&[u8]]) = match placement.moved {
            Moved::Nothing if has_write_chunk => (&[], &whole[..1]),
            Moved::Nothing => (&[], &whole),
            Moved::Data => (&whole[1..2], &whole[..1]),
            Moved::Message => (&whole, &[]),
        };
        self.data.fill(buffer, moved)?;
        for part in &placement.parts {
            let write = SendWr::write(part.to.offset, RKey(part.to.handle)).signaled();
            let data = Payload::Memory(self.data.sge(buffer, part.from, part.to.length as usize));
            self.sends.post(self.endpoint.qp(), write, data)?;
        }
        self.send(buffer, &placement.header, inline, key)
    }

    /// Sends a header with the parts of a message behind it.
    fn send(
        &mut self,
        buffer: u32,
        header: &Header,
        message: &[&[u8]],
        key: Option<u32>,
    ) -> Result<(), Ended> {
        let header = header.to_bytes();
        let message = Payload::Memory(self.replies.fill(buffer, &[&[&header[..]][..], message].concat())?);
        let send = send(key.filter(|_| self.invalidates).map(RKey)).id(buffer.into()).signaled();
        Ok(self.sends.post(self.endpoint.qp(), send, message)?)
    }
}

impl UpperLayer for Served<'_> {
    fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    fn received(&mut self, wc: &Wc) -> Result<(), Ended> {
        self.waiting.push_back(*wc);
        self.answer_waiting()
    }

    fn written(&mut self, wc: &Wc) -> Result<(), Ended> {
        self.sends.completed(self.endpoint.qp(), wc)?;
        Ok(())
    }

    fn sent(&mut self, wc: &Wc) -> Result<(), Ended> {
        let buffer = self.sends.completed(self.endpoint.qp(), wc)?;
        self.replies.release(buffer);
        self.answer_waiting()
    }
}

/// Returns the key that the reply invalidates: that of the first segment.
fn key(chunks: &Chunks) -> Option<u32> {
    let reads = chunks.reads.iter().map(|read| &read.segment);
    let rest = chunks.writes.iter().chain(&chunks.reply).flatten();
    reads.chain(rest).next().map(|segment| segment.handle)
}
