//! Scripts: hosts, channels between them, weather, and actions with their times.
//!
//! A script determines a run; a seed only generates a script ([`crate::generate`]). A script remains valid if parts are
//! removed, because actions without an object do nothing; [`crate::shrink`] relies on it. [`crate::text`] is the
//! text form.

use roxie::congestion::Rate;
use roxie::nic::CongestionConfig;
use roxie::time::Nanos;
use roxie::verbs::{Mtu, RateLimit, WrOpcode};
use roxie::wire::Opcode;

/// A complete run.
#[derive(Clone, Debug, PartialEq)]
pub struct Script {
    /// Determines details that no line states: flipped bits, delays of applications, first PSNs of later lives.
    pub seed: u64,
    pub hosts: Hosts,
    pub srqs: Vec<Srq>,
    pub channels: Vec<Channel>,
    pub weather: Vec<Rule>,
    /// Sorted by time.
    pub actions: Vec<Timed>,
    /// Minimum counts at the end, by name.
    pub expected: Vec<(String, u64)>,
    /// Records that the event log of an end's QP must contain at the end, in this order.
    pub logs: Vec<(Place, String)>,
}

/// Properties that all hosts share.
#[derive(Clone, Debug, PartialEq)]
pub struct Hosts {
    pub count: usize,
    /// In bytes.
    pub link_mtu: usize,
    pub ipv6: bool,
    /// Frames are in two pieces, split at this offset.
    pub split: Option<usize>,
    /// Maximum number of unacknowledged PSNs of a QP.
    pub window: u32,
    pub ack_coalesce: u32,
    /// Frames that a port has buffers for in one turn.
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
    /// From an initiator to a target, to shared receive queues that each request names.
    Xrc,
}

impl Service {
    pub fn is_datagram(self) -> bool {
        matches!(self, Service::Ud | Service::Group)
    }

    /// True if everything is acknowledged.
    pub fn is_reliable(self) -> bool {
        matches!(self, Service::Rc | Service::Xrc)
    }

    /// True if only end a sends.
    pub fn is_one_way(self) -> bool {
        matches!(self, Service::Group | Service::Xrc)
    }
}

/// A shared receive queue, which exists on each host with a QP that uses it.
#[derive(Clone, Debug, PartialEq)]
pub struct Srq {
    /// True if it belongs to an XRC domain, and requests name it.
    pub extended: bool,
    /// Initial number of receives.
    pub size: u32,
    /// Maximum number of waiting receives.
    pub ahead: u32,
    /// One of this many turns posts nothing.
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

/// Connected QPs: two ends of a connection, or a sender of datagrams and its receivers.
#[derive(Clone, Debug, PartialEq)]
pub struct Channel {
    pub service: Service,
    /// Host of each end. The first is end a.
    pub ends: Vec<usize>,
    pub mtu: Mtu,
    /// First PSNs of a and b.
    pub psns: [u32; 2],
    pub rd_atomic: u8,
    /// Maximum number of outstanding work requests, in each direction.
    pub depth: usize,
    /// Maximum number of posted receives.
    pub ahead: usize,
    /// A receiver posts nothing in one of this many turns.
    pub dawdles: u64,
    /// Local ACK timeout code.
    pub timeout: u8,
    pub retries: u8,
    pub rnr_retries: u8,
    pub rnr_timer: u8,
    /// Entries of each end's completion queue.
    pub cq: u32,
    pub sig_all: bool,
    /// Delay before ends other than a enter RTR and RTS; with XRC, before a does in every other life.
    pub slow: Nanos,
    /// Moderation of completion events, if applications poll after an event only. `None`: they poll all the time.
    pub events: Option<Held>,
    /// Shared receive queues of its ends; empty: each has its own queue. More than one only if requests name them.
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

/// Moderation of completion events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// Number of completions per event; 1: no moderation.
    pub count: u32,
    /// Maximum delay.
    pub period: Nanos,
}

/// One direction of a channel: from end a, or back.
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

/// Faults of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    Lose,
    Double,
    /// Delivery is delayed by this much, and others overtake.
    Delay(Nanos),
    /// A bit is flipped.
    Harm,
    /// The frame is marked (CE), if it is ECN-capable.
    Mark,
}

/// Name of a frame: its contents, and the number of equal frames before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FrameName {
    /// Direction of the request; a response goes the other way.
    pub way: Way,
    /// Host of the receiver, for groups.
    pub to: usize,
    pub opcode: Opcode,
    /// PSNs after the requester's first.
    pub psn: i32,
    /// Number of earlier equal frames.
    pub earlier: u32,
    /// Number of earlier lives of the channel.
    pub life: u32,
}

/// A rule about frames.
#[derive(Clone, Debug, PartialEq)]
pub enum Rule {
    /// A rate of frames to a host, in ten thousandths.
    Rate { to: usize, trouble: Trouble, of_10_000: u32 },
    /// A single frame.
    Strike { frame: FrameName, trouble: Trouble },
}

