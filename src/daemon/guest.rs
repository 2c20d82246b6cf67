//! One process that is served: its questions, in turn, and what is left of it when it has gone.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use super::account::{Account, Quota, cost};
use super::house::House;
use super::lent::{Finder, Lent, invalid};
use super::outbox::Outbox;
use super::owned::{Owned, Role};
use crate::congestion::{Rate, SharedRate};
use crate::host::HandedOver;
use crate::host::inspect::{Passes, Snapshot};
use crate::nic::{Answer, Command, ControlError, MemoryCommand, Object, QpStatus};
use crate::remote::link::{LONGEST_QUESTION, Link};
use crate::remote::message::{Ask, BoundPorts, Refusal, Reply, Told, Welcome};
use crate::shared::remote_memory::RemoteMemory;
use crate::shared::{Doorbells, GuestId, HeldPages};
use crate::threads::lock;
use crate::time::monotonic;
use crate::verbs::{AddressVector, AsyncEvent, FileId, QpType};

/// One of those that are served, as others see it.
#[derive(Debug)]
pub(super) struct Guest {
    /// Its number here; 0: it has none.
    pub(super) pid: u32,
    pub(super) name: String,
    pub(super) uid: u32,
    pub(super) slot: u8,
    pub(super) memory: Arc<RemoteMemory>,
    link: Link,
    events: Outbox,
    owned: Mutex<Owned>,
    /// What it has, of what it may have.
    account: Arc<Account>,
    /// What its connections leave.
    estate: Mutex<Option<HandedOver>>,
    /// How fast its QPs may send together, if that is bounded.
    rate: Option<SharedRate>,
    /// It was said that its memory does not answer.
    is_silent: AtomicBool,
}

/// Doorbells that are not heard yet, and their page, which is to be held before.
pub(super) type Unheard = (Doorbells, HeldPages);

/// What it brings along.
#[derive(Debug)]
pub(super) struct Arrival {
    pub(super) pid: u32,
    pub(super) name: String,
    pub(super) uid: u32,
    pub(super) slot: u8,
    pub(super) memory: RemoteMemory,
    pub(super) link: Link,
    pub(super) events: Link,
}

impl Guest {
    pub(super) fn new(arrival: Arrival, quota: &Quota, account: Arc<Account>) -> Guest {
        let Arrival { pid, name, uid, slot, memory, link, events } = arrival;
        let (owned, estate, events) = (Mutex::default(), Mutex::default(), Outbox::new(events));
        let is_bounded = quota.bits_per_second != u64::MAX;
        let rate = is_bounded.then(|| SharedRate::new(Rate(quota.bits_per_second as f64)));
        Guest {
            pid,
            name,
            uid,
            slot,
            memory: Arc::new(memory),
            link,
            events,
            owned,
            account,
            estate,
            rate,
            is_silent: AtomicBool::new(false),
        }
    }

    /// True if an event is of something of its, or of the port or the device as a whole.
    pub(super) fn concerns(&self, event: AsyncEvent) -> bool {
        is_of(&lock(&self.owned), event)
    }

    /// True if this is its.
    pub(super) fn has(&self, object: Object) -> bool {
        lock(&self.owned).has(object)
    }

    /// Tells it that it is served, and hands over what it needs for that.
    pub(super) fn welcome(&self, house: &House, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let welcome = Welcome {
            slot: self.slot,
            qps: house.device.limits().qps,
            epoch: monotonic().saturating_sub(house.now().0),
            port: house.device.port(),
        };
        self.link.send(&Ok::<_, String>(welcome), fds)
    }

    /// Tells it of an event. It is not waited for: what it does not take is kept.
    pub(super) fn tell(&self, event: AsyncEvent) {
        if self.events.send(event).is_err() {
            self.dismiss();
        }
    }

    /// Tells it of events that were kept, as far as it takes them.
    pub(super) fn tell_kept(&self) {
        if self.events.send_kept().is_err() {
            self.dismiss();
        }
    }

    /// True once, after the engine has abandoned its memory.
    pub(super) fn has_fallen_silent(&self) -> bool {
        self.memory.is_abandoned() && !self.is_silent.swap(true, Relaxed)
    }

    /// It is not served any more, whatever it does.
    pub(super) fn dismiss(&self) {
        self.link.shut();
        self.events.shut();
    }

