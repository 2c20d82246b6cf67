//! A custom port: a NIC on any link that moves frames.
//!
//! ```text
//! cargo run --example own_port
//! ```
//!
//! A [`Port`] moves Ethernet frames and knows no RDMA. An implementation of the trait puts a NIC on a new kind of link:
//! a serial line, a simulator, the rings of another driver. The port of this example sends frames as datagrams over a
//! pair of Unix sockets. Two NICs on two such ports then execute a READ, and the example counts its frames.

use std::collections::VecDeque;
use std::error::Error;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use roxie::frame::{ETHERNET_HEADER, Frame, FrameMut};
use roxie::host::{ConnectOptions, Device, DeviceConfig, Resolve, ResolveError};
use roxie::netdev::RouteKey;
use roxie::port::{BURST, Carries, Port, PortInfo, Received, TxId};
use roxie::time::Nanos;
use roxie::verbs::{Access, SendWr};

/// L3 bytes of a frame.
const MTU: usize = 1500;
/// Frames that may wait for the link.
const SLOTS: u32 = 256;
const LENGTH: usize = 64 << 10;

/// Frames over a Unix socket.
struct SocketPort {
    info: PortInfo,
    socket: UnixDatagram,
    /// The frame received last.
    burst: Vec<Vec<u8>>,
    /// Slots, by number: the frame that is being written.
    slots: Vec<Vec<u8>>,
    free: Vec<u32>,
    /// Slots that were committed and have not left.
    waiting: VecDeque<u32>,
    sent: u64,
}

impl SocketPort {
    fn new(socket: UnixDatagram, number: u8) -> io::Result<SocketPort> {
        socket.set_nonblocking(true)?;
        let info = PortInfo {
            name: "socket".into(),
            interface: None,
            mode: "frames as datagrams of a Unix socket".into(),
            mac: station(number),
            mtu: MTU,
            max_frame: MTU + ETHERNET_HEADER,
            carries: Carries::AnyFrames,
            has_trains: false,
        };
        let slots = vec![Vec::new(); SLOTS as usize];
        let free = (0..SLOTS).collect();
        Ok(SocketPort { info, socket, burst: Vec::new(), slots, free, waiting: VecDeque::new(), sent: 0 })
    }
}

impl Port for SocketPort {
    fn info(&self) -> &PortInfo {
        &self.info
    }

    fn rx_burst(&mut self, _now: Nanos) -> usize {
        while self.burst.len() < BURST {
            let mut frame = vec![0; self.info.max_frame];
            let Ok(length) = self.socket.recv(&mut frame) else { break };
            frame.truncate(length);
            self.burst.push(frame);
        }
        self.burst.len()
    }

    fn rx_frame(&self, i: usize) -> Received<'_> {
        Received { frame: Frame::whole(&self.burst[i]), ip_id_hidden: false, arrived: None }
    }

    fn rx_release(&mut self) {
        self.burst.clear();
    }

    fn tx_alloc(&mut self, len: usize) -> Option<TxId> {
        if len > self.info.max_frame {
            return None;
        }
        let slot = self.free.pop()?;
        self.slots[slot as usize] = vec![0; len];
        Some(TxId(slot))
    }

    fn tx_frame(&mut self, id: &TxId) -> FrameMut<'_> {
        FrameMut { a: &mut self.slots[id.0 as usize], b: &mut [] }
    }

    fn tx_commit(&mut self, id: TxId) {
        self.waiting.push_back(id.0);
    }

    fn tx_cancel(&mut self, id: TxId) {
        self.free.push(id.0);
    }

    /// Frames for which the socket has no room stay, and are sent by a later kick.
    fn tx_flush(&mut self, _now: Nanos) -> io::Result<()> {
        while let Some(slot) = self.waiting.front() {
            match self.socket.send(&self.slots[*slot as usize]) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                other => other?,
            };
            self.sent += 1;
            self.free.extend(self.waiting.pop_front());
        }
        Ok(())
    }

    fn tx_pending(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Returns the descriptors that wake the NIC while it sleeps.
    fn event_fds(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.socket.as_fd()]
    }

    fn counters(&self, out: &mut Vec<(&'static str, u64)>) {
        out.push(("tx_packets", self.sent));
    }
}

/// Returns the MAC address of a station.
fn station(number: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, number]
}

fn address(number: u8) -> IpAddr {
    IpAddr::from([192, 0, 2, number])
}

/// Returns the station with an address. On Ethernet, ARP finds it.
struct LastByte;

impl Resolve for LastByte {
    fn resolve(&self, key: RouteKey) -> Result<[u8; 6], ResolveError> {
        Ok(match key.destination {
            IpAddr::V4(v4) => station(v4.octets()[3]),
            IpAddr::V6(v6) => station(v6.octets()[15]),
        })
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let (one, other) = UnixDatagram::pair()?;
    let open = |socket, number| -> Result<Device, Box<dyn Error>> {
        let port = Box::new(SocketPort::new(socket, number)?);
        let (resolver, config) = (Box::new(LastByte), DeviceConfig::default());
        Ok(Device::new(&format!("socket{number}"), port, [address(number)], resolver, &config)?)
    };
    let (local, remote) = (open(one, 1)?, open(other, 2)?);

    let (local_pd, remote_pd) = (local.alloc_pd()?, remote.alloc_pd()?);
    let (local_cq, remote_cq) = (local.create_cq(4, None)?, remote.create_cq(4, None)?);
    let local_qp = local_pd.queue_pair(&local_cq).create()?;
    let remote_qp = remote_pd.queue_pair(&remote_cq).create()?;
    let (here, there) = (local_qp.endpoint(0)?, remote_qp.endpoint(0)?);
    local_qp.connect(&here, &there, &ConnectOptions::default())?;
    let access = Access::REMOTE_READ;
    remote_qp.connect(&there, &here, &ConnectOptions { access, ..ConnectOptions::default() })?;

    let source = remote_pd.register(LENGTH, Access::LOCAL_WRITE | Access::REMOTE_READ)?;
    let bytes: Vec<u8> = (0..LENGTH).map(|i| (i * 31 + i / 251) as u8).collect();
    source.write_at(0, &bytes)?;
    let target = local_pd.register(LENGTH, Access::LOCAL_WRITE)?;
    let (remote_addr, rkey) = (source.address(), source.rkey());
    let read = SendWr::read(remote_addr, rkey).signaled();
    local_qp.post_send(&read, &[target.sge(0, LENGTH as u32)])?;
    local_cq.wait(Duration::from_secs(10))?.ok()?;
    if target.to_vec(0, LENGTH)? != bytes {
        return Err("other bytes than those that were sent".into());
    }
    println!("{LENGTH} bytes were read in {} frames over a Unix socket", remote.counter("tx_packets"));
    Ok(())
}
