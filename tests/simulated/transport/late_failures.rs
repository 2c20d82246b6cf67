//! Copies of another process's memory that are late and then lost, in each state of the QP that waits for them.

use roxie::nic::{Answer as Reply, Command, ControlError};
use roxie::port::memory::{MemoryConfig, pair};
use roxie::shared::HostMemory;
use roxie::shared::work_queue::Payload;
use roxie::time::Nanos;
use roxie::verbs::{
    Access, CqIndex, LKey, MwType, QpAttr, QpState, QpType, RKey, SendFlags, SendWr, SrqInit, SrqKind,
    WcStatus, WindowBind, WrOpcode,
};
use roxie::wire::{Bth, Ext, NakCode, Opcode, Reth, XrcEth};
use roxie_sim::{Host, HostQp};

use crate::transport::late::{Client, DEADLINE, PAGE, late};
use crate::transport::regions::{SOON, registration};
use crate::transport::{Answer, FIRST, Setup, Stage, attributes};

/// How the client loses the copies of a batch.
#[derive(Clone, Copy, Debug)]
enum Loss {
    /// The page is gone.
    Page,
    /// The copying thread drops them.
    Job,
    /// They are not made before the deadline.
    Deadline,
}

const LOSSES: [Loss; 3] = [Loss::Page, Loss::Job, Loss::Deadline];

impl Stage {
    /// Loses the copies of one batch, and returns what leaves then.
    fn lose(&mut self, client: &Client, how: Loss) -> Vec<Answer> {
        match how {
            Loss::Page => {
                client.pages.take_away(0);
                client.copy();
            }
            Loss::Job => drop(client.jobs.try_next()),
            Loss::Deadline => return self.overdue(client),
        }
        self.answers()
    }

    /// Lets the deadline of a batch pass, and returns what leaves then.
    fn overdue(&mut self, client: &Client) -> Vec<Answer> {
        let mut answers = self.answers();
        self.now = self.now + DEADLINE + Nanos(1000);
        answers.extend(self.answers());
        assert!(client.remote.is_abandoned());
        answers
    }

    /// Puts a WRITE and, behind it, one with a wrong key on the link.
    fn put_write_and_wrong_key(&mut self, client: &Client) {
        self.put_write(client, 0, 0, &[1; 8]);
        let wrong = Reth { va: client.pages.address(), rkey: client.region.key ^ 0x0100, dma_len: 8 };
        self.put_request(Opcode::RC_WRITE_ONLY, 1, Ext::Reth(wrong), &[2; 8]);
    }

    fn begin_state(&mut self, state: QpState) {
        let attr = QpAttr { state: Some(state), ..QpAttr::default() };
        self.host.begin(Command::ModifyQp(self.qp.handle.index, Box::new(attr)));
    }

    /// Returns how many work requests and receives were flushed.
    fn flushed(&self) -> u64 {
        self.counter("req_cqe_flush_error") + self.counter("resp_cqe_flush_error")
    }

    fn post_to(&self, qp: &HostQp, wr: &SendWr) {
        self.host.post_send(qp, wr, Payload::Sges(&[])).expect("room for a request");
    }
}

#[test]
fn late_write_and_refusal_are_answered() {
    let (mut stage, client) = late();
    stage.put_write_and_wrong_key(&client);
    assert_eq!(stage.answers(), []);
    client.copy();
    assert_eq!(stage.answers(), [Answer::ack(0), Answer::nak(1, NakCode::RemoteAccess)]);
    assert_eq!(stage.state(), QpState::Err);
}

/// A NAK acknowledges what precedes it: the lost write.
#[test]
fn lost_write_before_refusal_is_not_acknowledged() {
    for how in LOSSES {
        let (mut stage, client) = late();
        stage.put_write_and_wrong_key(&client);
        assert_eq!(stage.answers(), []);
        assert_eq!(stage.lose(&client, how), [], "{how:?}");
        assert_eq!(stage.state(), QpState::Err);
        // The peer repeats the request.
        stage.put_write(&client, 0, 0, &[1; 8]);
        assert_eq!(stage.answers(), [], "{how:?}");
    }
}