    /// Serves it until it has gone. Its doorbells are heard from its first question on: it has mapped their page by then, and
    /// can take none of it away from then on.
    pub(super) fn serve(&self, house: &House, (bells, page): Unheard) {
        let mut lent = Lent::default();
        let mut silent = Some((bells, page));
        let mut heard = None;
        loop {
            // Nonsense ends it as its end does.
            let Ok(Some((ask, fds))) = self.link.receive_at_most::<Ask>(LONGEST_QUESTION) else { break };
            let ready = silent.take().map_or(Ok(()), |(bells, page): Unheard| {
                page.hold().map_err(invalid)?;
                heard = Some(house.hear(bells)?);
                Ok(())
            });
            let is_ready = ready.is_ok();
            let answer: Reply = ready
                .and_then(|()| self.answer(house, &mut lent, ask, fds))
                .map_err(|error| Refusal { errno: error.errno(), why: error.to_string() });
            lent.close_unused();
            if self.link.send(&answer, &[]).is_err() || !is_ready {
                break;
            }
        }
        self.leave(house, heard);
    }

    /// What takes all of its objects away.
    pub(super) fn farewell(&self) -> Vec<Command> {
        lock(&self.owned).farewell()
    }

    /// Nothing of it is touched from here on, and nothing of it is left.
    fn leave(&self, house: &House, bells: Option<GuestId>) {
        self.memory.fence();
        self.dismiss();
        if let Some(bells) = bells {
            house.forget_bells(bells);
        }
        for command in self.farewell() {
            let _ = house.call(command);
        }
        *lock(&self.owned) = Owned::default();
        // Its peers hear of its end; one that is not told finds out by its timeouts.
        if let Some(estate) = lock(&self.estate).take() {
            let most = house.config.quota.qps as usize;
            let _ = estate.settle_for(self.slot, most, &house.device);
        }
        lock(&house.seats).leave(self.slot);
    }

    fn answer(
        &self,
        house: &House,
        lent: &mut Lent,
        ask: Ask,
        fds: Vec<OwnedFd>,
    ) -> Result<Told, ControlError> {
        let command = match ask {
            Ask::Arena { words } => {
                lent.add_arena(&self.account, words, fds)?;
                return Ok(Told::Done(true));
            }
            Ask::LargestMtu => return Ok(Told::Mtu(house.device.largest_mtu())),
            Ask::Port => return Ok(Told::Port(house.device.port())),
            Ask::Counters => {
                let counters = house.device.counters().into_iter();
                return Ok(Told::Counters(counters.map(|(name, value)| (name.to_owned(), value)).collect()));
            }
            Ask::Look => return self.look(house),
            Ask::Estate => {
                let fd =
                    fds.into_iter().next().ok_or(ControlError::NoMemory("estate: no descriptor came"))?;
                *lock(&self.estate) = Some(HandedOver::new(fd).map_err(invalid)?);
                return Ok(Told::Done(true));
            }
            Ask::TakeUnit(unit) => {
                let done = lock(&house.seats).take_unit(unit, self.slot);
                self.route(house)?;
                return Ok(Told::Done(done));
            }
            Ask::Services(services) => {
                let all = lock(&house.seats).set_services(self.slot, services);
                self.route(house)?;
                return Ok(Told::Done(all));
            }
            Ask::Ports => {
                let (version, ports) = lock(&house.seats).ports();
                return Ok(Told::Ports(BoundPorts { version, ports }));
            }
            Ask::SetPorts(BoundPorts { version, ports }) => {
                return Ok(Told::Done(lock(&house.seats).set_ports(self.slot, version, ports)));
            }
            Ask::Command(Command::ListQps) => return Ok(Told::Answer(Answer::Qps(self.list(house)))),
            Ask::Command(command) => {
                command.each_object(|object| lock(&self.owned).check(object))?;
                command
            }
            Ask::Memory(command) => {
                command.each_object(|object| lock(&self.owned).check(object))?;
                let fd = fds.into_iter().next();
                let mut finder = Finder { memory: &self.memory, lent, account: &self.account, fd };
                command.convert(&mut finder)?.into()
            }
        };
        self.carry_out(house, command)
    }

