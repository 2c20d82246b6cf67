//! A device: an engine, its addresses, and the way to its neighbours.

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use crate::congestion::Rate;
use crate::engine::{Drive, Engine, EventSink};
use crate::limits::Limits;
use crate::netdev::link_speed;
use crate::nic::{Answer, Command, CongestionConfig, NicConfig, QpRecord, QpStatus};
use crate::port::udp::group::Member;
use crate::port::undelivered::Undelivered;
use crate::port::{LinkChange, Port, PortInfo};
use crate::random::unguessable;
use crate::remote::Attachment;
use crate::time::Nanos;
use crate::verbs::{AsyncEvent, Mtu, QpIndex};
use crate::wire::Gid;
use crate::wire::net::multicast_mac;

use super::adapter::{Adapter, Others, Seat};
use super::error::DeviceError;
use super::gid_table::{GidEntry, GidOrder, GidTable};
use super::knob_file::KnobFile;
use super::resolve::Resolve;
use super::snapshot::{Clients, CmIds};
use super::state::{Handle, State};

/// How a device behaves.
#[derive(Clone, Debug, Default)]
pub struct DeviceConfig {
    /// How many objects there may be of each kind, and how large.
    pub limits: Limits,
    /// Who turns the NIC: callers, or a thread of its own.
    pub drive: Drive,
    /// Packets are dropped whose ICRC fits only an implausible IPv4 identification, where a socket hides it.
    pub strict_icrc: bool,
    /// MigReq in what is sent: ConnectX sends 1, rxe 0.
    pub mig_req: bool,
    /// FLUSH is sent with the ICRC that rdma_rxe of Linux 6.12 to 7.2 gives it, which is wrong, and both are taken.
    pub rxe_flush_icrc: bool,
    /// It serves other processes: there is a QP1 of each besides its own.
    pub serves: bool,
    /// In which order the interface's addresses become GIDs.
    pub gid_order: GidOrder,
    /// How it reacts to congestion, and its traffic classes. The line rate is the interface's, where that is known and none is given.
    pub congestion: CongestionConfig,
    /// A file that says in place of `congestion.control` how QPs react, now and whenever it changes: see [`KnobFile`](super::KnobFile). Devices
    /// without an interface read it once.
    pub control_file: Option<PathBuf>,
    /// A fixed secret for QPNs and keys; `None`: random, as it should be outside of tests.
    pub seed: Option<u64>,
}

impl DeviceConfig {
    /// Only the caller's polls turn the device.
    pub fn caller_only() -> DeviceConfig {
        DeviceConfig { drive: Drive::CallerOnly, ..DeviceConfig::default() }
    }
}

/// A RoCE device. Cloning it gives another handle to the same one.
#[derive(Clone, Debug)]
pub struct Device {
    pub(super) inner: Arc<Handle>,
}

impl Device {
    /// A device on a port, with these addresses.
    ///
    /// # Errors
    /// If the link's MTU is too small for RoCE, the settings of congestion control do not go together, or the system has no memory,
    /// descriptors or threads for it.
    pub fn new(
        name: &str,
        port: Box<dyn Port>,
        addresses: impl IntoIterator<Item = IpAddr>,
        resolver: Box<dyn Resolve>,
        config: &DeviceConfig,
    ) -> Result<Device, DeviceError> {
        let gids = GidTable::in_order(config.gid_order, addresses);
        let packet = port.info().largest_packet();
        let largest_mtu = Mtu::largest_for_link(packet).ok_or(DeviceError::LinkMtu(packet))?;
        let nic = NicConfig {
            limits: config.limits,
            seed: config.seed.unwrap_or_else(unguessable),
            largest_mtu,
            strict_icrc: config.strict_icrc,
            mig_req: config.mig_req,
            rxe_flush_icrc: config.rxe_flush_icrc,
            serves: config.serves,
            ..NicConfig::default()
        };
        let speed = port.info().interface.as_deref().and_then(link_speed);
        let line_rate = speed.map(|mbps| Rate::from_mbps(mbps.into()));
        let engine = Engine::start(nic, port, config.drive)
            .map_err(|source| DeviceError::System { what: "starting the engine", source })?;
        let device = Device::with(name, Adapter::Own(engine), gids, resolver, config);
        if config.congestion != CongestionConfig::default() || line_rate.is_some() {
            let line_rate = config.congestion.line_rate.or(line_rate);
            device.set_congestion(CongestionConfig { line_rate, ..config.congestion.clone() })?;
        }
        device.inner.read_control();
        Ok(device)
    }

