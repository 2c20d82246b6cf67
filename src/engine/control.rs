//! Commands on their way to a worker, and their answers.

use crossbeam_channel::Sender;

use crate::nic::{Answer, Command, ControlError, SendQueue};

/// A command and where its answer goes.
#[derive(Debug)]
pub struct Request {
    /// What the device shall do. What it takes much memory for [is prepared](Command::prepare).
    pub command: Command,
    /// Where to say how it went.
    pub answer: Sender<Answered>,
}

/// An answer.
#[derive(Debug)]
pub struct Answered {
    /// How it went.
    pub result: Result<Answer, ControlError>,
    /// Memory of a QP that is gone. To free it takes milliseconds, so it is freed by the thread that takes the answer, not by the worker.
    pub remains: Option<SendQueue>,
}
