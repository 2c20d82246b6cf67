//! Generates a script from a seed. Each seed enables a random subset of services, operations, troubles and actions
//! (swarm testing), so that rare combinations occur, and a feature that masks a bug is sometimes off.

use roxie::random::splitmix;
use roxie::time::Nanos;
use roxie::transport::AckRequestPolicy;
use roxie::verbs::{Mtu, WrOpcode};

use crate::flow::{INLINE, service_has};
use crate::focus::{Focus, hold_reads};
use crate::script::{
    Action, Channel, Grant, Held, Hosts, Intrusion, Op, Part, Place, Rule, Script, Service, Srq, SrqPlace,
    Timed, Trouble, Way,
};
use crate::srq::LARGEST;

/// A pseudorandom sequence that depends on the seed alone.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5eed)
    }

    pub fn next(&mut self) -> u64 {
        splitmix(&mut self.0)
    }

    /// Returns a number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// Returns true with probability 1 / `n`.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    /// Returns a random, nonempty subset.
    fn some<T: Copy>(&mut self, from: &[T]) -> Vec<T> {
        let mut some: Vec<T> = from.iter().copied().filter(|_| !self.one_in(3)).collect();
        if some.is_empty() {
            some.push(self.pick(from));
        }
        some
    }
}

const OPERATIONS: [WrOpcode; 10] = [
    WrOpcode::Write,
    WrOpcode::WriteImm,
    WrOpcode::Send,
    WrOpcode::SendImm,
    WrOpcode::SendInvalidate,
    WrOpcode::Read,
    WrOpcode::CompareSwap,
    WrOpcode::FetchAdd,
    WrOpcode::AtomicWrite,
    WrOpcode::Flush,
];

/// Distinguishes the sequence that decides on selective repeat.
const SELECTIVE: u64 = 0x5e1e_c71e;
/// Distinguishes the sequence that draws READs of QPs with a limited rate.
const HELD: u64 = 0x4e1d;
/// Distinguishes the sequence that decides when unsignaled messages ask for an acknowledgement.
const ASK: u64 = 0xa5c;
/// Environment variable: all RC channels have selective repeat.
const ALL_SELECTIVE: &str = "ROXIE_SELECTIVE";
/// Environment variable: the rates of all RC channels are limited.
const ALL_PACED: &str = "ROXIE_PACED";

/// True if a variable makes all RC channels alike in some respect.
pub fn is_uniform() -> bool {
    [ALL_SELECTIVE, ALL_PACED].iter().any(|name| std::env::var_os(name).is_some())
}

/// Returns a link MTU in bytes that carries packets of the path MTU.
fn link_for(mtu: Mtu) -> usize {
    mtu.bytes() + Mtu::OVERHEAD + 16
}

/// The features that a seed enables.
pub struct Swarm {
    pub rng: Rng,
    operations: Vec<WrOpcode>,
    mtus: Vec<Mtu>,
    /// Shared receive queues: none, or basic ones followed by XRC ones.
    srqs: Vec<Srq>,
    /// Time span in nanoseconds in which work is posted.
    span: u64,
}

