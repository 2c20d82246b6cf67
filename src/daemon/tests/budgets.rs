//! Bounds of the NIC's time and memory that one client uses at the same time, whatever it posts.

use std::fs;

use nix::sys::resource::{Resource, setrlimit};

use super::campaign::{Bench, is_alone};
use super::{CAPS, Quota, RawClient, alloc_fast, create_cq, create_qp, place, receives_at};
use roxie::remote::message::{ArenaPlace, Memory, Request, Response};
use roxie_nic::nic::{Answer, Command, QpHandle, ReceiveSource};
use roxie_nic::shared::work_queue::Payload;
use roxie_nic::shared::{CompletionRing, PageList, SendRing};
use roxie_nic::verbs::{
    Access, AddressVector, CqIndex, FastRegistration, Gid, Mtu, PdId, Psn, QpAttr, QpCaps, QpIndex, QpInit,
    QpState, QpType, Qpn, RKey, SendFlags, SendWr, WcStatus, WrOpcode,
};

/// Maximum work requests of a burst, and of one QP in it.
const BURST: usize = 128;
const OF_A_QP: usize = 64;

fn to(state: QpState) -> QpAttr {
    QpAttr { state: Some(state), ..QpAttr::default() }
}

/// A client of a NIC that no thread runs, with a domain and a queue for many completions.
struct Client {
    bench: Bench,
    client: RawClient,
    pd: PdId,
    cq: CqIndex,
    completions: CompletionRing,
    /// The next free word of the second arena.
    next: usize,
}

impl Client {
    fn new(completions: u32, words: usize) -> Client {
        let bench = Bench::new(1, Quota::default());
        let mut client = bench.admitted(0, 1000).expect("let in");
        client.arena(CompletionRing::size(completions));
        client.arena(words);
        let pd = client.pd();
        let Ok(Response::Answer(Answer::Cq(cq))) = client.request(create_cq(place(0), completions)) else {
            panic!("a queue")
        };
        let ring = CompletionRing::on(&client.arenas[0], completions).expect("room");
        Client { bench, client, pd, cq, completions: ring, next: 0 }
    }

    /// Returns a place of `words` words.
    fn take(&mut self, words: usize) -> ArenaPlace {
        let at = self.next as u64;
        self.next += words.next_multiple_of(8);
        ArenaPlace { arena: 1, at }
    }

    fn qp(&mut self, max_send_wr: u32) -> (QpIndex, SendRing) {
        let size = SendRing::size(max_send_wr, 1, 0);
        let (sends, receives) = (self.take(size), self.take(256));
        let init = QpInit { qp_type: QpType::Rc, caps: QpCaps { max_send_wr, ..CAPS }, sq_sig_all: true };
        let (pd, cq, receives) = (self.pd, self.cq, ReceiveSource::Own(receives_at(receives)));
        let request = create_qp(pd, (cq, cq), init, sends, receives);
        let made = self.client.request(request);
        let Ok(Response::Answer(Answer::Qp(QpHandle { index, .. }))) = made else { panic!("{made:?}") };
        let part = self.client.arenas[1].part(sends.at as usize, size).expect("inside");
        (index, SendRing::on(&part, max_send_wr, 1, 0).expect("room"))
    }

    fn modify(&self, qp: QpIndex, attr: QpAttr) {
        self.client.call(Command::ModifyQp(qp, Box::new(attr))).expect("a step");
    }

    fn pass(&self) -> usize {
        let engine = self.bench.sides[0].engine();
        let now = engine.now();
        engine.adjust(move |worker| worker.poll(now)).expect("no panic").completions
    }

    fn completed(&self) -> usize {
        std::iter::from_fn(|| self.completions.poll()).count()
    }
}

