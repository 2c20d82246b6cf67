//! Congestion control and traffic classes, as the NIC has them: who is notified, which data may be marked, which priority a packet
//! has, and what a PAUSE stops.
//!
//! The notification point answers a marked packet only if its QP takes it for its peer's, and it is one that may come now: who
//! cannot see what a QP sends has to guess its number and the PSN.

use super::arbiter::PRIORITIES;
use super::classes::{EcnPolicy, TrafficClasses, Trust};
use super::{Nic, QpEntry};
use crate::congestion::{Knob, Knobs, Moderation, Rate, Settings};
use crate::frame::Frame;
use crate::time::Nanos;
use crate::transport::{PlantedBug, Verdict};
use crate::verbs::{AddressVector, QpIndex, QpState};
use crate::wire::{MacControl, Operation, Packet, mac_control};

/// How far ahead of its turn a marked packet may be and still be answered: what a peer has under way at most, in packets.
const PLAUSIBLY_AHEAD: i32 = 1 << 16;
/// A priority that has been stopped for so long is stuck, not congested, and its pauses mean nothing for as long.
const PAUSE_STORM: Nanos = Nanos::from_millis(100);
/// Time in which it runs counts against time in which it is stopped so many times: only what stops it for more than 94 of 100 is a storm.
const RUNNING_COUNTS: u64 = 16;

/// How a NIC reacts to congestion, notifies of it, and tells traffic apart.
#[derive(Clone, Debug, PartialEq)]
pub struct CongestionConfig {
    /// The reaction point of its connected QPs; DCQCN's has the knobs of the notification point as well.
    pub control: Settings,
    /// Which data is ECN-capable; `None`: all that the reaction point is for, if that goes by notifications.
    pub ecn: Option<EcnPolicy>,
    /// Which priority a packet has, and what each is worth at the arbiter.
    pub classes: TrafficClasses,
    /// What the port carries: where rates begin, and what a quantum of PAUSE lasts by. `None`: 10 Gb/s, unless the interface knows.
    pub line_rate: Option<Rate>,
}

impl Default for CongestionConfig {
    /// Nothing is paced or marked; who sends too fast is told.
    fn default() -> CongestionConfig {
        CongestionConfig {
            control: Settings::Off,
            ecn: None,
            classes: TrafficClasses::default(),
            line_rate: None,
        }
    }
}

impl CongestionConfig {
    /// What the port carries.
    pub fn line_rate(&self) -> Rate {
        self.line_rate.unwrap_or(Rate::from_gbps(10.0))
    }

    /// Which data is ECN-capable.
    pub fn ecn_policy(&self) -> EcnPolicy {
        let by_control =
            if matches!(self.control, Settings::Dcqcn(_)) { EcnPolicy::On } else { EcnPolicy::Off };
        self.ecn.unwrap_or(by_control)
    }
}

/// What of congestion control concerns the NIC as a whole.
#[derive(Debug)]
pub(super) struct Congestion {
    pub(super) config: CongestionConfig,
    ecn: EcnPolicy,
    /// Its port carries tags of 802.1Q: sockets do not.
    pub(super) carries_tags: bool,
    moderation: Moderation,
    /// DSCP and priority of notifications.
    pub(super) notification: (u8, u8),
    /// By priority: how long it has been stopped, and until when its pauses are ignored.
    storms: [Storm; PRIORITIES],
    /// By priority: frames that stopped it, and for how long in all.
    pauses: [PauseCount; PRIORITIES],
}

#[derive(Clone, Copy, Debug, Default)]
struct PauseCount {
    frames: u64,
    time: Nanos,
}

/// `rx_prio*_pause` of mlx5's `ethtool -S`: frames for it, those that let it go on among them; and for how long it was stopped, in us.
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

/// How long a priority has been stopped.
#[derive(Clone, Copy, Debug, Default)]
struct Storm {
    /// When this was looked at last.
    at: Nanos,
    until: Nanos,
    /// In all, less what it has run since, many times.
    stopped: Nanos,
    /// `until` is where patience ends, and not what was asked for.
    bounded: bool,
    ignored_until: Nanos,
}

