//! Roxie: a RoCE v2 NIC in software.
//!
//! It is a NIC from the doorbell to the wire, in userspace: queue pairs, retransmission and acknowledgements, registered memory, and
//! ports that move frames. Each layer can be used without those above it. This page goes through them from the top, with an example for
//! each way to use them. All run in one process and without any privilege.
//!
//! # A device: `host` and `verbs`
//!
//! [`host`] is what an application wants: [`host::Device`] opens on an interface through AF_XDP ([`host::Device::open_xdp`]) or UDP
//! sockets ([`host::Device::open_udp`]), or joined to another one in memory. [`verbs`] are the nouns: work requests, completions,
//! attributes, states. Two devices, and a WRITE that the other side's application sees nothing of but the bytes:
//!
//! ```
//! use roxie::host::{ConnectOptions, Device, DeviceConfig};
//! use roxie::verbs::{Access, QpCaps, SendWr, WcStatus, WrOpcode};
//!
//! let (near, far) = Device::memory_pair(&DeviceConfig::caller_only())?;
//! let [(pd, cq), (far_pd, far_cq)] =
//!     [&near, &far].map(|device| (device.alloc_pd().unwrap(), device.create_cq(16, None).unwrap()));
//! let qp = near.create_qp(&pd, &cq, &cq, QpCaps::default(), true)?;
//! let far_qp = far.create_qp(&far_pd, &far_cq, &far_cq, QpCaps::default(), true)?;
//!
//! // What two programs tell one another by other means: numbers, addresses, and where the memory is.
//! let (here, there) = (qp.endpoint(0)?, far_qp.endpoint(0)?);
//! qp.connect(&here, &there, &ConnectOptions::default())?;
//! far_qp.connect(&there, &here, &ConnectOptions::default())?;
//! let source = pd.register(4096, Access::empty())?;
//! let target = far_pd.register(4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
//!
//! source.write_at(0, b"one-sided")?;
//! let write = SendWr {
//!     opcode: WrOpcode::Write,
//!     remote_addr: target.address(),
//!     rkey: target.rkey(),
//!     ..SendWr::default()
//! };
//! qp.post_send(&write, &[source.sge(0, 9)])?;
//!
//! // Who polls turns the NIC. With `caller_only` nobody else does, so this thread polls both ends.
//! let done = loop {
//!     far_cq.poll_one();
//!     if let Some(completion) = cq.poll_one() {
//!         break completion;
//!     }
//! };
//! assert_eq!(done.status, WcStatus::Success);
//! let mut bytes = [0; 9];
//! target.read_at(0, &mut bytes)?;
//! assert_eq!(&bytes, b"one-sided");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`host`] opens with another example, of a SEND. The folder `examples` of the repository has programs to copy: messages, RPC, look-ups,
//! connections by address.
//!
//! # Whole NICs in virtual time: `sim`
//!
//! The NIC reads no clock and draws no random numbers. So [`sim`] can turn the same code by hand: [`sim::Host`] is a NIC with its port,
//! [`sim::Pair`] joins two, [`sim::fabric`] any number with switches and queues between. A seed decides which frames are lost, and a
//! run is the same each time. [`forward`] lets such a switch stand between real interfaces.
//!
//! ```
//! use roxie::port::fault::{FaultConfig, FaultPort};
//! use roxie::sim::{Connected, Host, NicConfig, Pair, Payload, joined_ports};
//! use roxie::time::Nanos;
//! use roxie::verbs::{Access, Mtu, QpCaps, RKey, SendWr, WcStatus, WrOpcode};
//!
//! /// Writes 64 KiB over a link that loses one frame in twenty: packets that were sent again, and how long it took.
//! fn cross(seed: u64) -> Result<(u64, Nanos), Box<dyn std::error::Error>> {
//!     const LENGTH: usize = 64 << 10;
//!     let (near, far) = joined_ports(1500, None);
//!     let lossy: FaultConfig = format!("drop=0.05,dir=tx,seed={seed}").parse()?;
//!     let near = Box::new(FaultPort::new(near, &lossy));
//!     let mut pair =
//!         Pair::new(Host::new(1, NicConfig::default(), near), Host::new(2, NicConfig::default(), far));
//!     let from = pair.a.register(LENGTH, Access::READ_WRITE);
//!     let to = pair.b.register(LENGTH, Access::READ_WRITE);
//!     let qp_a = pair.a.create_qp(QpCaps::default(), true, 16);
//!     let qp_b = pair.b.create_qp(QpCaps::default(), true, 16);
//!     let (way, back) = (pair.a.path(2, false), pair.b.path(1, false));
//!     let peer = qp_b.handle.qpn;
//!     let told = Connected { peer, way, path_mtu: Mtu::Mtu1024, timeout: 10, rd_atomic: 1 };
//!     pair.a.connect(&qp_a, &told)?;
//!     pair.b.connect(&qp_b, &Connected { peer: qp_a.handle.qpn, way: back, ..told })?;
//!
//!     let write = SendWr {
//!         opcode: WrOpcode::Write,
//!         remote_addr: to.address,
//!         rkey: RKey(to.key),
//!         ..SendWr::default()
//!     };
//!     pair.a.post_send(&qp_a, &write, Payload::Sges(&[from.sge(0, LENGTH as u32)]))?;
//!     assert!(pair.run(Nanos::from_millis(10_000)), "all is quiet within ten seconds of virtual time");
//!     assert_eq!(pair.a.poll_cq(&qp_a).map(|wc| wc.status), Some(WcStatus::Success));
//!     let counters = pair.a.worker.counters();
//!     let again = counters.iter().find(|(name, _)| *name == "retransmitted_packets").map_or(0, |(_, n)| *n);
//!     Ok((again, pair.now))
//! }
//!
//! let (again, time) = cross(7)?;
//! assert!(again > 0, "something was lost, and came all the same");
//! assert_eq!(cross(7)?, (again, time), "a seed decides everything");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Frames and bytes: `port` and `wire`
//!
//! A [`port::Port`] moves frames: [`port::xdp`], [`port::udp`], [`port::memory`], or one of your own. [`port::fault`], [`port::pcap`] and
//! [`port::loopback`] stack on any. [`wire`] makes types of bytes and bytes of types; it needs nothing else of the crate but [`frame`].
//! Here a NIC sends to a port that nobody but this test is at, which sees what leaves:
//!
//! ```
//! use roxie::sim::{Connected, Host, NicConfig, Payload, joined_ports};
//! use roxie::time::Nanos;
//! use roxie::verbs::{Mtu, QpCaps, Qpn, SendWr};
//! use roxie::wire::{Icrc, Opcode, parse};
//!
//! let (port, mut link) = joined_ports(1500, None);
//! let mut host = Host::new(1, NicConfig::default(), port);
//! let qp = host.create_qp(QpCaps { max_inline: 64, ..QpCaps::default() }, true, 16);
//! let way = host.path(2, false);
//! let told = Connected { peer: Qpn::new(0x77), way, path_mtu: Mtu::Mtu1024, timeout: 14, rd_atomic: 1 };
//! host.connect(&qp, &told)?;
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
//!
//! [`capture`] reads and writes pcap and pcapng. [`netdev`] asks the kernel for interfaces, addresses and neighbours. [`congestion`] says how
//! fast a queue pair may send.
//!
//! # What may change
//!
//! Before version 1.0 any release may change the API; `CHANGELOG.md` says what did. Modules that these pages do not show (`shared`,
//! `transport`, `nic`, `cm`, `engine` and some small ones) are public only because the tests, benchmarks and programs of this repository
//! reach into them. They change without notice. What an application needs of them, [`host`] and [`sim`] hand on.
//!
//! How all of it hangs together is in [`architecture`].
#![deny(unsafe_code)]
#![warn(clippy::missing_errors_doc)]

// Modules in the order in which data flows, from the wire up. Each may use those before it; `tests/tidy.rs` holds it to that.

// What everything stands on.
mod addressee;
pub mod allocator;
#[doc(hidden)]
pub mod descriptors;
pub mod flow;
pub mod frame;
pub mod limits;
#[doc(hidden)]
pub mod random;
pub mod roster;
#[doc(hidden)]
pub mod threads;
pub mod time;
#[doc(hidden)]
pub mod timer;

// Bytes.
pub mod capture;
pub mod netdev;
pub mod port;
pub mod wire;

// The NIC.
pub mod verbs;

#[doc(hidden)]
pub mod shared;

pub mod congestion;

#[doc(hidden)]
pub mod transport;

#[doc(hidden)]
pub mod nic;

#[doc(hidden)]
pub mod cm;

// Who runs it, and what an application sees.
#[doc(hidden)]
pub mod engine;

#[doc(hidden)]
pub mod remote;
pub mod sim;

#[doc(hidden)]
pub mod lab;

pub mod forward;

pub mod host;

pub mod daemon;

#[doc = include_str!("ARCHITECTURE.md")]
pub mod architecture {}
