//! A server: accepts the connections of peers that may be strangers, and serves each on a thread of its own.

use std::convert::Infallible;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use roxie::host::{
    Acceptor, Armed, CompletionChannel, CompletionQueue, Connection, ConnectionManager, ConnectionRequest,
    Device, DeviceError, DialError, DialOptions, FirstMessage, FirstMessages, Offer, ProtectionDomain,
    QpBuilder, QueuePair,
};
use roxie::verbs::{Access, Wc};

use crate::ended::Ended;
use crate::endpoint::{Endpoint, FIRST, Sizes};
use crate::upper_layer::{UpperLayer, dispatch};

/// Interval at which the acceptor checks whether the server is to stop.
const LOOK: Duration = Duration::from_millis(100);
/// Connections that their peers have not confirmed. They have no thread, and do not count as connections.
const HALF_OPEN: u32 = 128;
/// Time for the threads of connections to end.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval at which an idle connection checks for its end, or the server's.
const TICK: Duration = Duration::from_millis(50);
/// Completions taken at once.
const BATCH: usize = 16;
/// Why another peer is not served.
const FULL: &str = "refused: too many connections";

/// What a service fixes for its server.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Names of the threads that accept and that serve connections.
    pub threads: [&'static str; 2],
    /// Connections at a time.
    pub connections: usize,
    /// Bytes of the first message of a connection at most.
    pub first_length: usize,
    /// Private data of a rejection for lack of resources.
    pub no_resources: Vec<u8>,
}

/// The protocol of a server.
pub trait Service: Send + Sync + 'static {
    /// A connection request, as the service has parsed it.
    type Request: Send + 'static;

    /// Returns the answer to a connection request, or the private data of its rejection.
    ///
    /// # Errors
    /// If the request is refused.
    fn answer(&self, request: &ConnectionRequest) -> Result<Answer<Self::Request>, Vec<u8>>;

    /// Returns the protocol on a confirmed connection.
    ///
    /// # Errors
    /// If it has no resources.
    fn connected(&self, endpoint: Endpoint, request: Self::Request) -> Result<impl UpperLayer, DialError>;

    /// Takes note of a connection that has ended, or was not made.
    fn ended(&self, peer: SocketAddr, why: String);
}

/// The answer to a connection request.
#[derive(Debug)]
pub struct Answer<T> {
    /// Sizes of the queues.
    pub sizes: Sizes,
    /// READs that the server has outstanding at most.
    pub reads: u8,
    /// Private data of the reply.
    pub private_data: Vec<u8>,
    /// The request, for [`Service::connected`].
    pub request: T,
}

struct Shared<S> {
    device: Device,
    pd: ProtectionDomain,
    first_messages: FirstMessages,
    config: ServerConfig,
    service: Arc<S>,
    stop: Arc<AtomicBool>,
    /// Each connection has a clone.
    token: Arc<()>,
}

/// A half-open connection, apart from its queue pair.
#[derive(Debug)]
struct HalfOpen<T> {
    cq: CompletionQueue,
    channel: CompletionChannel,
    /// Memory of the first message, which may arrive before the peer's confirmation. `None`: all such places are taken,
    /// and the message is sent again.
    first: Option<Arc<FirstMessage>>,
    sizes: Sizes,
    /// The request, as the service has parsed it.
    request: T,
}

/// A running server. Dropping it stops it: all connections end, which their peers notice.
pub struct Server<S: Service> {
    shared: Arc<Shared<S>>,
    threads: Vec<JoinHandle<()>>,
}

impl<S: Service> fmt::Debug for Server<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("connections", &self.connections()).finish_non_exhaustive()
    }
}

impl<S: Service> Server<S> {
    /// Listens at an address of the device, or at all of them with `0.0.0.0` or `::`. Not for devices with
    /// [`Drive::CallerOnly`](roxie::host::Drive::CallerOnly).
    ///
    /// # Errors
    /// If the port is in use, the device has no room, or the system no thread.
    pub fn start(
        device: &Device,
        manager: &ConnectionManager,
        listen: SocketAddr,
        config: ServerConfig,
        service: Arc<S>,
    ) -> Result<Server<S>, DialError> {
        let pd = device.alloc_pd()?;
        let places = HALF_OPEN + config.connections as u32;
        let first_messages = FirstMessages::new(&pd, places, config.first_length)?;
        let acceptor = manager.acceptor(listen, HALF_OPEN)?;
        let shared = Arc::new(Shared {
            device: device.clone(),
            pd,
            first_messages,
            config,
            service,
            stop: Arc::default(),
            token: Arc::default(),
        });
        let accepting = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name(shared.config.threads[0].into());
        let thread = thread
            .spawn(move || accept(&accepting, acceptor))
            .map_err(|source| DeviceError::System { what: "a thread that accepts connections", source })?;
        Ok(Server { shared, threads: vec![thread] })
    }

    /// Number of connections.
    pub fn connections(&self) -> usize {
        self.shared.connections()
    }

    /// True once the server stops.
    pub fn stopping(&self) -> &Arc<AtomicBool> {
        &self.shared.stop
    }

    /// Has a thread joined when the server stops, which ends it.
    pub fn join(&mut self, thread: JoinHandle<()>) {
        self.threads.push(thread);
    }
}

