//! Memory windows and invalidation: remote access under keys that work requests bind and invalidate (IBTA 9.4.1.1.3,
//! 10.6.5 to 10.6.7). The unit tests of `transport::memory` cover the rules of binding.

use roxie::nic::{Answer as Reply, Command, ControlError, ObjectKind};
use roxie::shared::work_queue::Payload;
use roxie::time::Nanos;
use roxie::verbs::{
    Access, EventKind, LKey, MwIndex, MwType, QpState, RKey, SendFlags, SendWr, WcFlags, WcOpcode, WcStatus,
    WindowBind, WrOpcode,
};
use roxie::wire::{Ext, NakCode, Opcode, Reth, Syndrome};

use crate::transport::{Answer, FIRST, Setup, Stage};

const SOON: Nanos = Nanos(1000);
const ACK: Syndrome = Syndrome::Ack { credits: 31 };

/// A window and its current key.
pub(crate) struct Window {
    index: MwIndex,
    pub(crate) key: u32,
}

impl Stage {
    fn window(&mut self, kind: MwType) -> Window {
        let pd = self.host.pd();
        match self.host.call(self.now, Command::AllocWindow { pd, kind }) {
            Ok(Reply::Window(index, key)) => Window { index, key },
            other => panic!("a window: {other:?}"),
        }
    }

    /// Returns the key for the next bind. The device chooses it for a window of type 1, the application for one of type
    /// 2.
    fn new_key(&mut self, window: &Window, kind: MwType) -> u32 {
        if kind == MwType::Two {
            return window.key.wrapping_add(1) & 0xff | window.key & !0xff;
        }
        match self.host.call(self.now, Command::NextWindowKey(window.index)) {
            Ok(Reply::Key(key)) => key,
            other => panic!("a key: {other:?}"),
        }
    }

    fn post_wr(&self, wr: &SendWr) {
        self.host.post_send(&self.qp, wr, Payload::Sges(&[])).expect("room for a request");
    }

    /// Posts a bind of `length` bytes at 0x100 of the region.
    fn post_bind(&mut self, wr_id: u64, window: &mut Window, kind: MwType, length: u64) {
        let new_key = self.new_key(window, kind);
        let bind = WindowBind {
            window: RKey(window.key),
            new_key: RKey(new_key),
            region: LKey(self.memory.key),
            address: self.memory.address + 0x100,
            length,
            access: Access::REMOTE_READ | Access::REMOTE_WRITE,
        };
        self.post_wr(&SendWr::bind_window(wr_id, SendFlags::SIGNALED, &bind));
        window.key = new_key;
    }

    pub(crate) fn bound(&mut self, kind: MwType) -> Window {
        let mut window = self.window(kind);
        self.post_bind(1, &mut window, kind, 64);
        self.wait(SOON);
        assert_eq!(self.statuses(), [(1, WcStatus::Success)]);
        window
    }

    /// Returns true if the window of type 2 is bound: a bind of it by another QP fails.
    fn is_bound(&mut self, key: u32) -> bool {
        let bind = WindowBind {
            window: RKey(key),
            new_key: RKey(key),
            region: LKey(self.memory.key),
            address: self.memory.address,
            length: 8,
            access: Access::REMOTE_READ,
        };
        let other = self.host.queue_pair().signal_all().create();
        for attr in crate::transport::attributes(&self.host, &Setup::default()) {
            self.host.modify(self.now, &other, &attr).expect("a legal transition");
        }
        let wr = SendWr::bind_window(1, SendFlags::SIGNALED, &bind);
        self.host.post_send(&other, &wr, Payload::Sges(&[])).expect("room");
        self.answers();
        self.host.poll_cq(&other).map(|wc| wc.status) == Some(WcStatus::MwBind)
    }

    /// Sends a WRITE of 4 bytes at 0x100 of the region under `key`.
    fn write_under(&mut self, psn: u32, key: u32) -> Vec<Answer> {
        let reth = Reth { va: self.memory.address + 0x100, rkey: key, dma_len: 4 };
        self.request(Opcode::RC_WRITE_ONLY, psn, Ext::Reth(reth), &[7; 4])
    }

    fn assert_access_error(&mut self, answers: &[Answer], psn: u32) {
        assert_eq!(answers, [Answer::nak(psn, NakCode::RemoteAccess)]);
        assert_eq!(self.state(), QpState::Err);
        assert_eq!(self.events(), [EventKind::QpAccessError]);
    }
}

