//! Two NICs in virtual time, with frames that are recorded on their way, and may end there.

use roxie::limits::Limits;
use roxie::port::Port;
use roxie::time::Nanos;
use roxie::verbs::{Access, Mtu, Psn, QpAttr, QpCaps, QpState, Wc};
use roxie::wire::parse;
use roxie_sim::{Connected, Host, HostQp, HostRegion, NicConfig, joined_ports};

/// Virtual duration of a step in which something happened.
const STEP: Nanos = Nanos(200);
/// Most steps of a case, and the longest time.
const STEPS: u64 = 4_000_000;
const LONGEST: Nanos = Nanos(1_000_000_000_000_000);

/// A packet of the requester.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Transmission {
    pub(super) at: Nanos,
    /// From the first of the case.
    pub(super) psn: u32,
    pub(super) why: &'static str,
}

/// An expiry of the ACK timer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Timeout {
    pub(super) at: Nanos,
    pub(super) why: &'static str,
    pub(super) sends: bool,
}

/// An end: its host, the far end of its link, and what a QP there has.
pub(super) struct End {
    pub(super) host: Host,
    link: Box<dyn Port>,
    pub(super) qp: HostQp,
    pub(super) region: HostRegion,
}

impl End {
    fn new(number: u16, config: NicConfig, memory: usize, access: Access) -> End {
        let (near, far) = joined_ports(4500, None);
        let (port, link) = if number == 1 { (near, far) } else { (far, near) };
        let mut host = Host::new(number, config, port);
        let region = host.register(memory, access);
        let caps = QpCaps { max_send_wr: 256, max_recv_wr: 257, ..QpCaps::default() };
        let qp = host.queue_pair().caps(caps).cq_entries(512).create();
        End { host, link, qp, region }
    }
}

/// What the ends agree on.
pub(super) struct Agreed {
    pub(super) path_mtu: Mtu,
    pub(super) timeout: u8,
    pub(super) retry_cnt: u8,
    pub(super) rnr_retry: u8,
    pub(super) rnr_timer: u8,
    /// Rights of the responder's QP.
    pub(super) access: Access,
}

/// Requester and responder.
pub(super) struct Stage {
    pub(super) near: End,
    pub(super) far: End,
    pub(super) now: Nanos,
    /// False: the responder hears nothing any more.
    pub(super) is_joined: bool,
    pub(super) transmissions: Vec<Transmission>,
    pub(super) timeouts: Vec<Timeout>,
    pub(super) completions: Vec<(Nanos, Wc)>,
    /// When the responder last sent.
    pub(super) last_answer: Option<Nanos>,
    /// The requester's causes to repeat, with their counts so far.
    causes: [(&'static str, &'static str, u64); 4],
    why: &'static str,
    next_psn: u32,
    origin: Nanos,
}

impl Stage {
    /// Joins two NICs. `memory`: bytes of the region at each end.
    pub(super) fn new(configs: [NicConfig; 2], memory: [usize; 2], agreed: &Agreed) -> Stage {
        let [near, far] =
            configs.map(|config| NicConfig { limits: Limits::small(), largest_mtu: Mtu::Mtu4096, ..config });
        let rights = Access::READ_WRITE | Access::REMOTE_ATOMIC;
        let mut stage = Stage {
            near: End::new(1, near, memory[0], rights),
            far: End::new(2, far, memory[1], rights),
            now: Nanos(1),
            is_joined: true,
            transmissions: Vec::new(),
            timeouts: Vec::new(),
            completions: Vec::new(),
            last_answer: None,
            causes: [
                ("adaptive", "roce_adp_retrans", 0),
                ("regular", "local_ack_timeout_err", 0),
                ("rnr", "rcvd_rnr_err", 0),
                ("nak", "packet_seq_err", 0),
            ],
            why: "first",
            next_psn: 0,
            origin: Nanos(1),
        };
        let peers = [stage.far.qp.handle.qpn, stage.near.qp.handle.qpn];
        for (end, peer, other) in [(&mut stage.near, peers[0], 2), (&mut stage.far, peers[1], 1)] {
            let path = end.host.path(other, false);
            let connected =
                Connected { peer, path, path_mtu: agreed.path_mtu, timeout: agreed.timeout, rd_atomic: 1 };
            let [mut init, mut rtr, mut rts] = connected.steps(roxie::verbs::QpType::Rc);
            init.access = Some(agreed.access);
            rtr.min_rnr_timer = Some(agreed.rnr_timer);
            (rts.retry_cnt, rts.rnr_retry) = (Some(agreed.retry_cnt), Some(agreed.rnr_retry));
            for attr in [init, rtr, rts] {
                end.host.modify(Nanos::ZERO, &end.qp, &attr).expect("a transition that the options allow");
            }
        }
        stage
    }

