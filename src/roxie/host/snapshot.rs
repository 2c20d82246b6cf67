//! Snapshots of a device: plain data with the field names of their JSON.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use roxie_base::protocol::Protocol;
use roxie_base::text::Foreign;
use roxie_nic::nic::{QpStatus, RegionStatus};
use roxie_nic::verbs::{QpState, QpType};

/// Format in which a device sends a [`Snapshot`] to readers in other processes, as JSON. Fields may be added to a
/// version; readers take the default for a field that is missing, and ignore one that they do not know. Version 0:
/// processes that name none.
pub(crate) const SNAPSHOT_PROTOCOL: Protocol = Protocol { name: "snapshot format", oldest: 0, version: 1 };

/// A device's state at one moment. The fields have the names of the JSON.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Snapshot {
    /// Version of the format in which the process sent it.
    pub version: u32,
    /// Process ID of the device's process, in the reader's PID namespace, or in its own if it has none there.
    pub pid: u32,
    /// User ID of the process. Set by the reader, from the kernel.
    pub uid: u32,
    /// Name of the socket at which the device answers. Set by the reader.
    #[serde(skip)]
    pub socket: String,
    /// The process's name.
    pub name: Foreign,
    /// The device's name.
    pub device: Foreign,
    /// The network interface.
    pub interface: Foreign,
    /// The port: `xdp` or `udp`, and the layers on it; `unclaimed` before the first QP.
    pub port: Foreign,
    /// The port's mode, and why.
    pub mode: Foreign,
    /// The slot among the processes that share the interface over sockets.
    pub slot: Option<u8>,
    /// The slot at the NIC that serves the process.
    pub nic_slot: Option<u8>,
    /// Time on the device's clock, in ns.
    pub now_ns: u64,
    /// Counters by their mlx5 and rxe names. The port's count from when it was opened.
    pub counters: BTreeMap<Foreign, u64>,
    /// Durations of the engine's passes that did something.
    pub passes: PassDurations,
    /// Queue pairs, by number.
    pub qps: Vec<QpEntry>,
    /// Memory regions and windows.
    pub mrs: Vec<MrEntry>,
    /// Connection identifiers of `rdma_cm`.
    pub cm_ids: Vec<CmIdEntry>,
    /// Client processes, if the device is a NIC process.
    pub clients: Vec<ClientEntry>,
}

/// A client of a NIC process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClientEntry {
    /// Process ID, in the NIC's PID namespace.
    pub pid: u32,
    /// User ID.
    pub uid: u32,
    /// Name of the process.
    pub name: Foreign,
    /// The client's slot.
    pub slot: u8,
    /// Use of resources, by the names of their limits: `qps` for `--max-qps`.
    pub account: BTreeMap<Foreign, AccountEntry>,
}

/// Use of a resource by a client and its user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AccountEntry {
    /// Used by the process.
    pub used: u64,
    /// Limit of the process.
    pub limit: u64,
    /// Used by all processes of the user.
    pub user_used: u64,
    /// Limit of the user.
    pub user_limit: u64,
}

/// Callback that lists the clients of a NIC.
pub(crate) type Clients = Box<dyn Fn() -> Vec<ClientEntry> + Send + Sync>;

impl Snapshot {
    /// Returns the innermost port, without the layers on it: `udp` for `loopback(udp)`.
    pub fn transport(&self) -> Foreign {
        self.port.as_received().rsplit('(').next().unwrap_or_default().trim_end_matches(')').into()
    }

    /// Number of its objects and counters.
    pub(super) fn entries(&self) -> usize {
        self.counters.len() + self.qps.len() + self.mrs.len() + self.cm_ids.len() + self.clients.len()
    }
}

/// Histogram of the durations of passes, since the device was opened.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PassDurations {
    /// Entry `i` counts durations from 2^(i-1) ns, inclusive, to 2^i ns, exclusive; the last entry counts all longer
    /// ones too.
    pub buckets: Vec<u64>,
    /// Sum of all durations, in ns.
    pub total_ns: u64,
}