    /// A device on a NIC that is another process.
    pub(super) fn attached(
        name: &str,
        nic: Attachment,
        addresses: impl IntoIterator<Item = IpAddr>,
        resolver: Box<dyn Resolve>,
        config: &DeviceConfig,
    ) -> Device {
        let gids = GidTable::in_order(config.gid_order, addresses);
        let nic = Arc::new(nic);
        let config = DeviceConfig { control_file: None, ..config.clone() };
        let device = Device::with(name, Adapter::Shared(Arc::clone(&nic)), gids, resolver, &config);
        // Set once: the device was made just now.
        let _ = device.inner.seat.set(Seat::Nic(nic));
        device
    }

    fn with(
        name: &str,
        adapter: Adapter,
        gids: GidTable,
        resolver: Box<dyn Resolve>,
        config: &DeviceConfig,
    ) -> Device {
        let state = State {
            adapter,
            name: name.into(),
            gids: RwLock::new(gids),
            resolver,
            claim: Mutex::new(None),
            seat: OnceLock::new(),
            cm_ids: OnceLock::new(),
            others: OnceLock::new(),
            clients: OnceLock::new(),
            control_file: Mutex::new(config.control_file.as_deref().map(KnobFile::new)),
        };
        Device { inner: Arc::new(Handle { follower: OnceLock::new(), state: Arc::new(state) }) }
    }

    /// How it reacts to congestion, and its traffic classes, from now on. QPs whose reaction point stays of the same kind keep their
    /// rates.
    ///
    /// # Errors
    /// If the device has failed, or the system does not let its port take MAC control frames that are to be heeded now.
    pub fn set_congestion(&self, config: CongestionConfig) -> Result<(), DeviceError> {
        self.call(Command::SetCongestion(Box::new(config))).map(|_| ())
    }

    /// What it goes by.
    pub fn congestion(&self) -> CongestionConfig {
        self.inner.adapter.congestion()
    }

    /// Claims the interface, if that was left for later: from now on frames come and go. Making a queue pair does so by itself.
    ///
    /// # Errors
    /// If it cannot be had: the error says who has it. A later call tries again.
    pub fn claim(&self) -> Result<(), DeviceError> {
        let mut left = self.inner.claim.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(claim) = &*left else { return Ok(()) };
        let (port, member) = claim.open(self.port().mac).map_err(|e| DeviceError::Claim(Box::new(e)))?;
        self.inner
            .adapter
            .set_port(port)
            .map_err(|source| DeviceError::System { what: "waiting for frames", source })?;
        *left = None;
        self.share(member)
    }

    /// Keeps to its part of the numbers, if other processes have the others.
    pub(super) fn share(&self, member: Option<Arc<Member>>) -> Result<(), DeviceError> {
        let Some(member) = member else { return Ok(()) };
        self.call(Command::AddQpnUnit(member.slot()))?;
        // Set once: a port is opened once.
        let _ = self.inner.seat.set(Seat::Group(member));
        Ok(())
    }

    /// Who is to be asked for the connection identifiers on it when somebody looks at the device ([`inspect`](super::inspect)). The
    /// first stays.
    pub fn tell_cm_ids(&self, cm_ids: CmIds) {
        let _ = self.inner.cm_ids.set(cm_ids);
    }

    /// What other processes have at it is for them to tell of. The first stays.
    pub(crate) fn tell_others(&self, others: Others) {
        let _ = self.inner.others.set(others);
    }

