//! NVMe over Fabrics over RDMA: the messages, a controller that knows no transport, and both ends on a Roxie device.
//!
//! Read [`command`] first, then [`controller::Queue`], which says in three calls what a target does with a capsule.
//! Sources: NVMe base specification 1.4, NVMe over Fabrics 1.1, NVMe RDMA transport specification 1.0. All fields are
//! little-endian.
//!
//! [`command`], [`response`], [`sgl`], [`cm`], [`connect`], [`identify`] and [`discovery`] are messages, those of
//! `roxie-messages`. [`subsystem`] has namespaces on [`storage`], and hosts that may use them. The controller reads no
//! clock and opens no socket. Target and initiator (feature `rdma`) stand on `roxie-ulp`.

#![deny(unsafe_code)]

pub mod controller;
#[cfg(feature = "rdma")]
pub mod initiator;
pub mod nqn;
pub mod storage;
pub mod subsystem;
#[cfg(feature = "rdma")]
pub mod target;

#[cfg(test)]
mod hostile;

pub use roxie_messages::nvme::{
    Command, Response, Sgl, Status, cm, command, connect, discovery, identify, response, sgl, status,
};
