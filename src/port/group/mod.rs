//! Several processes on one device, over UDP or packet sockets: each has an engine of its own, and no data passes from
//! one process to another.
//!
//! All UDP sockets on RoCE's port form one reuseport group (`SO_REUSEPORT`), and a classic BPF program selects the
//! socket for each datagram (`steering`). A member has a *slot*, a place in that group, and owns *units* of QPNs: a
//! unit is all QPNs with the same upper 8 bits. A slot's first unit has the slot's number. Communication IDs begin with
//! the unit as well. The kernel therefore delivers each datagram to the right process, and no process stands between
//! the others and the link. Packet sockets of an interface form a group of their own, in which each member's socket
//! takes the packets of its units; the members' UDP sockets only hold the port.
//!
//! ```text
//!  rendezvous  an abstract listening socket of all members: passes the other descriptors to newcomers
//!  fd_keeper   the sockets of all slots, kept open after their members end, because closing one renumbers the group;
//!              and a socket pair for each slot, over which members pass on datagrams that reached the wrong process
//!  register    the roster (the owner of each slot, unit, service and port number), and the locks that show which
//!              members live
//! ```
//!
//! No single process keeps the group. The group begins with its first member and ends with its last, and any member may
//! be killed at any time. Nothing is in a file system. All members are of one user, because the kernel lets only one
//! user's processes share a port. Any process may bind the rendezvous' name, so a newcomer checks the user of the
//! rendezvous, and the rendezvous the file of the newcomer. No other part has a name.

mod error;
mod fd_keeper;
mod register;
mod rendezvous;
mod steering;
mod stray;
mod units;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixDatagram;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::net::if_::if_nameindex;
use nix::sys::socket::{MsgFlags, recv};
use nix::unistd::geteuid;

use crate::udp::sys;
pub use error::JoinError;
use fd_keeper::FdKeeper;
use register::Register;
use rendezvous::{GroupSearch, Rendezvous};
use roxie_base::descriptors::children;
use roxie_base::roster::{Denied, Identity, PortRequest, Room, Roster};
use roxie_base::text::process_name;
use roxie_base::threads::{lock, spawn_unsignalled};
use steering::slot_of;
pub(super) use steering::{ATTRIBUTE, DESTINATION_QP, MULTICAST, QP1, REMOTE_ID, REQUEST_ID};
pub(super) use steering::{Target, target};
use stray::Pair;
pub(super) use stray::{STRAY_HEADER, Stray, StrayInbox};
pub(super) use units::Units;

/// Maximum number of processes in one group.
pub const SLOTS: usize = 128;
/// Interval at which members check whether others have ended.
const LOOK: Duration = Duration::from_secs(1);
/// Receive buffer of a socket without a reader, in bytes: the least that the kernel allows.
const UNREAD: i32 = 1;

/// The name of a group in a network namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupId {
    /// The UDP port.
    pub port: u16,
    /// The interface, in a group of packet sockets; `None`: a group of UDP sockets.
    pub interface: Option<String>,
}

impl GroupId {
    /// True if a program selects the socket for each datagram.
    fn is_steered(&self) -> bool {
        self.interface.is_none()
    }
}

/// Bound sockets with their addresses: one for each address family.
pub(crate) type Sockets = Vec<(IpAddr, OwnedFd)>;

/// Makes a newcomer's sockets. True: they are the first of a group, so no other socket may be on the port.
type MakeSockets<'a, E> = &'a dyn Fn(bool) -> Result<Sockets, E>;

