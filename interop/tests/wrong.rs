//! Roxie against its column of the table of wrong packets, and the page against the table.

#![deny(unsafe_code)]

use std::net::{IpAddr, Ipv4Addr};

use interop::end::{End, Local, Setup};
use interop::exec::wrong::{self, RULES};
use interop::guest::host_lacks_root;
use interop::local::{self, Site};
use interop::network::Namespace;
use interop::rows::{Family, Fault, PortKind, WRONG};
use interop::wire::Wire;

#[test]
fn the_page_is_the_table() {
    let page = include_str!("../wrong.md");
    assert!(page == wrong::page(), "wrong.md differs: `cargo run -p interop -- wrong > interop/wrong.md`");
    assert_eq!(RULES.map(|rule| rule.case), WRONG);
}

#[test]
fn roxie_takes_wrong_packets_as_the_table_says() {
    if let Some(lack) = host_lacks_root() {
        println!("SKIP wrong: {lack}");
        return;
    }
    let namespace = Namespace::create().expect("a namespace");
    let here: [IpAddr; 1] = [Ipv4Addr::new(127, 0, 0, 1).into()];
    let site = Site { namespace: Some(&namespace), interface: "lo", addresses: &here };
    let mut roxie: Box<dyn Local> = local::open(&site);
    let setup = Setup { port: PortKind::Udp, fault: Fault::None, seed: 7, capture: None };
    roxie.prepare(&setup).expect("the port opens");
    let script = namespace.within(|| Wire::open(Ipv4Addr::new(127, 0, 0, 2).into()));
    let mut script = script.expect("the namespace").expect("the script's socket");
    let mut failures = Vec::new();
    for rule in &RULES {
        let end: &mut dyn End = roxie.as_mut();
        if let Err(failure) = wrong::run(rule.case, Family::V4, &mut script, end, &rule.roxie) {
            failures.push(format!("{}: {failure}", rule.case));
        }
        roxie.reset().expect("a reset");
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
