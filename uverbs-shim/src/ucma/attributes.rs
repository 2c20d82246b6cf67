//! QP attributes of an identifier: `rdma_init_qp_attr`.

use roxie::cm::Parameters;
use roxie::verbs::QpState;
use roxie::wire::service_id::RDMA_UDP_QKEY;

use super::agreed::remember;
use super::answer::ah_attr;
use super::event::AhPath;
use super::incoming::GidLookup;
use super::state::{Cm, State};
use crate::abi::{ib_uverbs_qp_attr, ibv_access_flags as access, ibv_qp_attr_mask as mask};
use crate::base::object::Errno;

impl State {
    /// Returns the attributes for a transition of the identifier's QP, with their mask.
    ///
    /// # Errors
    /// `EINVAL` if the identifier is not on the device, or the connection is not in a suitable state.
    pub(super) fn attributes(
        &mut self,
        cm: Option<&Cm<'_>>,
        around: &GidLookup<'_>,
        channel: u64,
        handle: u32,
        state: QpState,
    ) -> Result<ib_uverbs_qp_attr, Errno> {
        let id = self.id_on_device(channel, handle)?;
        let (Some(comm), Some(cm), false) = (id.comm, cm, id.is_datagram()) else {
            return Ok(unconnected(id.is_datagram(), state));
        };
        let agreed = cm.manager.parameters(comm).map_err(|_| libc::EINVAL)?;
        match state {
            QpState::Init => Ok(init(&agreed)),
            // The peer starts at the PSN that this end announces to it, which is fixed even before the announcement.
            QpState::Rtr => {
                let sgid_index = (around.sgid_index)(agreed.route.source()).ok_or(libc::EINVAL)?;
                let attr = rtr(&agreed, sgid_index)?;
                remember(&agreed, id.psn);
                Ok(ib_uverbs_qp_attr { rq_psn: id.psn.value(), ..attr })
            }
            // The program's setting overrides the negotiated one (`rdma_init_qp_attr` of the kernel).
            QpState::Rts => Ok(rts(&agreed, id.options.ack_timeout.unwrap_or(agreed.timeout))),
            _ => Err(libc::EINVAL),
        }
    }
}

/// Returns the attributes of a QP without a connection, or before one.
fn unconnected(datagram: bool, state: QpState) -> ib_uverbs_qp_attr {
    let attr = ib_uverbs_qp_attr { qp_state: state as u32, port_num: 1, ..ib_uverbs_qp_attr::default() };
    let given = mask::IBV_QP_STATE | mask::IBV_QP_PKEY_INDEX | mask::IBV_QP_PORT;
    if datagram {
        ib_uverbs_qp_attr { qp_attr_mask: given | mask::IBV_QP_QKEY, qkey: RDMA_UDP_QKEY, ..attr }
    } else {
        ib_uverbs_qp_attr { qp_attr_mask: given | mask::IBV_QP_ACCESS_FLAGS, ..attr }
    }
}

fn init(agreed: &Parameters) -> ib_uverbs_qp_attr {
    let reads = access::IBV_ACCESS_REMOTE_READ | access::IBV_ACCESS_REMOTE_ATOMIC;
    let rights = if agreed.max_dest_rd_atomic > 0 { reads } else { 0 };
    ib_uverbs_qp_attr {
        qp_attr_mask: mask::IBV_QP_STATE
            | mask::IBV_QP_ACCESS_FLAGS
            | mask::IBV_QP_PKEY_INDEX
            | mask::IBV_QP_PORT,
        qp_state: QpState::Init as u32,
        qp_access_flags: access::IBV_ACCESS_REMOTE_WRITE | rights,
        port_num: 1,
        ..ib_uverbs_qp_attr::default()
    }
}

fn rtr(agreed: &Parameters, sgid_index: u8) -> Result<ib_uverbs_qp_attr, Errno> {
    let mut given = mask::IBV_QP_STATE
        | mask::IBV_QP_AV
        | mask::IBV_QP_PATH_MTU
        | mask::IBV_QP_DEST_QPN
        | mask::IBV_QP_RQ_PSN;
    if agreed.answers() {
        given |= mask::IBV_QP_MAX_DEST_RD_ATOMIC | mask::IBV_QP_MIN_RNR_TIMER;
    }
    Ok(ib_uverbs_qp_attr {
        qp_attr_mask: given,
        qp_state: QpState::Rtr as u32,
        ah_attr: ah_attr(&AhPath::of(&agreed.route, sgid_index)),
        path_mtu: agreed.path_mtu as u32,
        dest_qp_num: agreed.dest_qpn.ok_or(libc::EINVAL)?.value(),
        max_dest_rd_atomic: agreed.max_dest_rd_atomic,
        ..ib_uverbs_qp_attr::default()
    })
}

fn rts(agreed: &Parameters, timeout: u8) -> ib_uverbs_qp_attr {
    let mut given = mask::IBV_QP_STATE | mask::IBV_QP_SQ_PSN;
    if agreed.is_requester() || agreed.answers() {
        given |= mask::IBV_QP_TIMEOUT;
    }
    if agreed.is_requester() {
        given |= mask::IBV_QP_RETRY_CNT | mask::IBV_QP_RNR_RETRY | mask::IBV_QP_MAX_QP_RD_ATOMIC;
    }
    ib_uverbs_qp_attr {
        qp_attr_mask: given,
        qp_state: QpState::Rts as u32,
        sq_psn: agreed.sq_psn.value(),
        timeout,
        retry_cnt: agreed.retry_cnt,
        rnr_retry: agreed.rnr_retry,
        max_rd_atomic: agreed.max_rd_atomic,
        ..ib_uverbs_qp_attr::default()
    }
}
