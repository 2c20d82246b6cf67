//! An initiator: connects to a controller over a device, and reads and writes its namespaces.
//!
//! One thread uses it. [`Initiator::admin`] and [`Initiator::execute`] wait for their command;
//! [`Initiator::submit_admin`] and [`Initiator::submit`] have many outstanding. Both take any [`Command`], so that a
//! caller may send one that the controller refuses: the SGL describes the bytes of [`Data`], whatever the command
//! moves.

mod error;
mod queue;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use roxie::host::{ConnectionManager, Device};

use crate::cm::ADMIN_QUEUE;
use crate::command::{Command, admin, feature, io, property};
use crate::connect::{ANY_CONTROLLER, Connect, ConnectData};
use crate::discovery::{self, Log};
use crate::identify::{self, cns};

pub use error::InitiatorError;
pub use queue::{Data, Finished};
use queue::{HostQueue, Sizes};
pub use roxie_ulp::Ended;

/// Longest time that an admin command may take.
const ADMIN_TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes that an admin command moves at most: Identify's.
const ADMIN_TRANSFER: usize = 4096;
/// Bytes that an I/O command moves at most, unless the controller allows fewer.
const IO_TRANSFER: u64 = 128 << 10;
/// Entries of discovery that are read at most.
const MOST_ENTRIES: u64 = 4096;

/// CC of an enabled controller: entries of 2^6 and 2^4 bytes, 4 KiB pages, NVM command set.
const ENABLED: u32 = 4 << 20 | 6 << 16 | 1;
/// CC.SHN: normal shutdown.
const SHUTDOWN: u32 = 1 << 14;
/// CSTS: ready, failed.
const READY: u64 = 1;
const FAILED: u64 = 1 << 1;
/// SGLS: keyed descriptors, data in the capsule.
const KEYED: u32 = 1 << 2;
const IN_CAPSULE: u32 = 1 << 20;

/// How to connect.
#[derive(Clone, Debug)]
pub struct HostOptions {
    /// Name of the subsystem.
    pub subsystem: String,
    /// Name of the host.
    pub host: String,
    /// Host identifier.
    pub host_id: [u8; 16],
    /// Commands outstanding on the I/O queue at most, 1 to 1023. The controller may allow fewer.
    pub queue_size: u16,
    /// Keep-alive timeout; zero: none.
    pub keep_alive: Duration,
    /// Longest time that an I/O command may take.
    pub timeout: Duration,
}

impl HostOptions {
    /// Returns options for a subsystem, with the name that the host identifier gives the host (NVMe base specification
    /// 7.9).
    pub fn new(subsystem: &str, host_id: [u8; 16]) -> HostOptions {
        HostOptions {
            subsystem: subsystem.to_owned(),
            host: format!("nqn.2014-08.org.nvmexpress:uuid:{}", uuid(&host_id)),
            host_id,
            queue_size: 32,
            keep_alive: Duration::from_secs(15),
            timeout: Duration::from_secs(30),
        }
    }
}

/// Formats 16 bytes as a UUID.
fn uuid(bytes: &[u8; 16]) -> String {
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]].join("-")
}

/// A connected host.
#[derive(Debug)]
pub struct Initiator {
    admin: HostQueue,
    io: Option<HostQueue>,
    device: Device,
    manager: ConnectionManager,
    to: SocketAddr,
    options: HostOptions,
    controller: u16,
    identity: identify::Controller,
    /// Time of the last admin command.
    last: Instant,
}

impl Initiator {
    /// Connects the admin queue, enables the controller, and identifies it.
    ///
    /// # Errors
    /// If there is no path, the target refuses the host, or the controller lacks what RDMA needs.
    pub fn connect(
        device: &Device,
        manager: &ConnectionManager,
        to: SocketAddr,
        options: HostOptions,
    ) -> Result<Initiator, InitiatorError> {
        let sizes = Sizes { entries: ADMIN_QUEUE, transfer: ADMIN_TRANSFER, in_capsule: 0 };
        let mut admin = HostQueue::connect(device, manager, to, 0, &sizes)?;
        let keep_alive_ms = u32::try_from(options.keep_alive.as_millis()).unwrap_or(u32::MAX);
        let connect = Connect { queue: 0, size: ADMIN_QUEUE - 1, no_flow_control: false, keep_alive_ms };
        let data = connect_data(&options, ANY_CONTROLLER).to_bytes();
        let response = admin.call(connect.command(), Data::Out(&data), ADMIN_TIMEOUT)?.response;
        let controller = response.result as u16;
        enable(&mut admin)?;
        let identified =
            admin.call(Command::identify(cns::CONTROLLER, 0), Data::In(identify::LENGTH), ADMIN_TIMEOUT)?;
        let identity = identify::Controller::parse(&identified.data)
            .ok_or(InitiatorError::Protocol("Identify of the controller is too short".into()))?;
        if !identity.is_discovery && identity.sgls & KEYED == 0 {
            return Err(InitiatorError::Protocol(
                "the controller has no keyed SGLs, which RDMA needs".into(),
            ));
        }
        let (device, manager, last) = (device.clone(), manager.clone(), Instant::now());
        Ok(Initiator { admin, io: None, device, manager, to, options, controller, identity, last })
    }

