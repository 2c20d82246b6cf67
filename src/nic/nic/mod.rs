//! The device: object tables, dispatch of received packets, the arbiter of sent ones, and the DMA stage.
//!
//! A [`Nic`] is one worker's share of a device. A NIC has no ports, threads or clocks: the engine and the simulator run it, stage
//! by stage, in this order:
//!
//! ```text
//! execute(command)      control
//! receive(frame)        parse, find the QP, check the ICRC, hand it over
//! run_dma(frames)       run the memory operations of the burst
//! next_copies, copied   operations on memory of other processes; end_writes once all are done
//! fire_timers, fetch_posted  retransmission; new work requests
//! next_turn, plan, emit the arbiter picks a QP, the QP a packet, headers are written
//! gather, seal          payload is copied, the ICRC computed; or payload_missing
//! publish               completions and events, after the copies that they report
//! ```

mod arbiter;
mod audit;
mod classes;
mod command;
mod congestion;
mod control;
mod cq;
mod dma;
mod fast_path;
mod fetch;
mod flow;
mod flow_control;
mod gsi;
mod log;
mod memory;
mod memory_command;
mod multicast;
mod names;
mod object;
mod path;
mod qp_life;
mod receive;
mod remote_copies;
mod srq;
mod table;
mod transmit;

pub use crate::transport::PlantedBug;
pub use crate::transport::TxReason;
pub use crate::transport::memory::RegionStatus;
pub use crate::transport::send_queue::SendQueue;
pub use arbiter::{PRIORITIES, Service};
pub use classes::{ClassesError, EcnPolicy, TrafficClasses, Trust};
pub use command::{Answer, Command, ControlError, GsiRoutes, ObjectCounts, QpHandle, QpStatus, SrqStatus};
pub use congestion::CongestionConfig;
pub use cq::Published;
pub use fast_path::Sent;
pub use flow::MAX_TABLE;
pub use log::{LOG_LENGTH, QpEvent, QpRecord};
pub use memory_command::{Convert, Form, Mapped, MemoryCommand, ReceiveSource};
pub use multicast::GroupChange;
pub use object::{Object, ObjectKind};
pub use qp_life::memory_of_qp;
pub use receive::{RxFrame, RxOutcome};
pub use remote_copies::Batch;

use std::collections::VecDeque;

use crate::congestion::{LastNotification, Settings, SharedRate};
use crate::shared::SendRing;
use crate::timer::TimerWheel;
use crate::transport::coverage::{TimerCause, Watch};
use crate::transport::{AddressHandles, Counters, MemoryTable, Output, Qp};
use crate::verbs::{AsyncEvent, CqIndex, Mtu, QpIndex, QpState, Rss};
use arbiter::Arbiter;
use congestion::Congestion;
use cq::CqEntry;
use flow::Flows;
use multicast::Groups;
use roxie_base::limits::{BURST, Limits};
use roxie_base::random::splitmix;
use roxie_base::time::Nanos;
use srq::{Receives, Srqs};
use table::{NumberedTable, Table};

/// Settings of a NIC that the standard leaves open.
#[derive(Clone, Copy, Debug)]
pub struct NicConfig {
    /// Maximum numbers and sizes of objects.
    pub limits: Limits,
    /// Secret from which QPNs and keys are derived. Random, except in simulations.
    pub seed: u64,
    /// The largest path MTU that fits the port.
    pub largest_mtu: Mtu,
    /// Drop IPv4 packets if the ICRC requires an implausible identification, where a socket hides that field.
    pub strict_icrc: bool,
    /// MigReq bit of sent packets: ConnectX sends 1, rxe 0.
    pub mig_req: bool,
    /// Send and respect end-to-end credits in AETHs (IBTA 9.7.7.2). Off, as Linux negotiates: both ends must agree.
    pub end_to_end_credits: bool,
    /// Send FLUSH with the incorrect ICRC of rdma_rxe in Linux 6.12 to 7.2, and accept both. Off: the correct one only.
    pub rxe_flush_icrc: bool,
    /// The NIC serves other processes: each may have a QP1 besides the NIC's ([`Command::RouteGsi`]).
    pub serves: bool,
}

impl Default for NicConfig {
    fn default() -> NicConfig {
        NicConfig {
            limits: Limits::default(),
            seed: 0,
            largest_mtu: Mtu::Mtu4096,
            strict_icrc: false,
            mig_req: false,
            end_to_end_credits: false,
            rxe_flush_icrc: false,
            serves: false,
        }
    }
}

