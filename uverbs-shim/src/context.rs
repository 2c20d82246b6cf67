//! A context: what `ibv_open_device` returns.
//!
//! `verbs_context` grows downwards from the `ibv_context` that applications hold, so the longer form of later releases is allocated,
//! with nothing in the slots that this library does not know.

use std::mem::{offset_of, size_of};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::abi::{ibv_context, verbs_context};
use crate::event_queue::EventQueue;
use crate::family::Family;
use crate::fork;
use crate::newer::VERBS_CONTEXT;
use crate::nic::Nic;
use crate::object::Errno;
use crate::published::{Counted, Kind};

/// What is behind a context.
pub(crate) struct Context {
    pub(crate) nic: Arc<Nic>,
    pub(crate) events: Arc<EventQueue>,
    /// The contexts that share its command descriptor, and their objects.
    pub(crate) family: Arc<Family>,
    _command: OwnedFd,
    generation: u32,
    _counted: Counted,
}

/// The allocation: the C structures end with the `ibv_context` that applications hold.
#[repr(C)]
struct Block {
    unknown: [u64; (VERBS_CONTEXT - size_of::<verbs_context>()) / 8],
    verbs: verbs_context,
    behind: Context,
}

/// From the block's start to what applications hold.
const HELD: usize = offset_of!(Block, verbs) + offset_of!(verbs_context, context);

fn block(held: *mut ibv_context) -> *mut Block {
    held.cast::<u8>().wrapping_sub(HELD).cast()
}

/// What is behind a context.
///
/// # Safety
/// The contract: null, or a context that is open.
pub(crate) unsafe fn context<'a>(held: *mut ibv_context) -> Result<&'a Context, Errno> {
    if held.is_null() {
        return Err(libc::EINVAL);
    }
    // SAFETY: `open` made it as part of a block.
    let behind = unsafe { &(*block(held)).behind };
    if behind.generation == fork::generation() { Ok(behind) } else { Err(libc::EIO) }
}

impl Context {
    /// `command` is the context's own.
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

/// Makes the allocation, and returns what applications hold of it.
pub(crate) fn allocate(verbs: verbs_context, behind: Context) -> *mut ibv_context {
    let unknown = [0; (VERBS_CONTEXT - size_of::<verbs_context>()) / 8];
    let block = Box::new(Block { unknown, verbs: verbs_context { sz: VERBS_CONTEXT, ..verbs }, behind });
    // The block is reached through what applications hold, so the pointer has to cover all of it.
    Box::into_raw(block).cast::<u8>().wrapping_add(HELD).cast()
}

/// Gives the allocation back.
///
/// # Safety
/// [`allocate`] made it, and nobody uses it any more.
pub(crate) unsafe fn free(held: *mut ibv_context) {
    // SAFETY: `allocate` made it of a box of this type, as the caller says, and this is the only time that it is given back.
    drop(unsafe { Box::from_raw(block(held)) });
}
