//! Calls over RDMA: each has a slot, with memory that the server reaches while the call is outstanding, and not longer.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use roxie::host::{
    CompletionQueue, Connection, ConnectionManager, Device, DeviceError, DialOptions, LentRegion,
    MemoryRegion,
};
use roxie::verbs::{Access, QpCaps, SendWr, Wc, WcOpcode, WcStatus};

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

#[derive(Debug)]
struct Slot {
    memory: LentRegion,
    state: State,
}

/// State of a call. It is finished once its request is over for the memory of its slot.
#[derive(Debug, Default)]
struct State {
    is_busy: bool,
    xid: u32,
    /// Bytes of the chunk in the slot's memory.
    offered: usize,
    /// The message, and the number of bytes in the slot's memory, if the reply used it.
    reply: Option<(Vec<u8>, Body)>,
}

/// A connection.
#[derive(Debug)]
pub(super) struct Transport {
    // Dropped first: the queue pair uses the memory below.
    connection: Connection,
    cq: CompletionQueue,
    calls: MemoryRegion,
    replies: MemoryRegion,
    slots: Vec<Slot>,
    finished: VecDeque<usize>,
    /// Bytes of an inline message that the server receives, and of one that it sends.
    inline: (usize, usize),
    /// Calls that the server grants: one until its first reply (RFC 8166 3.3.3).
    credits: u32,
    next_xid: u32,
}

impl Transport {
    pub(super) fn connect(
        device: &Device,
        manager: &ConnectionManager,
        to: SocketAddr,
    ) -> Result<Transport, ClientError> {
        let caps = QpCaps {
            // A registration, a SEND and an invalidation of each call.
            max_send_wr: 3 * SLOTS,
            max_recv_wr: SLOTS,
            max_send_sge: 1,
            max_recv_sge: 1,
            ..QpCaps::default()
        };
        let pd = device.alloc_pd()?;
        let cq = device.create_cq(caps.max_send_wr + caps.max_recv_wr, None)?;
        let inline = SLOTS as usize * INLINE as usize;
        let (calls, replies) =
            (pd.register(inline, Access::LOCAL_WRITE)?, pd.register(inline, Access::LOCAL_WRITE)?);
        let slot = |_| {
            let memory = LentRegion::new(&pd, MEMORY)?;
            Ok::<_, DeviceError>(Slot { memory, state: State::default() })
        };
        let slots = (0..SLOTS).map(slot).collect::<Result<Vec<_>, _>>()?;
        let qp = pd.queue_pair(&cq).caps(caps).create()?;
        qp.initialize(Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE)?;
        for n in 0..SLOTS as usize {
            qp.post_recv(n as u64, &[replies.sge(n * INLINE as usize, INLINE)])?;
        }
        let own = Sizes { takes_invalidation: true, sends: INLINE, receives: INLINE };
        let options = DialOptions { private_data: own.to_bytes().to_vec(), ..DialOptions::default() };
        let connection = manager.connect(qp, to, &options)?;
        let server = Sizes::parse(connection.private_data());
        let inline = (server.receives.min(INLINE) as usize, server.sends.min(INLINE) as usize);
        let next_xid = roxie::random::unguessable() as u32;
        let finished = VecDeque::new();
        Ok(Transport { connection, cq, calls, replies, slots, finished, inline, credits: 1, next_xid })
    }

    /// Returns the transaction identifier of the next call.
    pub(super) fn next_xid(&mut self) -> u32 {
        self.next_xid = self.next_xid.wrapping_add(1);
        self.next_xid
    }

    /// Sends a call, an RPC message without the data. Returns its slot; `None`: as many calls are outstanding as the server grants.
    pub(super) fn submit(
        &mut self,
        xid: u32,
        call: &[u8],
        data: Data<'_>,
    ) -> Result<Option<usize>, ClientError> {
        let outstanding = self.slots.iter().filter(|slot| slot.state.is_busy).count();
        let free = self.slots.iter().position(|slot| !slot.state.is_busy);
        let Some(slot) = free.filter(|_| outstanding < self.credits.max(1) as usize) else { return Ok(None) };
        self.slots[slot].memory.begin();
        let (mut chunks, mut message, mut offered) = (Chunks::default(), call.to_vec(), 0);
        match data {
            Data::Out([]) => {}
            Data::Out(bytes)
                if SHORTEST + call.len() + bytes.len() + padding(bytes.len()) <= self.inline.0 =>
            {
                message.extend(bytes);
                message.resize(message.len() + padding(bytes.len()), 0);
            }
            Data::Out(bytes) => {
                let memory = self.slots[slot].memory.memory();
                memory.write(0, bytes).map_err(DeviceError::from)?;
                let segment = self.register(slot, bytes.len(), Access::REMOTE_READ)?;
                chunks.reads.push(ReadSegment { position: call.len() as u32, segment });
                offered = bytes.len();
            }
            Data::In(most, around) if SHORTEST + around + most + padding(most) <= self.inline.1 => {}
            Data::In(most, _) => {
                chunks.writes.push(vec![self.register(
                    slot,
                    most,
                    Access::REMOTE_WRITE | Access::LOCAL_WRITE,
                )?]);
                offered = most;
            }
            Data::Reply(most) if SHORTEST + most <= self.inline.1 => {}
            Data::Reply(most) => {
                chunks.reply =
                    Some(vec![self.register(slot, most, Access::REMOTE_WRITE | Access::LOCAL_WRITE)?]);
                offered = most;
            }
        }
        let header = Header { xid, credits: SLOTS, body: Body::Message(chunks) };
        let bytes = [&header.to_bytes()[..], &message].concat();
        if bytes.len() > self.inline.0 {
            let most = self.inline.0;
            return Err(ClientError::Protocol(format!(
                "a call of {} bytes; the server takes {most}",
                bytes.len()
            )));
        }
        let begin = slot * INLINE as usize;
        self.calls.write_at(begin, &bytes)?;
        let send = SendWr::send().id(slot as u64).signaled();
        self.connection.qp().post_send(&send, &[self.calls.sge(begin, bytes.len() as u32)])?;
        self.slots[slot].state = State { is_busy: true, xid, offered, reply: None };
        Ok(Some(slot))
    }

