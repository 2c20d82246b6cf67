use super::*;
use crate::shared::PageList;
use crate::verbs::{FastRegistration, LKey, MwType, RKey, WindowBind};

const PD: PdId = PdId(1);
const USER: KeyUser = KeyUser { pd: PD, qp: QpIndex(5) };

fn spec(access: Access, start: u64, length: u64) -> RegionSpec {
    RegionSpec { pd: PD, access, start, length, misalignment: 0, may_fault: false }
}

fn table() -> MemoryTable {
    MemoryTable::new(8, 1)
}

//= test: IBTA 9.7.4.1.5: rkey-is-of-the-domain, rkey-has-bounds
//= test: IBTA 10.6.3.1: local-reading-needs-no-right
#[test]
fn key_grants_exactly_the_bytes_of_its_region() {
    let mut table = table();
    let (mr, key) = table.register(&spec(Access::REMOTE_READ, 0x1000, 100)).unwrap();
    let read =
        |table: &MemoryTable, user, key, at, n| table.check_remote(user, key, at, n, Access::REMOTE_READ);
    assert_eq!(read(&table, USER, key, 0x1000 + 36, 64), Ok(Span { mr, may_fault: false, offset: 36 }));
    assert_eq!(read(&table, USER, key, 0x1000 + 37, 64), Err(Refusal::OutOfBounds));
    assert_eq!(read(&table, USER, key, 0xfff, 1), Err(Refusal::OutOfBounds));
    assert_eq!(read(&table, USER, key, u64::MAX, 64), Err(Refusal::OutOfBounds));
    let write = table.check_remote(USER, key, 0x1000, 1, Access::REMOTE_WRITE);
    assert_eq!(write, Err(Refusal::AccessDenied));
    assert_eq!(read(&table, KeyUser { pd: PdId(2), ..USER }, key, 0x1000, 1), Err(Refusal::OtherPd));
    assert_eq!(read(&table, USER, key ^ 1, 0x1000, 1), Err(Refusal::UnknownKey), "another variant");
    assert_eq!(
        table.check_local(PD, key, 0x1000, 100, Access::empty()),
        Ok(Span { mr, may_fault: false, offset: 0 })
    );
}

//= test: IBTA 10.6.5: key-dies-with-its-region
#[test]
fn deregistered_key_is_invalid_and_not_reused() {
    let mut table = MemoryTable::new(1, 1);
    let empty = spec(Access::empty(), 0, 8);
    let (mr, old) = table.register(&empty).unwrap();
    assert!(table.register(&empty).is_none(), "the table is full");
    assert_eq!(table.deregister(mr), Ok(()));
    assert_eq!(table.deregister(mr), Err(Refusal::UnknownKey));
    let (_, new) = table.register(&empty).unwrap();
    assert_ne!(old, new);
    assert_eq!(table.check_local(PD, old, 0, 8, Access::empty()), Err(Refusal::UnknownKey));
}

#[test]
fn no_key_is_reused_for_65_536_generations() {
    let mut table = MemoryTable::new(1, 1);
    let mut seen = std::collections::HashSet::new();
    for _ in 0..1 << 16 {
        let (mr, key) = table.register(&spec(Access::empty(), 0, 8)).unwrap();
        assert!(seen.insert(key));
        table.deregister(mr).unwrap();
    }
}

//= test: IBTA 10.6.5: key-dies-with-its-region
#[test]
fn reregistration_invalidates_the_old_key() {
    let mut table = table();
    let (mr, old) = table.register(&spec(Access::REMOTE_READ, 0, 64)).unwrap();
    let new = table.reregister(mr, &spec(Access::READ_WRITE, 0x100, 32), true).unwrap();
    assert_eq!(table.check_remote(USER, old, 0, 1, Access::REMOTE_READ), Err(Refusal::UnknownKey));
    let span = table.check_remote(USER, new, 0x110, 16, Access::REMOTE_WRITE);
    assert_eq!(span, Ok(Span { mr, may_fault: false, offset: 16 }));
}

