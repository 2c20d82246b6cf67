//! A queue of a host that sends what it likes: capsules of any content, in any number.

use std::net::SocketAddr;
use std::time::Duration;

use roxie::host::{CompletionQueue, Connection, ConnectionManager, Device, DialOptions, MemoryRegion};
use roxie::verbs::{Access, QpCaps, SendWr, WcOpcode};
use roxie_nvmeof::Sgl;
use roxie_nvmeof::cm::QueueRequest;
use roxie_nvmeof::response::{self, Response};

/// Offsets in the memory of the queue: data of commands, responses.
const DATA: usize = 0;
const RESPONSES: usize = 4096;

pub(crate) struct Raw {
    pub(crate) connection: Connection,
    pub(crate) cq: CompletionQueue,
    pub(crate) memory: MemoryRegion,
    /// Time in which a response comes.
    patience: Duration,
}

impl Raw {
    /// Connects a queue, without the command Connect.
    pub(crate) fn connect(
        device: &Device,
        manager: &ConnectionManager,
        to: SocketAddr,
        request: &QueueRequest,
        patience: Duration,
    ) -> Raw {
        let pd = device.alloc_pd().expect("a domain");
        let cq = device.create_cq(512, None).expect("a queue");
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let memory = pd.register(16_384, access).expect("memory");
        let caps = QpCaps { max_send_wr: 256, max_recv_wr: 128, max_inline: 128, ..QpCaps::default() };
        let qp = pd.queue_pair(&cq).caps(caps).create().expect("a QP");
        qp.initialize(access).expect("INIT");
        let dial = DialOptions { private_data: request.to_bytes().to_vec(), ..DialOptions::default() };
        let connection = manager.connect(qp, to, &dial).expect("a connection");
        Raw { connection, cq, memory, patience }
    }

    /// Posts a receive for a response.
    pub(crate) fn receive(&self, slot: u16) {
        let at = RESPONSES + usize::from(slot) * response::LENGTH;
        let sge = self.memory.sge(at, response::LENGTH as u32);
        self.connection.qp().post_recv(slot.into(), &[sge]).expect("room");
    }

    /// Writes the data of commands.
    pub(crate) fn write(&self, data: &[u8]) {
        self.memory.write_at(DATA, data).expect("within the region");
    }

    /// An SGL of the first `length` bytes of data, by `key`.
    pub(crate) fn sgl(&self, length: usize, key: u32) -> Sgl {
        let address = self.memory.address() + DATA as u64;
        Sgl::Keyed { address, length: length as u32, key, invalidate: false }
    }

    pub(crate) fn send(&self, capsule: &[u8]) {
        self.connection.qp().post_send_inline(&SendWr::send(), capsule).expect("room");
    }

    pub(crate) fn response(&self) -> Response {
        let wc = self.cq.wait(self.patience).expect("a response").ok().expect("a completion without error");
        assert_eq!(wc.opcode, WcOpcode::Recv);
        let at = RESPONSES + wc.wr_id as usize * response::LENGTH;
        let bytes = self.memory.to_vec(at, response::LENGTH).expect("within the region");
        Response::parse(&bytes).expect("16 bytes")
    }
}
