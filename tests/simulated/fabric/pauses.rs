//! Priority flow control, from the frame that crosses the threshold to the last frame that still arrives.

use roxie::frame::Frame;
use roxie::time::Nanos;
use roxie::wire::mac_control::MacControl;
use roxie_sim::fabric::{
    DropReason, Fabric, FabricConfig, MacPause, PfcConfig, PriorityMap, SwitchConfig, Threshold, worst_case,
};

use super::{DELAY, RATE, assert_conserved, frame, link, mac, star, stations, switch};

/// Longest frame, and its bytes on the wire.
const LONGEST: usize = 1000;
const WIRE: u64 = LONGEST as u64 + 24;
/// TOS of the lossless priority 3.
const TOS: u8 = 3 << 5;
/// Number of whole frames up to the threshold.
const BELOW: u64 = 10;
/// Time at which the pause of [`worst_moment`] is in force.
const START: u64 = 10_000;

fn pfc(response: u64) -> PfcConfig {
    PfcConfig { response: Some(Nanos(response)), ..PfcConfig::new(&[3]).expect("a priority") }
}

fn lossless(stations: usize, pfc: PfcConfig) -> SwitchConfig {
    let mut config = switch(stations);
    config.lossless = Threshold::Static(BELOW * LONGEST as u64);
    config.longest_frame = LONGEST as u32;
    config.pfc = Some(pfc);
    config
}

/// Returns a fabric of stations that honour PFC.
fn heeding(count: usize, config: SwitchConfig, response: u64) -> Fabric {
    let mut stations = stations(count);
    for station in &mut stations {
        let priorities = PriorityMap::default();
        station.mac_pause = Some(MacPause { response: Some(Nanos(response)), priorities });
    }
    Fabric::new(FabricConfig::star(stations, config)).expect("a fabric")
}

/// The worst case. Station 1 has paused priority 3. Station 0 sends until it is paused: when its frame crosses the
/// threshold, a longest frame has just begun in the reverse direction, and its last frame begins one nanosecond before
/// it must be silent.
fn worst_moment(response: u64, headroom: Option<u64>) -> Fabric {
    let mut fabric = heeding(2, lossless(2, PfcConfig { headroom, ..pfc(response) }), response);
    let mut quanta = [0; 8];
    quanta[3] = 0xffff;
    let stop = MacControl::Pfc { enable: 1 << 3, quanta }.build(mac(1));
    fabric.send(Nanos(0), 1, &stop);
    fabric.run(Nanos(START));
    // Bytes on the wire from the crossing frame to the start of the last one.
    let silence = WIRE + 84 + response + 2 * DELAY.0;
    let (whole, rest) = ((silence - 1) / WIRE, (silence - 1) % WIRE);
    assert!(rest >= 84, "choose a response that leaves room for a frame: {rest}");
    let mut lengths = vec![LONGEST; (BELOW + 1 + whole) as usize];
    lengths.push(rest as usize - 24);
    lengths.extend([LONGEST; 20]);
    for length in lengths {
        fabric.send(Nanos(START), 0, &frame(0, 1, length, TOS));
    }
    // The crossing frame begins at the same time as the frame of station 1, which is just in time to go first.
    fabric.run(Nanos(START + BELOW * WIRE - 1));
    fabric.send(Nanos(START + BELOW * WIRE), 1, &frame(1, 0, LONGEST, 0));
    fabric.run(Nanos::from_micros(200));
    fabric
}

#[test]
fn computed_headroom_is_the_worst_case() {
    for response in [540, 2018, 7000] {
        let computed = worst_case(&link(), Nanos(response), LONGEST as u32);
        let fabric = worst_moment(response, None);
        let switch = fabric.switch(0);
        assert_eq!(switch.config().headroom(0), computed);
        assert_eq!(switch.queue(0, 3).headroom_peak, computed, "response of {response} ns");
        assert_eq!(switch.queue(1, 3).drops.all(), 0);
        assert_eq!(switch.queue(0, 3).xoff_sent, 1);
        assert_eq!(fabric.station(0).sent, switch.queue(1, 3).queued(), "nothing came afterwards");
        assert_conserved(switch);
        let short = worst_moment(response, Some(computed - 1));
        assert_eq!(short.switch(0).queue(1, 3).drops.by(DropReason::Headroom), 1, "a byte less");
    }
}

