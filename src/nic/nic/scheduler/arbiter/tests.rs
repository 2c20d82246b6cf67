//! The queues against a model of them, and shares against weights.

use super::*;

/// A generator of numbers, by seed (Knuth's constants).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }
}

/// The expected content of the queues.
#[derive(Default)]
struct Model {
    urgent: VecDeque<QpIndex>,
    queues: [VecDeque<QpIndex>; PRIORITIES],
    paused_until: [Nanos; PRIORITIES],
}

impl Model {
    fn is_open(&self, p: usize) -> bool {
        !self.queues[p].is_empty() && self.paused_until[p] == Nanos::ZERO
    }

    fn resume(&mut self, now: Nanos) {
        self.paused_until.iter_mut().filter(|until| **until <= now).for_each(|until| *until = Nanos::ZERO);
    }

    fn compare(&self, arbiter: &Arbiter) {
        assert_eq!(arbiter.inconsistency(), None);
        assert!(arbiter.urgent().eq(self.urgent.iter().copied()));
        let all = self.queues.iter().zip(0..).flat_map(|(queue, p)| queue.iter().map(move |qp| (p, *qp)));
        assert!(arbiter.all().eq(all));
        assert_eq!(arbiter.has_urgent(), !self.urgent.is_empty());
        assert_eq!(arbiter.has_ready(), !self.urgent.is_empty() || (0..PRIORITIES).any(|p| self.is_open(p)));
        let paused = |p: usize| self.paused_until[p] > Nanos::ZERO;
        assert_eq!(arbiter.has_paused(), (0..PRIORITIES).any(paused));
        assert!((0..PRIORITIES).all(|p| arbiter.is_paused(p as u8) == paused(p)));
        let waits = (0..PRIORITIES).filter(|p| paused(*p) && !self.queues[*p].is_empty());
        let next = waits.map(|p| self.paused_until[p]).min();
        assert_eq!(arbiter.next_resume(), next.unwrap_or(Nanos::MAX));
    }
}

/// Among several open queues, the highest strict one is served first. The order of weighted ones is not checked here.
#[test]
fn random_operations_match_the_model() {
    for seed in 0..200 {
        let mut numbers = Numbers(seed);
        // A QP may be queued in each step here.
        let mut arbiter = Arbiter::new(400);
        let mut model = Model::default();
        let strict: [bool; PRIORITIES] = std::array::from_fn(|_| numbers.below(3) == 0);
        arbiter.set_services(strict.map(|is| if is { Service::Strict } else { Service::Weighted(3) }));
        (0..PRIORITIES as u8).for_each(|p| arbiter.prepare(p, 400));
        let mut now = Nanos(1);
        for step in 0..400 {
            let (p, qp) = (numbers.below(PRIORITIES), QpIndex(numbers.below(8) as u32));
            match numbers.below(12) {
                0..=2 => {
                    arbiter.push(p as u8, qp);
                    model.queues[p].push_back(qp);
                }
                3 => {
                    arbiter.push_front(p as u8, qp);
                    model.queues[p].push_front(qp);
                }
                4 => {
                    arbiter.push_urgent(qp);
                    model.urgent.push_back(qp);
                }
                5 => assert_eq!(arbiter.pop_urgent(), model.urgent.pop_front()),
                6 => {
                    arbiter.remove_waiting(p as u8, qp);
                    model.queues[p].retain(|other| *other != qp);
                }
                7 => {
                    arbiter.remove(qp);
                    model.queues.iter_mut().chain([&mut model.urgent]).for_each(|q| q.retain(|o| *o != qp));
                }
                8 => {
                    // `until` may equal `now`, which ends the pause.
                    let until = Nanos(now.0 + numbers.below(4) as u64);
                    arbiter.pause(now, p as u8, until);
                    model.paused_until[p] = if until > now { until } else { Nanos::ZERO };
                }
                9 => {
                    now = Nanos(now.0 + numbers.below(3) as u64);
                    arbiter.resume(now);
                    model.resume(now);
                }
                _ => {
                    let open: Vec<_> = (0..PRIORITIES).filter(|p| model.is_open(*p)).collect();
                    let first = open.iter().rev().copied().find(|p| strict[*p]);
                    let allowed = first.map_or(open, |p| vec![p]);
                    let before: Vec<_> = arbiter.all().collect();
                    let popped = arbiter.pop();
                    // Finds the queue that has become shorter.
                    let after: Vec<_> = arbiter.all().collect();
                    let of = |all: &[(u8, QpIndex)], p: usize| {
                        all.iter().filter(|(q, _)| usize::from(*q) == p).count()
                    };
                    let from = (0..PRIORITIES).find(|p| of(&before, *p) != of(&after, *p));
                    assert_eq!(from.is_some(), !allowed.is_empty(), "seed {seed}, step {step}");
                    assert!(from.is_none_or(|p| allowed.contains(&p)), "seed {seed}, step {step}: {from:?}");
                    assert_eq!(popped, from.and_then(|p| model.queues[p].pop_front()));
                    if let Some(p) = from {
                        arbiter.charge(p as u8, 64 + numbers.below(4096));
                    }
                }
            }
            model.compare(&arbiter);
        }
    }
}

