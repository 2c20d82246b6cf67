//! Memory regions of every kind, and traffic while they change: fast-registered, reregistered, zero-based, null and
//! on-demand.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use roxie::nic::{Answer as Reply, Command, ControlError, MemoryCommand, ObjectKind};
use roxie::shared::work_queue::Payload;
use roxie::shared::{HostMemory, PageList};
use roxie::time::Nanos;
use roxie::verbs::{
    Access, EventKind, FastRegistration, LKey, MrIndex, PdId, QpState, RKey, SendFlags, SendWr, Sge,
    WcOpcode, WcStatus, WrOpcode,
};
use roxie::wire::{Aeth, AtomicEth, Ext, NakCode, Opcode, Psn, Reth, Syndrome};

use crate::transport::{Answer, FIRST, Stage, TIMEOUT};

pub(crate) const SOON: Nanos = Nanos(1000);
pub(crate) const ACK: Syndrome = Syndrome::Ack { credits: 31 };
const PAGE: usize = 4096;

impl Stage {
    pub(crate) fn register(
        &mut self,
        access: Access,
        start: u64,
        memory: HostMemory,
    ) -> Result<Region, ControlError> {
        let pd = self.host.pd();
        match self.host.call(self.now, MemoryCommand::RegisterMemory { pd, access, start, memory })? {
            Reply::Memory(index, key) => Ok(Region { index, key }),
            other => panic!("a region: {other:?}"),
        }
    }

    pub(crate) fn fast(&mut self, memory: &HostMemory, pages: &[u64]) -> Region {
        let list = PageList::new(pages.len() as u32).expect("memory");
        for (at, page) in pages.iter().enumerate() {
            assert!(list.set(at as u32, page * PAGE as u64));
        }
        let command =
            MemoryCommand::AllocFastMemory { pd: self.host.pd(), memory: memory.clone(), pages: list };
        match self.host.call(self.now, command) {
            Ok(Reply::Memory(index, key)) => Region { index, key },
            other => panic!("a region: {other:?}"),
        }
    }

    pub(crate) fn post_list(&self, wr: &SendWr, sges: &[Sge]) {
        self.host.post_send(&self.qp, wr, Payload::Sges(sges)).expect("room for a request");
    }

    pub(crate) fn write_to(&mut self, psn: u32, va: u64, rkey: u32, bytes: &[u8]) -> Vec<Answer> {
        let reth = Reth { va, rkey, dma_len: bytes.len() as u32 };
        self.request(Opcode::RC_WRITE_ONLY, psn, Ext::Reth(reth), bytes)
    }

    pub(crate) fn read_from(&mut self, psn: u32, va: u64, rkey: u32, dma_len: u32) -> Vec<Answer> {
        self.request(Opcode::RC_READ_REQUEST, psn, Ext::Reth(Reth { va, rkey, dma_len }), &[])
    }

    pub(crate) fn assert_ended_by(&mut self, answers: &[Answer], psn: u32, code: NakCode, event: EventKind) {
        assert_eq!(answers, [Answer::nak(psn, code)]);
        assert_eq!(self.state(), QpState::Err);
        assert_eq!(self.events(), [event]);
    }

    /// Returns all packets that a pass has sent, also more than one burst.
    pub(crate) fn all_arrived(&mut self) -> Vec<(Opcode, Psn)> {
        let mut all = self.arrived();
        while let more @ [_, ..] = &self.arrived()[..] {
            all.extend(more);
        }
        all
    }

    pub(crate) fn assert_access_ended(&mut self, answers: &[Answer], psn: u32) {
        self.assert_ended_by(answers, psn, NakCode::RemoteAccess, EventKind::QpAccessError);
    }
}

pub(crate) fn memory(length: usize) -> HostMemory {
    HostMemory::allocate(length).expect("the system has this little")
}

#[derive(Clone, Copy)]
pub(crate) struct Region {
    pub(crate) index: MrIndex,
    pub(crate) key: u32,
}

pub(crate) fn bytes(memory: &HostMemory, offset: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    memory.read(offset, &mut bytes).expect("inside");
    bytes
}

/// A multiple of every page size.
const SYSTEM_PAGE: usize = 65536;

/// A mapping of pages, each of which can be made inaccessible.
pub(crate) struct Pages {
    base: *mut u8,
    count: usize,
}

