//! A check: its name, the rule that it is for, and its script.

use std::fmt;

use serde::Serialize;

use crate::bench::Bench;
use crate::service::Service;
use crate::verdict::Script;

/// Role of the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The bench sends requests.
    Responder,
    /// The agent posts requests, and the bench answers.
    Requester,
}

/// A need of a check beside a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Need {
    /// Packet sockets at the bench.
    CapNetRaw,
    /// A device with atomics.
    Atomics,
    /// A device with memory windows of type 2.
    Windows,
    /// A device with extended reliable connections.
    Xrc,
}

/// A script. Generated checks capture what they are generated for.
pub(crate) type Run = Box<dyn Fn(&mut Bench) -> Script>;

/// A check.
pub struct Check {
    /// Name, unique: `rc/duplicate/send_only`.
    pub name: String,
    /// Title of the chapter in reports.
    pub chapter: &'static str,
    /// Clause of the specification, release 1.4.
    pub clause: &'static str,
    /// Service of the target's QP.
    pub service: Service,
    /// Role of the target.
    pub role: Role,
    /// Needs beside a target.
    pub needs: Vec<Need>,
    /// Stimulus: what the bench does.
    pub stimulus: String,
    /// The specification's rule.
    pub asks: String,
    /// True for the quick subset.
    pub is_short: bool,
    pub(crate) run: Run,
}

impl fmt::Debug for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Check").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A check as `roxie conform list --json` shows it.
#[derive(Debug, Serialize)]
pub struct Listed<'a> {
    name: &'a str,
    chapter: &'a str,
    clause: &'a str,
    service: Service,
    role: Role,
    needs: &'a [Need],
    stimulus: &'a str,
    asks: &'a str,
    short: bool,
}

impl Check {
    /// Returns the check without its script.
    pub fn listed(&self) -> Listed<'_> {
        Listed {
            name: &self.name,
            chapter: self.chapter,
            clause: self.clause,
            service: self.service,
            role: self.role,
            needs: &self.needs,
            stimulus: &self.stimulus,
            asks: &self.asks,
            short: self.is_short,
        }
    }
}

/// A chapter under construction: checks that share chapter, service and role.
pub(crate) struct Chapter {
    title: &'static str,
    service: Service,
    role: Role,
    checks: Vec<Check>,
}

impl Chapter {
    pub(crate) fn new(title: &'static str, service: Service, role: Role) -> Chapter {
        Chapter { title, service, role, checks: Vec::new() }
    }

    /// Adds a check: name, clause, stimulus, what the specification asks, script.
    pub(crate) fn add(
        &mut self,
        name: impl Into<String>,
        clause: &'static str,
        stimulus: impl Into<String>,
        asks: impl Into<String>,
        run: impl Fn(&mut Bench) -> Script + 'static,
    ) -> &mut Check {
        let at = self.checks.len();
        self.checks.push(Check {
            name: name.into(),
            chapter: self.title,
            clause,
            service: self.service,
            role: self.role,
            needs: Vec::new(),
            stimulus: stimulus.into(),
            asks: asks.into(),
            is_short: false,
            run: Box::new(run),
        });
        &mut self.checks[at]
    }

    /// Adds checks of another service to the chapter.
    pub(crate) fn extend(&mut self, checks: Vec<Check>) {
        self.checks.extend(checks);
    }

    pub(crate) fn done(self) -> Vec<Check> {
        self.checks
    }
}

impl Check {
    /// Marks a check for the quick subset.
    pub(crate) fn short(&mut self) -> &mut Check {
        self.is_short = true;
        self
    }

    /// Adds a need, if there is one.
    pub(crate) fn needs(&mut self, need: impl Into<Option<Need>>) -> &mut Check {
        self.needs.extend(need.into());
        self
    }
}
