//! Who waits for which events.

use std::collections::HashMap;

use crossbeam_channel::{Receiver, Sender, bounded};

use super::super::connections::Consumer;
use crate::cm::{Event, Listener, Manager, ResolveAnswer};
use crate::time::Nanos;
use crate::wire::cm::{CommId, SidrStatus};

/// Events that a connection can have between two looks of its owner.
const EVENTS: usize = 8;

/// From events to those who wait for them.
#[derive(Debug, Default)]
pub(super) struct Switchboard {
    connections: HashMap<CommId, Sender<Event>>,
    listeners: HashMap<Listener, Sender<Event>>,
}

impl Switchboard {
    /// Events of a connection come here from now on.
    pub(super) fn follow(&mut self, id: CommId) -> Receiver<Event> {
        let (sender, receiver) = bounded(EVENTS);
        self.connections.insert(id, sender);
        receiver
    }

    /// Nobody waits for them any more.
    pub(super) fn leave(&mut self, id: CommId) {
        self.connections.remove(&id);
    }

    /// Requests of a listener come here, at most `backlog` of which wait.
    pub(super) fn attend(&mut self, listener: Listener, backlog: u32) -> Receiver<Event> {
        let (sender, receiver) = bounded(backlog.max(1) as usize);
        self.listeners.insert(listener, sender);
        receiver
    }

    pub(super) fn ignore(&mut self, listener: Listener) {
        self.listeners.remove(&listener);
    }
}

impl Consumer for Switchboard {
    fn event(&mut self, manager: &mut Manager, now: Nanos, event: Event) {
        let id = event.id();
        match &event {
            Event::Request { listener, .. } => {
                let waits = self.listeners.get(listener).is_some_and(|l| l.try_send(event).is_ok());
                if !waits {
                    manager.destroy(now, id);
                }
            }
            // Datagrams are not served here.
            Event::ResolutionRequest { .. } => {
                let answer = ResolveAnswer { status: SidrStatus::UNSUPPORTED, ..ResolveAnswer::default() };
                // It waits for an answer: it has just come.
                let _ = manager.answer_resolution(now, id, &answer);
            }
            _ => {
                let last = event.is_last();
                if let Some(owner) = self.connections.get(&id) {
                    // Full: its owner has not looked for a whole connection's life.
                    let _ = owner.try_send(event);
                }
                if last {
                    self.leave(id);
                }
            }
        }
    }
}
