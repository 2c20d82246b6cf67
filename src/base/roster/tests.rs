//! Slots, units and services.

use super::*;

const MOST: u8 = 128;
const UNBOUNDED: Room = Room::ALL;

fn of(uid: u32) -> Identity {
    Identity { pid: 7, uid, name: "x".into() }
}

fn admit(roster: &mut Roster, uid: u32) -> u8 {
    roster.admit(of(uid), UNBOUNDED).expect("a place")
}

fn address(text: &str) -> Option<IpAddr> {
    text.parse().ok()
}

fn bind(roster: &mut Roster, slot: u8, port: u16, text: &str) {
    let address: IpAddr = text.parse().expect("an address");
    let name = PortName { space: 0x0106, port, owner: 1 };
    let one_family = address.is_ipv4();
    let port = BoundPort { name, address, reuse: false, one_family, slot: 99, uid: 99 };
    roster.port(slot, PortRequest::Bind(port), 1024).expect("free");
}

#[test]
fn place_left_first_is_given_first() {
    let mut roster = Roster::new(MOST);
    (0..3).for_each(|expected| assert_eq!(admit(&mut roster, 0), expected));
    roster.leave(2);
    roster.leave(0);
    assert_eq!([admit(&mut roster, 0), admit(&mut roster, 0), admit(&mut roster, 0)], [2, 0, 3]);
    assert_eq!(roster.taken().collect::<Vec<_>>(), [0, 1, 2, 3]);
}

#[test]
fn new_place_comes_before_a_left_one() {
    let mut roster = Roster::of_places(3);
    assert_eq!([admit(&mut roster, 0), admit(&mut roster, 0)], [0, 1]);
    roster.leave(0);
    assert_eq!([admit(&mut roster, 0), admit(&mut roster, 0)], [2, 0]);
    assert_eq!(roster.admit(of(0), UNBOUNDED).map_err(|denied| denied.errno), Err(libc::EAGAIN));
}

#[test]
fn places_and_added_units_end() {
    let mut roster = Roster::new(MOST);
    (0..MOST).for_each(|expected| assert_eq!(admit(&mut roster, 0), expected));
    assert_eq!(roster.next_slot(), None);
    let units: Vec<u8> = std::iter::from_fn(|| roster.add_unit(5)).collect();
    assert_eq!(units.len(), 256 - usize::from(MOST));
    assert!(units.iter().all(|unit| roster.owner_of_unit(*unit) == Some(5)));
    for unit in [units[0], 5] {
        assert_eq!(roster.take_unit(unit, 4, UNBOUNDED).map_err(|denied| denied.errno), Err(libc::EBUSY));
    }
    roster.leave(5);
    assert_eq!((roster.owner_of_unit(units[0]), roster.owner_of_unit(5)), (None, None));
}

#[test]
fn slot_of_a_lent_unit_is_not_given() {
    let mut roster = Roster::new(MOST);
    assert_eq!([admit(&mut roster, 0), admit(&mut roster, 0)], [0, 1]);
    roster.leave(0);
    roster.take_unit(0, 1, UNBOUNDED).expect("free");
    assert_eq!((roster.owner_of_unit(0), roster.next_slot()), (Some(1), Some(2)));
    roster.leave(1);
    assert_eq!((roster.owner_of_unit(0), roster.next_slot()), (None, Some(0)));
}

#[test]
fn unit_goes_to_the_user_that_had_it() {
    let mut roster = Roster::of_places(8);
    let [departed, same, other] = [7, 7, 8].map(|uid| admit(&mut roster, uid));
    roster.leave(departed);
    let mut take = |unit, slot| roster.take_unit(unit, slot, UNBOUNDED).map_err(|denied| denied.errno);
    assert_eq!(take(departed, other), Err(libc::EPERM));
    assert_eq!(take(5, same), Err(libc::EPERM), "no process had it");
    assert_eq!((take(departed, same), take(departed, other)), (Ok(()), Err(libc::EBUSY)));
}

#[test]
fn user_has_so_many_places_and_units() {
    let mut roster = Roster::of_places(8);
    let three = Room { most: 3, ..Room::ALL };
    let slots = [0; 3].map(|_| roster.admit(of(7), three).expect("a place"));
    roster.admit(of(7), three).expect_err("a fourth");
    roster.admit(of(8), three).expect("another user's");
    roster.leave(slots[0]);
    roster.take_unit(slots[0], slots[1], three).expect("its user's");
    roster.admit(of(7), three).expect_err("two places and a unit");
    roster.leave(slots[1]);
    roster.admit(of(7), three).expect("one place");
}

