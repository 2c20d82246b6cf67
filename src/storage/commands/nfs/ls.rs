//! `roxie nfs ls`: what a folder of a server has.

use clap::Args;
use roxie_nfs::client::ClientError;
use roxie_nfs::mount;
use roxie_nfs::nfs3::{Attributes, Entry};
use roxie_report::failure::{EXIT_CODES, Failure};
use roxie_report::formats;
use roxie_report::output;
use serde_json::json;

use super::session::{ConnectOptions, failure};

/// List a folder of an NFS server
#[derive(Debug, Args)]
#[command(
    long_about = "Lists a folder that a server exports, or one below it: type and permission bits, owner, bytes, and name. \
        The path of a file shows the file.",
    after_help = format!(
        "Examples:\n  roxie nfs ls 192.0.2.1:/export\n  roxie nfs ls 192.0.2.1:/ --mount-port 20048 --json   a server without a port \
         mapper\n  roxie nfs ls /  --port memory --export .             both ends in this process\n\n{EXIT_CODES}"
    )
)]
pub(super) struct Arguments {
    #[command(flatten)]
    connect: ConnectOptions,
    /// Print one JSON object for each file
    #[arg(long)]
    json: bool,
}

/// Lists a folder.
pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let connect = &arguments.connect;
    let location = &connect.location;
    let path = location.text();
    let mut session = connect.connect()?;
    let mut entries = match (session.folder(&location.path), location.split()) {
        (Ok(folder), _) => session.client.list(&folder, &path).map_err(failure)?,
        (Err(ClientError::Export { status: mount::Status::NOTDIR, .. }), Some((folder, name))) => {
            let folder = session.folder(folder).map_err(failure)?;
            let (_, attributes) = session.client.lookup(&folder, name, &path).map_err(failure)?;
            let (id, name) = (attributes.id, name.to_vec());
            vec![Entry { id, name, cookie: 0, attributes: Some(attributes), handle: None }]
        }
        (Err(error), _) => return Err(failure(error)),
    };
    entries.retain(|entry| entry.name != b"." && entry.name != b"..");
    entries.sort_by(|one, other| one.name.cmp(&other.name));
    for entry in &entries {
        print(entry, arguments.json)?;
    }
    session.close(connect)
}

fn print(entry: &Entry, json: bool) -> Result<(), Failure> {
    let name = String::from_utf8_lossy(&entry.name);
    if json {
        let mut row = json!({"name": name, "id": entry.id});
        if let Some(of) = &entry.attributes {
            row["type"] = of.kind.letter().to_string().into();
            row["mode"] = of.mode.into();
            row["links"] = of.links.into();
            row["user"] = of.user.into();
            row["group"] = of.group.into();
            row["bytes"] = of.size.into();
            row["modified"] = of.modified.seconds.into();
        }
        return formats::print(formats::NFS, row);
    }
    match &entry.attributes {
        Some(of) => {
            output::line(format_args!("{} {:>5} {:>5} {:>12} {name}", mode(of), of.user, of.group, of.size))
        }
        None => output::line(format_args!("?????????? {:>5} {:>5} {:>12} {name}", "?", "?", "?")),
    }
}

/// Returns type and permission bits as `ls -l` shows them, without the special ones.
fn mode(of: &Attributes) -> String {
    let bits = (0..9).map(|n| if of.mode >> (8 - n) & 1 == 1 { ['r', 'w', 'x'][n % 3] } else { '-' });
    std::iter::once(of.kind.letter()).chain(bits).collect()
}

#[cfg(test)]
mod tests {
    use roxie_nfs::nfs3::Kind;

    use super::*;

    #[test]
    fn modes_are_shown_as_letters() {
        let of = |kind, mode| super::mode(&Attributes { kind, mode, ..Attributes::default() });
        assert_eq!(of(Kind::Folder, 0o755), "drwxr-xr-x");
        assert_eq!(of(Kind::Regular, 0o4640), "-rw-r-----");
    }
}
