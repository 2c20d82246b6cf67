//! Queries of the device, its port and its addresses.

use std::ffi::{c_int, c_uint};
use std::mem::{offset_of, size_of};
use std::ptr;

use roxie::limits::{Limits, MAX_CQE, MAX_SGE, MAX_WR};
use roxie::netdev::{Interface, link_speed};

use crate::abi::{
    _compat_ibv_port_attr, ibv_atomic_cap, ibv_context, ibv_device_attr, ibv_device_attr_ex,
    ibv_device_cap_flags as caps, ibv_mtu, ibv_odp_general_caps as odp,
    ibv_odp_transport_cap_bits as odp_can, ibv_packet_pacing_caps, ibv_port_attr, ibv_port_state,
    ibv_query_device_ex_input, ibv_values_ex,
};
use crate::base::cancellation::Uncancelled;
use crate::base::newer;
use crate::base::object::{Errno, code, fill, minus_one};
use crate::base::report::refuse;
use crate::device::context::{Context, context};
use crate::device::settings::{guid, settings};
use crate::memory::DEVICE_MEMORY;
use crate::srq::wq;
use roxie::port::Carries;

/// Reported length of the GID table, holes included.
pub(crate) const GID_TABLE: usize = 32;
/// The default partition key, the only one.
const PKEY: u16 = 0xffff;
/// Highest rate limit that can be expressed: 4 Tb/s.
const FASTEST_KBPS: u32 = u32::MAX;
/// Bits by `ibv_qp_type`: RC, UC, UD, raw packets.
const PACED_TYPES: u32 = 1 << 2 | 1 << 3 | 1 << 4 | 1 << 8;
/// Maximum message length in bytes.
const MAX_MESSAGE: u32 = 1 << 31;
/// Vendor ID of rdma_rxe (`rxe_param.h`): software has no PCI vendor.
const VENDOR: u32 = 0xff_ffff;

impl Context {
    pub(super) fn interface(&self) -> Option<Interface> {
        Interface::by_name(self.nic.device.port().interface.as_deref()?).ok()
    }
}

/// Capabilities of the device, independent of its port.
pub(crate) const CAPABILITIES: u32 = caps::IBV_DEVICE_CURR_QP_STATE_MOD
    | caps::IBV_DEVICE_RC_RNR_NAK_GEN
    | caps::IBV_DEVICE_SYS_IMAGE_GUID
    | caps::IBV_DEVICE_MEM_WINDOW
    | caps::IBV_DEVICE_MEM_WINDOW_TYPE_2B
    | caps::IBV_DEVICE_MEM_MGT_EXTENSIONS
    | crate::srq::CAPABILITIES;

fn device_attr(context: &Context) -> ibv_device_attr {
    let limits = Limits::default();
    let mac = context.interface().map_or([0; 6], |interface| interface.mac);
    let node_guid = u64::from_ne_bytes(guid(mac));
    let raw_packets = context.nic.device.port().carries == Carries::AnyFrames;
    let steering = if raw_packets { caps::IBV_DEVICE_MANAGED_FLOW_STEERING } else { 0 };
    let identity = settings().identity();
    let mut attr = ibv_device_attr {
        node_guid,
        sys_image_guid: node_guid,
        max_mr_size: u64::MAX,
        // Any power of two from 4 KiB, because memory is not translated by pages.
        page_size_cap: !0xfff,
        vendor_id: identity.map_or(VENDOR, |identity| identity.vendor),
        vendor_part_id: identity.map_or(0, |identity| identity.part),
        max_qp: limits.qps as c_int,
        max_qp_wr: MAX_WR as c_int,
        device_cap_flags: CAPABILITIES | steering,
        max_sge: MAX_SGE as c_int,
        max_sge_rd: MAX_SGE as c_int,
        max_cq: limits.cqs as c_int,
        max_cqe: MAX_CQE as c_int,
        max_mr: limits.mrs as c_int,
        max_pd: limits.mrs as c_int,
        max_qp_rd_atom: limits.rd_atomic.into(),
        max_res_rd_atom: c_int::from(limits.rd_atomic) * limits.qps as c_int,
        max_qp_init_rd_atom: limits.rd_atomic.into(),
        atomic_cap: ibv_atomic_cap::IBV_ATOMIC_HCA,
        max_mw: limits.mrs as c_int,
        max_raw_ethy_qp: if raw_packets { limits.qps as c_int } else { 0 },
        max_mcast_grp: limits.groups as c_int,
        max_mcast_qp_attach: limits.group_members as c_int,
        max_total_mcast_qp_attach: (limits.groups * limits.group_members) as c_int,
        max_ah: limits.ahs as c_int,
        max_srq: crate::srq::max_srq(),
        max_srq_wr: crate::srq::MAX_SRQ_WR,
        max_srq_sge: crate::srq::MAX_SRQ_SGE,
        max_pkeys: 1,
        local_ca_ack_delay: settings().ack_delay(),
        phys_port_cnt: 1,
        ..ibv_device_attr::default()
    };
    fill(&mut attr.fw_ver, settings().firmware());
    attr
}

