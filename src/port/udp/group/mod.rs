//! Several processes on one device, over sockets: each has an engine of its own, and no data passes from one to another.
//!
//! All sockets on RoCE's UDP port form one group of the kernel's (`SO_REUSEPORT`), and a program of classic BPF picks the one that a
//! datagram is for (`steering`). A member has a *slot*: a place in that group, and a *unit* of QPNs, those whose upper 8 bits are the
//! slot's number. Communication IDs have the unit in front too. So the kernel brings everything to the process that it is for, and no
//! process stands between the others and the link.
//!
//! ```text
//!  door      a listening socket with an abstract name, which all members have in common: a newcomer is handed what follows
//!  ark       the sockets of all slots, kept open whichever member dies: a group would be numbered anew; and a pair for each slot by which members hand
//!            over what came to the wrong one
//!  register  the roster (who has which slot, unit, service and port number), and the locks that tell who lives
//! ```
//!
//! There is no process that keeps the group. It begins with its first member, ends with its last, and any of them may be killed at any
//! time. Nothing of it is in a file system. All members are of one user, because the kernel lets only those share a port. Any process may
//! take the door's name, so a newcomer checks the door's user, and the door the newcomer's. Nothing else has a name.

mod ark;
mod door;
mod error;
mod register;
mod steering;
mod stray;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs;
use std::io;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixDatagram;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sys::socket::{MsgFlags, recv};
use nix::unistd::geteuid;

use super::sys;
use crate::descriptors::children;
use crate::roster::{Denied, Identity, PortRequest, Room, Roster};
use crate::threads::{lock, spawn_unsignalled};
use ark::Ark;
use door::{Door, Found};
pub use error::JoinError;
use register::Register;
use steering::{Target, slot_of, target};
use stray::Pair;
pub(super) use stray::{STRAY_HEADER, Stray};

/// Processes that one group has room for.
pub const SLOTS: usize = 128;
/// How often members look whether others have ended.
const LOOK: Duration = Duration::from_secs(1);
/// The receive buffer of a socket that nobody reads, in bytes: the least that the kernel allows.
const UNREAD: i32 = 1;

/// Bound sockets, by the address that each is bound to: one for each address family that there is.
type Sockets = Vec<(IpAddr, OwnedFd)>;

/// What a newcomer brings: how its sockets are made. True: they are the first of a group, and the port must be nobody's.
type MakeSockets<'a, E> = &'a dyn Fn(bool) -> Result<Sockets, E>;

