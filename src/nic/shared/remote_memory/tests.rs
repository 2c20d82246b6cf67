use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};

use super::*;

fn file(name: &str) -> OwnedFd {
    File::options().read(true).write(true).open(name).expect(name).into()
}

fn map() -> OwnedFd {
    File::open("/proc/self/maps").expect("this process's own").into()
}

fn own(secret: &u64) -> RemoteMemory {
    let fds = RemoteMemory::descriptors().expect("this process's own").into();
    RemoteMemory::new(fds, (std::ptr::from_ref(secret) as u64, *secret)).expect("this process's own")
}

#[test]
fn bytes_are_read_and_written_until_fenced() {
    let remote = own(&0x1234_5678_9abc_def0);
    let there: Vec<u8> = (0..=255).collect();
    let mut here = vec![0; 256];
    remote.read(&mut Lookup::default(), there.as_ptr() as u64, &mut here).expect("mapped");
    assert_eq!(here, there);
    remote.write(&mut Lookup::default(), here.as_ptr() as u64 + 10, &[7; 5]).expect("mapped");
    assert_eq!(here[9..16], [9, 7, 7, 7, 7, 7, 15]);
    assert!(
        remote.read(&mut Lookup::default(), 0, &mut here).is_err()
            && remote.write(&mut Lookup::default(), 8, &[1]).is_err()
    );
    remote.fence();
    assert!(remote.read(&mut Lookup::default(), there.as_ptr() as u64, &mut here).is_err(), "fenced");
}

#[test]
fn read_only_memory_is_not_written() {
    static CONSTANT: [u8; 64] = [3; 64];
    let remote = own(&7);
    let at = CONSTANT.as_ptr() as u64;
    let mut here = [0; 64];
    remote.read(&mut Lookup::default(), at, &mut here).expect("readable");
    assert!(remote.check(at, 64, Use::Read).is_ok() && remote.check(at, 64, Use::Write).is_err());
    if remote.map.answers_at_once() {
        assert_eq!(
            remote.write(&mut Lookup::default(), at, &[4]).expect_err("read-only").raw_os_error(),
            Some(libc::EFAULT)
        );
    }
    assert_eq!((here, CONSTANT), ([3; 64], [3; 64]));
}

#[test]
fn other_descriptors_are_refused() {
    let secret = 5;
    let at = (std::ptr::from_ref(&secret) as u64, secret);
    let why = |fds: Vec<OwnedFd>| RemoteMemory::new(fds, at).expect_err("refused").to_string();
    assert!(why(vec![]).contains("0 descriptors"));
    assert!(why(vec![file("/proc/self/mem")]).contains("1 descriptors"));
    for name in ["/dev/null", "/dev/zero", "/proc/self/comm", "/proc/self/oom_score_adj"] {
        assert!(why(vec![file(name), map()]).contains("of another file"), "{name}");
    }
    let readable: OwnedFd = File::open("/proc/self/mem").expect("this process's own").into();
    assert!(why(vec![readable, map()]).contains("reading and writing"));
    let other = RemoteMemory::new(vec![file("/proc/self/mem"), map()], (at.0, secret + 1));
    assert!(matches!(other, Err(Unreachable::OtherMemory)));
}

/// After an exec, a process has another address space: the descriptor of the old one leads to nothing, although the
/// process number and all descriptors stay.
#[test]
fn memory_is_gone_after_exec() {
    let script = "echo ready; read _; exec sleep 100";
    let (input, output) = (Stdio::piped(), Stdio::piped());
    let mut child =
        Command::new("sh").args(["-c", script]).stdin(input).stdout(output).spawn().expect("a shell");
    let mut line = [0; 6];
    std::io::Read::read_exact(child.stdout.as_mut().expect("piped"), &mut line).expect("it is ready");
    let id = child.id();
    let of = |name| format!("/proc/{id}/{name}");
    let memory = File::options().read(true).write(true).open(of("mem")).expect("its memory");
    let maps = File::open(of("maps")).expect("its map");
    let map = AddressMap::new(maps.into()).expect("a map");
    let text = std::fs::read_to_string(of("maps")).expect("its map");
    let start = u64::from_str_radix(text.split('-').next().expect("a line"), 16).expect("an address");
    let remote = RemoteMemory::with(memory, map);
    remote.read(&mut Lookup::default(), start, &mut [0; 8]).expect("it is there before");
    drop(child.stdin.take());
    let is_shell = || std::fs::read_to_string(of("comm")).is_ok_and(|c| c == "sh\n");
    while is_shell() {
        std::thread::yield_now();
    }
    let after = std::fs::read_to_string(of("maps")).expect("it lives");
    for line in after.lines() {
        let start = u64::from_str_radix(line.split('-').next().expect("a line"), 16).expect("an address");
        assert!(
            remote.read(&mut Lookup::default(), start, &mut [0; 8]).is_err()
                && remote.write(&mut Lookup::default(), start, &[0]).is_err(),
            "{line}"
        );
    }
    child.kill().expect("it lives");
    child.wait().expect("it ends");
}