/// Queries the device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_device(of: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int {
    let _uncancelled = Uncancelled::new();
    // SAFETY: the contract: an object, and room for the attributes.
    code(unsafe { context(of).map(|context| attr.write(device_attr(context))) })
}

/// Queries the device with extended attributes. `size` is the length of the caller's structure.
pub(crate) unsafe extern "C" fn query_device_ex(
    of: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    size: usize,
) -> c_int {
    let _uncancelled = Uncancelled::new();
    // SAFETY: the contract: an object, and an input or null.
    code(unsafe { context(of) }.and_then(|context| {
        // SAFETY: not null, as checked, so it is an input, as the caller promises; its mask comes first.
        let comp_mask = if input.is_null() { 0 } else { unsafe { (*input).comp_mask } };
        if comp_mask != 0 || size < size_of::<ibv_device_attr>() {
            return refuse(
                "ibv_query_device_ex",
                libc::EINVAL,
                format_args!("comp_mask {comp_mask:#x} (0 is known) or {size} bytes of attributes"),
            );
        }
        let connected = odp_can::IBV_ODP_SUPPORT_SEND
            | odp_can::IBV_ODP_SUPPORT_RECV
            | odp_can::IBV_ODP_SUPPORT_WRITE
            | odp_can::IBV_ODP_SUPPORT_READ
            | odp_can::IBV_ODP_SUPPORT_ATOMIC;
        let acknowledged = odp_can::IBV_ODP_SUPPORT_READ | odp_can::IBV_ODP_SUPPORT_ATOMIC;
        let mut all = ibv_device_attr_ex {
            orig_attr: device_attr(context),
            device_cap_flags_ex: device_attr(context).device_cap_flags.into(),
            // Nanoseconds of the host's clock.
            completion_timestamp_mask: u64::MAX,
            hca_core_clock: 1_000_000,
            max_dm_size: DEVICE_MEMORY,
            phys_port_cnt_ex: 1,
            ..ibv_device_attr_ex::default()
        };
        if all.orig_attr.max_raw_ethy_qp > 0 {
            all.rss_caps = wq::capabilities(all.orig_attr.max_qp as u32);
            all.max_wq_type_rq = all.orig_attr.max_qp as u32;
        }
        // Limits in kb/s, and QP types with packet pacing.
        all.packet_pacing_caps = ibv_packet_pacing_caps {
            qp_rate_limit_min: 1,
            qp_rate_limit_max: FASTEST_KBPS,
            supported_qpts: PACED_TYPES,
        };
        all.cq_mod_caps.max_cq_count = u16::MAX;
        all.cq_mod_caps.max_cq_period = u16::MAX;
        all.odp_caps.general_caps = (odp::IBV_ODP_SUPPORT | odp::IBV_ODP_SUPPORT_IMPLICIT).into();
        all.odp_caps.per_transport_caps.rc_odp_caps = connected
            | odp_can::IBV_ODP_SUPPORT_SRQ_RECV
            | newer::IBV_ODP_SUPPORT_FLUSH
            | newer::IBV_ODP_SUPPORT_ATOMIC_WRITE;
        all.xrc_odp_caps = connected | odp_can::IBV_ODP_SUPPORT_SRQ_RECV;
        all.odp_caps.per_transport_caps.uc_odp_caps = connected & !acknowledged;
        all.odp_caps.per_transport_caps.ud_odp_caps =
            odp_can::IBV_ODP_SUPPORT_SEND | odp_can::IBV_ODP_SUPPORT_RECV;
        let known = size.min(size_of::<ibv_device_attr_ex>());
        // SAFETY: the caller has `size` bytes; no more than the size of `all` is written.
        unsafe {
            ptr::write_bytes(attr.cast::<u8>(), 0, size);
            ptr::copy_nonoverlapping((&raw const all).cast::<u8>(), attr.cast(), known);
        }
        Ok(())
    }))
}

