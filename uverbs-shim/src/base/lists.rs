//! Lists passed by callers: scatter/gather entries, and receives for any queue.

use std::ffi::c_int;
use std::slice;

use roxie::limits::{MAX_INLINE, MAX_SGE};
use roxie::shared::PostError;
use roxie::verbs::{LKey, Sge};

use crate::abi::{ibv_recv_wr, ibv_sge};
use crate::base::object::{Errno, code_of, put};
use crate::base::report::{self, refuse};

/// A scatter/gather list of the caller.
#[derive(Clone, Copy)]
pub(crate) struct Entries<'a>(&'a [Entry]);

/// An entry of a list without alignment: programs have entries in packed structures, for example libiscsi.
#[derive(Clone, Copy)]
#[repr(C, packed)]
struct Entry(ibv_sge);

/// # Safety
/// The contract: `count` entries, of the same form in all releases.
pub(crate) unsafe fn entries<'a>(
    call: &str,
    list: *const ibv_sge,
    count: c_int,
) -> Result<Entries<'a>, Errno> {
    match usize::try_from(count) {
        Ok(0) => Ok(Entries(&[])),
        Ok(count) if count <= MAX_SGE && !list.is_null() => {
            // SAFETY: not null, any alignment, and `count` entries of the form of all releases, as the caller promises;
            // valid for the call.
            Ok(Entries(unsafe { slice::from_raw_parts(list.cast(), count) }))
        }
        _ => refuse(
            call,
            libc::EINVAL,
            format_args!("num_sge = {count}: 0 to {MAX_SGE}, and a list that is not null"),
        ),
    }
}

impl<'a> Entries<'a> {
    pub(crate) fn copy(self, to: &mut [Sge; MAX_SGE]) -> &[Sge] {
        for (to, from) in to.iter_mut().zip(self.0) {
            let ibv_sge { addr, length, lkey } = from.0;
            *to = Sge { addr, length, lkey: LKey(lkey) };
        }
        &to[..self.0.len()]
    }

    /// Returns the pieces of memory, as pointers of this process.
    pub(crate) fn pieces(self) -> impl Iterator<Item = (*const u8, usize)> + 'a {
        self.0.iter().map(|entry| (entry.0.addr as *const u8, entry.0.length as usize))
    }
}

/// Copies pieces of the caller's memory into one buffer. Returns the total length.
///
/// # Safety
/// The contract: pieces that may be read.
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
            // SAFETY: the caller's promise; `end` is inside of `to`, which is borrowed exclusively.
            unsafe { std::ptr::copy_nonoverlapping(from, to[at..].as_mut_ptr(), length) };
        }
        at = end;
    }
    Ok(at)
}

/// Posts a list of receives to any queue.
///
/// # Safety
/// The contract: a list terminated by null.
pub(crate) unsafe fn post_receives(
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
    post: impl Fn(u64, &[Sge]) -> Result<(), PostError>,
) -> c_int {
    let mut wr = first;
    while !wr.is_null() {
        let mut sges = [Sge::default(); MAX_SGE];
        // SAFETY: not null, as checked; the caller promises a null-terminated list of receives, each with as many
        // entries as it says.
        unsafe {
            let posted = entries("ibv_post_recv", (*wr).sg_list, (*wr).num_sge).and_then(|list| {
                post((*wr).wr_id, list.copy(&mut sges)).map_err(report::post("ibv_post_recv"))
            });
            if let Err(errno) = posted {
                put(bad, wr);
                return code_of(errno);
            }
            wr = (*wr).next;
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inline_pieces_fill_the_buffer_but_not_more() {
        let bytes: [u8; MAX_INLINE] = std::array::from_fn(|at| at as u8);
        let gathered = |lengths: [usize; 2]| {
            let mut to = [0; MAX_INLINE];
            let pieces = [(bytes.as_ptr(), lengths[0]), (bytes[lengths[0]..].as_ptr(), lengths[1])];
            // SAFETY: pieces of an array of this function, or a length that exceeds the room, which is not read.
            unsafe { gather(pieces.into_iter(), &mut to) }.map(|length| (length, to))
        };
        assert_eq!(gathered([200, MAX_INLINE - 200]), Ok((MAX_INLINE, bytes)));
        assert_eq!(gathered([200, MAX_INLINE - 199]), Err(libc::ENOMEM));
        assert_eq!(gathered([0, 1]).map(|(length, to)| (length, to[0])), Ok((1, 0)));
    }
}
