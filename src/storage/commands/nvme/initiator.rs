//! What the commands of an initiator share: options, the connection, and its end.

use std::net::SocketAddr;
use std::sync::Arc;

use clap::Args;
use roxie::host::{ConnectionManager, DialError};
use roxie_nvmeof::cm;
use roxie_nvmeof::initiator::{Ended, HostOptions, Initiator, InitiatorError};
use roxie_nvmeof::subsystem::{Limits, Subsystem};
use roxie_nvmeof::target::Target;
use roxie_options::{DeviceOptions, Opened};
use roxie_report::failure::Failure;
use serde_json::{Value, json};

use super::NQN;
use super::block_options::{Disk, address, name, random_host_id};

/// Bytes of the namespace that `--port memory` serves.
const MEMORY_DISK: u64 = 64 << 20;

/// Options of every initiator.
#[derive(Clone, Debug, Args)]
pub(super) struct ConnectOptions {
    /// Address of the target, with its port if that is not 4420; none with --port memory, where this process is the
    /// target
    #[arg(value_name = "ADDRESS[:PORT]", value_parser = address)]
    target: Option<SocketAddr>,
    /// Name of this host [default: of a random UUID]
    #[arg(long, value_name = "NQN", value_parser = name)]
    host_nqn: Option<String>,
    #[command(flatten)]
    pub(super) device: DeviceOptions,
}

/// Options that name a namespace.
#[derive(Clone, Debug, Args)]
pub(super) struct NamespaceOptions {
    /// Name of the subsystem
    #[arg(long, default_value = NQN, value_parser = name)]
    pub(super) nqn: String,
    /// Namespace identifier
    #[arg(short, long, value_name = "ID", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) namespace: u32,
    /// Commands outstanding at most; the controller may allow fewer
    #[arg(short = 't', long, value_name = "COUNT", default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(super) depth: u16,
}

/// A connected initiator, with the device that it uses and, with `--port memory`, the target.
pub(super) struct Session {
    pub(super) initiator: Initiator,
    target: Option<Target>,
    opened: Opened,
}

impl ConnectOptions {
    /// Opens the device, and connects the admin queue to the subsystem `nqn`.
    pub(super) fn connect(&self, nqn: &str, depth: u16) -> Result<Session, Failure> {
        let opened = self.device.open()?;
        let failed = |error: DialError| failure(error.into());
        let (to, target) = match (&opened.far, self.target) {
            (Some(_), Some(_)) => {
                return Err(Failure::Usage(
                    "--port memory has the target in this process: leave ADDRESS out".into(),
                ));
            }
            (None, None) => return Err(Failure::Usage("ADDRESS of the target is missing".into())),
            (None, Some(to)) => (to, None),
            (Some(far), None) => {
                let to = SocketAddr::new(far.gid(0)?.to_ip(), cm::PORT);
                let disk = Disk::Memory(MEMORY_DISK).open(NQN, 1, 512, false)?;
                let subsystem = Subsystem::new(NQN, vec![disk], Vec::new(), Limits::default());
                let subsystem = Arc::new(subsystem.map_err(Failure::Run)?);
                let manager = ConnectionManager::start(far).map_err(failed)?;
                let target = Target::start(far, &manager, to, subsystem, Box::new(|_| {})).map_err(failed)?;
                (to, Some(target))
            }
        };
        let manager = ConnectionManager::start(&opened.device).map_err(failed)?;
        let mut options = HostOptions::new(nqn, random_host_id());
        options.queue_size = depth;
        if let Some(host) = &self.host_nqn {
            options.host.clone_from(host);
        }
        let initiator = Initiator::connect(&opened.device, &manager, to, options).map_err(failure)?;
        Ok(Session { initiator, target, opened })
    }
}

impl Session {
    /// Name of the port and its mode.
    pub(super) fn port(&self) -> Value {
        let info = self.opened.device.port();
        json!({"port": info.name, "mode": info.mode})
    }

    /// Ends the connection, the target of `--port memory`, and the capture.
    pub(super) fn close(self, options: &ConnectOptions) -> Result<(), Failure> {
        self.initiator.close().map_err(failure)?;
        if let Some(target) = self.target {
            target.stop().map_err(|error| Failure::Run(error.to_string()))?;
        }
        options.device.finish_capture(&self.opened.device)
    }
}

/// Returns the failure of an error: the peer's, or of the run.
pub(super) fn failure(error: InitiatorError) -> Failure {
    let text = error.to_string();
    match error {
        InitiatorError::Dial(DialError::Device(error)) => error.into(),
        InitiatorError::Dial(_)
        | InitiatorError::Queue { .. }
        | InitiatorError::Refused { .. }
        | InitiatorError::Lost(Ended::Protocol(_) | Ended::Unexpected(_))
        | InitiatorError::Protocol(_) => Failure::Peer(text),
        _ => Failure::Run(text),
    }
}
