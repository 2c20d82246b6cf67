//! One message in several protocols.

use crate::lab::{data, fact, run_of};

#[test]
fn four_protocols_carry_the_whole_message() {
    let report = data("compare --bytes 10000 --mtu 1500");
    for protocol in ["RoCE v1", "RoCE v2", "InfiniBand", "iWARP"] {
        for operation in ["SEND", "WRITE"] {
            let run = run_of(&report, &[protocol, operation]);
            let parts = run["blocks"][0]["bars"][0]["parts"].as_array().expect("parts").iter();
            let of = |name: &str| {
                parts
                    .clone()
                    .filter(|part| part["name"] == name)
                    .filter_map(|part| part["value"].as_f64())
                    .sum::<f64>()
            };
            assert_eq!(of("payload"), 10_000.0, "{protocol} {operation}");
            let there = fact(run, "packets_there");
            // RoCE: a path MTU of 1024. TCP: segments of 1448 bytes, with 1428 or 1424 of payload.
            assert_eq!(there, if protocol == "iWARP" { 8.0 } else { 10.0 });
            let all = there + fact(run, "packets_back");
            match protocol {
                "InfiniBand" => {
                    assert_eq!((of("LRH"), of("VCRC"), of("BTH")), (8.0 * all, 2.0 * all, 12.0 * all))
                }
                "RoCE v1" => assert_eq!((of("GRH"), of("UDP"), of("BTH")), (40.0 * all, 0.0, 12.0 * all)),
                "RoCE v2" => {
                    assert_eq!((of("IPv4"), of("UDP"), of("BTH")), (20.0 * all, 8.0 * all, 12.0 * all))
                }
                _ => {
                    let header = if operation == "WRITE" { 14.0 } else { 18.0 };
                    assert_eq!((of("TCP"), of("DDP, RDMAP")), (32.0 * all, header * there));
                }
            }
            // The fields cover the whole first packet.
            let block = &run["blocks"][1];
            let fields = block["fields"].as_array().expect("fields");
            let mut bit = 0;
            for field in fields {
                assert_eq!(field["bit"], bit, "{protocol} {operation}: {field}");
                bit += field["bits"].as_u64().expect("bits");
            }
            assert_eq!(bit as usize, 4 * block["hex"].as_str().expect("hex").len(), "{protocol} {operation}");
        }
    }
}

#[test]
fn nvmeof_moves_blocks_with_specified_packets() {
    let report = data("nvmeof --kb 16 --mtu 1500");
    for operation in ["read", "write"] {
        let rdma = run_of(&report, &["RDMA", operation]);
        assert_eq!(rdma["facts"]["data_is_whole"]["value"], true);
        assert_eq!(fact(rdma, "copied_bytes"), 0.0);
        let ladder = rdma["blocks"][0]["steps"].as_array().expect("steps");
        let count = |label: &str| {
            ladder.iter().filter(|step| step["label"].as_str().is_some_and(|l| l.starts_with(label))).count()
        };
        assert_eq!(count("SEND_ONLY"), 2, "a command and a response");
        let data = if operation == "read" { count("WRITE_") } else { count("READ_RESPONSE") };
        assert_eq!((data, count("READ_REQUEST")), (16, usize::from(operation == "write")));
        let tcp = run_of(&report, &["TCP", operation]);
        assert_eq!(fact(tcp, "copied_bytes"), 16_384.0);
        assert_eq!(fact(tcp, "round_trips"), fact(rdma, "round_trips"));
    }
    let short = data("nvmeof --kb 4 --in-capsule 4096");
    assert_eq!(fact(run_of(&short, &["TCP", "write"]), "pdus"), 2.0);
}
