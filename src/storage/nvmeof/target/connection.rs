//! The connection of a queue: capsules arrive, data moves by READ and WRITE, responses leave.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use roxie::host::{
    Armed, CompletionChannel, CompletionQueue, Connection, ConnectionRequest, DeviceError, DialError,
    DialOptions, FirstMessage, MemoryRegion, Offer, PostError, QpBuilder, QueuePair,
};
use roxie::verbs::{Access, QpCaps, RKey, SendWr, Wc, WcOpcode, WcStatus, WrOpcode};

use super::data::Buffers;
use super::{Shared, TargetEvent};
use crate::cm::{ADMIN_QUEUE, QueueReply, QueueRequest, Refusal};
use crate::controller::{Queue, Remote, Task, Transfer};
use crate::subsystem::Limits;
use crate::{command, connect, response};

/// Interval at which an idle queue looks for the end of its connection, of its host or of the target.
const TICK: Duration = Duration::from_millis(50);
/// Commands whose data moves at a time.
const BUFFERS: u16 = 16;
/// Receives of a queue. A half-open connection has their queue, too. A capsule beyond them is sent again after 0.64 ms (RNR NAK).
const RECEIVES: u16 = 128;
/// Completions taken at once.
const BATCH: usize = 16;
/// Identifier of the receive for the first capsule. Those of the other receives are their slots.
const FIRST: u64 = 1 << 32;

/// A half-open connection of a host, apart from its queue pair.
pub(super) struct Offered {
    cq: CompletionQueue,
    channel: CompletionChannel,
    /// Room for the first capsule, which may come before the host's confirmation. `None`: all such places are taken, and the capsule comes
    /// again.
    first: Option<Arc<FirstMessage>>,
    asked: QueueRequest,
}

/// Returns a queue pair with one receive for a request, or why the request is refused.
pub(super) fn offer(shared: &Shared, request: &ConnectionRequest) -> Result<Offer<Offered>, Refusal> {
    let asked = check(shared, request.private_data())?;
    if *shared.connections() >= shared.most_connections() {
        return Err(Refusal::RESOURCES);
    }
    let size = asked.sends + 1;
    let (qp, state) = queues(shared, asked, size).map_err(|_| Refusal::RESOURCES)?;
    let options = DialOptions {
        // Hosts never access memory of a target.
        access: Access::LOCAL_WRITE,
        responder_resources: 0,
        private_data: QueueReply { receives: size }.to_bytes().to_vec(),
        ..DialOptions::default()
    };
    Ok(Offer { qp, options, state })
}

fn queues(shared: &Shared, asked: QueueRequest, size: u16) -> Result<(QueuePair, Offered), DialError> {
    let caps = QpCaps {
        max_send_wr: send_credits(size),
        max_recv_wr: receives(size),
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline: response::LENGTH as u32,
    };
    let channel = CompletionChannel::new()?;
    // A connection that is not confirmed has one completion, of the first capsule.
    let cq = shared.device.create_cq(1, Some(&channel))?;
    let first = shared.first_capsules.take();
    let builder = shared.pd.queue_pair(&cq).caps(caps);
    let qp = first.iter().cloned().fold(builder, QpBuilder::keeps).create()?;
    qp.initialize(Access::LOCAL_WRITE)?;
    if let Some(first) = &first {
        qp.post_recv(FIRST, &[first.sge(first_capsule_length(shared.subsystem.limits(), asked.queue))])?;
    }
    Ok((qp, Offered { cq, channel, first, asked }))
}

/// Serves the queue of a connection, until the connection ends. Returns why.
pub(super) fn serve(shared: &Shared, connection: Connection, offered: Offered) -> Result<Infallible, String> {
    let (number, size, peer) = (offered.asked.queue, offered.asked.sends + 1, connection.peer());
    let rest = Rest::new(shared, connection.qp(), offered)
        .map_err(|error| format!("no resources for another queue: {error}"))?;
    let queue = Queue::new(shared.subsystem.clone(), number, size, shared.now());
    let mut served = Served {
        connection,
        rest,
        queue,
        size,
        peer,
        credits: send_credits(size),
        waiting: VecDeque::new(),
        outbox: VecDeque::new(),
        data: Vec::new(),
    };
    served.run(shared)
}

