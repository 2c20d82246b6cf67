//! A log of failed calls and their reasons, in shared memory that outlives the program.
//!
//! A launcher [creates](EventLog::create) the memory and passes its path on. The program's library writes a line for
//! each call that failed ([`EventLog::note`]), whether or not it is ever read. When the program has ended, the launcher
//! reads the newest lines.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use roxie_base::protocol::Protocol;
use roxie_base::text::Plain;
use roxie_nic::shared::Region;

/// Number of lines kept: the newest.
pub const EVENTS: usize = 64;
/// 64-bit words of a line: its number, its length with a flag, its bytes.
const EVENT: usize = 64;
/// Words before the text.
const HEAD: usize = 2;
/// Bytes of text; longer lines are cut.
const TEXT: usize = (EVENT - HEAD) * 8;
/// Flag next to the length: the line was also written to standard error.
const SAID: u64 = 1 << 32;
/// The layout of the memory. Version 0: launchers that name none.
const EVENT_LOG_PROTOCOL: Protocol = Protocol { name: "event log", oldest: 0, version: 1 };
/// Words before the lines. The first one counts all lines ever written, the second one is the version, in all versions.
const COUNT: usize = 8;
const WORDS: usize = COUNT + EVENTS * EVENT;

/// The log.
#[derive(Debug)]
pub struct EventLog {
    region: Arc<Region>,
}

/// The descriptor of the log's memory. Other processes can open its path while this value exists.
#[derive(Debug)]
pub struct SharedPath(OwnedFd);

impl SharedPath {
    /// The path for other processes of this user.
    pub fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd()).into()
    }
}

/// A line of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggedEvent {
    /// The call, and why it failed.
    pub text: String,
    /// True if the line was written to standard error when the call failed.
    pub printed: bool,
}

impl EventLog {
    /// Creates an empty log, and its path for other processes.
    ///
    /// # Errors
    /// If the system is out of memory or descriptors.
    pub fn create() -> io::Result<(EventLog, SharedPath)> {
        let (region, fd) = Region::shared(WORDS)?;
        region.words()[1].store(EVENT_LOG_PROTOCOL.version.into(), Relaxed);
        Ok((EventLog { region }, SharedPath(fd)))
    }

    /// Opens a log that another process created.
    ///
    /// # Errors
    /// If there is no log at `path`. `InvalidData` if the launcher made one of a version that this library does not
    /// write.
    pub fn open(path: &Path) -> io::Result<EventLog> {
        let file = File::options().read(true).write(true).open(path)?;
        let mut version = [0; 8];
        file.read_exact_at(&mut version, 8)?;
        EVENT_LOG_PROTOCOL
            .check("the library", "the launcher", u64::from_ne_bytes(version).try_into().unwrap_or(u32::MAX))
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        Ok(EventLog { region: Region::map(file.as_fd(), WORDS)? })
    }

    /// Adds a line, unless it equals the last one. `printed`: the line is already on standard error.
    pub fn note(&self, text: &str, printed: bool) {
        let words = self.region.words();
        if self.newest(1).first().is_some_and(|last| last.text == text) {
            return;
        }
        let number = words[0].fetch_add(1, Relaxed);
        let event = event(words, number);
        let end = (0..=TEXT).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        let bytes = &text.as_bytes()[..end];
        event[1].store(bytes.len() as u64 | if printed { SAID } else { 0 }, Relaxed);
        for (word, chunk) in event[HEAD..].iter().zip(bytes.chunks(8)) {
            let mut eight = [0; 8];
            eight[..chunk.len()].copy_from_slice(chunk);
            word.store(u64::from_ne_bytes(eight), Relaxed);
        }
        event[0].store(number.wrapping_add(1), Release);
    }

    /// Returns the newest lines, up to `count`, oldest first.
    pub fn newest(&self, count: usize) -> Vec<LoggedEvent> {
        let words = self.region.words();
        let end = words[0].load(Relaxed);
        let first = end.saturating_sub(count.min(EVENTS) as u64);
        (first..end).filter_map(|number| read(event(words, number), number)).collect()
    }
}

fn event(words: &[AtomicU64], number: u64) -> &[AtomicU64] {
    let at = COUNT + (number % EVENTS as u64) as usize * EVENT;
    &words[at..at + EVENT]
}

/// Reads a line. `None`: its writer did not complete it.
fn read(event: &[AtomicU64], number: u64) -> Option<LoggedEvent> {
    if event[0].load(Acquire) != number.wrapping_add(1) {
        return None;
    }
    let state = event[1].load(Relaxed);
    let bytes: Vec<u8> = event[HEAD..].iter().flat_map(|word| word.load(Relaxed).to_ne_bytes()).collect();
    let length = (state as u32 as usize).min(bytes.len());
    let text = String::from_utf8_lossy(&bytes[..length]);
    // A program may have written anything here.
    let text = Plain(text).to_string();
    Some(LoggedEvent { text, printed: state & SAID != 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(log: &EventLog, count: usize) -> Vec<String> {
        log.newest(count).into_iter().map(|event| event.text).collect()
    }

    #[test]
    fn newest_lines_are_read_in_order() {
        let (log, path) = EventLog::create().unwrap();
        let writer = EventLog::open(&path.path()).unwrap();
        assert_eq!(log.newest(8), []);
        writer.note("ibv_modify_qp: missing AV", false);
        writer.note("ibv_create_qp: no send_cq", true);
        let event = |text: &str, printed| LoggedEvent { text: text.into(), printed };
        let both = [event("ibv_modify_qp: missing AV", false), event("ibv_create_qp: no send_cq", true)];
        assert_eq!(log.newest(8), both);
        assert_eq!(log.newest(1), both[1..]);
        writer.note("ibv_create_qp: no send_cq", true);
        assert_eq!(log.newest(8), both, "a repeated line is not added");
        (0..2 * EVENTS).for_each(|n| writer.note(&n.to_string(), false));
        assert_eq!(texts(&log, usize::MAX).len(), EVENTS);
        assert_eq!(texts(&log, 2), ["126", "127"]);
    }

    #[test]
    fn log_of_another_version_is_not_written() {
        let (log, path) = EventLog::create().unwrap();
        for (version, is_known) in [(0, true), (1, true), (2, false)] {
            log.region.words()[1].store(version, Relaxed);
            match EventLog::open(&path.path()) {
                Ok(_) => assert!(is_known, "{version}"),
                Err(error) => {
                    assert!(!is_known && error.to_string().ends_with("update the library"), "{error}")
                }
            }
        }
    }

    #[test]
    fn long_lines_are_cut_between_characters() {
        let (log, _path) = EventLog::create().unwrap();
        log.note(&"\u{e4}".repeat(400), false);
        log.note(&format!("x{}", "\u{e4}".repeat(400)), false);
        let lengths: Vec<_> = texts(&log, 2).iter().map(String::len).collect();
        assert_eq!(lengths, [TEXT, TEXT - 1]);
    }

    #[test]
    fn corrupt_lines_are_bounded_and_lose_control_characters() {
        let (log, _path) = EventLog::create().unwrap();
        log.note("\u{1b}[2Jgone", false);
        assert_eq!(texts(&log, 1), ["\u{fffd}[2Jgone"]);
        let words = log.region.words();
        words[COUNT + 1].store(u64::MAX, Relaxed);
        words[COUNT + HEAD].store(u64::MAX, Relaxed);
        assert!(texts(&log, 1)[0].starts_with('\u{fffd}'));
        words[0].store(u64::MAX, Relaxed);
        assert_eq!(texts(&log, 8), [""; 0]);
    }
}
