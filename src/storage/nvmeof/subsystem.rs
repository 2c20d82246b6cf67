//! A subsystem: namespaces, the hosts that may use them, and the controllers that serve those hosts.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::controller::Controller;
use crate::discovery::{Entry, Log};
use crate::identify;
use crate::nqn;
use crate::storage::Storage;

/// Sizes that a subsystem offers and keeps to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Entries of an I/O queue, 2 to 1024.
    pub queue_size: u16,
    /// I/O queues of a controller, at least 1.
    pub queues: u16,
    /// Controllers at a time: hosts, and discoveries under way.
    pub controllers: u16,
    /// Longest transfer in bytes: 4096 times a power of two, 8 KiB to 8 MiB.
    pub longest_transfer: u32,
    /// Bytes of data in a command capsule, a multiple of 16.
    pub in_capsule: u32,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { queue_size: 128, queues: 8, controllers: 32, longest_transfer: 128 << 10, in_capsule: 4096 }
    }
}

/// A namespace.
#[derive(Debug)]
pub struct Namespace {
    storage: Box<dyn Storage>,
    block_shift: u8,
    is_read_only: bool,
    guid: [u8; 16],
    /// Blocks, as of the last look at the storage.
    blocks: AtomicU64,
}

impl Namespace {
    /// Makes a namespace of blocks of `block_size` bytes: 512 or 4096. `guid` identifies the content: it must be the
    /// same when the storage is served again, and another for other content.
    ///
    /// # Errors
    /// If the length of the storage is 0 or no multiple of the block, with the numbers; or the system's.
    pub fn new(
        storage: Box<dyn Storage>,
        block_size: u32,
        is_read_only: bool,
        guid: [u8; 16],
    ) -> io::Result<Namespace> {
        let refused = |why| Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        if !matches!(block_size, 512 | 4096) {
            return refused(format!("blocks of {block_size} bytes: 512 and 4096 are possible"));
        }
        let length = storage.length()?;
        if length == 0 || !length.is_multiple_of(block_size.into()) {
            return refused(format!("{length} bytes are not one or more blocks of {block_size}"));
        }
        let block_shift = block_size.ilog2() as u8;
        let blocks = AtomicU64::new(length >> block_shift);
        Ok(Namespace { storage, block_shift, is_read_only, guid, blocks })
    }

    /// The bytes.
    pub fn storage(&self) -> &dyn Storage {
        &*self.storage
    }

    /// Number of blocks.
    pub fn blocks(&self) -> u64 {
        self.blocks.load(Relaxed)
    }

    /// Bytes of a block as a power of two.
    pub fn block_shift(&self) -> u8 {
        self.block_shift
    }

    /// True if writes are refused.
    pub fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    /// Returns what Identify says about the namespace.
    pub fn identity(&self) -> identify::Namespace {
        identify::Namespace {
            blocks: self.blocks(),
            block_shift: self.block_shift,
            is_read_only: self.is_read_only,
            guid: self.guid,
        }
    }

    /// Takes over the length of the storage, in whole blocks. True if it has changed.
    fn look(&self) -> io::Result<bool> {
        let blocks = self.storage.length()? >> self.block_shift;
        Ok(self.blocks.swap(blocks, Relaxed) != blocks)
    }
}

/// Returns a GUID that depends on all parts, in order: the same for the same parts, in every run. Not for secrets:
/// FNV-1a, twice.
pub fn guid_of(parts: &[&[u8]]) -> [u8; 16] {
    let half = |seed: u64| {
        let all = parts.iter().flat_map(|part| part.iter().chain(&[0xff]));
        all.fold(0xcbf2_9ce4_8422_2325 ^ seed, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        })
    };
    (u128::from(half(0)) << 64 | u128::from(half(0x9e37_79b9_7f4a_7c15))).to_be_bytes()
}

/// A subsystem.
#[derive(Debug)]
pub struct Subsystem {
    nqn: String,
    namespaces: Vec<Namespace>,
    hosts: Vec<String>,
    limits: Limits,
    addresses: Mutex<Vec<SocketAddr>>,
    pub(crate) controllers: Mutex<Controllers>,
}

/// The controllers, by identifier.
#[derive(Debug, Default)]
pub(crate) struct Controllers {
    pub(crate) by_id: BTreeMap<u16, Arc<Controller>>,
    last: u16,
}

impl Controllers {
    /// Returns the next free identifier; the last ones given are not given again soon. `None`: all `most` are in use.
    pub(crate) fn next_id(&mut self, most: u16) -> Option<u16> {
        if self.by_id.len() >= most.into() {
            return None;
        }
        // Identifiers from 0xfff0 on are reserved.
        loop {
            self.last = if self.last >= 0xffef { 1 } else { self.last + 1 };
            if !self.by_id.contains_key(&self.last) {
                return Some(self.last);
            }
        }
    }
}

