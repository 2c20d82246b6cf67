//! Creation of queue pairs, by both interfaces.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Mutex;

use roxie::limits::MAX_SGE;
use roxie::verbs::{QpCaps, QpInit, QpType};

use crate::abi::{
    ibv_context, ibv_pd, ibv_qp, ibv_qp_cap, ibv_qp_create_send_ops_flags as ops, ibv_qp_ex,
    ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_qp_init_attr_mask as mask, ibv_qp_open_attr, ibv_qp_type,
};
use crate::base::cancellation::Uncancelled;
use crate::base::newer::{IBV_QP_EX_WITH_FLUSH, WR_FLUSH, WrFlush};
use crate::base::object::{Errno, give, object_of, pointer};
use crate::base::report::refuse;
use crate::base::waiting::{Acknowledgements, SpinLock};
use crate::device::context::context;
use crate::device::event_queue::Element;
use crate::device::nic::Source;
use crate::netlink::nldev;
use crate::pd::{InDomain, Users};
use crate::qp::batch::Builder;
use crate::qp::post_ex;
use crate::qp::{LATER, Qp, QpFace, given_caps};
use crate::srq::wq::Spread;
use crate::srq::{self, Endpoints};

/// Bytes of a scatter/gather entry in a send queue.
const SGE_BYTES: u32 = 16;

/// Requested attributes, from either structure.
struct QpRequest {
    call: &'static str,
    user: *mut c_void,
    uses: Endpoints,
    cap: ibv_qp_cap,
    kind: ibv_qp_type::Type,
    sq_sig_all: bool,
    /// `send_ops_flags`, if they were given.
    operations: Option<u64>,
    /// Set if the QP spreads frames over the queues of a table (RSS).
    spread: Option<Spread>,
}

/// Creates a queue pair in RESET. The first one claims the interface.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    let _uncancelled = Uncancelled::new();
    if pd.is_null() || attr.is_null() {
        return pointer(Err(libc::EINVAL));
    }
    // SAFETY: the contract: objects and attributes.
    unsafe {
        let wanted = QpRequest {
            call: "ibv_create_qp",
            user: (*attr).qp_context,
            uses: Endpoints {
                pd,
                send_cq: (*attr).send_cq,
                recv_cq: (*attr).recv_cq,
                srq: (*attr).srq,
                xrcd: null_mut(),
            },
            cap: (*attr).cap,
            kind: (*attr).qp_type,
            sq_sig_all: (*attr).sq_sig_all != 0,
            operations: None,
            spread: None,
        };
        pointer(create((*pd).context, &wanted).map(|(qp, caps)| {
            (*attr).cap = given_caps(&caps);
            qp.cast()
        }))
    }
}

/// Creates a queue pair with extended attributes.
pub(crate) unsafe extern "C" fn create_qp_ex(
    of: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    let _uncancelled = Uncancelled::new();
    // SAFETY: the contract: objects, and the attributes that `comp_mask` says are present.
    unsafe {
        pointer(wanted_ex(attr).and_then(|wanted| create(of, &wanted)).map(|(qp, caps)| {
            (*attr).cap = given_caps(&caps);
            qp.cast()
        }))
    }
}

