//! Frames that arrive at a worker other than their QP's.
//!
//! Several workers of a device have a queue of the link each. Receive side scaling, or a filter on the unit of the QPN,
//! brings most frames to the worker of their QP. A worker copies a frame for a unit of a sibling into the sibling's
//! queue, which is bounded, and wakes it. The buffer returns to the worker that it came from.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed};

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};

use roxie_base::frame::Frame;
use roxie_base::time::Nanos;
use roxie_nic::nic::{Nic, Object, RxFrame, RxOutcome};
use roxie_nic::shared::Doorbells;
use roxie_nic::verbs::Qpn;
use roxie_port::BURST;

/// Frames that a worker may have in its siblings' queues.
const DEPTH: usize = 256;
/// Marks a unit that no worker has.
const NO_WORKER: u8 = u8::MAX;

/// What the workers know of one another.
#[derive(Debug)]
pub(super) struct Shares {
    /// The worker of each unit of QPNs.
    units: [AtomicU8; 256],
    /// True if the kernel gives each worker's port a copy of a frame for no single QP: a datagram to a group, or a MAC
    /// control frame.
    are_copied: AtomicBool,
}

impl Shares {
    pub(super) fn new() -> Shares {
        let units = std::array::from_fn(|_| AtomicU8::new(NO_WORKER));
        Shares { units, are_copied: AtomicBool::new(false) }
    }

    /// Gives a unit to a worker.
    pub(super) fn set(&self, unit: u8, worker: u8) {
        debug_assert_ne!(worker, NO_WORKER, "unit {unit} is given to no worker");
        self.units[usize::from(unit)].store(worker, Relaxed);
    }

    pub(super) fn set_copied(&self, are_copied: bool) {
        self.are_copied.store(are_copied, Relaxed);
    }

    /// Returns the worker of a QPN. QP1 is the first worker's.
    fn worker_of(&self, qpn: Qpn) -> Option<usize> {
        let unit = usize::from((qpn.value() >> 16) as u8);
        let worker = if qpn == Qpn::GSI { 0 } else { self.units[unit].load(Relaxed) };
        (worker != NO_WORKER).then_some(worker.into())
    }
}

/// A frame on its way to a sibling.
#[derive(Debug)]
struct Redirected {
    bytes: Vec<u8>,
    ip_id_hidden: bool,
    arrived: Option<Nanos>,
    from: usize,
}

/// One worker's view of its siblings.
#[derive(Debug)]
pub(super) struct Siblings {
    own: usize,
    shares: Arc<Shares>,
    queues: Vec<Sender<Redirected>>,
    queue: Receiver<Redirected>,
    /// Where the buffers of each worker return.
    returns: Vec<Sender<Vec<u8>>>,
    free: Receiver<Vec<u8>>,
    bells: Vec<Doorbells>,
    /// Completion queues and shared receive queues that have failed at a sibling.
    failures: Vec<Sender<Object>>,
    failed: Receiver<Object>,
    /// Frames given to a sibling.
    redirected: u64,
    /// Frames dropped because too many were under way.
    dropped: u64,
}

impl Siblings {
    /// Returns the views of the workers with these doorbells. Frames up to `longest` bytes are copied without an
    /// allocation.
    pub(super) fn of(bells: &[Doorbells], shares: &Arc<Shares>, longest: usize) -> Vec<Siblings> {
        let count = bells.len();
        let (queues, queue): (Vec<_>, Vec<_>) = (0..count).map(|_| bounded(DEPTH * count)).unzip();
        let (returns, free): (Vec<_>, Vec<_>) = (0..count).map(|_| bounded(DEPTH)).unzip();
        let (failures, failed): (Vec<_>, Vec<_>) = (0..count).map(|_| unbounded()).unzip();
        for home in &returns {
            for _ in 0..DEPTH {
                // Succeeds: the queue holds as many.
                let _ = home.try_send(Vec::with_capacity(longest));
            }
        }
        let view = |(own, ((queue, free), failed))| Siblings {
            own,
            shares: Arc::clone(shares),
            queues: queues.clone(),
            queue,
            returns: returns.clone(),
            free,
            bells: bells.to_vec(),
            failures: failures.clone(),
            failed,
            redirected: 0,
            dropped: 0,
        };
        queue.into_iter().zip(free).zip(failed).enumerate().map(view).collect()
    }

