//! What programs are told: events, and their queue behind a descriptor.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::AsFd;

use nix::sys::eventfd::{EfdFlags, EventFd};
use roxie::cm::Route;
use roxie::wire::Gid;

use super::descriptors;
use crate::object::Errno;
use crate::waiting::take_count_now;

/// `enum rdma_cm_event_type` (`rdma/rdma_cma.h`). Some are never told, as the kernel never tells them to a program on RoCE:
///
/// * ROUTE_ERROR: it is for queries to a subnet manager. A route that cannot be is an error of the call.
/// * CONNECT_ERROR: the kernel has it for QPs of its own. Of a program's QP the library says so itself, when the QP cannot be moved
///   after CONNECT_RESPONSE.
/// * ADDR_CHANGE: `cma_netdev_change` tells it when a bonded interface fails over to another (`NETDEV_BONDING_FAILOVER`), and of
///   nothing else that happens to an interface. An address that goes away is noticed when it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum What {
    AddressResolved = 0,
    AddressError = 1,
    RouteResolved = 2,
    ConnectRequest = 4,
    ConnectResponse = 5,
    Unreachable = 7,
    Rejected = 8,
    Established = 9,
    Disconnected = 10,
    DeviceRemoval = 11,
    MulticastJoin = 12,
    MulticastError = 13,
    TimeWaitExit = 15,
}

/// What a program says of its end of a connection, and is told of the other's: `rdma_ucm_conn_param`, with resources and depth as
/// the one sees them who says or hears it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ConnectionFacts {
    pub(super) qpn: u32,
    pub(super) private_data: Vec<u8>,
    pub(super) srq: bool,
    pub(super) responder_resources: u8,
    pub(super) initiator_depth: u8,
    pub(super) flow_control: bool,
    pub(super) retry_count: u8,
    pub(super) rnr_retry_count: u8,
}

/// What is told of a datagram QP or group: `rdma_ucm_ud_param`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DatagramFacts {
    pub(super) qpn: u32,
    pub(super) qkey: u32,
    /// The way there, if it is known.
    pub(super) way: Option<Way>,
    pub(super) private_data: Vec<u8>,
}

/// `ib_uverbs_ah_attr`, as far as RoCE has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Way {
    pub(super) sgid_index: u8,
    pub(super) dgid: Gid,
    pub(super) flow_label: u32,
    pub(super) hop_limit: u8,
    pub(super) traffic_class: u8,
}

impl Way {
    /// A route of the connection manager's, from the device's GID of this index.
    pub(super) fn of(route: &Route, sgid_index: u8) -> Way {
        let Route { remote, traffic_class, flow_label, hop_limit, .. } = *route;
        Way { sgid_index, dgid: remote, flow_label, hop_limit, traffic_class }
    }
}

/// What comes with an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Facts {
    None,
    Connection(ConnectionFacts),
    Datagram(DatagramFacts),
}

/// An event as it is told: `rdma_ucm_event_resp`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Event {
    /// The program's word for what it is about.
    pub(super) uid: u64,
    /// The handle of what it is about.
    pub(super) handle: u32,
    pub(super) what: What,
    /// 0, a negative errno, or a reason of the peer's.
    pub(super) status: i32,
    pub(super) facts: Facts,
}

/// An event that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Waiting {
    /// The identifier in whose count of reported events it is.
    pub(super) of: u32,
    /// The multicast membership in whose count it is as well.
    pub(super) group: Option<u32>,
    pub(super) event: Event,
}

/// Events that may wait; more are lost, as the kernel loses them when it has no memory. Each identifier has a few at most.
const CAPACITY: usize = 1 << 16;

/// An open file: the events that wait, counted by a descriptor that the program holds another number of.
#[derive(Debug)]
pub(super) struct Channel {
    counter: EventFd,
    waiting: VecDeque<Waiting>,
    /// The thread that fetched an event last, and has not come for another since.
    handler: Option<libc::pid_t>,
}

