//! Netlink for RDMA devices (`NETLINK_RDMA`), served here if the kernel does not support it (`EPROTONOSUPPORT`).
//!
//! `rdma` of iproute2, UCX and others query devices by this family. A program that opens such a socket gets a
//! `NETLINK_USERSOCK` socket, which every kernel has. The kernel handles all calls on it except sending. A request sent
//! to the kernel is answered immediately, by messages from another such socket, so `poll`, timeouts and truncation work
//! as usual. If the kernel supports RDMA, nothing is redirected.

pub(crate) mod nldev;

use std::ffi::{c_int, c_void};
use std::mem::size_of;
use std::slice::from_raw_parts;
use std::sync::LazyLock;
use std::sync::atomic::{
    AtomicU64,
    Ordering::{Relaxed, SeqCst},
};

use roxie::netdev::Interface;

use crate::base::cancellation::Uncancelled;
use crate::device::published::{self, KINDS};
use crate::device::settings::{interface, node_guid, settings};

/// Descriptors that can be redirected. Sockets with higher numbers are not served.
const LIMIT: usize = 1 << 16;
static OURS: [AtomicU64; LIMIT / 64] = [const { AtomicU64::new(0) }; LIMIT / 64];
/// Receive buffer size. A dump is queued completely in one go, unlike the kernel's, which is sent piece by piece.
const ROOM: c_int = 1 << 22;
/// Maximum buffer space of a datagram, as a multiple of its length.
const OVERHEAD: usize = 4;
/// Maximum length of a request in bytes. Requests are short.
const LONGEST: usize = 1 << 16;

/// Returns true if a descriptor may be a redirected socket. The check is the only cost for sends on other descriptors.
#[inline]
pub(crate) fn may_be_ours(fd: c_int) -> bool {
    let Ok(fd) = usize::try_from(fd) else { return false };
    OURS.get(fd / 64).is_some_and(|word| word.load(Relaxed) >> (fd % 64) & 1 != 0)
}

fn mark(fd: c_int, ours: bool) {
    let Ok(fd) = usize::try_from(fd) else { return };
    let Some(word) = OURS.get(fd / 64) else { return };
    let bit = 1 << (fd % 64);
    if ours {
        word.fetch_or(bit, SeqCst)
    } else {
        word.fetch_and(!bit, SeqCst)
    };
}

/// Forgets a descriptor that is being closed.
#[inline]
pub(crate) fn forget(fd: c_int) {
    if may_be_ours(fd) {
        mark(fd, false);
    }
}

/// The kernel's netlink family of RDMA (`NETLINK_RDMA`).
pub(crate) const RDMA: c_int = 20;

fn system_socket(kind: c_int, protocol: c_int) -> c_int {
    // SAFETY: three numbers; a direct system call, because this library interposes `socket`.
    unsafe { libc::syscall(libc::SYS_socket, libc::AF_NETLINK, kind, protocol) as c_int }
}

fn system_close(fd: c_int) {
    // SAFETY: opened by `system_socket`, without another owner.
    unsafe { libc::syscall(libc::SYS_close, fd) };
}

/// Returns true if the kernel supports this family. The kernel does not know this library's device.
pub(crate) fn kernel_supports_rdma() -> bool {
    static HAS: LazyLock<bool> = LazyLock::new(|| {
        let fd = system_socket(libc::SOCK_RAW | libc::SOCK_CLOEXEC, RDMA);
        if fd >= 0 {
            system_close(fd);
        }
        fd >= 0
    });
    *HAS
}

