//! What the executor of a row needs from each of the two ends.
//!
//! [`End`] is the verbs of an interop row, and both sides implement it: [`crate::peer::Peer`] by
//! commands to the peer program, Roxie by its own API. [`Local`] is what only Roxie's side has:
//! the port, the faults and the capture.

use std::fmt;
use std::net::IpAddr;
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use crate::error::Error;
use crate::pattern::Mismatch;
use crate::rows::{Family, Impairment, Op, PortKind, Stock};
use crate::skip::SkipReason;
use crate::wire::Wire;

/// A region of registered memory. `key` names it to the end that made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registration {
    /// The end's own name for it.
    pub key: usize,
    /// Its address, as a remote side gives it in a RETH.
    pub addr: u64,
    /// The rkey by which the other end names it.
    pub rkey: u32,
}

/// What remote sides may do to a region. Local writes are always allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The other end may READ from it.
    pub read: bool,
    /// The other end may WRITE to it.
    pub write: bool,
    /// The other end may run atomics on it.
    pub atomic: bool,
    /// Windows may be bound to it.
    pub bind: bool,
    /// Its addresses begin at 0.
    pub zero_based: bool,
    /// FLUSH for global visibility.
    pub flush_global: bool,
    /// FLUSH for persistence.
    pub flush_persistent: bool,
}

impl Access {
    /// Nothing that a remote side may do.
    pub const NONE: Access = Access {
        read: false,
        write: false,
        atomic: false,
        bind: false,
        zero_based: false,
        flush_global: false,
        flush_persistent: false,
    };
    /// READ, WRITE and atomics.
    pub const ALL: Access = Access { read: true, write: true, atomic: true, ..Access::NONE };
}

/// What a queue pair is made as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PairKind {
    /// A reliable connection.
    Rc,
    /// A reliable connection whose receives are those of a shared queue.
    RcSharing(Queue),
    /// An unreliable connection.
    Uc,
    /// Unreliable datagrams; in RTS at once.
    Ud {
        /// What a datagram must present.
        qkey: u32,
        /// The PSN that is sent first.
        psn: u32,
    },
}

/// A shared receive queue. `key` names it to the end that made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queue {
    /// The end's own name for it.
    pub key: usize,
}

/// A way that datagrams take. `key` names it to the end that made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handle {
    /// The end's own name for it.
    pub key: usize,
}

/// A memory window of type 2. `key` names it to the end that made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The end's own name for it.
    pub key: usize,
}

/// A queue pair, in INIT when it is made, or in RTS for datagrams. `key` names it to the end that made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The end's own name for it.
    pub key: usize,
    /// The number of the QP.
    pub qpn: u32,
}

/// The attributes of INIT -> RTR -> RTS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    /// Which address of both ends carries it.
    pub family: Family,
    /// The other end's address.
    pub remote: IpAddr,
    /// The other end's QPN.
    pub remote_qpn: u32,
    /// Path MTU in bytes.
    pub mtu: usize,
    /// The PSN that is expected first.
    pub rq_psn: u32,
    /// The PSN that is sent first.
    pub sq_psn: u32,
    /// Local ACK timeout, 4.096 us * 2^n.
    pub timeout: u8,
    /// Retries after timeouts and sequence errors, 0..=7.
    pub retry: u8,
    /// Retries after RNR NAKs, 7 being without end.
    pub rnr_retry: u8,
}

/// A receive request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receive {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// Where the message goes; `None` for no scatter entry.
    pub to: Option<(Registration, usize, usize)>,
}

/// A send request, always signalled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// The operation to ask for.
    pub op: Op,
    /// The local side, as (region, offset, length); `None` for no entry.
    pub local: Option<(Registration, usize, usize)>,
    /// The remote side, for all but SEND.
    pub remote_addr: u64,
    /// The rkey of the memory at the other end.
    pub rkey: u32,
    /// Immediate data, in host order.
    pub imm: u32,
    /// The comparand of CMP_SWAP, the addend of FETCH_ADD.
    pub compare_add: u64,
    /// What compare-and-swap stores if the values are equal.
    pub swap: u64,
    /// Whom a datagram is for.
    pub datagram: Option<Destination>,
    /// What a FLUSH asks for.
    pub flush: Option<Flush>,
}

/// What a FLUSH asks for, beside its address and key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flush {
    /// Bytes of the range to flush.
    pub length: usize,
    /// Visible to everyone there.
    pub global: bool,
    /// The answer may come only when the bytes would survive a power loss.
    pub persistent: bool,
    /// The whole region instead of the range.
    pub whole_region: bool,
}

