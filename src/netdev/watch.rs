//! Follows an interface while the program runs.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

use super::interface::{Key, query};
use super::netlink::Netlink;
use super::{IfAddr, Interface, NetdevError};

/// `RTNLGRP_LINK`, `RTNLGRP_IPV4_IFADDR`, `RTNLGRP_IPV6_IFADDR` (`include/uapi/linux/rtnetlink.h`).
const GROUPS: [u32; 3] = [1, 5, 9];

/// What became different.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// An address became usable.
    AddressAdded(IfAddr),
    /// An address went away.
    AddressRemoved(IfAddr),
    /// Frames can pass again: administratively up, with carrier.
    LinkUp,
    /// Frames cannot pass.
    LinkDown,
    /// The MTU is now this many bytes.
    Mtu(usize),
    /// The station address is now this.
    Mac([u8; 6]),
    /// The interface has another name.
    Renamed(String),
    /// The interface was deleted or moved to another namespace. Nothing follows.
    Gone,
}

/// Follows one interface: addresses, link state, MTU, station address, name.
///
/// The kernel's messages only say that it is time to look; what changed is the difference between two
/// complete looks. So a lost message loses no change, and what came and went between two polls is not told.
pub struct Watch {
    events: Socket,
    netlink: Netlink,
    last: Interface,
    /// There may be something new: nobody has looked yet, or the last look failed.
    due: bool,
    gone: bool,
}

impl Watch {
    /// Starts to follow `interface`, from what `interface` says on: what changed since it was looked up is
    /// told by the first poll.
    ///
    /// # Errors
    /// If the kernel refuses a netlink socket.
    pub fn new(interface: &Interface) -> Result<Watch, NetdevError> {
        let open = || {
            let mut events = Socket::new(NETLINK_ROUTE)?;
            events.bind(&SocketAddr::new(0, 0))?;
            for group in GROUPS {
                events.add_membership(group)?;
            }
            events.set_non_blocking(true)?;
            Ok((events, Netlink::open()?))
        };
        let (events, netlink) =
            open().map_err(|e| NetdevError::from_io(format!("watch interface {}", interface.name), e))?;
        let mut watch = Watch { events, netlink, last: interface.clone(), due: true, gone: false };
        // The count in `interface` may be ethtool's; a look does not ask for it again.
        watch.last.addresses.sort();
        Ok(watch)
    }

    /// What changed since the last poll. Does not block, and costs one system call while nothing changes.
    ///
    /// # Errors
    /// If the kernel does not answer; the next poll tries again.
    pub fn poll(&mut self) -> Result<Vec<Change>, NetdevError> {
        // In any case: what waits in the socket keeps it readable.
        self.due |= self.drain();
        if self.gone || !self.due {
            return Ok(Vec::new());
        }
        let key = Key::Index(self.last.index, &self.last.name);
        let mut now = match query(&mut self.netlink, &key) {
            Ok(now) => now,
            Err(NetdevError::NoSuchInterface { .. }) => {
                self.gone = true;
                return Ok(vec![Change::Gone]);
            }
            Err(e) => return Err(e),
        };
        now.addresses.sort();
        now.rx_queues = self.last.rx_queues;
        let changes = difference(&self.last, &now);
        self.last = now;
        self.due = false;
        Ok(changes)
    }

    /// The interface as of the last poll, addresses in ascending order.
    pub fn interface(&self) -> &Interface {
        &self.last
    }

    /// Empties the socket; true if there was something. An overrun (`ENOBUFS`) is as good a reason to look as
    /// a message.
    fn drain(&self) -> bool {
        let mut news = false;
        loop {
            match self.events.recv_from_full() {
                Ok(_) => news = true,
                Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => news = true,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return news,
            }
        }
    }
}

impl AsFd for Watch {
    /// Readable when it is worth while to poll.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}

/// What a listener must hear to get from `old` to `new`; losses before gains.
fn difference(old: &Interface, new: &Interface) -> Vec<Change> {
    let mut changes = Vec::new();
    if new.name != old.name {
        changes.push(Change::Renamed(new.name.clone()));
    }
    if old.running && !new.running {
        changes.push(Change::LinkDown);
    }
    if new.mac != old.mac {
        changes.push(Change::Mac(new.mac));
    }
    if new.mtu != old.mtu {
        changes.push(Change::Mtu(new.mtu));
    }
    let lost = old.addresses.iter().filter(|a| !new.addresses.contains(a));
    changes.extend(lost.map(|a| Change::AddressRemoved(*a)));
    let gained = new.addresses.iter().filter(|a| !old.addresses.contains(a));
    changes.extend(gained.map(|a| Change::AddressAdded(*a)));
    if new.running && !old.running {
        changes.push(Change::LinkUp);
    }
    changes
}
