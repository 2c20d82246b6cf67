//! A table that clients read without asking its server: one READ for each look-up.
//!
//! ```text
//! cargo run --example key_value
//! ```
//!
//! The server registers its table and announces the address and the key. From then on the NIC answers look-ups without
//! the server's processor. A client computes the slot of a key, READs that slot, and compares the key in it. A READ may
//! return half of a change, so a slot carries a checksum, and a client that finds it wrong reads again. The example
//! runs both ends in one process, on two NICs with a link in memory.

use std::error::Error;
use std::time::Duration;

use roxie::host::{CompletionQueue, ConnectOptions, Device, DeviceConfig, MemoryRegion, QueuePair};
use roxie::verbs::{Access, RKey, SendWr};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const SLOTS: u64 = 1024;
/// Key, value, checksum: 8 bytes each.
const SLOT: usize = 24;
/// Slots searched for one key.
const PROBES: u64 = 8;
const PATIENCE: Duration = Duration::from_secs(10);

/// Returns the first slot to search for a key.
fn place(key: u64) -> u64 {
    key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32
}

fn checksum(key: u64, value: u64) -> u64 {
    (key ^ value.rotate_left(17)).wrapping_mul(0xff51_afd7_ed55_8ccd) | 1
}

/// The table, in memory that peers may READ.
struct Table(MemoryRegion);

impl Table {
    fn put(&self, key: u64, value: u64) -> Result<()> {
        for probe in 0..PROBES {
            let at = ((place(key) + probe) % SLOTS) as usize * SLOT;
            let there = word(&self.0.to_vec(at, SLOT)?, 0);
            if there == 0 || there == key {
                let words = [key, value, checksum(key, value)];
                let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
                return Ok(self.0.write_at(at, &bytes)?);
            }
        }
        Err("the table is too full".into())
    }
}

fn word(bytes: &[u8], index: usize) -> u64 {
    u64::from_le_bytes(bytes[8 * index..8 * index + 8].try_into().expect("8 bytes"))
}

struct Client {
    qp: QueuePair,
    cq: CompletionQueue,
    slot: MemoryRegion,
    /// Address and key of the server's table.
    table: (u64, RKey),
}

impl Client {
    fn get(&self, key: u64) -> Result<Option<u64>> {
        for probe in 0..PROBES {
            let slot = (place(key) + probe) % SLOTS;
            let (slot_key, value) = self.read(slot)?;
            if slot_key == key {
                return Ok(Some(value));
            }
            if slot_key == 0 {
                return Ok(None);
            }
        }
        Ok(None)
    }

    /// Returns a slot with a correct checksum.
    fn read(&self, slot: u64) -> Result<(u64, u64)> {
        let (address, rkey) = self.table;
        loop {
            let read = SendWr::read(address + slot * SLOT as u64, rkey).signaled();
            self.qp.post_send(&read, &[self.slot.sge(0, SLOT as u32)])?;
            self.cq.wait(PATIENCE)?.ok()?;
            let bytes = self.slot.to_vec(0, SLOT)?;
            let (key, value, sum) = (word(&bytes, 0), word(&bytes, 1), word(&bytes, 2));
            if key == 0 || sum == checksum(key, value) {
                return Ok((key, value));
            }
        }
    }
}

fn main() -> Result<()> {
    let (local, remote) = Device::memory_pair(&DeviceConfig::default())?;
    // The server has a readable table and a queue pair for its peers, and posts no receive.
    let pd = remote.alloc_pd()?;
    let cq = remote.create_cq(1, None)?;
    let server = pd.queue_pair(&cq).create()?;
    let table = Table(pd.register(SLOTS as usize * SLOT, Access::LOCAL_WRITE | Access::REMOTE_READ)?);

    let pd = local.alloc_pd()?;
    let cq = local.create_cq(4, None)?;
    let qp = pd.queue_pair(&cq).create()?;
    let (here, there) = (qp.endpoint(0)?, server.endpoint(0)?);
    qp.connect(&here, &there, &ConnectOptions::default())?;
    let access = Access::REMOTE_READ;
    server.connect(&there, &here, &ConnectOptions { access, ..ConnectOptions::default() })?;
    let slot = pd.register(SLOT, Access::LOCAL_WRITE)?;
    let client = Client { qp, cq, slot, table: (table.0.address(), table.0.rkey()) };

    for key in 1..=300 {
        table.put(key, key * key)?;
    }
    std::thread::scope(|scope| -> Result<()> {
        // Values change while they are read.
        let changing =
            scope.spawn(|| (0..20_000).try_for_each(|n| table.put(7, n).map_err(|e| e.to_string())));
        while !changing.is_finished() {
            client.get(7)?.ok_or("a key that is there was not found")?;
        }
        Ok(changing.join().expect("no panic")?)
    })?;
    let mut count = 0;
    for key in 1..=600 {
        let value = client.get(key)?;
        let expected = match key {
            7 => Some(19_999),
            1..=300 => Some(key * key),
            _ => None,
        };
        if value != expected {
            return Err(format!("{key}: {value:?} instead of {expected:?}").into());
        }
        count += u32::from(value.is_some());
    }
    println!("{count} of 600 keys were found, and the server did nothing for it");
    Ok(())
}
