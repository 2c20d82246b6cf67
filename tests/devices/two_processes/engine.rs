//! The second process: two NICs joined by memory, which execute commands from messages.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use nix::sys::eventfd::{EfdFlags, EventFd};
use roxie::engine::{Drive, Engine};
use roxie::limits::Limits;
use roxie::nic::{Answer, Command, MemoryCommand, NicConfig, ReceiveSource};
use roxie::port::memory::{self, MemoryConfig, MemoryPort};
use roxie::shared::{CompletionRing, Doorbells, HostMemory, RecvRing, Region, SendRing};
use roxie::time::{Clock, Nanos};
use roxie::verbs::{Access, CqIndex, PdId, QpCaps, QpIndex, QpInit, QpType};

use crate::two_processes::message::{
    ALLOC_PD, CREATE_CQ, CREATE_QP, DONE, JOIN, Link, MODIFY_QP, Message, REFUSED, REGISTER, attr_of,
};

/// Number of QPs of a NIC. Either process needs it for the size of the doorbell page.
pub(crate) const QPS: u32 = 100;

/// Returns the station address of NIC `nic`, 0 or 1.
pub(crate) fn mac(nic: usize) -> [u8; 6] {
    [2, 0, 0, 0, 0, nic as u8 + 1]
}

struct Nic {
    engine: Engine,
    doorbells: Doorbells,
    page: OwnedFd,
}

impl Nic {
    fn start(number: usize, port: MemoryPort) -> Nic {
        let limits = Limits { qps: QPS, ..Limits::default() };
        let config = NicConfig { limits, seed: number as u64 + 1, ..NicConfig::default() };
        let (doorbells, page) = Doorbells::shared(QPS).expect("a page");
        // The engine sleeps as soon as it is idle: doorbells of the other process must wake it.
        let drive = Drive::Thread { core: None, spin: Nanos::from_micros(20) };
        let engine = Engine::start_on(config, Box::new(port), drive, doorbells.clone(), Clock::new())
            .expect("an engine");
        Nic { engine, doorbells, page }
    }
}

struct Side {
    nics: [Nic; 2],
    /// Memory of the application's queues.
    arena: Option<Arc<Region>>,
}

/// Words and descriptors of a reply, or the reason of a refusal.
type Reply = Result<(Vec<u64>, Vec<OwnedFd>), String>;

/// Serves the application until it closes the socket.
pub(crate) fn run(link: &Link) {
    let end = |nic| MemoryConfig { mac: mac(nic), ..MemoryConfig::default() };
    let (a, b) = memory::pair(end(0), end(1));
    let mut side = Side { nics: [Nic::start(0, a), Nic::start(1, b)], arena: None };
    while let Some(message) = link.receive().expect("a socket of messages") {
        let sent = match side.answer(message) {
            Ok((words, fds)) => {
                let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
                link.send(&[vec![DONE], words].concat(), &fds)
            }
            Err(why) => {
                let text = why.bytes().map(u64::from);
                link.send(&std::iter::once(REFUSED).chain(text).collect::<Vec<_>>(), &[])
            }
        };
        if sent.is_err() {
            break;
        }
    }
}

impl Side {
    fn answer(&mut self, message: Message) -> Reply {
        let Message { words, fds } = message;
        let fd = fds.first().map(AsFd::as_fd).ok_or("no descriptor");
        match words[..] {
            [JOIN, size] => {
                self.arena = Some(Region::map(fd?, size as usize).map_err(text)?);
                let own = |nic: &Nic| [nic.page.as_fd(), nic.doorbells.wake_fd().as_fd()].map(copy);
                Ok((Vec::new(), self.nics.iter().flat_map(own).collect()))
            }
            [ALLOC_PD, nic] => self.call(nic, Command::AllocPd),
            [REGISTER, nic, pd, access, start, length] => {
                let memory = HostMemory::map(fd?, length as usize).map_err(text)?;
                let (pd, access) = (PdId(pd as u32), Access::from_bits_retain(access as u32));
                self.call(nic, MemoryCommand::RegisterMemory { pd, access, start, memory })
            }
            [CREATE_CQ, nic, at, capacity] => {
                let capacity = capacity as u32;
                let ring = CompletionRing::on(&self.part(at)?, capacity).map_err(text)?;
                let notify = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC);
                let notify = Arc::new(notify.map_err(text)?);
                let event = copy(notify.as_fd());
                let (words, _) =
                    self.call(nic, MemoryCommand::CreateCq { ring, notify: Some(notify.into()) })?;
                Ok((words, vec![event]))
            }
            [CREATE_QP, nic, pd, cq, sends_at, receives_at, sends, receives, sges] => {
                let caps = QpCaps {
                    max_send_wr: sends as u32,
                    max_recv_wr: receives as u32,
                    max_send_sge: sges as u32,
                    max_recv_sge: sges as u32,
                    max_inline: 0,
                };
                let ring = SendRing::on(&self.part(sends_at)?, caps.max_send_wr, caps.max_send_sge, 0);
                let own = RecvRing::on(&self.part(receives_at)?, caps.max_recv_wr, caps.max_recv_sge);
                let command = MemoryCommand::CreateQp {
                    pd: PdId(pd as u32),
                    send_cq: CqIndex(cq as u32),
                    recv_cq: CqIndex(cq as u32),
                    init: QpInit { qp_type: QpType::Rc, caps, sq_sig_all: true },
                    sends: ring.map_err(text)?,
                    receives: ReceiveSource::Own(own.map_err(text)?),
                };
                self.call(nic, command)
            }
            [MODIFY_QP, nic, qp, ref attr @ ..] => {
                let attr = attr_of(attr).ok_or("attributes of another shape")?;
                self.call(nic, Command::ModifyQp(QpIndex(qp as u32), Box::new(attr)))
            }
            _ => Err(format!("no such question: {words:?}")),
        }
    }

    /// Returns the arena from word `at` on, for a queue of any size that fits.
    fn part(&self, at: u64) -> Result<Arc<Region>, String> {
        let arena = self.arena.as_ref().ok_or("no queues before a region for them")?;
        let at = at as usize;
        arena.part(at, arena.words().len().saturating_sub(at)).map_err(text)
    }

    fn call(&self, nic: u64, command: impl Into<Command>) -> Reply {
        let nic = self.nics.get(nic as usize).ok_or("no such NIC")?;
        let words = match nic.engine.call(command).map_err(text)? {
            Answer::Done => Vec::new(),
            Answer::Pd(pd) => vec![pd.0.into()],
            Answer::Memory(mr, key) => vec![mr.0.into(), key.into()],
            Answer::Cq(cq) => vec![cq.0.into()],
            Answer::Qp(handle) => vec![handle.index.0.into(), handle.qpn.value().into()],
            other => return Err(format!("an answer to no question: {other:?}")),
        };
        Ok((words, Vec::new()))
    }
}

fn copy(fd: std::os::fd::BorrowedFd<'_>) -> OwnedFd {
    fd.try_clone_to_owned().expect("another descriptor")
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
