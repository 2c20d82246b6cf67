//! Port numbers of `rdma_cm`. Processes that share a device share its ports, and the device's NIC or socket group judges conflicts
//! (`roxie::roster`). A process that has taken no device yet keeps ports of its own.

use std::collections::HashMap;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use roxie::host::Seat;
use roxie::roster::{self, BoundPort, Denied, PortName, PortRange, PortRequest};

use crate::object::Errno;
use crate::report;

/// `enum rdma_ucm_port_space`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Space {
    Ipoib,
    Ib,
    Tcp,
    Udp,
}

/// An identifier that holds a port, or asks for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Owner {
    /// The identifier that holds the port.
    pub(super) id: u32,
    /// The address; unspecified: all.
    pub(super) address: IpAddr,
    /// Shares with those that share too, until one listens.
    pub(super) reuse: bool,
    /// Takes nothing of the other address family.
    pub(super) one_family: bool,
}

impl Owner {
    fn bound(self, space: Space, port: u16) -> BoundPort {
        let Owner { id: owner, address, reuse, one_family } = self;
        let name = PortName { space: space.code(), port, owner };
        BoundPort { name, address, reuse, one_family, slot: 0, uid: 0 }
    }
}

/// The ports of this process.
#[derive(Debug, Default)]
pub(super) struct Ports {
    /// As long as there is no seat.
    own: roster::Ports,
    /// Ports that were taken before there was a seat, and that another process had by then.
    refused: HashMap<PortName, Errno>,
    /// The place of this process among those that share the device.
    seat: Option<Seat>,
}

impl Ports {
    /// From now on they are those of all processes that share the device. To listen on one that another process has by now fails as
    /// `rdma_bind_addr` would have.
    pub(super) fn share(&mut self, seat: &Seat) {
        if self.seat.is_none() {
            self.seat = Some(seat.clone());
            self.share_by(|port| seat.port(PortRequest::Bind(port)));
        }
    }

    fn share_by(&mut self, bind: impl Fn(BoundPort) -> Result<u16, Denied>) {
        for port in std::mem::take(&mut self.own).of(0) {
            if let Err(Denied { errno, why }) = bind(port.clone()) {
                report::info("rdma_bind_addr", why);
                self.refused.insert(port.name, errno);
            }
        }
    }

    fn request(&mut self, request: PortRequest) -> Result<u16, Errno> {
        let result = match &self.seat {
            Some(seat) => seat.port(request),
            // The caller has seen to privileged ports.
            None => self.own.request((0, 0), request, 0),
        };
        result.map_err(|Denied { errno, why }| {
            report::info("rdma_cm", why);
            errno
        })
    }

    /// Takes a port for its owner.
    ///
    /// # Errors
    /// `EADDRINUSE` if another has it on the same address, `EADDRNOTAVAIL` if one of the two wants it on all; `EACCES` if the NIC leaves it to
    /// root.
    pub(super) fn take(&mut self, space: Space, port: u16, owner: Owner) -> Result<(), Errno> {
        self.request(PortRequest::Bind(owner.bound(space, port))).map(drop)
    }

    /// Takes a port that nobody has, looking from a random place on.
    ///
    /// # Errors
    /// `EADDRNOTAVAIL` if there is none.
    pub(super) fn take_any(
        &mut self,
        space: Space,
        range: RangeInclusive<u16>,
        random: u64,
        owner: Owner,
    ) -> Result<u16, Errno> {
        let range = PortRange { first: *range.start(), last: *range.end(), random };
        self.request(PortRequest::BindAny(owner.bound(space, 0), range))
    }

    /// A listener shares with nobody, whatever it and the others said.
    ///
    /// # Errors
    /// As [`Ports::take`].
    pub(super) fn listen(&mut self, space: Space, port: u16, id: u32) -> Result<(), Errno> {
        let name = PortName { space: space.code(), port, owner: id };
        self.refused.get(&name).map_or(Ok(()), |errno| Err(*errno))?;
        self.request(PortRequest::Listen(name)).map(drop)
    }

    /// Its owner is on one address now.
    pub(super) fn settle(&mut self, space: Space, port: u16, id: u32, address: IpAddr) {
        // A NIC that is gone has forgotten the port.
        let _ = self.request(PortRequest::Settle(PortName { space: space.code(), port, owner: id }, address));
    }

    /// Gives it back.
    pub(super) fn release(&mut self, space: Space, port: u16, id: u32) {
        let name = PortName { space: space.code(), port, owner: id };
        if self.refused.remove(&name).is_none() {
            let _ = self.request(PortRequest::Release(name));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_port_fails_its_listener() {
        let mut ports = Ports::default();
        let [taken, free] =
            [1, 2].map(|id| Owner { id, address: [0; 4].into(), reuse: false, one_family: true });
        ports.take(Space::Tcp, 7471, taken).expect("no seat");
        ports.take(Space::Tcp, 7472, free).expect("no seat");
        ports.share_by(|port| match port.name.port {
            7471 => Err(Denied::new(libc::EADDRNOTAVAIL, "another process has it".into())),
            number => Ok(number),
        });
        assert_eq!(ports.listen(Space::Tcp, 7471, 1), Err(libc::EADDRNOTAVAIL));
        ports.release(Space::Tcp, 7471, 1);
        assert_eq!(ports.listen(Space::Tcp, 7471, 1), Err(libc::EINVAL), "it is gone");
        assert_eq!(ports.take(Space::Tcp, 7471, taken), Ok(()), "a number may be taken again");
    }
}
