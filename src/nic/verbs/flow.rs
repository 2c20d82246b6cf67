//! Types of flow steering to raw packet QPs.

use super::QpIndex;
use roxie_base::flow::{FlowMatch, RxHash};
use serde::{Deserialize, Serialize};

/// Identifies a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FlowId(pub u32);

/// A flow steering rule (`ibv_flow_attr`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowRule {
    /// Rules with a lower number are matched first; among equals, the older rule.
    pub priority: u32,
    /// The frames that match.
    pub matching: FlowMatch,
}

/// Receive side scaling: how a QP distributes frames over others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rss {
    /// The fields to hash, and the hash function.
    pub hash: RxHash,
    /// Raw packet QPs, a power of two of them. The low bits of a frame's hash are the index of its QP.
    pub table: Vec<QpIndex>,
}