/// Frames of many stations to one, at different times and of different lengths.
fn incast(fabric: &mut Fabric, senders: usize, tos: u8) {
    for station in 0..senders {
        for n in 0..400 {
            let length = [LONGEST, 300, 60, 777][(n * 7 + station) % 4];
            fabric.send(Nanos(0), station, &frame(station, senders, length, tos));
        }
    }
}

#[test]
fn incast_loses_only_lossy_frames() {
    let run = |tos| {
        let mut config = lossless(5, pfc(540));
        config.lossy = Threshold::Static(40_000);
        let mut fabric = heeding(5, config, 540);
        incast(&mut fabric, 4, tos);
        assert!(fabric.run(Nanos::from_millis(20)), "all is quiet");
        assert_conserved(fabric.switch(0));
        fabric
    };
    let fabric = run(TOS);
    assert_eq!((fabric.station(4).delivered, fabric.switch(0).queue(4, 3).drops.all()), (1600, 0));
    for port in 0..4 {
        let queue = fabric.switch(0).queue(port, 3);
        assert!(queue.xoff_sent > 0 && queue.xoff_sent == queue.xon_sent, "{queue:?}");
        assert!(queue.pause_sent > Nanos::ZERO);
        assert!(queue.headroom_peak > 0 && queue.headroom_peak <= fabric.switch(0).config().headroom(port));
        assert_eq!(fabric.station(port).control, queue.xoff_sent + queue.xon_sent);
    }
    let fabric = run(0);
    let dropped = fabric.switch(0).queue(4, 0).drops.all();
    assert!(dropped > 500, "{dropped}");
    assert_eq!(fabric.station(4).delivered + dropped, 1600);
}

#[test]
fn pause_is_refreshed_and_released_at_once() {
    let quanta = 100;
    let mut fabric = heeding(2, lossless(2, PfcConfig { quanta, ..pfc(540) }), 540);
    // Station 1 does not drain for 100 us.
    let mut time = [0; 8];
    time[3] = (100_000 / 64) as u16;
    fabric.send(Nanos(0), 1, &MacControl::Pfc { enable: 1 << 3, quanta: time }.build(mac(1)));
    for _ in 0..40 {
        fabric.send(Nanos(0), 0, &frame(0, 1, LONGEST, TOS));
    }
    fabric.run(Nanos(99_000));
    let sent = fabric.station(0).sent;
    assert!(sent < 20, "it was told to be silent: {sent}");
    let queue = fabric.switch(0).queue(0, 3);
    // A pause of 100 quanta lasts 6.4 us and is repeated after 3.2.
    assert!((25..=30).contains(&queue.xoff_sent), "{}", queue.xoff_sent);
    assert_eq!(queue.xon_sent, 0);
    assert!(fabric.run(Nanos::from_millis(1)));
    assert_eq!(fabric.station(1).delivered, 40);
    let received = fabric.switch(0).queue(1, 3).pause_received;
    assert_eq!(received, RATE.pause(time[3]));
}

#[test]
fn other_priorities_continue_during_pause() {
    let mut fabric = heeding(2, lossless(2, pfc(540)), 540);
    let mut quanta = [0; 8];
    quanta[3] = 0xffff;
    fabric.send(Nanos(0), 1, &MacControl::Pfc { enable: 1 << 3, quanta }.build(mac(1)));
    fabric.run(Nanos(5_000));
    for tos in [TOS, 0, TOS, 0] {
        fabric.send(fabric.now(), 0, &frame(0, 1, LONGEST, tos));
    }
    fabric.run(Nanos(100_000));
    assert_eq!((fabric.station(1).delivered, fabric.switch(0).queue(1, 3).queued()), (2, 2));
    fabric.send(fabric.now(), 1, &MacControl::Pause { quanta: 0 }.build(mac(1)));
    fabric.run(Nanos(200_000));
    assert_eq!(fabric.station(1).delivered, 4, "a PAUSE of no time resumes all");
}

