//! Receive side scaling (RSS): receive work queues, indirection tables, and QPs that spread frames over a table.
//!
//! A receive work queue is a raw packet QP of the device that only receives.

use std::ffi::c_int;
use std::slice;
use std::sync::Arc;

use roxie::flow::{RX_HASH_KEY, RxHash, RxHashFields};
use roxie::host::{Device, QueuePair};
use roxie::nic::MAX_TABLE;
use roxie::verbs::{QpAttr, QpCaps, QpInit, QpState, QpType, Qpn};

use crate::abi::{
    ibv_context, ibv_cq, ibv_qp_type, ibv_recv_wr, ibv_rss_caps, ibv_rwq_ind_table,
    ibv_rwq_ind_table_init_attr, ibv_rx_hash_conf, ibv_rx_hash_function_flags as function, ibv_wq,
    ibv_wq_attr, ibv_wq_attr_mask as attr_mask, ibv_wq_init_attr, ibv_wq_init_attr_mask as init_mask,
    ibv_wq_state as state, ibv_wq_type,
};
use crate::base::cancellation::Uncancelled;
use crate::base::lists::post_receives;
use crate::base::object::{Errno, VerbsStruct, code, code_of, give, object_of, pointer, put, take_back};
use crate::base::report::{device, refuse};
use crate::base::waiting::Acknowledgements;
use crate::device::context::context;
use crate::device::event_queue::Element;
use crate::device::nic::Source;
use crate::pd::{InDomain, Users};

/// The object behind a receive work queue.
pub(crate) struct Wq {
    pair: Arc<QueuePair>,
    /// Tables with this queue.
    users: Users,
    _domain: InDomain,
    pub(crate) acknowledgements: Acknowledgements,
}

impl VerbsStruct for ibv_wq {
    type Extended = ibv_wq;
    type Inner = Arc<Wq>;
}

/// The object behind an indirection table.
pub(crate) struct Table {
    queues: Vec<Arc<Wq>>,
    /// QPs that spread frames over the table.
    users: Users,
}

impl VerbsStruct for ibv_rwq_ind_table {
    type Extended = ibv_rwq_ind_table;
    type Inner = Arc<Table>;
}

impl Drop for Table {
    fn drop(&mut self) {
        for queue in &self.queues {
            queue.users.remove();
        }
    }
}

/// A QP's reference to a table, with its hash.
pub(crate) struct Spread {
    table: Arc<Table>,
    hash: RxHash,
}

impl Spread {
    /// # Safety
    /// The contract: an object, and a key of the length given.
    pub(crate) unsafe fn read(
        call: &str,
        table: *mut ibv_rwq_ind_table,
        conf: &ibv_rx_hash_conf,
    ) -> Result<Spread, Errno> {
        // SAFETY: the caller promises an object, which is null or lives for the call.
        let table = unsafe { object_of(table) }?;
        if u32::from(conf.rx_hash_function) != function::IBV_RX_HASH_FUNC_TOEPLITZ {
            let why = format_args!("rx_hash_function {}: Toeplitz (1) is supported", conf.rx_hash_function);
            return refuse(call, libc::EOPNOTSUPP, why);
        }
        let length = usize::from(conf.rx_hash_key_len);
        if length != RX_HASH_KEY || conf.rx_hash_key.is_null() {
            let why = format_args!("rx_hash_key of {length} bytes: the hash takes {RX_HASH_KEY}");
            return refuse(call, libc::EINVAL, why);
        }
        let bits = conf.rx_hash_fields_mask;
        let Some(fields) = u32::try_from(bits).ok().and_then(RxHashFields::from_bits) else {
            let why = format_args!("rx_hash_fields_mask {bits:#x}: {:#x} are supported", RxHashFields::all());
            return refuse(call, libc::EOPNOTSUPP, why);
        };
        // SAFETY: not null, and of this length, as checked; the caller promises that many bytes of key.
        let key = unsafe { conf.rx_hash_key.cast::<[u8; RX_HASH_KEY]>().read() };
        Ok(Spread::new(table, RxHash { key, fields }))
    }

    fn new(table: &Arc<Table>, hash: RxHash) -> Spread {
        table.users.add();
        Spread { table: Arc::clone(table), hash }
    }

    /// Returns another reference, for a QP to hold.
    pub(crate) fn hold(&self) -> Spread {
        Spread::new(&self.table, self.hash)
    }

    pub(crate) fn make_pair(
        &self,
        call: &'static str,
        nic: &Device,
        domain: &InDomain,
        kind: QpType,
    ) -> Result<QueuePair, Errno> {
        if kind != QpType::RawPacket {
            return refuse(call, libc::EOPNOTSUPP, "only QPs of type RAW_PACKET (8) spread frames");
        }
        let queues: Vec<_> = self.table.queues.iter().map(|queue| Arc::clone(&queue.pair)).collect();
        nic.create_rss_qp(domain.domain(), self.hash, &queues).map_err(device(call))
    }
}

