//! The kernel's netlink protocol of RDMA devices, for this library's device (`nldev.c` of Linux, `rdma_netlink.h`).
//!
//! A request is a header and attributes. A dump is answered by a multipart message and its end, any other request by
//! one message and, if requested, an acknowledgement. No I/O in this module.

/// `struct nlmsghdr`.
const HEADER: usize = 16;
/// Maximum bytes of a datagram: every program reads at least as much at a time.
const DATAGRAM: usize = 4096;
/// Bits of `nlmsg_flags`.
const MULTI: u16 = 2;
const ACK: u16 = 4;
const DUMP: u16 = 0x300;
/// Message types of netlink itself.
const ERROR: u16 = 2;
const DONE: u16 = 3;
/// `RDMA_NL_NLDEV`, in the bits above the command.
const NLDEV: u16 = 5;

/// `enum rdma_nldev_command`.
mod command {
    pub(super) const GET: u16 = 1;
    pub(super) const PORT_GET: u16 = 5;
    pub(super) const SYS_GET: u16 = 6;
    pub(super) const RES_GET: u16 = 9;
    pub(super) const RES_QP_GET: u16 = 10;
    pub(super) const RES_PD_GET: u16 = 14;
    pub(super) const RES_CTX_GET: u16 = 22;
    pub(super) const RES_SRQ_GET: u16 = 23;
}

/// `enum rdma_nldev_attr`.
mod attr {
    pub(super) const DEV_INDEX: u16 = 1;
    pub(super) const DEV_NAME: u16 = 2;
    pub(super) const PORT_INDEX: u16 = 3;
    pub(super) const CAP_FLAGS: u16 = 4;
    pub(super) const FW_VERSION: u16 = 5;
    pub(super) const NODE_GUID: u16 = 6;
    pub(super) const SYS_IMAGE_GUID: u16 = 7;
    pub(super) const PORT_STATE: u16 = 12;
    pub(super) const PORT_PHYS_STATE: u16 = 13;
    pub(super) const DEV_NODE_TYPE: u16 = 14;
    pub(super) const RES_SUMMARY: u16 = 15;
    pub(super) const RES_SUMMARY_ENTRY: u16 = 16;
    pub(super) const RES_SUMMARY_ENTRY_NAME: u16 = 17;
    pub(super) const RES_SUMMARY_ENTRY_CURR: u16 = 18;
    pub(super) const RES_QP: u16 = 19;
    pub(super) const RES_QP_ENTRY: u16 = 20;
    pub(super) const RES_LQPN: u16 = 21;
    pub(super) const RES_RQPN: u16 = 22;
    pub(super) const RES_RQ_PSN: u16 = 23;
    pub(super) const RES_SQ_PSN: u16 = 24;
    pub(super) const RES_TYPE: u16 = 26;
    pub(super) const RES_STATE: u16 = 27;
    pub(super) const RES_PID: u16 = 28;
    pub(super) const NDEV_INDEX: u16 = 50;
    pub(super) const NDEV_NAME: u16 = 51;
    pub(super) const SYS_NETNS_MODE: u16 = 66;
    pub(super) const DEV_PROTOCOL: u16 = 67;
    pub(super) const SYS_COPY_ON_FORK: u16 = 93;
}

/// The device, as reported.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Device {
    pub(crate) name: String,
    pub(crate) firmware: String,
    pub(crate) guid: u64,
    pub(crate) capabilities: u64,
    pub(crate) interface: String,
    pub(crate) interface_index: u32,
    pub(crate) is_active: bool,
    /// Number of objects of each kind.
    pub(crate) counts: [(&'static str, u64); 5],
    pub(crate) qps: Vec<Qp>,
}

/// A queue pair of any process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Qp {
    pub(crate) pid: u32,
    pub(crate) number: u32,
    /// QPN of the peer, for connected services.
    pub(crate) remote: Option<u32>,
    pub(crate) rq_psn: u32,
    pub(crate) sq_psn: u32,
    /// `enum ib_qp_type`, `enum ib_qp_state`.
    pub(crate) kind: u8,
    pub(crate) state: u8,
}

/// Index of the only device, the same as from `ibv_get_device_index`.
const INDEX: u32 = 0;

/// Returns the datagrams that answer the requests in `sent`.
pub(crate) fn answers(sent: &[u8], device: Option<&Device>) -> Vec<Vec<u8>> {
    let mut datagrams = Vec::new();
    let mut rest = sent;
    while let Some((request, after)) = Request::first(rest) {
        answer(&request, device, &mut datagrams);
        rest = after;
    }
    datagrams
}

/// A received message.
struct Request<'a> {
    kind: u16,
    flags: u16,
    seq: u32,
    port: u32,
    header: &'a [u8],
    attributes: &'a [u8],
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// Messages and attributes are aligned to four bytes.
fn aligned(length: usize) -> usize {
    length.next_multiple_of(4)
}

