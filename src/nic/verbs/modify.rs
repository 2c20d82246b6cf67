//! Checks of QP state transitions: required and allowed attributes (IBTA 11.2.5.2; `ib_verbs.c`,
//! `qp_state_table`).

use std::fmt;

use super::transitions::transition;
use super::{AttrMask, Mtu, QpAttr, QpState, QpType};

/// Why `modify_qp` was refused. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ModifyError {
    /// No transition exists between the two states.
    NoSuchTransition {
        /// Type of the QP.
        qp_type: QpType,
        /// Current state of the QP.
        from: QpState,
        /// Requested state.
        to: QpState,
    },
    /// The QP is not in the state that the caller assumed.
    NotInAssumedState {
        /// Current state of the QP.
        actual: QpState,
        /// Assumed state (`cur_state`).
        assumed: QpState,
    },
    /// Attributes are missing, or not allowed in this transition.
    Attributes {
        /// Current state of the QP.
        from: QpState,
        /// Requested state.
        to: QpState,
        /// Required attributes that were not given.
        missing: AttrMask,
        /// Given attributes that are neither required nor optional.
        illegal: AttrMask,
    },
    /// The value of an attribute is out of range.
    Value {
        /// Name of the attribute.
        attribute: &'static str,
        /// The rejected value.
        value: u64,
        /// The allowed values.
        allowed: String,
    },
}

impl fmt::Display for ModifyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ModifyError::NoSuchTransition { qp_type, from, to } => {
                write!(
                    f,
                    "modify_qp: no transition leads from {from:?} to {to:?} in a QP of type {qp_type:?}"
                )
            }
            ModifyError::NotInAssumedState { actual, assumed } => {
                write!(f, "modify_qp: cur_state says {assumed:?}, but the QP is in {actual:?}")
            }
            ModifyError::Attributes { from, to, missing, illegal } => {
                write!(f, "modify_qp {from:?} -> {to:?}:")?;
                if !missing.is_empty() {
                    write!(f, " missing {}", names(*missing))?;
                }
                if !illegal.is_empty() {
                    write!(f, " not allowed here {}", names(*illegal))?;
                }
                Ok(())
            }
            ModifyError::Value { attribute, value, allowed } => {
                write!(f, "modify_qp: {attribute} = {value} is out of range, allowed: {allowed}")?;
                if *attribute == "sl" {
                    write!(f, "; RoCE has the eight priorities of 802.1Q")?;
                }
                if attribute.ends_with("rd_atomic") {
                    // perftest (perftest_resources.c, ctx_modify_qp_to_rts) passes the peer's limit, which is
                    // 128 for rdma_rxe.
                    write!(f, "; a peer may have a larger limit: give both ends the lesser (perftest: -o)")?;
                }
                Ok(())
            }
        }
    }
}

impl std::error::Error for ModifyError {}

fn names(mask: AttrMask) -> String {
    mask.iter_names().map(|(name, _)| name).collect::<Vec<_>>().join(", ")
}

/// Checks a transition against the table of the QP's type, then the values. Returns the next state.
///
/// `largest_mtu` is the largest path MTU that the port carries, `limit_rd_atomic` the device's limit of READs
/// and atomics.
///
/// # Errors
/// The transition does not exist, an attribute is missing or not allowed, or a value is out of range.
pub fn check_transition(
    qp_type: QpType,
    from: QpState,
    attr: &QpAttr,
    largest_mtu: Mtu,
    limit_rd_atomic: u8,
) -> Result<QpState, ModifyError> {
    if let Some(assumed) = attr.cur_state
        && assumed != from
    {
        return Err(ModifyError::NotInAssumedState { actual: from, assumed });
    }
    let to = attr.state.unwrap_or(from);
    let given = attr.mask() - AttrMask::STATE;
    //= IBTA 10.3.1: any-state-leads-to-reset-and-error
    let (required, optional) = if matches!(to, QpState::Reset | QpState::Err) {
        (AttrMask::empty(), AttrMask::CUR_STATE)
    } else {
        //= IBTA 11.2.5.2: transitions-have-their-table
        let row = transition(qp_type, from, to).ok_or(ModifyError::NoSuchTransition { qp_type, from, to })?;
        // The kernel's table allows a rate limit for raw packet QPs only; Roxie paces all types.
        let paced = matches!((from, to), (QpState::Rtr | QpState::Rts, QpState::Rts));
        let rate = if paced { AttrMask::RATE_LIMIT } else { AttrMask::empty() };
        (row.required, row.optional | AttrMask::CUR_STATE | rate)
    };
    let missing = required - given;
    let illegal = given - required - optional;
    if !missing.is_empty() || !illegal.is_empty() {
        return Err(ModifyError::Attributes { from, to, missing, illegal });
    }
    check_values(attr, largest_mtu, limit_rd_atomic)?;
    Ok(to)
}

