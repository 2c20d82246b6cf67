//! Clients of two users: neither takes objects or names of the other, nor the slots that others need.

use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;

use nix::fcntl::{OFlag, open};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::stat::{Mode, fstat};
use nix::unistd::geteuid;

use super::isolation::attached;
use super::{Nic, Quota, RawClient, nic, settled};
use roxie::host::{ConnectionManager, DialError};
use roxie::remote::message::{Refusal, Request, Response};
use roxie_base::roster::{BoundPort, PortName, PortRequest};
use roxie_base::threads::as_user;
use roxie_nic::nic::{Answer, Command};
use roxie_nic::verbs::{FileId, Gid, OpenXrcd, QpType, XrcdId};

/// The user of clients other than the test's own.
pub(super) const OTHER: u32 = 65534;
/// Port 7471 of `RDMA_PS_TCP`.
const SERVICE: u64 = 0x0106_0000 + 7471;

impl Nic {
    fn connected_as(&self, uid: u32) -> UnixStream {
        as_user(uid, || self.connect()).expect("root")
    }

    pub(super) fn admitted_as(&self, uid: u32) -> Result<RawClient, String> {
        self.admitted_by(self.connected_as(uid))
    }
}

/// Tests of two users need root.
pub(super) fn is_root(test: &str) -> bool {
    let is_root = geteuid().is_root();
    if !is_root {
        println!("SKIP {test}: it needs root");
    }
    is_root
}

#[test]
fn unit_of_ended_process_stays_its_users() {
    if !is_root("unit_of_ended_process_stays_its_users") {
        return;
    }
    let nic = nic(Quota::default());
    let slot = nic.admitted().slot;
    nic.wait("gone", |nic| nic.daemon.served().is_empty());
    let other = nic.admitted_as(OTHER).expect("served");
    let response = other.request(Request::TakeUnit(slot));
    assert!(response.is_err(), "{response:?}");
}

#[test]
fn one_user_leaves_places_to_others() {
    if !is_root("one_user_leaves_places_to_others") {
        return;
    }
    let nic = nic(Quota::default());
    let clients: Vec<_> = (0..255).map_while(|_| nic.admitted_as(OTHER).ok()).collect();
    let refused = nic.admitted_as(OTHER).err().expect("a bound");
    assert!(clients.len() == 128 && refused.contains("--user-max-processes"), "{}: {refused}", clients.len());
    nic.admitted();
}

/// Users with a name on every Linux: daemon, bin and sys.
const NAMED: [u32; 3] = [1, 2, 3];

/// Admits programs of a user until one is refused. Returns them, and the reason.
fn all_of(nic: &Nic, uid: u32) -> (Vec<RawClient>, String) {
    let mut clients = Vec::new();
    loop {
        match nic.admitted_as(uid) {
            Ok(client) => clients.push(client),
            Err(why) => return (clients, why),
        }
    }
}

#[test]
fn last_places_are_for_users_without_one() {
    if !is_root("last_places_are_for_users_without_one") {
        return;
    }
    let nic = nic(Quota::default());
    let [one, other, last] = NAMED;
    let (first, _) = all_of(&nic, one);
    let (second, refused) = all_of(&nic, other);
    let served = first.len() + second.len();
    assert!(served == 255 - 16 - 48 && refused.contains("last 64 places"), "{served}: {refused}");
    let _first_of_its_user = nic.admitted_as(last).expect("a place");
    nic.admitted();
}

#[test]
fn users_without_a_name_share_few_places() {
    if !is_root("users_without_a_name_share_few_places") {
        return;
    }
    let nic = nic(Quota::default());
    let [first, second] = [3_999_999_001, 3_999_999_002].map(|uid| all_of(&nic, uid));
    assert_eq!((first.0.len(), second.0.len()), (16, 0), "{} {}", first.1, second.1);
    assert!(second.1.contains("as many as may"), "{}", second.1);
    let _named = nic.admitted_as(NAMED[0]).expect("a place");
}

fn port(number: u16, address: [u8; 4], reuse: bool) -> PortRequest {
    let name = PortName { space: 0x0106, port: number, owner: 1 };
    let (address, one_family) = (address.into(), true);
    PortRequest::Bind(BoundPort { name, address, reuse, one_family, slot: 0, uid: 0 })
}

