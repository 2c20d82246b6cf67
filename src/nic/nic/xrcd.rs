//! The NIC's XRC domains, which stand in the tables of shared receive queues.

use super::command::{Answer, ControlError};
use super::object::ObjectKind;
use super::srq::Srqs;
use crate::verbs::{FileId, OpenXrcd, XrcdId};

/// A domain.
#[derive(Debug)]
pub(super) struct Xrcd {
    file: Option<FileId>,
    opens: u32,
    /// Number of queues and targets in the domain.
    users: u32,
}

impl Srqs {
    /// Returns the user counts of the domains.
    pub(super) fn xrcd_users(&self) -> impl Iterator<Item = (u32, u32)> {
        self.xrcds.iter().map(|(index, xrcd)| (index, xrcd.users))
    }

    /// # Errors
    /// If the next close would remove a domain that queues or targets use.
    pub(super) fn check_xrcd_unused(&self, xrcd: XrcdId) -> Result<(), ControlError> {
        let entry = self.xrcds.get(xrcd.0).ok_or(ControlError::NotFound(ObjectKind::XrcDomain))?;
        match (entry.opens, entry.users) {
            (1, users @ 1..) => Err(ControlError::Busy { object: ObjectKind::XrcDomain, users }),
            _ => Ok(()),
        }
    }

    /// True if a domain has this name.
    pub(super) fn holds_xrcd(&self, xrcd: XrcdId) -> bool {
        self.xrcds.holds(xrcd.0)
    }

    pub(super) fn use_xrcd(&mut self, xrcd: XrcdId, change: i32) -> Result<(), ControlError> {
        let entry = self.xrcds.get_mut(xrcd.0).ok_or(ControlError::NotFound(ObjectKind::XrcDomain))?;
        invariant!(entry.users.checked_add_signed(change).is_some(), "{} users and {change}", entry.users);
        entry.users = entry.users.saturating_add_signed(change);
        Ok(())
    }

    /// Opens a domain, or makes one if there are fewer than `limit`.
    pub(super) fn open_xrcd(&mut self, open: OpenXrcd, limit: u32) -> Result<Answer, ControlError> {
        let there = open.file.and_then(|file| {
            let mut open = self.xrcds.iter();
            open.find(|(_, xrcd)| xrcd.file == Some(file)).map(|(index, _)| index)
        });
        match there {
            Some(_) if open.exclusive => Err(ControlError::Taken("XRC domain of this file")),
            Some(index) => {
                let xrcd = self.xrcds.get_mut(index).ok_or(ControlError::NotFound(ObjectKind::XrcDomain))?;
                xrcd.opens += 1;
                Ok(Answer::Xrcd(XrcdId(index)))
            }
            None if open.file.is_some() && !open.create => {
                Err(ControlError::NotFound(ObjectKind::XrcDomainOfFile))
            }
            None => {
                let made = self.xrcds.insert(Xrcd { file: open.file, opens: 1, users: 0 });
                made.map(|index| Answer::Xrcd(XrcdId(index)))
                    .ok_or(ControlError::Full { object: ObjectKind::XrcDomain, limit })
            }
        }
    }

    pub(super) fn close_xrcd(&mut self, xrcd: XrcdId) -> Result<Answer, ControlError> {
        self.check_xrcd_unused(xrcd)?;
        let entry = self.xrcds.get_mut(xrcd.0).ok_or(ControlError::NotFound(ObjectKind::XrcDomain))?;
        entry.opens -= 1;
        if entry.opens == 0 {
            invariant!(entry.users == 0, "an XRC domain closes, and {} objects are in it", entry.users);
            self.xrcds.remove(xrcd.0);
        }
        Ok(Answer::Done)
    }
}
