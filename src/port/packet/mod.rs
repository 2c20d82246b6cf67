//! RoCE v2 through AF_PACKET sockets: whole frames in trains, with CAP_NET_RAW alone.
//!
//! A packet socket sends a train of datagrams behind one header and receives it as one frame from a ring in memory, so
//! that the kernel handles up to 64 KiB in one piece: over virtual links this is faster than both AF_XDP, which copies
//! every frame, and UDP sockets, which add the kernel's UDP and a call for each receive. AF_PACKET copies frames and
//! does not take them from the kernel. A UDP socket that drops everything therefore holds port 4791: without it the
//! kernel would answer each frame with an ICMP error. Its `UDP_GRO` keeps the kernel from cutting trains first.
//!
//! | file | about |
//! | --- | --- |
//! | `open`, `sink`, `error` | sockets, options, errors |
//! | `filter` | the BPF program that selects frames |
//! | `shared` | several processes on one interface |
//! | `ring`, `merge`, `rx` | the receive rings, in the order of arrival; trains cut into frames |
//! | `tx` | trains (`crate::trains`) and their `virtio_net_hdr` |
//! | `promiscuous`, `cut` | a port for all frames of an interface, each as on a wire |
//!
//! Frames that an adapter would drop are counted and not taken, as over AF_XDP. UDP checksums are not verified: the
//! ICRC protects the payload.

mod cut;
mod error;
mod filter;
mod merge;
mod open;
mod promiscuous;
mod ring;
mod rx;
mod shared;
mod sink;
mod tx;

use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::group::{Member, Sockets};
use super::undelivered::Undelivered;
use super::{LinkChange, Port, PortInfo, Received, RxOptions, TxId};
use crate::netdev::{Interface, Membership, NetNs};
use crate::udp::headers::is_for_another;
use roxie_base::frame::FrameMut;
use roxie_base::time::Nanos;

pub use error::PacketError;
pub use open::{PacketConfig, check};
pub use promiscuous::PromiscuousPort;
use ring::Ring;
use rx::Receiver;
use shared::Filters;
use tx::Sender;

/// A port on one interface through packet sockets. See the module's page.
pub struct PacketPort {
    info: PortInfo,
    receiver: Receiver,
    sender: Sender,
    filters: Arc<Filters>,
    /// Membership in the group of processes that share the interface.
    member: Option<Arc<Member>>,
    /// Hold UDP port 4791, and drop what arrives there. Those of a shared interface belong to the group.
    _sinks: Sockets,
    namespace: NetNs,
    memberships: Vec<(IpAddr, Membership)>,
}

impl PacketPort {
    /// Returns the membership in the group of processes that share the interface, if it is shared.
    pub fn member(&self) -> Option<&Arc<Member>> {
        self.member.as_ref()
    }
}

impl Port for PacketPort {
    /// Uses all ICMP messages of the host: the kernel does not know which frames were sent.
    fn undelivered(&self) -> io::Result<Option<Undelivered>> {
        self.namespace.run(Undelivered::of_host)?.map(Some)
    }

    fn info(&self) -> &PortInfo {
        &self.info
    }

    fn rx_burst(&mut self, now: Nanos) -> usize {
        self.receiver.poll(now)
    }

    fn rx_frame(&self, i: usize) -> Received<'_> {
        let ip_id_hidden = self.receiver.hides_id(i);
        Received { frame: self.receiver.frame(i), ip_id_hidden, arrived: self.receiver.arrived(i) }
    }

    fn rx_release(&mut self) {
        self.receiver.release();
    }

    fn rx_waiting(&mut self) -> Option<(usize, usize)> {
        // The fuller one, in slots of the other: a pause is timed for lone frames.
        let [(lone, slots), (trains, train_slots)] =
            [rx::LONE, rx::TRAINS].map(|i| self.receiver.rings[i].waiting());
        Some((lone.max(trains * slots / train_slots), slots))
    }

    fn set_rx_wishes(&mut self, wishes: RxOptions) -> io::Result<()> {
        self.receiver.stamps = wishes.arrivals;
        self.filters.set_wishes(wishes)
    }

    fn set_vlans(&mut self, addresses: &[(IpAddr, u16)]) -> io::Result<()> {
        self.receiver.vlans = addresses.to_vec();
        Ok(())
    }

    fn is_sent(&mut self, id: &TxId) -> bool {
        let Some(member) = &self.member else { return false };
        is_for_another(&self.sender.frame(id).as_frame(), member)
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

    fn tx_flush(&mut self, now: Nanos) -> io::Result<()> {
        self.sender.flush(now)
    }

    fn tx_pending(&self) -> bool {
        self.sender.pending()
    }

    fn event_fds(&self) -> Vec<BorrowedFd<'_>> {
        self.receiver.fds()
    }

    /// Returns 0 (immediately) while the rest of a train waits for the next burst.
    fn next_event(&self) -> Nanos {
        if self.receiver.has_rest() { Nanos::ZERO } else { Nanos::MAX }
    }

    fn prepare_sleep(&mut self) -> bool {
        self.receiver.clear_errors();
        !self.receiver.has_frames()
    }

    fn follow(&mut self, change: &LinkChange) -> io::Result<()> {
        match change {
            LinkChange::Addresses(addresses) => self.receiver.addresses.clone_from(addresses),
            LinkChange::Mtu(mtu) => {
                self.info.mtu = *mtu;
                self.info.max_frame = mtu + open::L2_HEADER;
                self.receiver.max_frame = self.info.max_frame;
            }
            LinkChange::Mac(mac) => (self.info.mac, self.sender.mac) = (*mac, *mac),
        }
        Ok(())
    }

    fn join(&mut self, group: IpAddr) -> io::Result<()> {
        let name = self.info.interface.clone().unwrap_or_default();
        let join = || Membership::join(&Interface::by_name(&name).map_err(io::Error::other)?, group);
        self.memberships.push((group, self.namespace.run(join)??));
        self.receiver.groups.push(group);
        Ok(())
    }

    fn leave(&mut self, group: IpAddr) {
        self.memberships.retain(|(joined, _)| *joined != group);
        self.receiver.groups.retain(|joined| *joined != group);
    }

    fn counters(&self, out: &mut Vec<(&'static str, u64)>) {
        let (r, s) = (&self.receiver.counts, &self.sender.counts);
        out.extend([
            ("rx_packets", r.packets),
            ("rx_bytes", r.bytes),
            ("rx_trains", r.trains),
            ("rx_tagged", r.tagged),
            ("rx_other_address", r.other_address),
            ("rx_bad_ip_checksum", r.bad_ip_checksum),
            ("rx_oversize", r.oversize),
            ("rx_malformed", r.malformed),
            ("rx_handed_over", r.handed_over),
            ("rx_strays_dropped", r.strays_dropped),
            ("rx_out_of_buffer", self.receiver.rings.iter().map(Ring::dropped).sum()),
            ("tx_packets", s.packets),
            ("tx_bytes", s.bytes),
            ("tx_calls", s.calls),
            ("tx_trains", s.trains),
            ("tx_busy", s.busy),
            ("tx_failed", s.failed),
            ("tx_too_long", s.too_long),
            ("link_down", s.link_down),
        ]);
    }
}
