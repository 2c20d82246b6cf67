//! Roxie: a RoCE v2 NIC in software.
//!
//! Roxie implements the whole NIC in userspace, from the doorbell to the wire: queue pairs, retransmission
//! and acknowledgements, registered memory, and ports that move frames. Each layer can be used without those
//! above it. The following sections start at the top layer, with an example for each use. All examples run
//! in one process and without privileges.
//!
//! # A device: `host` and `verbs`
//!
//! [`host`] is the API of applications. A [`host::Device`] is opened on an interface, through AF_XDP
//! ([`host::Device::open_xdp`]) or UDP sockets ([`host::Device::open_udp`]), or is joined to another device
//! in memory. [`verbs`] has the types: work requests, completions, attributes, states. The example connects
//! two devices. A WRITE changes memory of the second one, without any action of its application:
//!
//! ```
//! use roxie::host::{ConnectOptions, Device, DeviceConfig};
//! use roxie::verbs::{Access, SendWr};
//!
//! let (near, far) = Device::memory_pair(&DeviceConfig::caller_only())?;
//! let [(pd, cq), (far_pd, far_cq)] =
//!     [&near, &far].map(|device| (device.alloc_pd().unwrap(), device.create_cq(16, None).unwrap()));
//! let qp = pd.queue_pair(&cq).create()?;
//! let far_qp = far_pd.queue_pair(&far_cq).create()?;
//!
//! // Two programs would exchange these endpoints, and address and rkey of the memory, out of band.
//! let (here, there) = (qp.endpoint(0)?, far_qp.endpoint(0)?);
//! qp.connect(&here, &there, &ConnectOptions::default())?;
//! far_qp.connect(&there, &here, &ConnectOptions::default())?;
//! let source = pd.register(4096, Access::empty())?;
//! let target = far_pd.register(4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
//!
//! source.write_at(0, b"one-sided")?;
//! let write = SendWr::write(target.address(), target.rkey()).signaled();
//! qp.post_send(&write, &[source.sge(0, 9)])?;
//!
//! // With `caller_only`, the NIC runs only while the application polls, so this thread polls both ends.
//! let done = loop {
//!     far_cq.poll_one();
//!     if let Some(completion) = cq.poll_one() {
//!         break completion;
//!     }
//! };
//! done.ok()?;
//! let mut bytes = [0; 9];
//! target.read_at(0, &mut bytes)?;
//! assert_eq!(&bytes, b"one-sided");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The page of [`host`] has an example of a SEND. The folder `examples` of the repository has programs to
//! copy: messages, RPC, look-ups, connections by address.
//!
//! # Whole NICs in virtual time: `sim`
//!
//! The NIC reads no clock and draws no random numbers, so [`sim`] can run the same code in virtual time. A
//! [`sim::Host`] is a NIC with its port, a [`sim::Pair`] joins two hosts, and a [`sim::fabric`] joins any
//! number by switches and queues. A seed determines which frames are lost, and a run with the same seed is
//! identical. [`forward`] connects such a fabric to real interfaces.
//!
//! ```
//! use roxie::port::fault::{FaultConfig, FaultPort};
//! use roxie::sim::{Connected, Host, NicConfig, Pair, Payload, joined_ports};
//! use roxie::time::Nanos;
//! use roxie::verbs::{Access, Mtu, QpCaps, RKey, SendWr, WcStatus};
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
//!     let qp_a = pair.a.create_qp(QpCaps::default(), true, 16);
//!     let qp_b = pair.b.create_qp(QpCaps::default(), true, 16);
//!     let (way, back) = (pair.a.path(2, false), pair.b.path(1, false));
//!     let peer = qp_b.handle.qpn;
//!     let connection = Connected { peer, path: way, path_mtu: Mtu::Mtu1024, timeout: 10, rd_atomic: 1 };
//!     pair.a.connect(&qp_a, &connection)?;
//!     pair.b.connect(&qp_b, &Connected { peer: qp_a.handle.qpn, path: back, ..connection })?;
//!
//!     let write = SendWr::write(to.address, RKey(to.key)).signaled();
//!     pair.a.post_send(&qp_a, &write, Payload::Sges(&[from.sge(0, LENGTH as u32)]))?;
//!     assert!(pair.run(Nanos::from_millis(10_000)), "the hosts are idle within 10 s of virtual time");
//!     assert_eq!(pair.a.poll_cq(&qp_a).map(|wc| wc.status), Some(WcStatus::Success));
//!     let counters = pair.a.worker.counters();
//!     let again = counters.iter().find(|(name, _)| *name == "retransmitted_packets").map_or(0, |(_, n)| *n);
//!     Ok((again, pair.now))
//! }
//!
//! let (again, time) = cross(7)?;
//! assert!(again > 0, "frames were lost and retransmitted");
//! assert_eq!(cross(7)?, (again, time), "a seed determines the run");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Frames and bytes: `port` and `wire`
//!
//! A [`port::Port`] moves frames: [`port::xdp`], [`port::udp`], [`port::memory`], or an implementation of
//! your own. [`port::fault`], [`port::pcap`] and [`port::loopback`] stack on any port. [`wire`] converts
//! between bytes and types, and depends only on [`frame`]. In the example, a NIC sends to a port without a
//! peer, and the test reads the frame:
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
//!
//! [`capture`] reads and writes pcap and pcapng. [`netdev`] queries the kernel for interfaces, addresses and
//! neighbours. [`congestion`] controls the rate at which a queue pair sends.
//!
//! # API stability
//!
//! Before version 1.0, any release may change the API; `CHANGELOG.md` lists the changes. Modules that are
//! hidden from these pages (`shared`, `transport`, `nic`, `cm`, `engine` and some small ones) are public only
//! for the tests, benchmarks and programs of this repository, and change without notice. [`host`] and [`sim`]
//! re-export the parts of them that an application needs.
//!
//! The structure of the whole is described in [`architecture`].
#![deny(unsafe_code)]
#![warn(clippy::missing_errors_doc)]

// Modules in the order of the data flow, from the wire up. A module may use only those before it;
// `tests/tidy.rs` checks the order.

// Foundations.
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
pub mod stderr_log;
#[doc(hidden)]
pub mod threads;
pub mod time;
#[doc(hidden)]
pub mod timer;

// Frames, bytes and ports.
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

// Running the NIC, and the API of applications.
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
