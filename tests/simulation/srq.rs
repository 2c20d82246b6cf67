//! Shared receive queues in a run, and their oracle.
//!
//! The oracle knows the posted receives. QPs consume them in posting order, and each completes at most once. A QP that
//! ends keeps at most one receive. An armed limit raises one event, an unarmed one none.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::rc::Rc;

use roxie::nic::{Command, ControlError};
use roxie::shared::{CompletionRing, HostMemory};
use roxie::time::Nanos;
use roxie::verbs::{Access, AsyncEvent, CqIndex, EventKind, SrqInit, SrqKind, Srqn, Wc, XrcdId};
use roxie::wire::Qpn;
use roxie_sim::fabric::Hosts;
use roxie_sim::{Host, HostSrq};

use crate::flow::{Patch, split};
use crate::generate::Rng;
use crate::oracle::{GUARD, Layout};
use crate::receiver::{HEADER, RECEIVE};
use crate::script::{Action, Script, Srq, SrqPlace};
use crate::world::World;

/// Maximum size of a shared receive queue.
pub const LARGEST: u32 = 24;
/// Size of the completion queue of an XRC shared receive queue: more than the number of receives.
const COMPLETIONS: u32 = 1024;

/// The XRC domain of a host.
pub type Domain = Rc<Cell<Option<XrcdId>>>;
/// A shared receive queue that several channels use.
pub type Shared = Rc<RefCell<SharedQueue>>;

/// A shared receive queue on a host, and the state of its receives.
#[derive(Debug)]
pub struct SharedQueue {
    pub place: SrqPlace,
    spec: Srq,
    queue: Option<HostSrq>,
    /// Completion queue of an XRC shared receive queue. A basic one completes to the QPs' own queues.
    cq: Option<(CqIndex, CompletionRing)>,
    domain: Domain,
    inbox: Patch,
    layout: Layout,
    room: u32,
    free: VecDeque<usize>,
    posted: u64,
    /// Outstanding receives: number and slot.
    open: BTreeMap<u64, usize>,
    armed: Option<u32>,
    /// Number of receives that ended QPs may have kept.
    leaks: usize,
    /// Polled completions that their QP's application has not taken.
    unseen: HashMap<Qpn, VecDeque<Wc>>,
    rng: Rng,
}

impl SharedQueue {
    fn new(script: &Script, place: SrqPlace, domain: Domain, host: &mut Host) -> SharedQueue {
        let users = || script.channels.iter().enumerate().filter(|(_, c)| c.srqs.contains(&place.srq));
        let longest = |(number, channel): (usize, &crate::script::Channel)| {
            let header = if channel.service.is_datagram() { HEADER } else { 0 };
            let ways = [false, true].map(|back| crate::script::Way { channel: number, back });
            let lengths = ways.into_iter().flat_map(|way| script.ops(way).map(|(_, op)| op.received()));
            lengths.max().unwrap_or(0) + header
        };
        let room = users().map(longest).max().unwrap_or(0).max(1);
        // Every ended life of a QP may keep one receive.
        let ends: usize = users().map(|(_, channel)| channel.ends.len()).sum();
        let endings = script.actions.iter().filter(|timed| {
            use Action::{Connect, Destroy, DestroySrq, Reset, Restart};
            matches!(timed.action, Connect { .. } | Destroy(_) | DestroySrq(_) | Reset(_) | Restart(_))
        });
        let slots = LARGEST as usize + ends * (1 + endings.count());
        let layout = Layout::new((0..slots).map(|_| u64::from(room)));
        SharedQueue {
            place,
            spec: script.srqs[place.srq].clone(),
            queue: None,
            cq: None,
            domain,
            inbox: Patch::new(host, layout.total, Access::LOCAL_WRITE),
            layout,
            room,
            free: (0..slots).collect(),
            posted: 0,
            open: BTreeMap::new(),
            armed: None,
            leaks: 0,
            unseen: HashMap::new(),
            rng: Rng::new(0x5a5a + place.srq as u64 * 64 + place.host as u64),
        }
    }

