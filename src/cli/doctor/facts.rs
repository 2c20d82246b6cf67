//! Facts that `roxie doctor` examines about the host, an interface, and its other users. [`super::gather`] reads them.

use std::net::IpAddr;

use roxie::netdev::ethtool::{Offloads, RxRing, XdpFeatures};
use serde_json::{Value, json};

use crate::run::hint::Environment;

/// The input of all findings.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    pub(super) host: Host,
    pub(super) nic: Nic,
    pub(super) others: Others,
}

/// The machine, and this process's privileges on it.
#[derive(Clone, Debug)]
pub(super) struct Host {
    /// Kernel release, as `uname -r` prints it.
    pub(super) kernel: String,
    pub(super) surroundings: Environment,
    /// Path of Roxie's `libibverbs.so.1`, or why it was not found.
    pub(super) library: Result<String, String>,
    /// True if a seccomp filter restricts this process.
    pub(super) filtered: bool,
    /// True if programs can be shown `/sys/class/infiniband`: in a mount namespace, or a user namespace with one.
    pub(super) may_mount: bool,
    /// Hard limit of locked memory in bytes; `None` if unlimited.
    pub(super) locked_memory: Option<u64>,
    /// Number of huge pages, and the size of each in KiB.
    pub(super) huge_pages: (u64, u64),
    pub(super) processors: usize,
    /// Average number of threads that ran or waited for a processor in the last minute (`/proc/loadavg`).
    pub(super) load: f64,
    /// True in a virtual machine.
    pub(super) virtual_machine: bool,
    /// Instructions for computing the ICRC.
    pub(super) crc: Crc,
}

/// How the ICRC is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Crc {
    /// Vectors of 32 or 64 bytes: VPCLMULQDQ.
    Wide,
    /// PCLMULQDQ, or aarch64's CRC instructions.
    Fast,
    /// Lookup tables.
    Tables,
}

/// The offload by which a driver takes VLAN tags out of received frames.
pub(super) const HIDES_TAGS: &str = "rx-vlan-hw-parse";

/// An interface and its driver.
#[derive(Clone, Debug)]
pub(super) struct Nic {
    pub(super) name: String,
    pub(super) driver: String,
    pub(super) up: bool,
    pub(super) running: bool,
    pub(super) mtu: usize,
    pub(super) addresses: Vec<IpAddr>,
    pub(super) rx_queues: u32,
    /// `None` if the driver does not report it.
    pub(super) rx_ring: Option<RxRing>,
    pub(super) offloads: Offloads,
    /// `None` if the kernel does not report them.
    pub(super) xdp: Option<XdpFeatures>,
    /// Reasons against AF_XDP, in words.
    pub(super) xdp_obstacles: Vec<String>,
    /// The obstacle to packet sockets.
    pub(super) packet_obstacle: Option<String>,
    /// Its station address, in the usual notation.
    pub(super) mac: String,
    /// VLAN interfaces on it.
    pub(super) vlans: Vec<Vlan>,
    /// The mode, if it is a bond.
    pub(super) bond: Option<String>,
}

/// A VLAN interface.
#[derive(Clone, Debug)]
pub(super) struct Vlan {
    pub(super) name: String,
    /// True if its station address is that of the interface below.
    pub(super) shares_mac: bool,
}

/// Other receivers of the same frames.
#[derive(Clone, Debug, Default)]
pub(super) struct Others {
    /// The XDP program on the interface, and the processes that hold it.
    pub(super) xdp_program: Option<(u32, Vec<String>)>,
    /// True if UDP port 4791 is taken in this network namespace.
    pub(super) port_taken: bool,
    /// RDMA devices of the kernel on this interface.
    pub(super) rdma_devices: Vec<RdmaDevice>,
    /// True if the kernel's rdma_rxe is loaded.
    pub(super) rxe_loaded: bool,
}

/// An RDMA device of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RdmaDevice {
    pub(super) name: String,
    /// True for a device without hardware, such as rdma_rxe's.
    pub(super) software: bool,
}

impl Facts {
    /// True if AF_XDP should open, as far as can be told without trying.
    pub(super) fn xdp_possible(&self) -> bool {
        self.nic.xdp_obstacles.is_empty()
            && self.others.xdp_program.is_none()
            && self.nic.name != "lo"
            && self.nic.bond.is_none()
    }

