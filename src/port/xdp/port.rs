//! The port: queues of one interface, and the program that steers frames to them.

use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError};

use super::rings::{SocketReceiveRings, SocketSendRings};
use super::steering::Steering;
use super::{XdpConfig, XdpError, open, vlan};
use crate::chunks::{ChunkAccount, Receiver, RxCounters, Sender, TxCounters};
use crate::undelivered::Undelivered;
use crate::{BURST, Carries, LinkChange, Port, PortInfo, Received, RxOptions, TxId};
use roxie_base::flow::FlowMatch;
use roxie_base::frame::FrameMut;
use roxie_base::time::Nanos;

/// One socket of a receive queue of the interface.
pub(super) struct Queue {
    pub(super) id: u32,
    pub(super) receiver: Receiver<SocketReceiveRings>,
    pub(super) sender: Sender<SocketSendRings>,
}

/// A port on one interface through AF_XDP. Dropping it, or the end of the process, restores the interface.
pub struct XdpPort {
    info: PortInfo,
    /// At least one; frames are sent through the first.
    queues: Vec<Queue>,
    /// Shared by all ports of a split.
    steering: Arc<Mutex<Steering>>,
    multi_buffer: bool,
    superframe_reported: bool,
    /// Number of slots refused because the frame would not fit the link.
    too_long: u64,
    /// True if this port reports the counts of frames that were not taken: the first of a split.
    reports: bool,
}

impl XdpPort {
    /// Opens an interface of the calling thread's namespace.
    ///
    /// Waits up to 2 s for a killed former owner to disappear.
    ///
    /// # Errors
    /// [`XdpError`] says what failed and what to do about it.
    pub fn open(config: &XdpConfig) -> Result<XdpPort, XdpError> {
        let opened = open::open(config)?;
        let max_frame = open::max_frame(opened.interface.mtu, opened.multi_buffer);
        let info = PortInfo {
            name: "xdp".to_owned(),
            interface: Some(opened.interface.name),
            mode: opened.mode,
            mac: opened.interface.mac,
            mtu: opened.interface.mtu,
            max_frame,
            carries: Carries::AnyFrames,
            has_trains: false,
        };
        Ok(XdpPort {
            info,
            queues: opened.queues,
            steering: Arc::new(Mutex::new(opened.steering)),
            multi_buffer: opened.multi_buffer,
            superframe_reported: false,
            too_long: 0,
            reports: true,
        })
    }

    /// Replaces the destination addresses of RoCE v2 to take. Takes none if empty.
    ///
    /// # Errors
    /// If there are more than 1024.
    pub fn set_addresses(&mut self, addresses: &[IpAddr]) -> Result<(), XdpError> {
        self.steering.lock().unwrap_or_else(PoisonError::into_inner).set_addresses(addresses)
    }

    /// Splits into at most this many ports, each with its share of the queues and for a worker of its own. The ports
    /// share the steering: [`XdpPort::set_addresses`] of one applies to all, and dropping the last restores the
    /// interface.
    pub fn split(self, most: usize) -> Vec<XdpPort> {
        let XdpPort { info, queues, steering, multi_buffer, superframe_reported, mut reports, .. } = self;
        let count = most.clamp(1, queues.len());
        let mut shares: Vec<Vec<Queue>> = std::iter::repeat_with(Vec::new).take(count).collect();
        for (at, queue) in queues.into_iter().enumerate() {
            shares[at % count].push(queue);
        }
        let port = |queues| XdpPort {
            info: info.clone(),
            queues,
            steering: Arc::clone(&steering),
            multi_buffer,
            superframe_reported,
            too_long: 0,
            reports: std::mem::take(&mut reports),
        };
        shares.into_iter().map(port).collect()
    }

    /// Applies a change of the link's MTU, in bytes.
    pub fn set_mtu(&mut self, mtu: usize) {
        self.info.mtu = mtu;
        self.info.max_frame = open::max_frame(mtu, self.multi_buffer);
        for queue in &mut self.queues {
            queue.receiver.set_longest(open::longest_frame(mtu));
        }
    }

