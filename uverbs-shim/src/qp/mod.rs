//! Queue pairs (`ibv_qp`): modification, queries, destruction. [`crate::qp::create`] creates them.

pub(crate) mod attr;
pub(crate) mod batch;
pub(crate) mod create;
pub(crate) mod post;
pub(crate) mod post_ex;

use std::ffi::{c_int, c_void};
use std::mem::{offset_of, size_of};
use std::ptr::null_mut;
use std::sync::Mutex;

use roxie::host::QueuePair;
use roxie::verbs::{QpCaps, QpState, RateLimit};

use crate::abi::{
    ibv_qp, ibv_qp_attr, ibv_qp_attr_mask as attr_mask, ibv_qp_cap, ibv_qp_ex, ibv_qp_init_attr,
    ibv_qp_rate_limit_attr,
};
use crate::base::cancellation::Uncancelled;
use crate::base::lock::lock;
use crate::base::newer::{QP_EX, WR_FLUSH, WrFlush};
use crate::base::object::{Errno, VerbsStruct, code, object_of, put, set_errno, take_back};
use crate::base::report::{device, refuse};
use crate::base::waiting::{Acknowledgements, SpinLock};
use crate::device::context::context;
use crate::device::nic::Source;
use crate::device::published::PublishedQp;
use crate::pd::{InDomain, Users};
use crate::qp::attr::Known;
use crate::qp::batch::Builder;
use crate::srq::Endpoints;
use crate::srq::wq::Spread;
use crate::ucma::agreed::complete;

/// Structure of a QP. `ibv_qp` is the beginning of `ibv_qp_ex`, and slots of later releases follow.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct QpFace {
    pub(crate) ex: ibv_qp_ex,
    pub(crate) later: [usize; LATER],
}

/// Number of slots that this release does not know.
pub(crate) const LATER: usize = (QP_EX - size_of::<ibv_qp_ex>()) / size_of::<usize>();

/// The object behind a queue pair.
pub(crate) struct Qp {
    pub(crate) pair: QueuePair,
    /// Held while posting sends.
    pub(crate) turn: SpinLock,
    /// Work requests under construction by `ibv_wr_*`. Accessed only by the thread that holds `turn`.
    pub(crate) builder: Builder,
    /// True if created by `ibv_create_qp_ex` with a set of operations.
    pub(crate) extended: bool,
    pub(crate) caps: QpCaps,
    pub(crate) sq_sig_all: bool,
    pub(crate) known: Mutex<Known>,
    /// Objects that the QP uses and keeps alive.
    pub(crate) uses: Endpoints,
    pub(crate) _domain: Option<InDomain>,
    /// The table of queues that the QP spreads frames over (RSS).
    pub(crate) spread: Option<Spread>,
    /// Flows that lead to the QP.
    pub(crate) flows: Users,
    pub(crate) acknowledgements: Acknowledgements,
    /// The QP's entry in the file for other processes.
    pub(crate) published: PublishedQp,
}

impl Qp {
    /// # Errors
    /// `EOPNOTSUPP` for a QP that spreads frames over queues, as on adapters: the queues have states.
    fn has_a_state(&self, call: &str) -> Result<(), Errno> {
        match self.spread {
            None => Ok(()),
            Some(_) => refuse(
                call,
                libc::EOPNOTSUPP,
                "a QP of a table has no state: use ibv_modify_wq on its queues",
            ),
        }
    }
}

impl VerbsStruct for QpFace {
    type Extended = QpFace;
    type Inner = Qp;
}

impl VerbsStruct for ibv_qp {
    type Extended = QpFace;
    type Inner = Qp;
}

impl VerbsStruct for ibv_qp_ex {
    type Extended = QpFace;
    type Inner = Qp;
}

const _: () = assert!(offset_of!(ibv_qp_ex, qp_base) == 0 && size_of::<QpFace>() == QP_EX);
const _: () =
    assert!(WR_FLUSH + size_of::<WrFlush>() <= QP_EX && WR_FLUSH.is_multiple_of(align_of::<QpFace>()));

pub(crate) fn given_caps(caps: &QpCaps) -> ibv_qp_cap {
    ibv_qp_cap {
        max_send_wr: caps.max_send_wr,
        max_recv_wr: caps.max_recv_wr,
        max_send_sge: caps.max_send_sge,
        max_recv_sge: caps.max_recv_sge,
        max_inline_data: caps.max_inline,
    }
}

