//! The objects of a client. A client may name its own objects and no others.
//!
//! Objects are named by their places in the NIC's tables, which are easy to guess. Therefore each command is checked
//! here before the NIC sees it: all objects that it names must be the client's own. Keys and handles in work requests
//! need no check: the NIC compares their protection domain with the QP's, and domains are never shared.

use std::collections::HashMap;
use std::os::fd::OwnedFd;

use super::account::Charge;
use roxie_nic::nic::{Command, ControlError, MemoryCommand, Object, ObjectKind, may_name};
use roxie_nic::verbs::{AsyncEvent, Gid, QpIndex, QpInit, QpType, SrqInit, SrqKind, XrcdId};

/// The objects of a client.
#[derive(Debug, Default)]
pub(super) struct Owned {
    objects: HashMap<Object, Holding>,
    /// Its QP1.
    gsi: Option<QpIndex>,
    /// QPs in multicast groups, each with what it costs the process and its user.
    members: HashMap<(QpIndex, Gid), [Charge; 2]>,
    /// Files of XRC domains that are closed. The last descriptor of a file system in userspace may take forever to
    /// close, and others wait for this book.
    unneeded: Vec<OwnedFd>,
}

#[derive(Debug)]
struct Holding {
    made: Creation,
    /// The file of an XRC domain. While it is open, its inode number is not reused.
    file: Option<OwnedFd>,
    /// Its charges: one, and for an XRC domain one for each opening.
    charges: Vec<Charge>,
}

/// Facts about an object that its command states and the answer does not.
#[derive(Clone, Copy, Debug)]
pub(super) struct Creation {
    pub(super) role: Role,
    /// The XRC domain that the object is in.
    within: Option<XrcdId>,
}

/// The role of an object, where it needs special treatment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// The client's QP1.
    Gsi,
    /// A QP that spreads frames over other QPs, and must be destroyed before them.
    Spreads,
    Other,
}

impl Creation {
    pub(super) fn by(command: &Command) -> Creation {
        let mut making = Creation { role: Role::Other, within: None };
        match command {
            Command::CreateRssQp(..) => making.role = Role::Spreads,
            Command::CreateXrcTarget(xrcd) => making.within = Some(*xrcd),
            Command::Memory(command) => match **command {
                MemoryCommand::CreateQp { init: QpInit { qp_type: QpType::Gsi, .. }, .. } => {
                    making.role = Role::Gsi;
                }
                MemoryCommand::CreateSrq {
                    init: SrqInit { kind: SrqKind::Xrc { xrcd, .. }, .. }, ..
                } => {
                    making.within = Some(xrcd);
                }
                _ => {}
            },
            _ => {}
        }
        making
    }
}

impl Owned {
    pub(super) fn has(&self, object: Object) -> bool {
        self.objects.contains_key(&object)
    }

    /// # Errors
    /// [`ControlError::NotFound`], unless the object is the process's.
    pub(super) fn check(&self, object: Object) -> Result<(), ControlError> {
        let may_name = may_name(self.has(object), matches!(object, Object::Qp(_)));
        if may_name { Ok(()) } else { Err(ControlError::NotFound(object.kind())) }
    }

    /// True if an event concerns an object in the books, or the device as a whole.
    pub(super) fn concerns(&self, event: AsyncEvent) -> bool {
        match event {
            AsyncEvent::Qp(qp, _) => self.has(Object::Qp(qp)),
            AsyncEvent::Cq(cq, _) => self.has(Object::Cq(cq)),
            AsyncEvent::Srq(srq, _) => self.has(Object::Srq(srq)),
            AsyncEvent::Device(_) => true,
            // Each client follows the port by itself.
            AsyncEvent::Port(_) => false,
        }
    }

    /// Its QP1.
    pub(super) fn gsi(&self) -> Option<QpIndex> {
        self.gsi
    }

    /// Returns the charge of an object.
    pub(super) fn charge_of(&self, object: Object) -> Option<&Charge> {
        self.objects.get(&object).and_then(|holding| holding.charges.first())
    }

    /// Permits the last close of an XRC domain only when no object of the client is in it (`uverbs_free_xrcd` of the
    /// kernel). Otherwise the domain would stay, without an owner.
    pub(super) fn may_close(&self, xrcd: XrcdId) -> Result<(), ControlError> {
        let times = self.objects.get(&Object::Xrcd(xrcd)).map_or(0, |holding| holding.charges.len());
        let users = self.objects.values().filter(|holding| holding.made.within == Some(xrcd)).count() as u32;
        debug_assert!(times > 0 || users == 0, "{users} objects are in an XRC domain that is not open");
        if times > 1 || users == 0 {
            return Ok(());
        }
        Err(ControlError::Busy { object: ObjectKind::XrcDomain, users })
    }

