//! The matrix: every row's parameters and name.
//!
//! Clean transfers are the full product. Transfers under loss and reordering are a pairwise cover of the
//! same: any two parameter values meet in some row. Error cases and stock programs follow. The names are
//! committed in `rows.txt`; a test holds the two equal, so that a row cannot vanish unseen.

use std::collections::BTreeSet;
use std::fmt;

/// The RC operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the specification's names")]
pub enum Op {
    Send,
    SendImm,
    Write,
    WriteImm,
    Read,
    CmpSwap,
    FetchAdd,
}

/// Who requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Side {
    Roxie,
    Peer,
}

/// What carries Roxie's frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the names say it")]
pub enum PortKind {
    Xdp,
    Udp,
}

/// The IP version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Family {
    V4,
    V6,
}

/// What Roxie's fault port does to frames, in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// Nothing.
    None,
    /// Drops one frame in a hundred.
    Loss1,
    /// Drops one frame in twenty.
    Loss5,
    /// Delays one frame in twenty until three others have passed it.
    Reorder,
}

/// What a peer can do wrong on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ErrorCase {
    /// WRITE with an rkey that nobody gave out.
    BadRkeyWrite,
    /// READ with such an rkey.
    BadRkeyRead,
    /// FETCH_ADD with such an rkey.
    BadRkeyAtomic,
    /// WRITE whose last byte is beyond the region.
    OutOfBoundsWrite,
    /// READ whose last byte is beyond the region.
    OutOfBoundsRead,
    /// WRITE to a region without that right.
    NoRightToWrite,
    /// READ of a region without that right.
    NoRightToRead,
    /// SEND without a receive, and no RNR retries.
    NoReceive,
    /// SEND whose receive comes 50 ms later: RNR NAKs, then success.
    LateReceive,
    /// SEND longer than the receive.
    TooLong,
    /// FETCH_ADD at an address that is no multiple of 8.
    MisalignedAtomic,
    /// The requester starts 100 PSNs ahead of what is expected.
    WrongPsn,
    /// The destination QPN does not exist.
    NoSuchPair,
}

/// What a row does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Case {
    /// Verified transfers of one operation.
    Transfer {
        /// The operation.
        op: Op,
        /// Path MTU in bytes.
        mtu: usize,
        /// Bytes of a message.
        size: usize,
        /// What is injected.
        fault: Fault,
    },
    /// An error that the requester provokes.
    Error(ErrorCase),
    /// Stock `ibv_rc_pingpong` at the peer with `roxie pingpong rc` at the other end; the requester is the client.
    Pingpong,
}

/// A row of the matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Row {
    /// What carries it.
    pub port: PortKind,
    /// What it does.
    pub case: Case,
    /// Who requests.
    pub requester: Side,
    /// The IP version.
    pub family: Family,
}

/// Every operation.
pub const OPS: [Op; 7] =
    [Op::Send, Op::SendImm, Op::Write, Op::WriteImm, Op::Read, Op::CmpSwap, Op::FetchAdd];
const PORTS: [PortKind; 2] = [PortKind::Xdp, PortKind::Udp];
const SIDES: [Side; 2] = [Side::Roxie, Side::Peer];
const FAMILIES: [Family; 2] = [Family::V4, Family::V6];
const MTUS: [usize; 3] = [256, 1024, 4096];
const FAULTS: [Fault; 3] = [Fault::Loss1, Fault::Loss5, Fault::Reorder];
/// Every error case.
pub const ERRORS: [ErrorCase; 13] = [
    ErrorCase::BadRkeyWrite,
    ErrorCase::BadRkeyRead,
    ErrorCase::BadRkeyAtomic,
    ErrorCase::OutOfBoundsWrite,
    ErrorCase::OutOfBoundsRead,
    ErrorCase::NoRightToWrite,
    ErrorCase::NoRightToRead,
    ErrorCase::NoReceive,
    ErrorCase::LateReceive,
    ErrorCase::TooLong,
    ErrorCase::MisalignedAtomic,
    ErrorCase::WrongPsn,
    ErrorCase::NoSuchPair,
];

impl Op {
    /// Atomics have 8 bytes, always.
    pub fn is_atomic(self) -> bool {
        matches!(self, Op::CmpSwap | Op::FetchAdd)
    }

    /// Carries immediate data.
    pub fn has_imm(self) -> bool {
        matches!(self, Op::SendImm | Op::WriteImm)
    }

    /// Uses up a receive at the responder.
    pub fn consumes_receive(self) -> bool {
        matches!(self, Op::Send | Op::SendImm | Op::WriteImm)
    }

    /// The sizes of its messages at a path MTU.
    fn sizes(self, mtu: usize) -> Vec<usize> {
        match self.is_atomic() {
            true => vec![8],
            false => vec![0, 1, mtu - 1, mtu, mtu + 1, 64 << 10, 1 << 20],
        }
    }
}

