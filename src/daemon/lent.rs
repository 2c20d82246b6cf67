//! Memory for queues and descriptors, which a client lends to its NIC.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl, open};
use nix::sys::stat::{Mode, fstat};

use super::account::{Account, Charge, Resource};
use roxie::remote::message::{
    ArenaPlace, ClientForm, Completions, Memory, Pages, Receives, Request, WithMessage,
};
use roxie_nic::nic::{Command, ControlError, Convert, Mapped, MemoryCommand, ObjectKind};
use roxie_nic::shared::remote_memory::{RemoteMemory, Use};
use roxie_nic::shared::{
    ClientFile, ClientMapping, CompletionRing, DoorbellsId, EventCounter, HostMemory, Notifier, PageList,
    RecvRing, Region, SendRing,
};
use roxie_nic::verbs::{Access, FileId, QpCaps};

/// Bytes of a word of a queue.
const WORD: u64 = size_of::<u64>() as u64;
/// Bytes that the smallest arena takes: a page of 4 KiB, 16 or 64 KiB where the kernel was made so.
const PAGE: u64 = 4096;

/// Memory and descriptors of one client; see the module's page.
#[derive(Debug, Default)]
pub(super) struct Lent {
    arenas: Vec<Arc<Region>>,
    /// For the arenas.
    _charges: Vec<Charge>,
    /// Files of registered memory.
    files: Vec<(ClientMapping, Charge)>,
    channels: Vec<Channel>,
    /// The client's doorbell page, once its bells are read.
    page: Option<DoorbellsId>,
}

/// A client's eventfd. Passing the same one again adds no channel.
#[derive(Debug)]
struct Channel {
    id: Option<u64>,
    counter: EventCounter,
    _charge: Charge,
}

/// A descriptor that came with a request, of the kind that the request asks for. Closing it does not block.
#[derive(Debug)]
pub(super) enum PassedFd {
    Nothing,
    Memory(OwnedFd, ClientFile),
    Events(EventCounter),
    /// See [`file_of`].
    File(FileId, OwnedFd),
}

impl PassedFd {
    /// Checks the descriptors of a request, and closes those that it does not need. Checking and closing may block
    /// forever, because a file system in userspace need not answer. Only the client's own thread may call this, and it
    /// must hold no lock.
    pub(super) fn of(request: &Request, fds: Vec<OwnedFd>) -> Result<PassedFd, ControlError> {
        let mut fds = fds.into_iter();
        let Some(fd) = fds.next() else { return Ok(PassedFd::Nothing) };
        match request {
            Request::Arena { .. } | Request::OrphanTable => match ClientFile::of(fd.as_fd()) {
                Ok(file) => Ok(PassedFd::Memory(fd, file)),
                Err(_) => Err(invalid(io::Error::other("it is no file in memory (memfd_create)"))),
            },
            Request::Memory(MemoryCommand::CreateCq { notify: Some(_), .. }) => {
                EventCounter::of(fd).map(PassedFd::Events).map_err(invalid)
            }
            // The NIC maps files in memory only; other registered memory is accessed by its address.
            Request::Memory(_) => Ok(match ClientFile::of(fd.as_fd()) {
                Ok(file) => PassedFd::Memory(fd, file),
                Err(_) => PassedFd::Nothing,
            }),
            Request::Command(Command::OpenXrcd(_)) => file_of(&fd).map(|(id, kept)| PassedFd::File(id, kept)),
            _ => Ok(PassedFd::Nothing),
        }
    }

    pub(super) fn memory(self) -> Result<OwnedFd, ControlError> {
        match self {
            PassedFd::Memory(fd, _) => Ok(fd),
            _ => Err(no_descriptor()),
        }
    }
}

/// Refuses memory or a descriptor that is of no use (`EINVAL`).
pub(super) fn invalid(error: io::Error) -> ControlError {
    ControlError::Refused { errno: libc::EINVAL, why: error.to_string() }
}

/// Refuses a request that lacks its descriptor (`EINVAL`).
fn no_descriptor() -> ControlError {
    invalid(std::io::Error::other("no descriptor came with it"))
}

