//! Command line of `roxie perf`.

use clap::{Args, ValueEnum};
use roxie::verbs::QpType;
use roxie_options::DeviceOptions;
use roxie_report::failure::EXIT_CODES;
use serde::{Deserialize, Serialize};

use super::plot;
use crate::stream;

/// The operation to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Operation {
    /// SEND into posted receives
    Send,
    /// RDMA WRITE
    Write,
    /// RDMA READ
    Read,
    /// Fetch and add on 8 bytes
    Atomic,
}

/// The quantity to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Measure {
    /// Bandwidth and message rate, with many operations outstanding
    Bw,
    /// Latency, one operation at a time
    Lat,
}

/// The transport service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Service {
    /// Reliable connection: lossless, every message is acknowledged
    #[default]
    Rc,
    /// Unreliable connection: send and write
    Uc,
    /// Datagrams: send, up to the MTU
    Ud,
}

impl From<Service> for QpType {
    fn from(service: Service) -> QpType {
        match service {
            Service::Rc => QpType::Rc,
            Service::Uc => QpType::Uc,
            Service::Ud => QpType::Ud,
        }
    }
}

/// Arguments of the command.
#[derive(Clone, Debug, Args)]
#[command(
    about = "Measure bandwidth, message rate and latency percentiles",
    long_about = "Measures bandwidth, message rate or latency of an operation. Without SERVER the command waits for \
        one client, with SERVER it is the client. The client decides what is measured. Options given to the server as \
        well must match; an error names those that differ.\n\nbw keeps --depth operations outstanding on each QP. lat \
        runs one at a time: for send and write it measures the round trip of a message and its answer, for read and \
        atomic the time to completion. Both print one line or JSON object for each size.\n\n--floor measures the port \
        alone, without a transport: frames of the same size, sent and counted, or echoed. Sizes above the path MTU \
        become frames of one path MTU.",
    after_help = format!(
        "Examples:\n  roxie perf send lat --port memory               both ends in this process\n  roxie perf write bw \
         --dev eth0                  waits for a client\n  roxie perf write bw --dev eth0 192.0.2.1 -s 64,65536\n  \
         roxie perf write bw --dev eth0 192.0.2.1 -s 64,65536 --floor\n  \
         roxie perf write bw --port memory --cc dcqcn --fault tx.mark=0.0002 --plot rates.svg\n\n{EXIT_CODES}"
    )
)]
pub(crate) struct Arguments {
    /// The operation
    pub(super) operation: Operation,
    /// The quantity to measure
    pub(super) measure: Measure,
    /// Host name or address of the server; without it, be the server
    pub(super) server: Option<String>,
    /// TCP port for the exchange of parameters
    #[arg(short = 'p', long, default_value_t = 18516, value_name = "PORT", value_parser = stream::parse_port)]
    pub(super) tcp_port: u16,
    #[command(flatten)]
    pub(super) wishes: MeasurementOptions,
    /// Show rate, alpha and round trip over time: as a chart; with --json, as samples; with a file name, as an SVG
    /// besides. bw only
    #[arg(long, value_name = "FILE.svg", num_args = 0..=1, default_missing_value = "", value_parser = plot::parse)]
    pub(super) plot: Option<plot::SampleFormat>,
    /// Print one JSON object for each size
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) device: DeviceOptions,
}

/// Parameters of the measurement that the command line sets. Others have defaults, or follow the client.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Measurement")]
pub(super) struct MeasurementOptions {
    /// Message size in bytes, or several sizes separated by commas [default: bw 65536, lat 8, atomic 8]
    #[arg(short, long, value_delimiter = ',', value_name = "BYTES")]
    pub(super) size: Vec<u32>,
    /// Transport service of the queue pairs; only rc retransmits lost packets [default: rc]
    #[arg(long, value_name = "SERVICE", conflicts_with = "floor")]
    pub(super) service: Option<Service>,
    /// Number of queue pairs [default: 1]
    #[arg(short, long, value_name = "COUNT")]
    pub(super) qps: Option<u32>,
    /// Operations outstanding on each queue pair [default: bw 128, lat 1]
    #[arg(short = 't', long, value_name = "COUNT")]
    pub(super) depth: Option<u32>,
    /// Seconds for each size [default: 2]
    #[arg(short = 'D', long, value_name = "SECONDS", conflicts_with = "iters")]
    pub(super) duration: Option<f64>,
    /// Operations for each size, instead of a duration
    #[arg(short = 'n', long, value_name = "COUNT")]
    pub(super) iters: Option<u64>,
    /// Measure the port alone: raw frames or datagrams of the same size, without the transport
    #[arg(long)]
    pub(super) floor: bool,
}
