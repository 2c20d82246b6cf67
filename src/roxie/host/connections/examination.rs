//! Questions of the connection manager: has a connection's peer sent anything?

use std::sync::PoisonError;

use super::{Consumer, Core};
use crate::host::device::Device;
use roxie_base::time::Nanos;
use roxie_nic::nic::{Answer, Command};
use roxie_nic::verbs::Qpn;

impl<C: Consumer> Core<C> {
    /// Answers the manager's questions.
    pub(super) fn examine(&mut self, now: Nanos) {
        while let Some(examination) = self.manager.poll_examination() {
            let has_received = has_received(&self.device, examination.qpn, examination.probes_peer);
            self.manager.examined(now, &examination, has_received);
        }
    }
}

/// Returns true if a packet of the QP's connection has arrived since the last call. If none has and `asks` is true, the
/// QP asks its peer. A QP that is not this process's hears nothing.
fn has_received(device: &Device, qpn: Qpn, asks: bool) -> bool {
    let qps = device.inner.qps.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(index) = qps.get(&qpn).copied() else { return false };
    drop(qps);
    matches!(device.execute(Command::ExamineQp(index, asks)), Ok(Answer::Heard(true)))
}
