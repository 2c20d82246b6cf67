//! The files in `/sys` with which a kernel shows an RDMA device.
//!
//! Written when the program starts, and kept up to date by [`live`](super::live).

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use roxie::host::{DeviceName, GidEntry, GidTable};
use roxie::netdev::{Change, Interface, VlanLink, link_speed};
use roxie::profile::Identity;
use roxie::verbs::LocalGid;
use roxie::wire::{Gid, RoceVersion};

use super::counts::Counts;
use super::tree::{Entries, Entry, Tree};

/// Name of its verbs node.
const NODE: &str = "uverbs0";
/// Name of the connection manager's node.
pub(super) const RDMA_CM: &str = "rdma_cm";
/// ABI version of `librdmacm`'s commands (`RDMA_USER_CM_ABI_VERSION`).
const RDMA_CM_ABI: u32 = 4;
/// Device number of that node: major 10 is `misc`, with the highest minor that Linux assigns dynamically.
const RDMA_CM_DEV: &str = "10:254";
/// Vendor ID of Mellanox.
const MELLANOX: u32 = 0x02c9;
/// Number of GID table entries shown.
const GIDS: usize = 32;

/// A file that opens, and fails with `EINVAL` when it is read, as a kernel's attributes of a GID that is not there: the
/// loopback interface has no speed.
const UNREADABLE: &str = "/sys/class/net/lo/speed";

/// The list of the processors that are on.
const ONLINE: &str = "/sys/devices/system/cpu/online";
/// Processors that a kernel supports at most (`NR_CPUS` of x86-64).
const MOST_CPUS: usize = 8192;

/// A folder below `/sys/class`.
#[derive(Clone, Copy, Debug)]
pub(super) enum Class {
    /// The whole folder belongs to the device.
    Whole(&'static str),
    /// Only this entry of the folder does.
    Part(&'static str, &'static str),
}

impl Class {
    pub(super) fn name(self) -> &'static str {
        match self {
            Class::Whole(name) | Class::Part(name, _) => name,
        }
    }
}

/// The device as files, by their path below `/sys/class`.
pub(super) struct View {
    name: DeviceName,
    /// The interface as last seen.
    pub(super) interface: Interface,
    /// Station address at the start. GUIDs derive from it and do not change.
    station: [u8; 6],
    /// The GIDs, at the indices that programs' devices have.
    gids: GidTable,
    /// The VLAN interfaces on the interface, whose addresses are GIDs too.
    vlans: Vec<VlanLink>,
    /// The adapter that the device says it is.
    identity: Option<Identity>,
}

impl View {
    /// Returns the view of a device on an interface. `roce_v1`: each address is a RoCE v1 GID as well.
    pub(super) fn of(name: DeviceName, interface: &Interface, roce_v1: bool) -> View {
        let mut gids = GidTable::customary(interface.mac, interface.addresses.iter().map(|a| a.ip));
        if roce_v1 {
            gids.add_roce_v1();
        }
        let (station, interface) = (interface.mac, interface.clone());
        View { name, station, gids, interface, vlans: Vec::new(), identity: None }
    }

    /// Has the device say that it is this adapter.
    pub(super) fn with_identity(self, identity: Option<Identity>) -> View {
        View { identity, ..self }
    }

    /// Returns the device's folder below `/sys/class`.
    fn folder(&self) -> String {
        format!("infiniband/{}", self.name)
    }

    /// Returns the folder of its port.
    pub(super) fn port_folder(&self) -> String {
        format!("infiniband/{}/ports/1", self.name)
    }

    /// Applies changes of the VLAN interfaces; `now` is their new state. True if there were some.
    pub(super) fn follow_vlans(&mut self, mut now: Vec<VlanLink>) -> bool {
        // As a device does.
        now.retain(|link| link.up && link.vlan != 0 && link.mac == self.interface.mac);
        let of = |links: &[VlanLink]| -> Vec<LocalGid> {
            let each = |link: &VlanLink| -> Vec<LocalGid> {
                link.addresses.iter().map(|ip| LocalGid::on_vlan(*ip, link.vlan)).collect()
            };
            links.iter().flat_map(each).collect()
        };
        let (before, after) = (of(&self.vlans), of(&now));
        for gone in before.iter().filter(|local| !after.contains(local)) {
            self.gids.remove(*gone);
        }
        for new in after.iter().filter(|local| !before.contains(local)) {
            self.gids.add(*new);
        }
        let changed = self.vlans != now;
        self.vlans = now;
        changed
    }

