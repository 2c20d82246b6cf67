//! Options of commands that use a device: which port and addresses, how it sends, and how it is opened.
//!
//! [`DeviceOptions`] are the options, and [`Opened`] is the device that they select. Programs for which no XDP is to be
//! compiled do without this crate: it has all ports.

#![deny(unsafe_code)]

mod bare;
pub mod bytes;
pub mod congestion;
mod gids;
pub mod interface;
mod open;
mod options;
pub mod profile;
mod wait;

pub use bare::BarePort;
pub use gids::{first_gid, no_gid};
pub use open::Opened;
pub use options::{DeviceOptions, ModeName, PortKind, THREAD};
pub use wait::{IdleYield, linger};
