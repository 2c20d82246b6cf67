//! An echo server with a hundred connections in tasks of one thread.
//!
//! ```text
//! cargo run --features tokio --example async_echo              all ends are tasks of one thread
//! cargo run --features tokio --example async_echo -- threads   each end is a thread that blocks, for comparison
//! ```
//!
//! A task awaits the completions of its queue pair (`AsyncCompletionQueue::next`), and the server awaits connections
//! (`PortListener::next`). The example runs both ends in one process, on two NICs with a link in memory.

use std::error::Error;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use roxie::host::{
    CompletionChannel, CompletionQueue, ConnectionManager, ConnectionRequest, Device, DeviceConfig,
    DialOptions, MemoryRegion, PortListener, ProtectionDomain, QueuePair,
};
use roxie::shared::Armed;
use roxie::verbs::{Access, SendWr, Wc};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const CONNECTIONS: u64 = 100;
const ROUND_TRIPS: u64 = 200;
const MESSAGE: u32 = 8;
const PATIENCE: Duration = Duration::from_secs(30);

fn main() -> Result<()> {
    let (local, remote) = Device::memory_pair(&DeviceConfig::default())?;
    let (client, server) = (ConnectionManager::start(&local)?, ConnectionManager::start(&remote)?);
    let address = SocketAddr::new(remote.gid(0)?.to_ip(), 7174);
    let listener = server.listen(address, CONNECTIONS as u32)?;
    let began = Instant::now();
    let blocks = std::env::args().nth(1).is_some_and(|word| word == "threads");
    let usage = if blocks {
        threads(&local, &client, &remote, &listener, address)?
    } else {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?
            .block_on(tasks(local, client, remote, listener, address))?
    };
    let rate = (CONNECTIONS * ROUND_TRIPS) as f64 / began.elapsed().as_secs_f64();
    println!(
        "{CONNECTIONS} connections, {ROUND_TRIPS} round trips each, none lost: {usage}, {rate:.0} round trips/s"
    );
    Ok(())
}

/// Serves and measures in tasks of this thread.
async fn tasks(
    near: Device,
    client: ConnectionManager,
    far: Device,
    listener: PortListener,
    address: SocketAddr,
) -> Result<String> {
    tokio::spawn(async move {
        while let Ok(request) = listener.next().await {
            let device = far.clone();
            tokio::spawn(async move {
                if let Err(error) = serve(&device, request).await {
                    eprintln!("a connection failed: {error}");
                }
            });
        }
    });
    let ends = (0..CONNECTIONS).map(|_| tokio::spawn(measure(near.clone(), client.clone(), address)));
    let ends: Vec<_> = ends.collect();
    let mut usage = String::new();
    for end in ends {
        usage = end.await??;
    }
    Ok(usage)
}

/// Returns every message of a client.
async fn serve(device: &Device, request: ConnectionRequest) -> Result<()> {
    let (pd, cq) = (device.alloc_pd()?, device.create_async_cq(4)?);
    let (qp, memory) = prepared(&pd, &cq)?;
    let connection = request.accept_async(qp, &DialOptions::default()).await?;
    loop {
        tokio::select! {
            wc = cq.next() => echo(connection.qp(), &memory, wc?)?,
            () = connection.ended() => return Ok(()),
        }
    }
}

/// Sends numbers to the server, and compares what returns.
async fn measure(device: Device, manager: ConnectionManager, address: SocketAddr) -> Result<String> {
    let (pd, cq) = (device.alloc_pd()?, device.create_async_cq(4)?);
    let (qp, memory) = prepared(&pd, &cq)?;
    let connection = manager.connect_async(qp, address, &DialOptions::default()).await?;
    for number in 0..ROUND_TRIPS {
        connection.qp().post_send_inline(&SendWr::send(), &number.to_le_bytes())?;
        compare(connection.qp(), &memory, cq.next().await?, number)?;
    }
    usage()
}

