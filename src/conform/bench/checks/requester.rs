//! Requests as a requester sends them: opcodes, segmentation, headers, PSNs, and how it completes (9.2, 9.4, 9.7.3).

use roxie_wire::{NetHeader, Opcode};

use crate::bench::{Bench, Pair, QKEY, Setup};
use crate::check::{Chapter, Check, Need, Role};
use crate::packet::Seen;
use crate::service::Service;
use crate::verdict::{Script, must};

/// Address and rkey that the agent's requests name. The bench checks that they are sent as they are.
pub(super) const REMOTE: (u64, u32) = (0x7f00_1234_5678_0000, 0x00c0_ffee);

/// Returns the agent's words for a request of `op` with `length` bytes.
pub(super) fn words(op: &str, length: u32) -> String {
    format!("op={op} off=0 len={length} raddr={} rkey={} imm=0x01020304 id=7", REMOTE.0, REMOTE.1)
}

/// An operation: the agent's word, the opcode's name of a single packet, its READ-like answer if it has one.
const SINGLES: [(&str, &str); 4] = [
    ("send", "SEND_ONLY"),
    ("send_imm", "SEND_ONLY_IMM"),
    ("write", "WRITE_ONLY"),
    ("write_imm", "WRITE_ONLY_IMM"),
];

pub(super) fn checks() -> Vec<Check> {
    let mut chapter = Chapter::new("Generating requests", Service::Rc, Role::Requester);
    operations(&mut chapter);
    headers(&mut chapter);
    order(&mut chapter);
    let mut all = chapter.done();
    all.extend(unreliable());
    all
}

/// Packets of each operation.
fn operations(chapter: &mut Chapter) {
    for (op, opcode) in SINGLES {
        for length in [0, 1, 1024] {
            chapter
                .add(
                    format!("rc/request/{op}/{length}_bytes"),
                    "9.7.3",
                    format!("the agent posts a {op} of {length} bytes with path MTU 1024"),
                    "a message that fits the path MTU is one ONLY packet, which asks for an acknowledgement; the acknowledgement \
                     completes it",
                    move |bench| single(bench, op, opcode, length),
                )
                .is_short = length == 1;
        }
    }
    for mtu in [256, 512, 1024, 2048, 4096] {
        for op in ["send", "write", "write_imm"] {
            chapter.add(
                format!("rc/request/{op}/mtu{mtu}"),
                "9.7.3",
                format!("the agent posts a {op} of three packets less one byte with path MTU {mtu}"),
                "a longer message is FIRST, MIDDLE and LAST, all full but the last; a RETH stands in the first, immediate data in the \
                 last",
                move |bench| segmented(bench, op, mtu),
            );
        }
    }
    chapter.add(
        "rc/request/read",
        "9.7.3",
        "the agent posts a READ of 2,056 bytes",
        "a READ is one request packet with address, key and length; its response is stored and completes it",
        |bench| {
            let rc = bench.rc()?;
            bench.post(&rc, &words("read", 2056))?;
            let came = bench.expect_requests(&rc, &["READ_REQUEST+0 len 0"])?;
            names_remote(&came[0], 2056)?;
            bench.send(&rc.response(Opcode::RC_READ_RESPONSE_FIRST, 0).aeth(0x1f, 1).data(&[1; 1024]))?;
            bench.send(&rc.response(Opcode::RC_READ_RESPONSE_MIDDLE, 1).data(&[2; 1024]))?;
            bench.send(&rc.response(Opcode::RC_READ_RESPONSE_LAST, 2).aeth(0x1f, 1).data(&[3; 8]))?;
            bench.completes(&rc, &[(7, 0)])?;
            bench.memory(rc.region, 0, &[[1; 1024].as_slice(), &[2; 1024], &[3; 8]].concat())
        },
    ).short();
    for (op, opcode, name) in [
        ("cmp_swap", Opcode::RC_COMPARE_SWAP, "COMPARE_SWAP"),
        ("fetch_add", Opcode::RC_FETCH_ADD, "FETCH_ADD"),
    ] {
        chapter
            .add(
                format!("rc/request/{op}"),
                "9.4.5",
                format!("the agent posts a {op}"),
                "the operands are sent as given; the returned value is stored, and completes the request",
                move |bench| atomic(bench, op, opcode, name),
            )
            .needs(Need::Atomics);
    }
}

