//! Frames of the flood: built by hand, from a thousand source addresses.

use std::net::Ipv4Addr;

use roxie::frame::FrameMut;
use roxie::wire::cm::{CmMessage, CommId, Req};
use roxie::wire::mad::{GSI_QKEY, MAD_LEN};
use roxie::wire::{
    Bth, Deth, Ext, FlowSpec, Gid, MAX_HEADERS, Opcode, PortSpace, Psn, Qpn, RoceVersion, ServiceId, Template,
};

use crate::{PORT, UNUSED_PORT};

/// Address of the server.
pub(crate) const NEAR: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
/// Address of the client.
pub(crate) const FAR: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
/// Number of source addresses of a flood.
pub(crate) const STRANGERS: u32 = 1000;
/// First address of hosts that do not exist, so that neighbour discovery fails (benchmarking network, RFC 2544).
const SILENT: u32 = u32::from_be_bytes([198, 18, 1, 0]);
/// First address of hosts that the near end knows: replies leave, and are discarded.
const KNOWN: u32 = u32::from_be_bytes([198, 19, 1, 0]);
/// MAC address of all flood sources.
pub(crate) const STATION: [u8; 6] = [2, 0xbb, 0, 0, 0, 1];
/// Offset of the UDP destination port in an IPv4 frame.
const UDP_DESTINATION: usize = 14 + 20 + 2;
/// Discard (RFC 863): the kernel drops frames to this port.
const DISCARD: u16 = 9;
/// Longest payload that the link carries, in bytes: more than a port's MTU of 4096.
const LONG: usize = 4148;

/// Returns the addresses with a known MAC address at the near end.
pub(crate) fn known() -> impl Iterator<Item = Ipv4Addr> {
    (0..STRANGERS).map(|n| Ipv4Addr::from(KNOWN + n))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// No flood.
    Nothing,
    /// Dropped by the kernel; as long as a REQ.
    Discard,
    /// Dropped by the kernel; as long as the link carries.
    DiscardLong,
    UnknownQpn,
    /// From the peer's address, to the honest connection's QP.
    BadIcrc,
    Cnp,
    /// A datagram to QP1, longer than the port's MTU.
    Long,
    /// A datagram to QP1 that fills a receive buffer with garbage.
    Garbage,
    /// A REQ for a port without a listener.
    Refused,
    /// A REQ for the honest server's port, from a host that does not exist.
    Silent,
    /// A REQ for the honest server's port, from a host that can be reached.
    Known,
    /// A REQ for the honest server's port that names the peer's QP of the honest connection.
    Named,
    /// All kinds in turn.
    Mixed,
}

impl Kind {
    pub(crate) const ALL: [(Kind, &str); 13] = [
        (Kind::Nothing, "nothing"),
        (Kind::Discard, "port-9"),
        (Kind::DiscardLong, "port-9-long"),
        (Kind::UnknownQpn, "unknown-qpn"),
        (Kind::BadIcrc, "bad-icrc"),
        (Kind::Cnp, "cnp"),
        (Kind::Long, "long"),
        (Kind::Garbage, "garbage"),
        (Kind::Refused, "req-refused"),
        (Kind::Silent, "req-silent"),
        (Kind::Known, "req-known"),
        (Kind::Named, "req-named"),
        (Kind::Mixed, "mixed"),
    ];

    /// Kinds of a mixed flood.
    const TURNS: [Kind; 7] =
        [Kind::UnknownQpn, Kind::BadIcrc, Kind::Cnp, Kind::Long, Kind::Refused, Kind::Silent, Kind::Known];
}

/// The honest connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Honest {
    /// QP of the near end.
    pub(crate) local: Qpn,
    /// QP of the far end, and the GUID of its adapter.
    pub(crate) remote: Qpn,
    pub(crate) guid: u64,
}

/// Generates frames. No two REQs are the same.
pub(crate) struct Frames {
    kind: Kind,
    honest: Honest,
    silent: Vec<Template>,
    known: Vec<Template>,
    peer: Template,
    number: u32,
}

impl Frames {
    pub(crate) fn new(kind: Kind, station: [u8; 6], honest: Honest) -> Frames {
        let from = |source: Ipv4Addr| {
            Template::new(&FlowSpec {
                src_mac: STATION,
                dst_mac: station,
                vlan: None,
                src: Gid::from(std::net::IpAddr::from(source)),
                dst: Gid::from(std::net::IpAddr::from(NEAR)),
                traffic_class: 0,
                flow_label: 0,
                hop_limit: 64,
                source_port: 0xc0de,
                version: RoceVersion::V2,
            })
        };
        let all = |first: u32| (0..STRANGERS).map(|n| from(Ipv4Addr::from(first + n))).collect();
        Frames { kind, honest, silent: all(SILENT), known: all(KNOWN), peer: from(FAR), number: 0 }
    }

