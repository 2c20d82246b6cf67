//! Packets that are sent although their thread or process ends.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::Duration;

use roxie::engine::{Drive, Engine, Request, Worker};
use roxie::host::{Device, DeviceConfig};
use roxie::nic::{Answer, Command, MemoryCommand, Nic, NicConfig, QpHandle, ReceiveSource};
use roxie::port::LinkChange;
use roxie::port::memory;
use roxie::shared::work_queue::Payload;
use roxie::shared::{CompletionRing, Doorbells, RecvRing, SendRing};
use roxie::time::Nanos;
use roxie::verbs::{AddressVector, Mtu, QpCaps, QpInit, QpType, SendFlags, SendWr, WcStatus};
use roxie::wire::Gid;
use roxie_sim::{Connected, Host};

use crate::engine::bent::{self, Bent};
use crate::engine::{End, bent_pair, end, joined, patient, until, with_mtu};

/// A thread that posts while another one holds the worker relies on that one, which checks the doorbells again before
/// it leaves. No other thread runs the device here.
#[test]
fn holder_of_the_worker_sends_new_posts() {
    let mut link = None;
    let bend = |port| {
        let port = Bent::new(port);
        link = Some(port.link());
        port
    };
    let only = DeviceConfig::caller_only();
    let (local, remote) = bent_pair(4200, bend, &only, &only);
    let (a, b) = joined(&local, &remote, 8, &patient());
    b.receive(1);
    let a = Arc::new(a);
    let poster = Arc::clone(&a);
    let post = move || thread::spawn(move || poster.send(8)).join().expect("it finds the worker taken");
    *link.expect("the port was bent").meanwhile.lock().unwrap() = Some(Box::new(post));
    local.follow_link(&LinkChange::Addresses(bent::addresses(1).into())).expect("nothing changes");
    until("the message", || b.cq.poll_one());
}

/// The first error is kept, and read once.
#[test]
fn link_error_is_reported_once() {
    let port = Bent::new(memory::pair(end(1), end(2)).0);
    let link = port.link();
    let engine = Engine::start(NicConfig::default(), Box::new(port), Drive::CallerOnly).expect("an engine");
    engine.call(Command::AllocPd).expect("a pass");
    assert!(engine.take_link_error().is_none());
    link.is_broken.store(true, Relaxed);
    engine.call(Command::AllocPd).expect("the NIC goes on");
    link.is_broken.store(false, Relaxed);
    let why = engine.take_link_error().map(|why| why.to_string());
    assert_eq!(why.as_deref(), Some("the cable is cut"));
    assert!(engine.take_link_error().is_none());
}

fn remote_end_of(near: &Device, far: &Device) -> (End, End) {
    joined(near, far, 25_600, &roxie::host::ConnectOptions { timeout: 20, ..with_mtu(Mtu::Mtu256) })
}

/// The process ends with more posted than one pass sends: all of it is sent.
#[test]
fn process_end_sends_all_posted_requests() {
    let (local, remote) = Device::memory_pair(&DeviceConfig::caller_only()).expect("a pair");
    let ends = [remote_end_of(&local, &remote), remote_end_of(&local, &remote)];
    for (_, b) in &ends {
        (0..3).for_each(|id| b.receive(id));
    }
    // The third send of each waits for a pass, because others are outstanding, and both together exceed a burst.
    for length in [8, 8, 25_600] {
        ends.iter().for_each(|(a, _)| a.send(length));
    }
    local.send_last(Duration::from_secs(10));
    for (_, b) in &ends {
        for id in 0..3 {
            let (wc, _) = until("a message", || b.cq.poll_one());
            assert_eq!((wc.wr_id, wc.status), (id, WcStatus::Success));
        }
    }
}

/// An end of a connection without a device.
struct Bare {
    qp: QpHandle,
    cq: CompletionRing,
    sends: SendRing,
    receives: RecvRing,
}

impl Bare {
    /// Makes the end by commands.
    fn new(mut call: impl FnMut(Command) -> Answer) -> Bare {
        let (cq, receives) = (CompletionRing::new(8).expect("memory"), RecvRing::new(1, 0).expect("memory"));
        let sends = SendRing::new(1, 0, 0).expect("memory");
        let Answer::Pd(pd) = call(Command::AllocPd) else { panic!("no domain") };
        let Answer::Cq(index) = call(MemoryCommand::CreateCq { ring: cq.clone(), notify: None }.into())
        else {
            panic!("no queue")
        };
        let caps = QpCaps { max_send_wr: 1, max_recv_wr: 1, ..QpCaps::NONE };
        let Answer::Qp(qp) = call(
            MemoryCommand::CreateQp {
                pd,
                send_cq: index,
                recv_cq: index,
                init: QpInit { qp_type: QpType::Rc, caps, sq_sig_all: true },
                sends: sends.clone(),
                receives: ReceiveSource::Own(receives.clone()),
            }
            .into(),
        ) else {
            panic!("no QP")
        };
        Bare { qp, cq, sends, receives }
    }

