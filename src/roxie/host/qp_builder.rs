//! Making queue pairs.

use std::sync::Arc;

use super::cq::CompletionQueue;
use super::error::{DeviceError, no_memory, unexpected};
use super::pd::{KeptObjects, ProtectionDomain};
use super::qp::QueuePair;
use super::srq::SharedReceiveQueue;
use super::xrcd::XrcDomain;
use roxie_nic::nic::{Answer, Command, ControlError, MemoryCommand, ReceiveSource};
use roxie_nic::shared::SendRing;
use roxie_nic::verbs::{QpCaps, QpInit, QpType};

/// Attributes of a new queue pair. By default it is an RC QP with the sizes of [`QpCaps::default`], whose sends and
/// receives complete in one queue, and whose sends complete visibly only if they are
/// [signaled](roxie_nic::verbs::SendWr::signaled).
///
/// ```
/// use roxie::host::{Device, DeviceConfig};
/// use roxie::verbs::QpCaps;
///
/// let (device, _peer) = Device::memory_pair(&DeviceConfig::caller_only())?;
/// let (pd, cq) = (device.alloc_pd()?, device.create_cq(16, None)?);
/// let qp = pd.queue_pair(&cq).caps(QpCaps { max_send_wr: 64, ..QpCaps::default() }).create()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder makes nothing before `create`"]
pub struct QpBuilder<'a> {
    pd: &'a ProtectionDomain,
    send_cq: &'a CompletionQueue,
    recv_cq: &'a CompletionQueue,
    srq: Option<&'a SharedReceiveQueue>,
    init: QpInit,
    keeps_alive: KeptObjects,
}

impl ProtectionDomain {
    /// Starts to make a queue pair whose completions go to `cq`.
    pub fn queue_pair<'a>(&'a self, cq: &'a CompletionQueue) -> QpBuilder<'a> {
        let init = QpInit { qp_type: QpType::Rc, caps: QpCaps::default(), sq_sig_all: false };
        QpBuilder { pd: self, send_cq: cq, recv_cq: cq, srq: None, init, keeps_alive: KeptObjects::new() }
    }
}

impl<'a> QpBuilder<'a> {
    /// Sets another queue for the completions of receives.
    pub fn recv_cq(self, cq: &'a CompletionQueue) -> Self {
        QpBuilder { recv_cq: cq, ..self }
    }

    /// Sets the transport service.
    pub fn qp_type(mut self, qp_type: QpType) -> Self {
        self.init.qp_type = qp_type;
        self
    }

    /// Sets the sizes of the queues.
    pub fn caps(mut self, caps: QpCaps) -> Self {
        self.init.caps = caps;
        self
    }

    /// Makes all sends complete visibly, signaled or not (`sq_sig_all`).
    pub fn signal_all(mut self) -> Self {
        self.init.sq_sig_all = true;
        self
    }

    /// Sets transport service, sizes and `sq_sig_all` together.
    pub fn init(self, init: &QpInit) -> Self {
        QpBuilder { init: *init, ..self }
    }

    /// Takes receives from a shared queue. The receive sizes of [`QpBuilder::caps`] are then ignored.
    pub fn srq(self, srq: &'a SharedReceiveQueue) -> Self {
        QpBuilder { srq: Some(srq), ..self }
    }

    /// Keeps a value until the queue pair is destroyed: memory that its work requests name, if others use the memory
    /// next.
    pub fn keeps(mut self, value: Arc<impl std::fmt::Debug + Send + Sync + 'static>) -> Self {
        self.keeps_alive.push(value);
        self
    }

    /// Makes the queue pair, in RESET. The first one claims the interface.
    ///
    /// An XRC initiator ([`QpType::XrcSend`]) has no receives. Each of its work requests names a shared receive queue
    /// of the peer ([`SendWr::remote_srqn`](roxie_nic::verbs::SendWr::remote_srqn)).
    ///
    /// # Errors
    /// If a size is beyond the limits of the device, the shared receive queue is an XRC queue, there is no room or
    /// memory for another QP, or the interface cannot be claimed.
    pub fn create(self) -> Result<QueuePair, DeviceError> {
        let (device, init) = (self.pd.device(), &self.init);
        let caps = &init.caps;
        if let Some((what, value, limit)) = caps.beyond_limit() {
            return Err(ControlError::TooLarge { what, value: value.into(), limit: limit.into() }.into());
        }
        let mut uses: KeptObjects =
            vec![Arc::clone(&self.pd.inner) as _, self.send_cq.keep_alive(), self.recv_cq.keep_alive()];
        uses.extend(self.keeps_alive);
        let source = match self.srq {
            Some(srq) => {
                uses.push(srq.keep_alive());
                ReceiveSource::Shared(srq.index())
            }
            None if init.qp_type == QpType::XrcSend => ReceiveSource::None,
            None => ReceiveSource::Own(device.receive_ring(caps.max_recv_wr, caps.max_recv_sge)?),
        };
        device.claim_for_qp()?;
        let sends = device.send_ring(caps)?;
        let receives = match &source {
            ReceiveSource::Own(ring) => Some(ring.clone()),
            _ => None,
        };
        let answer = device.execute(MemoryCommand::CreateQp {
            pd: self.pd.id(),
            send_cq: self.send_cq.index(),
            recv_cq: self.recv_cq.index(),
            init: *init,
            sends: sends.clone(),
            receives: source,
        })?;
        let Answer::Qp(handle) = answer else { unexpected(&answer) };
        Ok(QueuePair::new(device, handle, init.qp_type, sends, receives, uses))
    }
}

impl XrcDomain {
    /// Makes the target of a connection (XRC_TGT) in RESET. A target only receives.
    ///
    /// # Errors
    /// If the device has no room for another QP.
    pub fn create_target(&self) -> Result<QueuePair, DeviceError> {
        let device = &self.inner.device;
        device.claim_for_qp()?;
        let nothing = SendRing::new(1, 0, 0).map_err(no_memory)?;
        match device.execute(Command::CreateXrcTarget(self.inner.id))? {
            Answer::Qp(handle) => {
                let uses = vec![Arc::clone(&self.inner) as _];
                Ok(QueuePair::new(device, handle, QpType::XrcRecv, nothing, None, uses))
            }
            other => unexpected(&other),
        }
    }
}