/// A QP and the NIC's state of it.
#[derive(Debug)]
struct QpEntry {
    qp: Qp,
    sends: SendRing,
    receives: Receives,
    /// The table of a QP without queues, which distributes frames over other QPs.
    rss: Option<Box<Rss>>,
    /// Number of such tables that this QP is in.
    in_tables: u32,
    /// Objects that the QP uses.
    uses: qp_life::Uses,
    /// The next send queue position to fetch.
    fetched: u32,
    /// Send queue position up to which the application may reuse entries.
    retired: u32,
    /// The QP is in the arbiter's queue of its priority.
    ready: bool,
    /// The next packet has another priority: move the QP to its queue.
    moved: bool,
    /// The QP is in the arbiter's urgent queue.
    urgent: bool,
    /// The priority of the QP's packets, 0 to 7.
    priority: u8,
    /// The QP's data packets are ECN-capable.
    capable: bool,
    /// A congestion notification is due to the peer.
    notification_due: bool,
    /// When the last notification was sent.
    last_notification: LastNotification,
    /// Congestion control settings of the QP's own.
    own_control: Option<Settings>,
    /// A rate shared with other QPs.
    share: Option<SharedRate>,
    /// Expiry of the entry in the wheel of paced QPs; `MAX`: there is none.
    release_at: Nanos,
    /// The QP is in the list of touched QPs.
    touched: bool,
    /// The QP is in the list of QPs to fetch from or to flush.
    unfetched: bool,
    /// The QP is in the error state. Each posted receive rings the doorbell, to be flushed.
    flushing: bool,
    /// Expiry of the entry in the timer wheel; `MAX`: there is none.
    timer_at: Nanos,
    /// The last IPv4 identification that an ICRC of the peer matched.
    last_ip_id: u16,
    /// The last one that matched but was rejected as implausible.
    refused_ip_id: u16,
    log: log::QpLog,
}

/// One worker's share of a device.
#[derive(Debug)]
pub struct Nic {
    config: NicConfig,
    qps: NumberedTable<Box<QpEntry>>,
    cqs: Table<CqEntry>,
    pds: Table<u32>,
    memory: MemoryTable,
    handles: AddressHandles,
    /// The general service QPs (QP1), one per client.
    gsis: gsi::Gsis,
    srqs: Srqs,
    flows: Flows,
    /// Maximum length of frames of other protocols, in bytes; `None`: the port carries only RoCE.
    longest_frame: Option<usize>,
    groups: Groups,
    group_changes: VecDeque<GroupChange>,
    regions: Vec<Option<memory::Registered>>,
    wheel: TimerWheel,
    due: Vec<QpIndex>,
    /// Release times of paced QPs. Has room for QPs once one of them is paced.
    releases: TimerWheel,
    /// QPs that have something to send.
    arbiter: Arbiter,
    /// The current turn is for an urgent packet only.
    urgent_turn: bool,
    /// A QP's congestion control measures delay, or did.
    wants_arrivals: bool,
    /// The pause state that was last sent to the neighbour.
    neighbour: flow_control::NeighbourPause,
    /// A switch has marked the packet being received.
    marked: bool,
    congestion: Congestion,
    /// QPs with changes that [`Nic::look_after`] has yet to handle.
    touched: Vec<QpIndex>,
    /// QPs with room in their send queue after they were fetched from, and QPs to flush: the next [`Nic::fetch_posted`] continues with them.
    unfetched: Vec<QpIndex>,
    out: Output,
    /// Copies for the frames of the burst, in the order of their slots.
    dma_out: Vec<dma::DmaOut>,
    /// Number of these copies already made.
    gathered: usize,
    remote: remote_copies::RemoteCopies,
    counters: Counters,
    events: VecDeque<AsyncEvent>,
    /// When the next delayed event is due; `MAX`: none is.
    events_due: Nanos,
    /// Completion queues that have overflowed, until their QPs are failed.
    overrun: Vec<CqIndex>,
    published: Published,
    /// Memory of a send queue: for the QP that a command creates. A command that fails, or destroys a QP, leaves it to the thread that
    /// receives the answer.
    spare: Option<SendQueue>,
    /// More than acknowledgements may be ready to send.
    presses: bool,
}

/// Tick of the wheel of paced QPs: 2^7 = 128 ns, less than the time of a packet on a fast link.
const RELEASE_TICK_BITS: u32 = 7;
/// Maximum number of copies for a receive: its entries, and the header of a datagram.
const PIECES: usize = roxie_base::limits::MAX_SGE + 8;
/// Maximum number of pending asynchronous events; more are counted as lost.
const MAX_EVENTS: usize = 4096;

