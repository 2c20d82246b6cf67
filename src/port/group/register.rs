//! The roster, in memory that all members share, and its locks.
//!
//! A memfd holds two copies of the roster. A writer replaces the older copy, so if it is killed halfway, the newer one
//! stays whole; a checksum shows it. Open file description locks (OFD locks) guard the roster and show which members
//! live: the kernel releases a process's locks when it ends, for whatever reason.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use serde::Deserialize;

use super::SLOTS;
use roxie_base::roster::{GROUP_PROTOCOL, Roster};
use roxie_base::threads::lock;

/// Maximum number of bytes of each copy.
const COPY: u64 = 4 << 20;
/// Sequence number, length, checksum.
const HEADER: usize = 8 + 4 + 4;
/// Offset of the locks: bytes that are never written.
const LOCKS: i64 = 1 << 40;
/// How long to wait for a member that holds the roster. Holding takes microseconds, unless the member is stopped
/// (SIGSTOP) meanwhile.
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_micros(200);

/// The part of a roster that all versions have. Sequence number, length and checksum in front of it are the same in all
/// versions, too.
#[derive(Deserialize)]
struct Version {
    form: u32,
}

/// The roster of a group. See the module's page.
#[derive(Debug)]
pub(super) struct Register {
    /// The open file description that all members share, without locks.
    common: OwnedFd,
    /// A description of our own: locks belong to descriptions.
    file: File,
    /// Serializes the threads of this process, which share the description.
    turn: Mutex<()>,
}

impl Register {
    /// Makes a register with an empty roster.
    pub(super) fn create() -> io::Result<Register> {
        let common = memfd_create("roxie-group", MFdFlags::MFD_CLOEXEC)?;
        let register = Register::of(common)?;
        register.write(&Roster::new(SLOTS as u8), 1)?;
        Ok(register)
    }

    /// Opens the register behind a descriptor.
    pub(super) fn of(common: OwnedFd) -> io::Result<Register> {
        let path = format!("/proc/self/fd/{}", common.as_raw_fd());
        let file = File::options().read(true).write(true).open(path)?;
        Ok(Register { common, file, turn: Mutex::new(()) })
    }

    /// Returns both descriptors.
    pub(super) fn descriptors(&self) -> [RawFd; 2] {
        [self.common.as_raw_fd(), self.file.as_raw_fd()]
    }

