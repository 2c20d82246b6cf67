//! Fast path and slow path of the NIC: the fast path handles SENDs and WRITEs without complications, the slow path everything.
//! A frame that fits both has the same effect.

use std::collections::BTreeMap;
use std::path::Path;

use roxie::transport::PlantedBug;

use crate::campaign::run;
use crate::generate;

const SEEDS: std::ops::RangeInclusive<u64> = 1..=150;

/// The capture of each host, and the counters.
type Record = (BTreeMap<String, Vec<u8>>, BTreeMap<&'static str, u64>);

fn record(seed: u64, way: Option<PlantedBug>) -> Record {
    let folder = tempfile::tempdir().expect("a folder");
    PlantedBug::plant(way);
    let outcome = run(&generate::script(seed), Some(folder.path()));
    PlantedBug::plant(None);
    (captures(folder.path()), outcome.unwrap_or_else(|why| panic!("seed {seed}: {why}")).counts)
}

fn captures(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry"));
    let read = |entry: std::fs::DirEntry| {
        (entry.file_name().to_string_lossy().into_owned(), std::fs::read(entry.path()).expect("a capture"))
    };
    entries.map(read).collect()
}

/// Frames, times, causes, verdicts, and counts are equal.
#[test]
fn fast_and_slow_path_are_equivalent() {
    let mut frames = 0;
    for seed in SEEDS {
        let (short, long) = (record(seed, None), record(seed, Some(PlantedBug::LongWay)));
        assert_eq!(short.1, long.1, "seed {seed}: what was counted");
        for (name, bytes) in &short.0 {
            let other = &long.0[name];
            let at = bytes.iter().zip(other).position(|(a, b)| a != b);
            assert!(bytes == other, "seed {seed}: captures {name} differ from byte {at:?} on");
        }
        frames += short.1.get("sent_pkts").copied().unwrap_or_default();
    }
    assert!(frames > 10_000, "{frames} frames are no comparison");
}
