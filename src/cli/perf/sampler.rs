//! Samples the queue pairs of a run.

use std::time::{Duration, Instant};

use roxie_report::failure::Failure;

use super::link::Link;
use super::plot::{Sample, Series};

/// Initial interval.
const EVERY: Duration = Duration::from_millis(2);
/// Most samples; beyond, every second one is discarded and the interval doubles.
const MOST: usize = 1_000;
/// Most queue pairs that are sampled.
const MOST_QPS: usize = 8;

/// Takes samples.
pub(super) struct Sampler {
    start: Instant,
    next: Instant,
    every: Duration,
    series: Series,
}

impl Sampler {
    pub(super) fn new(size: u32) -> Sampler {
        let start = Instant::now();
        Sampler { start, next: start, every: EVERY, series: Series { samples: Vec::new(), size } }
    }

    /// Takes a sample if one is due.
    pub(super) fn look(&mut self, now: Instant, link: &Link<'_>, completed: u64) -> Result<(), Failure> {
        if now < self.next {
            return Ok(());
        }
        let asked = link.parts().pairs.qps.iter().take(MOST_QPS);
        let qps = asked.map(|qp| qp.control_state()).collect::<Result<_, _>>()?;
        let notifications = link.device.counter("rp_cnp_handled");
        let at = (now - self.start).as_secs_f64();
        self.series.samples.push(Sample { at, completed, notifications, qps });
        if self.series.samples.len() >= MOST {
            let mut number = 0;
            self.series.samples.retain(|_| {
                number += 1;
                number % 2 == 1
            });
            self.every *= 2;
        }
        self.next = now + self.every;
        Ok(())
    }

    pub(super) fn series(self) -> Series {
        self.series
    }
}