    /// Posts the registration of a slot's memory.
    fn register(&mut self, slot: usize, length: usize, access: Access) -> Result<Segment, ClientError> {
        let memory = &mut self.slots[slot].memory;
        let (offset, key) = memory.lend(self.connection.qp(), length, access)?;
        Ok(Segment { handle: key.0, length: length as u32, offset })
    }

    /// Waits for a call to finish.
    pub(super) fn wait(&mut self, timeout: Duration) -> Result<Finished, ClientError> {
        let until = Instant::now() + timeout;
        loop {
            if let Some(slot) = self.finished.pop_front() {
                return self.finish(slot);
            }
            let left = until.saturating_duration_since(Instant::now());
            let waited = self.connection.wait_for_completion(&self.cq, left);
            match waited.map_err(|_| ClientError::Closed)? {
                Some(wc) => self.completed(&wc)?,
                None => return Err(ClientError::Timeout(timeout)),
            }
        }
    }

    fn finish(&mut self, slot: usize) -> Result<Finished, ClientError> {
        let Slot { memory, state } = &mut self.slots[slot];
        let State { reply, offered, .. } = std::mem::take(state);
        let (message, body) = reply.expect("a finished call has a reply");
        let copy = |bytes: u64| {
            let wrong =
                || ClientError::Protocol(format!("the server says that it wrote {bytes} bytes to {offered}"));
            let bytes = usize::try_from(bytes).ok().filter(|bytes| *bytes <= offered).ok_or_else(wrong)?;
            let mut copied = vec![0; bytes];
            memory.memory().read(0, &mut copied).map_err(DeviceError::from)?;
            Ok::<_, ClientError>(copied)
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
            Body::WrongVersion { low, high } => Err(ClientError::Protocol(format!(
                "the server has RPC-over-RDMA versions {low} to {high} only"
            ))),
            Body::WrongChunk => {
                Err(ClientError::Protocol("the server cannot use the chunks of a call".into()))
            }
        }
    }

    pub(super) fn disconnect(self) -> Result<(), ClientError> {
        Ok(self.connection.disconnect()?)
    }

    fn completed(&mut self, wc: &Wc) -> Result<(), ClientError> {
        if wc.status != WcStatus::Success {
            return Err(ClientError::Lost(wc.status));
        }
        let slot = match wc.opcode {
            WcOpcode::Recv => self.received(wc)?,
            WcOpcode::Send | WcOpcode::LocalInvalidate => {
                self.slots[wc.wr_id as usize].memory.completed(wc.opcode);
                wc.wr_id as usize
            }
            other => {
                let what = format!("a completion of {other:?}, which no request posts");
                return Err(ClientError::Protocol(what));
            }
        };
        if self.slots[slot].memory.is_over() {
            self.finished.push_back(slot);
        }
        Ok(())
    }

    /// Takes a reply. Returns its slot.
    fn received(&mut self, wc: &Wc) -> Result<usize, ClientError> {
        let begin = wc.wr_id as usize * INLINE as usize;
        let bytes = self.replies.to_vec(begin, (wc.byte_len as usize).min(INLINE as usize))?;
        self.connection.qp().post_recv(wc.wr_id, &[self.replies.sge(begin, INLINE)])?;
        let (header, message) =
            Header::parse(&bytes).map_err(|refusal| ClientError::Protocol(refusal.to_string()))?;
        let of_call =
            |slot: &Slot| slot.state.is_busy && slot.state.reply.is_none() && slot.state.xid == header.xid;
        let Some(index) = self.slots.iter().position(of_call) else {
            let xid = header.xid;
            return Err(ClientError::Protocol(format!("a reply to call {xid:#x}, which is not outstanding")));
        };
        if matches!(header.body, Body::Message(_) | Body::NoMessage(_)) {
            self.credits = header.credits.clamp(1, SLOTS);
        }
        let slot = &mut self.slots[index];
        slot.state.reply = Some((message.to_vec(), header.body));
        slot.memory.answered(self.connection.qp(), wc, index as u64)?;
        Ok(index)
    }
}
