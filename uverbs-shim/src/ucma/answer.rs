//! Responses and events as structures of `rdma/rdma_user_cm.h`.

use std::mem::size_of;

use super::event::{AhPath, Event, Facts, gid_of};
use super::id::Id;
use super::sockaddr;
use crate::abi::*;
use crate::device::settings;
use crate::ucma::plain::{Plain, bytes_of};

/// The default partition key.
const PKEY: u16 = 0xffff;
/// Selector "exactly", for MTU, rate and packet lifetime of a path record.
const EXACTLY: u8 = 2;
/// 10 Gb/s. A path must have a rate, but none is enforced.
const RATE: u8 = 3;
const PORT: u8 = 1;

/// Returns a zeroed structure, for responses without a `Default` of bindgen.
fn zeros<T: Plain>() -> T {
    // SAFETY: zeros are a value of a plain structure.
    unsafe { std::mem::MaybeUninit::<T>::zeroed().assume_init() }
}

/// Returns the bytes of a field that holds an address.
macro_rules! room {
    ($field:expr) => {{
        let field = &raw mut $field;
        // SAFETY: a field of a plain structure of this function, for which all bytes are valid.
        unsafe { std::slice::from_raw_parts_mut(field.cast::<u8>(), size_of_val(&*field)) }
    }};
}

/// Returns the node GUID, as `ibv_get_device_guid` does; 0 without a device.
fn node_guid(id: &Id) -> u64 {
    if id.on_device { settings::node_guid() } else { 0 }
}

fn port(id: &Id) -> u8 {
    if id.on_device { PORT } else { 0 }
}

pub(super) fn route(id: &Id) -> rdma_ucm_query_route_resp {
    let mut response: rdma_ucm_query_route_resp = zeros();
    sockaddr::write(id.source, room!(response.src_addr));
    sockaddr::write(id.destination, room!(response.dst_addr));
    if !id.on_device {
        return response;
    }
    (response.node_guid, response.port_num) = (node_guid(id), PORT);
    response.num_paths = id.path.is_some().into();
    let record = &mut response.ib_route[0];
    (record.sgid, record.dgid) = (gid_of(id.source).0, gid_of(id.destination).0);
    record.pkey = PKEY.to_be();
    if let Some(path) = id.path {
        (record.mtu, record.hop_limit) = (path.mtu as u32, path.hop_limit);
        record.traffic_class = path.traffic_class;
        (record.reversible, record.numb_path) = (1, 1);
        (record.mtu_selector, record.rate_selector, record.packet_life_time_selector) =
            (EXACTLY, EXACTLY, EXACTLY);
        (record.rate, record.packet_life_time) = (RATE, path.packet_lifetime);
    }
    response
}

fn device_of(id: &Id) -> rdma_ucm_query_addr_resp {
    let mut response: rdma_ucm_query_addr_resp = zeros();
    (response.node_guid, response.port_num) = (node_guid(id), port(id));
    response.pkey = if id.on_device { PKEY.to_be() } else { 0 };
    response
}

pub(super) fn address(id: &Id) -> rdma_ucm_query_addr_resp {
    let mut response = device_of(id);
    response.src_size = sockaddr::write(id.source, room!(response.src_addr)) as u16;
    response.dst_size = sockaddr::write(id.destination, room!(response.dst_addr)) as u16;
    response
}

pub(super) fn gid(id: &Id) -> rdma_ucm_query_addr_resp {
    let mut response = device_of(id);
    let (pkey, on_device) = (if id.on_device { PKEY } else { 0 }, id.on_device);
    let gid = |address| if on_device { gid_of(address).0 } else { [0; 16] };
    let service =
        |address: Option<std::net::SocketAddr>| address.map_or(0, |address| id.service(address.port()).0);
    let (from, to) = (id.source, id.destination);
    response.src_size = sockaddr::write_ib(gid(from), pkey, service(from), room!(response.src_addr)) as u16;
    response.dst_size = sockaddr::write_ib(gid(to), pkey, service(to), room!(response.dst_addr)) as u16;
    response
}

/// Returns `rdma_ucm_query_path_resp`: the number of paths, then as many paths as fit.
pub(super) fn path(id: &Id, room: usize) -> Vec<u8> {
    let head = size_of::<rdma_ucm_query_path_resp>();
    let mut bytes = vec![0; head];
    let Some(path) = id.path else { return bytes };
    bytes[..4].copy_from_slice(&1u32.to_ne_bytes());
    if room < head + size_of::<ib_path_rec_data>() {
        return bytes;
    }
    let mut data: ib_path_rec_data = zeros();
    data.flags = IB_PATH_GMP | IB_PATH_PRIMARY | IB_PATH_BIDIRECTIONAL;
    let record = room!(data.path_rec);
    // A PathRecord of subnet administration (IBTA 15.2.5.16).
    record[8..24].copy_from_slice(&gid_of(id.destination).0);
    record[24..40].copy_from_slice(&gid_of(id.source).0);
    record[47] = path.hop_limit;
    record[48] = path.traffic_class;
    record[49] = 1 << 7 | 1;
    record[50..52].copy_from_slice(&PKEY.to_be_bytes());
    record[54] = EXACTLY << 6 | path.mtu as u8;
    record[55] = EXACTLY << 6 | RATE;
    record[56] = EXACTLY << 6 | path.packet_lifetime;
    bytes.extend_from_slice(bytes_of(&data));
    bytes
}

pub(super) fn event(event: &Event) -> rdma_ucm_event_resp {
    let mut response: rdma_ucm_event_resp = zeros();
    (response.uid, response.id) = (event.uid, event.handle);
    (response.event, response.status) = (event.what as u32, event.status as u32);
    match &event.facts {
        Facts::None => {}
        Facts::Connection(facts) => {
            let mut conn = rdma_ucm_conn_param {
                qp_num: facts.qpn,
                qkey: 0,
                private_data: [0; 256],
                private_data_len: facts.private_data.len() as u8,
                srq: facts.srq.into(),
                responder_resources: facts.responder_resources,
                initiator_depth: facts.initiator_depth,
                flow_control: facts.flow_control.into(),
                retry_count: facts.retry_count,
                rnr_retry_count: facts.rnr_retry_count,
                valid: 0,
            };
            conn.private_data[..facts.private_data.len()].copy_from_slice(&facts.private_data);
            response.param.conn = conn;
        }
        Facts::Datagram(facts) => {
            let mut ud = rdma_ucm_ud_param {
                qp_num: facts.qpn,
                qkey: facts.qkey,
                ah_attr: facts.ah_path.map_or_else(ib_uverbs_ah_attr::default, |ah_path| ah_attr(&ah_path)),
                private_data: [0; 256],
                private_data_len: facts.private_data.len() as u8,
                reserved: [0; 7],
            };
            ud.private_data[..facts.private_data.len()].copy_from_slice(&facts.private_data);
            response.param.ud = ud;
        }
    }
    response
}

pub(super) fn ah_attr(ah_path: &AhPath) -> ib_uverbs_ah_attr {
    let mut attr = ib_uverbs_ah_attr { is_global: 1, port_num: PORT, ..ib_uverbs_ah_attr::default() };
    attr.grh.dgid = ah_path.dgid.0;
    attr.grh.sgid_index = ah_path.sgid_index;
    attr.grh.flow_label = ah_path.flow_label;
    attr.grh.hop_limit = ah_path.hop_limit;
    attr.grh.traffic_class = ah_path.traffic_class;
    attr
}
