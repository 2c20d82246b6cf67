//! The responder's checks, by name. A capture names the failed check in the comment of the request and in that of the
//! NAK. Services without acknowledgements name it in the comment of the dropped packet.

use roxie::nic::{Answer as Reply, Command, MemoryCommand};
use roxie::transport::Check;
use roxie::verbs::{Access, MwType, QpState, QpType, RKey, Sge, Srqn};
use roxie::wire::{AtomicEth, Bth, Ext, Feth, Opcode, Psn, Reth, XrcEth};

use crate::transport::reasons::captured;
use crate::transport::regions::{ON_DEMAND, Pages};
use crate::transport::xrc::Target;
use crate::transport::{Setup, Stage, attributes};

const FULL: [u8; 256] = [1; 256];
const HERE: fn(&mut Stage) -> Reth = |stage| stage.reth(0, 8);

fn write(stage: &mut Stage, psn: u32, reth: Reth, payload: &[u8]) {
    stage.request(Opcode::RC_WRITE_ONLY, psn, Ext::Reth(reth), payload);
}

fn read(stage: &mut Stage, reth: Reth) {
    stage.request(Opcode::RC_READ_REQUEST, 0, Ext::Reth(reth), &[]);
}

/// Puts a READ on the link without running the NIC.
fn read_quietly(stage: &mut Stage, psn: u32, length: u32) {
    let dest_qp = stage.qp.handle.qpn;
    let bth = Bth { opcode: Opcode::RC_READ_REQUEST, dest_qp, psn: Psn::new(psn), ..Bth::default() };
    let reth = stage.reth(0, length);
    stage.send(&bth, &Ext::Reth(reth), &[]);
}

/// Sends requests that fail one check.
type Provoke = fn(&mut Stage);
const REFUSED: &[(Check, Provoke)] = &[
    (Check::NotBegun, |stage| {
        stage.request(Opcode::RC_SEND_MIDDLE, 0, Ext::None, &FULL);
    }),
    (Check::MidMessage, |stage| {
        stage.receive(1, 0, 600);
        stage.request(Opcode::RC_SEND_FIRST, 0, Ext::None, &FULL);
        let reth = HERE(stage);
        write(stage, 1, reth, &[1; 8]);
    }),
    (Check::PacketLength, |stage| {
        stage.request(Opcode::RC_SEND_FIRST, 0, Ext::None, &[1; 8]);
    }),
    (Check::MessageLength, |stage| {
        let reth = HERE(stage);
        write(stage, 0, reth, &[1; 4]);
    }),
    (Check::TooLong, |stage| {
        let reth = stage.reth(0, u32::MAX);
        read(stage, reth);
    }),
    (Check::Alignment, |stage| {
        let (va, rkey) = (stage.memory.address + 4, stage.memory.key);
        let eth = AtomicEth { va, rkey, swap_or_add: 1, compare: 0 };
        stage.request(Opcode::RC_FETCH_ADD, 0, Ext::Atomic(eth), &[]);
    }),
    (Check::Resources, |stage| {
        // `max_dest_rd_atomic` is 4.
        (0..5).for_each(|psn| read_quietly(stage, psn, 8));
        stage.answers();
    }),
    (Check::Placement, |stage| {
        let reth = HERE(stage);
        stage.request(Opcode::RC_FLUSH, 0, Ext::FlushReth(Feth(0), reth), &[]);
    }),
    (Check::ReceiveLength, |stage| {
        stage.receive(1, 0, 4);
        stage.request(Opcode::RC_SEND_ONLY, 0, Ext::None, &[1; 8]);
    }),
    (Check::UnknownKey, |stage| {
        let reth = Reth { rkey: stage.memory.key ^ 1, ..HERE(stage) };
        write(stage, 0, reth, &[1; 8]);
    }),
    (Check::OtherDomain, |stage| {
        let pd = match stage.host.call(stage.now, Command::AllocPd) {
            Ok(Reply::Pd(pd)) => pd,
            other => panic!("a domain: {other:?}"),
        };
        let (memory, start) = (stage.memory.memory.clone(), 0x1000);
        let command = MemoryCommand::RegisterMemory { pd, access: Access::READ_WRITE, start, memory };
        match stage.host.call(stage.now, command) {
            Ok(Reply::Memory(_, rkey)) => read(stage, Reth { va: start, rkey, dma_len: 8 }),
            other => panic!("a region: {other:?}"),
        }
    }),
    (Check::OtherQp, |stage| {
        let window = stage.bound(MwType::Two);
        let other = stage.host.queue_pair().init(Default::default()).create();
        for attr in attributes(&stage.host, &Setup::default()) {
            stage.host.modify(stage.now, &other, &attr).expect("a legal transition");
        }
        stage.qp = other;
        let reth = Reth { va: stage.memory.address + 0x100, rkey: window.key, dma_len: 8 };
        read(stage, reth);
    }),
    (Check::Bounds, |stage| {
        let reth = stage.reth(1 << 16, 1);
        read(stage, reth);
    }),
    (Check::Rights, |stage| {
        let own = stage.host.register(64, Access::LOCAL_WRITE);
        read(stage, Reth { va: own.address, rkey: own.key, dma_len: 8 });
    }),
    (Check::NotToInvalidate, |stage| {
        stage.receive(1, 0, 64);
        let key = stage.memory.key;
        stage.request(Opcode::RC_SEND_ONLY_INVALIDATE, 0, Ext::Ieth(key), &[1]);
    }),
    (Check::ReceiveProtection, |stage| {
        stage.host.post_recv(&stage.qp, 5, &[stage.memory.sge(1 << 16, 4)]).expect("room");
        stage.request(Opcode::RC_SEND_ONLY, 0, Ext::None, &[1; 4]);
    }),
    (Check::NoPage, |stage| {
        let pages = Pages::new(1);
        let region = stage.register(ON_DEMAND, pages.address(), pages.memory()).expect("a region");
        pages.take_away(0);
        write(stage, 0, Reth { va: pages.address(), rkey: region.key, dma_len: 8 }, &[1; 8]);
    }),
    (Check::ReceiveNoPage, |stage| {
        let pages = Pages::new(1);
        let region = stage.register(ON_DEMAND, pages.address(), pages.memory()).expect("a region");
        pages.take_away(0);
        let sge = Sge { addr: pages.address(), length: 64, lkey: roxie::verbs::LKey(region.key) };
        stage.host.post_recv(&stage.qp, 5, &[sge]).expect("room");
        stage.request(Opcode::RC_SEND_ONLY, 0, Ext::None, &[1; 8]);
    }),
];

