//! Thread cancellation (`pthread_cancel`): the C library unwinds a cancelled thread where it blocks, which must not be
//! inside this library.
//!
//! Every call that may make a system call begins with [`Uncancelled`]: passes of the NIC under the worker's lock,
//! commands, log lines. Calls that block for events (`ibv_get_cq_event`, `ibv_get_async_event`, calls on the connection
//! manager's file) do so outside of it, in frames without destructors.

use std::ffi::c_int;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

/// `PTHREAD_CANCEL_DISABLE`.
const DISABLE: c_int = 1;

/// Disables cancellation of the calling thread until dropped. A request made meanwhile takes effect afterwards.
#[derive(Debug)]
pub(crate) struct Uncancelled(c_int);

impl Uncancelled {
    #[inline]
    pub(crate) fn new() -> Uncancelled {
        let mut before = 0;
        // SAFETY: a valid place for a number; the call affects the calling thread alone.
        unsafe { pthread_setcancelstate(DISABLE, &raw mut before) };
        Uncancelled(before)
    }
}

impl Drop for Uncancelled {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: a valid state, saved by `new`; null: the replaced state is not needed.
        unsafe { pthread_setcancelstate(self.0, std::ptr::null_mut()) };
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    /// Calls without system calls, or with [`Uncancelled`](super::Uncancelled) only on a path that makes one.
    const ASK_NOTHING: [(&str, &[&str]); 10] = [
        ("cq/mod.rs", &["ibv_ack_cq_events", "poll_cq"]),
        ("device/list.rs", &["ibv_get_device_name", "ibv_get_device_index", "ibv_get_device_guid"]),
        ("device/events.rs", &["ibv_ack_async_event"]),
        (
            "base/fork.rs",
            &[
                "in_child",
                "ibv_fork_init",
                "ibv_is_fork_initialized",
                "ibv_dontfork_range",
                "ibv_dofork_range",
            ],
        ),
        // Called when the library is loaded and when the process exits.
        ("interpose/farewell.rs", &["roxie_farewell"]),
        ("interpose/mod.rs", &["roxie_find_next"]),
        // Unsupported calls: `refuse` logs with cancellation disabled.
        ("memory/newer_calls.rs", &["$name"]),
        ("cq/poll_ex.rs", &["$name", "read_completion_ts", "read_completion_wallclock_ns"]),
        // All but the last step of a batch, which only write to memory.
        ("qp/post_ex.rs", &["*"]),
        // Pure functions of strings and numbers.
        ("strings.rs", &["*"]),
    ];

    fn sources(folder: &Path, into: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() { sources(&path, into) } else { into.push(path) }
        }
    }

    /// Fails for a new call until the call is either uncancelled or listed.
    #[test]
    fn calls_with_system_calls_disable_cancellation() {
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
                if !body.contains("Uncancelled::new()")
                    && !exempt.iter().any(named)
                    && file != "ucma/marshal.rs"
                {
                    open.push(format!("{file}: {name}"));
                }
            }
        }
        assert!(calls > 100 && open.is_empty(), "of {calls} calls: {open:?}");
    }
}