    /// Returns where the chunks of packet memory are, summed over the queues: for receiving, then for transmitting. In
    /// each, `held + free + kernel == total` at all times.
    pub fn chunks(&mut self) -> (ChunkAccount, ChunkAccount) {
        let mut sum = (ChunkAccount::default(), ChunkAccount::default());
        for queue in &mut self.queues {
            sum.0 += queue.receiver.account();
            sum.1 += queue.sender.account();
        }
        sum
    }

    /// Warns once about received frames longer than the link's MTU.
    fn report_superframe(&mut self) {
        self.superframe_reported = true;
        let name = self.info.interface.as_deref().unwrap_or("the interface");
        tracing::warn!(
            "{name}: dropping received frames longer than its MTU of {} bytes: their sender leaves \
             segmentation to the link. Use native mode (now: {}), or switch it off at the sender: \
             `ethtool -K <its interface> tx-udp-segmentation off gso off tso off`. Counted as rx_gso_superframe.",
            self.info.mtu,
            self.info.mode
        );
    }
}

impl Port for XdpPort {
    /// Uses all ICMP messages of the host: the kernel does not know which frames were sent.
    fn undelivered(&self) -> io::Result<Option<Undelivered>> {
        self.steering.lock().unwrap_or_else(PoisonError::into_inner).within(Undelivered::of_host)?.map(Some)
    }

    fn info(&self) -> &PortInfo {
        &self.info
    }

    fn set_rx_wishes(&mut self, wishes: RxOptions) -> io::Result<()> {
        let mut steering = self.steering.lock().unwrap_or_else(PoisonError::into_inner);
        steering.take_others(wishes).map_err(io::Error::other)
    }

    fn set_vlans(&mut self, addresses: &[(IpAddr, u16)]) -> io::Result<()> {
        let name = self.info.interface.as_deref().unwrap_or_default();
        let mut steering = self.steering.lock().unwrap_or_else(PoisonError::into_inner);
        if !addresses.is_empty() {
            steering.within(|| vlan::show_tags(name))??;
        }
        steering.set_vlans(addresses).map_err(io::Error::other)
    }

    fn expect_frames(&mut self, frames: usize) {
        for queue in &mut self.queues {
            queue.receiver.expect(frames);
        }
    }

    fn rx_burst(&mut self, _now: Nanos) -> usize {
        let share = BURST / self.queues.len();
        let mut frames = 0;
        for queue in &mut self.queues {
            frames += queue.receiver.receive(share);
        }
        if !self.superframe_reported && self.queues.iter().any(|q| q.receiver.counters().gso_superframe > 0) {
            self.report_superframe();
        }
        frames
    }

