//! The objects that a command names, makes and removes.
//!
//! The NIC uses this to check that the objects exist. A NIC that serves other processes also checks that they belong to
//! the client.

use super::command::{Answer, Command};
use super::memory_command::{Form, MemoryCommand, ReceiveSource};
use super::object::Object;
use crate::verbs::{QpIndex, SrqInit, SrqKind};

/// Matches the commands for one QP.
macro_rules! of_qp {
    ($qp:ident) => {
        Command::ModifyQp($qp, _)
            | Command::SetQpControl($qp, _)
            | Command::ShareRate($qp, _)
            | Command::SetClient($qp, _)
            | Command::RouteGsi($qp, _)
            | Command::QueryQp($qp)
            | Command::QueryLog($qp)
            | Command::ExamineQp($qp, _)
            | Command::DestroyQp($qp)
            | Command::AttachMulticast($qp, _)
            | Command::DetachMulticast($qp, _)
            | Command::CreateFlow($qp, _)
    };
}

impl Command {
    /// Calls `judge` for each object that the command names.
    ///
    /// # Errors
    /// The first error of `judge`.
    pub fn each_object<E>(&self, mut judge: impl FnMut(Object) -> Result<(), E>) -> Result<(), E> {
        match self {
            Command::DeallocPd(pd)
            | Command::AllocWindow { pd, .. }
            | Command::CreateAh(pd, _)
            | Command::JoinSrq(pd, ..) => judge(Object::Pd(*pd)),
            Command::DeregisterMemory(mr) | Command::ReleaseMemory(mr) => judge(Object::Mr(*mr)),
            Command::NextWindowKey(window) | Command::FreeWindow(window) => judge(Object::Window(*window)),
            Command::ModerateCq { cq, .. } | Command::DestroyCq(cq) => judge(Object::Cq(*cq)),
            Command::QuerySrq(srq) | Command::DestroySrq(srq) => judge(Object::Srq(*srq)),
            Command::CloseXrcd(xrcd) | Command::CreateXrcTarget(xrcd) => judge(Object::Xrcd(*xrcd)),
            Command::CreateRssQp(pd, rss) => {
                judge(Object::Pd(*pd))?;
                rss.table.iter().try_for_each(|qp| judge(Object::Qp(*qp)))
            }
            of_qp!(qp) => judge(Object::Qp(*qp)),
            Command::DestroyAh(ah) => judge(Object::Ah(*ah)),
            Command::DestroyFlow(flow) => judge(Object::Flow(*flow)),
            Command::Memory(command) | Command::CreatePrepared(command, _) => command.each_object(judge),
            Command::AllocPd
            | Command::OpenXrcd(_)
            | Command::AddQpnUnit(_)
            | Command::ListQps
            | Command::SetGids(_)
            | Command::SetCongestion(_) => Ok(()),
        }
    }

    /// Returns the object that the command removes. An XRC domain is removed when it was closed as often as opened.
    pub fn takes_away(&self) -> Option<Object> {
        match self {
            Command::DeallocPd(pd) => Some(Object::Pd(*pd)),
            Command::DeregisterMemory(mr) | Command::ReleaseMemory(mr) => Some(Object::Mr(*mr)),
            Command::FreeWindow(window) => Some(Object::Window(*window)),
            Command::DestroyCq(cq) => Some(Object::Cq(*cq)),
            Command::DestroySrq(srq) => Some(Object::Srq(*srq)),
            Command::CloseXrcd(xrcd) => Some(Object::Xrcd(*xrcd)),
            Command::DestroyQp(qp) => Some(Object::Qp(*qp)),
            Command::DestroyAh(ah) => Some(Object::Ah(*ah)),
            Command::DestroyFlow(flow) => Some(Object::Flow(*flow)),
            _ => None,
        }
    }

    /// Returns the QP that the command is for.
    pub fn qp_mut(&mut self) -> Option<&mut QpIndex> {
        match self {
            of_qp!(qp) => Some(qp),
            _ => None,
        }
    }