#[test]
fn station_ignoring_pauses_loses_frames() {
    let mut config = lossless(2, pfc(540));
    config.ports[1].link.rate.0 /= 4;
    let mut fabric = star(2, config);
    for _ in 0..100 {
        fabric.send(Nanos(0), 0, &frame(0, 1, LONGEST, TOS));
    }
    fabric.run(Nanos::from_millis(1));
    assert!(fabric.switch(0).queue(1, 3).drops.by(DropReason::Headroom) > 0);
    let (_, first) = fabric.take(0).expect("a frame of flow control");
    let received = MacControl::parse(&Frame::whole(&first));
    let mut quanta = [0; 8];
    quanta[3] = 0xffff;
    assert_eq!(received, Some(MacControl::Pfc { enable: 8, quanta }));
    assert_eq!(first[6..12], fabric.switch(0).config().mac);
}

#[test]
fn pause_frame_overtakes_the_queue() {
    let mut fabric = star(3, lossless(3, pfc(540)));
    // Station 2 keeps the line back to station 0 busy, in priority 7. Station 1 is paused, so that frames of station 0
    // accumulate.
    let mut quanta = [0; 8];
    quanta[3] = 0xffff;
    fabric.send(Nanos(0), 1, &MacControl::Pfc { enable: 1 << 3, quanta }.build(mac(1)));
    for _ in 0..40 {
        fabric.send(Nanos(0), 2, &frame(2, 0, LONGEST, 7 << 5));
        fabric.send(Nanos(0), 1, &frame(1, 0, LONGEST, 7 << 5));
    }
    fabric.run(Nanos(START));
    for _ in 0..12 {
        fabric.send(Nanos(START), 0, &frame(0, 1, LONGEST, TOS));
    }
    fabric.run(Nanos::from_millis(1));
    let crossed = START + 11 * WIRE + DELAY.0;
    let mut received = None;
    while let Some((time, frame)) = fabric.take(0) {
        if MacControl::parse(&Frame::whole(&frame)).is_some() {
            received.get_or_insert(time.0);
        }
    }
    let received = received.expect("a frame of flow control");
    // At most the frame on the line goes before it.
    assert!(
        (crossed + 84 + DELAY.0..=crossed + WIRE + 84 + DELAY.0).contains(&received),
        "{received}, crossed {crossed}"
    );
}

#[test]
fn pauses_spread_from_switch_to_switch() {
    use roxie_sim::fabric::{End, LinkConfig, Routing};
    // Station 0 - switch 0 - switch 1 - station 1 with a slow link.
    let mut remote = lossless(2, pfc(540));
    remote.ports[1].link = LinkConfig { rate: roxie_sim::fabric::LinkRate(RATE.0 / 8), ..link() };
    let at = |switch, port| End::Switch { switch, port };
    let mut ends = stations(2);
    ends[0].mac_pause = Some(MacPause { response: Some(Nanos(540)), priorities: PriorityMap::default() });
    let mut fabric = Fabric::new(FabricConfig {
        stations: ends,
        switches: vec![lossless(2, pfc(540)), remote],
        links: vec![[End::Station(0), at(0, 0)], [at(0, 1), at(1, 0)], [at(1, 1), End::Station(1)]],
        routing: Routing::ShortestPath,
        seed: 0,
    })
    .expect("a fabric");
    for _ in 0..300 {
        fabric.send(Nanos(0), 0, &frame(0, 1, LONGEST, TOS));
    }
    assert!(fabric.run(Nanos::from_millis(20)));
    assert_eq!(fabric.station(1).delivered, 300);
    let local = fabric.switch(0);
    assert!(local.queue(1, 3).pause_received > Nanos::ZERO && local.queue(0, 3).xoff_sent > 0);
    [0, 1].iter().for_each(|switch| assert_conserved(fabric.switch(*switch)));
}
