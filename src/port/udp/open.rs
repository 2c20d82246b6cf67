//! Opens the sockets of a configuration.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use nix::ifaddrs::getifaddrs;
use nix::net::if_::{InterfaceFlags, if_nametoindex};
use nix::sys::epoll::{Epoll, EpollCreateFlags};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrIn, SockaddrIn6, SockaddrLike, bind, getsockopt, setsockopt,
    socket, sockopt,
};

use super::headers::HOP_LIMIT;
use super::rx::Receiver;
use super::tx::{SendLimits, SendSocket, Sender};
use super::{UdpPort, owner, probe, synthetic_mac, sys};
use crate::group::{GroupId, JoinError, Member, Refused};
use crate::netdev::NetNs;
use crate::{Carries, PortInfo};
use roxie_base::frame::ROCE_V2_PORT;

/// Source ports of RoCE v2.
const SOURCE_PORTS: std::ops::RangeInclusive<u16> = 0xc000..=0xffff;
/// Longest L3 packet of a frame: an interface such as `lo` allows more.
const MAX_PACKET: usize = 9216;
/// Ethernet header, in bytes.
const ETHERNET: usize = 14;

/// Configuration of a [`UdpPort`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UdpConfig {
    /// Local addresses to receive on; none: any, IPv4 and IPv6.
    pub addresses: Vec<IpAddr>,
    /// UDP port of this end and of all peers.
    pub port: u16,
    /// The interface to take name and MTU from; default: the one with the first address.
    pub interface: Option<String>,
    /// MTU in bytes; default: the interface's.
    pub mtu: Option<usize>,
    /// Station address; default: [`synthetic_mac`] of the first address.
    pub mac: Option<[u8; 6]>,
    /// Segmentation offload. Without it each datagram is sent alone, with IPv4 identification 0.
    pub gso: bool,
    /// Number of sending sockets per family: as many source ports by which routers spread flows.
    pub send_sockets: usize,
    /// Socket buffers to ask for, in bytes.
    pub socket_buffer: usize,
    /// Share the port with other processes of this user that do so too ([`group`](crate::group)). Ignored if addresses
    /// are chosen: the port is this process's alone on each of them.
    pub shared: bool,
}

impl Default for UdpConfig {
    fn default() -> UdpConfig {
        UdpConfig {
            addresses: Vec::new(),
            port: ROCE_V2_PORT,
            interface: None,
            mtu: None,
            mac: None,
            gso: true,
            send_sockets: 4,
            socket_buffer: 16 << 20,
            shared: true,
        }
    }
}

/// Why a [`UdpPort`] did not open.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UdpError {
    /// Another process or the kernel receives on the port.
    #[error("UDP port {port} of {address} is taken: {owner}")]
    InUse {
        /// The address that the socket was to be bound to.
        address: IpAddr,
        /// The UDP port.
        port: u16,
        /// The holder, and what to do.
        owner: String,
    },
    /// The address is not one of this host.
    #[error("{address} is no address of this host or network namespace: ip address lists those that are")]
    NoSuchAddress {
        /// The address that no interface here has.
        address: IpAddr,
    },
    /// No interface of that name.
    #[error("interface {name}: {error}; ip link lists those that are there")]
    Interface {
        /// The interface that was named.
        name: String,
        /// The kernel's error.
        error: io::Error,
    },
    /// Nothing to receive on.
    #[error("there is neither IPv4 nor IPv6 here: no socket could be made ({0})")]
    NoFamily(io::Error),
    /// All source ports are taken.
    #[error(
        "no free UDP port from 0xC000 to 0xFFFF for {0} to send from: close some of its sockets (ss -uan)"
    )]
    NoSourcePort(IpAddr),
    /// Other processes share the port, and this one cannot join them.
    #[error(transparent)]
    Group(#[from] JoinError),
    /// Any other refusal.
    #[error("{what} on {address}: {error}")]
    Socket {
        /// The call that failed.
        what: &'static str,
        /// The address that the socket is bound to.
        address: IpAddr,
        /// The kernel's error.
        error: io::Error,
    },
}

