//! `roxie nvme list` and `roxie nvme id`: what a target offers.

use clap::Args;
use roxie_nvmeof::identify::{Controller, Namespace};
use roxie_nvmeof::nqn;
use roxie_report::failure::{EXIT_CODES, Failure};
use roxie_report::formats;
use roxie_report::output;
use serde_json::{Value, json};

use super::NQN;
use super::block_options::name;
use super::initiator::{ConnectOptions, failure};

/// List the subsystems that a target offers to this host
#[derive(Debug, Args)]
#[command(
    long_about = "Asks the discovery service of a target which subsystems this host may use, and at which addresses.",
    after_help = format!(
        "Examples:\n  roxie nvme list --port memory              both ends in this process\n  roxie nvme list 192.0.2.1\n  \
         roxie nvme list 192.0.2.1:4421 --json\n\n{EXIT_CODES}"
    )
)]
pub(super) struct ListArguments {
    #[command(flatten)]
    connect: ConnectOptions,
    /// Print one JSON object for each subsystem
    #[arg(long)]
    json: bool,
}

/// Show a controller and its namespaces
#[derive(Debug, Args)]
#[command(
    long_about = "Connects to a subsystem, and shows what Identify says about the controller and all active namespaces.",
    after_help = format!(
        "Examples:\n  roxie nvme id --port memory                both ends in this process\n  roxie nvme id 192.0.2.1 --nqn \
         {NQN}\n\n{EXIT_CODES}"
    )
)]
pub(super) struct IdArguments {
    #[command(flatten)]
    connect: ConnectOptions,
    /// Name of the subsystem
    #[arg(long, default_value = NQN, value_parser = name)]
    nqn: String,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Lists subsystems.
pub(super) fn list(arguments: &ListArguments) -> Result<(), Failure> {
    let mut session = arguments.connect.connect(nqn::DISCOVERY, 2)?;
    let log = session.initiator.discover().map_err(failure)?;
    for entry in &log.entries {
        if arguments.json {
            formats::print(
                formats::NVME,
                json!({
                    "nqn": entry.subsystem, "transport": entry.transport_name(), "address": entry.address,
                    "service": entry.service, "type": entry.kind, "port": entry.port,
                }),
            )?;
        } else {
            let kind = match entry.kind {
                1 | 3 => " (discovery)",
                _ => "",
            };
            output::line(format_args!(
                "{}  {} {} port {}{kind}",
                entry.subsystem,
                entry.transport_name(),
                entry.address,
                entry.service
            ))?;
        }
    }
    if log.entries.is_empty() {
        output::note("the target offers no subsystem to this host");
    }
    session.close(&arguments.connect)
}

/// Shows a controller.
pub(super) fn id(arguments: &IdArguments) -> Result<(), Failure> {
    let mut session = arguments.connect.connect(&arguments.nqn, 2)?;
    let initiator = &mut session.initiator;
    let ids = if initiator.identity().is_discovery {
        Vec::new()
    } else {
        initiator.namespaces().map_err(failure)?
    };
    let mut namespaces = Vec::new();
    for id in ids {
        namespaces.push((id, initiator.namespace(id).map_err(failure)?));
    }
    let controller = initiator.identity();
    if arguments.json {
        formats::print(formats::NVME, as_json(controller, &namespaces))?;
    } else {
        print(controller, &namespaces)?;
    }
    session.close(&arguments.connect)
}

fn guid(namespace: &Namespace) -> String {
    namespace.guid.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn as_json(controller: &Controller, namespaces: &[(u32, Namespace)]) -> Value {
    let namespaces: Vec<Value> = namespaces
        .iter()
        .map(|(id, namespace)| {
            json!({
                "id": id, "blocks": namespace.blocks, "block_bytes": 1u64 << namespace.block_shift,
                "read_only": namespace.is_read_only, "guid": guid(namespace),
            })
        })
        .collect();
    json!({
        "nqn": controller.subsystem, "controller": controller.id, "model": controller.model,
        "serial": controller.serial, "firmware": controller.firmware,
        "nvme_version": version(controller), "longest_transfer_bytes": controller.longest_transfer,
        "in_capsule_bytes": in_capsule(controller), "queue_size": controller.commands,
        "write_cache": controller.has_write_cache, "namespaces": namespaces,
    })
}

fn version(controller: &Controller) -> String {
    format!("{}.{}", controller.version >> 16, controller.version >> 8 & 0xff)
}

fn in_capsule(controller: &Controller) -> u32 {
    controller.capsule.saturating_sub(roxie_nvmeof::command::LENGTH as u32)
}

fn print(controller: &Controller, namespaces: &[(u32, Namespace)]) -> Result<(), Failure> {
    let longest =
        controller.longest_transfer.map_or("unlimited".to_owned(), |bytes| format!("{} KiB", bytes >> 10));
    output::line(format_args!("subsystem         {}", controller.subsystem))?;
    output::line(format_args!(
        "controller        {}, {} {}, serial {}, NVMe {}",
        controller.id,
        controller.model,
        controller.firmware,
        controller.serial,
        version(controller)
    ))?;
    output::line(format_args!("longest transfer  {longest}, {} B in a capsule", in_capsule(controller)))?;
    output::line(format_args!("queue             {} commands", controller.commands))?;
    for (id, namespace) in namespaces {
        output::line(format_args!(
            "namespace {id:<7} {} blocks of {} B{}, GUID {}",
            namespace.blocks,
            1u64 << namespace.block_shift,
            if namespace.is_read_only { ", read-only" } else { "" },
            guid(namespace)
        ))?;
    }
    Ok(())
}