#[test]
fn server_on_an_address_goes_before_all() {
    let mut roster = Roster::new(MOST);
    let local: IpAddr = "192.0.2.1".parse().unwrap();
    roster.services.insert(Service { id: 9, address: None, slot: 1 });
    roster.services.insert(Service { id: 9, address: Some(local), slot: 2 });
    assert_eq!(roster.server_of(9, local), Some(2));
    assert_eq!(roster.server_of(9, "192.0.2.2".parse().unwrap()), Some(1));
    assert_eq!(roster.server_of(8, local), None);
    roster.services.insert(Service { id: 9, address: Some("::".parse().unwrap()), slot: 3 });
    assert_eq!(roster.server_of(9, "2001:db8::1".parse().unwrap()), Some(3));
    roster.leave(1);
    assert_eq!(roster.server_of(9, "192.0.2.2".parse().unwrap()), None);
}

#[test]
fn service_is_for_its_first_listener() {
    let mut roster = Roster::of_places(8);
    let [a, b] = [7, 7].map(|uid| admit(&mut roster, uid));
    let [here, there] = ["192.0.2.1", "192.0.2.2"].map(address);
    let [v4, v6] = ["0.0.0.0", "::"].map(address);
    roster.set_services(a, [(7, v4), (8, here), (9, None)]).expect("free");
    for taken in [(7, None), (7, here), (7, v4), (8, here), (8, v4), (8, None), (9, v6), (9, there)] {
        let denied = roster.set_services(b, [taken, (7, v6)]).expect_err("taken");
        assert_eq!(denied.errno, libc::EADDRINUSE, "{taken:?}");
        let got: Vec<_> = roster.services.of(b).collect();
        assert_eq!(got, [(7, v6)], "{taken:?}");
    }
    roster.set_services(b, [(8, there), (7, v6)]).expect("free");
    roster.set_services(a, []).expect("none");
    roster.set_services(b, [(9, None)]).expect("free again");
}

#[test]
fn service_of_a_port_needs_the_port() {
    const ID: u64 = 0x0106_0000 + 7471;
    let mut roster = Roster::of_places(8);
    let [a, b] = [7, 8].map(|uid| admit(&mut roster, uid));
    let [here, there] = ["192.0.2.1", "192.0.2.2"].map(address);
    let set =
        |roster: &mut Roster, slot, on| roster.set_services(slot, [(ID, on)]).map_err(|denied| denied.errno);
    assert_eq!(set(&mut roster, a, None), Err(libc::EACCES));
    bind(&mut roster, a, 7471, "192.0.2.1");
    assert_eq!(set(&mut roster, a, None), Err(libc::EACCES), "more than its address");
    assert_eq!(set(&mut roster, b, here), Err(libc::EACCES), "another's port");
    assert_eq!(set(&mut roster, a, here), Ok(()));
    bind(&mut roster, b, 7471, "192.0.2.2");
    assert_eq!(set(&mut roster, b, here), Err(libc::EADDRINUSE));
    assert_eq!(set(&mut roster, b, there), Ok(()));
    let name = PortName { space: 0x0106, port: 7471, owner: 1 };
    roster.port(a, PortRequest::Release(name), 1024).expect("its own");
    assert_eq!(roster.services.count(a), 0, "it goes with its port");
    assert_eq!(roster.services.count(b), 1);
}

#[test]
fn shared_port_is_listened_on_by_no_process() {
    const ID: u64 = 0x0106_0000 + 7471;
    let mut roster = Roster::of_places(8);
    let [a, b] = [7, 7].map(|uid| admit(&mut roster, uid));
    let name = PortName { space: 0x0106, port: 7471, owner: 1 };
    let on = address("0.0.0.0");
    let shared =
        BoundPort { name, address: on.expect("an address"), reuse: true, one_family: true, slot: 0, uid: 0 };
    roster.port(a, PortRequest::Bind(shared.clone()), 1024).expect("free");
    roster.set_services(a, [(ID, on)]).expect("alone");
    roster.port(b, PortRequest::Bind(shared), 1024).expect("shared");
    roster.set_services(b, [(ID, on)]).expect_err("another process listens");
    roster.set_services(a, [(ID, on)]).expect("it stays");
    roster.set_services(a, []).expect("none");
    let denied = roster.set_services(b, [(ID, on)]).expect_err("still shared");
    assert_eq!(denied.errno, libc::EADDRNOTAVAIL);
}

