//! Names of rows and of their parts.

use std::fmt;

use super::{Blocks, Case, ErrorCase, Family, Feature, Impairment, Op, PortKind, Row, Service, Side, Stock};

impl fmt::Display for Service {
    /// The peer program's name of it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Service::Rc => "rc",
            Service::Uc => "uc",
            Service::Ud => "ud",
        })
    }
}

impl fmt::Display for Stock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Stock::Rc => "rc",
            Stock::Uc => "uc",
            Stock::Ud => "ud",
            Stock::Srq => "srq",
        })
    }
}

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Feature::UcBadRkey => "uc/bad_rkey",
            Feature::UcOutOfBounds => "uc/out_of_bounds",
            Feature::UcNoReceive => "uc/no_receive",
            Feature::UdWrongQkey => "ud/wrong_qkey",
            Feature::UdNoReceive => "ud/no_receive",
            Feature::SrqShared => "srq/shared",
            Feature::SrqLimit => "srq/limit",
            Feature::WindowAccess => "window/access",
            Feature::WindowLocalInvalidate => "window/local_invalidate",
            Feature::WindowSendInvalidate => "window/send_invalidate",
            Feature::Multicast => "multicast",
            Feature::ZeroBased => "zero_based",
            Feature::PacedWrite => "cc/write",
            Feature::PacedRead => "cc/read",
            Feature::PacedSend => "cc/send",
            Feature::Notified => "cc/notified",
            Feature::FlushRange => "flush/range",
            Feature::FlushRegion => "flush/region",
            Feature::FlushNothing => "flush/nothing",
            Feature::FlushPersistent => "flush/persistent",
        })
    }
}

impl fmt::Display for Op {
    /// The peer program's name of it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Op::Send => "send",
            Op::SendImm => "send_imm",
            Op::Write => "write",
            Op::WriteImm => "write_imm",
            Op::Read => "read",
            Op::CmpSwap => "cmp_swap",
            Op::FetchAdd => "fetch_add",
            Op::SendInv => "send_inv",
            Op::AtomicWrite => "atomic_write",
            Op::Flush => "flush",
        })
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Side::Roxie => "roxie",
            Side::Peer => "peer",
        })
    }
}

impl fmt::Display for PortKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PortKind::Xdp => "xdp",
            PortKind::Packet => "packet",
            PortKind::Udp => "udp",
        })
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Family::V4 => "v4",
            Family::V6 => "v6",
        })
    }
}

impl fmt::Display for Impairment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Impairment::None => "clean",
            Impairment::Loss1 => "loss1",
            Impairment::Loss5 => "loss5",
            Impairment::Reorder => "reorder",
        })
    }
}

impl fmt::Display for ErrorCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ErrorCase::BadRkeyWrite => "bad_rkey_write",
            ErrorCase::BadRkeyRead => "bad_rkey_read",
            ErrorCase::BadRkeyAtomic => "bad_rkey_atomic",
            ErrorCase::OutOfBoundsWrite => "out_of_bounds_write",
            ErrorCase::OutOfBoundsRead => "out_of_bounds_read",
            ErrorCase::NoRightToWrite => "no_right_to_write",
            ErrorCase::NoRightToRead => "no_right_to_read",
            ErrorCase::NoReceive => "no_receive",
            ErrorCase::LateReceive => "late_receive",
            ErrorCase::TooLong => "too_long",
            ErrorCase::MisalignedAtomic => "misaligned_atomic",
            ErrorCase::BadRkeyAtomicWrite => "bad_rkey_atomic_write",
            ErrorCase::OutOfBoundsAtomicWrite => "out_of_bounds_atomic_write",
            ErrorCase::NoRightToAtomicWrite => "no_right_to_atomic_write",
            ErrorCase::MisalignedAtomicWrite => "misaligned_atomic_write",
            ErrorCase::BadRkeyFlush => "bad_rkey_flush",
            ErrorCase::OutOfBoundsFlush => "out_of_bounds_flush",
            ErrorCase::NoRightToFlush => "no_right_to_flush",
            ErrorCase::NoRightToPersist => "no_right_to_persist",
            ErrorCase::WrongPsn => "wrong_psn",
            ErrorCase::NoSuchPair => "no_such_pair",
        })
    }
}

impl fmt::Display for Row {
    /// The name: `xdp/v4/roxie/write_imm/mtu1024/1025B/clean`. The third part is the requester. Services other than RC
    /// are named before the operation.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Row { port, family, requester, case } = self;
        write!(f, "{port}/{family}/{requester}/")?;
        match case {
            Case::Transfer { service: Service::Rc, op, mtu, size, fault } => {
                write!(f, "{op}/mtu{mtu}/{size}B/{fault}")
            }
            Case::Transfer { service, op, mtu, size, fault } => {
                write!(f, "{service}/{op}/mtu{mtu}/{size}B/{fault}")
            }
            Case::Error(case) => write!(f, "error/{case}"),
            Case::Feature(feature) => write!(f, "{feature}"),
            Case::Wrong(wrong) => write!(f, "wrong/{wrong}"),
            Case::Odd(odd) => write!(f, "odd/{odd}"),
            Case::Pingpong(program) => write!(f, "ibv_{program}_pingpong"),
            Case::Program(program) => write!(f, "{program}"),
            Case::Nvme(Blocks::Moved(fault)) => write!(f, "nvme/{fault}"),
            Case::Nvme(Blocks::Restarted) => write!(f, "nvme/restarted"),
            Case::Iser(fault) => write!(f, "iser/{fault}"),
            Case::Nfs(fault) => write!(f, "nfs/{fault}"),
            Case::Conform => write!(f, "conform"),
            Case::Over(network, transfer) => write!(f, "{network}/{transfer}"),
            Case::Fallback(program) => write!(f, "sr/{program}"),
            Case::Profiled(adapter, program) => write!(f, "profile/{adapter}/{program}"),
            Case::Bond(bond) => write!(f, "bond/{bond}"),
        }
    }
}
