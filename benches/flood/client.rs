//! The honest client: writes as fast as it goes, and connects again and again beside it.

use std::io::{self, BufRead};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use roxie::host::{Connection, ConnectionManager, Device, DialOptions};
use roxie::verbs::{Access, QpCaps, RKey, SendWr, WcStatus, WrOpcode};

use crate::frames::NEAR;
use crate::{PORT, open};

/// Bytes of the server's memory: one message.
pub(crate) const MEMORY: usize = 64 * 1024;
pub(crate) const RIGHTS: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE);
/// Messages outstanding.
const DEPTH: u32 = 16;
/// Between two connections.
const PAUSE: Duration = Duration::from_millis(5);

/// What is measured, from `go` to `stop`.
#[derive(Default)]
struct Tally {
    counts: AtomicBool,
    bytes: AtomicU64,
    /// Connections of which nothing became, and failures of the one that writes.
    failures: AtomicU64,
    /// How long each connection took.
    took: Mutex<Vec<Duration>>,
    /// Since when one is waited for.
    since: Mutex<Option<Instant>>,
}

/// Says `connected QPN` (the server's), measures from `go` to `stop` on standard input, says what, and ends.
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
                tell(tally, began, before);
                // Whatever waits is not waited for.
                std::process::exit(0);
            }
            other => panic!("what is {other}?"),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `MB/s`, connections, failures, then median, 99th percentile and longest in us.
fn tell(tally: &Tally, began: Instant, before: u64) {
    let rate = (tally.bytes.load(Relaxed) - before) as f64 / 1e6 / began.elapsed().as_secs_f64();
    let mut took = lock(&tally.took).clone();
    let connections = took.len();
    // One that is still waited for has taken that long already.
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
    let qp = device.create_qp(&domain, &queue, &queue, caps, true).ok()?;
    let to = SocketAddr::new(NEAR.into(), PORT);
    let connection = manager.connect(qp, to, &DialOptions::default()).ok()?;
    Some((connection, queue, domain))
}

/// WRITEs until the connection fails.
fn write(device: &Device, manager: &ConnectionManager, tally: &Tally) {
    let caps = QpCaps { max_send_wr: DEPTH, max_recv_wr: 1, ..QpCaps::default() };
    let Some((connection, queue, domain)) = dial(device, manager, caps) else { return };
    let source = domain.register(MEMORY, Access::LOCAL_WRITE).expect("memory");
    let given = connection.private_data();
    let rkey = RKey(u32::from_be_bytes(given[..4].try_into().expect("4 bytes")));
    let remote_addr = u64::from_be_bytes(given[4..12].try_into().expect("8 bytes"));
    println!("connected {}", connection.parameters().expect("an agreement").dest_qpn.expect("a QP").value());
    let wr = SendWr { opcode: WrOpcode::Write, remote_addr, rkey, ..SendWr::default() };
    let post = || connection.qp().post_send(&wr, &[source.sge(0, MEMORY as u32)]);
    for _ in 0..DEPTH {
        post().expect("room");
    }
    while let Some(wc) = queue.wait(Duration::MAX) {
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

/// Connects and parts, for ever.
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
