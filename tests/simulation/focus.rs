//! Aims at rare situations: scripts that repeat one kind of action in bad weather.

use roxie::time::Nanos;
use roxie::verbs::{RateLimit, WrOpcode};

use crate::brakes::PATIENT;
use crate::generate::{Rng, Swarm};
use crate::script::{Action, Channel, Grant, Op, Part, Place, Rule, Service, SrqPlace, Timed, Trouble, Way};
use crate::srq::LARGEST;

/// A rare situation to aim at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Focus {
    /// Send queues drain while requests and responses arrive.
    Drained,
    /// Ends connect late, and packets of an earlier life arrive in a later one.
    Reborn,
    /// Send queues fail while receive queues continue.
    SendQueueFailed,
    /// Keys are granted and invalidated.
    Granted,
    /// Responses arrive after the requester has begun a new life.
    Reanswered,
    /// Receives are posted late, and RNR NAKs arrive twice and late.
    NotReady,
    /// Shared receive queues change while their QPs end.
    Shared,
}

impl Focus {
    pub const ALL: [Focus; 12] = [
        Focus::Drained,
        Focus::Drained,
        Focus::Reborn,
        Focus::Reborn,
        Focus::Reborn,
        Focus::SendQueueFailed,
        Focus::Granted,
        Focus::Shared,
        Focus::Shared,
        Focus::NotReady,
        Focus::Reanswered,
        Focus::Reanswered,
    ];
}

/// Limits the rates of all RC channels, and has their responses to READs lost and delayed: the pacer holds repeated
/// READ requests back, and responses arrive in the meantime.
pub fn hold_reads(
    rng: &mut Rng,
    channels: &mut [Channel],
    weather: &mut Vec<Rule>,
    actions: &mut Vec<Timed>,
) {
    for (number, spec) in channels.iter_mut().enumerate().filter(|(_, spec)| spec.service == Service::Rc) {
        spec.timeout = PATIENT;
        let end = rng.below(2) as usize;
        let kbps = rng.pick(&[1_000, 2_000, 10_000]);
        let limit = RateLimit { kbps, max_burst: 1, typical_packet: 0 };
        let begins = Nanos(1_000 * rng.pick(&[0, 0, 300, 2_000]));
        actions.push(Timed { at: begins, action: Action::Limit(Place { channel: number, end }, limit) });
        let way = Way { channel: number, back: end == 1 };
        let mut at = 0;
        for _ in 0..6 + rng.below(10) {
            at += 1_000 * rng.pick(&[0, 0, 10, 200, 1_000]);
            let packets = rng.pick(&[1, 2, 4, 8]);
            let requests = [
                (WrOpcode::Read, 8),
                (WrOpcode::Read, packets * spec.mtu.bytes() as u32),
                (WrOpcode::FetchAdd, 8),
                (WrOpcode::Flush, 0),
            ];
            let (opcode, length) = rng.pick(&requests);
            actions.push(Timed { at: Nanos(at), action: Action::Post(way, Op::new(opcode, length)) });
        }
        let late = Trouble::Delay(Nanos(1_000 * (1 + rng.below(400))));
        for trouble in [Trouble::Lose, late] {
            weather.push(Rule::Rate { to: spec.ends[end], trouble, of_10_000: rng.pick(&[1_000, 3_000]) });
        }
    }
}

