//! Opens the sockets of a packet port.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use nix::net::if_::if_nametoindex;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use nix::sys::utsname::uname;

use super::PacketPort;
use super::error::PacketError;
use super::filter::Source;
use super::ring::{Ring, Size};
use super::rx::Receiver;
use super::shared::{self, Filters};
use super::sink::sinks;
use super::tx::Sender;
use crate::group::{StrayInbox, Units};
use crate::netdev::{Interface, NetNs};
use crate::udp::sys::{enlarge, set_int};
use crate::{Carries, PortInfo};
use roxie_base::frame::ETHERNET_HEADER;

/// Send buffer to ask for, in bytes: frames that the link has not taken yet.
const SEND_BUFFER: usize = 16 << 20;
/// `ETH_P_ALL`: frames of all protocols, before the kernel's own receivers.
const ALL: u16 = 3;
/// The receive rings: a slot holds a train of 64 KiB, or one frame. A block of 1 MiB has 15 slots. First the ring of a
/// port for all frames, then the socket of trains, and the socket for other processes of this host.
pub(super) const RING: Size = Size { slots: 480, slot: 68 << 10 };
const TRAIN_RING: Size = Size { slots: 240, ..RING };
const LOOPBACK_RING: Size = Size { slots: 60, ..RING };
/// The ring of lone frames. Path MTU 4096 makes frames of 4.3 KB.
const LONE_RING: Size = Size { slots: 2048, slot: 8 << 10 };
/// Longest frame in it, in bytes: the kernel's headers take 96 bytes of a slot.
const LONGEST_LONE: u32 = (8 << 10) - 96;
/// The ring of management datagrams: 10 ms of a flood of 200,000 a second. A slot holds the kernel's headers, 96 bytes,
/// and the longest.
const MANAGEMENT_RING: Size = Size { slots: 2048, slot: 512 };

/// Ethernet header and one VLAN tag, which the MTU does not count.
pub(super) const L2_HEADER: usize = ETHERNET_HEADER + 4;
/// Longest message with a frame that another process hands over: a byte of flags, a tag, and the frame.
const STRAY_BYTES: usize = 1 + 2 + ETHERNET_HEADER + 65_535;

/// The first version of Linux with `GSO_UDP_L4` in packet sockets.
const FIRST_KERNEL: (u32, u32) = (6, 2);

/// How to open an interface through packet sockets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketConfig {
    /// The interface, in the namespace of the thread that opens it.
    pub interface: String,
    /// Destination addresses to take. Empty: the interface's, and later changes.
    pub addresses: Vec<IpAddr>,
    /// Share the interface with other processes of this user that do so too ([`group`](crate::group)). Ignored if
    /// addresses are chosen.
    pub shared: bool,
}

impl PacketConfig {
    /// Returns the default configuration: all addresses of `interface`, shared with other processes.
    pub fn new(interface: impl Into<String>) -> PacketConfig {
        PacketConfig { interface: interface.into(), addresses: Vec::new(), shared: true }
    }
}

impl PacketPort {
    /// Opens an interface of the calling thread's namespace.
    ///
    /// # Errors
    /// [`PacketError`] says what failed and what to do about it.
    pub fn open(config: &PacketConfig) -> Result<PacketPort, PacketError> {
        let interface = Interface::by_name(&config.interface)?;
        check_kernel()?;
        let shared = config.shared && config.addresses.is_empty();
        let (sinks, member) = if shared {
            (Vec::new(), Some(shared::join(&interface.name)?))
        } else {
            (sinks(&interface.name, false)?, None)
        };
        // Other processes of this host are reached over the loopback interface. Without one they are not.
        let loopback = member.as_ref().and_then(|_| if_nametoindex("lo").ok());
        let mut rings = vec![ring(LONE_RING)?, ring(TRAIN_RING)?, ring(MANAGEMENT_RING)?];
        let own = [Source::Lone(LONGEST_LONE), Source::Trains(LONGEST_LONE), Source::Management];
        let mut links: Vec<_> = own.into_iter().map(|source| (source, interface.index)).collect();
        if let Some(index) = loopback {
            rings.push(ring(LOOPBACK_RING)?);
            links.push((Source::Loopback, index));
        }
        let filters = filters(&rings, &links, member.as_ref().map(|member| Arc::clone(member.units())))
            .map_err(PacketError::of("filter of the packet socket"))?;
        for (ring, (_, index)) in rings.iter().zip(&links) {
            bind_packet(ring.fd(), *index, ALL)?;
        }
        let socket = packet_socket()?;
        set_int(socket.as_fd(), libc::SOL_PACKET, libc::PACKET_VNET_HDR, 1)
            .map_err(PacketError::of("PACKET_VNET_HDR"))?;
        // No PACKET_QDISC_BYPASS: with it the kernel drops trains that the interface cannot cut.
        enlarge(socket.as_fd(), libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, SEND_BUFFER);
        bind_packet(socket.as_fd(), interface.index, 0)?;
        let max_frame = interface.mtu + L2_HEADER;
        let own = interface.addresses.iter().map(|a| a.ip).collect();
        let addresses = if config.addresses.is_empty() { own } else { config.addresses.clone() };
        Ok(PacketPort {
            info: PortInfo {
                name: "packet".into(),
                interface: Some(interface.name),
                mode: "packet sockets, trains of datagrams, receive ring".into(),
                mac: interface.mac,
                mtu: interface.mtu,
                max_frame,
                carries: Carries::RoceFrames,
                has_trains: true,
            },
            sender: Sender::new(socket, interface.mac, loopback),
            receiver: Receiver::new(
                rings,
                addresses,
                max_frame,
                member.clone().map(|member| StrayInbox::new(member, STRAY_BYTES)),
            ),
            filters,
            member,
            _sinks: sinks,
            namespace: NetNs::current()?,
            memberships: Vec::new(),
        })
    }
}

