//! Many processes, each connected to every other, while other processes are killed at random moments.
//!
//! `MESH=32 KILLS=100 cargo test -p roxie-cli --release --test verbs processes_talk` runs 32 of them, over sockets and
//! through NICs, and kills 200 processes beside them. `SEED=n` changes the order of kills. `MESH=8 NICS=20 cargo test
//! -p roxie-cli --release --test verbs nic::killed_nic_is` kills 20 NICs.

use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use super::site::{FAR, NEAR, Running, Site, compiled, descendants};

/// Default number of connected processes.
const PROCESSES: usize = 8;
/// Default number of kills at each end.
const KILLS: usize = 12;
/// Messages in each direction for each kill, over all connections, so that traffic lasts as long as the kills.
const MESSAGES: usize = 5000;
/// Number of messages that never ends.
pub(crate) const ENDLESS: usize = 1_000_000_000;
/// Additional time for each kill.
const MORE: Duration = Duration::from_secs(5);

/// Reads a number from an environment variable.
pub(crate) fn number(name: &str, default: usize) -> usize {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}=number")))
}

/// Random numbers for the times and victims of kills.
pub(crate) struct Chance(u64);

impl Chance {
    pub(crate) fn new() -> Chance {
        let seed = number("SEED", 1);
        println!("SEED={seed}");
        Chance(seed as u64)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        roxie::random::splitmix(&mut self.0) % bound
    }

    pub(crate) fn sleep(&mut self, most: Duration) {
        std::thread::sleep(Duration::from_micros(self.below(most.as_micros() as u64 + 1)));
    }
}

/// Processes, each connected to every other.
pub(crate) struct Mesh {
    pub(crate) local: Vec<Running>,
    pub(crate) remote: Vec<Running>,
    messages: usize,
    _program: TempDir,
}

impl Mesh {
    /// Starts the processes, each once the previous one listens: half on the near device, half on the far one.
    pub(crate) fn start(
        site: &Site,
        device: &str,
        first_port: u16,
        processes: usize,
        messages: usize,
    ) -> Mesh {
        let (place, program) = compiled("mesh", &["-lrdmacm", "-libverbs"]);
        let start = |number: usize| {
            let words = format!("{number} {processes} {messages} {first_port} {NEAR} {FAR}");
            let command = format!("{} {words}", program.display());
            let is_local = number < processes / 2;
            let mut running =
                if is_local { site.local(device, &command) } else { site.remote(device, &command) };
            running.wait_until_it_serves();
            running
        };
        let local = (0..processes / 2).map(start).collect();
        let remote = (processes / 2..processes).map(start).collect();
        Mesh { local, remote, messages, _program: place }
    }

    /// Waits until all processes have received all messages intact.
    pub(crate) fn finish(self, more: Duration) {
        let processes = self.local.len() + self.remote.len();
        let all =
            format!("{} connections, {} messages each way, all as they were", processes - 1, self.messages);
        for mut running in self.local.into_iter().chain(self.remote) {
            running.until += more;
            let ended = running.finish();
            assert!(ended.status.success() && ended.output.contains(&all), "{ended:?}");
        }
    }
}

/// Kills all programs that a launcher has started, but not the launcher.
pub(crate) fn kill_programs(running: &Running) {
    for pid in descendants(running.child.id()).into_iter().filter(|pid| *pid != running.child.id()) {
        let _ = kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL);
    }
}

/// Starts two programs that talk for ever, one at each end, and kills them: before they have connected, while they do,
/// or later.
fn kill_two(site: &Site, device: &str, tcp: u16, chance: &mut Chance) {
    let program = format!("ibv_rc_pingpong -g 1 -n {ENDLESS} -p {tcp}");
    let mut server = site.local(device, &program);
    if chance.below(4) > 0 {
        server.wait_until_it_listens(tcp);
    }
    let client = site.remote(device, &format!("{program} {NEAR}"));
    chance.sleep(Duration::from_millis(300));
    let (first, second) = if chance.below(2) == 0 { (server, client) } else { (client, server) };
    kill_programs(&first);
    if chance.below(2) == 0 {
        chance.sleep(Duration::from_millis(100));
    }
    kill_programs(&second);
}

/// Runs the mesh while other processes are killed. Prints the numbers.
pub(crate) fn each_of_many(site: &Site, device: &str) {
    let (processes, kills) = (number("MESH", PROCESSES), number("KILLS", KILLS));
    let connections = processes * (processes - 1) / 2;
    let messages = (MESSAGES * kills / connections).max(1);
    let mut chance = Chance::new();
    let mesh = Mesh::start(site, device, 21000, processes, messages);
    for round in 0..kills {
        kill_two(site, device, 19001 + round as u16, &mut chance);
    }
    mesh.finish(MORE * kills as u32);
    println!(
        "{processes} processes, {connections} connections of {messages} messages each way, {} killed beside them",
        2 * kills
    );
}
