//! Devices with several workers. Over links in memory, worker `n` of one device has a link to worker `n` of the other.

#[cfg(feature = "xdp")]
mod receive_queues;
#[cfg(feature = "testing")]
mod seeds;

use std::fs::File;
use std::time::{Duration, Instant};

use roxie::capture::{Direction, Reader};
use roxie::engine::Drive;
use roxie::host::{
    AhOptions, CompletionQueue, ConnectOptions, Device, DeviceConfig, DeviceError, MemoryRegion,
    ProtectionDomain, QueuePair, Stack,
};
use roxie::nic::ControlError;
use roxie::time::Nanos;
use roxie::verbs::{
    Access, AsyncEvent, EventKind, Gid, MwType, Psn, QpCaps, QpInit, QpState, QpType, Qpn, SendWr, Wc,
    WcOpcode,
};

const QPS: usize = 6;
const LENGTH: usize = 20_000;
const PATIENCE: Duration = Duration::from_secs(20);
const QKEY: u32 = 0x0102_0304;

fn pair(workers: usize, drive: Drive) -> [Device; 2] {
    let config = DeviceConfig { drive, ..DeviceConfig::default() };
    let stack = Stack::default();
    Device::memory_pair_of(workers, &config, [&stack, &stack]).expect("two devices")
}

/// One device's QPs, with one domain, one completion queue and one region for all of them.
struct End {
    device: Device,
    pd: ProtectionDomain,
    cq: CompletionQueue,
    memory: MemoryRegion,
    qps: Vec<QueuePair>,
}

impl End {
    fn new(device: &Device) -> End {
        let pd = device.alloc_pd().unwrap();
        let cq = device.create_cq(256, None).unwrap();
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let memory = pd.register(2 * QPS * LENGTH, access).unwrap();
        let qps = (0..QPS).map(|_| pd.queue_pair(&cq).signal_all().create().unwrap()).collect();
        End { device: device.clone(), pd, cq, memory, qps }
    }

    /// Returns the index of the first IPv4 address.
    fn ipv4(&self) -> usize {
        self.device.gids().iter().find(|entry| entry.gid.to_ip().is_ipv4()).expect("an address").index
    }

    fn count(&self, name: &str) -> u64 {
        self.device.counter(name)
    }

    /// Waits for so many successful completions while both devices are polled, and returns them.
    fn completed(&self, peer: &End, count: usize) -> Vec<Wc> {
        let until = Instant::now() + PATIENCE;
        let mut all = Vec::new();
        while all.len() < count {
            assert!(Instant::now() < until, "{} of {count} completions", all.len());
            peer.device.poll();
            all.extend(self.cq.poll_one().map(|wc| wc.ok().expect("success")));
        }
        all
    }
}

/// Connects QP `n` of one end to QP `n + shift` of the other.
fn connect(near: &End, far: &End, shift: usize) {
    for (n, qp) in near.qps.iter().enumerate() {
        let peer = &far.qps[(n + shift) % QPS];
        let (here, there) = (qp.endpoint(near.ipv4()).unwrap(), peer.endpoint(far.ipv4()).unwrap());
        qp.connect(&here, &there, &ConnectOptions::default()).unwrap();
        peer.connect(&there, &here, &ConnectOptions::default()).unwrap();
    }
}

fn connected(drive: Drive, shift: usize) -> [End; 2] {
    let [local, remote] = pair(2, drive).map(|device| End::new(&device));
    connect(&local, &remote, shift);
    [local, remote]
}

/// The bytes that QP `n` sends in round `round`.
fn pattern(n: usize, round: usize) -> Vec<u8> {
    (0..LENGTH).map(|i| (i * 7 + n * 31 + round * 101) as u8).collect()
}

/// WRITE, READ, SEND and fetch-and-add on each QP, all outstanding at once. Bytes are compared.
fn exchange(near: &End, far: &End, shift: usize) {
    for n in 0..QPS {
        near.memory.write_at(n * LENGTH, &pattern(n, 0)).unwrap();
        far.memory.write_at((QPS + n) * LENGTH, &pattern(n, 1)).unwrap();
        let peer = &far.qps[(n + shift) % QPS];
        peer.post_recv(n as u64, &[far.memory.sge(0, 8)]).unwrap();
    }
    let key = far.memory.rkey();
    let at = |offset: usize| far.memory.address() + offset as u64;
    for (n, qp) in near.qps.iter().enumerate() {
        let (write, read) = (n * LENGTH, (QPS + n) * LENGTH);
        qp.post_send(&SendWr::write(at(write), key), &[near.memory.sge(write, LENGTH as u32)]).unwrap();
        qp.post_send(&SendWr::read(at(read), key), &[near.memory.sge(read, LENGTH as u32)]).unwrap();
    }
    let sent = near.completed(far, 2 * QPS);
    for n in 0..QPS {
        assert_eq!(far.memory.to_vec(n * LENGTH, LENGTH).unwrap(), pattern(n, 0), "WRITE of QP {n}");
        assert_eq!(near.memory.to_vec((QPS + n) * LENGTH, LENGTH).unwrap(), pattern(n, 1), "READ of QP {n}");
        // Of one QP, the WRITE completes first.
        let own: Vec<_> = sent.iter().filter(|wc| wc.qpn == near.qps[n].qpn()).map(|wc| wc.opcode).collect();
        assert_eq!(own, [WcOpcode::Write, WcOpcode::Read]);
    }
    for (n, qp) in near.qps.iter().enumerate() {
        qp.post_send(&SendWr::send(), &[near.memory.sge(n * LENGTH, 8)]).unwrap();
    }
    near.completed(far, QPS);
    far.completed(near, QPS);
}

