//! Moves Ethernet frames and knows no RDMA.
//!
//! A [`Port`] works on bursts. One turn of the engine is, in this order:
//!
//! ```text
//! rx_burst -> rx_frame(i) for each i -> rx_note(i) -> rx_release
//! tx_alloc -> tx_frame(id) to write   -> tx_arrange -> tx_frame(id) to seal -> tx_commit(id)
//! tx_flush
//! ```
//!
//! Frames of a receive burst stay valid and unchanged until `rx_release`, so payload can be
//! copied once, late, straight to its destination. Slots that `tx_alloc` gave out must all be
//! committed or cancelled before `tx_flush`. Ports stack: fault, pcap and loopback
//! are ports around a port.
//!
//! Architecture invariant: nothing here depends on another module of the crate but
//! `flow`, `frame`, `time` and, for the tee, `capture`; and nothing here allocates once its first bursts are through.

#[macro_use]
mod layer;

pub mod fault;
pub mod loopback;
pub mod memory;
pub mod pcap;
pub mod udp;
pub mod unclaimed;
pub mod undelivered;
pub mod xdp;

use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;

use serde::{Deserialize, Serialize};

use crate::flow::FlowMatch;
use crate::frame::{ETHERNET_HEADER, Frame, FrameMut};
pub use crate::limits::BURST;
use crate::time::Nanos;
use undelivered::Undelivered;

/// What a port is and what fits through it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortInfo {
    /// `xdp`, `udp` or `memory`, then what stacks on it: `pcap(fault(xdp))`.
    pub name: String,
    /// The interface, where there is one.
    pub interface: Option<String>,
    /// How frames are moved and why so: `native copy: veth has no zero-copy`.
    pub mode: String,
    /// The station address of the port.
    pub mac: [u8; 6],
    /// Link MTU in bytes: the largest L3 packet.
    pub mtu: usize,
    /// The longest frame in bytes, without FCS, that the port can carry (it may be below `mtu + 18`).
    pub max_frame: usize,
    /// It carries frames of any protocol, and steers those that are asked for to us. False: RoCE v2 alone.
    pub raw_frames: bool,
}

impl PortInfo {
    /// The largest L3 packet, in bytes, that both the link and the port's frames have room for.
    pub fn largest_packet(&self) -> usize {
        self.mtu.min(self.max_frame.saturating_sub(ETHERNET_HEADER))
    }

    /// For a port whose frames are as large as its link allows: what holds after `change`. Framing keeps its size.
    pub(crate) fn follow(&mut self, change: &LinkChange) {
        match change {
            LinkChange::Mtu(mtu) => {
                self.max_frame = self.max_frame - self.mtu + mtu;
                self.mtu = *mtu;
            }
            LinkChange::Mac(mac) => self.mac = *mac,
            LinkChange::Addresses(_) => {}
        }
    }

    /// For a layer: takes over what a change of the link may have changed in the port below.
    fn renew(&mut self, below: &PortInfo) {
        self.mac = below.mac;
        self.mtu = below.mtu;
        self.max_frame = below.max_frame;
        self.mode.clone_from(&below.mode);
    }
}

/// A received frame and what the port could not see of it.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    /// The bytes, from the Ethernet header on, without FCS.
    pub frame: Frame<'a>,
    /// The IPv4 identification (and the DF bit) in `frame` were made up: sockets do not show them.
    pub ip_id_hidden: bool,
    /// When it arrived, if the port knows better than that it is there now: see [`RxWishes::arrivals`].
    pub arrived: Option<Nanos>,
}

/// What a NIC asks of its port about what arrives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RxWishes {
    /// Say of frames when they arrived: for those who measure delays. Costs a little for each frame.
    pub arrivals: bool,
    /// Take MAC control frames (EtherType 0x8808: PAUSE, priority flow control) too. Sockets do not see any.
    pub mac_control: bool,
}

/// What the kernel says of the link while a port is open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkChange {
    /// These are its addresses from now on.
    Addresses(Vec<IpAddr>),
    /// This is its MTU from now on, in bytes.
    Mtu(usize),
    /// This is its station address from now on.
    Mac([u8; 6]),
}

/// Names a transmit slot from `tx_alloc` until it is committed or cancelled.
#[derive(Debug, PartialEq, Eq)]
pub struct TxId(pub u32);

/// Moves frames. See the module's page for the order of calls.
pub trait Port: Send {
    /// What this port is.
    fn info(&self) -> &PortInfo;

    /// Takes up to [`BURST`] frames from the link; they are `rx_frame(0..n)` until `rx_release`.
    fn rx_burst(&mut self, now: Nanos) -> usize;

    /// The `i`-th frame of the burst.
    ///
    /// # Panics
    /// If `i` is not below what `rx_burst` returned.
    fn rx_frame(&self, i: usize) -> Received<'_>;

