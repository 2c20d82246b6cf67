//! `roxie metrics`: counters of the devices of all processes, for Prometheus.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::{SocketAddr, TcpListener};
use std::process::ExitCode;
use std::sync::Mutex;

use clap::Args;
use roxie::host::inspect::{PassDurations, Snapshot};
use roxie::text::Foreign;
use roxie::threads::lock;
use roxie_report::failure::{EXIT_CODES, Failure};
use roxie_report::http::{self, Reply};
use roxie_report::output;

use crate::show::objects::{ProcessFilter, look};

/// Print the counters of all processes for Prometheus, or serve them to it.
#[derive(Debug, Args)]
#[command(
    long_about = "Prints counters and objects of the devices of all processes in the text format of Prometheus, or \
        serves them over HTTP at /metrics. Each scrape queries the devices; nothing is \
        cached.\n\nroxie_<counter>_total are the counters of `roxie show counters` under their mlx5 and rxe names. \
        roxie_qps (by state), roxie_mrs, roxie_mr_bytes and roxie_cm_ids (by state) count objects. roxie_pass_seconds \
        is a histogram of the engine's passes that received or sent something. Labels: device and port, as exporters \
        of InfiniBand counters have them, then interface, transport (the port that moves frames), pid, uid and \
        process.\n\nA user sees the devices of their own processes, root sees all. --listen listens on the loopback \
        address unless another one is given.",
    after_help = format!(
        "Examples:\n  roxie metrics                               one snapshot, for node_exporter's textfile collector\n  roxie metrics \
         --listen 9740              http://127.0.0.1:9740/metrics\n  roxie metrics --listen 192.0.2.1:9740\n\n{EXIT_CODES}"
    )
)]
pub(crate) struct Arguments {
    /// Serve metrics on this port of the loopback address, or at this address and port
    #[arg(long, value_name = "[ADDRESS:]PORT", value_parser = address)]
    listen: Option<SocketAddr>,
    #[command(flatten)]
    filter: ProcessFilter,
}

/// Parses the address to serve metrics at.
pub(crate) fn address(text: &str) -> Result<SocketAddr, String> {
    if let Ok(port) = text.parse::<u16>() {
        return Ok(SocketAddr::from(([127, 0, 0, 1], port)));
    }
    text.parse().map_err(|_| "neither a port number nor ADDRESS:PORT ([ADDRESS]:PORT for IPv6)".to_owned())
}

/// Prints the metrics, or serves them until the process is ended.
pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    let done = match arguments.listen {
        Some(address) => listen(address).map(|listener| serve(&listener, arguments.filter.clone())),
        None => look(&arguments.filter).and_then(|seen| output::lines(&text(&seen))),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report("metrics"),
    }
}

/// Binds the address, and reports the metrics' URL on standard error.
pub(crate) fn listen(address: SocketAddr) -> Result<TcpListener, Failure> {
    let listener = http::listen(address)?;
    let at = listener.local_addr().unwrap_or(address);
    output::note(format_args!("metrics at http://{at}/metrics"));
    Ok(listener)
}

/// Answers requests until the process ends.
pub(crate) fn serve(listener: &TcpListener, filter: ProcessFilter) {
    // One look at a time, whatever the number of clients: it asks all devices.
    let looking = Mutex::new(());
    http::serve(listener, move |target| {
        let (code, body) = match target.split('?').next().unwrap_or_default() {
            "/metrics" => {
                let _one = lock(&looking);
                match look(&filter) {
                    Ok(seen) => (200, text(&seen)),
                    Err(failure) => (503, format!("{failure}\n")),
                }
            }
            "/" => (200, "roxie: the devices' counters are at /metrics\n".to_owned()),
            _ => (404, "not found: the devices' counters are at /metrics\n".to_owned()),
        };
        Reply { code, kind: "text/plain; version=0.0.4; charset=utf-8", body }
    });
}

/// Formats snapshots in Prometheus' text format, version 0.0.4.
fn text(seen: &[Snapshot]) -> String {
    let mut families = Families::default();
    for snapshot in seen {
        families.add(snapshot);
    }
    families.text()
}

/// Metrics by name, because all samples of one metric must stand together.
#[derive(Default)]
struct Families(BTreeMap<String, Family>);

struct Family {
    kind: &'static str,
    help: String,
    /// Suffix of the name, labels, value.
    samples: Vec<(&'static str, String, String)>,
}

impl Families {
    fn push(&mut self, name: &str, kind: &'static str, help: &str, sample: (&'static str, String, String)) {
        let new = || Family { kind, help: help.to_owned(), samples: Vec::new() };
        self.0.entry(name.to_owned()).or_insert_with(new).samples.push(sample);
    }

    fn add(&mut self, snapshot: &Snapshot) {
        let labels = labels(snapshot);
        for (name, value) in &snapshot.counters {
            let help = format!("Counter {name} of the device (`roxie show counters`).");
            let name = format!("roxie_{}_total", sanitized(name.as_received()));
            self.push(&name, "counter", &help, ("", labels.clone(), value.to_string()));
        }
        let mut gauge = |name: &str, help: &str, more: &str, value: u64| {
            self.push(name, "gauge", help, ("", format!("{labels}{more}"), value.to_string()));
        };
        for (state, count) in counted(snapshot.qps.iter().map(|qp| &qp.state)) {
            gauge("roxie_qps", "Queue pairs, by state.", &format!(",state=\"{}\"", escaped(state)), count);
        }
        for (state, count) in counted(snapshot.cm_ids.iter().map(|id| &id.state)) {
            let state = format!(",state=\"{}\"", escaped(state));
            gauge("roxie_cm_ids", "Identifiers of rdma_cm, by state.", &state, count);
        }
        gauge("roxie_mrs", "Memory regions and windows.", "", snapshot.mrs.len() as u64);
        let bytes = snapshot.mrs.iter().filter(|mr| mr.kind == "region").map(|mr| mr.length);
        gauge("roxie_mr_bytes", "Bytes in memory regions.", "", bytes.fold(0, u64::saturating_add));
        self.add_passes(&labels, &snapshot.passes);
    }

