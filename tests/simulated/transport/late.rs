//! Copies from and to the memory of another process that are made late, in any order, or never. The test plays the
//! copying threads.

use std::sync::Arc;

use roxie::nic::{Answer as Reply, Command, ControlError};
use roxie::shared::HostMemory;
use roxie::shared::remote_memory::{CopyJobs, RemoteMemory};
use roxie::threads::ThreadState;
use roxie::time::Nanos;
use roxie::verbs::{
    Access, EventKind, LKey, QpAttr, QpInit, QpState, QpType, RKey, SendFlags, SendWr, Sge, WcStatus,
    WrOpcode,
};
use roxie::wire::{AtomicEth, Bth, Ext, Opcode, Psn, Reth, Syndrome};
use roxie_sim::HostQp;

use crate::transport::far::own_memory;
use crate::transport::regions::{Pages, Region, SOON, registration};
use crate::transport::{Answer, FIRST, MTU, Setup, Stage, TIMEOUT, attributes};

pub(crate) const PAGE: usize = 65536;
pub(crate) const DEADLINE: Nanos = Nanos(500_000_000);

/// Memory of another process, its copying thread, and a region in it.
pub(crate) struct Client {
    pub(crate) pages: Pages,
    pub(crate) remote: Arc<RemoteMemory>,
    pub(crate) jobs: CopyJobs,
    pub(crate) region: Region,
}

impl Client {
    pub(crate) fn new(stage: &mut Stage) -> Client {
        Client::copied_by(stage, None)
    }

    /// `state`: that of the thread which makes its copies.
    fn copied_by(stage: &mut Stage, state: Option<ThreadState>) -> Client {
        let (pages, remote) = (Pages::new(1), own_memory());
        let (thread, jobs) = CopyJobs::new();
        remote.copied_by(thread, state);
        let memory = HostMemory::remote(&remote, pages.address(), PAGE, false);
        let access = Access::READ_WRITE | Access::REMOTE_ATOMIC;
        let region = stage.register(access, pages.address(), memory).expect("a region");
        Client { pages, remote, jobs, region }
    }

    /// Makes the copies of one batch.
    pub(crate) fn copy(&self) {
        self.jobs.try_next().expect("a batch").run();
    }

    pub(crate) fn reth(&self, at: u64, dma_len: usize) -> Ext {
        let va = self.pages.address() + at;
        Ext::Reth(Reth { va, rkey: self.region.key, dma_len: dma_len as u32 })
    }

    pub(crate) fn sge(&self, at: u64, length: u32) -> Sge {
        Sge { addr: self.pages.address() + at, length, lkey: LKey(self.region.key) }
    }

    pub(crate) fn bytes(&self, at: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.pages.memory().read(at, &mut bytes).expect("mapped");
        bytes
    }
}

pub(crate) fn late() -> (Stage, Client) {
    let mut stage = Stage::with(Setup { serves: true, ..Setup::default() });
    let client = Client::new(&mut stage);
    (stage, client)
}

impl Stage {
    /// Puts a WRITE on the link.
    pub(crate) fn put_write(&mut self, client: &Client, psn: u32, at: u64, payload: &[u8]) {
        self.put_request(Opcode::RC_WRITE_ONLY, psn, client.reth(at, payload.len()), payload);
    }

    /// A further QP, connected like the first.
    pub(crate) fn another_qp(&mut self) -> HostQp {
        let setup = Setup { serves: true, ..Setup::default() };
        let init = QpInit { qp_type: QpType::Rc, caps: setup.caps, sq_sig_all: true };
        let qp = self.host.queue_pair().init(init).create();
        for attr in attributes(&self.host, &setup) {
            self.host.modify(self.now, &qp, &attr).expect("a legal transition");
        }
        qp
    }

    /// Puts a request for another QP on the link.
    pub(crate) fn put_for(&mut self, qp: &HostQp, opcode: Opcode, ext: Ext, payload: &[u8]) {
        let bth = Bth { opcode, dest_qp: qp.handle.qpn, psn: Psn::new(0), ack_req: true, ..Bth::default() };
        self.send(&bth, &ext, payload);
    }
}

#[test]
fn acknowledgement_follows_late_write() {
    let (mut stage, client) = late();
    stage.put_write(&client, 0, 8, &[1; 8]);
    assert_eq!((stage.answers(), client.bytes(8, 8)), (vec![], vec![0; 8]));
    client.copy();
    assert_eq!(client.bytes(8, 8), [1; 8]);
    assert_eq!(stage.answers(), [Answer::ack(0)]);
}