#[test]
fn lost_write_of_failed_qp_is_not_acknowledged() {
    for how in LOSSES {
        let (mut stage, client) = late();
        stage.put_write(&client, 0, 0, &[1; 8]);
        assert_eq!(stage.answers(), []);
        stage.begin_state(QpState::Err);
        assert_eq!(stage.answers(), []);
        assert_eq!(stage.lose(&client, how), [], "{how:?}");
        stage.host.answered().expect("an answer").ok();
        assert_eq!(stage.state(), QpState::Err);
    }
}

#[test]
fn overdue_read_responses_end_in_silence() {
    let (mut stage, client) = late();
    stage.put_request(Opcode::RC_READ_REQUEST, 0, client.reth(0, 12), &[]);
    let own = Ext::Reth(stage.reth(0, 8));
    stage.put_request(Opcode::RC_WRITE_ONLY, 1, own, &[1; 8]);
    assert_eq!(stage.answers(), []);
    // Another write waits for the batch.
    stage.put_write(&client, 2, 64, &[2; 8]);
    assert_eq!(stage.answers(), []);
    assert_eq!(stage.overdue(&client), []);
    assert_eq!(stage.state(), QpState::Err);
    client.copy();
    assert_eq!(stage.answers(), []);
}

#[test]
fn late_read_of_missing_page_is_refused() {
    let (mut stage, client) = late();
    stage.put_request(Opcode::RC_READ_REQUEST, 0, client.reth(0, 12), &[]);
    assert_eq!(stage.answers(), []);
    let refused = stage.lose(&client, Loss::Page);
    assert_eq!(refused, [Answer::nak(0, NakCode::RemoteAccess)]);
    assert_eq!(stage.state(), QpState::Err);
}

#[test]
fn parked_qp_in_error_flushes_later() {
    for (how, held) in [(None, WcStatus::Success), (Some(Loss::Deadline), WcStatus::LocProt)] {
        let (mut stage, client) = late();
        let sges = [client.sge(0, 64)];
        stage.host.post_recv(&stage.qp, 7, &sges).expect("room");
        stage.put_request(Opcode::RC_SEND_ONLY, 0, Ext::None, &[5; 12]);
        assert_eq!(stage.answers(), []);
        stage.begin_state(QpState::Err);
        assert_eq!(stage.answers(), []);
        for (send, receive) in [(1, 8), (2, 9)] {
            stage.receive(receive, 0, 8);
            stage.post_as(send, WrOpcode::Send, SendFlags::SIGNALED, 4);
            assert_eq!((stage.answers(), stage.statuses(), stage.flushed()), (vec![], vec![], 0));
        }
        match how {
            Some(how) => assert_eq!(stage.lose(&client, how), []),
            None => client.copy(),
        }
        stage.answers();
        let done = stage.statuses();
        assert_eq!((done[0], done.len(), stage.flushed()), ((7, held), 5, 4));
        let flush = |id: u64| (id, WcStatus::WrFlush);
        let (receives, sends): (Vec<_>, Vec<_>) = done[1..].iter().partition(|(id, _)| *id > 7);
        assert_eq!((receives, sends), (vec![flush(8), flush(9)], vec![flush(1), flush(2)]));
        let answer = stage.host.answered().expect("an answer");
        assert_eq!(answer.err(), how.map(|_| ControlError::CopyOverdue));
    }
}