impl Storm {
    /// Brings the account up to `now`. True: patience has ended since.
    fn look(&mut self, now: Nanos) -> bool {
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

impl Congestion {
    pub(super) fn new(secret: u64) -> Congestion {
        let mut congestion = Congestion {
            config: CongestionConfig::default(),
            ecn: EcnPolicy::Off,
            carries_tags: false,
            moderation: Moderation::new(&Knobs::default(), secret),
            notification: (0, 0),
            storms: [Storm::default(); PRIORITIES],
            pauses: [PauseCount::default(); PRIORITIES],
        };
        congestion.set(CongestionConfig::default());
        congestion
    }

    fn set(&mut self, config: CongestionConfig) {
        let default = Knobs::default();
        let knobs = config.control.knobs().unwrap_or(&default);
        self.moderation.set(knobs);
        let number = |knob| knobs.value(knob) as u8;
        self.notification = (number(Knob::CnpDscp), number(Knob::CnpPriority));
        self.ecn = config.ecn_policy();
        self.config = config;
    }

    /// The tag of frames along a path, if they carry one.
    pub(super) fn tag(&self, av: &AddressVector) -> Option<u16> {
        self.tag_of(self.config.classes.priority(av))
    }

    /// The tag of frames of this priority, if they carry one: of network 0, with the priority in the three highest bits.
    pub(super) fn tag_of(&self, priority: u8) -> Option<u16> {
        (self.carries_tags && self.config.classes.tagged).then(|| u16::from(priority) << 13)
    }

    /// True if data along this path is to be sent as ECN-capable, and the application has not said so itself.
    fn marks(&self, av: &AddressVector) -> bool {
        let asked = match self.ecn {
            EcnPolicy::Off => false,
            EcnPolicy::On => true,
            EcnPolicy::Dscp(set) => set & 1 << (av.traffic_class >> 2) != 0,
        };
        asked && av.traffic_class & 3 == 0
    }
}

impl Nic {
    /// Appends what was counted of pauses: of the priorities that heed them.
    pub fn pause_counters(&self, out: &mut Vec<(&'static str, u64)>) {
        let Congestion { config: CongestionConfig { classes, .. }, pauses, .. } = &self.congestion;
        let heeds = |p: &usize| classes.pause || classes.pfc & 1 << p != 0;
        for p in (0..PRIORITIES).filter(heeds) {
            out.push((PAUSE_NAMES[p].0, pauses[p].frames));
            out.push((PAUSE_NAMES[p].1, pauses[p].time.0 / 1_000));
        }
    }

    /// A QP's path, or what paths mean, has changed: its priority and what follows from it.
    pub(super) fn reclassify(&mut self, index: QpIndex) {
        let places = self.qps.places() as usize;
        let Some(entry) = self.qps.get_mut(index.0) else { return };
        let (connected, av) = (entry.qp.qp_type.is_connected(), entry.qp.attributes().av);
        let before = entry.priority;
        if let Some(av) = av {
            entry.priority = self.congestion.config.classes.priority(&av);
            entry.capable = connected && self.congestion.marks(&av);
            entry.qp.set_tag(self.congestion.tag(&av));
        }
        let after = entry.priority;
        if before != after {
            self.arbiter.prepare(after, places);
            if entry.ready {
                self.arbiter.remove_waiting(before, index);
                self.arbiter.push(after, index);
            }
        }
    }

    /// True if a QP goes by delay: the port should say when frames arrive.
    pub fn wants_arrivals(&self) -> bool {
        self.wants_arrivals
    }

    /// How it reacts to congestion, and its traffic classes.
    pub fn congestion(&self) -> &CongestionConfig {
        &self.congestion.config
    }

    /// Has all QPs go by other rules from now on. A running reaction point keeps its rate, if it is of the same kind.
    pub(super) fn set_congestion(&mut self, now: Nanos, mut config: CongestionConfig) {
        config.line_rate = config.line_rate.or(self.congestion.config.line_rate);
        self.arbiter.set_services(config.classes.services);
        for priority in 0..PRIORITIES as u8 {
            if !config.classes.pause && config.classes.pfc & 1 << priority == 0 {
                self.arbiter.pause(now, priority, now);
            }
        }
        self.congestion.set(config);
        self.handles.set_tags(|av| self.congestion.tag(av));
        if self.congestion.config.classes.trust == Trust::Dscp {
            let places = self.qps.places() as usize;
            (0..PRIORITIES as u8).for_each(|priority| self.arbiter.reserve(priority, places));
        }
        for place in 0..self.qps.places() {
            let index = QpIndex(self.qps.name_at(place));
            self.reclassify(index);
            self.control_anew(now, index);
        }
    }

    /// A QP's reaction point is to be as the rules say.
    pub(super) fn control_anew(&mut self, now: Nanos, index: QpIndex) {
        let config = &self.congestion.config;
        let Some(entry) = self.qps.get_mut(index.0) else { return };
        let settings = if entry.qp.qp_type.is_connected() { &config.control } else { &Settings::Off };
        let settings = entry.own_control.as_ref().unwrap_or(settings);
        entry.qp.set_control(now, settings, config.line_rate(), entry.share.as_ref());
        self.wants_arrivals |= entry.qp.goes_by_delay();
        if entry.qp.is_paced() {
            // Room for its release; and if it is one that is held, its time may be another.
            self.releases.grow(index.place() + 1);
        }
        self.touch(index);
    }

    /// A switch marked the packet that is taken in.
    #[cold]
    pub(super) fn note_marked(&mut self) {
        self.counters.np_ecn_marked_roce_packets += 1;
        self.marked = true;
    }

    /// A marked packet came to a QP, which judged it.
    #[cold]
    pub(super) fn answer_mark(&mut self, now: Nanos, index: QpIndex, packet: &Packet, verdict: &Verdict) {
        self.marked = false;
        let Some(entry) = self.qps.get_mut(index.0) else { return };
        let Some(av) = entry.qp.attributes().av else { return };
        //= IBTA A17.9.3: cnp-answers-a-mark
        if entry.notification_due || !owes_notification(entry, packet, verdict) {
            return;
        }
        if PlantedBug::NotifiesNobody.is() {
            return;
        }
        //= IBTA A17.9.3: cnp-interval
        let may_leave = self.congestion.moderation.admit(now, &mut entry.last_notification, &av.dgid.0);
        if may_leave || PlantedBug::IntervalIgnored.is() {
            entry.notification_due = true;
            if !std::mem::replace(&mut entry.urgent, true) {
                self.arbiter.push_urgent(index);
            }
        }
    }

    /// A MAC control frame: what it stops. True if it stops or starts something.
    #[cold]
    pub(super) fn heed_mac_control(&mut self, now: Nanos, frame: &Frame<'_>) -> bool {
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

    fn pause(&mut self, now: Nanos, priority: u8, quanta: u16) {
        let rate = self.congestion.config.line_rate();
        let length = Nanos(mac_control::quanta_nanos(quanta, rate.0) as u64);
        let count = &mut self.congestion.pauses[usize::from(priority)];
        count.frames += 1;
        let storm = &mut self.congestion.storms[usize::from(priority)];
        self.counters.rx_pause_storm_warning_events += u64::from(storm.look(now));
        if quanta > 0 && now < storm.ignored_until {
            self.counters.rx_pause_storm_ignored += 1;
            return;
        }
        let before = storm.until.max(now);
        let patience = PAUSE_STORM - storm.stopped;
        storm.bounded = length > patience;
        storm.until = now + length.min(patience);
        count.time = count.time + storm.until.since(before) - before.since(storm.until);
        self.arbiter.pause(now, priority, storm.until);
    }
}

/// True for a packet that its QP takes for its peer's, and that says something: acknowledgements and notifications do not slow
/// down by being fewer.
fn owes_notification(entry: &QpEntry, packet: &Packet, verdict: &Verdict) -> bool {
    let operation = packet.info().operation;
    let speaks = !matches!(operation, Operation::Acknowledge | Operation::AtomicAcknowledge | Operation::Cnp);
    let may_come = match verdict {
        Verdict::Executed | Verdict::Acknowledged | Verdict::NotReady | Verdict::NoReceive => true,
        // Responses within what was asked for.
        Verdict::Stale | Verdict::GoBack(_) => true,
        Verdict::OutOfSequence { expected, .. } | Verdict::Incomplete { expected } => {
            packet.bth.psn.distance_from(*expected) < PLAUSIBLY_AHEAD
        }
        _ => PlantedBug::NotifiesOfStrangers.is(),
    };
    let answers = matches!(entry.qp.state(), QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe);
    speaks && may_come && answers && entry.qp.qp_type.is_connected()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::Gid;

    #[test]
    fn data_is_marked_by_its_dscp_and_never_against_the_applications_own_mark() {
        let mut congestion = Congestion::new(1);
        congestion.ecn = EcnPolicy::Dscp(1 << 26 | 1);
        let marked = |traffic_class: u8| {
            congestion.marks(&AddressVector {
                sgid: Gid([0; 16]),
                dgid: Gid([0; 16]),
                smac: [0; 6],
                dmac: [0; 6],
                traffic_class,
                flow_label: 0,
                hop_limit: 64,
                sl: 0,
                static_rate: 0,
            })
        };
        let classes: Vec<u8> = (0..=255).filter(|class| marked(*class)).collect();
        assert_eq!(classes, [0, 26 << 2]);
    }
}
