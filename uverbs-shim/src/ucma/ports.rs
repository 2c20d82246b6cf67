//! Port numbers, and who has them: what `cma.c` does with addresses and `RDMA_OPTION_ID_REUSEADDR`.
//!
//! Each port space has numbers of its own, which have nothing to do with the ports of TCP. They are the device's: all processes that
//! have it in common share them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::RangeInclusive;

use roxie::host::Seat;
use roxie::port::udp::group::BoundPort;

use crate::object::Errno;

/// `enum rdma_ucm_port_space`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Space {
    Ipoib,
    Ib,
    Tcp,
    Udp,
}

/// Who has a port, or wants it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Owner {
    /// The identifier that holds the port.
    pub(super) id: u32,
    /// The address; unspecified: all.
    pub(super) address: IpAddr,
    /// Shares with those that share too, until one listens.
    pub(super) reuse: bool,
    /// Takes nothing of the other address family.
    pub(super) one_family: bool,
}

impl Owner {
    /// What keeps the two from having the same port.
    fn conflict(&self, other: &Owner, sharing: bool) -> Option<Errno> {
        if sharing && self.reuse && other.reuse {
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
}

/// All ports that are taken.
#[derive(Debug, Default)]
pub(super) struct Ports {
    own: BTreeMap<(Space, u16), Vec<Owner>>,
    /// Processes that have the device in common, and its ports.
    seat: Option<Seat>,
}

/// A port as other processes are told of it.
fn told(space: Space, port: u16, owner: &Owner, slot: u8) -> BoundPort {
    let Owner { id, address, reuse, one_family } = *owner;
    BoundPort { space: space as u8, port, address, reuse, one_family, owner: id, slot }
}

impl From<&BoundPort> for Owner {
    fn from(told: &BoundPort) -> Owner {
        Owner { id: told.owner, address: told.address, reuse: told.reuse, one_family: told.one_family }
    }
}

impl Ports {
    /// From now on they are those of all processes of a group.
    pub(super) fn share(&mut self, seat: &Seat) {
        if self.seat.is_some() {
            return;
        }
        self.seat = Some(seat.clone());
        let slot = seat.slot();
        let own = self
            .own
            .iter()
            .flat_map(|((space, port), owners)| owners.iter().map(|o| told(*space, *port, o, slot)));
        // What cannot be told now is not known elsewhere, as before.
        let own: Vec<_> = own.collect();
        let _ = seat.ports(|all| all.extend(own.iter().cloned()));
    }

    /// Looks at the ports of other processes, and changes what they know of ours. `None`: there are none.
    fn elsewhere<R>(
        &self,
        mut act: impl FnMut(&mut Vec<BoundPort>, u8) -> Result<R, Errno>,
    ) -> Option<Result<R, Errno>> {
        let seat = self.seat.as_ref()?;
        Some(seat.ports(|all| act(all, seat.slot())).unwrap_or(Err(libc::EIO)))
    }

    /// Takes a port for its owner.
    ///
    /// # Errors
    /// `EADDRINUSE` if another has it on the same address, `EADDRNOTAVAIL` if one of the two wants it on all.
    pub(super) fn take(&mut self, space: Space, port: u16, owner: Owner) -> Result<(), Errno> {
        let owners = self.own.get(&(space, port)).map_or(&[][..], Vec::as_slice);
        if let Some(errno) = owners.iter().find_map(|other| owner.conflict(other, true)) {
            return Err(errno);
        }
        self.elsewhere(|all, slot| {
            let others = all.iter().filter(|p| (p.space, p.port) == (space as u8, port) && p.slot != slot);
            let conflict = others.into_iter().find_map(|other| owner.conflict(&other.into(), true));
            conflict.map_or(Ok(()), Err)?;
            all.push(told(space, port, &owner, slot));
            Ok(())
        })
        .unwrap_or(Ok(()))?;
        self.own.entry((space, port)).or_default().push(owner);
        Ok(())
    }

    /// Takes a port that nobody has, looking from a random place on.
    ///
    /// # Errors
    /// `EADDRNOTAVAIL` if there is none.
    pub(super) fn take_any(
        &mut self,
        space: Space,
        range: RangeInclusive<u16>,
        random: u64,
        owner: Owner,
    ) -> Result<u16, Errno> {
        let (first, count) = (*range.start(), range.len() as u64);
        let start = random.checked_rem(count).ok_or(libc::EADDRNOTAVAIL)?;
        let free = (0..count).map(|step| first + ((start + step) % count) as u16);
        let others = self.elsewhere(|all, _| {
            let taken = all.iter().filter(|p| p.space == space as u8);
            Ok(taken.map(|p| p.port).collect::<BTreeSet<u16>>())
        });
        let others = others.unwrap_or_else(|| Ok(BTreeSet::new()))?;
        let mut free = free.into_iter().filter(|port| !self.own.contains_key(&(space, *port)));
        let port = free.find(|port| !others.contains(port));
        let port = port.ok_or(libc::EADDRNOTAVAIL)?;
        self.take(space, port, owner)?;
        Ok(port)
    }

    /// A listener shares with nobody, whatever it and the others said.
    ///
    /// # Errors
    /// As [`Ports::take`].
    pub(super) fn listen(&self, space: Space, port: u16, id: u32) -> Result<(), Errno> {
        let owners = self.own.get(&(space, port)).map_or(&[][..], Vec::as_slice);
        let Some(owner) = owners.iter().find(|owner| owner.id == id) else { return Err(libc::EINVAL) };
        let others = owners.iter().filter(|other| other.id != id);
        others.into_iter().find_map(|other| owner.conflict(other, false)).map_or(Ok(()), Err)?;
        self.elsewhere(|all, slot| {
            let others = all.iter().filter(|p| (p.space, p.port) == (space as u8, port) && p.slot != slot);
            others.into_iter().find_map(|other| owner.conflict(&other.into(), false)).map_or(Ok(()), Err)
        })
        .unwrap_or(Ok(()))
    }

    /// What others know of one of ours.
    fn tell(&self, space: Space, port: u16, id: u32, change: impl Fn(&mut Vec<BoundPort>, usize)) {
        // If they cannot be told, they find the port taken for longer than it is.
        let _ = self.elsewhere(|all, slot| {
            let is_it = |p: &BoundPort| (p.space, p.port, p.owner, p.slot) == (space as u8, port, id, slot);
            if let Some(at) = all.iter().position(is_it) {
                change(all, at);
            }
            Ok(())
        });
    }

    /// Its owner is on one address now.
    pub(super) fn settle(&mut self, space: Space, port: u16, id: u32, address: IpAddr) {
        self.tell(space, port, id, |all, at| all[at].address = address);
        let owners = self.own.get_mut(&(space, port)).map_or(&mut [][..], Vec::as_mut_slice);
        for owner in owners.iter_mut().filter(|owner| owner.id == id) {
            owner.address = address;
        }
    }

    /// Gives it back.
    pub(super) fn release(&mut self, space: Space, port: u16, id: u32) {
        self.tell(space, port, id, |all, at| {
            all.swap_remove(at);
        });
        if let Some(owners) = self.own.get_mut(&(space, port)) {
            owners.retain(|owner| owner.id != id);
            if owners.is_empty() {
                self.own.remove(&(space, port));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(id: u32, address: &str) -> Owner {
        let address: IpAddr = address.parse().unwrap();
        Owner { id, address, reuse: false, one_family: address.is_ipv4() }
    }

    #[test]
    fn a_port_is_had_once_on_an_address_and_not_beside_all_addresses() {
        let mut ports = Ports::default();
        let mut take = |owner| ports.take(Space::Tcp, 7174, owner);
        assert_eq!(take(owner(1, "192.0.2.1")), Ok(()));
        assert_eq!(take(owner(2, "192.0.2.1")), Err(libc::EADDRINUSE));
        assert_eq!(take(owner(3, "192.0.2.2")), Ok(()));
        assert_eq!(take(owner(4, "0.0.0.0")), Err(libc::EADDRNOTAVAIL));
        // An IPv6 owner that is not for its family alone wants IPv4 too.
        assert_eq!(take(owner(5, "::")), Err(libc::EADDRNOTAVAIL));
        assert_eq!(take(Owner { one_family: true, ..owner(6, "::") }), Ok(()));
        assert_eq!(ports.take(Space::Udp, 7174, owner(7, "0.0.0.0")), Ok(()), "another space");
    }

    #[test]
    fn those_who_share_share_until_one_listens() {
        let shared = |id| Owner { reuse: true, ..owner(id, "0.0.0.0") };
        let mut ports = Ports::default();
        assert_eq!(ports.take(Space::Tcp, 9, shared(1)), Ok(()));
        assert_eq!(ports.listen(Space::Tcp, 9, 1), Ok(()), "alone");
        assert_eq!(ports.take(Space::Tcp, 9, shared(2)), Ok(()));
        assert_eq!(ports.listen(Space::Tcp, 9, 2), Err(libc::EADDRNOTAVAIL));
        ports.release(Space::Tcp, 9, 1);
        assert_eq!(ports.listen(Space::Tcp, 9, 2), Ok(()));
        assert_eq!(ports.take(Space::Tcp, 9, owner(3, "0.0.0.0")), Err(libc::EADDRNOTAVAIL));
    }

    #[test]
    fn any_port_is_a_free_one_of_the_range_and_there_are_only_so_many() {
        let mut ports = Ports::default();
        let mut any = |id, random| ports.take_any(Space::Tcp, 100..=102, random, owner(id, "0.0.0.0"));
        assert_eq!(any(1, 4), Ok(101));
        assert_eq!(any(2, 4), Ok(102));
        assert_eq!(any(3, 4), Ok(100));
        assert_eq!(any(4, 4), Err(libc::EADDRNOTAVAIL));
        ports.release(Space::Tcp, 102, 2);
        assert_eq!(ports.take_any(Space::Tcp, 100..=102, 0, owner(5, "0.0.0.0")), Ok(102));
    }

    #[test]
    fn an_owner_that_settles_on_an_address_leaves_the_others_free() {
        let mut ports = Ports::default();
        ports.take(Space::Tcp, 5, owner(1, "0.0.0.0")).unwrap();
        ports.settle(Space::Tcp, 5, 1, "192.0.2.1".parse().unwrap());
        assert_eq!(ports.take(Space::Tcp, 5, owner(2, "192.0.2.2")), Ok(()));
    }
}
