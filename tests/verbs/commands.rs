//! Commands as programs write them to the file of rdma_cm, without librdmacm in between.

use super::{Site, skip};

/// Python prelude of each test: opens the file, writes commands, reads answers.
const PRELUDE: &str = r#"
import ctypes, errno, os, socket, struct
libc = ctypes.CDLL(None, use_errno=True)
answer = ctypes.create_string_buffer(1024)
to = ctypes.addressof(answer)
def opened():
    fd = libc.open(b"/dev/infiniband/rdma_cm", os.O_RDWR | os.O_CLOEXEC)
    assert fd >= 0, os.strerror(ctypes.get_errno())
    return fd
def command(fd, number, body, out=0):
    data = struct.pack("<IHH", number, len(body), out) + body
    return 0 if libc.write(fd, data, len(data)) == len(data) else ctypes.get_errno()
def number():
    return int.from_bytes(answer.raw[:4], "little")
def create(fd, space):
    assert command(fd, 0, struct.pack("<QQHBxxxxx", 1, to, space, 2), 4) == 0
    return number()
def address(ip, port, room):
    return (struct.pack("<H", socket.AF_INET) + struct.pack(">H", port) + socket.inet_aton(ip)).ljust(room, b"\0")
def bind(fd, id, port):
    return command(fd, 20, struct.pack("<IHH", id, 16, 0) + address("192.0.2.1", port, 128))
def event(fd):
    assert command(fd, 12, struct.pack("<Q", to), 400) == 0
    return int.from_bytes(answer.raw[12:16], "little")
TCP, UDP = 0x0106, 0x0111
"#;

fn run(tag: &str, program: &str) {
    let place = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(place.path(), format!("{PRELUDE}{program}print('fine')\n")).unwrap();
    let path = place.path().display().to_string();
    let ran = Site::new(tag).local("udp", &format!("python3 {path}")).finish();
    assert!(ran.status.success() && ran.output.contains("fine"), "{ran:?}");
    assert!(!ran.output.contains("is an address of this host, but not of"), "it is the device's: {ran:?}");
}

#[test]
fn either_join_command_accepts_all_flags() {
    if skip("either_join_command_accepts_all_flags", &["python3"]) {
        return;
    }
    let program = r#"
fd = opened()
id = create(fd, UDP)
assert bind(fd, id, 7180) == 0
def join(flags, out=4, ip="239.1.2.3"):
    return command(fd, 22, struct.pack("<QQIHH", to, 5, id, 16, flags) + address(ip, 0, 128), out)
for flags in (0, 1):
    assert join(flags) == 0
    group = number()
    assert event(fd) == 12, "MULTICAST_JOIN"
    assert command(fd, 17, struct.pack("<QII", to, group, 0), 4) == 0 and number() == 1, "one event was fetched"
assert join(2) == errno.EINVAL and join(0, out=3) == errno.ENOSPC
assert join(0, ip="192.0.2.1") == errno.EINVAL
def join_ip(out):
    return command(fd, 16, struct.pack("<QQ", to, 6) + address("239.1.2.4", 0, 28) + struct.pack("<I", id), out)
assert join_ip(3) == errno.ENOSPC and join_ip(4) == 0 and event(fd) == 12
"#;
    run("cm-groups", program);
}

#[test]
fn connect_command_needs_complete_parameters() {
    if skip("connect_command_needs_complete_parameters", &["python3"]) {
        return;
    }
    let program = r#"
fd = opened()
id = create(fd, TCP)
assert command(fd, 3, bytes(28) + address("192.0.2.1", 7181, 28) + struct.pack("<II", id, 2000)) == 0
assert event(fd) == 0, "ADDR_RESOLVED"
def query(what, out):
    return command(fd, 19, struct.pack("<QII", to, id, what), out)
# Addresses and GIDs, of which what came later may be missing; a count of paths, and the paths that there is room for.
assert query(0, 271) == errno.ENOSPC and query(0, 272) == 0
assert query(2, 271) == errno.ENOSPC and query(2, 272) == 0
assert query(1, 7) == errno.ENOSPC and query(1, 8) == 0 and number() == 0
assert query(3, 512) == errno.ENOSYS
assert command(fd, 4, struct.pack("<II", id, 2000)) == 0 and event(fd) == 2, "ROUTE_RESOLVED"
assert query(1, 8) == 0 and number() == 1
def connect(length, valid):
    told = struct.pack("<II", 17, 0) + bytes(256) + bytes([0, 0, 1, 1, 0, 7, 7, valid])
    return command(fd, 6, (told + struct.pack("<II", id, 0))[:length])
assert connect(280, 0) == errno.EINVAL and connect(279, 1) == errno.EINVAL
assert connect(280, 1) == 0
"#;
    run("cm-asked", program);
}

#[test]
fn duplicated_descriptor_closes_the_old_file() {
    if skip("duplicated_descriptor_closes_the_old_file", &["python3"]) {
        return;
    }
    let program = r#"
first, second = opened(), opened()
assert bind(first, create(first, TCP), 7182) == 0
other = create(second, TCP)
assert bind(second, other, 7182) == errno.EADDRINUSE
assert libc.dup2(second, first) == first
assert bind(second, other, 7182) == 0, "the port is free again"
assert bind(first, create(first, TCP), 7182) == errno.EADDRINUSE, "both are the same file"
"#;
    run("cm-dup", program);
}
