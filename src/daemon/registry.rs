//! The device of a NIC that serves clients, and the state that all clients share.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use nix::unistd::geteuid;

use super::acceptor::UserClass;
use super::account::{Account, Accounts};
use super::memory;
use super::payers::{Payers, UNLISTED};
use super::processor_share::UserShares;
use super::quota::Quota;
use roxie::host::inspect::{Snapshot, snapshot_of, statuses_of};
use roxie::host::{Device, DeviceError};
use roxie_base::roster::{Room, Roster};
use roxie_base::threads::lock;
use roxie_engine::{Engine, Workers};
use roxie_nic::nic::{Answer, Command, ControlError, Object, ObjectKind, QpStatus};
use roxie_nic::shared::remote_memory::RemoteMemory;
use roxie_nic::shared::{Doorbells, DoorbellsId, Notifier};
use roxie_nic::verbs::AddressVector;

/// The users that a NIC serves, and their bounds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Users that are served besides root and the NIC's own user.
    pub users: Users,
    /// The bounds of each process.
    pub quota: Quota,
    /// The bounds of all processes of a user together.
    pub user_quota: Quota,
    /// Maximum number of processes of each user, and units of ended processes with connections that still close. Root
    /// and the NIC's own user may have all places, and the last 16 are for them.
    pub user_processes: u32,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            users: Users::default(),
            quota: Quota::default(),
            user_quota: Quota::of_a_user(),
            user_processes: 128,
        }
    }
}

/// Maximum number of clients. One unit of communication IDs is left for the NIC itself.
const PLACES: u8 = 255;
/// Places that are kept for root and the NIC's own user.
const KEPT: usize = 16;
/// Further places that are kept for users without one.
const KEPT_FOR_NEW: usize = 48;
/// Users without a name have together this part of what a user has.
const UNLISTED_SHARE: u32 = 8;
/// The ranges of subordinate users.
const SUBUID: &str = "/etc/subuid";
/// The first port number that takes no privilege, if the system does not say (`PROT_SOCK` of the kernel).
const UNPRIVILEGED: u16 = 1024;

/// The users that are served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Users {
    /// The listed users.
    Only(Vec<u32>),
    /// Every user of the network namespace.
    All,
}

impl Default for Users {
    fn default() -> Users {
        Users::Only(Vec::new())
    }
}

/// The shared state of a NIC; see the module's page.
#[derive(Debug)]
pub(super) struct Registry {
    pub(super) device: Device,
    pub(super) config: Config,
    /// The user of this process.
    pub(super) uid: u32,
    pub(super) roster: Mutex<Roster>,
    /// Users of programs with memory that did not answer: the time, and that memory.
    silent: Mutex<HashMap<u32, (Instant, Weak<RemoteMemory>)>>,
    pub(super) accounts: Accounts,
    /// The users that pay for others.
    pub(super) payers: Payers,
    /// What users take of the processors.
    shares: Mutex<HashMap<u32, Arc<UserShares>>>,
}

/// How long a user is refused after a program's memory did not answer.
const SILENT_FOR: Duration = Duration::from_secs(10);

impl Registry {
    /// # Errors
    /// If the device is no NIC of this process.
    pub(super) fn new(device: Device, config: Config) -> Result<Registry, DeviceError> {
        if device.workers().is_none_or(|workers| workers.all().len() > 1) {
            return Err(
                ControlError::WrongKind("a NIC that serves is this process's own, with one worker").into()
            );
        }
        // Users of `--user` pay for themselves.
        let payers = Payers::new((config.users == Users::All).then(|| SUBUID.into()));
        Ok(Registry {
            device,
            config,
            uid: geteuid().as_raw(),
            roster: Mutex::new(Roster::of_places(PLACES)),
            silent: Mutex::default(),
            accounts: Accounts::new(memory::available()),
            payers,
            shares: Mutex::default(),
        })
    }

    /// Returns the class of a user.
    pub(super) fn class_of(&self, uid: u32) -> UserClass {
        let is_served = match &self.config.users {
            Users::All => true,
            Users::Only(users) => users.contains(&uid),
        };
        match uid {
            _ if uid == 0 || uid == self.uid => UserClass::Host,
            _ if is_served => UserClass::Served,
            _ => UserClass::Unserved,
        }
    }

    /// Returns how many places and units of ended processes a user may have.
    pub(super) fn room_of(&self, uid: u32) -> Room {
        match self.class_of(uid) {
            UserClass::Host => Room::ALL,
            _ => {
                let share = if self.payers.known(uid) == UNLISTED { UNLISTED_SHARE } else { 1 };
                let most = self.config.user_processes.div_ceil(share) as usize;
                Room { most, spare: KEPT, spare_of_more: KEPT_FOR_NEW }
            }
        }
    }

