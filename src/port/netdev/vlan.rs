//! The VLAN interfaces on an interface: `eth0.5`, made by `ip link add link eth0 name eth0.5 type vlan id 5`.

use std::net::IpAddr;

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::AddressMessage;
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVlan, LinkAttribute, LinkFlags, LinkInfo, LinkMessage, VlanProtocol,
};

use super::NetdevError;
use super::interface::usable;
use super::netlink::Netlink;

/// A VLAN interface (802.1Q; interfaces of 802.1ad, which use service tags, are left out).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VlanLink {
    /// Index in its namespace.
    pub index: u32,
    /// The name, such as `eth0.5`.
    pub name: String,
    /// VLAN ID, 0 to 4094.
    pub vlan: u16,
    /// Station address: the address of the interface below, unless it was set.
    pub mac: [u8; 6],
    /// True if administratively up.
    pub up: bool,
    /// Usable addresses, IPv4 first.
    pub addresses: Vec<IpAddr>,
}

/// Queries the VLAN interfaces on an interface.
pub struct Vlans {
    netlink: Netlink,
    parent: u32,
}

impl Vlans {
    /// Opens a socket in the calling thread's namespace. `parent`: index of the interface below.
    ///
    /// # Errors
    /// If the kernel refuses a netlink socket.
    pub fn on(parent: u32) -> Result<Vlans, NetdevError> {
        let netlink = Netlink::open().map_err(|e| NetdevError::from_io("open a netlink socket", e))?;
        Ok(Vlans { netlink, parent })
    }

    /// Returns the VLAN interfaces as of now, by VLAN ID.
    ///
    /// # Errors
    /// If the kernel does not answer.
    pub fn links(&mut self) -> Result<Vec<VlanLink>, NetdevError> {
        let failed = |e| NetdevError::from_io("list the VLAN interfaces", e);
        let everything = RouteNetlinkMessage::GetLink(LinkMessage::default());
        let links = self.netlink.dump(&everything).map_err(failed)?;
        let mut vlans: Vec<VlanLink> = links
            .iter()
            .filter_map(|answer| match answer {
                RouteNetlinkMessage::NewLink(link) => vlan_of(link, self.parent),
                _ => None,
            })
            .collect();
        if vlans.is_empty() {
            return Ok(vlans);
        }
        let everything = RouteNetlinkMessage::GetAddress(AddressMessage::default());
        for answer in self.netlink.dump(&everything).map_err(failed)? {
            if let RouteNetlinkMessage::NewAddress(message) = answer
                && let Some(link) = vlans.iter_mut().find(|link| link.index == message.header.index)
                && let Some(address) = usable(&message)
            {
                link.addresses.push(address.ip);
            }
        }
        vlans.sort_by_key(|link| link.vlan);
        vlans.iter_mut().for_each(|link| link.addresses.sort_by_key(IpAddr::is_ipv6));
        Ok(vlans)
    }
}

/// Returns the VLAN interfaces on an interface of the calling thread's namespace, by VLAN ID. `parent`: its index.
///
/// # Errors
/// If the kernel does not answer.
pub fn vlan_links(parent: u32) -> Result<Vec<VlanLink>, NetdevError> {
    Vlans::on(parent)?.links()
}

/// Parses a link message. `None`: the link is no 802.1Q VLAN on `parent`.
fn vlan_of(link: &LinkMessage, parent: u32) -> Option<VlanLink> {
    let mut vlan = VlanLink {
        index: link.header.index,
        name: String::new(),
        vlan: 0,
        mac: [0; 6],
        up: link.header.flags.contains(LinkFlags::Up),
        addresses: Vec::new(),
    };
    let (mut below, mut id) = (None, None);
    for attribute in &link.attributes {
        match attribute {
            LinkAttribute::IfName(name) => vlan.name.clone_from(name),
            LinkAttribute::Link(index) => below = Some(*index),
            // The index below is of another namespace.
            LinkAttribute::LinkNetNsId(_) => return None,
            LinkAttribute::Address(mac) => vlan.mac = mac.as_slice().try_into().ok()?,
            LinkAttribute::LinkInfo(infos) => id = vlan_id(infos),
            _ => {}
        }
    }
    vlan.vlan = id?;
    (below == Some(parent)).then_some(vlan)
}

