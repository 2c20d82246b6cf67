//! `roxie nfs serve`: exports a folder, read-only.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use clap::Args;
use nix::sys::signalfd::SignalFd;
use roxie::host::{ConnectionManager, DialError};
use roxie::text::Foreign;
use roxie_nfs::MOUNT_PORT;
use roxie_nfs::server::{Report, Server, ServerEvent, StartError};
use roxie_options::{DeviceOptions, PortKind, THREAD};
use roxie_report::failure::{EXIT_CODES, Failure};
use roxie_report::formats;
use roxie_report::line_rate::LineRate;
use roxie_report::output;
use roxie_report::signals;
use serde_json::json;

use super::location::listen_address;
use super::session::open_export;

/// Interval between two checks that the device works.
const LOOK: Duration = Duration::from_secs(1);
/// Lines a second about connections, which any client can cause, and their burst.
const LINES: (u32, u32) = (10, 256);

/// Serve a folder to NFS clients over RDMA, read-only
#[derive(Debug, Args)]
#[command(
    long_about = "Serves a folder to NFS version 3 clients over RDMA, read-only, without privilege over UDP sockets. A Linux \
        client needs no more than its kernel:\n\n  mount -t nfs -o vers=3,proto=rdma,port=20049,mountport=20048,mountproto=tcp,nolock \
        ADDRESS:/ /mnt\n\nMOUNT is answered at a TCP port of its own, and no port mapper is asked. Nothing outside the folder is \
        reached: symbolic links are not followed, and other file systems mounted below the folder are not entered. Calls that change \
        files are refused (NFS3ERR_ROFS). SIGTERM and SIGINT end the server.\n\nWhoever reaches the address may read all that this \
        process may read below the folder: users are not told apart, so serve nothing that is secret, to a network of trusted hosts. \
        The handles that clients have end with the server: they mount again.\n\nThe connection manager chooses the ACK timeout of \
        connections: --timeout and --retry have no effect.",
    after_help = format!(
        "Examples:\n  roxie nfs serve folder                           at port 20049 of all addresses\n  roxie nfs serve folder --listen \
         192.0.2.1:20050 --mount-port 20051\n\n{EXIT_CODES}"
    )
)]
pub(super) struct Arguments {
    /// The folder
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// Listen at this port, or address and port [default: port 20049 of all addresses of the device]
    #[arg(long, value_name = "[ADDRESS:]PORT", value_parser = listen_address, default_value = "20049", hide_default_value = true)]
    listen: SocketAddr,
    /// TCP port of MOUNT, at the same address
    #[arg(long, value_name = "PORT", default_value_t = MOUNT_PORT)]
    mount_port: u16,
    /// Print one JSON object a line about each connection
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    device: DeviceOptions,
}

/// Serves until a signal, or until the device fails.
pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    if arguments.device.asked_port() == Some(PortKind::Memory) {
        return Err(Failure::Usage(
            "--port memory has both ends in one process: `roxie nfs ls / --port memory --export DIR` runs server and client so".into(),
        ));
    }
    // Block signals before any thread starts, so that no thread takes them.
    let signals = signals::catch_in_command()?;
    // A wrong folder is reported before a device is opened.
    let export = open_export(&arguments.folder)?;
    let mut options = arguments.device.clone();
    options.drive.get_or_insert(THREAD);
    let opened = options.open()?;
    let manager =
        ConnectionManager::start(&opened.device).map_err(|error| Failure::Device(error.to_string()))?;
    let has_failed = Arc::new(AtomicBool::new(false));
    let report = report(arguments.json, Arc::clone(&has_failed));
    let listen = (arguments.listen, SocketAddr::new(arguments.listen.ip(), arguments.mount_port));
    let server = Server::start(&opened.device, &manager, listen, export, report).map_err(|error| match error {
        StartError::Listen(DialError::Port { .. } | DialError::Manager(_)) => Failure::Usage(format!(
            "cannot listen at {}: {error}: does another server run? `roxie show cm_id` lists listeners, and --listen takes \
             another port",
            arguments.listen
        )),
        StartError::Mount { .. } => {
            Failure::Usage(format!("{error}: does another server run? --mount-port takes another port"))
        }
        other => Failure::Device(other.to_string()),
    })?;
    announce(arguments, &server)?;
    serve(&signals, &has_failed)?;
    drop(server);
    options.finish_capture(&opened.device)
}

/// Says where the server listens: one line for programs that wait for it.
fn announce(arguments: &Arguments, server: &Server) -> Result<(), Failure> {
    let (listen, mount) = (arguments.listen, server.mount_address());
    if arguments.json {
        let (folder, port) = (arguments.folder.display().to_string(), mount.port());
        let ready =
            json!({"event": "ready", "folder": folder, "listen": listen.to_string(), "mount_port": port});
        return formats::print(formats::NFS, ready);
    }
    output::note(format_args!(
        "{} is served at {listen}, MOUNT at TCP port {}",
        arguments.folder.display(),
        mount.port()
    ));
    Ok(())
}

/// Returns the receiver of events, which prints a limited number of lines.
fn report(json: bool, has_failed: Arc<AtomicBool>) -> Report {
    let rate = LineRate::new(LINES.0, LINES.1);
    Box::new(move |event| {
        if matches!(event, ServerEvent::DeviceFailed) {
            has_failed.store(true, Relaxed);
        }
        if !rate.takes(Instant::now()) {
            return;
        }
        if json {
            let _ = as_json(&event).map_or(Ok(()), |event| formats::print(formats::NFS, event));
        } else if let Some(text) = as_text(&event) {
            output::note(text);
        }
    })
}

fn as_json(event: &ServerEvent) -> Option<serde_json::Value> {
    Some(match event {
        ServerEvent::Mounted { peer, path, refusal } => {
            json!({"event": "mounted", "peer": peer.to_string(), "path": path, "refusal": refusal})
        }
        ServerEvent::Connected { peer } => json!({"event": "connected", "peer": peer.to_string()}),
        ServerEvent::Refused { peer, procedure } => {
            json!({"event": "refused", "peer": peer.to_string(), "procedure": procedure})
        }
        ServerEvent::Ended { peer, why } => json!({"event": "ended", "peer": peer.to_string(), "why": why}),
        ServerEvent::DeviceFailed => return None,
    })
}

fn as_text(event: &ServerEvent) -> Option<String> {
    Some(match event {
        ServerEvent::Mounted { peer, path, refusal: None } => {
            format!("{peer}: mounts {}", Foreign::from(path.as_str()))
        }
        ServerEvent::Mounted { peer, path, refusal: Some(why) } => {
            format!("{peer}: may not mount {}: {why}", Foreign::from(path.as_str()))
        }
        ServerEvent::Connected { peer } => format!("{peer}: connected"),
        ServerEvent::Refused { peer, procedure } => {
            format!("{peer}: {procedure} refused: the export is read-only")
        }
        ServerEvent::Ended { peer, why } => format!("{peer}: {why}"),
        ServerEvent::DeviceFailed => return None,
    })
}

fn serve(signals: &SignalFd, has_failed: &AtomicBool) -> Result<(), Failure> {
    loop {
        if signals::next(signals, LOOK).is_some() {
            return Ok(());
        }
        if has_failed.load(Relaxed) {
            return Err(Failure::Run("the engine has failed (see above): this is a bug in roxie".into()));
        }
    }
}