//= test: IBTA 10.6.7: window-opens-a-part-to-peers, bind-takes-effect-in-its-turn
#[test]
fn bound_window_grants_access_to_its_range() {
    for kind in [MwType::One, MwType::Two] {
        let mut stage = Stage::new();
        let mut window = stage.window(kind);
        stage.post_bind(5, &mut window, kind, 64);
        assert_eq!(stage.wait(SOON), [], "a bind sends nothing");
        let done = stage.completions();
        assert_eq!((done[0].wr_id, done[0].status), (5, WcStatus::Success));
        assert_eq!(done[0].opcode, WcOpcode::BindWindow);
        assert_eq!(stage.write_under(0, window.key), [Answer::ack(0)]);
        assert_eq!(stage.memory.bytes(0x100, 5), [7, 7, 7, 7, 0]);
        let beyond = Reth { va: stage.memory.address + 0x100 + 61, rkey: window.key, dma_len: 4 };
        let answers = stage.request(Opcode::RC_WRITE_ONLY, 1, Ext::Reth(beyond), &[7; 4]);
        stage.assert_access_error(&answers, 1);
        assert_eq!(stage.memory.bytes(0x100 + 61, 4), [0; 4]);
    }
}

//= test: IBTA 10.6.7: window-2-is-for-one-qp
#[test]
pub(crate) fn type_2_window_serves_only_its_qp() {
    let mut stage = Stage::new();
    let window = stage.bound(MwType::Two);
    let other = stage.host.queue_pair().signal_all().create();
    for attr in crate::transport::attributes(&stage.host, &crate::transport::Setup::default()) {
        stage.host.modify(stage.now, &other, &attr).expect("a legal transition");
    }
    let bound_by = std::mem::replace(&mut stage.qp, other);
    let answers = stage.write_under(0, window.key);
    stage.assert_access_error(&answers, 0);
    stage.qp = bound_by;
    assert_eq!(stage.write_under(0, window.key), [Answer::ack(0)]);
}

//= test: IBTA 10.6.7: bind-fails-as-a-bind
#[test]
fn invalid_bind_completes_with_mw_bind_error() {
    let mut stage = Stage::new();
    let mut window = stage.window(MwType::Two);
    stage.post_as(1, WrOpcode::Write, SendFlags::SIGNALED, 4);
    stage.post_bind(2, &mut window, MwType::Two, 1 << 20);
    stage.post_as(3, WrOpcode::Write, SendFlags::SIGNALED, 4);
    assert_eq!(stage.wait(SOON), [(Opcode::RC_WRITE_ONLY, FIRST)], "the request behind the bind waits");
    assert_eq!(stage.statuses(), [], "it fails in its turn");
    stage.acknowledge(FIRST, ACK, 1);
    stage.wait(SOON);
    let statuses = [(1, WcStatus::Success), (2, WcStatus::MwBind), (3, WcStatus::WrFlush)];
    assert_eq!(stage.statuses(), statuses);
    assert_eq!(stage.state(), QpState::Err);
}

//= test: IBTA 10.6.7: window-1-has-a-new-key-each-time
#[test]
fn zero_length_bind_unbinds_a_type_1_window() {
    let mut stage = Stage::new();
    let mut window = stage.bound(MwType::One);
    let old = window.key;
    stage.post_bind(2, &mut window, MwType::One, 0);
    stage.wait(SOON);
    assert_eq!(stage.statuses(), [(2, WcStatus::Success)]);
    assert_ne!(old, window.key);
    let answers = stage.write_under(0, old);
    stage.assert_access_error(&answers, 0);
}

//= test: IBTA 10.6.7: window-1-has-a-new-key-each-time
#[test]
fn rebinding_a_type_1_window_invalidates_its_key() {
    let mut stage = Stage::new();
    let mut window = stage.bound(MwType::One);
    let old = window.key;
    // Two binds in the queue: the second key is chosen before the first bind executes.
    stage.post_bind(2, &mut window, MwType::One, 32);
    stage.post_bind(3, &mut window, MwType::One, 16);
    stage.wait(SOON);
    assert_eq!(stage.statuses(), [(2, WcStatus::Success), (3, WcStatus::Success)]);
    assert_eq!(stage.write_under(0, window.key), [Answer::ack(0)]);
    let answers = stage.write_under(1, old);
    stage.assert_access_error(&answers, 1);
}

