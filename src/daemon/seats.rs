//! Who sits where among those that a NIC serves: numbers that communication IDs begin with, services that are listened for, port numbers
//! of `rdma_cm` that are taken.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use crate::nic::GsiRoutes;
use crate::port::udp::group::BoundPort;

/// Seats that there are. The units beyond belong to nobody.
const SEATS: u8 = 255;
/// Units of others that one may speak for: nobody is to keep all seats from those who come.
const LENT: usize = 16;

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

    /// Gives a free unit to a slot besides its own. False: it is not free, or the slot has enough of them.
    pub(super) fn take_unit(&mut self, unit: u8, slot: u8) -> bool {
        let is_free = self.owner_of_unit(unit).is_none();
        match self.taken.get_mut(&slot) {
            Some(seat) if is_free && seat.more.len() < LENT => {
                seat.more.push(unit);
                true
            }
            _ => false,
        }
    }

    /// Replaces a slot's services. False: others listen for some of them, which stay theirs.
    pub(super) fn set_services(&mut self, slot: u8, services: Vec<(u64, Option<IpAddr>)>) -> bool {
        let mut others = HashMap::<u64, Vec<Option<IpAddr>>>::new();
        for (_, seat) in self.taken.iter().filter(|(other, _)| **other != slot) {
            seat.services.iter().for_each(|(id, on)| others.entry(*id).or_default().push(*on));
        }
        let asked = services.len();
        let is_free = |(id, on): &(u64, Option<IpAddr>)| {
            others.get(id).is_none_or(|taken| taken.iter().all(|other| !overlap(*other, *on)))
        };
        let services: Vec<_> = services.into_iter().filter(is_free).collect();
        let all = services.len() == asked;
        if let Some(seat) = self.taken.get_mut(&slot) {
            seat.services = services;
        }
        all
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

/// True if one address is in both: an unspecified one is all of its family, and none is all.
fn overlap(one: Option<IpAddr>, other: Option<IpAddr>) -> bool {
    let (Some(one), Some(other)) = (one, other) else { return true };
    let any = one.is_unspecified() || other.is_unspecified();
    one == other || (any && one.is_ipv4() == other.is_ipv4())
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
    fn nobody_keeps_the_seats_of_all_who_have_ended() {
        let mut seats = Seats::default();
        let slot = seats.take().expect("a seat");
        let lent = (1..SEATS).filter(|unit| seats.take_unit(*unit, slot)).count();
        assert_eq!(lent, LENT);
        assert!(!seats.take_unit(100, 99), "nobody sits there");
    }

    #[test]
    fn a_service_is_for_who_listened_for_it_first_on_each_address() {
        let mut seats = Seats::default();
        let [a, b] = [0, 1].map(|_| seats.take().expect("a seat"));
        let [here, there] = ["192.0.2.1", "192.0.2.2"].map(|text| text.parse::<IpAddr>().ok());
        let [v4, v6] = ["0.0.0.0", "::"].map(|text| text.parse::<IpAddr>().ok());
        assert!(seats.set_services(a, vec![(7, v4), (8, here), (9, None)]));
        for taken in [(7, None), (7, here), (7, v4), (8, here), (8, v4), (8, None), (9, v6), (9, there)] {
            assert!(!seats.set_services(b, vec![taken, (7, v6)]), "{taken:?}");
            assert_eq!(seats.routes(b).services, [(7, v6)], "what is free it gets");
        }
        assert!(seats.set_services(b, vec![(8, there), (7, v6)]));
        assert!(seats.set_services(a, Vec::new()) && seats.set_services(b, vec![(9, None)]));
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
