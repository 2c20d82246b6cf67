//! Roxie compared with TCP, by stock programs, without an adapter.
//!
//! `make versus`, or `cargo bench -p roxie-cli --bench versus [-- ROW …] [-- --json]`. Two namespaces on a veth pair
//! (root), and stock programs: the same program over both transports, or its nearest relative. Each of three runs
//! measures a row over TCP, then over each port, so that other load of the machine affects all of them. The table shows
//! medians, their range, and ratios to TCP; a higher ratio is better.

#[allow(dead_code, unreachable_pub)]
#[path = "../tests/verbs/site.rs"]
mod site;

use std::process::{Command, ExitCode};

use serde_json::json;
use site::{FI_PORT, NEAR, PORTS, QPERF_PORT, Running, Site, UCX_PORT, installed, launcher, skip};

const RUNS: usize = 5;

/// A program with a client and a server.
#[derive(Clone, Copy)]
enum Tool {
    UcxPerftest,
    Qperf,
    FiPingpong,
    /// Over TCP `iperf3`.
    Perftest,
}

/// Measured quantity.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Figure {
    /// MB/s.
    Bandwidth,
    /// Thousands of messages per second.
    Rate,
    /// us; less is better.
    Time,
}

struct Row {
    /// Name on the command line.
    name: &'static str,
    /// Description in the table.
    what: &'static str,
    figure: Figure,
    tool: Tool,
    options: &'static str,
    /// Options or environment for TCP; `@` stands for the interface of either end.
    over_tcp: &'static str,
    /// Options or environment for RDMA.
    over_rdma: &'static str,
}

impl Row {
    const fn ucx(name: &'static str, what: &'static str, figure: Figure, options: &'static str) -> Row {
        let over_tcp = "UCX_TLS=tcp UCX_NET_DEVICES=@";
        let over_rdma = "UCX_TLS=rc_v UCX_NET_DEVICES=roxie0:1";
        Row { name, what, figure, tool: Tool::UcxPerftest, options, over_tcp, over_rdma }
    }

    const fn libfabric(name: &'static str, what: &'static str, figure: Figure, options: &'static str) -> Row {
        let (over_tcp, over_rdma) = ("-p tcp -e msg", "-p verbs -e msg");
        Row { name, what, figure, tool: Tool::FiPingpong, options, over_tcp, over_rdma }
    }

    const fn qperf(
        name: &'static str,
        what: &'static str,
        figure: Figure,
        options: &'static str,
        tests: [&'static str; 2],
    ) -> Row {
        Row { name, what, figure, tool: Tool::Qperf, options, over_tcp: tests[0], over_rdma: tests[1] }
    }

    const fn perftest(
        name: &'static str,
        what: &'static str,
        program: &'static str,
        options: &'static str,
    ) -> Row {
        let figure = Figure::Bandwidth;
        Row {
            name,
            what,
            figure,
            tool: Tool::Perftest,
            options,
            over_tcp: "--time 2 --json",
            over_rdma: program,
        }
    }

    fn unit(&self) -> &'static str {
        match self.figure {
            Figure::Bandwidth => "MB/s",
            Figure::Rate => "k/s",
            Figure::Time => "us",
        }
    }

    /// Returns the command of the server, or of the client of `server`, at the interface `dev`.
    fn command(&self, medium: &str, dev: &str, server: Option<&str>) -> String {
        let way = if medium == TCP { self.over_tcp.replace('@', dev) } else { self.over_rdma.to_owned() };
        let (options, host) = (self.options, server.unwrap_or_default());
        match self.tool {
            Tool::UcxPerftest => format!("env {way} ucx_perftest -f -w 100 {options} {host}"),
            Tool::FiPingpong => format!("fi_pingpong {way} {options} {host}"),
            Tool::Qperf if server.is_none() => "qperf".to_owned(),
            Tool::Qperf => format!("qperf {host} -uu -t 2 {options} {way}"),
            Tool::Perftest if medium != TCP => format!("{way} {options} {host}"),
            Tool::Perftest if server.is_none() => "iperf3 --server --one-off".to_owned(),
            Tool::Perftest => format!("iperf3 --client {host} {way}"),
        }
    }

    /// Parses the client's output.
    fn value(&self, medium: &str, said: &str) -> Option<f64> {
        match (self.tool, self.figure) {
            (Tool::UcxPerftest, Figure::Time) => ucx(said, 3),
            (Tool::UcxPerftest, Figure::Bandwidth) => ucx(said, 5),
            (Tool::UcxPerftest, Figure::Rate) => Some(ucx(said, 7)? / 1e3),
            (Tool::Qperf, Figure::Time) => Some(qperf(said, "latency")? / 1e3),
            (Tool::Qperf, Figure::Bandwidth) => Some(qperf(said, "bw")? / 1e6),
            (Tool::FiPingpong, Figure::Bandwidth) => fi(said, 5),
            (Tool::FiPingpong, Figure::Time) => fi(said, 6),
            (Tool::Perftest, Figure::Bandwidth) if medium == TCP => iperf(said),
            (Tool::Perftest, Figure::Bandwidth) => perftest(said),
            // Not measured by any row.
            (Tool::Qperf | Tool::FiPingpong, Figure::Rate)
            | (Tool::Perftest, Figure::Rate | Figure::Time) => None,
        }
    }

