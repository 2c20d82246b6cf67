//! Measures the port alone between two processes: frames of the transport's sizes, sent and counted, or echoed. No
//! transport on this port can have less latency, or more bandwidth.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use roxie::port::BURST;
use roxie::time::Clock;
use roxie::verbs::{Gid, Mtu};
use roxie::wire::Template;
use roxie_options::BarePort;
use roxie_options::{DeviceOptions, IdleYield};
use roxie_report::failure::Failure;

use super::arguments::Measure;
use super::control::{Control, End, Message, ServerReport, out_of_turn};
use super::plan::{Plan, Until};
use super::report::{Outcome, histogram};
use super::session::Side;
use crate::device::health::PeerWatchdog;
use crate::floor::frames::{self, Shape, Sink};

/// An echo that takes longer counts as lost.
const LOST: Duration = Duration::from_millis(100);
/// How long the server keeps counting after the client has sent everything.
const SETTLE: Duration = Duration::from_millis(50);

/// A bare port with the frames to send.
pub(super) struct Floor<'a> {
    options: &'a DeviceOptions,
    bare: BarePort,
    clock: Clock,
    path_mtu: Mtu,
    /// Headers of the frames, once connected.
    flow: Option<Template>,
    /// The frames to send, once armed.
    shape: Option<Shape>,
    sink: Sink,
    idle: IdleYield,
}

impl<'a> Floor<'a> {
    pub(super) fn new(options: &'a DeviceOptions, bare: BarePort) -> Result<Floor<'a>, Failure> {
        let floor = Floor {
            options,
            bare,
            clock: Clock::new(),
            path_mtu: Mtu::Mtu256,
            flow: None,
            shape: None,
            sink: Sink::default(),
            idle: IdleYield::default(),
        };
        floor.path_mtu()?;
        Ok(floor)
    }

    /// Sends up to `count` frames, at most one burst. Returns how many found a slot.
    fn send(&mut self, count: u64) -> Result<u64, Failure> {
        let port = &mut self.bare.port;
        let sent = self.shape.as_ref().map_or(0, |shape| shape.send(&mut **port, count));
        port.tx_flush(self.clock.now()).map_err(|e| Failure::Run(format!("the port failed: {e}")))?;
        Ok(sent)
    }

    /// Receives a burst. Returns how many of its frames belong to the measurement.
    fn receive(&mut self) -> u64 {
        let (port, now) = (&mut self.bare.port, self.clock.now());
        let sink = &mut self.sink;
        let count = self.shape.as_ref().map_or(0, |shape| shape.receive(&mut **port, now, sink));
        self.idle.found(count > 0);
        count
    }

    fn send_all(&mut self, plan: &Plan, control: &Control) -> Result<Outcome, Failure> {
        let (most, limit) = match plan.until {
            Until::Operations(n) => (n, f64::INFINITY),
            Until::Seconds(s) => (u64::MAX, s),
        };
        let (start, mut sent) = (Instant::now(), 0);
        while sent < most && start.elapsed().as_secs_f64() < limit {
            sent += self.send((most - sent).min(BURST as u64))?;
            if let Some(message) = control.look()? {
                return Err(out_of_turn(&message));
            }
        }
        while self.bare.port.tx_pending() {
            self.send(0)?;
        }
        Ok(self.outcome(sent, start, None))
    }

    fn send_and_wait(&mut self, plan: &Plan, control: &Control) -> Result<Outcome, Failure> {
        let (most, limit) = match plan.until {
            Until::Operations(n) => (n, f64::INFINITY),
            Until::Seconds(s) => (u64::MAX, s),
        };
        let (start, mut number) = (Instant::now(), 0);
        let mut latency: Histogram<u64> = histogram();
        while number < most && start.elapsed().as_secs_f64() < limit {
            number += 1;
            let posted = Instant::now();
            self.send(1)?;
            while self.receive() == 0 {
                if let Some(message) = control.look()? {
                    return Err(out_of_turn(&message));
                }
                if posted.elapsed() > LOST {
                    break;
                }
            }
            if posted.elapsed() <= LOST {
                latency.saturating_record(posted.elapsed().as_nanos() as u64);
            }
        }
        if latency.is_empty() {
            return Err(Failure::Peer(format!("none of {number} frames came back: is UDP port 4791 open?")));
        }
        Ok(self.outcome(number, start, Some(latency)))
    }

    fn outcome(&self, messages: u64, start: Instant, latency: Option<Histogram<u64>>) -> Outcome {
        Outcome {
            messages,
            bytes_each: 0,
            seconds: start.elapsed().as_secs_f64().max(1e-9),
            latency,
            counters: Vec::new(),
            series: None,
        }
    }

    /// Returns the payload of a frame for messages of this size.
    fn payload(&self, size: u32) -> usize {
        (size as usize).min(self.path_mtu.bytes())
    }
}

impl Side for Floor<'_> {
    fn port(&self) -> (String, String) {
        let info = self.bare.port.info();
        (info.name.clone(), info.mode.clone())
    }

    fn path_mtu(&self) -> Result<Mtu, Failure> {
        self.options.path_mtu_for(self.bare.port.info(), Mtu::Mtu4096)
    }

    fn prepare(&mut self, _plan: &Plan, path_mtu: Mtu) -> Result<End, Failure> {
        self.path_mtu = path_mtu;
        Ok(End { gid: self.bare.own.0, qps: Vec::new(), address: 0, rkey: 0 })
    }

    fn connect(&mut self, there: &End) -> Result<(), Failure> {
        let dst = Gid(there.gid);
        let own = (self.bare.port.info().mac, self.bare.own);
        self.flow = Some(frames::flow(own, (self.bare.mac_of(dst.to_ip())?, dst)));
        Ok(())
    }

    fn arm(&mut self, _plan: &Plan, size: u32) -> Result<(), Failure> {
        while self.receive() > 0 {}
        let payload = self.payload(size);
        let flow = self.flow.as_ref().expect("connected before it is measured");
        self.shape = Some(Shape::new(flow, payload));
        Ok(())
    }

    fn measure(&mut self, plan: &Plan, size: u32, control: &Control) -> Result<Outcome, Failure> {
        let outcome = match plan.measure {
            Measure::Bw => self.send_all(plan, control)?,
            Measure::Lat => self.send_and_wait(plan, control)?,
        };
        Ok(Outcome { bytes_each: self.payload(size) as u32, ..outcome })
    }

    fn serve(&mut self, plan: &Plan, _size: u32, control: &Control) -> Result<(u64, ServerReport), Failure> {
        let (mut seen, mut span) = (0u64, None::<(Instant, Instant)>);
        let mut done = None::<(u64, Instant)>;
        let mut watchdog = PeerWatchdog::new(Instant::now());
        while done.is_none_or(|(_, when)| when.elapsed() < SETTLE) {
            let count = self.receive();
            if count > 0 {
                let now = Instant::now();
                span = Some((span.map_or(now, |(first, _)| first), now));
                seen += count;
                if plan.measure == Measure::Lat {
                    self.send(count)?;
                }
            }
            watchdog.check(Instant::now(), || seen)?;
            match control.look()? {
                None => {}
                Some(Message::Done { messages }) => done = Some((messages, Instant::now())),
                Some(other) => return Err(out_of_turn(&other)),
            }
        }
        let seconds = span.map(|(first, last)| (last - first).as_secs_f64());
        let report = ServerReport { messages: Some(seen), seconds, ..ServerReport::default() };
        Ok((done.map_or(0, |(messages, _)| messages), report))
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut all = Vec::new();
        self.bare.port.counters(&mut all);
        all
    }
}