impl<'a> Request<'a> {
    /// Splits off the first message. Returns `None` if no complete message is left.
    fn first(bytes: &'a [u8]) -> Option<(Request<'a>, &'a [u8])> {
        let length = u32_at(bytes, 0)? as usize;
        let whole = bytes.get(..length).filter(|_| length >= HEADER)?;
        let request = Request {
            kind: u16_at(whole, 4)?,
            flags: u16_at(whole, 6)?,
            seq: u32_at(whole, 8)?,
            port: u32_at(whole, 12)?,
            header: &whole[..HEADER],
            attributes: &whole[HEADER..],
        };
        Some((request, bytes.get(aligned(length)..).unwrap_or_default()))
    }

    fn is_dump(&self) -> bool {
        self.flags & DUMP == DUMP
    }

    /// Returns the value of a numeric attribute.
    fn number(&self, wanted: u16) -> Option<u32> {
        let mut rest = self.attributes;
        while let (Some(length), Some(kind)) = (u16_at(rest, 0), u16_at(rest, 2)) {
            let length = usize::from(length);
            if length < 4 {
                return None;
            }
            if kind == wanted {
                return u32_at(rest.get(..length)?, 4);
            }
            rest = rest.get(aligned(length)..)?;
        }
        None
    }

    /// Returns true if the request names this device, or is a dump without a device.
    fn is_of_the_device(&self) -> bool {
        match self.number(attr::DEV_INDEX) {
            Some(index) => index == INDEX,
            None => self.is_dump(),
        }
    }
}

/// A message under construction.
struct Message(Vec<u8>);

impl Message {
    fn new(request: &Request<'_>, kind: u16, flags: u16) -> Message {
        let mut bytes = vec![0; 4];
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        bytes.extend(request.seq.to_ne_bytes());
        bytes.extend(request.port.to_ne_bytes());
        Message(bytes)
    }

    fn put(&mut self, kind: u16, value: &[u8]) {
        let length = 4 + value.len();
        self.0.extend((length as u16).to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(self.0.len() + aligned(length) - length, 0);
    }

    fn number(&mut self, kind: u16, value: u32) {
        self.put(kind, &value.to_ne_bytes());
    }

    fn long(&mut self, kind: u16, value: u64) {
        self.put(kind, &value.to_ne_bytes());
    }

    fn byte(&mut self, kind: u16, value: u8) {
        self.put(kind, &[value]);
    }

    fn text(&mut self, kind: u16, value: &str) {
        let mut bytes = value.as_bytes().to_vec();
        bytes.push(0);
        self.put(kind, &bytes);
    }

    /// Adds a nested attribute.
    fn nest(&mut self, kind: u16, fill: impl FnOnce(&mut Message)) {
        const NESTED: u16 = 1 << 15;
        let start = self.0.len();
        self.put(kind | NESTED, &[]);
        fill(self);
        let length = (self.0.len() - start) as u16;
        self.0[start..start + 2].copy_from_slice(&length.to_ne_bytes());
    }

    fn finish(mut self) -> Vec<u8> {
        let length = self.0.len() as u32;
        self.0[..4].copy_from_slice(&length.to_ne_bytes());
        self.0.resize(aligned(self.0.len()), 0);
        self.0
    }
}

fn answer(request: &Request<'_>, device: Option<&Device>, datagrams: &mut Vec<Vec<u8>>) {
    if request.kind >> 10 != NLDEV {
        return datagrams.push(error(request, libc::EOPNOTSUPP));
    }
    let messages = match respond(request, device) {
        Ok(messages) => messages,
        Err(errno) => return datagrams.push(error(request, errno)),
    };
    for message in messages {
        match datagrams.last_mut() {
            Some(last) if last.len() + message.len() <= DATAGRAM => last.extend(message),
            _ => datagrams.push(message),
        }
    }
    if request.is_dump() {
        let mut done = Message::new(request, DONE, MULTI);
        done.0.extend(0u32.to_ne_bytes());
        datagrams.push(done.finish());
    } else if request.flags & ACK != 0 {
        datagrams.push(error(request, 0));
    }
}

/// Returns an error message, or with 0 an acknowledgement.
fn error(request: &Request<'_>, errno: i32) -> Vec<u8> {
    let mut message = Message::new(request, ERROR, 0);
    message.0.extend((-errno).to_ne_bytes());
    message.0.extend(request.header);
    message.finish()
}

/// # Errors
/// `EOPNOTSUPP` for an unsupported command, `ENODEV` for an unknown device.
fn respond(request: &Request<'_>, device: Option<&Device>) -> Result<Vec<Vec<u8>>, i32> {
    let command = request.kind & 0x3ff;
    let flags = if request.is_dump() { MULTI } else { 0 };
    let begin = || Message::new(request, request.kind, flags);
    if command == command::SYS_GET {
        let mut message = begin();
        // Devices are visible in all network namespaces, and memory is copied on fork.
        message.byte(attr::SYS_NETNS_MODE, 1);
        message.byte(attr::SYS_COPY_ON_FORK, 1);
        return Ok(vec![message.finish()]);
    }
    let served =
        [command::GET, command::PORT_GET, command::RES_GET, command::RES_CTX_GET, command::RES_SRQ_GET];
    if !served.contains(&command) && !(command::RES_QP_GET..=command::RES_PD_GET).contains(&command) {
        return Err(libc::EOPNOTSUPP);
    }
    let Some(device) = device.filter(|_| request.is_of_the_device()) else {
        return if request.is_dump() && request.number(attr::DEV_INDEX).is_none() {
            Ok(Vec::new())
        } else {
            Err(libc::ENODEV)
        };
    };
    let mut message = begin();
    message.number(attr::DEV_INDEX, INDEX);
    message.text(attr::DEV_NAME, &device.name);
    match command {
        command::GET => device.put(&mut message),
        command::PORT_GET => {
            if request.number(attr::PORT_INDEX).is_some_and(|port| port != 1) {
                return Err(libc::EINVAL);
            }
            device.put_port(&mut message);
        }
        command::RES_GET => message.nest(attr::RES_SUMMARY, |message| {
            for (name, count) in device.counts {
                message.nest(attr::RES_SUMMARY_ENTRY, |message| {
                    message.text(attr::RES_SUMMARY_ENTRY_NAME, name);
                    message.long(attr::RES_SUMMARY_ENTRY_CURR, count);
                });
            }
        }),
        command::RES_QP_GET => return device.reply_qps(request, flags),
        // Other kinds of objects are counted, but not listed.
        _ => return if request.is_dump() { Ok(Vec::new()) } else { Err(libc::ENOENT) },
    }
    Ok(vec![message.finish()])
}

impl Device {
    fn put(&self, message: &mut Message) {
        // Number of ports; in a port's own message, its index.
        message.number(attr::PORT_INDEX, 1);
        message.long(attr::CAP_FLAGS, self.capabilities);
        message.text(attr::FW_VERSION, &self.firmware);
        message.long(attr::NODE_GUID, self.guid);
        message.long(attr::SYS_IMAGE_GUID, self.guid);
        // Channel adapter.
        message.byte(attr::DEV_NODE_TYPE, 1);
        message.text(attr::DEV_PROTOCOL, "roce");
    }