impl fmt::Display for Op {
    /// As the peer program names it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Op::Send => "send",
            Op::SendImm => "send_imm",
            Op::Write => "write",
            Op::WriteImm => "write_imm",
            Op::Read => "read",
            Op::CmpSwap => "cmp_swap",
            Op::FetchAdd => "fetch_add",
        })
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Side::Roxie => "roxie",
            Side::Peer => "peer",
        })
    }
}

impl fmt::Display for PortKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PortKind::Xdp => "xdp",
            PortKind::Udp => "udp",
        })
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Family::V4 => "v4",
            Family::V6 => "v6",
        })
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fault::None => "clean",
            Fault::Loss1 => "loss1",
            Fault::Loss5 => "loss5",
            Fault::Reorder => "reorder",
        })
    }
}

impl fmt::Display for ErrorCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ErrorCase::BadRkeyWrite => "bad_rkey_write",
            ErrorCase::BadRkeyRead => "bad_rkey_read",
            ErrorCase::BadRkeyAtomic => "bad_rkey_atomic",
            ErrorCase::OutOfBoundsWrite => "out_of_bounds_write",
            ErrorCase::OutOfBoundsRead => "out_of_bounds_read",
            ErrorCase::NoRightToWrite => "no_right_to_write",
            ErrorCase::NoRightToRead => "no_right_to_read",
            ErrorCase::NoReceive => "no_receive",
            ErrorCase::LateReceive => "late_receive",
            ErrorCase::TooLong => "too_long",
            ErrorCase::MisalignedAtomic => "misaligned_atomic",
            ErrorCase::WrongPsn => "wrong_psn",
            ErrorCase::NoSuchPair => "no_such_pair",
        })
    }
}

impl fmt::Display for Row {
    /// The name: `xdp/v4/roxie/write_imm/mtu1024/1025B/clean`. The third part is the requester.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Row { port, family, requester, case } = self;
        write!(f, "{port}/{family}/{requester}/")?;
        match case {
            Case::Transfer { op, mtu, size, fault } => write!(f, "{op}/mtu{mtu}/{size}B/{fault}"),
            Case::Error(case) => write!(f, "error/{case}"),
            Case::Pingpong => f.write_str("ibv_rc_pingpong"),
        }
    }
}

impl Row {
    /// What is injected.
    pub fn fault(&self) -> Fault {
        match self.case {
            Case::Transfer { fault, .. } => fault,
            Case::Error(_) | Case::Pingpong => Fault::None,
        }
    }

    /// Packets of a message.
    fn packets(&self) -> usize {
        match self.case {
            Case::Transfer { mtu, size, .. } => size.div_ceil(mtu).max(1),
            Case::Error(_) | Case::Pingpong => 1,
        }
    }

    /// A seed of the row's own, from its name (FNV-1a): the same row always injects the same faults.
    pub fn seed(&self) -> u64 {
        let step = |sum: u64, byte: u8| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        self.to_string().bytes().fold(0xcbf2_9ce4_8422_2325, step)
    }

    /// True for the rows of a short run. Each operation on each port and side, with the path MTUs and IP
    /// versions taking turns; one transfer under loss for each port and side; each error and the program
    /// once, the ports and IP versions taking turns.
    fn is_short(&self, lossy: &[Row]) -> bool {
        let turn = |n: usize| {
            let port = PORTS[n % 2];
            let family = FAMILIES[n / 2 % 2];
            self.port == port && self.family == family
        };
        let side = self.requester as usize;
        match self.case {
            Case::Transfer { op, mtu, size, fault: Fault::None } => {
                let n = op as usize + side + self.port as usize;
                let family = FAMILIES[n / 2 % 2];
                mtu == MTUS[n % 3]
                    && self.family == family
                    && size == if op.is_atomic() { 8 } else { mtu + 1 }
            }
            Case::Transfer { .. } => lossy.contains(self),
            Case::Error(case) => turn(case as usize + side),
            Case::Pingpong => turn(3 * side),
        }
    }
}

/// Every row, in the order in which they run: by port first, since opening one takes time.
pub fn all() -> Vec<Row> {
    let mut rows = transfers(&[Fault::None]);
    rows.extend(pairwise_cover(&transfers(&FAULTS)));
    for &port in &PORTS {
        for &family in &FAMILIES {
            for &requester in &SIDES {
                rows.extend(ERRORS.iter().map(|&e| Row { port, family, requester, case: Case::Error(e) }));
                rows.push(Row { port, family, requester, case: Case::Pingpong });
            }
        }
    }
    rows.sort();
    rows
}