/// # Safety
/// The contract: the attributes that `comp_mask` says are present.
unsafe fn wanted_ex(attr: *mut ibv_qp_init_attr_ex) -> Result<QpRequest, Errno> {
    const CALL: &str = "ibv_create_qp_ex";
    const KNOWN: u32 = mask::IBV_QP_INIT_ATTR_PD
        | mask::IBV_QP_INIT_ATTR_XRCD
        | mask::IBV_QP_INIT_ATTR_CREATE_FLAGS
        | mask::IBV_QP_INIT_ATTR_MAX_TSO_HEADER
        | mask::IBV_QP_INIT_ATTR_IND_TABLE
        | mask::IBV_QP_INIT_ATTR_RX_HASH
        | mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    if attr.is_null() {
        return Err(libc::EINVAL);
    }
    // SAFETY: not null, as checked; the caller promises attributes, each of which is read only if `comp_mask` says that
    // it is present.
    unsafe {
        let given = (*attr).comp_mask;
        let has = |bit| given & bit != 0;
        if given & !KNOWN != 0 {
            return refuse(
                CALL,
                libc::EOPNOTSUPP,
                format_args!("comp_mask {given:#x}: {KNOWN:#x} are supported"),
            );
        }
        if has(mask::IBV_QP_INIT_ATTR_CREATE_FLAGS) && (*attr).create_flags != 0 {
            let flags = (*attr).create_flags;
            return refuse(
                CALL,
                libc::EOPNOTSUPP,
                format_args!("create_flags {flags:#x}: none are supported"),
            );
        }
        if has(mask::IBV_QP_INIT_ATTR_MAX_TSO_HEADER) && (*attr).max_tso_header != 0 {
            return refuse(
                CALL,
                libc::EOPNOTSUPP,
                "max_tso_header: QPs that segment packets of other protocols are not supported",
            );
        }
        let operations = has(mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS).then(|| (*attr).send_ops_flags);
        let spread = match (has(mask::IBV_QP_INIT_ATTR_IND_TABLE), has(mask::IBV_QP_INIT_ATTR_RX_HASH)) {
            (true, true) => Some(Spread::read(CALL, (*attr).rwq_ind_tbl, &(*attr).rx_hash_conf)?),
            (false, false) => None,
            _ => return refuse(CALL, libc::EINVAL, "rwq_ind_tbl and rx_hash_conf go together"),
        };
        let pd = if has(mask::IBV_QP_INIT_ATTR_PD) { (*attr).pd } else { null_mut() };
        let xrcd = if has(mask::IBV_QP_INIT_ATTR_XRCD) { (*attr).xrcd } else { null_mut() };
        Ok(QpRequest {
            call: CALL,
            user: (*attr).qp_context,
            uses: Endpoints {
                pd,
                send_cq: (*attr).send_cq,
                recv_cq: (*attr).recv_cq,
                srq: (*attr).srq,
                xrcd,
            },
            cap: (*attr).cap,
            kind: (*attr).qp_type,
            sq_sig_all: (*attr).sq_sig_all != 0,
            operations,
            spread,
        })
    }
}

/// # Errors
/// As a kernel with rxe: `EINVAL` for what `ib_uverbs` does not know or does not give to programs (`create_qp`),
/// `EOPNOTSUPP` for a type of drivers' own (`rxe_qp_chk_init`).
fn qp_type(call: &str, kind: ibv_qp_type::Type) -> Result<QpType, Errno> {
    match QpType::from_code(kind) {
        Some(QpType::Gsi) | None => refuse(
            call,
            if kind == ibv_qp_type::IBV_QPT_DRIVER { libc::EOPNOTSUPP } else { libc::EINVAL },
            format_args!(
                "qp_type {kind}: there are RC (2), UC (3), UD (4), raw packet (8) and XRC (9, 10) QPs"
            ),
        ),
        Some(known) => Ok(known),
    }
}

