//! VLAN tags that the driver takes out of received frames (receive VLAN offload).
//!
//! A program on the XDP hook sees the bytes of a frame, so such a tag is lost. The port turns the offload off when the
//! first address on a VLAN comes, and leaves it off: another program may rely on it by then.

use std::io;

use crate::netdev::{Interface, ethtool};

/// The offload, as `ethtool -k` names it.
const OFFLOAD: &str = "rx-vlan-hw-parse";

/// Makes the driver leave tags in the frames of an interface of the calling thread's namespace.
///
/// # Errors
/// If the driver takes them out and cannot be told otherwise.
pub(super) fn show_tags(interface: &str) -> io::Result<()> {
    let index = Interface::by_name(interface).map_err(io::Error::other)?.index;
    // A kernel without ethtool's netlink family does not say; then the frames tell.
    let Ok(before) = ethtool::offloads(index) else { return Ok(()) };
    if !before.is_on(OFFLOAD) {
        return Ok(());
    }
    let turned = ethtool::set_offload(index, OFFLOAD, false);
    let still_on = ethtool::offloads(index).is_ok_and(|now| now.is_on(OFFLOAD));
    match turned {
        Ok(()) if !still_on => Ok(()),
        turned => {
            let why =
                turned.err().map_or_else(|| "the driver fixes it".to_owned(), |error| error.to_string());
            Err(io::Error::new(
                io::ErrorKind::Unsupported,
                format!(
                    "{interface} takes VLAN tags out of received frames before AF_XDP sees them, and the offload {OFFLOAD} \
                     cannot be turned off ({why}): `ethtool -K {interface} rxvlan off` as root, or use packet sockets \
                     (--port packet)"
                ),
            ))
        }
    }
}
