//! Requests with memory, named by its arena place.

use super::{CAPS, place};
use roxie::remote::message::{ArenaPlace, Completions, Memory, Pages, Receives, Request, WithMessage};
use roxie_base::flow::{RxHash, RxHashFields};
use roxie_nic::nic::{Command, MemoryCommand, ReceiveSource};
use roxie_nic::verbs::{
    Access, CqIndex, Gid, PdId, QpAttr, QpIndex, QpInit, QpState, QpType, Rss, SrqInit, XrcdId,
};

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

/// Returns a valid request of each kind.
pub(super) fn each_request(pd: PdId, cq: CqIndex, qp: QpIndex) -> [Request; 16] {
    let init = QpInit { qp_type: QpType::Rc, caps: CAPS, sq_sig_all: true };
    let attr = QpAttr { state: Some(QpState::Init), pkey_index: Some(0), port: Some(1), ..QpAttr::default() };
    let memory = Memory::At { address: 0x1000, length: 64, on_demand: false };
    [
        Request::Command(Command::AllocPd),
        Request::Command(Command::ModifyQp(qp, Box::new(attr))),
        Request::Command(Command::QueryQp(qp)),
        Request::Command(Command::CreateXrcTarget(XrcdId(0))),
        Request::Command(Command::CreateRssQp(
            pd,
            Box::new(Rss {
                hash: RxHash { key: [1; 40], fields: RxHashFields::empty() },
                table: vec![qp, qp],
            }),
        )),
        Request::Command(Command::AttachMulticast(qp, Gid([0xff; 16]))),
        Request::Memory(MemoryCommand::RegisterMemory {
            pd,
            access: Access::LOCAL_WRITE,
            start: 0x1000,
            memory,
        }),
        alloc_fast(pd, memory, place(3000), 8),
        create_cq(place(512), 8),
        resize_cq(cq, place(512), 8),
        Request::Memory(MemoryCommand::CreateSrq {
            pd,
            init: SrqInit::default(),
            ring: Receives { place: place(2048), capacity: 4, max_sge: 1 },
        }),
        create_qp(pd, (cq, cq), init, place(1024), ReceiveSource::Own(receives_at(place(2048)))),
        Request::Services(vec![(7, None), (8, Some([192, 0, 2, 1].into()))]),
        Request::Arena { words: 64 },
        Request::TakeUnit(9),
        Request::Snapshot,
    ]
}
