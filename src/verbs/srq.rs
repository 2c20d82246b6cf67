//! The nouns of shared receive queues and XRC domains (IBTA 10.2.9, annex A14).

use super::{CqIndex, XrcdId};
use serde::{Deserialize, Serialize};

/// What a shared receive queue is for (`ibv_srq_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SrqKind {
    /// QPs are made to take from it; completions go to the QP's own queue.
    Basic,
    /// Requests of XRC QPs name it by its number.
    Xrc {
        /// The targets of this domain take from it.
        xrcd: XrcdId,
        /// Where its completions go.
        cq: CqIndex,
    },
}

/// What a shared receive queue is made as (`ibv_srq_init_attr_ex`, without its ring, which holds its sizes).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SrqInit {
    /// What it is for.
    pub kind: SrqKind,
    /// Armed when it is made: an event comes when fewer receives are left. 0: not.
    pub limit: u32,
}

impl Default for SrqInit {
    fn default() -> SrqInit {
        SrqInit { kind: SrqKind::Basic, limit: 0 }
    }
}

/// A file, as the system tells them apart: those who have it open share an XRC domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FileId {
    /// The device of the file (`st_dev`).
    pub device: u64,
    /// The inode of the file (`st_ino`).
    pub inode: u64,
}

/// How an XRC domain is opened (`ibv_xrcd_init_attr`; the flags are `O_CREAT` and `O_EXCL`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenXrcd {
    /// The file that stands for it; `None`: it is the caller's alone.
    pub file: Option<FileId>,
    /// Make it if it is not there.
    pub create: bool,
    /// It must not be there.
    pub exclusive: bool,
}
