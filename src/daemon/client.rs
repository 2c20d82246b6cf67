//! One client: its requests, answered in turn, and its end.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use super::acceptor::UserClass;
use super::account::{Account, Charge, Resource, cost, one, several};
use super::lent::{Finder, Lent, PassedFd, invalid};
use super::outbox::Outbox;
use super::owned::{Creation, Owned, Role};
use super::quota::Quota;
use super::registry::Registry;
use roxie::host::HandedOver;
use roxie::host::inspect::{ClientEntry, Snapshot};
use roxie::remote::link::{LONGEST_REQUEST, Link};
use roxie::remote::message::{Refusal, Reply, Request, Response, Welcome};
use roxie::wire::mad::PRIVILEGED_QKEY;
use roxie_base::roster::{Denied, PortRequest, Roster};
use roxie_base::time::monotonic;
use roxie_base::{text::Foreign, threads::lock};
use roxie_nic::congestion::{Rate, SharedRate};
use roxie_nic::nic::{
    Answer, Command, ControlError, GsiRoutes, MemoryCommand, Object, QpStatus, forgets_doorbells,
};
use roxie_nic::shared::remote_memory::RemoteMemory;
use roxie_nic::shared::{Doorbells, DoorbellsId, HeldPages, Notifier};
use roxie_nic::verbs::{AsyncEvent, Gid, OpenXrcd, QpIndex, QpType};

/// A client, as other threads see it.
#[derive(Debug)]
pub(super) struct Client {
    /// Its process number, in the NIC's PID namespace; 0 if it has none there.
    pub(super) pid: u32,
    pub(super) name: Foreign,
    pub(super) uid: u32,
    pub(super) slot: u8,
    pub(super) memory: Arc<RemoteMemory>,
    pub(super) link: Link,
    pub(super) events: Outbox,
    /// Wakes it.
    pub(super) notifier: Notifier,
    owned: Mutex<Owned>,
    /// Its resources and limits.
    account: Arc<Account>,
    /// The charge for its ports and services.
    entries: Mutex<Option<Charge>>,
    /// The state of its connections, handed over for the time after its end.
    orphans: Mutex<Option<HandedOver>>,
    /// The common rate of its QPs, if it is bounded.
    rate: Option<SharedRate>,
    /// The thread that copies from and to its memory, once the client has registered memory that the NIC does not map.
    pub(super) copies: Mutex<Option<JoinHandle<()>>>,
    /// Set once it was reported that its memory does not answer.
    is_silent: AtomicBool,
}

/// Doorbells that are not read yet, and their page, which must be held before.
pub(super) type NewDoorbells = (Doorbells, HeldPages);

/// The NIC's state of a client, used while a request is answered.
#[derive(Debug)]
pub(super) struct Session {
    lent: Lent,
    new_doorbells: Option<NewDoorbells>,
    page: Option<DoorbellsId>,
    /// The doorbell page could not be taken over: the next answer is the last.
    has_failed: bool,
}

/// A request, and what came with it.
#[derive(Debug)]
pub(super) struct ReceivedRequest {
    request: Request,
    passed: Result<PassedFd, ControlError>,
}

impl Session {
    /// Before the first request.
    pub(super) fn new(new_doorbells: NewDoorbells) -> Session {
        Session { lent: Lent::default(), new_doorbells: Some(new_doorbells), page: None, has_failed: false }
    }
}

/// The facts and sockets of a new client.
#[derive(Debug)]
pub(super) struct NewClient {
    pub(super) pid: u32,
    pub(super) name: Foreign,
    pub(super) uid: u32,
    pub(super) slot: u8,
    pub(super) memory: RemoteMemory,
    pub(super) link: Link,
    pub(super) events: Link,
    pub(super) notifier: Notifier,
}

