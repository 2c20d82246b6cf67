//! A memory port with injected misbehaviour, and the environment of a device on it.

use std::fmt::Arguments;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::time::{ClockId, clock_gettime};
use roxie::frame::FrameMut;
use roxie::host::{Resolve, ResolveError};
use roxie::netdev::RouteKey;
use roxie::port::memory::MemoryPort;
use roxie::port::{LinkChange, Port, PortInfo, Received, RxOptions, TxId};
use roxie::time::Nanos;

/// Returns the station address of end `n`.
pub(super) fn mac(n: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, n]
}

/// Returns its addresses, one of each family.
pub(super) fn addresses(n: u8) -> [IpAddr; 2] {
    [IpAddr::from([192, 0, 2, n]), IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, n.into()])]
}

/// Derives the station address from the last byte of the IP address.
pub(super) struct Neighbour;

impl Resolve for Neighbour {
    fn resolve(&self, key: RouteKey) -> Result<[u8; 6], ResolveError> {
        Ok(match key.destination {
            IpAddr::V4(ip) => mac(ip.octets()[3]),
            IpAddr::V6(ip) => mac(ip.octets()[15]),
        })
    }
}

/// A memory port with injected misbehaviour.
pub(super) struct Bent {
    inner: MemoryPort,
    info: PortInfo,
    /// If set, the next burst panics.
    fuse: Arc<AtomicBool>,
    /// A descriptor that never becomes readable, in place of the port's: as if another reader were always faster, which
    /// happens with sockets.
    never: Option<EventFd>,
    /// If set, the port carries small frames only, and the NIC does not know yet.
    shrunk: Arc<AtomicBool>,
    small: PortInfo,
    link: Arc<Link>,
}

/// An action to run once while the worker is held.
pub(super) type Meanwhile = Mutex<Option<Box<dyn FnOnce() + Send>>>;

/// A flush of the port.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kick {
    pub(super) thread: ThreadId,
    pub(super) at: Instant,
    /// CPU time of the thread so far.
    pub(super) processor: Duration,
}

impl Kick {
    fn now() -> Kick {
        let processor = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("the thread's clock");
        Kick { thread: thread::current().id(), at: Instant::now(), processor: processor.into() }
    }
}

/// The link behind a port, with injected misbehaviour.
#[derive(Default)]
pub(super) struct Link {
    /// If set, the link accepts no frame.
    pub(super) is_down: AtomicBool,
    /// If set, the link reports an error.
    pub(super) is_broken: AtomicBool,
    /// Number of flushes.
    pub(super) kicks: AtomicU32,
    /// Each flush while the link was down.
    pub(super) in_vain: Mutex<Vec<Kick>>,
    /// Number of requests for receive timestamps.
    pub(super) stamps: AtomicU32,
    /// Number of frames that the port is to expect.
    pub(super) expected: AtomicUsize,
    /// If set, the link cannot receive MAC control frames.
    pub(super) hides_pauses: AtomicBool,
    /// Runs when the port next follows the link.
    pub(super) meanwhile: Meanwhile,
}

impl Bent {
    pub(super) fn new(inner: MemoryPort) -> Bent {
        let info = inner.info().clone();
        let small = PortInfo { mtu: 600, max_frame: 614, ..info.clone() };
        Bent {
            inner,
            info,
            fuse: Arc::default(),
            never: None,
            shrunk: Arc::default(),
            small,
            link: Arc::default(),
        }
    }

    pub(super) fn whose_readiness_is_taken(mut self) -> Bent {
        let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
        self.never = Some(EventFd::from_flags(flags).expect("an eventfd"));
        self
    }

    pub(super) fn shrinks(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.shrunk)
    }

    pub(super) fn link(&self) -> Arc<Link> {
        Arc::clone(&self.link)
    }

    pub(super) fn fuse(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.fuse)
    }
}

impl Port for Bent {
    fn info(&self) -> &PortInfo {
        if self.shrunk.load(Relaxed) { &self.small } else { &self.info }
    }

    fn rx_burst(&mut self, now: Nanos) -> usize {
        assert!(!self.fuse.load(Relaxed), "the fuse is lit: this panic is part of the test");
        self.inner.rx_burst(now)
    }

    fn rx_frame(&self, i: usize) -> Received<'_> {
        self.inner.rx_frame(i)
    }

    fn rx_note(&mut self, i: usize, note: Arguments<'_>) {
        self.inner.rx_note(i, note);
    }

    fn rx_release(&mut self) {
        self.inner.rx_release();
    }

    fn tx_alloc(&mut self, len: usize) -> Option<TxId> {
        if len > self.info().max_frame { None } else { self.inner.tx_alloc(len) }
    }

    fn tx_frame(&mut self, id: &TxId) -> FrameMut<'_> {
        self.inner.tx_frame(id)
    }

    fn tx_commit(&mut self, id: TxId) {
        self.inner.tx_commit(id);
    }

    fn tx_cancel(&mut self, id: TxId) {
        self.inner.tx_cancel(id);
    }

    fn tx_flush(&mut self, now: Nanos) -> io::Result<()> {
        self.link.kicks.fetch_add(1, Relaxed);
        if self.link.is_broken.load(Relaxed) {
            return Err(io::Error::other("the cable is cut"));
        }
        if self.link.is_down.load(Relaxed) {
            self.link.in_vain.lock().unwrap().push(Kick::now());
            return Ok(());
        }
        self.inner.tx_flush(now)
    }

    fn tx_pending(&self) -> bool {
        self.link.is_down.load(Relaxed) || self.inner.tx_pending()
    }

    fn next_event(&self) -> Nanos {
        self.inner.next_event()
    }

    fn set_rx_wishes(&mut self, wishes: RxOptions) -> io::Result<()> {
        self.link.stamps.fetch_add(u32::from(wishes.arrivals), Relaxed);
        if wishes.mac_control && self.link.hides_pauses.load(Relaxed) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        Ok(())
    }

    fn expect_frames(&mut self, frames: usize) {
        self.link.expected.store(frames, Relaxed);
    }

    fn event_fds(&self) -> Vec<BorrowedFd<'_>> {
        match &self.never {
            Some(never) => vec![never.as_fd()],
            None => self.inner.event_fds(),
        }
    }

    fn prepare_sleep(&mut self) -> bool {
        self.inner.prepare_sleep()
    }

    fn follow(&mut self, change: &LinkChange) -> io::Result<()> {
        if let Some(act) = self.link.meanwhile.lock().unwrap().take() {
            act();
        }
        self.inner.follow(change)?;
        self.info = self.inner.info().clone();
        Ok(())
    }

    fn counters(&self, out: &mut Vec<(&'static str, u64)>) {
        self.inner.counters(out);
    }
}
