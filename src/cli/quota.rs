//! Quotas of programs and of users at a NIC, as options.

use clap::Args;
use roxie::congestion::Rate;
use roxie_daemon::Quota;
use roxie_options::bytes::bytes;

/// Quotas of each program.
#[derive(Debug, Args)]
#[command(next_help_heading = "For each program")]
pub(crate) struct Program {
    /// Most queue pairs of a program
    #[arg(long, value_name = "N", default_value_t = 8192)]
    max_qps: u32,
    /// Most completion queue entries, over all its completion queues
    #[arg(long, value_name = "N", default_value_t = 16_777_216)]
    max_cqes: u64,
    /// Most memory regions and windows
    #[arg(long, value_name = "N", default_value_t = 32_768)]
    max_mrs: u32,
    /// Most bytes in memory regions: 512M, 4G
    #[arg(long, value_name = "BYTES", value_parser = bytes, default_value = "128T")]
    max_bytes: u64,
    /// Most other objects: protection domains, completion queues, shared receive queues, address handles, XRC domains,
    /// flows
    #[arg(long, value_name = "N", default_value_t = 8192)]
    max_objects: u32,
    /// Most bytes of queues, with the NIC's copies of send queues
    #[arg(long, value_name = "BYTES", value_parser = bytes, default_value = "4G")]
    max_queue_bytes: u64,
    /// Most pieces of memory that hold its queues; each is a mapping in the NIC
    #[arg(long, value_name = "N", default_value_t = 1024)]
    max_arenas: u32,
    /// Most completion channels; each is a descriptor in the NIC
    #[arg(long, value_name = "N", default_value_t = 1024)]
    max_channels: u32,
    /// Most XRC domains
    #[arg(long, value_name = "N", default_value_t = 512)]
    max_xrcds: u32,
    /// Most QPs in multicast groups
    #[arg(long, value_name = "N", default_value_t = 512)]
    max_memberships: u32,
    /// Most flows
    #[arg(long, value_name = "N", default_value_t = 32)]
    max_flows: u32,
    /// Most port numbers and services of rdma_cm
    #[arg(long, value_name = "N", default_value_t = 8192)]
    max_ports: u32,
    /// Rate limit of all its QPs together, headers included: 500M, 2.5G (bit/s). Acknowledgements are exempt
    #[arg(long, value_name = "RATE")]
    max_rate: Option<Rate>,
}

impl Program {
    pub(crate) fn quota(&self) -> Quota {
        Quota {
            qps: self.max_qps,
            cqes: self.max_cqes,
            mrs: self.max_mrs,
            bytes: self.max_bytes,
            objects: self.max_objects,
            queue_bytes: self.max_queue_bytes,
            arenas: self.max_arenas,
            channels: self.max_channels,
            xrcds: self.max_xrcds,
            memberships: self.max_memberships,
            flows: self.max_flows,
            ports: self.max_ports,
            bits_per_second: self.max_rate.map_or(u64::MAX, |rate| rate.0 as u64),
        }
    }
}

/// Quotas of all programs of a user together.
#[derive(Debug, Args)]
#[command(next_help_heading = "For all programs of a user together")]
pub(crate) struct OfUser {
    /// Most queue pairs of a user's programs together
    #[arg(long, value_name = "N", default_value_t = 12_288)]
    user_max_qps: u32,
    /// Most completion queue entries, over all their completion queues
    #[arg(long, value_name = "N", default_value_t = 67_108_864)]
    user_max_cqes: u64,
    /// Most memory regions and windows
    #[arg(long, value_name = "N", default_value_t = 49_152)]
    user_max_mrs: u32,
    /// Most bytes in memory regions
    #[arg(long, value_name = "BYTES", value_parser = bytes, default_value = "512T")]
    user_max_bytes: u64,
    /// Most other objects, as for --max-objects
    #[arg(long, value_name = "N", default_value_t = 12_288)]
    user_max_objects: u32,
    /// Most bytes of queues, with the NIC's copies of send queues
    #[arg(long, value_name = "BYTES", value_parser = bytes, default_value = "16G")]
    user_max_queue_bytes: u64,
    /// Most pieces of memory that hold their queues
    #[arg(long, value_name = "N", default_value_t = 4096)]
    user_max_arenas: u32,
    /// Most completion channels
    #[arg(long, value_name = "N", default_value_t = 4096)]
    user_max_channels: u32,
    /// Most XRC domains
    #[arg(long, value_name = "N", default_value_t = 768)]
    user_max_xrcds: u32,
    /// Most QPs in multicast groups
    #[arg(long, value_name = "N", default_value_t = 768)]
    user_max_memberships: u32,
    /// Most flows
    #[arg(long, value_name = "N", default_value_t = 48)]
    user_max_flows: u32,
    /// Most port numbers and services of rdma_cm
    #[arg(long, value_name = "N", default_value_t = 12_288)]
    user_max_ports: u32,
    /// Most processes of each user, and units of ended processes with connections that still close. Root and the NIC's
    /// own user may have all 255, and the last 16 are for them
    #[arg(long, value_name = "N", default_value_t = 128)]
    user_max_processes: u32,
}

impl OfUser {
    pub(crate) fn processes(&self) -> u32 {
        self.user_max_processes
    }

    pub(crate) fn quota(&self) -> Quota {
        Quota {
            qps: self.user_max_qps,
            cqes: self.user_max_cqes,
            mrs: self.user_max_mrs,
            bytes: self.user_max_bytes,
            objects: self.user_max_objects,
            queue_bytes: self.user_max_queue_bytes,
            arenas: self.user_max_arenas,
            channels: self.user_max_channels,
            xrcds: self.user_max_xrcds,
            memberships: self.user_max_memberships,
            flows: self.user_max_flows,
            ports: self.user_max_ports,
            bits_per_second: u64::MAX,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use roxie_daemon::Config;

    use super::*;

    #[derive(Debug, Parser)]
    struct Both {
        #[command(flatten)]
        program: Program,
        #[command(flatten)]
        user: OfUser,
    }

    #[test]
    fn defaults_in_the_help_are_the_librarys() {
        let both = Both::parse_from(["nic"]);
        assert_eq!((both.program.quota(), both.user.quota()), (Quota::default(), Quota::of_a_user()));
        assert_eq!(both.user.processes(), Config::default().user_processes);
        let both = Both::parse_from(["nic", "--max-bytes", "1G", "--user-max-arenas", "7"]);
        assert_eq!((both.program.quota().bytes, both.user.quota().arenas), (1 << 30, 7));
        let all = "--max-xrcds 1 --max-memberships 2 --max-flows 3 --user-max-xrcds 4 --user-max-memberships 5 --user-max-flows 6";
        let both = Both::parse_from(["nic"].into_iter().chain(all.split(' ')));
        let of = |quota: Quota| (quota.xrcds, quota.memberships, quota.flows);
        assert_eq!((of(both.program.quota()), of(both.user.quota())), ((1, 2, 3), (4, 5, 6)));
    }
}
