//! Generates the rows, and selects those of a short run.

use std::collections::BTreeSet;

use super::{
    Blocks, Case, ERRORS, FAMILIES, FAULTS, FEATURES, Family, Impairment, ODD, PORTS, PortKind, Row, SIDES,
    STOCK, Service, Side, WRONG, networks, programs,
};

const SERVICES: [Service; 3] = [Service::Rc, Service::Uc, Service::Ud];
/// Rows of unmodified programs in a short run: each takes a second or two.
const SHORT_PROGRAMS: [&str; 8] = [
    "xdp/v4/roxie/program/ibv_rc_pingpong/events",
    "xdp/v4/peer/program/ib_read_bw/rc",
    "udp/v4/roxie/program/ib_send_bw/rc/both/qps3",
    "udp/v6/peer/program/ibv_ud_pingpong/events",
    "xdp/v4/roxie/program/ib_send_bw/cm/rc",
    "udp/v6/peer/program/rping/cm",
    "udp/v4/roxie/program/fio/cm/verified",
    "xdp/v4/peer/program/fio/cm/writes",
];

/// Returns every row, in the order of running: by port first, since opening a port takes time.
pub fn all() -> Vec<Row> {
    let mut rows: Vec<Row> = SERVICES.into_iter().flat_map(|s| transfers(s, &[Impairment::None])).collect();
    rows.extend(pairwise_cover(&transfers(Service::Rc, &FAULTS)));
    rows.extend(lossy());
    for &port in &PORTS {
        for &family in &FAMILIES {
            for &requester in &SIDES {
                let row = |case| Row { port, family, requester, case };
                rows.extend(ERRORS.map(|e| row(Case::Error(e))));
                rows.extend(FEATURES.map(|f| row(Case::Feature(f))));
                // Scripts play from a socket, against the peer.
                match (port, requester) {
                    (PortKind::Udp, Side::Roxie) => rows.extend(WRONG.map(|w| row(Case::Wrong(w)))),
                    (PortKind::Udp, Side::Peer) => rows.extend(ODD.map(|o| row(Case::Odd(o)))),
                    _ => {}
                }
                rows.extend(STOCK.map(|s| row(Case::Pingpong(s))));
                let over = programs::all().into_iter().filter(|(_, families)| families.contains(&family));
                rows.extend(over.map(|(program, _)| row(Case::Program(program))));
                rows.extend(is_bench(port, family, requester).then_some(row(Case::Conform)));
                rows.extend(nvme(port, family, requester).into_iter().map(|test| row(Case::Nvme(test))));
                rows.extend(storage(port, family).into_iter().map(|fault| row(Case::Iser(fault))));
                rows.extend(storage(port, family).into_iter().map(|fault| row(Case::Nfs(fault))));
            }
        }
    }
    rows.extend(networks::all());
    rows.sort();
    rows.dedup();
    rows
}

/// True for the ends of the conformance bench: packet sockets over both IP versions, and a UDP socket.
fn is_bench(port: PortKind, family: Family, requester: Side) -> bool {
    let has_link = port == PortKind::Packet || (port, family) == (PortKind::Udp, Family::V4);
    requester == Side::Roxie && has_link
}

/// Returns the rows of NVMe over Fabrics: each port, and over sockets also loss, the other IP version, and a target of
/// Roxie's that is killed.
fn nvme(port: PortKind, family: Family, requester: Side) -> Vec<Blocks> {
    let mut all = Vec::new();
    if family == Family::V4 || port == PortKind::Udp {
        all.push(Blocks::Moved(Impairment::None));
    }
    if family == Family::V4 && port == PortKind::Udp {
        all.push(Blocks::Moved(Impairment::Loss1));
        all.extend((requester == Side::Peer).then_some(Blocks::Restarted));
    }
    all
}

/// Returns the rows of iSER and of NFS over RDMA: each port, and over sockets also loss and the other IP version.
fn storage(port: PortKind, family: Family) -> Vec<Impairment> {
    match (family, port) {
        (Family::V4, PortKind::Udp) => vec![Impairment::None, Impairment::Loss1],
        (Family::V4, _) | (_, PortKind::Udp) => vec![Impairment::None],
        _ => Vec::new(),
    }
}

/// Returns the rows of a short run.
pub fn short() -> Vec<Row> {
    let lossy = lossy();
    all().into_iter().filter(|row| row.is_short(&lossy)).collect()
}

