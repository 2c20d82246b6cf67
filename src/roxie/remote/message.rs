//! Messages between a process and its NIC in another process.
//!
//! A process sends requests, and the NIC answers each in turn. Events arrive unsolicited, on a socket of their own.
//! Commands that carry memory name its place: queues lie in arenas, which both processes map; registered memory is
//! named by its address in the process.

use std::fmt;
use std::marker::PhantomData;
use std::net::IpAddr;

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use roxie_base::protocol::Protocol;
use roxie_base::roster::PortRequest;
use roxie_nic::nic::{Answer, Command, Form, MemoryCommand};
use roxie_nic::verbs::Mtu;
use roxie_port::PortInfo;

/// Protocol of a process and its NIC: the messages of this module, and the layout of queues, doorbells and orphan
/// tables in shared memory. The NIC compares versions, and serves libraries from `oldest` on: those are older in a node
/// that was updated.
pub const CLIENT_PROTOCOL: Protocol = Protocol { name: "client protocol", oldest: 7, version: 8 };

/// Maximum number of services that a process may listen for, far more than a connection manager has listeners.
const SERVICES: usize = 1 << 13;

/// A list that is read element by element: memory is allocated for received elements only, whatever length the sender
/// announces.
fn at_most<'de, const MOST: usize, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    struct List<T, const MOST: usize>(PhantomData<T>);

    impl<'de, const MOST: usize, T: Deserialize<'de>> Visitor<'de> for List<T, MOST> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "a list of {MOST} entries at most")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<Vec<T>, A::Error> {
            let mut list = Vec::new();
            while let Some(entry) = entries.next_element()? {
                if list.len() == MOST {
                    return Err(A::Error::invalid_length(list.len() + 1, &self));
                }
                list.try_reserve(1).map_err(A::Error::custom)?;
                list.push(entry);
            }
            Ok(list)
        }
    }

    deserializer.deserialize_seq(List::<T, MOST>(PhantomData))
}

/// A process's first message, which begins with the version in all versions. The answer is a `Result<(), String>` in
/// all versions. The NIC accepts descriptors only after its answer `Ok(())`. The process then sends those of its memory
/// ([`RemoteMemory::descriptors`](roxie_nic::shared::remote_memory::RemoteMemory::descriptors)), with one byte of data.
#[derive(Debug, Serialize, Deserialize)]
pub struct Hello {
    /// The version of [`CLIENT_PROTOCOL`].
    pub version: u32,
    /// Its name, for display.
    pub name: String,
    /// An address of its memory, and the 8 bytes at that address.
    pub secret: (u64, u64),
}

impl Hello {
    /// Reads a first message: its version, and the rest only if this release understands the version.
    ///
    /// # Errors
    /// If the version is another one, or the bytes are no first message.
    pub fn read(bytes: &[u8]) -> Result<Hello, String> {
        let other = |error: postcard::Error| format!("what it said is no greeting: {error}");
        let (version, _) = postcard::take_from_bytes(bytes).map_err(other)?;
        CLIENT_PROTOCOL.check("the NIC", "the library", version).map_err(|error| error.to_string())?;
        postcard::from_bytes(bytes).map_err(other)
    }
}

/// Stands for the version in the first message of a process that asks for the name of the NIC's device alone. The
/// answer is as to a greeting, then the name. An older NIC refuses, as any version that it does not speak.
pub const NAME_QUESTION: u32 = 0;

/// What a process wants, by its first message.
#[derive(Debug)]
pub enum FirstMessage {
    /// To be served.
    Hello(Hello),
    /// [`NAME_QUESTION`].
    NameQuestion,
}

impl FirstMessage {
    /// Reads a first message.
    ///
    /// # Errors
    /// As [`Hello::read`].
    pub fn read(bytes: &[u8]) -> Result<FirstMessage, String> {
        match postcard::take_from_bytes(bytes) {
            Ok((NAME_QUESTION, _)) => Ok(FirstMessage::NameQuestion),
            _ => Hello::read(bytes).map(FirstMessage::Hello),
        }
    }
}