#[test]
fn reregistration_in_place_keeps_the_key() {
    let mut table = table();
    let (mr, key) = table.register(&spec(Access::READ_WRITE, 0, 64)).unwrap();
    assert_eq!(table.reregister(mr, &spec(Access::REMOTE_READ, 0, 64), false), Ok(key));
    assert!(table.check_remote(USER, key, 0, 1, Access::REMOTE_READ).is_ok());
    assert!(table.check_remote(USER, key, 0, 1, Access::REMOTE_WRITE).is_err());
}

fn bound(kind: MwType) -> (MemoryTable, MwIndex, WindowBind, MrIndex) {
    let mut table = table();
    let (mr, region) = table.register(&spec(Access::READ_WRITE | Access::MW_BIND, 0x1000, 100)).unwrap();
    let (window, key) = table.alloc_window(PD, kind).unwrap();
    let new_key = match kind {
        MwType::One => table.next_window_key(window).unwrap(),
        MwType::Two => key ^ 0x55,
    };
    let bind = WindowBind {
        window: RKey(key),
        new_key: RKey(new_key),
        region: LKey(region),
        address: 0x1010,
        length: 16,
        access: Access::REMOTE_WRITE,
    };
    table.bind(USER, &bind).unwrap();
    (table, window, bind, mr)
}

use crate::verbs::MwIndex;

//= test: IBTA 10.6.7: window-opens-a-part-to-peers, window-2-is-for-one-qp
#[test]
fn window_grants_its_part_to_peers_only() {
    for kind in [MwType::One, MwType::Two] {
        let (table, _, bind, mr) = bound(kind);
        let key = bind.new_key.0;
        let write = |user, at, n| table.check_remote(user, key, at, n, Access::REMOTE_WRITE);
        assert_eq!(write(USER, 0x1010, 16), Ok(Span { mr, may_fault: false, offset: 16 }));
        assert_eq!(write(USER, 0x1010, 17), Err(Refusal::OutOfBounds));
        assert_eq!(write(USER, 0x100f, 1), Err(Refusal::OutOfBounds));
        let other = KeyUser { qp: QpIndex(6), ..USER };
        let expected = if kind == MwType::Two {
            Err(Refusal::OtherQp)
        } else {
            Ok(Span { mr, may_fault: false, offset: 16 })
        };
        assert_eq!(write(other, 0x1010, 16), expected);
        assert_eq!(write(KeyUser { pd: PdId(2), ..USER }, 0x1010, 1), Err(Refusal::OtherPd));
        let read = table.check_remote(USER, key, 0x1010, 1, Access::REMOTE_READ);
        assert_eq!(read, Err(Refusal::AccessDenied));
        let local = table.check_local(PD, key, 0x1010, 1, Access::empty());
        assert_eq!(local, Err(Refusal::AccessDenied), "a window has no lkey");
        assert_eq!(
            table.check_remote(USER, bind.window.0, 0x1010, 1, Access::REMOTE_WRITE),
            Err(Refusal::UnknownKey)
        );
    }
}

//= test: IBTA 10.6.4: zero-based-region-counts-from-zero
#[test]
fn zero_based_window_counts_from_zero() {
    let (mut table, _, bind, mr) = bound(MwType::Two);
    table.invalidate(USER, bind.new_key.0, false).unwrap();
    let bind = WindowBind { window: bind.new_key, access: bind.access | Access::ZERO_BASED, ..bind };
    table.bind(USER, &bind).unwrap();
    let write = |at, n| table.check_remote(USER, bind.new_key.0, at, n, Access::REMOTE_WRITE);
    assert_eq!(write(0, 16), Ok(Span { mr, may_fault: false, offset: 16 }));
    assert_eq!(write(1, 16), Err(Refusal::OutOfBounds));
}