/// Bytes sent by weight never differ by more than a round and a frame of either queue.
#[test]
fn weighted_queues_share_by_weight_at_every_step() {
    const LONGEST: usize = 4200;
    let weights = [1, 4, 10, 100];
    for seed in 0..20 {
        let mut numbers = Numbers(seed);
        let mut arbiter = Arbiter::new(8);
        let mut services = [Service::Strict; PRIORITIES];
        for (p, weight) in weights.into_iter().enumerate() {
            services[p] = Service::Weighted(weight);
            arbiter.prepare(p as u8, 8);
        }
        arbiter.set_services(services);
        (0..weights.len()).for_each(|p| arbiter.push(p as u8, QpIndex(p as u32)));
        let mut sent = [0.0; 4];
        for step in 0..20_000 {
            let qp = arbiter.pop().expect("all have something");
            let (p, bytes) = (qp.0 as usize, 64 + numbers.below(LONGEST - 64));
            arbiter.push(p as u8, qp);
            arbiter.charge(p as u8, bytes);
            sent[p] += bytes as f64;
            for (a, b) in (0..4).flat_map(|a| (0..4).map(move |b| (a, b))) {
                let by_weight = |p: usize| sent[p] / f64::from(weights[p]);
                let most = 2 * UNIT as usize + LONGEST / usize::from(weights[b].min(weights[a]));
                let apart = by_weight(a) - by_weight(b);
                assert!(apart <= most as f64, "seed {seed}, step {step}: {a} is {apart} ahead of {b}");
            }
        }
        assert!(sent.iter().all(|sent| *sent > 0.0));
    }
}

/// A queue that had the link to itself owes what it sent, up to a bound: others are then served first for that many
/// bytes.
#[test]
fn debt_of_a_lone_queue_is_bounded() {
    let mut arbiter = Arbiter::new(8);
    for p in [0, 1] {
        arbiter.prepare(p, 8);
    }
    let alone = QpIndex(0);
    for _ in 0..10_000 {
        arbiter.push(0, alone);
        assert_eq!(arbiter.pop(), Some(alone));
        arbiter.charge(0, 1000);
    }
    arbiter.push(0, alone);
    arbiter.push(1, QpIndex(1));
    let mut others = 0;
    while let Some(QpIndex(1)) = arbiter.pop() {
        arbiter.charge(1, 1000);
        arbiter.push(1, QpIndex(1));
        others += 1000;
    }
    assert!((DEEPEST - 2 * UNIT..DEEPEST + 2 * UNIT + 1000).contains(&others), "{others} of {DEEPEST}");
}

#[test]
fn acknowledgements_overtake_once_two_priorities_are_used() {
    let mut arbiter = Arbiter::new(100);
    assert!(arbiter.queues[0].waiting.capacity() >= 100 && arbiter.urgent.capacity() >= 100);
    assert!(!arbiter.has_priorities());
    arbiter.note_use(0);
    assert!(!arbiter.has_priorities());
    arbiter.charge(0, 1000);
    assert_eq!(arbiter.queues[0].credit, 0, "with one priority there is no debt");
    arbiter.note_use(3);
    assert!(arbiter.has_priorities());
    arbiter.prepare(5, 70);
    assert!(arbiter.queues[5].waiting.capacity() >= 70 && arbiter.used == 0b10_1001);
    arbiter.push(5, QpIndex(1));
    arbiter.reserve(5, 200);
    assert!(arbiter.queues[5].waiting.capacity() >= 200);
}
