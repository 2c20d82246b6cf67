//! From an IP address to the station address that its frames must carry.
//!
//! The kernel has routes and a neighbour table and knows how to ask (ARP, neighbour discovery), so it does
//! the work. But frames that leave through AF_XDP are not seen by it and keep no entry alive: a neighbour is
//! entered as *managed* (`NTF_EXT_MANAGED`, Linux 5.16), which makes the kernel resolve it at once and
//! refresh it from then on. [`release`] takes that back.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::thread::sleep;
use std::time::{Duration, Instant};

use netlink_packet_core::NLM_F_CREATE;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourExtFlags, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteType, RouteVia};

use super::Interface;
use super::link::family;
use super::netlink::Netlink;

/// How often the table is looked at while the kernel asks.
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// The discard service (RFC 863).
const DISCARD: u16 = 9;
/// The station address of everybody.
const BROADCAST_MAC: [u8; 6] = [0xff; 6];

/// Why an address was not resolved.
#[derive(Debug, thiserror::Error)]
pub enum NeighbourError {
    /// Routing does not lead there.
    #[error(
        "no route to {destination} through {interface}: {reason} (`ip route get {destination} oif {interface}`)"
    )]
    NoRoute {
        /// The address.
        destination: IpAddr,
        /// The interface.
        interface: String,
        /// The kernel's answer.
        reason: String,
    },
    /// Nobody answered.
    #[error(
        "no station on {interface} answers for {next_hop}{}: {waited_ms} ms and the neighbour entry is \
         {state}; is the host up, on the same network, and not filtering ARP or neighbour discovery?",
        by_way(destination, next_hop)
    )]
    Unanswered {
        /// The address that was asked for.
        destination: IpAddr,
        /// Its gateway, or itself.
        next_hop: IpAddr,
        /// The interface.
        interface: String,
        /// How long we waited.
        waited_ms: u128,
        /// The state of the kernel's entry.
        state: String,
    },
    /// Without carrier nobody can answer.
    #[error(
        "{interface} is down, so {destination} cannot be resolved: `ip link set {interface} up`, and check the cable"
    )]
    LinkDown {
        /// The interface.
        interface: String,
        /// The address.
        destination: IpAddr,
    },
    /// The kernel refused a request.
    #[error("{action}: {source}")]
    Kernel {
        /// What was tried.
        action: String,
        /// The kernel's answer.
        source: io::Error,
    },
}

fn by_way(destination: &IpAddr, next_hop: &IpAddr) -> String {
    if destination == next_hop { String::new() } else { format!(" (the gateway to {destination})") }
}

/// The station address for frames from `interface` to `destination`, with the kernel keeping it fresh.
///
/// An address of the interface is its own station address, multicast maps by rule (RFC 1112 6.4, RFC 2464 7),
/// broadcast is broadcast, and what lies behind a gateway is the gateway's. Blocks up to `timeout`; a known
/// neighbour is answered at once. To be called in the namespace of the interface.
///
/// # Errors
/// [`NeighbourError`] tells a missing route from a silent neighbour.
pub fn resolve(
    interface: &Interface,
    destination: IpAddr,
    timeout: Duration,
) -> Result<[u8; 6], NeighbourError> {
    if interface.has_address(destination) || destination.is_loopback() {
        return Ok(interface.mac);
    }
    if let Some(mac) = multicast(destination) {
        return Ok(mac);
    }
    let mut netlink = open(interface)?;
    let next_hop = match route(&mut netlink, interface, destination)? {
        Route::Own => return Ok(interface.mac),
        Route::Broadcast => return Ok(BROADCAST_MAC),
        Route::Via(next_hop) => next_hop,
    };
    let start = Instant::now();
    let mut entry = look(&mut netlink, interface, next_hop)?;
    if entry.state != NeighbourState::Permanent && entry.state != NeighbourState::Noarp {
        if !interface.running && entry.mac.is_none() {
            return Err(NeighbourError::LinkDown { interface: interface.name.clone(), destination });
        }
        ask(&mut netlink, interface, next_hop)?;
    }
    loop {
        if let Some(mac) = entry.mac {
            return Ok(mac);
        }
        if start.elapsed() >= timeout {
            return Err(NeighbourError::Unanswered {
                destination,
                next_hop,
                interface: interface.name.clone(),
                waited_ms: start.elapsed().as_millis(),
                state: entry.state.to_string(),
            });
        }
        sleep(LOOK_EVERY);
        entry = look(&mut netlink, interface, next_hop)?;
    }
}

