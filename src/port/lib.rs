//! Ports: send and receive Ethernet frames. No code here knows RDMA.
//!
//! ```
//! use roxie_base::time::Nanos;
//! use roxie_port::Port;
//! use roxie_port::memory::{MemoryConfig, pair};
//!
//! let (mut near, mut far) = pair(MemoryConfig::default(), MemoryConfig::default());
//! let slot = near.tx_alloc(60).expect("a free slot");
//! near.tx_frame(&slot).write(14, b"a payload behind an Ethernet header");
//! near.tx_commit(slot);
//! near.tx_flush(Nanos::ZERO)?;
//!
//! assert_eq!(far.rx_burst(Nanos::ZERO), 1);
//! assert_eq!(&far.rx_frame(0).frame.to_vec()[14..23], b"a payload");
//! far.rx_release();
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! | module | feature | moves frames over |
//! | --- | --- | --- |
//! | `udp` | `udp` | UDP sockets: RoCE v2 only, no privilege |
//! | `packet` | `udp` | AF_PACKET sockets: RoCE v2 only, takes CAP_NET_RAW to run |
//! | `xdp` | `xdp` | AF_XDP: any protocol, takes clang to build and CAP_NET_ADMIN to run |
//! | [`memory`] | | memory of the process |
//! | [`fault`], [`pcap`], [`loopback`] | | another port: they lose, record and loop its frames |
//!
//! `netdev` (feature `netdev`, which `udp` and `xdp` take) asks the kernel for interfaces, addresses and neighbours.
//!
//! A [`Port`] works on bursts. One turn of the engine calls, in this order:
//!
//! ```text
//! rx_burst -> rx_frame(i) for each i -> rx_note(i) -> rx_release
//! tx_alloc -> tx_frame(id) to write   -> set_now, tx_arrange -> tx_frame(id) to seal -> tx_commit(id)
//! tx_flush
//! ```
//!
//! Frames of a receive burst stay valid and unchanged until `rx_release`, so that payload is copied once, late,
//! straight to its destination. Every slot that `tx_alloc` returned must be committed or cancelled before `tx_flush`.
//! Ports stack: fault, pcap and loopback are layers around another port.
//!
//! Architecture invariant: a port knows no RDMA. The crate depends on neither `roxie-wire` nor `roxie-nic`. A port
//! allocates nothing after its first bursts.
#![deny(unsafe_code)]
#![warn(clippy::missing_errors_doc)]

#[macro_use]
mod layer;

mod background;
// What goes through AF_XDP's rings is safe code, so that tests run it without the feature.
#[cfg(any(feature = "xdp", test))]
mod chunks;

pub mod fault;
#[cfg(feature = "udp")]
pub mod group;
pub mod loopback;
pub mod memory;
#[cfg(feature = "netdev")]
pub mod netdev;
#[cfg(feature = "udp")]
pub mod packet;
pub mod pcap;
mod synthetic;
#[cfg(feature = "udp")]
mod trains;
#[cfg(feature = "udp")]
pub mod udp;
pub mod unclaimed;
pub mod undelivered;
#[cfg(feature = "netdev")]
pub mod xdp;

use std::any::Any;
use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;

use serde::{Deserialize, Serialize};

use roxie_base::flow::FlowMatch;
use roxie_base::frame::{ETHERNET_HEADER, Frame, FrameMut};
pub use roxie_base::limits::BURST;
use roxie_base::time::Nanos;
pub use synthetic::synthetic_mac;
use undelivered::Undelivered;

/// Properties of a port: name, interface, addresses and sizes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortInfo {
    /// `xdp`, `packet`, `udp` or `memory`; layers wrap the name: `pcap(fault(xdp))`.
    pub name: String,
    /// Name of the network interface, if the port has one.
    pub interface: Option<String>,
    /// How frames are moved, and the reason for that mode: `native copy: veth has no zero-copy`.
    pub mode: String,
    /// The station address of the port.
    pub mac: [u8; 6],
    /// Link MTU in bytes: the largest L3 packet.
    pub mtu: usize,
    /// The longest frame in bytes, without FCS, that the port can carry (it may be below `mtu + 18`).
    pub max_frame: usize,
    /// What the port carries.
    pub carries: Carries,
    /// Datagrams of one flow are sent, and arrive, as one (segmentation offload).
    pub has_trains: bool,
}