    /// Returns how many times better than TCP `own` is.
    fn ratio(&self, tcp: f64, own: f64) -> f64 {
        if self.figure == Figure::Time { tcp / own } else { own / tcp }
    }
}

impl Tool {
    fn program(self) -> &'static str {
        match self {
            Tool::UcxPerftest => "ucx_perftest",
            Tool::Qperf => "qperf",
            Tool::FiPingpong => "fi_pingpong",
            Tool::Perftest => "ib_write_bw",
        }
    }

    /// Returns the TCP port at which the client connects to the server.
    fn port(self, medium: &str) -> u16 {
        match self {
            Tool::UcxPerftest => UCX_PORT,
            Tool::Qperf => QPERF_PORT,
            Tool::FiPingpong => FI_PORT,
            Tool::Perftest if medium == TCP => IPERF_PORT,
            Tool::Perftest => PERFTEST_PORT,
        }
    }
}

use Figure::{Bandwidth, Rate, Time};

/// TCP port of perftest's server.
const PERFTEST_PORT: u16 = 18515;
/// TCP port of iperf3's server.
const IPERF_PORT: u16 = 5201;

const TCP: &str = "tcp";
const MEDIA: [&str; 1 + PORTS.len()] = [TCP, PORTS[0], PORTS[1], PORTS[2]];
/// The runs of a row over each medium.
type Runs = [Vec<f64>; MEDIA.len()];
const ROWS: [Row; 11] = [
    Row::ucx("ucx-64k", "UCX, messages of 64 KiB", Bandwidth, "-t tag_bw -n 20000 -s 65536"),
    Row::ucx("ucx-1m", "UCX, messages of 1 MiB", Bandwidth, "-t tag_bw -n 1500 -s 1048576"),
    Row::ucx("ucx-8", "UCX, messages of 8 bytes", Rate, "-t tag_bw -n 400000 -s 8"),
    Row::ucx("ucx-lat", "UCX, 8 bytes, one way", Time, "-t tag_lat -n 20000 -s 8"),
    Row::qperf(
        "write",
        "qperf, WRITEs of 64 KiB; TCP's stream",
        Bandwidth,
        "-m 64K",
        ["tcp_bw", "-cm 1 rc_rdma_write_bw"],
    ),
    Row::qperf(
        "read",
        "qperf, READs of 64 KiB; TCP's stream",
        Bandwidth,
        "-m 64K",
        ["tcp_bw", "-cm 1 rc_rdma_read_bw"],
    ),
    Row::qperf("send-lat", "qperf, 8 bytes, one way", Time, "-m 8", ["tcp_lat", "-cm 1 rc_lat"]),
    Row::libfabric("fi-64k", "libfabric, 64 KiB there and back", Bandwidth, "-I 5000 -S 65536"),
    Row::perftest(
        "ib-write",
        "ib_write_bw, 64 KiB; iperf3",
        "ib_write_bw",
        "-x 1 -F -s 65536 -D 2 --report_gbits",
    ),
    Row::perftest(
        "ib-read",
        "ib_read_bw, 64 KiB; iperf3",
        "ib_read_bw",
        "-x 1 -F -s 65536 -D 2 --report_gbits",
    ),
    Row::libfabric("fi-lat", "libfabric, 8 bytes, one way", Time, "-I 5000 -S 8"),
];

/// Returns a column of the only line of numbers of `ucx_perftest -f`: iterations; times in us (median, mean of the last
/// interval, overall mean); MB/s (last, overall); messages per second (last, overall).
fn ucx(said: &str, column: usize) -> Option<f64> {
    let numbers =
        |line: &str| line.split_whitespace().map(|word| word.parse().ok()).collect::<Option<Vec<f64>>>();
    said.lines().filter_map(numbers).find(|numbers| numbers.len() == 8)?.get(column).copied()
}

/// Parses `NAME = 1234567 bytes/sec`, or ns, the format of `qperf -uu`.
fn qperf(said: &str, name: &str) -> Option<f64> {
    let line = said.lines().find(|line| line.trim_start().starts_with(name) && line.contains('='))?;
    line.split('=').nth(1)?.split_whitespace().next()?.parse().ok()
}

/// Returns a column of the line below `bytes`: bytes, sent, acknowledged, total, time, MB/s, us, millions per second.
fn fi(said: &str, column: usize) -> Option<f64> {
    let line = said.lines().skip_while(|line| !line.trim_start().starts_with("bytes")).nth(1)?;
    line.split_whitespace().nth(column)?.parse().ok()
}