    /// Adds a histogram. Prometheus' buckets are cumulative.
    fn add_passes(&mut self, labels: &str, passes: &PassDurations) {
        const NAME: &str = "roxie_pass_seconds";
        const HELP: &str = "Passes of the engine that brought or sent something, by how long they took.";
        /// Buckets shown: 128 ns to 134 ms.
        const SHOWN: std::ops::RangeInclusive<usize> = 7..=27;
        let mut below = 0;
        for (bucket, count) in passes.buckets.iter().enumerate().take(u64::BITS as usize) {
            below = u64::saturating_add(below, *count);
            if SHOWN.contains(&bucket) {
                let end = (1u64 << bucket) as f64 / 1e9;
                self.push(
                    NAME,
                    "histogram",
                    HELP,
                    ("_bucket", format!("{labels},le=\"{end}\""), below.to_string()),
                );
            }
        }
        self.push(NAME, "histogram", HELP, ("_bucket", format!("{labels},le=\"+Inf\""), below.to_string()));
        let total = (passes.total_ns as f64 / 1e9).to_string();
        self.push(NAME, "histogram", HELP, ("_sum", labels.to_owned(), total));
        self.push(NAME, "histogram", HELP, ("_count", labels.to_owned(), below.to_string()));
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for (name, family) in &self.0 {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "# HELP {name} {}\n# TYPE {name} {}", family.help, family.kind);
            for (end, labels, value) in &family.samples {
                let _ = writeln!(text, "{name}{end}{{{labels}}} {value}");
            }
        }
        text
    }
}

fn labels(snapshot: &Snapshot) -> String {
    let Snapshot { pid, uid, name, device, interface, .. } = snapshot;
    format!(
        "device=\"{}\",port=\"1\",interface=\"{}\",transport=\"{}\",pid=\"{pid}\",uid=\"{uid}\",process=\"{}\"",
        escaped(device),
        escaped(interface),
        escaped(&snapshot.transport()),
        escaped(name)
    )
}

fn counted<'a>(all: impl Iterator<Item = &'a Foreign>) -> BTreeMap<&'a Foreign, u64> {
    let mut counts = BTreeMap::new();
    all.for_each(|one| *counts.entry(one).or_default() += 1);
    counts
}

/// Escapes a label's value: a process name can contain any character.
fn escaped(value: &Foreign) -> String {
    value.to_string().replace('\\', "\\\\").replace('"', "\\\"")
}

/// Restricts a name to letters, digits and underscores.
fn sanitized(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '_' { c } else { '_' }).collect()
}

#[cfg(test)]
mod tests {
    use roxie::host::inspect::{MrEntry, QpEntry};

    use super::*;

    #[test]
    fn samples_are_grouped_and_names_escaped() {
        let one = |pid, name: &str| Snapshot {
            pid,
            name: name.into(),
            device: "roxie0".into(),
            interface: "eth0".into(),
            port: "udp".into(),
            counters: [("sent_pkts".into(), 7 + u64::from(pid))].into(),
            qps: vec![QpEntry { state: "RTS".into(), ..QpEntry::default() }; 2],
            mrs: vec![MrEntry { kind: "region".into(), length: 4096, ..MrEntry::default() }],
            passes: PassDurations { buckets: vec![0, 0, 0, 0, 0, 0, 0, 0, 5, 0, 1], total_ns: 1500 },
            ..Snapshot::default()
        };
        let text = text(&[one(1, "a"), one(2, "b\"\\\nc")]);
        let of = |name: &str| text.lines().filter(|line| line.starts_with(name)).collect::<Vec<_>>();
        assert_eq!(of("roxie_sent_pkts_total").len(), 2);
        assert!(text.contains("# TYPE roxie_sent_pkts_total counter\nroxie_sent_pkts_total{device=\"roxie0\",port=\"1\",interface=\"eth0\",transport=\"udp\",pid=\"1\",uid=\"0\",process=\"a\"} 8\n"), "{text}");
        assert!(text.contains("process=\"b\\\"\\\\\u{fffd}c\",state=\"RTS\"} 2\n"), "{text}");
        assert!(of("roxie_mr_bytes")[0].ends_with(" 4096"));
        assert_eq!(text.matches("# TYPE").count(), text.matches("# HELP").count());
        let buckets = of("roxie_pass_seconds_bucket");
        assert!(
            buckets[0].ends_with("le=\"0.000000128\"} 0") && buckets[1].ends_with("le=\"0.000000256\"} 5"),
            "{buckets:?}"
        );
        assert!(
            of("roxie_pass_seconds_count")[0].ends_with(" 6")
                && of("roxie_pass_seconds_sum")[0].ends_with(" 0.0000015")
        );
    }

    #[test]
    fn bare_port_means_loopback() {
        assert_eq!(address("9740").unwrap(), "127.0.0.1:9740".parse().unwrap());
        assert_eq!(address("[::1]:1").unwrap(), "[::1]:1".parse().unwrap());
        assert!(address("host:1").is_err() && address("70000").is_err());
    }
}