/// Checks the private data of a request.
fn check(shared: &Shared, private_data: &[u8]) -> Result<QueueRequest, Refusal> {
    let asked = QueueRequest::parse(private_data)?;
    let limits = shared.subsystem.limits();
    let most = if asked.queue == 0 { ADMIN_QUEUE } else { limits.queue_size };
    if asked.queue > limits.queues {
        return Err(Refusal::QUEUE);
    }
    if asked.sends == 0 || asked.sends >= most {
        return Err(Refusal::SENDS);
    }
    if asked.receives == 0 { Err(Refusal::RECEIVES) } else { Ok(asked) }
}

/// Work requests in the send queue: a READ, or a WRITE and a SEND, of each command whose data moves. Other responses wait for places. A
/// half-open connection has the queue, too, so it is short.
fn send_credits(size: u16) -> u32 {
    2 * u32::from(size.min(BUFFERS))
}

/// Receives of a queue with `size` entries.
fn receives(size: u16) -> u32 {
    size.min(RECEIVES).into()
}

/// Bytes of a command capsule. Commands on the admin queue carry no data.
fn capsule_length(limits: &Limits, queue: u16) -> usize {
    command::LENGTH + if queue == 0 { 0 } else { limits.in_capsule as usize }
}

/// Bytes of the first capsule, which is that of Connect.
pub(super) fn first_capsule_length(limits: &Limits, queue: u16) -> usize {
    capsule_length(limits, queue).min(command::LENGTH + connect::LENGTH)
}

/// Verbs objects of a queue, apart from its connection.
struct Rest {
    cq: CompletionQueue,
    channel: CompletionChannel,
    /// Room for the first capsule, until it has come.
    first: Option<Arc<FirstMessage>>,
    /// Room for the other capsules, by slot.
    capsules: MemoryRegion,
    capsule: usize,
    buffers: Buffers,
    /// Commands whose data is being fetched, by buffer.
    fetching: Vec<Option<Task>>,
}

impl Rest {
    /// Makes the buffers, and posts all receives that are not posted yet.
    fn new(shared: &Shared, qp: &QueuePair, offered: Offered) -> Result<Rest, DialError> {
        let Offered { cq, channel, first, asked } = offered;
        let (limits, size) = (shared.subsystem.limits(), asked.sends + 1);
        cq.resize(send_credits(size) + receives(size))?;
        let count = BUFFERS.min(size);
        let capsule = capsule_length(limits, asked.queue);
        let capsules = shared.pd.register(capsule * receives(size) as usize, Access::LOCAL_WRITE)?;
        let buffers = Buffers::new(&shared.pd, count.into(), limits.longest_transfer)?;
        let fetching = vec![None; count.into()];
        // The receive for the first capsule is in the place of slot 0's.
        let posted = u64::from(first.is_some());
        let rest = Rest { cq, channel, first, capsules, capsule, buffers, fetching };
        (posted..u64::from(receives(size))).try_for_each(|slot| rest.post_receive(qp, slot))?;
        Ok(rest)
    }

    fn post_receive(&self, qp: &QueuePair, slot: u64) -> Result<(), PostError> {
        qp.post_recv(slot, &[self.capsules.sge(slot as usize * self.capsule, self.capsule as u32)])
    }

    /// Returns the capsule in a receive, and the slot of the receive that takes its place.
    fn take(&mut self, wc: &Wc) -> Result<(Vec<u8>, u64), DeviceError> {
        let length = wc.byte_len as usize;
        if wc.wr_id == FIRST
            && let Some(first) = self.first.take()
        {
            return Ok((first.to_vec(length)?, 0));
        }
        let capsule = self.capsules.to_vec(wc.wr_id as usize * self.capsule, length.min(self.capsule))?;
        Ok((capsule, wc.wr_id))
    }
}

/// A work request of a queue that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    Receive,
    Read,
    Send,
}

impl Ended {
    /// Returns the work request of a completion, or why the connection ends: it failed, or a queue posts none of its kind. An identifier has a
    /// meaning only with its kind.
    fn of(wc: &Wc) -> Result<Ended, String> {
        match (wc.status, wc.opcode) {
            (WcStatus::Success, WcOpcode::Recv) => Ok(Ended::Receive),
            (WcStatus::Success, WcOpcode::Read) => Ok(Ended::Read),
            (WcStatus::Success, WcOpcode::Send) => Ok(Ended::Send),
            (WcStatus::Success, other) => Err(format!("a completion of {other:?}, which no queue posts")),
            (failed, opcode) => Err(format!("{opcode:?} failed: {failed}")),
        }
    }
}

