//! What a NIC does otherwise than Roxie's own: the behaviour of an adapter, as somebody has measured it.
//!
//! A profile is settled when a QP is made. Fields without a value keep Roxie's own behaviour.

mod timer;
#[cfg(test)]
mod timer_tests;

pub use timer::{AckTimer, AckTimerRun, Adaptive, Expiry, Step, nominal};

use roxie_base::time::Nanos;
use serde::{Deserialize, Serialize};

/// The behaviour of an adapter.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// The ACK timer. `None`: the timeout of the QP's attributes, as often as its retries (IBTA 9.7.6.1.3).
    pub ack_timer: Option<AckTimer>,
    /// Time that an RNR wait lasts longer than the peer's timer code says.
    pub rnr_extra: Nanos,
    /// Vendor errors of completions. `None`: Roxie's own.
    pub vendor_err: VendorErrors,
    /// `req_cqe_error` counts the root cause and the first flush behind none, and `req_cqe_flush_error` nothing.
    pub counts_root_alone: bool,
    /// A QP that has failed says that it has sent what is acknowledged, and no more.
    pub sq_psn_is_acknowledged: bool,
    /// The responder.
    pub responder: ResponderProfile,
    /// The packets of a connection.
    pub packets: PacketProfile,
    /// Local CA ACK delay, which ACK timeouts cover: 4.096 us times two to its power. `None`: Roxie's own.
    pub ack_delay: Option<u8>,
    /// What the device says that it is. `None`: a Roxie.
    pub identity: Option<Identity>,
    /// Congestion notifications (CNP).
    pub cnp: CnpProfile,
}

impl PacketProfile {
    /// True if requests differ in their BTH: these are not sent by the fast path.
    pub fn differs_in_requests(&self) -> bool {
        self.request_bits != 0 || self.first_requests_ack
    }
}

/// An adapter's congestion notifications. `None`: as Roxie's own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CnpProfile {
    /// UDP source port. Roxie's own: that of the QP.
    pub source_port: Option<u16>,
    /// MigReq bit. Roxie's own: that of the QP.
    pub mig_req: Option<bool>,
    /// IPv4 identification of the first one; each later one has the next. Roxie's own: 0.
    pub first_ip_id: Option<u16>,
    /// A sequence NAK brings a CNP as well.
    pub answers_gaps: bool,
}

/// What an adapter says that it is (`ibv_query_device`, sysfs, netlink).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Vendor ID.
    pub vendor: u32,
    /// Number of the part.
    pub part: u32,
    /// Version of the firmware.
    pub firmware: String,
    /// Board ID.
    pub board: String,
}

/// What is different in an adapter's packets of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PacketProfile {
    /// MigReq bit. `None`: as the device is configured.
    pub mig_req: Option<bool>,
    /// The UDP source port is the sender's QPN, its lower 16 bits.
    pub source_port_is_qpn: bool,
    /// All are ECN-capable (ECT(0)), whatever the path's traffic class says.
    pub is_ecn_capable: bool,
    /// The six reserved bits behind FECN and BECN, of requests of RC and XRC.
    pub request_bits: u8,
    /// The first packet of a connection asks for an acknowledgement, be it the last one of its message or not.
    pub first_requests_ack: bool,
    /// ACKs have the number of posted receives, agreed or not (IBTA 9.7.7.2).
    pub has_credits: bool,
}

/// The behaviour of an adapter's responder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResponderProfile {
    /// The range of a WRITE is checked packet by packet: those that fit are placed.
    pub checks_each_packet: bool,
    /// `rx_write_requests` counts a WRITE before its key is checked, and not once it is executed.
    pub counts_before_key: bool,
    /// Counters of requests that were refused do not move.
    pub counts_no_refusal: bool,
}

macro_rules! vendor_errors {
    ($($(#[$doc:meta])* $field:ident,)*) => {
        /// Vendor errors by cause.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        pub struct VendorErrors {
            $($(#[$doc])* pub $field: Option<u8>,)*
        }

        impl VendorErrors {
            /// Returns the vendor error of a cause by its name. `None`: there is no such cause.
            pub fn by_name(&mut self, name: &str) -> Option<&mut Option<u8>> {
                match name {
                    $(stringify!($field) => Some(&mut self.$field),)*
                    _ => None,
                }
            }

            /// Returns the names of causes.
            pub fn names() -> &'static [&'static str] {
                &[$(stringify!($field)),*]
            }
        }
    };
}

vendor_errors! {
    /// Memory of a work request ends before its bytes do.
    local_length,
    /// A key of a work request names no memory.
    local_key,
    /// Memory of a work request may not be written.
    local_access,
    /// The first flush of a QP that software has moved to the error state.
    flush_head,
    /// Every other flush.
    flush_rest,
    /// NAK: invalid request.
    remote_invalid,
    /// NAK: remote access error.
    remote_access,
    /// No retry is left.
    retries,
    /// No RNR retry is left.
    rnr_retries,
}
