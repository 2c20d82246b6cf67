//! perftest: bandwidth and latency of each operation, polling and with events. perftest posts by `ibv_post_send`, and
//! by `ibv_wr_*` only on adapters with known IDs (`perftest_resources.c`). `pingpong` and `pyverbs` cover that.

use super::{Site, ports, skip};

/// TCP port by which they exchange addresses.
const PORT: u16 = 18515;

fn runs(test: &str, tag: &str, programs: &[&str], variants: &[&str]) {
    if skip(test, programs) {
        return;
    }
    let site = Site::new(tag);
    for port in ports() {
        for program in programs {
            for variant in variants {
                let (client, _) = site.play(port, &format!("{program} -x 1 -F {variant}"), PORT);
                let rows = client.lines().filter(|line| {
                    line.split_whitespace().next().is_some_and(|first| first.parse::<u64>().is_ok())
                });
                assert!(rows.count() > 0, "{port} {program} {variant} measured nothing: {client}");
            }
        }
    }
}

#[test]
fn rc_sends_writes_and_reads_are_measured() {
    let programs = ["ib_send_bw", "ib_send_lat", "ib_write_bw", "ib_write_lat", "ib_read_bw", "ib_read_lat"];
    runs("rc_sends_writes_and_reads_are_measured", "pf-rc", &programs, &["-n 200 -s 5000"]);
}

#[test]
fn atomics_are_measured() {
    let variants = ["-n 200 -A FETCH_AND_ADD", "-n 200 -A CMP_AND_SWAP"];
    runs("atomics_are_measured", "pf-atomic", &["ib_atomic_bw", "ib_atomic_lat"], &variants);
}

#[test]
fn uc_sends_and_writes_are_measured() {
    let programs = ["ib_send_bw", "ib_send_lat", "ib_write_bw", "ib_write_lat"];
    runs("uc_sends_and_writes_are_measured", "pf-uc", &programs, &["-c UC -n 200 -s 2000"]);
}

#[test]
fn ud_sends_are_measured() {
    runs("ud_sends_are_measured", "pf-ud", &["ib_send_bw", "ib_send_lat"], &["-c UD -n 200 -s 1024"]);
}

#[test]
fn several_qps_both_directions_and_events_are_measured() {
    let name = "several_qps_both_directions_and_events_are_measured";
    runs(name, "pf-more", &["ib_send_bw", "ib_write_bw"], &["-n 200 -q 4 -b"]);
    runs(name, "pf-events", &["ib_send_bw", "ib_send_lat"], &["-n 200 -e"]);
}

#[test]
fn shared_receives_and_xrc_are_measured() {
    let variants = ["-n 200 --use-srq", "-n 200 -c XRC"];
    runs("shared_receives_and_xrc_are_measured", "pf-srq", &["ib_send_bw"], &variants);
}

#[test]
fn all_sizes_are_measured() {
    runs("all_sizes_are_measured", "pf-all", &["ib_write_bw", "ib_read_bw"], &["-n 5 -a"]);
}
