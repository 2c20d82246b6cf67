//! Conversions of queue pair attributes from and to C.

use roxie::host::Device;
use roxie::nic::QpStatus;
use roxie::verbs::{Mtu, Psn, QpAttr, QpState, QpType, Qpn, RateLimit};

use crate::abi::{ibv_ah_attr, ibv_mig_state, ibv_qp_attr, ibv_qp_attr_mask as mask, ibv_qp_cap};
use crate::ah;
use crate::base::object::Errno;
use crate::base::report::refuse;
use crate::memory::access;
use crate::netlink::nldev;

/// Attributes that the device does not store, kept for queries.
#[derive(Clone, Copy, Default)]
pub(crate) struct Known {
    ah_attr: ibv_ah_attr,
    pkey_index: u16,
    port: u8,
}

impl Known {
    /// Returns the attributes after a change.
    ///
    /// # Safety
    /// The contract: the attributes that the mask names.
    pub(crate) unsafe fn with(&self, attr: *const ibv_qp_attr, given: u32) -> Known {
        let mut next = *self;
        // SAFETY: each field is read only if the mask names it, in which case it is valid, as the caller promises.
        unsafe {
            if given & mask::IBV_QP_AV != 0 {
                next.ah_attr = (*attr).ah_attr;
            }
            if given & mask::IBV_QP_PKEY_INDEX != 0 {
                next.pkey_index = (*attr).pkey_index;
            }
            if given & mask::IBV_QP_PORT != 0 {
                next.port = (*attr).port_num;
            }
        }
        next
    }

    /// Sets the hop limit of packets, which a query reports: the route's, not the program's.
    pub(crate) fn set_hop_limit(&mut self, hop_limit: u8) {
        self.ah_attr.grh.hop_limit = hop_limit;
    }
}

/// Updates a QP's published state after a change.
///
/// # Safety
/// The contract: the attributes that the mask names.
pub(crate) unsafe fn publish(qp: &mut nldev::Qp, attr: *const ibv_qp_attr, given: u32) {
    // SAFETY: each field is read only if the mask names it, in which case it is valid, as the caller promises.
    unsafe {
        if given & mask::IBV_QP_STATE != 0 {
            qp.state = (*attr).qp_state as u8;
        }
        if given & mask::IBV_QP_DEST_QPN != 0 {
            qp.remote = Some((*attr).dest_qp_num);
        }
        if given & mask::IBV_QP_RQ_PSN != 0 {
            qp.rq_psn = (*attr).rq_psn;
        }
        if given & mask::IBV_QP_SQ_PSN != 0 {
            qp.sq_psn = (*attr).sq_psn;
        }
    }
}

/// Attributes that the device does not support.
const NOT_SERVED: &[(u32, &str)] = &[
    (mask::IBV_QP_ALT_PATH, "alt_ah_attr: there are no alternate paths"),
    (mask::IBV_QP_CAP, "cap: queues keep the size that they were made with"),
];

/// Checks that the device supports all attributes of a mask.
fn check_mask(call: &'static str, given: u32) -> Result<(), Errno> {
    const ALL: u32 = ((mask::IBV_QP_DEST_QPN << 1) - 1) | mask::IBV_QP_RATE_LIMIT;
    if let Some((_, why)) = NOT_SERVED.iter().find(|(bit, _)| given & bit != 0) {
        return refuse(call, libc::EOPNOTSUPP, why);
    }
    if given & !ALL != 0 {
        return refuse(
            call,
            libc::EINVAL,
            format_args!("attr_mask {given:#x}: bits {:#x} are unknown", given & !ALL),
        );
    }
    Ok(())
}

/// Removes attributes from the mask that this end of an XRC connection does not have, as the kernel does. Programs set
/// the attributes of one end at both (`uverbs_cmd.c`, `modify_qp_mask`).
pub(crate) fn without_the_other_ends(kind: QpType, given: u32) -> u32 {
    match kind {
        QpType::XrcSend => given & !(mask::IBV_QP_MAX_DEST_RD_ATOMIC | mask::IBV_QP_MIN_RNR_TIMER),
        QpType::XrcRecv => {
            given & !(mask::IBV_QP_MAX_QP_RD_ATOMIC | mask::IBV_QP_RETRY_CNT | mask::IBV_QP_RNR_RETRY)
        }
        _ => given,
    }
}

