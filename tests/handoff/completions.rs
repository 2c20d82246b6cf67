//! Completions and their events: `src/nic/shared/completion_queue.rs`. One thread polls, one or two produce.

use loom::sync::Arc;
use loom::thread;

use crate::completion_queue::{Armed, CompletionRing};
use crate::verbs::{Wc, WcFlags};
use crate::{Alarm, check};

impl CompletionRing {
    /// Models have no futexes.
    pub(crate) fn wake_sleepers(&self) {}
}

fn completion(id: u64) -> Wc {
    Wc { wr_id: id, byte_len: id as u32, imm: id as u32, vlan: id as u16, ..Wc::default() }
}

/// A worker: publishes a completion, and raises the event if the queue is armed.
fn bring(ring: &CompletionRing, wc: &Wc, channel: &Alarm) {
    ring.push(wc, wc.wr_id).unwrap();
    if ring.disarm_for(wc) {
        channel.ring();
    }
}

fn poll(ring: &CompletionRing) -> Option<u64> {
    let (wc, time) = ring.poll_timed()?;
    assert_eq!((wc, time), (completion(wc.wr_id), wc.wr_id), "a completion in parts");
    Some(wc.wr_id)
}

/// A thread that arms the queue, finds it empty and sleeps is woken by the next completion, even if no other follows.
#[test]
fn armed_sleeper_is_woken() {
    check(|| {
        let (ring, channel) = (CompletionRing::new(1).unwrap(), Arc::new(Alarm::default()));
        let nic = {
            let (ring, channel) = (ring.clone(), Arc::clone(&channel));
            thread::spawn(move || bring(&ring, &completion(1), &channel))
        };
        while poll(&ring).is_none() {
            if !ring.arm(Armed::Next) && !ring.has_completions() {
                channel.sleep();
            }
        }
        nic.join().unwrap();
    });
}

/// Several completions are published at once, and the last of them matches the request: one event covers all.
#[test]
fn batch_of_completions_wakes_armed_sleeper() {
    check(|| {
        let (ring, channel) = (CompletionRing::new(2).unwrap(), Arc::new(Alarm::default()));
        let nic = {
            let (ring, channel) = (ring.clone(), Arc::clone(&channel));
            thread::spawn(move || {
                let both = [completion(1), Wc { flags: WcFlags::SOLICITED, ..completion(2) }];
                assert_eq!(ring.push_all(both.iter(), 0), 2);
                if ring.disarm_for_any(both.iter()) {
                    channel.ring();
                }
            })
        };
        let mut taken = 0;
        while taken < 2 {
            match ring.poll() {
                Some(wc) => taken = wc.wr_id,
                None if !ring.arm(Armed::Solicited) && !ring.has_completions() => channel.sleep(),
                None => {}
            }
        }
        nic.join().unwrap();
    });
}

/// Two workers take several slots each, and fill them at their own pace.
#[test]
fn batched_slots_belong_to_one_worker() {
    check(|| {
        let ring = CompletionRing::new(3).unwrap();
        let workers = [[1, 2], [3, 4]].map(|ids| {
            let ring = ring.clone();
            thread::spawn(move || ring.push_all(ids.map(completion).iter(), 0))
        });
        let mut taken: Vec<u64> = ring.poll().into_iter().map(|wc| wc.wr_id).collect();
        let pushed = workers.map(|worker| worker.join().unwrap());
        taken.extend(std::iter::from_fn(|| ring.poll()).map(|wc| wc.wr_id));
        taken.sort_unstable();
        // Three slots for four completions: the second of one worker found none, unless one was polled in time.
        let expected: Vec<u64> = [(1, pushed[0]), (3, pushed[1])]
            .into_iter()
            .flat_map(|(first, n)| first..first + n as u64)
            .collect();
        assert_eq!(taken, expected, "pushed {pushed:?}");
    });
}

/// A completion that is published while the queue is armed is reported by one of the two threads.
#[test]
fn completion_during_arming_is_reported_once() {
    check(|| {
        let ring = CompletionRing::new(1).unwrap();
        let nic = {
            let ring = ring.clone();
            thread::spawn(move || {
                ring.push(&completion(1), 1).unwrap();
                ring.disarm_for(&completion(1))
            })
        };
        let at_once = ring.arm(Armed::Next);
        let by_nic = nic.join().unwrap();
        assert!(at_once != by_nic, "told at once {at_once}, by the NIC {by_nic}");
        assert!(ring.take_event() && !ring.take_event());
    });
}

#[test]
fn reused_completion_slot_is_never_torn() {
    check(|| {
        let ring = CompletionRing::new(1).unwrap();
        ring.push(&completion(1), 1).unwrap();
        let nic = {
            let ring = ring.clone();
            thread::spawn(move || ring.push(&completion(2), 2).is_ok())
        };
        assert_eq!(poll(&ring), Some(1));
        let second = poll(&ring);
        // Overflow, if the first was not polled yet.
        let pushed = nic.join().unwrap();
        assert!(matches!(second, None | Some(2)), "{second:?}");
        assert_eq!(second.or_else(|| poll(&ring)), pushed.then_some(2));
    });
}

/// Workers publish at the same time.
#[test]
fn two_producers_lose_no_completion() {
    check(|| {
        let ring = CompletionRing::new(2).unwrap();
        let workers = [1, 2].map(|id| {
            let ring = ring.clone();
            thread::spawn(move || ring.push(&completion(id), id).unwrap())
        });
        let mut taken: Vec<u64> = (0..2).filter_map(|_| poll(&ring)).collect();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        taken.extend(std::iter::from_fn(|| poll(&ring)));
        taken.sort_unstable();
        assert_eq!(taken, [1, 2]);
    });
}

/// One worker has taken its slot and not filled it yet. The other's completion behind it is the solicited one. The
/// worker that finishes last raises the event, because the completion cannot be polled before.
#[test]
fn solicited_completion_behind_unfinished_slot_is_reported() {
    check(|| {
        let ring = CompletionRing::new(2).unwrap();
        let solicited = Wc { flags: WcFlags::SOLICITED, ..completion(2) };
        let workers = [completion(1), solicited].map(|wc| {
            let ring = ring.clone();
            thread::spawn(move || {
                ring.push(&wc, wc.wr_id).unwrap();
                ring.disarm_for(&wc)
            })
        });
        let at_once = ring.arm(Armed::Solicited);
        let by_workers = workers.map(|worker| worker.join().unwrap());
        assert!(at_once || by_workers[0] || by_workers[1], "no event reports it");
        assert!(ring.take_event());
    });
}
