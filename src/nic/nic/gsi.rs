//! Routing of management datagrams among QP1s.
//!
//! A NIC has one QP1. A NIC that serves other processes also has one for each client. A datagram goes to the client
//! that it names, or else to the NIC's own QP1, which rejects it. Requests (REQ, SIDR_REQ) name a service that a client
//! listens for. All other messages name the receiver's communication ID, with the client's unit in its upper 8 bits.
//!
//! A client's requests for connections (REQ) and replies (REP) may name its own QPs only: a peer ends the connection of
//! a QP that connects again.

use std::net::IpAddr;
use std::sync::Arc;

use super::table::NumberedTable;
use super::{ControlError, GsiRoutes, Nic, QpEntry};
use crate::verbs::{QpIndex, QpType};
use roxie_wire::addressee::Addressee;
use roxie_wire::cm::Kind;
use roxie_wire::frame::Frame;
use roxie_wire::mad::{CLASS_CM, MAD_HEADER_LEN, MadHeader};
use roxie_wire::{Packet, Qpn, parse};

/// Bytes of a management datagram that identify its addressee.
const HEAD: usize = MAD_HEADER_LEN + Addressee::HEAD;

/// The general service QPs (QP1): the NIC's own, and one per client.
#[derive(Debug, Default)]
pub(super) struct Gsis {
    own: Option<QpIndex>,
    /// QP1s of clients, in the order of their last routing.
    clients: Vec<(QpIndex, GsiRoutes)>,
}

impl Gsis {
    /// True if another QP1 may be made.
    pub(super) fn has_room(&self, serves: bool) -> bool {
        self.own.is_none() || serves
    }

    pub(super) fn add(&mut self, qp: QpIndex) {
        invariant!(self.all().all(|other| other != qp), "QP {} is QP1 twice", qp.0);
        match self.own {
            None => self.own = Some(qp),
            Some(_) => self.clients.push((qp, GsiRoutes::default())),
        }
    }

    pub(super) fn remove(&mut self, qp: QpIndex) {
        self.own.take_if(|own| *own == qp);
        self.clients.retain(|(client, _)| *client != qp);
    }

    pub(super) fn all(&self) -> impl Iterator<Item = QpIndex> + '_ {
        self.own.into_iter().chain(self.clients.iter().map(|(qp, _)| *qp))
    }

    fn route(&mut self, qp: QpIndex, routes: GsiRoutes) -> bool {
        let Some(place) = self.clients.iter().position(|(client, _)| *client == qp) else { return false };
        self.clients.remove(place);
        self.clients.push((qp, routes));
        true
    }

    /// Returns the QP1 that a datagram is for.
    pub(super) fn target(&self, packet: &Packet, frame: &Frame<'_>) -> Option<QpIndex> {
        if self.clients.is_empty() {
            return self.own;
        }
        let mut head = [0; HEAD];
        let read = frame.copy_to(packet.payload.start, &mut head);
        let destination = packet.dest_gid().to_ip();
        self.client(&head[..read.min(packet.payload.len())], destination).or(self.own)
    }

    fn client(&self, message: &[u8], destination: IpAddr) -> Option<QpIndex> {
        let header = MadHeader::read(message).filter(|header| header.class == CLASS_CM)?;
        match Addressee::of(header.attribute, &message[MAD_HEADER_LEN..])? {
            Addressee::Service(service) => self.server_of(service, destination),
            Addressee::Unit(unit) => {
                self.clients.iter().find(|(_, routes)| routes.units.contains(&unit)).map(|(qp, _)| *qp)
            }
        }
    }

    /// Returns the QP1 of the client that listens for a service at an address. At most one client may. A client that
    /// has just released the service may still have its route; then the client that was routed last is the right one.
    fn server_of(&self, service: u64, address: IpAddr) -> Option<QpIndex> {
        let last = self.clients.iter().rev().find(|(_, routes)| routes.serve(service, address));
        last.map(|(qp, _)| *qp)
    }
}

/// Returns the offset of the sender's QPN in a message with this attribute ID, behind the header of the management
/// datagram (IBTA 12.6.5, 12.6.8).
fn offset_of_qpn(attribute: u16) -> Option<usize> {
    match attribute {
        id if id == Kind::Req as u16 => Some(32),
        id if id == Kind::Rep as u16 => Some(12),
        _ => None,
    }
}

/// True if a frame of a client's QP1 is a REQ or a REP for a QP that is not the client's. Reserved numbers are no
/// client's: a program without a QP names 0.
pub(super) fn names_foreign_qp(qps: &NumberedTable<QpEntry>, gsi: &QpEntry, frame: &Frame<'_>) -> bool {
    let Some(page) = gsi.sends.page() else { return false };
    let Ok(packet) = parse(frame) else { return false };
    let mut head = [0; MAD_HEADER_LEN];
    frame.copy_to(packet.payload.start, &mut head);
    let header = MadHeader::read(&head).filter(|header| header.class == CLASS_CM);
    let Some((attribute, at)) = header.and_then(|it| Some((it.attribute, offset_of_qpn(it.attribute)?)))
    else {
        return false;
    };
    let bytes = frame.array::<4>(packet.payload.start + MAD_HEADER_LEN + at).unwrap_or_default();
    let qpn = Qpn::new(u32::from_be_bytes(bytes) >> 8);
    if qpn.value() <= Qpn::GSI.value() || qpn == Qpn::MULTICAST {
        return false;
    }
    let named = qps.name_of(qpn.value()).and_then(|name| qps.get(name));
    // The target of an XRC connection has no queues, and so no page. A REP names it.
    let is_target = |qp: &QpEntry| attribute == Kind::Rep as u16 && qp.qp.qp_type == QpType::XrcRecv;
    let is_own = |qp: &QpEntry| qp.sends.page() == Some(page) || is_target(qp) && has_same_client(qp, gsi);
    !named.is_some_and(is_own)
}

