//! The thread that follows an interface while a device is open.
//!
//! Addresses become GIDs, the MTU limits path MTUs, MAC addresses of the interface and of neighbours go into the QPs'
//! frames, and changes of the link raise events. The thread also reads the congestion control file.

use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};

use super::error::{DeviceError, OpenError};
use super::inspect::{LiveCapture, Window};
use super::state::State;
use super::vlans::VlanFollower;
use super::watched_interface::{InterfaceWatcher, Live};
use roxie_base::threads::spawn_unsignalled;
use roxie_nic::verbs::{AsyncEvent, EventKind};
use roxie_port::LinkChange;
use roxie_port::netdev::{Change, Neighbours, Watch};

/// Delay before a failed query is repeated, in ms: the notification that caused it will not come again. A reader that
/// could not be accepted for want of a descriptor waits as long.
const RETRY_MS: u16 = 100;
/// Interval between two checks of the congestion control file, in ms.
const FILE_MS: u16 = 100;

/// The sources that the thread follows, and their use for the device.
pub(super) struct WatchedSources {
    /// The interface, kept up to date by the thread.
    pub(super) interface: Live,
    /// True if the interface's addresses become GIDs. False if the user chose the GIDs.
    pub(super) addresses: bool,
    /// The neighbours that the device sends to, if frames carry their MAC addresses.
    pub(super) neighbours: Option<Arc<Neighbours>>,
    /// The VLAN interfaces on the interface, if their addresses become GIDs.
    pub(super) vlans: Option<VlanFollower>,
}

/// Starts to follow an interface, in the calling thread's network namespace, for a device.
pub(super) fn watch(device: Arc<State>, sources: WatchedSources) -> Result<InterfaceWatcher, OpenError> {
    let failed = |what| move |source| DeviceError::System { what, source };
    let watch = Watch::new(&sources.interface.get())?;
    let stop = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)
        .map_err(std::io::Error::from)
        .map_err(failed("an eventfd for the thread that follows the interface"))?;
    let (stop, stopping) = (Arc::new(stop), Arc::new(AtomicBool::new(false)));
    // Without the socket the device works, but cannot be inspected.
    let window = Window::open().ok();
    let run = Run {
        watch,
        queries: 0,
        sources,
        device,
        stop: Arc::clone(&stop),
        stopping: Arc::clone(&stopping),
        window,
    };
    let thread = spawn_unsignalled("roxie-watch", move || run.run())
        .map_err(failed("the thread that follows the interface"))?;
    Ok(InterfaceWatcher { stop, stopping, thread: Some(thread) })
}

/// State of the thread.
struct Run {
    watch: Watch,
    /// [`Watch::queries`] at the last look at VLAN interfaces.
    queries: u64,
    sources: WatchedSources,
    device: Arc<State>,
    stop: Arc<EventFd>,
    stopping: Arc<AtomicBool>,
    window: Option<Window>,
}

impl Run {
    fn run(mut self) {
        let mut capture = LiveCapture::default();
        self.follow(&mut capture);
        capture.close(&self.device);
    }

    /// Follows the interface until the device is closed, or the interface is gone.
    fn follow(&mut self, capture: &mut LiveCapture) {
        while !self.stopping.load(Relaxed) {
            let polled = self.watch.poll();
            let mut again = if polled.is_ok() { PollTimeout::NONE } else { PollTimeout::from(RETRY_MS) };
            let changes = polled.unwrap_or_default();
            self.sources.interface.set(self.watch.interface());
            let device = &*self.device;
            for change in &changes {
                self.apply(device, change);
            }
            let news = std::mem::replace(&mut self.queries, self.watch.queries()) != self.watch.queries();
            if let Some(vlans) = self.sources.vlans.as_mut().filter(|_| news)
                && vlans.follow(device)
            {
                device.adapter.raise(AsyncEvent::Port(EventKind::GidChange));
            }
            let device = &*self.device;
            self.follow_neighbours(device, &changes);
            let accepts = self.window.as_ref().is_none_or(|window| window.answer(device, capture));
            capture.follow(device);
            again = capture.timeout().unwrap_or(again);
            if !accepts {
                again = PollTimeout::from(RETRY_MS);
            }
            if device.has_control_file() {
                device.read_control();
                again = PollTimeout::from(FILE_MS);
            }
            if changes.contains(&Change::Gone) {
                // The interface is gone: no more changes will come.
                return;
            }
            self.wait(again, accepts, capture);
        }
    }

