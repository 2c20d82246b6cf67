//! Traffic: expands patterns into flows.

use super::error::{ScenarioError, ScenarioKey};
use super::file::{Pattern, Place, TrafficTable};
use super::quantity::{Bytes, Time};
use super::sizes::{self, below, exponential, shuffle, unit};
use crate::fabric::LinkRate;
use roxie_base::time::Nanos;

/// Bytes moved from one host to another, by WRITEs of the source or READs of the destination.
#[derive(Clone, Debug, PartialEq)]
pub struct Flow {
    /// Index of its traffic pattern in the scenario.
    pub traffic: usize,
    /// Source of the data.
    pub from: usize,
    /// Destination of the data.
    pub to: usize,
    /// Bytes of data.
    pub bytes: u64,
    /// True if the destination READs the data.
    pub read: bool,
    /// Priority of the frames.
    pub priority: u8,
    /// Start time; the earliest, if the flow waits for others.
    pub start: Nanos,
    /// Flows that have to end before this one starts.
    pub after: Vec<u32>,
}

/// Context in which patterns are expanded.
pub(super) struct TrafficStage<'a> {
    /// The names of the hosts.
    pub(super) hosts: &'a [String],
    /// Link rates of the hosts.
    pub(super) rates: &'a [LinkRate],
    /// End of the run.
    pub(super) end: Nanos,
}

/// Returns the flows of all traffic patterns of a scenario.
///
/// # Errors
/// The first missing or invalid value.
pub(super) fn flows(
    tables: &[TrafficTable],
    stage: &TrafficStage<'_>,
    seed: u64,
) -> Result<Vec<Flow>, ScenarioError> {
    let mut flows = Vec::new();
    for (number, table) in tables.iter().enumerate() {
        let random = seed ^ (number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut maker =
            FlowMaker { table, number, random, from: Vec::new(), to: Vec::new(), flows: &mut flows };
        maker.from = stage.places(table.from.as_deref(), number, "from")?;
        maker.to = stage.places(table.to.as_deref(), number, "to")?;
        maker.make(stage)?;
    }
    Ok(flows)
}

impl TrafficStage<'_> {
    fn places(
        &self,
        given: Option<&[Place]>,
        number: usize,
        what: &'static str,
    ) -> Result<Vec<usize>, ScenarioError> {
        let Some(given) = given else { return Ok((0..self.hosts.len()).collect()) };
        let find = |place: &Place| {
            let index = match place {
                Place::Number(number) => Some(*number).filter(|number| *number < self.hosts.len()),
                Place::Name(name) => self.hosts.iter().position(|host| host == name),
            };
            let last = self.hosts.len() - 1;
            index.ok_or_else(|| {
                let message = format!(
                    "`{what}` names `{place}`, which is no host: they are 0 to {last}, or {} to {}",
                    self.hosts[0], self.hosts[last]
                );
                wrong(number, what, message)
            })
        };
        given.iter().map(find).collect()
    }
}

struct FlowMaker<'a> {
    table: &'a TrafficTable,
    number: usize,
    random: u64,
    from: Vec<usize>,
    to: Vec<usize>,
    flows: &'a mut Vec<Flow>,
}

/// Returns an error about a key of a `[[traffic]]` table.
fn wrong(number: usize, key: &'static str, what: String) -> ScenarioError {
    ScenarioError::wrong(ScenarioKey { table: "traffic", number: Some(number), key: Some(key) }, what)
}

