//! Executes control commands. Commands for queue pairs are in [`qp_life`](super::qp_life).

use std::ops::Range;
use std::sync::Arc;

use super::command::{Answer, Command, ControlError, ObjectCounts, send_queue_of};
use super::memory_command::MemoryCommand;
use super::object::{Object, ObjectKind};
use super::{Nic, QpEntry};
use crate::congestion::{Settings, SharedRate};
use crate::shared::SharedReceives;
use crate::transport::memory::{MemoryName, RegionStatus};
use crate::verbs::{AddressVector, PdId, QpIndex, SrqInit};
use roxie_base::time::Nanos;

impl Nic {
    /// Executes a command between two bursts.
    ///
    /// # Errors
    /// Why the command failed. A failed command changes nothing.
    pub fn execute(&mut self, now: Nanos, mut command: Command) -> Result<Answer, ControlError> {
        self.spare = if let Command::CreatePrepared(_, queue) = &mut command { queue.take() } else { None };
        self.parking.await_nothing();
        invariant!(!self.dma.is_planned(), "a command runs while frames are gathered");
        invariant!(!self.scheduler.is_urgent_turn(), "a command runs in an urgent turn");
        self.check_names(&command)?;
        match command {
            Command::AllocPd => self.pds.open().map(Answer::Pd),
            Command::DeallocPd(pd) => self.pds.close(pd).map(|()| Answer::Done),
            Command::DeregisterMemory(mr) => self.deregister(mr),
            Command::ReleaseMemory(mr) => {
                self.memory.unbind_windows(mr);
                self.deregister(mr)
            }
            Command::AllocWindow { pd, kind } => self.alloc_window(pd, kind),
            Command::NextWindowKey(window) => self.next_window_key(window),
            Command::FreeWindow(window) => self.free_window(window),
            Command::ModerateCq { cq, count, period } => self.cqs.moderate(cq, count, period),
            Command::DestroyCq(cq) => self.cqs.destroy(cq),
            Command::CreateRssQp(pd, rss) => self.create_rss_qp(pd, rss),
            Command::CreateXrcTarget(xrcd) => self.create_xrc_target(xrcd),
            Command::JoinSrq(pd, kind, receives) => self.create_srq(pd, SrqInit { kind, limit: 0 }, receives),
            Command::QuerySrq(srq) => self.query_srq(srq),
            Command::DestroySrq(srq) => self.destroy_srq(srq),
            Command::OpenXrcd(open) => self.srqs.xrcds.open(open, self.config.limits.xrcds),
            Command::CloseXrcd(xrcd) => self.srqs.xrcds.close(xrcd),
            Command::ModifyQp(qp, attr) => self.modify_qp(now, qp, &attr),
            Command::SetQpControl(qp, settings) => self.set_qp_control(now, qp, settings),
            Command::ShareRate(qp, share) => self.share_rate(now, qp, share),
            Command::SetClient(qp, memory) => {
                self.qp_entry(qp)?.client = Some(memory);
                Ok(Answer::Done)
            }
            Command::AddQpnUnit(unit) => {
                let is_free = self.qps.add_unit(unit);
                is_free.then_some(Answer::Done).ok_or(ControlError::Taken("QPNs"))
            }
            Command::RouteGsi(qp, routes) => self.route_gsi(qp, *routes).map(|()| Answer::Done),
            Command::SetCongestion(config) => {
                self.set_congestion(now, *config);
                Ok(Answer::Done)
            }
            Command::SetGids(gids) => self.set_gids(now, gids),
            Command::QueryQp(qp) => self.query_qp(now, qp),
            Command::QueryLog(qp) => Ok(Answer::QpLog(self.qp_entry(qp)?.log.records())),
            Command::ExamineQp(qp, probes) => self.examine_qp(qp, probes),
            Command::DestroyQp(qp) => self.destroy_qp(qp),
            Command::CreateAh(pd, av) => self.create_ah(pd, &av),
            Command::DestroyAh(ah) => {
                let pd = self.handles.destroy(ah).ok_or(ControlError::NotFound(ObjectKind::AddressHandle))?;
                self.pds.use_pd(pd, -1)?;
                Ok(Answer::Done)
            }
            Command::AttachMulticast(qp, gid) => self.attach_multicast(qp, gid),
            Command::DetachMulticast(qp, gid) => self.detach_multicast(qp, gid),
            Command::CreateFlow(qp, rule) => self.create_flow(qp, *rule),
            Command::DestroyFlow(flow) => self.destroy_flow(flow),
            Command::ListQps => Ok(Answer::Qps(self.qps.iter().map(|(_, e)| e.status()).collect())),
            Command::Memory(command) => self.execute_with_memory(*command),
            Command::CreatePrepared(command, _) => self.execute_with_memory(*command),
        }
    }

