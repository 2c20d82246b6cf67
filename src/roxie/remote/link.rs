//! Messages with descriptors between a process and its NIC, over a stream socket.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv};
use serde::{Serialize, de::DeserializeOwned};

use roxie_base::descriptors::{receive_with, send, send_with};

/// Maximum bytes of an answer: some 30 times a list of 65,536 QPs.
const LONGEST_ANSWER: usize = 1 << 29;
/// Maximum bytes of a request: 8,192 services of 28 bytes. A list takes up to twice that once unpacked.
pub const LONGEST_REQUEST: usize = 1 << 18;
/// Bytes that are read before more room is made.
const PIECE: usize = 1 << 20;
/// Bytes before a message: its length.
const HEAD: usize = 4;

/// One end.
#[derive(Debug)]
pub struct Link(UnixStream);

impl Link {
    pub fn new(socket: UnixStream) -> Link {
        Link(socket)
    }

    /// Sends a message. Blocks until there is room.
    ///
    /// # Errors
    /// If the other end is gone.
    pub fn send(&self, message: &impl Serialize, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let bytes = postcard::to_stdvec(message).map_err(io::Error::other)?;
        let head = u32::try_from(bytes.len()).map_err(io::Error::other)?.to_ne_bytes();
        // Descriptors go with the first byte.
        let sent = send_with(self.0.as_fd(), &head, fds, MsgFlags::empty())?;
        (&self.0).write_all(&head[sent..])?;
        (&self.0).write_all(&bytes)
    }

    /// Waits for an answer. `None` if the other end has closed.
    ///
    /// # Errors
    /// If the received bytes are no such message: the two ends are of different versions.
    pub fn receive<T: DeserializeOwned>(&self) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
        self.receive_at_most(LONGEST_ANSWER)
    }

    /// Waits for a message of at most `longest` bytes, from an untrusted sender.
    ///
    /// # Errors
    /// If the received bytes are no such message.
    pub fn receive_at_most<T: DeserializeOwned>(
        &self,
        longest: usize,
    ) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
        let mut head = [0; HEAD];
        let (read, fds) = loop {
            match receive_with(self.0.as_fd(), &mut head, MsgFlags::empty()) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => break other?,
            }
        };
        if read == 0 {
            return Ok(None);
        }
        let mut socket = &self.0;
        socket.read_exact(&mut head[read..])?;
        let length = u32::from_ne_bytes(head) as usize;
        bounded(length, longest)?;
        // The announced length reserves no memory before its bytes arrive.
        let mut bytes: Vec<u8> = Vec::new();
        while bytes.len() < length {
            let (at, more) = (bytes.len(), (length - bytes.len()).min(PIECE));
            bytes.try_reserve(more).map_err(io::Error::other)?;
            bytes.resize(at + more, 0);
            socket.read_exact(&mut bytes[at..])?;
        }
        let message = postcard::from_bytes(&bytes).map_err(io::Error::other)?;
        Ok(Some((message, fds)))
    }

    /// Sends a short message whole, or not at all. Never blocks.
    ///
    /// # Errors
    /// `WouldBlock` if there is no room now. Any other if the other end has closed.
    pub fn send_at_once(&self, message: &impl Serialize) -> io::Result<()> {
        let mut bytes = vec![0; HEAD];
        bytes = postcard::to_extend(message, bytes).map_err(io::Error::other)?;
        let length = u32::try_from(bytes.len() - HEAD).map_err(io::Error::other)?;
        bytes[..HEAD].copy_from_slice(&length.to_ne_bytes());
        match send_with(self.0.as_fd(), &bytes, &[], MsgFlags::MSG_DONTWAIT)? {
            // The kernel takes what fits one buffer whole or not at all (`unix_stream_sendmsg`).
            sent if sent == bytes.len() => Ok(()),
            _ => Err(io::ErrorKind::WriteZero.into()),
        }
    }

    /// Sends the descriptors of this process's memory with one byte of data, without blocking.
    ///
    /// # Errors
    /// If the other end is gone, or takes none.
    pub fn show(&self, memory: &[BorrowedFd<'_>]) -> io::Result<()> {
        send(self.0.as_fd(), memory)
    }

    /// How long [`receive`](Self::receive) waits from one piece of a message to the next. `None`: forever.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.0.set_read_timeout(timeout)
    }

    /// Returns another handle to this end.
    pub fn try_clone(&self) -> io::Result<Link> {
        self.0.try_clone().map(Link)
    }

    /// Ends the connection for both ends, and wakes threads that wait on it.
    pub fn shut(&self) {
        let _ = self.0.shutdown(Shutdown::Both);
    }

    /// Takes nothing from the other end, now or later.
    pub fn shut_input(&self) -> io::Result<()> {
        self.0.shutdown(Shutdown::Read)
    }

    /// Releases what waits in it after [`shut`](Self::shut), descriptors too, so that closing it releases none.
    pub fn drain(&self) {
        let mut bytes = [0; 4096];
        while matches!(
            recv(self.0.as_raw_fd(), &mut bytes, MsgFlags::MSG_DONTWAIT),
            Ok(1..) | Err(Errno::EINTR)
        ) {}
    }
}

