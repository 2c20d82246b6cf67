//! File handles of a server: a bounded table of paths, and a secret for each, so that a client cannot guess one.

use std::collections::HashMap;

use roxie::random::unguessable;

use crate::nfs3::{FileHandle, Status};

/// Files that have a handle at most. Behind them, files that were not used for the longest time lose theirs.
pub const MOST_HANDLES: usize = 65_536;
/// First bytes of each handle.
const MARK: u32 = 0x7278_6e66;
/// Bytes of a handle: the mark, the number of the entry, the secret.
const LENGTH: usize = 24;

/// Identity of a file. A later file with the same inode number has another one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) device: u64,
    pub(super) inode: u64,
    /// Type bits of the mode.
    pub(super) kind: u32,
    /// Time of birth, in seconds and nanoseconds; zero where the file system knows none.
    pub(super) birth: (i64, u32),
}

#[derive(Debug)]
struct Entry {
    /// Path below the exported folder; empty: the folder.
    path: Vec<u8>,
    identity: Identity,
    secret: u128,
    /// Used since the last search for a place.
    is_used: bool,
}

/// Handles that clients have.
#[derive(Debug)]
pub(super) struct Handles {
    entries: Vec<Entry>,
    by_path: HashMap<Vec<u8>, usize>,
    most: usize,
    /// The next entry that may lose its place. The root, 0, keeps its own.
    hand: usize,
}

impl Handles {
    /// Makes a table with the root, with `most` entries at most.
    pub(super) fn new(root: Identity, most: usize) -> Handles {
        let mut handles =
            Handles { entries: Vec::new(), by_path: HashMap::new(), most: most.max(2), hand: 1 };
        handles.handle(b"", root);
        handles
    }

    /// Returns the handle of a file. A file at the path of another one, which is gone, has a new handle.
    pub(super) fn handle(&mut self, path: &[u8], identity: Identity) -> FileHandle {
        let index = match self.by_path.get(path) {
            Some(index) => *index,
            None => self.place(path),
        };
        let entry = &mut self.entries[index];
        entry.is_used = true;
        if entry.identity != identity {
            entry.identity = identity;
            entry.secret = secret();
        }
        let mut bytes = [0; LENGTH];
        bytes[..4].copy_from_slice(&MARK.to_be_bytes());
        bytes[4..8].copy_from_slice(&(index as u32).to_be_bytes());
        bytes[8..].copy_from_slice(&entry.secret.to_be_bytes());
        FileHandle::new(&bytes).expect("24 bytes")
    }

    /// Makes an entry, at the end or in place of one that was not used lately. Returns its number.
    fn place(&mut self, path: &[u8]) -> usize {
        // No file has the identity: the caller sets it.
        let identity = Identity::default();
        let entry = Entry { path: path.to_vec(), identity, secret: secret(), is_used: true };
        let index = if self.entries.len() < self.most {
            self.entries.push(entry);
            self.entries.len() - 1
        } else {
            // Two rounds at most: the first clears all marks.
            while std::mem::take(&mut self.entries[self.hand].is_used) {
                self.advance();
            }
            let index = self.hand;
            self.advance();
            self.by_path.remove(&self.entries[index].path);
            self.entries[index] = entry;
            index
        };
        self.by_path.insert(path.to_vec(), index);
        index
    }

    fn advance(&mut self) {
        self.hand = if self.hand + 1 == self.entries.len() { 1 } else { self.hand + 1 };
    }

    /// Returns path and identity of the file that a handle names.
    pub(super) fn find(&mut self, handle: &FileHandle) -> Result<(Vec<u8>, Identity), Status> {
        let bytes: &[u8; LENGTH] = handle.bytes().try_into().map_err(|_| Status::BADHANDLE)?;
        let word = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        if word(0) != MARK {
            return Err(Status::BADHANDLE);
        }
        let secret = bytes[8..].iter().fold(0, |all: u128, byte| all << 8 | u128::from(*byte));
        let entry = self.entries.get_mut(word(4) as usize).filter(|entry| entry.secret == secret);
        let entry = entry.ok_or(Status::STALE)?;
        entry.is_used = true;
        Ok((entry.path.clone(), entry.identity))
    }
}

fn secret() -> u128 {
    u128::from(unguessable()) << 64 | u128::from(unguessable())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(inode: u64) -> Identity {
        Identity { device: 1, inode, kind: 0o100_000, birth: (1, 2) }
    }

    #[test]
    fn handles_name_their_files() {
        let mut handles = Handles::new(file(1), 10);
        let one = handles.handle(b"one", file(2));
        assert_eq!(handles.find(&one), Ok((b"one".to_vec(), file(2))));
        assert_eq!(handles.handle(b"one", file(2)), one);
        // Another file at the path, with the number of the former.
        let other = handles.handle(b"one", Identity { birth: (1, 3), ..file(2) });
        assert_eq!((handles.find(&one), handles.find(&other).is_ok()), (Err(Status::STALE), true));
    }

    #[test]
    fn forged_handles_name_no_file() {
        let mut handles = Handles::new(file(1), 10);
        let one = handles.handle(b"one", file(2));
        for at in 0..LENGTH {
            let mut bytes = one.bytes().to_vec();
            bytes[at] ^= 1;
            let forged = FileHandle::new(&bytes).expect("short enough");
            assert!(handles.find(&forged).is_err(), "byte {at}");
        }
        // Of another run of the server.
        let mut again = Handles::new(file(1), 10);
        again.handle(b"one", file(2));
        assert_eq!(again.find(&one), Err(Status::STALE));
        assert_eq!(handles.find(&FileHandle::new(b"short").expect("short enough")), Err(Status::BADHANDLE));
    }

    #[test]
    fn full_table_evicts_what_was_not_used() {
        let mut handles = Handles::new(file(1), 4);
        let root = handles.handle(b"", file(1));
        let of = |handles: &mut Handles, n: u64| handles.handle(n.to_string().as_bytes(), file(n));
        let mut last = Vec::new();
        for n in 10..1000 {
            last.push(of(&mut handles, n));
            assert!(handles.find(&root).is_ok() && handles.entries.len() <= 4);
            assert_eq!(handles.by_path.len(), handles.entries.len());
        }
        let known = last.iter().filter(|handle| handles.find(handle).is_ok()).count();
        assert_eq!(known, 3);
    }
}
