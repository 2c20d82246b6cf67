//! MOUNT over TCP, by which a client gets the handle of the exported folder.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use super::answer::refusal;
use super::{ServerEvent, Shared};
use crate::mount::{PROGRAM, Status, procedure, receive_record, send_record, write_exports, write_mounted};
use crate::nfs3;
use crate::rpc::{Call, Outcome, Reply};
use crate::xdr::{Malformed, Reader, Writer};

/// Connections at a time.
const MOST_CONNECTIONS: usize = 16;
/// Time that a client may take for a call.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of a call at most.
const LONGEST_CALL: usize = 4096;
/// Interval at which the acceptor looks whether the server is to stop.
const LOOK: Duration = Duration::from_millis(100);

/// Listens, and accepts connections on a thread of its own until the server stops.
pub(super) fn start(
    shared: &Arc<Shared>,
    at: SocketAddr,
) -> io::Result<(SocketAddr, std::thread::JoinHandle<()>)> {
    let listener = TcpListener::bind(at).or_else(|error| match at {
        // A system without IPv6.
        SocketAddr::V6(all) if all.ip().is_unspecified() && error.kind() != io::ErrorKind::AddrInUse => {
            TcpListener::bind((std::net::Ipv4Addr::UNSPECIFIED, all.port()))
        }
        _ => Err(error),
    })?;
    listener.set_nonblocking(true)?;
    let at = listener.local_addr()?;
    let shared = Arc::clone(shared);
    let thread = std::thread::Builder::new().name("nfs-mount".into());
    Ok((at, thread.spawn(move || accept(&shared, &listener))?))
}

fn accept(shared: &Arc<Shared>, listener: &TcpListener) {
    let connections = Arc::new(AtomicUsize::new(0));
    while !shared.stops() {
        let Ok((stream, peer)) = listener.accept() else {
            wait(listener);
            continue;
        };
        if connections.load(Relaxed) >= MOST_CONNECTIONS {
            continue;
        }
        let counted = Counted::new(&connections);
        let serving = Arc::clone(shared);
        // A client without a thread sees its connection closed.
        let _ = std::thread::Builder::new().name("nfs-mount".into()).spawn(move || {
            let _counted = counted;
            if let Err(error) = serve(&serving, stream, peer)
                && !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
            {
                (serving.report)(ServerEvent::Ended { peer, why: format!("MOUNT: {error}") });
            }
        });
    }
}

/// Waits for a connection, for a tenth of a second at most.
fn wait(listener: &TcpListener) {
    let mut fds = [rustix::event::PollFd::from_borrowed_fd(listener.as_fd(), rustix::event::PollFlags::IN)];
    let timeout = rustix::event::Timespec { tv_sec: 0, tv_nsec: LOOK.as_nanos() as i64 };
    // A failure that repeats must not take all of a processor.
    if rustix::event::poll(&mut fds, Some(&timeout)).is_err() {
        std::thread::sleep(LOOK);
    }
}

/// A counted connection; no longer counted when dropped.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(count: &Arc<AtomicUsize>) -> Counted {
        count.fetch_add(1, Relaxed);
        Counted(Arc::clone(count))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

fn serve(shared: &Shared, mut stream: TcpStream, peer: SocketAddr) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    while let Some(record) = receive_record(&mut stream, LONGEST_CALL)? {
        let reply = answer(shared, &record, peer).map_err(|malformed| {
            io::Error::new(io::ErrorKind::InvalidData, format!("a malformed call: {malformed}"))
        })?;
        send_record(&mut stream, &reply)?;
        if shared.stops() {
            break;
        }
    }
    Ok(())
}

fn answer(shared: &Shared, message: &[u8], peer: SocketAddr) -> Result<Vec<u8>, Malformed> {
    let (call, mut reader) = Call::parse(message)?;
    let mut results = Writer::new();
    let outcome = match refusal(&call, PROGRAM) {
        Some(outcome) => outcome,
        None => execute(shared, call.procedure, &mut reader, peer, &mut results),
    };
    let mut out = Writer::new();
    Reply { xid: call.xid, outcome }.write(&mut out);
    let mut reply = out.finish();
    reply.extend(results.finish());
    Ok(reply)
}

fn execute(
    shared: &Shared,
    number: u32,
    reader: &mut Reader<'_>,
    peer: SocketAddr,
    out: &mut Writer,
) -> Outcome {
    match number {
        procedure::NULL | procedure::UMNTALL => {}
        procedure::MNT => {
            let Ok(path) = reader.opaque(crate::mount::LONGEST_PATH) else { return Outcome::Garbage };
            let found = shared.export.mount(path).map_err(|status| match status {
                nfs3::Status::NOENT => Status::NOENT,
                nfs3::Status::NOTDIR => Status::NOTDIR,
                _ => Status::ACCES,
            });
            let path = String::from_utf8_lossy(path).into_owned();
            let refusal = found.as_ref().err().map(ToString::to_string);
            (shared.report)(ServerEvent::Mounted { peer, path, refusal });
            write_mounted(found.as_ref().map_err(|status| *status), out);
        }
        procedure::UMNT => {
            if reader.opaque(crate::mount::LONGEST_PATH).is_err() {
                return Outcome::Garbage;
            }
        }
        // Clients are not recorded.
        procedure::DUMP => drop(out.bool(false)),
        procedure::EXPORT => write_exports(b"/", out),
        _ => return Outcome::NoProcedure,
    }
    Outcome::Success
}
