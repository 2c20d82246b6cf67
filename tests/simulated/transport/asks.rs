//! Acknowledgements that the requester asks for: at once where a completion depends on them, else late (IBTA 9.7.3).

use roxie::nic::Command;
use roxie::shared::work_queue::Payload;
use roxie::time::Nanos;
use roxie::verbs::{
    Access, EventKind, LKey, Psn, QpAttr, QpState, RateLimit, SendFlags, SendWr, Sge, WcStatus, WrOpcode,
};
use roxie::wire::{Aeth, Ext, Opcode, Syndrome};

use crate::transport::regions::memory;
use crate::transport::{FIRST, Setup, Stage, TIMEOUT};

const SOON: Nanos = Nanos(1000);
/// Time after which the requester asks, if nothing else did.
const QUIET: Nanos = Nanos(1_000_000);
/// Resolution of the NIC's timers, and more.
const TICK: Nanos = Nanos(20_000);
const ACK: Syndrome = Syndrome::Ack { credits: 31 };
const UNSIGNALED: SendFlags = SendFlags::empty();
/// The PSN behind that of the acknowledged SEND of [`stage`].
const NEXT: Psn = Psn::new(0xff_ffff);

/// Returns a stage whose QP completes signaled requests only.
fn new_stage() -> Stage {
    Stage::with(Setup { sq_sig_all: false, ..Setup::default() })
}

/// As [`new_stage`], with an acknowledged SEND. The next packet is [`NEXT`].
fn stage() -> Stage {
    let mut stage = new_stage();
    stage.post_as(0, WrOpcode::Send, UNSIGNALED, 4);
    assert_eq!(ack_requests(&mut stage), [(FIRST, true)], "no PSN is left for a probe");
    stage.acknowledge(FIRST, ACK, 1);
    stage.wait(SOON);
    stage
}

/// Returns the PSNs of the packets that leave now, and whether each asks for an acknowledgement.
fn ack_requests(stage: &mut Stage) -> Vec<(Psn, bool)> {
    stage.packets().iter().map(|(packet, _)| (packet.bth.psn, packet.bth.ack_req)).collect()
}

//= test: IBTA 9.7.3: ack-is-asked-for
#[test]
fn unsignaled_messages_ask_after_a_quiet_time() {
    let mut stage = stage();
    stage.post_as(1, WrOpcode::Write, UNSIGNALED, 4);
    stage.post_as(2, WrOpcode::Write, UNSIGNALED, 600);
    assert_eq!(ack_requests(&mut stage), [0, 1, 2, 3].map(|n| (NEXT + n, false)));
    assert_eq!(stage.wait(QUIET - SOON), []);
    stage.now = stage.now + SOON + TICK;
    let (probe, payload) = stage.packets().pop().expect("a probe");
    let duplicate = (Opcode::RC_SEND_ONLY, NEXT - 1, true);
    assert_eq!((probe.bth.opcode, probe.bth.psn, probe.bth.ack_req), duplicate);
    assert_eq!((probe.reth(), payload), (None, Vec::new()));
    stage.acknowledge(NEXT + 3, ACK, 3);
    assert_eq!(stage.wait(TIMEOUT + TIMEOUT), []);
    assert_eq!(["tail_probes", "local_ack_timeout_err"].map(|name| stage.counter(name)), [1, 0]);
    assert_eq!(stage.statuses(), []);
}

//= test: IBTA 9.7.3: ack-is-asked-for
#[test]
fn signaled_message_asks_for_those_before_it() {
    let mut stage = stage();
    stage.post_as(1, WrOpcode::Send, UNSIGNALED, 4);
    assert_eq!(ack_requests(&mut stage), [(NEXT, false)]);
    stage.wait(QUIET - SOON);
    stage.post_as(2, WrOpcode::Send, SendFlags::SIGNALED, 4);
    assert_eq!(ack_requests(&mut stage), [(NEXT + 1, true)]);
    assert_eq!(stage.wait(TIMEOUT - SOON), [], "its own timeout");
    let both = [NEXT, NEXT + 1].map(|psn| (Opcode::RC_SEND_ONLY, psn));
    assert_eq!(stage.wait(SOON + SOON), both);
    stage.acknowledge(NEXT + 1, ACK, 3);
    stage.wait(SOON);
    assert_eq!(stage.statuses(), [(2, WcStatus::Success)]);
}

/// The peer acknowledges what it has. What it lacks comes again after the local ACK timeout, counted from the probe.
//= test: IBTA 9.7.6.1.3: timeout-sends-again
#[test]
fn probe_shows_a_lost_message() {
    let mut stage = stage();
    for id in 0..3 {
        stage.post_as(id, WrOpcode::Send, UNSIGNALED, 4);
    }
    stage.wait(QUIET - SOON);
    stage.now = stage.now + SOON + TICK;
    assert_eq!(ack_requests(&mut stage), [(NEXT - 1, true)]);
    stage.acknowledge(NEXT, ACK, 2);
    assert_eq!(stage.wait(TIMEOUT - SOON), []);
    stage.now = stage.now + SOON + TICK;
    assert_eq!(ack_requests(&mut stage), [(NEXT + 1, true), (NEXT + 2, true)], "retransmissions ask");
    stage.acknowledge(NEXT + 2, ACK, 4);
    assert_eq!(stage.wait(TIMEOUT + TIMEOUT), []);
    assert_eq!(["tail_probes", "local_ack_timeout_err"].map(|name| stage.counter(name)), [1, 1]);
}

