//! Rows that transfer data and verify it.

use super::{
    Failure, GUARD, PATIENCE, PATIENCE_FAULTS, Wiring, carry_out, expect_pattern, expect_receives, must,
};
use crate::end::{Access, Completion, Done, End, Pair, PairKind, Receive, Registration, Request, Status};
use crate::error::Error;
use crate::rows::{Family, Impairment, Network, Op, Service};

/// Messages of a row, posted together. A row with messages of 1 MiB or more has one.
pub const MESSAGES: usize = 3;

/// Work request ID of a message behind the verified ones.
const BEHIND: u64 = 2000;

/// Parameters of a transfer row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) service: Service,
    pub(super) op: Op,
    pub(super) mtu: usize,
    pub(super) size: usize,
    pub(super) fault: Impairment,
    pub(super) family: Family,
    pub(super) seed: u64,
    pub(super) network: Network,
}

/// Layout of messages in a region, each between guards.
#[derive(Clone, Copy, Debug)]
struct Layout {
    size: usize,
    count: usize,
}

impl Layout {
    fn total(self) -> usize {
        self.start(self.count)
    }

    fn start(self, message: usize) -> usize {
        // Messages start at multiples of 8, as atomics want.
        GUARD + message * (self.size.next_multiple_of(8) + GUARD)
    }

    /// Returns the guard before message `i`, or after the last.
    fn guard(self, i: usize) -> std::ops::Range<usize> {
        let from = if i == 0 { 0 } else { self.start(i - 1) + self.size };
        from..self.start(i)
    }

    fn message(self, i: usize) -> std::ops::Range<usize> {
        self.start(i)..self.start(i) + self.size
    }
}

pub(super) fn run<'a>(
    plan: &Plan,
    requester: &'a mut dyn End,
    responder: &'a mut dyn End,
) -> Result<(), Failure> {
    let count = if plan.size >= 1 << 20 { 1 } else { MESSAGES };
    let layout = Layout { size: plan.size, count };
    let local = requester.register(layout.total(), Access::ALL)?;
    let remote = responder.register(layout.total(), Access::ALL)?;
    prepare(plan, layout, requester, local, responder, remote)?;
    let kind = if plan.service == Service::Uc { PairKind::Uc } else { PairKind::Rc };
    let wiring = Wiring { kind, ..Wiring::new(plan.family, plan.mtu, plan.seed) };
    let (requesting, answers) = wiring.connect(requester, responder)?;

    if plan.op.consumes_receive() {
        // A WRITE_IMM has an address of its own; its receive needs no entry.
        let place = |i| (plan.op != Op::WriteImm).then(|| (remote, layout.start(i), plan.size));
        for i in 0..count {
            responder.post_receive(answers, &Receive { wr_id: 1000 + i as u64, to: place(i) })?;
        }
    }
    for i in 0..count {
        requester.post_send(requesting, &request(plan, layout, local, remote, i))?;
    }
    check_requester(plan, count, requester, requesting)?;
    check_responder(plan, count, responder, answers)?;
    if (plan.service, plan.op) == (Service::Uc, Op::Write) {
        // Such WRITEs complete when they are sent. A SEND behind them shows that they have arrived.
        responder.post_receive(answers, &Receive { wr_id: BEHIND, to: None })?;
        carry_out(requester, requesting, &Request::new(BEHIND, Op::Send), Status::SUCCESS)?;
        expect_receives(responder, answers, &[BEHIND])?;
    }
    if plan.op.is_atomic() {
        return check_atomics(plan, layout, requester, local, responder, remote);
    }
    let (sink, region) = if plan.op == Op::Read { (requester, local) } else { (responder, remote) };
    check_data(plan, layout, sink, region)
}

/// Returns the seed of message `i`'s data. Seeds of guards and of overwritten data are far from it.
fn data_seed(plan: &Plan, i: usize) -> u64 {
    plan.seed.wrapping_add(i as u64)
}

fn guard_seed(plan: &Plan, i: usize) -> u64 {
    !plan.seed.wrapping_add(i as u64)
}

fn imm(plan: &Plan, i: usize) -> u32 {
    (plan.seed >> 32) as u32 ^ i as u32
}

/// Atomics: returns the initial word, which is the addend and comparand as well.
fn word(plan: &Plan) -> u64 {
    plan.seed.rotate_left(17)
}

fn prepare<'a>(
    plan: &Plan,
    layout: Layout,
    requester: &'a mut dyn End,
    near: Registration,
    responder: &'a mut dyn End,
    far: Registration,
) -> Result<(), Error> {
    // A byte that is not overwritten later is neither zero nor the right data.
    requester.fill(near, 0..layout.total(), !0)?;
    responder.fill(far, 0..layout.total(), !1)?;
    let reads = plan.op == Op::Read || plan.op.is_atomic();
    let (source, source_region, sink, sink_region) =
        if reads { (responder, far, requester, near) } else { (requester, near, responder, far) };
    for i in 0..=layout.count {
        sink.fill(sink_region, layout.guard(i), guard_seed(plan, i))?;
    }
    if plan.op.is_atomic() {
        // One word, on which all atomics of the row operate.
        return source.store(source_region, layout.start(0), word(plan));
    }
    for i in 0..layout.count {
        source.fill(source_region, layout.message(i), data_seed(plan, i))?;
    }
    Ok(())
}

