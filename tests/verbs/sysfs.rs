//! Files in `/sys/class/infiniband` under `roxie run`, as interfaces change and programs run.

use std::fs::{self, File};
use std::io::{Read, Seek};
use std::path::PathBuf;
use std::process::Command;

use roxie::netdev::Links;
use serde_json::Value;

use super::{NEAR, Running, Site, folder, launcher, ports, skip};

/// Starts an idle program under `roxie run`: its launcher maintains the files.
fn observer(site: &Site, port: &str) -> Running {
    let mut observer = site.local(port, "sleep 1000");
    observer.wait_until("with files", |pid| read(pid, "state").is_some());
    observer
}

/// Returns the path of the port's file, in a launcher's mount namespace.
fn file(launcher: u32, path: &str) -> PathBuf {
    format!("/proc/{launcher}/root/sys/class/infiniband/roxie0/ports/1/{path}").into()
}

fn read(launcher: u32, path: &str) -> Option<String> {
    Some(fs::read_to_string(file(launcher, path)).ok()?.trim_end().to_owned())
}

/// Returns true if the file is there and fails with `EINVAL` when it is read, as a kernel's attributes of an empty GID.
fn is_invalid(launcher: u32, path: &str) -> bool {
    fs::read(file(launcher, path)).is_err_and(|error| error.raw_os_error() == Some(libc::EINVAL))
}

fn count(launcher: u32, path: &str) -> u64 {
    read(launcher, path).and_then(|line| line.parse().ok()).unwrap_or_else(|| panic!("{path} is no counter"))
}

/// Returns the sum of a counter over the processes that `roxie show counters` lists.
fn shown(site: &Site, name: &str) -> u64 {
    let mut command = Command::new(folder().join("roxie"));
    command.args(["show", "counters", "--json"]);
    let shown = Running::start(&site.local, command).finish();
    let all: Value = serde_json::from_str(&shown.output).unwrap_or_else(|e| panic!("{e}: {shown:?}"));
    all["devices"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|device| device["counters"][name].as_u64())
        .sum()
}

#[test]
fn port_state_follows_the_link() {
    if skip("port_state_follows_the_link", &["sleep"]) {
        return;
    }
    let site = Site::new("fs-link");
    let mut observer = observer(&site, "udp");
    let mut links = Links::open_in(&site.local).unwrap();
    let mut open = File::open(file(observer.child.id(), "state")).unwrap();
    for (up, state, physical) in [(false, "1: DOWN", "3: Disabled"), (true, "4: ACTIVE", "5: LinkUp")] {
        links.set_up("left", up).unwrap();
        observer.wait_until(state, |pid| {
            read(pid, "state").as_deref() == Some(state)
                && read(pid, "phys_state").as_deref() == Some(physical)
        });
        let mut line = String::new();
        open.rewind().unwrap();
        open.read_to_string(&mut line).unwrap();
        assert_eq!(line, format!("{state}\n"), "an open descriptor");
    }
    observer.wait_until("counted", |pid| read(pid, "counters/link_downed").as_deref() == Some("1"));
}

#[test]
fn gids_follow_the_addresses() {
    if skip("gids_follow_the_addresses", &["sleep"]) {
        return;
    }
    let site = Site::new("fs-gids");
    let mut observer = observer(&site, "udp");
    let mut links = Links::open_in(&site.local).unwrap();
    let address = "192.0.2.77/24".parse().unwrap();
    let gid = "0000:0000:0000:0000:0000:ffff:c000:024d";
    let index = |pid: u32| (0..32).find(|index| read(pid, &format!("gids/{index}")).as_deref() == Some(gid));
    links.add_address("left", address).unwrap();
    observer.wait_until("with the address", |pid| index(pid).is_some());
    let index = index(observer.child.id()).unwrap();
    let attribute = |kind: &str| format!("gid_attrs/{kind}/{index}");
    let pid = observer.child.id();
    assert_eq!(
        (read(pid, &attribute("types")), read(pid, &attribute("ndevs"))),
        (Some("RoCE v2".into()), Some("left".into()))
    );
    let mut command = Command::new(folder().join("roxie"));
    command.args(["show", "gids", "--dev", "left", "--json"]);
    let listed = Running::start(&site.local, command).finish();
    let listed: Value = serde_json::from_str(&listed.output).unwrap();
    assert!(
        listed["gids"].as_array().expect("a list").iter().any(|entry| entry["address"] == "192.0.2.77"),
        "{listed:?}"
    );
    links.delete_address("left", address).unwrap();
    observer.wait_until("without the address", |pid| {
        read(pid, &format!("gids/{index}")).is_some_and(|gid| gid.ends_with(":0000:0000"))
            && is_invalid(pid, &attribute("types"))
            && is_invalid(pid, &attribute("ndevs"))
    });
}

/// A server of `rping` stays after its client has ended, so that both sources can be read at rest.
fn counters_are_the_sum_over_processes(port: &str, site: &Site) {
    let mut observer = observer(site, port);
    let mut server = Running::start(
        &site.local,
        launcher(&["--dev", "left", "--port", port], &format!("rping -s -P -a {NEAR} -C 20 -S 2000")),
    );
    server.wait_until("served", |_| {
        shown(site, "sent_pkts") > 0 || {
            let client = format!("rping -c -a {NEAR} -C 20 -S 2000");
            site.remote(port, &client).finish().status.success()
        }
    });
    let pairs = [
        ("hw_counters/sent_pkts", "sent_pkts", 1),
        ("hw_counters/rcvd_bytes", "rcvd_bytes", 1),
        ("counters/port_xmit_packets", "sent_pkts", 1),
        ("counters/port_xmit_data", "sent_bytes", 4),
        ("counters/port_rcv_data", "rcvd_bytes", 4),
    ];
    observer.wait_until("as `roxie show counters` says", |pid| {
        pairs.iter().all(|(path, name, unit)| {
            let value = count(pid, path);
            value > 0 && value == shown(site, name) / unit
        })
    });
    let before = count(observer.child.id(), "hw_counters/sent_pkts");
    drop(server);
    observer.wait_until("alone", |_| shown(site, "sent_pkts") == 0 || port == "nic");
    assert!(count(observer.child.id(), "hw_counters/sent_pkts") >= before, "a counter went back");
}

#[test]
fn counters_agree_with_show_counters() {
    if skip("counters_agree_with_show_counters", &["sleep", "rping"]) {
        return;
    }
    for port in ports() {
        counters_are_the_sum_over_processes(port, &Site::new("fs-count"));
    }
}

#[test]
fn clients_of_nic_show_its_counters() {
    if skip("clients_of_nic_show_its_counters", &["sleep", "rping"]) {
        return;
    }
    let (site, _nics) = Site::with_nics("fs-nic", &["--port", "udp"]);
    counters_are_the_sum_over_processes("nic", &site);
}
