//! The steering program in the kernel: loads and attaches it, and sets its maps.

use std::io;
use std::net::IpAddr;
use std::os::fd::AsRawFd;

use aya::maps::{Array, HashMap, MapData, MapError, MapType, PerCpuArray, XskMap};
use aya::programs::xdp::XdpLinkId;
use aya::programs::{ProgramError, Xdp, XdpMode, loaded_programs};
use aya::sys::is_map_supported;
use aya::{Ebpf, EbpfLoader, include_bytes_aligned};
use hashbrown::HashSet;

use super::XdpError;
use crate::RxOptions;
use crate::netdev::{Interface, Membership, NetNs};
use roxie_base::flow::{FLOW_KEY, FlowMatch, MAX_FLOWS};

static OBJECT: &[u8] = include_bytes_aligned!(concat!(env!("OUT_DIR"), "/steer.bpf.o"));

/// The program's name: in the object, in `bpftool prog`, in errors.
const PROGRAM: &str = "roxie_steer";
/// Bits of the `options` map, as in `steer.bpf.c`.
const OPTION_ROCE_V1: u32 = 1;
const OPTION_MAC_CONTROL: u32 = 2;

/// The program, its maps and its link to the interface. Dropping it detaches the program, as the end of the process
/// does, because the link is a file descriptor.
pub(super) struct Steering {
    ebpf: Ebpf,
    addresses: HashMap<MapData, [u8; 16], u8>,
    tagged: HashMap<MapData, TaggedAddress, u8>,
    sockets: XskMap<MapData>,
    options: Array<MapData, u32>,
    /// True if RoCE v1 is taken whatever the NIC wishes.
    always_roce_v1: bool,
    stations: Array<MapData, Station>,
    refused: PerCpuArray<MapData, u64>,
    flows: Array<MapData, Flow>,
    flows_in_force: Array<MapData, FlowSet>,
    /// Index of the first flow in force.
    first_flow: u16,
    steered: HashSet<[u8; 16]>,
    /// The addresses that the interface has itself, and those on its VLANs.
    own: Vec<IpAddr>,
    vlans: Vec<(IpAddr, u16)>,
    /// Multicast groups steered in addition to the addresses, with the memberships. A group that several workers have
    /// joined is listed as often.
    groups: Vec<(IpAddr, Membership)>,
    /// Network namespace of the interface.
    namespace: NetNs,
    link: Option<XdpLinkId>,
}

impl Steering {
    /// Loads the program, which steers nothing yet.
    pub(super) fn load(roce_v1: bool) -> Result<Steering, XdpError> {
        // No kernel BTF: the program reads packets, not kernel structures, and parsing it costs 0.1 s.
        let mut ebpf = EbpfLoader::new().btf(None).load(OBJECT).map_err(refused)?;
        let addresses = HashMap::try_from(taken(&mut ebpf, "addresses")?).map_err(refused)?;
        let tagged = HashMap::try_from(taken(&mut ebpf, "tagged")?).map_err(refused)?;
        let sockets = XskMap::try_from(taken(&mut ebpf, "sockets")?).map_err(refused)?;
        let stations = Array::try_from(taken(&mut ebpf, "stations")?).map_err(refused)?;
        let not_taken = PerCpuArray::try_from(taken(&mut ebpf, "refused")?).map_err(refused)?;
        let flows = Array::try_from(taken(&mut ebpf, "flows")?).map_err(refused)?;
        let flows_in_force = Array::try_from(taken(&mut ebpf, "flows_in_force")?).map_err(refused)?;
        let mut options = Array::try_from(taken(&mut ebpf, "options")?).map_err(refused)?;
        options.set(0, if roce_v1 { OPTION_ROCE_V1 } else { 0 }, 0).map_err(refused)?;
        let mut steering = Steering {
            ebpf,
            addresses,
            tagged,
            sockets,
            options,
            always_roce_v1: roce_v1,
            stations,
            refused: not_taken,
            flows,
            flows_in_force,
            first_flow: 0,
            steered: HashSet::new(),
            own: Vec::new(),
            vlans: Vec::new(),
            groups: Vec::new(),
            namespace: NetNs::current().map_err(refused)?,
            link: None,
        };
        steering.program()?.load().map_err(not_loaded)?;
        Ok(steering)
    }

    /// Attaches the program to `interface` in the driver (`native`) or in the kernel's generic hook.
    pub(super) fn attach(&mut self, interface: &Interface, native: bool) -> Result<(), AttachError> {
        let mode = if native { XdpMode::Driver } else { XdpMode::Skb };
        let program = self.program().map_err(AttachError::Other)?;
        match program.attach_to_if_index(interface.index, mode) {
            Ok(link) => {
                self.link = Some(link);
                Ok(())
            }
            Err(ProgramError::SyscallError(e)) => Err(AttachError::Refused(e.io_error)),
            Err(e) => Err(AttachError::Other(refused(e))),
        }
    }

