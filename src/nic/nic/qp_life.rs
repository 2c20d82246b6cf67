//! Creation, transitions and destruction of queue pairs, and the objects that they use.

use super::command::{Answer, ControlError, QpHandle, QpStatus};
use super::log::QpLog;
use super::memory_command::ReceiveSource;
use super::object::ObjectKind;
use super::scheduler::Schedule;
use super::srq::{Receives, Srqs, check_sizes};
use super::{Nic, QpEntry, split};
use crate::congestion::LastNotification;
use crate::shared::SendRing;
use crate::transport::send_queue::SendQueue;
use crate::transport::{Qp, QpConfig, door};
use crate::verbs::{
    CqIndex, PdId, QpAttr, QpCaps, QpIndex, QpInit, QpState, QpType, Qpn, SrqIndex, XrcdId, check_transition,
};
use roxie_base::limits::MAX_SGE;
use roxie_base::time::Nanos;

/// Objects that a QP uses.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Uses {
    pub(super) pd: Option<PdId>,
    pub(super) cqs: [Option<CqIndex>; 2],
    pub(super) srq: Option<SrqIndex>,
    pub(super) xrcd: Option<XrcdId>,
}

impl Uses {
    /// Returns the use of a protection domain and nothing else.
    pub(super) fn domain(pd: PdId) -> Uses {
        Uses { pd: Some(pd), ..Uses::default() }
    }
}

/// Returns the memory, in bytes, of a QP of these sizes: the NIC's copies of work requests.
pub fn memory_of_qp(caps: &QpCaps) -> u64 {
    let queue = SendQueue::size(caps.max_send_wr, caps.max_send_sge, caps.max_inline);
    (size_of::<QpEntry>() + queue) as u64
}

impl Nic {
    /// Returns the ring of a QP that sends nothing by work requests, and prepares the NIC's copy.
    pub(super) fn no_sends(&mut self) -> Result<SendRing, ControlError> {
        let ring = SendRing::new(1, 0, 0).map_err(|_| ControlError::NoMemory("QP"))?;
        self.spare = Some(SendQueue::new(1, 0, 0).map_err(|_| ControlError::NoMemory("QP"))?);
        Ok(ring)
    }

    /// Creates a QP with the prepared copy of its send queue, of the sizes of `init`.
    pub(super) fn create_qp(
        &mut self,
        pd: PdId,
        (send_cq, recv_cq): (CqIndex, CqIndex),
        init: QpInit,
        sends: SendRing,
        receives: ReceiveSource,
    ) -> Result<Answer, ControlError> {
        if init.qp_type == QpType::RawPacket && self.longest_frame.is_none() {
            return Err(ControlError::NoRawPackets);
        }
        //= IBTA 10.2.4: gsi-has-its-number-and-key
        if init.qp_type == QpType::Gsi && !self.gsis.has_room(self.config.serves) {
            return Err(ControlError::Taken("QP1"));
        }
        self.cqs.check(send_cq)?;
        self.cqs.check(recv_cq)?;
        let mut uses = Uses { pd: Some(pd), cqs: [Some(send_cq), Some(recv_cq)], ..Uses::default() };
        let mut config = QpConfig {
            index: QpIndex(0),
            qpn: Qpn::default(),
            pd,
            send_cq,
            recv_cq,
            init,
            srq_pd: None,
            profile: self.config.profile,
            ack_requests: self.config.ack_requests(),
        };
        let receives = match (init.qp_type, receives) {
            (QpType::XrcSend, ReceiveSource::None) => Receives::None,
            (QpType::XrcSend | QpType::XrcRecv, _) | (_, ReceiveSource::None) => {
                return Err(ControlError::Receives(init.qp_type));
            }
            (_, ReceiveSource::Own(ring)) => {
                check_sizes(ring.capacity(), ring.max_sge())?;
                (config.init.caps.max_recv_wr, config.init.caps.max_recv_sge) =
                    (ring.capacity(), ring.max_sge());
                Receives::Own(ring, 0)
            }
            (_, ReceiveSource::Shared(srq)) => {
                let (srq_pd, capacity, max_sge) = self.srqs.for_qp(srq)?;
                config.srq_pd = Some(srq_pd);
                (config.init.caps.max_recv_wr, config.init.caps.max_recv_sge) = (capacity, max_sge);
                uses.srq = Some(srq);
                Receives::Shared(srq)
            }
        };
        self.insert_qp(&config, uses, sends, receives)
    }

    pub(super) fn create_xrc_target(&mut self, xrcd: XrcdId) -> Result<Answer, ControlError> {
        // The protection domain and completion queue are the ones of the SRQ that each request names.
        let (pd, cq) = (PdId(u32::MAX), CqIndex(u32::MAX));
        let caps = QpCaps { max_recv_sge: MAX_SGE as u32, ..QpCaps::NONE };
        let config = QpConfig {
            index: QpIndex(0),
            qpn: Qpn::default(),
            pd,
            send_cq: cq,
            recv_cq: cq,
            init: QpInit { qp_type: QpType::XrcRecv, caps, sq_sig_all: false },
            srq_pd: Some(pd),
            profile: self.config.profile,
            ack_requests: self.config.ack_requests(),
        };
        // No work request is posted to a target.
        let sends = self.no_sends()?;
        let uses = Uses { xrcd: Some(xrcd), ..Uses::default() };
        self.insert_qp(&config, uses, sends, Receives::Named(xrcd, None))
    }

