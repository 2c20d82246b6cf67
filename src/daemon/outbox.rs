//! Events that a client has not received yet.
//!
//! A stopped client reads no events, and may resume later. Meanwhile its events wait in its socket, then here. An event
//! that already waits here is not queued again, so a client has at most one event of each kind for each object.

use std::io;
use std::sync::Mutex;

use roxie::remote::link::Link;
use roxie_base::threads::lock;
use roxie_nic::verbs::AsyncEvent;

/// Maximum number of events queued for a client, besides those in its socket. Further events are lost.
const KEPT: usize = 4096;

/// The event queue of a client; see the module's page.
#[derive(Debug)]
pub(super) struct Outbox {
    link: Link,
    queued: Mutex<Vec<AsyncEvent>>,
}

impl Outbox {
    pub(super) fn new(link: Link) -> Outbox {
        Outbox { link, queued: Mutex::default() }
    }

    /// Queues an event.
    pub(super) fn keep(&self, event: AsyncEvent) {
        let mut queued = lock(&self.queued);
        if queued.len() < KEPT && !queued.contains(&event) {
            queued.push(event);
        }
    }

    /// True if an event is queued.
    pub(super) fn has_queued(&self) -> bool {
        !lock(&self.queued).is_empty()
    }

    /// Sends queued events, as far as there is room.
    ///
    /// # Errors
    /// If the client has closed its socket.
    pub(super) fn send_queued(&self) -> io::Result<()> {
        self.empty(&mut lock(&self.queued))
    }

    fn empty(&self, kept: &mut Vec<AsyncEvent>) -> io::Result<()> {
        let mut sent = 0;
        let result = loop {
            let Some(event) = kept.get(sent) else { break Ok(()) };
            match self.link.send_at_once(event) {
                Ok(()) => sent += 1,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        kept.drain(..sent);
        result
    }

    /// Drops queued events of objects that no longer exist.
    pub(super) fn retain(&self, is_of_an_object: impl Fn(AsyncEvent) -> bool) {
        lock(&self.queued).retain(|event| is_of_an_object(*event));
    }

    /// Ends the connection for both ends.
    pub(super) fn shut(&self) {
        self.link.shut();
    }
}
