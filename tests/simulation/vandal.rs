//! Vandals: programs that corrupt their own queues, one on each of two hosts, beside the honest programs of a script.
//! Words of rings, counters and doorbells take any value between any two steps. All oracles of the script must still
//! hold.

use std::sync::atomic::Ordering::Relaxed;

use roxie::nic::Command;
use roxie::random::splitmix;
use roxie::verbs::{
    Access, AsyncEvent, Mtu, QpCaps, QpInit, QpState, QpType, RKey, SendFlags, SendWr, WrOpcode,
};
use roxie_sim::{Connected, HostQp, HostRegion, Payload};

use crate::campaign::judge;
use crate::generate;
use crate::script::{Action, Script};
use crate::seeds::variable;
use crate::world::{Outcome, World};

const SEEDS: u64 = 150;
/// Number of steps in which a vandal acts, so that a run ends.
const STEPS: u32 = 600;
/// Number of QPs of each vandal.
const QPS: usize = 3;
/// Size of its memory in bytes.
const BYTES: u32 = 4096;

/// A program that corrupts its own queues.
pub struct Vandal {
    host: usize,
    qps: Vec<HostQp>,
    memory: HostRegion,
    /// Key and address of the other vandal's memory.
    other: (RKey, u64),
    state: u64,
    remaining: u32,
}

impl Vandal {
    fn below(&mut self, bound: usize) -> usize {
        (splitmix(&mut self.state) % bound as u64) as usize
    }

    /// True if an event is about its QPs or their completion queues.
    pub fn owns(&self, host: usize, event: AsyncEvent) -> bool {
        let is_its = |qp: &HostQp| match event {
            AsyncEvent::Qp(index, _) => index == qp.handle.index,
            AsyncEvent::Cq(index, _) => index == qp.cq_index,
            _ => false,
        };
        host == self.host && self.qps.iter().any(is_its)
    }

    /// Overwrites words of a queue with arbitrary values, or posts a request that may be valid.
    fn act(&mut self, world: &World<'_>) {
        let host = &world.net.hosts()[self.host];
        let which = self.below(QPS);
        if self.below(3) == 0 {
            let (opcode, length) = (WrOpcode::ALL[self.below(WrOpcode::ALL.len())], self.below(1500) as u32);
            let (rkey, remote_addr) = self.other;
            let wr = SendWr { opcode, flags: SendFlags::SIGNALED, rkey, remote_addr, ..SendWr::default() };
            let (qp, sge) = (&self.qps[which], self.memory.sge(0, length));
            let _ = host.post_recv(qp, 7, &[self.memory.sge(0, BYTES)]);
            let _ = host.post_send(qp, &wr, Payload::Sges(&[sge]));
        }
        for _ in 0..self.below(4) {
            let queue = self.below(3);
            let (at, value) = (splitmix(&mut self.state) as usize, splitmix(&mut self.state));
            let words = host.shared_words(&self.qps[which])[queue];
            words[at % words.len()].store(value >> (value & 63), Relaxed);
        }
        host.ring(&self.qps[which]);
    }
}

