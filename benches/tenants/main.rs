//! A NIC shared by users: honest programs of two users run beside a malicious program of a third user and a client
//! without permission, or, for comparison, beside a compute-bound program.
//!
//! `cargo bench -p roxie-cli --bench tenants [-- --minutes 60]`. Requires root. Eight pairs of stock programs (four of
//! each user) run through two NICs (`roxie nic`) on a veth pair: `rping -V` verifies its data, `ib_send_lat -e`
//! measures round trips of programs that sleep. Windows of [`WINDOW`] with and without malicious programs alternate, so
//! that other load of the machine affects both.
//!
//! Fails if an honest program fails, if a NIC holds more resources at the end than at the beginning, or if the 99.9th
//! percentile of round trips beside malicious programs is more than [`MOST`] times that beside compute-bound programs.
//!
//! `-- --attacks [NAME…]` measures one attack after another instead: see [`attacks`].

#[allow(dead_code, unreachable_pub)]
#[path = "../../tests/verbs/site.rs"]
mod site;

mod attacks;
mod hostile;

use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use site::{NEAR, Running, Site, descendants, folder, installed, skip};

/// Users of the honest programs and of the malicious one, and a user that the NIC does not serve.
const HONEST: [u32; 2] = [2001, 2002];
const HOSTILE: u32 = 2003;
const STRANGER: u32 = 2004;
/// Duration of a window.
const WINDOW: Duration = Duration::from_secs(30);
/// Maximum ratio of the round trips.
const MOST: f64 = 2.0;
/// Time in which a server ends after its client.
const ENDS: Duration = Duration::from_secs(30);
/// Service and TCP port of the first pair.
const FIRST_PORT: u16 = 7100;

/// Resources of a NIC process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Held {
    descriptors: usize,
    mappings: usize,
    threads: usize,
}

impl Held {
    fn by(nic: &Running) -> Held {
        let pid = nic.child.id();
        let entries = |folder: &str| fs::read_dir(format!("/proc/{pid}/{folder}")).expect("it lives").count();
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("it lives");
        let mappings = maps.lines().filter(|line| line.contains("/memfd:")).count();
        Held { descriptors: entries("fd"), mappings, threads: entries("task") }
    }
}

/// Waits until both NICs' resources have not changed for a second.
fn settled(nics: &[Running; 2]) -> [Held; 2] {
    let mut last = nics.each_ref().map(Held::by);
    loop {
        std::thread::sleep(Duration::from_secs(1));
        let now = nics.each_ref().map(Held::by);
        if now == last {
            return now;
        }
        last = now;
    }
}

/// Returns the resident memory of a NIC in KiB.
fn resident(nic: &Running) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", nic.child.id())).expect("it lives");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("a process");
    line.split_whitespace().nth(1).and_then(|word| word.parse().ok()).expect("a number")
}

/// Returns the server's and the client's command of a pair.
fn programs(pair: usize) -> [String; 2] {
    let port = usize::from(FIRST_PORT) + pair;
    if pair % 4 == 3 {
        let both = format!("ib_send_lat -e -x 1 -F -n 1000 -s 64 -p {port}");
        [both.clone(), format!("{both} {NEAR}")]
    } else {
        [format!("rping -s -V -a {NEAR} -p {port} -C 200"), format!("rping -c -V -a {NEAR} -p {port} -C 200")]
    }
}

/// Returns a command that runs a program as a user, under `roxie run`.
fn as_user(place: &Path, uid: u32, dev: &str, program: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args([&format!("--reuid={uid}"), &format!("--regid={uid}"), "--clear-groups"]);
    command.arg(place.join("roxie")).args(["run", "--quiet", "--dev", dev, "--port", "nic", "--"]);
    command.args(program.split_whitespace());
    command
}

/// Measurements of the honest programs, and the kind of the current window.
struct Score {
    stop: AtomicBool,
    is_hostile: AtomicBool,
    rounds: AtomicU64,
    /// 99.9th percentiles of round trips in us: beside compute-bound programs, and beside malicious ones.
    rare: [Mutex<Vec<f64>>; 2],
}

/// Ends the run if a pair has failed.
struct StopOnPanic<'a>(&'a AtomicBool);

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(true, Relaxed);
        }
    }
}

