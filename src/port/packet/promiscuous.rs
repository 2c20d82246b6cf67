//! All frames of an interface, as a wire carries them.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, send};

use super::cut::{Offload, cut};
use super::error::PacketError;
use super::open::{RING, bind_packet, packet_socket, ring};
use super::ring::Ring;
use crate::netdev::Interface;
use crate::udp::sys::{enlarge, make_promiscuous};
use crate::{BURST, Carries, LinkChange, Port, PortInfo, Received, TxId};
use roxie_base::frame::{ETHERNET_HEADER, Frame, FrameMut};
use roxie_base::time::Nanos;

/// Send buffer to ask for, in bytes.
const SEND_BUFFER: usize = 4 << 20;
/// `ETH_P_ALL`.
const ALL: u16 = 3;
/// Bytes of a tag beyond the Ethernet header.
const TAG: usize = 4;
/// Frames that may wait for a busy link; more are dropped, and counted.
const BACKLOG: usize = 1024;
/// Free buffers that are kept.
const KEPT: usize = 4 * BURST;

/// Receives every frame that reaches an interface and sends frames of any kind from it, through packet sockets. What
/// the kernel has merged or left unfinished is cut and finished first, so that each frame is one of the wire. Takes
/// CAP_NET_RAW. The kernel gets the received frames too: on an interface with an address it answers them.
pub struct PromiscuousPort {
    info: PortInfo,
    ring: Ring,
    socket: OwnedFd,
    /// Received frames; the first `shown` are the burst.
    received: VecDeque<Vec<u8>>,
    shown: usize,
    /// Slots that the caller writes.
    open: Vec<Option<Vec<u8>>>,
    /// Committed frames.
    leaving: VecDeque<Vec<u8>>,
    spare: Vec<Vec<u8>>,
    counts: Counts,
}

#[derive(Default)]
struct Counts {
    rx_packets: u64,
    rx_bytes: u64,
    rx_merged: u64,
    rx_malformed: u64,
    tx_packets: u64,
    tx_bytes: u64,
    tx_too_long: u64,
    tx_dropped: u64,
    tx_failed: u64,
}

impl PromiscuousPort {
    /// Opens an interface of the calling thread's namespace.
    ///
    /// # Errors
    /// [`PacketError`] says what failed and what to do about it.
    pub fn open(interface: &str) -> Result<PromiscuousPort, PacketError> {
        let interface = Interface::by_name(interface)?;
        let ring = ring(RING)?;
        make_promiscuous(ring.fd(), interface.index).map_err(PacketError::of("PACKET_ADD_MEMBERSHIP"))?;
        let socket = packet_socket()?;
        enlarge(socket.as_fd(), libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, SEND_BUFFER);
        bind_packet(ring.fd(), interface.index, ALL)?;
        // Protocol 0: this socket only sends.
        bind_packet(socket.as_fd(), interface.index, 0)?;
        Ok(PromiscuousPort {
            info: PortInfo {
                name: "promiscuous".into(),
                interface: Some(interface.name.clone()),
                mode: "packet socket".into(),
                mac: interface.mac,
                mtu: interface.mtu,
                max_frame: interface.mtu + ETHERNET_HEADER + TAG,
                carries: Carries::AnyFrames,
                has_trains: false,
            },
            ring,
            socket,
            received: VecDeque::with_capacity(2 * BURST),
            shown: 0,
            open: Vec::with_capacity(BURST),
            leaving: VecDeque::with_capacity(BACKLOG),
            spare: Vec::with_capacity(KEPT),
            counts: Counts::default(),
        })
    }

    fn recycle(&mut self, buffer: Vec<u8>) {
        if self.spare.len() < KEPT {
            self.spare.push(buffer);
        }
    }
}

impl Port for PromiscuousPort {
    fn info(&self) -> &PortInfo {
        &self.info
    }

