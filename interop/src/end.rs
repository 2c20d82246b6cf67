//! The two ends of a row, as its executor uses them.
//!
//! [`End`] has the verbs of a row. Each side implements it: [`crate::peer::Peer`] by commands to the peer program,
//! Roxie by its own API. [`Local`] adds what only Roxie's side has: the port, the faults and the capture.

use std::fmt;
use std::net::IpAddr;
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use crate::error::Error;
use crate::pattern::Mismatch;
use crate::rows::{Family, Impairment, Network, Op, PortKind, Stock};
use crate::skip::SkipReason;
use crate::wire::Wire;

/// A region of registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registration {
    /// The region's number at the end that made it.
    pub key: usize,
    /// Its address, as used in a RETH.
    pub addr: u64,
    /// Its rkey.
    pub rkey: u32,
}

/// Remote access rights of a region. Local writes are always allowed.
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
    /// The region's addresses begin at 0.
    pub zero_based: bool,
    /// FLUSH for global visibility.
    pub flush_global: bool,
    /// FLUSH for persistence.
    pub flush_persistent: bool,
}

impl Access {
    /// No remote access.
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

/// The type of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PairKind {
    /// A reliable connection.
    Rc,
    /// A reliable connection that takes receives from a shared queue.
    RcSharing(Queue),
    /// An unreliable connection.
    Uc,
    /// Unreliable datagrams; in RTS at once.
    Ud {
        /// The Q_Key that a datagram must have.
        qkey: u32,
        /// First PSN to send.
        psn: u32,
    },
}

/// A shared receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queue {
    /// The queue's number at the end that made it.
    pub key: usize,
}

/// An address handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handle {
    /// The handle's number at the end that made it.
    pub key: usize,
}

/// A memory window of type 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The window's number at the end that made it.
    pub key: usize,
}

/// A queue pair, in INIT when made, or in RTS for datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The queue pair's number at the end that made it.
    pub key: usize,
    /// The number of the QP.
    pub qpn: u32,
}

/// The attributes of INIT -> RTR -> RTS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    /// IP version of both ends' addresses.
    pub family: Family,
    /// The other end's address.
    pub remote: IpAddr,
    /// The other end's QPN.
    pub remote_qpn: u32,
    /// Path MTU in bytes.
    pub mtu: usize,
    /// First PSN expected.
    pub rq_psn: u32,
    /// First PSN to send.
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
    /// Returned in the completion.
    pub wr_id: u64,
    /// Destination as (region, offset, length); `None` for no scatter entry.
    pub to: Option<(Registration, usize, usize)>,
}

/// A send request, always signalled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Returned in the completion.
    pub wr_id: u64,
    /// The operation.
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
    /// The value that compare-and-swap stores if the comparand matches.
    pub swap: u64,
    /// Destination of a datagram.
    pub datagram: Option<Destination>,
    /// Parameters of a FLUSH.
    pub flush: Option<Flush>,
}

/// Parameters of a FLUSH, beside address and key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flush {
    /// Bytes of the range to flush.
    pub length: usize,
    /// Global visibility.
    pub global: bool,
    /// Persistence: the responder may answer only when the bytes would survive a power loss.
    pub persistent: bool,
    /// The whole region instead of the range.
    pub whole_region: bool,
}

impl Request {
    /// Makes a request with neither local nor remote side.
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

/// Destination of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// The address handle.
    pub handle: Handle,
    /// The destination QPN; [`MULTICAST_QPN`] for a group.
    pub qpn: u32,
    /// The Q_Key that the destination expects.
    pub qkey: u32,
}

/// The QPN of a multicast group (IBTA 10.5.1).
pub const MULTICAST_QPN: u32 = 0xff_ffff;

/// The status of a completion: the numbers of `enum ibv_wc_status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status(pub u32);

impl Status {
    /// Success.
    pub const SUCCESS: Status = Status(0);
    /// A message longer than the receive.
    pub const LOC_LEN_ERR: Status = Status(1);
    /// Flushed: the queue pair is in the error state.
    pub const WR_FLUSH_ERR: Status = Status(5);
    /// The response does not fit the request.
    pub const BAD_RESP_ERR: Status = Status(7);
    /// The local memory or its key does not allow it.
    pub const LOC_PROT_ERR: Status = Status(4);
    /// Any other failure.
    pub const FATAL_ERR: Status = Status(19);
    /// The queue pair could not do it.
    pub const LOC_QP_OP_ERR: Status = Status(2);
    /// The responder could not do it.
    pub const REM_OP_ERR: Status = Status(11);
    /// The responder refused the request as such.
    pub const REM_INV_REQ_ERR: Status = Status(9);
    /// The responder refused the key, the range or the right.
    pub const REM_ACCESS_ERR: Status = Status(10);
    /// Retry counter exceeded.
    pub const RETRY_EXC_ERR: Status = Status(12);
    /// No receive was posted.
    pub const RNR_RETRY_EXC_ERR: Status = Status(13);
}

