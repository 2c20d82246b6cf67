//! Work requests of a QP between `ibv_wr_start` and `ibv_wr_complete` ([`crate::qp::post_ex`]).

use std::cell::UnsafeCell;

use roxie::limits::{MAX_INLINE, MAX_SGE};
use roxie::verbs::{SendWr, Sge};

use crate::base::object::Errno;

/// The batch under construction. Accessed only by the thread that holds the QP's turn.
#[derive(Default)]
pub(crate) struct Builder(pub(crate) UnsafeCell<Batch>);

// SAFETY: the QP's turn, which every user holds, excludes concurrent access.
unsafe impl Sync for Builder {}
// SAFETY: the batch holds no pointers.
unsafe impl Send for Builder {}

/// Work requests that `ibv_wr_*` has started.
pub(crate) struct Batch {
    /// Work requests in the ring that the NIC cannot see yet.
    pub(crate) staged: u32,
    /// The current work request, and its data.
    pub(crate) current: Option<SendWr>,
    pub(crate) carried: Carried,
    pub(crate) sges: [Sge; MAX_SGE],
    pub(crate) inline: [u8; MAX_INLINE],
    /// The first error; if set, the batch will not be posted.
    pub(crate) error: Option<Errno>,
}

/// Data of the current work request: the number of entries of `sges`, or of bytes of `inline`.
#[derive(Clone, Copy)]
pub(crate) enum Carried {
    Sges(usize),
    Inline(usize),
}

impl Default for Batch {
    fn default() -> Batch {
        Batch {
            staged: 0,
            current: None,
            carried: Carried::Sges(0),
            sges: [Sge::default(); MAX_SGE],
            inline: [0; MAX_INLINE],
            error: None,
        }
    }
}
