//! What belongs to a process that the NIC serves: it may name that and nothing else.
//!
//! Objects are named by their places in the NIC's tables, which are easy to guess. So each command is looked at here before the NIC sees
//! it: whatever it names has to be the process's own. Keys and handles in work requests need no look: the NIC compares their
//! protection domain with the QP's, and domains are never shared.

use std::collections::{HashMap, HashSet};

use super::account::Charge;
use crate::nic::{Answer, Command, ControlError, PlantedBug, found};
use crate::verbs::{
    AhId, CqIndex, FlowId, MrIndex, MwIndex, PdId, QpIndex, QpInit, QpType, SrqIndex, SrqInit, SrqKind,
    XrcdId,
};

/// What a process has, each with what it costs.
#[derive(Debug, Default)]
pub(super) struct Owned {
    pds: HashMap<PdId, Charge>,
    mrs: HashMap<MrIndex, Charge>,
    windows: HashMap<MwIndex, Charge>,
    cqs: HashMap<CqIndex, Charge>,
    srqs: HashMap<SrqIndex, Charge>,
    xrcds: Vec<(XrcdId, Charge)>,
    qps: HashMap<QpIndex, (Role, Charge)>,
    handles: HashMap<AhId, Charge>,
    flows: HashMap<FlowId, Charge>,
}

/// The role of a QP, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// QP1 of the process.
    Gsi,
    /// Spreads frames over other QPs, which cannot go before it.
    Spreads,
    Other,
}

/// Facts about the object that a command makes or replaces, which its answer does not tell.
#[derive(Clone, Copy, Debug)]
pub(super) struct Making {
    role: Role,
    resized: Option<CqIndex>,
}

impl Making {
    pub(super) fn by(command: &Command) -> Making {
        let role = match command {
            Command::CreateQp { init: QpInit { qp_type: QpType::Gsi, .. }, .. } => Role::Gsi,
            Command::CreateRssQp(..) => Role::Spreads,
            _ => Role::Other,
        };
        let resized = if let Command::ResizeCq { cq, .. } = command { Some(*cq) } else { None };
        Making { role, resized }
    }
}

impl Owned {
    pub(super) fn pd(&self, pd: PdId) -> Result<(), ControlError> {
        found(self.pds.contains_key(&pd), "protection domain")
    }

    pub(super) fn mr(&self, mr: MrIndex) -> Result<(), ControlError> {
        found(self.mrs.contains_key(&mr), "memory region")
    }

    fn window(&self, window: MwIndex) -> Result<(), ControlError> {
        found(self.windows.contains_key(&window), "memory window")
    }

    pub(super) fn cq(&self, cq: CqIndex) -> Result<(), ControlError> {
        found(self.cqs.contains_key(&cq), "completion queue")
    }

    pub(super) fn srq(&self, srq: SrqIndex) -> Result<(), ControlError> {
        found(self.srqs.contains_key(&srq), "shared receive queue")
    }

    fn xrcd(&self, xrcd: XrcdId) -> Result<(), ControlError> {
        found(self.xrcds.iter().any(|(own, _)| *own == xrcd), "XRC domain")
    }

    pub(super) fn qp(&self, qp: QpIndex) -> Result<(), ControlError> {
        found(self.qps.contains_key(&qp) || PlantedBug::NamesOthersQps.is(), "QP")
    }

    pub(super) fn has_qp(&self, qp: QpIndex) -> bool {
        self.qps.contains_key(&qp)
    }

    pub(super) fn has_pd(&self, pd: PdId) -> bool {
        self.pds.contains_key(&pd)
    }

    pub(super) fn has_cq(&self, cq: CqIndex) -> bool {
        self.cqs.contains_key(&cq)
    }

    pub(super) fn has_srq(&self, srq: SrqIndex) -> bool {
        self.srqs.contains_key(&srq)
    }

    /// Its QP1.
    pub(super) fn gsi(&self) -> Option<QpIndex> {
        self.qps.iter().find(|(_, (role, _))| *role == Role::Gsi).map(|(qp, _)| *qp)
    }

    /// What a shared receive queue names.
    pub(super) fn srq_init(&self, pd: PdId, init: &SrqInit) -> Result<(), ControlError> {
        self.pd(pd)?;
        match init.kind {
            SrqKind::Basic => Ok(()),
            SrqKind::Xrc { xrcd, cq } => self.xrcd(xrcd).and_then(|()| self.cq(cq)),
        }
    }

    /// Returns the charge of the object that a command replaces.
    pub(super) fn replaced_by(&self, command: &Command) -> Option<&Charge> {
        match command {
            Command::ResizeCq { cq, .. } => self.cqs.get(cq),
            Command::ReregisterMemory { mr, .. } => self.mrs.get(mr),
            _ => None,
        }
    }

