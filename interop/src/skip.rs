//! Why a row may be skipped.

use std::fmt;

/// The only reasons for which a row may be skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SkipReason {
    /// This host cannot open the port (no AF_XDP, no right to it).
    PortUnavailable,
    /// The peer's link carries no such path MTU.
    PeerMtuTooSmall,
    /// The peer has no GID of the IP version.
    PeerHasNoAddress,
    /// The peer's device has no atomics.
    PeerHasNoAtomics,
    /// The peer's device has no FLUSH or no ATOMIC WRITE.
    PeerHasNoPlacement,
    /// The peer has no persistent memory to register for FLUSH.
    PeerHasNoPersistentMemory,
    /// The peer's driver refuses to post the wrong request that the row is about.
    PeerRefusesToPost,
    /// The peer's device has no XRC.
    PeerHasNoXrc,
    /// The stock program is not there.
    ProgramMissing,
    /// The program of that name is a newer one, which speaks another language than the older.
    ProgramIsAnother,
    /// The peer's kernel does not join the groups of IPv6 that a connection manager joins.
    PeerJoinsNoV6Group,
    /// The peer sends nothing more of a queue pair that is destroyed, and the program destroys it at once.
    PeerForgetsUnsent,
    /// The program names its peers by LIDs, which RoCE has not, and no GIDs.
    ProgramNamesNoGid,
    /// The program was built without verbs.
    ProgramHasNoVerbs,
    /// The kernel has RDMA of its own, and is asked itself.
    KernelHasRdma,
    /// Roxie has no counterpart of the stock program yet.
    RoxieHasNoProgram,
}

impl fmt::Display for SkipReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SkipReason::PortUnavailable => "port-unavailable",
            SkipReason::PeerMtuTooSmall => "peer-mtu-too-small",
            SkipReason::PeerHasNoAddress => "peer-has-no-address",
            SkipReason::PeerHasNoAtomics => "peer-has-no-atomics",
            SkipReason::PeerHasNoPlacement => "peer-has-no-placement",
            SkipReason::PeerHasNoPersistentMemory => "peer-has-no-persistent-memory",
            SkipReason::PeerRefusesToPost => "peer-refuses-to-post",
            SkipReason::PeerHasNoXrc => "peer-has-no-xrc",
            SkipReason::ProgramMissing => "program-missing",
            SkipReason::ProgramIsAnother => "program-is-another",
            SkipReason::PeerJoinsNoV6Group => "peer-joins-no-v6-group",
            SkipReason::PeerForgetsUnsent => "peer-forgets-unsent",
            SkipReason::ProgramNamesNoGid => "program-names-no-gid",
            SkipReason::ProgramHasNoVerbs => "program-has-no-verbs",
            SkipReason::KernelHasRdma => "kernel-has-rdma",
            SkipReason::RoxieHasNoProgram => "roxie-has-no-program",
        })
    }
}
