//! One message over a reliable connection: a complete program to copy from.
//!
//! ```text
//! cargo run --example send_recv                                       both ends in this process
//! cargo run --example send_recv -- udp eth0                           waits for a peer
//! cargo run --example send_recv -- udp eth0 192.0.2.1                 sends to it
//! ```
//!
//! `xdp` instead of `udp` goes through AF_XDP (`cargo run --features xdp`) and needs root. The two ends may use
//! different ports.
//!
//! The steps of every RDMA program, in order: open a device, create a protection domain, a completion queue and a queue
//! pair, register memory, send the queue pair's address to the peer (over TCP), connect, post, poll.

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::time::Duration;

use roxie::host::{
    CompletionQueue, ConnectOptions, Device, DeviceConfig, Endpoint, MemoryRegion, QueuePair, Stack,
};
use roxie::port::udp::UdpConfig;
#[cfg(feature = "xdp")]
use roxie::port::xdp::XdpConfig;
use roxie::verbs::{Access, Gid, Psn, Qpn, SendWr, Wc};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// TCP port on which the two ends exchange addresses.
const TCP_PORT: u16 = 18517;
/// Bytes of the buffer that messages arrive in.
const BUFFER: usize = 4096;
/// How long to wait for a completion.
const PATIENCE: Duration = Duration::from_secs(10);
const GREETING: &[u8] = b"hello over RDMA";

fn main() -> Result<()> {
    // Prints what the library reports: frames that cannot be sent, and the remedy.
    roxie::stderr_log::install();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => in_one_process(),
        [port, interface] => receive(&open(port, interface)?),
        [port, interface, server] => send(&open(port, interface)?, server),
        _ => Err("usage: send_recv [xdp|udp INTERFACE [SERVER]]".into()),
    }
}

/// Opens an interface. The NIC runs inside this process: there is no driver and no daemon.
fn open(port: &str, interface: &str) -> Result<Device> {
    let (stack, config) = (Stack::default(), DeviceConfig::default());
    Ok(match port {
        #[cfg(feature = "xdp")]
        "xdp" => Device::open_xdp(&XdpConfig::new(interface), &stack, &config)?,
        "udp" => {
            let udp = UdpConfig { interface: Some(interface.to_owned()), ..UdpConfig::default() };
            Device::open_udp(&udp, &stack, &config)?
        }
        other => return Err(format!("there is no port {other:?}: it is xdp or udp").into()),
    })
}

/// One end: a queue pair, where its completions come, and its memory. Dropped in this order.
struct End {
    qp: QueuePair,
    cq: CompletionQueue,
    memory: MemoryRegion,
    here: Endpoint,
}

impl End {
    fn new(device: &Device) -> Result<End> {
        let pd = device.alloc_pd()?;
        let cq = device.create_cq(16, None)?;
        let qp = pd.queue_pair(&cq).create()?;
        // LOCAL_WRITE: the NIC may write arriving messages there. A peer's WRITE would need REMOTE_WRITE as well.
        let memory = pd.register(BUFFER, Access::LOCAL_WRITE)?;
        // Which of the device's addresses (GIDs) to use: the first IPv4 one.
        let gid = device
            .gids()
            .into_iter()
            .find(|entry| entry.gid.is_ipv4())
            .ok_or("the device has no IPv4 address")?;
        let here = qp.endpoint(gid.index)?;
        Ok(End { qp, cq, memory, here })
    }

    fn connect(&self, there: &Endpoint) -> Result<()> {
        // The path MTU must be the same at each end; 1024 fits every Ethernet link.
        let options =
            ConnectOptions { path_mtu: Some(roxie::verbs::Mtu::Mtu1024), ..ConnectOptions::default() };
        Ok(self.qp.connect(&self.here, there, &options)?)
    }

    /// Posts the buffer for the next message. Must be called before the peer sends.
    fn post_receive(&self) -> Result<()> {
        Ok(self.qp.post_recv(1, &[self.memory.sge(0, BUFFER as u32)])?)
    }

    fn post_send(&self, message: &[u8]) -> Result<()> {
        self.memory.write_at(0, message)?;
        let wr = SendWr::send().id(2).signaled();
        Ok(self.qp.post_send(&wr, &[self.memory.sge(0, message.len() as u32)])?)
    }

    /// Polls for the completion of the posted request. Polling also runs the NIC.
    fn complete(&self) -> Result<Wc> {
        Ok(self.cq.wait(PATIENCE)?.ok()?)
    }

    fn message(&self, wc: &Wc) -> Result<String> {
        Ok(String::from_utf8(self.memory.to_vec(0, wc.byte_len as usize)?)?)
    }
}

fn in_one_process() -> Result<()> {
    let (local, remote) = Device::memory_pair(&DeviceConfig::default())?;
    let (sender, receiver) = (End::new(&local)?, End::new(&remote)?);
    sender.connect(&receiver.here)?;
    receiver.connect(&sender.here)?;
    receiver.post_receive()?;
    sender.post_send(GREETING)?;
    sender.complete()?;
    let wc = receiver.complete()?;
    println!("received {} bytes: {}", wc.byte_len, receiver.message(&wc)?);
    Ok(())
}

fn receive(device: &Device) -> Result<()> {
    let end = End::new(device)?;
    let listener = TcpListener::bind(("::", TCP_PORT))?;
    println!("waiting on TCP port {TCP_PORT}");
    let (mut peer, _) = listener.accept()?;
    let there = swap(&mut peer, &end.here)?;
    end.connect(&there)?;
    end.post_receive()?;
    // Only now may the peer send.
    peer.write_all(b"ready\n")?;
    let wc = end.complete()?;
    println!("received {} bytes: {}", wc.byte_len, end.message(&wc)?);
    // The queue pair stays until the peer has its acknowledgement and hangs up.
    BufReader::new(peer).read_line(&mut String::new())?;
    Ok(())
}

fn send(device: &Device, server: &str) -> Result<()> {
    let end = End::new(device)?;
    let mut peer = TcpStream::connect((server, TCP_PORT))?;
    let there = swap(&mut peer, &end.here)?;
    end.connect(&there)?;
    BufReader::new(&peer).read_line(&mut String::new())?;
    end.post_send(GREETING)?;
    end.complete()?;
    println!("sent {} bytes; the peer has them", GREETING.len());
    Ok(())
}

/// Sends this end's address to the peer, and receives the peer's: `QPN PSN address` on a line.
fn swap(peer: &mut TcpStream, here: &Endpoint) -> Result<Endpoint> {
    writeln!(peer, "{} {} {}", here.qpn.value(), here.psn.value(), here.gid.to_ip())?;
    let mut line = String::new();
    // One byte at a time: another reader reads the bytes after the line.
    let mut byte = [0];
    while !line.ends_with('\n') {
        std::io::Read::read_exact(peer, &mut byte)?;
        line.push(byte[0].into());
    }
    let [qpn, psn, address] = line.split_whitespace().collect::<Vec<_>>()[..] else {
        return Err(format!("the peer sent {line:?}").into());
    };
    let gid = Gid::from(address.parse::<IpAddr>()?);
    Ok(Endpoint::new(Qpn::new(qpn.parse()?), Psn::new(psn.parse()?), gid))
}
