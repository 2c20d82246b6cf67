//! Commands that carry memory: queues that the NIC reads and writes, and memory that work requests name.
//!
//! An application with a NIC in its own process passes references. A client of a NIC process names queues by their
//! place in shared memory, and registered memory by its address. The two use the same commands, which are generic over
//! the [`Form`] of memory; [`MemoryCommand::convert`] converts between forms.

use serde::{Deserialize, Serialize};

use crate::shared::{CompletionRing, EventCounter, HostMemory, PageList, RecvRing, SendRing};
use crate::verbs::{Access, CqIndex, MrIndex, PdId, QpCaps, QpInit, SrqIndex, SrqInit};

/// A form in which commands name memory.
pub trait Form {
    /// Registered memory.
    type Memory;
    /// A page list of fast registrations.
    type Pages;
    /// A ring of completions.
    type Completions;
    /// The event counter of a completion queue.
    type Counter;
    /// A ring of send work requests. The QP determines its sizes.
    type Sends;
    /// A ring of receives.
    type Receives;
}

/// References to memory that is mapped in the NIC's process.
#[derive(Clone, Copy, Debug)]
pub enum Mapped {}

impl Form for Mapped {
    type Memory = HostMemory;
    type Pages = PageList;
    type Completions = CompletionRing;
    type Counter = EventCounter;
    type Sends = SendRing;
    type Receives = RecvRing;
}

/// A control command that carries memory.
#[derive(Debug, Serialize, Deserialize)]
#[serde(bound(
    serialize = "F::Memory: Serialize, F::Pages: Serialize, F::Completions: Serialize, F::Counter: Serialize, \
                 F::Sends: Serialize, F::Receives: Serialize",
    deserialize = "F::Memory: Deserialize<'de>, F::Pages: Deserialize<'de>, F::Completions: Deserialize<'de>, \
                   F::Counter: Deserialize<'de>, F::Sends: Deserialize<'de>, F::Receives: Deserialize<'de>"
))]
pub enum MemoryCommand<F: Form = Mapped> {
    /// Registers memory.
    RegisterMemory {
        /// The region's protection domain.
        pd: PdId,
        /// The access flags.
        access: Access,
        /// The address of the first byte for work requests and peers.
        start: u64,
        /// The application's memory, which must stay mapped while the region exists.
        memory: F::Memory,
    },
    /// Changes a region: each `Some` replaces a property. New memory also changes the key. A failed command changes
    /// nothing.
    ReregisterMemory {
        /// The region.
        mr: MrIndex,
        /// The new protection domain; `None`: unchanged.
        pd: Option<PdId>,
        /// The new access flags; `None`: unchanged.
        access: Option<Access>,
        /// The new memory and the address of its first byte; `None`: unchanged.
        translation: Option<(u64, F::Memory)>,
    },
    /// Makes a fast-registered region, which gets its pages and keys from work requests.
    AllocFastMemory {
        /// The region's protection domain.
        pd: PdId,
        /// The memory that pages are chosen from.
        memory: F::Memory,
        /// The page list, which the application writes.
        pages: F::Pages,
    },
    /// Makes a completion queue.
    CreateCq {
        /// The ring that completions are written to.
        ring: F::Completions,
        /// The counter of the channel that armed queues notify.
        notify: Option<F::Counter>,
    },
    /// Moves a completion queue to a ring of another size, with its pending completions in order. The application must
    /// not poll or arm meanwhile.
    ResizeCq {
        /// The queue.
        cq: CqIndex,
        /// The new ring.
        ring: F::Completions,
    },
    /// Makes a shared receive queue.
    CreateSrq {
        /// The protection domain of its receives, and for XRC of the memory that requests access.
        pd: PdId,
        /// The kind of queue, and the armed limit.
        init: SrqInit,
        /// The ring, which determines the sizes.
        ring: F::Receives,
    },
    /// Changes a shared receive queue. The application must not post to it meanwhile.
    ModifySrq {
        /// The shared receive queue.
        srq: SrqIndex,
        /// A ring of another size. Pending receives move there in order.
        ring: Option<F::Receives>,
        /// Arms the limit: one event is raised when fewer receives are left. 0 disarms.
        limit: Option<u32>,
    },
    /// Makes a QP.
    CreateQp {
        /// The QP's protection domain.
        pd: PdId,
        /// The completion queue of sends.
        send_cq: CqIndex,
        /// The completion queue of receives.
        recv_cq: CqIndex,
        /// The QP's type and sizes.
        init: QpInit,
        /// The ring of the send queue, which the application writes.
        sends: F::Sends,
        /// The source of receives.
        receives: ReceiveSource<F::Receives>,
    },
}

