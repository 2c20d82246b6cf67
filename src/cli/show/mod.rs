//! `roxie show`: the properties of a device, open or not, and the objects of all processes' devices.
//!
//! A device lives in the process that opened it. `device` and `gids` query the kernel and open nothing. The other
//! commands query the devices themselves ([`roxie::host::inspect`]).

pub(crate) mod objects;
mod processes;

use std::fs;
use std::net::IpAddr;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use nix::sys::resource::{Resource, getrlimit};
use roxie::host::GidEntry;
use roxie::netdev::{Interface, interface_names};
use roxie::port::packet;
use roxie::port::xdp::{self, XdpConfig, XdpError, program_holders, why_no_map};
use roxie::verbs::Mtu;
use roxie::wire::RoceVersion;
use roxie_options::{DeviceOptions, PortKind, first_gid, no_gid};
use roxie_report::failure::{EXIT_CODES, Failure};
use roxie_report::formats;
use roxie_report::output;
use serde_json::{Value, json};

use objects::ProcessFilter;

/// Print a device's properties, addresses, queue pairs and counters.
#[derive(Debug, Args)]
#[command(
    long_about = "Prints the properties of a device, and the objects of all processes' devices. `device` and `gids` \
        query the kernel and open nothing, unless --open is given. The other commands query the devices of this \
        network namespace that the user may see: those of their own processes, or all for root.",
    after_help = EXIT_CODES
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    what: What,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Show interfaces: driver, MTU and path MTU, obstacles to AF_XDP, and processes that hold them
    Device {
        /// Open the device, to see which mode it gets
        #[arg(long)]
        open: bool,
        #[command(flatten)]
        options: DeviceOptions,
    },
    /// Show the GIDs of a device on the interface, with their indices
    #[command(
        long_about = "Prints the GIDs of a device on the interface. Option -g of other commands, and of programs on a \
            RoCE device, selects one by its index.\n\nA GID is an IP address in 16 bytes: IPv6 unchanged, IPv4 as \
            ::ffff:a.b.c.d. Both ends of a connection must use the same family, and need a route to each other. The \
            third column says how far an address reaches, and why it has its index: 0 is the link-local address (empty \
            if there is none), 1 the first IPv4 address, as on hardware adapters; programs under `roxie run` see the \
            same indices. The marked GID is used unless -g selects another. Nothing is opened, so no privilege is \
            needed.\n\n--json prints an object with the array gids: objects with the keys index, gid, \
            address, reach, place and chosen.",
        after_help = format!(
            "Examples:\n  roxie show gids                    the only interface with an address\n  roxie show gids \
             --dev eth0 --json  for scripts\n  roxie pingpong rc --dev eth0 -g 1  uses the GID at index 1\n\n{EXIT_CODES}"
        )
    )]
    Gids(DeviceOptions),
    /// Show the processes that have a device, and how they share the interface
    #[command(
        long_about = "Prints the processes with a device in this network namespace: the interface and the port that \
            moves frames, the numbers of queue pairs and memory regions, and where each listens for connections \
            (rdma_cm). Processes of one user can share an interface over UDP sockets: the upper 8 bits of a QPN then \
            name the process. A question mark stands for a value that the process did not report, because it is \
            stopped or about to end.\n\nNothing is opened.\n\nA second table has the accounts of the processes that \
            `roxie nic` serves: use and limit of each resource, of the process and of all processes of its user. Only \
            the NIC's user and root see it.\n\n--json prints an object with the array processes: \
            objects with the keys pid, uid, name, \
            interface, port, mode, slot (null: not shared), units (of QPNs), ports, services, qps, mrs, cm_ids and \
            account (by the names of `roxie nic`'s options: used, limit, user_used, user_limit).",
        after_help = format!("Examples:\n  roxie show processes\n  roxie show processes --json | jq '.processes[].pid'\n\n{EXIT_CODES}")
    )]
    Processes,
    /// Show the queue pairs of all processes
    #[command(
        long_about = "Prints the queue pairs of all processes' devices: QPN, service, state, connected peer, path MTU \
            in bytes, next PSN to send, next PSN expected, and the rate limit of congestion control or of the \
            program. `RC selective` has selective repeat.\n\n--json prints an object with the array qps: \
            objects with the keys pid, uid, name, device, qpn, type, state, \
            dest_qpn, remote, path_mtu, sq_psn, rq_psn, rate_mbps and selective_repeat.",
        after_help = format!("Examples:\n  roxie show qps\n  roxie show qps --json | jq '.qps[] | select(.state == \"ERR\")'\n\n{EXIT_CODES}")
    )]
    Qps(ProcessFilter),
    /// Show the memory regions and windows of all processes
    #[command(
        long_about = "Prints the memory regions and windows of all processes' devices: key, protection domain, address \
            of the first byte as peers use it, length, and access rights.\n\n--json prints an object with the \
            array mrs: objects with the keys pid, uid, name, device, kind, key, pd, start, length and access.",
        after_help = format!("Examples:\n  roxie show mrs\n  roxie show mrs --pid 4242 --json | jq '[.mrs[].length] | add'\n\n{EXIT_CODES}")
    )]
    Mrs(ProcessFilter),
    /// Show the connection identifiers (rdma_cm) of all processes
    #[command(
        name = "cm_ids", alias = "cm-ids",
        long_about = "Prints the rdma_cm identifiers of all processes: listeners with their addresses, connections \
            with both ends. States and port spaces have the names that `rdma resource show cm_id` uses.\n\n--json \
            prints an object with the array cm_ids: objects with the keys pid, uid, name, device, id, ps, state, src, dst and qpn.",
        after_help = format!("Examples:\n  roxie show cm_ids\n  roxie show cm_ids --json | jq -r '.cm_ids[] | select(.state == \"LISTEN\").src'\n\n{EXIT_CODES}")
    )]
    CmIds(ProcessFilter),
    /// Show the counters of all processes
    #[command(
        long_about = "Prints the counters of all processes' devices under their mlx5 and rxe names: those that are not \
            0, or all with --all. A port's counters start when its device claims the interface.\n\n--open opens a \
            device and shows its counters instead, to list the counters that a port has.\n\n--json prints an object with \
            the array devices: objects with the keys pid, uid, name, device, interface, port and counters; with --open, an \
            object with the object counters.",
        after_help = format!("Examples:\n  roxie show counters\n  watch -d roxie show counters --pid 4242\n  \
            roxie show counters --open --port udp\n\n{EXIT_CODES}")
    )]
    Counters {
        #[command(flatten)]
        filter: ProcessFilter,
        /// Also show counters that are 0
        #[arg(long)]
        all: bool,
        /// Open a device, and show its counters instead
        #[arg(long, conflicts_with_all = ["pid", "all"])]
        open: bool,
        #[command(flatten)]
        options: DeviceOptions,
    },
}

