//! A queue: what is outstanding on it, and where the data of each command is.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use super::{CONNECT_TIMEOUT, Controller, Ending};
use crate::command::{self, Command, fabrics};
use crate::connect;
use crate::response::{NO_FLOW_CONTROL, Response};
use crate::sgl::Sgl;
use crate::status::Status;
use crate::subsystem::Subsystem;

/// A violation of the transport's rules, upon which the connection is closed: no response could be trusted to reach its
/// command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// The capsule is shorter than a command.
    #[error("a capsule of {0} bytes; a command has 64")]
    Short(usize),
    /// The host has more commands outstanding than the queue has entries.
    #[error("more than {0} commands outstanding")]
    Overrun(u16),
}

/// Memory of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// First address.
    pub address: u64,
    /// The rkey.
    pub key: u32,
    /// Bytes, at least 1.
    pub length: u32,
}

/// The data of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transfer {
    /// No data.
    None,
    /// Bytes of the capsule are the command's data.
    InCapsule(Range<usize>),
    /// Fetch the data from the host before [`Queue::run`].
    Fetch(Remote),
    /// Deliver the data to the host after [`Queue::run`], if the status is success.
    Deliver(Remote),
}

/// A command that the queue has taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// The command.
    pub command: Command,
    /// Its data.
    pub transfer: Transfer,
    /// The key that the response is to invalidate.
    pub invalidate: Option<u32>,
    /// The command is refused: no data moves.
    refused: Option<Status>,
}

/// Which data a command moves, and how many bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Needs {
    Nothing,
    FromHost(u64),
    ToHost(u64),
}

/// Why a command fails: its status, and the result that goes with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refused {
    pub(super) status: Status,
    pub(super) result: u64,
}

impl From<Status> for Refused {
    fn from(status: Status) -> Refused {
        Refused { status, result: 0 }
    }
}

/// The result of a command.
pub(super) type Answer = Result<u64, Refused>;

/// A connected queue.
#[derive(Debug)]
pub struct Queue {
    pub(super) subsystem: Arc<Subsystem>,
    /// `None`: no Connect command has succeeded yet.
    pub(super) controller: Option<Arc<Controller>>,
    pub(super) id: u16,
    pub(super) size: u16,
    pub(super) flow_control: bool,
    head: u16,
    outstanding: HashSet<u16>,
    since: Duration,
}

impl Queue {
    /// Makes the queue of a connection: identifier 0 for the admin queue, with `size` entries.
    pub fn new(subsystem: Arc<Subsystem>, id: u16, size: u16, now: Duration) -> Queue {
        Queue {
            subsystem,
            controller: None,
            id,
            size,
            flow_control: true,
            head: 0,
            outstanding: HashSet::new(),
            since: now,
        }
    }

    /// Queue identifier.
    pub fn id(&self) -> u16 {
        self.id
    }

    /// The controller, after the Connect command.
    pub fn controller(&self) -> Option<&Arc<Controller>> {
        self.controller.as_ref()
    }

    /// Takes a command capsule: checks the command, its range and its SGL.
    ///
    /// # Errors
    /// If the connection is to be closed.
    pub fn take(&mut self, now: Duration, capsule: &[u8]) -> Result<Task, Violation> {
        let command = Command::parse(capsule).ok_or(Violation::Short(capsule.len()))?;
        if self.outstanding.len() >= self.size.into() {
            return Err(Violation::Overrun(self.size));
        }
        self.head = (self.head + 1) % self.size;
        if let Some(controller) = &self.controller {
            controller.state().heard = now;
        }
        let invalidate = match command.sgl {
            Sgl::Keyed { key, length: 1.., invalidate: true, .. } => Some(key),
            _ => None,
        };
        let checked = self.check(&command, capsule.len());
        let (transfer, refused) = match checked {
            Ok(transfer) => (transfer, None),
            Err(status) => (Transfer::None, Some(status)),
        };
        Ok(Task { command, transfer, invalidate, refused })
    }

    fn check(&mut self, command: &Command, capsule: usize) -> Result<Transfer, Status> {
        if !self.outstanding.insert(command.id) {
            return Err(Status::ID_CONFLICT.permanent());
        }
        if !command.has_supported_flags() {
            return Err(Status::INVALID_FIELD.permanent());
        }
        match self.needs(command)? {
            Needs::Nothing if command.sgl.length() == 0 => Ok(Transfer::None),
            Needs::Nothing => Err(Status::SGL_LENGTH.permanent()),
            Needs::FromHost(length) | Needs::ToHost(length)
                if length > self.subsystem.limits().longest_transfer.into() =>
            {
                Err(Status::INVALID_FIELD.permanent())
            }
            Needs::FromHost(length) => locate(command.sgl, length, capsule, Transfer::Fetch),
            Needs::ToHost(length) => match command.sgl {
                // Data to the host has no place in a capsule.
                Sgl::InCapsule { .. } => Err(Status::SGL_TYPE.permanent()),
                sgl => locate(sgl, length, capsule, Transfer::Deliver),
            },
        }
    }