impl FlowMaker<'_> {
    fn wrong(&self, key: &'static str, what: &str) -> ScenarioError {
        wrong(self.number, key, format!("{}: {what}", self.table.pattern))
    }

    /// Rejects keys that the pattern does not use.
    fn check(&self, stage: &TrafficStage<'_>) -> Result<(), ScenarioError> {
        let TrafficTable { pattern, load, sizes, reads, depth, repeat, until, start, .. } = self.table;
        let storage = matches!(pattern, Pattern::Storage);
        let poisson = matches!(pattern, Pattern::Poisson);
        let useless = [
            ("load", load.is_some() && !poisson),
            ("sizes", sizes.is_some() && !poisson),
            ("until", until.is_some() && !poisson),
            ("repeat", repeat.is_some() && poisson),
            ("reads", reads.is_some() && !storage),
            ("depth", depth.is_some() && !storage),
        ];
        if let Some((key, _)) = useless.into_iter().find(|(_, useless)| *useless) {
            return Err(self.wrong(key, &format!("this pattern has no `{key}`: remove it")));
        }
        if *repeat == Some(0) {
            return Err(self.wrong("repeat", "`repeat` says how often: 1 or more"));
        }
        if start.0 >= stage.end {
            let what = format!("it starts when the run is over: give less than {}", Time(stage.end));
            return Err(self.wrong("start", &what));
        }
        if self.table.priority > 7 {
            return Err(self.wrong("priority", "there is no such priority: they are 0 to 7"));
        }
        let targets = self.table.to.as_ref().map_or(1, Vec::len);
        if matches!(pattern, Pattern::Incast) && targets != 1 {
            return Err(
                self.wrong("to", "`to` names the one host that all send to; without it, the last of all")
            );
        }
        Ok(())
    }

    fn bytes(&self) -> Result<u64, ScenarioError> {
        match self.table.bytes {
            Some(Bytes(bytes)) if bytes > 0 => Ok(bytes),
            _ => Err(self.wrong("bytes", "give `bytes`, 1 or more: how much each moves")),
        }
    }

    /// Adds a flow. Returns its number.
    fn flow(&mut self, from: usize, to: usize, bytes: u64, after: Vec<u32>) -> u32 {
        let TrafficTable { read, priority, start, .. } = *self.table;
        let flow = Flow { traffic: self.number, from, to, bytes, read, priority, start: start.0, after };
        self.flows.push(flow);
        self.flows.len() as u32 - 1
    }

    /// Adds `repeat` flows. Each starts after the previous one.
    fn repeated(&mut self, from: usize, to: usize, bytes: u64) {
        let mut after = Vec::new();
        for _ in 0..self.table.repeat.unwrap_or(1) {
            after = vec![self.flow(from, to, bytes, after)];
        }
    }

    fn make(&mut self, stage: &TrafficStage<'_>) -> Result<(), ScenarioError> {
        self.check(stage)?;
        if self.from.is_empty() || self.to.is_empty() {
            return Err(self.wrong("from", "`from` and `to` name hosts: one or more each"));
        }
        let (from, to) = (self.from.clone(), self.to.clone());
        match self.table.pattern {
            Pattern::Flows => {
                let bytes = self.bytes()?;
                self.between(&from, &to, bytes);
            }
            Pattern::Incast => {
                let bytes = self.bytes()?;
                let target = *to.last().expect("one or more");
                self.between(&from, &[target], bytes);
            }
            Pattern::Permutation => self.permutation(from)?,
            Pattern::AllToAll => {
                let bytes = self.bytes()?;
                // Round by round, so that no host is the first destination of all others.
                for shift in 1..from.len() {
                    for n in 0..from.len() {
                        self.repeated(from[n], from[(n + shift) % from.len()], bytes);
                    }
                }
            }
            Pattern::RingAllReduce => self.ring(&from)?,
            Pattern::TreeAllReduce => self.tree(&from)?,
            Pattern::Storage => self.storage(&from, &to)?,
            Pattern::Poisson => self.poisson(&from, &to, stage)?,
        }
        Ok(())
    }

    fn between(&mut self, from: &[usize], to: &[usize], bytes: u64) {
        for &source in from {
            for &target in to.iter().filter(|target| **target != source) {
                self.repeated(source, target, bytes);
            }
        }
    }

    /// Permutes the hosts in one cycle, so that no host sends to itself (Sattolo).
    fn permutation(&mut self, hosts: Vec<usize>) -> Result<(), ScenarioError> {
        let bytes = self.bytes()?;
        if hosts.len() < 2 {
            return Err(self.wrong("from", "it takes two hosts or more"));
        }
        let mut order = hosts;
        shuffle(&mut self.random, &mut order);
        for n in 0..order.len() {
            self.repeated(order[n], order[(n + 1) % order.len()], bytes);
        }
        Ok(())
    }

    /// Ring all-reduce: each host sends 1/n of the bytes to the next host, 2 (n - 1) times. Each step starts after the
    /// host has received and sent the previous step.
    fn ring(&mut self, hosts: &[usize]) -> Result<(), ScenarioError> {
        let count = hosts.len();
        if count < 2 {
            return Err(self.wrong("from", "it takes two hosts or more"));
        }
        let part = self.bytes()?.div_ceil(count as u64);
        let mut before: Vec<u32> = Vec::new();
        for _ in 0..self.table.repeat.unwrap_or(1) as usize * 2 * (count - 1) {
            let step = (0..count).map(|n| {
                let after = match before.get(n) {
                    Some(own) => vec![*own, before[(n + count - 1) % count]],
                    None => Vec::new(),
                };
                self.flow(hosts[n], hosts[(n + 1) % count], part, after)
            });
            before = step.collect();
        }
        Ok(())
    }

    /// Tree all-reduce: a host sends up once its children have sent; from the root, the result is sent down the same
    /// tree.
    fn tree(&mut self, hosts: &[usize]) -> Result<(), ScenarioError> {
        let bytes = self.bytes()?;
        let count = hosts.len();
        if count < 2 {
            return Err(self.wrong("from", "it takes two hosts or more"));
        }
        let mut before: Vec<u32> = Vec::new();
        for _ in 0..self.table.repeat.unwrap_or(1) {
            let mut up: Vec<Option<u32>> = vec![None; count];
            for n in (1..count).rev() {
                let children =
                    [2 * n + 1, 2 * n + 2].into_iter().filter_map(|c| up.get(c).copied().flatten());
                let after = children.chain(before.iter().copied()).collect();
                up[n] = Some(self.flow(hosts[n], hosts[(n - 1) / 2], bytes, after));
            }
            let mut down: Vec<Option<u32>> = vec![None; count];
            for n in 1..count {
                let parent = (n - 1) / 2;
                let after = match down[parent] {
                    Some(flow) => vec![flow],
                    None => [1, 2].into_iter().filter_map(|c| up.get(c).copied().flatten()).collect(),
                };
                down[n] = Some(self.flow(hosts[parent], hosts[n], bytes, after));
            }
            before = down.into_iter().flatten().collect();
        }
        Ok(())
    }

    fn storage(&mut self, clients: &[usize], targets: &[usize]) -> Result<(), ScenarioError> {
        let bytes = self.bytes()?;
        let reads = self.table.reads.unwrap_or(0.5);
        if !(0.0..=1.0).contains(&reads) {
            return Err(self.wrong("reads", "`reads` is the share of requests that read: 0 to 1"));
        }
        let requests = self.table.repeat.unwrap_or(64);
        for &client in clients {
            let others: Vec<_> = targets.iter().copied().filter(|target| *target != client).collect();
            if others.is_empty() {
                return Err(self.wrong("to", "`to` names targets other than the client"));
            }
            for _ in 0..self.table.depth.unwrap_or(4) {
                let mut after = Vec::new();
                for _ in 0..requests {
                    let target = others[below(&mut self.random, others.len())];
                    let is_read = unit(&mut self.random) < reads;
                    let (from, to) = if is_read { (target, client) } else { (client, target) };
                    let flow = self.flow(from, to, bytes, after);
                    self.flows[flow as usize].read = is_read;
                    after = vec![flow];
                }
            }
        }
        Ok(())
    }

    fn poisson(
        &mut self,
        from: &[usize],
        to: &[usize],
        stage: &TrafficStage<'_>,
    ) -> Result<(), ScenarioError> {
        let load = self.table.load.filter(|load| *load > 0.0 && *load <= 2.0);
        let load = load.ok_or_else(|| {
            self.wrong(
                "load",
                "give `load`, the share of its link that each host sends: 0.5; above 0, 2 at most",
            )
        })?;
        let fixed = self.table.bytes.map(|bytes| bytes.0).filter(|bytes| *bytes > 0);
        let mean = match (self.table.sizes, fixed) {
            (Some(sizes), None) => sizes.mean(),
            (None, Some(bytes)) => bytes as f64,
            _ => {
                return Err(self.wrong(
                    "sizes",
                    "give `sizes` (web-search, data-mining, hadoop) or `bytes`, one of them",
                ));
            }
        };
        let until = self.table.until.map_or(stage.end, |until| until.0);
        for &source in from {
            let others: Vec<_> = to.iter().copied().filter(|target| *target != source).collect();
            if others.is_empty() {
                return Err(self.wrong("to", "`to` names hosts other than the sender"));
            }
            let between = mean * 8e9 / (load * stage.rates[source].0 as f64);
            let mut time = self.table.start.0.0 as f64;
            loop {
                time += between * exponential(&mut self.random);
                if time >= until.0 as f64 {
                    break;
                }
                let target = others[below(&mut self.random, others.len())];
                let bytes = self
                    .table
                    .sizes
                    .map_or_else(|| fixed.unwrap_or(1), |s: sizes::Sizes| s.draw(&mut self.random));
                let flow = self.flow(source, target, bytes, Vec::new());
                self.flows[flow as usize].start = Nanos(time as u64);
            }
        }
        Ok(())
    }
}
