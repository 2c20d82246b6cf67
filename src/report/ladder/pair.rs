//! Groups packets into flows, and flows into connections.

use std::collections::HashMap;
use std::net::IpAddr;

use roxie::wire::{Psn, Qpn, Service};

use super::{Facts, Fate, Passage};

/// Packets between two queue pairs, in the order of the capture.
#[derive(Debug)]
pub struct Connection {
    pub(super) service: Service,
    /// Address and queue pair (if known) of both ends. The first packet came from the first.
    pub(super) ends: [(IpAddr, Option<Qpn>); 2],
    pub(super) packets: Vec<Passage>,
    /// True if both ends were captured.
    pub(super) two_sided: bool,
}

impl Connection {
    fn new(service: Service, ends: [(IpAddr, Option<Qpn>); 2], packets: Vec<Passage>) -> Connection {
        let two_sided = packets.iter().any(|passage| passage.fate == Fate::Delivered);
        let mut connection = Connection { service, ends, packets, two_sided };
        if two_sided {
            // Sort by the times of the left end.
            let mut packets = std::mem::take(&mut connection.packets);
            for passage in &mut packets {
                if !connection.goes_right(&passage.facts)
                    && let Some(arrived) = &passage.arrived
                {
                    passage.at = arrived.at.map(u64::cast_signed);
                }
            }
            packets.sort_by_key(|passage| passage.at);
            connection.packets = packets;
        }
        connection
    }

    /// True if the packet goes from left to right.
    pub(super) fn goes_right(&self, facts: &Facts) -> bool {
        // Two queue pairs on one host differ by QPN.
        if facts.src == facts.dst {
            self.ends[1].1 == Some(facts.dest_qp)
        } else {
            facts.src == self.ends[0].0
        }
    }

    /// True if `qp` is one of the connection's queue pairs.
    pub fn has(&self, qp: Qpn) -> bool {
        self.ends.iter().any(|(_, own)| *own == Some(qp))
    }

    /// True if a packet of this frame, of either capture, is of the connection.
    pub fn has_frame(&self, number: u64) -> bool {
        let is_of = |sight: &Option<super::Sight>| sight.as_ref().is_some_and(|sight| sight.number == number);
        self.packets.iter().any(|packet| is_of(&packet.departed) || is_of(&packet.arrived))
    }

    /// Returns the known queue pairs: QPN, address and service.
    pub fn queue_pairs(&self) -> impl Iterator<Item = (Qpn, IpAddr, &'static str)> {
        self.ends.iter().filter_map(|(address, qp)| Some(((*qp)?, *address, self.service.name())))
    }
}

/// Key of a flow: the packets from one host to a queue pair of another. A datagram's key includes its source QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    src: IpAddr,
    dst: IpAddr,
    dest_qp: Qpn,
    src_qp: Option<Qpn>,
}

impl Key {
    fn of(seen: &Facts) -> Key {
        Key { src: seen.src, dst: seen.dst, dest_qp: seen.dest_qp, src_qp: seen.src_qp }
    }

    fn may_answer(&self, other: &Key) -> bool {
        (self.src, self.dst) == (other.dst, other.src)
    }
}

struct Flow {
    key: Key,
    service: Service,
    packets: Vec<usize>,
    partner: Option<usize>,
}

/// Groups packets into connections, in the order in which they begin.
pub fn pair(packets: Vec<Passage>) -> Vec<Connection> {
    let mut flows: Vec<Flow> = Vec::new();
    let mut index: HashMap<Key, usize> = HashMap::new();
    for (i, passage) in packets.iter().enumerate() {
        let key = Key::of(&passage.facts);
        let service = passage.facts.service;
        let flow = *index.entry(key).or_insert_with(|| {
            flows.push(Flow { key, service, packets: Vec::new(), partner: None });
            flows.len() - 1
        });
        // A congestion notification goes to a queue pair of any service.
        if flows[flow].service == Service::Cnp {
            flows[flow].service = service;
        }
        flows[flow].packets.push(i);
    }
    pair_flows(&mut flows, &evidence(&packets, &index));
    let mut packets: Vec<Option<Passage>> = packets.into_iter().map(Some).collect();
    let mut connections = Vec::new();
    for i in 0..flows.len() {
        let flow = &flows[i];
        if flow.partner.is_some_and(|partner| partner < i) {
            continue;
        }
        let back = flow.partner.map(|partner| &flows[partner]);
        let left = back.map(|flow| flow.key.dest_qp).or(flow.key.src_qp);
        let mut members = flow.packets.clone();
        members.extend(back.iter().flat_map(|flow| &flow.packets));
        members.sort_unstable();
        let members = members.into_iter().filter_map(|member| packets[member].take()).collect();
        let ends = [(flow.key.src, left), (flow.key.dst, Some(flow.key.dest_qp))];
        connections.push(Connection::new(flow.service, ends, members));
    }
    connections
}