fn create(of: *mut ibv_context, wanted: &QpRequest) -> Result<(*mut QpFace, QpCaps), Errno> {
    let kind = qp_type(wanted.call, wanted.kind)?;
    let (flags, supported) = (wanted.operations.unwrap_or(0), post_ex::operations(kind));
    if flags & !supported != 0 {
        return refuse(
            wanted.call,
            libc::EOPNOTSUPP,
            format_args!("send_ops_flags {flags:#x}: a QP of type {kind:?} supports {supported:#x}"),
        );
    }
    let mut caps = QpCaps {
        max_send_wr: wanted.cap.max_send_wr,
        max_recv_wr: if wanted.uses.srq.is_null() { wanted.cap.max_recv_wr } else { 0 },
        max_send_sge: wanted.cap.max_send_sge,
        max_recv_sge: if wanted.uses.srq.is_null() { wanted.cap.max_recv_sge } else { 0 },
        // Inline bytes share memory with the scatter/gather list, so the list's size is available in any case. Programs
        // rely on devices that report it.
        max_inline: wanted.cap.max_inline_data.max(wanted.cap.max_send_sge.min(MAX_SGE as u32) * SGE_BYTES),
    };
    if wanted.operations.is_some_and(|flags| flags & u64::from(ops::IBV_QP_EX_WITH_ATOMIC_WRITE) != 0) {
        // The work request holds the 8 bytes of `ibv_wr_atomic_write` inline.
        caps.max_inline = caps.max_inline.max(8);
    }
    let init = QpInit { qp_type: kind, caps, sq_sig_all: wanted.sq_sig_all };
    // SAFETY: the contract: an object.
    let nic = unsafe { context(of) }?;
    // SAFETY: as above, or null: an XRC target has none.
    let domain = unsafe { object_of(wanted.uses.pd) }.ok().map(InDomain::new);
    let device = &nic.nic.device;
    let pair = match (&wanted.spread, &domain) {
        (None, _) => srq::make_pair(wanted.call, &wanted.uses, &init)?,
        (Some(spread), Some(domain)) => {
            caps = QpCaps::NONE;
            spread.make_pair(wanted.call, device, domain, kind)?
        }
        (Some(_), None) => {
            return refuse(wanted.call, libc::EINVAL, "rwq_ind_tbl without a protection domain");
        }
    };
    let source = Source::Qp(pair.index().0);
    let face = face(of, wanted, pair.qpn().value());
    wanted.uses.count(true);
    let published = nic.family.published.add_qp(nldev::Qp {
        pid: std::process::id(),
        number: face.ex.qp_base.qp_num,
        kind: wanted.kind as u8,
        ..nldev::Qp::default()
    });
    let qp = give(
        face,
        Qp {
            pair,
            turn: SpinLock::default(),
            builder: Builder::default(),
            extended: wanted.operations.is_some(),
            caps,
            sq_sig_all: wanted.sq_sig_all,
            known: Mutex::default(),
            uses: Endpoints { ..wanted.uses },
            _domain: domain,
            flows: Users::default(),
            spread: wanted.spread.as_ref().map(Spread::hold),
            acknowledgements: Acknowledgements::default(),
            published,
        },
    );
    nic.nic.add_source(source, &nic.events, Element::Qp(qp as usize));
    Ok((qp, caps))
}

fn face(of: *mut ibv_context, wanted: &QpRequest, qpn: u32) -> QpFace {
    let mut face = QpFace { ex: ibv_qp_ex::default(), later: [0; LATER] };
    let base = &mut face.ex.qp_base;
    base.context = of;
    base.qp_context = wanted.user;
    base.pd = wanted.uses.pd;
    base.send_cq = wanted.uses.send_cq;
    base.recv_cq = wanted.uses.recv_cq;
    base.srq = wanted.uses.srq;
    base.qp_num = qpn;
    base.qp_type = wanted.kind;
    if let Some(operations) = wanted.operations {
        post_ex::offer(&mut face.ex, operations);
        if operations & u64::from(IBV_QP_EX_WITH_FLUSH) != 0 {
            let slot = (&raw mut face).wrapping_byte_add(WR_FLUSH).cast::<WrFlush>();
            // SAFETY: within the structure and aligned, as asserted; releases that know the slot have a function of
            // this type there.
            unsafe { slot.write(post_ex::flush) };
        }
    }
    face
}

/// Opens a QP shared by another process. Not supported.
pub(crate) unsafe extern "C" fn open_qp(_of: *mut ibv_context, _attr: *mut ibv_qp_open_attr) -> *mut ibv_qp {
    let _uncancelled = Uncancelled::new();
    pointer(refuse("ibv_open_qp", libc::EOPNOTSUPP, "QPs are not shared between processes"))
}