impl Lent {
    /// Adopts memory for queues, `words` words long. Charges whole pages, and a mapping.
    pub(super) fn add_arena(
        &mut self,
        account: &Arc<Account>,
        words: u64,
        passed: PassedFd,
    ) -> Result<(), ControlError> {
        let bytes = words.saturating_mul(WORD).max(1).checked_next_multiple_of(PAGE).unwrap_or(u64::MAX);
        let charge = account.charge([(Resource::Arenas, 1), (Resource::QueueBytes, bytes)])?;
        let fd = passed.memory()?;
        let words = usize::try_from(words).map_err(|_| ControlError::NoMemory("queue"))?;
        self.arenas.push(Region::adopt(fd.as_fd(), words).map_err(invalid)?);
        self._charges.push(charge);
        Ok(())
    }

    /// Returns the counter of a queue's events. An eventfd that was sent before is the same descriptor of the NIC's.
    fn channel(
        &mut self,
        account: &Arc<Account>,
        notifier: &Notifier,
        counter: EventCounter,
    ) -> Result<EventCounter, ControlError> {
        let id = counter.id();
        if let Some(known) = self.channels.iter().find(|channel| id.is_some() && channel.id == id) {
            return Ok(known.counter.clone());
        }
        let charge = account.charge([(Resource::Channels, 1), (Resource::Channels, 0)])?;
        let counter = counter.raised_by(notifier).map_err(invalid)?;
        self.channels.push(Channel { id, counter: counter.clone(), _charge: charge });
        Ok(counter)
    }

    /// Sets the page by which the client rings.
    pub(super) fn ring_by(&mut self, page: DoorbellsId) {
        self.page = Some(page);
    }

    /// Closes eventfds that no queue uses any more, and unmaps files that no region uses any more. Here is the last
    /// handle of each: neither the engine nor the thread of events closes one.
    pub(super) fn close_unused(&mut self) {
        self.channels.retain(|channel| !channel.counter.is_last());
        self.files.retain(|(mapping, _)| !mapping.is_last());
    }

    /// Returns `words` words at a place in one of the arenas.
    fn words(&self, place: ArenaPlace, words: usize) -> Result<Arc<Region>, ControlError> {
        let arena = self.arenas.get(place.arena as usize).ok_or(ControlError::NotFound(ObjectKind::Arena))?;
        let at = usize::try_from(place.at).map_err(|_| ControlError::NotFound(ObjectKind::Arena))?;
        arena.part(at, words).map_err(invalid)
    }
}

/// Finds the memory that a request names: queues in the client's arenas, all other memory in the client's address
/// space.
pub(super) struct Finder<'a> {
    pub(super) memory: &'a Arc<RemoteMemory>,
    pub(super) lent: &'a mut Lent,
    pub(super) account: &'a Arc<Account>,
    pub(super) notifier: &'a Notifier,
    pub(super) passed: PassedFd,
    /// True if the client's user is root or the NIC's own.
    pub(super) is_trusted: bool,
    /// Starts the thread that copies from and to memory that the NIC does not map.
    pub(super) start_copies: &'a dyn Fn() -> io::Result<()>,
}

impl Finder<'_> {
    /// Maps memory in a file of the client's. Returns `None` if the NIC does not map this file, or the quota is used
    /// up: the memory is then accessed by its address.
    fn in_file(
        &mut self,
        (fd, file): (BorrowedFd<'_>, ClientFile),
        (offset, length): (u64, u64),
        is_lent: bool,
    ) -> Option<HostMemory> {
        let bytes = usize::try_from(length).ok()?;
        let files = &mut self.lent.files;
        if let Some((known, _)) = files.iter().find(|(known, _)| known.holds(file, offset, length)) {
            return Some(known.memory(offset, bytes));
        }
        if !file.contains(offset, length) || !is_lent && !self.is_trusted {
            return None;
        }
        let mapped = if is_lent { file.size } else { length };
        // Queues need both resources; memory can also be reached by its address.
        let charge =
            self.account.charge_spare([(Resource::Arenas, 1), (Resource::QueueBytes, mapped)]).ok()?;
        let mapping = match is_lent {
            true => ClientMapping::adopt(fd, file),
            false => ClientMapping::of_program(fd, file, (offset, length)),
        };
        let mapping = mapping.ok()?;
        let memory = mapping.memory(offset, bytes);
        files.push((mapping, charge));
        Some(memory)
    }
}

