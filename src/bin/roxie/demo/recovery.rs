//! One lost packet and how it is made good: a short run with both ends captured, and its ladder drawn from the
//! captures as they were written.

use std::fs::File;
use std::path::{Path, PathBuf};

use roxie::host::Stack;
use roxie::port::fault::FaultConfig;

use super::Failure;
use super::connection::Connection;
use super::site::Link;
use super::verify::{self, Verified};
use crate::floor::Threads;
use crate::ladder::{self, Ladder, Seen, Style};

/// Packets of the message.
const PACKETS: usize = 6;
/// Which of them is lost, counted from 1.
const LOST: usize = 3;

/// What a recovery left behind.
pub(super) struct Recovery {
    /// The captures of the near and of the far end.
    pub(super) captures: [PathBuf; 2],
    /// The ladder of both captures, as text.
    pub(super) ladder: String,
    /// What became of the data.
    pub(super) verified: Verified,
    /// Packets that were sent again.
    pub(super) retransmitted: u64,
}

/// Loses the third packet of one WRITE between the NIC and the link, and captures both ends.
pub(super) fn recover(link: &Link, directory: &Path, seed: u64) -> Result<Recovery, Failure> {
    let path = |end: &str| directory.join(format!("roxie-demo-{}-{end}.pcapng", link.kind));
    let captures = [path("near"), path("far")];
    let fault =
        FaultConfig::parse(&format!("tx.drop=nth{LOST}")).map_err(|e| Failure::Wrong(e.to_string()))?;
    let near = Stack { fault: Some(fault), capture: Some(captures[0].clone()) };
    let far = Stack { fault: None, capture: Some(captures[1].clone()) };
    // A local ACK timeout of 67 ms: long enough for the NAK to be what starts the recovery.
    let c = Connection::open(link, [&near, &far], 14, Threads::One)?;
    let size = PACKETS * c.path_mtu();
    verify::fill(&c, seed)?;
    c.near.write(&c.far, 0, size as u32)?;
    c.wait(&c.near.sends, "WRITE with a lost packet")?;
    let verified = verify::filled(&c, seed, size)?;
    let retransmitted = c.counter("retransmitted_packets");
    // Closing the devices writes out what the captures still hold.
    drop(c);
    Ok(Recovery { ladder: draw(&captures)?, captures, verified, retransmitted })
}

/// Draws what the two captures say.
fn draw(captures: &[PathBuf; 2]) -> Result<String, Failure> {
    let [near, far] = captures;
    let seen = vec![read(near)?, read(far)?];
    let wrong = |path: &Path, why: String| Failure::Capture { path: path.to_owned(), why };
    let passages = ladder::meet(seen).map_err(|strangers| wrong(near, strangers.to_string()))?;
    // One WRITE has one connection.
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
