//! Commands that carry memory: queues that the NIC reads and writes, and memory that work requests name.
//!
//! A process that has the NIC in it names them by references. One that is served by a NIC in another process names queues by their place
//! in shared memory, and registered memory by its address. The commands are the same: they are generic over a [`Form`] of memory, and
//! [`MemoryCommand::convert`] takes them from one form to another.

use serde::{Deserialize, Serialize};

use crate::shared::{CompletionRing, EventCounter, HostMemory, PageList, RecvRing, SendRing};
use crate::verbs::{Access, CqIndex, MrIndex, PdId, QpCaps, QpInit, SrqIndex, SrqInit};

/// How commands name memory.
pub trait Form {
    /// Memory that is registered.
    type Memory;
    /// A page list of fast registrations.
    type Pages;
    /// A ring of completions.
    type Completions;
    /// What the events of a completion queue are counted in.
    type Counter;
    /// A ring of work requests; its sizes are those of the QP.
    type Sends;
    /// A ring of receives.
    type Receives;
}

/// Memory that is mapped in the process of the NIC.
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

/// What an application asks of the device, of which it hands over memory.
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
        /// For users of this domain.
        pd: PdId,
        /// What may be done to it.
        access: Access,
        /// The address by which work requests and peers call its first byte.
        start: u64,
        /// The application's memory, which stays until the region goes.
        memory: F::Memory,
    },
    /// Registers a region again: what is `Some` changes, with new memory its key as well. After an error it is as it was.
    ReregisterMemory {
        /// The region that is registered again.
        mr: MrIndex,
        /// The domain that it belongs to from now on; `None`: as before.
        pd: Option<PdId>,
        /// What may be done to it.
        access: Option<Access>,
        /// New memory, and the address of its first byte.
        translation: Option<(u64, F::Memory)>,
    },
    /// Makes a region that work requests give pages and keys to.
    AllocFastMemory {
        /// For users of this domain.
        pd: PdId,
        /// The memory that pages are taken from.
        memory: F::Memory,
        /// Where the application writes which.
        pages: F::Pages,
    },
    /// Makes a completion queue.
    CreateCq {
        /// The ring that completions are written to.
        ring: F::Completions,
        /// What to write when an armed queue gets a completion.
        notify: Option<F::Counter>,
    },
    /// Has a completion queue go on in a ring of another size: what waits is moved there in its order. Nobody may poll or
    /// arm meanwhile.
    ResizeCq {
        /// The queue whose ring is replaced.
        cq: CqIndex,
        /// The larger or smaller ring, to which the old one's entries move.
        ring: F::Completions,
    },
    /// Makes a shared receive queue.
    CreateSrq {
        /// Its domain: that of the memory in its lists, and for XRC of what peers reach through it.
        pd: PdId,
        /// What it is for.
        init: SrqInit,
        /// Its ring, which has its sizes.
        ring: F::Receives,
    },
    /// Changes one. Nothing may be posted to it meanwhile.
    ModifySrq {
        /// The shared receive queue.
        srq: SrqIndex,
        /// A ring of another size: what waits is moved there in its order, and posts go there from then on.
        ring: Option<F::Receives>,
        /// Arms the limit: an event comes, once, when fewer receives are left. 0 disarms it.
        limit: Option<u32>,
    },
    /// Makes a QP.
    CreateQp {
        /// The domain whose memory it may use.
        pd: PdId,
        /// Where send completions go.
        send_cq: CqIndex,
        /// Where receive completions go.
        recv_cq: CqIndex,
        /// Its service and its sizes.
        init: QpInit,
        /// The ring of its send queue, which the application writes.
        sends: F::Sends,
        /// Where it takes receives from.
        receives: ReceiveSource<F::Receives>,
    },
}

/// Where a QP takes receives from.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum ReceiveSource<R = RecvRing> {
    /// A queue of its own.
    Own(R),
    /// One that it shares with others.
    Shared(SrqIndex),
    /// Nowhere: the initiator of an XRC connection.
    None,
}

/// Finds in the form `To` what a command names in the form `From`.
pub trait Convert<From: Form, To: Form> {
    /// Why it cannot be found.
    type Error;

    /// Registered memory, and what may be done to it.
    ///
    /// # Errors
    /// If there is no such memory, or not for that.
    fn memory(&mut self, memory: From::Memory, access: Access) -> Result<To::Memory, Self::Error>;

    /// A page list.
    ///
    /// # Errors
    /// If there is no such memory.
    fn pages(&mut self, pages: From::Pages) -> Result<To::Pages, Self::Error>;

    /// A ring of completions.
    ///
    /// # Errors
    /// If there is no such memory.
    fn completions(&mut self, ring: From::Completions) -> Result<To::Completions, Self::Error>;

    /// A counter of events.
    ///
    /// # Errors
    /// If there is no such counter.
    fn counter(&mut self, counter: From::Counter) -> Result<To::Counter, Self::Error>;

    /// A ring of work requests of these sizes.
    ///
    /// # Errors
    /// If there is no such memory.
    fn sends(&mut self, ring: From::Sends, caps: &QpCaps) -> Result<To::Sends, Self::Error>;

    /// A ring of receives.
    ///
    /// # Errors
    /// If there is no such memory.
    fn receives(&mut self, ring: From::Receives) -> Result<To::Receives, Self::Error>;
}

impl<F: Form> MemoryCommand<F> {
    /// Returns the same command with its memory in another form.
    ///
    /// # Errors
    /// The first that `by` returns.
    pub fn convert<T: Form, C: Convert<F, T>>(self, by: &mut C) -> Result<MemoryCommand<T>, C::Error> {
        Ok(match self {
            MemoryCommand::RegisterMemory { pd, access, start, memory } => {
                MemoryCommand::RegisterMemory { pd, access, start, memory: by.memory(memory, access)? }
            }
            MemoryCommand::ReregisterMemory { mr, pd, access, translation } => {
                let translation = match translation {
                    Some((start, memory)) => Some((start, by.memory(memory, access.unwrap_or_default())?)),
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