impl<S: Service> Drop for Server<S> {
    fn drop(&mut self) {
        self.shared.stop.store(true, Relaxed);
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
        // A thread that does not end in time ends with the process.
        let until = Instant::now() + STOP_TIMEOUT;
        while self.connections() > 0 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl<S: Service> Shared<S> {
    /// Counts the connections.
    fn connections(&self) -> usize {
        Arc::strong_count(&self.token) - 1
    }

    /// Answers a request with a queue pair that has one receive. The error is the private data of the rejection.
    fn offer(&self, request: &ConnectionRequest) -> Result<Offer<HalfOpen<S::Request>>, Vec<u8>> {
        let answer = self.service.answer(request)?;
        let refused = |why| {
            self.service.ended(request.peer(), why);
            self.config.no_resources.clone()
        };
        if self.connections() >= self.config.connections {
            return Err(refused(FULL.into()));
        }
        let options = DialOptions {
            // Peers never access memory of a server.
            access: Access::LOCAL_WRITE,
            responder_resources: 0,
            initiator_depth: answer.reads,
            private_data: answer.private_data,
            ..DialOptions::default()
        };
        let half_open = self.half_open(answer.sizes, answer.request);
        let (qp, state) = half_open.map_err(|error| refused(no_resources(error)))?;
        Ok(Offer { qp, options, state })
    }

    fn half_open<T>(&self, sizes: Sizes, request: T) -> Result<(QueuePair, HalfOpen<T>), DialError> {
        let channel = CompletionChannel::new()?;
        // A connection that is not confirmed has one completion, of the first message.
        let cq = self.device.create_cq(1, Some(&channel))?;
        let first = self.first_messages.take();
        let builder = self.pd.queue_pair(&cq).caps(sizes.caps());
        let qp = first.iter().cloned().fold(builder, QpBuilder::keeps).create()?;
        qp.initialize(Access::LOCAL_WRITE)?;
        if let Some(first) = &first {
            qp.post_recv(FIRST, &[first.sge(sizes.receive_length.min(self.config.first_length))])?;
        }
        Ok((qp, HalfOpen { cq, channel, first, sizes, request }))
    }

    /// Makes the endpoint of a confirmed connection: posts the other receives.
    fn endpoint<T>(
        &self,
        connection: Connection,
        half_open: HalfOpen<T>,
    ) -> Result<(Endpoint, T), DialError> {
        let HalfOpen { cq, channel, first, sizes, request } = half_open;
        cq.resize(sizes.sends + sizes.receives)?;
        let posted = u32::from(first.is_some());
        let receives = sizes.post_receives(&self.pd, connection.qp(), posted)?;
        let (channel, pd) = (Some(channel), self.pd.clone());
        Ok((Endpoint { connection, cq, channel, receives, first, pd }, request))
    }

    /// Serves a confirmed connection until it ends. Returns why.
    fn serve(&self, connection: Connection, half_open: HalfOpen<S::Request>) -> Result<Infallible, String> {
        let endpoint = self.endpoint(connection, half_open);
        let upper = endpoint.and_then(|(endpoint, request)| self.service.connected(endpoint, request));
        serve(&mut upper.map_err(no_resources)?, &self.stop).map_err(|ended| ended.to_string())
    }
}

fn no_resources(error: DialError) -> String {
    format!("no resources for another connection: {error}")
}

/// Accepts connections until the server stops.
fn accept<S: Service>(shared: &Arc<Shared<S>>, mut acceptor: Acceptor<HalfOpen<S::Request>>) {
    let failed = |peer, error: DialError| shared.service.ended(peer, error.to_string());
    while !shared.stop.load(Relaxed) {
        match acceptor.next(LOOK, |request| shared.offer(request), failed) {
            Ok(Some((connection, half_open))) => admit(shared, connection, half_open),
            Ok(None) => {}
            // The device has failed.
            Err(_) => return,
        }
    }
}

/// Serves a connection on a thread of its own, if there is room for another one.
fn admit<S: Service>(shared: &Arc<Shared<S>>, connection: Connection, half_open: HalfOpen<S::Request>) {
    let (peer, token, serving) = (connection.peer(), Arc::clone(&shared.token), Arc::clone(shared));
    if shared.connections() > shared.config.connections {
        return shared.service.ended(peer, FULL.into());
    }
    let thread = std::thread::Builder::new().name(shared.config.threads[1].into());
    let spawned = thread.spawn(move || {
        let Err(why) = serving.serve(connection, half_open);
        serving.service.ended(peer, why);
        drop(token);
    });
    if let Err(error) = spawned {
        shared.service.ended(peer, format!("no thread for another connection: {error}"));
    }
}

/// Serves a connection until it ends, also by `stop`, and returns why. Dropping it afterwards notifies the peer.
fn serve(upper: &mut impl UpperLayer, stop: &AtomicBool) -> Result<Infallible, Ended> {
    let mut completions = [Wc::default(); BATCH];
    while !stop.load(Relaxed) {
        match upper.endpoint().cq.poll_ready(&mut completions) {
            0 => {
                upper.idle()?;
                sleep(upper.endpoint())?;
            }
            taken => completions[..taken].iter().try_for_each(|wc| dispatch(upper, wc))?,
        }
    }
    Err(Ended::Stopped)
}

/// Waits for a completion. If there is none for a while, checks whether the connection has ended.
fn sleep(endpoint: &Endpoint) -> Result<(), Ended> {
    endpoint.cq.arm(Armed::Next);
    if endpoint.channel.as_ref().is_some_and(|channel| channel.wait(TICK)) {
        return Ok(());
    }
    if endpoint.connection.wait_for_end(Duration::ZERO) {
        return Err(Ended::Closed);
    }
    if endpoint.cq.has_failed() { Err(Ended::DeviceFailed) } else { Ok(()) }
}