//= test: IBTA 10.6.7: region-with-windows-is-busy
#[test]
fn region_with_a_bound_window_is_busy() {
    for kind in [MwType::One, MwType::Two] {
        let mut stage = Stage::new();
        let window = stage.bound(kind);
        let mr = stage.memory.index;
        let busy = stage.host.call(stage.now, Command::DeregisterMemory(mr));
        assert_eq!(busy.err(), Some(ControlError::Busy { object: ObjectKind::MemoryRegion, users: 1 }));
        stage.host.call(stage.now, Command::FreeWindow(window.index)).expect("the window exists");
        stage.host.call(stage.now, Command::DeregisterMemory(mr)).expect("nothing is bound to it");
        let answers = stage.write_under(0, window.key);
        stage.assert_access_error(&answers, 0);
    }
}

//= test: IBTA 10.8.3: sends-complete-in-order
//= test: IBTA 10.6.5.1: local-invalidate-waits
#[test]
fn local_invalidate_waits_for_earlier_requests() {
    let mut stage = Stage::new();
    let window = stage.bound(MwType::Two);
    stage.post_as(2, WrOpcode::Write, SendFlags::SIGNALED, 4);
    stage.post_wr(&SendWr::local_invalidate(3, SendFlags::SIGNALED, RKey(window.key)));
    stage.post_as(4, WrOpcode::Write, SendFlags::SIGNALED, 4);
    assert_eq!(stage.wait(SOON), [(Opcode::RC_WRITE_ONLY, FIRST)]);
    assert_eq!(stage.write_under(0, window.key), [Answer::ack(0)], "not yet");
    stage.acknowledge(FIRST, ACK, 1);
    assert_eq!(stage.wait(SOON), [(Opcode::RC_WRITE_ONLY, FIRST + 1)]);
    let done = stage.completions();
    let ids: Vec<_> = done.iter().map(|wc| (wc.wr_id, wc.status, wc.opcode)).collect();
    let success = WcStatus::Success;
    assert_eq!(ids, [(2, success, WcOpcode::Write), (3, success, WcOpcode::LocalInvalidate)]);
    let answers = stage.write_under(1, window.key);
    stage.assert_access_error(&answers, 1);
}

#[test]
fn local_invalidate_asks_for_what_it_awaits() {
    for at_once in [true, false] {
        let mut stage = Stage::with(Setup { sq_sig_all: false, ..Setup::default() });
        let window = stage.bound(MwType::Two);
        stage.post_as(1, WrOpcode::Write, SendFlags::SIGNALED, 4);
        stage.wait(SOON);
        stage.acknowledge(FIRST, ACK, 1);
        stage.post_as(2, WrOpcode::Write, SendFlags::empty(), 4);
        let before = if at_once { Vec::new() } else { stage.wait(SOON) };
        stage.post_wr(&SendWr::local_invalidate(3, SendFlags::SIGNALED, RKey(window.key)));
        let requests = [(Opcode::RC_WRITE_ONLY, FIRST + 1), (Opcode::RC_SEND_ONLY, FIRST)];
        assert_eq!([before, stage.wait(SOON)].concat(), requests, "a probe, posted at once: {at_once}");
        stage.acknowledge(FIRST + 1, ACK, 2);
        stage.wait(SOON);
        assert_eq!(stage.statuses().last(), Some(&(3, WcStatus::Success)));
    }
}

#[test]
fn window_can_be_bound_and_invalidated_repeatedly() {
    let mut stage = Stage::new();
    let mut window = stage.window(MwType::Two);
    for round in 0..5 {
        stage.post_bind(1, &mut window, MwType::Two, 64);
        stage.wait(SOON);
        assert_eq!(stage.write_under(round, window.key), [Answer::ack(round)]);
        stage.post_wr(&SendWr::local_invalidate(2, SendFlags::SIGNALED, RKey(window.key)));
        stage.wait(SOON);
        assert_eq!(stage.statuses(), [(1, WcStatus::Success), (2, WcStatus::Success)], "round {round}");
    }
}