fn refused(client: &RawClient, request: Request) -> i32 {
    client.request(request).expect_err("refused").errno
}

#[test]
fn listener_keeps_its_requests_from_other_users() {
    if !is_root("listener_keeps_its_requests_from_other_users") {
        return;
    }
    let nic = nic(Quota::default());
    let here = [192, 0, 2, 1];
    let [alice, bob] = [OTHER - 1, OTHER].map(|uid| nic.admitted_as(uid).expect("served"));
    alice.request(Request::PortNumber(port(7471, [0; 4], true))).expect("free");
    alice.request(Request::Services(vec![(SERVICE, Some([0; 4].into()))])).expect("its port");
    let on_the_address = || Request::Services(vec![(SERVICE, Some(here.into()))]);
    assert_eq!(refused(&bob, on_the_address()), libc::EADDRINUSE);
    for address in [here, [0; 4]] {
        assert_eq!(refused(&bob, Request::PortNumber(port(7471, address, true))), libc::EADDRNOTAVAIL);
    }
    let name = PortName { space: 0x0106, port: 7471, owner: 1 };
    bob.request(Request::PortNumber(PortRequest::Release(name))).expect("none of its own");
    assert_eq!(refused(&bob, on_the_address()), libc::EADDRINUSE, "it gave back nothing of another's");
    drop(alice);
    nic.wait("gone", |nic| nic.daemon.served().len() == 1);
    bob.request(Request::PortNumber(port(7471, here, false))).expect("free");
    bob.request(on_the_address()).expect("its port");
}

/// With the library: its error message, and its release of the port.
#[test]
fn listeners_port_is_refused_to_others() {
    let nic = nic(Quota::default());
    let devices = [attached(&nic), attached(&nic)];
    let [a, b] = devices.map(|device| ConnectionManager::start(&device).expect("QP1"));
    let at = SocketAddr::from(([0, 0, 0, 0], 7471));
    let listener = a.listen(at, 1).expect("free");
    match b.listen(at, 1) {
        Err(DialError::Port { source, .. }) => assert_eq!(source.errno, libc::EADDRNOTAVAIL),
        other => panic!("{other:?}"),
    }
    drop(listener);
    b.listen(at, 1).expect("free again");
}

#[test]
fn privileged_port_is_for_root() {
    if !is_root("privileged_port_is_for_root") {
        return;
    }
    let nic = nic(Quota::default());
    let other = nic.admitted_as(OTHER).expect("served");
    let request = || Request::PortNumber(port(1, [0; 4], false));
    if nic.daemon.inner.registry.lowest_port(OTHER) > 1 {
        assert_eq!(refused(&other, request()), libc::EACCES);
    }
    nic.admitted().request(request()).expect("root's");
}

#[test]
fn ports_and_services_have_a_bound() {
    let nic = nic(Quota { ports: 3, ..Quota::default() });
    let client = nic.admitted();
    let bind = |number| client.request(Request::PortNumber(port(number, [0; 4], false)));
    bind(7000).expect("room");
    bind(7001).expect("room");
    client.request(Request::Services(vec![(1 << 40, None)])).expect("room");
    let denied = bind(7002).expect_err("a fourth");
    assert!(denied.errno == libc::ENOMEM && denied.why.contains("ports and services: 4"), "{denied:?}");
    client.request(Request::Services(vec![(1 << 40, None), (2 << 40, None)])).expect_err("a fourth");
    let name = PortName { space: 0x0106, port: 7000, owner: 1 };
    client.request(Request::PortNumber(PortRequest::Release(name))).expect("its own");
    bind(7002).expect("room again");
}

#[test]
fn service_without_its_port_is_refused() {
    let nic = nic(Quota::default());
    let (client, ..) = settled(&nic);
    let response = client.request(Request::Services(vec![(SERVICE, None)]));
    assert!(response.is_err(), "{response:?}");
}

#[test]
fn xrc_domain_is_not_opened_by_its_number() {
    let nic = nic(Quota::default());
    let open = || {
        let file = Some(FileId { device: 7, inode: 9 });
        let (client, ..) = settled(&nic);
        let open = Command::OpenXrcd(OpenXrcd { file, create: true, exclusive: false });
        match client.call(open) {
            Ok(Answer::Xrcd(xrcd)) => (client, xrcd),
            other => panic!("{other:?}"),
        }
    };
    let [(_a, one), (_b, other)] = [open(), open()];
    assert_ne!(one, other);
}

