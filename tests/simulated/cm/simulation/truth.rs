//! The oracle: records what happened, and rejects impossible results.

use std::collections::BTreeMap;

use roxie::cm::{LocalQp, Parameters};
use roxie::verbs::Qpn;
use roxie::wire::ServiceId;
use roxie::wire::cm::{Rej, RejReason};
use roxie::wire::service_id::RDMA_UDP_QKEY;

use super::world::{Climate, NOWHERE};

/// Parameters of a passive consumer's acceptance.
#[derive(Clone, Copy, Debug)]
pub struct Acceptance {
    pub qp: LocalQp,
    pub rnr_retry: u8,
    pub parameters: Parameters,
}

#[derive(Clone, Debug)]
struct Attempt {
    from: usize,
    to: usize,
    service: ServiceId,
    qp: LocalQp,
    /// Several, if the request was repeated after an end that the active side did not learn of.
    acceptances: Vec<Acceptance>,
    active_replied: Option<Parameters>,
    active_ready: bool,
    active_over: bool,
    active_withdrew: bool,
    passive_connected: bool,
    passive_gave_up: bool,
    passive_refusals: Vec<RejReason>,
}

/// Everything that consumers did, by attempt.
#[derive(Debug)]
pub struct Truth {
    climate: Climate,
    attempts: BTreeMap<u64, Attempt>,
    crashed: Vec<usize>,
    unreachable: Vec<(u64, bool)>,
}

impl Truth {
    pub fn new(climate: Climate) -> Truth {
        Truth { climate, attempts: BTreeMap::new(), crashed: Vec::new(), unreachable: Vec::new() }
    }

    fn of(&mut self, number: u64) -> &mut Attempt {
        self.attempts.get_mut(&number).unwrap_or_else(|| panic!("attempt {number} was not started"))
    }

    pub fn attempt(&mut self, from: usize, to: usize, service: ServiceId, qp: LocalQp) -> u64 {
        let number = self.attempts.len() as u64 + 1;
        let attempt = Attempt {
            from,
            to,
            service,
            qp,
            acceptances: Vec::new(),
            active_replied: None,
            active_ready: false,
            active_over: false,
            active_withdrew: false,
            passive_connected: false,
            passive_gave_up: false,
            passive_refusals: Vec::new(),
        };
        self.attempts.insert(number, attempt);
        number
    }

    pub fn crashed(&mut self, host: usize) {
        self.crashed.push(host);
        for attempt in self.attempts.values_mut().filter(|attempt| attempt.from == host) {
            attempt.active_over = true;
        }
    }

    pub fn was_offered(&mut self, number: u64, host: usize, qpn: Qpn) {
        let attempt = self.of(number);
        assert_eq!((attempt.to, attempt.qp.qpn), (host, qpn), "attempt {number} came to host {host}");
        assert!(attempt.service != NOWHERE);
    }

    pub fn accepted(&mut self, number: u64, acceptance: Acceptance) {
        let attempt = self.of(number);
        let p = &acceptance.parameters;
        assert_eq!((p.dest_qpn, p.sq_psn), (Some(attempt.qp.qpn), attempt.qp.psn), "attempt {number}");
        assert_eq!((p.rq_psn, p.peer_srq), (acceptance.qp.psn, attempt.qp.srq), "attempt {number}");
        attempt.acceptances.push(acceptance);
    }

    /// The active end must have the parameters of one of the acceptances, and both ends must agree on the others.
    pub fn replied(&mut self, number: u64, p: &Parameters) {
        let attempt = self.of(number);
        let accepted =
            attempt.acceptances.iter().find(|a| Some(a.qp.qpn) == p.dest_qpn && a.qp.psn == p.sq_psn);
        let Some(a) = accepted else { panic!("attempt {number}: not accepted with {p:?}") };
        let q = &a.parameters;
        assert_eq!((p.path_mtu, p.max_rd_atomic), (q.path_mtu, q.max_dest_rd_atomic), "attempt {number}");
        assert_eq!((p.max_dest_rd_atomic, p.rnr_retry), (q.max_rd_atomic, a.rnr_retry), "attempt {number}");
        assert_eq!(
            (p.retry_cnt, p.timeout, p.peer_srq),
            (q.retry_cnt, q.timeout, a.qp.srq),
            "attempt {number}"
        );
        attempt.active_replied = Some(*p);
    }

