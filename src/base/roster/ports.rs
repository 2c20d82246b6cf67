//! Port numbers of `rdma_cm`, by the rules of the kernel's `cma.c` (`cma_check_port`, `cma_bind_listen`).
//!
//! Each port space has numbers of its own, which have nothing to do with the ports of TCP. One rule is stricter than
//! the kernel's: identifiers share a port (`RDMA_OPTION_ID_REUSEADDR`) with services of the same user alone, as sockets
//! do with `SO_REUSEPORT`.
//!
//! The cost of a request does not depend on how many ports other users have. Ports that may conflict lie side by side
//! in an index, in which the first one of another user is a conflict.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};

use super::Denied;

/// Port spaces by number (`enum rdma_ucm_port_space`): IPoIB, TCP, UDP, IB.
const SPACES: [u16; 4] = [0x0002, 0x0106, 0x0111, 0x013f];

/// A port number that an identifier of `rdma_cm` has bound.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BoundPort {
    /// The port and the identifier.
    pub name: PortName,
    /// The address; unspecified for all.
    pub address: IpAddr,
    /// Shares the port with identifiers of the same user that also allow it, until one listens.
    pub reuse: bool,
    /// Accepts no addresses of the other family.
    pub one_family: bool,
    /// The slot of the process. The roster sets it.
    #[serde(default)]
    pub slot: u8,
    /// The user of the process. The roster sets it.
    #[serde(default)]
    pub uid: u32,
}

/// A port of an identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PortName {
    /// The port space (`enum rdma_ucm_port_space`).
    pub space: u16,
    /// The port number.
    pub port: u16,
    /// The number of the identifier within its process.
    pub owner: u32,
}

impl PortName {
    /// Returns the service ID of connection requests to the port (IBTA A11.2.2).
    pub(super) fn service(self) -> u64 {
        u64::from(self.space) << 16 | u64::from(self.port)
    }
}

/// Returns the port space and number of a service ID, or `None` if it names no port.
pub(super) fn port_of(service: u64) -> Option<(u16, u16)> {
    let space = u16::try_from(service >> 16).ok()?;
    SPACES.contains(&space).then_some((space, service as u16))
}

/// A request of `rdma_cm` about ports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PortRequest {
    /// Bind this port (`rdma_bind_addr`).
    Bind(BoundPort),
    /// Bind a port of the range that is free, searched from a random number on. The number in the name is ignored.
    BindAny(BoundPort, PortRange),
    /// Listen on a bound port (`rdma_listen`).
    Listen(PortName),
    /// Narrow a binding from all addresses to this one.
    Settle(PortName, IpAddr),
    /// Release a port.
    Release(PortName),
}

/// Port numbers to choose from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortRange {
    /// The lowest.
    pub first: u16,
    /// The highest.
    pub last: u16,
    /// A random number, unpredictable to other processes.
    pub random: u64,
}

impl BoundPort {
    /// Returns the errno for the reason why two identifiers cannot have the same port.
    pub(super) fn conflict(&self, other: &BoundPort, may_share: bool) -> Option<i32> {
        let is_same = (self.name.space, self.name.port) == (other.name.space, other.name.port);
        let shares = may_share && self.reuse && other.reuse && self.uid == other.uid;
        if !is_same || shares {
            return None;
        }
        let families = self.address.is_ipv4() == other.address.is_ipv4();
        if self.one_family && other.one_family && !families {
            return None;
        }
        if self.address.is_unspecified() || other.address.is_unspecified() {
            return Some(libc::EADDRNOTAVAIL);
        }
        (self.address == other.address).then_some(libc::EADDRINUSE)
    }

    fn family(&self) -> Family {
        match self.one_family {
            false => Family::Both,
            true if self.address.is_ipv4() => Family::V4,
            true => Family::V6,
        }
    }

    fn place(&self) -> BindingKey {
        BindingKey { family: self.family(), address: self.address, slot: self.slot, owner: self.name.owner }
    }

