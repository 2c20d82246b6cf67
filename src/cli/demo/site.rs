//! The network of the demo: two network namespaces with veth pairs between them, loopback addresses, or memory.
//!
//! The choice depends on the user's privileges. [`Site::find`] takes the best available network, and keeps the reasons
//! against better ones. [`Site::link`] makes the network for one port, with a second veth pair for the floor. Dropping
//! a [`Link`] removes it.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr};

use clap::ValueEnum;
use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{Gid, Uid};
use roxie::host::{Device, DeviceConfig, Stack};
use roxie::netdev::{IfAddr, Links, NetNs, NetdevError};
use roxie::port::Port;
use roxie::port::memory::{self, MemoryConfig};
use roxie::port::packet::{PacketConfig, PacketPort};
use roxie::port::udp::{UdpConfig, UdpPort};
use roxie::port::xdp::{self, XdpConfig};
use serde::Serialize;

use super::Failure;
use crate::floor::AddressedPort;

/// Link MTU in bytes: 4,096 bytes of payload and the longest headers.
const MTU: u32 = 4200;

/// A port of the demo.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    /// AF_XDP sockets (root)
    Xdp,
    /// Packet sockets
    Packet,
    /// UDP sockets
    Udp,
    /// Memory of this process, without the kernel
    Memory,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Kind::Xdp => "xdp",
            Kind::Packet => "packet",
            Kind::Udp => "udp",
            Kind::Memory => "memory",
        })
    }
}

/// Isolation that this process can get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Named namespaces, which `ip netns` lists.
    Named,
    /// Namespaces inside a user namespace.
    Unnamed,
    /// No namespaces.
    Loopback,
}

/// The network of the demo.
#[derive(Debug)]
pub(super) struct Site {
    place: Place,
    /// Describes the network, with the reasons against better ones.
    pub(super) description: String,
}

impl Site {
    /// Finds the best network available to this process. Call it while the process has a single thread: others cannot
    /// enter a user namespace.
    pub(super) fn find() -> Site {
        let named = if Uid::effective().is_root() {
            Attempt::from(NetNs::create("demo-try").map(drop))
        } else {
            Attempt::Refused("not root".into())
        };
        let refused = match named {
            Attempt::Granted => {
                let description = "two network namespaces joined by veth pairs".into();
                return Site { place: Place::Named, description };
            }
            Attempt::Refused(why) => why,
        };
        match Attempt::from(enter_user_namespace()) {
            Attempt::Granted => Site {
                place: Place::Unnamed,
                description: format!(
                    "two network namespaces joined by veth pairs, in a user namespace of its own ({refused})"
                ),
            },
            Attempt::Refused(why) => Site {
                place: Place::Loopback,
                description: format!("loopback addresses ({refused}; no user namespace either: {why})"),
            },
        }
    }

    /// Returns a site without a network, for NICs that share memory.
    pub(super) fn memory() -> Site {
        Site { place: Place::Loopback, description: "none, the NICs share memory".into() }
    }

    /// Returns why this kind of port cannot open here; `None` if it may.
    pub(super) fn rules_out(&self, kind: Kind) -> Option<&'static str> {
        match (kind, self.place) {
            (Kind::Xdp, _) if !xdp::IS_BUILT => Some("this program was built without AF_XDP"),
            (Kind::Xdp, Place::Unnamed | Place::Loopback) => Some(
                "AF_XDP needs root (CAP_NET_ADMIN, CAP_BPF and CAP_SYS_ADMIN outside of user namespaces)",
            ),
            (Kind::Packet, Place::Loopback) => {
                Some("packet sockets need an Ethernet interface (root, or user namespaces)")
            }
            _ => None,
        }
    }

    /// Makes the network for one port.
    pub(super) fn link(&self, kind: Kind) -> Result<Link, Failure> {
        let namespaces = match (kind, self.place) {
            (Kind::Memory, _) | (_, Place::Loopback) => None,
            (_, place) => Some(Namespaces::new(place)?),
        };
        Ok(Link { kind, namespaces })
    }
}