/// What a parked QP keeps is bounded, whatever is posted to it.
#[test]
fn queue_of_parked_failed_qp_fills() {
    let (mut stage, client) = late();
    stage.put_write(&client, 0, 0, &[1; 8]);
    assert_eq!(stage.answers(), []);
    stage.begin_state(QpState::Err);
    assert_eq!(stage.answers(), []);
    let most = Setup::default().caps.max_recv_wr;
    let accepted = (0..=u64::from(most))
        .take_while(|wr_id| {
            stage.host.worker.poll(stage.now);
            stage.host.post_recv(&stage.qp, *wr_id, &[]).is_ok()
        })
        .count();
    assert_eq!(accepted, most as usize);
}

#[test]
fn held_completion_enters_no_later_cq() {
    let (mut stage, client) = late();
    let (old, _) = stage.host.create_cq(16, None);
    let xrcd = stage.host.open_xrcd();
    let init = SrqInit { kind: SrqKind::Xrc { xrcd, cq: old }, limit: 0 };
    let srq = stage.host.create_srq(init, 4, 2);
    let target = stage.host.create_xrc_target(xrcd);
    let setup = Setup { qp_type: QpType::XrcRecv, serves: true, ..Setup::default() };
    for attr in attributes(&stage.host, &setup) {
        stage.host.modify(stage.now, target.index, &attr).expect("a legal transition");
    }
    srq.ring.post(7, &[client.sge(0, 64)]).expect("room");
    let bth = Bth { opcode: Opcode::XRC_SEND_ONLY, dest_qp: target.qpn, ack_req: true, ..Bth::default() };
    stage.send(&bth, &Ext::Xrc(XrcEth { srqn: srq.number.0 }), &[5; 12]);
    assert_eq!(stage.answers(), []);
    stage.host.call(stage.now, Command::DestroySrq(srq.index)).expect("targets do not hold it");
    stage.host.call(stage.now, Command::DestroyCq(old)).expect("no users left");
    let place = |cq: CqIndex| cq.0 & 0xffff;
    let later = (0..1000).find_map(|_| {
        let (cq, ring) = stage.host.create_cq(16, None);
        if place(cq) == place(old) {
            return Some((cq, ring));
        }
        stage.host.call(stage.now, Command::DestroyCq(cq)).expect("no users");
        None
    });
    let (later, ring) = later.expect("the slot again");
    assert_ne!(later, old);
    client.copy();
    stage.answers();
    assert_eq!(ring.poll(), None);
}

/// Work that withdraws access to memory of the client, as another QP's batch does not come back.
fn withdraw_after_loss(
    prepare: impl Fn(&mut Stage, &Client, &HostQp) -> u32,
    withdraw: impl Fn(&mut Stage, &HostQp, u32),
) {
    let (mut stage, client) = late();
    let other = stage.another_qp();
    let key = prepare(&mut stage, &client, &other);
    stage.wait(SOON);
    while let Some(done) = stage.host.poll_cq(&other) {
        assert_eq!(done.status, WcStatus::Success);
    }
    stage.put_write(&client, 0, 0, &[1; 8]);
    assert_eq!(stage.answers(), []);
    assert_eq!(stage.overdue(&client), []);
    withdraw(&mut stage, &other, key);
    stage.answers();
    let done = stage.host.poll_cq(&other).expect("a completion, or a failure");
    assert_eq!(done.wr_id, 2);
}

/// Registers pages of the client for `other`, and returns their key.
fn fast_pages(stage: &mut Stage, client: &Client, other: &HostQp) -> u32 {
    let memory = HostMemory::remote(&client.remote, client.pages.address(), PAGE, false);
    let registration_wr = registration(stage.fast(&memory, &[1]), 0x7000_0000, 64);
    stage.post_to(other, &SendWr::fast_register(1, SendFlags::SIGNALED, &registration_wr));
    registration_wr.key.0
}

#[test]
fn invalidation_after_lost_copies_completes() {
    withdraw_after_loss(fast_pages, |stage, other, key| {
        let opcode = WrOpcode::LocalInvalidate;
        stage.post_to(other, &SendWr { wr_id: 2, opcode, rkey: RKey(key), ..SendWr::default() });
    });
}

