//! A queue of the host: commands leave in capsules, data is reached by fast registration or goes along, responses
//! arrive.

use std::net::SocketAddr;
use std::time::Duration;

use roxie::host::{ConnectionManager, Device, DialError};
use roxie_ulp::{Ended, Lent, Replies, Requester, RequesterSizes};

use super::error::InitiatorError;
use super::succeeded;
use crate::cm::{QueueReply, QueueRequest, Refusal};
use crate::command::{self, Command};
use crate::response::{self, Response};
use crate::sgl::Sgl;

/// Sizes of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sizes {
    /// Entries of the submission queue, 2 at least. One stays free, as a full queue would look like an empty one (NVMe
    /// base specification 4.1.2).
    pub(super) entries: u16,
    /// Bytes that a command moves at most.
    pub(super) transfer: usize,
    /// Bytes of data in a capsule at most.
    pub(super) in_capsule: usize,
}

/// Data of a command.
#[derive(Clone, Copy, Debug)]
pub enum Data<'a> {
    /// None.
    None,
    /// These bytes, for the controller.
    Out(&'a [u8]),
    /// So many bytes, from the controller.
    In(usize),
}

/// A finished command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished {
    /// The response.
    pub response: Response,
    /// The data from the controller; empty unless the status is success.
    pub data: Vec<u8>,
}

/// The responses of a queue. The identifier of a command is its slot.
#[derive(Debug)]
struct Responses;

impl Replies for Responses {
    type Reply = Response;

    fn parse(&mut self, message: &[u8]) -> Result<(usize, Response), Ended> {
        let short = || Ended::Protocol(format!("a response of {} bytes; one has 16", message.len()));
        let response = Response::parse(message).ok_or_else(short)?;
        Ok((response.id.into(), response))
    }
}

/// A connected queue.
#[derive(Debug)]
pub(super) struct HostQueue {
    commands: Requester<Responses>,
    /// Queue identifier; 0: the admin queue.
    id: u16,
    sizes: Sizes,
}

impl HostQueue {
    pub(super) fn connect(
        device: &Device,
        manager: &ConnectionManager,
        to: SocketAddr,
        queue: u16,
        sizes: &Sizes,
    ) -> Result<HostQueue, InitiatorError> {
        let entries = sizes.entries;
        let requester = RequesterSizes {
            requests: u32::from(entries) - 1,
            request_length: command::LENGTH + sizes.in_capsule,
            receives: entries.into(),
            reply_length: response::LENGTH,
            memory: sizes.transfer,
        };
        let request = QueueRequest { queue, receives: entries, sends: entries - 1 }.to_bytes();
        let commands = Requester::connect(device, manager, to, &requester, &request, Responses);
        let commands = commands.map_err(|error| match &error {
            DialError::Rejected { peer, private_data, .. } => match Refusal::parse(private_data) {
                Some(refusal) if refusal.0 != 0 => InitiatorError::Queue { peer: *peer, queue, refusal },
                _ => error.into(),
            },
            _ => error.into(),
        })?;
        let wrong = |what: String| Err(InitiatorError::Protocol(format!("{to} {what}")));
        match QueueReply::parse(commands.endpoint.connection.private_data()) {
            None => wrong("speaks no NVMe: its reply has another format".into()),
            Some(QueueReply { receives }) if receives < entries - 1 => {
                wrong(format!("posts {receives} receives for {entries} commands"))
            }
            Some(_) => Ok(HostQueue { commands, id: queue, sizes: *sizes }),
        }
    }

    pub(super) fn sizes(&self) -> &Sizes {
        &self.sizes
    }

    /// Sends a command. `None`: the queue is full.
    pub(super) fn submit(&mut self, command: Command, data: Data<'_>) -> Result<Option<u16>, InitiatorError> {
        let Some(slot) = self.commands.reserve(usize::MAX) else { return Ok(None) };
        let (lent, length) = match data {
            Data::None => (None, 0),
            Data::Out(bytes) => (Some(Lent::Bytes(bytes)), bytes.len()),
            Data::In(length) => (Some(Lent::Room(length)), length),
        };
        let (sgl, in_capsule): (_, &[u8]) = match (lent.filter(|_| length > 0), data) {
            (None, _) => (Sgl::NONE, &[]),
            (_, Data::Out(bytes)) if length <= self.sizes.in_capsule => {
                (Sgl::InCapsule { offset: 0, length: length as u32 }, bytes)
            }
            _ if length > self.sizes.transfer => {
                return Err(InitiatorError::TooLong { length, most: self.sizes.transfer });
            }
            (Some(lent), _) => {
                let (address, key) = self.commands.lend(slot, lent)?;
                (Sgl::Keyed { address, length: length as u32, key: key.0, invalidate: true }, &[])
            }
        };
        let command = Command { id: slot as u16, sgl, ..command };
        self.commands.send(slot, &[&command.to_bytes(), in_capsule])?;
        Ok(Some(slot as u16))
    }

    /// Waits for a command to finish: for `id`, or for any. `None`: it did not in time.
    pub(super) fn wait(
        &mut self,
        id: Option<u16>,
        timeout: Duration,
    ) -> Result<Option<Finished>, InitiatorError> {
        let Some(finished) = self.commands.wait(id.map(usize::from), timeout)? else { return Ok(None) };
        let response = finished.reply;
        let length = if response.status.is_success() { finished.room } else { 0 };
        Ok(Some(Finished { response, data: self.commands.copy(finished.slot, length)? }))
    }

    /// Executes a command. Others that finish meanwhile stay for [`wait`](HostQueue::wait).
    pub(super) fn call(
        &mut self,
        command: Command,
        data: Data<'_>,
        timeout: Duration,
    ) -> Result<Finished, InitiatorError> {
        let id = self.submit(command, data)?.ok_or(InitiatorError::QueueFull)?;
        let finished = self.wait(Some(id), timeout)?.ok_or(InitiatorError::Timeout(timeout))?;
        succeeded(&command, self.id == 0, finished)
    }

    pub(super) fn disconnect(self) -> Result<(), InitiatorError> {
        Ok(self.commands.endpoint.connection.disconnect()?)
    }
}
