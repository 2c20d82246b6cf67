//! The notifier thread of a client: wakes the client, and pays for it.
//!
//! A wake takes longer the more threads of the client wait (`roxie_nic::shared::Notifier`). An honest one takes some microseconds. The
//! processor time beyond [`FREE`] is paid by a pause of all notifiers of the user, so that a user takes a tenth of a processor by slow wakes.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::time::{ClockId, clock_gettime};

use super::Inner;
use super::client::Client;
use roxie_base::threads::{lock, spawn_unsignalled};
use roxie_nic::shared::Wake;
use roxie_nic::verbs::AsyncEvent;

/// Processor time that a wake may take without a pause.
const FREE: Duration = Duration::from_micros(100);
/// Length of the pause, in multiples of the time beyond that.
const PAUSE: u32 = 9;
/// Longest sleep in a pause between two looks whether the client has ended.
const LOOK: Duration = Duration::from_millis(20);

/// The pause of a user's notifiers.
#[derive(Debug, Default)]
pub(super) struct WakePause(Mutex<Option<Instant>>);

impl WakePause {
    /// Charges a wake that took this much processor time.
    fn charge(&self, took: Duration) {
        let pause = took.saturating_sub(FREE) * PAUSE;
        if pause > Duration::ZERO {
            let (mut until, now) = (lock(&self.0), Instant::now());
            *until = Some(until.map_or(now, |until| until.max(now)) + pause);
        }
    }

    fn left(&self) -> Duration {
        lock(&self.0).map_or(Duration::ZERO, |until| until.saturating_duration_since(Instant::now()))
    }
}

impl Client {
    /// Queues an event, which the notifier sends.
    pub(super) fn tell(&self, event: AsyncEvent) {
        self.events.keep(event);
        self.notifier.mark_messages();
    }

    /// Has the notifier try again to send queued events.
    pub(super) fn tell_kept(&self) {
        if self.events.has_kept() {
            self.notifier.mark_messages();
        }
    }

    /// The notifier's side: wakes the client. Never blocks: events that it does not receive stay queued.
    pub(super) fn wake(&self, wake: &Wake) {
        match wake {
            Wake::Messages if self.events.send_kept().is_err() => self.dismiss(),
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
    let pause = nic.upgrade().ok_or(io::ErrorKind::NotConnected)?.registry.wake_pause(client.uid);
    let client = Arc::clone(client);
    spawn_unsignalled("roxie-notify", move || run(&client, &pause))
}

/// Runs until the end of the client.
fn run(client: &Client, pause: &WakePause) {
    while client.notifier.sleep(is_readable) {
        let began = thread_time();
        client.notifier.take(|wake| {
            let since = Instant::now();
            client.wake(wake);
            // The clock of the thread costs a system call, and leaves out the time of other programs.
            let took = since.elapsed();
            if took > FREE {
                pause.charge(took.min(thread_time().saturating_sub(began)));
            }
            while !pause.left().is_zero() && !client.notifier.has_ended() {
                std::thread::sleep(pause.left().min(LOOK));
            }
        });
    }
}

fn is_readable(fd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::POLLIN)];
    matches!(poll(&mut fds, PollTimeout::NONE), Ok(1..))
}

/// Returns the processor time of the calling thread.
fn thread_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_slow_wakes_are_paid() {
        let pause = WakePause::default();
        for _ in 0..1000 {
            pause.charge(FREE);
        }
        assert_eq!(pause.left(), Duration::ZERO);
        pause.charge(FREE + Duration::from_secs(10));
        pause.charge(FREE + Duration::from_secs(1));
        let left = pause.left();
        assert!(left <= Duration::from_secs(99) && left > Duration::from_secs(60), "{left:?}");
    }
}
