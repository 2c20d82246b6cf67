//! A device: an engine, its addresses, and neighbour resolution.

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use crate::remote::Attachment;
use roxie_base::limits::Limits;
use roxie_base::random::unguessable;
use roxie_base::time::Nanos;
use roxie_engine::{Adapter, Drive, Engine, EventSink, Workers};
use roxie_nic::congestion::Rate;
use roxie_nic::nic::{Answer, Command, CongestionConfig, ControlError, NicConfig, QpRecord, QpStatus};
use roxie_nic::profile::Profile;
use roxie_nic::transport::AckRequestPolicy;
use roxie_nic::verbs::{AsyncEvent, Mtu, QpIndex};
use roxie_port::netdev::link_speed;
use roxie_port::undelivered::Undelivered;
use roxie_port::{Carries, LinkChange, Port, PortInfo};

use super::device_name::DeviceName;
use super::device_slot::DeviceSlot;
use super::error::DeviceError;
use super::gid_table::{GidEntry, GidOrder, GidTable};
use super::inspect::IsOfClient;
use super::knob_file::KnobFile;
use super::resolve::Resolve;
use super::selective_repeat::SelectiveRepeat;
use super::snapshot::{Clients, CmIds};
use super::state::{Handle, State};

/// Configuration of a device.
#[derive(Clone, Debug, Default)]
pub struct DeviceConfig {
    /// Name of a device that is opened on an interface; [`Device::new`] and [`Device::with_workers`] have an argument
    /// for it.
    pub name: DeviceName,
    /// Maximum numbers and sizes of objects.
    pub limits: Limits,
    /// Which threads run the NIC.
    pub drive: Drive,
    /// The cores of several workers' threads, in the order of the workers. A device that claims its interface
    /// ([`Device::open_unclaimed`]) has as many workers, over AF_XDP as many as the interface has receive queues at
    /// most; `drive` must then be [`Drive::Thread`].
    pub cores: Vec<usize>,
    /// Drop packets if the ICRC requires an implausible IPv4 identification, where a socket hides that field.
    pub strict_icrc: bool,
    /// MigReq bit of sent packets: ConnectX sends 1, rxe 0.
    pub mig_req: bool,
    /// Send FLUSH with the incorrect ICRC of rdma_rxe in Linux 6.12 to 7.2, and accept both.
    pub rxe_flush_icrc: bool,
    /// Selective repeat on RC connections.
    pub selective_repeat: SelectiveRepeat,
    /// The behaviour of an adapter, for as long as the program runs. `None`: Roxie's own.
    pub profile: Option<&'static Profile>,
    /// When unsignaled messages of RC QPs ask for an acknowledgement. Those of a device with a profile always do.
    pub ack_requests: AckRequestPolicy,
    /// The device serves other processes: each has a QP1 besides the device's.
    pub serves: bool,
    /// Order in which the interface's addresses become GIDs.
    pub gid_order: GidOrder,
    /// Each address is a RoCE v1 GID as well, behind the RoCE v2 ones. Ports that carry frames only.
    pub roce_v1: bool,
    /// Congestion control and traffic classes. If no line rate is given, the interface's is used where known.
    pub congestion: CongestionConfig,
    /// A file with congestion control settings, in place of `congestion.control`. Changes apply while the device is
    /// open: see [`KnobFile`](super::KnobFile). Devices without an interface read it once.
    pub control_file: Option<PathBuf>,
    /// Fixed secret for QPNs and keys; `None`: random. Set it in tests only.
    pub seed: Option<u64>,
}

impl DeviceConfig {
    /// Returns a configuration in which only the caller's polls run the device.
    pub fn caller_only() -> DeviceConfig {
        DeviceConfig { drive: Drive::CallerOnly, ..DeviceConfig::default() }
    }
}

/// A RoCE device. A clone is another handle to the same device.
#[derive(Clone, Debug)]
pub struct Device {
    pub(super) inner: Arc<Handle>,
}

impl Device {
    /// Makes a device on a port, with these addresses.
    ///
    /// # Errors
    /// If the link's MTU is too small for RoCE, congestion control settings contradict one another, or the system is
    /// out of memory, descriptors or threads.
    pub fn new(
        name: &str,
        port: Box<dyn Port>,
        addresses: impl IntoIterator<Item = IpAddr>,
        resolver: Box<dyn Resolve>,
        config: &DeviceConfig,
    ) -> Result<Device, DeviceError> {
        Device::on_ports(name, vec![port], addresses, resolver, config)
    }