impl Pages {
    pub(crate) fn new(count: usize) -> Pages {
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // The kernel places mappings at the top of the address space. Down here no other test's mapping takes the place
        // of a page that is unmapped.
        static NEXT: AtomicUsize = AtomicUsize::new(1 << 36);
        let at = NEXT.fetch_add(1 << 20, Relaxed) as *mut libc::c_void;
        // SAFETY: a new mapping, which replaces none: the address is a hint.
        let base = unsafe { libc::mmap(at, count * SYSTEM_PAGE, protection, flags, -1, 0) };
        assert_ne!(base, libc::MAP_FAILED);
        Pages { base: base.cast(), count }
    }

    pub(crate) fn take_away(&self, page: usize) {
        self.protect(page, libc::PROT_NONE);
    }

    pub(crate) fn give_back(&self, page: usize) {
        self.protect(page, libc::PROT_READ | libc::PROT_WRITE);
    }

    pub(crate) fn protect(&self, page: usize, protection: i32) {
        assert!(page < self.count);
        // SAFETY: a page of the mapping, into which no reference exists.
        let done =
            unsafe { libc::mprotect(self.base.add(page * SYSTEM_PAGE).cast(), SYSTEM_PAGE, protection) };
        assert_eq!(done, 0);
    }

    pub(crate) fn address(&self) -> u64 {
        self.base as u64
    }