/// Runs the command.
pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    let shown = match &arguments.what {
        What::Device { open, options } => devices(options, *open, arguments.json),
        What::Gids(options) => gids(options, arguments.json),
        What::Processes => processes::show(arguments.json),
        What::Qps(filter) => objects::qps(filter, arguments.json),
        What::Mrs(filter) => objects::mrs(filter, arguments.json),
        What::CmIds(filter) => objects::cm_ids(filter, arguments.json),
        What::Counters { open: true, options, .. } => counters(options, arguments.json),
        What::Counters { filter, all, .. } => objects::counters(filter, *all, arguments.json),
    };
    match shown {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report("show"),
    }
}

fn devices(options: &DeviceOptions, open: bool, json: bool) -> Result<(), Failure> {
    options.check()?;
    if open || options.port == Some(PortKind::Memory) {
        return opened(options, json);
    }
    let interfaces = match &options.dev {
        Some(name) => vec![Interface::by_name(name).map_err(|e| Failure::Device(e.to_string()))?],
        None => interface_names().iter().filter_map(|name| Interface::by_name(name).ok()).collect(),
    };
    if interfaces.is_empty() {
        return Err(Failure::Device("there is no Ethernet interface in this network namespace".into()));
    }
    if json {
        let all: Vec<Value> = interfaces.iter().map(|i| interface_json(i, &xdp_obstacles(i))).collect();
        formats::print(formats::SHOW, json!({ "interfaces": all }))
    } else {
        interfaces.iter().try_for_each(|i| print_interface(i, &xdp_obstacles(i)))
    }
}

