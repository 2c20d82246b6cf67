//! Registered memory in a file that the NIC maps.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use nix::fcntl::{FallocateFlags, FcntlArg, SealFlag, fallocate, fcntl};
use nix::unistd::ftruncate;

use super::isolation::attached;
use super::users::{OTHER, is_root};
use super::{Nic, PATIENCE, Quota, RawClient, nic};
use roxie::host::{CompletionQueue, ConnectOptions, Device, MemoryRegion, ProtectionDomain, QueuePair};
use roxie::remote::message::{Memory, Request, Response};
use roxie_base::threads::lock;
use roxie_nic::nic::MemoryCommand;
use roxie_nic::shared::HostMemory;
use roxie_nic::shared::remote_memory::pages::file_of_program;
use roxie_nic::verbs::{Access, SendWr, WcStatus, WrOpcode};

const LENGTH: usize = 8192;

/// Returns the mappings that the NIC has of its only client's memory.
fn mappings(nic: &Nic) -> u64 {
    let clients = lock(&nic.daemon.inner.clients);
    let [client] = &clients[..] else { panic!("one client") };
    client.entry().account.iter().find(|(key, _)| *key == "arenas").expect("in the account").1.used
}

/// A QP, connected to one on a peer.
pub(super) struct Pair {
    pub(super) pd: ProtectionDomain,
    pub(super) qp: QueuePair,
    pub(super) peer: QueuePair,
    peer_cq: CompletionQueue,
    pub(super) peer_memory: MemoryRegion,
    _devices: [Device; 2],
}

impl Pair {
    /// A client's QP, and one on the NIC's peer.
    fn new(nic: &Nic) -> Pair {
        Pair::between([attached(nic), nic.remote.clone()])
    }

    pub(super) fn between(devices: [Device; 2]) -> Pair {
        let [(pd, _, qp), (peer_pd, peer_cq, peer)] = devices.each_ref().map(|device| {
            let (pd, cq) =
                (device.alloc_pd().expect("a domain"), device.create_cq(4, None).expect("a queue"));
            let qp = pd.queue_pair(&cq).signal_all().create().expect("a QP");
            (pd, cq, qp)
        });
        let points = [&qp, &peer].map(|qp| qp.endpoint(0).expect("an address"));
        let options = ConnectOptions { access: Access::READ_WRITE, ..ConnectOptions::default() };
        qp.connect(&points[0], &points[1], &options).expect("connected");
        peer.connect(&points[1], &points[0], &options).expect("connected");
        let peer_memory = peer_pd.register(LENGTH, Access::READ_WRITE).expect("memory");
        Pair { pd, qp, peer, peer_cq, peer_memory, _devices: devices }
    }

    /// Has the peer write to the client's memory, and read it back.
    fn peer_writes(&self, to: &MemoryRegion) -> WcStatus {
        let own = &self.peer_memory;
        own.write_at(0, &[0x5a; LENGTH]).expect("its own");
        let wr = |opcode| SendWr { opcode, remote_addr: to.address(), rkey: to.rkey(), ..SendWr::default() };
        self.peer.post_send(&wr(WrOpcode::Write), &[own.sge(0, LENGTH as u32)]).expect("room");
        let written = self.peer_cq.wait(PATIENCE).expect("a completion").status;
        if written != WcStatus::Success {
            return written;
        }
        own.write_at(0, &[0; LENGTH]).expect("its own");
        self.peer.post_send(&wr(WrOpcode::Read), &[own.sge(0, LENGTH as u32)]).expect("room");
        assert_eq!(self.peer_cq.wait(PATIENCE).expect("a completion").status, WcStatus::Success);
        assert_eq!(own.to_vec(0, LENGTH).expect("its own"), [0x5a; LENGTH]);
        written
    }
}

#[test]
fn allocated_memory_is_mapped_until_it_is_released() {
    let nic = nic(Quota::default());
    let pair = Pair::new(&nic);
    let queues = mappings(&nic);
    let region = pair.pd.register(LENGTH, Access::READ_WRITE).expect("memory");
    let fast = pair.pd.alloc_fast(LENGTH, 2).expect("memory");
    assert_eq!(mappings(&nic), queues + 2);
    assert_eq!(pair.peer_writes(&region), WcStatus::Success);
    assert_eq!(region.to_vec(0, LENGTH).expect("its own"), [0x5a; LENGTH]);
    drop((region, fast));
    assert_eq!(mappings(&nic), queues);
}

#[test]
fn allocated_memory_beyond_the_quota_is_copied() {
    let quota = Quota { arenas: 1, ..Quota::default() };
    let nic = nic(quota);
    let pair = Pair::new(&nic);
    let region = pair.pd.register(LENGTH, Access::READ_WRITE).expect("memory");
    assert_eq!(mappings(&nic), 1, "the queues' own");
    assert_eq!(pair.peer_writes(&region), WcStatus::Success);
}

