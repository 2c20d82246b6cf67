//! Stock programs on a device that behaves as an adapter was measured to.

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
    ] {
        let command = launcher(&["--dev", "left", "--port", "packet", "--profile", profile], program);
        let mut server = Running::start(&site.local, command);
        server.wait_until_it_listens(18515);
        let client = site.remote("packet", &format!("{program} {NEAR}")).finish();
        let server = server.finish();
        assert!(client.status.success() && server.status.success(), "{profile}: {client:?}\n{server:?}");
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
