//! What happens in a run, from beginning to end: hosts, channels between them, weather, and actions in time.
//!
//! A script decides everything: a seed only writes one ([`crate::generate`]). It stays a script whatever is taken out of it,
//! because an action that finds nothing to act on does nothing. That is what lets [`crate::shrink`] cut a failing run
//! down to a lesson. [`crate::text`] is how it reads on paper.

use roxie::congestion::Rate;
use roxie::nic::CongestionConfig;
use roxie::time::Nanos;
use roxie::verbs::{Mtu, RateLimit, WrOpcode};
use roxie::wire::Opcode;

/// A whole run.
#[derive(Clone, Debug, PartialEq)]
pub struct Script {
    /// Decides what no line says: which bits flip, when an application dawdles, which PSNs a second life begins with.
    pub seed: u64,
    pub hosts: Hosts,
    pub srqs: Vec<Srq>,
    pub channels: Vec<Channel>,
    pub weather: Vec<Rule>,
    /// In the order of time.
    pub actions: Vec<Timed>,
    /// How often something must have been counted in the end, by its name.
    pub expected: Vec<(String, u64)>,
    /// What the event log of an end's QP must say in the end, in this order.
    pub logs: Vec<(Place, String)>,
}

/// What all hosts have in common.
#[derive(Clone, Debug, PartialEq)]
pub struct Hosts {
    pub count: usize,
    /// Of the link, in bytes.
    pub link_mtu: usize,
    pub ipv6: bool,
    /// Frames come and go in two pieces that meet here.
    pub split: Option<usize>,
    /// PSNs that a QP may have unacknowledged.
    pub window: u32,
    pub ack_coalesce: u32,
    /// Frames that a port has room for in one turn.
    pub slots: usize,
}

impl Default for Hosts {
    fn default() -> Hosts {
        Hosts {
            count: 2,
            link_mtu: 4200,
            ipv6: false,
            split: None,
            window: 128,
            ack_coalesce: 64,
            slots: 1024,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    Rc,
    Uc,
    /// Datagrams to one receiver.
    Ud,
    /// Datagrams to a group.
    Group,
    /// From an initiator to a target, into shared receive queues that each request names.
    Xrc,
}

impl Service {
    pub fn is_datagram(self) -> bool {
        matches!(self, Service::Ud | Service::Group)
    }

    /// Everything is acknowledged.
    pub fn is_reliable(self) -> bool {
        matches!(self, Service::Rc | Service::Xrc)
    }

    /// Only end a sends.
    pub fn is_one_way(self) -> bool {
        matches!(self, Service::Group | Service::Xrc)
    }
}

/// A shared receive queue: one of the kind stands on each host where a QP takes from it.
#[derive(Clone, Debug, PartialEq)]
pub struct Srq {
    /// Of an XRC domain, and named by requests.
    pub extended: bool,
    /// Receives that it holds at first.
    pub size: u32,
    /// Receives that wait in it at most.
    pub ahead: u32,
    /// Nothing is posted in one of so many turns.
    pub dawdles: u64,
}

impl Default for Srq {
    fn default() -> Srq {
        Srq { extended: false, size: 16, ahead: 8, dawdles: 0 }
    }
}

/// A shared receive queue on a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SrqPlace {
    pub srq: usize,
    pub host: usize,
}

/// QPs that talk to one another: two ends of a connection, or a sender of datagrams and its receivers.
#[derive(Clone, Debug, PartialEq)]
pub struct Channel {
    pub service: Service,
    /// Which host each end is on. The first is end a.
    pub ends: Vec<usize>,
    pub mtu: Mtu,
    /// What a sends first, and what b sends first.
    pub psns: [u32; 2],
    pub rd_atomic: u8,
    /// Work requests outstanding at most, in each direction.
    pub depth: usize,
    /// Receives that stand ready at most.
    pub ahead: usize,
    /// A receiver posts nothing in one of so many turns.
    pub dawdles: u64,
    /// Local ACK timeout code.
    pub timeout: u8,
    pub retries: u8,
    pub rnr_retries: u8,
    pub rnr_timer: u8,
    /// Entries of each end's completion queue.
    pub cq: u32,
    pub sig_all: bool,
    /// Ends other than a come to RTR and RTS so much later; of an extended connection a instead of b
    /// in every other life.
    pub slow: Nanos,
    /// Its applications look at their completions when an event tells of one, and events are held back so. `None`: they look all
    /// the time.
    pub events: Option<Held>,
    /// Where its ends take receives from; empty: each from a queue of its own. More than one only where requests name them.
    pub srqs: Vec<usize>,
    /// Service level, which is the priority.
    pub sl: u8,
}

impl Default for Channel {
    fn default() -> Channel {
        Channel {
            service: Service::Rc,
            ends: vec![0, 1],
            mtu: Mtu::Mtu256,
            psns: [0, 0],
            rd_atomic: 4,
            depth: 16,
            ahead: 8,
            dawdles: 0,
            timeout: 10,
            retries: 7,
            rnr_retries: 7,
            rnr_timer: 1,
            cq: 512,
            sig_all: false,
            slow: Nanos::ZERO,
            events: None,
            srqs: Vec::new(),
            sl: 0,
        }
    }
}

/// How events of a completion queue are held back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// Until there are so many completions; 1: not at all.
    pub count: u32,
    /// For so long at most.
    pub period: Nanos,
}