impl PassDurations {
    /// Returns the duration in ns at quantile `share` (0 to 1), to within the width of a bucket. `None`: there was no
    /// pass.
    pub fn quantile(&self, share: f64) -> Option<u64> {
        // Another process's numbers may have any size.
        let buckets = || self.buckets.iter().take(u64::BITS as usize).enumerate();
        let count = buckets().map(|(_, passes)| *passes).fold(0, u64::saturating_add);
        if count == 0 {
            return None;
        }
        let wanted = share.clamp(0.0, 1.0) * count as f64;
        let mut below: u64 = 0;
        for (bucket, passes) in buckets().filter(|(_, passes)| **passes > 0) {
            if below.saturating_add(*passes) as f64 >= wanted {
                // Interpolates linearly within the bucket.
                let (start, end) = ((1u64 << bucket) / 2, 1u64 << bucket);
                let inside = (wanted - below as f64) / *passes as f64;
                return Some(start + (inside * (end - start) as f64) as u64);
            }
            below = below.saturating_add(*passes);
        }
        None
    }
}

/// A queue pair.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct QpEntry {
    /// The QPN.
    pub qpn: u32,
    /// `RC`, `UC`, `UD`, `XRC_INI`, `XRC_TGT`, `GSI`, `RAW_PACKET`.
    #[serde(rename = "type")]
    pub service: Foreign,
    /// `RESET`, `INIT`, `RTR`, `RTS`, `SQD`, `SQE`, `ERR`.
    pub state: Foreign,
    /// The peer's QPN, of a connected QP.
    pub dest_qpn: Option<u32>,
    /// The peer's address, of a connected QP.
    pub remote: Option<Foreign>,
    /// Payload of a full packet in bytes, once it is known.
    pub path_mtu: Option<usize>,
    /// The next PSN to send.
    pub sq_psn: u32,
    /// The expected PSN.
    pub rq_psn: u32,
    /// The current rate in Mb/s, if it is limited.
    pub rate_mbps: Option<f64>,
    /// Lost packets alone are sent again (selective repeat); otherwise everything from the lost one on.
    pub selective_repeat: bool,
}

/// A memory region or window.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MrEntry {
    /// `region`, `fast` (fast-registered), `window1`, `window2`.
    pub kind: Foreign,
    /// The lkey and rkey, which are equal; 0 if there is no access yet.
    pub key: u32,
    /// The protection domain.
    pub pd: u32,
    /// The address of the first byte for work requests and peers.
    pub start: u64,
    /// Length in bytes.
    pub length: u64,
    /// Access flags, with the names of `ibv_access_flags`.
    pub access: Vec<Foreign>,
}

/// A connection identifier of `rdma_cm`, or a connection of [`ConnectionManager`](super::ConnectionManager).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CmIdEntry {
    /// The identifier's number in its process.
    pub id: u32,
    /// Port space: `TCP`, `UDP`, `IPoIB`, `IB`.
    pub ps: Foreign,
    /// State, with the names of `rdma resource show cm_id`: `IDLE`, `ADDR_BOUND`, `LISTEN`, `CONNECT`, …
    pub state: Foreign,
    /// The local address and port.
    pub src: Option<SocketAddr>,
    /// The peer's address and port.
    pub dst: Option<SocketAddr>,
    /// The QPN, once there is a QP.
    pub qpn: Option<u32>,
}

/// Callback that lists connection identifiers. Must not block.
pub type CmIds = Box<dyn Fn() -> Vec<CmIdEntry> + Send + Sync>;

