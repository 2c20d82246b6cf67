//! Effects of `roxie run` and `roxie env` on programs.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::process::Command;

use roxie::host::inspect::{attach, snapshots};
use roxie::netdev::{Links, NetNs};
use roxie::threads::as_user;

use crate::site::in_time::CommandInTime;

use super::site::nic;
use super::{NEAR, Running, Site, copied, folder, launcher, skip};

#[test]
fn only_the_program_sees_the_sysfs_view() {
    if skip("only_the_program_sees_the_sysfs_view", &["cat", "ls"]) {
        return;
    }
    let site = Site::new("l-sysfs");
    let port = "/sys/class/infiniband/roxie0/ports/1";
    let files = ["gids/1", "gid_attrs/types/1", "gid_attrs/ndevs/1", "link_layer", "state", "pkeys/0"];
    let paths: Vec<_> = files.iter().map(|file| format!("{port}/{file}")).collect();
    let read = site.local("udp", &format!("cat {}", paths.join(" "))).finish();
    let wanted = "0000:0000:0000:0000:0000:ffff:c000:0201\nRoCE v2\nleft\nEthernet\n4: ACTIVE\n0xffff\n";
    assert_eq!(read.output, wanted, "{read:?}");
    let nodes = site.local("udp", "test -c /dev/infiniband/uverbs0 -a -w /dev/infiniband/roxie0").finish();
    assert!(nodes.status.success(), "{nodes:?}");
    let others = site.local("udp", "test -d /sys/class/net/lo -a -c /dev/zero -a -d /dev/fd").finish();
    assert!(others.status.success(), "what was there before is gone: {others:?}");
    assert!(!std::path::Path::new("/sys/class/infiniband/roxie0").exists());
}

/// Programs, scripts and NCCL's `NCCL_IB_HCA` choose a device by its name.
#[test]
fn device_has_the_name_that_is_asked_for() {
    if skip("device_has_the_name_that_is_asked_for", &["ib_send_lat", "ibv_devinfo", "ucx_info", "rdma"]) {
        return;
    }
    let site = Site::new("l-name");
    let named = |name: &str, program: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_roxie"));
        command.args(["run", "--dev", "left", "--port", "udp", "--name", name, "--"]).args(program);
        Running::start(&site.local, command)
    };
    let files = "cd /sys/class && ls infiniband && cat infiniband_verbs/uverbs0/ibdev infiniband/mlx5_0/ports/1/state \
                 && test -c /dev/infiniband/mlx5_0";
    let seen = named("mlx5_0", &["sh", "-c", files]).finish();
    assert_eq!(seen.output, "mlx5_0\nmlx5_0\n4: ACTIVE\n", "{seen:?}");
    // Where the kernel has RDMA netlink, `rdma` shows the kernel's devices.
    let is_kernels = Command::new("rdma").arg("system").output_in_time().unwrap().status.success();
    for (program, line) in [
        (&["ibv_devinfo"][..], "hca_id:\tmlx5_0"),
        (&["ucx_info", "-d"], "Device: mlx5_0:1"),
        (&["rdma", "link"], "mlx5_0/1"),
    ] {
        let seen = named("mlx5_0", program).finish();
        let is_other = program[0] == "rdma" && is_kernels;
        assert!(is_other || seen.status.success() && seen.output.contains(line), "{seen:?}");
        assert!(!seen.output.contains("roxie0"), "{seen:?}");
    }
    let exchange = "ib_send_lat -F -x 1 -n 20";
    let mut server =
        named("mlx5_0", &[&exchange.split(' ').collect::<Vec<_>>()[..], &["-d", "mlx5_0"]].concat());
    server.wait_until_it_listens(18515);
    let client = site.remote("udp", &format!("{exchange} {NEAR}")).finish();
    let server = server.finish();
    assert!(client.status.success() && server.status.success(), "{client:?}\n{server:?}");
    let absent = named("mlx5_0", &["ib_send_lat", "-F", "-d", "roxie0"]).finish();
    assert!(!absent.status.success(), "{absent:?}");
    let refused = named("../mlx5_0", &["true"]).finish();
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    assert!(refused.output.contains("none is '/'"), "{refused:?}");
}

