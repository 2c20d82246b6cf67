//! Rows on other links than the plain one: a VLAN, RoCE v1, a bond; rows with selective repeat, and with the profile of
//! an adapter.

use std::fmt;

use super::{Case, FAMILIES, Family, Impairment, Op, PortKind, Program, Row, SIDES, Service, Side, programs};

/// The link of a row's queue pairs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Network {
    /// RoCE v2 without a VLAN, go-back-N.
    #[default]
    Plain,
    /// GIDs of a VLAN, at Roxie and at the peer.
    Vlan,
    /// RoCE v1, between two devices of Roxie: no peer has it.
    V1,
    /// RoCE v2 with selective repeat, between two devices of Roxie.
    Selective,
}

/// A transfer, as [`Case::Transfer`] has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Transfer {
    /// The transport service of both QPs.
    pub service: Service,
    /// The operation.
    pub op: Op,
    /// Path MTU in bytes.
    pub mtu: usize,
    /// Bytes of a message.
    pub size: usize,
    /// Faults of Roxie's fault port.
    pub fault: Impairment,
}

/// A bond of two links in the guest, with Roxie at both ends. One of the links fails while a stock program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Bond {
    /// The second link is used when the first fails.
    ActiveBackup,
    /// Frames leave by both links in turn, and arrive out of order.
    BalanceRr,
    /// The addresses choose the link.
    BalanceXor,
    /// Each frame leaves by both links, and arrives twice.
    Broadcast,
    /// Link aggregation (IEEE 802.1AX): the ends agree by LACP.
    Lacp,
    /// A VLAN on a bond of mode active-backup.
    Vlan,
    /// AF_XDP, which refuses a bond.
    Refused,
}

impl Network {
    /// True if the row is between two devices of Roxie, each in a network namespace of this host.
    pub fn is_between_devices(self) -> bool {
        matches!(self, Network::V1 | Network::Selective)
    }
}

impl Transfer {
    const fn rc(op: Op, mtu: usize, size: usize) -> Transfer {
        Transfer { service: Service::Rc, op, mtu, size, fault: Impairment::None }
    }

    const fn with(self, fault: Impairment) -> Transfer {
        Transfer { fault, ..self }
    }

    /// Returns the number of packets of a message.
    pub fn packets(&self) -> usize {
        self.size.div_ceil(self.mtu).max(1)
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Network::Plain => "plain",
            Network::Vlan => "vlan",
            Network::V1 => "v1",
            Network::Selective => "sr",
        })
    }
}

impl fmt::Display for Transfer {
    /// The last parts of a row's name: `write/mtu1024/1025B/clean`. Services other than RC are named first.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Transfer { service, op, mtu, size, fault } = self;
        if *service != Service::Rc {
            write!(f, "{service}/")?;
        }
        write!(f, "{op}/mtu{mtu}/{size}B/{fault}")
    }
}

impl fmt::Display for Bond {
    /// The kernel's name of the mode, or what the row is about.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Bond::ActiveBackup => "active-backup",
            Bond::BalanceRr => "balance-rr",
            Bond::BalanceXor => "balance-xor",
            Bond::Broadcast => "broadcast",
            Bond::Lacp => "802.3ad",
            Bond::Vlan => "vlan",
            Bond::Refused => "refused",
        })
    }
}

/// Messages of 64 KiB and 1 MiB, of which some packets are lost.
const LONG: [Transfer; 3] = [
    Transfer::rc(Op::Send, 1024, 64 << 10),
    Transfer::rc(Op::Write, 256, 1 << 20),
    Transfer::rc(Op::Read, 4096, 1 << 20),
];

