//! Keys that a receiver grants for the target region of a way, and revokes: memory windows and fast-registered regions.
//!
//! The work requests go through the receiver's send queue. After the completion, the sender learns the key, uses it in
//! later requests, or invalidates it with a SEND.

use roxie::nic::{Answer, Command, MemoryCommand};
use roxie::shared::PageList;
use roxie::time::Nanos;
use roxie::verbs::{
    Access as Rights, FastRegistration, LKey, MrIndex, MwIndex, MwType, RKey, SendFlags, SendWr, Wc,
    WcStatus, WindowBind,
};
use roxie_sim::Host;
use roxie_sim::fabric::Hosts;

use crate::flow::{Fate, Flow, LOCAL};
use crate::link::Link;
use crate::script::{Grant, Way};
use crate::world::World;

const PAGE_SHIFT: u8 = 12;

/// The sender's view of a granted key.
#[derive(Clone, Copy, Debug, Default)]
pub struct Access {
    /// The key, while operations may use it.
    key: Option<u32>,
    /// A SEND may invalidate the key.
    may_be_invalidated: bool,
    /// The last posted operation that uses or invalidates the key.
    last_use: Option<usize>,
}

impl Access {
    pub fn key(&self) -> Option<u32> {
        self.key
    }

    pub fn key_to_invalidate(&self) -> Option<u32> {
        self.key.filter(|_| self.may_be_invalidated)
    }

    /// Notes that operation `i` was posted.
    pub fn note_use(&mut self, i: usize, granted: bool, invalidates: bool) {
        if self.key.is_some() && (granted || invalidates) {
            self.last_use = Some(i);
        }
        if invalidates {
            self.key = None;
        }
    }

    /// Forbids further use of the key.
    pub fn take(&mut self) {
        self.key = None;
    }
}

/// An object that grants access, and its current key.
#[derive(Debug)]
enum Object {
    Window(MwIndex, Grant, u32),
    Region(MrIndex, u32),
}

/// The receiver's view of its grant.
#[derive(Debug, Default)]
pub struct Granter {
    object: Option<Object>,
    /// The outstanding work request, and the key that it enables.
    pending: Option<(u64, Option<u32>)>,
    requests: u64,
}

impl Granter {
    fn next_id(&mut self, way: Way) -> u64 {
        self.requests += 1;
        LOCAL | u64::from(way.back) << 32 | self.requests
    }
}

fn key_of(answer: &Answer) -> u32 {
    match answer {
        Answer::Window(_, key) | Answer::Memory(_, key) | Answer::Key(key) => *key,
        other => panic!("a key: {other:?}"),
    }
}

/// Returns the key with the next variant byte.
fn varied(key: u32) -> u32 {
    key.wrapping_add(1) & 0xff | key & !0xff
}

impl Flow {
    /// True if no outstanding operation uses the granted key.
    fn is_unused(&self) -> bool {
        self.granted.last_use.is_none_or(|i| self.fates[i] == Fate::Done)
    }

    /// Handles the completion of a grant's work request.
    pub fn granted_or_taken(&mut self, wc: &Wc) {
        let Some((_, key)) = self.granter.pending.take_if(|(id, _)| *id == wc.wr_id) else { return };
        if wc.status == WcStatus::Success
            && let Some(key) = key
        {
            let window_one = matches!(self.granter.object, Some(Object::Window(_, Grant::WindowOne, _)));
            self.granted = Access { key: Some(key), may_be_invalidated: !window_one, last_use: None };
        }
    }

    /// Destroys the object that grants access. `gone`: the NIC has lost it already.
    pub fn release_grants(&mut self, now: Nanos, host: &mut Host, gone: bool) {
        self.granted = Access::default();
        self.granter.pending = None;
        match self.granter.object.take().filter(|_| !gone) {
            Some(Object::Window(window, ..)) => {
                host.call(now, Command::FreeWindow(window)).expect("the window exists");
            }
            Some(Object::Region(region, _)) => {
                host.call(now, Command::ReleaseMemory(region)).expect("the region exists");
            }
            None => {}
        }
    }

    /// Returns the work request that binds or registers, and the key that it enables.
    fn grant(&mut self, now: Nanos, host: &mut Host, kind: Grant) -> (SendWr, u32) {
        self.make_object(now, host, kind);
        let id = self.granter.next_id(self.way);
        let (address, length) = (self.target.region.address, self.layout.total);
        let rights = Rights::REMOTE | Rights::LOCAL_WRITE;
        match self.granter.object.as_mut().expect("made above") {
            Object::Window(window, kind, key) => {
                let new_key = match kind {
                    Grant::WindowOne => {
                        key_of(&host.call(now, Command::NextWindowKey(*window)).expect("a window of type 1"))
                    }
                    _ => varied(*key),
                };
                let bind = WindowBind {
                    window: RKey(*key),
                    new_key: RKey(new_key),
                    region: LKey(self.target.region.key),
                    address,
                    length,
                    access: Rights::REMOTE_READ
                        | Rights::REMOTE_WRITE
                        | Rights::REMOTE_ATOMIC
                        | Rights::FLUSH_GLOBAL,
                };
                *key = new_key;
                (SendWr::bind_window(id, SendFlags::SIGNALED, &bind), new_key)
            }
            Object::Region(_, key) => {
                *key = varied(*key);
                let registration = FastRegistration {
                    key: RKey(*key),
                    start: address,
                    length,
                    page_shift: PAGE_SHIFT,
                    access: rights - Rights::FLUSH_PERSISTENT,
                };
                (SendWr::fast_register(id, SendFlags::SIGNALED, &registration), *key)
            }
        }
    }