/// Returns the script of a seed.
pub fn script(seed: u64) -> Script {
    let mut rng = Rng::new(seed);
    use AckRequestPolicy::{Always, Late, Shown};
    let ack_requests = Rng::new(seed ^ ASK).pick(&[Late, Late, Shown, Shown, Shown, Always]);
    let hosts = Hosts { ack_requests, ..hosts(&mut rng) };
    let fitting: Vec<Mtu> = [Mtu::Mtu256, Mtu::Mtu256, Mtu::Mtu512, Mtu::Mtu1024, Mtu::Mtu4096]
        .into_iter()
        .filter(|mtu| link_for(*mtu) <= hosts.link_mtu)
        .collect();
    let mtus = rng.some(&fitting);
    let operations = rng.some(&OPERATIONS);
    use Service::{Group, Rc, Uc, Ud, Xrc};
    let services = rng.some(&[Rc, Rc, Rc, Uc, Ud, Group, Xrc, Xrc, Xrc]);
    let span = rng.pick(&[1, 200_000, 3_000_000]);
    let srqs = srqs(&mut rng);
    let mut swarm = Swarm { rng, operations, mtus, srqs, span };
    let count = 1 + swarm.rng.below(6);
    let mut channels: Vec<Channel> = (0..count)
        .map(|_| {
            let service = swarm.rng.pick(&services);
            // Without an XRC queue, its requests have no queue to name.
            let service = if swarm.srqs.is_empty() && service == Xrc { Rc } else { service };
            swarm.channel(service, hosts.count)
        })
        .collect();
    let mut actions = Vec::new();
    for (number, channel) in channels.iter().enumerate() {
        swarm.operations_of(number, channel, &mut actions);
    }
    let calm = swarm.rng.one_in(6);
    let weather = (0..hosts.count).filter(|_| !calm).flat_map(|host| swarm.weather(host)).collect();
    swarm.disturbances(&hosts, &channels, &mut actions);
    let mut weather: Vec<Rule> = weather;
    if swarm.rng.one_in(2) {
        let focus = swarm.rng.pick(&Focus::ALL);
        swarm.focus(focus, &mut channels, &mut weather, &mut actions);
    }
    swarm.intrusions(&channels, &mut actions);
    swarm.congestion(&hosts, &mut channels, &mut weather, &mut actions);
    // Sequences of their own, so that all else of a seed is the same with and without.
    let mut agrees = Rng::new(seed ^ SELECTIVE);
    for channel in channels.iter_mut().filter(|channel| channel.service == Rc) {
        channel.selective = agrees.one_in(2) || std::env::var_os(ALL_SELECTIVE).is_some();
    }
    let mut held = Rng::new(seed ^ HELD);
    if held.one_in(8) || std::env::var_os(ALL_PACED).is_some() {
        hold_reads(&mut held, &mut channels, &mut weather, &mut actions);
    }
    actions.sort_by_key(|timed| timed.at);
    Script {
        seed,
        hosts,
        srqs: swarm.srqs,
        channels,
        weather,
        actions,
        expected: Vec::new(),
        logs: Vec::new(),
    }
}

/// Draws the moderation of completion events; a count of 1 is none.
fn held(rng: &mut Rng) -> Held {
    let period = Nanos(1_000 * rng.pick(&[1, 20, 500]));
    Held { count: rng.pick(&[1, 2, 3, 16]), period }
}

/// Draws no shared receive queue, or one or two basic and one or two XRC ones.
fn srqs(rng: &mut Rng) -> Vec<Srq> {
    if rng.one_in(3) {
        return Vec::new();
    }
    let srq = |rng: &mut Rng, extended| Srq {
        extended,
        size: 1 + rng.below(LARGEST.into()) as u32,
        ahead: rng.pick(&[1, 2, 4, 16]),
        dawdles: rng.pick(&[0, 3, 3, 50]),
    };
    let basic = 1 + rng.below(2);
    let extended = 1 + rng.below(2);
    (0..basic + extended).map(|number| srq(rng, number >= basic)).collect()
}

fn hosts(rng: &mut Rng) -> Hosts {
    Hosts {
        count: rng.pick(&[2, 2, 2, 3, 3, 4, 6]),
        link_mtu: rng.pick(&[4200, 4200, 1500, 600]),
        ipv6: rng.one_in(3),
        split: rng.one_in(2).then(|| 20 + rng.below(100) as usize),
        window: rng.pick(&[8, 32, 128, 128]),
        ack_coalesce: rng.pick(&[4, 64, 1000]),
        slots: rng.pick(&[1024, 1024, 5]),
        ack_requests: AckRequestPolicy::default(),
    }
}

impl Swarm {
    /// Draws the shared receive queues of a channel: none, one, or a subset of the XRC queues.
    fn shared(&mut self, service: Service) -> Vec<usize> {
        let extended = service == Service::Xrc;
        let all = self.srqs.iter().enumerate().filter(|(_, srq)| srq.extended == extended);
        let all: Vec<usize> = all.map(|(number, _)| number).collect();
        match extended {
            true => self.rng.some(&all),
            false if all.is_empty() || self.rng.one_in(2) => Vec::new(),
            false => vec![self.rng.pick(&all)],
        }
    }

