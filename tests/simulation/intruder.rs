//! A stranger on the link: frames that no host has sent.
//!
//! The frames must have no effect. [`crate::law`] accepts no failure because of them, so the other oracles detect any
//! damage.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use roxie::frame::FrameMut;
use roxie::verbs::Mtu;
use roxie::wire::net::multicast_mac;
use roxie::wire::{
    Aeth, AtomicEth, Bth, Deth, Ext, FlowSpec, Gid, MAX_HEADERS, MacControl, Opcode, Psn, Qpn, Reth,
    RoceVersion, Template,
};

use crate::flow::QKEY;
use crate::link::Link;
use crate::receiver::HEADER;
use crate::script::{Intrusion, Place, Service};
use crate::stations::Stations;
use crate::weather::hash;

/// QPN and MAC address of the stranger.
const QPN: Qpn = Qpn::new(0x0bad);
const MAC: [u8; 6] = [2, 0xbb, 0, 0, 0, 1];

/// Builds the frame of an intrusion on an end. Returns `None` if the end does not exist or the frame does not fit the
/// case. `variant` decides the open details.
pub fn frame(
    link: &Link,
    stations: &Stations,
    place: Place,
    intrusion: Intrusion,
    variant: u64,
) -> Option<Vec<u8>> {
    let end = link.ends.get(place.end)?;
    if matches!(intrusion, Intrusion::Pause | Intrusion::Pfc) {
        return Some(pause(link.seed, intrusion, variant));
    }
    let own = end.qp.as_ref()?.handle.qpn;
    let draw = |what: u64, below: u64| hash(&[link.seed, variant, what]) % below;
    let mtu = stations.largest_mtu(end.host)?;
    let datagram = link.spec.service.is_datagram();
    let group = link.group.filter(|_| place.end > 0);
    let to_group = group.is_some() && draw(0, 2) == 0;
    let dest_qp = match intrusion {
        Intrusion::Unknown => Qpn::new(own.value() ^ 1 << draw(1, 24)),
        _ if to_group => Qpn::MULTICAST,
        _ => own,
    };
    if dest_qp == Qpn::GSI || (intrusion == Intrusion::Unknown && to_group) {
        return None;
    }
    let psn = Psn::new(link.first_psns[usize::from(place.end == 0)].value() + draw(2, 40) as u32);
    let bth = |opcode| Bth { opcode, dest_qp, psn, ack_req: draw(3, 2) == 0, ..Bth::default() };
    let (bth, ext, length) = match intrusion {
        Intrusion::Long if datagram => {
            let length = too_long(link, place, mtu, draw(4, 2) == 0);
            (bth(Opcode::UD_SEND_ONLY), Ext::Deth(Deth { qkey: QKEY, src_qp: QPN }), length)
        }
        Intrusion::Long => return None,
        Intrusion::Notice => (Bth { becn: true, ..bth(Opcode::CNP) }, Ext::None, 0),
        Intrusion::Forged => (Bth { becn: is_good_forgery(link, variant), ..bth(Opcode::CNP) }, Ext::None, 0),
        _ if datagram => {
            (bth(Opcode::UD_SEND_ONLY), Ext::Deth(Deth { qkey: QKEY ^ 2, src_qp: QPN }), draw(5, 64) as usize)
        }
        _ => request_or_answer(link, bth, draw(6, 9), draw(7, 256)),
    };
    let (mut src, dst) = addresses(link, stations, end.host, group.filter(|_| to_group));
    if intrusion == Intrusion::Forged {
        src = stations.address(link.ends[if place.end == 0 { 1 } else { 0 }].host, link.ipv6);
    }
    let dst_mac = match to_group {
        true => multicast_mac(dst)?,
        false => stations.mac(end.host),
    };
    let template = Template::new(&FlowSpec {
        src_mac: MAC,
        dst_mac,
        vlan: None,
        src: Gid::from(src),
        dst: Gid::from(dst),
        traffic_class: if intrusion == Intrusion::Marked { 3 } else { 0 },
        flow_label: 0,
        hop_limit: 64,
        source_port: 0xc0de,
        version: RoceVersion::V2,
    });
    let mut headers = [0; MAX_HEADERS];
    let at = template.write_headers(&mut headers, &bth, &ext, length);
    let mut bytes = vec![0xee; template.frame_len(bth.opcode, length)];
    bytes[..at].copy_from_slice(&headers[..at]);
    template.seal(&mut FrameMut { a: &mut bytes, b: &mut [] });
    Some(bytes)
}