/// A work request.
#[derive(Clone, Debug, PartialEq)]
pub struct Op {
    pub opcode: WrOpcode,
    pub length: u32,
    /// Number of SGEs.
    pub pieces: u32,
    pub inline: bool,
    pub unsignaled: bool,
    pub fence: bool,
    pub solicited: bool,
    pub imm: u32,
    /// A compare-and-swap with a wrong value, a datagram with a wrong Q_Key, a FLUSH of the whole region.
    pub odd: bool,
    /// Uses the key that was granted last, if one is valid.
    pub granted: bool,
    /// Index among the channel's shared receive queues, if requests name them.
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

    /// Bytes in the peer's receive.
    pub fn received(&self) -> u32 {
        let in_receive = self.opcode.consumes_receive() && self.opcode != WrOpcode::WriteImm;
        if in_receive { self.length } else { 0 }
    }
}

/// A region of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// Sent data, at the sender.
    Source,
    /// Results, at the sender.
    Landing,
    /// Memory for WRITEs, READs, and atomics, at the receiver.
    Target,
    /// Buffers of receives, at the receiver.
    Inbox,
}

/// How a receiver grants access to its target region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grant {
    WindowOne,
    WindowTwo,
    FastRegion,
}

/// Packets of a stranger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intrusion {
    /// A datagram with the right Q_Key that is longer than the port's MTU, or than any receive.
    Long,
    /// A packet that would have an effect if it came from the peer, or with the right key.
    Spoof,
    /// A CNP.
    Notice,
    /// A CNP from the peer's address, or a similar packet.
    Forged,
    /// As [`Intrusion::Spoof`], and marked.
    Marked,
    /// A PAUSE frame.
    Pause,
    /// A priority flow control frame.
    Pfc,
    /// A packet to a QPN that does not exist.
    Unknown,
}

/// Congestion control of a NIC, in the words of its options.
#[derive(Clone, Debug, PartialEq)]
pub struct Brakes {
    /// Value of `--cc`.
    pub control: String,
    /// Value of `--ecn`; `auto` depends on `control`.
    pub ecn: String,
    /// Value of `--qos`.
    pub classes: String,
    /// Rate of the port.
    pub mbps: u32,
}

impl Default for Brakes {
    fn default() -> Brakes {
        Brakes { control: "off".into(), ecn: "auto".into(), classes: String::new(), mbps: 10_000 }
    }
}

impl Brakes {
    /// # Errors
    /// Names invalid words.
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

/// Actions of a script.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Posts a work request as soon as there is room.
    Post(Way, Op),
    /// Restarts a NIC, which loses all state.
    Restart(usize),
    /// Changes the link MTU of a host.
    LinkMtu(usize, usize),
    /// Changes the MAC address of a host; the others learn the new one after this time.
    Move(usize, Nanos),
    /// Changes the IP address of a host, for later connections.
    Readdress(usize),
    PortDown(usize),
    PortUp(usize),
    /// Advances the clock without polling the NICs.
    Jump(Nanos),
    Reset(Place),
    Destroy(Place),
    /// Moves the QP to ERR.
    Error(Place),
    /// Moves the QP to SQD, with the event.
    Drain(Place),
    /// Moves the QP to RTS, from SQD or SQE.
    Resume(Place),
    /// The application does not poll for this time.
    Sleep(Place, Nanos),
    Deregister(Way, Part),
    DestroyHandle(usize),
    /// The receiver grants access to its target region by a key of this kind.
    Grant(Way, Grant),
    /// The receiver revokes the granted key.
    Revoke(Way),
    /// The receiver destroys the window that grants access.
    FreeWindow(Way),
    /// Changes the moderation of an end's events.
    Moderate(Place, Held),
    /// Arms a shared receive queue's limit event at fewer than this many receives.
    Arm(SrqPlace, u32),
    /// Resizes a shared receive queue to this size, if its waiting receives fit.
    ResizeSrq(SrqPlace, u32),
    /// Destroys a shared receive queue that no QP uses. The next connection creates it again.
    DestroySrq(SrqPlace),
    /// Changes the congestion control of a host's NIC.
    Brake(usize, Brakes),
    /// Limits the rate of an end.
    Limit(Place, RateLimit),
    /// A stranger sends a packet to an end; the number selects details.
    Intrude(Place, Intrusion, u64),
    /// Connects both ends of a channel again, with their QPs or with new ones.
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
    /// Returns the work requests of a direction, in order, each with its time.
    pub fn ops(&self, way: Way) -> impl Iterator<Item = (Nanos, &Op)> {
        self.actions.iter().filter_map(move |timed| match &timed.action {
            Action::Post(of, op) if *of == way => Some((timed.at, op)),
            _ => None,
        })
    }

    /// Hosts of a shared receive queue: those with a receiver that uses it.
    pub fn hosts_of(&self, srq: usize) -> Vec<usize> {
        let users = self.channels.iter().filter(|channel| channel.srqs.contains(&srq));
        let receivers =
            |channel: &Channel| channel.ends[usize::from(channel.service.is_one_way())..].to_vec();
        let mut hosts: Vec<usize> = users.flat_map(receivers).collect();
        hosts.sort_unstable();
        hosts.dedup();
        hosts
    }

    /// True if an action satisfies `like`.
    pub fn has(&self, like: impl Fn(&Action) -> bool) -> bool {
        self.actions.iter().any(|timed| like(&timed.action))
    }
}
