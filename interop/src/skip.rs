//! Reasons to skip a row.

use std::fmt;

/// The only reasons for which a row may be skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SkipReason {
    /// The port cannot be opened on this host (no AF_XDP, or no permission).
    PortUnavailable,
    /// The peer's link does not carry the path MTU.
    PeerMtuTooSmall,
    /// The peer has no GID of the IP version.
    PeerHasNoAddress,
    /// The peer's device has no atomics.
    PeerHasNoAtomics,
    /// The peer's device has no FLUSH or no ATOMIC WRITE.
    PeerHasNoPlacement,
    /// The peer has no persistent memory to register for FLUSH.
    PeerHasNoPersistentMemory,
    /// The peer's driver refuses to post the invalid request.
    PeerRefusesToPost,
    /// The peer's device has no XRC.
    PeerHasNoXrc,
    /// The stock program is not installed.
    ProgramMissing,
    /// The program of that name is another, incompatible version.
    ProgramIsAnother,
    /// The peer's connection manager does not join IPv6 groups.
    PeerJoinsNoV6Group,
    /// The peer drops unsent requests when a queue pair is destroyed, which the program does at once.
    PeerForgetsUnsent,
    /// The program addresses peers by LID, which RoCE lacks, and not by GID.
    ProgramNamesNoGid,
    /// The program was built without verbs.
    ProgramHasNoVerbs,
    /// The kernel has RDMA of its own, so the program asks the kernel.
    KernelHasRdma,
    /// Roxie has no counterpart of the stock program yet.
    RoxieHasNoProgram,
    /// The peer has no VLAN interface, and cannot be given one: it is hardware, or its kernel lacks them.
    PeerHasNoVlan,
    /// The row needs network namespaces or a guest, which a run with a hardware peer lacks.
    NeedsGuest,
    /// The guest's kernel has no bonds.
    KernelHasNoBonds,
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
            SkipReason::PeerHasNoVlan => "peer-has-no-vlan",
            SkipReason::NeedsGuest => "needs-guest",
            SkipReason::KernelHasNoBonds => "kernel-has-no-bonds",
        })
    }
}
