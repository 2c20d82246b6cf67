//! The application's raw packet QPs and flow steering.

use std::sync::Arc;

use super::device::Device;
use super::error::DeviceError;
use super::error::{no_memory, unexpected};
use super::pd::{KeptObjects, ProtectionDomain};
use super::qp::QueuePair;
use roxie_base::flow::RxHash;
use roxie_nic::nic::{Answer, Command};
use roxie_nic::shared::SendRing;
use roxie_nic::verbs::{FlowId, FlowRule, QpAttr, QpState, QpType, Rss};

/// A flow: steers frames to a raw packet QP until it or the QP is dropped.
#[derive(Debug)]
pub struct Flow {
    device: Device,
    id: FlowId,
}

impl Drop for Flow {
    fn drop(&mut self) {
        // Fails if the QP was dropped first: the flow then no longer exists.
        let _ = self.device.execute(Command::DestroyFlow(self.id));
    }
}

impl Device {
    /// Makes a raw packet QP for receive side scaling. Frames steered to it go to one of the raw packet QPs in `table`,
    /// by their hash. The length of `table` is a power of two, and QPs may occur several times. The new QP has no
    /// queues and no state of its own.
    ///
    /// # Errors
    /// If the table does not meet these conditions, or the device has no room for another QP.
    pub fn create_rss_qp(
        &self,
        pd: &ProtectionDomain,
        hash: RxHash,
        table: &[Arc<QueuePair>],
    ) -> Result<QueuePair, DeviceError> {
        let nothing = SendRing::new(1, 0, 0).map_err(no_memory)?;
        let rss = Rss { hash, table: table.iter().map(|qp| qp.index()).collect() };
        match self.execute(Command::CreateRssQp(pd.id(), Box::new(rss)))? {
            Answer::Qp(handle) => {
                let mut uses: KeptObjects = vec![Arc::clone(&pd.inner) as _];
                uses.extend(table.iter().map(|qp| Arc::clone(qp) as _));
                Ok(QueuePair::new(self, handle, QpType::RawPacket, nothing, None, uses))
            }
            other => unexpected(&other),
        }
    }
}

impl QueuePair {
    /// Brings a raw packet QP from RESET to RTS. The QP sends frames, and receives those that flows steer to it.
    ///
    /// # Errors
    /// If the QP is of another type, or not in RESET.
    pub fn start_raw(&self) -> Result<(), DeviceError> {
        let to = |state| QpAttr { state: Some(state), ..QpAttr::default() };
        self.modify(&QpAttr { port: Some(1), ..to(QpState::Init) })?;
        self.modify(&to(QpState::Rtr))?;
        self.modify(&to(QpState::Rts))
    }

    /// Steers the frames that match a rule to this raw packet QP instead of the kernel. RoCE packets are never steered.
    /// Without a flow, a raw packet QP receives nothing.
    ///
    /// # Errors
    /// If the QP is of another type, there are already [`MAX_FLOWS`](roxie_base::flow::MAX_FLOWS) flows, or the port
    /// cannot steer.
    pub fn create_flow(&self, rule: &FlowRule) -> Result<Flow, DeviceError> {
        match self.device().execute(Command::CreateFlow(self.index(), Box::new(*rule)))? {
            Answer::Flow(id) => Ok(Flow { device: self.device().clone(), id }),
            other => unexpected(&other),
        }
    }
}
