//! Control commands on their way to a worker, and the channel for the answer.

use crossbeam_channel::Sender;

use roxie_nic::nic::{Answer, Command, ControlError, SendQueue};

/// A command and the channel for its answer.
#[derive(Debug)]
pub struct Request {
    /// The command to execute. A command that needs much memory [is prepared](Command::prepare).
    pub command: Command,
    /// Receives the command's result.
    pub answer: Sender<Answered>,
}

/// The answer to a command.
#[derive(Debug)]
pub struct Answered {
    /// The command's result.
    pub result: Result<Answer, ControlError>,
    /// Memory of a destroyed QP. Freeing takes milliseconds, so the thread that receives the answer frees it, not the worker.
    pub remains: Option<SendQueue>,
}
