//! What the kernel offers to protect a NIC from its clients, and from strangers.

use std::fmt;

use roxie_base::descriptors::sockets_can_refuse_descriptors;
use roxie_nic::shared::remote_memory::RemoteMemory;

/// A means of protection that came with a later kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Means {
    /// `PROCMAP_QUERY`, Linux 6.11: asks for the protection of pages before each copy.
    PageProtection,
    /// `SO_PASSRIGHTS`, Linux 6.16: a socket that receives no descriptors.
    RefusedDescriptors,
}

impl Means {
    /// Returns the means that this kernel lacks.
    pub fn missing() -> Vec<Means> {
        let all = [
            (Means::PageProtection, RemoteMemory::is_checked_before_copies()),
            (Means::RefusedDescriptors, sockets_can_refuse_descriptors()),
        ];
        all.into_iter().filter(|(_, is_there)| !is_there).map(|(means, _)| means).collect()
    }

    /// Returns the first kernel that has it.
    pub fn since(self) -> &'static str {
        match self {
            Means::PageProtection => "6.11",
            Means::RefusedDescriptors => "6.16",
        }
    }
}

impl fmt::Display for Means {
    /// What can happen without it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Means::PageProtection => {
                "a page that a program makes read-only after its registration is written all the same"
            }
            Means::RefusedDescriptors => {
                "any process of this network namespace can stop new connections to the NIC by a descriptor that it sends"
            }
        })
    }
}