    /// Returns the entry of a QP.
    ///
    /// # Errors
    /// If there is no such QP.
    fn qp_entry(&mut self, qp: QpIndex) -> Result<&mut QpEntry, ControlError> {
        self.qps.get_mut(qp.0).ok_or(ControlError::NotFound(ObjectKind::QueuePair))
    }

    fn set_qp_control(
        &mut self,
        now: Nanos,
        qp: QpIndex,
        settings: Option<Box<Settings>>,
    ) -> Result<Answer, ControlError> {
        self.qp_entry(qp)?.own_control = settings;
        self.apply_control(now, qp);
        Ok(Answer::Done)
    }

    fn share_rate(&mut self, now: Nanos, qp: QpIndex, share: SharedRate) -> Result<Answer, ControlError> {
        self.qp_entry(qp)?.share = Some(share);
        self.apply_control(now, qp);
        Ok(Answer::Done)
    }

    fn query_qp(&mut self, now: Nanos, qp: QpIndex) -> Result<Answer, ControlError> {
        let entry = self.qp_entry(qp)?;
        entry.qp.pacing_mut().evaluate(now);
        let status = entry.status();
        // The rate may have risen, so held packets may be due earlier.
        if status.control.is_some() {
            self.mark_changed(qp);
        }
        Ok(Answer::QpStatus(Box::new(status)))
    }

    fn examine_qp(&mut self, qp: QpIndex, probes: bool) -> Result<Answer, ControlError> {
        let entry = self.qps.get_mut(qp.0).ok_or(ControlError::NotFound(ObjectKind::QueuePair))?;
        // A QP that waits for copies neither asks nor hears.
        let has_received = std::mem::take(&mut entry.has_received) || entry.parked.is_some();
        entry.has_probed = probes && !has_received && entry.qp.probe_peer();
        if entry.has_probed {
            self.scheduler.mark_changed(&mut entry.schedule);
        }
        Ok(Answer::Heard(has_received))
    }

    /// Checks that no other object here uses an object, which is to be removed.
    ///
    /// # Errors
    /// If one does.
    pub fn check_unused(&self, object: Object) -> Result<(), ControlError> {
        match object {
            Object::Pd(pd) => self.pds.check_unused(pd),
            Object::Cq(cq) => self.cqs.check_unused(cq),
            Object::Srq(srq) => self.srqs.check_unused(srq),
            Object::Xrcd(xrcd) => self.srqs.xrcds.check_unused(xrcd),
            _ => Ok(()),
        }
    }

