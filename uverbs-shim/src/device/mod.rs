//! The device: the list of devices, contexts, the process's NIC, queries, and asynchronous events.
//!
//! [`nic`] is to be read first: one NIC serves all contexts of a process. [`crate::open`] makes contexts, since their
//! table of functions names the functions of all objects.

pub(crate) mod context;
pub(crate) mod event_queue;
pub(crate) mod events;
pub(crate) mod family;
pub(crate) mod gids;
pub(crate) mod list;
pub(crate) mod nic;
pub(crate) mod published;
pub(crate) mod query;
pub(crate) mod settings;
