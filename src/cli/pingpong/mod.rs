//! `roxie pingpong`: the example programs of rdma-core; the peer may be the stock program.

use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use roxie::host::Device;
use roxie::limits::MAX_WR;
use roxie::verbs::{Mtu, QpType};
use roxie_options::{DeviceOptions, Opened, PortKind, THREAD};
use roxie_report::failure::{EXIT_CODES, Failure};

use crate::device::health::tell_logs;
use crate::stream::{self, Stream as _};

mod end;
mod exchange;

use end::End;

/// Longest message, which bounds the two buffers.
const MAX_SIZE: u32 = 1 << 30;
/// Default path MTU of the stock programs.
const STOCK_MTU: Mtu = Mtu::Mtu1024;

/// The kind of pingpong.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    service: Service,
}

#[derive(Debug, Subcommand)]
enum Service {
    /// Exchange messages over a reliable connection, as `ibv_rc_pingpong` does
    #[command(
        long_about = "Exchanges messages over a reliable connection. Without SERVER the command waits for a client, \
            with SERVER it is the client.\n\nThe other end may be the same command, or `ibv_rc_pingpong` of rdma-core \
            on any RoCE v2 device: addresses are exchanged over TCP in its format, and options have the same meaning. \
            Start that program with -g and the index of its RoCE v2 GID. Sizes, MTUs and iterations must be the same \
            at both ends; the exchange does not carry them.",
        after_help = format!(
            "Examples:\n  roxie pingpong rc --port memory            both ends in this process\n  roxie pingpong rc \
             --dev eth0                waits for a client\n  roxie pingpong rc --dev eth0 192.0.2.1      is the \
             client\n  ibv_rc_pingpong -d rxe0 -g 1 192.0.2.1      or the stock program is\n\n{EXIT_CODES}"
        )
    )]
    Rc(Options),
    /// Exchange messages over an unreliable connection, as `ibv_uc_pingpong` does
    #[command(
        long_about = "Exchanges messages over an unreliable connection. Without SERVER the command waits for a client, \
            with SERVER it is the client.\n\nThe other end may be the same command, or `ibv_uc_pingpong` of rdma-core, \
            as for `pingpong rc`. Nothing is acknowledged or retransmitted: a lost message ends the run.",
        after_help = format!(
            "Examples:\n  roxie pingpong uc --dev eth0                waits for a client\n  roxie pingpong uc --dev \
             eth0 192.0.2.1      is the client\n  ibv_uc_pingpong -d rxe0 -g 1 192.0.2.1      or the stock \
             program is\n\n{EXIT_CODES}"
        )
    )]
    Uc(Options),
    /// Exchange datagrams, as `ibv_ud_pingpong` does
    #[command(
        long_about = "Exchanges datagrams. Without SERVER the command waits for a client, with SERVER it is the \
            client.\n\nThe other end may be the same command, or `ibv_ud_pingpong` of rdma-core, as for `pingpong rc`. \
            A datagram is one packet, so a message is no longer than the MTU. In the receive, 40 bytes of network \
            header precede it. Nothing is acknowledged or retransmitted: a lost datagram ends the run.",
        after_help = format!(
            "Examples:\n  roxie pingpong ud --dev eth0                waits for a client\n  roxie pingpong ud --dev \
             eth0 192.0.2.1      is the client\n  ibv_ud_pingpong -d rxe0 -g 1 192.0.2.1      or the stock \
             program is\n\n{EXIT_CODES}"
        )
    )]
    Ud(Options),
    /// Exchange messages on many reliable connections with a shared receive queue, as `ibv_srq_pingpong` does
    #[command(
        long_about = "Exchanges messages on several reliable connections at once, whose receives come from one shared \
            queue. Without SERVER the command waits for a client, with SERVER it is the client.\n\nThe other end may \
            be the same command, or `ibv_srq_pingpong` of rdma-core, as for `pingpong rc`, with the same number of QPs \
            (-q). Exchanges of all connections count together.",
        after_help = format!(
            "Examples:\n  roxie pingpong srq --dev eth0 -q 4            waits for a client\n  roxie pingpong srq --dev \
             eth0 -q 4 192.0.2.1  is the client\n  ibv_srq_pingpong -d rxe0 -g 1 -q 4 192.0.2.1  or the stock \
             program is\n\n{EXIT_CODES}"
        )
    )]
    Srq(SharedOptions),
}

#[derive(Clone, Debug, Args)]
struct SharedOptions {
    /// Number of connections
    #[arg(short = 'q', long, default_value_t = 16, value_name = "COUNT",
          value_parser = clap::value_parser!(u32).range(1..=exchange::SHARED_SLOTS as i64))]
    num_qp: u32,
    #[command(flatten)]
    options: Options,
}

/// The kind of pingpong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// On one QP of this service.
    One(QpType),
    /// On this many connections with a shared receive queue.
    Shared(u32),
}

impl Kind {
    fn service(self) -> QpType {
        match self {
            Kind::One(service) => service,
            Kind::Shared(_) => QpType::Rc,
        }
    }

    fn qps(self) -> u32 {
        match self {
            Kind::One(_) => 1,
            Kind::Shared(count) => count,
        }
    }

    fn is_shared(self) -> bool {
        matches!(self, Kind::Shared(_))
    }