fn open_of(client: &RawClient, fd: &impl AsFd, open: OpenXrcd) -> Result<XrcdId, Refusal> {
    match client.request_with(&Request::Command(Command::OpenXrcd(open)), &[fd.as_fd()])? {
        Response::Answer(Answer::Xrcd(xrcd)) => Ok(xrcd),
        other => panic!("{other:?}"),
    }
}

#[test]
fn xrc_domain_is_shared_by_open_file() {
    let nic = nic(Quota::default());
    let (a, b) = (nic.admitted(), nic.admitted());
    let file = memfd_create("domain", MFdFlags::empty()).expect("a file");
    let other_file = memfd_create("domain", MFdFlags::empty()).expect("a file");
    // The client's own statement about its file is ignored.
    let create = OpenXrcd { file: Some(FileId { device: 7, inode: 9 }), create: true, exclusive: false };
    let shared = open_of(&a, &file, create).expect("room");
    assert_eq!(open_of(&b, &file, OpenXrcd { create: false, ..create }).expect("it is there"), shared);
    assert_ne!(open_of(&b, &other_file, create).expect("room"), shared);
    open_of(&b, &file, OpenXrcd { exclusive: true, ..create }).expect_err("it is there");
    // A bare path needs no right to the file.
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let path = open(path.as_str(), OFlag::O_PATH, Mode::empty()).expect("a path");
    assert_eq!(open_of(&b, &path, create).expect_err("not open").errno, libc::EBADF);
}

/// The inode number of a deleted file is reused, unless the NIC holds the file.
#[test]
fn xrc_domain_keeps_its_file() {
    let nic = nic(Quota::default());
    let (client, ..) = settled(&nic);
    let (reader, writer) = std::io::pipe().expect("a pipe");
    let create = OpenXrcd { create: true, ..OpenXrcd::default() };
    let xrcd = open_of(&client, &writer, create).expect("room");
    let inode = fstat(&writer).expect("its own").st_ino;
    drop((reader, writer));
    let descriptors = || {
        let all = std::fs::read_dir("/proc/self/fd").expect("its descriptors").flatten();
        let inodes = all.filter_map(|entry| Some(std::fs::metadata(entry.path()).ok()?.ino()));
        inodes.filter(|other| *other == inode).count()
    };
    assert_eq!(descriptors(), 1, "the NIC's");
    client.call(Command::CloseXrcd(xrcd)).expect("its own");
    assert_eq!(descriptors(), 0);
}

#[test]
fn client_leaves_xrc_domains_to_others() {
    let nic = nic(Quota::default());
    let (greedy, other) = (nic.admitted(), nic.admitted());
    let open = |client: &RawClient| client.call(Command::OpenXrcd(OpenXrcd::default()));
    let opened = (0..1024).take_while(|_| open(&greedy).is_ok()).count();
    assert_eq!(opened, 512);
    open(&other).expect("a place");
}

#[test]
fn user_leaves_multicast_groups_to_others() {
    if !is_root("user_leaves_multicast_groups_to_others") {
        return;
    }
    let nic = nic(Quota::default());
    let (greedy, pd, cq, _) = settled(&nic);
    let mut other = nic.admitted_as(OTHER).expect("served");
    other.arena(4096);
    let (other_pd, other_cq) = (other.pd(), other.cq(0));
    let group = |number: u16| Gid::from(std::net::IpAddr::from([239, 1, (number >> 8) as u8, number as u8]));
    let qps: Vec<_> = (0..56).map(|_| greedy.qp(pd, cq, QpType::Ud).expect("room")).collect();
    let join = |client: &RawClient, qp, number| client.call(Command::AttachMulticast(qp, group(number)));
    let in_one = qps.iter().take_while(|qp| join(&greedy, **qp, 0).is_ok()).count();
    assert_eq!(in_one, 42, "QPs in one group");
    let groups = (1..1024).take_while(|number| join(&greedy, qps[0], *number).is_ok()).count();
    assert!(groups < 512, "{groups} groups");
    let qp = other.qp(other_pd, other_cq, QpType::Ud).expect("room");
    join(&other, qp, 0).expect("a place in the group");
    join(&other, qp, 2000).expect("a group of its own");
}
