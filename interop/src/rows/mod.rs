//! The matrix: parameters and name of every row.
//!
//! Clean transfers are the full product. RC transfers under loss and reordering are a pairwise cover of it: any two
//! parameter values meet in some row. Error cases, features and stock programs follow. The names are committed in
//! `rows.txt`; a test compares the two, so that no row disappears unnoticed.

mod matrix;
mod names;
mod networks;
mod programs;
mod scripts;

pub use matrix::{all, short, thorough};
pub use networks::{Bond, Network, Transfer};
pub use programs::{Program, Ready, all as uses};
pub use scripts::{ODD, Odd, WRONG, Wrong};

/// The service of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the specification's names")]
pub enum Service {
    Rc,
    Uc,
    Ud,
}

/// The operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the specification's names")]
pub enum Op {
    Send,
    SendImm,
    Write,
    WriteImm,
    Read,
    CmpSwap,
    FetchAdd,
    SendInv,
    AtomicWrite,
    Flush,
}

/// The requester's side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Side {
    Roxie,
    Peer,
}

/// The port that carries Roxie's frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the names say it")]
pub enum PortKind {
    Xdp,
    Packet,
    Udp,
}

/// The IP version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Family {
    V4,
    V6,
}

/// Faults of Roxie's fault port, in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Impairment {
    /// Nothing.
    None,
    /// Drops one frame in a hundred.
    Loss1,
    /// Drops one frame in twenty.
    Loss5,
    /// Delays one frame in twenty until three others have passed it.
    Reorder,
}

/// An error that the requester provokes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ErrorCase {
    /// WRITE with an invalid rkey.
    BadRkeyWrite,
    /// READ with an invalid rkey.
    BadRkeyRead,
    /// FETCH_ADD with an invalid rkey.
    BadRkeyAtomic,
    /// WRITE with the last byte beyond the region.
    OutOfBoundsWrite,
    /// READ with the last byte beyond the region.
    OutOfBoundsRead,
    /// WRITE to a region without that right.
    NoRightToWrite,
    /// READ of a region without that right.
    NoRightToRead,
    /// SEND without a receive, and no RNR retries.
    NoReceive,
    /// SEND 50 ms before its receive is posted: RNR NAKs, then success.
    LateReceive,
    /// SEND longer than the receive.
    TooLong,
    /// FETCH_ADD at an address that is no multiple of 8.
    MisalignedAtomic,
    /// ATOMIC WRITE with an invalid rkey.
    BadRkeyAtomicWrite,
    /// ATOMIC WRITE beyond the region.
    OutOfBoundsAtomicWrite,
    /// ATOMIC WRITE to a region without the right to write.
    NoRightToAtomicWrite,
    /// ATOMIC WRITE at an address that is no multiple of 8.
    MisalignedAtomicWrite,
    /// FLUSH with an invalid rkey.
    BadRkeyFlush,
    /// FLUSH with the last byte beyond the region.
    OutOfBoundsFlush,
    /// FLUSH of a region without that right.
    NoRightToFlush,
    /// FLUSH for persistence of a region with the right to global visibility only.
    NoRightToPersist,
    /// The requester starts 100 PSNs ahead of the expected PSN.
    WrongPsn,
    /// The destination QPN does not exist.
    NoSuchPair,
}

/// A feature beside transfers, used once and checked. The responder's end provides it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Feature {
    /// UC: WRITEs with an invalid rkey are dropped; the next message arrives.
    UcBadRkey,
    /// UC: WRITEs that end beyond the region are dropped; the next message arrives.
    UcOutOfBounds,
    /// UC: a SEND without a receive is dropped; the next message arrives.
    UcNoReceive,
    /// UD: a datagram with another Q_Key is dropped; the next one arrives.
    UdWrongQkey,
    /// UD: a datagram without a receive is dropped; the next one arrives.
    UdNoReceive,
    /// Three queue pairs share one receive queue.
    SrqShared,
    /// A shared receive queue raises one event when it holds fewer receives than the limit.
    SrqLimit,
    /// A window of type 2 opens its range to its queue pair, and nothing beyond.
    WindowAccess,
    /// A window opens nothing after its owner has invalidated it.
    WindowLocalInvalidate,
    /// A window opens nothing after a SEND with invalidate; the receive reports the key.
    WindowSendInvalidate,
    /// A queue pair receives datagrams to its multicast group, and none after leaving.
    Multicast,
    /// A zero-based region.
    ZeroBased,
    /// WRITEs with congestion control at Roxie, so that its packets are ECN-capable.
    PacedWrite,
    /// READs with congestion control at Roxie.
    PacedRead,
    /// SENDs with congestion control at Roxie.
    PacedSend,
    /// The sender of data gets a congestion notification.
    Notified,
    /// WRITE, FLUSH of its range for global visibility, READ, posted together.
    FlushRange,
    /// FLUSH of a whole region, which ignores the range.
    FlushRegion,
    /// FLUSH of no bytes.
    FlushNothing,
    /// FLUSH for persistence, and for both placement types.
    FlushPersistent,
}

