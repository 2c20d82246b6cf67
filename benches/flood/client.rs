//! The honest client: writes at full speed, and meanwhile connects repeatedly.

use std::io::{self, BufRead};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use roxie::host::{Connection, ConnectionManager, Device, DialOptions};
use roxie::verbs::{Access, QpCaps, RKey, SendWr, WcStatus, WrOpcode};

use crate::frames::NEAR;
use crate::{PORT, open};

/// Size of the server's memory in bytes: one message.
pub(crate) const MEMORY: usize = 64 * 1024;
pub(crate) const RIGHTS: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE);
/// Outstanding messages.
const DEPTH: u32 = 16;
/// Pause between two connections.
const PAUSE: Duration = Duration::from_millis(5);

/// Measurements between `go` and `stop`.
#[derive(Default)]
struct Tally {
    counts: AtomicBool,
    bytes: AtomicU64,
    /// Failed connection attempts, and failures of the writing connection.
    failures: AtomicU64,
    /// Duration of each connection setup.
    took: Mutex<Vec<Duration>>,
    /// Start of the pending connection setup, if any.
    since: Mutex<Option<Instant>>,
}

/// Prints `connected QPN QPN GUID` (the server's QPN, its own, and its adapter's GUID), measures from `go` to `stop` on
/// standard input, prints the results, and exits.
pub(crate) fn run(port: &str) {
    let tally: &'static Tally = Box::leak(Box::default());
    let device = open(port, "right");
    let manager = ConnectionManager::start(&device).expect("a connection manager");
    {
        let (device, manager) = (device.clone(), manager.clone());
        std::thread::spawn(move || {
            loop {
                write(&device, &manager, tally);
                tally.failures.fetch_add(1, Relaxed);
            }
        });
    }
    let (mut began, mut before) = (Instant::now(), 0);
    for line in io::stdin().lock().lines() {
        match line.expect("text").as_str() {
            "connect" => drop(std::thread::spawn({
                let (device, manager) = (device.clone(), manager.clone());
                move || connect(&device, &manager, tally)
            })),
            "go" => {
                lock(&tally.took).clear();
                (began, before) = (Instant::now(), tally.bytes.load(Relaxed));
                tally.failures.store(0, Relaxed);
                tally.counts.store(true, Relaxed);
            }
            "stop" => {
                tally.counts.store(false, Relaxed);
                report(tally, began, before);
                // Exit without waiting for the other threads.
                std::process::exit(0);
            }
            other => panic!("what is {other}?"),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Prints MB/s, connections and failures, then median, 99th percentile and maximum in us.
fn report(tally: &Tally, began: Instant, before: u64) {
    let rate = (tally.bytes.load(Relaxed) - before) as f64 / 1e6 / began.elapsed().as_secs_f64();
    let mut took = lock(&tally.took).clone();
    let connections = took.len();
    // A pending connection setup counts with the time passed so far.
    took.extend(lock(&tally.since).map(|since| since.max(began).elapsed()));
    took.sort();
    let at = |share: f64| {
        let place = ((took.len() as f64 * share) as usize).min(took.len().saturating_sub(1));
        took.get(place).map_or(f64::NAN, |took| took.as_secs_f64() * 1e6)
    };
    let failures = tally.failures.load(Relaxed);
    println!("{rate:.0} {connections} {failures} {:.0} {:.0} {:.0}", at(0.5), at(0.99), at(1.0));
}

fn dial(
    device: &Device,
    manager: &ConnectionManager,
    caps: QpCaps,
) -> Option<(Connection, roxie::host::CompletionQueue, roxie::host::ProtectionDomain)> {
    let domain = device.alloc_pd().ok()?;
    let queue = device.create_cq(caps.max_send_wr * 2, None).ok()?;
    let qp = domain.queue_pair(&queue).caps(caps).signal_all().create().ok()?;
    let to = SocketAddr::new(NEAR.into(), PORT);
    let connection = manager.connect(qp, to, &DialOptions::default()).ok()?;
    Some((connection, queue, domain))
}

/// Posts WRITEs until the connection fails.
fn write(device: &Device, manager: &ConnectionManager, tally: &Tally) {
    let caps = QpCaps { max_send_wr: DEPTH, max_recv_wr: 1, ..QpCaps::default() };
    let Some((connection, queue, domain)) = dial(device, manager, caps) else { return };
    let source = domain.register(MEMORY, Access::LOCAL_WRITE).expect("memory");
    let given = connection.private_data();
    let rkey = RKey(u32::from_be_bytes(given[..4].try_into().expect("4 bytes")));
    let remote_addr = u64::from_be_bytes(given[4..12].try_into().expect("8 bytes"));
    let there = connection.parameters().expect("an agreement").dest_qpn.expect("a QP");
    // EUI-64 of the MAC address.
    let [a, b, c, d, e, f] = device.port().mac;
    let guid = u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f]);
    println!("connected {} {} {guid}", there.value(), connection.qp().qpn().value());
    let wr = SendWr { opcode: WrOpcode::Write, remote_addr, rkey, ..SendWr::default() };
    let post = || connection.qp().post_send(&wr, &[source.sge(0, MEMORY as u32)]);
    for _ in 0..DEPTH {
        post().expect("room");
    }
    while let Ok(wc) = queue.wait(Duration::MAX) {
        if wc.status != WcStatus::Success {
            eprintln!("a WRITE failed: {}", wc.status);
            return;
        }
        tally.bytes.fetch_add(MEMORY as u64, Relaxed);
        if post().is_err() {
            return;
        }
    }
}

/// Connects and disconnects, without end.
fn connect(device: &Device, manager: &ConnectionManager, tally: &Tally) {
    let caps = QpCaps { max_send_wr: 1, max_recv_wr: 1, ..QpCaps::default() };
    loop {
        let since = Instant::now();
        *lock(&tally.since) = Some(since);
        let connected = dial(device, manager, caps);
        *lock(&tally.since) = None;
        if tally.counts.load(Relaxed) {
            lock(&tally.took).push(since.elapsed());
            tally.failures.fetch_add(connected.is_none().into(), Relaxed);
        }
        drop(connected);
        std::thread::sleep(PAUSE);
    }
}
