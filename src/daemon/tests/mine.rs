//! The objects that a client has been given, and the check of a request against them.

use super::hostile::gid;
use roxie::remote::message::{Memory, Request};
use roxie_nic::nic::{Answer, Command, MemoryCommand, ReceiveSource};
use roxie_nic::verbs::{
    AddressVector, AhId, CqIndex, FlowId, MrIndex, MwIndex, PdId, QpIndex, QpType, SrqIndex, SrqKind, XrcdId,
};

/// The objects that a client has been given, with their sizes.
#[derive(Debug, Default)]
pub(super) struct OwnObjects {
    pub(super) pds: Vec<PdId>,
    pub(super) cqs: Vec<(CqIndex, u64)>,
    pub(super) mrs: Vec<(MrIndex, u64)>,
    pub(super) windows: Vec<MwIndex>,
    pub(super) srqs: Vec<SrqIndex>,
    pub(super) xrcds: Vec<XrcdId>,
    /// With the place of its queues.
    pub(super) qps: Vec<(QpIndex, QpType, usize)>,
    pub(super) handles: Vec<AhId>,
    pub(super) flows: Vec<FlowId>,
    pub(super) keys: Vec<u32>,
}

/// Bytes of registered memory.
fn bytes(memory: &Memory) -> u64 {
    match memory {
        Memory::Null => 0,
        Memory::At { length, .. } | Memory::InFile { length, .. } => *length,
    }
}

impl OwnObjects {
    /// Records an answer: objects made and destroyed.
    pub(super) fn note(&mut self, request: &Request, answer: &Answer) {
        let mine = self;
        match (request, answer) {
            (
                Request::Memory(MemoryCommand::ReregisterMemory { mr, translation, .. }),
                Answer::Memory(_, key),
            ) => {
                mine.keys.push(*key);
                if let Some((_, memory)) = translation {
                    mine.mrs.iter_mut().filter(|(own, _)| own == mr).for_each(|own| own.1 = bytes(memory));
                }
            }
            (Request::Memory(MemoryCommand::ResizeCq { cq, ring }), _) => {
                mine.cqs
                    .iter_mut()
                    .filter(|(own, _)| own == cq)
                    .for_each(|own| own.1 = u64::from(ring.capacity));
            }
            (
                Request::Memory(MemoryCommand::RegisterMemory { memory, .. })
                | Request::Memory(MemoryCommand::AllocFastMemory { memory, .. }),
                Answer::Memory(mr, key),
            ) => {
                mine.mrs.push((*mr, bytes(memory)));
                mine.keys.push(*key);
            }
            (Request::Memory(MemoryCommand::CreateCq { ring, .. }), Answer::Cq(cq)) => {
                mine.cqs.push((*cq, u64::from(ring.capacity)))
            }
            (Request::Memory(MemoryCommand::CreateQp { init, sends, .. }), Answer::Qp(qp)) => {
                mine.qps.push((qp.index, init.qp_type, sends.at as usize));
            }
            (_, Answer::Qp(qp)) => mine.qps.push((qp.index, QpType::XrcRecv, 0)),
            (_, Answer::Pd(pd)) => mine.pds.push(*pd),
            (_, Answer::Window(window, _)) => mine.windows.push(*window),
            (_, Answer::Srq(srq, _)) => mine.srqs.push(*srq),
            (_, Answer::Xrcd(xrcd)) => mine.xrcds.push(*xrcd),
            (_, Answer::Ah(ah)) => mine.handles.push(*ah),
            (_, Answer::Flow(flow)) => mine.flows.push(*flow),
            (Request::Command(command), _) => match command {
                Command::DeallocPd(pd) => mine.pds.retain(|own| own != pd),
                Command::DeregisterMemory(mr) | Command::ReleaseMemory(mr) => {
                    mine.mrs.retain(|(own, _)| own != mr);
                }
                Command::FreeWindow(window) => mine.windows.retain(|own| own != window),
                Command::DestroyCq(cq) => mine.cqs.retain(|(own, _)| own != cq),
                Command::DestroySrq(srq) => mine.srqs.retain(|own| own != srq),
                Command::CloseXrcd(xrcd) => mine.xrcds.retain(|own| own != xrcd),
                Command::DestroyQp(qp) => mine.qps.retain(|(own, ..)| own != qp),
                Command::DestroyAh(ah) => mine.handles.retain(|own| own != ah),
                Command::DestroyFlow(flow) => mine.flows.retain(|own| own != flow),
                _ => {}
            },
            _ => {}
        }
    }

