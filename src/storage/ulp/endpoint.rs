//! A connection with posted receives.

use std::sync::Arc;

use roxie::host::{
    CompletionChannel, CompletionQueue, Connection, Device, DeviceError, DialError, FirstMessage,
    ProtectionDomain, QueuePair,
};
use roxie::verbs::{Access, QpCaps, Wc};

use crate::ended::Ended;
use crate::slots::Slots;

/// Identifier of the receive for the first message of an accepted connection, which is in the place of slot 0's. It has
/// no bit of a slot.
pub(crate) const FIRST: u64 = 1 << 32;

/// Sizes of a connection's queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Receives. A message beyond them is sent again (RNR NAK).
    pub receives: u32,
    /// Bytes of a received message at most.
    pub receive_length: usize,
    /// Places of the send queue.
    pub sends: u32,
    /// Bytes of an inline payload at most.
    pub inline: u32,
}

impl Sizes {
    pub(crate) fn caps(&self) -> QpCaps {
        QpCaps {
            max_send_wr: self.sends,
            max_recv_wr: self.receives,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: self.inline,
        }
    }

    /// Makes the memory of receives, and posts those of the slots from `from` on.
    pub(crate) fn post_receives(
        &self,
        pd: &ProtectionDomain,
        qp: &QueuePair,
        from: u32,
    ) -> Result<Slots, DeviceError> {
        let slots = Slots::new(pd, self.receives, self.receive_length)?;
        (from..self.receives).try_for_each(|slot| qp.post_recv(slot.into(), &[slots.whole(slot)]))?;
        Ok(slots)
    }
}

/// A connection with posted receives.
#[derive(Debug)]
pub struct Endpoint {
    // Dropped first: the queue pair uses the memory below.
    /// The connection.
    pub connection: Connection,
    pub(crate) cq: CompletionQueue,
    /// Wakes the thread of a server.
    pub(crate) channel: Option<CompletionChannel>,
    pub(crate) receives: Slots,
    /// Memory of the first message, until it is received.
    pub(crate) first: Option<Arc<FirstMessage>>,
    /// The domain in which to register memory.
    pub pd: ProtectionDomain,
}

impl Endpoint {
    /// Makes a queue pair, posts its receives, and makes the connection by `establish`.
    ///
    /// # Errors
    /// If the device has no room, or the connection is not made.
    pub fn new(
        device: &Device,
        sizes: &Sizes,
        establish: impl FnOnce(QueuePair) -> Result<Connection, DialError>,
    ) -> Result<Endpoint, DialError> {
        let pd = device.alloc_pd()?;
        let cq = device.create_cq(sizes.sends + sizes.receives, None)?;
        let qp = pd.queue_pair(&cq).caps(sizes.caps()).create()?;
        qp.initialize(Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE)?;
        let receives = sizes.post_receives(&pd, &qp, 0)?;
        Ok(Endpoint { connection: establish(qp)?, cq, channel: None, receives, first: None, pd })
    }

    /// The queue pair.
    pub fn qp(&self) -> &QueuePair {
        self.connection.qp()
    }

    /// Returns a received message. Its receive is posted again.
    ///
    /// # Errors
    /// If the receive was not posted.
    pub fn receive(&mut self, wc: &Wc) -> Result<Vec<u8>, Ended> {
        let (slot, length) = (wc.wr_id as u32, wc.byte_len as usize);
        let message = match self.first.take_if(|_| wc.wr_id == FIRST) {
            Some(first) => first.to_vec(length)?,
            None => self.receives.to_vec(slot, length)?,
        };
        self.qp().post_recv(slot.into(), &[self.receives.whole(slot)])?;
        Ok(message)
    }
}