/// Root's NIC serves another user too.
#[test]
fn programs_see_the_name_of_their_nic() {
    if skip("programs_see_the_name_of_their_nic", &["ibv_devices", "setpriv"]) {
        return;
    }
    let site = Site::new("l-nic-name");
    let _nic = nic(&site.local, "left", &["--port", "udp", "--name", "mlx5_3", "--user", "65533"]);
    let place = copied();
    let as_user = format!("setpriv --reuid=65533 --regid=65533 --clear-groups {}", place.path().display());
    for (roxie, options, name) in [
        (as_user + "/roxie", &[][..], "mlx5_3"),
        (folder().join("roxie").display().to_string(), &[], "mlx5_3"),
        (folder().join("roxie").display().to_string(), &["--name", "rxe0"], "rxe0"),
    ] {
        let mut words = roxie.split(' ');
        let mut command = Command::new(words.next().expect("a program"));
        command
            .args(words)
            .args(["run", "--quiet", "--dev", "left"])
            .args(options)
            .args(["--", "ibv_devices"]);
        let seen = Running::start(&site.local, command).finish();
        let devices: Vec<_> =
            seen.output.lines().skip(2).filter_map(|line| line.split_whitespace().next()).collect();
        assert!(seen.status.success() && devices == [name], "{name}: {seen:?}");
    }
}

/// Servers start as root and give it up before they open the device; packet sockets take CAP_NET_RAW.
#[test]
fn program_without_root_falls_back_to_sockets() {
    if skip("program_without_root_falls_back_to_sockets", &["setpriv", "rping"]) {
        return;
    }
    let site = Site::new("l-drop");
    let place = copied();
    let mut command = Command::new(place.path().join("roxie"));
    command.args(["run", "--dev", "left", "--port", "packet", "--"]);
    command.args(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]);
    command.args(["rping", "-s", "-a", NEAR, "-v", "-C", "5"]).current_dir(place.path());
    let mut server = Running::start(&site.local, command);
    server.wait_until_it_serves();
    let client = site.remote("udp", &format!("rping -c -a {NEAR} -v -C 5")).finish();
    let server = server.finish();
    assert!(client.status.success() && server.status.success(), "{client:?}\n{server:?}");
    assert_eq!(server.output.matches("using UDP sockets on left").count(), 1, "{server:?}");
}

/// `tmux`, `script` and `sshd` create terminals.
#[test]
fn program_can_create_a_terminal() {
    if skip("program_can_create_a_terminal", &["script", "tty"]) {
        return;
    }
    let site = Site::new("l-terminal");
    let made = site.local("udp", "script -qec tty /dev/null").finish();
    assert!(made.status.success() && made.output.contains("/dev/pts/"), "{made:?}");
}

#[test]
fn unprivileged_program_gets_a_socket_device() {
    if skip("unprivileged_program_gets_a_socket_device", &["setpriv", "ibv_devinfo", "unshare"]) {
        return;
    }
    let site = Site::new("l-user");
    let mut command = Command::new("setpriv");
    let place = copied();
    command.args([
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
        "--inh-caps=-all",
        "--bounding-set=-all",
    ]);
    command.arg(place.path().join("roxie")).args(["run", "--", "ibv_devinfo", "-v"]);
    let result = Running::start(&site.local, command).finish();
    assert!(result.status.success() && result.output.contains("::ffff:192.0.2.1"), "{result:?}");
    let expected = "left over UDP sockets, which all programs of this user share; no packet sockets: ";
    assert!(result.output.contains(expected), "{result:?}");
}

/// In the user namespace of `roxie run`, the kernel gives every other user the number 65534.
#[test]
fn user_with_the_overflow_number_is_told_apart() {
    let test = "user_with_the_overflow_number_is_told_apart";
    if skip(test, &["setpriv", "unshare", "ib_send_lat", "ibv_devinfo"]) {
        return;
    }
    const STRANGER: u32 = 65533;
    let site = Site::new("l-nobody");
    let place = copied();
    let as_nobody = |arguments: &str| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        command.args(["--inh-caps=-all", "--bounding-set=-all"]).current_dir(place.path());
        command.arg(place.path().join("roxie")).args(arguments.split(' '));
        Running::start(&site.local, command)
    };
    let program =
        |port: &str, program: &str| as_nobody(&format!("run --dev left --port {port} -- {program}"));
    // The stranger has the name of a NIC, as after the end of one that the launcher had found.
    let name = SocketAddr::from_abstract_name("roxie/nic/left").unwrap();
    let squatter =
        site.local.run(|| as_user(STRANGER, || UnixListener::bind_addr(&name)).unwrap()).unwrap().unwrap();
    // Both programs of the user share the device.
    // Timeouts of 4 s, for a guest on a busy host.
    let exchange = "ib_send_lat -F -x 1 -n 20 -u 20";
    let mut server = program("udp", exchange);
    server.wait_until_it_listens(18515);
    let mut waiting = program("udp", &format!("{exchange} -p 18516"));
    waiting.wait_until_it_listens(18516);
    let devices = site.local.run(snapshots).unwrap().unwrap().snapshots;
    let [device, _] = &devices[..] else { panic!("{devices:?}") };
    let pid = device.pid;
    let refused =
        site.local.run(|| as_user(STRANGER, || attach(device, 0)).unwrap()).unwrap().unwrap_err().to_string();
    assert!(refused.contains("only that user and root"), "{refused}");
    let own = as_nobody(&format!("capture --pid {pid} --seconds 1 -w /dev/null")).finish();
    assert!(own.status.success() && own.output.contains("0 packets captured"), "{own:?}");
    let client = program("udp", &format!("{exchange} {NEAR}")).finish();
    let server = server.finish();
    assert!(client.status.success() && server.status.success(), "{client:?}\n{server:?}");
    drop(waiting);
    // The NIC of the stranger gets no byte of a program that is told to use it.
    let fooled = program("udp", "env ROXIE_PORT=nic ibv_devinfo").finish();
    assert!(!fooled.status.success() && fooled.output.contains("does not tell from others"), "{fooled:?}");
    squatter.set_nonblocking(true).unwrap();
    while let Ok((mut connection, _)) = squatter.accept() {
        assert_eq!(std::io::Read::read(&mut connection, &mut [0; 64]).unwrap(), 0);
    }
}