/// A process's place in a group. Dropping it leaves the group, as the end of the process does.
#[derive(Debug)]
pub struct Member {
    inner: Arc<Inner>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Inner {
    slot: u8,
    rendezvous: Rendezvous,
    fd_keeper: FdKeeper,
    register: Register,
    /// One socket of each address family.
    sockets: Vec<OwnedFd>,
    /// True if the group's program is to be attached to the sockets.
    is_steered: bool,
    units: Arc<Units>,
    /// Sequence number and content of the roster when it was last read.
    known: Mutex<(u64, Roster)>,
    /// Receives datagrams for this member that reached another one.
    strays: UnixDatagram,
    /// Sends datagrams to the members that they are for, by slot.
    senders: Mutex<BTreeMap<u8, UnixDatagram>>,
}

/// Returns the roster of this user's group in the calling thread's network namespace; `None` if there is none. Members
/// that have ended since are left out.
///
/// # Errors
/// If a group exists and cannot be queried.
pub fn roster(group: &GroupId) -> Result<Option<Roster>, JoinError> {
    let system = |source| JoinError::System { what: "reading the group's register", source };
    let Some(fds) = rendezvous::find(&rendezvous::name_of(group))? else { return Ok(None) };
    let common =
        fds.into_iter().nth(3).ok_or_else(|| system(io::Error::other("no descriptor of it arrived")))?;
    let register = Register::of(common).map_err(system)?;
    let (_, mut roster) = register.read().map_err(system)?;
    let dead = dead(&roster, &register, None);
    dead.into_iter().for_each(|slot| roster.leave(slot));
    Ok(Some(roster))
}

/// Returns this user's groups on a UDP port of the calling thread's network namespace, with their [rosters](roster).
///
/// # Errors
/// If a group exists and cannot be queried, or the interfaces cannot be listed.
pub fn all(port: u16) -> Result<Vec<(GroupId, Roster)>, JoinError> {
    let system = |source: nix::Error| JoinError::System { what: "listing interfaces", source: source.into() };
    let names = if_nameindex().map_err(system)?;
    let names = names.iter().filter_map(|interface| interface.name().to_str().ok().map(str::to_owned));
    let ids = [None].into_iter().chain(names.map(Some)).map(|interface| GroupId { port, interface });
    let rosters = ids.map(|id| Ok(roster(&id)?.map(|roster| (id, roster))));
    rosters.filter_map(Result::transpose).collect()
}

/// A new member's sockets.
#[derive(Debug)]
pub struct Joined {
    /// The new member.
    pub member: Member,
    /// The sockets that it receives on.
    pub sockets: Sockets,
}

/// Error of [`Member::join`].
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
    /// Joins this user's group in the calling thread's network namespace, or begins one.
    ///
    /// # Errors
    /// If the group cannot be joined or begun, or `make` fails.
    pub fn join<E>(group: &GroupId, make: MakeSockets<'_, E>) -> Result<Joined, Refused<E>> {
        let name = rendezvous::name_of(group);
        let (rendezvous, fd_keeper, register) = match rendezvous::find_or_begin(&name)? {
            GroupSearch::Group(fds) => {
                let Ok([rendezvous, keep, add, common]) = <[OwnedFd; 4]>::try_from(fds) else {
                    let source = io::Error::other("unexpected descriptors from the group");
                    return Err(system("receiving from the group")(source));
                };
                let register =
                    Register::of(common).map_err(system("opening its register (is /proc mounted?)"))?;
                (Rendezvous::new(rendezvous).map_err(system("an eventfd"))?, FdKeeper { keep, add }, register)
            }
            GroupSearch::New(rendezvous) => {
                let register =
                    Register::create().map_err(system("memory for its register (is /proc mounted?)"))?;
                let fd_keeper = FdKeeper::new().map_err(system("a pair of sockets"))?;
                (Rendezvous::new(rendezvous).map_err(system("an eventfd"))?, fd_keeper, register)
            }
        };
        let entered = register.with(|roster| take_place(roster, &fd_keeper, &register, make));
        let (slot, SlotSockets { sockets, strays }) = entered.map_err(system("its register"))??;
        let duplicates: io::Result<Vec<_>> = sockets.iter().map(|(_, socket)| socket.try_clone()).collect();
        let inner = Inner {
            slot,
            rendezvous,
            fd_keeper,
            sockets: duplicates.map_err(system("a descriptor"))?,
            is_steered: group.is_steered(),
            units: Arc::default(),
            known: Mutex::default(),
            strays: strays.receives,
            senders: Mutex::default(),
            register,
        };
        inner.units.add(slot);
        let inner = Arc::new(inner);
        let mut member = Member { inner: Arc::clone(&inner), thread: None };
        member.inner.change(|_| ()).map_err(system("steering datagrams"))?;
        children::keep_from(member.descriptors());
        let thread = spawn_unsignalled("roxie-group", move || inner.serve());
        member.thread = Some(thread.map_err(system("a thread"))?);
        Ok(Joined { member, sockets })
    }