impl Client {
    pub(super) fn new(arrival: NewClient, quota: &Quota, account: Arc<Account>) -> Client {
        let NewClient { pid, name, uid, slot, memory, link, events, notifier } = arrival;
        let (owned, orphans, events) = (Mutex::default(), Mutex::default(), Outbox::new(events));
        let is_bounded = quota.bits_per_second != u64::MAX;
        let rate = is_bounded.then(|| SharedRate::new(Rate(quota.bits_per_second as f64)));
        Client {
            pid,
            name,
            uid,
            slot,
            memory: Arc::new(memory),
            link,
            events,
            notifier,
            owned,
            account,
            entries: Mutex::default(),
            orphans,
            rate,
            copies: Mutex::default(),
            is_silent: AtomicBool::new(false),
        }
    }

    /// True if an event concerns an object of the client, or the device as a whole.
    pub(super) fn concerns(&self, event: AsyncEvent) -> bool {
        lock(&self.owned).concerns(event)
    }

    /// True if the object belongs to the client.
    pub(super) fn has(&self, object: Object) -> bool {
        lock(&self.owned).has(object)
    }

    /// Returns its entry in the NIC's snapshot.
    pub(super) fn entry(&self) -> ClientEntry {
        let account =
            Resource::ALL.map(|resource| (resource.key().into(), self.account.entry(resource))).into();
        ClientEntry { pid: self.pid, uid: self.uid, name: self.name.clone(), slot: self.slot, account }
    }

    /// Sends the welcome, with the descriptors that the client needs.
    pub(super) fn welcome(&self, registry: &Registry, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let welcome = Welcome {
            slot: self.slot,
            qps: registry.device.limits().qps,
            epoch: monotonic().saturating_sub(registry.now().0),
            port: registry.device.port(),
        };
        self.link.send(&Ok::<_, String>(welcome), fds)
    }

    /// True once, after the engine has abandoned the client's memory.
    pub(super) fn has_fallen_silent(&self) -> bool {
        self.memory.is_abandoned() && !self.is_silent.swap(true, Relaxed)
    }

    /// Ends the service of this client.
    pub(super) fn dismiss(&self) {
        self.link.shut();
        self.events.shut();
    }

    /// Waits for the client's next request, and for files that come with it ([`PassedFd::of`]). `None`: the last came.
    pub(super) fn next_request(&self) -> Option<ReceivedRequest> {
        // Nonsense ends it as its end does.
        let (request, fds) = self.link.receive_at_most::<Request>(LONGEST_REQUEST).ok()??;
        let passed = PassedFd::of(&request, fds);
        Some(ReceivedRequest { request, passed })
    }

    /// Answers a request. Doorbells are read from the first request on: the client has mapped their page by then, and
    /// cannot take pages away from then on.
    pub(super) fn answer(
        &self,
        registry: &Registry,
        session: &mut Session,
        ReceivedRequest { request, passed }: ReceivedRequest,
    ) -> Reply {
        let ready = session.new_doorbells.take().map_or(Ok(()), |(bells, page)| {
            page.hold().map_err(invalid)?;
            let page = registry.add_doorbells(bells)?;
            session.lent.ring_by(page);
            session.page = Some(page);
            Ok(())
        });
        session.has_failed = ready.is_err();
        let response = ready.and_then(|()| self.act(registry, &mut session.lent, request, passed?));
        session.lent.close_unused();
        response.map_err(|error| Refusal { errno: error.errno(), why: error.to_string() })
    }

    /// Sends an answer, and waits for files that are to be closed. False: it was the last.
    pub(super) fn reply(&self, session: &Session, reply: &Reply) -> bool {
        self.close_unneeded();
        self.link.send(reply, &[]).is_ok() && !session.has_failed
    }

    fn close_unneeded(&self) {
        let files = lock(&self.owned).take_unneeded();
        drop(files);
    }

    /// Returns the commands that destroy all its objects.
    pub(super) fn farewell(&self) -> Vec<Command> {
        lock(&self.owned).farewell()
    }

