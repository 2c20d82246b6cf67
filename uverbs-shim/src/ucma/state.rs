//! All identifiers, open files and ports of a process, and the operations on them that need no peer.
//!
//! Handles, states and error numbers are as in the kernel's `ucma.c` and `cma.c`.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;

use nix::sys::eventfd::EfdFlags;
use roxie::cm::{Listener, Manager};
use roxie::host::inspect::CmIdEntry;
use roxie::time::Nanos;
use roxie::verbs::{Gid, LocalGid, Psn};
use roxie::wire::cm::CommId;

use super::descriptors::Descriptors;
use super::event::{Channel, Event, EventType, Facts, Waiting};
use super::id::{Id, IdState, Made};
use super::ports::{Owner, Ports, Space};
use super::sockaddr::any;
use super::table::Table;
use crate::base::object::Errno;

/// Maximum number of identifiers of a process.
const IDS: u32 = 1 << 16;
/// Maximum number of multicast memberships of a process.
const GROUPS: u32 = 1 << 12;

/// The connection manager and the current time, for operations that send to a peer.
pub(super) struct Cm<'a> {
    pub(super) manager: &'a mut Manager,
    pub(super) now: Nanos,
    /// Returns the first GID of an address, with its VLAN and RoCE version.
    pub(super) local_gid: &'a dyn Fn(Gid) -> LocalGid,
}

/// Rules of the process's network namespace for bind.
#[derive(Clone, Debug)]
pub(super) struct Rules {
    /// Range of ports for identifiers that request any port.
    pub(super) any_port: RangeInclusive<u16>,
    /// First unprivileged port.
    pub(super) unprivileged: u16,
    /// True if the process may bind privileged ports.
    pub(super) privileged: bool,
    /// True if wildcard IPv6 addresses exclude IPv4 (`net.ipv6.bindv6only`).
    pub(super) ipv6_only: bool,
    /// An unpredictable number.
    pub(super) random: u64,
}

/// Owner of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AddressOwner {
    /// An address of the device.
    Device,
    /// An address of the host on another interface.
    Host,
    /// Not an address of this host.
    Unknown,
}

/// A multicast membership.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) id: u32,
    pub(super) channel: u64,
    pub(super) events_reported: u32,
}

/// See the module documentation.
#[derive(Debug)]
pub(super) struct State {
    pub(super) descriptors: Descriptors,
    channels: BTreeMap<u64, Channel>,
    next_channel: u64,
    pub(super) ids: Table<Id>,
    pub(super) groups: Table<Group>,
    pub(super) ports: Ports,
    pub(super) by_comm: HashMap<CommId, u32>,
    pub(super) by_listener: HashMap<Listener, u32>,
}

impl State {
    pub(super) fn new() -> State {
        State {
            descriptors: Descriptors::default(),
            channels: BTreeMap::new(),
            next_channel: 1,
            ids: Table::new(IDS),
            groups: Table::new(GROUPS),
            ports: Ports::default(),
            by_comm: HashMap::new(),
            by_listener: HashMap::new(),
        }
    }

    /// Opens a file. Returns its number.
    pub(super) fn open(&mut self, flags: EfdFlags) -> Result<u64, Errno> {
        let channel = Channel::new(flags)?;
        let number = self.next_channel;
        self.next_channel += 1;
        self.channels.insert(number, channel);
        Ok(number)
    }

    pub(super) fn channel(&self, number: u64) -> Option<&Channel> {
        self.channels.get(&number)
    }

    pub(super) fn channel_mut(&mut self, number: u64) -> Option<&mut Channel> {
        self.channels.get_mut(&number)
    }

    /// Closes a file, and destroys the identifiers made through it.
    pub(super) fn close(&mut self, mut cm: Option<Cm<'_>>, channel: u64) {
        let theirs: Vec<u32> =
            self.ids.iter().filter(|(_, id)| id.channel == channel).map(|(handle, _)| handle).collect();
        for handle in theirs {
            let cm = cm.as_mut().map(|cm| Cm { manager: cm.manager, now: cm.now, local_gid: cm.local_gid });
            // Pending requests are destroyed with their listener.
            let _ = self.destroy(cm, channel, handle);
        }
        self.channels.remove(&channel).into_iter().for_each(Channel::close);
    }

    /// Creates an identifier. Returns its handle.
    ///
    /// # Errors
    /// `ENOMEM` if the limit is reached.
    pub(super) fn create(&mut self, made: Made) -> Result<u32, Errno> {
        self.ids.add(Id::new(made)).ok_or(libc::ENOMEM)
    }

    /// Returns an identifier of a file.
    ///
    /// # Errors
    /// `ENOENT` if no identifier has the handle, `EINVAL` if it belongs to another file.
    pub(super) fn id(&mut self, channel: u64, handle: u32) -> Result<&mut Id, Errno> {
        match self.ids.get_mut(handle) {
            Some(id) if id.channel == channel => Ok(id),
            Some(_) => Err(libc::EINVAL),
            None => Err(libc::ENOENT),
        }
    }

