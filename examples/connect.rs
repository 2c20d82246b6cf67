//! A client and a server that connect by address and port, as with RDMA-CM.
//!
//! ```text
//! cargo run --example connect                                      both ends in this process
//! cargo run --example connect -- eth0                              waits for a client
//! cargo run --example connect -- eth0 192.0.2.1                    sends to that server
//! ```
//!
//! The calls of `librdmacm` for this are `rdma_listen`, `rdma_connect` and `rdma_accept`, and either end may be a
//! program that uses them. The two connection managers exchange all parameters over queue pair 1: no other connection
//! is needed.

use std::error::Error;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use roxie::host::{ConnectionManager, Device, DeviceConfig};
use roxie::verbs::{Access, SendWr};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const PORT: u16 = 7174;
const PATIENCE: Duration = Duration::from_secs(30);
const GREETING: &[u8] = b"hello by address and port";

fn main() -> Result<()> {
    // Prints what the library reports: frames that cannot be sent, and the remedy.
    roxie::stderr_log::install();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => in_one_process(),
        [interface] => serve(&Device::open(interface)?),
        [interface, server] => send(&Device::open(interface)?, server.parse()?),
        _ => Err("usage: connect [INTERFACE [SERVER]]".into()),
    }
}

fn in_one_process() -> Result<()> {
    let (local, remote) = Device::memory_pair(&DeviceConfig::default())?;
    let server = remote.gid(0)?.to_ip();
    let serving = std::thread::spawn(move || serve(&remote));
    // For a moment, the manager repeats a request that arrives before the server listens.
    send(&local, server)?;
    serving.join().expect("no panic")
}

fn serve(device: &Device) -> Result<()> {
    let manager = ConnectionManager::start(device)?;
    // Listen on the first address of the device. Servers with librdmacm usually listen on all.
    let gid = device.gids().into_iter().find(|entry| entry.gid.is_ipv4()).ok_or("no IPv4 address")?;
    let listener = manager.listen(SocketAddr::new(gid.gid.to_ip(), PORT), 8)?;
    println!("listening on {}:{PORT}", gid.gid.to_ip());
    // A receive is posted before the peer may send, which is when the request is accepted.
    let served = listener.serve(PATIENCE, |pd, qp| {
        let memory = pd.register(64, Access::LOCAL_WRITE)?;
        qp.post_recv(1, &[memory.sge(0, 64)])?;
        Ok(memory)
    })?;
    let (client, memory) = served.ok_or("nobody came")?;
    let wc = client.cq.wait(PATIENCE)?.ok()?;
    let message = memory.to_vec(0, wc.byte_len as usize)?;
    println!("{} says: {}", client.connection.peer(), String::from_utf8_lossy(&message));
    if !client.connection.wait_for_end(PATIENCE) {
        return Err("the client has not said good-bye".into());
    }
    Ok(())
}

fn send(device: &Device, server: IpAddr) -> Result<()> {
    let dialed = ConnectionManager::start(device)?.dial(SocketAddr::new(server, PORT))?;
    dialed.connection.qp().post_send_inline(&SendWr::send().signaled(), GREETING)?;
    dialed.cq.wait(PATIENCE)?.ok()?;
    println!("sent {} bytes; the server has them", GREETING.len());
    dialed.connection.disconnect()?;
    Ok(())
}
