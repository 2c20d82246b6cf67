//! An end that is a bare port driven by a script: sends invalid packets, and receives the responses.

use std::fmt;
use std::net::IpAddr;
use std::thread::sleep;
use std::time::{Duration, Instant};

use roxie::port::Port;
use roxie::port::udp::{UdpConfig, UdpPort};
use roxie::time::Nanos;
use roxie::wire::{
    Bth, Ext, FlowSpec, Gid, MAX_HEADERS, Opcode, Psn, ROCE_V2_PORT, RoceVersion, Template, parse, seal,
};

use crate::error::Error;

/// Bytes of the ICRC.
const ICRC: usize = 4;
/// How long the first responses may take, on a busy host with an emulated peer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Silence after which no further response is expected.
const QUIET: Duration = Duration::from_millis(30);
/// Pause between polls of the port.
const PAUSE: Duration = Duration::from_millis(1);

/// A packet, exact in every byte behind the BTH.
#[derive(Clone, Debug)]
pub struct Packet {
    /// The base header, with the pad count to send.
    pub bth: Bth,
    /// Extended headers, payload and pad.
    pub rest: Vec<u8>,
    /// Send a wrong ICRC (one bit).
    pub spoiled: bool,
}

/// A received packet: a response to the script's requests, or a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    opcode: Opcode,
    psn: Psn,
    syndrome: u8,
    /// The PSN to which its own is shown relative.
    first: Psn,
}

impl Seen {
    /// Returns the PSN of a READ request, relative to the script's first.
    pub fn read_request(&self) -> Option<i32> {
        (self.opcode == Opcode::RC_READ_REQUEST).then(|| self.psn.distance_from(self.first))
    }
}

impl fmt::Display for Seen {
    /// `ACK+1`, `RNR+0`, `NAK61+2`, `READ+3`, `SEND+0`, `READ_REQ+0`: the PSN as a distance from the script's first.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ahead = self.psn.distance_from(self.first);
        match (self.opcode, self.syndrome >> 5) {
            (Opcode::RC_ACKNOWLEDGE, 0) => write!(f, "ACK{ahead:+}"),
            (Opcode::RC_ACKNOWLEDGE, 1) => write!(f, "RNR{ahead:+}"),
            (Opcode::RC_ACKNOWLEDGE, _) => write!(f, "NAK{:02x}{ahead:+}", self.syndrome),
            // READ RESPONSE FIRST, MIDDLE, LAST, ONLY.
            (Opcode(0x0d..=0x10), _) => write!(f, "READ{ahead:+}"),
            (Opcode::RC_SEND_ONLY, _) => write!(f, "SEND{ahead:+}"),
            (Opcode::RC_READ_REQUEST, _) => write!(f, "READ_REQ{ahead:+}"),
            (opcode, _) => write!(f, "opcode {:#04x}{ahead:+}", opcode.0),
        }
    }
}

/// The script's port.
pub struct Wire {
    port: UdpPort,
    here: IpAddr,
    rxe_flush_icrc: bool,
}

impl Wire {
    /// Opens the port in the calling thread's network namespace. No other socket may have RoCE's UDP port on that
    /// address. If `rxe_flush_icrc`, FLUSH packets get rdma_rxe's (wrong) ICRC.
    ///
    /// # Errors
    /// If the port is taken, or the address is not this host's.
    pub fn open(here: IpAddr, rxe_flush_icrc: bool) -> Result<Wire, Error> {
        let config = UdpConfig { addresses: vec![here], gso: false, ..UdpConfig::default() };
        let port = UdpPort::open(&config).map_err(|e| Error::Local(format!("a script's port: {e}")))?;
        Ok(Wire { port, here, rxe_flush_icrc })
    }

    /// Returns the port's address.
    pub fn address(&self) -> IpAddr {
        self.here
    }

