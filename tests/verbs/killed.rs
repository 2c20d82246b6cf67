//! Programs that are killed at random moments, with requests of both ends outstanding: the other end is notified, and
//! nothing is left behind.
//!
//! `KILLS=200 cargo test -p roxie-cli --release --test verbs killed -- --nocapture` kills 200 programs; `make test`
//! fewer.

use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use roxie::netdev::{Interface, NetNs};

use super::{PORTS, Running, Site, skip};

/// TCP port by which the programs exchange addresses.
const TCP_PORT: u16 = 18515;
/// The two ends send all the time. A lost end is noticed after about 8 times 17 ms (local ACK timeout 12).
const PROGRAM: &str = "ib_write_bw -x 1 -F -b -s 20000 -u 12 -D 20";
/// Default number of kills.
const KILLS: usize = 12;
/// Most milliseconds until the kill, from the second program's start, or from the first data.
const WITHIN_MS: u64 = 400;
/// Bytes that show that data flows.
const FLOWS: u64 = 1 << 20;
/// Longest time until the survivor ends: the retries, and a busy machine's delay.
const TELLS_WITHIN: Duration = Duration::from_secs(30);
/// Status of completions with exhausted retries.
const RETRY_EXC: &str = "Failed status 12";

/// The program to kill, whether its launcher is killed as well, and when.
#[derive(Clone, Copy, Debug)]
struct Victim {
    client: bool,
    launcher_too: bool,
    /// True to wait for data before the kill.
    in_traffic: bool,
    after: Duration,
}

#[test]
fn other_end_notices_a_killed_program() {
    if skip("other_end_notices_a_killed_program", &["ib_write_bw"]) {
        return;
    }
    let kills = std::env::var("KILLS").map_or(KILLS, |text| text.parse().expect("KILLS=number"));
    let site = Site::new("killed");
    let (mut random, mut under_way) = (0x9e37_79b9_7f4a_7c15_u64, 0);
    for round in 0..kills {
        // xorshift64: the same moments each time, as far as the machine allows.
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let victim = Victim {
            client: random & 1 == 1,
            launcher_too: random & 2 == 2,
            // A third of the kills are at the start.
            in_traffic: round % 3 != 0,
            after: Duration::from_millis(random / 4 % WITHIN_MS),
        };
        let output = kill_one(&site, PORTS[round / 3 % PORTS.len()], victim);
        under_way += usize::from(output.contains(RETRY_EXC));
        for (namespace, interface) in [(&site.local, "left"), (&site.remote, "right")] {
            wait_until_free(namespace, interface);
        }
    }
    println!("{kills} kills, {under_way} with requests of the survivor outstanding");
    assert!(2 * under_way >= kills, "{under_way} of {kills} survivors had requests under way");
    for port in PORTS {
        site.play(port, "ib_write_bw -x 1 -F -n 100", TCP_PORT);
    }
}

/// Starts a pair, kills one of it, and returns the other's output. Asserts that both are gone at the end.
fn kill_one(site: &Site, port: &str, victim: Victim) -> String {
    let mut server = site.local(port, PROGRAM);
    server.wait_until_it_listens(TCP_PORT);
    let before = sent(&server, "left");
    let client = site.remote(port, &format!("{PROGRAM} {}", super::NEAR));
    while victim.in_traffic && sent(&server, "left") - before < FLOWS {
        assert!(Instant::now() < server.until, "{port}, {victim:?}: no data flows");
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(victim.after);
    let (dies, lives) = if victim.client { (client, server) } else { (server, client) };
    let launcher = dies.child.id();
    // A stopped launcher starts nothing while it is examined.
    signal(launcher, Signal::SIGSTOP);
    while runs(launcher) {
        std::thread::sleep(Duration::from_millis(1));
    }
    let program = program_of(launcher);
    if let Some(program) = program {
        signal(program, Signal::SIGKILL);
    }
    if program.is_none() || victim.launcher_too {
        signal(launcher, Signal::SIGKILL);
    }
    signal(launcher, Signal::SIGCONT);
    let start = Instant::now();
    let dead = dies.finish();
    assert!(!dead.status.success(), "{port}, {victim:?}: {dead:?}");
    let survivor = lives.finish();
    assert!(!survivor.status.success(), "{port}, {victim:?}: {survivor:?}");
    let took = start.elapsed();
    assert!(took < TELLS_WITHIN, "{took:?}, {port}, {victim:?}: {survivor:?}");
    survivor.output
}

/// Returns the bytes that an interface in a program's namespace has sent.
fn sent(program: &Running, interface: &str) -> u64 {
    let table = std::fs::read_to_string(format!("/proc/{}/net/dev", program.child.id())).unwrap_or_default();
    let line = table.lines().find_map(|line| line.trim().strip_prefix(interface)?.strip_prefix(':'));
    line.and_then(|line| line.split_whitespace().nth(8)?.parse().ok()).unwrap_or(0)
}

/// Returns the program that a launcher has started, if it has.
fn program_of(launcher: u32) -> Option<u32> {
    let children = std::fs::read_to_string(format!("/proc/{launcher}/task/{launcher}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok()
}

/// True until a process is stopped or has ended.
fn runs(process: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // The state follows the name, which is in parentheses.
    stat.rsplit(')')
        .next()
        .and_then(|rest| rest.trim().chars().next())
        .is_some_and(|state| !"TZX".contains(state))
}

fn signal(process: u32, signal: Signal) {
    // The process may have ended by itself meanwhile.
    let _ = kill(Pid::from_raw(process.cast_signed()), signal);
}

/// Waits until the kernel has released what a dead process held.
fn wait_until_free(namespace: &NetNs, interface: &str) {
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        let held = namespace.run(|| Interface::by_name(interface).unwrap().xdp_program).unwrap();
        match held {
            None => return,
            Some(id) => assert!(Instant::now() < until, "{interface} still has XDP program {id}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
