//! A row of a table of scripts, and the table as Markdown.

use std::fmt::Display;

/// A row of a table of scripts.
#[derive(Clone, Copy, Debug)]
pub struct Rule<C, R> {
    /// The case.
    pub case: C,
    /// The packets that the script sends, in words.
    pub script: &'static str,
    /// The specified reaction, and its clause.
    pub specification: &'static str,
    /// Reaction of rdma_rxe in Linux 6.1.
    pub rxe_6_1: R,
    /// Reaction of rdma_rxe in the newest kernel tested.
    pub rxe_newest: R,
    /// Required reaction of Roxie.
    pub roxie: R,
}

/// The kernel of the column `rxe_newest`.
const NEWEST: &str = "7.2";

impl<C, R> Rule<C, R> {
    /// Returns the reaction of a kernel's rdma_rxe.
    pub fn of_rxe(&self, kernel: &str) -> &R {
        if kernel.starts_with("6.1.") { &self.rxe_6_1 } else { &self.rxe_newest }
    }
}

/// Returns the table as Markdown.
pub(super) fn lines<C: Display, R: Display>(rules: &[Rule<C, R>], script: &str) -> String {
    let mut lines = format!("| case | {script} | specification | reaction |\n| --- | --- | --- | --- |\n");
    for Rule { case, script, specification, rxe_6_1, rxe_newest, roxie } in rules {
        let reaction = reaction(rxe_6_1, rxe_newest, roxie);
        lines += &format!("| `{case}` | {script} | {specification} | {reaction} |\n");
    }
    lines
}

/// Returns the reaction of all, or of each that differs.
fn reaction<R: Display>(rxe_6_1: &R, rxe_newest: &R, roxie: &R) -> String {
    let [rxe_6_1, rxe_newest, roxie] = [rxe_6_1, rxe_newest, roxie].map(|reaction| reaction.to_string());
    if rxe_6_1 == rxe_newest && rxe_newest == roxie {
        return roxie;
    }
    let rxe = if rxe_6_1 == rxe_newest {
        format!("rxe: {rxe_6_1}")
    } else {
        format!("rxe 6.1: {rxe_6_1}<br>rxe {NEWEST}: {rxe_newest}")
    };
    format!("{rxe}<br>Roxie: {roxie}")
}
