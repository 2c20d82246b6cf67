//! The tools of scripts: connections to QPs of the target, packets, and the agent's view of memory and completions.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use roxie_wire::{Gid, Psn, Qpn};

use crate::agent::{Agent, Completion, hex, number_of, status_name, unhex};
use crate::packet::{Craft, Seen};
pub use crate::pair::{Pair, QKEY, Region, Setup};
use crate::service::Service;
use crate::verdict::{Script, Stop, must};
use crate::wire::Wire;

/// Bytes of the region that most checks use.
pub const REGION: u64 = 64 << 10;
/// Offset at which receives are posted.
pub const RECEIVES: u64 = 32 << 10;
/// First byte of the pattern in the region; each is one more than the one before, modulo 251.
const SEED: u64 = 1;
/// Time in which a target answers.
const PATIENCE: Duration = Duration::from_secs(1);
/// Tries to reach the target over the control connection.
pub(crate) const TRIES: u32 = 4;

/// The bench during a run.
#[derive(Debug)]
pub struct Bench {
    /// The agent at the target.
    pub agent: Agent,
    /// The link.
    pub wire: Wire,
    /// The device's own words.
    pub device: BTreeMap<String, String>,
    region: Region,
    control: Option<Pair>,
    /// The agent's numbers of what the end of the check frees.
    pub(crate) open: Vec<u64>,
    regions: Vec<u64>,
    next_qpn: u32,
    settle: Duration,
    until: Instant,
    /// Tries to reach the target before it counts as silent.
    pub(crate) tries: u32,
}

impl Bench {
    /// Greets the agent, registers memory, and opens the control connection, over which the target's life is proven.
    ///
    /// # Errors
    /// If the agent refuses, or the target does not answer over RoCE.
    pub fn new(agent: Agent, wire: Wire) -> Script<Bench> {
        let mut bench = Bench {
            agent,
            wire,
            device: BTreeMap::new(),
            region: Region::default(),
            control: None,
            open: Vec::new(),
            regions: Vec::new(),
            next_qpn: 0x0100,
            settle: Duration::from_millis(5),
            until: Instant::now() + Duration::from_secs(30),
            tries: TRIES,
        };
        bench.greet()?;
        Ok(bench)
    }

