//! Admin commands (NVMe base specification 5).

use std::time::Duration;

use super::queue::{Answer, Needs, Queue, Refused};
use super::{Controller, EVENT_REQUESTS, State, VERSION};
use crate::command::{ALL_NAMESPACES, Command, admin, feature};
use crate::discovery;
use crate::identify::{self, NAMESPACE_EVENTS, cns};
use crate::nqn;
use crate::status::Status;
use crate::subsystem::guid_of;

/// Log pages.
mod page {
    pub(super) const ERRORS: u8 = 0x01;
    pub(super) const HEALTH: u8 = 0x02;
    pub(super) const FIRMWARE: u8 = 0x03;
    pub(super) const CHANGED_NAMESPACES: u8 = 0x04;
}

/// Get Log Page: the event stays masked.
const RETAIN_EVENT: u32 = 1 << 15;
/// Set Features: save the value.
const SAVE: u32 = 1 << 31;
/// Asynchronous events that a host may enable: of health, and of namespaces.
const EVENTS: u32 = 0xff | NAMESPACE_EVENTS;
/// Abort: the command was not aborted.
const NOT_ABORTED: u64 = 1;

impl Queue {
    pub(super) fn admin_needs(&self, command: &Command) -> Result<Needs, Status> {
        match command.opcode {
            admin::IDENTIFY => Ok(Needs::ToHost(identify::LENGTH as u64)),
            admin::GET_LOG_PAGE => Ok(Needs::ToHost(command.log_length())),
            admin::SET_FEATURES | admin::GET_FEATURES => match command.dwords[0] as u8 {
                feature::WRITE_CACHE | feature::QUEUES | feature::EVENTS | feature::KEEP_ALIVE => {
                    Ok(Needs::Nothing)
                }
                // Other features may move data: whether it fits the SGL is not known.
                _ => Err(Status::INVALID_FIELD.permanent()),
            },
            admin::ABORT | admin::EVENT_REQUEST | admin::KEEP_ALIVE => Ok(Needs::Nothing),
            _ => Err(Status::INVALID_OPCODE.permanent()),
        }
    }

    /// `None`: the command is an Asynchronous Event Request, which is held.
    pub(super) fn run_admin(
        &self,
        controller: &Controller,
        command: &Command,
        data: &mut Vec<u8>,
    ) -> Option<Answer> {
        Some(match command.opcode {
            admin::IDENTIFY => self.identify(controller, command).map(|bytes| {
                *data = bytes;
                0
            }),
            admin::GET_LOG_PAGE => self.log_page(controller, command, data),
            admin::SET_FEATURES => self.set_feature(controller, command),
            admin::GET_FEATURES => Queue::feature(controller, command),
            admin::ABORT => Ok(abort(controller, command)),
            admin::KEEP_ALIVE => Ok(0),
            admin::EVENT_REQUEST => {
                let mut state = controller.state();
                if state.event_requests.len() < EVENT_REQUESTS {
                    state.event_requests.push_back(command.id);
                    return None;
                }
                Err(Status::TOO_MANY_EVENT_REQUESTS.permanent().into())
            }
            _ => Err(Status::INVALID_OPCODE.permanent().into()),
        })
    }

    fn identify(&self, controller: &Controller, command: &Command) -> Result<Vec<u8>, Refused> {
        let (structure, id) = (command.dwords[0] as u8, command.namespace);
        let invalid_namespace = Status::INVALID_NAMESPACE.permanent();
        let namespace = || self.subsystem.namespace(id).ok_or(invalid_namespace);
        match structure {
            cns::CONTROLLER => Ok(self.identity(controller).to_bytes()),
            _ if controller.is_discovery => Err(Status::INVALID_FIELD.permanent().into()),
            cns::NAMESPACE => Ok(namespace()?.identity().to_bytes()),
            cns::DESCRIPTORS => Ok(namespace()?.identity().descriptors()),
            cns::ACTIVE_NAMESPACES if id >= ALL_NAMESPACES - 1 => Err(invalid_namespace.into()),
            cns::ACTIVE_NAMESPACES => {
                let last = self.subsystem.namespaces().len() as u32;
                Ok(identify::namespace_list(id.saturating_add(1)..=last))
            }
            _ => Err(Status::INVALID_FIELD.permanent().into()),
        }
    }

