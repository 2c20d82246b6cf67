//! The memory of another process, reached as a NIC reaches that of its host: by address, at any time, whether or not the process runs.
//!
//! The kernel copies (`process_vm_readv(2)`, `process_vm_writev(2)`), one copy and no page of ours. Where it refuses, as in another user
//! or PID namespace, or by a filter of system calls, the process's own descriptor of its memory (`/proc/self/mem`) serves, which it
//! has to hand over. What is not mapped there, or not for this, is an error and nothing else.
//!
//! A number is no identity: it is given again after a process has ended. So the copy goes by the number only after the process was asked
//! for a secret at an address that it named ([`Process::new`]), and no more once it was [fenced](Process::fence), which its
//! owner does when the socket to it hangs up. The descriptor is of the memory itself, whoever has the number.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use nix::sys::uio::{RemoteIoVec, process_vm_readv, process_vm_writev};
use nix::unistd::Pid;

/// Its memory cannot be reached: none of the ways leads to what the process says is there.
#[derive(Debug, thiserror::Error)]
#[error(
    "the memory of process {pid} cannot be reached: process_vm_readv says {by_number}, and its /proc/self/mem {by_descriptor}; \
     run both as one user in one PID namespace, or allow the one or the other"
)]
pub struct Unreachable {
    /// The process, as it is numbered here; 0: it has no number here.
    pub pid: i32,
    /// What came of the system call.
    pub by_number: String,
    /// What came of the descriptor.
    pub by_descriptor: String,
}

/// A process whose memory is reached.
#[derive(Debug)]
pub struct Process {
    pid: Pid,
    /// `None`: it goes by the number.
    memory: Option<File>,
    fenced: AtomicBool,
}

impl Process {
    /// The process with this number, if the 8 bytes at `address` there are `secret`; else whose memory `memory` is, if they are there.
    ///
    /// # Errors
    /// If they are in neither.
    pub fn new(
        pid: i32,
        memory: Option<OwnedFd>,
        (address, secret): (u64, u64),
    ) -> Result<Process, Unreachable> {
        let by = |memory| Process { pid: Pid::from_raw(pid), memory, fenced: AtomicBool::new(false) };
        let tried = |process: &Process| {
            let mut word = [0; 8];
            match process.read(address, &mut word) {
                Ok(()) if u64::from_ne_bytes(word) == secret => Ok(()),
                Ok(()) => Err("that it is another process".to_owned()),
                Err(error) => Err(error.to_string()),
            }
        };
        let process = by(None);
        let Err(by_number) = tried(&process) else { return Ok(process) };
        let by_descriptor = match memory {
            None => "was not handed over".to_owned(),
            Some(memory) => {
                let process = by(Some(File::from(memory)));
                match tried(&process) {
                    Ok(()) => return Ok(process),
                    Err(why) => format!("says {why}"),
                }
            }
        };
        Err(Unreachable { pid, by_number, by_descriptor })
    }

    /// True if its memory is reached by a descriptor, and not by the process's number.
    pub fn is_by_descriptor(&self) -> bool {
        self.memory.is_some()
    }

    /// From now on nothing of it is touched any more: it has ended, or is about to.
    pub fn fence(&self) {
        self.fenced.store(true, Relaxed);
    }

    /// Copies from there.
    ///
    /// # Errors
    /// If some of it is not there, or cannot be read; what lies before may have been copied.
    pub fn read(&self, address: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.check()?;
        if let Some(memory) = &self.memory {
            return memory.read_exact_at(bytes, address);
        }
        let length = bytes.len();
        let remote = [RemoteIoVec { base: address as usize, len: length }];
        whole(process_vm_readv(self.pid, &mut [IoSliceMut::new(bytes)], &remote)?, length)
    }

    /// Copies there.
    ///
    /// # Errors
    /// If some of it is not there, or cannot be written; what lies before may have been copied.
    pub fn write(&self, address: u64, bytes: &[u8]) -> io::Result<()> {
        self.check()?;
        if let Some(memory) = &self.memory {
            return memory.write_all_at(bytes, address);
        }
        let remote = [RemoteIoVec { base: address as usize, len: bytes.len() }];
        whole(process_vm_writev(self.pid, &[IoSlice::new(bytes)], &remote)?, bytes.len())
    }

    /// Reads what lies at several places of it, one behind the other, in one call. False: some of it is not there, or not to be read;
    /// nothing is known of what was copied.
    pub fn read_all(&self, places: &Places, bytes: &mut [u8]) -> bool {
        if self.check().is_err() || places.length != bytes.len() {
            return false;
        }
        if self.is_by_descriptor() {
            let mut rest = bytes;
            return places.all.iter().all(|place| {
                let (these, others) = std::mem::take(&mut rest).split_at_mut(place.len);
                rest = others;
                self.read(place.base as u64, these).is_ok()
            });
        }
        let length = bytes.len();
        let read = process_vm_readv(self.pid, &mut [IoSliceMut::new(bytes)], &places.all);
        read.is_ok_and(|read| read == length)
    }