    /// Ends all access to the client: fences its memory and destroys its objects. Only its slot remains.
    pub(super) fn leave(&self, registry: &Registry, session: Session) {
        self.memory.fence();
        self.dismiss();
        if let Some(bells) = session.page.filter(|_| forgets_doorbells()) {
            registry.forget_bells(bells);
        }
        for command in self.farewell() {
            let _ = registry.submit(command);
        }
        lock(&self.owned).clear();
        // Its peers hear of its end; one that is not told finds out by its timeouts.
        if let Some(orphans) = lock(&self.orphans).take() {
            let most = registry.config.quota.qps as usize;
            let _ = orphans.settle_for(self.slot, most, &registry.device);
        }
    }

    /// Closes the client's files after [`leave`](Self::leave), which may block. No other thread closes a file of a
    /// client that could block.
    pub(super) fn release(&self) {
        self.close_unneeded();
        self.link.drain();
    }

    fn act(
        &self,
        registry: &Registry,
        lent: &mut Lent,
        request: Request,
        passed: PassedFd,
    ) -> Result<Response, ControlError> {
        let command = match request {
            Request::Arena { words } => {
                lent.add_arena(&self.account, words, passed)?;
                return Ok(Response::Done(true));
            }
            Request::LargestMtu => return Ok(Response::Mtu(registry.device.largest_mtu())),
            Request::Port => return Ok(Response::Port(registry.device.port())),
            Request::Counters => {
                let counters = registry.device.counters().into_iter();
                let named = counters.map(|(name, value)| (name.to_owned(), value));
                return Ok(Response::Counters(named.collect()));
            }
            Request::Snapshot => return self.snapshot(registry),
            Request::OrphanTable => {
                let orphans = HandedOver::new(passed.memory()?).map_err(invalid)?;
                *lock(&self.orphans) = Some(orphans);
                return Ok(Response::Done(true));
            }
            Request::TakeUnit(unit) => {
                let room = registry.room_of(self.uid);
                self.enter(registry, |_| 0, |roster| roster.take_unit(unit, self.slot, room))?;
                self.route(registry)?;
                return Ok(Response::Done(true));
            }
            Request::Services(services) => {
                let most = services.len();
                let more = |roster: &Roster| most.saturating_sub(roster.services.count(self.slot));
                let entered = self.enter(registry, more, |roster| roster.set_services(self.slot, services));
                self.route(registry)?;
                return entered.map(|()| Response::Done(true));
            }
            Request::PortNumber(request) => return self.port_number(registry, request),
            Request::Command(Command::OpenXrcd(open)) => return self.open_xrcd(registry, open, passed),
            Request::Command(Command::AttachMulticast(qp, group)) => return self.attach(registry, qp, group),
            Request::Command(Command::ListQps) => {
                return Ok(Response::Answer(Answer::Qps(self.list(registry))));
            }
            Request::Command(command) => {
                command.each_object(|object| lock(&self.owned).check(object))?;
                command
            }
            Request::Memory(command) => {
                command.each_object(|object| lock(&self.owned).check(object))?;
                let is_trusted = registry.class_of(self.uid) == UserClass::Host;
                let (memory, account, notifier) = (&self.memory, &self.account, &self.notifier);
                let start_copies = &|| self.start_copies(registry);
                let mut finder = Finder { memory, lent, account, notifier, passed, is_trusted, start_copies };
                command.convert(&mut finder)?.into()
            }
        };
        self.carry_out(registry, command)
    }

    /// Binds or releases a port number. With a port go its services.
    fn port_number(&self, registry: &Registry, request: PortRequest) -> Result<Response, ControlError> {
        let lowest = registry.lowest_port(self.uid);
        let more = usize::from(matches!(request, PortRequest::Bind(_) | PortRequest::BindAny(..)));
        let act = |roster: &mut Roster| {
            let before = roster.services.count(self.slot);
            let number = roster.port(self.slot, request, lowest)?;
            Ok((number, roster.services.count(self.slot) < before))
        };
        let (number, is_routed) = self.enter(registry, |_| more, act)?;
        if is_routed {
            self.route(registry)?;
        }
        Ok(Response::PortNumber(number))
    }

