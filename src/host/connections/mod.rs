//! A connection manager on a device: [`cm::Manager`](crate::cm::Manager) behind QP1, with a thread that carries its messages.
//!
//! Whoever calls the manager sends what it wants sent, at once: a program that says good-bye and ends has said it. Two threads do
//! the rest, both asleep as long as nothing happens. One takes what QP1 received, its senders in turn (`inbox`), and keeps the manager's time. The other finds the
//! way to hosts that were not spoken to before, many at a time, for seconds if they do not answer (`ways`); meanwhile the first goes on. The
//! consumer is told under the lock that also guards the manager, so that what it knows of a connection and what the manager
//! knows change together.

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
use super::ways::{End, Found, Searches, Sight};
use crate::cm::{Arrival, Event, ListenOn, Manager, Route, State, Transmit};
use crate::port::undelivered::Undelivered;
use crate::shared::Armed;
use crate::threads::spawn_unsignalled;
use crate::time::Nanos;
use crate::verbs::{QpAttr, QpIndex, QpState, Qpn, SendWr, Wc, WcOpcode, WcStatus};
use crate::wire::mad::{GSI_QKEY, MAD_LEN};
use crate::wire::{Bth, Deth};
use gsi::{Gsi, HEADER, ROOM, SENDS};
use way::{Way, sight, way_back};

mod gsi;
mod way;

/// Messages that wait to be taken in by the thread that looks for hosts; more are dropped, and come again.
const LOOKING: usize = 256;
/// Ways that are kept.
const WAYS: usize = 1024;
/// Completions that are looked at together.
const BATCH: usize = 256;
/// Messages that are taken in between two looks at what has come: so many that QP1 has receives for what comes meanwhile.
const TURNS: usize = 64;
/// How often who parts looks whether its peers have agreed.
const LOOK: Duration = Duration::from_millis(1);

/// Who uses a connection manager.
pub trait Consumer: Send + 'static {
    /// Something happened to a connection. The consumer may call the manager from here; it must not wait.
    fn event(&mut self, manager: &mut Manager, now: Nanos, event: Event);
}

/// A consumer that takes no notice: connection requests are refused, and nobody hears what becomes of connections.
#[derive(Debug)]
pub struct Nobody;

impl Consumer for Nobody {
    fn event(&mut self, _: &mut Manager, _: Nanos, _: Event) {}
}

/// A connection manager with its consumer; see the module's page. Ends when it is dropped: connections are forgotten, peers are not
/// told.
#[derive(Debug)]
pub struct ConnectionService<C: Consumer> {
    inner: Arc<Inner<C>>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Inner<C> {
    core: Mutex<Core<C>>,
    device: Device,
    /// Messages whose way is not known; `None`: there are no more.
    ask: SyncSender<Option<Transmit>>,
    /// Wakes the first thread.
    wake: EventFd,
    stop: AtomicBool,
}

/// What changes together.
#[derive(Debug)]
struct Core<C> {
    manager: Manager,
    consumer: C,
    gsi: Gsi,
    /// Messages that were taken in from QP1 and wait for their turn.
    inbox: Inbox<Datagram>,
    /// What is to be sent before what the manager has.
    outbox: VecDeque<Transmit>,
    hearing: Hearing,
    ways: Found<Way, Arc<AddressHandle>>,
    /// What messages under way go along; free slots are empty.
    under_way: Vec<Option<Arc<AddressHandle>>>,
    device: Device,
    /// Which of the manager's services the processes that share the port were told.
    told: u64,
    /// QP1 has failed, and is to begin anew when all that it had has been flushed.
    gsi_failed: bool,
}

/// A message as it came.
#[derive(Debug)]
struct Datagram {
    mad: [u8; MAD_LEN],
    from: Arrival,
}

impl<C: Consumer> ConnectionService<C> {
    /// Claims the device's interface if that was left for later, makes QP1, and starts.
    ///
    /// # Errors
    /// If the interface cannot be had, there is a QP1 already, or the system lacks memory, descriptors or threads.
    pub fn start(
        device: &Device,
        mut manager: Manager,
        consumer: C,
    ) -> Result<ConnectionService<C>, DeviceError> {
        let system = |what| move |source| DeviceError::System { what, source };
        let (gsi, queue, channel) = Gsi::new(device)?;
        if let Some(seat) = device.seat().filter(|_| !manager.has_unit()) {
            manager.set_unit(seat.slot());
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
            hearing: Hearing::default(),
            ways: Found::new(WAYS),
            under_way: vec![None; SENDS as usize],
            device: device.clone(),
            told: 0,
            gsi_failed: false,
        };
        let (ask, asked) = sync_channel(LOOKING);
        let (core, stop) = (Mutex::new(core), AtomicBool::new(false));
        let inner = Arc::new(Inner { core, device: device.clone(), ask, wake, stop });
        let mut service = ConnectionService { inner: Arc::clone(&inner), threads: Vec::new() };
        let finder = Arc::clone(&inner);
        let started = [
            spawn_unsignalled("roxie-cm-ways", move || finder.find_ways(&domain, &asked)),
            spawn_unsignalled("roxie-cm", move || Carrier { inner: &inner, queue, channel }.run()),
        ];
        for thread in started {
            service.threads.push(thread.map_err(system("a thread for the connection manager"))?);
        }
        Ok(service)
    }

