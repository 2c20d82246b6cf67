//! Programs that wait in every way: each gets all its events, whatever the order.

use super::site::{descendants, nic};
use super::{Site, compiled, ports, skip};

/// TCP port by which the two ends exchange addresses.
const TCP_PORT: u16 = 19777;
/// Most processor time in us for a second of waiting: on an idle machine it is a tenth of that.
const IDLE_US: f64 = 100_000.0;

fn each_is_answered(name: &str, tag: &str, modes: &[(&str, u32)]) {
    if skip(name, &["cc"]) {
        return;
    }
    let (_place, program) = compiled("waits", &["-O2", "-libverbs", "-lpthread"]);
    let site = Site::new(tag);
    for port in ports() {
        for (mode, rounds) in modes {
            let program = format!("{} -n {rounds} {mode}", program.display());
            let (client, _) = site.play(port, &program, TCP_PORT);
            assert!(client.contains(&format!("{mode} median")), "{port}: {client}");
        }
    }
}

#[test]
fn channel_waiters_get_their_events() {
    let modes = [("epoll", 2000), ("event", 2000), ("poll", 1000), ("select", 300), ("uring", 300)];
    each_is_answered("channel_waiters_get_their_events", "waits-channel", &modes);
}

#[test]
fn programs_without_calls_are_served() {
    let name = "programs_without_calls_are_served";
    each_is_answered(name, "waits-silent", &[("memory", 300), ("late", 30)]);
}

#[test]
fn polling_threads_get_their_events() {
    let name = "polling_threads_get_their_events";
    each_is_answered(name, "waits-threads", &[("spin", 1000), ("spin2", 300)]);
}

#[test]
fn idle_waiter_takes_no_processor_time() {
    let name = "idle_waiter_takes_no_processor_time";
    if skip(name, &["cc"]) {
        return;
    }
    let (_place, program) = compiled("waits", &["-O2", "-libverbs", "-lpthread"]);
    let site = Site::new("waits-idle");
    for port in ports() {
        let (client, server) = site.play(port, &format!("{} -n 1000 idle", program.display()), TCP_PORT);
        for said in [client, server] {
            let used = said.split_whitespace().nth(3).and_then(|word| word.parse::<f64>().ok());
            assert!(used.is_some_and(|used| used < IDLE_US), "{port}: {said}");
        }
    }
}

/// Size of a huge page, as `khugepaged` makes them.
const HUGE: u64 = 2 << 20;

/// Returns private memory of a process that `khugepaged` may collapse into huge pages if these are enabled for all, by
/// `smaps`.
fn may_be_gathered(pid: u32) -> Vec<String> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap();
    let mut mappings: Vec<(String, bool)> = Vec::new();
    for line in maps.lines() {
        let mut words = line.split_whitespace();
        let range = words.next().and_then(|word| word.split_once('-'));
        let bounds = range.map(|(start, end)| [start, end].map(|word| u64::from_str_radix(word, 16)));
        if let Some([Ok(start), Ok(end)]) = bounds {
            let is_private =
                words.next().is_some_and(|modes| modes.starts_with("rw") && modes.ends_with('p'));
            let is_large = start.next_multiple_of(HUGE) + HUGE <= end;
            mappings.push((
                line.to_owned(),
                is_private && is_large && words.nth(2).is_some_and(|inode| inode == "0"),
            ));
        } else if line.starts_with("VmFlags:") && words.any(|flag| flag == "nh") {
            mappings.last_mut().expect("flags of a mapping").1 = false;
        }
    }
    mappings.into_iter().filter(|(_, may_be)| *may_be).map(|(line, _)| line).collect()
}

/// A thread that accesses memory during a collapse waits for it, for most of a second beside a spinning program.
#[test]
fn nic_tables_are_not_collapsed() {
    let name = "nic_tables_are_not_collapsed";
    if skip(name, &["ib_write_lat"]) {
        return;
    }
    let site = Site::new("waits-huge");
    let server = format!("ib_write_lat -F -x 1 -p {TCP_PORT}");
    for port in ports() {
        let mut server = site.local(port, &server);
        server.wait_until_it_listens(TCP_PORT);
        // The launcher itself has no NIC.
        let all: Vec<String> = descendants(server.child.id()).into_iter().flat_map(may_be_gathered).collect();
        assert!(all.is_empty(), "{port}: {all:#?}");
    }
    let nic = nic(&site.remote, "right", &["--port", "xdp"]);
    let all = may_be_gathered(nic.child.id());
    assert!(all.is_empty(), "roxie nic: {all:#?}");
}
