//! Recovery from one lost packet: a short run captured at both ends, and the ladder drawn from these captures.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use roxie::host::Stack;
use roxie::port::fault::FaultConfig;
use roxie_report::ladder::{self, Ladder, Seen, Style};

use super::Failure;
use super::connection::Connection;
use super::site::Link;
use super::verify::{self, Verified};
use crate::floor::Threads;

/// Packets of the message.
const PACKETS: usize = 6;
/// The packet to lose, counted from 1.
const LOST: usize = 3;

/// Results of a recovery.
pub(super) struct Recovery {
    /// Captures of the near and of the far end.
    pub(super) captures: [PathBuf; 2],
    /// Ladder of both captures, as text.
    pub(super) ladder: String,
    /// Comparison of the data.
    pub(super) verified: Verified,
    /// Number of retransmitted packets.
    pub(super) retransmitted: u64,
}

/// Drops the third packet of one WRITE between the NIC and the link, and captures both ends.
pub(super) fn recover(link: &Link, directory: &Path, seed: u64) -> Result<Recovery, Failure> {
    let path = |end: &str| directory.join(format!("roxie-demo-{}-{end}.pcapng", link.kind));
    let captures = [path("near"), path("far")];
    let wrong =
        |path: &Path, why: io::Error| Failure::Capture { path: path.to_owned(), why: why.to_string() };
    let open = |path: &PathBuf| fresh(path).map_err(|error| wrong(path, error));
    let files = [open(&captures[0])?, open(&captures[1])?];
    // The opened files themselves, whatever has taken their paths since.
    let [near_file, far_file] =
        files.each_ref().map(|file| PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd())));
    let fault =
        FaultConfig::parse(&format!("tx.drop=nth{LOST}")).map_err(|e| Failure::Wrong(e.to_string()))?;
    let near = Stack { fault: Some(fault), capture: Some(near_file.clone()), ..Stack::default() };
    let far = Stack { capture: Some(far_file.clone()), ..Stack::default() };
    // A local ACK timeout of 67 ms: long enough that the NAK starts the recovery.
    let c = Connection::open(link, [&near, &far], 14, Threads::One)?;
    let size = PACKETS * c.path_mtu();
    verify::fill(&c, seed)?;
    c.near.write(&c.far, 0, size as u32)?;
    c.wait(&c.near.sends, "WRITE with a lost packet")?;
    let verified = verify::filled(&c, seed, size)?;
    let retransmitted = c.counter("retransmitted_packets");
    // Closing the devices flushes the captures.
    drop(c);
    Ok(Recovery { ladder: draw(&[near_file, far_file])?, captures, verified, retransmitted })
}

/// Creates a new file in place of the one at `path`. Does not follow a link at `path`.
fn fresh(path: &Path) -> io::Result<File> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => File::options().read(true).write(true).create_new(true).open(path),
    }
}

/// Draws the ladder of two captures.
fn draw(captures: &[PathBuf; 2]) -> Result<String, Failure> {
    let [near, far] = captures;
    let seen = vec![read(near)?, read(far)?];
    let wrong = |path: &Path, why: String| Failure::Capture { path: path.to_owned(), why };
    let passages = ladder::meet(seen).map_err(|strangers| wrong(near, strangers.to_string()))?;
    // A single WRITE uses a single connection.
    let connections = ladder::pair(passages);
    let connection = connections.first().ok_or_else(|| wrong(near, "no packet is in it".into()))?;
    let style = Style { names: Some(["near", "far"]), every: true };
    Ok(ladder::draw_text(&Ladder::of(connection, &style)))
}

fn read(path: &Path) -> Result<Vec<Seen>, Failure> {
    let wrong = |why: String| Failure::Capture { path: path.to_owned(), why };
    let file = File::open(path).map_err(|e| wrong(e.to_string()))?;
    let reading = ladder::read(file).map_err(|e| wrong(e.to_string()))?;
    match reading.broken {
        Some(broken) => Err(wrong(broken.to_string())),
        None => Ok(reading.seen),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn capture_does_not_follow_links() {
        let folder = tempfile::TempDir::new().unwrap();
        let [other, path] = ["other", "capture"].map(|name| folder.path().join(name));
        fs::write(&other, "another's").unwrap();
        symlink(&other, &path).unwrap();
        io::Write::write_all(&mut fresh(&path).unwrap(), b"frames").unwrap();
        assert_eq!(fs::read(&other).unwrap(), b"another's");
        assert_eq!(fs::read(&path).unwrap(), b"frames");
        // An older capture is replaced.
        assert_eq!(fresh(&path).unwrap().metadata().unwrap().len(), 0);
    }
}