    /// Returns the first object that a request names and the client does not have.
    pub(super) fn lacks(&self, request: &Request) -> Option<&'static str> {
        let pd = |pd: &PdId| (!self.pds.contains(pd)).then_some("the domain");
        let cq = |cq: &CqIndex| (!self.cqs.iter().any(|(own, _)| own == cq)).then_some("the queue");
        let mr = |mr: &MrIndex| (!self.mrs.iter().any(|(own, _)| own == mr)).then_some("the region");
        let mw = |window: &MwIndex| (!self.windows.contains(window)).then_some("the window");
        let srq = |srq: &SrqIndex| (!self.srqs.contains(srq)).then_some("the shared queue");
        let xrcd = |xrcd: &XrcdId| (!self.xrcds.contains(xrcd)).then_some("the XRC domain");
        let qp = |qp: &QpIndex| (!self.qps.iter().any(|(own, ..)| own == qp)).then_some("the QP");
        let path = |av: &AddressVector| (av.sgid != gid(1)).then_some("the address that it speaks from");
        match request {
            Request::Memory(MemoryCommand::RegisterMemory { pd: of, .. })
            | Request::Memory(MemoryCommand::AllocFastMemory { pd: of, .. }) => pd(of),
            Request::Memory(MemoryCommand::ReregisterMemory { mr: region, pd: to, .. }) => {
                mr(region).or_else(|| to.as_ref().and_then(pd))
            }
            Request::Memory(MemoryCommand::ResizeCq { cq: queue, .. }) => cq(queue),
            Request::Memory(MemoryCommand::CreateSrq { pd: of, init, .. }) => {
                pd(of).or_else(|| match &init.kind {
                    SrqKind::Basic => None,
                    SrqKind::Xrc { xrcd: domain, cq: queue } => xrcd(domain).or_else(|| cq(queue)),
                })
            }
            Request::Memory(MemoryCommand::ModifySrq { srq: queue, .. }) => srq(queue),
            Request::Memory(MemoryCommand::CreateQp { pd: of, send_cq, recv_cq, receives, .. }) => {
                let shared = if let ReceiveSource::Shared(queue) = receives { srq(queue) } else { None };
                pd(of).or_else(|| cq(send_cq)).or_else(|| cq(recv_cq)).or(shared)
            }
            Request::Command(command) => match command {
                Command::DeallocPd(of) | Command::AllocWindow { pd: of, .. } => pd(of),
                Command::CreateAh(of, av) => pd(of).or_else(|| path(av)),
                Command::DeregisterMemory(region) | Command::ReleaseMemory(region) => mr(region),
                Command::NextWindowKey(window) | Command::FreeWindow(window) => mw(window),
                Command::ModerateCq { cq: queue, .. } | Command::DestroyCq(queue) => cq(queue),
                Command::QuerySrq(queue) | Command::DestroySrq(queue) => srq(queue),
                Command::CloseXrcd(of) | Command::CreateXrcTarget(of) => xrcd(of),
                Command::ModifyQp(of, attr) => qp(of).or_else(|| attr.av.as_ref().and_then(path)),
                Command::SetQpControl(of, _)
                | Command::QueryQp(of)
                | Command::ExamineQp(of, _)
                | Command::DestroyQp(of)
                | Command::AttachMulticast(of, _)
                | Command::DetachMulticast(of, _)
                | Command::CreateFlow(of, _) => qp(of),
                Command::DestroyAh(ah) => (!self.handles.contains(ah)).then_some("the address handle"),
                Command::DestroyFlow(flow) => (!self.flows.contains(flow)).then_some("the flow"),
                Command::AddQpnUnit(_) => Some("the unit"),
                _ => None,
            },
            _ => None,
        }
    }
}
