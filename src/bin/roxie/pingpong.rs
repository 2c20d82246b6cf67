//! `roxie pingpong`: the example programs of rdma-core, with one of their ends or both being ours.

use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use roxie::host::Device;
use roxie::limits::MAX_WR;
use roxie::verbs::{Mtu, QpType};

use crate::common::stream::{self, Stream};
use crate::common::{DeviceOptions, EXIT_CODES, Failure, Opened, PortKind, THREAD};

mod end;
mod exchange;

use end::End;

/// The longest message: what a buffer is allocated for, twice.
const MAX_SIZE: u32 = 1 << 30;
/// The path MTU that the stock program asks for unless told otherwise.
const STOCK_MTU: Mtu = Mtu::Mtu1024;

/// Which pingpong.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    service: Service,
}

#[derive(Debug, Subcommand)]
enum Service {
    /// Send messages to and fro over a reliable connection, as `ibv_rc_pingpong` does
    #[command(
        long_about = "Sends messages to and fro over a reliable connection. Without SERVER it waits for a client, \
            with SERVER it is the client.\n\nThe other end may be the same command or `ibv_rc_pingpong` of rdma-core \
            on any RoCE v2 device: the addresses are exchanged over TCP in its format, and the options mean the same. \
            Start that one with -g and the index of its RoCE v2 GID. Sizes, MTUs and iterations must be the same at \
            both ends; the exchange does not carry them.",
        after_help = format!(
            "Examples:\n  roxie pingpong rc --port memory            both ends in this process\n  roxie pingpong rc \
             --dev eth0                waits for a client\n  roxie pingpong rc --dev eth0 192.0.2.1      plays with \
             it\n  ibv_rc_pingpong -d rxe0 -g 1 192.0.2.1      so does the stock program\n\n{EXIT_CODES}"
        )
    )]
    Rc(Options),
    /// Send messages to and fro over an unreliable connection, as `ibv_uc_pingpong` does
    #[command(
        long_about = "Sends messages to and fro over an unreliable connection. Without SERVER it waits for a client, \
            with SERVER it is the client.\n\nThe other end may be the same command or `ibv_uc_pingpong` of rdma-core, \
            as for `pingpong rc`. Nothing is acknowledged or sent again: a message that is lost ends the game.",
        after_help = format!(
            "Examples:\n  roxie pingpong uc --dev eth0                waits for a client\n  roxie pingpong uc --dev \
             eth0 192.0.2.1      plays with it\n  ibv_uc_pingpong -d rxe0 -g 1 192.0.2.1      so does the stock \
             program\n\n{EXIT_CODES}"
        )
    )]
    Uc(Options),
    /// Send datagrams to and fro, as `ibv_ud_pingpong` does
    #[command(
        long_about = "Sends datagrams to and fro. Without SERVER it waits for a client, with SERVER it is the \
            client.\n\nThe other end may be the same command or `ibv_ud_pingpong` of rdma-core, as for `pingpong rc`. A \
            datagram is one packet, so a message is no longer than the MTU; each has 40 bytes of network header in \
            front of it in the receive. Nothing is acknowledged or sent again: a datagram that is lost ends the game.",
        after_help = format!(
            "Examples:\n  roxie pingpong ud --dev eth0                waits for a client\n  roxie pingpong ud --dev \
             eth0 192.0.2.1      plays with it\n  ibv_ud_pingpong -d rxe0 -g 1 192.0.2.1      so does the stock \
             program\n\n{EXIT_CODES}"
        )
    )]
    Ud(Options),
}

/// Options of the stock programs, under their letters.
#[derive(Clone, Debug, Args)]
pub(crate) struct Options {
    /// Host name or address of the server; without it this is the server
    server: Option<String>,
    /// TCP port for the exchange of addresses
    #[arg(short = 'p', long, default_value_t = 18515, value_name = "PORT", value_parser = stream::parse_port)]
    tcp_port: u16,
    /// Bytes of a message, 0 to 2^30; of a datagram up to the MTU [default: 4096, of a datagram 1024]
    #[arg(short, long, value_name = "BYTES",
          value_parser = clap::value_parser!(u32).range(0..=i64::from(MAX_SIZE)))]
    size: Option<u32>,
    /// Receives to keep posted
    #[arg(short, long, default_value_t = 500, value_name = "COUNT",
          value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_WR)))]
    rx_depth: u32,
    /// Exchanges
    #[arg(short = 'n', long, default_value_t = 1000, value_name = "COUNT",
          value_parser = clap::value_parser!(u64).range(1..))]
    iters: u64,
    /// Sleep on completion events instead of polling
    #[arg(short, long)]
    events: bool,
    /// Check every byte of every message (the client must have it too)
    #[arg(short = 'c', long)]
    chk: bool,
    /// Give up when no message has come for so many seconds
    #[arg(long, default_value_t = 30, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    patience: u64,
    /// Print the result as one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    device: DeviceOptions,
}

