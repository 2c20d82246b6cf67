//! All limits of the device.
//!
//! A NIC gets its [`Limits`] when it is created, so that each of a thousand simulated hosts can have small
//! tables.

/// Maximum number of frames per receive burst.
pub const BURST: usize = 64;

/// Maximum number of scatter/gather entries per work request.
pub const MAX_SGE: usize = 32;
/// Maximum bytes of inline payload.
pub const MAX_INLINE: usize = 512;
/// Maximum number of work requests per queue.
pub const MAX_WR: u32 = 16 * 1024;
/// Maximum number of entries per completion queue.
pub const MAX_CQE: u32 = 1 << 20;
/// Maximum number of pages of a fast-registered region (`max_fast_reg_page_list_len` of kernel devices;
/// rdma_rxe has 512). The NIC reads the list between two packets: 512 words take about 1 us.
pub const MAX_PAGE_LIST: u32 = 512;
/// Maximum bytes per message (IBTA 9.7.7: 2^31).
pub const MAX_MESSAGE: u32 = 1 << 31;

/// Limits of one NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Queue pairs, at most 2^16.
    pub qps: u32,
    /// Completion queues.
    pub cqs: u32,
    /// Memory regions, at most 2^16.
    pub mrs: u32,
    /// Address handles, at most 2^16.
    pub ahs: u32,
    /// Shared receive queues, at most 2^16.
    pub srqs: u32,
    /// XRC domains.
    pub xrcds: u32,
    /// Multicast groups with QPs of the device as members.
    pub groups: u32,
    /// Members per multicast group.
    pub group_members: u32,
    /// Maximum of `max_rd_atomic` and `max_dest_rd_atomic`.
    pub rd_atomic: u8,
    /// Unacknowledged PSNs of a QP (rxe: 128).
    pub window: u32,
    /// Packets that the requester sends before one requests an acknowledgement (rxe: 64).
    pub ack_request_interval: u32,
    /// Packets that the responder receives before it sends an acknowledgement without a request for one.
    pub ack_coalesce: u32,
    /// Packets that a QP sends in one turn of the arbiter.
    pub tx_quantum: u32,
    /// Packets that all QPs send in one pass.
    pub tx_burst: u32,
    /// Work requests fetched from one send queue in one pass.
    pub fetch_burst: u32,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            qps: 16 * 1024,
            cqs: 16 * 1024,
            mrs: 64 * 1024,
            ahs: 16 * 1024,
            srqs: 16 * 1024,
            xrcds: 1024,
            groups: 1024,
            group_members: 56,
            rd_atomic: 16,
            window: 128,
            ack_request_interval: 64,
            ack_coalesce: 64,
            tx_quantum: 32,
            tx_burst: 128,
            fetch_burst: 64,
        }
    }
}

impl Limits {
    /// Returns the limits of a small NIC, for tests and simulated hosts.
    pub fn small() -> Limits {
        Limits {
            qps: 256,
            cqs: 256,
            mrs: 1024,
            ahs: 256,
            srqs: 64,
            xrcds: 16,
            groups: 16,
            ..Limits::default()
        }
    }
}

/// Limits of one connection manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CmLimits {
    /// Connections and resolutions, including lingering ones; at most 2^16.
    pub connections: u32,
    /// Services with a listener at a time.
    pub listeners: u32,
    /// Events queued for the consumer. Beyond, requests of peers are dropped.
    pub events: usize,
    /// Messages queued for sending. Further ones are dropped, and retransmitted later.
    pub transmits: usize,
    /// Requests waiting for a listener. Further ones are rejected immediately.
    pub early: usize,
    /// Maximum timeout code accepted from a peer: 4.096 us * 2^24 is 69 s, as Linux requests in an MRA.
    pub timeout_code: u8,
    /// Maximum timeout code granted to a request, which determines the wait for each response and how long
    /// the connection lingers: 4.096 us * 2^20 is 4.3 s, as Linux requests.
    pub granted_code: u8,
    /// Maximum number of retransmissions of a response, whatever the request allows. The peer may still
    /// repeat its request.
    pub granted_retries: u8,
    /// Half-open requests per address, so that one host leaves entries to others.
    pub half_open: u32,
}

impl Default for CmLimits {
    fn default() -> CmLimits {
        CmLimits {
            connections: 16 * 1024,
            listeners: 1024,
            events: 4096,
            transmits: 4096,
            early: 64,
            timeout_code: 24,
            granted_code: 20,
            granted_retries: 5,
            half_open: 2048,
        }
    }
}
