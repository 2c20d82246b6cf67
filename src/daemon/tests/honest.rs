//! Well-behaved programs that use the library. Their messages arrive, their state stays as it is, and no other program
//! interferes.

use std::net::SocketAddr;
use std::time::Instant;

use super::PATIENCE;
use roxie::host::{
    CompletionQueue, ConnectOptions, ConnectionManager, Device, DialOptions, MemoryRegion, PortListener,
    ProtectionDomain, QueuePair, SharedReceiveQueue,
};
use roxie_base::random::splitmix;
use roxie_nic::verbs::{
    Access, Gid, QpCaps, QpInit, QpState, QpType, Qpn, RKey, SendWr, Wc, WcStatus, WrOpcode,
};

/// Bytes of each message.
const LENGTH: usize = 1000;
/// Offsets in a program's memory: sent messages, received ones, written and read ones, and the counter of atomics.
const OUT: usize = 0;
const IN: usize = 1024;
const PLACED: usize = 2048;
const COUNTER: usize = 3072;
/// The result of an atomic. The memory behind it is never touched.
const OLD: usize = 3080;
const ALL: usize = 4096;
const PORT: u16 = 7471;

/// One end of a connection, and its other objects.
pub(super) struct End {
    device: Device,
    cq: CompletionQueue,
    qp: QueuePair,
    memory: MemoryRegion,
    /// The expected contents of its memory.
    image: Vec<u8>,
    idle: Option<Idle>,
}

/// Objects that the program does not use, and that must stay as they are.
struct Idle {
    _pd: ProtectionDomain,
    _region: MemoryRegion,
    srq: SharedReceiveQueue,
    member: QueuePair,
    _cq: CompletionQueue,
}

impl End {
    fn new(device: Device, seed: u64) -> End {
        let (pd, cq) = (device.alloc_pd().expect("a domain"), device.create_cq(16, None).expect("a queue"));
        let caps = QpCaps { max_send_wr: 8, max_recv_wr: 8, ..QpCaps::default() };
        let qp = pd.queue_pair(&cq).caps(caps).signal_all().create().expect("a QP");
        let memory = pd.register(ALL, Access::READ_WRITE | Access::REMOTE_ATOMIC).expect("memory");
        let mut state = seed;
        let image: Vec<u8> = (0..ALL).map(|_| splitmix(&mut state) as u8).collect();
        memory.write_at(0, &image).expect("its own");
        End { device, cq, qp, memory, image, idle: None }
    }

    fn with_idle(mut self) -> End {
        let device = &self.device;
        let pd = device.alloc_pd().expect("a domain");
        let region = pd.register(64, Access::READ_WRITE).expect("memory");
        let srq = pd.create_srq(4, 1).expect("a shared queue");
        srq.post_recv(1, &[region.sge(0, 64)]).expect("room");
        let cq = device.create_cq(4, None).expect("a queue");
        let init = QpInit { qp_type: QpType::Ud, caps: QpCaps::default(), sq_sig_all: true };
        let member = pd.queue_pair(&cq).init(&init).create().expect("a QP");
        member.attach_multicast(GROUP).expect("a group");
        self.idle = Some(Idle { _pd: pd, _region: region, srq, member, _cq: cq });
        self
    }

    /// Returns the numbers, keys and addresses of this end that a peer may know.
    pub(super) fn known(&self) -> (Vec<Qpn>, RKey, u64) {
        let member = self.idle.as_ref().map(|idle| idle.member.qpn());
        (std::iter::once(self.qp.qpn()).chain(member).collect(), self.memory.rkey(), self.memory.address())
    }

    fn next(&self) -> Wc {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(wc) = self.cq.poll_one() {
                assert_eq!(wc.status, WcStatus::Success, "{wc:?}");
                return wc;
            }
            assert!(Instant::now() < until, "no completion within {PATIENCE:?}");
            std::thread::yield_now();
        }
    }

    fn is_as_it_was(&self) {
        let seen = self.memory.to_vec(0, ALL).expect("its own");
        let differs = seen.iter().zip(&self.image).position(|(seen, due)| seen != due);
        assert_eq!(differs, None, "the first byte of an honest program's memory that is another");
        assert!(self.cq.poll_one().is_none(), "a completion that nobody asked for");
        assert_eq!(self.qp.query().expect("its own").state, QpState::Rts);
        assert_eq!(self.device.event(), None);
        if let Some(idle) = &self.idle {
            let status = idle.srq.query().expect("its own");
            assert_eq!((status.waiting, status.failed), (1, false));
            assert_eq!(idle.member.query().expect("its own").state, QpState::Reset);
        }
    }
}

/// The multicast group of well-behaved programs.
pub(super) const GROUP: Gid = Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 1, 2, 3]);

/// Two connected programs.
pub(super) struct Couple {
    pub(super) ends: [End; 2],
    round: u64,
}

