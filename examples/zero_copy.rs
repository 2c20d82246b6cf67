//! Moves a large buffer of the program into one of another, without a copy at either side: the bytes are registered
//! where they are.
//!
//! ```text
//! cargo run --release --example zero_copy                          64 MiB
//! cargo run --release --example zero_copy -- 1024                  1 GiB
//! ```

use std::error::Error;
use std::time::{Duration, Instant};

use roxie::host::{ConnectOptions, Device, DeviceConfig};
use roxie::verbs::{Access, SendWr};

const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes of a WRITE: a message has at most 2 GiB.
const PIECE: usize = 64 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let length = std::env::args().nth(1).map_or(Ok(64), |mib| mib.parse::<usize>())? << 20;
    let source: Vec<u8> = (0..length).map(|at| (at / 4096 + at) as u8).collect();
    let target = vec![0; length];
    let addresses = [source.as_ptr(), target.as_ptr()];

    let (local, remote) = Device::memory_pair(&DeviceConfig::default())?;
    let (pd, cq) = (local.alloc_pd()?, local.create_cq(16, None)?);
    let (remote_pd, remote_cq) = (remote.alloc_pd()?, remote.create_cq(16, None)?);
    let (qp, remote_qp) = (pd.queue_pair(&cq).create()?, remote_pd.queue_pair(&remote_cq).create()?);
    let (here, there) = (qp.endpoint(0)?, remote_qp.endpoint(0)?);
    qp.connect(&here, &there, &ConnectOptions::default())?;
    remote_qp.connect(&there, &here, &ConnectOptions::default())?;

    let source = pd.register_owned(source, Access::empty())?;
    let target = remote_pd.register_owned(target, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    let start = Instant::now();
    for at in (0..length).step_by(PIECE) {
        let write = SendWr::write(target.address() + at as u64, target.rkey()).signaled();
        qp.post_send(&write, &[source.sge(at, PIECE.min(length - at) as u32)])?;
        cq.wait(PATIENCE)?.ok()?;
    }
    let seconds = start.elapsed().as_secs_f64();

    let (source, target) = (source.into_buffer()?, target.into_buffer()?);
    assert_eq!([source.as_ptr(), target.as_ptr()], addresses, "the buffers are where they were");
    assert!(source == target, "the bytes differ");
    println!("{} MiB in {seconds:.2} s: {:.2} GB/s", length >> 20, length as f64 / seconds / 1e9);
    Ok(())
}