impl Drop for Spread {
    fn drop(&mut self) {
        self.table.users.remove();
    }
}

/// Returns the RSS capabilities of the device.
pub(crate) fn capabilities(qps: u32) -> ibv_rss_caps {
    ibv_rss_caps {
        supported_qpts: 1 << ibv_qp_type::IBV_QPT_RAW_PACKET,
        max_rwq_indirection_tables: qps,
        max_rwq_indirection_table_size: MAX_TABLE as u32,
        rx_hash_fields_mask: RxHashFields::all().bits().into(),
        rx_hash_function: function::IBV_RX_HASH_FUNC_TOEPLITZ as u8,
    }
}

/// Creates a receive work queue.
pub(crate) unsafe extern "C" fn create_wq(of: *mut ibv_context, attr: *mut ibv_wq_init_attr) -> *mut ibv_wq {
    let _uncancelled = Uncancelled::new();
    const CALL: &str = "ibv_create_wq";
    // SAFETY: the contract: objects and attributes.
    pointer(unsafe {
        context(of).and_then(|found| {
            if attr.is_null() {
                return Err(libc::EINVAL);
            }
            let wanted = attr.read();
            if wanted.wq_type != ibv_wq_type::IBV_WQT_RQ {
                let why = format_args!("wq_type {}: receive queues (0) are supported", wanted.wq_type);
                return refuse(CALL, libc::EOPNOTSUPP, why);
            }
            let flags = if wanted.comp_mask & init_mask::IBV_WQ_INIT_ATTR_FLAGS != 0 {
                wanted.create_flags
            } else {
                0
            };
            if flags != 0 || wanted.comp_mask & !init_mask::IBV_WQ_INIT_ATTR_FLAGS != 0 {
                let why = format_args!(
                    "comp_mask {:#x}, create_flags {flags:#x}: none are supported",
                    wanted.comp_mask
                );
                return refuse(CALL, libc::EOPNOTSUPP, why);
            }
            let (pd, cq) = (object_of(wanted.pd)?, object_of(wanted.cq)?);
            let caps = QpCaps { max_recv_wr: wanted.max_wr, max_recv_sge: wanted.max_sge, ..QpCaps::NONE };
            let init = QpInit { qp_type: QpType::RawPacket, caps, sq_sig_all: false };
            let pair = pd.domain.queue_pair(&cq.queue).init(&init).create().map_err(device(CALL))?;
            cq.users.add();
            let face = ibv_wq {
                context: of,
                wq_context: wanted.wq_context,
                pd: wanted.pd,
                cq: wanted.cq,
                wq_num: pair.qpn().value(),
                state: state::IBV_WQS_RESET,
                wq_type: wanted.wq_type,
                post_recv: Some(post_recv),
                ..ibv_wq::default()
            };
            let domain = InDomain::new(pd);
            let source = Source::Qp(pair.index().0);
            let wq = Wq {
                pair: Arc::new(pair),
                users: Users::default(),
                _domain: domain,
                acknowledgements: Acknowledgements::default(),
            };
            let wq = give(face, Arc::new(wq));
            found.nic.add_source(source, &found.events, Element::Wq(wq as usize));
            Ok(wq)
        })
    })
}

/// Posts a list of receives. Called through the structure's function pointer.
unsafe extern "C" fn post_recv(
    wq: *mut ibv_wq,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    let _uncancelled = Uncancelled::new();
    // SAFETY: the contract: an object; the other arguments are passed on.
    unsafe {
        match object_of(wq) {
            Ok(found) => post_receives(first, bad, |id, sges| found.pair.post_recv(id, sges)),
            Err(errno) => {
                put(bad, first);
                code_of(errno)
            }
        }
    }
}

