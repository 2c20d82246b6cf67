//! The action on machines that `job.sh` plays: a hosted runner, one without RDMA in its kernel, a container.
//!
//! Each step of a job is a new shell, with nothing but what the action's files pass on.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::action::{Job, root};
use crate::in_time::CommandInTime;

/// Programs of the job.
const PROGRAMS: [&str; 8] =
    ["cc", "fi_info", "ib_write_bw", "ibv_devices", "pgrep", "pivot_root", "rping", "ucx_info"];

/// Plays a job on a machine of this kind. Returns its output.
fn play(test: &str, kind: &str) -> Option<String> {
    let is_missing = |program: &&&str| {
        let folders = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
        !folders.split(':').any(|folder| Path::new(folder).join(program).exists())
    };
    let overlays = fs::read_to_string("/proc/filesystems").is_ok_and(|all| all.contains("overlay"));
    let missing: Vec<_> = PROGRAMS.iter().filter(is_missing).collect();
    if !missing.is_empty() || !overlays {
        println!("SKIP {test}: needs overlayfs, and programs: {missing:?}");
        return None;
    }
    let job = Job::new(test)?;
    let source = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/cli/machine"));
    let built = Command::new("cc")
        .args(["-O2", "-Wall", "-Werror", "-D_GNU_SOURCE", "-o"])
        .args([&job.path("sudo"), &source.join("sudo.c")])
        .status_in_time();
    assert!(built.expect("cc").success());
    let scripts = job.path("action/.ci");
    fs::create_dir_all(&scripts).expect("a folder");
    for script in ["action", "address"] {
        fs::copy(root().join(".ci").join(script), scripts.join(script)).expect("a copy");
    }
    fs::set_permissions(job.path(""), fs::Permissions::from_mode(0o755)).expect("permissions");
    let mut command = Command::new("unshare");
    command.args(["--mount", "--net", "--pid", "--fork", "--kill-child", "--propagation", "private"]);
    command.arg(source.join("job.sh")).arg(job.path("")).arg(kind).env_remove("LD_PRELOAD");
    let done = command.output_in_time().expect("unshare");
    let output = String::from_utf8_lossy(&done.stdout) + String::from_utf8_lossy(&done.stderr);
    println!("{output}");
    assert!(done.status.success(), "{}: {output}", done.status);
    Some(output.into_owned())
}

#[test]
fn every_step_has_the_device() {
    let Some(output) = play("every_step_has_the_device", "adapter") else { return };
    assert!(output.contains("roxie0 is there") && output.contains("=== removal: passed"), "{output}");
}

#[test]
fn kernel_without_rdma_shows_the_device() {
    let Some(output) = play("kernel_without_rdma_shows_the_device", "bare") else { return };
    assert!(output.contains("=== files: passed") && output.contains("=== removal: passed"), "{output}");
}

#[test]
fn container_without_mounts_has_the_device() {
    let Some(output) = play("container_without_mounts_has_the_device", "container") else { return };
    assert!(output.contains("no view of /sys/class/infiniband"), "{output}");
    assert!(output.contains("=== rping: passed") && output.contains("=== removal: passed"), "{output}");
}
