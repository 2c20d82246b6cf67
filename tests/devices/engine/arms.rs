//! Doorbells that ring while a worker arms its wake-ups.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use crossbeam_channel::bounded;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use roxie::engine::Worker;
use roxie::frame::FrameMut;
use roxie::nic::{Nic, NicConfig};
use roxie::port::{Carries, Port, PortInfo, Received, TxId};
use roxie::shared::Doorbells;
use roxie::time::Nanos;
use roxie::verbs::QpIndex;

/// A port without traffic. With `meanwhile`, the application posts just as the port prepares to sleep.
struct Rings {
    info: PortInfo,
    bells: Doorbells,
    meanwhile: bool,
}

impl Port for Rings {
    fn info(&self) -> &PortInfo {
        &self.info
    }

    fn rx_burst(&mut self, _now: Nanos) -> usize {
        0
    }

    fn rx_frame(&self, i: usize) -> Received<'_> {
        unreachable!("frame {i} of none")
    }

    fn rx_release(&mut self) {}

    fn tx_alloc(&mut self, _len: usize) -> Option<TxId> {
        None
    }

    fn tx_frame(&mut self, _id: &TxId) -> FrameMut<'_> {
        unreachable!("it gives no slot")
    }

    fn tx_commit(&mut self, _id: TxId) {}

    fn tx_cancel(&mut self, _id: TxId) {}

    fn tx_flush(&mut self, _now: Nanos) -> io::Result<()> {
        Ok(())
    }

    fn event_fds(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    fn counters(&self, _out: &mut Vec<(&'static str, u64)>) {}

    fn prepare_sleep(&mut self) -> bool {
        if self.meanwhile {
            self.bells.ring(QpIndex(3));
        }
        true
    }
}

/// Returns a worker on such a port, and its doorbells.
fn worker(meanwhile: bool) -> (Worker, Doorbells) {
    let config = NicConfig::default();
    let bells = Doorbells::new(config.limits.qps).expect("memory");
    let info = PortInfo {
        name: "rings".into(),
        interface: None,
        mode: String::new(),
        mac: [2, 0, 0, 0, 0, 1],
        mtu: 1500,
        max_frame: 1514,
        carries: Carries::Datagrams,
        has_trains: false,
    };
    let port = Box::new(Rings { info, bells: bells.clone(), meanwhile });
    let ((_commands, requests), (events, _events)) = (bounded(1), bounded(1));
    (Worker::new(Nic::new(config), port, bells.clone(), requests, events), bells)
}

fn is_woken(bells: &Doorbells) -> bool {
    let mut woken = [PollFd::new(bells.wake_fd().as_fd(), PollFlags::POLLIN)];
    poll(&mut woken, PollTimeout::ZERO).expect("a descriptor") == 1
}

#[test]
fn bell_during_arming_prevents_sleep_or_wakes() {
    let (mut worker, bells) = worker(true);
    let sleeps = worker.prepare_sleep();
    assert!(!sleeps || is_woken(&bells), "it sleeps without a wake-up");
}

/// A doorbell wakes a worker that sleeps. A worker that is awake is not woken: that would be a system call for each
/// post.
#[test]
fn bell_wakes_only_a_sleeping_worker() {
    let (mut sleeper, bells) = worker(false);
    assert!(sleeper.prepare_sleep() && !is_woken(&bells));
    bells.ring(QpIndex(3));
    assert!(is_woken(&bells));
    let (mut awake, bells) = worker(false);
    bells.ring(QpIndex(3));
    assert!(!awake.prepare_sleep());
    bells.ring(QpIndex(70));
    assert!(!is_woken(&bells));
    let (mut up_again, bells) = worker(false);
    assert!(up_again.prepare_sleep());
    up_again.sleep_ends();
    bells.ring(QpIndex(3));
    assert!(!is_woken(&bells));
}
