//! Programs that query the device.

use super::{Site, compiled, skip};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use roxie::netdev::Links;

#[test]
fn device_is_listed_and_described() {
    if skip("device_is_listed_and_described", &["ibv_devices", "ibv_devinfo"]) {
        return;
    }
    let site = Site::new("q-info");
    let listed = site.local("xdp", "ibv_devices").finish();
    assert!(listed.status.success() && listed.output.contains("roxie0"), "{listed:?}");
    let described = site.local("xdp", "ibv_devinfo -v").finish();
    assert!(described.status.success(), "{described:?}");
    for part in [
        "hca_id:\troxie0",
        "PORT_ACTIVE (4)",
        "active_mtu:\t\t4096 (5)",
        "::ffff:192.0.2.1",
        "Ethernet",
        "ATOMIC_HCA",
    ] {
        assert!(described.output.contains(part), "{part:?} is not in {}", described.output);
    }
}

#[test]
fn queries_work_beside_the_interfaces_holder() {
    let name = "queries_work_beside_the_interfaces_holder";
    if skip(name, &["ibv_devinfo", "ibv_rc_pingpong"]) {
        return;
    }
    let site = Site::new("q-beside");
    for port in super::ports() {
        let mut first = site.local(port, "ibv_rc_pingpong -g 1");
        first.wait_until_it_listens(18515);
        let answer = site.local(port, "ibv_devinfo").finish();
        assert!(answer.status.success() && answer.output.contains("roxie0"), "{port}: {answer:?}");
        // Over sockets, processes share the interface.
        if port != "xdp" {
            continue;
        }
        let second = site.local(port, "ibv_rc_pingpong -g 1 -p 18600").finish();
        assert!(!second.status.success(), "{port}: {second:?}");
        assert!(second.output.contains("ibv_rc_pingpon"), "{port}: the holder is not named: {second:?}");
        assert!(second.output.contains("pid") || second.output.contains("process"), "{port}: {second:?}");
    }
}

#[test]
fn link_down_raises_an_event() {
    if skip("link_down_raises_an_event", &["ibv_asyncwatch", "stdbuf"]) {
        return;
    }
    let site = Site::new("q-async");
    let mut watch = site.local("udp", "stdbuf -oL ibv_asyncwatch");
    watch.wait_for_output("async event FD");
    Links::open_in(&site.remote).unwrap().set_up("right", false).unwrap();
    watch.wait_for_output("IBV_EVENT_PORT_ERR");
}

#[test]
fn signals_and_exit_status_are_forwarded() {
    if skip("signals_and_exit_status_are_forwarded", &["sh", "sleep"]) {
        return;
    }
    let site = Site::new("q-signal");
    let script = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(
        script.path(),
        "trap 'echo heard; exit 9' TERM\necho ready\nwhile :; do sleep 0.05; done\n",
    )
    .unwrap();
    let mut waiting = site.local("udp", &format!("sh {}", script.path().display()));
    waiting.wait_for_output("ready");
    kill(Pid::from_raw(waiting.child.id().cast_signed()), Signal::SIGTERM).unwrap();
    let ended = waiting.finish();
    assert_eq!((ended.status.code(), ended.output.contains("heard")), (Some(9), true), "{ended:?}");
}

#[test]
fn queries_cover_their_whole_tables() {
    let name = "queries_cover_their_whole_tables";
    if skip(name, &["cc"]) {
        return;
    }
    let (_place, program) = compiled("asks", &["-libverbs", "-lpthread"]);
    let site = Site::new("asks");
    let ended = site.local("udp", &program.to_string_lossy()).finish();
    assert!(ended.status.success() && ended.output.contains("all so"), "{ended:?}");
}

#[test]
fn queried_attributes_equal_the_set_ones() {
    let name = "queried_attributes_equal_the_set_ones";
    if skip(name, &["cc"]) {
        return;
    }
    let (_place, program) = compiled("same", &["-libverbs"]);
    let site = Site::new("same");
    let ended = site.local("udp", &program.to_string_lossy()).finish();
    assert!(ended.status.success() && ended.output.contains("all so"), "{ended:?}");
}

#[test]
fn hop_limit_of_a_qp_is_the_routes() {
    if skip("hop_limit_of_a_qp_is_the_routes", &["cc"]) {
        return;
    }
    let (_place, program) = compiled("same", &["-libverbs"]);
    let site = Site::new("hops");
    site.local.run(|| std::fs::write("/proc/sys/net/ipv4/ip_default_ttl", "70")).unwrap().unwrap();
    let ended = site.local("xdp", &format!("{} 70", program.display())).finish();
    assert!(ended.status.success() && ended.output.contains("all so"), "{ended:?}");
}

#[test]
fn failing_calls_leave_their_own_errno() {
    if skip("failing_calls_leave_their_own_errno", &["cc"]) {
        return;
    }
    let (_place, program) = compiled("errnos", &["-libverbs"]);
    let site = Site::new("errnos");
    let ended = site.local("udp", &program.to_string_lossy()).finish();
    assert!(ended.status.success(), "{ended:?}");
}
