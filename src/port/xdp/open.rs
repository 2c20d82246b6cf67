//! Opens an interface: finds the best mode that works, and records why better ones did not.

#![allow(unsafe_code)]

use std::error::Error;
use std::io;
use std::num::NonZeroU32;
use std::os::fd::AsRawFd;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit, setrlimit};
use nix::sys::socket::{setsockopt, sockopt};
use xsk_rs::config::{BindFlags, FrameSize, LibxdpFlags, QueueSize, SocketConfig, UmemConfig};
use xsk_rs::{Socket, Umem};

use super::config::CHUNK;
use super::port::Queue;
use super::rings;
use super::steering::{AttachError, Steering, program_name};
use super::{Mode, XdpConfig, XdpError, config, owner};
use crate::chunks::{CHUNK_DATA, Receiver, Sender};
use crate::netdev::{Bond, Interface};

/// Ethernet header and one VLAN tag, which the MTU does not count.
const L2_HEADER: usize = 14 + 4;
/// How long to wait for a former owner's socket or program to disappear; measured: about 100 ms after a kill.
const PATIENCE: Duration = Duration::from_secs(2);
/// Pause between attempts.
const PAUSE: Duration = Duration::from_millis(20);
/// Frames that one system call may send in copy mode; the kernel's default is 32.
const TX_BUDGET: u32 = 256;
/// `XDP_MAX_TX_SKB_BUDGET` (`include/uapi/linux/if_xdp.h`, since Linux 6.18).
const XDP_MAX_TX_SKB_BUDGET: libc::c_int = 9;
/// Copy mode charges frames in flight to the socket: room for a full ring of the longest.
const SEND_BUFFER: usize = 32 << 20;

/// An interface that is open.
pub(super) struct Opened {
    pub(super) queues: Vec<Queue>,
    pub(super) steering: Steering,
    /// The interface as of after the program was attached.
    pub(super) interface: Interface,
    /// The mode that worked, in the form of [`crate::PortInfo::mode`].
    pub(super) mode: String,
    pub(super) multi_buffer: bool,
}

/// Options with which a socket may be bound.
#[derive(Clone, Copy)]
struct BindOptions {
    zero_copy: bool,
    multi_buffer: bool,
}

impl BindOptions {
    fn name(self) -> &'static str {
        match (self.zero_copy, self.multi_buffer) {
            (true, true) => "zero-copy",
            (true, false) => "zero-copy without multi-buffer",
            (false, true) => "copy",
            (false, false) => "copy without multi-buffer",
        }
    }
}

/// Opens `config.interface` in the best mode that works and `config` allows.
pub(super) fn open(config: &XdpConfig) -> Result<Opened, XdpError> {
    config.check()?;
    let interface = Interface::by_name(&config.interface)?;
    // A socket belongs to one interface, so a bond that fails over would leave it behind.
    if interface.driver == "bond"
        && let Some(Bond { mode, slaves }) = Bond::of(interface.index)?
    {
        return Err(XdpError::Bond { interface: interface.name, mode, slaves });
    }
    raise_locked_memory();
    let mut steering = Steering::load(config.roce_v1)?;
    let hooks: &[bool] = match config.mode {
        Mode::Auto => &[true, false],
        Mode::ZeroCopy | Mode::Native => &[true],
        Mode::Generic => &[false],
    };
    let mut tried = Vec::new();
    for &native in hooks {
        let hook = if native { "native" } else { "generic" };
        if let Err(e) = attach(&mut steering, &interface, native)? {
            tried.push(format!("{hook}: {}", short(&e)));
            continue;
        }
        // Query it again: a driver may have enabled more queues for XDP (virtio-net does).
        let interface = Interface::by_name(&config.interface)?;
        match bind_all(config, &interface, native, &mut tried)? {
            Some((queues, options)) => {
                return finish(config, interface, steering, queues, (native, options), &tried);
            }
            None => steering.detach()?,
        }
    }
    Err(XdpError::Unsupported {
        interface: interface.name,
        driver: interface.driver,
        tried: tried.join("; "),
    })
}