/// Splits an entry of the QP table into its QP and the context of the QP's calls.
macro_rules! split {
    ($nic:ident, $now:expr, $entry:ident => $qp:ident, $ctx:ident) => {
        let $crate::nic::QpEntry { qp: $qp, receives, .. } = &mut **$entry;
        let mut $ctx = $crate::transport::Ctx {
            now: $now,
            memory: &mut $nic.memory,
            gathers_pending: !$nic.dma_out.is_empty(),
            handles: &$nic.handles,
            receives: &mut $crate::nic::srq::ReceiveSide { own: receives, srqs: &mut $nic.srqs },
            out: &mut $nic.out,
            counters: &mut $nic.counters,
            limits: &$nic.config.limits,
            longest_frame: $nic.longest_frame.unwrap_or(0),
        };
    };
}
use split;

impl Nic {
    /// True if another QP can be made.
    pub fn has_room_for_qp(&self) -> bool {
        self.qps.has_room()
    }

    /// Makes a NIC without objects.
    pub fn new(config: NicConfig) -> Nic {
        let limits = &config.limits;
        let mut seed = config.seed;
        let [qpn_seed, key_seed, srqn_seed, moderation_secret] = std::array::from_fn(|_| splitmix(&mut seed));
        let burst = (limits.tx_burst as usize).max(BURST);
        let qps = limits.qps.min(1 << 16);
        Nic {
            config,
            qps: NumberedTable::new(qps, qpn_seed),
            cqs: Table::new(limits.cqs),
            pds: Table::new(limits.mrs),
            memory: MemoryTable::new(limits.mrs, key_seed),
            handles: AddressHandles::new(limits.ahs, config.largest_mtu),
            gsis: gsi::Gsis::default(),
            srqs: Srqs::new(limits.srqs.min(1 << 16), limits.xrcds, srqn_seed),
            flows: Flows::default(),
            longest_frame: None,
            groups: Groups::default(),
            group_changes: VecDeque::new(),
            regions: (0..limits.mrs.min(1 << 16)).map(|_| None).collect(),
            wheel: TimerWheel::new(qps),
            due: Vec::with_capacity(qps as usize),
            releases: TimerWheel::with_tick(0, RELEASE_TICK_BITS),
            arbiter: Arbiter::new(qps as usize),
            urgent_turn: false,
            wants_arrivals: false,
            neighbour: flow_control::NeighbourPause::default(),
            marked: false,
            congestion: Congestion::new(moderation_secret),
            touched: Vec::with_capacity(qps as usize),
            unfetched: Vec::with_capacity(qps as usize),
            out: Output {
                dma_in: Vec::with_capacity(burst * 4 + limits.group_members as usize * PIECES),
                completions: Vec::with_capacity(burst * 16),
                events: Vec::with_capacity(burst),
                gather: Vec::with_capacity(roxie_base::limits::MAX_SGE),
                ..Output::default()
            },
            dma_out: Vec::with_capacity(burst * roxie_base::limits::MAX_SGE),
            gathered: 0,
            remote: remote_copies::RemoteCopies::default(),
            counters: Counters::default(),
            events: VecDeque::with_capacity(MAX_EVENTS),
            events_due: Nanos::MAX,
            overrun: Vec::new(),
            published: Published::default(),
            spare: None,
            presses: false,
        }
    }

    /// The NIC's counters.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The maximum numbers and sizes of objects.
    pub fn limits(&self) -> &Limits {
        &self.config.limits
    }

    /// The largest allowed path MTU.
    pub fn largest_mtu(&self) -> Mtu {
        self.config.largest_mtu
    }

    /// Returns when the NIC must run again even if nothing arrives.
    pub fn next_deadline(&self) -> Nanos {
        let transport = self.wheel.next_deadline().min(self.events_due);
        if !self.holds_something_back() {
            return transport;
        }
        transport.min(self.looks_at_ring()).min(self.releases.next_deadline()).min(self.arbiter.next_resume())
    }

    /// Returns the next asynchronous event.
    pub fn take_event(&mut self) -> Option<AsyncEvent> {
        self.events.pop_front()
    }

    /// Handles the timers that are due.
    pub fn fire_timers(&mut self, now: Nanos) {
        self.wheel.advance(now, |place| self.due.push(QpIndex(self.qps.name_at(place))));
        for at in 0..self.due.len() {
            self.fire(now, self.due[at]);
        }
        self.due.clear();
        if self.holds_something_back() {
            self.release(now);
        }
        if now >= self.events_due {
            self.release_events(now);
        }
    }

