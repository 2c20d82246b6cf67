//! Unguarded copies, for processors without guarded ones: the memory has to be present.

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

/// Never returned by these copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::shared) struct Missing;

/// As `copy` of `copy.rs`.
///
/// # Safety
/// `body + last` bytes at `to` are present for the NIC to write, and at `from` to read; they do not overlap. `to +
/// body` is a multiple of `last`.
pub(in crate::shared) unsafe fn copy(
    to: *mut u8,
    from: *const u8,
    body: usize,
    last: usize,
) -> Result<(), Missing> {
    // SAFETY: the caller promises `body + last` bytes on both sides that do not overlap, and `to + body` aligned to
    // `last`: each store is within and aligned.
    unsafe {
        std::ptr::copy_nonoverlapping(from, to, body);
        let (to, from) = (to.add(body), from.add(body));
        let order = Ordering::Release;
        match last {
            8 => AtomicU64::from_ptr(to.cast()).store(from.cast::<u64>().read_unaligned(), order),
            4 => AtomicU32::from_ptr(to.cast()).store(from.cast::<u32>().read_unaligned(), order),
            2 => AtomicU16::from_ptr(to.cast()).store(from.cast::<u16>().read_unaligned(), order),
            1 => AtomicU8::from_ptr(to).store(*from, order),
            _ => {}
        }
    }
    Ok(())
}

/// As `update` of `copy.rs`.
///
/// # Safety
/// `at` is a multiple of 8, and present for the NIC to change; all other accesses there are atomic.
pub(in crate::shared) unsafe fn update(
    at: *mut u64,
    operation: impl Fn(u64) -> Option<u64>,
) -> Result<u64, Missing> {
    // SAFETY: the caller promises that `at` is a multiple of 8 and that all other accesses there are atomic.
    let word = unsafe { AtomicU64::from_ptr(at) };
    let before = word.fetch_update(Ordering::AcqRel, Ordering::Acquire, |value| operation(value));
    Ok(before.unwrap_or_else(|unchanged| unchanged))
}

/// Returns `None`: these copies do not recover from faults.
pub(super) fn exit_for(_instruction: usize) -> Option<usize> {
    None
}