//= test: IBTA 10.6.7: region-with-windows-is-busy
#[test]
fn region_with_windows_cannot_be_deregistered() {
    for kind in [MwType::One, MwType::Two] {
        let (mut table, window, ..) = bound(kind);
        let mr = MrIndex(0);
        assert_eq!(table.deregister(mr), Err(Refusal::WindowsBound(1)));
        let again = table.reregister(mr, &spec(Access::empty(), 0, 1), true);
        assert_eq!(again, Err(Refusal::WindowsBound(1)));
        assert_eq!(table.free_window(window), Some(PD));
        assert_eq!(table.free_window(window), None);
        assert_eq!(table.deregister(mr), Ok(()));
        assert!(table.is_empty());
    }
}

//= test: IBTA 10.6.7 o10-36.2.2: window-1-is-not-zero-based
//= test: IBTA 10.6.7: window-1-has-a-new-key-each-time
#[test]
fn type_1_window_accepts_each_issued_key_once() {
    let (mut table, window, bind, _) = bound(MwType::One);
    let again = WindowBind { window: bind.new_key, ..bind };
    assert_eq!(table.bind(USER, &again), Err(Refusal::UnknownKey), "its current key");
    let (first, second) = (table.next_window_key(window).unwrap(), table.next_window_key(window).unwrap());
    let skip = WindowBind { new_key: RKey(second), ..again };
    table.bind(USER, &skip).unwrap();
    let back = WindowBind { window: RKey(second), new_key: RKey(first), ..bind };
    assert_eq!(table.bind(USER, &back), Err(Refusal::UnknownKey), "an older one");
    let third = table.next_window_key(window).unwrap();
    let zero_based = WindowBind {
        window: RKey(second),
        new_key: RKey(third),
        access: bind.access | Access::ZERO_BASED,
        ..bind
    };
    assert_eq!(table.bind(USER, &zero_based), Err(Refusal::WrongKind), "o10-36.2.2: not zero-based");
    let unbind = WindowBind { window: RKey(second), new_key: RKey(third), length: 0, ..bind };
    table.bind(USER, &unbind).unwrap();
    assert_eq!(table.deregister(MrIndex(0)), Ok(()), "no window is bound");
}

/// Alignment for atomics depends on the address in host memory, which may differ from the peer's address modulo 8.
#[test]
fn alignment_depends_on_the_host_address() {
    let mut table = table();
    let aligned = |table: &MemoryTable, key, address| {
        let span = table.check_remote(USER, key, address, 1, Access::REMOTE_READ).unwrap();
        table.misalignment(span)
    };
    let odd = RegionSpec { misalignment: 3, ..spec(Access::READ_WRITE, 0x1000, 64) };
    let (mr, key) = table.register(&odd).unwrap();
    assert_eq!((aligned(&table, key, 0x1000), aligned(&table, key, 0x1005)), (3, 0));
    let key = table.reregister(mr, &RegionSpec { misalignment: 6, ..odd }, true).unwrap();
    assert_eq!(aligned(&table, key, 0x1001), 7);

    let list = PageList::new(1).unwrap();
    assert!(list.set(0, 4096));
    let (_, key) = table.alloc_fast(PD, list, 2 * 4096, 5).unwrap();
    let (key, access) = (RKey(key), Access::READ_WRITE);
    let registration = FastRegistration { key, start: 0x5_0012, length: 64, page_shift: 12, access };
    table.fast_register(USER, &registration).unwrap();
    assert_eq!(
        aligned(&table, key.0, 0x5_0012),
        (0x12 + 5) % 8,
        "where it begins in its page, and where that is"
    );
    assert_eq!(aligned(&table, key.0, 0x5_0013), 0);
}

