//! The engine as callers drive it.

mod arms;
mod bent;
mod captured;
mod last;
mod passes;
#[cfg(feature = "tokio")]
mod tasks;
mod waits;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use bent::Bent;
use roxie::engine::{Drive, Engine};
use roxie::host::{
    CompletionChannel, CompletionQueue, ConnectOptions, Device, DeviceConfig, DeviceError, MemoryRegion,
    ProtectionDomain, QueuePair, WaitError,
};
use roxie::nic::{Answer, Command, CongestionConfig, ControlError, MemoryCommand, NicConfig, ReceiveSource};
use roxie::port::loopback::LoopbackPort;
use roxie::port::memory::{self, MemoryConfig};
use roxie::port::{LinkChange, Port};
use roxie::shared::{Armed, CompletionRing, PostError, RecvRing, SendRing};
use roxie::time::Nanos;
use roxie::verbs::{
    Access, AsyncEvent, EventKind, Mtu, QpCaps, QpInit, QpState, QpType, SendWr, WcOpcode, WcStatus, WrOpcode,
};

/// A device's end of a connection.
struct End {
    qp: QueuePair,
    cq: CompletionQueue,
    memory: MemoryRegion,
    _pd: ProtectionDomain,
    device: Device,
}

impl End {
    fn new(device: &Device, length: usize) -> End {
        let pd = device.alloc_pd().expect("a domain");
        let cq = device.create_cq(64, None).expect("a queue");
        let qp = pd.queue_pair(&cq).signal_all().create().expect("a QP");
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
        let memory = pd.register(length, access).expect("memory");
        End { qp, cq, memory, _pd: pd, device: device.clone() }
    }

    fn receive(&self, wr_id: u64) {
        let length = self.memory.len() as u32;
        self.qp.post_recv(wr_id, &[self.memory.sge(0, length)]).expect("room");
    }

    fn send(&self, length: u32) {
        self.qp.post_send(&SendWr::default(), &[self.memory.sge(0, length)]).expect("room");
    }

    fn events(&self) -> Vec<AsyncEvent> {
        std::iter::from_fn(|| self.device.event()).collect()
    }
}

/// Connects a QP on each of two devices, with `length` bytes of memory each.
fn joined(near: &Device, far: &Device, length: usize, options: &ConnectOptions) -> (End, End) {
    let (a, b) = (End::new(near, length), End::new(far, length));
    let (here, there) = (a.qp.endpoint(0).expect("a GID"), b.qp.endpoint(0).expect("a GID"));
    a.qp.connect(&here, &there, options).expect("connected");
    b.qp.connect(&there, &here, options).expect("connected");
    (a, b)
}

fn with_mtu(path_mtu: Mtu) -> ConnectOptions {
    ConnectOptions { path_mtu: Some(path_mtu), ..ConnectOptions::default() }
}

/// Returns options with a timeout that does not expire during a test.
fn patient() -> ConnectOptions {
    ConnectOptions { timeout: 20, ..ConnectOptions::default() }
}

fn driven(drive: Drive) -> DeviceConfig {
    DeviceConfig { drive, ..DeviceConfig::default() }
}

fn end(n: u8) -> MemoryConfig {
    MemoryConfig { mac: bent::mac(n), ..MemoryConfig::default() }
}

/// Returns one of two devices joined by memory, with `bend` around its port.
fn bent_pair<P: Port + 'static>(
    mtu: usize,
    bend: impl FnOnce(memory::MemoryPort) -> P,
    near: &DeviceConfig,
    far: &DeviceConfig,
) -> (Device, Device) {
    let sized = |n: u8| MemoryConfig { mtu, ..end(n) };
    let (a, b) = memory::pair(sized(1), sized(2));
    let open = |port: Box<dyn Port>, n: u8, config: &DeviceConfig| {
        Device::new("bent", port, bent::addresses(n), Box::new(bent::Neighbour), config).expect("a device")
    };
    (open(Box::new(bend(a)), 1, near), open(Box::new(b), 2, far))
}

/// Polls `done` until it returns a value; returns it with the time that took.
fn until<T>(what: &str, mut done: impl FnMut() -> Option<T>) -> (T, Duration) {
    let start = Instant::now();
    loop {
        if let Some(result) = done() {
            return (result, start.elapsed());
        }
        assert!(start.elapsed() < Duration::from_secs(10), "{what}: not within 10 s");
    }
}