    /// Returns the name of the interface of a GID.
    fn interface_of(&self, entry: &GidEntry) -> &str {
        let link = self.vlans.iter().find(|link| link.vlan == entry.encapsulation.vlan);
        link.map_or(&self.interface.name, |link| &link.name)
    }

    /// Applies changes of the interface; `now` is its new state. Returns how often the link went down.
    pub(super) fn follow(&mut self, changes: &[Change], now: &Interface) -> u64 {
        self.interface.clone_from(now);
        let mut downs = 0;
        for change in changes {
            match change {
                Change::AddressAdded(address) => drop(self.gids.add(address.ip)),
                Change::AddressRemoved(address) => self.gids.remove(address.ip),
                Change::LinkDown => downs += 1,
                Change::Gone => {
                    downs += u64::from(self.interface.running);
                    (self.interface.up, self.interface.running) = (false, false);
                }
                Change::LinkUp | Change::Mtu(_) | Change::Mac(_) | Change::Renamed(_) => {}
            }
        }
        downs
    }

    /// Returns all files but the counters.
    pub(super) fn entries(&self) -> Entries {
        let mut all = Entries::new();
        let mut file = |path: String, line: String| drop(all.insert(path, Entry::Line(line)));
        self.device(&mut file);
        self.port(&mut file);
        self.node(&mut file);
        self.gids(&mut all);
        self.links(&mut all);
        all
    }

    fn device(&self, file: &mut impl FnMut(String, String)) {
        let [a, b, c, d, e, f] = self.station;
        let guid = format!("{:02x}{b:02x}:{c:02x}ff:fe{d:02x}:{e:02x}{f:02x}", a ^ 2);
        let folder = self.folder();
        let (firmware, board, kind) = match &self.identity {
            None => (env!("CARGO_PKG_VERSION"), "roxie", "roxie".to_owned()),
            Some(Identity { vendor, part, firmware, board }) => {
                // As mlx5 names its types.
                let prefix = if *vendor == MELLANOX { "MT" } else { "" };
                (firmware.as_str(), board.as_str(), format!("{prefix}{part}"))
            }
        };
        for (name, line) in [
            ("node_type", "1: CA"),
            ("node_guid", &guid),
            ("sys_image_guid", &guid),
            ("node_desc", &format!("Roxie on {}", self.interface.name)),
            ("fw_ver", firmware),
            ("hw_rev", "0"),
            ("hca_type", &kind),
            ("board_id", board),
        ] {
            file(format!("{folder}/{name}"), line.to_owned());
        }
    }

    fn node(&self, file: &mut impl FnMut(String, String)) {
        for (path, line) in [
            ("infiniband_verbs/abi_version".to_owned(), "6".to_owned()),
            (format!("infiniband_verbs/{NODE}/ibdev"), self.name.to_string()),
            (format!("infiniband_verbs/{NODE}/abi_version"), "1".to_owned()),
            (format!("infiniband_verbs/{NODE}/dev"), "231:192".to_owned()),
            ("misc/rdma_cm/abi_version".to_owned(), RDMA_CM_ABI.to_string()),
            ("misc/rdma_cm/dev".to_owned(), RDMA_CM_DEV.to_owned()),
        ] {
            file(path, line);
        }
    }

