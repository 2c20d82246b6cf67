//! Distribution of connection events to their waiting threads.

use std::collections::HashMap;

use crossbeam_channel::{Receiver, Sender, bounded};

use super::super::connections::Consumer;
use crate::cm::{Event, Listener, Manager, ResolveAnswer};
use crate::time::Nanos;
use crate::wire::cm::{CommId, SidrStatus};

/// Capacity of a connection's event queue.
const EVENTS: usize = 8;

/// Distributes events to the threads that wait for them.
#[derive(Debug, Default)]
pub(super) struct EventDispatcher {
    connections: HashMap<CommId, Sender<Event>>,
    listeners: HashMap<Listener, Sender<Event>>,
}

impl EventDispatcher {
    /// Returns the receiver of a connection's events.
    pub(super) fn follow(&mut self, id: CommId) -> Receiver<Event> {
        let (sender, receiver) = bounded(EVENTS);
        self.connections.insert(id, sender);
        receiver
    }

    /// Stops queueing a connection's events.
    pub(super) fn leave(&mut self, id: CommId) {
        self.connections.remove(&id);
    }

    /// Returns the receiver of a listener's requests; at most `backlog` are pending.
    pub(super) fn attend(&mut self, listener: Listener, backlog: u32) -> Receiver<Event> {
        let (sender, receiver) = bounded(backlog.max(1) as usize);
        self.listeners.insert(listener, sender);
        receiver
    }

    pub(super) fn ignore(&mut self, listener: Listener) {
        self.listeners.remove(&listener);
    }
}

impl Consumer for EventDispatcher {
    fn event(&mut self, manager: &mut Manager, now: Nanos, event: Event) {
        let id = event.id();
        match &event {
            Event::Request { listener, .. } => {
                let waits = self.listeners.get(listener).is_some_and(|l| l.try_send(event).is_ok());
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
                    let _ = owner.try_send(event);
                }
                if last {
                    self.leave(id);
                }
            }
        }
    }
}
