//! The floor: frame rates of ports without a transport, counted where frames arrive.
//!
//! [`frames`] defines what is sent; headers are written and the payload copied once a frame at each end, as a transport
//! must. [`Floor`] drives a pair of ports in one process, for `roxie demo`. `roxie perf --floor` has one end in each
//! process.

use std::net::IpAddr;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use roxie::port::Port;
use roxie::time::Clock;
use roxie::wire::{Gid, Template};

pub(crate) mod frames;

use frames::{Shape, Sink};

/// Numbers of frames in flight that are tried for the best rate.
const IN_FLIGHT: [u64; 4] = [32, 64, 128, 256];
/// After this long without an arrival, frames in flight count as lost.
const LOST_AFTER: Duration = Duration::from_millis(100);
/// A measurement without arrivals runs over its time by at most this long.
const PATIENCE: Duration = Duration::from_secs(2);
/// With two threads, steps between two yields.
const STEPS_PER_YIELD: u32 = 64;

/// Threads that drive the two ends of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Threads {
    /// One thread alternates between both ends.
    One,
    /// The far end has its own thread.
    Two,
}

impl Threads {
    /// Calls `near` until it breaks; calls `far` in turn with it, or in a parallel thread.
    pub(crate) fn drive<T>(
        self,
        mut near: impl FnMut() -> ControlFlow<T>,
        mut far: impl FnMut() + Send,
    ) -> T {
        match self {
            Threads::One => loop {
                if let ControlFlow::Break(result) = near() {
                    return result;
                }
                far();
            },
            Threads::Two => {
                let stop = AtomicBool::new(false);
                std::thread::scope(|scope| {
                    scope.spawn(|| {
                        let mut courtesy = PeriodicYield::default();
                        while !stop.load(Relaxed) {
                            far();
                            courtesy.step();
                        }
                    });
                    // Stop the thread even if `near` panics: the scope waits for it.
                    let _stop = StopOnDrop(&stop);
                    let mut courtesy = PeriodicYield::default();
                    loop {
                        if let ControlFlow::Break(result) = near() {
                            return result;
                        }
                        courtesy.step();
                    }
                })
            }
        }
    }
}

/// Yields now and then: two spinning threads on one core would otherwise wait for the end of each other's time slice.
#[derive(Default)]
struct PeriodicYield {
    steps: u32,
}

impl PeriodicYield {
    fn step(&mut self) {
        self.steps = self.steps.wrapping_add(1);
        if self.steps.is_multiple_of(STEPS_PER_YIELD) {
            std::thread::yield_now();
        }
    }
}

struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// An open port and the address to put into its frames.
pub(crate) type AddressedPort = (Box<dyn Port>, IpAddr);

/// One end of the floor.
struct End {
    port: Box<dyn Port>,
    flow: Template,
    sink: Sink,
    clock: Clock,
}

/// A pair of ports to measure.
pub(crate) struct Floor {
    near: End,
    far: End,
    threads: Threads,
}

impl Floor {
    /// Measures two open ports that reach one another at these addresses.
    pub(crate) fn new(ends: [AddressedPort; 2], threads: Threads) -> Floor {
        let [(near, near_ip), (far, far_ip)] = ends;
        let station = |port: &dyn Port, ip: IpAddr| (port.info().mac, Gid::from(ip));
        let (here, there) = (station(&*near, near_ip), station(&*far, far_ip));
        let (out, back) = (frames::flow(here, there), frames::flow(there, here));
        let clock = Clock::new();
        Floor {
            near: End { port: near, flow: out, sink: Sink::default(), clock },
            far: End { port: far, flow: back, sink: Sink::default(), clock },
            threads,
        }
    }

    /// Returns the number of frames in flight with the highest rate for `payload` bytes. Tries each number for `each`.
    pub(crate) fn best_in_flight(&mut self, payload: usize, each: Duration) -> std::io::Result<u64> {
        let mut best = (0.0, IN_FLIGHT[0]);
        for in_flight in IN_FLIGHT {
            let rate = self.stream(payload, in_flight, each)?;
            if rate > best.0 {
                best = (rate, in_flight);
            }
        }
        Ok(best.1)
    }

    /// Returns the frames a second that arrive, each with `payload` bytes, and at most `in_flight` outstanding.
    pub(crate) fn stream(&mut self, payload: usize, in_flight: u64, time: Duration) -> std::io::Result<f64> {
        let Floor { near, far, threads } = self;
        let shape = Shape::new(&near.flow, payload);
        let arrived = AtomicU64::new(0);
        let (mut sent, mut lost, mut seen) = (0, 0, 0);
        let start = Instant::now();
        let (mut seen_at, mut in_time) = (start, None);
        threads.drive(
            || {
                let now = Instant::now();
                let so_far = arrived.load(Relaxed);
                if now - start >= time && so_far > 0 || now - start >= time + PATIENCE {
                    in_time.get_or_insert(so_far as f64 / (now - start).as_secs_f64());
                }
                if so_far > seen {
                    (seen, seen_at) = (so_far, now);
                } else if now - seen_at > LOST_AFTER {
                    lost = sent - so_far.min(sent);
                    seen_at = now;
                }
                let under_way = sent.saturating_sub(so_far + lost);
                if let Some(rate) = in_time {
                    if under_way == 0 {
                        return ControlFlow::Break(Ok(rate));
                    }
                } else {
                    sent += near.send(&shape, in_flight.saturating_sub(under_way));
                }
                match near.flush() {
                    Ok(()) => ControlFlow::Continue(()),
                    Err(e) => ControlFlow::Break(Err(e)),
                }
            },
            || {
                arrived.fetch_add(far.receive(&shape), Relaxed);
            },
        )
    }

    /// Records the round trips of single frames with `payload` bytes each way, in nanoseconds, for `time`.
    pub(crate) fn echo(
        &mut self,
        payload: usize,
        time: Duration,
        mut record: impl FnMut(u64),
    ) -> std::io::Result<()> {
        let Floor { near, far, threads } = self;
        let (ping, pong) = (Shape::new(&near.flow, payload), Shape::new(&far.flow, payload));
        let start = Instant::now();
        let (mut sent_at, mut returned): (Option<Instant>, _) = (None, false);
        threads.drive(
            || {
                let now = Instant::now();
                match sent_at {
                    Some(at) if near.receive(&pong) > 0 => {
                        record(at.elapsed().as_nanos() as u64);
                        (sent_at, returned) = (None, true);
                    }
                    Some(at) if now - at > LOST_AFTER => sent_at = None,
                    Some(_) => return ControlFlow::Continue(()),
                    None => {}
                }
                if now - start >= time && returned || now - start >= time + PATIENCE {
                    return ControlFlow::Break(Ok(()));
                }
                sent_at = Some(Instant::now());
                near.send(&ping, 1);
                match near.flush() {
                    Ok(()) => ControlFlow::Continue(()),
                    Err(e) => ControlFlow::Break(Err(e)),
                }
            },
            || {
                let arrived = far.receive(&ping);
                if arrived > 0 {
                    far.send(&pong, arrived);
                    // A failed link shows at the near end, where nothing comes back.
                    let _ = far.flush();
                }
            },
        )
    }
}

impl End {
    fn send(&mut self, shape: &Shape, count: u64) -> u64 {
        shape.send(&mut *self.port, count)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.port.tx_flush(self.clock.now())
    }

    fn receive(&mut self, shape: &Shape) -> u64 {
        shape.receive(&mut *self.port, self.clock.now(), &mut self.sink)
    }
}
