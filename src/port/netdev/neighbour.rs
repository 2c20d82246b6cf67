//! Resolves an IP address to the station address that its frames must carry.
//!
//! The kernel has the routes and the neighbour table, and resolves (ARP, neighbour discovery). The kernel does not see
//! frames sent through AF_XDP, so these keep no entry alive. A neighbour is therefore entered as *managed*
//! (`NTF_EXT_MANAGED`, Linux 5.16): the kernel resolves it immediately and refreshes it from then on.
//! [`Neighbours`](super::Neighbours) records the entries it requested, follows them, and removes them in the end.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

use netlink_packet_core::NLM_F_CREATE;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourExtFlags, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteMessage, RouteMetric, RouteType, RouteVia,
};

use super::Interface;
use super::link::family;
use super::netlink::Netlink;

/// The discard service (RFC 863).
pub(super) const DISCARD: u16 = 9;
/// The broadcast station address.
pub(super) const BROADCAST_MAC: [u8; 6] = [0xff; 6];

/// The addresses and the traffic class by which the kernel selects a route: a rule may concern each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteKey {
    /// The address that packets come from.
    pub source: IpAddr,
    /// The address that they go to.
    pub destination: IpAddr,
    /// Traffic class, or type of service, without the two bits of ECN.
    pub traffic_class: u8,
}

impl RouteKey {
    /// Returns the key for packets of a traffic class.
    pub fn new(source: IpAddr, destination: IpAddr, traffic_class: u8) -> RouteKey {
        RouteKey { source, destination, traffic_class: traffic_class & !3 }
    }
}

/// Why an address was not resolved.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NeighbourError {
    /// No route.
    #[error(
        "no route to {destination} through {interface}: {reason} (`ip route get {destination} from {source_address} oif {interface}`)"
    )]
    NoRoute {
        /// The address to resolve.
        destination: IpAddr,
        /// The address that packets come from.
        source_address: IpAddr,
        /// The interface that the request was for.
        interface: String,
        /// The kernel's error, as text.
        reason: String,
    },
    /// The neighbour did not answer.
    #[error(
        "no station on {interface} answers for {next_hop}{}: {waited_ms} ms and the neighbour entry is \
         {state}; is the host up, on the same network, and not filtering ARP or neighbour discovery?",
        by_way(destination, next_hop)
    )]
    Unanswered {
        /// The address to resolve.
        destination: IpAddr,
        /// The gateway to it, or the address itself.
        next_hop: IpAddr,
        /// The interface that the request was for.
        interface: String,
        /// Time waited, in milliseconds.
        waited_ms: u128,
        /// The state of the kernel's entry.
        state: String,
    },
    /// The link is down, so no neighbour can answer.
    #[error(
        "{interface} is down, so {destination} cannot be resolved: `ip link set {interface} up`, and check the cable"
    )]
    LinkDown {
        /// The interface that the neighbour would be on.
        interface: String,
        /// The address to resolve.
        destination: IpAddr,
    },
    /// The kernel refused a request.
    #[error("{action}: {source}")]
    Kernel {
        /// The action that failed, as a sentence without its subject.
        action: String,
        /// The kernel's error, as an errno.
        source: io::Error,
    },
}

fn by_way(destination: &IpAddr, next_hop: &IpAddr) -> String {
    if destination == next_hop { String::new() } else { format!(" (the gateway to {destination})") }
}

/// Returns the station address of a multicast group, or of limited broadcast.
pub(super) fn multicast(destination: IpAddr) -> Option<[u8; 6]> {
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

/// Result of routing.
pub(super) enum Route {
    /// The destination is this host.
    Own,
    /// Broadcast on the link.
    Broadcast,
    /// The next hop is this neighbour.
    Via(IpAddr),
}

pub(super) fn kernel(action: String, source: io::Error) -> NeighbourError {
    NeighbourError::Kernel { action, source }
}

/// Returns the next hop through `interface`.
pub(super) fn route(
    netlink: &mut Netlink,
    interface: &Interface,
    key: RouteKey,
) -> Result<Route, NeighbourError> {
    let RouteKey { source: source_address, destination, .. } = key;
    let name = || interface.name.clone();
    let refused = |reason| NeighbourError::NoRoute { destination, source_address, interface: name(), reason };
    let route = find_route(netlink, key, Some(interface.index)).map_err(|e| refused(e.to_string()))?;
    let route = route.ok_or_else(|| refused("the kernel's answer has no route".to_owned()))?;
    match route.header.kind {
        RouteType::Local => Ok(Route::Own),
        RouteType::Broadcast => Ok(Route::Broadcast),
        RouteType::Unicast | RouteType::Anycast => {
            Ok(Route::Via(route.attributes.iter().find_map(gateway).unwrap_or(destination)))
        }
        other => Err(refused(format!("the route is of type {other:?}"))),
    }
}

/// Returns the hop limit in the metrics of the route through `interface`. `None` if the route has none, or there is no
/// route.
pub(super) fn hop_limit_of_route(netlink: &mut Netlink, interface: &Interface, key: RouteKey) -> Option<u8> {
    let route = find_route(netlink, key, Some(interface.index)).ok()??;
    let metrics = route.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Metrics(metrics) => Some(metrics),
        _ => None,
    })?;
    let hops = metrics.iter().find_map(|metric| match metric {
        RouteMetric::Hoplimit(hops) => Some(*hops),
        _ => None,
    })?;
    u8::try_from(hops).ok().filter(|hops| *hops != 0)
}