    fn channel(&mut self, service: Service, hosts: usize) -> Channel {
        let srqs = self.shared(service);
        let rng = &mut self.rng;
        let first = rng.below(hosts as u64) as usize;
        let other = |rng: &mut Rng| (first + 1 + rng.below(hosts as u64 - 1) as usize) % hosts;
        let mut ends = vec![first, other(rng)];
        if service == Service::Group {
            (0..rng.below(3)).for_each(|_| ends.push(other(rng)));
        }
        let psn = |rng: &mut Rng| match rng.below(3) {
            // Just before the wrap of the PSN.
            0 => 0xff_ffff - rng.below(40) as u32,
            // Just before the sign bit changes.
            1 => 0x7f_ffff - rng.below(40) as u32,
            _ => rng.below(1 << 24) as u32,
        };
        let rare =
            |rng: &mut Rng, common: u8, others: &[u8]| if rng.one_in(5) { rng.pick(others) } else { common };
        Channel {
            service,
            ends,
            mtu: rng.pick(&self.mtus),
            psns: [psn(rng), psn(rng)],
            rd_atomic: rng.pick(&[1, 2, 4, 16]),
            depth: 1 + rng.below(16) as usize,
            ahead: 1 + rng.pick(&[0, 1, 3, 7, 30]),
            dawdles: rng.pick(&[0, 0, 3, 50]),
            timeout: rng.pick(&[8, 10, 12]),
            retries: rare(rng, 7, &[0, 1, 3]),
            rnr_retries: rare(rng, 7, &[0, 1, 6]),
            // Code 0 is the longest RNR timer: 655 ms.
            rnr_timer: rng.pick(&[1, 1, 5, 5, 12, 12, 0]),
            cq: if rng.one_in(10) { rng.pick(&[2, 4, 8]) } else { 512 },
            sig_all: rng.one_in(4),
            slow: if rng.one_in(6) { Nanos(1_000 * rng.pick(&[2, 40, 400])) } else { Nanos::ZERO },
            events: rng.one_in(4).then(|| held(rng)),
            srqs,
            sl: 0,
            selective: false,
        }
    }

    fn operations_of(&mut self, number: usize, channel: &Channel, actions: &mut Vec<Timed>) {
        let ways: &[bool] = if channel.service.is_one_way() { &[false] } else { &[false, true] };
        for back in ways {
            let way = Way { channel: number, back: *back };
            let mut allowed: Vec<_> =
                self.operations.iter().copied().filter(|op| service_has(channel.service, *op)).collect();
            if allowed.is_empty() {
                allowed.push(WrOpcode::Send);
            }
            let most = self.rng.pick(&[8, 25, 25, 60]);
            let count = self.rng.below(most);
            let mut times: Vec<u64> = (0..count).map(|_| self.rng.below(self.span)).collect();
            times.sort_unstable();
            for at in times {
                let op = self.op(channel, &allowed);
                actions.push(Timed { at: Nanos(at / 1000 * 1000), action: Action::Post(way, op) });
            }
        }
    }

    fn op(&mut self, channel: &Channel, allowed: &[WrOpcode]) -> Op {
        let rng = &mut self.rng;
        let opcode = rng.pick(allowed);
        let full = channel.mtu.bytes() as u64;
        let most = match (channel.service.is_datagram(), channel.srqs.is_empty()) {
            (true, _) => full,
            (false, true) => 20 * full,
            // Every receive of a shared queue has room for the longest message.
            (false, false) => 4 * full,
        };
        let edges = [0, 1, 3, 4, full - 1, full, full + 1, 2 * full, 3 * full + 2];
        let length = match rng.below(3) {
            _ if opcode.is_atomic() || opcode == WrOpcode::AtomicWrite => 8,
            _ if opcode == WrOpcode::Flush => 0,
            0 => rng.below(most) + 1,
            _ => rng.pick(&edges).min(most),
        };
        let has_imm = matches!(opcode, WrOpcode::SendImm | WrOpcode::WriteImm);
        Op {
            pieces: 1 + rng.below(4) as u32,
            inline: length <= INLINE.into() && opcode.may_be_inline() && rng.one_in(3),
            unsignaled: rng.one_in(3),
            fence: rng.one_in(5),
            solicited: opcode.consumes_receive() && rng.one_in(5),
            imm: if has_imm { rng.next() as u32 } else { 0 },
            odd: rng.one_in(4),
            granted: rng.one_in(2),
            queue: if channel.srqs.len() > 1 { rng.below(channel.srqs.len() as u64) as usize } else { 0 },
            ..Op::new(opcode, length as u32)
        }
    }