    pub fn is_ready(&mut self, number: u64) {
        self.of(number).active_ready = true;
    }

    /// Data arrives only from a peer in RTS, at the QP that the peer knows.
    pub fn may_have_sent_data(&mut self, number: u64) -> bool {
        let attempt = self.of(number);
        attempt.active_ready && attempt.acceptances.len() == 1
    }

    pub fn passive_established(&mut self, number: u64) {
        let attempt = self.of(number);
        assert!(attempt.active_ready, "attempt {number}: established, but the active end never said so");
        attempt.passive_connected = true;
    }

    /// The active end disconnects before its RTU arrived.
    pub fn end_requested(&mut self, number: u64, before_ready: bool) {
        let attempt = self.of(number);
        assert!(attempt.active_replied.is_some(), "attempt {number} ends before it was made");
        attempt.passive_connected |= before_ready;
    }

    pub fn active_withdrew(&mut self, number: u64) {
        let attempt = self.of(number);
        attempt.active_withdrew = true;
        attempt.active_over = true;
    }

    pub fn active_is_over(&mut self, number: u64) {
        self.of(number).active_over = true;
    }

    pub fn passive_refused(&mut self, number: u64, reason: RejReason) {
        self.of(number).passive_refusals.push(reason);
    }

    fn has_crashed(&self, number: u64) -> bool {
        let attempt = &self.attempts[&number];
        self.crashed.contains(&attempt.from) || self.crashed.contains(&attempt.to)
    }

    /// A refusal must have a reason that applied at the other end.
    pub fn active_rejected(&mut self, number: u64, reject: &Rej) {
        let crashed = self.has_crashed(number);
        let attempt = self.of(number);
        attempt.active_over = true;
        let reason = reject.reason;
        let had = match reason {
            RejReason::INVALID_SERVICE_ID => attempt.service == NOWHERE,
            RejReason::TIMEOUT => attempt.passive_gave_up,
            RejReason::STALE => crashed,
            other => attempt.passive_refusals.contains(&other),
        };
        assert!(had, "attempt {number}: rejected for {reason}, which was not sent: {attempt:?}");
    }

    pub fn passive_rejected(&mut self, number: u64, reject: &Rej) {
        let crashed = self.has_crashed(number);
        let attempt = self.of(number);
        let reason = reject.reason;
        let had = match reason {
            RejReason::TIMEOUT | RejReason::CONSUMER => attempt.active_withdrew || attempt.active_over,
            // The active end has ended, or has a connection with another acceptance.
            RejReason::INVALID_COMM_ID => attempt.active_over || attempt.active_replied.is_some(),
            RejReason::STALE => crashed,
            _ => false,
        };
        assert!(had, "attempt {number}: the active end refused for {reason} without reason: {attempt:?}");
    }

    pub fn unreachable(&mut self, number: u64, active: bool, connection: bool) {
        if connection {
            // A SIDR request cannot be answered by an MRA: a slow consumer suffices for a timeout.
            self.unreachable.push((number, active));
        }
        let attempt = self.of(number);
        if active {
            attempt.active_over = true;
        } else {
            attempt.passive_gave_up = true;
        }
    }

    pub fn resolution(&mut self, number: u64) -> Qpn {
        Qpn::new(number as u32 * 7 + 2)
    }

    pub fn resolved(&mut self, number: u64, qpn: Qpn, qkey: u32) {
        assert_eq!((qpn, qkey), (self.resolution(number), RDMA_UDP_QKEY), "resolution {number}");
    }

    /// Checks at the end: with a fair link and live hosts, every connection is established, and both ends know it.
    pub fn final_verdict(&self, backlog_full: bool) {
        if !self.climate.is_fair() || backlog_full {
            return;
        }
        assert!(self.unreachable.is_empty(), "unreachable on a fair link: {:?}", self.unreachable);
        for (number, attempt) in &self.attempts {
            if attempt.active_ready && attempt.passive_refusals.is_empty() {
                assert!(
                    attempt.passive_connected,
                    "attempt {number}: only the active end knows of it: {attempt:?}"
                );
            }
        }
    }
}