    /// Returns the slot. The first unit has the same number.
    pub fn slot(&self) -> u8 {
        self.inner.slot
    }

    /// Allocates one more unit, for more QPs. `None` if all are taken.
    ///
    /// # Errors
    /// If the register is not available.
    pub fn add_unit(&self) -> io::Result<Option<u8>> {
        let unit = self.inner.change(|roster| roster.add_unit(self.inner.slot))?;
        unit.into_iter().for_each(|unit| self.inner.units.add(unit));
        Ok(unit)
    }

    /// Takes over the unit of a process that has ended, to notify its peers in its name.
    ///
    /// # Errors
    /// If the unit is not free, or the register is not available (`EIO`).
    pub fn take_unit(&self, unit: u8) -> Result<(), Denied> {
        let taken = self.inner.change(|roster| roster.take_unit(unit, self.inner.slot, Room::ALL));
        taken.map_err(no_register)??;
        self.inner.units.add(unit);
        Ok(())
    }

    /// Routes requests for these services here: (service ID, the only address or all).
    ///
    /// # Errors
    /// If this process may not have some of them ([`Roster::set_services`]), or the register is not available (`EIO`).
    pub fn set_services(
        &self,
        services: impl IntoIterator<Item = (u64, Option<IpAddr>)>,
    ) -> Result<(), Denied> {
        self.inner.change(|roster| roster.set_services(self.inner.slot, services)).map_err(no_register)?
    }

    /// Executes a request about port numbers. Returns the number.
    ///
    /// # Errors
    /// As [`Roster::port`]; `EIO` if the register is not available. The caller must check privileged ports: all
    /// members are of one user.
    pub fn port(&self, request: PortRequest) -> Result<u16, Denied> {
        let inner = &self.inner;
        let result = inner.register.with(|roster| {
            remove_dead(roster, &inner.fd_keeper, &inner.register, Some(inner.slot));
            roster.port(inner.slot, request, 0)
        });
        result.map_err(no_register)?
    }

    /// True if a datagram to that address is for this process, so that the kernel chose right.
    #[inline]
    pub(super) fn is_ours(&self, datagram: &[u8], destination: IpAddr) -> bool {
        match target(datagram) {
            Target::Unit(unit) => self.inner.units.has(unit),
            Target::Release(unit) if self.inner.units.has(unit) => true,
            other => self.inner.is_ours_slow(other, destination),
        }
    }

    /// Returns this member's units.
    pub(super) fn units(&self) -> &Arc<Units> {
        &self.inner.units
    }

    /// Passes `message` on to the process that `datagram` is for. False if there is none, or its queue is full.
    pub(super) fn hand_over(&self, datagram: &[u8], destination: IpAddr, message: &[u8]) -> bool {
        self.inner.hand_over(target(datagram), destination, message)
    }

    /// Returns the socket that receives strays.
    pub(super) fn strays(&self) -> &UnixDatagram {
        &self.inner.strays
    }

