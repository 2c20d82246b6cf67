use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use super::*;
use crate::loopback::LoopbackPort;
use crate::memory::{self, MemoryConfig, MemoryPort};

/// A file that tests read while it is written, and that fails on request.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<(Vec<u8>, bool)>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut file = self.0.lock().unwrap();
        if file.1 {
            return Err(io::Error::other("disk full"));
        }
        file.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns (timestamp, frame, options) of each enhanced packet block, found by the block lengths alone.
fn packets(file: &Shared) -> Vec<(u64, Vec<u8>, Vec<u8>)> {
    let bytes = file.0.lock().unwrap().0.clone();
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let (mut at, mut all) = (0, Vec::new());
    while at < bytes.len() {
        let len = word(at + 4) as usize;
        if word(at) == 6 {
            let time = u64::from(word(at + 12)) << 32 | u64::from(word(at + 16));
            let frame_len = word(at + 20) as usize;
            let options = at + 28 + frame_len.next_multiple_of(4);
            let frame = bytes[at + 28..at + 28 + frame_len].to_vec();
            all.push((time, frame, bytes[options..at + len - 4].to_vec()));
        }
        at += len;
    }
    all
}

fn contains(options: &[u8], text: &str) -> bool {
    options.windows(text.len()).any(|w| w == text.as_bytes())
}

fn capture(max_bytes: Option<u64>) -> (PcapPort<MemoryPort, Shared>, MemoryPort, Shared) {
    let file = Shared::default();
    let (a, b) =
        memory::pair(MemoryConfig { split: Some(3), ..MemoryConfig::default() }, MemoryConfig::default());
    let port = PcapPort::new(a, file.clone(), Timestamps::Virtual, max_bytes).expect("a capture");
    (port, b, file)
}

fn send(port: &mut impl Port, bytes: &[u8], note: Option<&str>) {
    let id = port.tx_alloc(bytes.len()).expect("room");
    port.tx_frame(&id).write(0, bytes);
    if let Some(note) = note {
        port.tx_note(&id, format_args!("{note}"));
    }
    port.tx_commit(id);
}

#[test]
fn both_directions_are_captured_with_notes_and_times() {
    let (mut a, mut b, file) = capture(None);
    assert!(a.wants_notes());
    a.rx_burst(Nanos(1_000));
    a.rx_release();
    send(&mut a, b"leaves", Some("retransmit: PSN 1042, try 2 of 7"));
    a.set_now(Nanos(1_400));
    send(&mut a, b"without", None);
    a.tx_flush(Nanos(1_500)).unwrap();
    send(&mut b, b"arrives", None);
    b.tx_flush(Nanos::ZERO).unwrap();
    assert_eq!(a.rx_burst(Nanos(2_000)), 1);
    a.rx_note(0, format_args!("duplicate"));
    a.rx_note(0, format_args!("acknowledged again"));
    assert_eq!(packets(&file).len(), 2, "received frames wait for their notes");
    a.rx_release();
    let all = packets(&file);
    let frames: Vec<_> = all.iter().map(|p| (p.0, &p.1[..])).collect();
    assert_eq!(frames, [(1_000, &b"leaves"[..]), (1_400, b"without"), (2_000, b"arrives")]);
    assert!(contains(&all[0].2, "retransmit: PSN 1042, try 2 of 7"));
    assert!(!contains(&all[1].2, "retransmit"), "a note stays with its frame");
    assert!(contains(&all[2].2, "duplicate; acknowledged again"));
    assert_eq!(b.rx_burst(Nanos::ZERO), 2, "traffic passes");
}

#[test]
fn cancelled_frames_notes_are_discarded() {
    let (mut a, _b, file) = capture(None);
    let id = a.tx_alloc(4).unwrap();
    a.tx_note(&id, format_args!("never sent"));
    a.tx_cancel(id);
    a.tx_flush(Nanos::ZERO).unwrap();
    send(&mut a, b"next", None);
    let all = packets(&file);
    assert!(all.len() == 1 && !contains(&all[0].2, "never sent"));
}

#[test]
fn a_full_disk_is_counted_and_stops_nothing() {
    let (mut a, mut b, file) = capture(None);
    file.0.lock().unwrap().1 = true;
    for _ in 0..3 {
        send(&mut a, b"x", None);
    }
    a.tx_flush(Nanos::ZERO).unwrap();
    assert_eq!(b.rx_burst(Nanos::ZERO), 3);
    let mut counters = Vec::new();
    a.counters(&mut counters);
    assert!(counters.contains(&("pcap_write_errors", 3)) && counters.contains(&("pcap_packets", 0)));
}

