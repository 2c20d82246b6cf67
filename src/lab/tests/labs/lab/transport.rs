//! Labs about a single queue pair.

use std::fs;

use roxie::frame::Frame;
use roxie::wire::{Icrc, parse};
use roxie_lab_theory::layout::fields;

use crate::lab::{data, fact, run_of, text};

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hex")).collect()
}

#[test]
fn fields_cover_frame_without_gap_or_overlap() {
    let opcodes = [
        "RC_SEND_ONLY_IMM",
        "RC_FETCH_ADD",
        "RC_ACKNOWLEDGE",
        "RC_ATOMIC_ACKNOWLEDGE",
        "RC_FLUSH",
        "UD_SEND_ONLY",
        "CNP",
    ];
    for opcode in opcodes {
        let report = data(&format!("frame --opcode {opcode} --payload 5 --vlan 7"));
        for run in report["runs"].as_array().expect("runs") {
            let block = &run["blocks"][1];
            let frame = bytes(block["hex"].as_str().expect("hex"));
            let mut bit = 0;
            for field in block["fields"].as_array().expect("fields") {
                assert_eq!(field["bit"], bit, "{opcode}: {field}");
                bit += field["bits"].as_u64().expect("bits");
            }
            assert_eq!(bit, 8 * frame.len() as u64, "{opcode}");
            let whole = Frame::whole(&frame);
            let packet = parse(&whole).expect("a packet");
            assert_eq!(
                (packet.bth.opcode.to_string(), packet.check_icrc(&whole)),
                (opcode.to_owned(), Icrc::Ok)
            );
        }
    }
}

#[test]
fn fields_agree_with_the_parser() {
    let report = data(
        "frame --psn 77 --qp 0x123 --dscp 26 --ecn 1 --vlan 9 --priority 4".replace("0x123", "291").as_str(),
    );
    for (name, value) in [
        ("PSN", "77"),
        ("destination QP", "0x000123"),
        ("DSCP", "26"),
        ("ECN", "1 ECT(1)"),
        ("VID", "9"),
        ("PCP", "4"),
    ] {
        let fields = report["runs"][0]["blocks"][1]["fields"].as_array().expect("fields").iter();
        let rows: Vec<_> =
            fields.filter(|field| field["name"] == name).map(|field| &field["value"]).collect();
        assert_eq!(rows, [value], "{name}");
    }
}

#[test]
fn hex_input_decodes_a_given_frame() {
    let report = data("frame --opcode RC_SEND_ONLY --payload 3");
    let hex = report["runs"][0]["blocks"][1]["hex"].as_str().expect("hex");
    let back = data(&format!("frame --hex {hex}"));
    assert_eq!(back["runs"][0]["blocks"], report["runs"][0]["blocks"]);
    // One flipped bit of the payload fails the ICRC check.
    let mut other = bytes(hex);
    other[54] ^= 1;
    let layout = fields(&other).expect("it parses");
    assert!(matches!(layout.icrc, Icrc::Bad { .. }));
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("x.pcap");
    let frame = bytes(hex);
    let mut pcap = vec![0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 1, 0, 0, 0];
    for _ in 0..2 {
        pcap.extend([0; 8]);
        pcap.extend([(frame.len() as u32).to_le_bytes(), (frame.len() as u32).to_le_bytes()].concat());
        pcap.extend(&frame);
    }
    fs::write(&file, pcap).expect("a capture");
    let of_capture = data(&format!("frame --capture {} --number 2", file.display()));
    assert_eq!(of_capture["runs"][0]["blocks"], report["runs"][0]["blocks"]);
    crate::lab::refused(
        &format!("frame --capture {} --number 3", file.display()),
        1,
        &["it has 2 frames, no frame 3"],
    );
}

