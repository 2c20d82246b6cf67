//! Which packet found a QP in which state and where in its sequence, and how timers moved: as a table, and what must be in it.
//!
//! What cannot be reached is listed with its reason; all else must be.

use std::fmt::{self, Write};

use roxie::transport::coverage::{Arrival, Coverage, Move, Mover, Place, Timer};
use roxie::verbs::QpState;
use roxie::wire::{Opcode, Service};

/// A column of the table.
type Column = (QpState, Place);

/// States and places in which a packet can be found.
fn columns(service: Service, opcode: Opcode) -> Vec<Column> {
    use Place::{Ahead, Duplicate, Expected, Ghost, Later, Unordered};
    use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
    let response = opcode.info().is_some_and(|info| info.is_response());
    let (states, places): (&[QpState], &[Place]) = match (service, response) {
        (Service::Ud, _) => (&[Rtr, Rts, Sqd, Sqe], &[Unordered]),
        (Service::Uc, _) => (&[Rtr, Rts, Sqd, Sqe], &[Expected, Duplicate, Ahead]),
        (_, false) => (&[Rtr, Rts, Sqd], &[Expected, Duplicate, Ahead]),
        (_, true) => (&[Rts, Sqd], &[Expected, Later, Duplicate, Ghost]),
    };
    let each = states.iter().flat_map(|state| places.iter().map(|place| (*state, *place)));
    each.chain([Reset, Init, Err].map(|state| (state, Unordered))).collect()
}

/// Why a QP of ours never finds a packet of ours so; `None`: it can.
fn unreachable(service: Service, opcode: Opcode, (state, place): Column) -> Option<&'static str> {
    let _ = (service, opcode, state, place);
    None
}

fn rows(service: Service) -> impl Iterator<Item = Opcode> {
    Opcode::all().filter(move |row| row.service == service).map(|row| row.opcode)
}

const SERVICES: [Service; 3] = [Service::Rc, Service::Uc, Service::Ud];

/// What is reachable and was not reached.
pub fn unreached(coverage: &Coverage) -> Vec<String> {
    let mut missing = Vec::new();
    for service in SERVICES {
        for opcode in rows(service) {
            for column in columns(service, opcode) {
                let (state, place) = column;
                let count = coverage.arrivals(Arrival { state, opcode, place });
                if count == 0 && unreachable(service, opcode, column).is_none() {
                    missing.push(format!("{opcode} in {state:?}, {place:?}"));
                }
            }
        }
    }
    missing
}

/// The table.
pub struct Table<'a>(pub &'a Coverage);

/// A number in five columns.
fn short(count: u64) -> String {
    match count {
        0 => "-".into(),
        1..10_000 => count.to_string(),
        10_000..10_000_000 => format!("{}k", count / 1_000),
        _ => format!("{}M", count / 1_000_000),
    }
}

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for service in SERVICES {
            let mut heads = String::new();
            for opcode in rows(service) {
                let columns = columns(service, opcode);
                let mut head = String::new();
                for (state, place) in &columns {
                    let place = if *place == Place::Unordered { String::new() } else { format!("{place:?}") };
                    let state = format!("{state:?}").to_uppercase();
                    write!(head, " {:>6}", format!("{state:.3}{place:.3}"))?;
                }
                if head != heads {
                    writeln!(f, "\n{:28}{head}", format!("{service:?}").to_uppercase())?;
                    heads = head;
                }
                write!(f, "{:28}", opcode.to_string())?;
                for column in columns {
                    let (state, place) = column;
                    let count = self.0.arrivals(Arrival { state, opcode, place });
                    write!(f, " {:>6}", short(count))?;
                }
                writeln!(f)?;
            }
        }
        writeln!(f, "\ntimers")?;
        for step in moves() {
            writeln!(f, "{:>10}  {}", short(self.0.moves(step)), describe(step))?;
        }
        Ok(())
    }
}

fn describe(step: Move) -> String {
    let name = |timer: Timer| match timer {
        Timer::Idle => "nothing",
        Timer::Ack => "an acknowledgement",
        Timer::Rnr => "a receive at the peer",
    };
    let by = match step.by {
        Mover::Sent => "a packet left",
        Mover::Packet => "a packet came",
        Mover::Time => "time passed",
        Mover::Command => "a command",
    };
    let again = if step.renewed { ", anew" } else { "" };
    format!("waits for {}: {by}: waits for {}{again}", name(step.from), name(step.to))
}

/// All moves that there could be.
fn moves() -> Vec<Move> {
    let mut moves = Vec::new();
    for from in Timer::ALL {
        for by in Mover::ALL {
            for to in Timer::ALL {
                for renewed in [false, true] {
                    if !renewed || (from == to && from != Timer::Idle) {
                        moves.push(Move { from, by, to, renewed });
                    }
                }
            }
        }
    }
    moves
}