/// Opens a socket in place of the family that the kernel lacks. Returns `None` if that fails too.
pub(crate) fn socket(kind: c_int) -> Option<c_int> {
    let fd = system_socket(kind, libc::NETLINK_USERSOCK);
    match usize::try_from(fd) {
        Ok(number) if number < LIMIT => {
            let (room, length) = (ROOM, size_of::<c_int>() as libc::socklen_t);
            for name in [libc::SO_RCVBUF, libc::SO_RCVBUFFORCE] {
                // SAFETY: a number, and its size. `SO_RCVBUFFORCE` takes a capability that the program may lack.
                unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, name, (&raw const room).cast(), length) };
            }
            mark(fd, true);
            Some(fd)
        }
        Ok(_) => {
            system_close(fd);
            None
        }
        Err(_) => None,
    }
}

fn option(fd: c_int, name: c_int) -> Option<c_int> {
    let (mut value, mut length) = (0 as c_int, size_of::<c_int>() as libc::socklen_t);
    // SAFETY: a place for a number, and its size.
    let result =
        unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, name, (&raw mut value).cast(), &raw mut length) };
    (result == 0).then_some(value)
}

/// Checks that a descriptor is a redirected socket. The number may have been reused for another file.
fn is_ours(fd: c_int) -> bool {
    let so = option(fd, libc::SO_DOMAIN) == Some(libc::AF_NETLINK)
        && option(fd, libc::SO_PROTOCOL) == Some(libc::NETLINK_USERSOCK);
    if !so {
        mark(fd, false);
    }
    so
}

fn address(port: u32) -> libc::sockaddr_nl {
    // SAFETY: zeros are a valid value.
    let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
    address.nl_family = libc::AF_NETLINK as libc::sa_family_t;
    address.nl_pid = port;
    address
}

const ADDRESS: libc::socklen_t = size_of::<libc::sockaddr_nl>() as libc::socklen_t;

/// Returns the port ID of a socket. Without one, the socket is bound first, as the kernel does on a send.
fn port(fd: c_int) -> Option<u32> {
    let query = || {
        let (mut name, mut length) = (address(0), ADDRESS);
        // SAFETY: room for an address, and its size.
        let result = unsafe { libc::getsockname(fd, (&raw mut name).cast(), &raw mut length) };
        (result == 0).then_some(name.nl_pid)
    };
    match query()? {
        0 => {
            let any = address(0);
            // SAFETY: an address, and its size.
            let result = unsafe { libc::bind(fd, (&raw const any).cast(), ADDRESS) };
            if result == 0 { query() } else { None }
        }
        port => Some(port),
    }
}

/// Answers a request sent to the kernel through a redirected socket. Returns `None` for other descriptors and
/// destinations.
///
/// # Safety
/// `to` is null or an address of `to_length` bytes, and each piece may be read.
pub(crate) unsafe fn send(
    fd: c_int,
    to: *const c_void,
    to_length: libc::socklen_t,
    pieces: impl Iterator<Item = (*const u8, usize)>,
) -> Option<isize> {
    if !is_ours(fd) {
        return None;
    }
    if !to.is_null() && to_length >= ADDRESS {
        // SAFETY: the caller's promise: it has `to_length` bytes, which is enough.
        let to = unsafe { to.cast::<libc::sockaddr_nl>().read_unaligned() };
        if to.nl_pid != 0 {
            return None;
        }
    }
    let mut sent = Vec::new();
    for (start, length) in pieces {
        if length > LONGEST - sent.len() {
            return None;
        }
        if length > 0 {
            // SAFETY: the caller promises that each piece may be read; a piece that is not empty does not start at
            // null.
            sent.extend_from_slice(unsafe { from_raw_parts(start, length) });
        }
    }
    let port = port(fd)?;
    // Reads files and makes system calls, so cancellation must be disabled.
    let _uncancelled = Uncancelled::new();
    let answers = nldev::answers(&sent, facts().as_ref());
    let room = option(fd, libc::SO_RCVBUF).unwrap_or(0) as usize / OVERHEAD;
    deliver(port, fitting(&answers, room));
    Some(sent.len() as isize)
}

