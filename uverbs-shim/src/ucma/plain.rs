//! Conversions between structures of `rdma/rdma_user_cm.h` and bytes.

use std::mem::size_of;

use crate::abi::*;

/// A structure of plain numbers, for which all bit patterns are valid.
///
/// # Safety
/// All bit patterns of the type are valid.
pub(crate) unsafe trait Plain: Copy {}

macro_rules! plain {
    ($($name:ty)*) => {
        $(
            // SAFETY: integers and arrays of integers, for which all bit patterns are valid.
            unsafe impl Plain for $name {}
        )*
    };
}

plain! {
    rdma_ucm_cmd_hdr rdma_ucm_create_id rdma_ucm_create_id_resp rdma_ucm_destroy_id rdma_ucm_destroy_id_resp rdma_ucm_bind_ip
    rdma_ucm_bind rdma_ucm_resolve_ip rdma_ucm_resolve_addr rdma_ucm_resolve_route rdma_ucm_query rdma_ucm_query_route_resp
    rdma_ucm_query_addr_resp rdma_ucm_connect rdma_ucm_listen rdma_ucm_accept rdma_ucm_reject rdma_ucm_disconnect
    rdma_ucm_init_qp_attr rdma_ucm_notify rdma_ucm_join_ip_mcast rdma_ucm_join_mcast rdma_ucm_get_event rdma_ucm_event_resp
    rdma_ucm_set_option rdma_ucm_migrate_id rdma_ucm_migrate_resp ib_uverbs_qp_attr ib_path_rec_data u8 u32
}

/// Reads a structure from bytes that may be shorter; the rest is zero.
pub(crate) fn read<T: Plain>(bytes: &[u8]) -> T {
    let length = bytes.len().min(size_of::<T>());
    let mut value = std::mem::MaybeUninit::<T>::zeroed();
    // SAFETY: `length` is within both; all bytes are a value of a plain structure.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), value.as_mut_ptr().cast(), length);
        value.assume_init()
    }
}

/// Returns the bytes of a structure.
pub(crate) fn bytes_of<T: Plain>(value: &T) -> &[u8] {
    // SAFETY: a plain structure of the ABI without implicit padding, read as programs read the kernel's.
    unsafe { std::slice::from_raw_parts((&raw const *value).cast(), size_of::<T>()) }
}