/// The stock pingpongs, without `ibv_` and `_pingpong`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the programs' names")]
pub enum Stock {
    Rc,
    Uc,
    Ud,
    Srq,
}

/// A test of NVMe over Fabrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Blocks {
    /// Blocks are written, read and compared.
    Moved(Impairment),
    /// Likewise, while the target is killed and started again.
    Restarted,
}

/// Test of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Case {
    /// Verified transfers of one operation.
    Transfer {
        /// The transport service of both QPs.
        service: Service,
        /// The operation.
        op: Op,
        /// Path MTU in bytes.
        mtu: usize,
        /// Bytes of a message.
        size: usize,
        /// Faults of Roxie's fault port.
        fault: Impairment,
    },
    /// An error that the requester provokes.
    Error(ErrorCase),
    /// A feature beside transfers.
    Feature(Feature),
    /// Invalid requests by script, to the peer.
    Wrong(Wrong),
    /// Invalid responses by script, to the peer's requests.
    Odd(Odd),
    /// Stock `ibv_…_pingpong` at the peer with `roxie pingpong …` at the other end; the requester is the client.
    Pingpong(Stock),
    /// A stock program at both ends, unmodified; here under `roxie run`. The requester is the client.
    Program(Program),
    /// NVMe over Fabrics, with the kernel at one end and `roxie nvme` at the other. The requester is the host.
    Nvme(Blocks),
    /// iSCSI over RDMA, with the kernel at one end and tgtd or QEMU, unmodified, at the other. The requester is the
    /// initiator.
    Iser(Impairment),
    /// NFS over RDMA, with the kernel at one end and `roxie nfs` at the other. The requester is the client.
    Nfs(Impairment),
    /// The conformance bench, `roxie conform`, with its agent at the peer.
    Conform,
    /// Verified transfers of one operation on another link.
    Over(Network, Transfer),
    /// A stock program as [`Case::Program`], with losses and with selective repeat asked for, which the peer does not
    /// have.
    Fallback(Program),
    /// A stock program as [`Case::Program`], on a device of Roxie with the profile of this adapter.
    Profiled(&'static str, Program),
    /// A stock program on a bond in the guest, with Roxie at both ends.
    Bond(Bond),
}

/// A row of the matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Row {
    /// The port that carries Roxie's frames.
    pub port: PortKind,
    /// The test.
    pub case: Case,
    /// The requester's side.
    pub requester: Side,
    /// The IP version of both ends' addresses.
    pub family: Family,
}

/// Every operation of RC transfers.
pub const OPS: [Op; 8] =
    [Op::Send, Op::SendImm, Op::Write, Op::WriteImm, Op::Read, Op::CmpSwap, Op::FetchAdd, Op::AtomicWrite];
const PORTS: [PortKind; 3] = [PortKind::Xdp, PortKind::Packet, PortKind::Udp];
const SIDES: [Side; 2] = [Side::Roxie, Side::Peer];
const FAMILIES: [Family; 2] = [Family::V4, Family::V6];
const MTUS: [usize; 3] = [256, 1024, 4096];
const FAULTS: [Impairment; 3] = [Impairment::Loss1, Impairment::Loss5, Impairment::Reorder];
/// Every error case.
pub const ERRORS: [ErrorCase; 21] = [
    ErrorCase::BadRkeyWrite,
    ErrorCase::BadRkeyRead,
    ErrorCase::BadRkeyAtomic,
    ErrorCase::OutOfBoundsWrite,
    ErrorCase::OutOfBoundsRead,
    ErrorCase::NoRightToWrite,
    ErrorCase::NoRightToRead,
    ErrorCase::NoReceive,
    ErrorCase::LateReceive,
    ErrorCase::TooLong,
    ErrorCase::MisalignedAtomic,
    ErrorCase::BadRkeyAtomicWrite,
    ErrorCase::OutOfBoundsAtomicWrite,
    ErrorCase::NoRightToAtomicWrite,
    ErrorCase::MisalignedAtomicWrite,
    ErrorCase::BadRkeyFlush,
    ErrorCase::OutOfBoundsFlush,
    ErrorCase::NoRightToFlush,
    ErrorCase::NoRightToPersist,
    ErrorCase::WrongPsn,
    ErrorCase::NoSuchPair,
];

/// Rate in Mb/s after the first notification in [`Feature::Notified`]; it rises slowly afterwards.
pub const NOTIFIED_MBPS: u32 = 20;
const NOTIFIED_CONTROL: &str =
    "dcqcn,rate_to_set_on_first_cnp=20,rpg_time_reset=131071,rpg_byte_reset=0,rpg_ai_rate=1,rpg_hai_rate=1";

/// Every feature.
pub const FEATURES: [Feature; 20] = [
    Feature::UcBadRkey,
    Feature::UcOutOfBounds,
    Feature::UcNoReceive,
    Feature::UdWrongQkey,
    Feature::UdNoReceive,
    Feature::SrqShared,
    Feature::SrqLimit,
    Feature::WindowAccess,
    Feature::WindowLocalInvalidate,
    Feature::WindowSendInvalidate,
    Feature::Multicast,
    Feature::ZeroBased,
    Feature::PacedWrite,
    Feature::PacedRead,
    Feature::PacedSend,
    Feature::Notified,
    Feature::FlushRange,
    Feature::FlushRegion,
    Feature::FlushNothing,
    Feature::FlushPersistent,
];
/// Every stock program.
pub const STOCK: [Stock; 4] = [Stock::Rc, Stock::Uc, Stock::Ud, Stock::Srq];