    /// Controller identifier.
    pub fn controller(&self) -> u16 {
        self.controller
    }

    /// What the controller says about itself.
    pub fn identity(&self) -> &identify::Controller {
        &self.identity
    }

    /// Executes an admin command.
    ///
    /// # Errors
    /// If the status is not success, or the connection fails.
    pub fn admin(&mut self, command: Command, data: Data<'_>) -> Result<Finished, InitiatorError> {
        self.last = Instant::now();
        self.admin.call(command, data, ADMIN_TIMEOUT)
    }

    /// Sends an admin command, and does not wait for it. Returns the identifier under which it finishes, which an
    /// [Abort](Command::abort) names; `None`: 31 are outstanding.
    ///
    /// # Errors
    /// If the data is too long, or the connection fails.
    pub fn submit_admin(&mut self, command: Command, data: Data<'_>) -> Result<Option<u16>, InitiatorError> {
        self.last = Instant::now();
        self.admin.submit(command, data)
    }

    /// Waits for a command of [`Initiator::submit_admin`] to finish, with any status. `None`: none did in `timeout`.
    ///
    /// # Errors
    /// If the connection fails.
    pub fn finish_admin(&mut self, timeout: Duration) -> Result<Option<Finished>, InitiatorError> {
        self.admin.wait(None, timeout)
    }

    /// Returns the identifiers of the active namespaces, 1,024 at most.
    ///
    /// # Errors
    /// As those of [`Initiator::admin`].
    pub fn namespaces(&mut self) -> Result<Vec<u32>, InitiatorError> {
        let list = self.admin(Command::identify(cns::ACTIVE_NAMESPACES, 0), Data::In(identify::LENGTH))?;
        Ok(identify::parse_namespace_list(&list.data))
    }

    /// Identifies a namespace.
    ///
    /// # Errors
    /// As those of [`Initiator::admin`]; also if the namespace is not active, or of an implausible block size.
    pub fn namespace(&mut self, id: u32) -> Result<identify::Namespace, InitiatorError> {
        let found = self.admin(Command::identify(cns::NAMESPACE, id), Data::In(identify::LENGTH))?;
        match identify::Namespace::parse(&found.data) {
            Some(namespace) if namespace.blocks > 0 => Ok(namespace),
            Some(_) => Err(InitiatorError::Protocol(format!("namespace {id} is not active"))),
            None => Err(InitiatorError::Protocol(format!("namespace {id} has an implausible block size"))),
        }
    }

    /// Reads the discovery log page.
    ///
    /// # Errors
    /// As those of [`Initiator::admin`]; also if the page contradicts itself.
    pub fn discover(&mut self) -> Result<Log, InitiatorError> {
        let wrong = |what: &str| InitiatorError::Protocol(format!("the discovery log page {what}"));
        let page = discovery::LENGTH as u32;
        let read = |offset| Command::log_page(discovery::PAGE, offset, page);
        let mut bytes = self.admin(read(0), Data::In(discovery::LENGTH))?.data;
        let count = Log::count(&bytes).ok_or_else(|| wrong("is of an unknown format"))?;
        if count > MOST_ENTRIES {
            return Err(wrong(&format!("has {count} entries; {MOST_ENTRIES} are read")));
        }
        for entry in 1..=count {
            bytes.extend(self.admin(read(entry * u64::from(page)), Data::In(discovery::LENGTH))?.data);
        }
        Log::parse(&bytes).ok_or_else(|| wrong("is too short"))
    }

    /// Connects the I/O queue. Returns the number of commands that may be outstanding.
    ///
    /// # Errors
    /// If the controller refuses it, or the connection fails.
    pub fn connect_io(&mut self) -> Result<u16, InitiatorError> {
        // One queue for submission and one for completion.
        self.admin(Command::set_feature(feature::QUEUES, 0), Data::None)?;
        let capabilities = self.admin(Command::property_get(property::CAPABILITIES, true), Data::None)?;
        // CAP.MQES counts from 0, and one entry stays free.
        let most = (capabilities.response.result as u16).min(self.identity.commands);
        let entries = self.options.queue_size.min(most).clamp(1, 1023) + 1;
        let transfer = self.identity.longest_transfer.unwrap_or(IO_TRANSFER).min(IO_TRANSFER);
        let in_capsule = match self.identity.sgls & IN_CAPSULE {
            0 => 0,
            _ => self.identity.capsule.saturating_sub(crate::command::LENGTH as u32).min(1 << 16),
        };
        let sizes = Sizes { entries, transfer: transfer as usize, in_capsule: in_capsule as usize };
        let mut io = HostQueue::connect(&self.device, &self.manager, self.to, 1, &sizes)?;
        let connect = Connect { queue: 1, size: entries - 1, no_flow_control: false, keep_alive_ms: 0 };
        let data = connect_data(&self.options, self.controller).to_bytes();
        io.call(connect.command(), Data::Out(&data), ADMIN_TIMEOUT)?;
        self.io = Some(io);
        Ok(entries - 1)
    }