/// Runs a pair repeatedly.
fn play(site: &Site, place: &Path, pair: usize, score: &Score) {
    let uid = HONEST[pair / 4];
    let [serves, requests] = programs(pair);
    let port = FIRST_PORT + pair as u16;
    while !score.stop.load(Relaxed) {
        let window = score.is_hostile.load(Relaxed);
        let mut server = Running::start(&site.local, as_user(place, uid, "left", &serves));
        if serves.starts_with("rping") {
            server.wait_until_it_serves();
        } else {
            server.wait_until_it_listens(port);
        }
        let client = Running::start(&site.remote, as_user(place, uid, "right", &requests)).finish();
        if !ends_by(&mut server, Instant::now() + ENDS) {
            let findings = diagnosis(site, place, &server);
            panic!("{serves}: has not ended {ENDS:?} after its client\nclient: {client:?}\n{findings}");
        }
        let server = server.finish();
        assert!(
            client.status.success() && server.status.success(),
            "{requests}\nclient: {client:?}\nserver: {server:?}"
        );
        score.rounds.fetch_add(1, Relaxed);
        let figures = client.output.lines().skip_while(|line| !line.contains("#bytes")).nth(1);
        let rare = figures.and_then(|line| line.split_whitespace().nth(8)?.parse::<f64>().ok());
        if let Some(rare) = rare
            && window == score.is_hostile.load(Relaxed)
        {
            // ib_send_lat prints half of a round trip.
            score.rare[usize::from(window)].lock().expect("no panic").push(2.0 * rare);
        }
    }
}

