//! Each finding: a machine on which nothing is to mend, and what is changed about it.

use roxie::netdev::ethtool::{Offloads, RxRing, XdpFeatures};

use super::super::facts::{Host, Others, RdmaDevice};
use super::*;
use crate::run::hint::Surroundings;

/// Nothing is to mend, and nothing to note.
fn fine() -> Facts {
    Facts {
        host: Host {
            kernel: "6.12.9-amd64".into(),
            surroundings: Surroundings::Host,
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
        },
        others: Others::default(),
    }
}

/// What is found after one change.
fn after(change: impl FnOnce(&mut Facts)) -> Vec<Finding> {
    let mut facts = fine();
    change(&mut facts);
    findings(&facts)
}

/// The change makes this one finding, and its command says so.
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
fn where_all_is_well_nothing_is_said() {
    assert_eq!(findings(&fine()), []);
}

#[test]
fn an_interface_that_is_down_stops_everything() {
    finds(Stops, "interface-down", "ip link set dev eth9 up", |facts| {
        facts.nic.up = false;
        facts.nic.running = false;
    });
}

#[test]
fn without_an_address_there_is_no_device() {
    finds(Stops, "no-address", "ip addr add", |facts| facts.nic.addresses.clear());
}

#[test]
fn an_mtu_that_carries_no_packet_stops_everything() {
    finds(Stops, "mtu-too-small", "mtu 1500", |facts| facts.nic.mtu = 343);
    assert_eq!(ids(&after(|facts| facts.nic.mtu = 344)), ["narrow-mtu"]);
}

#[test]
fn a_taken_port_stops_everything_only_where_af_xdp_is_not_possible() {
    let both = after(|facts| {
        facts.others.port_taken = true;
        facts.nic.xdp_obstacles.push("this process lacks CAP_BPF".into());
    });
    assert_eq!(ids(&both), ["no-port", "no-xdp"]);
    assert_eq!(both[0].severity, Stops);
    finds(Note, "port-taken", "ss -ulpn", |facts| facts.others.port_taken = true);
}

