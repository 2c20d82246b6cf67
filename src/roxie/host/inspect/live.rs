//! The capture of a running device, for a reader in another process.
//!
//! The reader gets a pcapng stream on its connection. A thread writes it from a bounded queue, so neither the data path
//! nor the thread that follows the interface waits for the reader: frames for which the queue has no room are left out
//! and counted. The reader shuts down its half of the connection to end the capture, and gets what is queued, and the
//! count. If it is gone, the capture ends as well.
//!
//! Frames carry memory, so a reader must show first that the kernel lets it read this process's memory: it is given the
//! address of a secret, and sends the bytes that are there. A process of the same user without this one's capabilities
//! cannot, nor can one that a security module keeps from tracing others (ptrace(2), "Ptrace access mode checking").

use std::io::{self, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, recv, setsockopt, sockopt};

use crate::host::state::State;
use roxie_base::descriptors::{children, peer_of, send_with};
use roxie_base::random::unguessable;
use roxie_engine::Engine;
use roxie_port::pcap::{Progress, Recorder};

/// Maximum time for a reader to take what is queued when the capture ends.
const GRACE: Duration = Duration::from_secs(2);
/// The same, when the device is closed.
const PARTING: Duration = Duration::from_millis(200);
/// Interval between two looks at a capture that ends.
const LOOK: Duration = Duration::from_millis(1);
/// Send buffer of the connection in bytes; the system may allow less.
const SEND_BUFFER: usize = 4 << 20;

/// Maximum number of readers that have not shown yet that they may read this process's memory.
const CANDIDATES: usize = 16;
/// Maximum time to show it.
const PROOF: Duration = Duration::from_secs(2);
/// Bytes of a secret.
pub(super) const SECRET: usize = 16;
/// First byte of the message with a secret's address.
pub(super) const CHALLENGE: u8 = 2;

/// The live capture of a device, if there is one, and the readers that ask for one.
#[derive(Default)]
pub(in crate::host) struct LiveCapture {
    running: Option<Running>,
    candidates: Vec<Candidate>,
}

/// A reader that is to show that it may read this process's memory.
struct Candidate {
    reader: UnixStream,
    /// The part of each frame that it asks for, in bytes.
    snap_length: u32,
    /// The bytes to send. Their address stays the same.
    secret: Box<[u8; SECRET]>,
    until: Instant,
}

struct Running {
    stream: UnixStream,
    /// Progress of the thread that writes to the stream.
    progress: Progress,
    /// Process of the reader.
    reader: u32,
    /// Frames are captured no more; what is queued may be written until then.
    ends_by: Option<Instant>,
}

impl LiveCapture {
    /// Asks a reader of the device's frames to show that it may read this process's memory.
    pub(super) fn challenge(&mut self, reader: UnixStream, snap_length: u32) {
        if self.candidates.len() >= CANDIDATES {
            return refuse(&reader, "too many programs ask for its frames at once");
        }
        let halves = [unguessable(), unguessable()].map(u64::to_ne_bytes);
        let mut secret = Box::new([0; SECRET]);
        secret.copy_from_slice(halves.as_flattened());
        let address = std::ptr::from_ref(&*secret) as u64;
        let mut message = vec![CHALLENGE];
        message.extend(address.to_ne_bytes());
        // The message fits a new connection's buffer.
        if send_with(reader.as_fd(), &message, &[], MsgFlags::MSG_DONTWAIT).is_ok() {
            children::keep_from([reader.as_raw_fd()]);
            let until = Instant::now() + PROOF;
            self.candidates.push(Candidate { reader, snap_length, secret, until });
        }
    }

    /// Begins the capture for a reader that has shown the secret. Refuses others.
    fn receive_candidates(&mut self, device: &State) {
        let now = Instant::now();
        for candidate in std::mem::take(&mut self.candidates) {
            match candidate.has_proved() {
                Some(true) => self.begin(device, &candidate.reader, candidate.snap_length),
                Some(false) => {
                    refuse(&candidate.reader, "it shows its frames only to who may read its memory")
                }
                None if now < candidate.until => self.candidates.push(candidate),
                None => {}
            }
        }
    }

    /// Captures the device's frames for a reader, or tells it why not.
    fn begin(&mut self, device: &State, reader: &UnixStream, snap_length: u32) {
        match self.try_to_begin(device, reader, snap_length) {
            Ok(running) => self.running = Some(running),
            Err(why) => refuse(reader, &why),
        }
    }

    fn try_to_begin(&self, device: &State, reader: &UnixStream, snap_length: u32) -> Result<Running, String> {
        let of_reader = peer_of(reader.as_fd()).map_err(|error| error.to_string())?;
        if let Some(Running { reader, .. }) = &self.running {
            return Err(format!(
                "process {reader} captures its frames already, and there is one capture at a time"
            ));
        }
        let engines = device.engines();
        if engines.is_empty() {
            return Err("its NIC is another process (`roxie nic`), whose frames can be captured".to_owned());
        }
        let failed = |error: io::Error| format!("no thread for a capture: {error}");
        // A smaller buffer only takes more system calls.
        let _ = setsockopt(reader, sockopt::SndBuf, &SEND_BUFFER);
        let [stream, out] = [reader.try_clone().map_err(failed)?, reader.try_clone().map_err(failed)?];
        let (allow, allowed) = sync_channel(1);
        let interface = device.adapter.port().interface_or_name().to_owned();
        let mut recorder =
            Recorder::live(&interface, Out { stream: out, allowed: Some(allowed) }, snap_length)
                .map_err(failed)?;
        let progress = recorder.progress();
        for (engine, recorder) in engines.iter().zip(recorder.for_ports(engines.len())) {
            if let Some(recorder) = engine.attach_capture(recorder) {
                detach(device);
                recorder.close();
                return Err("its device has failed".to_owned());
            }
        }
        // The reader gets the header now that frames are captured.
        let _ = allow.send(());
        children::keep_from([stream.as_raw_fd()]);
        Ok(Running { stream, progress, reader: of_reader.pid, ends_by: None })
    }