/// What a port carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Carries {
    /// RoCE v2 datagrams. Station addresses are made up from IP addresses.
    Datagrams,
    /// RoCE v2 frames, with station addresses.
    RoceFrames,
    /// Frames of any protocol. The port steers requested flows here.
    AnyFrames,
}

impl PortInfo {
    /// The largest L3 packet, in bytes, that both the link and the port's frames have room for.
    pub fn largest_packet(&self) -> usize {
        self.mtu.min(self.max_frame.saturating_sub(ETHERNET_HEADER))
    }

    /// Returns the name of the interface, or of the port if it has none.
    pub fn interface_or_name(&self) -> &str {
        self.interface.as_deref().unwrap_or(&self.name)
    }

    /// Applies `change` to a port with frames as large as the link MTU allows. The framing overhead stays the same.
    pub fn follow(&mut self, change: &LinkChange) {
        match change {
            LinkChange::Mtu(mtu) => {
                self.max_frame = self.max_frame - self.mtu + mtu;
                self.mtu = *mtu;
            }
            LinkChange::Mac(mac) => self.mac = *mac,
            LinkChange::Addresses(_) => {}
        }
    }

    /// Copies the properties that a link change may alter from the port below a layer.
    fn renew(&mut self, below: &PortInfo) {
        self.mac = below.mac;
        self.mtu = below.mtu;
        self.max_frame = below.max_frame;
        self.mode.clone_from(&below.mode);
    }
}

/// A received frame, and which of its properties the port knows.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    /// Bytes of the frame from the Ethernet header on, without FCS.
    pub frame: Frame<'a>,
    /// True if the IPv4 identification and the DF bit in `frame` are made up, because sockets do not show them.
    pub ip_id_hidden: bool,
    /// Arrival time, if the port knows it more precisely than "now": see [`RxOptions::arrivals`].
    pub arrived: Option<Nanos>,
}

/// Optional receive services that a NIC requests of its port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RxOptions {
    /// Report the arrival time of frames, for delay measurement. Costs a little for each frame.
    pub arrivals: bool,
    /// Receive MAC control frames (EtherType 0x8808: PAUSE, priority flow control) too. Sockets do not see any.
    pub mac_control: bool,
    /// Receive RoCE v1 (EtherType 0x8915) too. Sockets do not see any.
    pub roce_v1: bool,
}

/// A change of the link while a port is open, as the kernel reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkChange {
    /// The new IP addresses.
    Addresses(Vec<IpAddr>),
    /// The new MTU in bytes.
    Mtu(usize),
    /// The new station address.
    Mac([u8; 6]),
}

/// Identifies a transmit slot from `tx_alloc` until it is committed or cancelled.
#[derive(Debug, PartialEq, Eq)]
pub struct TxId(pub u32);

/// Sends and receives frames. The module's page gives the order of calls. [`Any`] lets an engine take off a layer that
/// it has put on.
pub trait Port: Send + Any {
    /// Returns the port's properties.
    fn info(&self) -> &PortInfo;

    /// Receives up to [`BURST`] frames. Returns their number `n`; `rx_frame(0..n)` are valid until `rx_release`.
    fn rx_burst(&mut self, now: Nanos) -> usize;

    /// Returns the `i`-th frame of the burst.
    ///
    /// # Panics
    /// If `i` is not below what `rx_burst` returned.
    fn rx_frame(&self, i: usize) -> Received<'_>;

    /// Notes what the NIC did with the `i`-th frame, for captures.
    fn rx_note(&mut self, i: usize, note: std::fmt::Arguments<'_>) {
        let _ = (i, note);
    }

    /// Returns the burst's frames to the link.
    fn rx_release(&mut self);

    /// Reserves a slot for a frame of `len` bytes (without FCS). `None` if there is no room now: flush and retry.
    /// `None` as well if `len > max_frame`: this is counted, and a retry is in vain.
    fn tx_alloc(&mut self, len: usize) -> Option<TxId>;

