//! One process that is served: its questions, in turn, and what is left of it when it has gone.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use super::account::{Account, Quota, cost};
use super::house::House;
use super::lent::{Lent, invalid, no_descriptor};
use super::outbox::Outbox;
use super::owned::{Gone, Making, Owned};
use crate::congestion::{Rate, SharedRate};
use crate::host::Estate;
use crate::host::adapter::Object;
use crate::host::inspect::{Passes, Snapshot};
use crate::nic::{Answer, Command, ControlError, PlantedBug, QpStatus, ReceiveSource};
use crate::remote::link::{LONGEST_QUESTION, Link};
use crate::remote::message::{Ask, BoundPorts, Memory, Receives, Refusal, Reply, Source, Told, Welcome};
use crate::shared::remote_memory::{RemoteMemory, Use};
use crate::shared::{Doorbells, GuestId, HeldPages, HostMemory, PageList};
use crate::threads::lock;
use crate::time::monotonic;
use crate::verbs::{Access, AsyncEvent, FileId, QpInit, QpType};

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
    estate: Mutex<Option<Estate>>,
    /// How fast its QPs may send together, if that is bounded.
    rate: Option<SharedRate>,
    /// It was said that its memory does not answer.
    is_silent: AtomicBool,
}

/// Doorbells that are not heard yet, and their page, which is to be held before.
pub(super) type Unheard = (Doorbells, HeldPages);

/// What the NIC holds of a client while it answers the client's questions.
#[derive(Debug)]
pub(super) struct Session {
    lent: Lent,
    unheard: Option<Unheard>,
    heard: Option<GuestId>,
}

