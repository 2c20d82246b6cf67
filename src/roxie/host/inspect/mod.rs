//! Inspection of a device by other processes: queue pairs, memory regions, connection identifiers and counters.
//!
//! A kernel knows the objects of all processes and reports them (`rdma resource show`). Here each device reports its
//! own. A device has a Unix socket with an abstract name in its network namespace, and passes a [`Snapshot`] to any
//! reader of the same user or root ([`snapshots`]). The thread that follows the interface does this, so that the data
//! path and an idle process pay nothing. A reader may also ask for the frames of a device from now on ([`attach`]).

mod attach;
mod counters;
mod live;
mod look;
mod objects;
mod window;

use super::device_slot::DeviceSlot;
use super::snapshot::SNAPSHOT_PROTOCOL;
pub use super::snapshot::{
    AccountEntry, ClientEntry, CmIdEntry, CmIds, MrEntry, PassDurations, QpEntry, Snapshot,
};
use super::state::State;
use objects::{counters_of, snapshot_of_device};
use roxie_base::text::process_name;
use roxie_engine::Adapter;

pub use attach::{AttachError, Attached, attach, user_of};
pub use counters::CounterReader;
pub(super) use live::LiveCapture;
pub use look::{Look, snapshots};
pub(super) use objects::IsOfClient;
pub use objects::{snapshot_of, statuses_of};
pub(super) use window::Window;

impl State {
    /// Returns the snapshot without objects: identity and counters.
    fn counted(&self) -> Snapshot {
        let mut snapshot = Snapshot {
            version: SNAPSHOT_PROTOCOL.version,
            pid: std::process::id(),
            name: process_name("self"),
            device: self.name.as_str().into(),
            ..Snapshot::default()
        };
        // A NIC of another process reports its counters itself.
        let Some(workers) = self.adapter.workers() else { return snapshot };
        let info = workers.port();
        (snapshot.interface, snapshot.port, snapshot.mode) =
            (info.interface.unwrap_or_default().into(), info.name.into(), info.mode.into());
        snapshot.counters = counters_of(workers);
        snapshot
    }

    fn snapshot(&self) -> Snapshot {
        let of_served = || serde_json::from_slice(&self.adapter.served_snapshot()?).ok();
        let objects = match self.adapter.workers() {
            Some(workers) => snapshot_of_device(workers, self.others.get()),
            None => of_served().unwrap_or_default(),
        };
        Snapshot {
            version: SNAPSHOT_PROTOCOL.version,
            pid: std::process::id(),
            name: process_name("self"),
            device: self.name.as_str().into(),
            slot: self.slot.get().and_then(DeviceSlot::unit),
            cm_ids: self.cm_ids.get().map_or_else(Vec::new, |cm_ids| cm_ids()),
            clients: self.clients.get().map_or_else(Vec::new, |clients| clients()),
            ..objects
        }
    }
}
