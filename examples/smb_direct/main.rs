//! A client of SMB Direct: SMB over RDMA, as Windows and Linux have it (MS-SMBD, MS-SMB2).
//!
//! ```text
//! cargo run --example smb_direct                                             both ends in this process
//! cargo run --example smb_direct -- eth0 192.0.2.1 files put name file       writes a file of a share
//! cargo run --example smb_direct -- eth0 192.0.2.1 files get name file       reads it
//! ```
//!
//! A file moves by RDMA of the server's to and from a registered buffer, or, with `messages` as the last argument, in
//! messages that SMB Direct splits. Read `messages.rs` and `link.rs` first: the protocol without I/O. `transport.rs`
//! has it on a queue pair, `client.rs` the session of SMB2. The session is a guest's: without a password, without
//! signatures or encryption.

mod client;
mod link;
mod messages;
mod server;
mod smb2;
mod transport;

use std::error::Error;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use roxie::host::{ConnectionManager, Device, DeviceConfig, Stack};
use roxie::port::udp::UdpConfig;

use client::{Client, Way};
use transport::Transport;

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// Port of SMB Direct on InfiniBand and RoCE (MS-SMBD 1.9).
const PORT: u16 = 445;
const PATIENCE: Duration = Duration::from_secs(30);
/// Lengths of files in one process: nothing, a fragment, around a request in messages, several requests by RDMA.
const LENGTHS: [usize; 6] = [0, 1, 1000, 65_535, 65_537, (3 << 20) + 7];

fn main() -> Result<()> {
    // Prints what the library reports: frames that cannot be sent, and the remedy.
    roxie::stderr_log::install();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => in_one_process(),
        [interface, server, share, command, name, file] => {
            copy(interface, server.parse()?, share, command, name, file, Way::Rdma)
        }
        [interface, server, share, command, name, file, "messages"] => {
            copy(interface, server.parse()?, share, command, name, file, Way::Messages)
        }
        _ => Err("usage: smb_direct [INTERFACE SERVER SHARE put|get NAME FILE [messages]]".into()),
    }
}

fn copy(
    interface: &str,
    server: IpAddr,
    share: &str,
    command: &str,
    name: &str,
    file: &str,
    way: Way,
) -> Result<()> {
    let udp = UdpConfig { interface: Some(interface.to_owned()), ..UdpConfig::default() };
    let device = Device::open_udp(&udp, &Stack::default(), &DeviceConfig::default())?;
    let mut client = Client::connect(&device, SocketAddr::new(server, PORT), share)?;
    println!("{}", describe(&client));
    let begin = Instant::now();
    let length = match command {
        "put" => {
            let data = std::fs::read(file)?;
            client.put(name, &data, way)?;
            data.len()
        }
        "get" => {
            let data = client.get(name, way)?;
            std::fs::write(file, &data)?;
            data.len()
        }
        _ => return Err(format!("{command} is neither put nor get").into()),
    };
    let (took, keys) = (begin.elapsed(), client.invalidated);
    client.log_off()?;
    println!("{command}: {length} bytes in {took:.1?}; the server has invalidated {keys} keys");
    Ok(())
}

fn describe(client: &Client) -> String {
    let limits = client.limits();
    format!(
        "a guest's session of SMB {:#06x}, READs of {} and WRITEs of {} bytes",
        limits.dialect, limits.max_read, limits.max_write
    )
}

fn in_one_process() -> Result<()> {
    let (local, remote) = Device::memory_pair(&DeviceConfig::default())?;
    let (requests, keys) = there_and_back(&local, remote, &LENGTHS)?;
    println!("{requests} requests; the server has invalidated {keys} keys with its responses");
    println!("{} files were the same after their way there and back", 4 * LENGTHS.len());
    Ok(())
}

/// Writes and reads files of these lengths, each way with each. Returns the number of requests, and of keys that the
/// server invalidated.
fn there_and_back(near: &Device, far: Device, lengths: &[usize]) -> Result<(u64, u64)> {
    let address = SocketAddr::new(far.gid(0)?.to_ip(), PORT);
    let serving = std::thread::spawn(move || -> Result<u64> {
        let listener = ConnectionManager::start(&far)?.listen(address, 1)?;
        let request = listener.accept(PATIENCE)?.ok_or("nobody came")?;
        server::serve(Transport::accept(&far, request)?)
    });
    // For a moment, the manager repeats a request that arrives before the server listens.
    let mut client = Client::connect(near, address, "files")?;
    println!("{}", describe(&client));
    let ways = [Way::Rdma, Way::Messages];
    for &length in lengths {
        let data: Vec<u8> = (0..length).map(|n| (n / 512 * 31 + n * 7 + length) as u8).collect();
        for (put, get) in ways.into_iter().flat_map(|put| ways.map(|get| (put, get))) {
            client.put("a file", &data, put)?;
            if client.get("a file", get)? != data {
                return Err(format!("{length} bytes, by {put:?}, are others, by {get:?}").into());
            }
        }
    }
    let absent = client.get("absent", Way::Rdma).expect_err("no such file").to_string();
    println!("absent: {absent}");
    let keys = client.invalidated;
    client.log_off()?;
    Ok((serving.join().expect("no panic")?, keys))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_cross_a_lossy_link() {
        let fault = Some("seed=7,drop=0.01".parse().expect("faults"));
        let stack = Stack { fault, ..Stack::default() };
        let pair = Device::memory_pair_with(&DeviceConfig::default(), &stack, &stack);
        let (local, remote) = pair.expect("two devices");
        let (_, keys) = there_and_back(&local, remote, &[1000, 65_537]).expect("the same bytes");
        // Each file is a single request by RDMA, twice on its way there and twice back.
        assert_eq!(keys, 2 * 4);
        assert!(local.counter("fault_tx_dropped") > 0, "no frame was lost");
    }
}
