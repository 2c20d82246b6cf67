//! How far strangers, peers and neighbours can slow a connection: by CNPs, congestion marks and pause frames.
//!
//! A QP writes without end on a line of 10 Gb/s in virtual time. Its throughput is compared with that of an undisturbed
//! QP.

use roxie::congestion::Rate;
use roxie::nic::{Command, CongestionConfig, TrafficClasses};
use roxie::time::Nanos;
use roxie::verbs::{SendFlags, WrOpcode};
use roxie::wire::{Bth, Ext, MacControl, Opcode, Psn, Qpn, Syndrome, parse};

use crate::transport::{FIRST, MTU, Setup, Stage, template};

const LINE: Rate = Rate::from_gbps(10.0);
/// Length of a message in packets.
const PACKETS: u32 = 12;

/// A QP that writes without end to a peer that acknowledges all of it.
struct Writer {
    stage: Stage,
    psn: Psn,
    /// Number of bits sent, with headers.
    bits: f64,
    outstanding: u32,
}

impl Writer {
    fn new(control: &str, classes: &str) -> Writer {
        let mut stage = Stage::with(Setup { timeout: 0, ..Setup::default() });
        let config = CongestionConfig {
            control: control.parse().expect("settings"),
            classes: classes.parse::<TrafficClasses>().expect("settings"),
            line_rate: Some(LINE),
            ..CongestionConfig::default()
        };
        stage.host.call(stage.now, Command::SetCongestion(Box::new(config))).expect("carried out");
        Writer { stage, psn: FIRST, bits: 0.0, outstanding: 0 }
    }

    /// Runs one pass and advances the clock by the time that its frames take on the line, or else to the next deadline,
    /// at most 1 us. Returns true if data was sent.
    fn step(&mut self) -> bool {
        while self.outstanding < 4 {
            self.outstanding += 1;
            self.stage.post_as(0, WrOpcode::Write, SendFlags::SIGNALED, PACKETS * MTU.bytes() as u32);
        }
        self.stage.host.worker.poll(self.stage.now);
        let (mut bits, mut last) = (0, None);
        for i in 0..self.stage.peer.rx_burst(self.stage.now) {
            let frame = self.stage.peer.rx_frame(i).frame;
            if parse(&frame).is_ok_and(|packet| !packet.info().is_response()) {
                (bits, last) = (bits + frame.len() * 8, Some(self.psn));
                self.psn = self.psn + 1;
            }
        }
        self.stage.peer.rx_release();
        if let Some(last) = last {
            self.stage.acknowledge(last, Syndrome::Ack { credits: 31 }, 0);
        }
        let done = self.stage.completions().len() as u32;
        self.outstanding -= done;
        self.bits += bits as f64;
        let on_the_line = Nanos((bits as f64 * 1e9 / LINE.0).ceil() as u64);
        let due = self.stage.host.worker.next_deadline().min(self.stage.now + Nanos(1_000));
        self.stage.now = match (bits, done) {
            // Completions made room for new requests: run again at the same time.
            (0, 1..) => self.stage.now,
            (0, 0) => due.max(self.stage.now + Nanos(1)),
            _ => self.stage.now + on_the_line,
        };
        bits > 0
    }

    /// Runs for `time`, calling `attack` after each pass with true if data was sent. Returns the fraction of the line
    /// that the QP used.
    fn share(&mut self, time: Nanos, mut attack: impl FnMut(&mut Stage, bool)) -> f64 {
        let (from, before) = (self.stage.now, self.bits);
        while self.stage.now < from + time {
            let sent = self.step();
            attack(&mut self.stage, sent);
        }
        (self.bits - before) / (LINE.0 * (self.stage.now - from).0 as f64 / 1e9)
    }

    /// Returns the time until the QP uses `part` of the line, in steps of 100 us.
    fn recovers_to(&mut self, part: f64) -> Nanos {
        let from = self.stage.now;
        while self.share(Nanos::from_micros(100), |_, _| {}) < part {}
        self.stage.now - from
    }
}

fn notify(stage: &mut Stage, dest_qp: Qpn) {
    let bth = Bth { opcode: Opcode::CNP, becn: true, dest_qp, ..Bth::default() };
    stage.send(&bth, &Ext::None, &[]);
}

/// A stranger spoofs the peer's address and guesses QPNs: one of 2^24 is right. A correct guess costs as much as a
/// genuine CNP, less than a millisecond of sending.
#[test]
fn guessed_cnp_costs_under_a_millisecond() {
    let mut writer = Writer::new("dcqcn", "");
    let alone = writer.share(Nanos::from_millis(2), |_, _| {});
    assert!(alone > 0.999, "left alone: {alone}");
    let own = writer.stage.qp.handle.qpn;
    let mut guess = 0_u32;
    let missed = writer.share(Nanos::from_millis(2), |stage, _| {
        guess = guess.wrapping_add(0x9e_3779) & 0xff_ffff;
        if Qpn::new(guess) != own {
            notify(stage, Qpn::new(guess));
        }
    });
    assert!(missed > 0.999, "wrong numbers: {missed}");
    notify(&mut writer.stage, own);
    let span = Nanos::from_millis(10);
    let hit = writer.share(span, |_, _| {});
    let lost = (1.0 - hit) * span.0 as f64 / 1e6;
    println!("a guessed CNP costs {lost:.3} ms of sending");
    assert_eq!(writer.stage.counter("rp_cnp_handled"), 1);
    assert!(0.0 < lost && lost < 1.0, "{lost} ms");
}

