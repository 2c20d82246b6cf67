//! Queue pairs and memory of an end, connected to those of a peer.

use roxie::host::{
    AddressHandle, AhOptions, CompletionChannel, CompletionQueue, ConnectOptions, Device, DeviceError,
    Endpoint, MemoryRegion, ProtectionDomain, QueuePair, SharedReceiveQueue,
};
use roxie::verbs::{Access, QpCaps, QpInit, QpType, SendWr, UdAddress};
use roxie_report::failure::Failure;

/// Q_Key of datagrams, as the example programs of rdma-core have it.
const QKEY: u32 = 0x1111_1111;
/// Bytes of the network header (GRH) in front of a datagram.
const GRH: u32 = 40;
/// Bytes of the shortest memory: those of an atomic.
const LEAST: u32 = 8;

/// What [`QueuePairs::new`] makes.
pub(crate) struct Shape<'a> {
    pub(crate) service: QpType,
    /// Number of queue pairs.
    pub(crate) count: u32,
    /// Sends of each queue pair.
    pub(crate) max_send_wr: u32,
    /// Receives of each queue pair, or of the queue that all share.
    pub(crate) max_recv_wr: u32,
    pub(crate) is_shared: bool,
    /// True if every send has a completion.
    pub(crate) sq_sig_all: bool,
    /// Where completion events are reported.
    pub(crate) channel: Option<&'a CompletionChannel>,
    /// Bytes of the longest message.
    pub(crate) size: u32,
    /// What the peer may do to the memory of receives.
    pub(crate) access: Access,
}

/// Queue pairs of one device with one completion queue, and the memory of their messages.
pub(crate) struct QueuePairs {
    pub(crate) service: QpType,
    gid_index: usize,
    /// Addresses of these queue pairs, in order.
    pub(crate) own: Vec<Endpoint>,
    // Fields are dropped in this order: queue pairs before the objects they use.
    pub(crate) qps: Vec<QueuePair>,
    srq: Option<SharedReceiveQueue>,
    /// Destination of each queue pair's datagrams.
    paths: Vec<(AddressHandle, UdAddress)>,
    /// Memory of sends, and of the results of READs and atomics.
    pub(crate) outgoing: MemoryRegion,
    /// Memory of receives, and memory that the peer accesses.
    pub(crate) incoming: MemoryRegion,
    pub(crate) cq: CompletionQueue,
    pd: ProtectionDomain,
}

impl QueuePairs {
    /// Makes queue pairs in INIT, to which receives can be posted; datagram queue pairs in RTS.
    pub(crate) fn new(device: &Device, gid_index: usize, shape: &Shape<'_>) -> Result<QueuePairs, Failure> {
        let is_datagram = shape.service.is_datagram();
        let most = device.largest_mtu().bytes();
        if is_datagram && shape.size as usize > most {
            return Err(Failure::Usage(format!(
                "a datagram of {} bytes: the link carries {most} at most, choose -s accordingly",
                shape.size
            )));
        }
        let pd = device.alloc_pd()?;
        let receive_queues = if shape.is_shared { 1 } else { shape.count };
        let completions = shape.count * shape.max_send_wr + receive_queues * shape.max_recv_wr;
        let cq = device.create_cq(completions, shape.channel)?;
        let srq = shape.is_shared.then(|| pd.create_srq(shape.max_recv_wr, 1)).transpose()?;
        let caps = QpCaps {
            max_send_wr: shape.max_send_wr,
            max_recv_wr: if shape.is_shared { 0 } else { shape.max_recv_wr },
            max_send_sge: 1,
            max_recv_sge: if shape.is_shared { 0 } else { 1 },
            max_inline: 0,
        };
        let init = QpInit { qp_type: shape.service, caps, sq_sig_all: shape.sq_sig_all };
        let create = |_| {
            let builder = pd.queue_pair(&cq).init(&init);
            match &srq {
                Some(srq) => builder.srq(srq).create(),
                None => builder.create(),
            }
        };
        let qps = (0..shape.count).map(create).collect::<Result<Vec<_>, _>>()?;
        let length = shape.size.max(LEAST);
        let outgoing = register(&pd, length, Access::LOCAL_WRITE)?;
        let incoming = register(&pd, header_of(shape.service) + length, Access::LOCAL_WRITE | shape.access)?;
        let own = qps.iter().map(|qp| qp.endpoint(gid_index)).collect::<Result<Vec<_>, _>>()?;
        for (qp, own) in qps.iter().zip(&own) {
            if is_datagram {
                qp.start_datagrams(QKEY, own.psn)?;
            } else {
                qp.initialize(shape.access)?;
            }
        }
        let service = shape.service;
        Ok(QueuePairs { service, gid_index, own, qps, srq, paths: Vec::new(), outgoing, incoming, cq, pd })
    }

    /// Connects each queue pair to the one of the same position in `there`, which has as many.
    pub(crate) fn connect(&mut self, there: &[Endpoint], options: &ConnectOptions) -> Result<(), Failure> {
        for ((qp, own), there) in self.qps.iter().zip(&self.own).zip(there) {
            if self.service.is_datagram() {
                let ah = self.pd.create_ah(self.gid_index, there.gid, &AhOptions::default())?;
                let to = UdAddress { ah: ah.id(), remote_qpn: there.qpn, remote_qkey: QKEY };
                self.paths.push((ah, to));
            } else {
                qp.connect(own, there, options)?;
            }
        }
        Ok(())
    }

    /// Returns the number of bytes in front of a message in its receive.
    pub(crate) fn header(&self) -> u32 {
        header_of(self.service)
    }

    /// Posts a receive on a queue pair, or on the queue that all share.
    pub(crate) fn post_receive(&self, at: usize, wr_id: u64) -> Result<(), Failure> {
        let sge = [self.incoming.sge(0, self.incoming.len() as u32)];
        match &self.srq {
            Some(srq) => srq.post_recv(wr_id, &sge)?,
            None => self.qps[at].post_recv(wr_id, &sge)?,
        }
        Ok(())
    }

    /// Posts a request with the first `size` bytes of the outgoing memory. A datagram goes to the connected peer.
    pub(crate) fn post_send(&self, at: usize, wr: SendWr, size: u32) -> Result<(), Failure> {
        let ud = self.paths.get(at).map(|(_, to)| *to).unwrap_or_default();
        Ok(self.qps[at].post_send(&SendWr { ud, ..wr }, &[self.outgoing.sge(0, size)])?)
    }
}

fn header_of(service: QpType) -> u32 {
    if service.is_datagram() { GRH } else { 0 }
}

fn register(pd: &ProtectionDomain, length: u32, access: Access) -> Result<MemoryRegion, Failure> {
    pd.register(length as usize, access).map_err(|e| match e {
        DeviceError::System { .. } => Failure::Run(format!(
            "no memory for messages of {length} bytes (twice at each end): {e}. Choose a smaller --size"
        )),
        other => other.into(),
    })
}
