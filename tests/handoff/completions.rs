//! Completions and their events: `src/shared/completion_queue.rs`. One thread takes, one or two bring.

use loom::sync::Arc;
use loom::thread;

use crate::completion_queue::{Armed, CompletionRing};
use crate::verbs::{Wc, WcFlags};
use crate::{Alarm, check};

fn completion(id: u64) -> Wc {
    Wc { wr_id: id, byte_len: id as u32, imm: id as u32, slid: id as u16, ..Wc::default() }
}

/// A worker: publishes, and tells who asked for it.
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

/// Who asks for an event, finds nothing and sleeps is woken by each completion, though no other comes after it.
#[test]
fn who_asks_for_an_event_and_finds_nothing_is_woken() {
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

/// The same of several that come in one step, if the last of them is the one that was asked for: one event tells of all.
#[test]
fn who_asks_while_several_come_at_once_is_woken() {
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

/// Two workers take several places each, and write them at their own pace.
#[test]
fn places_that_are_taken_together_are_nobody_elses() {
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
        // Three places for four: of one of the two the second had none, unless one was polled in time.
        let expected: Vec<u64> = [(1, pushed[0]), (3, pushed[1])]
            .into_iter()
            .flat_map(|(first, n)| first..first + n as u64)
            .collect();
        assert_eq!(taken, expected, "pushed {pushed:?}");
    });
}

/// A completion that is there when the event is asked for is told of by one of the two.
#[test]
fn a_completion_that_comes_with_the_request_is_told_of_once() {
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
fn a_completion_is_seen_whole_or_not_at_all_also_in_a_slot_that_is_used_again() {
    check(|| {
        let ring = CompletionRing::new(1).unwrap();
        ring.push(&completion(1), 1).unwrap();
        let nic = {
            let ring = ring.clone();
            thread::spawn(move || ring.push(&completion(2), 2).is_ok())
        };
        assert_eq!(poll(&ring), Some(1));
        let second = poll(&ring);
        // Overflow, if nothing was taken yet.
        let pushed = nic.join().unwrap();
        assert!(matches!(second, None | Some(2)), "{second:?}");
        assert_eq!(second.or_else(|| poll(&ring)), pushed.then_some(2));
    });
}

/// Workers bring theirs at the same time.
#[test]
fn of_two_that_bring_each_completion_is_taken_once() {
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

/// One worker has taken its place in the queue and written nothing, the other's completion stands behind it and is the one that was
/// asked for: told of by whoever comes last, for nobody can poll it yet.
#[test]
fn a_solicited_completion_behind_one_that_is_being_written_is_told_of() {
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
        assert!(at_once || by_workers[0] || by_workers[1], "nobody tells of it");
        assert!(ring.take_event());
    });
}