    /// Bytes that one I/O command moves at most.
    pub fn longest_transfer(&self) -> usize {
        self.io.as_ref().map_or(0, |queue| queue.sizes().transfer)
    }

    /// Sends an I/O command. Returns the identifier under which it finishes; `None`: as many are outstanding as
    /// [`Initiator::connect_io`] has returned.
    ///
    /// # Errors
    /// If there is no I/O queue, the data is too long, or the connection fails.
    pub fn submit(&mut self, command: Command, data: Data<'_>) -> Result<Option<u16>, InitiatorError> {
        self.queue()?.submit(command, data)
    }

    /// Waits for an I/O command to finish, with any status. Keeps the association alive meanwhile.
    ///
    /// # Errors
    /// If none finishes in time, or the connection fails.
    pub fn finish(&mut self) -> Result<Finished, InitiatorError> {
        self.keep_alive()?;
        let timeout = self.options.timeout;
        let until = Instant::now() + timeout;
        loop {
            let slice = if self.options.keep_alive.is_zero() { timeout } else { self.options.keep_alive / 4 };
            if let Some(finished) = self.queue()?.wait(None, slice.min(timeout))? {
                return Ok(finished);
            }
            if Instant::now() >= until {
                return Err(InitiatorError::Timeout(timeout));
            }
            self.keep_alive()?;
        }
    }

    /// Executes an I/O command while no other is outstanding.
    ///
    /// # Errors
    /// If the status is not success, or the connection fails.
    pub fn execute(&mut self, command: Command, data: Data<'_>) -> Result<Finished, InitiatorError> {
        self.submit(command, data)?.ok_or(InitiatorError::QueueFull)?;
        let finished = self.finish()?;
        succeeded(&command, false, finished)
    }

    /// Makes all completed writes of a namespace durable.
    ///
    /// # Errors
    /// As those of [`Initiator::execute`].
    pub fn flush(&mut self, namespace: u32) -> Result<(), InitiatorError> {
        self.execute(Command::new(io::FLUSH, namespace), Data::None).map(drop)
    }

    /// Sends a Keep Alive if half of the timeout has passed since the last admin command.
    ///
    /// # Errors
    /// As those of [`Initiator::admin`].
    pub fn keep_alive(&mut self) -> Result<(), InitiatorError> {
        let limit = self.options.keep_alive;
        if limit.is_zero() || self.last.elapsed() < limit / 2 {
            return Ok(());
        }
        self.admin(Command::new(admin::KEEP_ALIVE, 0), Data::None).map(drop)
    }

    /// Shuts the controller down, and disconnects.
    ///
    /// # Errors
    /// If the target no longer answers. The connections are gone in any case.
    pub fn close(mut self) -> Result<(), InitiatorError> {
        if let Some(io) = self.io.take() {
            io.disconnect()?;
        }
        self.admin(Command::property_set(property::CONFIGURATION, ENABLED | SHUTDOWN), Data::None)?;
        self.admin.disconnect()
    }

    fn queue(&mut self) -> Result<&mut HostQueue, InitiatorError> {
        self.io.as_mut().ok_or(InitiatorError::NoQueue)
    }
}

fn connect_data(options: &HostOptions, controller: u16) -> ConnectData {
    ConnectData {
        host_id: options.host_id,
        controller,
        subsystem: options.subsystem.clone(),
        host: options.host.clone(),
    }
}

/// Enables the controller, and waits until it is ready.
fn enable(admin: &mut HostQueue) -> Result<(), InitiatorError> {
    let capabilities =
        admin.call(Command::property_get(property::CAPABILITIES, true), Data::None, ADMIN_TIMEOUT)?;
    // CAP.TO, in units of 500 ms.
    let until = Instant::now()
        + Duration::from_millis(500) * ((capabilities.response.result >> 24) as u8).max(1).into();
    admin.call(Command::property_set(property::CONFIGURATION, ENABLED), Data::None, ADMIN_TIMEOUT)?;
    loop {
        let status = admin.call(Command::property_get(property::STATUS, false), Data::None, ADMIN_TIMEOUT)?;
        match status.response.result {
            status if status & FAILED != 0 => {
                return Err(InitiatorError::Protocol(format!(
                    "the controller has failed (CSTS {status:#x})"
                )));
            }
            status if status & READY != 0 => return Ok(()),
            status if Instant::now() >= until => {
                return Err(InitiatorError::Protocol(format!(
                    "the controller does not become ready (CSTS {status:#x})"
                )));
            }
            _ => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

/// Returns a finished command, or its status as an error. `admin`: it was a command of the admin queue.
fn succeeded(command: &Command, admin: bool, finished: Finished) -> Result<Finished, InitiatorError> {
    let response = &finished.response;
    if response.status.is_success() {
        return Ok(finished);
    }
    let field = crate::connect::wrong_field(response);
    Err(InitiatorError::Refused { command: command.title(admin), status: response.status, field })
}
