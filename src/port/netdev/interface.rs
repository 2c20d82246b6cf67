//! The state of one interface, as the kernel reports it at one moment.

use std::fmt;
use std::net::IpAddr;
use std::path::Path;
use std::str::FromStr;

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressHeaderFlags, AddressMessage};
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkInfo, LinkLayerType, LinkMessage, LinkXdp};

use super::netlink::Netlink;
use super::{NetdevError, ethtool};

/// An address and the length of its network's prefix: `192.0.2.1/24`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IfAddr {
    /// The address, without its prefix length.
    pub ip: IpAddr,
    /// Number of leading bits that name the network.
    pub prefix: u8,
}

impl fmt::Display for IfAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ip, self.prefix)
    }
}

impl FromStr for IfAddr {
    type Err = String;

    /// Parses `address/length`; without a length, /32 or /128.
    fn from_str(text: &str) -> Result<IfAddr, String> {
        let (address, length) = text.split_once('/').map_or((text, None), |(a, l)| (a, Some(l)));
        let ip: IpAddr = address.parse().map_err(|e| format!("{address:?}: {e}"))?;
        let longest: u8 = if ip.is_ipv4() { 32 } else { 128 };
        let prefix = match length {
            None => longest,
            Some(l) => l.parse().map_err(|e| format!("prefix length {l:?}: {e}"))?,
        };
        if prefix > longest {
            return Err(format!("prefix length {prefix} of {ip} is above {longest}"));
        }
        Ok(IfAddr { ip, prefix })
    }
}

/// The state of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Index in its namespace.
    pub index: u32,
    /// The name in this network namespace, such as `eth0`.
    pub name: String,
    /// Station address, in the order of the wire.
    pub mac: [u8; 6],
    /// The largest L3 packet in bytes.
    pub mtu: usize,
    /// True if administratively up (`IFF_UP`); the carrier may be lost.
    pub up: bool,
    /// True if up, and the link has carrier.
    pub running: bool,
    /// The driver or kind: `veth`, `virtio_net`, `mlx5_core`; `unknown` if the kernel does not say.
    pub driver: String,
    /// Number of receive queues in use.
    pub rx_queues: u32,
    /// Usable addresses, IPv4 first, each family in the kernel's order. Addresses in duplicate address detection, or
    /// that failed it, are left out.
    pub addresses: Vec<IfAddr>,
    /// Kernel id of the attached XDP program, if there is one.
    pub xdp_program: Option<u32>,
}

impl Interface {
    /// Queries an interface in the calling thread's namespace.
    ///
    /// # Errors
    /// [`NetdevError::NoSuchInterface`], with the existing names; [`NetdevError::NotEthernet`].
    pub fn by_name(name: &str) -> Result<Interface, NetdevError> {
        let mut netlink = Netlink::open().map_err(|e| NetdevError::from_io("open a netlink socket", e))?;
        let mut interface = query(&mut netlink, &Key::Name(name))?;
        // If the driver reports no count, rtnetlink's number of allocated queues stays.
        if let Ok(queues @ 1..) = ethtool::rx_queues(interface.index) {
            interface.rx_queues = queues;
        }
        Ok(interface)
    }

    /// True if `ip` is an address of this interface.
    pub fn has_address(&self, ip: IpAddr) -> bool {
        self.addresses.iter().any(|a| a.ip == ip)
    }
}