/// Queries the time on the device's clock, which is the host's.
pub(crate) unsafe extern "C" fn query_rt_values(of: *mut ibv_context, values: *mut ibv_values_ex) -> c_int {
    let _uncancelled = Uncancelled::new();
    // SAFETY: the contract: an object, and the values with their mask.
    code(unsafe { context(of) }.and_then(|context| {
        // SAFETY: the values with their mask, as the caller promises; fields that the mask does not name are not
        // accessed.
        unsafe {
            if (*values).comp_mask & !1 != 0 {
                return Err(libc::EOPNOTSUPP);
            }
            let now = context.nic.device.now().0;
            (*values).raw_clock.tv_sec = (now / 1_000_000_000) as i64;
            (*values).raw_clock.tv_nsec = (now % 1_000_000_000) as i64;
        }
        Ok(())
    }))
}

pub(super) fn check_port(call: &str, port: c_uint) -> Result<(), Errno> {
    if port == 1 {
        Ok(())
    } else {
        refuse(call, libc::EINVAL, format_args!("port {port}: the device has port 1"))
    }
}

/// Returns the `active_width` and `active_speed` closest to a link's speed.
fn width_and_speed(mbps: Option<u32>) -> (u8, u8) {
    // Codes of the specification: width 1 = one lane, 2 = four; speed 1 = 2.5, 4 = 10, 32 = 25, 64 = 50 Gb/s per lane.
    match mbps {
        Some(..=4_999) => (1, 1),
        Some(..=19_999) => (1, 4),
        Some(..=39_999) => (1, 32),
        Some(..=79_999) => (2, 4),
        Some(..=149_999) => (2, 32),
        Some(_) => (2, 64),
        None => (1, 4),
    }
}

fn port_attr(context: &Context) -> ibv_port_attr {
    let device = &context.nic.device;
    let interface = context.interface();
    let running = interface.as_ref().is_some_and(|interface| interface.up && interface.running);
    let (active_width, active_speed) =
        width_and_speed(interface.as_ref().and_then(|interface| link_speed(&interface.name)));
    ibv_port_attr {
        state: if running { ibv_port_state::IBV_PORT_ACTIVE } else { ibv_port_state::IBV_PORT_DOWN },
        max_mtu: ibv_mtu::IBV_MTU_4096,
        active_mtu: device.largest_mtu() as ibv_mtu::Type,
        gid_tbl_len: GID_TABLE as c_int,
        // Communication management, and IP based GIDs.
        port_cap_flags: 1 << 16 | 1 << 26,
        max_msg_sz: MAX_MESSAGE,
        pkey_tbl_len: 1,
        max_vl_num: 1,
        active_width,
        active_speed,
        // LinkUp, or Disabled.
        phys_state: if running { 5 } else { 3 },
        // Ethernet.
        link_layer: 2,
        ..ibv_port_attr::default()
    }
}

