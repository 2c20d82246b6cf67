//! QP1 of the connection manager.

use crate::host::channel::CompletionChannel;
use crate::host::cq::CompletionQueue;
use crate::host::device::Device;
use crate::host::error::DeviceError;
use crate::host::memory::MemoryRegion;
use crate::host::pd::ProtectionDomain;
use crate::host::qp::QueuePair;
use roxie_nic::verbs::{Access, Psn, QpAttr, QpCaps, QpInit, QpState, QpType};
use roxie_wire::mad::{GSI_QKEY, MAD_LEN};

/// Number of posted receives: datagrams of 20 ms of a flood. On a busy machine the thread does not run sooner.
pub(super) const RECEIVES: u32 = 4096;
/// Maximum number of unfinished sends.
pub(super) const SENDS: u32 = 64;
/// Bytes before each datagram: the network header (GRH).
pub(super) const HEADER: usize = 40;
/// Bytes of a receive. A longer datagram is no MAD: the NIC drops it, and the receive stays posted.
pub(super) const ROOM: usize = HEADER + MAD_LEN;

/// QP1 and its receive buffers.
#[derive(Debug)]
pub(super) struct Gsi {
    pub(super) qp: QueuePair,
    pub(super) received: MemoryRegion,
    pub(super) domain: ProtectionDomain,
}

impl Gsi {
    pub(super) fn new(device: &Device) -> Result<(Gsi, CompletionQueue, CompletionChannel), DeviceError> {
        let domain = device.alloc_pd()?;
        let channel = CompletionChannel::new()?;
        let queue = device.create_cq(RECEIVES + SENDS, Some(&channel))?;
        let caps = QpCaps {
            max_send_wr: SENDS,
            max_recv_wr: RECEIVES,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: MAD_LEN as u32,
        };
        let init = QpInit { qp_type: QpType::Gsi, caps, sq_sig_all: true };
        let qp = domain.queue_pair(&queue).init(&init).create()?;
        let received = domain.register(RECEIVES as usize * ROOM, Access::LOCAL_WRITE)?;
        let gsi = Gsi { qp, received, domain };
        gsi.start()?;
        Ok((gsi, queue, channel))
    }

    /// Resets QP1, brings it to RTS, and posts all receives.
    pub(super) fn start(&self) -> Result<(), DeviceError> {
        self.qp.modify(&QpAttr { state: Some(QpState::Reset), ..QpAttr::default() })?;
        self.qp.start_datagrams(GSI_QKEY, Psn::new(0))?;
        (0..RECEIVES).try_for_each(|slot| self.post_receive(slot.into()))
    }

    pub(super) fn post_receive(&self, slot: u64) -> Result<(), DeviceError> {
        let place = self.received.sge(slot as usize * ROOM, ROOM as u32);
        Ok(self.qp.post_recv(slot, &[place])?)
    }
}