/// One direction of a channel: from end a, or back to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Way {
    pub channel: usize,
    pub back: bool,
}

/// One end of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    pub channel: usize,
    pub end: usize,
}

/// What goes wrong with frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    Lose,
    Double,
    /// It comes later by this much, and others overtake it.
    Delay(Nanos),
    /// A bit of it flips.
    Harm,
    /// It is marked as having met a long queue, if it may be.
    Mark,
}

/// A frame, by what it says and how often it has said so before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FrameName {
    /// Which way the frame goes; an answer goes against its question.
    pub way: Way,
    /// Of the receivers of a group, the one on this host.
    pub to: usize,
    pub opcode: Opcode,
    /// PSNs after the first of its requester.
    pub psn: i32,
    /// How often it went before.
    pub earlier: u32,
    /// How often the channel was connected before.
    pub life: u32,
}

/// A rule about frames.
#[derive(Clone, Debug, PartialEq)]
pub enum Rule {
    /// Of the frames to a host, so many in ten thousand.
    Rate { to: usize, trouble: Trouble, of_10_000: u32 },
    /// This frame.
    Strike { frame: FrameName, trouble: Trouble },
}

/// A work request.
#[derive(Clone, Debug, PartialEq)]
pub struct Op {
    pub opcode: WrOpcode,
    pub length: u32,
    /// Entries of its list.
    pub pieces: u32,
    pub inline: bool,
    pub unsignaled: bool,
    pub fence: bool,
    pub solicited: bool,
    pub imm: u32,
    /// A compare-and-swap that compares with a wrong value, a datagram with a wrong key, a FLUSH of the whole region.
    pub odd: bool,
    /// It names the peer's memory by the key that was granted last, if one is in force.
    pub granted: bool,
    /// Which of the channel's shared receive queues it is for, where requests name them.
    pub queue: usize,
}

impl Op {
    pub fn new(opcode: WrOpcode, length: u32) -> Op {
        Op {
            opcode,
            length,
            pieces: 1,
            inline: false,
            unsignaled: false,
            fence: false,
            solicited: false,
            imm: 0,
            odd: false,
            granted: false,
            queue: 0,
        }
    }

    pub fn has_imm(&self) -> bool {
        matches!(self.opcode, WrOpcode::SendImm | WrOpcode::WriteImm)
    }

    /// Bytes that it puts in the peer's receive.
    pub fn received(&self) -> u32 {
        let in_receive = self.opcode.consumes_receive() && self.opcode != WrOpcode::WriteImm;
        if in_receive { self.length } else { 0 }
    }
}

/// A region of a way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// What is sent, at the sender.
    Source,
    /// Where results come back to, at the sender.
    Landing,
    /// What is written, read and counted in, at the receiver.
    Target,
    /// Where SENDs go, at the receiver.
    Inbox,
}

/// How a receiver lets its peer at the target of a way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grant {
    WindowOne,
    WindowTwo,
    FastRegion,
}

/// What a stranger sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intrusion {
    /// A datagram with the right key that is longer than the port's MTU, or than any receive.
    Long,
    /// What would do something if it came from the peer, or with the right key.
    Spoof,
    /// A congestion notification.
    Notice,
    /// A congestion notification from the peer's address, or what looks like one.
    Forged,
    /// As [`Intrusion::Spoof`], and marked.
    Marked,
    /// A PAUSE frame.
    Pause,
    /// A priority flow control frame.
    Pfc,
    /// Something to a number that nobody has.
    Unknown,
}

