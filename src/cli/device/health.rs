//! Reports faults that no completion shows: link down, port failure, a silent peer.

use std::time::{Duration, Instant};

use roxie::host::Device;
use roxie::nic::QpEvent;
use roxie::verbs::{AsyncEvent, EventKind, QpState};
use roxie_report::failure::Failure;
use roxie_report::output;

/// Interval between two queries of a device.
const EVERY: Duration = Duration::from_millis(100);

/// Reports a device's asynchronous events and port failures. Call [`Health::ask`] when there is nothing else to do.
#[derive(Debug, Default)]
pub(crate) struct Health {
    asked: Option<Instant>,
    /// Number of port failures reported so far.
    failures: u64,
}

impl Health {
    /// Queries the device, at most once per [`EVERY`].
    pub(crate) fn ask(&mut self, device: &Device) {
        let now = Instant::now();
        if self.asked.is_some_and(|at| now - at < EVERY) {
            return;
        }
        self.asked = Some(now);
        let port = device.port();
        let name = port.interface.as_deref().unwrap_or(&port.name);
        while let Some(event) = device.event() {
            if let Some(meaning) = meaning(&event) {
                output::note(format_args!("{name}: {meaning}"));
            }
        }
        if let Some(error) = device.take_link_error() {
            self.failures += 1;
            if self.failures == 1 {
                output::note(format_args!(
                    "{name}: the port failed: {error}; lost packets are retransmitted until the retries are used up"
                ));
            }
        }
    }
}

/// Prints the event logs of those QPs that saw more than routine events, and then the device's counters, to show what
/// led to a failure.
pub(crate) fn tell_logs(device: &Device) {
    let mut told = false;
    for qp in device.qps() {
        let records = device.qp_log(qp.handle.index);
        if records.iter().any(|record| !is_on_the_way_up(&record.event)) {
            output::note(format_args!("the event log of QPN 0x{:06x}:", qp.handle.qpn.value()));
            records.iter().for_each(|record| output::note(format_args!("  {record}")));
            told = true;
        }
    }
    if told {
        let counted = device.counters().into_iter().filter(|(_, count)| *count > 0);
        let counters: Vec<_> = counted.map(|(name, count)| format!("{name} {count}")).collect();
        output::note(format_args!("counters: {}", counters.join(", ")));
    }
}

/// True for state changes that every QP in use goes through.
fn is_on_the_way_up(event: &QpEvent) -> bool {
    matches!(event, QpEvent::State { to: QpState::Init | QpState::Rtr | QpState::Rts, .. })
}

/// Describes a port event; `None` for QP events, which completions report.
fn meaning(event: &AsyncEvent) -> Option<&'static str> {
    match event {
        AsyncEvent::Port(EventKind::PortError) => Some(
            "the link is down, or the interface is gone; lost packets are retransmitted until the retries are used up",
        ),
        AsyncEvent::Port(EventKind::PortActive) => Some("the link is up"),
        _ => None,
    }
}

/// Detects a peer that stopped sending without disconnecting.
#[derive(Debug)]
pub(crate) struct PeerWatchdog {
    /// Time of the last progress, and the counter's value then.
    since: Instant,
    seen: u64,
    looked: Instant,
}

impl PeerWatchdog {
    /// Longest silence: longer than the peer itself waits before it reports a failure.
    const LIMIT: Duration = Duration::from_secs(45);
    /// Interval between two looks at the counter.
    const LOOK: Duration = Duration::from_secs(1);

    /// Starts the watch at `now`.
    pub(crate) fn new(now: Instant) -> PeerWatchdog {
        PeerWatchdog { since: now, seen: 0, looked: now }
    }

    /// Compares the counter that `so_far` reads with its last value; reads it once a second.
    ///
    /// # Errors
    /// If the counter has not moved for 45 s.
    pub(crate) fn check(&mut self, now: Instant, so_far: impl FnOnce() -> u64) -> Result<(), Failure> {
        if now - self.looked < PeerWatchdog::LOOK {
            return Ok(());
        }
        self.looked = now;
        let so_far = so_far();
        if so_far != self.seen {
            (self.since, self.seen) = (now, so_far);
        }
        if now - self.since <= PeerWatchdog::LIMIT {
            return Ok(());
        }
        Err(Failure::Peer(format!(
            "no packet has come from the peer for {} s, and it has not reported that it is done: it has stopped, or the \
             path from it is broken",
            (now - self.since).as_secs()
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silent_peer_times_out_and_slow_one_not() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut slow = PeerWatchdog::new(start);
        // A slow peer: one packet in 40 s.
        (1..400).for_each(|second| slow.check(at(second), || second / 40).unwrap());
        let mut stopped = PeerWatchdog::new(start);
        assert!((1..=45).all(|second| stopped.check(at(second), || 7).is_ok()));
        let said = (46..50).find_map(|second| stopped.check(at(second), || 7).err()).expect("given up");
        assert!(said.to_string().contains("no packet has come from the peer for 46 s"), "{said}");
        assert_eq!(said.exit_code(), 4);
    }

    #[test]
    fn progress_is_checked_once_a_second() {
        let start = Instant::now();
        let mut looks = 0;
        let mut watchdog = PeerWatchdog::new(start);
        for ms in 0..2500 {
            watchdog
                .check(start + Duration::from_millis(ms), || {
                    looks += 1;
                    looks
                })
                .unwrap();
        }
        assert_eq!(looks, 2);
    }
}
