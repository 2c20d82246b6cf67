//! Makes and changes links: veth pairs, bridges, taps, their addresses, neighbours and routes.

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, AsRawFd};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage};
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use netlink_packet_route::neighbour::{NeighbourAttribute, NeighbourMessage, NeighbourState};
use netlink_packet_route::route::{
    RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use super::netlink::Netlink;
use super::{IfAddr, NetNs, NetdevError, tap};

/// Changes the links of one namespace, from any thread. Links are identified by name.
pub struct Links {
    netlink: Netlink,
    /// `None`: the namespace of the thread that called `open`; no other is entered.
    ns: Option<NetNs>,
}

impl Links {
    /// Opens a socket in the namespace of the calling thread.
    ///
    /// # Errors
    /// If no netlink socket can be opened.
    pub fn open() -> Result<Links, NetdevError> {
        let netlink = Netlink::open().map_err(|e| NetdevError::from_io("open a netlink socket", e))?;
        Ok(Links { netlink, ns: None })
    }

    /// Opens a socket in `ns`.
    ///
    /// # Errors
    /// If the namespace may not be entered.
    pub fn open_in(ns: &NetNs) -> Result<Links, NetdevError> {
        let open = || Ok((ns.run(Netlink::open)??, ns.try_clone()?));
        let (netlink, ns) = open().map_err(|e| NetdevError::from_io("enter a network namespace", e))?;
        Ok(Links { netlink, ns: Some(ns) })
    }

    /// Makes a veth pair: `name` here, `peer` in `peer_ns`, each with `queues` receive and transmit queues.
    ///
    /// # Errors
    /// If one of the names is taken, or without CAP_NET_ADMIN.
    pub fn create_veth(
        &mut self,
        name: &str,
        peer_ns: &NetNs,
        peer: &str,
        queues: u32,
    ) -> Result<(), NetdevError> {
        let counts = [LinkAttribute::NumTxQueues(queues), LinkAttribute::NumRxQueues(queues)];
        let mut remote = LinkMessage::default();
        remote.attributes.push(LinkAttribute::IfName(peer.to_owned()));
        remote.attributes.push(LinkAttribute::NetNsFd(peer_ns.as_fd().as_raw_fd()));
        remote.attributes.extend(counts.clone());
        let mut local = LinkMessage::default();
        local.attributes.push(LinkAttribute::IfName(name.to_owned()));
        local.attributes.extend(counts);
        local.attributes.push(LinkAttribute::LinkInfo(vec![
            LinkInfo::Kind(InfoKind::Veth),
            LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(remote))),
        ]));
        self.create(format!("create veth pair {name} - {peer}"), local)
    }

    /// Makes a bridge.
    ///
    /// # Errors
    /// If the name is taken, or without CAP_NET_ADMIN.
    pub fn create_bridge(&mut self, name: &str) -> Result<(), NetdevError> {
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::IfName(name.to_owned()));
        message.attributes.push(LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Bridge)]));
        self.create(format!("create bridge {name}"), message)
    }

    /// Makes a tap that exists until it is deleted, for a virtual machine to open.
    ///
    /// # Errors
    /// Without `/dev/net/tun` or CAP_NET_ADMIN, or if the name is longer than 15 bytes.
    pub fn create_tap(&mut self, name: &str) -> Result<(), NetdevError> {
        let made = match &self.ns {
            Some(ns) => ns.run(|| tap::create(name)).and_then(|made| made),
            None => tap::create(name),
        };
        made.map_err(|e| NetdevError::from_io(format!("create tap {name} through /dev/net/tun"), e))
    }

    /// Makes `name` a port of `bridge`.
    ///
    /// # Errors
    /// If one of them does not exist.
    pub fn set_bridge(&mut self, name: &str, bridge: &str) -> Result<(), NetdevError> {
        let master = self.index(bridge)?;
        self.change(name, format!("put {name} into {bridge}"), |m| {
            m.attributes.push(LinkAttribute::Controller(master));
        })
    }

    /// Sets the link administratively up or down.
    ///
    /// # Errors
    /// If there is no such link, or without CAP_NET_ADMIN. The other setters fail likewise.
    pub fn set_up(&mut self, name: &str, up: bool) -> Result<(), NetdevError> {
        let word = if up { "up" } else { "down" };
        self.change(name, format!("set {name} {word}"), |m| {
            m.header.change_mask = LinkFlags::Up;
            m.header.flags = if up { LinkFlags::Up } else { LinkFlags::empty() };
        })
    }

    /// Sets the MTU, in bytes of L3 packet.
    ///
    /// # Errors
    /// As [`Links::set_up`], and if the driver does not take that size.
    pub fn set_mtu(&mut self, name: &str, mtu: u32) -> Result<(), NetdevError> {
        self.change(name, format!("set the MTU of {name} to {mtu}"), |m| {
            m.attributes.push(LinkAttribute::Mtu(mtu));
        })
    }

    /// Sets the station address.
    ///
    /// # Errors
    /// As [`Links::set_up`].
    pub fn set_mac(&mut self, name: &str, mac: [u8; 6]) -> Result<(), NetdevError> {
        self.change(name, format!("set the station address of {name}"), |m| {
            m.attributes.push(LinkAttribute::Address(mac.to_vec()));
        })
    }

    /// Deletes a link; of a veth pair, both ends.
    ///
    /// # Errors
    /// As [`Links::set_up`].
    pub fn delete(&mut self, name: &str) -> Result<(), NetdevError> {
        let mut message = LinkMessage::default();
        message.header.index = self.index(name)?;
        self.apply(format!("delete {name}"), RouteNetlinkMessage::DelLink(message), 0)
    }

    /// Adds an address, usable immediately (no duplicate address detection).
    ///
    /// # Errors
    /// As [`Links::set_up`], and if the link has the address already.
    pub fn add_address(&mut self, name: &str, address: IfAddr) -> Result<(), NetdevError> {
        let mut message = address_message(self.index(name)?, address);
        message.attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
        self.apply(
            format!("add {address} to {name}"),
            RouteNetlinkMessage::NewAddress(message),
            NLM_F_CREATE | NLM_F_EXCL,
        )
    }

    /// Deletes an address.
    ///
    /// # Errors
    /// As [`Links::set_up`], and if the link has no such address.
    pub fn delete_address(&mut self, name: &str, address: IfAddr) -> Result<(), NetdevError> {
        let message = address_message(self.index(name)?, address);
        self.apply(format!("delete {address} from {name}"), RouteNetlinkMessage::DelAddress(message), 0)
    }

    /// Adds a permanent neighbour: no ARP or neighbour discovery for `ip` on this link.
    ///
    /// # Errors
    /// As [`Links::set_up`].
    pub fn add_neighbour(&mut self, name: &str, ip: IpAddr, mac: [u8; 6]) -> Result<(), NetdevError> {
        let mut message = NeighbourMessage::default();
        message.header.family = family(ip);
        message.header.ifindex = self.index(name)?;
        message.header.state = NeighbourState::Permanent;
        message.header.kind = RouteType::Unicast;
        message.attributes.push(NeighbourAttribute::Destination(ip.into()));
        message.attributes.push(NeighbourAttribute::LinkLayerAddress(mac.to_vec()));
        self.apply(
            format!("add neighbour {ip} to {name}"),
            RouteNetlinkMessage::NewNeighbour(message),
            NLM_F_CREATE | NLM_F_REPLACE,
        )
    }

    /// Adds a route to `destination` by way of `gateway`.
    ///
    /// # Errors
    /// As [`Links::set_up`], and if the gateway is not on a link of this namespace.
    pub fn add_route(&mut self, destination: IfAddr, gateway: IpAddr) -> Result<(), NetdevError> {
        let mut message = RouteMessage::default();
        message.header.address_family = family(destination.ip);
        message.header.destination_prefix_length = destination.prefix;
        message.header.table = RouteHeader::RT_TABLE_MAIN;
        message.header.protocol = RouteProtocol::Static;
        message.header.scope = RouteScope::Universe;
        message.header.kind = RouteType::Unicast;
        message.attributes.push(RouteAttribute::Destination(destination.ip.into()));
        message.attributes.push(RouteAttribute::Gateway(gateway.into()));
        self.apply(
            format!("add route {destination} via {gateway}"),
            RouteNetlinkMessage::NewRoute(message),
            NLM_F_CREATE | NLM_F_EXCL,
        )
    }

    /// Returns the index of a link.
    fn index(&mut self, name: &str) -> Result<u32, NetdevError> {
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::IfName(name.to_owned()));
        let reply = self.netlink.request(RouteNetlinkMessage::GetLink(message), 0);
        match reply {
            Ok(answers) => answers
                .iter()
                .find_map(|a| match a {
                    RouteNetlinkMessage::NewLink(link) => Some(link.header.index),
                    _ => None,
                })
                .ok_or_else(|| self.missing(name)),
            Err(e) if e.raw_os_error() == Some(libc::ENODEV) => Err(self.missing(name)),
            Err(e) => Err(NetdevError::from_io(format!("look up {name}"), e)),
        }
    }

    /// Returns the error for an unknown name, with the names of the right namespace.
    fn missing(&self, name: &str) -> NetdevError {
        match &self.ns {
            Some(ns) => ns
                .run(|| NetdevError::no_such_interface(name))
                .unwrap_or_else(|e| NetdevError::from_io(format!("look up {name}"), e)),
            None => NetdevError::no_such_interface(name),
        }
    }

    fn create(&mut self, action: String, message: LinkMessage) -> Result<(), NetdevError> {
        self.apply(action, RouteNetlinkMessage::NewLink(message), NLM_F_CREATE | NLM_F_EXCL)
    }

    fn change(
        &mut self,
        name: &str,
        action: String,
        edit: impl FnOnce(&mut LinkMessage),
    ) -> Result<(), NetdevError> {
        let mut message = LinkMessage::default();
        message.header.index = self.index(name)?;
        edit(&mut message);
        self.apply(action, RouteNetlinkMessage::SetLink(message), 0)
    }

    fn apply(&mut self, action: String, message: RouteNetlinkMessage, flags: u16) -> Result<(), NetdevError> {
        match self.netlink.request(message, flags) {
            Ok(_) => Ok(()),
            Err(e) => Err(NetdevError::from_io(action, e)),
        }
    }
}

/// Returns the netlink family of an address.
pub(super) fn family(ip: IpAddr) -> AddressFamily {
    match ip {
        IpAddr::V4(_) => AddressFamily::Inet,
        IpAddr::V6(_) => AddressFamily::Inet6,
    }
}

fn address_message(index: u32, address: IfAddr) -> AddressMessage {
    let mut message = AddressMessage::default();
    message.header.family = family(address.ip);
    message.header.index = index;
    message.header.prefix_len = address.prefix;
    message.attributes.push(AddressAttribute::Local(address.ip));
    message.attributes.push(AddressAttribute::Address(address.ip));
    if let IpAddr::V4(v4) = address.ip
        && address.prefix < 31
    {
        let hosts = u32::MAX >> address.prefix;
        let broadcast = Ipv4Addr::from_bits(v4.to_bits() | hosts);
        message.attributes.push(AddressAttribute::Broadcast(broadcast));
    }
    message
}
