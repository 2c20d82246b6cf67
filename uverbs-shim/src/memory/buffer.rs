//! Buffers allocated as the device prefers (`ibv_alloc_buf`, since rdma-core 64): here, ordinary memory.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ffi::{c_int, c_void};
use std::ptr::{NonNull, null_mut};

use crate::abi::{ibv_mr, ibv_pd};
use crate::base::cancellation::Uncancelled;
use crate::base::object::{Errno, VerbsStruct, give, minus_one, object_of, pointer, set_errno, take_back};
use crate::base::report::refuse;
use crate::memory::ibv_reg_mr;

/// Handle of a buffer, opaque to applications.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_buf {
    base: *mut c_void,
}

/// The object behind a buffer.
pub(crate) struct Buffer {
    /// Protection domain of the buffer. Compared, never dereferenced.
    domain: *mut ibv_pd,
    memory: NonNull<u8>,
    /// Layout of the memory. The requested size may be smaller.
    layout: Layout,
    size: usize,
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: `ibv_alloc_buf` allocated it with this layout.
        unsafe { dealloc(self.memory.as_ptr(), self.layout) };
    }
}

impl VerbsStruct for ibv_buf {
    type Extended = ibv_buf;
    type Inner = Buffer;
}

/// Allocates a buffer and writes its handle to `buf`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_alloc_buf(pd: *mut ibv_pd, size: usize, buf: *mut *mut ibv_buf) -> *mut c_void {
    let _uncancelled = Uncancelled::new();
    const CALL: &str = "ibv_alloc_buf";
    // SAFETY: the contract: an object.
    pointer(unsafe { object_of(pd) }.and_then(|_| {
        if buf.is_null() {
            return refuse(CALL, libc::EINVAL, "buf is null: give a place for the handle");
        }
        // SAFETY: a query without pointers. Buffers are page-aligned, so that a device could register them whatever
        // their backing.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        let page = usize::try_from(page).unwrap_or(4096);
        let Ok(layout) = Layout::from_size_align(size.max(1), page) else {
            return refuse(CALL, libc::ENOMEM, format_args!("{size} bytes: too large for an allocation"));
        };
        // SAFETY: the layout has one byte at least.
        let Some(memory) = NonNull::new(unsafe { alloc_zeroed(layout) }) else {
            return refuse(CALL, libc::ENOMEM, format_args!("{size} bytes cannot be allocated"));
        };
        let base = memory.as_ptr().cast();
        let handle = give(ibv_buf { base }, Buffer { domain: pd, memory, layout, size });
        // SAFETY: as above, and room for a pointer.
        unsafe { buf.write(handle) };
        Ok(base)
    }))
}

/// Frees a buffer without registrations.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_free_buf(buf: *mut ibv_buf) {
    let _uncancelled = Uncancelled::new();
    // SAFETY: the contract: an object, which the caller uses no more.
    if unsafe { object_of(buf) }.is_ok() {
        // SAFETY: `object_of` verified an object of this process, which the caller does not use again: it is taken back
        // once.
        drop(unsafe { take_back(buf) });
    }
}

/// Registers a part of a buffer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_buf_mr(
    pd: *mut ibv_pd,
    buf: *mut ibv_buf,
    address: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    let _uncancelled = Uncancelled::new();
    // SAFETY: the contract: objects.
    match unsafe { check("ibv_reg_buf_mr", pd, buf, address, length) } {
        // SAFETY: as above; the buffer lives until it is freed, and its registrations must not outlive it.
        Ok(()) => unsafe { ibv_reg_mr(pd, address, length, access) },
        Err(errno) => {
            set_errno(errno);
            null_mut()
        }
    }
}

/// Checks that the range lies in the buffer, and that the buffer belongs to the domain.
///
/// # Safety
/// The contract: an object.
pub(crate) unsafe fn check(
    call: &str,
    pd: *mut ibv_pd,
    buf: *mut ibv_buf,
    address: *mut c_void,
    length: usize,
) -> Result<(), Errno> {
    // SAFETY: the caller promises an object, which is null or lives for the call.
    let buffer = unsafe { object_of(buf) }?;
    if buffer.domain != pd {
        return refuse(call, libc::EINVAL, "the buffer was allocated for another protection domain");
    }
    let (size, base) = (buffer.size, buffer.memory.as_ptr() as usize);
    match (address as usize).checked_sub(base) {
        Some(offset) if offset <= size && length <= size - offset => Ok(()),
        _ => refuse(
            call,
            libc::EINVAL,
            format_args!("{length} bytes at {address:p}: the buffer has {size} at {base:#x}"),
        ),
    }
}

/// Returns the file descriptor of a buffer's DMA buffer. Fails with `ENODATA`: ordinary memory has none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_export_buf_dmabuf_fd(buf: *mut ibv_buf) -> c_int {
    let _uncancelled = Uncancelled::new();
    const CALL: &str = "ibv_export_buf_dmabuf_fd";
    // SAFETY: the contract: an object.
    let buffer = unsafe { object_of(buf) };
    minus_one(buffer.and_then(|_| refuse(CALL, libc::ENODATA, "the buffer is ordinary memory")))
}