    /// Returns an identifier of a file, with a source address of the device.
    ///
    /// # Errors
    /// As for [`State::id`]; `EINVAL` if the identifier is not on the device.
    pub(super) fn id_on_device(&mut self, channel: u64, handle: u32) -> Result<&mut Id, Errno> {
        self.id(channel, handle).and_then(|id| if id.on_device { Ok(id) } else { Err(libc::EINVAL) })
    }

    /// Returns the identifiers as reported by inspection of the device.
    pub(super) fn seen(&self) -> Vec<CmIdEntry> {
        let entry = |(number, id): (u32, &Id)| CmIdEntry {
            id: number,
            ps: id.space.name().into(),
            state: id.stage.name().into(),
            src: id.source,
            dst: id.destination,
            qpn: Some(id.qpn.value()).filter(|qpn| *qpn != 0),
        };
        self.ids.iter().map(entry).collect()
    }

    /// Destroys an identifier. Returns the number of its events that the program has fetched. Pending events are
    /// removed, and a connecting or connected peer is informed.
    ///
    /// # Errors
    /// As for [`State::id`].
    pub(super) fn destroy(&mut self, cm: Option<Cm<'_>>, channel: u64, handle: u32) -> Result<u32, Errno> {
        self.id(channel, handle)?;
        let mut cm = cm;
        let waiting = self
            .channels
            .get_mut(&channel)
            .map_or(Vec::new(), |channel| channel.take_back(|waiting| waiting.of == handle));
        // Requests not yet fetched by the program.
        for request in waiting.iter().filter(|waiting| waiting.event.what == EventType::ConnectRequest) {
            self.drop_id(cm.as_mut(), request.event.handle);
        }
        Ok(self.drop_id(cm.as_mut(), handle).map_or(0, |id| id.events_reported))
    }

    pub(super) fn drop_id(&mut self, cm: Option<&mut Cm<'_>>, handle: u32) -> Option<Id> {
        let id = self.ids.remove(handle)?;
        if let (true, Some(source)) = (id.has_port, id.source) {
            self.ports.release(id.space, source.port(), handle);
        }
        let memberships: Vec<u32> =
            self.groups.iter().filter(|(_, group)| group.id == handle).map(|(number, _)| number).collect();
        for number in memberships {
            self.groups.remove(number);
        }
        for listener in &id.listeners {
            self.by_listener.remove(listener);
        }
        if let Some(comm) = id.comm {
            self.by_comm.remove(&comm);
        }
        if let Some(cm) = cm {
            for listener in &id.listeners {
                cm.manager.stop_listening(*listener);
            }
            if let Some(comm) = id.comm {
                cm.manager.destroy(cm.now, comm);
            }
        }
        Some(id)
    }

    /// Binds an identifier to an address, and to a port if it has none: `rdma_bind_addr`.
    ///
    /// # Errors
    /// `EINVAL` if it is bound already; `EADDRNOTAVAIL` or `ENODEV` for an address that is not the host's or not the
    /// device's; `EACCES` for a privileged port; `EADDRINUSE` or `EADDRNOTAVAIL` for a port that is taken.
    pub(super) fn bind(
        &mut self,
        channel: u64,
        handle: u32,
        address: SocketAddr,
        address_owner: AddressOwner,
        rules: &Rules,
    ) -> Result<(), Errno> {
        let id = self.id(channel, handle)?;
        if id.stage != IdState::Idle {
            return Err(libc::EINVAL);
        }
        // As in the kernel, a loopback address that is not a device's stands for all addresses (`cma_any_addr`): it
        // reserves the port, and is not yet on a device.
        let loopback = address_owner != AddressOwner::Device && address.ip().is_loopback();
        let specific = !address.ip().is_unspecified() && !loopback;
        match address_owner {
            AddressOwner::Host if specific => return Err(libc::ENODEV),
            AddressOwner::Unknown if specific => return Err(libc::EADDRNOTAVAIL),
            _ => {}
        }
        let one_family = id.one_family(address.ip(), rules.ipv6_only);
        let taken = if specific { address.ip() } else { any(address.is_ipv4()) };
        let owner = Owner { id: handle, address: taken, reuse: id.options.reuse_address, one_family };
        let space = id.space;
        let port = match address.port() {
            0 => self.ports.take_any(space, rules.any_port.clone(), rules.random, owner)?,
            port if port < rules.unprivileged && !rules.privileged => return Err(libc::EACCES),
            port => {
                self.ports.take(space, port, owner)?;
                port
            }
        };
        let id = self.id(channel, handle)?;
        id.source = Some(SocketAddr::new(address.ip(), port)).map(|with_port| same_scope(with_port, address));
        id.options.one_family = Some(one_family);
        (id.has_port, id.on_device, id.stage) = (true, specific, IdState::Bound);
        Ok(())
    }