fn opened(options: &DeviceOptions, json: bool) -> Result<(), Failure> {
    let device = options.open()?.device;
    let (info, largest) = (device.port(), device.largest_mtu().bytes());
    let mac = mac_text(info.mac);
    if json {
        let object = json!({ "port": info.name, "interface": info.interface, "mode": info.mode, "mac": mac,
                             "mtu": info.mtu, "path_mtu": largest, "max_frame": info.max_frame });
        return formats::print(formats::SHOW, object);
    }
    let on = info.interface.as_deref().unwrap_or("no interface");
    output::line(format_args!("{} on {on}", info.name))?;
    output::line(format_args!("  mode       {}", info.mode))?;
    output::line(format_args!("  address    {mac}"))?;
    output::line(format_args!(
        "  MTU        {} bytes: path MTU {largest}, frames up to {} bytes",
        info.mtu, info.max_frame
    ))
}

fn print_interface(interface: &Interface, obstacles: &[String]) -> Result<(), Failure> {
    let state = match (interface.up, interface.running) {
        (true, true) => "up",
        (true, false) => "up, no carrier",
        _ => "down",
    };
    let addresses: Vec<String> = interface.addresses.iter().map(ToString::to_string).collect();
    let addresses =
        if addresses.is_empty() { "none: no device can be opened".into() } else { addresses.join(", ") };
    let mac = mac_text(interface.mac);
    output::line(format_args!("{}: {state}, driver {}, {mac}", interface.name, interface.driver))?;
    output::line(format_args!("  MTU        {}", mtu_text(interface.mtu)))?;
    output::line(format_args!("  addresses  {addresses}"))?;
    output::line(format_args!("  queues     {}", interface.rx_queues))?;
    let xdp = match obstacles {
        [] => "kernel and capabilities allow it; the mode shows when it is opened (--open)".to_owned(),
        some => format!("no: {}; the udp port works", some.join("; ")),
    };
    output::line(format_args!("  AF_XDP     {xdp}"))?;
    let packet = packet_obstacle().map_or_else(|| "allowed".to_owned(), |why| format!("no: {why}"));
    output::line(format_args!("  packet     {packet}"))?;
    if let Some(id) = interface.xdp_program {
        let holders = holders_text(id);
        output::line(format_args!("  claimed    XDP program {id} is attached, held by {holders}"))?;
    }
    Ok(())
}

fn interface_json(interface: &Interface, obstacles: &[String]) -> Value {
    let addresses: Vec<String> = interface.addresses.iter().map(ToString::to_string).collect();
    json!({
        "interface": interface.name, "driver": interface.driver, "mac": mac_text(interface.mac),
        "up": interface.up, "running": interface.running, "mtu": interface.mtu,
        "path_mtu": Mtu::largest_for_link(interface.mtu).map(Mtu::bytes), "rx_queues": interface.rx_queues,
        "addresses": addresses, "xdp_obstacles": obstacles,
        "packet_obstacle": packet_obstacle(), "xdp_program": interface.xdp_program,
        "xdp_holders": interface.xdp_program.map(program_holders),
    })
}

fn mtu_text(mtu: usize) -> String {
    match Mtu::largest_for_link(mtu) {
        None => format!("{mtu} bytes: too small, the smallest path MTU, 256, needs {}", 256 + Mtu::OVERHEAD),
        Some(path) => {
            let next = Mtu::ALL.into_iter().find(|m| *m > path);
            let hint = next
                .map_or(String::new(), |m| format!(" ({} needs {})", m.bytes(), m.bytes() + Mtu::OVERHEAD));
            format!("{mtu} bytes: path MTU {}{hint}", path.bytes())
        }
    }
}

fn mac_text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

fn holders_text(id: u32) -> String {
    match &program_holders(id)[..] {
        [] => "no process that is visible from here".into(),
        some => some.join(", "),
    }
}

/// Returns the bits of this process's effective capabilities, if they can be read.
fn effective_capabilities() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(effective.trim(), 16).ok()
}

/// True if this process has a capability, or its capabilities cannot be read.
pub(crate) fn has_capability(number: u32) -> bool {
    effective_capabilities().is_none_or(|effective| effective >> number & 1 == 1)
}

/// Returns the obstacle to packet sockets.
pub(crate) fn packet_obstacle() -> Option<String> {
    const CAP_NET_RAW: u32 = 13;
    if !has_capability(CAP_NET_RAW) {
        return Some("this process lacks CAP_NET_RAW".to_owned());
    }
    packet::check().err().map(|error| error.to_string())
}

