//! Requests with memory, named by its arena place.

use super::CAPS;
use roxie::remote::message::{ArenaPlace, Completions, Memory, Pages, Receives, Request, WithMessage};
use roxie_nic::nic::{MemoryCommand, ReceiveSource};
use roxie_nic::verbs::{CqIndex, PdId, QpInit};

pub(super) fn create_cq(place: ArenaPlace, capacity: u32) -> Request {
    Request::Memory(MemoryCommand::CreateCq { ring: Completions { place, capacity }, notify: None })
}

/// As [`create_cq`], with a descriptor next to the request in which events are counted.
pub(super) fn create_counted_cq(place: ArenaPlace, capacity: u32) -> Request {
    Request::Memory(MemoryCommand::CreateCq {
        ring: Completions { place, capacity },
        notify: Some(WithMessage),
    })
}

pub(super) fn create_qp(
    pd: PdId,
    (send_cq, recv_cq): (CqIndex, CqIndex),
    init: QpInit,
    sends: ArenaPlace,
    receives: ReceiveSource<Receives>,
) -> Request {
    Request::Memory(MemoryCommand::CreateQp { pd, send_cq, recv_cq, init, sends, receives })
}

pub(super) fn resize_cq(cq: CqIndex, place: ArenaPlace, capacity: u32) -> Request {
    Request::Memory(MemoryCommand::ResizeCq { cq, ring: Completions { place, capacity } })
}

pub(super) fn alloc_fast(pd: PdId, memory: Memory, place: ArenaPlace, capacity: u32) -> Request {
    Request::Memory(MemoryCommand::AllocFastMemory { pd, memory, pages: Pages { place, capacity } })
}

/// A receive queue of the sizes of [`CAPS`].
pub(super) fn receives_at(place: ArenaPlace) -> Receives {
    Receives { place, capacity: CAPS.max_recv_wr, max_sge: CAPS.max_recv_sge }
}
