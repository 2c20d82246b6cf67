//! The application's raw packet QPs: frames of any protocol, and what is steered to them.

use std::sync::Arc;

use super::device::Device;
use super::error::DeviceError;
use super::error::{no_memory, unexpected};
use super::pd::{Kept, ProtectionDomain};
use super::qp::QueuePair;
use crate::flow::RxHash;
use crate::nic::{Answer, Command};
use crate::shared::SendRing;
use crate::verbs::{FlowId, FlowRule, QpAttr, QpState, QpType, Rss};

/// A flow: frames are steered to a raw packet QP until it is dropped, or the QP.
#[derive(Debug)]
pub struct Flow {
    device: Device,
    id: FlowId,
}

impl Drop for Flow {
    fn drop(&mut self) {
        // With its QP it has gone already.
        let _ = self.device.call(Command::DestroyFlow(self.id));
    }
}

impl Device {
    /// Makes a raw packet QP for receive side scaling: what is steered to it goes to one of `table`, a power of two of raw packet QPs
    /// of which some may be there several times. It has no queues and no state of its own.
    ///
    /// # Errors
    /// If the table is none of that, or the device has no room for another QP.
    pub fn create_rss_qp(
        &self,
        pd: &ProtectionDomain,
        hash: RxHash,
        table: &[Arc<QueuePair>],
    ) -> Result<QueuePair, DeviceError> {
        let nothing = SendRing::new(1, 0, 0).map_err(no_memory)?;
        let rss = Rss { hash, table: table.iter().map(|qp| qp.index()).collect() };
        match self.call(Command::CreateRssQp(pd.id(), Box::new(rss)))? {
            Answer::Qp(handle) => {
                let mut uses: Kept = vec![Arc::clone(&pd.inner) as _];
                uses.extend(table.iter().map(|qp| Arc::clone(qp) as _));
                Ok(QueuePair::new(self, handle, QpType::RawPacket, nothing, None, uses))
            }
            other => unexpected(&other),
        }
    }
}

impl QueuePair {
    /// A raw packet QP from RESET to RTS: it sends frames, and takes those that flows steer to it.
    ///
    /// # Errors
    /// If the QP is of another type, or not in RESET.
    pub fn start_raw(&self) -> Result<(), DeviceError> {
        let to = |state| QpAttr { state: Some(state), ..QpAttr::default() };
        self.modify(&QpAttr { port: Some(1), ..to(QpState::Init) })?;
        self.modify(&to(QpState::Rtr))?;
        self.modify(&to(QpState::Rts))
    }

    /// Steers the frames that a rule describes to this raw packet QP, away from the kernel. RoCE is not
    /// steered, whomever it is for. Without a flow a raw packet QP receives nothing.
    ///
    /// # Errors
    /// If the QP is of another type, there are [`MAX_FLOWS`](crate::flow::MAX_FLOWS) already, or the port cannot.
    pub fn create_flow(&self, rule: &FlowRule) -> Result<Flow, DeviceError> {
        match self.device().call(Command::CreateFlow(self.index(), Box::new(*rule)))? {
            Answer::Flow(id) => Ok(Flow { device: self.device().clone(), id }),
            other => unexpected(&other),
        }
    }
}