    pub(super) fn insert_qp(
        &mut self,
        config: &QpConfig,
        uses: Uses,
        sends: SendRing,
        receives: Receives,
    ) -> Result<Answer, ControlError> {
        let reserved = (config.init.qp_type == QpType::Gsi).then_some(Qpn::GSI.value());
        let (mig_req, credits) = (self.config.mig_req, self.config.end_to_end_credits);
        self.count_uses(&uses, 1)?;
        let mut queue = self.spare.take();
        let made = self.qps.insert_with(reserved, |index, number| {
            let config = QpConfig { index: QpIndex(index), qpn: Qpn::new(number), ..*config };
            let mut qp = Qp::new(&config, queue.take().expect("prepared"));
            qp.configure(mig_req, credits);
            QpEntry {
                qp,
                sends,
                receives,
                rss: None,
                in_tables: 0,
                uses,
                fetched: 0,
                retired: 0,
                schedule: Schedule::new(QpIndex(index)),
                capable: false,
                notification_due: false,
                has_received: false,
                has_probed: false,
                last_notification: LastNotification::default(),
                own_control: None,
                share: None,
                flushing: false,
                last_ip_id: 0,
                refused_ip_id: 0,
                parked: None,
                client: None,
                log: QpLog::new(),
            }
        });
        let Some(index) = made else {
            self.spare = queue;
            self.count_uses(&uses, -1)?;
            return Err(ControlError::Full { object: ObjectKind::QueuePair, limit: self.config.limits.qps });
        };
        if reserved.is_some() {
            self.gsis.add(QpIndex(index));
        }
        let entry = self.qps.get(index).expect("just inserted");
        self.expected_frames += entry.expected_frames(self.config.limits.window);
        let qpn = entry.qp.qpn;
        Ok(Answer::Qp(QpHandle { index: QpIndex(index), qpn }))
    }

    /// Adds `change`, 1 or -1, to the user counts of a QP's objects. The completion queues and shared receive queues
    /// are known to exist.
    fn count_uses(&mut self, uses: &Uses, change: i32) -> Result<(), ControlError> {
        if let Some(pd) = uses.pd {
            self.pds.use_pd(pd, change)?;
        }
        if let Some(xrcd) = uses.xrcd {
            self.srqs.xrcds.use_xrcd(xrcd, change)?;
        }
        if let Some(srq) = uses.srq {
            self.srqs.use_srq(srq, change);
        }
        for cq in uses.cqs.into_iter().flatten() {
            self.cqs.use_cq(cq, change)?;
        }
        Ok(())
    }

    pub(super) fn modify_qp(
        &mut self,
        now: Nanos,
        index: QpIndex,
        attr: &QpAttr,
    ) -> Result<Answer, ControlError> {
        let largest = self.config.largest_mtu;
        let limit = self.config.limits.rd_atomic;
        let entry = self.qps.get_mut(index.0).ok_or(ControlError::NotFound(ObjectKind::QueuePair))?;
        if entry.rss.is_some() {
            return Err(ControlError::WrongKind(
                "a QP that spreads frames over others has no state of its own: modify those",
            ));
        }
        let from = entry.qp.state();
        let is_parked = entry.parked.is_some();
        let checked = check_transition(entry.qp.qp_type, from, attr, largest, limit);
        //= IBTA 11.2.5.2: refused-transition-changes-nothing
        let next = checked.inspect_err(|_| entry.log.note_refusal(now, from, attr.state.unwrap_or(from)))?;
        let mut attr = *attr;
        if self.config.assumes_selective_repeat && next == QpState::Rtr {
            attr.selective_repeat = attr.selective_repeat.or(Some(true));
        }
        let attr = &attr;
        split!(self, now, entry => qp, ctx);
        door::modify(qp, &mut ctx, attr, next);
        entry.notification_due &= next != QpState::Reset;
        if next == QpState::Reset {
            entry.sends.reset();
            entry.receives.reset();
            entry.fetched = 0;
            entry.retired = 0;
            entry.flushing = false;
        }
        if is_parked && matches!(next, QpState::Reset | QpState::Err) {
            self.parking.await_qp(&mut self.qps, index);
        }
        let Some(entry) = self.qps.get_mut(index.0) else { return Ok(Answer::Done) };
        // A reset QP has lost its shared rate.
        let is_reset = next == QpState::Reset && entry.share.is_some();
        if attr.av.is_some() || attr.rate_limit.is_some() || is_reset {
            self.reclassify(index);
            self.apply_control(now, index);
        }
        // Fetch requests posted before the QP accepted sends, or while it drained.
        self.fetch(now, index);
        self.mark_changed(index);
        Ok(Answer::Done)
    }

