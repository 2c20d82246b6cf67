//! Address handles and multicast groups.

use std::ffi::c_int;
use std::net::Ipv4Addr;

use roxie::host::{AddressHandle, AhOptions, Device};
use roxie::verbs::{AddressVector, Gid};
use roxie::wire::RoceVersion;
use roxie::wire::net::NEXT_HEADER_IBA;

use crate::abi::{
    ibv_ah, ibv_ah_attr, ibv_context, ibv_gid, ibv_global_route, ibv_grh, ibv_pd, ibv_qp, ibv_wc,
};
use crate::base::cancellation::Uncancelled;
use crate::base::object::{Errno, VerbsStruct, code, give, minus_one, object_of, pointer, take_back};
use crate::base::report::{device, refuse};
use crate::device::context::context;
use crate::pd::InDomain;

/// TTL if a program leaves it 0, which stands for the default.
const DEFAULT_TTL: u8 = 64;

/// The object behind an address handle.
pub(crate) struct Ah {
    pub(crate) handle: AddressHandle,
    _domain: InDomain,
}

impl VerbsStruct for ibv_ah {
    type Extended = ibv_ah;
    type Inner = Ah;
}

/// Returns the path that attributes describe.
///
/// # Safety
/// The contract: attributes of all releases.
pub(crate) unsafe fn address_vector(
    call: &'static str,
    nic: &Device,
    attr: *const ibv_ah_attr,
) -> Result<AddressVector, Errno> {
    // SAFETY: the caller's promise; fields are copied.
    let (grh, is_global, port) = unsafe { ((*attr).grh, (*attr).is_global, (*attr).port_num) };
    // SAFETY: attributes of all releases, as the caller promises: these fields are there in each, and are copied.
    let (sl, static_rate) = unsafe { ((*attr).sl, (*attr).static_rate) };
    if is_global == 0 {
        return refuse(
            call,
            libc::EINVAL,
            "ah_attr.is_global = 0: RoCE addresses are GIDs, set is_global, grh.dgid and grh.sgid_index",
        );
    }
    // Some programs set the port only by modify_qp's own attribute, so 0 is allowed.
    if port > 1 {
        return refuse(call, libc::EINVAL, format_args!("ah_attr.port_num = {port}: the device has port 1"));
    }
    let sgid = nic.local_gid(grh.sgid_index.into()).map_err(device(call))?;
    // SAFETY: all of a GID's forms are the same 16 bytes.
    let dgid = Gid(unsafe { grh.dgid.raw });
    let to = dgid.to_ip();
    if to.is_unspecified() {
        return refuse(
            call,
            libc::EINVAL,
            format_args!("ah_attr.grh.dgid = {dgid}: no host has this address"),
        );
    }
    let options = AhOptions {
        traffic_class: grh.traffic_class,
        // The kernel, too, replaces the program's value (0 or 1) by the route's (`ib_resolve_unicast_gid_dmac`). Here,
        // 0 means the route's.
        hop_limit: match (to.is_multicast(), grh.hop_limit) {
            (false, _) => 0,
            (true, 0) => DEFAULT_TTL,
            (true, hops) => hops,
        },
        flow_label: grh.flow_label & 0xf_ffff,
        sl,
    };
    let av = AddressVector { static_rate, ..nic.address_vector(sgid, dgid, &options).map_err(device(call))? };
    if static_rate != 0 && av.static_rate_kbps().is_none() {
        return refuse(
            call,
            libc::EINVAL,
            format_args!(
                "ah_attr.static_rate = {static_rate}: it is 0 (as fast as the port) or a code of enum ibv_rate, 2 (2.5 Gb/s) to 24"
            ),
        );
    }
    Ok(av)
}

