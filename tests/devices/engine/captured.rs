//! A capture that is attached to an engine while it runs.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use roxie::capture::Reader;
use roxie::engine::{Drive, Engine};
use roxie::nic::NicConfig;
use roxie::port::memory::{MemoryConfig, pair};
use roxie::port::pcap::Recorder;

/// A stream in memory.
#[derive(Clone, Default)]
struct Stream(Arc<Mutex<Vec<u8>>>);

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn capture_stays_on_a_new_port_until_detached() {
    let (port, _link) = pair(MemoryConfig::default(), MemoryConfig::default());
    let engine = Engine::start(NicConfig::default(), Box::new(port), Drive::CallerOnly).unwrap();
    let name = || engine.inspect(|worker| worker.port().info().name.clone());
    let stream = Stream::default();
    let live = || Recorder::live("left", stream.clone(), 0).unwrap();
    assert!(engine.detach_capture().is_none());
    assert!(engine.attach_capture(live()).is_none());
    assert_eq!(name(), "pcap(memory)");
    let refused = engine.attach_capture(live());
    assert!(refused.is_some(), "one at a time");
    drop(refused);
    let (other, _link) = pair(MemoryConfig::default(), MemoryConfig::default());
    engine.set_port(Box::new(other)).unwrap();
    assert_eq!(name(), "pcap(memory)");
    stream.0.lock().unwrap().clear();
    let mut recorder = engine.detach_capture().expect("attached");
    assert_eq!(name(), "memory");
    assert!(engine.detach_capture().is_none());
    let progress = recorder.progress();
    recorder.close();
    let until = Instant::now() + Duration::from_secs(20);
    while !progress.has_ended() {
        assert!(Instant::now() < until, "it never ends");
        std::thread::yield_now();
    }
    assert!(!progress.has_failed() && !stream.0.lock().unwrap().is_empty(), "its end has statistics");
}

#[test]
fn live_capture_without_frames_is_a_whole_file() {
    let stream = Stream::default();
    let mut recorder = Recorder::live("left", stream.clone(), 0).unwrap();
    let progress = recorder.progress();
    recorder.close();
    while !progress.has_ended() {
        std::thread::yield_now();
    }
    let bytes = stream.0.lock().unwrap().clone();
    let mut reader = Reader::new(&bytes[..]).unwrap();
    assert!(reader.next().unwrap().is_none());
    assert!(bytes.ends_with(&roxie::capture::statistics_block(0, 0, 0, 0)[20..]), "none seen, none dropped");
}
