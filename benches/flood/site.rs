//! Two hosts on a private link, and a sender of frames with other addresses.

use std::io;
use std::mem::{size_of, zeroed};
use std::net::IpAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;

use nix::net::if_::if_nametoindex;
use roxie::netdev::{Interface, Links, NetNs};

use crate::frames::{Frames, Honest, Kind, STATION, known};

/// Frames per system call.
const BATCH: usize = 64;

/// Two namespaces joined by the veth pair `left` - `right`, MTU 4200. All flood addresses are on-link for `left`; half
/// of them are known neighbours.
pub(crate) struct Site {
    pub(crate) local: NetNs,
    pub(crate) remote: NetNs,
    station: [u8; 6],
}

impl Site {
    pub(crate) fn new() -> Site {
        let local = NetNs::create("bench-flood-a").expect("a namespace");
        let remote = NetNs::create("bench-flood-b").expect("a namespace");
        let mut left = Links::open_in(&local).expect("netlink");
        left.create_veth("left", &remote, "right", 1).expect("a pair");
        let mut right = Links::open_in(&remote).expect("netlink");
        let ends: [(_, _, &[&str]); 2] = [
            (&mut left, "left", &["192.0.2.1/24", "198.18.0.1/15"]),
            (&mut right, "right", &["192.0.2.2/24"]),
        ];
        for (links, name, addresses) in ends {
            for address in addresses {
                links.add_address(name, address.parse().expect("an address")).expect("an address");
            }
            links.set_mtu(name, 4200).expect("an MTU");
            links.set_up(name, true).expect("up");
        }
        for stranger in known() {
            left.add_neighbour("left", IpAddr::V4(stranger), STATION).expect("a neighbour");
        }
        let station =
            local.run(|| Interface::by_name("left")).expect("the namespace").expect("an interface").mac;
        Site { local, remote, station }
    }

    /// Sends frames of a kind until `stop`. The thread returns the number of frames sent.
    pub(crate) fn flood(&self, kind: Kind, honest: Honest, stop: &'static AtomicBool) -> JoinHandle<u64> {
        let wire = self.remote.run(|| Wire::open("right")).expect("the namespace").expect("a packet socket");
        let mut frames = Frames::new(kind, self.station, honest);
        std::thread::spawn(move || {
            let mut batch = vec![Vec::new(); BATCH];
            let mut sent = 0;
            while !stop.load(Relaxed) {
                batch.iter_mut().for_each(|frame| frames.next(frame));
                sent += wire.send(&batch) as u64;
            }
            sent
        })
    }
}

/// A packet socket on an interface that bypasses the interface's queues.
struct Wire(OwnedFd);

impl Wire {
    /// Opens the socket in the calling thread's namespace. Protocol 0: the socket receives nothing.
    fn open(interface: &str) -> io::Result<Wire> {
        let index = if_nametoindex(interface)?;
        // SAFETY: no pointers; the descriptor is new and has no other owner.
        let socket = unsafe {
            let fd = libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(fd)
        };
        // SAFETY: all zeros is an address; the call reads no more than its size.
        let bound = unsafe {
            let mut address: libc::sockaddr_ll = zeroed();
            address.sll_family = libc::AF_PACKET as u16;
            address.sll_ifindex = index as i32;
            let size = size_of::<libc::sockaddr_ll>() as u32;
            libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size)
        };
        if bound < 0 {
            return Err(io::Error::last_os_error());
        }
        let on: libc::c_int = 1;
        // SAFETY: the option is an int, which outlives the call.
        let bypassed = unsafe {
            let size = size_of::<libc::c_int>() as u32;
            let (level, name) = (libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS);
            libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const on).cast(), size)
        };
        if bypassed < 0 { Err(io::Error::last_os_error()) } else { Ok(Wire(socket)) }
    }

    /// Sends frames. Returns the number that the kernel took, which is lower if the link is full.
    fn send(&self, frames: &[Vec<u8>]) -> usize {
        let mut pieces: Vec<libc::iovec> = frames
            .iter()
            .map(|frame| libc::iovec { iov_base: frame.as_ptr().cast_mut().cast(), iov_len: frame.len() })
            .collect();
        let mut messages: Vec<libc::mmsghdr> = pieces
            .iter_mut()
            .map(|piece| {
                // SAFETY: all zeros is a message without name, control and data.
                let mut message: libc::mmsghdr = unsafe { zeroed() };
                message.msg_hdr.msg_iov = piece;
                message.msg_hdr.msg_iovlen = 1;
                message
            })
            .collect();
        let count = messages.len() as u32;
        // SAFETY: each message has one piece, each piece is a frame, and all outlive the call, which only reads the
        // frames.
        let sent = unsafe { libc::sendmmsg(self.0.as_raw_fd(), messages.as_mut_ptr(), count, 0) };
        usize::try_from(sent).unwrap_or(0)
    }
}
