//! Two NICs joined by memory, driven by one thread. The engine's benchmarks measure the sum of both sides.

use std::hint::black_box;

use roxie::limits::Limits;
use roxie::nic::NicConfig;
use roxie::shared::work_queue::Payload;
use roxie::time::Nanos;
use roxie::verbs::{Access, Mtu, QpCaps, RKey, SendFlags, SendWr, WrOpcode};
use roxie_sim::{Connected, Host, HostQp, HostRegion, Pair, joined_ports};

/// Measured operations and message sizes.
pub(crate) const CASES: [(WrOpcode, u32); 9] = [
    (WrOpcode::Send, 64),
    (WrOpcode::Write, 64),
    (WrOpcode::Read, 64),
    (WrOpcode::FetchAdd, 8),
    (WrOpcode::Send, 4096),
    (WrOpcode::Write, 4096),
    (WrOpcode::Read, 4096),
    (WrOpcode::Write, 65_536),
    (WrOpcode::Read, 65_536),
];

/// Outstanding messages in total.
pub(crate) const BATCH: usize = 64;

pub(crate) struct Bench {
    pair: Pair,
    qps: Vec<[HostQp; 2]>,
    source: HostRegion,
    target: HostRegion,
    /// Messages posted in a row to one QP.
    in_a_row: usize,
    next: usize,
}

impl Bench {
    /// Connects `qps` QPs. Each gets `in_a_row` messages before the next one does. Messages have up to `region` bytes.
    pub(crate) fn new(qps: usize, in_a_row: usize, region: usize) -> Bench {
        let (a, b) = joined_ports(4200, None);
        let config = NicConfig { limits: Limits::default(), ..NicConfig::default() };
        let mut pair = Pair::new(Host::new(1, config, a), Host::new(2, config, b));
        let source = pair.a.register(region, Access::LOCAL_WRITE);
        let target = pair.b.register(region, Access::READ_WRITE);
        let qps = (0..qps).map(|_| connect(&mut pair)).collect();
        Bench { pair, qps, source, target, in_a_row, next: 0 }
    }

    /// Posts a batch over the QPs in turn, and runs both NICs until the batch is complete.
    pub(crate) fn batch(&mut self, opcode: WrOpcode, length: u32) {
        let first = self.next;
        for i in 0..BATCH {
            let [local, remote] = &self.qps[(first + i / self.in_a_row) % self.qps.len()];
            if opcode == WrOpcode::Send {
                self.pair.b.post_recv(remote, 0, &[self.target.sge(0, length)]).expect("room");
            }
            let wr = SendWr {
                opcode,
                flags: SendFlags::SIGNALED,
                remote_addr: self.target.address,
                rkey: RKey(self.target.key),
                ..SendWr::default()
            };
            let sges = [self.source.sge(0, length)];
            self.pair.a.post_send(local, &wr, Payload::Sges(&sges)).expect("room");
        }
        let (mut local_done, mut remote_done) = (0, if opcode == WrOpcode::Send { 0 } else { BATCH });
        while local_done < BATCH || remote_done < BATCH {
            self.pair.now = self.pair.now + Nanos(1_000);
            self.pair.a.worker.poll(self.pair.now);
            self.pair.b.worker.poll(self.pair.now);
            for i in 0..BATCH.div_ceil(self.in_a_row).min(self.qps.len()) {
                let [local, remote] = &self.qps[(first + i) % self.qps.len()];
                while let Some(wc) = self.pair.a.poll_cq(local) {
                    black_box(wc);
                    local_done += 1;
                }
                while let Some(wc) = self.pair.b.poll_cq(remote) {
                    black_box(wc);
                    remote_done += 1;
                }
            }
        }
        self.next = (first + BATCH.div_ceil(self.in_a_row)) % self.qps.len();
    }
}

fn connect(pair: &mut Pair) -> [HostQp; 2] {
    let caps = QpCaps { max_send_sge: 1, max_recv_sge: 1, max_send_wr: 64, max_recv_wr: 64, max_inline: 0 };
    let qps = [
        pair.a.queue_pair().caps(caps).cq_entries(128).create(),
        pair.b.queue_pair().caps(caps).cq_entries(128).create(),
    ];
    for end in 0..2 {
        let peer = qps[1 - end].handle.qpn;
        let (host, to) = if end == 0 { (&mut pair.a, 2) } else { (&mut pair.b, 1) };
        let way = host.path(to, false);
        let to = Connected { peer, path: way, path_mtu: Mtu::Mtu4096, timeout: 18, rd_atomic: 16 };
        host.connect(&qps[end], &to).expect("legal transitions");
    }
    qps
}
