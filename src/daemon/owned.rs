//! What belongs to a process that the NIC serves: it may name that and nothing else.
//!
//! Objects are named by their places in the NIC's tables, which are easy to guess. So each command is looked at here before the NIC sees
//! it: whatever it names has to be the process's own. Keys and handles in work requests need no look: the NIC compares their
//! protection domain with the QP's, and domains are never shared.

use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;

use super::account::Charge;
use crate::nic::{Command, ControlError, MemoryCommand, Object, PlantedBug};
use crate::verbs::{Gid, QpIndex, QpInit, QpType, SrqInit, SrqKind, XrcdId};

/// The objects of a process.
#[derive(Debug, Default)]
pub(super) struct Owned {
    objects: HashMap<Object, Holding>,
    /// Its QP1.
    gsi: Option<QpIndex>,
    /// QPs in multicast groups, each with what it costs the process and its user.
    members: HashMap<(QpIndex, Gid), [Charge; 2]>,
}

#[derive(Debug)]
struct Holding {
    made: Making,
    /// The file of an XRC domain, whose numbers are no other one's as long as this is open.
    file: Option<OwnedFd>,
    /// For its cost: one, and of an XRC domain one for each time that it is open.
    charges: Vec<Charge>,
}

/// Facts about the object that a command makes, which its answer does not tell.
#[derive(Clone, Copy, Debug)]
pub(super) struct Making {
    pub(super) role: Role,
    /// The XRC domain that it is in.
    within: Option<XrcdId>,
}

/// The role of an object, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// QP1 of the process.
    Gsi,
    /// A QP that spreads frames over others, which cannot go before it.
    Spreads,
    Other,
}

impl Making {
    pub(super) fn by(command: &Command) -> Making {
        let mut making = Making { role: Role::Other, within: None };
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
        let is_planted = matches!(object, Object::Qp(_)) && PlantedBug::NamesOthersQps.is();
        if self.has(object) || is_planted { Ok(()) } else { Err(ControlError::NotFound(object.kind())) }
    }

    /// Its QP1.
    pub(super) fn gsi(&self) -> Option<QpIndex> {
        self.gsi
    }

    /// Returns the charge of an object.
    pub(super) fn charge_of(&self, object: Object) -> Option<&Charge> {
        self.objects.get(&object).and_then(|holding| holding.charges.first())
    }

    /// Closes an XRC domain for the last time only when nothing of the process is in it (`uverbs_free_xrcd` of the kernel): the domain would stay, and
    /// be nobody's.
    pub(super) fn may_close(&self, xrcd: XrcdId) -> Result<(), ControlError> {
        let times = self.objects.get(&Object::Xrcd(xrcd)).map_or(0, |holding| holding.charges.len());
        let users = self.objects.values().filter(|holding| holding.made.within == Some(xrcd)).count() as u32;
        if times > 1 || users == 0 {
            return Ok(());
        }
        Err(ControlError::Busy { object: "XRC domain", users })
    }

    /// Enters an object that was made or changed, with its charge.
    pub(super) fn enter(&mut self, object: Object, made: Making, charge: Charge) {
        if let (Object::Qp(qp), Role::Gsi) = (object, made.role) {
            self.gsi = Some(qp);
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
            _ => drop(self.objects.remove(&object)),
        }
        if let Object::Qp(qp) = object {
            self.gsi.take_if(|gsi| *gsi == qp);
            self.members.retain(|(member, _), _| *member != qp);
        }
    }

    /// Keeps the file that an XRC domain stands for, as long as the domain is open.
    pub(super) fn keep_file(&mut self, xrcd: XrcdId, file: OwnedFd) {
        if let Some(holding) = self.objects.get_mut(&Object::Xrcd(xrcd)) {
            holding.file = Some(file);
        }
    }

    /// True if a QP is in a multicast group.
    pub(super) fn is_member(&self, qp: QpIndex, group: Gid) -> bool {
        self.members.contains_key(&(qp, group))
    }

    /// Enters a QP that was attached to a multicast group.
    pub(super) fn attached(&mut self, qp: QpIndex, group: Gid, charges: [Charge; 2]) {
        self.members.insert((qp, group), charges);
    }

    /// Strikes a QP that was taken out of a multicast group.
    pub(super) fn detached(&mut self, qp: QpIndex, group: Gid) {
        self.members.remove(&(qp, group));
    }

    /// Returns the commands that take everything of it away, in an order in which nothing is needed any more when its turn comes. Each object
    /// is named once, and an XRC domain as often as it is open.
    pub(super) fn farewell(&self) -> Vec<Command> {
        let each = |(object, holding): (&Object, &Holding)| {
            (turn(*object, holding.made.role), *object, holding.charges.len())
        };
        let mut objects: Vec<_> = self.objects.iter().map(each).collect();
        objects.sort_by_key(|(turn, ..)| *turn);
        let each = |(_, object, times): (u8, Object, usize)| (0..times).map(move |_| end_of(object));
        objects.into_iter().flat_map(each).collect()
    }

    /// Returns the names of all of it.
    pub(super) fn names(&self) -> HashSet<Object> {
        self.objects.keys().copied().collect()
    }
}

/// Returns the place of an object in the order of the end.
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

/// Returns the command that takes an object away.
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
