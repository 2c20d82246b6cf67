//! A queue of the host: commands leave in capsules, data is reached by fast registration or goes along, responses arrive.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use roxie::host::{
    CompletionQueue, Connection, ConnectionManager, Device, DialError, DialOptions, LentRegion, MemoryRegion,
};
use roxie::verbs::{Access, QpCaps, SendWr, Wc, WcOpcode, WcStatus};

use super::error::InitiatorError;
use super::succeeded;
use crate::cm::{QueueReply, QueueRequest, Refusal};
use crate::command::{self, Command};
use crate::response::{self, Response};
use crate::sgl::Sgl;

/// Sizes of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sizes {
    /// Entries of the submission queue, 2 at least. One stays free, as a full queue would look like an empty one (NVMe base
    /// specification 4.1.2).
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

/// A command identifier, with its part of the memory.
#[derive(Debug)]
struct Slot {
    memory: LentRegion,
    state: State,
}

/// State of a command. It is finished once its request is over for the memory of its slot.
#[derive(Debug, Default)]
struct State {
    is_busy: bool,
    /// Bytes from the controller.
    expects: usize,
    response: Option<Response>,
}

/// A connected queue.
#[derive(Debug)]
pub(super) struct HostQueue {
    // Dropped first: the queue pair uses the memory below.
    connection: Connection,
    /// Queue identifier; 0: the admin queue.
    id: u16,
    cq: CompletionQueue,
    sizes: Sizes,
    /// Capsules of all slots, then receives for their responses.
    capsules: MemoryRegion,
    responses: MemoryRegion,
    slots: Vec<Slot>,
    finished: Vec<u16>,
}

impl HostQueue {
    pub(super) fn connect(
        device: &Device,
        manager: &ConnectionManager,
        to: SocketAddr,
        queue: u16,
        sizes: &Sizes,
    ) -> Result<HostQueue, InitiatorError> {
        let entries = u32::from(sizes.entries);
        let caps = QpCaps {
            // A registration, a SEND and an invalidation of each command.
            max_send_wr: 3 * entries,
            max_recv_wr: entries,
            max_send_sge: 1,
            max_recv_sge: 1,
            ..QpCaps::default()
        };
        let pd = device.alloc_pd()?;
        let cq = device.create_cq(caps.max_send_wr + caps.max_recv_wr, None)?;
        let capsules =
            pd.register(entries as usize * (command::LENGTH + sizes.in_capsule), Access::LOCAL_WRITE)?;
        let responses = pd.register(entries as usize * response::LENGTH, Access::LOCAL_WRITE)?;
        let slot = |_| {
            let memory = LentRegion::new(&pd, sizes.transfer)?;
            Ok::<_, InitiatorError>(Slot { memory, state: State::default() })
        };
        let slots = (1..entries).map(slot).collect::<Result<Vec<_>, _>>()?;
        let qp = pd.queue_pair(&cq).caps(caps).create()?;
        qp.initialize(Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE)?;
        for n in 0..entries as usize {
            qp.post_recv(n as u64, &[responses.sge(n * response::LENGTH, response::LENGTH as u32)])?;
        }
        let request = QueueRequest { queue, receives: sizes.entries, sends: sizes.entries - 1 };
        let options = DialOptions { private_data: request.to_bytes().to_vec(), ..DialOptions::default() };
        let connection = manager.connect(qp, to, &options).map_err(|error| match &error {
            DialError::Rejected { peer, private_data, .. } => match Refusal::parse(private_data) {
                Some(refusal) if refusal.0 != 0 => InitiatorError::Queue { peer: *peer, queue, refusal },
                _ => error.into(),
            },
            _ => error.into(),
        })?;
        let reply = QueueReply::parse(connection.private_data());
        let Some(reply) = reply else {
            return Err(InitiatorError::Protocol(format!(
                "{to} speaks no NVMe: its reply has another format"
            )));
        };
        if reply.receives < sizes.entries - 1 {
            let (receives, asked) = (reply.receives, sizes.entries);
            return Err(InitiatorError::Protocol(format!(
                "{to} posts {receives} receives for {asked} commands"
            )));
        }
        Ok(HostQueue {
            connection,
            id: queue,
            cq,
            sizes: *sizes,
            capsules,
            responses,
            slots,
            finished: Vec::new(),
        })
    }

    pub(super) fn sizes(&self) -> &Sizes {
        &self.sizes
    }