    /// True if all that a command without memory names is the process's, and it may ask for it.
    pub(super) fn check(&self, command: &Command) -> Result<(), ControlError> {
        match command {
            Command::AllocPd | Command::OpenXrcd(_) => Ok(()),
            Command::DeallocPd(pd) => self.pd(*pd),
            Command::DeregisterMemory(mr) | Command::ReleaseMemory(mr) => self.mr(*mr),
            Command::AllocWindow { pd, .. } | Command::CreateAh(pd, _) => self.pd(*pd),
            Command::NextWindowKey(window) | Command::FreeWindow(window) => self.window(*window),
            Command::ModerateCq { cq, .. } | Command::DestroyCq(cq) => self.cq(*cq),
            Command::QuerySrq(srq) | Command::DestroySrq(srq) => self.srq(*srq),
            Command::CloseXrcd(xrcd) | Command::CreateXrcTarget(xrcd) => self.xrcd(*xrcd),
            Command::CreateRssQp(pd, rss) => {
                self.pd(*pd)?;
                rss.table.iter().try_for_each(|qp| self.qp(*qp))
            }
            Command::ModifyQp(qp, _)
            | Command::SetQpControl(qp, _)
            | Command::QueryQp(qp)
            | Command::QueryLog(qp)
            | Command::DestroyQp(qp)
            | Command::AttachMulticast(qp, _)
            | Command::DetachMulticast(qp, _)
            | Command::CreateFlow(qp, _) => self.qp(*qp),
            Command::DestroyAh(ah) => found(self.handles.contains_key(ah), "address handle"),
            Command::DestroyFlow(flow) => found(self.flows.contains_key(flow), "flow"),
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

    /// Enters an object that was made or replaced, with its charge.
    pub(super) fn made(&mut self, making: Making, answer: &Answer, charge: Charge) {
        match answer {
            Answer::Pd(pd) => drop(self.pds.insert(*pd, charge)),
            Answer::Memory(mr, _) => drop(self.mrs.insert(*mr, charge)),
            Answer::Window(window, _) => drop(self.windows.insert(*window, charge)),
            Answer::Cq(cq) => drop(self.cqs.insert(*cq, charge)),
            Answer::Qp(handle) => drop(self.qps.insert(handle.index, (making.role, charge))),
            Answer::Ah(ah) => drop(self.handles.insert(*ah, charge)),
            Answer::Srq(srq, _) => drop(self.srqs.insert(*srq, charge)),
            // Opening one again is one more time to close it.
            Answer::Xrcd(xrcd) => self.xrcds.push((*xrcd, charge)),
            Answer::Flow(flow) => drop(self.flows.insert(*flow, charge)),
            Answer::Done => drop(making.resized.map(|cq| self.cqs.insert(cq, charge))),
            Answer::Key(_)
            | Answer::SrqStatus(_)
            | Answer::QpStatus(_)
            | Answer::QpLog(_)
            | Answer::Qps(_) => {}
        }
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
                if let Some(at) = self.xrcds.iter().position(|(other, _)| other == xrcd) {
                    self.xrcds.swap_remove(at);
                }
            }
            Gone::Qp(qp) => drop(self.qps.remove(qp)),
            Gone::Ah(ah) => drop(self.handles.remove(ah)),
            Gone::Flow(flow) => drop(self.flows.remove(flow)),
        }
    }

    /// Returns the commands that take everything of it away, in an order in which nothing is needed any more when its turn comes. Each object
    /// is named once.
    pub(super) fn farewell(&self) -> Vec<Command> {
        let mut all: Vec<Command> = self.flows.keys().map(|flow| Command::DestroyFlow(*flow)).collect();
        let mut qps: Vec<_> = self.qps.iter().map(|(qp, (role, _))| (*role != Role::Spreads, *qp)).collect();
        qps.sort_by_key(|(waits, _)| *waits);
        all.extend(qps.into_iter().map(|(_, qp)| Command::DestroyQp(qp)));
        all.extend(self.handles.keys().map(|ah| Command::DestroyAh(*ah)));
        all.extend(self.srqs.keys().map(|srq| Command::DestroySrq(*srq)));
        all.extend(self.cqs.keys().map(|cq| Command::DestroyCq(*cq)));
        all.extend(self.windows.keys().map(|window| Command::FreeWindow(*window)));
        all.extend(self.mrs.keys().map(|mr| Command::ReleaseMemory(*mr)));
        all.extend(self.xrcds.iter().map(|(xrcd, _)| Command::CloseXrcd(*xrcd)));
        all.extend(self.pds.keys().map(|pd| Command::DeallocPd(*pd)));
        all
    }

    /// Returns the names of its QPs and domains.
    pub(super) fn names(&self) -> (HashSet<QpIndex>, HashSet<PdId>) {
        (self.qps.keys().copied().collect(), self.pds.keys().copied().collect())
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