    /// Calls the manager, under the lock of manager and consumer. What it wants sent is on its way when this returns, if the way is
    /// known; the consumer has heard what there was to hear.
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
        let asks = core.manager.is_asking();
        let hears = core.hearing.of(&inner.device, asks);
        let posted = core.send(&inner.ask);
        let waiting = hears || !core.outbox.is_empty() || core.manager.next_deadline() < before;
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
    /// True if there may be a peer that [`part`](ConnectionService::part) has to tell something. Waits for nothing.
    pub fn has_to_part(&self) -> bool {
        let Ok(core) = self.inner.core.try_lock() else { return true };
        core.manager.ids().any(|id| core.manager.state(id) != Some(State::TimeWait))
    }

    /// Ends all connections for a process that is about to end, as [`Manager::destroy`] does: the consumer hears nothing of it, the
    /// peers do. Waits for those that were established to agree, for `limit` at most. True if they did.
    pub fn part(&self, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        self.with(|manager, _, now| {
            let all: Vec<_> = manager.ids().collect();
            for id in all {
                manager.destroy(now, id);
            }
        });
        let waits =
            || self.with(|manager, _, _| manager.ids().any(|id| manager.state(id) == Some(State::DreqSent)));
        while waits() {
            if Instant::now() >= until {
                return false;
            }
            std::thread::sleep(LOOK);
        }
        true
    }

    /// Its QP1.
    pub(super) fn qp1(&self) -> QpIndex {
        self.inner.lock().gsi.qp.index()
    }

    /// True if messages to that host leave at once from now on; false: the kernel has been asked for the way, and this is to be called
    /// again. A message whose way is looked for may be dropped if there are many; what is said only once should not be among them.
    pub(super) fn look_for(&self, route: &Route) -> bool {
        let way = Way::to(route, false);
        let mut core = self.inner.lock();
        if core.ways.get(&way).is_some() {
            return true;
        }
        match sight(&self.inner.device, &core.gsi.domain, &way) {
            Sight::Found((way, handle)) => core.ways.insert(way, Arc::new(handle)),
            Sight::NotYet => return false,
            Sight::Never => {}
        }
        true
    }