    /// Returns the lowest port number that a user's processes may bind. The kernel asks for CAP_NET_BIND_SERVICE below;
    /// here the user decides.
    pub(super) fn lowest_port(&self, uid: u32) -> u16 {
        if self.class_of(uid) == UserClass::Host {
            return 0;
        }
        let text = fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start").unwrap_or_default();
        text.trim().parse().unwrap_or(UNPRIVILEGED)
    }

    /// Checks the user before the client may hand over its memory.
    pub(super) fn admits_user(&self, uid: u32) -> Result<(), String> {
        // In the client's thread, because a directory of users may be slow to answer.
        self.payers.of(uid);
        if self.is_silent(uid) {
            return Err(format!(
                "memory of another program of user {uid} does not answer, or did not lately"
            ));
        }
        Ok(())
    }

    /// Records that the engine has abandoned memory of a program of this user.
    pub(super) fn note_silent(&self, uid: u32, memory: &Arc<RemoteMemory>) {
        let uid = self.payers.known(uid);
        lock(&self.silent).insert(uid, (Instant::now(), Arc::downgrade(memory)));
    }

    /// True for [`SILENT_FOR`] after that, and while a thread of the engine is still blocked on that memory. Hence a
    /// user keeps at most one thread of the NIC blocked, and stalls others at most once in that time.
    pub(super) fn is_silent(&self, uid: u32) -> bool {
        let uid = self.payers.known(uid);
        let mut silent = lock(&self.silent);
        silent.retain(|_, (since, memory)| since.elapsed() < SILENT_FOR || memory.strong_count() > 0);
        silent.contains_key(&uid)
    }

    /// Returns what all clients of a user take of the processors.
    pub(super) fn shares_of(&self, uid: u32) -> Arc<UserShares> {
        let mut shares = lock(&self.shares);
        // Debts outlive the user's last client.
        shares.retain(|_, shares| Arc::strong_count(shares) > 1 || shares.has_debt());
        Arc::clone(shares.entry(self.payers.known(uid)).or_default())
    }

    /// Opens an account for a client of this user.
    pub(super) fn open_account(&self, uid: u32) -> Arc<Account> {
        let Config { quota, user_quota, .. } = &self.config;
        match self.payers.known(uid) {
            UNLISTED => self.accounts.open(UNLISTED, quota, &user_quota.part(UNLISTED_SHARE)),
            payer => self.accounts.open(payer, quota, user_quota),
        }
    }

    /// Makes the notifier of a client: for all completion queues of the device, each of which may be moving to another
    /// ring, and for the client's channels.
    ///
    /// # Errors
    /// If there is no memory or descriptor for it.
    pub(super) fn new_notifier(&self) -> io::Result<Notifier> {
        let limits = self.device.limits();
        Notifier::new(limits.cqs.saturating_mul(2).saturating_add(self.config.quota.channels))
    }

    fn workers(&self) -> &Workers {
        self.device.workers().expect("looked at in `new`")
    }

    fn engine(&self) -> &Engine {
        self.workers().first()
    }

    pub(super) fn now(&self) -> roxie_base::time::Nanos {
        self.engine().now()
    }

    /// Checks that a path begins at an address of the interface's table, and sets its source MAC to the interface's
    /// (the kernel's `ib_modify_qp` fills in both from the GID table).
    pub(super) fn set_source(&self, path: &mut AddressVector) -> Result<(), ControlError> {
        if !self.device.gids().iter().any(|entry| entry.is_source_of(path)) {
            return Err(ControlError::NotFound(ObjectKind::SourceAddress));
        }
        path.smac = self.device.port().mac;
        Ok(())
    }

    pub(super) fn submit(&self, command: impl Into<Command>) -> Result<Answer, ControlError> {
        self.engine().call(command)
    }

    /// Adds a client's doorbell page to those that the NIC reads.
    pub(super) fn add_doorbells(&self, page: Doorbells) -> Result<DoorbellsId, ControlError> {
        let id =
            self.engine().adjust(|worker| worker.clients().add(page)).ok_or(ControlError::DeviceFatal)?;
        let id = id.map_err(|_| ControlError::NoMemory("doorbell"))?;
        // A sleeping worker only watches the pages that it had when it fell asleep.
        self.engine().doorbells().wake_if_sleeping();
        Ok(id)
    }

    pub(super) fn forget_bells(&self, id: DoorbellsId) {
        self.engine().inspect(move |worker| worker.clients().remove(id));
    }

    /// Returns the status of the QPs among some objects.
    pub(super) fn list(&self, objects: &[Object]) -> Vec<QpStatus> {
        statuses_of(self.workers(), objects)
    }

    /// Returns a snapshot of some objects. The objects of other clients cost nothing.
    pub(super) fn snapshot(&self, objects: &[Object]) -> Snapshot {
        snapshot_of(self.workers(), objects)
    }
}
