//! PAUSE and PFC frames of the neighbour: which priorities they stop, and for how long (IEEE 802.3 annex 31B, 802.1Q
//! 36).
//!
//! [`wire::parse`](roxie_wire::parse) tells such a frame from packets (`Drop::MacControl`), and the NIC passes it to
//! [`Nic::apply_mac_control`]. The scheduler's arbiter keeps the queue of a paused priority until the pause ends: by a
//! frame with 0 quanta, by time ([`Nic::next_deadline`](super::Nic::next_deadline)), or here, because the priority is
//! stuck. The other direction is `pauses_sent`.

use super::Nic;
use super::scheduler::PRIORITIES;
use crate::transport::Counters;
use roxie_base::time::Nanos;
use roxie_wire::frame::Frame;
use roxie_wire::{MacControl, mac_control};

/// A priority that was paused for this time is stuck, not congested. Its pauses are then ignored for as long.
const PAUSE_STORM: Nanos = Nanos::from_millis(100);
/// Weight of running time against paused time: only pauses for more than 94 of 100 ms are a storm.
const RUNNING_COUNTS: u64 = 16;

/// Names as in `ethtool -S` of mlx5. `rx_prio*_pause` counts received frames for the priority, those that end a pause
/// included; `rx_prio*_pause_duration` is the time paused, in us.
const PAUSE_NAMES: [(&str, &str); PRIORITIES] = [
    ("rx_prio0_pause", "rx_prio0_pause_duration"),
    ("rx_prio1_pause", "rx_prio1_pause_duration"),
    ("rx_prio2_pause", "rx_prio2_pause_duration"),
    ("rx_prio3_pause", "rx_prio3_pause_duration"),
    ("rx_prio4_pause", "rx_prio4_pause_duration"),
    ("rx_prio5_pause", "rx_prio5_pause_duration"),
    ("rx_prio6_pause", "rx_prio6_pause_duration"),
    ("rx_prio7_pause", "rx_prio7_pause_duration"),
];

/// Pauses of all priorities.
#[derive(Debug, Default)]
pub(super) struct ReceivedPauses([Pauses; PRIORITIES]);

/// Pauses of a priority.
#[derive(Clone, Copy, Debug, Default)]
struct Pauses {
    storm: Storm,
    frames: u64,
    /// Time paused.
    time: Nanos,
}

/// How long a priority was paused in the recent past, which shows that it is stuck.
#[derive(Clone, Copy, Debug, Default)]
struct Storm {
    /// Time of the last update.
    at: Nanos,
    until: Nanos,
    /// Time paused, less [`RUNNING_COUNTS`] times the time running since.
    stopped: Nanos,
    /// True if `until` is the limit of a storm, instead of the requested end.
    bounded: bool,
    ignored_until: Nanos,
}

impl Storm {
    /// Updates the account to `now`. True: a storm has been detected since.
    fn update(&mut self, now: Nanos) -> bool {
        let stopped = self.until.min(now).since(self.at);
        let ran = now.since(self.at.max(self.until));
        self.stopped = self.stopped + stopped - Nanos(ran.0.saturating_mul(RUNNING_COUNTS));
        self.at = now;
        let ended = self.bounded && now >= self.until;
        if ended {
            (self.bounded, self.stopped) = (false, Nanos::ZERO);
            self.ignored_until = self.until + PAUSE_STORM;
        }
        ended
    }
}

impl Pauses {
    /// Accounts for a frame that pauses the priority. Returns when the pause ends; `None`: it is ignored, because the
    /// priority was stuck.
    fn add(&mut self, now: Nanos, length: Nanos, quanta: u16, counters: &mut Counters) -> Option<Nanos> {
        self.frames += 1;
        let storm = &mut self.storm;
        counters.rx_pause_storm_warning_events += u64::from(storm.update(now));
        if quanta > 0 && now < storm.ignored_until {
            counters.rx_pause_storm_ignored += 1;
            return None;
        }
        let before = storm.until.max(now);
        let patience = PAUSE_STORM - storm.stopped;
        storm.bounded = length > patience;
        storm.until = now + length.min(patience);
        self.time = self.time + storm.until.since(before) - before.since(storm.until);
        Some(storm.until)
    }
}

impl Nic {
    /// Handles a MAC control frame. True if it affects a priority.
    #[cold]
    pub(super) fn apply_mac_control(&mut self, now: Nanos, frame: &Frame<'_>) -> bool {
        if frame.array::<6>(0) != Some(mac_control::DESTINATION) {
            return false;
        }
        let (enable, quanta) = match MacControl::parse(frame) {
            Some(MacControl::Pause { quanta }) if self.congestion.config.classes.pause => {
                self.counters.rx_global_pause += 1;
                (0xff, [quanta; PRIORITIES])
            }
            Some(MacControl::Pfc { enable, quanta }) => (enable & self.congestion.config.classes.pfc, quanta),
            _ => return false,
        };
        for priority in (0..PRIORITIES as u8).filter(|p| enable & 1 << p != 0) {
            self.pause(now, priority, quanta[usize::from(priority)]);
        }
        enable != 0
    }

    /// Stops a priority for this many quanta of the line rate.
    fn pause(&mut self, now: Nanos, priority: u8, quanta: u16) {
        let line_rate = self.congestion.config.line_rate().0;
        let length = Nanos(mac_control::quanta_nanos(quanta, line_rate) as u64);
        let pauses = &mut self.congestion.pauses.0[usize::from(priority)];
        if let Some(until) = pauses.add(now, length, quanta, &mut self.counters) {
            self.scheduler.pause(now, priority, until);
        }
    }

    /// Appends the pause counters of priorities that can be paused.
    pub fn pause_counters(&self, out: &mut Vec<(&'static str, u64)>) {
        let (classes, pauses) = (&self.congestion.config.classes, &self.congestion.pauses);
        let heeds = |p: &usize| classes.pause || classes.pfc & 1 << p != 0;
        for p in (0..PRIORITIES).filter(heeds) {
            out.push((PAUSE_NAMES[p].0, pauses.0[p].frames));
            out.push((PAUSE_NAMES[p].1, pauses.0[p].time.0 / 1_000));
        }
    }
}
