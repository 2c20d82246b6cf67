//! Threads that are cancelled (`pthread_cancel`): the C library unwinds them where they wait, which must not be in the middle of ours.
//!
//! Every call that may ask the system for something begins with [`Uncancelled`]: a pass of the NIC under the worker's lock does, a command to it, and
//! a line of the log. What waits for events (`ibv_get_cq_event`, `ibv_get_async_event`, calls of the connection manager's file) does so in
//! frames without destructors, outside of it.

use std::ffi::c_int;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

/// `PTHREAD_CANCEL_DISABLE`.
const DISABLE: c_int = 1;

/// While it lives, the thread cannot be cancelled; what was asked for meanwhile happens later.
#[derive(Debug)]
pub(crate) struct Uncancelled(c_int);

impl Uncancelled {
    #[inline]
    pub(crate) fn new() -> Uncancelled {
        let mut before = 0;
        // SAFETY: a place for a number; it concerns the calling thread alone.
        unsafe { pthread_setcancelstate(DISABLE, &raw mut before) };
        Uncancelled(before)
    }
}

impl Drop for Uncancelled {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: a state that it was in; null: nobody wants to know the other.
        unsafe { pthread_setcancelstate(self.0, std::ptr::null_mut()) };
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    /// Calls that ask the system for nothing, and [`Uncancelled`](super::Uncancelled) where one does after all.
    const ASK_NOTHING: [(&str, &[&str]); 10] = [
        ("cq.rs", &["ibv_ack_cq_events", "poll_cq"]),
        ("device.rs", &["ibv_get_device_name", "ibv_get_device_index", "ibv_get_device_guid"]),
        ("events.rs", &["ibv_ack_async_event"]),
        (
            "fork.rs",
            &[
                "in_child",
                "ibv_fork_init",
                "ibv_is_fork_initialized",
                "ibv_dontfork_range",
                "ibv_dofork_range",
            ],
        ),
        // Called when the library is loaded and when the process ends.
        ("farewell.rs", &["roxie_farewell"]),
        ("interpose/mod.rs", &["roxie_find_next"]),
        // Calls that are refused: what they say is said uncancelled.
        ("newer_calls.rs", &["$name"]),
        ("poll_ex.rs", &["$name", "read_completion_ts", "read_completion_wallclock_ns"]),
        // All but the last step of a batch, which writes to memory.
        ("post_ex.rs", &["*"]),
        // Words and numbers.
        ("strings.rs", &["*"]),
    ];

    fn sources(folder: &Path, into: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() { sources(&path, into) } else { into.push(path) }
        }
    }

    /// A call that is added has to choose.
    #[test]
    fn every_call_of_c_that_may_ask_the_system_is_uncancelled() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let (mut calls, mut open) = (0, Vec::new());
        let mut files = Vec::new();
        sources(&folder, &mut files);
        for path in files {
            let text = fs::read_to_string(&path).unwrap();
            let file = path.strip_prefix(&folder).unwrap().to_string_lossy();
            let exempt = ASK_NOTHING.iter().find(|(name, _)| *name == file).map_or(&[][..], |row| row.1);
            for call in text.split("extern \"C\" fn ").skip(1) {
                let (name, rest) = call.split_once('(').unwrap();
                let body = rest.split("\n}\n").next().unwrap_or("");
                calls += 1;
                let named = |call: &&str| *call == name || *call == "*" && name != "complete";
                if !body.contains("Uncancelled::new()") && !exempt.iter().any(named) && file != "marshal.rs" {
                    open.push(format!("{file}: {name}"));
                }
            }
        }
        assert!(calls > 100 && open.is_empty(), "of {calls} calls: {open:?}");
    }
}