    /// True if requests to an address are for this port. `None`: to any address of both families.
    pub(super) fn covers(&self, address: Option<IpAddr>) -> bool {
        let takes_all = self.address.is_unspecified();
        let takes_both = takes_all && self.address.is_ipv6() && !self.one_family;
        match address {
            None => takes_both,
            Some(ip) => {
                ip == self.address || takes_both || (takes_all && ip.is_ipv4() == self.address.is_ipv4())
            }
        }
    }
}

/// Which addresses a port may take, and so which ports conflict with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Family {
    V4,
    V6,
    Both,
}

const ALL_V4: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
const ALL_V6: IpAddr = IpAddr::V6(Ipv6Addr::UNSPECIFIED);

impl Family {
    const ALL: [Family; 3] = [Family::V4, Family::V6, Family::Both];

    /// Families of which a port may conflict with one of this family.
    fn conflicting(self) -> &'static [Family] {
        match self {
            Family::V4 => &[Family::V4, Family::Both],
            Family::V6 => &[Family::V6, Family::Both],
            Family::Both => &[Family::V4, Family::V6, Family::Both],
        }
    }
}

/// Where a port stands in the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct BindingKey {
    family: Family,
    address: IpAddr,
    slot: u8,
    owner: u32,
}

impl BindingKey {
    fn first(family: Family, address: IpAddr) -> BindingKey {
        BindingKey { family, address, slot: 0, owner: 0 }
    }

    fn last(family: Family, address: IpAddr) -> BindingKey {
        BindingKey { family, address, slot: u8::MAX, owner: u32::MAX }
    }
}

/// Ports that are bound.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<BoundPort>", into = "Vec<BoundPort>")]
pub struct Ports {
    of_slots: BTreeMap<u8, BTreeMap<PortName, BoundPort>>,
    /// By port space and number: no set is empty.
    numbers: BTreeMap<(u16, u16), BTreeSet<BindingKey>>,
}

impl From<Vec<BoundPort>> for Ports {
    fn from(all: Vec<BoundPort>) -> Ports {
        let mut ports = Ports::default();
        all.into_iter().for_each(|port| ports.insert(port));
        ports
    }
}

impl From<Ports> for Vec<BoundPort> {
    fn from(ports: Ports) -> Vec<BoundPort> {
        ports.of_slots.into_values().flat_map(BTreeMap::into_values).collect()
    }
}

impl Ports {
    /// Executes a request of the process in slot `slot`, of user `uid`. Returns the port number. `lowest`: the lowest
    /// number that the process may bind.
    ///
    /// # Errors
    /// As the kernel's: `EACCES` for a privileged port, `EADDRINUSE` for one taken at the same address, `EADDRNOTAVAIL`
    /// if the port is taken and either binding is for all addresses, `EINVAL` for a port that the process has not
    /// bound.
    pub fn request(
        &mut self,
        (slot, uid): (u8, u32),
        request: PortRequest,
        lowest: u16,
    ) -> Result<u16, Denied> {
        match request {
            PortRequest::Bind(port) => self.bind(BoundPort { slot, uid, ..port }, lowest),
            PortRequest::BindAny(port, range) => {
                self.bind_any(BoundPort { slot, uid, ..port }, range, lowest)
            }
            PortRequest::Listen(name) => {
                self.find(slot, name).and_then(|port| self.may_listen(port))?;
                // From now on it is shared no more (`rdma_listen` of the kernel).
                if let Some(port) = self.of_slots.get_mut(&slot).and_then(|own| own.get_mut(&name)) {
                    port.reuse = false;
                }
                Ok(name.port)
            }
            PortRequest::Settle(name, address) => self.settle(slot, name, address).map(|()| name.port),
            PortRequest::Release(name) => {
                self.remove(slot, name);
                Ok(name.port)
            }
        }
    }

    fn bind(&mut self, port: BoundPort, lowest: u16) -> Result<u16, Denied> {
        let PortName { space, port: number, .. } = port.name;
        if !SPACES.contains(&space) || number == 0 {
            return Err(Denied::new(
                libc::EINVAL,
                format!("port {number} of space {space:#x}: no such port"),
            ));
        }
        if number < lowest {
            let why = format!("port {number}: those below {lowest} are for root and for the NIC's user");
            return Err(Denied::new(libc::EACCES, why));
        }
        if self.find(port.slot, port.name).is_ok() {
            return Err(Denied::new(libc::EINVAL, format!("the identifier has bound port {number} already")));
        }
        self.is_free(&port, true)?;
        self.insert(port);
        Ok(number)
    }