    fn links(&self, all: &mut Entries) {
        let (name, folder) = (&self.interface.name, self.folder());
        let mut put = |path: String, entry: Entry| drop(all.insert(path, entry));
        // If the interface is a device on a bus, so is the RDMA device.
        match fs::canonicalize(format!("/sys/class/net/{name}/device")) {
            Ok(device) => put(format!("{folder}/device"), Entry::Link(device)),
            Err(_) => {
                for (name, line) in
                    [("numa_node", "-1"), ("vendor", "0x0000"), ("device", "0x0000"), ("class", "0x020000")]
                {
                    put(format!("{folder}/device/{name}"), Entry::Line(line.to_owned()));
                }
                // A kernel shows a device without a NUMA node as near to all processors.
                if let Ok(online) = fs::read_to_string(ONLINE)
                    && let Some(mask) = cpu_mask(online.trim_end())
                {
                    let list = online.trim_end().to_owned();
                    put(format!("{folder}/device/local_cpus"), Entry::Line(mask));
                    put(format!("{folder}/device/local_cpulist"), Entry::Line(list));
                }
                let net = PathBuf::from(format!("/sys/class/net/{name}"));
                put(format!("{folder}/device/net/{name}"), Entry::Link(net));
            }
        }
        let device = PathBuf::from(format!("/sys/class/{folder}/device"));
        put(format!("infiniband_verbs/{NODE}/device"), Entry::Link(device));
    }

    fn port(&self, file: &mut impl FnMut(String, String)) {
        let running = self.interface.up && self.interface.running;
        let port = self.port_folder();
        let (state, physical) = if running { ("4: ACTIVE", "5: LinkUp") } else { ("1: DOWN", "3: Disabled") };
        for (name, line) in [
            ("state", state),
            ("phys_state", physical),
            ("link_layer", "Ethernet"),
            ("rate", rate(link_speed(&self.interface.name))),
            ("lid", "0x0"),
            ("lid_mask_count", "0"),
            ("sm_lid", "0x0"),
            ("sm_sl", "0"),
            ("cap_mask", "0x04010000"),
            ("pkeys/0", "0xffff"),
        ] {
            file(format!("{port}/{name}"), line.to_owned());
        }
    }

    /// Adds the GIDs and their attributes. An index without a GID has all of its files as well: programs go through the
    /// whole table, and some, like NCCL, give up at a file that does not open.
    fn gids(&self, all: &mut Entries) {
        let port = self.port_folder();
        for index in 0..GIDS {
            let found = self.gids.iter().find(|entry| entry.index == index);
            let gid = found.map_or(Gid([0; 16]), |entry| entry.gid);
            let kind = found.map(|entry| match entry.encapsulation.version {
                RoceVersion::V1 => "IB/RoCE v1",
                RoceVersion::V2 => "RoCE v2",
            });
            all.insert(format!("{port}/gids/{index}"), Entry::Line(in_words(gid)));
            let interface = found.as_ref().map(|entry| self.interface_of(entry));
            for (name, line) in [("types", kind), ("ndevs", interface)] {
                let entry = line.map_or(Entry::Link(UNREADABLE.into()), |line| Entry::Line(line.to_owned()));
                all.insert(format!("{port}/gid_attrs/{name}/{index}"), entry);
            }
        }
    }

    /// Returns the folders below `/sys/class` with entries of the view. Shared folders keep the kernel's entries.
    pub(super) fn classes() -> [Class; 3] {
        [Class::Whole("infiniband"), Class::Whole("infiniband_verbs"), Class::Part("misc", RDMA_CM)]
    }

    /// Returns the names of character nodes in `/dev/infiniband` that programs open.
    pub(super) fn nodes(&self) -> [&str; 3] {
        // UCX opens the second; other programs open what `ibv_get_device_list` returns as `dev_name`.
        [NODE, self.name.as_str(), RDMA_CM]
    }

    /// Writes the view below `class`, in place of `/sys/class`, with all counters 0.
    pub(super) fn write(&self, class: &Path) -> io::Result<()> {
        let mut entries = self.entries();
        entries.extend(Counts::default().entries(&self.port_folder()));
        Tree::of(class, Entries::new()).update(&entries)
    }
}

