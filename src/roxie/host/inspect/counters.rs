//! Repeated reading of devices' counters.

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
use roxie_base::descriptors::{connect_now, peer_of};

/// Reads the counters of all devices of this user or root in the network namespace, repeatedly.
///
/// A device that does not answer, because its process is stopped, is asked only once. Further connections would fill its backlog,
/// and then block every reader.
#[derive(Debug, Default)]
pub struct CounterReader {
    /// Connections with an outstanding answer, by the name of the device's socket.
    outstanding: BTreeMap<String, UnixStream>,
}

impl CounterReader {
    /// Returns the existing devices, by the unique name of their socket. A snapshot has identity and counters, but no objects.
    /// `None`: the device has not answered, or belongs to another user. Waits up to 0.5 s for devices that do not answer, but only
    /// once for each.
    ///
    /// # Errors
    /// If the list of sockets cannot be read, for want of `/proc`.
    pub fn read(&mut self) -> io::Result<BTreeMap<String, Option<Snapshot>>> {
        let now = Instant::now();
        let all: BTreeSet<String> = names()?.into_iter().collect();
        self.outstanding.retain(|name, _| all.contains(name));
        let late: BTreeSet<String> = self.outstanding.keys().cloned().collect();
        // Ask all devices before waiting for the first answer.
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

/// Connects to a device by a socket with a name that asks for counters. Does not block.
fn ask(device: &str) -> io::Result<UnixStream> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let reader = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    loop {
        // Processes of different PID namespaces may have the same number.
        let name = format!("{FOR_COUNTERS}{}/{}", std::process::id(), COUNT.fetch_add(1, Relaxed));
        match bind(reader.as_raw_fd(), &UnixAddr::new_abstract(name.as_bytes())?) {
            Ok(()) => break,
            Err(Errno::EADDRINUSE) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    connect_now(Some(reader), device)
}
