//! The memory and the mappings that the system allows the NIC, which its clients share.

use std::fs;
use std::path::Path;

/// Mappings of a process if the system does not say (`DEFAULT_MAX_MAP_COUNT` of the kernel).
const MAPPINGS: u64 = 65_530;

/// Returns the memory in bytes that this process may use: the machine's, or less if a control group has a limit
/// (`memory.max`, cgroups(7)). Without either, all that can be addressed.
pub(super) fn available() -> u64 {
    let machine = total(&fs::read_to_string("/proc/meminfo").unwrap_or_default());
    let group = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limit = limit_of(Path::new("/sys/fs/cgroup"), &group);
    machine.into_iter().chain(limit).min().unwrap_or(u64::MAX)
}

/// Parses the first line of `/proc/meminfo`: `MemTotal:       16384 kB`.
fn total(text: &str) -> Option<u64> {
    let kib: u64 = text.strip_prefix("MemTotal:")?.split_whitespace().next()?.parse().ok()?;
    kib.checked_mul(1024)
}

/// Returns the lowest limit of a group and those above it, in the unified hierarchy at `root`. `own` is the content of
/// `/proc/self/cgroup`.
fn limit_of(root: &Path, own: &str) -> Option<u64> {
    let group = own.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let limit = |folder: &Path| fs::read_to_string(folder.join("memory.max")).ok()?.trim().parse().ok();
    root.join(group).ancestors().take_while(|folder| folder.starts_with(root)).filter_map(limit).min()
}

/// Returns how many mappings the system allows this process.
pub(super) fn mappings() -> u64 {
    let text = fs::read_to_string("/proc/sys/vm/max_map_count").unwrap_or_default();
    text.trim().parse().unwrap_or(MAPPINGS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lowest_limit_above_the_process_counts() {
        assert_eq!(total("MemTotal:       16384 kB\nMemFree: 1 kB\n"), Some(16 << 20));
        assert_eq!(total("MemFree: 1 kB\n"), None);
        let root = tempfile::tempdir().expect("a folder");
        let inner = root.path().join("a/b");
        fs::create_dir_all(&inner).expect("its own");
        let set = |folder: &str, limit: &str| {
            fs::write(root.path().join(folder).join("memory.max"), limit).expect("its own");
        };
        let limit = |own: &str| limit_of(root.path(), own);
        assert_eq!(limit("0::/a/b\n"), None);
        set("a/b", "max\n");
        set("a", "1000\n");
        assert_eq!(limit("1:cpu:/x\n0::/a/b\n"), Some(1000));
        set("a/b", "70\n");
        assert_eq!((limit("0::/a/b\n"), limit("0::/a\n"), limit("0::/\n")), (Some(70), Some(1000), None));
        assert_eq!(limit("1:memory:/a\n"), None, "the older hierarchy");
        assert!(available() > 0);
    }
}