#[test]
fn flipped_bits_are_counted_by_icrc_coverage() {
    for run in data("frame")["runs"].as_array().expect("runs") {
        let [unread, icrc, unnoticed] =
            ["flips_refused_unread", "flips_refused_by_icrc", "flips_unnoticed"].map(|name| fact(run, name));
        assert_eq!(unread + icrc + unnoticed, 8.0 * fact(run, "frame_bytes"));
        // The ICRC covers at least the payload and itself.
        assert!(icrc >= 8.0 * (32.0 + 4.0));
        let covered: u64 = run["blocks"][1]["fields"]
            .as_array()
            .expect("fields")
            .iter()
            .filter(|field| field["uncovered"] != true)
            .map(|field| field["bits"].as_u64().expect("bits"))
            .sum();
        // Unnoticed flips are only in fields that the ICRC does not cover.
        let unnoticed_fields = run["blocks"][2]["rows"].as_array().expect("rows");
        let names: Vec<&str> = unnoticed_fields.iter().filter_map(|row| row[0].as_str()).collect();
        for field in run["blocks"][1]["fields"].as_array().expect("fields") {
            let name = format!(
                "{} {}",
                field["header"].as_str().unwrap_or(""),
                field["name"].as_str().unwrap_or("")
            );
            assert!(
                field["uncovered"] == true || name == "BTH reserved" || !names.contains(&&name[..]),
                "{name}"
            );
        }
        assert!(unnoticed <= 8.0 * fact(run, "frame_bytes") - covered as f64);
    }
}

#[test]
fn lost_packet_costs_the_rest_or_timer() {
    let report = data("go-back-n --packets 6");
    let of = |lost: &str, name: &str| fact(run_of(&report, &[lost, "go-back-N"]), name);
    for lost in 1..=5 {
        let name = lost.to_string();
        assert_eq!(
            (of(&name, "sent_again"), of(&name, "naks"), of(&name, "timeouts")),
            (7.0 - f64::from(lost), 1.0, 0.0),
            "{lost}"
        );
        assert_eq!(of(&name, "dropped_out_of_sequence"), 6.0 - f64::from(lost));
    }
    assert_eq!((of("6", "naks"), of("6", "timeouts")), (0.0, 1.0));
    assert!(of("6", "completed_us") >= of("6", "timeout_us"));
    assert_eq!((of("none", "packets_sent"), of("none", "sent_again")), (6.0, 0.0));
    assert!(
        report["runs"]
            .as_array()
            .expect("runs")
            .iter()
            .all(|run| run["facts"]["data_is_whole"]["value"] == true)
    );
    let drawn = text("go-back-n --lose 3");
    assert!(
        drawn.contains("WRITE_MIDDLE psn 2 ----X") && drawn.contains("NAK_PSN_SEQUENCE psn 2"),
        "{drawn}"
    );
}

#[test]
fn selective_repeat_sends_one_packet_for_each_loss() {
    let report = data("go-back-n --packets 6");
    let of = |lost: &str, name: &str| fact(run_of(&report, &[lost, "selective repeat"]), name);
    for lost in 2..=5 {
        let name = lost.to_string();
        assert_eq!((of(&name, "sent_again"), of(&name, "naks"), of(&name, "timeouts")), (1.0, 0.0, 0.0));
        assert_eq!(of(&name, "kept"), 6.0 - f64::from(lost));
    }
    // Without the first packet, nothing tells where the others go.
    assert_eq!((of("1", "sent_again"), of("1", "kept")), (6.0, 0.0));
    assert_eq!((of("6", "timeouts"), of("none", "sent_again")), (0.0, 0.0));
}

#[test]
fn work_request_stages_are_in_order() {
    let local = data("doorbell");
    for run in local["runs"].as_array().expect("runs") {
        let spans = run["blocks"][0]["spans"].as_array().expect("spans");
        assert_eq!(spans.len(), 9, "{spans:#?}");
        let from: Vec<f64> = spans.iter().filter_map(|span| span["from"].as_f64()).collect();
        assert!(from.is_sorted(), "{from:?}");
        assert_eq!(spans[8]["to"].as_f64(), Some(fact(run, "completed_us")));
    }
    let remote = data("doorbell --metres 10000");
    // Four cables of 10 km take 200 us.
    let more = fact(&remote["runs"][0], "completed_us") - fact(&local["runs"][0], "completed_us");
    assert!((199.5..=200.5).contains(&more), "{more} us");
    assert_eq!(fact(&data("doorbell --operation write --bytes 65536")["runs"][0], "packets_there"), 64.0);
}

