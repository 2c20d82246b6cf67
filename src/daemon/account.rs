//! Accounts of clients: each resource is charged before it is allocated, and refunded when it is freed.
//!
//! ```text
//! the NIC: all clients together      mappings, descriptors
//! └─ a user                          Config::user_quota
//!    └─ a client                     Config::quota
//! ```
//!
//! A [`Charge`] is stored with the object that it pays for, and refunds its cost when it is dropped: each cost is
//! refunded exactly once, however the object ends.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, Weak};

use nix::sys::resource::{Resource as Limit, getrlimit};

use super::memory;
use super::quota::Quota;
use roxie::host::inspect::AccountEntry;
use roxie_base::threads::lock;
use roxie_nic::nic::{Command, ControlError, MemoryCommand, memory_of_qp};
use roxie_nic::verbs::Gid;

/// A kind of resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Resource {
    Qps,
    Cqes,
    Mrs,
    Bytes,
    Objects,
    QueueBytes,
    Arenas,
    Channels,
    Xrcds,
    Memberships,
    Flows,
    Ports,
}

/// Kinds of resources.
const KINDS: usize = Resource::ALL.len();
/// Maximum number of one user's QPs in one multicast group: three quarters of a group's capacity.
const IN_ONE_GROUP: u64 = 42;
/// Clients get at most half of the mappings, descriptors and memory that the system gives the NIC. The other half is
/// the NIC's own (sockets, stacks, heaps), and the memory of other programs.
const SHARE: u64 = 2;
/// A user's processes get a quarter of the memory, and a process an eighth.
const USER_SHARE: u64 = 4;
const PROCESS_SHARE: u64 = 8;

impl Resource {
    pub(super) const ALL: [Resource; 12] = [
        Resource::Qps,
        Resource::Cqes,
        Resource::Mrs,
        Resource::Bytes,
        Resource::Objects,
        Resource::QueueBytes,
        Resource::Arenas,
        Resource::Channels,
        Resource::Xrcds,
        Resource::Memberships,
        Resource::Flows,
        Resource::Ports,
    ];

    /// The key of its bound (`--max-qps`), as in JSON.
    pub(super) fn key(self) -> &'static str {
        match self {
            Resource::Qps => "qps",
            Resource::Cqes => "cqes",
            Resource::Mrs => "mrs",
            Resource::Bytes => "bytes",
            Resource::Objects => "objects",
            Resource::QueueBytes => "queue_bytes",
            Resource::Arenas => "arenas",
            Resource::Channels => "channels",
            Resource::Xrcds => "xrcds",
            Resource::Memberships => "memberships",
            Resource::Flows => "flows",
            Resource::Ports => "ports",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Resource::Qps => "QPs",
            Resource::Cqes => "completion queue entries",
            Resource::Mrs => "memory regions",
            Resource::Bytes => "bytes registered",
            Resource::Objects => "objects",
            Resource::QueueBytes => "bytes of queues",
            Resource::Arenas => "arenas",
            Resource::Channels => "completion channels",
            Resource::Xrcds => "XRC domains",
            Resource::Memberships => "QPs in multicast groups",
            Resource::Flows => "flows",
            Resource::Ports => "ports and services",
        }
    }

    fn errno(self) -> i32 {
        if self == Resource::Channels { libc::EMFILE } else { libc::ENOMEM }
    }
}

/// The amounts that one object costs.
pub(super) type Cost = [(Resource, u64); 2];

/// Returns the cost of an object that counts as one.
pub(super) fn one(resource: Resource) -> Cost {
    several(resource, 1)
}

/// Returns the cost of `amount` units of a resource.
pub(super) fn several(resource: Resource, amount: u64) -> Cost {
    [(resource, amount), (resource, 0)]
}

/// Returns the cost of the object that a command makes. `None` if it makes no object that is charged.
pub(super) fn cost(command: &Command) -> Option<Cost> {
    match command {
        Command::AllocPd | Command::CreateAh(..) => Some(one(Resource::Objects)),
        Command::OpenXrcd(_) => Some([(Resource::Objects, 1), (Resource::Xrcds, 1)]),
        Command::CreateFlow(..) => Some([(Resource::Objects, 1), (Resource::Flows, 1)]),
        Command::AllocWindow { .. } => Some(one(Resource::Mrs)),
        Command::CreateXrcTarget(_) | Command::CreateRssQp(..) => Some(one(Resource::Qps)),
        Command::Memory(command) => cost_with_memory(command),
        _ => None,
    }
}

