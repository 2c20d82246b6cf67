//! Registered memory that the application unmaps or protects. Requests that touch it fail, in either role; other
//! requests succeed.

use std::ptr::NonNull;

use roxie::shared::HostMemory;
use roxie::time::Nanos;
use roxie::verbs::{Access, EventKind, LKey, SendFlags, SendWr, Sge, WcStatus, WrOpcode};
use roxie::wire::{Aeth, AtomicEth, Ext, Feth, NakCode, Opcode, Reth, Syndrome};

use crate::transport::regions::{Pages, Region};
use crate::transport::{Answer, FIRST, Setup, Stage};

/// A multiple of every page size.
pub(super) const PAGE: u64 = 65536;
const SOON: Nanos = Nanos(1000);
const ACK: Syndrome = Syndrome::Ack { credits: 31 };

/// How a page becomes inaccessible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gone {
    Unmapped,
    Protected,
    ReadOnly,
}

const EVERYWAY: [Gone; 3] = [Gone::Unmapped, Gone::Protected, Gone::ReadOnly];

impl Gone {
    fn go(self, pages: &Pages, page: usize) {
        match self {
            Gone::Protected => pages.take_away(page),
            Gone::ReadOnly => pages.protect(page, libc::PROT_READ),
            Gone::Unmapped => {
                let at = (pages.address() + page as u64 * PAGE) as *mut libc::c_void;
                // SAFETY: a page of the mapping, into which no reference exists.
                assert_eq!(unsafe { libc::munmap(at, PAGE as usize) }, 0);
            }
        }
    }
}

/// Two pages of application memory, registered as an ordinary region.
fn borrowed() -> (Stage, Pages, Region) {
    borrowed_by(Stage::new())
}

pub(super) fn borrowed_by(mut stage: Stage) -> (Stage, Pages, Region) {
    let pages = Pages::new(2);
    let base = NonNull::new(pages.address() as *mut u8).expect("an address");
    // SAFETY: no reference into the mapping exists.
    let memory = unsafe { HostMemory::borrowed(base, 2 * PAGE as usize) };
    let access = Access::READ_WRITE | Access::REMOTE_ATOMIC;
    let region = stage.register(access, pages.address(), memory).expect("a region");
    (stage, pages, region)
}

#[test]
fn write_to_a_missing_page_is_refused() {
    for gone in EVERYWAY {
        let (mut stage, pages, region) = borrowed();
        assert_eq!(stage.write_to(0, pages.address() + PAGE, region.key, &[7; 12]), [Answer::ack(0)]);
        gone.go(&pages, 1);
        assert_eq!(stage.write_to(1, pages.address(), region.key, &[8; 12]), [Answer::ack(1)]);
        let answers = stage.write_to(2, pages.address() + PAGE, region.key, &[9; 12]);
        stage.assert_access_ended(&answers, 2);
        assert_eq!(stage.counter("memory_faults"), 1, "{gone:?}");
    }
}

#[test]
fn read_of_a_missing_page_is_refused() {
    for gone in [Gone::Unmapped, Gone::Protected] {
        let (mut stage, pages, region) = borrowed();
        gone.go(&pages, 1);
        let answers = stage.read_from(0, pages.address() + PAGE - 256, region.key, 512);
        assert_eq!(answers.len(), 2, "{gone:?}");
        assert_eq!(answers[0].opcode, Opcode::RC_READ_RESPONSE_FIRST);
        assert_eq!(answers[1], Answer::nak(1, NakCode::RemoteAccess));
    }
}

#[test]
fn send_into_a_missing_page_fails_its_receive() {
    for gone in EVERYWAY {
        let (mut stage, pages, region) = borrowed();
        gone.go(&pages, 1);
        let sge = Sge { addr: pages.address() + PAGE, length: 64, lkey: LKey(region.key) };
        stage.host.post_recv(&stage.qp, 5, &[sge]).expect("room");
        let answers = stage.request(Opcode::RC_SEND_ONLY, 0, Ext::None, &[1; 64]);
        assert_eq!(stage.statuses(), [(5, WcStatus::LocProt)], "{gone:?}");
        stage.assert_ended_by(&answers, 0, NakCode::RemoteOperational, EventKind::QpFatal);
    }
}