/// A process's place in a group. It is left when this is dropped, or when the process ends.
#[derive(Debug)]
pub struct Member {
    inner: Arc<Inner>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Inner {
    slot: u8,
    door: Door,
    ark: Ark,
    register: Register,
    /// One socket of each address family, to give the group its program by.
    steered: Vec<OwnedFd>,
    /// A bit for each unit that is ours.
    units: [AtomicU64; 4],
    /// The roster as it was last read.
    known: Mutex<(u64, Roster)>,
    /// Receives datagrams for this member that came to another one.
    strays: UnixDatagram,
    /// Sends datagrams to the members that they are for, by slot.
    ways: Mutex<BTreeMap<u8, UnixDatagram>>,
}

/// Who shares a UDP port of the calling thread's network namespace, of this user's processes. `None`: nobody. Whoever has ended since is
/// not told.
///
/// # Errors
/// If a group is there and cannot be asked.
pub fn roster(port: u16) -> Result<Option<Roster>, JoinError> {
    let system = |source| JoinError::System { what: "reading the group's register", source };
    let Some(fds) = door::look(&door::name_of(port))? else { return Ok(None) };
    let common = fds.into_iter().nth(3).ok_or_else(|| system(io::Error::other("nothing came")))?;
    let register = Register::of(common).map_err(system)?;
    let (_, mut roster) = register.read().map_err(system)?;
    let dead = dead(&roster, &register, None);
    dead.into_iter().for_each(|slot| roster.leave(slot));
    Ok(Some(roster))
}

/// A new member's sockets.
#[derive(Debug)]
pub struct Joined {
    /// What it is from now on.
    pub member: Member,
    /// What it receives on.
    pub sockets: Sockets,
}

/// What [`Member::join`] can fail with.
#[derive(Debug)]
pub enum Refused<E> {
    /// The group.
    Join(JoinError),
    /// The sockets.
    Sockets(E),
}

impl<E> From<JoinError> for Refused<E> {
    fn from(error: JoinError) -> Refused<E> {
        Refused::Join(error)
    }
}

fn system<E>(what: &'static str) -> impl Fn(io::Error) -> Refused<E> {
    move |source| Refused::Join(JoinError::System { what, source })
}

impl Member {
    /// Joins the group of this user on a UDP port of the calling thread's network namespace, or begins it.
    ///
    /// # Errors
    /// If it cannot be had, or `make` fails.
    pub fn join<E>(port: u16, make: MakeSockets<'_, E>) -> Result<Joined, Refused<E>> {
        let name = door::name_of(port);
        let (door, ark, register) = match door::knock(&name)? {
            Found::Group(fds) => {
                let Ok([door, keep, add, common]) = <[OwnedFd; 4]>::try_from(fds) else {
                    let source = io::Error::other("what came is not what a group has");
                    return Err(system("hearing from the group")(source));
                };
                let register =
                    Register::of(common).map_err(system("opening its register (is /proc mounted?)"))?;
                (Door::new(door).map_err(system("an eventfd"))?, Ark { keep, add }, register)
            }
            Found::Nobody(door) => {
                let register =
                    Register::create().map_err(system("memory for its register (is /proc mounted?)"))?;
                let ark = Ark::new().map_err(system("a pair of sockets"))?;
                (Door::new(door).map_err(system("an eventfd"))?, ark, register)
            }
        };
        let entered = register.with(|roster| take_place(roster, &ark, &register, make));
        let (slot, Kept { sockets, strays }) = entered.map_err(system("its register"))??;
        let steered: io::Result<Vec<_>> = sockets.iter().map(|(_, socket)| socket.try_clone()).collect();
        let inner = Inner {
            slot,
            door,
            ark,
            steered: steered.map_err(system("a descriptor"))?,
            units: Default::default(),
            known: Mutex::default(),
            strays: strays.receives,
            ways: Mutex::default(),
            register,
        };
        inner.note_unit(slot);
        let inner = Arc::new(inner);
        let mut member = Member { inner: Arc::clone(&inner), thread: None };
        member.inner.change(|_| ()).map_err(system("steering datagrams"))?;
        children::keep_from(member.descriptors());
        let thread = spawn_unsignalled("roxie-group", move || inner.serve());
        member.thread = Some(thread.map_err(system("a thread"))?);
        Ok(Joined { member, sockets })
    }

    /// Its place, which is its first unit.
    pub fn slot(&self) -> u8 {
        self.inner.slot
    }

    /// One more unit, for more QPs. `None`: all are taken.
    ///
    /// # Errors
    /// If the register cannot be had.
    pub fn add_unit(&self) -> io::Result<Option<u8>> {
        let unit = self.inner.change(|roster| roster.add_unit(self.inner.slot))?;
        unit.into_iter().for_each(|unit| self.inner.note_unit(unit));
        Ok(unit)
    }

    /// Takes the unit of a process that has ended, to tell its peers so in its name.
    ///
    /// # Errors
    /// If the unit is not free, or the register cannot be had (`EIO`).
    pub fn take_unit(&self, unit: u8) -> Result<(), Denied> {
        let taken = self.inner.change(|roster| roster.take_unit(unit, self.inner.slot, Room::ALL));
        taken.map_err(no_register)??;
        self.inner.note_unit(unit);
        Ok(())
    }

    /// From now on requests for these come here: (service ID, the only address or all).
    ///
    /// # Errors
    /// If this process may not have some of them ([`Roster::set_services`]), or the register cannot be had (`EIO`).
    pub fn set_services(
        &self,
        services: impl IntoIterator<Item = (u64, Option<IpAddr>)>,
    ) -> Result<(), Denied> {
        self.inner.change(|roster| roster.set_services(self.inner.slot, services)).map_err(no_register)?
    }

    /// Carries out a request about port numbers. Returns the number.
    ///
    /// # Errors
    /// As those of [`Roster::port`]; `EIO` if the register cannot be had. The caller sees to privileged ports itself: all members are of one
    /// user.
    pub fn port(&self, request: PortRequest) -> Result<u16, Denied> {
        let inner = &self.inner;
        let result = inner.register.with(|roster| {
            bury(roster, &inner.ark, &inner.register, Some(inner.slot));
            roster.port(inner.slot, request, 0)
        });
        result.map_err(no_register)?
    }

    /// True if a datagram, which was sent to that address, is for this process: the kernel's choice was right.
    #[inline]
    pub(super) fn is_ours(&self, datagram: &[u8], destination: IpAddr) -> bool {
        match target(datagram) {
            Target::Unit(unit) => self.inner.has_unit(unit),
            other => self.inner.is_ours_slowly(other, destination),
        }
    }