impl UdpPort {
    /// Opens sockets as configured.
    ///
    /// # Errors
    /// If an address or the port is not available; the error names the holder and says what to do.
    pub fn open(config: &UdpConfig) -> Result<UdpPort, UdpError> {
        let shared = config.shared && config.addresses.is_empty();
        let config = &UdpConfig { shared, ..config.clone() };
        let (listeners, member) = if shared {
            let (listeners, member) = share(config)?;
            (listeners, Some(Arc::new(member)))
        } else {
            (listen_on_all(config)?, None)
        };
        let interfaces = interfaces();
        let own = own_addresses(config, &interfaces);
        let named = config.interface.clone().or_else(|| interface_of(&own, &interfaces));
        let any_socket = listeners[0].1.as_fd();
        let mtu = match (config.mtu, &named) {
            (Some(mtu), _) => mtu,
            (None, Some(name)) => sys::interface_mtu(any_socket, name)
                .map_err(|error| UdpError::Interface { name: name.clone(), error })?,
            (None, None) => 1500,
        };
        let first = own.first().copied().unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let mac = config.mac.unwrap_or_else(|| synthetic_mac(first));
        let max_frame = max_frame(mtu);
        let segmentation = if config.gso { probe::segmentation() } else { Err("as configured".into()) };
        let segments = *segmentation.as_ref().unwrap_or(&1);
        let mode = describe_mode(&segmentation, any_socket, config.socket_buffer, &listeners);
        let scope = named.as_deref().and_then(|name| if_nametoindex(name).ok()).unwrap_or(0);
        let pool = |v4: bool| {
            let wanted = listeners.iter().any(|(address, _)| address.is_ipv4() == v4);
            let address = unspecified(v4);
            // One more, for datagrams to QP1.
            let count = if wanted { config.send_sockets.max(1) + 1 } else { 0 };
            (0..count).map(|i| send_socket(address, i, config)).collect::<Result<Vec<_>, _>>()
        };
        let waiting = |error: io::Error| UdpError::Socket { what: "epoll", address: first, error };
        let later = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(|e| waiting(e.into()))?;
        let limits = SendLimits { segments, port: config.port, scope };
        Ok(UdpPort {
            info: PortInfo {
                name: "udp".into(),
                interface: named,
                mode,
                mac,
                mtu,
                max_frame,
                carries: Carries::Datagrams,
                has_trains: segments > 1,
            },
            addresses: own,
            fixed_mtu: config.mtu.is_some(),
            sender: Sender::new(pool(true)?, pool(false)?, limits),
            receiver: Receiver::new(later, listeners, mac, config.port, max_frame, member.clone())
                .map_err(|e| waiting(e.into()))?,
            member,
            config: config.clone(),
            namespace: NetNs::current().map_err(|e| waiting(io::Error::other(e)))?,
            memberships: Vec::new(),
        })
    }
}

/// Returns the longest frame, in bytes, on a link of that MTU.
pub(super) fn max_frame(mtu: usize) -> usize {
    mtu.min(MAX_PACKET) + ETHERNET
}

/// Makes listening sockets that share the port with other processes.
fn share(config: &UdpConfig) -> Result<(Vec<(IpAddr, OwnedFd)>, Member), UdpError> {
    let make = |is_first| {
        if is_first {
            // Fails if a socket without a member is bound (in a child of an ended process, for instance): it would
            // shift all places of the group.
            listen_on_all(&UdpConfig { shared: false, ..config.clone() })?;
        }
        listen_on_all(config)
    };
    let group = GroupId { port: config.port, interface: None };
    let joined = Member::join(&group, &make).map_err(|refused| match refused {
        Refused::Join(error) => error.into(),
        Refused::Sockets(error) => error,
    })?;
    for (address, socket) in &joined.sockets {
        let (level, name) = if address.is_ipv4() {
            (libc::IPPROTO_IP, libc::IP_MULTICAST_ALL)
        } else {
            (libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_ALL)
        };
        // Receive nothing from multicast groups that another process joined.
        sys::set_int(socket.as_fd(), level, name, 0).map_err(|error| UdpError::Socket {
            what: "MULTICAST_ALL=0",
            address: *address,
            error,
        })?;
        // An earlier owner of the socket may have shrunk its buffer.
        sys::enlarge(socket.as_fd(), libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, config.socket_buffer);
    }
    Ok((joined.sockets, joined.member))
}