/// Plays.
pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    let (service, options) = match &arguments.service {
        Service::Rc(options) => (QpType::Rc, options),
        Service::Uc(options) => (QpType::Uc, options),
        Service::Ud(options) => (QpType::Ud, options),
    };
    match play(service, options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report("pingpong"),
    }
}

fn play(service: QpType, options: &Options) -> Result<(), Failure> {
    if service == QpType::Ud && options.device.mtu.is_some() {
        return Err(Failure::Usage(
            "-m with datagrams: they are bounded by the link's MTU, leave it out".into(),
        ));
    }
    let mut options = options.clone();
    if options.events {
        // Nobody polls: a thread of its own answers at once, the caller's fallback only after a while.
        options.device.drive.get_or_insert(THREAD);
    }
    let options = &options;
    let alone = options.device.port == Some(PortKind::Memory);
    if alone && options.server.is_some() {
        return Err(Failure::Usage(
            "--port memory plays both ends in this process: leave the server out".into(),
        ));
    }
    // Before the device, so that a busy port leaves nothing to clean up, and clients may come early.
    let listener =
        (options.server.is_none() && !alone).then(|| stream::listen(options.tcp_port)).transpose()?;
    let opened = options.device.open()?;
    match (&opened.far, listener, &options.server) {
        (Some(far), ..) => both_ends(service, options, &opened, far),
        (None, Some(listener), _) => serve(service, options, &opened, listener),
        (None, None, server) => {
            let mut end = End::new(service, options, &opened.device, opened.gid_index)?;
            let server = server.as_deref().unwrap_or_default();
            let mut stream = stream::connect(server, options.tcp_port)?;
            let there = exchange::as_client(&mut stream, end.endpoint())?;
            drop(stream);
            end.connect(&there)?;
            finish(options, end, true)
        }
    }
}

fn serve(service: QpType, options: &Options, opened: &Opened, listener: TcpListener) -> Result<(), Failure> {
    let mut end = End::new(service, options, &opened.device, opened.gid_index)?;
    let mut stream = stream::accept(listener, options.tcp_port)?;
    let own = *end.endpoint();
    exchange::as_server(&mut stream, &own, |there| end.connect(there))?;
    drop(stream);
    finish(options, end, false)
}

fn finish(options: &Options, mut end: End<'_>, client: bool) -> Result<(), Failure> {
    let (outcome, device) = (end.play(client)?, end.device());
    end.leave(options.device.timeout);
    outcome.print(options.json)?;
    options.device.finish_capture(device)
}

/// The client here, the server on a thread.
fn both_ends(service: QpType, options: &Options, opened: &Opened, far: &Device) -> Result<(), Failure> {
    let (mut near_stream, mut far_stream) =
        UnixStream::pair().map_err(|e| Failure::Run(format!("cannot make a socket pair: {e}")))?;
    let quiet = Options { json: true, ..options.clone() };
    std::thread::scope(|scope| {
        let server = scope.spawn(move || {
            let mut end = End::new(service, &quiet, far, 0)?;
            let own = *end.endpoint();
            exchange::as_server(&mut far_stream, &own, |there| end.connect(there))?;
            end.play(false)?;
            end.leave(quiet.device.timeout);
            Ok(())
        });
        let mut client = || {
            let mut end = End::new(service, options, &opened.device, opened.gid_index)?;
            let there = exchange::as_client(&mut near_stream, end.endpoint())?;
            end.connect(&there)?;
            finish(options, end, true)
        };
        let here = client();
        near_stream.hang_up();
        let there: Result<(), Failure> =
            server.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        here.and(there)
    })
}
