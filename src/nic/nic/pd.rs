//! Protection domains: how many objects each has, so that none is closed before them.

use super::command::ControlError;
use super::object::ObjectKind;
use super::table::Table;
use crate::verbs::PdId;

/// The protection domains, with the number of objects of each.
#[derive(Debug)]
pub(super) struct ProtectionDomains {
    users: Table<u32>,
    limit: u32,
}

impl ProtectionDomains {
    pub(super) fn new(limit: u32) -> ProtectionDomains {
        ProtectionDomains { users: Table::new(limit), limit }
    }

    /// Returns the number of domains.
    pub(super) fn len(&self) -> usize {
        self.users.len()
    }

    /// True if a domain has this name.
    pub(super) fn holds(&self, pd: PdId) -> bool {
        self.users.holds(pd.0)
    }

    /// Returns the domains and the number of objects of each.
    pub(super) fn users(&self) -> impl Iterator<Item = (u32, u32)> {
        self.users.iter().map(|(pd, users)| (pd, *users))
    }

    /// Makes a domain without objects.
    pub(super) fn open(&mut self) -> Result<PdId, ControlError> {
        let full = ControlError::Full { object: ObjectKind::ProtectionDomain, limit: self.limit };
        self.users.insert(0).map(PdId).ok_or(full)
    }

    /// # Errors
    /// If there is no such domain, or it has objects.
    pub(super) fn check_unused(&self, pd: PdId) -> Result<(), ControlError> {
        let object = ObjectKind::ProtectionDomain;
        match *self.users.get(pd.0).ok_or(ControlError::NotFound(object))? {
            0 => Ok(()),
            users => Err(ControlError::Busy { object, users }),
        }
    }

    /// Removes a domain without objects.
    pub(super) fn close(&mut self, pd: PdId) -> Result<(), ControlError> {
        self.check_unused(pd)?;
        self.users.remove(pd.0);
        Ok(())
    }

    /// Adds `change`, 1 or -1, to the number of objects of a domain.
    pub(super) fn use_pd(&mut self, pd: PdId, change: i32) -> Result<(), ControlError> {
        let users = self.users.get_mut(pd.0).ok_or(ControlError::NotFound(ObjectKind::ProtectionDomain))?;
        invariant!(users.checked_add_signed(change).is_some(), "{users} objects and {change}");
        *users = users.saturating_add_signed(change);
        Ok(())
    }
}