/// For pairs of flows, counts responses in one that match the last request with their PSN in the other.
fn evidence(packets: &[Passage], index: &HashMap<Key, usize>) -> HashMap<(usize, usize), u64> {
    let mut asked: HashMap<(IpAddr, IpAddr, Psn), usize> = HashMap::new();
    let mut found = HashMap::new();
    for facts in packets.iter().map(|passage| &passage.facts).filter(|facts| facts.is_ordered()) {
        let flow = index[&Key::of(facts)];
        if !facts.is_answer() {
            asked.insert((facts.src, facts.dst, facts.psn), flow);
        } else if let Some(request) = asked.get(&(facts.dst, facts.src, facts.psn)) {
            *found.entry((*request, flow)).or_default() += 1;
        }
    }
    found
}

/// Pairs each flow with its reverse flow: first by evidence, then by equal QPNs.
fn pair_flows(flows: &mut [Flow], evidence: &HashMap<(usize, usize), u64>) {
    let mut scores: HashMap<(usize, usize), u64> = HashMap::new();
    for ((a, b), n) in evidence.iter().filter(|((a, b), _)| a != b) {
        *scores.entry((*a.min(b), *a.max(b))).or_default() += n;
    }
    let mut candidates: Vec<_> = scores.into_iter().collect();
    let same_number = |(a, b): (usize, usize)| flows[a].key.dest_qp == flows[b].key.dest_qp;
    candidates.sort_by_key(|(pair, n)| (std::cmp::Reverse(*n), !same_number(*pair), *pair));
    let mut wed = |a: usize, b: usize| {
        if flows[a].partner.is_none() && flows[b].partner.is_none() {
            flows[a].partner = Some(b);
            flows[b].partner = Some(a);
        }
    };
    candidates.iter().for_each(|((a, b), _)| wed(*a, *b));
    pair_by_qpn(flows);
    pair_last_flows(flows);
}

/// Pairs flows by QPN: datagrams name both ends; for connections without responses, equal QPNs are the best guess.
fn pair_by_qpn(flows: &mut [Flow]) {
    let mut waiting: HashMap<(IpAddr, IpAddr, Qpn, Option<Qpn>), usize> = HashMap::new();
    for i in 0..flows.len() {
        let key = flows[i].key;
        if flows[i].partner.is_some() {
            continue;
        }
        let looked_for = match key.src_qp {
            Some(src_qp) => (key.dst, key.src, src_qp, Some(key.dest_qp)),
            None => (key.dst, key.src, key.dest_qp, None),
        };
        match waiting.get(&looked_for) {
            Some(&other)
                if flows[other].service == flows[i].service && flows[i].key.may_answer(&flows[other].key) =>
            {
                flows[i].partner = Some(other);
                flows[other].partner = Some(i);
            }
            _ => {
                waiting.insert((key.src, key.dst, key.dest_qp, key.src_qp), i);
            }
        }
    }
}

/// Pairs the last flows between two hosts, if one is left in each direction.
fn pair_last_flows(flows: &mut [Flow]) {
    let mut left: HashMap<(IpAddr, IpAddr, Service), Vec<usize>> = HashMap::new();
    let single =
        |flow: &&Flow| flow.partner.is_none() && flow.key.src_qp.is_none() && flow.key.src != flow.key.dst;
    for (i, flow) in flows.iter().enumerate().filter(|(_, flow)| single(flow)) {
        left.entry((flow.key.src, flow.key.dst, flow.service)).or_default().push(i);
    }
    for (&(src, dst, service), there) in &left {
        if let ([there], Some([back])) = (&there[..], left.get(&(dst, src, service)).map(|back| &back[..])) {
            flows[*there].partner = Some(*back);
        }
    }
}
