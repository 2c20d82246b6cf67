//! Addresses of the hosts: MAC addresses, IP addresses and link MTUs. All may change during a run.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use roxie::verbs::{AddressVector, Mtu};
use roxie::wire::Gid;

use crate::script::Hosts;

/// One host on the link.
#[derive(Clone, Copy, Debug)]
pub struct Station {
    moves: u8,
    readdressed: u8,
    pub link_mtu: usize,
    /// Number of restarts of the NIC.
    pub incarnation: u64,
}

/// All hosts.
#[derive(Clone, Debug)]
pub struct Stations(Vec<Station>);

impl Stations {
    pub fn new(hosts: &Hosts) -> Stations {
        let station = Station { moves: 0, readdressed: 0, link_mtu: hosts.link_mtu, incarnation: 0 };
        Stations(vec![station; hosts.count])
    }

    pub fn get_mut(&mut self, host: usize) -> &mut Station {
        &mut self.0[host]
    }

    pub fn mac(&self, host: usize) -> [u8; 6] {
        [2, 0, 0, 0, self.0[host].moves, host as u8 + 1]
    }

    /// The host of a current or earlier MAC address.
    pub fn host_of(mac: [u8; 6]) -> usize {
        usize::from(mac[5]) - 1
    }

    pub fn address(&self, host: usize, ipv6: bool) -> IpAddr {
        let (low, times) = (host as u8 + 1, self.0[host].readdressed);
        if ipv6 {
            Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, times.into(), low.into()).into()
        } else {
            Ipv4Addr::new(192, 0, times, low).into()
        }
    }

    /// All GIDs that the host has had.
    pub fn gids(&self, host: usize, ipv6: bool) -> Vec<Gid> {
        let before = |times| {
            let mut past = self.clone();
            past.0[host].readdressed = times;
            Gid::from(past.address(host, ipv6))
        };
        (0..=self.0[host].readdressed).map(before).collect()
    }

    /// The path from one host to another.
    pub fn path(&self, from: usize, to: usize, ipv6: bool) -> AddressVector {
        AddressVector::new(
            Gid::from(self.address(from, ipv6)),
            Gid::from(self.address(to, ipv6)),
            self.mac(from),
            self.mac(to),
        )
    }

    /// Changes the MAC address of a host.
    pub fn move_away(&mut self, host: usize) {
        self.0[host].moves = self.0[host].moves.wrapping_add(1);
    }

    /// Changes the IP address of a host.
    pub fn readdress(&mut self, host: usize) {
        self.0[host].readdressed = self.0[host].readdressed.wrapping_add(1);
    }

    /// The largest path MTU that the host's link carries.
    pub fn largest_mtu(&self, host: usize) -> Option<Mtu> {
        Mtu::largest_for_link(self.0[host].link_mtu)
    }

    pub fn all(&self) -> &[Station] {
        &self.0
    }
}