/// A message that comes in pieces, and without descriptors, from a process that is not waited for.
#[derive(Debug)]
pub struct Pieces {
    bytes: Vec<u8>,
    longest: usize,
}

impl Pieces {
    /// Makes an empty buffer for a message of at most `longest` bytes.
    pub fn new(longest: usize) -> Pieces {
        Pieces { bytes: Vec::new(), longest }
    }

    /// Reads the available bytes, but none beyond the message. Returns the whole message. `None` if the other end has
    /// closed.
    ///
    /// # Errors
    /// `WouldBlock` if more is due; any other if the message is too long, or the socket fails.
    pub fn read(&mut self, socket: BorrowedFd<'_>) -> io::Result<Option<&[u8]>> {
        loop {
            let at = self.bytes.len();
            let due = match self.bytes.first_chunk() {
                Some(head) => HEAD + bounded(u32::from_ne_bytes(*head) as usize, self.longest)?,
                None => HEAD,
            };
            if at >= HEAD && at == due {
                return Ok(Some(&self.bytes[HEAD..]));
            }
            self.bytes.resize(due, 0);
            let received = recv(socket.as_raw_fd(), &mut self.bytes[at..], MsgFlags::MSG_DONTWAIT);
            self.bytes.truncate(at + received.unwrap_or(0));
            match received {
                Ok(0) | Err(Errno::ECONNRESET) => return Ok(None),
                Ok(_) | Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Returns the length of a message, if it is allowed.
fn bounded(length: usize, longest: usize) -> io::Result<usize> {
    if length <= longest {
        return Ok(length);
    }
    Err(io::Error::other(format!("a message of {length} bytes, {longest} at most")))
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn pair() -> (Link, Link) {
        let (a, b) = UnixStream::pair().expect("two sockets");
        (Link::new(a), Link::new(b))
    }

    #[test]
    fn messages_come_in_order_each_with_its_descriptors() {
        let (a, b) = pair();
        let (reader, writer) = std::io::pipe().expect("a pipe");
        let long = vec![7u8; 3 << 20];
        let sender = std::thread::spawn(move || {
            a.send(&(1u32, "first"), &[reader.as_fd(), writer.as_fd()]).expect("sent");
            a.send(&(2u32, long), &[]).expect("sent");
        });
        let ((number, word), fds) = b.receive::<(u32, String)>().expect("a message").expect("it is there");
        assert_eq!((number, word.as_str(), fds.len()), (1, "first", 2));
        let ((number, bytes), fds) = b.receive::<(u32, Vec<u8>)>().expect("a message").expect("it is there");
        assert_eq!((number, bytes.len(), fds.len()), (2, 3 << 20, 0));
        sender.join().expect("no panic");
        assert!(b.receive::<u32>().expect("an end").is_none());
    }

    #[test]
    fn drained_link_holds_no_descriptor() {
        let (a, b) = pair();
        let (mut reader, writer) = std::io::pipe().expect("a pipe");
        for flags in [MsgFlags::empty(), MsgFlags::MSG_OOB, MsgFlags::empty()] {
            send_with(a.as_fd(), b"bytes", &[writer.as_fd()], flags).expect("room");
        }
        drop(writer);
        b.shut();
        b.drain();
        nix::fcntl::fcntl(&reader, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK))
            .expect("a pipe");
        assert_eq!(reader.read(&mut [0]).expect("the end: all writers are closed"), 0);
        drop((a, b));
    }

    #[test]
    fn nonsense_and_halves_are_errors() {
        for bytes in [&[0xff, 0xff, 0xff, 0xff][..], &[4, 0, 0, 0, 1], &[1, 0], &[1, 0, 0, 0, 0xff]] {
            let (a, b) = pair();
            (&a.0).write_all(bytes).expect("room");
            drop(a);
            assert!(b.receive::<bool>().is_err(), "{bytes:?}");
        }
    }
}