    fn bind_any(&mut self, port: BoundPort, range: PortRange, lowest: u16) -> Result<u16, Denied> {
        let space = port.name.space;
        let (first, last) = (range.first.max(lowest).max(1), range.last);
        let none = || Denied::new(libc::EADDRNOTAVAIL, format!("no port of {first} to {last} is free"));
        let count = u64::from(last.checked_sub(first).ok_or_else(none)?) + 1;
        let start = first + (range.random % count) as u16;
        let number = self.free_from(space, start, last).or_else(|| self.free_from(space, first, start));
        let number = number.ok_or_else(none)?;
        self.bind(BoundPort { name: PortName { port: number, ..port.name }, ..port }, lowest)
    }

    /// Returns the first number that no identifier has.
    fn free_from(&self, space: u16, first: u16, last: u16) -> Option<u16> {
        let mut taken = self.numbers.range((space, first)..=(space, last)).map(|((_, number), _)| *number);
        (first..=last).find(|number| taken.next() != Some(*number))
    }

    fn insert(&mut self, port: BoundPort) {
        let PortName { space, port: number, .. } = port.name;
        self.numbers.entry((space, number)).or_default().insert(port.place());
        self.of_slots.entry(port.slot).or_default().insert(port.name, port);
    }

    fn remove(&mut self, slot: u8, name: PortName) -> Option<BoundPort> {
        let port = self.of_slots.get_mut(&slot)?.remove(&name)?;
        self.unlist(&port);
        Some(port)
    }

    /// Takes a port out of the index.
    fn unlist(&mut self, port: &BoundPort) {
        let number = (port.name.space, port.name.port);
        if let Some(places) = self.numbers.get_mut(&number) {
            places.remove(&port.place());
            if places.is_empty() {
                self.numbers.remove(&number);
            }
        }
    }

    /// True if no other identifier's port conflicts. Of several ports with one address and family the first stands for
    /// all: either they share, or there is one.
    fn is_free(&self, port: &BoundPort, may_share: bool) -> Result<(), Denied> {
        let Some(places) = self.numbers.get(&(port.name.space, port.name.port)) else { return Ok(()) };
        let one = [port.address, ALL_V4, ALL_V6].map(|address| (address, address));
        let all = [(ALL_V4, IpAddr::V6(Ipv6Addr::from_bits(u128::MAX)))];
        let ranges = if port.address.is_unspecified() { &all[..] } else { &one[..] };
        let conflicts = |(from, to): (IpAddr, IpAddr), family: Family| {
            let those = places.range(BindingKey::first(family, from)..=BindingKey::last(family, to));
            let others = those
                .filter(|place| **place != port.place())
                .filter_map(|place| self.find(place.slot, PortName { owner: place.owner, ..port.name }).ok());
            let few = if from == to { 1 } else { usize::MAX };
            others.take(few).find_map(|other| Some((port.conflict(other, may_share)?, other)))
        };
        for family in port.family().conflicting() {
            for range in ranges {
                let Some((errno, other)) = conflicts(*range, *family) else { continue };
                let (number, address) = (other.name.port, other.address);
                let whose = if other.slot == port.slot { "this" } else { "another" };
                let why =
                    format!("port {number} is bound at {address} by another identifier, of {whose} process");
                return Err(Denied::new(errno, why));
            }
        }
        Ok(())
    }

    /// A listener shares with no other identifier.
    fn may_listen(&self, port: &BoundPort) -> Result<(), Denied> {
        self.is_free(port, false)
    }

    /// True if a process may take requests for a service on an address. A service of a port is for the process that has
    /// bound the port there, and shares it with no other identifier.
    ///
    /// # Errors
    /// `EACCES` without such a port, and the errors of [`request`](Self::request).
    pub(super) fn may_serve(&self, slot: u8, service: u64, address: Option<IpAddr>) -> Result<(), Denied> {
        let Some((_, number)) = port_of(service) else { return Ok(()) };
        let unbound =
            || Denied::new(libc::EACCES, format!("port {number} is not bound for service {service:#x}"));
        self.may_listen(self.covering(slot, service, address).ok_or_else(unbound)?)
    }

