//! Flows: what is steered to a raw packet QP.

use crate::flow::FlowMatch;

/// Names a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowId(pub u32);

/// A flow steering rule (`ibv_flow_attr`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowRule {
    /// Rules with a lower number are tried first; of two with the same, the older.
    pub priority: u32,
    /// The frames that it takes.
    pub matching: FlowMatch,
}