fn has_same_client(a: &QpEntry, b: &QpEntry) -> bool {
    matches!((&a.client, &b.client), (Some(a), Some(b)) if Arc::ptr_eq(a, b))
}

impl Nic {
    /// Routes matching datagrams to a QP1 that is not the NIC's own.
    pub(super) fn route_gsi(&mut self, qp: QpIndex, routes: GsiRoutes) -> Result<(), ControlError> {
        let is_gsi = self.qps.get(qp.0).is_some_and(|entry| entry.qp.qp_type == QpType::Gsi);
        if is_gsi && self.gsis.route(qp, routes) {
            return Ok(());
        }
        Err(ControlError::WrongKind("management datagrams go to a QP1, and to one that is not the NIC's own"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use roxie_wire::addressee::{REQ, SIDR_REP, SIDR_REQ};
    use roxie_wire::cm::Kind;

    fn message(attribute: u16, words: [u32; 4]) -> Vec<u8> {
        let mut bytes = vec![0; MAD_HEADER_LEN];
        (bytes[0], bytes[1]) = (MadHeader::BASE_VERSION, CLASS_CM);
        bytes[16..18].copy_from_slice(&attribute.to_be_bytes());
        bytes.extend(words.iter().flat_map(|word| word.to_be_bytes()));
        bytes
    }

    #[test]
    fn service_is_for_the_client_routed_last() {
        let [here, all]: [IpAddr; 2] = ["192.0.2.1", "0.0.0.0"].map(|text| text.parse().unwrap());
        let mut gsis = Gsis::default();
        let [own, old, new] = [0, 1, 2].map(QpIndex);
        [own, new, old].into_iter().for_each(|qp| gsis.add(qp));
        let on = |address| GsiRoutes::new(Vec::new(), vec![(9, Some(address))]);
        gsis.route(old, on(here));
        // `old` has released its port, but its route is still there.
        gsis.route(new, on(all));
        assert_eq!(gsis.server_of(9, here), Some(new));
        gsis.route(old, GsiRoutes::default());
        assert_eq!(gsis.server_of(9, here), Some(new));
        gsis.remove(new);
        assert_eq!(gsis.server_of(9, here), None);
    }

    #[test]
    fn message_goes_to_id_owner_or_closest_listener() {
        let here: IpAddr = "192.0.2.1".parse().unwrap();
        let mut gsis = Gsis::default();
        let [own, a, b] = [0, 1, 2].map(QpIndex);
        [own, a, b].into_iter().for_each(|qp| gsis.add(qp));
        let routes = |unit, services: &[_]| GsiRoutes::new(vec![unit], services.to_vec());
        let all: IpAddr = "0.0.0.0".parse().unwrap();
        assert!(gsis.route(a, routes(3, &[(0x0106_4321, None), (9, Some(here))])));
        assert!(gsis.route(b, routes(4, &[(0x0106_4321, Some(all))])));
        assert!(!gsis.route(own, GsiRoutes::default()), "the NIC's own gets what is nobody's");

        let to = |attribute, words| gsis.client(&message(attribute, words), here);
        let rep = Kind::Rep as u16;
        assert_eq!(to(rep, [0x0400_0000, 0x03ab_cdef, 0, 0]), Some(a));
        assert_eq!(to(rep, [0x0300_0000, 0x04ab_cdef, 0, 0]), Some(b));
        assert_eq!(to(rep, [0x0300_0000, 0x0500_0000, 0, 0]), None);
        assert_eq!(to(SIDR_REP, [0x0400_0001, 0x0300_0000, 0, 0]), Some(b));
        assert_eq!(to(REQ, [0x0300_0000, 0, 0, 0x0106_4321]), Some(b));
        assert_eq!(to(SIDR_REQ, [0, 0, 0, 9]), Some(a));
        assert_eq!(to(REQ, [0, 0, 0, 8]), None);
        // Truncated, or of another management class.
        assert_eq!(gsis.client(&message(REQ, [0, 0, 0, 9])[..38], here), None);
        let mut other = message(rep, [0, 0x0300_0000, 0, 0]);
        other[1] = 3;
        assert_eq!(gsis.client(&other, here), None);

        gsis.remove(own);
        assert!(gsis.has_room(false), "a new one may be made");
        gsis.remove(a);
        assert_eq!(gsis.all().collect::<Vec<_>>(), [b]);
    }
}
