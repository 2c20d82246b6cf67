//! Calls over RDMA: each has a slot, with memory that the server reaches while the call is outstanding, and not longer.

use std::net::SocketAddr;
use std::time::Duration;

use roxie::host::{ConnectionManager, Device};
use roxie_ulp::{Ended, Lent, Replies, Requester, RequesterSizes};

use super::error::ClientError;
use crate::private::Sizes;
use crate::rpcrdma::{Body, Chunks, Header, ReadSegment, SHORTEST, Segment, length};
use crate::xdr::padding;

/// Calls outstanding at most.
pub(super) const SLOTS: u32 = 16;
/// Bytes that a call moves at most.
pub(super) const LONGEST_TRANSFER: usize = 128 << 10;
/// Bytes of an inline message that this end receives.
const INLINE: u32 = 4096;
/// Bytes of a slot's memory: a transfer, and all that a reply has around it.
const MEMORY: usize = LONGEST_TRANSFER + 4096;

/// Data of a call.
#[derive(Clone, Copy, Debug)]
pub(super) enum Data<'a> {
    /// Bytes at the end of the call; none: nothing but the call.
    Out(&'a [u8]),
    /// A data item of so many bytes at most, at the end of a reply of so many bytes in front of it.
    In(usize, usize),
    /// A reply of so many bytes at most.
    Reply(usize),
}

/// A finished call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Finished {
    /// The slot that the call had.
    pub(super) slot: usize,
    /// The RPC message. If `moved`, its data item is not in it.
    pub(super) message: Vec<u8>,
    /// The bytes of the write chunk that the server used.
    pub(super) moved: Option<Vec<u8>>,
}

/// Replies, and what they grant.
#[derive(Debug)]
struct Calls {
    /// Transaction identifier of each slot's call.
    xids: [u32; SLOTS as usize],
    /// Calls that the server grants: one until its first reply (RFC 8166 3.3.3).
    credits: u32,
}

impl Replies for Calls {
    /// The RPC message, and the number of bytes in the slot's memory, if the reply used it.
    type Reply = (Vec<u8>, Body);

    fn parse(&mut self, bytes: &[u8]) -> Result<(usize, (Vec<u8>, Body)), Ended> {
        let (header, message) = Header::parse(bytes).map_err(Ended::protocol)?;
        let xid = header.xid;
        let unknown = || Ended::Protocol(format!("a reply to call {xid:#x}, which is not outstanding"));
        let slot = self.xids.iter().position(|of_slot| *of_slot == xid).ok_or_else(unknown)?;
        if matches!(header.body, Body::Message(_) | Body::NoMessage(_)) {
            self.credits = header.credits.clamp(1, SLOTS);
        }
        Ok((slot, (message.to_vec(), header.body)))
    }
}

/// A connection.
#[derive(Debug)]
pub(super) struct Transport {
    calls: Requester<Calls>,
    /// Bytes of an inline message that the server receives, and of one that it sends.
    inline: (usize, usize),
    next_xid: u32,
}

impl Transport {
    pub(super) fn connect(
        device: &Device,
        manager: &ConnectionManager,
        to: SocketAddr,
    ) -> Result<Transport, ClientError> {
        let inline = INLINE as usize;
        let (requests, receives) = (SLOTS, SLOTS);
        let sizes = RequesterSizes {
            requests,
            request_length: inline,
            receives,
            reply_length: inline,
            memory: MEMORY,
        };
        let own = Sizes { takes_invalidation: true, sends: INLINE, receives: INLINE }.to_bytes();
        let next_xid = roxie::random::unguessable() as u32;
        // No call has the identifier of a slot that had none.
        let replies = Calls { xids: [next_xid; SLOTS as usize], credits: 1 };
        let calls = Requester::connect(device, manager, to, &sizes, &own, replies)?;
        let server = Sizes::parse(calls.endpoint.connection.private_data());
        let inline = (server.receives.min(INLINE) as usize, server.sends.min(INLINE) as usize);
        Ok(Transport { calls, inline, next_xid })
    }