    pub(crate) fn memory(&self) -> HostMemory {
        // SAFETY: no reference into the mapping exists.
        unsafe { HostMemory::on_demand(self.address(), self.count * SYSTEM_PAGE) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`, of which the NIC asks the system only.
        unsafe { libc::munmap(self.base.cast(), self.count * SYSTEM_PAGE) };
    }
}

pub(crate) const ON_DEMAND: Access =
    Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ).union(Access::ON_DEMAND);

fn on_demand(count: usize) -> (Stage, Pages, Region) {
    let mut stage = Stage::new();
    let pages = Pages::new(count);
    let region = stage.register(ON_DEMAND, pages.address(), pages.memory()).expect("a region");
    (stage, pages, region)
}

fn atomics_on_demand(count: usize) -> (Stage, Pages, Region) {
    let mut stage = Stage::new();
    let pages = Pages::new(count);
    let access = ON_DEMAND | Access::REMOTE_ATOMIC;
    let region = stage.register(access, pages.address(), pages.memory()).expect("a region");
    (stage, pages, region)
}

pub(crate) fn registration(region: Region, start: u64, length: u64) -> FastRegistration {
    FastRegistration { key: RKey(region.key ^ 1), start, length, page_shift: 12, access: Access::READ_WRITE }
}

//= test: IBTA 10.6.4: fast-registered-region-is-its-pages
#[test]
fn fast_registered_region_maps_its_pages() {
    let mut stage = Stage::new();
    let memory = memory(8 * PAGE);
    let region = stage.fast(&memory, &[5, 1]);
    let start = 0x7000_0f80;
    let registered = registration(region, start, 0x100);
    stage.post_list(&SendWr::fast_register(1, SendFlags::SIGNALED, &registered), &[]);
    assert_eq!(stage.wait(SOON), []);
    let done = stage.completions();
    assert_eq!((done[0].wr_id, done[0].status), (1, WcStatus::Success));
    assert_eq!(done[0].opcode, WcOpcode::FastRegister);
    // The message crosses from one page to the other in its middle.
    let message: Vec<u8> = (0..=255).collect();
    assert_eq!(stage.write_to(0, start, registered.key.0, &message), [Answer::ack(0)]);
    assert_eq!(bytes(&memory, 5 * 4096 + 0xf80, 128), message[..128]);
    assert_eq!(bytes(&memory, 4096, 128), message[128..]);
    assert_eq!(stage.read_from(1, start, registered.key.0, 256)[0].payload, message);
    let sges = [Sge { addr: start + 100, length: 60, lkey: LKey(registered.key.0) }];
    stage.post_list(&SendWr { opcode: WrOpcode::Send, ..SendWr::default() }, &sges);
    assert_eq!(stage.answers()[0].payload, message[100..160]);
    let answers = stage.write_to(2, start + 0xff, registered.key.0, &[1, 2]);
    stage.assert_access_ended(&answers, 2);
}

#[test]
fn atomic_reaches_a_fast_registered_page() {
    let mut stage = Stage::new();
    let memory = memory(8 * PAGE);
    memory.write(3 * 4096 + 8, &40u64.to_ne_bytes()).expect("inside");
    let region = stage.fast(&memory, &[6, 3]);
    let registered = registration(region, 0x1_0000, 2 * 4096);
    stage.post_list(&SendWr::fast_register(1, SendFlags::SIGNALED, &registered), &[]);
    stage.wait(SOON);
    let eth = AtomicEth { va: 0x1_1008, rkey: registered.key.0, swap_or_add: 2, compare: 0 };
    assert_eq!(stage.request(Opcode::RC_FETCH_ADD, 0, Ext::Atomic(eth), &[])[0].original, Some(40));
    assert_eq!(bytes(&memory, 3 * 4096 + 8, 8), 42u64.to_ne_bytes());
}

//= test: IBTA 10.6.4: fast-registration-needs-a-free-region
#[test]
fn second_fast_registration_fails_with_loc_qp_op() {
    let mut stage = Stage::new();
    let memory = memory(8 * PAGE);
    let region = stage.fast(&memory, &[5, 1]);
    let registered = registration(region, 0, 64);
    for wr_id in 1..3 {
        stage.post_list(&SendWr::fast_register(wr_id, SendFlags::SIGNALED, &registered), &[]);
    }
    stage.wait(SOON);
    assert_eq!(stage.statuses(), [(1, WcStatus::Success), (2, WcStatus::LocQpOp)]);
}

/// rdma_rxe executes it again, and fails, as the region is registered.
#[test]
fn repeated_request_repeats_no_fast_registration() {
    let mut stage = Stage::new();
    let memory = memory(8 * PAGE);
    let region = stage.fast(&memory, &[5, 1]);
    stage.post(WrOpcode::Send, 4);
    stage.post_list(&SendWr::fast_register(7, SendFlags::SIGNALED, &registration(region, 0, 64)), &[]);
    stage.post(WrOpcode::Send, 4);
    let sent = [(Opcode::RC_SEND_ONLY, FIRST), (Opcode::RC_SEND_ONLY, FIRST + 1)];
    assert_eq!(stage.wait(SOON), sent);
    assert_eq!(stage.wait(TIMEOUT), sent, "neither is acknowledged");
    stage.acknowledge(FIRST + 1, ACK, 2);
    stage.wait(SOON);
    assert_eq!(stage.statuses(), [0, 7, 0].map(|id| (id, WcStatus::Success)));
    assert_eq!(stage.state(), QpState::Rts);
}

#[test]
fn invalidated_region_can_be_registered_again() {
    let mut stage = Stage::new();
    let memory = memory(8 * PAGE);
    let region = stage.fast(&memory, &[5, 1]);
    let first = registration(region, 0x1000, 64);
    stage.post_list(&SendWr::fast_register(1, SendFlags::SIGNALED, &first), &[]);
    stage.wait(SOON);
    assert_eq!(stage.write_to(0, 0x1000, first.key.0, &[1]), [Answer::ack(0)]);
    stage.receive(9, 0, 8);
    let key = Ext::Ieth(first.key.0);
    assert_eq!(stage.request(Opcode::RC_SEND_ONLY_INVALIDATE, 1, key, &[1]), [Answer::ack(1)]);
    let second = FastRegistration { key: RKey(first.key.0 ^ 2), start: 0x1000, ..first };
    stage.post_list(&SendWr::fast_register(2, SendFlags::SIGNALED, &second), &[]);
    stage.wait(SOON);
    let ids: Vec<_> = stage.statuses();
    assert_eq!(ids, [1, 9, 2].map(|id| (id, WcStatus::Success)));
    assert_eq!(stage.write_to(2, 0x1000, second.key.0, &[2]), [Answer::ack(2)]);
    let answers = stage.write_to(3, 0x1000, first.key.0, &[3]);
    stage.assert_access_ended(&answers, 3);
    assert_eq!(bytes(&memory, 5 * 4096, 1), [2]);
}

//= test: IBTA 10.6.5: key-dies-with-its-region
#[test]
fn reregistration_moves_region_and_invalidates_old_key() {
    let mut stage = Stage::new();
    let (old, new) = (memory(64), memory(128));
    let region = stage.register(Access::READ_WRITE, 0x1000, old.clone()).expect("a region");
    assert_eq!(stage.write_to(0, 0x1000, region.key, &[1; 4]), [Answer::ack(0)]);
    let again = MemoryCommand::ReregisterMemory {
        mr: region.index,
        pd: None,
        access: Some(Access::LOCAL_WRITE | Access::REMOTE_WRITE),
        translation: Some((0x2000, new.clone())),
    };
    let Ok(Reply::Memory(index, key)) = stage.host.call(stage.now, again) else { panic!("registered") };
    assert_eq!(index, region.index);
    assert_eq!(stage.write_to(1, 0x2000 + 120, key, &[2; 4]), [Answer::ack(1)]);
    assert_eq!((bytes(&old, 0, 4), bytes(&new, 120, 4)), (vec![1; 4], vec![2; 4]));
    // The address is inside the moved region; only the old key is invalid.
    let answers = stage.write_to(2, 0x2000, region.key, &[3; 4]);
    stage.assert_access_ended(&answers, 2);
    assert_eq!((bytes(&old, 0, 4), bytes(&new, 0, 4)), (vec![1; 4], vec![0; 4]));
}

//= test: IBTA 10.6.3.1: remote-writing-needs-local-writing
#[test]
fn refused_reregistration_changes_nothing() {
    let mut stage = Stage::new();
    let memory = memory(64);
    let region = stage.register(Access::READ_WRITE, 0x1000, memory.clone()).expect("a region");
    let again = |pd, access, translation| MemoryCommand::ReregisterMemory {
        mr: region.index,
        pd,
        access,
        translation,
    };
    let cases = [
        again(Some(PdId(99)), None, None),
        again(None, Some(Access::REMOTE_WRITE), None),
        again(None, Some(Access::LOCAL_WRITE | Access::ON_DEMAND), None),
        again(None, None, Some((0, HostMemory::null()))),
    ];
    for command in cases {
        let text = format!("{command:?}");
        assert!(stage.host.call(stage.now, command).is_err(), "{text}");
    }
    assert_eq!(stage.write_to(0, 0x1000, region.key, &[1; 4]), [Answer::ack(0)]);
    // The reference count of the domain is unchanged.
    stage.host.call(stage.now, Command::DeregisterMemory(region.index)).expect("the region exists");
}

#[test]
fn reregistration_moves_a_region_to_another_pd() {
    let mut stage = Stage::new();
    let region = stage.register(Access::READ_WRITE, 0, memory(64)).expect("a region");
    let Ok(Reply::Pd(other)) = stage.host.call(stage.now, Command::AllocPd) else { panic!("a domain") };
    let again = MemoryCommand::ReregisterMemory {
        mr: region.index,
        pd: Some(other),
        access: None,
        translation: None,
    };
    let Ok(Reply::Memory(_, key)) = stage.host.call(stage.now, again) else { panic!("registered") };
    let busy = stage.host.call(stage.now, Command::DeallocPd(other));
    assert_eq!(busy.err(), Some(ControlError::Busy { object: ObjectKind::ProtectionDomain, users: 1 }));
    let answers = stage.write_to(0, 0, key, &[1]);
    stage.assert_access_ended(&answers, 0);
}

//= test: IBTA 10.6.4: zero-based-region-counts-from-zero
#[test]
fn zero_based_region_starts_at_address_zero() {
    let mut stage = Stage::new();
    let memory = memory(64);
    let access = Access::READ_WRITE | Access::ZERO_BASED;
    let wrong = stage.register(access, 0x1000, memory.clone());
    assert!(matches!(wrong, Err(ControlError::Access { .. })));
    let region = stage.register(access, 0, memory.clone()).expect("a region");
    assert_eq!(stage.write_to(0, 62, region.key, &[1, 2]), [Answer::ack(0)]);
    assert_eq!(bytes(&memory, 61, 3), [0, 1, 2]);
    let answers = stage.write_to(1, memory.address(), region.key, &[1]);
    stage.assert_access_ended(&answers, 1);
}

//= test: IBTA 9.7.4.1: atomic-is-aligned
#[test]
fn atomic_alignment_is_checked_in_memory() {
    let memory = memory(64);
    // SAFETY: the memory lives as long as the test, and no reference into it exists.
    let skewed = unsafe {
        let base = std::ptr::NonNull::new((memory.address() + 4) as *mut u8).expect("not null");
        HostMemory::borrowed(base, 32)
    };
    let mut stage = Stage::new();
    let region = stage.register(Access::READ_WRITE | Access::ZERO_BASED, 0, skewed).expect("a region");
    let eth = AtomicEth { va: 8, rkey: region.key, swap_or_add: 1, compare: 0 };
    let answers = stage.request(Opcode::RC_FETCH_ADD, 0, Ext::Atomic(eth), &[]);
    stage.assert_ended_by(&answers, 0, NakCode::InvalidRequest, EventKind::QpRequestError);
    assert_eq!(bytes(&memory, 0, 64), [0; 64]);
}

#[test]
fn null_region_discards_writes_and_reads_zeros() {
    let mut stage = Stage::new();
    let null = stage.register(Access::LOCAL_WRITE, 0, HostMemory::null()).expect("a region");
    let nowhere = |length| [Sge { addr: u64::MAX - 1000, length, lkey: LKey(null.key) }];
    stage.host.post_recv(&stage.qp, 7, &nowhere(100)).expect("room");
    assert_eq!(stage.request(Opcode::RC_SEND_ONLY, 0, Ext::None, &[9; 100]), [Answer::ack(0)]);
    assert_eq!(stage.statuses(), [(7, WcStatus::Success)]);
    stage.post_list(&SendWr::default(), &nowhere(20));
    assert_eq!(stage.answers()[0].payload, [0; 20]);
    let remote = stage.register(Access::READ_WRITE, 0, HostMemory::null());
    assert!(matches!(remote, Err(ControlError::Access { .. })), "remote access is refused");
}

#[test]
fn unknown_access_flags_outside_optional_range_are_refused() {
    let mut stage = Stage::new();
    let mut register = |bits| {
        let access = Access::from_bits_retain(bits);
        stage.register(access, 0, memory(8)).map(|_| ())
    };
    assert_eq!(register(1 | 1 << 20), Ok(()), "relaxed ordering");
    assert_eq!(register(1 | 1 << 29), Ok(()), "one of the optional range");
    assert!(matches!(register(1 | 1 << 15), Err(ControlError::Access { .. })));
    assert!(matches!(register(1 | 1 << 30), Err(ControlError::Access { .. })));
}

#[test]
fn on_demand_region_works_while_mapped() {
    let (mut stage, pages, region) = on_demand(2);
    let va = pages.address() + SYSTEM_PAGE as u64 - 6;
    assert_eq!(stage.write_to(0, va, region.key, &[7; 12]), [Answer::ack(0)]);
    assert_eq!(stage.read_from(1, va, region.key, 12)[0].payload, [7; 12]);
    pages.take_away(1);
    pages.give_back(1);
    assert_eq!(stage.write_to(2, va, region.key, &[8; 12]), [Answer::ack(2)]);
    assert_eq!(stage.counter("memory_faults"), 0);
}

//= test: IBTA 9.5: completion-follows-its-bytes
#[test]
fn write_to_missing_page_is_refused() {
    let (mut stage, pages, region) = on_demand(2);
    pages.take_away(1);
    assert_eq!(stage.write_to(0, pages.address(), region.key, &[7; 12]), [Answer::ack(0)]);
    let answers = stage.write_to(1, pages.address() + SYSTEM_PAGE as u64, region.key, &[7; 12]);
    stage.assert_access_ended(&answers, 1);
    assert_eq!(stage.counter("memory_faults"), 1);
}

#[test]
fn write_imm_to_missing_page_fails_its_receive() {
    let (mut stage, pages, region) = on_demand(2);
    pages.take_away(0);
    stage.receive(5, 0, 0);
    stage.receive(6, 0, 0);
    let reth = Reth { va: pages.address(), rkey: region.key, dma_len: 4 };
    let answers = stage.request(Opcode::RC_WRITE_ONLY_IMM, 0, Ext::RethImm(reth, 9), &[1; 4]);
    assert_eq!(stage.statuses(), [(5, WcStatus::LocAccess), (6, WcStatus::WrFlush)]);
    stage.assert_access_ended(&answers, 0);
}

//= test: IBTA 9.5: completion-follows-its-bytes
#[test]
fn send_into_missing_page_naks_remote_operational_error() {
    for parts in [1, 2] {
        let (mut stage, pages, region) = on_demand(2);
        pages.take_away(1);
        let sge =
            Sge { addr: pages.address() + SYSTEM_PAGE as u64 - 256, length: 512, lkey: LKey(region.key) };
        stage.host.post_recv(&stage.qp, 5, &[sge]).expect("room");
        let answers = if parts == 1 {
            let whole = [[1u8; 256], [2; 256]].concat();
            stage.request(Opcode::RC_SEND_FIRST, 0, Ext::None, &whole[..256]);
            stage.request(Opcode::RC_SEND_LAST, 1, Ext::None, &whole[256..])
        } else {
            stage.request(Opcode::RC_SEND_FIRST, 0, Ext::None, &[1; 256]);
            stage.request(Opcode::RC_SEND_MIDDLE, 1, Ext::None, &[2; 256])
        };
        assert_eq!(stage.statuses(), [(5, WcStatus::LocProt)]);
        stage.assert_ended_by(&answers, 1, NakCode::RemoteOperational, EventKind::QpFatal);
    }
}

#[test]
fn read_of_missing_page_ends_with_a_nak() {
    let (mut stage, pages, region) = on_demand(2);
    pages.take_away(1);
    let answers = stage.read_from(0, pages.address() + SYSTEM_PAGE as u64 - 256, region.key, 512);
    assert_eq!(answers.len(), 2);
    assert_eq!(answers[0].opcode, Opcode::RC_READ_RESPONSE_FIRST);
    assert_eq!(answers[1], Answer::nak(1, NakCode::RemoteAccess));
    assert_eq!(stage.state(), QpState::Err);
}

#[test]
fn atomics_work_on_mapped_on_demand_pages() {
    let (mut stage, pages, region) = atomics_on_demand(2);
    let va = pages.address() + 8;
    let add = |swap_or_add| Ext::Atomic(AtomicEth { va, rkey: region.key, swap_or_add, compare: 0 });
    assert_eq!(stage.request(Opcode::RC_FETCH_ADD, 0, add(5), &[])[0].original, Some(0));
    let reth = Reth { va: pages.address() + SYSTEM_PAGE as u64, rkey: region.key, dma_len: 8 };
    let written = stage.request(Opcode::RC_ATOMIC_WRITE, 1, Ext::Reth(reth), &[1; 8]);
    assert_eq!(written[0].opcode, Opcode::RC_READ_RESPONSE_ONLY);
    let swap = AtomicEth { va, rkey: region.key, swap_or_add: 9, compare: 5 };
    let swapped = stage.request(Opcode::RC_COMPARE_SWAP, 2, Ext::Atomic(swap), &[]);
    assert_eq!(swapped[0].original, Some(5));
    assert_eq!(stage.request(Opcode::RC_COMPARE_SWAP, 2, Ext::Atomic(swap), &[]), swapped, "a duplicate");
    assert_eq!(stage.read_from(3, va, region.key, 8)[0].payload, 9u64.to_ne_bytes());
    assert_eq!(stage.read_from(4, va - 8 + SYSTEM_PAGE as u64, region.key, 8)[0].payload, [1; 8]);
    assert_eq!(stage.counter("memory_faults"), 0);
}

#[test]
fn atomic_on_missing_page_is_refused() {
    for opcode in [Opcode::RC_FETCH_ADD, Opcode::RC_COMPARE_SWAP, Opcode::RC_ATOMIC_WRITE] {
        let (mut stage, pages, region) = atomics_on_demand(1);
        pages.take_away(0);
        let (va, rkey) = (pages.address(), region.key);
        let answers = if opcode == Opcode::RC_ATOMIC_WRITE {
            stage.request(opcode, 0, Ext::Reth(Reth { va, rkey, dma_len: 8 }), &[1; 8])
        } else {
            let header = AtomicEth { va, rkey, swap_or_add: 1, compare: 0 };
            stage.request(opcode, 0, Ext::Atomic(header), &[])
        };
        stage.assert_access_ended(&answers, 0);
        assert_eq!(stage.counter("memory_faults"), 1, "{opcode:?}");
    }
}

#[test]
fn send_from_missing_page_fails_in_order() {
    let (mut stage, pages, region) = on_demand(2);
    pages.take_away(1);
    let sge = |offset, length| [Sge { addr: pages.address() + offset, length, lkey: LKey(region.key) }];
    let wr = |wr_id| SendWr { wr_id, ..SendWr::default() };
    stage.post_list(&wr(1), &sge(0, 8));
    stage.post_list(&wr(2), &sge(SYSTEM_PAGE as u64 - 256, 512));
    stage.post_list(&wr(3), &sge(0, 8));
    let sent = stage.wait(SOON);
    assert_eq!(sent[..2], [(Opcode::RC_SEND_ONLY, FIRST), (Opcode::RC_SEND_FIRST, FIRST + 1)]);
    assert!(sent.iter().all(|(_, psn)| *psn != FIRST + 2), "{sent:?}");
    assert_eq!(stage.statuses(), []);
    stage.acknowledge(FIRST, ACK, 1);
    stage.wait(SOON);
    let statuses = [(1, WcStatus::Success), (2, WcStatus::LocProt), (3, WcStatus::WrFlush)];
    assert_eq!(stage.statuses(), statuses);
}

#[test]
fn read_into_missing_page_fails_despite_its_response() {
    for (length, signaled) in [(4u32, true), (4, false), (512, true)] {
        let (mut stage, pages, region) = on_demand(2);
        let sges = [Sge { addr: pages.address() + SYSTEM_PAGE as u64, length, lkey: LKey(region.key) }];
        let flags = if signaled { SendFlags::SIGNALED } else { SendFlags::empty() };
        stage.post_as(1, WrOpcode::Write, SendFlags::SIGNALED, 4);
        stage.post_list(&SendWr { wr_id: 2, opcode: WrOpcode::Read, flags, ..SendWr::default() }, &sges);
        stage.post_as(3, WrOpcode::Write, SendFlags::SIGNALED, 4);
        stage.wait(SOON);
        pages.take_away(1);
        let aeth = Ext::Aeth(Aeth { syndrome: ACK.into(), msn: 2 });
        if length > 256 {
            stage.answer(Opcode::RC_READ_RESPONSE_FIRST, FIRST + 1, aeth, &[1; 256]);
        } else {
            stage.answer(Opcode::RC_READ_RESPONSE_ONLY, FIRST + 1, aeth, &[1; 4]);
        }
        stage.wait(SOON);
        let statuses = [(1, WcStatus::Success), (2, WcStatus::LocProt), (3, WcStatus::WrFlush)];
        assert_eq!(stage.statuses(), statuses, "{length} {signaled}");
        assert_eq!(stage.state(), QpState::Err);
    }
}

#[test]
fn atomic_result_into_missing_page_fails() {
    let (mut stage, pages, region) = on_demand(1);
    let sges = [Sge { addr: pages.address(), length: 8, lkey: LKey(region.key) }];
    stage.post_list(&SendWr { wr_id: 2, opcode: WrOpcode::FetchAdd, ..SendWr::default() }, &sges);
    stage.wait(SOON);
    pages.take_away(0);
    let aeth = Aeth { syndrome: ACK.into(), msn: 1 };
    stage.answer(Opcode::RC_ATOMIC_ACKNOWLEDGE, FIRST, Ext::AtomicAck(aeth, 5), &[]);
    stage.wait(SOON);
    assert_eq!(stage.statuses(), [(2, WcStatus::LocProt)]);
}

#[test]
fn implicit_on_demand_region_allows_local_access_only() {
    let mut stage = Stage::new();
    // SAFETY: the test accesses pages of its own only, into which no reference exists.
    let all = || unsafe { HostMemory::on_demand(0, usize::MAX) };
    let access = Access::LOCAL_WRITE | Access::ON_DEMAND;
    let region = stage.register(access, 0, all()).expect("a region");
    let pages = Pages::new(1);
    let sge = |addr, length| [Sge { addr, length, lkey: LKey(region.key) }];
    stage.host.post_recv(&stage.qp, 1, &sge(pages.address(), 16)).expect("room");
    assert_eq!(stage.request(Opcode::RC_SEND_ONLY, 0, Ext::None, b"anywhere"), [Answer::ack(0)]);
    stage.post_list(&SendWr { wr_id: 2, ..SendWr::default() }, &sge(pages.address(), 8));
    assert_eq!(stage.answers()[0].payload, b"anywhere");
    let remote = stage.register(access | Access::REMOTE_READ, 0, all());
    assert!(matches!(remote, Err(ControlError::Access { .. })));
    stage.acknowledge(FIRST, ACK, 1);
    for wr_id in 3..5 {
        stage.post_list(&SendWr { wr_id, ..SendWr::default() }, &sge(8, 8));
    }
    stage.wait(SOON);
    let last = [(3, WcStatus::LocProt), (4, WcStatus::WrFlush)];
    assert_eq!(stage.statuses(), [&[(1, WcStatus::Success), (2, WcStatus::Success)][..], &last].concat());
}
