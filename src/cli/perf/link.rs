//! The device of one end: what is posted on its queue pairs, and what completes.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use roxie::host::{ConnectOptions, Device};
use roxie::verbs::{Mtu, QpType, SendFlags, SendWr, Wc, WcStatus, WrOpcode};
use roxie_options::{DeviceOptions, IdleYield};
use roxie_report::failure::Failure;

use super::arguments::Operation;
use super::control::{Control, End, Message, ServerReport, out_of_turn};
use super::plan::{Plan, SIGNAL_EVERY};
use crate::device::health::{Health, PeerWatchdog};
use crate::device::{QueuePairs, Shape};

/// Bit of `wr_id` that marks a receive; the other bits are the queue pair's index.
const RECEIVE: u64 = 1 << 63;
/// Low bits of a send's `wr_id` for the queue pair's index. The bits above number the sends on it from 1.
const QP_BITS: u32 = 16;
/// Longest time without progress in a round.
pub(super) const STANDSTILL: Duration = Duration::from_secs(30);
/// Completions polled at once.
pub(super) const COMPLETIONS: usize = 32;

/// Unacknowledged messages still under way at the end arrive before a silence of this length.
const STRAGGLERS: Duration = Duration::from_millis(50);

/// Meaning of a completion.
pub(super) enum Event {
    /// The queue pair completed its sends up to this number.
    Sent { qp: usize, number: u64 },
    /// A message of `bytes` bytes arrived on the queue pair.
    Received { qp: usize, bytes: u32 },
}

/// A device and, once prepared, its queue pairs and memory.
pub(super) struct Link<'a> {
    pub(super) options: &'a DeviceOptions,
    pub(super) device: Device,
    /// True if rates are sampled.
    pub(super) is_sampled: bool,
    gid_index: usize,
    parts: Option<Parts>,
    idle: RefCell<IdleYield>,
    health: RefCell<Health>,
}

pub(super) struct Parts {
    pub(super) pairs: QueuePairs,
    path_mtu: Mtu,
    /// Both ends have selective repeat.
    selective_repeat: bool,
    there: Option<End>,
}

impl<'a> Link<'a> {
    /// Returns a link with nothing prepared.
    pub(super) fn new(
        options: &'a DeviceOptions,
        device: Device,
        gid_index: usize,
    ) -> Result<Link<'a>, Failure> {
        // Reject an unsuitable path MTU before either end waits for the other.
        options.path_mtu(&device, Mtu::Mtu4096)?;
        Ok(Link {
            options,
            device,
            is_sampled: false,
            gid_index,
            parts: None,
            idle: RefCell::default(),
            health: RefCell::default(),
        })
    }

    pub(super) fn parts(&self) -> &Parts {
        self.parts.as_ref().expect("prepared before it is measured")
    }

    /// Describes the likely cause of a standstill.
    pub(super) fn standstill(&self) -> &'static str {
        match self.parts().pairs.service {
            QpType::Rc => "the connection is neither broken nor alive: please report it with a --capture",
            _ => "a message was lost, and this service does not retransmit",
        }
    }

    /// Posts a receive on a queue pair.
    pub(super) fn post_receive(&self, qp: usize) -> Result<(), Failure> {
        self.parts().pairs.post_receive(qp, RECEIVE | qp as u64)
    }

    /// Posts the `number`-th operation of `size` bytes on a queue pair.
    pub(super) fn post(
        &self,
        operation: Operation,
        qp: usize,
        number: u64,
        size: u32,
        signaled: bool,
    ) -> Result<(), Failure> {
        let parts = self.parts();
        let there = parts.there.as_ref().expect("connected before it is measured");
        let wr = SendWr {
            wr_id: number << QP_BITS | qp as u64,
            opcode: match operation {
                Operation::Send => WrOpcode::Send,
                Operation::Write => WrOpcode::Write,
                Operation::Read => WrOpcode::Read,
                Operation::Atomic => WrOpcode::FetchAdd,
            },
            flags: if signaled { SendFlags::SIGNALED } else { SendFlags::empty() },
            remote_addr: there.address,
            rkey: roxie::verbs::RKey(there.rkey),
            compare_add: 1,
            ..SendWr::default()
        };
        parts.pairs.post_send(qp, wr, size)
    }

    /// Polls completions, and the device if there are none.
    pub(super) fn poll<'w>(
        &self,
        completions: &'w mut [Wc; COMPLETIONS],
    ) -> Result<impl Iterator<Item = Event> + use<'w>, Failure> {
        let count = self.parts().pairs.cq.poll(completions);
        self.idle.borrow_mut().found(count > 0);
        if count == 0 {
            self.health.borrow_mut().ask(&self.device);
        }
        let header = self.parts().pairs.header();
        let taken = &completions[..count];
        if let Some(wc) = taken.iter().find(|wc| wc.status != WcStatus::Success) {
            let what = if wc.wr_id & RECEIVE != 0 { "a receive" } else { "an operation" };
            return Err(Failure::Run(format!("{what} failed: {}", self.options.explain(wc))));
        }
        Ok(taken.iter().map(move |wc| match wc.wr_id & RECEIVE {
            0 => Event::Sent { qp: (wc.wr_id & ((1 << QP_BITS) - 1)) as usize, number: wc.wr_id >> QP_BITS },
            _ => Event::Received {
                qp: (wc.wr_id & !RECEIVE) as usize,
                bytes: wc.byte_len.saturating_sub(header),
            },
        }))
    }

    /// Serves a bandwidth round: reposts receives for SENDs, and polls the device for other operations.
    pub(super) fn receive_all(&self, control: &Control) -> Result<(u64, ServerReport), Failure> {
        let mut completions = [Wc::default(); COMPLETIONS];
        let (mut received, mut first, mut last) = (0, None, None::<Instant>);
        let mut done = None;
        let mut watchdog = PeerWatchdog::new(Instant::now());
        loop {
            let before = received;
            for event in self.poll(&mut completions)? {
                if let Event::Received { qp, .. } = event {
                    received += 1;
                    self.post_receive(qp)?;
                }
            }
            let now = Instant::now();
            if received > before {
                first.get_or_insert(now);
                last = Some(now);
            }
            watchdog.check(now, || self.arrivals())?;
            // Acknowledged messages have arrived by now; others may still be under way.
            if let Some((messages, when)) = done {
                let silent: Instant = last.map_or(when, |last| last.max(when));
                if self.parts().pairs.service == QpType::Rc || silent.elapsed() > STRAGGLERS {
                    let seconds = first.zip(last).map(|(a, b): (Instant, Instant)| (b - a).as_secs_f64());
                    let seen = first.is_some().then_some(received);
                    let report = ServerReport { messages: seen, seconds, ..ServerReport::default() };
                    return Ok((messages, report));
                }
                continue;
            }
            match control.look()? {
                None => {}
                Some(Message::Done { messages }) => done = Some((messages, Instant::now())),
                Some(other) => return Err(out_of_turn(&other)),
            }
        }
    }
}