    /// Hands a datagram to the process that it is for. False: it is for none, or that one does not take it now.
    pub(super) fn hand_over(&self, stray: &Stray<'_>) -> bool {
        self.inner.hand_over(stray)
    }

    /// Where strays come in.
    pub(super) fn strays(&self) -> &UnixDatagram {
        &self.inner.strays
    }

    /// Takes one in; its length, in bytes. [`Stray::from_bytes`] reads it.
    ///
    /// # Errors
    /// If there is none.
    pub(super) fn receive_stray(&self, into: &mut [u8]) -> io::Result<usize> {
        self.inner.strays.recv(into)
    }

    /// Descriptors by which the group lasts, and this place in it.
    fn descriptors(&self) -> Vec<RawFd> {
        let inner = &self.inner;
        let all = [&inner.ark.keep, &inner.ark.add];
        let all = all.into_iter().chain(&inner.steered).map(AsRawFd::as_raw_fd);
        let rest = [inner.door.listener().as_raw_fd(), inner.strays.as_raw_fd()];
        all.chain(rest).chain(inner.register.descriptors()).collect()
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let inner = &self.inner;
        children::forget(self.descriptors());
        // Sockets stay in the group, and what comes to them is dropped.
        for socket in &inner.steered {
            let _ = sys::set_int(socket.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, UNREAD);
        }
        let _ = inner.change(|roster| roster.leave(inner.slot));
        inner.register.vacate(inner.slot);
        inner.door.close();
        if let Some(thread) = self.thread.take() {
            // It only panics if a member's invariants are broken, and then has said so.
            let _ = thread.join();
        }
    }
}

/// The group's register cannot be had.
fn no_register(error: io::Error) -> Denied {
    Denied::new(libc::EIO, error.to_string())
}

impl Inner {
    fn serve(&self) {
        let common = [self.ark.keep.as_fd(), self.ark.add.as_fd(), self.register.common()];
        self.door.serve(&common, LOOK, || {
            let roster = self.register.read().map(|(_, roster)| roster);
            if roster.is_ok_and(|roster| !dead(&roster, &self.register, Some(self.slot)).is_empty()) {
                let _ = self.change(|_| ());
            }
        });
    }

    /// Changes the roster, and the program of the group with it.
    fn change<R>(&self, act: impl FnOnce(&mut Roster) -> R) -> io::Result<R> {
        self.register.with(|roster| {
            bury(roster, &self.ark, &self.register, Some(self.slot));
            let result = act(roster);
            let program = steering::program(roster);
            for socket in &self.steered {
                sys::attach_steering(socket.as_fd(), &program)?;
            }
            Ok(result)
        })?
    }

    fn note_unit(&self, unit: u8) {
        self.units[usize::from(unit) / 64].fetch_or(1 << (unit % 64), Relaxed);
    }

    fn has_unit(&self, unit: u8) -> bool {
        self.units[usize::from(unit) / 64].load(Relaxed) >> (unit % 64) & 1 == 1
    }

    #[cold]
    fn is_ours_slowly(&self, target: Target, destination: IpAddr) -> bool {
        let Target::Service(_) = target else { return true };
        // What nobody wants is refused by whoever got it.
        self.slot_of(target, destination).is_none_or(|slot| slot == self.slot)
    }

    /// By the newest roster.
    fn slot_of(&self, target: Target, destination: IpAddr) -> Option<u8> {
        let mut known = lock(&self.known);
        if self.register.sequence().is_ok_and(|newest| newest != known.0)
            && let Ok(read) = self.register.read()
        {
            *known = read;
        }
        slot_of(target, destination, &known.1)
    }

    #[cold]
    fn hand_over(&self, stray: &Stray<'_>) -> bool {
        let owner = self.slot_of(target(stray.datagram), stray.destination);
        let Some(owner) = owner.filter(|slot| *slot != self.slot) else { return false };
        let mut ways = lock(&self.ways);
        let way = match ways.entry(owner) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(unknown) => {
                // Another member may hold the roster: the datagram is lost then, and is sent again.
                let found = self.register.try_hold(|| Kept::of_slot(&self.ark, owner));
                let Ok(Ok(Some(kept))) = found else { return false };
                unknown.insert(kept.strays.sends)
            }
        };
        way.send(&stray.to_bytes()).is_ok()
    }
}

