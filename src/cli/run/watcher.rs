//! The watcher: a process that does for the launched programs what a kernel with an RDMA device would do.
//!
//! The process keeps `/sys/class/infiniband` up to date, and ends the connections of programs that have ended. The
//! launcher's only child is the program; the watcher outlives both as long as a program does that the launcher started:
//! a daemon, or all of them if the launcher was killed.

use std::fs;
use std::io::{self, BufRead, BufReader, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, OwnedFd};

use roxie::host::{Device, OpenError, OrphanListener};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::child;

/// The variable by which programs find the listener, and by which the watcher knows them.
pub(super) const ORPHANS: &str = "ROXIE_ORPHANS";

/// The launcher's side.
#[derive(Debug)]
pub(super) struct Watcher {
    /// Closed when the program or the launcher has ended.
    stop: PipeWriter,
    said: BufReader<PipeReader>,
    /// Value of [`ORPHANS`].
    pub(super) name: String,
    /// Reason that `/sys/class/infiniband` is not kept up to date.
    pub(super) stale: Option<String>,
}

impl Watcher {
    /// Starts the process. `keep` starts to keep `/sys/class/infiniband` up to date, `device` opens the device as the
    /// programs have it.
    ///
    /// # Errors
    /// If the system is out of memory, descriptors or processes.
    pub(super) fn start(
        keep: impl FnOnce() -> io::Result<()>,
        device: impl Fn() -> Result<Device, OpenError>,
    ) -> io::Result<Watcher> {
        let listener = OrphanListener::new()?;
        let name = listener.name().to_owned();
        let (said, mut says) = io::pipe()?;
        let stop = child::detach_until_closed(|stopped| {
            let kept = keep().map_or_else(|error| error.to_string(), |()| String::new());
            // An error means that the launcher has ended.
            let _ = writeln!(says, "{kept}");
            watch(listener, &stopped, says, device);
        })?;
        let mut said = BufReader::new(said);
        let mut stale = String::new();
        said.read_line(&mut stale)?;
        let stale = Some(stale.trim_end().to_owned()).filter(|why| !why.is_empty());
        Ok(Watcher { stop, said, name, stale })
    }

    /// Waits until the peers of all programs that have ended are told. Returns why some could not be told.
    pub(super) fn finish(mut self) -> Option<String> {
        drop(self.stop);
        let mut why = String::new();
        // A watcher that was killed says nothing.
        let _ = self.said.read_to_string(&mut why);
        Some(why).filter(|why| !why.is_empty())
    }
}

fn watch(
    mut listener: OrphanListener,
    stopped: &PipeReader,
    mut says: PipeWriter,
    device: impl Fn() -> Result<Device, OpenError>,
) {
    if let Err(error) = listener.serve(stopped.as_fd(), &device) {
        let _ = write!(says, "{error}");
    }
    drop(says);
    while let Some(program) = survivor(listener.name()) {
        // The launcher, which would report an error, has ended.
        let _ = listener.serve(program.as_fd(), &device);
    }
}

/// Returns a process with this launcher's environment, as a descriptor that can be read when the process has ended.
fn survivor(name: &str) -> Option<OwnedFd> {
    let wanted = format!("{ORPHANS}={name}");
    let is_ours = |pid: &i32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == wanted.as_bytes())
    };
    let entries = fs::read_dir("/proc").ok()?;
    let processes = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    // A process that has ended meanwhile has no descriptor.
    processes.filter(is_ours).find_map(|pid| pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok())
}
