//! Invalid responses, by script: the reactions of the requester that the specification wants, that rdma_rxe shows, and
//! that Roxie must show.
//!
//! [`RULES`] is the table, as in [`super::wrong`].

use std::fmt;
use std::time::{Duration, Instant};

use roxie::verbs::Qpn;
use roxie::wire::{Aeth, Bth, Opcode, Psn};

use super::rule::{self, Rule};
use super::{Failure, PATIENCE, expect_pattern, must};
use crate::end::{Access, Completion, Connection, End, Pair, PairKind, Registration, Request, State, Status};
use crate::rows::{Family, Odd, Op};
use crate::wire::{Packet, Seen, Wire};

const MTU: usize = 1024;
const REGION: usize = 8192;
/// The script's QPN, and the requester's first PSN: the wrap is near.
const OWN_QPN: u32 = 0x77;
const FIRST: Psn = Psn::new(0xff_fffe);
/// The script's data: each byte.
const DATA: u8 = 0x5a;
/// 4.096 us << 16: a quarter of a second, so that an immediate packet is told from a retransmission.
const TIMEOUT: u8 = 16;
const AT_ONCE: Duration = Duration::from_millis(150);
/// Two timeouts: a request that has not completed by then never does.
const HANGS: Duration = Duration::from_millis(550);
/// Marks packets that are sent only after the ACK timeout.
const TIMED_OUT: &str = "timeout";

const ACKNOWLEDGE: u8 = 0x11;
const READ_FIRST: u8 = 0x0d;
const READ_MIDDLE: u8 = 0x0e;
const READ_LAST: u8 = 0x0f;
const READ_ONLY: u8 = 0x10;
const ATOMIC_ACKNOWLEDGE: u8 = 0x12;

/// A requester's reaction to a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reaction {
    /// Packets that it sends; PSNs count from its first.
    pub sends: &'static [&'static str],
    /// Its completions.
    pub completes: &'static [Status],
    /// State of its queue pair.
    pub state: State,
    /// True if a request never completes, even though the script answers retransmitted requests (and only these).
    pub hangs: bool,
}

const fn stays_rts(sends: &'static [&'static str], completes: &'static [Status]) -> Reaction {
    Reaction { sends, completes, state: State::Rts, hangs: false }
}

const fn enters_err(completes: &'static [Status]) -> Reaction {
    Reaction { sends: &[], completes, state: State::Err, hangs: false }
}

const fn hangs(sends: &'static [&'static str]) -> Reaction {
    Reaction { sends, completes: &[], state: State::Rts, hangs: true }
}

const fn same(
    case: Odd,
    script: &'static str,
    specification: &'static str,
    all: Reaction,
) -> Rule<Odd, Reaction> {
    Rule { case, script, specification, rxe_6_1: all, rxe_newest: all, roxie: all }
}

const fn differ(
    case: Odd,
    script: &'static str,
    specification: &'static str,
    rxe: Reaction,
    roxie: Reaction,
) -> Rule<Odd, Reaction> {
    Rule { case, script, specification, rxe_6_1: rxe, rxe_newest: rxe, roxie }
}

const DROPPED: Reaction = stays_rts(&[], &[]);
const ONE_DONE: Reaction = stays_rts(&[], &[Status::SUCCESS]);