/// Queries the port. `size` is the length of the caller's structure.
pub(crate) unsafe extern "C" fn query_port(
    of: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
    size: usize,
) -> c_int {
    let _uncancelled = Uncancelled::new();
    // SAFETY: the contract: an object.
    code(unsafe { context(of) }.and_then(|context| {
        check_port("ibv_query_port", port.into())?;
        if context.nic.device.has_lost_interface() {
            return Err(libc::EIO);
        }
        let all = port_attr(context);
        // SAFETY: the caller has `size` bytes; no more than the size of `all` is written.
        unsafe {
            ptr::write_bytes(attr.cast::<u8>(), 0, size);
            let known = size.min(size_of::<ibv_port_attr>());
            ptr::copy_nonoverlapping((&raw const all).cast::<u8>(), attr.cast(), known);
        }
        Ok(())
    }))
}

/// Speed of a port in Mb/s if its interface does not report one; the same as [`width_and_speed`] assumes.
const UNKNOWN_SPEED: u32 = 10_000;

/// Queries the speed of the port, in units of 100 Mb/s.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_port_speed(of: *mut ibv_context, port: u32, speed: *mut u64) -> c_int {
    let _uncancelled = Uncancelled::new();
    const CALL: &str = "ibv_query_port_speed";
    // SAFETY: the contract: an object.
    code(unsafe { context(of) }.and_then(|context| {
        check_port(CALL, port)?;
        if speed.is_null() {
            return refuse(CALL, libc::EINVAL, "port_speed is null: give a place for the speed");
        }
        let mbps = context
            .interface()
            .as_ref()
            .and_then(|interface| link_speed(&interface.name))
            .unwrap_or(UNKNOWN_SPEED);
        // SAFETY: as above, and room for a number.
        unsafe { speed.write(u64::from(mbps) / 100) };
        Ok(())
    }))
}

/// Queries the port for programs built before `port_cap_flags2` was added.
pub(crate) unsafe extern "C" fn query_port_short(
    of: *mut ibv_context,
    port: u8,
    attr: *mut _compat_ibv_port_attr,
) -> c_int {
    let _uncancelled = Uncancelled::new();
    // SAFETY: the contract: the caller's structure ends where `port_cap_flags2` begins.
    unsafe { query_port(of, port, attr.cast(), offset_of!(ibv_port_attr, port_cap_flags2)) }
}

/// Queries the port, as [`query_port_short`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_port(
    of: *mut ibv_context,
    port: u8,
    attr: *mut _compat_ibv_port_attr,
) -> c_int {
    let _uncancelled = Uncancelled::new();
    // SAFETY: the contracts of the two calls are equal: an object, and room for the shorter attributes.
    unsafe { query_port_short(of, port, attr) }
}

/// Queries the partition key at an index, in network order.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_pkey(
    of: *mut ibv_context,
    port: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    let _uncancelled = Uncancelled::new();
    // SAFETY: the contract: an object, and room for a key.
    minus_one(unsafe { context(of) }.and_then(|_| {
        check_port("ibv_query_pkey", port.into())?;
        if index != 0 {
            return refuse(
                "ibv_query_pkey",
                libc::EINVAL,
                format_args!("index {index}: there is one key, at index 0"),
            );
        }
        // SAFETY: room for a key of 16 bits, as the caller promises.
        unsafe { pkey.write(PKEY.to_be()) };
        Ok(())
    }))
}

/// Returns the index of a partition key in network order; -1 if it is not in the table.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_pkey_index(_of: *mut ibv_context, port: u8, pkey: u16) -> c_int {
    let _uncancelled = Uncancelled::new();
    minus_one(if port == 1 && pkey == PKEY.to_be() { Ok(()) } else { Err(libc::EINVAL) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_speed_maps_to_width_and_speed_codes() {
        assert_eq!(width_and_speed(Some(1_000)), (1, 1));
        assert_eq!(width_and_speed(Some(10_000)), (1, 4));
        assert_eq!(width_and_speed(Some(25_000)), (1, 32));
        assert_eq!(width_and_speed(Some(100_000)), (2, 32));
        assert_eq!(width_and_speed(Some(200_000)), (2, 64));
        assert_eq!(width_and_speed(None), (1, 4), "an interface that does not know: veth");
    }
}