/// Changes the state of a queue.
pub(crate) unsafe extern "C" fn modify_wq(wq: *mut ibv_wq, attr: *mut ibv_wq_attr) -> c_int {
    let _uncancelled = Uncancelled::new();
    const CALL: &str = "ibv_modify_wq";
    // SAFETY: the contract: an object, and attributes.
    code(unsafe {
        object_of(wq).and_then(|found| {
            if attr.is_null() {
                return Err(libc::EINVAL);
            }
            let (is, wanted) = (found.state(CALL)?, attr.read());
            (*wq).state = is;
            if wanted.attr_mask & !(attr_mask::IBV_WQ_ATTR_STATE | attr_mask::IBV_WQ_ATTR_CURR_STATE) != 0 {
                return refuse(
                    CALL,
                    libc::EOPNOTSUPP,
                    format_args!("attr_mask {:#x}: only a state can be set", wanted.attr_mask),
                );
            }
            if wanted.attr_mask & attr_mask::IBV_WQ_ATTR_CURR_STATE != 0 && wanted.curr_wq_state != is {
                let why = format_args!("the queue is in state {is}, not in {}", wanted.curr_wq_state);
                return refuse(CALL, libc::EINVAL, why);
            }
            if wanted.attr_mask & attr_mask::IBV_WQ_ATTR_STATE == 0 {
                return Ok(());
            }
            let to = |state| QpAttr { state: Some(state), ..QpAttr::default() };
            let done = match (is, wanted.wq_state) {
                (state::IBV_WQS_RESET, state::IBV_WQS_RDY) => found.pair.start_raw(),
                (_, state::IBV_WQS_ERR) => found.pair.modify(&to(QpState::Err)),
                (_, state::IBV_WQS_RESET) => found.pair.modify(&to(QpState::Reset)),
                (state::IBV_WQS_RDY, state::IBV_WQS_RDY) => Ok(()),
                (_, next) => {
                    return refuse(
                        CALL,
                        libc::EINVAL,
                        format_args!("from state {is} to {next}: RESET must come in between"),
                    );
                }
            };
            done.map_err(device(CALL))?;
            if wanted.wq_state == state::IBV_WQS_RESET {
                forget_completions((*wq).cq, found.pair.qpn());
            }
            (*wq).state = wanted.wq_state;
            Ok(())
        })
    })
}

impl Wq {
    /// Returns the state of the device's queue, which an error sets to ERR.
    fn state(&self, call: &'static str) -> Result<state::Type, Errno> {
        Ok(match self.pair.query().map_err(device(call))?.state {
            QpState::Err => state::IBV_WQS_ERR,
            QpState::Reset | QpState::Init => state::IBV_WQS_RESET,
            _ => state::IBV_WQS_RDY,
        })
    }
}

fn forget_completions(cq: *mut ibv_cq, qpn: Qpn) {
    // SAFETY: the contract: an object, which lives as long as the queue.
    if let Ok(cq) = unsafe { object_of(cq) } {
        cq.queue.forget(qpn);
    }
}

/// Destroys a queue that is in no table.
pub(crate) unsafe extern "C" fn destroy_wq(wq: *mut ibv_wq) -> c_int {
    let _uncancelled = Uncancelled::new();
    // SAFETY: the contract: live objects.
    code(unsafe {
        object_of(wq).and_then(|found| {
            found.users.none("ibv_destroy_wq", "queue")?;
            context((*wq).context)?.nic.remove_source(Source::Qp(found.pair.index().0));
            found.acknowledgements.wait();
            let (cq, qpn) = ((*wq).cq, found.pair.qpn());
            drop(take_back(wq));
            forget_completions(cq, qpn);
            object_of(cq)?.users.remove();
            Ok(())
        })
    })
}

/// Creates an indirection table.
pub(crate) unsafe extern "C" fn create_table(
    of: *mut ibv_context,
    attr: *mut ibv_rwq_ind_table_init_attr,
) -> *mut ibv_rwq_ind_table {
    let _uncancelled = Uncancelled::new();
    const CALL: &str = "ibv_create_rwq_ind_table";
    // SAFETY: the contract: an object, and attributes with a list of as many objects as they say.
    pointer(unsafe {
        context(of).and_then(|_| {
            if attr.is_null() || (*attr).ind_tbl.is_null() || (*attr).comp_mask != 0 {
                return Err(libc::EINVAL);
            }
            let log = (*attr).log_ind_tbl_size;
            let Some(size) = 1usize.checked_shl(log).filter(|size| *size <= MAX_TABLE) else {
                let why = format_args!("log_ind_tbl_size {log}: a table has {MAX_TABLE} queues at most");
                return refuse(CALL, libc::EINVAL, why);
            };
            let list = slice::from_raw_parts((*attr).ind_tbl, size);
            let queues: Vec<_> =
                list.iter().map(|wq| object_of(*wq).map(Arc::clone)).collect::<Result<_, _>>()?;
            queues.iter().for_each(|queue| queue.users.add());
            let face = ibv_rwq_ind_table { context: of, ..ibv_rwq_ind_table::default() };
            Ok(give(face, Arc::new(Table { queues, users: Users::default() })))
        })
    })
}

/// Destroys a table without QPs. Its queues are kept.
pub(crate) unsafe extern "C" fn destroy_table(table: *mut ibv_rwq_ind_table) -> c_int {
    let _uncancelled = Uncancelled::new();
    // SAFETY: the contract: an object.
    code(unsafe {
        object_of(table).and_then(|found| {
            found.users.none("ibv_destroy_rwq_ind_table", "table")?;
            drop(take_back(table));
            Ok(())
        })
    })
}