/// A receiver that destroys its QP right after its message has still acknowledged it.
#[test]
fn departing_receiver_acknowledges_last_message() {
    let (local, remote) = Device::memory_pair(&DeviceConfig::caller_only()).expect("a pair");
    let (a, b) = joined(&local, &remote, 8, &ConnectOptions::default());
    b.receive(1);
    a.send(8);
    while b.cq.poll_one().is_none() {
        local.poll();
    }
    drop(b);
    let sent = a.cq.wait(Duration::from_secs(5)).expect("the send completes");
    assert_eq!(sent.status, WcStatus::Success);
    assert_eq!(local.counter("retransmitted_packets"), 0);
}

/// A reply is sent at the post, without a later poll; no other thread runs the device here.
#[test]
fn reply_is_sent_when_posted() {
    let (local, remote) = Device::memory_pair(&DeviceConfig::caller_only()).expect("a pair");
    let (a, b) = joined(&local, &remote, 8, &patient());
    a.receive(1);
    b.receive(2);
    a.send(8);
    until("the request", || {
        a.cq.poll_one();
        b.cq.poll_one()
    });
    b.send(8);
    for what in ["the acknowledgement", "the answer"] {
        until(what, || a.cq.poll_one());
    }
}

/// A request is sent at the post, without a later poll.
#[test]
fn request_is_sent_when_posted() {
    let (local, remote) = Device::memory_pair(&DeviceConfig::caller_only()).expect("a pair");
    let (a, b) = joined(&local, &remote, 8, &patient());
    b.receive(1);
    a.send(8);
    until("the request", || b.cq.poll_one());
}

/// A received acknowledgement does not count as received data: the next request's acknowledgement still waits for the
/// reply.
#[test]
fn received_ack_does_not_hurry_the_next() {
    let (local, remote) = Device::memory_pair(&DeviceConfig::caller_only()).expect("a pair");
    let (a, b) = joined(&local, &remote, 8, &patient());
    a.receive(1);
    a.receive(2);
    b.receive(3);
    b.send(8);
    until("the message", || a.cq.poll_one());
    assert_eq!(a.cq.poll_one(), None, "a pass that acknowledges it");
    until("the acknowledgement, alone", || b.cq.poll_one());
    a.send(8);
    assert_eq!(b.cq.poll_one().map(|wc| wc.opcode), Some(WcOpcode::Recv));
    assert_eq!(a.cq.poll_one(), None, "acknowledged before its answer was posted");
    b.send(8);
    let completed: Vec<_> = std::iter::from_fn(|| a.cq.poll_one()).map(|wc| wc.opcode).collect();
    assert_eq!(completed, [WcOpcode::Recv, WcOpcode::Send], "the answer goes first");
}

/// Acknowledgements wait for the application's reply. A READ that waited for a response to another, and a READ
/// response, do not: the pass that unblocks them sends them.
#[test]
fn unblocked_read_is_sent_in_same_pass() {
    let (local, remote) = Device::memory_pair(&DeviceConfig::caller_only()).expect("a pair");
    let (a, b) = joined(&local, &remote, 64, &ConnectOptions { max_rd_atomic: 1, ..patient() });
    let read = SendWr {
        opcode: WrOpcode::Read,
        remote_addr: b.memory.sge(0, 8).addr,
        rkey: b.memory.rkey(),
        ..SendWr::default()
    };
    for _ in 0..3 {
        a.qp.post_send(&read, &[a.memory.sge(0, 8)]).expect("room");
    }
    let sent = |end: &End| end.device.counter("sent_pkts");
    assert_eq!(sent(&a), 1, "one at a time");
    for done in 1..=3 {
        assert_eq!(b.cq.poll_one(), None);
        assert_eq!(sent(&b), done, "answered at once");
        assert_eq!(a.cq.poll_one().map(|wc| wc.status), Some(WcStatus::Success));
        assert_eq!(sent(&a), (done + 1).min(3), "the next has left");
    }
}

/// A process that ends has acknowledged what it received, although its device is not dropped.
#[test]
fn process_end_sends_owed_acknowledgements() {
    let (local, remote) = Device::memory_pair(&DeviceConfig::caller_only()).expect("a pair");
    let (a, b) = joined(&local, &remote, 8, &patient());
    b.receive(1);
    a.send(8);
    until("the message", || {
        a.cq.poll_one();
        b.cq.poll_one()
    });
    assert_eq!(a.cq.poll_one(), None, "not acknowledged yet");
    remote.send_last(Duration::from_secs(10));
    until("the acknowledgement", || a.cq.poll_one());
}

