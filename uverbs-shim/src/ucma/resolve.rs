//! Resolution of an address to a device and a path: `rdma_resolve_addr`, `rdma_resolve_route`.

use std::net::{IpAddr, SocketAddr};

use roxie::verbs::Mtu;

use super::event::{EventType, Facts, gid_of};
use super::id::{IdState, Path};
use super::state::State;
use crate::abi::{IB_PATH_BIDIRECTIONAL, IB_PATH_GMP, IB_PATH_PRIMARY, ib_path_rec_data};
use crate::base::object::Errno;
use crate::base::report::refuse;

/// Packet lifetime code: Linux's on RoCE (`CMA_IBOE_PACKET_LIFETIME`).
const PACKET_LIFETIME: u8 = 16;
/// Hop limit: the default of routes on Linux.
const HOP_LIMIT: u8 = 64;
/// MTU and packet lifetime in a path record, without the two selector bits.
const SIX_BITS: u8 = 0x3f;

/// A destination to be resolved by a thread that may block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Query {
    pub(super) handle: u32,
    /// Number of the identifier's resolution.
    pub(super) resolution: u32,
    pub(super) source: SocketAddr,
    pub(super) destination: SocketAddr,
}

/// Returns the first address of `own` with the destination's family and more than link-local scope, if the destination
/// is unspecified or a loopback address. Returns `None` for other destinations, and for a loopback address of the
/// device.
pub(super) fn own_address(destination: IpAddr, own: &[IpAddr]) -> Option<IpAddr> {
    let names_none = destination.is_loopback() || destination.is_unspecified();
    let link_local = |ip: &IpAddr| matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    let suits = |ip: &IpAddr| ip.is_ipv4() == destination.is_ipv4() && !link_local(ip);
    (names_none && !own.contains(&destination)).then(|| own.iter().copied().find(suits)).flatten()
}

impl State {
    /// Starts to resolve a destination. The identifier is already bound.
    ///
    /// # Errors
    /// `EINVAL` if the identifier is in another state than bound, or the two addresses have different families.
    pub(super) fn begin_resolution(
        &mut self,
        channel: u64,
        handle: u32,
        destination: SocketAddr,
    ) -> Result<Query, Errno> {
        let id = self.id(channel, handle)?;
        let source = id.source.filter(|source| source.is_ipv4() == destination.is_ipv4());
        let (IdState::Bound, Some(source)) = (id.stage, source) else { return Err(libc::EINVAL) };
        id.stage = IdState::AddressQuery;
        id.destination = Some(destination);
        id.resolution = id.resolution.wrapping_add(1);
        Ok(Query { handle, resolution: id.resolution, source, destination })
    }

    /// Returns true while the result of a resolution is awaited: the identifier exists, and has not started another
    /// resolution.
    pub(super) fn awaits(&mut self, query: &Query) -> bool {
        let id = self.ids.get_mut(query.handle);
        id.is_some_and(|id| (id.stage, id.resolution) == (IdState::AddressQuery, query.resolution))
    }

    /// Cancels a resolution that could not be started.
    pub(super) fn take_resolution_back(&mut self, query: &Query) {
        if self.awaits(query)
            && let Some(id) = self.ids.get_mut(query.handle)
        {
            id.stage = IdState::Bound;
        }
    }

    /// Ends a resolution: `found` is the source address by which the destination is reached, or an error.
    pub(super) fn end_resolution(&mut self, query: &Query, found: Result<SocketAddr, Errno>) {
        if !self.awaits(query) {
            return;
        }
        let Some(id) = self.ids.get_mut(query.handle) else { return };
        match found {
            Ok(source) => {
                (id.stage, id.on_device) = (IdState::AddressResolved, true);
                self.settle(query.handle, source.ip());
                self.queue_event(query.handle, EventType::AddressResolved, 0, Facts::None);
            }
            Err(errno) => {
                id.stage = IdState::Bound;
                self.queue_event(query.handle, EventType::AddressError, -errno, Facts::None);
            }
        }
    }