/// Returns the transfers of a network: a few sizes and MTUs of each operation, and long messages under faults.
fn transfers(network: Network, family: Family) -> Vec<Transfer> {
    let mut all = Vec::new();
    for op in [Op::Send, Op::SendImm, Op::Write, Op::WriteImm, Op::Read] {
        all.extend([(256, 0), (1024, 1025), (4096, 64 << 10)].map(|(mtu, size)| Transfer::rc(op, mtu, size)));
    }
    all.extend([Op::CmpSwap, Op::FetchAdd].map(|op| Transfer::rc(op, 1024, 8)));
    if network != Network::Selective {
        let datagram = |op| Transfer { service: Service::Ud, ..Transfer::rc(op, 4096, 1025) };
        all.extend([Op::Send, Op::SendImm].map(datagram));
        let unreliable = |op| Transfer { service: Service::Uc, ..Transfer::rc(op, 1024, 1025) };
        all.extend([Op::Send, Op::Write].map(unreliable));
    }
    let faults: &[Impairment] = match (network, family) {
        (Network::Selective, Family::V4) => &[Impairment::Loss1, Impairment::Loss5, Impairment::Reorder],
        _ => &[Impairment::Loss1],
    };
    all.extend(faults.iter().flat_map(|fault| LONG.map(|long| long.with(*fault))));
    all
}

/// Programs that connect by rdma_cm, by name and variant.
const BY_CM: [(&str, &str); 3] = [("rping", "cm"), ("ib_send_bw", "cm/rc"), ("ib_write_bw", "cm/rc")];

/// Adapters whose packets or timers differ, and what runs on a device that behaves as they do.
const ADAPTERS: [&str; 2] = ["cx6", "hi1822"];
const BY_ADAPTERS: [(&str, &str); 4] =
    [("ib_send_lat", "rc"), ("ib_write_bw", "rc"), ("ib_read_bw", "rc"), ("rping", "cm")];

/// Returns the rows of all networks.
pub(super) fn all() -> Vec<Row> {
    let mut rows = Vec::new();
    for port in [PortKind::Xdp, PortKind::Packet, PortKind::Udp] {
        for family in FAMILIES {
            let mut add = |network: Network, requester: Side| {
                let case = |transfer| Case::Over(network, transfer);
                let row = |transfer| Row { port, family, requester, case: case(transfer) };
                rows.extend(transfers(network, family).into_iter().map(row));
            };
            add(Network::Selective, Side::Roxie);
            // Over sockets the kernel tags, on the VLAN's interface, and RoCE v1 is no UDP.
            if port != PortKind::Udp {
                add(Network::V1, Side::Roxie);
                SIDES.into_iter().for_each(|requester| add(Network::Vlan, requester));
            }
        }
        for requester in SIDES {
            let row = |program| Row { port, family: Family::V4, requester, case: Case::Fallback(program) };
            let uses = programs::all().into_iter().map(|(program, _)| program);
            let is_it = |program: &Program| BY_CM.iter().any(|(name, way)| program.is(name, way));
            rows.extend(uses.filter(is_it).map(row));
        }
    }
    for (adapter, requester) in ADAPTERS.into_iter().flat_map(|adapter| SIDES.map(|side| (adapter, side))) {
        let case = |program| Case::Profiled(adapter, program);
        let row =
            |program| Row { port: PortKind::Packet, family: Family::V4, requester, case: case(program) };
        let uses = programs::all().into_iter().map(|(program, _)| program);
        let is_it = |program: &Program| BY_ADAPTERS.iter().any(|(name, way)| program.is(name, way));
        rows.extend(uses.filter(is_it).map(row));
    }
    let bond = |port, bond| Row { port, family: Family::V4, requester: Side::Roxie, case: Case::Bond(bond) };
    use Bond::{ActiveBackup, BalanceRr, BalanceXor, Broadcast, Lacp, Refused, Vlan};
    let modes = [ActiveBackup, BalanceRr, BalanceXor, Broadcast, Lacp, Vlan];
    rows.extend(modes.map(|mode| bond(PortKind::Packet, mode)));
    rows.extend([ActiveBackup, Vlan].map(|mode| bond(PortKind::Udp, mode)));
    rows.push(bond(PortKind::Xdp, Refused));
    rows
}