    /// Executes a permitted command, and keeps the books of objects and charges.
    fn carry_out(&self, registry: &Registry, mut command: Command) -> Result<Response, ControlError> {
        self.authorize(registry, &mut command)?;
        let making = Creation::by(&command);
        let (changed, destroyed) = match &command {
            Command::Memory(command) => (command.changes(), None),
            command => (None, command.takes_away()),
        };
        let detached =
            if let Command::DetachMulticast(qp, group) = &command { Some((*qp, *group)) } else { None };
        let charge = match cost(&command) {
            None => None,
            Some(cost) => {
                let owned = lock(&self.owned);
                Some(self.account.charge_instead(cost, changed.and_then(|object| owned.charge_of(object)))?)
            }
        };
        let answer = registry.submit(command);
        let made = match &answer {
            Ok(answer) => answer.made(),
            Err(ControlError::CopyOverdue) => None, // The command has taken effect.
            Err(error) => return Err(error.clone()),
        };
        {
            let mut owned = lock(&self.owned);
            if let (Some(charge), Some(object)) = (charge, made.or(changed)) {
                owned.enter(object, making, charge);
            }
            if let Some(destroyed) = destroyed {
                owned.strike(destroyed);
            }
            if let Some((qp, group)) = detached {
                owned.detached(qp, group);
            }
            self.events.retain(|event| owned.concerns(event));
        }
        let answer = answer?;
        if let Answer::Qp(made) = &answer {
            self.set_up(registry, made.index, making.role).inspect_err(|_| {
                // The client does not hear of the QP, so it could not destroy it.
                let _ = registry.submit(Command::DestroyQp(made.index));
                lock(&self.owned).strike(Object::Qp(made.index));
            })?;
        }
        Ok(Response::Answer(answer))
    }

    /// Gives a new QP what it has together with others.
    fn set_up(&self, registry: &Registry, qp: QpIndex, role: Role) -> Result<(), ControlError> {
        registry.submit(Command::SetClient(qp, Arc::clone(&self.memory)))?;
        if let Some(rate) = &self.rate {
            registry.submit(Command::ShareRate(qp, rate.clone()))?;
        }
        if role == Role::Gsi { self.route(registry) } else { Ok(()) }
    }

    /// Checks the privileges that a command needs, as an adapter does, and corrects what the client claims about
    /// itself.
    fn authorize(&self, registry: &Registry, command: &mut Command) -> Result<(), ControlError> {
        let refused = |why: &str| Err(ControlError::Refused { errno: libc::EPERM, why: why.to_owned() });
        match command {
            // As the kernel, which asks for CAP_NET_RAW: datagrams with such a Q_Key reach the QP1 of any host.
            Command::ModifyQp(qp, attr)
                if attr.qkey.is_some_and(|qkey| qkey & PRIVILEGED_QKEY != 0)
                    && registry.class_of(self.uid) != UserClass::Host
                    && lock(&self.owned).gsi() != Some(*qp) =>
            {
                refused("Q_Keys with the highest bit are for root and for the user whose NIC it is")
            }
            Command::ModifyQp(_, attr) => attr.av.as_mut().map_or(Ok(()), |path| registry.set_source(path)),
            Command::CreateAh(_, path) => registry.set_source(path),
            Command::CloseXrcd(xrcd) => lock(&self.owned).may_close(*xrcd),
            Command::Memory(command) => match &**command {
                MemoryCommand::CreateQp { init, .. } => match init.qp_type {
                    QpType::Gsi if lock(&self.owned).gsi().is_some() => Err(ControlError::Taken("QP1")),
                    QpType::RawPacket if self.uid != 0 && self.uid != registry.uid => {
                        refused("raw packet QPs are for root and for the user whose NIC it is")
                    }
                    _ => Ok(()),
                },
                _ => Ok(()),
            },
            command if command.is_for_the_device() => refused("clients of a NIC cannot request this"),
            _ => Ok(()),
        }
    }

