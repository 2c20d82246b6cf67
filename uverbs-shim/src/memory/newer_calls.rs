//! Calls added after rdma-core 44: `ibv_reg_mr_ex` for all kinds of memory, and calls for features that this device
//! lacks.

use std::ffi::{c_int, c_void};

use crate::abi::{ibv_context, ibv_dm, ibv_mr, ibv_pd, ibv_qp};
use crate::base::cancellation::Uncancelled;
use crate::base::object::{Errno, code, minus_one, pointer};
use crate::base::report::refuse;
use crate::memory::buffer::{self, ibv_buf};
use crate::memory::{ibv_reg_dmabuf_mr, ibv_reg_mr, ibv_reg_mr_iova2};

/// `enum ibv_mr_init_attr_mask`.
mod given {
    pub(super) const IOVA: u64 = 1 << 0;
    pub(super) const ADDR: u64 = 1 << 1;
    pub(super) const FD: u64 = 1 << 2;
    pub(super) const FD_OFFSET: u64 = 1 << 3;
    pub(super) const DMAH: u64 = 1 << 4;
    pub(super) const BUF: u64 = 1 << 5;
    pub(super) const ALL: u64 = IOVA | ADDR | FD | FD_OFFSET | DMAH | BUF;
}

/// `struct ibv_mr_init_attr`.
#[repr(C)]
pub struct MrInitAttr {
    length: usize,
    access: c_int,
    comp_mask: u64,
    iova: u64,
    addr: *mut c_void,
    fd: c_int,
    fd_offset: u64,
    dmah: *mut c_void,
    buf: *mut ibv_buf,
}

const _: () = assert!(size_of::<MrInitAttr>() == 72, "struct ibv_mr_init_attr");

/// Registers memory of any kind.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr_ex(pd: *mut ibv_pd, attr: *mut MrInitAttr) -> *mut ibv_mr {
    let _uncancelled = Uncancelled::new();
    const CALL: &str = "ibv_reg_mr_ex";
    if attr.is_null() {
        return pointer(refuse(CALL, libc::EINVAL, "no attributes"));
    }
    // SAFETY: the contract: an object, and the attributes that the mask names.
    unsafe {
        let mask = (*attr).comp_mask;
        let has = |bit| mask & bit != 0;
        if let Err(errno) = check_mask(CALL, mask) {
            return pointer(Err(errno));
        }
        let (length, access) = ((*attr).length, (*attr).access);
        if has(given::FD) {
            return ibv_reg_dmabuf_mr(pd, (*attr).fd_offset, length, (*attr).iova, (*attr).fd, access);
        }
        let address = (*attr).addr;
        if has(given::BUF)
            && let Err(errno) = buffer::check(CALL, pd, (*attr).buf, address, length)
        {
            return pointer(Err(errno));
        }
        if has(given::IOVA) {
            ibv_reg_mr_iova2(pd, address, length, (*attr).iova, access as u32)
        } else {
            ibv_reg_mr(pd, address, length, access)
        }
    }
}

/// Checks which fields are given together (`ibv_reg_mr_ex(3)`).
fn check_mask(call: &str, mask: u64) -> Result<(), Errno> {
    let has = |bit| mask & bit != 0;
    if mask & !given::ALL != 0 {
        return refuse(
            call,
            libc::EOPNOTSUPP,
            format_args!("comp_mask {mask:#x}: {:#x} are known", given::ALL),
        );
    }
    if has(given::DMAH) {
        return refuse(
            call,
            libc::EOPNOTSUPP,
            "a DMA handle: the device is not a PCI device, so its hints have no effect",
        );
    }
    if has(given::FD) == has(given::ADDR) {
        return refuse(
            call,
            libc::EINVAL,
            format_args!("comp_mask {mask:#x}: either IBV_REG_MR_MASK_ADDR (2) or IBV_REG_MR_MASK_FD (4)"),
        );
    }
    if has(given::FD) && !(has(given::FD_OFFSET) && has(given::IOVA)) {
        return refuse(
            call,
            libc::EINVAL,
            format_args!("comp_mask {mask:#x}: with a descriptor its offset and an iova (9) are needed"),
        );
    }
    if has(given::FD_OFFSET) && !has(given::FD) || has(given::BUF) && has(given::FD) {
        return refuse(
            call,
            libc::EINVAL,
            format_args!(
                "comp_mask {mask:#x}: an address or a buffer has no descriptor and no offset in one"
            ),
        );
    }
    Ok(())
}