/// Fields of headers.
fn headers(chapter: &mut Chapter) {
    chapter.add(
        "rc/request/header_fields",
        "9.2",
        "the agent posts a SEND",
        "a request has transport version 0, the default P_Key and zero in what is reserved",
        |bench| {
            let rc = bench.rc()?;
            bench.post(&rc, &words("send", 8))?;
            let came = bench.expect_requests(&rc, &["SEND_ONLY+0 len 8"])?;
            let bth = &came[0].packet.bth;
            must(bth.tver == 0 && bth.pkey == 0xffff && bth.reserved7 == 0, || {
                format!("the header is {bth:?}")
            })?;
            must(!bth.solicited && !bth.fecn && !bth.becn, || format!("the header is {bth:?}"))
        },
    );
    chapter
        .add(
            "rc/request/icrc",
            "7.8.1",
            "the agent posts a SEND of 5 bytes",
            "the ICRC of what is sent is right, and the pad is zero",
            |bench| {
                let rc = bench.rc()?;
                bench.post(&rc, &words("send", 5))?;
                let came = bench.expect_requests(&rc, &["SEND_ONLY+0 len 5"])?;
                must(came[0].icrc_ok == Some(true), || "the ICRC is wrong".into())?;
                let end = came[0].packet.payload.end;
                must(came[0].frame.get(end..end + 3) == Some(&[0; 3]), || "the pad is not zero".into())
            },
        )
        .needs(Need::CapNetRaw);
    chapter
        .add(
            "rc/request/network_header",
            "A17.4.5",
            "the agent posts two SENDs on a path with traffic class 0x68",
            "packets carry the traffic class of their path, a hop limit, DF over IPv4, and one UDP source port",
            network_header,
        )
        .needs(Need::CapNetRaw);
    chapter.add(
        "rc/request/solicited",
        "9.2",
        "the agent posts a SEND with the solicited flag",
        "the solicited event bit is set in the packet that ends the message",
        |bench| {
            let rc = bench.rc()?;
            bench.post(&rc, "op=send off=0 len=1032 flags=se id=7")?;
            let came = bench.expect_requests(&rc, &["SEND_FIRST+0 len 1024", "SEND_LAST+1 len 8"])?;
            must(came[1].packet.bth.solicited && !came[0].packet.bth.solicited, || {
                "the bit is not in the LAST packet alone".into()
            })
        },
    );
}

