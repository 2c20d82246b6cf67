//! Tap devices: persistent ones, and ones that this process reads and writes. Made through `/dev/net/tun`
//! (`drivers/net/tun.c`), not rtnetlink.

#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use nix::fcntl::{FcntlArg, OFlag, fcntl};

/// `_IOW('T', 202, int)`.
const TUNSETIFF: libc::c_ulong = 0x4004_54ca;
/// `_IOW('T', 203, int)`.
const TUNSETPERSIST: libc::c_ulong = 0x4004_54cb;
/// Ethernet frames rather than IP packets.
const IFF_TAP: u16 = 0x0002;
/// No packet information before each frame.
const IFF_NO_PI: u16 = 0x1000;
/// The process that opens the tap later negotiates offloads (QEMU does).
const IFF_VNET_HDR: u16 = 0x4000;
/// Fail if the interface exists already.
const IFF_TUN_EXCL: u16 = 0x8000;

/// A tap that exists as long as this value: its interface is in a namespace, its other end is here.
#[derive(Debug)]
pub struct Tap {
    device: File,
}

impl Tap {
    /// Makes an interface named `name` in the calling thread's namespace. Reads do not block. Frames pass whole,
    /// without offloads.
    ///
    /// # Errors
    /// Without `/dev/net/tun` or CAP_NET_ADMIN; if the name is taken or longer than 15 bytes.
    pub fn open(name: &str) -> io::Result<Tap> {
        let device = attach(name, IFF_TAP | IFF_NO_PI | IFF_TUN_EXCL)?;
        let flags = OFlag::from_bits_retain(fcntl(&device, FcntlArg::F_GETFL)?);
        fcntl(&device, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
        Ok(Tap { device })
    }

    /// Reads the next frame that the interface sent. Returns its length, or `None` if there is none.
    ///
    /// # Errors
    /// If the interface is gone.
    pub fn read(&mut self, frame: &mut [u8]) -> io::Result<Option<usize>> {
        match self.device.read(frame) {
            Ok(length) => Ok(Some(length)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Has the interface receive a frame.
    ///
    /// # Errors
    /// If the interface is down (`EIO`) or has no room.
    pub fn write(&mut self, frame: &[u8]) -> io::Result<()> {
        self.device.write(frame).map(drop)
    }
}

impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}

/// Makes a tap named `name` in the calling thread's namespace, which exists until its link is deleted.
pub(super) fn create(name: &str) -> io::Result<()> {
    let device = attach(name, IFF_TAP | IFF_NO_PI | IFF_VNET_HDR)?;
    // SAFETY: the descriptor is open; the argument of TUNSETPERSIST is a plain integer, no pointer.
    let status = unsafe { libc::ioctl(device.as_raw_fd(), TUNSETPERSIST as _, 1 as libc::c_ulong) };
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Returns a descriptor of the interface `name` with these flags. Makes the interface if it does not exist.
fn attach(name: &str, flags: u16) -> io::Result<File> {
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
    request[16..18].copy_from_slice(&flags.to_ne_bytes());
    // SAFETY: the descriptor is open; `request` is a writable `struct ifreq` (40 bytes on every 64-bit
    // target, 32 on others, where the kernel touches less) and lives across the call.
    let set = unsafe { libc::ioctl(device.as_raw_fd(), TUNSETIFF as _, request.as_mut_ptr()) };
    if set < 0 { Err(io::Error::last_os_error()) } else { Ok(device) }
}
