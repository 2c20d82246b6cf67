//! The NIC that processes are served by, and what they share of it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use nix::unistd::geteuid;

use super::account::{Accounts, Quota};
use super::door::Standing;
use super::seats::Seats;
use crate::engine::Engine;
use crate::host::adapter::{snapshot_of, statuses_of};
use crate::host::inspect::Snapshot;
use crate::host::{Device, DeviceError};
use crate::nic::{Answer, Command, ControlError, Object, QpStatus};
use crate::shared::remote_memory::RemoteMemory;
use crate::shared::{Doorbells, GuestId};
use crate::threads::lock;

/// Whom a NIC serves, and how much it gives to each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Users that are served besides root and the user whose process the NIC is.
    pub users: Users,
    /// How much each process may have.
    pub quota: Quota,
    /// How much all processes of a user may have together.
    pub user_quota: Quota,
}

impl Default for Config {
    fn default() -> Config {
        Config { users: Users::default(), quota: Quota::default(), user_quota: Quota::of_a_user() }
    }
}

/// Users that are served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Users {
    /// These.
    Only(Vec<u32>),
    /// All of the network namespace.
    All,
}

impl Default for Users {
    fn default() -> Users {
        Users::Only(Vec::new())
    }
}

/// See the module's page.
#[derive(Debug)]
pub(super) struct House {
    pub(super) device: Device,
    pub(super) config: Config,
    /// Whose process this is.
    pub(super) uid: u32,
    pub(super) seats: Mutex<Seats>,
    /// Users whose programs' memory did not answer: when, and that memory.
    silent: Mutex<HashMap<u32, (Instant, Weak<RemoteMemory>)>>,
    pub(super) accounts: Accounts,
}

/// How long a user is not served after a program of the user's whose memory did not answer.
const SILENT_FOR: Duration = Duration::from_secs(10);

impl House {
    /// # Errors
    /// If the device is no NIC of this process.
    pub(super) fn new(device: Device, config: Config) -> Result<House, DeviceError> {
        if device.engine().is_none() {
            return Err(ControlError::WrongKind("a NIC that serves is this process's own").into());
        }
        Ok(House {
            device,
            config,
            uid: geteuid().as_raw(),
            seats: Mutex::default(),
            silent: Mutex::default(),
            accounts: Accounts::new(),
        })
    }

    /// Returns a user's standing with this NIC.
    pub(super) fn standing(&self, uid: u32) -> Standing {
        let is_served = match &self.config.users {
            Users::All => true,
            Users::Only(users) => users.contains(&uid),
        };
        match uid {
            _ if uid == 0 || uid == self.uid => Standing::Host,
            _ if is_served => Standing::Served,
            _ => Standing::Stranger,
        }
    }

    /// The engine has abandoned memory of a program of this user.
    pub(super) fn note_silent(&self, uid: u32, memory: &Arc<RemoteMemory>) {
        lock(&self.silent).insert(uid, (Instant::now(), Arc::downgrade(memory)));
    }

    /// True for [`SILENT_FOR`] after that, and for as long as a thread of the engine's still waits for that memory. So a user keeps one
    /// thread of the NIC waiting at most, and stops others once in that time.
    pub(super) fn is_silent(&self, uid: u32) -> bool {
        let mut silent = lock(&self.silent);
        silent.retain(|_, (since, memory)| since.elapsed() < SILENT_FOR || memory.strong_count() > 0);
        silent.contains_key(&uid)
    }

    fn engine(&self) -> &Engine {
        self.device.engine().expect("looked at in `new`")
    }

    pub(super) fn now(&self) -> crate::time::Nanos {
        self.engine().now()
    }

    pub(super) fn call(&self, command: impl Into<Command>) -> Result<Answer, ControlError> {
        self.engine().call(command)
    }

    /// The NIC hears these bells from now on.
    pub(super) fn hear(&self, page: Doorbells) -> Result<GuestId, ControlError> {
        let id = self.engine().adjust(|worker| worker.guests().add(page)).ok_or(ControlError::DeviceFatal)?;
        // It may be asleep, and hear those alone that it had when it fell asleep.
        self.engine().doorbells().wake_if_sleeping();
        Ok(id)
    }

    pub(super) fn forget_bells(&self, id: GuestId) {
        self.engine().inspect(|worker| worker.guests().remove(id));
    }

    /// Some of its QPs.
    pub(super) fn list(&self, has: impl Fn(Object) -> bool) -> Vec<QpStatus> {
        statuses_of(self.engine(), has)
    }

    /// What there is to be seen of some objects.
    pub(super) fn snapshot(&self, has: impl Fn(Object) -> bool) -> Snapshot {
        snapshot_of(self.engine(), has)
    }
}
