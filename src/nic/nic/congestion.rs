//! Congestion control and traffic classes in the NIC: notifications, ECN marking and priorities.
//!
//! The notification point answers a marked packet only if it is from the QP's peer and plausible at this point of the
//! sequence. An attacker that cannot see the QP's packets must guess the QPN and the PSN.

use super::classes::{EcnPolicy, Trust};
use super::congestion_config::CongestionConfig;
use super::neighbour_pause::NeighbourPause;
use super::pauses_received::ReceivedPauses;
use super::scheduler::PRIORITIES;
use super::{Nic, QpEntry};
use crate::congestion::{Knob, Knobs, Moderation, Settings};
use crate::transport::{Verdict, door};
use crate::verbs::{AddressVector, QpIndex, QpState};
use roxie_base::time::Nanos;
use roxie_wire::{Operation, Packet};

/// How far ahead of the expected PSN a marked packet may be and still be answered: the most packets that a peer has in
/// flight.
const PLAUSIBLY_AHEAD: i32 = 1 << 16;
/// The NIC's state of congestion control.
#[derive(Debug)]
pub(super) struct Congestion {
    pub(super) config: CongestionConfig,
    ecn: EcnPolicy,
    /// True if the port carries 802.1Q tags, which sockets do not.
    pub(super) carries_tags: bool,
    moderation: Moderation,
    /// DSCP and priority of notifications.
    pub(super) notification: (u8, u8),
    /// The priorities that the neighbour has paused.
    pub(super) pauses: ReceivedPauses,
    /// The pause state that was last sent to the neighbour.
    pub(super) neighbour: NeighbourPause,
    /// A QP's congestion control measures delay, or did.
    pub(super) measures_delay: bool,
}

