//! A NIC process (`roxie nic`) over AF_XDP, and unmodified programs as its clients. [`mesh`](super::mesh) says how to
//! run many.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::sys::utsname::uname;
use nix::unistd::Pid;
use roxie::netdev::NetNs;

use super::mesh::{Chance, ENDLESS, Mesh, each_of_many, number};
use super::shared::{doors, eight_of_mpich, eight_of_open_mpi, server_and_client, servers_of_rdma_cm};
use super::site::nic;
use super::{NEAR, Running, Site, copied, descendants, folder, sent_bytes, skip};

/// Default number of killed NICs.
const NICS: usize = 3;
/// Longest time until a NIC notices that a client has ended; normally it is immediate.
const PATIENCE: Duration = Duration::from_secs(30);

/// Resources of a NIC: descriptors, threads, mapped queues of clients, and visible objects.
#[derive(Debug, PartialEq, Eq)]
struct Held {
    descriptors: usize,
    threads: usize,
    queues: usize,
    shown: [usize; 2],
}

impl Held {
    fn by(nic: &Running, host: &NetNs) -> Held {
        let pid = nic.child.id();
        let entries = |folder: &str| fs::read_dir(format!("/proc/{pid}/{folder}")).expect("it lives").count();
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("it lives");
        let shown = ["qps", "mrs"].map(|what| {
            let mut command = Command::new(folder().join("roxie"));
            command.args(["show", what, "--json", "--pid", &pid.to_string()]);
            let shown = Running::start(host, command).finish();
            assert!(shown.status.success(), "{shown:?}");
            let list: serde_json::Value = serde_json::from_str(shown.output.trim()).expect("JSON");
            list[what].as_array().expect("a list").len()
        });
        let queues = maps.lines().filter(|line| line.contains("/memfd:")).count();
        Held { descriptors: entries("fd"), threads: entries("task"), queues, shown }
    }
}

/// The two hosts, and the resources of their NICs without clients.
struct Before<'a> {
    site: &'a Site,
    held: [Held; 2],
}

