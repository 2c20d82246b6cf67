//! Shared receive queues (`ibv_srq`), XRC domains (`ibv_xrcd`), and the objects that a queue pair uses.

pub(crate) mod wq;

use std::ffi::{c_int, c_uint};
use std::os::fd::BorrowedFd;

use roxie::host::{QueuePair, SharedReceiveQueue, XrcDomain};
use roxie::limits::{Limits, MAX_SGE, MAX_WR};
use roxie::verbs::{QpInit, QpType, Qpn};

use crate::abi::{
    ibv_context, ibv_cq, ibv_device_cap_flags as caps, ibv_pd, ibv_recv_wr, ibv_srq, ibv_srq_attr,
    ibv_srq_attr_mask as change, ibv_srq_init_attr, ibv_srq_init_attr_ex, ibv_srq_init_attr_mask as mask,
    ibv_srq_type, ibv_xrcd, ibv_xrcd_init_attr, ibv_xrcd_init_attr_mask as xrcd_mask,
};
use crate::base::cancellation::Uncancelled;
use crate::base::lists::post_receives;
use crate::base::object::{Errno, VerbsStruct, code, code_of, give, object_of, pointer, put, take_back};
use crate::base::report::{device, info, refuse};
use crate::base::waiting::Acknowledgements;
use crate::device::context::context;
use crate::device::event_queue::Element;
use crate::device::nic::Source;
use crate::pd::{InDomain, Users};

/// Device capabilities due to shared receive queues.
pub(crate) const CAPABILITIES: c_uint = caps::IBV_DEVICE_SRQ_RESIZE | caps::IBV_DEVICE_XRC;
/// Limits of shared receive queues.
pub(crate) const MAX_SRQ_WR: c_int = MAX_WR as c_int;
pub(crate) const MAX_SRQ_SGE: c_int = MAX_SGE as c_int;

/// Returns the maximum number of shared receive queues.
pub(crate) fn max_srq() -> c_int {
    Limits::default().srqs as c_int
}

/// The object behind a shared receive queue.
pub(crate) struct Srq {
    queue: SharedReceiveQueue,
    pub(crate) users: Users,
    _domain: InDomain,
    xrc: Option<(*mut ibv_xrcd, *mut ibv_cq)>,
    pub(crate) acknowledgements: Acknowledgements,
}

impl VerbsStruct for ibv_srq {
    type Extended = ibv_srq;
    type Inner = Srq;
}

/// The object behind an XRC domain.
pub(crate) struct Xrcd {
    domain: XrcDomain,
    users: Users,
}

impl VerbsStruct for ibv_xrcd {
    type Extended = ibv_xrcd;
    type Inner = Xrcd;
}

/// Creates a shared receive queue.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_srq(pd: *mut ibv_pd, attr: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    let _uncancelled = Uncancelled::new();
    // SAFETY: the contract: an object, and attributes.
    pointer(unsafe {
        if attr.is_null() {
            Err(libc::EINVAL)
        } else {
            create("ibv_create_srq", pd, (*attr).srq_context, &raw mut (*attr).attr, None)
        }
    })
}

/// Creates a shared receive queue of any type.
pub(crate) unsafe extern "C" fn create_srq_ex(
    of: *mut ibv_context,
    attr: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    let _uncancelled = Uncancelled::new();
    const CALL: &str = "ibv_create_srq_ex";
    const KNOWN: u32 = mask::IBV_SRQ_INIT_ATTR_TYPE
        | mask::IBV_SRQ_INIT_ATTR_PD
        | mask::IBV_SRQ_INIT_ATTR_XRCD
        | mask::IBV_SRQ_INIT_ATTR_CQ;
    // SAFETY: the contract: objects, and the attributes that `comp_mask` says are present.
    pointer(unsafe {
        context(of).and_then(|_| {
            if attr.is_null() {
                return Err(libc::EINVAL);
            }
            let given = (*attr).comp_mask;
            let has = |bit| given & bit != 0;
            if given & !KNOWN != 0 {
                return refuse(
                    CALL,
                    libc::EOPNOTSUPP,
                    format_args!("comp_mask {given:#x}: {KNOWN:#x} are supported"),
                );
            }
            if !has(mask::IBV_SRQ_INIT_ATTR_PD) {
                return refuse(
                    CALL,
                    libc::EINVAL,
                    "comp_mask without IBV_SRQ_INIT_ATTR_PD: a queue belongs to a protection domain",
                );
            }
            let kind = if has(mask::IBV_SRQ_INIT_ATTR_TYPE) {
                (*attr).srq_type
            } else {
                ibv_srq_type::IBV_SRQT_BASIC
            };
            let xrc = match kind {
                ibv_srq_type::IBV_SRQT_BASIC => None,
                ibv_srq_type::IBV_SRQT_XRC
                    if has(mask::IBV_SRQ_INIT_ATTR_XRCD) && has(mask::IBV_SRQ_INIT_ATTR_CQ) =>
                {
                    Some(((*attr).xrcd, (*attr).cq))
                }
                ibv_srq_type::IBV_SRQT_XRC => {
                    return refuse(
                        CALL,
                        libc::EINVAL,
                        "an XRC queue needs an XRC domain and a completion queue",
                    );
                }
                _ => {
                    return refuse(
                        CALL,
                        libc::EOPNOTSUPP,
                        format_args!(
                            "srq_type {kind}: BASIC (0) and XRC (1) are supported, tag matching is not"
                        ),
                    );
                }
            };
            create(CALL, (*attr).pd, (*attr).srq_context, &raw mut (*attr).attr, xrc)
        })
    })
}