/// Checks whether a packet port is possible here, apart from its interface: opens a packet socket for a moment.
///
/// # Errors
/// [`PacketError`] says what prevents it.
pub fn check() -> Result<(), PacketError> {
    check_kernel()?;
    packet_socket().map(drop)
}

/// Refuses kernels before [`FIRST_KERNEL`].
fn check_kernel() -> Result<(), PacketError> {
    let name = uname().map_err(|e| PacketError::of("uname")(e.into()))?;
    let release = name.release().to_string_lossy();
    if version(&release).is_some_and(|version| version < FIRST_KERNEL) {
        return Err(PacketError::OldKernel { release: release.into_owned() });
    }
    Ok(())
}

/// Returns major and minor version of a kernel's release, such as `6.1.0-56-amd64`.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

pub(super) fn packet_socket() -> Result<OwnedFd, PacketError> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    // Protocol 0: receives nothing before it is bound.
    socket(AddressFamily::Packet, SockType::Raw, flags, None)
        .map_err(|e| PacketError::of("packet socket")(e.into()))
}

/// Makes a socket that receives, with its ring.
pub(super) fn ring(size: Size) -> Result<Ring, PacketError> {
    let socket = packet_socket()?;
    for (name, option) in
        [("PACKET_VNET_HDR", libc::PACKET_VNET_HDR), ("PACKET_IGNORE_OUTGOING", libc::PACKET_IGNORE_OUTGOING)]
    {
        set_int(socket.as_fd(), libc::SOL_PACKET, option, 1).map_err(PacketError::of(name))?;
    }
    Ring::new(socket, size).map_err(PacketError::of("PACKET_RX_RING"))
}

/// Attaches filters to the sockets of rings.
fn filters(rings: &[Ring], links: &[(Source, u32)], units: Option<Arc<Units>>) -> io::Result<Arc<Filters>> {
    let sockets = rings.iter().zip(links);
    let sockets = sockets.map(|(ring, (source, _))| Ok((*source, ring.fd().try_clone_to_owned()?)));
    Filters::attach(sockets.collect::<io::Result<_>>()?, units)
}

pub(super) fn bind_packet(socket: BorrowedFd<'_>, index: u32, protocol: u16) -> Result<(), PacketError> {
    // struct sockaddr_ll: family, protocol in network order, interface index; the rest is for sending.
    let mut address = [0_u8; size_of::<libc::sockaddr_ll>()];
    address[..2].copy_from_slice(&(libc::AF_PACKET as u16).to_ne_bytes());
    address[2..4].copy_from_slice(&protocol.to_be_bytes());
    address[4..8].copy_from_slice(&index.to_ne_bytes());
    crate::udp::sys::bind_bytes(socket, &address).map_err(PacketError::of("bind of the packet socket"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn release_is_parsed() {
        for (release, is_old) in [
            ("6.1.0-56-amd64", true),
            ("5.15.0", true),
            ("6.2.0", false),
            ("6.18-rc1", false),
            ("7.2.1", false),
        ] {
            assert_eq!(version(release).expect("a version") < FIRST_KERNEL, is_old, "{release}");
        }
        assert_eq!(version("unknown"), None);
    }
}
