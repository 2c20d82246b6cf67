//! Completion queues: size, events, and the fields of a completion (IBTA 10.2.6, 10.4.2, 11.2.8).

use std::sync::Arc;

use nix::sys::eventfd::{EfdFlags, EventFd};
use roxie::nic::{Command, ControlError, MemoryCommand, ObjectKind};
use roxie::shared::work_queue::Payload;
use roxie::shared::{Armed, CompletionRing};
use roxie::time::Nanos;
use roxie::verbs::{CqIndex, QpState, Qpn, SendWr, Wc, WcFlags, WcStatus};
use roxie::wire::{Bth, Ext, NakCode, Opcode, Psn};

use crate::transport::{Answer, FIRST, Setup, Stage};

const PERIOD: Nanos = Nanos::from_micros(50);

/// A stage with an event channel on its completion queue.
struct Watched {
    stage: Stage,
    cq: CqIndex,
    ring: CompletionRing,
    channel: Arc<EventFd>,
    psn: u32,
}

impl Watched {
    fn new(entries: u32) -> Watched {
        let mut stage = Stage::new();
        let channel = Arc::new(EventFd::from_flags(EfdFlags::EFD_NONBLOCK).expect("a descriptor"));
        let (cq, ring) = stage.host.create_cq(entries, Some(Arc::clone(&channel)));
        stage.qp = stage.host.queue_pair().signal_all().cq((cq, ring.clone())).create();
        stage.connect(&Setup::default());
        for id in 0..64 {
            stage.receive(id, 0, 8);
        }
        Watched { stage, cq, ring, channel, psn: 0 }
    }

    fn deliver(&mut self, solicited: bool) {
        let dest_qp = self.stage.qp.handle.qpn;
        let opcode = Opcode::RC_SEND_ONLY;
        let psn = Psn::new(self.psn);
        self.stage.send(&Bth { opcode, dest_qp, psn, solicited, ..Bth::default() }, &Ext::None, &[1]);
        self.stage.host.worker.poll(self.stage.now);
        self.psn += 1;
    }

    fn deliver_many(&mut self, count: u32) {
        (0..count).for_each(|_| self.deliver(false));
    }

    /// Requests an event, as `ibv_req_notify_cq` does.
    fn arm(&self, armed: Armed) {
        if self.ring.arm(armed) {
            self.channel.write(1).expect("room");
        }
    }

    /// Returns the number of events since the last call.
    fn events(&self) -> u64 {
        self.channel.read().unwrap_or(0)
    }

    fn moderate(&mut self, count: u32, period: Nanos) -> Result<(), ControlError> {
        let command = Command::ModerateCq { cq: self.cq, count, period };
        self.stage.host.call(self.stage.now, command).map(drop)
    }

    fn resize(&mut self, entries: u32) -> Result<(), ControlError> {
        let ring = CompletionRing::new(entries).expect("memory");
        self.stage.host.call(self.stage.now, MemoryCommand::ResizeCq { cq: self.cq, ring: ring.clone() })?;
        self.ring = ring;
        Ok(())
    }

    fn ids(&self) -> Vec<u64> {
        std::iter::from_fn(|| self.ring.poll()).map(|wc| wc.wr_id).collect()
    }

    /// Advances the clock and runs one pass.
    fn sleep(&mut self, time: Nanos) {
        self.stage.now = self.stage.now + time;
        self.stage.host.worker.poll(self.stage.now);
    }
}

//= test: IBTA 10.8.3: receives-complete-in-order
#[test]
fn cq_resize_keeps_the_order_of_completions() {
    let mut watched = Watched::new(4);
    watched.deliver_many(3);
    watched.resize(16).expect("larger");
    watched.deliver_many(8);
    watched.resize(11).expect("as many as wait");
    assert_eq!(watched.ids(), (0..11).collect::<Vec<_>>());
    watched.deliver_many(2);
    assert_eq!(watched.ids(), [11, 12]);
    assert_eq!(watched.stage.counter("cq_overflow"), 0);
}

#[test]
fn cq_resize_below_its_completions_is_refused() {
    let mut watched = Watched::new(8);
    watched.deliver_many(5);
    let refused = ControlError::TooSmall { object: ObjectKind::CompletionQueue, size: 4, holds: 5 };
    assert_eq!(watched.resize(4), Err(refused));
    watched.deliver_many(3);
    assert_eq!(watched.ids(), (0..8).collect::<Vec<_>>());
    watched.resize(4).expect("nothing waits");
    watched.deliver_many(5);
    assert_eq!(watched.ids(), [8, 9, 10, 11], "four fit, and the QP has failed");
    assert_eq!(watched.stage.state(), QpState::Err);
}

