//! Port numbers of `rdma_cm`, by the rules of the kernel's `cma.c` (`cma_check_port`, `cma_bind_listen`).
//!
//! Each port space has numbers of its own, which have nothing to do with the ports of TCP. One rule is stricter than the kernel's: identifiers
//! share a port (`RDMA_OPTION_ID_REUSEADDR`) with those of the same user alone, as sockets do with `SO_REUSEPORT`.

use std::net::IpAddr;

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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
    fn conflict(&self, other: &BoundPort, may_share: bool) -> Option<i32> {
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

/// Ports that are bound.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Ports(Vec<BoundPort>);

impl Ports {
    /// Executes a request of the process in slot `slot`, of user `uid`. Returns the port number. `lowest`: the lowest number that
    /// the process may bind.
    ///
    /// # Errors
    /// As the kernel's: `EACCES` for a privileged port, `EADDRINUSE` for one taken at the same address, `EADDRNOTAVAIL` if the port
    /// is taken and either binding is for all addresses, `EINVAL` for a port that the process has not bound.
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
                self.change(slot, name, |port| port.reuse = false);
                Ok(name.port)
            }
            PortRequest::Settle(name, address) => self.settle(slot, name, address).map(|()| name.port),
            PortRequest::Release(name) => {
                self.0.retain(|port| (port.slot, port.name) != (slot, name));
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
        self.is_free(&port, true)?;
        self.0.push(port);
        Ok(number)
    }

    fn bind_any(&mut self, port: BoundPort, range: PortRange, lowest: u16) -> Result<u16, Denied> {
        let space = port.name.space;
        let mut is_taken = vec![false; 1 << 16];
        let taken = self.0.iter().filter(|other| other.name.space == space);
        taken.for_each(|other| is_taken[usize::from(other.name.port)] = true);
        let first = range.first.max(lowest).max(1);
        let count = u64::from(range.last.saturating_sub(first)) + u64::from(range.last >= first);
        let free = (0..count).map(|step| first + ((range.random % count + step) % count) as u16);
        let none =
            || Denied::new(libc::EADDRNOTAVAIL, format!("no port of {first} to {} is free", range.last));
        let number = free.into_iter().find(|number| !is_taken[usize::from(*number)]).ok_or_else(none)?;
        self.bind(BoundPort { name: PortName { port: number, ..port.name }, ..port }, lowest)
    }

    /// True if no other identifier's port conflicts.
    fn is_free(&self, port: &BoundPort, may_share: bool) -> Result<(), Denied> {
        let others = self.0.iter().filter(|other| (other.slot, other.name) != (port.slot, port.name));
        let conflict = others.into_iter().find_map(|other| Some((port.conflict(other, may_share)?, other)));
        let Some((errno, other)) = conflict else { return Ok(()) };
        let (number, address) = (other.name.port, other.address);
        Err(Denied::new(errno, format!("port {number} is bound at {address} by another identifier")))
    }

    /// A listener shares with no other identifier.
    pub(super) fn may_listen(&self, port: &BoundPort) -> Result<(), Denied> {
        self.is_free(port, false)
    }

    fn find(&self, slot: u8, name: PortName) -> Result<&BoundPort, Denied> {
        let found = self.0.iter().find(|port| (port.slot, port.name) == (slot, name));
        found.ok_or_else(|| Denied::new(libc::EINVAL, format!("port {} is not bound", name.port)))
    }

    /// Narrows a binding from all addresses to one of them, which never conflicts.
    fn settle(&mut self, slot: u8, name: PortName, address: IpAddr) -> Result<(), Denied> {
        let before = self.find(slot, name)?;
        if !before.covers(Some(address)) {
            let why = format!("port {} is bound at {}, not at {address}", name.port, before.address);
            return Err(Denied::new(libc::EINVAL, why));
        }
        self.change(slot, name, |port| port.address = address);
        Ok(())
    }

    fn change(&mut self, slot: u8, name: PortName, act: impl Fn(&mut BoundPort)) {
        self.0.iter_mut().filter(|port| (port.slot, port.name) == (slot, name)).for_each(act);
    }

    pub(super) fn leave(&mut self, slot: u8) {
        self.0.retain(|port| port.slot != slot);
    }

    /// Returns the ports of a process.
    pub fn of(&self, slot: u8) -> impl Iterator<Item = &BoundPort> {
        self.0.iter().filter(move |port| port.slot == slot)
    }

    /// Returns all ports.
    pub fn all(&self) -> &[BoundPort] {
        &self.0
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
