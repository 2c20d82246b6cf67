//! The client of the peer program: an [`End`](crate::end::End) that sends verbs as lines of text.
//!
//! `guest/peer/protocol.md` describes the lines.

mod verbs;

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv6Addr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::end::Ended;
use crate::error::Error;
use crate::rows::Family;

const PROTOCOL: u64 = 3;
/// Timeout of an answer, beyond the command's own timeout. A later answer means that the peer is dead.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);

/// How long an address may take to become a GID.
const GIDS_WITHIN: Duration = Duration::from_secs(10);

/// A GID of the peer that carries RoCE v2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gid {
    /// Index in the GID table.
    pub index: u32,
    /// The address; IPv4 if the GID is an IPv4-mapped one.
    pub address: IpAddr,
}

/// Properties of the peer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct About {
    /// The RDMA device, `rxe0`.
    pub device: String,
    /// The release of the guest's kernel.
    pub kernel: String,
    /// The release of rdma-core that its program was compiled against, `44.0`; `0.0` if unknown.
    pub rdma_core: String,
    /// The port's active MTU in bytes: the largest path MTU.
    pub active_mtu: usize,
    /// True if `enum ibv_atomic_cap` is not `NONE`.
    pub atomics: bool,
    /// True if it has FLUSH for global visibility.
    pub flush_global: bool,
    /// True if it has FLUSH for persistence.
    pub flush_persistent: bool,
    /// True if it has ATOMIC WRITE.
    pub atomic_write: bool,
}

/// A session with a peer program.
pub struct Peer {
    reader: Box<dyn BufRead + Send>,
    writer: Box<dyn Write + Send>,
    about: About,
    gids: Vec<Gid>,
    /// Addresses of its VLAN interface; empty until it has one.
    on_vlan: Vec<IpAddr>,
    /// True if its GIDs of the VLAN are used.
    uses_vlan: bool,
    /// The ssh process, if the peer is reached by ssh. Killed with the session.
    carrier: Option<Child>,
    /// True if the connection broke, or an answer did not arrive in time.
    lost: bool,
}

/// The words of a reply line, by key.
struct Words(Vec<(String, String)>);

impl Words {
    fn parse(line: &str) -> Words {
        let pairs = line.split_whitespace().filter_map(|word| word.split_once('='));
        Words(pairs.map(|(k, v)| (k.to_owned(), v.to_owned())).collect())
    }

    fn text(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_str())
    }

    /// Returns a number: decimal, or hexadecimal after 0x.
    fn number(&self, key: &str) -> Option<u64> {
        let text = self.text(key)?;
        match text.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16).ok(),
            None => text.parse().ok(),
        }
    }
}

/// A whole reply: detail lines, then the words of the `ok` line.
struct Reply {
    command: String,
    details: Vec<String>,
    last: String,
    words: Words,
}

impl Reply {
    fn malformed(&self, why: &'static str) -> Error {
        Error::Protocol { command: self.command.clone(), reply: self.last.clone(), why }
    }

    fn number<T: TryFrom<u64>>(&self, key: &'static str) -> Result<T, Error> {
        let value = self.words.number(key).ok_or_else(|| self.malformed(key))?;
        T::try_from(value).map_err(|_| self.malformed(key))
    }

    fn text(&self, key: &'static str) -> Result<&str, Error> {
        self.words.text(key).ok_or_else(|| self.malformed(key))
    }
}

impl Peer {
    /// Opens a session over a TCP connection to `roxie-peer --listen`.
    pub fn over_tcp(stream: TcpStream) -> Result<Peer, Error> {
        let setup = || -> io::Result<TcpStream> {
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
            stream.try_clone()
        };
        let reader = setup().map_err(|source| Error::Connection { command: "connect".into(), source })?;
        Peer::greet(Box::new(BufReader::new(reader)), Box::new(stream), None)
    }