impl Couple {
    pub(super) fn new(devices: [Device; 2], seed: u64) -> Couple {
        let has_idle = devices.each_ref().map(|device| device.slot().is_some());
        let mut seeds = seed..;
        let ends = devices.map(|device| End::new(device, seeds.next().expect("endless")));
        let mut idle = has_idle.into_iter();
        let ends = ends.map(|end| if idle.next() == Some(true) { end.with_idle() } else { end });
        let points = ends.each_ref().map(|end| end.qp.endpoint(0).expect("an address"));
        let access = Access::READ_WRITE | Access::REMOTE_ATOMIC;
        let options = ConnectOptions { access, ..ConnectOptions::default() };
        ends[0].qp.connect(&points[0], &points[1], &options).expect("connected");
        ends[1].qp.connect(&points[1], &points[0], &options).expect("connected");
        Couple { ends, round: seed << 32 }
    }

    /// One end sends a message to the other by each operation. Checks that all other memory is unchanged.
    pub(super) fn exchange(&mut self, mut meanwhile: impl FnMut()) {
        self.round += 1;
        let [a, b] = &mut self.ends;
        let (from, to) = if self.round.is_multiple_of(2) { (a, b) } else { (b, a) };
        let mut state = self.round;
        let message: Vec<u8> = (0..LENGTH).map(|_| splitmix(&mut state) as u8).collect();
        from.memory.write_at(OUT, &message).expect("its own");
        to.qp.post_recv(self.round, &[to.memory.sge(IN, LENGTH as u32)]).expect("room");
        let there = |at: usize| (to.memory.address() + at as u64, to.memory.rkey());
        let operations = [
            (WrOpcode::Send, there(0), from.memory.sge(OUT, LENGTH as u32)),
            (WrOpcode::Write, there(PLACED), from.memory.sge(OUT, LENGTH as u32)),
            (WrOpcode::Read, there(PLACED), from.memory.sge(IN, LENGTH as u32)),
            (WrOpcode::FetchAdd, there(COUNTER), from.memory.sge(OLD, 8)),
        ];
        for (wr_id, (opcode, (remote_addr, rkey), sge)) in (self.round..).zip(operations) {
            let wr = SendWr { wr_id, opcode, remote_addr, rkey, compare_add: 3, ..SendWr::default() };
            from.qp.post_send(&wr, &[sge]).expect("room");
            meanwhile();
        }
        assert_eq!(to.next().wr_id, self.round);
        (self.round..self.round + 4).for_each(|wr_id| assert_eq!(from.next().wr_id, wr_id));
        let count = u64::from_ne_bytes(to.image[COUNTER..COUNTER + 8].try_into().expect("8 bytes"));
        for (end, places) in [(&mut *from, [OUT, IN]), (&mut *to, [IN, PLACED])] {
            for at in places {
                end.image[at..at + LENGTH].copy_from_slice(&message);
            }
        }
        from.image[OLD..OLD + 8].copy_from_slice(&count.to_ne_bytes());
        to.image[COUNTER..COUNTER + 8].copy_from_slice(&count.wrapping_add(3).to_ne_bytes());
        from.is_as_it_was();
        to.is_as_it_was();
    }
}

/// A server that is found by its port number, and a client on the other NIC.
pub(super) struct Service {
    listener: PortListener,
    server: (ConnectionManager, Device),
    client: (ConnectionManager, Device),
    calls: u64,
}

impl Service {
    pub(super) fn new(server: Device, client: Device) -> Service {
        let [server, client] =
            [server, client].map(|device| (ConnectionManager::start(&device).expect("QP1"), device));
        let listener = server.0.listen(SocketAddr::from(([0, 0, 0, 0], PORT)), 8).expect("free");
        Service { listener, server, client, calls: 0 }
    }

    /// The server's slot.
    pub(super) fn slot(&self) -> u8 {
        self.server.1.slot().expect("served").slot()
    }

    /// Connects the client to the server. Checks that the request reaches the server, and that each side gets the
    /// other's data.
    pub(super) fn call(&mut self) {
        self.calls += 1;
        let (manager, device) = &self.client;
        let options =
            DialOptions { private_data: self.calls.to_ne_bytes().to_vec(), ..DialOptions::default() };
        let own_qp = |device: &Device| {
            let (pd, cq) =
                (device.alloc_pd().expect("a domain"), device.create_cq(4, None).expect("a queue"));
            pd.queue_pair(&cq).signal_all().create().expect("a QP")
        };
        std::thread::scope(|scope| {
            let dials = scope.spawn(|| {
                let server = SocketAddr::from(([192, 0, 2, 1], PORT));
                let dialled = manager.connect(own_qp(device), server, &options).expect("connected");
                let is_echoed = dialled.private_data().starts_with(&options.private_data);
                dialled.disconnect().expect("its own");
                is_echoed
            });
            let until = Instant::now() + PATIENCE;
            // Other programs may send requests too.
            let request = loop {
                let pending = self.listener.accept(PATIENCE).expect("it listens");
                assert!(Instant::now() < until, "no request within {PATIENCE:?}");
                let Some(request) = pending else { continue };
                if request.private_data().starts_with(&options.private_data) {
                    break request;
                }
                let _ = request.reject(&[]);
            };
            let accepted = request.accept(own_qp(&self.server.1), &options).expect("accepted");
            assert!(accepted.wait_for_end(PATIENCE), "it has said good-bye");
            drop(accepted);
            assert!(dials.join().expect("connected"), "the server's own answer");
        });
    }
}