fn refused(check: Check) -> [String; 2] {
    let nak = check.nak();
    [format!("refused: NAK {nak:?}: {check}; QP to error"), format!("refuses: {check}; QP to error")]
}

/// Keeps the comments about a refusal.
fn of_refusals(comments: Vec<String>) -> Vec<String> {
    comments.into_iter().filter(|text| text.starts_with("refuse")).collect()
}

//= test: IBTA 9.7.4.1.5: rkey-is-of-the-domain
#[test]
fn failed_check_is_named_in_both_captured_packets() {
    for (check, provoke) in REFUSED {
        let (mut stage, file) = captured(Setup::default());
        provoke(&mut stage);
        assert_eq!(stage.state(), QpState::Err, "{check:?}");
        assert_eq!(of_refusals(file.comments()), refused(*check), "{check:?}");
    }
}

#[test]
fn qp_without_access_rights_reports_not_enabled() {
    let (mut stage, file) = captured(Setup { access: Access::empty(), ..Setup::default() });
    let reth = HERE(&mut stage);
    read(&mut stage, reth);
    assert_eq!(of_refusals(file.comments()), refused(Check::NotEnabled));
}

#[test]
fn read_of_deregistered_memory_is_named_in_capture() {
    let (mut stage, file) = captured(Setup::default());
    read_quietly(&mut stage, 0, 4096);
    stage.host.worker.take_in(stage.now);
    let index = stage.memory.index;
    stage.host.call(stage.now, Command::DeregisterMemory(index)).expect("the region exists");
    stage.answers();
    // The request passed its checks: only the NAK has a comment.
    assert_eq!(of_refusals(file.comments()), [refused(Check::Gone)[1].as_str()]);
}

#[test]
fn xrc_srq_checks_are_named_in_capture() {
    let (stage, file) = captured(Setup::default());
    let mut target = Target::on(stage);
    target.request(Opcode::XRC_SEND_ONLY, 0, Ext::Xrc(XrcEth { srqn: 1 }), &[1]);
    assert_eq!(of_refusals(file.comments()), refused(Check::NoSuchQueue));
    let (stage, file) = captured(Setup::default());
    let mut target = Target::on(stage);
    target.post(0, 10, 600);
    let [one, two] = [0, 1].map(|queue| target.number(queue)).map(|Srqn(srqn)| Ext::Xrc(XrcEth { srqn }));
    target.request(Opcode::XRC_SEND_FIRST, 0, one, &FULL);
    target.request(Opcode::XRC_SEND_LAST, 1, two, &[1]);
    assert_eq!(of_refusals(file.comments()), refused(Check::OtherQueue));
}

//= test: IBTA 9.7.4.1.5: write-is-checked-as-a-whole
#[test]
fn uc_drops_name_the_failed_check() {
    type Wrong = fn(&Stage) -> (Reth, usize);
    let cases: [(Check, Opcode, Wrong); 6] = [
        (Check::PacketLength, Opcode::UC_WRITE_FIRST, |stage| (stage.reth(0, 600), 8)),
        (Check::MessageLength, Opcode::UC_WRITE_ONLY, |stage| (stage.reth(0, 8), 4)),
        (Check::TooLong, Opcode::UC_WRITE_FIRST, |stage| (stage.reth(0, u32::MAX), 256)),
        (Check::UnknownKey, Opcode::UC_WRITE_ONLY, |stage| {
            (Reth { rkey: RKey(stage.memory.key ^ 1).0, ..stage.reth(0, 8) }, 8)
        }),
        (Check::Bounds, Opcode::UC_WRITE_FIRST, |stage| (stage.reth((1 << 16) - 256, 257), 256)),
        (Check::Bounds, Opcode::UC_WRITE_ONLY, |stage| (stage.reth(1 << 16, 8), 8)),
    ];
    let stage = |access| captured(Setup { qp_type: QpType::Uc, access, ..Setup::default() });
    for (check, opcode, wrong) in cases {
        let (mut stage, file) = stage(Access::READ_WRITE);
        let (reth, length) = wrong(&stage);
        assert_eq!(stage.request(opcode, 0, Ext::Reth(reth), &FULL[..length]), []);
        assert_eq!(file.comments(), [format!("dropped: {check}")], "{check:?}");
    }
    let (mut stage, file) = stage(Access::REMOTE_READ);
    let reth = stage.reth(0, 8);
    assert_eq!(stage.request(Opcode::UC_WRITE_ONLY, 0, Ext::Reth(reth), &[1; 8]), []);
    assert_eq!(file.comments(), [format!("dropped: {}", Check::NotEnabled)]);
}
