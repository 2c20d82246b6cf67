//! What comes while a worker arms its wake-ups.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use crossbeam_channel::bounded;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use roxie::engine::Worker;
use roxie::frame::FrameMut;
use roxie::nic::{Nic, NicConfig};
use roxie::port::{Port, PortInfo, Received, TxId};
use roxie::shared::Doorbells;
use roxie::time::Nanos;
use roxie::verbs::QpIndex;

/// A port on which nothing moves, and a program that posts just when it is to wake who sleeps.
struct Rings {
    info: PortInfo,
    bells: Doorbells,
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
        self.bells.ring(QpIndex(3));
        true
    }
}

#[test]
fn a_bell_that_rings_while_a_worker_lies_down_keeps_it_up_or_wakes_it() {
    let config = NicConfig::default();
    let bells = Doorbells::new(config.limits.qps).expect("memory");
    let info = PortInfo {
        name: "rings".into(),
        interface: None,
        mode: String::new(),
        mac: [2, 0, 0, 0, 0, 1],
        mtu: 1500,
        max_frame: 1514,
        raw_frames: false,
    };
    let port = Box::new(Rings { info, bells: bells.clone() });
    let ((_commands, requests), (events, _heard)) = (bounded(1), bounded(1));
    let mut worker = Worker::new(Nic::new(config), port, bells.clone(), requests, events);
    let sleeps = worker.prepare_sleep();
    let mut woken = [PollFd::new(bells.wake_fd().as_fd(), PollFlags::POLLIN)];
    let woken = poll(&mut woken, PollTimeout::ZERO).expect("a descriptor") == 1;
    assert!(!sleeps || woken, "it sleeps, and nobody wakes it");
}