    /// Returns the number of addresses that each end sends.
    fn slots(self) -> usize {
        if self.is_shared() { exchange::SHARED_SLOTS } else { exchange::ONE }
    }
}

/// Options of the stock programs, under their letters.
#[derive(Clone, Debug, Args)]
pub(crate) struct Options {
    /// Host name or address of the server; without it, be the server
    server: Option<String>,
    /// TCP port for the exchange of addresses
    #[arg(short = 'p', long, default_value_t = 18515, value_name = "PORT", value_parser = stream::parse_port)]
    tcp_port: u16,
    /// Message size in bytes, 0 to 2^30, datagrams up to the MTU [default: 4096, datagrams 1024]
    #[arg(short, long, value_name = "BYTES",
          value_parser = clap::value_parser!(u32).range(0..=i64::from(MAX_SIZE)))]
    size: Option<u32>,
    /// Number of receives to keep posted
    #[arg(short, long, default_value_t = 500, value_name = "COUNT",
          value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_WR)))]
    rx_depth: u32,
    /// Number of exchanges
    #[arg(short = 'n', long, default_value_t = 1000, value_name = "COUNT",
          value_parser = clap::value_parser!(u64).range(1..))]
    iters: u64,
    /// Sleep on completion events instead of polling
    #[arg(short, long)]
    events: bool,
    /// Check every byte of every message (the client must have it too)
    #[arg(short = 'c', long)]
    chk: bool,
    /// Give up after this many seconds without a message
    #[arg(long, default_value_t = 30, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    patience: u64,
    /// Print the result as one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    device: DeviceOptions,
}

/// Runs the command.
pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    let (kind, options) = match &arguments.service {
        Service::Rc(options) => (Kind::One(QpType::Rc), options),
        Service::Uc(options) => (Kind::One(QpType::Uc), options),
        Service::Ud(options) => (Kind::One(QpType::Ud), options),
        Service::Srq(shared) => (Kind::Shared(shared.num_qp), &shared.options),
    };
    match play(kind, options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report("pingpong"),
    }
}

fn play(kind: Kind, options: &Options) -> Result<(), Failure> {
    if kind == Kind::One(QpType::Ud) && options.device.mtu.is_some() {
        return Err(Failure::Usage(
            "-m with datagrams: they are bounded by the link's MTU, leave it out".into(),
        ));
    }
    let mut options = options.clone();
    if options.events {
        // A command that sleeps does not poll: let an engine thread answer.
        options.device.drive.get_or_insert(THREAD);
    }
    let options = &options;
    let alone = options.device.port == Some(PortKind::Memory);
    if alone && options.server.is_some() {
        return Err(Failure::Usage(
            "--port memory plays both ends in this process: leave the server out".into(),
        ));
    }
    // Listen before opening the device: a busy port then leaves nothing to clean up, and clients may connect early.
    let listener =
        (options.server.is_none() && !alone).then(|| stream::listen(options.tcp_port)).transpose()?;
    let opened = options.device.open()?;
    match (&opened.far, listener, &options.server) {
        (Some(far), ..) => both_ends(kind, options, &opened, far),
        (None, Some(listener), _) => serve(kind, options, &opened, listener),
        (None, None, server) => {
            let mut end = End::new(kind, options, &opened.device, opened.gid_index)?;
            let server = server.as_deref().unwrap_or_default();
            let mut stream = stream::connect(server, options.tcp_port)?;
            end.meet_server(&mut stream)?;
            drop(stream);
            finish(options, &opened.device, end, true)
        }
    }
}

fn serve(kind: Kind, options: &Options, opened: &Opened, listener: TcpListener) -> Result<(), Failure> {
    let mut end = End::new(kind, options, &opened.device, opened.gid_index)?;
    let mut stream = stream::accept(listener, options.tcp_port)?;
    end.meet_client(&mut stream)?;
    drop(stream);
    finish(options, &opened.device, end, false)
}

fn finish(options: &Options, device: &Device, mut end: End<'_>, client: bool) -> Result<(), Failure> {
    // Print the event logs while the queue pairs exist.
    let outcome = end.play(client).inspect_err(|_| tell_logs(device))?;
    end.leave(options.device.timeout);
    outcome.print(options.json)?;
    options.device.finish_capture(device)
}

/// Runs the client on this thread, and the server on another.
fn both_ends(kind: Kind, options: &Options, opened: &Opened, far: &Device) -> Result<(), Failure> {
    let (mut near_stream, mut far_stream) =
        UnixStream::pair().map_err(|e| Failure::Run(format!("cannot make a socket pair: {e}")))?;
    let quiet = Options { json: true, ..options.clone() };
    std::thread::scope(|scope| {
        let server = scope.spawn(move || {
            let mut end = End::new(kind, &quiet, far, 0)?;
            end.meet_client(&mut far_stream)?;
            end.play(false).inspect_err(|_| tell_logs(far))?;
            end.leave(quiet.device.timeout);
            Ok(())
        });
        let mut client = || {
            let mut end = End::new(kind, options, &opened.device, opened.gid_index)?;
            end.meet_server(&mut near_stream)?;
            finish(options, &opened.device, end, true)
        };
        let here = client();
        near_stream.hang_up();
        let there: Result<(), Failure> =
            server.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        here.and(there)
    })
}