impl fmt::Display for Status {
    /// The name in verbs, without `IBV_WC_`.
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

/// The operation that completed successfully.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// A request of this side. SEND, SEND_IMM and SEND_INV count as one, and so do WRITE and WRITE_IMM.
    Request(Op),
    /// The bind of a window.
    Bind,
    /// The invalidation of a local key.
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
    /// The operation, on success.
    pub done: Option<Done>,
    /// Bytes received, on success.
    pub byte_len: u32,
    /// Immediate data in host order, if the message had some.
    pub imm: Option<u32>,
    /// The key that the message invalidated.
    pub invalidated: Option<u32>,
    /// The sender's QPN of a datagram, which has a network header in front.
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

/// Known differences of an implementation from the specification or from hardware.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quirks {
    /// The responder answers a SEND longer than the receive with NAK Remote Operational (and a local operation error of
    /// the receive), instead of NAK Invalid Request and a length error.
    pub long_send_is_operational_error: bool,
    /// An atomic at an address that is no multiple of 8 cannot be posted.
    pub refuses_misaligned_atomics: bool,
    /// The completion of a SEND with invalidate does not report the invalidated key: the kernel's value of that flag
    /// reaches the user, where it has another meaning.
    pub hides_invalidations: bool,
    /// Only persistent memory can be registered for persistent FLUSH.
    pub wants_persistent_memory: bool,
    /// FLUSH packets have a wrong ICRC, and no other is accepted.
    pub flush_has_wrong_icrc: bool,
    /// A failed request completes before the queue pair is in the error state.
    pub completes_before_it_errs: bool,
    /// A window's key opens the whole region: the range is checked against the region's only.
    pub windows_are_as_wide_as_regions: bool,
    /// The connection manager joins no IPv6 group.
    pub joins_no_v6_group: bool,
    /// Requests not sent yet are dropped when their queue pair is destroyed.
    pub forgets_unsent: bool,
    /// There are no XRC domains.
    pub has_no_xrc: bool,
}

/// One end of a row.
pub trait End {
    /// Returns the known differences; none by default.
    fn quirks(&self) -> Quirks {
        Quirks::default()
    }

    /// True if the end has FLUSH and ATOMIC WRITE.
    fn has_placement(&self) -> bool {
        true
    }

    /// Returns this end's address in the family.
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

    /// Returns the bytes of a range, 1024 at most.
    fn read(&mut self, region: Registration, range: Range<usize>) -> Result<Vec<u8>, Error>;

    /// Makes a queue pair with a completion queue of its own, and room for 64 requests and 64 receives.
    fn create_pair(&mut self, kind: PairKind) -> Result<Pair, Error>;

    /// Moves a queue pair through INIT -> RTR -> RTS.
    fn connect(&mut self, pair: Pair, connection: &Connection) -> Result<(), Error>;

    /// Posts a receive.
    fn post_receive(&mut self, pair: Pair, receive: &Receive) -> Result<(), Error>;

    /// Posts a request, which progresses without further calls.
    fn post_send(&mut self, pair: Pair, request: &Request) -> Result<(), Error>;

    /// Waits for `least` completions, up to `timeout`. Returns all that have arrived.
    fn poll(&mut self, pair: Pair, least: usize, timeout: Duration) -> Result<Vec<Completion>, Error>;

    /// Makes an address handle, to an address or a multicast group.
    fn create_handle(&mut self, family: Family, to: IpAddr) -> Result<Handle, Error>;

    /// Makes a shared receive queue with room for 64 receives.
    fn create_queue(&mut self) -> Result<Queue, Error>;

    /// Posts a receive to a shared queue.
    fn post_shared(&mut self, queue: Queue, receive: &Receive) -> Result<(), Error>;

    /// Requests an event when a shared queue holds fewer receives than `limit`.
    fn arm_limit(&mut self, queue: Queue, limit: u32) -> Result<(), Error>;

    /// Waits for the limit event. False after `timeout`.
    fn limit_reached(&mut self, timeout: Duration) -> Result<bool, Error>;

    /// Makes an unbound window of type 2.
    fn create_window(&mut self) -> Result<Window, Error>;

    /// Posts the bind of a window to a range of a region, for READ and WRITE. Returns the new key.
    fn post_bind(
        &mut self,
        pair: Pair,
        wr_id: u64,
        window: Window,
        to: (Registration, usize, usize),
    ) -> Result<u32, Error>;

    /// Posts the invalidation of a local key.
    fn post_invalidate(&mut self, pair: Pair, wr_id: u64, rkey: u32) -> Result<(), Error>;

