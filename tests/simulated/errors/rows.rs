//! The rows of the table.

use roxie::verbs::{
    Access, EventKind, LKey, Mtu, QpState, RKey, SendFlags, SendWr, Sge, WcStatus, WindowBind, WrOpcode,
};
use roxie::wire::NakCode;

use crate::errors::link::{Link, REQUESTER, RESPONDER, Setup};
use crate::errors::{Expect, Row};

use WcStatus::{
    LocLen, LocProt, LocQpOp, MwBind, RemAccess, RemInvReq, RemOp, RetryExc, RnrRetryExc, Success, WrFlush,
};

/// Refused as an invalid request.
const REFUSED: Expect = Expect {
    requests: [Success, RemInvReq, WrFlush],
    vendor_err: 0x61,
    receives: &[],
    states: [QpState::Err, QpState::Err],
    naks: &[NakCode::InvalidRequest],
    rnr_naks: 0,
    events: [&[], &[EventKind::QpRequestError]],
    counters: [&[("req_cqe_error", 1)], &[("resp_invalid_requests", 1)]],
    written: &[(0, 4)],
};

/// Refused because of rights, key or bounds.
const DENIED: Expect = Expect {
    requests: [Success, RemAccess, WrFlush],
    vendor_err: 0x62,
    naks: &[NakCode::RemoteAccess],
    events: [&[], &[EventKind::QpAccessError]],
    counters: [&[("req_cqe_error", 1), ("req_remote_access_errors", 1)], &[("resp_remote_access_errors", 1)]],
    ..REFUSED
};

/// Failed locally before a packet was sent.
const LOCAL: Expect = Expect {
    vendor_err: 0,
    states: [QpState::Err, QpState::Rts],
    naks: &[],
    events: [&[], &[]],
    counters: [&[("req_cqe_error", 1), ("req_cqe_flush_error", 1)], &[("resp_invalid_requests", 0)]],
    ..REFUSED
};

/// No response to any of the retries.
const SILENCE: Expect = Expect {
    requests: [Success, RetryExc, WrFlush],
    vendor_err: 0,
    states: [QpState::Err, QpState::Rts],
    naks: &[],
    events: [&[], &[]],
    counters: [&[("local_ack_timeout_err", 3), ("retry_exceeded_err", 1)], &[("req_cqe_error", 0)]],
    ..REFUSED
};

fn row(name: &'static str, source: &'static str, provoke: fn(&mut Link), expect: Expect) -> Row {
    Row { name, source, setup: Setup::default(), provoke, expect }
}

fn with(setup: Setup, row: Row) -> Row {
    Row { setup, ..row }
}