/// Returns one transfer under loss for each port and side: of those with enough packets to make a loss likely, one with
/// the fewest.
fn lossy() -> Vec<Row> {
    let mut likely = transfers(Service::Rc, &[Impairment::Loss1, Impairment::Loss5]);
    likely.retain(|row| row.packets() >= 16);
    let places = PORTS.into_iter().flat_map(|port| SIDES.map(|side| (port, side)));
    let fewest = |(port, side)| {
        let here = likely.iter().filter(|row| row.port == port && row.requester == side);
        here.min_by_key(|row| row.packets()).copied()
    };
    places.filter_map(fewest).collect()
}

/// Returns every row, with the full product of transfers under faults instead of a cover.
pub fn thorough() -> Vec<Row> {
    let mut rows = all();
    rows.extend(transfers(Service::Rc, &FAULTS));
    rows.sort();
    rows.dedup();
    rows
}

/// Returns the full product of a service's transfers with these faults.
fn transfers(service: Service, faults: &[Impairment]) -> Vec<Row> {
    let mut rows = Vec::new();
    for &port in &PORTS {
        for &family in &FAMILIES {
            for &requester in &SIDES {
                for &op in service.ops() {
                    for &mtu in service.mtus() {
                        for size in service.sizes(op, mtu) {
                            rows.extend(faults.iter().map(|&fault| Row {
                                port,
                                family,
                                requester,
                                case: Case::Transfer { service, op, mtu, size, fault },
                            }));
                        }
                    }
                }
            }
        }
    }
    rows
}

impl Row {
    /// True for the rows of a short run: each operation of each service and each feature on each port and side,
    /// alternating path MTUs and IP versions; one transfer under loss for each port and side; each error and program
    /// once, alternating ports and IP versions.
    fn is_short(&self, lossy: &[Row]) -> bool {
        let turn = |n: usize| {
            let port = PORTS[n % PORTS.len()];
            let family = FAMILIES[n / 2 % 2];
            self.port == port && self.family == family
        };
        let side = self.requester as usize;
        match self.case {
            Case::Transfer { service, op, mtu, size, fault: Impairment::None } => {
                let n = op as usize + service as usize + side + self.port as usize;
                let mtus = service.mtus();
                let large = match service {
                    Service::Ud => mtu,
                    _ if op.is_one_word() => 8,
                    _ => mtu + 1,
                };
                mtu == mtus[n % mtus.len()] && self.family == FAMILIES[n / 2 % 2] && size == large
            }
            Case::Transfer { .. } => lossy.contains(self),
            Case::Error(case) => turn(case as usize + side),
            Case::Feature(feature) => {
                self.family == FAMILIES[(feature as usize + side + self.port as usize) % 2]
            }
            Case::Wrong(wrong) => self.family == FAMILIES[wrong as usize % 2],
            Case::Odd(odd) => self.family == FAMILIES[odd as usize % 2],
            Case::Pingpong(program) => turn(3 * side + program as usize),
            Case::Program(_) => SHORT_PROGRAMS.contains(&self.to_string().as_str()),
            // One or two packets of each operation.
            Case::Over(_, transfer) => {
                turn(transfer.op as usize + side) && transfer.mtu == 1024 && transfer.packets() <= 2
            }
            // A file system, a bench and a bond take longer than a short run has.
            Case::Nvme(_)
            | Case::Iser(_)
            | Case::Nfs(_)
            | Case::Conform
            | Case::Fallback(_)
            | Case::Profiled(..)
            | Case::Bond(_) => false,
        }
    }
}

/// A parameter of a transfer: its number, and its value as a small number.
type Parameter = (usize, usize);

/// Returns the parameters of a transfer. Sizes are compared relative to the MTU.
fn parameters(row: &Row) -> Vec<Parameter> {
    let Case::Transfer { op, mtu, size, fault, .. } = row.case else { return Vec::new() };
    // The 8 bytes of atomics are a class of their own, after the others.
    let class = if op.is_one_word() { None } else { op.sizes(mtu).iter().position(|s| *s == size) };
    vec![
        (0, row.port as usize),
        (1, row.family as usize),
        (2, row.requester as usize),
        (3, op as usize),
        (4, mtu),
        (5, class.unwrap_or(usize::MAX)),
        (6, fault as usize),
    ]
}

/// Returns every pair of the row's parameters.
fn pairs(row: &Row) -> Vec<(Parameter, Parameter)> {
    let p = parameters(row);
    (0..p.len()).flat_map(|i| (i + 1..p.len()).map(move |j| (i, j))).map(|(i, j)| (p[i], p[j])).collect()
}