#[test]
fn short_rnr_timer_causes_a_storm() {
    let report = data("rnr --messages 4 --late 1500");
    for run in report["runs"].as_array().expect("runs") {
        let [timer, naks, again, late] =
            ["timer_us", "rnr_naks", "sent_again", "too_late_us"].map(|name| fact(run, name));
        if run["choice"][1]["value"] == "3" && 4.0 * timer < 1500.0 {
            assert_eq!(fact(run, "delivered"), 0.0, "{run}");
            assert_eq!((naks, again), (4.0, 12.0), "three waits, then the end");
            assert!(
                run["facts"]["status"]["value"].as_str().is_some_and(|status| status.contains("RNR retries"))
            );
        } else {
            assert_eq!(fact(run, "delivered"), 4.0);
            assert_eq!(again, 4.0 * naks, "each wait costs all four packets");
            assert!(
                naks <= 1500.0 / timer + 1.0 && naks >= (1500.0 / (timer + 5.0)).floor().max(1.0),
                "{run}"
            );
            assert!(late <= timer + 5.0, "{run}");
        }
    }
    // A storm is not drawn to its end, and the ladder says so.
    let storm = &run_of(&report, &["1 (10 us)", "7 (for ever)"])["blocks"][0];
    assert!(storm["steps"].as_array().is_some_and(|steps| steps.len() == 80), "{storm}");
    assert!(storm["summary"].as_str().is_some_and(|summary| summary.contains("the first 80 of")));
    let ready = data("rnr --late 0");
    assert_eq!((fact(&ready["runs"][0], "rnr_naks"), fact(&ready["runs"][0], "delivered")), (0.0, 4.0));
}

#[test]
fn read_resumes_at_the_lost_response() {
    let report = data("read --packets 6");
    let of = |lost: &str, name: &str| fact(run_of(&report, &[lost]), name);
    for lost in 1..=6 {
        let name = lost.to_string();
        let rate = 1024.0 * f64::from(lost - 1);
        assert_eq!((of(&name, "old_bytes"), of(&name, "new_bytes")), (rate, 6144.0 - rate), "{lost}");
        assert_eq!(of(&name, "responses_sent"), 6.0 + f64::from(7 - lost));
        assert_eq!(of(&name, "timeouts"), f64::from(u8::from(lost == 6)));
    }
    assert_eq!((of("none", "old_bytes"), of("none", "requests_sent")), (6144.0, 1.0));
    assert_eq!((of("request", "new_bytes"), of("request", "timeouts")), (6144.0, 1.0));
    crate::lab::refused("read --packets 4 --lose 5", 2, &["there are 4 responses"]);
}

#[test]
fn additions_are_executed_once() {
    for report in [data("atomic"), data("atomic --adds 8 --depth 2 --lose 5")] {
        for run in report["runs"].as_array().expect("runs") {
            let lost_all = run["choice"][0]["value"] == "all";
            // A requester without responses sends no more than may be outstanding.
            let executed =
                if lost_all { fact(run, "depth").min(fact(run, "adds")) } else { fact(run, "adds") };
            assert_eq!(fact(run, "counter"), executed, "{}", run["choice"]);
            assert_eq!(fact(run, "completed_well"), if lost_all { 0.0 } else { fact(run, "adds") });
            assert_eq!(fact(run, "requests_received"), fact(run, "counter") + fact(run, "duplicates"));
        }
        assert!(fact(run_of(&report, &["answer 1"]), "duplicates") > 0.0);
    }
}
