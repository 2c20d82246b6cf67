//! From an address to a device and a way there: `rdma_resolve_addr`, `rdma_resolve_route`.

use std::net::{IpAddr, SocketAddr};

use roxie::verbs::Mtu;

use super::event::{Facts, What, gid_of};
use super::id::{Path, Stage};
use super::state::State;
use crate::abi::{IB_PATH_BIDIRECTIONAL, IB_PATH_GMP, IB_PATH_PRIMARY, ib_path_rec_data};
use crate::object::Errno;
use crate::report::refuse;

/// How long a packet is under way at most, as a code: what Linux takes on RoCE (`CMA_IBOE_PACKET_LIFETIME`).
const PACKET_LIFETIME: u8 = 16;
/// Hops, as routes on Linux have them.
const HOP_LIMIT: u8 = 64;
/// MTU and packet lifetime in a path record, behind the two bits that say whether they are exact.
const SIX_BITS: u8 = 0x3f;

/// An address to be looked for, by a thread that may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Query {
    pub(super) handle: u32,
    /// Which resolution of the identifier it is.
    pub(super) resolution: u32,
    pub(super) source: SocketAddr,
    pub(super) destination: SocketAddr,
}

/// Returns the address of `own` that a destination stands for which names the device only by being none: the first of its family with more
/// than link-local scope. None for any other destination, and for a loopback address that is the device's.
pub(super) fn own_address(destination: IpAddr, own: &[IpAddr]) -> Option<IpAddr> {
    let names_none = destination.is_loopback() || destination.is_unspecified();
    let link_local = |ip: &IpAddr| matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    let suits = |ip: &IpAddr| ip.is_ipv4() == destination.is_ipv4() && !link_local(ip);
    (names_none && !own.contains(&destination)).then(|| own.iter().copied().find(suits)).flatten()
}

impl State {
    /// Begins to look for a destination. The identifier is bound already.
    ///
    /// # Errors
    /// `EINVAL` if it is not just bound, or the two addresses are of different families.
    pub(super) fn begin_resolution(
        &mut self,
        channel: u64,
        handle: u32,
        destination: SocketAddr,
    ) -> Result<Query, Errno> {
        let id = self.id(channel, handle)?;
        let source = id.source.filter(|source| source.is_ipv4() == destination.is_ipv4());
        let (Stage::Bound, Some(source)) = (id.stage, source) else { return Err(libc::EINVAL) };
        id.stage = Stage::AddressQuery;
        id.destination = Some(destination);
        id.resolution = id.resolution.wrapping_add(1);
        Ok(Query { handle, resolution: id.resolution, source, destination })
    }

    /// Returns true while the result of a resolution is awaited: its identifier is there, and has not begun another.
    pub(super) fn awaits(&mut self, query: &Query) -> bool {
        let id = self.ids.get_mut(query.handle);
        id.is_some_and(|id| (id.stage, id.resolution) == (Stage::AddressQuery, query.resolution))
    }

    /// It could not even begin.
    pub(super) fn take_resolution_back(&mut self, query: &Query) {
        if self.awaits(query)
            && let Some(id) = self.ids.get_mut(query.handle)
        {
            id.stage = Stage::Bound;
        }
    }

    /// What a resolution came to: the address of ours from which the destination is reached, or why it is not.
    pub(super) fn end_resolution(&mut self, query: &Query, found: Result<SocketAddr, Errno>) {
        if !self.awaits(query) {
            return;
        }
        let Some(id) = self.ids.get_mut(query.handle) else { return };
        match found {
            Ok(source) => {
                (id.stage, id.on_device) = (Stage::AddressResolved, true);
                self.settle(query.handle, source.ip());
                self.tell(query.handle, What::AddressResolved, 0, Facts::None);
            }
            Err(errno) => {
                id.stage = Stage::Bound;
                self.tell(query.handle, What::AddressError, -errno, Facts::None);
            }
        }
    }

    /// Takes the route to a destination that was found: on RoCE there is nothing more to ask for.
    ///
    /// # Errors
    /// `EINVAL` if no destination was found.
    pub(super) fn resolve_route(&mut self, channel: u64, handle: u32, mtu: Mtu) -> Result<(), Errno> {
        let id = self.id_on_device(channel, handle)?;
        if id.stage != Stage::AddressResolved {
            return Err(libc::EINVAL);
        }
        let path = Path {
            mtu,
            hop_limit: HOP_LIMIT,
            traffic_class: id.options.service_type,
            // The ACK timeout that follows from it is one more.
            packet_lifetime: match id.options.ack_timeout {
                None | Some(0) => PACKET_LIFETIME,
                Some(timeout) => timeout - 1,
            },
        };
        (id.stage, id.path) = (Stage::RouteResolved, Some(path));
        self.tell(handle, What::RouteResolved, 0, Facts::None);
        Ok(())
    }

    /// Takes the route as the program knows it, instead of resolving it: `RDMA_OPTION_IB_PATH`, an array of `ib_path_rec_data`, of
    /// which the first that goes both ways and carries management as well counts (`ucma_set_ib_path`). Its flow
    /// label does not: that of a route is made of the ports.
    ///
    /// # Errors
    /// `EINVAL` if no destination was found yet, no record is of that kind, or it is of another route, or of an MTU that is
    /// none or larger than `largest`. The kernel finds another route's GIDs out when it connects.
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
            let told = format_args!(
                "RDMA_OPTION_IB_PATH: path MTU code {code}, where the link has {} at most",
                largest as u8
            );
            return refuse(CALL, libc::EINVAL, told);
        };
        if id.stage != Stage::AddressResolved {
            return Err(libc::EINVAL);
        }
        let hop_limit = if record[47] == 0 { HOP_LIMIT } else { record[47] };
        let (traffic_class, packet_lifetime) = (record[48], record[56] & SIX_BITS);
        id.path = Some(Path { mtu, hop_limit, traffic_class, packet_lifetime });
        id.stage = Stage::RouteResolved;
        self.tell(handle, What::RouteResolved, 0, Facts::None);
        Ok(())
    }
}

/// The path record (IBTA 15.2.5.16) of the first path that is the primary one, for both directions and for management.
fn primary(records: &[u8]) -> Option<&[u8; 64]> {
    const WANTED: u32 = IB_PATH_GMP | IB_PATH_PRIMARY | IB_PATH_BIDIRECTIONAL;
    let (records, rest) = records.as_chunks::<{ size_of::<ib_path_rec_data>() }>();
    let flags = |record: &[u8]| record.first_chunk().map(|flags| u32::from_ne_bytes(*flags));
    let found = records.iter().find(|record| flags(&record[..]) == Some(WANTED))?;
    if rest.is_empty() { found.last_chunk() } else { None }
}
