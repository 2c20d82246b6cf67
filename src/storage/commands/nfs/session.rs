//! Options, the connection and its end, which all commands of a client share.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};
use roxie::host::{ConnectionManager, DialError};
use roxie_nfs::PORT;
use roxie_nfs::client::{Client, ClientError, ClientOptions, Ended, mount};
use roxie_nfs::mount::Status;
use roxie_nfs::nfs3::{FileHandle, Kind};
use roxie_nfs::server::{Export, Server};
use roxie_options::{DeviceOptions, Opened};
use roxie_report::failure::Failure;
use roxie_report::formats;
use roxie_report::output;
use serde_json::{Value, json};

use super::location::{Location, location, mounted};

/// Interval of notes about the progress of a transfer.
const NOTES: Duration = Duration::from_secs(2);

/// Options of every client.
#[derive(Clone, Debug, Args)]
pub(super) struct ConnectOptions {
    /// The server's address and a path there; with --port memory the path alone
    #[arg(value_name = "ADDRESS:/PATH", value_parser = OsStringValueParser::new().try_map(location))]
    pub(super) location: Location,
    /// Port of NFS over RDMA
    #[arg(long, value_name = "PORT", default_value_t = PORT)]
    nfs_port: u16,
    /// TCP port of MOUNT [default: what the server's port mapper says]
    #[arg(long, value_name = "PORT")]
    mount_port: Option<u16>,
    /// User number to call with [default: this process's]
    #[arg(long, value_name = "NUMBER")]
    user: Option<u32>,
    /// Group number to call with [default: this process's]
    #[arg(long, value_name = "NUMBER")]
    group: Option<u32>,
    /// With --port memory: the folder that this process serves to itself, read-only
    #[arg(long, value_name = "DIR")]
    export: Option<PathBuf>,
    #[command(flatten)]
    pub(super) device: DeviceOptions,
}

/// A connected client, with the device that it uses and, with `--port memory`, the server.
pub(super) struct Session {
    pub(super) client: Client,
    options: ClientOptions,
    /// Where MOUNT is answered.
    mount: (IpAddr, Option<u16>),
    server: Option<Server>,
    opened: Opened,
}

impl ConnectOptions {
    /// Opens the device, and connects.
    pub(super) fn connect(&self) -> Result<Session, Failure> {
        let opened = self.device.open()?;
        let failed = |error: DialError| failure(error.into());
        let (to, server, mount) = match (&opened.far, self.location.server) {
            (Some(_), Some(_)) => {
                return Err(Failure::Usage(
                    "--port memory has the server in this process: /PATH alone, and the folder as --export DIR".into(),
                ));
            }
            (None, None) => {
                return Err(Failure::Usage("the server's address is missing: ADDRESS:/PATH".into()));
            }
            (None, Some(ip)) => (SocketAddr::new(ip, self.nfs_port), None, (ip, self.mount_port)),
            (Some(far), None) => {
                let Some(folder) = &self.export else {
                    return Err(Failure::Usage(
                        "--port memory serves a folder in this process: --export DIR is missing".into(),
                    ));
                };
                let export = open_export(folder)?;
                let to = SocketAddr::new(far.gid(0)?.to_ip(), self.nfs_port);
                let manager = ConnectionManager::start(far).map_err(failed)?;
                let listen = (to, SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0));
                let server = Server::start(far, &manager, listen, export, Box::new(|_| {}));
                let server = server.map_err(|error| Failure::Run(error.to_string()))?;
                let at = server.mount_address();
                (to, Some(server), (at.ip(), Some(at.port())))
            }
        };
        let manager = ConnectionManager::start(&opened.device).map_err(failed)?;
        let mut options = ClientOptions::default();
        options.user = (self.user.unwrap_or(options.user.0), self.group.unwrap_or(options.user.1));
        let client = Client::connect(&opened.device, &manager, to, options.clone()).map_err(failure)?;
        Ok(Session { client, options, mount, server, opened })
    }
}

impl Session {
    /// Returns the handle of a folder that the server exports, or that is below one.
    pub(super) fn folder(&mut self, path: &[u8]) -> Result<FileHandle, ClientError> {
        let (path_to_mount, names) = mounted(path);
        let mut folder = mount(self.mount.0, self.mount.1, path_to_mount, &self.options.credential())?;
        for name in names {
            let path = String::from_utf8_lossy(path);
            let (handle, attributes) = self.client.lookup(&folder, name, &path)?;
            if attributes.kind != Kind::Folder {
                return Err(ClientError::Export { path: path.into(), status: Status::NOTDIR });
            }
            folder = handle;
        }
        Ok(folder)
    }

    /// Name of the port and its mode.
    pub(super) fn port(&self) -> Value {
        let info = self.opened.device.port();
        json!({"port": info.name, "mode": info.mode})
    }

    /// Ends the connection, the server of `--port memory`, and the capture.
    pub(super) fn close(self, options: &ConnectOptions) -> Result<(), Failure> {
        self.client.close().map_err(failure)?;
        drop(self.server);
        options.device.finish_capture(&self.opened.device)
    }
}

/// Opens a folder to be served.
pub(super) fn open_export(folder: &std::path::Path) -> Result<Arc<Export>, Failure> {
    let export = Export::open(folder);
    export.map(Arc::new).map_err(|error| Failure::Usage(format!("{}: {error}", folder.display())))
}

/// Returns the failure of an error: the peer's, or of the run.
pub(super) fn failure(error: ClientError) -> Failure {
    let text = error.to_string();
    match error {
        ClientError::Dial(DialError::Device(error)) => error.into(),
        ClientError::Dial(_)
        | ClientError::Mounting { .. }
        | ClientError::Export { .. }
        | ClientError::Status { .. }
        | ClientError::Call { .. }
        | ClientError::Lost(Ended::Closed | Ended::Protocol(_) | Ended::Unexpected(_))
        | ClientError::Protocol(_)
        | ClientError::Verifier { .. } => Failure::Peer(text),
        _ => Failure::Run(text),
    }
}

/// Notes about the progress of a transfer that takes longer than two seconds.
pub(super) struct Progress {
    path: String,
    /// Number of bytes in all, if it is known.
    total: Option<u64>,
    start: Instant,
    last: Instant,
}

impl Progress {
    pub(super) fn new(path: &str, total: Option<u64>) -> Progress {
        let start = Instant::now();
        Progress { path: path.to_owned(), total, start, last: start }
    }

    /// Says how many bytes are done, at most once in two seconds.
    pub(super) fn at(&mut self, bytes: u64) {
        if self.last.elapsed() < NOTES {
            return;
        }
        self.last = Instant::now();
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let of = self.total.map_or(String::new(), |total| format!(" of {:.1}", mib(total)));
        output::note(format_args!("{}: {:.1}{of} MiB", self.path, mib(bytes)));
    }

    /// Prints what was done: a note, or one JSON object.
    pub(super) fn finish(&self, verb: &str, bytes: u64, json: bool, port: &Value) -> Result<(), Failure> {
        let seconds = self.start.elapsed().as_secs_f64();
        if json {
            let mut result = json!({"path": self.path, "bytes": bytes, "seconds": seconds});
            if let (Some(all), Some(port)) = (result.as_object_mut(), port.as_object()) {
                all.extend(port.clone());
            }
            return formats::print(formats::NFS, result);
        }
        output::note(format_args!("{}: {bytes} bytes {verb} in {seconds:.2} s", self.path));
        Ok(())
    }
}