/// The table.
pub const RULES: [Rule<Odd, Reaction>; 16] = [
    same(Odd::DuplicateAck, "to two SENDs the first ACK twice", "the second is dropped (9.9.2)", ONE_DONE),
    differ(Odd::GhostAck, "an ACK 5 beyond the last packet", "dropped (9.9.2)", ONE_DONE, DROPPED),
    same(
        Odd::OldSequenceNak,
        "to two SENDs the first ACK, then a sequence NAK of the same PSN",
        "dropped (9.9.2)",
        ONE_DONE,
    ),
    same(
        Odd::OldAccessNak,
        "to two SENDs the first ACK, then an access NAK of the same PSN",
        "dropped (9.9.2)",
        ONE_DONE,
    ),
    differ(Odd::NakAhead, "a sequence NAK 5 beyond the last packet", "dropped (9.9.2)", ONE_DONE, DROPPED),
    differ(
        Odd::UnknownNak,
        "a NAK of reserved code 10",
        "reserved (9.7.5.2)",
        enters_err(&[Status::REM_OP_ERR]),
        DROPPED,
    ),
    differ(
        Odd::AckInsideRead,
        "to a READ of 3 packets an ACK of the second",
        "implied NAK: requested again (9.7.6)",
        stays_rts(&[TIMED_OUT, "READ_REQ+0"], &[]),
        stays_rts(&["READ_REQ+0"], &[]),
    ),
    same(
        Odd::AckBeyondRead,
        "to a READ and a SEND the ACK of the SEND",
        "implied NAK: requested again (9.7.6)",
        stays_rts(&["READ_REQ+0", "SEND+1"], &[]),
    ),
    differ(
        Odd::ReadGap,
        "of a READ of 3 packets the first and the last",
        "implied NAK: the rest is requested again (9.7.6)",
        stays_rts(&[TIMED_OUT, "READ_REQ+1"], &[]),
        stays_rts(&["READ_REQ+1"], &[]),
    ),
    differ(
        Odd::ReadOvertaken,
        "of a READ of 3 packets the first, the last, the second",
        "implied NAK: the rest is requested again (9.7.6)",
        stays_rts(&[TIMED_OUT, "READ_REQ+2"], &[]),
        stays_rts(&["READ_REQ+1"], &[]),
    ),
    differ(
        Odd::ReadTooLong,
        "16 bytes for a READ of 8",
        "length error (9.9.2)",
        enters_err(&[Status::LOC_PROT_ERR]),
        enters_err(&[Status::BAD_RESP_ERR]),
    ),
    differ(
        Odd::ReadTooShort,
        "4 bytes for a READ of 8",
        "length error (9.9.2)",
        hangs(&[]),
        enters_err(&[Status::BAD_RESP_ERR]),
    ),
    differ(
        Odd::ReadFirstShort,
        "to a READ of 3 packets a FIRST shorter than the path MTU",
        "length error (9.9.2)",
        hangs(&[TIMED_OUT, "READ_REQ+1"]),
        enters_err(&[Status::BAD_RESP_ERR]),
    ),
    differ(
        Odd::ReadMiddleFirst,
        "to a READ of 3 packets a MIDDLE without FIRST",
        "bad response (9.9.2)",
        enters_err(&[Status::SUCCESS]),
        enters_err(&[Status::BAD_RESP_ERR]),
    ),
    differ(
        Odd::ReadOfSend,
        "a READ response to a SEND",
        "bad response (9.9.2)",
        enters_err(&[Status::FATAL_ERR]),
        enters_err(&[Status::BAD_RESP_ERR]),
    ),
    differ(
        Odd::AtomicAnswerToRead,
        "an atomic's answer to a READ",
        "bad response (9.9.2)",
        enters_err(&[Status::SUCCESS]),
        enters_err(&[Status::BAD_RESP_ERR]),
    ),
];

impl Odd {
    /// Returns its row of the table.
    pub fn rule(self) -> &'static Rule<Odd, Reaction> {
        RULES.iter().find(|rule| rule.case == self).expect("each case has a row")
    }

    /// Returns the requests that the requester posts.
    fn posts(self) -> &'static [Post] {
        match self {
            Odd::DuplicateAck | Odd::OldSequenceNak | Odd::OldAccessNak => &[Post::Send, Post::Send],
            Odd::GhostAck | Odd::NakAhead | Odd::UnknownNak | Odd::ReadOfSend => &[Post::Send],
            Odd::AckBeyondRead => &[Post::Read(8), Post::Send],
            Odd::ReadTooLong | Odd::ReadTooShort | Odd::AtomicAnswerToRead => &[Post::Read(8)],
            _ => &[Post::Read(3 * MTU)],
        }
    }
}