/// The source of a QP's receives.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum ReceiveSource<R = RecvRing> {
    /// A queue of its own.
    Own(R),
    /// A shared receive queue.
    Shared(SrqIndex),
    /// None: the QP is the initiator of an XRC connection.
    None,
}

/// Converts memory of a command from the form `From` to the form `To`.
pub trait Convert<From: Form, To: Form> {
    /// Why the memory cannot be converted.
    type Error;

    /// Converts registered memory, which must permit `access`.
    ///
    /// # Errors
    /// If there is no such memory, or it does not permit the access.
    fn memory(&mut self, memory: From::Memory, access: Access) -> Result<To::Memory, Self::Error>;

    /// Converts a page list.
    ///
    /// # Errors
    /// If there is no such memory.
    fn pages(&mut self, pages: From::Pages) -> Result<To::Pages, Self::Error>;

    /// Converts a ring of completions.
    ///
    /// # Errors
    /// If there is no such memory.
    fn completions(&mut self, ring: From::Completions) -> Result<To::Completions, Self::Error>;

    /// Converts an event counter.
    ///
    /// # Errors
    /// If there is no such counter.
    fn counter(&mut self, counter: From::Counter) -> Result<To::Counter, Self::Error>;

    /// Converts a ring of send work requests of these sizes.
    ///
    /// # Errors
    /// If there is no such memory.
    fn sends(&mut self, ring: From::Sends, caps: &QpCaps) -> Result<To::Sends, Self::Error>;

    /// Converts a ring of receives.
    ///
    /// # Errors
    /// If there is no such memory.
    fn receives(&mut self, ring: From::Receives) -> Result<To::Receives, Self::Error>;
}

impl<F: Form> MemoryCommand<F> {
    /// Returns the same command with its memory in another form.
    ///
    /// # Errors
    /// The first error of `by`.
    pub fn convert<T: Form, C: Convert<F, T>>(self, by: &mut C) -> Result<MemoryCommand<T>, C::Error> {
        Ok(match self {
            MemoryCommand::RegisterMemory { pd, access, start, memory } => {
                MemoryCommand::RegisterMemory { pd, access, start, memory: by.memory(memory, access)? }
            }
            MemoryCommand::ReregisterMemory { mr, pd, access, translation } => {
                // Without `access` the region keeps its access, which may be to write.
                let uses = access.unwrap_or(Access::LOCAL_WRITE);
                let translation = match translation {
                    Some((start, memory)) => Some((start, by.memory(memory, uses)?)),
                    None => None,
                };
                MemoryCommand::ReregisterMemory { mr, pd, access, translation }
            }
            MemoryCommand::AllocFastMemory { pd, memory, pages } => MemoryCommand::AllocFastMemory {
                pd,
                memory: by.memory(memory, Access::empty())?,
                pages: by.pages(pages)?,
            },
            MemoryCommand::CreateCq { ring, notify } => MemoryCommand::CreateCq {
                ring: by.completions(ring)?,
                notify: notify.map(|counter| by.counter(counter)).transpose()?,
            },
            MemoryCommand::ResizeCq { cq, ring } => {
                MemoryCommand::ResizeCq { cq, ring: by.completions(ring)? }
            }
            MemoryCommand::CreateSrq { pd, init, ring } => {
                MemoryCommand::CreateSrq { pd, init, ring: by.receives(ring)? }
            }
            MemoryCommand::ModifySrq { srq, ring, limit } => {
                let ring = ring.map(|ring| by.receives(ring)).transpose()?;
                MemoryCommand::ModifySrq { srq, ring, limit }
            }
            MemoryCommand::CreateQp { pd, send_cq, recv_cq, init, sends, receives } => {
                let sends = by.sends(sends, &init.caps)?;
                let receives = match receives {
                    ReceiveSource::Own(ring) => ReceiveSource::Own(by.receives(ring)?),
                    ReceiveSource::Shared(srq) => ReceiveSource::Shared(srq),
                    ReceiveSource::None => ReceiveSource::None,
                };
                MemoryCommand::CreateQp { pd, send_cq, recv_cq, init, sends, receives }
            }
        })
    }
}