    /// Detaches the program from the interface.
    pub(super) fn detach(&mut self) -> Result<(), XdpError> {
        match self.link.take() {
            Some(link) => self.program()?.detach(link).map_err(refused),
            None => Ok(()),
        }
    }

    /// Directs the RoCE frames of `queue` to a socket.
    pub(super) fn set_socket(&mut self, queue: u32, socket: impl AsRawFd) -> Result<(), XdpError> {
        self.sockets.set(queue, socket, 0).map_err(refused)
    }

    /// Takes MAC control frames and RoCE v1, or leaves them to the kernel.
    pub(super) fn take_others(&mut self, wishes: RxOptions) -> Result<(), XdpError> {
        let mut chosen = 0;
        if wishes.mac_control {
            chosen |= OPTION_MAC_CONTROL;
        }
        if wishes.roce_v1 || self.always_roce_v1 {
            chosen |= OPTION_ROCE_V1;
        }
        self.options.set(0, chosen, 0).map_err(refused)
    }

    /// Sets the interface's station address. Frames to other stations are not taken, except frames to groups.
    pub(super) fn set_station(&mut self, mac: [u8; 6]) -> Result<(), XdpError> {
        let mut station: Station = [0; 8];
        station[..6].copy_from_slice(&mac);
        self.stations.set(0, station, 0).map_err(refused)
    }