impl fmt::Display for Reaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sends = if self.sends.is_empty() { "silence".to_owned() } else { self.sends.join(", ") };
        write!(f, "{sends}")?;
        for status in self.completes {
            write!(f, "; {status}")?;
        }
        match self.state {
            State::Err => write!(f, "; ERR"),
            _ if self.hangs => write!(f, "; never completes"),
            _ => Ok(()),
        }
    }
}

/// A request, of one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Post {
    /// SEND of 8 bytes.
    Send,
    /// READ of this many bytes.
    Read(usize),
}

impl Post {
    /// Returns the number of PSNs that the request takes.
    fn packets(self) -> u32 {
        match self {
            Post::Send => 1,
            Post::Read(bytes) => bytes.div_ceil(MTU) as u32,
        }
    }

    /// Returns the name of its packet on the wire.
    fn name(self, psn: u32) -> String {
        match self {
            Post::Send => format!("SEND+{psn}"),
            Post::Read(_) => format!("READ_REQ+{psn}"),
        }
    }
}

/// The script's side of the connection.
struct Responder {
    qpn: Qpn,
}

impl Responder {
    fn packet(&self, opcode: u8, psn: u32, syndrome: u8, rest: &[u8]) -> Packet {
        let psn = Psn::new(FIRST.value().wrapping_add(psn) & 0xff_ffff);
        let bth = Bth { opcode: Opcode(opcode), dest_qp: self.qpn, psn, pkey: 0xffff, ..Bth::default() };
        let has_aeth = opcode != READ_MIDDLE;
        let aeth = Aeth { syndrome, msn: 1 }.to_bytes();
        let aeth = if has_aeth { &aeth[..] } else { &[] };
        Packet { bth, rest: [aeth, rest].concat(), spoiled: false }
    }

    fn ack(&self, psn: u32) -> Packet {
        self.packet(ACKNOWLEDGE, psn, 0x1f, &[])
    }

    fn nak(&self, psn: u32, syndrome: u8) -> Packet {
        self.packet(ACKNOWLEDGE, psn, syndrome, &[])
    }

    fn data(&self, opcode: u8, psn: u32, bytes: usize) -> Packet {
        self.packet(opcode, psn, 0x1f, &vec![DATA; bytes])
    }

    /// Returns the script's packets for a case.
    fn script(&self, case: Odd) -> Vec<Packet> {
        let (first, last) = (self.data(READ_FIRST, 0, MTU), self.data(READ_LAST, 2, MTU));
        match case {
            Odd::DuplicateAck => vec![self.ack(0), self.ack(0)],
            Odd::GhostAck => vec![self.ack(5)],
            Odd::OldSequenceNak => vec![self.ack(0), self.nak(0, 0x60)],
            Odd::OldAccessNak => vec![self.ack(0), self.nak(0, 0x62)],
            Odd::NakAhead => vec![self.nak(5, 0x60)],
            Odd::UnknownNak => vec![self.nak(0, 0x6a)],
            Odd::AckInsideRead | Odd::AckBeyondRead => vec![self.ack(1)],
            Odd::ReadGap => vec![first, last],
            Odd::ReadOvertaken => vec![first, last, self.data(READ_MIDDLE, 1, MTU)],
            Odd::ReadTooLong => vec![self.data(READ_ONLY, 0, 16)],
            Odd::ReadTooShort => vec![self.data(READ_ONLY, 0, 4)],
            Odd::ReadFirstShort => vec![self.data(READ_FIRST, 0, MTU - 4)],
            Odd::ReadMiddleFirst => vec![self.data(READ_MIDDLE, 0, MTU)],
            Odd::ReadOfSend => vec![self.data(READ_ONLY, 0, 8)],
            Odd::AtomicAnswerToRead => vec![self.packet(ATOMIC_ACKNOWLEDGE, 0, 0x1f, &[DATA; 8])],
        }
    }

