//! Huge pages that the system sets aside while a test runs.

use std::fs::{self, File};
use std::io;

use nix::fcntl::{Flock, FlockArg};

const NUMBER: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
const FREE: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages";

/// Huge pages of 2 MiB of which so many are free. What was there before is there again when this is dropped.
pub(crate) struct HugePages {
    before: u64,
    /// The number is the whole system's: tests of other processes wait for their turn, so that each finds what was there before.
    _turn: Flock<File>,
}

impl HugePages {
    /// # Errors
    /// In words, if the system has no such pages, does not let this process set them aside, or has not the memory in one piece.
    pub(crate) fn reserve(wanted: u64) -> Result<HugePages, String> {
        let file = File::open(NUMBER).map_err(|e| format!("{NUMBER}: {e}"))?;
        let turn = Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, e)| format!("{NUMBER}: {e}"))?;
        let before = number(NUMBER).map_err(|e| format!("{NUMBER}: {e}"))?;
        let pages = HugePages { before, _turn: turn };
        let missing = wanted.saturating_sub(number(FREE).map_err(|e| format!("{FREE}: {e}"))?);
        if missing > 0 {
            fs::write(NUMBER, (before + missing).to_string()).map_err(|e| format!("{NUMBER}: {e}"))?;
        }
        match number(FREE) {
            Ok(free) if free >= wanted => Ok(pages),
            free => Err(format!("{FREE} says {free:?} after {wanted} were asked for")),
        }
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        if let Err(e) = fs::write(NUMBER, self.before.to_string()) {
            println!("{NUMBER} was {} and could not be set back: {e}", self.before);
        }
    }
}

fn number(path: &str) -> io::Result<u64> {
    fs::read_to_string(path)?.trim().parse().map_err(io::Error::other)
}
