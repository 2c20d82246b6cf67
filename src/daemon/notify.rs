//! The notifier thread of a client: wakes the client, and pays for it.
//!
//! A wake takes longer the more threads of the client wait (`roxie_nic::shared::Notifier`).

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::Inner;
use super::client::Client;
use super::processor_share::{FREE, ProcessorShare};
use roxie_base::threads::spawn_unsignalled;
use roxie_nic::shared::Wake;
use roxie_nic::verbs::AsyncEvent;

impl Client {
    /// Queues an event, which the notifier sends.
    pub(super) fn notify(&self, event: AsyncEvent) {
        self.events.keep(event);
        self.notifier.mark_messages();
    }

    /// Has the notifier try again to send queued events.
    pub(super) fn notify_queued(&self) {
        if self.events.has_queued() {
            self.notifier.mark_messages();
        }
    }

    /// The notifier's side: wakes the client. Never blocks: events that it does not receive stay queued.
    pub(super) fn wake(&self, wake: &Wake) {
        match wake {
            Wake::Messages if self.events.send_queued().is_err() => self.dismiss(),
            Wake::Messages => {}
            wake => wake.run(),
        }
    }
}

/// Starts the notifier thread of a client.
///
/// # Errors
/// If the NIC has ended, or the system is out of threads.
pub(super) fn start(nic: &Weak<Inner>, client: &Arc<Client>) -> io::Result<JoinHandle<()>> {
    let shares = nic.upgrade().ok_or(io::ErrorKind::NotConnected)?.registry.shares_of(client.uid);
    let client = Arc::clone(client);
    spawn_unsignalled("roxie-notify", move || run(&client, &shares.data))
}

/// Runs until the end of the client.
fn run(client: &Client, share: &ProcessorShare) {
    while client.notifier.sleep(is_readable) {
        client.notifier.take(|wake| {
            share.charge_for(FREE, || client.wake(wake));
            share.pay_unless(|| client.notifier.has_ended());
        });
    }
}

fn is_readable(fd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::POLLIN)];
    matches!(poll(&mut fds, PollTimeout::NONE), Ok(1..))
}
