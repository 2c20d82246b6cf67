//! What belongs to a process that the NIC serves: it may name that and nothing else.
//!
//! Objects are named by their places in the NIC's tables, which are easy to guess. So each command is looked at here before the NIC sees
//! it: whatever it names has to be the process's own. Keys and handles in work requests need no look: the NIC compares their
//! protection domain with the QP's, and domains are never shared.

use std::collections::{HashMap, HashSet};

use crate::nic::{Answer, Command, ControlError};
use crate::verbs::{
    AhId, CqIndex, FlowId, MrIndex, MwIndex, PdId, QpIndex, QpType, SrqIndex, SrqInit, SrqKind, XrcdId,
};

/// How much a process may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Queue pairs.
    pub qps: u32,
    /// Entries of its completion queues together.
    pub cqes: u64,
    /// Memory regions and windows.
    pub mrs: u32,
    /// Bytes of its regions together.
    pub bytes: u64,
    /// What else it makes, together: protection domains, completion queues, shared receive queues, address handles, XRC domains, flows.
    pub objects: u32,
    /// Bytes of its queues.
    pub queue_bytes: u64,
    /// Bits per second of its frames that carry data, together.
    pub bits_per_second: u64,
}

impl Default for Quota {
    /// As much as the device has, as fast as it sends; 4 GiB of queues.
    fn default() -> Quota {
        Quota {
            qps: u32::MAX,
            cqes: u64::MAX,
            mrs: u32::MAX,
            bytes: u64::MAX,
            objects: u32::MAX,
            queue_bytes: 4 << 30,
            bits_per_second: u64::MAX,
        }
    }
}

/// What a process has.
#[derive(Debug, Default)]
pub(super) struct Owned {
    pds: HashSet<PdId>,
    /// With their bytes.
    mrs: HashMap<MrIndex, u64>,
    windows: HashSet<MwIndex>,
    /// With their entries.
    cqs: HashMap<CqIndex, u32>,
    srqs: HashSet<SrqIndex>,
    xrcds: Vec<XrcdId>,
    /// With what they are.
    qps: HashMap<QpIndex, QpType>,
    handles: HashSet<AhId>,
    flows: HashSet<FlowId>,
    pub(super) queue_bytes: u64,
}

fn found(is_there: bool, what: &'static str) -> Result<(), ControlError> {
    if is_there { Ok(()) } else { Err(ControlError::NotFound(what)) }
}

fn beyond(what: &'static str, value: u64, limit: u64) -> Result<(), ControlError> {
    if value <= limit {
        return Ok(());
    }
    let why = format!("{what}: {value}, but the NIC gives each process {limit} at most (`roxie nic --help`)");
    Err(ControlError::Elsewhere { errno: libc::ENOMEM, why })
}

impl Owned {
    pub(super) fn pd(&self, pd: PdId) -> Result<(), ControlError> {
        found(self.pds.contains(&pd), "protection domain")
    }

    pub(super) fn mr(&self, mr: MrIndex) -> Result<(), ControlError> {
        found(self.mrs.contains_key(&mr), "memory region")
    }

    fn window(&self, window: MwIndex) -> Result<(), ControlError> {
        found(self.windows.contains(&window), "memory window")
    }

    pub(super) fn cq(&self, cq: CqIndex) -> Result<(), ControlError> {
        found(self.cqs.contains_key(&cq), "completion queue")
    }

    pub(super) fn srq(&self, srq: SrqIndex) -> Result<(), ControlError> {
        found(self.srqs.contains(&srq), "shared receive queue")
    }

    fn xrcd(&self, xrcd: XrcdId) -> Result<(), ControlError> {
        found(self.xrcds.contains(&xrcd), "XRC domain")
    }

    pub(super) fn qp(&self, qp: QpIndex) -> Result<(), ControlError> {
        found(self.qps.contains_key(&qp), "QP")
    }

    pub(super) fn has_qp(&self, qp: QpIndex) -> bool {
        self.qps.contains_key(&qp)
    }

    pub(super) fn has_pd(&self, pd: PdId) -> bool {
        self.pds.contains(&pd)
    }

    pub(super) fn has_cq(&self, cq: CqIndex) -> bool {
        self.cqs.contains_key(&cq)
    }

    pub(super) fn has_srq(&self, srq: SrqIndex) -> bool {
        self.srqs.contains(&srq)
    }

    /// Its QP1.
    pub(super) fn gsi(&self) -> Option<QpIndex> {
        self.qps.iter().find(|(_, qp_type)| **qp_type == QpType::Gsi).map(|(qp, _)| *qp)
    }

    /// What a shared receive queue names.
    pub(super) fn srq_init(&self, pd: PdId, init: &SrqInit) -> Result<(), ControlError> {
        self.pd(pd)?;
        match init.kind {
            SrqKind::Basic => Ok(()),
            SrqKind::Xrc { xrcd, cq } => self.xrcd(xrcd).and_then(|()| self.cq(cq)),
        }
    }

