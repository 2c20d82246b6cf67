//! The NIC's flows, which steer frames of other protocols to raw packet QPs (`ibv_create_flow`).

use super::command::{Answer, ControlError};
use super::object::ObjectKind;
use super::qp_life::Uses;
use super::srq::Receives;
use super::{Nic, RxFrame, RxOutcome, split};
use crate::transport::{AckRequestPolicy, QpConfig, Verdict};
use crate::verbs::{CqIndex, FlowId, FlowRule, PdId, QpCaps, QpIndex, QpInit, QpType, Qpn, Rss};
use roxie_base::flow::{FlowKey, FlowMatch, MAX_FLOWS};
use roxie_base::time::Nanos;

/// Maximum number of QPs in a table.
pub const MAX_TABLE: usize = 128;

/// The flows of a NIC, by priority number and then by age.
#[derive(Debug, Default)]
pub(super) struct Flows {
    flows: Vec<Flow>,
    next: u32,
    /// The port must be updated.
    changed: bool,
    /// The flow that this change added.
    added: Option<FlowId>,
}

#[derive(Debug)]
struct Flow {
    id: FlowId,
    qp: QpIndex,
    rule: FlowRule,
}

impl Flows {
    pub(super) fn is_empty(&self) -> bool {
        self.flows.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.flows.len()
    }

    /// Returns the QPs of all flows.
    pub(super) fn qps(&self) -> impl Iterator<Item = QpIndex> {
        self.flows.iter().map(|flow| flow.qp)
    }

    /// Removes the flows of a QP.
    pub(super) fn remove_of(&mut self, qp: QpIndex) {
        let before = self.flows.len();
        self.flows.retain(|flow| flow.qp != qp);
        self.changed |= self.flows.len() < before;
    }

    /// Returns the QP for the `copy`-th copy of a frame with this key. One copy goes to the first flow that matches,
    /// and one to each later flow with the same rule.
    fn taking(&self, key: &FlowKey, copy: usize) -> Option<QpIndex> {
        let first = self.flows.iter().position(|flow| flow.rule.matching.takes(key))?;
        let rule = self.flows[first].rule;
        self.flows[first..].iter().filter(|flow| flow.rule == rule).nth(copy).map(|flow| flow.qp)
    }
}

impl Nic {
    /// Sets the maximum length of raw packet QPs' frames, in bytes; `None`: the port carries no such frames.
    pub fn set_longest_frame(&mut self, longest: Option<usize>) {
        self.longest_frame = longest;
        self.congestion.carries_tags = longest.is_some();
        self.handles.set_tags(|av| self.congestion.tag(av));
    }

    /// Makes a QP without queues, which distributes frames steered to it over other QPs.
    pub(super) fn create_rss_qp(&mut self, pd: PdId, rss: Box<Rss>) -> Result<Answer, ControlError> {
        let size = rss.table.len();
        if !size.is_power_of_two() {
            return Err(ControlError::WrongKind("a table of queues holds a power of two of them"));
        }
        let limit = MAX_TABLE as u64;
        if size > MAX_TABLE {
            return Err(ControlError::TooLarge { what: "queues in a table", value: size as u64, limit });
        }
        for member in &rss.table {
            let entry = self.qps.get(member.0).ok_or(ControlError::NotFound(ObjectKind::QueuePair))?;
            if entry.qp.qp_type != QpType::RawPacket || entry.rss.is_some() {
                return Err(ControlError::WrongKind(
                    "a table of queues is one of raw packet QPs that have queues",
                ));
            }
        }
        let cq = CqIndex(u32::MAX);
        let config = QpConfig {
            index: QpIndex(0),
            qpn: Qpn::default(),
            pd,
            send_cq: cq,
            recv_cq: cq,
            init: QpInit { qp_type: QpType::RawPacket, caps: QpCaps::NONE, sq_sig_all: false },
            srq_pd: None,
            profile: None,
            ack_requests: AckRequestPolicy::Always,
        };
        // No work request is posted to this QP, which stays in RESET.
        let sends = self.no_sends()?;
        let made = self.insert_qp(&config, Uses::domain(pd), sends, Receives::None)?;
        for member in &rss.table {
            if let Some(entry) = self.qps.get_mut(member.0) {
                entry.in_tables += 1;
            }
        }
        if let Answer::Qp(handle) = &made
            && let Some(entry) = self.qps.get_mut(handle.index.0)
        {
            entry.rss = Some(rss);
        }
        Ok(made)
    }

