//! Frames through AF_XDP: rings in memory shared with the kernel, below its network stack.
//!
//! A BPF program (`steer.bpf.c`) redirects RoCE to our addresses to one socket per receive queue. All other traffic
//! stays with the kernel, so ssh, ARP and TCP continue over the same interface and IP address; flows of raw packet QPs
//! are taken from that rest. [`XdpConfig`] holds the options, `port` moves the frames, `open` selects the mode,
//! `rings` has the socket's rings, `chunks` what goes through them, `steering` the program.
//!
//! Frames that an adapter would drop are counted and not taken: a wrong IPv4 checksum (`rx_bad_ip_checksum`), another
//! station (`rx_other_station`), a VLAN tag of another network (`rx_tagged`). UDP checksums are not verified: frames of
//! local senders arrive over veth with the pseudo-header's sum only (CHECKSUM_PARTIAL). The ICRC protects the payload.

mod config;
mod error;
#[cfg(feature = "xdp")]
mod open;
#[cfg_attr(not(feature = "xdp"), allow(dead_code, reason = "sockets are never refused"))]
mod owner;
#[cfg(feature = "xdp")]
mod port;
#[cfg(feature = "xdp")]
mod rings;
#[cfg(feature = "xdp")]
mod steering;
#[cfg(feature = "xdp")]
mod vlan;

use std::io;

use super::Port;

#[cfg(feature = "xdp")]
pub use super::chunks::ChunkAccount;
pub use config::{Mode, XdpConfig};
pub use error::XdpError;
pub use owner::of_program as program_holders;
#[cfg(feature = "xdp")]
pub use port::XdpPort;

/// False in a build without the feature `xdp`: nothing opens.
pub const IS_BUILT: bool = cfg!(feature = "xdp");

/// Opens an interface of the calling thread's namespace as one port.
///
/// # Errors
/// As [`open_split`].
pub fn open(config: &XdpConfig) -> Result<Box<dyn Port>, XdpError> {
    Ok(open_split(config, 1)?.swap_remove(0))
}

/// Opens an interface of the calling thread's namespace as at most this many ports, and at least one, each with some of
/// its queues. Waits up to 2 s for a killed former owner to disappear.
///
/// # Errors
/// [`XdpError`] says what failed and what to do about it.
pub fn open_split(config: &XdpConfig, most: usize) -> Result<Vec<Box<dyn Port>>, XdpError> {
    config.check()?;
    #[cfg(feature = "xdp")]
    return Ok(XdpPort::open(config)?.split(most).into_iter().map(|port| Box::new(port) as _).collect());
    #[cfg(not(feature = "xdp"))]
    {
        let _ = most;
        Err(XdpError::NotBuilt)
    }
}

/// Returns why this process cannot create an XSKMAP, or `None` if it can. Tries the system call: capabilities say less,
/// for a seccomp filter may refuse it, and privileges in a user namespace do not count.
pub fn why_no_map() -> Option<io::Error> {
    #[cfg(feature = "xdp")]
    return steering::why_no_map();
    #[cfg(not(feature = "xdp"))]
    Some(io::ErrorKind::Unsupported.into())
}