    /// Room for one more QP.
    pub(super) fn room_for_qp(&self, quota: &Quota) -> Result<(), ControlError> {
        beyond("QPs", self.qps.len() as u64 + 1, quota.qps.into())
    }

    /// Room for one more of what has no bound of its own.
    pub(super) fn room_for_object(&self, quota: &Quota) -> Result<(), ControlError> {
        let held = self.pds.len() + self.cqs.len() + self.srqs.len() + self.xrcds.len();
        let all = held + self.handles.len() + self.flows.len();
        beyond("objects", all as u64 + 1, quota.objects.into())
    }

    /// Room for a completion queue, in place of another one if that is named.
    pub(super) fn room_for_cq(
        &self,
        quota: &Quota,
        entries: u32,
        instead: Option<CqIndex>,
    ) -> Result<(), ControlError> {
        if instead.is_none() {
            self.room_for_object(quota)?;
        }
        let others = self.cqs.iter().filter(|(cq, _)| Some(**cq) != instead);
        let sum: u64 = others.map(|(_, entries)| u64::from(*entries)).sum();
        beyond("completion queue entries", sum + u64::from(entries), quota.cqes)
    }

    /// Room for a region of so many bytes, in place of another one if that is named.
    pub(super) fn room_for_mr(
        &self,
        quota: &Quota,
        bytes: u64,
        instead: Option<MrIndex>,
    ) -> Result<(), ControlError> {
        let others = self.mrs.iter().filter(|(mr, _)| Some(**mr) != instead);
        let (count, sum) = others.fold((0, 0u64), |(n, sum), (_, bytes)| (n + 1, sum.saturating_add(*bytes)));
        beyond("memory regions", count + self.windows.len() as u64 + 1, quota.mrs.into())?;
        // All addresses (implicit on-demand memory) are no memory by themselves.
        let bytes = if bytes == u64::MAX { 0 } else { bytes };
        beyond("bytes registered", sum.saturating_add(bytes), quota.bytes)
    }

    /// Room for more queues.
    pub(super) fn room_for_queues(&self, quota: &Quota, bytes: u64) -> Result<(), ControlError> {
        beyond("bytes of queues", self.queue_bytes.saturating_add(bytes), quota.queue_bytes)
    }

    /// True if all that a command without memory names is the process's, and it may ask for it.
    pub(super) fn check(&self, command: &Command, quota: &Quota) -> Result<(), ControlError> {
        match command {
            Command::AllocPd | Command::OpenXrcd(_) => self.room_for_object(quota),
            Command::DeallocPd(pd) => self.pd(*pd),
            Command::DeregisterMemory(mr) | Command::ReleaseMemory(mr) => self.mr(*mr),
            Command::AllocWindow { pd, .. } => self.room_for_mr(quota, 0, None).and_then(|()| self.pd(*pd)),
            Command::NextWindowKey(window) | Command::FreeWindow(window) => self.window(*window),
            Command::ModerateCq { cq, .. } | Command::DestroyCq(cq) => self.cq(*cq),
            Command::QuerySrq(srq) | Command::DestroySrq(srq) => self.srq(*srq),
            Command::CloseXrcd(xrcd) => self.xrcd(*xrcd),
            Command::CreateXrcTarget(xrcd) => self.room_for_qp(quota).and_then(|()| self.xrcd(*xrcd)),
            Command::CreateRssQp(pd, rss) => {
                self.room_for_qp(quota)?;
                self.pd(*pd)?;
                rss.table.iter().try_for_each(|qp| self.qp(*qp))
            }
            Command::ModifyQp(qp, _)
            | Command::SetQpControl(qp, _)
            | Command::QueryQp(qp)
            | Command::QueryLog(qp)
            | Command::DestroyQp(qp)
            | Command::AttachMulticast(qp, _)
            | Command::DetachMulticast(qp, _) => self.qp(*qp),
            Command::CreateFlow(qp, _) => self.room_for_object(quota).and_then(|()| self.qp(*qp)),
            Command::CreateAh(pd, _) => self.room_for_object(quota).and_then(|()| self.pd(*pd)),
            Command::DestroyAh(ah) => found(self.handles.contains(ah), "address handle"),
            Command::DestroyFlow(flow) => found(self.flows.contains(flow), "flow"),
            // What it sees of them is its own.
            Command::ListQps => Ok(()),
            // Those that carry memory come in another form; the rest is not for those who are served.
            Command::RegisterMemory { .. }
            | Command::ReregisterMemory { .. }
            | Command::AllocFastMemory { .. }
            | Command::CreateCq { .. }
            | Command::ResizeCq { .. }
            | Command::CreateSrq { .. }
            | Command::ModifySrq { .. }
            | Command::CreateQp { .. }
            | Command::SetCongestion(_)
            | Command::ShareRate(..)
            | Command::AddQpnUnit(_)
            | Command::RouteGsi(..) => Err(ControlError::Elsewhere {
                errno: libc::EPERM,
                why: "this is not for processes that a NIC serves to ask".into(),
            }),
        }
    }

