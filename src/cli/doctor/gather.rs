//! Reads facts from the system. Judges and changes nothing.

use std::fs;
use std::net::{Ipv4Addr, UdpSocket};
use std::path::Path;
use std::thread::available_parallelism;

use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use roxie::netdev::{Bond, Interface, Vlans, ethtool};
use roxie::port::group;
use roxie::port::xdp::program_holders;
use roxie::wire::ROCE_V2_PORT;
use roxie_options::interface::{Without, usable_interface};
use roxie_report::failure::Failure;

use super::facts::{Crc, Facts, Host, Nic, Others, RdmaDevice, Vlan};
use crate::run::Library;
use crate::run::hint::Environment;
use crate::show::{packet_obstacle, xdp_obstacles};

/// `CAP_SYS_ADMIN`, `CAP_IPC_LOCK`, `CAP_SYS_RESOURCE` (`capabilities(7)`).
const SYS_ADMIN: u64 = 1 << 21;
const IPC_LOCK: u64 = 1 << 14;
const SYS_RESOURCE: u64 = 1 << 24;

/// Reads the facts of the named interface, in whatever state, or of the one that other commands would choose.
///
/// # Errors
///
/// If there is no interface, or several candidates and no name.
pub(super) fn facts(dev: Option<&str>) -> Result<Facts, Failure> {
    let interface = match dev {
        Some(name) => Interface::by_name(name).map_err(|e| Failure::Device(e.to_string()))?,
        None => usable_interface(None, Without::Nothing)?,
    };
    Ok(Facts { host: host(), others: others(&interface), nic: nic(interface) })
}

fn host() -> Host {
    let status = read("/proc/self/status");
    let capabilities =
        field(&status, "CapEff:").and_then(|text| u64::from_str_radix(text, 16).ok()).unwrap_or(0);
    let processor = read("/proc/cpuinfo");
    Host {
        kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
        surroundings: Environment::of_this_process(),
        library: Library::find()
            .map(|library| library.path().display().to_string())
            .map_err(|failure| failure.to_string()),
        filtered: field(&status, "Seccomp:") == Some("2"),
        may_mount: capabilities & SYS_ADMIN != 0 || user_namespaces(read),
        locked_memory: locked_memory(capabilities),
        huge_pages: huge_pages(&read("/proc/meminfo")),
        processors: available_parallelism().map_or(1, usize::from),
        load: load(&read("/proc/loadavg")),
        virtual_machine: has_flag(&processor, "hypervisor"),
        crc: crc(&processor),
    }
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// Returns the first word after a label at the start of a line.
fn field<'a>(text: &'a str, label: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(label))?.split_whitespace().next()
}

/// True if an unprivileged process may make a user namespace with mounts in it. A sysctl that the kernel does not have
/// is no obstacle.
fn user_namespaces(read: impl Fn(&str) -> String) -> bool {
    let is = |path: &str, value: &str| read(path).trim() == value;
    !is("/proc/sys/user/max_user_namespaces", "0")
        && !is("/proc/sys/kernel/unprivileged_userns_clone", "0")
        && !is("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1")
}

fn locked_memory(capabilities: u64) -> Option<u64> {
    let limit = getrlimit(Resource::RLIMIT_MEMLOCK).map_or(RLIM_INFINITY, |(_, hard)| hard);
    (capabilities & (IPC_LOCK | SYS_RESOURCE) == 0 && limit != RLIM_INFINITY).then_some(limit)
}

/// Returns the number of huge pages, and their size in KiB.
fn huge_pages(meminfo: &str) -> (u64, u64) {
    let number = |label| field(meminfo, label).and_then(|text| text.parse().ok()).unwrap_or(0);
    (number("HugePages_Total:"), number("Hugepagesize:"))
}

/// Returns the average over the last minute, the first field; 0 if the kernel does not report it.
fn load(loadavg: &str) -> f64 {
    loadavg.split_whitespace().next().and_then(|field| field.parse().ok()).unwrap_or(0.0)
}

/// True if `/proc/cpuinfo` lists the flag, in the line `flags` (x86) or `Features` (aarch64).
fn has_flag(cpuinfo: &str, flag: &str) -> bool {
    let flags = cpuinfo.lines().find(|line| line.starts_with("flags") || line.starts_with("Features"));
    flags.is_some_and(|line| line.split_whitespace().any(|word| word == flag))
}

/// Returns what the CRC crate chooses for the same flags.
fn crc(cpuinfo: &str) -> Crc {
    let all = |flags: &[&str]| flags.iter().all(|flag| has_flag(cpuinfo, flag));
    // `pni` is SSE3; SSE2 is always present on x86-64.
    match () {
        () if all(&["pclmulqdq", "ssse3", "sse4_1", "vpclmulqdq"])
            && (all(&["avx2"]) || all(&["avx512f"])) =>
        {
            Crc::Wide
        }
        () if all(&["pclmulqdq", "ssse3", "sse4_1"]) || all(&["crc32"]) => Crc::Fast,
        () => Crc::Tables,
    }
}

