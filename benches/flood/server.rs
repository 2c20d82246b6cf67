//! The honest server: accepts all requests, and lets the honest client write into its memory.

use std::collections::HashMap;
use std::io::{self, BufRead};
use std::net::IpAddr;
use std::sync::mpsc::{Sender, channel};

use roxie::cm::{AcceptOptions, Config, Event, ListenOn, LocalQp, Manager};
use roxie::host::{
    AhOptions, CompletionQueue, ConnectionService, Consumer, Device, MemoryRegion, ProtectionDomain,
    QueuePair,
};
use roxie::time::Nanos;
use roxie::verbs::{Access, Gid, Psn, QpCaps, Qpn};
use roxie::wire::cm::{CommId, Kind, PrivateData};
use roxie::wire::{PortSpace, ServiceId};

use crate::client::{MEMORY, RIGHTS};
use crate::frames::FAR;
use crate::{PORT, open};

/// Backlog: Linux's default.
const BACKLOG: u32 = 1024;

/// A task of the server's own thread.
enum Task {
    /// Accept the honest client.
    Connect(CommId),
    /// Forget a connection that has ended.
    Forget(CommId),
    /// Print all counters.
    Tell,
}

/// Accepts flood connections at once, without a QP, so that only the connection manager's work and table are measured.
struct Acceptor {
    tasks: Sender<Task>,
    next_qpn: u32,
}

impl Consumer for Acceptor {
    fn event(&mut self, manager: &mut Manager, now: Nanos, event: Event) {
        let id = event.id();
        // Errors are ignored: the connection may have ended already.
        match event {
            Event::Request { route, .. } if route.remote == Gid::from(IpAddr::from(FAR)) => {
                let _ = self.tasks.send(Task::Connect(id));
            }
            Event::Request { .. } => {
                self.next_qpn = self.next_qpn % 0xffff + 2;
                let qp = LocalQp { qpn: Qpn::new(self.next_qpn), psn: Psn::new(0), srq: false };
                let _ = manager.accept(now, id, &acceptance(qp, &[]));
            }
            Event::DisconnectRequested { .. } => {
                let _ = manager.disconnect(now, id, PrivateData::EMPTY);
            }
            event if event.is_last() => {
                let _ = self.tasks.send(Task::Forget(id));
            }
            _ => {}
        }
    }
}

fn acceptance(qp: LocalQp, private_data: &[u8]) -> AcceptOptions {
    AcceptOptions {
        qp,
        responder_resources: 1,
        initiator_depth: 1,
        rnr_retry_count: 7,
        flow_control: false,
        private_data: PrivateData::new(Kind::Rep, private_data).expect("room"),
    }
}

/// Serves until the end of standard input. Each line received is answered by a line of counters.
pub(crate) fn serve(port: &str) {
    let device = open(port, "left");
    let domain = device.alloc_pd().expect("a domain");
    let memory = domain.register(MEMORY, RIGHTS).expect("memory");
    let queue = device.create_cq(16, None).expect("a queue");
    let (tasks, task) = channel();
    let manager =
        Manager::new(Config { seed: u64::from(std::process::id()), ca_guid: 1, ..Config::default() });
    let acceptor = Acceptor { tasks: tasks.clone(), next_qpn: 0 };
    let service = ConnectionService::start(&device, manager, acceptor).expect("a connection manager");
    let name = ServiceId::of_port(PortSpace::Tcp, PORT);
    service.with(|manager, _, _| manager.listen(name, ListenOn::Any, BACKLOG)).expect("a listener");
    println!("ready");
    std::thread::spawn(move || {
        for _ in io::stdin().lock().lines() {
            let _ = tasks.send(Task::Tell);
        }
        std::process::exit(0);
    });
    let mut server = Server { device, domain, queue, memory, service, qps: HashMap::new() };
    for task in task {
        match task {
            Task::Connect(id) => server.connect(id),
            Task::Forget(id) => drop(server.qps.remove(&id)),
            Task::Tell => server.report(),
        }
    }
}

struct Server {
    qps: HashMap<CommId, QueuePair>,
    service: ConnectionService<Acceptor>,
    memory: MemoryRegion,
    queue: CompletionQueue,
    domain: ProtectionDomain,
    device: Device,
}

impl Server {
    fn connect(&mut self, id: CommId) {
        // The client may have given up meanwhile.
        let Ok(mut parameters) = self.service.with(|manager, _, _| manager.parameters(id)) else { return };
        let caps = QpCaps { max_send_wr: 1, max_recv_wr: 1, ..QpCaps::default() };
        let qp = self.domain.queue_pair(&self.queue).caps(caps).signal_all().create().expect("a QP");
        let local = LocalQp { qpn: qp.qpn(), psn: Psn::new(id.0), srq: false };
        parameters.rq_psn = local.psn;
        let route = parameters.route;
        let way = AhOptions { hop_limit: route.hop_limit, ..AhOptions::default() };
        let Ok(av) = self.device.address_vector(route.source(), route.remote, &way) else { return };
        qp.initialize(Access::LOCAL_WRITE | Access::REMOTE_WRITE).expect("INIT");
        qp.modify(&parameters.rtr(av, 12).expect("the peer's QP")).expect("RTR");
        qp.modify(&parameters.rts()).expect("RTS");
        let place = [&self.memory.rkey().0.to_be_bytes()[..], &self.memory.address().to_be_bytes()].concat();
        let accepted =
            self.service.with(|manager, _, now| manager.accept(now, id, &acceptance(local, &place)));
        if accepted.is_ok() {
            self.qps.insert(id, qp);
        }
    }

    fn report(&self) {
        let (counters, known) =
            self.service.with(|manager, _, _| (*manager.counters(), manager.connections()));
        let device: Vec<_> = self.device.counters().into_iter().filter(|(_, count)| *count > 0).collect();
        println!("{known} connections, {} QPs; {counters:?}; {device:?}", self.qps.len());
    }
}