/// Returns the text for a link's rate, given in Mb/s: the next InfiniBand rate, as `ibv_query_port` reports.
fn rate(mbps: Option<u32>) -> &'static str {
    match mbps {
        Some(..=4_999) => "2.5 Gb/sec (1X SDR)",
        None | Some(..=19_999) => "10 Gb/sec (1X QDR)",
        Some(..=39_999) => "25 Gb/sec (1X EDR)",
        Some(..=79_999) => "40 Gb/sec (4X QDR)",
        Some(..=149_999) => "100 Gb/sec (4X EDR)",
        Some(_) => "200 Gb/sec (4X HDR)",
    }
}

/// Converts a list of processors, such as `0-3,8`, to a mask as sysfs writes it: words of 32 bits in hex, the highest
/// first. Returns `None` if the text is not such a list.
fn cpu_mask(list: &str) -> Option<String> {
    let mut words = vec![0u32];
    for range in list.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (first.parse::<usize>().ok()?, last.parse::<usize>().ok()?);
        if first > last || last >= MOST_CPUS {
            return None;
        }
        words.resize(words.len().max(last / 32 + 1), 0);
        for cpu in first..=last {
            words[cpu / 32] |= 1 << (cpu % 32);
        }
    }
    let mut written: Vec<_> = words.iter().rev().map(|word| format!("{word:08x}")).collect();
    // A kernel pads the highest word to the number of possible processors, and readers accept it without zeros.
    written[0] = format!("{:x}", words[words.len() - 1]);
    Some(written.join(","))
}

