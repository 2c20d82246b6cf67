//! `roxie nfs get` and `roxie nfs put`: files from and to servers.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use clap::Args;
use roxie_report::failure::{EXIT_CODES, Failure};
use roxie_report::output;

use super::location::Location;
use super::session::{ConnectOptions, Progress, failure};

/// Permission bits of a file that standard input becomes.
const MODE: u32 = 0o644;

/// Copy a file from an NFS server
#[derive(Debug, Args)]
#[command(
    long_about = "Reads a file of a server, and writes it to a file or to standard output. READs of --size bytes are \
        outstanding, as many as the server grants, up to 16; their data arrives by RDMA WRITE.",
    after_help = format!(
        "Examples:\n  roxie nfs get 192.0.2.1:/export/file -o file\n  roxie nfs get 192.0.2.1:/export/file | sha256sum\n\n{EXIT_CODES}"
    )
)]
pub(super) struct GetArguments {
    #[command(flatten)]
    connect: ConnectOptions,
    /// Write to this file [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Bytes of a READ at most; the server may prefer fewer
    #[arg(short, long, value_name = "BYTES", value_parser = size, default_value = "64K")]
    size: u32,
    /// Print one JSON object
    #[arg(long, requires = "output")]
    json: bool,
}

/// Copy a file to an NFS server
#[derive(Debug, Args)]
#[command(
    long_about = "Writes a file or standard input to a file of a server, which is made, or emptied before. WRITEs of \
        --size bytes are outstanding, as many as the server grants, up to 16; the server fetches their data by RDMA READ. \
        A COMMIT makes the file durable; if the server was started again meanwhile, which its verifier tells, the command \
        fails.",
    after_help = format!(
        "Examples:\n  roxie nfs put 192.0.2.1:/export/file -i file\n  tar c folder | roxie nfs put 192.0.2.1:/export/folder.tar\n\n{EXIT_CODES}"
    )
)]
pub(super) struct PutArguments {
    #[command(flatten)]
    connect: ConnectOptions,
    /// Read from this file [default: standard input]
    #[arg(short, long, value_name = "FILE")]
    input: Option<PathBuf>,
    /// Bytes of a WRITE at most; the server may prefer fewer
    #[arg(short, long, value_name = "BYTES", value_parser = size, default_value = "64K")]
    size: u32,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

fn size(text: &str) -> Result<u32, String> {
    match roxie_options::bytes::bytes(text)? {
        bytes @ 1..=131_072 => Ok(bytes as u32),
        _ => Err("1 to 128K".into()),
    }
}

/// Returns the folder and the name of a file.
fn split(location: &Location) -> Result<(&[u8], &[u8]), Failure> {
    location
        .split()
        .ok_or_else(|| Failure::Usage(format!("{} is a folder, and a file is wanted", location.text())))
}

/// Copies a file from a server.
pub(super) fn get(arguments: &GetArguments) -> Result<(), Failure> {
    let connect = &arguments.connect;
    let path = &connect.location.text();
    let (folder, name) = split(&connect.location)?;
    let mut session = connect.connect()?;
    let folder = session.folder(folder).map_err(failure)?;
    let (file, attributes) = session.client.lookup(&folder, name, path).map_err(failure)?;
    if attributes.kind != roxie_nfs::nfs3::Kind::Regular {
        return Err(Failure::Peer(format!("{path}: not a regular file")));
    }
    let info = session.client.info(&file, path).map_err(failure)?;
    // Made only once there is something to write to it.
    let mut out: Box<dyn Write> = match &arguments.output {
        Some(path) => Box::new(
            File::create(path).map_err(|error| Failure::Usage(format!("{}: {error}", path.display())))?,
        ),
        None => Box::new(io::stdout().lock()),
    };
    let mut progress = Progress::new(path, Some(attributes.size));
    let transfer = arguments.size.min(info.read_most.max(1));
    let copied = session.client.read_file(&file, path, transfer, &mut out, |bytes| progress.at(bytes));
    let copied = copied.map_err(local)?;
    out.flush().map_err(Failure::Output)?;
    if arguments.output.is_some() {
        progress.finish("read", copied, arguments.json, &session.port())?;
    }
    session.close(connect)
}

/// Returns the failure of an error, with those of the output as such.
fn local(error: roxie_nfs::client::ClientError) -> Failure {
    match error {
        roxie_nfs::client::ClientError::Local(error) => Failure::Output(error),
        other => failure(other),
    }
}

/// Copies a file to a server.
pub(super) fn put(arguments: &PutArguments) -> Result<(), Failure> {
    let connect = &arguments.connect;
    let path = &connect.location.text();
    let (folder, name) = split(&connect.location)?;
    let (mut input, total, mode): (Box<dyn Read>, _, _) = match &arguments.input {
        Some(path) => {
            let wrong = |error| Failure::Usage(format!("{}: {error}", path.display()));
            let file = File::open(path).map_err(wrong)?;
            let about = file.metadata().map_err(wrong)?;
            if about.is_dir() {
                return Err(Failure::Usage(format!("{}: a folder, and a file is wanted", path.display())));
            }
            (Box::new(file), about.is_file().then_some(about.len()), about.permissions().mode() & 0o777)
        }
        None => (Box::new(io::stdin().lock()), None, MODE),
    };
    let mut session = connect.connect()?;
    let folder = session.folder(folder).map_err(failure)?;
    let info = session.client.info(&folder, path).map_err(failure)?;
    let file = session.client.create(&folder, name, mode, path).map_err(failure)?;
    let mut progress = Progress::new(path, total);
    let transfer = arguments.size.min(info.write_most.max(1));
    let written = session.client.write_file(&file, path, transfer, &mut input, |bytes| progress.at(bytes));
    let written = written.map_err(failure)?;
    if total.is_some_and(|total| total != written) {
        output::note(format_args!("{path}: the input has changed its length while it was read"));
    }
    progress.finish("written", written, arguments.json, &session.port())?;
    session.close(connect)
}
