//! The limit of open descriptors.

use std::io;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Raises the process's limit of open descriptors (`RLIMIT_NOFILE`) to the hard limit, and returns it.
///
/// # Errors
/// If the kernel refuses.
pub fn raise_limit() -> io::Result<u64> {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most)?;
    Ok(most)
}
