//! Sockets that hold the UDP port, so that the kernel answers nothing.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, bind, setsockopt, socket, sockopt,
};

use super::error::PacketError;
use super::filter::Instruction;
use crate::group::Sockets;
use crate::udp::owner;
use crate::udp::sys::attach_filter;
use roxie_base::frame::ROCE_V2_PORT;

/// `BPF_RET | BPF_K` of 0: drop.
const DROP_ALL: [Instruction; 1] = [(0x06, 0, 0, 0)];

/// Makes the sockets that hold the UDP port on the interface and drop what arrives. `shared`: other sockets of this
/// user that are shared may hold it too.
pub(super) fn sinks(interface: &str, shared: bool) -> Result<Sockets, PacketError> {
    let families: [SocketAddr; 2] = [
        SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, ROCE_V2_PORT).into(),
        SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, ROCE_V2_PORT, 0, 0).into(),
    ];
    let mut sinks = Vec::new();
    for address in families {
        let bind = || match sink(interface, address, shared) {
            Ok(socket) => Ok(Some(Some((address.ip(), socket)))),
            Err(Errno::EADDRINUSE) => Ok(None),
            // The host has no such family.
            Err(Errno::EAFNOSUPPORT | Errno::EADDRNOTAVAIL) => Ok(Some(None)),
            Err(error) => Err(PacketError::of("socket on the RoCE port")(error.into())),
        };
        let in_use = |owner| PacketError::InUse { interface: interface.into(), owner };
        sinks.extend(owner::bound(ROCE_V2_PORT, bind, in_use)?);
    }
    Ok(sinks)
}

fn sink(interface: &str, address: SocketAddr, shared: bool) -> nix::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let socket = socket(family, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    setsockopt(&socket, sockopt::BindToDevice, &interface.into())?;
    setsockopt(&socket, sockopt::ReusePort, &shared)?;
    if address.is_ipv6() {
        setsockopt(&socket, sockopt::Ipv6V6Only, &true)?;
    }
    let errno = |error: io::Error| Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO));
    attach_filter(socket.as_fd(), &DROP_ALL).map_err(errno)?;
    // Without it the kernel cuts trains before it looks at the filter.
    setsockopt(&socket, sockopt::UdpGroSegment, &true)?;
    let address: SockaddrStorage = address.into();
    bind(socket.as_raw_fd(), &address)?;
    Ok(socket)
}
