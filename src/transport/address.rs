//! Address handles: the ways that datagrams take, prepared once (IBTA 11.2.2.1).
//!
//! A datagram names its way by a number in the work request. The number carries a generation, so that one kept
//! beyond the handle's life names nothing, instead of another's way.

use crate::verbs::{AddressVector, AhId, Mtu, PdId};
use crate::wire::{FlowSpec, Gid, RoceVersion, Template};

/// The headers of a flow along a path; `tag`: of 802.1Q, if frames carry one.
pub(super) fn template_of(av: &AddressVector, source_port: u16, tag: Option<u16>) -> Template {
    //= IBTA A17.4.5: addresses-and-class-come-from-the-path
    Template::new(&FlowSpec {
        src_mac: av.smac,
        dst_mac: av.dmac,
        vlan: tag,
        src: av.sgid,
        dst: av.dgid,
        traffic_class: av.traffic_class,
        flow_label: av.flow_label,
        hop_limit: av.hop_limit,
        source_port,
        version: RoceVersion::V2,
    })
}

/// A way.
#[derive(Clone, Debug)]
pub struct AddressHandle {
    /// For QPs of this domain.
    pub pd: PdId,
    /// Our address on it.
    pub sgid: Gid,
    av: AddressVector,
    tag: Option<u16>,
    /// Headers below the transport. The UDP source port is the sender's to fill in.
    pub template: Template,
}

impl AddressHandle {
    /// Its path.
    pub fn av(&self) -> &AddressVector {
        &self.av
    }
}

/// All address handles of a NIC.
#[derive(Debug)]
pub struct AddressHandles {
    slots: Vec<Option<AddressHandle>>,
    generations: Vec<u16>,
    free: Vec<u16>,
    bound: usize,
    largest_mtu: Mtu,
}

impl AddressHandles {
    /// Handles in it.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// The protection domain of each.
    pub fn domains(&self) -> impl Iterator<Item = PdId> {
        self.slots.iter().flatten().map(|handle| handle.pd)
    }

    /// True if there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A table of at most `bound` handles, at most 2^16. `largest_mtu` bounds what a datagram carries.
    pub fn new(bound: u32, largest_mtu: Mtu) -> AddressHandles {
        let bound = bound.min(1 << 16) as usize;
        AddressHandles { slots: Vec::new(), generations: Vec::new(), free: Vec::new(), bound, largest_mtu }
    }

    /// Makes a handle, with a tag of 802.1Q or none; `None`: the table is full.
    pub fn create(&mut self, pd: PdId, av: &AddressVector, tag: Option<u16>) -> Option<AhId> {
        let index = match self.free.pop() {
            Some(index) => usize::from(index),
            None if self.slots.len() < self.bound => {
                self.slots.push(None);
                // Not from 0: a work request that was never told of a handle names none.
                self.generations.push(1);
                self.slots.len() - 1
            }
            None => return None,
        };
        let template = template_of(av, 0, tag);
        self.slots[index] = Some(AddressHandle { pd, sgid: av.sgid, av: *av, tag, template });
        Some(AhId(u32::from(self.generations[index]) << 16 | index as u32))
    }

    /// Takes a handle out and returns its domain; `None`: there is none of this number.
    pub fn destroy(&mut self, id: AhId) -> Option<PdId> {
        let handle = self.find(id)?;
        let pd = handle.pd;
        let index = (id.0 & 0xffff) as usize;
        self.slots[index] = None;
        self.generations[index] = self.generations[index].checked_add(1).unwrap_or(1);
        self.free.push(index as u16);
        Some(pd)
    }

    /// The handle of this number.
    pub fn find(&self, id: AhId) -> Option<&AddressHandle> {
        let index = (id.0 & 0xffff) as usize;
        let generation = self.generations.get(index)?;
        self.slots[index].as_ref().filter(|_| u32::from(*generation) == id.0 >> 16)
    }

    /// Bytes that a datagram carries at most.
    pub fn largest_payload(&self) -> usize {
        self.largest_mtu.bytes()
    }

    /// The link changed.
    pub fn set_largest_mtu(&mut self, mtu: Mtu) {
        self.largest_mtu = mtu;
    }

    /// Changes the paths by `change`: stations of a link may get other addresses. Returns how many it changed.
    pub fn readdress(&mut self, change: impl Fn(&mut AddressVector)) -> u32 {
        let mut changed = 0;
        for handle in self.slots.iter_mut().flatten() {
            let before = handle.av;
            change(&mut handle.av);
            if handle.av != before {
                handle.template = template_of(&handle.av, 0, handle.tag);
                changed += 1;
            }
        }
        changed
    }

    /// Gives their frames tags of 802.1Q, by the path, or none.
    pub fn set_tags(&mut self, tag: impl Fn(&AddressVector) -> Option<u16>) {
        for handle in self.slots.iter_mut().flatten() {
            handle.tag = tag(&handle.av);
            handle.template = template_of(&handle.av, 0, handle.tag);
        }
    }

    /// How many there may be.
    pub fn bound(&self) -> u32 {
        self.bound as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path() -> AddressVector {
        AddressVector {
            sgid: Gid([1; 16]),
            dgid: Gid([2; 16]),
            smac: [0; 6],
            dmac: [0; 6],
            traffic_class: 0,
            flow_label: 0,
            hop_limit: 1,
            sl: 0,
            static_rate: 0,
        }
    }

    #[test]
    fn a_station_that_changes_its_address_is_sent_to_at_the_new_one() {
        let mut handles = AddressHandles::new(2, Mtu::Mtu1024);
        let [here, there] = [[2; 16], [3; 16]].map(|dgid| {
            let av = AddressVector { dgid: Gid(dgid), ..path() };
            handles.create(PdId(1), &av, None).expect("room")
        });
        let moved = |av: &mut AddressVector| {
            if av.dgid == Gid([2; 16]) {
                av.dmac = [9; 6];
            }
        };
        assert_eq!(handles.readdress(moved), 1);
        assert_eq!(handles.readdress(moved), 0, "it is there already");
        let now_at = |id| handles.find(id).expect("a handle").av.dmac;
        assert_eq!((now_at(here), now_at(there)), ([9; 6], [0; 6]));
        let expected = AddressVector { dmac: [9; 6], ..path() };
        let template = &handles.find(here).expect("a handle").template;
        assert_eq!(format!("{template:?}"), format!("{:?}", template_of(&expected, 0, None)));
    }

    #[test]
    fn a_number_names_its_handle_until_it_is_destroyed() {
        let mut handles = AddressHandles::new(1, Mtu::Mtu1024);
        let first = handles.create(PdId(1), &path(), None).expect("room");
        assert_eq!(handles.find(first).map(|h| h.pd), Some(PdId(1)));
        assert_eq!(handles.create(PdId(1), &path(), None), None, "the table is full");
        assert_eq!(handles.destroy(first), Some(PdId(1)));
        assert_eq!(handles.destroy(first), None);
        let second = handles.create(PdId(2), &path(), None).expect("room again");
        assert_ne!(first, second);
        assert!(handles.find(first).is_none(), "the old number does not name the new handle");
        assert!(handles.find(AhId::default()).is_none());
        assert!(handles.find(AhId(u32::MAX)).is_none());
    }
}
