//! Shrinks a failing script to the parts that the failure needs.
//!
//! First, the rates of the weather are replaced by the faults of single frames. Then lines are removed, many at a time
//! and later fewer, and the rest is set to default values, as long as the script still fails.

use roxie::time::Nanos;
use roxie::verbs::Mtu;
use roxie_conform_bench::fuzz::Tries;

use crate::script::{Action, Channel, Hosts, Op, Rule, Script, Service, Srq, Timed, Way};

/// The state of shrinking.
pub struct Shrinker<'a> {
    tries: Tries<'a, Script>,
}

impl<'a> Shrinker<'a> {
    pub fn new(runs: u32, fails: &'a mut dyn FnMut(&Script) -> bool) -> Shrinker<'a> {
        Shrinker { tries: Tries::new(runs, fails) }
    }

    /// Returns the smallest failing script found.
    pub fn shrink(&mut self, script: &Script, strikes: &[Rule]) -> Script {
        let mut script = script.clone();
        let mut explicit = script.clone();
        explicit.weather = strikes.to_vec();
        self.tries.attempt(&mut script, explicit);
        loop {
            let before = script.to_string().len();
            self.without_channels(&mut script);
            self.without_srqs(&mut script);
            self.tries.without(&mut script, |s| &mut s.weather);
            self.tries.without(&mut script, |s| &mut s.actions);
            self.without_lives(&mut script);
            self.plainer_hosts(&mut script);
            self.plainer_channels(&mut script);
            self.plainer_actions(&mut script);
            if script.to_string().len() == before || self.tries.are_spent() {
                self.without_idle_hosts(&mut script);
                return script;
            }
        }
    }

    fn without_channels(&mut self, script: &mut Script) {
        let mut number = script.channels.len();
        while number > 0 && script.channels.len() > 1 {
            number -= 1;
            let smaller = without_channel(script, number);
            self.tries.attempt(script, smaller);
        }
    }

    /// Removes shared receive queues, and sets the rest to default values.
    fn without_srqs(&mut self, script: &mut Script) {
        let mut number = script.srqs.len();
        while number > 0 {
            number -= 1;
            let smaller = without_srq(script, number);
            self.tries.attempt(script, smaller);
        }
        let defaults = Srq::default();
        let plain: [fn(&mut Srq, &Srq); 3] =
            [|s, u| s.size = u.size, |s, u| s.ahead = u.ahead, |s, u| s.dawdles = u.dawdles];
        for number in 0..script.srqs.len() {
            for make in plain {
                let mut smaller = script.clone();
                make(&mut smaller.srqs[number], &defaults);
                self.tries.attempt(script, smaller);
            }
        }
    }

    fn plainer_hosts(&mut self, script: &mut Script) {
        let defaults = Hosts::default();
        let plain: [fn(&mut Hosts, &Hosts); 7] = [
            |h, u| h.link_mtu = u.link_mtu,
            |h, u| h.ipv6 = u.ipv6,
            |h, u| h.split = u.split,
            |h, u| h.window = u.window,
            |h, u| h.ack_coalesce = u.ack_coalesce,
            |h, u| h.slots = u.slots,
            |h, u| h.ack_requests = u.ack_requests,
        ];
        for make in plain {
            let mut smaller = script.clone();
            make(&mut smaller.hosts, &defaults);
            self.tries.attempt(script, smaller);
        }
    }

    fn plainer_channels(&mut self, script: &mut Script) {
        let defaults = Channel::default();
        let plain: [fn(&mut Channel, &Channel); 15] = [
            |c, _| c.mtu = Mtu::Mtu256,
            |c, u| c.psns = u.psns,
            |c, u| c.rd_atomic = u.rd_atomic,
            |c, u| c.selective = u.selective,
            |c, u| c.depth = u.depth,
            |c, u| c.ahead = u.ahead,
            |c, u| c.dawdles = u.dawdles,
            |c, u| c.timeout = u.timeout,
            |c, u| (c.retries, c.rnr_retries) = (u.retries, u.rnr_retries),
            |c, u| c.rnr_timer = u.rnr_timer,
            |c, u| c.cq = u.cq,
            |c, u| c.sig_all = u.sig_all,
            |c, u| c.slow = u.slow,
            |c, u| c.events = u.events,
            |c, u| c.sl = u.sl,
        ];
        for number in 0..script.channels.len() {
            for make in plain {
                let mut smaller = script.clone();
                make(&mut smaller.channels[number], &defaults);
                self.tries.attempt(script, smaller);
            }
            while script.channels[number].ends.len() > 2 && script.channels[number].service == Service::Group
            {
                let mut smaller = script.clone();
                smaller.channels[number].ends.pop();
                if !self.tries.attempt(script, smaller) {
                    break;
                }
            }
        }
    }

    fn plainer_actions(&mut self, script: &mut Script) {
        let plain: [fn(&mut Op); 7] = [
            |op| op.length = op.length.min(8),
            |op| op.length = op.length.min(300),
            |op| op.pieces = 1,
            |op| (op.fence, op.solicited, op.granted) = (false, false, false),
            |op| op.inline = false,
            |op| op.unsignaled = false,
            |op| (op.imm, op.odd, op.queue) = (0, false, 0),
        ];
        for at in 0..script.actions.len() {
            let mut smaller = script.clone();
            smaller.actions[at].at = Nanos::ZERO;
            smaller.actions.sort_by_key(|timed| timed.at);
            self.tries.attempt(script, smaller);
        }
        for at in 0..script.actions.len() {
            for make in plain {
                let mut smaller = script.clone();
                let Action::Post(way, op) = &mut smaller.actions[at].action else { break };
                let (way, before) = (*way, op.length);
                make(op);
                let after = op.length;
                if !self.tries.attempt(script, smaller.clone()) {
                    let removed = packets(script, way, before) - packets(script, way, after);
                    renumber(&mut smaller, way, removed);
                    self.tries.attempt(script, smaller);
                }
            }
        }
    }

    /// Removes work requests, and renumbers the rules for later frames.
    fn without_numbers(&mut self, script: &mut Script) {
        let mut at = script.actions.len();
        while at > 0 {
            at -= 1;
            let mut smaller = script.clone();
            let Action::Post(way, op) = smaller.actions.remove(at).action else { continue };
            let removed = packets(script, way, op.length);
            renumber(&mut smaller, way, removed);
            self.tries.attempt(script, smaller);
        }
    }

    /// Removes connections, and moves faults of later lives to earlier ones.
    fn without_lives(&mut self, script: &mut Script) {
        let mut at = script.actions.len();
        while at > 0 {
            at -= 1;
            let mut smaller = script.clone();
            let Action::Connect { channel, .. } = smaller.actions.remove(at).action else { continue };
            for rule in &mut smaller.weather {
                if let Rule::Strike { frame, .. } = rule
                    && frame.way.channel == channel
                {
                    frame.life = frame.life.saturating_sub(1);
                }
            }
            self.tries.attempt(script, smaller);
        }
        self.without_numbers(script);
    }

    /// Removes hosts without a channel.
    fn without_idle_hosts(&mut self, script: &mut Script) {
        let used = script.channels.iter().flat_map(|channel| &channel.ends).max();
        let mut smaller = script.clone();
        smaller.hosts.count = used.map_or(2, |host| host + 1).max(2);
        smaller.weather.retain(|rule| !matches!(rule, Rule::Rate { to, .. } if *to >= smaller.hosts.count));
        self.tries.grant();
        self.tries.attempt(script, smaller);
    }
}

/// Number of PSNs of a message of `length` bytes.
fn packets(script: &Script, way: Way, length: u32) -> i32 {
    let mtu = script.channels.get(way.channel).map_or(256, |channel| channel.mtu.bytes() as u32);
    length.div_ceil(mtu).max(1) as i32
}

/// Moves the rules for frames of `way`'s requests and responses `gone` PSNs earlier.
fn renumber(script: &mut Script, way: Way, gone: i32) {
    for rule in &mut script.weather {
        let Rule::Strike { frame, .. } = rule else { continue };
        let answers = frame.opcode.info().is_some_and(|info| info.is_response());
        let request_way = Way { back: frame.way.back != answers, ..frame.way };
        if request_way == way {
            frame.psn -= gone;
        }
    }
}

/// Returns the script without a shared receive queue. Later ones are renumbered. An XRC channel without one takes
/// another of its kind.
fn without_srq(script: &Script, number: usize) -> Script {
    let mut smaller = script.clone();
    let removed = smaller.srqs.remove(number);
    let moved = |srq: usize| if srq > number { srq - 1 } else { srq };
    let other = smaller.srqs.iter().position(|srq| srq.extended == removed.extended);
    for channel in &mut smaller.channels {
        channel.srqs.retain(|srq| *srq != number);
        channel.srqs.iter_mut().for_each(|srq| *srq = moved(*srq));
        if channel.service == Service::Xrc && channel.srqs.is_empty() {
            channel.srqs.extend(other);
        }
    }
    // An XRC channel without a queue becomes an RC connection.
    for channel in smaller.channels.iter_mut().filter(|c| c.service == Service::Xrc && c.srqs.is_empty()) {
        channel.service = Service::Rc;
    }
    smaller.actions.retain_mut(|timed| match &mut timed.action {
        Action::Arm(place, _) | Action::ResizeSrq(place, _) | Action::DestroySrq(place) => {
            let stays = place.srq != number;
            place.srq = moved(place.srq);
            stays
        }
        _ => true,
    });
    smaller
}

/// Returns the script without a channel and its actions. Later channels are renumbered.
fn without_channel(script: &Script, number: usize) -> Script {
    let mut smaller = script.clone();
    smaller.channels.remove(number);
    let moved = |channel: usize| match channel {
        c if c == number => None,
        c if c > number => Some(c - 1),
        c => Some(c),
    };
    let way = |way: Way| moved(way.channel).map(|channel| Way { channel, ..way });
    smaller.weather.retain_mut(|rule| match rule {
        Rule::Rate { .. } => true,
        Rule::Strike { frame, .. } => way(frame.way).map(|way| frame.way = way).is_some(),
    });
    smaller.actions.retain_mut(|Timed { action, .. }| match action {
        Action::Post(of, _)
        | Action::Deregister(of, _)
        | Action::Grant(of, _)
        | Action::Revoke(of)
        | Action::FreeWindow(of) => way(*of).map(|way| *of = way).is_some(),
        Action::Reset(place)
        | Action::Destroy(place)
        | Action::Error(place)
        | Action::Drain(place)
        | Action::Resume(place)
        | Action::Moderate(place, _)
        | Action::Intrude(place, ..)
        | Action::Limit(place, _)
        | Action::Sleep(place, _) => moved(place.channel).map(|channel| place.channel = channel).is_some(),
        Action::DestroyHandle(channel) | Action::Connect { channel, .. } => {
            moved(*channel).map(|to| *channel = to).is_some()
        }
        Action::Restart(_)
        | Action::LinkMtu(..)
        | Action::Move(..)
        | Action::Readdress(_)
        | Action::PortDown(_)
        | Action::PortUp(_)
        | Action::Arm(..)
        | Action::Brake(..)
        | Action::ResizeSrq(..)
        | Action::DestroySrq(_)
        | Action::Jump(_) => true,
    });
    smaller
}