    /// Frees a QP. No other function does: errors, RESET and the connection manager leave it in its slot. The next QP
    /// in the slot has another number and another name.
    ///
    /// Neither its state nor outstanding work matters, but no RSS table may hold the QP. Commands run at the start of a
    /// pass, when no transmit slot and no planned copy is left of the pass before. Batches of copies that are out may
    /// name the QP; its generation tells that it is gone.
    pub(super) fn destroy_qp(&mut self, index: QpIndex) -> Result<Answer, ControlError> {
        let users = self.qps.get(index.0).ok_or(ControlError::NotFound(ObjectKind::QueuePair))?.in_tables;
        if users > 0 {
            return Err(ControlError::Busy { object: ObjectKind::QueuePair, users });
        }
        invariant!(!self.dma.is_planned(), "a QP is destroyed while its frames are gathered");
        self.parking.await_qp(&mut self.qps, index);
        //= IBTA 10.3.1: qp-that-is-destroyed-is-gone
        let mut entry = self.qps.remove(index.0).ok_or(ControlError::NotFound(ObjectKind::QueuePair))?;
        self.expected_frames -= entry.expected_frames(self.config.limits.window);
        self.parking.forget(&mut entry);
        self.spare = Some(entry.qp.take_send_queue());
        for member in entry.rss.iter().flat_map(|rss| &rss.table) {
            if let Some(member) = self.qps.get_mut(member.0) {
                member.in_tables -= 1;
            }
        }
        self.flows.remove_of(index);
        self.gsis.remove(index);
        self.detach_from_all(index);
        self.memory.release_windows(index);
        self.scheduler.remove(&entry.schedule);
        self.count_uses(&entry.uses, -1)?;
        Ok(Answer::Done)
    }
}

impl Nic {
    /// Takes the memory of the QP that was destroyed last, to free it outside the worker.
    pub fn take_spare(&mut self) -> Option<SendQueue> {
        self.spare.take()
    }

    /// Returns the status of a QP as of its last packet, without a command. `None`: there is no such QP.
    pub fn qp_status(&self, qp: QpIndex) -> Option<QpStatus> {
        self.qps.get(qp.0).filter(|_| self.qps.holds(qp.0)).map(|entry| entry.status())
    }
}

impl QpEntry {
    /// Returns the number of frames that peers may send to the QP before they wait: `window` if frames are
    /// acknowledged. Other peers do not wait, and the QP is to get as many frames as it has room for receives, at
    /// least. A shared receive queue counts with its size when the QP was made.
    pub(super) fn expected_frames(&self, window: u32) -> usize {
        let frames = match self.qp.qp_type {
            QpType::Gsi => 0,
            QpType::Ud | QpType::Uc | QpType::RawPacket => self.qp.caps.max_recv_wr.max(window),
            QpType::Rc | QpType::XrcSend | QpType::XrcRecv => window,
        };
        frames as usize
    }

    /// Asserts that the QP and the NIC's state of it agree, in debug builds.
    #[inline(always)]
    pub(super) fn assert_invariants(&self) {
        if cfg!(debug_assertions) {
            let (head, fetched, parked) = (self.qp.send_head(), self.fetched, self.parked.is_some());
            invariant!(head == fetched, "{fetched} work requests are fetched, the QP has {head}");
            invariant!(self.qp.is_parked() == parked, "only one of QP and NIC waits for copies");
            let has_failed = self.qp.state() == QpState::Err;
            invariant!(has_failed || !self.flushing, "a QP in {:?} is flushed", self.qp.state());
            let is_connected = self.qp.qp_type.is_connected();
            invariant!(is_connected || !self.notification_due, "a {:?} QP is to notify", self.qp.qp_type);
        }
    }

    /// True if [`Nic::fetch`] has work requests or receives to flush.
    #[inline]
    pub(super) fn needs_flush(&self, srqs: &Srqs) -> bool {
        self.qp.has_sends_to_flush() || (self.qp.flushes_receives() && self.receives.available(srqs) > 0)
    }

    pub(super) fn status(&self) -> QpStatus {
        let qp = &self.qp;
        let (sq_psn, rq_psn) = qp.psns();
        let mut caps = qp.caps;
        if !matches!(self.receives, Receives::Own(..)) {
            (caps.max_recv_wr, caps.max_recv_sge) = (0, 0);
        }
        QpStatus {
            handle: QpHandle { index: qp.index, qpn: qp.qpn },
            qp_type: qp.qp_type,
            state: qp.state(),
            attributes: *qp.attributes(),
            caps,
            sq_sig_all: qp.sig_all,
            draining: qp.is_draining(),
            srq: self.uses.srq,
            sq_psn,
            rq_psn,
            control: qp.pacing().state(),
        }
    }
}
