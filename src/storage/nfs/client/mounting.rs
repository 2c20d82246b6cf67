//! The handle of an exported folder, from MOUNT over TCP.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use roxie::tcp::Timed;
use rustix::net::{AddressFamily, SocketType};

use super::error::ClientError;
use crate::mount::{
    GETPORT, LONGEST_PATH, MAPPER, MAPPER_PORT, PROGRAM, parse_mounted, port_query, procedure,
    receive_record, send_record,
};
use crate::nfs3::FileHandle;
use crate::rpc::{Call, Credential, Outcome, Reply};
use crate::xdr::{Reader, Writer};

/// Time for a connection, and for a reply.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of a reply at most.
const LONGEST_REPLY: usize = 64 << 10;
/// Ports that only privileged programs have, which most servers ask for: from the highest down.
const RESERVED_PORTS: std::ops::RangeInclusive<u16> = 665..=1023;

/// Asks a server for the handle of a folder that it exports. `port`: that of MOUNT; `None`: the one that the server's
/// port mapper says.
///
/// # Errors
/// If the server is not reached, has no MOUNT, or does not export the folder to this client.
pub fn mount(
    server: IpAddr,
    port: Option<u16>,
    path: impl AsRef<[u8]>,
    credential: &Credential<'_>,
) -> Result<FileHandle, ClientError> {
    let path = path.as_ref();
    if path.len() > LONGEST_PATH {
        return Err(ClientError::Protocol(format!(
            "a path of {} bytes; MOUNT takes {LONGEST_PATH}",
            path.len()
        )));
    }
    let port = match port {
        Some(port) => port,
        None => find_port(server)?,
    };
    let mut arguments = Writer::new();
    arguments.opaque(path);
    let at = SocketAddr::new(server, port);
    let reply = call(at, "MOUNT", PROGRAM, procedure::MNT, credential, &arguments.finish())?;
    let mut results = succeeded("MNT", &reply)?;
    match parse_mounted(&mut results)? {
        Ok(handle) => Ok(handle),
        Err(status) => Err(ClientError::Export { path: String::from_utf8_lossy(path).into(), status }),
    }
}

/// Asks the port mapper for the port of MOUNT.
fn find_port(server: IpAddr) -> Result<u16, ClientError> {
    let at = SocketAddr::new(server, MAPPER_PORT);
    let reply = call(at, "port mapper", MAPPER, GETPORT, &Credential::None, &port_query(PROGRAM))?;
    let mut results = succeeded("GETPORT", &reply)?;
    match u16::try_from(results.u32()?) {
        Ok(port) if port > 0 => Ok(port),
        _ => Err(ClientError::Protocol(format!(
            "{server} has no MOUNT version 3 over TCP: name its port, if it has one"
        ))),
    }
}

fn succeeded<'a>(call: &'static str, reply: &'a [u8]) -> Result<Reader<'a>, ClientError> {
    let (reply, results) = Reply::parse(reply)?;
    match reply.outcome {
        Outcome::Success => Ok(results),
        outcome => Err(ClientError::Call { call, outcome }),
    }
}

/// Executes one call on a connection of its own.
fn call(
    at: SocketAddr,
    what: &'static str,
    program: (u32, u32),
    number: u32,
    credential: &Credential<'_>,
    arguments: &[u8],
) -> Result<Vec<u8>, ClientError> {
    let failed = |source| ClientError::Mounting { at, what, source };
    let xid = roxie::random::unguessable() as u32;
    let mut out = Writer::new();
    Call::new(xid, program, number, credential.clone()).write(&mut out);
    let mut message = out.finish();
    message.extend(arguments);
    let exchange = || {
        // For the whole call: a server that sends a byte now and then holds nobody up.
        let mut stream = Timed::new(connect(at)?, PATIENCE);
        send_record(&mut stream, &message)?;
        receive_record(&mut stream, LONGEST_REPLY)?
            .ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))
    };
    let reply = exchange().map_err(failed)?;
    if reply.first_chunk() != Some(&xid.to_be_bytes()) {
        return Err(ClientError::Protocol(format!("{at} replies to another call")));
    }
    Ok(reply)
}

/// Connects, from a reserved port if this process may have one.
fn connect(at: SocketAddr) -> io::Result<TcpStream> {
    if rustix::process::geteuid().is_root() {
        for port in RESERVED_PORTS.rev().take(64) {
            match connect_from(port, at) {
                Ok(stream) => return Ok(stream),
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::AddrInUse | io::ErrorKind::AddrNotAvailable) => {
                }
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => break,
                Err(error) => return Err(error),
            }
        }
    }
    TcpStream::connect_timeout(&at, PATIENCE)
}

fn connect_from(port: u16, at: SocketAddr) -> io::Result<TcpStream> {
    let (family, any): (_, IpAddr) = match at {
        SocketAddr::V4(_) => (AddressFamily::INET, std::net::Ipv4Addr::UNSPECIFIED.into()),
        SocketAddr::V6(_) => (AddressFamily::INET6, std::net::Ipv6Addr::UNSPECIFIED.into()),
    };
    let flags = rustix::net::SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    rustix::net::sockopt::set_socket_reuseaddr(&socket, true)?;
    // The limit of sending is that of connecting too (socket(7)).
    rustix::net::sockopt::set_socket_timeout(&socket, rustix::net::sockopt::Timeout::Send, Some(PATIENCE))?;
    rustix::net::bind(&socket, &SocketAddr::new(any, port))?;
    rustix::net::connect(&socket, &at)?;
    Ok(TcpStream::from(socket))
}