/// Uses QPs in error, since flushing fetches work requests fastest.
#[test]
fn bells_of_one_page_share_a_burst() {
    const QPS: usize = 100;
    let mut client = Client::new(1 << 13, QPS * (SendRing::size(64, 1, 0) + 512));
    let qps: Vec<_> = (0..QPS).map(|_| client.qp(64)).collect();
    for (qp, sends) in &qps {
        client.modify(*qp, to(QpState::Err));
        (0..64).for_each(|_| sends.post(&SendWr::default(), Payload::Sges(&[])).expect("room"));
    }
    qps.iter().for_each(|(qp, _)| client.client.bells.ring(*qp));
    let passes: Vec<usize> = std::iter::repeat_with(|| client.pass()).take_while(|done| *done > 0).collect();
    assert_eq!((passes.iter().sum::<usize>(), client.completed()), (64 * QPS, 64 * QPS));
    let most = passes.iter().max().copied().unwrap_or_default();
    assert!(most < BURST + OF_A_QP, "{most} work requests of one client in one pass");
}

/// A client can ring in its own page for another client's QP, which the NIC must ignore.
#[test]
fn bells_for_others_qps_are_not_heard() {
    let mut client = Client::new(1 << 8, 4096);
    let other = client.bench.admitted(0, 1001).expect("let in");
    other.request(Request::Port).expect("its bells are heard from its first request on");
    let (qp, sends) = client.qp(64);
    client.modify(qp, to(QpState::Err));
    sends.post(&SendWr::default(), Payload::Sges(&[])).expect("room");
    other.bells.ring(qp);
    assert_eq!((client.pass(), client.completed()), (0, 0));
    client.client.bells.ring(qp);
    assert_eq!((client.pass(), client.completed()), (1, 1));
}