    /// Returns label and text of each line.
    pub(super) fn lines(&self) -> Vec<(&'static str, String)> {
        let Facts { host, nic, others } = self;
        let unknown = || "unknown: the kernel does not report it".to_owned();
        let list = |all: &[String]| if all.is_empty() { "none".to_owned() } else { all.join(", ") };
        let state = match (nic.up, nic.running) {
            (true, true) => "up",
            (true, false) => "up, no carrier",
            _ => "down",
        };
        let addresses: Vec<String> = nic.addresses.iter().map(ToString::to_string).collect();
        let vlans: Vec<String> = nic.vlans.iter().map(|vlan| vlan.name.clone()).collect();
        let devices: Vec<String> = others.rdma_devices.iter().map(|device| device.name.clone()).collect();
        let obstacles = match (&nic.xdp_obstacles[..], &others.xdp_program) {
            ([], None) if nic.name == "lo" => "no: the loopback interface has none".to_owned(),
            ([], None) if nic.bond.is_some() => "no: the interface is a bond".to_owned(),
            ([], None) => "possible".to_owned(),
            ([], Some((id, _))) => format!("no: XDP program {id} is attached"),
            (some, _) => format!("no: {}", some.join("; ")),
        };
        vec![
            ("kernel", host.kernel.clone()),
            ("surroundings", surroundings(host)),
            ("library", host.library.clone().unwrap_or_else(|_| "not found".to_owned())),
            ("memory", memory(host)),
            ("processors", format!("{}, load {:.1}, ICRC {}", host.processors, host.load, crc(host.crc))),
            ("interface", format!("{}: {state}, driver {}", nic.name, nic.driver)),
            ("addresses", list(&addresses)),
            ("VLAN interfaces", list(&vlans)),
            ("MTU", nic.mtu.to_string()),
            ("queues", queues(nic)),
            ("offloads", list(&offloads(nic))),
            ("AF_XDP", obstacles),
            (
                "packet sockets",
                nic.packet_obstacle.as_ref().map_or_else(|| "allowed".to_owned(), |why| format!("no: {why}")),
            ),
            (
                "driver's XDP",
                nic.xdp.map_or_else(unknown, |xdp| {
                    list(&xdp.names().into_iter().map(str::to_owned).collect::<Vec<_>>())
                }),
            ),
            ("RDMA devices", list(&devices)),
            ("UDP port 4791", if others.port_taken { "taken" } else { "free" }.to_owned()),
        ]
    }

    /// Returns the facts as JSON.
    pub(super) fn json(&self) -> Value {
        let Facts { host, nic, others } = self;
        let ring = nic.rx_ring.map(|ring| json!({ "now": ring.now, "longest": ring.longest }));
        let devices: Vec<Value> = others
            .rdma_devices
            .iter()
            .map(|device| json!({ "name": device.name, "software": device.software }))
            .collect();
        let vlans: Vec<Value> = nic
            .vlans
            .iter()
            .map(|vlan| json!({ "name": vlan.name, "shares_mac": vlan.shares_mac }))
            .collect();
        json!({
            "vlans": vlans, "bond": nic.bond,
            "kernel": host.kernel, "surroundings": format!("{:?}", host.surroundings).to_lowercase(),
            "seccomp": host.filtered, "library": host.library.as_ref().ok(), "may_mount": host.may_mount,
            "locked_memory": host.locked_memory, "huge_pages": host.huge_pages.0, "huge_page_kib": host.huge_pages.1,
            "processors": host.processors, "load": host.load, "virtual_machine": host.virtual_machine,
            "crc": format!("{:?}", host.crc).to_lowercase(),
            "driver": nic.driver, "up": nic.up, "running": nic.running, "mtu": nic.mtu,
            "addresses": nic.addresses, "rx_queues": nic.rx_queues, "rx_ring": ring, "offloads": nic.offloads.active,
            "xdp_features": nic.xdp.map(XdpFeatures::names), "xdp_obstacles": nic.xdp_obstacles,
            "packet_obstacle": nic.packet_obstacle,
            "xdp_possible": self.xdp_possible(), "xdp_program": others.xdp_program.as_ref().map(|(id, _)| id),
            "xdp_holders": others.xdp_program.as_ref().map(|(_, holders)| holders),
            "udp_port_taken": others.port_taken, "rdma_devices": devices, "rxe_loaded": others.rxe_loaded,
        })
    }
}

fn surroundings(host: &Host) -> String {
    let place = match host.surroundings {
        Environment::Container => "a container",
        Environment::Chroot => "a chroot",
        Environment::Host => "the host itself",
    };
    let filter = if host.filtered { ", behind a seccomp filter" } else { "" };
    let machine = if host.virtual_machine { ", a virtual machine" } else { "" };
    format!("{place}{machine}{filter}")
}

fn memory(host: &Host) -> String {
    let locked = host.locked_memory.map_or("any amount".to_owned(), |bytes| format!("{} KiB", bytes / 1024));
    let (count, size) = host.huge_pages;
    format!("{locked} may be locked; {count} huge pages of {size} KiB (Roxie needs none)")
}

fn crc(crc: Crc) -> &'static str {
    match crc {
        Crc::Wide => "by wide vectors (VPCLMULQDQ)",
        Crc::Fast => "by the processor's instructions",
        Crc::Tables => "by tables",
    }
}

fn queues(nic: &Nic) -> String {
    match nic.rx_ring {
        Some(RxRing { now, longest }) => {
            format!("{}, receive ring of {now} (at most {longest})", nic.rx_queues)
        }
        None => format!("{}, receive ring of a length that the driver does not report", nic.rx_queues),
    }
}

/// Lists the relevant offloads that are on.
fn offloads(nic: &Nic) -> Vec<String> {
    const MATTER: [&str; 7] = [
        "rx-gro",
        "rx-gro-hw",
        "rx-lro",
        "tx-generic-segmentation",
        "tx-udp-segmentation",
        "rx-udp-gro-forwarding",
        HIDES_TAGS,
    ];
    MATTER.into_iter().filter(|name| nic.offloads.is_on(name)).map(str::to_owned).collect()
}
