//! Persistent tap devices. rtnetlink does not make them; `/dev/net/tun` does (`drivers/net/tun.c`).

#![allow(unsafe_code)]

use std::fs::OpenOptions;
use std::io;
use std::os::fd::AsRawFd;

/// `_IOW('T', 202, int)`.
const TUNSETIFF: libc::c_ulong = 0x4004_54ca;
/// `_IOW('T', 203, int)`.
const TUNSETPERSIST: libc::c_ulong = 0x4004_54cb;
/// Ethernet frames rather than IP packets.
const IFF_TAP: u16 = 0x0002;
/// No packet information before each frame.
const IFF_NO_PI: u16 = 0x1000;
/// Offloads are negotiated by who opens it later (QEMU does).
const IFF_VNET_HDR: u16 = 0x4000;

/// Makes a tap named `name` in the calling thread's namespace. It lives until its link is deleted.
pub(super) fn create(name: &str) -> io::Result<()> {
    if name.len() >= libc::IFNAMSIZ || name.is_empty() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("an interface name has 1 to {} bytes, {name:?} has {}", libc::IFNAMSIZ - 1, name.len()),
        ));
    }
    let device = OpenOptions::new().read(true).write(true).open("/dev/net/tun")?;
    // `struct ifreq`: the name, then a union of which only the flags matter here.
    let mut request = [0u8; 40];
    request[..name.len()].copy_from_slice(name.as_bytes());
    request[16..18].copy_from_slice(&(IFF_TAP | IFF_NO_PI | IFF_VNET_HDR).to_ne_bytes());
    // SAFETY: the descriptor is open; `request` is a writable `struct ifreq` (40 bytes on every 64-bit
    // target, 32 on others, where the kernel touches less) and lives across the call.
    let set = unsafe { libc::ioctl(device.as_raw_fd(), TUNSETIFF as _, request.as_mut_ptr()) };
    if set < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is open; the argument of TUNSETPERSIST is a plain integer, no pointer.
    let kept = unsafe { libc::ioctl(device.as_raw_fd(), TUNSETPERSIST as _, 1 as libc::c_ulong) };
    if kept < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