    fn identity(&self, controller: &Controller) -> identify::Controller {
        let (limits, is_discovery) = (self.subsystem.limits(), controller.is_discovery);
        let serial =
            u64::from_be_bytes(std::array::from_fn(|n| guid_of(&[self.subsystem.nqn().as_bytes()])[n]));
        let subsystem = if is_discovery { nqn::DISCOVERY } else { self.subsystem.nqn() };
        let is_writable = self.subsystem.namespaces().iter().any(|namespace| !namespace.is_read_only());
        identify::Controller {
            serial: format!("{serial:016x}"),
            model: "Roxie".into(),
            firmware: env!("CARGO_PKG_VERSION").into(),
            longest_transfer: Some(limits.longest_transfer.into()),
            id: controller.id,
            version: VERSION,
            is_discovery,
            event_requests: EVENT_REQUESTS as u8 - 1,
            events: if is_discovery { 0 } else { NAMESPACE_EVENTS },
            commands: limits.queue_size,
            namespaces: if is_discovery { 0 } else { self.subsystem.namespaces().len() as u32 },
            has_write_cache: !is_discovery && is_writable,
            sgls: identify::Controller::SGLS,
            subsystem: subsystem.into(),
            capsule: crate::command::LENGTH as u32 + limits.in_capsule,
        }
    }

    /// Copies the part of a log page that is asked for. Beyond the end of the page there are zeros.
    fn log_page(&self, controller: &Controller, command: &Command, data: &mut Vec<u8>) -> Answer {
        let page = match (command.dwords[0] as u8, controller.is_discovery) {
            (discovery::PAGE, true) => self.subsystem.discovery_log(&controller.host).to_bytes(),
            (page::ERRORS, false) => vec![0; 64],
            (page::HEALTH, false) => {
                let mut health = vec![0; 512];
                // Spare capacity in percent.
                health[3] = 100;
                health
            }
            (page::FIRMWARE, false) => {
                let mut slots = vec![0; 512];
                // Slot 1 is active.
                slots[0] = 1;
                slots[8..16].copy_from_slice(format!("{:8.8}", env!("CARGO_PKG_VERSION")).as_bytes());
                slots
            }
            (page::CHANGED_NAMESPACES, false) => {
                let retain = command.dwords[0] & RETAIN_EVENT != 0;
                identify::namespace_list(controller.state().changed_namespaces(retain))
            }
            _ => return Err(Status::INVALID_LOG_PAGE.permanent().into()),
        };
        let offset = usize::try_from(command.log_offset()).unwrap_or(usize::MAX);
        if !offset.is_multiple_of(4) || offset > page.len() {
            return Err(Status::INVALID_FIELD.permanent().into());
        }
        data.clear();
        data.extend(&page[offset..]);
        // The length is at most that of the longest transfer.
        data.resize(command.log_length() as usize, 0);
        Ok(0)
    }

    fn set_feature(&self, controller: &Controller, command: &Command) -> Answer {
        let (feature, value) = (command.dwords[0] as u8, command.dwords[1]);
        if command.dwords[0] & SAVE != 0 {
            return Err(Status::NOT_SAVEABLE.permanent().into());
        }
        let mut state = controller.state();
        match feature {
            feature::KEEP_ALIVE => {
                state.set_keep_alive(value);
                Ok(0)
            }
            feature::EVENTS if value & !EVENTS == 0 => {
                state.events = value;
                Ok(0)
            }
            // The numbers count from 0; 0xffff is reserved.
            feature::QUEUES
                if !controller.is_discovery && value & 0xffff != 0xffff && value >> 16 != 0xffff =>
            {
                let asked = (value & 0xffff).min(value >> 16) + 1;
                state.granted = self.subsystem.limits().queues.min(asked.min(0xffff) as u16);
                Ok(State::queue_result(state.granted))
            }
            _ => Err(Status::INVALID_FIELD.permanent().into()),
        }
    }

    fn feature(controller: &Controller, command: &Command) -> Answer {
        let state = controller.state();
        match command.dwords[0] as u8 {
            feature::KEEP_ALIVE => Ok(state.keep_alive.map_or(0, |limit| limit.as_millis() as u64)),
            feature::EVENTS => Ok(state.events.into()),
            feature::QUEUES if !controller.is_discovery => Ok(State::queue_result(state.granted)),
            feature::WRITE_CACHE if !controller.is_discovery => Ok(1),
            _ => Err(Status::INVALID_FIELD.permanent().into()),
        }
    }
}

/// Aborts an event request of the admin queue. Returns the result. A controller need not abort other commands (NVMe
/// base specification 5.1): they wait for nothing but their data.
fn abort(controller: &Controller, command: &Command) -> u64 {
    let (queue, id) = (command.dwords[0] as u16, (command.dwords[0] >> 16) as u16);
    if queue == 0 && controller.state().abort(id) { 0 } else { NOT_ABORTED }
}

impl State {
    /// Sets the keep-alive timeout; 0: none.
    pub(super) fn set_keep_alive(&mut self, ms: u32) {
        self.keep_alive = (ms > 0).then(|| Duration::from_millis(ms.into()));
    }

    /// The result of Number of Queues: as many completion queues as submission queues, minus 1.
    fn queue_result(granted: u16) -> u64 {
        let count = u64::from(granted.max(1) - 1);
        count | count << 16
    }
}