    /// Returns the counts of frames to our addresses that were not taken, by reason.
    pub(super) fn not_taken(&self) -> [(&'static str, u64); 3] {
        // As in `steer.bpf.c`.
        let mut at = 0;
        ["rx_bad_ip_checksum", "rx_other_station", "rx_tagged"].map(|name| {
            let counts = self.refused.get(&at, 0);
            at += 1;
            (name, counts.map_or(0, |counts| counts.iter().sum()))
        })
    }

    /// Steers a multicast group as well, and joins it on the interface.
    pub(super) fn join(&mut self, interface: &str, group: IpAddr) -> io::Result<()> {
        let membership = self.namespace.run(|| {
            let interface = Interface::by_name(interface).map_err(io::Error::other)?;
            Membership::join(&interface, group)
        })??;
        self.addresses.insert(key(group), 1, 0).map_err(|e| io::Error::other(refused(e)))?;
        self.groups.push((group, membership));
        Ok(())
    }

    /// Runs `act` in the network namespace of the interface.
    pub(super) fn within<T: Send>(&self, act: impl FnOnce() -> T + Send) -> io::Result<T> {
        self.namespace.run(act)
    }

    /// Undoes one join of a multicast group. The last one stops the steering.
    pub(super) fn leave(&mut self, group: IpAddr) {
        let Some(at) = self.groups.iter().position(|(joined, _)| *joined == group) else { return };
        self.groups.swap_remove(at);
        if self.groups.iter().all(|(joined, _)| *joined != group) {
            // Fails only if the address is absent.
            let _ = self.addresses.remove(&key(group));
        }
    }

    /// Replaces the destination addresses to steer. Joined groups stay.
    pub(super) fn set_addresses(&mut self, addresses: &[IpAddr]) -> Result<(), XdpError> {
        self.own = addresses.to_vec();
        self.write_addresses()
    }

    /// Replaces the destination addresses to steer if they have the tag of a VLAN.
    pub(super) fn set_vlans(&mut self, addresses: &[(IpAddr, u16)]) -> Result<(), XdpError> {
        for (ip, vlan) in self.vlans.iter().filter(|old| !addresses.contains(old)) {
            match self.tagged.remove(&tagged_key(*ip, *vlan)) {
                Ok(()) | Err(MapError::KeyNotFound) => {}
                Err(e) => return Err(refused(e)),
            }
        }
        for (ip, vlan) in addresses {
            self.tagged.insert(tagged_key(*ip, *vlan), 1, 0).map_err(refused)?;
        }
        self.vlans = addresses.to_vec();
        self.write_addresses()
    }

    /// Writes the map of addresses: 1 for those that are steered without a tag, 0 for others on VLANs.
    fn write_addresses(&mut self) -> Result<(), XdpError> {
        let own: HashSet<[u8; 16]> = self.own.iter().map(|ip| key(*ip)).collect();
        let on_vlans = self.vlans.iter().map(|(ip, _)| key(*ip));
        let wanted: HashSet<[u8; 16]> = own.iter().copied().chain(on_vlans).collect();
        // `steered` mirrors the map at every moment, so that the next call completes a change that failed halfway.
        let removed: Vec<_> = self.steered.difference(&wanted).copied().collect();
        for key in removed {
            match self.addresses.remove(&key) {
                Ok(()) | Err(MapError::KeyNotFound) => self.steered.remove(&key),
                Err(e) => return Err(refused(e)),
            };
        }
        for key in wanted {
            self.addresses.insert(key, u8::from(own.contains(&key)), 0).map_err(refused)?;
            self.steered.insert(key);
        }
        Ok(())
    }

    /// Replaces the flows to steer in addition to RoCE. The old set stays in force until the new one is
    /// written, and if that fails.
    pub(super) fn set_flows(&mut self, flows: &[FlowMatch]) -> Result<(), XdpError> {
        let count = u16::try_from(flows.len()).ok().filter(|count| usize::from(*count) <= MAX_FLOWS);
        let count = count.ok_or_else(|| refused(format!("{} flows: {MAX_FLOWS} at most", flows.len())))?;
        let first = if self.first_flow == 0 { MAX_FLOWS as u16 } else { 0 };
        for (at, flow) in (u32::from(first)..).zip(flows) {
            let mut bytes: Flow = [0; 2 * FLOW_KEY];
            let (value, mask) = flow.bytes();
            bytes[..FLOW_KEY].copy_from_slice(&value);
            bytes[FLOW_KEY..].copy_from_slice(&mask);
            self.flows.set(at, bytes, 0).map_err(refused)?;
        }
        self.flows_in_force.set(0, [first, count], 0).map_err(refused)?;
        self.first_flow = first;
        Ok(())
    }

    fn program(&mut self) -> Result<&mut Xdp, XdpError> {
        let program = self.ebpf.program_mut(PROGRAM);
        let program = program.ok_or_else(|| refused(format!("no program {PROGRAM} in the object")))?;
        program.try_into().map_err(refused)
    }
}

/// `struct station` of `steer.bpf.c`.
type Station = [u8; 8];
/// `struct tagged_address`: the address, and the VLAN ID in 32 bits.
type TaggedAddress = [u8; 20];
/// `struct flow` of `steer.bpf.c`: the value, then the mask.
type Flow = [u8; 2 * FLOW_KEY];
/// `struct flow_set`: index of the first flow, and count.
type FlowSet = [u16; 2];

/// Why a program did not attach.
pub(super) enum AttachError {
    /// The kernel refused.
    Refused(io::Error),
    /// Something else.
    Other(XdpError),
}

/// Returns an address as a key of the map: IPv4 as `::ffff:a.b.c.d`.
fn key(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

fn tagged_key(ip: IpAddr, vlan: u16) -> TaggedAddress {
    let mut bytes: TaggedAddress = [0; 20];
    bytes[..16].copy_from_slice(&key(ip));
    bytes[16..].copy_from_slice(&u32::from(vlan).to_ne_bytes());
    bytes
}

/// Returns the name of a loaded program.
pub(super) fn program_name(id: u32) -> String {
    let info = loaded_programs().flatten().find(|p| p.id() == id);
    match info.as_ref().and_then(|p| p.name_as_str()) {
        Some("") | None => "a program without a name".to_owned(),
        Some(name) => name.to_owned(),
    }
}

/// See [`super::why_no_map`].
pub(super) fn why_no_map() -> Option<io::Error> {
    match is_map_supported(MapType::XskMap) {
        Ok(true) => None,
        Ok(false) => Some(io::ErrorKind::Unsupported.into()),
        Err(error) => Some(error.io_error),
    }
}

fn taken(ebpf: &mut Ebpf, name: &str) -> Result<aya::maps::Map, XdpError> {
    ebpf.take_map(name).ok_or_else(|| refused(format!("no map {name} in the object")))
}

/// Lines of the verifier's log that an error shows: the complaint is at the end.
const LOG_LINES: usize = 4;

/// Explains why the program did not load. A verifier's rejection is not a missing privilege, though both are `EACCES`.
fn not_loaded(error: ProgramError) -> XdpError {
    let ProgramError::LoadError { io_error, verifier_log } = &error else { return refused(error) };
    let log = verifier_log.to_string();
    let lines: Vec<&str> = log.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    if lines.is_empty() {
        return refused(error);
    }
    let end = lines[lines.len().saturating_sub(LOG_LINES)..].join(" | ");
    let remedy = if io_error.kind() == io::ErrorKind::PermissionDenied {
        ". Without CAP_PERFMON the verifier allows less: give it to the program as well, or use the udp port"
    } else {
        ""
    };
    XdpError::Program { reason: format!("{io_error}; the verifier says: {end}{remedy}") }
}

/// Wraps the loader's error with its causes; missing privileges get an error of their own.
fn refused(error: impl Into<Box<dyn std::error::Error>>) -> XdpError {
    let error = error.into();
    let mut reason = error.to_string();
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error.as_ref());
    while let Some(e) = cause {
        if let Some(io) = e.downcast_ref::<io::Error>()
            && io.kind() == io::ErrorKind::PermissionDenied
        {
            return XdpError::NotPermitted { action: "load the steering program".to_owned() };
        }
        cause = e.source();
        if let Some(e) = cause {
            reason = format!("{reason}: {e}");
        }
    }
    XdpError::Program { reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv4_address_key_is_mapped_ipv6() {
        let mapped = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 1];
        assert_eq!(key("192.0.2.1".parse().unwrap()), mapped);
    }
}
