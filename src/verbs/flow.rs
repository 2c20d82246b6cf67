//! The nouns of flows: what is steered to a raw packet QP.

use super::QpIndex;
use crate::flow::{FlowMatch, RxHash};
use serde::{Deserialize, Serialize};

/// Names a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FlowId(pub u32);

/// A flow steering rule (`ibv_flow_attr`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowRule {
    /// Rules with a lower number are tried first; of two with the same, the older.
    pub priority: u32,
    /// The frames that it takes.
    pub matching: FlowMatch,
}

/// How a QP for receive side scaling spreads frames over others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rss {
    /// Which fields of a frame choose the queue, and how.
    pub hash: RxHash,
    /// Raw packet QPs, a power of two of them: a frame goes to the one at the hash's lowest bits.
    pub table: Vec<QpIndex>,
}
