//! Roxie: a RoCE v2 NIC in software.
//!
//! Roxie implements the whole NIC in userspace, from the doorbell to the wire: queue pairs, retransmission
//! and acknowledgements, registered memory, and ports that move frames. This crate is what a program adds. The
//! layers below it are crates of their own, which it re-exports, and which can be used without those above them.
//!
//! # A device: `host` and `verbs`
//!
//! [`host`] is the API of applications. [`host::Device::open`] opens a device on an interface, and [`verbs`] has the
//! types: work requests, completions, attributes, states. A client of a server that listens with `rdma_cm` or
//! [`host::PortListener::serve`]:
//!
#![cfg_attr(feature = "udp", doc = "```no_run")]
#![cfg_attr(not(feature = "udp"), doc = "```ignore")]
//! use std::time::Duration;
//!
//! use roxie::host::{ConnectionManager, Device};
//! use roxie::verbs::SendWr;
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let device = Device::open("eth0")?;
//!     let client = ConnectionManager::start(&device)?.dial("192.0.2.1:7174".parse()?)?;
//!     client.connection.qp().post_send_inline(&SendWr::send().signaled(), b"hello")?;
//!     client.cq.wait(Duration::from_secs(10))?.ok()?;
//!     client.connection.disconnect()?;
//!     Ok(())
//! }
//! ```
//!
//! Two devices joined in memory, without a network. A WRITE changes memory of the second one, without any action of its
//! application:
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
//! # Features
//!
//! | feature | adds | takes to build |
//! | --- | --- | --- |
//! | `udp` (default) | devices on UDP sockets | Rust |
//! | `pinning` (default) | threads of devices that stay on one core ([`host::Drive::Thread`]) | |
//! | `xdp` | devices on AF_XDP | clang, libclang, the headers of libbpf |
//! | `tokio` | completions and connections that tasks await | tokio |
//! | `virtual-time` | devices on simulated networks (`host::Device::in_fabric`) | |
//!
//! The library prints nothing. It reports what a user should know as `tracing` events; [`stderr_log`] prints them.
//!
//! `udp` is the default because it builds and runs everywhere, without privileges. With neither, there are devices in
//! memory, and the counters of a NIC in another process (`roxie nic`).
//!
//! # Crates
//!
//! | crate | here | alone for |
//! | --- | --- | --- |
//! | `roxie-wire` | [`wire`], [`capture`], [`frame`] | reading and writing frames and captures, without `std` too |
//! | `roxie-base` | [`time`], [`limits`], [`flow`], [`protocol`], [`roster`] | the crates above it |
//! | `roxie-port` | [`port`], [`netdev`] | moving frames over AF_XDP or UDP sockets |
//! | `roxie-nic` | [`verbs`], [`congestion`] | a NIC in a program that moves frames by itself |
//! | `roxie-engine` | (hidden) | running that NIC on a port |
//! | `roxie-sim` | (not here) | whole NICs and switches in virtual time: tests of a program, experiments |
//! | `roxie-daemon` | (not here) | a NIC that serves other processes |
//! | `roxie-nvmeof` | (not here) | NVMe over Fabrics: capsules, controller, target, initiator |
//! | `roxie-nfs` | (not here) | NFS version 3 over RDMA: messages, client, read-only server |
//! | `roxie-ulp` | (not here) | a protocol on messages and keyed memory, as the two above are |
//! | `roxie-conform-bench` | (not here) | a conformance bench for RoCE v2 peers |
//! | `roxie-lab-theory` | (not here) | the computations of a network lab |
//! | `roxie-cli` | (not here) | the program `roxie` |
//!
//! # API stability
//!
//! Before version 1.0, any release may change the API; `CHANGELOG.md` lists the changes. Modules that are
//! hidden from these pages (`shared`, `transport`, `nic`, `cm`, `engine` and some small ones) are public only
//! for the tests, benchmarks and programs of this repository, and change without notice. [`host`] re-exports the
//! parts of them that an application needs.
//!
//! The structure of the whole is described in [`architecture`].
#![deny(unsafe_code)]
#![warn(clippy::missing_errors_doc)]

// The layers below, from the wire up, under the names that users of this crate know.
#[doc(hidden)]
pub use roxie_base::{allocator, descriptors, random, tcp, threads};
#[doc(inline)]
pub use roxie_base::{flow, limits, protocol, roster, text, time};
#[doc(hidden)]
pub use roxie_engine as engine;
#[doc(hidden)]
pub use roxie_nic::{cm, nic, shared, timer, transport};
#[doc(inline)]
pub use roxie_nic::{congestion, profile, verbs};
#[doc(inline)]
pub use roxie_port as port;
#[doc(inline)]
pub use roxie_port::netdev;
#[doc(inline)]
pub use roxie_wire as wire;
#[doc(inline)]
pub use roxie_wire::{capture, frame};

pub mod stderr_log;

#[doc(hidden)]
pub mod remote;

pub mod host;

#[doc = include_str!("../ARCHITECTURE.md")]
pub mod architecture {}
