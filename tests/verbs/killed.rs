//! Programs that are killed at any moment, with requests of both ends under way: the other end is told, nothing is left behind.
//!
//! `KILLS=200 cargo test --release --test verbs killed -- --nocapture` does it that often; `make test` fewer times.

use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use roxie::netdev::{Interface, NetNs};

use super::{PORTS, Running, Site, skip};

/// The TCP port by which the programs exchange addresses.
const TCP_PORT: u16 = 18515;
/// Both ends send all the time, a lost end is noticed after about 8 times 17 ms (local ACK timeout 12).
const PROGRAM: &str = "ib_write_bw -x 1 -F -b -s 20000 -u 12 -D 20";
/// How often, unless told otherwise.
const KILLS: usize = 12;
/// The program is killed within this time after the second one was started, or after data began to flow.
const WITHIN_MS: u64 = 400;
/// Bytes by which data is known to flow.
const FLOWS: u64 = 1 << 20;
/// The survivor ends this soon: the retries, and the time that a busy machine needs.
const TELLS_WITHIN: Duration = Duration::from_secs(30);
/// Completions with this status: retries exhausted.
const RETRY_EXC: &str = "Failed status 12";

/// Which of the programs, whether its launcher goes with it, and when.
#[derive(Clone, Copy, Debug)]
struct Victim {
    client: bool,
    launcher_too: bool,
    /// Not before data flows.
    in_traffic: bool,
    after: Duration,
}

#[test]
fn the_other_end_is_told_when_a_program_is_killed_at_any_moment() {
    if skip("the_other_end_is_told_when_a_program_is_killed_at_any_moment", &["ib_write_bw"]) {
        return;
    }
    let kills = std::env::var("KILLS").map_or(KILLS, |text| text.parse().expect("KILLS=number"));
    let site = Site::new("killed");
    let (mut random, mut under_way) = (0x9e37_79b9_7f4a_7c15_u64, 0);
    for round in 0..kills {
        // xorshift64: the same moments each time, as far as the machine lets them be.
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let victim = Victim {
            client: random & 1 == 1,
            launcher_too: random & 2 == 2,
            // At the start as well, but not so often.
            in_traffic: round % 3 != 0,
            after: Duration::from_millis(random / 4 % WITHIN_MS),
        };
        let said = kill_one(&site, PORTS[round / 3 % PORTS.len()], victim);
        under_way += usize::from(said.contains(RETRY_EXC));
        for (namespace, interface) in [(&site.near, "left"), (&site.far, "right")] {
            wait_until_free(namespace, interface);
        }
    }
    println!("{kills} kills, {under_way} with requests of the survivor outstanding");
    assert!(2 * under_way >= kills, "{under_way} of {kills} survivors had requests under way");
    for port in PORTS {
        site.play(port, "ib_write_bw -x 1 -F -n 100", TCP_PORT);
    }
}

/// Starts a pair, kills one of it, and returns what the other said. Both must be gone at the end.
fn kill_one(site: &Site, port: &str, victim: Victim) -> String {
    let mut server = site.near(port, PROGRAM);
    server.wait_until_it_listens(TCP_PORT);
    let before = sent(&server, "left");
    let client = site.far(port, &format!("{PROGRAM} {}", super::NEAR));
    while victim.in_traffic && sent(&server, "left") - before < FLOWS {
        assert!(Instant::now() < server.until, "{port}, {victim:?}: no data flows");
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(victim.after);
    let (dies, lives) = if victim.client { (client, server) } else { (server, client) };
    let launcher = dies.child.id();
    // A launcher that stands still starts nothing while it is looked at.
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
    survivor.said
}

/// Bytes that an interface in the namespace of a program has sent.
fn sent(program: &Running, interface: &str) -> u64 {
    let table = std::fs::read_to_string(format!("/proc/{}/net/dev", program.child.id())).unwrap_or_default();
    let line = table.lines().find_map(|line| line.trim().strip_prefix(interface)?.strip_prefix(':'));
    line.and_then(|line| line.split_whitespace().nth(8)?.parse().ok()).unwrap_or(0)
}

/// The program that a launcher started, once it has.
fn program_of(launcher: u32) -> Option<u32> {
    let children = std::fs::read_to_string(format!("/proc/{launcher}/task/{launcher}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok()
}

/// True until a process is stopped or at its end.
fn runs(process: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // The state stands behind the name, which is in parentheses.
    stat.rsplit(')')
        .next()
        .and_then(|rest| rest.trim().chars().next())
        .is_some_and(|state| !"TZX".contains(state))
}

fn signal(process: u32, signal: Signal) {
    // It may have ended by itself meanwhile.
    let _ = kill(Pid::from_raw(process.cast_signed()), signal);
}

/// The kernel takes down what a dead process held a moment after.
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