    /// Returns the address of an identifier that is bound implicitly: the wildcard of the family.
    pub(super) fn wildcard(v4: bool) -> SocketAddr {
        SocketAddr::new(any(v4), 0)
    }

    /// Moves an identifier to another file, with its pending events. Returns the number of its events that the program
    /// has fetched.
    ///
    /// # Errors
    /// As for [`State::id`].
    pub(super) fn migrate(&mut self, from: u64, to: u64, handle: u32) -> Result<u32, Errno> {
        self.id(from, handle)?.channel = to;
        let moved = self
            .channels
            .get_mut(&from)
            .map_or(Vec::new(), |channel| channel.take_back(|waiting| waiting.of == handle));
        // The identifier of a request belongs to the listener's file.
        for request in moved.iter().filter(|waiting| waiting.event.what == EventType::ConnectRequest) {
            if let Some(id) = self.ids.get_mut(request.event.handle) {
                id.channel = to;
            }
        }
        for group in self.groups.values_mut().filter(|group| group.id == handle) {
            group.channel = to;
        }
        if let Some(channel) = self.channels.get_mut(&to) {
            moved.into_iter().for_each(|waiting| channel.push(waiting));
        }
        Ok(self.id(to, handle)?.events_reported)
    }

    /// Takes the next event of a file, and counts it as fetched. The caller has taken its count.
    pub(super) fn fetch(&mut self, channel: u64) -> Option<Event> {
        let Waiting { of, group, event } = self.channels.get_mut(&channel)?.pop()?;
        if let Some(id) = self.ids.get_mut(of) {
            id.events_reported += 1;
        }
        if let Some(group) = group.and_then(|number| self.groups.get_mut(number)) {
            group.events_reported += 1;
        }
        Some(event)
    }

    /// Takes the request of a fetched event out of the listener's backlog: the program has it now.
    pub(super) fn take_request(&mut self, cm: Option<Cm<'_>>, event: &Event) {
        let comm = self.ids.get(event.handle).and_then(|id| id.comm);
        if let (EventType::ConnectRequest, Some(cm), Some(comm)) = (event.what, cm, comm) {
            cm.manager.take(comm);
        }
    }

    /// Queues an event of an identifier. An identifier that the program has not accepted yet gets no events: accepting
    /// it will fail.
    pub(super) fn queue_event(&mut self, handle: u32, what: EventType, status: i32, facts: Facts) {
        let Some(id) = self.ids.get(handle) else { return };
        if id.uid == 0 {
            return;
        }
        let facts = match facts {
            Facts::None if id.is_datagram() => Facts::Datagram(super::event::DatagramFacts::default()),
            facts => facts,
        };
        let event = Event { uid: id.uid, handle, what, status, facts };
        let channel = id.channel;
        self.queue(channel, Waiting { of: handle, group: None, event });
    }

    pub(super) fn queue(&mut self, channel: u64, waiting: Waiting) {
        if let Some(channel) = self.channels.get_mut(&channel) {
            channel.push(waiting);
        }
    }

    /// Removes the pending events of a membership.
    pub(super) fn forget_group(&mut self, channel: u64, number: u32) {
        if let Some(channel) = self.channels.get_mut(&channel) {
            channel.take_back(|waiting| waiting.group == Some(number));
        }
    }

    /// Returns the starting PSN of a peer's QP, from a random number.
    pub(super) fn psn(random: u64) -> Psn {
        Psn::new((random >> 40) as u32)
    }

    /// Returns the port that an identifier holds, with its port space.
    pub(super) fn port_of(id: &Id) -> Option<(Space, u16)> {
        id.source.filter(|_| id.has_port).map(|source| (id.space, source.port()))
    }

    /// Marks all identifiers on the device as removed and reports that once. Afterwards, they can only be destroyed.
    pub(super) fn lose_device(&mut self) {
        let concerned: Vec<u32> =
            self.ids.iter().filter(|(_, id)| id.on_device).map(|(handle, _)| handle).collect();
        for handle in concerned {
            if let Some(id) = self.ids.get_mut(handle) {
                (id.stage, id.on_device) = (IdState::Removed, false);
            }
            self.queue_event(handle, EventType::DeviceRemoval, 0, Facts::None);
        }
    }

    /// Narrows an identifier from all addresses to one.
    pub(super) fn settle(&mut self, handle: u32, address: IpAddr) {
        let Some(id) = self.ids.get_mut(handle) else { return };
        let Some(source) = &mut id.source else { return };
        source.set_ip(address);
        if let Some((space, port)) = State::port_of(id) {
            self.ports.settle(space, port, handle, address);
        }
    }
}

/// Returns `to` with the scope of `like`, if it has one.
fn same_scope(to: SocketAddr, like: SocketAddr) -> SocketAddr {
    match (to, like) {
        (SocketAddr::V6(mut to), SocketAddr::V6(like)) => {
            to.set_scope_id(like.scope_id());
            to.set_flowinfo(like.flowinfo());
            to.into()
        }
        (to, _) => to,
    }
}