/// The rows of a short run.
pub fn short() -> Vec<Row> {
    let all = all();
    let mut lossy = Vec::new();
    for (port, requester) in PORTS.into_iter().flat_map(|port| SIDES.map(|side| (port, side))) {
        let here = all.iter().filter(|row| row.port == port && row.requester == requester);
        // As few packets as make a loss likely.
        let likely =
            here.filter(|row| matches!(row.fault(), Fault::Loss1 | Fault::Loss5) && row.packets() >= 16);
        lossy.extend(likely.min_by_key(|row| row.packets()));
    }
    all.into_iter().filter(|row| row.is_short(&lossy)).collect()
}

/// Every row, and transfers under faults in the full product instead of a cover.
pub fn thorough() -> Vec<Row> {
    let mut rows = all();
    rows.extend(transfers(&FAULTS));
    rows.sort();
    rows.dedup();
    rows
}

/// The full product of transfers with these faults.
fn transfers(faults: &[Fault]) -> Vec<Row> {
    let mut rows = Vec::new();
    for &port in &PORTS {
        for &family in &FAMILIES {
            for &requester in &SIDES {
                for &op in &OPS {
                    for &mtu in &MTUS {
                        for size in op.sizes(mtu) {
                            rows.extend(faults.iter().map(|&fault| Row {
                                port,
                                family,
                                requester,
                                case: Case::Transfer { op, mtu, size, fault },
                            }));
                        }
                    }
                }
            }
        }
    }
    rows
}

/// A parameter of a transfer: which one, and its value as a small number.
type Parameter = (usize, usize);

/// The parameters of a transfer. Sizes are compared by what they are to the MTU.
fn parameters(row: &Row) -> Vec<Parameter> {
    let Case::Transfer { op, mtu, size, fault } = row.case else { return Vec::new() };
    // Atomics' 8 is a class of its own, after the others.
    let class = if op.is_atomic() { None } else { op.sizes(mtu).iter().position(|s| *s == size) };
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

/// Every two parameters of the row.
fn pairs(row: &Row) -> Vec<(Parameter, Parameter)> {
    let p = parameters(row);
    (0..p.len()).flat_map(|i| (i + 1..p.len()).map(move |j| (i, j))).map(|(i, j)| (p[i], p[j])).collect()
}

/// A subset in which any two parameter values that meet in `rows` meet: greedy, the first of the best each
/// time, so that it is the same on every machine.
fn pairwise_cover(rows: &[Row]) -> Vec<Row> {
    let mut open: BTreeSet<_> = rows.iter().flat_map(pairs).collect();
    let mut cover = Vec::new();
    while !open.is_empty() {
        let gain = |row: &&Row| pairs(row).iter().filter(|pair| open.contains(*pair)).count();
        // max_by_key would take the last of the best; reversed, that is the first.
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
    use super::*;

    #[test]
    fn the_committed_list_is_the_generated_one() {
        let committed: Vec<&str> = include_str!("../rows.txt").lines().collect();
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
        let clean = |row: &&Row| matches!(row.case, Case::Transfer { fault: Fault::None, .. });
        // 2 ports x 2 families x 2 sides x 3 MTUs x (5 operations x 7 sizes + 2 atomics).
        assert_eq!(all().iter().filter(clean).count(), 2 * 2 * 2 * 3 * (5 * 7 + 2));
    }

    #[test]
    fn any_two_values_meet_under_faults_in_few_rows() {
        let full = transfers(&FAULTS);
        let cover: Vec<Row> = all()
            .into_iter()
            .filter(|r| matches!(r.case, Case::Transfer { fault, .. } if fault != Fault::None))
            .collect();
        let want: BTreeSet<_> = full.iter().flat_map(pairs).collect();
        let have: BTreeSet<_> = cover.iter().flat_map(pairs).collect();
        assert_eq!(want, have);
        assert!(cover.len() < full.len() / 20, "{} of {} rows", cover.len(), full.len());
    }

    #[test]
    fn a_short_run_has_everything_once_and_is_short() {
        let short = short();
        let has = |what: &dyn Fn(&Row) -> bool| short.iter().any(what);
        for requester in SIDES {
            for port in PORTS {
                let here = |row: &Row| row.port == port && row.requester == requester;
                for wanted in OPS {
                    assert!(
                        has(&|r| here(r) && matches!(r.case, Case::Transfer { op, .. } if op == wanted)),
                        "{port} {requester} {wanted}"
                    );
                }
                assert!(has(&|r| here(r) && r.fault() != Fault::None), "{port} {requester} under loss");
            }
            for error in ERRORS {
                assert!(has(&|r| r.requester == requester && r.case == Case::Error(error)), "{error}");
            }
            assert!(has(&|r| r.requester == requester && r.case == Case::Pingpong), "{requester} pingpong");
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
        assert!(short.len() <= 70, "{} rows", short.len());
    }
}
