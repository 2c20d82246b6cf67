//! Tasks that await completions and connections.

use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Poll;
use std::time::Duration;

use roxie::engine::Drive;
use roxie::host::{
    AsyncCompletionQueue, ConnectOptions, ConnectionManager, Device, DeviceConfig, MemoryRegion, QueuePair,
};
use roxie::time::Nanos;
use roxie::verbs::{Access, SendWr};
use tokio::time::timeout;

use super::{bent_pair, driven};
use crate::engine::bent::Bent;

const PATIENCE: Duration = Duration::from_secs(20);

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async { timeout(PATIENCE, future).await.expect("in time") })
}

/// True if a future is not ready at its first poll.
async fn is_pending(future: impl Future) -> bool {
    let mut future = pin!(future);
    poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_pending())).await
}

struct End {
    qp: QueuePair,
    cq: AsyncCompletionQueue,
    memory: MemoryRegion,
}

impl End {
    fn new(device: &Device) -> End {
        let (pd, cq) = (device.alloc_pd().expect("a domain"), device.create_async_cq(8).expect("a queue"));
        let qp = pd.queue_pair(&cq).create().expect("a QP");
        End { qp, cq, memory: pd.register(64, Access::LOCAL_WRITE).expect("memory") }
    }

    fn post_receive(&self) {
        self.qp.post_recv(1, &[self.memory.sge(0, 64)]).expect("room");
    }
}

fn connected(near: &Device, far: &Device) -> (End, End) {
    let (a, b) = (End::new(near), End::new(far));
    let (here, there) = (a.qp.endpoint(0).expect("a GID"), b.qp.endpoint(0).expect("a GID"));
    a.qp.connect(&here, &there, &ConnectOptions::default()).expect("a path");
    b.qp.connect(&there, &here, &ConnectOptions::default()).expect("a path");
    (a, b)
}

#[test]
fn waiting_task_receives_a_later_completion() {
    let (local, remote) = Device::memory_pair(&DeviceConfig::default()).expect("devices");
    block_on(async {
        let (a, b) = connected(&local, &remote);
        for round in 0..100 {
            b.post_receive();
            assert!(is_pending(b.cq.next()).await, "round {round}: nothing was sent");
            // The future was dropped: the next one still gets the completion.
            let send = async { a.qp.post_send_inline(&SendWr::send().signaled(), &[round]).expect("room") };
            let (received, ()) = tokio::join!(b.cq.next(), send);
            let received = received.expect("a device").ok().expect("a message");
            assert_eq!(b.memory.to_vec(0, received.byte_len as usize).expect("memory"), [round]);
            a.cq.next().await.expect("a device").ok().expect("a SEND");
        }
    });
}

#[test]
fn failed_device_wakes_all_tasks() {
    // With `Caller`, the pass that panics may be one of the connection manager's thread.
    for drive in [Drive::Thread { core: None, spin: Nanos::MAX }, Drive::Caller] {
        fails_under_waiting_tasks(drive);
    }
}

fn fails_under_waiting_tasks(drive: Drive) {
    let mut fuse = None;
    let bend = |port| {
        let port = Bent::new(port);
        fuse = Some(port.fuse());
        port
    };
    let (local, _remote) = bent_pair(4200, bend, &driven(drive), &DeviceConfig::caller_only());
    block_on(async {
        let cq = local.create_async_cq(8).expect("a queue");
        let manager = ConnectionManager::start(&local).expect("QP1");
        let address = SocketAddr::new(local.gid(0).expect("a GID").to_ip(), 7174);
        let listener = manager.listen(address, 8).expect("a port");
        let (mut completion, mut request) = (pin!(cq.next()), pin!(listener.next()));
        let mut another = pin!(listener.next());
        assert!(is_pending(completion.as_mut()).await && is_pending(request.as_mut()).await);
        assert!(is_pending(another.as_mut()).await);
        fuse.expect("the port was bent").store(true, Relaxed);
        let (completion, request, another) = tokio::join!(completion, request, another);
        assert!(local.has_failed());
        completion.expect_err("no more completions");
        request.expect_err("no more requests");
        another.expect_err("no more requests");
        // Later calls do not wait either.
        cq.next().await.expect_err("no more completions");
        let other = manager.listen(SocketAddr::new(address.ip(), 7175), 8).expect("a port");
        other.next().await.expect_err("no more requests");
    });
}

#[test]
fn end_of_a_connection_wakes_its_task() {
    let (local, remote) = Device::memory_pair(&DeviceConfig::default()).expect("devices");
    block_on(async {
        let (client, server) =
            (ConnectionManager::start(&local).expect("QP1"), ConnectionManager::start(&remote).expect("QP1"));
        let address = SocketAddr::new(remote.gid(0).expect("a GID").to_ip(), 7174);
        let listener = server.listen(address, 8).expect("a port");
        let (a, b) = (End::new(&local), End::new(&remote));
        let accept = async {
            let request = listener.next().await.expect("a device");
            request.accept_async(b.qp, &Default::default()).await.expect("a connection")
        };
        let options = Default::default();
        let (connected, accepted) = tokio::join!(client.connect_async(a.qp, address, &options), accept);
        let connected = connected.expect("a connection");
        assert!(is_pending(accepted.ended()).await);
        drop(connected);
        accepted.ended().await;
    });
}
