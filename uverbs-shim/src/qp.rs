//! Queue pairs: made in both ways, modified, asked, destroyed.

use std::ffi::{c_int, c_void};
use std::mem::{offset_of, size_of};
use std::ptr::null_mut;
use std::sync::Mutex;

use roxie::host::QueuePair;
use roxie::limits::MAX_SGE;
use roxie::verbs::{QpCaps, QpInit, QpState, QpType, RateLimit};

use crate::abi::{
    ibv_context, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_attr_mask as attr_mask, ibv_qp_cap,
    ibv_qp_create_send_ops_flags as ops, ibv_qp_ex, ibv_qp_init_attr, ibv_qp_init_attr_ex,
    ibv_qp_init_attr_mask as mask, ibv_qp_open_attr, ibv_qp_rate_limit_attr, ibv_qp_type,
};
use crate::cancellation::Uncancelled;
use crate::context::context;
use crate::events::Element;
use crate::netlink::nldev as netlink;
use crate::newer::{IBV_QP_EX_WITH_FLUSH, QP_EX, WR_FLUSH, WrFlush};
use crate::nic::{Source, lock};
use crate::object::{Errno, Face, behind, code, give, pointer, put, set_errno, take_back};
use crate::pd::{InDomain, Users};
use crate::post_ex::{self, Builder};
use crate::published::PublishedQp;
use crate::qp_attr::{self, Known};
use crate::report::{device, refuse};
use crate::srq::{self, Endpoints};
use crate::waiting::{Acknowledgements, Turn};
use crate::wq::Spread;

/// What applications may hold: `ibv_qp_ex`, which `ibv_qp` is the beginning of, with the slots that later releases have behind it.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct QpFace {
    ex: ibv_qp_ex,
    later: [usize; LATER],
}

/// Slots that this release does not know.
const LATER: usize = (QP_EX - size_of::<ibv_qp_ex>()) / size_of::<usize>();

/// What is behind a queue pair.
pub(crate) struct Qp {
    pub(crate) pair: QueuePair,
    /// Who posts sends.
    pub(crate) turn: Turn,
    /// Work requests under construction by `ibv_wr_*`; for who has the turn.
    pub(crate) builder: Builder,
    /// It was made by `ibv_create_qp_ex` with the operations that it is to offer.
    extended: bool,
    pub(crate) caps: QpCaps,
    sq_sig_all: bool,
    known: Mutex<Known>,
    /// What it keeps from being destroyed.
    uses: Endpoints,
    _domain: Option<InDomain>,
    /// The table of queues that it spreads frames over.
    spread: Option<Spread>,
    /// Flows that lead to it.
    pub(crate) flows: Users,
    pub(crate) acknowledgements: Acknowledgements,
    /// What other processes may know of it.
    published: PublishedQp,
}

impl Qp {
    /// # Errors
    /// `EOPNOTSUPP` for one that spreads frames over queues, as with adapters: the queues have states.
    fn has_a_state(&self, call: &str) -> Result<(), Errno> {
        match self.spread {
            None => Ok(()),
            Some(_) => refuse(
                call,
                libc::EOPNOTSUPP,
                "a QP of a table has no state of its own: ibv_modify_wq its queues",
            ),
        }
    }
}

impl Face for QpFace {
    type Whole = QpFace;
    type Behind = Qp;
}

impl Face for ibv_qp {
    type Whole = QpFace;
    type Behind = Qp;
}

impl Face for ibv_qp_ex {
    type Whole = QpFace;
    type Behind = Qp;
}

const _: () = assert!(offset_of!(ibv_qp_ex, qp_base) == 0 && size_of::<QpFace>() == QP_EX);
const _: () =
    assert!(WR_FLUSH + size_of::<WrFlush>() <= QP_EX && WR_FLUSH.is_multiple_of(align_of::<QpFace>()));

/// Bytes of an entry of a scatter/gather list in a send queue.
const SGE_BYTES: u32 = 16;

/// What is wanted, from either structure.
struct Wanted {
    call: &'static str,
    user: *mut c_void,
    uses: Endpoints,
    cap: ibv_qp_cap,
    kind: ibv_qp_type::Type,
    sq_sig_all: bool,
    /// `send_ops_flags`, if they were given.
    operations: Option<u64>,
    /// It spreads frames over the queues of a table.
    spread: Option<Spread>,
}

/// Operations that `ibv_wr_*` offers.
const OFFERED: u32 = ops::IBV_QP_EX_WITH_RDMA_WRITE
    | ops::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
    | ops::IBV_QP_EX_WITH_SEND
    | ops::IBV_QP_EX_WITH_SEND_WITH_IMM
    | ops::IBV_QP_EX_WITH_RDMA_READ
    | ops::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
    | ops::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
    | ops::IBV_QP_EX_WITH_LOCAL_INV
    | ops::IBV_QP_EX_WITH_BIND_MW
    | ops::IBV_QP_EX_WITH_SEND_WITH_INV
    | ops::IBV_QP_EX_WITH_ATOMIC_WRITE
    | IBV_QP_EX_WITH_FLUSH;

