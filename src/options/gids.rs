//! Selects a GID from an interface's table.

use roxie::host::{DeviceError, GidEntry, GidTable};
use roxie_report::failure::Failure;

/// Returns the error for a GID index that is not in the table.
pub fn no_gid(interface: &str, table: &GidTable, index: Option<usize>) -> Failure {
    DeviceError::NoGid { device: interface.into(), index: index.unwrap_or(0), available: table.listed() }
        .into()
}

/// Returns the default GID: the first assigned IPv4 one, else the first assigned one.
pub fn first_gid(table: &GidTable) -> Option<GidEntry> {
    let assigned = || table.iter().filter(|entry| entry.assigned);
    assigned().find(|entry| entry.gid.is_ipv4()).or_else(|| assigned().next())
}