    /// Returns the command once more, for another worker of a device, if each worker executes it: commands about
    /// domains, registered memory, completion queues, address handles and the whole device. A shared receive queue is
    /// made by [`Command::JoinSrq`] there.
    pub fn for_sibling(&self) -> Option<Command> {
        Some(match self {
            Command::AllocPd => Command::AllocPd,
            Command::DeallocPd(pd) => Command::DeallocPd(*pd),
            Command::DeregisterMemory(mr) => Command::DeregisterMemory(*mr),
            Command::ReleaseMemory(mr) => Command::ReleaseMemory(*mr),
            Command::ModerateCq { cq, count, period } => {
                Command::ModerateCq { cq: *cq, count: *count, period: *period }
            }
            Command::DestroyCq(cq) => Command::DestroyCq(*cq),
            Command::DestroySrq(srq) => Command::DestroySrq(*srq),
            Command::OpenXrcd(open) => Command::OpenXrcd(*open),
            Command::CloseXrcd(xrcd) => Command::CloseXrcd(*xrcd),
            Command::CreateAh(pd, av) => Command::CreateAh(*pd, av.clone()),
            Command::DestroyAh(ah) => Command::DestroyAh(*ah),
            Command::SetGids(gids) => Command::SetGids(gids.clone()),
            Command::SetCongestion(config) => Command::SetCongestion(config.clone()),
            Command::Memory(command) => match &**command {
                MemoryCommand::RegisterMemory { pd, access, start, memory } => {
                    MemoryCommand::RegisterMemory {
                        pd: *pd,
                        access: *access,
                        start: *start,
                        memory: memory.clone(),
                    }
                }
                MemoryCommand::ReregisterMemory { mr, pd, access, translation } => {
                    let (mr, pd, access) = (*mr, *pd, *access);
                    MemoryCommand::ReregisterMemory { mr, pd, access, translation: translation.clone() }
                }
                MemoryCommand::CreateCq { ring, notify } => {
                    MemoryCommand::CreateCq { ring: ring.clone(), notify: notify.clone() }
                }
                _ => return None,
            }
            .into(),
            _ => return None,
        })
    }

    /// True for a command that affects the whole device, which only the NIC's owner may issue.
    pub fn is_for_the_device(&self) -> bool {
        matches!(
            self,
            Command::SetCongestion(_)
                | Command::SetGids(_)
                | Command::ShareRate(..)
                | Command::SetClient(..)
                | Command::AddQpnUnit(_)
                | Command::RouteGsi(..)
        )
    }
}

impl<F: Form> MemoryCommand<F> {
    /// Calls `judge` for each object that the command names.
    ///
    /// # Errors
    /// The first error of `judge`.
    pub fn each_object<E>(&self, mut judge: impl FnMut(Object) -> Result<(), E>) -> Result<(), E> {
        match self {
            MemoryCommand::RegisterMemory { pd, .. } | MemoryCommand::AllocFastMemory { pd, .. } => {
                judge(Object::Pd(*pd))
            }
            MemoryCommand::ReregisterMemory { mr, pd, .. } => {
                judge(Object::Mr(*mr))?;
                pd.map_or(Ok(()), |pd| judge(Object::Pd(pd)))
            }
            MemoryCommand::CreateCq { .. } => Ok(()),
            MemoryCommand::ResizeCq { cq, .. } => judge(Object::Cq(*cq)),
            MemoryCommand::ModifySrq { srq, .. } => judge(Object::Srq(*srq)),
            MemoryCommand::CreateSrq { pd, init: SrqInit { kind, .. }, .. } => {
                if let SrqKind::Xrc { xrcd, cq } = kind {
                    judge(Object::Cq(*cq))?;
                    judge(Object::Xrcd(*xrcd))?;
                }
                judge(Object::Pd(*pd))
            }
            MemoryCommand::CreateQp { pd, send_cq, recv_cq, receives, .. } => {
                judge(Object::Pd(*pd))?;
                judge(Object::Cq(*send_cq))?;
                judge(Object::Cq(*recv_cq))?;
                match receives {
                    ReceiveSource::Shared(srq) => judge(Object::Srq(*srq)),
                    ReceiveSource::Own(_) | ReceiveSource::None => Ok(()),
                }
            }
        }
    }

    /// Returns the object that gets another size or memory by the command.
    pub fn changes(&self) -> Option<Object> {
        match self {
            MemoryCommand::ReregisterMemory { mr, .. } => Some(Object::Mr(*mr)),
            MemoryCommand::ResizeCq { cq, .. } => Some(Object::Cq(*cq)),
            MemoryCommand::ModifySrq { srq, .. } => Some(Object::Srq(*srq)),
            _ => None,
        }
    }
}

impl Answer {
    /// Returns the object that the command has made.
    pub fn made(&self) -> Option<Object> {
        match self {
            Answer::Pd(pd) => Some(Object::Pd(*pd)),
            Answer::Memory(mr, _) => Some(Object::Mr(*mr)),
            Answer::Window(window, _) => Some(Object::Window(*window)),
            Answer::Cq(cq) => Some(Object::Cq(*cq)),
            Answer::Qp(handle) => Some(Object::Qp(handle.index)),
            Answer::Ah(ah) => Some(Object::Ah(*ah)),
            Answer::Srq(srq, _) => Some(Object::Srq(*srq)),
            Answer::Xrcd(xrcd) => Some(Object::Xrcd(*xrcd)),
            Answer::Flow(flow) => Some(Object::Flow(*flow)),
            Answer::Done
            | Answer::Moving(_)
            | Answer::Key(_)
            | Answer::SrqStatus(_)
            | Answer::QpStatus(_)
            | Answer::QpLog(_)
            | Answer::Qps(_)
            | Answer::Heard(_) => None,
        }
    }
}