/// Lists obstacles to AF_XDP on an interface, as far as can be told without trying.
pub(crate) fn xdp_obstacles(interface: &Interface) -> Vec<String> {
    /// Bits of `capabilities(7)`.
    const NEEDED: [(&str, u64); 4] = [
        ("CAP_NET_ADMIN", 1 << 12),
        ("CAP_NET_RAW", 1 << 13),
        ("CAP_BPF", 1 << 39 | 1 << 21),
        ("CAP_PERFMON", 1 << 38 | 1 << 21),
    ];
    if !xdp::IS_BUILT {
        return vec![XdpError::NotBuilt.to_string()];
    }
    let mut found = Vec::new();
    let protocols = fs::read_to_string("/proc/net/protocols").unwrap_or_default();
    if !protocols.is_empty() && !protocols.lines().any(|line| line.starts_with("XDP ")) {
        found.push("the kernel has no AF_XDP sockets (CONFIG_XDP_SOCKETS)".into());
    }
    if let Some(effective) = effective_capabilities() {
        let missing: Vec<&str> =
            NEEDED.iter().filter(|(_, bits)| effective & bits == 0).map(|(n, _)| *n).collect();
        if !missing.is_empty() {
            found.push(format!("this process lacks {}", missing.join(", ")));
        } else if let Some(why) = why_no_map() {
            let uid_map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
            let cause = if is_initial_user_namespace(&uid_map) {
                "a seccomp filter or a security module prevents it"
            } else {
                "its capabilities are those of a user namespace, and BPF needs the system's"
            };
            found.push(format!("this process may make no BPF map ({why}): {cause}"));
        }
        let limit = getrlimit(Resource::RLIMIT_MEMLOCK).map_or(u64::MAX, |(_, hard)| hard);
        let needed = XdpConfig::new(interface.name.as_str()).packet_memory(interface.rx_queues as usize);
        found.extend(locked_memory(effective, limit, needed));
    }
    found
}

/// True if `/proc/self/uid_map` is that of the initial user namespace, or cannot be read.
fn is_initial_user_namespace(uid_map: &str) -> bool {
    uid_map.is_empty() || uid_map.split_whitespace().eq(["0", "0", "4294967295"])
}

/// Returns why the packet memory cannot be locked, given the effective capabilities, the hard limit, and the need in
/// bytes.
fn locked_memory(capabilities: u64, limit: u64, needed: u64) -> Option<String> {
    /// CAP_IPC_LOCK and CAP_SYS_RESOURCE: either lifts the limit (`capabilities(7)`).
    const UNBOUND: u64 = 1 << 14 | 1 << 24;
    (capabilities & UNBOUND == 0 && limit < needed).then(|| {
        format!(
            "{needed} bytes of packet memory are more than this process may lock ({limit}): `ulimit -l {}` as root first, \
             LimitMEMLOCK={needed} in a systemd unit, or CAP_IPC_LOCK",
            needed.div_ceil(1024)
        )
    })
}

/// Describes how far an address reaches.
fn reach(ip: IpAddr) -> &'static str {
    match ip {
        IpAddr::V4(v4) if v4.is_loopback() => "IPv4 loopback: this host only",
        IpAddr::V4(v4) if v4.is_link_local() => "IPv4 link-local: peers on the same link only",
        IpAddr::V4(_) => "IPv4-mapped: what most peers expect for RoCE v2",
        IpAddr::V6(v6) if v6.is_loopback() => "IPv6 loopback: this host only",
        IpAddr::V6(v6) if v6.is_unicast_link_local() => {
            "IPv6 link-local: peers on the same link only, not routed"
        }
        IpAddr::V6(v6) if v6.is_unique_local() => "IPv6 unique local: routed within a site",
        IpAddr::V6(_) => "IPv6 global",
    }
}

