//! A server that answers requests of many clients from one shared receive queue.
//!
//! ```text
//! cargo run --example rpc
//! ```
//!
//! A server with a thousand clients cannot keep a thousand receive queues full. With a shared receive queue (SRQ), all
//! its queue pairs take their receives from one queue. The completion names the queue pair and the buffer of a request;
//! the answer is sent by that queue pair. The example runs both ends in one process, on two NICs with a link in memory.

use std::error::Error;
use std::time::Duration;

use roxie::host::{
    CompletionQueue, ConnectOptions, Device, DeviceConfig, MemoryRegion, QueuePair, SharedReceiveQueue,
};
use roxie::verbs::{Access, SendWr, Wc};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const CLIENTS: usize = 8;
const REQUESTS: u32 = 50;
/// Bytes of a request, and of an answer.
const MESSAGE: usize = 8;
/// Receives that the server keeps posted, for all clients together.
const RECEIVES: usize = 16;
const PATIENCE: Duration = Duration::from_secs(10);

struct Server {
    qps: Vec<QueuePair>,
    cq: CompletionQueue,
    srq: SharedReceiveQueue,
    requests: MemoryRegion,
}

impl Server {
    fn new(device: &Device) -> Result<Server> {
        let pd = device.alloc_pd()?;
        let cq = device.create_cq(4 * RECEIVES as u32, None)?;
        let srq = pd.create_srq(RECEIVES as u32, 1)?;
        let requests = pd.register(RECEIVES * MESSAGE, Access::LOCAL_WRITE)?;
        let qp = |_| pd.queue_pair(&cq).srq(&srq).create();
        let qps = (0..CLIENTS).map(qp).collect::<std::result::Result<Vec<_>, _>>()?;
        let server = Server { qps, cq, srq, requests };
        (0..RECEIVES).try_for_each(|buffer| server.post(buffer))?;
        Ok(server)
    }

    /// Posts a buffer for any client's next request.
    fn post(&self, buffer: usize) -> Result<()> {
        Ok(self.srq.post_recv(buffer as u64, &[self.requests.sge(buffer * MESSAGE, MESSAGE as u32)])?)
    }

    /// Answers received requests: a number with its square.
    fn serve(&self) -> Result<()> {
        let mut completions = [Wc::default(); 16];
        let count = self.cq.poll(&mut completions);
        for wc in &completions[..count] {
            let wc = wc.ok()?;
            let buffer = wc.wr_id as usize;
            let bytes = self.requests.to_vec(buffer * MESSAGE, MESSAGE)?;
            let number = u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
            // The buffer is free again before the answer leaves: the client may send its next request at once.
            self.post(buffer)?;
            let qp = self.qps.iter().find(|qp| qp.qpn() == wc.qpn).ok_or("a request by no queue pair")?;
            qp.post_send_inline(&SendWr::send(), &(number * number).to_le_bytes())?;
        }
        Ok(())
    }
}

struct Client {
    qp: QueuePair,
    cq: CompletionQueue,
    answer: MemoryRegion,
}

impl Client {
    fn new(device: &Device) -> Result<Client> {
        let pd = device.alloc_pd()?;
        let cq = device.create_cq(4, None)?;
        let qp = pd.queue_pair(&cq).create()?;
        Ok(Client { qp, cq, answer: pd.register(MESSAGE, Access::LOCAL_WRITE)? })
    }

    /// Sends a request, after posting the receive for the answer.
    fn request(&self, number: u64) -> Result<()> {
        self.qp.post_recv(1, &[self.answer.sge(0, MESSAGE as u32)])?;
        Ok(self.qp.post_send_inline(&SendWr::send(), &number.to_le_bytes())?)
    }

    fn answer(&self) -> Result<u64> {
        self.cq.wait(PATIENCE)?.ok()?;
        Ok(u64::from_le_bytes(self.answer.to_vec(0, MESSAGE)?.try_into().expect("8 bytes")))
    }
}

fn main() -> Result<()> {
    let (local, remote) = Device::memory_pair(&DeviceConfig::default())?;
    let server = Server::new(&remote)?;
    let clients = (0..CLIENTS).map(|_| Client::new(&local)).collect::<Result<Vec<_>>>()?;
    for (client, qp) in clients.iter().zip(&server.qps) {
        let (here, there) = (client.qp.endpoint(0)?, qp.endpoint(0)?);
        client.qp.connect(&here, &there, &ConnectOptions::default())?;
        qp.connect(&there, &here, &ConnectOptions::default())?;
    }
    std::thread::scope(|scope| -> Result<()> {
        let caller = scope.spawn(|| -> std::result::Result<(), String> {
            for round in 0..u64::from(REQUESTS) {
                let number = |client: usize| round * CLIENTS as u64 + client as u64;
                for (i, client) in clients.iter().enumerate() {
                    client.request(number(i)).map_err(|e| e.to_string())?;
                }
                for (i, client) in clients.iter().enumerate() {
                    let answer = client.answer().map_err(|e| e.to_string())?;
                    if answer != number(i) * number(i) {
                        return Err(format!("{} squared is not {answer}", number(i)));
                    }
                }
            }
            Ok(())
        });
        while !caller.is_finished() {
            server.serve()?;
        }
        Ok(caller.join().expect("no panic")?)
    })?;
    println!(
        "{} requests of {CLIENTS} clients were answered from {RECEIVES} receives",
        CLIENTS as u32 * REQUESTS
    );
    Ok(())
}
