//! Which running device to capture.

use std::fmt;
use std::io;

use nix::unistd::{Uid, User, geteuid};
use roxie::host::inspect::{AttachError, Look, Snapshot, attach, snapshots, user_of};
use roxie::netdev::NetNs;
use roxie_report::failure::Failure;

use super::frames::Frames;

/// What the command line names.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted<'a> {
    pub(super) pid: Option<u32>,
    /// Name of a device, with or without its process, or of an interface.
    pub(super) name: Option<&'a str>,
}

/// A running device.
#[derive(Debug)]
pub(super) struct Chosen {
    pub(super) device: Snapshot,
    /// The network namespace of its process.
    network: Option<NetNs>,
}

/// Returns the name of a device among those of all processes.
pub(super) fn name_of(device: &Snapshot) -> String {
    format!("{}-{}", device.device, device.pid)
}

/// Returns the devices of this network namespace that can be captured.
pub(super) fn running() -> Result<Vec<Snapshot>, Failure> {
    let mut all = look()?.snapshots;
    all.retain(|device| !is_client(device));
    Ok(all)
}

fn look() -> Result<Look, Failure> {
    listed(snapshots())
}

fn look_within(network: &NetNs) -> Result<Look, Failure> {
    within(Some(network), snapshots).and_then(listed)
}

fn listed(look: io::Result<Look>) -> Result<Look, Failure> {
    look.map_err(|error| Failure::Run(format!("cannot list Unix sockets (/proc/net/unix): {error}")))
}

/// Runs `act` in the network namespace of a process.
fn within<T: Send>(network: Option<&NetNs>, act: impl FnOnce() -> T + Send) -> Result<T, Failure> {
    let Some(network) = network else { return Ok(act()) };
    network.run(act).map_err(|error| {
        Failure::Device(format!("it is in another network namespace, and entering that takes root: {error}"))
    })
}

/// True if `roxie nic` serves the process: its frames are the NIC's.
fn is_client(device: &Snapshot) -> bool {
    device.nic_slot.is_some()
}

impl Wanted<'_> {
    /// Returns the one device that is meant.
    pub(super) fn choose(&self) -> Result<Chosen, Failure> {
        if let Some(pid) = self.pid {
            self.may_capture(pid)?;
        }
        let look = look()?;
        let here: Vec<Snapshot> = self.meant(&look);
        if let (true, Some(pid)) = (here.is_empty(), self.pid)
            && let Ok(network) = NetNs::of_process(pid)
        {
            // Devices listen in their network namespace.
            let look = look_within(&network)?;
            let there = self.meant(&look);
            return self.one_of(there, &look, Some(network));
        }
        self.one_of(here, &look, None)
    }

    fn meant(&self, look: &Look) -> Vec<Snapshot> {
        look.snapshots.iter().filter(|device| self.is_meant(device)).cloned().collect()
    }

    /// Returns the one device that is meant, or why there is none.
    fn one_of(&self, meant: Vec<Snapshot>, look: &Look, network: Option<NetNs>) -> Result<Chosen, Failure> {
        let (clients, mut found): (Vec<_>, Vec<_>) = meant.into_iter().partition(is_client);
        match (found.len(), self.pid) {
            (1, _) => Ok(Chosen { device: found.remove(0), network }),
            (0, Some(pid)) if look.silent.contains(&pid) => {
                Err(Failure::Device(AttachError::Silent { pid }.to_string()))
            }
            (0, Some(pid)) if !clients.is_empty() => Err(Failure::Device(served_by_nic(pid, look))),
            (0, Some(pid)) if user_of(pid).is_none() => {
                Err(Failure::Device(format!("there is no process {pid}")))
            }
            (0, pid) => Err(Failure::Device(match (pid, self.name) {
                (Some(pid), None) => {
                    format!("process {pid} has no device: `roxie show processes` lists those that have")
                }
                (_, Some(name)) => format!(
                    "no device that can be seen from here is named {name}, or is on {name}: `roxie show processes` lists them"
                ),
                (None, None) => {
                    "no program with a device can be seen from here: --pid PID finds one in another network \
                                 namespace, and root sees those of all users"
                        .to_owned()
                }
            })),
            _ => {
                let names: Vec<_> =
                    found.iter().map(|device| format!("{} ({})", name_of(device), device.name)).collect();
                let names = names.join(", ");
                Err(Failure::Usage(format!("there are several: choose one by --dev or --pid: {names}")))
            }
        }
    }

    fn is_meant(&self, device: &Snapshot) -> bool {
        let has_name =
            |name: &str| device.device == name || device.interface == name || name_of(device) == name;
        self.pid.is_none_or(|pid| pid == device.pid) && self.name.is_none_or(has_name)
    }

    /// Refuses the process of another user.
    fn may_capture(&self, pid: u32) -> Result<(), Failure> {
        match user_of(pid) {
            Some(uid) if uid != geteuid().as_raw() && !geteuid().is_root() => {
                let user = User::from_uid(Uid::from_raw(uid)).ok().flatten();
                let user = user.map_or_else(|| uid.to_string(), |user| user.name);
                Err(Failure::Device(format!(
                    "process {pid} belongs to user {user}: only that user and root may capture its frames"
                )))
            }
            _ => Ok(()),
        }
    }
}

fn served_by_nic(pid: u32, look: &Look) -> String {
    let nic = look.snapshots.iter().find(|device| device.clients.iter().any(|client| client.pid == pid));
    let advice = match nic {
        Some(nic) => format!("capture that one (--pid {})", nic.pid),
        None => "its user and root may capture that one".to_owned(),
    };
    format!("process {pid} is served by a NIC that is a process of its own (`roxie nic`): {advice}")
}

impl Chosen {
    /// Captures the device's frames from now on.
    pub(super) fn attach(&self, snap_length: u32) -> Result<Frames, Failure> {
        within(self.network.as_ref(), || attach(&self.device, snap_length))?
            .map(Frames::new)
            .map_err(|error| Failure::Device(error.to_string()))
    }
}

impl fmt::Display for Chosen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Snapshot { name, pid, device, interface, .. } = &self.device;
        write!(f, "{device} of {name} (process {pid}) on {interface}, over {}", self.device.transport())
    }
}
