//! Sharing an interface with other processes of this user: each takes the packets of its own units.
//!
//! AF_PACKET gives each socket all frames, and the filter of each member's socket refuses other members' frames in the
//! kernel. Requests of the connection manager and frames to groups pass all filters; requests are judged by the roster.
//! Frames between two processes of one host pass over the loopback interface, where each member has a second, smaller
//! ring.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, Weak};

use super::error::PacketError;
use super::filter::{self, Source};
use super::sink::sinks;
use crate::RxOptions;
use crate::group::{GroupId, Member, Refused, Units};
use crate::udp::sys::attach_filter;
use roxie_base::frame::ROCE_V2_PORT;
use roxie_base::threads::lock;

/// Returns the name of the group of an interface.
pub(super) fn group_of(interface: &str) -> GroupId {
    GroupId { port: ROCE_V2_PORT, interface: Some(interface.to_owned()) }
}

/// Joins the group of an interface, whose members hold the UDP port together.
pub(super) fn join(interface: &str) -> Result<Arc<Member>, PacketError> {
    let make = |is_first| {
        if is_first {
            // Fails if a program outside of the group has the port, which `SO_REUSEPORT` alone would not tell.
            sinks(interface, false)?;
        }
        sinks(interface, true)
    };
    let joined = Member::join(&group_of(interface), &make).map_err(|refused| match refused {
        Refused::Join(error) => PacketError::Group(error),
        Refused::Sockets(error) => error,
    })?;
    Ok(Arc::new(joined.member))
}

/// The filters of a port's sockets.
pub(super) struct Filters {
    sockets: Vec<(Source, OwnedFd)>,
    /// The units to take; `None`: all.
    units: Option<Arc<Units>>,
    /// The frames that are wanted in addition to RoCE v2.
    wishes: Mutex<RxOptions>,
}

impl Filters {
    /// Attaches filters to sockets that are not bound yet, and again with each new unit.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn attach(
        sockets: Vec<(Source, OwnedFd)>,
        units: Option<Arc<Units>>,
    ) -> io::Result<Arc<Filters>> {
        let filters = Arc::new(Filters { sockets, units, wishes: Mutex::default() });
        if let Some(units) = &filters.units {
            let weak = Arc::downgrade(&filters);
            units.watch(Box::new(move || renew(&weak)));
        }
        filters.set_wishes(RxOptions::default())?;
        Ok(filters)
    }

    /// Sets which frames the sockets take in addition to RoCE v2.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn set_wishes(&self, new: RxOptions) -> io::Result<()> {
        let mut wishes = lock(&self.wishes);
        *wishes = new;
        self.attach_all(new)
    }

    /// Attaches the filters. Caller must hold the lock, so that the last program has the last wish and all units.
    fn attach_all(&self, wishes: RxOptions) -> io::Result<()> {
        let units = self.units.as_ref().map(|units| units.all());
        for (source, socket) in &self.sockets {
            attach_filter(socket.as_fd(), &filter::program(*source, wishes, units.as_deref()))?;
        }
        Ok(())
    }
}

fn renew(filters: &Weak<Filters>) {
    let Some(filters) = filters.upgrade() else { return };
    let wishes = lock(&filters.wishes);
    if let Err(error) = filters.attach_all(*wishes) {
        tracing::error!("packets to new queue pairs are not received: filter of the packet socket: {error}");
    }
}
