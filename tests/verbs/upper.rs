//! Libraries on top of verbs, and programs on those: libfabric, UCX, Open MPI.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use super::{FI_PORT, Running, Site, UCX_PORT, compiled, ports, skip};
use crate::site::in_time::CommandInTime;

/// Options of Open MPI for messages over UCX, and over libfabric's connections.
const MPI_WAYS: [&str; 2] = [
    "--mca pml ucx -x UCX_TLS=rc_v,self -x UCX_NET_DEVICES=roxie0:1",
    "--mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include 'verbs;ofi_rxm'",
];
/// UCX's transports on plain verbs.
const UCX_TRANSPORTS: [&str; 2] = ["rc_v", "ud_v"];

#[test]
fn libfabric_and_ucx_find_the_device() {
    if skip("libfabric_and_ucx_find_the_device", &["fi_info", "ucx_info"]) {
        return;
    }
    let site = Site::new("upper-find");
    for port in ports() {
        let seen = site.local(port, "fi_info -p verbs").finish();
        for domain in ["domain: roxie0\n", "domain: roxie0-dgram\n"] {
            assert!(seen.status.success() && seen.output.contains(domain), "{domain}: {seen:?}");
        }
        let seen = site.local(port, "ucx_info -d").finish();
        for transport in ["rc_verbs", "ud_verbs"] {
            let entry = format!("Transport: {transport}\n#         Device: roxie0:1\n");
            assert!(seen.status.success() && seen.output.contains(&entry), "{entry}: {}", seen.output);
        }
    }
}

/// Providers: connections of rdma_cm (`msg`; the server binds to 127.0.0.1 when it only enumerates); the endpoints that
/// libfabric makes reliable on top of datagrams (`rdm`, its utility provider rxd); and the datagrams themselves.
/// Connections under `rdm` (`verbs;ofi_rxm`) are tested with Open MPI below: `fi_pingpong` closes them as soon as it
/// has what it waits for, and rxm drops unread data when it learns of the close first. The other end then fails or
/// waits for ever in one run of ten.
///
/// Few messages, because rxd is slow on a busy machine, whatever is below it. rxd retransmits what was not acknowledged
/// within 1 ms (`rxd_get_timeout`), then after 2, 4 … 4000 ms, and acknowledges each repetition. The two ends poll
/// without a pause, so each waits longer than that for the processor, over and over. Captures of both ends showed no
/// lost frame, 2.5 copies of each data packet, and some hundreds of 40,000 packets refused for lack of a receive: the
/// 384 receives are used up when three windows of 128 have been repeated to a program that does not run. A longer
/// receive queue (`FI_VERBS_RX_SIZE`) made no difference.
#[test]
fn libfabric_runs_over_connections_and_datagrams() {
    if skip("libfabric_runs_over_connections_and_datagrams", &["fi_pingpong"]) {
        return;
    }
    let site = Site::new("upper-fi");
    for port in ports() {
        for (provider, endpoint, largest) in
            [("verbs", "msg", "64k"), ("verbs;ofi_rxd", "rdm", "64k"), ("verbs", "dgram", "4k")]
        {
            for size in ["64", largest] {
                let bytes = size.replace('k', "");
                let bytes: u32 = bytes.parse::<u32>().unwrap() * if size.ends_with('k') { 1024 } else { 1 };
                // By default, datagrams use GID 0, the link-local address, which a new interface does not have yet.
                let program = format!(
                    "env FI_VERBS_GID_IDX=1 fi_pingpong -p {provider} -e {endpoint} -I 50 -S {bytes} -c"
                );
                let (client, _) = site.play(port, &program, FI_PORT);
                let line = client.lines().find(|line| line.split_whitespace().next() == Some(size));
                let words: Vec<_> = line.unwrap_or_default().split_whitespace().collect();
                assert_eq!(words.get(1..3), Some(&["50", "=50"][..]), "{port} {program}: {client}");
            }
        }
    }
}

#[test]
fn ucx_sends_messages_and_accesses_memory() {
    if skip("ucx_sends_messages_and_accesses_memory", &["ucx_perftest"]) {
        return;
    }
    let site = Site::new("upper-ucx");
    for port in ports() {
        for transport in UCX_TRANSPORTS {
            // Tag matching with and without a rendezvous, active messages, and one-sided operations.
            for test in [
                "tag_lat -s 64",
                "tag_bw -s 100000",
                "ucp_am_bw -s 3000",
                "ucp_put_bw -s 5000",
                "ucp_get -s 5000",
            ] {
                let program = format!(
                    "env UCX_TLS={transport} UCX_NET_DEVICES=roxie0:1 ucx_perftest -n 200 -w 20 -t {test}"
                );
                let (client, _) = site.play(port, &program, UCX_PORT);
                let last = client.lines().find(|line| line.starts_with("Final:"));
                let count = last.and_then(|line| line.split_whitespace().nth(1));
                assert_eq!(count, Some("200"), "{port} {program}: {client}");
            }
        }
    }
}

