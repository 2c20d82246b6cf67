//! Regions in the memory of another process, as `roxie nic` uses them. The payload of a burst is written together, and
//! no completion or ACK is visible before. The tests reach their own process's memory as if it were another's.

use std::sync::Arc;

use roxie::shared::HostMemory;
use roxie::shared::remote_memory::RemoteMemory;
use roxie::verbs::{Access, EventKind, LKey, QpState, SendWr, Sge, WcStatus, WrOpcode};
use roxie::wire::{Aeth, AtomicEth, Bth, Ext, Opcode, Psn, Reth};

use crate::transport::regions::{Pages, Region};
use crate::transport::{Answer, FIRST, MTU, Setup, Stage};

const PAGE: u64 = 65536;

/// The memory of this process, as that of another one.
pub(crate) fn own_memory() -> Arc<RemoteMemory> {
    let secret = 77_u64;
    let fds = RemoteMemory::descriptors().expect("this process's own").into();
    let remote = RemoteMemory::new(fds, (std::ptr::from_ref(&secret) as u64, secret));
    Arc::new(remote.expect("this process's own"))
}

/// A region of two pages in "another process".
fn remote_pages() -> (Stage, Pages, Region) {
    let mut stage = Stage::with(Setup { serves: true, ..Setup::default() });
    let pages = Pages::new(2);
    let remote = own_memory();
    let memory = HostMemory::remote(&remote, pages.address(), 2 * PAGE as usize, false);
    let access = Access::READ_WRITE | Access::REMOTE_ATOMIC;
    let region = stage.register(access, pages.address(), memory).expect("a region");
    (stage, pages, region)
}

impl Stage {
    /// Puts a request on the link without running the NIC.
    pub(crate) fn put_request(&mut self, opcode: Opcode, psn: u32, ext: Ext, payload: &[u8]) {
        let psn = Psn::new(psn);
        let bth = Bth { opcode, dest_qp: self.qp.handle.qpn, psn, ack_req: true, ..Bth::default() };
        self.send(&bth, &ext, payload);
    }
}

#[test]
fn requests_of_a_burst_see_its_earlier_writes() {
    let (mut stage, pages, region) = remote_pages();
    let (va, rkey) = (pages.address(), region.key);
    let reth = |at: u64, dma_len: u32| Ext::Reth(Reth { va: va + at, rkey, dma_len });
    let mtu = MTU.bytes();
    stage.put_request(Opcode::RC_WRITE_FIRST, 0, reth(8, 2 * mtu as u32 + 4), &vec![1; mtu]);
    stage.put_request(Opcode::RC_WRITE_MIDDLE, 1, Ext::None, &vec![2; mtu]);
    stage.put_request(Opcode::RC_WRITE_LAST, 2, Ext::None, &[3; 4]);
    // Overwrites a part.
    stage.put_request(Opcode::RC_WRITE_ONLY, 3, reth(16, 8), &9_u64.to_ne_bytes());
    stage.put_request(
        Opcode::RC_FETCH_ADD,
        4,
        Ext::Atomic(AtomicEth { va: va + 16, rkey, swap_or_add: 5, compare: 0 }),
        &[],
    );
    stage.put_request(Opcode::RC_READ_REQUEST, 5, reth(8, 24), &[]);
    let answers = stage.answers();
    let atomic = answers.iter().find(|answer| answer.psn == 4).expect("an answer");
    assert_eq!(atomic.original, Some(9));
    let read = answers.iter().find(|answer| answer.psn == 5).expect("an answer");
    assert_eq!(read.payload, [[1; 8], 14_u64.to_ne_bytes(), [1; 8]].concat());
    let there = stage.read_from(6, va + 8 + mtu as u64 - 2, rkey, mtu as u32 + 8);
    let bytes: Vec<u8> = there.iter().flat_map(|answer| answer.payload.clone()).collect();
    assert_eq!(bytes, [&[1; 2][..], &vec![2; mtu], &[3; 4], &[0; 2]].concat());
    assert_eq!(stage.counter("memory_faults"), 0);
}

#[test]
fn send_gathers_payload_from_remote_memory() {
    let (mut stage, pages, region) = remote_pages();
    let bytes: Vec<u8> = (0..3 * MTU.bytes() + 7).map(|i| (i * 7) as u8).collect();
    assert_eq!(stage.write_to(0, pages.address() + 3, region.key, &bytes[..MTU.bytes()]), [Answer::ack(0)]);
    let rest = &bytes[MTU.bytes()..];
    for (psn, (at, part)) in (1..).zip([(0, &rest[..200]), (200, &rest[200..400]), (400, &rest[400..])]) {
        let to = pages.address() + 3 + (MTU.bytes() + at) as u64;
        stage.put_request(
            Opcode::RC_WRITE_ONLY,
            psn,
            Ext::Reth(Reth { va: to, rkey: region.key, dma_len: part.len() as u32 }),
            part,
        );
    }
    stage.answers();
    let sges = [Sge { addr: pages.address() + 3, length: bytes.len() as u32, lkey: LKey(region.key) }];
    stage.post_list(&SendWr { opcode: WrOpcode::Send, ..SendWr::default() }, &sges);
    let sent: Vec<u8> = stage.packets().into_iter().flat_map(|(_, payload)| payload).collect();
    assert_eq!(sent, bytes);
}

#[test]
fn write_to_missing_page_fails_without_an_ack() {
    let (mut stage, pages, region) = remote_pages();
    let (va, rkey) = (pages.address(), region.key);
    pages.take_away(1);
    let write = |at: u64| Ext::Reth(Reth { va: va + at, rkey, dma_len: 12 });
    stage.put_request(Opcode::RC_WRITE_ONLY, 0, write(0), &[1; 12]);
    stage.put_request(Opcode::RC_WRITE_ONLY, 1, write(PAGE), &[2; 12]);
    stage.put_request(Opcode::RC_WRITE_ONLY, 2, write(12), &[3; 12]);
    assert_eq!(stage.answers(), []);
    assert_eq!((stage.state(), stage.events()), (QpState::Err, vec![EventKind::QpFatal]));
    assert_eq!(stage.counter("memory_faults"), 1);
    // The bytes with a page are written.
    let mut there = [0; 24];
    pages.memory().read(0, &mut there).expect("mapped");
    assert_eq!(there[..], [[1; 12], [3; 12]].concat());
}

#[test]
fn read_into_missing_page_fails_with_loc_prot() {
    let (mut stage, pages, region) = remote_pages();
    let sges = [Sge { addr: pages.address() + PAGE, length: 64, lkey: LKey(region.key) }];
    stage.post_list(&SendWr { wr_id: 2, opcode: WrOpcode::Read, ..SendWr::default() }, &sges);
    stage.packets();
    pages.take_away(1);
    let aeth = Ext::Aeth(Aeth { syndrome: 0x1f, msn: 1 });
    stage.answer(Opcode::RC_READ_RESPONSE_ONLY, FIRST, aeth, &[1; 64]);
    assert_eq!(stage.answers(), []);
    assert_eq!(stage.statuses(), [(2, WcStatus::LocProt)]);
    assert_eq!(stage.state(), QpState::Err);
}