impl<'a> Before<'a> {
    fn of(site: &'a Site, nics: &[Running; 2]) -> Before<'a> {
        Before { site, held: [Held::by(&nics[0], &site.local), Held::by(&nics[1], &site.remote)] }
    }

    /// Asserts that the NICs have no client, and hold the same resources as before.
    fn holds_again(&self, nics: &[Running; 2]) {
        let until = Instant::now() + PATIENCE;
        let hosts = [&self.site.local, &self.site.remote];
        for ((nic, host), held) in nics.iter().zip(hosts).zip(&self.held) {
            loop {
                let now = Held::by(nic, host);
                if now == *held {
                    break;
                }
                assert!(Instant::now() < until, "it held {held:?}, and holds {now:?}");
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

/// Asserts that the NICs have no client and release everything when they end.
fn ends_clean(site: &Site, nics: [Running; 2]) {
    for mut nic in nics {
        signal(nic.child.id(), Signal::SIGTERM);
        // The NIC may have run for long.
        nic.until = Instant::now() + PATIENCE;
        let ended = nic.finish();
        assert!(ended.status.success(), "{ended:?}");
        let (arrived, sent) =
            (ended.output.matches(") is served").count(), ended.output.matches(") has ended").count());
        assert!(arrived > 0 && arrived == sent, "{arrived} came and {sent} went: {ended:?}");
    }
    assert_nothing_remains(site);
}

/// Asserts that no socket, no program on the interface and no named shared memory is left.
fn assert_nothing_remains(site: &Site) {
    assert_eq!((doors(&site.local), doors(&site.remote)), (0, 0));
    for (host, dev) in [(&site.local, "left"), (&site.remote, "right")] {
        let mut command = Command::new("ip");
        command.args(["link", "show", "dev", dev]);
        let shown = Running::start(host, command).finish();
        assert!(shown.status.success() && !shown.output.contains("xdp"), "{shown:?}");
    }
    for folder in ["/dev/shm", "/run"] {
        let names = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.file_name());
        let ours: Vec<_> = names.filter(|name| name.to_string_lossy().contains("roxie")).collect();
        assert!(ours.is_empty(), "in {folder}: {ours:?}");
    }
}

/// Ports of a NIC that serves other processes.
const NIC_PORTS: [&str; 2] = ["xdp", "packet"];

#[test]
fn one_nic_serves_server_and_client() {
    let programs = ["ibv_rc_pingpong", "ibv_xsrq_pingpong", "ib_write_bw", "ib_send_lat", "ib_atomic_bw"];
    if skip("one_nic_serves_server_and_client", &programs) {
        return;
    }
    for port in NIC_PORTS {
        let (site, nics) = Site::with_nics("nic-same", &["--port", port]);
        server_and_client(&site, "nic");
        for (program, tcp) in [("ibv_rc_pingpong -g 1 -e", 18515), ("ib_read_bw -x 1 -F -n 500", 18515)] {
            site.play("nic", program, tcp);
        }
        ends_clean(&site, nics);
    }
}

#[test]
fn nic_serves_unprivileged_user() {
    if skip("nic_serves_unprivileged_user", &["ibv_rc_pingpong", "setpriv"]) {
        return;
    }
    let (site, nics) = Site::with_nics("nic-user", &["--port", "xdp", "--user", "65533"]);
    let place = copied();
    let user = |dev: &str, program: &str| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65533", "--regid=65533", "--clear-groups"]);
        command.arg(place.path().join("roxie")).args(["run", "--dev", dev, "--"]);
        command.args(program.split_whitespace());
        command
    };
    let mut server = Running::start(&site.local, user("left", "ibv_rc_pingpong -g 1"));
    server.wait_until_it_listens(18515);
    let client =
        Running::start(&site.remote, user("right", &format!("ibv_rc_pingpong -g 1 {NEAR}"))).finish();
    let server = server.finish();
    assert!(client.status.success() && server.status.success(), "{client:?}\n{server:?}");
    assert!(client.output.contains("through its NIC, process"), "{client:?}");
    ends_clean(&site, nics);
}

/// Also run in guests with older kernels.
#[test]
fn nic_of_users_warns_of_older_kernels() {
    let release = uname().unwrap().release().to_string_lossy().into_owned();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse::<u32>().unwrap_or(0));
    let kernel = (numbers.next().unwrap(), numbers.next().unwrap());
    let site = Site::new("nic-warns");
    for (options, serves_users) in [(&["--user", "65533"][..], true), (&[], false)] {
        let nic = nic(&site.local, "left", &[&["--port", "udp"], options].concat());
        signal(nic.child.id(), Signal::SIGTERM);
        let output = nic.finish().output;
        for (since, what) in [((6, 11), "read-only after its registration"), ((6, 16), "by a descriptor")] {
            let warns = output.contains(what) && output.contains(&format!("Linux {}.{}:", since.0, since.1));
            assert_eq!(warns, serves_users && kernel < since, "{release}: {output}");
        }
    }
}

#[test]
fn one_nic_serves_several_rdma_cm_servers() {
    if skip("one_nic_serves_several_rdma_cm_servers", &["rping"]) {
        return;
    }
    for port in NIC_PORTS {
        let (site, nics) = Site::with_nics("nic-cm", &["--port", port]);
        servers_of_rdma_cm(&site, "nic");
        ends_clean(&site, nics);
    }
}

#[test]
fn processes_talk_through_nics_during_kills() {
    let name = "processes_talk_through_nics_during_kills";
    if skip(name, &["cc", "ibv_rc_pingpong"]) {
        return;
    }
    let (site, nics) = Site::with_nics("nic-mesh", &["--port", "xdp"]);
    let before = Before::of(&site, &nics);
    each_of_many(&site, "nic");
    before.holds_again(&nics);
    ends_clean(&site, nics);
    let names = [&site.local, &site.remote].map(|host| Path::new("/run/netns").join(host.name().unwrap()));
    drop(site);
    assert!(names.iter().all(|name| !name.exists()), "{names:?}");
}

#[test]
fn killed_nic_is_noticed_and_replaced() {
    let name = "killed_nic_is_noticed_and_replaced";
    if skip(name, &["cc", "ibv_rc_pingpong"]) {
        return;
    }
    let (site, [mut local, remote]) = Site::with_nics("nic-kills", &["--port", "xdp"]);
    let (kills, processes) = (number("NICS", NICS), number("MESH", 6));
    let mut chance = Chance::new();
    let mut peers = Vec::new();
    for round in 0..kills {
        let first_port = 21000 + (round * processes) as u16;
        let mesh = Mesh::start(&site, "nic", first_port, processes, ENDLESS);
        // A client that is connecting, or has just connected.
        let joins = site.local("nic", "ibv_rc_pingpong -g 1");
        chance.sleep(Duration::from_millis(700));
        signal(local.child.id(), Signal::SIGKILL);
        local.child.wait().expect("killed");
        local = nic(&site.local, "left", &["--port", "xdp"]);
        for running in mesh.local {
            let ended = running.finish();
            assert!(!ended.status.success() && ended.output.contains("the device is gone"), "{ended:?}");
        }
        drop(joins);
        site.play("nic", "ibv_rc_pingpong -g 1 -n 100 -c -p 18600", 18600);
        peers.extend(mesh.remote);
    }
    // Clients with a connection to the killed end notice by their retries at the latest.
    for mut running in peers {
        running.until = Instant::now() + 4 * PATIENCE;
        let ended = running.finish();
        assert!(!ended.status.success() && !ended.output.contains("the device is gone"), "{ended:?}");
    }
    println!("{kills} NICs were killed, each with {} processes that it served", processes / 2 + 1);
    ends_clean(&site, [local, remote]);
}

#[test]
fn open_mpi_ranks_exchange_through_two_nics() {
    let name = "open_mpi_ranks_exchange_through_two_nics";
    if skip(name, &["mpirun.openmpi", "mpicc.openmpi", "unshare"]) {
        return;
    }
    let (site, nics) = Site::with_nics("nic-ompi", &["--port", "xdp"]);
    eight_of_open_mpi(&site, "nic");
    ends_clean(&site, nics);
}

#[test]
fn mpich_ranks_exchange_through_two_nics() {
    let name = "mpich_ranks_exchange_through_two_nics";
    if skip(name, &["mpirun.mpich", "mpicc.mpich", "mpichversion", "unshare"]) {
        return;
    }
    let (site, nics) = Site::with_nics("nic-mpich", &["--port", "xdp"]);
    eight_of_mpich(&site, "nic");
    ends_clean(&site, nics);
}

/// Sends a signal to a process.
fn signal(pid: u32, signal: Signal) {
    kill(Pid::from_raw(pid.cast_signed()), signal).expect("it lives");
}

/// Returns the program that a launcher started.
fn program_of(running: &Running) -> u32 {
    *descendants(running.child.id()).last().expect("itself at least")
}

#[test]
fn nic_accesses_memory_of_stopped_process() {
    if skip("nic_accesses_memory_of_stopped_process", &["ib_write_bw"]) {
        return;
    }
    let (site, nics) = Site::with_nics("nic-stop", &["--port", "xdp"]);
    let program = "ib_write_bw -x 1 -F -s 4096 -D 6";
    let mut server = site.local("nic", program);
    server.wait_until_it_listens(18515);
    let mut client = site.remote("nic", &format!("{program} {NEAR}"));
    // The writes continue for six seconds: an engine in the stopped server's process would be missed after half a
    // second, and two questions to busy NICs may take a second each.
    // A NIC that has no time to answer is asked again.
    let mut sent = || {
        let mut bytes = 0;
        client.wait_until("writing", |_| {
            bytes = sent_bytes(&site.remote);
            bytes > 0
        });
        bytes
    };
    sent();
    let stopped = program_of(&server);
    signal(stopped, Signal::SIGSTOP);
    let before = sent();
    std::thread::sleep(Duration::from_millis(1500));
    let after = sent();
    signal(stopped, Signal::SIGCONT);
    let (client, server) = (client.finish(), server.finish());
    assert!(client.status.success() && server.status.success(), "client: {client:?}\nserver: {server:?}");
    assert!(
        after > before + 100 * 4096,
        "bytes written to it before and after 1.5 s or more in which it was stopped: {before}, {after}"
    );
    ends_clean(&site, nics);
}

#[test]
fn killed_nic_wakes_its_clients() {
    if skip("killed_nic_wakes_its_clients", &["ib_write_bw", "rping", "ibv_rc_pingpong"]) {
        return;
    }
    let (site, [mut local, remote]) = Site::with_nics("nic-killed", &["--port", "xdp"]);
    let program = "ib_write_bw -x 1 -F -s 4096 -D 30";
    let mut polls = site.local("nic", program);
    polls.wait_until_it_listens(18515);
    let mut peer = site.remote("nic", &format!("{program} {NEAR}"));
    peer.wait_until("writing", |_| sent_bytes(&site.remote) > 0);
    let mut listens = site.local("nic", &format!("rping -s -a {NEAR} -v"));
    listens.wait_until_it_serves();
    // The program sleeps until an event arrives.
    let mut sleeps = site.local("nic", "ibv_rc_pingpong -g 1 -e -p 18600 -n 10000000");
    sleeps.wait_until_it_listens(18600);
    let mut partner = site.remote("nic", &format!("ibv_rc_pingpong -g 1 -e -p 18600 -n 10000000 {NEAR}"));
    // `peer` receives acknowledgements only: payload from the near end is for `partner`.
    partner.wait_until("exchanging", |_| sent_bytes(&site.local) > 0);
    signal(local.child.id(), Signal::SIGKILL);
    local.child.wait().expect("killed");
    // `peer` always has requests outstanding, so its retries run out.
    for running in [polls, peer, sleeps] {
        let ended = running.finish();
        assert!(!ended.status.success(), "{ended:?}");
    }
    // A program without outstanding requests does not notice the end of a host, on any NIC.
    drop(partner);
    // Nothing blocks the next NIC.
    let again = nic(&site.local, "left", &["--port", "xdp"]);
    site.play("nic", "ibv_rc_pingpong -g 1 -n 100 -c", 18515);
    drop(listens);
    ends_clean(&site, [again, remote]);
}

#[test]
fn program_in_another_pid_namespace_is_served() {
    let name = "program_in_another_pid_namespace_is_served";
    if skip(name, &["ibv_rc_pingpong", "ib_atomic_bw", "unshare"]) {
        return;
    }
    let site = Site::new("nic-pids");
    // Processes outside of the NIC's PID namespace have no PID in it.
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child", "--mount-proc"]);
    command.arg(folder().join("roxie")).args(["nic", "--dev", "left", "--port", "xdp"]);
    let mut local = Running::start(&site.local, command);
    local.wait_until_it_is_there("@roxie/nic/left\n");
    let remote = nic(&site.remote, "right", &["--port", "xdp"]);
    for (program, port) in [("ibv_rc_pingpong -g 1 -n 200 -c", 18515), ("ib_atomic_bw -x 1 -F -n 200", 18515)]
    {
        site.play("nic", program, port);
    }
    drop(remote);
    let output = local.read_to_end();
    assert!(output.contains("(process 0,"), "{output}");
}

/// Starts a program as another user, with its files in `place`.
fn as_nobody(site: &Site, place: &Path, program: &str) -> Running {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all"]);
    command.arg(place.join("roxie")).args(["run", "--dev", "left", "--port", "nic", "--"]);
    command.args(program.split(' ')).current_dir(place);
    Running::start(&site.local, command)
}

#[test]
fn port_of_another_user_is_in_use() {
    if skip("port_of_another_user_is_in_use", &["setpriv", "rping"]) {
        return;
    }
    let (site, nics) = Site::with_nics("nic-users", &["--port", "xdp", "--all-users"]);
    let place = copied();
    let mut server = site.local("nic", &format!("rping -s -P -p 7471 -a {NEAR} -v"));
    server.wait_until_it_serves();
    for (port, why) in
        [(7471, "rdma_bind_addr: Address already in use"), (99, "rdma_bind_addr: Permission denied")]
    {
        let refused = as_nobody(&site, place.path(), &format!("rping -s -p {port} -a {NEAR} -v")).finish();
        assert!(!refused.status.success() && refused.output.contains(why), "{port}: {refused:?}");
    }
    let mut other = as_nobody(&site, place.path(), &format!("rping -s -P -p 7472 -a {NEAR} -v"));
    other.wait_until_it_serves();
    for port in [7471, 7472] {
        let client = site.remote("nic", &format!("rping -c -p {port} -a {NEAR} -v -V -C 5")).finish();
        assert!(client.status.success(), "port {port}: {client:?}");
    }
    let shown = |options: &[&str]| {
        let mut command = Command::new(folder().join("roxie"));
        command.args(["show", "processes"]).args(options);
        Running::start(&site.local, command).finish().output
    };
    let list: serde_json::Value = serde_json::from_str(shown(&["--json"]).trim()).expect("JSON");
    let of = |uid: u32| {
        let is_it = |row: &&serde_json::Value| row["uid"] == uid && row["name"] == "rping";
        list["processes"].as_array().expect("a list").iter().find(is_it).expect("it is served")["account"]
            .clone()
    };
    for uid in [0, 65534] {
        let account = of(uid);
        assert_eq!((&account["ports"]["used"], &account["ports"]["user_limit"]), (&2.into(), &12288.into()));
        assert!(account["qps"]["used"] == 1 && account["objects"]["limit"] == 8192, "{account}");
    }
    let table = shown(&[]);
    assert!(table.contains("its user has") && table.contains("queue_bytes"), "{table}");
    drop((server, other));
    ends_clean(&site, nics);
}

#[test]
fn program_is_limited_by_its_quota() {
    if skip("program_is_limited_by_its_quota", &["ibv_srq_pingpong", "ibv_rc_pingpong"]) {
        return;
    }
    let limits = ["--port", "xdp", "--max-qps", "3", "--max-bytes", "1M", "--max-cqes", "2000"];
    let (site, nics) = Site::with_nics("nic-quota", &limits);
    for (asked, limit) in [
        ("ibv_srq_pingpong -g 1 -q 4", "QPs: 4, but the NIC gives each process 3"),
        (
            "ibv_rc_pingpong -g 1 -s 2000000",
            "bytes registered: 2000000, but the NIC gives each process 1048576",
        ),
        (
            "ibv_rc_pingpong -g 1 -r 4000",
            "completion queue entries: 4001, but the NIC gives each process 2000",
        ),
    ] {
        let refused = site.local("nic", asked).finish();
        assert!(!refused.status.success() && refused.output.contains(limit), "{asked}: {refused:?}");
    }
    // Each program has the same quota, and an ended program's share is free again.
    for _ in 0..2 {
        site.play("nic", "ibv_srq_pingpong -g 1 -n 100 -q 3", 18515);
    }
    ends_clean(&site, nics);
}

#[test]
fn max_rate_limits_a_programs_qps() {
    if skip("max_rate_limits_a_programs_qps", &["ib_write_bw"]) {
        return;
    }
    let (site, nics) = Site::with_nics("nic-rate", &["--port", "xdp", "--max-rate", "200M"]);
    let (client, _) = site.play("nic", "ib_write_bw -x 1 -F -q 2 -s 65536 -n 100", 18515);
    // Columns: #bytes #iterations peak average rate, in MiB/s.
    let row = client.lines().rfind(|line| line.trim_start().starts_with("65536")).expect("a row");
    let average: f64 = row.split_whitespace().nth(3).and_then(|word| word.parse().ok()).expect("an average");
    let most = 200e6 / 8.0 / f64::from(1 << 20);
    // 64 KiB of 13 MB are sent at once. A slow machine may reach less.
    assert!(average > 0.0 && average < 1.01 * most, "{average} MiB/s, {most} at most: {client}");
    ends_clean(&site, nics);
}

#[test]
fn second_nic_of_interface_is_refused() {
    if skip("second_nic_of_interface_is_refused", &["ibv_devinfo"]) {
        return;
    }
    let (site, nics) = Site::with_nics("nic-second", &["--port", "udp"]);
    let mut command = Command::new(folder().join("roxie"));
    command.args(["nic", "--dev", "left", "--port", "udp"]);
    let second = Running::start(&site.local, command).finish();
    assert!(
        second.status.code() == Some(3) && second.output.contains("left has a NIC already"),
        "{second:?}"
    );
    // Without --port, the existing NIC is chosen.
    let mut command = Command::new(folder().join("roxie"));
    command.args(["run", "--dev", "left", "--", "ibv_devinfo"]);
    let chosen = Running::start(&site.local, command).finish();
    assert!(chosen.status.success() && chosen.output.contains("left through its NIC, process"), "{chosen:?}");
    // A program cannot set what belongs to the NIC.
    let command =
        super::launcher(&["--dev", "left", "--port", "nic", "--fault", "drop=0.5"], "ibv_devinfo -v");
    let refused = Running::start(&site.local, command).finish();
    assert!(refused.output.contains("faults is the NIC's"), "{refused:?}");
    // Its sockets carry no RoCE v1.
    let command = super::launcher(&["--dev", "left", "--port", "nic", "--roce-v1"], "ibv_devinfo -v");
    let refused = Running::start(&site.local, command).finish();
    assert!(!refused.status.success() && refused.output.contains("carries no RoCE v1"), "{refused:?}");
    drop(nics);
    let none = site.local("nic", "ibv_devinfo").finish();
    assert!(!none.status.success() && none.output.contains("no NIC serves left"), "{none:?}");
}

#[test]
fn nic_disconnects_peers_of_dead_process() {
    let name = "nic_disconnects_peers_of_dead_process";
    if skip(name, &["rping"]) {
        return;
    }
    let (site, nics) = Site::with_nics("nic-orphans", &["--port", "xdp"]);
    let roxie = folder().join("roxie");
    let mut command = Command::new("sh");
    let script = format!("eval \"$('{}' env -q --dev left)\"; exec rping -s -a {NEAR} -v", roxie.display());
    command.args(["-c", &script]);
    let mut server = Running::start(&site.local, command);
    server.wait_until_it_serves();
    let client = site.remote("nic", &format!("rping -c -a {NEAR} -v -V -C 10000000"));
    server.wait_until("answering", |_| sent_bytes(&site.remote) > 100_000);
    signal(server.child.id(), Signal::SIGKILL);
    server.child.wait().expect("killed");
    let client = client.finish();
    assert!(
        client.output.contains("DISCONNECT EVENT"),
        "{}",
        &client.output[client.output.len().saturating_sub(2000)..]
    );
    ends_clean(&site, nics);
}
