//! The stock `rdma` of iproute2, which queries by netlink, on a kernel without RDMA.

use super::{Site, installed, ports, skip};
use crate::site::in_time::CommandInTime;

/// True if the tests here cannot run; prints the reason.
fn cannot(test: &str) -> bool {
    if skip(test, &["rdma", "ibv_rc_pingpong"]) {
        return true;
    }
    // /proc/net/netlink does not list a family without sockets; the tool itself shows whether the kernel has one.
    let version = std::process::Command::new("rdma").arg("system").output_in_time().unwrap();
    if version.status.success() {
        println!("SKIP {test}: this kernel has RDMA, and is asked itself");
    }
    version.status.success()
}

#[test]
fn rdma_tool_shows_device_and_port() {
    if cannot("rdma_tool_shows_device_and_port") {
        return;
    }
    let site = Site::new("nl-show");
    for (asked, wanted) in [
        ("rdma dev", "0: roxie0: node_type ca fw "),
        ("rdma dev show roxie0", "0: roxie0: node_type ca fw "),
        ("rdma link", "link roxie0/1 state ACTIVE physical_state LINK_UP netdev left"),
        ("rdma -j link show roxie0/1", "\"ifname\":\"roxie0\",\"port\":1,\"state\":\"ACTIVE\""),
        ("rdma resource", "0: roxie0: pd 0 cq 0 qp 0 mr 0 ctx 0"),
    ] {
        let listed = site.local("udp", asked).finish();
        assert!(listed.status.success() && listed.output.contains(wanted), "{asked}: {listed:?}");
    }
    for refused in ["rdma dev show roxie1", "rdma link show roxie0/2", "rdma dev set roxie0 name other"] {
        let listed = site.local("udp", refused).finish();
        assert!(!listed.status.success(), "{refused}: {listed:?}");
    }
}

#[test]
fn rdma_tool_shows_queue_pairs_of_all_programs() {
    if cannot("rdma_tool_shows_queue_pairs_of_all_programs") {
        return;
    }
    let site = Site::new("nl-qps");
    for port in ports() {
        let mut server = site.local(port, "ibv_rc_pingpong -g 1");
        server.wait_until_it_listens(18515);
        let summary = site.local(port, "rdma resource").finish();
        assert!(summary.output.contains("0: roxie0: pd 1 cq 1 qp 1 mr 1 ctx 1"), "{port}: {summary:?}");
        let listed = site.local(port, "rdma resource show qp").finish();
        for part in ["link roxie0/1 lqpn ", " type RC state INIT ", " comm ibv_rc_pingpong"] {
            assert!(listed.output.contains(part), "{port}, {part}: {listed:?}");
        }
        // Queue pairs of another interface belong to another device, and those of ended programs are gone.
        let other = site.remote(port, "rdma resource show qp").finish();
        assert!(other.status.success() && !other.output.contains("lqpn"), "{port}: {other:?}");
        drop(server);
        let without_device = site.local(port, "rdma resource").finish();
        assert!(
            without_device.output.contains("0: roxie0: pd 0 cq 0 qp 0 mr 0 ctx 0"),
            "{port}: {without_device:?}"
        );
    }
}

/// Queries as by other libraries than `rdma`: blocking and non-blocking, with truncation flagged, and other families
/// unaffected.
#[test]
fn emulated_netlink_socket_behaves_like_others() {
    let name = "emulated_netlink_socket_behaves_like_others";
    if cannot(name) || !installed("python3") {
        return;
    }
    let site = Site::new("nl-socket");
    let program = r#"
import errno, os, select, socket, struct
RDMA = 20
def opened(*kinds):
    return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | sum(kinds), RDMA)
dump = struct.pack("=IHHII", 16, 5 << 10 | 1, 0x301, 7, 0)
def told(answer):
    length, kind, flags, seq, port = struct.unpack_from("=IHHII", answer)
    return kind, seq
one = opened()
assert select.select([one], [], [], 0)[0] == []
assert one.send(dump) == len(dump)
assert select.select([one], [], [], 0)[0] == [one]
answer, sender = one.recvfrom(8192)
assert told(answer) == (5 << 10 | 1, 7) and b"roxie0\0" in answer, answer
assert told(one.recv(8192)) == (3, 7)
quiet = opened(socket.SOCK_NONBLOCK)
try:
    quiet.recv(100)
    raise SystemExit("there is something")
except BlockingIOError:
    pass
quiet.bind((0, 0))
assert quiet.sendto(dump, (0, 0)) == len(dump)
assert quiet.sendmsg([dump[:8], dump[8:]], [], 0, (0, 0)) == len(dump)
data, _, flags, _ = quiet.recvmsg(20)
assert flags & socket.MSG_TRUNC and len(data) == 20
# Interfaces are told by the kernel, also through a number that was ours.
number = one.fileno()
one.close()
links = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
assert links.fileno() == number
links.send(struct.pack("=IHHIIBBHiII", 32, 18, 0x301, 9, 0, 0, 0, 0, 0, 0, 0))
assert b"left\0" in links.recv(65536)
try:
    socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 31)
    raise SystemExit("there is no such family")
except OSError as error:
    assert error.errno == errno.EPROTONOSUPPORT, error
print("fine")
"#;
    let place = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(place.path(), program).unwrap();
    let ran = site.local("udp", &format!("python3 {}", place.path().display())).finish();
    assert!(ran.status.success() && ran.output.contains("fine"), "{ran:?}");
}
