//! `roxie nvme target`: serves files, block devices and memory to hosts.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use clap::Args;
use nix::sys::signal::Signal;
use nix::sys::signalfd::SignalFd;
use roxie::host::{ConnectionManager, DialError};
use roxie::text::Foreign;
use roxie_nvmeof::subsystem::{Limits, Subsystem};
use roxie_nvmeof::target::{Report, Target, TargetEvent};
use roxie_options::{DeviceOptions, PortKind, THREAD};
use roxie_report::failure::{EXIT_CODES, Failure};
use roxie_report::formats;
use roxie_report::line_rate::LineRate;
use roxie_report::output;
use roxie_report::signals;
use serde_json::json;

use super::NQN;
use super::block_options::{Disk, disk, listen_address, name};

/// Interval between two checks that the device works.
const LOOK: Duration = Duration::from_secs(1);
/// Lines a second about connections, which any host can cause, and their burst.
const LINES: (u32, u32) = (10, 256);

/// Serve disks to hosts over RDMA
#[derive(Debug, Args)]
#[command(
    long_about = "Serves files, block devices or memory to NVMe over Fabrics hosts over RDMA, without privilege over \
        UDP sockets. A Linux host needs no more than its kernel: `nvme connect -t rdma -a ADDRESS -n NQN` makes each \
        namespace a disk. The namespaces have the identifiers 1, 2 and so on.\n\nA write is complete when the file has \
        it; a flush makes it durable. SIGTERM and SIGINT end the target with all data flushed: hosts that reconnect, \
        as Linux does, continue when it runs again. SIGHUP takes over the lengths of files, and notifies hosts of \
        those that have changed.\n\nWhoever reaches the address may connect, unless --host-nqn names the hosts. A name \
        is no proof of identity: the network must be one of trusted hosts. Only one target may serve a file at a time.\n\nThe connection manager chooses the ACK timeout of connections: --timeout and --retry have no effect.",
    after_help = format!(
        "Examples:\n  roxie nvme target disk.img                       at port 4420 of all addresses\n  roxie nvme target \
         memory:64M --block-size 4096\n  roxie nvme target --read-only --host-nqn nqn.2026-11.example:alice \
         disk.img\n\n{EXIT_CODES}"
    )
)]
pub(super) struct Arguments {
    /// The namespaces: files, block devices, or memory:SIZE
    #[arg(required = true, value_name = "NAMESPACE", value_parser = disk)]
    namespaces: Vec<Disk>,
    /// Name of the subsystem
    #[arg(long, default_value = NQN, value_parser = name)]
    nqn: String,
    /// Listen at this address, port or both [default: port 4420 of all addresses of the device]
    #[arg(long, value_name = "[ADDRESS:]PORT", value_parser = listen_address, default_value = "4420", hide_default_value = true)]
    listen: SocketAddr,
    /// Bytes of a block: 512 or 4096
    #[arg(long, value_name = "BYTES", default_value_t = 512, value_parser = block_size)]
    block_size: u32,
    /// Admit the host of this name; repeatable [default: all hosts]
    #[arg(long, value_name = "NQN", value_parser = name)]
    host_nqn: Vec<String>,
    /// Refuse writes
    #[arg(long)]
    read_only: bool,
    /// Most commands outstanding on an I/O queue, 2 to 1024
    #[arg(long, value_name = "N", default_value_t = Limits::default().queue_size, value_parser = clap::value_parser!(u16).range(2..=1024))]
    queue_size: u16,
    /// Most I/O queues of a host, 1 to 64
    #[arg(long, value_name = "N", default_value_t = Limits::default().queues, value_parser = clap::value_parser!(u16).range(1..=64))]
    queues: u16,
    /// Most hosts at a time, 1 to 1024
    #[arg(long, value_name = "N", default_value_t = Limits::default().controllers, value_parser = clap::value_parser!(u16).range(1..=1024))]
    hosts: u16,
    /// Print one JSON object a line about each connection
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    device: DeviceOptions,
}

fn block_size(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(size @ (512 | 4096)) => Ok(size),
        _ => Err("512 or 4096".into()),
    }
}

