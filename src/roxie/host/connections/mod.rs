//! A connection manager on a device: [`cm::Manager`](roxie_nic::cm::Manager) on QP1, with two threads.
//!
//! Calls of the manager send its messages before they return, so a program that disconnects and exits has sent its
//! DREQ. Two threads do the rest, and sleep while there is nothing to do. The first takes received messages, fairly by
//! sender (`inbox`), and drives the manager's timers. The second resolves paths to new hosts, many at a time, for
//! seconds if they do not answer (`searches`), without delaying the first. The consumer receives events under the
//! manager's lock, so that its state and the manager's state of a connection change together.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};

use super::channel::CompletionChannel;
use super::cq::CompletionQueue;
use super::datagram::AddressHandle;
use super::device::Device;
use super::error::DeviceError;
use super::inbox::Inbox;
use super::pd::ProtectionDomain;
use super::searches::{Found, Lookup, SearchEnd, Searches};
use gsi::{Gsi, HEADER, ROOM, SENDS};
use message_path::{MessagePath, find_path, return_path};
use roxie_base::threads::spawn_unsignalled;
use roxie_base::time::Nanos;
use roxie_nic::cm::{Arrival, ConnectionState, Event, ListenOn, Manager, Route, Transmit};
use roxie_nic::shared::Armed;
use roxie_nic::verbs::{QpAttr, QpIndex, QpState, Qpn, SendWr, Wc, WcOpcode, WcStatus};
use roxie_port::undelivered::Undelivered;
use roxie_wire::mad::{GSI_QKEY, MAD_LEN};
use roxie_wire::{Bth, Deth};

mod examination;
mod gsi;
mod message_path;

/// Capacity of the queue of messages for the resolving thread. Further ones are dropped, and retransmitted later.
const LOOKING: usize = 256;
/// Number of resolved paths kept.
const PATHS: usize = 1024;
/// Maximum number of completions in a poll.
const BATCH: usize = 256;
/// Received messages handled between two polls of QP1. Few enough that QP1's receives hold what arrives meanwhile.
const TURNS: usize = 64;
/// Interval at which [`part`](ConnectionService::part) checks for the peers' agreement.
const LOOK: Duration = Duration::from_millis(1);

/// The user of a connection manager.
pub trait Consumer: Send + 'static {
    /// Handles an event of a connection. May call the manager; must not block.
    fn event(&mut self, manager: &mut Manager, now: Nanos, event: Event);

    /// Handles a failure of the device: no more events will come.
    fn device_failed(&mut self) {}
}

/// A consumer that ignores all events: connection requests are refused.
#[derive(Debug)]
pub struct IgnoreEvents;

impl Consumer for IgnoreEvents {
    fn event(&mut self, _: &mut Manager, _: Nanos, _: Event) {}
}