/// Fails with `EOPNOTSUPP`, for features that this device lacks.
fn none<T>(call: &str, what: &str) -> Result<T, Errno> {
    refuse(call, libc::EOPNOTSUPP, format_args!("the device has no {what}"))
}

const HANDLES: &str = "DMA handles: they are hints for the PCI bus";

/// Allocates a handle with hints for the PCI bus. Not supported.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_alloc_dmah(_of: *mut ibv_context, _attr: *mut c_void) -> *mut c_void {
    let _uncancelled = Uncancelled::new();
    pointer(none("ibv_alloc_dmah", HANDLES))
}

/// Not supported, like [`ibv_alloc_dmah`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dealloc_dmah(_handle: *mut c_void) -> c_int {
    let _uncancelled = Uncancelled::new();
    code(none("ibv_dealloc_dmah", HANDLES))
}

/// Exports device memory as a DMA buffer. Not supported: only the kernel can create one, and this memory belongs to the
/// process.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dm_export_dmabuf_fd(_dm: *mut ibv_dm) -> c_int {
    let _uncancelled = Uncancelled::new();
    minus_one(none("ibv_dm_export_dmabuf_fd", "DMA buffers behind its device memory"))
}

const COUNTERS: &str = "completion counters: completions are counted in completion queues";

/// Queries the capabilities of completion counters. Not supported.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ibv_query_comp_cntr_caps(
    _of: *mut ibv_context,
    _caps: *mut c_void,
    _size: usize,
) -> c_int {
    let _uncancelled = Uncancelled::new();
    code(none("ibv_query_comp_cntr_caps", COUNTERS))
}

/// Not supported, like [`_ibv_query_comp_cntr_caps`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_comp_cntr(_of: *mut ibv_context, _attr: *mut c_void) -> *mut c_void {
    let _uncancelled = Uncancelled::new();
    pointer(none("ibv_create_comp_cntr", COUNTERS))
}

/// Not supported, like [`_ibv_query_comp_cntr_caps`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_comp_cntr(_counter: *mut c_void) -> c_int {
    let _uncancelled = Uncancelled::new();
    code(none("ibv_destroy_comp_cntr", COUNTERS))
}

/// Not supported, like [`_ibv_query_comp_cntr_caps`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_qp_attach_comp_cntr(
    _qp: *mut ibv_qp,
    _counter: *mut c_void,
    _attr: *mut c_void,
) -> c_int {
    let _uncancelled = Uncancelled::new();
    code(none("ibv_qp_attach_comp_cntr", COUNTERS))
}

/// Calls with a counter and a number.
macro_rules! on_counters {
    ($($name:ident($type:ty))*) => {
        $(
            /// Not supported, like [`_ibv_query_comp_cntr_caps`].
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(_counter: *mut c_void, _value: $type) -> c_int {
                code(none(stringify!($name), COUNTERS))
            }
        )*
    };
}

on_counters! {
    ibv_set_comp_cntr(u64)
    ibv_set_err_comp_cntr(u64)
    ibv_inc_comp_cntr(u64)
    ibv_inc_err_comp_cntr(u64)
    ibv_read_comp_cntr(*mut u64)
    ibv_read_err_comp_cntr(*mut u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_needs_either_address_or_descriptor() {
        let check = |mask| check_mask("test", mask);
        assert_eq!(check(given::ADDR), Ok(()));
        assert_eq!(check(given::ADDR | given::IOVA), Ok(()));
        assert_eq!(check(given::ADDR | given::BUF), Ok(()));
        assert_eq!(check(given::FD | given::FD_OFFSET | given::IOVA), Ok(()));
        for wrong in [
            0,
            given::IOVA,
            given::BUF,
            given::FD,
            given::FD | given::FD_OFFSET,
            given::FD | given::ADDR | given::FD_OFFSET | given::IOVA,
            given::ADDR | given::FD_OFFSET,
            given::FD | given::FD_OFFSET | given::IOVA | given::BUF,
        ] {
            assert_eq!(check(wrong), Err(libc::EINVAL), "{wrong:#x}");
        }
        assert_eq!(check(given::ADDR | given::DMAH), Err(libc::EOPNOTSUPP));
        assert_eq!(check(given::ADDR | 1 << 6), Err(libc::EOPNOTSUPP));
    }
}
