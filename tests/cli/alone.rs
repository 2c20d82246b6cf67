//! Commands that need no network and no privilege.

use crate::run;

#[test]
fn pingpong_runs_in_one_process() {
    let done = run("pingpong rc --port memory -n 50 -c").succeeded();
    assert!(done.stdout.contains("409600 bytes in ") && done.stdout.contains("50 iters in "), "{done:#?}");
    assert!(done.stdout.contains("local address:  LID 0x0000, QPN 0x"), "{done:#?}");
}

#[test]
fn perf_measures_every_operation_in_one_process() {
    for operation in ["send", "write", "read", "atomic"] {
        let bw =
            run(&format!("perf {operation} bw --port memory -n 300 -q 3 -t 8 --json")).succeeded().json();
        assert_eq!((bw.len(), &bw[0]["messages"], &bw[0]["qps"]), (1, &300.into(), &3.into()));
        let lat = run(&format!("perf {operation} lat --port memory -n 20 --json")).succeeded().json();
        assert_eq!(lat[0]["latency_ns"]["count"], 20);
        assert!(lat[0]["latency_ns"]["min"].as_u64() <= lat[0]["latency_ns"]["p50"].as_u64());
    }
}

#[test]
fn failure_prints_the_event_log() {
    // All packets are dropped, so the retries are exhausted.
    for command in ["pingpong rc", "perf send bw"] {
        let run = run(&format!("{command} --port memory -n 100000 --timeout 8 --retry 2 --fault drop=1.0"));
        run.failed(
            1,
            &[
                "the event log of QPN 0x",
                "counters: sent_pkts ",
                "no acknowledgement in time: timeout: go back and send again",
                "no acknowledgement in time: work request fails, QP to error",
                "Rts -> Err",
            ],
        );
    }
    let good = run("pingpong rc --port memory -n 50").succeeded();
    assert!(!good.stderr.contains("event log"), "{good:#?}");
}

#[test]
fn lossy_run_completes_and_reports_retransmissions() {
    let run =
        run("perf write bw --port memory -n 200 -s 16384 -t 4 --timeout 8 --fault drop=0.02,seed=3 --json");
    let result = run.succeeded().json();
    assert_eq!(result[0]["messages"], 200);
    assert!(result[0]["resent_packets"].as_u64().unwrap() > 0, "{}", result[0]);
}

#[test]
fn each_size_gives_a_row() {
    for operation in ["write", "send"] {
        let lat =
            run(&format!("perf {operation} lat --port memory -n 10 -s 64,8,64 --json")).succeeded().json();
        let sizes: Vec<_> = lat.iter().map(|row| row["size"].as_u64().unwrap()).collect();
        assert_eq!(sizes, [64, 8, 64]);
    }
}

#[test]
fn floor_counts_bare_frames() {
    let bw = run("perf send bw --port memory -n 100 -s 64 --floor --json").succeeded().json();
    assert_eq!((&bw[0]["floor"], &bw[0]["sent"]), (&true.into(), &100.into()));
    let lat = run("perf send lat --port memory -n 10 --floor --json").succeeded().json();
    assert_eq!(lat[0]["sent"], 10);
}

#[test]
fn capture_can_be_decoded() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.pcapng");
    run(&format!("pingpong rc --port memory -n 2 -s 8 --capture {}", file.display())).succeeded();
    let decoded = run(&format!("decode {}", file.display())).succeeded();
    let sends = decoded.stdout.lines().filter(|line| line.contains("RC_SEND_ONLY")).count();
    assert!(sends >= 4, "two messages each way:\n{}", decoded.stdout);
}

