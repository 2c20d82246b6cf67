//! Keeps the view of `/sys/class/infiniband` up to date while the program runs.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use roxie::host::inspect::{CounterReader, Snapshot};
use roxie::netdev::{Interface, NetdevError, Vlans, Watch};
use roxie::threads::spawn_unsignalled;

use super::counts::{Counts, LIFESPAN_MS};
use super::tree::Tree;
use super::view::View;

/// Interval between two reads of the counters.
const EACH: Duration = Duration::from_millis(LIFESPAN_MS);
/// Most devices read at that interval. With more, reads are less frequent, because each launcher reads all devices.
const DEVICES: usize = 8;

/// Starts a thread that follows the interface and reads counters until the process ends. `class` is the folder to which
/// `view` was written. `vlans`: the interface's VLAN interfaces, if the device has their addresses as GIDs. `reader`:
/// reads the counters.
///
/// # Errors
///
/// If the kernel refuses a netlink socket or a thread.
pub(super) fn keep(view: View, vlans: Option<Vlans>, class: &Path, reader: CounterReader) -> io::Result<()> {
    let watch =
        Watch::new(&view.interface).map_err(|error: NetdevError| io::Error::other(error.to_string()))?;
    let counts = Counts::default();
    let updater = ViewUpdater {
        watch,
        vlans,
        queries: 0,
        device: Tree::of(class, view.entries()),
        counters: Tree::of(class, counts.entries(&view.port_folder())),
        names: vec![view.interface.name.clone()],
        view,
        written: true,
        counts,
        reader,
    };
    spawn_unsignalled("roxie-view", move || updater.run()).map(drop)
}

struct ViewUpdater {
    watch: Watch,
    vlans: Option<Vlans>,
    /// [`Watch::queries`] at the last look at VLAN interfaces.
    queries: u64,
    view: View,
    device: Tree,
    /// True if the last write of the view succeeded.
    written: bool,
    /// All names that the interface has had: a device keeps the name that it was opened with.
    names: Vec<String>,
    reader: CounterReader,
    counts: Counts,
    counters: Tree,
}

impl ViewUpdater {
    fn run(mut self) {
        let mut due = Instant::now();
        loop {
            self.follow();
            if Instant::now() >= due {
                let devices = self.count();
                due = Instant::now() + EACH * devices.div_ceil(DEVICES).max(1) as u32;
            }
            let left = due.saturating_duration_since(Instant::now());
            let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
            // A failed wait only shortens the interval.
            let _ = poll(&mut [PollFd::new(self.watch.as_fd(), PollFlags::POLLIN)], timeout);
        }
    }

    /// Writes changes of the interface. After a failure, the next call tries again.
    fn follow(&mut self) {
        let Ok(changes) = self.watch.poll() else { return };
        let news = std::mem::replace(&mut self.queries, self.watch.queries()) != self.watch.queries();
        let links = self.vlans.as_mut().filter(|_| news).and_then(|vlans| vlans.links().ok());
        let vlans_changed = links.is_some_and(|links| self.view.follow_vlans(links));
        if changes.is_empty() && !vlans_changed && self.written {
            return;
        }
        let interface: &Interface = self.watch.interface();
        if !self.names.contains(&interface.name) {
            self.names.push(interface.name.clone());
        }
        self.counts.link_downed += self.view.follow(&changes, interface);
        self.written = self.device.update(&self.view.entries()).is_ok();
    }

    /// Writes the counters. Returns the number of devices.
    fn count(&mut self) -> usize {
        let Ok(read) = self.reader.read() else { return 0 };
        let is_ours = |device: &Snapshot| self.names.iter().any(|name| device.interface == name.as_str());
        self.counts.add(&read, is_ours);
        let _ = self.counters.update(&self.counts.entries(&self.view.port_folder()));
        read.len()
    }
}
