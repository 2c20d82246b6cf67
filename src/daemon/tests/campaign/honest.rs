//! Two well-behaved clients that exchange messages by each operation in turn. Their memory is compared byte for byte,
//! and each exchange must end within a number of turns.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::super::{CAPS, RawClient, create_qp, place, receives_at};
use super::bench::Bench;
use roxie::remote::message::{Memory, Request, Response};
use roxie_base::random::splitmix;
use roxie_nic::nic::{Answer, Command, MemoryCommand, QpHandle, ReceiveSource};
use roxie_nic::shared::work_queue::Payload;
use roxie_nic::shared::{CompletionRing, RecvRing, SendRing};
use roxie_nic::verbs::{
    Access, AddressVector, CqIndex, Gid, LKey, Mtu, PdId, Psn, QpAttr, QpCaps, QpInit, QpState, QpType, Qpn,
    RKey, SendWr, Sge, WcStatus, WrOpcode,
};

/// Words of a message, and of a client's memory.
const MESSAGE: usize = 40;
const ALL: usize = 256;
/// Offsets in it: sent messages, received ones, written and read ones, the counter of atomics, and their results.
const OUT: usize = 0;
const IN: usize = 64;
const PLACED: usize = 128;
const COUNTER: usize = 192;
const OLD: usize = 193;
const HONEST: QpCaps = QpCaps { max_send_wr: 8, max_recv_wr: 8, ..CAPS };

/// Returns the steps to RTS of a QP, given its own side and its peer's.
pub(super) fn steps([own, other]: [usize; 2], dest_qpn: Qpn) -> [QpAttr; 3] {
    let gid = |side: usize| Gid::from(std::net::IpAddr::from([192, 0, 2, side as u8 + 1]));
    let mac = |side: usize| [2, 0, 0, 0, 0, side as u8 + 1];
    let (sgid, dgid, smac, dmac) = (gid(own), gid(other), mac(own), mac(other));
    let av = AddressVector::new(sgid, dgid, smac, dmac);
    let to = |state| QpAttr { state: Some(state), ..QpAttr::default() };
    let init = QpAttr {
        pkey_index: Some(0),
        port: Some(1),
        access: Some(Access::READ_WRITE | Access::REMOTE_ATOMIC),
        ..to(QpState::Init)
    };
    let rtr = QpAttr {
        av: Some(av),
        path_mtu: Some(Mtu::Mtu256),
        dest_qpn: Some(dest_qpn),
        rq_psn: Some(Psn::new(7)),
        max_dest_rd_atomic: Some(2),
        min_rnr_timer: Some(1),
        ..to(QpState::Rtr)
    };
    let rts = QpAttr {
        sq_psn: Some(Psn::new(7)),
        timeout: Some(14),
        retry_cnt: Some(7),
        rnr_retry: Some(7),
        max_rd_atomic: Some(2),
        ..to(QpState::Rts)
    };
    [init, rtr, rts]
}

/// One of the clients.
struct End {
    client: RawClient,
    pd: PdId,
    cq: CqIndex,
    qp: QpHandle,
    completions: CompletionRing,
    sends: SendRing,
    receives: RecvRing,
    memory: Box<[AtomicU64; ALL]>,
    key: u32,
    /// The expected contents of its memory.
    image: [u64; ALL],
}

impl End {
    fn new(bench: &Bench, side: usize, uid: u32, seed: u64) -> End {
        let mut client = bench.admitted(side, uid).expect("let in");
        client.arena(4096);
        let (pd, cq) = (client.pd(), client.cq(0));
        let init = QpInit { qp_type: QpType::Rc, caps: HONEST, sq_sig_all: true };
        let (sends, receives) = (place(1024), ReceiveSource::Own(receives_at(place(2048))));
        let made = client.request(create_qp(pd, (cq, cq), init, sends, receives));
        let Ok(Response::Answer(Answer::Qp(qp))) = made else { panic!("{made:?}") };
        let mut state = seed;
        let image = [0; ALL].map(|_: u64| splitmix(&mut state));
        let memory = Box::new(image.map(AtomicU64::new));
        let (address, length) = (memory.as_ptr() as u64, 8 * ALL as u64);
        let access = Access::READ_WRITE | Access::REMOTE_ATOMIC;
        let at = Memory::At { address, length, on_demand: false };
        let made = client.request(Request::Memory(MemoryCommand::RegisterMemory {
            pd,
            access,
            start: address,
            memory: at,
        }));
        let Ok(Response::Answer(Answer::Memory(_, key))) = made else { panic!("{made:?}") };
        let part = |at: usize, words| client.arenas[0].part(at, words).expect("inside");
        let completions = CompletionRing::on(&part(0, CompletionRing::size(8)), 8).expect("room");
        let sends = SendRing::on(&part(1024, SendRing::size(8, 1, 0)), 8, 1, 0).expect("room");
        let receives = RecvRing::on(&part(2048, RecvRing::size(8, 1)), 8, 1).expect("room");
        End { client, pd, cq, qp, completions, sends, receives, memory, key, image }
    }

    fn address(&self, word: usize) -> u64 {
        std::ptr::from_ref(&self.memory[word]) as u64
    }

    fn sge(&self, word: usize, words: usize) -> Sge {
        Sge { addr: self.address(word), length: 8 * words as u32, lkey: LKey(self.key) }
    }

    fn connect(&self, own: usize, peer: &End, other: usize) {
        for attr in steps([own, other], peer.qp.qpn) {
            self.client.call(Command::ModifyQp(self.qp.index, Box::new(attr))).expect("a step");
        }
    }

