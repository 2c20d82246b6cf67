//! The notifier thread of a client: wakes the client, and pays for it.
//!
//! A wake takes longer the more threads of the client wait (`roxie_nic::shared::Notifier`). An honest one takes some microseconds. The
//! processor time beyond [`FREE`] is paid by a pause of all notifiers of the user, so that a user takes a tenth of a processor by slow wakes.

use std::os::fd::BorrowedFd;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::time::{ClockId, clock_gettime};

use super::client::Client;
use roxie_base::threads::lock;

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

/// Runs the notifier of a client until its end.
pub(super) fn run(client: &Client, pause: &WakePause) {
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
