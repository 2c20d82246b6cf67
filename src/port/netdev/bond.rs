//! Bonds, and their slaves.

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{InfoBond, InfoData, LinkAttribute, LinkInfo, LinkMessage};

use super::NetdevError;
use super::netlink::Netlink;

/// A bond.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bond {
    /// The mode, by the kernel's name: `active-backup`.
    pub mode: String,
    /// Names of the slaves.
    pub slaves: Vec<String>,
}

impl Bond {
    /// Returns the bond with this index in the calling thread's namespace. `None`: the interface is of another kind.
    ///
    /// # Errors
    /// If the kernel does not answer.
    pub fn of(index: u32) -> Result<Option<Bond>, NetdevError> {
        let failed = |e| NetdevError::from_io("list the slaves of a bond", e);
        let mut netlink = Netlink::open().map_err(failed)?;
        let links = netlink.dump(&RouteNetlinkMessage::GetLink(LinkMessage::default())).map_err(failed)?;
        Ok(bond_among(&links, index))
    }
}

fn bond_among(links: &[RouteNetlinkMessage], index: u32) -> Option<Bond> {
    let links = || {
        links.iter().filter_map(|answer| match answer {
            RouteNetlinkMessage::NewLink(link) => Some(link),
            _ => None,
        })
    };
    let mode = mode_of(links().find(|link| link.header.index == index)?)?;
    let is_slave = |link: &&LinkMessage| link.attributes.contains(&LinkAttribute::Controller(index));
    let name = |link: &LinkMessage| {
        link.attributes.iter().find_map(|attribute| match attribute {
            LinkAttribute::IfName(name) => Some(name.clone()),
            _ => None,
        })
    };
    Some(Bond { mode, slaves: links().filter(is_slave).filter_map(name).collect() })
}

fn mode_of(link: &LinkMessage) -> Option<String> {
    let infos = link.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::LinkInfo(infos) => Some(infos),
        _ => None,
    })?;
    infos.iter().find_map(|info| match info {
        LinkInfo::Data(InfoData::Bond(data)) => data.iter().find_map(|attribute| match attribute {
            InfoBond::Mode(mode) => Some(mode.to_string()),
            _ => None,
        }),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use netlink_packet_route::link::{BondMode, InfoKind};

    fn link(index: u32, name: &str, more: LinkAttribute) -> RouteNetlinkMessage {
        let mut link = LinkMessage::default();
        link.header.index = index;
        link.attributes = vec![LinkAttribute::IfName(name.to_owned()), more];
        RouteNetlinkMessage::NewLink(link)
    }

    #[test]
    fn bond_has_its_mode_and_slaves() {
        let data = InfoData::Bond(vec![InfoBond::Mode(BondMode::ActiveBackup)]);
        let bond = LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Bond), LinkInfo::Data(data)]);
        let bridge = LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Bridge)]);
        let links = [
            link(2, "eth1", LinkAttribute::Controller(9)),
            link(3, "eth2", LinkAttribute::Controller(8)),
            link(4, "eth3", LinkAttribute::Controller(9)),
            link(8, "br0", bridge),
            link(9, "bond0", bond),
        ];
        let expected = Bond { mode: "active-backup".into(), slaves: vec!["eth1".into(), "eth3".into()] };
        assert_eq!(bond_among(&links, 9), Some(expected));
        assert_eq!((bond_among(&links, 8), bond_among(&links, 2), bond_among(&links, 7)), (None, None, None));
    }
}
