//! Runs unmodified programs of perftest under `roxie run`, in turn with `roxie perf`, which does the same in Rust. The
//! ratio shows the cost of the verbs library.
//!
//! All four are processes: the server in the near namespace, the client in the far one.

use std::io::Read;
use std::net::IpAddr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::Value;

use super::figures::median;
use super::site::{Kind, Link};
use super::{Failure, Interrupt};
use crate::run::Library;

/// Pairs of runs of each measurement.
const PAIRS: usize = 3;
/// A program that runs longer is stuck.
const LIMIT: Duration = Duration::from_secs(60);
/// TCP ports for the handshakes of perftest and of `roxie perf`.
const TCP_PORTS: [u16; 2] = [18515, 18516];
/// Bytes of a WRITE.
const LARGE: &str = "65536";
/// WRITEs of one run for each second of the demo's measurements.
const WRITES_PER_SECOND: f64 = 500.0;
/// Bytes of a SEND.
const SMALL: &str = "8";
/// SENDs of one run for each second of the demo's measurements.
const SENDS_PER_SECOND: f64 = 1250.0;
/// Fewest messages of one run: fewer than these measure the start alone.
const FEWEST: f64 = 200.0;

/// Results on one port.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Programs {
    pub(super) port: Kind,
    /// `roxie perf write bw`, 64 KiB, in Gb/s.
    pub(super) perf_gbps: f64,
    /// `ib_write_bw`, 64 KiB, in Gb/s.
    pub(super) ib_write_bw_gbps: f64,
    /// Median of the ratios of neighbouring runs.
    pub(super) bandwidth_ratio: f64,
    /// `roxie perf send lat`, 8 bytes: half the median round trip, in us.
    pub(super) perf_us: f64,
    /// `ib_send_lat`, 8 bytes: half the median round trip, in us.
    pub(super) ib_send_lat_us: f64,
    pub(super) latency_ratio: f64,
}

/// Returns why the programs cannot run; `None` if they can.
pub(super) fn missing(link: &Link) -> Option<String> {
    if link.kind == Kind::Memory || !link.has_namespaces() {
        return Some("two namespaces are wanted, with a process in each".into());
    }
    if let Err(failure) = Library::find() {
        return Some(failure.to_string());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let there = |program: &&str| std::env::split_paths(&path).any(|folder| folder.join(program).is_file());
    let absent = ["ib_write_bw", "ib_send_lat"].into_iter().find(|program| !there(program))?;
    Some(format!("{absent} is not installed (`apt-get install perftest`)"))
}

/// Alternates both programs, each with as many messages as suit a demo of `seconds`. No other traffic may use the link
/// meanwhile.
pub(super) fn measure(link: &Link, interrupt: &Interrupt, seconds: f64) -> Result<Programs, Failure> {
    let seconds = seconds.min(LIMIT.as_secs_f64());
    let messages = |per_second: f64| (per_second * seconds).max(FEWEST).ceil().to_string();
    let (writes, sends) = (messages(WRITES_PER_SECOND), messages(SENDS_PER_SECOND));
    let pair = Pair { link, interrupt, writes, sends };
    let bandwidth = pair.compare(Pair::perf_bandwidth, Pair::ib_write_bw)?;
    let latency = pair.compare(Pair::perf_latency, Pair::ib_send_lat)?;
    Ok(Programs {
        port: link.kind,
        perf_gbps: bandwidth.0,
        ib_write_bw_gbps: bandwidth.1,
        bandwidth_ratio: bandwidth.2,
        perf_us: latency.0,
        ib_send_lat_us: latency.1,
        latency_ratio: latency.2,
    })
}

struct Pair<'a> {
    link: &'a Link,
    interrupt: &'a Interrupt,
    /// WRITEs of one run.
    writes: String,
    /// SENDs of one run.
    sends: String,
}

