//! The bounds of processes and users.

/// The bounds of a process, or of all processes of a user together. All are finite, because the processes share the
/// device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Queue pairs.
    pub qps: u32,
    /// Entries of all completion queues.
    pub cqes: u64,
    /// Memory regions and windows.
    pub mrs: u32,
    /// Bytes of all memory regions, which cost the NIC no memory: it pins no pages.
    pub bytes: u64,
    /// All other objects: protection domains, completion queues, shared receive queues, address handles, XRC domains,
    /// flows.
    pub objects: u32,
    /// Bytes of lent memory (queues, and files of registered memory that the NIC maps), and of the NIC's copies of send
    /// queues. A process has an eighth of the machine's memory at most, a user a quarter, and all together half of it.
    pub queue_bytes: u64,
    /// Pieces of lent memory, for queues and for registered memory. Each is a mapping of the NIC.
    pub arenas: u32,
    /// Completion channels of its queues. Each is a descriptor of the NIC.
    pub channels: u32,
    /// Openings of XRC domains; a domain counts as an object too.
    pub xrcds: u32,
    /// QPs in multicast groups.
    pub memberships: u32,
    /// Flows, which count as objects too.
    pub flows: u32,
    /// Port numbers and services of `rdma_cm`.
    pub ports: u32,
    /// Bits per second of data frames, over all QPs.
    pub bits_per_second: u64,
}

impl Default for Quota {
    /// The bounds of a process: half of the device's QPs, regions and other objects, so that a program that takes all
    /// it can leaves as many to others; 16 of the largest completion queues; a whole address space; 4 GiB of queues; an
    /// eighth of a port space; the full rate of the device.
    fn default() -> Quota {
        Quota {
            qps: 8 << 10,
            cqes: 16 << 20,
            mrs: 32 << 10,
            bytes: 1 << 47,
            objects: 8 << 10,
            queue_bytes: 4 << 30,
            arenas: 1 << 10,
            channels: 1 << 10,
            xrcds: 512,
            memberships: 512,
            flows: 32,
            ports: 8 << 10,
            bits_per_second: u64::MAX,
        }
    }
}

impl Quota {
    /// The bounds of all processes of a user: three quarters of what the device has, and four times a process's bounds
    /// of the rest.
    pub fn of_a_user() -> Quota {
        let process = Quota::default();
        Quota {
            qps: 12 << 10,
            mrs: 48 << 10,
            objects: 12 << 10,
            xrcds: 768,
            memberships: 768,
            flows: 48,
            ports: 12 << 10,
            cqes: 4 * process.cqes,
            bytes: 4 * process.bytes,
            queue_bytes: 4 * process.queue_bytes,
            arenas: 4 * process.arenas,
            channels: 4 * process.channels,
            bits_per_second: u64::MAX,
        }
    }
}

impl Quota {
    /// Returns one of this many equal parts, at least 1 of each.
    pub(super) fn part(&self, parts: u32) -> Quota {
        let of = |amount: u64| (amount / u64::from(parts)).max(1);
        let small = |amount: u32| (amount / parts).max(1);
        Quota {
            qps: small(self.qps),
            cqes: of(self.cqes),
            mrs: small(self.mrs),
            bytes: of(self.bytes),
            objects: small(self.objects),
            queue_bytes: of(self.queue_bytes),
            arenas: small(self.arenas),
            channels: small(self.channels),
            xrcds: small(self.xrcds),
            memberships: small(self.memberships),
            flows: small(self.flows),
            ports: small(self.ports),
            bits_per_second: self.bits_per_second,
        }
    }
}
