//! The connection of a queue: capsules arrive, data moves by READ and WRITE, responses leave.

use std::collections::VecDeque;

use roxie::host::DeviceError;
use roxie::verbs::{RKey, SendWr, Wc};
use roxie_ulp::{Ended, Endpoint, Payload, SendQueue, Sizes, Slots, UpperLayer, send};

use super::{Hosts, TargetEvent};
use crate::cm::{ADMIN_QUEUE, QueueRequest, Refusal};
use crate::controller::{Queue, Remote, Task, Transfer};
use crate::subsystem::Limits;
use crate::{command, connect, response};

/// Commands whose data moves at a time.
const BUFFERS: u16 = 16;
/// Receives of a queue. A half-open connection has their queue, too. A capsule beyond them is sent again after 0.64 ms
/// (RNR NAK).
const RECEIVES: u16 = 128;
/// Buffer number of a response without data.
const NO_BUFFER: u32 = u32::MAX;

/// Checks the private data of a request.
pub(super) fn check(limits: &Limits, private_data: &[u8]) -> Result<QueueRequest, Refusal> {
    let asked = QueueRequest::parse(private_data)?;
    let most = if asked.queue == 0 { ADMIN_QUEUE } else { limits.queue_size };
    if asked.queue > limits.queues {
        return Err(Refusal::QUEUE);
    }
    if asked.sends == 0 || asked.sends >= most {
        return Err(Refusal::SENDS);
    }
    if asked.receives == 0 { Err(Refusal::RECEIVES) } else { Ok(asked) }
}

/// Returns the sizes of the queue pair for a request. The send queue has a READ, or a WRITE and a SEND, of each command
/// whose data moves.
pub(super) fn sizes(limits: &Limits, asked: QueueRequest) -> Sizes {
    let size = asked.sends + 1;
    Sizes {
        receives: size.min(RECEIVES).into(),
        receive_length: capsule_length(limits, asked.queue),
        sends: 2 * u32::from(size.min(BUFFERS)),
        inline: response::LENGTH as u32,
    }
}

/// Bytes of a command capsule. Commands on the admin queue carry no data.
fn capsule_length(limits: &Limits, queue: u16) -> usize {
    command::LENGTH + if queue == 0 { 0 } else { limits.in_capsule as usize }
}

/// Bytes of the first capsule, which is that of Connect.
pub(super) fn first_capsule_length(limits: &Limits) -> usize {
    capsule_length(limits, 1).min(command::LENGTH + connect::LENGTH)
}

/// A served queue.
pub(super) struct Served<'a> {
    // Dropped first: the queue pair uses the memory below.
    endpoint: Endpoint,
    hosts: &'a Hosts,
    queue: Queue,
    /// Responses that may wait for places in the send queue, with their data.
    most_waiting: usize,
    sends: SendQueue,
    buffers: Slots,
    /// Commands whose data is being fetched, by buffer.
    fetching: Vec<Option<Task>>,
    /// Commands that wait for a buffer.
    waiting: VecDeque<Task>,
    /// Data of the command that runs.
    data: Vec<u8>,
}

