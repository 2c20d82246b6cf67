//! Work requests on their way to the NIC: `src/nic/shared/work_queue.rs` and `src/nic/shared/page_list.rs`.

use loom::thread;

use crate::check;
use crate::page_list::PageList;
use crate::verbs::{LKey, SendWr, Sge, WrOpcode};
use crate::work_queue::{Payload, RecvRing, SendRing};

fn request(id: u64) -> (SendWr, [Sge; 1]) {
    let wr = SendWr { wr_id: id, opcode: WrOpcode::Write, remote_addr: id, ..SendWr::default() };
    (wr, [Sge { addr: id, length: id as u32, lkey: LKey(id as u32) }])
}

fn stage(ring: &SendRing, staged: u32, id: u64) -> bool {
    let (wr, sges) = request(id);
    ring.stage(staged, &wr, Payload::Sges(&sges)).is_ok()
}

/// Returns the request at a position, asserting that all parts belong to one request.
fn fetch(ring: &SendRing, position: u32) -> Option<u64> {
    let (mut got, mut sges) = (SendWr::default(), [Sge::default()]);
    let fetched = ring.fetch(position, &mut got, &mut sges, &mut [])?;
    assert!(fetched.valid, "an opcode");
    let (wr, due) = request(got.wr_id);
    assert_eq!((got.opcode, got.remote_addr, sges), (wr.opcode, wr.remote_addr, due), "a request in parts");
    Some(got.wr_id)
}

#[test]
fn request_is_never_torn() {
    check(|| {
        let ring = SendRing::new(1, 1, 0).unwrap();
        let nic = {
            let ring = ring.clone();
            thread::spawn(move || fetch(&ring, 0))
        };
        assert!(stage(&ring, 0, 1));
        ring.publish(1);
        assert!(matches!(nic.join().unwrap(), None | Some(1)));
        assert_eq!(fetch(&ring, 0), Some(1));
    });
}

#[test]
fn posted_list_is_atomic() {
    check(|| {
        let ring = SendRing::new(2, 1, 0).unwrap();
        let nic = {
            let ring = ring.clone();
            thread::spawn(move || ring.has(0).then(|| [fetch(&ring, 0), fetch(&ring, 1)]))
        };
        assert!(stage(&ring, 0, 1) && stage(&ring, 1, 2));
        ring.publish(2);
        assert!(matches!(nic.join().unwrap(), None | Some([Some(1), Some(2)])));
    });
}

/// The application rewrites a slot as soon as the NIC has released it, not before.
#[test]
fn reused_slot_never_shows_old_request() {
    check(|| {
        let ring = SendRing::new(1, 1, 0).unwrap();
        assert!(stage(&ring, 0, 1));
        ring.publish(1);
        let nic = {
            let ring = ring.clone();
            thread::spawn(move || {
                let first = fetch(&ring, 0);
                ring.retire(1);
                (first, fetch(&ring, 1))
            })
        };
        let posted = stage(&ring, 0, 2);
        if posted {
            ring.publish(1);
        }
        let (first, second) = nic.join().unwrap();
        assert_eq!(first, Some(1));
        assert!(second.is_none() || (posted && second == Some(2)), "{second:?}");
        assert_eq!(fetch(&ring, 1), posted.then_some(2));
    });
}

/// The NIC reads the page list when it executes the request that names it.
#[test]
fn page_list_precedes_its_request() {
    check(|| {
        let (ring, pages) = (SendRing::new(1, 1, 0).unwrap(), PageList::new(2).unwrap());
        let nic = {
            let (ring, pages) = (ring.clone(), pages.clone());
            thread::spawn(move || ring.has(0).then(|| [pages.page(0), pages.page(1)]))
        };
        assert!(pages.set(0, 7) && pages.set(1, 8));
        assert!(stage(&ring, 0, 1));
        ring.publish(1);
        assert!(matches!(nic.join().unwrap(), None | Some([Some(7), Some(8)])));
    });
}

/// A QP in error flushes posted receives: it requests doorbells, then checks once more.
#[test]
fn receive_during_bell_request_is_noticed() {
    check(|| {
        let ring = RecvRing::new(1, 1).unwrap();
        let nic = {
            let ring = ring.clone();
            thread::spawn(move || {
                ring.want_doorbell(true);
                ring.has(0)
            })
        };
        let rings = ring.post(1, &[]).unwrap();
        assert!(nic.join().unwrap() || rings, "it is not flushed");
    });
}
