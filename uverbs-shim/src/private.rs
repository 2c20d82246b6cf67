//! Symbols that the plug-ins of other devices import from libibverbs.
//!
//! Programs load those plug-ins with their libraries (`libmlx5`, `libefa`), and they load only if every symbol is there. None of
//! them is ever asked for a device here, so the functions only say that there is none.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;

use crate::object::set_errno;

/// Functions that carry a provider's command to the kernel: there is no kernel device behind this library.
macro_rules! no_kernel {
    ($($name:ident)*) => {
        $(
            /// `ENOSYS`: see the macro.
            #[unsafe(no_mangle)]
            pub extern "C" fn $name() -> c_int {
                set_errno(libc::ENOSYS);
                libc::ENOSYS
            }
        )*
    };
}

no_kernel! {
    execute_ioctl
    ibv_cmd_advise_mr ibv_cmd_alloc_dm ibv_cmd_alloc_mw ibv_cmd_alloc_pd ibv_cmd_attach_mcast
    ibv_cmd_close_xrcd ibv_cmd_create_ah ibv_cmd_create_counters ibv_cmd_create_cq ibv_cmd_create_cq_ex
    ibv_cmd_create_flow ibv_cmd_create_flow_action_esp ibv_cmd_create_qp ibv_cmd_create_qp_ex
    ibv_cmd_create_qp_ex2 ibv_cmd_create_rwq_ind_table ibv_cmd_create_srq ibv_cmd_create_srq_ex
    ibv_cmd_create_wq ibv_cmd_dealloc_mw ibv_cmd_dealloc_pd ibv_cmd_dereg_mr ibv_cmd_destroy_ah
    ibv_cmd_destroy_counters ibv_cmd_destroy_cq ibv_cmd_destroy_flow ibv_cmd_destroy_flow_action
    ibv_cmd_destroy_qp ibv_cmd_destroy_rwq_ind_table ibv_cmd_destroy_srq ibv_cmd_destroy_wq
    ibv_cmd_detach_mcast ibv_cmd_free_dm ibv_cmd_get_context ibv_cmd_modify_cq
    ibv_cmd_modify_flow_action_esp ibv_cmd_modify_qp ibv_cmd_modify_qp_ex ibv_cmd_modify_srq
    ibv_cmd_modify_wq ibv_cmd_open_qp ibv_cmd_open_xrcd ibv_cmd_poll_cq ibv_cmd_post_recv ibv_cmd_post_send
    ibv_cmd_post_srq_recv ibv_cmd_query_context ibv_cmd_query_device_any ibv_cmd_query_mr
    ibv_cmd_query_port ibv_cmd_query_qp ibv_cmd_query_srq ibv_cmd_read_counters ibv_cmd_reg_dm_mr
    ibv_cmd_reg_dmabuf_mr ibv_cmd_reg_mr ibv_cmd_req_notify_cq ibv_cmd_rereg_mr ibv_cmd_resize_cq
}

/// A provider's flag that its objects may outlive the device.
#[unsafe(no_mangle)]
pub static verbs_allow_disassociate_destroy: bool = false;

/// A provider registers itself when it is loaded: heard, and not remembered.
#[unsafe(no_mangle)]
pub extern "C" fn verbs_register_driver_34(_operations: *const c_void) {}

/// As [`verbs_register_driver_34`], of releases before 2017.
#[unsafe(no_mangle)]
pub extern "C" fn roxie_register_driver_1_1(_name: *const c_char, _init: *const c_void) {}

/// Fills in a provider's context: there is none.
#[unsafe(no_mangle)]
pub extern "C" fn _verbs_init_and_alloc_context() -> *mut c_void {
    set_errno(libc::EOPNOTSUPP);
    null_mut()
}

/// Opens a device for a provider that made it: there is none.
#[unsafe(no_mangle)]
pub extern "C" fn verbs_open_device() -> *mut c_void {
    set_errno(libc::EOPNOTSUPP);
    null_mut()
}

/// As [`_verbs_init_and_alloc_context`].
#[unsafe(no_mangle)]
pub extern "C" fn verbs_uninit_context(_context: *mut c_void) {}

/// As [`_verbs_init_and_alloc_context`].
#[unsafe(no_mangle)]
pub extern "C" fn verbs_set_ops(_context: *mut c_void, _operations: *const c_void) {}

/// As [`_verbs_init_and_alloc_context`].
#[unsafe(no_mangle)]
pub extern "C" fn verbs_init_cq(
    _cq: *mut c_void,
    _context: *mut c_void,
    _channel: *mut c_void,
    _user: *mut c_void,
) {
}

/// A provider's log. It is variadic; the arguments behind the format are not needed to say nothing.
#[unsafe(no_mangle)]
pub extern "C" fn __verbs_log(_context: *mut c_void, _level: u32, _format: *const c_char) {}

/// The size of a provider's command, which will not be sent.
#[unsafe(no_mangle)]
pub extern "C" fn __ioctl_final_num_attrs(count: c_uint, _link: *mut c_void) -> c_uint {
    count
}