fn cost_with_memory(command: &MemoryCommand) -> Option<Cost> {
    let region = |length: usize| {
        // A region of all addresses (implicit on-demand memory) is no memory by itself.
        let bytes = if length == usize::MAX { 0 } else { length as u64 };
        Some([(Resource::Mrs, 1), (Resource::Bytes, bytes)])
    };
    match command {
        MemoryCommand::CreateSrq { .. } => Some(one(Resource::Objects)),
        MemoryCommand::CreateCq { ring, .. } | MemoryCommand::ResizeCq { ring, .. } => {
            Some([(Resource::Objects, 1), (Resource::Cqes, ring.capacity().into())])
        }
        MemoryCommand::RegisterMemory { memory, .. }
        | MemoryCommand::AllocFastMemory { memory, .. }
        | MemoryCommand::ReregisterMemory { translation: Some((_, memory)), .. } => region(memory.len()),
        MemoryCommand::CreateQp { init, .. } => {
            Some([(Resource::Qps, 1), (Resource::QueueBytes, memory_of_qp(&init.caps))])
        }
        MemoryCommand::ReregisterMemory { translation: None, .. } | MemoryCommand::ModifySrq { .. } => None,
    }
}

/// Amounts of each kind.
type Amounts = [u64; KINDS];

/// The resources of a client, of a user, or of all clients: amounts in use, and their limits.
#[derive(Debug)]
pub(super) struct Account {
    /// The holder's name in messages.
    holder: &'static str,
    limits: Amounts,
    used: Mutex<Amounts>,
    parent: Option<Arc<Account>>,
}

impl Account {
    fn new(holder: &'static str, limits: Amounts, parent: Option<Arc<Account>>) -> Arc<Account> {
        Arc::new(Account { holder, limits, used: Mutex::default(), parent })
    }

    /// Charges an object's cost to this account and those above it.
    ///
    /// # Errors
    /// The first limit that would be exceeded. Nothing is charged then.
    pub(super) fn charge(self: &Arc<Account>, cost: Cost) -> Result<Charge, ControlError> {
        self.charge_instead(cost, None)
    }

    /// Charges a cost only if half of each limit then remains: for resources that a client can do without, unlike
    /// others of the same kind.
    ///
    /// # Errors
    /// As for [`charge`](Self::charge).
    pub(super) fn charge_spare(self: &Arc<Account>, cost: Cost) -> Result<Charge, ControlError> {
        self.take(&cost, [(Resource::Qps, 0); 2], 2)?;
        Ok(Charge { account: Arc::clone(self), cost })
    }

    /// Charges an object that replaces another. The caller drops the old charge afterwards; here its cost counts as
    /// refunded.
    ///
    /// # Errors
    /// As for [`charge`](Self::charge).
    pub(super) fn charge_instead(
        self: &Arc<Account>,
        cost: Cost,
        old: Option<&Charge>,
    ) -> Result<Charge, ControlError> {
        self.take(&cost, old.map_or([(Resource::Qps, 0); 2], |old| old.cost), 1)?;
        Ok(Charge { account: Arc::clone(self), cost })
    }

    /// Charges a cost up to one `share`th of each limit.
    fn take(&self, cost: &Cost, old: Cost, share: u64) -> Result<(), ControlError> {
        let mut used = lock(&self.used);
        for (resource, amount) in *cost {
            let given_back: u64 =
                old.iter().filter(|(of, _)| *of == resource).map(|(_, amount)| amount).sum();
            let limit = self.limits[resource as usize] / share;
            let value = used[resource as usize].saturating_sub(given_back).saturating_add(amount);
            if amount > given_back && value > limit {
                let (what, errno) = (resource.name(), resource.errno());
                let why = format!(
                    "{what}: {value}, but the NIC gives {} {limit} at most (`roxie nic --help`)",
                    self.holder
                );
                return Err(ControlError::Refused { errno, why });
            }
        }
        if let Some(parent) = &self.parent {
            parent.take(cost, old, share)?;
        }
        for (resource, amount) in *cost {
            let used = &mut used[resource as usize];
            debug_assert!(used.checked_add(amount).is_some(), "{used} and {amount} {}", resource.name());
            *used = used.saturating_add(amount);
            self.assert_counted_above(resource, *used);
        }
        Ok(())
    }

