//! Names of enumeration values, and static rates.

use std::ffi::{CStr, c_char, c_int};

use crate::abi::{
    ibv_event_type as event, ibv_node_type as node, ibv_port_state as port, ibv_rate, ibv_wc_status as wc,
    ibv_wr_opcode as opcode,
};
use crate::base::newer;

/// Defines a function that maps numbers to names.
macro_rules! names {
    ($(#[$doc:meta])* $function:ident($type:ty) else $unknown:literal: $($number:path => $name:literal,)*) => {
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub extern "C" fn $function(number: $type) -> *const c_char {
            let name: &'static CStr = match number {
                $($number => $name,)*
                _ => $unknown,
            };
            name.as_ptr()
        }
    };
}

names! {
    /// Returns the name of a node type.
    ibv_node_type_str(node::Type) else c"unknown":
    node::IBV_NODE_CA => c"channel adapter",
    node::IBV_NODE_SWITCH => c"switch",
    node::IBV_NODE_ROUTER => c"router",
    node::IBV_NODE_RNIC => c"iWARP NIC",
    node::IBV_NODE_USNIC => c"usNIC",
    node::IBV_NODE_USNIC_UDP => c"usNIC over UDP",
    node::IBV_NODE_UNSPECIFIED => c"unspecified",
}

names! {
    /// Returns the name of a port state.
    ibv_port_state_str(port::Type) else c"unknown":
    port::IBV_PORT_NOP => c"no state change (NOP)",
    port::IBV_PORT_DOWN => c"down",
    port::IBV_PORT_INIT => c"init",
    port::IBV_PORT_ARMED => c"armed",
    port::IBV_PORT_ACTIVE => c"active",
    port::IBV_PORT_ACTIVE_DEFER => c"active defer",
}

names! {
    /// Returns the name of an asynchronous event.
    ibv_event_type_str(event::Type) else c"unknown":
    event::IBV_EVENT_CQ_ERR => c"completion queue error",
    event::IBV_EVENT_QP_FATAL => c"local work queue fatal error",
    event::IBV_EVENT_QP_REQ_ERR => c"invalid request of the peer",
    event::IBV_EVENT_QP_ACCESS_ERR => c"access violation by the peer",
    event::IBV_EVENT_COMM_EST => c"communication established",
    event::IBV_EVENT_SQ_DRAINED => c"send queue drained",
    event::IBV_EVENT_PATH_MIG => c"path migrated",
    event::IBV_EVENT_PATH_MIG_ERR => c"path migration failed",
    event::IBV_EVENT_DEVICE_FATAL => c"device failed",
    event::IBV_EVENT_PORT_ACTIVE => c"port active",
    event::IBV_EVENT_PORT_ERR => c"port error",
    event::IBV_EVENT_LID_CHANGE => c"LID changed",
    event::IBV_EVENT_PKEY_CHANGE => c"P_Key table changed",
    event::IBV_EVENT_SM_CHANGE => c"subnet manager changed",
    event::IBV_EVENT_SRQ_ERR => c"shared receive queue error",
    event::IBV_EVENT_SRQ_LIMIT_REACHED => c"shared receive queue limit reached",
    event::IBV_EVENT_QP_LAST_WQE_REACHED => c"last receive taken",
    event::IBV_EVENT_CLIENT_REREGISTER => c"clients are to register again",
    event::IBV_EVENT_GID_CHANGE => c"GID table changed",
    event::IBV_EVENT_WQ_FATAL => c"work queue fatal error",
    newer::IBV_EVENT_DEVICE_SPEED_CHANGE => c"device speed changed",
}

