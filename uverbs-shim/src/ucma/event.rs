//! Events, and their queue behind a descriptor.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

use nix::sys::eventfd::{EfdFlags, EventFd};
use roxie::cm::Route;
use roxie::wire::Gid;

use super::descriptors;
use crate::base::object::Errno;
use crate::base::waiting::take_count_now;

/// `enum rdma_cm_event_type` (`rdma/rdma_cma.h`). Some are never raised, nor does the kernel raise them for a program
/// on RoCE:
///
/// * ROUTE_ERROR is for queries to a subnet manager. An invalid route is an error of the call.
/// * CONNECT_ERROR is raised by the kernel for its own QPs. For a program's QP, `librdmacm` raises it when the QP
///   cannot be modified after CONNECT_RESPONSE.
/// * ADDR_CHANGE is raised by `cma_netdev_change` only when a bonded interface fails over (`NETDEV_BONDING_FAILOVER`).
///   An address that was removed is noticed when it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum EventType {
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

/// Connection parameters (`rdma_ucm_conn_param`): sent by one end, received by the other. Resources and depth are those
/// from the view of the end that sends or receives them.
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

/// Parameters of a datagram QP or multicast group: `rdma_ucm_ud_param`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DatagramFacts {
    pub(super) qpn: u32,
    pub(super) qkey: u32,
    /// Path to the QP, if known.
    pub(super) ah_path: Option<AhPath>,
    pub(super) private_data: Vec<u8>,
}

/// `ib_uverbs_ah_attr`, as far as RoCE uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AhPath {
    pub(super) sgid_index: u8,
    pub(super) dgid: Gid,
    pub(super) flow_label: u32,
    pub(super) hop_limit: u8,
    pub(super) traffic_class: u8,
}

impl AhPath {
    /// Converts a route of the connection manager, with the GID index of its source address.
    pub(super) fn of(route: &Route, sgid_index: u8) -> AhPath {
        let Route { remote, traffic_class, flow_label, hop_limit, .. } = *route;
        AhPath { sgid_index, dgid: remote, flow_label, hop_limit, traffic_class }
    }
}

/// Parameters of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Facts {
    None,
    Connection(ConnectionFacts),
    Datagram(DatagramFacts),
}

/// An event: `rdma_ucm_event_resp`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Event {
    /// The program's value for the identifier or membership.
    pub(super) uid: u64,
    /// Handle of the identifier or membership.
    pub(super) handle: u32,
    pub(super) what: EventType,
    /// 0, a negative errno, or a reject reason of the peer.
    pub(super) status: i32,
    pub(super) facts: Facts,
}

/// A pending event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Waiting {
    /// The identifier that counts it as reported.
    pub(super) of: u32,
    /// The multicast membership that counts it as well.
    pub(super) group: Option<u32>,
    pub(super) event: Event,
}

/// Maximum number of pending events. Further events are dropped, as by a kernel without memory. Each identifier has a
/// few at the most.
const CAPACITY: usize = 1 << 16;

/// An open file: pending events, counted by an eventfd of which the program has a duplicate.
#[derive(Debug)]
pub(super) struct Channel {
    counter: EventFd,
    waiting: VecDeque<Waiting>,
    /// The thread that last fetched an event, until it asks for the next one.
    handler: Option<libc::pid_t>,
}

impl Channel {
    pub(super) fn new(flags: EfdFlags) -> Result<Channel, Errno> {
        let flags = flags | EfdFlags::EFD_SEMAPHORE | EfdFlags::EFD_CLOEXEC;
        let counter = EventFd::from_flags(flags).map_err(|e| e as Errno)?;
        descriptors::mark_file(counter.as_fd())?;
        Ok(Channel { counter, waiting: VecDeque::new(), handler: None })
    }

    /// Closes the file. A program that closes all descriptors may have closed this one already.
    pub(super) fn close(self) {
        let _ = nix::unistd::close(OwnedFd::from(self.counter));
    }

    pub(super) fn counter(&self) -> &EventFd {
        &self.counter
    }

    pub(super) fn push(&mut self, event: Waiting) {
        if self.waiting.len() < CAPACITY {
            self.waiting.push_back(event);
            // Never full: the queue's limit is far below the counter's.
            let _ = self.counter.write(1);
        }
    }

    /// Takes the next event. The caller has taken its count.
    pub(super) fn pop(&mut self) -> Option<Waiting> {
        self.waiting.pop_front()
    }

    pub(super) fn handler(&self) -> Option<libc::pid_t> {
        self.handler
    }

    pub(super) fn set_handler(&mut self, thread: Option<libc::pid_t>) {
        self.handler = thread;
    }

    /// Removes pending events, with their counts.
    pub(super) fn take_back(&mut self, which: impl Fn(&Waiting) -> bool) -> Vec<Waiting> {
        let all = std::mem::take(&mut self.waiting);
        let (taken, remaining): (Vec<_>, Vec<_>) = all.into_iter().partition(which);
        self.waiting = remaining.into();
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

/// Returns private data as an event has it: `length` bytes, padded with zeros.
pub(super) fn padded(bytes: &[u8], length: usize) -> Vec<u8> {
    let mut all = vec![0; length];
    let there = bytes.len().min(length);
    all[..there].copy_from_slice(&bytes[..there]);
    all
}

/// Returns the GID of an address.
pub(super) fn gid_of(address: Option<SocketAddr>) -> Gid {
    address.map_or(Gid::default(), |address| address.ip().into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    fn event(of: u32) -> Waiting {
        let event = Event { uid: 1, handle: of, what: EventType::Established, status: 0, facts: Facts::None };
        Waiting { of, group: None, event }
    }

    fn readable(channel: &Channel) -> bool {
        let mut fds = [PollFd::new(channel.counter.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO).unwrap() == 1
    }

    #[test]
    fn descriptor_is_readable_while_events_are_pending() {
        let mut channel = Channel::new(EfdFlags::empty()).unwrap();
        assert!(!readable(&channel));
        channel.push(event(1));
        channel.push(event(2));
        assert!(readable(&channel) && take_count_now(channel.counter.as_fd()));
        assert_eq!(channel.pop().map(|waiting| waiting.of), Some(1));
        assert!(readable(&channel));
    }

    #[test]
    fn removed_events_leave_the_descriptor_unreadable() {
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
    fn private_data_is_padded_to_the_messages_room() {
        assert_eq!(padded(b"ab", 4), b"ab\0\0");
        assert_eq!(padded(b"abcdef", 4), b"abcd");
    }

    #[test]
    fn unread_channel_keeps_a_bounded_number_of_events() {
        let mut channel = Channel::new(EfdFlags::empty()).unwrap();
        for of in 0..CAPACITY as u32 + 3 {
            channel.push(event(of));
        }
        assert_eq!(channel.len(), CAPACITY);
    }
}