#[test]
fn spans_of_application_memory_may_fault() {
    let (mut table, mr, _, registration) = fast();
    table.pages_may_be_missing(mr);
    table.fast_register(USER, &registration).unwrap();
    let may_fault = |table: &MemoryTable, key, at| {
        table.check_remote(USER, key, at, 1, Access::REMOTE_READ).unwrap().may_fault
    };
    assert!(may_fault(&table, registration.key.0, 0x5_0010));
    let safe = spec(Access::READ_WRITE, 0, 64);
    let (mr, key) = table.register(&safe).unwrap();
    assert!(!may_fault(&table, key, 0));
    let key = table.reregister(mr, &RegionSpec { may_fault: true, ..safe }, true).unwrap();
    assert!(may_fault(&table, key, 0));
}

#[test]
fn reregistered_region_belongs_to_the_new_domain_only() {
    let mut table = table();
    let (mr, _) = table.register(&spec(Access::READ_WRITE, 0, 64)).unwrap();
    let other = PdId(9);
    let key =
        table.reregister(mr, &RegionSpec { pd: other, ..spec(Access::READ_WRITE, 0, 64) }, true).unwrap();
    assert!(table.check_local(other, key, 0, 1, Access::empty()).is_ok());
    assert_eq!(table.check_local(PD, key, 0, 1, Access::empty()), Err(Refusal::OtherPd));
}

#[test]
fn fast_registered_pages_have_the_requested_size() {
    let (mut table, mr, _, registration) = fast();
    table.fast_register(USER, &FastRegistration { page_shift: 13, length: 8192, ..registration }).unwrap();
    let pages = table.translation(mr).unwrap();
    let piece = |offset, length| pages.piece(offset, length).map(|p| (p.offset, p.length));
    assert_eq!(piece(0, 10_000), Some((7 * 4096 + 16, 8192 - 16)));
    assert_eq!(piece(8192 - 16, 16), Some((2 * 4096, 16)));
}

#[test]
fn reused_index_has_no_pages_of_its_predecessor() {
    let (mut table, fast, _, _) = fast();
    assert_eq!(table.len(), 1);
    let free = |table: &MemoryTable| {
        let statuses = table.names(0..usize::MAX).filter_map(|name| table.status(name));
        statuses.map(|it| (it.key, it.length)).collect::<Vec<_>>()
    };
    assert_eq!(free(&table), [(0, 0)], "grants nothing yet");
    table.deregister(fast).unwrap();
    assert!(table.is_empty());
    let plain = (0..8).map(|_| table.register(&spec(Access::empty(), 0, 8)).unwrap());
    let plain: Vec<_> = plain.collect();
    assert!(plain.iter().any(|(mr, _)| mr.place() == fast.place()) && !table.is_empty());
    assert!(plain.iter().all(|(mr, _)| table.translation(*mr).is_none()));
    assert!(plain.iter().all(|(_, key)| free(&table).contains(&(*key, 8))));
}

#[test]
fn type_1_window_binds_beyond_256_generations() {
    let (mut table, window, mut bind, _) = bound(MwType::One);
    for _ in 0..600 {
        let key = RKey(table.next_window_key(window).unwrap());
        bind = WindowBind { window: bind.new_key, new_key: key, ..bind };
        assert_eq!(table.bind(USER, &bind), Ok(()));
    }
}