    /// Returns the valid responses to a request that begins at `psn`; a READ was last requested from `asked` on.
    fn answers(&self, post: Post, psn: u32, asked: u32) -> Vec<Packet> {
        let Post::Read(bytes) = post else { return vec![self.ack(psn)] };
        let end = psn + post.packets();
        let packet = |at: u32| {
            let opcode = match (at == asked, at + 1 == end) {
                (true, true) => READ_ONLY,
                (true, false) => READ_FIRST,
                (false, true) => READ_LAST,
                (false, false) => READ_MIDDLE,
            };
            self.data(opcode, at, (bytes - (at - psn) as usize * MTU).min(MTU))
        };
        (asked..end).map(packet).collect()
    }
}

/// The requester under test.
struct Stage<'a> {
    requester: &'a mut dyn End,
    pair: Pair,
    region: Registration,
    case: Odd,
    /// Completions so far.
    done: Vec<Completion>,
}

/// Lets the requester post, plays the script's responses and compares the reaction. If the queue pair stays usable,
/// checks that its requests complete.
pub fn run(
    case: Odd,
    family: Family,
    wire: &mut Wire,
    requester: &mut dyn End,
    want: &Reaction,
) -> Result<(), Failure> {
    let region = requester.register(REGION, Access::ALL)?;
    requester.fill(region, 0..REGION, 7)?;
    let pair = requester.create_pair(PairKind::Rc)?;
    connect(family, wire, requester, pair)?;
    let to = requester.address(family)?;
    let mut stage = Stage { requester, pair, region, case, done: Vec::new() };
    let due = stage.post()?;
    let mut requested = names(&wire.answers(due.len(), FIRST)).0;
    must!(requested == due, "the requests are {requested:?} and should be {due:?}");

    let script = Responder { qpn: Qpn::new(pair.qpn) };
    let at_once = !want.sends.is_empty() && want.sends[0] != TIMED_OUT;
    let packets = script.script(case);
    let mut seen = Vec::new();
    for (i, packet) in packets.iter().enumerate() {
        wire.send(to, packet)?;
        // Collect the reaction to a packet that overtook another before the script sends the overtaken one, its third.
        let due = usize::from(at_once && i == 1);
        if i + 1 < packets.len() {
            seen.extend(wire.answers(due, FIRST));
        }
    }
    let due = want.sends.iter().filter(|sent| **sent != TIMED_OUT).count();
    let start = Instant::now();
    seen.extend(wire.answers(due.saturating_sub(seen.len()), FIRST));
    let read_from;
    (requested, read_from) = names(&seen);
    if !requested.is_empty() && start.elapsed() > AT_ONCE {
        requested.insert(0, TIMED_OUT.to_owned());
    }
    must!(requested == want.sends, "it sends {requested:?} and should send {:?}", want.sends);
    stage.expect_completions(want)?;
    if want.state == State::Rts {
        let closing = stage.closing(&script, read_from.unwrap_or(0));
        for packet in closing.iter().filter(|_| !want.hangs || read_from.is_some()) {
            wire.send(to, packet)?;
        }
        stage.expect_end(want.hangs)?;
    }
    stage.expect_memory(want.state == State::Rts && !want.hangs)
}

/// Returns the received packets in words, and the PSN of the last READ request.
fn names(seen: &[Seen]) -> (Vec<String>, Option<u32>) {
    let last = seen.iter().rev().find_map(Seen::read_request);
    (seen.iter().map(ToString::to_string).collect(), last.and_then(|psn| u32::try_from(psn).ok()))
}

fn connect(family: Family, wire: &Wire, requester: &mut dyn End, pair: Pair) -> Result<(), Failure> {
    Ok(requester.connect(
        pair,
        &Connection {
            family,
            remote: wire.address(),
            remote_qpn: OWN_QPN,
            mtu: MTU,
            rq_psn: 1,
            sq_psn: FIRST.value(),
            timeout: TIMEOUT,
            retry: 7,
            rnr_retry: 7,
        },
    )?)
}

