//! Events that a client has not taken yet.
//!
//! A client that is stopped takes none, and goes on afterwards: its events wait in its socket, then here. An event that waits here
//! already is not kept twice, so a client has at most one of each kind for each object.

use std::io;
use std::sync::Mutex;

use crate::remote::link::Link;
use crate::threads::lock;
use crate::verbs::AsyncEvent;

/// Events that are kept for one client, beside those in its socket. Later ones are lost.
const KEPT: usize = 4096;

/// See the module's page.
#[derive(Debug)]
pub(super) struct Outbox {
    link: Link,
    kept: Mutex<Vec<AsyncEvent>>,
}

impl Outbox {
    pub(super) fn new(link: Link) -> Outbox {
        Outbox { link, kept: Mutex::default() }
    }

    /// Sends an event, or keeps it until there is room.
    ///
    /// # Errors
    /// If the client is gone.
    pub(super) fn send(&self, event: AsyncEvent) -> io::Result<()> {
        let mut kept = lock(&self.kept);
        if kept.len() < KEPT && !kept.contains(&event) {
            kept.push(event);
        }
        self.empty(&mut kept)
    }

    /// Sends what is kept, as far as there is room.
    ///
    /// # Errors
    /// If the client is gone.
    pub(super) fn send_kept(&self) -> io::Result<()> {
        self.empty(&mut lock(&self.kept))
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

    /// Drops what is kept of objects that are no more.
    pub(super) fn retain(&self, is_of_an_object: impl Fn(AsyncEvent) -> bool) {
        lock(&self.kept).retain(|event| is_of_an_object(*event));
    }

    /// Ends it for both ends.
    pub(super) fn shut(&self) {
        self.link.shut();
    }
}