/// Converts the attributes that the mask names.
///
/// # Safety
/// The contract: these attributes are valid.
pub(crate) unsafe fn read(
    call: &'static str,
    nic: &Device,
    attr: *const ibv_qp_attr,
    given: u32,
) -> Result<QpAttr, Errno> {
    if attr.is_null() {
        return Err(libc::EINVAL);
    }
    check_mask(call, given)?;
    let has = |bit: u32| given & bit != 0;
    let state = |name: &str, code: u32| match QpState::from_code(code) {
        Some(state) => Ok(Some(state)),
        None => refuse(call, libc::EINVAL, format_args!("{name} = {code}: states are 0 (RESET) to 6 (ERR)")),
    };
    let mut out = QpAttr::default();
    // SAFETY: the caller's promise; each field is read only if its bit is set.
    unsafe {
        if has(mask::IBV_QP_STATE) {
            out.state = state("qp_state", (*attr).qp_state)?;
        }
        if has(mask::IBV_QP_CUR_STATE) {
            out.cur_state = state("cur_qp_state", (*attr).cur_qp_state)?;
        }
        if has(mask::IBV_QP_ACCESS_FLAGS) {
            out.access = Some(access(call, (*attr).qp_access_flags)?);
        }
        if has(mask::IBV_QP_PATH_MTU) {
            let code = (*attr).path_mtu;
            out.path_mtu = Mtu::from_code(code);
            if out.path_mtu.is_none() {
                return refuse(
                    call,
                    libc::EINVAL,
                    format_args!("path_mtu = {code}: codes are 1 (256 bytes) to 5 (4096)"),
                );
            }
        }
        if has(mask::IBV_QP_PATH_MIG_STATE) && (*attr).path_mig_state != ibv_mig_state::IBV_MIG_MIGRATED {
            return refuse(
                call,
                libc::EOPNOTSUPP,
                "path_mig_state: there are no alternate paths, only MIGRATED is supported",
            );
        }
        if has(mask::IBV_QP_AV) {
            out.av = Some(ah::address_vector(call, nic, &raw const (*attr).ah_attr)?);
        }
        let set = |bit, value: u8| has(bit).then_some(value);
        out.en_sqd_async_notify =
            set(mask::IBV_QP_EN_SQD_ASYNC_NOTIFY, (*attr).en_sqd_async_notify).map(|flag| flag != 0);
        out.pkey_index = has(mask::IBV_QP_PKEY_INDEX).then(|| (*attr).pkey_index);
        out.port = set(mask::IBV_QP_PORT, (*attr).port_num);
        out.qkey = has(mask::IBV_QP_QKEY).then(|| (*attr).qkey);
        out.dest_qpn = has(mask::IBV_QP_DEST_QPN).then(|| Qpn::new((*attr).dest_qp_num));
        out.rq_psn = has(mask::IBV_QP_RQ_PSN).then(|| Psn::new((*attr).rq_psn));
        out.sq_psn = has(mask::IBV_QP_SQ_PSN).then(|| Psn::new((*attr).sq_psn));
        out.max_dest_rd_atomic = set(mask::IBV_QP_MAX_DEST_RD_ATOMIC, (*attr).max_dest_rd_atomic);
        out.max_rd_atomic = set(mask::IBV_QP_MAX_QP_RD_ATOMIC, (*attr).max_rd_atomic);
        out.min_rnr_timer = set(mask::IBV_QP_MIN_RNR_TIMER, (*attr).min_rnr_timer);
        out.timeout = set(mask::IBV_QP_TIMEOUT, (*attr).timeout);
        out.retry_cnt = set(mask::IBV_QP_RETRY_CNT, (*attr).retry_cnt);
        out.rnr_retry = set(mask::IBV_QP_RNR_RETRY, (*attr).rnr_retry);
        out.rate_limit = has(mask::IBV_QP_RATE_LIMIT)
            .then(|| RateLimit { kbps: (*attr).rate_limit, ..RateLimit::default() });
    }
    Ok(out)
}