/// Sets the program's sockets and addresses.
fn finish(
    config: &XdpConfig,
    interface: Interface,
    mut steering: Steering,
    queues: Vec<Queue>,
    (native, options): (bool, BindOptions),
    tried: &[String],
) -> Result<Opened, XdpError> {
    steering.set_station(interface.mac)?;
    for queue in &queues {
        steering.set_socket(queue.id, queue.receiver.rings().fd())?;
    }
    if config.addresses.is_empty() {
        let own: Vec<_> = interface.addresses.iter().map(|a| a.ip).collect();
        steering.set_addresses(&own)?;
    } else {
        steering.set_addresses(&config.addresses)?;
    }
    let hook = if native { "native" } else { "generic" };
    let mode = match (options.zero_copy, tried.is_empty()) {
        (true, true) => options.name().to_owned(),
        (true, false) => format!("{} ({})", options.name(), tried.join("; ")),
        (false, true) => format!("{hook} {}", options.name()),
        (false, false) => format!("{hook} {} ({})", options.name(), tried.join("; ")),
    };
    Ok(Opened { queues, steering, interface, mode, multi_buffer: options.multi_buffer })
}

/// Returns the longest frame that is one packet on a link of that MTU.
pub(super) fn longest_frame(mtu: usize) -> usize {
    mtu + L2_HEADER
}

/// Returns the longest frame that this port can send on a link of that MTU.
pub(super) fn max_frame(mtu: usize, multi_buffer: bool) -> usize {
    let chunks = if multi_buffer { 2 } else { 1 };
    longest_frame(mtu).min(chunks * CHUNK_DATA)
}

/// Attaches the program. The inner error means that this hook does not work here: try the next.
fn attach(
    steering: &mut Steering,
    interface: &Interface,
    native: bool,
) -> Result<Result<(), io::Error>, XdpError> {
    let start = Instant::now();
    loop {
        let late = start.elapsed() >= PATIENCE;
        let error = match steering.attach(interface, native) {
            Ok(()) => return Ok(Ok(())),
            Err(AttachError::Other(e)) => return Err(e),
            Err(AttachError::Refused(e)) => e,
        };
        match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => {
                let action = format!("attach the steering program to {}", interface.name);
                return Err(XdpError::NotPermitted { action });
            }
            // EBUSY: the slot is taken; EEXIST: by a program of the other hook.
            Some(libc::EBUSY | libc::EEXIST) => {
                let now = Interface::by_name(&interface.name)?;
                match now.xdp_program {
                    // The link of an owner that has ended disappears after a moment. A launcher has one for as long as
                    // it tells the peers of a program that has ended.
                    Some(id) if late => {
                        return Err(XdpError::ProgramAttached {
                            interface: now.name,
                            program: program_name(id),
                            id,
                            holders: owner::of_program(id),
                        });
                    }
                    None if late => return Ok(Err(error)),
                    _ => sleep(PAUSE),
                }
            }
            _ => return Ok(Err(error)),
        }
    }
}

/// Binds a socket to every queue, all with the same options: the first that work. `None` if none does.
fn bind_all(
    config: &XdpConfig,
    interface: &Interface,
    native: bool,
    tried: &mut Vec<String>,
) -> Result<Option<(Vec<Queue>, BindOptions)>, XdpError> {
    let queues = queues_of(config, interface)?;
    let may_zero_copy = native && matches!(config.mode, Mode::Auto | Mode::ZeroCopy);
    let may_copy = config.mode != Mode::ZeroCopy;
    let candidates = [(true, true), (true, false), (false, true), (false, false)]
        .map(|(zero_copy, multi_buffer)| BindOptions { zero_copy, multi_buffer });
    'candidates: for options in candidates {
        if (options.zero_copy && !may_zero_copy) || (!options.zero_copy && !may_copy) {
            continue;
        }
        let mut bound = Vec::with_capacity(queues.len());
        for &queue in &queues {
            match bind_patiently(config, interface, queue, options)? {
                Ok(queue) => bound.push(queue),
                Err(e) => {
                    // Without zero-copy support, both its variants fail alike: one line suffices.
                    let reason = format!("{}: {}", options.name(), short(&e));
                    let is_repeated = tried.last().is_some_and(|last| last.ends_with(&short(&e)));
                    if !(is_repeated && options.zero_copy) {
                        tried.push(reason);
                    }
                    continue 'candidates;
                }
            }
        }
        return Ok(Some((bound, options)));
    }
    Ok(None)
}

