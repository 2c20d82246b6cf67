//! Measures bandwidth: many operations outstanding, counted as they complete.

use std::time::{Duration, Instant};

use roxie::verbs::Wc;
use roxie_report::failure::Failure;
use roxie_report::output;

use super::arguments::Service;
use super::control::Control;
use super::link::{COMPLETIONS, Event, Link, STANDSTILL};
use super::plan::{Plan, SIGNAL_EVERY, Until};
use super::report::Outcome;
use super::sampler::Sampler;

/// The start of a timed run does not count, because queues fill: this, or a tenth of the run if that is less.
const WARM_UP: Duration = Duration::from_millis(200);
/// Interval between progress lines of a long run.
const PROGRESS: Duration = Duration::from_secs(1);

/// Sends of one queue pair, counted from the beginning of the round.
#[derive(Clone, Copy)]
struct Flow {
    posted: u64,
    completed: u64,
    /// Number of sends to post.
    most: u64,
}

/// Keeps every queue pair full until the run is over, then drains it.
struct Run<'a> {
    link: &'a Link<'a>,
    plan: &'a Plan,
    size: u32,
    flows: Vec<Flow>,
    /// One send in `batch` is signaled.
    batch: u64,
    posted: u64,
    completed: u64,
}

pub(super) fn run(link: &Link<'_>, plan: &Plan, size: u32, control: &Control) -> Result<Outcome, Failure> {
    let share = |i: u64| match plan.until {
        Until::Operations(n) => n / u64::from(plan.qps) + u64::from(i < n % u64::from(plan.qps)),
        Until::Seconds(_) => u64::MAX,
    };
    let mut run = Run {
        link,
        plan,
        size,
        flows: (0..plan.qps.into()).map(|i| Flow { posted: 0, completed: 0, most: share(i) }).collect(),
        batch: u64::from((plan.depth / 4).clamp(1, SIGNAL_EVERY)),
        posted: 0,
        completed: 0,
    };
    let mut clock = Window::new(plan.until, plan.service);
    let mut sampler = link.is_sampled.then(|| Sampler::new(size));
    if let Some(sampler) = &mut sampler {
        // The first sample shows the rates before anything is sent.
        sampler.look(Instant::now(), link, 0)?;
    }
    (0..run.flows.len()).try_for_each(|i| run.fill(i, true))?;
    let mut more = true;
    while more || run.completed < run.posted {
        let progressed = run.collect(more)?;
        let now = Instant::now();
        if let Some(sampler) = &mut sampler {
            sampler.look(now, link, run.completed)?;
        }
        if progressed {
            clock.progress(now, &run);
        } else if now - clock.moved > STANDSTILL {
            return Err(run.standstill());
        }
        if more && !(clock.goes_on(now) && run.unfinished()) {
            more = false;
            (0..run.flows.len()).try_for_each(|i| run.fill(i, false))?;
            clock.drain(now);
        }
        if let Some(message) = control.look()? {
            return Err(super::control::out_of_turn(&message));
        }
    }
    Ok(Outcome { series: sampler.map(Sampler::series), ..clock.outcome(&run) })
}