    /// Asserts that the account above has at least what this one uses, `used`: the former is charged first, and
    /// refunded last.
    fn assert_counted_above(&self, resource: Resource, used: u64) {
        if cfg!(debug_assertions)
            && let Some(parent) = &self.parent
        {
            let above = parent.used(resource);
            debug_assert!(above >= used, "{used} {} of {above} that all have", resource.name());
        }
    }

    fn give_back(&self, cost: &Cost) {
        let mut used = lock(&self.used);
        cost.iter().for_each(|(resource, amount)| {
            let used = &mut used[*resource as usize];
            debug_assert!(*used >= *amount, "{amount} {} are refunded of {used}", resource.name());
            *used = used.saturating_sub(*amount);
        });
        drop(used);
        if let Some(parent) = &self.parent {
            parent.give_back(cost);
        }
    }

    /// Returns the amount in use.
    pub(super) fn used(&self, resource: Resource) -> u64 {
        lock(&self.used)[resource as usize]
    }

    /// Returns the amount in use and its limit, for the client and for its user.
    pub(super) fn entry(&self, resource: Resource) -> AccountEntry {
        let user = self.parent.as_deref().unwrap_or(self);
        AccountEntry {
            used: self.used(resource),
            limit: self.limits[resource as usize],
            user_used: user.used(resource),
            user_limit: user.limits[resource as usize],
        }
    }
}

/// The cost of one object, refunded on drop.
#[derive(Debug)]
pub(super) struct Charge {
    account: Arc<Account>,
    cost: Cost,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.account.give_back(&self.cost);
    }
}

/// The accounts of all users of a NIC.
#[derive(Debug)]
pub(super) struct Accounts {
    all: Arc<Account>,
    /// The memory of the machine in bytes.
    memory: u64,
    users: Mutex<HashMap<u32, Weak<Account>>>,
    /// The users' QPs in multicast groups.
    groups: Mutex<HashMap<(u32, Gid), Weak<Account>>>,
}

/// Returns the value of this name. Makes it if there is none, or no other handle of it is left.
pub(super) fn find_or_make<K: Eq + Hash, V>(
    all: &Mutex<HashMap<K, Weak<V>>>,
    name: K,
    make: impl FnOnce() -> Arc<V>,
) -> Arc<V> {
    let mut all = lock(all);
    all.retain(|_, value| value.strong_count() > 0);
    let value = all.get(&name).and_then(Weak::upgrade).unwrap_or_else(make);
    all.insert(name, Arc::downgrade(&value));
    value
}

impl Accounts {
    /// The accounts on a machine with this much memory, in bytes.
    pub(super) fn new(memory: u64) -> Accounts {
        let mut limits = [u64::MAX; KINDS];
        limits[Resource::QueueBytes as usize] = memory / SHARE;
        limits[Resource::Arenas as usize] = memory::mappings() / SHARE;
        let descriptors = getrlimit(Limit::RLIMIT_NOFILE).map_or(u64::MAX, |(now, _)| now);
        limits[Resource::Channels as usize] = descriptors / SHARE;
        let all = Account::new("all programs together", limits, None);
        Accounts { all, memory, users: Mutex::default(), groups: Mutex::default() }
    }

    /// Returns the account of a user's QPs in a multicast group.
    pub(super) fn in_group(&self, uid: u32, group: Gid) -> Arc<Account> {
        let mut limits = [u64::MAX; KINDS];
        limits[Resource::Memberships as usize] = IN_ONE_GROUP;
        find_or_make(&self.groups, (uid, group), || Account::new("each user in one group", limits, None))
    }

    /// Opens an account for a client of this user.
    pub(super) fn open(&self, uid: u32, quota: &Quota, user_quota: &Quota) -> Arc<Account> {
        let bounded = |quota: &Quota, share: u64| {
            let mut limits = limits(quota);
            let bytes = &mut limits[Resource::QueueBytes as usize];
            *bytes = (*bytes).min(self.memory / share);
            limits
        };
        let new = || Account::new("each user", bounded(user_quota, USER_SHARE), Some(Arc::clone(&self.all)));
        let user = find_or_make(&self.users, uid, new);
        Account::new("each process", bounded(quota, PROCESS_SHARE), Some(user))
    }
}