names! {
    /// Returns the name of a completion status.
    ibv_wc_status_str(wc::Type) else c"unknown":
    wc::IBV_WC_SUCCESS => c"success",
    wc::IBV_WC_LOC_LEN_ERR => c"local length error",
    wc::IBV_WC_LOC_QP_OP_ERR => c"local QP operation error",
    wc::IBV_WC_LOC_EEC_OP_ERR => c"local EE context operation error",
    wc::IBV_WC_LOC_PROT_ERR => c"local protection error",
    wc::IBV_WC_WR_FLUSH_ERR => c"work request flushed",
    wc::IBV_WC_MW_BIND_ERR => c"memory window bind error",
    wc::IBV_WC_BAD_RESP_ERR => c"bad response",
    wc::IBV_WC_LOC_ACCESS_ERR => c"local access error",
    wc::IBV_WC_REM_INV_REQ_ERR => c"remote invalid request error",
    wc::IBV_WC_REM_ACCESS_ERR => c"remote access error",
    wc::IBV_WC_REM_OP_ERR => c"remote operation error",
    wc::IBV_WC_RETRY_EXC_ERR => c"transport retries exceeded",
    wc::IBV_WC_RNR_RETRY_EXC_ERR => c"RNR retries exceeded",
    wc::IBV_WC_LOC_RDD_VIOL_ERR => c"local RDD violation",
    wc::IBV_WC_REM_INV_RD_REQ_ERR => c"remote invalid RD request",
    wc::IBV_WC_REM_ABORT_ERR => c"aborted by the peer",
    wc::IBV_WC_INV_EECN_ERR => c"invalid EE context number",
    wc::IBV_WC_INV_EEC_STATE_ERR => c"invalid EE context state",
    wc::IBV_WC_FATAL_ERR => c"fatal error",
    wc::IBV_WC_RESP_TIMEOUT_ERR => c"response timeout",
    wc::IBV_WC_GENERAL_ERR => c"general error",
    wc::IBV_WC_TM_ERR => c"tag matching error",
    wc::IBV_WC_TM_RNDV_INCOMPLETE => c"tag matching: rendezvous incomplete",
}

names! {
    /// Returns the name of a work request's opcode: `ibv_wr_opcode_str` of `private.c`.
    roxie_wr_opcode_str(opcode::Type) else c"unknown":
    opcode::IBV_WR_RDMA_WRITE => c"RDMA WRITE",
    opcode::IBV_WR_RDMA_WRITE_WITH_IMM => c"RDMA WRITE with immediate",
    opcode::IBV_WR_SEND => c"SEND",
    opcode::IBV_WR_SEND_WITH_IMM => c"SEND with immediate",
    opcode::IBV_WR_RDMA_READ => c"RDMA READ",
    opcode::IBV_WR_ATOMIC_CMP_AND_SWP => c"atomic compare and swap",
    opcode::IBV_WR_ATOMIC_FETCH_AND_ADD => c"atomic fetch and add",
    opcode::IBV_WR_LOCAL_INV => c"local invalidate",
    opcode::IBV_WR_BIND_MW => c"bind memory window",
    opcode::IBV_WR_SEND_WITH_INV => c"SEND with invalidate",
    opcode::IBV_WR_TSO => c"segmentation offload",
    opcode::IBV_WR_DRIVER1 => c"driver's own",
    newer::IBV_WR_FLUSH => c"FLUSH",
    opcode::IBV_WR_ATOMIC_WRITE => c"ATOMIC WRITE",
}

