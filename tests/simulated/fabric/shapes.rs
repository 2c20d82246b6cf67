//! Network shapes, and the routes through them.

use roxie::time::Nanos;
use roxie_sim::fabric::{
    ConfigError, End, Fabric, FabricConfig, PortConfig, Routing, Shape, StationConfig, SwitchConfig,
};

use super::{delivered, frame, link};

fn fabric(shape: &Shape, routing: Routing) -> FabricConfig {
    let port = PortConfig::new(link());
    shape.fabric(routing, &SwitchConfig::new(Vec::new()), &port, |n, link| {
        StationConfig::new(Shape::mac(n), link)
    })
}

/// Sends a frame from each station to each other. Returns the number of switches on the way, by source and destination.
fn hops(config: FabricConfig) -> Vec<Vec<u64>> {
    let stations = config.stations.len();
    let switches = config.switches.len();
    let mut fabric = Fabric::new(config).expect("a fabric");
    let met = |fabric: &Fabric| {
        let ports = |n| (0..fabric.switch(n).config().ports.len()).map(move |port| (n, port));
        let all = (0..switches).flat_map(ports);
        all.map(|(switch, port)| fabric.switch(switch).ingress(port).frames).sum::<u64>()
    };
    let mut hops = vec![vec![0; stations]; stations];
    for (from, to) in (0..stations).flat_map(|from| (0..stations).map(move |to| (from, to))) {
        if from == to {
            continue;
        }
        let before = met(&fabric);
        fabric.send(fabric.now(), from, &frame(from, to, 100, 0));
        fabric.run(fabric.now() + Nanos(100_000));
        assert_eq!(delivered(&mut fabric, to).len(), 1, "from {from} to {to}");
        hops[from][to] = met(&fabric) - before;
    }
    hops
}

#[test]
fn fat_tree_has_its_hosts_and_routes() {
    let tree = Shape::fat_tree(4, link(), link()).expect("an even number");
    assert_eq!((tree.stations.len(), tree.switches.len(), tree.links.len()), (16, 20, 48));
    assert!(tree.switches.iter().all(|switch| switch.ports == 4));
    for routing in [Routing::ShortestPath, Routing::UpDown] {
        let hops = hops(fabric(&tree, routing));
        // Neighbours, same pod, different pods.
        assert_eq!([hops[0][1], hops[0][2], hops[0][15]], [1, 3, 5], "{routing:?}");
    }
    assert!(matches!(Shape::fat_tree(3, link(), link()), Err(ConfigError::Topology(_))));
}

#[test]
fn leaf_spine_and_dumbbell_have_their_links() {
    let clos = Shape::leaf_spine(3, 2, 4, link(), link());
    assert_eq!((clos.stations.len(), clos.links.len()), (12, 12 + 6));
    let ways = hops(fabric(&clos, Routing::UpDown));
    assert_eq!([ways[0][3], ways[0][4]], [1, 3]);
    let dumbbell = Shape::dumbbell(2, link(), link());
    let ways = hops(fabric(&dumbbell, Routing::ShortestPath));
    assert_eq!([ways[0][1], ways[0][2], ways[3][1]], [1, 2, 2]);
    assert_eq!(dumbbell.peer(0, 0), Some(End::Switch { switch: 1, port: 0 }));
}

#[test]
fn ring_has_cycle_unless_routed_up_down() {
    let ring = Shape::ring(5, 1, link(), link());
    let shortest = fabric(&ring, Routing::ShortestPath);
    let cycle = shortest.cycle().expect("a network").expect("a cycle");
    assert_eq!(cycle.iter().map(|hop| hop.switch).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    let up_down = fabric(&ring, Routing::UpDown);
    assert_eq!(up_down.cycle(), Ok(None));
    let [short, long] = [hops(shortest), hops(up_down)];
    // 0 is the root, and 3 the lowest: from 4 to 2 by 0 and 1, because the route by 3 goes down and up.
    assert_eq!([short[1][3], long[1][3], short[4][2], long[4][2]], [3, 3, 3, 4]);
    for shape in
        [Shape::leaf_spine(3, 2, 2, link(), link()), Shape::fat_tree(4, link(), link()).expect("even")]
    {
        assert_eq!(fabric(&shape, Routing::ShortestPath).cycle(), Ok(None), "trees have none");
    }
}

#[test]
fn switches_have_independent_ecmp_seeds() {
    let clos = fabric(&Shape::leaf_spine(4, 4, 1, link(), link()), Routing::ShortestPath);
    let mut seeds: Vec<_> = clos.switches.iter().map(|switch| switch.seed).collect();
    seeds.sort_unstable();
    seeds.dedup();
    assert_eq!(seeds.len(), 8);
}
