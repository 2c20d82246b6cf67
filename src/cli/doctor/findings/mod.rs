//! Derives findings from facts: what to change, in order of effect. Makes no system calls.

use roxie::verbs::Mtu;
use serde_json::{Value, json};

use super::facts::{Crc, Facts, HIDES_TAGS, Nic};

/// Severity of a finding. Findings are printed in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Severity {
    /// Roxie cannot run before this is changed.
    Stops,
    /// Roxie runs, but slower or with fewer features.
    Hurts,
    /// For information; nothing to fix.
    Note,
}

impl Severity {
    pub(super) fn name(self) -> &'static str {
        match self {
            Severity::Stops => "stops",
            Severity::Hurts => "hurts",
            Severity::Note => "note",
        }
    }
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    /// Identifier, stable across versions.
    pub(super) id: &'static str,
    pub(super) severity: Severity,
    pub(super) what: String,
    /// The remedy, with the command if there is one; empty for a note without advice.
    pub(super) change: String,
    /// The benefit of the change.
    pub(super) brings: String,
}

impl Finding {
    pub(super) fn json(&self) -> Value {
        json!({ "id": self.id, "severity": self.severity.name(), "what": self.what, "change": self.change,
                "brings": self.brings })
    }

    fn new(
        severity: Severity,
        id: &'static str,
        what: impl Into<String>,
        change: impl Into<String>,
        brings: impl Into<String>,
    ) -> Finding {
        Finding { id, severity, what: what.into(), change: change.into(), brings: brings.into() }
    }
}

use Severity::{Hurts, Note, Stops};

/// Link MTU for the largest path MTU.
const WIDEST: usize = Mtu::Mtu4096.bytes() + Mtu::OVERHEAD;
/// Most queues that one AF_XDP port serves.
const MOST_QUEUES: usize = roxie::port::BURST;
/// Fewer entries than this hold only a few bursts of [`roxie::port::BURST`] frames from several peers.
const SHORT_RING: u32 = 512;
/// The first Linux release with `XDP_USE_SG`, which carries a frame in several AF_XDP chunks.
const LONG_FRAMES: (u32, u32) = (6, 6);

/// Returns all findings: those that stop Roxie, then those that hurt, then notes, each in order of effect.
pub(super) fn findings(facts: &Facts) -> Vec<Finding> {
    // The order of this list is the order of effect.
    let checks = [
        interface_down,
        no_address,
        mtu_too_small,
        no_port,
        no_library,
        no_carrier,
        adapter,
        xdp_claimed,
        no_xdp,
        bond,
        vlan_of_its_own,
        hidden_tags,
        too_many_queues,
        merging,
        narrow_mtu,
        short_ring,
        segmentation,
        table_crc,
        no_view,
        generic_mode,
        old_kernel,
        superframes,
        rxe_beside,
        port_taken,
        one_processor,
        busy_processors,
    ];
    let mut all: Vec<Finding> = checks.iter().filter_map(|check| check(facts)).collect();
    // The sort is stable: the order of effect holds within each severity.
    all.sort_by_key(|finding| finding.severity);
    all
}

fn interface_down(facts: &Facts) -> Option<Finding> {
    let Nic { name, up, .. } = &facts.nic;
    (!up).then(|| {
        Finding::new(
            Stops,
            "interface-down",
            format!("{name} is down"),
            format!("ip link set dev {name} up"),
            "a device can be opened",
        )
    })
}

fn no_address(facts: &Facts) -> Option<Finding> {
    let Nic { name, addresses, .. } = &facts.nic;
    addresses.is_empty().then(|| {
        Finding::new(
            Stops,
            "no-address",
            format!("{name} has no usable address, and a device's GIDs are its addresses"),
            format!("ip addr add 192.0.2.1/24 dev {name}   (with an address of your network)"),
            "a device can be opened",
        )
    })
}

fn mtu_too_small(facts: &Facts) -> Option<Finding> {
    let Nic { name, mtu, .. } = &facts.nic;
    Mtu::largest_for_link(*mtu).is_none().then(|| {
        Finding::new(
            Stops,
            "mtu-too-small",
            format!(
                "the MTU of {name}, {mtu}, carries no packet: the smallest path MTU, 256, needs {}",
                256 + Mtu::OVERHEAD
            ),
            format!("ip link set dev {name} mtu 1500"),
            "a path MTU of 1024, which programs ask for",
        )
    })
}