    /// Attaches a datagram queue pair to a multicast group.
    fn attach(&mut self, pair: Pair, group: IpAddr) -> Result<(), Error>;

    /// Detaches a queue pair from a multicast group.
    fn detach(&mut self, pair: Pair, group: IpAddr) -> Result<(), Error>;

    /// True if this end's kernel has joined the multicast group on some interface.
    fn is_member(&mut self, group: IpAddr) -> Result<bool, Error>;

    /// True if [`End::notify`] is available.
    fn can_notify(&self) -> bool {
        false
    }

    /// Sends a congestion notification to a queue pair of the other end, through a socket.
    fn notify(&mut self, family: Family, to: IpAddr, qpn: u32) -> Result<(), Error> {
        Err(Error::Local(format!("this end sends no notification: {qpn:#x} at {to}, {family}")))
    }

    /// Returns the number of congestion notifications handled so far; `None` without a reaction point.
    fn notifications(&mut self) -> Result<Option<u64>, Error> {
        Ok(None)
    }

    /// Returns the state of the queue pair.
    fn state(&mut self, pair: Pair) -> Result<State, Error>;

    /// Destroys all objects.
    fn reset(&mut self) -> Result<(), Error>;
}

/// Configuration of Roxie's end for a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setup {
    /// The port that carries the row.
    pub port: PortKind,
    /// The fault injected in both directions, by `seed`.
    pub fault: Impairment,
    /// Seed of the fault. Printed if the row fails.
    pub seed: u64,
    /// Congestion control of the queue pairs, in the form of `--cc`; `None` for none.
    pub control: Option<&'static str>,
    /// The link of the queue pairs, and how they recover from losses.
    pub network: Network,
    /// An option of `roxie run` for programs.
    pub program_option: Option<String>,
    /// File for a capture of the row, if wanted.
    pub capture: Option<PathBuf>,
}

/// Why a row cannot start.
#[derive(Debug)]
pub enum Unready {
    /// The row does not apply to this site.
    Skip(SkipReason),
    /// The row applies, but could not be prepared.
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
    /// Exit status; `None` if a signal ended it.
    pub code: Option<i32>,
    /// Its output, both streams.
    pub output: String,
}

/// Roxie's end. Its engine must progress on a thread of its own, because the executor may wait for the peer while Roxie
/// is the responder.
pub trait Local: End {
    /// Opens the port (or keeps it, if the right one is open), sets the fault, starts the capture.
    fn prepare(&mut self, setup: &Setup) -> Result<(), Unready>;

    /// Completes the capture. Fails if the row has raised a counter that no row may raise.
    fn finish(&mut self) -> Result<(), Error>;

    /// Returns the counters of the device and its port, if open.
    fn counters(&self) -> Vec<(&'static str, u64)>;

    /// Waits until a program listens on a TCP port in the site's namespace. False after `timeout`.
    fn wait_for_listener(&mut self, port: u16, timeout: Duration) -> Result<bool, Error>;

    /// Waits until a program has claimed the site's interface for its device. False after `timeout`.
    fn wait_for_claim(&mut self, port: PortKind, timeout: Duration) -> Result<bool, Error>;

    /// Replaces the port by a socket for a script, at the family's address.
    fn replace_by_script(&mut self, family: Family) -> Result<Wire, Error>;

    /// True if `roxie pingpong` implements this stock program.
    fn has_pingpong(&mut self, program: Stock) -> Result<bool, Error>;

    /// Starts `roxie pingpong` on the prepared row's port, at the family's address. `arguments` are those shared with
    /// the stock program.
    fn pingpong(&mut self, program: Stock, family: Family, arguments: &[String]) -> Result<(), Error>;

    /// Returns the index of the family's address in the GID table that programs under `roxie run` see.
    fn gid_index(&mut self, family: Family) -> Result<usize, Error>;

    /// Starts an unmodified program on the prepared row's port.
    fn program(&mut self, name: &str, arguments: &[String]) -> Result<(), Error>;

    /// Starts a command of `roxie` on the prepared row's port, under its fault: `command` is two words, `nvme target`.
    fn command(&mut self, command: [&str; 2], arguments: &[String]) -> Result<(), Error>;

    /// Starts `roxie conform` with these arguments on the site's interface.
    fn bench(&mut self, arguments: &[String]) -> Result<(), Error>;

    /// Asks the program started last to end (SIGTERM).
    fn terminate(&mut self) -> Result<(), Error>;

    /// Waits for the program started last, and kills it after `timeout`.
    fn wait(&mut self, timeout: Duration) -> Result<Ended, Error>;

    /// Kills the program started last, if it runs.
    fn end_program(&mut self);
}
