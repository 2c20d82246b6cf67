//! What the handles of a device share, and what follows the interface for them.

use std::ops::Deref;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use crate::nic::{Command, CongestionConfig};
use crate::port::LinkChange;

use super::adapter::{Adapter, Others, Seat};
use super::claim::Claim;
use super::error::DeviceError;
use super::follower::Follower;
use super::gid_table::GidTable;
use super::knob_file::KnobFile;
use super::resolve::Resolve;
use super::snapshot::{Clients, CmIds};

/// What handles share. The follower has the state too, but never what ends the follower: so whoever drops the last handle waits for it, and
/// the port is closed when that returns.
#[derive(Debug)]
pub(super) struct Handle {
    /// Follows the interface, where there is one. It is dropped first.
    pub(super) follower: OnceLock<Follower>,
    pub(super) state: Arc<State>,
}

impl Deref for Handle {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state
    }
}

/// What a device is, whoever has it.
pub(super) struct State {
    pub(super) adapter: Adapter,
    pub(super) name: String,
    pub(super) gids: RwLock<GidTable>,
    pub(super) resolver: Box<dyn Resolve>,
    /// What the first queue pair has to claim yet.
    pub(super) claim: Mutex<Option<Claim>>,
    /// Its place among the processes that share the device.
    pub(super) seat: OnceLock<Seat>,
    /// What tells of the connection identifiers on it, for those who look at the device.
    pub(super) cm_ids: OnceLock<CmIds>,
    /// Tells what of it belongs to processes that it serves.
    pub(super) others: OnceLock<Others>,
    /// Tells of the processes that it serves.
    pub(super) clients: OnceLock<Clients>,
    /// What the follower reads congestion control from.
    pub(super) control_file: Mutex<Option<KnobFile>>,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Device").field("name", &self.name).finish_non_exhaustive()
    }
}

impl State {
    /// Has QPs go by what the file of congestion control says, if that has changed. What is wrong with it is told.
    pub(super) fn read_control(&self) {
        let mut file = self.control_file.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(file) = &mut *file else { return };
        match file.read() {
            Ok(Some(control)) => {
                let before = self.adapter.congestion();
                let config = CongestionConfig { control, ..before };
                // A device that has failed says so itself.
                let _ = self.adapter.call(Command::SetCongestion(Box::new(config)));
            }
            Ok(None) => {}
            Err(why) => eprintln!("roxie: {}: congestion control stays as it is: {why}", self.name),
        }
    }

    /// True if there is such a file.
    pub(super) fn has_control_file(&self) -> bool {
        self.control_file.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// See [`Device::follow_link`](super::Device::follow_link).
    pub(super) fn follow_link(&self, change: &LinkChange) -> Result<(), DeviceError> {
        let (failed, largest) = self.adapter.follow_link(change)?;
        if let LinkChange::Mtu(mtu) = change
            && failed > 0
        {
            eprintln!(
                "roxie: {}: the link MTU is {mtu} now: {failed} QPs of a larger path MTU are in the error state; \
                 connect them again with a path MTU of {} at most, or raise the link MTU",
                self.name,
                largest.bytes()
            );
        }
        Ok(())
    }
}