impl Request {
    /// An operation with neither local nor remote side.
    pub fn new(wr_id: u64, op: Op) -> Request {
        let (local, datagram, flush) = (None, None, None);
        Request {
            wr_id,
            op,
            local,
            remote_addr: 0,
            rkey: 0,
            imm: 0,
            compare_add: 0,
            swap: 0,
            datagram,
            flush,
        }
    }
}

/// Whom a datagram is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// The address handle of the way there.
    pub handle: Handle,
    /// The QPN there; [`MULTICAST_QPN`] for a group.
    pub qpn: u32,
    /// The Q_Key that the QP there expects.
    pub qkey: u32,
}

/// The QPN of a multicast group (IBTA 10.5.1).
pub const MULTICAST_QPN: u32 = 0xff_ffff;

/// The status of a completion: the numbers of `enum ibv_wc_status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status(pub u32);

impl Status {
    /// It worked.
    pub const SUCCESS: Status = Status(0);
    /// A message longer than the receive.
    pub const LOC_LEN_ERR: Status = Status(1);
    /// Flushed: the queue pair is in the error state.
    pub const WR_FLUSH_ERR: Status = Status(5);
    /// The answer is none to the request.
    pub const BAD_RESP_ERR: Status = Status(7);
    /// The local memory or its key does not allow it.
    pub const LOC_PROT_ERR: Status = Status(4);
    /// What no other status says.
    pub const FATAL_ERR: Status = Status(19);
    /// The queue pair could not do it.
    pub const LOC_QP_OP_ERR: Status = Status(2);
    /// The responder could not do it.
    pub const REM_OP_ERR: Status = Status(11);
    /// The responder refused the request as such.
    pub const REM_INV_REQ_ERR: Status = Status(9);
    /// The responder refused the key, the range or the right.
    pub const REM_ACCESS_ERR: Status = Status(10);
    /// No answer, or none that helped.
    pub const RETRY_EXC_ERR: Status = Status(12);
    /// No receive was posted.
    pub const RNR_RETRY_EXC_ERR: Status = Status(13);
}

impl fmt::Display for Status {
    /// As verbs names it, without `IBV_WC_`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Status::SUCCESS => f.write_str("SUCCESS"),
            Status::LOC_LEN_ERR => f.write_str("LOC_LEN_ERR"),
            Status::LOC_PROT_ERR => f.write_str("LOC_PROT_ERR"),
            Status::FATAL_ERR => f.write_str("FATAL_ERR"),
            Status::LOC_QP_OP_ERR => f.write_str("LOC_QP_OP_ERR"),
            Status::WR_FLUSH_ERR => f.write_str("WR_FLUSH_ERR"),
            Status::BAD_RESP_ERR => f.write_str("BAD_RESP_ERR"),
            Status::REM_INV_REQ_ERR => f.write_str("REM_INV_REQ_ERR"),
            Status::REM_ACCESS_ERR => f.write_str("REM_ACCESS_ERR"),
            Status::REM_OP_ERR => f.write_str("REM_OP_ERR"),
            Status::RETRY_EXC_ERR => f.write_str("RETRY_EXC_ERR"),
            Status::RNR_RETRY_EXC_ERR => f.write_str("RNR_RETRY_EXC_ERR"),
            Status(other) => write!(f, "status {other}"),
        }
    }
}

/// What a completion is for, on success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// A request of this side. SEND, SEND_IMM and SEND_INV are one, WRITE and WRITE_IMM are one.
    Request(Op),
    /// The bind of a window.
    Bind,
    /// The invalidation of a key of this side's.
    LocalInvalidate,
    /// A receive, consumed by a SEND.
    Receive,
    /// A receive, consumed by a WRITE_IMM.
    ReceiveWriteImm,
}

/// A completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The id that the request was posted with.
    pub wr_id: u64,
    /// How the request ended.
    pub status: Status,
    /// What it was, if it went well.
    pub done: Option<Done>,
    /// Bytes of a receive, if it went well.
    pub byte_len: u32,
    /// Immediate data in host order, where the message had some.
    pub imm: Option<u32>,
    /// The key that the message invalidated.
    pub invalidated: Option<u32>,
    /// The sender of a datagram, whose receive begins with a network header.
    pub datagram_from: Option<u32>,
}

/// States of a queue pair (IBTA 10.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the specification's names")]
pub enum State {
    Reset,
    Init,
    Rtr,
    Rts,
    Sqd,
    Sqe,
    Err,
}

