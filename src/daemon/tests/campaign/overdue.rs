//! A client whose copies do not come back in time. Its command has taken effect all the same, and so do the books have
//! it.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::super::CAPS;
use super::Quota;
use super::bench::Bench;
use super::honest::steps;
use crate::account::Resource;
use roxie::remote::message::{Memory, Request, Response};
use roxie_base::threads::lock;
use roxie_base::time::set_virtual_time;
use roxie_nic::nic::{Answer, Command, MemoryCommand, Object};
use roxie_nic::shared::SendRing;
use roxie_nic::shared::remote_memory::CopyJobs;
use roxie_nic::shared::work_queue::Payload;
use roxie_nic::verbs::{Access, LKey, QpType, Qpn, SendWr, Sge};

#[test]
fn overdue_deregistration_leaves_the_books() {
    let bench = Bench::new(1, Quota::default());
    // The NIC gives a copy 0.5 s.
    set_virtual_time(None);
    let mut raw_client = bench.admitted(0, 1000).expect("let in");
    let client = Arc::clone(&lock(&bench.sides[0].inner.clients)[0]);
    // A thread that makes no copy.
    let (sender, _jobs) = CopyJobs::new();
    client.memory.copied_by(sender, None);
    *lock(&client.copies) = Some(std::thread::spawn(|| ()));
    raw_client.arena(4096);
    let (pd, cq) = (raw_client.pd(), raw_client.cq(0));
    let qp = raw_client.qp(pd, cq, QpType::Rc).expect("room");
    let words = Box::new([const { AtomicU64::new(7) }; 8]);
    let (address, length) = (words.as_ptr() as u64, 64);
    let memory = Memory::At { address, length, on_demand: false };
    let registers = MemoryCommand::RegisterMemory { pd, access: Access::LOCAL_WRITE, start: address, memory };
    let made = raw_client.request(Request::Memory(registers));
    let Ok(Response::Answer(Answer::Memory(mr, key))) = made else { panic!("{made:?}") };
    for attr in steps([0, 1], Qpn::new(9)) {
        raw_client.call(Command::ModifyQp(qp, Box::new(attr))).expect("a step");
    }
    let part = raw_client.arenas[0].part(1024, SendRing::size(CAPS.max_send_wr, 1, 0)).expect("inside");
    let sends = SendRing::on(&part, CAPS.max_send_wr, 1, 0).expect("room");
    let sge = Sge { addr: address, length: 64, lkey: LKey(key) };
    sends.post(&SendWr::default(), Payload::Sges(&[sge])).expect("room");
    raw_client.bells.ring(qp);
    for _ in 0..4 {
        bench.sides[0].engine().caller_pass();
    }
    let regions = || client.entry().account[Resource::Mrs.key()].used;
    assert_eq!((client.has(Object::Mr(mr)), regions()), (true, 1));
    let refused = raw_client.call(Command::DeregisterMemory(mr)).expect_err("overdue");
    assert_eq!(refused.errno, libc::EBUSY, "{refused:?}");
    assert!(client.memory.is_abandoned());
    // The NIC has no such region any more.
    assert_eq!((client.has(Object::Mr(mr)), regions()), (false, 0));
}
