//! Checks the object names in a command before it is executed.
//!
//! Threads and client processes send commands without knowing of one another's. When a name arrives, its object may be
//! gone, and another one in its slot. [`Nic::execute`](super::Nic::execute) checks the names of all commands here.

use super::Nic;
use super::command::{Command, ControlError};
use super::object::Object;

impl Nic {
    /// # Errors
    /// [`ControlError::NotFound`] if an object that the command names is gone.
    pub(super) fn check_names(&self, command: &Command) -> Result<(), ControlError> {
        command.each_object(|object| {
            let is_there = match object {
                Object::Pd(pd) => self.pds.holds(pd),
                Object::Mr(mr) => self.memory.has_region(mr),
                Object::Window(window) => self.memory.has_window(window),
                Object::Cq(cq) => self.cqs.holds(cq),
                Object::Srq(srq) => self.srqs.holds(srq),
                Object::Xrcd(xrcd) => self.srqs.xrcds.holds(xrcd),
                Object::Qp(qp) => self.qps.holds(qp.0),
                // Address handles have generations of their own, and flow numbers are not reused.
                Object::Ah(_) | Object::Flow(_) => true,
            };
            if is_there { Ok(()) } else { Err(ControlError::NotFound(object.kind())) }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Answer, MemoryCommand, NicConfig, ReceiveSource};
    use super::*;
    use crate::shared::{CompletionRing, HostMemory, RecvRing, SendRing};
    use crate::verbs::{Access, MwType, OpenXrcd, QpCaps, QpInit, QpType, SrqInit};
    use roxie_base::limits::Limits;
    use roxie_base::time::Nanos;

    /// Returns a NIC with one slot for each kind of object.
    fn tight() -> Nic {
        let limits = Limits { qps: 1, cqs: 1, mrs: 1, srqs: 1, xrcds: 1, ..Limits::small() };
        Nic::new(NicConfig { limits, ..NicConfig::default() })
    }

    fn run(nic: &mut Nic, command: impl Into<Command>) -> Result<Answer, ControlError> {
        nic.execute(Nanos(1), command.into())
    }

    /// Makes an object, destroys it, and makes another: the first name must then be refused.
    fn check<C: Into<Command>>(nic: &mut Nic, make: impl Fn() -> C, destroy: impl Fn(&Answer) -> Command) {
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
        let register =
            || MemoryCommand::RegisterMemory { pd, access: Access::empty(), start: 0, memory: memory() };
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
            || MemoryCommand::CreateCq { ring: ring(), notify: None },
            |made| match made {
                Answer::Cq(cq) => Command::DestroyCq(*cq),
                other => panic!("{other:?}"),
            },
        );
        let receives = || RecvRing::new(4, 1).expect("memory");
        let srq = || MemoryCommand::CreateSrq { pd, init: SrqInit::default(), ring: receives() };
        check(&mut nic, srq, |made| match made {
            Answer::Srq(srq, _) => Command::DestroySrq(*srq),
            other => panic!("{other:?}"),
        });
        let made = run(&mut nic, MemoryCommand::CreateCq { ring: ring(), notify: None });
        let Ok(Answer::Cq(cq)) = made else { panic!("{made:?}") };
        let init =
            QpInit { qp_type: QpType::Rc, caps: QpCaps { max_recv_wr: 4, ..QpCaps::NONE }, sq_sig_all: true };
        let qp = || {
            let sends = SendRing::new(1, 0, 0).expect("memory");
            let receives = ReceiveSource::Own(receives());
            MemoryCommand::CreateQp { pd, send_cq: cq, recv_cq: cq, init, sends, receives }
        };
        check(&mut nic, qp, |made| match made {
            Answer::Qp(handle) => Command::DestroyQp(handle.index),
            other => panic!("{other:?}"),
        });
        assert_eq!(nic.inconsistency(), None);
    }
}