/// CNPs from an address other than the peer's have no effect.
#[test]
fn cnp_flood_from_another_address_costs_nothing() {
    let mut writer = Writer::new("dcqcn", "");
    let own = writer.stage.qp.handle.qpn;
    let mut unknown = template(3);
    let share = writer.share(Nanos::from_millis(2), |stage, _| {
        // The stage's own template, the peer's, is restored after the CNP.
        std::mem::swap(&mut stage.template, &mut unknown);
        notify(stage, own);
        std::mem::swap(&mut stage.template, &mut unknown);
    });
    assert!(share > 0.999, "{share}");
}

/// An attacker that sees the QPNs, on the path or at the peer, holds the QP at the minimum rate during the flood. The
/// QP then recovers by itself. A switch on the path could as well drop every packet.
#[test]
fn on_path_cnp_flood_leaves_the_minimum_rate() {
    for (control, floor, back) in
        [("dcqcn", 1.0, 400), ("dcqcn,rpg_min_rate=1000", 1_000.0, 400), ("dcqcn,preset=paper", 1.0, 400)]
    {
        let mut writer = Writer::new(control, "");
        let own = writer.stage.qp.handle.qpn;
        writer.share(Nanos::from_millis(20), |stage, _| notify(stage, own));
        let share = writer.share(Nanos::from_millis(400), |stage, _| notify(stage, own));
        let mbps = share * LINE.0 / 1e6;
        let recovered = writer.recovers_to(0.9);
        println!("{control}: {mbps:.2} Mb/s during the flood, 90 % of the line {recovered} after it");
        // The rate increase between two packets comes on top of the floor.
        assert!(mbps >= floor * 0.9 && mbps < floor + 30.0, "{control}: {mbps} Mb/s");
        assert!(recovered < Nanos::from_millis(back), "{control}: {recovered}");
    }
}

/// A replayed CNP counts at most once for each data packet sent since the last one, and not at all for a QP that sends
/// nothing.
#[test]
fn replayed_cnps_to_a_silent_qp_are_ignored() {
    let mut writer = Writer::new("dcqcn", "");
    writer.share(Nanos::from_micros(100), |_, _| {});
    let own = writer.stage.qp.handle.qpn;
    // The QP falls silent, because the peer acknowledges nothing more.
    while writer.stage.host.worker.poll(writer.stage.now).sent > 0 {}
    notify(&mut writer.stage, own);
    for _ in 0..10_000 {
        notify(&mut writer.stage, own);
        writer.stage.host.worker.poll(writer.stage.now);
    }
    assert_eq!(writer.stage.counter("rp_cnp_handled"), 1);
    assert_eq!(writer.stage.counter("rp_cnp_ignored"), 10_000);
}

fn pauses(stage: &mut Stage) {
    let frame = MacControl::Pause { quanta: 0xffff }.build([2, 0, 0, 0, 0, 9]);
    let id = stage.peer.tx_alloc(frame.len()).expect("room");
    stage.peer.tx_frame(&id).write(0, &frame);
    stage.peer.tx_commit(id);
    stage.peer.tx_flush(stage.now).expect("memory does not fail");
}

/// Pause frames without end have no effect unless PAUSE is enabled, and then stop the QP half of the time.
#[test]
fn endless_pauses_stop_at_most_half_the_time() {
    let mut writer = Writer::new("off", "");
    let share = writer.share(Nanos::from_millis(2), |stage, _| pauses(stage));
    assert!(share > 0.999, "PAUSE disabled: {share}");
    let mut writer = Writer::new("off", "pause=on");
    let mut next = Nanos::ZERO;
    let share = writer.share(Nanos::from_millis(1_000), |stage, _| {
        if stage.now >= next {
            pauses(stage);
            // The next pause comes before the last one ends: 65,535 quanta at 10 Gb/s are 3.4 ms.
            next = stage.now + Nanos::from_millis(3);
        }
    });
    println!("beside a neighbour that pauses without end: {share:.3} of the line");
    assert!((0.48..0.55).contains(&share), "{share}");
}

/// A marked packet with the right QPN and a guessed PSN triggers a CNP with probability 2^16 / 2^24. The CNP goes to
/// the real peer, at most one per interval.
#[test]
fn forged_marks_rarely_trigger_cnps() {
    let mut stage = Stage::new();
    stage.template = crate::transport::congestion::with_class(3);
    let mut answered = 0;
    let count = 4_096;
    for n in 0..count {
        let psn = Psn::new(n * 4_096 + 1);
        let bth = Bth { opcode: Opcode::RC_SEND_MIDDLE, dest_qp: stage.qp.handle.qpn, psn, ..Bth::default() };
        stage.send(&bth, &Ext::None, &vec![1; MTU.bytes()]);
        let packets = stage.packets();
        answered += packets.iter().filter(|(packet, _)| packet.bth.opcode == Opcode::CNP).count();
        // Packets are further apart than the CNP interval.
        stage.now = stage.now + Nanos::from_micros(10);
    }
    println!("{answered} of {count} PSNs all over the range are answered");
    assert!(answered <= 16, "{answered} of {count}");
}