#[test]
fn qps_of_workers_share_their_objects() {
    let [local, remote] = connected(Drive::CallerOnly, 0);
    exchange(&local, &remote, 0);
    assert_eq!(local.count("rx_redirected") + remote.count("rx_redirected"), 0);
    let engines = local.device.workers().unwrap().all();
    for engine in engines {
        assert_eq!(engine.inspect(|worker| worker.nic().objects().qps), QPS / 2);
    }
    assert_eq!(local.device.qps().len(), QPS);
    let numbers: Vec<_> = local.device.qps().iter().map(|qp| qp.handle).collect();
    assert!(local.qps.iter().all(|qp| numbers.iter().any(|h| (h.index, h.qpn) == (qp.index(), qp.qpn()))));
}

#[test]
fn frames_at_wrong_workers_are_redirected() {
    let [local, remote] = connected(Drive::CallerOnly, 1);
    exchange(&local, &remote, 1);
    for end in [&local, &remote] {
        assert!(end.count("rx_redirected") > 20, "{}", end.count("rx_redirected"));
        assert_eq!((end.count("rx_redirect_dropped"), end.count("rx_unknown_qp")), (0, 0));
    }
}

#[test]
fn one_capture_has_frames_of_all_workers() {
    let folder = tempfile::tempdir().unwrap();
    let captured = Stack { capture: Some(folder.path().join("near.pcapng")), ..Stack::default() };
    let config = DeviceConfig::caller_only();
    let devices = Device::memory_pair_of(2, &config, [&captured, &Stack::default()]).expect("two devices");
    let [local, remote] = devices.map(|device| End::new(&device));
    connect(&local, &remote, 1);
    exchange(&local, &remote, 1);
    let counted = ["sent_pkts", "rcvd_pkts", "rx_redirected"].map(|name| local.count(name));
    drop([local, remote]);
    let mut reader = Reader::new(File::open(folder.path().join("near.pcapng")).unwrap()).unwrap();
    let mut seen = [0; 3];
    while let Some(packet) = reader.next().unwrap() {
        seen[usize::from(packet.direction == Some(Direction::In))] += 1;
        seen[2] += u64::from(packet.comment.is_some_and(|comment| comment.starts_with("given to worker")));
    }
    assert_eq!(seen, counted);
    assert!(seen.iter().all(|count| *count > 20), "{seen:?}");
}

