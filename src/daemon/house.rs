//! The NIC that processes are served by, and what they share of it.

use std::sync::Mutex;

use nix::unistd::geteuid;

use super::account::{Accounts, Quota};
use super::seats::Seats;
use crate::engine::Engine;
use crate::host::adapter::{snapshot_of, statuses_of};
use crate::host::inspect::Snapshot;
use crate::host::{Device, DeviceError};
use crate::nic::{Answer, Command, ControlError, QpStatus};
use crate::shared::{Doorbells, GuestId};
use crate::verbs::{PdId, QpIndex};

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
    pub(super) accounts: Accounts,
}

impl House {
    /// # Errors
    /// If the device is no NIC of this process.
    pub(super) fn new(device: Device, config: Config) -> Result<House, DeviceError> {
        if device.engine().is_none() {
            return Err(ControlError::WrongKind("a NIC that serves is this process's own").into());
        }
        let (uid, accounts) = (geteuid().as_raw(), Accounts::new());
        Ok(House { device, config, uid, seats: Mutex::default(), accounts })
    }

    pub(super) fn may_come(&self, uid: u32) -> bool {
        let others = match &self.config.users {
            Users::All => true,
            Users::Only(users) => users.contains(&uid),
        };
        uid == 0 || uid == self.uid || others
    }

    fn engine(&self) -> &Engine {
        self.device.engine().expect("looked at in `new`")
    }

    pub(super) fn now(&self) -> crate::time::Nanos {
        self.engine().now()
    }

    pub(super) fn call(&self, command: Command) -> Result<Answer, ControlError> {
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
    pub(super) fn list(&self, has_qp: impl Fn(QpIndex) -> bool) -> Vec<QpStatus> {
        statuses_of(self.engine(), has_qp)
    }

    /// What there is to be seen of some objects.
    pub(super) fn snapshot(
        &self,
        has_qp: impl Fn(QpIndex) -> bool,
        has_pd: impl Fn(PdId) -> bool,
    ) -> Snapshot {
        snapshot_of(self.engine(), has_qp, has_pd)
    }
}
