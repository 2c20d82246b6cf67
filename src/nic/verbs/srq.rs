//! Types of shared receive queues and XRC domains (IBTA 10.2.9, annex A14).

use super::{CqIndex, XrcdId};
use serde::{Deserialize, Serialize};

/// Type of a shared receive queue (`ibv_srq_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SrqKind {
    /// Used by QPs that are created with it. Completions go to the QP's own CQ.
    Basic,
    /// Used by XRC requests that carry its number.
    Xrc {
        /// XRC domain of the target QPs that may use the queue.
        xrcd: XrcdId,
        /// CQ of the completions.
        cq: CqIndex,
    },
}

/// Attributes at creation (`ibv_srq_init_attr_ex`), without the ring, which holds the sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SrqInit {
    /// Type of the queue.
    pub kind: SrqKind,
    /// SRQ limit, armed at creation: an event is raised when fewer receives are left. 0: not armed.
    pub limit: u32,
}

impl Default for SrqInit {
    fn default() -> SrqInit {
        SrqInit { kind: SrqKind::Basic, limit: 0 }
    }
}

/// A file's identity. Processes that have the file open may share an XRC domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FileId {
    /// The device of the file (`st_dev`).
    pub device: u64,
    /// The inode of the file (`st_ino`).
    pub inode: u64,
}

/// Arguments of opening an XRC domain (`ibv_xrcd_init_attr`; the flags are `O_CREAT` and `O_EXCL`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenXrcd {
    /// File that identifies the domain; `None`: the domain is private to the caller.
    pub file: Option<FileId>,
    /// Create the domain if it does not exist.
    pub create: bool,
    /// Fail if the domain exists.
    pub exclusive: bool,
}