/// Returns the VLAN ID of a link's kind and data.
fn vlan_id(infos: &[LinkInfo]) -> Option<u16> {
    if !infos.contains(&LinkInfo::Kind(InfoKind::Vlan)) {
        return None;
    }
    let data = infos.iter().find_map(|info| match info {
        LinkInfo::Data(InfoData::Vlan(data)) => Some(data),
        _ => None,
    })?;
    let mut id = None;
    for attribute in data {
        match attribute {
            InfoVlan::Id(vlan) => id = Some(*vlan),
            InfoVlan::Protocol(protocol) if *protocol != VlanProtocol::Ieee8021Q => return None,
            _ => {}
        }
    }
    id
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netdev::netlink::messages;
    use netlink_packet_core::NetlinkPayload;

    /// An attribute: length, type, value, padding.
    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::from(((4 + value.len()) as u16).to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    /// `RTM_NEWLINK` as Linux sends it: `struct nlmsghdr`, `struct ifinfomsg`, attributes.
    fn new_link(index: u32, attributes: &[Vec<u8>]) -> LinkMessage {
        const RTM_NEWLINK: u16 = 16;
        let (ethernet, up_and_running) = (1_u16, 0x1_1043_u32);
        let body = attributes.concat();
        let mut bytes = Vec::from((32 + body.len() as u32).to_ne_bytes());
        bytes.extend([RTM_NEWLINK.to_ne_bytes(), [0; 2]].concat());
        bytes.extend([[0; 4], [0; 4]].concat());
        bytes.extend([[0, 0], ethernet.to_ne_bytes()].concat());
        bytes.extend([index.to_ne_bytes(), up_and_running.to_ne_bytes(), [0; 4]].concat());
        bytes.extend(body);
        let message = messages(&bytes).next().expect("a message").expect("well formed");
        match message.payload {
            NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(link)) => link,
            other => panic!("{other:?}"),
        }
    }

    /// Attributes of `include/uapi/linux/if_link.h`: IFLA_ADDRESS 1, IFLA_IFNAME 3, IFLA_LINK 5, IFLA_LINKINFO 18 with
    /// IFLA_INFO_KIND 1 and IFLA_INFO_DATA 2, therein IFLA_VLAN_ID 1 and IFLA_VLAN_PROTOCOL 5.
    fn vlan(parent: u32, kind: &[u8], protocol: u16) -> Vec<Vec<u8>> {
        let data = [attribute(1, &5_u16.to_ne_bytes()), attribute(5, &protocol.to_be_bytes())].concat();
        let info = [attribute(1, kind), attribute(2, &data)].concat();
        vec![
            attribute(1, &[2, 0, 0, 0, 0, 7]),
            attribute(3, b"eth0.5\0"),
            attribute(5, &parent.to_ne_bytes()),
            attribute(18, &info),
        ]
    }

    #[test]
    fn vlan_link_is_read_from_its_message() {
        let link = vlan_of(&new_link(9, &vlan(2, b"vlan\0", 0x8100)), 2).expect("a VLAN");
        assert_eq!((link.index, link.name.as_str(), link.vlan), (9, "eth0.5", 5));
        assert_eq!((link.mac, link.up), ([2, 0, 0, 0, 0, 7], true));
    }

    #[test]
    fn other_links_are_no_vlans_of_the_interface() {
        assert_eq!(vlan_of(&new_link(9, &vlan(3, b"vlan\0", 0x8100)), 2), None, "on another interface");
        assert_eq!(vlan_of(&new_link(9, &vlan(2, b"vlan\0", 0x88a8)), 2), None, "service tags");
        assert_eq!(vlan_of(&new_link(9, &vlan(2, b"dummy\0", 0x8100)), 2), None, "another kind");
        let mut other_namespace = vlan(2, b"vlan\0", 0x8100);
        other_namespace.push(attribute(37, &0_u32.to_ne_bytes()));
        assert_eq!(
            vlan_of(&new_link(9, &other_namespace), 2),
            None,
            "IFLA_LINK_NETNSID: of another namespace"
        );
    }

    #[test]
    fn interface_without_vlans_has_none() {
        assert_eq!(
            vlan_links(1).expect("the kernel answers"),
            Vec::new(),
            "no VLANs on the loopback interface"
        );
    }
}