impl Channel {
    pub(super) fn new(flags: EfdFlags) -> Result<Channel, Errno> {
        let flags = flags | EfdFlags::EFD_SEMAPHORE | EfdFlags::EFD_CLOEXEC;
        let counter = EventFd::from_flags(flags).map_err(|e| e as Errno)?;
        descriptors::mark_file(counter.as_fd())?;
        Ok(Channel { counter, waiting: VecDeque::new(), handler: None })
    }

    pub(super) fn counter(&self) -> &EventFd {
        &self.counter
    }

    pub(super) fn push(&mut self, event: Waiting) {
        if self.waiting.len() < CAPACITY {
            self.waiting.push_back(event);
            // Never full: the queue is bounded far below.
            let _ = self.counter.write(1);
        }
    }

    /// The next event, whose count was taken.
    pub(super) fn pop(&mut self) -> Option<Waiting> {
        self.waiting.pop_front()
    }

    pub(super) fn handler(&self) -> Option<libc::pid_t> {
        self.handler
    }

    pub(super) fn set_handler(&mut self, thread: Option<libc::pid_t>) {
        self.handler = thread;
    }

    /// Takes events back, with their counts.
    pub(super) fn take_back(&mut self, which: impl Fn(&Waiting) -> bool) -> Vec<Waiting> {
        let all = std::mem::take(&mut self.waiting);
        let (taken, left): (Vec<_>, Vec<_>) = all.into_iter().partition(which);
        self.waiting = left.into();
        for _ in &taken {
            take_count_now(self.counter.as_fd());
        }
        taken
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }
}

/// Private data as an event tells it: `length` bytes, those that were not sent being zeros.
pub(super) fn padded(bytes: &[u8], length: usize) -> Vec<u8> {
    let mut all = vec![0; length];
    let there = bytes.len().min(length);
    all[..there].copy_from_slice(&bytes[..there]);
    all
}

/// The GID of an address.
pub(super) fn gid_of(address: Option<SocketAddr>) -> Gid {
    address.map_or(Gid::default(), |address| address.ip().into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    fn event(of: u32) -> Waiting {
        let event = Event { uid: 1, handle: of, what: What::Established, status: 0, facts: Facts::None };
        Waiting { of, group: None, event }
    }

    fn readable(channel: &Channel) -> bool {
        let mut fds = [PollFd::new(channel.counter.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO).unwrap() == 1
    }

    #[test]
    fn the_descriptor_is_readable_while_events_wait() {
        let mut channel = Channel::new(EfdFlags::empty()).unwrap();
        assert!(!readable(&channel));
        channel.push(event(1));
        channel.push(event(2));
        assert!(readable(&channel) && take_count_now(channel.counter.as_fd()));
        assert_eq!(channel.pop().map(|waiting| waiting.of), Some(1));
        assert!(readable(&channel));
    }

    #[test]
    fn events_that_are_taken_back_wake_nobody() {
        let mut channel = Channel::new(EfdFlags::empty()).unwrap();
        for of in [1, 2, 1] {
            channel.push(event(of));
        }
        assert_eq!(channel.take_back(|waiting| waiting.of == 1).len(), 2);
        assert!(readable(&channel));
        assert_eq!(channel.take_back(|waiting| waiting.of == 2).len(), 1);
        assert!(!readable(&channel) && channel.pop().is_none());
    }

    #[test]
    fn private_data_has_the_length_of_the_messages_room() {
        assert_eq!(padded(b"ab", 4), b"ab\0\0");
        assert_eq!(padded(b"abcdef", 4), b"abcd");
    }

    #[test]
    fn a_channel_that_nobody_reads_keeps_a_bounded_number_of_events() {
        let mut channel = Channel::new(EfdFlags::empty()).unwrap();
        for of in 0..CAPACITY as u32 + 3 {
            channel.push(event(of));
        }
        assert_eq!(channel.len(), CAPACITY);
    }
}