    /// Names the processes that the device serves in its snapshots. The first call counts.
    pub(crate) fn tell_clients(&self, clients: Clients) {
        let _ = self.inner.clients.set(clients);
    }

    /// The engine, if it is of this process.
    pub(crate) fn engine(&self) -> Option<&Engine> {
        self.inner.adapter.engine()
    }

    /// How many objects there may be of each kind.
    pub(crate) fn limits(&self) -> Limits {
        self.engine().map_or_else(Limits::default, |engine| engine.inspect(|worker| *worker.nic().limits()))
    }

    /// Its place among the processes that share the device, if any may.
    pub fn seat(&self) -> Option<&Seat> {
        self.inner.seat.get()
    }

    /// Claims the interface, and sees to it that there is a number for one more QP.
    pub(super) fn claim_for_qp(&self) -> Result<(), DeviceError> {
        self.claim()?;
        let Some(Seat::Group(member)) = self.seat() else { return Ok(()) };
        if self.inner.adapter.has_room_for_qp() {
            return Ok(());
        }
        let unit = member.add_unit().map_err(|source| DeviceError::System { what: "more QPNs", source })?;
        // Without one the NIC says that it is full.
        unit.map_or(Ok(()), |unit| self.call(Command::AddQpnUnit(unit)).map(|_| ()))
    }

