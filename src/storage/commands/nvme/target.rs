//! `roxie nvme target`: serves files, block devices and memory to hosts.

use std::net::SocketAddr;
use std::sync::Arc;

use clap::Args;
use nix::sys::signal::Signal;
use roxie_nvmeof::subsystem::{Limits, Subsystem};
use roxie_nvmeof::target::Target;
use roxie_report::failure::{EXIT_CODES, Failure};
use roxie_report::formats::NVME;
use roxie_report::output;
use serde_json::json;

use super::NQN;
use super::block_options::{Disk, disk, listen_address, name};
use crate::commands::serve::{ServeOptions, cannot_listen};

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
    #[command(flatten)]
    serve: ServeOptions,
}

fn block_size(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(size @ (512 | 4096)) => Ok(size),
        _ => Err("512 or 4096".into()),
    }
}

/// Serves until a signal, or until the device fails.
pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let Arguments { nqn, listen, serve, .. } = arguments;
    let (serving, subsystem) = serve.open("roxie nvme bench --port memory", || subsystem(arguments))?;
    let subsystem = Arc::new(subsystem);
    let report = serve.report(NVME);
    let target =
        Target::start(&serving.opened.device, &serving.manager, *listen, Arc::clone(&subsystem), report);
    let target = target.map_err(|error| cannot_listen(*listen, &error))?;
    let addresses: Vec<String> = target.addresses().iter().map(ToString::to_string).collect();
    let sizes: Vec<u64> = subsystem.namespaces().iter().map(|n| n.blocks() << n.block_shift()).collect();
    let ready = json!({"event": "ready", "nqn": nqn, "addresses": addresses, "namespace_bytes": sizes});
    serve.announce(NVME, ready, format_args!("{nqn} is served at {}", addresses.join(", ")))?;
    serving.wait(|signal| ends(signal, &subsystem))?;
    target.stop().map_err(|error| Failure::Run(format!("flushing: {error}: the last writes may be lost")))?;
    serving.finish()
}

/// True if a signal ends the target. SIGHUP takes over the lengths of namespaces.
fn ends(signal: Signal, subsystem: &Subsystem) -> bool {
    if signal != Signal::SIGHUP {
        return true;
    }
    match subsystem.look() {
        Ok(changed) if changed.is_empty() => output::note("no namespace has another length"),
        Ok(changed) => output::note(format_args!("namespaces {changed:?} have another length")),
        Err(error) => output::note(format_args!("the lengths of namespaces: {error}")),
    }
    false
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