    /// Has the NIC do what the process may ask for, and keeps book.
    fn carry_out(&self, house: &House, mut command: Command) -> Result<Told, ControlError> {
        self.may_ask(house, &mut command)?;
        let role = Role::of_made(&command);
        let (changed, gone) = match &command {
            Command::Memory(command) => (command.changes(), None),
            command => (None, command.takes_away()),
        };
        let charge = match cost(&command) {
            None => None,
            Some(cost) => {
                let owned = lock(&self.owned);
                Some(self.account.charge_instead(cost, changed.and_then(|object| owned.charge_of(object)))?)
            }
        };
        let answer = house.call(command)?;
        {
            let mut owned = lock(&self.owned);
            if let (Some(charge), Some(object)) = (charge, answer.made().or(changed)) {
                owned.enter(object, role, charge);
            }
            if let Some(gone) = gone {
                owned.strike(gone);
            }
            self.events.retain(|event| is_of(&owned, event));
        }
        if let (Answer::Qp(made), Some(rate)) = (&answer, &self.rate) {
            house.call(Command::ShareRate(made.index, rate.clone()))?;
        }
        if role == Role::Gsi {
            self.route(house)?;
        }
        Ok(Told::Answer(answer))
    }

    /// What takes a privilege of an adapter's user takes it here. What a process says of itself is put right.
    fn may_ask(&self, house: &House, command: &mut Command) -> Result<(), ControlError> {
        let refused = |why: &str| Err(ControlError::Elsewhere { errno: libc::EPERM, why: why.to_owned() });
        match command {
            Command::ModifyQp(_, attr) => {
                attr.av.as_mut().map_or(Ok(()), |path| speaks_for_its_host(house, path))
            }
            Command::CreateAh(_, path) => speaks_for_its_host(house, path),
            Command::OpenXrcd(open) => {
                open.file = open.file.map(|file| file_of(self.uid, file));
                Ok(())
            }
            Command::Memory(command) => match &**command {
                MemoryCommand::CreateQp { init, .. } => match init.qp_type {
                    QpType::Gsi if lock(&self.owned).gsi().is_some() => Err(ControlError::Taken("QP1")),
                    QpType::RawPacket if self.uid != 0 && self.uid != house.uid => {
                        refused("raw packet QPs are for root and for the user whose NIC it is")
                    }
                    _ => Ok(()),
                },
                _ => Ok(()),
            },
            command if command.is_for_the_device() => {
                refused("this is not for processes that a NIC serves to ask")
            }
            _ => Ok(()),
        }
    }

    /// Its QPs.
    fn list(&self, house: &House) -> Vec<QpStatus> {
        let own = lock(&self.owned).names();
        house.list(|object| own.contains(&object))
    }

    /// Management datagrams that are for it come to its QP1, if it has one.
    fn route(&self, house: &House) -> Result<(), ControlError> {
        let Some(gsi) = lock(&self.owned).gsi() else { return Ok(()) };
        let routes = lock(&house.seats).routes(self.slot);
        house.call(Command::RouteGsi(gsi, Box::new(routes))).map(drop)
    }

    /// What there is to be seen of its objects.
    fn look(&self, house: &House) -> Result<Told, ControlError> {
        let own = lock(&self.owned).names();
        let all = house.snapshot(|object| own.contains(&object));
        // What is counted for all together is for the NIC to tell.
        let snapshot = Snapshot { counters: BTreeMap::new(), passes: Passes::default(), ..all };
        let text = serde_json::to_vec(&snapshot).map_err(|error| elsewhere(libc::EIO, &error))?;
        Ok(Told::Look(text))
    }
}

/// True if an event is of an object in the book, or of the device as a whole.
fn is_of(owned: &Owned, event: AsyncEvent) -> bool {
    match event {
        AsyncEvent::Qp(qp, _) => owned.has(Object::Qp(qp)),
        AsyncEvent::Cq(cq, _) => owned.has(Object::Cq(cq)),
        AsyncEvent::Srq(srq, _) => owned.has(Object::Srq(srq)),
        AsyncEvent::Device(_) => true,
        // Each client sees the port itself.
        AsyncEvent::Port(_) => false,
    }
}

/// Nobody shows that it has the file open whose domain it asks for: those of one user share their domains, and no others.
pub(super) fn file_of(uid: u32, file: FileId) -> FileId {
    // Numbers of devices have 32 bits (`new_encode_dev` of the kernel).
    FileId { device: file.device & 0xffff_ffff | u64::from(uid) << 32, ..file }
}

/// A client sends from an address of the interface's table, and from the interface's own station (`ib_modify_qp` of the kernel fills in
/// both from the GID table).
fn speaks_for_its_host(house: &House, path: &mut AddressVector) -> Result<(), ControlError> {
    if !house.device.gids().iter().any(|entry| entry.gid == path.sgid) {
        return Err(ControlError::NotFound("address of this interface to send from"));
    }
    path.smac = house.device.port().mac;
    Ok(())
}

fn elsewhere(errno: i32, error: &dyn std::fmt::Display) -> ControlError {
    ControlError::Elsewhere { errno, why: error.to_string() }
}
