//! TCP servers of small requests, for clients that may be slow, silent or many.
//!
//! Each connection has a thread of its own, so no client waits for another. A request and a reply have a deadline each,
//! for all of their bytes together ([`Timed`]). Connections are bounded, in all and for each network: a new one takes
//! the place of the oldest.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::threads::{lock, spawn_unsignalled};

/// Interval at which an acceptor looks whether it is to stop, and that it waits if the system is out of descriptors.
const LOOK: Duration = Duration::from_millis(100);

/// Time in which the thread of an evicted connection is expected to end.
const BUSY: Duration = Duration::from_secs(1);

/// A connection with a deadline: reads and writes fail once it has passed.
#[derive(Debug)]
pub struct Timed {
    stream: TcpStream,
    until: Instant,
}

impl Timed {
    /// Allows the stream this time, from now on.
    pub fn new(stream: TcpStream, patience: Duration) -> Timed {
        Timed { stream, until: Instant::now() + patience }
    }

    /// Allows what follows this time, from now on.
    pub fn restart(&mut self, patience: Duration) {
        self.until = Instant::now() + patience;
    }

    /// Ends the stream of this end. The other end's remains.
    ///
    /// # Errors
    /// The error of `shutdown`.
    pub fn finish(&self) -> io::Result<()> {
        self.stream.shutdown(Shutdown::Write)
    }

    fn remaining(&self) -> io::Result<Option<Duration>> {
        match self.until.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(io::ErrorKind::TimedOut.into()),
            left => Ok(Some(left)),
        }
    }
}

/// Returns the error of a timeout as such: a socket reports it as a call that would block.
fn timed_out(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::WouldBlock { io::ErrorKind::TimedOut.into() } else { error }
}

impl Read for Timed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.remaining()?)?;
        self.stream.read(buffer).map_err(timed_out)
    }
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.remaining()?)?;
        self.stream.write(bytes).map_err(timed_out)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// Limits of a server.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections at a time.
    pub connections: usize,
    /// Of these, connections from one network: an IPv4 address, or the upper 64 bits of an IPv6 address.
    pub of_network: usize,
    /// Time for the first request.
    pub patience: Duration,
}

/// Open connections, oldest first.
#[derive(Debug, Default)]
struct Table {
    open: Vec<Open>,
    next: u64,
}

#[derive(Debug)]
struct Open {
    number: u64,
    network: u128,
    /// Another descriptor of the stream. `None` in tests.
    stream: Option<TcpStream>,
}

/// Returns the network of an address. It has one limit, because a host may have all addresses of an IPv6 network.
fn network(ip: IpAddr) -> u128 {
    match ip.to_canonical() {
        IpAddr::V4(v4) => u32::from(v4).into(),
        IpAddr::V6(v6) => u128::from(v6) >> 64 << 64,
    }
}

impl Table {
    /// Adds a connection. Returns its number, and the connection that has to end for it.
    fn add(&mut self, network: u128, stream: Option<TcpStream>, limits: &Limits) -> (u64, Option<Open>) {
        let count = |network: u128| self.open.iter().filter(|open| open.network == network).count();
        let oldest = |network: u128| self.open.iter().position(|open| open.network == network);
        let evicted = if count(network) >= limits.of_network {
            oldest(network)
        } else if self.open.len() >= limits.connections {
            // The first of several with as many connections is the one with the oldest.
            let most = self.open.iter().rev().max_by_key(|open| count(open.network));
            most.and_then(|open| oldest(open.network))
        } else {
            None
        };
        let evicted = evicted.map(|at| self.open.remove(at));
        let number = self.next;
        self.next += 1;
        self.open.push(Open { number, network, stream });
        (number, evicted)
    }

    fn remove(&mut self, number: u64) {
        self.open.retain(|open| open.number != number);
    }
}

impl Open {
    /// Ends the connection: its thread's reads and writes fail.
    fn hang_up(&self) {
        // The client may have ended it already.
        let _ = self.stream.as_ref().map(|stream| stream.shutdown(Shutdown::Both));
    }
}

/// Accepts connections until `stop` is set, or forever without one, and calls `handle` for each on a thread of its own.
pub fn serve(
    listener: &TcpListener,
    limits: &Limits,
    stop: Option<&AtomicBool>,
    handle: impl Fn(Timed, SocketAddr) + Send + Sync + 'static,
) {
    // An accepted connection may be gone before it is accepted, so that accepting would block.
    let _ = listener.set_nonblocking(true);
    let (table, handle) = (Arc::new(Mutex::new(Table::default())), Arc::new(handle));
    while !stop.is_some_and(|stop| stop.load(Relaxed)) {
        match listener.accept() {
            Ok((stream, peer)) => admit(&table, limits, stream, peer, &handle),
            Err(error) => wait(listener, stop.is_some(), error.kind() == io::ErrorKind::WouldBlock),
        }
    }
    lock(&table).open.iter().for_each(Open::hang_up);
}

