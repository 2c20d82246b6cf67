//! Per-process objects: state, NIC, and the connection manager on the NIC.
//!
//! A forked process finds its parent's objects unusable, and creates its own. A process that shares its parent's memory
//! until it executes a program (`vfork`) must not modify anything.

use std::fs;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::ptr::null_mut;
use std::sync::atomic::{
    AtomicPtr,
    Ordering::{Acquire, Release},
};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use roxie::cm::{Config, Event as CmEvent, Manager};
use roxie::host::{ConnectionService, Consumer, DeviceError, DeviceSlot, OrphanTable, SelectiveRepeat};
use roxie::netdev::Interface;
use roxie::time::Nanos;
use roxie::verbs::LocalGid;
use roxie::wire::Gid;

use super::finder::{Finder, JobStep};
use super::id::IdState;
use super::incoming::GidLookup;
use super::resolve::{Query, own_address};
use super::state::{AddressOwner, Cm, Rules, State};
use crate::base::fork;
use crate::base::lock::lock;
use crate::base::object::Errno;
use crate::base::report;
use crate::device::nic::{Nic, watch_port};
use crate::device::settings;

const RESOLVE: &str = "rdma_resolve_addr";
/// First and longest time between checks of a next hop that has not answered. The time doubles with each check.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// Search for a destination on behalf of an identifier.
#[derive(Debug)]
struct Search {
    query: Query,
    /// Source address of this host on the route to the destination.
    local: IpAddr,
    /// Timeout given by the program.
    timeout: Duration,
    until: Instant,
    /// Time until the next check.
    pause: Duration,
}

/// See the module documentation. Lives as long as the process.
#[derive(Debug)]
pub(super) struct Process {
    pid: u32,
    state: Mutex<State>,
    nic: Arc<Nic>,
    service: OnceLock<ConnectionService<EventHandler>>,
    /// The connections that another process ends if this one has ended.
    orphans: OnceLock<OrphanTable>,
    /// Held while the service is started.
    starting: Mutex<()>,
    finder: Finder,
}

static PROCESS: AtomicPtr<Process> = AtomicPtr::new(null_mut());

/// Returns this process's objects. `None`: not created yet, or another process's.
pub(super) fn this() -> Option<&'static Process> {
    // SAFETY: null, or a box that is never freed.
    let process = unsafe { PROCESS.load(Acquire).as_ref() };
    process.filter(|process| process.pid == std::process::id())
}

/// Returns true if this process is the child of a fork, with a copy of its parent's memory.
pub(super) fn is_forked() -> bool {
    // SAFETY: null, or a box that is never freed.
    let process = unsafe { PROCESS.load(Acquire).as_ref() };
    process.is_some_and(|process| process.nic.generation() != fork::generation())
}

/// Returns this process's objects, and creates them if necessary.
///
/// # Errors
/// If there is no device.
pub(super) fn make() -> Result<&'static Process, Errno> {
    static MAKING: Mutex<()> = Mutex::new(());
    if let Some(process) = this() {
        return Ok(process);
    }
    // A child of a fork may have inherited the lock in a locked state, so it does not take it.
    let _alone = if is_forked() { None } else { Some(lock(&MAKING)) };
    if let Some(process) = this() {
        return Ok(process);
    }
    let process = Process {
        pid: std::process::id(),
        state: Mutex::new(State::new()),
        nic: Nic::open("rdma_cm")?,
        service: OnceLock::new(),
        orphans: OnceLock::new(),
        starting: Mutex::new(()),
        finder: Finder::default(),
    };
    // The parent's objects are leaked, because other code may still refer to them.
    let process: &'static Process = Box::leak(Box::new(process));
    PROCESS.store(std::ptr::from_ref(process).cast_mut(), Release);
    process.nic.device.set_cm_ids(Box::new(|| process.state().seen()));
    watch_port(super::port_changed);
    Ok(process)
}

/// Hands a table of connections to the process that outlives this one: the NIC that serves it, else its launcher.
/// `None`: there is neither.
fn outliver(slot: Option<&DeviceSlot>) -> Option<OrphanTable> {
    if let Some(table) = slot.and_then(|slot| slot.orphans().ok()?) {
        return Some(table);
    }
    let launcher = settings::settings().launcher.as_ref()?;
    let log_error =
        |error| report::info("rdma_cm", format_args!("no launcher outlives this process: {error}"));
    OrphanTable::register(launcher).map_err(log_error).ok()
}