/// Static rates: code, multiple of 2.5 Gb/s (0: none), and rate on the link in Mb/s.
const RATES: &[(ibv_rate::Type, c_int, c_int)] = &[
    (ibv_rate::IBV_RATE_2_5_GBPS, 1, 2_500),
    (ibv_rate::IBV_RATE_5_GBPS, 2, 5_000),
    (ibv_rate::IBV_RATE_10_GBPS, 4, 10_000),
    (ibv_rate::IBV_RATE_20_GBPS, 8, 20_000),
    (ibv_rate::IBV_RATE_30_GBPS, 12, 30_000),
    (ibv_rate::IBV_RATE_40_GBPS, 16, 40_000),
    (ibv_rate::IBV_RATE_60_GBPS, 24, 60_000),
    (ibv_rate::IBV_RATE_80_GBPS, 32, 80_000),
    (ibv_rate::IBV_RATE_120_GBPS, 48, 120_000),
    (ibv_rate::IBV_RATE_14_GBPS, 0, 14_062),
    (ibv_rate::IBV_RATE_28_GBPS, 11, 28_125),
    (ibv_rate::IBV_RATE_50_GBPS, 20, 53_125),
    (ibv_rate::IBV_RATE_56_GBPS, 0, 56_250),
    (ibv_rate::IBV_RATE_112_GBPS, 0, 112_500),
    (ibv_rate::IBV_RATE_168_GBPS, 0, 168_750),
    (ibv_rate::IBV_RATE_25_GBPS, 0, 25_781),
    (ibv_rate::IBV_RATE_100_GBPS, 0, 103_125),
    (ibv_rate::IBV_RATE_200_GBPS, 0, 206_250),
    (ibv_rate::IBV_RATE_300_GBPS, 0, 309_375),
    (ibv_rate::IBV_RATE_400_GBPS, 160, 425_000),
    (ibv_rate::IBV_RATE_600_GBPS, 240, 637_500),
    (ibv_rate::IBV_RATE_800_GBPS, 320, 850_000),
    (ibv_rate::IBV_RATE_1200_GBPS, 480, 1_275_000),
];

/// Converts a rate to a multiple of 2.5 Gb/s; -1 for a rate that is not one.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_rate_to_mult(rate: ibv_rate::Type) -> c_int {
    RATES.iter().find(|(code, multiple, _)| *code == rate && *multiple > 0).map_or(-1, |row| row.1)
}

/// Returns the rate that is this multiple of 2.5 Gb/s, or `IBV_RATE_MAX` if there is none.
#[unsafe(no_mangle)]
pub extern "C" fn mult_to_ibv_rate(multiple: c_int) -> ibv_rate::Type {
    let row = RATES.iter().find(|(_, known, _)| *known == multiple && multiple > 0);
    row.map_or(ibv_rate::IBV_RATE_MAX, |row| row.0)
}

/// Converts a rate to Mb/s; -1 for an unknown rate.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_rate_to_mbps(rate: ibv_rate::Type) -> c_int {
    RATES.iter().find(|(code, ..)| *code == rate).map_or(-1, |row| row.2)
}

/// Returns the rate of this many Mb/s, or `IBV_RATE_MAX` if there is none.
#[unsafe(no_mangle)]
pub extern "C" fn mbps_to_ibv_rate(mbps: c_int) -> ibv_rate::Type {
    RATES.iter().find(|(.., known)| *known == mbps).map_or(ibv_rate::IBV_RATE_MAX, |row| row.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_round_trip_through_mbps() {
        for (code, multiple, mbps) in RATES {
            assert_eq!(mbps_to_ibv_rate(ibv_rate_to_mbps(*code)), *code);
            assert_eq!(ibv_rate_to_mult(*code), if *multiple > 0 { *multiple } else { -1 });
            assert_eq!(ibv_rate_to_mbps(*code), *mbps);
            if *multiple > 0 {
                assert_eq!(mult_to_ibv_rate(*multiple), *code);
            }
        }
        assert_eq!(mult_to_ibv_rate(0), ibv_rate::IBV_RATE_MAX);
        assert_eq!(ibv_rate_to_mbps(9_999), -1);
    }

    #[test]
    fn unnamed_number_is_unknown() {
        // SAFETY: a static string.
        let of = |name| unsafe { CStr::from_ptr(name) }.to_str().unwrap();
        assert_eq!(of(ibv_wc_status_str(12)), "transport retries exceeded");
        assert_eq!(of(ibv_wc_status_str(9_999)), "unknown");
        assert_eq!(of(ibv_node_type_str(-1)), "unknown");
        assert_eq!(of(roxie_wr_opcode_str(opcode::IBV_WR_RDMA_READ)), "RDMA READ");
        assert_eq!(of(roxie_wr_opcode_str(14)), "FLUSH");
        assert_eq!(of(roxie_wr_opcode_str(12)), "unknown");
    }
}
