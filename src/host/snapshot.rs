//! What a device tells of itself: plain data, whose fields have the names of its JSON.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::nic::{QpStatus, RegionStatus};
use crate::verbs::{QpState, QpType};

/// A device as it was at one moment. The names of fields are those of its JSON.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Its process: the number that this has in the reader's PID namespace, or in its own if it has none there.
    pub pid: u32,
    /// The user of its process. A device does not say it: its reader asks the kernel.
    #[serde(default)]
    pub uid: u32,
    /// The process's name.
    pub name: String,
    /// The device's name.
    pub device: String,
    /// The network interface that it is on.
    pub interface: String,
    /// What moves its frames: `xdp`, `udp`, and what stacks on them; `unclaimed` before its first QP.
    pub port: String,
    /// How, and why so.
    pub mode: String,
    /// Its place among the processes that share the interface over sockets.
    pub slot: Option<u8>,
    /// Its place at the NIC that serves it.
    #[serde(default)]
    pub nic_slot: Option<u8>,
    /// Nanoseconds of the device's own clock.
    pub now_ns: u64,
    /// Counters by their mlx5 and rxe names. Those of the port count since it was opened.
    pub counters: BTreeMap<String, u64>,
    /// How long passes of its engine took that brought or sent something.
    pub passes: Passes,
    /// Its queue pairs, by number.
    pub qps: Vec<QpEntry>,
    /// Its memory regions and windows.
    pub mrs: Vec<MrEntry>,
    /// What of rdma_cm there is.
    pub cm_ids: Vec<CmIdEntry>,
    /// Processes that it serves, if it is a NIC of its own.
    #[serde(default)]
    pub clients: Vec<ClientEntry>,
}

/// A process that a NIC serves.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClientEntry {
    /// Its process, as the NIC sees it.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
    /// The name of its process.
    pub name: String,
    /// Its place at the NIC.
    pub slot: u8,
    /// Its account: resources by the names of their bounds, `qps` for `--max-qps`.
    pub account: BTreeMap<String, AccountEntry>,
}

/// How much a process and its user have of a resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccountEntry {
    /// What the process has.
    pub used: u64,
    /// What it may have.
    pub limit: u64,
    /// What all processes of its user have.
    pub user_used: u64,
    /// What they may have together.
    pub user_limit: u64,
}

/// Tells of the processes that a NIC serves.
pub(crate) type Clients = Box<dyn Fn() -> Vec<ClientEntry> + Send + Sync>;

impl Snapshot {
    /// What moves its frames, without what stacks on it: `udp` where the port is `loopback(udp)`.
    pub fn transport(&self) -> &str {
        self.port.rsplit('(').next().unwrap_or_default().trim_end_matches(')')
    }
}

/// Characters of a text that are kept.
const LONGEST_TEXT: usize = 256;

/// The text as one line that acts on no terminal: without control characters, and marks that break lines or turn their direction.
fn make_plain(text: &mut String) {
    let acts = |c: char| {
        c.is_control()
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
    };
    if text.len() > LONGEST_TEXT || text.contains(acts) {
        let plain =
            text.chars().take(LONGEST_TEXT).map(|c| if acts(c) { char::REPLACEMENT_CHARACTER } else { c });
        *text = plain.collect();
    }
}

impl Snapshot {
    /// Makes all text in it plain, which its process may have chosen.
    pub(super) fn make_plain(&mut self) {
        // All fields are named, so that a new one is not forgotten.
        let Snapshot {
            pid: _,
            uid: _,
            slot: _,
            nic_slot: _,
            now_ns: _,
            passes: _,
            name,
            device,
            interface,
            port,
            mode,
            counters,
            qps,
            mrs,
            cm_ids,
            clients,
        } = self;
        [name, device, interface, port, mode].into_iter().for_each(make_plain);
        let plain = |(mut name, value)| {
            make_plain(&mut name);
            (name, value)
        };
        *counters = std::mem::take(counters).into_iter().map(plain).collect();
        for QpEntry { service, state, remote, .. } in qps {
            [service, state].into_iter().chain(remote).for_each(make_plain);
        }
        for MrEntry { kind, access, .. } in mrs {
            std::iter::once(kind).chain(access).for_each(make_plain);
        }
        clients.iter_mut().for_each(|client| make_plain(&mut client.name));
        for CmIdEntry { ps, state, .. } in cm_ids {
            [ps, state].into_iter().for_each(make_plain);
        }
    }
}

/// How long passes took, since the device was opened.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Passes {
    /// Entry `i` counts those that took less than 2^i ns, and not less than half of it; the last also all that took longer.
    pub buckets: Vec<u64>,
    /// Nanoseconds that all of them took together.
    pub total_ns: u64,
}

impl Passes {
    /// Nanoseconds in which the part `share` (0 to 1) of them ended, to within the width of a bucket. `None`: there was no pass.
    pub fn quantile(&self, share: f64) -> Option<u64> {
        let count: u64 = self.buckets.iter().sum();
        if count == 0 {
            return None;
        }
        let wanted = share.clamp(0.0, 1.0) * count as f64;
        let mut below = 0;
        for (bucket, passes) in self.buckets.iter().enumerate().filter(|(_, passes)| **passes > 0) {
            if (below + passes) as f64 >= wanted {
                // As if they were spread evenly over it.
                let (start, end) = ((1u64 << bucket) / 2, 1u64 << bucket);
                let inside = (wanted - below as f64) / *passes as f64;
                return Some(start + (inside * (end - start) as f64) as u64);
            }
            below += passes;
        }
        None
    }
}