impl Link<'_> {
    pub(super) fn prepare(&mut self, plan: &Plan, path_mtu: Mtu) -> Result<End, Failure> {
        let receives = plan.receives();
        let shape = Shape {
            service: plan.service.into(),
            count: plan.qps,
            max_send_wr: plan.depth + SIGNAL_EVERY,
            max_recv_wr: receives,
            is_shared: false,
            sq_sig_all: false,
            channel: None,
            size: plan.largest(),
            access: self.options.connect_options(path_mtu).access,
        };
        let pairs = QueuePairs::new(&self.device, self.gid_index, &shape)?;
        let end = End {
            gid: self.device.gid(self.gid_index)?.0,
            qps: pairs.own.iter().map(|e| (e.qpn.value(), e.psn.value())).collect(),
            address: pairs.incoming.address(),
            rkey: pairs.incoming.rkey().0,
        };
        let selective_repeat = plan.selective_repeat;
        self.parts = Some(Parts { pairs, path_mtu, selective_repeat, there: None });
        if plan.operation == Operation::Send {
            (0..plan.qps as usize)
                .flat_map(|qp| (0..receives).map(move |_| qp))
                .try_for_each(|qp| self.post_receive(qp))?;
        }
        Ok(end)
    }

    pub(super) fn connect(&mut self, there: &End) -> Result<(), Failure> {
        let parts = self.parts.as_mut().expect("prepared before it is connected");
        let count = parts.pairs.qps.len();
        let peers: Vec<_> = (0..count).map_while(|i| there.endpoint(i)).collect();
        if peers.len() < count {
            let named = there.qps.len();
            return Err(Failure::Peer(format!("the peer named {named} queue pairs, not {count}")));
        }
        let options = ConnectOptions {
            selective_repeat: Some(parts.selective_repeat),
            ..self.options.connect_options(parts.path_mtu)
        };
        parts.pairs.connect(&peers, &options)?;
        parts.there = Some(there.clone());
        Ok(())
    }

    /// Returns the number of packets that have arrived, of any kind.
    pub(super) fn arrivals(&self) -> u64 {
        self.device.counter("rcvd_pkts")
    }
}
