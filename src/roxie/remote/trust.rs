//! The NICs that a process trusts with its memory.
//!
//! A process trusts a NIC of root's or of its own user. In a user namespace of its own (`roxie run` without root makes
//! one, for its view of sysfs), a process cannot tell root from other users ([`Peer`]). The launcher checks before it
//! enters the namespace, and names the process that it found trusted.

use std::fs;

use roxie_base::descriptors::Peer;

/// The variable by which a launcher names a NIC of root's that it has found: `PROCESS:START`.
pub const TRUSTED_NIC: &str = "ROXIE_TRUSTED_NIC";

/// True if this process may access the calling process's memory.
pub(super) fn is_trusted(nic: Peer) -> bool {
    let is_named = || {
        let named = std::env::var(TRUSTED_NIC).ok();
        named.is_some() && named == name_of_process(nic.pid)
    };
    nic.is_own_or_root() || is_named()
}

/// Returns a name that no other process ever has: its number, and the time at which it started, in ticks since boot.
pub(super) fn name_of_process(pid: u32) -> Option<String> {
    // The text is `pid (name) state …`; the start is field 22 (proc_pid_stat(5)).
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let start = stat.rsplit(')').next()?.split_whitespace().nth(22 - 3)?;
    Some(format!("{pid}:{start}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_name_has_number_and_start_time() {
        let own = std::process::id();
        let name = name_of_process(own).expect("/proc");
        let start = name.strip_prefix(&format!("{own}:")).expect("its number");
        assert!(start.parse::<u64>().is_ok_and(|ticks| ticks > 0), "{name}");
        assert_eq!(name_of_process(own), Some(name));
        assert_eq!(name_of_process(u32::MAX), None);
    }

    #[test]
    fn other_user_is_trusted_only_if_named() {
        let own = nix::unistd::geteuid().as_raw();
        let pid = std::process::id();
        for uid in [0, own] {
            assert!(is_trusted(Peer { pid: 1, uid: Some(uid) }));
        }
        for uid in [None, Some(own.wrapping_add(1).max(1))] {
            assert!(!is_trusted(Peer { pid, uid }));
        }
    }
}
