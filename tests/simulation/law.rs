//! Failures that a script permits. Other failures are errors of the run.

use roxie::congestion::Settings;
use roxie::time::Nanos;
use roxie::verbs::{EventKind, WcStatus};

use crate::script::{Action, Part, Place, Rule, Script, Service, Trouble, Way};

/// Permitted failures of one channel.
#[derive(Clone, Debug)]
pub struct Law {
    /// Outages or losses may exceed the retries.
    pub retries_may_end: bool,
    pub rnr_retries_may_end: bool,
    /// Ends of the channel are destroyed, reset, or connected again, or their NICs are restarted.
    pub broken: bool,
    /// Regions that are deregistered, by direction.
    gone: Vec<(Way, Part)>,
    /// Granted keys may be revoked before they are used.
    grants: bool,
    handles_go: bool,
    /// Shared receive queues may be destroyed before requests that name them arrive.
    srqs_go: bool,
    mtu_shrinks: bool,
    queues_overflow: bool,
    /// Frames are not reordered.
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
        // Losses may be so frequent that all retries fail.
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
        // Deregistered receives affect all channels that share them, not only the named one.
        let shares = |other: usize| spec.srqs.iter().any(|srq| script.channels[other].srqs.contains(srq));
        let shared_inboxes = script.actions.iter().filter_map(|timed| match timed.action {
            Action::Deregister(way, Part::Inbox)
                if way.channel < script.channels.len() && shares(way.channel) =>
            {
                Some([false, true].map(|back| (Way { channel, back }, Part::Inbox)))
            }
            _ => None,
        });
        let gone = script.actions.iter().filter_map(|timed| match timed.action {
            Action::Deregister(way, part) if way.channel == channel => Some((way, part)),
            _ => None,
        });
        // While time jumps, no peer responds.
        let jumps = script.has(|action| matches!(action, Action::Jump(_)));
        let harms = |trouble: &Trouble| !matches!(trouble, Trouble::Double | Trouble::Mark);
        let paced = script.has(|action| matches!(action, Action::Brake(..) | Action::Limit(..)));
        let disturbed = jumps || paced || spec.slow > Nanos::ZERO || any(harms) > 0;
        Law {
            retries_may_end: harsh || stormy || (spec.retries < 7 && disturbed),
            rnr_retries_may_end: spec.rnr_retries < 7,
            broken: broken || (spec.slow > Nanos::ZERO && !spec.service.is_reliable()),
            gone: gone.chain(shared_inboxes.flatten()).collect(),
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

    /// Lowest rate that the script may set for a queue pair, in bits per second; `None` without rate limits.
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

    /// Time that the script's work takes at the lowest rate, with retransmissions.
    pub fn longest(script: &Script) -> Nanos {
        let Some(rate) = Law::lowest(script) else { return Nanos::ZERO };
        let bits = Law::packets(script) as f64 * (4096.0 + 100.0) * 8.0;
        Nanos((8.0 * bits / rate * 1e9) as u64)
    }

    /// Packets of the script's work: pacing needs more steps for each.
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

    /// Additional steps due to pacing.
    pub fn steps(script: &Script) -> u32 {
        if Law::lowest(script).is_none() { 0 } else { (Law::packets(script) as u32).saturating_mul(400) }
    }

    fn targets_go(&self) -> bool {
        self.gone.iter().any(|(_, part)| *part == Part::Target)
    }

    fn goes(&self, way: Way, part: Part) -> bool {
        self.gone.contains(&(way, part))
    }

    /// True if all work requests must succeed.
    pub fn is_strict(&self) -> bool {
        !self.broken
            && !self.retries_may_end
            && !self.rnr_retries_may_end
            && self.gone.is_empty()
            && !self.grants
            && !self.handles_go
            && !self.srqs_go
            && !self.mtu_shrinks
            && !self.queues_overflow
    }

    /// True if the first failing send of a QP may have this status. `peer_gone`: the other end has failed or does not exist.
    pub fn send_may_fail(&self, way: Way, status: WcStatus, peer_gone: bool) -> bool {
        match status {
            // If the response of a READ is lost and its region is gone, the repeated request is dropped.
            WcStatus::RetryExc => {
                self.retries_may_end
                    || self.broken
                    || peer_gone
                    || self.goes(way, Part::Target)
                    || self.grants
            }
            WcStatus::RnrRetryExc => self.rnr_retries_may_end,
            WcStatus::RemAccess => self.goes(way, Part::Target) || self.grants,
            WcStatus::RemInvReq => self.srqs_go,
            WcStatus::RemOp => self.goes(way, Part::Inbox),
            WcStatus::LocProt => self.goes(way, Part::Source) || self.goes(way, Part::Landing),
            WcStatus::LocQpOp => self.handles_go || self.grants || self.targets_go(),
            WcStatus::MwBind => self.grants || self.targets_go(),
            WcStatus::LocLen => self.mtu_shrinks,
            _ => false,
        }
    }

    /// True if the first failing receive may have this status.
    pub fn receive_may_fail(&self, way: Way, status: WcStatus) -> bool {
        match status {
            WcStatus::LocProt => self.goes(way, Part::Inbox),
            WcStatus::LocAccess => self.goes(way, Part::Target) || self.grants,
            // Invalidation of a key that no longer exists.
            WcStatus::RemInvReq => self.goes(way, Part::Target) || self.grants,
            _ => false,
        }
    }

    /// True if an end that receives from `way` may report this event.
    pub fn may_report(&self, way: Way, kind: EventKind) -> bool {
        match kind {
            EventKind::QpAccessError => self.goes(way, Part::Target) || self.grants,
            EventKind::QpFatal => self.mtu_shrinks || self.queues_overflow || self.goes(way, Part::Inbox),
            EventKind::QpRequestError => self.srqs_go,
            EventKind::CqError => self.queues_overflow,
            EventKind::SqDrained | EventKind::CommunicationEstablished | EventKind::LastWqeReached => true,
            _ => false,
        }
    }
}
