//! From an address to a device and a way there: `rdma_resolve_addr`, `rdma_resolve_route`.

use std::net::SocketAddr;

use roxie::verbs::Mtu;

use super::event::{Facts, What};
use super::id::{Path, Stage};
use super::state::State;
use crate::object::Errno;

/// How long a packet is under way at most, as a code: what Linux takes on RoCE (`CMA_IBOE_PACKET_LIFETIME`).
const PACKET_LIFETIME: u8 = 16;
/// Hops, as routes on Linux have them.
const HOP_LIMIT: u8 = 64;

/// An address to be looked for, by a thread that may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Query {
    pub(super) handle: u32,
    /// Which resolution of the identifier it is.
    pub(super) resolution: u32,
    pub(super) source: SocketAddr,
    pub(super) destination: SocketAddr,
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

    /// It could not even begin.
    pub(super) fn take_resolution_back(&mut self, query: &Query) {
        if let Some(id) = self.ids.get_mut(query.handle)
            && (id.stage, id.resolution) == (Stage::AddressQuery, query.resolution)
        {
            id.stage = Stage::Bound;
        }
    }

    /// What a resolution came to: the address of ours from which the destination is reached, or why it is not.
    pub(super) fn end_resolution(&mut self, query: &Query, found: Result<SocketAddr, Errno>) {
        let Some(id) = self.ids.get_mut(query.handle) else { return };
        if (id.stage, id.resolution) != (Stage::AddressQuery, query.resolution) {
            return;
        }
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
        id.stage = Stage::RouteResolved;
        id.path = Some(Path {
            mtu,
            hop_limit: HOP_LIMIT,
            traffic_class: id.options.service_type,
            // The ACK timeout that follows from it is one more.
            packet_lifetime: match id.options.ack_timeout {
                0 => PACKET_LIFETIME,
                timeout => timeout - 1,
            },
        });
        self.tell(handle, What::RouteResolved, 0, Facts::None);
        Ok(())
    }
}
