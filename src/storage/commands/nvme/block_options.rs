//! Values of options that name disks, hosts and addresses.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

use roxie::random::unguessable;
use roxie_nvmeof::storage::{FileStorage, MemoryStorage, Storage};
use roxie_nvmeof::subsystem::{Namespace, guid_of};
use roxie_nvmeof::{cm, nqn};
use roxie_options::bytes::bytes;
use roxie_report::failure::Failure;

/// Where the blocks of a namespace are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Disk {
    /// A file or a block device.
    File(PathBuf),
    /// Memory of this process, in bytes.
    Memory(u64),
}

/// Parses a namespace: `memory:SIZE`, or a path.
pub(super) fn disk(text: &str) -> Result<Disk, String> {
    match text.strip_prefix("memory:") {
        Some(size) => bytes(size).map(Disk::Memory),
        None => Ok(Disk::File(text.into())),
    }
}

impl Disk {
    /// Opens the namespace with identifier `id` of subsystem `nqn`.
    ///
    /// # Errors
    /// If the file cannot be opened, or its length is no multiple of the block.
    pub(super) fn open(
        &self,
        nqn: &str,
        id: u32,
        block_size: u32,
        read_only: bool,
    ) -> Result<Namespace, Failure> {
        let refused = |what: String| move |error| Failure::Usage(format!("namespace {what}: {error}"));
        let number = id.to_be_bytes();
        match self {
            Disk::File(path) => {
                let shown = path.display().to_string();
                let file = FileStorage::open(path, read_only).map_err(refused(shown.clone()))?;
                // A file that is served again is the same disk to a host that reconnects.
                let whole = std::fs::canonicalize(path).unwrap_or_else(|_| path.clone());
                let guid = guid_of(&[nqn.as_bytes(), &number, path_bytes(&whole)]);
                Namespace::new(Box::new(file), block_size, read_only, guid).map_err(refused(shown))
            }
            Disk::Memory(length) => {
                let shown = format!("memory:{length}");
                let memory = MemoryStorage::new(*length).map_err(refused(shown.clone()))?;
                // Memory is another disk in each run: a host must not continue on it.
                let guid = guid_of(&[nqn.as_bytes(), &number, &unguessable().to_be_bytes()]);
                let memory: Box<dyn Storage> = Box::new(memory);
                Namespace::new(memory, block_size, read_only, guid).map_err(refused(shown))
            }
        }
    }
}

fn path_bytes(path: &Path) -> &[u8] {
    use std::os::unix::ffi::OsStrExt;
    path.as_os_str().as_bytes()
}

/// Parses a name.
pub(super) fn name(text: &str) -> Result<String, String> {
    nqn::check(text).map(|()| text.to_owned())
}

/// Parses an address with or without a port.
pub(super) fn address(text: &str) -> Result<SocketAddr, String> {
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    if let Ok(ip) = bare.parse::<IpAddr>() {
        return Ok(SocketAddr::new(ip, cm::PORT));
    }
    text.parse().map_err(|_| "neither ADDRESS nor ADDRESS:PORT ([ADDRESS]:PORT for IPv6)".to_owned())
}

/// Parses an address with or without a port, or a port alone.
pub(super) fn listen_address(text: &str) -> Result<SocketAddr, String> {
    match text.parse::<u16>() {
        Ok(port) => Ok(SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), port)),
        Err(_) => address(text).map_err(|_| "neither PORT, ADDRESS nor ADDRESS:PORT".to_owned()),
    }
}

/// Returns a random host identifier, a UUID of version 4 (RFC 9562 5.4).
pub(super) fn random_host_id() -> [u8; 16] {
    let mut id = (u128::from(unguessable()) << 64 | u128::from(unguessable())).to_be_bytes();
    id[6] = id[6] & 0x0f | 0x40;
    id[8] = id[8] & 0x3f | 0x80;
    id
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_are_paths_or_memory() {
        assert_eq!(disk("memory:64M"), Ok(Disk::Memory(64 << 20)));
        assert_eq!(disk("disk.img"), Ok(Disk::File("disk.img".into())));
        assert!(disk("memory:x").unwrap_err().contains("512M"));
    }

    #[test]
    fn addresses_may_lack_a_port() {
        let is = |text: &str| address(text).map(|address| address.to_string());
        assert_eq!(is("192.0.2.1"), Ok("192.0.2.1:4420".into()));
        assert_eq!(is("192.0.2.1:5"), Ok("192.0.2.1:5".into()));
        assert_eq!(
            (is("fd00::1"), is("[fd00::1]:5")),
            (Ok("[fd00::1]:4420".into()), Ok("[fd00::1]:5".into()))
        );
        assert!(is("example").unwrap_err().contains("ADDRESS:PORT"));
        assert_eq!(listen_address("4421").map(|address| address.to_string()), Ok("[::]:4421".into()));
        assert!(listen_address("70000").is_err());
    }

    #[test]
    fn memory_is_another_disk_each_time() {
        let guid =
            || Disk::Memory(4096).open(super::super::NQN, 1, 512, false).expect("memory").identity().guid;
        assert_ne!(guid(), guid());
    }
}