    /// Draws the faults of frames to a host.
    fn weather(&mut self, to: usize) -> Vec<Rule> {
        let rng = &mut self.rng;
        if rng.one_in(8) {
            return Vec::new();
        }
        let stormy = rng.one_in(15);
        let short = Trouble::Delay(Nanos(1_000 * (1 + rng.below(10))));
        let long = Trouble::Delay(Nanos::from_micros(10 + rng.below(3_000)));
        let all = [Trouble::Lose, Trouble::Double, Trouble::Harm, short, long];
        let on: Vec<Trouble> = all.into_iter().filter(|_| rng.one_in(2)).collect();
        on.into_iter()
            .map(|trouble| Rule::Rate {
                to,
                trouble,
                of_10_000: if stormy { rng.pick(&[1_000, 2_500]) } else { rng.pick(&[20, 100, 300]) },
            })
            .collect()
    }

    /// Draws disturbances during the run.
    fn disturbances(&mut self, hosts: &Hosts, channels: &[Channel], actions: &mut Vec<Timed>) {
        let span = self.span.max(100_000) * 3 / 2;
        if self.rng.one_in(3) {
            return;
        }
        let kinds = self.rng.some(&(0..KINDS).collect::<Vec<_>>());
        let count = 1 + self.rng.below(6);
        for _ in 0..count {
            let at = self.rng.below(span) / 1000 * 1000;
            let kind = self.rng.pick(&kinds);
            let channel = self.rng.below(channels.len() as u64) as usize;
            self.disturb(kind, at, hosts, channel, &channels[channel], actions);
        }
    }

    fn disturb(
        &mut self,
        kind: u64,
        at: u64,
        hosts: &Hosts,
        channel: usize,
        spec: &Channel,
        actions: &mut Vec<Timed>,
    ) {
        let rng = &mut self.rng;
        let end = rng.below(spec.ends.len() as u64) as usize;
        let (host, place) = (spec.ends[end], Place { channel, end });
        let back = !spec.service.is_one_way() && rng.one_in(2);
        let way = Way { channel, back };
        let later = at + 1000 * rng.pick(&[1, 20, 300, 4_000]);
        let mut act = |at: u64, action: Action| actions.push(Timed { at: Nanos(at), action });
        let again = Action::Connect { channel, again: rng.one_in(2) };
        match kind {
            0..5 => self.disturb_host(kind, [at, later], host, hosts.link_mtu, again, actions),
            5 => act(at, Action::Jump(Nanos::from_millis(rng.pick(&[1, 40, 70_000_000])))),
            6 => {
                act(at, Action::Reset(place));
                act(later, again);
            }
            7 => {
                act(at, Action::Destroy(place));
                act(later, again);
            }
            8 => {
                act(at, Action::Error(place));
                act(later, again);
            }
            9 => {
                act(at, Action::Drain(place));
                act(later, Action::Resume(place));
            }
            10 => act(at, Action::Sleep(place, Nanos(later - at))),
            11 => {
                let part = rng.pick(&[Part::Source, Part::Landing, Part::Target, Part::Inbox]);
                act(at, Action::Deregister(way, part));
                if rng.one_in(2) {
                    act(later, again);
                } else {
                    act(later, Action::Resume(place));
                }
            }
            12 if spec.service.is_datagram() => {
                act(at, Action::DestroyHandle(channel));
                act(later, Action::Resume(Place { channel, end: 0 }));
                act(later + 1000, again);
            }
            16 => {
                act(at, Action::Moderate(place, held(rng)));
                act(later, Action::Moderate(place, Held { count: 1, period: Nanos::ZERO }));
            }
            17.. if !spec.srqs.is_empty() => {
                let place = SrqPlace { srq: rng.pick(&spec.srqs), host };
                self.disturb_srq(kind, at, later, place, actions);
            }
            _ => self.disturb_grants(kind, [at, later], way, actions),
        }
    }
}