    /// Gives a frame to the siblings that it is for. `outcome`: of the frame at this worker's NIC. Returns the worker
    /// of the frame's QP, if that is a sibling.
    pub(super) fn redirect(
        &mut self,
        nic: &mut Nic,
        outcome: &RxOutcome,
        received: &RxFrame<'_>,
    ) -> Option<usize> {
        match outcome {
            RxOutcome::Multicast { .. } | RxOutcome::Paused | RxOutcome::UnknownQp(Qpn::MULTICAST) => {
                if !self.shares.are_copied.load(Relaxed) {
                    self.others().for_each(|worker| self.give(worker, received));
                }
                if matches!(outcome, RxOutcome::UnknownQp(_)) {
                    nic.forget_unknown_qp();
                }
                None
            }
            RxOutcome::UnknownQp(qpn) => {
                let worker = self.shares.worker_of(*qpn).filter(|worker| *worker != self.own)?;
                self.give(worker, received);
                nic.forget_unknown_qp();
                Some(worker)
            }
            _ => None,
        }
    }

    /// Has the QPs process a burst of frames that siblings gave. Returns their number.
    pub(super) fn deliver(&self, now: Nanos, nic: &mut Nic) -> usize {
        while let Ok(queue) = self.failed.try_recv() {
            nic.fail_queue(now, queue);
        }
        for count in 0..BURST {
            let Ok(redirected) = self.queue.try_recv() else { return count };
            let Redirected { bytes, ip_id_hidden, arrived, from } = redirected;
            debug_assert_ne!(from, self.own, "a worker has given a frame to itself");
            let frame = Frame { a: &bytes, b: &[] };
            let outcome = nic.receive_slow(now, &RxFrame { frame, index: 0, ip_id_hidden, arrived });
            nic.run_dma(|_| frame);
            if matches!(outcome, RxOutcome::UnknownQp(Qpn::MULTICAST)) {
                nic.forget_unknown_qp();
            }
            // Fails if that worker has ended.
            let _ = self.returns[from].try_send(bytes);
        }
        BURST
    }

    fn give(&mut self, worker: usize, received: &RxFrame<'_>) {
        debug_assert_ne!(worker, self.own, "a worker gives a frame to itself");
        let Ok(mut bytes) = self.free.try_recv() else {
            self.dropped += 1;
            return;
        };
        bytes.clear();
        bytes.extend_from_slice(received.frame.a);
        bytes.extend_from_slice(received.frame.b);
        let RxFrame { ip_id_hidden, arrived, .. } = *received;
        let frame = Redirected { bytes, ip_id_hidden, arrived, from: self.own };
        match self.queues[worker].try_send(frame) {
            Ok(()) => self.redirected += 1,
            // The sibling has ended.
            Err(_) => self.dropped += 1,
        }
        self.bells[worker].wake_if_sleeping();
    }

    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let own = self.own;
        (0..self.queues.len()).filter(move |worker| *worker != own)
    }

    /// Tells the siblings of a queue that has failed here.
    pub(super) fn notify_failed(&self, queue: Object) {
        for worker in self.others() {
            // Fails if the sibling has ended.
            let _ = self.failures[worker].send(queue);
            self.bells[worker].wake_if_sleeping();
        }
    }

    /// True if a sibling has given a frame, or told of a failed queue.
    pub(super) fn has_work(&self) -> bool {
        !self.queue.is_empty() || !self.failed.is_empty()
    }

    /// The counters of frames that came to the wrong worker.
    pub(super) fn counters(&self) -> [(&'static str, u64); 2] {
        [("rx_redirected", self.redirected), ("rx_redirect_dropped", self.dropped)]
    }
}