    /// Replaces `frame` with the next frame.
    pub(crate) fn next(&mut self, frame: &mut Vec<u8>) {
        self.number = self.number.wrapping_add(1);
        let number = self.number;
        let turn = number as usize % Kind::TURNS.len();
        let kind = if self.kind == Kind::Mixed { Kind::TURNS[turn] } else { self.kind };
        let unknown_peer = (number / if self.kind == Kind::Mixed { 7 } else { 1 } % STRANGERS) as usize;
        let template = match kind {
            Kind::BadIcrc | Kind::Named => &self.peer,
            Kind::Known => &self.known[unknown_peer],
            _ => &self.silent[unknown_peer],
        };
        let bth = |opcode, dest_qp| Bth { opcode, dest_qp, psn: Psn::new(number), ..Bth::default() };
        let datagram =
            (bth(Opcode::UD_SEND_ONLY, Qpn::GSI), Ext::Deth(Deth { qkey: GSI_QKEY, src_qp: Qpn::GSI }));
        match kind {
            Kind::Nothing | Kind::Mixed => frame.clear(),
            Kind::Discard => write(frame, template, datagram, Body::Length(MAD_LEN)),
            Kind::DiscardLong => write(frame, template, datagram, Body::Length(LONG)),
            Kind::UnknownQpn => {
                let nobody = Qpn::new(self.honest.local.value() ^ (1 + number % 1000) << 4);
                write(frame, template, (bth(Opcode::RC_SEND_ONLY, nobody), Ext::None), Body::Length(MAD_LEN));
            }
            Kind::BadIcrc => {
                write(
                    frame,
                    template,
                    (bth(Opcode::RC_SEND_ONLY, self.honest.local), Ext::None),
                    Body::Length(1024),
                );
                *frame.last_mut().expect("a frame") ^= 1;
            }
            Kind::Cnp => {
                let notice = Bth { becn: true, ..bth(Opcode::CNP, self.honest.local) };
                write(frame, template, (notice, Ext::None), Body::Length(0));
            }
            Kind::Long => write(frame, template, datagram, Body::Length(LONG)),
            Kind::Garbage => write(frame, template, datagram, Body::Length(4096)),
            Kind::Refused | Kind::Silent | Kind::Known => {
                let port = if kind == Kind::Refused { UNUSED_PORT } else { PORT };
                let first = if kind == Kind::Known { KNOWN } else { SILENT };
                let mad =
                    req(number, Ipv4Addr::from(first + unknown_peer as u32), port, (number.into(), number));
                write(frame, template, datagram, Body::Bytes(&mad));
            }
            Kind::Named => {
                let mad = req(number, FAR, PORT, (self.honest.guid, self.honest.remote.value()));
                write(frame, template, datagram, Body::Bytes(&mad));
            }
        }
        if matches!(kind, Kind::Discard | Kind::DiscardLong) {
            frame[UDP_DESTINATION..UDP_DESTINATION + 2].copy_from_slice(&DISCARD.to_be_bytes());
        }
    }
}

enum Body<'a> {
    /// A number of arbitrary bytes.
    Length(usize),
    Bytes(&'a [u8]),
}

fn write(frame: &mut Vec<u8>, template: &Template, (bth, ext): (Bth, Ext), body: Body<'_>) {
    let length = match body {
        Body::Length(length) => length,
        Body::Bytes(bytes) => bytes.len(),
    };
    let mut headers = [0; MAX_HEADERS];
    let at = template.write_headers(&mut headers, &bth, &ext, length);
    frame.resize(at + length + 4, 0xee);
    frame[..at].copy_from_slice(&headers[..at]);
    if let Body::Bytes(bytes) = body {
        frame[at..at + length].copy_from_slice(bytes);
    }
    template.seal(&mut FrameMut { a: frame, b: &mut [] });
}

/// Builds a REQ that requests the maximum of each field, for the QP of an adapter.
fn req(number: u32, from: Ipv4Addr, port: u16, (ca_guid, qpn): (u64, u32)) -> [u8; MAD_LEN] {
    let mut req = Req {
        local_comm_id: CommId(number),
        service_id: ServiceId::of_port(PortSpace::Tcp, port),
        local_ca_guid: ca_guid,
        local_qpn: Qpn::new(qpn),
        path_mtu: 3,
        pkey: 0xffff,
        local_cm_response_timeout: 31,
        max_cm_retries: 15,
        ..Req::default()
    };
    req.primary_path.local_ack_timeout = 31;
    req.primary_path.subnet_local = true;
    req.primary_path.local_gid = Gid::from(std::net::IpAddr::from(from));
    req.primary_path.remote_gid = Gid::from(std::net::IpAddr::from(NEAR));
    CmMessage::Req(req).to_mad(number.into())
}