/// Serves until a signal, or until the device fails.
pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    if arguments.device.asked_port() == Some(PortKind::Memory) {
        return Err(Failure::Usage(
            "--port memory has both ends in one process: `roxie nvme bench --port memory` runs target and host so".into(),
        ));
    }
    // Block signals before any thread starts, so that no thread takes them.
    let signals = signals::catch_in_command()?;
    // Wrong names and files are reported before a device is opened.
    let subsystem = Arc::new(subsystem(arguments)?);
    let mut options = arguments.device.clone();
    options.drive.get_or_insert(THREAD);
    let opened = options.open()?;
    let manager =
        ConnectionManager::start(&opened.device).map_err(|error| Failure::Device(error.to_string()))?;
    let has_failed = Arc::new(AtomicBool::new(false));
    let report = report(arguments.json, Arc::clone(&has_failed));
    let target = Target::start(&opened.device, &manager, arguments.listen, Arc::clone(&subsystem), report);
    let target = target.map_err(|error| match error {
        DialError::Port { .. } | DialError::Manager(_) => Failure::Usage(format!(
            "cannot listen at {}: {error}: does another target run? `roxie show cm_id` lists listeners, and --listen takes \
             another port",
            arguments.listen
        )),
        other => Failure::Device(other.to_string()),
    })?;
    announce(arguments, &subsystem, &target)?;
    serve(&signals, &subsystem, &has_failed)?;
    target.stop().map_err(|error| Failure::Run(format!("flushing: {error}: the last writes may be lost")))?;
    options.finish_capture(&opened.device)
}

fn subsystem(arguments: &Arguments) -> Result<Subsystem, Failure> {
    let open =
        |(id, disk): (u32, &Disk)| disk.open(&arguments.nqn, id, arguments.block_size, arguments.read_only);
    let namespaces = (1..).zip(&arguments.namespaces).map(open).collect::<Result<Vec<_>, _>>()?;
    let limits = Limits {
        queue_size: arguments.queue_size,
        queues: arguments.queues,
        controllers: arguments.hosts,
        ..Limits::default()
    };
    Subsystem::new(&arguments.nqn, namespaces, arguments.host_nqn.clone(), limits).map_err(Failure::Usage)
}

/// Says where the target listens: one line for programs that wait for it.
fn announce(arguments: &Arguments, subsystem: &Subsystem, target: &Target) -> Result<(), Failure> {
    let addresses: Vec<String> = target.addresses().iter().map(ToString::to_string).collect();
    if arguments.json {
        let sizes: Vec<u64> = subsystem.namespaces().iter().map(|n| n.blocks() << n.block_shift()).collect();
        let ready =
            json!({"event": "ready", "nqn": arguments.nqn, "addresses": addresses, "namespace_bytes": sizes});
        return formats::print(formats::NVME, ready);
    }
    output::note(format_args!("{} is served at {}", arguments.nqn, addresses.join(", ")));
    Ok(())
}

/// Returns the receiver of events, which prints a limited number of lines.
fn report(json: bool, has_failed: Arc<AtomicBool>) -> Report {
    let rate = LineRate::new(LINES.0, LINES.1);
    Box::new(move |event| {
        if matches!(event, TargetEvent::DeviceFailed) {
            has_failed.store(true, Relaxed);
        }
        if !rate.takes(Instant::now()) {
            return;
        }
        match (event, json) {
            (TargetEvent::Connected { peer, host, controller, queue }, true) => {
                let _ = formats::print(
                    formats::NVME,
                    json!({
                        "event": "connected", "peer": peer.to_string(), "host": host, "controller": controller, "queue": queue
                    }),
                );
            }
            (TargetEvent::Ended { peer, why }, true) => {
                let _ = formats::print(
                    formats::NVME,
                    json!({"event": "ended", "peer": peer.to_string(), "why": why}),
                );
            }
            (TargetEvent::Connected { peer, host, controller, queue }, false) => output::note(format_args!(
                "{peer}: queue {queue} of controller {controller} connected, host {}",
                Foreign::from(host)
            )),
            (TargetEvent::Ended { peer, why }, false) => output::note(format_args!("{peer}: {why}")),
            (TargetEvent::DeviceFailed, _) => {}
        }
    })
}

fn serve(signals: &SignalFd, subsystem: &Subsystem, has_failed: &AtomicBool) -> Result<(), Failure> {
    loop {
        match signals::next(signals, LOOK) {
            Some(Signal::SIGHUP) => match subsystem.look() {
                Ok(changed) if changed.is_empty() => output::note("no namespace has another length"),
                Ok(changed) => output::note(format_args!("namespaces {changed:?} have another length")),
                Err(error) => output::note(format_args!("the lengths of namespaces: {error}")),
            },
            Some(_) => return Ok(()),
            None => {}
        }
        if has_failed.load(Relaxed) {
            return Err(Failure::Run("the engine has failed (see above): this is a bug in roxie".into()));
        }
    }
}