//= test: IBTA 11.4.2.2: solicited-event-is-raised
#[test]
fn cq_resize_keeps_the_armed_state() {
    let mut watched = Watched::new(4);
    watched.arm(Armed::Solicited);
    watched.resize(16).expect("larger");
    watched.deliver(false);
    assert_eq!(watched.events(), 0);
    watched.deliver(true);
    assert_eq!(watched.events(), 1);
}

//= test: IBTA 11.4.2.2: notification-is-once
#[test]
fn moderated_event_waits_for_its_count() {
    let mut watched = Watched::new(64);
    watched.moderate(3, PERIOD).expect("a count and a period");
    watched.deliver_many(5);
    assert_eq!(watched.events(), 0, "not armed");
    watched.ids();
    watched.arm(Armed::Next);
    watched.deliver_many(2);
    assert_eq!(watched.events(), 0);
    watched.deliver(false);
    assert_eq!(watched.events(), 1);
    watched.deliver_many(5);
    assert_eq!(watched.events(), 0, "one event for each arming");
}

#[test]
fn moderated_event_fires_when_its_period_ends() {
    let mut watched = Watched::new(64);
    watched.moderate(100, PERIOD).expect("a count and a period");
    watched.arm(Armed::Next);
    let first = watched.stage.now;
    watched.deliver(false);
    watched.sleep(Nanos(PERIOD.0 / 2));
    watched.deliver(false);
    assert_eq!(watched.stage.host.worker.next_deadline(), first + PERIOD, "from the first completion");
    watched.sleep(Nanos(PERIOD.0 / 2 - 1));
    assert_eq!(watched.events(), 0);
    watched.sleep(Nanos(1));
    assert_eq!(watched.events(), 1);
    watched.sleep(Nanos(10 * PERIOD.0));
    assert_eq!(watched.events(), 0);
    assert_eq!(watched.stage.host.worker.next_deadline(), Nanos::MAX);
}

/// The application polls the completion of a held event and arms the queue again. The held event is raised, and the
/// next one too.
#[test]
fn rearming_during_moderation_loses_no_event() {
    let mut watched = Watched::new(64);
    watched.moderate(2, PERIOD).expect("a count and a period");
    watched.arm(Armed::Next);
    watched.deliver(false);
    assert_eq!(watched.ids().len(), 1);
    watched.arm(Armed::Next);
    watched.deliver(false);
    assert_eq!(watched.events(), 1);
    watched.deliver(false);
    watched.sleep(PERIOD);
    assert_eq!(watched.events(), 1, "for the second arming");
}

#[test]
fn error_completion_bypasses_moderation() {
    let mut watched = Watched::new(64);
    watched.moderate(100, PERIOD).expect("a count and a period");
    watched.arm(Armed::Solicited);
    let long = [0; 9];
    let to = watched.stage.qp.handle.qpn;
    let bth = Bth { opcode: Opcode::RC_SEND_ONLY, dest_qp: to, ..Bth::default() };
    watched.stage.send(&bth, &Ext::None, &long);
    let answers = watched.stage.answers();
    assert_eq!(answers, [Answer::nak(0, NakCode::InvalidRequest)]);
    assert_eq!(watched.ring.poll().map(|wc| wc.status), Some(WcStatus::LocLen));
    assert_eq!(watched.events(), 1);
}

#[test]
fn disabling_moderation_raises_the_held_event() {
    let mut watched = Watched::new(64);
    watched.moderate(100, PERIOD).expect("a count and a period");
    watched.arm(Armed::Next);
    watched.deliver(false);
    watched.moderate(0, Nanos::ZERO).expect("none");
    assert_eq!(watched.events(), 1);
    watched.ids();
    watched.arm(Armed::Next);
    watched.deliver(false);
    assert_eq!(watched.events(), 1, "at once");
    let endless = watched.moderate(2, Nanos::ZERO);
    assert!(matches!(endless, Err(ControlError::WrongKind(_))), "{endless:?}");
}

#[test]
fn completion_carries_its_timestamp() {
    let mut watched = Watched::new(64);
    watched.sleep(Nanos(1_234));
    let first = watched.stage.now;
    watched.deliver(false);
    watched.sleep(Nanos(5_000));
    watched.deliver(true);
    let timed: Vec<_> = std::iter::from_fn(|| watched.ring.poll_timed()).collect();
    let times: Vec<_> = timed.iter().map(|(_, time)| *time).collect();
    assert_eq!(times, [first.0, watched.stage.now.0]);
    let own = watched.stage.qp.handle.qpn;
    let expected =
        |wr_id| Wc { wr_id, opcode: roxie::verbs::WcOpcode::Recv, qpn: own, byte_len: 1, ..Wc::default() };
    assert_eq!(timed.iter().map(|(wc, _)| *wc).collect::<Vec<_>>(), [expected(0), expected(1)]);
}