    /// Returns the transaction identifier of the next call.
    pub(super) fn next_xid(&mut self) -> u32 {
        self.next_xid = self.next_xid.wrapping_add(1);
        self.next_xid
    }

    /// Sends a call, an RPC message without the data. Returns its slot; `None`: as many calls are outstanding as the
    /// server grants.
    pub(super) fn submit(
        &mut self,
        xid: u32,
        call: &[u8],
        data: Data<'_>,
    ) -> Result<Option<usize>, ClientError> {
        let Some(slot) = self.calls.reserve(self.calls.replies.credits as usize) else { return Ok(None) };
        let mut chunks = Chunks::default();
        let mut inline: &[u8] = &[];
        match data {
            Data::Out([]) => {}
            Data::Out(bytes)
                if SHORTEST + call.len() + bytes.len() + padding(bytes.len()) <= self.inline.0 =>
            {
                inline = bytes;
            }
            Data::Out(bytes) => {
                let segment = self.lend(slot, Lent::Bytes(bytes), bytes.len())?;
                chunks.reads.push(ReadSegment { position: call.len() as u32, segment });
            }
            Data::In(most, around) if SHORTEST + around + most + padding(most) <= self.inline.1 => {}
            Data::In(most, _) => chunks.writes.push(vec![self.lend(slot, Lent::Room(most), most)?]),
            Data::Reply(most) if SHORTEST + most <= self.inline.1 => {}
            Data::Reply(most) => chunks.reply = Some(vec![self.lend(slot, Lent::Room(most), most)?]),
        }
        let header = Header { xid, credits: SLOTS, body: Body::Message(chunks) }.to_bytes();
        let parts = [&header[..], call, inline, &[0; 3][..padding(inline.len())]];
        let (length, most) = (parts.iter().map(|part| part.len()).sum::<usize>(), self.inline.0);
        if length > most {
            return Err(wrong(format!("a call of {length} bytes; the server takes {most}")));
        }
        self.calls.send(slot, &parts)?;
        self.calls.replies.xids[slot] = xid;
        Ok(Some(slot))
    }

    /// Registers a slot's memory.
    fn lend(&mut self, slot: usize, lent: Lent<'_>, length: usize) -> Result<Segment, ClientError> {
        let (offset, key) = self.calls.lend(slot, lent)?;
        Ok(Segment { handle: key.0, length: length as u32, offset })
    }

    /// Waits for a call to finish.
    pub(super) fn wait(&mut self, timeout: Duration) -> Result<Finished, ClientError> {
        let finished = self.calls.wait(None, timeout)?.ok_or(ClientError::Timeout(timeout))?;
        let (slot, room, (message, body)) = (finished.slot, finished.room, finished.reply);
        let copy = |bytes: u64| match usize::try_from(bytes) {
            Ok(bytes) if bytes <= room => Ok(self.calls.copy(slot, bytes)?),
            _ => Err(wrong(format!("the server says that it wrote {bytes} bytes to {room}"))),
        };
        match body {
            Body::Message(chunks) => {
                let moved = chunks.writes.first().map(|chunk| copy(length(chunk))).transpose()?;
                Ok(Finished { slot, message, moved })
            }
            Body::NoMessage(chunks) => {
                let reply = chunks.reply.as_ref().map_or(0, |chunk| length(chunk));
                Ok(Finished { slot, message: copy(reply)?, moved: None })
            }
            Body::WrongVersion { low, high } => {
                Err(wrong(format!("the server has RPC-over-RDMA versions {low} to {high} only")))
            }
            Body::WrongChunk => Err(wrong("the server cannot use the chunks of a call".into())),
        }
    }

    pub(super) fn disconnect(self) -> Result<(), ClientError> {
        Ok(self.calls.endpoint.connection.disconnect()?)
    }
}

fn wrong(what: String) -> ClientError {
    ClientError::Protocol(what)
}
