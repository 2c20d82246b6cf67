//! The roster in memory that all members have, and its locks.
//!
//! A file without a name holds the roster twice. A writer replaces the older copy, so one that is killed in the middle leaves the
//! newer one whole; a checksum tells. Locks of open file descriptions guard it, and say who lives: the kernel takes them back from a
//! process that ends, however it ends.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};

use super::SLOTS;
use crate::roster::{FORM, Roster};
use crate::threads::lock;

/// Bytes of each copy at most.
const COPY: u64 = 4 << 20;
/// Sequence number, length, checksum.
const HEADER: usize = 8 + 4 + 4;
/// Where locks are: bytes that are never written.
const LOCKS: i64 = 1 << 40;
/// How long a member may hold the roster. It takes microseconds; one that was stopped in the middle holds up those that come and go.
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_micros(200);

/// See the module's page.
#[derive(Debug)]
pub(super) struct Register {
    /// The description that everybody was given, with no lock on it.
    common: OwnedFd,
    /// One of our own: locks belong to descriptions.
    file: File,
    /// Threads of this process, which have the description in common.
    turn: Mutex<()>,
}

impl Register {
    /// With nobody in it.
    pub(super) fn create() -> io::Result<Register> {
        let common = memfd_create("roxie-group", MFdFlags::MFD_CLOEXEC)?;
        let register = Register::of(common)?;
        register.write(&Roster::new(SLOTS as u8), 1)?;
        Ok(register)
    }

    /// The one behind a descriptor.
    pub(super) fn of(common: OwnedFd) -> io::Result<Register> {
        let path = format!("/proc/self/fd/{}", common.as_raw_fd());
        let file = File::options().read(true).write(true).open(path)?;
        Ok(Register { common, file, turn: Mutex::new(()) })
    }

    /// Both descriptors.
    pub(super) fn descriptors(&self) -> [RawFd; 2] {
        [self.common.as_raw_fd(), self.file.as_raw_fd()]
    }

    /// What others find it by.
    pub(super) fn common(&self) -> BorrowedFd<'_> {
        self.common.as_fd()
    }

    /// Looks at the roster, and changes it.
    ///
    /// # Errors
    /// If it cannot be had: somebody stopped in the middle, or of another form.
    pub(super) fn with<R>(&self, act: impl FnOnce(&mut Roster) -> R) -> io::Result<R> {
        let _turn = lock(&self.turn);
        self.hold()?;
        self.held(act)
    }

    /// Runs `act` while this process holds the roster, and does not wait for that.
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

    /// The number of the newest copy: another one, another roster.
    pub(super) fn sequence(&self) -> io::Result<u64> {
        let [a, b] = [0, 1].map(|copy| self.header(copy).map(|(sequence, ..)| sequence));
        Ok(a?.max(b?))
    }

    /// The roster as it is, without waiting for anybody.
    pub(super) fn read(&self) -> io::Result<(u64, Roster)> {
        // A copy that is being replaced while it is read does not fit its checksum; the other one is not touched then.
        let until = Instant::now() + PATIENCE;
        loop {
            match self.newest() {
                Err(error) if error.kind() == io::ErrorKind::InvalidData && Instant::now() < until => {}
                other => return other,
            }
        }
    }

    /// Marks a slot as that of a process that lives. False: another one has it.
    pub(super) fn occupy(&self, slot: u8) -> io::Result<bool> {
        match self.set_lock(libc::F_WRLCK, 1 + i64::from(slot)) {
            Ok(()) => Ok(true),
            Err(error) if is_taken(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Takes that back.
    pub(super) fn vacate(&self, slot: u8) {
        let _ = self.set_lock(libc::F_UNLCK, 1 + i64::from(slot));
    }

    /// True if another process, or another member of this one, has it and lives.
    pub(super) fn is_occupied(&self, slot: u8) -> io::Result<bool> {
        let mut found = region(libc::F_WRLCK, 1 + i64::from(slot));
        fcntl(&self.file, FcntlArg::F_OFD_GETLK(&mut found))?;
        Ok(i32::from(found.l_type) != libc::F_UNLCK)
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
        copies.sort_by_key(|copy| copy.as_ref().map_or(0, |(sequence, _)| *sequence));
        let [_, newest] = copies;
        newest
    }

    fn header(&self, copy: u64) -> io::Result<(u64, u32, u32)> {
        let mut header = [0; HEADER];
        // A copy that was never written is empty.
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
            return Err(torn("a length beyond its room"));
        }
        let mut text = vec![0; length as usize];
        self.file.read_exact_at(&mut text, copy * COPY + HEADER as u64)?;
        if checksum(sequence, &text) != sum {
            return Err(torn("a copy that is not whole"));
        }
        let roster: Roster = serde_json::from_slice(&text).map_err(|error| torn(&error.to_string()))?;
        if roster.form != FORM {
            let why = "processes of this group have another release of Roxie: end them first, or use the same release";
            return Err(io::Error::other(why));
        }
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

/// One byte of the locks.
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
    use crate::roster::Identity;

    fn another(register: &Register) -> Register {
        Register::of(register.common().try_clone_to_owned().unwrap()).unwrap()
    }

    fn enter(register: &Register, slot: u8) {
        register.with(|roster| roster.enter(slot, Identity { pid: 1, ..Identity::default() })).unwrap();
    }

    #[test]
    fn what_one_member_writes_another_reads() {
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
    fn a_writer_that_dies_in_the_middle_has_changed_nothing() {
        let register = Register::create().unwrap();
        enter(&register, 0);
        let (sequence, before) = register.read().unwrap();
        // The next copy, cut short.
        let next = (sequence + 1) % 2 * COPY;
        register.file.write_all_at(&(sequence + 1).to_ne_bytes(), next).unwrap();
        assert_eq!(register.newest().unwrap(), (sequence, before));
        enter(&register, 1);
        assert_eq!(register.read().unwrap().1.taken().count(), 2);
    }

    #[test]
    fn a_slot_is_one_members_until_its_description_is_closed() {
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
    fn members_that_write_at_the_same_time_do_so_one_after_the_other() {
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
