//! `roxie run` in chroots and with the privileges of containers: it sets up what it can, and reports the rest.

use std::path::Path;
use std::process::Command;

use super::{Finished, Running, Site, folder, skip};

/// A chroot with a root directory that is no mount point, in a mount namespace that shares its mounts with a second
/// one, as hosts do. Mounts by `roxie` must not reach the second one. The folder itself belongs to the test, outside of
/// both, where nothing is mounted in it.
const CHROOT: &str = r#"
set -e
root=$ROOT
mkdir "$root/proc" "$root/sys" "$root/dev" "$root/usr" "$root/etc" "$root/roxie" "$root/here"
for name in bin lib lib64 sbin; do [ ! -L /$name ] || cp -a /$name "$root/$name"; done
mount --rbind /usr "$root/usr"
mount --rbind /etc "$root/etc"
mount --bind "$ROXIE" "$root/roxie"
mount -t proc proc "$root/proc"
if [ "$KIND" = whole ]; then
    mount -t sysfs sysfs "$root/sys"
    mount --rbind /dev "$root/dev"
else
    touch "$root/dev/null" "$root/dev/kept"
    mount --bind /dev/null "$root/dev/null"
fi
end=0
chroot "$root" /bin/sh -c 'cd /here && exec "$@"' sh "$@" || end=$?
! grep -q ' - tmpfs roxie ' /proc/self/mountinfo || echo "mounts are left"
exit $end
"#;

/// Runs a program under `roxie run` in a chroot.
fn in_chroot(site: &Site, kind: &str, wrapper: &[&str], program: &str) -> Finished {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c"]);
    // Mounts are private to the machine, and shared below.
    command.arg("mount --make-rshared / && exec \"$@\"").arg("sh");
    command.args(["sh", "-c", CHROOT, "sh"]).args(wrapper);
    command.args(["/roxie/roxie", "run", "--port", "udp", "--", "sh", "-c", program]);
    let root = tempfile::tempdir().unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(root.path(), open).unwrap();
    command.env("ROXIE", folder()).env("KIND", kind).env("ROOT", root.path());
    Running::start(&site.local, command).finish()
}

#[test]
fn chroot_view_is_invisible_to_the_host() {
    let test = "chroot_view_is_invisible_to_the_host";
    if skip(test, &["unshare", "chroot", "ibv_devices"]) {
        return;
    }
    let site = Site::new("l-chroot");
    let script = "pwd; ls /; cat /sys/class/infiniband/roxie0/node_type; test -c /dev/infiniband/uverbs0 && ibv_devices";
    let whole = in_chroot(&site, "whole", &[], script);
    assert!(whole.status.success() && whole.output.contains("roxie0"), "{whole:?}");
    assert!(whole.output.starts_with("/here\n"), "the working directory is lost: {whole:?}");
    assert!(whole.output.contains("1: CA") && !whole.output.contains("no view"), "{whole:?}");
    assert!(!whole.output.contains("\nhome\n"), "outside of the chroot: {whole:?}");
    assert!(!whole.output.contains("mounts are left"), "{whole:?}");

    let bare = in_chroot(&site, "bare", &[], &format!("ls -d /dev/kept && {script}"));
    assert!(bare.status.success() && bare.output.contains("1: CA"), "{bare:?}");
    assert!(!bare.output.contains("no view") && !bare.output.contains("mounts are left"), "{bare:?}");
}

#[test]
fn unprivileged_chroot_gets_device_without_files() {
    let test = "unprivileged_chroot_gets_device_without_files";
    if skip(test, &["unshare", "chroot", "setpriv", "ibv_devices"]) {
        return;
    }
    let site = Site::new("l-user-chroot");
    // Root without capabilities, so that the build folder is accessible.
    let nobody = ["setpriv", "--inh-caps=-all", "--bounding-set=-all"];
    let listed = in_chroot(&site, "whole", &nobody, "ls -d /sys/class/infiniband; ibv_devices");
    assert!(listed.status.success() && listed.output.contains("roxie0"), "{listed:?}");
    let reported = "no view of /sys/class/infiniband for the program (a user namespace with a mount namespace: Operation not permitted";
    assert!(listed.output.contains(reported) && listed.output.contains("cannot access"), "{listed:?}");
}

/// Runs a shell command under `roxie run` with reduced privileges.
fn with(site: &Site, wrapper: &[&str], options: &[&str], program: &str) -> Finished {
    let mut command = Command::new(wrapper[0]);
    command.args(&wrapper[1..]).arg(Path::new(env!("CARGO_BIN_EXE_roxie"))).arg("run").args(options);
    command.args(["--dev", "left", "--", "sh", "-c", program]);
    Running::start(&site.local, command).finish()
}

/// Privileges of containers with the capabilities for AF_XDP only.
#[test]
fn af_xdp_capabilities_are_kept() {
    let test = "af_xdp_capabilities_are_kept";
    if skip(test, &["setpriv", "ibv_devinfo"]) {
        return;
    }
    let site = Site::new("l-caps");
    let script = "ls -d /sys/class/infiniband; grep CapEff /proc/self/status; ibv_devices";
    let wrapper = ["setpriv", "--bounding-set=-sys_admin"];
    let plain = with(&site, &wrapper, &["--port", "xdp"], script);
    assert!(plain.status.success() && plain.output.contains("roxie0"), "{plain:?}");
    let reported = "a mount namespace: Operation not permitted";
    assert!(plain.output.contains(reported) && plain.output.contains("not beside AF_XDP"), "{plain:?}");
    assert!(plain.output.contains("cannot access"), "{plain:?}");
    // The advice in the message works.
    let sockets = with(&site, &wrapper, &["--port", "udp"], script);
    assert!(sockets.status.success() && sockets.output.contains("/sys/class/infiniband\n"), "{sockets:?}");
    assert!(!sockets.output.contains("no view"), "{sockets:?}");
}

/// A user namespace that cannot have nested ones: all capabilities are present, but of little effect.
#[test]
fn device_works_without_user_namespaces() {
    let test = "device_works_without_user_namespaces";
    if skip(test, &["unshare", "setpriv", "ibv_devices"]) {
        return;
    }
    let site = Site::new("l-no-user");
    let script = "ls -d /sys/class/infiniband; id -u; ibv_devices";
    let first =
        "echo 0 > /proc/sys/user/max_user_namespaces && exec setpriv --bounding-set=-sys_admin \"$@\"";
    let none = with(&site, &["unshare", "--user", "--map-root-user", "sh", "-c", first, "sh"], &[], script);
    assert!(none.status.success() && none.output.contains("roxie0"), "{none:?}");
    assert!(
        none.output.contains(
            "a user namespace with a mount namespace: there are as many as user.max_user_namespaces allows"
        ),
        "{none:?}"
    );
    assert!(
        none.output.contains("cannot access") && none.output.starts_with("0\n"),
        "user and group are unchanged: {none:?}"
    );
}

#[test]
fn missing_bpf_permission_is_explained() {
    let test = "missing_bpf_permission_is_explained";
    if skip(test, &["unshare", "ibv_devices"]) {
        return;
    }
    let site = Site::new("l-no-bpf");
    let reported = with(&site, &["unshare", "--user", "--map-root-user"], &["--port", "xdp"], "ibv_devices");
    assert!(reported.status.success() && reported.output.contains("roxie0"), "{reported:?}");
    let why = "AF_XDP will not open on left: this process may make no BPF map";
    assert!(
        reported.output.contains(why) && reported.output.contains("those of a user namespace"),
        "{reported:?}"
    );
}
