//! The TCP connection over which the two ends of a command exchange addresses and parameters.

use std::io;
use std::net::{Shutdown, TcpListener, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};
use roxie_report::failure::Failure;
use roxie_report::output;

/// Timeout of a connection attempt, and of a read during the exchange.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
/// TCP keepalive: idle seconds before the first probe, and between probes (tcp(7)).
const PROBE_AFTER: u32 = 4;
const PROBE_EVERY: u32 = 2;
/// A host that has not answered for this long is unreachable (TCP_USER_TIMEOUT of tcp(7), RFC 5482).
const USER_TIMEOUT: Duration = Duration::from_secs(12);

/// A byte stream to the other end: TCP, or a socket pair if both ends are in one process.
pub(crate) trait Stream: io::Read + io::Write + Send + 'static {
    /// Sets the read timeout; `None` for none.
    fn limit_reads(&self, limit: Option<Duration>) -> io::Result<()>;
    /// Returns another handle to the same stream.
    fn duplicate(&self) -> io::Result<Box<dyn Stream>>;
    /// Shuts down both directions, for all handles.
    fn hang_up(&self);
}

macro_rules! stream {
    ($kind:ty) => {
        impl Stream for $kind {
            fn limit_reads(&self, limit: Option<Duration>) -> io::Result<()> {
                self.set_read_timeout(limit)
            }
            fn duplicate(&self) -> io::Result<Box<dyn Stream>> {
                Ok(Box::new(self.try_clone()?))
            }
            fn hang_up(&self) {
                // The stream may be closed already.
                let _ = self.shutdown(Shutdown::Both);
            }
        }
    };
}

stream!(TcpStream);
stream!(UnixStream);

/// Parses the TCP port to connect at. Rejects 0, because the other end could not know the chosen port.
pub(crate) fn parse_port(text: &str) -> Result<u16, String> {
    match text.parse() {
        Ok(0) => {
            Err("0 selects any free port, which the other end cannot know: give one from 1 to 65535".into())
        }
        Ok(port) => Ok(port),
        Err(_) => Err("a TCP port is a number from 1 to 65535".into()),
    }
}

/// Listens on all addresses.
pub(crate) fn listen(port: u16) -> Result<TcpListener, Failure> {
    let any6 = TcpListener::bind(("::", port));
    let listener = match any6 {
        Err(e) if matches!(e.kind(), io::ErrorKind::AddrInUse | io::ErrorKind::PermissionDenied) => Err(e),
        // Without IPv6, use IPv4.
        Err(_) => TcpListener::bind(("0.0.0.0", port)),
        listener => listener,
    };
    listener.map_err(|e| match e.kind() {
        io::ErrorKind::AddrInUse => Failure::Usage(format!(
            "TCP port {port} is in use (`ss -tlnp sport = :{port}` shows by whom): stop that program or choose \
             another port with -p at both ends"
        )),
        io::ErrorKind::PermissionDenied => Failure::Usage(format!(
            "TCP port {port} may be opened by root (CAP_NET_BIND_SERVICE) alone, as those below {} here: choose a \
             higher one with -p at both ends",
            first_free_for_all()
        )),
        _ => Failure::Run(format!("cannot listen on TCP port {port}: {e}")),
    })
}

/// Returns the first TCP port that needs no privilege (ip_unprivileged_port_start of ip-sysctl).
fn first_free_for_all() -> u16 {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start");
    text.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(1024)
}

/// Waits for the peer. Afterwards the listener is closed, so that further clients are refused at once.
pub(crate) fn accept(listener: TcpListener, port: u16) -> Result<TcpStream, Failure> {
    output::note(format_args!("waiting for a peer on TCP port {port}"));
    let (stream, _) = listener
        .accept()
        .map_err(|e| Failure::Run(format!("cannot accept a connection on TCP port {port}: {e}")))?;
    tune(&stream);
    Ok(stream)
}

/// Connects to a waiting peer.
pub(crate) fn connect(server: &str, port: u16) -> Result<TcpStream, Failure> {
    let addresses = (server, port).to_socket_addrs().map_err(|e| {
        Failure::Peer(format!("{server} is neither an address nor a name that resolves: {e}"))
    })?;
    let mut last = None;
    for address in addresses {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(stream) => {
                tune(&stream);
                return Ok(stream);
            }
            Err(e) => last = Some(e),
        }
    }
    let why = last.map_or_else(|| "the name has no address".to_owned(), |e| e.to_string());
    Err(Failure::Peer(format!(
        "cannot connect to TCP port {port} of {server}: {why}. Start the server there first (the same command \
         without an address), with the same -p; one that runs already serves another client and takes no second"
    )))
}

/// Sets socket options. Failures are ignored: the exchange is then slower, and a vanished peer is noticed later.
fn tune(stream: &TcpStream) {
    let _ = stream.set_nodelay(true);
    // The stream is silent during a measurement. Without keepalive, a peer that lost power would never be noticed.
    let _ = setsockopt(stream, sockopt::KeepAlive, &true);
    let _ = setsockopt(stream, sockopt::TcpKeepIdle, &PROBE_AFTER);
    let _ = setsockopt(stream, sockopt::TcpKeepInterval, &PROBE_EVERY);
    let _ = setsockopt(stream, sockopt::TcpUserTimeout, &(USER_TIMEOUT.as_millis() as u32));
}
