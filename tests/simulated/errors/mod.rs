//! The error table, row by row, over a link between two NICs: completions, QP states, packets on the wire, counters and
//! events of both sides, and memory that must not change.
//!
//! Each row is played in both directions. The requester posts three requests: a valid one, the one that fails, and a
//! valid one that must not be executed. [`rows`] has the table, [`link`] the two NICs.

mod link;
mod rows;

use std::panic::catch_unwind;

use link::{Link, PATTERN, REQUESTER, RESPONDER, Setup};
use roxie::verbs::{EventKind, QpState, WcStatus};
use roxie::wire::{NakCode, Syndrome};

/// One row of the table.
struct Row {
    name: &'static str,
    /// Clause of the InfiniBand specification, volume 1.
    source: &'static str,
    setup: Setup,
    /// Posts the middle request, and causes the error.
    provoke: fn(&mut Link),
    expect: Expect,
}

/// The expected state when nothing is left to happen.
#[derive(Clone, Copy)]
struct Expect {
    /// Completions of the requester's three requests, in order.
    requests: [WcStatus; 3],
    /// `vendor_err` of the middle completion: the NAK's syndrome byte, or 0.
    vendor_err: u8,
    /// Completions of the responder's receives, in order.
    receives: &'static [WcStatus],
    states: [QpState; 2],
    /// NAKs on the wire.
    naks: &'static [NakCode],
    /// RNR NAKs on the wire.
    rnr_naks: u64,
    events: [&'static [EventKind]; 2],
    /// Counters of each side that the error increases.
    counters: [&'static [(&'static str, u64)]; 2],
    /// Changed ranges of the responder's memory: from, to (exclusive).
    written: &'static [(u64, u64)],
}

fn play(row: &Row, swapped: bool) {
    let what = format!("{}{}", row.name, if swapped { ", the other way round" } else { "" });
    let mut link = Link::new(&row.setup, swapped);
    link.post_good(1, 0);
    (row.provoke)(&mut link);
    link.post_good(3, 8);
    assert!(link.settle(), "{what}: it does not come to rest");

    let Expect { requests, vendor_err, receives, states, naks, rnr_naks, events, counters, written } =
        row.expect;
    let done = link.completions(REQUESTER);
    let statuses: Vec<_> = done.iter().map(|wc| (wc.wr_id, wc.status)).collect();
    let wanted: Vec<_> = (1..).zip(requests).collect();
    assert_eq!(statuses, wanted, "{what}: the requests");
    assert_eq!(done[1].vendor_err, vendor_err, "{what}: vendor_err");
    let answer = Syndrome::from(vendor_err);
    let is_explained = vendor_err == 0 || done[1].explain().contains(&answer.to_string());
    assert!(is_explained, "{what}: {} does not tell of {answer}", done[1].explain());
    let taken: Vec<_> = link.completions(RESPONDER).iter().map(|wc| (wc.wr_id, wc.status)).collect();
    let wanted: Vec<_> = (100..).zip(receives.iter().copied()).collect();
    assert_eq!(taken, wanted, "{what}: the receives");
    assert_eq!([link.state(REQUESTER), link.state(RESPONDER)], states, "{what}: states");
    assert_eq!(link.naks(), (naks.to_vec(), rnr_naks), "{what}: NAKs");
    for side in [REQUESTER, RESPONDER] {
        let who = ["the requester", "the responder"][side];
        assert_eq!(link.events(side), events[side], "{what}: events of {who}");
        for &(name, value) in counters[side] {
            assert_eq!(link.counter(side, name), value, "{what}: {name} of {who}");
        }
    }
    let (bytes, outside) = link.memory(RESPONDER);
    assert!(outside.iter().all(|byte| *byte == PATTERN), "{what}: memory outside the region changed");
    for (at, byte) in (0..).zip(bytes) {
        let may = written.iter().any(|(from, to)| (*from..*to).contains(&at));
        assert_eq!(byte == PATTERN, !may, "{what}: byte {at} of the responder's region");
    }
}

//= test: IBTA 9.7.4.1.5: rkey-grants-the-operation
//= test: IBTA 9.7.4.1: operation-is-enabled, responder-resources-suffice, atomic-is-aligned
//= test: IBTA 9.7.4.1.6: receive-holds-the-message
//= test: IBTA 10.7.2: lkey-is-checked
//= test: IBTA 9.7.6: nak-ends-the-request
//= test: IBTA 9.9.2.2: requester-error-ends-rc
//= test: IBTA 10.10: oldest-request-carries-the-cause
//= test: IBTA 9.9.2: retries-are-counted, rnr-retries-are-counted
#[test]
fn the_error_table_holds_row_by_row() {
    let rows = rows::all();
    println!("{:<58} {:<22} {:<14} NAK", "error", "source", "completion");
    let mut failed = 0;
    for row in &rows {
        for swapped in [false, true] {
            // Play all rows, even after a failure: the table is read as a whole.
            failed += u32::from(catch_unwind(|| play(row, swapped)).is_err());
        }
        let naks: Vec<_> = row.expect.naks.iter().map(|nak| format!("{nak:?}")).collect();
        let status = format!("{:?}", row.expect.requests[1]);
        println!("{:<58} {:<22} {status:<14} {}", row.name, row.source, naks.join(", "));
    }
    assert_eq!(failed, 0, "rows that do not hold, each both ways round");
    println!("{} errors, each both ways round", rows.len());
    let provoked = |status: WcStatus| {
        rows.iter().any(|row| row.expect.requests[1] == status || row.expect.receives.contains(&status))
    };
    use WcStatus as S;
    let all =
        [S::LocLen, S::LocQpOp, S::LocProt, S::WrFlush, S::MwBind, S::RemInvReq, S::RemAccess, S::RemOp];
    for status in all.into_iter().chain([S::RetryExc, S::RnrRetryExc]) {
        assert!(provoked(status), "no row ends in {status:?}");
    }
}
