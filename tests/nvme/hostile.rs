//! Hosts that violate the protocol: the target closes their connection, and serves the others.

use std::time::Duration;

use roxie::host::{CompletionQueue, Connection, DialOptions, MemoryRegion};
use roxie::verbs::{Access, QpCaps, RKey, SendWr, WcStatus};
use roxie_nvmeof::cm::QueueRequest;
use roxie_nvmeof::command::{Command, admin};
use roxie_nvmeof::connect::{ANY_CONTROLLER, Connect, ConnectData, LENGTH};
use roxie_nvmeof::response::{self, Response};
use roxie_nvmeof::{Sgl, Status};

use super::{DISK, HOST, PATIENCE, Site};

/// A host that sends what it likes on an admin queue.
struct Raw {
    connection: Connection,
    cq: CompletionQueue,
    memory: MemoryRegion,
}

/// Offsets in the host's memory: data of Connect, responses.
const DATA: usize = 0;
const RESPONSES: usize = 4096;
const RECEIVES: usize = 64;

impl Raw {
    fn connect(site: &Site) -> Raw {
        let (pd, cq) =
            (site.near.alloc_pd().expect("a domain"), site.near.create_cq(512, None).expect("a queue"));
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let memory = pd.register(16_384, access).expect("memory");
        let caps =
            QpCaps { max_send_wr: 256, max_recv_wr: RECEIVES as u32, max_inline: 128, ..QpCaps::default() };
        let qp = pd.queue_pair(&cq).caps(caps).create().expect("a QP");
        qp.initialize(access).expect("INIT");
        for n in 0..RECEIVES {
            let sge = memory.sge(RESPONSES + n * response::LENGTH, response::LENGTH as u32);
            qp.post_recv(n as u64, &[sge]).expect("room");
        }
        let request = QueueRequest { queue: 0, receives: 64, sends: 31 };
        let options = DialOptions { private_data: request.to_bytes().to_vec(), ..DialOptions::default() };
        let connection = site.manager.connect(qp, site.to, &options).expect("a connection");
        Raw { connection, cq, memory }
    }

    fn send(&self, capsule: &[u8]) {
        self.connection.qp().post_send_inline(&SendWr::send(), capsule).expect("room");
    }

    /// A Connect command with its data at `sgl`.
    fn connect_capsule(&self, sgl: Sgl) -> [u8; 64] {
        let data = ConnectData {
            host_id: [3; 16],
            controller: ANY_CONTROLLER,
            subsystem: DISK.into(),
            host: HOST.into(),
        };
        self.memory.write_at(DATA, &data.to_bytes()).expect("within the region");
        let connect = Connect { queue: 0, size: 31, no_flow_control: false, keep_alive_ms: 0 };
        Command { sgl, ..connect.command() }.to_bytes()
    }

    fn data(&self, key: RKey) -> Sgl {
        let address = self.memory.address() + DATA as u64;
        Sgl::Keyed { address, length: LENGTH as u32, key: key.0, invalidate: false }
    }

    fn response(&self) -> Response {
        let wc = self.cq.wait(PATIENCE).expect("a response").ok().expect("a receive");
        let begin = RESPONSES + wc.wr_id as usize * response::LENGTH;
        let bytes = self.memory.to_vec(begin, response::LENGTH).expect("within the region");
        Response::parse(&bytes).expect("16 bytes")
    }

    fn is_closed(&self) {
        assert!(self.connection.wait_for_end(PATIENCE), "the target has not closed the connection");
    }
}

/// Runs a host's misbehaviour, after which the target must have closed the connection and serve others.
fn is_closed_after(misbehave: impl Fn(&Raw)) {
    let site = Site::new();
    let raw = Raw::connect(&site);
    misbehave(&raw);
    raw.is_closed();
    site.serves(0);
    site.connect().flush(1).expect("the target serves others");
}

#[test]
fn short_capsule_closes_the_connection() {
    is_closed_after(|raw| raw.send(&[0; 63]));
}

#[test]
fn long_capsule_closes_the_connection() {
    is_closed_after(|raw| raw.send(&[0; 65]));
}

#[test]
fn invalid_key_closes_the_connection() {
    is_closed_after(|raw| raw.send(&raw.connect_capsule(raw.data(RKey(raw.memory.rkey().0 ^ 0x0100)))));
}

#[test]
fn foreign_key_to_invalidate_closes_the_connection() {
    is_closed_after(|raw| {
        raw.send(&raw.connect_capsule(raw.data(raw.memory.rkey())));
        assert_eq!(raw.response().status, Status::SUCCESS);
        let Sgl::Keyed { address, key, .. } = raw.data(raw.memory.rkey()) else { unreachable!("keyed") };
        // A SEND with invalidate of an ordinary region is an error at the host.
        let sgl = Sgl::Keyed { address, length: 4, key, invalidate: true };
        raw.send(&Command { sgl, ..Command::new(admin::KEEP_ALIVE, 0) }.to_bytes());
    });
}

#[test]
fn untaken_responses_close_the_connection() {
    is_closed_after(|raw| {
        // More than the receives here, the target's send queue and as many again as the queue has entries.
        for id in 0..(RECEIVES as u16 + 3 * 32 + 32 + 2) {
            raw.send(&Command { id, ..Command::new(admin::KEEP_ALIVE, 0) }.to_bytes());
        }
    });
}

#[test]
fn capsules_before_connect_are_refused() {
    let site = Site::new();
    let raw = Raw::connect(&site);
    raw.send(&Command { id: 9, ..Command::new(admin::KEEP_ALIVE, 0) }.to_bytes());
    let response = raw.response();
    assert_eq!((response.id, response.status), (9, Status::SEQUENCE.permanent()));
    raw.send(&raw.connect_capsule(Sgl::InCapsule { offset: 0, length: 1024 }));
    assert_eq!(raw.response().status, Status::SGL_OFFSET.permanent());
    raw.send(&raw.connect_capsule(raw.data(raw.memory.rkey())));
    assert_eq!(raw.response().status, Status::SUCCESS);
}

#[test]
fn held_event_requests_are_bounded_and_freed() {
    let site = Site::new();
    let raw = Raw::connect(&site);
    raw.send(&raw.connect_capsule(raw.data(raw.memory.rkey())));
    assert_eq!(raw.response().status, Status::SUCCESS);
    let enable = Command::property_set(0x14, 0x0046_0001).to_bytes();
    raw.send(&enable);
    assert_eq!(raw.response().status, Status::SUCCESS);
    for id in 0..4 {
        raw.send(&Command { id, ..Command::new(admin::EVENT_REQUEST, 0) }.to_bytes());
        // The answer to a second command shows that the target has the first.
        raw.send(&Command { id: 100, ..Command::new(admin::KEEP_ALIVE, 0) }.to_bytes());
        assert_eq!(raw.response().id, 100);
    }
    raw.send(&Command { id: 4, ..Command::new(admin::EVENT_REQUEST, 0) }.to_bytes());
    assert_eq!(raw.response().status, Status::TOO_MANY_EVENT_REQUESTS.permanent());
    // The connection's end frees all that it held.
    drop(raw);
    site.serves(0);
}

#[test]
fn host_that_goes_away_is_forgotten() {
    let site = Site::new();
    let raw = Raw::connect(&site);
    site.serves(1);
    let ended = raw.cq.wait(Duration::ZERO);
    assert_eq!(ended.map(|wc| wc.status), None::<WcStatus>);
    raw.connection.disconnect().expect("the target agrees");
    site.serves(0);
}