    /// Returns the descriptor to pass to newcomers.
    pub(super) fn common(&self) -> BorrowedFd<'_> {
        self.common.as_fd()
    }

    /// Runs `act` on the roster while this process holds it, and writes it back if it changed.
    ///
    /// # Errors
    /// If the roster is not available: a member is stopped while it holds it, or the group is of another version.
    pub(super) fn with<R>(&self, act: impl FnOnce(&mut Roster) -> R) -> io::Result<R> {
        let _turn = lock(&self.turn);
        self.hold()?;
        self.held(act)
    }

    /// Runs `act` while this process holds the roster. Does not block.
    ///
    /// # Errors
    /// If another process or thread holds it.
    pub(super) fn try_hold<R>(&self, act: impl FnOnce() -> R) -> io::Result<R> {
        let _turn = self.turn.try_lock().map_err(|_| io::ErrorKind::WouldBlock)?;
        self.set_lock(libc::F_WRLCK, 0)?;
        let result = act();
        self.set_lock(libc::F_UNLCK, 0)?;
        Ok(result)
    }

    fn held<R>(&self, act: impl FnOnce(&mut Roster) -> R) -> io::Result<R> {
        let result = self.newest().and_then(|(sequence, before)| {
            let mut roster = before.clone();
            let result = act(&mut roster);
            if roster != before {
                self.write(&roster, sequence + 1)?;
            }
            Ok(result)
        });
        self.set_lock(libc::F_UNLCK, 0)?;
        result
    }

    /// Returns the sequence number of the newest copy, which differs if the roster does.
    pub(super) fn sequence(&self) -> io::Result<u64> {
        let [a, b] = [0, 1].map(|copy| self.header(copy).map(|(sequence, ..)| sequence));
        Ok(a?.max(b?))
    }

    /// Reads sequence number and roster, without a lock.
    pub(super) fn read(&self) -> io::Result<(u64, Roster)> {
        // A copy that is replaced while it is read fails its checksum; the other copy is not touched then.
        let until = Instant::now() + PATIENCE;
        loop {
            match self.newest() {
                Err(error) if error.kind() == io::ErrorKind::InvalidData && Instant::now() < until => {}
                other => return other,
            }
        }
    }

    /// Marks a slot as a living process's. False if another process has it.
    pub(super) fn occupy(&self, slot: u8) -> io::Result<bool> {
        match self.set_lock(libc::F_WRLCK, 1 + i64::from(slot)) {
            Ok(()) => Ok(true),
            Err(error) if is_taken(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Removes the mark of a slot.
    pub(super) fn vacate(&self, slot: u8) {
        let _ = self.set_lock(libc::F_UNLCK, 1 + i64::from(slot));
    }

    /// True if another process, or another member of this process, has the slot and lives.
    pub(super) fn is_occupied(&self, slot: u8) -> io::Result<bool> {
        let mut lock = region(libc::F_WRLCK, 1 + i64::from(slot));
        fcntl(&self.file, FcntlArg::F_OFD_GETLK(&mut lock))?;
        Ok(i32::from(lock.l_type) != libc::F_UNLCK)
    }

    fn hold(&self) -> io::Result<()> {
        let until = Instant::now() + PATIENCE;
        loop {
            match self.set_lock(libc::F_WRLCK, 0) {
                Err(error) if is_taken(&error) && Instant::now() < until => std::thread::sleep(LOOK),
                Err(error) if is_taken(&error) => {
                    return Err(io::Error::new(
                        io::ErrorKind::TimedOut,
                        "a process of the group has held its register for 10 s: it is stopped (ps shows T)",
                    ));
                }
                other => return other,
            }
        }
    }

    fn set_lock(&self, kind: i32, at: i64) -> io::Result<()> {
        fcntl(&self.file, FcntlArg::F_OFD_SETLK(&region(kind, at)))?;
        Ok(())
    }

    fn newest(&self) -> io::Result<(u64, Roster)> {
        let mut copies = [0, 1].map(|copy| self.copy(copy));
        // A copy of another version is an error, whatever the other copy is.
        copies.sort_by_key(|copy| match copy {
            Ok((sequence, _)) => *sequence,
            Err(error) if error.kind() == io::ErrorKind::InvalidData => 0,
            Err(_) => u64::MAX,
        });
        let [_, newest] = copies;
        newest
    }

    fn header(&self, copy: u64) -> io::Result<(u64, u32, u32)> {
        let mut header = [0; HEADER];
        // A copy that was never written reads as empty.
        let _ = self.file.read_at(&mut header, copy * COPY)?;
        let [s0, s1, s2, s3, s4, s5, s6, s7, l0, l1, l2, l3, c0, c1, c2, c3] = header;
        let sequence = u64::from_ne_bytes([s0, s1, s2, s3, s4, s5, s6, s7]);
        Ok((sequence, u32::from_ne_bytes([l0, l1, l2, l3]), u32::from_ne_bytes([c0, c1, c2, c3])))
    }

    fn copy(&self, copy: u64) -> io::Result<(u64, Roster)> {
        let torn =
            |why: &str| io::Error::new(io::ErrorKind::InvalidData, format!("the group's register: {why}"));
        let (sequence, length, sum) = self.header(copy)?;
        if u64::from(length) > COPY - HEADER as u64 {
            return Err(torn("a length beyond its size"));
        }
        let mut text = vec![0; length as usize];
        self.file.read_exact_at(&mut text, copy * COPY + HEADER as u64)?;
        if checksum(sequence, &text) != sum {
            return Err(torn("an incomplete copy"));
        }
        let Version { form } = serde_json::from_slice(&text).map_err(|error| torn(&error.to_string()))?;
        GROUP_PROTOCOL
            .check("this process", "the group of processes on this device", form)
            .map_err(io::Error::other)?;
        let roster = serde_json::from_slice(&text).map_err(|error| torn(&error.to_string()))?;
        Ok((sequence, roster))
    }

    fn write(&self, roster: &Roster, sequence: u64) -> io::Result<()> {
        let text = serde_json::to_vec(roster)?;
        if text.len() as u64 > COPY - HEADER as u64 {
            return Err(io::Error::new(io::ErrorKind::StorageFull, "the group's register is full"));
        }
        let at = sequence % 2 * COPY;
        let mut bytes = Vec::with_capacity(HEADER + text.len());
        bytes.extend(sequence.to_ne_bytes());
        bytes.extend((text.len() as u32).to_ne_bytes());
        bytes.extend(checksum(sequence, &text).to_ne_bytes());
        bytes.extend(text);
        self.file.write_all_at(&bytes, at)
    }
}

fn checksum(sequence: u64, text: &[u8]) -> u32 {
    let mut sum = crc32fast::Hasher::new();
    sum.update(&sequence.to_ne_bytes());
    sum.update(text);
    sum.finalize()
}

fn is_taken(error: &io::Error) -> bool {
    [Errno::EAGAIN, Errno::EACCES].iter().any(|errno| error.raw_os_error() == Some(*errno as i32))
}

/// Returns the lock of one byte, `at` bytes behind `LOCKS`.
fn region(kind: i32, at: i64) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: LOCKS + at,
        l_len: 1,
        l_pid: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use roxie_base::roster::Identity;

    fn another(register: &Register) -> Register {
        Register::of(register.common().try_clone_to_owned().unwrap()).unwrap()
    }

    fn enter(register: &Register, slot: u8) {
        register.with(|roster| roster.enter(slot, Identity { pid: 1, ..Identity::default() })).unwrap();
    }

    #[test]
    fn written_roster_is_read_by_other_members() {
        let one = Register::create().unwrap();
        let other = another(&one);
        let before = other.sequence().unwrap();
        enter(&one, 0);
        assert!(other.sequence().unwrap() > before);
        assert_eq!(other.with(|roster| roster.taken().collect::<Vec<_>>()).unwrap(), [0]);
        let still = other.sequence().unwrap();
        other.with(|_| ()).unwrap();
        assert_eq!(other.sequence().unwrap(), still, "nothing was changed, nothing is written");
    }

    #[test]
    fn interrupted_write_changes_nothing() {
        let register = Register::create().unwrap();
        enter(&register, 0);
        let (sequence, before) = register.read().unwrap();
        // Only the sequence number of the next copy is written.
        let next = (sequence + 1) % 2 * COPY;
        register.file.write_all_at(&(sequence + 1).to_ne_bytes(), next).unwrap();
        assert_eq!(register.newest().unwrap(), (sequence, before));
        enter(&register, 1);
        assert_eq!(register.read().unwrap().1.taken().count(), 2);
    }

    #[test]
    fn group_of_another_version_names_the_older() {
        for (form, older) in [(GROUP_PROTOCOL.oldest - 1, "update the group"), (99, "update this process")] {
            let register = Register::create().unwrap();
            // The rest has another form as well.
            let text = format!(r#"{{"form":{form},"slots":{{}},"leases":[]}}"#);
            let mut bytes = 8u64.to_ne_bytes().to_vec();
            bytes.extend((text.len() as u32).to_ne_bytes());
            bytes.extend(checksum(8, text.as_bytes()).to_ne_bytes());
            bytes.extend(text.as_bytes());
            register.file.write_all_at(&bytes, 0).unwrap();
            for error in [register.read().unwrap_err(), register.with(|_| ()).unwrap_err()] {
                let message = error.to_string();
                assert!(message.contains(&format!("version {form} of the group protocol")), "{message}");
                assert!(message.contains(older), "{message}");
            }
        }
    }

    #[test]
    fn slot_is_exclusive_until_its_description_closes() {
        let one = Register::create().unwrap();
        let other = another(&one);
        assert!(one.occupy(3).unwrap());
        assert!(!other.occupy(3).unwrap() && other.is_occupied(3).unwrap());
        assert!(!other.is_occupied(4).unwrap());
        let third = another(&other);
        drop(one);
        assert!(!third.is_occupied(3).unwrap() && third.occupy(3).unwrap());
    }

    #[test]
    fn concurrent_writes_are_serialized() {
        let one = Register::create().unwrap();
        std::thread::scope(|scope| {
            for slot in 0..8 {
                let register = another(&one);
                scope.spawn(move || enter(&register, slot));
            }
        });
        assert_eq!(one.read().unwrap().1.taken().count(), 8);
    }
}
