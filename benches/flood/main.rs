//! Cost of a flood to an honest connection.
//!
//! `cargo bench -p benches --bench flood [-- --seconds N] [--port xdp|packet|udp] [--counters] [KIND …]`. Two
//! namespaces on a veth pair (root): an honest client that writes and connects repeatedly, an honest server, and a
//! thread that sends handmade frames from 1,000 addresses on the client's side of the link, as fast as one thread can.
//! Measured at the server: throughput, time to connect, processor time, memory.
//!
//! The flooding thread takes a processor, and the kernel takes time for each frame, even for one that it drops. Two
//! baselines account for that: `nothing`, and the same number of bytes to UDP port 9, which the kernel drops before
//! Roxie sees them. The cost beyond the second baseline is Roxie's. Exit code 1: a result exceeds its budget.

mod client;
mod frames;
mod server;
mod site;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use frames::{Honest, Kind};
use roxie::host::{Device, DeviceConfig, Stack};
use roxie::netdev::NetNs;
use roxie::port::packet::PacketConfig;
use roxie::port::udp::UdpConfig;
use roxie::port::xdp::XdpConfig;
use roxie::wire::Qpn;
use site::Site;

/// Port of the honest server.
const PORT: u16 = 7174;
/// A port without a listener.
const UNUSED_PORT: u16 = 7175;
const PORTS: [&str; 3] = ["xdp", "packet", "udp"];
/// Limits: median connection time beside REQs in us, and growth of the server's memory in MiB.
const MEDIAN: f64 = 100_000.0;
const GROWTH: f64 = 32.0;
/// Seconds after which an end that was forgotten exits by itself.
const DEADLINE: u32 = 3600;
/// Time before a measurement starts.
const WARM_UP: Duration = Duration::from_millis(500);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    if arguments.first().is_some_and(|role| ["server", "client"].contains(&role.as_str())) {
        // Its signal is not caught.
        nix::unistd::alarm::set(DEADLINE);
    }
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["server", port] => server::serve(port),
        ["client", port] => client::run(port),
        _ => return measure(&arguments),
    }
    ExitCode::SUCCESS
}

/// Parsed arguments.
struct Plan {
    seconds: u64,
    ports: Vec<&'static str>,
    kinds: Vec<(Kind, &'static str)>,
    counters: bool,
}

impl Plan {
    fn parse(arguments: &[String]) -> Plan {
        let mut plan = Plan { seconds: 5, ports: PORTS.to_vec(), kinds: Vec::new(), counters: false };
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--seconds" => plan.seconds = arguments.next().and_then(|n| n.parse().ok()).expect("seconds"),
                "--port" => {
                    let wanted = arguments.next().expect("a port");
                    plan.ports.retain(|port| port == wanted);
                }
                "--counters" => plan.counters = true,
                name => {
                    let matching = Kind::ALL.into_iter().find(|(_, known)| *known == name);
                    let names = Kind::ALL.map(|(_, name)| name).join(", ");
                    plan.kinds.push(matching.unwrap_or_else(|| panic!("no kind {name}: {names}")));
                }
            }
        }
        if plan.kinds.is_empty() {
            plan.kinds = Kind::ALL.to_vec();
        }
        plan
    }
}