/// Makes one listening socket per address, or one per family that this host has.
fn listen_on_all(config: &UdpConfig) -> Result<Vec<(IpAddr, OwnedFd)>, UdpError> {
    if !config.addresses.is_empty() {
        return config.addresses.iter().map(|a| Ok((*a, listen_socket(*a, config)?))).collect();
    }
    let mut listeners = Vec::new();
    let mut missing = None;
    for address in [unspecified(true), unspecified(false)] {
        match listen_socket(address, config) {
            Ok(socket) => listeners.push((address, socket)),
            Err(UdpError::Socket { error, .. }) if error.raw_os_error() == Some(libc::EAFNOSUPPORT) => {
                missing = Some(error);
            }
            // IPv6 disabled by sysctl: the family exists, its unspecified address does not.
            Err(UdpError::NoSuchAddress { .. }) if address.is_ipv6() => {}
            Err(other) => return Err(other),
        }
    }
    match missing {
        Some(error) if listeners.is_empty() => Err(UdpError::NoFamily(error)),
        _ => Ok(listeners),
    }
}

fn unspecified(v4: bool) -> IpAddr {
    if v4 { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() }
}

pub(super) fn listen_socket(address: IpAddr, config: &UdpConfig) -> Result<OwnedFd, UdpError> {
    let socket = listening_socket(address, config)?;
    let fd = socket.as_fd();
    let set = |what, level, name| {
        sys::set_int(fd, level, name, 1).map_err(|error| UdpError::Socket { what, address, error })
    };
    if address.is_ipv4() {
        set("IP_PKTINFO", libc::IPPROTO_IP, libc::IP_PKTINFO)?;
        set("IP_RECVTOS", libc::IPPROTO_IP, libc::IP_RECVTOS)?;
    } else {
        set("IPV6_RECVPKTINFO", libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO)?;
        set("IPV6_RECVTCLASS", libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS)?;
        set("UDP_NO_CHECK6_RX", libc::SOL_UDP, libc::UDP_NO_CHECK6_RX)?;
    }
    set("SO_RXQ_OVFL", libc::SOL_SOCKET, libc::SO_RXQ_OVFL)?;
    if config.gso {
        // Linux before 5.0 has no UDP_GRO; datagrams then arrive one by one.
        let _ = sys::set_int(fd, libc::SOL_UDP, libc::UDP_GRO, 1);
    }
    sys::enlarge(fd, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, config.socket_buffer);
    Ok(socket)
}

/// Makes a socket on the configured port.
fn listening_socket(address: IpAddr, config: &UdpConfig) -> Result<OwnedFd, UdpError> {
    let port = config.port;
    let in_use = |owner| UdpError::InUse { address, port, owner };
    owner::bound(port, || bound_socket(address, port, config.shared), in_use)
}

/// Makes a socket for source-port entropy: bound to a free port of the range, unconnected, with DF always set and
/// learned path MTUs ignored.
fn send_socket(address: IpAddr, i: usize, config: &UdpConfig) -> Result<SendSocket, UdpError> {
    let range = u32::from(SOURCE_PORTS.end() - SOURCE_PORTS.start()) + 1;
    // Start elsewhere for each process and socket, so that the ports of one host differ.
    let start = std::process::id().wrapping_mul(40_503).wrapping_add(i as u32 * 4_099);
    for attempt in 0..range {
        let port = SOURCE_PORTS.start() + (start.wrapping_add(attempt * 7) % range) as u16;
        // Skip a port that is taken.
        let Some(socket) = bound_socket(address, port, false)? else { continue };
        let fd = socket.as_fd();
        let set = |what, level, name, value| {
            sys::set_int(fd, level, name, value).map_err(|error| UdpError::Socket { what, address, error })
        };
        // The loopback layer above returns our own multicast. The kernel loops it only for other processes that share
        // the port.
        let round = i32::from(config.shared);
        if address.is_ipv4() {
            set("MTU_DISCOVER=PROBE", libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE)?;
            set("MULTICAST_LOOP", libc::IPPROTO_IP, libc::IP_MULTICAST_LOOP, round)?;
            set("MULTICAST_TTL", libc::IPPROTO_IP, libc::IP_MULTICAST_TTL, HOP_LIMIT.into())?;
        } else {
            set(
                "MTU_DISCOVER=PROBE",
                libc::IPPROTO_IPV6,
                libc::IPV6_MTU_DISCOVER,
                libc::IPV6_PMTUDISC_PROBE,
            )?;
            set("MULTICAST_LOOP", libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_LOOP, round)?;
            // Defaults would be hop limit 1 for groups and an automatic flow label, not what the NIC's header says.
            set("MULTICAST_HOPS", libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_HOPS, HOP_LIMIT.into())?;
            set("AUTOFLOWLABEL=0", libc::IPPROTO_IPV6, libc::IPV6_AUTOFLOWLABEL, 0)?;
        }
        sys::enlarge(fd, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, config.socket_buffer);
        return Ok(SendSocket { socket, port });
    }
    Err(UdpError::NoSourcePort(address))
}