/// Explains why an address has its index.
fn place(GidEntry { index, gid, assigned, encapsulation }: GidEntry, customary: bool) -> &'static str {
    let ip = gid.to_ip();
    let link_local = matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local());
    match (customary, index) {
        _ if encapsulation.version == RoceVersion::V1 => "RoCE v1 GIDs come behind RoCE v2 ones",
        (true, _) if encapsulation.vlan != 0 => "an address of a VLAN interface",
        (false, _) => "in the requested order",
        (true, 0) if !assigned => {
            "0 is kept for the link-local address: the interface does not have it (yet)"
        }
        (true, 0) if link_local => "0 is the link-local address, as on adapters in hardware",
        (true, 0) => "0 is an IPv6 address: the link-local one is not there",
        (true, 1) if ip.is_ipv4() => "1 is the first IPv4 address, as programs expect (-x 1, -g 1)",
        (true, 1) => "1 is IPv6: there is no IPv4 address",
        (true, _) => "then the others, IPv4 first",
    }
}

fn gids(options: &DeviceOptions, json: bool) -> Result<(), Failure> {
    options.check()?;
    let (name, table) = if options.port == Some(PortKind::Memory) {
        let device = options.open()?.device;
        (device.name().to_owned(), device.gid_table())
    } else {
        let interface = options.interface()?;
        let table = options.gid_table(&interface);
        (interface.name, table)
    };
    let customary = options.address.is_empty() && options.port != Some(PortKind::Memory);
    let first = options.gid_index.or_else(|| first_gid(&table).map(|entry| entry.index)).unwrap_or(0);
    if table.get(first).is_none() {
        return Err(no_gid(&name, &table, Some(first)));
    }
    if json {
        let entry = |entry: GidEntry| {
            let GidEntry { index, gid, assigned, encapsulation } = entry;
            let ip = gid.to_ip();
            let vlan = Some(encapsulation.vlan).filter(|vlan| *vlan != 0);
            json!({ "index": index, "gid": gid.to_string(), "address": ip, "assigned": assigned, "reach": reach(ip),
                    "type": encapsulation.version.to_string(), "vlan": vlan,
                    "place": place(entry, customary), "chosen": index == first })
        };
        let all: Vec<Value> = table.iter().map(entry).collect();
        return formats::print(formats::SHOW, json!({ "gids": all }));
    }
    output::line(format_args!("{:>5}  {:<40} reach; why at this index", "index", "GID"))?;
    for entry in table.iter() {
        let (index, ip, gid) = (entry.index, entry.gid.to_ip(), entry.local().to_string());
        let chosen = if index == first { "  <- used unless -g selects another" } else { "" };
        let place = place(entry, customary);
        output::line(format_args!("{index:>5}  {gid:<40} {}; {place}{chosen}", reach(ip)))?;
    }
    Ok(())
}

/// Prints the counters of a device opened for this.
fn counters(options: &DeviceOptions, json: bool) -> Result<(), Failure> {
    let device = options.open()?.device;
    let all = device.counters();
    if json {
        let object: serde_json::Map<String, Value> =
            all.iter().map(|(name, _)| ((*name).to_owned(), device.counter(name).into())).collect();
        return formats::print(formats::SHOW, json!({ "counters": object }));
    }
    all.iter().try_for_each(|(name, value)| output::line(format_args!("{name:<28} {value}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mtu_text_names_next_larger_need() {
        assert_eq!(mtu_text(1500), "1500 bytes: path MTU 1024 (2048 needs 2136)");
        assert_eq!(mtu_text(9000), "9000 bytes: path MTU 4096");
        assert!(mtu_text(300).contains("too small") && mtu_text(300).contains("344"));
    }

    #[test]
    fn low_memlock_limit_is_explained() {
        let needed = XdpConfig::new("eth0").packet_memory(2);
        assert_eq!(needed, 2 * 2 * 2048 * 4096, "two queues, two directions, 2048 chunks of 4 KiB");
        let told = locked_memory(0, 8 << 20, needed).expect("an obstacle");
        assert!(told.contains("33554432 bytes") && told.contains("ulimit -l 32768"), "{told}");
        assert_eq!(locked_memory(0, needed, needed), None);
        assert_eq!(locked_memory(1 << 14, 0, needed), None, "CAP_IPC_LOCK");
    }

    #[test]
    fn address_reach_is_described() {
        for (ip, part) in [
            ("192.0.2.1", "most peers expect"),
            ("127.0.0.1", "this host only"),
            ("fe80::1", "not routed"),
            ("fd00::1", "within a site"),
            ("2001:db8::1", "global"),
        ] {
            assert!(reach(ip.parse().unwrap()).contains(part), "{ip}: {}", reach(ip.parse().unwrap()));
        }
    }
}