/// Queues and mapped regions take mappings of the same quota.
#[test]
fn registered_memory_leaves_room_for_queues() {
    let nic = nic(Quota { arenas: 8, ..Quota::default() });
    let device = attached(&nic);
    let pd = device.alloc_pd().expect("a domain");
    let regions: Vec<_> = (0..20).map(|_| pd.register(64, Access::READ_WRITE).expect("memory")).collect();
    assert_eq!(mappings(&nic), 4, "the others are copied");
    device.create_cq(1 << 16, None).expect("an arena of its own");
    drop(regions);
}

/// The test runs as the NIC's user.
#[test]
fn truncated_file_of_program_fails_its_qp_alone() {
    let nic = nic(Quota::default());
    let pair = Pair::new(&nic);
    let queues = mappings(&nic);
    let (fd, memory) = file_of_program(LENGTH);
    let register = || pair.pd.register_memory(memory.clone(), Access::READ_WRITE);
    let regions = [register().expect("room"), register().expect("room")];
    assert_eq!(mappings(&nic), queues + 1, "one mapping for both");
    assert_eq!(pair.peer_writes(&regions[0]), WcStatus::Success);
    assert_eq!(regions[0].to_vec(0, LENGTH).expect("its own"), [0x5a; LENGTH]);
    ftruncate(&fd, 4096).expect("its own");
    assert_eq!(pair.peer_writes(&regions[1]), WcStatus::RemAccess);
    assert!(!nic.daemon.has_failed());
    let other = Pair::new(&nic);
    let region = other.pd.register(LENGTH, Access::READ_WRITE).expect("memory");
    assert_eq!(other.peer_writes(&region), WcStatus::Success);
}

/// Registers memory of this process in a file, without the library. Returns the errno of a refusal.
fn register_in(
    client: &RawClient,
    memory: &HostMemory,
    (fd, offset, is_lent): (BorrowedFd<'_>, u64, bool),
) -> Option<i32> {
    let (address, length) = (memory.address(), LENGTH as u64);
    let memory = Memory::InFile { address, length, offset, is_lent };
    let (pd, access) = (client.pd(), Access::READ_WRITE);
    let request = Request::Memory(MemoryCommand::RegisterMemory { pd, access, start: address, memory });
    match client.request_with(&request, &[fd]) {
        Ok(Response::Answer(_)) => None,
        Err(refused) => Some(refused.errno),
        other => panic!("{other:?}"),
    }
}

#[test]
fn file_of_other_users_program_is_not_mapped() {
    if !is_root("file_of_other_users_program_is_not_mapped") {
        return;
    }
    let nic = nic(Quota::default());
    let client = nic.admitted_as(OTHER).expect("served");
    let (fd, memory) = file_of_program(LENGTH);
    assert_eq!(register_in(&client, &memory, (fd.as_fd(), 0, false)), None, "reached by its address");
    assert_eq!(mappings(&nic), 0);
}

#[test]
fn lent_file_loses_no_page() {
    let nic = nic(Quota::default());
    let client = nic.admitted();
    let sealed = || {
        let (fd, memory) = file_of_program(LENGTH);
        fcntl(&fd, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW)).expect("its own");
        (fd, memory)
    };
    for (fd, memory) in [file_of_program(LENGTH), sealed()] {
        assert_eq!(register_in(&client, &memory, (fd.as_fd(), 0, true)), None);
        assert_eq!(mappings(&nic), 0, "it could shrink, or its pages are missing");
    }
    let (fd, memory) = sealed();
    fallocate(&fd, FallocateFlags::empty(), 0, LENGTH as i64).expect("room");
    assert_eq!(register_in(&client, &memory, (fd.as_fd(), 0, true)), None);
    assert_eq!(mappings(&nic), 1);
    let punch = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    fallocate(&fd, punch, 0, 4096).expect_err("sealed");
    ftruncate(&fd, 0).expect_err("sealed");
}

#[test]
fn memory_outside_of_its_file_is_not_mapped() {
    let nic = nic(Quota::default());
    let client = nic.admitted();
    let (fd, memory) = file_of_program(LENGTH);
    let (pipe, _writer) = std::io::pipe().expect("a pipe");
    let regular = tempfile::tempfile().expect("a file");
    regular.set_len(LENGTH as u64).expect("room");
    let read_only = File::open(format!("/proc/self/fd/{}", fd.as_raw_fd()));
    let read_only = read_only.expect("its own");
    fcntl(&fd, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW)).expect("its own");
    fallocate(&fd, FallocateFlags::empty(), 0, LENGTH as i64).expect("room");
    for is_lent in [false, true] {
        for offset in [1, 4096, u64::MAX, u64::MAX - 4096] {
            assert_eq!(register_in(&client, &memory, (fd.as_fd(), offset, is_lent)), None, "{offset}");
        }
        for other in [pipe.as_fd(), regular.as_fd(), read_only.as_fd(), client.link.as_fd()] {
            assert_eq!(register_in(&client, &memory, (other, 0, is_lent)), None);
        }
        assert_eq!(mappings(&nic), 0);
    }
}