fn measure(arguments: &[String]) -> ExitCode {
    if !nix::unistd::geteuid().is_root() {
        println!("SKIP flood: network namespaces need root");
        return ExitCode::SUCCESS;
    }
    let plan = Plan::parse(arguments);
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    println!("{cores} processors, of which the flood takes one; {} s of each kind", plan.seconds);
    println!(
        "{:<6} {:<12} {:>9} {:>9} {:>11} {:>9} {:>9} {:>9} {:>6} {:>7} {:>9}",
        "port",
        "flood",
        "frames/s",
        "MB/s",
        "connects",
        "median us",
        "p99 us",
        "max us",
        "failed",
        "CPU",
        "RSS MiB"
    );
    let mut holds = true;
    for port in &plan.ports {
        for (kind, name) in &plan.kinds {
            let row = run(port, *kind, Duration::from_secs(plan.seconds), plan.counters);
            let verdict = row.verdict(*kind);
            println!(
                "{port:<6} {name:<12} {:>9.0} {:>9} {:>11} {:>9} {:>9} {:>9} {:>6} {:>6.0}% {:>4.0}->{:<4.0}{}",
                row.offered,
                row.rate,
                row.connects,
                row.median,
                row.p99,
                row.longest,
                row.failures,
                row.processor * 100.0,
                row.memory[0],
                row.memory[1],
                verdict.as_deref().unwrap_or_default()
            );
            holds &= verdict.is_none();
        }
    }
    if holds { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Results of one kind over one port.
struct Row {
    /// Frames per second that the link accepted.
    offered: f64,
    /// Throughput of the honest connection in MB/s.
    rate: f64,
    connects: f64,
    failures: f64,
    /// Connection time in us.
    median: f64,
    p99: f64,
    longest: f64,
    /// Processor time of the server, as a share of one processor.
    processor: f64,
    /// Memory of the server in MiB, before and after.
    memory: [f64; 2],
}

impl Row {
    /// Returns the budgets exceeded, if any.
    fn verdict(&self, kind: Kind) -> Option<String> {
        let requests = matches!(kind, Kind::Refused | Kind::Silent | Kind::Known | Kind::Mixed);
        // NaN: no connection completed, and none is pending.
        let slow = requests && (self.median.is_nan() || self.median > MEDIAN);
        let grows = self.memory[1] - self.memory[0] > GROWTH;
        match (slow, grows) {
            (false, false) => None,
            (true, false) => Some("  time DOES NOT HOLD".into()),
            (false, true) => Some("  memory DOES NOT HOLD".into()),
            (true, true) => Some("  time and memory DO NOT HOLD".into()),
        }
    }
}

fn run(port: &str, kind: Kind, time: Duration, counters: bool) -> Row {
    let site = Site::new();
    let mut server = End::start(&site.local, &["server", port]);
    assert_eq!(server.read_line(), "ready");
    let mut client = End::start(&site.remote, &["client", port]);
    let stdout = client.read_line();
    let numbers = stdout.strip_prefix("connected ").unwrap_or_else(|| panic!("the client said {stdout}"));
    let numbers: Vec<u64> = numbers.split(' ').map(|number| number.parse().expect("a number")).collect();
    let [local, remote, guid] = numbers[..] else { panic!("the client said {stdout}") };
    let honest = Honest { local: Qpn::new(local as u32), remote: Qpn::new(remote as u32), guid };
    client.write_line("connect");
    std::thread::sleep(WARM_UP);
    let before = server.memory();
    let stop: &'static AtomicBool = Box::leak(Box::default());
    let flood = (kind != Kind::Nothing).then(|| site.flood(kind, honest, stop));
    std::thread::sleep(WARM_UP);
    client.write_line("go");
    let (began, used) = (Instant::now(), server.processor());
    std::thread::sleep(time);
    let (took, used) = (began.elapsed(), server.processor() - used);
    client.write_line("stop");
    // The client may have reconnected meanwhile.
    let figures = loop {
        let line = client.read_line();
        if !line.starts_with("connected") {
            break line;
        }
    };
    stop.store(true, Relaxed);
    let sent = flood.map_or(0, |flood| flood.join().expect("a flood"));
    let memory = [before, server.memory()];
    if counters {
        server.write_line("tell");
        println!("{}", server.read_line());
    }
    let figures: Vec<f64> = figures.split(' ').map(|word| word.parse().expect("a number")).collect();
    let [rate, connects, failures, median, p99, longest] = figures[..] else { panic!("{figures:?}") };
    let offered = sent as f64 / (took + WARM_UP).as_secs_f64();
    let processor = used.as_secs_f64() / took.as_secs_f64();
    Row { offered, rate, connects, failures, median, p99, longest, processor, memory }
}

fn open(port: &str, interface: &str) -> Device {
    let (stack, config) = (Stack::default(), DeviceConfig::default());
    let device = match port {
        "xdp" => Device::open_xdp(&XdpConfig::new(interface), &stack, &config),
        "packet" => Device::open_packet(&PacketConfig::new(interface), &stack, &config),
        _ => {
            let udp = UdpConfig { interface: Some(interface.to_owned()), ..UdpConfig::default() };
            Device::open_udp(&udp, &stack, &config)
        }
    };
    device.expect("a device")
}

/// A child process of this program, as one of the two ends. Killed on drop.
struct End {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Drop for End {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl End {
    fn start(namespace: &NetNs, role: &[&str]) -> End {
        let mut command = Command::new(std::env::current_exe().expect("a path"));
        command.args(role).stdin(Stdio::piped()).stdout(Stdio::piped());
        let child = namespace.run(move || command.spawn()).expect("the namespace");
        let mut child = child.expect("a process");
        let stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        End { child, output: stdout }
    }

    fn read_line(&mut self) -> String {
        let mut line = String::new();
        let read = self.output.read_line(&mut line).expect("a pipe");
        assert!(read > 0, "the process has ended: {:?}", self.child.wait());
        line.trim_end().to_owned()
    }

    fn write_line(&mut self, line: &str) {
        writeln!(self.child.stdin.as_mut().expect("a pipe"), "{line}").expect("a pipe");
    }

    /// Returns the resident memory in MiB.
    fn memory(&self) -> f64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("a process");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a size");
        line.split_whitespace().next().and_then(|kib| kib.parse::<f64>().ok()).expect("a number") / 1024.0
    }

    /// Returns the processor time in user and kernel mode.
    fn processor(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).expect("a process");
        let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
        // utime and stime, in ticks of 1/100 s on Linux.
        let ticks: u64 = fields[11..13].iter().filter_map(|ticks| ticks.parse::<u64>().ok()).sum();
        Duration::from_millis(ticks * 10)
    }
}