/// Waits for a connection.
fn wait(listener: &TcpListener, may_stop: bool, is_idle: bool) {
    if !is_idle {
        // A failure that repeats must not take all of a processor.
        return std::thread::sleep(LOOK);
    }
    let timeout = if may_stop { PollTimeout::from(LOOK.as_millis() as u8) } else { PollTimeout::NONE };
    if poll(&mut [PollFd::new(listener.as_fd(), PollFlags::POLLIN)], timeout).is_err() {
        std::thread::sleep(LOOK);
    }
}

fn admit<F: Fn(Timed, SocketAddr) + Send + Sync + 'static>(
    table: &Arc<Mutex<Table>>,
    limits: &Limits,
    stream: TcpStream,
    peer: SocketAddr,
    handle: &Arc<F>,
) {
    let Ok(other) = stream.set_nonblocking(false).and_then(|()| stream.try_clone()) else { return };
    // Threads of evicted connections end soon. A handler may be busy, though: as many as there are connections may be.
    let until = Instant::now() + BUSY;
    while Arc::strong_count(handle) > 2 * limits.connections {
        if Instant::now() > until {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let (number, evicted) = lock(table).add(network(peer.ip()), Some(other), limits);
    if let Some(evicted) = evicted {
        evicted.hang_up();
    }
    let (of_thread, serving, patience) = (Arc::clone(table), Arc::clone(handle), limits.patience);
    let run = move || {
        serving(Timed::new(stream, patience), peer);
        lock(&of_thread).remove(number);
    };
    // A client without a thread sees its connection closed.
    if spawn_unsignalled("roxie-tcp", run).is_err() {
        lock(table).remove(number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { connections: 6, of_network: 4, patience: Duration::from_secs(30) };

    #[test]
    fn oldest_connection_of_the_fullest_network_is_evicted() {
        let mut table = Table::default();
        let mut add = |network| table.add(network, None, &LIMITS).1.map(|evicted| evicted.number);
        assert_eq!([7, 7, 7, 7].map(&mut add), [None; 4]);
        assert_eq!([add(7), add(7)], [Some(0), Some(1)], "no more than 4 of a network");
        assert_eq!([add(8), add(9)], [None, None]);
        assert_eq!(add(10), Some(2), "the oldest of network 7, not of all");
        assert_eq!(add(7), Some(3), "of network 7 again");
        assert_eq!((add(8), add(8)), (Some(4), Some(5)), "of networks with as many, that of the oldest");
        assert_eq!(table.open.len(), LIMITS.connections);
    }

    #[test]
    fn networks_of_ipv6_have_64_bits() {
        let of = |ip: &str| network(ip.parse().expect("an address"));
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:2"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
        assert_ne!(of("192.0.2.2"), of("192.0.2.1"));
    }

    fn pair() -> (Timed, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let client = TcpStream::connect(listener.local_addr().expect("an address")).expect("a connection");
        (Timed::new(listener.accept().expect("a connection").0, Duration::ZERO), client)
    }

    #[test]
    fn deadline_is_for_all_bytes_together() {
        let (mut timed, mut client) = pair();
        // The deadline has passed: bytes that are there make no difference.
        client.write_all(b"slow").expect("room");
        let error = timed.read(&mut [0; 1]).expect_err("late");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(timed.write(b"x").expect_err("late").kind(), io::ErrorKind::TimedOut);
        timed.restart(Duration::from_secs(60));
        let mut bytes = [0; 4];
        timed.read_exact(&mut bytes).expect("in time");
        assert_eq!(&bytes, b"slow");
    }

    #[test]
    fn silent_clients_delay_no_other() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let at = listener.local_addr().expect("an address");
        let echo = |mut timed: Timed, _| {
            let mut byte = [0];
            if timed.read_exact(&mut byte).is_ok() {
                let _ = timed.write_all(&byte);
            }
        };
        std::thread::spawn(move || serve(&listener, &LIMITS, None, echo));
        let connect = || TcpStream::connect(at).expect("a connection");
        let mut silent: Vec<TcpStream> = (0..100).map(|_| connect()).collect();
        let mut honest = connect();
        honest.write_all(b"x").expect("room");
        let mut byte = [0];
        honest.read_exact(&mut byte).expect("an answer, though 100 are silent");
        // The oldest have been closed.
        assert!(matches!(silent[0].read(&mut byte), Ok(0) | Err(_)));
    }
}
