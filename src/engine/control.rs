//! Control commands on their way to a worker, and the channel for the answer.

use crossbeam_channel::Sender;

use crate::nic::{Answer, Command, ControlError};

/// A command and the channel for its answer.
#[derive(Debug)]
pub struct Request {
    /// The command to execute.
    pub command: Command,
    /// Receives the command's result.
    pub answer: Sender<Result<Answer, ControlError>>,
}
