//! Requests to rtnetlink and their answers, over a blocking socket.

use std::io;

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkFlags, LinkMessage};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

/// Attempts at a dump if the table changes meanwhile (`NLM_F_DUMP_INTR`).
const DUMP_ATTEMPTS: usize = 8;

/// The index of `lo` in every namespace (`LOOPBACK_IFINDEX` of Linux).
const LOOPBACK: u32 = 1;

/// One rtnetlink socket, for good in the namespace in which it was opened.
#[derive(Debug)]
pub(super) struct Netlink {
    socket: Socket,
    sequence: u32,
}

impl Netlink {
    /// Opens a socket in the namespace of the calling thread.
    pub(super) fn open() -> io::Result<Netlink> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Netlink { socket, sequence: 0 })
    }

    /// Sends a request and waits for its acknowledgement. Returns the answers before it.
    pub(super) fn request(
        &mut self,
        message: RouteNetlinkMessage,
        flags: u16,
    ) -> io::Result<Vec<RouteNetlinkMessage>> {
        self.exchange(message, flags | NLM_F_ACK).map(|(answers, _)| answers)
    }

    /// Sets the loopback interface of the socket's namespace up.
    pub(super) fn loopback_up(&mut self) -> io::Result<()> {
        let mut message = LinkMessage::default();
        message.header.index = LOOPBACK;
        message.header.change_mask = LinkFlags::Up;
        message.header.flags = LinkFlags::Up;
        self.request(RouteNetlinkMessage::SetLink(message), 0).map(drop)
    }

    /// Reads a whole table; repeats if it changed meanwhile.
    pub(super) fn dump(&mut self, message: &RouteNetlinkMessage) -> io::Result<Vec<RouteNetlinkMessage>> {
        for _ in 0..DUMP_ATTEMPTS {
            let (answers, interrupted) = self.exchange(message.clone(), NLM_F_DUMP)?;
            if !interrupted {
                return Ok(answers);
            }
        }
        Err(io::Error::new(
            io::ErrorKind::ResourceBusy,
            format!("the kernel's table changed during each of {DUMP_ATTEMPTS} attempts to read it"),
        ))
    }

    /// Sends one request and returns all its answers; true if the dump was not consistent.
    fn exchange(
        &mut self,
        message: RouteNetlinkMessage,
        flags: u16,
    ) -> io::Result<(Vec<RouteNetlinkMessage>, bool)> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        header.sequence_number = self.sequence;
        let mut packet = NetlinkMessage::new(header, NetlinkPayload::from(message));
        packet.finalize();
        let mut bytes = vec![0; packet.buffer_len()];
        packet.serialize(&mut bytes);
        self.socket.send(&bytes, 0)?;

        let mut answers = Vec::new();
        let mut interrupted = false;
        loop {
            let datagram = receive(&self.socket)?;
            for answer in messages(&datagram) {
                let answer = answer?;
                if answer.header.sequence_number != self.sequence {
                    continue; // left over from an exchange that failed half-way
                }
                interrupted |= answer.header.flags & NLM_F_DUMP_INTR != 0;
                match answer.payload {
                    NetlinkPayload::InnerMessage(m) => answers.push(m),
                    NetlinkPayload::Error(e) if e.code.is_some() => return Err(e.to_io()),
                    NetlinkPayload::Error(_) | NetlinkPayload::Done(_) => return Ok((answers, interrupted)),
                    _ => {}
                }
            }
        }
    }
}

/// Receives one datagram of any length. Retries after a signal.
pub(super) fn receive(socket: &Socket) -> io::Result<Vec<u8>> {
    loop {
        match socket.recv_from_full() {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            other => return other.map(|(bytes, _)| bytes),
        }
    }
}

/// Returns the messages of a datagram. Ends after the first that cannot be parsed.
pub(super) fn messages(
    datagram: &[u8],
) -> impl Iterator<Item = io::Result<NetlinkMessage<RouteNetlinkMessage>>> {
    let mut rest = datagram;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let parsed = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest);
        // Messages start on multiples of 4 (NLMSG_ALIGN).
        let step = match &parsed {
            Ok(m) => (m.header.length as usize).next_multiple_of(4).clamp(16, rest.len().max(16)),
            Err(_) => rest.len(),
        };
        rest = rest.get(step..).unwrap_or(&[]);
        Some(parsed.map_err(|e| {
            io::Error::new(io::ErrorKind::InvalidData, format!("rtnetlink answer not understood: {e}"))
        }))
    })
}
