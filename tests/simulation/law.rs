//! Which failures a script permits. Without a cause in the script, no request may fail.

use roxie::congestion::Settings;
use roxie::time::Nanos;
use roxie::verbs::{EventKind, WcStatus};

use crate::script::{Action, Part, Place, Rule, Script, Service, Trouble, Way};

/// The permitted failures of one channel.
#[derive(Clone, Debug)]
pub struct Law {
    /// Outages or losses may exhaust the retries.
    pub retries_may_end: bool,
    pub rnr_retries_may_end: bool,
    /// Ends of the channel, or their NICs, are destroyed, reset or restarted.
    pub broken: bool,
    /// Regions of the ways that are deregistered.
    deregistered: Vec<(Way, Part)>,
    /// Granted keys may be invalid when they are used.
    grants: bool,
    handles_go: bool,
    /// Shared receive queues that requests name may be destroyed.
    srqs_go: bool,
    mtu_shrinks: bool,
    queues_overflow: bool,
    /// The link neither duplicates nor delays frames.
    pub keeps_order: bool,
    pub most_copies: u32,
}

impl Law {
    pub fn of(script: &Script, channel: usize) -> Law {
        let spec = &script.channels[channel];
        let ours = |host: &usize| spec.ends.contains(host);
        let here = |place: &Place| place.channel == channel;
        let weather = |rule: &Rule, like: fn(&Trouble) -> bool| match rule {
            Rule::Rate { to, trouble, .. } => ours(to) && like(trouble),
            Rule::Strike { frame, trouble } => frame.way.channel == channel && like(trouble),
        };
        let any =
            |like: fn(&Trouble) -> bool| script.weather.iter().filter(move |r| weather(r, like)).count();
        let harsh = script.has(|action| match action {
            Action::PortDown(host) | Action::LinkMtu(host, _) | Action::Move(host, _) => ours(host),
            _ => false,
        });
        // The fault rate is high enough to hit every retry.
        let stormy = script
            .weather
            .iter()
            .any(|rule| matches!(rule, Rule::Rate { to, of_10_000, trouble } if ours(to) && *of_10_000 >= 500 && *trouble != Trouble::Mark));
        let broken = script.has(|action| match action {
            Action::Restart(host) => ours(host),
            Action::Reset(place) | Action::Destroy(place) | Action::Error(place) => here(place),
            Action::Connect { channel: of, .. } => *of == channel,
            _ => false,
        });
        // A deregistered inbox affects every channel that shares its receive queue.
        let shares = |other: usize| spec.srqs.iter().any(|srq| script.channels[other].srqs.contains(srq));
        let shared_inboxes = script.actions.iter().filter_map(|timed| match timed.action {
            Action::Deregister(way, Part::Inbox)
                if way.channel < script.channels.len() && shares(way.channel) =>
            {
                Some([false, true].map(|back| (Way { channel, back }, Part::Inbox)))
            }
            _ => None,
        });
        let lost = script.actions.iter().filter_map(|timed| match timed.action {
            Action::Deregister(way, part) if way.channel == channel => Some((way, part)),
            _ => None,
        });
        // A jump of the clock is time without responses.
        let jumps = script.has(|action| matches!(action, Action::Jump(_)));
        let harms = |trouble: &Trouble| !matches!(trouble, Trouble::Double | Trouble::Mark);
        let paced = script.is_paced();
        let disturbed = jumps || paced || spec.slow > Nanos::ZERO || any(harms) > 0;
        Law {
            retries_may_end: harsh || stormy || (spec.retries < 7 && disturbed),
            rnr_retries_may_end: spec.rnr_retries < 7,
            broken: broken || (spec.slow > Nanos::ZERO && !spec.service.is_reliable()),
            deregistered: lost.chain(shared_inboxes.flatten()).collect(),
            grants: script.has(|action| match action {
                Action::FreeWindow(way) => way.channel == channel,
                // Without acknowledgements, the last use of a key is unknown.
                Action::Revoke(way) => way.channel == channel && !spec.service.is_reliable(),
                _ => false,
            }),
            handles_go: script.has(|action| matches!(action, Action::DestroyHandle(of) if *of == channel)),
            srqs_go: spec.service == Service::Xrc
                && script
                    .has(|action| matches!(action, Action::DestroySrq(of) if spec.srqs.contains(&of.srq))),
            mtu_shrinks: script.has(|action| matches!(action, Action::LinkMtu(host, _) if ours(host))),
            queues_overflow: spec.cq < 512,
            keeps_order: any(|t| matches!(t, Trouble::Double | Trouble::Delay(_))) == 0,
            most_copies: 1 << any(|trouble| *trouble == Trouble::Double).min(8),
        }
    }