/// Result of trying for one kind of network.
enum Attempt {
    Granted,
    Refused(String),
}

impl<E: fmt::Display> From<Result<(), E>> for Attempt {
    fn from(result: Result<(), E>) -> Attempt {
        match result {
            Ok(()) => Attempt::Granted,
            Err(why) => Attempt::Refused(why.to_string()),
        }
    }
}

/// Enters a user namespace with this user as root, and checks that it grants the needed privileges.
fn enter_user_namespace() -> Result<(), String> {
    let (uid, gid) = (Uid::effective(), Gid::effective());
    unshare_user().map_err(|e| format!("unshare(CLONE_NEWUSER): {}", e.desc()))?;
    let write = |file: &str, text: String| {
        std::fs::write(file, text).map_err(|e| format!("{file} cannot be written: {e}"))
    };
    // An unprivileged process may write gid_map only after this (user_namespaces(7)).
    write("/proc/self/setgroups", "deny".into())?;
    write("/proc/self/uid_map", format!("0 {uid} 1"))?;
    write("/proc/self/gid_map", format!("0 {gid} 1"))?;
    // Some systems grant the namespace without its privileges, and some kernels have no veth.
    Namespaces::new(Place::Unnamed).map(drop).map_err(|e| e.to_string())
}

fn unshare_user() -> nix::Result<()> {
    let mut tries = 0;
    loop {
        match unshare(CloneFlags::CLONE_NEWUSER) {
            // After its join, the kernel may still count a thread for a moment.
            Err(Errno::EINVAL) if tries < 50 => {
                tries += 1;
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
            result => return result,
        }
    }
}

/// Two namespaces and the veth pairs between them.
#[derive(Debug)]
struct Namespaces {
    near: NetNs,
    far: NetNs,
}

/// The two pairs of interfaces and addresses: one for RDMA, one for the floor.
#[derive(Clone, Copy, Debug)]
enum Lane {
    Rdma,
    Floor,
}

impl Lane {
    fn interface(self) -> &'static str {
        match self {
            Lane::Rdma => "rdma",
            Lane::Floor => "floor",
        }
    }

    /// Returns an address of TEST-NET-1 or TEST-NET-2 (RFC 5737).
    fn address(self, host: u8) -> IpAddr {
        match self {
            Lane::Rdma => Ipv4Addr::new(192, 0, 2, host).into(),
            Lane::Floor => Ipv4Addr::new(198, 51, 100, host).into(),
        }
    }

    fn loopback_address(self, host: u8) -> IpAddr {
        match self {
            Lane::Rdma => Ipv4Addr::new(127, 0, 0, host).into(),
            Lane::Floor => Ipv4Addr::new(127, 0, 1, host).into(),
        }
    }
}

impl Namespaces {
    fn new(place: Place) -> Result<Namespaces, NetdevError> {
        let create = |name| match place {
            Place::Named => NetNs::create(name),
            Place::Unnamed | Place::Loopback => NetNs::unnamed(),
        };
        let namespaces = Namespaces { near: create("demo-near")?, far: create("demo-far")? };
        let mut near = Links::open_in(&namespaces.near)?;
        let mut far = Links::open_in(&namespaces.far)?;
        for lane in [Lane::Rdma, Lane::Floor] {
            let name = lane.interface();
            near.create_veth(name, &namespaces.far, name, 1)?;
            for (links, host) in [(&mut near, 1), (&mut far, 2)] {
                links.set_mtu(name, MTU)?;
                links.add_address(name, IfAddr { ip: lane.address(host), prefix: 24 })?;
                links.set_up(name, true)?;
            }
        }
        Ok(namespaces)
    }
}

/// A network for one port. Dropping the value removes the network.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) kind: Kind,
    namespaces: Option<Namespaces>,
}