#[test]
fn local_invalidate_of_a_bad_key_fails() {
    type Wrong = fn(&mut Stage) -> u32;
    let cases: [(&str, Wrong); 3] = [
        ("an ordinary region", |stage| stage.memory.key),
        ("a window of type 1", |stage| stage.bound(MwType::One).key),
        ("no key at all", |stage| stage.memory.key ^ 1),
    ];
    for (what, wrong) in cases {
        let mut stage = Stage::new();
        let key = wrong(&mut stage);
        stage.post_wr(&SendWr::local_invalidate(9, SendFlags::SIGNALED, RKey(key)));
        stage.wait(SOON);
        assert_eq!(stage.statuses(), [(9, WcStatus::LocQpOp)], "{what}");
        assert_eq!(stage.state(), QpState::Err, "{what}");
    }
}

//= test: IBTA 9.4.1.1.3: send-with-invalidate-invalidates
#[test]
fn send_with_invalidate_invalidates_the_window() {
    let mut stage = Stage::new();
    let window = stage.bound(MwType::Two);
    stage.receive(7, 0x1000, 600);
    stage.request(Opcode::RC_SEND_FIRST, 0, Ext::None, &[1; 256]);
    assert!(stage.is_bound(window.key), "only the last packet invalidates it");
    let last = stage.request(Opcode::RC_SEND_LAST_INVALIDATE, 1, Ext::Ieth(window.key), &[2; 3]);
    assert_eq!(last, [Answer::ack(1)]);
    let done = stage.completions();
    assert_eq!((done[0].wr_id, done[0].byte_len, done[0].imm), (7, 259, window.key));
    assert_eq!((done[0].opcode, done[0].flags), (WcOpcode::Recv, WcFlags::WITH_INV));
    assert_eq!(stage.memory.bytes(0x1000 + 255, 4), [1, 2, 2, 2]);
    let answers = stage.write_under(2, window.key);
    stage.assert_access_error(&answers, 2);
}

//= test: IBTA 9.7.5.1: duplicate-is-not-executed
#[test]
fn duplicate_send_with_invalidate_invalidates_nothing() {
    let mut stage = Stage::new();
    let old = stage.bound(MwType::Two).key;
    stage.receive(7, 0x1000, 8);
    assert_eq!(stage.request(Opcode::RC_SEND_ONLY_INVALIDATE, 0, Ext::Ieth(old), &[1]), [Answer::ack(0)]);
    // The window is bound again under the same key, which the duplicate must not invalidate.
    let bind = WindowBind {
        window: RKey(old),
        new_key: RKey(old),
        region: LKey(stage.memory.key),
        address: stage.memory.address + 0x100,
        length: 64,
        access: Access::REMOTE_WRITE,
    };
    stage.post_wr(&SendWr::bind_window(2, SendFlags::SIGNALED, &bind));
    stage.wait(SOON);
    assert_eq!(stage.statuses(), [(7, WcStatus::Success), (2, WcStatus::Success)]);
    assert_eq!(stage.request(Opcode::RC_SEND_ONLY_INVALIDATE, 0, Ext::Ieth(old), &[1]), [Answer::ack(0)]);
    assert_eq!(stage.write_under(1, old), [Answer::ack(1)]);
}

//= test: IBTA 9.4.1.1.3: invalidate-is-checked
#[test]
fn remote_invalidate_of_a_bad_key_is_refused() {
    type Wrong = fn(&mut Stage) -> u32;
    let cases: [(&str, Wrong); 3] = [
        ("an ordinary region", |stage| stage.memory.key),
        ("a window of type 1", |stage| stage.bound(MwType::One).key),
        ("no key at all", |_| 0x1234_5678),
    ];
    for (what, wrong) in cases {
        let mut stage = Stage::new();
        let key = wrong(&mut stage);
        stage.receive(7, 0x1000, 8);
        stage.receive(8, 0x1000, 8);
        let answers = stage.request(Opcode::RC_SEND_ONLY_INVALIDATE, 0, Ext::Ieth(key), &[1]);
        println!("{what}");
        assert_eq!(stage.statuses(), [(7, WcStatus::RemInvReq), (8, WcStatus::WrFlush)]);
        stage.assert_access_error(&answers, 0);
    }
}

