//! The names in a command, checked before anything is done.
//!
//! Commands come from threads, and processes, that do not see what others ask for meanwhile: an object may be gone by the time its name
//! arrives, and another one in its place. [`Nic::execute`](super::Nic::execute) is the only way in, and what it is given passes here.

use super::Nic;
use super::command::{Command, ControlError, ReceiveSource};
use super::cq::CQ;
use super::memory::{REGION, WINDOW};
use super::srq::{SRQ, XRCD};
use crate::verbs::{CqIndex, MrIndex, PdId, QpIndex, SrqIndex, SrqKind, XrcdId};

/// # Errors
/// [`ControlError::NotFound`], unless the object is there.
pub(crate) fn found(is_there: bool, object: &'static str) -> Result<(), ControlError> {
    if is_there { Ok(()) } else { Err(ControlError::NotFound(object)) }
}

impl Nic {
    /// # Errors
    /// [`ControlError::NotFound`] if an object that the command names is gone.
    pub(super) fn check_names(&self, command: &Command) -> Result<(), ControlError> {
        match command {
            Command::DeallocPd(pd)
            | Command::AllocWindow { pd, .. }
            | Command::CreateAh(pd, _)
            | Command::RegisterMemory { pd, .. }
            | Command::AllocFastMemory { pd, .. } => self.pd_is_there(*pd),
            Command::DeregisterMemory(mr) | Command::ReleaseMemory(mr) => self.mr_is_there(*mr),
            Command::ReregisterMemory { mr, pd, .. } => {
                self.mr_is_there(*mr)?;
                pd.map_or(Ok(()), |pd| self.pd_is_there(pd))
            }
            Command::NextWindowKey(window) | Command::FreeWindow(window) => {
                found(self.memory.has_window(*window), WINDOW)
            }
            Command::ModerateCq { cq, .. } | Command::DestroyCq(cq) | Command::ResizeCq { cq, .. } => {
                self.cq_is_there(*cq)
            }
            Command::QuerySrq(srq) | Command::DestroySrq(srq) | Command::ModifySrq { srq, .. } => {
                self.srq_is_there(*srq)
            }
            Command::CreateSrq { pd, init, .. } => {
                if let SrqKind::Xrc { xrcd, cq } = init.kind {
                    self.cq_is_there(cq)?;
                    self.xrcd_is_there(xrcd)?;
                }
                self.pd_is_there(*pd)
            }
            Command::CloseXrcd(xrcd) | Command::CreateXrcTarget(xrcd) => self.xrcd_is_there(*xrcd),
            Command::CreateQp { pd, send_cq, recv_cq, receives, .. } => {
                self.pd_is_there(*pd)?;
                self.cq_is_there(*send_cq)?;
                self.cq_is_there(*recv_cq)?;
                match receives {
                    ReceiveSource::Shared(srq) => self.srq_is_there(*srq),
                    ReceiveSource::Own(_) | ReceiveSource::None => Ok(()),
                }
            }
            Command::CreateRssQp(pd, rss) => {
                self.pd_is_there(*pd)?;
                rss.table.iter().try_for_each(|qp| self.qp_is_there(*qp))
            }
            Command::ModifyQp(qp, _)
            | Command::SetQpControl(qp, _)
            | Command::ShareRate(qp, _)
            | Command::RouteGsi(qp, _)
            | Command::QueryQp(qp)
            | Command::QueryLog(qp)
            | Command::DestroyQp(qp)
            | Command::AttachMulticast(qp, _)
            | Command::DetachMulticast(qp, _)
            | Command::CreateFlow(qp, _) => self.qp_is_there(*qp),
            // Numbers of handles have generations of their own, and numbers of flows are not used again.
            Command::DestroyAh(_) | Command::DestroyFlow(_) => Ok(()),
            Command::AllocPd
            | Command::OpenXrcd(_)
            | Command::AddQpnUnit(_)
            | Command::ListQps
            | Command::CreateCq { .. }
            | Command::SetCongestion(_) => Ok(()),
        }
    }

    fn pd_is_there(&self, pd: PdId) -> Result<(), ControlError> {
        found(self.pds.holds(pd.0), "protection domain")
    }

    fn mr_is_there(&self, mr: MrIndex) -> Result<(), ControlError> {
        found(self.memory.has_region(mr), REGION)
    }

    fn cq_is_there(&self, cq: CqIndex) -> Result<(), ControlError> {
        found(self.cqs.holds(cq.0), CQ)
    }