impl Swarm {
    /// Adds bad weather and repeated actions to the first two channels.
    pub fn focus(
        &mut self,
        focus: Focus,
        channels: &mut [Channel],
        weather: &mut Vec<Rule>,
        actions: &mut Vec<Timed>,
    ) {
        for (number, spec) in channels.iter_mut().enumerate().take(2) {
            let answered = spec.service.is_reliable();
            let focus = if focus == Focus::Reanswered && !answered { Focus::Reborn } else { focus };
            spec.ends.iter().for_each(|host| self.storm(*host, weather));
            if focus == Focus::NotReady {
                spec.ends.iter().for_each(|host| self.echo(*host, weather));
                (spec.rnr_timer, spec.ahead, spec.dawdles) = (self.rng.pick(&[12, 14, 18]), 1, 3);
            }
            if focus == Focus::Reanswered {
                let late = Trouble::Delay(Nanos(1_000 * (20 + self.rng.below(60))));
                weather.push(Rule::Rate { to: spec.ends[0], trouble: late, of_10_000: 5_000 });
                weather.push(Rule::Rate { to: spec.ends[1], trouble: late, of_10_000: 2_000 });
                weather.push(Rule::Rate { to: spec.ends[1], trouble: Trouble::Double, of_10_000: 3_000 });
                (spec.slow, spec.depth) = (Nanos(1_000 * self.rng.pick(&[10, 40, 100])), 16);
            }
            if focus == Focus::Reborn {
                spec.slow = Nanos(1_000 * self.rng.pick(&[20, 200, 1_000]));
            }
            let mut at = 0;
            for _ in 0..4 + self.rng.below(8) {
                at += 1_000 * self.rng.pick(&[1, 2, 4, 10, 60, 500, 2_000]);
                self.aim(focus, at, number, spec, actions);
            }
            // Spread the work over the lives of the channel.
            let spread = focus != Focus::Reanswered;
            for timed in actions.iter_mut().filter(|_| spread) {
                if matches!(timed.action, Action::Post(way, _) if way.channel == number) {
                    timed.at = Nanos(self.rng.below(at) / 1_000 * 1_000);
                    let answers = matches!(focus, Focus::Drained | Focus::Reborn);
                    let often = if focus == Focus::Reborn { 2 } else { 3 };
                    if answers && spec.service.is_reliable() && self.rng.one_in(often) {
                        let long = spec.mtu.bytes() as u32 * (2 + self.rng.below(5) as u32);
                        let (read, add) = ((WrOpcode::Read, long), (WrOpcode::FetchAdd, 8));
                        let (opcode, length) =
                            self.rng.pick(&[read, read, (WrOpcode::Read, 8), (WrOpcode::Read, 8), add, add]);
                        let back = spec.service == Service::Rc && self.rng.one_in(2);
                        let way = Way { channel: number, back };
                        timed.action = Action::Post(way, Op::new(opcode, length));
                    }
                }
            }
            if self.rng.one_in(3) {
                (spec.ahead, spec.dawdles) = (1, 3);
            }
            let last = Nanos(at + 5_000_000);
            let ends = 0..spec.ends.len();
            let resume = |end| Timed { at: last, action: Action::Resume(Place { channel: number, end }) };
            actions.extend(ends.map(resume));
        }
    }

    /// Duplicates many frames and delays others.
    fn echo(&mut self, to: usize, weather: &mut Vec<Rule>) {
        let late = Trouble::Delay(Nanos(1_000 * (1 + self.rng.below(20))));
        for trouble in [Trouble::Double, late] {
            weather.push(Rule::Rate { to, trouble, of_10_000: 5_000 });
        }
    }

    fn storm(&mut self, to: usize, weather: &mut Vec<Rule>) {
        let late = Trouble::Delay(Nanos(1_000 * (1 + self.rng.below(400))));
        let overtaken = Trouble::Delay(Nanos(1_000 * (1 + self.rng.below(5))));
        for trouble in [Trouble::Lose, Trouble::Double, overtaken, late] {
            weather.push(Rule::Rate { to, trouble, of_10_000: self.rng.pick(&[500, 1_000]) });
        }
    }

