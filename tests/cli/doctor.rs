//! `roxie doctor` on an interface in a network namespace.

use std::fs;
use std::net::UdpSocket;

use roxie::netdev::Links;
use serde_json::Value;

use crate::network::Net;
use crate::{Finished, Running, roxie, run};

/// Runs `roxie doctor` on `left`. Returns the findings that do not depend on this machine.
fn examine(net: &Net, library: &str) -> (Finished, Value) {
    let done = net.a.run(|| {
        let mut command = roxie("doctor --dev left --json");
        command.env("ROXIE_LIB", library);
        Running::start(command).finish()
    });
    let done = done.unwrap();
    let report = done.json().remove(0);
    (done, report)
}

fn ids(said: &Value) -> Vec<&str> {
    let findings = said["findings"].as_array().unwrap();
    findings.iter().map(|finding| finding["id"].as_str().unwrap()).collect()
}

#[test]
fn each_remedy_removes_its_finding() {
    let Some(net) = Net::new("doctor") else { return };
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("libibverbs.so.1"), "").unwrap();
    let library = folder.path().to_str().unwrap();
    let mut left = Links::open_in(&net.a).unwrap();
    let mut right = Links::open_in(&net.b).unwrap();

    let (done, report) = examine(&net, library);
    assert_eq!((done.status.code(), report["verdict"].as_str()), (Some(1), Some("hurts")), "{done:#?}");
    assert!(ids(&report).contains(&"narrow-mtu") && !ids(&report).contains(&"port-taken"), "{report:#}");
    assert_eq!((&report["facts"]["driver"], &report["facts"]["mtu"]), (&"veth".into(), &1500.into()));

    right.set_mtu("right", 4184).unwrap();
    left.set_mtu("left", 4184).unwrap();
    let taken = net.a.run(|| UdpSocket::bind("0.0.0.0:4791")).unwrap().unwrap();
    let (_, report) = examine(&net, library);
    let ids_now = ids(&report);
    assert!(!ids_now.contains(&"narrow-mtu"), "{report:#}");
    assert!(ids_now.contains(&"port-taken") || ids_now.contains(&"no-port"), "{report:#}");
    drop(taken);

    right.set_up("right", false).unwrap();
    let (_, report) = examine(&net, library);
    assert!(ids(&report).contains(&"no-carrier") && !ids(&report).contains(&"port-taken"), "{report:#}");
    left.set_up("left", false).unwrap();
    let (done, report) = examine(&net, library);
    assert_eq!((done.status.code(), ids(&report)[0]), (Some(3), "interface-down"), "{done:#?}");
    assert!(!ids(&report).contains(&"no-carrier"), "{report:#}");

    let words = net.left("doctor --dev left");
    assert!(words.stdout.contains("do:     ip link set dev left up"), "{words:#?}");
    net.is_clean();
}

#[test]
fn missing_interface_exits_3_and_wrong_usage_2() {
    run("doctor --dev nosuch0").failed(3, &["roxie doctor: no interface named \"nosuch0\""]);
    run("doctor --deep").failed(2, &["--deep"]);
}
