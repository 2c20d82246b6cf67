//! A send queue with a limited number of places.

use std::collections::VecDeque;

use roxie::host::{PostError, QueuePair};
use roxie::verbs::{RKey, SendFlags, SendWr, Sge, Wc, WrOpcode};

/// The payload of a work request.
#[derive(Clone, Copy, Debug)]
pub enum Payload {
    /// Registered memory.
    Memory(Sge),
    /// A message that is copied into the work request: a response of NVMe.
    Inline([u8; 16]),
}

/// Returns a SEND, which may invalidate a key of the peer.
pub fn send(invalidates: Option<RKey>) -> SendWr {
    match invalidates {
        Some(rkey) => SendWr { opcode: WrOpcode::SendInvalidate, rkey, ..SendWr::send() },
        None => SendWr::send(),
    }
}

/// The send queue of a connection. Work requests that find no place wait for one, in their order. A half-open
/// connection has the queue, too, so it is short.
#[derive(Debug)]
pub struct SendQueue {
    /// Free places.
    places: u32,
    /// Work requests that were posted without a completion of their own, since the last one with a completion.
    unsignaled: u32,
    waiting: VecDeque<(SendWr, Payload)>,
}

impl SendQueue {
    /// Returns an empty queue.
    pub fn new(places: u32) -> SendQueue {
        SendQueue { places, unsignaled: 0, waiting: VecDeque::new() }
    }

    /// Number of work requests that wait for places.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Posts a work request with an identifier of 32 bits, now or when it has a place. An unsignaled one gives its
    /// place back with the next signaled one: fewer than the queue has places may be in a row.
    ///
    /// # Errors
    /// The errors of [`QueuePair::post_send`].
    pub fn post(&mut self, qp: &QueuePair, request: SendWr, payload: Payload) -> Result<(), PostError> {
        if self.places == 0 || !self.waiting.is_empty() {
            self.waiting.push_back((request, payload));
            return Ok(());
        }
        self.post_now(qp, request, payload)
    }

    /// Takes back the places of a completed work request, and posts waiting ones. Returns the identifier.
    ///
    /// # Errors
    /// The errors of [`QueuePair::post_send`].
    pub fn completed(&mut self, qp: &QueuePair, wc: &Wc) -> Result<u32, PostError> {
        self.places += (wc.wr_id >> 32) as u32;
        while self.places > 0
            && let Some((request, payload)) = self.waiting.pop_front()
        {
            self.post_now(qp, request, payload)?;
        }
        Ok(wc.wr_id as u32)
    }

    fn post_now(&mut self, qp: &QueuePair, mut request: SendWr, payload: Payload) -> Result<(), PostError> {
        self.places -= 1;
        self.unsignaled += 1;
        if request.flags.contains(SendFlags::SIGNALED) {
            // The completion says how many places it gives back.
            request.wr_id |= u64::from(std::mem::take(&mut self.unsignaled)) << 32;
        }
        match payload {
            Payload::Memory(sge) => qp.post_send(&request, &[sge]),
            Payload::Inline(bytes) => qp.post_send_inline(&request, &bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use roxie::host::{CompletionQueue, ConnectOptions, Device, DeviceConfig, MemoryRegion};
    use roxie::verbs::{Access, QpCaps, WcOpcode};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    fn end(device: &Device) -> (QueuePair, CompletionQueue, MemoryRegion) {
        let (pd, cq) = (device.alloc_pd().expect("room"), device.create_cq(32, None).expect("room"));
        let caps =
            QpCaps { max_send_wr: 2, max_recv_wr: 6, max_send_sge: 1, max_recv_sge: 1, max_inline: 16 };
        let qp = pd.queue_pair(&cq).caps(caps).create().expect("room");
        (qp, cq, pd.register(6 * 16, Access::LOCAL_WRITE).expect("memory"))
    }

    #[test]
    fn waiting_requests_are_posted_in_order() {
        let (local, remote) = Device::memory_pair(&DeviceConfig::default()).expect("devices");
        let ((sender, cq, _), (receiver, receiver_cq, memory)) = (end(&local), end(&remote));
        let (here, there) = (sender.endpoint(0).expect("a GID"), receiver.endpoint(0).expect("a GID"));
        sender.connect(&here, &there, &ConnectOptions::default()).expect("RTS");
        receiver.connect(&there, &here, &ConnectOptions::default()).expect("RTS");
        for slot in 0..6 {
            receiver.post_recv(slot, &[memory.sge(slot as usize * 16, 16)]).expect("room");
        }
        let mut sends = SendQueue::new(2);
        for id in 0..6 {
            // Each second one gives back two places.
            let request = SendWr::send().id(id);
            let request = if id % 2 == 0 { request } else { request.signaled() };
            sends.post(&sender, request, Payload::Inline([id as u8; 16])).expect("room or a wait");
        }
        assert_eq!(sends.waiting(), 4);
        for (id, waiting) in [(1, 2), (3, 0), (5, 0)] {
            let wc = cq.wait(PATIENCE).expect("a completion").ok().expect("success");
            assert_eq!(sends.completed(&sender, &wc).expect("room"), id);
            assert_eq!((wc.opcode, sends.waiting()), (WcOpcode::Send, waiting));
        }
        for id in 0..6 {
            let wc = receiver_cq.wait(PATIENCE).expect("a completion").ok().expect("success");
            assert_eq!(wc.wr_id, id);
            assert_eq!(memory.to_vec(id as usize * 16, 16).expect("bytes"), [id as u8; 16]);
        }
        assert_eq!(sends.places, 2);
    }

    #[test]
    fn send_invalidates_the_key_it_names() {
        assert_eq!(send(None).opcode, WrOpcode::Send);
        let invalidating = send(Some(RKey(7)));
        assert_eq!((invalidating.opcode, invalidating.rkey), (WrOpcode::SendInvalidate, RKey(7)));
    }
}
