//! Raw packet QPs: frames of any protocol, and what is steered to them.

use super::device::{Device, DeviceError};
use super::objects::{QueuePair, unexpected};
use crate::nic::{Answer, Command};
use crate::verbs::{FlowId, FlowRule, QpAttr, QpState};

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

    /// Steers the frames that a rule describes to this raw packet QP, away from the kernel. RoCE v2 to the device's own addresses
    /// is not steered. Without a flow a raw packet QP receives nothing.
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
