//! Contexts, as `ibv_open_device` returns them.
//!
//! `verbs_context` grows downwards from the `ibv_context` that applications hold. The allocation therefore has the
//! longest known form, with empty slots for functions that this library does not know.

use std::mem::{offset_of, size_of};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::abi::{ibv_context, verbs_context};
use crate::base::fork;
use crate::base::newer::VERBS_CONTEXT;
use crate::base::object::Errno;
use crate::device::event_queue::EventQueue;
use crate::device::family::Family;
use crate::device::nic::Nic;
use crate::device::published::{Counted, Kind};

/// The object behind a context.
pub(crate) struct Context {
    pub(crate) nic: Arc<Nic>,
    pub(crate) events: Arc<EventQueue>,
    /// The contexts that share the command descriptor, and their objects.
    pub(crate) family: Arc<Family>,
    _command: OwnedFd,
    generation: u32,
    _counted: Counted,
}

/// The allocation. The C structures end with the `ibv_context` that applications hold.
#[repr(C)]
struct Block {
    unknown: [u64; (VERBS_CONTEXT - size_of::<verbs_context>()) / 8],
    verbs: verbs_context,
    inner: Context,
}

/// Offset from the block's start to the pointer that applications hold.
const HELD: usize = offset_of!(Block, verbs) + offset_of!(verbs_context, context);

fn block(held: *mut ibv_context) -> *mut Block {
    held.cast::<u8>().wrapping_sub(HELD).cast()
}

/// Returns the object behind a context.
///
/// # Safety
/// The contract: null, or an open context.
pub(crate) unsafe fn context<'a>(held: *mut ibv_context) -> Result<&'a Context, Errno> {
    if held.is_null() {
        return Err(libc::EINVAL);
    }
    // SAFETY: `allocate` made the context as part of a block.
    let inner = unsafe { &(*block(held)).inner };
    if inner.generation == fork::generation() { Ok(inner) } else { Err(libc::EIO) }
}

impl Context {
    /// Creates the object. `command` is the context's own descriptor.
    pub(crate) fn new(
        nic: Arc<Nic>,
        events: Arc<EventQueue>,
        family: Arc<Family>,
        command: OwnedFd,
    ) -> Context {
        let _counted = family.published.add(Kind::Ctx);
        Context { nic, events, family, _command: command, generation: fork::generation(), _counted }
    }
}

/// Allocates a context. Returns the pointer that applications hold.
pub(crate) fn allocate(verbs: verbs_context, inner: Context) -> *mut ibv_context {
    let unknown = [0; (VERBS_CONTEXT - size_of::<verbs_context>()) / 8];
    let block = Box::new(Block { unknown, verbs: verbs_context { sz: VERBS_CONTEXT, ..verbs }, inner });
    // Applications' pointer leads to the whole block, so it must have provenance over all of it.
    Box::into_raw(block).cast::<u8>().wrapping_add(HELD).cast()
}

/// Frees the allocation.
///
/// # Safety
/// [`allocate`] made the context, and it is not used again.
pub(crate) unsafe fn free(held: *mut ibv_context) {
    // SAFETY: `allocate` made it from a box of this type, and it is freed only once, as the caller promises.
    drop(unsafe { Box::from_raw(block(held)) });
}
