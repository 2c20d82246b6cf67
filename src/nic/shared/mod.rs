//! Memory shared by an application and the NIC: queues, doorbells, registered memory.
//!
//! Read [`region`] first, then [`work_queue`]. Queues are rings of 64-bit words: offsets instead of pointers,
//! fixed-size slots, and each index on a cache line of its own. Every word is an atomic, so a slot may be read while
//! the other side overwrites it. The reader copies a value once, then judges the copy.
//!
//! Architecture invariant: queues and doorbells assume no common address space (`tests/devices/two_processes` runs the
//! two sides in two processes). Only `memory` takes pointers, to buffers that the application owns.

#![allow(unsafe_code)]

mod address_map;
mod aio;
mod client_doorbells;
mod client_mapping;
mod completion_queue;
#[cfg(test)]
mod completion_queue_tests;
mod doorbell;
mod event_counter;
mod futex;
pub mod guard;
mod mapping;
pub mod memory;
mod memory_file;
#[cfg(test)]
mod memory_tests;
mod notifier;
#[cfg(test)]
mod notifier_tests;
mod page_list;
mod poller_sleep;
pub mod region;
pub mod remote_memory;
mod shared_receives;
#[cfg(all(test, target_arch = "x86_64", not(miri)))]
mod stores;
mod sync;
pub mod work_queue;

#[cfg(test)]
mod tests;

pub use client_doorbells::{ClientDoorbells, ClientSleep, DoorbellsId};
pub use client_mapping::{ClientFile, ClientMapping};
pub use completion_queue::{Armed, CompletionRing, Move};
pub use doorbell::Doorbells;
pub use event_counter::EventCounter;
pub use memory::HostMemory;
pub use memory_file::MemoryFile;
pub use notifier::{Notifier, Wake};
pub use page_list::PageList;
pub use region::{HeldPages, Region};
pub use shared_receives::{ReceivesMove, SharedReceives};
pub use work_queue::{PostError, RecvRing, SendRing};