/// Destroys a queue pair in any state, once its events are acknowledged.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    let _uncancelled = Uncancelled::new();
    // SAFETY: the contract: live objects, and a QP that is not used concurrently.
    code(unsafe {
        object_of(qp).and_then(|found| {
            found.flows.none("ibv_destroy_qp", "QP")?;
            context((*qp).context)?.nic.remove_source(Source::Qp(found.pair.index().0));
            found.acknowledgements.wait();
            let (uses, qpn) = (Endpoints { ..found.uses }, found.pair.qpn());
            drop(take_back(qp.cast::<QpFace>()));
            uses.forget(qpn);
            uses.count(false);
            Ok(())
        })
    })
}

/// Modifies the attributes and state of a QP.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, given: c_int) -> c_int {
    let _uncancelled = Uncancelled::new();
    const CALL: &str = "ibv_modify_qp";
    // SAFETY: the contract: an object, and the attributes that the mask names.
    code(unsafe {
        object_of(qp).and_then(|found| {
            found.has_a_state(CALL)?;
            let nic = &context((*qp).context)?.nic.device;
            let mut known = lock(&found.known);
            let given = attr::without_the_other_ends(found.pair.qp_type(), given as u32);
            let mut next = known.with(attr, given);
            let mut wanted = attr::read(CALL, nic, attr, given)?;
            complete(&mut wanted);
            if let Some(path) = &wanted.av {
                next.set_hop_limit(path.hop_limit);
            }
            found.pair.modify(&wanted).map_err(device(CALL))?;
            *known = next;
            found.published.change(|qp| attr::publish(qp, attr, given));
            if wanted.state == Some(QpState::Reset) {
                found.uses.forget(found.pair.qpn());
            }
            if given & attr_mask::IBV_QP_STATE != 0 {
                (*qp).state = (*attr).qp_state;
            }
            Ok(())
        })
    })
}

/// Limits the send rate of a queue pair: the rate in kb/s (0: no limit), and bursts in bytes.
pub(crate) unsafe extern "C" fn modify_qp_rate_limit(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_rate_limit_attr,
) -> c_int {
    let _uncancelled = Uncancelled::new();
    const CALL: &str = "ibv_modify_qp_rate_limit";
    // SAFETY: the contract: an object, and attributes.
    code(unsafe {
        object_of(qp).and_then(|found| {
            found.has_a_state(CALL)?;
            let given = *attr;
            if given.comp_mask != 0 {
                let why = format_args!("comp_mask {:#x}: none is known", given.comp_mask);
                return refuse(CALL, libc::EINVAL, why);
            }
            let limit = RateLimit {
                kbps: given.rate_limit,
                max_burst: given.max_burst_sz,
                typical_packet: given.typical_pkt_sz,
            };
            found.pair.set_rate_limit(limit).map_err(device(CALL))
        })
    })
}

/// Queries the attributes and state of a QP.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _wanted: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    let _uncancelled = Uncancelled::new();
    // SAFETY: the contract: an object, and room for attributes of all releases.
    code(unsafe {
        object_of(qp).and_then(|found| {
            found.has_a_state("ibv_query_qp")?;
            let status = found.pair.query().map_err(device("ibv_query_qp"))?;
            let cap = given_caps(&found.caps);
            attr::write(attr, &status, &lock(&found.known), cap);
            (*qp).state = status.state as u32;
            found.published.change(|told| told.state = status.state as u8);
            put(
                init,
                ibv_qp_init_attr {
                    qp_context: (*qp).qp_context,
                    send_cq: (*qp).send_cq,
                    recv_cq: (*qp).recv_cq,
                    srq: (*qp).srq,
                    cap,
                    qp_type: (*qp).qp_type,
                    sq_sig_all: found.sq_sig_all.into(),
                },
            );
            Ok(())
        })
    })
}

/// Returns the extended form of a QP that was created with a set of operations; null for other QPs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    let _uncancelled = Uncancelled::new();
    // SAFETY: the contract: an object.
    match unsafe { object_of(qp) } {
        Ok(found) if found.extended => qp.cast(),
        _ => {
            set_errno(libc::EOPNOTSUPP);
            null_mut()
        }
    }
}

/// Returns 0: no order is guaranteed beyond the specification's, that the last byte of a WRITE is written last.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_query_qp_data_in_order(_qp: *mut ibv_qp, _operation: u32, _flags: u32) -> c_int {
    let _uncancelled = Uncancelled::new();
    0
}

/// Enhanced connection establishment negotiates options between devices of a vendor. Not supported.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_query_ece(_qp: *mut ibv_qp, _ece: *mut c_void) -> c_int {
    let _uncancelled = Uncancelled::new();
    code(Err(libc::EOPNOTSUPP))
}

/// Not supported, like [`ibv_query_ece`].
#[unsafe(no_mangle)]
pub extern "C" fn ibv_set_ece(_qp: *mut ibv_qp, _ece: *mut c_void) -> c_int {
    let _uncancelled = Uncancelled::new();
    code(Err(libc::EOPNOTSUPP))
}
