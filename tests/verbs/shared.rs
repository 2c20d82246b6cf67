//! Several processes share one device over UDP or packet sockets, without knowing, and without depending on any of
//! them.
//!
//! `KILLS=100 cargo test -p roxie-cli --release --test verbs shared::killed_process` kills 200 of them beside two that
//! talk. [`mesh`](super::mesh) has many that talk.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::site::in_time::CommandInTime;
use roxie::netdev::NetNs;

use super::mesh::{each_of_many, kill_programs, number};
use super::site::folder;
use super::{NEAR, Running, Site, compiled, descendants, launcher, skip};

/// Programs that exchange addresses by TCP, and their ports.
const BY_TCP: [(&str, u16); 8] = [
    ("ibv_rc_pingpong -g 1 -n 500 -c", 18515),
    ("ibv_uc_pingpong -g 1 -n 100", 18515),
    ("ibv_ud_pingpong -g 1 -n 500 -s 1024", 18515),
    ("ibv_srq_pingpong -g 1 -n 500 -c", 18515),
    ("ibv_xsrq_pingpong -g 1 -n 500", 18515),
    ("ib_write_bw -x 1 -F -b -n 2000 -q 4", 18515),
    ("ib_send_lat -x 1 -F -n 500", 18515),
    ("ib_atomic_bw -x 1 -F -n 500", 18515),
];

/// Ports that processes share without a NIC process.
const SHARED: [&str; 2] = ["udp", "packet"];

/// Default number of kills.
const KILLS: usize = 12;

/// Returns the number of the groups' sockets in a network namespace.
pub(crate) fn doors(namespace: &NetNs) -> usize {
    let table = namespace.run(|| fs::read_to_string("/proc/thread-self/net/unix")).unwrap().unwrap();
    table.lines().filter(|line| line.contains(" @roxie/") && !line.contains(" @roxie/launcher/")).count()
}

