//! Programs that wait in all the ways in which programs wait: each has all its events, in whatever order things happen.

use super::site::{descendants, nic};
use super::{PORTS, Site, compiled, skip};

/// By which the two ends exchange addresses.
const TCP_PORT: u16 = 19777;
/// Processor time, in us, that a second of waiting may take: a hundredth, were it not for what else runs.
const IDLE_US: f64 = 100_000.0;

fn each_is_answered(name: &str, tag: &str, modes: &[(&str, u32)]) {
    if skip(name, &["cc"]) {
        return;
    }
    let (_place, program) = compiled("waits", &["-O2", "-libverbs", "-lpthread"]);
    let site = Site::new(tag);
    for port in PORTS {
        for (mode, rounds) in modes {
            let program = format!("{} -n {rounds} {mode}", program.display());
            let (client, _) = site.play(port, &program, TCP_PORT);
            assert!(client.contains(&format!("{mode} median")), "{port}: {client}");
        }
    }
}

#[test]
fn who_waits_on_the_channel_is_answered() {
    let modes = [("epoll", 2000), ("event", 2000), ("poll", 1000), ("select", 300), ("uring", 300)];
    each_is_answered("who_waits_on_the_channel_is_answered", "waits-channel", &modes);
}

#[test]
fn who_does_not_call_is_served_all_the_same() {
    let name = "who_does_not_call_is_served_all_the_same";
    each_is_answered(name, "waits-silent", &[("memory", 300), ("late", 30)]);
}

#[test]
fn who_polls_from_several_threads_is_answered() {
    let name = "who_polls_from_several_threads_is_answered";
    each_is_answered(name, "waits-threads", &[("spin", 1000), ("spin2", 300)]);
}

#[test]
fn who_waits_for_nothing_takes_no_processor_time() {
    let name = "who_waits_for_nothing_takes_no_processor_time";
    if skip(name, &["cc"]) {
        return;
    }
    let (_place, program) = compiled("waits", &["-O2", "-libverbs", "-lpthread"]);
    let site = Site::new("waits-idle");
    for port in PORTS {
        let (client, server) = site.play(port, &format!("{} -n 1000 idle", program.display()), TCP_PORT);
        for said in [client, server] {
            let used = said.split_whitespace().nth(3).and_then(|word| word.parse::<f64>().ok());
            assert!(used.is_some_and(|used| used < IDLE_US), "{port}: {said}");
        }
    }
}

/// A huge page: what `khugepaged` gathers.
const HUGE: u64 = 2 << 20;

/// Private memory of a process that `khugepaged` may gather into huge pages where these are on for all, as `smaps` has it.
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

/// Whoever touches memory that is being gathered waits for it, for most of a second beside a program that spins.
#[test]
fn no_table_is_gathered_into_huge_pages_behind_the_nics_back() {
    let name = "no_table_is_gathered_into_huge_pages_behind_the_nics_back";
    if skip(name, &["ib_write_lat"]) {
        return;
    }
    let site = Site::new("waits-huge");
    let server = format!("ib_write_lat -F -x 1 -p {TCP_PORT}");
    for port in PORTS {
        let mut server = site.near(port, &server);
        server.wait_until_it_listens(TCP_PORT);
        // The launcher itself has no NIC.
        let all: Vec<String> = descendants(server.child.id()).into_iter().flat_map(may_be_gathered).collect();
        assert!(all.is_empty(), "{port}: {all:#?}");
    }
    let nic = nic(&site.far, "right", &["--port", "xdp"]);
    let all = may_be_gathered(nic.child.id());
    assert!(all.is_empty(), "roxie nic: {all:#?}");
}