    /// True if the process has bound the port of a service on this address.
    pub(super) fn covers(&self, slot: u8, service: u64, address: Option<IpAddr>) -> bool {
        self.covering(slot, service, address).is_some()
    }

    /// Returns the port of a process that takes requests for a service to an address.
    fn covering(&self, slot: u8, service: u64, address: Option<IpAddr>) -> Option<&BoundPort> {
        let (space, port) = port_of(service)?;
        let places = self.numbers.get(&(space, port))?;
        let at = |family, address| {
            let first = BindingKey { slot, ..BindingKey::first(family, address) };
            let place = places.range(first..).next()?;
            let name = PortName { space, port, owner: place.owner };
            self.find(place.slot, name).ok().filter(|port| port.slot == slot)
        };
        let places = [address.unwrap_or(ALL_V6), ALL_V4, ALL_V6];
        let those = places.iter().flat_map(|address| Family::ALL.map(|family| at(family, *address)));
        those.flatten().find(|port| port.covers(address))
    }

    fn find(&self, slot: u8, name: PortName) -> Result<&BoundPort, Denied> {
        let binding = self.of_slots.get(&slot).and_then(|own| own.get(&name));
        binding.ok_or_else(|| Denied::new(libc::EINVAL, format!("port {} is not bound", name.port)))
    }

    /// Narrows a binding from all addresses to one of them, which never conflicts.
    fn settle(&mut self, slot: u8, name: PortName, address: IpAddr) -> Result<(), Denied> {
        let before = self.find(slot, name)?;
        if !before.covers(Some(address)) {
            let why = format!("port {} is bound at {}, not at {address}", name.port, before.address);
            return Err(Denied::new(libc::EINVAL, why));
        }
        if let Some(port) = self.remove(slot, name) {
            self.insert(BoundPort { address, ..port });
        }
        Ok(())
    }

    pub(super) fn leave(&mut self, slot: u8) {
        for port in self.of_slots.remove(&slot).unwrap_or_default().into_values() {
            self.unlist(&port);
        }
    }

    /// Returns the ports of a process.
    pub fn of(&self, slot: u8) -> impl Iterator<Item = &BoundPort> {
        self.of_slots.get(&slot).into_iter().flat_map(BTreeMap::values)
    }