/// True if a program ends by `until`.
fn ends_by(program: &mut Running, until: Instant) -> bool {
    while program.child.try_wait().expect("a child").is_none() {
        if Instant::now() > until {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    true
}

/// Returns where the threads of a program wait (if gdb is installed), and its objects as its NIC has them.
fn diagnosis(site: &Site, place: &Path, program: &Running) -> String {
    let mut commands = Vec::new();
    for pid in descendants(program.child.id()) {
        let mut stacks = Command::new("gdb");
        stacks.args(["-p", &pid.to_string(), "-batch", "-ex", "thread apply all backtrace"]);
        commands.extend(installed("gdb").then_some(stacks));
    }
    for what in ["qps", "cm_ids", "counters"] {
        let mut show = Command::new(place.join("roxie"));
        show.args(["show", what]);
        commands.push(show);
    }
    let outputs = commands.into_iter().map(|command| {
        let name = format!("{command:?}");
        format!("{name}:\n{}\n", Running::start(&site.local, command).finish().output)
    });
    outputs.collect()
}

/// Returns a command that runs this benchmark's own binary as a user.
fn own(place: &Path, uid: u32, arguments: &[&str]) -> Command {
    let mut command = Command::new("setpriv");
    command.args([&format!("--reuid={uid}"), &format!("--regid={uid}"), "--clear-groups"]);
    command.arg(place.join("tenants")).args(arguments);
    command
}

/// Computes for `time`, in place of the malicious programs.
fn compute(time: Duration) {
    let until = Instant::now() + time;
    while Instant::now() < until {
        (0..1_000_000u32).for_each(|step| {
            std::hint::black_box(step);
        });
    }
}

fn median(values: &Mutex<Vec<f64>>) -> f64 {
    let mut values = values.lock().expect("no panic").clone();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn windows(site: &Site, place: &Path, score: &Score, minutes: u64) {
    let time = WINDOW.as_millis().to_string();
    let until = Instant::now() + Duration::from_secs(60 * minutes);
    while Instant::now() < until && !score.stop.load(Relaxed) {
        for is_hostile in [false, true] {
            score.is_hostile.store(is_hostile, Relaxed);
            let commands = if is_hostile {
                vec![
                    own(place, HOSTILE, &["--hostile", "left", &time]),
                    own(place, STRANGER, &["--stranger", "left", &time]),
                ]
            } else {
                vec![own(place, HOSTILE, &["--compute", "left", &time])]
            };
            let running: Vec<_> =
                commands.into_iter().map(|command| Running::start(&site.local, command)).collect();
            for program in running {
                let ended = program.finish();
                assert!(ended.status.success(), "{ended:?}");
                if is_hostile {
                    println!("{}", ended.output.trim());
                }
            }
        }
        let [computes, hostile] = score.rare.each_ref().map(median);
        println!(
            "{} rounds of honest programs ended well; p99.9 of round trips {computes:.0} us, beside hostile programs {hostile:.0} us",
            score.rounds.load(Relaxed)
        );
    }
    score.stop.store(true, Relaxed);
}

/// Runs as a program of a client, if the words say so. Returns true in that case.
fn is_program(words: &[&str]) -> bool {
    let [role, interface, millis] = words else { return false };
    let Ok(millis) = millis.parse() else { return false };
    let time = Duration::from_millis(millis);
    match *role {
        "--hostile" => hostile::program(interface, time),
        "--stranger" => hostile::without_permission(interface, time),
        "--snapshots" => hostile::snapshots(interface, time),
        _ => compute(time),
    }
    true
}

/// Returns the minutes, and the names of the attacks that are to be measured instead. `None`: the words are wrong.
fn options<'a>(words: &'a [&'a str]) -> Option<(u64, Option<&'a [&'a str]>)> {
    let (minutes, rest) = match words {
        ["--minutes", minutes, rest @ ..] => (minutes.parse().ok()?, rest),
        rest => (2, rest),
    };
    let names = match rest {
        [] => return Some((minutes, None)),
        ["--attacks", names @ ..] => names,
        _ => return None,
    };
    let is_known = |name: &&str| attacks::ATTACKS.iter().any(|(known, _)| known == name);
    names.iter().all(is_known).then_some((minutes, Some(names)))
}

/// Copies the programs to a folder of their own: other users may not have access to the build folder.
fn programs_for_all() -> tempfile::TempDir {
    let place = tempfile::tempdir().expect("a folder");
    for name in ["roxie", "libibverbs.so.1"] {
        fs::copy(folder().join(name), place.path().join(name)).expect("it was built");
    }
    fs::copy(std::env::current_exe().expect("this one"), place.path().join("tenants")).expect("a copy");
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(place.path(), open).expect("its own");
    place
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if is_program(&words) {
        return ExitCode::SUCCESS;
    }
    let Some((minutes, attacks)) = options(&words) else {
        let known = attacks::ATTACKS.map(|(name, what)| format!("  {name:10} {what}\n")).concat();
        eprint!(
            "usage: cargo bench -p roxie-cli --bench tenants [-- [--minutes NUMBER] [--attacks [NAME…]]]\n{known}"
        );
        return ExitCode::from(2);
    };
    if skip("tenants", &["rping", "ib_send_lat", "setpriv"]) {
        return ExitCode::from(77);
    }
    let place = programs_for_all();
    let users = [HONEST[0], HONEST[1], HOSTILE].into_iter().chain(attacks::users());
    let users: Vec<String> = users.map(|uid| uid.to_string()).collect();
    let options: Vec<&str> =
        ["--port", "xdp"].into_iter().chain(users.iter().flat_map(|uid| ["--user", uid.as_str()])).collect();
    let (site, mut nics) = Site::with_nics("bench-tenants", &options);
    nics.iter_mut().for_each(|nic| nic.until = Instant::now() + Duration::from_secs(60 * (minutes + 5)));
    let before = settled(&nics);
    if let Some(names) = attacks {
        let holds = attacks::run(&site, place.path(), minutes, names);
        let after = settled(&nics);
        println!("held at the beginning {before:?}\nheld at the end       {after:?}");
        return if holds && after == before { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let score = Score {
        stop: AtomicBool::new(false),
        is_hostile: AtomicBool::new(false),
        rounds: AtomicU64::new(0),
        rare: Default::default(),
    };
    let memory = std::thread::scope(|scope| {
        (0..8).for_each(|pair| {
            let (site, place, score) = (&site, place.path(), &score);
            scope.spawn(move || {
                let _failed = StopOnPanic(&score.stop);
                play(site, place, pair, score);
            });
        });
        std::thread::sleep(WINDOW);
        let first = nics.each_ref().map(resident);
        windows(&site, place.path(), &score, minutes);
        first
    });
    let after = settled(&nics);
    let [computes, rare] = score.rare.each_ref().map(median);
    println!("held at the beginning {before:?}\nheld at the end       {after:?}");
    println!(
        "resident memory, KiB: {memory:?} after half a minute, {:?} at the end",
        nics.each_ref().map(resident)
    );
    println!(
        "p99.9 of round trips beside hostile programs: {:.2} x that beside programs that compute",
        rare / computes
    );
    if after == before && rare <= MOST * computes { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