impl World<'_> {
    /// Adds a vandal on each of the first two hosts and connects their QPs.
    fn add_vandals(&mut self, seed: u64) {
        let init = |at: usize| QpInit {
            qp_type: [QpType::Rc, QpType::Uc, QpType::Rc][at],
            caps: QpCaps { max_send_wr: 16, max_recv_wr: 16, ..QpCaps::default() },
            sq_sig_all: true,
        };
        let now = self.net.now();
        let hosts = self.net.hosts_mut();
        for host in [0, 1] {
            let qps =
                (0..QPS).map(|at| hosts[host].queue_pair().init(init(at)).cq_entries(64).create()).collect();
            let memory = hosts[host].register(BYTES as usize, Access::READ_WRITE | Access::REMOTE_ATOMIC);
            let (other, state) = ((RKey(0), 0), seed << 1 | host as u64);
            self.vandals.push(Vandal { host, qps, memory, other, state, remaining: STEPS });
        }
        for (own, peer) in [(0, 1), (1, 0)] {
            let other = &self.vandals[peer];
            self.vandals[own].other = (RKey(other.memory.key), other.memory.address);
            for at in 0..QPS {
                let way = hosts[own].path(peer as u16 + 1, false);
                let peer = self.vandals[peer].qps[at].handle.qpn;
                let to = Connected { peer, path: way, path_mtu: Mtu::Mtu256, timeout: 8, rd_atomic: 2 };
                for mut attr in to.steps(init(at).qp_type) {
                    attr.retry_cnt = attr.retry_cnt.map(|_| 1);
                    attr.rnr_retry = attr.rnr_retry.map(|_| 1);
                    hosts[own].modify(now, &self.vandals[own].qps[at], &attr).expect("a step");
                }
            }
        }
    }

    /// Runs a step of each vandal.
    pub fn vandalize(&mut self) {
        let mut vandals = std::mem::take(&mut self.vandals);
        for vandal in vandals.iter_mut().filter(|vandal| vandal.remaining > 0) {
            vandal.remaining -= 1;
            vandal.act(self);
            self.outcome.add("acts of vandals", 1);
        }
        self.vandals = vandals;
    }

    /// Destroys all objects of the vandals.
    fn remove_vandals(&mut self) {
        self.take_events();
        let now = self.net.now();
        for vandal in std::mem::take(&mut self.vandals) {
            let host = &mut self.net.hosts_mut()[vandal.host];
            for qp in &vandal.qps {
                let failed = host.query(now, qp).state == QpState::Err;
                self.outcome.add(if failed { "vandals' QPs failed" } else { "vandals' QPs whole" }, 1);
                host.call(now, Command::DestroyQp(qp.handle.index)).expect("the vandal's own object");
                host.call(now, Command::DestroyCq(qp.cq_index)).expect("the vandal's own object");
            }
            host.call(now, Command::ReleaseMemory(vandal.memory.index)).expect("the vandal's own object");
            host.take_back_events(|event| vandal.owns(vandal.host, event));
        }
    }

    /// Runs a script with vandals on its first hosts.
    fn run_vandalized(script: &Script, seed: u64) -> Outcome {
        let mut world = World::new(script, None, crate::weather::Records::default());
        world.add_vandals(seed);
        world.live();
        world.remove_vandals();
        world.audit()
    }
}

/// True if no host changes its addresses, MTU or NIC, so that vandals stay connected.
fn stays(script: &Script) -> bool {
    !script.hosts.ipv6
        && !script.has(|action| {
            matches!(
                action,
                Action::Restart(_) | Action::Move(..) | Action::Readdress(_) | Action::LinkMtu(..)
            )
        })
}

#[test]
fn honest_flows_hold_beside_vandals() {
    let (first, count) = (variable("FIRST", 1), variable("SEEDS", SEEDS));
    let (mut seeds, mut all) = (0, std::collections::BTreeMap::<&str, u64>::new());
    for seed in first..first.saturating_add(count) {
        let script = generate::script(seed);
        if !stays(&script) {
            continue;
        }
        let outcome = judge(|| World::run_vandalized(&script, seed));
        let outcome = outcome.unwrap_or_else(|why| panic!("FIRST={seed} SEEDS=1: {why}"));
        seeds += 1;
        for name in ["acts of vandals", "vandals' QPs failed", "vandals' QPs whole", "sent_pkts"] {
            *all.entry(name).or_default() += outcome.counts.get(name).copied().unwrap_or_default();
        }
    }
    println!("{seeds} seeds beside vandals: {all:?}");
    if count >= SEEDS {
        assert!(seeds >= SEEDS / 10, "{seeds} of {SEEDS} seeds");
        assert!(all.values().all(|value| *value > 0), "{all:?}");
    }
}
