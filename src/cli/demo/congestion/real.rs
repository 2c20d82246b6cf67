//! Plays the scenario with real frames: `ib_write_bw` under `roxie run` in network namespaces, with a forwarder between
//! them.

use std::net::IpAddr;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::unistd::Uid;
use roxie::netdev::{IfAddr, Links, NetNs, Tap};
use roxie::time::Nanos;
use roxie_sim::forward::Forwarder;

use super::Arguments;
use super::scenario::{DEPTH, LINK_MTU, MESSAGE, PATH_MTU, Scenario, TIMEOUT};
use super::trace::{Run, Summary, Trace};
use crate::demo::programs::{Process, listens};
use crate::demo::site::Kind;
use crate::demo::{Failure, Interrupt};
use crate::run::Library;

/// Name of the interface in each namespace.
const INTERFACE: &str = "rdma";
const PROGRAM: &str = "ib_write_bw";
/// TCP port of `ib_write_bw`'s own handshake.
const TCP_PORT: u16 = 18515;
/// Time beyond the sending time, to start, connect and end.
const GRACE: Duration = Duration::from_secs(30);

/// Returns why the programs cannot run; `None` if they can.
pub(super) fn missing(arguments: &Arguments) -> Option<String> {
    if arguments.no_programs {
        return Some("not asked for".into());
    }
    if arguments.port == Kind::Memory {
        return Some("memory joins NICs of one process only".into());
    }
    if !Uid::effective().is_root() {
        return Some("network namespaces with taps need root".into());
    }
    if let Err(failure) = Library::find() {
        return Some(failure.to_string());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let there = std::env::split_paths(&path).any(|folder| folder.join(PROGRAM).is_file());
    (!there).then(|| format!("{PROGRAM} is not installed (`apt-get install perftest`)"))
}

/// Plays the scenario.
///
/// # Errors
/// If the network cannot be made or a program fails.
pub(super) fn play(scenario: &Scenario, port: Kind, interrupt: &Interrupt) -> Result<Run, Failure> {
    let network = Network::new(scenario)?;
    let programs = Programs { scenario, port, network: &network };
    let outcome = programs.run(interrupt);
    let (forwarder, trace) = network.stop()?;
    outcome?;
    let late = [0.5, 0.99].map(|share| forwarder.lateness().value_at_quantile(share) as f64 / 1e3);
    let mut summary = Summary::of(&trace);
    summary.late_us = Some(late);
    Ok(Run { trace, summary })
}

type Outcome = std::io::Result<(Forwarder, Trace)>;

/// A namespace for each station, and a thread that forwards their frames. Dropping the value removes them.
struct Network {
    namespaces: Vec<NetNs>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Outcome>>,
}

impl Network {
    fn new(scenario: &Scenario) -> Result<Network, Failure> {
        let fabric = scenario.fabric()?;
        let stations = 0..scenario.stations();
        let namespaces = stations
            .clone()
            .map(|n| NetNs::create(&format!("host{}", n + 1)))
            .collect::<Result<Vec<_>, _>>()?;
        let taps = stations.map(|n| interface(&namespaces[n], n, scenario)).collect::<Result<Vec<_>, _>>()?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let mut trace = Trace::new(scenario);
        let thread = std::thread::Builder::new().name("forwarder".into()).spawn(move || {
            let mut forwarder = Forwarder::new(fabric, taps);
            forwarder.run(|fabric| {
                trace.look(fabric);
                stopped.load(Ordering::Relaxed)
            })?;
            Ok((forwarder, trace))
        })?;
        Ok(Network { namespaces, stop, thread: Some(thread) })
    }

    /// Stops the forwarder; returns it with what it sampled.
    fn stop(mut self) -> Result<(Forwarder, Trace), Failure> {
        self.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.take().expect("it is stopped once");
        Ok(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Creates an interface in a namespace. Its other end is a station of the fabric.
fn interface(namespace: &NetNs, station: usize, scenario: &Scenario) -> Result<Tap, Failure> {
    let tap = namespace.run(|| Tap::open(INTERFACE))??;
    let mut links = Links::open_in(namespace)?;
    links.set_mac(INTERFACE, Scenario::mac(station))?;
    links.set_mtu(INTERFACE, LINK_MTU as u32)?;
    links.add_address(INTERFACE, IfAddr { ip: Scenario::address(station).into(), prefix: 24 })?;
    links.set_up(INTERFACE, true)?;
    for other in (0..scenario.stations()).filter(|other| *other != station) {
        links.add_neighbour(INTERFACE, Scenario::address(other).into(), Scenario::mac(other))?;
    }
    Ok(tap)
}

struct Programs<'a> {
    scenario: &'a Scenario,
    port: Kind,
    network: &'a Network,
}

impl Programs<'_> {
    fn run(&self, interrupt: &Interrupt) -> Result<(), Failure> {
        let until = Instant::now() + GRACE + self.scenario.time().as_duration();
        let senders = self.scenario.senders;
        let mut servers =
            (0..senders).map(|n| self.start(senders + n, None)).collect::<Result<Vec<_>, _>>()?;
        for server in &mut servers {
            while !listens(server.child.id(), TCP_PORT) {
                interrupt.check()?;
                if server.child.try_wait()?.is_some() || Instant::now() > until {
                    return Err(server.failed());
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        let clients = (0..senders)
            .map(|n| self.start(n, Some(Scenario::address(senders + n).into())))
            .collect::<Result<Vec<_>, _>>()?;
        for client in clients {
            client.finish(until, interrupt)?;
        }
        servers.into_iter().try_for_each(|server| server.finish(until, interrupt).map(drop))
    }

    fn start(&self, station: usize, server: Option<IpAddr>) -> Result<Process, Failure> {
        // Programs start one after the other: allow 1.5 s, so that all send when the last begins.
        let seconds = (self.scenario.time() + Nanos::from_millis(1500)).0.div_ceil(1_000_000_000).to_string();
        let port = self.port.to_string();
        let [message, mtu, depth, timeout, speed] = [
            MESSAGE.to_string(),
            PATH_MTU.to_string(),
            DEPTH.to_string(),
            TIMEOUT.to_string(),
            // A tap reports no speed of its own.
            format!("{}M", self.scenario.mbps),
        ];
        let cc = ["--cc", &self.scenario.cc, "--ecn", "on", "--speed", &speed];
        let launcher = ["run", "--quiet", "--port", &port, "--dev", INTERFACE];
        let what = ["--", PROGRAM, "-x", "1", "-F", "-s", &message, "-m", &mtu, "-t", &depth, "-u", &timeout];
        let time = ["-D", &seconds, "-f", "0"];
        let mut arguments: Vec<String> =
            launcher.iter().chain(&cc).chain(&what).chain(&time).map(ToString::to_string).collect();
        arguments.extend(server.map(|server| server.to_string()));
        let what = format!("roxie {}", arguments.join(" "));
        let roxie = std::env::current_exe()?;
        let mut command = Command::new(roxie);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = self.network.namespaces[station].run(|| command.spawn())??;
        Ok(Process { what, child })
    }
}
