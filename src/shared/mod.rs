//! Memory that an application and the NIC both touch: queues, doorbells, registered memory.
//!
//! Read [`region`] first, then [`work_queue`]. Queues are rings of 64-bit words:
//! offsets instead of pointers, fixed-size slots, indices on cache lines of their own. Every
//! word is an atomic, so reading a slot that the other side scribbles over is defined, and what is
//! read is copied once before it is judged.
//!
//! Architecture invariant: nothing here assumes one address space (`tests/two_processes` runs the two sides in two), except what
//! `memory` offers to reach buffers that the application has anyway.

#![allow(unsafe_code)]

mod address_map;
mod aio;
mod completion_queue;
#[cfg(test)]
mod completion_queue_tests;
mod doorbell;
mod dozing;
mod event_counter;
mod futex;
pub mod guard;
mod guest_bells;
mod mapping;
pub(crate) mod memory;
mod page_list;
pub mod region;
pub mod remote_memory;
mod shared_receives;
#[cfg(all(test, target_arch = "x86_64", not(miri)))]
mod stores;
mod sync;
pub mod work_queue;

#[cfg(test)]
mod tests;

pub use completion_queue::{Armed, CompletionRing, Move};
pub use doorbell::Doorbells;
pub use event_counter::EventCounter;
pub use guest_bells::{GuestBells, GuestId, GuestSleep};
pub use memory::HostMemory;
pub use page_list::PageList;
pub use region::{HeldPages, Region};
pub use shared_receives::SharedReceives;
pub use work_queue::{PostError, RecvRing, SendRing};