impl Swarm {
    /// Draws the frames of strangers.
    fn intrusions(&mut self, channels: &[Channel], actions: &mut Vec<Timed>) {
        if !self.rng.one_in(3) {
            return;
        }
        let last = actions.iter().map(|timed| timed.at.0).max().unwrap_or(0) + 100_000;
        for _ in 0..4 + self.rng.below(12) {
            let rng = &mut self.rng;
            let channel = rng.below(channels.len() as u64) as usize;
            let end = rng.below(channels[channel].ends.len() as u64) as usize;
            let kinds =
                [Intrusion::Long, Intrusion::Spoof, Intrusion::Spoof, Intrusion::Notice, Intrusion::Unknown];
            let intrude = Action::Intrude(Place { channel, end }, rng.pick(&kinds), rng.below(1_000));
            actions.push(Timed { at: Nanos(rng.below(last) / 1_000 * 1_000), action: intrude });
        }
    }

    /// Disturbs a host: its NIC, its address or its link.
    fn disturb_host(
        &mut self,
        kind: u64,
        [at, later]: [u64; 2],
        host: usize,
        link_mtu: usize,
        again: Action,
        actions: &mut Vec<Timed>,
    ) {
        let rng = &mut self.rng;
        let mut act = |at: u64, action: Action| actions.push(Timed { at: Nanos(at), action });
        match kind {
            0 => {
                act(at, Action::Restart(host));
                act(later, again);
            }
            1 => {
                let mtu = rng.pick(&[4200, 1500, 600, 360]);
                act(at, Action::LinkMtu(host, mtu.min(link_mtu)));
                act(later, again);
            }
            2 => act(at, Action::Move(host, Nanos(1000 * rng.pick(&[0, 50, 2_000])))),
            3 => {
                act(at, Action::Readdress(host));
                act(later, again);
            }
            _ => {
                act(at, Action::PortDown(host));
                // Sometimes longer than any peer retries.
                match rng.one_in(4) {
                    true => {
                        act(at + 400_000_000, Action::PortUp(host));
                        act(at + 400_000_000, again);
                    }
                    false => act(later, Action::PortUp(host)),
                }
            }
        }
    }

    /// Grants and revokes rights by windows and fast registrations.
    fn disturb_grants(&mut self, kind: u64, [at, later]: [u64; 2], way: Way, actions: &mut Vec<Timed>) {
        let rng = &mut self.rng;
        let mut act = |at: u64, action: Action| actions.push(Timed { at: Nanos(at), action });
        let kinds = [Grant::WindowOne, Grant::WindowTwo, Grant::FastRegion];
        for at in [at / 4, at / 2] {
            act(at, Action::Grant(way, rng.pick(&kinds)));
            act((at + later) / 2, Action::Revoke(way));
            act(later, Action::Grant(way, rng.pick(&kinds)));
        }
        if kind == 13 {
            act(later, Action::FreeWindow(way));
        }
    }

    fn disturb_srq(&mut self, kind: u64, at: u64, later: u64, place: SrqPlace, actions: &mut Vec<Timed>) {
        let rng = &mut self.rng;
        let mut act = |at: u64, action: Action| actions.push(Timed { at: Nanos(at), action });
        match kind {
            17 => {
                act(at, Action::Arm(place, 1 + rng.below(8) as u32));
                act(later, Action::Arm(place, rng.below(8) as u32));
            }
            18 => {
                act(at, Action::ResizeSrq(place, 1 + rng.below(LARGEST.into()) as u32));
                act(later, Action::ResizeSrq(place, 1 + rng.below(4) as u32));
            }
            _ => act(at, Action::DestroySrq(place)),
        }
    }
}

/// Number of kinds of disturbances.
const KINDS: u64 = 20;