    fn execute_with_memory(&mut self, command: MemoryCommand) -> Result<Answer, ControlError> {
        match command {
            MemoryCommand::RegisterMemory { pd, access, start, memory } => {
                self.register(pd, access, start, memory)
            }
            MemoryCommand::ReregisterMemory { mr, pd, access, translation } => {
                self.reregister(mr, pd, access, translation)
            }
            MemoryCommand::AllocFastMemory { pd, memory, pages } => self.alloc_fast(pd, memory, pages),
            MemoryCommand::CreateCq { ring, notify } => self.cqs.create(ring, notify),
            MemoryCommand::ResizeCq { cq, ring } => self.cqs.resize(cq, ring),
            MemoryCommand::CreateSrq { pd, init, ring } => {
                self.create_srq(pd, init, Arc::new(SharedReceives::new(ring)))
            }
            MemoryCommand::ModifySrq { srq, ring, limit } => self.modify_srq(srq, ring, limit),
            MemoryCommand::CreateQp { pd, send_cq, recv_cq, init, sends, receives } => {
                if self.spare.is_none() {
                    self.spare = Some(send_queue_of(&init.caps)?);
                }
                self.create_qp(pd, (send_cq, recv_cq), init, sends, receives)
            }
        }
    }

    /// Adds the names of the QPs, memory regions and memory windows in a range of the tables' slots. False: the range
    /// is beyond the last slot of each table.
    pub fn names(&self, places: Range<u32>, to: &mut Vec<Object>) -> bool {
        let qps = places.start..places.end.min(self.qps.places());
        let qps = qps.filter(|place| self.qps.get(*place).is_some());
        to.extend(qps.map(|place| Object::Qp(QpIndex(self.qps.name_at(place)))));
        to.extend(self.memory.names(places.start as usize..places.end as usize).map(|name| match name {
            MemoryName::Region(mr) => Object::Mr(mr),
            MemoryName::Window(window) => Object::Window(window),
        }));
        places.start < self.qps.places() || (places.start as usize) < self.memory.places()
    }

    /// Returns the status of a memory region or window. `None`: there is none of this name.
    pub fn memory_status(&self, object: Object) -> Option<RegionStatus> {
        match object {
            Object::Mr(mr) => self.memory.status(MemoryName::Region(mr)),
            Object::Window(window) => self.memory.status(MemoryName::Window(window)),
            _ => None,
        }
    }

    /// Returns the numbers of objects.
    pub fn objects(&self) -> ObjectCounts {
        let (srqs, xrcds) = self.srqs.counts();
        ObjectCounts {
            pds: self.pds.len(),
            cqs: self.cqs.len(),
            qps: self.qps.len(),
            srqs,
            xrcds,
            memory: self.memory.len(),
            handles: self.handles.len(),
            flows: self.flows.len(),
        }
    }

    fn create_ah(&mut self, pd: PdId, av: &AddressVector) -> Result<Answer, ControlError> {
        if av.sl > 7 {
            return Err(ControlError::TooLarge { what: "sl", value: av.sl.into(), limit: 7 });
        }
        self.pds.use_pd(pd, 1)?;
        let classes = &self.congestion.config.classes;
        self.scheduler.reserve(classes.priority(av), self.qps.places());
        match self.handles.create(pd, av, self.congestion.tag(av)) {
            Some(ah) => Ok(Answer::Ah(ah)),
            None => {
                self.pds.use_pd(pd, -1)?;
                Err(ControlError::Full { object: ObjectKind::AddressHandle, limit: self.handles.bound() })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{NicConfig, ReceiveSource};
    use super::*;
    use crate::shared::{RecvRing, SendRing};
    use crate::verbs::{CqIndex, QpCaps, QpInit, QpType};

    /// Freeing the memory takes milliseconds, which are not a pass's.
    #[test]
    fn refused_qp_returns_its_prepared_queue() {
        let mut nic = Nic::new(NicConfig::default());
        let init = QpInit { qp_type: QpType::Rc, caps: QpCaps::default(), sq_sig_all: true };
        let command = MemoryCommand::CreateQp {
            pd: PdId(7),
            send_cq: CqIndex(7),
            recv_cq: CqIndex(7),
            init,
            sends: SendRing::new(1, 1, 0).expect("memory"),
            receives: ReceiveSource::Own(RecvRing::new(1, 1).expect("memory")),
        };
        let prepared = Command::from(command).prepare().expect("memory");
        nic.execute(Nanos::ZERO, prepared).expect_err("unknown objects");
        assert!(nic.take_spare().is_some());
    }
}