fn wait_until_group_has_ended(namespace: &NetNs, within: Duration) {
    let until = Instant::now() + within;
    while doors(namespace) > 0 {
        assert!(Instant::now() < until, "something of a group is left");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits until the process has joined the group: it then has the thread that admits new members.
fn wait_until_it_shares(running: &mut Running) {
    running.wait_until("sharing the device", |pid| {
        descendants(pid).into_iter().any(|pid| {
            let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
            tasks.into_iter().any(|task| {
                fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name == "roxie-group\n")
            })
        })
    });
}

#[test]
fn server_and_client_share_a_device() {
    let programs = ["ibv_rc_pingpong", "ibv_xsrq_pingpong", "ib_write_bw", "ib_send_lat", "ib_atomic_bw"];
    if skip("server_and_client_share_a_device", &programs) {
        return;
    }
    let site = Site::new("same-device");
    for port in SHARED {
        server_and_client(&site, port);
        wait_until_group_has_ended(&site.local, Duration::from_secs(20));
    }
}

pub(crate) fn server_and_client(site: &Site, port: &str) {
    for (program, tcp) in BY_TCP {
        let mut server = site.local(port, program);
        server.wait_until_it_listens(tcp);
        let client = site.local(port, &format!("{program} {NEAR}")).finish();
        let server = server.finish();
        assert!(
            client.status.success() && server.status.success(),
            "{program}\nclient: {client:?}\nserver: {server:?}"
        );
    }
}

#[test]
fn rdma_cm_servers_get_their_own_requests() {
    if skip("rdma_cm_servers_get_their_own_requests", &["rping"]) {
        return;
    }
    let site = Site::new("same-cm");
    for port in SHARED {
        servers_of_rdma_cm(&site, port);
        wait_until_group_has_ended(&site.local, Duration::from_secs(20));
    }
}

pub(crate) fn servers_of_rdma_cm(site: &Site, device: &str) {
    let server = |port: u16| {
        let mut server = site.local(device, &format!("rping -s -P -p {port} -a {NEAR} -v"));
        server.wait_until_it_serves();
        server
    };
    let servers = [7001, 7002, 7003].map(server);
    for round in 0..3 {
        for port in [7003, 7001, 7002] {
            let client = format!("rping -c -p {port} -a {NEAR} -v -V -C 5");
            let client = if round == 1 { site.local(device, &client) } else { site.remote(device, &client) };
            let client = client.finish();
            assert!(client.status.success(), "port {port}: {client:?}");
            assert_eq!(client.output.matches("ping data: rdma-ping-").count(), 5, "{client:?}");
        }
    }
    // Port numbers belong to the device.
    let second = site.local(device, &format!("rping -s -p 7002 -a {NEAR} -v")).finish();
    assert!(!second.status.success() && second.output.contains("Address already in use"), "{second:?}");
    // Existing members do not refuse requests for ports without a listener.
    let start = Instant::now();
    let nobody = site.remote(device, &format!("rping -c -p 7009 -a {NEAR} -v -C 1")).finish();
    assert!(!nobody.status.success() && nobody.output.contains("REJECTED"), "{nobody:?}");
    assert!(start.elapsed() < Duration::from_secs(30), "refused, not given up");
    // A killed server releases its port number, and another one takes it.
    let [first, ..] = &servers;
    kill_programs(first);
    let again = Instant::now() + Duration::from_secs(20);
    let server = loop {
        let mut server = site.local(device, &format!("rping -s -p 7001 -a {NEAR} -v -V -C 5"));
        if server.serves() {
            break server;
        }
        assert!(Instant::now() < again, "port 7001 is not free: {}", server.read_to_end());
    };
    let client = site.remote(device, &format!("rping -c -p 7001 -a {NEAR} -v -V -C 5")).finish();
    assert!(client.status.success(), "{client:?}");
    drop((servers, server));
}

#[test]
fn killed_process_does_not_harm_others() {
    if skip("killed_process_does_not_harm_others", &["ib_write_bw", "ibv_rc_pingpong"]) {
        return;
    }
    let site = Site::new("same-kill");
    for port in SHARED {
        kill_one_of_several(&site, port);
    }
}

fn kill_one_of_several(site: &Site, port: &str) {
    // The first member is killed first: the group does not depend on any single member.
    let mut victims = vec![site.local(port, "ibv_rc_pingpong -g 1 -p 19000")];
    wait_until_it_shares(&mut victims[0]);
    let kills = number("KILLS", KILLS);
    let seconds = 8 + kills / 2;
    let program = &format!("ib_write_bw -x 1 -F -b -s 20000 -D {seconds}");
    let mut server = site.local(port, program);
    server.wait_until_it_listens(18515);
    let client = site.remote(port, &format!("{program} {NEAR}"));
    for round in 0..kills {
        kill_programs(&victims.remove(0));
        // Some are killed while joining.
        for n in 0..2 {
            let mut victim = site.local(port, &format!("ibv_rc_pingpong -g 1 -p {}", 19001 + 2 * round + n));
            if n == 0 {
                std::thread::sleep(Duration::from_millis(17 * (round as u64 % 20)));
                kill_programs(&victim);
            } else {
                wait_until_it_shares(&mut victim);
                victims.push(victim);
            }
        }
    }
    let (client, server) = (client.finish(), server.finish());
    assert!(client.status.success() && server.status.success(), "client: {client:?}\nserver: {server:?}");
    println!("{} processes were killed", 2 * kills);
    drop(victims);
    wait_until_group_has_ended(&site.local, Duration::from_secs(20));
}

#[test]
fn processes_talk_over_sockets_during_kills() {
    let name = "processes_talk_over_sockets_during_kills";
    if skip(name, &["cc", "ibv_rc_pingpong"]) {
        return;
    }
    let site = Site::new("same-mesh");
    for port in SHARED {
        each_of_many(&site, port);
        wait_until_group_has_ended(&site.local, Duration::from_secs(20));
        wait_until_group_has_ended(&site.remote, Duration::from_secs(20));
    }
}

#[test]
fn surviving_child_does_not_block_others() {
    if skip("surviving_child_does_not_block_others", &["ibv_rc_pingpong", "cc"]) {
        return;
    }
    let (_place, program) = compiled("forks", &["-libverbs"]);
    let site = Site::new("same-fork");
    for port in SHARED {
        let parent = launcher(&["--dev", "left", "--port", port], program.to_str().unwrap());
        let mut parent = Running::start(&site.local, parent);
        assert!(parent.wait_for_end().success());
        // The child leaves it as soon as it runs, and lives for 20 s.
        wait_until_group_has_ended(&site.local, Duration::from_secs(10));
        site.play(port, "ibv_rc_pingpong -g 1 -n 100", 18515);
    }
}

/// Eight ranks, four on each of two hosts, under an MPI. `mpirun` gets the agent that replaces `ssh`, the prefix of
/// each rank's command, and the program.
fn eight_ranks((site, port): (&Site, &str), compiler: &str, mpirun: impl Fn(&Path, &str, &str) -> String) {
    let place = tempfile::tempdir().unwrap();
    let program = place.path().join("mpi_many");
    let source =
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("tests/verbs/programs/mpi_many.c");
    let compiled =
        Command::new(compiler).arg("-O1").arg("-o").arg(&program).arg(source).status_in_time().unwrap();
    assert!(compiled.success(), "{compiler}: {compiled}");
    let agent = place.path().join("agent");
    super::upper::write_agent(&agent, site.remote.name().unwrap());
    for transport in ["rc_v", "ud_v"] {
        let run =
            format!("{} run -q --port {port} -- {}", folder().join("roxie").display(), program.display());
        let mpirun = mpirun(&agent, &format!("UCX_TLS={transport},self"), &run);
        let mut command = Command::new("unshare");
        command.args([
            "--uts",
            "sh",
            "-c",
            &format!("hostname near; export UCX_NET_DEVICES=roxie0:1; exec {mpirun}"),
        ]);
        let ran = Running::start(&site.local, command).finish();
        assert!(
            ran.status.success()
                && ran.output.contains("8 ranks: ")
                && ran.output.contains(", 0 wrong, sum 36"),
            "{transport}: {ran:?}"
        );
    }
}

#[test]
fn open_mpi_ranks_exchange_over_sockets() {
    let site = Site::new("same-ompi");
    for port in SHARED {
        eight_of_open_mpi(&site, port);
        wait_until_group_has_ended(&site.local, Duration::from_secs(20));
    }
}

pub(crate) fn eight_of_open_mpi(site: &Site, port: &str) {
    let name = "open_mpi_ranks_exchange_over_sockets";
    if skip(name, &["mpirun.openmpi", "mpicc.openmpi", "unshare"]) {
        return;
    }
    eight_ranks((site, port), "mpicc.openmpi", |agent, transports, run| {
        format!(
            "mpirun.openmpi --allow-run-as-root --oversubscribe -H near:4,far:4 -n 8 --mca plm_rsh_agent {} --mca pml ucx \
             --mca osc ucx --mca btl ^vader,tcp,openib --mca oob_tcp_if_include 192.0.2.0/24 -x {transports} \
             -x UCX_NET_DEVICES {run}",
            agent.display()
        )
    });
}

#[test]
fn mpich_ranks_exchange_over_sockets() {
    let site = Site::new("same-mpich");
    for port in SHARED {
        eight_of_mpich(&site, port);
        wait_until_group_has_ended(&site.local, Duration::from_secs(20));
    }
}

pub(crate) fn eight_of_mpich(site: &Site, port: &str) {
    let name = "mpich_ranks_exchange_over_sockets";
    if skip(name, &["mpirun.mpich", "mpicc.mpich", "mpichversion", "unshare"]) {
        return;
    }
    let version = Command::new("mpichversion").output_in_time().unwrap();
    if !String::from_utf8_lossy(&version.stdout).contains("ch4:ucx") {
        println!("SKIP {name}: this MPICH does not use UCX");
        return;
    }
    eight_ranks((site, port), "mpicc.mpich", |agent, transports, run| {
        let (variable, value) = transports.split_once('=').expect("a setting");
        format!(
            "mpirun.mpich -launcher ssh -launcher-exec {} -localhost {NEAR} -hosts {NEAR}:4,far:4 -n 8 \
             -genv {variable} {value} {run}",
            agent.display()
        )
    });
}
