//! The bench's own end of the link: a port that sends and receives frames, and records them.

use std::io;
use std::net::{IpAddr, UdpSocket};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use roxie_base::time::Nanos;
use roxie_port::Port;
use roxie_port::netdev::{Interface, RouteKey, interface_names, resolve};
use roxie_port::packet::{PacketConfig, PacketPort};
use roxie_port::udp::{UdpConfig, UdpPort};
use roxie_wire::capture::{Direction, PcapngWriter};
use roxie_wire::frame::Frame;
use roxie_wire::parse::ICRC_LEN;
use roxie_wire::{Icrc, Opcode, Qpn, parse};

use crate::packet::{Craft, Seen};
use crate::verdict::{Script, Stop};

/// Packets that a check keeps: a target may send without end.
const MOST_KEPT: usize = 4096;
/// Pause between two looks at the port.
const PAUSE: Duration = Duration::from_micros(50);
/// Time in which the station address of the target must be known.
const RESOLVED_IN: Duration = Duration::from_secs(3);

/// How the bench reaches the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Packet sockets: every byte of a frame. Takes CAP_NET_RAW.
    Raw,
    /// A UDP socket: every byte behind the UDP header.
    Socket,
}

/// The bench's end of the link.
pub struct Wire {
    port: Box<dyn Port>,
    access: Access,
    here: IpAddr,
    target: IpAddr,
    peer_mac: [u8; 6],
    mtu: usize,
    inbox: Vec<Seen>,
    capture: PcapngWriter<Vec<u8>>,
    captured: usize,
    unheard: Vec<Qpn>,
    unknown: u64,
}

impl std::fmt::Debug for Wire {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wire").field("here", &self.here).field("target", &self.target).finish_non_exhaustive()
    }
}

/// Why the link cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// No route leads to the target.
    #[error("no route to {target}: {source}. Give this host an address in the target's network")]
    NoRoute {
        /// The target.
        target: IpAddr,
        /// The system's error.
        source: io::Error,
    },
    /// The source address belongs to no interface.
    #[error("{address}, from which the target is reached, is on no interface: name one with --interface")]
    NoInterface {
        /// The address.
        address: IpAddr,
    },
    /// Any other failure.
    #[error("{0}")]
    Other(String),
}

/// Returns the address and the interface from which a target is reached.
fn route_to(target: IpAddr, interface: Option<&str>) -> Result<(IpAddr, Interface), WireError> {
    let failed = |source| WireError::NoRoute { target, source };
    let any = if target.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any).map_err(failed)?;
    socket.connect((target, 9)).map_err(failed)?;
    let here = socket.local_addr().map_err(failed)?.ip();
    if here == target {
        return Err(WireError::Other(format!(
            "{target} is an address of this host: run the bench on another host, or in another network namespace"
        )));
    }
    let all = interface.map_or_else(interface_names, |name| vec![name.to_owned()]);
    let found = all.iter().filter_map(|name| Interface::by_name(name).ok()).find(|i| i.has_address(here));
    found.map(|interface| (here, interface)).ok_or(WireError::NoInterface { address: here })
}

fn new_capture() -> PcapngWriter<Vec<u8>> {
    PcapngWriter::new(Vec::new(), &["bench"]).expect("a vector takes any bytes")
}

impl Wire {
    /// Opens the link to a target: with packet sockets if this process may, else with a UDP socket.
    ///
    /// # Errors
    /// [`WireError`] says what is missing.
    pub fn open(target: IpAddr, interface: Option<&str>, access: Option<Access>) -> Result<Wire, WireError> {
        let (here, interface) = route_to(target, interface)?;
        let other = |e: &dyn std::fmt::Display| WireError::Other(e.to_string());
        let raw = PacketConfig { interface: interface.name.clone(), addresses: vec![here], shared: false };
        let (port, access): (Box<dyn Port>, Access) = match access {
            Some(Access::Socket) => (Box::new(open_socket(here)?), Access::Socket),
            Some(Access::Raw) => (Box::new(PacketPort::open(&raw).map_err(|e| other(&e))?), Access::Raw),
            None => match PacketPort::open(&raw) {
                Ok(port) => (Box::new(port), Access::Raw),
                Err(error) if error.leaves_sockets() => (Box::new(open_socket(here)?), Access::Socket),
                Err(error) => return Err(other(&error)),
            },
        };
        let peer_mac = match access {
            Access::Raw => {
                resolve(&interface, RouteKey::new(here, target, 0), RESOLVED_IN).map_err(|e| other(&e))?
            }
            Access::Socket => port.info().mac,
        };
        let mtu = interface.mtu;
        Ok(Wire {
            port,
            access,
            here,
            target,
            peer_mac,
            mtu,
            inbox: Vec::new(),
            capture: new_capture(),
            captured: 0,
            unheard: Vec::new(),
            unknown: 0,
        })
    }

    /// Returns how the link is reached.
    pub fn access(&self) -> Access {
        self.access
    }

    /// Returns the bench's address.
    pub fn here(&self) -> IpAddr {
        self.here
    }

    /// Returns the target's address.
    pub fn target(&self) -> IpAddr {
        self.target
    }

    /// Returns an address of the bench's network that is neither its own nor the target's.
    pub(crate) fn stranger(&self) -> IpAddr {
        let last = |byte: u8| match self.here {
            IpAddr::V4(ip) => {
                let [a, b, c, _] = ip.octets();
                IpAddr::from([a, b, c, byte])
            }
            IpAddr::V6(ip) => {
                let mut octets = ip.octets();
                octets[15] = byte;
                IpAddr::from(octets)
            }
        };
        (77..).map(last).find(|ip| *ip != self.here && *ip != self.target).unwrap_or(self.here)
    }

