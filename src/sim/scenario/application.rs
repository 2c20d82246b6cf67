//! The application of each host: queue pairs between hosts, and the flows that they carry.

use std::collections::HashMap;

use super::error::ScenarioError;
use super::traffic::Flow;
use crate::fabric::{Fabric, FlowName, FlowPart, FlowStats, Shape};
use crate::{Connected, HostQp, HostRegion};
use roxie_base::time::Nanos;
use roxie_nic::shared::CompletionRing;
use roxie_nic::shared::work_queue::Payload;
use roxie_nic::verbs::{Access, CqIndex, Mtu, QpCaps, QpType, RKey, SendFlags, SendWr, WcStatus, WrOpcode};

/// Entries of a host's completion queue: more than complete in one pass, after which the queue is emptied.
const COMPLETIONS: u32 = 2048;
/// Outstanding READs.
const RD_ATOMIC: u8 = 16;

/// Parameters common to all connections.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConnectionParameters {
    pub(super) path_mtu: Mtu,
    pub(super) message: u32,
    pub(super) depth: u32,
    pub(super) timeout: u8,
    pub(super) selective_repeat: bool,
}

/// Memory and completion queue of a host. All flows use the same bytes, because contents do not matter.
#[derive(Debug)]
struct Place {
    memory: HostRegion,
    cq: (CqIndex, CompletionRing),
}

/// One end of a connection.
#[derive(Debug)]
struct Conn {
    qp: HostQp,
    host: usize,
    peer: usize,
    /// The current flow, its bytes not posted yet, and its outstanding requests.
    flow: Option<u32>,
    remaining: u64,
    outstanding: u32,
    /// The latest flow, and the total of [`Applications::flow_stats_of_end`] when that flow started.
    latest: Option<(u32, FlowStats)>,
}

/// Key of an idle end: host, peer, priority, and whether it READs. An end that carried READs never carries WRITEs, so
/// that all frames towards its QPN belong to the same flow.
type Use = (u32, u32, u8, bool);

/// Outcome of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FlowOutcome {
    Well,
    Failed(WcStatus),
}

/// Applications of all hosts. Connections are made on demand, in no virtual time, and kept. A flow takes an idle
/// connection or makes one, so flows never wait for one another.
#[derive(Debug)]
pub(super) struct Applications {
    terms: ConnectionParameters,
    places: Vec<Option<Place>>,
    conns: Vec<Conn>,
    idle: HashMap<Use, Vec<u32>>,
    /// Final statistics by flow, once the queue pair carries another flow.
    all_flow_stats: HashMap<u32, FlowStats>,
}

impl Applications {
    pub(super) fn new(hosts: usize, terms: ConnectionParameters) -> Applications {
        let places = (0..hosts).map(|_| None).collect();
        Applications {
            terms,
            places,
            conns: Vec::new(),
            idle: HashMap::new(),
            all_flow_stats: HashMap::new(),
        }
    }

    /// Returns the number of queue pairs made.
    pub(super) fn queue_pairs(&self) -> usize {
        self.conns.len()
    }

    /// Returns the host and queue pair of a flow's connection.
    pub(super) fn queue_pair(&self, conn: u32) -> (usize, &HostQp) {
        let conn = &self.conns[conn as usize];
        (conn.host, &conn.qp)
    }

    /// Starts a flow. Returns the number of the connection end that carries it.
    pub(super) fn begin(
        &mut self,
        fabric: &mut Fabric,
        number: u32,
        flow: &Flow,
    ) -> Result<u32, ScenarioError> {
        let (host, peer) = if flow.read { (flow.to, flow.from) } else { (flow.from, flow.to) };
        let key = (host as u32, peer as u32, flow.priority, flow.read);
        let conn = match self.idle.get_mut(&key).and_then(Vec::pop) {
            Some(conn) => conn,
            None => self.connect(fabric, host, peer, flow)?,
        };
        let flow_stats = self.flow_stats_of_end(fabric, conn, flow.read);
        if let Some((before, began)) = self.conns[conn as usize].latest.replace((number, flow_stats)) {
            self.all_flow_stats.insert(before, flow_stats - began);
        }
        let entry = &mut self.conns[conn as usize];
        (entry.flow, entry.remaining) = (Some(number), flow.bytes);
        self.post(fabric, conn, flow.read);
        Ok(conn)
    }

    /// Returns the statistics of all flows that an end has carried. The two ends of a connection have adjacent numbers.
    fn flow_stats_of_end(&self, fabric: &Fabric, conn: u32, read: bool) -> FlowStats {
        let [local, remote] = [conn, conn ^ 1].map(|conn| &self.conns[conn as usize]);
        let name =
            |end: &Conn, part| FlowName { station: Shape::mac(end.host), qpn: end.qp.handle.qpn, part };
        let slowed = if read { remote } else { local };
        let parts = [
            name(remote, FlowPart::Request),
            name(local, FlowPart::Response),
            name(slowed, FlowPart::Notification),
        ];
        parts.iter().fold(FlowStats::default(), |sum, name| sum + fabric.flow_stats(name))
    }