/// # Safety
/// The contract: objects and attributes.
unsafe fn create(
    call: &'static str,
    pd: *mut ibv_pd,
    user: *mut std::ffi::c_void,
    attr: *mut ibv_srq_attr,
    xrc: Option<(*mut ibv_xrcd, *mut ibv_cq)>,
) -> Result<*mut ibv_srq, Errno> {
    // SAFETY: the caller promises an object, attributes of all releases, and objects for XRC if they are given.
    unsafe {
        let pd_object = object_of(pd)?;
        let (wrs, sges) = ((*attr).max_wr, (*attr).max_sge);
        if wrs == 0 {
            return refuse(call, libc::EINVAL, "max_wr = 0: a queue holds one receive at least");
        }
        let made = match xrc {
            None => pd_object.domain.create_srq(wrs, sges),
            Some((xrcd, cq)) => {
                pd_object.domain.create_xrc_srq(wrs, sges, &object_of(xrcd)?.domain, &object_of(cq)?.queue)
            }
        };
        let queue = made.map_err(device(call))?;
        let of = (*pd).context;
        let nic = context(of)?;
        let source = Source::Srq(queue.index().0);
        let domain = InDomain::new(pd_object);
        if let Some((xrcd, cq)) = xrc {
            object_of(xrcd)?.users.add();
            object_of(cq)?.users.add();
        }
        let face = ibv_srq { context: of, srq_context: user, pd, ..ibv_srq::default() };
        let behind = Srq {
            queue,
            users: Users::default(),
            _domain: domain,
            xrc,
            acknowledgements: Acknowledgements::default(),
        };
        let srq = give(face, behind);
        nic.nic.add_source(source, &nic.events, Element::Srq(srq as usize));
        Ok(srq)
    }
}

/// Destroys a shared receive queue without QPs, once its events are acknowledged.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    let _uncancelled = Uncancelled::new();
    // SAFETY: the contract: live objects.
    code(unsafe {
        object_of(srq).and_then(|found| {
            found.users.none("ibv_destroy_srq", "shared receive queue")?;
            context((*srq).context)?.nic.remove_source(Source::Srq(found.queue.index().0));
            found.acknowledgements.wait();
            let xrc = found.xrc;
            drop(take_back(srq));
            if let Some((xrcd, cq)) = xrc {
                object_of(xrcd)?.users.remove();
                object_of(cq)?.users.remove();
            }
            Ok(())
        })
    })
}

/// Resizes a queue, or arms its limit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr, given: c_int) -> c_int {
    let _uncancelled = Uncancelled::new();
    const CALL: &str = "ibv_modify_srq";
    // SAFETY: the contract: an object, and attributes.
    code(unsafe {
        object_of(srq).and_then(|found| {
            let given = given as c_uint;
            if given & !(change::IBV_SRQ_MAX_WR | change::IBV_SRQ_LIMIT) != 0 {
                return refuse(
                    CALL,
                    libc::EINVAL,
                    format_args!("srq_attr_mask {given:#x}: MAX_WR (1) and LIMIT (2) are known"),
                );
            }
            let has = |bit| given & bit != 0;
            let max_wr = has(change::IBV_SRQ_MAX_WR).then(|| (*attr).max_wr);
            let limit = has(change::IBV_SRQ_LIMIT).then(|| (*attr).srq_limit);
            found.queue.modify(max_wr, limit).map_err(device(CALL))
        })
    })
}

/// Queries the size and limit of a queue.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    let _uncancelled = Uncancelled::new();
    // SAFETY: the contract: an object, and room for attributes.
    code(unsafe {
        object_of(srq).and_then(|found| {
            let status = found.queue.query().map_err(device("ibv_query_srq"))?;
            attr.write(ibv_srq_attr {
                max_wr: status.max_wr,
                max_sge: status.max_sge,
                srq_limit: status.limit,
            });
            Ok(())
        })
    })
}

/// Returns the number by which peers of XRC connections name the queue.
pub(crate) unsafe extern "C" fn get_srq_num(srq: *mut ibv_srq, number: *mut u32) -> c_int {
    let _uncancelled = Uncancelled::new();
    // SAFETY: the contract: an object, and room for the number.
    code(unsafe {
        object_of(srq).and_then(|found| {
            if found.xrc.is_none() {
                return Err(libc::EOPNOTSUPP);
            }
            number.write(found.queue.number().0);
            Ok(())
        })
    })
}