/// The NIC serves the process. The message carries the page of its doorbells, the descriptor that they ring, and the
/// socket of events.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Welcome {
    /// The slot of the process, with which its communication IDs begin.
    pub slot: u8,
    /// Number of bells on its page.
    pub qps: u32,
    /// Zero of the NIC's clock, in ns of `CLOCK_MONOTONIC`.
    pub epoch: u64,
    /// The description of the link.
    pub port: PortInfo,
}

/// The place of a queue: the arena, and its first word there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArenaPlace {
    pub arena: u32,
    pub at: u64,
}

/// Registered memory of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Memory {
    /// Without backing: writes are discarded, reads return zeros.
    Null,
    /// At this address of the process, of this length. If `on_demand`, its pages may be mapped and unmapped at any
    /// time.
    At { address: u64, length: u64, on_demand: bool },
    /// As [`Memory::At`], and in a file, from byte `offset` on. The descriptor comes with the message: the NIC may map
    /// the file. `is_lent`: the NIC may also seal it.
    InFile { address: u64, length: u64, offset: u64, is_lent: bool },
}

/// A page list: its place and number of pages.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Pages {
    pub place: ArenaPlace,
    pub capacity: u32,
}

/// A completion ring: its place and number of entries.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Completions {
    pub place: ArenaPlace,
    pub capacity: u32,
}

/// A receive queue: its place, number of receives, and entries of each.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Receives {
    pub place: ArenaPlace,
    pub capacity: u32,
    pub max_sge: u32,
}

/// Stands for a descriptor that accompanies the message.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct WithMessage;

/// Memory of a client, as its NIC names it: shared queues, and memory that the NIC copies from and to.
#[derive(Clone, Copy, Debug)]
pub enum ClientForm {}

impl Form for ClientForm {
    type Memory = Memory;
    type Pages = Pages;
    type Completions = Completions;
    type Counter = WithMessage;
    type Sends = ArenaPlace;
    type Receives = Receives;
}

/// A request of a process to the NIC.
#[derive(Debug, Serialize, Deserialize)]
pub enum Request {
    /// A command without memory. For an XRC domain, the descriptor of its file comes with the message.
    Command(Command),
    /// A command with memory.
    Memory(MemoryCommand<ClientForm>),
    /// Memory for queues, of this many words. The descriptor comes with the message. Arenas are numbered from 0.
    Arena { words: u64 },
    /// The largest path MTU.
    LargestMtu,
    /// The state of the port.
    Port,
    /// All counters.
    Counters,
    /// A snapshot of this process's objects, as JSON.
    Snapshot,
    /// The unit of a process that has ended, in order to act for that process.
    TakeUnit(u8),
    /// Memory for the state of its connections that outlives the process. The descriptor comes with the message.
    OrphanTable,
    /// The services that the process listens for; they replace earlier ones.
    Services(#[serde(deserialize_with = "at_most::<SERVICES, _, _>")] Vec<(u64, Option<IpAddr>)>),
    /// A call of `rdma_cm` about port numbers.
    PortNumber(PortRequest),
}

impl From<MemoryCommand<ClientForm>> for Request {
    fn from(command: MemoryCommand<ClientForm>) -> Request {
        Request::Memory(command)
    }
}

/// The NIC's answer.
#[derive(Debug, Serialize, Deserialize)]
pub enum Response {
    /// The result of a command.
    Answer(Answer),
    Mtu(Mtu),
    Port(PortInfo),
    Counters(Vec<(String, u64)>),
    Snapshot(Vec<u8>),
    /// True if the NIC has done it.
    Done(bool),
    PortNumber(u16),
}

/// The reason for a refusal.
#[derive(Debug, Serialize, Deserialize)]
pub struct Refusal {
    pub errno: i32,
    pub why: String,
}

/// The reply to a request.
pub type Reply = Result<Response, Refusal>;
