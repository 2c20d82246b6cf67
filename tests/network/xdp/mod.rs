//! The XDP port on veth pairs between network namespaces. Needs root; skips with a message otherwise.

mod faults;
mod frames;
mod steering;
mod vlan;

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use roxie::netdev::{Interface, Links, NetNs};
use roxie::port::xdp::{Mode, XdpConfig, XdpError, XdpPort};
use roxie::port::{BURST, Port};
use roxie::time::Nanos;

use crate::wire::*;

impl Wire {
    fn left(&self, edit: impl FnOnce(&mut XdpConfig)) -> Result<XdpPort, XdpError> {
        open(&self.a, "left", edit)
    }

    fn right(&self, edit: impl FnOnce(&mut XdpConfig)) -> Result<XdpPort, XdpError> {
        open(&self.b, "right", edit)
    }

    /// Opens both ends in native mode.
    fn xdp_ports(&self) -> (XdpPort, XdpPort) {
        (self.left(|_| {}).unwrap(), self.right(|_| {}).unwrap())
    }
}

fn open(ns: &NetNs, name: &str, edit: impl FnOnce(&mut XdpConfig)) -> Result<XdpPort, XdpError> {
    let mut config = XdpConfig::new(name);
    edit(&mut config);
    ns.run(|| XdpPort::open(&config)).unwrap()
}
