//! Values of options that name files of servers, and addresses.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::unix::ffi::OsStringExt;

use roxie_nfs::mount::LONGEST_PATH;

/// A file of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Location {
    /// The server; `None`: this process, with `--port memory`.
    pub(super) server: Option<IpAddr>,
    /// The path there, which begins with `/`. Names of files are bytes, which need not be UTF-8.
    pub(super) path: Vec<u8>,
}

/// Parses `ADDRESS:/PATH`, or `/PATH`. An IPv6 address may be in brackets.
pub(super) fn location(text: OsString) -> Result<Location, String> {
    let text = text.into_vec();
    let wrong = || "not ADDRESS:/PATH: 192.0.2.1:/folder/file, [2001:db8::1]:/folder".to_owned();
    let (server, path) = match text.windows(2).position(|pair| pair == b":/") {
        Some(at) if !text.starts_with(b"/") => {
            let (address, path) = (&text[..at], &text[at + 1..]);
            let address = str::from_utf8(address).map_err(|_| wrong())?;
            let bare = address.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(address);
            (Some(bare.parse().map_err(|_| wrong())?), path)
        }
        _ if text.starts_with(b"/") => (None, &text[..]),
        _ => return Err(wrong()),
    };
    Ok(Location { server, path: path.to_owned() })
}

impl Location {
    /// Returns the folder, and the name in it. `None`: the path is `/`.
    pub(super) fn split(&self) -> Option<(&[u8], &[u8])> {
        let end = self.path.iter().rposition(|byte| *byte != b'/')? + 1;
        let at = self.path[..end].iter().rposition(|byte| *byte == b'/')?;
        Some((&self.path[..at.max(1)], &self.path[at + 1..end]))
    }

    /// Returns the path for messages.
    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.path).into_owned()
    }
}

/// Splits the path of a folder into the part for MOUNT, which takes 1,024 bytes, and the names to look up below it.
pub(super) fn mounted(path: &[u8]) -> (&[u8], impl Iterator<Item = &[u8]>) {
    let end = match path.get(LONGEST_PATH) {
        None => path.len(),
        Some(_) => path[..=LONGEST_PATH].iter().rposition(|byte| *byte == b'/').unwrap_or(0).max(1),
    };
    let names = path[end..].split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".");
    (&path[..end], names)
}

/// Parses an address with a port, or a port alone, which stands for all addresses.
pub(super) fn listen_address(text: &str) -> Result<SocketAddr, String> {
    match text.parse::<u16>() {
        Ok(port) => Ok(SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), port)),
        Err(_) => {
            text.parse().map_err(|_| "neither PORT nor ADDRESS:PORT ([ADDRESS]:PORT for IPv6)".to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_have_an_address_and_a_path() {
        let is = |text: &str| location(text.into()).map(|is| (is.server.map(|ip| ip.to_string()), is.text()));
        assert_eq!(is("192.0.2.1:/a/b"), Ok((Some("192.0.2.1".into()), "/a/b".into())));
        assert_eq!(is("[2001:db8::1]:/"), Ok((Some("2001:db8::1".into()), "/".into())));
        assert_eq!(is("2001:db8::1:/x"), Ok((Some("2001:db8::1".into()), "/x".into())));
        assert_eq!(is("/x:/y"), Ok((None, "/x:/y".into())));
        for wrong in ["192.0.2.1", "host:/x", "192.0.2.1:x", "", ":/x"] {
            assert!(location(wrong.into()).unwrap_err().contains("ADDRESS:/PATH"), "{wrong}");
        }
    }

    #[test]
    fn paths_split_into_folder_and_name() {
        let split = |path: &str| {
            let at = Location { server: None, path: path.into() };
            at.split()
                .map(|(folder, name)| [folder, name].map(|part| String::from_utf8_lossy(part).into_owned()))
        };
        assert_eq!(split("/a/b/c"), Some(["/a/b".into(), "c".into()]));
        assert_eq!(split("/a"), Some(["/".into(), "a".into()]));
        assert_eq!((split("/a/"), split("/")), (Some(["/".into(), "a".into()]), None));
    }

    #[test]
    fn long_paths_are_mounted_in_part() {
        let folder = format!("/{}", "f".repeat(204));
        for (path, mount_bytes, name_count) in [
            ("/a".to_owned(), 2, 0),
            (folder.repeat(5)[..1024].to_owned(), 1024, 0),
            (folder.repeat(7), 820, 3),
        ] {
            let (mount, names) = mounted(path.as_bytes());
            assert_eq!((mount.len(), names.count()), (mount_bytes, name_count), "{path}");
        }
        assert_eq!(mounted(format!("/{}", "f".repeat(1024)).as_bytes()).0, b"/");
    }
}
