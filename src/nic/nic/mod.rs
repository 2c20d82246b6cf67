//! The device: object tables, dispatch of received packets, the scheduler of sent ones, and the DMA stage.
//!
//! Each part owns its fields, and no other part changes them: `scheduler` (turns, timers, lists of changed QPs), `dma`
//! (registered memory and copies), `cq` (completion queues and their events), `srq`, `flow`, `multicast`, `gsi`,
//! `congestion`. The methods of [`Nic`] join them.
//!
//! A [`Nic`] is one worker's share of a device. A NIC has no ports, threads or clocks: the engine and the simulator run
//! it, stage by stage, in this order:
//!
//! ```text
//! execute(command)      control
//! receive(frame)        parse, find the QP, check the ICRC, hand it over
//! run_dma(frames)       run the memory operations of the burst
//! fire_timers           retransmission
//! next_copies           operations on memory of other processes: hand_over to a thread, copied once they are made
//! end_writes            writes of this half are made, or their QPs are parked
//! fetch_posted          new work requests
//! next_turn, plan, emit the arbiter picks a QP, the QP a packet, headers are written
//! gather, seal          payload is copied, the ICRC computed; or payload_missing
//! publish               completions and events, after the copies that they report
//! ```

mod audit;
mod classes;
mod command;
mod command_objects;
mod congestion;
mod congestion_config;
mod control;
mod cq;
mod dma;
mod fast_path;
mod fetch;
mod flow;
mod gids;
mod gsi;
mod host_side;
mod log;
mod memory;
mod memory_command;
mod multicast;
mod names;
mod neighbour_pause;
mod object;
mod parked;
mod parking;
mod path;
mod pauses_received;
mod pauses_sent;
mod pd;
mod qp_life;
mod receive;
mod remote_copies;
mod scheduler;
mod srq;
mod table;
mod transmit;
mod xrcd;

pub use crate::transport::PlantedBug;
pub use crate::transport::TxReason;
pub use crate::transport::door::{forgets_doorbells, may_name};
pub use crate::transport::memory::RegionStatus;
pub use crate::transport::send_queue::SendQueue;
pub use classes::{ClassesError, EcnPolicy, TrafficClasses, Trust};
pub use command::{Answer, Command, ControlError, GsiRoutes, ObjectCounts, QpHandle, QpStatus, SrqStatus};
pub use congestion_config::CongestionConfig;
pub use cq::Published;
pub use dma::Gathered;
pub use fast_path::Sent;
pub use flow::MAX_TABLE;
pub use log::{LOG_LENGTH, QpEvent, QpRecord};
pub use memory_command::{Convert, Form, Mapped, MemoryCommand, ReceiveSource};
pub use multicast::GroupChange;
pub use object::{Object, ObjectKind};
pub use parked::{KeptFrame, SetAside};
pub use parking::Awaited;
pub use qp_life::memory_of_qp;
pub use receive::{RxFrame, RxOutcome};
pub use remote_copies::Batch;
pub use scheduler::{PRIORITIES, Service};

use std::collections::VecDeque;
use std::sync::Arc;

use crate::congestion::{LastNotification, Settings, SharedRate};
use crate::profile::Profile;
use crate::shared::SendRing;
use crate::shared::remote_memory::RemoteMemory;
use crate::transport::{AckRequestPolicy, AddressHandles, Counters, MemoryTable, Output, Qp, door};
use crate::verbs::{AsyncEvent, Mtu, QpIndex, QpState, Rss};
use congestion::Congestion;
use cq::CompletionQueues;
use dma::Dma;
use flow::Flows;
use gids::Gids;
use multicast::Groups;
use pd::ProtectionDomains;
use roxie_base::limits::{BURST, Limits, MAX_SGE};
use roxie_base::random::splitmix;
use roxie_base::time::Nanos;
use scheduler::{Schedule, Scheduler};
use srq::{Receives, Srqs};
use table::NumberedTable;

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
    /// RC QPs use selective repeat unless told otherwise: all peers are known to.
    pub assumes_selective_repeat: bool,
    /// The behaviour of an adapter. `None`: Roxie's own.
    pub profile: Option<&'static Profile>,
    /// When unsignaled messages ask for an acknowledgement. Those of a NIC with a profile always do.
    pub ack_requests: AckRequestPolicy,
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
            assumes_selective_repeat: false,
            profile: None,
            ack_requests: AckRequestPolicy::default(),
            serves: false,
        }
    }
}