/// Key by which an interface is queried.
pub(super) enum Key<'a> {
    Name(&'a str),
    /// Index, and the last known name for errors.
    Index(u32, &'a str),
}

/// Queries the link and its addresses. `rx_queues` is the allocated number.
pub(super) fn query(netlink: &mut Netlink, key: &Key<'_>) -> Result<Interface, NetdevError> {
    let mut request = LinkMessage::default();
    let name = match *key {
        Key::Name(name) => {
            request.attributes.push(LinkAttribute::IfName(name.to_owned()));
            name
        }
        Key::Index(index, name) => {
            request.header.index = index;
            name
        }
    };
    let failed = |e: std::io::Error| match e.raw_os_error() {
        // ERANGE: the name is too long.
        Some(libc::ENODEV | libc::ERANGE) => NetdevError::no_such_interface(name),
        _ => NetdevError::from_io(format!("look up interface {name}"), e),
    };
    let answers = netlink.request(RouteNetlinkMessage::GetLink(request), 0).map_err(failed)?;
    let link = answers.into_iter().find_map(|answer| match answer {
        RouteNetlinkMessage::NewLink(link) => Some(link),
        _ => None,
    });
    let link = link.ok_or_else(|| NetdevError::no_such_interface(name))?;
    let mut interface = from_link(&link, name)?;

    let everything = RouteNetlinkMessage::GetAddress(AddressMessage::default());
    for answer in netlink.dump(&everything).map_err(failed)? {
        if let RouteNetlinkMessage::NewAddress(message) = answer
            && message.header.index == interface.index
            && let Some(address) = usable(&message)
        {
            interface.addresses.push(address);
        }
    }
    interface.addresses.sort_by_key(|a| a.ip.is_ipv6());
    Ok(interface)
}

/// Parses a link message.
fn from_link(link: &LinkMessage, asked: &str) -> Result<Interface, NetdevError> {
    let mut interface = Interface {
        index: link.header.index,
        name: asked.to_owned(),
        mac: [0; 6],
        mtu: 0,
        up: link.header.flags.contains(LinkFlags::Up),
        running: link.header.flags.contains(LinkFlags::Up | LinkFlags::LowerUp),
        driver: "unknown".to_owned(),
        rx_queues: 1,
        addresses: Vec::new(),
        xdp_program: None,
    };
    let mut ethernet = matches!(link.header.link_layer_type, LinkLayerType::Ether | LinkLayerType::Loopback);
    let (mut device, mut bus) = (None, None);
    for attribute in &link.attributes {
        match attribute {
            LinkAttribute::IfName(name) => interface.name.clone_from(name),
            LinkAttribute::Address(mac) => match mac.as_slice().try_into() {
                Ok(mac) => interface.mac = mac,
                Err(_) => ethernet = false,
            },
            LinkAttribute::Mtu(mtu) => interface.mtu = *mtu as usize,
            LinkAttribute::NumRxQueues(n) => interface.rx_queues = *n,
            LinkAttribute::LinkInfo(infos) => {
                for info in infos {
                    if let LinkInfo::Kind(kind) = info {
                        interface.driver = kind.to_string();
                    }
                }
            }
            LinkAttribute::Xdp(xdp) => interface.xdp_program = attached(xdp),
            LinkAttribute::ParentDevName(name) => device = Some(name.clone()),
            LinkAttribute::ParentDevBusName(name) => bus = Some(name.clone()),
            _ => {}
        }
    }
    if let (Some(device), Some(bus)) = (device, bus) {
        let driver = Path::new("/sys/bus").join(bus).join("devices").join(device).join("driver");
        if let Some(name) = driver.read_link().ok().as_deref().and_then(Path::file_name) {
            interface.driver = name.to_string_lossy().into_owned();
        }
    }
    if ethernet { Ok(interface) } else { Err(NetdevError::NotEthernet { name: interface.name }) }
}

/// Returns the program in any of the slots: driver, generic, hardware.
fn attached(xdp: &[LinkXdp]) -> Option<u32> {
    xdp.iter().find_map(|a| match a {
        LinkXdp::ProgId(id) | LinkXdp::DrvProgId(id) | LinkXdp::SkbProgId(id) | LinkXdp::HwProgId(id)
            if *id != 0 =>
        {
            Some(*id)
        }
        _ => None,
    })
}

/// Returns the address of a message, unless it is not usable (yet).
pub(super) fn usable(message: &AddressMessage) -> Option<IfAddr> {
    let bad = AddressFlags::Tentative | AddressFlags::Dadfailed;
    let bad_byte = AddressHeaderFlags::Tentative | AddressHeaderFlags::Dadfailed;
    let (mut local, mut address, mut refused) = (None, None, message.header.flags.intersects(bad_byte));
    for attribute in &message.attributes {
        match attribute {
            AddressAttribute::Local(ip) => local = Some(*ip),
            AddressAttribute::Address(ip) => address = Some(*ip),
            AddressAttribute::Flags(flags) => {
                refused |= flags.intersects(bad) && !flags.contains(AddressFlags::Optimistic);
            }
            _ => {}
        }
    }
    // On point-to-point links IFA_ADDRESS is the peer's; IFA_LOCAL, if present, is always ours.
    let ip = local.or(address)?;
    (!refused).then_some(IfAddr { ip, prefix: message.header.prefix_len })
}

/// Returns the link speed in Mb/s, if known (`/sys/class/net/NAME/speed`, -1 if the driver knows none).
pub fn link_speed(name: &str) -> Option<u32> {
    let speed = std::fs::read_to_string(format!("/sys/class/net/{name}/speed")).ok()?;
    speed.trim().parse().ok().filter(|mbps| *mbps > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_reads_back_as_it_prints() {
        for text in ["192.0.2.1/24", "2001:db8::1/64", "0.0.0.0/0"] {
            assert_eq!(text.parse::<IfAddr>().unwrap().to_string(), text);
        }
        assert_eq!("192.0.2.1".parse::<IfAddr>().unwrap().prefix, 32);
    }

    #[test]
    fn error_of_too_long_prefix_names_both_lengths() {
        let e = "192.0.2.1/33".parse::<IfAddr>().unwrap_err();
        assert!(e.contains("33") && e.contains("32"), "{e}");
    }

    #[test]
    fn error_of_missing_interface_lists_existing_ones() {
        let e = Interface::by_name("nosuch0").unwrap_err().to_string();
        assert!(e.contains("\"nosuch0\"") && e.contains("lo"), "{e}");
        let e = Interface::by_name("a-name-that-is-longer-than-fifteen").unwrap_err().to_string();
        assert!(e.contains("there are") && e.contains("lo"), "{e}");
    }
}