#[test]
fn environment_suffices_for_libibverbs() {
    if skip("environment_suffices_for_libibverbs", &["sh", "ibv_devices"]) {
        return;
    }
    let site = Site::new("l-env");
    let mut command = Command::new("sh");
    let roxie = env!("CARGO_BIN_EXE_roxie");
    command.args(["-c", &format!("eval \"$({roxie} env --dev left --port udp)\" && ibv_devices")]);
    let listed = Running::start(&site.local, command).finish();
    assert!(listed.status.success() && listed.output.contains("roxie0"), "{listed:?}");
    // The single interface with an address is found without its name.
    let mut command = Command::new("sh");
    let unnamed = "env --port udp --dev left)\" && unset ROXIE_DEV && ibv_devices";
    command.args(["-c", &format!("eval \"$({roxie} {unnamed}")]);
    let listed = Running::start(&site.local, command).finish();
    assert!(listed.status.success() && listed.output.contains("roxie0"), "{listed:?}");
}

#[test]
fn ucx_rendezvous_default_is_32_kib() {
    if skip("ucx_rendezvous_default_is_32_kib", &["sh"]) {
        return;
    }
    let site = Site::new("l-ucx");
    let seen_by_a_program = |own: Option<&str>| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_roxie"));
        command.args([
            "run",
            "--quiet",
            "--dev",
            "left",
            "--port",
            "udp",
            "--",
            "sh",
            "-c",
            "echo $UCX_RNDV_THRESH",
        ]);
        command.env_remove("UCX_RNDV_THRESH").envs(own.map(|own| ("UCX_RNDV_THRESH", own)));
        Running::start(&site.local, command).finish().output
    };
    assert_eq!(seen_by_a_program(None), "32k\n");
    assert_eq!(seen_by_a_program(Some("1m")), "1m\n");
}

#[test]
fn failed_programs_refusals_are_reported() {
    if skip("failed_programs_refusals_are_reported", &["ibv_rc_pingpong", "ibv_devinfo"]) {
        return;
    }
    let site = Site::new("l-refused");
    let run = |log: Option<&str>, program: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_roxie"));
        command.args(["run", "--dev", "left", "--port", "udp", "--"]).args(program.split_whitespace());
        command.envs(log.map(|level| ("ROXIE_LOG", level)));
        Running::start(&site.local, command).finish()
    };
    let why = "ibv_modify_qp: modify_qp: port_num = 2 is out of range, allowed: 1..=1";
    let failed = run(None, "ibv_rc_pingpong -g 1 -i 2");
    let expected =
        format!("roxie: ibv_rc_pingpong ended with 1. The device had refused it:\nroxie:   {why}\n");
    assert!(failed.status.code() == Some(1) && failed.output.ends_with(&expected), "{failed:?}");
    let aloud = run(Some("info"), "ibv_rc_pingpong -g 1 -i 2");
    assert!(aloud.output.contains(why) && !aloud.output.contains("had refused"), "{aloud:?}");
    let well = run(None, "ibv_devinfo -v");
    assert!(well.status.success() && !well.output.contains("had refused"), "{well:?}");
}