    /// Returns the slot's bytes for writing. Their initial content is undefined.
    fn tx_frame(&mut self, id: &TxId) -> FrameMut<'_>;

    /// Sets the time of the frames that are committed next, for layers that record or delay them. `rx_burst` and
    /// `tx_flush` set it too.
    fn set_now(&mut self, now: Nanos) {
        let _ = now;
    }

    /// Decides how the slots written so far will be sent, and fixes the header fields that depend on it (UDP port:
    /// segmentation groups and IPv4 identification). The ICRC must be computed afterwards. A packet port leaves slots
    /// that are committed already as they are.
    fn tx_arrange(&mut self) {}

    /// Queues a finished frame for sending, at the latest by `tx_flush`.
    fn tx_commit(&mut self, id: TxId);

    /// Notes why the frame is sent, before its commit, for captures.
    fn tx_note(&mut self, id: &TxId, note: std::fmt::Arguments<'_>) {
        let _ = (id, note);
    }

    /// Releases a slot without sending it.
    fn tx_cancel(&mut self, id: TxId);

    /// Sends all committed frames with one kick. Frames for which the link has no room stay queued.
    ///
    /// # Errors
    /// If the link has failed. A busy link is not an error.
    fn tx_flush(&mut self, now: Nanos) -> io::Result<()>;

    /// Returns the number of frames that wait to be received and the capacity of that queue, from which a NIC decides
    /// to send PAUSE. `None` if the port does not know, or its receive path loses nothing.
    fn rx_waiting(&mut self) -> Option<(usize, usize)> {
        None
    }

    /// Sets the receive services. A port ignores those that it does not have.
    ///
    /// # Errors
    /// If the system refuses a service that the port has. Nothing is changed then.
    fn set_rx_wishes(&mut self, wishes: RxOptions) -> io::Result<()> {
        let _ = wishes;
        Ok(())
    }

    /// Replaces the set of addresses on VLANs, each with its VLAN ID: tagged frames to them are received as well. A
    /// port that sees all frames ignores the set.
    ///
    /// # Errors
    /// If the port cannot see the tags, or the kernel refuses. Nothing is changed then.
    fn set_vlans(&mut self, addresses: &[(IpAddr, u16)]) -> io::Result<()> {
        let _ = addresses;
        Ok(())
    }

    /// Prepares for this number of frames that peers may send before they wait for the NIC. More than expected may be
    /// lost.
    fn expect_frames(&mut self, frames: usize) {
        let _ = frames;
    }

    /// True if some layer records notes. Otherwise the engine does not format any.
    fn wants_notes(&self) -> bool {
        false
    }

    /// True if committed frames still wait for the link. The caller should flush again soon, and not sleep long.
    fn tx_pending(&self) -> bool {
        false
    }

    /// Returns when a layer needs a turn even if nothing arrives (a delayed frame is due); `Nanos::MAX` if never.
    fn next_event(&self) -> Nanos {
        Nanos::MAX
    }

