//! The objects of a device in its snapshot.

use std::collections::BTreeMap;

use super::{MrEntry, PassDurations, QpEntry, Snapshot};
use roxie_base::text::Foreign;
use roxie_engine::{Adapter, Workers};
use roxie_nic::nic::{Nic, Object, QpStatus};

/// Tests whether an object of a NIC belongs to another process, which reports it itself.
pub(crate) type IsOfClient = Box<dyn Fn(Object) -> bool + Send + Sync>;

/// Returns the snapshot of a device, without objects that belong to `others`.
pub(super) fn snapshot_of_device(workers: &Workers, others: Option<&IsOfClient>) -> Snapshot {
    let mut objects = workers.names();
    objects.retain(|object| others.is_none_or(|others| !others(*object)));
    let passes = workers.first().inspect(|worker| *worker.pass_times());
    Snapshot {
        passes: PassDurations { buckets: passes.buckets.to_vec(), total_ns: passes.total.0 },
        counters: counters_of(workers),
        ..snapshot_of(workers, &objects)
    }
}

/// Returns the counters of a device, summed up by name.
pub(super) fn counters_of(workers: &Workers) -> BTreeMap<Foreign, u64> {
    let mut sums = BTreeMap::new();
    for (name, value) in workers.counters() {
        *sums.entry(name.into()).or_default() += value;
    }
    sums
}

/// Returns the snapshot of some QPs, memory regions and memory windows, without counters and passes. The caller fills
/// in names.
pub fn snapshot_of(workers: &Workers, objects: &[Object]) -> Snapshot {
    let engine = workers.first();
    let memory = objects.iter().filter(|object| matches!(object, Object::Mr(_) | Object::Window(_)));
    let memory: Vec<Object> = memory.copied().collect();
    let regions = memory.chunks(PIECE).flat_map(|piece| {
        let piece = piece.to_vec();
        let status = move |nic: &Nic| -> Vec<_> {
            piece.into_iter().filter_map(|object| nic.memory_status(object)).collect()
        };
        engine.inspect(|worker| status(worker.nic()))
    });
    let info = engine.port();
    let mut qps: Vec<_> = statuses_of(workers, objects).iter().map(QpEntry::of).collect();
    qps.sort_by_key(|qp| qp.qpn);
    Snapshot {
        interface: info.interface.unwrap_or_default().into(),
        port: info.name.into(),
        mode: info.mode.into(),
        now_ns: engine.now().0,
        mrs: regions.map(|region| MrEntry::of(&region)).collect(),
        qps,
        ..Snapshot::default()
    }
}

/// Returns the statuses of the QPs among some objects.
pub fn statuses_of(workers: &Workers, objects: &[Object]) -> Vec<QpStatus> {
    let qps = objects.iter().filter_map(|object| match object {
        Object::Qp(qp) => Some(*qp),
        _ => None,
    });
    let qps: Vec<_> = qps.collect();
    qps.chunks(PIECE).flat_map(|piece| workers.qp_statuses(piece)).collect()
}

/// Number of objects read between two passes of the worker.
const PIECE: usize = 64;
