//! The lists that callers hand in: scatter/gather entries, and receives for any queue.

use std::ffi::c_int;
use std::slice;

use roxie::limits::{MAX_INLINE, MAX_SGE};
use roxie::shared::PostError;
use roxie::verbs::{LKey, Sge};

use crate::abi::{ibv_recv_wr, ibv_sge};
use crate::object::{Errno, put};
use crate::report::{self, refuse};

/// A scatter/gather list of the caller's.
#[derive(Clone, Copy)]
pub(crate) struct Entries<'a>(&'a [ibv_sge]);

/// # Safety
/// The contract: `count` entries, of which no release has another form.
pub(crate) unsafe fn entries<'a>(
    call: &str,
    list: *const ibv_sge,
    count: c_int,
) -> Result<Entries<'a>, Errno> {
    match usize::try_from(count) {
        Ok(0) => Ok(Entries(&[])),
        Ok(count) if count <= MAX_SGE && !list.is_null() => {
            // SAFETY: not null, and `count` entries of the form that all releases have, as the caller promises; they stay for the call.
            Ok(Entries(unsafe { slice::from_raw_parts(list, count) }))
        }
        _ => refuse(
            call,
            libc::EINVAL,
            format_args!("num_sge = {count}: 0 to {MAX_SGE}, in a list that is there"),
        ),
    }
}

impl<'a> Entries<'a> {
    pub(crate) fn copy(self, to: &mut [Sge; MAX_SGE]) -> &[Sge] {
        for (to, from) in to.iter_mut().zip(self.0) {
            *to = Sge { addr: from.addr, length: from.length, lkey: LKey(from.lkey) };
        }
        &to[..self.0.len()]
    }

    /// Where the bytes are, as pointers of this process.
    pub(crate) fn pieces(self) -> impl Iterator<Item = (*const u8, usize)> + 'a {
        self.0.iter().map(|entry| (entry.addr as *const u8, entry.length as usize))
    }
}

/// Copies pieces of the caller's memory one behind the other; returns their length.
///
/// # Safety
/// The contract: bytes that may be read.
pub(crate) unsafe fn gather(
    pieces: impl Iterator<Item = (*const u8, usize)>,
    to: &mut [u8; MAX_INLINE],
) -> Result<usize, Errno> {
    let mut at = 0usize;
    for (from, length) in pieces {
        let end = at.checked_add(length).filter(|end| *end <= MAX_INLINE);
        let Some(end) = end else {
            let given = at.saturating_add(length);
            return Err(report::post("ibv_post_send")(PostError::TooMuchInline {
                given,
                max: MAX_INLINE as u32,
            }));
        };
        if length > 0 {
            // SAFETY: the caller's promise; `end` is inside of `to`, which is ours alone.
            unsafe { std::ptr::copy_nonoverlapping(from, to[at..].as_mut_ptr(), length) };
        }
        at = end;
    }
    Ok(at)
}

/// Posts a list of receives to any queue.
///
/// # Safety
/// The contract: a list that ends with null.
pub(crate) unsafe fn post_receives(
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
    post: impl Fn(u64, &[Sge]) -> Result<(), PostError>,
) -> c_int {
    let mut wr = first;
    while !wr.is_null() {
        let mut sges = [Sge::default(); MAX_SGE];
        // SAFETY: not null, as was seen; the caller promises a list of receives that ends with null, each with the entries that it says.
        unsafe {
            let posted = entries("ibv_post_recv", (*wr).sg_list, (*wr).num_sge).and_then(|list| {
                post((*wr).wr_id, list.copy(&mut sges)).map_err(report::post("ibv_post_recv"))
            });
            if let Err(errno) = posted {
                put(bad, wr);
                return errno;
            }
            wr = (*wr).next;
        }
    }
    0
}
