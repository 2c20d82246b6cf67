//! The requesting end: each request has a slot, with memory that the peer reaches while the request is outstanding, and
//! not longer.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::net::SocketAddr;
use std::time::Duration;

use roxie::host::{ConnectionManager, Device, DeviceError, DialError, DialOptions, LentRegion};
use roxie::verbs::{Access, RKey, SendWr, Wc};

use crate::ended::Ended;
use crate::endpoint::{Endpoint, Sizes};
use crate::slots::Slots;
use crate::upper_layer::{UpperLayer, wait};

/// The replies of a protocol, as its requesting end reads them.
pub trait Replies {
    /// A parsed reply.
    type Reply: Debug;

    /// Parses a reply. Returns the slot of its request.
    ///
    /// # Errors
    /// If it is malformed: the connection ends.
    fn parse(&mut self, message: &[u8]) -> Result<(usize, Self::Reply), Ended>;
}

/// Sizes of a requester.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequesterSizes {
    /// Requests outstanding at most.
    pub requests: u32,
    /// Bytes of a request's message at most.
    pub request_length: usize,
    /// Receives for replies.
    pub receives: u32,
    /// Bytes of a reply's message at most.
    pub reply_length: usize,
    /// Bytes of memory that a request lends to the peer at most.
    pub memory: usize,
}

/// Memory that a request lends to the peer.
#[derive(Clone, Copy, Debug)]
pub enum Lent<'a> {
    /// These bytes, which the peer reads.
    Bytes(&'a [u8]),
    /// This many bytes, which the peer writes.
    Room(usize),
}

/// A request that is over, also for its memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished<T> {
    /// Its slot, which is free again.
    pub slot: usize,
    /// Its reply.
    pub reply: T,
    /// Bytes that the peer could write.
    pub room: usize,
}

#[derive(Debug)]
struct Slot<T> {
    memory: LentRegion,
    is_outstanding: bool,
    room: usize,
    reply: Option<T>,
}

/// A connection with its outstanding requests.
#[derive(Debug)]
pub struct Requester<R: Replies> {
    // Dropped first: the queue pair uses the memory below.
    /// The connection, with its receives.
    pub endpoint: Endpoint,
    messages: Slots,
    slots: Vec<Slot<R::Reply>>,
    outstanding: usize,
    finished: VecDeque<usize>,
    /// The protocol's state.
    pub replies: R,
}

impl<R: Replies> Requester<R> {
    /// Connects, with all receives posted.
    ///
    /// # Errors
    /// If the device has no room, there is no path, or the peer refuses.
    pub fn connect(
        device: &Device,
        manager: &ConnectionManager,
        to: SocketAddr,
        sizes: &RequesterSizes,
        private_data: &[u8],
        replies: R,
    ) -> Result<Requester<R>, DialError> {
        let queues = Sizes {
            receives: sizes.receives,
            receive_length: sizes.reply_length,
            // A registration, a SEND and an invalidation of each request.
            sends: 3 * sizes.requests,
            inline: 0,
        };
        let options = DialOptions { private_data: private_data.to_vec(), ..DialOptions::default() };
        let endpoint = Endpoint::new(device, &queues, |qp| manager.connect(qp, to, &options))?;
        let messages = Slots::new(&endpoint.pd, sizes.requests, sizes.request_length)?;
        let slot = |_| {
            let memory = LentRegion::new(&endpoint.pd, sizes.memory)?;
            Ok::<_, DeviceError>(Slot { memory, is_outstanding: false, room: 0, reply: None })
        };
        let slots = (0..sizes.requests).map(slot).collect::<Result<Vec<_>, _>>()?;
        Ok(Requester { endpoint, messages, slots, outstanding: 0, finished: VecDeque::new(), replies })
    }

    /// Returns a free slot for a request. `None`: `most` requests are outstanding, or as many as there are slots.
    pub fn reserve(&mut self, most: usize) -> Option<usize> {
        let free = self.slots.iter().position(|slot| !slot.is_outstanding);
        let index = free.filter(|_| self.outstanding < most)?;
        self.slots[index].memory.begin();
        self.slots[index].room = 0;
        Some(index)
    }

