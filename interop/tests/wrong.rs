//! Roxie against its column of the tables of wrong packets, and the page against the tables.

#![deny(unsafe_code)]

use std::net::{IpAddr, Ipv4Addr};

use interop::end::{End, Local, Setup};
use interop::exec::{odd, table, wrong};
use interop::guest::host_lacks_root;
use interop::local::{self, Site};
use interop::network::Namespace;
use interop::rows::{Family, Fault, ODD, PortKind, WRONG};
use interop::wire::Wire;

#[test]
fn the_page_is_the_table() {
    let page = include_str!("../wrong.md");
    assert!(page == table::page(), "wrong.md differs: `cargo run -p interop -- wrong > interop/wrong.md`");
    assert_eq!(wrong::RULES.map(|rule| rule.case), WRONG);
    assert_eq!(odd::RULES.map(|rule| rule.case), ODD);
}

#[test]
fn roxie_takes_wrong_packets_and_answers_as_the_tables_say() {
    if let Some(lack) = host_lacks_root() {
        println!("SKIP wrong: {lack}");
        return;
    }
    let namespace = Namespace::create().expect("a namespace");
    let here: [IpAddr; 1] = [Ipv4Addr::new(127, 0, 0, 1).into()];
    let site = Site { namespace: Some(&namespace), interface: "lo", addresses: &here, rxe_flush_icrc: false };
    let mut roxie: Box<dyn Local> = local::open(&site);
    let setup = Setup { port: PortKind::Udp, fault: Fault::None, seed: 7, capture: None };
    roxie.prepare(&setup).expect("the port opens");
    let script = namespace.within(|| Wire::open(Ipv4Addr::new(127, 0, 0, 2).into(), false));
    let mut script = script.expect("the namespace").expect("the script's socket");
    let mut failures = Vec::new();
    for rule in &wrong::RULES {
        let end: &mut dyn End = roxie.as_mut();
        if let Err(failure) = wrong::run(rule.case, Family::V4, &mut script, end, &rule.roxie) {
            failures.push(format!("wrong/{}: {failure}", rule.case));
        }
        roxie.reset().expect("a reset");
    }
    for rule in &odd::RULES {
        let end: &mut dyn End = roxie.as_mut();
        if let Err(failure) = odd::run(rule.case, Family::V4, &mut script, end, &rule.roxie) {
            failures.push(format!("odd/{}: {failure}", rule.case));
        }
        roxie.reset().expect("a reset");
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