/// Returns the queues to bind: the configured ones, or all.
fn queues_of(config: &XdpConfig, interface: &Interface) -> Result<Vec<u32>, XdpError> {
    if config.queues.is_empty() {
        // The kernel gets the frames of a queue without a socket, so binding only some would lose RoCE silently.
        if interface.rx_queues as usize > config::MAX_QUEUES {
            return Err(XdpError::Config(format!(
                "{} has {} receive queues, a port takes {}: use fewer (`ethtool -L {} combined {}`)",
                interface.name,
                interface.rx_queues,
                config::MAX_QUEUES,
                interface.name,
                config::MAX_QUEUES
            )));
        }
        return Ok((0..interface.rx_queues).collect());
    }
    match config.queues.iter().find(|q| **q >= interface.rx_queues) {
        Some(&queue) => Err(XdpError::NoSuchQueue {
            interface: interface.name.clone(),
            queue,
            count: interface.rx_queues,
        }),
        None => Ok(config.queues.clone()),
    }
}

/// Binds one socket; waits for a former owner to disappear. The inner error means that these options do not work here.
fn bind_patiently(
    config: &XdpConfig,
    interface: &Interface,
    queue: u32,
    options: BindOptions,
) -> Result<Result<Queue, io::Error>, XdpError> {
    let start = Instant::now();
    loop {
        let error = match bind(config, interface, queue, options) {
            Ok(queue) => return Ok(Ok(queue)),
            Err(BindError::Fatal(e)) => return Err(e),
            Err(BindError::Refused(e)) => e,
        };
        match error.raw_os_error() {
            Some(libc::EBUSY) if start.elapsed() < PATIENCE => sleep(PAUSE),
            Some(libc::EBUSY) => {
                return Err(XdpError::QueueBusy {
                    interface: interface.name.clone(),
                    queue,
                    waited_ms: start.elapsed().as_millis(),
                    holders: owner::describe(&owner::of_sockets()),
                });
            }
            Some(libc::EPERM | libc::EACCES) => {
                let action = format!("bind an AF_XDP socket to queue {queue} of {}", interface.name);
                return Err(XdpError::NotPermitted { action });
            }
            _ => return Ok(Err(error)),
        }
    }
}

/// Why a socket was not bound.
enum BindError {
    /// The kernel refused these options.
    Refused(io::Error),
    /// No other options would work either.
    Fatal(XdpError),
}

/// Creates the memory and the socket of one queue.
fn bind(
    config: &XdpConfig,
    interface: &Interface,
    queue: u32,
    options: BindOptions,
) -> Result<Queue, BindError> {
    let fatal = |e: &dyn Error| BindError::Fatal(XdpError::Config(e.to_string()));
    let ring = QueueSize::new(config.ring).map_err(|e| fatal(&e))?;
    let umem_config = UmemConfig::builder()
        .frame_size(FrameSize::new(CHUNK).map_err(|e| fatal(&e))?)
        .fill_queue_size(ring)
        .comp_queue_size(ring)
        .build()
        .map_err(|e| fatal(&e))?;
    let count = NonZeroU32::new(2 * config.ring)
        .ok_or_else(|| BindError::Fatal(XdpError::Config("ring of 0 entries".to_owned())))?;
    let (umem, descriptors) =
        Umem::new(umem_config, count, false).map_err(|e| umem_refused(&e, u64::from(count.get())))?;

    let mut flags = BindFlags::XDP_USE_NEED_WAKEUP;
    flags |= if options.zero_copy { BindFlags::XDP_ZEROCOPY } else { BindFlags::XDP_COPY };
    if options.multi_buffer {
        flags |= BindFlags::XDP_USE_SG;
    }
    let socket_config = SocketConfig::builder()
        .rx_queue_size(ring)
        .tx_queue_size(ring)
        .libxdp_flags(LibxdpFlags::XSK_LIBXDP_FLAGS_INHIBIT_PROG_LOAD)
        .bind_flags(flags)
        .build();
    let name = interface.name.parse().map_err(|e| fatal(&e))?;
    // SAFETY: this UMEM is new and has no other socket, so the (interface, queue) pair is not bound through
    // it; and INHIBIT_PROG_LOAD is set, which the contract asks for otherwise.
    let made = unsafe { Socket::new(socket_config, &umem, &name, queue) };
    let (tx, rx, rings) = made.map_err(|e| BindError::Refused(os_error(&e)))?;
    let (fill, comp) = rings.ok_or_else(|| {
        BindError::Refused(io::Error::other("the socket came without fill and completion rings"))
    })?;
    tune(tx.fd().as_raw_fd());
    let socket = rings::Socket { rx, tx, fill, comp, umem, descriptors, ring: config.ring };
    let ((receive, received), (send, sent)) = socket.split();
    let copy_mode = !options.zero_copy;
    let receiver = Receiver::new(receive, received, longest_frame(interface.mtu), copy_mode);
    Ok(Queue { id: queue, receiver, sender: Sender::new(send, sent, copy_mode) })
}