/// Arming over a pending completion raises the event at once, without moderation.
#[test]
fn arming_over_a_pending_completion_raises_an_event() {
    let mut watched = Watched::new(64);
    watched.moderate(3, PERIOD).expect("a count and a period");
    watched.deliver(false);
    watched.arm(Armed::Solicited);
    assert_eq!(watched.events(), 0, "it is not solicited");
    watched.arm(Armed::Next);
    assert_eq!(watched.events(), 1);
    watched.deliver_many(5);
    watched.sleep(PERIOD);
    assert_eq!(watched.events(), 0, "one event for each arming");
}

/// Runs every interleaving of the NIC's steps (push, check whether armed) and the application's (arm, poll). The
/// application never sleeps while a completion waits without an event.
//= test: IBTA 11.4.2.2: notification-is-not-lost, notification-is-once
#[test]
fn no_interleaving_loses_an_event() {
    const COMPLETIONS: usize = 3;
    const ROUNDS: usize = 2;
    let (nic_steps, app_steps) = (2 * COMPLETIONS, 2 * ROUNDS);
    let mut orders = 0;
    for order in 0..1u32 << (nic_steps + app_steps) {
        if order.count_ones() as usize != app_steps {
            continue;
        }
        for solicited in 0..1u32 << COMPLETIONS {
            for armed in [Armed::Next, Armed::Solicited] {
                play(order, nic_steps + app_steps, solicited, armed);
                orders += 1;
            }
        }
    }
    assert_eq!(orders, 210 * 8 * 2);
}

fn play(order: u32, steps: usize, solicited: u32, armed: Armed) {
    let ring = CompletionRing::new(4).expect("memory");
    let completion = |n: usize| Wc {
        wr_id: n as u64,
        flags: if solicited >> n & 1 != 0 { WcFlags::SOLICITED } else { WcFlags::empty() },
        qpn: Qpn::new(1),
        ..Wc::default()
    };
    let wanted = |n: usize| armed == Armed::Next || solicited >> n & 1 != 0;
    let (mut nic, mut app, mut seen, mut armed_count, mut notified, mut reported_since) = (0, 0, 0, 0, 0, 0);
    for step in 0..steps {
        match (order >> step & 1 != 0, nic % 2, app % 2) {
            (true, _, 0) => {
                let notifies = u32::from(ring.arm(armed));
                (armed_count, notified, reported_since, app) =
                    (armed_count + 1, notified + notifies, notifies, app + 1);
            }
            (true, ..) => {
                seen += std::iter::from_fn(|| ring.poll()).count();
                app += 1;
            }
            (false, 0, _) => {
                ring.push(&completion(nic / 2), 0).expect("room");
                nic += 1;
            }
            (false, ..) => {
                let notifies = u32::from(ring.disarm_for(&completion(nic / 2)));
                (notified, reported_since, nic) = (notified + notifies, reported_since + notifies, nic + 1);
            }
        }
    }
    let case = format!("order {order:#b}, solicited {solicited:#b}, {armed:?}");
    let waits = (seen..nic / 2).any(wanted);
    assert!(!waits || reported_since > 0, "{case}: a completion waits without an event");
    assert!(notified <= armed_count, "{case}: {notified} events, armed {armed_count} times");
}

/// Runs NIC and application as threads. The application, which sleeps on the channel, sees every completion.
#[test]
fn racing_threads_lose_no_event() {
    const COUNT: u64 = 20_000;
    let ring = CompletionRing::new(COUNT as u32).expect("memory");
    let (wake, woken) = std::sync::mpsc::channel();
    let nic = ring.clone();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for wr_id in 0..COUNT {
                let wc = Wc { wr_id, ..Wc::default() };
                nic.push(&wc, 0).expect("room");
                if nic.disarm_for(&wc) {
                    wake.send(()).expect("the application receives");
                }
            }
        });
        let mut seen = 0;
        while seen < COUNT {
            let at_once = ring.arm(Armed::Next);
            let new = std::iter::from_fn(|| ring.poll()).count() as u64;
            seen += new;
            if new == 0 {
                assert!(!at_once, "an event without a completion");
                let notified = woken.recv_timeout(std::time::Duration::from_secs(20));
                assert!(notified.is_ok(), "asleep with {seen} of {COUNT} seen");
            }
        }
    });
}

/// A request that is outstanding during the resize completes to the new ring.
#[test]
fn outstanding_sends_complete_after_a_cq_resize() {
    let mut watched = Watched::new(4);
    let sges = [watched.stage.memory.sge(0, 8)];
    let wr = SendWr { wr_id: 99, ..SendWr::default() };
    watched.stage.host.post_send(&watched.stage.qp, &wr, Payload::Sges(&sges)).expect("room");
    watched.stage.wait(Nanos(1000));
    watched.resize(32).expect("larger");
    watched.stage.acknowledge(FIRST, roxie::wire::Syndrome::Ack { credits: 31 }, 1);
    watched.stage.wait(Nanos(1000));
    assert_eq!(watched.ids(), [99]);
}
