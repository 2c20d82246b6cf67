//! Memory that does not answer: of a file system that its owner serves, and that waits with a page.

use super::honest::Couple;
use super::isolation::attached;
use super::{Quota, nic};
use crate::host::{ConnectOptions, MemoryRegion};
use crate::remote::Attachment;
use crate::shared::HostMemory;
use crate::shared::remote_memory::silent::SilentMemory;
use crate::verbs::{Access, QpCaps, QpState, SendWr, WrOpcode};

/// The memory is read to send a message, or written by a peer.
#[test]
fn silent_memory_fails_its_qps_alone() {
    for is_written in [false, true] {
        let silent = match SilentMemory::new() {
            Ok(silent) => silent,
            Err(error) => {
                println!("SKIP silent_memory_fails_its_qps_alone: no FUSE file system: {error}");
                return;
            }
        };
        let nic = nic(Quota::default());
        let mut honest = Couple::new([attached(&nic), attached(&nic)], 1);
        let devices = [nic.daemon.inner.house.device.clone(), nic.far.clone()];
        let [(silent_pd, qp), (peer_pd, peer)] = devices.map(|device| {
            let (pd, cq) =
                (device.alloc_pd().expect("a domain"), device.create_cq(4, None).expect("a queue"));
            let qp = device.create_qp(&pd, &cq, &cq, QpCaps::default(), true).expect("a QP");
            (pd, qp)
        });
        let points = [&qp, &peer].map(|qp| qp.endpoint(0).expect("an address"));
        let options = ConnectOptions { access: Access::READ_WRITE, ..ConnectOptions::default() };
        qp.connect(&points[0], &points[1], &options).expect("connected");
        peer.connect(&points[1], &points[0], &options).expect("connected");
        let mapped = [0u8; 64];
        let memory = HostMemory::remote(&silent.memory, mapped.as_ptr() as u64, mapped.len(), false);
        let region = silent_pd.register_memory(memory, Access::READ_WRITE).expect("room");
        let other = peer_pd.register(64, Access::READ_WRITE).expect("memory");
        let to = |of: &MemoryRegion| SendWr {
            opcode: WrOpcode::Write,
            remote_addr: of.address(),
            rkey: of.rkey(),
            ..SendWr::default()
        };
        match is_written {
            true => peer.post_send(&to(&region), &[other.sge(0, 64)]).expect("room"),
            false => qp.post_send(&to(&other), &[region.sge(0, 64)]).expect("room"),
        }
        nic.wait("its end", |_| silent.memory.is_abandoned());
        honest.exchange(|| ());
        assert_eq!(qp.query().expect("its own").state, QpState::Err);
        assert!(!nic.daemon.has_failed());
        drop(silent);
        honest.exchange(|| ());
    }
}

/// A user keeps at most one thread of the NIC blocked.
#[test]
fn silent_user_is_refused_until_memory_answers() {
    let nic = nic(Quota::default());
    let uid = nix::unistd::getuid().as_raw();
    let memory = attached(&nic);
    let guest = std::sync::Arc::clone(&crate::threads::lock(&nic.daemon.inner.guests)[0]);
    guest.memory.abandon();
    nic.wait("the end of its service", |nic| nic.daemon.served().is_empty());
    assert!(nic.daemon.inner.house.is_silent(uid) && !nic.daemon.inner.house.is_silent(uid + 1));
    let refused = Attachment::open(&nic.interface).expect_err("its user waits").to_string();
    assert!(refused.contains("does not answer"), "{refused}");
    drop((guest, memory));
}
