//! The TCP connection beside the RDMA one, over which the two ends tell one another their numbers.

use std::io;
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use super::Failure;

/// How long a connection may take, and how long a peer may be silent while numbers are exchanged.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// A byte stream to the other end: TCP, or a socket pair where both ends are in one process.
pub(crate) trait Stream: io::Read + io::Write + Send + 'static {
    /// Bounds how long a read may wait; `None`: for ever.
    fn limit_reads(&self, limit: Option<Duration>) -> io::Result<()>;
    /// Another handle to the same stream.
    fn duplicate(&self) -> io::Result<Box<dyn Stream>>;
    /// Ends both directions, whoever else holds a handle.
    fn hang_up(&self);
}

impl Stream for TcpStream {
    fn limit_reads(&self, limit: Option<Duration>) -> io::Result<()> {
        self.set_read_timeout(limit)
    }
    fn duplicate(&self) -> io::Result<Box<dyn Stream>> {
        Ok(Box::new(self.try_clone()?))
    }
    fn hang_up(&self) {
        // It may be closed already.
        let _ = self.shutdown(std::net::Shutdown::Both);
    }
}

impl Stream for UnixStream {
    fn limit_reads(&self, limit: Option<Duration>) -> io::Result<()> {
        self.set_read_timeout(limit)
    }
    fn duplicate(&self) -> io::Result<Box<dyn Stream>> {
        Ok(Box::new(self.try_clone()?))
    }
    fn hang_up(&self) {
        let _ = self.shutdown(std::net::Shutdown::Both);
    }
}

/// Listens on all addresses.
pub(crate) fn listen(port: u16) -> Result<TcpListener, Failure> {
    let any6 = TcpListener::bind(("::", port));
    let listener = match any6 {
        // Without IPv6 there is still IPv4.
        Err(e) if e.kind() != io::ErrorKind::AddrInUse => TcpListener::bind(("0.0.0.0", port)),
        other => other,
    };
    listener.map_err(|e| match e.kind() {
        io::ErrorKind::AddrInUse => Failure::Usage(format!(
            "TCP port {port} is in use (`ss -tlnp sport = :{port}` shows by whom): stop that program or choose \
             another port with -p at both ends"
        )),
        _ => Failure::Run(format!("cannot listen on TCP port {port}: {e}")),
    })
}

/// Waits for a peer.
pub(crate) fn accept(listener: &TcpListener, port: u16) -> Result<TcpStream, Failure> {
    eprintln!("roxie: waiting for a peer on TCP port {port}");
    let (stream, _) = listener
        .accept()
        .map_err(|e| Failure::Run(format!("cannot accept a connection on TCP port {port}: {e}")))?;
    tune(&stream);
    Ok(stream)
}

/// Connects to a peer that waits.
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
         without an address), with the same -p"
    )))
}

fn tune(stream: &TcpStream) {
    // Only a matter of speed.
    let _ = stream.set_nodelay(true);
}