#[test]
fn unrunnable_program_gives_shell_exit_codes() {
    if skip("unrunnable_program_gives_shell_exit_codes", &["true"]) {
        return;
    }
    let site = Site::new("l-wrong");
    let absent = site.local("udp", "no-such-program").finish();
    assert_eq!(absent.status.code(), Some(127), "{absent:?}");
    assert!(absent.output.contains("cannot start no-such-program"), "{absent:?}");
    let failed = site.local("udp", "false").finish();
    assert_eq!(failed.status.code(), Some(1), "{failed:?}");
    let nowhere = Running::start(&site.local, launcher(&["--dev", "nowhere"], "true")).finish();
    assert_eq!(nowhere.status.code(), Some(3), "{nowhere:?}");
    assert!(nowhere.output.contains("nowhere") && nowhere.output.contains("left"), "{nowhere:?}");
}

#[test]
fn unsupported_xdp_mode_is_refused() {
    if skip("unsupported_xdp_mode_is_refused", &["ibv_rc_pingpong"]) {
        return;
    }
    let site = Site::new("l-mode");
    let run = |options: &[&str], program: &str| {
        Running::start(&site.local, launcher(&[&["--dev", "left"], options].concat(), program)).finish()
    };
    let refused = run(&["--mode", "zero-copy"], "ibv_rc_pingpong -g 1");
    let why = "left (veth) cannot be opened through AF_XDP: zero-copy";
    assert!(refused.status.code() == Some(1) && refused.output.contains(why), "{refused:?}");
    let at_odds = run(&["--mode", "native", "--port", "udp"], "true");
    assert_eq!(at_odds.status.code(), Some(2), "{at_odds:?}");
    assert!(at_odds.output.contains("--mode is for --port xdp"), "{at_odds:?}");
}

#[test]
fn advice_for_missing_address_works() {
    if skip("advice_for_missing_address_works", &["ibv_devices"]) {
        return;
    }
    folder();
    let (local, remote) = (NetNs::create("l-bare-a").unwrap(), NetNs::create("l-bare-b").unwrap());
    let run = |options: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_roxie"));
        command.arg("run").args(options).args(["--", "ibv_devices"]);
        Running::start(&local, command).finish()
    };
    let reports = |options: &[&str], wanted: &str| {
        let refused = run(options);
        assert_eq!((refused.status.code(), &*refused.output), (Some(3), wanted));
    };
    let works = |options: &[&str]| {
        let listed = run(options);
        assert!(listed.status.success() && listed.output.contains("roxie0"), "{options:?}: {listed:?}");
    };
    let mut links = Links::open_in(&local).unwrap();
    links.set_up("lo", false).unwrap();
    let alone =
        "roxie run: there is no interface besides loopback: connect this host, or container, to a network";
    reports(&[], &format!("{alone}\n"));
    reports(&["--dev", "lo"], "roxie run: lo is down: `ip link set dev lo up` first\n");
    links.set_up("lo", true).unwrap();
    reports(&[], &format!("{alone}; or `--dev lo`, where a program can only talk to itself\n"));
    works(&["--dev", "lo"]);

    links.create_veth("left", &remote, "right", 1).unwrap();
    reports(
        &[],
        "roxie run: no interface besides loopback has an address: give one to left, for example `ip addr add 192.0.2.1/24 dev left`; \
         or `--dev lo`, where a program can only talk to itself\n",
    );
    links.add_address("left", "192.0.2.1/24".parse().unwrap()).unwrap();
    reports(&[], "roxie run: left is down: `ip link set dev left up` first\n");
    links.set_up("left", true).unwrap();
    works(&[]);
}

#[test]
fn demo_measures_unmodified_programs() {
    if skip("demo_measures_unmodified_programs", &["ib_write_bw", "ib_send_lat"]) {
        return;
    }
    // Wait for the turn, although the demo has its own network.
    let site = Site::new("l-demo");
    let captures = tempfile::tempdir().unwrap();
    let mut demo = Command::new(env!("CARGO_BIN_EXE_roxie"));
    demo.args(["demo", "--json", "--seconds", "0.2", "--port", "udp", "--capture"]).arg(captures.path());
    let measured = Running::start(&site.local, demo).finish();
    assert!(measured.status.success(), "{measured:?}");
    let object = measured.output.lines().find(|line| line.starts_with('{')).expect("the object");
    let report: serde_json::Value = serde_json::from_str(object).unwrap();
    for figure in
        ["perf_gbps", "ib_write_bw_gbps", "bandwidth_ratio", "perf_us", "ib_send_lat_us", "latency_ratio"]
    {
        let value = report["programs"][0][figure].as_f64();
        assert!(value.is_some_and(|value| value > 0.0), "{figure}: {report}");
    }
}