/// Writes the attributes and state of a QP.
///
/// # Safety
/// The contract: room for the attributes of all releases. `rate_limit`, added last, is not written.
pub(crate) unsafe fn write(to: *mut ibv_qp_attr, status: &QpStatus, known: &Known, cap: ibv_qp_cap) {
    let attributes = &status.attributes;
    let state = status.state as u32;
    let connected = !matches!(status.qp_type, QpType::Ud | QpType::Gsi);
    // SAFETY: the caller promises room for the attributes of all releases; fields of newer releases are not written.
    unsafe {
        (*to).qp_state = state;
        (*to).cur_qp_state = state;
        (*to).path_mtu = if connected { attributes.path_mtu as u32 } else { 0 };
        (*to).path_mig_state = ibv_mig_state::IBV_MIG_MIGRATED;
        (*to).qkey = attributes.qkey;
        (*to).rq_psn = status.rq_psn.value();
        (*to).sq_psn = status.sq_psn.value();
        (*to).dest_qp_num = attributes.dest_qpn.value();
        (*to).qp_access_flags = attributes.access.bits();
        (*to).cap = cap;
        (*to).ah_attr = known.ah_attr;
        (*to).alt_ah_attr = ibv_ah_attr::default();
        (*to).pkey_index = known.pkey_index;
        (*to).alt_pkey_index = 0;
        (*to).en_sqd_async_notify = 0;
        (*to).sq_draining = status.draining.into();
        (*to).max_rd_atomic = attributes.max_rd_atomic;
        (*to).max_dest_rd_atomic = attributes.max_dest_rd_atomic;
        (*to).min_rnr_timer = attributes.min_rnr_timer;
        (*to).port_num = known.port;
        (*to).timeout = attributes.timeout;
        (*to).retry_cnt = attributes.retry_cnt;
        (*to).rnr_retry = attributes.rnr_retry;
        (*to).alt_port_num = 0;
        (*to).alt_timeout = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use roxie::nic::QpHandle;
    use roxie::verbs::QpAttributes;
    use roxie::verbs::{QpCaps, QpIndex};

    fn status(draining: bool) -> QpStatus {
        QpStatus {
            handle: QpHandle { index: QpIndex(0), qpn: Qpn::new(2) },
            qp_type: QpType::Rc,
            state: QpState::Sqd,
            attributes: QpAttributes::default(),
            caps: QpCaps::NONE,
            sq_sig_all: false,
            draining,
            srq: None,
            sq_psn: Psn::new(0),
            rq_psn: Psn::new(0),
            control: None,
        }
    }

    #[test]
    fn query_reports_whether_the_send_queue_drains() {
        for draining in [true, false] {
            let mut attr = ibv_qp_attr { sq_draining: 7, ..ibv_qp_attr::default() };
            // SAFETY: room for the attributes of this release.
            unsafe { write(&raw mut attr, &status(draining), &Known::default(), ibv_qp_cap::default()) };
            assert_eq!(attr.sq_draining, u8::from(draining));
        }
    }

    #[test]
    fn only_masked_attributes_are_published() {
        let attr =
            ibv_qp_attr { qp_state: 3, dest_qp_num: 5, rq_psn: 6, sq_psn: 7, ..ibv_qp_attr::default() };
        let before = nldev::Qp { state: 1, remote: Some(2), rq_psn: 3, sq_psn: 4, ..nldev::Qp::default() };
        let published = |given: u32| {
            let mut qp = before;
            // SAFETY: all attributes are valid.
            unsafe { publish(&mut qp, &raw const attr, given) };
            (qp.state, qp.remote, qp.rq_psn, qp.sq_psn)
        };
        assert_eq!(published(0), (1, Some(2), 3, 4));
        assert_eq!(published(mask::IBV_QP_STATE), (3, Some(2), 3, 4));
        assert_eq!(published(mask::IBV_QP_DEST_QPN), (1, Some(5), 3, 4));
        assert_eq!(published(mask::IBV_QP_RQ_PSN), (1, Some(2), 6, 4));
        assert_eq!(published(mask::IBV_QP_SQ_PSN), (1, Some(2), 3, 7));
        assert_eq!(published(!0), (3, Some(5), 6, 7));
    }
}