    /// Registers memory of a request that is sent next. Returns the address and the key.
    ///
    /// # Errors
    /// If it is longer than the memory, or the work request was not posted.
    pub fn lend(&mut self, slot: usize, lent: Lent<'_>) -> Result<(u64, RKey), Ended> {
        let Slot { memory, room, .. } = &mut self.slots[slot];
        let (length, access) = match lent {
            Lent::Bytes(bytes) => {
                memory.memory().write(0, bytes).map_err(DeviceError::from)?;
                (bytes.len(), Access::REMOTE_READ)
            }
            Lent::Room(length) => {
                *room = length;
                (length, Access::REMOTE_WRITE | Access::LOCAL_WRITE)
            }
        };
        Ok(memory.lend(self.endpoint.qp(), length, access)?)
    }

    /// Sends a request, with the parts of its message one behind the other.
    ///
    /// # Errors
    /// If the work request was not posted.
    pub fn send(&mut self, slot: usize, parts: &[&[u8]]) -> Result<(), Ended> {
        let message = self.messages.fill(slot as u32, parts)?;
        self.endpoint.qp().post_send(&SendWr::send().id(slot as u64).signaled(), &[message])?;
        self.slots[slot].is_outstanding = true;
        self.outstanding += 1;
        Ok(())
    }

    /// Waits for a request to finish: for that in slot `only`, or for any. `None`: it did not in time.
    ///
    /// # Errors
    /// If the connection has ended, or a reply is malformed.
    pub fn wait(
        &mut self,
        only: Option<usize>,
        timeout: Duration,
    ) -> Result<Option<Finished<R::Reply>>, Ended> {
        wait(self, timeout, |requester| {
            let is_wanted = |slot: &usize| only.is_none_or(|only| only == *slot);
            let at = requester.finished.iter().position(is_wanted)?;
            let index = requester.finished.remove(at)?;
            let slot = &mut requester.slots[index];
            slot.is_outstanding = false;
            requester.outstanding -= 1;
            slot.reply.take().map(|reply| Finished { slot: index, reply, room: slot.room })
        })
    }

    /// Copies the first bytes of the memory of a finished request.
    ///
    /// # Errors
    /// If they are more than it has.
    pub fn copy(&self, slot: usize, length: usize) -> Result<Vec<u8>, Ended> {
        let mut bytes = vec![0; length];
        self.slots[slot].memory.memory().read(0, &mut bytes).map_err(DeviceError::from)?;
        Ok(bytes)
    }

    /// Records the completion of a SEND or of a local invalidation.
    fn completed(&mut self, wc: &Wc) {
        let index = wc.wr_id as usize;
        self.slots[index].memory.completed(wc.opcode);
        self.finish(index);
    }

    /// Moves a request to the finished ones, if it is over.
    fn finish(&mut self, index: usize) {
        if self.slots[index].memory.is_over() {
            self.finished.push_back(index);
        }
    }
}

impl<R: Replies> UpperLayer for Requester<R> {
    fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    fn received(&mut self, wc: &Wc) -> Result<(), Ended> {
        let message = self.endpoint.receive(wc)?;
        let (index, reply) = self.replies.parse(&message)?;
        let slot = self.slots.get_mut(index).filter(|slot| slot.is_outstanding && slot.reply.is_none());
        let Some(slot) = slot else {
            return Err(Ended::Protocol(format!("a reply to request {index}, which is not outstanding")));
        };
        slot.reply = Some(reply);
        slot.memory.answered(self.endpoint.qp(), wc, index as u64)?;
        self.finish(index);
        Ok(())
    }

    fn sent(&mut self, wc: &Wc) -> Result<(), Ended> {
        self.completed(wc);
        Ok(())
    }

    fn invalidated(&mut self, wc: &Wc) -> Result<(), Ended> {
        self.completed(wc);
        Ok(())
    }
}