/// A QP that is destroyed right after a post has sent the request.
#[test]
fn destroying_a_qp_sends_posted_requests() {
    let (local, remote) = Device::memory_pair(&DeviceConfig::caller_only()).expect("a pair");
    let (a, b) = joined(&local, &remote, 8, &patient());
    b.receive(1);
    a.send(8);
    drop(a);
    until("the last request", || b.cq.poll_one());
}

/// A device with delay-based control asks its port once for receive timestamps, and tells it how many frames to expect;
/// both also of a port that replaces it.
#[test]
fn replacement_port_learns_what_is_wanted() {
    let (first, second) = (memory::pair(end(1), end(2)), memory::pair(end(1), end(2)));
    let [first, second] = [first, second].map(|(port, _)| Bent::new(port));
    let (of_first, of_second) = (first.link(), second.link());
    let engine = Engine::start(NicConfig::default(), Box::new(first), Drive::CallerOnly).expect("an engine");
    let by_delay = CongestionConfig { control: "swift".parse().expect("settings"), ..Default::default() };
    let call = |command: Command| engine.call(command).expect("carried out");
    let Answer::Pd(pd) = call(Command::AllocPd) else { panic!("no domain") };
    let ring = CompletionRing::new(8).expect("memory");
    let Answer::Cq(cq) = call(MemoryCommand::CreateCq { ring, notify: None }.into()) else {
        panic!("no queue")
    };
    let caps = QpCaps { max_send_wr: 1, max_recv_wr: 1, ..QpCaps::NONE };
    let create = MemoryCommand::CreateQp {
        pd,
        send_cq: cq,
        recv_cq: cq,
        init: QpInit { qp_type: QpType::Rc, caps, sq_sig_all: true },
        sends: SendRing::new(1, 0, 0).expect("memory"),
        receives: ReceiveSource::Own(RecvRing::new(1, 0).expect("memory")),
    };
    assert_eq!(of_first.expected.load(Relaxed), 0);
    let Answer::Qp(qp) = call(create.into()) else { panic!("no QP") };
    let window = NicConfig::default().limits.window as usize;
    assert_eq!(of_first.expected.load(Relaxed), window);
    assert_eq!(of_first.stamps.load(Relaxed), 0);
    call(Command::SetCongestion(Box::new(by_delay)));
    assert_eq!(of_first.stamps.load(Relaxed), 1);
    engine.set_port(Box::new(second)).expect("nothing was carried yet");
    assert_eq!((of_first.stamps.load(Relaxed), of_second.stamps.load(Relaxed)), (1, 1));
    assert_eq!(of_second.expected.load(Relaxed), window);
    call(Command::DestroyQp(qp.index));
    assert_eq!(of_second.expected.load(Relaxed), 0);
}

/// Settings that the port refuses fail each command that requests them; all else continues.
#[test]
fn refused_setting_fails_only_its_command() {
    let port = Bent::new(memory::pair(end(1), end(2)).0);
    let link = port.link();
    link.hides_pauses.store(true, Relaxed);
    let engine = Engine::start(NicConfig::default(), Box::new(port), Drive::CallerOnly).expect("an engine");
    let mut config = CongestionConfig::default();
    engine.call(Command::SetCongestion(Box::new(config.clone()))).expect("no priority heeds a pause");
    config.classes.pfc = 1 << 3;
    let set = || engine.call(Command::SetCongestion(Box::new(config.clone())));
    for _ in 0..2 {
        assert!(matches!(set(), Err(ControlError::MacControl(_))));
        engine.call(Command::AllocPd).expect("asks the port for nothing");
    }
    link.hides_pauses.store(false, Relaxed);
    set().expect("it can by now");
}

/// A thread that spins on its worker lets other threads read counters.
#[test]
fn counters_are_readable_while_a_thread_spins() {
    let config = driven(Drive::Thread { core: None, spin: Nanos::MAX });
    let (local, _remote) = Device::memory_pair(&config).expect("a pair");
    for _ in 0..100 {
        assert_eq!(local.counter("rcvd_pkts"), 0);
    }
}

