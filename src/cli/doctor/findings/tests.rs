//! Tests each finding: a machine without findings, and one change to it.

use roxie::netdev::ethtool::{Offloads, RxRing, XdpFeatures};

use super::super::facts::{Host, Others, RdmaDevice, Vlan};
use super::*;
use crate::run::hint::Environment;

/// A machine without findings.
fn fine() -> Facts {
    Facts {
        host: Host {
            kernel: "6.12.9-amd64".into(),
            surroundings: Environment::Host,
            library: Ok("/usr/lib/roxie/libibverbs.so.1".into()),
            filtered: false,
            may_mount: true,
            locked_memory: None,
            huge_pages: (0, 2048),
            processors: 8,
            load: 0.4,
            virtual_machine: false,
            crc: Crc::Wide,
        },
        nic: Nic {
            name: "eth9".into(),
            driver: "ice".into(),
            up: true,
            running: true,
            mtu: 9000,
            addresses: vec!["192.0.2.1".parse().unwrap()],
            rx_queues: 8,
            rx_ring: Some(RxRing { now: 2048, longest: 8160 }),
            offloads: Offloads {
                active: ["rx-gro", "tx-udp-segmentation"].map(str::to_owned).to_vec(),
                changeable: ["rx-gro", "rx-lro", "rx-gro-hw", "tx-udp-segmentation"]
                    .map(str::to_owned)
                    .to_vec(),
            },
            xdp: Some(XdpFeatures(0b111_1111)),
            xdp_obstacles: Vec::new(),
            packet_obstacle: None,
            mac: "02:00:00:00:00:09".into(),
            vlans: Vec::new(),
            bond: None,
        },
        others: Others::default(),
    }
}

/// Returns the findings after one change.
fn after(change: impl FnOnce(&mut Facts)) -> Vec<Finding> {
    let mut facts = fine();
    change(&mut facts);
    findings(&facts)
}

/// Asserts that the change makes exactly this finding, and that its command contains `part`.
#[track_caller]
fn finds(severity: Severity, id: &str, part: &str, change: impl FnOnce(&mut Facts)) {
    let found = after(change);
    let [finding] = &found[..] else { panic!("one finding, {id}: {found:#?}") };
    assert_eq!((finding.id, finding.severity), (id, severity), "{finding:#?}");
    assert!(finding.change.contains(part), "no {part:?} in {finding:#?}");
    assert!(!finding.what.is_empty() && !finding.brings.is_empty(), "{finding:#?}");
    assert!(severity == Note || !finding.change.is_empty(), "what is to mend says how: {finding:#?}");
}

fn ids(found: &[Finding]) -> Vec<&'static str> {
    found.iter().map(|finding| finding.id).collect()
}

fn device(name: &str, software: bool) -> RdmaDevice {
    RdmaDevice { name: name.into(), software }
}

#[test]
fn healthy_machine_has_no_findings() {
    assert_eq!(findings(&fine()), []);
}

#[test]
fn interface_down_stops() {
    finds(Stops, "interface-down", "ip link set dev eth9 up", |facts| {
        facts.nic.up = false;
        facts.nic.running = false;
    });
}

#[test]
fn missing_address_stops() {
    finds(Stops, "no-address", "ip addr add", |facts| facts.nic.addresses.clear());
}

#[test]
fn mtu_below_smallest_packet_stops() {
    finds(Stops, "mtu-too-small", "mtu 1500", |facts| facts.nic.mtu = 343);
    assert_eq!(ids(&after(|facts| facts.nic.mtu = 344)), ["narrow-mtu"]);
}

#[test]
fn taken_port_stops_only_without_af_xdp() {
    let both = after(|facts| {
        facts.others.port_taken = true;
        facts.nic.xdp_obstacles.push("this process lacks CAP_BPF".into());
    });
    assert_eq!(ids(&both), ["no-port", "no-xdp"]);
    assert_eq!(both[0].severity, Stops);
    finds(Note, "port-taken", "ss -ulpn", |facts| facts.others.port_taken = true);
}