    /// True if all that was to be said has left, as far as there is a way.
    pub(super) fn has_said_all(&self) -> bool {
        let core = self.inner.lock();
        // Who had the lock has sent (`Core::send`): if the manager has more, the outbox is not empty.
        core.outbox.is_empty() && core.under_way.iter().all(Option::is_none)
    }
}

impl<C: Consumer> Drop for ConnectionService<C> {
    fn drop(&mut self) {
        self.inner.stop.store(true, Relaxed);
        self.inner.wake();
        // Full: it finds out by itself that it is to stop.
        let _ = self.inner.ask.try_send(None);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl<C: Consumer> Core<C> {
    /// Takes out what the manager has to tell.
    fn settle(&mut self, now: Nanos) {
        while let Some(event) = self.manager.poll_event() {
            self.consumer.event(&mut self.manager, now, event);
        }
        self.tell_services();
    }

    /// Requests for what is listened for come to this process.
    fn tell_services(&mut self) {
        let version = self.manager.services_version();
        let Some(seat) = self.device.seat().filter(|_| version != self.told) else { return };
        self.told = version;
        let services = self.manager.services().map(|(service, on)| {
            let address = match on {
                ListenOn::Any => None,
                ListenOn::AnyIpv4 => Some(Ipv4Addr::UNSPECIFIED.into()),
                ListenOn::AnyIpv6 => Some(Ipv6Addr::UNSPECIFIED.into()),
                ListenOn::Address(gid) => Some(gid.to_ip()),
            };
            (service.0, address)
        });
        if let Err(error) = seat.set_services(services) {
            eprintln!("roxie: requests for connections may not come to this process: {error}");
        }
    }

    /// The way to an address of this host is found at once: a process that ends after an answer has sent it, as if a kernel did.
    fn see_home(&mut self, way: &Way) {
        if self.ways.get(way).is_none()
            && self.device.is_own(way.remote.to_ip())
            && let Sight::Found((way, handle)) = sight(&self.device, &self.gsi.domain, way)
        {
            self.ways.insert(way, Arc::new(handle));
        }
    }

    /// Posts what is to be sent, as far as there is room; the rest waits where its number is bounded, with the manager. True: something
    /// was posted.
    fn send(&mut self, ask: &SyncSender<Option<Transmit>>) -> bool {
        let mut posted = false;
        while let Some(slot) = self.under_way.iter().position(Option::is_none) {
            let next = self.outbox.pop_front().or_else(|| self.manager.poll_transmit());
            let Some(transmit) = next else { break };
            let way = Way::of(&transmit);
            self.see_home(&way);
            let Some(way) = self.ways.get(&way) else {
                // Full: the message is dropped, and comes again.
                let _ = ask.try_send(Some(transmit));
                continue;
            };
            let wr = SendWr { wr_id: slot as u64, ..way.send_to(Qpn::GSI, GSI_QKEY) };
            if self.gsi.qp.post_send_inline(&wr, &transmit.mad).is_ok() {
                self.under_way[slot] = Some(Arc::clone(way));
                posted = true;
            }
        }
        if self.outbox.is_empty() {
            self.outbox.extend(self.manager.poll_transmit());
        }
        posted
    }

    /// A message has left, or has not.
    fn sent(&mut self, wc: &Wc) {
        if let Some(slot) = self.under_way.get_mut(wc.wr_id as usize) {
            *slot = None;
        }
        if !matches!(wc.status, WcStatus::Success | WcStatus::WrFlush) {
            // An error of a message stops the queue; those after it were flushed, and come again.
            let _ = self.gsi.qp.modify(&QpAttr { state: Some(QpState::Rts), ..QpAttr::default() });
        }
    }

    /// What was received gets into line, and its receive back to QP1.
    fn take_in(&mut self, wc: &Wc) {
        if wc.status != WcStatus::Success {
            self.gsi_failed = true;
            return;
        }
        let mut bytes = [0; HEADER + MAD_LEN];
        let whole = wc.byte_len as usize == bytes.len();
        if whole && self.gsi.received.read_at(wc.wr_id as usize * ROOM, &mut bytes).is_ok() {
            let (header, mad) = bytes.split_at(HEADER);
            if let Some(route) = way_back(header) {
                let mad = mad.try_into().expect("cut to it");
                self.inbox.add(route.remote, Datagram { mad, from: Arrival { route, src_qp: wc.src_qp } });
            }
        }
        // The queue has room: this receive has just left it.
        let _ = self.gsi.post_receive(wc.wr_id);
    }

    /// Something that came can be taken in.
    fn has_turns(&self) -> bool {
        !self.inbox.is_empty() && self.outbox.is_empty()
    }

    /// Hands some of what came to the manager, as long as answers leave.
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
    /// QP1 begins anew. Nothing that comes ends it, but without it there is no connection management; what was under way comes
    /// again, as after a loss.
    #[cold]
    fn revive(&mut self) {
        self.under_way.fill(None);
        let started = self.gsi.start();
        self.gsi_failed = started.is_err();
    }

    /// Takes in what the network says of requests that found nobody.
    fn hear(&mut self, now: Nanos) {
        let Some(undelivered) = self.hearing.undelivered.clone() else { return };
        for quoted in std::iter::from_fn(|| undelivered.next()).take(BATCH) {
            if let Some(mad) = quoted.datagram.get(Bth::LEN + Deth::LEN..) {
                self.manager.handle_undelivered(now, quoted.remote.into(), mad);
            }
        }
        self.settle(now);
    }
}

/// What hears that datagrams found nobody: there only while a request waits for its first answer.
#[derive(Debug, Default)]
struct Hearing {
    undelivered: Option<Arc<Undelivered>>,
    /// There is none: requests end by their timeouts.
    deaf: bool,
}

impl Hearing {
    /// True: it has just begun.
    fn of(&mut self, device: &Device, asks: bool) -> bool {
        if !asks {
            self.undelivered = None;
        }
        if !asks || self.deaf || self.undelivered.is_some() {
            return false;
        }
        self.undelivered = device.undelivered().ok().flatten().map(Arc::new);
        self.deaf = self.undelivered.is_none();
        !self.deaf
    }
}

impl<C: Consumer> Inner<C> {
    fn lock(&self) -> MutexGuard<'_, Core<C>> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        // It can only be full if a wake-up is pending.
        let _ = self.wake.write(1);
    }

    /// The second thread: from addresses to ways. A message whose way is not found is dropped, and comes again.
    fn find_ways(&self, domain: &ProtectionDomain, asked: &Receiver<Option<Transmit>>) {
        let mut searches: Searches<Way, Transmit> = Searches::new();
        loop {
            let next = match searches.next_look() {
                None => asked.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(at) => asked.recv_timeout(at.saturating_duration_since(Instant::now())),
            };
            match next {
                Ok(Some(transmit)) => {
                    // What came together is taken together, so that messages keep nobody from being looked at.
                    let more = asked.try_iter().take(LOOKING).flatten();
                    for transmit in std::iter::once(transmit).chain(more) {
                        let evicted = searches.add(Instant::now(), Way::of(&transmit), transmit);
                        evicted.iter().for_each(|way| self.device.give_up(way.remote));
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Ok(None) | Err(RecvTimeoutError::Disconnected) => return,
            }
            if self.stop.load(Relaxed) {
                return;
            }
            for end in searches.look(Instant::now(), |way| sight(&self.device, domain, way)) {
                match end {
                    End::Found((way, handle), messages) => self.found(way, handle, messages),
                    End::GivenUp(way) => self.device.give_up(way.remote),
                }
            }
        }
    }

    fn found(&self, way: Way, handle: AddressHandle, messages: Vec<Transmit>) {
        let mut core = self.lock();
        // Messages under way keep those that make room.
        core.ways.insert(way, Arc::new(handle));
        for transmit in messages.into_iter().rev() {
            core.outbox.push_front(transmit);
        }
        core.send(&self.ask);
        drop(core);
        self.device.poll();
        self.device.step_aside();
    }
}

/// The first thread.
struct Carrier<'a, C: Consumer> {
    inner: &'a Inner<C>,
    queue: CompletionQueue,
    channel: CompletionChannel,
}

impl<C: Consumer> Carrier<'_, C> {
    fn run(self) {
        while !self.inner.stop.load(Relaxed) && !self.inner.device.has_failed() {
            self.queue.arm(Armed::Next);
            let mut batch = [Wc::default(); BATCH];
            let came = self.queue.poll_ready(&mut batch);
            let posted = self.turn(&batch[..came]);
            if posted {
                // It should leave now, and whoever else turns the device may be away.
                self.inner.device.poll();
                self.inner.device.step_aside();
            }
            if came == 0 && !self.inner.lock().has_turns() {
                self.sleep();
            }
        }
    }

    /// Takes in what came, lets time pass for the manager, and sends what it wants sent. True: something was posted.
    fn turn(&self, came: &[Wc]) -> bool {
        let mut core = self.inner.lock();
        let now = self.inner.device.now();
        if came.is_empty() && core.gsi_failed {
            core.revive();
        }
        for wc in came {
            if wc.opcode == WcOpcode::Recv {
                core.take_in(wc);
            } else {
                core.sent(wc);
            }
        }
        let posted = core.take_turns(now, &self.inner.ask);
        core.hear(now);
        core.manager.handle_timeouts(now);
        core.settle(now);
        let asks = core.manager.is_asking();
        core.hearing.of(&self.inner.device, asks);
        core.send(&self.inner.ask) || posted
    }

    fn sleep(&self) {
        let (deadline, undelivered, now) = {
            let core = self.inner.lock();
            (core.manager.next_deadline(), core.hearing.undelivered.clone(), self.inner.device.now())
        };
        let timeout = if deadline == Nanos::MAX {
            PollTimeout::NONE
        } else {
            // Rounded up: a wake-up that is early finds nothing to do.
            let milliseconds = deadline.0.saturating_sub(now.0).div_ceil(1_000_000);
            PollTimeout::try_from(milliseconds.min(i32::MAX as u64) as i32).unwrap_or(PollTimeout::MAX)
        };
        let readable = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let mut fds = vec![readable(self.channel.fd()), readable(self.inner.wake.as_fd())];
        fds.extend(undelivered.iter().map(|undelivered| readable(undelivered.fd())));
        // A failed wait is a short one.
        let _ = poll(&mut fds, timeout);
        self.channel.forget();
        let _ = self.inner.wake.read();
        while self.queue.take_event() {}
    }
}

#[cfg(test)]
mod tests;