    /// Makes a device with a worker for each of these ports, which are queues of one link: see [`Workers`]. The link
    /// must bring most packets to the worker of their QP; others cost a copy. `config.drive` must not be
    /// [`Drive::Caller`] if there are several.
    ///
    /// # Errors
    /// The errors of [`Device::new`], and of [`Workers::start`].
    pub fn with_workers(
        name: &str,
        ports: Vec<Box<dyn Port>>,
        addresses: impl IntoIterator<Item = IpAddr>,
        resolver: Box<dyn Resolve>,
        config: &DeviceConfig,
    ) -> Result<Device, DeviceError> {
        let device = Device::on_ports(name, ports, addresses, resolver, config)?;
        device.share(Vec::new())?;
        Ok(device)
    }

    /// Makes a device with a worker for each of these ports, and without units of QPNs.
    pub(super) fn on_ports(
        name: &str,
        ports: Vec<Box<dyn Port>>,
        addresses: impl IntoIterator<Item = IpAddr>,
        resolver: Box<dyn Resolve>,
        config: &DeviceConfig,
    ) -> Result<Device, DeviceError> {
        let no_port = || DeviceError::Control(ControlError::WrongKind("a device has at least one port"));
        let port = ports.first().ok_or_else(no_port)?;
        let gids = gids_of(config, addresses, port.info())?;
        let packet = port.info().largest_packet();
        let largest_mtu = Mtu::largest_for_link(packet).ok_or(DeviceError::LinkMtu(packet))?;
        let nic = NicConfig {
            limits: config.limits,
            seed: config.seed.unwrap_or_else(unguessable),
            largest_mtu,
            strict_icrc: config.strict_icrc,
            mig_req: config.mig_req,
            rxe_flush_icrc: config.rxe_flush_icrc,
            assumes_selective_repeat: config.selective_repeat == SelectiveRepeat::Assume,
            profile: config.profile,
            ack_requests: config.ack_requests,
            serves: config.serves,
            ..NicConfig::default()
        };
        let speed = port.info().interface.as_deref().and_then(link_speed);
        let line_rate = speed.map(|mbps| Rate::from_mbps(mbps.into()));
        let workers = Workers::start(nic, ports, config.drive, &config.cores)
            .map_err(|source| DeviceError::System { what: "starting the workers", source })?;
        let device = Device::with(name, Arc::new(workers), gids, resolver, config);
        if config.congestion != CongestionConfig::default() || line_rate.is_some() {
            let line_rate = config.congestion.line_rate.or(line_rate);
            device.set_congestion(CongestionConfig { line_rate, ..config.congestion.clone() })?;
        }
        device.inner.set_gids_of_nic()?;
        device.inner.read_control();
        Ok(device)
    }

    /// Makes a device on a NIC that is another process.
    ///
    /// # Errors
    /// If the configuration wants RoCE v1, which the NIC's port does not carry.
    pub(super) fn attached(
        name: &str,
        nic: Attachment,
        addresses: impl IntoIterator<Item = IpAddr>,
        resolver: Box<dyn Resolve>,
        config: &DeviceConfig,
    ) -> Result<Device, DeviceError> {
        let gids = gids_of(config, addresses, &nic.port())?;
        let nic = Arc::new(nic);
        let config = DeviceConfig { control_file: None, ..config.clone() };
        let device = Device::with(name, nic.clone(), gids, resolver, &config);
        // Succeeds: the device was just made.
        let _ = device.inner.slot.set(DeviceSlot::Nic(nic));
        Ok(device)
    }