/// Lets the kernel forget the neighbour that [`resolve`] had it keep, unless it is permanent. A neighbour
/// that is not there is no error.
///
/// # Errors
/// As [`resolve`].
pub fn release(interface: &Interface, destination: IpAddr) -> Result<(), NeighbourError> {
    if interface.has_address(destination) || multicast(destination).is_some() {
        return Ok(());
    }
    let mut netlink = open(interface)?;
    let Route::Via(next_hop) = route(&mut netlink, interface, destination)? else { return Ok(()) };
    if !look(&mut netlink, interface, next_hop)?.managed {
        return Ok(());
    }
    let message = RouteNetlinkMessage::DelNeighbour(entry_for(interface, next_hop));
    match netlink.request(message, 0) {
        Err(e) if e.raw_os_error() != Some(libc::ENOENT) => {
            Err(kernel(format!("release neighbour {next_hop} on {}", interface.name), e))
        }
        _ => Ok(()),
    }
}

/// The station address of a multicast group, or of limited broadcast.
fn multicast(destination: IpAddr) -> Option<[u8; 6]> {
    match destination {
        IpAddr::V4(ip) if ip.is_broadcast() => Some(BROADCAST_MAC),
        IpAddr::V4(ip) if ip.is_multicast() => {
            let [_, b, c, d] = ip.octets();
            Some([0x01, 0x00, 0x5e, b & 0x7f, c, d])
        }
        IpAddr::V6(ip) if ip.is_multicast() => {
            let o = ip.octets();
            Some([0x33, 0x33, o[12], o[13], o[14], o[15]])
        }
        _ => None,
    }
}

/// Where routing leads.
enum Route {
    /// To this host.
    Own,
    /// To everybody on the link.
    Broadcast,
    /// To this neighbour.
    Via(IpAddr),
}

fn open(interface: &Interface) -> Result<Netlink, NeighbourError> {
    Netlink::open().map_err(|e| kernel(format!("open a netlink socket for {}", interface.name), e))
}

fn kernel(action: String, source: io::Error) -> NeighbourError {
    NeighbourError::Kernel { action, source }
}

/// Asks routing for the next hop through `interface`.
fn route(netlink: &mut Netlink, interface: &Interface, destination: IpAddr) -> Result<Route, NeighbourError> {
    let refused =
        |reason: String| NeighbourError::NoRoute { destination, interface: interface.name.clone(), reason };
    let mut message = RouteMessage::default();
    message.header.address_family = family(destination);
    message.header.destination_prefix_length = if destination.is_ipv4() { 32 } else { 128 };
    message.attributes.push(RouteAttribute::Destination(destination.into()));
    message.attributes.push(RouteAttribute::Oif(interface.index));
    let answers =
        netlink.request(RouteNetlinkMessage::GetRoute(message), 0).map_err(|e| refused(e.to_string()))?;
    let found = answers.iter().find_map(|a| match a {
        RouteNetlinkMessage::NewRoute(route) => Some(route),
        _ => None,
    });
    let found = found.ok_or_else(|| refused("the kernel's answer has no route".to_owned()))?;
    match found.header.kind {
        RouteType::Local => Ok(Route::Own),
        RouteType::Broadcast => Ok(Route::Broadcast),
        RouteType::Unicast | RouteType::Anycast => {
            Ok(Route::Via(found.attributes.iter().find_map(gateway).unwrap_or(destination)))
        }
        other => Err(refused(format!("the route is of type {other:?}"))),
    }
}

/// The gateway in a route's attribute; it may be of the other family (RFC 5549).
fn gateway(attribute: &RouteAttribute) -> Option<IpAddr> {
    match attribute {
        RouteAttribute::Gateway(RouteAddress::Inet(ip)) | RouteAttribute::Via(RouteVia::Inet(ip)) => {
            Some((*ip).into())
        }
        RouteAttribute::Gateway(RouteAddress::Inet6(ip)) | RouteAttribute::Via(RouteVia::Inet6(ip)) => {
            Some((*ip).into())
        }
        _ => None,
    }
}