    /// The lowest rate that the script may impose on a QP, in bits per second, or `None` if it paces none.
    fn lowest(script: &Script) -> Option<f64> {
        let rates = script.actions.iter().filter_map(|timed| match &timed.action {
            Action::Limit(_, limit) if limit.kbps > 0 => Some(f64::from(limit.kbps) * 1e3),
            Action::Brake(_, brakes) => match brakes.config().expect("read before").control {
                Settings::Off => None,
                Settings::Fixed(rate) => Some(rate.0),
                Settings::Dcqcn(_) | Settings::Swift(_) => Some(1e6),
            },
            _ => None,
        });
        rates.reduce(f64::min)
    }

    /// Upper bound of the time that the script's work takes at the lowest rate, with retransmissions.
    pub fn longest(script: &Script) -> Nanos {
        let Some(rate) = Law::lowest(script) else { return Nanos::ZERO };
        let bits = Law::packets(script) as f64 * (4096.0 + 100.0) * 8.0;
        Nanos((8.0 * bits / rate * 1e9) as u64)
    }

    /// Number of packets of the script's work. A paced packet takes more steps.
    fn packets(script: &Script) -> u64 {
        let packets = script.actions.iter().filter_map(|timed| match &timed.action {
            Action::Post(way, op) => {
                let mtu = script.channels.get(way.channel).map_or(256, |channel| channel.mtu.bytes() as u32);
                Some(u64::from(op.length.div_ceil(mtu).max(1)))
            }
            _ => None,
        });
        packets.sum()
    }

    /// Number of additional steps for paced packets.
    pub fn steps(script: &Script) -> u32 {
        if Law::lowest(script).is_none() { 0 } else { (Law::packets(script) as u32).saturating_mul(400) }
    }

    fn targets_go(&self) -> bool {
        self.deregistered.iter().any(|(_, part)| *part == Part::Target)
    }

    fn is_deregistered(&self, way: Way, part: Part) -> bool {
        self.deregistered.contains(&(way, part))
    }

    /// True if every request must succeed.
    pub fn is_strict(&self) -> bool {
        !self.broken
            && !self.retries_may_end
            && !self.rnr_retries_may_end
            && self.deregistered.is_empty()
            && !self.grants
            && !self.handles_go
            && !self.srqs_go
            && !self.mtu_shrinks
            && !self.queues_overflow
    }

    /// True if the first failure of a send queue may have this status. `peer_gone`: the other end has failed before, or
    /// does not exist.
    pub fn send_may_fail(&self, way: Way, status: WcStatus, peer_gone: bool) -> bool {
        match status {
            // A duplicate READ of a deregistered region is dropped, so the retries run out.
            WcStatus::RetryExc => {
                self.retries_may_end
                    || self.broken
                    || peer_gone
                    || self.is_deregistered(way, Part::Target)
                    || self.grants
            }
            WcStatus::RnrRetryExc => self.rnr_retries_may_end,
            WcStatus::RemAccess => self.is_deregistered(way, Part::Target) || self.grants,
            WcStatus::RemInvReq => self.srqs_go,
            WcStatus::RemOp => self.is_deregistered(way, Part::Inbox),
            WcStatus::LocProt => {
                self.is_deregistered(way, Part::Source) || self.is_deregistered(way, Part::Landing)
            }
            WcStatus::LocQpOp => self.handles_go || self.grants || self.targets_go(),
            WcStatus::MwBind => self.grants || self.targets_go(),
            WcStatus::LocLen => self.mtu_shrinks,
            _ => false,
        }
    }

    /// True if the first failure of a receive queue may have this status.
    pub fn receive_may_fail(&self, way: Way, status: WcStatus) -> bool {
        match status {
            WcStatus::LocProt => self.is_deregistered(way, Part::Inbox),
            WcStatus::LocAccess => self.is_deregistered(way, Part::Target) || self.grants,
            // A SEND with invalidate of an invalid key.
            WcStatus::RemInvReq => self.is_deregistered(way, Part::Target) || self.grants,
            _ => false,
        }
    }

    /// True if the receiving end of `way` may report this event.
    pub fn may_report(&self, way: Way, kind: EventKind) -> bool {
        match kind {
            EventKind::QpAccessError => self.is_deregistered(way, Part::Target) || self.grants,
            EventKind::QpFatal => {
                self.mtu_shrinks || self.queues_overflow || self.is_deregistered(way, Part::Inbox)
            }
            EventKind::QpRequestError => self.srqs_go,
            EventKind::CqError => self.queues_overflow,
            EventKind::SqDrained | EventKind::CommunicationEstablished | EventKind::LastWqeReached => true,
            _ => false,
        }
    }
}
