//! Measures latency: one operation at a time.
//!
//! A SEND is answered by a SEND. A WRITE is answered by a WRITE of the same last byte: the server polls its memory, as
//! RDMA applications do, and uses no receive. The device itself answers READs and atomics.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use roxie::verbs::Wc;
use roxie_report::failure::Failure;
use roxie_report::output;

use super::arguments::Operation;
use super::control::{Control, Message, ServerReport, out_of_turn};
use super::link::{COMPLETIONS, Event, Link, STANDSTILL};
use super::plan::{Plan, Until};
use super::report::{Outcome, histogram};
use crate::device::health::PeerWatchdog;

/// Operations before the first that counts in a timed run, so that caches and branch predictors settle.
const WARM_UP: u64 = 100;
const PROGRESS: Duration = Duration::from_secs(1);

pub(super) fn run(link: &Link<'_>, plan: &Plan, size: u32, control: &Control) -> Result<Outcome, Failure> {
    let mut game = LatencyEnd::new(link, plan.operation, size);
    let (skip, most, limit) = match plan.until {
        Until::Operations(n) => (0, n, f64::INFINITY),
        Until::Seconds(s) => (WARM_UP, u64::MAX, s),
    };
    let (start, mut said) = (Instant::now(), Instant::now());
    let mut latency: Histogram<u64> = histogram();
    let mut number = 0;
    // Measure at least one operation, however short the time.
    while number < most && (latency.is_empty() || start.elapsed().as_secs_f64() < limit) {
        number += 1;
        let posted = Instant::now();
        game.post(number)?;
        game.finish(number, control)?;
        let now = Instant::now();
        if number > skip {
            latency.saturating_record((now - posted).as_nanos() as u64);
        }
        if now - said >= PROGRESS {
            said = now;
            let median = latency.value_at_percentile(50.0) as f64 / 1e3;
            output::note(format_args!(
                "{size} bytes: {:.0} s, {number} operations, median {median:.2} us",
                (now - start).as_secs_f64()
            ));
        }
    }
    Ok(Outcome {
        messages: number,
        bytes_each: size,
        seconds: start.elapsed().as_secs_f64().max(1e-9),
        latency: Some(latency),
        counters: Vec::new(),
        series: None,
    })
}

/// Runs the server: answers until the client is done.
pub(super) fn answer(
    link: &Link<'_>,
    operation: Operation,
    size: u32,
    control: &Control,
) -> Result<(u64, ServerReport), Failure> {
    let mut game = LatencyEnd::new(link, operation, size);
    let mut answered = 0;
    let mut watchdog = PeerWatchdog::new(Instant::now());
    loop {
        game.poll()?;
        watchdog.check(Instant::now(), || link.arrivals())?;
        if game.arrived(answered + 1)? && game.completed == answered {
            answered += 1;
            game.post(answered)?;
        }
        match control.look()? {
            None => {}
            Some(Message::Done { messages }) => {
                game.settle(answered)?;
                let report = ServerReport { messages: Some(answered), ..ServerReport::default() };
                return Ok((messages, report));
            }
            Some(other) => return Err(out_of_turn(&other)),
        }
    }
}

/// One end of the measurement.
struct LatencyEnd<'a> {
    link: &'a Link<'a>,
    operation: Operation,
    size: u32,
    completed: u64,
    received: u64,
}

impl<'a> LatencyEnd<'a> {
    fn new(link: &'a Link<'a>, operation: Operation, size: u32) -> LatencyEnd<'a> {
        LatencyEnd { link, operation, size, completed: 0, received: 0 }
    }

    /// Returns the last byte of the `number`-th message, which differs from the previous message's, and from the
    /// initial 0.
    fn mark(number: u64) -> u8 {
        (number % 255) as u8 + 1
    }

    fn post(&self, number: u64) -> Result<(), Failure> {
        if self.operation == Operation::Write {
            self.link.parts().pairs.outgoing.write_at(self.size as usize - 1, &[Self::mark(number)])?;
        }
        self.link.post(self.operation, 0, number, self.size, true)
    }

    fn poll(&mut self) -> Result<(), Failure> {
        let mut completions = [Wc::default(); COMPLETIONS];
        for event in self.link.poll(&mut completions)? {
            match event {
                Event::Sent { number, .. } => self.completed = number,
                Event::Received { qp, bytes } if bytes == self.size => {
                    self.received += 1;
                    self.link.post_receive(qp)?;
                }
                Event::Received { bytes, .. } => {
                    return Err(Failure::Peer(format!(
                        "a message of {bytes} bytes arrived, not of {}",
                        self.size
                    )));
                }
            }
        }
        Ok(())
    }

    /// True if the peer's `number`-th message has arrived.
    fn arrived(&self, number: u64) -> Result<bool, Failure> {
        Ok(match self.operation {
            Operation::Send => self.received >= number,
            Operation::Write => {
                let mut last = [0];
                self.link.parts().pairs.incoming.read_at(self.size as usize - 1, &mut last)?;
                last[0] == Self::mark(number)
            }
            Operation::Read | Operation::Atomic => true,
        })
    }

    /// Waits until all answers are acknowledged, so that their completions do not show up in the next round.
    fn settle(&mut self, answered: u64) -> Result<(), Failure> {
        let start = Instant::now();
        while self.completed < answered {
            self.poll()?;
            if start.elapsed() > STANDSTILL {
                return Err(Failure::Run(format!(
                    "answer {answered} was not acknowledged for {} s",
                    STANDSTILL.as_secs()
                )));
            }
        }
        Ok(())
    }

    /// Waits until the `number`-th operation is complete and answered.
    fn finish(&mut self, number: u64, control: &Control) -> Result<(), Failure> {
        let start = Instant::now();
        while self.completed < number || !self.arrived(number)? {
            self.poll()?;
            if let Some(message) = control.look()? {
                return Err(out_of_turn(&message));
            }
            if start.elapsed() > STANDSTILL {
                return Err(Failure::Run(format!(
                    "operation {number} was not answered for {} s; {}",
                    STANDSTILL.as_secs(),
                    self.link.standstill()
                )));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mark_differs_from_previous_and_initial() {
        let mut before = 0;
        for number in 1..2000 {
            let mark = LatencyEnd::mark(number);
            assert!(mark != before && mark != 0);
            before = mark;
        }
    }
}