/// Creates an address handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    let _uncancelled = Uncancelled::new();
    // SAFETY: the contract: an object, and attributes.
    pointer(unsafe {
        object_of(pd).and_then(|found| {
            if attr.is_null() {
                return Err(libc::EINVAL);
            }
            let nic = &context((*pd).context)?.nic.device;
            if (*attr).port_num == 0 {
                return refuse("ibv_create_ah", libc::EINVAL, "ah_attr.port_num = 0: the device has port 1");
            }
            let path = address_vector("ibv_create_ah", nic, attr)?;
            let handle = found.domain.create_ah_along(path).map_err(device("ibv_create_ah"))?;
            let domain = InDomain::new(found);
            Ok(give(ibv_ah { context: (*pd).context, pd, handle: 0 }, Ah { handle, _domain: domain }))
        })
    })
}

/// Destroys an address handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int {
    let _uncancelled = Uncancelled::new();
    // SAFETY: the contract: an object.
    code(unsafe { object_of(ah).map(|_| drop(take_back(ah))) })
}

/// Returns sender and receiver of the network header (40 bytes) before a datagram, with traffic class, flow label and
/// TTL.
fn addresses(header: &[u8; 40]) -> Option<(Gid, Gid, ibv_global_route)> {
    let mut route = ibv_global_route::default();
    // An IPv6 header fills the 40 bytes; an IPv4 header without options is in the last 20.
    let (sender, receiver) = match (header[0] >> 4, header[20]) {
        (6, _) => {
            let word = u32::from_be_bytes(header[..4].try_into().ok()?);
            route.traffic_class = (word >> 20) as u8;
            route.flow_label = word & 0xf_ffff;
            route.hop_limit = header[7];
            (Gid(header[8..24].try_into().ok()?), Gid(header[24..].try_into().ok()?))
        }
        (_, 0x45) => {
            let v4 = |at: usize| Ipv4Addr::from(<[u8; 4]>::try_from(&header[at..at + 4]).expect("4 bytes"));
            route.traffic_class = header[21];
            route.hop_limit = header[28];
            (Gid::from(std::net::IpAddr::from(v4(32))), Gid::from(std::net::IpAddr::from(v4(36))))
        }
        _ => return None,
    };
    Some((sender, receiver, route))
}

/// Returns the attributes for a reply to a received datagram, from the network header before it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_init_ah_from_wc(
    of: *mut ibv_context,
    port: u8,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    attr: *mut ibv_ah_attr,
) -> c_int {
    let _uncancelled = Uncancelled::new();
    const CALL: &str = "ibv_init_ah_from_wc";
    const WITH_GRH: u32 = crate::abi::ibv_wc_flags::IBV_WC_GRH;
    // SAFETY: the contract: an object, a completion, the 40 bytes that it says are there, and attributes.
    minus_one(unsafe {
        context(of).and_then(|found| {
            if (*wc).wc_flags & WITH_GRH == 0 {
                return refuse(
                    CALL,
                    libc::EINVAL,
                    "a completion without IBV_WC_GRH: there is no sender's address in it",
                );
            }
            let header = grh.cast::<[u8; 40]>().read_unaligned();
            let Some((sender, receiver, mut route)) = addresses(&header) else {
                return refuse(
                    CALL,
                    libc::EINVAL,
                    "the 40 bytes before the datagram are neither an IPv4 nor an IPv6 header",
                );
            };
            let gids: Vec<_> = found.nic.device.gids().into_iter().filter(|entry| entry.assigned).collect();
            // A multicast datagram is answered from the first address of the family.
            let is_v1 = header[0] >> 4 == 6 && header[6] == NEXT_HEADER_IBA;
            let version = if is_v1 { RoceVersion::V1 } else { RoceVersion::V2 };
            let gids: Vec<_> =
                gids.into_iter().filter(|entry| entry.encapsulation.version == version).collect();
            let own = gids.iter().find(|entry| entry.gid == receiver);
            let own = own.or_else(|| gids.iter().find(|entry| entry.gid.is_ipv4() == receiver.is_ipv4()));
            let Some(own) = own else {
                return refuse(
                    CALL,
                    libc::EINVAL,
                    format_args!("{receiver} is no longer an address of the device"),
                );
            };
            route.dgid = ibv_gid { raw: sender.0 };
            route.sgid_index = own.index as u8;
            // The received TTL says nothing about the reverse path.
            route.hop_limit = DEFAULT_TTL;
            attr.write(ibv_ah_attr { grh: route, is_global: 1, port_num: port, ..ibv_ah_attr::default() });
            Ok(())
        })
    })
}