//= test: IBTA 9.4: immediate-is-in-the-last-packet
#[test]
fn send_with_invalidate_carries_its_key_last() {
    let mut stage = Stage::new();
    let wr = SendWr { wr_id: 1, opcode: WrOpcode::SendInvalidate, rkey: RKey(0xabcd), ..SendWr::default() };
    let sges = [stage.memory.sge(0, 300)];
    stage.host.post_send(&stage.qp, &wr, Payload::Sges(&sges)).expect("room");
    let packets = [(Opcode::RC_SEND_FIRST, FIRST), (Opcode::RC_SEND_LAST_INVALIDATE, FIRST + 1)];
    assert_eq!(stage.wait(SOON), packets);
    stage.acknowledge(FIRST + 1, ACK, 1);
    stage.wait(SOON);
    let done = stage.completions();
    assert_eq!((done[0].wr_id, done[0].status, done[0].opcode), (1, WcStatus::Success, WcOpcode::Send));
}

#[test]
fn retransmission_does_not_repeat_binds() {
    let mut stage = Stage::new();
    let mut window = stage.window(MwType::Two);
    stage.post_as(1, WrOpcode::Write, SendFlags::SIGNALED, 4);
    stage.post_bind(2, &mut window, MwType::Two, 64);
    stage.post_as(3, WrOpcode::Write, SendFlags::SIGNALED, 4);
    let both = [(Opcode::RC_WRITE_ONLY, FIRST), (Opcode::RC_WRITE_ONLY, FIRST + 1)];
    assert_eq!(stage.wait(SOON), both);
    stage.acknowledge(FIRST, Syndrome::Nak(NakCode::PsnSequence), 0);
    assert_eq!(stage.wait(SOON), both, "a second bind of a bound window would have failed");
    assert_eq!(stage.write_under(0, window.key), [Answer::ack(0)]);
    stage.acknowledge(FIRST + 1, ACK, 2);
    stage.wait(SOON);
    assert_eq!(stage.statuses(), [1, 2, 3].map(|id| (id, WcStatus::Success)));
}

/// Posts a bind of a type 2 window for remote WRITEs under a new key.
fn bind_part(stage: &mut Stage, window: &mut Window, flags: SendFlags) {
    let new_key = stage.new_key(window, MwType::Two);
    let bind = WindowBind {
        window: RKey(window.key),
        new_key: RKey(new_key),
        region: LKey(stage.memory.key),
        address: stage.memory.address + 0x100,
        length: 64,
        access: Access::REMOTE_WRITE,
    };
    window.key = new_key;
    stage.post_wr(&SendWr::bind_window(2, flags, &bind));
}

//= test: IBTA 10.8.3.3: fence-waits-for-reads
#[test]
fn only_a_fenced_bind_waits_for_reads() {
    for fence in [false, true] {
        let mut stage = Stage::new();
        let mut window = stage.window(MwType::Two);
        stage.post_as(1, WrOpcode::Read, SendFlags::SIGNALED, 4);
        let flags = if fence { SendFlags::FENCE | SendFlags::SIGNALED } else { SendFlags::SIGNALED };
        bind_part(&mut stage, &mut window, flags);
        stage.wait(SOON);
        let answers = stage.write_under(0, window.key);
        if fence {
            stage.assert_access_error(&answers, 0);
        } else {
            assert_eq!(answers, [Answer::ack(0)]);
            assert_eq!(stage.statuses(), [], "it completes after the READ");
        }
    }
}

/// Requests behind binds and invalidations do not wait for a completion.
#[test]
fn unsignaled_local_work_does_not_block_the_queue() {
    let mut stage = Stage::with(Setup { sq_sig_all: false, ..Setup::default() });
    let mut window = stage.window(MwType::Two);
    // Without outstanding READs, a fence does not wait.
    bind_part(&mut stage, &mut window, SendFlags::FENCE);
    stage.wait(SOON);
    assert_eq!(stage.statuses(), [], "the bind is unsignaled");
    assert_eq!(stage.write_under(0, window.key), [Answer::ack(0)], "and it is bound");
    // A failing request waits until it is the oldest, which it is once the bind before it is done.
    let mut second = stage.window(MwType::Two);
    stage.post_as(1, WrOpcode::Write, SendFlags::SIGNALED, 4);
    bind_part(&mut stage, &mut second, SendFlags::SIGNALED);
    stage.post_wr(&SendWr::local_invalidate(3, SendFlags::SIGNALED, RKey(second.key ^ 0x100)));
    stage.wait(SOON);
    stage.acknowledge(FIRST, ACK, 1);
    stage.wait(SOON);
    assert_eq!(stage.statuses(), [(1, WcStatus::Success), (2, WcStatus::Success), (3, WcStatus::LocQpOp)]);
}