#[test]
fn rxe_port_is_freed_by_deleting_devices() {
    let with = |devices: Vec<RdmaDevice>| {
        let found = after(|facts| {
            facts.nic.name = "lo".into();
            facts.others =
                Others { port_taken: true, rxe_loaded: true, rdma_devices: devices, ..Others::default() };
        });
        assert_eq!(ids(&found), ["no-port"]);
        found[0].change.clone()
    };
    assert_eq!(
        with(vec![device("rxe0", true), device("rxe1", true)]),
        "rdma link delete rxe0; rdma link delete rxe1"
    );
    assert!(with(Vec::new()).contains("rdma link delete NAME"), "rxe is loaded and on another interface");
}

#[test]
fn missing_library_stops() {
    finds(Stops, "no-library", "make build", |facts| facts.host.library = Err("it is not there".into()));
}

#[test]
fn missing_carrier_hurts() {
    finds(Hurts, "no-carrier", "other end", |facts| facts.nic.running = false);
}

#[test]
fn rdma_adapter_on_interface_is_found() {
    finds(Hurts, "rdma-adapter", "--dev", |facts| facts.others.rdma_devices.push(device("mlx5_0", false)));
}

#[test]
fn rxe_on_same_interface_is_noted() {
    finds(Note, "rxe-beside", "rdma link delete rxe0", |facts| {
        facts.others.rdma_devices.push(device("rxe0", true));
    });
}

#[test]
fn xdp_holder_is_named() {
    finds(Hurts, "xdp-claimed", "stop roxie (pid 7)", |facts| {
        facts.others.xdp_program = Some((3, vec!["roxie (pid 7)".into()]));
    });
    finds(Hurts, "xdp-claimed", "ip link set dev eth9 xdp off", |facts| {
        facts.others.xdp_program = Some((3, Vec::new()));
    });
}

#[test]
fn missing_privilege_for_af_xdp_is_named() {
    let obstacle = |facts: &mut Facts| facts.nic.xdp_obstacles.push("this process lacks CAP_BPF".into());
    finds(Hurts, "no-xdp", "run as root", obstacle);
    finds(Hurts, "no-xdp", "--cap-add", |facts| {
        obstacle(facts);
        facts.host.surroundings = Environment::Container;
    });
    assert_eq!(
        ids(&after(|facts| facts.nic.name = "lo".into())),
        [""; 0],
        "loopback has sockets, and nothing to mend"
    );
}

#[test]
fn too_many_queues_hurt() {
    finds(Hurts, "too-many-queues", "ethtool -L eth9 combined 64", |facts| facts.nic.rx_queues = 65);
    assert_eq!(ids(&after(|facts| facts.nic.rx_queues = 64)), [""; 0]);
}

#[test]
fn bond_is_noted() {
    finds(Note, "bond", "--port packet", |facts| facts.nic.bond = Some("active-backup".into()));
}

#[test]
fn vlan_with_other_mac_hurts() {
    let vlan = |shares_mac| Vlan { name: "eth9.5".into(), shares_mac };
    assert_eq!(after(|facts| facts.nic.vlans.push(vlan(true))), []);
    let change = "ip link set dev eth9.5 address 02:00:00:00:00:09";
    finds(Hurts, "vlan-of-its-own", change, |facts| facts.nic.vlans.push(vlan(false)));
}

#[test]
fn tags_hidden_for_good_hurt() {
    let hidden = |facts: &mut Facts| {
        facts.nic.vlans.push(Vlan { name: "eth9.5".into(), shares_mac: true });
        facts.nic.offloads.active.push(HIDES_TAGS.into());
    };
    finds(Hurts, "hidden-tags", "--port packet", hidden);
    // The port turns the offload off by itself.
    let changeable = after(|facts| {
        hidden(facts);
        facts.nic.offloads.changeable.push(HIDES_TAGS.into());
    });
    assert_eq!(changeable, []);
}

#[test]
fn merging_offload_hurts() {
    let on = |name: &'static str| move |facts: &mut Facts| facts.nic.offloads.active.push(name.into());
    finds(Hurts, "merged-frames", "ethtool -K eth9 rx-lro off", on("rx-lro"));
    finds(Hurts, "merged-frames", "ethtool -K eth9 rx-gro-hw off", on("rx-gro-hw"));
    let fixed = after(|facts| {
        facts.nic.offloads = Offloads { active: vec!["rx-lro".into()], changeable: Vec::new() };
    });
    assert_eq!(ids(&fixed), [""; 0], "what cannot be switched is not worth a word");
}