    fn aim(&mut self, focus: Focus, at: u64, channel: usize, spec: &Channel, actions: &mut Vec<Timed>) {
        let rng = &mut self.rng;
        let place = Place { channel, end: rng.below(spec.ends.len() as u64) as usize };
        let way = Way { channel, back: !spec.service.is_one_way() && rng.one_in(2) };
        let mut act = |at: u64, action: Action| actions.push(Timed { at: Nanos(at), action });
        match focus {
            Focus::Drained => {
                act(at, Action::Drain(place));
                act(at + 1_000 * rng.pick(&[5, 300, 2_000]), Action::Resume(place));
            }
            Focus::Reborn => {
                act(at, Action::Reset(place));
                let again = Action::Connect { channel, again: rng.one_in(5) };
                let later = at + 1_000 * rng.pick(&[1, 5, 300]);
                act(later, again);
                // Responses of the previous life are on their way to end a.
                let first = Place { channel, end: 0 };
                match rng.below(4) {
                    0 => act(later + spec.slow.0 + 1_000 * rng.pick(&[1, 20]), Action::Drain(place)),
                    1 => {
                        act(later, Action::Drain(first));
                        act(later + spec.slow.0 + 1_000, Action::Drain(first));
                    }
                    _ => {}
                }
            }
            Focus::SendQueueFailed => {
                match rng.below(4) {
                    0 | 1 if spec.service.is_datagram() => act(at, Action::DestroyHandle(channel)),
                    0 => act(at, Action::Deregister(way, Part::Inbox)),
                    _ => act(at, Action::Deregister(way, Part::Source)),
                }
                let later = at + 1_000 * rng.pick(&[200, 2_000]);
                act(later, Action::Connect { channel, again: false });
            }
            Focus::Granted => {
                let kind = rng.pick(&[Grant::WindowTwo, Grant::FastRegion]);
                act(at, Action::Grant(way, kind));
                if rng.one_in(2) {
                    act(at + 100_000, Action::Deregister(way, Part::Target));
                    act(at + 900_000, Action::Connect { channel, again: rng.one_in(2) });
                }
                for later in [1, 3, 9] {
                    let length = rng.pick(&[0, 8, 700]);
                    let op = Op { granted: true, ..Op::new(WrOpcode::SendInvalidate, length) };
                    act(at + later * 10_000, Action::Post(way, op));
                    act(at + later * 10_000 + 2_000, Action::Grant(way, kind));
                }
            }
            Focus::Reanswered => self.aim_at_answers(at, channel, spec, actions),
            Focus::NotReady => {
                let remote = Place { channel, end: spec.ends.len() - 1 };
                act(at, Action::Sleep(remote, Nanos(1_000 * rng.pick(&[200, 1_000]))));
                for later in [1, 2, 50, 400] {
                    let op = Op::new(WrOpcode::Send, 8);
                    act(at + 1_000 * later, Action::Post(Way { channel, back: false }, op));
                }
                // Drain requests that wait for an RNR timer.
                if rng.one_in(2) {
                    let first = Place { channel, end: 0 };
                    act(at + 1_000 * rng.pick(&[5, 60]), Action::Drain(first));
                    act(at + 1_000 * rng.pick(&[100, 4_000]), Action::Resume(first));
                }
            }
            Focus::Shared => self.aim_at_shared(at, place, spec, actions),
        }
    }

    fn aim_at_answers(&mut self, at: u64, channel: usize, spec: &Channel, actions: &mut Vec<Timed>) {
        let rng = &mut self.rng;
        let mut act = |at: u64, action: Action| actions.push(Timed { at: Nanos(at), action });
        let long = spec.mtu.bytes() as u32 * 4;
        for _ in 0..3 {
            let requests = [(WrOpcode::Read, long), (WrOpcode::Read, 8), (WrOpcode::FetchAdd, 8)];
            let (opcode, length) = rng.pick(&requests);
            act(at, Action::Post(Way { channel, back: false }, Op::new(opcode, length)));
        }
        use WrOpcode::{AtomicWrite, CompareSwap, Flush, Send, Write};
        for _ in 0..4 {
            let opcode = rng.pick(&[Flush, Flush, AtomicWrite, CompareSwap, Write, Send]);
            let length = match opcode {
                Flush => 0,
                AtomicWrite | CompareSwap => 8,
                _ => rng.pick(&[8, long]),
            };
            // Some requests arrive before the peer is ready.
            let at = at + rng.pick(&[0, 0, 8_000, 20_000]);
            act(at, Action::Post(Way { channel, back: false }, Op::new(opcode, length)));
        }
        let again = at + 1_000 * rng.pick(&[3, 6, 15]);
        act(again, Action::Connect { channel, again: false });
        let first = Place { channel, end: 0 };
        if rng.one_in(2) {
            act(again + 1_000, Action::Drain(first));
            act(again + spec.slow.0 + 1_000, Action::Drain(first));
        }
    }

    fn aim_at_shared(&mut self, at: u64, place: Place, spec: &Channel, actions: &mut Vec<Timed>) {
        let rng = &mut self.rng;
        let mut act = |at: u64, action: Action| actions.push(Timed { at: Nanos(at), action });
        let host = spec.ends[place.end];
        for srq in &spec.srqs {
            let srq = SrqPlace { srq: *srq, host };
            act(at, Action::Arm(srq, 1 + rng.below(8) as u32));
            act(at + 1_000, Action::ResizeSrq(srq, 1 + rng.below(u64::from(LARGEST)) as u32));
            if rng.one_in(6) {
                act(at + 2_000, Action::DestroySrq(srq));
            }
        }
        let later = at + 1_000 * rng.pick(&[3, 20, 200]);
        act(later, rng.pick(&[Action::Error, Action::Reset, Action::Destroy])(place));
        if rng.one_in(2) {
            act(later + 50_000, Action::Connect { channel: place.channel, again: rng.one_in(2) });
        }
    }
}
