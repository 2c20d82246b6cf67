//! `roxie nfs serve`: exports a folder, read-only.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use roxie_nfs::MOUNT_PORT;
use roxie_nfs::server::{Server, StartError};
use roxie_report::failure::{EXIT_CODES, Failure};
use roxie_report::formats::NFS;
use serde_json::json;

use super::location::listen_address;
use super::session::open_export;
use crate::commands::serve::{ServeOptions, cannot_listen};

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
    #[command(flatten)]
    serve: ServeOptions,
}

/// Serves until a signal, or until the device fails.
pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let Arguments { folder, listen, mount_port, serve } = arguments;
    let (serving, export) =
        serve.open("roxie nfs ls / --port memory --export DIR", || open_export(folder))?;
    let at = (*listen, SocketAddr::new(listen.ip(), *mount_port));
    let server = Server::start(&serving.opened.device, &serving.manager, at, export, serve.report(NFS));
    let server = server.map_err(|error| match &error {
        StartError::Listen(error) => cannot_listen(*listen, error),
        _ => Failure::Usage(format!("{error}: does another server run? --mount-port takes another port")),
    })?;
    let (folder, port) = (folder.display().to_string(), server.mount_address().port());
    let ready = json!({"event": "ready", "folder": folder, "listen": listen.to_string(), "mount_port": port});
    serve.announce(NFS, ready, format_args!("{folder} is served at {listen}, MOUNT at TCP port {port}"))?;
    serving.wait(|_| true)?;
    drop(server);
    serving.finish()
}