fn nic(interface: Interface) -> Nic {
    let index = interface.index;
    let vlans = Vlans::on(index).and_then(|mut vlans| vlans.links()).unwrap_or_default();
    let vlans = vlans.into_iter().map(|link| Vlan { shares_mac: link.mac == interface.mac, name: link.name });
    Nic {
        vlans: vlans.collect(),
        bond: Bond::of(index).ok().flatten().map(|bond| bond.mode),
        mac: interface.mac.map(|byte| format!("{byte:02x}")).join(":"),
        packet_obstacle: packet_obstacle(),
        xdp_obstacles: if interface.name == "lo" { Vec::new() } else { xdp_obstacles(&interface) },
        rx_ring: ethtool::rx_ring(index).ok(),
        offloads: ethtool::offloads(index).unwrap_or_default(),
        xdp: ethtool::xdp_features(index).ok(),
        addresses: interface.addresses.iter().map(|address| address.ip).collect(),
        name: interface.name,
        driver: interface.driver,
        up: interface.up,
        running: interface.running,
        mtu: interface.mtu,
        rx_queues: interface.rx_queues,
    }
}

fn others(interface: &Interface) -> Others {
    Others {
        xdp_program: interface.xdp_program.map(|id| (id, program_holders(id))),
        port_taken: port_taken(),
        rdma_devices: rdma_devices(Path::new("/sys/class/infiniband"), &interface.name),
        rxe_loaded: Path::new("/sys/module/rdma_rxe").exists(),
    }
}

/// True if a process outside of Roxie's groups holds UDP port 4791 in this network namespace. Binds a socket for a
/// moment; sends nothing.
fn port_taken() -> bool {
    if group::all(ROCE_V2_PORT).is_ok_and(|groups| !groups.is_empty()) {
        return false;
    }
    let bound = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, ROCE_V2_PORT));
    bound.is_err_and(|e| e.kind() == std::io::ErrorKind::AddrInUse)
}

/// Returns the RDMA devices that have a GID of the interface. A device in software has no `device` link.
fn rdma_devices(class: &Path, interface: &str) -> Vec<RdmaDevice> {
    let entries = fs::read_dir(class).into_iter().flatten().flatten();
    let on_it = |device: &Path| {
        let tables = fs::read_dir(device.join("ports")).into_iter().flatten().flatten();
        let names = tables.flat_map(|port| {
            fs::read_dir(port.path().join("gid_attrs/ndevs")).into_iter().flatten().flatten()
        });
        // Entries without a GID cannot be read.
        let mut read = names.filter_map(|entry| fs::read_to_string(entry.path()).ok());
        read.any(|name| name.trim() == interface)
    };
    let found = entries.filter(|entry| on_it(&entry.path())).map(|entry| RdmaDevice {
        name: entry.file_name().to_string_lossy().into_owned(),
        software: !entry.path().join("device").exists(),
    });
    let mut all: Vec<RdmaDevice> = found.collect();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc_is_best_with_all_flags() {
        let of = |flags: &str| crc(&format!("processor\t: 0\nflags\t\t: fpu {flags}\n"));
        assert_eq!(of("pni ssse3 sse4_1 pclmulqdq avx2 vpclmulqdq"), Crc::Wide);
        assert_eq!(of("ssse3 sse4_1 pclmulqdq vpclmulqdq"), Crc::Fast, "without vectors that are wide");
        assert_eq!(of("ssse3 pclmulqdq"), Crc::Tables);
        assert_eq!(crc("Features\t: fp asimd crc32\n"), Crc::Fast);
        assert_eq!(crc(""), Crc::Tables);
    }

    #[test]
    fn user_namespace_sysctls_are_honoured() {
        let with = |path: &'static str, value: &'static str| {
            user_namespaces(|asked| if asked.ends_with(path) { format!("{value}\n") } else { String::new() })
        };
        assert!(with("nothing", "0"));
        assert!(!with("max_user_namespaces", "0") && with("max_user_namespaces", "7"));
        assert!(!with("unprivileged_userns_clone", "0") && with("unprivileged_userns_clone", "1"));
        assert!(!with("restrict_unprivileged_userns", "1") && with("restrict_unprivileged_userns", "0"));
    }

    #[test]
    fn huge_pages_are_counted() {
        let meminfo =
            "MemTotal: 1 kB\nHugePages_Total:      12\nHugePages_Free:  3\nHugepagesize:       2048 kB\n";
        assert_eq!(huge_pages(meminfo), (12, 2048));
        assert_eq!(huge_pages(""), (0, 0));
    }

    #[test]
    fn rdma_device_is_found_by_gid_interface() {
        let class = tempfile::tempdir().unwrap();
        for (device, interface, hardware) in
            [("rxe0", "eth0", false), ("mlx5_0", "eth0", true), ("mlx5_1", "eth1", true)]
        {
            let table = class.path().join(device).join("ports/1/gid_attrs/ndevs");
            fs::create_dir_all(&table).unwrap();
            fs::write(table.join("0"), format!("{interface}\n")).unwrap();
            if hardware {
                fs::create_dir(class.path().join(device).join("device")).unwrap();
            }
        }
        let found = rdma_devices(class.path(), "eth0");
        let named = |name: &str, software| RdmaDevice { name: name.to_owned(), software };
        assert_eq!(found, [named("mlx5_0", false), named("rxe0", true)]);
        assert_eq!(rdma_devices(&class.path().join("none"), "eth0"), []);
    }
}
