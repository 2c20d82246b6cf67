//! Routing: the ports by which a switch reaches each station.

use std::collections::{BTreeSet, HashMap, VecDeque};

use super::error::ConfigError;
use super::topology::{End, FabricConfig, Routing, Wiring};

/// One direction of a link between switches, named by its sending end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Hop {
    /// Number of the switch.
    pub switch: usize,
    /// Port of the switch.
    pub port: u16,
}

impl FabricConfig {
    /// Returns a cycle of links in which frames that arrive by each link may leave by the next. If all links of the
    /// cycle are paused at once, they deadlock. `None`: the routes contain no cycle, so lossless priorities cannot
    /// deadlock.
    ///
    /// # Errors
    /// If the configuration is invalid.
    pub fn cycle(&self) -> Result<Option<Vec<Hop>>, ConfigError> {
        Ok(Router::new(&self.wiring()?, self.routing).cycle())
    }
}

/// Computes routes from the wiring.
pub(super) struct Router<'a> {
    wiring: &'a Wiring,
    routing: Routing,
    /// Rank of each switch; a lower rank is farther up.
    rank: Vec<usize>,
    /// Switches from the highest to the lowest.
    order: Vec<usize>,
}

impl<'a> Router<'a> {
    pub(super) fn new(wiring: &'a Wiring, routing: Routing) -> Router<'a> {
        let count = wiring.switches.len();
        let at_stations = wiring.stations.iter().flatten().filter_map(|end| match end {
            End::Switch { switch, .. } => Some(*switch),
            End::Station(_) => None,
        });
        let tiers = distances(wiring, at_stations);
        let farthest = tiers.iter().copied().filter(|tier| *tier != usize::MAX).max();
        let root = farthest.and_then(|tier| tiers.iter().position(|of| *of == tier));
        let from_root = distances(wiring, root);
        let mut order: Vec<usize> = (0..count).collect();
        order.sort_by_key(|switch| (std::cmp::Reverse(tiers[*switch]), from_root[*switch], *switch));
        let mut rank = vec![0; count];
        for (place, switch) in order.iter().enumerate() {
            rank[*switch] = place;
        }
        Router { wiring, routing, rank, order }
    }

    /// Returns for each switch the ports of its routes to a station; empty without a route.
    pub(super) fn next_hops_to(&self, station: usize) -> Vec<Vec<u16>> {
        let count = self.wiring.switches.len();
        let mut next_hops = vec![Vec::new(); count];
        let Some(End::Switch { switch, port }) = self.wiring.stations[station] else { return next_hops };
        let mut distance = vec![usize::MAX; count];
        distance[switch] = 0;
        let mut reached = VecDeque::from([switch]);
        while let Some(node) = reached.pop_front() {
            for (neighbour, back) in self.wiring.neighbours(node) {
                if self.routing == Routing::UpDown && self.rank[neighbour] > self.rank[node] {
                    continue;
                }
                if distance[neighbour] == usize::MAX {
                    distance[neighbour] = distance[node] + 1;
                    reached.push_back(neighbour);
                }
                if distance[neighbour] == distance[node] + 1 {
                    next_hops[neighbour].push(back);
                }
            }
        }
        if self.routing == Routing::UpDown {
            self.go_up(&mut distance, &mut next_hops);
        }
        next_hops[switch].push(port);
        next_hops
    }

    /// Completes the routes of switches that have no route down, by routes up.
    fn go_up(&self, distance: &mut [usize], next_hops: &mut [Vec<u16>]) {
        for &switch in &self.order {
            if distance[switch] != usize::MAX {
                continue;
            }
            let ups = || self.wiring.ports(switch).filter(|(_, up)| self.rank[*up] < self.rank[switch]);
            let Some(best) = ups().map(|(_, up)| distance[up]).min().filter(|best| *best != usize::MAX)
            else {
                continue;
            };
            next_hops[switch] = ups().filter(|(_, up)| distance[*up] == best).map(|(port, _)| port).collect();
            distance[switch] = best + 1;
        }
    }

    /// Returns a cycle of links, if the routes allow one: frames that arrive by a hop of it leave by the next.
    pub(super) fn cycle(&self) -> Option<Vec<Hop>> {
        let mut waits: HashMap<Hop, BTreeSet<Hop>> = HashMap::new();
        let stations = self.wiring.stations.iter().enumerate();
        let homes: BTreeSet<usize> = stations
            .clone()
            .filter_map(|(_, end)| match end {
                Some(End::Switch { switch, .. }) => Some(*switch),
                _ => None,
            })
            .collect();
        let mut visited = BTreeSet::new();
        for (station, end) in stations {
            // Stations of one switch have the same routes.
            let Some(End::Switch { switch: home, .. }) = *end else { continue };
            if !visited.insert(home) {
                continue;
            }
            let next_hops = self.next_hops_to(station);
            let mut seen: BTreeSet<usize> = homes.clone();
            let mut open: Vec<usize> = homes.iter().copied().collect();
            while let Some(switch) = open.pop() {
                for &port in &next_hops[switch] {
                    let Some(End::Switch { switch: next, .. }) =
                        self.wiring.switches[switch][usize::from(port)]
                    else {
                        continue;
                    };
                    let between = |port: &u16| {
                        matches!(self.wiring.switches[next][usize::from(*port)], Some(End::Switch { .. }))
                    };
                    let onward = next_hops[next].iter().copied().filter(between);
                    let hops = onward.map(|port| Hop { switch: next, port });
                    waits.entry(Hop { switch, port }).or_default().extend(hops);
                    if seen.insert(next) {
                        open.push(next);
                    }
                }
            }
        }
        find_cycle(&waits)
    }
}

/// Returns for each switch the number of links to the nearest of `from`.
fn distances(wiring: &Wiring, from: impl IntoIterator<Item = usize>) -> Vec<usize> {
    let mut distance = vec![usize::MAX; wiring.switches.len()];
    let mut reached: VecDeque<usize> = from.into_iter().collect();
    for switch in &reached {
        distance[*switch] = 0;
    }
    while let Some(node) = reached.pop_front() {
        for (neighbour, _) in wiring.neighbours(node) {
            if distance[neighbour] == usize::MAX {
                distance[neighbour] = distance[node] + 1;
                reached.push_back(neighbour);
            }
        }
    }
    distance
}

/// Returns a cycle of a graph, in order, starting at its least node. Deterministic: equal graphs give equal cycles.
pub(super) fn find_cycle<N: Copy + Ord + std::hash::Hash>(graph: &HashMap<N, BTreeSet<N>>) -> Option<Vec<N>> {
    let mut nodes: Vec<N> = graph.keys().copied().collect();
    nodes.sort_unstable();
    let mut done: BTreeSet<N> = BTreeSet::new();
    let none = BTreeSet::new();
    for start in nodes {
        // The path from `start`, and for each of its nodes the edges not tried yet.
        let mut way = vec![(start, graph.get(&start).unwrap_or(&none).iter())];
        let mut on_way = BTreeSet::from([start]);
        while let Some((node, rest)) = way.last_mut() {
            let node = *node;
            match rest.next().copied() {
                Some(next) if on_way.contains(&next) => {
                    let mut cycle: Vec<N> =
                        way.iter().map(|(node, _)| *node).skip_while(|node| *node != next).collect();
                    let least =
                        cycle.iter().enumerate().min_by_key(|(_, node)| **node).map_or(0, |(at, _)| at);
                    cycle.rotate_left(least);
                    return Some(cycle);
                }
                Some(next) if !done.contains(&next) => {
                    on_way.insert(next);
                    way.push((next, graph.get(&next).unwrap_or(&none).iter()));
                }
                Some(_) => {}
                None => {
                    on_way.remove(&node);
                    done.insert(node);
                    way.pop();
                }
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cycle_is_found_but_not_in_a_diamond() {
        let graph = |edges: &[(u8, u8)]| {
            let mut graph: HashMap<u8, BTreeSet<u8>> = HashMap::new();
            for (from, to) in edges {
                graph.entry(*from).or_default().insert(*to);
            }
            graph
        };
        assert_eq!(find_cycle(&graph(&[(0, 1), (1, 3), (0, 2), (2, 3)])), None);
        let looped = graph(&[(0, 5), (5, 4), (4, 3), (3, 5), (1, 0)]);
        assert_eq!(find_cycle(&looped), Some(vec![3, 5, 4]));
        assert_eq!(find_cycle(&graph(&[(7, 7)])), Some(vec![7]));
    }
}