    /// Returns the statistics of a flow, including frames counted after its end and before the connection's next flow.
    pub(super) fn flow_stats(&self, fabric: &Fabric, number: u32, conn: u32, read: bool) -> FlowStats {
        match self.conns[conn as usize].latest {
            Some((latest, began)) if latest == number => self.flow_stats_of_end(fabric, conn, read) - began,
            _ => self.all_flow_stats.get(&number).copied().unwrap_or_default(),
        }
    }

    /// Takes a host's completions. Returns the flows that they end.
    pub(super) fn poll(
        &mut self,
        fabric: &mut Fabric,
        host: usize,
        flows: &[Flow],
    ) -> Vec<(u32, FlowOutcome)> {
        let mut ended = Vec::new();
        let Some(place) = &self.places[host] else { return ended };
        let ring = place.cq.1.clone();
        while let Some(wc) = ring.poll() {
            let number = wc.wr_id as u32;
            let conn = &mut self.conns[number as usize];
            conn.outstanding -= 1;
            let Some(flow) = conn.flow else { continue };
            let about = &flows[flow as usize];
            if wc.status != WcStatus::Success {
                // The queue pair is in the error state, and is not reused.
                conn.flow = None;
                ended.push((flow, FlowOutcome::Failed(wc.status)));
            } else if conn.remaining > 0 {
                self.post(fabric, number, about.read);
            } else if conn.outstanding == 0 {
                conn.flow = None;
                let key = (conn.host as u32, conn.peer as u32, about.priority, about.read);
                self.idle.entry(key).or_default().push(number);
                ended.push((flow, FlowOutcome::Well));
            }
        }
        ended
    }

    /// Posts requests up to the send queue's depth.
    fn post(&mut self, fabric: &mut Fabric, number: u32, read: bool) {
        let ConnectionParameters { message, depth, .. } = self.terms;
        let conn = &mut self.conns[number as usize];
        let [local, remote] =
            [conn.host, conn.peer].map(|host| self.places[host].as_ref().expect("a connected host"));
        let host = fabric.host(conn.host);
        while conn.remaining > 0 && conn.outstanding < depth {
            let length = conn.remaining.min(message.into()) as u32;
            let wr = SendWr {
                wr_id: number.into(),
                opcode: if read { WrOpcode::Read } else { WrOpcode::Write },
                flags: SendFlags::SIGNALED,
                remote_addr: remote.memory.address,
                rkey: RKey(remote.memory.key),
                ..SendWr::default()
            };
            let payload = [local.memory.sge(0, length)];
            host.post_send(&conn.qp, &wr, Payload::Sges(&payload)).expect("fewer are outstanding than fit");
            conn.remaining -= u64::from(length);
            conn.outstanding += 1;
        }
    }

    fn furnish(&mut self, fabric: &mut Fabric, host: usize) {
        if self.places[host].is_none() {
            let nic = fabric.host(host);
            let memory = nic.register(self.terms.message as usize, Access::READ_WRITE);
            self.places[host] = Some(Place { memory, cq: nic.create_cq(COMPLETIONS, None) });
        }
    }

    /// Connects two hosts. Returns the number of the first host's end.
    fn connect(
        &mut self,
        fabric: &mut Fabric,
        host: usize,
        peer: usize,
        flow: &Flow,
    ) -> Result<u32, ScenarioError> {
        let caps = QpCaps {
            max_send_wr: self.terms.depth,
            max_recv_wr: 1,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 0,
        };
        let ends = [host, peer].map(|at| {
            self.furnish(fabric, at);
            let cq = self.places[at].as_ref().expect("furnished").cq.clone();
            fabric.host(at).queue_pair().caps(caps).cq(cq).create()
        });
        for (at, other, to) in [(host, 0, peer), (peer, 1, host)] {
            let nic = fabric.host(at);
            let mut way = nic.path(to as u16 + 1, false);
            // Class selector of the priority.
            way.traffic_class = flow.priority << 5;
            let to = Connected {
                peer: ends[1 - other].handle.qpn,
                path: way,
                path_mtu: self.terms.path_mtu,
                timeout: self.terms.timeout,
                rd_atomic: RD_ATOMIC,
            };
            let [init, mut rtr, rts] = to.steps(QpType::Rc);
            rtr.selective_repeat = self.terms.selective_repeat.then_some(true);
            let mut step = |attr| nic.modify(Nanos::ZERO, &ends[other], attr);
            let connected = [init, rtr, rts].iter().try_for_each(&mut step);
            connected.map_err(|error| ScenarioError::Nic { host: at, error })?;
        }
        let first = self.conns.len() as u32;
        let [local, remote] = ends;
        for (qp, host, peer) in [(local, host, peer), (remote, peer, host)] {
            self.conns.push(Conn { qp, host, peer, flow: None, remaining: 0, outstanding: 0, latest: None });
        }
        let key = (peer as u32, host as u32, flow.priority, flow.read);
        self.idle.entry(key).or_default().push(first + 1);
        Ok(first)
    }
}
