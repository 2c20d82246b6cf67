use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

use super::*;

/// A pipe that accepts each write when the test allows it.
struct Pipe {
    allowed: Receiver<()>,
    read: Sender<Vec<u8>>,
}

impl Write for Pipe {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.allowed.recv().map_err(|_| io::Error::other("the reader left"))?;
        let _ = self.read.send(bytes.to_vec());
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn pipe() -> (Pipe, Sender<()>, Receiver<Vec<u8>>) {
    let ((allow, allowed), (read, reader)) = (channel(), channel());
    (Pipe { allowed, read }, allow, reader)
}

fn until(condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(20), "it never happened");
        std::thread::yield_now();
    }
}

#[test]
fn drop_waits_until_all_is_written_in_order() {
    let (pipe, allow, reader) = pipe();
    (0..100).for_each(|_| allow.send(()).unwrap());
    let mut file = Background::new(pipe).unwrap();
    for i in 0..1000u16 {
        file.write_all(&i.to_be_bytes()).unwrap();
    }
    drop(file);
    let all: Vec<u8> = reader.try_iter().flatten().collect();
    assert_eq!(all, (0..1000u16).flat_map(u16::to_be_bytes).collect::<Vec<u8>>());
}

#[test]
fn file_ends_with_its_last_writer() {
    let (pipe, allow, reader) = pipe();
    (0..100).for_each(|_| allow.send(()).unwrap());
    let mut first = Background::new(pipe).unwrap();
    let mut second = first.clone();
    let progress = first.progress();
    first.write_all(&[1]).unwrap();
    drop(first);
    assert!(!progress.has_ended());
    second.write_all(&[2]).unwrap();
    drop(second);
    assert!(progress.has_ended());
    assert_eq!(reader.try_iter().flatten().collect::<Vec<u8>>(), [1, 2]);
}

#[test]
fn full_queue_refuses_whole_block_without_waiting() {
    let (pipe, allow, reader) = pipe();
    let mut file = Background::with_limits(pipe, 100, GRACE).unwrap();
    let progress = file.progress();
    file.write_all(&[1; 60]).unwrap();
    // The thread has taken the bytes and blocks in its write; the queue is empty.
    until(|| file.0.shared.lock().taken == 60);
    file.write_all(&[2; 60]).unwrap();
    assert_eq!(file.write(&[3; 60]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    assert_eq!(progress.unwritten(), 120);
    (0..3).for_each(|_| allow.send(()).unwrap());
    until(|| progress.unwritten() == 0);
    file.write_all(&[4; 60]).unwrap();
    drop(file);
    let all: Vec<Vec<u8>> = reader.try_iter().collect();
    assert_eq!(all, [vec![1; 60], vec![2; 60], vec![4; 60]], "none of the refused block");
}

/// Statistics of one byte each: the number of refused writes.
fn counted(pipe: Pipe) -> Background {
    let statistics = |writes: Writes| vec![u8::try_from(writes.refused).expect("few")];
    Background::with_statistics(pipe, 100, Box::new(statistics)).unwrap()
}

#[test]
fn refused_writes_are_reported_in_file() {
    let (pipe, allow, reader) = pipe();
    let mut file = counted(pipe);
    file.write_all(&[101; 60]).unwrap();
    until(|| file.0.shared.lock().taken == 60);
    file.write_all(&[102; 60]).unwrap();
    for _ in 0..3 {
        assert_eq!(file.write(&[103; 60]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }
    (0..4).for_each(|_| allow.send(()).unwrap());
    drop(file);
    let all: Vec<Vec<u8>> = reader.try_iter().collect();
    assert_eq!(all, [vec![101; 60], vec![3], vec![102; 60], vec![3]]);
}

#[test]
fn close_does_not_wait_and_loses_nothing() {
    let (pipe, allow, reader) = pipe();
    let mut file = counted(pipe);
    let progress = file.progress();
    file.write_all(b"later").unwrap();
    file.close();
    drop(file);
    assert!(!progress.has_ended(), "the pipe has accepted nothing");
    (0..2).for_each(|_| allow.send(()).unwrap());
    until(|| progress.has_ended());
    assert_eq!(reader.try_iter().collect::<Vec<_>>(), [b"later".to_vec(), vec![0]]);
    assert!(!progress.has_failed());
}

#[test]
fn stalled_reader_does_not_block_drop() {
    let (pipe, allow, reader) = pipe();
    let mut file = Background::with_limits(pipe, 100, Duration::from_millis(20)).unwrap();
    file.write_all(b"lost").unwrap();
    drop(file);
    assert_eq!(reader.try_iter().count(), 0);
    drop(allow);
}

/// Two cases in one test, because the process has one list of files and runs other tests.
#[test]
fn write_out_waits_for_files_up_to_limit() {
    let (quick, allow_quick, reader) = pipe();
    (0..100).for_each(|_| allow_quick.send(()).unwrap());
    let mut file = Background::new(quick).unwrap();
    for i in 0..1000u16 {
        file.write_all(&i.to_be_bytes()).unwrap();
    }
    // Not the global `write_out`: files of other tests may be blocked.
    assert!(file.0.shared.write_out(Instant::now() + GRACE));
    let all: Vec<u8> = reader.try_iter().flatten().collect();
    assert_eq!(all, (0..1000u16).flat_map(u16::to_be_bytes).collect::<Vec<u8>>());

    let (still, allow, reader) = pipe();
    let mut file = Background::with_limits(still, 100, Duration::ZERO).unwrap();
    file.write_all(b"lost").unwrap();
    let start = Instant::now();
    assert!(!write_out(Duration::from_millis(20)));
    assert!(start.elapsed() >= Duration::from_millis(20));
    // A thread interrupted inside a write holds the lock. The call must return all the same.
    let state = file.0.shared.lock();
    assert!(!write_out(Duration::from_millis(20)));
    drop(state);
    assert_eq!(reader.try_iter().count(), 0);
    allow.send(()).unwrap();
    assert!(file.0.shared.write_out(Instant::now() + GRACE), "once it is read");
    assert_eq!(reader.try_iter().collect::<Vec<_>>(), [b"lost"]);
}

#[test]
fn failure_is_returned_by_all_later_writes() {
    let (pipe, allow, _reader) = pipe();
    drop(allow);
    let mut file = Background::new(pipe).unwrap();
    let progress = file.progress();
    file.write_all(b"first").unwrap();
    until(|| progress.has_failed());
    assert_eq!(progress.unwritten(), 0, "bytes that cannot be written do not count");
    assert!(file.write(b"second").unwrap_err().to_string().contains("the reader left"));
    assert!(file.flush().is_err());
}
