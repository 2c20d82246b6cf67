//! RoCE v2 over plain UDP sockets: no privilege, no special interface.
//!
//! RoCE v2 is UDP port 4791, so a socket can carry it. Above this port, frames look as on any other port: a received
//! datagram gets made-up Ethernet, IP and UDP headers in front; the payload of a sent frame goes to a socket, with the
//! addresses, traffic class and source port of its headers. Segmentation offload (`UDP_SEGMENT`, `UDP_GRO`) moves up to
//! 128 datagrams in one pass through the kernel; between two such ports on one host nothing is faster.
//!
//! The ICRC covers the IPv4 identification, which sockets do not show. `tx` predicts it for sent frames;
//! [`Received::ip_id_hidden`] marks received ones. IPv6 has none. Station addresses are made up from IP addresses:
//! [`synthetic_mac`].

pub(crate) mod headers;
mod open;
pub(crate) mod owner;
mod probe;
mod rx;
pub(crate) mod sys;
mod tx;

use std::fmt::Arguments;
use std::io;
use std::net::IpAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

pub use crate::synthetic_mac;
pub use open::{UdpConfig, UdpError};
use rx::Receiver;
use tx::Sender;

use super::group::Member;
use super::undelivered::Undelivered;
use super::{LinkChange, Port, PortInfo, Received, RxOptions, TxId};
use crate::netdev::{Interface, Membership, NetNs};
use roxie_base::frame::FrameMut;
use roxie_base::time::Nanos;

/// A port made of UDP sockets. See the module's page.
pub struct UdpPort {
    info: PortInfo,
    addresses: Vec<IpAddr>,
    /// True if the MTU was configured: changes of the link's MTU are ignored.
    fixed_mtu: bool,
    receiver: Receiver,
    /// Membership in the group of processes that share the port.
    member: Option<Arc<Member>>,
    sender: Sender,
    config: UdpConfig,
    /// Network namespace of the sockets.
    namespace: NetNs,
    memberships: Vec<(IpAddr, Membership)>,
}

impl UdpPort {
    /// Returns the addresses that it receives on: all of the network namespace if it listens on any.
    pub fn addresses(&self) -> &[IpAddr] {
        &self.addresses
    }

    /// Returns the membership in the group of processes that share the port, if the port is shared.
    pub fn member(&self) -> Option<&Arc<Member>> {
        self.member.as_ref()
    }
}

impl Port for UdpPort {
    fn info(&self) -> &PortInfo {
        &self.info
    }

    fn rx_burst(&mut self, now: Nanos) -> usize {
        self.receiver.poll(now)
    }