/// How a NIC reacts to congestion, in the words of its settings.
#[derive(Clone, Debug, PartialEq)]
pub struct Brakes {
    /// As `--cc` takes it.
    pub control: String,
    /// As `--ecn` takes it; `auto` is what the control wants.
    pub ecn: String,
    /// As `--qos` takes it.
    pub classes: String,
    /// What the port carries.
    pub mbps: u32,
}

impl Default for Brakes {
    fn default() -> Brakes {
        Brakes { control: "off".into(), ecn: "auto".into(), classes: String::new(), mbps: 10_000 }
    }
}

impl Brakes {
    /// # Errors
    /// Says which of its words mean nothing.
    pub fn config(&self) -> Result<CongestionConfig, String> {
        let ecn = if self.ecn == "auto" { None } else { Some(self.ecn.parse()) };
        Ok(CongestionConfig {
            control: self.control.parse().map_err(|why| format!("{why}"))?,
            ecn: ecn.transpose().map_err(|why: roxie::nic::ClassesError| why.to_string())?,
            classes: self.classes.parse().map_err(|why| format!("{why}"))?,
            line_rate: Some(Rate::from_mbps(self.mbps.into())),
        })
    }
}

/// What somebody does.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// An application wants this done; it posts as soon as there is room.
    Post(Way, Op),
    /// A NIC forgets everything and starts anew.
    Restart(usize),
    /// The link of a host has this MTU from now on.
    LinkMtu(usize, usize),
    /// A host gets another station address; the others hear of it so much later.
    Move(usize, Nanos),
    /// A host gets another IP address, for connections to come.
    Readdress(usize),
    PortDown(usize),
    PortUp(usize),
    /// The clock goes on by this much, and nobody notices.
    Jump(Nanos),
    Reset(Place),
    Destroy(Place),
    /// To the error state.
    Error(Place),
    /// To SQD, with the event.
    Drain(Place),
    /// To RTS, from SQD or SQE.
    Resume(Place),
    /// The application looks at nothing for so long.
    Sleep(Place, Nanos),
    Deregister(Way, Part),
    DestroyHandle(usize),
    /// The receiver of a way grants access to its target by a key of this kind.
    Grant(Way, Grant),
    /// The receiver of a way takes the granted key back.
    Revoke(Way),
    /// The receiver of a way destroys the window that grants access.
    FreeWindow(Way),
    /// The events of an end are held back so from now on.
    Moderate(Place, Held),
    /// A shared receive queue is to tell when fewer than this many receives are left.
    Arm(SrqPlace, u32),
    /// A shared receive queue goes on in a ring of this size, if what waits in it fits.
    ResizeSrq(SrqPlace, u32),
    /// A shared receive queue is removed, if no QP was made for it. The next connection makes it anew.
    DestroySrq(SrqPlace),
    /// The NIC of a host reacts so from now on.
    Brake(usize, Brakes),
    /// An end sends no faster from now on.
    Limit(Place, RateLimit),
    /// A stranger sends something to an end; the number decides what is left open.
    Intrude(Place, Intrusion, u64),
    /// Both ends of a channel begin again, with the QPs that there are or with new ones.
    Connect {
        channel: usize,
        anew: bool,
    },
}

/// An action and its time.
#[derive(Clone, Debug, PartialEq)]
pub struct Timed {
    pub at: Nanos,
    pub action: Action,
}

impl Script {
    /// The work requests of a way, in order, each with its time.
    pub fn ops(&self, way: Way) -> impl Iterator<Item = (Nanos, &Op)> {
        self.actions.iter().filter_map(move |timed| match &timed.action {
            Action::Post(of, op) if *of == way => Some((timed.at, op)),
            _ => None,
        })
    }

    /// Hosts on which a shared receive queue stands: all at which something arrives that takes from it.
    pub fn hosts_of(&self, srq: usize) -> Vec<usize> {
        let users = self.channels.iter().filter(|channel| channel.srqs.contains(&srq));
        let receivers =
            |channel: &Channel| channel.ends[usize::from(channel.service.is_one_way())..].to_vec();
        let mut hosts: Vec<usize> = users.flat_map(receivers).collect();
        hosts.sort_unstable();
        hosts.dedup();
        hosts
    }

    /// True if some action is like this.
    pub fn has(&self, like: impl Fn(&Action) -> bool) -> bool {
        self.actions.iter().any(|timed| like(&timed.action))
    }
}