    /// The SRQ number that requests name, or `None` if the queue does not exist.
    pub fn number(&self) -> Option<Srqn> {
        self.queue.as_ref().map(|queue| queue.number)
    }

    pub fn index(&self) -> Option<roxie::verbs::SrqIndex> {
        self.queue.as_ref().map(|queue| queue.index)
    }

    /// The XRC domain of the host.
    pub fn domain(&self) -> Option<XrcdId> {
        self.domain.get()
    }

    /// Creates the queue and registers its memory, if needed.
    pub fn ensure(&mut self, host: &mut Host) {
        self.inbox.reopen(host);
        if self.queue.is_some() {
            return;
        }
        let mut kind = SrqKind::Basic;
        if self.spec.extended {
            let xrcd = self.domain.get().unwrap_or_else(|| host.open_xrcd());
            self.domain.set(Some(xrcd));
            let cq = self.cq.get_or_insert_with(|| host.create_cq(COMPLETIONS, None)).0;
            kind = SrqKind::Xrc { xrcd, cq };
        }
        self.queue = Some(host.create_srq(SrqInit { kind, limit: 0 }, self.spec.size.max(1), 4));
    }

    /// Posts receives. Returns true if the application deferred some.
    pub fn post(&mut self, host: &Host) -> bool {
        let Some(queue) = &self.queue else { return false };
        let status = host.worker.nic().srq_status(queue.index).expect("the queue exists");
        for _ in status.waiting..self.spec.ahead {
            let Some(slot) = self.free.front().copied() else { return false };
            if self.spec.dawdles > 0 && self.rng.one_in(self.spec.dawdles) {
                return true;
            }
            let (at, pieces) = (self.layout.offsets[slot], 1 + slot as u32 % 4);
            let sges = split(&self.inbox.region, at, self.room, pieces);
            if queue.ring.post(RECEIVE | self.posted, &sges).is_err() {
                return false;
            }
            // Stale bytes must not look like a part of the next message.
            self.inbox.memory.write(at, &vec![GUARD; self.room as usize]).expect("within the region");
            self.free.pop_front();
            self.open.insert(self.posted, slot);
            self.posted += 1;
        }
        false
    }

    /// Removes a completed receive. Returns its number and the location of its bytes.
    pub fn take(&mut self, wc: &Wc, what: &str) -> (u64, HostMemory, u64) {
        let number = wc.wr_id & !RECEIVE;
        let slot = self.open.remove(&number);
        let slot = slot.unwrap_or_else(|| panic!("{what}: receive {number} of {} is not open", self.place));
        self.free.push_back(slot);
        (number, self.inbox.memory.clone(), self.layout.offsets[slot])
    }

    /// Returns the next completion of an XRC target.
    pub fn poll_for(&mut self, qpn: Qpn) -> Option<Wc> {
        let (_, ring) = self.cq.as_ref()?;
        while let Some(wc) = ring.poll() {
            self.unseen.entry(wc.qpn).or_default().push_back(wc);
        }
        self.unseen.get_mut(&qpn)?.pop_front()
    }

    /// Notes the end of a QP that may have kept a receive.
    pub fn note_leak(&mut self) {
        self.leaks += 1;
    }

    /// Resets the state after a restart of the NIC.
    pub fn forget(&mut self) {
        self.destroyed();
        self.cq = None;
        self.unseen.clear();
        self.domain.set(None);
        self.inbox.open = false;
    }

    fn destroyed(&mut self) {
        self.queue = None;
        self.free.extend(std::mem::take(&mut self.open).into_values());
        self.armed = None;
        self.leaks = 0;
    }

    pub fn deregister_inbox(&mut self, now: Nanos, host: &mut Host) {
        if std::mem::take(&mut self.inbox.open) {
            let command = Command::ReleaseMemory(self.inbox.region.index);
            host.call(now, command).expect("the region exists");
        }
    }

