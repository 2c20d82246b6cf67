//! The `ibv_*_pingpong` programs of rdma-core, with verification (`-c`) where they support it.

use super::{PORTS, Site, ports, skip};

/// TCP port by which they exchange addresses.
const PORT: u16 = 18515;

fn plays(test: &str, tag: &str, program: &str, verifies: bool) {
    if skip(test, &[program]) {
        return;
    }
    let site = Site::new(tag);
    let check = if verifies { "-c" } else { "" };
    for port in PORTS {
        for events in ["", "-e"] {
            let (client, server) =
                site.play(port, &format!("{program} -g 1 -n 300 -s 2000 {check} {events}"), PORT);
            for said in [client, server] {
                assert!(said.contains("bytes in") || said.contains("success"), "{port} {events}: {said}");
                assert!(!said.contains("invalid data"), "{said}");
            }
        }
    }
}

#[test]
fn rc_pingpong_runs_over_both_ports() {
    plays("rc_pingpong_runs_over_both_ports", "pp-rc", "ibv_rc_pingpong", true);
}

#[test]
fn uc_pingpong_runs_over_both_ports() {
    plays("uc_pingpong_runs_over_both_ports", "pp-uc", "ibv_uc_pingpong", true);
}

#[test]
fn ud_pingpong_runs_over_both_ports() {
    plays("ud_pingpong_runs_over_both_ports", "pp-ud", "ibv_ud_pingpong", true);
}

#[test]
fn srq_pingpong_runs_over_both_ports() {
    let name = "srq_pingpong_runs_over_both_ports";
    plays(name, "pp-srq", "ibv_srq_pingpong", true);
}

#[test]
fn xrc_pingpong_runs_over_both_ports() {
    plays("xrc_pingpong_runs_over_both_ports", "pp-xrc", "ibv_xsrq_pingpong", false);
}

#[test]
fn rc_pingpong_runs_with_newer_apis() {
    let name = "rc_pingpong_runs_with_newer_apis";
    if skip(name, &["ibv_rc_pingpong"]) {
        return;
    }
    let site = Site::new("pp-more");
    for port in ports() {
        for more in ["-N -c", "-o -c", "-j"] {
            site.play(port, &format!("ibv_rc_pingpong -g 1 -n 100 {more}"), PORT);
        }
    }
}

#[test]
fn invalid_gid_index_is_explained() {
    let name = "invalid_gid_index_is_explained";
    if skip(name, &["ibv_rc_pingpong"]) {
        return;
    }
    let site = Site::new("pp-gid");
    // The program itself reports an index beyond the table; the library explains an empty entry.
    let remote = site.remote("udp", "ibv_rc_pingpong -g 40 192.0.2.1").finish();
    assert!(!remote.status.success() && remote.output.contains("the table has 32 entries"), "{remote:?}");
    let mut server = site.local("udp", "ibv_rc_pingpong -g 1");
    server.wait_until_it_listens(PORT);
    // The empty GID goes to the server, which reports the missing address.
    let empty = site.remote("udp", "ibv_rc_pingpong -g 9 192.0.2.1").finish();
    assert!(!empty.status.success(), "{empty:?}");
    let server = server.finish();
    assert!(!server.status.success() && server.output.contains("RoCE addresses are GIDs"), "{server:?}");
}