/// A slot's sockets in the ark. They last as long as the group, and go from one member with this slot to the next.
struct Kept {
    sockets: Sockets,
    strays: Pair,
}

impl Kept {
    /// Returns those of a slot; `None`: no member has had the slot yet. The caller holds the roster.
    fn of_slot(ark: &Ark, slot: u8) -> io::Result<Option<Kept>> {
        let Some(mut fds) = ark.peek(slot.into())? else { return Ok(None) };
        let strays = fds.split_off(fds.len().saturating_sub(2));
        let Ok([receives, sends]) = <[OwnedFd; 2]>::try_from(strays) else {
            return Err(io::Error::other("what is kept of a slot is not what a slot has"));
        };
        let strays = Pair { receives: receives.into(), sends: sends.into() };
        Ok(Some(Kept { sockets: with_addresses(fds)?, strays }))
    }

    fn put_into(&self, ark: &Ark) -> io::Result<()> {
        let strays = [self.strays.receives.as_fd(), self.strays.sends.as_fd()];
        let all: Vec<_> = self.sockets.iter().map(|(_, socket)| socket.as_fd()).chain(strays).collect();
        ark.push(&all)
    }
}

/// Slots whose process has ended.
fn dead(roster: &Roster, register: &Register, own: Option<u8>) -> Vec<u8> {
    let taken = roster.taken().filter(|slot| Some(*slot) != own);
    taken.filter(|slot| register.is_occupied(*slot).is_ok_and(|lives| !lives)).collect()
}

/// Takes out those who have ended without a word.
fn bury(roster: &mut Roster, ark: &Ark, register: &Register, own: Option<u8>) {
    for slot in dead(roster, register, own) {
        roster.leave(slot);
        // What comes to its sockets takes up no memory any more.
        let Some(kept) = Kept::of_slot(ark, slot).ok().flatten() else { continue };
        empty(&kept.strays.receives);
        for (_, socket) in kept.sockets {
            let _ = sys::set_int(socket.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, UNREAD);
            empty(&socket);
        }
    }
}

/// Finds a place for a newcomer and its sockets, while nobody else changes the roster.
fn take_place<E>(
    roster: &mut Roster,
    ark: &Ark,
    register: &Register,
    make: MakeSockets<'_, E>,
) -> Result<(u8, Kept), Refused<E>> {
    bury(roster, ark, register, None);
    let slot = roster.next_slot().ok_or(JoinError::Full)?;
    let kept = match Kept::of_slot(ark, slot).map_err(system("taking a socket over"))? {
        Some(kept) => {
            // What they hold was for a process that was here before.
            kept.sockets.iter().for_each(|(_, socket)| empty(socket));
            empty(&kept.strays.receives);
            kept
        }
        None => {
            let mut sockets = make(roster.slots.is_empty()).map_err(Refused::Sockets)?;
            // Places count in each address family: all slots have the same ones.
            if let Some(first) = Kept::of_slot(ark, 0).map_err(system("looking for a socket"))? {
                let first = first.sockets;
                let has = |v4| first.iter().any(|(address, _)| address.is_ipv4() == v4);
                sockets.retain(|(address, _)| has(address.is_ipv4()));
                if sockets.len() < first.len() {
                    let source = io::Error::other("an address family that the others have is gone");
                    return Err(system("joining the others")(source));
                }
            }
            let strays = Pair::new().map_err(system("a pair of sockets"))?;
            let kept = Kept { sockets, strays };
            kept.put_into(ark).map_err(system("keeping a socket"))?;
            kept
        }
    };
    if !register.occupy(slot).map_err(system("marking the place"))? {
        let source = io::Error::other("a child of a process that has ended holds its place");
        return Err(system("marking the place")(source));
    }
    let pid = std::process::id();
    let name = fs::read_to_string("/proc/self/comm").unwrap_or_default().trim().to_owned();
    roster.enter(slot, Identity { pid, uid: geteuid().as_raw(), name });
    Ok((slot, kept))
}

/// Each with the address that it is bound to.
fn with_addresses(sockets: Vec<OwnedFd>) -> io::Result<Sockets> {
    let sockets = sockets.into_iter().map(UdpSocket::from);
    sockets.map(|socket| Ok((socket.local_addr()?.ip(), socket.into()))).collect()
}

/// Throws away what a socket holds.
fn empty(socket: &impl AsRawFd) {
    while recv(socket.as_raw_fd(), &mut [], MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_TRUNC).is_ok() {}
}
