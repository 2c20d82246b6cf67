//! Programs that wait in all the ways in which programs wait: each has all its events, in whatever order things happen.

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