/// Creates an address handle for a reply to a received datagram.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_ah_from_wc(
    pd: *mut ibv_pd,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    port: u8,
) -> *mut ibv_ah {
    let _uncancelled = Uncancelled::new();
    let mut attr = ibv_ah_attr::default();
    // SAFETY: the contract: an object; the rest is handed on.
    unsafe {
        if let Err(errno) = object_of(pd) {
            return pointer(Err(errno));
        }
        if ibv_init_ah_from_wc((*pd).context, port, wc, grh, &raw mut attr) != 0 {
            return std::ptr::null_mut();
        }
        ibv_create_ah(pd, &raw mut attr)
    }
}

/// Resolves a GID to the next hop's MAC address, and the VLAN of the path; 0xffff: none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_resolve_eth_l2_from_gid(
    of: *mut ibv_context,
    attr: *mut ibv_ah_attr,
    mac: *mut u8,
    vlan: *mut u16,
) -> c_int {
    let _uncancelled = Uncancelled::new();
    // SAFETY: the contract: an object, attributes, 6 bytes and a word, either of which may be null.
    code(unsafe {
        context(of).and_then(|found| {
            let path = address_vector("ibv_resolve_eth_l2_from_gid", &found.nic.device, attr)?;
            if !mac.is_null() {
                mac.cast::<[u8; 6]>().write(path.dmac);
            }
            if !vlan.is_null() {
                let of_path = path.encapsulation.vlan;
                vlan.write(if of_path == 0 { 0xffff } else { of_path });
            }
            Ok(())
        })
    })
}

/// Attaches a datagram QP to a multicast group.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_attach_mcast(qp: *mut ibv_qp, group: *const ibv_gid, _lid: u16) -> c_int {
    let _uncancelled = Uncancelled::new();
    // SAFETY: the contract: an object and a GID.
    code(unsafe {
        object_of(qp)
            .and_then(|qp| qp.pair.attach_multicast(Gid((*group).raw)).map_err(device("ibv_attach_mcast")))
    })
}

/// Detaches a datagram QP from a multicast group.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_detach_mcast(qp: *mut ibv_qp, group: *const ibv_gid, _lid: u16) -> c_int {
    let _uncancelled = Uncancelled::new();
    // SAFETY: the contract: an object and a GID.
    code(unsafe {
        object_of(qp)
            .and_then(|qp| qp.pair.detach_multicast(Gid((*group).raw)).map_err(device("ibv_detach_mcast")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sender_is_found_in_ipv4_and_ipv6_headers() {
        let mut v4 = [0xaa; 40];
        v4[20..]
            .copy_from_slice(&[0x45, 0x0c, 0, 48, 0, 0, 0x40, 0, 63, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2]);
        let (sender, receiver, route) = addresses(&v4).unwrap();
        assert_eq!(
            (sender.to_string(), receiver.to_string()),
            ("::ffff:192.0.2.1".into(), "::ffff:192.0.2.2".into())
        );
        assert_eq!((route.traffic_class, route.hop_limit), (0x0c, 63));

        let mut v6 = [0; 40];
        v6[..8].copy_from_slice(&[0x60, 0xc1, 0x23, 0x45, 0, 28, 17, 7]);
        v6[8..10].copy_from_slice(&[0xfd, 1]);
        v6[24..26].copy_from_slice(&[0xfd, 2]);
        let (sender, receiver, route) = addresses(&v6).unwrap();
        assert_eq!((sender.0[..2].to_vec(), receiver.0[..2].to_vec()), (vec![0xfd, 1], vec![0xfd, 2]));
        assert_eq!((route.traffic_class, route.flow_label, route.hop_limit), (0x0c, 0x1_2345, 7));

        assert!(addresses(&[0; 40]).is_none());
    }
}
