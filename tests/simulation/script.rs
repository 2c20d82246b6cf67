//! The script of a run: hosts, channels between them, weather, and timed actions.
//!
//! A script decides everything; a seed only generates one ([`crate::generate`]). Any part may be removed, because an
//! action without an object does nothing. [`crate::shrink`] relies on that to shorten a failing script. [`crate::text`]
//! is the text form.

use roxie::congestion::Rate;
use roxie::nic::CongestionConfig;
use roxie::time::Nanos;
use roxie::transport::AckRequestPolicy;
use roxie::verbs::{Mtu, RateLimit, WrOpcode};
use roxie::wire::Opcode;

/// A whole run.
#[derive(Clone, Debug, PartialEq)]
pub struct Script {
    /// Decides details that no line states: which bits flip, when an application defers its receives, the PSNs of later
    /// lives.
    pub seed: u64,
    pub hosts: Hosts,
    pub srqs: Vec<Srq>,
    pub channels: Vec<Channel>,
    pub weather: Vec<Rule>,
    /// Sorted by time.
    pub actions: Vec<Timed>,
    /// Counts that the run must end with, by name.
    pub expected: Vec<(String, u64)>,
    /// Texts that the event log of an end's QP must contain, in this order.
    pub logs: Vec<(Place, String)>,
}

/// Properties of all hosts.
#[derive(Clone, Debug, PartialEq)]
pub struct Hosts {
    pub count: usize,
    /// MTU of the link in bytes.
    pub link_mtu: usize,
    pub ipv6: bool,
    /// Frames have two pieces, split at this offset.
    pub split: Option<usize>,
    /// Maximum number of unacknowledged PSNs of a QP.
    pub window: u32,
    pub ack_coalesce: u32,
    /// Number of frames that a port accepts in one pass.
    pub slots: usize,
    /// When unsignaled messages ask for an acknowledgement.
    pub ack_requests: AckRequestPolicy,
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
            ack_requests: AckRequestPolicy::Late,
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
    /// From an XRC initiator to a target. Each request names a shared receive queue.
    Xrc,
}

impl Service {
    pub fn is_datagram(self) -> bool {
        matches!(self, Service::Ud | Service::Group)
    }

    /// True if requests are acknowledged.
    pub fn is_reliable(self) -> bool {
        matches!(self, Service::Rc | Service::Xrc)
    }

    /// True if only end a sends.
    pub fn is_one_way(self) -> bool {
        matches!(self, Service::Group | Service::Xrc)
    }
}

/// A shared receive queue. Each host with a QP that uses it has an instance.
#[derive(Clone, Debug, PartialEq)]
pub struct Srq {
    /// The queue belongs to an XRC domain, and requests name it.
    pub extended: bool,
    /// Initial size in receives.
    pub size: u32,
    /// Maximum number of posted receives.
    pub ahead: u32,
    /// In one of this many turns, nothing is posted.
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

/// Communicating QPs: two ends of a connection, or a sender of datagrams and its receivers.
#[derive(Clone, Debug, PartialEq)]
pub struct Channel {
    pub service: Service,
    /// The host of each end. The first is end a.
    pub ends: Vec<usize>,
    pub mtu: Mtu,
    /// First PSN of end a, and of end b.
    pub psns: [u32; 2],
    pub rd_atomic: u8,
    /// Maximum number of outstanding work requests in each direction.
    pub depth: usize,
    /// Maximum number of posted receives.
    pub ahead: usize,
    /// In one of this many turns, a receiver posts nothing.
    pub dawdles: u64,
    /// Local ACK timeout code.
    pub timeout: u8,
    pub retries: u8,
    pub rnr_retries: u8,
    pub rnr_timer: u8,
    /// Size of each end's completion queue.
    pub cq: u32,
    pub sig_all: bool,
    /// Delay of RTS of all ends but a; RTR has half of it. With XRC, a and b alternate from life to life.
    pub slow: Nanos,
    /// The applications poll after a completion event, with this moderation. `None`: they poll in every turn.
    pub events: Option<Held>,
    /// Shared receive queues of the ends; empty: each end has its own queue. Only XRC may have more than one.
    pub srqs: Vec<usize>,
    /// Service level, used as priority.
    pub sl: u8,
    /// The ends have agreed to selective repeat. On RC only.
    pub selective: bool,
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
            selective: false,
        }
    }
}

/// Moderation of the events of a completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// Number of completions for an event; 1: no moderation.
    pub count: u32,
    /// Maximum delay of an event.
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

/// A fault of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    Lose,
    Double,
    /// The frame is delayed by this time, and others overtake it.
    Delay(Nanos),
    /// A bit flips.
    Harm,
    /// The frame gets a congestion mark (ECN CE), if it is ECN-capable.
    Mark,
}

/// A frame, identified by its headers and the number of earlier frames with the same headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FrameName {
    /// Direction of the frame. A response goes opposite to its request.
    pub way: Way,
    /// Receiving host; tells receivers of a group apart.
    pub to: usize,
    pub opcode: Opcode,
    /// Distance from the first PSN of its requester.
    pub psn: i32,
    /// Number of earlier transmissions.
    pub earlier: u32,
    /// Number of earlier connections of the channel.
    pub life: u32,
}

/// A rule that applies faults to frames.
#[derive(Clone, Debug, PartialEq)]
pub enum Rule {
    /// Applies to this many of ten thousand frames to a host.
    Rate { to: usize, trouble: Trouble, of_10_000: u32 },
    /// Applies to a single frame.
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
    /// A compare-and-swap with a wrong compare value, a datagram with a wrong Q_Key, or a FLUSH of the whole region.
    pub odd: bool,
    /// The request uses the key granted last, if one is valid.
    pub granted: bool,
    /// Index of the channel's shared receive queue that the request names.
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

