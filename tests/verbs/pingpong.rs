//! The `ibv_*_pingpong` programs of rdma-core. Where one can verify what it received (`-c`), it does.

use super::{PORTS, Site, skip};

/// The TCP port by which they exchange addresses.
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
fn rc_plays_over_both_ports_polling_and_on_events() {
    plays("rc_plays_over_both_ports_polling_and_on_events", "pp-rc", "ibv_rc_pingpong", true);
}

#[test]
fn uc_plays_over_both_ports_polling_and_on_events() {
    plays("uc_plays_over_both_ports_polling_and_on_events", "pp-uc", "ibv_uc_pingpong", true);
}

#[test]
fn ud_plays_over_both_ports_polling_and_on_events() {
    plays("ud_plays_over_both_ports_polling_and_on_events", "pp-ud", "ibv_ud_pingpong", true);
}

#[test]
fn shared_receives_play_over_both_ports_polling_and_on_events() {
    let name = "shared_receives_play_over_both_ports_polling_and_on_events";
    plays(name, "pp-srq", "ibv_srq_pingpong", true);
}

#[test]
fn xrc_plays_over_both_ports_polling_and_on_events() {
    plays("xrc_plays_over_both_ports_polling_and_on_events", "pp-xrc", "ibv_xsrq_pingpong", false);
}

#[test]
fn rc_plays_with_the_new_post_api_on_demand_memory_and_device_memory() {
    let name = "rc_plays_with_the_new_post_api_on_demand_memory_and_device_memory";
    if skip(name, &["ibv_rc_pingpong"]) {
        return;
    }
    let site = Site::new("pp-more");
    for port in PORTS {
        for more in ["-N -c", "-o -c", "-j"] {
            site.play(port, &format!("ibv_rc_pingpong -g 1 -n 100 {more}"), PORT);
        }
    }
}

#[test]
fn a_wrong_gid_index_says_what_there_is() {
    let name = "a_wrong_gid_index_says_what_there_is";
    if skip(name, &["ibv_rc_pingpong"]) {
        return;
    }
    let site = Site::new("pp-gid");
    // Beyond the table the program itself says so; an entry that is empty is the library's to explain.
    let far = site.far("udp", "ibv_rc_pingpong -g 40 192.0.2.1").finish();
    assert!(!far.status.success() && far.said.contains("the table has 32 entries"), "{far:?}");
    let mut server = site.near("udp", "ibv_rc_pingpong -g 1");
    server.wait_until_it_listens(PORT);
    // The empty GID goes to the server, which makes of it that there is no address.
    let empty = site.far("udp", "ibv_rc_pingpong -g 9 192.0.2.1").finish();
    assert!(!empty.status.success(), "{empty:?}");
    let server = server.finish();
    assert!(!server.status.success() && server.said.contains("RoCE addresses are GIDs"), "{server:?}");
}
