//! The controller as a state machine: what it answers to commands, and when an association ends. It moves no data
//! itself.
//!
//! A transport makes a [`Queue`] for each connection, and drives it so:
//!
//! 1. [`Queue::take`] for each command capsule. The [`Task`] says which data to move: none, from the capsule, from the
//!    host's memory before step 2, or to it after step 2.
//! 2. [`Queue::run`] with the data. It returns the response, or nothing yet for an Asynchronous Event Request.
//! 3. [`Queue::event`] before the response of step 2 leaves, and now and then: responses that have become due.
//! 4. [`Queue::ending`] now and then: whether to close the connection.
//!
//! `now` is the time since any fixed moment, the same for all queues of a subsystem.

mod admin;
mod fabrics;
mod io;
mod queue;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::command::ALL_NAMESPACES;
use crate::identify::NAMESPACE_EVENTS;
use crate::status::Status;

pub use queue::{Queue, Remote, Task, Transfer, Violation};

/// Asynchronous Event Requests that a controller holds.
const EVENT_REQUESTS: usize = 4;
/// Version of the NVMe base specification: 1.4.
const VERSION: u32 = 0x0001_0400;
/// Time for the Connect command after a connection is made.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// CC: enabled; and the fields that a controller of this crate accepts while it is enabled.
const ENABLE: u32 = 1;
/// CC.SHN: the host asks for a shutdown.
const SHUTDOWN: u32 = 0b11 << 14;
/// CSTS: ready, failed, shutdown complete.
const READY: u32 = 1;
const FAILED: u32 = 1 << 1;
const SHUTDOWN_COMPLETE: u32 = 0b10 << 2;

/// Why a connection is to be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// No command has come for twice the keep-alive timeout.
    KeepAlive,
    /// No Connect command has come in [`CONNECT_TIMEOUT`].
    NoConnect,
    /// The connection of the admin queue has ended.
    AdminQueue,
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Ending::KeepAlive => "keep-alive timeout: the host is silent",
            Ending::NoConnect => "no Connect command in time",
            Ending::AdminQueue => "the admin queue has ended",
        })
    }
}

/// A controller: the association of a host with the subsystem.
#[derive(Debug)]
pub struct Controller {
    id: u16,
    host: String,
    host_id: [u8; 16],
    is_discovery: bool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// CC and CSTS.
    configuration: u32,
    status: u32,
    keep_alive: Option<Duration>,
    /// Time of the last command on any queue.
    heard: Duration,
    ending: Option<Ending>,
    /// I/O queues granted, and those connected.
    granted: u16,
    queues: BTreeSet<u16>,
    event_requests: VecDeque<u16>,
    /// Event requests that an Abort has ended, and whose responses are due.
    aborted: VecDeque<u16>,
    /// Asynchronous Event Configuration.
    events: u32,
    /// Namespaces that have changed since the host read the log page.
    changed: BTreeSet<u32>,
    /// An event was sent, and the host has not read the log page since.
    is_told: bool,
}

impl Controller {
    fn new(id: u16, host: String, host_id: [u8; 16], is_discovery: bool, now: Duration) -> Controller {
        let state = State {
            configuration: 0,
            status: 0,
            keep_alive: None,
            heard: now,
            ending: None,
            granted: 0,
            queues: BTreeSet::new(),
            event_requests: VecDeque::new(),
            aborted: VecDeque::new(),
            events: 0,
            changed: BTreeSet::new(),
            is_told: false,
        };
        Controller { id, host, host_id, is_discovery, state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Controller identifier.
    pub fn id(&self) -> u16 {
        self.id
    }

    /// Name of the host.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// True if it serves discovery, and no namespace.
    pub fn is_discovery(&self) -> bool {
        self.is_discovery
    }

    /// Identifiers of the connected I/O queues.
    pub fn queues(&self) -> Vec<u16> {
        self.state().queues.iter().copied().collect()
    }

    /// Notes that a namespace has changed, for [`Queue::event`].
    pub(crate) fn namespace_changed(&self, id: u32) {
        if !self.is_discovery {
            self.state().changed.insert(id);
        }
    }
}

impl State {
    fn is_ready(&self) -> bool {
        self.status & (READY | FAILED) == READY
    }

    /// Sets CC. An enabled controller takes 64-byte and 16-byte entries, 4 KiB pages, the NVM command set and round
    /// robin.
    fn configure(&mut self, value: u32) {
        const FIELDS: u32 = 0xf << 20 | 0xf << 16 | 0b111 << 11 | 0xf << 7 | 0b111 << 4;
        const EXPECTED: u32 = 4 << 20 | 6 << 16;
        let was = std::mem::replace(&mut self.configuration, value);
        if value & ENABLE != 0 && was & ENABLE == 0 {
            self.status = if value & FIELDS == EXPECTED { READY } else { FAILED };
        } else if value & ENABLE == 0 && was & ENABLE != 0 {
            self.status = 0;
            self.event_requests.clear();
            self.events = 0;
        }
        if value & SHUTDOWN != 0 && was & SHUTDOWN == 0 {
            self.status |= SHUTDOWN_COMPLETE;
        }
    }

    /// Aborts an event request, if one with this identifier is held. False: none is.
    fn abort(&mut self, id: u16) -> bool {
        let held = self.event_requests.iter().position(|request| *request == id);
        self.aborted.extend(held.and_then(|at| self.event_requests.remove(at)));
        held.is_some()
    }

    /// Returns identifier, result and status of an event request whose response is due: it was aborted, or a namespace
    /// has changed that the host was not told about.
    fn take_event(&mut self) -> Option<(u16, u64, Status)> {
        /// Type: notice. Information: namespace attribute changed. Log page: changed namespace list.
        const NAMESPACE_CHANGED: u64 = 2 | 4 << 16;
        if let Some(request) = self.aborted.pop_front() {
            return Some((request, 0, Status::ABORTED));
        }
        if self.changed.is_empty() || self.is_told || self.events & NAMESPACE_EVENTS == 0 {
            return None;
        }
        let request = self.event_requests.pop_front()?;
        self.is_told = true;
        Some((request, NAMESPACE_CHANGED, Status::SUCCESS))
    }

    /// Returns the changed namespaces, as the log page lists them. Unless `retain`, the next change is a new event.
    fn changed_namespaces(&mut self, retain: bool) -> Vec<u32> {
        let ids: Vec<u32> = self.changed.iter().copied().collect();
        if !retain {
            self.changed.clear();
            self.is_told = false;
        }
        if ids.len() > 1024 { vec![ALL_NAMESPACES] } else { ids }
    }
}