#[cfg(test)]
impl Accounts {
    /// True if nothing is charged to any client.
    pub(super) fn are_empty(&self) -> bool {
        *lock(&self.all.used) == [0; KINDS]
    }
}

/// Returns the limits in the order of [`Resource`].
fn limits(quota: &Quota) -> Amounts {
    [
        quota.qps.into(),
        quota.cqes,
        quota.mrs.into(),
        quota.bytes,
        quota.objects.into(),
        quota.queue_bytes,
        quota.arenas.into(),
        quota.channels.into(),
        quota.xrcds.into(),
        quota.memberships.into(),
        quota.flows.into(),
        quota.ports.into(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn qps(amount: u64) -> Cost {
        [(Resource::Qps, amount), (Resource::Bytes, 1)]
    }

    #[test]
    fn refused_charge_takes_nothing() {
        let (quota, user) = (Quota { qps: 4, ..Quota::default() }, Quota { qps: 6, ..Quota::default() });
        let accounts = Accounts::new(u64::MAX);
        let [a, b] = [0, 1].map(|_| accounts.open(7, &quota, &user));
        let other = accounts.open(8, &quota, &user);
        let first = a.charge(qps(4)).expect("room");
        let refused = a.charge(qps(1)).expect_err("beyond its own").to_string();
        assert!(refused.contains("QPs: 5") && refused.contains("each process"), "{refused}");
        let _second = b.charge(qps(2)).expect("room");
        let refused = b.charge(qps(1)).expect_err("beyond the user's").to_string();
        assert!(refused.contains("QPs: 7") && refused.contains("each user"), "{refused}");
        let _other = other.charge(qps(4)).expect("another user's");
        assert_eq!((a.used(Resource::Bytes), b.used(Resource::Bytes)), (1, 1));
        let larger = a.charge_instead(qps(4), Some(&first)).expect("the same");
        drop(first);
        assert_eq!(a.used(Resource::Qps), 4);
        drop(larger);
        assert_eq!(a.used(Resource::Qps), 0);
        b.charge(qps(2)).expect("given back");
    }

    #[test]
    fn queues_follow_the_memory_of_the_machine() {
        const MEMORY: u64 = 1 << 30;
        let accounts = Accounts::new(MEMORY);
        let quota = Quota::default();
        let bytes =
            |account: &Arc<Account>, part: u64| account.charge(several(Resource::QueueBytes, MEMORY / part));
        let processes = [7, 7, 7, 8, 8, 9].map(|uid| accounts.open(uid, &quota, &Quota::of_a_user()));
        bytes(&processes[0], 7).expect_err("more than an eighth");
        let charges = [0, 1, 3, 4].map(|at| bytes(&processes[at], 8).expect("an eighth"));
        let refused = bytes(&processes[2], 1024).expect_err("the user has a quarter").to_string();
        assert!(refused.contains("each user 268435456 at most"), "{refused}");
        let refused = bytes(&processes[5], 1024).expect_err("half is taken").to_string();
        assert!(refused.contains("all programs together 536870912 at most"), "{refused}");
        drop(charges);
        bytes(&processes[5], 8).expect("room");
        let small = Quota { queue_bytes: 10, ..quota };
        assert!(bytes(&accounts.open(9, &small, &small), 8).is_err(), "a lower quota holds");
    }

    #[test]
    fn user_account_ends_with_its_last_client() {
        let accounts = Accounts::new(u64::MAX);
        let quota = Quota::default();
        let client = accounts.open(7, &quota, &quota);
        let charge = client.charge(qps(1)).expect("room");
        drop(client);
        let next = accounts.open(7, &quota, &quota);
        let user = next.parent.clone().expect("a user's");
        assert_eq!(user.used(Resource::Qps), 1, "the charge keeps it");
        drop((charge, next, user));
        drop(accounts.open(8, &quota, &quota));
        assert_eq!(lock(&accounts.users).len(), 1, "only the latest");
    }
}