#[test]
fn mtu_below_largest_path_mtu_hurts() {
    finds(Hurts, "narrow-mtu", "ip link set dev eth9 mtu 4184", |facts| facts.nic.mtu = 1500);
    let said = |mtu| after(|facts| facts.nic.mtu = mtu)[0].clone();
    assert!(said(1500).brings.contains("one where there are 4 now"), "{:?}", said(1500));
    assert!(said(1000).what.contains("refused") && !said(1500).what.contains("refused"));
    assert!(said(4183).what.contains("path MTU of 2048"), "{:?}", said(4183));
    assert_eq!(ids(&after(|facts| facts.nic.mtu = 4184)), [""; 0]);
}

#[test]
fn short_ring_hurts_if_extensible() {
    let ring = |now, longest| move |facts: &mut Facts| facts.nic.rx_ring = Some(RxRing { now, longest });
    finds(Hurts, "short-ring", "ethtool -G eth9 rx 4096", ring(256, 8160));
    finds(Hurts, "short-ring", "ethtool -G eth9 rx 1024", ring(256, 1024));
    assert_eq!(ids(&after(ring(256, 256))), [""; 0], "no longer than that");
    assert_eq!(ids(&after(|facts| facts.nic.rx_ring = None)), [""; 0], "not known");
}

#[test]
fn disabled_segmentation_offload_hurts_sockets() {
    let off = |facts: &mut Facts| facts.nic.offloads.active.clear();
    assert_eq!(ids(&after(off)), [""; 0], "AF_XDP sends no trains");
    finds(Hurts, "udp-segmentation", "tx-udp-segmentation on", |facts| {
        off(facts);
        facts.nic.name = "lo".into();
    });
}

#[test]
fn missing_sysfs_view_hurts() {
    finds(Hurts, "no-view", "user namespaces", |facts| facts.host.may_mount = false);
}

#[test]
fn table_crc_hurts_in_virtual_machine() {
    finds(Hurts, "table-crc", "-cpu host", |facts| {
        facts.host.crc = Crc::Tables;
        facts.host.virtual_machine = true;
    });
    finds(Note, "table-crc", "", |facts| facts.host.crc = Crc::Tables);
    assert_eq!(ids(&after(|facts| facts.host.crc = Crc::Fast)), [""; 0]);
}

#[test]
fn driver_without_xdp_is_noted() {
    finds(Note, "generic-mode", "", |facts| facts.nic.xdp = Some(XdpFeatures(0)));
    assert_eq!(ids(&after(|facts| facts.nic.xdp = None)), [""; 0], "not known");
}

#[test]
fn single_chunk_kernel_is_noted_if_it_costs() {
    finds(Note, "one-chunk", "6.6", |facts| facts.host.kernel = "6.1.0-56-amd64".into());
    let narrow = after(|facts| {
        facts.host.kernel = "6.1.0".into();
        facts.nic.mtu = 1500;
    });
    assert_eq!(ids(&narrow), ["narrow-mtu"]);
    assert_eq!(ids(&after(|facts| facts.host.kernel = "10.0-rc1".into())), [""; 0]);
    assert_eq!(version("6.18.44-fc"), Some((6, 18)));
}

#[test]
fn superframes_over_veth_are_noted() {
    finds(Note, "veth-trains", "ethtool -K", |facts| facts.nic.driver = "veth".into());
}

#[test]
fn single_processor_is_noted() {
    finds(Note, "one-processor", "", |facts| facts.host.processors = 1);
}

#[test]
fn overload_is_noted() {
    finds(Note, "busy-processors", "--cores", |facts| (facts.host.processors, facts.host.load) = (2, 3.2));
    assert_eq!(ids(&after(|facts| (facts.host.processors, facts.host.load) = (2, 2.1))), [""; 0]);
}

#[test]
fn findings_are_sorted_by_severity() {
    let found = after(|facts| {
        facts.host.processors = 1;
        facts.host.may_mount = false;
        facts.nic.mtu = 1500;
        facts.nic.addresses.clear();
        facts.nic.xdp_obstacles.push("no".into());
    });
    assert_eq!(ids(&found), ["no-address", "no-xdp", "narrow-mtu", "no-view", "one-processor"]);
    let mended_or_not = after(|facts| {
        facts.host.crc = Crc::Tables;
        facts.host.may_mount = false;
    });
    assert_eq!(ids(&mended_or_not), ["no-view", "table-crc"], "one that cannot be mended is a note");
}
