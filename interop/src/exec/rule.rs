//! A row of a table of scripts, and the table as Markdown.

use std::fmt::Display;

/// A row of a table of scripts.
#[derive(Clone, Copy, Debug)]
pub struct Rule<C, R> {
    /// The case whose script it is.
    pub case: C,
    /// What the peer sends, one packet after the other.
    pub script: &'static str,
    /// What the specification says, and where.
    pub specification: &'static str,
    /// What rdma_rxe of Linux 6.1 does.
    pub rxe_6_1: R,
    /// What rdma_rxe of the newest kernel does that was looked at.
    pub rxe_newest: R,
    /// What Roxie has to do with it.
    pub roxie: R,
}

/// The kernel of the column `rxe_newest`.
const NEWEST: &str = "7.2";

impl<C, R> Rule<C, R> {
    /// What rdma_rxe of a kernel does.
    pub fn of_rxe(&self, kernel: &str) -> &R {
        if kernel.starts_with("6.1.") { &self.rxe_6_1 } else { &self.rxe_newest }
    }
}

/// A table of Markdown.
pub(super) fn lines<C: Display, R: Display>(rules: &[Rule<C, R>], script: &str) -> String {
    let mut lines = format!(
        "| case | {script} | specification | rdma_rxe of Linux 6.1 | of Linux {NEWEST} | Roxie |\n\
         | --- | --- | --- | --- | --- | --- |\n"
    );
    for Rule { case, script, specification, rxe_6_1, rxe_newest, roxie } in rules {
        lines += &format!("| `{case}` | {script} | {specification} | {rxe_6_1} | {rxe_newest} | {roxie} |\n");
    }
    lines
}