    /// Connects to the QP of `peer`, from host `number` to host `to`.
    fn connect(&self, (number, to): (u8, u8), peer: &Bare, mut call: impl FnMut(Command) -> Answer) {
        let way = AddressVector::new(
            Gid::from(Host::address(number.into(), false)),
            Gid::from(Host::address(to.into(), false)),
            bent::mac(number),
            bent::mac(to),
        );
        let to =
            Connected { peer: peer.qp.qpn, path: way, path_mtu: Mtu::Mtu1024, timeout: 20, rd_atomic: 1 };
        for attr in to.steps(QpType::Rc) {
            call(Command::ModifyQp(self.qp.index, Box::new(attr)));
        }
    }
}

impl Bare {
    /// Sends a message to `peer`, which has a receive for it.
    fn send_to(&self, engine: &Engine, peer: &Bare) {
        peer.receives.post(1, &[]).expect("room");
        let wr = SendWr { flags: SendFlags::SIGNALED, ..SendWr::default() };
        self.sends.post(&wr, Payload::Sges(&[])).expect("room");
        engine.ring_doorbell(self.qp.index, 1, 0);
    }

    /// Waits until the message is acknowledged.
    fn finish(&self, engine: &Engine) {
        let (sent, _) = until("the acknowledgement", || {
            engine.caller_pass();
            self.cq.poll()
        });
        assert_eq!(sent.status, WcStatus::Success);
    }
}

/// An engine that ends has acknowledged what it received, even if its QPs were never destroyed: they may belong to
/// another process.
#[test]
fn engine_end_sends_owed_acknowledgements() {
    let (a, b) = memory::pair(end(1), end(2));
    let engine =
        |port| Engine::start(NicConfig::default(), Box::new(port), Drive::CallerOnly).expect("an engine");
    let (local_engine, remote_engine) = (engine(a), engine(b));
    let [local_call, remote_call] = [&local_engine, &remote_engine]
        .map(|engine| |command: Command| engine.call(command).expect("carried out"));
    let (local, remote) = (Bare::new(local_call), Bare::new(remote_call));
    local.connect((1, 2), &remote, local_call);
    remote.connect((2, 1), &local, remote_call);
    local.send_to(&local_engine, &remote);
    until("the message", || {
        remote_engine.caller_pass();
        remote.cq.poll()
    });
    local_engine.caller_pass();
    assert_eq!(local.cq.poll(), None, "not acknowledged yet");
    drop(remote_engine);
    local.finish(&local_engine);
}

/// A command that destroys a QP arrives after the QP's last message and before its acknowledgement has left.
#[test]
fn command_does_not_overtake_owed_acknowledgement() {
    let (a, b) = memory::pair(end(1), end(2));
    let engine = Engine::start(NicConfig::default(), Box::new(a), Drive::CallerOnly).expect("an engine");
    let local_call = |command: Command| engine.call(command).expect("carried out");
    let (requests, received) = crossbeam_channel::bounded(8);
    let (events, _events) = crossbeam_channel::bounded(8);
    let config = NicConfig::default();
    let doorbells = Doorbells::new(config.limits.qps).expect("memory");
    let nic = Nic::new(config);
    let mut worker = Worker::new(nic, Box::new(b), doorbells, received, events);
    let (answer, answered) = crossbeam_channel::bounded(1);
    let request = |command: Command| {
        let command = command.prepare().expect("memory");
        requests.send(Request::Command { command, answer: answer.clone() }).expect("room");
    };
    let mut remote_call = |command: Command| {
        request(command);
        worker.poll(Nanos(1));
        answered.recv().expect("an answer").result.expect("carried out")
    };
    let (local, remote) = (Bare::new(local_call), Bare::new(&mut remote_call));
    local.connect((1, 2), &remote, local_call);
    remote.connect((2, 1), &local, remote_call);
    local.send_to(&engine, &remote);
    worker.take_in(Nanos(2));
    assert_eq!(remote.cq.poll().map(|wc| wc.status), Some(WcStatus::Success));
    engine.caller_pass();
    assert_eq!(local.cq.poll(), None, "not acknowledged yet");
    request(Command::DestroyQp(remote.qp.index));
    worker.take_in(Nanos(3));
    assert!(answered.recv().expect("an answer").result.is_ok());
    local.finish(&engine);
}