pub(crate) fn all() -> Vec<Row> {
    [
        invalid_requests(),
        path_mtus(),
        ranges(),
        rights(),
        receives(),
        local_errors(),
        losses(),
        unready_peers(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn invalid_requests() -> Vec<Row> {
    let no_reads = Setup { qp_access: Access::LOCAL_WRITE | Access::REMOTE_WRITE, ..Setup::default() };
    vec![
        row(
            "an atomic at an address that is no multiple of 8",
            "9.7.4.1.3",
            |link| link.post_request(WrOpcode::FetchAdd, 17, 8),
            REFUSED,
        ),
        row(
            "an ATOMIC WRITE at an address that is no multiple of 8",
            "A19.4.5.2",
            |link| link.post_request(WrOpcode::AtomicWrite, 20, 8),
            REFUSED,
        ),
        with(
            no_reads,
            row(
                "a READ that the QP does not grant",
                "9.7.4.1.2",
                |link| link.post_request(WrOpcode::Read, 0, 8),
                REFUSED,
            ),
        ),
        with(
            no_reads,
            row(
                "an atomic that the QP does not grant",
                "9.7.4.1.2",
                |link| link.post_request(WrOpcode::CompareSwap, 0, 8),
                REFUSED,
            ),
        ),
        with(
            Setup { max_dest_rd_atomic: 0, ..Setup::default() },
            row(
                "a READ where the responder has no resource for one",
                "9.7.4.1.4",
                |link| link.post_request(WrOpcode::Read, 0, 8),
                REFUSED,
            ),
        ),
    ]
}

fn path_mtus() -> Vec<Row> {
    let unequal = |requester, responder| Setup { path_mtu: [requester, responder], ..Setup::default() };
    vec![
        with(
            unequal(Mtu::Mtu1024, Mtu::Mtu256),
            row(
                "an ONLY packet beyond the responder's path MTU",
                "9.7.4.1.6",
                |link| link.post_request(WrOpcode::Write, 0, 1000),
                REFUSED,
            ),
        ),
        with(
            unequal(Mtu::Mtu1024, Mtu::Mtu256),
            row(
                "a FIRST packet beyond the responder's path MTU",
                "9.7.4.1.6",
                |link| link.post_request(WrOpcode::Write, 0, 2000),
                REFUSED,
            ),
        ),
        with(
            unequal(Mtu::Mtu256, Mtu::Mtu1024),
            row(
                "a FIRST packet short of the responder's path MTU",
                "9.7.4.1.6",
                |link| link.post_request(WrOpcode::Write, 0, 600),
                REFUSED,
            ),
        ),
    ]
}

/// Keys that are none, and ranges outside the region of a key.
fn ranges() -> Vec<Row> {
    vec![
        row(
            "a WRITE under a key that is none",
            "9.7.4.1.5",
            |link| link.post_under_no_key(WrOpcode::Write),
            DENIED,
        ),
        row(
            "a READ under a key that is none",
            "9.7.4.1.5",
            |link| link.post_under_no_key(WrOpcode::Read),
            DENIED,
        ),
        row(
            "an atomic under a key that is none",
            "9.7.4.1.5",
            |link| link.post_under_no_key(WrOpcode::FetchAdd),
            DENIED,
        ),
        row(
            "a WRITE that begins before its region",
            "9.7.4.1.5",
            |link| {
                let good = link.request(WrOpcode::Write, 0);
                link.post_8(&SendWr { remote_addr: good.remote_addr - 1, ..good });
            },
            DENIED,
        ),
        row(
            "a WRITE that ends beyond its region",
            "9.7.4.1.5",
            |link| link.post_request(WrOpcode::Write, 8192 - 7, 8),
            DENIED,
        ),
        row(
            "a WRITE of many packets that ends beyond its region",
            "9.7.4.1.5",
            |link| link.post_request(WrOpcode::Write, 4096, 4097),
            DENIED,
        ),
        row(
            "a READ that ends beyond its region",
            "9.7.4.1.5",
            |link| link.post_request(WrOpcode::Read, 8192 - 7, 8),
            DENIED,
        ),
        row(
            "a WRITE around the end of all addresses",
            "9.7.4.1.5",
            |link| {
                let good = link.request(WrOpcode::Write, 0);
                link.post_8(&SendWr { remote_addr: u64::MAX - 3, ..good });
            },
            DENIED,
        ),
    ]
}

/// Rights that a region does not grant.
fn rights() -> Vec<Row> {
    let every = Access::READ_WRITE | Access::FLUSH_GLOBAL;
    let flush_not_granted = Setup { qp_access: every, ..Setup::default() };
    vec![
        row(
            "a WRITE to a region that grants none",
            "9.7.4.1.5",
            |link| link.trespass(WrOpcode::Write),
            DENIED,
        ),
        row(
            "a READ from a region that grants none",
            "9.7.4.1.5",
            |link| link.trespass(WrOpcode::Read),
            DENIED,
        ),
        row(
            "an atomic in a region that grants none",
            "9.7.4.1.5",
            |link| link.trespass(WrOpcode::CompareSwap),
            DENIED,
        ),
        row(
            "an ATOMIC WRITE in a region that grants no WRITE",
            "A19.4.5.2",
            |link| link.trespass(WrOpcode::AtomicWrite),
            DENIED,
        ),
        with(
            flush_not_granted,
            row(
                "a FLUSH of a region that grants none",
                "A19.4.4.2",
                |link| {
                    let range = roxie::verbs::FlushRange {
                        address: link.request(WrOpcode::Flush, 0).remote_addr,
                        rkey: link.request(WrOpcode::Flush, 0).rkey,
                        length: 8,
                        global: true,
                        persistent: false,
                        whole_region: false,
                    };
                    link.post(&SendWr::flush(2, SendFlags::SIGNALED, &range), &[]);
                },
                DENIED,
            ),
        ),
    ]
}

fn receives() -> Vec<Row> {
    let two = Setup { receives: &[8, 64], ..Setup::default() };
    vec![
        with(
            two,
            row(
                "a SEND longer than the receive",
                "9.7.4.1.6",
                |link| link.post_request(WrOpcode::Send, 0, 16),
                Expect { receives: &[LocLen, WrFlush], ..REFUSED },
            ),
        ),
        with(
            two,
            row(
                "a SEND of many packets longer than the receive",
                "9.7.4.1.6",
                |link| link.post_request(WrOpcode::Send, 0, 600),
                Expect { receives: &[LocLen, WrFlush], ..REFUSED },
            ),
        ),
        with(
            two,
            row(
                "receives that wait when a WRITE is refused",
                "10.3.1",
                |link| link.trespass(WrOpcode::Write),
                Expect { receives: &[WrFlush, WrFlush], ..DENIED },
            ),
        ),
        with(
            two,
            row(
                "a WRITE with immediate under a key that is none",
                "9.7.4.1.5",
                |link| link.post_under_no_key(WrOpcode::WriteImm),
                Expect { receives: &[WrFlush, WrFlush], ..DENIED },
            ),
        ),
        row(
            "a SEND into a receive whose key is none",
            "9.7.4.1.5",
            |link| {
                link.post_bad_receive();
                link.post_request(WrOpcode::Send, 0, 8);
            },
            Expect {
                requests: [Success, RemOp, WrFlush],
                vendor_err: 0x63,
                receives: &[LocProt],
                naks: &[NakCode::RemoteOperational],
                events: [&[], &[EventKind::QpFatal]],
                counters: [&[("req_cqe_error", 1)], &[("resp_cqe_error", 1)]],
                ..REFUSED
            },
        ),
    ]
}

fn local_errors() -> Vec<Row> {
    vec![
        row(
            "a SEND from under a key that is none",
            "10.7.2",
            |link| {
                let wr = link.request(WrOpcode::Send, 0);
                let good = link.source(8);
                link.post(&wr, &[Sge { lkey: LKey(good.lkey.0 ^ 0xff), ..good }]);
            },
            Expect { requests: [Success, LocProt, WrFlush], ..LOCAL },
        ),
        row(
            "a WRITE from beyond the end of its own region",
            "10.7.2",
            |link| {
                let wr = link.request(WrOpcode::Write, 0);
                let good = link.source(8);
                link.post(&wr, &[Sge { addr: good.addr + 8190, ..good }]);
            },
            Expect { requests: [Success, LocProt, WrFlush], ..LOCAL },
        ),
        row(
            "a READ into memory under a key that is none",
            "10.7.2",
            |link| {
                let wr = link.request(WrOpcode::Read, 0);
                let good = link.source(8);
                link.post(&wr, &[Sge { lkey: LKey(good.lkey.0 ^ 0xff), ..good }]);
            },
            Expect { requests: [Success, LocProt, WrFlush], ..LOCAL },
        ),
        row(
            "an atomic whose result has less than 8 bytes of room",
            "10.7.2.2",
            |link| link.post_request(WrOpcode::FetchAdd, 0, 4),
            Expect { requests: [Success, LocLen, WrFlush], ..LOCAL },
        ),
        with(
            Setup { max_rd_atomic: 0, ..Setup::default() },
            row(
                "a READ where none may be outstanding",
                "10.7.2",
                |link| link.post_request(WrOpcode::Read, 0, 8),
                Expect { requests: [Success, LocQpOp, WrFlush], ..LOCAL },
            ),
        ),
        row(
            "the bind of a window that is none",
            "10.6.7.2.6",
            |link| {
                let source = link.source(0);
                let bind = WindowBind {
                    window: RKey(0x1234_5600),
                    new_key: RKey(0x1234_5601),
                    region: source.lkey,
                    address: source.addr,
                    length: 8,
                    access: Access::REMOTE_READ,
                };
                link.post(&SendWr::bind_window(2, SendFlags::SIGNALED, &bind), &[]);
            },
            Expect { requests: [Success, MwBind, WrFlush], ..LOCAL },
        ),
    ]
}

/// Packets that are lost until the retries are over. Bytes 0 to 4 belong to the good request, 16 to 24 to the middle
/// one, 8 to 12 to the last one, which arrives as well if only responses are lost.
fn losses() -> Vec<Row> {
    let arrived = Expect { written: &[(0, 4), (8, 12), (16, 24)], ..SILENCE };
    vec![
        row(
            "a WRITE that never arrives",
            "9.7.6.1.3",
            |link| {
                link.settle();
                link.lose(REQUESTER, |_| true);
                link.post_request(WrOpcode::Write, 16, 8);
            },
            SILENCE,
        ),
        row(
            "a WRITE whose acknowledgement never arrives",
            "9.7.6.1.3",
            |link| {
                link.settle();
                link.lose(RESPONDER, |_| true);
                link.post_request(WrOpcode::Write, 16, 8);
            },
            arrived,
        ),
        row(
            "a READ whose response never arrives",
            "9.7.6.1.3",
            |link| {
                link.settle();
                link.lose(RESPONDER, |_| true);
                link.post_request(WrOpcode::Read, 16, 8);
            },
            Expect { written: &[(0, 4), (8, 12)], ..SILENCE },
        ),
        row(
            "an atomic whose answer never arrives: it is done once",
            "9.7.6.1.3",
            |link| {
                link.settle();
                link.lose(RESPONDER, |_| true);
                let wr = SendWr { compare_add: 1, ..link.request(WrOpcode::FetchAdd, 16) };
                link.post_8(&wr);
            },
            Expect { written: &[(0, 4), (8, 12), (16, 17)], ..SILENCE },
        ),
        row(
            "a packet that is lost again and again",
            "9.7.5.1.4",
            |link| {
                link.settle();
                let mut second = 0;
                link.lose(REQUESTER, move |packet| {
                    // Drop the first matching packet, and each retransmission of it.
                    if second == 0 {
                        second = packet.bth.psn.value() + 1;
                    }
                    packet.bth.psn.value() + 1 == second
                });
                link.post_request(WrOpcode::Write, 16, 8);
            },
            Expect {
                naks: &[NakCode::PsnSequence],
                counters: [&[("packet_seq_err", 1), ("retry_exceeded_err", 1)], &[("out_of_sequence", 3)]],
                ..SILENCE
            },
        ),
    ]
}

/// Peers that are not ready until the retries are over.
fn unready_peers() -> Vec<Row> {
    vec![
        row(
            "a peer whose QP has gone to the error state",
            "9.7.6.1.3",
            |link| {
                link.settle();
                link.modify_responder(QpState::Err);
                link.post_request(WrOpcode::Write, 16, 8);
            },
            Expect { states: [QpState::Err, QpState::Err], ..SILENCE },
        ),
        row(
            "a peer whose QP was reset",
            "9.7.6.1.3",
            |link| {
                link.settle();
                link.modify_responder(QpState::Reset);
                link.post_request(WrOpcode::Write, 16, 8);
            },
            Expect { states: [QpState::Err, QpState::Reset], ..SILENCE },
        ),
        row(
            "a SEND for which no receive is ever posted",
            "9.7.5.2.8",
            |link| link.post_request(WrOpcode::Send, 0, 8),
            Expect {
                requests: [Success, RnrRetryExc, WrFlush],
                vendor_err: 0x21,
                rnr_naks: 3,
                counters: [&[("rcvd_rnr_err", 3), ("retry_rnr_exceeded_err", 1)], &[("out_of_buffer", 3)]],
                ..SILENCE
            },
        ),
        row(
            "a WRITE with immediate for which no receive is ever posted",
            "9.7.5.2.8",
            |link| link.post_request(WrOpcode::WriteImm, 16, 8),
            Expect {
                requests: [Success, RnrRetryExc, WrFlush],
                vendor_err: 0x21,
                rnr_naks: 3,
                counters: [&[("rcvd_rnr_err", 3), ("retry_rnr_exceeded_err", 1)], &[("out_of_buffer", 3)]],
                ..SILENCE
            },
        ),
    ]
}