impl<'a> Served<'a> {
    pub(super) fn new(
        hosts: &'a Hosts,
        endpoint: Endpoint,
        asked: QueueRequest,
    ) -> Result<Served<'a>, DeviceError> {
        let (limits, size) = (hosts.subsystem.limits(), asked.sends + 1);
        let count = size.min(BUFFERS);
        Ok(Served {
            hosts,
            queue: Queue::new(hosts.subsystem.clone(), asked.queue, size, hosts.now()),
            most_waiting: (size + BUFFERS).into(),
            sends: SendQueue::new(sizes(limits, asked).sends),
            buffers: Slots::new(&endpoint.pd, count.into(), limits.longest_transfer as usize)?,
            fetching: vec![None; count.into()],
            waiting: VecDeque::new(),
            data: Vec::new(),
            endpoint,
        })
    }

    /// Starts waiting commands while there are buffers for them, in their order.
    fn start_waiting(&mut self) -> Result<(), Ended> {
        while !self.waiting.is_empty()
            && let Some(buffer) = self.buffers.take()
            && let Some(task) = self.waiting.pop_front()
        {
            match task.transfer {
                Transfer::Fetch(remote) => {
                    let read = SendWr::read(remote.address, RKey(remote.key)).id(buffer.into()).signaled();
                    let data = Payload::Memory(self.buffers.sge(buffer, 0, remote.length as usize));
                    self.sends.post(self.endpoint.qp(), read, data)?;
                    self.fetching[buffer as usize] = Some(task);
                }
                _ => self.execute(&task, Some(buffer))?,
            }
        }
        Ok(())
    }

    /// Executes a command, and answers it. `buffer`: where data for the host goes.
    fn execute(&mut self, task: &Task, buffer: Option<u32>) -> Result<(), Ended> {
        let was_connected = self.queue.controller().is_some();
        let response = self.queue.run(self.hosts.now(), task, &mut self.data);
        // The response of an aborted command leaves before that of the Abort.
        self.send_events()?;
        if !was_connected && let Some(controller) = self.queue.controller() {
            (self.hosts.report)(TargetEvent::Connected {
                peer: self.endpoint.connection.peer(),
                host: controller.host().to_owned(),
                controller: controller.id(),
                queue: self.queue.id(),
            });
        }
        let deliver = match (&task.transfer, buffer, &response) {
            (Transfer::Deliver(remote), Some(buffer), Some(response)) if response.status.is_success() => {
                Some((buffer, *remote))
            }
            (_, Some(buffer), _) => {
                self.buffers.release(buffer);
                None
            }
            _ => None,
        };
        let Some(response) = response else { return Ok(()) };
        self.reply(response.to_bytes(), task.invalidate, deliver)
    }

    /// Answers event requests whose responses are due.
    fn send_events(&mut self) -> Result<(), Ended> {
        while let Some(response) = self.queue.event() {
            self.reply(response.to_bytes(), None, None)?;
        }
        Ok(())
    }

    /// Posts a response, and before it the data for the host. On a reliable connection the data is in place before the
    /// response arrives.
    fn reply(
        &mut self,
        response: [u8; response::LENGTH],
        invalidate: Option<u32>,
        deliver: Option<(u32, Remote)>,
    ) -> Result<(), Ended> {
        // A host has fewer commands outstanding than its queue has entries.
        if self.sends.waiting() >= self.most_waiting {
            return Err(Ended::protocol("the host takes no responses"));
        }
        let qp = self.endpoint.qp();
        if let Some((buffer, remote)) = deliver {
            let data = Payload::Memory(self.buffers.fill(buffer, &[&self.data])?);
            self.sends.post(qp, SendWr::write(remote.address, RKey(remote.key)), data)?;
        }
        let buffer = deliver.map_or(NO_BUFFER, |(buffer, _)| buffer);
        let send = send(invalidate.map(RKey)).id(buffer.into()).signaled();
        Ok(self.sends.post(qp, send, Payload::Inline(response))?)
    }
}

impl UpperLayer for Served<'_> {
    fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Takes a command capsule.
    fn received(&mut self, wc: &Wc) -> Result<(), Ended> {
        let capsule = self.endpoint.receive(wc)?;
        let task = self.queue.take(self.hosts.now(), &capsule).map_err(Ended::protocol)?;
        match &task.transfer {
            Transfer::None => self.execute(&task, None),
            Transfer::InCapsule(range) => {
                self.data.clear();
                self.data.extend(&capsule[range.clone()]);
                self.execute(&task, None)
            }
            Transfer::Fetch(_) | Transfer::Deliver(_) => {
                self.waiting.push_back(task);
                self.start_waiting()
            }
        }
    }

    /// Executes a command whose data has arrived.
    fn read(&mut self, wc: &Wc) -> Result<(), Ended> {
        let buffer = self.sends.completed(self.endpoint.qp(), wc)?;
        let task = self.fetching[buffer as usize].take().expect("a READ has a command");
        if let Transfer::Fetch(remote) = task.transfer {
            self.data.resize(remote.length as usize, 0);
            self.buffers.read(buffer, &mut self.data)?;
        }
        self.buffers.release(buffer);
        self.execute(&task, None)?;
        self.start_waiting()
    }

    /// Takes back what a response used, and starts what waits.
    fn sent(&mut self, wc: &Wc) -> Result<(), Ended> {
        match self.sends.completed(self.endpoint.qp(), wc)? {
            NO_BUFFER => {}
            buffer => self.buffers.release(buffer),
        }
        self.start_waiting()
    }

    fn idle(&mut self) -> Result<(), Ended> {
        self.send_events()?;
        self.queue.ending(self.hosts.now()).map_or(Ok(()), |ending| Err(Ended::protocol(ending)))
    }
}