#[test]
fn completion_follows_late_receive() {
    let (mut stage, client) = late();
    let sges = [client.sge(0, 64)];
    stage.host.post_recv(&stage.qp, 7, &sges).expect("room");
    stage.put_request(Opcode::RC_SEND_ONLY, 0, Ext::None, &[5; 12]);
    assert_eq!((stage.answers(), stage.statuses()), (vec![], vec![]));
    client.copy();
    assert_eq!(stage.answers(), [Answer::ack(0)]);
    assert_eq!(stage.statuses(), [(7, WcStatus::Success)]);
}

#[test]
fn packets_meanwhile_are_handled_in_order() {
    let (mut stage, client) = late();
    stage.put_write(&client, 0, 0, &[1; 8]);
    assert_eq!(stage.answers(), []);
    // The peer repeats the request, overwrites its bytes, and reads them.
    stage.put_write(&client, 0, 0, &[1; 8]);
    stage.put_write(&client, 1, 4, &[2; 8]);
    stage.put_request(Opcode::RC_READ_REQUEST, 2, client.reth(0, 12), &[]);
    assert_eq!(stage.answers(), [], "silence, and no NAK");
    let mut answers = Vec::new();
    while let Some(job) = client.jobs.try_next() {
        job.run();
        answers.extend(stage.answers());
    }
    let read = answers.pop().expect("the READ's response");
    assert_eq!((read.psn, read.payload), (2, [vec![1; 4], vec![2; 8]].concat()));
    assert!(
        answers.iter().all(|answer| matches!(answer.syndrome, Some(Syndrome::Ack { .. }))),
        "{answers:?}"
    );
    assert_eq!(stage.counter("out_of_sequence"), 0);
}

#[test]
fn late_payload_is_sent_in_order() {
    let (mut stage, client) = late();
    let message: Vec<u8> = (0..2 * MTU.bytes() + 12).map(|i| (i * 7) as u8).collect();
    client.pages.memory().write(8, &message).expect("mapped");
    let send = |wr_id| SendWr { wr_id, opcode: WrOpcode::Send, ..SendWr::default() };
    stage.post_list(&send(1), &[client.sge(8, message.len() as u32)]);
    let own = [stage.memory.sge(0, 4)];
    stage.post_list(&send(2), &own);
    assert!(stage.packets().is_empty(), "the second message follows the first");
    client.copy();
    let sent = stage.packets();
    let psns: Vec<Psn> = sent.iter().map(|(packet, _)| packet.bth.psn).collect();
    assert_eq!(psns, [0, 1, 2, 3].map(|after| FIRST + after));
    let payload: Vec<u8> = sent.into_iter().flat_map(|(_, payload)| payload).collect();
    assert_eq!(payload, [message, vec![0; 4]].concat());
}

#[test]
fn missing_payload_fails_its_request_late() {
    let (mut stage, client) = late();
    let wr = SendWr { wr_id: 3, opcode: WrOpcode::Send, ..SendWr::default() };
    stage.post_list(&wr, &[client.sge(0, 4)]);
    assert!(stage.packets().is_empty());
    client.pages.take_away(0);
    client.copy();
    assert!(stage.packets().is_empty());
    assert_eq!((stage.statuses(), stage.state()), (vec![(3, WcStatus::LocProt)], QpState::Err));
}

#[test]
fn ack_set_aside_prevents_timeout() {
    let (mut stage, client) = late();
    stage.post(WrOpcode::Send, 4);
    assert_eq!(stage.packets().len(), 1);
    stage.put_write(&client, 0, 0, &[1; 8]);
    assert_eq!(stage.answers(), []);
    stage.acknowledge(FIRST, Syndrome::Ack { credits: 31 }, 1);
    const { assert!(TIMEOUT.0 * 20 < DEADLINE.0) };
    assert_eq!(stage.wait(Nanos(TIMEOUT.0 * 20)), []);
    client.copy();
    assert_eq!(stage.answers(), [Answer::ack(0)]);
    assert_eq!(stage.statuses(), [(0, WcStatus::Success)]);
    assert_eq!(stage.counter("local_ack_timeout_err"), 0);
}

#[test]
fn late_frame_gets_its_whole_timeout() {
    let (mut stage, client) = late();
    let wr = SendWr { opcode: WrOpcode::Send, ..SendWr::default() };
    stage.post_list(&wr, &[client.sge(0, 4)]);
    assert_eq!(stage.wait(Nanos(TIMEOUT.0 * 10)), []);
    client.copy();
    assert_eq!(stage.wait(Nanos(TIMEOUT.0 * 3 / 4)).len(), 1, "once");
    assert_eq!(stage.counter("local_ack_timeout_err"), 0);
}

