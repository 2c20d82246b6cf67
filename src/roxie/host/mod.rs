//! The application's interface: a small, safe verbs API.
//!
//! ```
//! use roxie::host::{ConnectOptions, Device, DeviceConfig};
//! use roxie::port::memory;
//! use roxie::verbs::{Access, SendWr};
//!
//! // Two devices joined in this process. `Device::open_xdp` and `Device::open_udp` take an interface instead.
//! let (near, far) = Device::memory_pair(&DeviceConfig::caller_only())?;
//!
//! let (pd, peer_pd) = (near.alloc_pd()?, far.alloc_pd()?);
//! let (cq, peer_cq) = (near.create_cq(16, None)?, far.create_cq(16, None)?);
//! let qp = pd.queue_pair(&cq).create()?;
//! let peer_qp = peer_pd.queue_pair(&peer_cq).create()?;
//!
//! // Each side needs the other's QPN, first PSN and address. Here both are at hand.
//! let (here, there) = (qp.endpoint(0)?, peer_qp.endpoint(0)?);
//! qp.connect(&here, &there, &ConnectOptions::default())?;
//! peer_qp.connect(&there, &here, &ConnectOptions::default())?;
//!
//! let source = pd.register(4096, Access::empty())?;
//! let target = peer_pd.register(4096, Access::LOCAL_WRITE)?;
//! source.write_at(0, b"hello")?;
//! peer_qp.post_recv(7, &[target.sge(0, 4096)])?;
//! qp.post_send(&SendWr::send(), &[source.sge(0, 5)])?;
//!
//! // Polling runs the NICs: with `caller_only`, no other thread does.
//! let received = loop {
//!     cq.poll_one();
//!     if let Some(completion) = peer_cq.poll_one() {
//!         break completion.ok()?;
//!     }
//! };
//! assert_eq!((received.wr_id, received.byte_len), (7, 5));
//! let mut bytes = [0; 5];
//! target.read_at(0, &mut bytes)?;
//! assert_eq!(&bytes, b"hello");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A program that spins on its memory while other programs compute should use [`roxie_base::allocator::Allocator`], as
//! `roxie` and the verbs library do.

mod ah_options;
#[cfg(feature = "tokio")]
mod async_cq;
mod channel;
mod claim;
mod connections;
mod cq;
mod datagram;
mod device;
mod device_name;
mod device_slot;
mod error;
mod event_log;
mod flow;
mod gid_table;
#[cfg(feature = "virtual-time")]
mod in_fabric;
mod inbox;
pub mod inspect;
mod interface_watcher;
mod kernel_neighbours;
mod knob_file;
mod lent_region;
mod local_gids;
mod memory;
mod open;
mod orphan_table;
mod owned_region;
mod packet_rule;
mod pd;
mod qp;
mod qp_builder;
mod queues;
mod rdma_cm;
mod resolve;
mod searches;
mod selective_repeat;
mod snapshot;
mod srq;
mod stack;
mod state;
mod vlans;
mod watched_interface;
mod xrcd;

// Types of lower layers in this layer's interface.
pub use roxie_engine::{Drive, EventSink, MAX_WATCHED, Wait, Watched};
pub use roxie_nic::nic::{
    ClassesError, CongestionConfig, ControlError, EcnPolicy, ObjectKind, QpEvent, QpHandle, QpRecord,
    QpStatus, SrqStatus, TrafficClasses, Trust,
};
pub use roxie_nic::shared::work_queue::Payload;
pub use roxie_nic::shared::{Armed, HostMemory, PageList, PostError};
pub use roxie_nic::transport::AckRequestPolicy;

pub use ah_options::AhOptions;
#[cfg(feature = "tokio")]
pub use async_cq::AsyncCompletionQueue;
pub use channel::CompletionChannel;
pub use cq::{CompletionQueue, WaitError};
pub use datagram::AddressHandle;
pub use device::{Device, DeviceConfig};
pub use device_name::{DeviceName, DeviceNameError};
pub use device_slot::DeviceSlot;
pub use error::{DeviceError, OpenError, ResolveError};
pub use flow::Flow;
pub use gid_table::{GidEntry, GidOrder, GidTable};
pub use knob_file::KnobFile;
pub use lent_region::LentRegion;
pub use memory::{FastRegion, MemoryRegion, MemoryWindow, WindowRange};
pub use owned_region::{NotRegistered, OwnedRegion};
pub use packet_rule::{Matched, PacketKind, PacketRule, PacketRules, RuleError};
pub use pd::ProtectionDomain;
pub use qp::{ConnectOptions, Endpoint, QueuePair};
pub use qp_builder::QpBuilder;
pub use rdma_cm::{
    Acceptor, Connection, ConnectionEnded, ConnectionManager, ConnectionRequest, DialError, DialOptions,
    Dialed, FirstMessage, FirstMessages, Offer, PortListener,
};
pub use resolve::Resolve;
pub use selective_repeat::SelectiveRepeat;
pub use srq::SharedReceiveQueue;
pub use stack::Stack;
pub use xrcd::XrcDomain;

// For the verbs library and its launcher. Subject to change without notice.
/// Settings of programs that no launcher has started: lines `NAME=VALUE`, written by `roxie enable` and read by the
/// verbs library.
#[doc(hidden)]
pub const SETTINGS_FILE: &str = "/etc/roxie.conf";
#[doc(hidden)]
pub use claim::PortPlan;
#[doc(hidden)]
pub use connections::{ConnectionService, Consumer, IgnoreEvents};
#[doc(hidden)]
pub use event_log::{EVENTS, EventLog, LoggedEvent, SharedPath};
#[doc(hidden)]
pub use orphan_table::{HandedOver, OrphanListener, OrphanTable};