/// Returns the kernel's route to a host, through `link` if given. `None` if the answer has none.
fn find_route(netlink: &mut Netlink, key: RouteKey, link: Option<u32>) -> io::Result<Option<RouteMessage>> {
    let message = route_message(key.destination, key.traffic_class, link);
    let mut from_source = message.clone();
    from_source.header.source_prefix_length = message.header.destination_prefix_length;
    from_source.attributes.push(RouteAttribute::Source(key.source.into()));
    match request_route(netlink, from_source) {
        // IPv4 has no route from the address of another host, which a user may choose as GID.
        Err(_) if !is_own(netlink, key.source) => request_route(netlink, message),
        found => found,
    }
}

/// True if packets to an address are for this host.
fn is_own(netlink: &mut Netlink, address: IpAddr) -> bool {
    let reply = request_route(netlink, route_message(address, 0, None));
    reply.is_ok_and(|route| route.is_some_and(|route| route.header.kind == RouteType::Local))
}

fn route_message(destination: IpAddr, traffic_class: u8, link: Option<u32>) -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header.address_family = family(destination);
    message.header.tos = traffic_class;
    message.header.destination_prefix_length = if destination.is_ipv4() { 32 } else { 128 };
    message.attributes.push(RouteAttribute::Destination(destination.into()));
    message.attributes.extend(link.map(RouteAttribute::Oif));
    message
}

fn request_route(netlink: &mut Netlink, message: RouteMessage) -> io::Result<Option<RouteMessage>> {
    let answers = netlink.request(RouteNetlinkMessage::GetRoute(message), 0)?;
    Ok(answers.into_iter().find_map(|answer| match answer {
        RouteNetlinkMessage::NewRoute(route) => Some(route),
        _ => None,
    }))
}

/// Returns the gateway in a route's attribute, which may be of the other address family (RFC 5549).
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
pub(super) struct Entry {
    pub(super) state: NeighbourState,
    /// The station address, if it may be used.
    pub(super) mac: Option<[u8; 6]>,
    /// True if managed, by [`request_resolution`] or by another process.
    pub(super) managed: bool,
}

impl Entry {
    /// True if the entry is permanent or needs no resolution.
    pub(super) fn is_fixed(&self) -> bool {
        matches!(self.state, NeighbourState::Permanent | NeighbourState::Noarp)
    }
}

fn entry_for(link: u32, ip: IpAddr) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    message.header.family = family(ip);
    message.header.ifindex = link;
    message.attributes.push(NeighbourAttribute::Destination(NeighbourAddress::from(ip)));
    message
}

/// Looks up a neighbour. A missing entry is returned in state `none`.
pub(super) fn lookup(
    netlink: &mut Netlink,
    interface: &Interface,
    ip: IpAddr,
) -> Result<Entry, NeighbourError> {
    let action = || format!("look up neighbour {ip} on {}", interface.name);
    lookup_on(netlink, interface.index, ip).map_err(|e| kernel(action(), e))
}

