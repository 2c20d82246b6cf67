//! Advice for environments that withhold something from a program: containers, chroots, unprivileged users.

use std::fs;
use std::path::Path;

/// The environment of this process, as far as it changes the advice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Environment {
    /// Podman, Docker, or a similar container.
    Container,
    /// A plain chroot: the root directory is no mount point.
    Chroot,
    Host,
}

impl Environment {
    pub(crate) fn of_this_process() -> Environment {
        let marks = ["/run/.containerenv", "/.dockerenv"];
        let marked = marks.iter().any(|mark| Path::new(mark).exists());
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        Environment::from(marked || std::env::var_os("container").is_some(), &mounts)
    }

    fn from(marked: bool, mounts: &str) -> Environment {
        // The fifth field is the mount point, relative to the root directory.
        let at_root = |line: &str| line.split(' ').nth(4) == Some("/");
        match marked {
            true => Environment::Container,
            false if !mounts.is_empty() && !mounts.lines().any(at_root) => Environment::Chroot,
            false => Environment::Host,
        }
    }

    /// Returns how to allow a process its own mounts.
    pub(crate) fn for_mounts(self) -> &'static str {
        match self {
            Environment::Container => {
                "start the container with `--cap-add SYS_ADMIN`, and where that is not enough with `--security-opt \
                 seccomp=unconfined`, `apparmor=unconfined` or `label=disable`"
            }
            Environment::Chroot => "in a chroot, root with CAP_SYS_ADMIN and CAP_SYS_CHROOT is needed",
            Environment::Host => {
                "root is needed, or user namespaces (sysctl user.max_user_namespaces, \
                 kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns)"
            }
        }
    }

    /// Returns how to allow a process its own mounts, if a user namespace would cost it AF_XDP's capabilities.
    pub(super) fn for_mounts_beside_xdp(self) -> &'static str {
        match self {
            Environment::Container => {
                "start the container with `--cap-add SYS_ADMIN` too; without, a user namespace may give it, but not beside AF_XDP: \
                 `roxie run --port udp`"
            }
            Environment::Chroot | Environment::Host => {
                "CAP_SYS_ADMIN is needed; without it, a user namespace may give the view, but not beside AF_XDP: \
                 `roxie run --port udp`"
            }
        }
    }

    /// Returns how to allow AF_XDP.
    pub(crate) fn for_xdp(self) -> &'static str {
        match self {
            Environment::Container => {
                "to have it, start the container as root with `--cap-add SYS_ADMIN,NET_ADMIN,NET_RAW,IPC_LOCK` (BPF,PERFMON are \
                 enough instead of SYS_ADMIN where the seccomp profile lets bpf() through)"
            }
            Environment::Chroot | Environment::Host => "run as root to have it",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &str = "22 1 254:0 / / rw - ext4 /dev/vda rw\n23 22 0:21 / /proc rw - proc proc rw\n";

    #[test]
    fn chroot_and_container_are_recognized() {
        assert_eq!(Environment::from(false, WHOLE), Environment::Host);
        assert_eq!(Environment::from(false, ""), Environment::Host, "without /proc nothing is known");
        let inside = "23 22 0:21 / /proc rw - proc proc rw\n24 22 0:22 / /sys rw - sysfs sysfs rw\n";
        assert_eq!(Environment::from(false, inside), Environment::Chroot);
        assert_eq!(Environment::from(true, WHOLE), Environment::Container);
    }
}