fn no_port(facts: &Facts) -> Option<Finding> {
    (!facts.xdp_possible() && facts.others.port_taken).then(|| {
        let what = "AF_XDP is not possible here (see below), and UDP port 4791, which sockets need, is taken";
        Finding::new(Stops, "no-port", what, free_the_port(facts), "sockets work, which need no privilege")
    })
}

/// Returns the command that frees UDP port 4791.
fn free_the_port(facts: &Facts) -> String {
    let rxe: Vec<String> = software_devices(facts).map(|name| format!("rdma link delete {name}")).collect();
    match (&rxe[..], facts.others.rxe_loaded) {
        ([], false) => "ss -ulpn 'sport = :4791' names the process that uses it: stop that process".to_owned(),
        ([], true) => {
            "ss -ulpn 'sport = :4791' names the process that uses it; without a name it is the kernel's rdma_rxe: rdma \
             link show, then rdma link delete NAME"
                .to_owned()
        }
        (some, _) => some.join("; "),
    }
}

fn software_devices(facts: &Facts) -> impl Iterator<Item = &str> {
    facts.others.rdma_devices.iter().filter(|device| device.software).map(|device| &*device.name)
}

fn no_library(facts: &Facts) -> Option<Finding> {
    let why = facts.host.library.as_ref().err()?;
    let brings = "roxie run and roxie env work; the other commands do without";
    Some(Finding::new(Stops, "no-library", why, "make build, or ROXIE_LIB=FOLDER", brings))
}

fn no_carrier(facts: &Facts) -> Option<Finding> {
    let Nic { name, up, running, .. } = &facts.nic;
    (*up && !running).then(|| {
        let what =
            format!("{name} has no carrier: the port is DOWN and packets wait until its other end is up");
        Finding::new(Hurts, "no-carrier", what, "connect its other end, or bring that up", "packets leave")
    })
}

fn adapter(facts: &Facts) -> Option<Finding> {
    let hardware = facts.others.rdma_devices.iter().find(|device| !device.software)?;
    let (name, device) = (&facts.nic.name, &hardware.name);
    Some(Finding::new(
        Hurts,
        "rdma-adapter",
        format!(
            "{name} belongs to the RDMA adapter {device}, which may take packets to UDP port 4791 for itself: Roxie \
             would never see them"
        ),
        "run the program without roxie, on the adapter; or name another interface with --dev",
        "an adapter is faster than any software",
    ))
}

fn xdp_claimed(facts: &Facts) -> Option<Finding> {
    let (id, holders) = facts.others.xdp_program.as_ref()?;
    let name = &facts.nic.name;
    let (who, change) = match &holders[..] {
        [] => (
            "a process that is not visible from here".to_owned(),
            format!("ip link set dev {name} xdp off   (if no process needs it)"),
        ),
        some => (some.join(", "), format!("stop {}", some.join(", "))),
    };
    let what =
        format!("{name} has XDP program {id} attached, held by {who}: AF_XDP is not possible beside it");
    Some(Finding::new(Hurts, "xdp-claimed", what, change, OVER_SOCKETS))
}

/// Measured on a veth pair: docs/performance.md, programs that wait.
const OVER_SOCKETS: &str =
    "AF_XDP instead of sockets: round trips of 7 us where those take 13 (docs/performance.md)";

fn no_xdp(facts: &Facts) -> Option<Finding> {
    let obstacles = &facts.nic.xdp_obstacles;
    (!obstacles.is_empty() && facts.nic.name != "lo").then(|| {
        let what = format!("AF_XDP is not possible: {}", obstacles.join("; "));
        let change = facts.host.surroundings.for_xdp();
        // The finding's benefit is printed in its own line.
        let change = change.trim_start_matches("to have it, ").trim_end_matches(" to have it");
        Finding::new(Hurts, "no-xdp", what, change, OVER_SOCKETS)
    })
}

fn bond(facts: &Facts) -> Option<Finding> {
    let mode = facts.nic.bond.as_ref()?;
    let name = &facts.nic.name;
    Some(Finding::new(
        Note,
        "bond",
        format!("{name} is a bond ({mode}): AF_XDP would have to be on its slaves, and is refused"),
        "use packet sockets: --port packet",
        "a device that follows the bond's fail-over",
    ))
}