/// A connection manager with its consumer and threads. When dropped, it forgets its connections without a message to
/// their peers.
#[derive(Debug)]
pub struct ConnectionService<C: Consumer> {
    inner: Arc<Inner<C>>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Inner<C> {
    core: Mutex<Core<C>>,
    device: Device,
    /// Messages without a resolved path, for the second thread; `None` ends it.
    requests: SyncSender<Option<Transmit>>,
    /// Wakes the first thread.
    wake: EventFd,
    stop: AtomicBool,
}

/// State under one lock.
#[derive(Debug)]
struct Core<C> {
    manager: Manager,
    consumer: C,
    gsi: Gsi,
    /// Received messages that wait for their turn.
    inbox: Inbox<Datagram>,
    /// Messages to send before the manager's.
    outbox: VecDeque<Transmit>,
    reports: UndeliveredReports,
    paths: Found<MessagePath, Arc<AddressHandle>>,
    /// Address handles of unfinished sends; empty slots are free.
    under_way: Vec<Option<Arc<AddressHandle>>>,
    device: Device,
    /// Version of the manager's services that was last announced to the processes that share the port.
    announced: u64,
    /// QP1 has failed, and restarts once all its work requests are flushed.
    gsi_failed: bool,
}

/// A received MAD and its sender.
#[derive(Debug)]
struct Datagram {
    mad: [u8; MAD_LEN],
    from: Arrival,
}

impl<C: Consumer> ConnectionService<C> {
    /// Claims the device's interface if needed, makes QP1, and starts the threads.
    ///
    /// # Errors
    /// If the interface cannot be claimed, a QP1 already exists, or the system is out of memory, descriptors or
    /// threads.
    pub fn start(
        device: &Device,
        mut manager: Manager,
        consumer: C,
    ) -> Result<ConnectionService<C>, DeviceError> {
        let system = |what| move |source| DeviceError::System { what, source };
        let (gsi, queue, channel) = Gsi::new(device)?;
        if let Some(slot) = device.slot().filter(|_| !manager.has_unit()) {
            manager.set_unit(slot.slot());
        }
        let wake = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC);
        let wake =
            wake.map_err(std::io::Error::from).map_err(system("an eventfd for the connection manager"))?;
        let domain = gsi.domain.clone();
        let core = Core {
            manager,
            consumer,
            gsi,
            inbox: Inbox::new(),
            outbox: VecDeque::new(),
            reports: UndeliveredReports::default(),
            paths: Found::new(PATHS),
            under_way: vec![None; SENDS as usize],
            device: device.clone(),
            announced: 0,
            gsi_failed: false,
        };
        let (requests, receiver) = sync_channel(LOOKING);
        let (core, stop) = (Mutex::new(core), AtomicBool::new(false));
        let inner = Arc::new(Inner { core, device: device.clone(), requests, wake, stop });
        let mut service = ConnectionService { inner: Arc::clone(&inner), threads: Vec::new() };
        let finder = Arc::clone(&inner);
        let started = [
            spawn_unsignalled("roxie-cm-paths", move || finder.find_paths(&domain, &receiver)),
            spawn_unsignalled("roxie-cm", move || Poller { inner: &inner, queue, channel }.run()),
        ];
        for thread in started {
            service.threads.push(thread.map_err(system("a thread for the connection manager"))?);
        }
        Ok(service)
    }

    /// Calls the manager under its lock. Before this returns, the manager's messages are sent, as far as paths are
    /// resolved, and the consumer has received all events.
    pub fn with<R>(&self, call: impl FnOnce(&mut Manager, &mut C, Nanos) -> R) -> R {
        let inner = &*self.inner;
        let mut core = inner.lock();
        let now = inner.device.now();
        let before = core.manager.next_deadline();
        let result = {
            let Core { manager, consumer, .. } = &mut *core;
            call(manager, consumer, now)
        };
        core.settle(now);
        let awaits_answer = core.manager.awaits_answer();
        let opened = core.reports.open_if(&inner.device, awaits_answer);
        let posted = core.send(&inner.requests);
        let waiting = opened || !core.outbox.is_empty() || core.manager.next_deadline() < before;
        drop(core);
        if posted {
            inner.device.poll();
        }
        if waiting {
            inner.wake();
        }
        result
    }
}

impl<C: Consumer> ConnectionService<C> {
    /// True if [`part`](ConnectionService::part) may have to notify a peer. Does not block.
    pub fn has_to_part(&self) -> bool {
        let Ok(core) = self.inner.core.try_lock() else { return true };
        core.manager.ids().any(|id| core.manager.state(id) != Some(ConnectionState::TimeWait))
    }

    /// Ends all connections before the process ends, as [`Manager::destroy`] does: peers are notified, the consumer is
    /// not. Waits up to `limit` for the peers of established connections to agree. True if they did.
    pub fn part(&self, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        self.with(|manager, _, now| {
            let all: Vec<_> = manager.ids().collect();
            for id in all {
                manager.destroy(now, id);
            }
        });
        let waits = || {
            self.with(|manager, _, _| {
                manager.ids().any(|id| manager.state(id) == Some(ConnectionState::DreqSent))
            })
        };
        while waits() {
            if Instant::now() >= until {
                return false;
            }
            std::thread::sleep(LOOK);
        }
        true
    }

    /// QP1 of this service.
    pub(super) fn qp1(&self) -> QpIndex {
        self.inner.lock().gsi.qp.index()
    }