#[test]
fn last_places_are_kept() {
    let mut roster = Roster::of_places(8);
    let room = Room { most: 100, spare: 2, spare_of_more: 0 };
    let slots: Vec<u8> = (0..3).map(|uid| roster.admit(of(1000 + uid), room).expect("a place")).collect();
    let others = (0..3).filter(|uid| roster.admit(of(2000 + uid), room).is_ok());
    assert_eq!(others.count(), 3);
    let refused = roster.admit(of(3000), room).expect_err("two are left");
    assert!(refused.errno == libc::EAGAIN && refused.why.contains("last 2 places"), "{refused}");
    roster.leave(slots[0]);
    roster.leave(slots[1]);
    let again = roster.admit(of(1000), room).expect("a place");
    roster.take_unit(slots[0], again, room).expect("the last but two");
    roster.admit(of(1001), room).expect_err("a unit keeps its place from being given");
    assert_eq!([admit(&mut roster, 0), admit(&mut roster, 0)], [7, slots[1]]);
}

#[test]
fn subordinate_users_share_the_places_of_one() {
    let mut roster = Roster::of_places(8);
    let two = Room { most: 2, spare: 0, spare_of_more: 4 };
    let mut admit = |uid: u32, payer: u32| {
        roster.count_as(uid, payer);
        roster.admit(of(uid), two).map_err(|denied| denied.why)
    };
    admit(100_000, 1000).expect("a place");
    admit(1000, 1000).expect("the second");
    let refused = admit(100_001, 1000).expect_err("two are all");
    assert!(refused.contains("has 2 processes, as many as may"), "{refused}");
    admit(1001, 1001).expect("another user's");
    admit(1002, 1002).expect("four are left");
    let refused = admit(1001, 1001).expect_err("kept for others");
    assert!(refused.contains("the last 4 places are kept for users without one"), "{refused}");
    for uid in 1003..1007 {
        admit(uid, uid).expect("the first of its user");
    }
}

/// Each of many services of other processes costs a call nothing: those that may conflict lie side by side.
#[test]
fn index_finds_the_conflicts_of_ports() {
    let addresses = ["192.0.2.1", "192.0.2.2", "0.0.0.0", "2001:db8::1", "::"]
        .map(|text| text.parse::<IpAddr>().unwrap());
    let mut seed = 5;
    let mut draw = |below: usize| crate::random::splitmix(&mut seed) as usize % below;
    for _ in 0..2000 {
        let mut roster = Roster::of_places(8);
        let slots = [7, 7, 8].map(|uid| admit(&mut roster, uid));
        let mut bound: Vec<BoundPort> = Vec::new();
        for owner in 0..6 {
            let (address, at) = (addresses[draw(5)], draw(3));
            let name = PortName { space: 0x0106, port: 5000 + draw(2) as u16, owner };
            let (slot, uid) = (slots[at], [7, 7, 8][at]);
            let port = BoundPort { name, address, reuse: draw(3) > 0, one_family: draw(2) == 0, slot, uid };
            let expected = bound.iter().find_map(|other| port.conflict(other, true));
            let got = roster.port(slot, PortRequest::Bind(port.clone()), 1024);
            assert_eq!(got.is_err(), expected.is_some(), "{port:?} beside {bound:?}: {got:?}");
            if got.is_ok() {
                bound.push(port);
            }
            let (at, address) = (draw(3), [None, Some(addresses[draw(5)])][draw(2)]);
            let slot = slots[at];
            let id = 0x0106_0000 + 5000 + draw(2) as u64;
            let own = bound.iter().filter(|port| port.slot == slot && port.name.service() == id);
            let listens = own.into_iter().find(|port| port.covers(address)).is_some_and(|port| {
                let others = bound.iter().filter(|other| (other.slot, other.name) != (slot, port.name));
                others.into_iter().all(|other| port.conflict(other, false).is_none())
            });
            let mut alone = roster.clone();
            let got = alone.set_services(slot, [(id, address)]);
            assert_eq!(got.is_ok(), listens, "{id:#x} on {address:?} of {slot} beside {bound:?}: {got:?}");
        }
    }
}