fn request(plan: &Plan, layout: Layout, near: Registration, far: Registration, i: usize) -> Request {
    let remote = if plan.op.is_atomic() { 0 } else { i };
    Request {
        local: Some((near, layout.start(i), plan.size)),
        remote_addr: far.addr + layout.start(remote) as u64,
        rkey: far.rkey,
        imm: imm(plan, i),
        // CMP_SWAP: the first comparand matches, the others no longer do.
        compare_add: word(plan),
        swap: word(plan) ^ 0xff << i,
        ..Request::new(i as u64, plan.op)
    }
}

fn check_requester(plan: &Plan, count: usize, end: &mut dyn End, pair: Pair) -> Result<(), Failure> {
    let done = plan.op.completes_as();
    let seen = collect(plan, count, end, pair)?;
    must!(seen.len() == count, "the requester has {} of {count} completions: {seen:?}", seen.len());
    for (i, c) in seen.iter().enumerate() {
        must!(c.status == Status::SUCCESS, "request {i} completed with status {}: {seen:?}", c.status.0);
        must!(c.wr_id == i as u64, "completion {i} is of request {}: {seen:?}", c.wr_id);
        must!(c.done == Some(Done::Request(done)), "completion {i} is of {:?}, not of {done}", c.done);
    }
    Ok(())
}

fn check_responder(plan: &Plan, count: usize, end: &mut dyn End, pair: Pair) -> Result<(), Failure> {
    if !plan.op.consumes_receive() {
        let seen = end.poll(pair, 0, std::time::Duration::ZERO)?;
        must!(seen.is_empty(), "{} must not complete anything at the responder: {seen:?}", plan.op);
        return Ok(());
    }
    let done = if plan.op == Op::WriteImm { Done::ReceiveWriteImm } else { Done::Receive };
    let seen = collect(plan, count, end, pair)?;
    must!(seen.len() == count, "the responder has {} of {count} completions: {seen:?}", seen.len());
    for (i, c) in seen.iter().enumerate() {
        let want = plan.op.has_imm().then(|| imm(plan, i));
        must!(c.status == Status::SUCCESS, "receive {i} completed with status {}: {seen:?}", c.status.0);
        must!(c.wr_id == 1000 + i as u64, "completion {i} is of receive {}: {seen:?}", c.wr_id);
        must!(c.done == Some(done), "completion {i} is {:?} and should be {done:?}", c.done);
        must!(c.byte_len as usize == plan.size, "byte_len {} and should be {}", c.byte_len, plan.size);
        must!(c.imm == want, "immediate data {:x?} and should be {want:x?}", c.imm);
    }
    Ok(())
}

/// Returns the completions of a row, after `count` completions or a timeout.
fn collect(plan: &Plan, count: usize, end: &mut dyn End, pair: Pair) -> Result<Vec<Completion>, Error> {
    let patience = if plan.fault == Impairment::None { PATIENCE } else { PATIENCE_FAULTS };
    end.poll(pair, count, patience)
}

fn check_data(plan: &Plan, layout: Layout, sink: &mut dyn End, region: Registration) -> Result<(), Failure> {
    for i in 0..layout.count {
        let what = format!("message {i}");
        expect_pattern(sink, region, layout.message(i), data_seed(plan, i), &what)?;
    }
    check_guards(plan, layout, sink, region)
}

fn check_guards(
    plan: &Plan,
    layout: Layout,
    sink: &mut dyn End,
    region: Registration,
) -> Result<(), Failure> {
    for i in 0..=layout.count {
        let what = format!("memory around message {i} was written to");
        expect_pattern(sink, region, layout.guard(i), guard_seed(plan, i), &what)?;
    }
    Ok(())
}

/// Checks the value that each atomic returned, and the final value at the responder.
fn check_atomics(
    plan: &Plan,
    layout: Layout,
    requester: &mut dyn End,
    near: Registration,
    responder: &mut dyn End,
    far: Registration,
) -> Result<(), Failure> {
    let mut value = word(plan);
    for i in 0..layout.count {
        let request = request(plan, layout, near, far, i);
        let returned = requester.load(near, layout.start(i))?;
        must!(returned == value, "{} {i} returned {returned:#x} and should have {value:#x}", plan.op);
        value = match plan.op {
            Op::FetchAdd => value.wrapping_add(request.compare_add),
            _ if value == request.compare_add => request.swap,
            _ => value,
        };
    }
    let result = responder.load(far, layout.start(0))?;
    must!(result == value, "{} left {result:#x} at the responder and should have {value:#x}", plan.op);
    check_guards(plan, layout, requester, near)
}
