//! Applications that wait: in a call, on a descriptor, or not at all.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use roxie::host::{
    CompletionChannel, CompletionQueue, ConnectOptions, Device, DeviceConfig, QueuePair, Wait,
};
use roxie::shared::Armed;
use roxie::verbs::{Access, SendWr, Wc, WrOpcode};

use super::{End, patient, until};

/// An application that waits for its peer's messages.
struct Waiter {
    channel: CompletionChannel,
    cq: CompletionQueue,
    qp: QueuePair,
    device: Device,
    peer: End,
}

impl Waiter {
    fn new() -> Waiter {
        let (device, remote) = Device::memory_pair(&DeviceConfig::default()).expect("a pair");
        let channel = CompletionChannel::counting().expect("descriptors");
        let pd = device.alloc_pd().expect("a domain");
        let cq = device.create_cq(64, Some(&channel)).expect("a queue");
        let qp = pd.queue_pair(&cq).signal_all().create().expect("a QP");
        let peer = End::new(&remote, 8);
        let (here, there) = (qp.endpoint(0).expect("a GID"), peer.qp.endpoint(0).expect("a GID"));
        let options: ConnectOptions = patient();
        qp.connect(&here, &there, &options).expect("connected");
        peer.qp.connect(&there, &here, &options).expect("connected");
        for id in 0..16 {
            qp.post_recv(id, &[]).expect("room");
        }
        Waiter { channel, cq, qp, device, peer }
    }

    fn does_not_block(&self) {
        fcntl(self.channel.as_fd(), FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).expect("a flag");
    }

    /// The peer sends an empty message.
    fn send_empty(&self) {
        self.peer.qp.post_send(&SendWr::default(), &[]).expect("room");
        self.peer.cq.poll_one();
    }

    fn arm_and_check(&self) {
        self.cq.arm(Armed::Next);
        assert_eq!(self.cq.poll(&mut [Wc::default(); 8]), 0, "nothing is there yet");
    }

    fn takes_one(&self) {
        until("the completion", || self.cq.poll_one());
        self.qp.post_recv(0, &[]).expect("room");
    }
}

fn is_readable(fd: BorrowedFd<'_>, within: Duration) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::try_from(within).expect("a time")).expect("a poll") == 1
}

const SOON: Duration = Duration::from_secs(10);

#[test]
fn blocking_descriptor_delivers_the_event() {
    let waiter = Waiter::new();
    for _ in 0..100 {
        waiter.arm_and_check();
        waiter.send_empty();
        assert!(is_readable(waiter.channel.as_fd(), SOON));
        assert!(is_readable(waiter.channel.events(), Duration::ZERO), "it tells the truth");
        assert!(take(&waiter.channel) && waiter.cq.take_event());
        waiter.takes_one();
    }
}

/// Takes an event from the descriptor.
fn take(channel: &CompletionChannel) -> bool {
    let mut count = [0; 8];
    is_readable(channel.events(), Duration::ZERO) && nix::unistd::read(channel.events(), &mut count) == Ok(8)
}

/// WRITEs raise no event, and must not wake a program that then waits for one.
#[test]
fn nonblocking_channel_is_readable_only_with_an_event() {
    let waiter = Waiter::new();
    waiter.does_not_block();
    for _ in 0..100 {
        waiter.arm_and_check();
        for _ in 0..4 {
            waiter
                .peer
                .qp
                .post_send(&SendWr { opcode: WrOpcode::Write, ..SendWr::default() }, &[])
                .expect("room");
            waiter.peer.cq.poll_one();
        }
        waiter.peer.qp.post_send(&SendWr::default(), &[]).expect("room");
        assert!(is_readable(waiter.channel.as_fd(), SOON));
        assert!(take(&waiter.channel), "readable without an event");
        assert!(waiter.cq.take_event());
        waiter.takes_one();
        while waiter.peer.cq.poll(&mut [Wc::default(); 8]) > 0 {}
    }
}

/// Waits inside a call until an event is taken.
fn wait_inside(waiter: &Waiter) {
    until("the event", || match waiter.channel.begin_wait(&waiter.device) {
        Wait::Taken => Some(()),
        Wait::Look => take(&waiter.channel).then_some(()),
        Wait::Sleep => (is_readable(waiter.channel.events(), SOON) && take(&waiter.channel)).then_some(()),
        Wait::Watch { on, timeout } => {
            // SAFETY: the descriptors belong to the device, which outlives them.
            let link = on.fds().iter().map(|fd| unsafe { BorrowedFd::borrow_raw(*fd) });
            let all = [waiter.channel.events()].into_iter().chain(link);
            let mut fds: Vec<_> = all.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
            poll(&mut fds, PollTimeout::try_from(timeout).expect("a time")).expect("a poll");
            let rang = fds.last().and_then(PollFd::any) == Some(true);
            waiter.device.end_wait(rang);
            take(&waiter.channel).then_some(())
        }
    });
}

#[test]
fn blocking_call_runs_the_device() {
    let waiter = Waiter::new();
    for _ in 0..100 {
        waiter.arm_and_check();
        waiter.send_empty();
        wait_inside(&waiter);
        assert!(waiter.cq.take_event());
        waiter.takes_one();
    }
}

/// A thread that is cancelled in such a call never reports that it is awake.
#[test]
fn cancelled_waiter_does_not_block_others() {
    let waiter = Waiter::new();
    waiter.arm_and_check();
    let Wait::Watch { on, .. } = waiter.channel.begin_wait(&waiter.device) else {
        panic!("no other thread waits")
    };
    assert!(on.fds().iter().all(|fd| *fd != waiter.channel.events().as_raw_fd()));
    waiter.send_empty();
    assert!(is_readable(waiter.channel.events(), SOON));
    assert!(take(&waiter.channel) && waiter.cq.take_event());
}

/// Each thread has its own channel; more threads than cores.
#[test]
fn many_waiting_threads_get_their_events() {
    const THREADS: usize = 6;
    const ROUNDS: usize = 50;
    let (local, remote) = Device::memory_pair(&DeviceConfig::default()).expect("a pair");
    std::thread::scope(|scope| {
        for number in 0..THREADS {
            let (local, remote) = (&local, &remote);
            scope.spawn(move || {
                let ends = [local, remote].map(|device| {
                    let channel = CompletionChannel::counting().expect("descriptors");
                    if number % 2 == 0 {
                        fcntl(channel.as_fd(), FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).expect("a flag");
                    }
                    let pd = device.alloc_pd().expect("a domain");
                    let cq = device.create_cq(64, Some(&channel)).expect("a queue");
                    let qp = pd.queue_pair(&cq).create().expect("a QP");
                    let memory = pd.register(8, Access::LOCAL_WRITE).expect("memory");
                    (channel, cq, qp, memory)
                });
                let [here, there] = [0, 1].map(|i| ends[i].2.endpoint(0).expect("a GID"));
                ends[0].2.connect(&here, &there, &patient()).expect("connected");
                ends[1].2.connect(&there, &here, &patient()).expect("connected");
                for round in 0..ROUNDS {
                    let (to, from) = (&ends[round % 2], &ends[1 - round % 2]);
                    let (channel, cq, qp, memory) = to;
                    qp.post_recv(7, &[memory.sge(0, 8)]).expect("room");
                    cq.arm(Armed::Next);
                    from.2.post_send(&SendWr::default(), &[from.3.sge(0, 8)]).expect("room");
                    until("the event", || {
                        (is_readable(channel.as_fd(), SOON) && take(channel)).then_some(())
                    });
                    assert!(cq.take_event());
                    until("the completion", || cq.poll_one());
                }
            });
        }
    });
}
