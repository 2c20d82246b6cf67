//! The NIC's XRC domains.

use super::command::{Answer, ControlError};
use super::object::ObjectKind;
use super::table::Table;
use crate::verbs::{FileId, OpenXrcd, XrcdId};

/// A domain.
#[derive(Debug)]
struct Xrcd {
    file: Option<FileId>,
    opens: u32,
    /// Number of queues and targets in the domain.
    users: u32,
}

/// The XRC domains of a NIC.
#[derive(Debug)]
pub(super) struct Xrcds(Table<Xrcd>);

impl Xrcds {
    pub(super) fn new(limit: u32) -> Xrcds {
        Xrcds(Table::new(limit))
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the user counts.
    pub(super) fn users(&self) -> impl Iterator<Item = (u32, u32)> {
        self.0.iter().map(|(index, xrcd)| (index, xrcd.users))
    }

    /// # Errors
    /// If the next close would remove a domain that queues or targets use.
    pub(super) fn check_unused(&self, xrcd: XrcdId) -> Result<(), ControlError> {
        let entry = self.0.get(xrcd.0).ok_or(ControlError::NotFound(ObjectKind::XrcDomain))?;
        match (entry.opens, entry.users) {
            (1, users @ 1..) => Err(ControlError::Busy { object: ObjectKind::XrcDomain, users }),
            _ => Ok(()),
        }
    }

    /// # Errors
    /// If no domain has this name.
    pub(super) fn check(&self, xrcd: XrcdId) -> Result<(), ControlError> {
        if self.holds(xrcd) { Ok(()) } else { Err(ControlError::NotFound(ObjectKind::XrcDomain)) }
    }

    /// True if a domain has this name.
    pub(super) fn holds(&self, xrcd: XrcdId) -> bool {
        self.0.holds(xrcd.0)
    }

    pub(super) fn use_xrcd(&mut self, xrcd: XrcdId, change: i32) -> Result<(), ControlError> {
        let entry = self.0.get_mut(xrcd.0).ok_or(ControlError::NotFound(ObjectKind::XrcDomain))?;
        invariant!(entry.users.checked_add_signed(change).is_some(), "{} users and {change}", entry.users);
        entry.users = entry.users.saturating_add_signed(change);
        Ok(())
    }

    /// Opens a domain, or makes one if there are fewer than `limit`.
    pub(super) fn open(&mut self, open: OpenXrcd, limit: u32) -> Result<Answer, ControlError> {
        let there = open.file.and_then(|file| {
            let mut open = self.0.iter();
            open.find(|(_, xrcd)| xrcd.file == Some(file)).map(|(index, _)| index)
        });
        match there {
            Some(_) if open.exclusive => Err(ControlError::Taken("XRC domain of this file")),
            Some(index) => {
                let xrcd = self.0.get_mut(index).ok_or(ControlError::NotFound(ObjectKind::XrcDomain))?;
                xrcd.opens += 1;
                Ok(Answer::Xrcd(XrcdId(index)))
            }
            None if open.file.is_some() && !open.create => {
                Err(ControlError::NotFound(ObjectKind::XrcDomainOfFile))
            }
            None => {
                let made = self.0.insert(Xrcd { file: open.file, opens: 1, users: 0 });
                made.map(|index| Answer::Xrcd(XrcdId(index)))
                    .ok_or(ControlError::Full { object: ObjectKind::XrcDomain, limit })
            }
        }
    }

    pub(super) fn close(&mut self, xrcd: XrcdId) -> Result<Answer, ControlError> {
        self.check_unused(xrcd)?;
        let entry = self.0.get_mut(xrcd.0).ok_or(ControlError::NotFound(ObjectKind::XrcDomain))?;
        entry.opens -= 1;
        if entry.opens == 0 {
            invariant!(entry.users == 0, "an XRC domain closes, and {} objects are in it", entry.users);
            self.0.remove(xrcd.0);
        }
        Ok(Answer::Done)
    }
}
