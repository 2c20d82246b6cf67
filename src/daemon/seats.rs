//! Who sits where among those that a NIC serves: numbers that communication IDs begin with, services that are listened for, port numbers
//! of `rdma_cm` that are taken.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::nic::GsiRoutes;
use crate::port::udp::group::BoundPort;

/// Seats that there are. The units beyond belong to nobody.
const SEATS: u8 = 255;

/// One of those that are served.
#[derive(Debug, Default)]
struct Seat {
    /// Units of processes that have ended, in whose name it speaks.
    more: Vec<u8>,
    services: Vec<(u64, Option<IpAddr>)>,
}

/// See the module's page.
#[derive(Debug, Default)]
pub(super) struct Seats {
    taken: BTreeMap<u8, Seat>,
    ports: Vec<BoundPort>,
    version: u64,
    /// Where to look for the next: one that was left is not given again soon.
    next: u8,
}

impl Seats {
    /// A seat. `None`: all are taken.
    pub(super) fn take(&mut self) -> Option<u8> {
        let order =
            (0..SEATS).map(|step| ((u16::from(self.next) + u16::from(step)) % u16::from(SEATS)) as u8);
        let slot = order.into_iter().find(|slot| self.owner_of_unit(*slot).is_none())?;
        self.next = (slot + 1) % SEATS;
        self.taken.insert(slot, Seat::default());
        Some(slot)
    }

    /// Whoever had it is gone.
    pub(super) fn leave(&mut self, slot: u8) {
        self.taken.remove(&slot);
        if self.ports.iter().any(|port| port.slot == slot) {
            self.ports.retain(|port| port.slot != slot);
            self.version += 1;
        }
    }

    fn owner_of_unit(&self, unit: u8) -> Option<u8> {
        let has = |(slot, seat): (&u8, &Seat)| (*slot == unit || seat.more.contains(&unit)).then_some(*slot);
        self.taken.iter().find_map(has)
    }

    /// Gives a free unit to a slot besides its own. False: it is not free.
    pub(super) fn take_unit(&mut self, unit: u8, slot: u8) -> bool {
        let is_free = self.owner_of_unit(unit).is_none();
        if let Some(seat) = self.taken.get_mut(&slot).filter(|_| is_free) {
            seat.more.push(unit);
        }
        is_free
    }

    pub(super) fn set_services(&mut self, slot: u8, services: Vec<(u64, Option<IpAddr>)>) {
        if let Some(seat) = self.taken.get_mut(&slot) {
            seat.services = services;
        }
    }

    /// Which management datagrams are a slot's.
    pub(super) fn routes(&self, slot: u8) -> GsiRoutes {
        let seat = self.taken.get(&slot);
        let more = seat.map_or(&[][..], |seat| &seat.more);
        GsiRoutes {
            units: std::iter::once(slot).chain(more.iter().copied()).collect(),
            services: seat.map_or_else(Vec::new, |seat| seat.services.clone()),
        }
    }

    /// All ports that are bound, and the version of that.
    pub(super) fn ports(&self) -> (u64, Vec<BoundPort>) {
        (self.version, self.ports.clone())
    }

    /// Replaces a slot's ports. False: something has changed since `version`.
    pub(super) fn set_ports(&mut self, slot: u8, version: u64, ports: Vec<BoundPort>) -> bool {
        if version != self.version {
            return false;
        }
        self.version += 1;
        self.ports.retain(|port| port.slot != slot);
        self.ports.extend(ports.into_iter().map(|port| BoundPort { slot, ..port }));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(number: u16, slot: u8) -> BoundPort {
        let address = IpAddr::from([0, 0, 0, 0]);
        BoundPort { space: 1, port: number, address, reuse: false, one_family: false, owner: 1, slot }
    }

    #[test]
    fn a_seat_that_was_left_is_not_given_again_soon_and_there_is_an_end() {
        let mut seats = Seats::default();
        assert_eq!([seats.take(), seats.take()], [Some(0), Some(1)]);
        seats.leave(0);
        assert_eq!(seats.take(), Some(2));
        assert!(seats.take_unit(0, 2) && !seats.take_unit(0, 1) && !seats.take_unit(1, 2));
        assert_eq!(seats.routes(2).units, [2, 0]);
        let rest: Vec<u8> = std::iter::from_fn(|| seats.take()).collect();
        assert_eq!(rest.len(), usize::from(SEATS) - 3, "the unit of the one that was left is lent");
        seats.leave(2);
        assert_eq!([seats.take(), seats.take(), seats.take()], [Some(0), Some(2), None]);
    }

    #[test]
    fn ports_change_only_by_who_has_seen_the_last_change_and_only_his() {
        let mut seats = Seats::default();
        let [a, b] = [0, 1].map(|_| seats.take().expect("a seat"));
        let (version, _) = seats.ports();
        assert!(seats.set_ports(a, version, vec![port(7000, b)]), "whosever it says they are");
        assert!(!seats.set_ports(b, version, vec![port(7000, b)]));
        let (version, ports) = seats.ports();
        assert_eq!(ports, [port(7000, a)]);
        assert!(seats.set_ports(b, version, vec![port(7001, b)]));
        seats.leave(a);
        let (last, ports) = seats.ports();
        assert!(last > version + 1 && ports == [port(7001, b)]);
    }
}