/// Receives the connection manager's events for the process.
#[derive(Debug)]
pub(super) struct EventHandler(&'static Process);

impl Consumer for EventHandler {
    fn event(&mut self, manager: &mut Manager, now: Nanos, event: CmEvent) {
        let process = self.0;
        process.around(|around| {
            process.state().handle_event(
                &mut Cm { manager, now, local_gid: &process.local_gid() },
                around,
                event,
            )
        });
    }
}

impl Process {
    pub(super) fn nic(&self) -> &Nic {
        &self.nic
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Returns an unpredictable number.
    pub(super) fn random(&self) -> u64 {
        RandomState::new().build_hasher().finish()
    }

    /// Calls with the state, and the connection manager if it was started. The manager's lock is taken before the
    /// state's.
    pub(super) fn with<R>(&self, call: impl FnOnce(&mut State, Option<Cm<'_>>) -> R) -> R {
        match self.service.get() {
            Some(service) => service.with(|manager, _, now| {
                call(&mut self.state(), Some(Cm { manager, now, local_gid: &self.local_gid() }))
            }),
            None => call(&mut self.state(), None),
        }
    }

    /// Calls with the state and the connection manager, which is started if necessary. Starting it claims the
    /// interface.
    ///
    /// # Errors
    /// If the manager cannot be started.
    pub(super) fn connected<R>(
        &'static self,
        call: &'static str,
        what: impl FnOnce(&mut State, &mut Cm<'_>) -> Result<R, Errno>,
    ) -> Result<R, Errno> {
        let service = self.service(call)?;
        service.with(|manager, _, now| {
            what(&mut self.state(), &mut Cm { manager, now, local_gid: &self.local_gid() })
        })
    }

    fn service(&'static self, call: &'static str) -> Result<&'static ConnectionService<EventHandler>, Errno> {
        self.try_service().map_err(report::device(call))
    }

    fn try_service(&'static self) -> Result<&'static ConnectionService<EventHandler>, DeviceError> {
        let _alone = lock(&self.starting);
        if let Some(service) = self.service.get() {
            return Ok(service);
        }
        let seed = self.random();
        let selective_repeat = settings::settings().selective_repeat != SelectiveRepeat::Off;
        let ca_guid = u64::from_be(settings::node_guid());
        let ack_delay = settings::settings().ack_delay();
        let config = Config { seed, ca_guid, selective_repeat, ack_delay, ..Config::default() };
        let mut manager = Manager::new(config);
        self.nic.device.claim()?;
        let slot = self.nic.device.slot();
        if let Some(slot) = slot {
            self.state().ports.share(slot);
        }
        if let Some(orphans) = outliver(slot) {
            manager.hand_over_to(orphans.handover_store(seed, slot.map(DeviceSlot::slot)));
            let _ = self.orphans.set(orphans);
        }
        let service = ConnectionService::start(&self.nic.device, manager, EventHandler(self))?;
        Ok(self.service.get_or_init(|| service))
    }

    /// Returns true if peers may be left that no other process would inform of this process's end. Does not block.
    pub(super) fn has_to_part(&self) -> bool {
        !self.orphans.get().is_some_and(OrphanTable::is_watched)
            && self.service.get().is_some_and(ConnectionService::has_to_part)
    }

    /// Disconnects peers, because the process is about to end.
    pub(super) fn part(&self, limit: Duration) {
        if let Some(service) = self.service.get() {
            service.part(limit);
        }
    }

    fn local_gid(&self) -> impl Fn(Gid) -> LocalGid {
        |gid| self.nic.device.local_gid_of(gid)
    }

    /// Calls with the device's GIDs.
    pub(super) fn around<R>(&self, call: impl FnOnce(&GidLookup<'_>) -> R) -> R {
        let sgid_index = |local: LocalGid| {
            let gids = self.nic.device.gids();
            // Over sockets, arrivals show no VLAN.
            let exact = gids.iter().find(|entry| entry.local() == local);
            let entry = exact.or_else(|| gids.iter().find(|entry| entry.gid == local.gid))?;
            u8::try_from(entry.index).ok()
        };
        call(&GidLookup { sgid_index: &sgid_index, random: self.random() })
    }

    /// Binds an identifier: see [`State::bind`].
    pub(super) fn bind(&self, channel: u64, handle: u32, address: SocketAddr) -> Result<(), Errno> {
        let address_owner = self.address_owner(address.ip());
        if address_owner == AddressOwner::Host
            && !address.ip().is_unspecified()
            && !address.ip().is_loopback()
        {
            report::info(
                "rdma_bind_addr",
                format_args!(
                    "{} is an address of this host, but not of {}, which the device is on: `roxie run --dev` names another",
                    address.ip(),
                    self.interface()
                ),
            );
        }
        let rules = self.rules(address.is_ipv4());
        self.state().bind(channel, handle, address, address_owner, &rules)
    }

    /// Binds an identifier for the program, and claims the interface for later calls. Some servers send their address
    /// to the client before they listen (qperf). The client's request then finds a manager that lets it wait for the
    /// listener, rather than a port that is still being opened, which takes longer.
    pub(super) fn bind_for_use(
        &'static self,
        channel: u64,
        handle: u32,
        address: SocketAddr,
    ) -> Result<(), Errno> {
        let ip = address.ip();
        // A client cannot be told a loopback address. Libraries bind to it only to probe for devices.
        if !ip.is_loopback() && (ip.is_unspecified() || self.address_owner(ip) == AddressOwner::Device) {
            // Started before the bind, so that ports of other processes are known. Errors are ignored here: a call that
            // needs the interface will report them.
            let _ = self.try_service();
        }
        self.bind(channel, handle, address)
    }

    /// Listens. An unbound identifier is bound to all IPv4 addresses.
    pub(super) fn listen(&'static self, channel: u64, handle: u32, backlog: u32) -> Result<(), Errno> {
        if self.state().id(channel, handle)?.stage == IdState::Idle {
            self.bind_for_use(channel, handle, State::wildcard(true))?;
        }
        self.connected("rdma_listen", |state, cm| state.listen(cm, channel, handle, backlog))
    }

    /// Resolves a destination address: binds the identifier if necessary, and leaves the rest to a thread that may
    /// block.
    ///
    /// # Errors
    /// The errors of [`State::bind`] and [`State::begin_resolution`]; routing errors (`ENETUNREACH`), which need no
    /// waiting.
    pub(super) fn resolve_address(
        &'static self,
        channel: u64,
        handle: u32,
        source: Option<SocketAddr>,
        destination: SocketAddr,
        timeout_ms: u32,
    ) -> Result<(), Errno> {
        if source.is_some_and(|source| source.is_ipv4() != destination.is_ipv4()) {
            return Err(libc::EINVAL);
        }
        if self.state().id(channel, handle)?.stage == IdState::Idle {
            self.bind(channel, handle, source.unwrap_or_else(|| State::wildcard(destination.is_ipv4())))?;
        }
        let itself = self.itself(destination);
        let destination = itself.unwrap_or(destination);
        let query = self.state().begin_resolution(channel, handle, destination)?;
        let local = match (itself, query.source.ip()) {
            (Some(own), ip) if ip.is_loopback() || ip.is_unspecified() => Ok(own.ip()),
            // Packets from a loopback address do not leave the host. The device check then fails, as in the kernel.
            (_, ip) if ip.is_loopback() => Ok(ip),
            _ => route_from(query.source, destination),
        };
        let timeout = Duration::from_millis(timeout_ms.into());
        let begun = local.and_then(|local| {
            let mut search =
                Search { query, local, timeout, until: Instant::now() + timeout, pause: FIRST_PAUSE };
            let job = move || self.step(&mut search);
            self.finder.run(Box::new(job))
        });
        begun.inspect_err(|errno| {
            report::info(
                RESOLVE,
                format_args!("{destination}: {}", std::io::Error::from_raw_os_error(*errno)),
            );
            self.state().take_resolution_back(&query);
        })
    }

    /// Returns the device's address for a destination that stands for the device: an unspecified address, or a loopback
    /// address that is not a device's (`cma_resolve_loopback`). The kernel resolves such an address too, but rejects
    /// the route on RoCE.
    fn itself(&self, destination: SocketAddr) -> Option<SocketAddr> {
        let own: Vec<IpAddr> = self.nic.device.gids().iter().map(|entry| entry.gid.to_ip()).collect();
        own_address(destination.ip(), &own).map(|own| SocketAddr::new(own, destination.port()))
    }

    /// Advances a search by one step, and reports its end to the identifier.
    fn step(&self, search: &mut Search) -> JobStep {
        let query = search.query;
        let device = &self.nic.device;
        let local = device.local_gid_of(search.local.into());
        let give_up = || device.give_up(local, query.destination.ip().into(), 0);
        if !self.state().awaits(&query) {
            give_up();
            return JobStep::Done;
        }
        let result = match self.query_path(search) {
            Ok(true) => Ok(SocketAddr::new(search.local, query.source.port())),
            Err(errno) => Err(errno),
            Ok(false) => {
                let now = Instant::now();
                if now < search.until {
                    let pause = search.pause;
                    search.pause = (2 * pause).min(LONGEST_PAUSE);
                    return JobStep::Again((now + pause).min(search.until));
                }
                give_up();
                report::info(
                    RESOLVE,
                    format_args!(
                        "no station answers for {}, or its gateway, within {:?}",
                        query.destination.ip(),
                        search.timeout
                    ),
                );
                Err(libc::ETIMEDOUT)
            }
        };
        self.state().end_resolution(&query, result);
        JobStep::Done
    }

    /// Returns true if the route starts at the device and the next hop has answered, false if the next hop has not
    /// answered yet.
    fn query_path(&self, search: &Search) -> Result<bool, Errno> {
        let (local, remote) = (search.local, search.query.destination.ip());
        if self.address_owner(local) != AddressOwner::Device {
            return report::refuse(
                RESOLVE,
                libc::ENODEV,
                format_args!(
                    "the way to {remote} begins at {local}, which is not on {}, which the device is on: `ip route get {remote}` \
                     shows it, `roxie run --dev` names another interface",
                    self.interface()
                ),
            );
        }
        match self.nic.device.next_hop_is_known(self.nic.device.local_gid_of(local.into()), remote.into()) {
            Ok(is_known) => Ok(is_known),
            // The link is down, or the route was just removed: it may come back before the timeout.
            Err(DeviceError::Resolve(_)) if Instant::now() < search.until => Ok(false),
            Err(error) => {
                report::info(RESOLVE, &error);
                Err(libc::ETIMEDOUT)
            }
        }
    }

    fn interface(&self) -> String {
        self.nic.device.port().interface.unwrap_or_default()
    }

    fn address_owner(&self, address: IpAddr) -> AddressOwner {
        if self.nic.device.gids().iter().any(|entry| entry.gid == Gid::from(address)) {
            return AddressOwner::Device;
        }
        // The kernel only binds a socket to an address of the host. Cheaper than listing the addresses of all
        // interfaces, which takes 1 ms: a server that listens a second time races with its client, which already knows
        // the address.
        if UdpSocket::bind((address, 0)).is_ok() { AddressOwner::Host } else { AddressOwner::Unknown }
    }

    fn rules(&self, v4: bool) -> Rules {
        let read = |name: &str| fs::read_to_string(format!("/proc/sys/net/{name}")).ok();
        let number = |name: &str| read(name).and_then(|text| text.trim().parse::<u16>().ok());
        let range = read("ipv4/ip_local_port_range").and_then(|text| {
            let mut numbers = text.split_whitespace().filter_map(|number| number.parse().ok());
            Some(numbers.next()?..=numbers.next()?)
        });
        Rules {
            any_port: range.unwrap_or(32768..=60999),
            unprivileged: number("ipv4/ip_unprivileged_port_start").unwrap_or(1024),
            privileged: may_bind_service_ports(),
            ipv6_only: !v4 && number("ipv6/bindv6only").is_some_and(|value| value != 0),
            random: self.random(),
        }
    }

    /// Reports to all identifiers on the device if the interface was removed or the device has failed.
    pub(super) fn check_device(&'static self) {
        let check = move || {
            let device = &self.nic.device;
            if device.has_failed() || Interface::by_name(&self.interface()).is_err() {
                self.state().lose_device();
            }
            JobStep::Done
        };
        // Without memory for a thread, the change is not reported.
        let _ = self.finder.run(Box::new(check));
    }
}

/// Returns the source address that the kernel would use for a destination.
///
/// # Errors
/// The kernel's error, if there is no route.
fn route_from(source: SocketAddr, destination: SocketAddr) -> Result<IpAddr, Errno> {
    // A connected datagram socket sends nothing, but has a route.
    const DISCARD: u16 = 9;
    let errno = |error: std::io::Error| error.raw_os_error().unwrap_or(libc::ENETUNREACH);
    let mut bound = source;
    bound.set_port(0);
    let mut to = destination;
    to.set_port(DISCARD);
    let socket = UdpSocket::bind(bound).map_err(errno)?;
    socket.connect(to).map_err(errno)?;
    Ok(socket.local_addr().map_err(errno)?.ip())
}

/// Returns true if the process has CAP_NET_BIND_SERVICE.
fn may_bind_service_ports() -> bool {
    const NET_BIND_SERVICE: u32 = 10;
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = effective.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok()).unwrap_or(0);
    bits >> NET_BIND_SERVICE & 1 != 0
}
