//! What a kernel with an RDMA device would show of it in `/sys`, as files.
//!
//! Written once, when the program starts: addresses that come later are known to `ibv_query_gid`, not to these files.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use roxie::host::GidTable;
use roxie::netdev::Interface;
use roxie::wire::Gid;

/// Its name.
const DEVICE: &str = "roxie0";
/// The name of its node.
const NODE: &str = "uverbs0";
/// The node of the connection manager.
pub(super) const RDMA_CM: &str = "rdma_cm";
/// Version of what `librdmacm` writes to its node (`RDMA_USER_CM_ABI_VERSION`).
const RDMA_CM_ABI: u32 = 4;
/// Its number: `misc` has 10, and the last minor that Linux gives away by itself.
const RDMA_CM_DEV: &str = "10:254";
/// Entries of the GID table that are shown.
const GIDS: usize = 32;

/// A folder below `/sys/class`.
#[derive(Clone, Copy, Debug)]
pub(super) enum Class {
    /// All that is in it is the device's.
    Whole(&'static str),
    /// One entry of it is.
    Part(&'static str, &'static str),
}

impl Class {
    pub(super) fn name(self) -> &'static str {
        match self {
            Class::Whole(name) | Class::Part(name, _) => name,
        }
    }
}

/// The device as files.
pub(super) struct View {
    /// Path below `/sys/class`, content.
    files: Vec<(String, String)>,
    /// Path below `/sys/class`, where it leads.
    links: Vec<(String, PathBuf)>,
}

impl View {
    /// Of the device on an interface.
    pub(super) fn of(interface: &Interface) -> View {
        let mut view = View { files: Vec::new(), links: Vec::new() };
        view.device(interface);
        view.port(interface);
        view.node();
        view
    }

    fn file(&mut self, path: String, content: impl ToString) {
        self.files.push((path, content.to_string()));
    }

    fn device(&mut self, interface: &Interface) {
        let [a, b, c, d, e, f] = interface.mac;
        let guid = format!("{:02x}{b:02x}:{c:02x}ff:fe{d:02x}:{e:02x}{f:02x}", a ^ 2);
        let base = format!("infiniband/{DEVICE}");
        let version = env!("CARGO_PKG_VERSION");
        for (name, content) in [
            ("node_type", "1: CA"),
            ("node_guid", &guid),
            ("sys_image_guid", &guid),
            ("node_desc", &format!("Roxie on {}", interface.name)),
            ("fw_ver", version),
            ("hw_rev", "0"),
            ("hca_type", "roxie"),
            ("board_id", "roxie"),
        ] {
            self.file(format!("{base}/{name}"), content);
        }
        // Where the interface is a device of a bus, the RDMA device is on the same one.
        match fs::canonicalize(format!("/sys/class/net/{}/device", interface.name)) {
            Ok(device) => self.links.push((format!("{base}/device"), device)),
            Err(_) => {
                for (name, content) in
                    [("numa_node", "-1"), ("vendor", "0x0000"), ("device", "0x0000"), ("class", "0x020000")]
                {
                    self.file(format!("{base}/device/{name}"), content);
                }
                let name = &interface.name;
                let net = PathBuf::from(format!("/sys/class/net/{name}"));
                self.links.push((format!("{base}/device/net/{name}"), net));
            }
        }
    }

    fn port(&mut self, interface: &Interface) {
        let base = format!("infiniband/{DEVICE}/ports/1");
        let running = interface.up && interface.running;
        let (state, physical) = if running { ("4: ACTIVE", "5: LinkUp") } else { ("1: DOWN", "3: Disabled") };
        for (name, content) in [
            ("state", state),
            ("phys_state", physical),
            ("link_layer", "Ethernet"),
            ("rate", "10 Gb/sec (1X QDR)"),
            ("lid", "0x0"),
            ("lid_mask_count", "0"),
            ("sm_lid", "0x0"),
            ("sm_sl", "0"),
            ("cap_mask", "0x04010000"),
            ("pkeys/0", "0xffff"),
        ] {
            self.file(format!("{base}/{name}"), content);
        }
        let table = GidTable::customary(interface.mac, interface.addresses.iter().map(|a| a.ip));
        for index in 0..GIDS {
            let gid = table.iter().find(|entry| entry.index == index).map(|entry| entry.gid);
            self.file(format!("{base}/gids/{index}"), in_words(gid.unwrap_or(Gid([0; 16]))));
            if gid.is_some() {
                self.file(format!("{base}/gid_attrs/types/{index}"), "RoCE v2");
                self.file(format!("{base}/gid_attrs/ndevs/{index}"), &interface.name);
            }
        }
    }