    /// Checks an event of the queue.
    pub fn take_event(&mut self, kind: EventKind) {
        let place = self.place;
        assert!(kind == EventKind::SrqLimitReached, "{place}: {kind:?}: nothing explains it");
        assert!(self.armed.take().is_some(), "{place}: a limit was reached that was not armed");
    }

    fn arm(&mut self, now: Nanos, host: &mut Host, limit: u32) {
        let Some(queue) = &self.queue else { return };
        let most = host.worker.nic().srq_status(queue.index).expect("the queue exists").max_wr;
        let limit = limit.min(most);
        self.armed = (limit > 0).then_some(limit);
        host.arm_srq(now, queue, limit).expect("no more than it holds");
    }

    fn resize(&mut self, now: Nanos, host: &mut Host, size: u32) -> &'static str {
        let Some(queue) = &mut self.queue else { return "resize_srq of nothing" };
        match host.resize_srq(now, queue, size.clamp(1, LARGEST)) {
            Ok(()) => "srq resized",
            Err(ControlError::TooSmall { holds, .. }) => {
                assert!(holds > size, "{}: {holds} fit {size}", self.place);
                "srq resize refused"
            }
            Err(other) => panic!("{}: {other}", self.place),
        }
    }

    /// Checks the queue after the run. `users`: number of QPs that may hold a receive.
    fn check_end(&self, host: &Host, users: usize) {
        let place = self.place;
        let Some(queue) = &self.queue else { return };
        let status = host.worker.nic().srq_status(queue.index).expect("the queue exists");
        let armed = self.armed.unwrap_or(0);
        assert!(status.limit == armed, "{place}: {status:?}, armed at {armed}");
        assert!(armed == 0 || status.waiting >= armed, "{place}: {status:?}: no event was raised");
        let taken = self.posted - u64::from(status.waiting);
        let late = self.open.range(taken..).count() as u64;
        assert!(
            late == u64::from(status.waiting),
            "{place}: {late} of {status:?} were not taken in their order"
        );
        let missing = self.open.range(..taken).count();
        // An overflowed completion queue has lost completions.
        let lost = host.counter("cq_overflow") as usize;
        let explained = self.leaks + users + lost;
        assert!(missing <= explained, "{place}: {missing} receives are missing, {explained} may be");
        let lengths = self.layout.offsets.iter().map(|_| u64::from(self.room));
        self.layout.assert_guards(&self.inbox.memory, lengths, &format!("{place} inbox"));
    }

    fn take_down(&mut self, now: Nanos, host: &mut Host) {
        assert!(self.unseen.values().all(VecDeque::is_empty), "{}: unclaimed: {:?}", self.place, self.unseen);
        let queue = self.queue.take().map(|queue| Command::DestroySrq(queue.index));
        let cq = self.cq.take().map(|(cq, _)| Command::DestroyCq(cq));
        let open = std::mem::take(&mut self.inbox.open);
        let inbox = open.then_some(Command::DeregisterMemory(self.inbox.region.index));
        for command in [queue, cq, inbox].into_iter().flatten() {
            let what = format!("{}: {command:?}", self.place);
            host.call(now, command).unwrap_or_else(|error| panic!("{what}: {error}"));
        }
        if !self.spec.extended {
            return;
        }
        if let Some(xrcd) = self.domain.take() {
            let closed = host.call(now, Command::CloseXrcd(xrcd));
            // Only the last queue of the domain can close it.
            match closed {
                Err(ControlError::Busy { users, .. }) if users > 0 => self.domain.set(Some(xrcd)),
                closed => assert!(closed.is_ok(), "{}: {closed:?}", self.place),
            }
        }
    }
}