/// Formats a GID as sysfs does: eight groups of four hex digits.
fn in_words(gid: Gid) -> String {
    let words: Vec<String> = gid.0.chunks(2).map(|pair| format!("{:02x}{:02x}", pair[0], pair[1])).collect();
    words.join(":")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a line of the port, or "none" if the file cannot be read.
    fn line(view: &View, path: &str) -> String {
        match view.entries().get(&format!("{}/{path}", view.port_folder())) {
            Some(Entry::Line(line)) => line.clone(),
            Some(Entry::Link(link)) if link == Path::new(UNREADABLE) => "none".into(),
            other => format!("{other:?}"),
        }
    }

    fn interface() -> Interface {
        Interface {
            index: 7,
            name: "eth9".into(),
            mac: [2, 0, 0, 0x11, 0x22, 0x33],
            mtu: 1500,
            up: true,
            running: true,
            driver: "veth".into(),
            rx_queues: 1,
            addresses: vec!["192.0.2.1/24".parse().unwrap()],
            xdp_program: None,
        }
    }

    #[test]
    fn state_and_gids_follow_changes() {
        let mut view = View::of(DeviceName::default(), &interface(), false);
        let address = "192.0.2.9/24".parse().unwrap();
        let down = Interface { running: false, name: "eth10".into(), ..interface() };
        let changes = [
            Change::Renamed("eth10".into()),
            Change::LinkDown,
            Change::AddressAdded(address),
            Change::Mtu(4200),
        ];
        assert_eq!(view.follow(&changes, &down), 1);
        assert_eq!(
            (line(&view, "state"), line(&view, "phys_state")),
            ("1: DOWN".into(), "3: Disabled".into())
        );
        assert_eq!(line(&view, "gids/2"), "0000:0000:0000:0000:0000:ffff:c000:0209");
        assert_eq!(line(&view, "gid_attrs/ndevs/2"), "eth10");
        assert_eq!(view.follow(&[Change::LinkUp, Change::AddressRemoved(address)], &interface()), 0);
        assert_eq!(
            (line(&view, "state"), line(&view, "gid_attrs/types/2")),
            ("4: ACTIVE".into(), "none".into())
        );
        assert_eq!(view.follow(&[Change::Gone], &interface()), 1);
        assert_eq!(line(&view, "state"), "1: DOWN");
    }

    #[test]
    fn vlan_and_roce_v1_gids_have_their_types() {
        let mut view = View::of(DeviceName::default(), &interface(), true);
        let attributes = |view: &View, index: usize| {
            let of = |kind: &str| line(view, &format!("gid_attrs/{kind}/{index}"));
            (of("types"), of("ndevs"))
        };
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(attributes(&view, 1), pair("RoCE v2", "eth9"));
        assert_eq!(attributes(&view, 2), pair("IB/RoCE v1", "eth9"));
        let link = VlanLink {
            index: 9,
            name: "eth9.5".into(),
            vlan: 5,
            mac: interface().mac,
            up: true,
            addresses: vec!["198.51.100.1".parse().unwrap()],
        };
        let foreign = VlanLink { mac: [4; 6], vlan: 6, ..link.clone() };
        assert!(view.follow_vlans(vec![link.clone(), foreign]));
        assert!(!view.follow_vlans(vec![link]), "nothing has changed");
        assert_eq!(attributes(&view, 3), pair("RoCE v2", "eth9.5"));
        assert_eq!(attributes(&view, 4), pair("IB/RoCE v1", "eth9.5"));
        assert_eq!(attributes(&view, 5), pair("none", "none"));
        assert!(view.follow_vlans(Vec::new()));
        assert_eq!(attributes(&view, 3), pair("none", "none"));
    }

    #[test]
    fn rate_follows_link_speed() {
        let rates = [None, Some(1_000), Some(10_000), Some(25_000), Some(100_000), Some(400_000)].map(rate);
        let wanted =
            ["10 Gb/sec (1X QDR)", "2.5 Gb/sec (1X SDR)", "10 Gb/sec (1X QDR)", "25 Gb/sec (1X EDR)"];
        assert_eq!(rates[..4], wanted);
        assert_eq!(rates[4..], ["100 Gb/sec (4X EDR)", "200 Gb/sec (4X HDR)"]);
    }

    #[test]
    fn processors_are_a_mask_of_words() {
        let masks = ["0", "0-1", "0-3,8", "0-31", "0-32,63", "64"].map(|list| cpu_mask(list).unwrap());
        assert_eq!(masks, ["1", "3", "10f", "ffffffff", "80000001,ffffffff", "1,00000000,00000000"]);
        for wrong in ["", "a", "1-", "3-1", "0-8192", "0,,1"] {
            assert_eq!(cpu_mask(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn files_describe_the_interface() {
        let interface = interface();
        let folder = tempfile::tempdir().unwrap();
        View::of("mlx5_0".parse().unwrap(), &interface, false).write(folder.path()).unwrap();
        let read = |path: &str| fs::read_to_string(folder.path().join(path)).unwrap();
        assert_eq!(read("infiniband/mlx5_0/node_guid"), "0000:00ff:fe11:2233\n");
        let port = |path: &str| read(&format!("infiniband/mlx5_0/ports/1/{path}"));
        assert_eq!(port("gids/0"), "fe80:0000:0000:0000:0000:00ff:fe11:2233\n");
        assert_eq!(port("gids/2"), "0000:0000:0000:0000:0000:0000:0000:0000\n");
        assert_eq!(port("gids/1"), "0000:0000:0000:0000:0000:ffff:c000:0201\n");
        assert_eq!(
            (port("gid_attrs/types/1"), port("gid_attrs/ndevs/1")),
            ("RoCE v2\n".into(), "eth9\n".into())
        );
        assert_eq!((port("state"), port("pkeys/0")), ("4: ACTIVE\n".into(), "0xffff\n".into()));
        for (attribute, index) in [("types", 2), ("ndevs", 2), ("types", GIDS - 1)] {
            let path = format!("infiniband/mlx5_0/ports/1/gid_attrs/{attribute}/{index}");
            let error = fs::read(folder.path().join(&path)).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EINVAL), "{path}: {error}");
        }
        assert!(fs::symlink_metadata(folder.path().join("infiniband/mlx5_0/device/net/eth9")).is_ok());
        assert_eq!(read("infiniband/mlx5_0/device/local_cpulist"), fs::read_to_string(ONLINE).unwrap());
        assert_eq!(read("infiniband/mlx5_0/device/numa_node"), "-1\n");
        assert_eq!(read("infiniband_verbs/uverbs0/ibdev"), "mlx5_0\n");
        assert_eq!(read("misc/rdma_cm/abi_version"), "4\n");
    }
}