/// A FLUSH is answered when its pages are persistent.
//= test: IBTA A19: flush-follows-what-is-before-it
#[test]
fn flush_of_a_missing_page_is_refused() {
    let access = Access::READ_WRITE | Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT;
    let mut stage = Stage::with(Setup { access, ..Setup::default() });
    let pages = Pages::new(2);
    let base = NonNull::new(pages.address() as *mut u8).expect("an address");
    // SAFETY: no reference into the mapping exists.
    let memory = unsafe { HostMemory::borrowed(base, 2 * PAGE as usize) };
    let region = stage.register(access, pages.address(), memory).expect("a region");
    let reth = Reth { va: pages.address(), rkey: region.key, dma_len: 2 * PAGE as u32 };
    let flush = Ext::FlushReth(Feth(Feth::GLOBAL_VISIBILITY as u32 | Feth::PERSISTENCE as u32), reth);
    let done = stage.request(Opcode::RC_FLUSH, 0, flush, &[]);
    assert_eq!(done.iter().map(|a| a.opcode).collect::<Vec<_>>(), [Opcode::RC_READ_RESPONSE_ONLY]);
    Gone::Unmapped.go(&pages, 1);
    let answers = stage.request(Opcode::RC_FLUSH, 1, flush, &[]);
    stage.assert_access_ended(&answers, 1);
}

#[test]
fn atomic_on_a_missing_page_is_refused() {
    for gone in EVERYWAY {
        for opcode in [Opcode::RC_FETCH_ADD, Opcode::RC_COMPARE_SWAP, Opcode::RC_ATOMIC_WRITE] {
            let (mut stage, pages, region) = borrowed();
            gone.go(&pages, 0);
            let (va, rkey) = (pages.address(), region.key);
            let answers = if opcode == Opcode::RC_ATOMIC_WRITE {
                stage.request(opcode, 0, Ext::Reth(Reth { va, rkey, dma_len: 8 }), &[1; 8])
            } else {
                // The comparison would fail: nothing would be stored.
                let header = AtomicEth { va, rkey, swap_or_add: 1, compare: 5 };
                stage.request(opcode, 0, Ext::Atomic(header), &[])
            };
            stage.assert_access_ended(&answers, 0);
        }
    }
}

#[test]
fn request_from_missing_page_fails_with_loc_prot() {
    for gone in [Gone::Unmapped, Gone::Protected] {
        for opcode in [WrOpcode::Send, WrOpcode::Write] {
            let (mut stage, pages, region) = borrowed();
            gone.go(&pages, 1);
            let sges = [Sge { addr: pages.address() + PAGE, length: 64, lkey: LKey(region.key) }];
            stage.post_list(&SendWr { wr_id: 2, opcode, ..SendWr::default() }, &sges);
            assert_eq!(stage.wait(SOON), [], "{gone:?} {opcode:?}: nothing leaves");
            assert_eq!(stage.statuses(), [(2, WcStatus::LocProt)]);
        }
    }
}

#[test]
fn response_into_missing_page_fails_with_loc_prot() {
    for gone in EVERYWAY {
        for opcode in [WrOpcode::Read, WrOpcode::FetchAdd] {
            let (mut stage, pages, region) = borrowed();
            let sges = [Sge { addr: pages.address() + PAGE, length: 8, lkey: LKey(region.key) }];
            let flags = SendFlags::SIGNALED;
            stage.post_list(&SendWr { wr_id: 2, opcode, flags, ..SendWr::default() }, &sges);
            stage.wait(SOON);
            gone.go(&pages, 1);
            let aeth = Aeth { syndrome: ACK.into(), msn: 1 };
            match opcode {
                WrOpcode::Read => {
                    stage.answer(Opcode::RC_READ_RESPONSE_ONLY, FIRST, Ext::Aeth(aeth), &[1; 8]);
                }
                _ => stage.answer(Opcode::RC_ATOMIC_ACKNOWLEDGE, FIRST, Ext::AtomicAck(aeth, 5), &[]),
            }
            stage.wait(SOON);
            assert_eq!(stage.statuses(), [(2, WcStatus::LocProt)], "{gone:?} {opcode:?}");
        }
    }
}