/// A queue pair.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct QpEntry {
    /// Its number on the wire.
    pub qpn: u32,
    /// `RC`, `UC`, `UD`, `XRC_INI`, `XRC_TGT`, `GSI`, `RAW_PACKET`.
    #[serde(rename = "type")]
    pub service: String,
    /// `RESET`, `INIT`, `RTR`, `RTS`, `SQD`, `SQE`, `ERR`.
    pub state: String,
    /// The peer's number, of a connected one.
    pub dest_qpn: Option<u32>,
    /// The peer's address, of a connected one.
    pub remote: Option<String>,
    /// Bytes of payload in a full packet, once it is known.
    pub path_mtu: Option<usize>,
    /// The next PSN that it sends.
    pub sq_psn: u32,
    /// The PSN that it expects.
    pub rq_psn: u32,
    /// How fast it may send in Mb/s, if somebody decides that.
    pub rate_mbps: Option<f64>,
}

/// A memory region or window.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MrEntry {
    /// `region`, `fast` (work requests give it pages), `window1`, `window2`.
    pub kind: String,
    /// Its lkey and rkey, which are one number. 0 where it opens nothing yet.
    pub key: u32,
    /// Its protection domain.
    pub pd: u32,
    /// The address by which work requests and peers call its first byte.
    pub start: u64,
    /// Bytes.
    pub length: u64,
    /// What may be done to it: names as in `ibv_access_flags`.
    pub access: Vec<String>,
}

/// An identifier of rdma_cm, or a connection of [`ConnectionManager`](super::ConnectionManager).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CmIdEntry {
    /// Its number in its process.
    pub id: u32,
    /// Its port space: `TCP`, `UDP`, `IPoIB`, `IB`.
    pub ps: String,
    /// As `rdma resource show cm_id` calls it: `IDLE`, `ADDR_BOUND`, `LISTEN`, `CONNECT`, …
    pub state: String,
    /// Its own address and port.
    pub src: Option<SocketAddr>,
    /// The peer's.
    pub dst: Option<SocketAddr>,
    /// Its QP's number, once it has one.
    pub qpn: Option<u32>,
}

/// Tells of the identifiers that there are, without waiting for anything.
pub type CmIds = Box<dyn Fn() -> Vec<CmIdEntry> + Send + Sync>;

impl QpEntry {
    pub(super) fn of(qp: &QpStatus) -> QpEntry {
        let connected = matches!(qp.qp_type, QpType::Rc | QpType::Uc | QpType::XrcSend | QpType::XrcRecv);
        let way = qp.attributes.av.filter(|_| connected);
        QpEntry {
            qpn: qp.handle.qpn.value(),
            service: service_name(qp.qp_type).to_owned(),
            state: state_name(qp.state).to_owned(),
            dest_qpn: way.map(|_| qp.attributes.dest_qpn.value()),
            remote: way.map(|way| way.dgid.to_ip().to_string()),
            path_mtu: way.map(|_| qp.attributes.path_mtu.bytes()),
            sq_psn: qp.sq_psn.value(),
            rq_psn: qp.rq_psn.value(),
            rate_mbps: qp.control.map(|control| control.rate.mbps()),
        }
    }
}

impl MrEntry {
    pub(super) fn of(region: &RegionStatus) -> MrEntry {
        let access = region.access.iter_names().map(|(name, _)| name.to_owned()).collect();
        MrEntry {
            kind: region.kind.to_owned(),
            key: region.key,
            pd: region.pd.0,
            start: region.start,
            length: region.length,
            access,
        }
    }
}

/// As `rdma resource show qp` calls the services.
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
    fn what_moves_frames_is_the_innermost() {
        for port in ["udp", "loopback(udp)", "pcap(fault(udp))"] {
            let snapshot = Snapshot { port: port.to_owned(), ..Snapshot::default() };
            assert_eq!(snapshot.transport(), "udp");
        }
    }

    #[test]
    fn no_text_of_a_snapshot_acts_on_a_terminal() {
        let bad = || "a\u{1b}[2J\n\u{9b}b\u{202e}c".to_owned();
        let mut snapshot = Snapshot {
            name: bad(),
            device: bad(),
            interface: bad(),
            port: bad(),
            mode: bad(),
            counters: [(bad(), 7)].into(),
            qps: vec![QpEntry { service: bad(), state: bad(), remote: Some(bad()), ..QpEntry::default() }],
            mrs: vec![MrEntry { kind: bad(), access: vec![bad()], ..MrEntry::default() }],
            cm_ids: vec![CmIdEntry { ps: bad(), state: bad(), ..CmIdEntry::default() }],
            clients: vec![ClientEntry { name: bad(), ..ClientEntry::default() }],
            ..Snapshot::default()
        };
        snapshot.make_plain();
        // Debug output would escape them; JSON has all of the fields.
        let plain = "a\u{fffd}[2J\u{fffd}\u{fffd}b\u{fffd}c";
        let text = serde_json::to_string(&snapshot).expect("JSON");
        assert_eq!(text.matches(plain).count(), 14, "{text}");
        let mut long = "x".repeat(1000);
        make_plain(&mut long);
        assert_eq!(long.len(), LONGEST_TEXT);
    }

    #[test]
    fn a_quantile_lies_in_its_bucket() {
        let mut buckets = vec![0; 32];
        (buckets[10], buckets[14]) = (99, 1);
        let passes = Passes { buckets, total_ns: 0 };
        assert_eq!(passes.quantile(0.5).map(|ns| (512..1024).contains(&ns)), Some(true));
        assert_eq!(passes.quantile(0.99), Some(1024));
        assert_eq!(passes.quantile(1.0), Some(1 << 14));
        assert_eq!(Passes::default().quantile(0.5), None);
    }
}
