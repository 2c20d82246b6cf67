//! Descriptors of devices, which no program that this process starts or becomes may inherit: it would keep the
//! interface or the UDP port busy.

use std::collections::BTreeSet;
use std::fs::DirEntry;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use roxie::host::DeviceConfig;

use crate::bursts::open;
use crate::end::PATIENCE;
use crate::wire::{Wire, skip};

/// Returns the descriptors of this process that survive `exec`, with their files.
fn inherited() -> BTreeSet<(String, PathBuf)> {
    let all = std::fs::read_dir("/proc/self/fdinfo").expect("/proc");
    let survivor = |entry: DirEntry| {
        let number = entry.file_name().into_string().ok()?;
        // A descriptor that is closed by now has no file.
        let about = std::fs::read_to_string(entry.path()).ok()?;
        let flags = about.lines().find_map(|line| line.strip_prefix("flags:"))?;
        let flags = i32::from_str_radix(flags.trim(), 8).expect("octal (proc_pid_fdinfo(5))");
        let file = std::fs::read_link(format!("/proc/self/fd/{number}")).ok()?;
        (flags & libc::O_CLOEXEC == 0).then_some((number, file))
    };
    all.filter_map(|entry| survivor(entry.ok()?)).collect()
}

#[test]
fn programs_inherit_no_descriptor_of_a_device() {
    if skip("programs_inherit_no_descriptor_of_a_device") {
        return;
    }
    let before = inherited();
    for port in ["xdp", "packet", "udp"] {
        let wire = Wire::new(&format!("exec-{port}"), 1500, 1);
        let device = wire.a.run(|| open(port, "left", &DeviceConfig::default())).expect("the namespace");
        // A test beside this one may be opening an AF_XDP socket, which libxdp makes without the flag.
        let until = Instant::now() + PATIENCE;
        while let Some(leaked) = inherited().difference(&before).next() {
            assert!(Instant::now() < until, "{port}: {leaked:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
        drop(device);
    }
}
