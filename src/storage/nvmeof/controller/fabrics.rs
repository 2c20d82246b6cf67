//! Fabrics commands: Connect, Property Get, Property Set (NVMe over Fabrics 3).

use std::sync::Arc;
use std::time::Duration;

use super::queue::{Answer, Needs, Queue, Refused};
use super::{Controller, VERSION};
use crate::command::{Command, fabrics, property};
use crate::connect::{ANY_CONTROLLER, Connect, ConnectData, Wrong};
use crate::nqn;
use crate::status::Status;

/// CAP: contiguous queues, 7.5 s until ready, NVM command set. Pages of 4 KiB are the zeros of the other fields.
const CAPABILITIES: u64 = 1 << 16 | 15 << 24 | 1 << 37;
/// Size of a property in Property Get and Set: 8 bytes instead of 4.
const WIDE: u32 = 1;

impl From<Wrong> for Refused {
    fn from(wrong: Wrong) -> Refused {
        Refused { status: Status::CONNECT_PARAMETERS.permanent(), result: wrong.result() }
    }
}

impl Queue {
    pub(super) fn fabrics_needs(&self, command: &Command) -> Result<Needs, Status> {
        match command.fabrics_type() {
            fabrics::CONNECT => Err(Status::SEQUENCE.permanent()),
            fabrics::PROPERTY_GET | fabrics::PROPERTY_SET if self.id == 0 => Ok(Needs::Nothing),
            _ => Err(Status::INVALID_OPCODE.permanent()),
        }
    }

    pub(super) fn connect(&mut self, now: Duration, command: &Command, data: &[u8]) -> Answer {
        let connect = Connect::of(command).ok_or(Status::INCOMPATIBLE_FORMAT.permanent())?;
        let data = ConnectData::parse(data).ok_or(Status::SGL_LENGTH.permanent())?;
        if connect.queue != self.id {
            return Err(Wrong::QUEUE.into());
        }
        // One entry less than the queue has: the size counts from 0, and a queue has two entries at least.
        if connect.size == 0 || connect.size >= self.size {
            return Err(Wrong::SIZE.into());
        }
        let controller = match connect.queue {
            0 => self.associate(now, &connect, data)?,
            queue => self.join(queue, &data)?,
        };
        let id = controller.id;
        self.size = connect.size + 1;
        self.flow_control = !connect.no_flow_control;
        self.controller = Some(controller);
        Ok(id.into())
    }

    /// Makes a controller for the host of an admin queue.
    fn associate(
        &self,
        now: Duration,
        connect: &Connect,
        data: ConnectData,
    ) -> Result<Arc<Controller>, Refused> {
        let is_discovery = data.subsystem == nqn::DISCOVERY;
        if !is_discovery && data.subsystem != self.subsystem.nqn() {
            return Err(Wrong::SUBSYSTEM.into());
        }
        if nqn::check(&data.host).is_err() {
            return Err(Wrong::HOST.into());
        }
        // Every host may ask which subsystems it may use.
        if !is_discovery && !self.subsystem.admits(&data.host) {
            return Err(Status::INVALID_HOST.permanent().into());
        }
        if data.controller != ANY_CONTROLLER {
            return Err(Wrong::CONTROLLER.into());
        }
        let limits = self.subsystem.limits();
        let mut controllers = self.subsystem.controllers();
        let id = controllers.next_id(limits.controllers).ok_or(Status::BUSY)?;
        let controller = Arc::new(Controller::new(id, data.host, data.host_id, is_discovery, now));
        {
            let mut state = controller.state();
            state.set_keep_alive(connect.keep_alive_ms);
            state.granted = limits.queues;
        }
        controllers.by_id.insert(id, Arc::clone(&controller));
        Ok(controller)
    }

    /// Finds the controller of an I/O queue.
    fn join(&self, queue: u16, data: &ConnectData) -> Result<Arc<Controller>, Refused> {
        if data.subsystem != self.subsystem.nqn() {
            return Err(Wrong::SUBSYSTEM.into());
        }
        let found = self.subsystem.controllers().by_id.get(&data.controller).cloned();
        let controller = found.filter(|controller| !controller.is_discovery).ok_or(Wrong::CONTROLLER)?;
        if data.host != controller.host {
            return Err(Wrong::HOST.into());
        }
        if data.host_id != controller.host_id {
            return Err(Wrong::HOST_ID.into());
        }
        let mut state = controller.state();
        if queue > state.granted {
            return Err(Wrong::QUEUE.into());
        }
        if !state.is_ready() || !state.queues.insert(queue) {
            return Err(Status::SEQUENCE.permanent().into());
        }
        drop(state);
        Ok(controller)
    }

    pub(super) fn run_fabrics(&self, controller: &Controller, command: &Command) -> Answer {
        let (size, offset, value) = (command.dwords[0] & 0b111, command.dwords[1], command.dwords[2]);
        let mut state = controller.state();
        match (command.fabrics_type(), offset, size) {
            (fabrics::PROPERTY_GET, property::CAPABILITIES, WIDE) => {
                Ok(CAPABILITIES | u64::from(self.subsystem.limits().queue_size - 1))
            }
            (fabrics::PROPERTY_GET, property::VERSION, 0) => Ok(VERSION.into()),
            (fabrics::PROPERTY_GET, property::CONFIGURATION, 0) => Ok(state.configuration.into()),
            (fabrics::PROPERTY_GET, property::STATUS, 0) => Ok(state.status.into()),
            (fabrics::PROPERTY_SET, property::CONFIGURATION, 0) => {
                state.configure(value);
                Ok(0)
            }
            _ => Err(Status::INVALID_FIELD.permanent().into()),
        }
    }
}