#[test]
fn lowered_mtu_fails_only_oversized_qps() {
    for drive in [Drive::CallerOnly, Drive::Thread { core: None, spin: Nanos::from_micros(10) }] {
        let (local, remote) = Device::memory_pair(&driven(drive)).expect("a pair");
        let (large, _large_peer) = joined(&local, &remote, 1 << 20, &with_mtu(Mtu::Mtu4096));
        let (small, small_peer) = joined(&local, &remote, 4096, &with_mtu(Mtu::Mtu1024));
        // The peer does not receive it, so it is outstanding when the MTU changes.
        large.send(1 << 20);
        local.poll();
        local.follow_link(&LinkChange::Mtu(1500)).expect("a memory port follows");

        let (failed, _) = until("the completion", || large.cq.poll_one());
        assert_eq!(failed.status, WcStatus::WrFlush);
        assert_eq!(large.qp.query().expect("a status").state, QpState::Err);
        let fatal = AsyncEvent::Qp(large.qp.index(), EventKind::QpFatal);
        assert_eq!(large.events(), [fatal], "said once, of this QP alone");
        assert_eq!((local.port().mtu, local.largest_mtu()), (1500, Mtu::Mtu1024));

        small_peer.receive(1);
        small.send(4096);
        let (received, _) = until("the small one goes on", || {
            local.poll();
            small_peer.cq.poll_one()
        });
        assert_eq!((received.status, received.byte_len), (WcStatus::Success, 4096));
    }
}

/// The time between a link's MTU change and the NIC's notification.
#[test]
fn unsendable_packet_fails_only_its_qp() {
    let config = DeviceConfig::caller_only();
    let mut shrunk = None;
    let bend = |port| {
        let port = Bent::new(port);
        shrunk = Some(port.shrinks());
        port
    };
    let (local, remote) = bent_pair(4200, bend, &config, &config);
    let (large, _large_peer) = joined(&local, &remote, 4096, &with_mtu(Mtu::Mtu1024));
    let (small, small_peer) = joined(&local, &remote, 4096, &with_mtu(Mtu::Mtu512));
    shrunk.expect("the port was bent").store(true, Relaxed);
    large.send(4096);
    small_peer.receive(1);
    small.send(4096);
    let (received, _) = until("the other QP", || {
        local.poll();
        small_peer.cq.poll_one()
    });
    assert_eq!(received.status, WcStatus::Success);
    assert_eq!(large.cq.poll_one().expect("a completion").status, WcStatus::WrFlush);
    assert_eq!(large.events(), [AsyncEvent::Qp(large.qp.index(), EventKind::QpFatal)]);
}

#[test]
fn raised_mtu_is_used_by_loopback_qps() {
    const LENGTH: usize = 256 << 10;
    let config = DeviceConfig::caller_only();
    let (local, _remote) = bent_pair(1500, |port| LoopbackPort::new(port, 512), &config, &config);
    assert_eq!(local.largest_mtu(), Mtu::Mtu1024);
    local.follow_link(&LinkChange::Mtu(9000)).expect("a memory port follows");
    assert_eq!((local.port().mtu, local.largest_mtu()), (9000, Mtu::Mtu4096));
    let (a, b) = joined(&local, &local, LENGTH, &with_mtu(Mtu::Mtu4096));
    let pattern: Vec<u8> = (0..LENGTH).map(|i| (i * 31 + i / 4096) as u8).collect();
    a.memory.write_at(0, &pattern).expect("it fits");
    b.receive(1);
    a.send(LENGTH as u32);
    let (received, _) = until("the message", || b.cq.poll_one());
    assert_eq!((received.status, received.byte_len as usize), (WcStatus::Success, LENGTH));
    assert!(b.memory.to_vec(0, LENGTH).expect("it fits") == pattern, "no frame overwrites another");
    assert_eq!(local.counter("retransmitted_packets"), 0);
}

/// Asserts what must hold after a pass has panicked, on whichever thread.
fn is_dead(a: &End, channel: &CompletionChannel) {
    until("the death is noticed", || {
        a.device.poll();
        a.device.has_failed().then_some(())
    });
    assert!(channel.wait(Duration::from_secs(5)), "a thread that waits for completions is woken");
    assert_eq!(a.events(), [AsyncEvent::Device(EventKind::DeviceFatal)]);
    let wr = SendWr::default();
    assert_eq!(a.qp.post_send(&wr, &[a.memory.sge(0, 8)]), Err(PostError::DeviceFatal));
    assert_eq!(a.qp.post_recv(1, &[a.memory.sge(0, 8)]), Err(PostError::DeviceFatal));
    let start = Instant::now();
    for _ in 0..200 {
        // More than the command queue holds.
        let refused = a.device.alloc_pd().expect_err("an error");
        assert!(matches!(refused, DeviceError::Control(ControlError::DeviceFatal)), "{refused}");
    }
    assert_eq!(a.cq.wait(Duration::from_secs(3600)), Err(WaitError::DeviceFailed));
    assert_eq!(a.device.counter("retransmitted_packets"), 0, "counters can still be read");
    assert!(start.elapsed() < Duration::from_secs(2), "no wait for a failed engine: {:?}", start.elapsed());
}