impl Convert<ClientForm, Mapped> for Finder<'_> {
    type Error = ControlError;

    /// Memory is mapped, and may be used as `access` says, when it is registered.
    fn memory(&mut self, memory: Memory, access: Access) -> Result<HostMemory, ControlError> {
        let (address, length, on_demand, file) = match memory {
            Memory::Null => return Ok(HostMemory::null()),
            Memory::At { address, length, on_demand } => (address, length, on_demand, None),
            Memory::InFile { address, length, offset, is_lent } => {
                (address, length, false, Some((offset, is_lent)))
            }
        };
        if !on_demand {
            let what = if access.contains(Access::LOCAL_WRITE) { Use::Write } else { Use::Read };
            self.memory.check(address, length, what).map_err(|error| {
                let errno = error.raw_os_error().unwrap_or(libc::EFAULT);
                let why =
                    format!("{length} bytes at {address:#x} are not mapped, or not for this access: {error}");
                ControlError::Refused { errno, why }
            })?;
        }
        if let Some((offset, is_lent)) = file
            && let PassedFd::Memory(fd, file) = std::mem::replace(&mut self.passed, PassedFd::Nothing)
            && let Some(memory) = self.in_file((fd.as_fd(), file), (offset, length), is_lent)
        {
            return Ok(memory);
        }
        (self.start_copies)().map_err(|error| {
            let errno = error.raw_os_error().unwrap_or(libc::EAGAIN);
            ControlError::Refused {
                errno,
                why: format!("a thread that copies from and to the memory: {error}"),
            }
        })?;
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        Ok(HostMemory::remote(self.memory, address, length, on_demand))
    }

    fn pages(&mut self, Pages { place, capacity }: Pages) -> Result<PageList, ControlError> {
        let region = self.lent.words(place, PageList::size(capacity))?;
        PageList::on(&region, capacity).map_err(invalid)
    }

    fn completions(
        &mut self,
        Completions { place, capacity }: Completions,
    ) -> Result<CompletionRing, ControlError> {
        let region = self.lent.words(place, CompletionRing::size(capacity))?;
        let ring = CompletionRing::on(&region, capacity).map_err(invalid)?;
        ring.woken_by(self.notifier).map_err(invalid)
    }

    fn counter(&mut self, _: WithMessage) -> Result<EventCounter, ControlError> {
        match std::mem::replace(&mut self.passed, PassedFd::Nothing) {
            PassedFd::Events(counter) => self.lent.channel(self.account, self.notifier, counter),
            _ => Err(no_descriptor()),
        }
    }

    fn sends(&mut self, place: ArenaPlace, caps: &QpCaps) -> Result<SendRing, ControlError> {
        let (wrs, sges, inline) = (caps.max_send_wr, caps.max_send_sge, caps.max_inline);
        let region = self.lent.words(place, SendRing::size(wrs, sges, inline))?;
        let ring = SendRing::on(&region, wrs, sges, inline).map_err(invalid)?;
        Ok(match self.lent.page {
            Some(page) => ring.rung_by(page),
            None => ring,
        })
    }

    fn receives(&mut self, ring: Receives) -> Result<RecvRing, ControlError> {
        let region = self.lent.words(ring.place, RecvRing::size(ring.capacity, ring.max_sge))?;
        RecvRing::on(&region, ring.capacity, ring.max_sge).map_err(invalid)
    }
}

/// Returns device and inode of the file behind a client's descriptor, and a descriptor that keeps the file and can be
/// closed without waiting. Any open file will do, as for the kernel (`ib_uverbs_open_xrcd`), and a path that is not
/// open (`O_PATH`) will not: it takes no right to the file.
fn file_of(fd: &OwnedFd) -> Result<(FileId, OwnedFd), ControlError> {
    let open_again = || -> nix::Result<(FileId, OwnedFd)> {
        if OFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GETFL)?).contains(OFlag::O_PATH) {
            return Err(Errno::EBADF);
        }
        let stat = fstat(fd)?;
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let opened = open(path.as_str(), OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())?;
        Ok((FileId { device: stat.st_dev, inode: stat.st_ino }, opened))
    };
    open_again().map_err(|errno| ControlError::Refused {
        errno: errno as i32,
        why: format!("the descriptor of an XRC domain: {errno}"),
    })
}
