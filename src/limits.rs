//! Every bound of the device, in one place.
//!
//! A value of [`Limits`] is given to a NIC when it is made, so that a simulated host among a
//! thousand does not carry a server's tables.

/// Frames of a receive burst, at most.
pub const BURST: usize = 64;

/// Scatter/gather entries that one work request may have at most.
pub const MAX_SGE: usize = 32;
/// Bytes of inline payload at most.
pub const MAX_INLINE: usize = 512;
/// Work requests per queue at most.
pub const MAX_WR: u32 = 16 * 1024;
/// Entries per completion queue at most.
pub const MAX_CQE: u32 = 1 << 20;
/// Pages that a fast-registered region may have at most (`max_fast_reg_page_list_len` of kernel devices, 512 of rdma_rxe). The list is read
/// between two packets: 512 words, in a microsecond.
pub const MAX_PAGE_LIST: u32 = 512;
/// Bytes per message at most (IBTA 9.7.7: 2^31).
pub const MAX_MESSAGE: u32 = 1 << 31;

/// Bounds of one NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Queue pairs, at most 2^16.
    pub qps: u32,
    /// Completion queues of a device.
    pub cqs: u32,
    /// Memory regions, at most 2^16.
    pub mrs: u32,
    /// Address handles, at most 2^16.
    pub ahs: u32,
    /// Shared receive queues, at most 2^16.
    pub srqs: u32,
    /// XRC domains of a device.
    pub xrcds: u32,
    /// Multicast groups in which QPs of the device are.
    pub groups: u32,
    /// QPs in one multicast group.
    pub group_members: u32,
    /// `max_rd_atomic` and `max_dest_rd_atomic` at most.
    pub rd_atomic: u8,
    /// PSNs that a QP may have unacknowledged (rxe: 128).
    pub window: u32,
    /// Packets that the requester sends between two that ask for an acknowledgement (rxe: 64).
    pub ack_request_interval: u32,
    /// Packets that the responder takes in without having been asked for an acknowledgement
    /// before it sends one all the same.
    pub ack_coalesce: u32,
    /// Packets that a QP may send in one turn of the arbiter.
    pub tx_quantum: u32,
    /// Packets that all QPs together send in one pass.
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
    /// A small NIC, for tests and simulated hosts.
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

/// Bounds of one connection manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CmLimits {
    /// Connections and resolutions, those that linger included; at most 2^16.
    pub connections: u32,
    /// Services that are listened for at once.
    pub listeners: u32,
    /// Events that may wait for the consumer before requests of peers are dropped.
    pub events: usize,
    /// Messages that may wait to be sent; more are dropped, and come again.
    pub transmits: usize,
    /// Requests that may wait for a listener; more are refused at once.
    pub early: usize,
    /// The largest timeout code of a peer that is believed: 4.096 us * 2^24 is 69 s, what Linux asks for in an MRA.
    pub timeout_code: u8,
    /// The largest that a request is granted: how long each answer is waited for, and how long the connection lingers. 4.096 us * 2^20 is 4.3 s,
    /// what Linux asks for.
    pub granted_code: u8,
    /// How often an answer is sent again at most, whatever the request says. The peer asks again, too, for as long as it likes.
    pub granted_retries: u8,
    /// Requests of one address that may be there without a connection coming of them, so that one host leaves places to the others.
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