    /// True if a paced QP's data is held, a priority is paused, or the neighbour is.
    fn holds_something_back(&self) -> bool {
        !self.releases.is_empty() || self.arbiter.has_paused() || self.looks_at_ring() != Nanos::MAX
    }

    /// Releases data of paced QPs that is due, and priorities with a pause that is over.
    #[cold]
    fn release(&mut self, now: Nanos) {
        self.releases.advance(now, |place| self.due.push(QpIndex(self.qps.name_at(place))));
        for at in 0..self.due.len() {
            let index = self.due[at];
            if let Some(entry) = self.qps.get_mut(index.0) {
                entry.release_at = Nanos::MAX;
                entry.qp.release(now);
                self.touch(index);
            }
        }
        self.due.clear();
        self.arbiter.resume(now);
    }

    fn fire(&mut self, now: Nanos, index: QpIndex) {
        let Some(entry) = self.qps.get_mut(index.0) else { return };
        entry.timer_at = Nanos::MAX;
        split!(self, now, entry => qp, ctx);
        // The deadline may have moved since the timer was set: then nothing happens, and `look_after` sets the timer again.
        let watch = Watch::timer(qp);
        let expired = qp.handle_timeout(&mut ctx);
        watch.moved(qp, TimerCause::Time);
        if let Some(verdict) = expired {
            entry.log.note_timeout(now, verdict);
        }
        self.touch(index);
    }

    /// Marks a QP for [`look_after`](Self::look_after).
    fn touch(&mut self, index: QpIndex) {
        if let Some(entry) = self.qps.get_mut(index.0)
            && !entry.touched
        {
            entry.touched = true;
            self.touched.push(index);
        }
    }

    /// Updates timers, arbiter entries and send queues of all touched QPs.
    pub fn look_after(&mut self, now: Nanos) {
        while let Some(index) = self.touched.pop() {
            let Some(entry) = self.qps.get_mut(index.0) else { continue };
            entry.touched = false;
            entry.log.note_state(now, entry.qp.state());
            let tail = entry.qp.send_tail();
            // Room: what was posted and did not fit can be fetched. Not here: a client that fills the queue as fast as it is
            // flushed would keep the NIC.
            let mut unfetched = false;
            if tail != entry.retired {
                entry.retired = tail;
                entry.sends.retire(tail);
                unfetched = entry.sends.has(entry.fetched);
            }
            if entry.qp.state() == QpState::Err && !std::mem::replace(&mut entry.flushing, true) {
                // Before the check for waiting receives: receives posted in between ring no doorbell.
                entry.receives.want_doorbell();
            }
            if unfetched || entry.owes_flush(&self.srqs) {
                let is_listed = std::mem::replace(&mut entry.unfetched, true);
                if !is_listed {
                    self.unfetched.push(index);
                }
            }
            let deadline = entry.qp.deadline();
            if deadline < entry.timer_at {
                entry.timer_at = deadline;
                self.wheel.set(index.place(), deadline);
            }
            if entry.qp.is_held()
                && let Some(until) = entry.qp.held_until()
                && until < entry.release_at
            {
                entry.release_at = until;
                self.releases.set(index.place(), until);
            }
            if !entry.ready && entry.qp.wants_transmit(&self.config.limits) {
                entry.ready = true;
                self.presses |= entry.qp.is_pressing(&self.config.limits);
                self.arbiter.push(entry.priority, index);
            }
            if self.arbiter.has_priorities() {
                self.mark_urgent(index);
            }
        }
    }

    /// Publishes completions and raises events. Call this after the copies that they report. Returns the number of completions.
    pub fn publish(&mut self, now: Nanos) -> usize {
        let mut completions = 0;
        if self.srqs.has_reports() {
            self.report_srqs(now);
        }
        while !self.out.completions.is_empty() {
            completions += self.out.completions.len();
            //= IBTA 9.5: completion-follows-its-bytes
            //= IBTA 10.8: completion-means-memory-is-free
            self.push_completions(now);
            while let Some(cq) = self.overrun.pop() {
                self.fail_users_of(now, cq);
            }
        }
        for event in self.out.events.drain(..) {
            if self.events.len() < MAX_EVENTS {
                self.events.push_back(event);
            } else {
                self.counters.events_lost += 1;
            }
        }
        completions
    }

    fn cq(&mut self, cq: CqIndex) -> Option<&mut CqEntry> {
        self.cqs.get_mut(cq.0)
    }
}