fn path() -> AddressVector {
    let gid = |last| Gid::from(std::net::IpAddr::from([192, 0, 2, last]));
    let (sgid, dgid, smac, dmac) = (gid(1), gid(2), [2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
    AddressVector::new(sgid, dgid, smac, dmac)
}

/// Returns a QP with `max_send_wr` send slots that drains its send queue.
fn draining(client: &mut Client, max_send_wr: u32) -> (QpIndex, SendRing) {
    let (qp, sends) = client.qp(max_send_wr);
    client.modify(
        qp,
        QpAttr { pkey_index: Some(0), port: Some(1), access: Some(Access::empty()), ..to(QpState::Init) },
    );
    let rtr = QpAttr {
        av: Some(path()),
        path_mtu: Some(Mtu::Mtu1024),
        dest_qpn: Some(Qpn::new(7)),
        rq_psn: Some(Psn::new(0)),
        max_dest_rd_atomic: Some(1),
        min_rnr_timer: Some(1),
        ..to(QpState::Rtr)
    };
    client.modify(qp, rtr);
    let (timeout, retry_cnt, rnr_retry, max_rd_atomic) = (Some(14), Some(1), Some(1), Some(1));
    client.modify(
        qp,
        QpAttr {
            sq_psn: Some(Psn::new(0)),
            timeout,
            retry_cnt,
            rnr_retry,
            max_rd_atomic,
            ..to(QpState::Rts)
        },
    );
    client.modify(qp, to(QpState::Sqd));
    (qp, sends)
}

/// Work requests wait in a QP that drains its send queue, and may all start at the same time.
#[test]
fn local_work_counts_in_the_burst() {
    const COUNT: u32 = 4000;
    let mut client = Client::new(1 << 13, SendRing::size(4096, 1, 0) + 2048);
    let pages = client.take(PageList::size(1));
    let (pd, own) = (client.pd, Box::new([0u64; 1024]));
    let address = (own.as_ptr() as u64).next_multiple_of(4096);
    let memory = Memory::At { address, length: 4096, on_demand: false };
    let made = client.client.request(alloc_fast(pd, memory, pages, 1));
    let Ok(Response::Answer(Answer::Memory(_, key))) = made else { panic!("{made:?}") };
    let (qp, sends) = draining(&mut client, 4096);
    let register =
        FastRegistration { key: RKey(key), access: Access::empty(), start: 0, length: 8, page_shift: 12 };
    let invalidate = SendWr { opcode: WrOpcode::LocalInvalidate, rkey: RKey(key), ..SendWr::default() };
    for _ in 0..COUNT / 2 {
        let register = SendWr::fast_register(0, SendFlags::empty(), &register);
        [register, invalidate].iter().for_each(|wr| sends.post(wr, Payload::Sges(&[])).expect("room"));
    }
    client.client.bells.ring(qp);
    (0..COUNT).for_each(|_| assert_eq!(client.pass(), 0));
    assert_eq!(client.completed(), 0, "they wait");
    client.modify(qp, to(QpState::Rts));
    let mut done = client.completed();
    assert!((1..=2 * BURST).contains(&done), "{done} in the passes of one command");
    while done < COUNT as usize {
        let more = client.pass();
        assert!((1..=BURST).contains(&more), "{more} in a pass, after {done}");
        let statuses: Vec<_> = std::iter::from_fn(|| client.completions.poll()).map(|wc| wc.status).collect();
        assert!(statuses.iter().all(|status| *status == WcStatus::Success), "{statuses:?}");
        done += statuses.len();
    }
}

#[test]
fn failing_qp_is_flushed_within_the_budget() {
    const COUNT: usize = 4000;
    let mut client = Client::new(1 << 13, SendRing::size(4096, 1, 0) + 2048);
    let (qp, sends) = draining(&mut client, 4096);
    (0..COUNT).for_each(|_| sends.post(&SendWr::default(), Payload::Sges(&[])).expect("room"));
    client.client.bells.ring(qp);
    (0..COUNT).for_each(|_| assert_eq!(client.pass(), 0));
    client.modify(qp, to(QpState::Err));
    let mut done = client.completed();
    assert!((1..=2 * BURST).contains(&done), "{done} in the passes of one command");
    while done < COUNT {
        let more = client.pass();
        assert!((1..BURST + OF_A_QP).contains(&more), "{more} in a pass, after {done}");
        done += client.completed();
    }
    assert_eq!(done, COUNT);
}

/// Without a QP1 of the NIC's own a client's cannot be routed to.
#[test]
fn qp_without_setup_is_taken_back() {
    let mut client = Client::new(8, 4096);
    let side = &client.bench.sides[0];
    let own = side.engine().call(Command::ListQps).expect("the NIC's own");
    let Answer::Qps(own) = own else { panic!("{own:?}") };
    side.engine().call(Command::DestroyQp(own[0].handle.index)).expect("QP1");
    let init = QpInit { qp_type: QpType::Gsi, caps: CAPS, sq_sig_all: true };
    let (sends, receives) = (client.take(1024), ReceiveSource::Own(receives_at(client.take(1024))));
    let (pd, cq) = (client.pd, client.cq);
    for _ in 0..2 {
        client.client.request(create_qp(pd, (cq, cq), init, sends, receives)).expect_err("no routes");
        let qps = client.bench.sides[0].engine().inspect(|worker| worker.nic().objects().qps);
        assert_eq!(qps, 0);
    }
    client.bench.sides[0].engine().call(Command::DestroyCq(cq)).expect("no QP uses it");
}

#[test]
fn queue_without_memory_is_refused() {
    /// Bytes that the process may allocate from here on.
    const ROOM: u64 = 128 << 20;
    if !is_alone("budgets::queue_without_memory_is_refused") {
        return;
    }
    let caps = QpCaps { max_send_wr: 1 << 14, max_send_sge: 32, max_inline: 512, ..CAPS };
    let words = SendRing::size(caps.max_send_wr, caps.max_send_sge, caps.max_inline);
    let mut client = Client::new(8, words + 2048);
    let (sends, receives) = (client.take(words), ReceiveSource::Own(receives_at(client.take(256))));
    let text = fs::read_to_string("/proc/self/statm").expect("this process's own");
    let pages: u64 = text.split(' ').next().and_then(|pages| pages.parse().ok()).expect("a number");
    let most = pages * 4096 + ROOM;
    setrlimit(Resource::RLIMIT_AS, most, most).expect("less than before");
    let init = QpInit { qp_type: QpType::Rc, caps, sq_sig_all: true };
    let (pd, cq) = (client.pd, client.cq);
    let refused =
        (0..100).find_map(|_| client.client.request(create_qp(pd, (cq, cq), init, sends, receives)).err());
    let refused = refused.expect("there is less memory than that");
    assert!(refused.errno == libc::ENOMEM && refused.why.contains("QP"), "{refused:?}");
    client.client.call(Command::AllocPd).expect("it is served");
}
