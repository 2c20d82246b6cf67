//! Distribution of connection events to the threads and tasks that wait for them.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Select, Sender, bounded};

use super::super::connections::Consumer;
use super::super::device::Device;
use roxie_base::time::Nanos;
use roxie_nic::cm::{ConnectionState, Event, Listener, Manager, ResolveAnswer};
use roxie_wire::cm::{CommId, SidrStatus};

/// Capacity of a connection's event queue: a connection has four events at most, from its answer or confirmation to the
/// end of its time wait.
const EVENTS: usize = 4;

/// A waiter runs the device at intervals that grow from the first to the last: there may be no other thread to run it.
const FIRST_LOOK: Duration = Duration::from_millis(1);
const LAST_LOOK: Duration = Duration::from_millis(20);

/// Events of one connection or listener, for one waiter.
#[derive(Debug)]
pub(super) struct Events {
    events: Receiver<Event>,
    #[cfg(feature = "tokio")]
    wake: std::sync::Arc<tokio::sync::Notify>,
}

/// The sending side of [`Events`].
#[derive(Debug)]
struct Subscription {
    events: Sender<Event>,
    // Dropped after the sender, so that a task woken by it finds the channel closed.
    #[cfg(feature = "tokio")]
    wake: WakeOnDrop,
}

#[cfg(feature = "tokio")]
#[derive(Debug)]
struct WakeOnDrop(std::sync::Arc<tokio::sync::Notify>);

#[cfg(feature = "tokio")]
impl Drop for WakeOnDrop {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

fn subscribe(capacity: usize) -> (Subscription, Events) {
    let (sender, receiver) = bounded(capacity);
    #[cfg(feature = "tokio")]
    let wake = std::sync::Arc::<tokio::sync::Notify>::default();
    let events = Events {
        events: receiver,
        #[cfg(feature = "tokio")]
        wake: std::sync::Arc::clone(&wake),
    };
    let subscription = Subscription {
        events: sender,
        #[cfg(feature = "tokio")]
        wake: WakeOnDrop(wake),
    };
    (subscription, events)
}

impl Subscription {
    /// Queues an event. False: the queue is full.
    fn send(&self, event: Event) -> bool {
        let is_queued = self.events.try_send(event).is_ok();
        #[cfg(feature = "tokio")]
        self.wake.0.notify_one();
        is_queued
    }
}

impl Events {
    /// Blocks until the next event. `None`: none came in time, or no more will come.
    pub(super) fn wait(&self, device: &Device, timeout: Duration) -> Option<Event> {
        let until = Instant::now().checked_add(timeout);
        let mut interval = FIRST_LOOK;
        loop {
            let remaining =
                until.map_or(Duration::MAX, |until| until.saturating_duration_since(Instant::now()));
            match self.events.recv_timeout(interval.min(remaining)) {
                Ok(event) => return Some(event),
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) if remaining.is_zero() || device.has_failed() => return None,
                Err(RecvTimeoutError::Timeout) => {}
            }
            device.poll();
            interval = (interval * 2).min(LAST_LOOK);
        }
    }

    /// Waits for the next event without blocking the thread. `None`: no more will come.
    #[cfg(feature = "tokio")]
    pub(super) async fn next(&self, device: &Device) -> Option<Event> {
        use crossbeam_channel::TryRecvError;
        let next = loop {
            match self.events.try_recv() {
                Ok(event) => break Some(event),
                Err(TryRecvError::Disconnected) => break None,
                Err(TryRecvError::Empty) if device.has_failed() => break None,
                Err(TryRecvError::Empty) => self.wake.notified().await,
            }
        };
        // One wake-up may stand for several events: another task, if any waits, looks as well.
        self.wake.notify_one();
        next
    }

    /// Returns the pending events.
    pub(super) fn pending(&self) -> impl Iterator<Item = Event> {
        self.events.try_iter()
    }

    /// Blocks until one of `all` has an event, or its last event was taken.
    pub(super) fn wait_for_any<'a>(all: impl Iterator<Item = &'a Events>, timeout: Duration) {
        let mut select = Select::new();
        for events in all {
            select.recv(&events.events);
        }
        let _ = select.ready_timeout(timeout);
    }
}

/// The requests of a listener, and the sending side of them.
#[derive(Debug)]
struct Requests {
    subscription: Subscription,
    queue: Receiver<Event>,
}

impl Requests {
    /// Queues a request. Removes those that have ended, if the queue is full. False: the queue is full of pending ones.
    fn add(&self, manager: &Manager, event: Event) -> bool {
        if !self.queue.is_full() {
            return self.subscription.send(event);
        }
        let all: Vec<Event> = self.queue.try_iter().collect();
        for event in all.into_iter().filter(|event| is_pending(manager, event.id())) {
            self.subscription.send(event);
        }
        self.subscription.send(event)
    }
}

/// True if a request waits for its answer.
pub(super) fn is_pending(manager: &Manager, id: CommId) -> bool {
    matches!(manager.state(id), Some(ConnectionState::ReqRcvd | ConnectionState::MraReqSent))
}

/// Distributes events.
#[derive(Debug, Default)]
pub(super) struct EventDispatcher {
    connections: HashMap<CommId, Subscription>,
    listeners: HashMap<Listener, Requests>,
}

impl EventDispatcher {
    /// Subscribes to a connection's events.
    pub(super) fn follow(&mut self, id: CommId) -> Events {
        let (subscription, events) = subscribe(EVENTS);
        self.connections.insert(id, subscription);
        events
    }

    /// Stops queueing a connection's events.
    pub(super) fn leave(&mut self, id: CommId) {
        self.connections.remove(&id);
    }

    /// Subscribes to a listener's requests; at most `backlog` are pending.
    pub(super) fn attend(&mut self, listener: Listener, backlog: u32) -> Events {
        let (subscription, events) = subscribe(backlog.max(1) as usize);
        let queue = events.events.clone();
        self.listeners.insert(listener, Requests { subscription, queue });
        events
    }

    pub(super) fn ignore(&mut self, listener: Listener) {
        self.listeners.remove(&listener);
    }
}

impl Consumer for EventDispatcher {
    /// Ends all subscriptions, which wakes their waiters.
    fn device_failed(&mut self) {
        self.connections.clear();
        self.listeners.clear();
    }

    fn event(&mut self, manager: &mut Manager, now: Nanos, event: Event) {
        let id = event.id();
        match &event {
            Event::Request { listener, .. } => {
                let waits = self.listeners.get(listener).is_some_and(|requests| requests.add(manager, event));
                if !waits {
                    manager.destroy(now, id);
                }
            }
            // Service ID resolution for datagrams is not supported here.
            Event::ResolutionRequest { .. } => {
                let answer = ResolveAnswer { status: SidrStatus::UNSUPPORTED, ..ResolveAnswer::default() };
                // Succeeds: the request has just come, and waits for its answer.
                let _ = manager.answer_resolution(now, id, &answer);
            }
            _ => {
                let last = event.is_last();
                if let Some(owner) = self.connections.get(&id) {
                    // If the queue is full, its owner has missed all events of the connection anyway.
                    let _ = owner.send(event);
                }
                if last {
                    self.leave(id);
                }
            }
        }
    }
}