    /// Has the roster carry out a request, by which the client has `more` ports and services at most.
    fn enter<R>(
        &self,
        registry: &Registry,
        more: impl FnOnce(&Roster) -> usize,
        act: impl FnOnce(&mut Roster) -> Result<R, Denied>,
    ) -> Result<R, ControlError> {
        let mut charge = lock(&self.entries);
        let mut roster = lock(&registry.roster);
        let before = roster.entries_of(self.slot);
        let charged = |entries: usize, old: Option<&Charge>| {
            self.account.charge_instead(several(Resource::Ports, entries as u64), old)
        };
        let room = charged(before + more(&roster), charge.as_ref())?;
        drop(charge.take());
        let result = act(&mut roster);
        let after = roster.entries_of(self.slot);
        drop(roster);
        *charge = Some(charged(after, Some(&room))?);
        result.map_err(|Denied { errno, why }| ControlError::Refused { errno, why })
    }

    /// Opens an XRC domain. Its file is the file of the descriptor that came along; what the client says of the file
    /// does not count.
    fn open_xrcd(
        &self,
        registry: &Registry,
        open: OpenXrcd,
        passed: PassedFd,
    ) -> Result<Response, ControlError> {
        let PassedFd::File(id, file) = passed else {
            return self.carry_out(registry, Command::OpenXrcd(OpenXrcd { file: None, ..open }));
        };
        let response = self.carry_out(registry, Command::OpenXrcd(OpenXrcd { file: Some(id), ..open }));
        let opened = match &response {
            Ok(Response::Answer(Answer::Xrcd(xrcd))) => Some(*xrcd),
            _ => None,
        };
        lock(&self.owned).keep_file(opened, file);
        response
    }

    /// Attaches a QP to a multicast group, with a bound on a user's QPs there. Attaching it again changes nothing.
    fn attach(&self, registry: &Registry, qp: QpIndex, group: Gid) -> Result<Response, ControlError> {
        let is_member = {
            let owned = lock(&self.owned);
            owned.check(Object::Qp(qp))?;
            owned.is_member(qp, group)
        };
        let charge = || -> Result<[Charge; 2], ControlError> {
            let in_group = registry.accounts.in_group(registry.payers.known(self.uid), group);
            Ok([
                self.account.charge(one(Resource::Memberships))?,
                in_group.charge(one(Resource::Memberships))?,
            ])
        };
        let charges = if is_member { None } else { Some(charge()?) };
        let answer = registry.submit(Command::AttachMulticast(qp, group))?;
        if let Some(charges) = charges {
            lock(&self.owned).attached(qp, group, charges);
        }
        Ok(Response::Answer(answer))
    }

    /// Returns the status of its QPs.
    fn list(&self, registry: &Registry) -> Vec<QpStatus> {
        let own = lock(&self.owned).names();
        registry.list(&own)
    }

    /// Management datagrams that are for it come to its QP1, if it has one.
    fn route(&self, registry: &Registry) -> Result<(), ControlError> {
        let Some(gsi) = lock(&self.owned).gsi() else { return Ok(()) };
        let roster = lock(&registry.roster);
        let (units, services) =
            (roster.units_of(self.slot).collect(), roster.services.of(self.slot).collect());
        drop(roster);
        let routes = GsiRoutes::new(units, services);
        registry.submit(Command::RouteGsi(gsi, Box::new(routes))).map(drop)
    }

    /// Returns a snapshot of its objects.
    fn snapshot(&self, registry: &Registry) -> Result<Response, ControlError> {
        let own = lock(&self.owned).names();
        // The NIC alone reports counters, since they are of all clients together.
        let snapshot = Snapshot { nic_slot: Some(self.slot), ..registry.snapshot(&own) };
        let text = serde_json::to_vec(&snapshot).map_err(|error| refused(libc::EIO, &error))?;
        Ok(Response::Snapshot(text))
    }
}

fn refused(errno: i32, error: &dyn std::fmt::Display) -> ControlError {
    ControlError::Refused { errno, why: error.to_string() }
}
