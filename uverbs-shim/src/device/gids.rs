//! Queries of the GID table.

use std::ffi::{c_int, c_uint};
use std::mem::size_of;

use roxie::host::GidEntry;
use roxie::netdev::vlan_links;
use roxie::verbs::Gid;
use roxie::wire::RoceVersion;

use super::query::{GID_TABLE, check_port};
use crate::abi::{ibv_context, ibv_gid, ibv_gid_entry, ibv_gid_type};
use crate::base::cancellation::Uncancelled;
use crate::base::object::{Errno, code, minus_one};
use crate::base::report::refuse;
use crate::device::context::{Context, context};

/// GID types as sysfs numbers them; 0 is both InfiniBand and RoCE v1.
const SYSFS_ROCE_V1: c_uint = 0;
const SYSFS_ROCE_V2: c_uint = 1;
impl Context {
    fn gid(&self, index: u32) -> Option<GidEntry> {
        self.nic.device.gids().into_iter().find(|entry| entry.index == index as usize)
    }

    /// Returns the index of the interface of a GID: the interface of its VLAN, if the kernel has one.
    fn interface_of(&self, entry: &GidEntry) -> u32 {
        let Some(interface) = self.interface() else { return 0 };
        let vlan = entry.encapsulation.vlan;
        let of_vlan = || vlan_links(interface.index).ok()?.into_iter().find(|link| link.vlan == vlan);
        if vlan == 0 { interface.index } else { of_vlan().map_or(interface.index, |link| link.index) }
    }
}

fn gid_of(gid: Gid) -> ibv_gid {
    ibv_gid { raw: gid.0 }
}

/// Queries a GID by its index. A hole of the table is a zero GID.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_gid(
    of: *mut ibv_context,
    port: u8,
    index: c_int,
    gid: *mut ibv_gid,
) -> c_int {
    let _uncancelled = Uncancelled::new();
    // SAFETY: the contract: an object, and room for a GID.
    minus_one(unsafe { context(of) }.and_then(|context| {
        check_port("ibv_query_gid", port.into())?;
        let index = check_index("ibv_query_gid", index)?;
        // SAFETY: room for a GID, as the caller promises, for its exclusive use.
        unsafe { gid.write(context.gid(index).map_or(ibv_gid { raw: [0; 16] }, |entry| gid_of(entry.gid))) };
        Ok(())
    }))
}

fn check_index(call: &str, index: c_int) -> Result<u32, Errno> {
    match u32::try_from(index) {
        Ok(index) if (index as usize) < GID_TABLE => Ok(index),
        _ => refuse(call, libc::EINVAL, format_args!("GID index {index}: the table has {GID_TABLE} entries")),
    }
}

fn entry(context: &Context, found: &GidEntry) -> ibv_gid_entry {
    ibv_gid_entry {
        gid: gid_of(found.gid),
        gid_index: found.index as u32,
        port_num: 1,
        gid_type: match found.encapsulation.version {
            RoceVersion::V1 => ibv_gid_type::IBV_GID_TYPE_ROCE_V1,
            RoceVersion::V2 => ibv_gid_type::IBV_GID_TYPE_ROCE_V2,
        },
        ndev_ifindex: context.interface_of(found),
    }
}

/// Queries a GID with its type and interface.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ibv_query_gid_ex(
    of: *mut ibv_context,
    port: u32,
    index: u32,
    to: *mut ibv_gid_entry,
    flags: u32,
    size: usize,
) -> c_int {
    let _uncancelled = Uncancelled::new();
    // SAFETY: the contract: an object.
    code(unsafe { context(of) }.and_then(|context| {
        check_port("ibv_query_gid_ex", port)?;
        check_index("ibv_query_gid_ex", index as c_int)?;
        if flags != 0 || size < size_of::<ibv_gid_entry>() {
            return Err(libc::EINVAL);
        }
        let gid = context.gid(index).ok_or(libc::ENODATA)?;
        // SAFETY: the caller has `size` bytes, at least one entry.
        unsafe { to.write(entry(context, &gid)) };
        Ok(())
    }))
}

/// Queries all GIDs. Returns their number, or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ibv_query_gid_table(
    of: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    room: usize,
    flags: u32,
    size: usize,
) -> isize {
    let _uncancelled = Uncancelled::new();
    // SAFETY: the contract: an object.
    let counted = unsafe { context(of) }.and_then(|context| {
        if flags != 0 || size < size_of::<ibv_gid_entry>() {
            return Err(libc::EINVAL);
        }
        let gids = context.nic.device.gids();
        if gids.len() > room {
            return Err(libc::EINVAL);
        }
        for (place, found) in gids.iter().enumerate() {
            let filled = entry(context, found);
            // SAFETY: the caller has `room` entries of `size` bytes each, and `place` is below `room`.
            unsafe { entries.cast::<u8>().add(place * size).cast::<ibv_gid_entry>().write(filled) };
        }
        Ok(gids.len() as isize)
    });
    counted.unwrap_or_else(|errno| -(errno as isize))
}

/// Queries the type of a GID, as sysfs numbers types: `ibv_query_gid_type` of `private.c`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn roxie_query_gid_type(
    of: *mut ibv_context,
    port: u8,
    index: c_uint,
    kind: *mut c_uint,
) -> c_int {
    let _uncancelled = Uncancelled::new();
    // SAFETY: the contract: an object, and room for the type.
    minus_one(unsafe { context(of) }.and_then(|context| {
        check_port("ibv_query_gid_type", port.into())?;
        let index = check_index("ibv_query_gid_type", index as c_int)?;
        let is_v1 = context.gid(index).is_some_and(|entry| entry.encapsulation.version == RoceVersion::V1);
        // SAFETY: as above. Holes are RoCE v2, so that a program that searches by type finds a usable index.
        unsafe { kind.write(if is_v1 { SYSFS_ROCE_V1 } else { SYSFS_ROCE_V2 }) };
        Ok(())
    }))
}