/// Where an implementation is known to differ from the specification or from hardware.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quirks {
    /// As a responder it answers a SEND that is longer than the receive with NAK Remote Operational (and
    /// completes the receive as a local operation error) instead of NAK Invalid Request and a length error.
    pub long_send_is_operational_error: bool,
    /// It does not post an atomic at an address that is no multiple of 8.
    pub refuses_misaligned_atomics: bool,
    /// The completion of a SEND with invalidate does not say that it invalidated a key: the kernel's number of that flag
    /// reaches the user, for whom it means another.
    pub hides_invalidations: bool,
    /// Only persistent memory can be registered for FLUSH to persistence.
    pub wants_persistent_memory: bool,
    /// Its FLUSH has a wrong ICRC, and it takes no other.
    pub flush_has_wrong_icrc: bool,
    /// The completion of the request that failed is there before the queue pair is in the error state.
    pub completes_before_it_errs: bool,
    /// A window's key opens all of its region: the range is compared with the region's alone.
    pub windows_are_as_wide_as_regions: bool,
    /// Its connection manager joins no group of IPv6.
    pub joins_no_v6_group: bool,
    /// What is posted and not sent when its queue pair is destroyed is not sent at all.
    pub forgets_unsent: bool,
    /// It has no XRC domains.
    pub has_no_xrc: bool,
}

/// One end of a row.
pub trait End {
    /// Known differences; none, unless the end says so.
    fn quirks(&self) -> Quirks {
        Quirks::default()
    }

    /// True if it has FLUSH and ATOMIC WRITE.
    fn has_placement(&self) -> bool {
        true
    }

    /// The address of this end in the family, or why there is none.
    fn address(&mut self, family: Family) -> Result<IpAddr, Error>;

    /// Registers `size` bytes, zeroed.
    fn register(&mut self, size: usize, access: Access) -> Result<Registration, Error>;

    /// Writes the pattern of `seed` over a range of a region.
    fn fill(&mut self, region: Registration, range: Range<usize>, seed: u64) -> Result<(), Error>;

    /// Compares a range of a region with the pattern of `seed`.
    fn mismatch(
        &mut self,
        region: Registration,
        range: Range<usize>,
        seed: u64,
    ) -> Result<Option<Mismatch>, Error>;

    /// Stores an 8-byte value in host order.
    fn store(&mut self, region: Registration, offset: usize, value: u64) -> Result<(), Error>;

    /// Loads an 8-byte value in host order.
    fn load(&mut self, region: Registration, offset: usize) -> Result<u64, Error>;

    /// A range's bytes, 1024 at most.
    fn read(&mut self, region: Registration, range: Range<usize>) -> Result<Vec<u8>, Error>;

    /// A queue pair with a completion queue of its own, and room for 64 requests and 64 receives.
    fn create_pair(&mut self, kind: PairKind) -> Result<Pair, Error>;

    /// INIT -> RTR -> RTS.
    fn connect(&mut self, pair: Pair, connection: &Connection) -> Result<(), Error>;

    /// Posts a receive.
    fn post_receive(&mut self, pair: Pair, receive: &Receive) -> Result<(), Error>;

    /// Posts a request. It makes progress without further calls.
    fn post_send(&mut self, pair: Pair, request: &Request) -> Result<(), Error>;

    /// Waits until `least` completions are there or the time is over; returns all that are there.
    fn poll(&mut self, pair: Pair, least: usize, timeout: Duration) -> Result<Vec<Completion>, Error>;

    /// A way for datagrams, to an address or a multicast group.
    fn create_handle(&mut self, family: Family, to: IpAddr) -> Result<Handle, Error>;

    /// A shared receive queue with room for 64 receives.
    fn create_queue(&mut self) -> Result<Queue, Error>;

    /// Posts a receive to it.
    fn post_shared(&mut self, queue: Queue, receive: &Receive) -> Result<(), Error>;

    /// Asks for an event when it holds fewer receives.
    fn arm_limit(&mut self, queue: Queue, limit: u32) -> Result<(), Error>;

    /// Waits for that event. False: it did not come in time.
    fn limit_reached(&mut self, timeout: Duration) -> Result<bool, Error>;

    /// A window of type 2, unbound.
    fn create_window(&mut self) -> Result<Window, Error>;

    /// Posts the bind of a window to a range of a region, for READ and WRITE; its new key.
    fn post_bind(
        &mut self,
        pair: Pair,
        wr_id: u64,
        window: Window,
        to: (Registration, usize, usize),
    ) -> Result<u32, Error>;