/// Returns an engine that panics in its next pass: an end on it, the channel of an armed queue, and objects to keep.
fn doomed(drive: Drive) -> (End, CompletionChannel, (CompletionQueue, End)) {
    let mut fuse = None;
    let bend = |port| {
        let port = Bent::new(port);
        fuse = Some(port.fuse());
        port
    };
    let (local, remote) = bent_pair(4200, bend, &driven(drive), &DeviceConfig::caller_only());
    let (a, b) = joined(&local, &remote, 8, &ConnectOptions::default());
    let channel = CompletionChannel::new().expect("an eventfd");
    let armed = local.create_cq(8, Some(&channel)).expect("a queue");
    armed.arm(Armed::Next);
    fuse.expect("the port was bent").store(true, Relaxed);
    (a, channel, (armed, b))
}

#[test]
fn panic_on_engine_thread_fails_the_device() {
    let (a, channel, _stay) = doomed(Drive::Thread { core: None, spin: Nanos::MAX });
    is_dead(&a, &channel);
}

#[test]
fn panic_on_fallback_thread_fails_the_device() {
    let (a, channel, _stay) = doomed(Drive::Caller);
    // Only the fallback thread runs the device now.
    until("the thread panics", || a.device.has_failed().then_some(()));
    is_dead(&a, &channel);
}

#[test]
fn panic_in_callers_pass_fails_the_device() {
    let (a, channel, _stay) = doomed(Drive::CallerOnly);
    assert!(catch_unwind(AssertUnwindSafe(|| a.device.poll())).is_err(), "the caller sees it");
    is_dead(&a, &channel);
}

/// Returns devices of which the first one's fallback thread sleeps, with a port descriptor that never becomes readable.
fn asleep() -> (Device, Device) {
    let drive = driven(Drive::Caller);
    bent_pair(4200, |port| Bent::new(port).whose_readiness_is_taken(), &drive, &DeviceConfig::caller_only())
}

/// Less than the 100 ms after which a sleeping thread wakes by itself.
const WELL_BEFORE: Duration = Duration::from_millis(40);
/// Retries: a thread that is never woken is late each time, one that is woken only on a busy machine.
fn in_time(attempt: impl Fn() -> Duration) {
    let took: Vec<Duration> = (0..8).map(|_| attempt()).take_while(|took| *took >= WELL_BEFORE).collect();
    assert!(took.len() < 8, "{took:?}");
}

/// After this time the thread sleeps.
const IT_SLEEPS: Duration = Duration::from_millis(25);

#[test]
fn sleeping_thread_sends_the_callers_acknowledgement() {
    in_time(|| {
        let (local, remote) = asleep();
        let (a, b) = joined(&local, &remote, 8, &patient());
        a.receive(1);
        b.send(8);
        std::thread::sleep(IT_SLEEPS);
        remote.poll();
        until("the message", || a.cq.poll_one());
        // The caller stops polling after its message; the acknowledgement is owed.
        let (sent, took) = until("the acknowledgement", || b.cq.poll_one());
        assert_eq!(sent.status, WcStatus::Success);
        assert_eq!(remote.counter("retransmitted_packets"), 0);
        took
    });
}

#[test]
fn inspection_wakes_the_owner_of_the_worker() {
    in_time(|| {
        let drive = driven(Drive::Thread { core: None, spin: Nanos(1_000) });
        let bend = |port| Bent::new(port).whose_readiness_is_taken();
        let (local, _remote) = bent_pair(4200, bend, &drive, &DeviceConfig::caller_only());
        std::thread::sleep(IT_SLEEPS);
        let since = Instant::now();
        assert_eq!(local.counter("retransmitted_packets"), 0);
        since.elapsed()
    });
}