/// One case for each rule of a bind.
//= test: IBTA 10.6.7 C10-72: window-is-of-the-domain
//= test: IBTA 10.6.7 C10-73: window-needs-the-bind-right
//= test: IBTA 10.6.7 C10-74: window-that-writes-needs-local-writing
//= test: IBTA 10.6.7 C10-75: window-lies-in-its-region
//= test: IBTA 10.6.7 o10-37.2.30: window-2-is-bound-when-free
//= test: IBTA 10.6.7 o10-37.2.40: window-2-is-not-bound-to-nothing
#[test]
fn invalid_bind_is_refused() {
    let (mut table, _, good, _) = bound(MwType::Two);
    table.invalidate(USER, good.new_key.0, false).unwrap();
    let good = WindowBind { window: good.new_key, ..good };
    let plain = table.register(&spec(Access::READ_WRITE, 0x1000, 100)).unwrap().1;
    let read_only = table.register(&spec(Access::REMOTE_READ | Access::MW_BIND, 0x1000, 100)).unwrap().1;
    let other_pd = RegionSpec { pd: PdId(2), ..spec(Access::READ_WRITE | Access::MW_BIND, 0x1000, 100) };
    let other_pd = table.register(&other_pd).unwrap().1;
    let one = table.alloc_window(PD, MwType::One).unwrap().1;
    let cases = [
        (WindowBind { region: LKey(plain), ..good }, Refusal::AccessDenied, "C10-73: no MW_BIND"),
        (WindowBind { region: LKey(read_only), ..good }, Refusal::AccessDenied, "C10-74: no local write"),
        (WindowBind { region: LKey(other_pd), ..good }, Refusal::OtherPd, "another domain's region"),
        (WindowBind { region: LKey(1), ..good }, Refusal::UnknownKey, "no region"),
        (WindowBind { region: LKey(one), ..good }, Refusal::WrongKind, "a window is no region"),
        (WindowBind { window: RKey(plain), ..good }, Refusal::WrongKind, "a region is no window"),
        (WindowBind { window: RKey(good.window.0 ^ 1), ..good }, Refusal::UnknownKey, "another variant"),
        (WindowBind { address: 0xfff, ..good }, Refusal::OutOfBounds, "C10-75: before it"),
        (WindowBind { length: 85, ..good }, Refusal::OutOfBounds, "C10-75: behind it"),
        (WindowBind { address: u64::MAX, ..good }, Refusal::OutOfBounds, "C10-75: wraps"),
        (WindowBind { length: 0, ..good }, Refusal::WrongState, "o10-37.2.40: type 2 of nothing"),
        (
            WindowBind { new_key: RKey(good.new_key.0 ^ 0x100), ..good },
            Refusal::UnknownKey,
            "no variant of it",
        ),
        (WindowBind { access: Access::LOCAL_WRITE, ..good }, Refusal::AccessDenied, "local right"),
        (WindowBind { access: Access::FLUSH_GLOBAL, ..good }, Refusal::AccessDenied, "more than the region"),
    ];
    for (bind, refusal, what) in cases {
        assert_eq!(table.bind(USER, &bind), Err(refusal), "{what}");
    }
    let other_user = KeyUser { pd: PdId(2), ..USER };
    assert_eq!(table.bind(other_user, &good), Err(Refusal::OtherPd), "C10-72");
    let stolen = WindowBind { region: LKey(other_pd), ..good };
    assert_eq!(table.bind(other_user, &stolen), Err(Refusal::OtherPd), "C10-72: a window of another domain");
    table.bind(USER, &good).unwrap();
    let again = WindowBind { window: good.new_key, ..good };
    assert_eq!(table.bind(USER, &again), Err(Refusal::WrongState), "o10-37.2.30: not free");
}

//= test: IBTA 10.6.7 o10-37.2.26: window-1-is-not-invalidated
//= test: IBTA 9.4.1.1.3: invalidate-is-checked
#[test]
fn only_its_qp_invalidates_a_type_2_window() {
    let (mut table, _, two, _) = bound(MwType::Two);
    let other = KeyUser { qp: QpIndex(6), ..USER };
    assert_eq!(table.invalidate(other, two.new_key.0, true), Err(Refusal::OtherQp));
    let other_user = KeyUser { pd: PdId(2), ..USER };
    assert_eq!(table.invalidate(other_user, two.new_key.0, true), Err(Refusal::OtherPd));
    assert_eq!(table.invalidate(USER, two.region.0, true), Err(Refusal::WrongKind));
    assert_eq!(table.invalidate(USER, two.new_key.0, true), Ok(()));
    let write = table.check_remote(USER, two.new_key.0, 0x1010, 1, Access::REMOTE_WRITE);
    assert_eq!(write, Err(Refusal::AccessDenied));
    assert_eq!(table.invalidate(USER, two.new_key.0, true), Ok(()), "free already");
    let (mut table, _, one, _) = bound(MwType::One);
    assert_eq!(table.invalidate(USER, one.new_key.0, false), Err(Refusal::WrongKind), "o10-37.2.26");
}

