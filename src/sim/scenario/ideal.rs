//! Ideal completion time: the duration of a flow in an otherwise empty network.

use std::collections::{HashMap, VecDeque};

use super::traffic::Flow;
use crate::fabric::{End, LinkConfig, Shape};
use roxie_base::time::Nanos;

/// Ethernet, IPv4, UDP, BTH and ICRC.
const HEADERS: usize = 14 + 20 + 8 + 12 + 4;
/// Additional bytes of a READ request, and of a WRITE's first packet.
const RETH: usize = 16;
/// Additional bytes of an acknowledgement, and of a READ response's first and last packets.
const AETH: usize = 4;

/// The links of shortest paths, by their end nodes.
#[derive(Clone, Debug)]
pub(super) struct ShortestPaths {
    /// Neighbours of each node; stations come first.
    adjacent: Vec<Vec<(usize, LinkConfig)>>,
    cache: HashMap<(usize, usize), Vec<LinkConfig>>,
    /// Payload of a full packet, and size of a message.
    mtu: u64,
    message: u64,
}

impl ShortestPaths {
    pub(super) fn new(shape: &Shape, mtu: u64, message: u64) -> ShortestPaths {
        let node = |end| match end {
            End::Station(station) => station,
            End::Switch { switch, .. } => shape.stations.len() + switch,
        };
        let mut adjacent = vec![Vec::new(); shape.stations.len() + shape.switches.len()];
        for link in &shape.links {
            let [a, b] = link.ends.map(node);
            adjacent[a].push((b, link.link));
            adjacent[b].push((a, link.link));
        }
        ShortestPaths { adjacent, cache: HashMap::new(), mtu, message }
    }

    /// Returns the links of a shortest path between two nodes.
    fn between(&self, from: usize, to: usize) -> Vec<LinkConfig> {
        let mut before: Vec<Option<(usize, LinkConfig)>> = vec![None; self.adjacent.len()];
        let mut reached = VecDeque::from([from]);
        while let Some(node) = reached.pop_front() {
            for (neighbour, link) in &self.adjacent[node] {
                if *neighbour != from && before[*neighbour].is_none() {
                    before[*neighbour] = Some((node, *link));
                    reached.push_back(*neighbour);
                }
            }
        }
        let mut links = Vec::new();
        let mut at = to;
        while let Some((previous, link)) = before[at] {
            links.push(link);
            at = previous;
        }
        links.reverse();
        links
    }

    /// Returns the time from posting the flow's first request until its completion. All packets take the slowest link,
    /// the last packet also the others, and then the response its way back. Switches store and forward, and no other
    /// flow sends.
    pub(super) fn time(&mut self, flow: &Flow) -> Nanos {
        let (first, last) = (self.adjacent[flow.from][0], self.adjacent[flow.to][0]);
        if !self.cache.contains_key(&(first.0, last.0)) {
            let way = self.between(first.0, last.0);
            self.cache.insert((first.0, last.0), way);
        }
        let middle = &self.cache[&(first.0, last.0)];
        let links = || [first.1].into_iter().chain(middle.iter().copied()).chain([last.1]);
        let (messages, rest) = (flow.bytes.div_ceil(self.message), (flow.bytes - 1) % self.message + 1);
        let packets = |bytes: u64| bytes.div_ceil(self.mtu);
        let count = (messages - 1) * packets(self.message) + packets(rest);
        let tail = (flow.bytes - 1) % self.message % self.mtu + 1;
        // RETH in the first packet of each message; AETH in the first and the last of each response.
        let more = if flow.read { 2 * AETH } else { RETH } as u64 * messages;
        let on_wire = |link: &LinkConfig, length: usize| link.rate.nanos_for(link.wire_bytes(length)).0;
        let all = |link: &LinkConfig| {
            let bytes = flow.bytes + more + count * (HEADERS as u64 + u64::from(link.overhead));
            link.rate.nanos_for(bytes).0
        };
        let slowest = links().map(|link| all(&link)).max().unwrap_or(0);
        let last_packet: Vec<u64> = links().map(|link| on_wire(&link, HEADERS + tail as usize)).collect();
        let others = last_packet.iter().sum::<u64>() - last_packet.iter().max().copied().unwrap_or(0);
        let answer = HEADERS + if flow.read { RETH } else { AETH };
        let back: u64 = links().map(|link| on_wire(&link, answer)).sum();
        let cables: u64 = links().map(|link| 2 * link.delay.0).sum();
        Nanos(slowest + others + back + cables)
    }
}