/// Looks up a neighbour on the link of that index.
pub(super) fn lookup_on(netlink: &mut Netlink, link: u32, ip: IpAddr) -> io::Result<Entry> {
    let mut entry = Entry { state: NeighbourState::None, mac: None, managed: false };
    let answers = match netlink.request(RouteNetlinkMessage::GetNeighbour(entry_for(link, ip)), 0) {
        Ok(answers) => answers,
        Err(e) if e.raw_os_error() == Some(libc::ENOENT) => return Ok(entry),
        Err(e) => return Err(e),
    };
    for answer in answers {
        let RouteNetlinkMessage::NewNeighbour(neighbour) = answer else { continue };
        entry.state = neighbour.header.state;
        let usable = matches!(
            entry.state,
            NeighbourState::Reachable
                | NeighbourState::Stale
                | NeighbourState::Delay
                | NeighbourState::Probe
                | NeighbourState::Permanent
                | NeighbourState::Noarp
        );
        for attribute in neighbour.attributes {
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

/// Has the kernel resolve a neighbour: managed, else once. False if it does neither.
pub(super) fn request_resolution(
    netlink: &mut Netlink,
    interface: &Interface,
    ip: IpAddr,
) -> Result<bool, NeighbourError> {
    let refused = |e| kernel(format!("ask for neighbour {ip} on {}", interface.name), e);
    let mut message = entry_for(interface.index, ip);
    message.header.flags = NeighbourFlags::Use;
    message.attributes.push(NeighbourAttribute::ExtFlags(NeighbourExtFlags::Managed));
    Ok(enter(netlink, message).map_err(refused)?
        || use_once(netlink, interface.index, ip).map_err(refused)?)
}

/// Enters a neighbour. False if the kernel refuses.
fn enter(netlink: &mut Netlink, message: NeighbourMessage) -> io::Result<bool> {
    match netlink.request(RouteNetlinkMessage::NewNeighbour(message), NLM_F_CREATE) {
        Ok(_) => Ok(true),
        // Linux before 5.16 does not know the attribute, and without CAP_NET_ADMIN neither request is allowed.
        Err(e) if matches!(e.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP | libc::EPERM)) => {
            Ok(false)
        }
        Err(e) => Err(e),
    }
}

/// Has the kernel resolve a neighbour once. False without the privilege.
pub(super) fn use_once(netlink: &mut Netlink, link: u32, ip: IpAddr) -> io::Result<bool> {
    let mut message = entry_for(link, ip);
    message.header.flags = NeighbourFlags::Use;
    enter(netlink, message)
}

/// Returns the link, and the neighbour there, by which a host is reached. `None` if there is no unicast route.
pub(super) fn path_to(netlink: &mut Netlink, key: RouteKey) -> io::Result<Option<(u32, IpAddr)>> {
    let kernel_route = find_route(netlink, key, None)?;
    Ok(kernel_route.filter(|route| route.header.kind == RouteType::Unicast).and_then(|route| {
        let link = route.attributes.iter().find_map(|attribute| match attribute {
            RouteAttribute::Oif(link) => Some(*link),
            _ => None,
        })?;
        Some((link, route.attributes.iter().find_map(gateway).unwrap_or(key.destination)))
    }))
}

/// Deletes a managed neighbour. An entry that is missing, or no longer managed, is no error.
pub(super) fn release(
    netlink: &mut Netlink,
    interface: &Interface,
    ip: IpAddr,
) -> Result<(), NeighbourError> {
    if !lookup(netlink, interface, ip)?.managed {
        return Ok(());
    }
    match netlink.request(RouteNetlinkMessage::DelNeighbour(entry_for(interface.index, ip)), 0) {
        Err(e) if e.raw_os_error() != Some(libc::ENOENT) => {
            Err(kernel(format!("release neighbour {ip} on {}", interface.name), e))
        }
        _ => Ok(()),
    }
}

/// Returns the neighbour on link `index` that a kernel message is about.
pub(super) fn subject(message: &RouteNetlinkMessage, index: u32) -> Option<IpAddr> {
    let (RouteNetlinkMessage::NewNeighbour(entry) | RouteNetlinkMessage::DelNeighbour(entry)) = message
    else {
        return None;
    };
    if entry.header.ifindex != index {
        return None;
    }
    entry.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::Destination(NeighbourAddress::Inet(ip)) => Some((*ip).into()),
        NeighbourAttribute::Destination(NeighbourAddress::Inet6(ip)) => Some((*ip).into()),
        _ => None,
    })
}

/// Opens a socket for datagrams to `destination` from `source`, or from any address if the kernel does not let them
/// come from there.
pub(super) fn socket_from(source: IpAddr, destination: IpAddr) -> io::Result<UdpSocket> {
    let any: IpAddr = match destination {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    // The gateway may be of the other family.
    let source = if source.is_ipv4() == destination.is_ipv4() { source } else { any };
    UdpSocket::bind((source, 0)).or_else(|_| UdpSocket::bind((any, 0)))
}

/// Makes the kernel resolve a neighbour by an empty datagram from `source` to its discard port.
pub(super) fn nudge(interface: &Interface, source: IpAddr, ip: IpAddr) -> io::Result<()> {
    let socket = socket_from(source, ip)?;
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
        // The 24th bit from the right is not copied.
        assert_eq!(mac("239.129.2.3"), Some([1, 0, 0x5e, 1, 2, 3]));
        assert_eq!(mac("ff02::1:ff00:1"), Some([0x33, 0x33, 0xff, 0, 0, 1]));
        assert_eq!(mac("255.255.255.255"), Some(BROADCAST_MAC));
        assert_eq!(mac("192.0.2.1"), None);
    }
}