#[test]
fn a_port_that_rxe_holds_is_given_back_by_deleting_its_devices() {
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
fn without_the_library_no_program_can_run() {
    finds(Stops, "no-library", "make build", |facts| facts.host.library = Err("it is not there".into()));
}

#[test]
fn a_missing_carrier_is_told() {
    finds(Hurts, "no-carrier", "other end", |facts| facts.nic.running = false);
}

#[test]
fn an_adapter_takes_the_packets_for_itself() {
    finds(Hurts, "rdma-adapter", "--dev", |facts| facts.others.rdma_devices.push(device("mlx5_0", false)));
}

#[test]
fn rxe_on_the_same_interface_hears_nothing() {
    finds(Note, "rxe-beside", "rdma link delete rxe0", |facts| {
        facts.others.rdma_devices.push(device("rxe0", true));
    });
}

#[test]
fn who_holds_the_interface_is_to_be_stopped() {
    finds(Hurts, "xdp-claimed", "stop roxie (pid 7)", |facts| {
        facts.others.xdp_program = Some((3, vec!["roxie (pid 7)".into()]));
    });
    finds(Hurts, "xdp-claimed", "ip link set dev eth9 xdp off", |facts| {
        facts.others.xdp_program = Some((3, Vec::new()));
    });
}

#[test]
fn without_af_xdp_it_is_said_what_gives_it() {
    let obstacle = |facts: &mut Facts| facts.nic.xdp_obstacles.push("this process lacks CAP_BPF".into());
    finds(Hurts, "no-xdp", "run as root", obstacle);
    finds(Hurts, "no-xdp", "--cap-add", |facts| {
        obstacle(facts);
        facts.host.surroundings = Surroundings::Container;
    });
    assert_eq!(
        ids(&after(|facts| facts.nic.name = "lo".into())),
        [""; 0],
        "loopback has sockets, and nothing to mend"
    );
}

#[test]
fn more_queues_than_a_port_takes_are_too_many() {
    finds(Hurts, "too-many-queues", "ethtool -L eth9 combined 64", |facts| facts.nic.rx_queues = 65);
    assert_eq!(ids(&after(|facts| facts.nic.rx_queues = 64)), [""; 0]);
}

#[test]
fn frames_that_the_adapter_merges_are_in_the_way_of_xdp() {
    let on = |name: &'static str| move |facts: &mut Facts| facts.nic.offloads.active.push(name.into());
    finds(Hurts, "merged-frames", "ethtool -K eth9 rx-lro off", on("rx-lro"));
    finds(Hurts, "merged-frames", "ethtool -K eth9 rx-gro-hw off", on("rx-gro-hw"));
    let fixed = after(|facts| {
        facts.nic.offloads = Offloads { active: vec!["rx-lro".into()], changeable: Vec::new() };
    });
    assert_eq!(ids(&fixed), [""; 0], "what cannot be switched is not worth a word");
}

#[test]
fn the_mtu_is_to_carry_the_largest_path_mtu() {
    finds(Hurts, "narrow-mtu", "ip link set dev eth9 mtu 4184", |facts| facts.nic.mtu = 1500);
    let said = |mtu| after(|facts| facts.nic.mtu = mtu)[0].clone();
    assert!(said(1500).brings.contains("one where there are 4 now"), "{:?}", said(1500));
    assert!(said(1000).what.contains("refused") && !said(1500).what.contains("refused"));
    assert!(said(4183).what.contains("path MTU of 2048"), "{:?}", said(4183));
    assert_eq!(ids(&after(|facts| facts.nic.mtu = 4184)), [""; 0]);
}

#[test]
fn a_short_ring_that_could_be_longer_is_told() {
    let ring = |now, longest| move |facts: &mut Facts| facts.nic.rx_ring = Some(RxRing { now, longest });
    finds(Hurts, "short-ring", "ethtool -G eth9 rx 4096", ring(256, 8160));
    finds(Hurts, "short-ring", "ethtool -G eth9 rx 1024", ring(256, 1024));
    assert_eq!(ids(&after(ring(256, 256))), [""; 0], "no longer than that");
    assert_eq!(ids(&after(|facts| facts.nic.rx_ring = None)), [""; 0], "not known");
}

#[test]
fn trains_are_cut_by_the_adapter_where_sockets_are_used() {
    let off = |facts: &mut Facts| facts.nic.offloads.active.clear();
    assert_eq!(ids(&after(off)), [""; 0], "AF_XDP sends no trains");
    finds(Hurts, "udp-segmentation", "tx-udp-segmentation on", |facts| {
        off(facts);
        facts.nic.name = "lo".into();
    });
}

#[test]
fn programs_that_read_sysfs_miss_the_view() {
    finds(Hurts, "no-view", "user namespaces", |facts| facts.host.may_mount = false);
}

#[test]
fn checksums_by_tables_can_be_mended_in_a_virtual_machine() {
    finds(Hurts, "table-crc", "-cpu host", |facts| {
        facts.host.crc = Crc::Tables;
        facts.host.virtual_machine = true;
    });
    finds(Note, "table-crc", "", |facts| facts.host.crc = Crc::Tables);
    assert_eq!(ids(&after(|facts| facts.host.crc = Crc::Fast)), [""; 0]);
}

#[test]
fn a_driver_without_xdp_is_noted() {
    finds(Note, "generic-mode", "", |facts| facts.nic.xdp = Some(XdpFeatures(0)));
    assert_eq!(ids(&after(|facts| facts.nic.xdp = None)), [""; 0], "not known");
}

#[test]
fn a_kernel_whose_frames_are_one_chunk_is_noted_where_it_costs_something() {
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
fn trains_over_a_veth_pair_are_noted() {
    finds(Note, "veth-trains", "ethtool -K", |facts| facts.nic.driver = "veth".into());
}

#[test]
fn a_single_processor_is_noted() {
    finds(Note, "one-processor", "", |facts| facts.host.processors = 1);
}

#[test]
fn more_busy_threads_than_processors_are_noted() {
    finds(Note, "busy-processors", "--cores", |facts| (facts.host.processors, facts.host.load) = (2, 3.2));
    assert_eq!(ids(&after(|facts| (facts.host.processors, facts.host.load) = (2, 2.1))), [""; 0]);
}

#[test]
fn what_stops_comes_first_and_notes_come_last() {
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
