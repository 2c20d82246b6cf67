//! What a program was refused and why, in memory that outlives it.
//!
//! A launcher [makes](EventLog::create) it and hands on its path; the program's library writes a line for each call that failed
//! ([`EventLog::note`]), whether or not anybody wants to see them. When the program has ended, the launcher reads the newest.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use super::estate::SharedPath;
use crate::shared::Region;

/// Lines that are kept: the newest.
pub const EVENTS: usize = 64;
/// 64-bit words of each: its number, its length and whether it was said, its bytes.
const EVENT: usize = 64;
/// Words before the text.
const HEAD: usize = 2;
/// Bytes of text; longer lines are cut.
const TEXT: usize = (EVENT - HEAD) * 8;
/// Beside the length: it stood on standard error when it happened.
const SAID: u64 = 1 << 32;
/// The first words: how many lines there were.
const COUNT: usize = 8;
const WORDS: usize = COUNT + EVENTS * EVENT;

/// See the module's page.
#[derive(Debug)]
pub struct EventLog {
    region: Arc<Region>,
}

/// A line of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggedEvent {
    /// Which call, and why it failed.
    pub text: String,
    /// It stood on standard error when it happened.
    pub said: bool,
}

impl EventLog {
    /// An empty one, and what others find it by.
    ///
    /// # Errors
    /// If the system has no memory or descriptor for it.
    pub fn create() -> io::Result<(EventLog, SharedPath)> {
        let (region, fd) = Region::shared(WORDS)?;
        Ok((EventLog { region }, SharedPath::of(fd)))
    }

    /// One that another process made.
    ///
    /// # Errors
    /// If there is none at `path`.
    pub fn open(path: &Path) -> io::Result<EventLog> {
        let file = File::options().read(true).write(true).open(path)?;
        Ok(EventLog { region: Region::map(file.as_fd(), WORDS)? })
    }

    /// Adds a line, unless it is the same as the last. `said`: it stands on standard error already.
    pub fn note(&self, text: &str, said: bool) {
        let words = self.region.words();
        if self.newest(1).first().is_some_and(|last| last.text == text) {
            return;
        }
        let number = words[0].fetch_add(1, Relaxed);
        let event = event(words, number);
        let end = (0..=TEXT).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        let bytes = &text.as_bytes()[..end];
        event[1].store(bytes.len() as u64 | if said { SAID } else { 0 }, Relaxed);
        for (word, chunk) in event[HEAD..].iter().zip(bytes.chunks(8)) {
            let mut eight = [0; 8];
            eight[..chunk.len()].copy_from_slice(chunk);
            word.store(u64::from_ne_bytes(eight), Relaxed);
        }
        event[0].store(number.wrapping_add(1), Release);
    }

    /// The newest lines, `count` at most, oldest first.
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

/// `None`: who wrote it did not come to its end.
fn read(event: &[AtomicU64], number: u64) -> Option<LoggedEvent> {
    if event[0].load(Acquire) != number.wrapping_add(1) {
        return None;
    }
    let state = event[1].load(Relaxed);
    let bytes: Vec<u8> = event[HEAD..].iter().flat_map(|word| word.load(Relaxed).to_ne_bytes()).collect();
    let length = (state as u32 as usize).min(bytes.len());
    let text = String::from_utf8_lossy(&bytes[..length]);
    // A terminal must not take it for commands, whatever a program has scribbled there.
    let text = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    Some(LoggedEvent { text, said: state & SAID != 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(log: &EventLog, count: usize) -> Vec<String> {
        log.newest(count).into_iter().map(|event| event.text).collect()
    }

    #[test]
    fn who_opens_it_reads_the_newest_lines_in_their_order() {
        let (log, path) = EventLog::create().unwrap();
        let writer = EventLog::open(&path.path()).unwrap();
        assert_eq!(log.newest(8), []);
        writer.note("ibv_modify_qp: missing AV", false);
        writer.note("ibv_create_qp: no send_cq", true);
        let event = |text: &str, said| LoggedEvent { text: text.into(), said };
        let both = [event("ibv_modify_qp: missing AV", false), event("ibv_create_qp: no send_cq", true)];
        assert_eq!(log.newest(8), both);
        assert_eq!(log.newest(1), both[1..]);
        writer.note("ibv_create_qp: no send_cq", true);
        assert_eq!(log.newest(8), both, "what repeats takes no more room");
        (0..2 * EVENTS).for_each(|n| writer.note(&n.to_string(), false));
        assert_eq!(texts(&log, usize::MAX).len(), EVENTS);
        assert_eq!(texts(&log, 2), ["126", "127"]);
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
    fn scribbles_are_cut_to_size_and_cannot_steer_a_terminal() {
        let (log, _path) = EventLog::create().unwrap();
        log.note("\u{1b}[2Jgone", false);
        assert_eq!(texts(&log, 1), [" [2Jgone"]);
        let words = log.region.words();
        words[COUNT + 1].store(u64::MAX, Relaxed);
        words[COUNT + HEAD].store(u64::MAX, Relaxed);
        assert!(texts(&log, 1)[0].starts_with('\u{fffd}'));
        words[0].store(u64::MAX, Relaxed);
        assert_eq!(texts(&log, 8), [""; 0]);
    }
}