    fn put_port(&self, message: &mut Message) {
        message.number(attr::PORT_INDEX, 1);
        // ACTIVE and LinkUp, or DOWN and Disabled.
        let (state, physical) = if self.is_active { (4, 5) } else { (1, 3) };
        message.byte(attr::PORT_STATE, state);
        message.byte(attr::PORT_PHYS_STATE, physical);
        message.number(attr::NDEV_INDEX, self.interface_index);
        message.text(attr::NDEV_NAME, &self.interface);
    }

    /// Reports all queue pairs, as many per message as fit a datagram; or the one with the requested number.
    fn reply_qps(&self, request: &Request<'_>, flags: u16) -> Result<Vec<Vec<u8>>, i32> {
        let begin = || {
            let mut message = Message::new(request, request.kind, flags);
            message.number(attr::DEV_INDEX, INDEX);
            message.text(attr::DEV_NAME, &self.name);
            message
        };
        if !request.is_dump() {
            let number = request.number(attr::RES_LQPN).ok_or(libc::EINVAL)?;
            let qp = self.qps.iter().find(|qp| qp.number == number).ok_or(libc::ENOENT)?;
            let mut message = begin();
            qp.put(&mut message);
            return Ok(vec![message.finish()]);
        }
        /// Maximum bytes of an entry.
        const ENTRY: usize = 80;
        let each = DATAGRAM / ENTRY - 2;
        let several = |qps: &[Qp]| {
            let mut message = begin();
            message.nest(attr::RES_QP, |message| {
                for qp in qps {
                    message.nest(attr::RES_QP_ENTRY, |message| qp.put(message));
                }
            });
            message.finish()
        };
        Ok(self.qps.chunks(each).map(several).collect())
    }
}

impl Qp {
    fn put(&self, message: &mut Message) {
        message.number(attr::PORT_INDEX, 1);
        message.number(attr::RES_LQPN, self.number);
        if let Some(remote) = self.remote {
            message.number(attr::RES_RQPN, remote);
            message.number(attr::RES_RQ_PSN, self.rq_psn);
        }
        message.number(attr::RES_SQ_PSN, self.sq_psn);
        message.byte(attr::RES_TYPE, self.kind);
        message.byte(attr::RES_STATE, self.state);
        message.number(attr::RES_PID, self.pid);
    }
}

#[cfg(test)]
mod tests;
