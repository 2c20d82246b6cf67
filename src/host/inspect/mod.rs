//! What a device tells others on its host: its queue pairs, memory regions, connection identifiers and counters.
//!
//! A kernel knows the objects of all processes and tells of them (`rdma resource show`). Here each device tells of its own. It has a
//! Unix socket with an abstract name, of its network namespace as the device itself, and hands a [`Snapshot`] to each of the same user,
//! or root, who connects ([`snapshots`]). The thread that follows the interface does so: it costs the data path nothing, and an idle
//! process nothing.

mod look;
mod window;

use std::collections::BTreeMap;
use std::fs;

use super::device::Inner;
pub use super::snapshot::{CmIdEntry, CmIds, MrEntry, Passes, QpEntry, Snapshot};
use crate::nic::{Answer, Command};

pub use look::{Look, snapshots};
pub(super) use window::Window;

impl Inner {
    pub(super) fn snapshot(&self) -> Snapshot {
        let now_ns = self.engine.now().0;
        let (info, counters, regions, passes) = self.engine.inspect(|worker| {
            let (nic, port) = (worker.nic(), worker.port());
            (port.info().clone(), worker.counters(), nic.memory_regions(), *worker.pass_times())
        });
        let mut by_name = BTreeMap::new();
        for (name, value) in counters {
            *by_name.entry(name.to_owned()).or_default() += value;
        }
        let qps = match self.engine.call(Command::ListQps) {
            Ok(Answer::Qps(qps)) => qps,
            _ => Vec::new(),
        };
        let mut qps: Vec<QpEntry> = qps.iter().map(QpEntry::of).collect();
        qps.sort_by_key(|qp| qp.qpn);
        Snapshot {
            pid: std::process::id(),
            name: fs::read_to_string("/proc/self/comm").unwrap_or_default().trim_end().to_owned(),
            device: self.name.clone(),
            interface: info.interface.unwrap_or_default(),
            port: info.name,
            mode: info.mode,
            slot: self.member.get().map(|member| member.slot()),
            now_ns,
            counters: by_name,
            passes: Passes { buckets: passes.buckets.to_vec(), total_ns: passes.total.0 },
            qps,
            mrs: regions.iter().map(MrEntry::of).collect(),
            cm_ids: self.cm_ids.get().map_or_else(Vec::new, |cm_ids| cm_ids()),
        }
    }
}