/// The registration cache learns of unmappings by hooks that UCX puts into the C library's calls, beside Roxie's own.
/// (`UCX_MEM_MMAP_HOOK_MODE=reloc`, its other way, deadlocks by itself in UCX 1.13, on any transport.)
#[test]
fn registration_caches_see_remapped_memory() {
    if skip("registration_caches_see_remapped_memory", &["cc", "ucx_perftest", "fi_pingpong"]) {
        return;
    }
    let (_place, program) = compiled("cached", &["-lucp", "-lucs"]);
    let site = Site::new("upper-cached");
    for port in ports() {
        for mode in ["keep", "anew", "less"] {
            let settings = "UCX_TLS=rc_v UCX_NET_DEVICES=roxie0:1 UCX_RCACHE_ENABLE=y";
            let ended = site.local(port, &format!("env {settings} {} {mode}", program.display())).finish();
            assert!(ended.status.success() && ended.output.contains("all so"), "{port} {mode}: {ended:?}");
        }
    }
    for monitor in ["memhooks", "userfaultfd"] {
        let settings = format!("FI_MR_CACHE_MONITOR={monitor} FI_VERBS_MR_CACHE_ENABLE=1");
        let program = format!("env {settings} fi_pingpong -p verbs -e msg -I 50 -S 65536 -c");
        let (client, _) = site.play("udp", &program, FI_PORT);
        let line = client.lines().find(|line| line.split_whitespace().next() == Some("64k"));
        let words: Vec<_> = line.unwrap_or_default().split_whitespace().collect();
        assert_eq!(words.get(1..3), Some(&["50", "=50"][..]), "{monitor}: {client}");
    }
}

#[test]
fn open_mpi_ranks_exchange_messages() {
    if skip("open_mpi_ranks_exchange_messages", &["mpirun.openmpi", "mpicc.openmpi", "unshare"]) {
        return;
    }
    let site = Site::new("upper-mpi");
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("mpi_exchange");
    let source =
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("tests/verbs/programs/mpi_exchange.c");
    let compiled = Command::new("mpicc.openmpi")
        .arg("-O1")
        .arg("-o")
        .arg(&program)
        .arg(source)
        .status_in_time()
        .unwrap();
    assert!(compiled.success(), "mpicc: {compiled}");
    let agent = folder.path().join("agent");
    write_agent(&agent, site.remote.name().unwrap());
    for (port, way) in ports().into_iter().flat_map(|port| MPI_WAYS.map(|way| (port, way))) {
        // Open MPI's own report tells the device from other transports.
        let counted = folder.path().join(format!("{port}.pcapng"));
        let ran = Running::start(&site.local, mpirun(&agent, port, way, &counted, &program)).finish();
        for rank in 0..2 {
            let line = format!("rank {rank}: 1398101 bytes, 0 wrong, sum 3");
            assert!(ran.status.success() && ran.output.contains(&line), "{port}, {way}, {line}: {ran:?}");
        }
        let carried = std::fs::metadata(&counted).unwrap().len();
        assert!(carried > 2 * 1_398_101, "{port}, {way}: {carried} bytes of capture: did it go over roxie0?");
    }
}

/// Returns the command for ranks on two hosts with different host names; `agent` reaches the second.
fn mpirun(agent: &Path, port: &str, way: &str, capture: &Path, program: &Path) -> Command {
    let roxie = env!("CARGO_BIN_EXE_roxie");
    let mut command = Command::new("unshare");
    let run = format!(
        "hostname near; exec mpirun.openmpi --allow-run-as-root -H near,far --mca plm_rsh_agent {agent} {way} --mca btl self \
         --mca oob_tcp_if_include 192.0.2.0/24 \
         -np 1 {roxie} run -q --port {port} --capture {capture} -- {program} : -np 1 {roxie} run -q --port {port} -- {program}",
        agent = agent.display(),
        capture = capture.display(),
        program = program.display(),
    );
    command.args(["--uts", "sh", "-c", &run]);
    command
}

/// Writes the substitute for `ssh` that `mpirun` calls with a host and a command line; MPICH's inserts `-x` (no X11).
pub(super) fn write_agent(path: &Path, namespace: &str) {
    let text = format!(
        "#!/bin/sh\n[ \"$1\" = -x ] && shift\nhost=$1\nshift\nexec ip netns exec {namespace} unshare --uts sh -c \"hostname $host; $*\"\n"
    );
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}