    /// Writes to several places of it what lies one behind the other, in one call. False: some of it is not there, or not to be written;
    /// nothing is known of what was copied.
    pub fn write_all(&self, places: &Places, bytes: &[u8]) -> bool {
        if self.check().is_err() || places.length != bytes.len() {
            return false;
        }
        if self.is_by_descriptor() {
            let mut rest = bytes;
            return places.all.iter().all(|place| {
                let (these, others) = rest.split_at(place.len);
                rest = others;
                self.write(place.base as u64, these).is_ok()
            });
        }
        let written = process_vm_writev(self.pid, &[IoSlice::new(bytes)], &places.all);
        written.is_ok_and(|written| written == bytes.len())
    }

    fn check(&self) -> io::Result<()> {
        if self.fenced.load(Relaxed) { Err(io::ErrorKind::NotConnected.into()) } else { Ok(()) }
    }
}

/// Places of a process's memory, for one call.
#[derive(Debug, Default)]
pub struct Places {
    all: Vec<RemoteIoVec>,
    length: usize,
}

impl Places {
    /// In one call.
    const MOST: usize = 32;

    /// None.
    pub fn clear(&mut self) {
        self.all.clear();
        self.length = 0;
    }

    /// One more, or more of the last one if it goes on there. False: it has no room for it.
    pub fn add(&mut self, address: u64, length: usize) -> bool {
        let base = address as usize;
        let is_full = self.all.len() == Places::MOST;
        match self.all.last_mut() {
            Some(last) if last.base.wrapping_add(last.len) == base => last.len += length,
            _ if is_full => return false,
            _ => self.all.push(RemoteIoVec { base, len: length }),
        }
        self.length += length;
        true
    }
}

fn whole(copied: usize, asked: usize) -> io::Result<()> {
    if copied == asked { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EFAULT)) }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use super::*;

    fn here(memory: Option<OwnedFd>, pid: i32, secret: &u64) -> Result<Process, Unreachable> {
        Process::new(pid, memory, (std::ptr::from_ref(secret) as u64, *secret))
    }

    fn own() -> OwnedFd {
        File::options().read(true).write(true).open("/proc/self/mem").expect("its own memory").into()
    }

    #[test]
    fn bytes_come_and_go_by_the_number_and_by_the_descriptor() {
        let pid = std::process::id().cast_signed();
        let secret = 0x1234_5678_9abc_def0;
        // A number that no process has.
        let ways = [here(None, pid, &secret), here(Some(own()), i32::MAX, &secret)];
        for (way, by_descriptor) in ways.into_iter().zip([false, true]) {
            let process = way.expect("its own memory");
            assert_eq!(process.is_by_descriptor(), by_descriptor);
            let there: Vec<u8> = (0..=255).collect();
            let mut here = vec![0; 256];
            process.read(there.as_ptr() as u64, &mut here).expect("mapped");
            assert_eq!(here, there);
            process.write(here.as_ptr() as u64 + 10, &[7; 5]).expect("mapped");
            assert_eq!(here[9..16], [9, 7, 7, 7, 7, 7, 15]);
            assert!(process.read(0, &mut here).is_err() && process.write(8, &[1]).is_err());
            process.fence();
            assert!(process.read(there.as_ptr() as u64, &mut here).is_err(), "not touched any more");
        }
    }

    #[test]
    fn who_does_not_have_the_secret_where_it_said_is_not_believed() {
        let (secret, other) = (5, 6);
        let pid = std::process::id().cast_signed();
        let error = Process::new(pid, Some(own()), (std::ptr::from_ref(&secret) as u64, other));
        let text = error.expect_err("another process").to_string();
        assert!(text.contains("another process") && text.contains("/proc/self/mem"), "{text}");
        let error = here(None, i32::MAX, &secret).expect_err("no such process").to_string();
        assert!(error.contains("No such process") && error.contains("not handed over"), "{error}");
    }

    #[test]
    fn many_places_are_reached_in_one_call_or_not_at_all() {
        let secret = 9;
        let there: Vec<u8> = (0..100).collect();
        let at = |index: usize| there.as_ptr() as u64 + index as u64;
        let pid = std::process::id().cast_signed();
        for process in [here(None, pid, &secret), here(Some(own()), i32::MAX, &secret)] {
            let process = process.expect("its own memory");
            let mut places = Places::default();
            // The second goes on where the first ends.
            assert!(places.add(at(10), 3) && places.add(at(13), 2) && places.add(at(50), 1));
            assert_eq!(places.all.len(), 2);
            let mut bytes = [0; 6];
            assert!(process.read_all(&places, &mut bytes));
            assert_eq!(bytes, [10, 11, 12, 13, 14, 50]);
            assert!(!process.read_all(&places, &mut bytes[1..]), "another length");
            assert!(process.write_all(&places, &[60, 61, 62, 63, 64, 65]));
            let mut all = [0; 100];
            process.read(at(0), &mut all).expect("mapped");
            assert_eq!((&all[9..16], all[50]), (&[9, 60, 61, 62, 63, 64, 15][..], 65));
            assert!(process.write_all(&places, &[10, 11, 12, 13, 14, 50]));
            assert!(places.add(8, 1));
            assert!(!process.read_all(&places, &mut [0; 7]), "not mapped");
            assert!(!process.write_all(&places, &[10, 11, 12, 13, 14, 50, 0]), "not mapped");
            for index in 3..Places::MOST {
                assert!(places.add(at(2 * index), 1));
            }
            assert!(!places.add(at(90), 1), "no room");
        }
    }
}
