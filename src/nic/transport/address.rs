//! Address handles: prepared paths for datagrams (IBTA 11.2.2.1).
//!
//! A work request names its address handle by a number. The number includes a generation, so that the number of a
//! destroyed handle is not valid for a later one.

use crate::verbs::{AddressVector, AhId, Mtu, PdId};
use roxie_wire::{FlowSpec, Gid, Template};

/// Returns the headers for a flow along path `av`. `tag` is the 802.1Q tag, if any.
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
        version: av.encapsulation.version,
    })
}

/// A path that datagrams may take.
#[derive(Clone, Debug)]
pub struct AddressHandle {
    /// Protection domain. Only its QPs may use the handle.
    pub pd: PdId,
    /// Local GID.
    pub sgid: Gid,
    av: AddressVector,
    tag: Option<u16>,
    /// True if the local GID was removed. The handle then serves no work request.
    is_removed: bool,
    /// Headers up to UDP. The sender fills in its own UDP source port.
    pub template: Template,
}

impl AddressHandle {
    /// Returns the path.
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
    /// Returns the number of handles.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Returns the protection domain of every handle.
    pub fn domains(&self) -> impl Iterator<Item = PdId> {
        self.slots.iter().flatten().map(|handle| handle.pd)
    }

    /// True if the table is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns an empty table for at most `bound` handles, capped at 2^16. `largest_mtu` bounds a datagram's payload.
    pub fn new(bound: u32, largest_mtu: Mtu) -> AddressHandles {
        let bound = bound.min(1 << 16) as usize;
        AddressHandles { slots: Vec::new(), generations: Vec::new(), free: Vec::new(), bound, largest_mtu }
    }

    /// Creates a handle, with an 802.1Q tag or without. Returns `None` if the table is full.
    pub fn create(&mut self, pd: PdId, av: &AddressVector, tag: Option<u16>) -> Option<AhId> {
        let index = match self.free.pop() {
            Some(index) => usize::from(index),
            None if self.slots.len() < self.bound => {
                self.slots.push(None);
                // Generations start at 1, so that id 0, a work request's default, is never valid.
                self.generations.push(1);
                self.slots.len() - 1
            }
            None => return None,
        };
        let template = template_of(av, 0, tag);
        self.slots[index] =
            Some(AddressHandle { pd, sgid: av.sgid, av: *av, tag, is_removed: false, template });
        Some(AhId(u32::from(self.generations[index]) << 16 | index as u32))
    }

    /// Destroys a handle and returns its domain. Returns `None` if the id is not valid.
    pub fn destroy(&mut self, id: AhId) -> Option<PdId> {
        let handle = self.named(id)?;
        let pd = handle.pd;
        let index = (id.0 & 0xffff) as usize;
        self.slots[index] = None;
        self.generations[index] = self.generations[index].checked_add(1).unwrap_or(1);
        self.free.push(index as u16);
        Some(pd)
    }

    /// Returns the handle with this id, if its local GID still exists.
    pub fn find(&self, id: AhId) -> Option<&AddressHandle> {
        self.named(id).filter(|handle| !handle.is_removed)
    }

    /// Marks the handles whose path `is_gone`, and unmarks the others.
    pub fn mark_removed(&mut self, is_gone: impl Fn(&AddressVector) -> bool) {
        for handle in self.slots.iter_mut().flatten() {
            handle.is_removed = is_gone(&handle.av);
        }
    }

    fn named(&self, id: AhId) -> Option<&AddressHandle> {
        let index = (id.0 & 0xffff) as usize;
        let generation = self.generations.get(index)?;
        self.slots[index].as_ref().filter(|_| u32::from(*generation) == id.0 >> 16)
    }

    /// Returns the largest payload of a datagram in bytes.
    pub fn largest_payload(&self) -> usize {
        self.largest_mtu.bytes()
    }

    /// Sets the largest MTU, after the link has changed.
    pub fn set_largest_mtu(&mut self, mtu: Mtu) {
        self.largest_mtu = mtu;
    }

    /// Applies `change` to every path, because a host's MAC address may change. Returns the number of changed handles.
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

    /// Sets the 802.1Q tag of every handle to `tag` of its path.
    pub fn set_tags(&mut self, tag: impl Fn(&AddressVector) -> Option<u16>) {
        for handle in self.slots.iter_mut().flatten() {
            handle.tag = tag(&handle.av);
            handle.template = template_of(&handle.av, 0, handle.tag);
        }
    }

    /// Returns the maximum number of handles.
    pub fn bound(&self) -> u32 {
        self.bound as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path() -> AddressVector {
        let path = AddressVector::new(Gid([1; 16]), Gid([2; 16]), [0; 6], [0; 6]);
        AddressVector { hop_limit: 1, ..path }
    }

    #[test]
    fn readdress_updates_the_template_of_the_moved_station() {
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
        assert_eq!(handles.readdress(moved), 0, "address is unchanged");
        let now_at = |id| handles.find(id).expect("a handle").av.dmac;
        assert_eq!((now_at(here), now_at(there)), ([9; 6], [0; 6]));
        let expected = AddressVector { dmac: [9; 6], ..path() };
        let template = &handles.find(here).expect("a handle").template;
        assert_eq!(format!("{template:?}"), format!("{:?}", template_of(&expected, 0, None)));
    }

    #[test]
    fn destroyed_handle_id_is_not_valid_again() {
        let mut handles = AddressHandles::new(1, Mtu::Mtu1024);
        let first = handles.create(PdId(1), &path(), None).expect("room");
        assert_eq!(handles.find(first).map(|h| h.pd), Some(PdId(1)));
        assert_eq!(handles.create(PdId(1), &path(), None), None, "the table is full");
        assert_eq!(handles.destroy(first), Some(PdId(1)));
        assert_eq!(handles.destroy(first), None);
        let second = handles.create(PdId(2), &path(), None).expect("room again");
        assert_ne!(first, second);
        assert!(handles.find(first).is_none(), "the old id does not name the new handle");
        assert!(handles.find(AhId::default()).is_none());
        assert!(handles.find(AhId(u32::MAX)).is_none());
    }
}