#[test]
fn slow_readers_lost_frames_are_counted_and_noted() {
    /// A writer that has no room on request.
    #[derive(Clone, Default)]
    struct Slow(Shared);
    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.write(bytes).map_err(|_| io::ErrorKind::WouldBlock.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let (a, _b) = memory::pair(MemoryConfig::default(), MemoryConfig::default());
    let file = Slow::default();
    let mut a = PcapPort::new(a, file.clone(), Timestamps::Virtual, None).expect("a capture");
    let full = |is| file.0.0.lock().unwrap().1 = is;
    full(true);
    send(&mut a, b"one", Some("lost"));
    send(&mut a, b"two", None);
    full(false);
    send(&mut a, b"three", Some("kept"));
    send(&mut a, b"four", None);
    let all = packets(&file.0);
    assert_eq!(all.iter().map(|p| &p.1[..]).collect::<Vec<_>>(), [&b"three"[..], b"four"]);
    assert!(contains(&all[0].2, "capture: 2 frames before this one were not written; kept"));
    assert!(!contains(&all[1].2, "capture:"), "once is enough");
    let mut counters = Vec::new();
    a.counters(&mut counters);
    assert!(counters.contains(&("pcap_skipped", 2)) && counters.contains(&("pcap_write_errors", 0)));
}

#[test]
fn capture_limit_does_not_stop_traffic() {
    let (mut a, mut b, file) = capture(Some(1_000));
    for _ in 0..10 {
        send(&mut a, &[7; 200], None);
    }
    send(&mut a, &[7; 1], None);
    a.tx_flush(Nanos::ZERO).unwrap();
    assert_eq!(packets(&file).len(), 4);
    assert_eq!(b.rx_burst(Nanos::ZERO), 11);
    let mut counters = Vec::new();
    a.counters(&mut counters);
    assert!(counters.contains(&("pcap_skipped", 7)));
}

#[test]
fn wall_clock_stamps_follow_the_port_clock() {
    let file = Shared::default();
    let (a, _b) = memory::pair(MemoryConfig::default(), MemoryConfig::default());
    let mut a = PcapPort::new(a, file.clone(), Timestamps::WallClock, None).expect("a capture");
    for now in [Nanos::from_millis(10), Nanos::from_millis(35)] {
        a.rx_burst(now);
        a.rx_release();
        send(&mut a, b"x", None);
    }
    let all = packets(&file);
    let today = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    assert!(today.abs_diff(all[0].0) < 60_000_000_000, "within a minute of the time of day");
    assert_eq!(all[1].0 - all[0].0, 25_000_000);
}

#[test]
fn groups_and_flows_reach_the_port_below() {
    let (a, _b) = memory::pair(MemoryConfig::default(), MemoryConfig::default());
    let mut a = PcapPort::new(LoopbackPort::new(a, 8), Shared::default(), Timestamps::Virtual, None).unwrap();
    // A port that carries RoCE alone refuses, which is what a layer says that does not ask.
    a.steer(&[]).expect("a port in memory carries any frames");
    // Frames to a joined group return: destination 01:00:5e:01:02:03 of 239.1.2.3 (RFC 1112).
    let frame = [&[1, 0, 0x5e, 1, 2, 3][..], &[0; 54]].concat();
    let returned = |a: &mut PcapPort<_, _>| {
        send(a, &frame, None);
        a.tx_flush(Nanos::ZERO).unwrap();
        let count = a.rx_burst(Nanos::ZERO);
        a.rx_release();
        count
    };
    let group = std::net::IpAddr::from([239, 1, 2, 3]);
    assert_eq!(returned(&mut a), 0);
    a.join(group).unwrap();
    assert_eq!(returned(&mut a), 1);
    a.leave(group);
    assert_eq!(returned(&mut a), 0);
}

#[test]
fn layer_that_is_taken_off_leaves_the_port() {
    let (a, mut b, file) = capture(None);
    let (mut below, recorder) = a.into_parts();
    drop(recorder);
    send(&mut below, b"uncaptured", None);
    below.tx_flush(Nanos::ZERO).unwrap();
    assert_eq!((b.rx_burst(Nanos::ZERO), packets(&file).len()), (1, 0));
    assert_eq!(below.info().name, "memory");
}