/// Returns as many datagrams as fit, and always the last. The last datagram ends the dump; without it, a program would
/// wait without end.
fn fitting(datagrams: &[Vec<u8>], room: usize) -> impl Iterator<Item = &Vec<u8>> {
    let (last, rest) = datagrams.split_last().map_or((None, datagrams), |(last, rest)| (Some(last), rest));
    let fits = rest.iter().scan(0, move |total, datagram| {
        *total += datagram.len();
        (*total <= room).then_some(datagram)
    });
    fits.chain(last)
}

/// Sends datagrams to the socket with this port ID.
fn deliver<'a>(port: u32, datagrams: impl Iterator<Item = &'a Vec<u8>>) {
    let from = system_socket(libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::NETLINK_USERSOCK);
    if from < 0 {
        return;
    }
    let to = address(port);
    for bytes in datagrams {
        // SAFETY: bytes and an address with their sizes; a direct system call, because this library interposes
        // `sendto`.
        unsafe {
            let (bytes, length) = (bytes.as_ptr(), bytes.len());
            libc::syscall(libc::SYS_sendto, from, bytes, length, libc::MSG_DONTWAIT, &raw const to, ADDRESS);
        }
    }
    system_close(from);
}

/// Returns the device on the interface that the environment names, with the objects of all processes on it.
fn facts() -> Option<nldev::Device> {
    let interface = interface(settings()).and_then(|name| Interface::by_name(&name).ok())?;
    let (counts, qps) = published::of_all_processes(interface.index);
    let mut named = KINDS.map(|name| (name, 0));
    named.iter_mut().zip(counts).for_each(|(entry, count)| entry.1 = count);
    Some(nldev::Device {
        name: settings().name.to_string(),
        firmware: settings().firmware().to_owned(),
        guid: u64::from_be(node_guid()),
        capabilities: crate::device::query::CAPABILITIES.into(),
        is_active: interface.up && interface.running,
        interface_index: interface.index,
        interface: interface.name,
        counts: named,
        qps,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truncated_dump_keeps_its_end() {
        let datagrams: Vec<Vec<u8>> = (1..=5).map(|byte| vec![byte; 10]).collect();
        let sent = |room| fitting(&datagrams, room).map(|datagram| datagram[0]).collect::<Vec<_>>();
        assert_eq!(sent(100), [1, 2, 3, 4, 5]);
        assert_eq!(sent(25), [1, 2, 5]);
        assert_eq!(sent(0), [5]);
        assert_eq!(fitting(&[], 10).count(), 0);
    }

    #[test]
    fn socket_buffer_holds_a_dump_of_2000_qps() {
        let fd = socket(libc::SOCK_RAW | libc::SOCK_CLOEXEC).unwrap();
        assert!(may_be_ours(fd) && is_ours(fd));
        let qps = vec![nldev::Qp { remote: Some(1), ..nldev::Qp::default() }; 2000];
        let device = nldev::Device { name: "roxie0".into(), qps, ..nldev::Device::default() };
        // Request of a dump of queue pairs: length, type, flags, sequence, port; the device's index.
        let mut request = Vec::new();
        for word in [24u32, 5 << 10 | 10 | 0x301 << 16, 7, 0, 8 | 1 << 16, 0] {
            request.extend(word.to_ne_bytes());
        }
        let answers = nldev::answers(&request, Some(&device));
        deliver(port(fd).unwrap(), fitting(&answers, usize::MAX));
        let mut buffer = [0u8; 8192];
        for expected in &answers {
            // SAFETY: room for the bytes; the call does not block.
            let got = unsafe { libc::recv(fd, buffer.as_mut_ptr().cast(), buffer.len(), libc::MSG_DONTWAIT) };
            if got < 0 && option(fd, libc::SO_RCVBUF) < Some(ROOM) {
                // The process may not increase its receive buffer.
                break;
            }
            assert_eq!(got, expected.len() as isize);
        }
        forget(fd);
        assert!(!may_be_ours(fd));
        system_close(fd);
    }
}