/// Makes a socket on that port. `None` if the port is taken.
fn bound_socket(address: IpAddr, port: u16, shared: bool) -> Result<Option<OwnedFd>, UdpError> {
    let refused = |what| move |error: nix::Error| UdpError::Socket { what, address, error: error.into() };
    let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let socket = socket(family, SockType::Datagram, flags, None).map_err(refused("socket"))?;
    if shared {
        setsockopt(&socket, sockopt::ReusePort, &true).map_err(refused("SO_REUSEPORT"))?;
    }
    let bound = match address {
        IpAddr::V4(a) => bind_to(&socket, &SockaddrIn::from(std::net::SocketAddrV4::new(a, port))),
        IpAddr::V6(a) => {
            sys::set_int(socket.as_fd(), libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1)
                .map_err(|error| UdpError::Socket { what: "IPV6_V6ONLY", address, error })?;
            let scope = if a.is_unicast_link_local() { scope_of(address) } else { 0 };
            bind_to(&socket, &SockaddrIn6::from(std::net::SocketAddrV6::new(a, port, 0, scope)))
        }
    };
    match bound {
        Ok(()) => Ok(Some(socket)),
        Err(nix::Error::EADDRINUSE) => Ok(None),
        Err(nix::Error::EADDRNOTAVAIL) => Err(UdpError::NoSuchAddress { address }),
        Err(error) => Err(refused("bind")(error)),
    }
}

fn bind_to(socket: &OwnedFd, address: &dyn SockaddrLike) -> nix::Result<()> {
    bind(socket.as_raw_fd(), address)
}

fn describe_mode(
    segmentation: &Result<usize, String>,
    listener: BorrowedFd<'_>,
    wanted: usize,
    listeners: &[(IpAddr, OwnedFd)],
) -> String {
    let mut mode = match segmentation {
        Ok(segments) => format!("sockets, up to {segments} datagrams per send"),
        Err(reason) => format!("sockets, one datagram per send: {reason}"),
    };
    if listeners.iter().any(|(address, _)| address.is_ipv4()) {
        let checked = probe::identification(*segmentation.as_ref().unwrap_or(&1));
        mode += &format!("; {checked}");
    }
    // The kernel reports twice the requested size (socket(7)).
    let got = getsockopt(&listener, sockopt::RcvBuf).unwrap_or(0) / 2;
    mode += &format!("; receive buffer {} KiB", got / 1024);
    if got < wanted {
        mode += " (raise net.core.rmem_max for more)";
    }
    mode
}

/// An address and the interface that has it.
struct Interface {
    name: String,
    address: IpAddr,
    up: bool,
    loopback: bool,
}

fn interfaces() -> Vec<Interface> {
    let Ok(all) = getifaddrs() else { return Vec::new() };
    all.filter_map(|entry| {
        let address = entry.address?;
        let v4 = address.as_sockaddr_in().map(|a| IpAddr::V4(a.ip()));
        let v6 = address.as_sockaddr_in6().map(|a| IpAddr::V6(a.ip()));
        Some(Interface {
            address: v4.or(v6)?,
            up: entry.flags.contains(InterfaceFlags::IFF_UP),
            loopback: entry.flags.contains(InterfaceFlags::IFF_LOOPBACK),
            name: entry.interface_name,
        })
    })
    .collect()
}

fn scope_of(address: IpAddr) -> u32 {
    let name = interface_of(&[address], &interfaces());
    name.and_then(|name| if_nametoindex(&name[..]).ok()).unwrap_or(0)
}

fn interface_of(addresses: &[IpAddr], interfaces: &[Interface]) -> Option<String> {
    let first = addresses.first()?;
    // 127.0.0.0/8 as a whole belongs to lo, listed or not.
    let has = |i: &&Interface| i.address == *first || (first.is_loopback() && i.loopback);
    interfaces.iter().find(has).map(|i| i.name.clone())
}

/// Returns the configured addresses, or the addresses of the interfaces that are up, loopback last.
fn own_addresses(config: &UdpConfig, interfaces: &[Interface]) -> Vec<IpAddr> {
    if !config.addresses.is_empty() {
        return config.addresses.clone();
    }
    let named = |i: &&Interface| i.up && config.interface.as_ref().is_none_or(|name| *name == i.name);
    let mut own: Vec<_> = interfaces.iter().filter(named).collect();
    own.sort_by_key(|i| i.loopback);
    own.into_iter().map(|i| i.address).collect()
}
