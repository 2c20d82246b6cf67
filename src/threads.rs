//! Threads that Roxie starts in an application's process.

use std::io;
use std::thread::{Builder, JoinHandle};

use nix::sys::signal::{SigSet, SigmaskHow};

/// Starts a thread that takes no signals: those of the process are for the threads of the application.
///
/// # Errors
/// If the system has no room for another thread.
pub fn spawn_unsignalled(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    // A thread starts with the mask of the one that starts it.
    let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    let thread = Builder::new().name(name.into()).spawn(run);
    before.thread_set_mask()?;
    thread
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_thread_blocks_all_signals_and_its_starter_none() {
        let before = SigSet::thread_get_mask().unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        let thread =
            spawn_unsignalled("quiet", move || tell.send(SigSet::thread_get_mask()).unwrap()).unwrap();
        let mask = told.recv().unwrap().unwrap();
        thread.join().unwrap();
        for signal in [nix::sys::signal::Signal::SIGINT, nix::sys::signal::Signal::SIGALRM] {
            assert!(mask.contains(signal));
        }
        assert_eq!(SigSet::thread_get_mask().unwrap(), before);
    }
}
