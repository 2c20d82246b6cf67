//! Values of options that name files of servers, and addresses.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// A file of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Location {
    /// The server; `None`: this process, with `--port memory`.
    pub(super) server: Option<IpAddr>,
    /// The path there, which begins with `/`.
    pub(super) path: String,
}

/// Parses `ADDRESS:/PATH`, or `/PATH`. An IPv6 address may be in brackets.
pub(super) fn location(text: &str) -> Result<Location, String> {
    let wrong = || "not ADDRESS:/PATH: 192.0.2.1:/folder/file, [2001:db8::1]:/folder".to_owned();
    let (server, path) = match text.find(":/") {
        Some(at) if !text.starts_with('/') => {
            let (address, path) = (&text[..at], &text[at + 1..]);
            let bare = address.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(address);
            (Some(bare.parse().map_err(|_| wrong())?), path)
        }
        _ if text.starts_with('/') => (None, text),
        _ => return Err(wrong()),
    };
    Ok(Location { server, path: path.to_owned() })
}

impl Location {
    /// Returns the folder, and the name in it. `None`: the path is `/`.
    pub(super) fn split(&self) -> Option<(&str, &str)> {
        let path = self.path.trim_end_matches('/');
        let (folder, name) = path.rsplit_once('/')?;
        Some((if folder.is_empty() { "/" } else { folder }, name))
    }
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
        let is = |text: &str| location(text).map(|is| (is.server.map(|ip| ip.to_string()), is.path));
        assert_eq!(is("192.0.2.1:/a/b"), Ok((Some("192.0.2.1".into()), "/a/b".into())));
        assert_eq!(is("[2001:db8::1]:/"), Ok((Some("2001:db8::1".into()), "/".into())));
        assert_eq!(is("2001:db8::1:/x"), Ok((Some("2001:db8::1".into()), "/x".into())));
        assert_eq!(is("/x:/y"), Ok((None, "/x:/y".into())));
        for wrong in ["192.0.2.1", "host:/x", "192.0.2.1:x", "", ":/x"] {
            assert!(location(wrong).unwrap_err().contains("ADDRESS:/PATH"), "{wrong}");
        }
    }

    #[test]
    fn paths_split_into_folder_and_name() {
        let split = |path: &str| {
            let at = Location { server: None, path: path.to_owned() };
            at.split().map(|(folder, name)| (folder.to_owned(), name.to_owned()))
        };
        assert_eq!(split("/a/b/c"), Some(("/a/b".into(), "c".into())));
        assert_eq!(split("/a"), Some(("/".into(), "a".into())));
        assert_eq!((split("/a/"), split("/")), (Some(("/".into(), "a".into())), None));
    }
}
