//! `-- --attacks [NAME…]`: what an honest client keeps of its rate beside one hostile user, for each attack.
//!
//! The honest client writes 8 bytes again and again, through the same NIC, and with the attacker's processes in a
//! control group of half a processor, so that the scheduler is not what is measured. Windows with and without the
//! attacker alternate. Two users share the NIC: an honest client keeps half of its rate, and waits for none of its
//! WRITEs longer than [`PAUSE`], or than without an attacker or beside [`CONTROL`].

use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::site::{Running, Site, compiled};
use super::{HONEST, as_user, own};

/// The attacks, and what each does.
pub(super) const ATTACKS: [(&str, &str); 6] = [
    ("late450", "pages that come 450 ms late"),
    ("late20", "pages that come 20 ms late"),
    ("huge", "huge pages that go again and again"),
    (CONTROL, "huge pages that its own process writes, without the NIC"),
    ("waiters", "18,000 waits for one eventfd"),
    ("snapshots", "six clients that ask for snapshots of 8,000 QPs"),
];
/// What is no attack: the same load by a process that does not use the NIC. Its pauses are the machine's.
const CONTROL: &str = "own";
/// User of the first attack. Each has one of its own: the NIC refuses a user whose memory was late for a while, and his
/// next attack with it.
const FIRST_USER: u32 = 2010;
/// Duration of a window in seconds, and of the attack around it.
const WINDOW: u64 = 4;
/// Time for the attack to begin.
const BEGIN: Duration = Duration::from_secs(2);
/// Smallest part of the rate, and longest pause.
const PART: f64 = 0.5;
const PAUSE: f64 = 20.0;

/// A control group of half a processor. Removed when the value is dropped.
struct HalfProcessor(PathBuf);

impl HalfProcessor {
    fn new() -> io::Result<HalfProcessor> {
        let name = format!("roxie-tenants-{}", std::process::id());
        let first = Path::new("/sys/fs/cgroup/cpu");
        let (group, file, limit) = if first.is_dir() {
            (first.join(name), "cpu.cfs_quota_us", "5000")
        } else {
            (Path::new("/sys/fs/cgroup").join(name), "cpu.max", "5000 10000")
        };
        fs::create_dir(&group)?;
        let group = HalfProcessor(group);
        // In a period of 100 ms, the usual one, the attacker would take a whole processor for 50 ms at a time.
        if first.is_dir() {
            fs::write(group.0.join("cpu.cfs_period_us"), "10000")?;
        }
        fs::write(group.0.join(file), limit)?;
        Ok(group)
    }

    /// Has a command run in the group.
    fn hold(&self, command: &mut Command) {
        let members = self.0.join("cgroup.procs");
        // SAFETY: the closure opens a file and writes to it, and the process that it runs in has one thread.
        unsafe { command.pre_exec(move || fs::write(&members, "0")) };
    }
}

impl Drop for HalfProcessor {
    fn drop(&mut self) {
        // The kernel lets go of processes that have ended a moment later.
        let until = Instant::now() + Duration::from_secs(5);
        while fs::remove_dir(&self.0).is_err() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// What the honest client prints: WRITEs in a window, and the longest in ms.
fn honest(site: &Site, place: &Path, tenant: &str) -> (f64, f64) {
    let program = format!("{tenant} honest {WINDOW}");
    let ended = Running::start(&site.local, as_user(place, HONEST[0], "left", &program)).finish();
    assert!(ended.status.success(), "{ended:?}");
    let words: Vec<&str> = ended.output.split_whitespace().collect();
    let number = |at: usize| words.get(at).and_then(|word| word.parse().ok());
    number(0).zip(number(6)).unwrap_or_else(|| panic!("{ended:?}"))
}

/// The users of all attacks, in their order.
pub(super) fn users() -> impl Iterator<Item = u32> {
    (FIRST_USER..).take(ATTACKS.len())
}

/// Starts a user's attack that lasts for a window.
fn attack(name: &str, uid: u32, site: &Site, place: &Path, tenant: &str, group: &HalfProcessor) -> Running {
    let seconds = WINDOW + 2 * BEGIN.as_secs();
    let mut command = match name.strip_prefix("late") {
        Some(ms) => {
            let mut command = Command::new(place.join("roxie"));
            command.args(["run", "--quiet", "--dev", "left", "--port", "nic", "--"]);
            command.args([tenant, "late", &seconds.to_string(), &uid.to_string(), ms]);
            command
        }
        None if name == "snapshots" => {
            own(place, uid, &["--snapshots", "left", &(1000 * seconds).to_string()])
        }
        None => as_user(place, uid, "left", &format!("{tenant} {name} {seconds}")),
    };
    group.hold(&mut command);
    Running::start(&site.local, command)
}

/// Measures attacks for `minutes`, all in turn. False: an honest client had too little.
pub(super) fn run(site: &Site, place: &Path, minutes: u64, names: &[&str]) -> bool {
    let (_compiled, program) = compiled("tenant", &["-libverbs", "-lpthread"]);
    fs::copy(&program, place.join("tenant")).expect("a copy");
    let tenant = place.join("tenant").display().to_string();
    let group = HalfProcessor::new().expect("a control group of half a processor");
    let chosen: Vec<_> = ATTACKS
        .iter()
        .zip(users())
        .filter(|((name, _), _)| names.is_empty() || names.contains(name))
        .collect();
    let mut rows: Vec<_> = chosen.iter().map(|_| Vec::new()).collect();
    let until = Instant::now() + Duration::from_secs(60 * minutes);
    let median = |mut values: Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    while rows.iter().any(Vec::is_empty) || Instant::now() < until {
        for (((name, what), uid), row) in chosen.iter().zip(&mut rows) {
            let alone = honest(site, place, &tenant);
            let hostile = attack(name, *uid, site, place, &tenant, &group);
            std::thread::sleep(BEGIN);
            let under_attack = honest(site, place, &tenant);
            let output = hostile.finish().output;
            println!(
                "{what}: {:.2} of the rate, longest {:.1} ms (alone {:.1} ms); the attacker: {}",
                under_attack.0 / alone.0,
                under_attack.1,
                alone.1,
                output.trim()
            );
            row.push((under_attack.0 / alone.0, under_attack.1, alone.1));
        }
    }
    println!(
        "\n| beside | of the rate, median | lowest | longest pause, ms | alone, ms |\n| --- | --- | --- | --- | --- |"
    );
    let longest =
        |row: &[(f64, f64, f64)], of: fn(&(f64, f64, f64)) -> f64| row.iter().map(of).fold(0.0, f64::max);
    let of_the_machine = chosen.iter().zip(&rows).map(|(((name, _), _), row)| {
        let control_pause = if *name == CONTROL { longest(row, |one| one.1) } else { 0.0 };
        longest(row, |one| one.2).max(control_pause)
    });
    let pause = of_the_machine.fold(PAUSE, f64::max);
    let mut holds = true;
    for (((name, what), _), row) in chosen.iter().zip(&rows) {
        let part = median(row.iter().map(|one| one.0).collect());
        let lowest = row.iter().map(|one| one.0).fold(f64::INFINITY, f64::min);
        let (under_attack, alone) = (longest(row, |one| one.1), longest(row, |one| one.2));
        println!("| {what} | {part:.2} | {lowest:.2} | {under_attack:.1} | {alone:.1} |");
        holds &= *name == CONTROL || (part >= PART && under_attack <= pause);
    }
    holds
}
