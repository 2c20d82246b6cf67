//! Which of an interface's GIDs is used.

use roxie::host::{DeviceError, GidEntry, GidTable};

use crate::failure::Failure;

/// What is said about a GID index that an interface with this table does not have.
pub(crate) fn no_gid(interface: &str, table: &GidTable, index: Option<usize>) -> Failure {
    DeviceError::NoGid { device: interface.into(), index: index.unwrap_or(0), available: table.listed() }
        .into()
}

/// The one that is used unless the user says otherwise: the first IPv4 one.
pub(crate) fn first_gid(table: &GidTable) -> Option<GidEntry> {
    let assigned = || table.iter().filter(|entry| entry.assigned);
    assigned().find(|entry| entry.gid.is_ipv4()).or_else(|| assigned().next())
}