#[test]
fn callers_timer_wakes_the_sleeping_thread() {
    in_time(|| {
        let (local, remote) = asleep();
        // Without an ACK timeout, the thread has no deadline of its own. The peer's RNR timer is 0.64 ms.
        let options = ConnectOptions { timeout: 0, min_rnr_timer: 12, ..ConnectOptions::default() };
        let (a, b) = joined(&local, &remote, 8, &options);
        a.send(8);
        local.poll();
        std::thread::sleep(IT_SLEEPS);
        // Receives the message, then answers.
        remote.poll();
        remote.poll();
        // The caller receives the RNR NAK and stops polling.
        until("the NAK", || {
            local.poll();
            (local.counter("rcvd_pkts") > 0).then_some(())
        });
        b.receive(1);
        let (received, took) = until("the message again", || b.cq.poll_one());
        assert_eq!(received.status, WcStatus::Success);
        took
    });
}

/// A link that accepts no frame is retried less and less often. Once it accepts frames, the pending ones are sent.
#[test]
fn down_link_costs_no_processor_time() {
    let mut link = None;
    let bend = |port| {
        let port = Bent::new(port);
        link = Some(port.link());
        port
    };
    let (local, remote) = bent_pair(4200, bend, &DeviceConfig::default(), &DeviceConfig::caller_only());
    let link = link.expect("the port was bent");
    let (a, b) = joined(&local, &remote, 8, &patient());
    b.receive(1);
    link.is_down.store(true, Relaxed);
    a.send(8);
    let own = std::thread::current().id();
    let kicks = || -> Vec<bent::Kick> {
        link.in_vain.lock().unwrap().iter().filter(|kick| kick.thread != own).copied().collect()
    };
    // The first waits are short: measure later ones.
    let (kicks, _) = until("the engine's thread kicks", || Some(kicks()).filter(|kicks| kicks.len() > 100));
    let (first, last) = (kicks[0], kicks[kicks.len() - 1]);
    let (worked, passed) = (last.processor - first.processor, last.at - first.at);
    assert!(10 * worked < passed, "{} kicks in {passed:?} took {worked:?} of a processor", kicks.len());
    assert_eq!(b.cq.poll_one(), None);
    link.is_down.store(false, Relaxed);
    until("the message", || b.cq.poll_one());
}

#[test]
fn device_drop_interrupts_its_thread() {
    let config = driven(Drive::Caller);
    let (local, remote) = Device::memory_pair(&config).expect("a pair");
    local.poll();
    std::thread::sleep(Duration::from_millis(10));
    let start = Instant::now();
    drop((local, remote));
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}

#[test]
fn unpinnable_thread_still_works() {
    let (local, remote) =
        Device::memory_pair(&driven(Drive::Thread { core: Some(1000), spin: Nanos::ZERO })).expect("a pair");
    let (a, b) = joined(&local, &remote, 8, &ConnectOptions::default());
    b.receive(1);
    a.send(8);
    assert_eq!(b.cq.wait(Duration::from_secs(5)).expect("the message").status, WcStatus::Success);
}

#[test]
fn unlimited_wait_ends_with_a_completion() {
    let (local, remote) = Device::memory_pair(&DeviceConfig::default()).expect("a pair");
    let (a, b) = joined(&local, &remote, 8, &ConnectOptions::default());
    b.receive(7);
    a.send(8);
    assert_eq!(b.cq.wait(Duration::MAX).expect("the message").wr_id, 7);
}

#[test]
fn oversized_registration_is_an_error() {
    let (local, _remote) = Device::memory_pair(&DeviceConfig::caller_only()).expect("a pair");
    let pd = local.alloc_pd().expect("a domain");
    let error = pd.register(usize::MAX >> 2, Access::LOCAL_WRITE).expect_err("too much").to_string();
    assert!(error.contains("memory for a region") && error.contains("4611686018427387903 bytes"), "{error}");
}

/// Two threads copy to one region: each copy is applied as a whole, or not at all.
#[test]
fn concurrent_copies_do_not_mix() {
    const LENGTH: usize = 64 << 10;
    let (local, _remote) = Device::memory_pair(&DeviceConfig::caller_only()).expect("a pair");
    let pd = local.alloc_pd().expect("a domain");
    let region = pd.register(LENGTH, Access::LOCAL_WRITE).expect("memory");
    std::thread::scope(|scope| {
        for byte in [1, 2] {
            let region = &region;
            scope.spawn(move || {
                for _ in 0..500 {
                    region.write_at(0, &vec![byte; LENGTH]).expect("it fits");
                }
            });
        }
        for _ in 0..500 {
            let seen = region.to_vec(0, LENGTH).expect("it fits");
            assert!(seen.iter().all(|b| *b == seen[0]), "a mixture");
        }
    });
}