    /// Says what the NIC did with the `i`-th frame; captures keep it.
    fn rx_note(&mut self, i: usize, note: std::fmt::Arguments<'_>) {
        let _ = (i, note);
    }

    /// Returns the burst's frames to the link.
    fn rx_release(&mut self);

    /// Reserves a slot for a frame of `len` bytes (without FCS).
    /// `None`: no room now, flush and come again; or, if `len > max_frame`, never: it is counted and waiting is in vain.
    fn tx_alloc(&mut self, len: usize) -> Option<TxId>;

    /// The slot's bytes, to write. Their content starts undefined.
    fn tx_frame(&mut self, id: &TxId) -> FrameMut<'_>;

    /// Decides how the slots written so far will leave, and fixes the header fields that depend on it
    /// (the UDP port: segmentation groups and IPv4 identification). The ICRC is computed after it.
    fn tx_arrange(&mut self) {}

    /// Hands a finished frame over. It may wait for `tx_flush`.
    fn tx_commit(&mut self, id: TxId);

    /// Says why the frame leaves, before its commit; captures keep it.
    fn tx_note(&mut self, id: &TxId, note: std::fmt::Arguments<'_>) {
        let _ = (id, note);
    }

    /// Gives a slot back unsent.
    fn tx_cancel(&mut self, id: TxId);

    /// One kick for all that was committed. Frames the link has no room for stay queued; an `Err` is
    /// a link that has failed, not one that is busy.
    ///
    /// # Errors
    /// If the link has failed. One that is busy is no error.
    fn tx_flush(&mut self, now: Nanos) -> io::Result<()>;

    /// Frames that wait to be received, and how many may: what a NIC that tells its neighbour to pause goes by. `None`: the port does not
    /// know, or what it receives by loses nothing.
    fn rx_waiting(&mut self) -> Option<(usize, usize)> {
        None
    }

    /// What it is asked to do with what arrives, from now on. A port does of it what it can.
    ///
    /// # Errors
    /// If the system does not do what it can otherwise; all is as before then.
    fn set_rx_wishes(&mut self, wishes: RxWishes) -> io::Result<()> {
        let _ = wishes;
        Ok(())
    }

    /// True if some layer wants notes: without it the engine does not format any.
    fn wants_notes(&self) -> bool {
        false
    }

    /// True if committed frames still wait for the link: come back soon, do not sleep long.
    fn tx_pending(&self) -> bool {
        false
    }

    /// When a layer needs a turn even if nothing arrives (a delayed frame is due); `Nanos::MAX` if never.
    fn next_event(&self) -> Nanos {
        Nanos::MAX
    }

    /// Descriptors that become readable when frames arrive; asked for once, at start.
    fn event_fds(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    /// Called before the engine sleeps on `event_fds`: arms wake-ups. False if frames are known to be there already; of those that a
    /// socket holds only its descriptor tells.
    fn prepare_sleep(&mut self) -> bool {
        true
    }

    /// Follows a change of the link, between two turns. Layers follow the port below: afterwards `info` says what holds now.
    ///
    /// # Errors
    /// If the kernel refuses; the port goes on as before.
    fn follow(&mut self, change: &LinkChange) -> io::Result<()> {
        let _ = change;
        Ok(())
    }

    /// Takes frames for a multicast group from now on; what lies below joins it if it must.
    ///
    /// # Errors
    /// If the kernel refuses.
    fn join(&mut self, group: IpAddr) -> io::Result<()> {
        let _ = group;
        Ok(())
    }

    /// Ends that. A group that was not joined is none to leave.
    fn leave(&mut self, group: IpAddr) {
        let _ = group;
    }

    /// Takes the frames that any of these describes from now on, beside RoCE, and no others. At most
    /// [`MAX_FLOWS`](crate::flow::MAX_FLOWS).
    ///
    /// # Errors
    /// If the port carries RoCE v2 alone, or the kernel refuses; what was steered before still is.
    fn steer(&mut self, flows: &[FlowMatch]) -> io::Result<()> {
        let _ = flows;
        Err(io::Error::new(
            io::ErrorKind::Unsupported,
            format!("a port of kind {} carries RoCE v2 and nothing else", self.info().name),
        ))
    }

    /// Begins to hear of datagrams that found nobody. `None`: what lies below does not say so.
    ///
    /// # Errors
    /// If the kernel refuses.
    fn undelivered(&self) -> io::Result<Option<Undelivered>> {
        Ok(None)
    }

    /// True if the frame in a slot, to the port's own station, is for another process: what lies below takes it there.
    fn leaves(&mut self, id: &TxId) -> bool {
        let _ = id;
        false
    }

    /// Appends this port's counters, those of the layers below first.
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
    fn set_rx_wishes(&mut self, wishes: RxWishes) -> io::Result<()> {
        (**self).set_rx_wishes(wishes)
    }
    fn wants_notes(&self) -> bool {
        (**self).wants_notes()
    }
    fn leaves(&mut self, id: &TxId) -> bool {
        (**self).leaves(id)
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