/// A response, with the data that goes before it.
struct Reply {
    bytes: [u8; response::LENGTH],
    invalidate: Option<u32>,
    deliver: Option<(u32, Remote)>,
}

impl Reply {
    fn cost(&self) -> u32 {
        1 + u32::from(self.deliver.is_some())
    }
}

/// Buffer number of a response without data.
const NO_BUFFER: u64 = 0xffff_ffff;

struct Served {
    // Dropped first: the queue pair uses the memory below.
    connection: Connection,
    rest: Rest,
    queue: Queue,
    /// Entries of the queue.
    size: u16,
    peer: SocketAddr,
    /// Free places of the send queue.
    credits: u32,
    /// Commands that wait for a buffer.
    waiting: VecDeque<Task>,
    /// Responses that wait for places in the send queue.
    outbox: VecDeque<Reply>,
    /// Data of the command that runs.
    data: Vec<u8>,
}

impl Served {
    /// Serves until the connection ends, and returns why. Dropping it afterwards tells the host.
    fn run(&mut self, shared: &Shared) -> Result<Infallible, String> {
        loop {
            while self.take_completions(shared)? {}
            self.send_events()?;
            if shared.stops() {
                return Err("the target stops".into());
            }
            if let Some(ending) = self.queue.ending(shared.now()) {
                return Err(ending.to_string());
            }
            self.rest.cq.arm(Armed::Next);
            if self.rest.channel.wait(TICK) {
                continue;
            }
            if self.connection.wait_for_end(Duration::ZERO) {
                return Err("the host has disconnected".into());
            }
            if self.rest.cq.has_failed() {
                return Err("the device has failed".into());
            }
        }
    }

    /// Takes completions. False: there was none.
    fn take_completions(&mut self, shared: &Shared) -> Result<bool, String> {
        let mut completions = [Wc::default(); BATCH];
        let taken = self.rest.cq.poll_ready(&mut completions);
        for wc in &completions[..taken] {
            match Ended::of(wc)? {
                Ended::Receive => self.received(shared, wc)?,
                Ended::Read => self.fetched(shared, wc.wr_id as u32)?,
                Ended::Send => self.sent(shared, wc.wr_id)?,
            }
        }
        Ok(taken > 0)
    }

    /// Takes a command capsule.
    fn received(&mut self, shared: &Shared, wc: &Wc) -> Result<(), String> {
        let (capsule, slot) = self.rest.take(wc).map_err(told)?;
        self.rest.post_receive(self.connection.qp(), slot).map_err(told)?;
        let task = self.queue.take(shared.now(), &capsule).map_err(|violation| violation.to_string())?;
        match &task.transfer {
            Transfer::None => self.execute(shared, &task, None),
            Transfer::InCapsule(range) => {
                self.data.clear();
                self.data.extend(&capsule[range.clone()]);
                self.execute(shared, &task, None)
            }
            Transfer::Fetch(_) | Transfer::Deliver(_) => {
                self.waiting.push_back(task);
                self.start_waiting(shared)
            }
        }
    }

    /// Starts waiting commands while there are buffers for them, in their order.
    fn start_waiting(&mut self, shared: &Shared) -> Result<(), String> {
        while self.credits > 0 && !self.waiting.is_empty() {
            let Some(buffer) = self.rest.buffers.take() else { break };
            let Some(task) = self.waiting.pop_front() else { break };
            match task.transfer {
                Transfer::Fetch(remote) => {
                    let read = SendWr::read(remote.address, RKey(remote.key)).id(buffer.into()).signaled();
                    let sge = self.rest.buffers.sge(buffer, remote.length);
                    self.connection.qp().post_send(&read, &[sge]).map_err(told)?;
                    self.credits -= 1;
                    self.rest.fetching[buffer as usize] = Some(task);
                }
                _ => self.execute(shared, &task, Some(buffer))?,
            }
        }
        Ok(())
    }

    /// Executes a command whose data has arrived.
    fn fetched(&mut self, shared: &Shared, buffer: u32) -> Result<(), String> {
        self.credits += 1;
        let task = self.rest.fetching[buffer as usize].take().expect("a READ has a command");
        if let Transfer::Fetch(remote) = task.transfer {
            self.data.resize(remote.length as usize, 0);
            self.rest.buffers.copy(buffer, &mut self.data).map_err(told)?;
        }
        self.rest.buffers.release(buffer);
        self.execute(shared, &task, None)?;
        self.start_waiting(shared)
    }

