//! Tables of QP state transitions, one per QP type (IBTA table 95; `ib_verbs.c`, `qp_state_table`).

use super::AttrMask as A;
use super::QpState::{self, Init, Reset, Rtr, Rts, Sqd, Sqe};
use super::{AttrMask, QpType};

/// A transition, with the attributes that `modify_qp` must and may set.
#[derive(Debug)]
pub(super) struct Transition {
    from: QpState,
    to: QpState,
    pub(super) required: AttrMask,
    pub(super) optional: AttrMask,
}

/// Returns the row of a transition. The transitions from any state to RESET and ERR, which need STATE alone,
/// are in no table.
pub(super) fn transition(qp_type: QpType, from: QpState, to: QpState) -> Option<&'static Transition> {
    let table = match qp_type {
        QpType::Rc => RC,
        QpType::Uc => UC,
        QpType::Ud => UD,
        QpType::Gsi => GSI,
        QpType::RawPacket => RAW_PACKET,
        QpType::XrcSend => XRC_SEND,
        QpType::XrcRecv => XRC_RECV,
    };
    table.iter().find(|t| t.from == from && t.to == to)
}

const fn any(bits: &[AttrMask]) -> AttrMask {
    let mut mask = AttrMask::empty();
    let mut i = 0;
    while i < bits.len() {
        mask = mask.union(bits[i]);
        i += 1;
    }
    mask
}

const fn row(from: QpState, to: QpState, required: AttrMask, optional: AttrMask) -> Transition {
    Transition { from, to, required, optional }
}

const NONE: AttrMask = AttrMask::empty();
const DRAINED: AttrMask = A::EN_SQD_ASYNC_NOTIFY;
/// Attributes of INIT, for connected and datagram QPs.
const CONNECTED: AttrMask = any(&[A::PKEY_INDEX, A::PORT, A::ACCESS_FLAGS]);
const DATAGRAM: AttrMask = any(&[A::PKEY_INDEX, A::PORT, A::QKEY]);
const MANAGEMENT: AttrMask = any(&[A::PKEY_INDEX, A::QKEY]);
/// Attributes of the path to the peer.
const PATH: AttrMask = any(&[A::AV, A::PATH_MTU, A::DEST_QPN, A::RQ_PSN]);
/// Further attributes of a reliable responder.
const RESPONDER: AttrMask = any(&[A::MAX_DEST_RD_ATOMIC, A::MIN_RNR_TIMER]);
/// Attributes of a reliable requester.
const REQUESTER: AttrMask = any(&[A::SQ_PSN, A::TIMEOUT, A::RETRY_CNT, A::RNR_RETRY, A::MAX_QP_RD_ATOMIC]);
const LATE_PATH: AttrMask = any(&[A::ALT_PATH, A::ACCESS_FLAGS, A::PKEY_INDEX]);
/// Attributes that may change in RTS.
const UC_RTS: AttrMask = any(&[A::CUR_STATE, A::ACCESS_FLAGS, A::ALT_PATH, A::PATH_MIG_STATE]);
const RC_RTS: AttrMask = UC_RTS.union(A::MIN_RNR_TIMER);
const UD_RTS: AttrMask = any(&[A::CUR_STATE, A::QKEY]);
/// Attributes that may change in SQD.
const UC_SQD: AttrMask = any(&[A::AV, A::ALT_PATH, A::ACCESS_FLAGS, A::PKEY_INDEX, A::PATH_MIG_STATE]);
const TIMERS: AttrMask = any(&[A::PORT, A::TIMEOUT]);
const RETRIES: AttrMask = any(&[A::RETRY_CNT, A::RNR_RETRY, A::MAX_QP_RD_ATOMIC]);

