//! Services for which processes take connection requests, found by service and by process: the cost of a call does not
//! depend on how many services other processes have.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::{Denied, Ports};
use roxie_wire::addressee::listens_for;

/// A service for which a process takes connection requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Service {
    /// The service ID (IBTA 12.7.3).
    pub id: u64,
    /// The only address on which it is served; unspecified: all of its family; `None`: all.
    pub address: Option<IpAddr>,
    /// The place of the process that has it.
    pub slot: u8,
}

/// A service ID and where it is served.
type Name = (u64, Option<IpAddr>);

/// Services that processes have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<Service>", into = "Vec<Service>")]
pub struct Services {
    all: BTreeSet<Service>,
    of_slots: BTreeMap<u8, BTreeSet<Name>>,
}

impl From<Vec<Service>> for Services {
    fn from(services: Vec<Service>) -> Services {
        services.into_iter().collect()
    }
}

impl From<Services> for Vec<Service> {
    fn from(services: Services) -> Vec<Service> {
        services.all.into_iter().collect()
    }
}

impl FromIterator<Service> for Services {
    fn from_iter<I: IntoIterator<Item = Service>>(services: I) -> Services {
        let mut all = Services::default();
        services.into_iter().for_each(|service| all.insert(service));
        all
    }
}

impl Services {
    /// Adds a service without a look at the services of other processes.
    pub fn insert(&mut self, service: Service) {
        let Service { id, address, slot } = service;
        self.all.insert(service);
        self.of_slots.entry(slot).or_default().insert((id, address));
    }

    fn remove(&mut self, service: Service) {
        let Service { id, address, slot } = service;
        self.all.remove(&service);
        if let Some(own) = self.of_slots.get_mut(&slot) {
            own.remove(&(id, address));
        }
    }

    /// Returns all services, by ID.
    pub fn iter(&self) -> impl Iterator<Item = &Service> {
        self.all.iter()
    }

    /// Returns the services of a slot, by ID and address.
    pub fn of(&self, slot: u8) -> impl Iterator<Item = Name> + '_ {
        self.of_slots.get(&slot).into_iter().flatten().copied()
    }

    /// Returns how many services a slot has.
    pub fn count(&self, slot: u8) -> usize {
        self.of_slots.get(&slot).map_or(0, BTreeSet::len)
    }

    /// Takes out the services of a slot with this ID that are not to be kept.
    pub(super) fn retain(&mut self, slot: u8, id: u64, keep: impl Fn(Option<IpAddr>) -> bool) {
        let own = self.of_slots.get(&slot).into_iter();
        let those = own.flat_map(|own| own.range((id, None)..).take_while(|(its, _)| *its == id));
        let removed: Vec<Name> = those.filter(|(_, address)| !keep(*address)).copied().collect();
        removed.into_iter().for_each(|(id, address)| self.remove(Service { id, address, slot }));
    }

    /// Takes out all services of a slot.
    pub(super) fn leave(&mut self, slot: u8) {
        for (id, address) in self.of_slots.remove(&slot).unwrap_or_default() {
            self.all.remove(&Service { id, address, slot });
        }
    }

    /// Replaces a slot's services. Those that it may not have are left out. A service that it has stays, whatever other
    /// processes have bound since.
    ///
    /// # Errors
    /// Why the first of those is refused.
    pub(super) fn replace(
        &mut self,
        slot: u8,
        services: impl IntoIterator<Item = Name>,
        ports: &Ports,
    ) -> Result<(), Denied> {
        let own = self.of_slots.remove(&slot).unwrap_or_default();
        let (mut retained, mut refused) = (BTreeSet::new(), Ok(()));
        for name in services {
            let judged = if own.contains(&name) { Ok(()) } else { self.judge(slot, name, ports) };
            match judged {
                Ok(()) => drop(retained.insert(name)),
                Err(denied) => refused = refused.and(Err(denied)),
            }
        }
        for (id, address) in own.difference(&retained) {
            self.all.remove(&Service { id: *id, address: *address, slot });
        }
        self.all.extend(retained.difference(&own).map(|(id, address)| Service {
            id: *id,
            address: *address,
            slot,
        }));
        self.of_slots.insert(slot, retained);
        refused
    }

    /// A process takes requests that no other one takes, and for ports that it has bound and no other process shares.
    fn judge(&self, slot: u8, (id, address): Name, ports: &Ports) -> Result<(), Denied> {
        if self.has_other(slot, id, address) {
            let why = format!("another process listens for service {id:#x}");
            return Err(Denied::new(libc::EADDRINUSE, why));
        }
        ports.may_serve(slot, id, address)
    }

    /// True if another slot has the service on an address that is also one of these.
    fn has_other(&self, slot: u8, id: u64, address: Option<IpAddr>) -> bool {
        let service = |address, slot| Service { id, address, slot };
        let within = |first, last| self.all.range(service(first, 0)..=service(last, u8::MAX));
        let is_others = |first, last| within(first, last).any(|service| service.slot != slot);
        let highest = Some(IpAddr::from([u8::MAX; 16]));
        match address {
            None => is_others(None, highest),
            Some(IpAddr::V4(all)) if all.is_unspecified() => {
                is_others(None, None) || is_others(Some(all.into()), Some(IpAddr::from([u8::MAX; 4])))
            }
            Some(all) if all.is_unspecified() => is_others(None, None) || is_others(Some(all), highest),
            Some(one) => listens_for(one).into_iter().any(|on| is_others(on, on)),
        }
    }

    /// Returns the slot of the process that listens closest to an address.
    pub(super) fn server_of(&self, id: u64, address: IpAddr) -> Option<u8> {
        listens_for(address).into_iter().find_map(|address| {
            let first = Service { id, address, slot: 0 };
            let next = self.all.range(first..).next()?;
            ((next.id, next.address) == (id, address)).then_some(next.slot)
        })
    }
}
