//! Predicts what will not work, and says how to change that before the program starts.

use roxie::netdev::Interface;
use roxie::netdev::ethtool::{XdpFeatures, xdp_features};
use roxie::port::group::{self, GroupId};
use roxie::port::xdp::program_holders;
use roxie::verbs::Mtu;
use roxie::wire::ROCE_V2_PORT;

use roxie::remote::nic_of;

use super::Port;
use super::hint::Environment;
use crate::show::{has_capability, packet_obstacle, xdp_obstacles};

/// The capability to make a mount namespace (`linux/capability.h`).
const CAP_SYS_ADMIN: u32 = 21;

/// The chosen port, and remarks for the user.
pub(super) struct Preflight {
    pub(super) port: Port,
    pub(super) remarks: Vec<String>,
}

impl Preflight {
    pub(super) fn of(interface: &Interface, asked: Option<Port>) -> Preflight {
        let mut remarks = Vec::new();
        let port = asked.unwrap_or_else(|| choose(interface, &mut remarks));
        if !interface.running {
            remarks.push(format!(
                "{} has no carrier: packets leave when its other end is connected (the port is DOWN until then)",
                interface.name
            ));
        }
        mtu(interface, &mut remarks);
        if port == Port::Xdp
            && let obstacles @ [_, ..] = &xdp_obstacles(interface)[..]
        {
            remarks.push(format!(
                "AF_XDP will not open on {}: {}. {}, or leave --port out: sockets take no privilege",
                interface.name,
                obstacles.join("; "),
                Environment::of_this_process().for_xdp()
            ));
        }
        if let (Port::Packet, Some(why)) = (port, packet_obstacle()) {
            remarks.push(format!(
                "packet sockets will not open on {}: {why}. Run as root, or in a container with `--cap-add NET_RAW`; if the \
                 capability is all that is missing, UDP sockets take their place",
                interface.name
            ));
        }
        if let (Port::Xdp, Some(id)) = (port, interface.xdp_program) {
            let holders = program_holders(id).join(", ");
            let holders =
                if holders.is_empty() { "a process that is not visible from here" } else { &holders };
            remarks.push(format!(
                "{} is claimed by {holders}: a program can ask about the device, its first queue pair will be refused; \
                 stop that process first, or take another interface",
                interface.name
            ));
        }
        if let (Port::Packet | Port::Udp, Some(id)) = (port, interface.xdp_program) {
            let holders = program_holders(id).join(", ");
            let of = if holders.is_empty() { String::new() } else { format!(" of {holders}") };
            remarks.push(format!(
                "{} has an XDP program{of}: if another Roxie has the interface by it (`--port xdp`), what arrives goes \
                 there, and not to sockets",
                interface.name
            ));
        }
        if matches!(port, Port::Packet | Port::Udp) && std::path::Path::new("/sys/module/rdma_rxe").exists() {
            remarks.push(
                "the kernel's rdma_rxe is loaded and may hold UDP port 4791: if the first queue pair is refused, `rdma link \
                 delete NAME` its devices or use --port xdp"
                    .into(),
            );
        }
        Preflight { port, remarks }
    }
}

/// Chooses the NIC if one serves the interface, else packet sockets if they are possible, else UDP sockets. Up to 128
/// processes of one user share an interface over either kind of sockets, but not over AF_XDP, which is therefore used
/// on request only.
fn choose(interface: &Interface, remarks: &mut Vec<String>) -> Port {
    let name = &interface.name;
    match nic_of(name) {
        Ok(Some(pid)) => {
            remarks.push(format!(
                "{name} through its NIC, process {pid} (`roxie nic`), which several programs share"
            ));
            return Port::Nic;
        }
        Ok(None) => {}
        Err(error) => remarks.push(error.to_string()),
    }
    let obstacle = if name == "lo" {
        Some("it is the loopback interface".to_owned())
    } else if matches!(group::roster(&GroupId { port: ROCE_V2_PORT, interface: None }), Ok(Some(_))) {
        Some("programs of this user that are running have UDP sockets".to_owned())
    } else if !has_capability(CAP_SYS_ADMIN) {
        Some(
            "without CAP_SYS_ADMIN, /sys/class/infiniband takes a user namespace, which may not have them"
                .to_owned(),
        )
    } else {
        packet_obstacle()
    };
    let Some(why) = obstacle else {
        remarks.push(format!(
            "{name} over packet sockets, which all programs of this user share{}",
            if xdp_features(interface.index).is_ok_and(XdpFeatures::is_zero_copy) {
                "; its driver has zero-copy: `--port xdp` gives the interface to one program"
            } else {
                ""
            }
        ));
        return Port::Packet;
    };
    remarks.push(format!(
        "{name} over UDP sockets, which all programs of this user share; no packet sockets: {why}"
    ));
    Port::Udp
}

fn mtu(interface: &Interface, remarks: &mut Vec<String>) {
    let name = &interface.name;
    match Mtu::largest_for_link(interface.mtu) {
        None => remarks.push(format!(
            "the MTU of {name}, {}, is too small for RoCE: `ip link set dev {name} mtu 1500`",
            interface.mtu
        )),
        Some(path) if path < Mtu::Mtu1024 => remarks.push(format!(
            "the MTU of {name}, {}, gives a path MTU of {}: programs that ask for 1024 are refused",
            interface.mtu,
            path.bytes()
        )),
        Some(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(mtu: usize) -> Interface {
        Interface {
            index: 7,
            name: "eth9".into(),
            mac: [2; 6],
            mtu,
            up: true,
            running: true,
            driver: "veth".into(),
            rx_queues: 1,
            addresses: Vec::new(),
            xdp_program: None,
        }
    }

    #[test]
    fn healthy_interface_needs_no_remark() {
        let quiet = Preflight::of(&interface(1500), Some(Port::Xdp));
        // Without privilege, one remark is due.
        let refused = usize::from(!xdp_obstacles(&interface(1500)).is_empty());
        assert_eq!((quiet.port, quiet.remarks.len()), (Port::Xdp, refused));
    }

    #[test]
    fn sockets_are_the_default() {
        for name in ["eth9", "lo"] {
            let chosen = Preflight::of(&Interface { name: name.into(), ..interface(1500) }, None);
            let (port, start) = match packet_obstacle() {
                None if name != "lo" && has_capability(CAP_SYS_ADMIN) => {
                    (Port::Packet, "eth9 over packet sockets".to_owned())
                }
                _ => (Port::Udp, format!("{name} over UDP sockets")),
            };
            assert_eq!(chosen.port, port);
            assert!(chosen.remarks[0].starts_with(&start), "{:?}", chosen.remarks);
        }
    }

    #[test]
    fn small_mtu_and_missing_carrier_are_explained() {
        let said = |interface: &Interface| Preflight::of(interface, Some(Port::Xdp)).remarks.join("\n");
        assert!(said(&interface(300)).contains("mtu 1500"));
        assert!(said(&interface(1000)).contains("path MTU of 512"));
        assert!(!said(&interface(1400)).contains("MTU"));
        assert!(said(&Interface { running: false, ..interface(1500) }).contains("no carrier"));
    }
}