/// Parses the average of the only line of results of a bandwidth test with `--report_gbits`: bytes, iterations, peak
/// and average in Gb/s, millions of messages a second.
fn perftest(said: &str) -> Option<f64> {
    let average = said.lines().find_map(|line| {
        let words: Vec<f64> = line.split_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
        (words.len() == 5).then(|| words[3])
    })?;
    Some(average * 125.0)
}

/// Parses what the receiver got, of the output of `iperf3 --json`.
fn iperf(said: &str) -> Option<f64> {
    let report: serde_json::Value = serde_json::from_str(said).ok()?;
    Some(report["end"]["sum_received"]["bits_per_second"].as_f64()? / 8e6)
}

fn main() -> ExitCode {
    if skip("versus", &["unshare"]) {
        return ExitCode::SUCCESS;
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let only: Vec<&String> = arguments.iter().filter(|a| !a.starts_with('-')).collect();
    if let Some(unknown) = only.iter().find(|name| !ROWS.iter().any(|row| row.name == name.as_str())) {
        let names: Vec<_> = ROWS.iter().map(|row| row.name).collect();
        eprintln!("versus: there is no row {unknown:?}: {}", names.join(", "));
        return ExitCode::from(2);
    }
    let rows: Vec<&Row> = ROWS
        .iter()
        .filter(|row| only.is_empty() || only.iter().any(|name| name.as_str() == row.name))
        .filter(|row| is_there(row))
        .collect();
    let site = Site::new("bench-versus");
    // Indexed by row and medium.
    let mut values: Vec<Runs> = vec![Runs::default(); rows.len()];
    for run in 0..RUNS {
        for (row, values) in rows.iter().zip(&mut values) {
            eprintln!("versus: run {} of {RUNS}, {}", run + 1, row.what);
            for (medium, values) in MEDIA.into_iter().zip(values.iter_mut()) {
                values.push(measure(&site, medium, row));
            }
        }
    }
    let as_json = arguments.iter().any(|argument| argument == "--json");
    show(&rows, &values, as_json);
    ExitCode::SUCCESS
}

/// Returns true if the row's program is installed; otherwise prints that the row is left out.
fn is_there(row: &Row) -> bool {
    let program = row.tool.program();
    let is_there = installed(program);
    if !is_there {
        eprintln!("versus: {} is left out: {program} is not installed (.ci/setup test)", row.what);
    }
    is_there
}

fn measure(site: &Site, medium: &str, row: &Row) -> f64 {
    let start = |namespace, dev: &str, server: Option<&str>| {
        let line = row.command(medium, dev, server);
        let command = if medium == TCP {
            // UCX looks up interfaces in sysfs, which shows those of the namespace in which it was mounted.
            let line = format!("mount -t sysfs sysfs /sys && exec {line}");
            let mut command = Command::new("unshare");
            command.args(["--mount", "sh", "-c", &line]);
            command
        } else {
            launcher(&["--dev", dev, "--port", medium], &line)
        };
        Running::start(namespace, command)
    };
    let mut server = start(&site.local, "left", None);
    server.wait_until_it_listens(row.tool.port(medium));
    let client = start(&site.remote, "right", Some(NEAR)).finish();
    // qperf's server does not end by itself.
    drop(server);
    let value = row.value(medium, &client.output).filter(|_| client.status.success());
    value.unwrap_or_else(|| panic!("{} over {medium}: {client:?}", row.what))
}

/// Returns median, minimum and maximum.
fn spread(values: &[f64]) -> (f64, f64, f64) {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    (sorted[sorted.len() / 2], sorted[0], sorted[sorted.len() - 1])
}

fn show(rows: &[&Row], values: &[Runs], as_json: bool) {
    if as_json {
        let rows = rows.iter().zip(values).map(|(row, values)| {
            let runs: serde_json::Map<_, _> =
                MEDIA.into_iter().zip(values).map(|(medium, runs)| (medium.to_owned(), json!(runs))).collect();
            json!({ "name": row.name, "what": row.what, "unit": row.unit(), "less_is_better": row.figure == Time, "runs": runs })
        });
        println!("{:#}", json!(rows.collect::<Vec<_>>()));
        return;
    }
    print!("{:<38} {:>5} {:>20}", "", "", "TCP");
    PORTS.iter().for_each(|port| print!(" {:>20}", format!("Roxie, {port}")));
    PORTS.iter().for_each(|port| print!(" {port:>6}"));
    println!();
    for (row, values) in rows.iter().zip(values) {
        let all = values.each_ref().map(|runs| spread(runs));
        print!("{:<38} {:>5}", row.what, row.unit());
        for (median, least, most) in all {
            let digits = usize::from(median < 100.0);
            print!(" {:>20}", format!("{median:.digits$} ({least:.digits$}-{most:.digits$})"));
        }
        let [tcp, ports @ ..] = all;
        ports.iter().for_each(|port| print!(" {:>6.2}", row.ratio(tcp.0, port.0)));
        println!();
    }
    println!("Medians of {RUNS} runs (least to most). The last columns: times TCP, more is better.");
}