    /// Number of bytes that the request places in the peer's receive.
    pub fn received(&self) -> u32 {
        let in_receive = self.opcode.consumes_receive() && self.opcode != WrOpcode::WriteImm;
        if in_receive { self.length } else { 0 }
    }
}

/// A region of a way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// Payload to send, at the sender.
    Source,
    /// Results of READs and atomics, at the sender.
    Landing,
    /// Memory of WRITEs, READs and atomics, at the receiver.
    Target,
    /// Receive buffers for SENDs, at the receiver.
    Inbox,
}

/// How a receiver grants access to the target of a way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grant {
    WindowOne,
    WindowTwo,
    FastRegion,
}

/// A kind of frame from a stranger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intrusion {
    /// A datagram with the right Q_Key, longer than the port's MTU or than any receive.
    Long,
    /// A packet that would have an effect if it came from the peer, or with the right key.
    Spoof,
    /// A congestion notification.
    Notice,
    /// A congestion notification, or an invalid one, from the peer's address.
    Forged,
    /// Like [`Intrusion::Spoof`], with a congestion mark.
    Marked,
    /// A PAUSE frame.
    Pause,
    /// A priority flow control frame.
    Pfc,
    /// A packet to an unused QPN.
    Unknown,
}

/// Congestion settings of a NIC, as text.
#[derive(Clone, Debug, PartialEq)]
pub struct Brakes {
    /// Value of `--cc`.
    pub control: String,
    /// Value of `--ecn`. `auto`: as the control needs.
    pub ecn: String,
    /// Value of `--qos`.
    pub classes: String,
    /// Line rate of the port in Mb/s.
    pub mbps: u32,
}

impl Default for Brakes {
    fn default() -> Brakes {
        Brakes { control: "off".into(), ecn: "auto".into(), classes: String::new(), mbps: 10_000 }
    }
}

impl Brakes {
    /// Parses the settings.
    ///
    /// # Errors
    /// Names the word that is not valid.
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

/// An action of an application, an administrator or a stranger.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// An application posts a work request as soon as the queue has room.
    Post(Way, Op),
    /// A NIC loses its state and restarts.
    Restart(usize),
    /// Changes the link MTU of a host, in bytes.
    LinkMtu(usize, usize),
    /// Changes the MAC address of a host. The other hosts learn it after this time.
    Move(usize, Nanos),
    /// Changes the IP address of a host, for later connections.
    Readdress(usize),
    PortDown(usize),
    PortUp(usize),
    /// Advances the clock by this time without running anything.
    Jump(Nanos),
    Reset(Place),
    Destroy(Place),
    /// Moves a QP to the error state.
    Error(Place),
    /// Moves a QP to SQD and requests the event.
    Drain(Place),
    /// Moves a QP from SQD or SQE to RTS.
    Resume(Place),
    /// The application neither polls nor posts for this time.
    Sleep(Place, Nanos),
    Deregister(Way, Part),
    DestroyHandle(usize),
    /// The receiver of a way grants access to its target.
    Grant(Way, Grant),
    /// The receiver of a way revokes the granted key.
    Revoke(Way),
    /// The receiver of a way destroys the window that grants access.
    FreeWindow(Way),
    /// Sets the event moderation of an end.
    Moderate(Place, Held),
    /// Arms the limit event of a shared receive queue.
    Arm(SrqPlace, u32),
    /// Resizes a shared receive queue, if its posted receives fit.
    ResizeSrq(SrqPlace, u32),
    /// Destroys a shared receive queue, unless QPs use it. The next connection creates it again.
    DestroySrq(SrqPlace),
    /// Applies congestion settings to the NIC of a host.
    Brake(usize, Brakes),
    /// Sets the rate limit of an end.
    Limit(Place, RateLimit),
    /// A stranger sends a frame to an end. The number decides its details.
    Intrude(Place, Intrusion, u64),
    /// Connects a channel again, with its QPs or with new ones.
    Connect {
        channel: usize,
        again: bool,
    },
}

/// An action and its time.
#[derive(Clone, Debug, PartialEq)]
pub struct Timed {
    pub at: Nanos,
    pub action: Action,
}

impl Script {
    /// Returns the work requests of a way with their times, in order.
    pub fn ops(&self, way: Way) -> impl Iterator<Item = (Nanos, &Op)> {
        self.actions.iter().filter_map(move |timed| match &timed.action {
            Action::Post(of, op) if *of == way => Some((timed.at, op)),
            _ => None,
        })
    }

    /// Returns the hosts of a shared receive queue: those of receiving ends that use it.
    pub fn hosts_of(&self, srq: usize) -> Vec<usize> {
        let users = self.channels.iter().filter(|channel| channel.srqs.contains(&srq));
        let receivers =
            |channel: &Channel| channel.ends[usize::from(channel.service.is_one_way())..].to_vec();
        let mut hosts: Vec<usize> = users.flat_map(receivers).collect();
        hosts.sort_unstable();
        hosts.dedup();
        hosts
    }

    /// True if `like` returns true for any action.
    pub fn has(&self, like: impl Fn(&Action) -> bool) -> bool {
        self.actions.iter().any(|timed| like(&timed.action))
    }

    /// True if congestion control or a limit may hold packets back.
    pub fn is_paced(&self) -> bool {
        self.has(|action| matches!(action, Action::Brake(..) | Action::Limit(..)))
    }
}