    /// Returns which data a command moves, or why the command is refused.
    fn needs(&self, command: &Command) -> Result<Needs, Status> {
        let Some(controller) = &self.controller else {
            let is_connect = command.is_fabrics() && command.fabrics_type() == fabrics::CONNECT;
            return if is_connect {
                Ok(Needs::FromHost(connect::LENGTH as u64))
            } else {
                Err(Status::SEQUENCE.permanent())
            };
        };
        if command.is_fabrics() {
            return self.fabrics_needs(command);
        }
        // Until it is enabled, a controller takes fabrics commands only.
        if !controller.state().is_ready() {
            return Err(Status::SEQUENCE.permanent());
        }
        if self.id == 0 { self.admin_needs(command) } else { self.io_needs(command) }
    }

    /// Executes a command. `data`: the bytes from the host; afterwards the bytes for the host, as many as the task
    /// says, if the status is success. `None`: the response comes from [`Queue::event`].
    pub fn run(&mut self, now: Duration, task: &Task, data: &mut Vec<u8>) -> Option<Response> {
        let answer = match (task.refused, self.controller.clone()) {
            (Some(status), _) => Some(Err(status.into())),
            (None, None) => Some(self.connect(now, &task.command, data)),
            (None, Some(controller)) if task.command.is_fabrics() => {
                Some(self.run_fabrics(&controller, &task.command))
            }
            (None, Some(controller)) if self.id == 0 => self.run_admin(&controller, &task.command, data),
            (None, Some(_)) => Some(self.run_io(&task.command, data)),
        };
        let (result, status) = match answer? {
            Ok(result) => (result, Status::SUCCESS),
            Err(Refused { result, status }) => (result, status),
        };
        // The identifier of a refused duplicate still belongs to the first command.
        if task.refused.map(Status::code) != Some(Status::ID_CONFLICT) {
            self.outstanding.remove(&task.command.id);
        }
        Some(self.respond(task.command.id, result, status))
    }

    /// Returns the response to an Asynchronous Event Request, if an event is due, or an Abort has ended the request.
    /// The response of an aborted request leaves before that of the Abort.
    pub fn event(&mut self) -> Option<Response> {
        let controller = self.controller.as_ref().filter(|_| self.id == 0)?;
        let (id, result, status) = controller.state().take_event()?;
        self.outstanding.remove(&id);
        Some(self.respond(id, result, status))
    }

    /// Returns why the connection is to be closed, if it is. A silent host ends all queues of its controller.
    pub fn ending(&self, now: Duration) -> Option<Ending> {
        let Some(controller) = &self.controller else {
            return (now.saturating_sub(self.since) > CONNECT_TIMEOUT).then_some(Ending::NoConnect);
        };
        let mut state = controller.state();
        // A host that counts commands as signs of life sends its Keep Alive up to a whole timeout after its last
        // command.
        let silent = state.keep_alive.is_some_and(|limit| now.saturating_sub(state.heard) > 2 * limit);
        if silent && state.ending.is_none() {
            state.ending = Some(Ending::KeepAlive);
        }
        state.ending
    }

    fn respond(&self, id: u16, result: u64, status: Status) -> Response {
        let head = if self.flow_control { self.head } else { NO_FLOW_CONTROL };
        Response { result, head, queue: 0, id, status }
    }
}

/// The end of an admin queue ends its controller, with all queues.
impl Drop for Queue {
    fn drop(&mut self) {
        let Some(controller) = &self.controller else { return };
        if self.id == 0 {
            controller.state().ending.get_or_insert(Ending::AdminQueue);
            self.subsystem.controllers().by_id.remove(&controller.id);
        } else {
            controller.state().queues.remove(&self.id);
        }
    }
}

/// Finds `length` bytes of data in the capsule or in the host's memory.
fn locate(sgl: Sgl, length: u64, capsule: usize, remote: fn(Remote) -> Transfer) -> Result<Transfer, Status> {
    if !matches!(sgl, Sgl::Keyed { .. } | Sgl::InCapsule { .. }) {
        return Err(Status::SGL_TYPE.permanent());
    }
    if u64::from(sgl.length()) != length {
        return Err(Status::SGL_LENGTH.permanent());
    }
    match sgl {
        Sgl::Keyed { address, length, key, .. } => Ok(remote(Remote { address, key, length })),
        Sgl::InCapsule { offset, length } => {
            let begin = usize::try_from(offset).ok().and_then(|offset| offset.checked_add(command::LENGTH));
            let end = begin.and_then(|begin| begin.checked_add(length as usize));
            match (begin, end) {
                (Some(begin), Some(end)) if end <= capsule => Ok(Transfer::InCapsule(begin..end)),
                _ => Err(Status::SGL_OFFSET.permanent()),
            }
        }
        _ => Err(Status::SGL_TYPE.permanent()),
    }
}