impl Pair<'_> {
    fn compare(
        &self,
        perf: fn(&Self) -> Result<f64, Failure>,
        program: fn(&Self) -> Result<f64, Failure>,
    ) -> Result<(f64, f64, f64), Failure> {
        let (mut natives, mut stock, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..PAIRS {
            let (n, s) = (perf(self)?, program(self)?);
            natives.push(n);
            stock.push(s);
            ratios.push(s / n);
        }
        Ok((median(natives), median(stock), median(ratios)))
    }

    fn perf_bandwidth(&self) -> Result<f64, Failure> {
        let said = self.perf(&["write", "bw"], &["-s", LARGE, "-n", &self.writes])?;
        field(&said, &["gbit_per_second"])
    }

    fn perf_latency(&self) -> Result<f64, Failure> {
        let said = self.perf(&["send", "lat"], &["-s", SMALL, "-n", &self.sends])?;
        // `latency_ns` is of the whole round trip.
        Ok(field(&said, &["latency_ns", "p50"])? / 2e3)
    }

    fn perf(&self, what: &[&str], how: &[&str]) -> Result<String, Failure> {
        let port = self.link.kind.to_string();
        let device = ["--port", &port, "--dev", self.link.interface()];
        self.play(TCP_PORTS[1], |server| {
            let mut all = [&["perf"], what, &device].concat();
            if server.is_some() {
                all.extend(how.iter().chain(&["--json"]));
            }
            words(&all, server)
        })
    }

    fn ib_write_bw(&self) -> Result<f64, Failure> {
        let said = self.perftest("ib_write_bw", &["-s", LARGE, "-n", &self.writes, "--report_gbits"])?;
        // Columns: #bytes #iterations BW-peak BW-average MsgRate.
        column(&said, LARGE, 3)
    }

    fn ib_send_lat(&self) -> Result<f64, Failure> {
        let said = self.perftest("ib_send_lat", &["-s", SMALL, "-n", &self.sends])?;
        // Columns: #bytes #iterations t_min t_max t_typical. Times are halves of round trips; t_typical is the median.
        column(&said, SMALL, 4)
    }

    fn perftest(&self, program: &str, how: &[&str]) -> Result<String, Failure> {
        let port = self.link.kind.to_string();
        let launcher = ["run", "--quiet", "--port", &port, "--dev", self.link.interface(), "--"];
        let all = [&launcher[..], &[program, "-x", "1", "-F"], how].concat();
        self.play(TCP_PORTS[0], |server| words(&all, server))
    }

    /// Runs `roxie` as a server in the near namespace and as its client in the far one. Returns the client's output.
    fn play(
        &self,
        tcp_port: u16,
        arguments: impl Fn(Option<IpAddr>) -> Vec<String>,
    ) -> Result<String, Failure> {
        self.interrupt.check()?;
        let until = Instant::now() + LIMIT;
        let mut server = self.start(1, &arguments(None))?;
        while !listens(server.child.id(), tcp_port) {
            if server.child.try_wait()?.is_some() || Instant::now() > until {
                return Err(server.failed());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let client = self.start(2, &arguments(Some(self.link.server())))?;
        let said = client.finish(until, self.interrupt)?;
        server.finish(until, self.interrupt)?;
        Ok(said)
    }

    fn start(&self, host: u8, arguments: &[String]) -> Result<Process, Failure> {
        let what = format!("roxie {}", arguments.join(" "));
        let roxie = std::env::current_exe()?;
        let mut command = Command::new(roxie);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = self.link.within(host, || command.spawn())??;
        Ok(Process { what, child })
    }
}

/// Returns a command line, with the server's address appended if there is one.
fn words(all: &[&str], server: Option<IpAddr>) -> Vec<String> {
    all.iter().map(ToString::to_string).chain(server.map(|server| server.to_string())).collect()
}

/// A child process. Dropping the value ends it.
pub(super) struct Process {
    pub(super) what: String,
    pub(super) child: Child,
}

impl Process {
    /// Waits for the process and returns its output. Fails if the process fails or runs past `until`. Output must fit
    /// into a pipe.
    pub(super) fn finish(mut self, until: Instant, interrupt: &Interrupt) -> Result<String, Failure> {
        loop {
            if let Some(status) = self.child.try_wait()? {
                if !status.success() {
                    return Err(self.failed());
                }
                return Ok(text_of(self.child.stdout.take()));
            }
            interrupt.check()?;
            if Instant::now() > until {
                return Err(Failure::Stalled { what: self.what.clone(), seconds: LIMIT.as_secs() });
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(super) fn failed(&mut self) -> Failure {
        let _ = self.child.kill();
        let (out, err) = (text_of(self.child.stdout.take()), text_of(self.child.stderr.take()));
        Failure::Wrong(format!("`{}` did not end well: {}", self.what, format!("{out}\n{err}").trim()))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            // The launcher forwards SIGTERM to its program.
            let pid = nix::unistd::Pid::from_raw(self.child.id().cast_signed());
            let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM);
            let _ = self.child.wait();
        }
    }
}

fn text_of(pipe: Option<impl Read>) -> String {
    let mut bytes = Vec::new();
    if let Some(mut pipe) = pipe {
        let _ = pipe.read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// True if a process in the network namespace of `process` listens on the TCP port.
pub(super) fn listens(process: u32, port: u16) -> bool {
    // Columns: sl local_address rem_address st. 0A is the state LISTEN.
    let wanted = format!(":{port:04X}");
    ["tcp", "tcp6"].iter().any(|table| {
        let text = std::fs::read_to_string(format!("/proc/{process}/net/{table}")).unwrap_or_default();
        text.lines().any(|line| {
            let fields: Vec<_> = line.split_whitespace().collect();
            fields.len() > 3 && fields[1].ends_with(&wanted) && fields[3] == "0A"
        })
    })
}

/// Returns a number from the object that `roxie perf --json` printed.
fn field(said: &str, path: &[&str]) -> Result<f64, Failure> {
    let object = said.lines().rev().find_map(|line| serde_json::from_str::<Value>(line).ok());
    let value =
        object.as_ref().and_then(|object| path.iter().try_fold(object, |value, name| value.get(name)));
    let number = value.and_then(Value::as_f64).filter(|number| *number > 0.0);
    number.ok_or_else(|| Failure::Wrong(format!("roxie perf: no {} in: {said}", path.join("."))))
}

/// Returns a number from perftest's row for a size.
fn column(said: &str, size: &str, column: usize) -> Result<f64, Failure> {
    let rows = said.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let row = rows.rev().find(|row| row.first() == Some(&size));
    let number = row.and_then(|row| row.get(column)?.parse::<f64>().ok()).filter(|number| *number > 0.0);
    number.ok_or_else(|| Failure::Wrong(format!("perftest: no line for {size} bytes in: {said}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_parsed_from_program_output() {
        let perftest = " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n \
                        65536      8000             0.00               4.30   \t\t   0.008198\n---\n";
        assert_eq!(column(perftest, LARGE, 3).ok(), Some(4.3));
        assert!(column("65536 is no row", LARGE, 3).is_err());
        let perf = "{\"gbit_per_second\":6.5,\"latency_ns\":{\"p50\":10487}}\n";
        assert_eq!(field(perf, &["gbit_per_second"]).ok(), Some(6.5));
        assert_eq!(field(perf, &["latency_ns", "p50"]).ok(), Some(10487.0));
        assert!(field("", &["gbit_per_second"]).is_err());
    }
}
