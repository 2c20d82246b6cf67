//! NICs in virtual time: the [`roxie_engine::Worker`] that drives hardware, run step by step.
//!
//! ```
//! use roxie_port::fault::{FaultConfig, FaultPort};
//! use roxie_sim::{Connected, Host, NicConfig, Pair, Payload, joined_ports};
//! use roxie_base::time::Nanos;
//! use roxie_nic::verbs::{Access, Mtu, QpCaps, RKey, SendWr, WcStatus, WrOpcode};
//!
//! /// Writes 64 KiB over a link that loses 5 % of the frames. Returns the number of retransmissions, and the
//! /// time taken.
//! fn cross(seed: u64) -> Result<(u64, Nanos), Box<dyn std::error::Error>> {
//!     const LENGTH: usize = 64 << 10;
//!     let (near, far) = joined_ports(1500, None);
//!     let lossy: FaultConfig = format!("drop=0.05,dir=tx,seed={seed}").parse()?;
//!     let near = Box::new(FaultPort::new(near, &lossy));
//!     let mut pair =
//!         Pair::new(Host::new(1, NicConfig::default(), near), Host::new(2, NicConfig::default(), far));
//!     let from = pair.a.register(LENGTH, Access::READ_WRITE);
//!     let to = pair.b.register(LENGTH, Access::READ_WRITE);
//!     let qp_a = pair.a.queue_pair().signal_all().create();
//!     let qp_b = pair.b.queue_pair().signal_all().create();
//!     let (way, back) = (pair.a.path(2, false), pair.b.path(1, false));
//!     let peer = qp_b.handle.qpn;
//!     let connection = Connected { peer, path: way, path_mtu: Mtu::Mtu1024, timeout: 10, rd_atomic: 1 };
//!     pair.a.connect(&qp_a, &connection)?;
//!     pair.b.connect(&qp_b, &Connected { peer: qp_a.handle.qpn, path: back, ..connection })?;
//!
//!     let write = SendWr {
//!         opcode: WrOpcode::Write,
//!         remote_addr: to.address,
//!         rkey: RKey(to.key),
//!         ..SendWr::default()
//!     };
//!     pair.a.post_send(&qp_a, &write, Payload::Sges(&[from.sge(0, LENGTH as u32)]))?;
//!     assert!(pair.run(Nanos::from_millis(10_000)), "the hosts are idle within 10 s of virtual time");
//!     assert_eq!(pair.a.poll_cq(&qp_a).map(|wc| wc.status), Some(WcStatus::Success));
//!     Ok((pair.a.counter("retransmitted_packets"), pair.now))
//! }
//!
//! let (again, time) = cross(7)?;
//! assert!(again > 0, "frames were lost and retransmitted");
//! assert_eq!(cross(7)?, (again, time), "a seed determines the run");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A [`Host`] is a NIC, its port and the application's side of its queues, without threads or clocks. [`Pair`] joins
//! two hosts by any two ports, [`fabric::Fabric`] any number of hosts by links and switches. `Pair` and `Fabric`
//! advance time to the next due event. Results are a function of the seeds alone. `scenario` (feature `scenario`) reads
//! networks and traffic from a file; `forward` (feature `forward`) connects a fabric to real interfaces.
//!
//! A port without a peer shows what a NIC sends:
//!
//! ```
//! use roxie_sim::{Connected, Host, NicConfig, Payload, joined_ports};
//! use roxie_base::time::Nanos;
//! use roxie_nic::verbs::{Mtu, QpCaps, Qpn, SendWr};
//! use roxie_wire::{Icrc, Opcode, parse};
//!
//! let (port, mut link) = joined_ports(1500, None);
//! let mut host = Host::new(1, NicConfig::default(), port);
//! let qp = host.queue_pair().caps(QpCaps { max_inline: 64, ..QpCaps::default() }).signal_all().create();
//! let way = host.path(2, false);
//! let connection = Connected { peer: Qpn::new(0x77), path: way, path_mtu: Mtu::Mtu1024, timeout: 14, rd_atomic: 1 };
//! host.connect(&qp, &connection)?;
//! host.post_send(&qp, &SendWr::default(), Payload::Inline(b"hello"))?;
//! host.poll(Nanos(1));
//!
//! assert_eq!(link.rx_burst(Nanos(2)), 1);
//! let received = link.rx_frame(0);
//! let packet = parse(&received.frame)?;
//! assert_eq!((packet.bth.opcode, packet.bth.dest_qp), (Opcode::RC_SEND_ONLY, Qpn::new(0x77)));
//! assert_eq!(packet.check_icrc(&received.frame), Icrc::Ok);
//! println!("{packet}");
//! link.rx_release();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![deny(unsafe_code)]
#![warn(clippy::missing_errors_doc)]

