//! Commands on their way to a worker, and their answers.

use crossbeam_channel::Sender;

use crate::nic::{Answer, Command, ControlError};

/// A command and where its answer goes.
#[derive(Debug)]
pub struct Request {
    /// What the device shall do.
    pub command: Command,
    /// Where to say how it went.
    pub answer: Sender<Result<Answer, ControlError>>,
}