impl Service {
    /// Returns the operations of its transfers.
    pub fn ops(self) -> &'static [Op] {
        match self {
            Service::Rc => &OPS,
            Service::Uc => &[Op::Send, Op::SendImm, Op::Write, Op::WriteImm],
            Service::Ud => &[Op::Send, Op::SendImm],
        }
    }

    /// Returns the path MTUs of its transfers. A datagram has the link's.
    fn mtus(self) -> &'static [usize] {
        match self {
            Service::Ud => &[4096],
            _ => &MTUS,
        }
    }

    /// Returns the message sizes of an operation at a path MTU.
    fn sizes(self, op: Op, mtu: usize) -> Vec<usize> {
        match self {
            Service::Ud => vec![0, 1, mtu - 1, mtu],
            // Nothing paces a UC message: a larger one overruns the queues between the ends.
            Service::Uc => op.sizes(mtu).into_iter().filter(|size| *size <= 64 << 10).collect(),
            Service::Rc => op.sizes(mtu),
        }
    }
}

impl Op {
    /// True if the operation returns the old value.
    pub fn is_atomic(self) -> bool {
        matches!(self, Op::CmpSwap | Op::FetchAdd)
    }

    /// True if the operation always has 8 bytes: an atomic or an ATOMIC WRITE.
    pub fn is_one_word(self) -> bool {
        self.is_atomic() || self == Op::AtomicWrite
    }

    /// True if the operation carries immediate data.
    pub fn has_imm(self) -> bool {
        matches!(self, Op::SendImm | Op::WriteImm)
    }

    /// Returns the operation in its completion: variants of SEND count as SEND, those of WRITE as WRITE.
    pub fn completes_as(self) -> Op {
        match self {
            Op::SendImm | Op::SendInv => Op::Send,
            Op::WriteImm => Op::Write,
            other => other,
        }
    }

    /// True if the operation consumes a receive at the responder.
    pub fn consumes_receive(self) -> bool {
        matches!(self, Op::Send | Op::SendImm | Op::SendInv | Op::WriteImm)
    }

    /// Returns the message sizes at a path MTU.
    fn sizes(self, mtu: usize) -> Vec<usize> {
        match self.is_one_word() {
            true => vec![8],
            false => vec![0, 1, mtu - 1, mtu, mtu + 1, 64 << 10, 1 << 20],
        }
    }
}

impl Row {
    /// Returns the injected fault.
    pub fn fault(&self) -> Impairment {
        match self.case {
            Case::Transfer { fault, .. }
            | Case::Nvme(Blocks::Moved(fault))
            | Case::Iser(fault)
            | Case::Nfs(fault) => fault,
            Case::Over(_, transfer) => transfer.fault,
            Case::Fallback(_) => Impairment::Loss1,
            _ => Impairment::None,
        }
    }

    /// Returns an option of `roxie run` for the row's program.
    pub fn program_option(&self) -> Option<String> {
        match self.case {
            Case::Fallback(_) => Some("--selective-repeat".to_owned()),
            Case::Profiled(adapter, _) => Some(format!("--profile={adapter}")),
            _ => None,
        }
    }

    /// Returns Roxie's congestion control in the row.
    pub fn control(&self) -> Option<&'static str> {
        match self.case {
            Case::Feature(Feature::PacedWrite | Feature::PacedRead | Feature::PacedSend) => Some("dcqcn"),
            Case::Feature(Feature::Notified) => Some(NOTIFIED_CONTROL),
            _ => None,
        }
    }

    /// Returns the link of the row's queue pairs.
    pub fn network(&self) -> Network {
        match self.case {
            Case::Over(network, _) => network,
            _ => Network::Plain,
        }
    }

    /// True for FLUSH and ATOMIC WRITE, which rdma_rxe has since Linux 6.2.
    pub fn is_placement(&self) -> bool {
        match self.case {
            Case::Transfer { op, .. } => op == Op::AtomicWrite,
            Case::Error(error) => {
                error >= ErrorCase::BadRkeyAtomicWrite && error <= ErrorCase::NoRightToPersist
            }
            Case::Feature(feature) => feature >= Feature::FlushRange,
            _ => false,
        }
    }

    /// Returns the number of packets of a message.
    fn packets(&self) -> usize {
        match self.case {
            Case::Transfer { mtu, size, .. } => size.div_ceil(mtu).max(1),
            _ => 1,
        }
    }

    /// Returns the row's seed, from its name (FNV-1a), so that a row always injects the same faults.
    pub fn seed(&self) -> u64 {
        let step = |sum: u64, byte: u8| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        self.to_string().bytes().fold(0xcbf2_9ce4_8422_2325, step)
    }
}
