//! The bytes that a half-open connection holds at a server, with an allocator that counts: the server's state, the
//! connection manager's, and the NIC's copies and books of the queue pair.

use std::alloc::{GlobalAlloc, Layout, System};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use roxie::host::{
    AddressHandle, AhOptions, CompletionQueue, ConnectionManager, Device, DeviceConfig, QueuePair,
};
use roxie::verbs::{Psn, QpCaps, QpInit, QpState, QpType, Qpn};
use roxie::wire::cm::{CmMessage, CommId, Kind, PrivateData, Req, Transport};
use roxie::wire::mad::{GSI_QKEY, MAD_LEN};
use roxie::wire::{CmaHeader, PortSpace, ServiceId};
use roxie_nfs::server::{Export, Server};
use roxie_nvmeof::cm::QueueRequest;
use roxie_nvmeof::storage::MemoryStorage;
use roxie_nvmeof::subsystem::{Limits, Namespace, Subsystem};
use roxie_nvmeof::target::Target;

/// Bytes that a half-open connection may hold.
const MOST: i64 = 16 << 10;
/// Half-open connections of a server.
const PLACES: u32 = 128;
const PATIENCE: Duration = Duration::from_secs(60);

/// The system's allocator, with a count of the bytes that are allocated.
struct Counting;

static ALLOCATED: AtomicI64 = AtomicI64::new(0);
/// Held by the test that counts.
static ALONE: Mutex<()> = Mutex::new(());

fn count(more: usize, less: usize) {
    ALLOCATED.fetch_add(more as i64 - less as i64, Relaxed);
}