/// Posts a list of receives.
pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    let _uncancelled = Uncancelled::new();
    // SAFETY: the contract: an object; the other arguments are passed on.
    unsafe {
        match object_of(srq) {
            Ok(found) => post_receives(first, bad, |id, sges| found.queue.post_recv(id, sges)),
            Err(errno) => {
                put(bad, first);
                code_of(errno)
            }
        }
    }
}

/// Opens the XRC domain of a file, or a new one.
pub(crate) unsafe extern "C" fn open_xrcd(
    of: *mut ibv_context,
    attr: *mut ibv_xrcd_init_attr,
) -> *mut ibv_xrcd {
    let _uncancelled = Uncancelled::new();
    const CALL: &str = "ibv_open_xrcd";
    // SAFETY: the contract: an object, and attributes.
    pointer(unsafe {
        context(of).and_then(|found| {
            let both = xrcd_mask::IBV_XRCD_INIT_ATTR_FD | xrcd_mask::IBV_XRCD_INIT_ATTR_OFLAGS;
            if attr.is_null() || (*attr).comp_mask != both {
                return refuse(CALL, libc::EINVAL, "comp_mask: both fd and oflags are needed");
            }
            let (fd, flags) = ((*attr).fd, (*attr).oflags);
            let nic = &found.nic.device;
            let domain = if fd == -1 {
                if flags & libc::O_CREAT == 0 {
                    return refuse(CALL, libc::EINVAL, "no file and no O_CREAT: there is nothing to open");
                }
                nic.open_xrcd()
            } else {
                let file = BorrowedFd::borrow_raw(fd);
                nic.open_xrcd_of(file, flags & libc::O_CREAT != 0, flags & libc::O_EXCL != 0)
            };
            let domain = domain.map_err(device(CALL))?;
            Ok(give(ibv_xrcd { context: of }, Xrcd { domain, users: Users::default() }))
        })
    })
}

/// Closes an XRC domain without users.
pub(crate) unsafe extern "C" fn close_xrcd(xrcd: *mut ibv_xrcd) -> c_int {
    let _uncancelled = Uncancelled::new();
    // SAFETY: the contract: an object.
    code(unsafe {
        object_of(xrcd).and_then(|found| {
            found.users.none("ibv_close_xrcd", "XRC domain")?;
            drop(take_back(xrcd));
            Ok(())
        })
    })
}

/// Objects that a queue pair uses.
pub(crate) struct Endpoints {
    pub(crate) pd: *mut ibv_pd,
    pub(crate) send_cq: *mut ibv_cq,
    pub(crate) recv_cq: *mut ibv_cq,
    pub(crate) srq: *mut ibv_srq,
    pub(crate) xrcd: *mut ibv_xrcd,
}

impl Endpoints {
    /// Removes the completions of a QP that was reset or destroyed, as adapters do.
    pub(crate) fn forget(&self, qpn: Qpn) {
        for cq in [self.send_cq, self.recv_cq] {
            // SAFETY: the contract: objects, which live as long as the QP.
            if let Ok(cq) = unsafe { object_of(cq) } {
                cq.queue.forget(qpn);
            }
        }
    }

    /// Adds or removes the QP as a user of all its objects except the protection domain, which has an [`InDomain`].
    pub(crate) fn count(&self, more: bool) {
        let change = |users: &Users| if more { users.add() } else { users.remove() };
        // SAFETY: the contract: objects, which live as long as the QP.
        unsafe {
            for cq in [self.send_cq, self.recv_cq] {
                if let Ok(cq) = object_of(cq) {
                    change(&cq.users);
                }
            }
            if let Ok(srq) = object_of(self.srq) {
                change(&srq.users);
            }
            if let Ok(xrcd) = object_of(self.xrcd) {
                change(&xrcd.users);
            }
        }
    }
}

/// Creates a queue pair.
pub(crate) fn make_pair(call: &'static str, of: &Endpoints, init: &QpInit) -> Result<QueuePair, Errno> {
    // SAFETY: the contract: objects.
    unsafe {
        if init.qp_type == QpType::XrcRecv {
            let xrcd = object_of(of.xrcd)
                .or_else(|_| refuse(call, libc::EINVAL, "an XRC target needs an XRC domain"))?;
            return xrcd.domain.create_target().map_err(device(call));
        }
        let missing = |what: &'static str| {
            move |errno: Errno| {
                info(call, format_args!("no {what}"));
                errno
            }
        };
        let pd = object_of(of.pd).map_err(missing("protection domain"))?;
        let sends = object_of(of.send_cq).map_err(missing("send_cq"))?;
        let builder = pd.domain.queue_pair(&sends.queue).init(init);
        if init.qp_type == QpType::XrcSend {
            return builder.create().map_err(device(call));
        }
        let receives = object_of(of.recv_cq).map_err(missing("recv_cq"))?;
        let builder = builder.recv_cq(&receives.queue);
        let builder = if of.srq.is_null() { builder } else { builder.srq(&object_of(of.srq)?.queue) };
        builder.create().map_err(device(call))
    }
}