/// The kernel's entry for a neighbour.
struct Entry {
    state: NeighbourState,
    /// The station address, if it may be used.
    mac: Option<[u8; 6]>,
    /// Entered by [`ask`], or by somebody with the same wish.
    managed: bool,
}

fn entry_for(interface: &Interface, ip: IpAddr) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    message.header.family = family(ip);
    message.header.ifindex = interface.index;
    message.attributes.push(NeighbourAttribute::Destination(NeighbourAddress::from(ip)));
    message
}

/// Looks a neighbour up; an entry that is not there is one in state `none`.
fn look(netlink: &mut Netlink, interface: &Interface, ip: IpAddr) -> Result<Entry, NeighbourError> {
    let mut entry = Entry { state: NeighbourState::None, mac: None, managed: false };
    let answers = match netlink.request(RouteNetlinkMessage::GetNeighbour(entry_for(interface, ip)), 0) {
        Ok(answers) => answers,
        Err(e) if e.raw_os_error() == Some(libc::ENOENT) => return Ok(entry),
        Err(e) => return Err(kernel(format!("look up neighbour {ip} on {}", interface.name), e)),
    };
    for answer in answers {
        let RouteNetlinkMessage::NewNeighbour(found) = answer else { continue };
        entry.state = found.header.state;
        let usable = matches!(
            entry.state,
            NeighbourState::Reachable
                | NeighbourState::Stale
                | NeighbourState::Delay
                | NeighbourState::Probe
                | NeighbourState::Permanent
                | NeighbourState::Noarp
        );
        for attribute in found.attributes {
            match attribute {
                NeighbourAttribute::LinkLayerAddress(mac) if usable => entry.mac = mac.try_into().ok(),
                NeighbourAttribute::ExtFlags(flags) => {
                    entry.managed = flags.contains(NeighbourExtFlags::Managed);
                }
                _ => {}
            }
        }
    }
    Ok(entry)
}

/// Has the kernel resolve a neighbour and keep it: managed, else used once, else by sending it something.
fn ask(netlink: &mut Netlink, interface: &Interface, ip: IpAddr) -> Result<(), NeighbourError> {
    let mut message = entry_for(interface, ip);
    message.header.flags = NeighbourFlags::Use;
    let used = message.clone();
    message.attributes.push(NeighbourAttribute::ExtFlags(NeighbourExtFlags::Managed));
    for attempt in [message, used] {
        match netlink.request(RouteNetlinkMessage::NewNeighbour(attempt), NLM_F_CREATE) {
            Ok(_) => return Ok(()),
            // Linux before 5.16 does not know the attribute, and without CAP_NET_ADMIN neither is allowed.
            Err(e) if matches!(e.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP | libc::EPERM)) => {}
            Err(e) => return Err(kernel(format!("ask for neighbour {ip} on {}", interface.name), e)),
        }
    }
    nudge(interface, ip).map_err(|e| kernel(format!("send a datagram to {ip} on {}", interface.name), e))
}

/// Makes the kernel resolve a neighbour by sending it an empty datagram to the discard port.
fn nudge(interface: &Interface, ip: IpAddr) -> io::Result<()> {
    let any: IpAddr = match ip {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    nix::sys::socket::setsockopt(
        &socket,
        nix::sys::socket::sockopt::BindToDevice,
        &interface.name.clone().into(),
    )?;
    socket.send_to(&[], (ip, DISCARD)).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn multicast_groups_map_to_station_addresses_by_rule() {
        let mac = |ip: &str| multicast(ip.parse().unwrap());
        assert_eq!(mac("224.0.0.251"), Some([1, 0, 0x5e, 0, 0, 251]));
        // The 24th bit from the right is not carried over.
        assert_eq!(mac("239.129.2.3"), Some([1, 0, 0x5e, 1, 2, 3]));
        assert_eq!(mac("ff02::1:ff00:1"), Some([0x33, 0x33, 0xff, 0, 0, 1]));
        assert_eq!(mac("255.255.255.255"), Some(BROADCAST_MAC));
        assert_eq!(mac("192.0.2.1"), None);
    }
}