    pub(super) fn create_flow(&mut self, qp: QpIndex, rule: FlowRule) -> Result<Answer, ControlError> {
        let entry = self.qps.get(qp.0).ok_or(ControlError::NotFound(ObjectKind::QueuePair))?;
        if entry.qp.qp_type != QpType::RawPacket {
            return Err(ControlError::NotRawPacket(entry.qp.qp_type));
        }
        let flows = &mut self.flows;
        if flows.flows.len() >= MAX_FLOWS {
            return Err(ControlError::Full { object: ObjectKind::Flow, limit: MAX_FLOWS as u32 });
        }
        let id = FlowId(flows.next);
        flows.next = flows.next.wrapping_add(1);
        let at = flows.flows.partition_point(|flow| flow.rule.priority <= rule.priority);
        flows.flows.insert(at, Flow { id, qp, rule });
        flows.changed = true;
        flows.added = Some(id);
        Ok(Answer::Flow(id))
    }

    pub(super) fn destroy_flow(&mut self, id: FlowId) -> Result<Answer, ControlError> {
        let flows = &mut self.flows;
        let at = flows
            .flows
            .iter()
            .position(|flow| flow.id == id)
            .ok_or(ControlError::NotFound(ObjectKind::Flow))?;
        flows.flows.remove(at);
        flows.changed = true;
        Ok(Answer::Done)
    }

    /// Returns the flows that the port is to steer, if they have changed, and the one that the change added.
    pub fn take_flow_change(&mut self) -> Option<(Vec<FlowMatch>, Option<FlowId>)> {
        let flows = &mut self.flows;
        let (changed, added) = (std::mem::take(&mut flows.changed), flows.added.take());
        changed.then(|| (flows.flows.iter().map(|flow| flow.rule.matching).collect(), added))
    }

    /// Removes a flow, since the port could not steer it.
    pub fn forget_flow(&mut self, id: FlowId) {
        self.flows.flows.retain(|flow| flow.id != id);
    }

    /// Receives a frame that is no RoCE packet, or an invalid one. `None`: no flow takes it.
    #[cold]
    pub(super) fn receive_steered(&mut self, now: Nanos, received: &RxFrame<'_>) -> Option<RxOutcome> {
        let key = FlowKey::of(&received.frame)?;
        let mut outcome = None;
        let mut taken = 0;
        while let Some(qp) = self.flows.taking(&key, taken)
            && let Some(verdict) = self.deliver_frame(now, self.spread(qp, &key), received)
        {
            taken += 1;
            outcome.get_or_insert(RxOutcome::Steered { qp, verdict });
        }
        self.counters.rx_steered += u64::from(outcome.is_some());
        outcome
    }

    /// Returns the QP that gets a frame steered to `qp`: itself, or one of its table.
    fn spread(&self, qp: QpIndex, key: &FlowKey) -> QpIndex {
        match self.qps.get(qp.0).and_then(|entry| entry.rss.as_ref()) {
            Some(rss) => rss.table[rss.hash.of(key) as usize & (rss.table.len() - 1)],
            None => qp,
        }
    }

    pub(super) fn deliver_frame(
        &mut self,
        now: Nanos,
        index: QpIndex,
        received: &RxFrame<'_>,
    ) -> Option<Verdict> {
        if self.config.serves
            && let Some(has_place) = self.parking.set_aside(&mut self.qps, index, received)
        {
            self.counters.rx_dropped_awaiting_copies += u64::from(!has_place);
            return Some(Verdict::AwaitsCopies { is_held: has_place });
        }
        let before = (self.out.dma_in.len(), self.out.completions.len());
        let entry = self.qps.get_mut(index.0)?;
        split!(self, now, entry => qp, ctx);
        let mut verdict = qp.handle_frame(&mut ctx, received.frame.len(), received.index);
        if std::mem::take(&mut self.out.may_fault)
            && !self.run_dma_from(Some(index), before.0, |_| received.frame)
        {
            let entry = self.qps.get_mut(index.0)?;
            split!(self, now, entry => qp, ctx);
            verdict = qp.frame_fault(&mut ctx, before.1);
        }
        if !verdict.is_routine()
            && let Some(entry) = self.qps.get_mut(index.0)
        {
            entry.log.note_frame(now, received.frame.len(), verdict);
        }
        self.mark_changed(index);
        Some(verdict)
    }
}