/// PSNs of requests, and requests that wait for a READ.
fn order(chapter: &mut Chapter) {
    chapter.add(
        "rc/request/psn_wrap",
        "9.7.1",
        "the agent posts three SENDs, the first with PSN 0xfffffe",
        "each request packet has the PSN after that of the packet before it, modulo 2^24",
        |bench| {
            let rc = bench.connect(&Setup { peer_first: 0x00ff_fffe, ..Setup::new(Service::Rc) })?;
            bench.post(&rc, "op=send off=0 len=8 n=3 id=1")?;
            bench.expect_requests(&rc, &["SEND_ONLY+0 len 8", "SEND_ONLY+1 len 8", "SEND_ONLY+2 len 8"])?;
            bench.send(&rc.ack(2, 3))?;
            bench.completes(&rc, &[(1, 0), (2, 0), (3, 0)]).map(drop)
        },
    );
    chapter.add(
        "rc/request/read_limit",
        "9.7.2",
        "the agent posts three READs on a QP that may have two outstanding",
        "the third READ is sent when the first has its response",
        |bench| {
            let rc = bench.connect(&Setup { reads: 2, ..Setup::new(Service::Rc) })?;
            bench.post(&rc, &format!("{} n=3", words("read", 8)))?;
            bench.expect_requests(&rc, &["READ_REQUEST+0 len 0", "READ_REQUEST+1 len 0"])?;
            bench.send(&rc.response(Opcode::RC_READ_RESPONSE_ONLY, 0).aeth(0x1f, 1).data(&[1; 8]))?;
            bench.expect_requests(&rc, &["READ_REQUEST+2 len 0"])?;
            bench.completes(&rc, &[(7, 0)]).map(drop)
        },
    );
    chapter.add(
        "rc/request/fence",
        "10.8.3.3",
        "the agent posts a READ, and a SEND with a fence",
        "a fenced request is sent when the READ before it has its response",
        |bench| {
            let rc = bench.rc()?;
            bench.post(&rc, &words("read", 8))?;
            bench.post(&rc, "op=send off=64 len=8 flags=sf id=8")?;
            bench.expect_requests(&rc, &["READ_REQUEST+0 len 0"])?;
            bench.send(&rc.response(Opcode::RC_READ_RESPONSE_ONLY, 0).aeth(0x1f, 1).data(&[1; 8]))?;
            bench.expect_requests(&rc, &["SEND_ONLY+1 len 8"]).map(drop)
        },
    );
    chapter.add(
        "rc/request/read_takes_psns",
        "9.7.3",
        "the agent posts a READ of three packets and a SEND",
        "what follows a READ has the PSN after the last of its response",
        |bench| {
            let rc = bench.rc()?;
            bench.post(&rc, &words("read", 2056))?;
            bench.post(&rc, "op=send off=4096 len=8 id=8")?;
            bench.expect_requests(&rc, &["READ_REQUEST+0 len 0", "SEND_ONLY+3 len 8"]).map(drop)
        },
    );
}

/// Requests of UC and UD, which no acknowledgement completes.
fn unreliable() -> Vec<Check> {
    let mut chapter = Chapter::new("Generating requests", Service::Uc, Role::Requester);
    for (op, opcode) in SINGLES {
        chapter.add(
            format!("uc/request/{op}"),
            "9.8.2",
            format!("the agent posts a {op} of 8 bytes"),
            "the message is sent once, and completes without an acknowledgement",
            move |bench| {
                let uc = bench.connect(&Setup::new(Service::Uc))?;
                bench.post(&uc, &words(op, 8))?;
                bench.expect_requests(&uc, &[&format!("{opcode}+0 len 8")])?;
                bench.completes(&uc, &[(7, 0)]).map(drop)
            },
        );
    }
    let mut datagrams = Chapter::new("Generating requests", Service::Ud, Role::Requester);
    for (op, opcode) in &SINGLES[..2] {
        datagrams.add(
            format!("ud/request/{op}"),
            "9.8.3",
            format!("the agent posts a datagram ({op})"),
            "the datagram names Q_Key and source QPN, asks for no acknowledgement, and completes when it is sent",
            move |bench| {
                let ud = bench.connect(&Setup::new(Service::Ud))?;
                bench.post(&ud, &format!("op={op} off=0 len=8 qpn={} imm=1 id=7", ud.own.value()))?;
                let came = bench.expect_requests(&ud, &[&format!("{opcode}+0 len 8")])?;
                let deth = came[0].packet.deth().unwrap_or_default();
                must(deth.qkey == QKEY && deth.src_qp == ud.qpn, || format!("the DETH is {deth:?}"))?;
                bench.completes(&ud, &[(7, 0)]).map(drop)
            },
        );
    }
    let mut all = chapter.done();
    all.extend(datagrams.done());
    all
}

fn names_remote(seen: &Seen, length: u32) -> Script {
    let reth = seen.packet.reth().unwrap_or_default();
    must((reth.va, reth.rkey, reth.dma_len) == (REMOTE.0, REMOTE.1, length), || {
        format!("the RETH is {reth:?}")
    })
}

fn has_imm(seen: &Seen, op: &str) -> Script {
    let imm = seen.packet.imm();
    must(imm == op.ends_with("imm").then_some(0x0102_0304), || format!("the immediate data is {imm:?}"))
}

