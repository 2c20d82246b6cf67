//! Follows changes of an interface.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

use super::interface::{Key, query};
use super::netlink::Netlink;
use super::{IfAddr, Interface, NetdevError};

/// `RTNLGRP_LINK`, `RTNLGRP_IPV4_IFADDR`, `RTNLGRP_IPV6_IFADDR` (`include/uapi/linux/rtnetlink.h`).
const GROUPS: [u32; 3] = [1, 5, 9];

/// A change of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// An address became usable.
    AddressAdded(IfAddr),
    /// An address is no longer usable.
    AddressRemoved(IfAddr),
    /// Frames can pass again: administratively up, with carrier.
    LinkUp,
    /// Frames cannot pass.
    LinkDown,
    /// The new MTU in bytes.
    Mtu(usize),
    /// The new station address.
    Mac([u8; 6]),
    /// The new name of the interface.
    Renamed(String),
    /// The interface was deleted or moved to another namespace. No change follows.
    Gone,
}

/// Follows one interface: addresses, link state, MTU, station address, name.
///
/// The kernel's messages only trigger a query; changes are the difference between two complete queries. A lost message
/// therefore loses no change. A change that is undone between two polls is not reported.
pub struct Watch {
    events: Socket,
    netlink: Netlink,
    last: Interface,
    /// True if a query is due: none was made yet, or the last one failed.
    due: bool,
    /// Number of queries that were due.
    queries: u64,
    deleted: bool,
}

impl Watch {
    /// Starts to follow `interface` from the state in `interface`: the first poll reports what changed since that was
    /// queried.
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
        let mut watch =
            Watch { events, netlink, last: interface.clone(), due: true, queries: 0, deleted: false };
        // The queue count in `interface` may be ethtool's, which `poll` does not query again.
        watch.last.addresses.sort();
        Ok(watch)
    }

    /// Returns the changes since the last poll. Does not block, and costs one system call if nothing changed.
    ///
    /// # Errors
    /// If the kernel does not answer. The next poll retries.
    pub fn poll(&mut self) -> Result<Vec<Change>, NetdevError> {
        // Drain in any case: queued messages keep the socket readable.
        self.due |= self.drain();
        if self.deleted || !self.due {
            return Ok(Vec::new());
        }
        self.queries += 1;
        let key = Key::Index(self.last.index, &self.last.name);
        let mut now = match query(&mut self.netlink, &key) {
            Ok(now) => now,
            Err(NetdevError::NoSuchInterface { .. }) => {
                self.deleted = true;
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

    /// Returns a number that grows with each poll that found a message: about this interface, or any other of its
    /// namespace.
    pub fn queries(&self) -> u64 {
        self.queries
    }

    /// Returns the interface as of the last poll, with its addresses in ascending order.
    pub fn interface(&self) -> &Interface {
        &self.last
    }

    /// Drains the socket. True if there was a message, or an overrun (`ENOBUFS`).
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
    /// Readable when [`Watch::poll`] has something to do.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}

/// Returns the changes from `old` to `new`; losses before gains.
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
