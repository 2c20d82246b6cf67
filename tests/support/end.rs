//! A QP of a device with a region of memory, for tests of devices.

use std::time::Duration;

use roxie::host::{CompletionQueue, Device, MemoryRegion, ProtectionDomain, QueuePair};
use roxie::verbs::{Access, SendWr, WcStatus, WrOpcode};

/// Time for a completion, on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A QP and the objects it uses.
pub(crate) struct End {
    pub(crate) qp: QueuePair,
    pub(crate) cq: CompletionQueue,
    pub(crate) memory: MemoryRegion,
    pub(crate) _pd: ProtectionDomain,
}

impl End {
    /// Makes a QP, and a region of `length` bytes.
    pub(crate) fn new(device: &Device, length: usize) -> End {
        let pd = device.alloc_pd().expect("a domain");
        let cq = device.create_cq(16, None).expect("a queue");
        let qp = pd.queue_pair(&cq).signal_all().create().expect("a QP");
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let memory = pd.register(length, access).expect("memory");
        End { qp, cq, memory, _pd: pd }
    }

    /// Posts a WRITE or READ of the first `length` bytes of both regions.
    pub(crate) fn post(&self, there: &End, opcode: WrOpcode, length: usize) {
        let (remote_addr, rkey) = (there.memory.address(), there.memory.rkey());
        let wr = SendWr { opcode, remote_addr, rkey, ..SendWr::default() };
        self.qp.post_send(&wr, &[self.memory.sge(0, length as u32)]).expect("room");
    }

    /// Waits for the next completion.
    pub(crate) fn status(&self) -> WcStatus {
        self.cq.wait(PATIENCE).expect("a completion").status
    }
}

/// Returns a counter of a device.
pub(crate) fn counter(device: &Device, name: &str) -> u64 {
    device.counters().into_iter().filter(|(n, _)| *n == name).map(|(_, value)| value).sum()
}