    /// Resolves the path to a host. True: messages to it are now sent immediately. False: the kernel was asked, and the
    /// caller must try again. While a path is being resolved, messages to it may be dropped, so a message that is sent
    /// only once needs a resolved path.
    pub(super) fn resolve_path(&self, route: &Route) -> bool {
        let path = MessagePath::to(route, false);
        let mut core = self.inner.lock();
        if core.paths.get(&path).is_some() {
            return true;
        }
        match find_path(&self.inner.device, &core.gsi.domain, &path) {
            Lookup::Found((path, handle)) => core.paths.insert(path, Arc::new(handle)),
            Lookup::NotYet => return false,
            Lookup::Never => {}
        }
        true
    }

    /// True if all messages with a resolved path have been sent.
    pub(super) fn has_sent_all(&self) -> bool {
        let core = self.inner.lock();
        // The previous holder of the lock has sent (`Core::send`): if the manager has more messages, the outbox is not
        // empty.
        core.outbox.is_empty() && core.under_way.iter().all(Option::is_none)
    }
}

impl<C: Consumer> Drop for ConnectionService<C> {
    fn drop(&mut self) {
        self.inner.stop.store(true, Relaxed);
        self.inner.wake();
        // If the queue is full, the thread finds the stop flag by itself.
        let _ = self.inner.requests.try_send(None);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl<C: Consumer> Core<C> {
    /// Answers the manager's questions, and delivers its events to the consumer.
    fn settle(&mut self, now: Nanos) {
        self.examine(now);
        while let Some(event) = self.manager.poll_event() {
            self.consumer.event(&mut self.manager, now, event);
        }
        self.announce_services();
    }

    /// Announces the services listened on, so that their connection requests reach this process.
    fn announce_services(&mut self) {
        let version = self.manager.services_version();
        let Some(slot) = self.device.slot().filter(|_| version != self.announced) else { return };
        self.announced = version;
        let services = self.manager.services().map(|(service, on)| {
            let address = match on {
                ListenOn::Any => None,
                ListenOn::AnyIpv4 => Some(Ipv4Addr::UNSPECIFIED.into()),
                ListenOn::AnyIpv6 => Some(Ipv6Addr::UNSPECIFIED.into()),
                ListenOn::Address(gid) => Some(gid.to_ip()),
            };
            (service.0, address)
        });
        if let Err(error) = slot.set_services(services) {
            tracing::warn!("requests for connections may not come to this process: {error}");
        }
    }

    /// Resolves an address of this host immediately. A process that exits after a reply has then sent it, as with a
    /// kernel.
    fn resolve_own(&mut self, path: &MessagePath) {
        if self.paths.get(path).is_none()
            && self.device.is_own(path.local, path.remote.to_ip())
            && let Lookup::Found((path, handle)) = find_path(&self.device, &self.gsi.domain, path)
        {
            self.paths.insert(path, Arc::new(handle));
        }
    }

    /// Posts messages while QP1 has room. The rest stays in the manager's bounded queue. True: something was posted.
    fn send(&mut self, ask: &SyncSender<Option<Transmit>>) -> bool {
        let mut posted = false;
        while let Some(slot) = self.under_way.iter().position(Option::is_none) {
            let next = self.outbox.pop_front().or_else(|| self.manager.poll_transmit());
            let Some(transmit) = next else { break };
            let path = MessagePath::of(&transmit);
            self.resolve_own(&path);
            // What follows a request goes where the request went, immediately.
            let path = if self.paths.get(&path).is_some() { path } else { path.of_request() };
            let Some(path) = self.paths.get(&path) else {
                // If the queue is full, the message is dropped, and retransmitted later.
                let _ = ask.try_send(Some(transmit));
                continue;
            };
            let wr = SendWr { wr_id: slot as u64, ..path.send_to(Qpn::GSI, GSI_QKEY) };
            if self.gsi.qp.post_send_inline(&wr, &transmit.mad).is_ok() {
                self.under_way[slot] = Some(Arc::clone(path));
                posted = true;
            }
        }
        if self.outbox.is_empty() {
            self.outbox.extend(self.manager.poll_transmit());
        }
        posted
    }

    /// Handles the completion of a send.
    fn sent(&mut self, wc: &Wc) {
        if let Some(slot) = self.under_way.get_mut(wc.wr_id as usize) {
            *slot = None;
        }
        if !matches!(wc.status, WcStatus::Success | WcStatus::WrFlush) {
            // An error stops the send queue. Later messages were flushed, and are retransmitted.
            let _ = self.gsi.qp.modify(&QpAttr { state: Some(QpState::Rts), ..QpAttr::default() });
        }
    }

    /// Moves a received message to the inbox, and posts its receive again.
    fn take_in(&mut self, wc: &Wc) {
        if wc.status != WcStatus::Success {
            self.gsi_failed = true;
            return;
        }
        let mut bytes = [0; HEADER + MAD_LEN];
        let whole = wc.byte_len as usize == bytes.len();
        if whole && self.gsi.received.read_at(wc.wr_id as usize * ROOM, &mut bytes).is_ok() {
            let (header, mad) = bytes.split_at(HEADER);
            if let Some(route) = return_path(header, wc.vlan) {
                let mad = mad.try_into().expect("cut to it");
                self.inbox.add(route.remote, Datagram { mad, from: Arrival { route, src_qp: wc.src_qp } });
            }
        }
        // The receive queue has room: this receive has just left it.
        let _ = self.gsi.post_receive(wc.wr_id);
    }

    /// True if a received message can be handled.
    fn has_turns(&self) -> bool {
        !self.inbox.is_empty() && self.outbox.is_empty()
    }

    /// Passes received messages to the manager, as long as its replies can be sent. True: something was posted.
    fn take_turns(&mut self, now: Nanos, ask: &SyncSender<Option<Transmit>>) -> bool {
        let mut posted = false;
        for _ in 0..TURNS {
            if !self.outbox.is_empty() {
                break;
            }
            let Some(Datagram { mad, from }) = self.inbox.next() else { break };
            self.manager.handle_mad(now, &mad, &from);
            self.settle(now);
            posted |= self.send(ask);
        }
        posted
    }
}

impl<C: Consumer> Core<C> {
    /// Restarts QP1. No received packet makes QP1 fail, but without it there is no connection management. Lost messages
    /// are retransmitted.
    #[cold]
    fn restart_gsi(&mut self) {
        self.under_way.fill(None);
        let started = self.gsi.start();
        self.gsi_failed = started.is_err();
    }

    /// Handles the network's reports about undelivered requests.
    fn handle_undelivered(&mut self, now: Nanos) {
        let Some(undelivered) = self.reports.undelivered.clone() else { return };
        for quoted in std::iter::from_fn(|| undelivered.next()).take(BATCH) {
            if let Some(mad) = quoted.datagram.get(Bth::LEN + Deth::LEN..) {
                self.manager.handle_undelivered(now, quoted.remote.into(), mad);
            }
        }
        self.settle(now);
    }
}

/// Receives reports about undelivered datagrams. Open only while a request waits for its first reply.
#[derive(Debug, Default)]
struct UndeliveredReports {
    undelivered: Option<Arc<Undelivered>>,
    /// The port has no such reports: requests end by their timeouts.
    unsupported: bool,
}

impl UndeliveredReports {
    /// Opens or closes the receiver, as needed. True: it was just opened.
    fn open_if(&mut self, device: &Device, asks: bool) -> bool {
        if !asks {
            self.undelivered = None;
        }
        if !asks || self.unsupported || self.undelivered.is_some() {
            return false;
        }
        self.undelivered = device.undelivered().ok().flatten().map(Arc::new);
        self.unsupported = self.undelivered.is_none();
        !self.unsupported
    }
}

impl<C: Consumer> Inner<C> {
    fn lock(&self) -> MutexGuard<'_, Core<C>> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        // The counter can only be full if a wake-up is pending.
        let _ = self.wake.write(1);
    }

    /// Loop of the second thread: resolves addresses. A message without a path is dropped, and retransmitted later.
    fn find_paths(&self, domain: &ProtectionDomain, asked: &Receiver<Option<Transmit>>) {
        let mut searches: Searches<MessagePath, Transmit> = Searches::new();
        loop {
            let next = match searches.next_poll() {
                None => asked.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(at) => asked.recv_timeout(at.saturating_duration_since(Instant::now())),
            };
            match next {
                Ok(Some(transmit)) => {
                    // Take all messages that are queued, so that a stream of messages does not delay the searches.
                    let more = asked.try_iter().take(LOOKING).flatten();
                    for transmit in std::iter::once(transmit).chain(more) {
                        let evicted = searches.add(Instant::now(), MessagePath::of(&transmit), transmit);
                        evicted.iter().for_each(|path| path.give_up(&self.device));
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Ok(None) | Err(RecvTimeoutError::Disconnected) => return,
            }
            if self.stop.load(Relaxed) {
                return;
            }
            for end in searches.poll(Instant::now(), |path| find_path(&self.device, domain, path)) {
                match end {
                    SearchEnd::Found((path, handle), messages) => self.path_resolved(path, handle, messages),
                    SearchEnd::GivenUp(path) => path.give_up(&self.device),
                }
            }
        }
    }

    fn path_resolved(&self, path: MessagePath, handle: AddressHandle, messages: Vec<Transmit>) {
        let mut core = self.lock();
        // Sends in progress keep evicted address handles alive.
        core.paths.insert(path, Arc::new(handle));
        for transmit in messages.into_iter().rev() {
            core.outbox.push_front(transmit);
        }
        core.send(&self.requests);
        drop(core);
        self.device.poll();
        self.device.step_aside();
    }
}

/// The first thread: polls QP1 and drives the manager's timers.
struct Poller<'a, C: Consumer> {
    inner: &'a Inner<C>,
    queue: CompletionQueue,
    channel: CompletionChannel,
}

/// Tells the consumer when the first thread ends because the device has failed, also by a panic of a pass in this
/// thread.
struct FailureReport<'a, C: Consumer>(&'a Inner<C>);

impl<C: Consumer> Drop for FailureReport<'_, C> {
    fn drop(&mut self) {
        if std::thread::panicking() || self.0.device.has_failed() {
            self.0.lock().consumer.device_failed();
        }
    }
}

