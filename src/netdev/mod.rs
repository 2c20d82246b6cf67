//! What the kernel knows about network interfaces: links, addresses, routes, neighbours, namespaces.
//!
//! All of it over rtnetlink with plain blocking sockets. Read [`Interface`] first, then [`Watch`], which
//! follows one while it changes, and [`Neighbours`], which turn IP addresses into station addresses.
//! [`NetNs`] and [`Links`] make the networks that tests, labs and the interop runner play in.
//!
//! A netlink socket belongs for life to the namespace of the thread that opened it. So everything here
//! acts on the caller's namespace at the time of opening, and a handle may then move between threads.

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
mod watch;

use std::io;

pub use interface::{IfAddr, Interface, link_speed};
pub use link::Links;
pub use membership::Membership;
pub use neighbours::{Neighbours, resolve};
pub use netns::NetNs;
pub use reach::Reach;
pub use tap::Tap;
pub use watch::{Change, Watch};

/// What went wrong between us and the kernel about an interface.
#[derive(Debug, thiserror::Error)]
pub enum NetdevError {
    /// The name is not in this namespace.
    #[error("no interface named {name:?} in this network namespace; there are: {existing}")]
    NoSuchInterface {
        /// The name that was asked for.
        name: String,
        /// The names there are, separated by commas.
        existing: String,
    },
    /// The interface is not Ethernet, so it has no frames for us.
    #[error("{name} is not an Ethernet interface (it has no 6-byte station address); use one that is")]
    NotEthernet {
        /// The interface that was named.
        name: String,
    },
    /// The caller lacks CAP_NET_ADMIN (or CAP_SYS_ADMIN for namespaces).
    #[error("{action}: not permitted; run as root or give the program CAP_NET_ADMIN and CAP_SYS_ADMIN")]
    NotPermitted {
        /// What was tried, as a sentence without its subject.
        action: String,
    },
    /// Any other refusal.
    #[error("{action}: {source}")]
    Kernel {
        /// What was tried, as a sentence without its subject.
        action: String,
        /// The kernel's answer, as an errno.
        source: io::Error,
    },
}

impl NetdevError {
    /// Wraps the kernel's answer to `action`.
    fn from_io(action: impl Into<String>, source: io::Error) -> NetdevError {
        let action = action.into();
        match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => NetdevError::NotPermitted { action },
            _ => NetdevError::Kernel { action, source },
        }
    }

    /// No interface of that name, with those that exist.
    fn no_such_interface(name: &str) -> NetdevError {
        NetdevError::NoSuchInterface { name: name.to_owned(), existing: interface_names().join(", ") }
    }
}

/// The interfaces of the calling thread's namespace, by name; empty if the kernel will not say.
pub fn interface_names() -> Vec<String> {
    match nix::net::if_::if_nameindex() {
        Ok(list) => list.iter().map(|i| i.name().to_string_lossy().into_owned()).collect(),
        Err(_) => Vec::new(),
    }
}