impl NicConfig {
    /// Returns when unsignaled messages ask for an acknowledgement: always, as those of every adapter, with a profile.
    fn ack_requests(&self) -> AckRequestPolicy {
        self.profile.map_or(self.ack_requests, |_| AckRequestPolicy::Always)
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
    schedule: Schedule,
    /// The QP's data packets are ECN-capable.
    capable: bool,
    /// A congestion notification is due to the peer.
    notification_due: bool,
    /// When the last notification was sent.
    last_notification: LastNotification,
    /// Congestion control settings of the QP's own.
    own_control: Option<Box<Settings>>,
    /// A rate shared with other QPs.
    share: Option<SharedRate>,
    /// A packet of the connection has arrived since the last [`Command::ExamineQp`].
    has_received: bool,
    /// The QP has asked its peer since then. The answer may have any PSN: rdma_rxe answers with that before the last
    /// request that it has executed, also if it has executed none.
    has_probed: bool,
    /// The QP is in the error state. Each posted receive rings the doorbell, to be flushed.
    flushing: bool,
    /// The last IPv4 identification that an ICRC of the peer matched.
    last_ip_id: u16,
    /// The last one that matched but was rejected as implausible.
    refused_ip_id: u16,
    /// The state of a QP that waits for copies.
    parked: Option<Box<parked::Parked>>,
    /// The memory of the client that owns the QP, or of the first process for the copies of which the QP has waited.
    client: Option<Arc<RemoteMemory>>,
    log: log::QpLog,
}

/// One worker's share of a device.
#[derive(Debug)]
pub struct Nic {
    config: NicConfig,
    qps: NumberedTable<QpEntry>,
    cqs: CompletionQueues,
    pds: ProtectionDomains,
    memory: MemoryTable,
    handles: AddressHandles,
    /// The general service QPs (QP1), one per client.
    gsis: gsi::Gsis,
    /// The sum of [`QpEntry::expected_frames`].
    expected_frames: usize,
    srqs: Srqs,
    flows: Flows,
    gids: Gids,
    /// Maximum length of frames of other protocols, in bytes; `None`: the port carries only RoCE.
    longest_frame: Option<usize>,
    /// No request precedes an acknowledgement.
    acknowledges_first: bool,
    groups: Groups,
    group_changes: VecDeque<GroupChange>,
    dma: Dma,
    parking: parking::Parking,
    scheduler: Scheduler,
    congestion: Congestion,
    out: Output,
    counters: Counters,
    events: VecDeque<AsyncEvent>,
    /// Memory of a send queue: for the QP that a command creates. A command that fails, or destroys a QP, leaves it to
    /// the thread that receives the answer.
    spare: Option<SendQueue>,
}

/// Maximum number of copies for a receive: its entries, and the header of a datagram.
const PIECES: usize = MAX_SGE + 8;
/// Maximum number of pending asynchronous events; more are counted as lost.
const MAX_EVENTS: usize = 4096;

/// Splits an entry of the QP table into its QP and the context of the QP's calls.
macro_rules! split {
    ($nic:ident, $now:expr, $entry:ident => $qp:ident, $ctx:ident) => {
        let $crate::nic::QpEntry { qp: $qp, receives, .. } = &mut *$entry;
        let mut $ctx = $crate::transport::Ctx {
            now: $now,
            memory: &mut $nic.memory,
            gathers_pending: $nic.dma.is_planned(),
            handles: &$nic.handles,
            receives: &mut $crate::nic::srq::ReceiveSide { own: receives, srqs: &mut $nic.srqs },
            out: &mut $nic.out,
            counters: &mut $nic.counters,
            limits: &$nic.config.limits,
            longest_frame: $nic.longest_frame.unwrap_or(0),
            acknowledges_first: $nic.acknowledges_first,
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
            cqs: CompletionQueues::new(limits.cqs),
            pds: ProtectionDomains::new(limits.mrs),
            memory: MemoryTable::new(limits.mrs, key_seed),
            handles: AddressHandles::new(limits.ahs, config.largest_mtu),
            gsis: gsi::Gsis::default(),
            expected_frames: 0,
            srqs: Srqs::new(limits.srqs.min(1 << 16), limits.xrcds, srqn_seed),
            flows: Flows::default(),
            gids: Gids::default(),
            longest_frame: None,
            acknowledges_first: false,
            groups: Groups::default(),
            group_changes: VecDeque::new(),
            dma: Dma::new(config.serves, limits.mrs.min(1 << 16), burst * MAX_SGE),
            parking: parking::Parking::default(),
            scheduler: Scheduler::new(qps),
            congestion: Congestion::new(moderation_secret),
            out: Output {
                dma_in: Vec::with_capacity(burst * 4 + limits.group_members as usize * PIECES),
                completions: Vec::with_capacity(burst * 16),
                events: Vec::with_capacity(burst),
                gather: Vec::with_capacity(MAX_SGE),
                ..Output::default()
            },
            counters: Counters::default(),
            events: VecDeque::with_capacity(MAX_EVENTS),
            spare: None,
        }
    }

    /// Returns the number of frames that peers may send before they wait: a window for each QP, apart from QP1, or the
    /// receives that it has room for, if they are more and its frames are not acknowledged.
    pub fn expected_frames(&self) -> usize {
        self.expected_frames
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
        let transport = self.scheduler.next_timer().min(self.cqs.events_due());
        if !self.holds_something_back() {
            return transport;
        }
        transport.min(self.congestion.neighbour.next_check()).min(self.scheduler.next_release())
    }

    /// Returns the next asynchronous event.
    pub fn take_event(&mut self) -> Option<AsyncEvent> {
        self.events.pop_front()
    }

    /// Handles the timers that are due.
    pub fn fire_timers(&mut self, now: Nanos) {
        let due = self.scheduler.expired(now, |place| QpIndex(self.qps.name_at(place)));
        due.iter().for_each(|index| self.fire(now, *index));
        self.scheduler.return_list(due);
        if self.holds_something_back() {
            self.release(now);
        }
        if now >= self.cqs.events_due() {
            self.cqs.release_events(now);
        }
    }

    /// True if a paced QP's data is held, a priority is paused, or the neighbour is.
    fn holds_something_back(&self) -> bool {
        self.scheduler.holds_back() || self.congestion.neighbour.is_on()
    }

    /// Releases data of paced QPs that is due, and priorities with a pause that is over.
    #[cold]
    fn release(&mut self, now: Nanos) {
        let due = self.scheduler.releases(now, |place| QpIndex(self.qps.name_at(place)));
        for index in &due {
            if let Some(entry) = self.qps.get_mut(index.0) {
                entry.schedule.released();
                entry.qp.pacing_mut().release(now);
                self.scheduler.mark_changed(&mut entry.schedule);
            }
        }
        self.scheduler.return_list(due);
    }

    fn fire(&mut self, now: Nanos, index: QpIndex) {
        let Some(entry) = self.qps.get_mut(index.0) else { return };
        entry.schedule.timer_expired();
        // The packet that the timer waits for may have been set aside.
        if entry.parked.is_some() {
            return;
        }
        split!(self, now, entry => qp, ctx);
        // The deadline may have moved since the timer was set: then nothing happens, and `update_changed` sets the
        // timer again.
        let expired = door::handle_timeout(qp, &mut ctx);
        if let Some(verdict) = expired {
            entry.log.note_timeout(now, verdict);
        }
        self.mark_changed(index);
    }

    /// Marks a QP for [`update_changed`](Self::update_changed).
    fn mark_changed(&mut self, index: QpIndex) {
        if let Some(entry) = self.qps.get_mut(index.0) {
            self.scheduler.mark_changed(&mut entry.schedule);
        }
    }

    /// Updates timers, arbiter entries and send queues of all changed QPs.
    pub fn update_changed(&mut self, now: Nanos) {
        while let Some(index) = self.scheduler.take_changed() {
            invariant!(self.qps.holds(index.0), "QP {} has changed, and is gone", index.0);
            let Some(entry) = self.qps.get_mut(index.0) else { continue };
            entry.schedule.clear_changed();
            door::ensure_timer(&mut entry.qp, now);
            entry.qp.assert_invariants();
            entry.assert_invariants();
            entry.log.note_state(now, entry.qp.state());
            let tail = entry.qp.send_tail();
            // Room: what was posted and did not fit can be fetched. Not here: a client that fills the queue as fast as
            // it is flushed would keep the NIC.
            let mut unfetched = false;
            // The completions of a parked QP stay as few as its queues allow.
            if entry.parked.is_none() && tail != entry.retired {
                entry.retired = tail;
                entry.sends.retire(tail);
                unfetched = entry.sends.has(entry.fetched);
            }
            if entry.qp.state() == QpState::Err && !std::mem::replace(&mut entry.flushing, true) {
                // Before the check for waiting receives: receives posted in between ring no doorbell.
                entry.receives.want_doorbell();
            }
            if entry.parked.is_none() && (unfetched || entry.needs_flush(&self.srqs)) {
                self.scheduler.fetch_later(&mut entry.schedule);
            }
            if entry.parked.is_some() {
                continue;
            }
            self.scheduler.set_timer(&mut entry.schedule, entry.qp.deadline());
            if entry.qp.pacing().holds()
                && let Some(until) = entry.qp.pacing().held_until()
            {
                self.scheduler.hold(&mut entry.schedule, until);
            }
            if !entry.schedule.is_ready() && entry.qp.wants_transmit(&self.config.limits) {
                let presses = entry.qp.is_pressing(&self.config.limits);
                self.scheduler.make_ready(&mut entry.schedule, presses);
            }
            if self.scheduler.has_priorities() {
                self.mark_urgent(index);
            }
        }
    }

    /// Publishes completions and raises events. Call this after the copies that they report. Returns the number of
    /// completions.
    pub fn publish(&mut self, now: Nanos) -> usize {
        invariant!(self.out.dma_in.is_empty(), "completions are published before their bytes are written");
        let mut completions = 0;
        if self.srqs.has_reports() {
            self.report_srqs(now);
        }
        self.parking.hold_completions(&mut self.qps, &self.gsis, &mut self.out.completions);
        while !self.out.completions.is_empty() {
            completions += self.out.completions.len();
            //= IBTA 9.5: completion-follows-its-bytes
            //= IBTA 10.8: completion-means-memory-is-free
            self.push_completions(now);
            self.parking.hold_completions(&mut self.qps, &self.gsis, &mut self.out.completions);
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
}
