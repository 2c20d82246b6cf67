//! Huge pages that a test reserves while it runs.

use std::fs::{self, File};
use std::io;

use nix::fcntl::{Flock, FlockArg};

const NUMBER: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
const FREE: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages";

/// Reserves free huge pages of 2 MiB. Dropping the value restores the earlier number.
pub(crate) struct HugePages {
    before: u64,
    /// The number is system-wide: a lock makes tests of other processes wait, so that each finds the earlier number.
    _turn: Flock<File>,
}

impl HugePages {
    /// # Errors
    /// In words, if the system has no such pages, does not let this process reserve them, or has too little contiguous
    /// memory.
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