fn vlan_of_its_own(facts: &Facts) -> Option<Finding> {
    let Nic { name, mac, vlans, .. } = &facts.nic;
    let vlan = &vlans.iter().find(|vlan| !vlan.shares_mac)?.name;
    Some(Finding::new(
        Hurts,
        "vlan-of-its-own",
        format!(
            "{vlan} has another MAC address than {name}, so its addresses are no GIDs of a device on {name}"
        ),
        format!("ip link set dev {vlan} address {mac}"),
        "GIDs on that VLAN, on the same device",
    ))
}

fn hidden_tags(facts: &Facts) -> Option<Finding> {
    let Nic { name, vlans, offloads, .. } = &facts.nic;
    let is_fixed = offloads.is_on(HIDES_TAGS) && !offloads.may_change(HIDES_TAGS);
    (facts.xdp_possible() && !vlans.is_empty() && is_fixed).then(|| {
        Finding::new(
            Hurts,
            "hidden-tags",
            format!("the driver of {name} takes VLAN tags out of frames before AF_XDP sees them, and cannot be told otherwise"),
            "use packet sockets for VLANs: --port packet",
            "GIDs on VLANs",
        )
    })
}

fn too_many_queues(facts: &Facts) -> Option<Finding> {
    let Nic { name, rx_queues, .. } = &facts.nic;
    (facts.xdp_possible() && *rx_queues as usize > MOST_QUEUES).then(|| {
        Finding::new(
            Hurts,
            "too-many-queues",
            format!("{name} has {rx_queues} receive queues, and AF_XDP takes {MOST_QUEUES} in one port"),
            format!("ethtool -L {name} combined {MOST_QUEUES}"),
            OVER_SOCKETS,
        )
    })
}

fn merging(facts: &Facts) -> Option<Finding> {
    let Nic { name, offloads, .. } = &facts.nic;
    let wrong = |offload: &&str| offloads.is_on(offload) && offloads.may_change(offload);
    let on: Vec<&str> = ["rx-lro", "rx-gro-hw"].into_iter().filter(wrong).collect();
    (facts.xdp_possible() && !on.is_empty()).then(|| {
        let switches: Vec<String> = on.iter().map(|offload| format!("{offload} off")).collect();
        Finding::new(
            Hurts,
            "merged-frames",
            format!(
                "the adapter of {name} merges frames ({}), and drivers run no XDP program beside that",
                on.join(", ")
            ),
            format!("ethtool -K {name} {}", switches.join(" ")),
            "native AF_XDP instead of the generic mode, in which the kernel handles each frame first",
        )
    })
}

fn narrow_mtu(facts: &Facts) -> Option<Finding> {
    let Nic { name, mtu, .. } = &facts.nic;
    let path = Mtu::largest_for_link(*mtu).filter(|path| *path < Mtu::Mtu4096)?;
    let refused = if path < Mtu::Mtu1024 { ", and programs that ask for 1024 are refused" } else { "" };
    Some(Finding::new(
        Hurts,
        "narrow-mtu",
        format!("the MTU of {name}, {mtu}, gives a path MTU of {}{refused}", path.bytes()),
        format!(
            "ip link set dev {name} mtu {WIDEST}   (on each host, and where the switches between take it)"
        ),
        format!(
            "packets of 4096 bytes: one where there are {} now, each with its own cost",
            4096 / path.bytes()
        ),
    ))
}

fn short_ring(facts: &Facts) -> Option<Finding> {
    let ring = facts.nic.rx_ring.filter(|ring| ring.now < SHORT_RING && ring.longest > ring.now)?;
    let name = &facts.nic.name;
    Some(Finding::new(
        Hurts,
        "short-ring",
        format!("the receive ring of {name} has {} entries: a longer burst is lost", ring.now),
        format!("ethtool -G {name} rx {}", ring.longest.min(4096)),
        "fewer losses; each costs everything behind it once more (docs/go-back-n.md)",
    ))
}

fn segmentation(facts: &Facts) -> Option<Finding> {
    let Nic { name, offloads, .. } = &facts.nic;
    let wrong = !offloads.is_on("tx-udp-segmentation") && offloads.may_change("tx-udp-segmentation");
    (!facts.xdp_possible() && wrong).then(|| {
        Finding::new(
            Hurts,
            "udp-segmentation",
            format!("{name} could cut trains of datagrams itself, and may not"),
            format!("ethtool -K {name} tx-udp-segmentation on"),
            "a train of packets passes the kernel as one",
        )
    })
}

