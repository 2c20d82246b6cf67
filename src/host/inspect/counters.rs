//! Reading the counters of devices again and again.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Instant;

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, bind, socket};

use super::Snapshot;
use super::look::{LONGEST, PATIENCE, answer, is_trusted, known, names};
use super::window::FOR_COUNTERS;
use crate::descriptors::{connect_now, peer_of};

/// Reads the counters of all devices of its network namespace that are of this user or root's, as often as it is asked to.
///
/// A device that does not answer, because its process is stopped, is asked once: further connections would fill its backlog, and then
/// block every reader.
#[derive(Debug, Default)]
pub struct CounterReader {
    /// Connections whose answer is outstanding, by the name of the device's socket.
    outstanding: BTreeMap<String, UnixStream>,
}

impl CounterReader {
    /// Returns the devices that exist, by the name of their socket, which is unique among them. A snapshot has identity and counters,
    /// and no objects; `None`: the device has not answered, or belongs to another user. Waits half a second for devices that do not
    /// answer, once for each.
    ///
    /// # Errors
    /// If the list of sockets cannot be read: there is no `/proc`.
    pub fn read(&mut self) -> io::Result<BTreeMap<String, Option<Snapshot>>> {
        let now = Instant::now();
        let all: BTreeSet<String> = names()?.into_iter().collect();
        self.outstanding.retain(|name, _| all.contains(name));
        let late: BTreeSet<String> = self.outstanding.keys().cloned().collect();
        // All are asked before the first answer is waited for.
        for name in all.difference(&late) {
            if let Ok(reader) = ask(name)
                && peer_of(&reader).is_ok_and(|whose| is_trusted(whose.uid()))
            {
                self.outstanding.insert(name.clone(), reader);
            }
        }
        let mut read: BTreeMap<_, _> = all.iter().map(|name| (name.clone(), None)).collect();
        for (name, reader) in std::mem::take(&mut self.outstanding) {
            let until = if late.contains(&name) { now } else { now + PATIENCE };
            match answer(reader.as_fd(), until, LONGEST) {
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                    self.outstanding.insert(name, reader);
                }
                answered => {
                    let whose = peer_of(&reader)?;
                    let of_kernel = |(snapshot, _)| known(snapshot, whose.pid().cast_unsigned(), whose.uid());
                    read.insert(name, answered.ok().flatten().map(of_kernel));
                }
            }
        }
        Ok(read)
    }
}

/// Connects to a device by a socket whose name asks for counters. Does not block.
fn ask(device: &str) -> io::Result<UnixStream> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let reader = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    loop {
        // Processes of several PID namespaces may have one number.
        let name = format!("{FOR_COUNTERS}{}/{}", std::process::id(), COUNT.fetch_add(1, Relaxed));
        match bind(reader.as_raw_fd(), &UnixAddr::new_abstract(name.as_bytes())?) {
            Ok(()) => break,
            Err(Errno::EADDRINUSE) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    connect_now(Some(reader), device)
}