//= test: IBTA 10.6.7: window-2-is-for-one-qp
#[test]
fn destroyed_qp_unbinds_its_windows() {
    let (mut table, _, two, mr) = bound(MwType::Two);
    table.release_windows(QpIndex(6));
    assert!(table.check_remote(USER, two.new_key.0, 0x1010, 1, Access::REMOTE_WRITE).is_ok());
    table.release_windows(USER.qp);
    assert!(table.check_remote(USER, two.new_key.0, 0x1010, 1, Access::REMOTE_WRITE).is_err());
    assert_eq!(table.deregister(mr), Ok(()));
}

fn fast() -> (MemoryTable, MrIndex, PageList, FastRegistration) {
    let mut table = table();
    let list = PageList::new(4).unwrap();
    let (mr, key) = table.alloc_fast(PD, list.clone(), 16 * 4096, 0).unwrap();
    for (page, place) in [7, 2, 9, 0].into_iter().enumerate() {
        assert!(list.set(page as u32, place * 4096));
    }
    let registration = FastRegistration {
        key: RKey(key ^ 3),
        start: 0x5_0010,
        length: 2 * 4096,
        page_shift: 12,
        access: Access::READ_WRITE,
    };
    (table, mr, list, registration)
}

//= test: IBTA 10.6.4: fast-registered-region-is-its-pages
#[test]
fn fast_registered_region_maps_its_pages_in_order() {
    let (mut table, mr, _, registration) = fast();
    assert!(
        table.check_local(PD, registration.key.0 ^ 3, 0, 0, Access::empty()).is_err(),
        "grants nothing yet"
    );
    table.fast_register(USER, &registration).unwrap();
    let read = |at, n| table.check_remote(USER, registration.key.0, at, n, Access::REMOTE_READ);
    assert_eq!(read(0x5_0010, 8192), Ok(Span { mr, may_fault: false, offset: 0 }));
    assert_eq!(read(0x5_000f, 1), Err(Refusal::OutOfBounds), "the first page's bytes before the start");
    let pages = table.translation(mr).unwrap();
    let piece = |offset, length| pages.piece(offset, length).map(|p| (p.offset, p.length));
    assert_eq!(piece(0, 10_000), Some((7 * 4096 + 16, 4096 - 16)));
    assert_eq!(piece(4096 - 16, 10_000), Some((2 * 4096, 4096)));
    assert_eq!(piece(8192 - 16, 16), Some((9 * 4096, 16)));
}

//= test: IBTA 10.6.4: fast-registration-needs-a-free-region
#[test]
fn invalidated_region_can_be_fast_registered_again() {
    let (mut table, _, _, registration) = fast();
    table.fast_register(USER, &registration).unwrap();
    let again = FastRegistration { key: RKey(registration.key.0 ^ 1), ..registration };
    assert_eq!(table.fast_register(USER, &again), Err(Refusal::WrongState));
    assert_eq!(table.invalidate(USER, registration.key.0, true), Ok(()));
    assert!(
        table.check_remote(USER, registration.key.0, registration.start, 1, Access::REMOTE_READ).is_err()
    );
    table.fast_register(USER, &again).unwrap();
    assert!(table.check_remote(USER, again.key.0, registration.start, 1, Access::REMOTE_READ).is_ok());
    let stale = table.check_remote(USER, registration.key.0, registration.start, 1, Access::REMOTE_READ);
    assert_eq!(stale, Err(Refusal::UnknownKey));
}

