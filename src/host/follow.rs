//! Follows an interface while a device is open: addresses become GIDs, the MTU bounds path MTUs, station addresses, ours
//! and the neighbours', go into the frames of the QPs, and the link's state is told to the application. So is a file followed that says
//! how the device reacts to congestion.

use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, PoisonError};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};

use super::error::{DeviceError, OpenError};
use super::follower::{Followed, Follower};
use super::inspect::Window;
use super::state::State;
use crate::netdev::{Change, Watch};
use crate::port::LinkChange;
use crate::threads::spawn_unsignalled;
use crate::verbs::{AsyncEvent, EventKind};
use crate::wire::Gid;

/// How soon a look that failed is repeated, in milliseconds: the message that asked for it will not come again. Nor is a reader
/// accepted earlier for which the system had no descriptor.
const RETRY_MS: u16 = 100;
/// How often it looks at the file that says how the device reacts to congestion, in milliseconds, if there is one.
const FILE_MS: u16 = 100;

/// Starts to follow an interface of the calling thread's namespace for a device.
pub(super) fn follow(device: Arc<State>, followed: Followed) -> Result<Follower, OpenError> {
    let failed = |what| move |source| DeviceError::System { what, source };
    let watch = Watch::new(&followed.interface.get())?;
    let stop = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)
        .map_err(std::io::Error::from)
        .map_err(failed("an eventfd for the thread that follows the interface"))?;
    let (stop, stopping) = (Arc::new(stop), Arc::new(AtomicBool::new(false)));
    // Without it everything works, unseen.
    let window = Window::open().ok();
    let run =
        Run { watch, followed, device, stop: Arc::clone(&stop), stopping: Arc::clone(&stopping), window };
    let thread = spawn_unsignalled("roxie-follow", move || run.run())
        .map_err(failed("the thread that follows the interface"))?;
    Ok(Follower { stop, stopping, thread: Some(thread) })
}

/// What the thread has.
struct Run {
    watch: Watch,
    followed: Followed,
    device: Arc<State>,
    stop: Arc<EventFd>,
    stopping: Arc<AtomicBool>,
    window: Option<Window>,
}

impl Run {
    fn run(mut self) {
        while !self.stopping.load(Relaxed) {
            let looked = self.watch.poll();
            let mut again = if looked.is_ok() { PollTimeout::NONE } else { PollTimeout::from(RETRY_MS) };
            let changes = looked.unwrap_or_default();
            self.followed.interface.set(self.watch.interface());
            let device = &*self.device;
            for change in &changes {
                self.apply(device, change);
            }
            self.follow_neighbours(device, &changes);
            let accepts =
                self.window.as_ref().is_none_or(|window| window.answer(|question| device.answer(question)));
            if !accepts {
                again = PollTimeout::from(RETRY_MS);
            }
            if device.has_control_file() {
                device.read_control();
                again = PollTimeout::from(FILE_MS);
            }
            if changes.contains(&Change::Gone) {
                // Nothing follows on that.
                return;
            }
            self.wait(again, accepts);
        }
    }

    /// Until there is something to look at; at the window only if it `accepts` readers.
    fn wait(&self, timeout: PollTimeout, accepts: bool) {
        let readable = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let (watch, stop) = (readable(self.watch.as_fd()), readable(self.stop.as_fd()));
        let window = self.window.as_ref().filter(|_| accepts);
        let others = [self.followed.neighbours.as_ref().map(|n| n.as_fd()), window.map(Window::as_fd)];
        let mut all: Vec<PollFd<'_>> =
            [watch, stop].into_iter().chain(others.into_iter().flatten().map(readable)).collect();
        // A failed wait is a short one: the next look shows what changed.
        let _ = poll(&mut all, timeout);
    }

    fn apply(&self, device: &State, change: &Change) {
        let gids = || device.gids.write().unwrap_or_else(PoisonError::into_inner);
        let tell = |change: &LinkChange| {
            if let Err(error) = device.follow_link(change) {
                eprintln!("roxie: {}: {change:?}: {error}", device.name);
            }
        };
        let addresses = || -> Vec<IpAddr> { self.watch.interface().addresses.iter().map(|a| a.ip).collect() };
        let event = match change {
            Change::AddressAdded(address) if self.followed.addresses => {
                gids().add(address.ip);
                tell(&LinkChange::Addresses(addresses()));
                EventKind::GidChange
            }
            Change::AddressRemoved(address) if self.followed.addresses => {
                gids().remove(address.ip);
                tell(&LinkChange::Addresses(addresses()));
                EventKind::GidChange
            }
            Change::Mtu(mtu) => return tell(&LinkChange::Mtu(*mtu)),
            Change::Mac(mac) => return tell(&LinkChange::Mac(*mac)),
            Change::LinkUp => EventKind::PortActive,
            Change::LinkDown | Change::Gone => EventKind::PortError,
            Change::AddressAdded(_) | Change::AddressRemoved(_) | Change::Renamed(_) => return,
        };
        device.adapter.raise(AsyncEvent::Port(event));
    }

    /// Frames to a peer whose station address changed go to the new one.
    fn follow_neighbours(&self, device: &State, changes: &[Change]) {
        let Some(neighbours) = &self.followed.neighbours else { return };
        let interface = self.watch.interface();
        let mut moved = neighbours.poll(interface);
        if changes.iter().any(|c| matches!(c, Change::LinkUp | Change::Mac(_))) {
            moved.extend(neighbours.look_again(interface));
        }
        for (destination, mac) in moved {
            device.adapter.set_next_hop(Gid::from(destination), mac);
        }
    }
}