mod address;
mod connection;
pub mod events;
pub mod fabric;
#[cfg(feature = "forward")]
pub mod forward;
mod host;
#[cfg(feature = "scenario")]
pub mod scenario;

// Types of the layers below that this API takes and returns.
pub use roxie_nic::nic::{
    Answer, Command, ControlError, MemoryCommand, NicConfig, QpStatus, ReceiveSource, SrqStatus,
};
pub use roxie_nic::shared::work_queue::Payload;
pub use roxie_nic::shared::{CompletionRing, HostMemory, PostError};

pub use connection::Connected;
pub use host::{Host, HostQp, HostQpBuilder, HostRegion, HostSrq};

use roxie_base::time::Nanos;
use roxie_port::Port;

/// Virtual duration of a pass. Simultaneous events may be this far apart.
const PASS: Nanos = Nanos(500);

/// Two hosts and one clock.
#[derive(Debug)]
pub struct Pair {
    /// The end that runs first in each step.
    pub a: Host,
    /// The end that runs second.
    pub b: Host,
    /// The current time of both ends.
    pub now: Nanos,
    quiet_passes: u32,
}

impl Pair {
    /// Joins two hosts. Their ports must already be connected to each other.
    pub fn new(a: Host, b: Host) -> Pair {
        Pair { a, b, now: Nanos::ZERO, quiet_passes: 0 }
    }

    /// Runs one pass of each host, then advances time: by one pass if a host did something, else to the next deadline.
    /// Returns false if nothing is pending and only the applications can continue.
    pub fn step(&mut self) -> bool {
        let progress = [self.a.worker.poll(self.now), self.b.worker.poll(self.now)];
        if progress.iter().any(|p| !p.is_idle()) {
            self.quiet_passes = 0;
            self.now = self.now + PASS;
            return true;
        }
        // A frame sent by one host in its pass is received by the other host in the next.
        self.quiet_passes += 1;
        if self.quiet_passes < 2 {
            return true;
        }
        let next = self.a.worker.next_deadline().min(self.b.worker.next_deadline());
        if next == Nanos::MAX {
            return false;
        }
        self.now = next.max(self.now + PASS);
        true
    }

    /// Steps until nothing is pending or `limit` is reached. Returns true if nothing is pending.
    pub fn run(&mut self, limit: Nanos) -> bool {
        while self.now < limit {
            if !self.step() {
                return true;
            }
        }
        false
    }
}

/// Creates two ports joined by memory, with the addresses of hosts 1 and 2 ([`Host::address`]).
pub fn joined_ports(mtu: usize, split: Option<usize>) -> (Box<dyn Port>, Box<dyn Port>) {
    use roxie_port::memory::{MemoryConfig, pair};
    let end = |n: u16| MemoryConfig {
        mac: Host::mac(n),
        mtu,
        split,
        name: format!("sim{n}"),
        ..Default::default()
    };
    let (a, b) = pair(end(1), end(2));
    (Box::new(a), Box::new(b))
}