/// True if a forged CNP equals one that the peer would send.
fn is_good_forgery(link: &Link, variant: u64) -> bool {
    !hash(&[link.seed, variant, 8]).is_multiple_of(4)
}

/// Builds a PAUSE or PFC frame that pauses or resumes priorities.
fn pause(seed: u64, intrusion: Intrusion, variant: u64) -> Vec<u8> {
    let draw = |what: u64| hash(&[seed, variant, what]);
    let quanta = |what: u64| [0, 100, 5_000, 0xffff][draw(what) as usize % 4];
    let control = match intrusion {
        Intrusion::Pfc => {
            MacControl::Pfc { enable: draw(9) as u8, quanta: std::array::from_fn(|p| quanta(10 + p as u64)) }
        }
        _ => MacControl::Pause { quanta: quanta(9) },
    };
    control.build(MAC).to_vec()
}

/// True if the port or the NIC must reject the frame as no packet.
pub fn is_no_packet(link: &Link, intrusion: Intrusion, variant: u64) -> bool {
    match intrusion {
        Intrusion::Pause | Intrusion::Pfc => true,
        Intrusion::Forged => !is_good_forgery(link, variant),
        _ => false,
    }
}

/// A payload length beyond the port's MTU, or beyond the receives if those are shorter and `than_receives` is set.
fn too_long(link: &Link, place: Place, mtu: Mtu, than_receives: bool) -> usize {
    let beyond_mtu = mtu.bytes() + 4;
    let room =
        link.way_to(place.end).and_then(|(flow, receiver)| link.flows[flow].receivers[receiver].room());
    match room {
        Some(room) if than_receives => (room.saturating_sub(HEADER) as usize + 4).min(beyond_mtu),
        _ => beyond_mtu,
    }
}

/// A request or response that would have an effect if the peer had sent it.
fn request_or_answer(link: &Link, bth: impl Fn(Opcode) -> Bth, which: u64, length: u64) -> (Bth, Ext, usize) {
    let length = length as usize / 4 * 4 + 4;
    let (ack, nak) = (Aeth { syndrome: 0x1f, msn: 1 }, Aeth { syndrome: 0x62, msn: 1 });
    let reth = Reth { va: 0, rkey: 1, dma_len: length as u32 };
    let atomic = AtomicEth { va: 0, rkey: 1, swap_or_add: 1, compare: 0 };
    let service = match link.spec.service {
        Service::Uc => 0x20,
        Service::Xrc => 0xa0,
        _ => 0,
    };
    let (opcode, ext, length) = match which {
        0 if service == 0 => (Opcode::RC_READ_REQUEST, Ext::Reth(reth), 0),
        1 if service == 0 => (Opcode::RC_FETCH_ADD, Ext::Atomic(atomic), 0),
        2 if service != 0x20 => (Opcode::RC_ACKNOWLEDGE, Ext::Aeth(ack), 0),
        3 if service != 0x20 => (Opcode::RC_ACKNOWLEDGE, Ext::Aeth(nak), 0),
        4 if service != 0x20 => (Opcode::RC_READ_RESPONSE_ONLY, Ext::Aeth(ack), length),
        5 if service != 0x20 => (Opcode::RC_ATOMIC_ACKNOWLEDGE, Ext::AtomicAck(ack, 7), 0),
        6 if service != 0xa0 => (Opcode::RC_WRITE_ONLY, Ext::Reth(reth), length),
        7 if service != 0xa0 => (Opcode::RC_SEND_MIDDLE, Ext::None, length),
        _ if service != 0xa0 => (Opcode::RC_SEND_ONLY, Ext::None, length),
        _ => (Opcode::RC_ACKNOWLEDGE, Ext::Aeth(nak), 0),
    };
    (bth(Opcode(opcode.0 | service)), ext, length)
}

/// Source address of the stranger, and destination address.
fn addresses(link: &Link, stations: &Stations, host: usize, group: Option<Gid>) -> (IpAddr, IpAddr) {
    let unknown_host: IpAddr = match link.ipv6 {
        true => Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0xbb, 1).into(),
        false => Ipv4Addr::new(192, 0, 187, 1).into(),
    };
    (unknown_host, group.map_or_else(|| stations.address(host, link.ipv6), |group| group.to_ip()))
}