    /// Returns how many ports a process has.
    pub(super) fn count(&self, slot: u8) -> usize {
        self.of_slots.get(&slot).map_or(0, BTreeMap::len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOWEST: u16 = 1024;
    const TCP: u16 = 0x0106;

    fn named(port: u16, owner: u32) -> PortName {
        PortName { space: TCP, port, owner }
    }

    fn bound(port: u16, owner: u32, address: &str) -> BoundPort {
        let address: IpAddr = address.parse().expect("an address");
        BoundPort {
            name: named(port, owner),
            address,
            reuse: false,
            one_family: address.is_ipv4(),
            slot: 0,
            uid: 0,
        }
    }

    fn errno(result: Result<u16, Denied>) -> Result<u16, i32> {
        result.map_err(|denied| denied.errno)
    }

    #[test]
    fn address_has_a_port_once() {
        let mut ports = Ports::default();
        let mut bind = |port| errno(ports.request((0, 0), PortRequest::Bind(port), LOWEST));
        assert_eq!(bind(bound(7174, 1, "192.0.2.1")), Ok(7174));
        assert_eq!(bind(bound(7174, 2, "192.0.2.1")), Err(libc::EADDRINUSE));
        assert_eq!(bind(bound(7174, 3, "192.0.2.2")), Ok(7174));
        assert_eq!(bind(bound(7174, 4, "0.0.0.0")), Err(libc::EADDRNOTAVAIL));
        // An IPv6 identifier that is not for its family alone wants IPv4 too.
        assert_eq!(bind(bound(7174, 5, "::")), Err(libc::EADDRNOTAVAIL));
        assert_eq!(bind(BoundPort { one_family: true, ..bound(7174, 6, "::") }), Ok(7174));
        let mut other_space = bound(7174, 7, "0.0.0.0");
        other_space.name.space = 0x0111;
        assert_eq!(bind(other_space.clone()), Ok(7174));
        other_space.name.space = 0x0107;
        assert_eq!(bind(other_space), Err(libc::EINVAL));
        assert_eq!(bind(bound(LOWEST - 1, 8, "0.0.0.0")), Err(libc::EACCES));
        assert_eq!(bind(bound(0, 8, "0.0.0.0")), Err(libc::EINVAL));
    }

    #[test]
    fn shared_port_has_one_user_and_one_listener() {
        let mut ports = Ports::default();
        let shared = |owner| BoundPort { reuse: true, ..bound(9000, owner, "0.0.0.0") };
        let mut request = |who, request| errno(ports.request(who, request, LOWEST));
        assert_eq!(request((0, 7), PortRequest::Bind(shared(1))), Ok(9000));
        assert_eq!(request((1, 8), PortRequest::Bind(shared(1))), Err(libc::EADDRNOTAVAIL));
        assert_eq!(request((2, 7), PortRequest::Bind(shared(1))), Ok(9000));
        assert_eq!(request((2, 7), PortRequest::Listen(named(9000, 1))), Err(libc::EADDRNOTAVAIL));
        assert_eq!(request((2, 7), PortRequest::Listen(named(9000, 3))), Err(libc::EINVAL));
        // A process releases only its own ports.
        assert_eq!(request((1, 8), PortRequest::Release(named(9000, 1))), Ok(9000));
        assert_eq!(request((2, 7), PortRequest::Listen(named(9000, 1))), Err(libc::EADDRNOTAVAIL));
        assert_eq!(request((0, 7), PortRequest::Release(named(9000, 1))), Ok(9000));
        assert_eq!(request((2, 7), PortRequest::Listen(named(9000, 1))), Ok(9000));
        assert_eq!(request((0, 7), PortRequest::Bind(shared(1))), Err(libc::EADDRNOTAVAIL), "it listens");
    }

    #[test]
    fn any_port_is_a_free_one() {
        let mut ports = Ports::default();
        let mut any = |owner, (first, last), random| {
            let range = PortRange { first, last, random };
            errno(ports.request((0, 0), PortRequest::BindAny(bound(0, owner, "0.0.0.0"), range), 100))
        };
        assert_eq!(any(1, (99, 102), 4), Ok(101), "from the lowest that is allowed");
        assert_eq!((any(2, (100, 102), 4), any(3, (100, 102), 4)), (Ok(102), Ok(100)));
        assert_eq!(any(4, (100, 102), 4), Err(libc::EADDRNOTAVAIL));
        assert_eq!(any(4, (7, 3), 4), Err(libc::EADDRNOTAVAIL));
        assert_eq!(any(4, (u16::MAX, u16::MAX), u64::MAX), Ok(u16::MAX));
        ports.request((0, 0), PortRequest::Release(named(102, 2)), 100).expect("its own");
        let range = PortRange { first: 0, last: 102, random: 0 };
        let again = PortRequest::BindAny(bound(0, 5, "0.0.0.0"), range);
        assert_eq!(errno(ports.request((0, 0), again, 100)), Ok(102));
    }

    #[test]
    fn identifier_settles_within_its_addresses() {
        let mut ports = Ports::default();
        let [here, there] =
            ["192.0.2.1", "192.0.2.2"].map(|text| text.parse::<IpAddr>().expect("an address"));
        let mut request = |request| errno(ports.request((0, 0), request, LOWEST));
        assert_eq!(request(PortRequest::Bind(bound(5000, 1, "0.0.0.0"))), Ok(5000));
        assert_eq!(request(PortRequest::Settle(named(5000, 1), here)), Ok(5000));
        assert_eq!(request(PortRequest::Settle(named(5000, 1), there)), Err(libc::EINVAL));
        assert_eq!(request(PortRequest::Bind(bound(5000, 2, "192.0.2.2"))), Ok(5000));
    }
}