#[test]
fn sleeping_workers_are_woken_by_redirects() {
    let drive = Drive::Thread { core: None, spin: Nanos(10_000) };
    let [local, remote] = connected(drive, 1);
    for _ in 0..5 {
        exchange(&local, &remote, 1);
        // Long enough for all workers to sleep.
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(remote.count("rx_redirected") > 100);
}

#[test]
fn atomics_of_all_workers_count_once() {
    const EACH: u64 = 50;
    let drive = Drive::Thread { core: None, spin: Nanos(10_000) };
    let [local, remote] = connected(drive, 0);
    let counter = remote.memory.address();
    for _ in 0..EACH {
        for (n, qp) in local.qps.iter().enumerate() {
            qp.post_send(&SendWr::fetch_add(counter, remote.memory.rkey(), 1), &[local.memory.sge(8 * n, 8)])
                .unwrap();
        }
        local.completed(&remote, QPS);
    }
    let value = u64::from_ne_bytes(remote.memory.to_vec(0, 8).unwrap().try_into().unwrap());
    assert_eq!(value, EACH * QPS as u64);
}

#[test]
fn overflow_fails_queues_users_at_all_workers() {
    let [local, remote] = pair(2, Drive::CallerOnly).map(|device| End::new(&device));
    let tiny = local.device.create_cq(2, None).unwrap();
    let qps: Vec<_> = (0..2).map(|_| local.pd.queue_pair(&tiny).signal_all().create().unwrap()).collect();
    for (qp, peer) in qps.iter().zip(&remote.qps) {
        let (here, there) = (qp.endpoint(0).unwrap(), peer.endpoint(0).unwrap());
        qp.connect(&here, &there, &ConnectOptions::default()).unwrap();
        peer.connect(&there, &here, &ConnectOptions::default()).unwrap();
    }
    // The first QP alone overflows the queue.
    for _ in 0..3 {
        let write = SendWr::write(remote.memory.address(), remote.memory.rkey());
        qps[0].post_send(&write, &[local.memory.sge(0, 8)]).unwrap();
    }
    let until = Instant::now() + PATIENCE;
    while qps.iter().any(|qp| qp.query().unwrap().state != QpState::Err) {
        assert!(Instant::now() < until, "{:?}", qps.iter().map(|qp| qp.query()).collect::<Vec<_>>());
        local.device.poll();
        remote.device.poll();
    }
    let events: Vec<_> = std::iter::from_fn(|| local.device.event()).collect();
    let of_queue = events.iter().filter(|e| matches!(e, AsyncEvent::Cq(_, EventKind::CqError))).count();
    assert_eq!(of_queue, 1, "{events:?}");
}

#[test]
fn datagram_reaches_group_members_of_all_workers() {
    let [local, remote] = pair(2, Drive::CallerOnly).map(|device| End::new(&device));
    let init = QpInit { qp_type: QpType::Ud, caps: QpCaps::default(), sq_sig_all: true };
    let datagrams = |end: &End| {
        let qp = end.pd.queue_pair(&end.cq).init(&init).create().unwrap();
        qp.start_datagrams(QKEY, Psn::new(0)).unwrap();
        qp
    };
    let group = Gid::from("239.1.2.3".parse::<std::net::IpAddr>().unwrap());
    let members: Vec<_> = (0..2).map(|_| datagrams(&remote)).collect();
    for (n, member) in (0..).zip(&members) {
        member.attach_multicast(group).unwrap();
        (0..2).for_each(|i| {
            member.post_recv(n, &[remote.memory.sge(200 * (2 * n + i) as usize, 200)]).unwrap()
        });
    }
    let sender = datagrams(&local);
    let path = local.pd.create_ah(0, group, &AhOptions::default()).unwrap();
    sender.post_send(&path.send_to(Qpn::MULTICAST, QKEY), &[local.memory.sge(0, 100)]).unwrap();
    local.completed(&remote, 1);
    let mut received: Vec<_> = remote.completed(&local, 2).iter().map(|wc| wc.wr_id).collect();
    received.sort_unstable();
    assert_eq!(received, [0, 1], "each member has it once");
    for _ in 0..10 {
        remote.device.poll();
    }
    assert!(remote.cq.poll_one().is_none());
    assert_eq!(remote.count("rx_unknown_qp"), 0);
}

#[test]
fn objects_of_one_worker_are_refused_or_firsts() {
    let [local, _remote] = pair(3, Drive::CallerOnly);
    let end = End::new(&local);
    let refused = |result: Result<(), DeviceError>| {
        assert!(matches!(result, Err(DeviceError::Control(ControlError::WrongKind(_)))), "{result:?}");
    };
    refused(end.pd.alloc_window(MwType::Two).map(drop));
    let srq = end.pd.create_srq(16, 1).unwrap();
    refused(srq.resize(32));
    assert_eq!(srq.query().unwrap().max_wr, 16);
    let places: Vec<_> = end.qps.iter().map(|qp| qp.index().place() >> 12).collect();
    assert_eq!(places, [0, 1, 2, 0, 1, 2]);
}

#[test]
fn shared_queue_feeds_qps_of_all_workers() {
    const EACH: usize = 40;
    const ALL: usize = EACH * QPS;
    let drive = Drive::Thread { core: None, spin: Nanos(10_000) };
    let [local, remote] = pair(2, drive).map(|device| End::new(&device));
    let srq = remote.pd.create_srq(512, 1).unwrap();
    let takers: Vec<_> =
        (0..QPS).map(|_| remote.pd.queue_pair(&remote.cq).srq(&srq).create().unwrap()).collect();
    let remote = End { qps: takers, ..remote };
    connect(&local, &remote, 0);
    for id in 0..ALL {
        srq.post_recv(id as u64, &[remote.memory.sge(8 * id, 8)]).unwrap();
    }
    srq.arm(10).unwrap();
    for round in 0..EACH {
        for (n, qp) in local.qps.iter().enumerate() {
            local.memory.write_at(8 * n, &((round * QPS + n) as u64).to_ne_bytes()).unwrap();
            qp.post_send(&SendWr::send(), &[local.memory.sge(8 * n, 8)]).unwrap();
        }
        local.completed(&remote, QPS);
    }
    let received = remote.completed(&local, ALL);
    let mut ids: Vec<_> = received.iter().map(|wc| wc.wr_id).collect();
    ids.sort_unstable();
    assert!(ids.into_iter().eq(0..ALL as u64), "each receive is taken once");
    let bytes = remote.memory.to_vec(0, 8 * ALL).unwrap();
    for (n, qp) in remote.qps.iter().enumerate() {
        let of_qp = received.iter().filter(|wc| wc.qpn == qp.qpn()).map(|wc| wc.wr_id as usize);
        let messages: Vec<_> =
            of_qp.map(|id| u64::from_ne_bytes(bytes[8 * id..][..8].try_into().unwrap())).collect();
        let sent: Vec<_> = (0..EACH).map(|round| (round * QPS + n) as u64).collect();
        assert_eq!(messages, sent, "in the order of QP {n}");
    }
    let events: Vec<_> = std::iter::from_fn(|| remote.device.event()).collect();
    assert!(matches!(events[..], [AsyncEvent::Srq(_, EventKind::SrqLimitReached)]), "{events:?}");
}

/// XRC targets of each worker, and a shared receive queue that they name.
#[test]
fn targets_of_all_workers_find_their_queue() {
    let [local, remote] = pair(2, Drive::CallerOnly).map(|device| End::new(&device));
    let xrcd = remote.device.open_xrcd().unwrap();
    let tiny = remote.device.create_cq(3, None).unwrap();
    let queue = remote.pd.create_xrc_srq(16, 1, &xrcd, &tiny).unwrap();
    let targets: Vec<_> = (0..2).map(|_| xrcd.create_target().unwrap()).collect();
    let of_worker = |qp: &QueuePair| qp.index().place() >> 12;
    assert_ne!(of_worker(&targets[0]), of_worker(&targets[1]));
    let initiators: Vec<_> = (0..2)
        .map(|_| local.pd.queue_pair(&local.cq).signal_all().qp_type(QpType::XrcSend).create().unwrap())
        .collect();
    for (qp, peer) in initiators.iter().zip(&targets) {
        let (here, there) = (qp.endpoint(0).unwrap(), peer.endpoint(0).unwrap());
        qp.connect(&here, &there, &ConnectOptions::default()).unwrap();
        peer.connect(&there, &here, &ConnectOptions::default()).unwrap();
    }
    let send = |qp: &QueuePair| {
        let by_number = SendWr { remote_srqn: queue.number(), ..SendWr::send() };
        qp.post_send(&by_number, &[local.memory.sge(0, 8)]).unwrap();
    };
    for id in 0..8 {
        queue.post_recv(id, &[remote.memory.sge(0, 8)]).unwrap();
    }
    for (n, qp) in initiators.iter().enumerate() {
        send(qp);
        local.completed(&remote, 1);
        let received = tiny.poll_one().expect("a completion");
        assert_eq!((received.wr_id, received.qpn), (n as u64, targets[n].qpn()));
    }
    // The queue fails with its completion queue, which the first target alone overflows.
    for _ in 0..5 {
        send(&initiators[0]);
    }
    let until = Instant::now() + PATIENCE;
    let index = queue.query().unwrap().index;
    let failed = || {
        let mut engines = remote.device.workers().unwrap().all().iter();
        engines.all(|engine| engine.inspect(move |worker| worker.nic().srq_status(index).unwrap().failed))
    };
    while !failed() {
        assert!(Instant::now() < until, "{:?}", queue.query());
        local.device.poll();
        remote.device.poll();
    }
    let events: Vec<_> = std::iter::from_fn(|| remote.device.event()).collect();
    let of_queue = events.iter().filter(|e| matches!(e, AsyncEvent::Srq(_, EventKind::SrqError))).count();
    assert_eq!(of_queue, 1, "{events:?}");
    drop(queue);
    drop(targets);
    drop(xrcd);
    let of_workers = remote.device.workers().unwrap().all().iter();
    let remaining: Vec<_> =
        of_workers.map(|engine| engine.inspect(|worker| worker.nic().objects())).collect();
    assert!(remaining.iter().all(|objects| (objects.srqs, objects.xrcds) == (0, 0)), "{remaining:?}");
}

#[test]
fn workers_in_calls_beside_threads_are_refused() {
    let config = DeviceConfig::default();
    let stack = Stack::default();
    let refused = Device::memory_pair_of(2, &config, [&stack, &stack]).unwrap_err();
    assert!(refused.to_string().contains("threads of their own"), "{refused}");
    assert!(Device::memory_pair_of(0, &config, [&stack, &stack]).is_err());
}
