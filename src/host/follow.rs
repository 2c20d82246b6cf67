//! Follows an interface while a device is open: addresses become GIDs, the MTU bounds new path MTUs, and the
//! link's state is told to the application.

use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, Weak};
use std::thread::{self, JoinHandle};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};

use super::device::Inner;
use crate::netdev::{Change, Interface, NetNs, Watch};
use crate::port::LinkChange;
use crate::verbs::{AsyncEvent, EventKind};

/// The thread that follows; ends when dropped.
#[derive(Debug)]
pub(super) struct Follower {
    stop: Arc<EventFd>,
    stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.stopping.store(true, Relaxed);
        let _ = self.stop.write(1);
        if let Some(thread) = self.thread.take()
            // The last handle may be dropped by the follower itself, in the middle of a change.
            && thread.thread().id() != thread::current().id()
        {
            let _ = thread.join();
        }
    }
}

/// Starts to follow `interface` of `namespace` for a device. `addresses` false: they were chosen by the user and stay.
pub(super) fn follow(
    device: &Arc<Inner>,
    interface: &Interface,
    namespace: &NetNs,
    addresses: bool,
) -> std::io::Result<Follower> {
    let watch = namespace.run(|| Watch::new(interface))?.map_err(std::io::Error::other)?;
    let stop = Arc::new(EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?);
    let stopping = Arc::new(AtomicBool::new(false));
    let (device, stop_fd, stop_flag) = (Arc::downgrade(device), Arc::clone(&stop), Arc::clone(&stopping));
    let run = move || run(watch, &device, &stop_fd, &stop_flag, addresses);
    let thread = thread::Builder::new().name("roxie-follow".into()).spawn(run)?;
    Ok(Follower { stop, stopping, thread: Some(thread) })
}

fn run(mut watch: Watch, device: &Weak<Inner>, stop: &EventFd, stopping: &AtomicBool, addresses: bool) {
    while !stopping.load(Relaxed) {
        let changes = watch.poll().unwrap_or_default();
        let Some(device) = device.upgrade() else { return };
        let now: Vec<IpAddr> = watch.interface().addresses.iter().map(|a| a.ip).collect();
        for change in &changes {
            apply(&device, change, &now, addresses);
        }
        drop(device);
        let mut fds =
            [PollFd::new(watch.as_fd(), PollFlags::POLLIN), PollFd::new(stop.as_fd(), PollFlags::POLLIN)];
        // A failed wait is a short one: the next look shows what changed.
        let _ = poll(&mut fds, PollTimeout::NONE);
    }
}

fn apply(device: &Inner, change: &Change, now: &[IpAddr], addresses: bool) {
    let gids = || device.gids.write().unwrap_or_else(PoisonError::into_inner);
    let tell = |change: &LinkChange| {
        if let Err(error) = device.engine.adjust(|worker| worker.follow(change)) {
            eprintln!("roxie: {}: cannot follow {change:?}: {error}", device.name);
        }
    };
    let event = match change {
        Change::AddressAdded(address) if addresses => {
            gids().add(address.ip);
            tell(&LinkChange::Addresses(now.to_vec()));
            EventKind::GidChange
        }
        Change::AddressRemoved(address) if addresses => {
            gids().remove(address.ip);
            tell(&LinkChange::Addresses(now.to_vec()));
            EventKind::GidChange
        }
        Change::Mtu(mtu) => {
            tell(&LinkChange::Mtu(*mtu));
            return;
        }
        Change::LinkUp => EventKind::PortActive,
        Change::LinkDown | Change::Gone => EventKind::PortError,
        _ => return,
    };
    device.engine.adjust(|worker| worker.raise(AsyncEvent::Port(event)));
}