    /// Posts the invalidation of a key of this side's.
    fn post_invalidate(&mut self, pair: Pair, wr_id: u64, rkey: u32) -> Result<(), Error>;

    /// Has a datagram queue pair get what is sent to a multicast group.
    fn attach(&mut self, pair: Pair, group: IpAddr) -> Result<(), Error>;

    /// Ends that.
    fn detach(&mut self, pair: Pair, group: IpAddr) -> Result<(), Error>;

    /// True if the kernel of this end is in the multicast group on some interface.
    fn is_member(&mut self, group: IpAddr) -> Result<bool, Error>;

    /// True if it can send what [`End::notify`] says.
    fn can_notify(&self) -> bool {
        false
    }

    /// Sends a queue pair of the other end's a notification of congestion, by a socket.
    fn notify(&mut self, family: Family, to: IpAddr, qpn: u32) -> Result<(), Error> {
        Err(Error::Local(format!("this end notifies nobody: {qpn:#x} at {to}, {family}")))
    }

    /// Notifications that slowed it down so far; `None`: it has no reaction point.
    fn notifications(&mut self) -> Result<Option<u64>, Error> {
        Ok(None)
    }

    /// The state of the queue pair.
    fn state(&mut self, pair: Pair) -> Result<State, Error>;

    /// Destroys everything that was made.
    fn reset(&mut self) -> Result<(), Error>;
}

/// What a row asks of Roxie before its first verb.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setup {
    /// The port that carries the row.
    pub port: PortKind,
    /// The fault that is injected in both directions, from `seed`.
    pub fault: Impairment,
    /// What the fault's choices derive from. A failure prints it.
    pub seed: u64,
    /// The congestion control of its queue pairs, as `--cc` takes it; `None`: none.
    pub control: Option<&'static str>,
    /// Where a capture of the row goes, if there is to be one.
    pub capture: Option<PathBuf>,
}

/// Why a row cannot start.
#[derive(Debug)]
pub enum Unready {
    /// The row does not apply to this site.
    Skip(SkipReason),
    /// The row applies, and this went wrong.
    Failed(Error),
}

impl From<Error> for Unready {
    fn from(error: Error) -> Unready {
        Unready::Failed(error)
    }
}

/// How a program ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Its exit status; `None` if a signal ended it.
    pub code: Option<i32>,
    /// What it printed, both streams.
    pub output: String,
}

/// Roxie's end. Its engine must make progress on a thread of its own: the executor may wait for the
/// peer while Roxie is the responder.
pub trait Local: End {
    /// Opens the port (or keeps it, if it is the one that is open), sets the fault, starts the capture.
    fn prepare(&mut self, setup: &Setup) -> Result<(), Unready>;

    /// Ends the capture, so that its file is complete. Fails if the row left traces that no row may leave.
    fn finish(&mut self) -> Result<(), Error>;

    /// What the device and its port have counted, if they are open.
    fn counters(&self) -> Vec<(&'static str, u64)>;

    /// Waits until a program listens on a TCP port in the site's namespace; false if none does in time.
    fn wait_for_listener(&mut self, port: u16, timeout: Duration) -> Result<bool, Error>;

    /// Waits until a program has claimed the site's interface for its device; false if none does in time.
    fn wait_for_claim(&mut self, port: PortKind, timeout: Duration) -> Result<bool, Error>;

    /// Closes the port and opens a socket for a script in its place, at the family's address.
    fn step_aside(&mut self, family: Family) -> Result<Wire, Error>;

    /// True if `roxie pingpong` has a program for this stock one.
    fn has_pingpong(&mut self, program: Stock) -> Result<bool, Error>;

    /// Starts `roxie pingpong` on the prepared row's port, from the family's address. `arguments` are those that it
    /// shares with the stock program.
    fn pingpong(&mut self, program: Stock, family: Family, arguments: &[String]) -> Result<(), Error>;

    /// The place of the family's address in the GID table that programs under `roxie run` see.
    fn gid_index(&mut self, family: Family) -> Result<usize, Error>;

    /// Starts an unmodified program on the prepared row's port.
    fn program(&mut self, name: &str, arguments: &[String]) -> Result<(), Error>;

    /// Waits for the program that was started last; kills it when the time is over.
    fn wait(&mut self, timeout: Duration) -> Result<Ended, Error>;

    /// Ends that program, if it runs.
    fn end_program(&mut self);
}