fn no_view(facts: &Facts) -> Option<Finding> {
    (!facts.host.may_mount).then(|| {
        Finding::new(
            Hurts,
            "no-view",
            "programs cannot be shown /sys/class/infiniband: this process may not make mounts of its own",
            facts.host.surroundings.for_mounts(),
            "UCX, NCCL and Open MPI find the device; programs on libibverbs alone do without",
        )
    })
}

fn table_crc(facts: &Facts) -> Option<Finding> {
    let severity = match (facts.host.crc, facts.host.virtual_machine) {
        (Crc::Tables, true) => Hurts,
        (Crc::Tables, false) => Note,
        _ => return None,
    };
    let change = match severity {
        Hurts => "give the virtual machine its host's processor (QEMU: -cpu host)",
        _ => "",
    };
    let what = "the processor has no carry-less multiplication (PCLMULQDQ): the ICRC of each packet is computed by tables";
    Some(Finding::new(severity, "table-crc", what, change, "checksums at the speed of memory"))
}

fn generic_mode(facts: &Facts) -> Option<Finding> {
    let native = facts.nic.xdp?.is_native();
    (facts.xdp_possible() && !native).then(|| {
        let driver = &facts.nic.driver;
        let what =
            format!("the driver {driver} runs no XDP program: AF_XDP works in its generic mode, the slowest");
        Finding::new(Note, "generic-mode", what, "", "another adapter or driver would have the native mode")
    })
}

fn old_kernel(facts: &Facts) -> Option<Finding> {
    let version = version(&facts.host.kernel)?;
    (facts.xdp_possible() && version < LONG_FRAMES && facts.nic.mtu >= WIDEST).then(|| {
        let what = format!(
            "Linux {} carries an AF_XDP frame in one chunk: the path MTU is 2048 although the link's would allow 4096",
            facts.host.kernel
        );
        let change = "Linux 6.6 or later; or --port udp, which has the whole path MTU";
        Finding::new(Note, "one-chunk", what, change, "packets of 4096 bytes")
    })
}

/// Parses major and minor version of `uname -r`.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

fn superframes(facts: &Facts) -> Option<Finding> {
    (facts.xdp_possible() && facts.nic.driver == "veth").then(|| {
        Finding::new(
            Note,
            "veth-trains",
            "a peer that sends through sockets at the other end of this veth pair hands over trains uncut, which AF_XDP cannot take",
            "where that is so: ethtool -K ITS-INTERFACE tx-udp-segmentation off gso off tso off",
            "its packets are received; the counter rx_gso_superframe shows whether any were not",
        )
    })
}

fn rxe_beside(facts: &Facts) -> Option<Finding> {
    let device = software_devices(facts).next().filter(|_| facts.xdp_possible())?;
    Some(Finding::new(
        Note,
        "rxe-beside",
        format!(
            "{device}, of the kernel, is on the same interface: it receives nothing while Roxie has the interface"
        ),
        format!("rdma link delete {device}"),
        "no ambiguity about which device answers",
    ))
}

fn port_taken(facts: &Facts) -> Option<Finding> {
    (facts.xdp_possible() && facts.others.port_taken).then(|| {
        let what = "UDP port 4791 is taken: --port udp would be refused; AF_XDP does not need it";
        Finding::new(Note, "port-taken", what, free_the_port(facts), "sockets work, too")
    })
}

fn one_processor(facts: &Facts) -> Option<Finding> {
    (facts.host.processors == 1).then(|| {
        let what = "there is one processor: program, kernel, and peer on this host take turns on it";
        Finding::new(Note, "one-processor", what, "", "with two, a round trip need not wait for a turn")
    })
}

fn busy_processors(facts: &Facts) -> Option<Finding> {
    let (load, processors) = (facts.host.load, facts.host.processors);
    // The load counts threads that wait for a disk, and some that have just ended: allow for 0.5.
    (load >= processors as f64 + 0.5).then(|| {
        let what = format!(
            "{load:.1} threads share {processors} processors: a responder that waits for its turn answers late, and its peer may end with \
             \"transport retry counter exceeded\" (status 12)"
        );
        let change = "fewer busy threads than processors; or `roxie run --cores N`, on a core that is left to it; or a longer ACK timeout at \
                      the peer (perftest: -u 18)";
        Finding::new(Note, "busy-processors", what, change, "answers within the peer's ACK timeout")
    })
}

#[cfg(test)]
mod tests;