    fn with(
        name: &str,
        adapter: Arc<dyn Adapter>,
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
            slot: OnceLock::new(),
            qps: Mutex::default(),
            cm_ids: OnceLock::new(),
            others: OnceLock::new(),
            clients: OnceLock::new(),
            control_file: Mutex::new(config.control_file.as_deref().map(KnobFile::new)),
            has_lost_interface: AtomicBool::new(false),
            selective_repeat: config.selective_repeat,
            ack_delay: config.profile.and_then(|profile| profile.ack_delay),
        };
        Device { inner: Arc::new(Handle { watcher: OnceLock::new(), state: Arc::new(state) }) }
    }

    /// Returns the local CA ACK delay of the device's profile.
    pub(super) fn ack_delay(&self) -> Option<u8> {
        self.inner.ack_delay
    }

    /// Returns when RC QPs of the device use selective repeat.
    pub fn selective_repeat(&self) -> SelectiveRepeat {
        self.inner.selective_repeat
    }

    /// Sets congestion control and traffic classes. A QP keeps its rate if its reaction point stays of the same kind.
    ///
    /// # Errors
    /// If the device has failed, or the system does not let the port receive the MAC control frames that the
    /// configuration needs.
    pub fn set_congestion(&self, config: CongestionConfig) -> Result<(), DeviceError> {
        self.execute(Command::SetCongestion(Box::new(config))).map(|_| ())
    }

    /// Returns the congestion configuration.
    pub fn congestion(&self) -> CongestionConfig {
        self.inner.congestion()
    }

    /// Claims the interface if it is not claimed yet: frames are sent and received from now on. The first queue pair
    /// does so by itself.
    ///
    /// # Errors
    /// If the interface cannot be claimed. The error names its user, and a later call tries again.
    pub fn claim(&self) -> Result<(), DeviceError> {
        let mut pending = self.inner.claim.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(claim) = &*pending else { return Ok(()) };
        // A NIC of another process has claimed the interface itself.
        let Some(workers) = self.workers() else { return Ok(()) };
        let opened =
            claim.open(self.port().mac, workers.all().len()).map_err(|e| DeviceError::Claim(Box::new(e)))?;
        let (ports, slots): (Vec<_>, Vec<_>) = opened.into_iter().unzip();
        // The kernel gives each socket of a group a copy; an AF_XDP socket gets what arrives at its queue.
        let are_copied = slots.iter().any(Option::is_some);
        workers
            .set_ports(ports, are_copied)
            .map_err(|source| DeviceError::System { what: "waiting for frames", source })?;
        *pending = None;
        self.share(slots)
    }

    /// Restricts the QPNs of each worker to the unit of its port's slot if other processes share the link, else to one
    /// of several workers. The first slot is the process's.
    pub(super) fn share(&self, slots: Vec<Option<DeviceSlot>>) -> Result<(), DeviceError> {
        let slots: Vec<_> = slots.into_iter().flatten().collect();
        if let Some(workers) = self.workers() {
            if slots.is_empty() && workers.all().len() > 1 {
                workers.take_units(0..)?;
            } else {
                workers.take_units(slots.iter().map(DeviceSlot::slot))?;
            }
        }
        if let Some(first) = slots.into_iter().next() {
            // Succeeds: a port is opened once.
            let _ = self.inner.slot.set(first);
        }
        Ok(())
    }

    /// Registers the callback that lists connection identifiers in snapshots ([`inspect`](super::inspect)). Only the
    /// first call has an effect.
    #[doc(hidden)]
    pub fn set_cm_ids(&self, cm_ids: CmIds) {
        let _ = self.inner.cm_ids.set(cm_ids);
    }

    /// Registers the test for objects of other processes, which snapshots omit. Only the first call has an effect.
    pub fn set_others(&self, others: IsOfClient) {
        let _ = self.inner.others.set(others);
    }

    /// Registers the callback that lists client processes in snapshots. Only the first call has an effect.
    pub fn set_clients(&self, clients: Clients) {
        let _ = self.inner.clients.set(clients);
    }

    /// The workers, if they are in this process.
    pub fn workers(&self) -> Option<&Workers> {
        self.inner.adapter.workers()
    }

    /// The first worker's engine, if it is in this process.
    pub fn engine(&self) -> Option<&Engine> {
        self.inner.engines().first()
    }

    /// The maximum numbers and sizes of objects.
    pub fn limits(&self) -> Limits {
        self.engine().map_or_else(Limits::default, |engine| *engine.limits())
    }

    /// The slot among the processes that share the device, if it can be shared.
    #[doc(hidden)]
    pub fn slot(&self) -> Option<&DeviceSlot> {
        self.inner.slot.get()
    }

    /// Claims the interface, and makes sure that a QPN is free for one more QP.
    pub(super) fn claim_for_qp(&self) -> Result<(), DeviceError> {
        self.claim()?;
        #[cfg(feature = "udp")]
        self.take_unit_for_qp()?;
        Ok(())
    }

    /// Takes another unit of QPNs if all QPNs of this process's units are in use.
    #[cfg(feature = "udp")]
    fn take_unit_for_qp(&self) -> Result<(), DeviceError> {
        let Some(DeviceSlot::Group(member)) = self.slot() else { return Ok(()) };
        // One of several workers has one unit.
        let [engine] = self.inner.engines() else { return Ok(()) };
        if engine.inspect(|worker| worker.nic().has_room_for_qp()) {
            return Ok(());
        }
        let unit = member.add_unit().map_err(|source| DeviceError::System { what: "more QPNs", source })?;
        // Without another unit, the NIC reports that it is full.
        unit.map_or(Ok(()), |unit| self.execute(Command::AddQpnUnit(unit)).map(|_| ()))
    }

    /// The device's name.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Returns the port's current properties. The link may change while the device is open.
    pub fn port(&self) -> PortInfo {
        self.inner.adapter.port()
    }

    /// Opens the receiver of reports about undelivered datagrams. `None`: the port has none.
    pub(super) fn undelivered(&self) -> io::Result<Option<Undelivered>> {
        self.engine().map_or(Ok(None), |engine| engine.inspect(|worker| worker.port().undelivered()))
    }

    /// The largest path MTU that the link carries.
    pub fn largest_mtu(&self) -> Mtu {
        self.inner.adapter.largest_mtu()
    }

    /// The device's addresses.
    pub fn gids(&self) -> Vec<GidEntry> {
        self.inner.gids.read().unwrap_or_else(PoisonError::into_inner).iter().collect()
    }

    /// Makes the port follow a change of the link. QPs with a path MTU that no longer fits enter the error state, each
    /// with an event. For ports without an interface; otherwise the kernel reports changes.
    ///
    /// # Errors
    /// If the port cannot follow, and continues unchanged; or if the device has failed.
    pub fn follow_link(&self, change: &LinkChange) -> Result<(), DeviceError> {
        self.inner.follow_link(change)
    }

    /// Runs a pass if callers drive the device. True if it did something. Polls of empty completion queues run a pass
    /// as well.
    pub fn poll(&self) -> bool {
        !self.inner.adapter.caller_pass().is_idle()
    }

    /// The time on the device's clock, in ns.
    pub fn now(&self) -> Nanos {
        self.inner.adapter.now()
    }

    /// True if a pass of the engine has panicked. Posts and commands then fail, no completions come, and
    /// [`EventKind::DeviceFatal`](roxie_nic::verbs::EventKind::DeviceFatal) is raised.
    pub fn has_failed(&self) -> bool {
        self.inner.adapter.is_dead()
    }

    /// True if the device's interface was deleted or moved to another namespace, after which
    /// [`EventKind::DeviceFatal`](roxie_nic::verbs::EventKind::DeviceFatal) is raised. Work under way still completes.
    /// Objects can be removed, and neither made nor changed.
    pub fn has_lost_interface(&self) -> bool {
        self.inner.has_lost_interface.load(Relaxed)
    }

    /// Passes future asynchronous events to `sink`. The thread that runs the device calls it under the device's lock:
    /// it must be short and must not use the device. False: a sink is already set.
    pub fn set_event_sink(&self, sink: EventSink) -> bool {
        self.inner.adapter.set_event_sink(sink)
    }

    /// Hands polling over to the engine thread: the caller is about to wait, and will not poll meanwhile.
    #[doc(hidden)]
    pub fn step_aside(&self) {
        self.inner.adapter.step_aside();
    }

    /// Ends a sleep of [`Wait::Watch`](roxie_engine::Wait::Watch). `rang`: the last of the descriptors was readable.
    #[doc(hidden)]
    pub fn end_wait(&self, rang: bool) {
        self.inner.adapter.end_wait(rang);
    }

    /// Sends posted requests and pending acknowledgements before the process ends without dropping the device. Takes up
    /// to `limit`.
    #[doc(hidden)]
    pub fn send_last(&self, limit: Duration) {
        self.inner.adapter.send_last(limit);
    }

    /// Returns the next asynchronous event, if any.
    pub fn event(&self) -> Option<AsyncEvent> {
        self.inner.adapter.event()
    }

    /// Returns all counters: the NIC's under their mlx5 and rxe names, then the port's.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        self.inner.adapter.counters()
    }

    /// Returns one counter; 0 if none has this name.
    pub fn counter(&self, name: &str) -> u64 {
        self.counters().into_iter().filter(|(n, _)| *n == name).map(|(_, value)| value).sum()
    }

    /// Returns the statuses of all QPs.
    pub fn qps(&self) -> Vec<QpStatus> {
        match self.execute(Command::ListQps) {
            Ok(Answer::Qps(qps)) => qps,
            _ => Vec::new(),
        }
    }

    /// Returns the log of a QP's exceptional events, oldest first; empty if there is no such QP.
    pub fn qp_log(&self, qp: QpIndex) -> Vec<QpRecord> {
        match self.execute(Command::QueryLog(qp)) {
            Ok(Answer::QpLog(records)) => records,
            _ => Vec::new(),
        }
    }

    /// Returns the link's first error, once.
    pub fn take_link_error(&self) -> Option<io::Error> {
        self.inner.engines().iter().find_map(Engine::take_link_error)
    }

    pub(super) fn execute(&self, command: impl Into<Command>) -> Result<Answer, DeviceError> {
        let command = command.into();
        if command.needs_interface() && self.has_lost_interface() {
            return Err(ControlError::DeviceFatal.into());
        }
        Ok(self.inner.adapter.call(command)?)
    }
}

/// Returns the GIDs of these addresses on a port.
fn gids_of(
    config: &DeviceConfig,
    addresses: impl IntoIterator<Item = IpAddr>,
    port: &PortInfo,
) -> Result<GidTable, DeviceError> {
    let mut gids = GidTable::in_order(config.gid_order, addresses);
    if config.roce_v1 {
        if port.carries == Carries::Datagrams {
            return Err(DeviceError::NoRoceV1(port.name.clone()));
        }
        gids.add_roce_v1();
    }
    Ok(gids)
}