    fn rx_frame(&self, i: usize) -> Received<'_> {
        let frame = self.receiver.frame(i);
        let ip_id_hidden = frame.a.len() == headers::V4_HEADERS;
        Received { frame, ip_id_hidden, arrived: self.receiver.arrived(i) }
    }

    fn rx_note(&mut self, _i: usize, _note: Arguments<'_>) {}

    fn rx_release(&mut self) {
        self.receiver.release();
    }

    fn is_sent(&mut self, id: &TxId) -> bool {
        let Some(member) = &self.member else { return false };
        headers::is_for_another(&self.sender.frame(id).as_frame(), member)
    }

    fn tx_alloc(&mut self, len: usize) -> Option<TxId> {
        if len > self.info.max_frame {
            self.sender.counts.too_long += 1;
            return None;
        }
        self.sender.alloc(len)
    }

    fn tx_frame(&mut self, id: &TxId) -> FrameMut<'_> {
        self.sender.frame(id)
    }

    fn tx_arrange(&mut self) {
        self.sender.arrange();
    }

    fn tx_commit(&mut self, id: TxId) {
        self.sender.commit(&id);
    }

    fn tx_cancel(&mut self, id: TxId) {
        self.sender.cancel(&id);
    }

    /// Never fails: a datagram that a socket refuses for good is dropped and counted; each kind of failure is reported
    /// once.
    fn tx_flush(&mut self, now: Nanos) -> io::Result<()> {
        self.sender.flush(now);
        Ok(())
    }

    fn tx_pending(&self) -> bool {
        self.sender.pending()
    }

    fn set_rx_wishes(&mut self, wishes: RxOptions) -> io::Result<()> {
        self.receiver.stamp_arrivals(wishes.arrivals);
        Ok(())
    }

    fn event_fds(&self) -> Vec<BorrowedFd<'_>> {
        self.receiver.fds()
    }

    /// Returns 0 (immediately) while fetched datagrams wait for the next burst.
    fn next_event(&self) -> Nanos {
        if self.receiver.has_rest() { Nanos::ZERO } else { Nanos::MAX }
    }

    /// False while fetched datagrams wait. A socket with more stays readable, so nothing needs arming.
    fn prepare_sleep(&mut self) -> bool {
        !self.receiver.has_rest()
    }

    /// Follows the MTU only: listening addresses are fixed, and station addresses are made up.
    fn follow(&mut self, change: &LinkChange) -> io::Result<()> {
        if let LinkChange::Mtu(mtu) = change
            && !self.fixed_mtu
        {
            self.info.mtu = *mtu;
            self.info.max_frame = open::max_frame(*mtu);
            self.receiver.set_max_frame(self.info.max_frame);
        }
        Ok(())
    }

    /// Joins with the socket that is bound to no address, if the port is not shared. Otherwise the group gets a socket
    /// of its own.
    fn join(&mut self, group: IpAddr) -> io::Result<()> {
        let name = self.info.interface.as_deref().ok_or_else(|| {
            io::Error::other("the port has no interface: name one, a group is joined on an interface")
        })?;
        // Sockets that another process may take over must join nothing.
        let unbound = self.receiver.unbound(group.is_ipv4()).filter(|_| self.member.is_none());
        let config = &self.config;
        let join = || -> io::Result<(Option<OwnedFd>, Membership)> {
            let interface = Interface::by_name(name).map_err(io::Error::other)?;
            match unbound {
                Some(socket) => {
                    let socket = socket.try_clone_to_owned()?;
                    Ok((None, Membership::of(socket.into(), &interface, group)?))
                }
                None => {
                    let socket = open::listen_socket(group, config).map_err(io::Error::other)?;
                    let membership = Membership::of(socket.try_clone()?.into(), &interface, group)?;
                    Ok((Some(socket), membership))
                }
            }
        };
        let (socket, membership) = self.namespace.run(join)??;
        if let Some(socket) = socket {
            self.receiver.listen(group, socket)?;
            let own = self.namespace.run(|| Interface::by_name(name)).map_err(io::Error::other)?;
            let own = own.map_err(io::Error::other)?.addresses.iter().map(|a| a.ip).collect();
            self.receiver.drop_own_multicast(own, self.sender.ports());
        }
        self.memberships.push((group, membership));
        Ok(())
    }

    fn leave(&mut self, group: IpAddr) {
        self.memberships.retain(|(joined, _)| *joined != group);
        self.receiver.stop_listening(group);
    }

    /// Uses the error queues of the sockets that send: the messages quote their datagrams.
    fn undelivered(&self) -> io::Result<Option<Undelivered>> {
        Undelivered::of_sockets(self.sender.sockets()?).map(Some)
    }

    fn counters(&self, out: &mut Vec<(&'static str, u64)>) {
        let (r, s) = (&self.receiver.counts, &self.sender.counts);
        out.extend([
            ("rx_packets", r.packets),
            ("rx_bytes", r.bytes),
            ("rx_calls", r.calls),
            ("rx_trains", r.trains),
            ("rx_oversize", r.oversize),
            ("rx_truncated", r.truncated),
            ("rx_handed_over", r.handed_over),
            ("rx_strays_dropped", r.strays_dropped),
            ("rx_errors", r.errors),
            ("rx_out_of_buffer", self.receiver.dropped()),
            ("tx_packets", s.packets),
            ("tx_bytes", s.bytes),
            ("tx_calls", s.calls),
            ("tx_trains", s.trains),
            ("tx_busy", s.busy),
            ("tx_management_dropped", s.management_dropped),
            ("tx_not_roce", s.not_roce),
            ("tx_unreachable", s.unreachable),
            ("tx_refused", s.refused),
            ("tx_too_long", s.too_long),
            ("tx_invalid", s.invalid),
            ("tx_failed", s.failed),
            ("tx_id_shifted", s.id_shifted),
        ]);
    }
}
