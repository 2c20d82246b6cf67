//! The user that pays for a process.
//!
//! A user with a range of subordinate users (subuid(5)) becomes any of them in a user namespace, so they count as this
//! user. Users in no range and in no directory of users, as root gives them to containers, count as one together, with
//! a small quota. Login IDs (`/proc/PID/loginuid`) do not help: most are unset in containers.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::SystemTime;

use nix::unistd::{Uid, User};

use roxie_base::threads::lock;

/// The payer of all users in no range and without a name: the number that is no user's.
pub(super) const UNLISTED: u32 = u32::MAX;
/// Users whose payers are remembered.
const REMEMBERED: usize = 4096;

/// Subordinate users: the first, their number, and their owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    first: u32,
    count: u32,
    owner: u32,
}

/// The ranges of a file, as of the time when it was changed.
#[derive(Debug, Default)]
struct Ranges {
    changed: Option<SystemTime>,
    all: Vec<Range>,
}

/// The payers of users.
#[derive(Debug)]
pub(super) struct Payers {
    /// `None`: each user pays for itself.
    file: Option<PathBuf>,
    ranges: Mutex<Ranges>,
    known: Mutex<HashMap<u32, u32>>,
}

impl Payers {
    /// Reads the ranges of a file in the form of `/etc/subuid`. A missing file has none. `None`: each user pays for
    /// itself.
    pub(super) fn new(file: Option<PathBuf>) -> Payers {
        let payers = Payers { file, ranges: Mutex::default(), known: Mutex::default() };
        payers.read_ranges();
        payers
    }

    fn read_ranges(&self) {
        let Some(file) = &self.file else { return };
        let changed = fs::metadata(file).and_then(|file| file.modified()).ok();
        if lock(&self.ranges).changed == changed {
            return;
        }
        let named = |name: &str| User::from_name(name).ok().flatten().map(|user| user.uid.as_raw());
        let all = parse(&fs::read_to_string(file).unwrap_or_default(), named);
        *lock(&self.ranges) = Ranges { changed, all };
        lock(&self.known).clear();
    }

    /// Returns the payer of a user as far as it is known without asking a directory of users, which may take seconds.
    pub(super) fn known(&self, uid: u32) -> u32 {
        if let Some(payer) = lock(&self.known).get(&uid) {
            return *payer;
        }
        in_ranges(&lock(&self.ranges).all, uid).unwrap_or(uid)
    }

    /// Returns the payer of a user. May take as long as a directory of users takes to answer.
    pub(super) fn of(&self, uid: u32) -> u32 {
        if self.file.is_none() {
            return uid;
        }
        self.read_ranges();
        if let Some(payer) = lock(&self.known).get(&uid) {
            return *payer;
        }
        let is_listed = || !matches!(User::from_uid(Uid::from_raw(uid)), Ok(None));
        let owner = in_ranges(&lock(&self.ranges).all, uid);
        let payer = owner.unwrap_or_else(|| if is_listed() { uid } else { UNLISTED });
        let mut known = lock(&self.known);
        if known.len() >= REMEMBERED {
            known.clear();
        }
        known.insert(uid, payer);
        payer
    }
}

/// Parses lines of owner, first user and count, such as `alice:100000:65536`. Ignores others.
fn parse(text: &str, named: impl Fn(&str) -> Option<u32>) -> Vec<Range> {
    let range = |line: &str| {
        let [owner, first, count] = <[&str; 3]>::try_from(line.split(':').collect::<Vec<_>>()).ok()?;
        let owner = owner.parse().ok().or_else(|| named(owner))?;
        Some(Range { first: first.trim().parse().ok()?, count: count.trim().parse().ok()?, owner })
    };
    text.lines().filter_map(range).collect()
}

fn in_ranges(ranges: &[Range], uid: u32) -> Option<u32> {
    let holds = |range: &&Range| uid.checked_sub(range.first).is_some_and(|at| at < range.count);
    ranges.iter().find(holds).map(|range| range.owner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subordinate_users_count_as_their_owner() {
        let named = |name: &str| (name == "alice").then_some(1000);
        let ranges = parse(
            "alice:100000:65536\n1001:165536:65536\n# a note\nnobody-known:300000:9\nalice:x:1\n::\n",
            named,
        );
        let of = |uid| in_ranges(&ranges, uid);
        assert_eq!((of(99_999), of(100_000), of(165_535)), (None, Some(1000), Some(1000)));
        assert_eq!((of(165_536), of(231_071), of(231_072)), (Some(1001), Some(1001), None));
        assert_eq!((of(300_000), of(0)), (None, None));
    }

    #[test]
    fn users_without_a_name_pay_together() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("subuid");
        let payers = Payers::new(Some(file.clone()));
        // No system gives these numbers to a user.
        let [one, other] = [3_999_999_001, 3_999_999_002];
        assert_eq!((payers.known(one), payers.of(0)), (one, 0));
        assert_eq!((payers.of(one), payers.of(other), payers.known(one)), (UNLISTED, UNLISTED, UNLISTED));
        fs::write(&file, format!("0:{one}:1\n")).expect("its own");
        assert_eq!((payers.of(one), payers.of(other)), (0, UNLISTED), "the file was read again");
        let chosen = Payers::new(None);
        assert_eq!((chosen.of(one), chosen.known(one)), (one, one), "each pays for itself");
    }
}
