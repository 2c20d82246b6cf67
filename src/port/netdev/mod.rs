//! Network interfaces as the kernel knows them: links, addresses, routes, neighbours, namespaces.
//!
//! Uses rtnetlink over plain blocking sockets. Read [`Interface`] first, then [`Watch`], which follows changes of one
//! interface, and [`Neighbours`], which resolves IP addresses to station addresses. [`NetNs`] and [`Links`] build the
//! networks of tests, labs and the interop runner.
//!
//! A netlink socket belongs to the namespace of the thread that opened it. Therefore every handle acts on the caller's
//! namespace at the time of opening, and may move between threads afterwards.

mod bond;
pub mod ethtool;
mod genetlink;
mod interface;
mod link;
mod membership;
pub mod neighbour;
mod neighbours;
mod netlink;
mod netns;
mod reach;
mod tap;
mod vlan;
mod watch;

use std::io;

pub use bond::Bond;
pub use interface::{IfAddr, Interface, link_speed};
pub use link::Links;
pub use membership::Membership;
pub use neighbour::RouteKey;
pub use neighbours::{Neighbours, resolve};
pub use netns::NetNs;
pub use reach::Reach;
pub use tap::Tap;
pub use vlan::{VlanLink, Vlans, vlan_links};
pub use watch::{Change, Watch};

/// Errors of requests to the kernel about interfaces.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NetdevError {
    /// No such interface in this namespace.
    #[error("no interface named {name:?} in this network namespace; there are: {existing}")]
    NoSuchInterface {
        /// The name that was asked for.
        name: String,
        /// The existing names, separated by commas.
        existing: String,
    },
    /// The interface is not Ethernet, so it carries no frames for a NIC.
    #[error("{name} is not an Ethernet interface (it has no 6-byte station address); use one that is")]
    NotEthernet {
        /// The interface that was named.
        name: String,
    },
    /// The caller lacks CAP_NET_ADMIN (or CAP_SYS_ADMIN for namespaces).
    #[error("{action}: not permitted; run as root or give the program CAP_NET_ADMIN and CAP_SYS_ADMIN")]
    NotPermitted {
        /// The action that failed, as a sentence without its subject.
        action: String,
    },
    /// Any other refusal.
    #[error("{action}: {source}")]
    Kernel {
        /// The action that failed, as a sentence without its subject.
        action: String,
        /// The kernel's error, as an errno.
        source: io::Error,
    },
}

impl NetdevError {
    /// Wraps the kernel's error for `action`.
    fn from_io(action: impl Into<String>, source: io::Error) -> NetdevError {
        let action = action.into();
        match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => NetdevError::NotPermitted { action },
            _ => NetdevError::Kernel { action, source },
        }
    }

    /// Returns the error for an unknown name, with the existing names.
    fn no_such_interface(name: &str) -> NetdevError {
        NetdevError::NoSuchInterface { name: name.to_owned(), existing: interface_names().join(", ") }
    }
}

/// Returns the names of the interfaces in the calling thread's namespace; empty if the kernel refuses.
pub fn interface_names() -> Vec<String> {
    match nix::net::if_::if_nameindex() {
        Ok(list) => list.iter().map(|i| i.name().to_string_lossy().into_owned()).collect(),
        Err(_) => Vec::new(),
    }
}
