//! Checks Roxie against the tables of invalid packets, and the page against the tables.

use std::net::{IpAddr, Ipv4Addr};

use interop::end::{End, Local, Setup, State};
use interop::exec::{Failure, odd, table, wrong};
use interop::guest::host_lacks_root;
use interop::local::{self, Site};
use interop::network::Namespace;
use interop::rows::{Family, Impairment, Network, ODD, PortKind, WRONG};
use interop::wire::Wire;

#[test]
fn the_page_is_the_table() {
    let page = include_str!("../../wrong.md");
    assert!(page == table::page(), "wrong.md differs: `cargo run -p interop -- wrong > interop/wrong.md`");
    assert_eq!(wrong::RULES.map(|rule| rule.case), WRONG);
    assert_eq!(odd::RULES.map(|rule| rule.case), ODD);
}

#[test]
fn roxie_reacts_to_invalid_packets_as_tabled() {
    if let Some(lack) = host_lacks_root() {
        println!("SKIP wrong: {lack}");
        return;
    }
    let namespace = Namespace::create().expect("a namespace");
    let here: [IpAddr; 1] = [Ipv4Addr::new(127, 0, 0, 1).into()];
    let site = Site { namespace: Some(&namespace), interface: "lo", addresses: &here, rxe_flush_icrc: false };
    let mut roxie: Box<dyn Local> = local::open(&site);
    let setup = Setup {
        port: PortKind::Udp,
        fault: Impairment::None,
        seed: 7,
        capture: None,
        control: None,
        network: Network::Plain,
        program_option: None,
    };
    roxie.prepare(&setup).expect("the port opens");
    let script = namespace.within(|| Wire::open(Ipv4Addr::new(127, 0, 0, 2).into(), false));
    let mut script = script.expect("the namespace").expect("the script's socket");
    let mut failures = Vec::new();
    let mut play =
        |name: String, is_silent: bool, run: &mut dyn FnMut(&mut dyn End) -> Result<(), Failure>| {
            let before = roxie.counters();
            if let Err(failure) = run(roxie.as_mut()) {
                failures.push(format!("{name}: {failure}"));
            }
            let after = roxie.counters();
            let of = |counters: &[(&str, u64)], counter: &str| {
                counters.iter().filter(|(name, _)| *name == counter).map(|(_, value)| value).sum::<u64>()
            };
            match SILENCES.iter().find(|(case, _)| *case == name) {
                Some((_, counter)) if of(&after, counter) == of(&before, counter) => {
                    failures.push(format!("{name}: {counter} was not raised: the packet did not arrive"));
                }
                None if is_silent => failures
                    .push(format!("{name}: no response, and no counter shows that the packet arrived")),
                _ => {}
            }
            roxie.reset().expect("a reset");
        };
    for rule in &wrong::RULES {
        play(format!("wrong/{}", rule.case), rule.roxie.answers.is_empty(), &mut |end| {
            wrong::run(rule.case, Family::V4, &mut script, end, &rule.roxie)
        });
    }
    for rule in &odd::RULES {
        let is_silent = rule.roxie.sends.is_empty() && rule.roxie.state != State::Err;
        play(format!("odd/{}", rule.case), is_silent, &mut |end| {
            odd::run(rule.case, Family::V4, &mut script, end, &rule.roxie)
        });
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Counter of each packet that gets no response: otherwise a script that sends nothing would pass.
const SILENCES: [(&str, &str); 15] = [
    ("wrong/ghost_ack", "ghost_acks"),
    ("wrong/unasked_read_response", "ghost_acks"),
    ("wrong/unknown_opcode", "rx_malformed"),
    ("wrong/other_service", "rx_wrong_service"),
    ("wrong/bad_version", "rx_malformed"),
    ("wrong/bad_pkey", "rx_bad_pkey"),
    ("wrong/bad_icrc", "rx_icrc_encapsulated"),
    ("wrong/unpadded_send", "rx_malformed"),
    ("wrong/notification", "rp_cnp_ignored"),
    ("odd/duplicate_ack", "duplicate_acks"),
    ("odd/ghost_ack", "ghost_acks"),
    ("odd/old_sequence_nak", "duplicate_acks"),
    ("odd/old_access_nak", "duplicate_acks"),
    ("odd/nak_ahead", "ghost_acks"),
    ("odd/unknown_nak", "ghost_acks"),
];