impl Session {
    /// Before the first question.
    pub(super) fn new(unheard: Unheard) -> Session {
        Session { lent: Lent::default(), unheard: Some(unheard), heard: None }
    }
}

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
        let owned = lock(&self.owned);
        match object {
            Object::Qp(qp) => owned.has_qp(qp),
            Object::Pd(pd) => owned.has_pd(pd),
        }
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

    /// Waits for the client's next question, and answers it. False: it asks no more. The client's doorbells are heard from its first
    /// question on: it has mapped their page by then, and can take none of it away from then on.
    pub(super) fn answer_next(&self, house: &House, session: &mut Session) -> bool {
        // Nonsense ends it as its end does.
        let Ok(Some((ask, fds))) = self.link.receive_at_most::<Ask>(LONGEST_QUESTION) else { return false };
        let ready = session.unheard.take().map_or(Ok(()), |(bells, page)| {
            page.hold().map_err(invalid)?;
            let page = house.hear(bells)?;
            session.lent.ring_by(page);
            session.heard = Some(page);
            Ok(())
        });
        let is_ready = ready.is_ok();
        let answer: Reply = ready
            .and_then(|()| self.answer(house, &mut session.lent, ask, fds))
            .map_err(|error| Refusal { errno: error.errno(), why: error.to_string() });
        session.lent.close_unused();
        self.link.send(&answer, &[]).is_ok() && is_ready
    }

    /// What takes all of its objects away.
    pub(super) fn farewell(&self) -> Vec<Command> {
        lock(&self.owned).farewell()
    }

    /// Nothing of it is touched from here on, and nothing of it is left.
    pub(super) fn leave(&self, house: &House, session: Session) {
        self.memory.fence();
        self.dismiss();
        if let Some(bells) = session.heard.filter(|_| !PlantedBug::HearsTheGone.is()) {
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
                let fd = fds.first().ok_or_else(no_descriptor)?;
                let estate = Estate::of(fd.as_fd()).map_err(invalid)?;
                *lock(&self.estate) = Some(estate);
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
            Ask::Command(mut command) => {
                lock(&self.owned).check(&command)?;
                speaks_for_its_host(house, &mut command)?;
                if let Command::OpenXrcd(open) = &mut command {
                    open.file = open.file.map(|file| file_of(self.uid, file));
                }
                command
            }
            Ask::Register { pd, access, start, memory } => {
                lock(&self.owned).pd(pd)?;
                self.may_register(memory, access)?;
                Command::RegisterMemory { pd, access, start, memory: self.memory(memory) }
            }
            Ask::Reregister { mr, pd, access, translation } => {
                {
                    let owned = lock(&self.owned);
                    owned.mr(mr)?;
                    pd.map_or(Ok(()), |pd| owned.pd(pd))?;
                }
                if let Some((_, memory)) = translation {
                    self.may_register(memory, access.unwrap_or_default())?;
                }
                let translation = translation.map(|(start, memory)| (start, self.memory(memory)));
                Command::ReregisterMemory { mr, pd, access, translation }
            }
            Ask::AllocFast { pd, memory, pages, count } => {
                lock(&self.owned).pd(pd)?;
                let region = lent.words(pages, PageList::size(count))?;
                let pages = PageList::on(&region, count).map_err(invalid)?;
                Command::AllocFastMemory { pd, memory: self.memory(memory), pages }
            }
            Ask::CreateCq { ring, capacity } => {
                let ring = lent.completions(ring, capacity)?;
                Command::CreateCq { ring, notify: lent.channel(&self.account, fds)? }
            }
            Ask::ResizeCq { cq, ring, capacity } => {
                lock(&self.owned).cq(cq)?;
                Command::ResizeCq { cq, ring: lent.completions(ring, capacity)? }
            }
            Ask::CreateSrq { pd, init, ring } => {
                lock(&self.owned).srq_init(pd, &init)?;
                Command::CreateSrq { pd, init, ring: lent.receives(ring)? }
            }
            Ask::ModifySrq { srq, ring, limit } => {
                lock(&self.owned).srq(srq)?;
                let ring = ring.map(|ring| lent.receives(ring)).transpose()?;
                Command::ModifySrq { srq, ring, limit }
            }
            Ask::CreateQp { pd, send_cq, recv_cq, init, sends, receives: source } => {
                {
                    let owned = lock(&self.owned);
                    owned.pd(pd)?;
                    owned.cq(send_cq)?;
                    owned.cq(recv_cq)?;
                    self.may_have(house, &owned, &init)?;
                    if let Source::Shared(srq) = source {
                        owned.srq(srq)?;
                    }
                }
                let caps = &init.caps;
                let sends = lent.sends(sends, caps)?;
                let receives = match source {
                    Source::Own(place) => {
                        let (capacity, max_sge) = (caps.max_recv_wr, caps.max_recv_sge);
                        ReceiveSource::Own(lent.receives(Receives { place, capacity, max_sge })?)
                    }
                    Source::Shared(srq) => ReceiveSource::Shared(srq),
                    Source::None => ReceiveSource::None,
                };
                let command = Command::CreateQp { pd, send_cq, recv_cq, init, sends, receives };
                let told = self.carry_out(house, command)?;
                if init.qp_type == QpType::Gsi {
                    self.route(house)?;
                }
                return Ok(told);
            }
        };
        self.carry_out(house, command)
    }

    /// Has the NIC do it, and keeps book.
    fn carry_out(&self, house: &House, command: Command) -> Result<Told, ControlError> {
        let (gone, making) = (Gone::by(&command), Making::by(&command));
        let charge = match cost(&command) {
            None => None,
            Some(cost) => {
                let owned = lock(&self.owned);
                Some(self.account.charge_instead(cost, owned.replaced_by(&command))?)
            }
        };
        let answer = house.call(command)?;
        {
            let mut owned = lock(&self.owned);
            if let Some(charge) = charge {
                owned.made(making, &answer, charge);
            }
            owned.unmade(&gone);
            self.events.retain(|event| is_of(&owned, event));
        }
        if let (Answer::Qp(made), Some(rate)) = (&answer, &self.rate) {
            house.call(Command::ShareRate(made.index, rate.clone()))?;
        }
        Ok(Told::Answer(answer))
    }

    /// Its QPs.
    fn list(&self, house: &House) -> Vec<QpStatus> {
        let (qps, _) = lock(&self.owned).names();
        house.list(|qp| qps.contains(&qp))
    }

    /// What takes a privilege of an adapter's user takes it here.
    fn may_have(&self, house: &House, owned: &Owned, init: &QpInit) -> Result<(), ControlError> {
        match init.qp_type {
            QpType::Gsi if owned.gsi().is_some() => Err(ControlError::Taken("QP1")),
            QpType::RawPacket if self.uid != 0 && self.uid != house.uid => {
                let why = "raw packet QPs are for root and for the user whose NIC it is".into();
                Err(ControlError::Elsewhere { errno: libc::EPERM, why })
            }
            _ => Ok(()),
        }
    }

    /// Memory is mapped, and may be used as `access` says, when it is registered.
    fn may_register(&self, memory: Memory, access: Access) -> Result<(), ControlError> {
        let Memory::At { address, length, on_demand: false } = memory else { return Ok(()) };
        let what = if access.contains(Access::LOCAL_WRITE) { Use::Write } else { Use::Read };
        self.memory.check(address, length, what).map_err(|error| {
            let errno = error.raw_os_error().unwrap_or(libc::EFAULT);
            let why =
                format!("{length} bytes at {address:#x} are not mapped, or not for this access: {error}");
            ControlError::Elsewhere { errno, why }
        })
    }

    /// Management datagrams that are for it come to its QP1, if it has one.
    fn route(&self, house: &House) -> Result<(), ControlError> {
        let Some(gsi) = lock(&self.owned).gsi() else { return Ok(()) };
        let routes = lock(&house.seats).routes(self.slot);
        house.call(Command::RouteGsi(gsi, Box::new(routes))).map(drop)
    }

    fn memory(&self, memory: Memory) -> HostMemory {
        match memory {
            Memory::Null => HostMemory::null(),
            Memory::At { address, length, on_demand } => {
                let length = usize::try_from(length).unwrap_or(usize::MAX);
                HostMemory::remote(&self.memory, address, length, on_demand)
            }
        }
    }

    /// What there is to be seen of its objects.
    fn look(&self, house: &House) -> Result<Told, ControlError> {
        let (qps, pds) = lock(&self.owned).names();
        let all = house.snapshot(|qp| qps.contains(&qp), |pd| pds.contains(&pd));
        // What is counted for all together is for the NIC to tell.
        let snapshot = Snapshot { counters: BTreeMap::new(), passes: Passes::default(), ..all };
        let text = serde_json::to_vec(&snapshot).map_err(|error| elsewhere(libc::EIO, &error))?;
        Ok(Told::Look(text))
    }
}

/// True if an event is of an object in the book, or of the device as a whole.
fn is_of(owned: &Owned, event: AsyncEvent) -> bool {
    match event {
        AsyncEvent::Qp(qp, _) => owned.has_qp(qp),
        AsyncEvent::Cq(cq, _) => owned.has_cq(cq),
        AsyncEvent::Srq(srq, _) => owned.has_srq(srq),
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
fn speaks_for_its_host(house: &House, command: &mut Command) -> Result<(), ControlError> {
    let path = match command {
        Command::ModifyQp(_, attr) => attr.av.as_mut(),
        Command::CreateAh(_, path) => Some(&mut **path),
        _ => None,
    };
    let Some(path) = path else { return Ok(()) };
    if !house.device.gids().iter().any(|entry| entry.gid == path.sgid) {
        return Err(ControlError::NotFound("address of this interface to send from"));
    }
    path.smac = house.device.port().mac;
    Ok(())
}

fn elsewhere(errno: i32, error: &dyn std::fmt::Display) -> ControlError {
    ControlError::Elsewhere { errno, why: error.to_string() }
}