#[test]
fn deregistration_returns_after_late_copy() {
    let (mut stage, client) = late();
    stage.put_write(&client, 0, 0, &[1; 8]);
    assert_eq!(stage.answers(), []);
    stage.host.begin(Command::DeregisterMemory(client.region.index));
    stage.put_write(&client, 1, 8, &[2; 8]);
    assert_eq!((stage.answers(), stage.host.answered().is_none()), (vec![], true));
    client.copy();
    let answers = stage.answers();
    assert!(matches!(stage.host.answered(), Some(Ok(Reply::Done))));
    // The key is dead for the WRITE that came meanwhile.
    assert_eq!(answers.first(), Some(&Answer::ack(0)));
    assert!(client.jobs.try_next().is_none() && stage.state() == QpState::Err);
    assert_eq!(client.bytes(8, 8), [0; 8]);
}

#[test]
fn overdue_copy_fails_qp_and_deregistration() {
    let (mut stage, client) = late();
    let sges = [client.sge(0, 64)];
    stage.host.post_recv(&stage.qp, 7, &sges).expect("room");
    stage.put_request(Opcode::RC_SEND_ONLY, 0, Ext::None, &[5; 12]);
    assert_eq!(stage.answers(), []);
    stage.host.begin(Command::DeregisterMemory(client.region.index));
    assert_eq!(stage.wait(Nanos(DEADLINE.0 - 1000)), []);
    assert!(!client.remote.is_abandoned() && stage.host.answered().is_none());
    assert_eq!(stage.wait(Nanos(2000)), [], "the peer gets no NAK");
    let error = stage.host.answered().expect("an answer").expect_err("overdue");
    assert_eq!((&error, error.errno()), (&ControlError::CopyOverdue, libc::EBUSY));
    assert!(client.remote.is_abandoned());
    assert_eq!(stage.statuses(), [(7, WcStatus::LocProt)]);
    assert_eq!((stage.state(), stage.events()), (QpState::Err, vec![EventKind::QpFatal]));
    client.copy();
    assert_eq!((stage.answers(), client.bytes(0, 12)), (vec![], vec![0; 12]));
}

/// The test's own thread runs whenever it is looked at.
#[test]
fn time_without_a_processor_does_not_count() {
    let mut stage = Stage::with(Setup { serves: true, ..Setup::default() });
    let client = Client::copied_by(&mut stage, Some(ThreadState::of_caller().expect("/proc")));
    stage.put_write(&client, 0, 0, &[1; 8]);
    for _ in 0..3 {
        assert_eq!(stage.wait(Nanos(DEADLINE.0 + 2000)), []);
        assert!(!client.remote.is_abandoned());
    }
    client.copy();
    assert_eq!((stage.answers(), client.bytes(0, 8)), (vec![Answer::ack(0)], vec![1; 8]));
}

#[test]
fn deadline_begins_after_the_batch_before() {
    let (mut stage, client) = late();
    let other = stage.another_qp();
    stage.put_write(&client, 0, 0, &[1; 8]);
    assert_eq!(stage.answers(), []);
    stage.put_for(&other, Opcode::RC_WRITE_ONLY, client.reth(8, 8), &[2; 8]);
    for _ in 0..2 {
        assert_eq!(stage.wait(Nanos(DEADLINE.0 * 9 / 10)), []);
        assert!(!client.remote.is_abandoned());
        client.copy();
        assert_eq!(stage.answers(), [Answer::ack(0)]);
    }
}

#[test]
fn slow_client_delays_no_other() {
    let (mut stage, slow) = late();
    let (honest, qp) = (Client::new(&mut stage), stage.another_qp());
    stage.put_write(&slow, 0, 0, &[1; 8]);
    assert_eq!(stage.answers(), []);
    stage.put_for(&qp, Opcode::RC_WRITE_ONLY, honest.reth(0, 8), &[2; 8]);
    assert_eq!(stage.answers(), []);
    honest.copy();
    assert_eq!((stage.answers(), honest.bytes(0, 8)), (vec![Answer::ack(0)], vec![2; 8]));
    assert_eq!(stage.state(), QpState::Rts);
    slow.copy();
    assert_eq!(stage.answers(), [Answer::ack(0)]);
}

#[test]
fn atomics_of_several_qps_are_serialized() {
    let (mut stage, client) = late();
    let other = stage.another_qp();
    let (va, rkey) = (client.pages.address(), client.region.key);
    let add = |by| Ext::Atomic(AtomicEth { va, rkey, swap_or_add: by, compare: 0 });
    stage.put_request(Opcode::RC_FETCH_ADD, 0, add(5), &[]);
    assert_eq!(stage.answers(), []);
    stage.put_for(&other, Opcode::RC_FETCH_ADD, add(7), &[]);
    assert_eq!(stage.answers(), []);
    client.copy();
    client.copy();
    let mut before: Vec<_> = stage.answers().iter().map(|answer| answer.original).collect();
    before.sort_unstable();
    assert_eq!(before, [Some(0), Some(5)]);
    assert_eq!(client.bytes(0, 8), 12_u64.to_ne_bytes());
}

