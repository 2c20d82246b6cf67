//! Requests of other threads on their way to a worker.

use std::fmt;

use crossbeam_channel::Sender;

use super::Worker;
use roxie_nic::nic::{Answer, Command, ControlError, SendQueue};

/// What another thread asks of a worker.
#[derive(Debug)]
pub enum Request {
    /// A control command.
    Command {
        /// The command to execute. A command that needs much memory [is prepared](Command::prepare).
        command: Command,
        /// Receives the command's result.
        answer: Sender<Answered>,
    },
    /// A call that reads or changes the worker.
    Visit(Visit),
}

/// A call that reads or changes the worker, and sends its result to the thread that waits for it.
pub struct Visit(Box<dyn FnOnce(&mut Worker) + Send>);

impl Visit {
    pub(super) fn new(act: impl FnOnce(&mut Worker) + Send + 'static) -> Visit {
        Visit(Box::new(act))
    }

    pub(super) fn run(self, worker: &mut Worker) {
        (self.0)(worker);
    }
}

impl fmt::Debug for Visit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Visit")
    }
}

/// The answer to a command.
#[derive(Debug)]
pub struct Answered {
    /// The command's result.
    pub result: Result<Answer, ControlError>,
    /// Memory of a destroyed QP. Freeing takes milliseconds, so the thread that receives the answer frees it, not the
    /// worker.
    pub remains: Option<SendQueue>,
}
