//! Registered memory in slots of one length.

use roxie::host::{DeviceError, MemoryRegion, ProtectionDomain};
use roxie::verbs::{Access, Sge};

/// Registered memory in slots of one length, for messages or data. Slots have numbers; a list has the free ones.
#[derive(Debug)]
pub struct Slots {
    region: MemoryRegion,
    length: usize,
    free: Vec<u32>,
}

impl Slots {
    /// Allocates and registers `count` slots of `length` bytes, all free.
    ///
    /// # Errors
    /// If the system has no such memory, or the device has no room for another region.
    pub fn new(pd: &ProtectionDomain, count: u32, length: usize) -> Result<Slots, DeviceError> {
        let region = pd.register(count as usize * length, Access::LOCAL_WRITE)?;
        Ok(Slots { region, length, free: (0..count).rev().collect() })
    }

    /// Number of free slots.
    pub fn available(&self) -> usize {
        self.free.len()
    }

    /// Takes a slot. `None`: none is free.
    pub fn take(&mut self) -> Option<u32> {
        self.free.pop()
    }

    /// Returns a slot to the free ones.
    pub fn release(&mut self, slot: u32) {
        debug_assert!(!self.free.contains(&slot), "slot {slot} is released twice");
        self.free.push(slot);
    }

    fn begin(&self, slot: u32) -> usize {
        slot as usize * self.length
    }

    /// Returns the scatter/gather entry of `length` bytes of a slot, from `offset` on.
    pub fn sge(&self, slot: u32, offset: usize, length: usize) -> Sge {
        self.region.sge(self.begin(slot) + offset, length as u32)
    }

    /// Returns the scatter/gather entry of a whole slot.
    pub fn whole(&self, slot: u32) -> Sge {
        self.sge(slot, 0, self.length)
    }

    /// Copies bytes into a slot, the parts one behind the other. Returns their scatter/gather entry.
    ///
    /// # Panics
    /// If the slot is shorter.
    ///
    /// # Errors
    /// The errors of [`MemoryRegion::write_at`].
    pub fn fill(&self, slot: u32, parts: &[&[u8]]) -> Result<Sge, DeviceError> {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        assert!(length <= self.length, "{length} bytes for a slot of {}", self.length);
        let mut at = self.begin(slot);
        for part in parts.iter().filter(|part| !part.is_empty()) {
            self.region.write_at(at, part)?;
            at += part.len();
        }
        Ok(self.sge(slot, 0, length))
    }

    /// Copies the first bytes of a slot.
    ///
    /// # Errors
    /// The errors of [`MemoryRegion::read_at`].
    pub fn read(&self, slot: u32, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.region.read_at(self.begin(slot), bytes)
    }

    /// Copies the first bytes of a slot, at most `length`, into a new vector.
    ///
    /// # Errors
    /// The errors of [`MemoryRegion::read_at`].
    pub fn to_vec(&self, slot: u32, length: usize) -> Result<Vec<u8>, DeviceError> {
        self.region.to_vec(self.begin(slot), length.min(self.length))
    }
}

#[cfg(test)]
mod tests {
    use roxie::host::{Device, DeviceConfig};

    use super::*;

    fn slots() -> Slots {
        let (device, _peer) = Device::memory_pair(&DeviceConfig::caller_only()).expect("devices");
        Slots::new(&device.alloc_pd().expect("room"), 3, 8).expect("memory")
    }

    #[test]
    fn parts_fill_a_slot_one_behind_another() {
        let slots = slots();
        let sge = slots.fill(1, &[b"abc", b"", b"de"]).expect("room");
        assert_eq!((sge.length, sge.addr), (5, slots.whole(1).addr));
        assert_eq!(slots.to_vec(1, 5).expect("bytes"), b"abcde");
        // No more than the slot has.
        assert_eq!(slots.to_vec(1, 100).expect("bytes"), b"abcde\0\0\0");
        assert_eq!([slots.to_vec(0, 8), slots.to_vec(2, 8)].map(Result::unwrap), [vec![0; 8], vec![0; 8]]);
    }

    #[test]
    fn taken_slots_are_free_when_released() {
        let mut slots = slots();
        let taken: Vec<u32> = std::iter::from_fn(|| slots.take()).collect();
        assert_eq!((taken, slots.available()), (vec![0, 1, 2], 0));
        slots.release(1);
        assert_eq!((slots.take(), slots.take()), (Some(1), None));
    }

    #[test]
    #[should_panic(expected = "9 bytes for a slot of 8")]
    fn parts_beyond_a_slot_are_refused() {
        let _ = slots().fill(0, &[b"12345", b"6789"]);
    }
}