    /// Returns the descriptors that keep the group, and this member's place in it, alive.
    fn descriptors(&self) -> Vec<RawFd> {
        let inner = &self.inner;
        let all = [&inner.fd_keeper.keep, &inner.fd_keeper.add];
        let all = all.into_iter().chain(&inner.sockets).map(AsRawFd::as_raw_fd);
        let rest = [inner.rendezvous.listener().as_raw_fd(), inner.strays.as_raw_fd()];
        all.chain(rest).chain(inner.register.descriptors()).collect()
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let inner = &self.inner;
        children::forget(self.descriptors());
        // The sockets stay in the group; shrink their buffers, so that datagrams to them are dropped.
        for socket in &inner.sockets {
            let _ = sys::set_int(socket.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, UNREAD);
        }
        let _ = inner.change(|roster| roster.leave(inner.slot));
        inner.register.vacate(inner.slot);
        inner.rendezvous.close();
        if let Some(thread) = self.thread.take() {
            // The thread panics only if a member's invariants are broken, and has reported it then.
            let _ = thread.join();
        }
    }
}

/// Error: the group's register is not available.
fn no_register(error: io::Error) -> Denied {
    Denied::new(libc::EIO, error.to_string())
}

impl Inner {
    fn serve(&self) {
        let common = [self.fd_keeper.keep.as_fd(), self.fd_keeper.add.as_fd(), self.register.common()];
        self.rendezvous.serve(&common, LOOK, || {
            let roster = self.register.read().map(|(_, roster)| roster);
            if roster.is_ok_and(|roster| !dead(&roster, &self.register, Some(self.slot)).is_empty()) {
                let _ = self.change(|_| ());
            }
        });
    }

    /// Changes the roster, and updates the group's program.
    fn change<R>(&self, act: impl FnOnce(&mut Roster) -> R) -> io::Result<R> {
        self.register.with(|roster| {
            remove_dead(roster, &self.fd_keeper, &self.register, Some(self.slot));
            let result = act(roster);
            if self.is_steered {
                let program = steering::program(roster);
                for socket in &self.sockets {
                    sys::attach_steering(socket.as_fd(), &program)?;
                }
            }
            Ok(result)
        })?
    }

    #[cold]
    fn is_ours_slow(&self, target: Target, destination: IpAddr) -> bool {
        if !matches!(target, Target::Service(_) | Target::Release(_)) {
            return true;
        }
        match self.slot_of(target, destination) {
            Some(slot) => slot == self.slot,
            // A request for a service without a listener, or to release an unknown connection, is answered by the
            // member that got it; if all get it, by the first.
            None => self.is_steered || lock(&self.known).1.taken().next() == Some(self.slot),
        }
    }

    /// Returns the slot that a target is for, by the newest roster.
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
    fn hand_over(&self, target: Target, destination: IpAddr, message: &[u8]) -> bool {
        let owner = self.slot_of(target, destination);
        let Some(owner) = owner.filter(|slot| *slot != self.slot) else { return false };
        let mut senders = lock(&self.senders);
        let sender = match senders.entry(owner) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(unknown) => {
                // Do not wait if another member holds the roster: the datagram is lost then, and retransmitted.
                let sockets = self.register.try_hold(|| SlotSockets::of_slot(&self.fd_keeper, owner));
                let Ok(Ok(Some(owned))) = sockets else { return false };
                unknown.insert(owned.strays.sends)
            }
        };
        sender.send(message).is_ok()
    }
}

/// A slot's sockets in the `FdKeeper`: exist as long as the group, and pass from one member with this slot to the
/// next.
struct SlotSockets {
    sockets: Sockets,
    strays: Pair,
}

impl SlotSockets {
    /// Returns the sockets of a slot; `None` if no member has had the slot yet. Caller must hold the roster.
    fn of_slot(fd_keeper: &FdKeeper, slot: u8) -> io::Result<Option<SlotSockets>> {
        let Some(mut fds) = fd_keeper.peek(slot.into())? else { return Ok(None) };
        let strays = fds.split_off(fds.len().saturating_sub(2));
        let Ok([receives, sends]) = <[OwnedFd; 2]>::try_from(strays) else {
            return Err(io::Error::other("unexpected descriptors kept for a slot"));
        };
        let strays = Pair { receives: receives.into(), sends: sends.into() };
        Ok(Some(SlotSockets { sockets: with_addresses(fds)?, strays }))
    }