    fn rx_frame(&self, i: usize) -> Received<'_> {
        let mut i = i;
        for queue in &self.queues {
            if i < queue.receiver.received() {
                return Received { frame: queue.receiver.frame(i), ip_id_hidden: false, arrived: None };
            }
            i -= queue.receiver.received();
        }
        panic!("frame {i} past the end of the burst");
    }

    fn rx_release(&mut self) {
        for queue in &mut self.queues {
            queue.receiver.release();
        }
    }

    fn tx_alloc(&mut self, len: usize) -> Option<TxId> {
        if len > self.info.max_frame {
            self.too_long += 1;
            return None;
        }
        self.queues[0].sender.alloc(len).map(TxId)
    }

    fn tx_frame(&mut self, id: &TxId) -> FrameMut<'_> {
        self.queues[0].sender.slot(id.0)
    }

    fn tx_commit(&mut self, id: TxId) {
        self.queues[0].sender.commit(id.0);
    }

    fn tx_cancel(&mut self, id: TxId) {
        self.queues[0].sender.cancel(id.0);
    }

    fn tx_flush(&mut self, _now: Nanos) -> io::Result<()> {
        self.queues[0].sender.flush()
    }

    /// Returns the fullest queue's numbers.
    fn rx_waiting(&mut self) -> Option<(usize, usize)> {
        let waiting =
            |receiver: &mut Receiver<SocketReceiveRings>| (receiver.waiting(), receiver.rings().size());
        self.queues.iter_mut().map(|queue| waiting(&mut queue.receiver)).max()
    }

    fn tx_pending(&self) -> bool {
        self.queues[0].sender.unsent()
    }

    fn event_fds(&self) -> Vec<BorrowedFd<'_>> {
        self.queues.iter().map(|queue| queue.receiver.rings().fd()).collect()
    }

    fn prepare_sleep(&mut self) -> bool {
        // Wake-ups need no arming: poll() on the socket wakes the driver if necessary.
        !self.queues.iter_mut().any(|queue| queue.receiver.waiting() > 0)
    }

    fn follow(&mut self, change: &LinkChange) -> io::Result<()> {
        match change {
            LinkChange::Addresses(addresses) => self.set_addresses(addresses).map_err(io::Error::other),
            LinkChange::Mtu(mtu) => {
                self.set_mtu(*mtu);
                Ok(())
            }
            LinkChange::Mac(mac) => {
                self.info.mac = *mac;
                let mut steering = self.steering.lock().unwrap_or_else(PoisonError::into_inner);
                steering.set_station(*mac).map_err(io::Error::other)
            }
        }
    }

    fn join(&mut self, group: IpAddr) -> io::Result<()> {
        let interface = self.info.interface.as_deref().unwrap_or_default();
        self.steering.lock().unwrap_or_else(PoisonError::into_inner).join(interface, group)
    }

    fn leave(&mut self, group: IpAddr) {
        self.steering.lock().unwrap_or_else(PoisonError::into_inner).leave(group);
    }

    fn steer(&mut self, flows: &[FlowMatch]) -> io::Result<()> {
        self.steering
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .set_flows(flows)
            .map_err(io::Error::other)
    }

    fn counters(&self, out: &mut Vec<(&'static str, u64)>) {
        let rx = |field: fn(&RxCounters) -> u64| -> u64 {
            self.queues.iter().map(|queue| field(queue.receiver.counters())).sum()
        };
        let tx = |field: fn(&TxCounters) -> u64| -> u64 {
            self.queues.iter().map(|queue| field(queue.sender.counters())).sum()
        };
        out.extend([
            ("rx_packets", rx(|c| c.packets)),
            ("rx_bytes", rx(|c| c.bytes)),
            ("rx_multi_buffer", rx(|c| c.multi_buffer)),
            ("rx_gso_superframe", rx(|c| c.gso_superframe)),
            ("rx_too_long", rx(|c| c.too_long)),
            ("tx_packets", tx(|c| c.packets)),
            ("tx_bytes", tx(|c| c.bytes)),
            ("tx_multi_buffer", tx(|c| c.multi_buffer)),
            ("tx_failed", tx(|c| c.failed)),
            ("tx_kicks", tx(|c| c.kicks)),
            ("tx_busy", tx(|c| c.busy)),
            ("tx_too_long", self.too_long),
            ("rx_kicks", rx(|c| c.kicks)),
            ("link_down", tx(|c| c.link_down)),
        ]);
        let not_taken = self.steering.lock().unwrap_or_else(PoisonError::into_inner).not_taken();
        out.extend(not_taken.map(|(name, count)| (name, if self.reports { count } else { 0 })));
        let kernel: Vec<_> = self.queues.iter().map(|queue| queue.receiver.rings().statistics()).collect();
        out.extend([
            ("rx_dropped", kernel.iter().map(|s| s.rx_dropped()).sum()),
            ("rx_ring_full", kernel.iter().map(|s| s.rx_ring_full()).sum()),
            ("rx_invalid_descs", kernel.iter().map(|s| s.rx_invalid_descs()).sum()),
            ("tx_invalid_descs", kernel.iter().map(|s| s.tx_invalid_descs()).sum()),
            ("fill_ring_empty", kernel.iter().map(|s| s.rx_fill_ring_empty_descs()).sum()),
        ]);
    }
}
