//! The fast path and the slow path through the NIC must give the same result for every frame that could take either.

use std::collections::BTreeMap;
use std::path::Path;

use roxie::transport::PlantedBug;

use crate::campaign::run;
use crate::generate;

const SEEDS: std::ops::RangeInclusive<u64> = 1..=150;

/// The capture of each host, and the counts.
type Record = (BTreeMap<String, Vec<u8>>, BTreeMap<&'static str, u64>);

fn record(seed: u64, path: Option<PlantedBug>) -> Record {
    let folder = tempfile::tempdir().expect("a folder");
    PlantedBug::plant(path);
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

/// Runs seeds on either path and compares frames, times, comments and counts.
#[test]
fn fast_path_and_slow_path_agree() {
    let mut frames = 0;
    for seed in SEEDS {
        let (fast, slow) = (record(seed, None), record(seed, Some(PlantedBug::LongWay)));
        assert_eq!(fast.1, slow.1, "seed {seed}: counts");
        for (name, bytes) in &fast.0 {
            let other = &slow.0[name];
            let at = bytes.iter().zip(other).position(|(a, b)| a != b);
            assert!(bytes == other, "seed {seed}: captures {name} differ from byte {at:?} on");
        }
        frames += fast.1.get("sent_pkts").copied().unwrap_or_default();
    }
    assert!(frames > 10_000, "{frames} frames are no comparison");
}