/// Makes a queue pair in RESET. The first one claims the interface.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    let _uncancelled = Uncancelled::new();
    if pd.is_null() || attr.is_null() {
        return pointer(Err(libc::EINVAL));
    }
    // SAFETY: the contract: objects and attributes.
    unsafe {
        let wanted = Wanted {
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

/// The same with what came later.
pub(crate) unsafe extern "C" fn create_qp_ex(
    of: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    let _uncancelled = Uncancelled::new();
    // SAFETY: the contract: objects and attributes, of which `comp_mask` says how many there are.
    unsafe {
        pointer(wanted_ex(attr).and_then(|wanted| create(of, &wanted)).map(|(qp, caps)| {
            (*attr).cap = given_caps(&caps);
            qp.cast()
        }))
    }
}

/// # Safety
/// The contract: attributes, of which `comp_mask` says how many there are.
unsafe fn wanted_ex(attr: *mut ibv_qp_init_attr_ex) -> Result<Wanted, Errno> {
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
    // SAFETY: the caller's promise.
    unsafe {
        let given = (*attr).comp_mask;
        let has = |bit| given & bit != 0;
        if given & !KNOWN != 0 {
            return refuse(
                CALL,
                libc::EOPNOTSUPP,
                format_args!("comp_mask {given:#x}: {KNOWN:#x} are served"),
            );
        }
        if has(mask::IBV_QP_INIT_ATTR_CREATE_FLAGS) && (*attr).create_flags != 0 {
            let flags = (*attr).create_flags;
            return refuse(CALL, libc::EOPNOTSUPP, format_args!("create_flags {flags:#x}: none are served"));
        }
        if has(mask::IBV_QP_INIT_ATTR_MAX_TSO_HEADER) && (*attr).max_tso_header != 0 {
            return refuse(
                CALL,
                libc::EOPNOTSUPP,
                "max_tso_header: there are no QPs that segment packets of other protocols",
            );
        }
        let operations = has(mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS).then(|| (*attr).send_ops_flags);
        if let Some(wanted) = operations
            && wanted & !u64::from(OFFERED) != 0
        {
            return refuse(
                CALL,
                libc::EOPNOTSUPP,
                format_args!("send_ops_flags {wanted:#x}: {OFFERED:#x} are served"),
            );
        }
        let spread = match (has(mask::IBV_QP_INIT_ATTR_IND_TABLE), has(mask::IBV_QP_INIT_ATTR_RX_HASH)) {
            (true, true) => Some(Spread::read(CALL, (*attr).rwq_ind_tbl, &(*attr).rx_hash_conf)?),
            (false, false) => None,
            _ => return refuse(CALL, libc::EINVAL, "rwq_ind_tbl and rx_hash_conf go together"),
        };
        let pd = if has(mask::IBV_QP_INIT_ATTR_PD) { (*attr).pd } else { null_mut() };
        let xrcd = if has(mask::IBV_QP_INIT_ATTR_XRCD) { (*attr).xrcd } else { null_mut() };
        Ok(Wanted {
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

fn given_caps(caps: &QpCaps) -> ibv_qp_cap {
    ibv_qp_cap {
        max_send_wr: caps.max_send_wr,
        max_recv_wr: caps.max_recv_wr,
        max_send_sge: caps.max_send_sge,
        max_recv_sge: caps.max_recv_sge,
        max_inline_data: caps.max_inline,
    }
}

fn qp_type(call: &str, kind: ibv_qp_type::Type) -> Result<QpType, Errno> {
    match QpType::from_code(kind) {
        Some(QpType::Gsi) | None => refuse(
            call,
            libc::EOPNOTSUPP,
            format_args!(
                "qp_type {kind}: there are RC (2), UC (3), UD (4), raw packet (8) and XRC (9, 10) QPs"
            ),
        ),
        Some(known) => Ok(known),
    }
}

fn create(of: *mut ibv_context, wanted: &Wanted) -> Result<(*mut QpFace, QpCaps), Errno> {
    let kind = qp_type(wanted.call, wanted.kind)?;
    let mut caps = QpCaps {
        max_send_wr: wanted.cap.max_send_wr,
        max_recv_wr: if wanted.uses.srq.is_null() { wanted.cap.max_recv_wr } else { 0 },
        max_send_sge: wanted.cap.max_send_sge,
        max_recv_sge: if wanted.uses.srq.is_null() { wanted.cap.max_recv_sge } else { 0 },
        // Inline bytes lie where the list would be: so much is there anyway, and programs rely on devices that say so.
        max_inline: wanted.cap.max_inline_data.max(wanted.cap.max_send_sge.min(MAX_SGE as u32) * SGE_BYTES),
    };
    if wanted.operations.is_some_and(|flags| flags & u64::from(ops::IBV_QP_EX_WITH_ATOMIC_WRITE) != 0) {
        // The 8 bytes of `ibv_wr_atomic_write` are in the work request.
        caps.max_inline = caps.max_inline.max(8);
    }
    let init = QpInit { qp_type: kind, caps, sq_sig_all: wanted.sq_sig_all };
    // SAFETY: the contract: an object.
    let nic = unsafe { context(of) }?;
    // SAFETY: as above, or null: an XRC target has none.
    let domain = unsafe { behind(wanted.uses.pd) }.ok().map(InDomain::new);
    let device = &nic.nic.device;
    let pair = match (&wanted.spread, &domain) {
        (None, _) => srq::make_pair(wanted.call, device, &wanted.uses, &init)?,
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
    let published = nic.family.published.add_qp(netlink::Qp {
        pid: std::process::id(),
        number: face.ex.qp_base.qp_num,
        kind: wanted.kind as u8,
        ..netlink::Qp::default()
    });
    let qp = give(
        face,
        Qp {
            pair,
            turn: Turn::default(),
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

fn face(of: *mut ibv_context, wanted: &Wanted, qpn: u32) -> QpFace {
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
            // SAFETY: inside of the face and aligned, as was asserted; releases that know the slot have such a function there.
            unsafe { slot.write(post_ex::flush) };
        }
    }
    face
}

/// Opens a QP that another process shares: there are none.
pub(crate) unsafe extern "C" fn open_qp(_of: *mut ibv_context, _attr: *mut ibv_qp_open_attr) -> *mut ibv_qp {
    let _uncancelled = Uncancelled::new();
    pointer(refuse("ibv_open_qp", libc::EOPNOTSUPP, "QPs are not shared between processes"))
}

/// Destroys a queue pair, whatever it is doing, once its events are acknowledged.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    let _uncancelled = Uncancelled::new();
    // SAFETY: the contract: objects that live, and nobody uses the QP while it goes.
    code(unsafe {
        behind(qp).and_then(|found| {
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

/// Sets attributes and state.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, given: c_int) -> c_int {
    let _uncancelled = Uncancelled::new();
    const CALL: &str = "ibv_modify_qp";
    // SAFETY: the contract: an object, and the attributes that the mask names.
    code(unsafe {
        behind(qp).and_then(|found| {
            found.has_a_state(CALL)?;
            let nic = &context((*qp).context)?.nic.device;
            let mut known = lock(&found.known);
            let given = qp_attr::without_the_other_ends(found.pair.qp_type(), given as u32);
            let next = known.with(attr, given);
            let wanted = qp_attr::read(CALL, nic, attr, given)?;
            found.pair.modify(&wanted).map_err(device(CALL))?;
            *known = next;
            found.published.change(|qp| qp_attr::publish(qp, attr, given));
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

/// Bounds how fast a queue pair sends: a rate in kb/s, 0 for no bound, and bursts in bytes.
pub(crate) unsafe extern "C" fn modify_qp_rate_limit(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_rate_limit_attr,
) -> c_int {
    let _uncancelled = Uncancelled::new();
    const CALL: &str = "ibv_modify_qp_rate_limit";
    // SAFETY: the contract: an object, and attributes.
    code(unsafe {
        behind(qp).and_then(|found| {
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

/// Tells attributes and state.
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
        behind(qp).and_then(|found| {
            found.has_a_state("ibv_query_qp")?;
            let status = found.pair.query().map_err(device("ibv_query_qp"))?;
            let cap = given_caps(&found.caps);
            qp_attr::write(attr, &status, &lock(&found.known), cap);
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

/// The extended form of a QP that was made with the operations it is to offer; null for others.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    let _uncancelled = Uncancelled::new();
    // SAFETY: the contract: an object.
    match unsafe { behind(qp) } {
        Ok(found) if found.extended => qp.cast(),
        _ => {
            set_errno(libc::EOPNOTSUPP);
            null_mut()
        }
    }
}

/// No promise beyond the one of the specification, that the last byte of a WRITE comes last.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_query_qp_data_in_order(_qp: *mut ibv_qp, _operation: u32, _flags: u32) -> c_int {
    let _uncancelled = Uncancelled::new();
    0
}

/// Enhanced connection establishment negotiates options between vendors' devices: there are none here.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_query_ece(_qp: *mut ibv_qp, _ece: *mut c_void) -> c_int {
    let _uncancelled = Uncancelled::new();
    libc::EOPNOTSUPP
}

/// As [`ibv_query_ece`].
#[unsafe(no_mangle)]
pub extern "C" fn ibv_set_ece(_qp: *mut ibv_qp, _ece: *mut c_void) -> c_int {
    let _uncancelled = Uncancelled::new();
    libc::EOPNOTSUPP
}
