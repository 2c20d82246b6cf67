//! State shared by the handles of a device, and by the thread that follows its interface.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use roxie_engine::{Adapter, Engine, Workers};
use roxie_nic::nic::{Command, CongestionConfig, ControlError};
use roxie_nic::verbs::{AddressVector, QpIndex, Qpn};
use roxie_port::LinkChange;
use roxie_port::netdev::RouteKey;

use super::claim::Claim;
use super::device_slot::DeviceSlot;
use super::error::DeviceError;
use super::gid_table::GidTable;
use super::inspect::IsOfClient;
use super::knob_file::KnobFile;
use super::resolve::Resolve;
use super::selective_repeat::SelectiveRepeat;
use super::snapshot::{Clients, CmIds};
use super::watched_interface::InterfaceWatcher;

/// A device's handles. The following thread shares the state, but not the handle that ends the thread. Dropping the
/// last handle therefore waits for the thread, and then closes the port.
#[derive(Debug)]
pub(super) struct Handle {
    /// Follows the interface, if there is one. Dropped first.
    pub(super) watcher: OnceLock<InterfaceWatcher>,
    pub(super) state: Arc<State>,
}

impl Deref for Handle {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state
    }
}

/// A device's state.
pub(super) struct State {
    pub(super) adapter: Arc<dyn Adapter>,
    pub(super) name: String,
    pub(super) gids: RwLock<GidTable>,
    pub(super) resolver: Box<dyn Resolve>,
    /// The claim that the first queue pair makes.
    pub(super) claim: Mutex<Option<Claim>>,
    /// The slot among the processes that share the device.
    pub(super) slot: OnceLock<DeviceSlot>,
    /// Queue pairs of this process, by the numbers that connections name.
    pub(super) qps: Mutex<HashMap<Qpn, QpIndex>>,
    /// Lists connection identifiers for snapshots.
    pub(super) cm_ids: OnceLock<CmIds>,
    /// Tests for objects of client processes.
    pub(super) others: OnceLock<IsOfClient>,
    /// Lists client processes.
    pub(super) clients: OnceLock<Clients>,
    /// The congestion control file.
    pub(super) control_file: Mutex<Option<KnobFile>>,
    pub(super) selective_repeat: SelectiveRepeat,
    /// Local CA ACK delay of the profile.
    pub(super) ack_delay: Option<u8>,
    /// True if the interface was deleted, or moved to another namespace.
    pub(super) has_lost_interface: AtomicBool,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Device").field("name", &self.name).finish_non_exhaustive()
    }
}

impl State {
    /// The engines of the device's workers; none if the NIC is another process.
    pub(super) fn engines(&self) -> &[Engine] {
        self.adapter.workers().map_or(&[], Workers::all)
    }

    /// Returns the congestion configuration; the default for a NIC in another process.
    pub(super) fn congestion(&self) -> CongestionConfig {
        self.engines().first().map_or_else(CongestionConfig::default, |engine| {
            engine.inspect(|worker| worker.nic().congestion().clone())
        })
    }

    /// Applies the congestion control file if it has changed. Reports an invalid file.
    pub(super) fn read_control(&self) {
        let mut file = self.control_file.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(file) = &mut *file else { return };
        match file.read() {
            Ok(Some(control)) => {
                let before = self.congestion();
                let config = CongestionConfig { control, ..before };
                // A device that has failed reports it itself.
                let _ = self.adapter.call(Command::SetCongestion(Box::new(config)));
            }
            Ok(None) => {}
            Err(why) => tracing::warn!("{}: congestion control stays as it is: {why}", self.name),
        }
    }

    /// True if there is a congestion control file.
    pub(super) fn has_control_file(&self) -> bool {
        self.control_file.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Implements [`Device::follow_link`](super::Device::follow_link). A NIC in another process follows by itself.
    pub(super) fn follow_link(&self, change: &LinkChange) -> Result<(), DeviceError> {
        let system = |source| DeviceError::System { what: "following a change of the link", source };
        let mut failed = 0;
        for engine in self.engines() {
            failed += engine.follow(change.clone()).ok_or(ControlError::DeviceFatal)?.map_err(system)?;
        }
        if let LinkChange::Mtu(mtu) = change
            && failed > 0
        {
            tracing::warn!(
                "{}: the link MTU is {mtu} now: {failed} QPs of a larger path MTU are in the error state; \
                 connect them again with a path MTU of {} at most, or raise the link MTU",
                self.name,
                self.adapter.largest_mtu().bytes()
            );
        }
        Ok(())
    }

    /// Sets the MAC address of the next hop on a VLAN (0: on none), along the route of `key`.
    pub(super) fn set_next_hop(&self, vlan: u16, key: RouteKey, mac: [u8; 6]) {
        let has_next_hop = move |av: &AddressVector| {
            let route = RouteKey::new(av.sgid.to_ip(), av.dgid.to_ip(), av.traffic_class);
            route == key && av.encapsulation.vlan == vlan
        };
        for engine in self.engines() {
            engine.adjust(move |worker| worker.set_next_hop(has_next_hop, mac));
        }
    }
}