    /// Sets the route to a resolved destination. RoCE needs no query for it.
    ///
    /// # Errors
    /// `EINVAL` if the destination is not resolved.
    pub(super) fn resolve_route(&mut self, channel: u64, handle: u32, mtu: Mtu) -> Result<(), Errno> {
        let id = self.id_on_device(channel, handle)?;
        if id.stage != IdState::AddressResolved {
            return Err(libc::EINVAL);
        }
        let path = Path {
            mtu,
            hop_limit: HOP_LIMIT,
            traffic_class: id.options.service_type,
            // The ACK timeout derived from the packet lifetime is one more.
            packet_lifetime: match id.options.ack_timeout {
                None | Some(0) => PACKET_LIFETIME,
                Some(timeout) => timeout - 1,
            },
        };
        (id.stage, id.path) = (IdState::RouteResolved, Some(path));
        self.queue_event(handle, EventType::RouteResolved, 0, Facts::None);
        Ok(())
    }

    /// Sets the route from the program's path record (`RDMA_OPTION_IB_PATH`, an array of `ib_path_rec_data`), in place
    /// of resolving it. The first record that is valid for both directions and for management is used
    /// (`ucma_set_ib_path`). Its flow label is ignored: a route's flow label is computed from the ports.
    ///
    /// # Errors
    /// `EINVAL` if the destination is not resolved, no record is suitable or it is for another route, or its MTU is
    /// invalid or above `largest`. The kernel detects GIDs of another route only when it connects.
    pub(super) fn take_path(
        &mut self,
        channel: u64,
        handle: u32,
        records: &[u8],
        largest: Mtu,
    ) -> Result<(), Errno> {
        const CALL: &str = "rdma_set_option";
        let id = self.id_on_device(channel, handle)?;
        let Some(record) = primary(records) else {
            return refuse(CALL, libc::EINVAL, "RDMA_OPTION_IB_PATH: no primary path for both directions");
        };
        let (dgid, sgid) = (gid_of(id.destination), gid_of(id.source));
        if record[8..24] != dgid.0 || record[24..40] != sgid.0 {
            return refuse(
                CALL,
                libc::EINVAL,
                format_args!("RDMA_OPTION_IB_PATH: the path is not from {sgid} to {dgid}"),
            );
        }
        let code = record[54] & SIX_BITS;
        let Some(mtu) = Mtu::from_code(code.into()).filter(|mtu| *mtu <= largest) else {
            let reason = format_args!(
                "RDMA_OPTION_IB_PATH: path MTU code {code}, where the link has {} at most",
                largest as u8
            );
            return refuse(CALL, libc::EINVAL, reason);
        };
        if id.stage != IdState::AddressResolved {
            return Err(libc::EINVAL);
        }
        let hop_limit = if record[47] == 0 { HOP_LIMIT } else { record[47] };
        let (traffic_class, packet_lifetime) = (record[48], record[56] & SIX_BITS);
        id.path = Some(Path { mtu, hop_limit, traffic_class, packet_lifetime });
        id.stage = IdState::RouteResolved;
        self.queue_event(handle, EventType::RouteResolved, 0, Facts::None);
        Ok(())
    }
}

/// Returns the path record (IBTA 15.2.5.16) of the first path that is primary, bidirectional and for management.
fn primary(records: &[u8]) -> Option<&[u8; 64]> {
    const WANTED: u32 = IB_PATH_GMP | IB_PATH_PRIMARY | IB_PATH_BIDIRECTIONAL;
    let (records, rest) = records.as_chunks::<{ size_of::<ib_path_rec_data>() }>();
    let flags = |record: &[u8]| record.first_chunk().map(|flags| u32::from_ne_bytes(*flags));
    let matching = records.iter().find(|record| flags(&record[..]) == Some(WANTED))?;
    if rest.is_empty() { matching.last_chunk() } else { None }
}