#[test]
fn invalidating_send_after_lost_copies_completes() {
    withdraw_after_loss(fast_pages, |stage, other, key| {
        stage.host.post_recv(other, 2, &[stage.memory.sge(0, 8)]).expect("room");
        stage.put_for(other, Opcode::RC_SEND_ONLY_INVALIDATE, Ext::Ieth(key), &[3; 8]);
    });
}

#[test]
fn bind_after_lost_copies_completes() {
    let region = std::cell::Cell::new((0, 0));
    let window = std::cell::Cell::new(None);
    let bind = |stage: &mut Stage, other: &HostQp, wr_id, key: u32| {
        let index = window.get().expect("a window");
        let next = match stage.host.call(stage.now, Command::NextWindowKey(index)) {
            Ok(Reply::Key(next)) => next,
            refused => panic!("a key: {refused:?}"),
        };
        let (region, address) = region.get();
        let bind = WindowBind {
            window: RKey(key),
            new_key: RKey(next),
            region: LKey(region),
            address,
            length: 64,
            access: Access::REMOTE_READ,
        };
        stage.post_to(other, &SendWr::bind_window(wr_id, SendFlags::SIGNALED, &bind));
        next
    };
    let prepare = |stage: &mut Stage, client: &Client, other: &HostQp| {
        let address = client.pages.address();
        let memory = HostMemory::remote(&client.remote, address, PAGE, false);
        let access = Access::READ_WRITE | Access::MW_BIND;
        region.set((stage.register(access, address, memory).expect("a region").key, address));
        let alloc = Command::AllocWindow { pd: stage.host.pd(), kind: MwType::One };
        let Ok(Reply::Window(index, key)) = stage.host.call(stage.now, alloc) else { panic!("no window") };
        window.set(Some(index));
        bind(stage, other, 1, key)
    };
    withdraw_after_loss(prepare, |stage, other, key| {
        bind(stage, other, 2, key);
    });
}

/// The first QP's frame has no room.
#[test]
fn qp_completes_while_another_lacks_room() {
    let end = |number: u16, depth| MemoryConfig {
        mac: Host::mac(number),
        mtu: 1500,
        depth,
        ..MemoryConfig::default()
    };
    let (local, remote) = pair(end(1, 1), end(2, 64));
    let setup = Setup { serves: true, ..Setup::default() };
    let mut stage = Stage::on(setup, Box::new(local), Box::new(remote));
    let client = Client::new(&mut stage);
    let [first, second] = [(); 2].map(|()| stage.another_qp());
    let sge = [client.sge(0, 4)];
    let wr = SendWr { wr_id: 1, opcode: WrOpcode::Send, ..SendWr::default() };
    stage.host.post_send(&first, &wr, Payload::Sges(&sge)).expect("room");
    assert_eq!(stage.answers(), []);
    stage.host.post_recv(&second, 2, &[client.sge(64, 64)]).expect("room");
    stage.put_for(&second, Opcode::RC_SEND_ONLY, Ext::None, &[5; 12]);
    assert_eq!(stage.answers(), []);
    // A frame that no receiver takes fills the port.
    stage.post(WrOpcode::Send, 4);
    stage.host.worker.poll(stage.now);
    client.copy();
    client.copy();
    for _ in 0..8 {
        stage.host.worker.poll(stage.now);
    }
    let done = stage.host.poll_cq(&second).expect("the receive");
    assert_eq!((done.wr_id, done.status), (2, WcStatus::Success));
    assert_eq!(client.bytes(64, 12), [5; 12]);
    let answers = stage.answers();
    let sent = answers.iter().filter(|answer| answer.opcode == Opcode::RC_SEND_ONLY);
    assert_eq!(sent.map(|answer| answer.psn).collect::<Vec<_>>(), [FIRST.value(); 2]);
    assert_eq!(answers.iter().filter(|answer| **answer == Answer::ack(0)).count(), 1);
}
