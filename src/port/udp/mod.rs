//! RoCE v2 over plain UDP sockets: no privilege, no special interface.
//!
//! RoCE v2 is UDP port 4791, so a socket can carry it. Above this port a frame is a frame: received
//! datagrams get made-up Ethernet, IP and UDP headers in front, and of frames to be sent the datagram goes
//! to a socket with the addresses, the traffic class and the source port that the headers name.
//! Segmentation offload (`UDP_SEGMENT`, `UDP_GRO`) moves up to 128 datagrams in one pass through the
//! kernel; between two such ports on one host nothing is faster.
//!
//! What the ICRC covers and a socket does not show is the IPv4 identification: `tx` says how the frames sent
//! get the one they will have, and [`Received::ip_id_hidden`] marks received ones. IPv6 has none.
//! Station addresses are made up from IP addresses: [`synthetic_mac`].

pub mod group;
mod headers;
mod open;
mod owner;
mod probe;
mod rx;
mod sys;
mod tx;

use std::fmt::Arguments;
use std::io;
use std::net::IpAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use group::Member;
pub use headers::synthetic_mac;
pub use open::{UdpConfig, UdpError};
use rx::Receiver;
use tx::Sender;

use super::undelivered::Undelivered;
use super::{LinkChange, Port, PortInfo, Received, RxWishes, TxId};
use crate::frame::FrameMut;
use crate::netdev::{Interface, Membership, NetNs};
use crate::time::Nanos;

/// A port made of UDP sockets. See the module's page.
pub struct UdpPort {
    info: PortInfo,
    addresses: Vec<IpAddr>,
    /// The MTU was configured: that of the link does not matter.
    fixed_mtu: bool,
    receiver: Receiver,
    /// Processes that share the port.
    member: Option<Arc<Member>>,
    sender: Sender,
    config: UdpConfig,
    /// Where its sockets are.
    namespace: NetNs,
    memberships: Vec<(IpAddr, Membership)>,
}

impl UdpPort {
    /// The addresses it receives on, those of the network namespace if it listens on any.
    pub fn addresses(&self) -> &[IpAddr] {
        &self.addresses
    }

    /// What it has in common with other processes, if it shares the port with any that come.
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

    fn leaves(&mut self, id: &TxId) -> bool {
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

    /// Never fails: what a socket refuses for good is dropped, counted, and reported once for each kind.
    fn tx_flush(&mut self, _now: Nanos) -> io::Result<()> {
        self.sender.flush();
        Ok(())
    }

    fn tx_pending(&self) -> bool {
        self.sender.pending()
    }

    fn set_rx_wishes(&mut self, wishes: RxWishes) -> io::Result<()> {
        self.receiver.stamp_arrivals(wishes.arrivals);
        Ok(())
    }

    fn event_fds(&self) -> Vec<BorrowedFd<'_>> {
        self.receiver.fds()
    }

    /// What was fetched already wants a turn.
    fn next_event(&self) -> Nanos {
        if self.receiver.has_rest() { Nanos::ZERO } else { Nanos::MAX }
    }

    /// Sockets stay readable until they are empty, so only what was fetched already keeps awake.
    fn prepare_sleep(&mut self) -> bool {
        !self.receiver.has_rest()
    }

    /// Sockets listen on their addresses or on any, and station addresses are made up: only the MTU is followed.
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

    /// A socket that is bound to no address gets what comes to the group; beside those that are, the group gets one
    /// of its own.
    fn join(&mut self, group: IpAddr) -> io::Result<()> {
        let name = self.info.interface.as_deref().ok_or_else(|| {
            io::Error::other("the port stands on no interface: name one, a group is joined on it")
        })?;
        // Sockets that are kept for other processes to take over join nothing.
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
            self.receiver.pass_over(own, self.sender.ports());
        }
        self.memberships.push((group, membership));
        Ok(())
    }

    fn leave(&mut self, group: IpAddr) {
        self.memberships.retain(|(joined, _)| *joined != group);
        self.receiver.hang_up(group);
    }

    /// By the error queues of the sockets that send: their datagrams are what is quoted.
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