impl QpEntry {
    pub(super) fn of(qp: &QpStatus) -> QpEntry {
        let connected = matches!(qp.qp_type, QpType::Rc | QpType::Uc | QpType::XrcSend | QpType::XrcRecv);
        let way = qp.attributes.av.filter(|_| connected);
        QpEntry {
            qpn: qp.handle.qpn.value(),
            service: service_name(qp.qp_type).into(),
            state: state_name(qp.state).into(),
            dest_qpn: way.map(|_| qp.attributes.dest_qpn.value()),
            remote: way.map(|way| way.dgid.to_ip().to_string().into()),
            path_mtu: way.map(|_| qp.attributes.path_mtu.bytes()),
            sq_psn: qp.sq_psn.value(),
            rq_psn: qp.rq_psn.value(),
            rate_mbps: qp.control.map(|control| control.rate.mbps()),
            selective_repeat: qp.attributes.selective_repeat,
        }
    }
}

impl MrEntry {
    pub(super) fn of(region: &RegionStatus) -> MrEntry {
        let access = region.access.iter_names().map(|(name, _)| name.into()).collect();
        MrEntry {
            kind: region.kind.into(),
            key: region.key,
            pd: region.pd.0,
            start: region.start,
            length: region.length,
            access,
        }
    }
}

/// Names of QP types in `rdma resource show qp`.
fn service_name(service: QpType) -> &'static str {
    match service {
        QpType::Gsi => "GSI",
        QpType::Rc => "RC",
        QpType::Uc => "UC",
        QpType::Ud => "UD",
        QpType::RawPacket => "RAW_PACKET",
        QpType::XrcSend => "XRC_INI",
        QpType::XrcRecv => "XRC_TGT",
    }
}

fn state_name(state: QpState) -> &'static str {
    match state {
        QpState::Reset => "RESET",
        QpState::Init => "INIT",
        QpState::Rtr => "RTR",
        QpState::Rts => "RTS",
        QpState::Sqd => "SQD",
        QpState::Sqe => "SQE",
        QpState::Err => "ERR",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transport_is_the_innermost_port() {
        for port in ["udp", "loopback(udp)", "pcap(fault(udp))"] {
            let snapshot = Snapshot { port: port.into(), ..Snapshot::default() };
            assert_eq!(snapshot.transport(), "udp");
        }
    }

    #[test]
    fn all_text_of_a_snapshot_is_foreign() {
        let bad = r#""a\u001b[2J\n\u009bb\u202ec""#;
        let text = format!(
            r#"{{"name":{bad},"device":{bad},"interface":{bad},"port":{bad},"mode":{bad},"counters":{{{bad}:7}},
                "qps":[{{"type":{bad},"state":{bad},"remote":{bad}}}],"mrs":[{{"kind":{bad},"access":[{bad}]}}],
                "cm_ids":[{{"ps":{bad},"state":{bad}}}],"clients":[{{"name":{bad},"account":{{{bad}:{{"used":1}}}}}}]}}"#
        );
        let snapshot: Snapshot = serde_json::from_str(&text).expect("a snapshot");
        // Debug output has all fields, and shows each foreign text by its type.
        assert_eq!(format!("{snapshot:?}").matches("Foreign(\"a\\u{1b}[2J\\n").count(), 15, "{snapshot:?}");
        assert_eq!(snapshot.name.to_string(), "a\u{fffd}[2J\u{fffd}\u{fffd}b\u{fffd}c");
        let again = serde_json::to_string(&snapshot).expect("JSON");
        assert_eq!(serde_json::from_str::<Snapshot>(&again).expect("JSON"), snapshot);
    }

    #[test]
    fn a_quantile_lies_in_its_bucket() {
        let mut buckets = vec![0; 32];
        (buckets[10], buckets[14]) = (99, 1);
        let passes = PassDurations { buckets, total_ns: 0 };
        assert_eq!(passes.quantile(0.5).map(|ns| (512..1024).contains(&ns)), Some(true));
        assert_eq!(passes.quantile(0.99), Some(1024));
        assert_eq!(passes.quantile(1.0), Some(1 << 14));
        assert_eq!(PassDurations::default().quantile(0.5), None);
        let huge = PassDurations { buckets: vec![u64::MAX; 1000], total_ns: 0 };
        assert!(huge.quantile(1.0).is_some());
    }
}