    /// Begins the capture if a reader may have it. Ends it if its reader has asked for that or is gone. Does not block.
    pub(in crate::host) fn follow(&mut self, device: &State) {
        self.receive_candidates(device);
        let Some(running) = &mut self.running else { return };
        let now = Instant::now();
        match running.ends_by {
            None if running.has_to_end() => running.end(device, now + GRACE),
            // The reader takes no more: the thread's write fails.
            Some(until) if now >= until => {
                running.hang_up();
                self.running = None;
                return;
            }
            _ => {}
        }
        if running.progress.has_ended() {
            if running.ends_by.is_none() {
                running.end(device, now);
            }
            self.running = None;
        }
    }

    /// Ends the capture. Waits for its reader, but not long.
    pub(in crate::host) fn close(mut self, device: &State) {
        let Some(running) = &mut self.running else { return };
        let until = Instant::now() + PARTING;
        if running.ends_by.is_none() {
            running.end(device, until);
        }
        while !running.progress.has_ended() && Instant::now() < until {
            std::thread::sleep(LOOK);
        }
        running.hang_up();
    }

    /// Returns the descriptors that report a change of the capture.
    pub(in crate::host) fn poll_fds(&self) -> impl Iterator<Item = PollFd<'_>> {
        let candidates = self.candidates.iter().map(Candidate::poll_fd);
        candidates.chain(self.running.as_ref().map(Running::poll_fd))
    }

    /// Returns when the capture has to be followed again without such a report.
    pub(in crate::host) fn timeout(&self) -> Option<PollTimeout> {
        let of_candidates = self.candidates.iter().map(|candidate| candidate.until);
        let until = of_candidates.chain(self.running.as_ref().and_then(|running| running.ends_by)).min()?;
        let remaining = until.saturating_duration_since(Instant::now()) + LOOK;
        Some(PollTimeout::try_from(remaining).unwrap_or(PollTimeout::MAX))
    }
}

impl Candidate {
    fn poll_fd(&self) -> PollFd<'_> {
        PollFd::new(self.reader.as_fd(), PollFlags::POLLIN)
    }

    /// Returns whether the reader has sent the secret. `None`: it has sent nothing yet.
    fn has_proved(&self) -> Option<bool> {
        let mut bytes = [0; SECRET];
        match recv(self.reader.as_raw_fd(), &mut bytes, MsgFlags::MSG_DONTWAIT) {
            Err(Errno::EAGAIN | Errno::EINTR) => None,
            Ok(SECRET) => Some(bytes == *self.secret),
            Ok(_) | Err(_) => Some(false),
        }
    }
}

impl Drop for Candidate {
    fn drop(&mut self) {
        children::forget([self.reader.as_raw_fd()]);
    }
}

/// Tells a reader why it gets no frames. The text fits a new connection's buffer, and a reader that is gone needs none.
fn refuse(reader: &UnixStream, why: &str) {
    let _ = send_with(reader.as_fd(), why.as_bytes(), &[], MsgFlags::MSG_DONTWAIT);
}

impl Running {
    fn poll_fd(&self) -> PollFd<'_> {
        // A reader that has ended its half stays readable: then only the end of the other half counts.
        let events = match self.ends_by {
            None => PollFlags::POLLIN,
            Some(_) => PollFlags::empty(),
        };
        PollFd::new(self.stream.as_fd(), events)
    }

    fn has_to_end(&self) -> bool {
        matches!(poll(&mut [self.poll_fd()], PollTimeout::ZERO), Ok(1..))
    }

    fn end(&mut self, device: &State, until: Instant) {
        detach(device);
        self.ends_by = Some(until);
    }

    fn hang_up(&self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        children::forget([self.stream.as_raw_fd()]);
    }
}

/// Ends the capture of all workers, and then the stream.
fn detach(device: &State) {
    let recorders: Vec<_> = device.engines().iter().filter_map(Engine::detach_capture).collect();
    recorders.into_iter().for_each(Recorder::close);
}

/// The connection to the reader, as its thread writes it: from when that is allowed, and ended when the thread ends.
struct Out {
    stream: UnixStream,
    allowed: Option<Receiver<()>>,
}

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(allowed) = &self.allowed {
            allowed.recv().map_err(|_| io::ErrorKind::NotConnected)?;
            self.allowed = None;
        }
        send_with(self.stream.as_fd(), bytes, &[], MsgFlags::empty())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Out {
    fn drop(&mut self) {
        if self.allowed.is_none() {
            let _ = self.stream.shutdown(Shutdown::Both);
        }
    }
}