    fn put_into(&self, fd_keeper: &FdKeeper) -> io::Result<()> {
        let strays = [self.strays.receives.as_fd(), self.strays.sends.as_fd()];
        let all: Vec<_> = self.sockets.iter().map(|(_, socket)| socket.as_fd()).chain(strays).collect();
        fd_keeper.push(&all)
    }
}

/// Returns the slots of processes that have ended.
fn dead(roster: &Roster, register: &Register, own: Option<u8>) -> Vec<u8> {
    let taken = roster.taken().filter(|slot| Some(*slot) != own);
    taken.filter(|slot| register.is_occupied(*slot).is_ok_and(|lives| !lives)).collect()
}

/// Removes members that have ended without leaving.
fn remove_dead(roster: &mut Roster, fd_keeper: &FdKeeper, register: &Register, own: Option<u8>) {
    for slot in dead(roster, register, own) {
        roster.leave(slot);
        // Shrink and empty its sockets, so that datagrams to them take up no memory.
        let Some(owned) = SlotSockets::of_slot(fd_keeper, slot).ok().flatten() else { continue };
        empty(&owned.strays.receives);
        for (_, socket) in owned.sockets {
            let _ = sys::set_int(socket.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, UNREAD);
            empty(&socket);
        }
    }
}

/// Enters a newcomer and its sockets. Caller must hold the roster.
fn take_place<E>(
    roster: &mut Roster,
    fd_keeper: &FdKeeper,
    register: &Register,
    make: MakeSockets<'_, E>,
) -> Result<(u8, SlotSockets), Refused<E>> {
    remove_dead(roster, fd_keeper, register, None);
    let slot = roster.next_slot().ok_or(JoinError::Full)?;
    let owned = match SlotSockets::of_slot(fd_keeper, slot).map_err(system("taking a socket over"))? {
        Some(owned) => {
            // Drop datagrams for the slot's earlier process.
            owned.sockets.iter().for_each(|(_, socket)| empty(socket));
            empty(&owned.strays.receives);
            owned
        }
        None => {
            let mut sockets = make(roster.slots.is_empty()).map_err(Refused::Sockets)?;
            // Places are counted per address family, so all slots must have the same families.
            if let Some(first) = SlotSockets::of_slot(fd_keeper, 0).map_err(system("looking for a socket"))? {
                let first = first.sockets;
                let has = |v4| first.iter().any(|(address, _)| address.is_ipv4() == v4);
                sockets.retain(|(address, _)| has(address.is_ipv4()));
                if sockets.len() < first.len() {
                    let source = io::Error::other("an address family that the others have is gone");
                    return Err(system("joining the others")(source));
                }
            }
            let strays = Pair::new().map_err(system("a pair of sockets"))?;
            let owned = SlotSockets { sockets, strays };
            owned.put_into(fd_keeper).map_err(system("keeping a socket"))?;
            owned
        }
    };
    if !register.occupy(slot).map_err(system("marking the place"))? {
        let source = io::Error::other("a child of a process that has ended holds its place");
        return Err(system("marking the place")(source));
    }
    let pid = std::process::id();
    roster.enter(slot, Identity { pid, uid: geteuid().as_raw(), name: process_name("self") });
    Ok((slot, owned))
}

/// Returns each socket with the address that it is bound to.
fn with_addresses(sockets: Vec<OwnedFd>) -> io::Result<Sockets> {
    let sockets = sockets.into_iter().map(UdpSocket::from);
    sockets.map(|socket| Ok((socket.local_addr()?.ip(), socket.into()))).collect()
}

/// Drops the datagrams queued in a socket.
fn empty(socket: &impl AsRawFd) {
    while recv(socket.as_raw_fd(), &mut [], MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_TRUNC).is_ok() {}
}
