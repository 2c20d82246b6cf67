//! Commands as a client sends them to its NIC.

use std::sync::atomic::AtomicU64;

use super::arenas::Arenas;
use super::message::{ArenaPlace, ClientForm, Completions, Memory, Pages, Receives, WithMessage};
use roxie_nic::nic::{ControlError, Convert, Mapped};
use roxie_nic::shared::{CompletionRing, EventCounter, HostMemory, MemoryFile, PageList, RecvRing, SendRing};
use roxie_nic::verbs::{Access, QpCaps};

/// Names memory of this process as the NIC knows it: queues by their place in an arena, all other memory by its
/// address.
pub(super) struct ToClientForm<'a> {
    pub(super) arenas: &'a Arenas,
    /// A counter with a descriptor that goes with the message. No command has both a counter and registered memory.
    pub(super) counter: Option<EventCounter>,
    /// A file with a descriptor that goes with the message.
    pub(super) file: Option<MemoryFile>,
}

impl ToClientForm<'_> {
    fn place(&self, queue: &[AtomicU64]) -> Result<ArenaPlace, ControlError> {
        self.arenas
            .place_of(queue)
            .ok_or(ControlError::WrongKind("a queue in memory that the NIC does not share"))
    }
}

impl Convert<Mapped, ClientForm> for ToClientForm<'_> {
    type Error = ControlError;

    fn memory(&mut self, memory: HostMemory, _: Access) -> Result<Memory, ControlError> {
        if memory.is_null() {
            return Ok(Memory::Null);
        }
        let (address, length) = (memory.address(), memory.len() as u64);
        self.file = memory.file();
        Ok(match &self.file {
            Some(file) => Memory::InFile { address, length, offset: file.offset(), is_lent: file.is_lent() },
            None => Memory::At { address, length, on_demand: memory.is_on_demand() },
        })
    }

    fn pages(&mut self, pages: PageList) -> Result<Pages, ControlError> {
        Ok(Pages { place: self.place(pages.words())?, capacity: pages.capacity() })
    }

    fn completions(&mut self, ring: CompletionRing) -> Result<Completions, ControlError> {
        Ok(Completions { place: self.place(ring.words())?, capacity: ring.capacity() })
    }

    fn counter(&mut self, counter: EventCounter) -> Result<WithMessage, ControlError> {
        self.counter = Some(counter);
        Ok(WithMessage)
    }

    fn sends(&mut self, ring: SendRing, _: &QpCaps) -> Result<ArenaPlace, ControlError> {
        self.place(ring.words())
    }

    fn receives(&mut self, ring: RecvRing) -> Result<Receives, ControlError> {
        let place = self.place(ring.words())?;
        Ok(Receives { place, capacity: ring.capacity(), max_sge: ring.max_sge() })
    }
}