fn single(bench: &mut Bench, op: &str, opcode: &str, length: u32) -> Script {
    let rc = bench.rc()?;
    bench.post(&rc, &words(op, length))?;
    let came = bench.expect_requests(&rc, &[&format!("{opcode}+0 len {length}")])?;
    must(came[0].packet.bth.ack_req, || "the packet asks for no acknowledgement".into())?;
    must(came[0].payload() == Bench::pattern(0, length as usize), || {
        "the payload is not what memory has".into()
    })?;
    has_imm(&came[0], op)?;
    if op.starts_with("write") {
        names_remote(&came[0], length)?;
    }
    bench.completes(&rc, &[])?;
    bench.send(&rc.ack(0, 1))?;
    bench.completes(&rc, &[(7, 0)]).map(drop)
}

fn segmented(bench: &mut Bench, op: &str, mtu: usize) -> Script {
    let rc: Pair = bench.connect(&Setup { mtu, ..Setup::new(Service::Rc) })?;
    let length = 3 * mtu - 1;
    bench.post(&rc, &words(op, length as u32))?;
    let name = if op == "send" { "SEND" } else { "WRITE" };
    let imm = if op.ends_with("imm") { "_IMM" } else { "" };
    let came = bench.expect_requests(
        &rc,
        &[
            &format!("{name}_FIRST+0 len {mtu}"),
            &format!("{name}_MIDDLE+1 len {mtu}"),
            &format!("{name}_LAST{imm}+2 len {}", mtu - 1),
        ],
    )?;
    let bytes: Vec<u8> = came.iter().flat_map(|seen| seen.payload().to_vec()).collect();
    must(bytes == Bench::pattern(0, length), || "the payload is not what memory has".into())?;
    has_imm(&came[2], op)?;
    if name == "WRITE" {
        names_remote(&came[0], length as u32)?;
    }
    must(came[2].packet.bth.ack_req, || "the last packet asks for no acknowledgement".into())?;
    bench.send(&rc.ack(2, 1))?;
    bench.completes(&rc, &[(7, 0)]).map(drop)
}

fn atomic(bench: &mut Bench, op: &str, opcode: Opcode, name: &str) -> Script {
    let rc = bench.rc()?;
    bench.post(&rc, &format!("{} compare=0x1111 swap=0x2222", words(op, 8)))?;
    let came = bench.expect_requests(&rc, &[&format!("{name}+0 len 0")])?;
    let sent = came[0].packet.atomic_eth().unwrap_or_default();
    let operands = if opcode == Opcode::RC_COMPARE_SWAP { (0x2222, 0x1111) } else { (0x1111, sent.compare) };
    must((sent.va, sent.rkey) == REMOTE && (sent.swap_or_add, sent.compare) == operands, || {
        format!("the AtomicETH is {sent:?}")
    })?;
    let original = 0x1122_3344_5566_7788u64;
    let [high, low] = [(original >> 32) as u32, original as u32];
    bench.send(&rc.response(Opcode::RC_ATOMIC_ACKNOWLEDGE, 0).aeth(0x1f, 1).word(high).word(low))?;
    bench.completes(&rc, &[(7, 0)])?;
    bench.memory(rc.region, 0, &original.to_le_bytes())
}

fn network_header(bench: &mut Bench) -> Script {
    let setup = Setup { traffic_class: 0x68, ..Setup::new(Service::Rc) };
    let rc = bench.connect(&setup)?;
    bench.post(&rc, "op=send off=0 len=8 n=2 id=1")?;
    let came = bench.expect_requests(&rc, &["SEND_ONLY+0 len 8", "SEND_ONLY+1 len 8"])?;
    for seen in &came {
        let (class, hops, df) = match seen.packet.net {
            NetHeader::Ipv4(ip) => (ip.tos, ip.ttl, ip.dont_fragment),
            NetHeader::Ipv6(ip) | NetHeader::Grh(ip) => (ip.traffic_class, ip.hop_limit, true),
        };
        must(class & 0xfc == 0x68 && hops > 0 && df, || {
            format!("traffic class {class:#x}, hop limit {hops}, DF {df}")
        })?;
    }
    let ports: Vec<u16> = came.iter().filter_map(|seen| seen.packet.udp.map(|udp| udp.source_port)).collect();
    must(ports[0] == ports[1], || format!("UDP source ports {ports:?}"))
}
