//! Rows that move data and verify it.

use super::{
    Failure, GUARD, PATIENCE, PATIENCE_FAULTS, Wiring, carry_out, expect_pattern, expect_receives, must,
};
use crate::end::{Access, Completion, Done, End, Pair, PairKind, Receive, Registration, Request, Status};
use crate::error::Error;
use crate::rows::{Family, Impairment, Op, Service};

/// Messages of a row, posted together. A megabyte is one message.
pub const MESSAGES: usize = 3;

/// The number of a message that comes behind those that are looked at.
const BEHIND: u64 = 2000;

/// What a transfer row is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) service: Service,
    pub(super) op: Op,
    pub(super) mtu: usize,
    pub(super) size: usize,
    pub(super) fault: Impairment,
    pub(super) family: Family,
    pub(super) seed: u64,
}

/// Messages in a region, each between guards.
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

    /// The bytes before message `i`, or after the last.
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
    let near = requester.register(layout.total(), Access::ALL)?;
    let far = responder.register(layout.total(), Access::ALL)?;
    prepare(plan, layout, requester, near, responder, far)?;
    let kind = if plan.service == Service::Uc { PairKind::Uc } else { PairKind::Rc };
    let wiring = Wiring { kind, ..Wiring::new(plan.family, plan.mtu, plan.seed) };
    let (asks, answers) = wiring.connect(requester, responder)?;

    if plan.op.consumes_receive() {
        // A WRITE_IMM brings its own place; its receive needs none.
        let place = |i| (plan.op != Op::WriteImm).then(|| (far, layout.start(i), plan.size));
        for i in 0..count {
            responder.post_receive(answers, &Receive { wr_id: 1000 + i as u64, to: place(i) })?;
        }
    }
    for i in 0..count {
        requester.post_send(asks, &request(plan, layout, near, far, i))?;
    }
    check_requester(plan, count, requester, asks)?;
    check_responder(plan, count, responder, answers)?;
    if (plan.service, plan.op) == (Service::Uc, Op::Write) {
        // Such WRITEs are complete when they are sent; what comes behind them on the link says that they are there.
        responder.post_receive(answers, &Receive { wr_id: BEHIND, to: None })?;
        carry_out(requester, asks, &Request::new(BEHIND, Op::Send), Status::SUCCESS)?;
        expect_receives(responder, answers, &[BEHIND])?;
    }
    if plan.op.is_atomic() {
        return check_atomics(plan, layout, requester, near, responder, far);
    }
    let (sink, region) = if plan.op == Op::Read { (requester, near) } else { (responder, far) };
    check_data(plan, layout, sink, region)
}

/// The seed of message `i`'s data; those of guards and of what the data replaces are far from it.
fn data_seed(plan: &Plan, i: usize) -> u64 {
    plan.seed.wrapping_add(i as u64)
}

fn guard_seed(plan: &Plan, i: usize) -> u64 {
    !plan.seed.wrapping_add(i as u64)
}

fn imm(plan: &Plan, i: usize) -> u32 {
    (plan.seed >> 32) as u32 ^ i as u32
}

/// Atomics: the word before, the addend, and what a CMP_SWAP stores.
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
    // Whatever is not overwritten later is neither zero nor the right data.
    requester.fill(near, 0..layout.total(), !0)?;
    responder.fill(far, 0..layout.total(), !1)?;
    let reads = plan.op == Op::Read || plan.op.is_atomic();
    let (source, source_region, sink, sink_region) =
        if reads { (responder, far, requester, near) } else { (requester, near, responder, far) };
    for i in 0..=layout.count {
        sink.fill(sink_region, layout.guard(i), guard_seed(plan, i))?;
    }
    if plan.op.is_atomic() {
        // One word that all of the row's atomics work on.
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
        // CMP_SWAP: the first compares with what is there, the others with what no longer is.
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

/// All completions of a row, until there are `count` or one has failed or the time is over.
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

/// What each atomic returned and what is left at the responder.
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
    let left = responder.load(far, layout.start(0))?;
    must!(left == value, "{} left {left:#x} at the responder and should have {value:#x}", plan.op);
    check_guards(plan, layout, requester, near)
}