impl Stage<'_> {
    /// Posts the requests. Returns the packets that must arrive. The script has no memory: any address and key will do.
    fn post(&mut self) -> Result<Vec<String>, Failure> {
        let (mut due, mut psn) = (Vec::new(), 0);
        for (i, post) in self.case.posts().iter().enumerate() {
            let (op, bytes) = match post {
                Post::Send => (Op::Send, 8),
                Post::Read(bytes) => (Op::Read, *bytes),
            };
            let request = Request {
                local: Some((self.region, 0, bytes)),
                remote_addr: 0x1000,
                rkey: 0x1234,
                ..Request::new(i as u64, op)
            };
            self.requester.post_send(self.pair, &request)?;
            due.push(post.name(psn));
            psn += post.packets();
        }
        Ok(due)
    }

    fn expect_completions(&mut self, want: &Reaction) -> Result<(), Failure> {
        self.done = self.requester.poll(self.pair, want.completes.len(), PATIENCE)?;
        let statuses: Vec<Status> = self.done.iter().map(|c| c.status).collect();
        must!(statuses == want.completes, "it completes {:?} and should {:?}", self.done, want.completes);
        if want.state == State::Err {
            return super::expect_error_state(self.requester, self.pair);
        }
        let state = self.requester.state(self.pair)?;
        must!(state == want.state, "the queue pair is in {state:?} and should be in {:?}", want.state);
        Ok(())
    }

    /// Returns the valid responses to all requests that have not completed.
    fn closing(&self, script: &Responder, read_from: u32) -> Vec<Packet> {
        let (mut packets, mut psn) = (Vec::new(), 0);
        for (i, post) in self.case.posts().iter().enumerate() {
            if i >= self.done.len() {
                packets.extend(script.answers(*post, psn, read_from.max(psn)));
            }
            psn += post.packets();
        }
        packets
    }

    /// Checks that all requests complete, each once, or that none does if one hangs.
    fn expect_end(&mut self, hangs: bool) -> Result<(), Failure> {
        let posts = self.case.posts().len();
        if hangs {
            let seen = self.requester.poll(self.pair, 1, HANGS)?;
            must!(seen.is_empty(), "it completes {seen:?}, and was seen never to");
            return Ok(());
        }
        let rest = self.requester.poll(self.pair, posts - self.done.len(), PATIENCE)?;
        self.done.extend(rest);
        self.done.extend(self.requester.poll(self.pair, 0, Duration::ZERO)?);
        let good = |(i, c): (usize, &Completion)| c.wr_id == i as u64 && c.status == Status::SUCCESS;
        must!(
            self.done.len() == posts && self.done.iter().enumerate().all(good),
            "{posts} requests completed as {:?}",
            self.done
        );
        Ok(())
    }

    /// Checks that the script's data was read, and that nothing behind it was changed.
    fn expect_memory(&mut self, read: bool) -> Result<(), Failure> {
        let sizes = self.case.posts().iter().filter_map(|post| match post {
            Post::Read(bytes) => Some(*bytes),
            Post::Send => None,
        });
        let size = sizes.max().unwrap_or(0);
        let behind = size..size + MTU;
        let want: Vec<u8> = crate::pattern::bytes(7).skip(size).take(MTU).collect();
        must!(self.requester.read(self.region, behind)? == want, "bytes behind what is read were written to");
        for start in (0..size).step_by(MTU).filter(|_| read) {
            let got = self.requester.read(self.region, start..size.min(start + MTU))?;
            must!(got.iter().all(|byte| *byte == DATA), "what was read is not what was sent: {got:x?}");
        }
        if size == 0 {
            expect_pattern(self.requester, self.region, 0..REGION, 7, "memory was written to")?;
        }
        Ok(())
    }
}

/// Returns the table as Markdown.
pub(super) fn lines() -> String {
    rule::lines(&RULES, "the script answers")
}
