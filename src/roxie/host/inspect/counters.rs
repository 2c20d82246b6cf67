//! Repeated reading of devices' counters.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Instant;

use super::Snapshot;
use super::look::{LONGEST, LONGEST_OF_OTHER, OTHERS, PATIENCE, answer, connect, known, names};
use super::window::FOR_COUNTERS;
use roxie_base::descriptors::{Peer, peer_of};

/// Reads the counters of all devices of this user or root in the network namespace, repeatedly, or of all users'
/// devices.
///
/// A device that does not answer, because its process is stopped, is asked only once. Further connections would fill
/// its backlog, and then block every reader.
#[derive(Debug, Default)]
pub struct CounterReader {
    /// Connections with an outstanding answer, by the name of the device's socket.
    outstanding: BTreeMap<String, UnixStream>,
    all_users: bool,
}

impl CounterReader {
    /// Returns a reader for root, which reads devices of all users: what a device of another user says, root cannot
    /// check.
    pub fn of_all_users() -> CounterReader {
        CounterReader { all_users: true, ..CounterReader::default() }
    }

    /// Returns the existing devices, by the unique name of their socket. A snapshot has identity and counters, but no
    /// objects. `None`: the device has not answered, or belongs to another user. Waits up to 0.5 s for devices that do
    /// not answer, but only once for each.
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
            let others_too = self.all_users && self.outstanding.len() < OTHERS;
            if let Ok(reader) = connect(name, FOR_COUNTERS)
                && peer_of(reader.as_fd()).is_ok_and(|whose| others_too || whose.is_own_or_root())
            {
                self.outstanding.insert(name.clone(), reader);
            }
        }
        let mut read: BTreeMap<_, _> = all.iter().map(|name| (name.clone(), None)).collect();
        for (name, reader) in std::mem::take(&mut self.outstanding) {
            let until = if late.contains(&name) { now } else { now + PATIENCE };
            let is_trusted = peer_of(reader.as_fd()).is_ok_and(Peer::is_own_or_root);
            match answer(reader.as_fd(), until, if is_trusted { LONGEST } else { LONGEST_OF_OTHER }) {
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                    self.outstanding.insert(name, reader);
                }
                answered => {
                    let whose = peer_of(reader.as_fd())?;
                    let snapshot = answered.ok().flatten();
                    let known = snapshot.map(|(snapshot, _)| known(snapshot, &name, whose));
                    read.insert(name, known);
                }
            }
        }
        Ok(read)
    }
}