    /// Executes a command, and answers it. `buffer`: where data for the host goes.
    fn execute(&mut self, shared: &Shared, task: &Task, buffer: Option<u32>) -> Result<(), String> {
        let was_connected = self.queue.controller().is_some();
        let response = self.queue.run(shared.now(), task, &mut self.data);
        // The response of an aborted command leaves before that of the Abort.
        self.send_events()?;
        if !was_connected && let Some(controller) = self.queue.controller() {
            (shared.report)(TargetEvent::Connected {
                peer: self.peer,
                host: controller.host().to_owned(),
                controller: controller.id(),
                queue: self.queue.id(),
            });
        }
        let deliver = match (&task.transfer, buffer, &response) {
            (Transfer::Deliver(remote), Some(buffer), Some(response)) if response.status.is_success() => {
                self.rest.buffers.fill(buffer, &self.data).map_err(told)?;
                Some((buffer, *remote))
            }
            (_, Some(buffer), _) => {
                self.rest.buffers.release(buffer);
                None
            }
            _ => None,
        };
        let Some(response) = response else { return Ok(()) };
        self.reply(Reply { bytes: response.to_bytes(), invalidate: task.invalidate, deliver })
    }

    /// Answers event requests whose responses are due.
    fn send_events(&mut self) -> Result<(), String> {
        while let Some(response) = self.queue.event() {
            self.reply(Reply { bytes: response.to_bytes(), invalidate: None, deliver: None })?;
        }
        Ok(())
    }

    /// Posts a response, or queues it behind others that wait for places in the send queue.
    fn reply(&mut self, reply: Reply) -> Result<(), String> {
        if !self.outbox.is_empty() || self.credits < reply.cost() {
            // A host has fewer commands outstanding than its queue has entries.
            if self.outbox.len() >= self.size.into() {
                return Err("the host takes no responses".into());
            }
            self.outbox.push_back(reply);
            return Ok(());
        }
        self.post(&reply)
    }

    fn post(&mut self, reply: &Reply) -> Result<(), String> {
        let qp = self.connection.qp();
        let mut buffer = NO_BUFFER;
        // On a reliable connection the data is in place before the response arrives.
        if let Some((number, remote)) = reply.deliver {
            let write = SendWr::write(remote.address, RKey(remote.key));
            qp.post_send(&write, &[self.rest.buffers.sge(number, remote.length)]).map_err(told)?;
            buffer = number.into();
        }
        let send = SendWr::send().id(buffer | u64::from(reply.cost()) << 32).signaled();
        let send = match reply.invalidate {
            Some(key) => SendWr { opcode: WrOpcode::SendInvalidate, rkey: RKey(key), ..send },
            None => send,
        };
        qp.post_send_inline(&send, &reply.bytes).map_err(told)?;
        self.credits -= reply.cost();
        Ok(())
    }

    /// Takes back what a response used, and posts what waits.
    fn sent(&mut self, shared: &Shared, wr_id: u64) -> Result<(), String> {
        self.credits += (wr_id >> 32) as u32;
        if wr_id & NO_BUFFER != NO_BUFFER {
            self.rest.buffers.release(wr_id as u32);
        }
        while let Some(reply) = self.outbox.pop_front() {
            if self.credits < reply.cost() {
                self.outbox.push_front(reply);
                break;
            }
            self.post(&reply)?;
        }
        self.start_waiting(shared)
    }
}

fn told(error: impl std::fmt::Display) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unexpected_completions_end_the_connection() {
        let of = |opcode, status| Ended::of(&Wc { opcode, status, ..Wc::default() });
        let done = |opcode| of(opcode, WcStatus::Success);
        assert_eq!(done(WcOpcode::Recv), Ok(Ended::Receive));
        assert_eq!(done(WcOpcode::Read), Ok(Ended::Read));
        assert_eq!(done(WcOpcode::Send), Ok(Ended::Send));
        for other in (0..=u8::MAX).filter_map(WcOpcode::from_code) {
            if !matches!(other, WcOpcode::Recv | WcOpcode::Read | WcOpcode::Send) {
                assert!(done(other).unwrap_err().contains("no queue posts"), "{other:?}");
            }
        }
        assert!(of(WcOpcode::Send, WcStatus::RetryExc).unwrap_err().contains("failed"));
    }
}