    /// True if its port is open.
    pub fn is_claimed(&self) -> bool {
        self.inner.claim.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// What it stands on, as it is now: the link may change while the device is open.
    pub fn port(&self) -> PortInfo {
        self.inner.adapter.port()
    }

    /// Begins to hear of datagrams that found nobody. `None`: its port does not know.
    pub(super) fn undelivered(&self) -> io::Result<Option<Undelivered>> {
        self.inner.adapter.undelivered()
    }

    /// The largest path MTU that its link carries.
    pub fn largest_mtu(&self) -> Mtu {
        self.inner.adapter.largest_mtu()
    }

    /// Its addresses.
    pub fn gids(&self) -> Vec<GidEntry> {
        self.inner.gids.read().unwrap_or_else(PoisonError::into_inner).iter().collect()
    }

    /// The address at an index.
    ///
    /// # Errors
    /// If there is no address at that index.
    pub fn gid(&self, index: usize) -> Result<Gid, DeviceError> {
        let gids = self.inner.gids.read().unwrap_or_else(PoisonError::into_inner);
        gids.get(index).ok_or_else(|| DeviceError::NoGid {
            device: self.inner.name.clone(),
            index,
            available: gids.listed(),
        })
    }

    /// An address was added to the interface.
    pub fn add_address(&self, address: IpAddr) {
        self.inner.gids.write().unwrap_or_else(PoisonError::into_inner).add(address);
    }

    /// An address was removed from the interface.
    pub fn remove_address(&self, address: IpAddr) {
        self.inner.gids.write().unwrap_or_else(PoisonError::into_inner).remove(address);
    }

    /// The link changed: the port follows, and QPs whose path MTU no longer fits go to the error state, each with an
    /// event. Devices on an interface are told by the kernel; this is for ports of other kinds.
    ///
    /// # Errors
    /// If the port cannot follow; it goes on as before. Or if the device has failed.
    pub fn follow_link(&self, change: &LinkChange) -> Result<(), DeviceError> {
        self.inner.follow_link(change)
    }

    /// The MAC address of the next hop to `destination`, or of the group that it names.
    pub(super) fn resolve(&self, destination: IpAddr) -> Result<[u8; 6], DeviceError> {
        match self.resolve_at_home(destination) {
            Some(mac) => Ok(mac),
            None => Ok(self.inner.resolver.resolve(destination)?),
        }
    }

    /// The same without waiting; `None`: it is being asked for.
    pub(super) fn resolve_now(
        &self,
        destination: IpAddr,
        asks: bool,
    ) -> Result<Option<[u8; 6]>, DeviceError> {
        match self.resolve_at_home(destination) {
            Some(mac) => Ok(Some(mac)),
            None => Ok(self.inner.resolver.resolve_now(destination, asks)?),
        }
    }

    /// Ends what [`next_hop_is_known`](Self::next_hop_is_known) has begun for this destination.
    pub fn give_up(&self, destination: Gid) {
        self.inner.resolver.give_up(destination.to_ip());
    }

    /// True of an address that is one of its GIDs.
    pub(super) fn is_own(&self, address: IpAddr) -> bool {
        self.gids().iter().any(|entry| entry.assigned && entry.gid == Gid::from(address))
    }

    /// For an address of its own, or of a group.
    fn resolve_at_home(&self, destination: IpAddr) -> Option<[u8; 6]> {
        // What is its own is turned round in the port.
        if self.is_own(destination) { Some(self.port().mac) } else { multicast_mac(destination) }
    }

    /// Runs a pass if callers turn the device. Completion queues do it by themselves when they are empty.
    pub fn poll(&self) -> bool {
        !self.inner.adapter.caller_pass().is_idle()
    }

    /// The time on the device's clock.
    pub fn now(&self) -> Nanos {
        self.inner.adapter.now()
    }

    /// True if the device has failed: a pass of its engine panicked. Posts and commands fail from then on, completions do
    /// not come, and an event tells ([`EventKind::DeviceFatal`](crate::verbs::EventKind::DeviceFatal)).
    pub fn has_failed(&self) -> bool {
        self.inner.adapter.is_dead()
    }

    /// From now on asynchronous events go to `sink`. Whoever turns the device calls it, under its lock: it must be short, and
    /// not use the device. False: there is one already.
    pub fn set_event_sink(&self, sink: EventSink) -> bool {
        self.inner.adapter.set_event_sink(sink)
    }

    /// The caller is about to wait for something and will not poll meanwhile: the device is looked after from now on.
    pub fn step_aside(&self) {
        self.inner.adapter.step_aside();
    }

    /// The caller has slept as [`Wait::Watch`](crate::engine::Wait::Watch) said, and is awake again. `rang`: the last of the descriptors
    /// was readable.
    pub fn end_wait(&self, rang: bool) {
        self.inner.adapter.end_wait(rang);
    }

    /// The process is about to end, and nobody will drop the device: what was posted and what is owed to peers leaves now, if that
    /// takes no longer than `limit`.
    pub fn send_last(&self, limit: Duration) {
        self.inner.adapter.send_last(limit);
    }

    /// The next asynchronous event.
    pub fn event(&self) -> Option<AsyncEvent> {
        self.inner.adapter.event()
    }

    /// All counters: the NIC's under their mlx5 and rxe names, then the port's.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        self.inner.adapter.counters()
    }

    /// One counter; 0 if there is none of this name.
    pub fn counter(&self, name: &str) -> u64 {
        self.counters().into_iter().filter(|(n, _)| *n == name).map(|(_, value)| value).sum()
    }

    /// How its QPs are.
    pub fn qps(&self) -> Vec<QpStatus> {
        match self.call(Command::ListQps) {
            Ok(Answer::Qps(qps)) => qps,
            _ => Vec::new(),
        }
    }

    /// What happened to one of its QPs that was not routine, oldest first; nothing if there is no such QP.
    pub fn qp_log(&self, qp: QpIndex) -> Vec<QpRecord> {
        match self.call(Command::QueryLog(qp)) {
            Ok(Answer::QpLog(records)) => records,
            _ => Vec::new(),
        }
    }

    /// Why the link failed, if it did; said once.
    pub fn take_link_error(&self) -> Option<io::Error> {
        self.inner.adapter.take_link_error()
    }

    pub(super) fn adapter(&self) -> &Adapter {
        &self.inner.adapter
    }

    pub(super) fn call(&self, command: impl Into<Command>) -> Result<Answer, DeviceError> {
        Ok(self.inner.adapter.call(command)?)
    }
}