/// The peer has answered, so that the application has released the memory of its request: a probe reads none.
#[test]
fn probe_reads_no_memory() {
    let mut stage = stage();
    let region = stage.register(Access::READ_WRITE, 0, memory(4096)).expect("a region");
    let wr = SendWr { opcode: WrOpcode::Send, flags: UNSIGNALED, ..SendWr::default() };
    let sge = Sge { addr: 0, length: 600, lkey: LKey(region.key) };
    stage.host.post_send(&stage.qp, &wr, Payload::Sges(&[sge])).expect("room for a request");
    assert_eq!(stage.wait(SOON).len(), 3);
    stage.host.call(stage.now, Command::DeregisterMemory(region.index)).expect("the region exists");
    assert_eq!(stage.wait(QUIET + TICK), [(Opcode::RC_SEND_ONLY, NEXT - 1)]);
    stage.acknowledge(NEXT + 2, ACK, 2);
    stage.wait(TIMEOUT + TIMEOUT);
    assert_eq!((stage.state(), stage.statuses()), (QpState::Rts, Vec::new()));
}

/// A request that leaves before the probe asks in its place.
#[test]
fn request_asks_in_place_of_a_probe() {
    let mut stage = stage();
    stage.post_as(1, WrOpcode::Send, UNSIGNALED, 4);
    stage.wait(QUIET - SOON);
    stage.now = stage.now + SOON + TICK;
    stage.post_as(2, WrOpcode::Send, UNSIGNALED, 4);
    assert_eq!(ack_requests(&mut stage), [(NEXT + 1, true)]);
    assert_eq!(stage.counter("tail_probes"), 0);
}

#[test]
fn drain_asks_at_once() {
    let mut stage = stage();
    stage.post_as(1, WrOpcode::Send, UNSIGNALED, 4);
    assert_eq!(ack_requests(&mut stage), [(NEXT, false)]);
    let drain = QpAttr { state: Some(QpState::Sqd), en_sqd_async_notify: Some(true), ..QpAttr::default() };
    stage.host.modify(stage.now, &stage.qp, &drain).expect("a legal transition");
    stage.now = stage.now + TICK;
    assert_eq!(ack_requests(&mut stage), [(NEXT - 1, true)]);
    stage.acknowledge(NEXT, ACK, 2);
    stage.wait(SOON);
    assert_eq!(stage.events(), [EventKind::SqDrained]);
}

/// A QP with a limited rate asks each time, so that what has not asked needs a probe, and no retransmission.
#[test]
fn rate_limit_asks_for_what_is_outstanding() {
    let mut stage = stage();
    stage.post_as(1, WrOpcode::Send, UNSIGNALED, 4);
    assert_eq!(ack_requests(&mut stage), [(NEXT, false)]);
    let limit = RateLimit { kbps: 1_000_000, max_burst: 0, typical_packet: 0 };
    let attr = QpAttr { rate_limit: Some(limit), ..QpAttr::default() };
    stage.host.modify(stage.now, &stage.qp, &attr).expect("a legal transition");
    assert_eq!(ack_requests(&mut stage), [(NEXT - 1, true)]);
    stage.acknowledge(NEXT, ACK, 2);
    assert_eq!(stage.wait(TIMEOUT + TIMEOUT), []);
    stage.post_as(2, WrOpcode::Send, UNSIGNALED, 4);
    assert_eq!(ack_requests(&mut stage), [(NEXT + 1, true)]);
}

/// A probe must not have the PSN of a READ or an atomic, which have responses of their own: the first packet behind one
/// asks.
//= test: IBTA 9.7.3: ack-is-asked-for
#[test]
fn packet_behind_a_read_or_atomic_asks() {
    let answers = [
        (WrOpcode::Read, Opcode::RC_READ_RESPONSE_ONLY),
        (WrOpcode::FetchAdd, Opcode::RC_ATOMIC_ACKNOWLEDGE),
    ];
    for (opcode, answer) in answers {
        let mut stage = stage();
        stage.post_as(1, opcode, UNSIGNALED, 8);
        stage.post_as(2, WrOpcode::Write, UNSIGNALED, 600);
        let expected = [(NEXT, true), (NEXT + 1, true), (NEXT + 2, false), (NEXT + 3, false)];
        assert_eq!(ack_requests(&mut stage), expected, "{opcode:?}");
        let aeth = Aeth { syndrome: ACK.into(), msn: 2 };
        match opcode {
            WrOpcode::Read => stage.answer(answer, NEXT, Ext::Aeth(aeth), &[7; 8]),
            _ => stage.answer(answer, NEXT, Ext::AtomicAck(aeth, 7), &[]),
        }
        assert_eq!(stage.wait(QUIET + TICK), [], "{opcode:?}: the peer owes an acknowledgement");
        stage.acknowledge(NEXT + 1, ACK, 2);
        assert_eq!(stage.wait(QUIET + TICK), [(Opcode::RC_SEND_ONLY, NEXT + 1)], "{opcode:?}: a probe");
    }
}

#[test]
fn requesters_that_learn_from_acknowledgements_ask_each_time() {
    let with = [
        Setup { credits: true, ..Setup::default() },
        Setup { selective: true, ..Setup::default() },
        Setup { timeout: 0, ..Setup::default() },
    ];
    for (n, setup) in with.into_iter().enumerate() {
        let mut stage = Stage::with(Setup { sq_sig_all: false, ..setup });
        stage.post_as(1, WrOpcode::Write, UNSIGNALED, 600);
        let last = [(FIRST, false), (FIRST + 1, false), (FIRST + 2, true)];
        assert_eq!(ack_requests(&mut stage), last, "setup {n}");
    }
}