    /// Returns the descriptors that become readable when frames arrive. Called once, at start.
    fn event_fds(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    /// Arms wake-ups before the engine sleeps on `event_fds`. False if frames are known to wait already. Frames in a
    /// socket are not known: they make its descriptor readable.
    fn prepare_sleep(&mut self) -> bool {
        true
    }

    /// Applies a change of the link, between two turns. Layers call the port below first; `info` is up to date
    /// afterwards.
    ///
    /// # Errors
    /// If the kernel refuses. The port stays as it was.
    fn follow(&mut self, change: &LinkChange) -> io::Result<()> {
        let _ = change;
        Ok(())
    }

    /// Receives frames to a multicast group from now on. The layer below joins the group where that is needed.
    ///
    /// # Errors
    /// If the kernel refuses.
    fn join(&mut self, group: IpAddr) -> io::Result<()> {
        let _ = group;
        Ok(())
    }

    /// Stops receiving frames to a multicast group. A group that was not joined is ignored.
    fn leave(&mut self, group: IpAddr) {
        let _ = group;
    }

    /// Replaces the set of flows to receive in addition to RoCE. At most [`MAX_FLOWS`](roxie_base::flow::MAX_FLOWS).
    ///
    /// # Errors
    /// If the port carries RoCE v2 only, or the kernel refuses. The flows in force stay then.
    fn steer(&mut self, flows: &[FlowMatch]) -> io::Result<()> {
        let _ = flows;
        Err(io::Error::new(
            io::ErrorKind::Unsupported,
            format!("a port of kind {} carries RoCE v2 and nothing else", self.info().name),
        ))
    }

    /// Subscribes to ICMP "port unreachable" messages about sent datagrams. `None` if the port below does not report
    /// them.
    ///
    /// # Errors
    /// If the kernel refuses.
    fn undelivered(&self) -> io::Result<Option<Undelivered>> {
        Ok(None)
    }

    /// True if the frame in a slot is addressed to the port's own station, but to another process: the port below
    /// delivers it.
    fn is_sent(&mut self, id: &TxId) -> bool {
        let _ = id;
        false
    }

    /// Appends this port's counters to `out`, after the counters of the layers below.
    fn counters(&self, out: &mut Vec<(&'static str, u64)>);
}

impl<P: Port + ?Sized> Port for Box<P> {
    fn info(&self) -> &PortInfo {
        (**self).info()
    }
    fn rx_burst(&mut self, now: Nanos) -> usize {
        (**self).rx_burst(now)
    }
    fn rx_frame(&self, i: usize) -> Received<'_> {
        (**self).rx_frame(i)
    }
    fn rx_note(&mut self, i: usize, note: std::fmt::Arguments<'_>) {
        (**self).rx_note(i, note);
    }
    fn rx_release(&mut self) {
        (**self).rx_release();
    }
    fn tx_alloc(&mut self, len: usize) -> Option<TxId> {
        (**self).tx_alloc(len)
    }
    fn tx_frame(&mut self, id: &TxId) -> FrameMut<'_> {
        (**self).tx_frame(id)
    }
    fn set_now(&mut self, now: Nanos) {
        (**self).set_now(now);
    }
    fn tx_arrange(&mut self) {
        (**self).tx_arrange();
    }
    fn tx_commit(&mut self, id: TxId) {
        (**self).tx_commit(id);
    }
    fn tx_note(&mut self, id: &TxId, note: std::fmt::Arguments<'_>) {
        (**self).tx_note(id, note);
    }
    fn tx_cancel(&mut self, id: TxId) {
        (**self).tx_cancel(id);
    }
    fn tx_flush(&mut self, now: Nanos) -> io::Result<()> {
        (**self).tx_flush(now)
    }
    fn rx_waiting(&mut self) -> Option<(usize, usize)> {
        (**self).rx_waiting()
    }
    fn set_rx_wishes(&mut self, wishes: RxOptions) -> io::Result<()> {
        (**self).set_rx_wishes(wishes)
    }
    fn set_vlans(&mut self, addresses: &[(IpAddr, u16)]) -> io::Result<()> {
        (**self).set_vlans(addresses)
    }
    fn expect_frames(&mut self, frames: usize) {
        (**self).expect_frames(frames);
    }
    fn wants_notes(&self) -> bool {
        (**self).wants_notes()
    }
    fn is_sent(&mut self, id: &TxId) -> bool {
        (**self).is_sent(id)
    }
    fn tx_pending(&self) -> bool {
        (**self).tx_pending()
    }
    fn next_event(&self) -> Nanos {
        (**self).next_event()
    }
    fn event_fds(&self) -> Vec<BorrowedFd<'_>> {
        (**self).event_fds()
    }
    fn prepare_sleep(&mut self) -> bool {
        (**self).prepare_sleep()
    }
    fn follow(&mut self, change: &LinkChange) -> io::Result<()> {
        (**self).follow(change)
    }
    fn join(&mut self, group: IpAddr) -> io::Result<()> {
        (**self).join(group)
    }
    fn leave(&mut self, group: IpAddr) {
        (**self).leave(group);
    }
    fn steer(&mut self, flows: &[FlowMatch]) -> io::Result<()> {
        (**self).steer(flows)
    }
    fn undelivered(&self) -> io::Result<Option<Undelivered>> {
        (**self).undelivered()
    }
    fn counters(&self, out: &mut Vec<(&'static str, u64)>) {
        (**self).counters(out);
    }
}