/// Creates the shared receive queues of a script.
pub fn all(script: &Script, hosts: &mut Hosts) -> Vec<Shared> {
    let domains: Vec<Domain> = (0..script.hosts.count).map(|_| Domain::default()).collect();
    let places = (0..script.srqs.len()).flat_map(|srq| {
        script.hosts_of(srq).into_iter().map(move |host| SrqPlace { srq, host }).collect::<Vec<_>>()
    });
    places
        .map(|place| {
            let domain = domains[place.host].clone();
            Rc::new(RefCell::new(SharedQueue::new(script, place, domain, &mut hosts[place.host])))
        })
        .collect()
}

impl World<'_> {
    /// Runs the posting of all queues. Returns true if an application deferred receives.
    pub fn post_shared(&mut self) -> bool {
        let hosts = self.net.hosts();
        self.srqs.iter().fold(false, |dawdles, srq| {
            let mut srq = srq.borrow_mut();
            let host = srq.place.host;
            srq.post(&hosts[host]) | dawdles
        })
    }

    fn srq(&self, place: SrqPlace) -> Option<Shared> {
        self.srqs.iter().find(|srq| srq.borrow().place == place).cloned()
    }

    pub fn arm(&mut self, place: SrqPlace, limit: u32) {
        let Some(srq) = self.srq(place) else { return };
        let now = self.net.now();
        srq.borrow_mut().arm(now, &mut self.net.hosts_mut()[place.host], limit);
    }

    pub fn resize_srq(&mut self, place: SrqPlace, size: u32) {
        let Some(srq) = self.srq(place) else { return };
        let now = self.net.now();
        let done = srq.borrow_mut().resize(now, &mut self.net.hosts_mut()[place.host], size);
        self.outcome.add(done, 1);
    }

    /// Destroys a queue without regard to outstanding requests, unless QPs use it.
    pub fn destroy_srq(&mut self, place: SrqPlace) {
        let Some(srq) = self.srq(place) else { return };
        let Some(index) = srq.borrow().index() else { return };
        let users = self.users_of(place, |_| true) as u32;
        let now = self.net.now();
        let destroyed = self.net.hosts_mut()[place.host].call(now, Command::DestroySrq(index));
        match destroyed {
            Err(ControlError::Busy { users: known, .. }) if !srq.borrow().spec.extended => {
                assert!(known == users && users > 0, "{place}: {known} users, and there are {users}");
                self.outcome.add("srq busy", 1);
            }
            Ok(_) => {
                assert!(srq.borrow().spec.extended || users == 0, "{place}: destroyed under {users} QPs");
                // Take earlier events and completions.
                self.take_events();
                for link in &mut self.links {
                    link.poll(self.net.now(), self.net.hosts(), true);
                }
                srq.borrow_mut().destroyed();
                self.outcome.add("srq destroyed", 1);
            }
            Err(other) => panic!("{place}: {other}"),
        }
    }

    /// Number of QPs that use a queue and satisfy `like`.
    fn users_of(&self, place: SrqPlace, like: impl Fn(&crate::link::End) -> bool) -> usize {
        self.links.iter().map(|link| link.sharing(place).filter(|end| like(end)).count()).sum()
    }

    /// Checks all queues after the run.
    pub fn check_shared(&mut self) {
        for srq in self.srqs.clone() {
            let place = srq.borrow().place;
            let users = self.users_of(place, |end| !end.state.fatal);
            srq.borrow().check_end(&self.net.hosts()[place.host], users);
        }
    }

    pub fn take_shared_down(&mut self) {
        for srq in &self.srqs {
            let mut srq = srq.borrow_mut();
            let host = srq.place.host;
            srq.take_down(self.net.now(), &mut self.net.hosts_mut()[host]);
        }
    }

    /// Handles an event of a shared receive queue. Returns false for other events.
    pub fn take_shared_event(&mut self, host: usize, event: AsyncEvent) -> bool {
        let AsyncEvent::Srq(index, kind) = event else { return false };
        let is_it = |srq: &&Shared| {
            let srq = srq.borrow();
            srq.place.host == host && srq.index() == Some(index)
        };
        let Some(srq) = self.srqs.iter().find(is_it) else { return false };
        srq.borrow_mut().take_event(kind);
        true
    }
}