impl Link {
    /// Opens a device at each end.
    pub(super) fn devices(&self, stacks: [&Stack; 2], config: &DeviceConfig) -> Result<[Device; 2], Failure> {
        if self.kind == Kind::Memory {
            let (near, far) = Device::memory_pair_with(config, stacks[0], stacks[1])?;
            return Ok([near, far]);
        }
        let open = |host: u8| {
            let stack = stacks[usize::from(host) - 1];
            self.within(host, || match self.kind {
                Kind::Xdp => Device::open_xdp(&self.xdp(Lane::Rdma, host), stack, config),
                Kind::Packet => Device::open_packet(&self.packet(Lane::Rdma, host), stack, config),
                Kind::Udp | Kind::Memory => Device::open_udp(&self.udp(Lane::Rdma, host), stack, config),
            })
        };
        Ok([open(1)??, open(2)??])
    }

    /// Opens a bare port at each end of the floor's lane, with the addresses for its frames.
    pub(super) fn floor_ports(&self) -> Result<[AddressedPort; 2], Failure> {
        if self.kind == Kind::Memory {
            let end = |n: u8| MemoryConfig { mac: [2, 0, 0, 0, 1, n], ..MemoryConfig::default() };
            let (near, far) = memory::pair(end(1), end(2));
            let address = |host| Lane::Floor.address(host);
            return Ok([(Box::new(near), address(1)), (Box::new(far), address(2))]);
        }
        let open = |host: u8| -> Result<AddressedPort, Failure> {
            let port: Box<dyn Port> = match self.kind {
                Kind::Xdp => {
                    let config = self.xdp(Lane::Floor, host);
                    self.within(host, || xdp::open(&config))?.map_err(super::OpenError::from)?
                }
                Kind::Packet => {
                    let config = self.packet(Lane::Floor, host);
                    Box::new(
                        self.within(host, || PacketPort::open(&config))?.map_err(super::OpenError::from)?,
                    )
                }
                Kind::Udp | Kind::Memory => {
                    let config = self.udp(Lane::Floor, host);
                    Box::new(self.within(host, || UdpPort::open(&config))?.map_err(super::OpenError::from)?)
                }
            };
            Ok((port, self.address(Lane::Floor, host)))
        };
        Ok([open(1)?, open(2)?])
    }

    /// True if the ends are namespaces, which other processes can enter.
    pub(super) fn has_namespaces(&self) -> bool {
        self.namespaces.is_some()
    }

    /// Returns the name of the RDMA interface, the same at either end.
    pub(super) fn interface(&self) -> &'static str {
        Lane::Rdma.interface()
    }

    /// Returns the near end's address on the RDMA interface.
    pub(super) fn server(&self) -> IpAddr {
        self.address(Lane::Rdma, 1)
    }

    fn address(&self, lane: Lane, host: u8) -> IpAddr {
        if self.namespaces.is_some() { lane.address(host) } else { lane.loopback_address(host) }
    }

    fn xdp(&self, lane: Lane, host: u8) -> XdpConfig {
        XdpConfig { addresses: vec![self.address(lane, host)], ..XdpConfig::new(lane.interface()) }
    }

    fn packet(&self, lane: Lane, host: u8) -> PacketConfig {
        PacketConfig { addresses: vec![self.address(lane, host)], ..PacketConfig::new(lane.interface()) }
    }

    fn udp(&self, lane: Lane, host: u8) -> UdpConfig {
        UdpConfig { addresses: vec![self.address(lane, host)], ..UdpConfig::default() }
    }

    /// Runs `f` in the namespace of a host, if there are namespaces.
    pub(super) fn within<T: Send>(&self, host: u8, f: impl FnOnce() -> T + Send) -> io::Result<T> {
        match &self.namespaces {
            Some(namespaces) => if host == 1 { &namespaces.near } else { &namespaces.far }.run(f),
            None => Ok(f()),
        }
    }
}
