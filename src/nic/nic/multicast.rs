//! Multicast groups and their QPs (IBTA 10.5, A17.4.9).

use super::command::{Answer, ControlError};
use super::object::ObjectKind;
use super::{Nic, RxOutcome};
use crate::nic::RxFrame;
use crate::transport::Verdict;
use crate::verbs::{Gid, QpIndex};
use roxie_base::time::Nanos;
use roxie_wire::Packet;

/// The groups of a NIC, ordered by GID.
#[derive(Debug, Default)]
pub(super) struct Groups {
    groups: Vec<Group>,
}

#[derive(Debug)]
struct Group {
    gid: Gid,
    members: Vec<QpIndex>,
}

/// A change that the port must follow: the NIC's first member of a group joined, or the last one left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupChange {
    /// The port must receive frames for the group.
    Joined(Gid),
    /// The port need no longer receive frames for the group.
    Left(Gid),
}

impl Groups {
    fn position(&self, gid: Gid) -> Result<usize, usize> {
        self.groups.binary_search_by_key(&gid, |group| group.gid)
    }

    fn members(&self, gid: Gid) -> &[QpIndex] {
        self.position(gid).map_or(&[], |at| &self.groups[at].members)
    }

    /// Returns all members of all groups.
    pub(super) fn all(&self) -> impl Iterator<Item = QpIndex> {
        self.groups.iter().flat_map(|group| group.members.iter().copied())
    }

    /// Removes a member. `Some(true)` if it was the last.
    fn remove(&mut self, gid: Gid, qp: QpIndex) -> Option<bool> {
        let at = self.position(gid).ok()?;
        let members = &mut self.groups[at].members;
        let place = members.iter().position(|member| *member == qp)?;
        members.remove(place);
        let last = members.is_empty();
        if last {
            self.groups.remove(at);
        }
        Some(last)
    }
}

impl Nic {
    /// Attaches a QP to a group. No effect if it is already attached.
    pub(super) fn attach_multicast(&mut self, qp: QpIndex, gid: Gid) -> Result<Answer, ControlError> {
        let entry = self.qps.get(qp.0).ok_or(ControlError::NotFound(ObjectKind::QueuePair))?;
        //= IBTA 10.5: multicast-is-for-datagrams
        if !entry.qp.qp_type.is_datagram() {
            return Err(ControlError::NotDatagram(entry.qp.qp_type));
        }
        if !gid.to_ip().is_multicast() {
            return Err(ControlError::NotMulticast(gid));
        }
        let limits = &self.config.limits;
        match self.groups.position(gid) {
            Ok(at) => {
                let members = &mut self.groups.groups[at].members;
                if !members.contains(&qp) {
                    if members.len() >= limits.group_members as usize {
                        return Err(ControlError::Full {
                            object: ObjectKind::GroupMember,
                            limit: limits.group_members,
                        });
                    }
                    members.push(qp);
                }
            }
            Err(_) if self.groups.groups.len() >= limits.groups as usize => {
                return Err(ControlError::Full { object: ObjectKind::MulticastGroup, limit: limits.groups });
            }
            Err(at) => {
                self.groups.groups.insert(at, Group { gid, members: vec![qp] });
                self.group_changes.push_back(GroupChange::Joined(gid));
            }
        }
        Ok(Answer::Done)
    }

    pub(super) fn detach_multicast(&mut self, qp: QpIndex, gid: Gid) -> Result<Answer, ControlError> {
        let last = self.groups.remove(gid, qp).ok_or(ControlError::NotFound(ObjectKind::GroupMember))?;
        if last {
            self.group_changes.push_back(GroupChange::Left(gid));
        }
        Ok(Answer::Done)
    }

    /// Removes a destroyed QP from all groups.
    pub(super) fn detach_from_all(&mut self, qp: QpIndex) {
        let changes = &mut self.group_changes;
        self.groups.groups.retain_mut(|group| {
            let before = group.members.len();
            group.members.retain(|member| *member != qp);
            let last = before > 0 && group.members.is_empty();
            if last {
                changes.push_back(GroupChange::Left(group.gid));
            }
            !last
        });
    }

    /// Returns the next change for the port. To be called after each command.
    pub fn take_group_change(&mut self) -> Option<GroupChange> {
        self.group_changes.pop_front()
    }

    /// Removes a group that the port could not join.
    pub fn forget_group(&mut self, gid: Gid) {
        if let Ok(at) = self.groups.position(gid) {
            self.groups.groups.remove(at);
        }
    }

    /// Delivers a packet for a group to each member, which may drop it individually.
    pub(super) fn receive_multicast(
        &mut self,
        now: Nanos,
        packet: &Packet,
        received: &RxFrame<'_>,
    ) -> RxOutcome {
        let gid = packet.dest_gid();
        let Some(first) = self.groups.members(gid).first().copied() else {
            self.counters.rx_unknown_qp += 1;
            return RxOutcome::UnknownQp(packet.bth.dest_qp);
        };
        let hidden_id = match self.accept_icrc(first.0, packet, received) {
            Ok(hidden_id) => hidden_id,
            Err(outcome) => return outcome,
        };
        let (mut members, mut taken, mut refused) = (0, 0, None);
        //= IBTA 10.5: multicast-goes-to-all-members
        while let Some(member) = self.groups.members(gid).get(members).copied() {
            members += 1;
            let verdict = self.deliver(now, member.0, packet, received);
            if verdict == Some(Verdict::Executed) {
                taken += 1;
            } else {
                refused = refused.or(verdict);
            }
        }
        self.counters.rx_multicast += 1;
        RxOutcome::Multicast { members, taken, refused, hidden_id }
    }
}
