//! The device: object tables, dispatch of what arrives, the arbiter of what leaves, the dma stage.
//!
//! A [`Nic`] is one worker's share of a device. It knows neither ports nor threads nor clocks: the engine and
//! the simulator turn it, stage by stage, in the order of the methods here:
//!
//! ```text
//! execute(command)      control
//! receive(frame)        parse, find the QP, check the ICRC, hand it over
//! run_dma(frames)       run what the burst asked of memory
//! next_copies, copied   what it asked of memory of other processes; end_writes when all is done
//! fire_timers, fetch_posted  retransmission; new work requests
//! next_turn, plan, emit the arbiter picks a QP, the QP a packet, headers are written
//! gather, seal          payload is copied, the ICRC computed; or payload_missing
//! publish               completions and events, after the copies they speak of
//! ```

mod arbiter;
mod audit;
mod classes;
mod command;
mod congestion;
mod control;
mod cq;
mod dma;
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
mod usual;

pub(crate) use crate::transport::PlantedBug;
pub use crate::transport::TxReason;
pub use crate::transport::memory::RegionStatus;
pub use crate::transport::send_queue::SendQueue;
pub use arbiter::{PRIORITIES, Service};
pub use classes::{ClassesError, EcnPolicy, TrafficClasses, Trust};
pub use command::{Answer, Command, ControlError, GsiRoutes, ObjectCounts, QpHandle, QpStatus, SrqStatus};
pub use congestion::CongestionConfig;
pub use cq::Published;
pub use flow::MAX_TABLE;
pub use log::{LOG_LENGTH, QpEvent, QpRecord};
pub use memory_command::{Convert, Form, Mapped, MemoryCommand, ReceiveSource};
pub use multicast::GroupChange;
pub use object::Object;
pub use qp_life::memory_of_qp;
pub use receive::{RxFrame, RxOutcome};
pub use remote_copies::Batch;
pub use usual::Sent;

use std::collections::VecDeque;

use crate::congestion::{LastNotification, Settings, SharedRate};
use crate::limits::{BURST, Limits};
use crate::random::splitmix;
use crate::shared::SendRing;
use crate::time::Nanos;
use crate::timer::TimerWheel;
use crate::transport::coverage::{Mover, Watch};
use crate::transport::{AddressHandles, Counters, MemoryTable, Output, Qp};
use crate::verbs::{AsyncEvent, CqIndex, Mtu, QpIndex, QpState, Rss};
use arbiter::Arbiter;
use congestion::Congestion;
use cq::CqEntry;
use flow::Flows;
use multicast::Groups;
use srq::{Receives, Srqs};
use table::{NumberedTable, Table};

/// How a NIC treats what the standard leaves to it.
#[derive(Clone, Copy, Debug)]
pub struct NicConfig {
    /// How many objects there may be of each kind, and how large.
    pub limits: Limits,
    /// Secret that QPNs and keys are derived from. Random, except in simulations.
    pub seed: u64,
    /// The largest path MTU that fits its port.
    pub largest_mtu: Mtu,
    /// Drop IPv4 packets whose ICRC only fits an implausible identification, where a socket hides it.
    pub strict_icrc: bool,
    /// MigReq in what we send: ConnectX sends 1, rxe 0.
    pub mig_req: bool,
    /// Give and heed the credits in AETHs (IBTA 9.7.7.2). Off, as Linux negotiates it: both ends must agree.
    pub end_to_end_credits: bool,
    /// Send FLUSH with the ICRC that rdma_rxe of Linux 6.12 to 7.2 gives it, which is wrong, and take both. Off: the right one.
    pub rxe_flush_icrc: bool,
    /// It serves other processes: there may be a QP1 of each besides its own ([`Command::RouteGsi`]).
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

/// A QP and what the NIC keeps beside it.
#[derive(Debug)]
struct QpEntry {
    qp: Qp,
    sends: SendRing,
    receives: Receives,
    /// It has no queues, and spreads what is steered to it over QPs that have.
    rss: Option<Box<Rss>>,
    /// In how many tables of such QPs it is.
    in_tables: u32,
    /// What it holds on to.
    uses: qp_life::Uses,
    /// The next send queue position to fetch.
    fetched: u32,
    /// The send queue position that the application has been told of.
    retired: u32,
    /// It stands in the arbiter's queue.
    ready: bool,
    /// Its next packet has another priority: it goes to the queue of that.
    moved: bool,
    /// It stands in the arbiter's queue of urgent ones.
    urgent: bool,
    /// The traffic class of its packets, 0 to 7.
    priority: u8,
    /// Its data is sent as ECN-capable.
    capable: bool,
    /// Its peer is to be told of congestion.
    notification_due: bool,
    /// When it was told last.
    last_notification: LastNotification,
    /// A reaction point that is not the device's.
    own_control: Option<Settings>,
    /// A rate that it has together with others.
    share: Option<SharedRate>,
    /// When its entry in the wheel of paced QPs fires; `MAX`: it has none.
    release_at: Nanos,
    /// It stands in the list of QPs to look after.
    touched: bool,
    /// It stands in the list of QPs to fetch from or to flush.
    unfetched: bool,
    /// It is in the error state, and each receive that is posted rings, to be flushed.
    flushing: bool,
    /// When its entry in the wheel fires; `MAX`: it has none.
    timer_at: Nanos,
    /// The last IPv4 identification that explained a frame from its peer.
    last_ip_id: u16,
    /// The last one that explained a frame and was not believed.
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
    /// Those that have the number 1.
    gsis: gsi::Gsis,
    srqs: Srqs,
    flows: Flows,
    /// Bytes of the longest frame of another protocol; `None`: the port carries RoCE alone.
    longest_frame: Option<usize>,
    groups: Groups,
    group_changes: VecDeque<GroupChange>,
    regions: Vec<Option<memory::Registered>>,
    wheel: TimerWheel,
    due: Vec<QpIndex>,
    /// When what paced QPs hold back may leave: has room for QPs once one of them is paced.
    releases: TimerWheel,
    /// QPs that have something to send, in turn.
    arbiter: Arbiter,
    /// The turn is for what is urgent alone.
    urgent_turn: bool,
    /// Some QP is controlled by delay, or was.
    wants_arrivals: bool,
    /// What the neighbour was told of pausing.
    told: flow_control::Told,
    /// The packet that is taken in was marked by a switch.
    marked: bool,
    congestion: Congestion,
    /// QPs whose timers, readiness or queues changed since they were last looked after.
    touched: Vec<QpIndex>,
    /// QPs whose send queues had room again after they were fetched from, or that are to be flushed: the next [`Nic::fetch_posted`] goes on
    /// with them.
    unfetched: Vec<QpIndex>,
    out: Output,
    /// Copies that the frames of the burst need, in the order of their slots.
    dma_out: Vec<dma::DmaOut>,
    /// How many of them have been made.
    gathered: usize,
    remote: remote_copies::RemoteCopies,
    counters: Counters,
    events: VecDeque<AsyncEvent>,
    /// When the next event that is held back is due; `MAX`: none is.
    events_due: Nanos,
    /// Completion queues that had no room, until their QPs are failed.
    overrun: Vec<CqIndex>,
    published: Published,
    /// Memory of a QP that was destroyed, for the thread that takes the answer.
    remains: Option<SendQueue>,
    /// More than acknowledgements may be ready.
    presses: bool,
}

/// A tick of the wheel of paced QPs: 128 ns, below the time of a packet on a fast link.
const RELEASE_TICK_BITS: u32 = 7;
/// Copies that one receive may take: its entries, and the header in front of a datagram.
const PIECES: usize = crate::limits::MAX_SGE + 8;
/// Asynchronous events that wait for the application at most; more are counted as lost.
const MAX_EVENTS: usize = 4096;

/// Splits an entry of the QP table into its QP and the surroundings that the QP's calls need.
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
    /// True if there is a number and room for one more QP.
    pub fn has_room_for_qp(&self) -> bool {
        self.qps.has_room()
    }