impl Congestion {
    pub(super) fn new(secret: u64) -> Congestion {
        let mut congestion = Congestion {
            config: CongestionConfig::default(),
            ecn: EcnPolicy::Off,
            carries_tags: false,
            moderation: Moderation::new(&Knobs::default(), secret),
            notification: (0, 0),
            pauses: ReceivedPauses::default(),
            neighbour: NeighbourPause::default(),
            measures_delay: false,
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

    /// Returns the 802.1Q tag of frames along a path, if they have one.
    pub(super) fn tag(&self, av: &AddressVector) -> Option<u16> {
        self.tag_with(av, self.config.classes.priority(av))
    }

    /// Returns the 802.1Q tag of frames of this priority along a path, if they have one: the VLAN of the source GID,
    /// with the priority in the upper three bits. Frames of no VLAN have one if the traffic classes say so.
    pub(super) fn tag_with(&self, av: &AddressVector, priority: u8) -> Option<u16> {
        let vlan = av.encapsulation.vlan;
        let is_tagged = vlan != 0 || self.carries_tags && self.config.classes.tagged;
        is_tagged.then(|| u16::from(priority) << 13 | vlan)
    }

    /// True if data along this path is ECN-capable by configuration, and the application has not set the ECN bits.
    fn marks(&self, av: &AddressVector) -> bool {
        let is_marked = match self.ecn {
            EcnPolicy::Off => false,
            EcnPolicy::On => true,
            EcnPolicy::Dscp(set) => set & 1 << (av.traffic_class >> 2) != 0,
        };
        is_marked && av.traffic_class & 3 == 0
    }
}

impl Nic {
    /// Updates a QP's priority and what depends on it, after its path or the traffic classes have changed.
    pub(super) fn reclassify(&mut self, index: QpIndex) {
        let places = self.qps.places();
        let Some(entry) = self.qps.get_mut(index.0) else { return };
        let Some(av) = entry.qp.attributes().av else { return };
        let is_capable = self.config.profile.is_some_and(|profile| profile.packets.is_ecn_capable);
        entry.capable = entry.qp.qp_type.is_connected() && self.congestion.marks(&av) && !is_capable;
        entry.qp.set_tag(self.congestion.tag(&av));
        let priority = self.congestion.config.classes.priority(&av);
        self.scheduler.set_priority(&mut entry.schedule, priority, places);
    }

    /// True if a QP's congestion control measures delay: the port should timestamp received frames.
    pub fn wants_arrivals(&self) -> bool {
        self.congestion.measures_delay
    }

    /// Returns the congestion configuration.
    pub fn congestion(&self) -> &CongestionConfig {
        &self.congestion.config
    }

    /// Applies a congestion configuration to all QPs. A QP keeps its rate if its reaction point stays of the same kind.
    pub(super) fn set_congestion(&mut self, now: Nanos, mut config: CongestionConfig) {
        config.line_rate = config.line_rate.or(self.congestion.config.line_rate);
        self.scheduler.set_services(config.classes.services);
        for priority in 0..PRIORITIES as u8 {
            if !config.classes.pause && config.classes.pfc & 1 << priority == 0 {
                self.scheduler.pause(now, priority, now);
            }
        }
        self.congestion.set(config);
        self.handles.set_tags(|av| self.congestion.tag(av));
        if self.congestion.config.classes.trust == Trust::Dscp {
            let places = self.qps.places();
            (0..PRIORITIES as u8).for_each(|priority| self.scheduler.reserve(priority, places));
        }
        for place in 0..self.qps.places() {
            let index = QpIndex(self.qps.name_at(place));
            self.reclassify(index);
            self.apply_control(now, index);
        }
    }

    /// Applies the congestion configuration to a QP.
    pub(super) fn apply_control(&mut self, now: Nanos, index: QpIndex) {
        let config = &self.congestion.config;
        let Some(entry) = self.qps.get_mut(index.0) else { return };
        let settings = if entry.qp.qp_type.is_connected() { &config.control } else { &Settings::Off };
        let settings = entry.own_control.as_deref().unwrap_or(settings);
        entry.qp.set_control(now, settings, config.line_rate(), entry.share.as_ref());
        self.congestion.measures_delay |= entry.qp.pacing().is_delay_based();
        if entry.qp.pacing().is_on() {
            // The wheel needs room for the QP; a held QP may have another release time.
            self.scheduler.expect_holds(&entry.schedule);
        }
        self.scheduler.mark_changed(&mut entry.schedule);
    }

    /// True if the NIC answers this verdict with a notification, though the packet has no mark.
    pub(super) fn answers_gap(&self, verdict: &Verdict) -> bool {
        matches!(verdict, Verdict::OutOfSequence { nak: true, .. })
            && self.config.profile.is_some_and(|profile| profile.cnp.answers_gaps)
    }

    /// Answers a marked packet, or one behind a gap if the profile says so, with a notification, after its QP has
    /// processed it.
    #[cold]
    pub(super) fn answer_mark(&mut self, now: Nanos, index: QpIndex, packet: &Packet, verdict: &Verdict) {
        let Some(entry) = self.qps.get_mut(index.0) else { return };
        let Some(av) = entry.qp.attributes().av else { return };
        //= IBTA A17.9.3: cnp-answers-a-mark
        if entry.notification_due {
            return;
        }
        let (warrants, last) = (warrants_notification(entry, packet, verdict), &mut entry.last_notification);
        //= IBTA A17.9.3: cnp-interval
        let admit = || self.congestion.moderation.admit(now, last, &av.dgid.0);
        if door::notifies(&entry.qp, packet, warrants, admit) {
            let is_admitted = self.congestion.moderation.has_admitted(now, entry.last_notification);
            invariant!(is_admitted, "a notification leaves before the interval is over");
            entry.notification_due = true;
            self.scheduler.make_urgent(&mut entry.schedule);
        }
    }
}

/// True if a packet is from the QP's peer and carries data. Acknowledgements and notifications do not cause congestion,
/// and are not answered.
fn warrants_notification(entry: &QpEntry, packet: &Packet, verdict: &Verdict) -> bool {
    let operation = packet.info().operation;
    let speaks = !matches!(
        operation,
        Operation::Acknowledge
            | Operation::AtomicAcknowledge
            | Operation::SelectiveAcknowledge
            | Operation::Cnp
    );
    let is_plausible = match verdict {
        Verdict::Executed | Verdict::Acknowledged | Verdict::NotReady | Verdict::NoReceive => true,
        // Responses to outstanding requests.
        Verdict::Stale | Verdict::GoBack(_) | Verdict::Selective { .. } | Verdict::Early { .. } => true,
        Verdict::OutOfSequence { expected, .. } | Verdict::Incomplete { expected } => {
            packet.bth.psn.distance_from(*expected) < PLAUSIBLY_AHEAD
        }
        _ => false,
    };
    let answers = matches!(entry.qp.state(), QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe);
    speaks && is_plausible && answers && entry.qp.qp_type.is_connected()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::Gid;

    #[test]
    fn data_is_marked_by_dscp_unless_already_marked() {
        let mut congestion = Congestion::new(1);
        congestion.ecn = EcnPolicy::Dscp(1 << 26 | 1);
        let marked = |traffic_class: u8| {
            let path = AddressVector::new(Gid([0; 16]), Gid([0; 16]), [0; 6], [0; 6]);
            congestion.marks(&AddressVector { traffic_class, ..path })
        };
        let classes: Vec<u8> = (0..=255).filter(|class| marked(*class)).collect();
        assert_eq!(classes, [0, 26 << 2]);
    }
}