    /// Creates the object for this kind of grant, if it is not there.
    fn make_object(&mut self, now: Nanos, host: &mut Host, kind: Grant) {
        let same = match &self.granter.object {
            Some(Object::Window(_, of, _)) => *of == kind,
            Some(Object::Region(..)) => kind == Grant::FastRegion,
            None => false,
        };
        if same {
            return;
        }
        self.release_grants(now, host, false);
        let pd = host.pd();
        let window = |host: &mut Host, mw| match host.call(now, Command::AllocWindow { pd, kind: mw }) {
            Ok(Answer::Window(window, key)) => Object::Window(window, kind, key),
            other => panic!("a window: {other:?}"),
        };
        self.granter.object = Some(match kind {
            Grant::WindowOne => window(host, MwType::One),
            Grant::WindowTwo => window(host, MwType::Two),
            Grant::FastRegion => {
                let memory = self.target.memory.clone();
                let count = (self.layout.total >> PAGE_SHIFT) as u32 + 1;
                let pages = PageList::new(count).expect("memory for a page list");
                for page in 0..count {
                    pages.set(page, u64::from(page) << PAGE_SHIFT);
                }
                match host.call(now, MemoryCommand::AllocFastMemory { pd, memory, pages }) {
                    Ok(Answer::Memory(region, key)) => Object::Region(region, key),
                    other => panic!("a region: {other:?}"),
                }
            }
        });
    }

    /// Returns the work request that revokes the key.
    fn revoke(&mut self, now: Nanos, host: &mut Host) -> Option<SendWr> {
        let id = self.granter.next_id(self.way);
        match self.granter.object.as_mut()? {
            Object::Window(window, Grant::WindowOne, key) => {
                let new_key = key_of(&host.call(now, Command::NextWindowKey(*window)).ok()?);
                let bind = WindowBind {
                    window: RKey(*key),
                    new_key: RKey(new_key),
                    region: LKey(0),
                    address: 0,
                    length: 0,
                    access: Rights::empty(),
                };
                *key = new_key;
                Some(SendWr::bind_window(id, SendFlags::SIGNALED, &bind))
            }
            Object::Window(_, _, key) | Object::Region(_, key) => {
                Some(SendWr::local_invalidate(id, SendFlags::SIGNALED, RKey(*key)))
            }
        }
    }
}

impl Link {
    /// Posts the work request of a grant, or of a revocation if `kind` is `None`.
    fn post_grant(&mut self, now: Nanos, hosts: &mut Hosts, back: bool, kind: Option<Grant>) {
        let (index, receiver) = (usize::from(back), usize::from(!back));
        if self.flows.len() < 2
            || self.flows[0].service.is_datagram()
            || !self.ends.iter().all(|end| end.is_ready() && !end.state.failed)
        {
            return;
        }
        let end = &self.ends[receiver];
        let host = &mut hosts[end.host];
        let flow = &mut self.flows[index];
        let ready = flow.granter.pending.is_none() && flow.is_unused() && flow.target.open;
        if !ready || flow.granted.key.is_some() == kind.is_some() {
            return;
        }
        let posted = match kind {
            Some(kind) => {
                let (wr, key) = flow.grant(now, host, kind);
                Some((wr, Some(key)))
            }
            None => flow.revoke(now, host).map(|wr| (wr, None)),
        };
        let Some((wr, key)) = posted else { return };
        flow.granted.take();
        flow.granter.pending = Some((wr.wr_id, key));
        let qp = end.qp.as_ref().expect("a usable end has a QP");
        if !self.flows[receiver].post_local(host, qp, &wr) {
            // The queue is full: the object has a key that was never enabled, and is destroyed.
            self.flows[index].release_grants(now, host, false);
        }
    }
}

impl World<'_> {
    pub fn grant(&mut self, way: Way, kind: Grant) {
        let World { net, links, .. } = self;
        if let Some(link) = links.get_mut(way.channel) {
            link.post_grant(net.now(), net.hosts_mut(), way.back, Some(kind));
        }
    }

    pub fn revoke(&mut self, way: Way) {
        let World { net, links, .. } = self;
        if let Some(link) = links.get_mut(way.channel) {
            link.post_grant(net.now(), net.hosts_mut(), way.back, None);
        }
    }

    /// Frees the window without regard to outstanding requests of the peer.
    pub fn free_window(&mut self, way: Way) {
        let World { net, links, .. } = self;
        let Some(link) = links.get_mut(way.channel) else { return };
        let host = link.ends[usize::from(!way.back)].host;
        if let Some(flow) = link.flows.get_mut(usize::from(way.back)) {
            let key = flow.granted;
            flow.release_grants(net.now(), &mut net.hosts_mut()[host], false);
            // The peer still uses the key.
            flow.granted = key;
        }
    }
}