impl Subsystem {
    /// Makes a subsystem. Its namespaces have the identifiers 1, 2 and so on. `hosts`: the names of hosts that may
    /// connect; empty: all.
    ///
    /// # Errors
    /// If a name is no NQN, with the reason.
    pub fn new(
        nqn: &str,
        namespaces: Vec<Namespace>,
        hosts: Vec<String>,
        limits: Limits,
    ) -> Result<Subsystem, String> {
        nqn::check(nqn)?;
        hosts.iter().try_for_each(|host| nqn::check(host))?;
        if nqn == nqn::DISCOVERY {
            return Err(format!("{nqn} is the name of discovery, which every target has beside its own"));
        }
        let (addresses, controllers) = Default::default();
        Ok(Subsystem { nqn: nqn.to_owned(), namespaces, hosts, limits, addresses, controllers })
    }

    /// The subsystem's name.
    pub fn nqn(&self) -> &str {
        &self.nqn
    }

    /// The sizes.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The namespaces, from identifier 1 on.
    pub fn namespaces(&self) -> &[Namespace] {
        &self.namespaces
    }

    /// Returns a namespace by its identifier.
    pub fn namespace(&self, id: u32) -> Option<&Namespace> {
        self.namespaces.get(usize::try_from(id.checked_sub(1)?).ok()?)
    }

    /// True if a host of this name may connect.
    pub fn admits(&self, host: &str) -> bool {
        self.hosts.is_empty() || self.hosts.iter().any(|admitted| admitted == host)
    }

    /// Sets the addresses that discovery names.
    pub fn set_addresses(&self, addresses: Vec<SocketAddr>) {
        *self.addresses.lock().unwrap_or_else(PoisonError::into_inner) = addresses;
    }

    /// Returns the discovery log page for a host: it names the subsystem if the host may connect.
    pub(crate) fn discovery_log(&self, host: &str) -> Log {
        let addresses = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        let admitted = addresses.iter().filter(|_| self.admits(host));
        let entries = admitted.map(|address| Entry::at(*address, &self.nqn, crate::cm::ADMIN_QUEUE));
        Log { generation: 1, entries: entries.collect() }
    }

    pub(crate) fn controllers(&self) -> MutexGuard<'_, Controllers> {
        self.controllers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the controllers.
    pub fn connected(&self) -> Vec<Arc<Controller>> {
        self.controllers().by_id.values().cloned().collect()
    }

    /// Looks at the lengths of all namespaces. Hosts of changed ones are notified. Returns the identifiers of those.
    ///
    /// # Errors
    /// The system's.
    pub fn look(&self) -> io::Result<Vec<u32>> {
        let mut changed = Vec::new();
        for (id, namespace) in (1..).zip(&self.namespaces) {
            if namespace.look()? {
                changed.push(id);
                self.connected().iter().for_each(|controller| controller.namespace_changed(id));
            }
        }
        Ok(changed)
    }

    /// Makes all completed writes durable.
    ///
    /// # Errors
    /// The system's, of the first namespace that has one; the others are flushed as well.
    pub fn flush(&self) -> io::Result<()> {
        let writable = self.namespaces.iter().filter(|namespace| !namespace.is_read_only);
        writable.map(|namespace| namespace.storage.flush()).fold(Ok(()), Result::and)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::MemoryStorage;

    fn memory(length: u64, block: u32) -> io::Result<Namespace> {
        Namespace::new(Box::new(MemoryStorage::new(length)?), block, false, [1; 16])
    }

    #[test]
    fn lengths_must_be_whole_blocks() {
        assert_eq!(memory(8192, 512).expect("16 blocks").blocks(), 16);
        for (length, block, why) in [(0, 512, "0 bytes"), (8191, 512, "8191 bytes"), (512, 1024, "1024")] {
            let told = memory(length, block).expect_err("not whole blocks").to_string();
            assert!(told.contains(why), "{told}");
        }
    }

    #[test]
    fn wrong_names_are_refused() {
        let make = |nqn: &str, host: &str| Subsystem::new(nqn, vec![], vec![host.into()], Limits::default());
        assert!(make("nqn.2026-11.example:a", "nqn.2026-11.example:b").is_ok());
        assert!(make("a", "nqn.2026-11.example:b").is_err() && make("nqn.2026-11.example:a", "b").is_err());
        assert!(make(nqn::DISCOVERY, "nqn.2026-11.example:b").is_err());
    }

    #[test]
    fn guids_depend_on_each_part() {
        let guid = guid_of(&[b"ab", b"c"]);
        assert_eq!(guid, guid_of(&[b"ab", b"c"]));
        assert!(guid != guid_of(&[b"a", b"bc"]) && guid[..8] != guid[8..]);
    }

    #[test]
    fn identifiers_are_not_given_twice() {
        let mut controllers = Controllers::default();
        assert_eq!((controllers.next_id(4), controllers.next_id(4)), (Some(1), Some(2)));
        controllers.last = 0xffef;
        assert_eq!((controllers.next_id(4), controllers.next_id(0)), (Some(1), None));
    }
}