#[test]
fn local_invalidation_completes_after_late_copy() {
    let (mut stage, client) = late();
    let other = stage.another_qp();
    let memory = HostMemory::remote(&client.remote, client.pages.address(), PAGE, false);
    let fast = stage.fast(&memory, &[1]);
    let registered = registration(fast, 0x7000_0000, 64);
    stage.post_list(&SendWr::fast_register(1, SendFlags::SIGNALED, &registered), &[]);
    stage.wait(SOON);
    assert_eq!(stage.statuses(), [(1, WcStatus::Success)]);
    let reth = Ext::Reth(Reth { va: 0x7000_0000, rkey: registered.key.0, dma_len: 8 });
    stage.put_request(Opcode::RC_WRITE_ONLY, 0, reth, &[3; 8]);
    assert_eq!(stage.answers(), []);
    // Another QP invalidates the key, and says so to its peer.
    let invalidate = SendWr {
        wr_id: 2,
        opcode: WrOpcode::LocalInvalidate,
        rkey: RKey(registered.key.0),
        ..SendWr::default()
    };
    let post = |stage: &Stage, wr: &SendWr, sges: &[Sge]| {
        let list = roxie::shared::work_queue::Payload::Sges(sges);
        stage.host.post_send(&other, wr, list).expect("room");
    };
    post(&stage, &invalidate, &[]);
    let own = [stage.memory.sge(0, 4)];
    post(&stage, &SendWr { wr_id: 3, opcode: WrOpcode::Send, ..SendWr::default() }, &own);
    assert!(stage.packets().is_empty() && stage.host.poll_cq(&other).is_none());
    client.copy();
    let sent: Vec<Opcode> = stage.packets().iter().map(|(packet, _)| packet.bth.opcode).collect();
    assert!(sent.contains(&Opcode::RC_ACKNOWLEDGE) && sent.contains(&Opcode::RC_SEND_ONLY), "{sent:?}");
    let done = stage.host.poll_cq(&other).expect("the invalidation");
    assert_eq!((done.wr_id, done.status), (2, WcStatus::Success));
    assert_eq!(client.bytes(4096, 8), [3; 8]);
}

#[test]
fn destroyed_qp_drops_late_results() {
    let (mut stage, client) = late();
    let other = stage.another_qp();
    stage.put_for(&other, Opcode::RC_WRITE_ONLY, client.reth(0, 8), &[1; 8]);
    assert_eq!(stage.answers(), []);
    stage.host.begin(Command::DestroyQp(other.handle.index));
    assert_eq!((stage.answers(), stage.host.answered().is_none()), (vec![], true));
    client.copy();
    assert_eq!(stage.answers(), []);
    assert!(matches!(stage.host.answered(), Some(Ok(Reply::Done))));
}

#[test]
fn reset_qp_drops_late_frames() {
    let (mut stage, client) = late();
    let wr = SendWr { opcode: WrOpcode::Send, ..SendWr::default() };
    stage.post_list(&wr, &[client.sge(0, 4)]);
    assert!(stage.packets().is_empty());
    let reset = QpAttr { state: Some(QpState::Reset), ..QpAttr::default() };
    stage.host.begin(Command::ModifyQp(stage.qp.handle.index, Box::new(reset)));
    assert!(stage.packets().is_empty() && stage.host.answered().is_none());
    client.copy();
    assert!(stage.packets().is_empty());
    assert!(matches!(stage.host.answered(), Some(Ok(Reply::Done))));
    assert_eq!((stage.state(), stage.statuses()), (QpState::Reset, vec![]));
}

#[test]
fn dropped_job_fails_its_qp() {
    let (mut stage, client) = late();
    stage.put_write(&client, 0, 0, &[1; 8]);
    assert_eq!(stage.answers(), []);
    drop(client.jobs.try_next());
    assert_eq!((stage.answers(), stage.state()), (vec![], QpState::Err));
}

#[test]
fn packets_that_wait_are_bounded() {
    let (mut stage, client) = late();
    let full = vec![1; MTU.bytes()];
    stage.put_write(&client, 0, 0, &full);
    assert_eq!(stage.answers(), []);
    let mut psn = 1;
    while stage.counter("rx_dropped_awaiting_copies") == 0 {
        assert!(psn < 10_000, "there is no bound");
        stage.put_write(&client, psn, 0, &full);
        stage.host.worker.poll(stage.now);
        psn += 1;
    }
    client.copy();
    stage.answers();
    client.copy();
    let answers = stage.answers();
    assert_eq!(answers.last().map(|answer| answer.psn), Some(psn - 2), "all but the last were kept");
    stage.put_write(&client, psn - 1, 0, &full);
    stage.answers();
    client.copy();
    assert_eq!(stage.answers(), [Answer::ack(psn - 1)]);
}