    /// Has the case begin now, at the next PSN.
    pub(super) fn begin(&mut self) {
        self.origin = self.now;
        self.transmissions.clear();
        self.timeouts.clear();
        self.completions.clear();
    }

    /// Returns the time since the case began.
    pub(super) fn since(&self, at: Nanos) -> Nanos {
        at - self.origin
    }

    /// Returns when the responder last sent, in ms: before the case began, a negative number.
    pub(super) fn last_answer_ms(&self) -> Option<f64> {
        self.last_answer.map(|at| (at.0 as f64 - self.origin.0 as f64) / 1e6)
    }

    /// Moves the requester's QP to the error state, as software does.
    pub(super) fn fail_requester(&mut self) {
        let attr = QpAttr { state: Some(QpState::Err), ..QpAttr::default() };
        self.near.host.modify(self.now, &self.near.qp, &attr).expect("any state may be left for ERR");
    }

    /// Runs until nothing is pending, or until `until`.
    pub(super) fn run(&mut self, until: Nanos) {
        let mut quiet = 0;
        for _ in 0..STEPS {
            let is_active = self.step();
            quiet = if is_active { 0 } else { quiet + 1 };
            if quiet < 2 {
                self.now = self.now + STEP;
                continue;
            }
            let next = [&self.near, &self.far].map(|end| end.host.worker.next_deadline());
            let next = next[0].min(if self.is_joined { next[1] } else { Nanos::MAX });
            if next >= until || next >= LONGEST {
                self.now = self.now.max(until.min(LONGEST));
                return;
            }
            self.now = next.max(self.now + STEP);
        }
    }

    /// Runs a pass of each end. True: something happened.
    fn step(&mut self) -> bool {
        let mut is_active = !self.near.host.poll(self.now).is_idle();
        self.note_causes();
        is_active |= self.carry_requests();
        if self.is_joined {
            is_active |= !self.far.host.poll(self.now).is_idle();
            let answers = carry(&mut self.far.link, Some(&mut self.near.link), self.now, |_| ());
            self.last_answer = if answers { Some(self.now) } else { self.last_answer };
            is_active |= answers;
        }
        while let Some(wc) = self.near.host.poll_cq(&self.near.qp) {
            self.completions.push((self.now, wc));
        }
        is_active
    }

    /// Notes which of the requester's causes to repeat has risen in this pass.
    fn note_causes(&mut self) {
        let mut why = None;
        for (cause, counter, before) in &mut self.causes {
            let value = self.near.host.counter(counter);
            if value > std::mem::replace(before, value) {
                why = Some(*cause);
            }
        }
        let Some(why) = why else { return };
        self.why = why;
        if matches!(why, "adaptive" | "regular") {
            self.timeouts.push(Timeout { at: self.now, why, sends: false });
        }
    }

    /// Carries the requester's packets. True: there was one.
    fn carry_requests(&mut self) -> bool {
        let (now, why, first) = (self.now, self.why, self.transmissions.len());
        let (sent, next_psn) = (&mut self.transmissions, &mut self.next_psn);
        let to = self.is_joined.then_some(&mut self.far.link);
        let any = carry(&mut self.near.link, to, now, |psn| {
            let is_new = Psn::new(*next_psn).distance_from(Psn::new(psn)) <= 0;
            *next_psn = if is_new { (psn + 1) & 0x00ff_ffff } else { *next_psn };
            sent.push(Transmission { at: now, psn, why: if is_new { "first" } else { why } });
        });
        if self.transmissions[first..].iter().any(|sent| sent.why == self.why)
            && let Some(last) = self.timeouts.last_mut().filter(|last| last.at == now)
        {
            last.sends = true;
        }
        any
    }
}

/// Moves frames from one link to another, or nowhere. Tells the PSN of each. True: there was one.
fn carry(
    from: &mut Box<dyn Port>,
    mut to: Option<&mut Box<dyn Port>>,
    now: Nanos,
    mut note: impl FnMut(u32),
) -> bool {
    let count = from.rx_burst(now);
    for index in 0..count {
        let frame = from.rx_frame(index).frame;
        if let Ok(packet) = parse(&frame) {
            note(packet.bth.psn.value());
        }
        let bytes = frame.to_vec();
        if let Some(to) = &mut to
            && let Some(id) = to.tx_alloc(bytes.len())
        {
            to.tx_frame(&id).write(0, &bytes);
            to.tx_commit(id);
        }
    }
    from.rx_release();
    if let Some(to) = to {
        to.tx_flush(now).expect("memory does not fail");
    }
    count > 0
}