    /// Sends a command. `None`: the queue is full.
    pub(super) fn submit(&mut self, command: Command, data: Data<'_>) -> Result<Option<u16>, InitiatorError> {
        let Some(id) = self.slots.iter().position(|slot| !slot.state.is_busy) else { return Ok(None) };
        let length = match data {
            Data::None => 0,
            Data::Out(bytes) => bytes.len(),
            Data::In(length) => length,
        };
        let in_capsule =
            matches!(data, Data::Out(bytes) if !bytes.is_empty() && bytes.len() <= self.sizes.in_capsule);
        if length > self.sizes.transfer && !in_capsule {
            return Err(InitiatorError::TooLong { length, most: self.sizes.transfer });
        }
        self.slots[id].memory.begin();
        let begin = id * (command::LENGTH + self.sizes.in_capsule);
        let sgl = match data {
            _ if length == 0 => Sgl::NONE,
            Data::Out(bytes) if in_capsule => {
                self.capsules.write_at(begin + command::LENGTH, bytes)?;
                Sgl::InCapsule { offset: 0, length: length as u32 }
            }
            Data::Out(bytes) => {
                self.slots[id].memory.memory().write(0, bytes).map_err(roxie::host::DeviceError::from)?;
                self.register(id, length, Access::REMOTE_READ)?
            }
            _ => self.register(id, length, Access::REMOTE_WRITE | Access::LOCAL_WRITE)?,
        };
        let command = Command { id: id as u16, sgl, ..command };
        self.capsules.write_at(begin, &command.to_bytes())?;
        let capsule = command::LENGTH + if in_capsule { length } else { 0 };
        let send = SendWr::send().id(id as u64).signaled();
        self.connection.qp().post_send(&send, &[self.capsules.sge(begin, capsule as u32)])?;
        let slot = &mut self.slots[id];
        slot.state = State {
            is_busy: true,
            expects: if matches!(data, Data::In(_)) { length } else { 0 },
            response: None,
        };
        Ok(Some(id as u16))
    }

    /// Posts the registration of a slot's memory.
    fn register(&mut self, id: usize, length: usize, access: Access) -> Result<Sgl, InitiatorError> {
        let memory = &mut self.slots[id].memory;
        let (address, key) = memory.lend(self.connection.qp(), length, access)?;
        Ok(Sgl::Keyed { address, length: length as u32, key: key.0, invalidate: true })
    }

    /// Waits for a command to finish: for `id`, or for any. `None`: it did not in time.
    pub(super) fn wait(
        &mut self,
        id: Option<u16>,
        timeout: Duration,
    ) -> Result<Option<Finished>, InitiatorError> {
        let until = Instant::now() + timeout;
        let is_wanted = |finished: &u16| id.is_none_or(|id| id == *finished);
        let at = loop {
            if let Some(at) = self.finished.iter().position(is_wanted) {
                break at;
            }
            let left = until.saturating_duration_since(Instant::now());
            let waited = self.connection.wait_for_completion(&self.cq, left);
            match waited.map_err(|_| InitiatorError::Closed)? {
                Some(wc) => self.completed(&wc)?,
                None => return Ok(None),
            }
        };
        let id = self.finished.remove(at);
        let slot = &mut self.slots[usize::from(id)];
        let State { response, expects, .. } = std::mem::take(&mut slot.state);
        let response = response.expect("a finished command has a response");
        let mut data = Vec::new();
        if response.status.is_success() {
            data.resize(expects, 0);
            slot.memory.memory().read(0, &mut data).map_err(roxie::host::DeviceError::from)?;
        }
        Ok(Some(Finished { response, data }))
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
        Ok(self.connection.disconnect()?)
    }

    fn completed(&mut self, wc: &Wc) -> Result<(), InitiatorError> {
        if wc.status != WcStatus::Success {
            return Err(InitiatorError::Lost(wc.status));
        }
        let id = match wc.opcode {
            WcOpcode::Recv => self.received(wc)?,
            WcOpcode::Send | WcOpcode::LocalInvalidate => {
                self.slots[wc.wr_id as usize].memory.completed(wc.opcode);
                wc.wr_id as usize
            }
            other => {
                let what = format!("a completion of {other:?}, which no request posts");
                return Err(InitiatorError::Protocol(what));
            }
        };
        if self.slots[id].memory.is_over() {
            self.finished.push(id as u16);
        }
        Ok(())
    }

    /// Takes a response. Returns its slot.
    fn received(&mut self, wc: &Wc) -> Result<usize, InitiatorError> {
        let begin = wc.wr_id as usize * response::LENGTH;
        let length = wc.byte_len as usize;
        let bytes = self.responses.to_vec(begin, length.min(response::LENGTH))?;
        let response = Response::parse(&bytes).ok_or(InitiatorError::Short(length))?;
        let receive = self.responses.sge(begin, response::LENGTH as u32);
        self.connection.qp().post_recv(wc.wr_id, &[receive])?;
        let id = usize::from(response.id);
        let awaited =
            self.slots.get_mut(id).filter(|slot| slot.state.is_busy && slot.state.response.is_none());
        let Some(slot) = awaited else {
            return Err(InitiatorError::Protocol(format!(
                "a response to command {id}, which is not outstanding"
            )));
        };
        slot.state.response = Some(response);
        slot.memory.answered(self.connection.qp(), wc, id as u64)?;
        Ok(id)
    }
}