//= IBTA 11.2.5.2: transitions-have-their-table
const RC: &[Transition] = &[
    row(Reset, Init, CONNECTED, NONE),
    row(Init, Init, NONE, CONNECTED),
    row(Init, Rtr, PATH.union(RESPONDER), LATE_PATH),
    row(Rtr, Rts, REQUESTER, RC_RTS),
    row(Rts, Rts, NONE, RC_RTS),
    row(Rts, Sqd, NONE, DRAINED),
    row(Sqd, Rts, NONE, RC_RTS),
    row(Sqd, Sqd, NONE, UC_SQD.union(TIMERS).union(RETRIES).union(RESPONDER)),
];

const UC: &[Transition] = &[
    row(Reset, Init, CONNECTED, NONE),
    row(Init, Init, NONE, CONNECTED),
    row(Init, Rtr, PATH, LATE_PATH),
    row(Rtr, Rts, A::SQ_PSN, UC_RTS),
    row(Rts, Rts, NONE, UC_RTS),
    row(Rts, Sqd, NONE, DRAINED),
    row(Sqd, Rts, NONE, UC_RTS),
    row(Sqd, Sqd, NONE, UC_SQD),
    row(Sqe, Rts, NONE, any(&[A::CUR_STATE, A::ACCESS_FLAGS])),
];

const UD: &[Transition] = &[
    row(Reset, Init, DATAGRAM, NONE),
    row(Init, Init, NONE, DATAGRAM),
    row(Init, Rtr, NONE, MANAGEMENT),
    row(Rtr, Rts, A::SQ_PSN, UD_RTS),
    row(Rts, Rts, NONE, UD_RTS),
    row(Rts, Sqd, NONE, DRAINED),
    row(Sqd, Rts, NONE, UD_RTS),
    row(Sqd, Sqd, NONE, MANAGEMENT),
    row(Sqe, Rts, NONE, UD_RTS),
];

/// Like UD, but without PORT: QP1 is created for a port.
const GSI: &[Transition] = &[
    row(Reset, Init, MANAGEMENT, NONE),
    row(Init, Init, NONE, MANAGEMENT),
    row(Init, Rtr, NONE, MANAGEMENT),
    row(Rtr, Rts, A::SQ_PSN, UD_RTS),
    row(Rts, Rts, NONE, UD_RTS),
    row(Rts, Sqd, NONE, DRAINED),
    row(Sqd, Rts, NONE, UD_RTS),
    row(Sqd, Sqd, NONE, MANAGEMENT),
    row(Sqe, Rts, NONE, UD_RTS),
];

/// Frames have no P_Key, Q_Key or QPN: the port is the only attribute.
const RAW_PACKET: &[Transition] = &[
    row(Reset, Init, A::PORT, NONE),
    row(Init, Init, NONE, A::PORT),
    row(Init, Rtr, NONE, NONE),
    row(Rtr, Rts, NONE, NONE),
    row(Rts, Rts, NONE, NONE),
    row(Rts, Sqd, NONE, DRAINED),
    row(Sqd, Rts, NONE, NONE),
    row(Sqe, Rts, NONE, NONE),
];

const XRC_SEND: &[Transition] = &[
    row(Reset, Init, CONNECTED, NONE),
    row(Init, Init, NONE, CONNECTED),
    row(Init, Rtr, PATH, LATE_PATH),
    row(Rtr, Rts, REQUESTER, UC_RTS),
    row(Rts, Rts, NONE, UC_RTS),
    row(Rts, Sqd, NONE, DRAINED),
    row(Sqd, Rts, NONE, UC_RTS),
    row(Sqd, Sqd, NONE, UC_SQD.union(TIMERS).union(RETRIES)),
];

const XRC_RECV: &[Transition] = &[
    row(Reset, Init, CONNECTED, NONE),
    row(Init, Init, NONE, CONNECTED),
    row(Init, Rtr, PATH.union(RESPONDER), LATE_PATH),
    row(Rtr, Rts, any(&[A::SQ_PSN, A::TIMEOUT]), RC_RTS),
    row(Rts, Rts, NONE, RC_RTS),
    row(Rts, Sqd, NONE, DRAINED),
    row(Sqd, Rts, NONE, RC_RTS),
    row(Sqd, Sqd, NONE, UC_SQD.union(TIMERS).union(RESPONDER)),
];
