//! A hostile program through all of its lives. Besides the actions of [`Hostile`] it corrupts its messages,
//! descriptors, eventfd and memory, disconnects at any moment, and reconnects.

use std::fs::{self, File};
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command as Program, Stdio};
use std::sync::atomic::Ordering::Relaxed;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::MsgFlags;

use super::super::hostile::{Hostile, Known};
use super::super::{RawClient, create_counted_cq, hello, place};
use super::bench::{Bench, borrowed, framed, message};
use super::tally::Tally;
use roxie::remote::message::{CLIENT_PROTOCOL, Request, Response};
use roxie_base::descriptors::{MOST, send_with};
use roxie_base::random::splitmix;
use roxie_base::threads::lock;
use roxie_nic::nic::Command;
use roxie_nic::shared::Region;
use roxie_nic::shared::remote_memory::RemoteMemory;
use roxie_nic::shared::remote_memory::pages::{PageState, Pages};

/// Another process that lends its memory, and may end at any moment.
struct Other {
    child: Child,
    secret: (u64, u64),
    /// Its writable memory: addresses and lengths.
    places: Vec<(u64, u64)>,
}

impl Other {
    fn new() -> Other {
        let mut program = Program::new("sh");
        program.args(["-c", "echo; read _"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = program.spawn().expect("a shell");
        child.stdout.as_mut().expect("piped").read_exact(&mut [0]).expect("it runs");
        let text = fs::read_to_string(format!("/proc/{}/maps", child.id())).expect("its map");
        let range = |line: &str| {
            let (start, rest) = line.split_once('-')?;
            let (end, rights) = rest.split_once(' ')?;
            let number = |text| u64::from_str_radix(text, 16).ok();
            let (start, end) = (number(start)?, number(end)?);
            Some((start, end - start, rights.starts_with("rw")))
        };
        let all: Vec<_> = text.lines().filter_map(range).collect();
        let places: Vec<_> =
            all.iter().filter(|(.., writable)| *writable).map(|(a, l, _)| (*a, *l)).collect();
        let mut word = [0; 8];
        let [memory, _] = Other::descriptors(&child);
        let file = File::from(memory);
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut word, all[0].0).expect("its memory");
        Other { secret: (all[0].0, u64::from_ne_bytes(word)), places, child }
    }

    fn descriptors(child: &Child) -> [OwnedFd; 2] {
        let name = |what| format!("/proc/{}/{what}", child.id());
        let memory = File::options().read(true).write(true).open(name("mem")).expect("its memory");
        [memory.into(), File::open(name("maps")).expect("its map").into()]
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(super) struct Attacker {
    uid: u32,
    known: Known,
    state: u64,
    hostile: Hostile,
    pages: Pages,
    other: Option<Other>,
    pub(super) tally: Tally,
}

impl Attacker {
    pub(super) fn new(bench: &Bench, uid: u32, known: Known, seed: u64) -> Attacker {
        let client = bench.admitted(0, uid).expect("let in");
        let hostile = Hostile::of(client, known.clone(), seed);
        let (pages, tally) = (Pages::new(), Tally::default());
        let mut made = Attacker { uid, known, state: seed, hostile, pages, other: None, tally };
        made.hostile.further = vec![made.pages.place()];
        made
    }

    fn below(&mut self, bound: usize) -> usize {
        (splitmix(&mut self.state) % bound.max(1) as u64) as usize
    }

    /// Takes one action. Returns an error if the NIC granted something that belongs to another.
    pub(super) fn act(&mut self, bench: &Bench) -> Result<(), String> {
        if !self.is_served() {
            self.reconnect(bench);
            return Ok(());
        }
        match self.below(64) {
            0 => self.write_over_bells(),
            1 | 2 => self.change_pages(),
            3 => self.send_wrong_descriptors(),
            4 => self.take_event(),
            5 if self.below(8) == 0 => self.send_bytes(),
            6 if self.below(8) == 0 => self.send_bent_question(),
            8 if self.below(32) == 0 => self.break_off(),
            9 if self.below(4) == 0 => self.close_eventfd(),
            10 if self.below(16) == 0 => self.hang_up(bench),
            14 if self.below(2) == 0 => self.hostile.settle()?,
            11 => self.greet_wrongly(bench),
            12 if self.below(64) == 0 => self.bring_another(bench),
            13 if self.other.is_some() && self.below(8) == 0 => {
                self.other = None;
                self.tally.note("the end of another process", true);
            }
            _ => self.hostile.step()?,
        }
        Ok(())
    }

    fn is_served(&self) -> bool {
        self.hostile.client.unthreaded.as_ref().is_some_and(|unthreaded| unthreaded.is_served())
    }

    /// Ends the program and returns its tally. Nothing of it is left at the NIC.
    pub(super) fn end(mut self) -> Tally {
        self.tally.add(std::mem::take(&mut self.hostile.tally));
        self.tally
    }

    fn become_client(&mut self, client: RawClient) {
        let hostile = Hostile::of(client, self.known.clone(), splitmix(&mut self.state));
        let before = std::mem::replace(&mut self.hostile, hostile);
        self.hostile.further = match &self.other {
            Some(other) => other.places.clone(),
            None => vec![self.pages.place()],
        };
        self.tally.add(before.tally);
    }

    /// Reconnects after the NIC has ended the service.
    fn reconnect(&mut self, bench: &Bench) {
        self.other = None;
        let admitted = bench.admitted(0, self.uid);
        self.tally.note("coming again", admitted.is_ok());
        if let Ok(client) = admitted {
            self.become_client(client);
        }
    }

    /// Disconnects immediately, possibly with an unanswered request.
    fn hang_up(&mut self, bench: &Bench) {
        if self.below(2) == 0 {
            let _ = self.hostile.client.link.send(&Request::Command(Command::AllocPd), &[]);
        }
        self.tally.note("hanging up", true);
        self.reconnect(bench);
    }

    /// Reconnects with the memory of another process, which ends some time.
    fn bring_another(&mut self, bench: &Bench) {
        let other = Other::new();
        let fds = Other::descriptors(&other.child);
        let mut hello = hello(&0);
        hello.secret = other.secret;
        let admitted = bench.greet(0, self.uid, &message(&hello), &borrowed(&fds));
        self.tally.note("another process", admitted.is_ok());
        if let Ok(client) = admitted {
            self.other = Some(other);
            self.become_client(client);
        }
    }

    fn greet_wrongly(&mut self, bench: &Bench) {
        let secret = Box::new(7u64);
        let mut hello = hello(&secret);
        let own: Vec<OwnedFd> = RemoteMemory::descriptors().expect("this process's own").into();
        let (mut fds, mut bytes) = (own, None);
        match self.below(7) {
            0 => hello.version = CLIENT_PROTOCOL.version + 1 + self.below(1000) as u32,
            1 => hello.secret.1 ^= 1,
            2 => hello.secret.0 = splitmix(&mut self.state),
            3 => fds.truncate(1),
            4 => fds.reverse(),
            5 => fds = (0..self.below(MOST + 2)).map(|_| self.descriptor()).collect(),
            _ => bytes = Some(framed(&[0xff; 40])),
        }
        let bytes = bytes.unwrap_or_else(|| message(&hello));
        let admitted = bench.greet(0, self.uid, &bytes, &borrowed(&fds));
        self.tally.note("a wrong greeting", admitted.is_ok());
    }

    /// Overwrites words of its doorbell page: the count of sleepers, the summary and the bells.
    fn write_over_bells(&mut self) {
        for _ in 0..1 + self.below(16) {
            let (at, value) = (splitmix(&mut self.state) as usize, splitmix(&mut self.state));
            let page =
                self.hostile.client.unthreaded.as_ref().map_or(&[][..], |unthreaded| unthreaded.page.words());
            page[at % page.len()].store(value >> (value & 63), Relaxed);
        }
        self.tally.note("bells that are written over", true);
    }

    /// Closes the eventfd, and first makes it blocking: its flags apply to all duplicates.
    fn close_eventfd(&mut self) {
        let client = &mut self.hostile.client;
        let bells =
            client.unthreaded.as_ref().and_then(|unthreaded| lock(&unthreaded.without_eventfd).take());
        self.tally.note("a closed eventfd", bells.is_some());
        if let Some(bells) = bells {
            fcntl(client.fds[1].as_fd(), FcntlArg::F_SETFL(OFlag::empty())).expect("its own");
            client.bells = bells;
            client.fds[1] = memfd_create("none", MFdFlags::empty()).expect("a file");
        }
    }

    fn change_pages(&mut self) {
        const STATES: [PageState; 4] =
            [PageState::Writable, PageState::Readable, PageState::Protected, PageState::BehindTheEnd];
        let state = STATES[self.below(STATES.len())];
        self.pages.turn_into(state);
        self.tally.note(["pages writable", "readable", "protected", "behind the end"][state as usize], true);
    }

    /// Returns a descriptor of an arbitrary kind.
    fn descriptor(&mut self) -> OwnedFd {
        let file = |length: u64| {
            let file = memfd_create("file", MFdFlags::MFD_ALLOW_SEALING).expect("a file");
            File::from(file.try_clone().expect("a descriptor")).set_len(length).expect("room");
            file
        };
        match self.below(7) {
            0 => std::io::pipe().expect("a pipe").0.into(),
            1 => EventFd::from_flags(EfdFlags::EFD_SEMAPHORE).expect("a descriptor").into(),
            2 => File::open("/dev/null").expect("a device").into(),
            3 => file(32 << 10),
            4 => File::open("/proc/self/mem").expect("this process's own").into(),
            5 => std::os::unix::net::UnixStream::pair().expect("two sockets").0.into(),
            _ => Region::to_lend(64).expect("memory").1,
        }
    }

    /// Sends arbitrary descriptors with an arbitrary request.
    fn send_wrong_descriptors(&mut self) {
        let fds: Vec<OwnedFd> = (0..=self.below(MOST + 1)).map(|_| self.descriptor()).collect();
        let request = match self.below(4) {
            0 => Request::Arena { words: 1 << self.below(13) },
            1 => create_counted_cq(place(0), 8),
            2 => Request::OrphanTable,
            _ => Request::Port,
        };
        let sent = self.hostile.client.link.send(&request, &borrowed(&fds));
        let reply = sent.and_then(|()| self.hostile.client.reply());
        self.tally.note("descriptors of any kind", matches!(reply, Ok(Some(Ok(_)))));
        if let Ok(Some(Ok(Response::Answer(answer)))) = reply {
            self.hostile.mine.note(&request, &answer);
        }
    }

    /// Takes a waiting event now and then; the others stay.
    fn take_event(&mut self) {
        let Some(socket) = self.hostile.client.fds.get(2) else { return };
        fcntl(socket, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).expect("its own");
        let mut bytes = [0; 16];
        let read = nix::unistd::read(socket, &mut bytes);
        self.tally.note("an event", read.is_ok_and(|read| read > 0));
    }

    fn send(&mut self, bytes: &[u8]) -> bool {
        let client = &self.hostile.client;
        let socket = client.link.as_fd();
        send_with(socket, bytes, &[], MsgFlags::MSG_DONTWAIT).is_ok()
    }

    /// Sends bytes that need not be a request, possibly with a wrong length.
    fn send_bytes(&mut self) {
        let body: Vec<u8> = (0..self.below(80)).map(|_| splitmix(&mut self.state) as u8).collect();
        let lies = self.below(4) == 0;
        let bytes = if lies { [&[0xff, 0xff, 0xff, 0x7f], &body[..]].concat() } else { framed(&body) };
        let answered = self.send(&bytes) && matches!(self.hostile.client.reply(), Ok(Some(_)));
        self.tally.note(if lies { "a length that is a lie" } else { "any bytes" }, answered);
    }

    /// Sends a request with some corrupted bits.
    fn send_bent_question(&mut self) {
        let request = self.hostile.arbitrary_request();
        let mut body = postcard::to_stdvec(&request).expect("a message");
        for _ in 0..=self.below(2) {
            let (at, bit) = (self.below(body.len()), self.below(8));
            body[at] ^= 1 << bit;
        }
        // The program does not know what it was granted, so later answers are not checked against its list.
        let answered = self.send(&framed(&body)) && matches!(self.hostile.client.reply(), Ok(Some(Ok(_))));
        self.tally.note("a bent request", answered);
        if answered {
            self.hostile.is_surprised = true;
        }
    }

    /// Ends the connection in the middle of a message.
    fn break_off(&mut self) {
        let request = self.hostile.arbitrary_request();
        let whole = message(&request);
        let length = self.below(whole.len());
        self.send(&whole[..length]);
        self.hostile.client.link.shut();
        let answered = matches!(self.hostile.client.reply(), Ok(Some(_)));
        self.tally.note("half of a request", answered);
    }
}