    /// A NIC without objects.
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
            told: flow_control::Told::default(),
            marked: false,
            congestion: Congestion::new(moderation_secret),
            touched: Vec::with_capacity(qps as usize),
            unfetched: Vec::with_capacity(qps as usize),
            out: Output {
                dma_in: Vec::with_capacity(burst * 4 + limits.group_members as usize * PIECES),
                completions: Vec::with_capacity(burst * 16),
                events: Vec::with_capacity(burst),
                gather: Vec::with_capacity(crate::limits::MAX_SGE),
                ..Output::default()
            },
            dma_out: Vec::with_capacity(burst * crate::limits::MAX_SGE),
            gathered: 0,
            remote: remote_copies::RemoteCopies::default(),
            counters: Counters::default(),
            events: VecDeque::with_capacity(MAX_EVENTS),
            events_due: Nanos::MAX,
            overrun: Vec::new(),
            published: Published::default(),
            remains: None,
            presses: false,
        }
    }

    /// What was counted.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Its bounds.
    pub fn limits(&self) -> &Limits {
        &self.config.limits
    }

    /// The largest path MTU that it agrees to.
    pub fn largest_mtu(&self) -> Mtu {
        self.config.largest_mtu
    }

    /// When it must be turned again even if nothing arrives.
    pub fn next_deadline(&self) -> Nanos {
        let transport = self.wheel.next_deadline().min(self.events_due);
        if !self.holds_something_back() {
            return transport;
        }
        transport.min(self.looks_at_ring()).min(self.releases.next_deadline()).min(self.arbiter.next_resume())
    }

    /// The next asynchronous event.
    pub fn take_event(&mut self) -> Option<AsyncEvent> {
        self.events.pop_front()
    }

    /// Looks at the timers that are due.
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

    /// True if data of a paced QP waits for its time, or a priority is paused, or the neighbour is.
    fn holds_something_back(&self) -> bool {
        !self.releases.is_empty() || self.arbiter.has_paused() || self.looks_at_ring() != Nanos::MAX
    }

    /// What was held back, and may leave now: data of paced QPs, priorities that were paused.
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
        // It may have been put off since it was set: then nothing happens, and `look_after` sets it again.
        let watch = Watch::timer(qp);
        let expired = qp.handle_timeout(&mut ctx);
        watch.moved(qp, Mover::Time);
        if let Some(verdict) = expired {
            entry.log.note_timeout(now, verdict);
        }
        self.touch(index);
    }

    /// Marks a QP to be looked after.
    fn touch(&mut self, index: QpIndex) {
        if let Some(entry) = self.qps.get_mut(index.0)
            && !entry.touched
        {
            entry.touched = true;
            self.touched.push(index);
        }
    }

    /// For each QP that something happened to: its timer, its place in the arbiter, its send queue.
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
                // Before the look at what waits: what is posted in between rings no bell.
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
                self.hurry(index);
            }
        }
    }

    /// Publishes completions and raises events. Call it after the copies that they speak of.
    /// Returns how many completions there were.
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