fn check_values(attr: &QpAttr, largest_mtu: Mtu, limit_rd_atomic: u8) -> Result<(), ModifyError> {
    let bounded = [
        ("pkey_index", attr.pkey_index.map(u64::from), 0, 0),
        ("port_num", attr.port.map(u64::from), 1, 1),
        ("min_rnr_timer", attr.min_rnr_timer.map(u64::from), 0, 31),
        ("timeout", attr.timeout.map(u64::from), 0, 31),
        ("retry_cnt", attr.retry_cnt.map(u64::from), 0, 7),
        ("rnr_retry", attr.rnr_retry.map(u64::from), 0, 7),
        ("max_rd_atomic", attr.max_rd_atomic.map(u64::from), 0, u64::from(limit_rd_atomic)),
        ("sl", attr.av.map(|av| av.sl.into()), 0, 7),
        ("max_dest_rd_atomic", attr.max_dest_rd_atomic.map(u64::from), 0, u64::from(limit_rd_atomic)),
    ];
    for (attribute, value, low, high) in bounded {
        if let Some(value) = value.filter(|v| *v < low || *v > high) {
            return Err(ModifyError::Value { attribute, value, allowed: format!("{low}..={high}") });
        }
    }
    match attr.path_mtu {
        Some(mtu) if mtu > largest_mtu => Err(ModifyError::Value {
            attribute: "path_mtu",
            value: mtu.bytes() as u64,
            allowed: format!(
                "at most {}: what the port carries (a link MTU of {} would do)",
                largest_mtu.bytes(),
                mtu.bytes() + Mtu::OVERHEAD
            ),
        }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::{Access, Psn};

    fn init() -> QpAttr {
        QpAttr {
            state: Some(QpState::Init),
            pkey_index: Some(0),
            port: Some(1),
            access: Some(Access::empty()),
            ..QpAttr::default()
        }
    }

    #[test]
    fn missing_attribute_is_named() {
        let attr = QpAttr { port: None, ..init() };
        let error = check_transition(QpType::Rc, QpState::Reset, &attr, Mtu::Mtu1024, 16).unwrap_err();
        assert_eq!(error.to_string(), "modify_qp Reset -> Init: missing PORT");
    }

    //= test: IBTA 11.2.5.2: transitions-have-their-table
    #[test]
    fn illegal_attribute_is_named() {
        let attr = QpAttr { retry_cnt: Some(1), ..init() };
        let error = check_transition(QpType::Rc, QpState::Reset, &attr, Mtu::Mtu1024, 16).unwrap_err();
        assert_eq!(error.to_string(), "modify_qp Reset -> Init: not allowed here RETRY_CNT");
    }

    #[test]
    fn unknown_transition_is_refused() {
        let attr = QpAttr { state: Some(QpState::Rts), ..QpAttr::default() };
        assert!(matches!(
            check_transition(QpType::Rc, QpState::Init, &attr, Mtu::Mtu1024, 16),
            Err(ModifyError::NoSuchTransition { .. })
        ));
    }

    //= test: IBTA 10.3.1: any-state-leads-to-reset-and-error
    #[test]
    fn every_state_leads_to_reset_and_error() {
        for from in (0..7).filter_map(QpState::from_code) {
            for to in [QpState::Reset, QpState::Err] {
                let attr = QpAttr { state: Some(to), ..QpAttr::default() };
                for qp_type in QpType::ALL {
                    assert_eq!(check_transition(qp_type, from, &attr, Mtu::Mtu1024, 16), Ok(to));
                }
            }
        }
    }

    #[test]
    fn value_out_of_range_is_named_with_range() {
        let attr = QpAttr { port: Some(2), ..init() };
        let error = check_transition(QpType::Rc, QpState::Reset, &attr, Mtu::Mtu1024, 16).unwrap_err();
        assert_eq!(error.to_string(), "modify_qp: port_num = 2 is out of range, allowed: 1..=1");
    }

    #[test]
    fn rd_atomic_error_recommends_limit_for_both_ends() {
        let attr = QpAttr {
            state: Some(QpState::Rts),
            timeout: Some(14),
            retry_cnt: Some(7),
            rnr_retry: Some(7),
            sq_psn: Some(Psn::new(0)),
            max_rd_atomic: Some(128),
            ..QpAttr::default()
        };
        let error = check_transition(QpType::Rc, QpState::Rtr, &attr, Mtu::Mtu1024, 16).unwrap_err();
        assert_eq!(
            error.to_string(),
            "modify_qp: max_rd_atomic = 128 is out of range, allowed: 0..=16; a peer may have a larger limit: give both ends \
             the lesser (perftest: -o)"
        );
    }

    /// Checks the attributes that `ibv_ud_pingpong` and `ibv_uc_pingpong` set.
    //= test: IBTA 11.2.5.2: transitions-have-their-table
    #[test]
    fn each_type_requires_attributes_of_its_service() {
        let required = |qp_type, from, to| {
            let attr = QpAttr { state: Some(to), ..QpAttr::default() };
            match check_transition(qp_type, from, &attr, Mtu::Mtu1024, 16) {
                Err(ModifyError::Attributes { missing, .. }) => missing,
                other => panic!("{qp_type:?} {from:?} -> {to:?}: {other:?}"),
            }
        };
        use AttrMask as A;
        use QpState::{Init, Reset, Rtr, Rts};
        let path = A::AV | A::PATH_MTU | A::DEST_QPN | A::RQ_PSN;
        assert_eq!(required(QpType::Uc, Reset, Init), A::PKEY_INDEX | A::PORT | A::ACCESS_FLAGS);
        assert_eq!(required(QpType::Uc, Init, Rtr), path);
        assert_eq!(required(QpType::Uc, Rtr, Rts), A::SQ_PSN);
        assert_eq!(required(QpType::Ud, Reset, Init), A::PKEY_INDEX | A::PORT | A::QKEY);
        assert_eq!(required(QpType::Ud, Rtr, Rts), A::SQ_PSN);
        assert_eq!(required(QpType::Gsi, Reset, Init), A::PKEY_INDEX | A::QKEY);
        assert_eq!(required(QpType::XrcSend, Init, Rtr), path);
        assert_eq!(required(QpType::XrcRecv, Init, Rtr), path | A::MAX_DEST_RD_ATOMIC | A::MIN_RNR_TIMER);
        assert_eq!(required(QpType::XrcRecv, Rtr, Rts), A::SQ_PSN | A::TIMEOUT);
        let to_rtr = QpAttr { state: Some(Rtr), ..QpAttr::default() };
        assert_eq!(
            check_transition(QpType::Ud, Init, &to_rtr, Mtu::Mtu1024, 16),
            Ok(Rtr),
            "a datagram QP has no path"
        );
    }

    //= test: IBTA 10.3.1.6: sqe-stops-the-send-queue-alone
    #[test]
    fn only_services_with_sqe_leave_it() {
        let attr = QpAttr { state: Some(QpState::Rts), cur_state: Some(QpState::Sqe), ..QpAttr::default() };
        for qp_type in QpType::ALL {
            let result = check_transition(qp_type, QpState::Sqe, &attr, Mtu::Mtu1024, 16);
            let leaves = matches!(qp_type, QpType::Uc | QpType::Ud | QpType::Gsi | QpType::RawPacket);
            assert_eq!(result.is_ok(), leaves, "{qp_type:?}");
        }
    }

    /// Compares with a second copy of the transitions. RESET and ERR can be reached from every state.
    //= test: IBTA 11.2.5.2: transitions-have-their-table
    #[test]
    fn transitions_are_exactly_those_listed() {
        use QpState::{Err as Error, Init, Reset, Rtr, Rts, Sqd, Sqe};
        let all = [Reset, Init, Rtr, Rts, Sqd, Sqe, Error];
        let reliable = [
            (Reset, Init),
            (Init, Init),
            (Init, Rtr),
            (Rtr, Rts),
            (Rts, Rts),
            (Rts, Sqd),
            (Sqd, Rts),
            (Sqd, Sqd),
        ];
        for qp_type in QpType::ALL {
            let has_sqe = matches!(qp_type, QpType::Uc | QpType::Ud | QpType::Gsi | QpType::RawPacket);
            // A raw packet QP has no attribute to change in SQD.
            let changes_drained = qp_type != QpType::RawPacket;
            for (from, to) in all.into_iter().flat_map(|from| all.map(|to| (from, to))) {
                let attr = QpAttr { state: Some(to), ..QpAttr::default() };
                let leads = !matches!(
                    check_transition(qp_type, from, &attr, Mtu::Mtu1024, 16),
                    Err(ModifyError::NoSuchTransition { .. })
                );
                let expected = matches!(to, Reset | Error)
                    || (reliable.contains(&(from, to)) && ((from, to) != (Sqd, Sqd) || changes_drained))
                    || (has_sqe && (from, to) == (Sqe, Rts));
                assert_eq!(leads, expected, "{qp_type:?} from {from:?} to {to:?}");
            }
        }
    }
}
