//! Counters to which many clients add at once without losing an addition: fetch-and-add.
//!
//! ```text
//! cargo run --example counters
//! ```
//!
//! A client that READs a number, adds to it and WRITEs it back loses additions of other clients in between. With
//! fetch-and-add, the NIC at the memory does all of it in one step, and returns the old value. Tickets work the same
//! way: no two clients get the same number. The example runs both ends in one process, on two NICs with a link in
//! memory.

use std::collections::BTreeSet;
use std::error::Error;
use std::time::Duration;

use roxie::host::{ConnectOptions, Device, DeviceConfig};
use roxie::verbs::{Access, RKey, SendWr};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const CLIENTS: usize = 4;
const TICKETS: usize = 500;
const PATIENCE: Duration = Duration::from_secs(10);

fn main() -> Result<()> {
    let (local, remote) = Device::memory_pair(&DeviceConfig::default())?;
    let pd = remote.alloc_pd()?;
    let cq = remote.create_cq(1, None)?;
    // An atomic needs memory aligned to 8 bytes, and REMOTE_ATOMIC rights at the region and at the queue pair.
    let access = Access::LOCAL_WRITE | Access::REMOTE_ATOMIC;
    let counter = pd.register(8, access)?;
    let (address, rkey) = (counter.address(), counter.rkey());

    let mut threads = Vec::new();
    let mut servers = Vec::new();
    for _ in 0..CLIENTS {
        let server = pd.queue_pair(&cq).create()?;
        let (pd, cq) = (local.alloc_pd()?, local.create_cq(4, None)?);
        let qp = pd.queue_pair(&cq).create()?;
        let (here, there) = (qp.endpoint(0)?, server.endpoint(0)?);
        qp.connect(&here, &there, &ConnectOptions::default())?;
        let options = ConnectOptions { access: Access::REMOTE_ATOMIC, ..ConnectOptions::default() };
        server.connect(&there, &here, &options)?;
        servers.push(server);
        threads.push(std::thread::spawn(move || -> std::result::Result<Vec<u64>, String> {
            let before = pd.register(8, Access::LOCAL_WRITE).map_err(|e| e.to_string())?;
            let mut tickets = Vec::new();
            for _ in 0..TICKETS {
                tickets.push(take(&qp, &cq, &before, (address, rkey)).map_err(|e| e.to_string())?);
            }
            Ok(tickets)
        }));
    }
    let mut all = BTreeSet::new();
    for thread in threads {
        for ticket in thread.join().expect("no panic")? {
            if !all.insert(ticket) {
                return Err(format!("ticket {ticket} was given twice").into());
            }
        }
    }
    let total = u64::from_ne_bytes(counter.to_vec(0, 8)?.try_into().expect("8 bytes"));
    let expected = (CLIENTS * TICKETS) as u64;
    if total != expected || all.len() as u64 != expected {
        return Err(format!("{total} counted, {} tickets, instead of {expected}", all.len()).into());
    }
    println!("{CLIENTS} clients took {total} tickets, each another one");
    Ok(())
}

/// Adds one to the peer's counter. Returns the old value.
fn take(
    qp: &roxie::host::QueuePair,
    cq: &roxie::host::CompletionQueue,
    before: &roxie::host::MemoryRegion,
    (remote_addr, rkey): (u64, RKey),
) -> Result<u64> {
    let add = SendWr::fetch_add(remote_addr, rkey, 1).signaled();
    qp.post_send(&add, &[before.sge(0, 8)])?;
    cq.wait(PATIENCE)?.ok()?;
    // The NIC stores the result in this machine's byte order.
    Ok(u64::from_ne_bytes(before.to_vec(0, 8)?.try_into().expect("8 bytes")))
}
