//! Memory and files that never answer: the file system (FUSE, `linux/fuse.h`) answers everything but some requests.
//!
//! Missing pages of the process itself would not do: it would block itself, because the kernel holds its address space
//! locked meanwhile.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::thread;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Pid, fork};

use super::RemoteMemory;

/// Memory that does not answer.
#[derive(Debug)]
pub struct SilentMemory {
    /// The memory.
    pub memory: Arc<RemoteMemory>,
    _server: Server,
}

/// The file system's server: a separate process, because a process does not end before its own requests are answered.
#[derive(Debug)]
struct Server(Pid);

impl Drop for Server {
    fn drop(&mut self) {
        // The end of the server closes its descriptor: blocked threads get an error.
        let _ = kill(self.0, Signal::SIGKILL);
        let _ = waitpid(self.0, None);
    }
}

/// A file that can be opened, and whose last user waits forever when it asks about it or closes it.
#[derive(Debug)]
pub struct SilentFile {
    // Ends first: this process would wait as well.
    _server: Server,
    /// The file.
    pub file: File,
}

/// Requests answered with errors, or not at all.
const READ: u32 = 15;
const WRITE: u32 = 16;
const STATFS: u32 = 17;
const FLUSH: u32 = 25;

impl SilentFile {
    /// Starts the server.
    ///
    /// # Errors
    /// If the user may not mount a file system of this kind.
    pub fn new() -> io::Result<SilentFile> {
        let (file, _server) = Server::start(&[STATFS, FLUSH])?;
        Ok(SilentFile { _server, file })
    }
}

impl SilentMemory {
    /// Starts the server.
    ///
    /// # Errors
    /// If the user may not mount a file system of this kind.
    pub fn new() -> io::Result<SilentMemory> {
        let (file, _server) = Server::start(&[READ, WRITE])?;
        Ok(SilentMemory { memory: Arc::new(RemoteMemory::behind(file)), _server })
    }
}

impl Server {
    /// A file of a file system that does not answer these requests.
    fn start(silent: &'static [u32]) -> io::Result<(File, Server)> {
        let device = OpenOptions::new().read(true).write(true).open("/dev/fuse")?;
        let number = device.as_raw_fd();
        // SAFETY: the child calls nothing that allocates or takes a lock until it is killed.
        let server = match unsafe { fork() }? {
            ForkResult::Parent { child } => Server(child),
            ForkResult::Child => serve(device, number, silent),
        };
        // In a mount namespace of this thread, so that no other thread sees the file system.
        let file = thread::spawn(move || open(&device)).join().expect("no panic")?;
        Ok((file, server))
    }
}

fn open(device: &File) -> io::Result<File> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    let none = None::<&str>;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
    let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
    mount(Some("silent"), "/mnt", Some("fuse"), MsFlags::MS_NOSUID | MsFlags::MS_NODEV, Some(&*options))?;
    OpenOptions::new().read(true).write(true).open("/mnt/memory")
}

/// Answers what is asked of the file system.
fn serve(mut device: File, number: RawFd, silent: &[u32]) -> ! {
    let number = number.cast_unsigned();
    // SAFETY: the child's own copies of the descriptors, of which it uses the device alone. The child ends with the
    // thread that forked it.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        libc::close_range(0, number - 1, 0);
        libc::close_range(number + 1, u32::MAX, 0);
    }
    let mut request = [0; 1 << 16];
    loop {
        let Ok(40..) = device.read(&mut request) else { continue };
        let word = |at: usize| u32::from_ne_bytes([0, 1, 2, 3].map(|byte| request[at + byte]));
        let (is_root, mut answer) = (word(16) == 1, Answer::default());
        match word(4) {
            operation if silent.contains(&operation) => continue,
            // INIT: version 7.31.
            26 => answer.add(&[7, 31, 4096, 0, 8 << 16 | 8, 4096, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0]),
            // LOOKUP: node 2, valid for 1000 s.
            1 => {
                answer.add(&[2, 0, 0, 0, 1000, 0, 1000, 0, 0, 0]);
                answer.add(&attributes(false));
            }
            // GETATTR.
            3 => {
                answer.add(&[1000, 0, 0, 0]);
                answer.add(&attributes(is_root));
            }
            // OPEN, FLUSH, RELEASE.
            14 => answer.add(&[1, 0, 0, 0]),
            FLUSH | 18 => {}
            // FORGET, INTERRUPT and BATCH_FORGET have no answers.
            2 | 36 | 42 => continue,
            _ => answer.error = -libc::ENOSYS,
        }
        let head = [16 + 4 * answer.length as u32, answer.error.cast_unsigned(), word(8), word(12)];
        let mut bytes = [0; 4 * (4 + ANSWER)];
        let words = head.iter().chain(&answer.words[..answer.length]);
        words.zip(bytes.chunks_exact_mut(4)).for_each(|(word, to)| to.copy_from_slice(&word.to_ne_bytes()));
        let _ = device.write(&bytes[..16 + 4 * answer.length]);
    }
}

/// Words of the longest answer.
const ANSWER: usize = 40;

struct Answer {
    error: i32,
    words: [u32; ANSWER],
    length: usize,
}

impl Default for Answer {
    fn default() -> Answer {
        Answer { error: 0, words: [0; ANSWER], length: 0 }
    }
}

impl Answer {
    fn add(&mut self, words: &[u32]) {
        self.words[self.length..self.length + words.len()].copy_from_slice(words);
        self.length += words.len();
    }
}

/// `struct fuse_attr` of a file of 2^60 bytes, which includes every address.
fn attributes(is_folder: bool) -> [u32; 22] {
    let mode = if is_folder { 0o040_755 } else { 0o100_644 };
    [2, 0, 0, 1 << 28, 128, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0]
}