    fn srq_is_there(&self, srq: SrqIndex) -> Result<(), ControlError> {
        found(self.srqs.holds(srq), SRQ)
    }

    fn xrcd_is_there(&self, xrcd: XrcdId) -> Result<(), ControlError> {
        found(self.srqs.holds_xrcd(xrcd), XRCD)
    }

    fn qp_is_there(&self, qp: QpIndex) -> Result<(), ControlError> {
        found(self.qps.holds(qp.0), "QP")
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Answer, NicConfig};
    use super::*;
    use crate::limits::Limits;
    use crate::shared::{CompletionRing, HostMemory, RecvRing, SendRing};
    use crate::time::Nanos;
    use crate::verbs::{Access, MwType, OpenXrcd, QpCaps, QpInit, QpType, SrqInit};

    /// A NIC with one place for each kind of object.
    fn tight() -> Nic {
        let limits = Limits { qps: 1, cqs: 1, mrs: 1, srqs: 1, xrcds: 1, ..Limits::small() };
        Nic::new(NicConfig { limits, ..NicConfig::default() })
    }

    fn run(nic: &mut Nic, command: Command) -> Result<Answer, ControlError> {
        nic.execute(Nanos(1), command)
    }

    /// Makes one, destroys it, makes the next: the name of the first destroys nothing.
    fn check(nic: &mut Nic, make: impl Fn() -> Command, destroy: impl Fn(&Answer) -> Command) {
        let first = run(nic, make()).expect("a place");
        run(nic, destroy(&first)).expect("it is there");
        let second = run(nic, make()).expect("the same place");
        let refused = run(nic, destroy(&first));
        assert!(matches!(refused, Err(ControlError::NotFound(_))), "{first:?}, {second:?}: {refused:?}");
        run(nic, destroy(&second)).expect("it is there still");
    }

    #[test]
    fn stale_names_destroy_nothing() {
        let mut nic = tight();
        check(
            &mut nic,
            || Command::AllocPd,
            |made| match made {
                Answer::Pd(pd) => Command::DeallocPd(*pd),
                other => panic!("{other:?}"),
            },
        );
        let Ok(Answer::Pd(pd)) = run(&mut nic, Command::AllocPd) else { panic!("a domain") };
        let memory = || HostMemory::allocate(64).expect("memory");
        let register = || Command::RegisterMemory { pd, access: Access::empty(), start: 0, memory: memory() };
        check(&mut nic, register, |made| match made {
            Answer::Memory(mr, _) => Command::DeregisterMemory(*mr),
            other => panic!("{other:?}"),
        });
        check(
            &mut nic,
            || Command::AllocWindow { pd, kind: MwType::Two },
            |made| match made {
                Answer::Window(window, _) => Command::FreeWindow(*window),
                other => panic!("{other:?}"),
            },
        );
        check(
            &mut nic,
            || Command::OpenXrcd(OpenXrcd::default()),
            |made| match made {
                Answer::Xrcd(xrcd) => Command::CloseXrcd(*xrcd),
                other => panic!("{other:?}"),
            },
        );
        let ring = || CompletionRing::new(4).expect("memory");
        check(
            &mut nic,
            || Command::CreateCq { ring: ring(), notify: None },
            |made| match made {
                Answer::Cq(cq) => Command::DestroyCq(*cq),
                other => panic!("{other:?}"),
            },
        );
        let receives = || RecvRing::new(4, 1).expect("memory");
        let srq = || Command::CreateSrq { pd, init: SrqInit::default(), ring: receives() };
        check(&mut nic, srq, |made| match made {
            Answer::Srq(srq, _) => Command::DestroySrq(*srq),
            other => panic!("{other:?}"),
        });
        let made = run(&mut nic, Command::CreateCq { ring: ring(), notify: None });
        let Ok(Answer::Cq(cq)) = made else { panic!("{made:?}") };
        let init =
            QpInit { qp_type: QpType::Rc, caps: QpCaps { max_recv_wr: 4, ..QpCaps::NONE }, sq_sig_all: true };
        let qp = || {
            let sends = SendRing::new(1, 0, 0).expect("memory");
            let receives = ReceiveSource::Own(receives());
            Command::CreateQp { pd, send_cq: cq, recv_cq: cq, init, sends, receives }
        };
        check(&mut nic, qp, |made| match made {
            Answer::Qp(handle) => Command::DestroyQp(handle.index),
            other => panic!("{other:?}"),
        });
        assert_eq!(nic.disagreement(), None);
    }
}