/// Serves and measures with a thread for each end of each connection.
fn threads(
    near: &Device,
    client: &ConnectionManager,
    far: &Device,
    listener: &PortListener,
    address: SocketAddr,
) -> Result<String> {
    std::thread::scope(|scope| {
        let ends: Vec<_> =
            (0..CONNECTIONS).map(|_| scope.spawn(|| measure_blocking(near, client, address))).collect();
        for _ in 0..CONNECTIONS {
            let request = listener.accept(PATIENCE)?.ok_or("no client in time")?;
            scope.spawn(|| serve_blocking(far, request));
        }
        let mut usage = String::new();
        for end in ends {
            usage = end.join().expect("no panic")?;
        }
        Ok(usage)
    })
}

fn serve_blocking(device: &Device, request: ConnectionRequest) -> Result<()> {
    let (pd, channel) = (device.alloc_pd()?, CompletionChannel::new()?);
    let cq = device.create_cq(4, Some(&channel))?;
    let (qp, memory) = prepared(&pd, &cq)?;
    let connection = request.accept(qp, &DialOptions::default())?;
    for _ in 0..ROUND_TRIPS {
        echo(connection.qp(), &memory, next(&cq, &channel)?)?;
    }
    connection.wait_for_end(PATIENCE);
    Ok(())
}

fn measure_blocking(device: &Device, manager: &ConnectionManager, address: SocketAddr) -> Result<String> {
    let (pd, channel) = (device.alloc_pd()?, CompletionChannel::new()?);
    let cq = device.create_cq(4, Some(&channel))?;
    let (qp, memory) = prepared(&pd, &cq)?;
    let connection = manager.connect(qp, address, &DialOptions::default())?;
    for number in 0..ROUND_TRIPS {
        connection.qp().post_send_inline(&SendWr::send(), &number.to_le_bytes())?;
        compare(connection.qp(), &memory, next(&cq, &channel)?, number)?;
    }
    usage()
}

/// Blocks until the next completion.
fn next(cq: &CompletionQueue, channel: &CompletionChannel) -> Result<Wc> {
    loop {
        if let Some(wc) = cq.poll_one() {
            return Ok(wc);
        }
        cq.arm(Armed::Next);
        // A completion before the queue was armed raises no event.
        if let Some(wc) = cq.poll_one() {
            return Ok(wc);
        }
        if !channel.wait(PATIENCE) {
            return Err("no completion in time".into());
        }
    }
}

/// Makes a queue pair with a receive, which is posted before the peer may send.
fn prepared(pd: &ProtectionDomain, cq: &CompletionQueue) -> Result<(QueuePair, MemoryRegion)> {
    let (qp, memory) = (pd.queue_pair(cq).create()?, pd.register(MESSAGE as usize, Access::LOCAL_WRITE)?);
    qp.initialize(Access::empty())?;
    qp.post_recv(0, &[memory.sge(0, MESSAGE)])?;
    Ok((qp, memory))
}

/// Returns a message to its sender, which sends the next one only after it has this one.
fn echo(qp: &QueuePair, memory: &MemoryRegion, received: Wc) -> Result<()> {
    let length = received.ok()?.byte_len as usize;
    let message = memory.to_vec(0, length)?;
    qp.post_recv(0, &[memory.sge(0, MESSAGE)])?;
    Ok(qp.post_send_inline(&SendWr::send(), &message)?)
}

fn compare(qp: &QueuePair, memory: &MemoryRegion, received: Wc, number: u64) -> Result<()> {
    received.ok()?;
    let returned = u64::from_le_bytes(memory.to_vec(0, MESSAGE as usize)?.try_into().expect("8 bytes"));
    if returned != number {
        return Err(format!("{number} was sent, {returned} returned").into());
    }
    Ok(qp.post_recv(0, &[memory.sge(0, MESSAGE)])?)
}

/// Returns number of threads and resident memory of this process.
fn usage() -> Result<String> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let value = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name))?;
        line.split_whitespace().nth(1)?.parse::<u64>().ok()
    };
    let (threads, kib) = (value("Threads:").ok_or("threads")?, value("VmRSS:").ok_or("memory")?);
    Ok(format!("{threads} threads, {:.0} MiB", kib as f64 / 1024.0))
}