impl<C: Consumer> Poller<'_, C> {
    fn run(self) {
        let _report = FailureReport(self.inner);
        while !self.inner.stop.load(Relaxed) && !self.inner.device.has_failed() {
            self.queue.arm(Armed::Next);
            let mut batch = [Wc::default(); BATCH];
            let completions = self.queue.poll_ready(&mut batch);
            let posted = self.turn(&batch[..completions]);
            if posted {
                // Send now: the thread that otherwise runs the device may be away.
                self.inner.device.poll();
                self.inner.device.step_aside();
            }
            if completions == 0 && !self.inner.lock().has_turns() {
                self.sleep();
            }
        }
    }

    /// Handles completions and timers, and sends the manager's messages. True: something was posted.
    fn turn(&self, came: &[Wc]) -> bool {
        let mut core = self.inner.lock();
        let now = self.inner.device.now();
        if came.is_empty() && core.gsi_failed {
            core.restart_gsi();
        }
        for wc in came {
            if wc.opcode == WcOpcode::Recv {
                core.take_in(wc);
            } else {
                core.sent(wc);
            }
        }
        let posted = core.take_turns(now, &self.inner.requests);
        core.handle_undelivered(now);
        core.manager.handle_timeouts(now);
        core.settle(now);
        let awaits_answer = core.manager.awaits_answer();
        core.reports.open_if(&self.inner.device, awaits_answer);
        core.send(&self.inner.requests) || posted
    }

    fn sleep(&self) {
        let (deadline, undelivered, now) = {
            let core = self.inner.lock();
            (core.manager.next_deadline(), core.reports.undelivered.clone(), self.inner.device.now())
        };
        let timeout = if deadline == Nanos::MAX {
            PollTimeout::NONE
        } else {
            // Rounded up, since after an early wake-up there is nothing to do.
            let milliseconds = deadline.0.saturating_sub(now.0).div_ceil(1_000_000);
            PollTimeout::try_from(milliseconds.min(i32::MAX as u64) as i32).unwrap_or(PollTimeout::MAX)
        };
        let readable = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let mut fds = vec![readable(self.channel.as_fd()), readable(self.inner.wake.as_fd())];
        fds.extend(undelivered.iter().map(|undelivered| readable(undelivered.fd())));
        // An interrupted or failed wait only ends early.
        let _ = poll(&mut fds, timeout);
        self.channel.discard_event();
        let _ = self.inner.wake.read();
        while self.queue.take_event() {}
    }
}

#[cfg(test)]
mod tests;