    /// Sends a packet.
    ///
    /// # Errors
    /// If the packet was not sent, whatever the reason: this must not look like silence of the peer.
    pub fn send(&mut self, to: IpAddr, packet: &Packet) -> Result<(), Error> {
        let mac = self.port.info().mac;
        let template = Template::new(&FlowSpec {
            src_mac: mac,
            dst_mac: mac,
            vlan: None,
            src: Gid::from(self.here),
            dst: Gid::from(to),
            traffic_class: 0,
            flow_label: 0,
            hop_limit: 64,
            source_port: ROCE_V2_PORT,
            version: RoceVersion::V2,
        });
        let mut headers = [0; MAX_HEADERS];
        // The template writes a SEND, which has no extended headers: all bytes behind the BTH count as payload.
        let substitute = Bth { opcode: Opcode::RC_SEND_ONLY, ..packet.bth };
        let behind = template.write_headers(&mut headers, &substitute, &Ext::None, packet.rest.len());
        let length = behind + packet.rest.len() + ICRC;
        set_lengths(&mut headers, length);
        let refused = || Error::Local(format!("the script's port has no room for {length} bytes"));
        let id = self.port.tx_alloc(length).ok_or_else(refused)?;
        let mut frame = self.port.tx_frame(&id);
        frame.write(0, &headers[..behind - Bth::LEN]);
        frame.write(behind - Bth::LEN, &packet.bth.to_bytes());
        frame.write(behind, &packet.rest);
        self.port.tx_arrange();
        let mut frame = self.port.tx_frame(&id);
        seal(&mut frame);
        if self.rxe_flush_icrc {
            template.seal_as_rxe(&mut frame);
        }
        if packet.spoiled {
            let [last] = frame.as_frame().array(length - 1).unwrap_or_default();
            frame.write(length - 1, &[last ^ 1]);
        }
        self.port.tx_commit(id);
        let before = self.sent();
        self.port.tx_flush(Nanos::ZERO).map_err(|e| Error::Local(format!("the script's port: {e}")))?;
        if self.sent() != before + 1 {
            return Err(Error::Local(format!("the script's port did not send {packet:?}")));
        }
        Ok(())
    }

    /// Returns the number of datagrams sent.
    fn sent(&self) -> u64 {
        let mut counters = Vec::new();
        self.port.counters(&mut counters);
        counters.iter().filter(|(name, _)| *name == "tx_packets").map(|(_, value)| value).sum()
    }

    /// Returns all received packets: waits for `least`, and then for a silence.
    pub fn answers(&mut self, least: usize, first: Psn) -> Vec<Seen> {
        let start = Instant::now();
        let (mut answers, mut last) = (Vec::new(), start);
        loop {
            let count = self.port.rx_burst(Nanos::ZERO);
            for i in 0..count {
                answers.extend(parse(&self.port.rx_frame(i).frame).ok().map(|p| Seen {
                    opcode: p.bth.opcode,
                    psn: p.bth.psn,
                    syndrome: p.aeth().map_or(0, |aeth| aeth.syndrome),
                    first,
                }));
            }
            self.port.rx_release();
            if count > 0 {
                last = Instant::now();
            }
            if last.elapsed() > QUIET && (answers.len() >= least || start.elapsed() > PATIENCE) {
                return answers;
            }
            sleep(PAUSE);
        }
    }
}

/// Sets the length fields: the builder pads, but a script may leave out the pad.
fn set_lengths(headers: &mut [u8], frame: usize) {
    const ETHERNET: usize = 14;
    const IPV4: usize = ETHERNET + 20;
    const IPV6: usize = ETHERNET + 40;
    let (at, counted_from, udp) = match headers[ETHERNET] >> 4 {
        4 => (ETHERNET + 2, ETHERNET, IPV4),
        _ => (ETHERNET + 4, IPV6, IPV6),
    };
    for (at, length) in [(at, frame - counted_from), (udp + 4, frame - udp)] {
        headers[at..at + 2].copy_from_slice(&(length as u16).to_be_bytes());
    }
}
