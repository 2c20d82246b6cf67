//! How many descriptors this process may have.

use std::io;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Raises the number of descriptors that this process may have to the most that its user is allowed (`RLIMIT_NOFILE`), and returns it.
///
/// # Errors
/// If the system refuses.
pub fn raise_limit() -> io::Result<u64> {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most)?;
    Ok(most)
}