    fn store(&mut self, word: usize, words: &[u64]) {
        self.image[word..word + words.len()].copy_from_slice(words);
    }

    fn is_as_it_was(&self) {
        let differs = (0..ALL).find(|word| self.memory[*word].load(Relaxed) != self.image[*word]);
        assert_eq!(differs, None, "the first word of an honest client's memory that is another");
        assert!(self.completions.poll().is_none(), "a completion that was not asked for");
    }

    /// Checks that the NIC answers the client's requests about its own objects.
    fn check_requests(&self) {
        match self.client.call(Command::QueryQp(self.qp.index)) {
            Ok(Answer::QpStatus(status)) => assert_eq!(status.state, QpState::Rts),
            other => panic!("{other:?}"),
        }
        let moderate = Command::ModerateCq { cq: self.cq, count: 0, period: roxie_base::time::Nanos::ZERO };
        self.client.call(moderate).expect("its own");
        let at = Memory::At { address: self.address(0), length: 8, on_demand: false };
        let (pd, access) = (self.pd, Access::empty());
        match self.client.request(Request::Memory(MemoryCommand::RegisterMemory {
            pd,
            access,
            start: 0,
            memory: at,
        })) {
            Ok(Response::Answer(Answer::Memory(mr, _))) => {
                self.client.call(Command::DeregisterMemory(mr)).expect("its own");
            }
            other => panic!("{other:?}"),
        }
    }
}

/// The two clients.
pub(super) struct Couple {
    ends: [End; 2],
    round: u64,
    /// The turn in which the current exchange began; `None` if there is none.
    since: Option<u64>,
    /// Completions due at the sender and at the receiver.
    due: [u32; 2],
    pub(super) longest: u64,
    pub(super) exchanges: u64,
}

impl Couple {
    pub(super) fn new(bench: &Bench, [one, other]: [(usize, u32); 2], seed: u64) -> Couple {
        let ends = [End::new(bench, one.0, one.1, seed), End::new(bench, other.0, other.1, seed + 1)];
        ends[0].connect(one.0, &ends[1], other.0);
        ends[1].connect(other.0, &ends[0], one.0);
        Couple { ends, round: seed << 32, since: None, due: [0, 0], longest: 0, exchanges: 0 }
    }

    /// Returns the clients' numbers, keys, addresses and slots, which others may know.
    pub(super) fn known(&self) -> impl Iterator<Item = (QpHandle, u32, u64, u8)> {
        let slot = |end: &End| end.client.unthreaded.as_ref().map_or(0, |unthreaded| unthreaded.slot());
        self.ends.iter().map(move |end| (end.qp, end.key, end.address(0), slot(end)))
    }

    /// Returns the sender and the receiver of this round.
    fn roles(&mut self) -> (&mut End, &mut End) {
        let [a, b] = &mut self.ends;
        if self.round.is_multiple_of(2) { (a, b) } else { (b, a) }
    }

    fn message(&self) -> [u64; MESSAGE] {
        let mut state = self.round;
        [0; MESSAGE].map(|_: u64| splitmix(&mut state))
    }

    /// Advances the exchange. An exchange may take at most `most` turns.
    pub(super) fn step(&mut self, turns: u64, most: u64) {
        let Some(since) = self.since else { return self.begin(turns) };
        let mut due = self.due;
        let (from, to) = self.roles();
        for (end, due) in [from, to].into_iter().zip(&mut due) {
            while *due > 0
                && let Some(wc) = end.completions.poll()
            {
                assert_eq!(wc.status, WcStatus::Success, "{wc:?}");
                *due -= 1;
            }
        }
        self.due = due;
        self.longest = self.longest.max(turns - since);
        assert!(turns - since <= most, "{due:?} of an honest client's completions are due for {most} turns");
        if due == [0, 0] {
            self.finish();
        }
    }

    fn begin(&mut self, turns: u64) {
        self.round += 1;
        let (round, message) = (self.round, self.message());
        let (from, to) = self.roles();
        for (word, value) in from.memory[OUT..].iter().zip(message) {
            word.store(value, Relaxed);
        }
        to.receives.post(round, &[to.sge(IN, MESSAGE)]).expect("room");
        let there = |word: usize| (to.address(word), RKey(to.key));
        for (opcode, (remote_addr, rkey), sge) in [
            (WrOpcode::Send, there(0), from.sge(OUT, MESSAGE)),
            (WrOpcode::Write, there(PLACED), from.sge(OUT, MESSAGE)),
            (WrOpcode::Read, there(PLACED), from.sge(IN, MESSAGE)),
            (WrOpcode::FetchAdd, there(COUNTER), from.sge(OLD, 1)),
        ] {
            let wr = SendWr { wr_id: round, opcode, remote_addr, rkey, compare_add: 3, ..SendWr::default() };
            from.sends.post(&wr, Payload::Sges(&[sge])).expect("room");
        }
        from.client.bells.ring(from.qp.index);
        (self.since, self.due) = (Some(turns), [4, 1]);
    }

    fn finish(&mut self) {
        let message = self.message();
        let (from, to) = self.roles();
        let count = to.image[COUNTER];
        from.store(OUT, &message);
        from.store(IN, &message);
        from.store(OLD, &[count]);
        to.store(IN, &message);
        to.store(PLACED, &message);
        to.store(COUNTER, &[count.wrapping_add(3)]);
        from.is_as_it_was();
        to.is_as_it_was();
        from.check_requests();
        self.since = None;
        self.exchanges += 1;
    }
}
