//! What `roxie doctor` looks at: this host, an interface, and who else is on it. Plain values; [`super::gather`] fills them.

use std::net::IpAddr;

use roxie::netdev::ethtool::{Offloads, RxRing, XdpFeatures};
use serde_json::{Value, json};

use crate::run::hint::Surroundings;

/// Everything that findings are made from.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    pub(super) host: Host,
    pub(super) nic: Nic,
    pub(super) others: Others,
}

/// This machine, and what this process may do on it.
#[derive(Clone, Debug)]
pub(super) struct Host {
    /// As `uname -r` prints it.
    pub(super) kernel: String,
    pub(super) surroundings: Surroundings,
    /// Where Roxie's `libibverbs.so.1` is, or why there is none.
    pub(super) library: Result<String, String>,
    /// A seccomp filter is on this process.
    pub(super) filtered: bool,
    /// A program can be shown `/sys/class/infiniband`: mounts of its own, or a user namespace for them.
    pub(super) may_mount: bool,
    /// Hard limit of locked memory in bytes; `None`: without limit.
    pub(super) locked_memory: Option<u64>,
    /// Huge pages: how many there are, and of how many KiB each.
    pub(super) huge_pages: (u64, u64),
    pub(super) processors: usize,
    /// Threads that ran or waited for a processor, on average over the last minute (`/proc/loadavg`).
    pub(super) load: f64,
    /// In a virtual machine, whose processor is what its host gives it.
    pub(super) virtual_machine: bool,
    /// The processor's instructions for the ICRC.
    pub(super) crc: Crc,
}

/// How the ICRC is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Crc {
    /// By vectors of 32 or 64 bytes: VPCLMULQDQ.
    Wide,
    /// By the processor's own instructions: PCLMULQDQ, or CRC of aarch64.
    Fast,
    /// By tables.
    Tables,
}

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
    /// `None`: the driver does not say.
    pub(super) rx_ring: Option<RxRing>,
    pub(super) offloads: Offloads,
    /// `None`: the kernel does not say.
    pub(super) xdp: Option<XdpFeatures>,
    /// What speaks against AF_XDP, in words.
    pub(super) xdp_obstacles: Vec<String>,
}

/// Who else wants the same frames.
#[derive(Clone, Debug, Default)]
pub(super) struct Others {
    /// The XDP program on the interface, and who holds it.
    pub(super) xdp_program: Option<(u32, Vec<String>)>,
    /// UDP port 4791 is taken in this network namespace.
    pub(super) port_taken: bool,
    /// RDMA devices of the kernel on this interface: their names, and whether they are rdma_rxe's.
    pub(super) rdma_devices: Vec<RdmaDevice>,
    /// The kernel's rdma_rxe is loaded.
    pub(super) rxe_loaded: bool,
}

/// An RDMA device of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RdmaDevice {
    pub(super) name: String,
    /// In software: it has no hardware behind it.
    pub(super) software: bool,
}

impl Facts {
    /// AF_XDP opens, as far as can be told without trying.
    pub(super) fn xdp_possible(&self) -> bool {
        self.nic.xdp_obstacles.is_empty() && self.others.xdp_program.is_none() && self.nic.name != "lo"
    }

    /// Label and text of each line.
    pub(super) fn lines(&self) -> Vec<(&'static str, String)> {
        let Facts { host, nic, others } = self;
        let unknown = || "not known: the kernel does not say".to_owned();
        let list = |all: &[String]| if all.is_empty() { "none".to_owned() } else { all.join(", ") };
        let state = match (nic.up, nic.running) {
            (true, true) => "up",
            (true, false) => "up, no carrier",
            _ => "down",
        };
        let addresses: Vec<String> = nic.addresses.iter().map(ToString::to_string).collect();
        let devices: Vec<String> = others.rdma_devices.iter().map(|device| device.name.clone()).collect();
        let obstacles = match (&nic.xdp_obstacles[..], &others.xdp_program) {
            ([], None) if nic.name == "lo" => "no: the loopback interface has none".to_owned(),
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
            ("MTU", nic.mtu.to_string()),
            ("queues", queues(nic)),
            ("offloads", list(&offloads(nic))),
            ("AF_XDP", obstacles),
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

    /// The same for scripts.
    pub(super) fn json(&self) -> Value {
        let Facts { host, nic, others } = self;
        let ring = nic.rx_ring.map(|ring| json!({ "now": ring.now, "longest": ring.longest }));
        let devices: Vec<Value> = others
            .rdma_devices
            .iter()
            .map(|device| json!({ "name": device.name, "software": device.software }))
            .collect();
        json!({
            "kernel": host.kernel, "surroundings": format!("{:?}", host.surroundings).to_lowercase(),
            "seccomp": host.filtered, "library": host.library.as_ref().ok(), "may_mount": host.may_mount,
            "locked_memory": host.locked_memory, "huge_pages": host.huge_pages.0, "huge_page_kib": host.huge_pages.1,
            "processors": host.processors, "load": host.load, "virtual_machine": host.virtual_machine,
            "crc": format!("{:?}", host.crc).to_lowercase(),
            "driver": nic.driver, "up": nic.up, "running": nic.running, "mtu": nic.mtu,
            "addresses": nic.addresses, "rx_queues": nic.rx_queues, "rx_ring": ring, "offloads": nic.offloads.active,
            "xdp_features": nic.xdp.map(XdpFeatures::names), "xdp_obstacles": nic.xdp_obstacles,
            "xdp_possible": self.xdp_possible(), "xdp_program": others.xdp_program.as_ref().map(|(id, _)| id),
            "xdp_holders": others.xdp_program.as_ref().map(|(_, holders)| holders),
            "udp_port_taken": others.port_taken, "rdma_devices": devices, "rxe_loaded": others.rxe_loaded,
        })
    }
}

fn surroundings(host: &Host) -> String {
    let place = match host.surroundings {
        Surroundings::Container => "a container",
        Surroundings::Chroot => "a chroot",
        Surroundings::Host => "the host itself",
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
        None => format!("{}, receive ring of a length that the driver does not tell", nic.rx_queues),
    }
}

/// Those that matter here, where they are on.
fn offloads(nic: &Nic) -> Vec<String> {
    const MATTER: [&str; 6] = [
        "rx-gro",
        "rx-gro-hw",
        "rx-lro",
        "tx-generic-segmentation",
        "tx-udp-segmentation",
        "rx-udp-gro-forwarding",
    ];
    MATTER.into_iter().filter(|name| nic.offloads.is_on(name)).map(str::to_owned).collect()
}