    /// Replaces the agent's connection after it was lost.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn reconnect(&mut self, agent: Agent) -> Script {
        self.agent = agent;
        self.keep();
        self.greet()
    }

    fn greet(&mut self) -> Script {
        self.until = Instant::now() + Duration::from_secs(30);
        let gid = hex(&Gid::from(self.wire.target()).0);
        self.device = self.agent.hello(&gid)?;
        self.region = self.register(REGION, "lrwa", 0)?;
        let control = self.connect(&Setup::new(Service::Rc))?;
        self.wire.leave_out(control.own);
        self.keep();
        self.control = Some(control);
        let start = Instant::now();
        self.alive()?;
        self.settle = (start.elapsed() * 3).clamp(Duration::from_millis(3), Duration::from_millis(60));
        Ok(())
    }

    /// Begins a check, which has `limit`.
    pub(crate) fn begin(&mut self, limit: Duration) {
        self.until = Instant::now() + limit;
        self.wire.clear();
    }

    /// Ends a check: destroys what it made at the target.
    pub(crate) fn end(&mut self) -> Script {
        self.until = Instant::now() + Duration::from_secs(20);
        for qp in std::mem::take(&mut self.open) {
            self.agent.ask(&format!("free qp={qp}"))?;
        }
        for mr in std::mem::take(&mut self.regions) {
            self.agent.ask(&format!("mr_free mr={mr}"))?;
        }
        Ok(())
    }

    /// Registers memory at the target. `pd` is 0 for that of the QPs, 1 for another.
    ///
    /// # Errors
    /// If the agent refuses.
    pub fn register(&mut self, size: u64, access: &str, pd: u8) -> Script<Region> {
        self.register_by(&format!("mr size={size} access={access} pd={pd}"))
    }

    /// Registers memory by a request of the agent's protocol.
    pub(crate) fn register_by(&mut self, request: &str) -> Script<Region> {
        let answer = self.agent.ask(request)?;
        let region =
            Region { id: answer.number("mr")?, addr: answer.number("addr")?, rkey: answer.word32("rkey")? };
        self.regions.push(region.id);
        Ok(region)
    }

    /// Keeps what was made so far at the target beyond the end of checks.
    pub(crate) fn keep(&mut self) {
        self.open.clear();
        self.regions.clear();
    }

    /// Makes and connects a QP at the target. Its region holds the pattern anew.
    ///
    /// # Errors
    /// If the agent refuses.
    pub fn connect(&mut self, setup: &Setup) -> Script<Pair> {
        if setup.mtu + 100 > self.wire.mtu() {
            return Err(Stop::NotTested(format!(
                "path MTU {} needs a link MTU of {} bytes, the bench's interface has {}",
                setup.mtu,
                setup.mtu + 100,
                self.wire.mtu()
            )));
        }
        let kind = match setup.service {
            Service::Rc => "rc",
            Service::Uc => "uc",
            Service::Ud => "ud",
            Service::Xrc => "xrc",
        };
        let made = self.agent.ask(&format!("qp type={kind} qkey={QKEY} access={}", setup.access))?;
        let (id, qpn) = (made.number("qp")?, Qpn::new(made.word32("qpn")?));
        self.open.push(id);
        let own = self.own_qpn();
        let gid = hex(&Gid::from(self.wire.here()).0);
        self.agent.ask(&format!(
            "connect qp={id} qpn={} gid={gid} mtu={} rq_psn={} sq_psn={} timeout={} retry={} rnr_retry={} rnr_timer={} rd={} tclass={}",
            own.value(),
            setup.mtu,
            setup.first,
            setup.peer_first,
            setup.timeout,
            setup.retry,
            setup.rnr_retry,
            setup.rnr_timer,
            setup.reads,
            setup.traffic_class
        ))?;
        self.pair(id, qpn, own, setup)
    }

    /// Returns a QPN of the bench that no pair has.
    pub(crate) fn own_qpn(&mut self) -> Qpn {
        self.next_qpn += 1;
        Qpn::new(self.next_qpn)
    }

    /// Returns a connected QP of the target: the agent's number, its QPN and the bench's. Its region holds the pattern
    /// anew.
    pub(crate) fn pair(&mut self, id: u64, qpn: Qpn, own: Qpn, setup: &Setup) -> Script<Pair> {
        let region = self.region;
        self.agent.ask(&format!("fill mr={} off=0 len={REGION} seed={SEED}", region.id))?;
        Ok(Pair {
            id,
            qpn,
            own,
            service: setup.service,
            srqn: 0,
            first: Psn::new(setup.first),
            next: Psn::new(setup.first),
            peer_first: Psn::new(setup.peer_first),
            mtu: setup.mtu,
            region,
        })
    }

    /// Connects an RC QP with the default setup.
    ///
    /// # Errors
    /// If the agent refuses.
    pub fn rc(&mut self) -> Script<Pair> {
        self.connect(&Setup::new(Service::Rc))
    }

    /// Sends a packet.
    ///
    /// # Errors
    /// If the link does not take it.
    pub fn send(&mut self, packet: &Craft) -> Script {
        self.wire.send(packet, false)
    }

    /// Returns the time until which a script may wait, `limit` from now at most.
    fn within(&self, limit: Duration) -> Instant {
        (Instant::now() + limit).min(self.until)
    }

    /// Waits for `count` packets to a pair, then until the target has proven its life, and returns all that came.
    ///
    /// # Errors
    /// If the target does not answer over the control connection.
    pub fn packets(&mut self, pair: &Pair, count: usize) -> Script<Vec<Seen>> {
        let until = self.within(PATIENCE);
        self.wire.wait(pair.own, count, until);
        self.settle()?;
        Ok(self.wire.take(pair.own))
    }

    /// Waits for `count` packets to a pair for at most `limit`, and returns at once when they are there.
    pub fn within_time(&mut self, pair: &Pair, count: usize, limit: Duration) -> Vec<Seen> {
        let until = self.within(limit);
        self.wire.wait(pair.own, count, until);
        self.wire.take(pair.own)
    }

    /// Receives what comes for all of `time`.
    pub fn listen(&mut self, pair: &Pair, time: Duration) -> Vec<Seen> {
        self.within_time(pair, usize::MAX, time)
    }

    /// Expects exactly these packets, in the words of [`Seen::words`], with PSNs as distances from the pair's first.
    ///
    /// # Errors
    /// If others came.
    pub fn expect(&mut self, pair: &Pair, expected: &[&str]) -> Script<Vec<Seen>> {
        self.expect_from(pair, pair.first, expected)
    }

    /// Expects exactly these requests of the target, with PSNs as distances from its first.
    ///
    /// # Errors
    /// If others came.
    pub fn expect_requests(&mut self, pair: &Pair, expected: &[&str]) -> Script<Vec<Seen>> {
        self.expect_from(pair, pair.peer_first, expected)
    }

    fn expect_from(&mut self, pair: &Pair, base: Psn, expected: &[&str]) -> Script<Vec<Seen>> {
        let seen = self.packets(pair, expected.len())?;
        let came: Vec<String> = seen.iter().map(|packet| packet.words(base)).collect();
        must(came == expected, || format!("expected {}, came {}", list(expected), list(&came)))?;
        Ok(seen)
    }

    /// Sends a request, and expects exactly these packets.
    ///
    /// # Errors
    /// If others came.
    pub fn ask(&mut self, pair: &Pair, request: &Craft, expected: &[&str]) -> Script<Vec<Seen>> {
        self.send(request)?;
        self.expect(pair, expected)
    }

    /// Proves that the target lives, and waits for stragglers.
    ///
    /// # Errors
    /// If it does not answer.
    pub fn settle(&mut self) -> Script {
        self.alive()?;
        let until = self.within(self.settle);
        self.wire.wait(Qpn::new(0), usize::MAX, until);
        Ok(())
    }

    /// Proves that the target lives: a WRITE over the control connection is acknowledged.
    ///
    /// # Errors
    /// If it is not.
    pub fn alive(&mut self) -> Script {
        let Some(mut control) = self.control.clone() else { return Ok(()) };
        let request = control.write_only(REGION - 8, b"alive...");
        for _ in 0..self.tries {
            self.wire.send(&request, true)?;
            let until = Instant::now() + PATIENCE;
            self.wire.wait(control.own, 1, until);
            let came = self.wire.take(control.own);
            if came.iter().any(|seen| seen.words(control.next).starts_with("ACK+0")) {
                control.advance(1);
                self.control = Some(control);
                return Ok(());
            }
        }
        Err(Stop::Silent("the target no longer acknowledges a valid WRITE over another connection".into()))
    }

    /// Expects that a pair still works: the next WRITE is executed and acknowledged, with this MSN.
    ///
    /// # Errors
    /// If another packet came, or memory has other bytes.
    pub fn works(&mut self, pair: &Pair, msn: u32) -> Script {
        let ahead = pair.next.distance_from(pair.first);
        let bytes = [0xc5; 16];
        self.ask(pair, &pair.write_only(512, &bytes), &[&format!("ACK{ahead:+} msn {msn}")])?;
        self.memory(pair.region, 512, &bytes)
    }

    /// Expects a QP in the error state, within a second.
    ///
    /// # Errors
    /// If it is in another.
    pub fn in_error(&mut self, pair: &Pair) -> Script {
        self.in_state(pair, "err")
    }

    /// Expects a QP in a state, within a second.
    ///
    /// # Errors
    /// If it is in another.
    pub fn in_state(&mut self, pair: &Pair, expected: &str) -> Script {
        let until = self.within(PATIENCE);
        loop {
            let state = self.agent.ask(&format!("query qp={}", pair.id))?.word("state")?.to_owned();
            if state == expected {
                return Ok(());
            }
            if Instant::now() > until {
                return Err(Stop::Breaks(format!("the QP is in state {state}, expected {expected}")));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Posts receives of `length` bytes at [`RECEIVES`], all at one place, with `wr_id` 0 and up.
    ///
    /// # Errors
    /// If the agent refuses.
    pub fn receive(&mut self, pair: &Pair, length: u32, count: u32) -> Script {
        let region = self.region.id;
        self.agent.ask(&format!("recv qp={} mr={region} off={RECEIVES} len={length} n={count}", pair.id))?;
        Ok(())
    }

    /// Posts a work request at the target: words as the agent takes them, without `qp=` and `mr=`.
    ///
    /// # Errors
    /// If the agent refuses.
    pub fn post(&mut self, pair: &Pair, words: &str) -> Script {
        self.agent.ask(&format!("send qp={} mr={} {words}", pair.id, self.region.id))?;
        Ok(())
    }

    /// Asks the agent about a QP in words of its protocol, without `qp=`.
    ///
    /// # Errors
    /// If the agent refuses.
    pub fn tell(&mut self, pair: &Pair, verb: &str, words: &str) -> Script<crate::agent::Answer> {
        self.agent.ask(&format!("{verb} qp={} {words}", pair.id))
    }

    /// Binds a window to the first `length` bytes of a region, and returns it, with its rkey, once the binding is
    /// complete.
    ///
    /// # Errors
    /// If the agent or the device refuses.
    pub fn bind(&mut self, pair: &Pair, length: u32) -> Script<Region> {
        let region = self.register(4096, "lrwab", 0)?;
        let words = format!("bind qp={} mr={} off=0 len={length} id=99", pair.id, region.id);
        let rkey = self.agent.ask(&words)?.word32("rkey")?;
        let done = self.completions(pair, 1, PATIENCE)?;
        if done.first().is_none_or(|wc| wc.status != 0) {
            return Err(Stop::NotTested(format!("the device did not bind a window: {done:?}")));
        }
        Ok(Region { rkey, ..region })
    }

    /// Destroys a QP.
    ///
    /// # Errors
    /// If the agent refuses.
    pub fn destroy(&mut self, pair: &Pair) -> Script {
        self.open.retain(|id| *id != pair.id);
        self.agent.ask(&format!("free qp={}", pair.id)).map(drop)
    }

    /// Deregisters memory.
    ///
    /// # Errors
    /// If the agent refuses.
    pub fn deregister(&mut self, region: Region) -> Script {
        self.regions.retain(|id| *id != region.id);
        self.agent.ask(&format!("mr_free mr={}", region.id)).map(drop)
    }

    /// Waits for `count` completions of a QP, and returns all that are there.
    ///
    /// # Errors
    /// If the agent refuses.
    pub fn completions(&mut self, pair: &Pair, count: usize, limit: Duration) -> Script<Vec<Completion>> {
        let limit = self.within(limit).saturating_duration_since(Instant::now());
        let words = format!("poll qp={} n={count} ms={}", pair.id, limit.as_millis());
        Ok(self.agent.ask_within(&words, limit + PATIENCE * 5)?.completions())
    }

    /// Expects completions with these numbers and statuses (`enum ibv_wc_status`), and no more.
    ///
    /// # Errors
    /// If others came.
    pub fn completes(&mut self, pair: &Pair, expected: &[(u64, u32)]) -> Script<Vec<Completion>> {
        let wait = if expected.is_empty() { Duration::ZERO } else { PATIENCE };
        let came = self.completions(pair, expected.len(), wait)?;
        let short: Vec<(u64, u32)> = came.iter().map(|wc| (wc.id, wc.status)).collect();
        must(short == expected, || {
            format!("expected completions {}, came {}", statuses(expected), statuses(&short))
        })?;
        Ok(came)
    }

    /// Reads memory of the target.
    ///
    /// # Errors
    /// If the agent refuses.
    pub fn peek(&mut self, region: Region, offset: u64, length: usize) -> Script<Vec<u8>> {
        let answer = self.agent.ask(&format!("peek mr={} off={offset} len={length}", region.id))?;
        unhex(answer.word("hex")?).ok_or_else(|| Stop::NotTested("the agent's bytes are no digits".into()))
    }

    /// Writes memory of the target.
    ///
    /// # Errors
    /// If the agent refuses.
    pub fn poke(&mut self, region: Region, offset: u64, bytes: &[u8]) -> Script {
        self.agent.ask(&format!("poke mr={} off={offset} hex={}", region.id, hex(bytes)))?;
        Ok(())
    }

    /// Expects bytes in memory of the target.
    ///
    /// # Errors
    /// If others are there.
    pub fn memory(&mut self, region: Region, offset: u64, expected: &[u8]) -> Script {
        let there = self.peek(region, offset, expected.len())?;
        let differs = there.iter().zip(expected).position(|(a, b)| a != b);
        must(there == expected, || {
            let at = differs.unwrap_or(0);
            format!("memory at offset {} is not what was to be there, from byte {at} on", offset)
        })
    }

    /// Expects the pattern in bytes of the shared region: the target wrote nothing there.
    ///
    /// # Errors
    /// If it did.
    pub fn untouched(&mut self, offset: u64, length: u64) -> Script {
        let words = format!("compare mr={} off={offset} len={length} seed={}", self.region.id, SEED + offset);
        let at = self.agent.ask(&words)?.number("at")?;
        must(at >= length, || format!("memory at offset {} was changed", offset + at))
    }

    /// Returns bytes of the pattern.
    pub fn pattern(offset: u64, length: usize) -> Vec<u8> {
        (0..length as u64).map(|i| ((SEED + offset + i) % 251) as u8).collect()
    }

    /// Returns a number that the device says of itself; 0 without one.
    pub fn device_number(&self, key: &str) -> u64 {
        self.device.get(key).and_then(|word| number_of(word)).unwrap_or(0)
    }
}

/// Formats words for a message.
fn list<T: AsRef<str>>(words: &[T]) -> String {
    if words.is_empty() {
        return "nothing".into();
    }
    words.iter().map(AsRef::as_ref).collect::<Vec<_>>().join(", ")
}

/// Formats completions for a message.
fn statuses(completions: &[(u64, u32)]) -> String {
    let words: Vec<String> =
        completions.iter().map(|(id, status)| format!("{id} {}", status_name(*status))).collect();
    list(&words)
}
