//! Stock programs on a device that behaves as an adapter was measured to.

use super::conform::{agent, conform};
use super::{NEAR, Running, Site, launcher, skip};

#[test]
fn profiled_device_exchanges_with_an_ordinary_one() {
    let programs = ["ibv_rc_pingpong", "ib_write_bw", "ib_read_lat", "ib_send_lat"];
    if skip("profiled_device_exchanges_with_an_ordinary_one", &programs) {
        return;
    }
    let site = Site::new("profile");
    for (profile, program) in [
        ("cx6", "ibv_rc_pingpong -g 1 -n 200"),
        ("cx6", "ib_write_bw -x 1 -F -n 500"),
        ("cx6-20.40", "ib_read_lat -x 1 -F -n 200"),
        ("cx6-20.40", "ib_send_lat -x 1 -F -n 200"),
        ("hi1822", "ib_send_lat -x 1 -F -n 200"),
        ("hi1822", "ib_write_bw -x 1 -F -n 500"),
    ] {
        let command = launcher(&["--dev", "left", "--port", "packet", "--profile", profile], program);
        let mut server = Running::start(&site.local, command);
        server.wait_until_it_listens(18515);
        let client = site.remote("packet", &format!("{program} {NEAR}")).finish();
        let server = server.finish();
        assert!(client.status.success() && server.status.success(), "{profile}: {client:?}\n{server:?}");
    }
}

/// A profile predicts what the bench finds at a device that has it, and at no other.
#[test]
fn bench_finds_what_a_profile_predicts() {
    if skip("bench_finds_what_a_profile_predicts", &["cc"]) {
        return;
    }
    let (_place, program) = agent();
    let program = program.display().to_string();
    let started = |site: &Site, profile: &[&str]| {
        let command = launcher(&[&["--dev", "right", "--port", "packet"], profile].concat(), &program);
        let mut agent = Running::start(&site.remote, command);
        agent.wait_for_output("TCP port");
        agent
    };
    let site = Site::new("predicted");
    let cx5 = started(&site, &["--profile", "cx5"]);
    let like = conform(&site, "--expect cx5");
    assert_eq!(like.status.code(), Some(0), "{}", like.output);
    assert!(like.output.contains("cx5: 23 of 23 checks end as its profile says"), "{}", like.output);
    assert!(like.output.contains("as cx5 does (measured)"), "{}", like.output);
    assert!(like.output.contains("as cx6 does (measured)"), "{}", like.output);
    drop(cx5);
    let _plain = started(&site, &[]);
    let other = conform(&site, "--expect cx5 --filter rc/rights/fault_in_later_packet");
    assert_eq!(other.status.code(), Some(1), "{}", other.output);
    let why = "not as cx5: rc/rights/fault_in_later_packet is kept; cx5 breaks it (measured on ConnectX-5";
    assert!(other.output.contains(why), "{}", other.output);
    let silent = conform(&site, "--expect cx4lx --filter rc/valid");
    assert_eq!(silent.status.code(), Some(2), "{}", silent.output);
    assert!(silent.output.contains("says nothing of the chosen checks"), "{}", silent.output);
}

/// A program sees the adapter's name only if that is asked for. What a connection's timeout covers is the adapter's.
#[test]
fn identity_is_shown_if_asked_for() {
    if skip("identity_is_shown_if_asked_for", &["ibv_devinfo"]) {
        return;
    }
    let site = Site::new("identity");
    let seen = |options: &[&str]| {
        let command = launcher(&[&["--dev", "left"], options].concat(), "ibv_devinfo -v");
        Running::start(&site.local, command).finish()
    };
    let adapter = ["20.43.4100", "0x02c9", "4123"];
    let identified = seen(&["--profile", "cx6", "--identity"]);
    let plain = seen(&["--profile", "cx6"]);
    for part in adapter {
        assert!(identified.output.contains(part), "{part}: {}", identified.output);
        assert!(!plain.output.contains(part), "{part}: {}", plain.output);
    }
    for devinfo in [&identified, &plain] {
        let delay = devinfo.output.lines().find(|line| line.contains("local_ca_ack_delay"));
        assert!(delay.is_some_and(|line| line.ends_with("16")), "{}", devinfo.output);
    }
    for (options, why) in
        [(&["--profile", "hi1822", "--identity"][..], "has no id.vendor"), (&["--identity"][..], "--profile")]
    {
        let refused = seen(options);
        assert_eq!(refused.status.code(), Some(2), "{}", refused.output);
        assert!(refused.output.contains(why), "{}", refused.output);
    }
}

#[test]
fn unknown_profile_is_refused_with_those_there_are() {
    let site = Site::new("profile-none");
    let refused =
        Running::start(&site.local, launcher(&["--dev", "left", "--profile", "cx0"], "true")).finish();
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    for part in ["\"cx0\"", "built in are cx4lx, cx5, cx6, cx6-20.40"] {
        assert!(refused.output.contains(part), "{refused:?}");
    }
}
