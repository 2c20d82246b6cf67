//! Memory for queues and descriptors for events, which a client lends its NIC.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use super::account::{Account, Charge, Resource};
use crate::nic::ControlError;
use crate::remote::message::{Place, Receives};
use crate::shared::{CompletionRing, EventCounter, GuestId, RecvRing, Region, SendRing};
use crate::verbs::QpCaps;

/// Bytes of a word of a queue.
const WORD: u64 = size_of::<u64>() as u64;
/// Bytes that the smallest arena takes: a page of 4 KiB, 16 or 64 KiB where the kernel was made so.
const PAGE: u64 = 4096;

/// See the module's page.
#[derive(Debug, Default)]
pub(super) struct Lent {
    arenas: Vec<Arc<Region>>,
    /// For the arenas.
    _charges: Vec<Charge>,
    channels: Vec<Channel>,
    /// The client's doorbell page, once it is heard.
    page: Option<GuestId>,
}

/// An eventfd of the client's, however often it was sent.
#[derive(Debug)]
struct Channel {
    id: Option<u64>,
    counter: EventCounter,
    _charge: Charge,
}

/// Refuses memory or a descriptor that is of no use (`EINVAL`).
pub(super) fn invalid(error: std::io::Error) -> ControlError {
    ControlError::Elsewhere { errno: libc::EINVAL, why: error.to_string() }
}

/// Refuses a question that lacks its descriptor (`EINVAL`).
pub(super) fn no_descriptor() -> ControlError {
    invalid(std::io::Error::other("no descriptor came with it"))
}

impl Lent {
    /// Adopts memory for queues, of so many words. It costs whole pages, and a mapping.
    pub(super) fn add_arena(
        &mut self,
        account: &Arc<Account>,
        words: u64,
        fds: Vec<OwnedFd>,
    ) -> Result<(), ControlError> {
        let bytes = words.saturating_mul(WORD).max(1).checked_next_multiple_of(PAGE).unwrap_or(u64::MAX);
        let charge = account.charge([(Resource::Arenas, 1), (Resource::QueueBytes, bytes)])?;
        let fd = fds.into_iter().next().ok_or_else(no_descriptor)?;
        let words = usize::try_from(words).map_err(|_| ControlError::NoMemory("queue"))?;
        self.arenas.push(Region::adopt(fd.as_fd(), words).map_err(invalid)?);
        self._charges.push(charge);
        Ok(())
    }

    /// Returns the counter of a queue's events. An eventfd that was sent before is the same descriptor of the NIC's.
    pub(super) fn channel(
        &mut self,
        account: &Arc<Account>,
        fds: Vec<OwnedFd>,
    ) -> Result<Option<EventCounter>, ControlError> {
        let Some(fd) = fds.into_iter().next() else { return Ok(None) };
        let counter = EventCounter::of(fd).map_err(invalid)?;
        let id = counter.id();
        if let Some(known) = self.channels.iter().find(|channel| id.is_some() && channel.id == id) {
            return Ok(Some(known.counter.clone()));
        }
        let charge = account.charge([(Resource::Channels, 1), (Resource::Channels, 0)])?;
        self.channels.push(Channel { id, counter: counter.clone(), _charge: charge });
        Ok(Some(counter))
    }

    /// Closes descriptors that no queue counts its events in any more.
    pub(super) fn close_unused(&mut self) {
        self.channels.retain(|channel| !channel.counter.is_last());
    }

    /// Returns words of one of its arenas.
    pub(super) fn words(&self, place: Place, words: usize) -> Result<Arc<Region>, ControlError> {
        let arena = self.arenas.get(place.arena as usize).ok_or(ControlError::NotFound("arena"))?;
        let at = usize::try_from(place.at).map_err(|_| ControlError::NotFound("arena"))?;
        arena.part(at, words).map_err(invalid)
    }

    pub(super) fn completions(&self, place: Place, capacity: u32) -> Result<CompletionRing, ControlError> {
        let region = self.words(place, CompletionRing::size(capacity))?;
        CompletionRing::on(&region, capacity).map_err(invalid)
    }

    pub(super) fn ring_by(&mut self, page: GuestId) {
        self.page = Some(page);
    }

    /// Returns a send queue that the client's page rings for.
    pub(super) fn sends(&self, place: Place, caps: &QpCaps) -> Result<SendRing, ControlError> {
        let (wrs, sges, inline) = (caps.max_send_wr, caps.max_send_sge, caps.max_inline);
        let region = self.words(place, SendRing::size(wrs, sges, inline))?;
        let ring = SendRing::on(&region, wrs, sges, inline).map_err(invalid)?;
        Ok(match self.page {
            Some(page) => ring.rung_by(page),
            None => ring,
        })
    }

    pub(super) fn receives(&self, ring: Receives) -> Result<RecvRing, ControlError> {
        let region = self.words(ring.place, RecvRing::size(ring.capacity, ring.max_sge))?;
        RecvRing::on(&region, ring.capacity, ring.max_sge).map_err(invalid)
    }
}