    fn node(&mut self) {
        self.file("infiniband_verbs/abi_version".into(), "6");
        for (name, content) in [("ibdev", DEVICE), ("abi_version", "1"), ("dev", "231:192")] {
            self.file(format!("infiniband_verbs/{NODE}/{name}"), content);
        }
        let device = PathBuf::from(format!("/sys/class/infiniband/{DEVICE}/device"));
        self.links.push((format!("infiniband_verbs/{NODE}/device"), device));
        self.file("misc/rdma_cm/abi_version".into(), RDMA_CM_ABI);
        self.file("misc/rdma_cm/dev".into(), RDMA_CM_DEV);
    }

    /// The folders below `/sys/class` that it fills. Others may have entries of the kernel's, which stay.
    pub(super) fn classes() -> [Class; 3] {
        [Class::Whole("infiniband"), Class::Whole("infiniband_verbs"), Class::Part("misc", RDMA_CM)]
    }

    /// Names of character nodes in `/dev/infiniband` that programs look for.
    pub(super) fn nodes() -> [&'static str; 3] {
        // UCX looks for the second, others for what `ibv_get_device_list` calls `dev_name`.
        [NODE, DEVICE, RDMA_CM]
    }

    /// Writes it below `class`, which stands for `/sys/class`.
    pub(super) fn write(&self, class: &Path) -> io::Result<()> {
        let place = |path: &String| -> io::Result<PathBuf> {
            let full = class.join(path);
            fs::create_dir_all(full.parent().unwrap_or(class))?;
            Ok(full)
        };
        for (path, content) in &self.files {
            fs::write(place(path)?, format!("{content}\n"))?;
        }
        for (path, target) in &self.links {
            symlink(target, place(path)?)?;
        }
        Ok(())
    }
}

/// Eight words of four digits, as sysfs has it.
fn in_words(gid: Gid) -> String {
    let words: Vec<String> = gid.0.chunks(2).map(|pair| format!("{:02x}{:02x}", pair[0], pair[1])).collect();
    words.join(":")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_that_programs_read_are_there_and_say_what_the_interface_has() {
        let interface = Interface {
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
        };
        let folder = tempfile::tempdir().unwrap();
        View::of(&interface).write(folder.path()).unwrap();
        let read = |path: &str| fs::read_to_string(folder.path().join(path)).unwrap();
        assert_eq!(read("infiniband/roxie0/node_guid"), "0000:00ff:fe11:2233\n");
        let port = |path: &str| read(&format!("infiniband/roxie0/ports/1/{path}"));
        assert_eq!(port("gids/0"), "fe80:0000:0000:0000:0000:00ff:fe11:2233\n");
        assert_eq!(port("gids/2"), "0000:0000:0000:0000:0000:0000:0000:0000\n");
        assert_eq!(port("gids/1"), "0000:0000:0000:0000:0000:ffff:c000:0201\n");
        assert_eq!(
            (port("gid_attrs/types/1"), port("gid_attrs/ndevs/1")),
            ("RoCE v2\n".into(), "eth9\n".into())
        );
        assert_eq!((port("state"), port("pkeys/0")), ("4: ACTIVE\n".into(), "0xffff\n".into()));
        assert!(!folder.path().join("infiniband/roxie0/ports/1/gid_attrs/types/2").exists());
        assert!(fs::symlink_metadata(folder.path().join("infiniband/roxie0/device/net/eth9")).is_ok());
        assert_eq!(read("infiniband_verbs/uverbs0/ibdev"), "roxie0\n");
        assert_eq!(read("misc/rdma_cm/abi_version"), "4\n");
    }
}