impl Run<'_> {
    /// Posts as many sends as the depth allows. Once `more` is false, posts only up to the next signaled send, because
    /// an unsignaled send is known to be complete only when a later signaled one is.
    fn fill(&mut self, i: usize, more: bool) -> Result<(), Failure> {
        let mut flow = self.flows[i];
        while flow.posted < flow.most {
            let complete = self.is_signaled(flow.posted);
            let wanted = if more { flow.posted - flow.completed < self.window(flow) } else { !complete };
            if !wanted {
                break;
            }
            flow.posted += 1;
            self.posted += 1;
            let signaled = self.is_signaled(flow.posted) || flow.posted == flow.most;
            self.link.post(self.plan.operation, i, flow.posted, self.size, signaled)?;
        }
        self.flows[i] = flow;
        Ok(())
    }

    /// Returns how many sends may be outstanding.
    fn window(&self, flow: Flow) -> u64 {
        window(self.plan.until, self.plan.depth.into(), flow.completed)
    }

    /// True for every `batch`-th send, and for the first ones of a timed run: its window grows by their completions.
    fn is_signaled(&self, number: u64) -> bool {
        number.is_multiple_of(self.batch)
            || number <= u64::from(self.plan.depth) && matches!(self.plan.until, Until::Seconds(_))
    }

    /// Takes completions and posts as many sends. Returns true if there were any.
    fn collect(&mut self, more: bool) -> Result<bool, Failure> {
        let mut completions = [Wc::default(); COMPLETIONS];
        let before = self.completed;
        for event in self.link.poll(&mut completions)? {
            if let Event::Sent { qp, number } = event {
                let flow = &mut self.flows[qp];
                self.completed += number - flow.completed;
                flow.completed = number;
                if more {
                    self.fill(qp, true)?;
                }
            }
        }
        Ok(self.completed > before)
    }

    fn unfinished(&self) -> bool {
        match self.plan.until {
            Until::Operations(n) => self.posted < n,
            Until::Seconds(_) => true,
        }
    }

    fn standstill(&self) -> Failure {
        Failure::Run(format!(
            "nothing completed for {} s, after {} of {} operations; {}",
            STANDSTILL.as_secs(),
            self.completed,
            self.posted,
            self.link.standstill()
        ))
    }
}

/// Returns how many operations may be outstanding on a queue pair.
///
/// A timed run starts with one operation and adds one for each completion. At its end it never drains more operations
/// than it has completed, however many queue pairs there are.
fn window(until: Until, depth: u64, completed: u64) -> u64 {
    match until {
        Until::Seconds(_) => depth.min(1 + completed),
        Until::Operations(_) => depth,
    }
}

/// The part of a run that counts.
struct Window {
    until: Until,
    start: Instant,
    /// Start of counting, and the number of completions then.
    counted_from: Option<(Instant, u64)>,
    moved: Instant,
    said: Instant,
    /// True once nothing more is posted.
    draining: bool,
}

impl Window {
    fn new(until: Until, service: Service) -> Window {
        let start = Instant::now();
        // A server counts every message, from the first.
        let whole = matches!(until, Until::Operations(_)) || service != Service::Rc;
        let counted_from = whole.then_some((start, 0));
        Window { until, start, counted_from, moved: start, said: start, draining: false }
    }

    fn progress(&mut self, now: Instant, run: &Run<'_>) {
        self.moved = now;
        if let (Until::Seconds(s), None) = (self.until, self.counted_from)
            && now - self.start >= WARM_UP.min(Duration::from_secs_f64(s / 10.0))
        {
            self.counted_from = Some((now, run.completed));
        }
        if now - self.said >= PROGRESS {
            self.said = now;
            let seconds = (now - self.start).as_secs_f64();
            let gbit = run.completed as f64 * f64::from(run.size) * 8.0 / 1e9 / seconds;
            let left = if self.draining {
                format!("; time is up, waiting for {} more", run.posted - run.completed)
            } else {
                String::new()
            };
            output::note(format_args!(
                "{} bytes: {seconds:.0} s, {} operations, {gbit:.3} Gb/s{left}",
                run.size, run.completed
            ));
        }
    }

    fn drain(&mut self, now: Instant) {
        (self.draining, self.said) = (true, now);
    }

    fn goes_on(&self, now: Instant) -> bool {
        match self.until {
            Until::Seconds(s) => (now - self.start).as_secs_f64() < s,
            Until::Operations(_) => true,
        }
    }

    /// Computes the result up to the last completion. A very slow run, which completed nothing after the warm-up,
    /// counts from its start.
    fn outcome(&self, run: &Run<'_>) -> Outcome {
        let (from, before) = match self.counted_from {
            Some((from, before)) if run.completed > before && self.moved > from => (from, before),
            _ => (self.start, 0),
        };
        Outcome {
            messages: run.completed - before,
            bytes_each: run.size,
            seconds: (self.moved - from).as_secs_f64().max(1e-9),
            latency: None,
            counters: Vec::new(),
            series: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timed_window_is_one_more_than_completed() {
        for completed in 0..300 {
            let timed = window(Until::Seconds(0.2), 128, completed);
            assert!(timed <= completed + 1 && timed <= 128 && timed > 0);
            assert_eq!(window(Until::Operations(1000), 128, completed), 128);
        }
    }
}