#[test]
fn help_has_examples_and_exit_codes() {
    for command in ["pingpong rc", "perf", "show", "show gids", "demo", "decode"] {
        let help = run(&format!("{command} --help")).succeeded();
        assert!(help.stdout.contains("Exit codes: 0 "), "{help:#?}");
    }
    for command in ["pingpong rc", "perf", "show gids", "decode"] {
        let help = run(&format!("{command} --help")).succeeded();
        let examples = help.stdout.split_once("Examples:").expect("examples").1;
        assert!(examples.lines().filter(|line| line.contains("roxie ")).count() >= 3, "{examples}");
    }
}

#[test]
fn show_opens_a_device_on_request() {
    let shown = run("show counters --open --port memory --json").succeeded();
    assert_eq!(shown.json()[0]["counters"]["sent_pkts"], 0);
    let gids = run("show gids --port memory --json").succeeded().json();
    let gid = &gids[0]["gids"][0];
    assert_eq!((&gid["gid"], &gid["chosen"]), (&"::ffff:192.0.2.1".into(), &true.into()));
}

#[test]
fn invalid_options_are_refused_before_opening() {
    for (arguments, parts) in [
        ("perf send bw --port memory -s 1073741825", &["1073741825", "1073741824"][..]),
        ("perf read bw --port memory -s 0", &["size 0", "at least 1"]),
        ("perf write lat --port memory -s 0", &["size 0", "last byte"]),
        ("perf atomic lat --port memory -s 64", &["size 64", "exactly 8"]),
        ("perf send lat --port memory -q 2", &["on each of 2", "measure bw"]),
        ("perf send bw --port memory -q 5000", &["qps 5000", "1 to 4096"]),
        ("perf send bw --port memory -t 0", &["depth 0"]),
        ("perf send bw --port memory -D 0", &["duration of 0 s"]),
        ("perf send bw --port memory -n 0", &["0 operations"]),
        ("perf send bw --port memory 192.0.2.1", &["leave the server out"]),
        ("perf send bw --port memory --floor --fault drop=0.1", &["--floor", "leave --fault"]),
        ("perf send bw --port memory -m 1500", &["1500", "256, 512, 1024, 2048 or 4096"]),
        ("perf send bw --port memory --fault lose=0.1", &["`lose` is no fault"]),
        ("perf send bw --port memory --timeout 32", &["32", "0..=31"]),
        ("perf send bw --port memory --drive thread:9999", &["cores 0 to"]),
        ("perf jump bw", &["jump", "send, write, read, atomic"]),
        ("pingpong rc --port memory -s 1073741825", &["1073741825"]),
        ("pingpong rc --port memory -n 0", &["0"]),
        ("pingpong rc --port memory -r 16385", &["16385", "16384"]),
        ("pingpong rc --port memory -g 7", &["no GID at index 7", "0: ::ffff:192.0.2.1"]),
        ("pingpong rc --port memory --dev eth9", &["no interface", "--dev"]),
        ("pingpong rc --port memory --mode native", &["--mode is for --port xdp"]),
        ("pingpong rc --port xdp --no-gso", &["--no-gso is for --port udp"]),
        ("pingpong rc --mode native --no-gso", &["--mode is for --port xdp", "--no-gso for --port udp"]),
        ("show device --port udp --mode native", &["--mode is for --port xdp"]),
        ("show gids --port xdp --no-gso", &["--no-gso is for --port udp"]),
        ("pingpong rc -p 0", &["0 selects any free port", "1 to 65535"]),
        ("perf send bw -p 65536", &["from 1 to 65535"]),
        ("show gids --port memory -g 7", &["no GID at index 7", "0: ::ffff:192.0.2.1"]),
    ] {
        run(arguments).failed(2, parts);
    }
}

#[test]
fn missing_interface_error_lists_existing_ones() {
    run("pingpong rc --port udp --dev nosuch0").failed(3, &["\"nosuch0\"", "there are", "lo"]);
}

#[test]
fn unwritable_capture_is_named() {
    run("pingpong rc --port memory --capture /nosuch/dir/x.pcapng").failed(3, &["/nosuch/dir/x.pcapng"]);
}