    /// Opens a session over the standard streams of a command that runs `roxie-peer --stdio`.
    pub fn over_command(mut command: Command) -> Result<Peer, Error> {
        let line = crate::network::command_line(&command);
        let failed = |e: io::Error| Error::Command { command: line.clone(), output: e.to_string() };
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(failed)?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(failed(io::ErrorKind::BrokenPipe.into()));
        };
        Peer::greet(Box::new(BufReader::new(output)), Box::new(input), Some(child))
    }

    fn greet(
        reader: Box<dyn BufRead + Send>,
        writer: Box<dyn Write + Send>,
        carrier: Option<Child>,
    ) -> Result<Peer, Error> {
        let about = About::default();
        let (gids, on_vlan) = (Vec::new(), Vec::new());
        let mut peer = Peer { reader, writer, about, gids, on_vlan, uses_vlan: false, carrier, lost: false };
        let hello = peer.command("hello")?;
        if hello.number::<u64>("protocol")? != PROTOCOL {
            return Err(hello.malformed("another protocol version: build the peer program anew"));
        }
        if hello.text("state")? != "active" {
            return Err(hello.malformed("its port is not active: bring its interface up"));
        }
        peer.about = About {
            device: hello.text("device")?.to_owned(),
            kernel: hello.text("kernel")?.to_owned(),
            rdma_core: hello.text("rdma_core")?.to_owned(),
            active_mtu: hello.number("active_mtu")?,
            atomics: hello.number::<u32>("atomic_cap")? != 0,
            flush_global: hello.number::<u32>("flush_global")? != 0,
            flush_persistent: hello.number::<u32>("flush_persistent")? != 0,
            atomic_write: hello.number::<u32>("atomic_write")? != 0,
        };
        peer.gids = peer.read_gids()?;
        Ok(peer)
    }

    /// Returns the properties of the peer.
    pub fn about(&self) -> &About {
        &self.about
    }

    /// Returns its RoCE v2 GIDs.
    pub fn gids(&self) -> &[Gid] {
        &self.gids
    }

    /// Restricts the session to this entry of the GID table, of either family.
    pub fn keep_gid(&mut self, index: u32) -> Result<(), Error> {
        self.gids.retain(|gid| gid.index == index);
        match self.gids.len() {
            0 => Err(Error::Host(format!("the peer has no RoCE v2 GID at index {index}"))),
            _ => Ok(()),
        }
    }

    /// Takes the addresses of a VLAN interface that the peer has got, once they are GIDs: False if they are none after
    /// some seconds.
    pub fn await_vlan(&mut self, addresses: &[IpAddr]) -> Result<bool, Error> {
        let until = Instant::now() + GIDS_WITHIN;
        loop {
            self.gids = self.read_gids()?;
            if addresses.iter().all(|wanted| self.gids.iter().any(|gid| gid.address == *wanted)) {
                self.on_vlan = addresses.to_vec();
                return Ok(true);
            }
            if Instant::now() >= until {
                return Ok(false);
            }
            sleep(Duration::from_millis(100));
        }
    }

    /// True if the peer has a VLAN interface.
    pub fn has_vlan(&self) -> bool {
        !self.on_vlan.is_empty()
    }

    /// Chooses between its plain GIDs and those of its VLAN.
    pub fn use_vlan(&mut self, wanted: bool) {
        self.uses_vlan = wanted;
    }

    fn read_gids(&mut self) -> Result<Vec<Gid>, Error> {
        let reply = self.command("gids")?;
        let mut gids = Vec::new();
        for line in &reply.details {
            let words = Words::parse(line);
            let index = words.number("index").and_then(|n| u32::try_from(n).ok());
            let raw = words.text("gid").and_then(|hex| u128::from_str_radix(hex, 16).ok());
            let (Some(index), Some(raw)) = (index, raw) else { return Err(reply.malformed("a GID line")) };
            if words.text("type") == Some("v2") {
                gids.push(Gid { index, address: Ipv6Addr::from(raw).to_canonical() });
            }
        }
        Ok(gids)
    }

    /// Returns the GID for a family: the first routable one, of the VLAN or of none.
    fn gid(&self, family: Family) -> Result<Gid, Error> {
        let is_of_family = |gid: &&Gid| match gid.address {
            IpAddr::V4(_) => family == Family::V4,
            IpAddr::V6(v6) => family == Family::V6 && !v6.is_unicast_link_local(),
        };
        let fits = |gid: &&Gid| is_of_family(gid) && self.on_vlan.contains(&gid.address) == self.uses_vlan;
        let matching = self.gids.iter().find(fits).copied();
        matching
            .ok_or_else(|| Error::Host(format!("the peer has no {family} GID of RoCE v2: {:?}", self.gids)))
    }

    /// True if the peer has an address of the family.
    pub fn has_address(&self, family: Family) -> bool {
        self.gid(family).is_ok()
    }

    /// True if the session is lost: the connection broke, or an answer did not arrive in time.
    pub fn is_lost(&self) -> bool {
        self.lost
    }

    fn command(&mut self, command: &str) -> Result<Reply, Error> {
        let reply = self.exchange(command);
        self.lost |= matches!(reply, Err(Error::Connection { .. }));
        reply
    }

    fn exchange(&mut self, command: &str) -> Result<Reply, Error> {
        let broken = |source| Error::Connection { command: command.to_owned(), source };
        self.writer.write_all(format!("{command}\n").as_bytes()).map_err(broken)?;
        self.writer.flush().map_err(broken)?;
        let mut details = Vec::new();
        loop {
            let mut line = Vec::new();
            // Bound the line's length.
            let n = (&mut self.reader).take(1 << 20).read_until(b'\n', &mut line).map_err(broken)?;
            if n == 0 {
                return Err(broken(io::ErrorKind::UnexpectedEof.into()));
            }
            let line = String::from_utf8_lossy(&line).trim_end().to_owned();
            if let Some(detail) = line.strip_prefix('|') {
                details.push(detail.strip_prefix(' ').unwrap_or(detail).to_owned());
            } else if line == "ok" || line.starts_with("ok ") {
                let words = Words::parse(&line);
                return Ok(Reply { command: command.to_owned(), details, last: line, words });
            } else if let Some(rest) = line.strip_prefix("err code=") {
                let (code, message) = rest.split_once(' ').unwrap_or((rest, ""));
                let code = code.parse().unwrap_or(0);
                return Err(Error::Refused {
                    command: command.to_owned(),
                    code,
                    message: message.to_owned(),
                });
            } else {
                let why = "neither ok, err nor a detail line";
                return Err(Error::Protocol { command: command.to_owned(), reply: line, why });
            }
        }
    }

    /// Closes the peer's device, for which `rdma link delete` waits. Only stock programs can run afterwards.
    pub fn release(&mut self) -> Result<(), Error> {
        self.command("release").map(drop)
    }

    /// Starts a stock program on the peer. Returns its job number. No shell is involved: an argument is a word without
    /// white space.
    pub fn spawn(&mut self, program: &str, arguments: &[String]) -> Result<usize, Error> {
        let arguments: String = arguments.iter().map(|a| format!(" arg={a}")).collect();
        self.command(&format!("spawn prog={program}{arguments}"))?.number("job")
    }

    /// Waits for a job, and kills it after `timeout`.
    pub fn wait(&mut self, job: usize, timeout: Duration) -> Result<Ended, Error> {
        let (mut remaining, mut lines) = (timeout, Vec::new());
        let reply = loop {
            // A longer wait would take the peer for dead.
            let slice = remaining.min(ANSWER_TIMEOUT / 2);
            let mut reply = self.command(&format!("wait job={job} timeout_ms={}", slice.as_millis()))?;
            remaining -= slice;
            lines.append(&mut reply.details);
            if remaining.is_zero() || reply.number::<u32>("exited")? != 0 {
                break reply;
            }
        };
        if reply.number::<u32>("exited")? == 0 {
            lines.append(&mut self.command(&format!("kill job={job}"))?.details);
            return Ok(Ended { code: None, output: lines.join("\n") });
        }
        let code = reply.words.number("rc").and_then(|n| i32::try_from(n).ok());
        Ok(Ended { code, output: lines.join("\n") })
    }

    /// Waits until a program listens on a TCP port of the peer. False after `timeout`.
    pub fn wait_for_listener(&mut self, port: u16, timeout: Duration) -> Result<bool, Error> {
        let reply = self.command(&format!("listening port={port} timeout_ms={}", timeout.as_millis()))?;
        Ok(reply.number::<u32>("listening")? == 1)
    }

    /// Returns the device's counters, by name.
    pub fn counters(&mut self) -> Result<Vec<(String, u64)>, Error> {
        let reply = self.command("counters")?;
        let pairs = reply.details.iter().filter_map(|line| line.split_once('='));
        Ok(pairs.filter_map(|(k, v)| Some((k.to_owned(), v.parse().ok()?))).collect())
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        if let Some(child) = &mut self.carrier {
            // Closing its input has ended it, or this does; nothing is lost.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_of_several_waits_has_all_its_lines() {
        let replies = "| a\n| b\nok exited=0\n| c\nok exited=1 rc=0\n";
        let mut peer = Peer {
            reader: Box::new(replies.as_bytes()),
            writer: Box::new(io::sink()),
            about: About::default(),
            gids: Vec::new(),
            on_vlan: Vec::new(),
            uses_vlan: false,
            carrier: None,
            lost: false,
        };
        let ended = peer.wait(0, 2 * ANSWER_TIMEOUT).unwrap();
        assert_eq!((ended.code, &*ended.output), (Some(0), "a\nb\nc"));
    }
}