    /// Returns the MTU of the interface in bytes.
    pub fn mtu(&self) -> usize {
        self.mtu
    }

    /// True if the ICRC and the IP header of received packets are those of the link.
    pub fn sees_headers(&self) -> bool {
        self.access == Access::Raw
    }

    /// Leaves the packets to a QP of the bench out of captures: they prove that the target is alive.
    pub(crate) fn leave_out(&mut self, qpn: Qpn) {
        self.unheard.push(qpn);
    }

    /// Forgets what has been received and captured.
    pub(crate) fn clear(&mut self) {
        self.look();
        self.inbox.clear();
        self.capture = new_capture();
        self.captured = 0;
        self.unknown = 0;
    }

    /// Returns the capture since the last [`clear`](Self::clear).
    pub(crate) fn take_capture(&mut self) -> Vec<u8> {
        std::mem::replace(&mut self.capture, new_capture()).into_inner()
    }

    /// Sends a packet. A silent one is not captured.
    ///
    /// # Errors
    /// [`Stop::NotTested`] if the link does not take it: silence of the target would be misunderstood.
    pub fn send(&mut self, packet: &Craft, silent: bool) -> Script {
        self.send_burst(std::slice::from_ref(packet), silent)
    }

    /// Sends packets with one call of the system.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn send_burst(&mut self, packets: &[Craft], silent: bool) -> Script {
        let refused = |why: String| Stop::NotTested(format!("the bench's port cannot send a packet: {why}"));
        let mac = self.port.info().mac;
        let mut slots = Vec::new();
        for packet in packets {
            let (head, body) = packet.parts(mac, self.peer_mac, self.here, self.target);
            let length = head.len() + body.len() + ICRC_LEN;
            let Some(id) = self.port.tx_alloc(length) else {
                slots.into_iter().for_each(|(id, _)| self.port.tx_cancel(id));
                return Err(refused(format!("{length} bytes are too long for the link")));
            };
            let mut frame = self.port.tx_frame(&id);
            frame.write(0, &head);
            frame.write(head.len(), &body);
            slots.push((id, packet));
        }
        self.port.tx_arrange();
        for (id, packet) in slots {
            let mut frame = self.port.tx_frame(&id);
            packet.seal(&mut frame);
            let bytes = frame.as_frame().to_vec();
            self.port.tx_commit(id);
            if !silent {
                self.record(Direction::Out, &bytes, None);
            }
        }
        self.port.tx_flush(Nanos::ZERO).map_err(|e| refused(e.to_string()))
    }

    fn record(&mut self, direction: Direction, frame: &[u8], comment: Option<&str>) {
        let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.captured += 1;
        if self.captured <= MOST_KEPT {
            // A vector takes any bytes.
            let _ = self.capture.write(0, at.as_nanos() as u64, direction, &Frame::whole(frame), comment);
        }
    }

    /// Takes what has arrived.
    pub(crate) fn look(&mut self) {
        let count = self.port.rx_burst(Nanos::ZERO);
        let received = |i| {
            let received = self.port.rx_frame(i);
            (received.frame.to_vec(), received.ip_id_hidden)
        };
        let frames: Vec<(Vec<u8>, bool)> = (0..count).map(received).collect();
        self.port.rx_release();
        for (frame, hides_id) in frames {
            let whole = Frame::whole(&frame);
            let Ok(packet) = parse(&whole) else {
                self.unknown += 1;
                self.record(Direction::In, &frame, None);
                continue;
            };
            if packet.source_gid().to_ip() != self.target {
                continue;
            }
            let is_right = packet.check_icrc(&whole) == Icrc::Ok;
            // The ICRC covers the identification: without it, only a right one can be told.
            let icrc_ok = (is_right || !hides_id).then_some(is_right);
            if !self.unheard.contains(&packet.bth.dest_qp) {
                let comment = icrc_ok.is_none().then_some("the port does not show the IPv4 identification");
                self.record(Direction::In, &frame, comment);
            }
            if self.inbox.len() < MOST_KEPT {
                self.inbox.push(Seen { at: Instant::now(), packet, frame, icrc_ok });
            }
        }
    }

    /// Returns the number of packets received that no parser understands.
    pub fn unknown(&self) -> u64 {
        self.unknown
    }

    /// Waits until at least `count` packets to `qpn` have been received, or until a time. Leaves them in the inbox.
    pub(crate) fn wait(&mut self, qpn: Qpn, count: usize, until: Instant) -> usize {
        loop {
            self.look();
            let here = self.inbox.iter().filter(|seen| seen.packet.bth.dest_qp == qpn).count();
            if here >= count || Instant::now() >= until {
                return here;
            }
            sleep(PAUSE);
        }
    }

    /// Takes the packets with an opcode from the inbox, whatever their destination QP.
    pub(crate) fn take_opcode(&mut self, opcode: Opcode) -> Vec<Seen> {
        self.inbox.extract_if(.., |seen| seen.packet.bth.opcode == opcode).collect()
    }

    /// Takes the packets to `qpn` from the inbox, in the order of their arrival.
    pub(crate) fn take(&mut self, qpn: Qpn) -> Vec<Seen> {
        self.inbox.extract_if(.., |seen| seen.packet.bth.dest_qp == qpn).collect()
    }
}

fn open_socket(here: IpAddr) -> Result<UdpPort, WireError> {
    let config = UdpConfig { addresses: vec![here], gso: false, ..UdpConfig::default() };
    UdpPort::open(&config).map_err(|e| WireError::Other(format!("UDP port 4791 of {here}: {e}")))
}
