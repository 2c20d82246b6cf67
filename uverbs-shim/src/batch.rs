//! The work requests of a QP between `ibv_wr_start` and `ibv_wr_complete` ([`crate::post_ex`]).

use std::cell::UnsafeCell;

use roxie::limits::{MAX_INLINE, MAX_SGE};
use roxie::verbs::{SendWr, Sge};

use crate::object::Errno;

/// The batch under construction. Only who has the QP's turn touches it.
#[derive(Default)]
pub(crate) struct Builder(pub(crate) UnsafeCell<Batch>);

// SAFETY: see the type: its users exclude one another by the QP's turn.
unsafe impl Sync for Builder {}
// SAFETY: it holds no pointers.
unsafe impl Send for Builder {}

/// Work requests that `ibv_wr_*` has begun.
pub(crate) struct Batch {
    /// Work requests in the ring that the NIC does not see yet.
    pub(crate) staged: u32,
    /// The one at hand, and what it carries.
    pub(crate) current: Option<SendWr>,
    pub(crate) carried: Carried,
    pub(crate) sges: [Sge; MAX_SGE],
    pub(crate) inline: [u8; MAX_INLINE],
    /// The first error: the batch will not be posted.
    pub(crate) error: Option<Errno>,
}

/// What the work request at hand carries: how many entries of `sges`, or how many bytes of `inline`.
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