    /// Enters an object that was made or changed, with its charge.
    pub(super) fn enter(&mut self, object: Object, made: Creation, charge: Charge) {
        if let (Object::Qp(qp), Role::Gsi) = (object, made.role) {
            let before = self.gsi.replace(qp);
            debug_assert!(before.is_none_or(|before| before == qp), "QP1 is {before:?} already");
        }
        match (object, self.objects.get_mut(&object)) {
            // One more time to close it.
            (Object::Xrcd(_), Some(holding)) => holding.charges.push(charge),
            (_, Some(holding)) => holding.charges = vec![charge],
            _ => drop(self.objects.insert(object, Holding { made, file: None, charges: vec![charge] })),
        }
    }

    /// Strikes an object that was taken away.
    pub(super) fn strike(&mut self, object: Object) {
        match self.objects.get_mut(&object) {
            Some(holding) if holding.charges.len() > 1 => drop(holding.charges.pop()),
            _ => self.unneeded.extend(self.objects.remove(&object).and_then(|holding| holding.file)),
        }
        if let Object::Qp(qp) = object {
            self.gsi.take_if(|gsi| *gsi == qp);
            self.members.retain(|(member, _), _| *member != qp);
        }
    }

    /// Keeps the file that an XRC domain stands for, as long as the domain is open. `None`: it was not opened.
    pub(super) fn keep_file(&mut self, xrcd: Option<XrcdId>, file: OwnedFd) {
        match xrcd.and_then(|xrcd| self.objects.get_mut(&Object::Xrcd(xrcd))) {
            Some(holding) => self.unneeded.extend(holding.file.replace(file)),
            None => self.unneeded.push(file),
        }
    }

    /// Returns files that no domain needs any more, to be closed once this book is not locked.
    pub(super) fn take_unneeded(&mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.unneeded)
    }

    /// Strikes everything.
    pub(super) fn clear(&mut self) {
        let mut files = std::mem::take(&mut self.unneeded);
        files.extend(self.objects.drain().filter_map(|(_, holding)| holding.file));
        *self = Owned { unneeded: files, ..Owned::default() };
    }

    /// True if a QP is in a multicast group.
    pub(super) fn is_member(&self, qp: QpIndex, group: Gid) -> bool {
        self.members.contains_key(&(qp, group))
    }

    /// Records that a QP was attached to a multicast group.
    pub(super) fn attached(&mut self, qp: QpIndex, group: Gid, charges: [Charge; 2]) {
        debug_assert!(self.has(Object::Qp(qp)), "QP {} is in a group, and not the client's", qp.0);
        let before = self.members.insert((qp, group), charges);
        debug_assert!(before.is_none(), "QP {} is in a group twice", qp.0);
    }

    /// Records that a QP was detached from a multicast group.
    pub(super) fn detached(&mut self, qp: QpIndex, group: Gid) {
        self.members.remove(&(qp, group));
    }

    /// Returns the commands that destroy all objects, ordered such that no object is needed by a later one. Each object
    /// is named once, an XRC domain once for each opening.
    pub(super) fn farewell(&self) -> Vec<Command> {
        let each = |(object, holding): (&Object, &Holding)| {
            (turn(*object, holding.made.role), *object, holding.charges.len())
        };
        let mut objects: Vec<_> = self.objects.iter().map(each).collect();
        objects.sort_by_key(|(turn, ..)| *turn);
        debug_assert!(objects.iter().all(|(.., times)| *times > 0), "an object is not charged");
        let each = |(_, object, times): (u8, Object, usize)| (0..times).map(move |_| end_of(object));
        objects.into_iter().flat_map(each).collect()
    }

    /// Returns the names of all objects.
    pub(super) fn names(&self) -> Vec<Object> {
        self.objects.keys().copied().collect()
    }
}

/// Returns the position of an object in the order of destruction.
fn turn(object: Object, role: Role) -> u8 {
    match object {
        Object::Flow(_) => 0,
        Object::Qp(_) if role == Role::Spreads => 1,
        Object::Qp(_) => 2,
        Object::Ah(_) => 3,
        Object::Srq(_) => 4,
        Object::Cq(_) => 5,
        Object::Window(_) => 6,
        Object::Mr(_) => 7,
        Object::Xrcd(_) => 8,
        Object::Pd(_) => 9,
    }
}

/// Returns the command that destroys an object.
fn end_of(object: Object) -> Command {
    match object {
        Object::Flow(flow) => Command::DestroyFlow(flow),
        Object::Qp(qp) => Command::DestroyQp(qp),
        Object::Ah(ah) => Command::DestroyAh(ah),
        Object::Srq(srq) => Command::DestroySrq(srq),
        Object::Cq(cq) => Command::DestroyCq(cq),
        Object::Window(window) => Command::FreeWindow(window),
        Object::Mr(mr) => Command::ReleaseMemory(mr),
        Object::Xrcd(xrcd) => Command::CloseXrcd(xrcd),
        Object::Pd(pd) => Command::DeallocPd(pd),
    }
}
