//! Opening and closing of the device, and the table of functions that applications call through a context.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use crate::abi::{ibv_context, ibv_context_ops, ibv_device, verbs_context};
use crate::base::cancellation::Uncancelled;
use crate::base::object::{Errno, code, pointer};
use crate::cq;
use crate::cq::poll_ex;
use crate::device::context::{self, Context};
use crate::device::event_queue::EventQueue;
use crate::device::family::Family;
use crate::device::list;
use crate::device::nic::Nic;
use crate::device::query;
use crate::flow;
use crate::memory;
use crate::memory::window;
use crate::pd;
use crate::qp;
use crate::qp::create as create_qp;
use crate::qp::post;
use crate::srq;
use crate::srq::wq;

/// `abi_compat` of a context within a `verbs_context`.
const EXTENDED: usize = usize::MAX;

/// Opens the device. The first queue pair claims the interface, not this call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    let _uncancelled = Uncancelled::new();
    pointer(if device.is_null() { Err(libc::EINVAL) } else { open(device) })
}

fn open(device: *mut ibv_device) -> Result<*mut ibv_context, Errno> {
    let nic = Nic::open("ibv_open_device")?;
    let (family, command) = Family::new()?;
    make(device, nic, family, command)
}

/// Creates another context of the same open device. Takes ownership of the descriptor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_import_device(descriptor: c_int) -> *mut ibv_context {
    let _uncancelled = Uncancelled::new();
    const CALL: &str = "ibv_import_device";
    pointer(Family::of(CALL, descriptor).and_then(|family| {
        let nic = Nic::open(CALL)?;
        // SAFETY: the contract: the caller gives its own descriptor away; `of` verified that it is open.
        let command = unsafe { OwnedFd::from_raw_fd(descriptor) };
        make(list::the_device(), nic, family, command)
    }))
}

fn make(
    device: *mut ibv_device,
    nic: Arc<Nic>,
    family: Arc<Family>,
    command: OwnedFd,
) -> Result<*mut ibv_context, Errno> {
    let events = Arc::new(EventQueue::new()?);
    nic.add_context(&events);
    let context = ibv_context {
        device,
        ops: legacy_operations(),
        // Programs pass it to system calls only if they know the device's kernel driver.
        cmd_fd: command.as_raw_fd(),
        async_fd: events.application_fd(),
        num_comp_vectors: cq::COMPLETION_VECTORS,
        abi_compat: EXTENDED as *mut c_void,
        ..ibv_context::default()
    };
    let verbs = verbs_context { context, ..operations() };
    Ok(context::allocate(verbs, Context::new(nic, events, family, command)))
}

/// Closes a context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_close_device(held: *mut ibv_context) -> c_int {
    let _uncancelled = Uncancelled::new();
    // SAFETY: the contract: an open context without remaining objects.
    code(unsafe { context::context(held) }.map(|_| {
        // SAFETY: `make` made it, because it is an open context; it is closed once.
        unsafe { context::free(held) };
    }))
}

/// Functions called through the context since the first release.
fn legacy_operations() -> ibv_context_ops {
    ibv_context_ops {
        _compat_query_device: Some(query::ibv_query_device),
        _compat_query_port: Some(query::query_port_short),
        alloc_mw: Some(window::alloc_mw),
        bind_mw: Some(window::bind_mw),
        dealloc_mw: Some(window::dealloc_mw),
        poll_cq: Some(cq::poll_cq),
        req_notify_cq: Some(cq::req_notify_cq),
        post_srq_recv: Some(srq::post_srq_recv),
        post_send: Some(post::post_send),
        post_recv: Some(post::post_recv),
        ..ibv_context_ops::default()
    }
}

/// Functions added later. An empty slot makes the caller's inline function return `EOPNOTSUPP`.
fn operations() -> verbs_context {
    verbs_context {
        query_port: Some(query::query_port),
        advise_mr: Some(memory::advise_mr),
        alloc_null_mr: Some(memory::alloc_null_mr),
        alloc_dm: Some(memory::alloc_dm),
        free_dm: Some(memory::free_dm),
        reg_dm_mr: Some(memory::reg_dm_mr),
        alloc_parent_domain: Some(pd::alloc_parent_domain),
        alloc_td: Some(pd::alloc_td),
        dealloc_td: Some(pd::dealloc_td),
        modify_cq: Some(cq::modify_cq),
        modify_qp_rate_limit: Some(qp::modify_qp_rate_limit),
        query_rt_values: Some(query::query_rt_values),
        create_cq_ex: Some(poll_ex::create_cq_ex),
        query_device_ex: Some(query::query_device_ex),
        create_qp_ex: Some(create_qp::create_qp_ex),
        open_qp: Some(create_qp::open_qp),
        create_wq: Some(wq::create_wq),
        modify_wq: Some(wq::modify_wq),
        destroy_wq: Some(wq::destroy_wq),
        create_rwq_ind_table: Some(wq::create_table),
        destroy_rwq_ind_table: Some(wq::destroy_table),
        ibv_create_flow: Some(flow::create_flow),
        ibv_destroy_flow: Some(flow::destroy_flow),
        get_srq_num: Some(srq::get_srq_num),
        create_srq_ex: Some(srq::create_srq_ex),
        open_xrcd: Some(srq::open_xrcd),
        close_xrcd: Some(srq::close_xrcd),
        ..verbs_context::default()
    }
}