    fn rx_burst(&mut self, _now: Nanos) -> usize {
        while self.received.len() < BURST
            && let Some(slot) = self.ring.take()
        {
            let filled = self.ring.read(slot);
            let (spare, received) = (&mut self.spare, &mut self.received);
            let before = received.len();
            let is_whole = filled.bytes.len() == filled.len
                && cut(filled.bytes, &Offload::parse(filled.vnet), filled.tag, |pieces| {
                    let mut buffer = spare.pop().unwrap_or_default();
                    buffer.clear();
                    pieces.iter().for_each(|piece| buffer.extend_from_slice(piece));
                    received.push_back(buffer);
                });
            self.counts.rx_malformed += u64::from(!is_whole);
            let new = self.received.len() - before;
            self.counts.rx_merged += u64::from(new > 1);
            self.counts.rx_packets += new as u64;
            self.counts.rx_bytes +=
                self.received.range(before..).map(|frame| frame.len() as u64).sum::<u64>();
            self.ring.release(slot + 1);
        }
        self.shown = self.received.len().min(BURST);
        self.shown
    }

    fn rx_frame(&self, i: usize) -> Received<'_> {
        Received { frame: Frame::whole(&self.received[i]), ip_id_hidden: false, arrived: None }
    }

    fn rx_release(&mut self) {
        for _ in 0..std::mem::take(&mut self.shown) {
            if let Some(buffer) = self.received.pop_front() {
                self.recycle(buffer);
            }
        }
    }

    fn tx_alloc(&mut self, len: usize) -> Option<TxId> {
        if len > self.info.max_frame {
            self.counts.tx_too_long += 1;
            return None;
        }
        let mut buffer = self.spare.pop().unwrap_or_default();
        buffer.resize(len, 0);
        self.open.push(Some(buffer));
        Some(TxId(self.open.len() as u32 - 1))
    }

    fn tx_frame(&mut self, id: &TxId) -> FrameMut<'_> {
        let buffer = self.open[id.0 as usize].as_mut().expect("an open slot");
        FrameMut { a: buffer, b: &mut [] }
    }

    fn tx_commit(&mut self, id: TxId) {
        let buffer = self.open[id.0 as usize].take().expect("an open slot");
        if self.leaving.len() < BACKLOG {
            self.leaving.push_back(buffer);
        } else {
            self.counts.tx_dropped += 1;
            self.recycle(buffer);
        }
    }

    fn tx_cancel(&mut self, id: TxId) {
        if let Some(buffer) = self.open[id.0 as usize].take() {
            self.recycle(buffer);
        }
    }

    fn tx_flush(&mut self, _now: Nanos) -> io::Result<()> {
        self.open.clear();
        while let Some(frame) = self.leaving.front() {
            match send(self.socket.as_raw_fd(), frame, MsgFlags::MSG_DONTWAIT) {
                Ok(_) => {
                    self.counts.tx_packets += 1;
                    self.counts.tx_bytes += frame.len() as u64;
                }
                Err(Errno::EAGAIN | Errno::ENOBUFS) => return Ok(()),
                Err(Errno::EINTR) => continue,
                Err(Errno::ENODEV | Errno::ENXIO) => return Err(Errno::ENODEV.into()),
                // The link is down, or its queue refuses the frame.
                Err(_) => self.counts.tx_failed += 1,
            }
            if let Some(buffer) = self.leaving.pop_front() {
                self.recycle(buffer);
            }
        }
        Ok(())
    }

    fn tx_pending(&self) -> bool {
        !self.leaving.is_empty()
    }

    fn event_fds(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.ring.fd()]
    }

    /// Returns 0 (immediately) while frames of a merged one wait for the next burst.
    fn next_event(&self) -> Nanos {
        if self.received.len() > self.shown { Nanos::ZERO } else { Nanos::MAX }
    }

    fn prepare_sleep(&mut self) -> bool {
        self.ring.clear_error();
        self.received.is_empty() && !self.ring.is_ready()
    }

    fn follow(&mut self, change: &LinkChange) -> io::Result<()> {
        self.info.follow(change);
        Ok(())
    }

    fn counters(&self, out: &mut Vec<(&'static str, u64)>) {
        let c = &self.counts;
        out.extend([
            ("rx_packets", c.rx_packets),
            ("rx_bytes", c.rx_bytes),
            ("rx_merged", c.rx_merged),
            ("rx_malformed", c.rx_malformed),
            ("rx_out_of_buffer", self.ring.dropped()),
            ("tx_packets", c.tx_packets),
            ("tx_bytes", c.tx_bytes),
            ("tx_too_long", c.tx_too_long),
            ("tx_dropped", c.tx_dropped),
            ("tx_failed", c.tx_failed),
        ]);
    }
}
