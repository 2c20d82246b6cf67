//! What a process and its NIC in another process say to one another.
//!
//! A process asks, and the NIC answers each question in turn. Events come on a socket of their own, unasked. Commands that carry memory
//! name its places: queues lie in arenas, memory that both have mapped; what is registered is named by its address in the process.

use std::fmt;
use std::marker::PhantomData;
use std::net::IpAddr;

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::nic::{Answer, Command, Form, MemoryCommand};
use crate::port::PortInfo;
use crate::roster::PortRequest;
use crate::verbs::Mtu;

/// The form of messages. Both ends have to have the same.
pub const VERSION: u32 = 5;

/// Services that a process may listen for: far more than a connection manager has listeners.
const SERVICES: usize = 1 << 13;

/// A list that is read piece by piece: its sender says how long it is, and has no part in how much memory there is.
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

/// A process that wants to be served. No descriptor comes beside it: the NIC takes none before it has answered by `Ok(())`. Then come, beside
/// one byte, the descriptors of the process's memory
/// ([`RemoteMemory::descriptors`](crate::shared::remote_memory::RemoteMemory::descriptors)).
#[derive(Debug, Serialize, Deserialize)]
pub struct Hello {
    /// [`VERSION`].
    pub version: u32,
    /// Its name, for people.
    pub name: String,
    /// An address of its memory, and the 8 bytes that are there.
    pub secret: (u64, u64),
}

/// It is served. Beside it come the page of its doorbells, the descriptor that they ring, and the socket of events.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Welcome {
    /// Its place, which its communication IDs begin with.
    pub slot: u8,
    /// Bells of its page.
    pub qps: u32,
    /// Zero of the NIC's clock, in ns of `CLOCK_MONOTONIC`.
    pub epoch: u64,
    /// What it stands on.
    pub port: PortInfo,
}

/// Where a queue lies: in which arena, and from which word on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    pub arena: u32,
    pub at: u64,
}

/// Memory of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Memory {
    /// None: what is written vanishes, what is read is zeros.
    Null,
    /// At this address of the process, so many bytes; their pages may come and go.
    At { address: u64, length: u64, on_demand: bool },
}

/// A page list: where, and of how many pages.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Pages {
    pub place: Place,
    pub capacity: u32,
}

/// A ring of completions: where, and for how many.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Completions {
    pub place: Place,
    pub capacity: u32,
}

/// A receive queue: where, for how many, of how many entries each.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Receives {
    pub place: Place,
    pub capacity: u32,
    pub max_sge: u32,
}

/// What a descriptor stands for that comes beside a message.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Beside;

/// Memory of a process that its NIC, another process, shares or copies from and to.
#[derive(Clone, Copy, Debug)]
pub enum Placed {}

impl Form for Placed {
    type Memory = Memory;
    type Pages = Pages;
    type Completions = Completions;
    type Counter = Beside;
    type Sends = Place;
    type Receives = Receives;
}

/// What a process asks of the NIC.
#[derive(Debug, Serialize, Deserialize)]
pub enum Ask {
    /// A command that carries no memory. The descriptor of the file of an XRC domain comes with it.
    Command(Command),
    /// A command that carries memory.
    Memory(MemoryCommand<Placed>),
    /// Memory for queues, of so many words: its descriptor comes with it. Arenas are counted from 0.
    Arena { words: u64 },
    /// The largest path MTU.
    LargestMtu,
    /// What the port is now.
    Port,
    /// All counters.
    Counters,
    /// What there is to be seen of this process's objects: JSON.
    Look,
    /// The unit of a process that has ended, to speak in its name.
    TakeUnit(u8),
    /// Memory with what its connections would leave: its descriptor comes with it.
    Estate,
    /// It listens for these services, and no others.
    Services(#[serde(deserialize_with = "at_most::<SERVICES, _, _>")] Vec<(u64, Option<IpAddr>)>),
    /// A call of `rdma_cm` that concerns port numbers.
    PortNumber(PortRequest),
}

impl From<MemoryCommand<Placed>> for Ask {
    fn from(command: MemoryCommand<Placed>) -> Ask {
        Ask::Memory(command)
    }
}

/// What the NIC answers.
#[derive(Debug, Serialize, Deserialize)]
pub enum Told {
    /// What the NIC answers to a command.
    Answer(Answer),
    Mtu(Mtu),
    Port(PortInfo),
    Counters(Vec<(String, u64)>),
    Look(Vec<u8>),
    /// True: done.
    Done(bool),
    PortNumber(u16),
}

/// Why it does not do it.
#[derive(Debug, Serialize, Deserialize)]
pub struct Refusal {
    pub errno: i32,
    pub why: String,
}

/// An answer to a question.
pub type Reply = Result<Told, Refusal>;