// SAFETY: every call goes to the system's allocator unchanged; counting touches none of its memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: the caller upholds `GlobalAlloc`'s contract, and the layout is passed on unchanged.
        unsafe { System.alloc(layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(0, layout.size());
        // SAFETY: the caller upholds `GlobalAlloc`'s contract: the block came from `alloc` above, which is the
        // system's.
        unsafe { System.dealloc(pointer, layout) }
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size, layout.size());
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The QP1 of a host that requests connections and does not hear the answers. A request costs it no memory.
struct Stranger {
    path: AddressHandle,
    qp: QueuePair,
    cq: CompletionQueue,
    here: IpAddr,
    to: SocketAddr,
}

impl Stranger {
    fn new(device: &Device, to: SocketAddr) -> Stranger {
        let (pd, cq) = (device.alloc_pd().expect("room"), device.create_cq(16, None).expect("room"));
        let caps = QpCaps {
            max_send_wr: 8,
            max_recv_wr: 1,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: MAD_LEN as u32,
        };
        let init = QpInit { qp_type: QpType::Gsi, caps, sq_sig_all: true };
        let qp = pd.queue_pair(&cq).init(&init).create().expect("QP1");
        qp.start_datagrams(GSI_QKEY, Psn::new(0)).expect("RTS");
        let path = pd.create_ah(0, to.ip().into(), &AhOptions::default()).expect("a path");
        Stranger { path, qp, cq, here: device.gid(0).expect("an address").to_ip(), to }
    }

    /// Requests the connection of a QP that does not exist, with the most READs that both ends may have under way.
    fn request(&self, number: u32, private_data: &[u8]) {
        let header = CmaHeader { source: self.here, source_port: 7, destination: self.to.ip() }.to_bytes();
        let mut req = Req {
            local_comm_id: CommId(1 + number),
            service_id: ServiceId::of_port(PortSpace::Tcp, self.to.port()),
            local_ca_guid: 7,
            local_qpn: Qpn::new(0x1000 + number),
            responder_resources: 16,
            initiator_depth: 16,
            remote_cm_response_timeout: 20,
            local_cm_response_timeout: 20,
            transport: Transport::Rc,
            retry_count: 7,
            rnr_retry_count: 7,
            pkey: 0xffff,
            path_mtu: 3,
            max_cm_retries: 15,
            private_data: PrivateData::new(Kind::Req, &[&header[..], private_data].concat()).expect("room"),
            ..Req::default()
        };
        req.primary_path.local_gid = self.here.into();
        req.primary_path.remote_gid = self.to.ip().into();
        req.primary_path.hop_limit = 64;
        req.primary_path.local_ack_timeout = 18;
        let mad = CmMessage::Req(req).to_mad(number.into());
        self.qp.post_send_inline(&self.path.send_to(Qpn::GSI, GSI_QKEY), &mad).expect("room");
        self.cq.wait(PATIENCE).expect("a completion").ok().expect("a message that was sent");
    }
}

/// A server's device and its peer's.
struct Site {
    local: Device,
    remote: Device,
    manager: ConnectionManager,
    to: SocketAddr,
}

impl Site {
    fn new(port: u16) -> Site {
        let (local, remote) = Device::memory_pair(&DeviceConfig::default()).expect("devices");
        let manager = ConnectionManager::start(&remote).expect("a manager");
        let to = SocketAddr::new(remote.gid(0).expect("an address").to_ip(), port);
        Site { local, remote, manager, to }
    }

    /// Returns the bytes that a half-open connection holds, on average of all places but the first: tables and buffers
    /// have grown by then.
    fn held_by_one(&self, private_data: &[u8]) -> i64 {
        let unknown_peer = Stranger::new(&self.local, self.to);
        let answered = |count: u32| {
            let until = Instant::now() + PATIENCE;
            let replies = || {
                let counters = self.manager.counters();
                counters.sent(Kind::Rep) - counters.sent_again(Kind::Rep)
            };
            while replies() < count.into() {
                assert!(Instant::now() < until, "{:?}", self.manager.counters());
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        unknown_peer.request(0, private_data);
        answered(1);
        let before = ALLOCATED.load(Relaxed);
        (1..PLACES).for_each(|number| unknown_peer.request(number, private_data));
        answered(PLACES);
        let held = (ALLOCATED.load(Relaxed) - before) / i64::from(PLACES - 1);
        let is_ready = |qp: &QpType, state: QpState| *qp == QpType::Rc && state == QpState::Rts;
        let ready = self.remote.qps().iter().filter(|qp| is_ready(&qp.qp_type, qp.state)).count();
        assert_eq!(ready, PLACES as usize, "none has ended");
        held
    }
}

/// Returns false, and says so, if a connection holds too much.
fn is_bounded(what: &str, held: i64) -> bool {
    println!("a half-open connection {what}: {held} bytes, and {MOST} are allowed");
    assert!(held > 1024, "{what}: {held} bytes are too few, so something was not counted");
    held <= MOST
}

#[test]
fn half_open_connection_of_nfs_server_is_small() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let site = Site::new(roxie_nfs::PORT);
    let folder = tempfile::tempdir().expect("a folder");
    let export = Arc::new(Export::open(folder.path()).expect("a folder"));
    let mount = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0);
    let at = (site.to, mount);
    let server =
        Server::start(&site.remote, &site.manager, at, export, Box::new(|_| {})).expect("free ports");
    assert!(is_bounded("of a client of NFS", site.held_by_one(&[])));
    drop(server);
}

#[test]
fn half_open_queues_of_nvme_target_are_small() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut are_bounded = true;
    let limits = Limits { queue_size: 1024, ..Limits::default() };
    // The admin queue, and the longest I/O queue of any target.
    for (queue, entries) in [(0, 32), (1, limits.queue_size)] {
        let site = Site::new(4420);
        let storage = Box::new(MemoryStorage::new(1 << 20).expect("memory"));
        let namespace = Namespace::new(storage, 512, false, [1; 16]).expect("whole blocks");
        let nqn = "nqn.2026-11.example:disk";
        let subsystem = Subsystem::new(nqn, vec![namespace], Vec::new(), limits).expect("a name");
        let target =
            Target::start(&site.remote, &site.manager, site.to, Arc::new(subsystem), Box::new(|_| {}));
        let target = target.expect("a free port");
        let request = QueueRequest { queue, receives: entries, sends: entries - 1 };
        let held = site.held_by_one(&request.to_bytes());
        are_bounded &= is_bounded(&format!("of queue {queue} of an NVMe host"), held);
        drop(target);
    }
    assert!(are_bounded);
}