    /// What was made is the process's from now on.
    pub(super) fn made(&mut self, answer: &Answer, qp_type: QpType, size: u64) {
        match answer {
            Answer::Pd(pd) => drop(self.pds.insert(*pd)),
            Answer::Memory(mr, _) => drop(self.mrs.insert(*mr, if size == u64::MAX { 0 } else { size })),
            Answer::Window(window, _) => drop(self.windows.insert(*window)),
            Answer::Cq(cq) => drop(self.cqs.insert(*cq, size as u32)),
            Answer::Qp(handle) => drop(self.qps.insert(handle.index, qp_type)),
            Answer::Ah(ah) => drop(self.handles.insert(*ah)),
            Answer::Srq(srq, _) => drop(self.srqs.insert(*srq)),
            // Opening one again is one more time to close it.
            Answer::Xrcd(xrcd) => self.xrcds.push(*xrcd),
            Answer::Flow(flow) => drop(self.flows.insert(*flow)),
            Answer::Done
            | Answer::Key(_)
            | Answer::SrqStatus(_)
            | Answer::QpStatus(_)
            | Answer::QpLog(_)
            | Answer::Qps(_) => {}
        }
    }

    /// A completion queue has so many entries now.
    pub(super) fn resized(&mut self, cq: CqIndex, entries: u32) {
        self.cqs.insert(cq, entries);
    }

    /// A command was carried out that took something away.
    pub(super) fn unmade(&mut self, gone: &Gone) {
        match gone {
            Gone::Nothing => {}
            Gone::Pd(pd) => drop(self.pds.remove(pd)),
            Gone::Mr(mr) => drop(self.mrs.remove(mr)),
            Gone::Window(window) => drop(self.windows.remove(window)),
            Gone::Cq(cq) => drop(self.cqs.remove(cq)),
            Gone::Srq(srq) => drop(self.srqs.remove(srq)),
            Gone::Xrcd(xrcd) => {
                if let Some(at) = self.xrcds.iter().position(|other| other == xrcd) {
                    self.xrcds.swap_remove(at);
                }
            }
            Gone::Qp(qp) => drop(self.qps.remove(qp)),
            Gone::Ah(ah) => drop(self.handles.remove(ah)),
            Gone::Flow(flow) => drop(self.flows.remove(flow)),
        }
    }

    /// What takes everything of it away, in an order in which nothing is needed any more when its turn comes.
    pub(super) fn farewell(&self) -> Vec<Command> {
        // QPs that spread frames over others go before those. Which are which only the NIC knows: all are tried twice.
        let qps = || self.qps.keys().map(|qp| Command::DestroyQp(*qp));
        let mut all: Vec<Command> = self.flows.iter().map(|flow| Command::DestroyFlow(*flow)).collect();
        all.extend(qps().chain(qps()));
        all.extend(self.handles.iter().map(|ah| Command::DestroyAh(*ah)));
        all.extend(self.srqs.iter().map(|srq| Command::DestroySrq(*srq)));
        all.extend(self.cqs.keys().map(|cq| Command::DestroyCq(*cq)));
        all.extend(self.windows.iter().map(|window| Command::FreeWindow(*window)));
        all.extend(self.mrs.keys().map(|mr| Command::ReleaseMemory(*mr)));
        all.extend(self.xrcds.iter().map(|xrcd| Command::CloseXrcd(*xrcd)));
        all.extend(self.pds.iter().map(|pd| Command::DeallocPd(*pd)));
        all
    }
}

/// What a command takes away if it is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gone {
    Nothing,
    Pd(PdId),
    Mr(MrIndex),
    Window(MwIndex),
    Cq(CqIndex),
    Srq(SrqIndex),
    Xrcd(XrcdId),
    Qp(QpIndex),
    Ah(AhId),
    Flow(FlowId),
}

impl Gone {
    pub(super) fn by(command: &Command) -> Gone {
        match command {
            Command::DeallocPd(pd) => Gone::Pd(*pd),
            Command::DeregisterMemory(mr) | Command::ReleaseMemory(mr) => Gone::Mr(*mr),
            Command::FreeWindow(window) => Gone::Window(*window),
            Command::DestroyCq(cq) => Gone::Cq(*cq),
            Command::DestroySrq(srq) => Gone::Srq(*srq),
            Command::CloseXrcd(xrcd) => Gone::Xrcd(*xrcd),
            Command::DestroyQp(qp) => Gone::Qp(*qp),
            Command::DestroyAh(ah) => Gone::Ah(*ah),
            Command::DestroyFlow(flow) => Gone::Flow(*flow),
            _ => Gone::Nothing,
        }
    }
}
