//! MOUNT over TCP, by which a client gets the handle of the exported folder.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use roxie::tcp::{self, Timed};

use super::answer::refusal;
use super::{ServerEvent, Shared};
use crate::mount::{PROGRAM, Status, procedure, receive_record, send_record, write_exports, write_mounted};
use crate::nfs3;
use crate::rpc::{Call, Outcome, Reply};
use crate::xdr::{Malformed, Reader, Writer};

/// Time that a client may take for a whole call, and again for the whole reply.
const PATIENCE: Duration = Duration::from_secs(10);
/// Connections at a time. A client needs one, for a moment.
const LIMITS: tcp::Limits = tcp::Limits { connections: 16, of_network: 4, patience: PATIENCE };
/// Bytes of a call at most.
const LONGEST_CALL: usize = 4096;

/// Listens, and accepts connections on a thread of its own until the server stops.
pub(super) fn start(
    shared: &Arc<Shared>,
    stop: &Arc<AtomicBool>,
    at: SocketAddr,
) -> io::Result<(SocketAddr, std::thread::JoinHandle<()>)> {
    let listener = TcpListener::bind(at).or_else(|error| match at {
        // A system without IPv6.
        SocketAddr::V6(all) if all.ip().is_unspecified() && error.kind() != io::ErrorKind::AddrInUse => {
            TcpListener::bind((std::net::Ipv4Addr::UNSPECIFIED, all.port()))
        }
        _ => Err(error),
    })?;
    let at = listener.local_addr()?;
    let (serving, [stops, stopping]) = (Arc::clone(shared), [(); 2].map(|()| Arc::clone(stop)));
    let handle = move |stream: Timed, peer| {
        let closed = [io::ErrorKind::TimedOut, io::ErrorKind::UnexpectedEof];
        if let Err(error) = serve(&serving, &stops, stream, peer)
            && !closed.contains(&error.kind())
        {
            (serving.report)(ServerEvent::Ended { peer, why: format!("MOUNT: {error}") });
        }
    };
    let accept = move || tcp::serve(&listener, &LIMITS, Some(&stopping), handle);
    Ok((at, std::thread::Builder::new().name("nfs-mount".into()).spawn(accept)?))
}

fn serve(shared: &Shared, stop: &AtomicBool, mut stream: Timed, peer: SocketAddr) -> io::Result<()> {
    while let Some(record) = receive_record(&mut stream, LONGEST_CALL)? {
        let reply = answer(shared, &record, peer).map_err(|malformed| {
            io::Error::new(io::ErrorKind::InvalidData, format!("a malformed call: {malformed}"))
        })?;
        stream.restart(PATIENCE);
        send_record(&mut stream, &reply)?;
        stream.restart(PATIENCE);
        if stop.load(Relaxed) {
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