//= test: IBTA 9.4.1.1.3: invalidate-is-checked
#[test]
fn peer_cannot_invalidate_a_key_without_remote_rights() {
    let (mut table, _, _, registration) = fast();
    let private = FastRegistration { access: Access::LOCAL_WRITE, ..registration };
    table.fast_register(USER, &private).unwrap();
    assert_eq!(table.invalidate(USER, registration.key.0, true), Err(Refusal::AccessDenied));
    assert_eq!(table.invalidate(USER, registration.key.0, false), Ok(()));
}

//= test: IBTA 10.6.3.1: remote-writing-needs-local-writing
//= test: IBTA 10.6.4: fast-registration-needs-a-free-region
#[test]
fn invalid_fast_registration_is_refused() {
    let (mut table, _, list, good) = fast();
    let ordinary = table.register(&spec(Access::READ_WRITE, 0, 8)).unwrap().1;
    let cases = [
        (FastRegistration { length: 4 * 4096, ..good }, Refusal::OutOfBounds, "five pages of four"),
        (FastRegistration { length: u64::MAX, ..good }, Refusal::OutOfBounds, "length wraps"),
        (FastRegistration { start: u64::MAX - 9, length: 64, ..good }, Refusal::OutOfBounds, "start wraps"),
        (FastRegistration { page_shift: 11, ..good }, Refusal::OutOfBounds, "pages too small"),
        (FastRegistration { page_shift: 63, ..good }, Refusal::OutOfBounds, "pages too large"),
        (FastRegistration { access: Access::REMOTE_WRITE, ..good }, Refusal::AccessDenied, "no local write"),
        (FastRegistration { access: Access::ON_DEMAND, ..good }, Refusal::AccessDenied, "not of its kind"),
        (FastRegistration { key: RKey(good.key.0 ^ 0x100), ..good }, Refusal::UnknownKey, "no variant of it"),
        (FastRegistration { key: RKey(ordinary), ..good }, Refusal::WrongKind, "an ordinary region"),
    ];
    for (asked, refusal, what) in cases {
        assert_eq!(table.fast_register(USER, &asked), Err(refusal), "{what}");
    }
    for place in [16 * 4096, 4096 + 8, u64::MAX - 4095] {
        list.set(1, place);
        assert_eq!(table.fast_register(USER, &good), Err(Refusal::OutOfBounds), "a page at {place:#x}");
    }
    list.set(1, 15 * 4096);
    assert_eq!(table.fast_register(KeyUser { pd: PdId(2), ..USER }, &good), Err(Refusal::OtherPd));
    table.fast_register(USER, &good).unwrap();
}

proptest::proptest! {
    /// Every granted byte lies inside the region, for all keys, addresses and binds.
    //= test: IBTA 10.6.7 C10-75: window-lies-in-its-region
    #[test]
    fn no_bind_grants_a_byte_outside_its_region(
        address: u64, length: u64, near in 0u64..200, n in 0u64..200, access: u32, at: u64, take in 0u64..200,
    ) {
        let (mut table, _, good, mr) = bound(MwType::Two);
        table.invalidate(USER, good.new_key.0, false).unwrap();
        for (address, length) in [(address, length), (0x0fc0 + near, n)] {
            let access = Access::from_bits_retain(access);
            let bind = WindowBind { window: good.new_key, address, length, access, ..good };
            if table.bind(USER, &bind).is_err() {
                continue;
            }
            for at in [at, address, address.wrapping_add(near), near] {
                for right in [Access::REMOTE_WRITE, Access::REMOTE_READ, Access::REMOTE_ATOMIC] {
                    if let Ok(span) = table.check_remote(USER, good.new_key.0, at, take, right) {
                        proptest::prop_assert!(access.contains(right));
                        proptest::prop_assert_eq!(span.mr, mr);
                        let begin = address - 0x1000;
                        proptest::prop_assert!(span.offset >= begin && span.offset + take <= begin + length);
                        proptest::prop_assert!(span.offset + take <= 100);
                    }
                }
            }
            table.invalidate(USER, good.new_key.0, false).unwrap();
        }
    }
}