    /// Blocks until there is work. Waits for readers only if `accepts`.
    fn wait(&self, timeout: PollTimeout, accepts: bool, capture: &LiveCapture) {
        let readable = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let (watch, stop) = (readable(self.watch.as_fd()), readable(self.stop.as_fd()));
        let window = self.window.as_ref().filter(|_| accepts);
        let others = [self.sources.neighbours.as_ref().map(|n| n.as_fd()), window.map(Window::as_fd)];
        let of_vlans = self.sources.vlans.as_ref().map(|vlans| vlans.resolvers.all()).unwrap_or_default();
        let of_vlans = of_vlans.iter().map(|(_, of)| readable(of.neighbours.as_fd()));
        let others = others.into_iter().flatten().map(readable).chain(of_vlans);
        let mut all: Vec<PollFd<'_>> = [watch, stop].into_iter().chain(others).collect();
        all.extend(capture.poll_fds());
        // An interrupted or failed wait only ends early: the next query finds all changes.
        let _ = poll(&mut all, timeout);
    }

    fn apply(&self, device: &State, change: &Change) {
        let follow = |change: &LinkChange| {
            if let Err(error) = device.follow_link(change) {
                tracing::warn!("{}: {change:?}: {error}", device.name);
            }
        };
        let addresses = || -> Vec<IpAddr> { self.watch.interface().addresses.iter().map(|a| a.ip).collect() };
        let event = match change {
            Change::AddressAdded(address) if self.sources.addresses => {
                let _ = device.change_gids(|gids| gids.add(address.ip));
                follow(&LinkChange::Addresses(addresses()));
                EventKind::GidChange
            }
            Change::AddressRemoved(address) if self.sources.addresses => {
                let _ = device.change_gids(|gids| gids.remove(address.ip));
                follow(&LinkChange::Addresses(addresses()));
                EventKind::GidChange
            }
            Change::Mtu(mtu) => return follow(&LinkChange::Mtu(*mtu)),
            Change::Mac(mac) => return follow(&LinkChange::Mac(*mac)),
            Change::LinkUp => EventKind::PortActive,
            Change::Gone => {
                device.has_lost_interface.store(true, Relaxed);
                // A NIC in another process follows the interface, too, and reports this to its clients.
                if device.adapter.workers().is_some() {
                    device.adapter.raise(AsyncEvent::Device(EventKind::DeviceFatal));
                }
                EventKind::PortError
            }
            Change::LinkDown => EventKind::PortError,
            Change::AddressAdded(_) | Change::AddressRemoved(_) | Change::Renamed(_) => return,
        };
        device.adapter.raise(AsyncEvent::Port(event));
    }

    /// Updates the destination MAC address of frames to peers that have changed theirs.
    fn follow_neighbours(&self, device: &State, changes: &[Change]) {
        let Some(neighbours) = &self.sources.neighbours else { return };
        let interface = self.watch.interface();
        let mut moved = neighbours.poll(interface);
        let again = changes.iter().any(|c| matches!(c, Change::LinkUp | Change::Mac(_)));
        if again {
            moved.extend(neighbours.poll_all(interface));
        }
        for (key, mac) in moved {
            device.set_next_hop(0, key, mac);
        }
        if let Some(vlans) = &self.sources.vlans {
            vlans.follow_neighbours(device, again);
        }
    }
}