/// Returns a subset that contains every pair of parameter values of `rows`. Greedy; takes the first of the best each
/// time, so that it is the same on every machine.
fn pairwise_cover(rows: &[Row]) -> Vec<Row> {
    let mut open: BTreeSet<_> = rows.iter().flat_map(pairs).collect();
    let mut cover = Vec::new();
    while !open.is_empty() {
        let gain = |row: &&Row| pairs(row).iter().filter(|pair| open.contains(*pair)).count();
        // max_by_key takes the last of the best, so iterate in reverse.
        let Some(best) = rows.iter().rev().max_by_key(gain) else { break };
        for pair in pairs(best) {
            open.remove(&pair);
        }
        cover.push(*best);
    }
    cover
}

#[cfg(test)]
mod tests {
    use super::super::MTUS;
    use super::*;

    #[test]
    fn the_committed_list_is_the_generated_one() {
        let committed: Vec<&str> = include_str!("../../rows.txt").lines().collect();
        let generated: Vec<String> = all().iter().map(Row::to_string).collect();
        let missing: Vec<_> = committed.iter().filter(|c| !generated.iter().any(|g| g == *c)).collect();
        let new: Vec<_> = generated.iter().filter(|g| !committed.contains(&g.as_str())).collect();
        assert!(
            committed == generated,
            "rows.txt differs. Gone: {missing:?}. New: {new:?}. If that is meant: `cargo run -p interop -- list > interop/rows.txt`"
        );
    }

    #[test]
    fn names_are_unique() {
        let rows = all();
        let names: BTreeSet<String> = rows.iter().map(Row::to_string).collect();
        assert_eq!(names.len(), rows.len());
    }

    #[test]
    fn the_clean_matrix_is_the_full_product() {
        let clean = |row: &&Row| matches!(row.case, Case::Transfer { fault: Impairment::None, .. });
        // RC: 3 MTUs x (5 operations x 7 sizes + 2 atomics + ATOMIC WRITE); UC: 3 MTUs x 4 operations x 6 sizes; UD: 2
        // operations x 4 sizes.
        let each = 3 * (5 * 7 + 3) + 3 * 4 * 6 + 2 * 4;
        // 3 ports x 2 families x 2 sides.
        assert_eq!(all().iter().filter(clean).count(), 3 * 2 * 2 * each);
    }

    #[test]
    fn fault_rows_are_a_small_pairwise_cover() {
        let full = transfers(Service::Rc, &FAULTS);
        let cover: Vec<Row> = all()
            .into_iter()
            .filter(|r| matches!(r.case, Case::Transfer { fault, .. } if fault != Impairment::None))
            .collect();
        let want: BTreeSet<_> = full.iter().flat_map(pairs).collect();
        let have: BTreeSet<_> = cover.iter().flat_map(pairs).collect();
        assert_eq!(want, have);
        assert!(cover.len() < full.len() / 20, "{} of {} rows", cover.len(), full.len());
    }

    #[test]
    fn short_run_covers_everything_in_few_rows() {
        let short = short();
        let has = |what: &dyn Fn(&Row) -> bool| short.iter().any(what);
        for requester in SIDES {
            for port in PORTS {
                let here = |row: &Row| row.port == port && row.requester == requester;
                for of in SERVICES {
                    for wanted in of.ops() {
                        assert!(
                            has(&|r| here(r)
                                && matches!(r.case, Case::Transfer { service, op, .. } if service == of && op == *wanted)),
                            "{port} {requester} {of} {wanted}"
                        );
                    }
                }
                for feature in FEATURES {
                    assert!(
                        has(&|r| here(r) && r.case == Case::Feature(feature)),
                        "{port} {requester} {feature}"
                    );
                }
                assert!(has(&|r| here(r) && r.fault() != Impairment::None), "{port} {requester} under loss");
            }
            for error in ERRORS {
                assert!(has(&|r| r.requester == requester && r.case == Case::Error(error)), "{error}");
            }
            for program in STOCK {
                assert!(has(&|r| r.requester == requester && r.case == Case::Pingpong(program)), "{program}");
            }
        }
        for name in SHORT_PROGRAMS {
            assert!(has(&|r| r.to_string() == name), "{name}");
        }
        for wrong in WRONG {
            assert!(has(&|r| r.case == Case::Wrong(wrong)), "{wrong}");
        }
        for odd in ODD {
            assert!(has(&|r| r.case == Case::Odd(odd)), "{odd}");
        }
        for port in PORTS {
            for family in FAMILIES {
                for wanted in MTUS {
                    let at = |r: &Row| matches!(r.case, Case::Transfer { mtu, .. } if mtu == wanted);
                    assert!(
                        has(&|r| r.port == port && r.family == family && at(r)),
                        "{port} {family} {wanted}"
                    );
                }
            }
        }
        assert!(short.len() <= 350, "{} rows", short.len());
    }
}
