//! Multicast groups: `rdma_join_multicast`, `rdma_leave_multicast`.
//!
//! On RoCE, a group is identified by its IP address. `librdmacm` attaches the QP when it receives the join event; the
//! interface joins the group at that time.

use std::net::SocketAddr;

use roxie::wire::Gid;
use roxie::wire::service_id::RDMA_UDP_QKEY;

use super::event::{AhPath, DatagramFacts, Event, EventType, Facts, Waiting, gid_of};
use super::id::IdState;
use super::incoming::GidLookup;
use super::state::{Group, State};
use crate::base::object::Errno;
use crate::base::report;

/// QPN of all members of a group.
const MULTICAST_QPN: u32 = 0x00ff_ffff;
/// Hop limit of multicast packets, as in `cma.c`.
const HOP_LIMIT: u8 = 64;

impl State {
    /// Joins a group. Returns the number of the membership. An event follows: success, or an error if the device has
    /// lost the identifier's address. The error event has status 0, as in `cma_make_mc_event`.
    ///
    /// # Errors
    /// `EINVAL` if the identifier is not bound to the device or not for datagrams, or the address is not multicast;
    /// `ENOMEM`.
    pub(super) fn join(
        &mut self,
        around: &GidLookup<'_>,
        channel: u64,
        handle: u32,
        uid: u64,
        address: SocketAddr,
    ) -> Result<u32, Errno> {
        let id = self.id_on_device(channel, handle)?;
        let at_rest = matches!(id.stage, IdState::Bound | IdState::AddressResolved);
        if !at_rest || !id.is_datagram() || !address.ip().is_multicast() {
            return Err(libc::EINVAL);
        }
        let source = gid_of(id.source);
        let traffic_class = id.options.service_type;
        let dgid = Gid::from(address.ip());
        let group = Group { id: handle, channel, events_reported: 0 };
        let number = self.groups.add(group).ok_or(libc::ENOMEM)?;
        let (what, facts) = match (around.sgid_index)(source.into()) {
            Some(sgid_index) => {
                let ah_path =
                    Some(AhPath { sgid_index, dgid, flow_label: 0, hop_limit: HOP_LIMIT, traffic_class });
                let (qpn, qkey) = (MULTICAST_QPN, RDMA_UDP_QKEY);
                (EventType::MulticastJoin, DatagramFacts { qpn, qkey, ah_path, private_data: Vec::new() })
            }
            None => {
                let why = format_args!("the device has no address {} any more", source.to_ip());
                report::info("rdma_join_multicast", why);
                (EventType::MulticastError, DatagramFacts::default())
            }
        };
        let event = Event { uid, handle: number, what, status: 0, facts: Facts::Datagram(facts) };
        self.queue(channel, Waiting { of: handle, group: Some(number), event });
        Ok(number)
    }

    /// Leaves a group. Returns the number of the membership's events that the program has fetched.
    ///
    /// # Errors
    /// `ENOENT` if there is no such membership, `EINVAL` if it belongs to another file.
    pub(super) fn leave(&mut self, channel: u64, number: u32) -> Result<u32, Errno> {
        match self.groups.get(number) {
            None => Err(libc::ENOENT),
            Some(group) if group.channel != channel => Err(libc::EINVAL),
            Some(_) => {
                self.forget_group(channel, number);
                Ok(self.groups.remove(number).map_or(0, |group| group.events_reported))
            }
        }
    }
}