/// Keeps the socket, and with it the queue, from programs that this process starts or becomes, and sets options that
/// make it faster, where the kernel has them.
fn tune(socket: i32) {
    // SAFETY: the descriptor belongs to a socket that is open for the whole function.
    let socket = unsafe { std::os::fd::BorrowedFd::borrow_raw(socket) };
    let _ = fcntl(socket, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC));
    let _ = setsockopt(&socket, sockopt::SndBufForce, &SEND_BUFFER)
        .or_else(|_| setsockopt(&socket, sockopt::SndBuf, &SEND_BUFFER));
    let budget = TX_BUDGET;
    // SAFETY: the option's value is a u32 that lives across the call, with its length. Older kernels answer
    // ENOPROTOOPT, which costs more system calls and nothing else.
    unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_XDP,
            XDP_MAX_TX_SKB_BUDGET,
            (&raw const budget).cast(),
            size_of_val(&budget) as libc::socklen_t,
        );
    }
}

/// Raises the limit of locked memory as far as allowed; [`umem_refused`] explains if that was not enough.
fn raise_locked_memory() {
    if setrlimit(Resource::RLIMIT_MEMLOCK, RLIM_INFINITY, RLIM_INFINITY).is_err()
        && let Ok((_, hard)) = getrlimit(Resource::RLIMIT_MEMLOCK)
    {
        let _ = setrlimit(Resource::RLIMIT_MEMLOCK, hard, hard);
    }
}

/// Explains why a UMEM was refused.
fn umem_refused(error: &(dyn Error + 'static), chunks: u64) -> BindError {
    let needed = chunks * u64::from(CHUNK);
    let source = os_error(error);
    BindError::Fatal(match source.raw_os_error() {
        Some(libc::ENOBUFS) => {
            let limit = getrlimit(Resource::RLIMIT_MEMLOCK).map_or(0, |(soft, _)| soft);
            XdpError::LockedMemory { needed, limit }
        }
        Some(libc::EPERM | libc::EACCES) => {
            XdpError::NotPermitted { action: "open an AF_XDP socket".to_owned() }
        }
        Some(libc::EAFNOSUPPORT) => XdpError::Kernel {
            action: "open an AF_XDP socket (the kernel is built without CONFIG_XDP_SOCKETS)".to_owned(),
            source,
        },
        _ => XdpError::Kernel { action: format!("register {needed} bytes of packet memory"), source },
    })
}

/// Returns the kernel's error inside an error of xsk-rs.
fn os_error(error: &(dyn Error + 'static)) -> io::Error {
    match error.source().and_then(|e| e.downcast_ref::<io::Error>()).and_then(io::Error::raw_os_error) {
        Some(code) => io::Error::from_raw_os_error(code),
        None => io::Error::other(error.to_string()),
    }
}

/// Returns `Operation not supported` rather than `Operation not supported (os error 95)`.
fn short(error: &io::Error) -> String {
    error
        .raw_os_error()
        .map_or_else(|| error.to_string(), |code| nix::errno::Errno::from_raw(code).desc().to_owned())
}
